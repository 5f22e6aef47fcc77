/* Products, convolutions, normalisations. */
#include "onnx/onnx.h"

#include <string.h>

#include "onnx/onnx_window.h"

/* ---- products ---- */

static int matmul(struct ox *c)
{
    return ox_matmul(c, c->in[0], c->in[1]);
}

static int gemm(struct ox *c)
{
    double alpha = ox_attr_f(c, "alpha", 1), beta = ox_attr_f(c, "beta", 1);
    int64_t ka = ox_attr_i(c, "transA", 0) ? 0 : 1,
            kb = ox_attr_i(c, "transB", 0) ? 1 : 0;
    if (ox_rank(c, c->in[0]) != 2 || ox_rank(c, c->in[1]) != 2)
        return ox_fail(c, "expected two matrices");
    int x = ox_product(c, c->in[0], c->in[1], ka, kb);
    if (alpha != 1)
        x = ox_with(c, AP_OP_MULTIPLY, x, alpha);
    int y = ox_in(c, 2);
    if (y < 0)
        return x;
    if (beta != 1)
        y = ox_with(c, AP_OP_MULTIPLY, y, beta);
    struct ap_shape s = ox_shape(c, x);
    return ox_bin(c, AP_OP_ADD, x, x < 0 ? -1 : ox_expand(c, y, s.rank, s.dims));
}

/* ---- convolutions ---- */

/* Batch first, features second, the rest spatial; kernels: rhs_out and rhs_in as said. */
static struct ap_attrs *conv_attrs(struct ox *c, int n_spatial, int rhs_out, int rhs_in,
                                   const struct ap_window_dim *window)
{
    struct ap_attrs *a = ap_build_attrs(&c->b);
    a->n_window = n_spatial;
    a->window = ap_arena_dup(c->file->arena, window,
                             (size_t)(n_spatial + !n_spatial) * sizeof *window);
    a->conv.n_spatial = n_spatial;
    a->conv.lhs_feature = a->conv.out_feature = 1;
    a->conv.rhs_out = rhs_out;
    a->conv.rhs_in = rhs_in;
    for (int d = 0; d < n_spatial; d++)
        a->conv.lhs_spatial[d] = a->conv.rhs_spatial[d] = a->conv.out_spatial[d] = d + 2;
    return a;
}

static int add_bias(struct ox *c, int x, int bias)
{
    struct ap_shape s = ox_shape(c, x);
    if (bias < 0 || x < 0)
        return x;
    return ox_bin(c, AP_OP_ADD, x, ox_along(c, bias, 1, s.rank, s.dims));
}

int ox_conv_of(struct ox *c, int x, int w)
{
    struct ap_window_dim window[AP_MAX_RANK];
    struct ap_shape s = ox_shape(c, x), k = ox_shape(c, w);
    int64_t group = ox_attr_i(c, "group", 1);
    if (x < 0 || w < 0)
        return -1;
    if (s.rank < 3 || k.rank != s.rank || group < 1 || s.dims[1] % group ||
        s.dims[1] / group != k.dims[1] || k.dims[0] % group)
        return ox_fail(c, "input, kernel and groups do not fit");
    if (!ox_window(c, s.rank - 2, s.dims + 2, k.dims + 2, window))
        return -1;
    struct ap_attrs *a = conv_attrs(c, s.rank - 2, 0, 1, window);
    a->feature_group_count = group;
    return ox_conv(c, x, w, a);
}

static int conv(struct ox *c)
{
    return add_bias(c, ox_conv_of(c, c->in[0], c->in[1]), ox_in(c, 2));
}

/* Padding of a transposed convolution: the output's size decides, or the pads. */
static bool transpose_pads(struct ox *c, int n, const int64_t *in, const int64_t *kernel,
                           struct ap_window_dim *w)
{
    struct ap_ints pads, out_pad, out_shape;
    const char *how = ox_attr_s(c, "auto_pad", "NOTSET");
    bool upper = strcmp(how, "SAME_UPPER") == 0, lower = strcmp(how, "SAME_LOWER") == 0;
    ox_attr_ints(c, "pads", &pads);
    ox_attr_ints(c, "output_padding", &out_pad);
    ox_attr_ints(c, "output_shape", &out_shape);
    if ((pads.n && pads.n != 2 * n) || (out_pad.n && out_pad.n != n) ||
        (out_shape.n && out_shape.n != n)) {
        ox_fail(c, "pads, output_padding or output_shape have the wrong length");
        return false;
    }
    for (int d = 0; d < n; d++) {
        int64_t stride = w[d].stride, reach = (kernel[d] - 1) * w[d].rhs_dilate + 1;
        int64_t extra = out_pad.n ? out_pad.v[d] : 0;
        int64_t lo = pads.n ? pads.v[d] : 0, hi = pads.n ? pads.v[n + d] : 0;
        if (out_shape.n || upper || lower) {
            int64_t want = out_shape.n ? out_shape.v[d] : in[d] * stride;
            int64_t total = stride * (in[d] - 1) + extra + reach - want;
            /* halves; the odd one first for SAME_LOWER; what is missing comes last */
            lo = total < 0 ? 0 : lower ? total - total / 2 : total / 2;
            hi = total - lo;
        }
        w[d].pad_lo = reach - 1 - lo;
        w[d].pad_hi = reach - 1 - hi + extra;
        w[d].size = kernel[d];
        w[d].lhs_dilate = stride;
        w[d].stride = 1;
        w[d].reversal = true;
    }
    return true;
}

/* [C, M / g, ...] to [C / g, M, ...], as grouped convolutions want it. */
static int regroup(struct ox *c, int w, int64_t group)
{
    struct ap_shape k = ox_shape(c, w);
    int64_t dims[AP_MAX_RANK + 1], perm[AP_MAX_RANK];
    if (group == 1)
        return w;
    if (k.rank + 1 > AP_MAX_RANK)
        return ox_refuse(c, "of this rank is not supported yet");
    dims[0] = group;
    dims[1] = k.dims[0] / group;
    for (int d = 1; d < k.rank; d++)
        dims[d + 1] = k.dims[d];
    for (int d = 0; d <= k.rank; d++)
        perm[d] = d < 2 ? 1 - d : d;
    w = ox_transpose(c, ox_reshape(c, w, k.rank + 1, dims), perm);
    dims[0] = k.dims[0] / group;
    dims[1] = k.dims[1] * group;
    for (int d = 2; d < k.rank; d++)
        dims[d] = k.dims[d];
    return ox_reshape(c, w, k.rank, dims);
}

static int conv_transpose(struct ox *c)
{
    struct ap_window_dim w[AP_MAX_RANK];
    int x = c->in[0];
    struct ap_shape s = ox_shape(c, x), k = ox_shape(c, c->in[1]);
    int64_t group = ox_attr_i(c, "group", 1);
    if (s.rank < 3 || k.rank != s.rank || group < 1 || s.dims[1] != k.dims[0] ||
        k.dims[0] % group)
        return ox_fail(c, "input, kernel and groups do not fit");
    if (!ox_window_steps(c, s.rank - 2, k.dims + 2, w) ||
        !transpose_pads(c, s.rank - 2, s.dims + 2, k.dims + 2, w))
        return -1;
    struct ap_attrs *a = conv_attrs(c, s.rank - 2, 1, 0, w);
    a->feature_group_count = group;
    return add_bias(c, ox_conv(c, x, regroup(c, c->in[1], group), a), ox_in(c, 2));
}

/* ---- normalisations ---- */

/* (x - mean) / sqrt(var + eps), mean and variance over dims. */
static int normalise(struct ox *c, int x, int n, const int64_t *dims, double eps,
                     int *mean_out, int *inv_out)
{
    int mean = ox_mean(c, x, n, dims, true);
    int d = ox_bin(c, AP_OP_SUBTRACT, x, mean);
    int var = ox_mean(c, ox_bin(c, AP_OP_MULTIPLY, d, d), n, dims, true);
    int inv = ox_unary(c, AP_OP_RSQRT, ox_with(c, AP_OP_ADD, var, eps));
    if (mean_out)
        *mean_out = mean;
    if (inv_out)
        *inv_out = inv;
    return ox_bin(c, AP_OP_MULTIPLY, d, inv);
}

/* x * scale + bias, vectors along dimension 1. */
static int scale_features(struct ox *c, int x, int scale, int bias)
{
    struct ap_shape s = ox_shape(c, x);
    if (x < 0 || s.rank < 2)
        return x < 0 ? -1 : ox_fail(c, "of %d dimensions", s.rank);
    x = ox_bin(c, AP_OP_MULTIPLY, x, ox_along(c, scale, 1, s.rank, s.dims));
    return ox_bin(c, AP_OP_ADD, x, ox_along(c, bias, 1, s.rank, s.dims));
}

/* Running statistics are kept, not trained. */
static void not_trained(struct ox *c, int x)
{
    if (x >= 0 && c->b.nodes[x].role == AP_ROLE_WEIGHT)
        c->b.nodes[x].role = AP_ROLE_CONSTANT;
}

/* old * momentum + now * (1 - momentum) */
static int running(struct ox *c, int old, int now, double momentum)
{
    return ox_bin(c, AP_OP_ADD, ox_with(c, AP_OP_MULTIPLY, old, momentum),
                  ox_with(c, AP_OP_MULTIPLY, now, 1 - momentum));
}

static int batch_norm_training(struct ox *c, int x, double eps)
{
    int64_t dims[AP_MAX_RANK], momentum_dims = 0;
    struct ap_shape s = ox_shape(c, x);
    double momentum = ox_attr_f(c, "momentum", 0.9f);
    for (int d = 0; d < s.rank; d++)
        if (d != 1)
            dims[momentum_dims++] = d;
    int n = (int)momentum_dims;
    int y = normalise(c, x, n, dims, eps, NULL, NULL);
    if (ox_wants(c, 1) || ox_wants(c, 2)) {
        int mean = ox_mean(c, x, n, dims, false);
        int d = ox_bin(c, AP_OP_SUBTRACT, x, ox_along(c, mean, 1, s.rank, s.dims));
        int var = ox_mean(c, ox_bin(c, AP_OP_MULTIPLY, d, d), n, dims, false);
        c->out[1] = running(c, c->in[3], mean, momentum);
        c->out[2] = running(c, c->in[4], var, momentum);
    }
    return c->out[0] = scale_features(c, y, c->in[1], c->in[2]);
}

static int batch_norm(struct ox *c)
{
    int x = c->in[0];
    struct ap_shape s = ox_shape(c, x);
    double eps = ox_attr_f(c, "epsilon", 1e-5f);
    bool training = c->opset >= 14 && ox_attr_i(c, "training_mode", 0);
    if (s.rank < 2)
        return ox_fail(c, "of %d dimensions", s.rank);
    for (int i = 1; i < 5; i++)
        if (ox_dtype(c, c->in[i]) != s.dtype)
            return ox_refuse(c, "of several element types is not supported yet");
    if (c->opset < 9 && !ox_attr_i(c, "spatial", 1))
        return ox_refuse(c, "with spatial=0 is not supported yet");
    not_trained(c, c->in[3]);
    not_trained(c, c->in[4]);
    if (training)
        return batch_norm_training(c, x, eps);
    for (int k = 1; k < c->node->n_out; k++)
        if (ox_wants(c, k))
            return ox_refuse(c, "in training mode of this opset is not supported yet");
    int inv = ox_unary(c, AP_OP_RSQRT, ox_with(c, AP_OP_ADD, c->in[4], eps));
    x = ox_bin(c, AP_OP_SUBTRACT, x, ox_along(c, c->in[3], 1, s.rank, s.dims));
    return scale_features(c, x, ox_bin(c, AP_OP_MULTIPLY, c->in[1], inv), c->in[2]);
}

static int layer_norm(struct ox *c)
{
    int x = c->in[0], mean, inv;
    struct ap_shape s = ox_shape(c, x);
    int64_t axis = ox_attr_i(c, "axis", -1), dims[AP_MAX_RANK];
    int n = 0;
    if (!ox_axis(c, &axis, s.rank))
        return -1;
    for (int d = (int)axis; d < s.rank; d++)
        dims[n++] = d;
    int wide = s.dtype == AP_F64 ? x : ox_to(c, x, AP_F32);
    int y = normalise(c, wide, n, dims, ox_attr_f(c, "epsilon", 1e-5f), &mean, &inv);
    y = ox_bin(c, AP_OP_MULTIPLY, ox_to(c, y, s.dtype), c->in[1]);
    if (ox_in(c, 2) >= 0)
        y = ox_bin(c, AP_OP_ADD, y, c->in[2]);
    c->out[1] = mean;
    c->out[2] = inv;
    return c->out[0] = y;
}

static int instance_norm(struct ox *c)
{
    int64_t dims[AP_MAX_RANK];
    int n = 0, rank = ox_rank(c, c->in[0]);
    if (rank < 3)
        return ox_fail(c, "of %d dimensions", rank);
    for (int d = 2; d < rank; d++)
        dims[n++] = d;
    int y = normalise(c, c->in[0], n, dims, ox_attr_f(c, "epsilon", 1e-5f), NULL, NULL);
    return scale_features(c, y, c->in[1], c->in[2]);
}

/* Opset 18: scale and bias per group. */
static int group_norm(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    int64_t g = ox_attr_i(c, "num_groups", 0), dims[AP_MAX_RANK + 1], over[AP_MAX_RANK];
    int n = 0;
    if (s.rank < 2 || s.rank + 1 > AP_MAX_RANK || g < 1 || s.dims[1] % g)
        return ox_fail(c, "%lld groups do not fit", (long long)g);
    dims[0] = s.dims[0];
    dims[1] = g;
    dims[2] = s.dims[1] / g;
    for (int d = 2; d < s.rank; d++)
        dims[d + 1] = s.dims[d];
    for (int d = 2; d <= s.rank; d++)
        over[n++] = d;
    int x = ox_reshape(c, c->in[0], s.rank + 1, dims);
    x = normalise(c, x, n, over, ox_attr_f(c, "epsilon", 1e-5f), NULL, NULL);
    return ox_reshape(c, scale_features(c, x, c->in[1], c->in[2]), s.rank, s.dims);
}

static int mean_variance(struct ox *c)
{
    static const int64_t usual[3] = {0, 2, 3};
    struct ap_ints axes;
    int64_t dims[AP_MAX_RANK];
    int rank = ox_rank(c, c->in[0]);
    if (!ox_attr_ints(c, "axes", &axes))
        axes = (struct ap_ints){3, usual};
    if (axes.n > AP_MAX_RANK)
        return ox_fail(c, "%d axes", axes.n);
    for (int i = 0; i < axes.n; i++) {
        dims[i] = axes.v[i];
        if (!ox_axis(c, &dims[i], rank))
            return -1;
    }
    int x = c->in[0];
    int d = ox_bin(c, AP_OP_SUBTRACT, x, ox_mean(c, x, axes.n, dims, true));
    int var = ox_mean(c, ox_bin(c, AP_OP_MULTIPLY, d, d), axes.n, dims, true);
    return ox_bin(c, AP_OP_DIVIDE, d,
                  ox_with(c, AP_OP_ADD, ox_unary(c, AP_OP_SQRT, var), 1e-9));
}

/* x / (bias + alpha / size * sum of squares over a window of channels)^beta */
static int lrn(struct ox *c)
{
    struct ap_window_dim w[AP_MAX_RANK];
    int x = c->in[0], rank = ox_rank(c, x);
    int64_t size = ox_attr_i(c, "size", 0);
    if (rank < 2 || size < 1 || size > 1 << 20)
        return ox_fail(c, "size %lld", (long long)size);
    for (int d = 0; d < rank; d++)
        w[d] = ap_build_window(1, 1);
    w[1].size = size;
    w[1].pad_lo = (size - 1) / 2;
    w[1].pad_hi = size - 1 - w[1].pad_lo;
    int sum = ox_reduce_window(c, ox_bin(c, AP_OP_MULTIPLY, x, x), AP_RED_SUM, w);
    sum = ox_with(c, AP_OP_MULTIPLY, sum, ox_attr_f(c, "alpha", 1e-4f) / (double)size);
    sum = ox_with(c, AP_OP_ADD, sum, ox_attr_f(c, "bias", 1));
    sum = ox_with(c, AP_OP_POWER, sum, ox_attr_f(c, "beta", 0.75));
    return ox_bin(c, AP_OP_DIVIDE, x, sum);
}

static int lp_norm(struct ox *c)
{
    int64_t axis = ox_attr_i(c, "axis", -1), p = ox_attr_i(c, "p", 2);
    int x = c->in[0];
    if (!ox_axis(c, &axis, ox_rank(c, x)))
        return -1;
    if (p != 1 && p != 2)
        return ox_fail(c, "p=%lld", (long long)p);
    int y = p == 1 ? ox_unary(c, AP_OP_ABS, x) : ox_bin(c, AP_OP_MULTIPLY, x, x);
    y = ox_reduce1(c, y, AP_RED_SUM, (int)axis, true);
    return ox_bin(c, AP_OP_DIVIDE, x, p == 1 ? y : ox_unary(c, AP_OP_SQRT, y));
}

const struct ox_op ox_nn_ops[] = {
    {"MatMul", 1, 20, 2, 2, matmul, 0},
    {"Gemm", 7, 20, 2, 3, gemm, 0},
    {"Conv", 1, 20, 2, 3, conv, 0},
    {"ConvTranspose", 1, 20, 2, 3, conv_transpose, 0},
    {"BatchNormalization", 7, 20, 5, 5, batch_norm, 0},
    {"LayerNormalization", 17, 20, 2, 3, layer_norm, 0},
    {"InstanceNormalization", 6, 20, 3, 3, instance_norm, 0},
    {"GroupNormalization", 18, 20, 3, 3, group_norm, 0},
    {"MeanVarianceNormalization", 9, 20, 1, 1, mean_variance, 0},
    {"LRN", 1, 20, 1, 1, lrn, 0},
    {"LpNormalization", 1, 20, 1, 1, lp_norm, 0},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
