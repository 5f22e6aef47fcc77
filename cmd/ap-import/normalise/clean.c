/*
 * Normal form of a graph, so that fusion groups are large and a planner sees no redundant
 * nodes:
 *
 *   - dead nodes go (their names are recorded), parameters come first and all stay;
 *   - what changes nothing passes its operand on: copy, conversion to the same type,
 *     reshape to the same shape, identity transpose, whole slice, empty pad and reverse;
 *   - chains of reshape, transpose and broadcast become one of them where that is exact;
 *   - a dot reads a transpose's operand, where its result's dimensions stay in order;
 *   - a gather or scatter of row i at index i has the rows as a batch dimension (rows.c);
 *   - dimensions of size 1 that a reduction kept, or that a broadcast needed, are dropped
 *     where that is exact;
 *   - a constant of equal elements becomes a broadcast scalar, conversions of scalar
 *     constants are folded;
 *   - a maximum with the least number of its type becomes the other operand, and so does
 *     a minimum with the greatest;
 *   - a broadcast iota becomes an iota of the result's shape;
 *   - scalar constants, iotas and broadcasts get a copy per user, just before it:
 *     recomputing one is cheaper than keeping it, and each may have a layout of its own.
 *
 * A node that reads through an opt-barrier is marked as recomputed (inline.c); if such a
 * node is removed, its users get the mark.
 *
 * Two linear passes; a copied broadcast copies at most one leaf along with it.
 */
#include "import.h"

#include <string.h>

#include "doc/literal.h"
#include "graph/element.h"

/* The new list is in im; the old one is only read. */
struct clean {
    struct import *im;
    struct ap_arena *arena;
};

static const struct ap_node *node_at(const struct clean *c, int id)
{
    return &c->im->g.nodes[id];
}

static bool is_scalar_constant(const struct ap_node *node)
{
    return node->op == AP_OP_CONSTANT && node->shape.rank == 0 &&
           !node->attrs->literal.elided;
}

/* ---- simplification ---- */

/* A node's own copy of attributes with these dimensions. */
static const struct ap_attrs *with_dims(struct clean *c, const int64_t *dims, int n)
{
    struct ap_attrs *a = import_new_attrs(c->arena);
    a->dimensions.n = n;
    if (n)
        a->dimensions.v = ap_arena_dup(c->arena, dims, (size_t)n * sizeof *dims);
    return a;
}

static void set_operand(struct clean *c, struct ap_node *node, int id)
{
    node->in = ap_arena_dup(c->arena, &id, sizeof id);
    node->n_in = 1;
}

static bool is_identity(const struct ap_ints *dims)
{
    for (int i = 0; i < dims->n; i++)
        if (dims->v[i] != i)
            return false;
    return true;
}

/*
 * Matches the dimensions of a and b that differ in dimensions of size 1 only: to[i] is
 * the dimension of b for dimension i of a, -1 for none. False when they differ otherwise.
 */
static bool align_dims(const struct ap_shape *a, const struct ap_shape *b, int *to)
{
    int i = 0, k = 0;
    while (i < a->rank || k < b->rank) {
        if (i < a->rank && k < b->rank && a->dims[i] == b->dims[k])
            to[i++] = k++;
        else if (i < a->rank && a->dims[i] == 1)
            to[i++] = -1;
        else if (k < b->rank && b->dims[k] == 1)
            k++;
        else
            return false;
    }
    return true;
}

/* Turns node into broadcast of x with these dimensions; false when one does not map. */
static bool make_broadcast(struct clean *c, struct ap_node *node, int x,
                           const int64_t *dims)
{
    int rank = node_at(c, x)->shape.rank;
    for (int i = 0; i < rank; i++)
        if (dims[i] < 0)
            return false;
    node->op = AP_OP_BROADCAST;
    node->attrs = with_dims(c, dims, rank);
    set_operand(c, node, x);
    return true;
}

/* One step of joining node = broadcast(x) with x; false when there is none. */
static bool join_broadcast(struct clean *c, struct ap_node *node)
{
    const struct ap_node *x = node_at(c, node->in[0]);
    const int64_t *outer = node->attrs->dimensions.v;
    int64_t dims[AP_MAX_RANK];
    int to[AP_MAX_RANK];
    if (x->op != AP_OP_BROADCAST && x->op != AP_OP_RESHAPE)
        return false;
    const struct ap_shape *from = &node_at(c, x->in[0])->shape;
    if (x->op == AP_OP_RESHAPE && !align_dims(from, &x->shape, to))
        return false;
    for (int i = 0; i < from->rank; i++) {
        int64_t at = x->op == AP_OP_RESHAPE ? to[i] : x->attrs->dimensions.v[i];
        dims[i] = at < 0 ? -1 : outer[at];
    }
    return make_broadcast(c, node, x->in[0], dims);
}

static int simplify_broadcast(struct clean *c, struct ap_node *node)
{
    while (join_broadcast(c, node))
        continue;
    int x = node->in[0];
    bool same = node_at(c, x)->shape.rank == node->shape.rank &&
                is_identity(&node->attrs->dimensions);
    return same ? x : -1;
}

static int simplify_reshape(struct clean *c, struct ap_node *node)
{
    const struct ap_node *x = node_at(c, node->in[0]);
    if (x->op == AP_OP_RESHAPE) {
        set_operand(c, node, x->in[0]);
        x = node_at(c, node->in[0]);
    }
    if (ap_shape_same_dims(&x->shape, &node->shape))
        return node->in[0];
    int64_t dims[AP_MAX_RANK];
    int to[AP_MAX_RANK];
    if (x->shape.rank == 0) {
        make_broadcast(c, node, node->in[0], dims);
    } else if (x->op == AP_OP_BROADCAST) {
        int rank = x->attrs->dimensions.n;
        if (rank && !align_dims(&x->shape, &node->shape, to))
            return -1;
        for (int i = 0; i < rank; i++)
            dims[i] = to[x->attrs->dimensions.v[i]];
        make_broadcast(c, node, x->in[0], dims);
    }
    return node->op == AP_OP_BROADCAST ? simplify_broadcast(c, node) : -1;
}

static int simplify_transpose(struct clean *c, struct ap_node *node)
{
    const struct ap_node *x = node_at(c, node->in[0]);
    const struct ap_ints *perm = &node->attrs->dimensions;
    int64_t dims[AP_MAX_RANK];
    if (x->op == AP_OP_TRANSPOSE) {
        for (int i = 0; i < perm->n; i++)
            dims[i] = x->attrs->dimensions.v[perm->v[i]];
        node->attrs = with_dims(c, dims, perm->n);
        set_operand(c, node, x->in[0]);
    } else if (x->op == AP_OP_BROADCAST) {
        int64_t place[AP_MAX_RANK];
        for (int i = 0; i < perm->n; i++)
            place[perm->v[i]] = i;
        for (int i = 0; i < x->attrs->dimensions.n; i++)
            dims[i] = place[x->attrs->dimensions.v[i]];
        make_broadcast(c, node, x->in[0], dims);
        return simplify_broadcast(c, node);
    }
    return is_identity(&node->attrs->dimensions) ? node->in[0] : -1;
}

/* The scalar constant at p converted, into out; false when the result is not certain. */
static bool convert_element(enum ap_dtype from, const void *p, enum ap_dtype to,
                            void *out)
{
    bool from_float = ap_dtype_is_float(from), to_float = ap_dtype_is_float(to);
    bool from_int = ap_dtype_is_int(from) || from == AP_PRED;
    bool to_int = ap_dtype_is_int(to);
    if (from_float && to_float) {
        ap_elem_from_double(to, ap_elem_to_double(from, p), out);
        return true;
    }
    if (!from_int)
        return false;
    int64_t v = ap_elem_to_int(from, p);
    if (from == AP_U64 && v < 0)
        return false;
    if (to_int)
        return ap_elem_from_int(to, v, out);
    if (!to_float || v > (1LL << 53) || v < -(1LL << 53))
        return false;
    return ap_elem_from_double(to, (double)v, out);
}

static int simplify_convert(struct clean *c, struct ap_node *node,
                            const struct node_info *info)
{
    const struct ap_node *x = node_at(c, node->in[0]);
    if (x->shape.dtype == node->shape.dtype)
        return node->in[0];
    const struct ap_node *value = x->op == AP_OP_BROADCAST ? node_at(c, x->in[0]) : x;
    unsigned char out[16] = {0};
    if (!is_scalar_constant(value) ||
        !convert_element(value->shape.dtype, value->attrs->literal.data,
                         node->shape.dtype, out))
        return -1;
    struct ap_node folded = *node;
    folded.op = AP_OP_CONSTANT;
    folded.n_in = 0;
    folded.in = NULL;
    folded.shape.rank = 0;
    folded.attrs = import_scalar_attrs(c->arena, node->shape.dtype, out);
    if (x->op != AP_OP_BROADCAST) {
        *node = folded;
        return -1;
    }
    folded.pin = NULL;
    folded.name = ap_arena_printf(c->arena, "%s.scalar", node->name);
    make_broadcast(c, node, import_add(c->im, &folded, info), NULL);
    return -1;
}

static int simplify_constant(struct clean *c, struct ap_node *node,
                             const struct node_info *info)
{
    if (node->shape.rank == 0 || !node->attrs->literal.splat)
        return -1;
    struct ap_node scalar = *node;
    scalar.shape.rank = 0;
    scalar.pin = NULL;
    scalar.name = ap_arena_printf(c->arena, "%s.scalar", node->name);
    make_broadcast(c, node, import_add(c->im, &scalar, info), NULL);
    return -1;
}

/* A reduction over nothing but dimensions of size 1, from the neutral element. */
static int simplify_reduce(struct clean *c, struct ap_node *node)
{
    const struct ap_ints *dims = &node->attrs->dimensions;
    if (node->n_in != 2)
        return -1;
    const struct ap_node *x = node_at(c, node->in[0]), *init = node_at(c, node->in[1]);
    enum ap_red red = c->im->reducers[node->attrs->to_apply].red;
    unsigned char neutral[16];
    if (red == AP_RED_NONE || red == AP_RED_ASSIGN || !is_scalar_constant(init))
        return -1;
    ap_red_neutral(red, node->shape.dtype, neutral);
    size_t size = (size_t)ap_dtype_size(node->shape.dtype);
    if (memcmp(neutral, init->attrs->literal.data, size) != 0)
        return -1;
    for (int i = 0; i < dims->n; i++)
        if (x->shape.dims[dims->v[i]] != 1)
            return -1;
    node->op = AP_OP_RESHAPE;
    node->attrs = with_dims(c, NULL, 0);
    node->n_in = 1;
    return simplify_reshape(c, node);
}

/*
 * The dimensions, fewer by some of size 1, that all operands of an elementwise node have
 * before they are reshaped or broadcast to the node's own; NULL if there are none.
 */
static const struct ap_shape *narrow_shape(struct clean *c, const struct ap_node *node,
                                           int *to)
{
    const struct ap_shape *narrow = NULL;
    for (int k = 0; k < node->n_in; k++) {
        const struct ap_node *x = node_at(c, node->in[k]);
        if (x->op != AP_OP_RESHAPE)
            continue;
        const struct ap_shape *from = &node_at(c, x->in[0])->shape;
        if (narrow && !ap_shape_same_dims(narrow, from))
            return NULL;
        narrow = from;
    }
    if (!narrow || narrow->rank >= node->shape.rank ||
        !align_dims(&node->shape, narrow, to))
        return NULL;
    int matched = 0;
    for (int i = 0; i < node->shape.rank; i++)
        matched += to[i] >= 0;
    if (matched != narrow->rank)
        return NULL;
    for (int k = 0; k < node->n_in; k++) {
        const struct ap_node *x = node_at(c, node->in[k]);
        if (x->op != AP_OP_RESHAPE && x->op != AP_OP_BROADCAST && x->shape.rank)
            return NULL;
        for (int i = 0; x->op == AP_OP_BROADCAST && i < x->attrs->dimensions.n; i++)
            if (to[x->attrs->dimensions.v[i]] < 0)
                return NULL;
    }
    return narrow;
}

/* The other operand of a maximum with the least number, or of a minimum likewise; or -1.
 */
static int past_neutral(const struct clean *c, const struct ap_node *node)
{
    char want[16];

    if (node->op != AP_OP_MAXIMUM && node->op != AP_OP_MINIMUM)
        return -1;
    ap_red_neutral(node->op == AP_OP_MAXIMUM ? AP_RED_MAX : AP_RED_MIN, node->shape.dtype,
                   want);
    for (int k = 0; k < 2; k++) {
        const struct ap_node *x = node_at(c, node->in[k]);
        if (x->op == AP_OP_BROADCAST)
            x = node_at(c, x->in[0]);
        if (is_scalar_constant(x) && memcmp(x->attrs->literal.data, want,
                                            (size_t)ap_dtype_size(x->shape.dtype)) == 0)
            return node->in[1 - k];
    }
    return -1;
}

/*
 * An elementwise node on reshaped operands becomes one on the operands themselves, and is
 * reshaped afterwards: JAX keeps reduced dimensions as dimensions of size 1 for a while.
 */
static int simplify_elementwise(struct clean *c, struct ap_node *node,
                                const struct node_info *info)
{
    int to[AP_MAX_RANK], other = past_neutral(c, node);
    if (other >= 0)
        return other;
    const struct ap_shape *found = node->pin ? NULL : narrow_shape(c, node, to);
    if (!found)
        return -1;
    struct ap_shape narrow = *found;
    struct ap_node inner = *node;
    int *in = ap_arena_dup(c->arena, node->in, (size_t)node->n_in * sizeof *in);
    inner.in = in;
    for (int k = 0; k < node->n_in; k++) {
        struct ap_node x = *node_at(c, in[k]);
        if (x.op == AP_OP_RESHAPE) {
            in[k] = x.in[0];
        } else if (x.op == AP_OP_BROADCAST) {
            int64_t dims[AP_MAX_RANK];
            for (int i = 0; i < x.attrs->dimensions.n; i++)
                dims[i] = to[x.attrs->dimensions.v[i]];
            x.shape.rank = narrow.rank;
            x.shape.dims = narrow.dims;
            make_broadcast(c, &x, x.in[0], dims);
            struct node_info x_info = c->im->info[in[k]];
            int same = simplify_broadcast(c, &x);
            in[k] = same >= 0 ? same : import_add(c->im, &x, &x_info);
        }
    }
    inner.shape.rank = narrow.rank;
    inner.shape.dims = narrow.dims;
    node->op = AP_OP_RESHAPE;
    node->attrs = with_dims(c, NULL, 0);
    node->name = ap_arena_printf(c->arena, "%s.reshape", node->name);
    set_operand(c, node, import_add(c->im, &inner, info));
    return -1;
}

/* The dims of a transposed operand as those of what was transposed. */
static struct ap_ints before(struct clean *c, const struct ap_ints *dims,
                             const struct ap_ints *perm)
{
    int64_t *v = AP_NEW_N(c->arena, dims->n + 1, int64_t);
    for (int i = 0; i < dims->n; i++)
        v[i] = perm->v[dims->v[i]];
    return (struct ap_ints){dims->n, v};
}

static bool lists(const struct ap_ints *v, int64_t d)
{
    for (int i = 0; i < v->n; i++)
        if (v->v[i] == d)
            return true;
    return false;
}

/* A dot reads its operands as they were before a transpose that keeps the order of the
 * dimensions that are neither batched nor contracted. */
static void fold_transpose(struct clean *c, struct ap_node *node, int k)
{
    const struct ap_node *x = node_at(c, node->in[k]);
    if (x->op != AP_OP_TRANSPOSE || x->pin)
        return;
    struct ap_attrs *a = ap_arena_dup(c->arena, node->attrs, sizeof *node->attrs);
    struct ap_ints *batch = k ? &a->rhs_batch_dims : &a->lhs_batch_dims;
    struct ap_ints *contract = k ? &a->rhs_contracting_dims : &a->lhs_contracting_dims;
    const struct ap_ints *perm = &x->attrs->dimensions;
    int64_t last = -1;
    for (int d = 0; d < perm->n; d++) {
        if (lists(batch, d) || lists(contract, d))
            continue;
        if (perm->v[d] < last)
            return;
        last = perm->v[d];
    }
    *batch = before(c, batch, perm);
    *contract = before(c, contract, perm);
    int *in = ap_arena_dup(c->arena, node->in, (size_t)node->n_in * sizeof *in);
    in[k] = x->in[0];
    node->in = in;
    node->attrs = a;
}

static bool is_whole_slice(const struct ap_node *node, const struct ap_shape *x)
{
    for (int i = 0; i < node->attrs->n_slice; i++) {
        const struct ap_slice_dim *s = &node->attrs->slice[i];
        if (s->start != 0 || s->limit != x->dims[i] || s->stride != 1)
            return false;
    }
    return true;
}

static bool is_empty_pad(const struct ap_node *node)
{
    for (int i = 0; i < node->attrs->n_padding; i++) {
        const struct ap_pad_dim *p = &node->attrs->padding[i];
        if (p->lo || p->hi || p->interior)
            return false;
    }
    return true;
}

/*
 * Rewrites a node whose operands are simple already, and may add one that it needs; the
 * node of the same value that there is already, or -1 if this one is to be added.
 */
static int simplify(struct clean *c, struct ap_node *node, const struct node_info *info)
{
    bool same = false;
    int folded;

    switch ((int)node->op) {
    case AP_OP_CONSTANT:
        return simplify_constant(c, node, info);
    case AP_OP_BROADCAST:
        return simplify_broadcast(c, node);
    case AP_OP_RESHAPE:
        return simplify_reshape(c, node);
    case AP_OP_TRANSPOSE:
        return simplify_transpose(c, node);
    case AP_OP_REDUCE:
        return simplify_reduce(c, node);
    case AP_OP_CONVERT:
        folded = simplify_convert(c, node, info);
        if (folded >= 0 || node->op != AP_OP_CONVERT)
            return folded;
        break;
    case AP_OP_DOT:
        for (int k = 0; k < 2; k++)
            fold_transpose(c, node, k);
        break;
    case AP_OP_GATHER:
    case AP_OP_SCATTER:
        import_batch_rows(c->im, node, info);
        break;
    case AP_OP_COPY:
        return node->in[0];
    case AP_OP_SLICE:
        same = is_whole_slice(node, &node_at(c, node->in[0])->shape);
        break;
    case AP_OP_PAD:
        same = is_empty_pad(node);
        break;
    case AP_OP_REVERSE:
        same = !node->attrs->dimensions.n;
        break;
    case AP_OP_CONCATENATE:
        same = node->n_in == 1;
        break;
    }
    if (ap_ops[node->op].class == AP_CLASS_ELEMENTWISE)
        return simplify_elementwise(c, node, info);
    return same ? node->in[0] : -1;
}

/* ---- passes ---- */

static void move_results(struct import *im, const int *to)
{
    for (int i = 0; i < im->g.n_results; i++)
        im->g.results[i].node = to[im->g.results[i].node];
}

static void simplify_all(struct clean *c)
{
    struct import *im = c->im;
    bool *live = import_live(im);
    struct import_nodes old = import_set_aside(im);
    int *to = AP_NEW_N(c->arena, old.g.n_nodes + 1, int);
    bool *passes = AP_NEW_N(c->arena, old.g.n_nodes + 1, bool); /* a mark to its users */
    for (int i = 0; i < old.g.n_nodes; i++) {
        struct ap_node node = old.g.nodes[i];
        bool recomputed = node.attrs->recomputed;
        if (!live[i]) {
            if (!old.info[i].auto_named)
                import_drop(im, node.name);
            continue;
        }
        for (int k = 0; k < node.n_in; k++)
            recomputed |= passes[node.in[k]];
        import_rewire(c->arena, &node, to);
        to[i] = simplify(c, &node, &old.info[i]);
        passes[i] = recomputed && to[i] >= 0;
        if (recomputed && node.n_in)
            node.attrs = import_recomputed(c->arena, node.attrs);
        if (to[i] < 0)
            to[i] = import_add(im, &node, &old.info[i]);
        else if (node.pin && !im->g.nodes[to[i]].pin)
            im->g.nodes[to[i]].pin = node.pin;
    }
    move_results(im, to);
    import_free_nodes(&old);
}

/* Made anew for every user. */
static bool is_cheap(const struct ap_node *node)
{
    return is_scalar_constant(node) || node->op == AP_OP_IOTA ||
           node->op == AP_OP_BROADCAST;
}

static bool same_cheap(const struct ap_node *a, const struct ap_node *b)
{
    if (a->op != b->op || !ap_shape_equal(&a->shape, &b->shape) || a->pin != b->pin)
        return false;
    if (a->op == AP_OP_IOTA)
        return a->attrs->iota_dimension == b->attrs->iota_dimension;
    if (a->op == AP_OP_CONSTANT)
        return memcmp(a->attrs->literal.data, b->attrs->literal.data,
                      (size_t)ap_dtype_size(a->shape.dtype)) == 0;
    if (a->in[0] != b->in[0])
        return false;
    for (int i = 0; i < a->attrs->dimensions.n; i++)
        if (a->attrs->dimensions.v[i] != b->attrs->dimensions.v[i])
            return false;
    return true;
}

/* A broadcast of iota x as an iota. */
static void make_iota(struct clean *c, struct ap_node *node, const struct ap_node *x)
{
    struct ap_attrs *a = import_new_attrs(c->arena);
    a->iota_dimension = node->attrs->dimensions.v[x->attrs->iota_dimension];
    node->op = AP_OP_IOTA;
    node->attrs = a;
    node->n_in = 0;
    node->in = NULL;
}

/* A copy of a cheap node of the old list at the end of the new one. */
static int put_copy(struct clean *c, const struct import_nodes *old, const int *to,
                    int id)
{
    struct ap_node node = old->g.nodes[id];
    if (node.n_in) {
        const struct ap_node *x = &old->g.nodes[node.in[0]];
        if (x->op == AP_OP_IOTA && !x->pin)
            make_iota(c, &node, x);
        else
            set_operand(c, &node,
                        is_cheap(x) ? put_copy(c, old, to, node.in[0]) : to[node.in[0]]);
    }
    return import_add(c->im, &node, &old->info[id]);
}

/* Nodes that results need, in order, cheap ones once per user. */
static void copy_all(struct clean *c)
{
    struct import *im = c->im;
    bool *live = import_live(im);
    struct import_nodes old = import_set_aside(im);
    int *to = AP_NEW_N(c->arena, old.g.n_nodes + 1, int);
    bool *is_result = AP_NEW_N(c->arena, old.g.n_nodes + 1, bool);
    for (int i = 0; i < old.g.n_results; i++)
        is_result[old.g.results[i].node] = true;
    for (int i = 0; i < old.g.n_nodes; i++) {
        struct ap_node node = old.g.nodes[i];
        if (!live[i] || (is_cheap(&node) && !is_result[i]))
            continue;
        if (is_cheap(&node)) {
            to[i] = put_copy(c, &old, to, i);
            continue;
        }
        int *in = AP_NEW_N(c->arena, node.n_in + 1, int);
        for (int k = 0; k < node.n_in; k++) {
            const struct ap_node *x = &old.g.nodes[node.in[k]];
            int twin = is_cheap(x) && node.n_in <= 8 ? 0 : k;
            while (twin < k && !(node.in[twin] == node.in[k] ||
                                 same_cheap(&old.g.nodes[node.in[twin]], x)))
                twin++;
            in[k] = twin < k      ? in[twin]
                    : is_cheap(x) ? put_copy(c, &old, to, node.in[k])
                                  : to[node.in[k]];
        }
        node.in = in;
        to[i] = import_add(im, &node, &old.info[i]);
    }
    move_results(im, to);
    import_free_nodes(&old);
}

/* Makes all names different. */
static void unique_names(struct import *im)
{
    struct ap_names next = {0}; /* first free suffix, 0 while nobody has the bare name */
    struct ap_graph *g = &im->g;
    for (int i = 0; i < g->n_nodes; i++) {
        size_t len = strlen(g->nodes[i].name);
        if (ap_names_get(&next, g->nodes[i].name, len) < 0)
            ap_names_put(&next, g->nodes[i].name, len, 0);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const char *name = g->nodes[i].name;
        size_t len = strlen(name);
        int k = ap_names_get(&next, name, len);
        if (k == 0) {
            ap_names_set(&next, name, len, 1);
            continue;
        }
        char *other;
        do {
            other = ap_arena_printf(im->src->arena, "%s.%d", name, k++);
        } while (ap_names_get(&next, other, strlen(other)) >= 0);
        ap_names_set(&next, name, len, k);
        ap_names_put(&next, other, strlen(other), 1);
        g->nodes[i].name = other;
    }
    ap_names_free(&next);
}

void import_clean(struct import *im)
{
    struct clean c = {im, im->src->arena};
    simplify_all(&c);
    copy_all(&c);
    unique_names(im);
}
