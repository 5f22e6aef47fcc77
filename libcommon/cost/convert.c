/*
 * Problem: the cheapest sequence of collectives and local steps from one layout of a
 * tensor to another.
 *
 * Idea: uniform-cost search over layouts. Neighbours of a layout are the layouts that one
 * step reaches: a slice or its reverse, an all-gather, on an axis that is innermost in
 * its factor (nested_split.c), so that the blocks of all other axes stay; an all-to-all,
 * which is both at once on two dimensions; a swap of two equal axes; sums. An axis is
 * only ever placed as in the source or the target, replicated, or, when it is partial, on
 * one of the first two dimensions that it divides: reduce-scatter inside, all-reduce
 * across, all-gather inside is found that way. Gathering and summing all, then slicing,
 * is always one of the ways.
 *
 * The microbatch axis only ever goes from the source's placement to the target's, by a
 * step of its own that moves nothing. While it is not replicated the value is one
 * microbatch's, and a step is paid as often as there are microbatches: sums are thus
 * accumulated first and reduced over devices once.
 *
 * Cost: at most 5^axes layouts; on four axes of two some eighty are expanded. Results are
 * kept (conversion_cache.c).
 */
#include "cost/alpa.h"
#include "cost/cost.h"

#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/heap.h"
#include "base/index_map.h"
#include "cost/conversion_cache.h"
#include "layout/nested_split.h"

enum { MAX_PLACES = 2 }; /* source's and target's */

struct node {
    struct ap_layout at;
    int64_t local_bytes;
    double sec; /* from the source */
    int n_steps, from;
    int n_mixed; /* of the steps: those whose blocks do not lie one after the other */
    bool done;
    /* the step that leads here */
    enum ap_op op;
    struct ap_coll coll;
    int64_t bytes, times;
    double step_sec;
};

struct search {
    const struct ap_cost *cost;
    const struct ap_mesh *mesh;
    const struct ap_shape *shape;
    bool fewest; /* every step costs 1 */
    struct ap_layout target;
    int n_places[AP_MAX_AXES];
    struct ap_placement place[AP_MAX_AXES][MAX_PLACES]; /* finest strides */
    struct ap_placement goal[AP_MAX_AXES];              /* likewise, of the target */
    struct ap_layout at;                                /* being expanded, */
    struct ap_nested_split nested[AP_MAX_RANK];         /* finest, of its dimensions, */
    unsigned known; /* those that were needed so far */
    int n, cap;
    struct node *nodes;
    struct ap_index index; /* of nodes, by layout */
    struct ap_heap queue;  /* of struct candidate: one each time that a node is reached
                              more cheaply, and the first of them counts */
};

/* A node by what it takes to reach it. */
struct candidate {
    double sec;
    int n_steps, node;
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

/* Finest nested of dimension d of the layout that is being expanded. */
static const struct ap_nested_split *nested_of(struct search *s, int d)
{
    /* layouts are canonical, so that there is one */
    if (!(s->known >> d & 1))
        ap_nested_split_get(s->mesh, s->shape, &s->at, d, &s->nested[d]);
    s->known |= 1u << d;
    return &s->nested[d];
}

/*
 * Takes the split by axis a away: *out is the layout that an ap-slice on a would start
 * from, *split what it would cut; nested is of a's dimension in l. False if a is not
 * innermost.
 */
static bool unsplit(const struct search *s, const struct ap_layout *l,
                    const struct ap_nested_split *whole, int a, struct ap_layout *out,
                    struct ap_split *split)
{
    int d = l->axis[a].dim, i = 0;
    struct ap_nested_split nested = *whole;

    *split = (struct ap_split){.dim = d, .outer = 1, .full = 1, .part = 1};
    if (nested.dead >> a & 1) {
        nested.dead &= ~(1u << a);
        for (; i < nested.n; i++)
            split->outer *= ap_nested_split_local(s->mesh, &nested.factor[i]);
    }
    for (; i < nested.n; i++) {
        struct ap_split_factor *f = &nested.factor[i];
        int64_t local = ap_nested_split_local(s->mesh, f);
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
        split->full = ap_nested_split_local(s->mesh, f);
        break;
    }
    *out = *l;
    out->axis[a] = (struct ap_placement){0};
    return ap_nested_split_refine(s->mesh, &nested) == 0 &&
           ap_nested_split_put(s->mesh, s->shape, &nested, d, out) == 0;
}

/*
 * Places axis a, replicated in l, as p says; false if that would move other blocks. On
 * p's dimension l is as the layout that is being expanded.
 */
static bool slice(struct search *s, const struct ap_layout *l, int a,
                  const struct ap_placement *p, struct ap_layout *out,
                  struct ap_split *split)
{
    const struct ap_nested_split *nested = nested_of(s, p->dim);
    struct ap_nested_split after;
    struct ap_layout back;

    *out = *l;
    for (int b = 0; b < s->mesh->n_axes; b++)
        if (l->axis[b].kind == AP_SPLIT && l->axis[b].dim == p->dim)
            out->axis[b].stride = ap_nested_split_stride(nested, b);
    out->axis[a] = *p;
    return ap_nested_split_get(s->mesh, s->shape, out, p->dim, &after) == 0 &&
           ap_nested_split_put(s->mesh, s->shape, &after, p->dim, out) == 0 &&
           unsplit(s, out, &after, a, &back, split) && ap_layout_equal(&back, l);
}

/* Axes a and b of the layout that is being expanded exchange their places. */
static bool swap(struct search *s, int a, int b, struct ap_layout *out)
{
    const struct ap_placement *p = &s->at.axis[a], *q = &s->at.axis[b];
    unsigned bits = 1u << a | 1u << b;
    unsigned dims = (p->kind == AP_SPLIT ? 1u << p->dim : 0) |
                    (q->kind == AP_SPLIT ? 1u << q->dim : 0);

    *out = s->at;
    out->axis[a] = *q;
    out->axis[b] = *p;
    for (int d = 0; dims >> d; d++) {
        if (!(dims >> d & 1))
            continue;
        struct ap_nested_split nested = *nested_of(s, d);
        for (int i = 0; i < nested.n; i++)
            for (int k = 0; k < nested.factor[i].n; k++) {
                uint8_t *axis = &nested.factor[i].axis[k];
                *axis = (uint8_t)(*axis == a ? b : *axis == b ? a : *axis);
            }
        if ((nested.dead & bits) && (nested.dead & bits) != bits)
            nested.dead ^= bits;
        if (ap_nested_split_put(s->mesh, s->shape, &nested, d, out))
            return false;
    }
    return true;
}

/* Placement of axis a with the stride of the finest nested, in the layout being expanded.
 */
static struct ap_placement finest(struct search *s, int a)
{
    struct ap_placement p = s->at.axis[a];
    if (p.kind == AP_SPLIT)
        p.stride = ap_nested_split_stride(nested_of(s, p.dim), a);
    return p;
}

static bool same_place(const struct ap_placement *p, const struct ap_placement *q)
{
    return p->kind == q->kind && p->red == q->red && p->dim == q->dim &&
           p->stride == q->stride;
}

/* ---- the frontier ---- */

static bool before(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    if (a->sec != b->sec)
        return a->sec < b->sec;
    if (a->n_steps != b->n_steps)
        return a->n_steps < b->n_steps;
    return a->node < b->node;
}

static void push(struct search *s, int i)
{
    const struct candidate c = {s->nodes[i].sec, s->nodes[i].n_steps, i};
    ap_heap_push(&s->queue, &c);
}

/* The node of layout l, a new one with infinite cost if there is none. */
static int node_of(struct search *s, const struct ap_layout *l)
{
    struct ap_index_walk walk;
    uint64_t hash = 0;

    for (int a = 0; a < s->mesh->n_axes; a++)
        hash = ap_hash_mix(hash, ap_placement_word(&l->axis[a]));
    for (int i = ap_index_first(&s->index, hash, &walk); i >= 0;
         i = ap_index_next(&s->index, &walk))
        if (ap_layout_equal(&s->nodes[i].at, l))
            return i;
    ap_index_put(&s->index, hash, s->n);
    AP_ROOM(s->nodes, s->n, s->cap);
    s->nodes[s->n] =
        (struct node){.at = *l,
                      .local_bytes = ap_layout_local_bytes(s->mesh, s->shape, l),
                      .sec = INFINITY,
                      .from = -1};
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
    int64_t times = ap_layout_per_microbatch(s->mesh, &up->at) ||
                            ap_layout_per_microbatch(s->mesh, to)
                        ? ap_mesh_microbatches(s->mesh)
                        : 1;
    /* on two axes Alpa counts what a device holds of the tensor that is moved */
    int64_t counted =
        s->cost->alpa.mixed && op == AP_OP_ALL_TO_ALL &&
                ap_mesh_group(s->mesh, coll->axes) != ap_mesh_devices(s->mesh)
            ? v->local_bytes
            : bytes;
    double step_sec =
        (double)times * ap_cost_collective(s->cost, op, coll->axes, counted);
    bool mixed = coll->split.outer > 1;
    double sec = up->sec + (s->fewest ? 1 : step_sec);
    /* sums of the same terms in another order are ties: of these the fewest steps, and of
       these the fewest whose blocks a library would have to copy together */
    int n_steps = up->n_steps + 1, n_mixed = up->n_mixed + mixed;
    bool tie = !(sec < v->sec * (1 - 1e-12));
    if (tie && (sec > v->sec * (1 + 1e-12) || n_steps > v->n_steps ||
                (n_steps == v->n_steps && n_mixed >= v->n_mixed)))
        return;
    v->sec = fmin(sec, v->sec);
    v->n_steps = n_steps;
    v->n_mixed = n_mixed;
    v->from = from;
    v->op = op;
    v->coll = *coll;
    v->bytes = bytes;
    v->times = times;
    v->step_sec = step_sec;
    push(s, i);
}

/* ---- neighbours of s->at, the layout of node `from` ---- */

static bool is_microbatch_axis(const struct search *s, int a)
{
    return s->mesh->microbatch >> a & 1;
}

static void from_replicated(struct search *s, int from, int a)
{
    for (int k = 0; k < s->n_places[a]; k++) {
        const struct ap_placement *p = &s->place[a][k];
        if (is_microbatch_axis(s, a) && !same_place(p, &s->goal[a]))
            continue;
        struct ap_coll coll = {.axes = 1u << a};
        struct ap_layout to = s->at;
        if (p->kind == AP_SPLIT && slice(s, &s->at, a, p, &to, &coll.split))
            relax(s, from, AP_OP_AP_SLICE, &coll, &to);
        if (p->kind != AP_PARTIAL || !same_place(p, &s->goal[a]))
            continue;
        coll.red = p->red;
        to = s->at;
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

static void from_partial(struct search *s, int from, int a)
{
    struct ap_layout summed = s->at;
    uint8_t red = s->at.axis[a].red;
    int tried = 0;

    summed.axis[a] = (struct ap_placement){0};
    for (int k = 0; k < s->n_places[a]; k++)
        if (s->place[a][k].kind == AP_SPLIT)
            scatter_to(s, from, &summed, a, red, &s->place[a][k]);
    /* if it is to be split it goes there at once */
    int most = s->goal[a].kind == AP_SPLIT ? 0 : s->mesh->n_axes > 4 ? 1 : 2;
    for (int d = 0; d < s->shape->rank && tried < most; d++) {
        const struct ap_nested_split *nested = nested_of(s, d);
        if (nested->n == 0)
            continue;
        int64_t local = ap_nested_split_local(s->mesh, &nested->factor[nested->n - 1]);
        if (local == 0 || local % s->mesh->size[a] != 0)
            continue;
        tried++;
        scatter_to(
            s, from, &summed, a, red,
            &(struct ap_placement){.kind = AP_SPLIT, .dim = (uint8_t)d, .stride = local});
    }
}

static void from_split(struct search *s, int from, int a)
{
    int dim = s->at.axis[a].dim;
    struct ap_coll coll = {.axes = 1u << a};
    struct ap_layout gathered, to;
    struct ap_split join;

    if (is_microbatch_axis(s, a) && s->goal[a].kind != AP_REPLICATED)
        return;
    if (!unsplit(s, &s->at, nested_of(s, dim), a, &gathered, &join))
        return;
    coll.split = join;
    relax(s, from, AP_OP_ALL_GATHER, &coll, &gathered);
    if (is_microbatch_axis(s, a))
        return;
    if (s->cost->alpa.space && !ap_alpa_all_to_all(s->cost, a))
        return;
    for (int k = 0; k < s->n_places[a]; k++) {
        const struct ap_placement *p = &s->place[a][k];
        if (p->kind != AP_SPLIT || p->dim == dim)
            continue;
        coll.join = join;
        if (slice(s, &gathered, a, p, &to, &coll.split))
            relax(s, from, AP_OP_ALL_TO_ALL, &coll, &to);
    }
}

/* Axes that are partial with `red` and are not to stay so. */
static unsigned summable(const struct search *s, int red)
{
    unsigned axes = 0;
    for (int a = 0; a < s->mesh->n_axes; a++)
        if (s->at.axis[a].kind == AP_PARTIAL && s->at.axis[a].red == red &&
            !same_place(&s->at.axis[a], &s->goal[a]))
            axes |= 1u << a;
    return axes;
}

static void all_reduces(struct search *s, int from)
{
    for (int red = AP_RED_SUM; red <= AP_RED_OR; red++) {
        unsigned all = summable(s, red);
        for (unsigned axes = all; axes; axes = (axes - 1) & all) {
            if ((axes & s->mesh->microbatch) &&
                (axes != s->mesh->microbatch || s->goal[0].kind != AP_REPLICATED))
                continue;
            struct ap_coll coll = {.axes = axes, .red = (enum ap_red)red};
            struct ap_layout to = s->at;
            for (int a = 0; a < s->mesh->n_axes; a++)
                if (axes >> a & 1)
                    to.axis[a] = (struct ap_placement){0};
            relax(s, from, AP_OP_ALL_REDUCE, &coll, &to);
        }
    }
}

/* Swaps that bring at least one of the two axes where it belongs. */
static void swaps(struct search *s, int from)
{
    for (int a = 0; a < s->mesh->n_axes; a++)
        for (int b = a + 1; b < s->mesh->n_axes; b++) {
            struct ap_coll coll = {.axes = 1u << a | 1u << b};
            struct ap_layout to;
            if (s->mesh->size[a] != s->mesh->size[b] || s->mesh->size[a] == 1 ||
                is_microbatch_axis(s, a))
                continue;
            struct ap_placement p = finest(s, a), q = finest(s, b);
            if (same_place(&p, &q) && p.kind != AP_SPLIT)
                continue;
            if (!same_place(&p, &s->goal[b]) && !same_place(&q, &s->goal[a]))
                continue;
            if (swap(s, a, b, &to) && !ap_layout_equal(&to, &s->at))
                relax(s, from, AP_OP_COLLECTIVE_PERMUTE, &coll, &to);
        }
}

/*
 * Alpa's way: first sums, axis by axis; then gathers, the first dimension first; slices
 * last. An all-to-all only on a mesh of one axis; what may be asked for at all is
 * ap_alpa_converts.
 */
static void expand_alpa(struct search *s, int from)
{
    bool sums = false;
    int gather = -1;

    for (int a = 0; a < s->mesh->n_axes; a++) {
        struct ap_placement p = finest(s, a);
        if (same_place(&p, &s->goal[a]))
            continue;
        if (sums && s->at.axis[0].kind == AP_PARTIAL && is_microbatch_axis(s, 0))
            break; /* accumulated first */
        if (p.kind == AP_PARTIAL) {
            struct ap_coll coll = {.axes = 1u << a, .red = p.red};
            struct ap_layout to = s->at;
            to.axis[a] = (struct ap_placement){0};
            relax(s, from, AP_OP_ALL_REDUCE, &coll, &to);
            if (s->cost->alpa.scatter && s->goal[a].kind == AP_SPLIT &&
                !is_microbatch_axis(s, a))
                scatter_to(s, from, &to, a, p.red, &s->goal[a]);
            sums = true;
        } else if (p.kind == AP_SPLIT &&
                   (gather < 0 || p.dim <= s->at.axis[gather].dim)) {
            gather = a;
        }
    }
    if (sums)
        return;
    if (gather >= 0)
        from_split(s, from, gather);
    for (int a = 0; a < s->mesh->n_axes && gather < 0; a++)
        if (s->at.axis[a].kind == AP_REPLICATED)
            from_replicated(s, from, a);
}

static void expand(struct search *s, int i)
{
    bool partial = false;

    if (s->cost->alpa.space) {
        expand_alpa(s, i);
        return;
    }
    for (int a = 0; a < s->mesh->n_axes; a++)
        switch ((enum ap_placement_kind)s->at.axis[a].kind) {
        case AP_REPLICATED:
            from_replicated(s, i, a);
            break;
        case AP_SPLIT:
            from_split(s, i, a);
            break;
        case AP_PARTIAL:
            partial = true;
            if (!same_place(&s->at.axis[a], &s->goal[a]) && !is_microbatch_axis(s, a))
                from_partial(s, i, a);
            break;
        }
    if (partial)
        all_reduces(s, i);
    swaps(s, i);
}

/* ---- the search ---- */

static void look_at(struct search *s, const struct ap_layout *l)
{
    s->at = *l;
    s->known = 0;
}

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
    struct candidate c;

    s->n = s->queue.n = 0;
    ap_index_clear(&s->index);
    int i = node_of(s, from);
    s->nodes[i].sec = 0;
    push(s, i);
    while (ap_heap_pop(&s->queue, &c)) {
        if (s->nodes[c.node].done)
            continue;
        s->nodes[c.node].done = true;
        look_at(s, &s->nodes[c.node].at);
        if (ap_layout_equal(&s->at, &s->target))
            return c.node;
        expand(s, c.node);
    }
    return -1;
}

static void write_path(const struct search *s, int goal, struct ap_step *steps,
                       struct ap_path *path)
{
    path->n_steps = s->nodes[goal].n_steps;
    for (int i = goal, k = path->n_steps - 1; k >= 0; i = s->nodes[i].from, k--) {
        const struct node *v = &s->nodes[i];
        steps[k] = (struct ap_step){.op = v->op,
                                    .coll = v->coll,
                                    .from = s->nodes[v->from].at,
                                    .to = v->at,
                                    .bytes = v->bytes,
                                    .times = v->times,
                                    .sec = v->step_sec};
    }
    path->steps = steps;
    path->sec = 0;
    for (int k = 0; k < path->n_steps; k++)
        path->sec += steps[k].sec;
}

static int search(const struct ap_cost *cost, const struct ap_shape *shape,
                  const struct ap_layout *from, const struct ap_layout *to,
                  struct ap_step *room, struct ap_path *path)
{
    struct search s = {.cost = cost,
                       .mesh = &cost->mesh,
                       .shape = shape,
                       .target = *to,
                       .queue = {.size = sizeof(struct candidate), .before = before}};
    if (cost->alpa.space && !ap_alpa_converts(cost, from, to))
        return -1;
    look_at(&s, to);
    for (int a = 0; a < s.mesh->n_axes; a++) {
        s.goal[a] = finest(&s, a);
        add_place(&s, a, &s.goal[a]);
    }
    look_at(&s, from);
    for (int a = 0; a < s.mesh->n_axes; a++) {
        struct ap_placement p = finest(&s, a);
        add_place(&s, a, &p);
    }
    int goal = run(&s, from);
    if (goal >= 0 && s.nodes[goal].n_steps > AP_MAX_STEPS) {
        s.fewest = true; /* two steps an axis always do */
        goal = run(&s, from);
    }
    if (goal >= 0)
        write_path(&s, goal, room, path);
    free(s.nodes);
    ap_index_free(&s.index);
    ap_heap_free(&s.queue);
    return goal >= 0 ? 0 : -1;
}

int ap_convert(const struct ap_cost *cost, const struct ap_shape *shape,
               const struct ap_layout *from, const struct ap_layout *to,
               struct ap_step *room, struct ap_path *path)
{
    bool found = false;
    path->n_steps = 0;
    path->steps = room;
    path->sec = 0;
    if (ap_layout_equal(from, to))
        return 0;
    struct ap_cached_conversion *e =
        cost->cache ? ap_conversion_cache_get(cost->cache, shape, from, to, &found)
                    : NULL;
    if (found && e->sec == INFINITY)
        return -1;
    if (found && e->n_steps >= 0) {
        path->n_steps = e->n_steps;
        path->sec = e->sec;
        path->steps = e->steps;
        return 0;
    }
    int rc = search(cost, shape, from, to, room, path);
    if (e)
        e->sec = rc ? INFINITY : path->sec;
    if (e && rc == 0)
        ap_conversion_cache_put_path(cost->cache, e, path);
    return rc;
}

double ap_convert_sec(const struct ap_cost *cost, const struct ap_shape *shape,
                      const struct ap_layout *from, const struct ap_layout *to)
{
    bool found = false;
    struct ap_step room[AP_MAX_STEPS];
    struct ap_path path;

    if (ap_layout_equal(from, to))
        return 0;
    struct ap_cached_conversion *e =
        cost->cache ? ap_conversion_cache_get(cost->cache, shape, from, to, &found)
                    : NULL;
    if (found)
        return e->sec;
    double sec = search(cost, shape, from, to, room, &path) ? INFINITY : path.sec;
    if (e)
        e->sec = sec;
    return sec;
}
