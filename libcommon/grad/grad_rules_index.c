/*
 * Derivatives of gathers, scatters and dynamic slices: the gradient of a read is an
 * addition, and the gradient of an addition is a read. A gather moves an index that is
 * out of bounds to the nearest place, a scatter drops it; so indices that are not known
 * to be in bounds (from constants, iotas and clamps, a search of bounded depth) are
 * clamped for the first and masked for the second. Indices that are joined from parts are
 * treated part by part, so that a part that is an iota stays one.
 */
#include "grad/grad_impl.h"

#include <string.h>

#include "doc/literal.h"
#include "graph/element.h"

#define BINARY(op, x, y) ap_build_binary(b, AP_OP_##op, (x), (y))
#define FAR              (INT64_MAX / 8) /* beyond any index */
#define MAX_DEPTH        12    /* operators between an index and what bounds it */
#define MAX_SCAN         65536 /* elements of a constant that are read */

/* ---- what is known of integers ---- */

struct range {
    int64_t lo, hi;
};

static struct range unite(struct range a, struct range b)
{
    return (struct range){a.lo < b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi};
}

static struct range of_constant(const struct ap_node *n)
{
    const struct ap_literal *l = &n->attrs->literal;
    int64_t count = l->splat ? 1 : ap_shape_elems(&n->shape);
    struct range r = {FAR, -FAR};

    if (l->elided || count > MAX_SCAN || count == 0)
        return (struct range){-FAR, FAR};
    for (int64_t i = 0; i < count; i++) {
        int64_t v = ap_elem_to_int(n->shape.dtype, (const char *)l->data +
                                                       i * ap_dtype_size(n->shape.dtype));
        r = unite(r, (struct range){v, v});
    }
    return r;
}

static struct range range_of(const struct ap_build *b, int x, int depth)
{
    const struct ap_node *n = &b->nodes[x];
    const struct range any = {-FAR, FAR};
    struct range in[3];

    if (depth == 0 || !ap_dtype_is_int(n->shape.dtype))
        return any;
    if (n->op == AP_OP_CONSTANT)
        return of_constant(n);
    if (n->op == AP_OP_IOTA)
        return (struct range){0, n->shape.dims[n->attrs->iota_dimension] - 1};
    if (n->n_in < 1 || n->n_in > 3)
        return any;
    for (int k = 0; k < n->n_in; k++)
        in[k] = range_of(b, n->in[k], depth - 1);
    switch ((int)n->op) {
    case AP_OP_BROADCAST:
    case AP_OP_RESHAPE:
    case AP_OP_TRANSPOSE:
    case AP_OP_SLICE:
    case AP_OP_REVERSE:
    case AP_OP_COPY:
    case AP_OP_GATHER:
        return in[0];
    case AP_OP_CONVERT:
        return in[0].lo >= 0 && in[0].hi <= INT8_MAX * INT64_C(0x1000000) ? in[0] : any;
    case AP_OP_SELECT:
        return unite(in[1], in[2]);
    case AP_OP_CONCATENATE:
        for (int k = 1; k < n->n_in; k++)
            in[0] = unite(in[0], in[k]);
        return in[0];
    case AP_OP_CLAMP:
        return (struct range){in[0].lo, in[2].hi};
    case AP_OP_MAXIMUM:
        return (struct range){in[0].lo > in[1].lo ? in[0].lo : in[1].lo,
                              in[0].hi > in[1].hi ? in[0].hi : in[1].hi};
    case AP_OP_MINIMUM:
        return (struct range){in[0].lo < in[1].lo ? in[0].lo : in[1].lo,
                              in[0].hi < in[1].hi ? in[0].hi : in[1].hi};
    default:
        return any;
    }
}

/* ---- index vectors ---- */

/* Parts of the indices, along the dimension of the index vector, and their bounds. */
struct parts {
    int n;                /* 1: the indices as a whole */
    int x[AP_MAX_RANK];   /* nodes */
    const int64_t *bound; /* per component: last place that is in bounds */
    int n_bounds;
    bool out[AP_MAX_RANK]; /* may be out of bounds */
    bool any_out;
};

static bool is_inside(struct range r, const int64_t *bound, int n)
{
    bool inside = r.lo >= 0;
    for (int k = 0; k < n; k++)
        inside &= r.hi <= bound[k];
    return inside;
}

static struct parts split_indices(const struct ap_build *b, int indices, int64_t at,
                                  const int64_t *bound, int n_bounds)
{
    const struct ap_node *n = &b->nodes[indices];
    struct parts p = {.n = 1, .x = {indices}, .bound = bound, .n_bounds = n_bounds};
    bool joined = n->op == AP_OP_CONCATENATE && n->attrs->dimensions.v[0] == at &&
                  n->n_in == n_bounds && n_bounds <= AP_MAX_RANK;

    for (int k = 0; joined && k < n->n_in; k++)
        joined = b->nodes[n->in[k]].shape.dims[at] == 1;
    if (joined) {
        p.n = n->n_in;
        memcpy(p.x, n->in, (size_t)n->n_in * sizeof *p.x);
    }
    for (int k = 0; k < p.n; k++) {
        struct range r = range_of(b, p.x[k], MAX_DEPTH);
        p.out[k] = n_bounds > 0 && !is_inside(r, bound + k, p.n > 1 ? 1 : n_bounds);
        p.any_out |= p.out[k];
    }
    return p;
}

/* The bounds of part k, of its shape. */
static int bounds_like(struct grad *g, const struct parts *p, int k, int64_t at)
{
    struct ap_build *b = g->b;
    struct ap_shape s = *ap_build_shape_of(b, p->x[k]);
    int n = p->n > 1 ? 1 : p->n_bounds;
    bool equal = true;

    for (int j = 1; j < n; j++)
        equal &= p->bound[j] == p->bound[0];
    if (equal)
        return ap_build_full(b, &s, (double)p->bound[p->n > 1 ? k : 0]);
    int64_t dims = n;
    struct ap_shape vector = ap_build_shape(b, s.dtype, 1, &dims);
    char *data = ap_arena_alloc(b->arena, (size_t)n * 8);
    for (int j = 0; j < n; j++)
        ap_elem_from_int(s.dtype, p->bound[j], data + j * ap_dtype_size(s.dtype));
    return ap_build_broadcast(b, ap_build_literal(b, vector, data), s.rank, s.dims, &at);
}

/* The indices, moved into bounds where they may be outside. */
static int clamp_indices(struct grad *g, int indices, int64_t at, const int64_t *bound,
                         int n_bounds)
{
    struct ap_build *b = g->b;
    struct parts p = split_indices(b, indices, at, bound, n_bounds);

    if (!p.any_out)
        return indices;
    for (int k = 0; k < p.n; k++) {
        if (!p.out[k])
            continue;
        struct ap_shape s = *ap_build_shape_of(b, p.x[k]);
        int high = bounds_like(g, &p, k, at);
        int in[3] = {ap_build_full(b, &s, 0), p.x[k], high};
        p.x[k] = ap_build_node(b, AP_OP_CLAMP, NULL, s, NULL, 3, in);
    }
    return p.n > 1 ? ap_build_concat(b, p.n, p.x, (int)at) : p.x[0];
}

/* Whether each index vector is in bounds, without the vector's dimension; -1: all are. */
static int valid_indices(struct grad *g, int indices, int64_t at, const int64_t *bound,
                         int n_bounds)
{
    struct ap_build *b = g->b;
    struct parts p = split_indices(b, indices, at, bound, n_bounds);
    int all = -1;

    for (int k = 0; k < p.n; k++) {
        if (!p.out[k])
            continue;
        struct ap_shape s = *ap_build_shape_of(b, p.x[k]);
        int low = ap_build_compare(b, AP_GE, p.x[k], ap_build_full(b, &s, 0));
        int high = ap_build_compare(b, AP_LE, p.x[k], bounds_like(g, &p, k, at));
        int ok = BINARY(AND, low, high);
        if (at < s.rank)
            ok = ap_build_reduce(b, ok, AP_RED_AND, 1, &at);
        all = all < 0 ? ok : BINARY(AND, all, ok);
    }
    return all;
}

/* ---- gather ---- */

int grad_gather(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    const struct ap_attrs *f = n.attrs;
    struct ap_build *b = g->b;
    struct ap_shape s = *ap_build_shape_of(b, n.in[0]);
    struct ap_attrs *a = ap_build_attrs(b);
    int64_t bound[AP_MAX_RANK];

    if (ap_shape_elems(&n.shape) == 0)
        return 0;
    for (int k = 0; k < f->start_index_map.n; k++) {
        int64_t d = f->start_index_map.v[k];
        bound[k] = s.dims[d] - f->slice_sizes.v[d];
    }
    a->update_window_dims = f->offset_dims;
    a->inserted_window_dims = f->collapsed_slice_dims;
    a->scatter_dims_to_operand_dims = f->start_index_map;
    a->input_batching_dims = f->operand_batching_dims;
    a->scatter_indices_batching_dims = f->start_indices_batching_dims;
    a->index_vector_dim = f->index_vector_dim;
    a->to_apply = ap_build_reducer(b, AP_RED_SUM, s.dtype);
    int indices =
        clamp_indices(g, n.in[1], f->index_vector_dim, bound, f->start_index_map.n);
    int in[3] = {grad_zeros(g, &s), indices, dy};
    grad_add(g, n.in[0], ap_build_node(b, AP_OP_SCATTER, NULL, s, a, 3, in));
    return 0;
}

/* ---- scatter ---- */

/* Sizes of a scatter's windows, one per dimension of operand 0. */
static void window_sizes(const struct ap_attrs *f, const struct ap_shape *operand,
                         const struct ap_shape *updates, int64_t *size)
{
    int w = 0;
    for (int d = 0; d < operand->rank; d++) {
        bool outside = grad_listed(&f->inserted_window_dims, d) ||
                       grad_listed(&f->input_batching_dims, d);
        size[d] = outside ? 1 : updates->dims[f->update_window_dims.v[w++]];
    }
}

/* What a scatter's windows find in x, of the updates' dimensions. */
static int read_windows(struct grad *g, const struct ap_node *n, int x)
{
    const struct ap_attrs *f = n->attrs;
    struct ap_build *b = g->b;
    struct ap_shape s = *ap_build_shape_of(b, x), u = *ap_build_shape_of(b, n->in[2]);
    struct ap_attrs *a = ap_build_attrs(b);
    int64_t size[AP_MAX_RANK];

    window_sizes(f, &s, &u, size);
    a->offset_dims = f->update_window_dims;
    a->collapsed_slice_dims = f->inserted_window_dims;
    a->start_index_map = f->scatter_dims_to_operand_dims;
    a->operand_batching_dims = f->input_batching_dims;
    a->start_indices_batching_dims = f->scatter_indices_batching_dims;
    a->index_vector_dim = f->index_vector_dim;
    a->slice_sizes = ap_build_ints(b, s.rank, size);
    u.dtype = s.dtype;
    int in[2] = {x, n->in[1]};
    return ap_build_node(b, AP_OP_GATHER, NULL, u, a, 2, in);
}

/* d where the window of the update was in bounds. */
static int where_valid(struct grad *g, const struct ap_node *n, int d)
{
    const struct ap_attrs *f = n->attrs;
    struct ap_build *b = g->b;
    struct ap_shape s = *ap_build_shape_of(b, n->in[0]);
    struct ap_shape u = *ap_build_shape_of(b, n->in[2]);
    int64_t size[AP_MAX_RANK], bound[AP_MAX_RANK], map[AP_MAX_RANK];
    const struct ap_ints *to = &f->scatter_dims_to_operand_dims;
    int n_map = 0;

    window_sizes(f, &s, &u, size);
    for (int k = 0; k < to->n; k++)
        bound[k] = s.dims[to->v[k]] - size[to->v[k]];
    int valid = valid_indices(g, n->in[1], f->index_vector_dim, bound, to->n);
    if (valid < 0)
        return d;
    for (int k = 0; k < u.rank; k++)
        if (!grad_listed(&f->update_window_dims, k))
            map[n_map++] = k;
    return grad_where(g, ap_build_broadcast(b, valid, u.rank, u.dims, map), d);
}

/* A scatter of `updates` into `operand` at n's places. */
static int write_windows(struct ap_build *b, const struct ap_node *n, int operand,
                         int updates)
{
    int in[3] = {operand, n->in[1], updates};
    return ap_build_node(b, AP_OP_SCATTER, NULL, *ap_build_shape_of(b, operand), n->attrs,
                         3, in);
}

/* Which elements of the updates are the ones that stayed, where several meet. */
static int stayed(struct grad *g, const struct ap_node *n)
{
    struct ap_build *b = g->b;
    struct ap_shape s = *ap_build_shape_of(b, n->in[0]);
    struct ap_shape u = *ap_build_shape_of(b, n->in[2]);
    int64_t count = ap_shape_elems(&u);

    s.dtype = AP_S32;
    struct ap_shape flat = ap_build_shape(b, AP_S32, 1, &count);
    int id = ap_build_reshape(b, ap_build_iota(b, flat, 0), u.rank, u.dims);
    int last = write_windows(b, n, grad_zeros(g, &s), id);
    return ap_build_compare(b, AP_EQ, read_windows(g, n, last), id);
}

int grad_scatter(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_build *b = g->b;
    enum ap_red red = b->reducers[n.attrs->to_apply].red;

    if (red != AP_RED_SUM && red != AP_RED_ASSIGN)
        return grad_refuse(g, i, "unless it adds or replaces");
    if (grad_wants(g, i, 0)) {
        struct ap_shape u = *ap_build_shape_of(b, n.in[2]);
        grad_add(g, n.in[0],
                 red == AP_RED_SUM ? dy : write_windows(b, &n, dy, grad_zeros(g, &u)));
    }
    if (!grad_wants(g, i, 2))
        return 0;
    int d = where_valid(g, &n, read_windows(g, &n, dy));
    if (red == AP_RED_ASSIGN && !n.attrs->unique_indices)
        d = grad_where(g, stayed(g, &n), d);
    grad_add(g, n.in[2], d);
    return 0;
}

/* ---- dynamic slices: both clamp their indices ---- */

static int update_slice(struct ap_build *b, int x, int update, const struct ap_node *n,
                        int first)
{
    int in[AP_MAX_RANK + 2] = {x, update}, rank = n->n_in - first;
    memcpy(in + 2, n->in + first, (size_t)rank * sizeof *in);
    return ap_build_node(b, AP_OP_DYNAMIC_UPDATE_SLICE, NULL, *ap_build_shape_of(b, x),
                         NULL, 2 + rank, in);
}

int grad_dynamic_slice(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_shape s = *ap_build_shape_of(g->b, n.in[0]);
    grad_add(g, n.in[0], update_slice(g->b, grad_zeros(g, &s), dy, &n, 1));
    return 0;
}

int grad_dynamic_update_slice(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_build *b = g->b;
    struct ap_shape u = *ap_build_shape_of(b, n.in[1]);

    if (grad_wants(g, i, 0))
        grad_add(g, n.in[0], update_slice(b, dy, grad_zeros(g, &u), &n, 2));
    if (!grad_wants(g, i, 1))
        return 0;
    struct ap_attrs *a = ap_build_attrs(b);
    int in[AP_MAX_RANK + 1] = {dy}, rank = n.n_in - 2;
    a->dynamic_slice_sizes = ap_build_ints(b, u.rank, u.dims);
    memcpy(in + 1, n.in + 2, (size_t)rank * sizeof *in);
    grad_add(g, n.in[1], ap_build_node(b, AP_OP_DYNAMIC_SLICE, NULL, u, a, 1 + rank, in));
    return 0;
}
