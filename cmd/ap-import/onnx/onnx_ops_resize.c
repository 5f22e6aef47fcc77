/*
 * Resize and Upsample: dimension by dimension, by picking elements (nearest) or by a
 * product with a matrix of weights (linear, cubic), both known once the sizes are.
 */
#include "onnx/onnx.h"

#include <math.h>
#include <string.h>

#define MAX_SIZE 4096 /* of a dimension that is interpolated */

struct axis {
    int64_t in, out;
    double scale, start, end; /* start, end: roi */
};

struct how {
    const char *coord, *nearest, *mode;
    double cubic_a, outside;
    bool exclude_outside;
};

/* Where element i of the output lies in the input. */
static double source_of(const struct how *h, const struct axis *a, int64_t i)
{
    double x = (double)i;
    if (strcmp(h->coord, "asymmetric") == 0)
        return x / a->scale;
    if (strcmp(h->coord, "align_corners") == 0)
        return a->out == 1 ? 0 : x * (double)(a->in - 1) / (double)(a->out - 1);
    if (strcmp(h->coord, "pytorch_half_pixel") == 0 && a->out == 1)
        return 0;
    if (strcmp(h->coord, "tf_crop_and_resize") == 0)
        return a->out > 1 ? a->start * (double)(a->in - 1) + x * (a->end - a->start) *
                                                                 (double)(a->in - 1) /
                                                                 (double)(a->out - 1)
                          : 0.5 * (a->start + a->end) * (double)(a->in - 1);
    return (x + 0.5) / a->scale - 0.5;
}

static int64_t nearest_of(const struct how *h, double x)
{
    if (strcmp(h->nearest, "floor") == 0)
        return (int64_t)floor(x);
    if (strcmp(h->nearest, "ceil") == 0)
        return (int64_t)ceil(x);
    if (strcmp(h->nearest, "round_prefer_ceil") == 0)
        return (int64_t)floor(x + 0.5);
    return (int64_t)ceil(x - 0.5);
}

static int64_t clamp(int64_t v, int64_t hi)
{
    return v < 0 ? 0 : v > hi ? hi : v;
}

static int pick_nearest(struct ox *c, int x, int d, const struct how *h,
                        const struct axis *a)
{
    int64_t *index = AP_NEW_N(c->file->arena, a->out + 1, int64_t);
    for (int64_t i = 0; i < a->out; i++)
        index[i] = clamp(nearest_of(h, source_of(h, a, i)), a->in - 1);
    return ox_take_known(c, x, d, a->out, index);
}

/* Weights of the elements around x, at floor(x) - n / 2 + 1 and on. */
static int weights_at(const struct how *h, double x, double *w)
{
    double t = x - floor(x), a = h->cubic_a;
    if (*h->mode == 'l') {
        w[0] = 1 - t;
        w[1] = t;
        return 2;
    }
    for (int k = 0; k < 4; k++) {
        double s = fabs(t + 1 - k);
        w[k] = s <= 1  ? ((a + 2) * s - (a + 3)) * s * s + 1
               : s < 2 ? ((a * s - 5 * a) * s + 8 * a) * s - 4 * a
                       : 0;
    }
    return 4;
}

static int interpolate(struct ox *c, int x, int d, const struct how *h,
                       const struct axis *a)
{
    int64_t dims[2] = {a->out, a->in}, one = 1, at = d;
    double *m = AP_NEW_N(c->file->arena, a->out * a->in + 1, double), w[4];
    enum ap_dtype t = ox_dtype(c, x);
    if (!ap_dtype_is_float(t))
        return ox_refuse(c, "of %s is not supported yet", ap_dtype_name(t));
    for (int64_t i = 0; i < a->out; i++) {
        double from = source_of(h, a, i), sum = 0;
        int n = weights_at(h, from, w);
        int64_t first = (int64_t)floor(from) - n / 2 + 1;
        for (int k = 0; k < n; k++) {
            bool outside = first + k < 0 || first + k >= a->in;
            if (h->exclude_outside && outside)
                w[k] = 0;
            sum += w[k];
        }
        for (int k = 0; k < n; k++)
            m[i * a->in + clamp(first + k, a->in - 1)] += w[k] / sum;
    }
    int matrix = ox_floats_const(c, t, 2, dims, m);
    int y = ox_product(c, x, matrix, at, one);
    return ox_move(c, y, ox_rank(c, y) - 1, d);
}

static bool is_whole(const struct axis *a)
{
    return a->in == a->out && a->scale == 1 && a->start == 0 && a->end == 1;
}

/* Elements whose source lies outside of the input (tf_crop_and_resize). */
static int fill_outside(struct ox *c, int x, int d, const struct how *h,
                        const struct axis *a)
{
    struct ap_shape s = ox_shape(c, x);
    bool all = true;
    if (strcmp(h->coord, "tf_crop_and_resize") != 0 || x < 0 || is_whole(a))
        return x;
    int64_t *inside = AP_NEW_N(c->file->arena, a->out + 1, int64_t);
    for (int64_t i = 0; i < a->out; i++) {
        double from = source_of(h, a, i);
        inside[i] = from >= 0 && from <= (double)(a->in - 1);
        all = all && inside[i];
    }
    if (all)
        return x;
    int mask =
        ox_along(c, ox_ints_const(c, AP_PRED, 1, &a->out, inside), d, s.rank, s.dims);
    return ox_select(c, mask, x, ox_full_like(c, x, h->outside));
}

static bool one_of(const char *s, const char *const *list)
{
    while (*list && strcmp(*list, s) != 0)
        list++;
    return *list;
}

static bool read_how(struct ox *c, struct how *h)
{
    static const char *const coords[] = {"half_pixel",         "pytorch_half_pixel",
                                         "align_corners",      "asymmetric",
                                         "tf_crop_and_resize", NULL};
    static const char *const nearest[] = {"round_prefer_floor", "round_prefer_ceil",
                                          "floor", "ceil", NULL};
    static const char *const modes[] = {"nearest", "linear", "cubic", NULL};
    bool old = c->opset < 11; /* Resize 10 and Upsample */
    const char *policy = ox_attr_s(c, "keep_aspect_ratio_policy", "stretch");
    *h = (struct how){
        .coord = ox_attr_s(c, "coordinate_transformation_mode",
                           old ? "asymmetric" : "half_pixel"),
        .nearest = ox_attr_s(c, "nearest_mode", old ? "floor" : "round_prefer_floor"),
        .mode = ox_attr_s(c, "mode", "nearest"),
        .cubic_a = ox_attr_f(c, "cubic_coeff_a", -0.75),
        .outside = ox_attr_f(c, "extrapolation_value", 0),
        .exclude_outside = ox_attr_i(c, "exclude_outside", 0)};
    if (one_of(h->coord, coords) && one_of(h->nearest, nearest) &&
        one_of(h->mode, modes) && !ox_attr_i(c, "antialias", 0) &&
        strcmp(policy, "stretch") == 0)
        return true;
    ox_refuse(c, "in this mode is not supported yet");
    return false;
}

/* Input and output size of every dimension. */
static bool read_axes(struct ox *c, const struct ap_shape *s, struct axis *a)
{
    const double *roi = NULL, *scale = NULL;
    int64_t n_roi = 0, n_scale = 0;
    struct ap_ints sizes = {0}, axes = {0};
    bool old = c->opset < 11;
    int at = old ? 1 : 2, n = s->rank;
    int64_t axis[AP_MAX_RANK];
    if (ox_attr_ints(c, "axes", &axes))
        n = axes.n;
    if ((ox_in(c, at) >= 0 && !ox_floats(c, at, &scale, &n_scale)) ||
        (!old && ox_in(c, 3) >= 0 && !ox_ints(c, 3, &sizes)))
        return false;
    bool crop = strcmp(ox_attr_s(c, "coordinate_transformation_mode", ""),
                       "tf_crop_and_resize") == 0;
    if (crop && !ox_floats(c, 1, &roi, &n_roi))
        return false;
    if ((n_scale && n_scale != n) || (sizes.n && sizes.n != n) || n > s->rank ||
        !n_scale == !sizes.n || (crop && n_roi != 2 * n)) {
        ox_fail(c, "scales, sizes or roi do not fit");
        return false;
    }
    for (int d = 0; d < s->rank; d++)
        a[d] = (struct axis){s->dims[d], s->dims[d], 1, 0, 1};
    for (int i = 0; i < n; i++) {
        axis[i] = axes.n ? axes.v[i] : i;
        if (!ox_axis(c, &axis[i], s->rank))
            return false;
        struct axis *t = &a[axis[i]];
        t->start = crop ? roi[i] : 0;
        t->end = crop ? roi[n + i] : 1;
        double f = sizes.n ? (double)sizes.v[i] / (double)(t->in ? t->in : 1) : scale[i];
        double span = crop && !sizes.n ? t->end - t->start : 1;
        double out = sizes.n ? (double)sizes.v[i] : floor((double)t->in * span * f);
        if (!(f > 0) || !(out >= 1 && out <= MAX_SIZE) || t->in < 1 || t->in > MAX_SIZE) {
            if (f == 1 && !crop)
                continue;
            ox_refuse(c, "from size %lld by %g is not supported yet", (long long)t->in,
                      f);
            return false;
        }
        if (strstr(ox_attr_s(c, "coordinate_transformation_mode", ""), "corners") &&
            out != (double)t->in * f && !sizes.n) {
            /* whether length_resized is rounded is not agreed on */
            ox_refuse(c, "align_corners to a size that is not a whole number is not "
                         "supported yet");
            return false;
        }
        t->out = (int64_t)out;
        t->scale = f;
    }
    return true;
}

static int resize(struct ox *c)
{
    struct axis a[AP_MAX_RANK];
    struct how h;
    int x = c->in[0];
    struct ap_shape s = ox_shape(c, x);
    if (!read_how(c, &h) || !read_axes(c, &s, a))
        return -1;
    for (int d = 0; d < s.rank && x >= 0; d++) {
        if (is_whole(&a[d]))
            continue;
        x = strcmp(h.mode, "nearest") == 0 ? pick_nearest(c, x, d, &h, &a[d])
                                           : interpolate(c, x, d, &h, &a[d]);
    }
    for (int d = 0; d < s.rank; d++)
        x = fill_outside(c, x, d, &h, &a[d]);
    return x;
}

const struct ox_op ox_resize_ops[] = {
    {"Resize", 10, 20, 1, 4, resize, 0},
    {"Upsample", 9, 9, 2, 2, resize, 0},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
