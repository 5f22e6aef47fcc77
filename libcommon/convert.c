/*
 * Problem: the cheapest sequence of collectives and local steps from one layout of a
 * tensor to another.
 *
 * Idea: uniform-cost search over layouts. Neighbours of a layout are what one step makes
 * of it: a slice or its reverse, an all-gather, on an axis that is innermost in its
 * factor (form.c), so that the blocks of all other axes stay; an all-to-all, which is
 * both at once on two dimensions; a swap of two equal axes; sums. An axis is only ever
 * placed as in the source or the target, replicated, or, when it is partial, on one of
 * the first two dimensions that it divides: reduce-scatter inside, all-reduce across,
 * all-gather inside is found that way. Gathering and summing all, then slicing, is always
 * one of the ways.
 *
 * Cost: at most 5^axes layouts, in practice a dozen; results are kept (memo.c).
 */
#include "cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "form.h"
#include "memo.h"

enum { MAX_PLACES = 2 }; /* source's and target's */

struct node {
    struct ap_layout at;
    int64_t local_bytes;
    double sec; /* from the source */
    int n_steps, from;
    bool done;
    /* the step that leads here */
    enum ap_op op;
    struct ap_coll coll;
    int64_t bytes;
    double step_sec;
};

struct search {
    const struct ap_cost *cost;
    const struct ap_mesh *mesh;
    const struct ap_shape *shape;
    bool fewest; /* every step costs 1 */
    struct ap_layout target;
    int n_places[AP_MAX_AXES];
    struct ap_placement place[AP_MAX_AXES][MAX_PLACES]; /* strides of the finest form */
    struct ap_placement goal[AP_MAX_AXES];              /* likewise, of the target */
    int n, cap;
    struct node *nodes;
    int *heap; /* node numbers by cost; sifted when costs fall */
    int n_heap;
    int *place_in_heap;
};

/* ---- bytes ---- */

static int64_t step_bytes(const struct ap_mesh *mesh, enum ap_op op, unsigned axes,
                          int64_t operand, int64_t result)
{
    if (op == AP_OP_ALL_GATHER)
        return result;
    if (op == AP_OP_ALL_TO_ALL)
        return ap_mul64(operand, mesh->size[__builtin_ctz(axes)]);
    if (op == AP_OP_ALL_REDUCE || op == AP_OP_REDUCE_SCATTER ||
        op == AP_OP_COLLECTIVE_PERMUTE)
        return operand;
    return 0;
}

int64_t ap_step_bytes(const struct ap_mesh *mesh, enum ap_op op,
                      const struct ap_coll *coll, const struct ap_shape *operand_local,
                      const struct ap_shape *result_local)
{
    return step_bytes(mesh, op, coll->axes, ap_shape_bytes(operand_local),
                      ap_shape_bytes(result_local));
}

/* ---- single steps ---- */

/*
 * Takes the split by axis a away: *out is the layout that an ap-slice on a would start
 * from, *split what it would cut. False if a is not innermost.
 */
static bool unsplit(const struct search *s, const struct ap_layout *l, int a,
                    struct ap_layout *out, struct ap_split *split)
{
    int d = l->axis[a].dim, i = 0;
    struct ap_form form;

    if (ap_form_get(s->mesh, s->shape, l, d, &form))
        return false;
    *split = (struct ap_split){.dim = d, .outer = 1, .full = 1, .part = 1};
    if (form.dead >> a & 1) {
        form.dead &= ~(1u << a);
        i = form.n;
    }
    for (int k = 0; k < i; k++)
        split->outer *= ap_form_local(s->mesh, &form.factor[k]);
    for (; i < form.n; i++) {
        struct ap_form_factor *f = &form.factor[i];
        int64_t local = ap_form_local(s->mesh, f);
        int k = 0;
        while (k < f->n && f->axis[k] != a)
            k++;
        if (k == f->n) {
            split->outer *= local;
            continue;
        }
        if (k != f->n - 1)
            return false;
        f->n--;
        split->part = local;
        split->full = ap_form_local(s->mesh, f);
        break;
    }
    *out = *l;
    out->axis[a] = (struct ap_placement){0};
    return ap_form_refine(s->mesh, &form) == 0 &&
           ap_form_put(s->mesh, s->shape, &form, d, out) == 0;
}

/* Places axis a, replicated in l, as p says; false if that would move other blocks. */
static bool slice(const struct search *s, const struct ap_layout *l, int a,
                  const struct ap_placement *p, struct ap_layout *out,
                  struct ap_split *split)
{
    struct ap_form form;
    struct ap_layout back;

    if (ap_form_get(s->mesh, s->shape, l, p->dim, &form))
        return false;
    *out = *l;
    for (int b = 0; b < s->mesh->n_axes; b++)
        if (l->axis[b].kind == AP_SPLIT && l->axis[b].dim == p->dim)
            out->axis[b].stride = ap_form_stride(&form, b);
    out->axis[a] = *p;
    return ap_layout_canon(s->mesh, s->shape, out) == 0 &&
           unsplit(s, out, a, &back, split) && ap_layout_equal(&back, l);
}

/* Axes a and b exchange their places. */
static bool swap(const struct search *s, const struct ap_layout *l, int a, int b,
                 struct ap_layout *out)
{
    unsigned dims = 0;
    *out = *l;
    out->axis[a] = l->axis[b];
    out->axis[b] = l->axis[a];
    if (l->axis[a].kind == AP_SPLIT)
        dims |= 1u << l->axis[a].dim;
    if (l->axis[b].kind == AP_SPLIT)
        dims |= 1u << l->axis[b].dim;
    for (int d = 0; dims >> d; d++) {
        struct ap_form form;
        if (!(dims >> d & 1))
            continue;
        if (ap_form_get(s->mesh, s->shape, l, d, &form))
            return false;
        for (int i = 0; i < form.n; i++)
            for (int k = 0; k < form.factor[i].n; k++) {
                uint8_t *axis = &form.factor[i].axis[k];
                *axis = (uint8_t)(*axis == a ? b : *axis == b ? a : *axis);
            }
        unsigned both = form.dead & (1u << a | 1u << b);
        if (both && both != (1u << a | 1u << b))
            form.dead ^= 1u << a | 1u << b;
        if (ap_form_put(s->mesh, s->shape, &form, d, out))
            return false;
    }
    return true;
}

/* Placement of axis a with the stride of the finest form. */
static struct ap_placement finest(const struct search *s, const struct ap_layout *l,
                                  int a)
{
    struct ap_placement p = l->axis[a];
    struct ap_form form;
    if (p.kind == AP_SPLIT && ap_form_get(s->mesh, s->shape, l, p.dim, &form) == 0)
        p.stride = ap_form_stride(&form, a);
    return p;
}

static bool same_place(const struct ap_placement *p, const struct ap_placement *q)
{
    return p->kind == q->kind && p->red == q->red && p->dim == q->dim &&
           p->stride == q->stride;
}

/* ---- the frontier ---- */

static bool before(const struct search *s, int i, int j)
{
    const struct node *a = &s->nodes[i], *b = &s->nodes[j];
    if (a->sec != b->sec)
        return a->sec < b->sec;
    if (a->n_steps != b->n_steps)
        return a->n_steps < b->n_steps;
    return i < j;
}

static void heap_set(struct search *s, int at, int node)
{
    s->heap[at] = node;
    s->place_in_heap[node] = at;
}

static void sift_up(struct search *s, int at)
{
    int node = s->heap[at];
    for (; at > 0 && before(s, node, s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap_set(s, at, s->heap[(at - 1) / 2]);
    heap_set(s, at, node);
}

static int heap_pop(struct search *s)
{
    int top = s->heap[0], node = s->heap[--s->n_heap], at = 0;
    for (;;) {
        int child = 2 * at + 1;
        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && before(s, s->heap[child + 1], s->heap[child]))
            child++;
        if (!before(s, s->heap[child], node))
            break;
        heap_set(s, at, s->heap[child]);
        at = child;
    }
    if (s->n_heap > 0)
        heap_set(s, at, node);
    return top;
}

/* The node of layout l, a new one with infinite cost if there is none. */
static int node_of(struct search *s, const struct ap_layout *l)
{
    for (int i = 0; i < s->n; i++)
        if (ap_layout_equal(&s->nodes[i].at, l))
            return i;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->nodes = ap_xrealloc(s->nodes, (size_t)s->cap * sizeof(*s->nodes));
        s->heap = ap_xrealloc(s->heap, (size_t)s->cap * sizeof(*s->heap));
        s->place_in_heap =
            ap_xrealloc(s->place_in_heap, (size_t)s->cap * sizeof(*s->place_in_heap));
    }
    s->nodes[s->n] =
        (struct node){.at = *l,
                      .local_bytes = ap_layout_local_bytes(s->mesh, s->shape, l),
                      .sec = INFINITY,
                      .from = -1};
    heap_set(s, s->n_heap++, s->n);
    return s->n++;
}

/* One step from node `from` to layout `to`. */
static void relax(struct search *s, int from, enum ap_op op, const struct ap_coll *coll,
                  const struct ap_layout *to)
{
    int i = node_of(s, to);
    const struct node *up = &s->nodes[from];
    struct node *v = &s->nodes[i];

    if (v->done)
        return;
    int64_t bytes = step_bytes(s->mesh, op, coll->axes, up->local_bytes, v->local_bytes);
    double step_sec = ap_cost_collective(s->cost, op, coll->axes, bytes);
    double sec = up->sec + (s->fewest ? 1 : step_sec);
    if (sec > v->sec || (sec == v->sec && up->n_steps + 1 >= v->n_steps))
        return;
    v->sec = sec;
    v->n_steps = up->n_steps + 1;
    v->from = from;
    v->op = op;
    v->coll = *coll;
    v->bytes = bytes;
    v->step_sec = step_sec;
    sift_up(s, s->place_in_heap[i]);
}

/* ---- neighbours; l is a copy, since nodes move in memory ---- */

static void from_replicated(struct search *s, int from, const struct ap_layout *l, int a)
{
    for (int k = 0; k < s->n_places[a]; k++) {
        const struct ap_placement *p = &s->place[a][k];
        struct ap_coll coll = {.axes = 1u << a};
        struct ap_layout to = *l;
        if (p->kind == AP_SPLIT && slice(s, l, a, p, &to, &coll.split))
            relax(s, from, AP_OP_AP_SLICE, &coll, &to);
        if (p->kind != AP_PARTIAL || !same_place(p, &s->goal[a]))
            continue;
        coll.red = p->red;
        to.axis[a] = *p;
        relax(s, from, AP_OP_AP_PARTIAL, &coll, &to);
    }
}

static void scatter_to(struct search *s, int from, const struct ap_layout *summed, int a,
                       uint8_t red, const struct ap_placement *p)
{
    struct ap_coll coll = {.axes = 1u << a, .red = red};
    struct ap_layout to;
    if (slice(s, summed, a, p, &to, &coll.split))
        relax(s, from, AP_OP_REDUCE_SCATTER, &coll, &to);
}

static void from_partial(struct search *s, int from, const struct ap_layout *l, int a)
{
    struct ap_layout summed = *l;
    int tried = 0;

    summed.axis[a] = (struct ap_placement){0};
    for (int k = 0; k < s->n_places[a]; k++)
        if (s->place[a][k].kind == AP_SPLIT)
            scatter_to(s, from, &summed, a, l->axis[a].red, &s->place[a][k]);
    for (int d = 0; d < s->shape->rank && tried < 2; d++) {
        struct ap_form form;
        if (ap_form_get(s->mesh, s->shape, l, d, &form) || form.n == 0)
            continue;
        int64_t local = ap_form_local(s->mesh, &form.factor[form.n - 1]);
        if (local == 0 || local % s->mesh->size[a] != 0)
            continue;
        tried++;
        scatter_to(
            s, from, &summed, a, l->axis[a].red,
            &(struct ap_placement){.kind = AP_SPLIT, .dim = (uint8_t)d, .stride = local});
    }
}

static void from_split(struct search *s, int from, const struct ap_layout *l, int a)
{
    struct ap_coll coll = {.axes = 1u << a};
    struct ap_layout gathered, to;
    struct ap_split join;

    if (!unsplit(s, l, a, &gathered, &join))
        return;
    coll.split = join;
    relax(s, from, AP_OP_ALL_GATHER, &coll, &gathered);
    for (int k = 0; k < s->n_places[a]; k++) {
        const struct ap_placement *p = &s->place[a][k];
        if (p->kind != AP_SPLIT || p->dim == l->axis[a].dim)
            continue;
        coll.join = join;
        if (slice(s, &gathered, a, p, &to, &coll.split))
            relax(s, from, AP_OP_ALL_TO_ALL, &coll, &to);
    }
}

/* Axes that are partial with `red` in l and are not to stay so. */
static unsigned summable(const struct search *s, const struct ap_layout *l, int red)
{
    unsigned axes = 0;
    for (int a = 0; a < s->mesh->n_axes; a++)
        if (l->axis[a].kind == AP_PARTIAL && l->axis[a].red == red &&
            !same_place(&l->axis[a], &s->goal[a]))
            axes |= 1u << a;
    return axes;
}

static void all_reduces(struct search *s, int from, const struct ap_layout *l)
{
    for (int red = AP_RED_SUM; red <= AP_RED_OR; red++) {
        unsigned all = summable(s, l, red);
        for (unsigned axes = all; axes; axes = (axes - 1) & all) {
            struct ap_coll coll = {.axes = axes, .red = (enum ap_red)red};
            struct ap_layout to = *l;
            for (int a = 0; a < s->mesh->n_axes; a++)
                if (axes >> a & 1)
                    to.axis[a] = (struct ap_placement){0};
            relax(s, from, AP_OP_ALL_REDUCE, &coll, &to);
        }
    }
}

/* Swaps that bring at least one of the two axes where it belongs. */
static void swaps(struct search *s, int from, const struct ap_layout *l)
{
    for (int a = 0; a < s->mesh->n_axes; a++)
        for (int b = a + 1; b < s->mesh->n_axes; b++) {
            struct ap_coll coll = {.axes = 1u << a | 1u << b};
            struct ap_layout to;
            if (s->mesh->size[a] != s->mesh->size[b] || s->mesh->size[a] == 1 ||
                (l->axis[a].kind == AP_REPLICATED && l->axis[b].kind == AP_REPLICATED))
                continue;
            struct ap_placement p = finest(s, l, a), q = finest(s, l, b);
            if (same_place(&p, &q) && p.kind != AP_SPLIT)
                continue;
            if (!same_place(&p, &s->goal[b]) && !same_place(&q, &s->goal[a]))
                continue;
            if (swap(s, l, a, b, &to) && !ap_layout_equal(&to, l))
                relax(s, from, AP_OP_COLLECTIVE_PERMUTE, &coll, &to);
        }
}

static void expand(struct search *s, int i)
{
    struct ap_layout l = s->nodes[i].at;
    bool partial = false;

    for (int a = 0; a < s->mesh->n_axes; a++)
        switch ((enum ap_placement_kind)l.axis[a].kind) {
        case AP_REPLICATED:
            from_replicated(s, i, &l, a);
            break;
        case AP_SPLIT:
            from_split(s, i, &l, a);
            break;
        case AP_PARTIAL:
            partial = true;
            if (!same_place(&l.axis[a], &s->goal[a]))
                from_partial(s, i, &l, a);
            break;
        }
    if (partial)
        all_reduces(s, i, &l);
    swaps(s, i, &l);
}

/* ---- the search ---- */

static void add_place(struct search *s, int a, const struct ap_placement *p)
{
    for (int k = 0; k < s->n_places[a]; k++)
        if (same_place(&s->place[a][k], p))
            return;
    if (p->kind != AP_REPLICATED)
        s->place[a][s->n_places[a]++] = *p;
}

/* Fills nodes; returns the target's, -1 if it was not reached. */
static int run(struct search *s, const struct ap_layout *from)
{
    s->n = s->n_heap = 0;
    int i = node_of(s, from);
    s->nodes[i].sec = 0;
    while (s->n_heap > 0) {
        i = heap_pop(s);
        if (s->nodes[i].sec == INFINITY)
            break;
        s->nodes[i].done = true;
        if (ap_layout_equal(&s->nodes[i].at, &s->target))
            return i;
        expand(s, i);
    }
    return -1;
}

static void write_path(const struct search *s, int goal, struct ap_path *path)
{
    path->n_steps = s->nodes[goal].n_steps;
    for (int i = goal, k = path->n_steps - 1; k >= 0; i = s->nodes[i].from, k--) {
        const struct node *v = &s->nodes[i];
        path->steps[k] = (struct ap_step){.op = v->op,
                                          .coll = v->coll,
                                          .from = s->nodes[v->from].at,
                                          .to = v->at,
                                          .bytes = v->bytes,
                                          .sec = v->step_sec};
    }
    path->sec = 0;
    for (int k = 0; k < path->n_steps; k++)
        path->sec += path->steps[k].sec;
}

static int search(const struct ap_cost *cost, const struct ap_shape *shape,
                  const struct ap_layout *from, const struct ap_layout *to,
                  struct ap_path *path)
{
    struct search s = {.cost = cost, .mesh = &cost->mesh, .shape = shape, .target = *to};
    for (int a = 0; a < s.mesh->n_axes; a++) {
        struct ap_placement p = finest(&s, from, a);
        s.goal[a] = finest(&s, to, a);
        add_place(&s, a, &s.goal[a]);
        add_place(&s, a, &p);
    }
    int goal = run(&s, from);
    if (goal >= 0 && s.nodes[goal].n_steps > AP_MAX_STEPS) {
        s.fewest = true; /* two steps an axis always do */
        goal = run(&s, from);
    }
    if (goal >= 0)
        write_path(&s, goal, path);
    free(s.nodes);
    free(s.heap);
    free(s.place_in_heap);
    return goal >= 0 ? 0 : -1;
}

int ap_convert(const struct ap_cost *cost, const struct ap_shape *shape,
               const struct ap_layout *from, const struct ap_layout *to,
               struct ap_path *path)
{
    bool found = false;
    path->n_steps = 0;
    path->sec = 0;
    if (ap_layout_equal(from, to))
        return 0;
    struct ap_memo_entry *e =
        cost->cache ? ap_memo_get(cost->cache, shape, from, to, &found) : NULL;
    if (found && e->sec == INFINITY)
        return -1;
    if (found && e->n_steps >= 0) {
        path->n_steps = e->n_steps;
        path->sec = e->sec;
        memcpy(path->steps, e->steps, (size_t)e->n_steps * sizeof(*path->steps));
        return 0;
    }
    int rc = search(cost, shape, from, to, path);
    if (e)
        e->sec = rc ? INFINITY : path->sec;
    if (e && rc == 0)
        ap_memo_put_path(cost->cache, e, path);
    return rc;
}

double ap_convert_sec(const struct ap_cost *cost, const struct ap_shape *shape,
                      const struct ap_layout *from, const struct ap_layout *to)
{
    bool found = false;
    struct ap_path path;

    if (ap_layout_equal(from, to))
        return 0;
    struct ap_memo_entry *e =
        cost->cache ? ap_memo_get(cost->cache, shape, from, to, &found) : NULL;
    if (found)
        return e->sec;
    double sec = search(cost, shape, from, to, &path) ? INFINITY : path.sec;
    if (e)
        e->sec = sec;
    return sec;
}
