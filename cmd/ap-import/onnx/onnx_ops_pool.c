/* Pools: windows that reduce. */
#include <string.h>

#include "onnx/onnx_window.h"

bool ox_window_steps(struct ox *c, int n, const int64_t *kernel, struct ap_window_dim *w)
{
    struct ap_ints strides, dilations, shape;
    ox_attr_ints(c, "strides", &strides);
    ox_attr_ints(c, "dilations", &dilations);
    if (ox_attr_ints(c, "kernel_shape", &shape) && shape.n != n) {
        ox_fail(c, "kernel_shape has %d entries for %d dimensions", shape.n, n);
        return false;
    }
    if ((strides.n && strides.n != n) || (dilations.n && dilations.n != n)) {
        ox_fail(c, "strides or dilations have the wrong length");
        return false;
    }
    for (int d = 0; d < n; d++) {
        int64_t bound = 1 << 20;
        w[d] = ap_build_window(kernel[d], strides.n ? strides.v[d] : 1);
        w[d].rhs_dilate = dilations.n ? dilations.v[d] : 1;
        if (w[d].size < 1 || w[d].stride < 1 || w[d].rhs_dilate < 1 ||
            w[d].size > bound || w[d].stride > bound || w[d].rhs_dilate > bound ||
            (shape.n && shape.v[d] != kernel[d])) {
            ox_fail(c, "kernel, stride or dilation %d does not fit", d);
            return false;
        }
    }
    return true;
}

/* Whether the last window of a rounded-up count would start in the padding after. */
static int64_t ceil_extra(int64_t in, const struct ap_window_dim *w)
{
    int64_t reach = (w->size - 1) * w->rhs_dilate + 1;
    int64_t room = in + w->pad_lo + w->pad_hi - reach;
    if (room < 0 || room % w->stride == 0)
        return 0;
    int64_t n = room / w->stride + 1; /* number of the window that does not fit */
    if (n * w->stride >= in + w->pad_lo)
        return 0;
    return n * w->stride - room;
}

bool ox_window(struct ox *c, int n, const int64_t *in, const int64_t *kernel,
               struct ap_window_dim *w)
{
    const char *how = ox_attr_s(c, "auto_pad", "NOTSET");
    struct ap_ints pads;
    bool upper = strcmp(how, "SAME_UPPER") == 0, lower = strcmp(how, "SAME_LOWER") == 0;
    bool valid = strcmp(how, "VALID") == 0;
    if (!ox_window_steps(c, n, kernel, w))
        return false;
    if (!upper && !lower && !valid && *how && strcmp(how, "NOTSET") != 0) {
        ox_fail(c, "auto_pad '%s'", how);
        return false;
    }
    if (ox_attr_ints(c, "pads", &pads) && pads.n && pads.n != 2 * n) {
        ox_fail(c, "%d pads for %d dimensions", pads.n, n);
        return false;
    }
    for (int d = 0; d < n; d++) {
        int64_t reach = (w[d].size - 1) * w[d].rhs_dilate + 1, bound = 1 << 20;
        if (upper || lower) {
            int64_t out = ap_ceil_div(in[d], w[d].stride);
            int64_t total = (out - 1) * w[d].stride + reach - in[d];
            total = total < 0 ? 0 : total;
            w[d].pad_lo = upper ? total / 2 : total - total / 2;
            w[d].pad_hi = total - w[d].pad_lo;
        } else if (pads.n && !valid) {
            w[d].pad_lo = pads.v[d];
            w[d].pad_hi = pads.v[n + d];
        }
        if (w[d].pad_lo < -bound || w[d].pad_lo > bound || w[d].pad_hi < -bound ||
            w[d].pad_hi > bound) {
            ox_fail(c, "padding out of range");
            return false;
        }
    }
    return true;
}

/* A window for every dimension of x: the first two are of size 1. */
static bool pool_window(struct ox *c, int x, struct ap_window_dim *w, int64_t *extra)
{
    struct ap_shape s = ox_shape(c, x);
    struct ap_ints kernel;
    if (!ox_attr_ints(c, "kernel_shape", &kernel) || s.rank < 3 ||
        kernel.n != s.rank - 2) {
        ox_fail(c, "kernel_shape does not fit");
        return false;
    }
    for (int d = 0; d < 2; d++)
        w[d] = ap_build_window(1, 1);
    if (!ox_window(c, kernel.n, s.dims + 2, kernel.v, w + 2))
        return false;
    for (int d = 0; d < s.rank; d++) {
        extra[d] = 0;
        if (ox_attr_i(c, "ceil_mode", 0) && d >= 2)
            extra[d] = ceil_extra(s.dims[d], &w[d]);
        w[d].pad_hi += extra[d];
    }
    return true;
}

static int max_pool(struct ox *c)
{
    struct ap_window_dim w[AP_MAX_RANK];
    int64_t extra[AP_MAX_RANK];
    if (ox_wants(c, 1))
        return ox_refuse(c, "with indices is not supported yet");
    if (!pool_window(c, c->in[0], w, extra))
        return -1;
    return ox_reduce_window(c, c->in[0], AP_RED_MAX, w);
}

/* Elements in [lo, hi) in each of `out` windows: a vector, or -1 and one number. */
static int counts(struct ox *c, const struct ap_window_dim *w, int64_t lo, int64_t hi,
                  int64_t out, enum ap_dtype dtype, double *same)
{
    double *n = AP_NEW_N(c->file->arena, out + 1, double);
    bool equal = true;
    for (int64_t i = 0; i < out; i++) {
        for (int64_t k = 0; k < w->size; k++) {
            int64_t at = i * w->stride - w->pad_lo + k * w->rhs_dilate;
            n[i] += at >= lo && at < hi;
        }
        equal = equal && n[i] == n[0];
    }
    *same = out ? n[0] : 1;
    return equal ? -1 : ox_floats_const(c, dtype, 1, &out, n);
}

static int average_pool(struct ox *c)
{
    struct ap_window_dim w[AP_MAX_RANK];
    int64_t extra[AP_MAX_RANK];
    bool with_pads = ox_attr_i(c, "count_include_pad", 0) != 0;
    int x = c->in[0];
    struct ap_shape s = ox_shape(c, x);
    double all = 1, n;
    if (!ap_dtype_is_float(s.dtype) || !pool_window(c, x, w, extra))
        return ox_fail(c, "of %s", ap_dtype_name(s.dtype));
    int y = ox_reduce_window(c, x, AP_RED_SUM, w), by = -1;
    struct ap_shape t = ox_shape(c, y);
    for (int d = 2; d < s.rank && y >= 0; d++) {
        if (ap_mul64(t.dims[d], w[d].size) > 1 << 24)
            return ox_refuse(c, "of this size is not supported yet");
        int64_t lo = with_pads ? -w[d].pad_lo : 0;
        int64_t hi = s.dims[d] + (with_pads ? w[d].pad_hi - extra[d] : 0);
        int v = counts(c, &w[d], lo, hi, t.dims[d], s.dtype, &n);
        if (v < 0) {
            all *= n;
            continue;
        }
        v = ox_along(c, v, d, t.rank, t.dims);
        by = by < 0 ? v : ox_bin(c, AP_OP_MULTIPLY, by, v);
    }
    y = all != 1 ? ox_with(c, AP_OP_DIVIDE, y, all) : y;
    return by < 0 ? y : ox_bin(c, AP_OP_DIVIDE, y, by);
}

/* (sum of |x|^p)^(1/p) */
static int lp_pool(struct ox *c)
{
    struct ap_window_dim w[AP_MAX_RANK];
    int64_t extra[AP_MAX_RANK], p = ox_attr_i(c, "p", 2);
    int x = ox_unary(c, AP_OP_ABS, c->in[0]);
    if (p < 1 || !pool_window(c, x, w, extra))
        return ox_fail(c, "p=%lld", (long long)p);
    x = ox_reduce_window(c, ox_with(c, AP_OP_POWER, x, (double)p), AP_RED_SUM, w);
    return ox_with(c, AP_OP_POWER, x, 1.0 / (double)p);
}

static int global_pool(struct ox *c)
{
    int64_t dims[AP_MAX_RANK], p = ox_attr_i(c, "p", 2);
    int x = c->in[0], n = 0, rank = ox_rank(c, x);
    if (rank < 3)
        return ox_fail(c, "of %d dimensions", rank);
    for (int d = 2; d < rank; d++)
        dims[n++] = d;
    if (c->op->arg == 0)
        return ox_mean(c, x, n, dims, true);
    if (c->op->arg == 1)
        return ox_reduce(c, x, AP_RED_MAX, n, dims, true);
    x = ox_with(c, AP_OP_POWER, ox_unary(c, AP_OP_ABS, x), (double)p);
    return ox_with(c, AP_OP_POWER, ox_reduce(c, x, AP_RED_SUM, n, dims, true),
                   1.0 / (double)(p ? p : 1));
}

const struct ox_op ox_pool_ops[] = {
    {"MaxPool", 1, 20, 1, 1, max_pool, 0},
    {"AveragePool", 7, 20, 1, 1, average_pool, 0},
    {"LpPool", 2, 20, 1, 1, lp_pool, 0},
    {"GlobalAveragePool", 1, 20, 1, 1, global_pool, 0},
    {"GlobalMaxPool", 1, 20, 1, 1, global_pool, 1},
    {"GlobalLpPool", 2, 20, 1, 1, global_pool, 2},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
