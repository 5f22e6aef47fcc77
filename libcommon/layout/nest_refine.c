/*
 * Refinement of dimensions: where reshapes cut and merge them.
 *
 * Problem: a reshape passes a split on only where both shapes have a common factor, so
 * the tensors around it should offer splits along those factors (strides), too. Idea: all
 * dimensions that share factors form a class, over the whole graph (union-find over the
 * rules' links). Reshapes relate the boundaries of classes: a boundary on one side is one
 * on the other where it divides; if the sides do not fit, the gcd of the sizes next to an
 * aligned boundary still does. A worklist carries boundaries through reshapes until
 * nothing changes. A class takes at most two boundaries (three factors), which must form
 * a chain of divisors; later ones are dropped. Stripes and strides of pins come first.
 * Cost: a reshape is looked at once, and again for each boundary that its classes win (at
 * most two each), so linear in the graph.
 */
#include "layout/nest_impl.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/csr.h"
#include "base/union_find.h"
#include "graph/attr_text.h"

/* ---- boundaries of one dimension ---- */

/* True when the boundary is new and was taken. */
static bool bounds_add(struct ap_bounds *b, int64_t size, int64_t minor)
{
    int i = 0;
    while (i < b->n && b->minor[i] > minor)
        i++;
    if (i < b->n && b->minor[i] == minor)
        return false;
    int64_t above = i > 0 ? b->minor[i - 1] : size;
    int64_t below = i < b->n ? b->minor[i] : 1;
    if (b->n == 2 || above % minor != 0 || minor % below != 0)
        return false;
    if (minor < b->run && b->run / minor % b->devices != 0)
        return false;
    if (i < b->n)
        b->minor[i + 1] = b->minor[i];
    b->minor[i] = minor;
    b->n++;
    return true;
}

const struct ap_bounds *ap_refine_bounds(const struct ap_refine *refine, int node,
                                         int dim)
{
    return &refine->bounds[refine->class[refine->dim_start[node] + dim]];
}

/* ---- the common refinement of two shapes ---- */

/*
 * One side of a reshape as boundaries in the flat order of its elements: at[i] = elements
 * minor to boundary i, strictly descending from all of them to 1. Each divides the one
 * before it, and no two neighbours span a boundary of dimensions.
 */
struct side {
    int n;
    int64_t at[AP_MAX_PIECES];
};

static void side_fill(struct side *s, const struct ap_shape *shape,
                      const struct ap_refine *refine, int node)
{
    int64_t top = ap_shape_elems(shape);

    s->n = 0;
    s->at[s->n++] = top;
    for (int d = 0; d < shape->rank; d++) {
        int64_t minor = top / shape->dims[d];
        const struct ap_bounds *b = refine ? ap_refine_bounds(refine, node, d) : NULL;
        for (int i = 0; b && i < b->n; i++)
            s->at[s->n++] = minor * b->minor[i];
        if (minor < top)
            s->at[s->n++] = minor;
        top = minor;
    }
}

/* Adds a boundary where it divides. */
static void side_cut(struct side *s, int64_t p)
{
    int i = 0;
    while (i < s->n && s->at[i] > p)
        i++;
    if (i == s->n || s->at[i] == p || s->n == AP_MAX_PIECES)
        return;
    assert(i > 0); /* at[0] is all elements, on both sides */
    if (s->at[i - 1] % p != 0 || p % s->at[i] != 0)
        return;
    memmove(&s->at[i + 1], &s->at[i], (size_t)(s->n - i) * sizeof(s->at[0]));
    s->at[i] = p;
    s->n++;
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t c = a % b;
        a = b;
        b = c;
    }
    return a;
}

/* Ends of the next stretch between boundaries of both sides; false at the end. */
static bool next_stretch(const struct side *a, const struct side *b, int *i, int *j)
{
    if (*i + 1 >= a->n || *j + 1 >= b->n)
        return false;
    ++*i;
    ++*j;
    while (a->at[*i] != b->at[*j]) {
        if (a->at[*i] > b->at[*j])
            ++*i;
        else
            ++*j;
    }
    return true;
}

/* Refines both sides by each other. */
static void refine_sides(struct side *a, struct side *b)
{
    struct side old = *a;

    for (int i = 0; i < old.n; i++)
        side_cut(b, old.at[i]);
    old = *b;
    for (int i = 0; i < old.n; i++)
        side_cut(a, old.at[i]);
    int i = 0, j = 0, i0 = 0, j0 = 0;
    while (next_stretch(a, b, &i, &j)) {
        if (i > i0 + 1 && j > j0 + 1) { /* does not fit: what its ends have in common */
            int64_t hi = a->at[i0], lo = a->at[i];
            int64_t front = gcd(hi / a->at[i0 + 1], hi / b->at[j0 + 1]);
            int64_t back = gcd(a->at[i - 1] / lo, b->at[j - 1] / lo);
            int n_a = a->n, n_b = b->n;
            side_cut(a, hi / front);
            side_cut(b, hi / front);
            side_cut(a, lo * back);
            side_cut(b, lo * back);
            i += a->n - n_a;
            j += b->n - n_b;
        }
        i0 = i;
        j0 = j;
    }
}

/* False for tensors without elements (or with more than fit), whose dims stay whole. */
static bool both_sides(const struct ap_graph *g, const struct ap_node *n, int node,
                       const struct ap_refine *refine, struct side *in, struct side *out)
{
    const struct ap_shape *from = ap_value_shape(&g->nodes[n->in[0]]);
    int64_t elems = ap_shape_elems(from);

    if (elems == 0 || elems == INT64_MAX)
        return false;
    side_fill(in, from, refine, n->in[0]);
    side_fill(out, &n->shape, refine, node);
    refine_sides(in, out);
    return true;
}

/* ---- the rule ---- */

/*
 * Finds the dimension and the piece of each span between boundaries; cuts the dimensions.
 */
static void place_pieces(struct ap_rule *r, int port, const struct ap_shape *shape,
                         const struct side *s, struct ap_rule_at *where)
{
    int64_t size[AP_MAX_PIECES], minor = s->at[0];
    int k = 0;

    for (int d = 0; d < shape->rank; d++) {
        int n = 0;
        minor /= shape->dims[d];
        for (; k + 1 < s->n && s->at[k + 1] >= minor; k++) {
            where[k] = (struct ap_rule_at){port, d, n};
            size[n++] = s->at[k] / s->at[k + 1];
        }
        ap_rule_add_cut(r, port, d, n, size);
    }
}

static void all_whole(struct ap_rule *r, int port, const struct ap_shape *shape)
{
    for (int d = 0; d < shape->rank; d++)
        ap_rule_add_mark(r, (struct ap_rule_at){port, d, AP_UNCUT}, AP_FACTOR_WHOLE,
                         AP_RED_NONE);
}

void ap_rule_reshape(struct ap_rule *r)
{
    const struct ap_shape *from = ap_value_shape(&r->g->nodes[r->node->in[0]]);
    const struct ap_shape *to = &r->node->shape;
    struct ap_rule_at at_in[AP_MAX_PIECES], at_out[AP_MAX_PIECES];
    struct side in, out;

    if (!both_sides(r->g, r->node, (int)(r->node - r->g->nodes), r->refine, &in, &out)) {
        all_whole(r, 0, from);
        all_whole(r, AP_OUT, to);
        return;
    }
    place_pieces(r, 0, from, &in, at_in);
    place_pieces(r, AP_OUT, to, &out, at_out);
    int i = 0, j = 0, i0 = 0, j0 = 0;
    while (next_stretch(&in, &out, &i, &j)) {
        if (i == i0 + 1 && j == j0 + 1) {
            ap_rule_add_link(r, at_in[i0], at_out[j0]);
        } else {
            for (int k = i0; k < i; k++)
                ap_rule_add_mark(r, at_in[k], AP_FACTOR_WHOLE, AP_RED_NONE);
            for (int k = j0; k < j; k++)
                ap_rule_add_mark(r, at_out[k], AP_FACTOR_WHOLE, AP_RED_NONE);
        }
        i0 = i;
        j0 = j;
    }
}

/* ---- the worklist ---- */

/* Reshapes by the classes that they relate, and those that must be looked at again. */
struct worklist {
    struct ap_csr of; /* reshapes of each class */
    int *queue;       /* ring of `size` nodes */
    int head, n, size;
    bool *queued; /* of each node */
};

static void enqueue(struct worklist *w, int node)
{
    if (w->queued[node])
        return;
    w->queued[node] = true;
    w->queue[(w->head + w->n++) % w->size] = node;
}

static void list_reshapes(struct ap_arena *arena, const struct ap_refine *r, int n_dims,
                          struct worklist *w)
{
    const struct ap_graph *g = r->g;
    int n = 0;

    for (int v = 0; v < g->n_nodes; v++)
        w->size += g->nodes[v].op == AP_OP_RESHAPE;
    int *class = AP_NEW_N(arena, (int64_t)w->size * 2 * AP_MAX_RANK, int);
    int *reshape = AP_NEW_N(arena, (int64_t)w->size * 2 * AP_MAX_RANK, int);
    for (int v = 0; v < g->n_nodes; v++) {
        const int both[2] = {g->nodes[v].op == AP_OP_RESHAPE ? g->nodes[v].in[0] : v, v};
        for (int s = 0; s < 2 && both[0] != v; s++)
            for (int d = r->dim_start[both[s]]; d < r->dim_start[both[s] + 1]; d++) {
                class[n] = r->class[d];
                reshape[n++] = v;
            }
    }
    w->of = ap_csr_new(arena, n_dims, n, class, reshape);
    w->queued = AP_NEW_N(arena, g->n_nodes, bool);
    w->queue = AP_NEW_N(arena, w->size + 1, int);
}

/* Adds the boundaries of one side of a reshape to the classes of its dimensions. */
static void add_boundaries(struct ap_refine *r, struct worklist *w, int node,
                           const struct side *s)
{
    const struct ap_shape *shape = ap_value_shape(&r->g->nodes[node]);
    int64_t minor = s->at[0];
    int k = 1;

    for (int d = 0; d < shape->rank; d++) {
        int class = r->class[r->dim_start[node] + d];
        minor /= shape->dims[d];
        for (; k < s->n && s->at[k] > minor; k++) {
            if (!bounds_add(&r->bounds[class], shape->dims[d], s->at[k] / minor))
                continue;
            for (int i = w->of.start[class]; i < w->of.start[class + 1]; i++)
                enqueue(w, w->of.item[i]);
        }
        if (k < s->n && s->at[k] == minor)
            k++;
    }
}

static void carry(struct ap_arena *arena, struct ap_refine *r, int n_dims)
{
    struct worklist w = {0};
    struct side in, out;

    list_reshapes(arena, r, n_dims, &w);
    for (int v = 0; v < r->g->n_nodes; v++) {
        if (r->g->nodes[v].op == AP_OP_RESHAPE)
            enqueue(&w, v);
    }
    while (w.n > 0) {
        int v = w.queue[w.head];
        w.head = (w.head + 1) % w.size;
        w.n--;
        w.queued[v] = false;
        if (!both_sides(r->g, &r->g->nodes[v], v, r, &in, &out))
            continue;
        add_boundaries(r, &w, r->g->nodes[v].in[0], &in);
        add_boundaries(r, &w, v, &out);
    }
}

/* Joins the dimensions that the node's rule links as a whole. */
static void join_links(struct ap_refine *r, const struct ap_rule *rule, int id)
{
    const struct ap_node *n = &r->g->nodes[id];
    for (int i = 0; i < rule->n_links; i++) {
        struct ap_rule_at a = rule->links[i].a, b = rule->links[i].b;
        if (a.piece != AP_UNCUT || b.piece != AP_UNCUT)
            continue;
        int node_a = a.port == AP_OUT ? id : n->in[a.port];
        int node_b = b.port == AP_OUT ? id : n->in[b.port];
        ap_sets_join(r->class, r->dim_start[node_a] + a.dim,
                     r->dim_start[node_b] + b.dim);
    }
}

/* The stripes of attentions (ap-fuse --stripes). */
static void add_stripes(const struct ap_refine *r, int id)
{
    const struct ap_node *n = &r->g->nodes[id];
    const struct ap_ints *s = &n->attrs->scores;

    if (s->n < 6 || s->v[5] < 2)
        return;
    const int of = s->v[0] ? n->in[s->v[0] - 1] : id;
    for (int i = 1; i < 3; i++) {
        const int64_t size = r->g->nodes[of].shape.dims[s->v[i]];
        struct ap_bounds *b = &r->bounds[r->class[r->dim_start[of] + s->v[i]]];
        if (size % s->v[5] == 0 && bounds_add(b, size, size / s->v[5]))
            b->stripe = size / s->v[5];
    }
}

/* The strides of a pin in the own notation, such as 2x4:S0/16,R. */
static void add_pin(const struct ap_refine *r, int id)
{
    const struct ap_node *n = &r->g->nodes[id];
    const char *size = n->pin;
    const char *text = size && isdigit((unsigned char)*size) ? strchr(size, ':') : NULL;
    struct ap_placement p;
    struct ap_err ignored;

    for (size_t pos = 1; text && !ap_placement_parse(text, &pos, &p, &ignored); pos++) {
        char *end;
        int64_t devices = strtoll(size, &end, 10);
        size = end + 1;
        if (p.kind == AP_SPLIT && p.stride > 0 && devices > 0 && p.dim < n->shape.rank &&
            p.stride < n->shape.dims[p.dim]) {
            struct ap_bounds *b = &r->bounds[r->class[r->dim_start[id] + p.dim]];
            bounds_add(b, n->shape.dims[p.dim], p.stride);
            b->devices = ap_mul64(b->run == p.stride ? b->devices : 1, devices);
            b->run = p.stride;
        }
        if (text[pos] != ',')
            return;
    }
}

int ap_refine_build(struct ap_arena *arena, const struct ap_graph *g,
                    struct ap_rule *rule, struct ap_refine *refine, struct ap_err *err)
{
    *refine =
        (struct ap_refine){.g = g, .dim_start = AP_NEW_N(arena, g->n_nodes + 1, int)};
    for (int v = 0; v < g->n_nodes; v++)
        refine->dim_start[v + 1] =
            refine->dim_start[v] + ap_value_shape(&g->nodes[v])->rank;
    int n_dims = refine->dim_start[g->n_nodes];

    refine->class = ap_sets_new(arena, n_dims + 1);
    refine->bounds = AP_NEW_N(arena, n_dims + 1, struct ap_bounds);
    for (int v = 0; v < g->n_nodes; v++) {
        if (g->nodes[v].op == AP_OP_RESHAPE)
            continue;
        if (ap_rule_run(rule, g, v, NULL, err))
            return -1;
        join_links(refine, rule, v);
    }
    for (int d = 0; d < n_dims; d++)
        refine->class[d] = ap_sets_root(refine->class, d);
    for (int v = 0; v < g->n_nodes; v++)
        if (g->nodes[v].op == AP_OP_DOT)
            add_stripes(refine, v);
    for (int v = 0; v < g->n_nodes; v++)
        add_pin(refine, v);
    carry(arena, refine, n_dims);
    return 0;
}
