/* Reductions, and operators composed of them. */
#include "onnx/onnx.h"

#include <string.h>

enum kind {
    R_SUM,
    R_PROD,
    R_MAX,
    R_MIN,
    R_MEAN,
    R_L1,
    R_L2,
    R_LOG_SUM,
    R_LOG_SUM_EXP,
    R_SUM_SQUARE
};

/* Axes of a reduction, all if none are given; false and failed for bad ones. */
static bool axes_of(struct ox *c, int rank, int64_t *axes, int *n, bool *nothing)
{
    struct ap_ints v;
    bool given;
    *nothing = false;
    if (!ox_ints_of(c, "axes", 1, &v, &given))
        return false;
    if (!v.n && ox_attr_i(c, "noop_with_empty_axes", 0)) {
        *nothing = true;
        return true;
    }
    *n = v.n ? v.n : rank;
    if (*n > AP_MAX_RANK) {
        ox_fail(c, "%d axes", *n);
        return false;
    }
    for (int i = 0; i < *n; i++) {
        axes[i] = v.n ? v.v[i] : i;
        if (!ox_axis(c, &axes[i], rank))
            return false;
    }
    return true;
}

static int log_sum_exp(struct ox *c, int x, int n, const int64_t *axes, bool keep)
{
    int top = ox_reduce(c, x, AP_RED_MAX, n, axes, true);
    int e = ox_unary(c, AP_OP_EXPONENTIAL, ox_bin(c, AP_OP_SUBTRACT, x, top));
    int y = ox_unary(c, AP_OP_LOG, ox_reduce(c, e, AP_RED_SUM, n, axes, true));
    struct ap_shape s;
    y = ox_bin(c, AP_OP_ADD, y, top);
    if (keep || y < 0)
        return y;
    s = ox_shape(c, y);
    int64_t dims[AP_MAX_RANK];
    int k = 0;
    for (int d = 0; d < s.rank; d++) {
        bool reduced = false;
        for (int i = 0; i < n; i++)
            reduced = reduced || axes[i] == d;
        if (!reduced)
            dims[k++] = s.dims[d];
    }
    return ox_reshape(c, y, k, dims);
}

static int reduce(struct ox *c)
{
    int64_t axes[AP_MAX_RANK];
    int x = c->in[0], n = 0;
    bool keep = ox_attr_i(c, "keepdims", 1) != 0, nothing;
    enum kind kind = (enum kind)c->op->arg;
    if (!axes_of(c, ox_rank(c, x), axes, &n, &nothing))
        return -1;
    if (nothing && (kind <= R_MEAN || kind == R_L2))
        return x;
    if (nothing)
        return ox_refuse(c, "of no axes is not supported yet");
    switch (kind) {
    case R_SUM:
        return ox_reduce(c, x, AP_RED_SUM, n, axes, keep);
    case R_PROD:
        return ox_reduce(c, x, AP_RED_PROD, n, axes, keep);
    case R_MAX:
        return ox_reduce(c, x, AP_RED_MAX, n, axes, keep);
    case R_MIN:
        return ox_reduce(c, x, AP_RED_MIN, n, axes, keep);
    case R_MEAN:
        return ox_mean(c, x, n, axes, keep);
    case R_L1:
        return ox_reduce(c, ox_unary(c, AP_OP_ABS, x), AP_RED_SUM, n, axes, keep);
    case R_L2:
        x = ox_reduce(c, ox_bin(c, AP_OP_MULTIPLY, x, x), AP_RED_SUM, n, axes, keep);
        return ox_unary(c, AP_OP_SQRT, x);
    case R_LOG_SUM:
        return ox_unary(c, AP_OP_LOG, ox_reduce(c, x, AP_RED_SUM, n, axes, keep));
    case R_LOG_SUM_EXP:
        return log_sum_exp(c, x, n, axes, keep);
    case R_SUM_SQUARE:
        return ox_reduce(c, ox_bin(c, AP_OP_MULTIPLY, x, x), AP_RED_SUM, n, axes, keep);
    }
    return -1;
}

/* ---- the largest ---- */

/* Position along d of the largest (smallest) element, the first or last of equal ones. */
static int arg_top(struct ox *c, int x, enum ap_red red, int d, bool last, bool keep)
{
    struct ap_shape s = ox_shape(c, x);
    if (x < 0)
        return -1;
    if (!s.dims[d])
        return ox_fail(c, "of an empty dimension");
    int eq = ox_cmp(c, AP_EQ, x, ox_reduce1(c, x, red, d, true));
    int at = ox_iota(c, AP_S64, s.rank, s.dims, d);
    int none = ox_full(c, AP_S64, s.rank, s.dims, last ? -1.0 : (double)s.dims[d]);
    return ox_reduce1(c, ox_select(c, eq, at, none), last ? AP_RED_MAX : AP_RED_MIN, d,
                      keep);
}

static int arg_reduce(struct ox *c)
{
    int64_t axis = ox_attr_i(c, "axis", 0);
    if (!ox_axis(c, &axis, ox_rank(c, c->in[0])))
        return -1;
    return arg_top(c, c->in[0], (enum ap_red)c->op->arg, (int)axis,
                   ox_attr_i(c, "select_last_index", 0), ox_attr_i(c, "keepdims", 1));
}

/*
 * The operand, its shape as given, and the dimension that `axis` names; before opset 13
 * the dimensions from there on are one. -1: the axis does not fit.
 */
static int along_axis(struct ox *c, struct ap_shape *s, int *d)
{
    int64_t axis = ox_attr_i(c, "axis", c->opset < 13 ? 1 : -1), dims[2] = {1, 1};
    *s = ox_shape(c, c->in[0]);
    if (!ox_axis(c, &axis, s->rank))
        return -1;
    *d = (int)axis;
    if (c->opset >= 13)
        return c->in[0];
    for (int k = 0; k < s->rank; k++)
        dims[k >= axis] *= s->dims[k];
    *d = 1;
    return ox_reshape(c, c->in[0], 2, dims);
}

static int hardmax(struct ox *c)
{
    struct ap_shape s;
    int d = 0, x = along_axis(c, &s, &d);
    int top = arg_top(c, x, AP_RED_MAX, d, false, true);
    int at = ox_iota(c, AP_S64, ox_rank(c, x), ox_shape(c, x).dims, d);
    return ox_reshape(c, ox_to(c, ox_cmp(c, AP_EQ, at, top), s.dtype), s.rank, s.dims);
}

/*
 * What is taken off changes no softmax; rounded down, which has no derivative, it costs
 * no gradient either.
 */
int ox_softmax(struct ox *c, int x, int d, bool log)
{
    int max = ox_unary(c, AP_OP_FLOOR, ox_reduce1(c, x, AP_RED_MAX, d, true));
    int y = ox_bin(c, AP_OP_SUBTRACT, x, max);
    int e = ox_unary(c, AP_OP_EXPONENTIAL, y);
    int sum = ox_reduce1(c, e, AP_RED_SUM, d, true);
    return log ? ox_bin(c, AP_OP_SUBTRACT, y, ox_unary(c, AP_OP_LOG, sum))
               : ox_bin(c, AP_OP_DIVIDE, e, sum);
}

static int softmax(struct ox *c)
{
    struct ap_shape s;
    int d = 0, x = along_axis(c, &s, &d);
    return ox_reshape(c, ox_softmax(c, x, d, c->op->arg != 0), s.rank, s.dims);
}

/* ---- running sums, the k largest ---- */

static int cum_sum(struct ox *c)
{
    struct ap_ints axis;
    struct ap_window_dim w[AP_MAX_RANK];
    struct ap_pad_dim pad[AP_MAX_RANK] = {{0}};
    int x = c->in[0];
    struct ap_shape s = ox_shape(c, x);
    bool exclusive = ox_attr_i(c, "exclusive", 0), reverse = ox_attr_i(c, "reverse", 0);
    if (!ox_ints(c, 1, &axis))
        return -1;
    if (axis.n != 1)
        return ox_fail(c, "expected one axis");
    int64_t d = axis.v[0];
    if (!ox_axis(c, &d, s.rank))
        return -1;
    int64_t n = s.dims[d];
    if (n == 0)
        return x;
    for (int k = 0; k < s.rank; k++)
        w[k] = ap_build_window(1, 1);
    w[d].size = n;
    *(reverse ? &w[d].pad_hi : &w[d].pad_lo) = n - 1;
    int y = ox_reduce_window(c, x, AP_RED_SUM, w);
    if (!exclusive)
        return y;
    pad[d] = reverse ? (struct ap_pad_dim){-1, 1, 0} : (struct ap_pad_dim){1, -1, 0};
    return ox_pad(c, y, ox_scalar(c, s.dtype, 0), pad);
}

static int topk(struct ox *c)
{
    struct ap_ints k;
    bool given;
    int x = c->in[0], last = ox_rank(c, x) - 1;
    int64_t axis = ox_attr_i(c, "axis", -1);
    if (!ox_axis(c, &axis, last + 1))
        return -1;
    if (c->opset < 10) {
        int64_t *v = AP_NEW(c->file->arena, int64_t);
        *v = ox_attr_i(c, "k", 0);
        k = (struct ap_ints){1, v};
    } else if (!ox_ints_of(c, "k", 1, &k, &given)) {
        return -1;
    }
    x = ox_move(c, x, (int)axis, last);
    struct ap_shape s = ox_shape(c, x);
    if (x < 0 || k.n != 1 || k.v[0] < 0 || k.v[0] > s.dims[last])
        return ox_fail(c, "k does not fit");
    struct ap_attrs *a = ap_build_attrs(&c->b), *get;
    struct ap_shape part[2] = {s, s};
    int64_t dims[AP_MAX_RANK];
    memcpy(dims, s.dims, (size_t)s.rank * sizeof *dims);
    dims[last] = k.v[0];
    for (int i = 0; i < 2; i++)
        part[i] = ap_build_shape(&c->b, i ? AP_S32 : s.dtype, s.rank, dims);
    a->k = k.v[0];
    a->largest = ox_attr_i(c, "largest", 1) != 0;
    struct ap_shape pair = {.dtype = AP_TUPLE, .n_parts = 2};
    pair.parts = ap_arena_dup(c->file->arena, part, sizeof part);
    int both = ox_node(c, AP_OP_TOPK, pair, a, 1, &x);
    for (int i = 0; i < 2; i++) {
        get = ap_build_attrs(&c->b);
        get->index = i;
        int y = ox_node(c, AP_OP_GET_TUPLE_ELEMENT, part[i], get, 1, &both);
        c->out[i] = ox_move(c, i ? ox_to(c, y, AP_S64) : y, last, (int)axis);
    }
    return c->out[0];
}

#define REDUCE(name, kind)                  \
    {                                       \
        name, 1, 20, 1, 2, reduce, R_##kind \
    }

const struct ox_op ox_reduce_ops[] = {
    REDUCE("ReduceSum", SUM),
    REDUCE("ReduceProd", PROD),
    REDUCE("ReduceMax", MAX),
    REDUCE("ReduceMin", MIN),
    REDUCE("ReduceMean", MEAN),
    REDUCE("ReduceL1", L1),
    REDUCE("ReduceL2", L2),
    REDUCE("ReduceLogSum", LOG_SUM),
    REDUCE("ReduceLogSumExp", LOG_SUM_EXP),
    REDUCE("ReduceSumSquare", SUM_SQUARE),
    {"ArgMax", 1, 20, 1, 1, arg_reduce, AP_RED_MAX},
    {"ArgMin", 1, 20, 1, 1, arg_reduce, AP_RED_MIN},
    {"Hardmax", 1, 20, 1, 1, hardmax, 0},
    {"Softmax", 1, 20, 1, 1, softmax, 0},
    {"LogSoftmax", 1, 20, 1, 1, softmax, 1},
    {"CumSum", 11, 20, 2, 2, cum_sum, 0},
    {"TopK", 1, 20, 1, 2, topk, 0},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
