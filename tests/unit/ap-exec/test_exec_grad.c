/*
 * Every operator's derivative against central differences in double precision, run by the
 * CPU backend: for each row of the table some random graphs of that operator.
 */
#include "grad_case.h"
#include "tap.h"

#include "grad/grad_impl.h"

#define TOLERANCE 1e-7

static struct ap_ints ints(struct gcase *c, int n, const int64_t *v)
{
    return ap_build_ints(&c->b, n, v);
}

/* ---- elementwise ---- */

static double least(enum ap_op op)
{
    return op == AP_OP_LOG || op == AP_OP_RSQRT || op == AP_OP_SQRT ? 0.3
           : op == AP_OP_LOG_PLUS_ONE                               ? -0.6
                                                                    : -2;
}

static int unary(struct gcase *c, enum ap_op op)
{
    int64_t dims[2] = {3, 4};
    int x = gc_wrt(c, 2, dims, least(op), 2);
    if (op == AP_OP_REDUCE_PRECISION || op == AP_OP_CONVERT) { /* exact in f32 */
        struct ap_attrs *a = ap_build_attrs(&c->b);
        a->exponent_bits = 8;
        a->mantissa_bits = 23;
        c->step = 0.125;
        for (int i = 0; i < 12; i++)
            gc_values(c, x)[i] = (double)gc_pick(c, -64, 64) / 32;
        int f = ap_build_convert(&c->b, x, AP_F32);
        if (op == AP_OP_REDUCE_PRECISION)
            f = ap_build_node(&c->b, op, NULL, *ap_build_shape_of(&c->b, f), a, 1, &f);
        return ap_build_convert(&c->b, f, AP_F64);
    }
    return ap_build_unary(&c->b, op, x);
}

static int binary(struct gcase *c, enum ap_op op)
{
    int64_t dims[2] = {3, 4};
    double lo = op == AP_OP_POWER || op == AP_OP_DIVIDE ? 0.3 : -2;
    int x = gc_wrt(c, 2, dims, lo, 2), y = gc_wrt(c, 2, dims, lo, 2);
    int z = ap_build_binary(&c->b, op, x, y);
    return ap_build_binary(&c->b, op, z, op == AP_OP_POWER ? y : x); /* two uses */
}

static int clamp(struct gcase *c, enum ap_op op)
{
    int64_t dims[1] = {9};
    int rank = (int)gc_pick(c, 0, 1);
    int lo = gc_wrt(c, rank, dims, -1, 0), x = gc_wrt(c, 1, dims, -2, 2);
    int hi = gc_wrt(c, rank, dims, -0.2, 1), in[3] = {lo, x, hi};
    return ap_build_node(&c->b, op, NULL, *ap_build_shape_of(&c->b, x), NULL, 3, in);
}

static int pick_one(struct gcase *c, enum ap_op op)
{
    int64_t dims[1] = {9};
    int x = gc_wrt(c, 1, dims, -2, 2), y = gc_wrt(c, 1, dims, -2, 2);
    int k = gc_ints(c, (int)gc_pick(c, 0, 1), dims, 0, 1);
    (void)op;
    return ap_build_select(&c->b, ap_build_convert(&c->b, k, AP_PRED), x, y);
}

/* ---- moves ---- */

static int broadcast(struct gcase *c, enum ap_op op)
{
    int64_t dims[4], perm[4], in[4];
    int rank = (int)gc_pick(c, 0, 3);
    (void)op;
    gc_dims(c, 4, dims, 3);
    gc_permutation(c, 4, perm);
    for (int k = 0; k < rank; k++)
        in[k] = dims[perm[k]];
    int x = gc_wrt(c, rank, in, -1, 1);
    return ap_build_broadcast(&c->b, x, 4, dims, perm);
}

static int concatenate(struct gcase *c, enum ap_op op)
{
    int64_t dims[3], dim = gc_pick(c, 0, 2);
    int x[3];
    (void)op;
    gc_dims(c, 3, dims, 3);
    for (int k = 0; k < 3; k++) {
        dims[dim] = gc_pick(c, k > 0, 3);
        x[k] = gc_wrt(c, 3, dims, -1, 1);
    }
    return ap_build_concat(&c->b, 3, x, (int)dim);
}

static int pad(struct gcase *c, enum ap_op op)
{
    int64_t dims[2];
    struct ap_pad_dim p[2];
    (void)op;
    for (int d = 0; d < 2; d++) {
        dims[d] = gc_pick(c, 2, 5);
        p[d] =
            (struct ap_pad_dim){gc_pick(c, -1, 2), gc_pick(c, -1, 2), gc_pick(c, 0, 2)};
    }
    int x = gc_wrt(c, 2, dims, -1, 1), v = gc_wrt(c, 0, NULL, -1, 1);
    return ap_build_pad(&c->b, x, v, p);
}

static int slice(struct gcase *c, enum ap_op op)
{
    int64_t dims[2];
    struct ap_slice_dim s[2];
    (void)op;
    for (int d = 0; d < 2; d++) {
        dims[d] = gc_pick(c, 3, 7);
        s[d].start = gc_pick(c, 0, 2);
        s[d].limit = gc_pick(c, s[d].start, dims[d]);
        s[d].stride = gc_pick(c, 1, 3);
    }
    return ap_build_slice(&c->b, gc_wrt(c, 2, dims, -1, 1), s);
}

static int move(struct gcase *c, enum ap_op op)
{
    int64_t dims[3], perm[3], flat[2];
    gc_dims(c, 3, dims, 4);
    gc_permutation(c, 3, perm);
    flat[0] = dims[0];
    flat[1] = dims[1] * dims[2];
    int x = gc_wrt(c, 3, dims, -1, 1);
    return op == AP_OP_RESHAPE     ? ap_build_reshape(&c->b, x, 2, flat)
           : op == AP_OP_TRANSPOSE ? ap_build_transpose(&c->b, x, perm)
                                   : ap_build_reverse(&c->b, x, 2, perm);
}

/* ---- contractions ---- */

/* Batch, contracting and free dimensions of both sides in any order. */
static int dot(struct gcase *c, enum ap_op op)
{
    int64_t size[4], dims[2][6], at[2][6];
    int n_batch = (int)gc_pick(c, 0, 2), n_contract = (int)gc_pick(c, 0, 2), side[2];
    int n = n_batch + n_contract;
    (void)op;
    gc_dims(c, 4, size, 3);
    for (int s = 0; s < 2; s++) {
        int rank = n + (int)gc_pick(c, 0, 2);
        gc_permutation(c, rank, at[s]);
        for (int k = 0; k < rank; k++)
            dims[s][at[s][k]] = k < n ? size[k] : gc_pick(c, 1, 3);
        side[s] = gc_wrt(c, rank, dims[s], -1, 1);
    }
    return ap_build_dot(&c->b, side[0], side[1],
                        &(struct ap_dot_dims){n_batch, at[0], at[1], n_contract,
                                              at[0] + n_batch, at[1] + n_batch});
}

static int conv(struct gcase *c, enum ap_op op)
{
    int ns = (int)gc_pick(c, 1, 2), rank = ns + 2, kind = (int)gc_pick(c, 0, 2);
    int64_t l[4], r[4], o[4], x[4], w[4], groups = kind ? gc_pick(c, 2, 3) : 1;
    struct ap_attrs *a = ap_build_attrs(&c->b);
    struct ap_window_dim *win = AP_NEW_N(&c->arena, 2, struct ap_window_dim);
    struct ap_conv_dims *v = &a->conv;
    int64_t in = gc_pick(c, 1, 2), out = groups * gc_pick(c, 1, 2);
    (void)op;
    gc_permutation(c, rank, l);
    gc_permutation(c, rank, r);
    gc_permutation(c, rank, o);
    *v = (struct ap_conv_dims){.n_spatial = ns,
                               .lhs_batch = (int)l[0],
                               .lhs_feature = (int)l[1],
                               .rhs_in = (int)r[0],
                               .rhs_out = (int)r[1],
                               .out_batch = (int)o[0],
                               .out_feature = (int)o[1]};
    x[l[0]] = (kind == 2 ? groups : 1) * gc_pick(c, 1, 2);
    x[l[1]] = kind == 1 ? groups * in : in;
    w[r[0]] = in;
    w[r[1]] = out;
    for (int i = 0; i < ns; i++) {
        v->lhs_spatial[i] = (int)l[i + 2];
        v->rhs_spatial[i] = (int)r[i + 2];
        v->out_spatial[i] = (int)o[i + 2];
        win[i] = (struct ap_window_dim){.size = gc_pick(c, 1, 3),
                                        .stride = gc_pick(c, 1, 3),
                                        .pad_lo = gc_pick(c, -1, 3),
                                        .pad_hi = gc_pick(c, -1, 3),
                                        .lhs_dilate = gc_pick(c, 1, 3),
                                        .rhs_dilate = gc_pick(c, 1, 2),
                                        .reversal = gc_pick(c, 0, 1)};
        x[l[i + 2]] = gc_pick(c, 3, 6);
        w[r[i + 2]] = win[i].size;
    }
    a->feature_group_count = kind == 1 ? groups : 1;
    a->batch_group_count = kind == 2 ? groups : 1;
    a->window = win;
    a->n_window = ns;
    return ap_build_conv(&c->b, gc_wrt(c, rank, x, -1, 1), gc_wrt(c, rank, w, -1, 1), a);
}

/* ---- reductions ---- */

static enum ap_red some_red(struct gcase *c)
{
    static const enum ap_red reds[] = {AP_RED_SUM, AP_RED_PROD, AP_RED_MAX, AP_RED_MIN};
    return reds[gc_pick(c, 0, 3)];
}

/* A reduction or window with a start value of its own. */
static int with_init(struct gcase *c, int node, enum ap_red red)
{
    struct ap_node n = c->b.nodes[node];
    int in[2] = {n.in[0], -1};
    if (gc_pick(c, 0, 1))
        return node;
    in[1] = red == AP_RED_SUM ? gc_wrt(c, 0, NULL, -1, 1)
                              : ap_build_scalar(&c->b, AP_F64, 0.25);
    return ap_build_node(&c->b, n.op, NULL, n.shape, n.attrs, 2, in);
}

static int reduce(struct gcase *c, enum ap_op op)
{
    int64_t dims[3], perm[3];
    enum ap_red red = some_red(c);
    (void)op;
    gc_dims(c, 3, dims, 4);
    gc_permutation(c, 3, perm);
    int x = gc_wrt(c, 3, dims, -2, 2);
    for (int k = 0; red == AP_RED_PROD && k < 3; k++) /* zeros */
        gc_values(c, x)[gc_pick(c, 0, dims[0] * dims[1] * dims[2] - 1)] = 0;
    int y = ap_build_reduce(&c->b, x, red, (int)gc_pick(c, 1, 3), perm);
    return with_init(c, y, red);
}

static int window(struct gcase *c, enum ap_op op)
{
    int64_t dims[2];
    struct ap_window_dim w[2];
    enum ap_red red = some_red(c);
    bool linear = red == AP_RED_SUM || red == AP_RED_PROD;
    (void)op;
    for (int d = 0; d < 2; d++) {
        dims[d] = gc_pick(c, 3, 6);
        int64_t size = gc_pick(c, 1, 3), pad = linear ? 2 : size - 1; /* -inf else */
        w[d] = (struct ap_window_dim){.size = size,
                                      .stride = gc_pick(c, 1, 3),
                                      .pad_lo = gc_pick(c, linear ? -1 : 0, pad),
                                      .pad_hi = gc_pick(c, 0, pad),
                                      .lhs_dilate = linear ? gc_pick(c, 1, 2) : 1,
                                      .rhs_dilate = linear ? gc_pick(c, 1, 2) : 1};
    }
    if (gc_pick(c, 0, 3) == 0) { /* cumulative */
        w[1] = (struct ap_window_dim){.size = dims[1],
                                      .stride = 1,
                                      .pad_lo = dims[1] - 1,
                                      .lhs_dilate = 1,
                                      .rhs_dilate = 1};
    }
    int x = gc_wrt(c, 2, dims, -2, 2);
    if (red == AP_RED_PROD)
        gc_values(c, x)[gc_pick(c, 0, dims[0] * dims[1] - 1)] = 0;
    return with_init(c, ap_build_reduce_window(&c->b, x, red, w), red);
}

/* (value, position) pairs of the body: the greater value, the first of equals. */
static int argmax_reducer(struct gcase *c)
{
    static const int pairs[][3] = {{0, 2}, {0, 2},    {1, 3},   {5, 6},
                                   {4, 7}, {4, 0, 2}, {8, 1, 3}};
    static const enum ap_op ops[] = {AP_OP_COMPARE, AP_OP_COMPARE, AP_OP_COMPARE,
                                     AP_OP_AND,     AP_OP_OR,      AP_OP_SELECT,
                                     AP_OP_SELECT};
    static const enum ap_direction dirs[] = {AP_GT, AP_EQ, AP_LT};
    static const int results[] = {9, 10};
    struct ap_node *n = AP_NEW_N(&c->arena, 11, struct ap_node);
    for (int k = 0; k < 11; k++) {
        struct ap_attrs *a = ap_build_attrs(&c->b);
        enum ap_dtype t = k < 4   ? (k % 2 ? AP_S32 : AP_F64)
                          : k < 9 ? AP_PRED
                                  : (k == 9 ? AP_F64 : AP_S32);
        n[k] = (struct ap_node){.op = k < 4 ? AP_OP_PARAMETER : ops[k - 4],
                                .name = ap_arena_printf(&c->arena, "b.%d", k),
                                .n_in = k < 4   ? 0
                                        : k < 9 ? 2
                                                : 3,
                                .in = k < 4 ? NULL : pairs[k - 4],
                                .shape = ap_build_shape(&c->b, t, 0, NULL),
                                .attrs = a,
                                .scope = "",
                                .param = k < 4 ? k : -1,
                                .group = -1};
        if (k >= 4 && k < 7)
            a->direction = dirs[k - 4];
    }
    return ap_build_add_reducer(&c->b, (struct ap_reducer){.name = "argmax",
                                                           .n_nodes = 11,
                                                           .n_results = 2,
                                                           .nodes = n,
                                                           .results = results});
}

static int element(struct gcase *c, int tuple, int k)
{
    struct ap_attrs *a = ap_build_attrs(&c->b);
    a->index = k;
    return ap_build_node(&c->b, AP_OP_GET_TUPLE_ELEMENT, NULL,
                         ap_build_shape_of(&c->b, tuple)->parts[k], a, 1, &tuple);
}

static struct ap_shape tuple_of(struct gcase *c, int n, const struct ap_shape *parts)
{
    return (struct ap_shape){
        .dtype = AP_TUPLE,
        .n_parts = n,
        .parts = ap_arena_dup(&c->arena, parts, (size_t)n * sizeof *parts)};
}

static int argmax(struct gcase *c, enum ap_op op)
{
    int64_t dims[2] = {3, 5}, dim = gc_pick(c, 0, 1), kept = dims[1 - dim];
    struct ap_attrs *a = ap_build_attrs(&c->b);
    int x = gc_wrt(c, 2, dims, -2, 2);
    int at = ap_build_iota(&c->b, ap_build_shape(&c->b, AP_S32, 2, dims), (int)dim);
    int in[4] = {x, at, ap_build_scalar(&c->b, AP_F64, -1e9),
                 ap_build_scalar(&c->b, AP_S32, 0)};
    struct ap_shape parts[2] = {ap_build_shape(&c->b, AP_F64, 1, &kept),
                                ap_build_shape(&c->b, AP_S32, 1, &kept)};
    a->dimensions = ints(c, 1, &dim);
    a->to_apply = argmax_reducer(c);
    return element(c, ap_build_node(&c->b, op, NULL, tuple_of(c, 2, parts), a, 4, in), 0);
}

static int sort(struct gcase *c, enum ap_op op)
{
    static const int operands[] = {0, 1}, results[] = {2, 4};
    int64_t dims[2] = {3, 5}, dim = gc_pick(c, 0, 1);
    int n = (int)gc_pick(c, 1, 2), in[2];
    struct ap_attrs *a = ap_build_attrs(&c->b), *lt = ap_build_attrs(&c->b);
    struct ap_node *body = AP_NEW_N(&c->arena, 5, struct ap_node);
    struct ap_shape parts[2];

    for (int k = 0; k < 2; k++)
        in[k] = gc_wrt(c, 2, dims, -2, 2);
    if (n == 1)
        c->n_wrt = 1; /* the other is not used */
    lt->direction = gc_pick(c, 0, 1) ? AP_LT : AP_GT;
    for (int k = 0; k <= 2 * n; k++)
        body[k] = (struct ap_node){
            .op = k < 2 * n ? AP_OP_PARAMETER : AP_OP_COMPARE,
            .name = ap_arena_printf(&c->arena, "b.%d", k),
            .n_in = k < 2 * n ? 0 : 2,
            .in = operands,
            .shape = ap_build_shape(&c->b, k < 2 * n ? AP_F64 : AP_PRED, 0, NULL),
            .attrs = k < 2 * n ? &ap_attrs_default : lt,
            .scope = "",
            .param = k < 2 * n ? k : -1,
            .group = -1};
    a->dimensions = ints(c, 1, &dim);
    a->to_apply =
        ap_build_add_reducer(&c->b, (struct ap_reducer){.name = "less",
                                                        .n_nodes = 2 * n + 1,
                                                        .n_results = 1,
                                                        .nodes = body,
                                                        .results = results + n - 1});
    parts[0] = parts[1] = *ap_build_shape_of(&c->b, in[0]);
    if (n == 1)
        return ap_build_node(&c->b, op, NULL, parts[0], a, 1, in);
    int t = ap_build_node(&c->b, op, NULL, tuple_of(c, 2, parts), a, 2, in);
    int two[2] = {element(c, t, 0), element(c, t, 1)};
    return ap_build_binary(&c->b, AP_OP_MULTIPLY, two[0], two[1]);
}

static int topk(struct gcase *c, enum ap_op op)
{
    int64_t dims[3] = {2, gc_pick(c, 1, 2), 6}, out[3] = {2, dims[1], gc_pick(c, 1, 4)};
    struct ap_attrs *a = ap_build_attrs(&c->b);
    int x = gc_wrt(c, 3, dims, -2, 2);
    struct ap_shape parts[2] = {ap_build_shape(&c->b, AP_F64, 3, out),
                                ap_build_shape(&c->b, AP_S32, 3, out)};
    (void)op;
    a->k = out[2];
    a->largest = gc_pick(c, 0, 1);
    return element(
        c, ap_build_node(&c->b, AP_OP_TOPK, NULL, tuple_of(c, 2, parts), a, 1, &x), 0);
}

/* ---- indexing ---- */

/*
 * Operand [batch, n, m, w], indices [batch, k, 2] of (n, m), some out of bounds; windows
 * of one or two elements of n, one of m, and some of w.
 */
struct indexing {
    int operand, indices;
    int64_t dims[4], window[4], count;
    bool batch;
};

static struct indexing indexing(struct gcase *c, bool is_input)
{
    struct indexing s = {.batch = gc_pick(c, 0, 1), .count = gc_pick(c, 1, 4)};
    int64_t at[3] = {2, s.count, 2}, part[3] = {2, s.count, 1};
    gc_dims(c, 4, s.dims, 3);
    s.dims[0] = s.batch ? 2 : 1;
    s.dims[1] += 2;
    s.window[0] = 1;
    s.window[1] = gc_pick(c, 1, 2);
    s.window[2] = 1;
    s.window[3] = gc_pick(c, 1, s.dims[3]);
    s.operand = gc_wrt(c, 4, s.dims, -1, 1);
    if (!is_input) { /* joined from an iota and an input */
        int two[2] = {ap_build_iota(&c->b, ap_build_shape(&c->b, AP_S32, 3, part), 1),
                      gc_ints(c, 3, part, -1, 4)};
        s.indices = ap_build_concat(&c->b, 2, two, 2);
    } else {
        s.indices = gc_ints(c, 3, at, -1, 4);
    }
    return s;
}

static int gather(struct gcase *c, enum ap_op op)
{
    struct indexing s = indexing(c, gc_pick(c, 0, 1));
    struct ap_attrs *a = ap_build_attrs(&c->b);
    int64_t offset[2] = {gc_pick(c, 0, 1), 3}, two = 2, zero = 0, map[2] = {1, 2};
    int64_t taken[2] = {0, 2}, out[4];
    int in[2] = {s.operand, s.indices};
    a->offset_dims = ints(c, 2, offset);
    a->collapsed_slice_dims = ints(c, 2 - s.batch, taken + s.batch);
    a->start_index_map = ints(c, 2, map);
    a->operand_batching_dims = ints(c, s.batch, &zero);
    a->start_indices_batching_dims = ints(c, s.batch, &zero);
    a->index_vector_dim = two;
    a->slice_sizes = ints(c, 4, s.window);
    for (int d = 0, i = 0; d < 4; d++)
        out[d] = d == 3 ? s.window[3] : d == offset[0] ? s.window[1] : i++ ? s.count : 2;
    return ap_build_node(&c->b, op, NULL, ap_build_shape(&c->b, AP_F64, 4, out), a, 2,
                         in);
}

static int scatter(struct gcase *c, enum ap_op op)
{
    struct indexing s = indexing(c, gc_pick(c, 0, 1));
    struct ap_attrs *a = ap_build_attrs(&c->b);
    int64_t at[2] = {gc_pick(c, 0, 1), 3}, zero = 0, map[2] = {1, 2}, taken[2] = {0, 2};
    int64_t upd[4];
    for (int d = 0, i = 0; d < 4; d++)
        upd[d] = d == 3 ? s.window[3] : d == at[0] ? s.window[1] : i++ ? s.count : 2;
    int in[3] = {s.operand, s.indices, gc_wrt(c, 4, upd, -1, 1)};
    a->update_window_dims = ints(c, 2, at);
    a->inserted_window_dims = ints(c, 2 - s.batch, taken + s.batch);
    a->scatter_dims_to_operand_dims = ints(c, 2, map);
    a->input_batching_dims = ints(c, s.batch, &zero);
    a->scatter_indices_batching_dims = ints(c, s.batch, &zero);
    a->index_vector_dim = 2;
    a->to_apply =
        gc_pick(c, 0, 1)
            ? ap_build_reducer(&c->b, AP_RED_SUM, AP_F64)
            : ap_build_add_reducer(
                  &c->b, (struct ap_reducer){.name = "assign", .red = AP_RED_ASSIGN});
    return ap_build_node(&c->b, op, NULL, *ap_build_shape_of(&c->b, s.operand), a, 3, in);
}

static int dynamic(struct gcase *c, enum ap_op op)
{
    int64_t dims[2] = {4, 5}, size[2] = {gc_pick(c, 1, 4), gc_pick(c, 1, 5)};
    struct ap_attrs *a = ap_build_attrs(&c->b);
    int x = gc_wrt(c, 2, dims, -1, 1);
    int i = gc_ints(c, 0, NULL, -2, 5), j = gc_ints(c, 0, NULL, -2, 5);
    a->dynamic_slice_sizes = ints(c, 2, size);
    if (op == AP_OP_DYNAMIC_SLICE) {
        int in[3] = {x, i, j};
        return ap_build_node(&c->b, op, NULL, ap_build_shape(&c->b, AP_F64, 2, size), a,
                             3, in);
    }
    int in[4] = {x, gc_wrt(c, 2, size, -1, 1), i, j};
    return ap_build_node(&c->b, op, NULL, *ap_build_shape_of(&c->b, x), NULL, 4, in);
}

/* ---- the table ---- */

static const struct {
    enum ap_op op;
    int variants;
    int (*make)(struct gcase *c, enum ap_op op);
} cases[] = {
    {AP_OP_ABS, 1, unary},
    {AP_OP_ASINH, 1, unary},
    {AP_OP_CBRT, 1, unary},
    {AP_OP_CONVERT, 1, unary},
    {AP_OP_COPY, 1, unary},
    {AP_OP_COSH, 1, unary},
    {AP_OP_COSINE, 1, unary},
    {AP_OP_ERF, 1, unary},
    {AP_OP_EXPONENTIAL, 1, unary},
    {AP_OP_EXPONENTIAL_MINUS_ONE, 1, unary},
    {AP_OP_LOG, 1, unary},
    {AP_OP_LOG_PLUS_ONE, 1, unary},
    {AP_OP_LOGISTIC, 1, unary},
    {AP_OP_NEGATE, 1, unary},
    {AP_OP_OPT_BARRIER, 1, unary},
    {AP_OP_REDUCE_PRECISION, 1, unary},
    {AP_OP_RSQRT, 1, unary},
    {AP_OP_SINE, 1, unary},
    {AP_OP_SINH, 1, unary},
    {AP_OP_SQRT, 1, unary},
    {AP_OP_TAN, 1, unary},
    {AP_OP_TANH, 1, unary},
    {AP_OP_ADD, 1, binary},
    {AP_OP_ATAN2, 2, binary},
    {AP_OP_DIVIDE, 2, binary},
    {AP_OP_MAXIMUM, 2, binary},
    {AP_OP_MINIMUM, 2, binary},
    {AP_OP_MULTIPLY, 1, binary},
    {AP_OP_POWER, 2, binary},
    {AP_OP_REMAINDER, 3, binary},
    {AP_OP_SUBTRACT, 1, binary},
    {AP_OP_CLAMP, 6, clamp},
    {AP_OP_SELECT, 4, pick_one},
    {AP_OP_BROADCAST, 12, broadcast},
    {AP_OP_CONCATENATE, 6, concatenate},
    {AP_OP_PAD, 12, pad},
    {AP_OP_RESHAPE, 3, move},
    {AP_OP_REVERSE, 3, move},
    {AP_OP_SLICE, 8, slice},
    {AP_OP_TRANSPOSE, 6, move},
    {AP_OP_DOT, 40, dot},
    {AP_OP_CONVOLUTION, 80, conv},
    {AP_OP_REDUCE, 30, reduce},
    {AP_OP_REDUCE, 4, argmax},
    {AP_OP_REDUCE_WINDOW, 40, window},
    {AP_OP_SORT, 8, sort},
    {AP_OP_TOPK, 6, topk},
    {AP_OP_GET_TUPLE_ELEMENT, 2, topk},
    {AP_OP_GATHER, 24, gather},
    {AP_OP_SCATTER, 40, scatter},
    {AP_OP_DYNAMIC_SLICE, 6, dynamic},
    {AP_OP_DYNAMIC_UPDATE_SLICE, 6, dynamic},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* No rule: leaves, integers and predicates, constant almost everywhere, programs only;
 * complex numbers and custom calls, which are refused; and select-and-scatter, the
 * derivative of windows, which is not differentiated again. */
static const enum ap_op no_rule[] = {
    AP_OP_PARAMETER,
    AP_OP_CONSTANT,
    AP_OP_IOTA,
    AP_OP_CEIL,
    AP_OP_FLOOR,
    AP_OP_IS_FINITE,
    AP_OP_NOT,
    AP_OP_BITCAST_CONVERT,
    AP_OP_COUNT_LEADING_ZEROS,
    AP_OP_POPCNT,
    AP_OP_ROUND_AFZ,
    AP_OP_ROUND_EVEN,
    AP_OP_SIGN,
    AP_OP_AND,
    AP_OP_COMPARE,
    AP_OP_OR,
    AP_OP_SHIFT_LEFT,
    AP_OP_SHIFT_RIGHT_ARITHMETIC,
    AP_OP_XOR,
    AP_OP_SHIFT_RIGHT_LOGICAL,
    AP_OP_SELECT_AND_SCATTER,
    AP_OP_REAL,
    AP_OP_IMAG,
    AP_OP_COMPLEX,
    AP_OP_FFT,
    AP_OP_CHOLESKY,
    AP_OP_TRIANGULAR_SOLVE,
    AP_OP_CUSTOM_CALL,
    AP_OP_WHILE,
};

static bool is_program_only(enum ap_op op)
{
    return ap_ops[op].class == AP_CLASS_COLLECTIVE || ap_ops[op].class == AP_CLASS_LOCAL;
}

/* Every operator is either in the table, with a rule, or known to have none. */
static void test_coverage(void)
{
    for (int op = 0; op < AP_N_OPS; op++) {
        bool tested = false, none = is_program_only((enum ap_op)op);
        for (int k = 0; k < N_CASES; k++)
            tested |= (int)cases[k].op == op;
        for (size_t k = 0; k < sizeof no_rule / sizeof *no_rule; k++)
            none |= (int)no_rule[k] == op;
        if (tested == none || tested != (grad_rules[op] && grad_rules[op] != grad_flat))
            CHECK(false, "%s has a rule and a test, or neither", ap_ops[op].name);
    }
    CHECK(true, "every operator was looked at");
}

static void start(struct gcase *c, uint64_t seed)
{
    *c = (struct gcase){.seed = seed, .step = 1e-5};
    ap_build_init(&c->b, &c->arena);
}

static void test_case(int row)
{
    double worst = 0;
    int n = 0, failed = -1;
    struct ap_err err = {{0}};

    for (int v = 0; v < cases[row].variants; v++) {
        struct gcase c;
        start(&c, (uint64_t)row * 1000 + (uint64_t)v);
        int rc = gc_check(&c, cases[row].make(&c, cases[row].op));
        if ((rc || !(c.worst <= TOLERANCE)) && failed < 0) {
            failed = v;
            err = c.err;
        }
        worst = c.worst > worst || c.worst != c.worst ? c.worst : worst;
        n += c.n_elems;
        free(c.b.nodes);
        ap_arena_free(&c.arena);
    }
    CHECK(failed < 0 && n > 0, "%s: %d derivatives, error %.1e (variant %d: %s)",
          ap_ops[cases[row].op].name, n, worst, failed, err.msg);
}

/* ---- conventions at kinks ---- */

static double derivative(int (*make)(struct gcase *c, int x), double at, int elems)
{
    struct gcase c;
    int64_t n = elems;
    start(&c, 1);
    int x = gc_wrt(&c, 1, &n, at, at), grad;
    int y = make(&c, x);
    int64_t dim = 0;
    if (ap_build_shape_of(&c.b, y)->rank)
        y = ap_build_reduce(&c.b, y, AP_RED_SUM, 1, &dim);
    if (ap_grad(&c.b, y, 1, &x, &grad, &c.err))
        return NAN;
    struct ap_result r = {grad < 0 ? x : grad, AP_ROLE_LOSS, -1, NULL};
    struct ap_graph g;
    struct ap_program prog;
    struct comm self;
    struct exec e;
    comm_self_open(&self);
    if (ap_build_finish(&c.b, "t", 1, &r, &g, &c.err) ||
        verify_program(&c.arena, &g, 0, &prog, &c.err) ||
        exec_open(&e, &c.arena, &prog, &cpu_backend, &self, &c.err))
        return NAN;
    double d = gc_eval(&c, &e);
    exec_close(&e);
    ap_arena_free(&c.arena);
    return grad < 0 ? 0 : d;
}

static int kink_abs(struct gcase *c, int x)
{
    return ap_build_unary(&c->b, AP_OP_ABS, x);
}
static int kink_relu(struct gcase *c, int x)
{
    return ap_build_with(&c->b, AP_OP_MAXIMUM, x, 0);
}
static int kink_floor(struct gcase *c, int x)
{
    return ap_build_unary(&c->b, AP_OP_FLOOR, x);
}
static int kink_square(struct gcase *c, int x)
{
    return ap_build_with(&c->b, AP_OP_POWER, x, 2);
}
static int kink_power0(struct gcase *c, int x)
{
    return ap_build_with(&c->b, AP_OP_POWER, x, 0);
}
static int kink_max(struct gcase *c, int x)
{
    int64_t dim = 0;
    return ap_build_reduce(&c->b, x, AP_RED_MAX, 1, &dim);
}

static void test_kinks(void)
{
    CHECK(derivative(kink_abs, 0, 1) == 0, "abs at 0");
    CHECK(derivative(kink_relu, 0, 1) == 0.5, "maximum of equals");
    CHECK(derivative(kink_floor, 0.5, 1) == 0, "floor");
    CHECK(derivative(kink_square, 0, 1) == 0, "a square at 0");
    CHECK(derivative(kink_square, -3, 1) == -6, "a square below 0");
    CHECK(derivative(kink_power0, 0, 1) == 0, "power 0 at 0");
    CHECK(derivative(kink_max, 1, 4) == 0.25, "a maximum of four equals");
}

/* ---- what is refused ---- */

static void refused(struct gcase *c, int y, const char *text)
{
    int grads[MAX_PARAMS];
    int rc = ap_grad(&c->b, gc_loss(c, y), c->n_wrt, c->wrt, grads, &c->err);
    CHECK(rc == -1 && strstr(c->err.msg, text), "refused: '%s'", c->err.msg);
    free(c->b.nodes);
    ap_arena_free(&c->arena);
}

static void test_refusals(void)
{
    int64_t dims[1] = {6}, dim = 0;
    struct ap_window_dim w = {.size = 2, .stride = 2, .lhs_dilate = 1, .rhs_dilate = 2};
    struct gcase c;

    start(&c, 1);
    int x = gc_wrt(&c, 1, dims, -1, 1);
    refused(&c, ap_build_reduce_window(&c.b, x, AP_RED_MAX, &w),
            "reduce-window (reduce-window.2) of a maximum with dilation");

    start(&c, 1);
    x = gc_wrt(&c, 1, dims, -1, 1);
    refused(&c, ap_build_convert(&c.b, ap_build_convert(&c.b, x, AP_C128), AP_F64),
            "of complex numbers");

    start(&c, 1);
    w.rhs_dilate = 1;
    x = gc_wrt(&c, 1, dims, -1, 1);
    int y = ap_build_reduce_window(&c.b, x, AP_RED_MAX, &w), d;
    if (ap_grad(&c.b, gc_loss(&c, ap_build_binary(&c.b, AP_OP_MULTIPLY, y, y)), 1, &x, &d,
                &c.err) == 0)
        refused(&c, d, "select-and-scatter");

    start(&c, 1);
    x = gc_wrt(&c, 1, dims, -1, 1);
    int init = gc_wrt(&c, 0, NULL, -1, 1),
        node = ap_build_reduce(&c.b, x, AP_RED_MAX, 1, &dim);
    int in[2] = {x, init};
    struct ap_node n = c.b.nodes[node];
    refused(&c, ap_build_node(&c.b, n.op, NULL, n.shape, n.attrs, 2, in),
            "by its initial value");
}

int main(void)
{
    test_coverage();
    for (int k = 0; k < N_CASES; k++)
        test_case(k);
    test_kinks();
    test_refusals();
    return tap_done();
}
