/*
 * Shape checks (shape_check.c) of the operators that do most of the arithmetic: dot,
 * convolution, Fourier transforms, linear algebra, and reductions over windows. Each
 * derives the result that the operands and attributes give, and compares.
 */
#include "graph/shape_check.h"

#include <inttypes.h>

/* float with float, integer with integer, and so on: results may be wider. */
static int kind_of(enum ap_dtype dtype)
{
    return ap_dtype_is_float(dtype) ? 0 : ap_dtype_is_int(dtype) ? 1 : 2 + (int)dtype;
}

/* Contractions may mix widths of one kind, as with f32 sums of bf16 products. */
static int check_kinds(const struct check *c)
{
    int kind = kind_of(c->node->shape.dtype);

    if (kind_of(check_in(c, 0)->dtype) == kind && kind_of(check_in(c, 1)->dtype) == kind)
        return 0;
    return ap_err_set(c->err, "%s of %s and %s makes no %s", ap_ops[c->node->op].name,
                      ap_dtype_name(check_in(c, 0)->dtype),
                      ap_dtype_name(check_in(c, 1)->dtype),
                      ap_dtype_name(c->node->shape.dtype));
}

/* Paired dimensions of both sides must have equal sizes; does is "contracts", "batches".
 */
static int check_pairs(const struct check *c, const char *does, const struct ap_ints *l,
                       const struct ap_ints *r)
{
    const struct ap_shape *lhs = check_in(c, 0), *rhs = check_in(c, 1);

    if (l->n != r->n)
        return ap_err_set(c->err, "dot %s %d dimensions of its lhs with %d of its rhs",
                          does, l->n, r->n);
    for (int i = 0; i < l->n; i++)
        if (lhs->dims[l->v[i]] != rhs->dims[r->v[i]])
            return ap_err_set(
                c->err,
                "dot %s %" PRId64 " with %" PRId64 " elements (lhs dimension %" PRId64
                ", rhs dimension %" PRId64 ")",
                does, lhs->dims[l->v[i]], rhs->dims[r->v[i]], l->v[i], r->v[i]);
    return 0;
}

/* Attribute scores, which pricing relies on. */
static int check_scores(const struct check *c)
{
    const struct ap_ints *s = &c->node->attrs->scores;

    if (s->n == 0)
        return 0;
    if ((s->n != 3 && s->n != 5 && s->n != 6) || s->v[0] < 0 || s->v[0] > 2)
        return ap_err_set(c->err,
                          "scores: expected 0, 1 or 2, two dimensions, and none or "
                          "two distances, and stripes");
    const struct ap_shape *of = s->v[0] ? check_in(c, (int)s->v[0] - 1) : &c->node->shape;
    for (int i = 1; i < s->n; i++)
        if (s->v[i] < 0 || (i < 3 && s->v[i] >= of->rank))
            return ap_err_set(c->err,
                              "scores: %" PRId64 " is not a dimension of a tensor of "
                              "%d, or a distance below 0",
                              s->v[i], of->rank);
    if (s->v[1] == s->v[2])
        return ap_err_set(c->err, "scores: queries and keys are the same dimension");
    return 0;
}

int check_dot(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    const struct ap_shape *lhs = check_in(c, 0), *rhs = check_in(c, 1);
    unsigned lc, rc, lb, rb;
    int64_t dims[2 * AP_MAX_RANK];
    int rank = 0;

    if (check_dims(c, "lhs_contracting_dims", &a->lhs_contracting_dims, lhs->rank, &lc) ||
        check_dims(c, "rhs_contracting_dims", &a->rhs_contracting_dims, rhs->rank, &rc) ||
        check_dims(c, "lhs_batch_dims", &a->lhs_batch_dims, lhs->rank, &lb) ||
        check_dims(c, "rhs_batch_dims", &a->rhs_batch_dims, rhs->rank, &rb))
        return -1;
    if ((lc & lb) || (rc & rb))
        return ap_err_set(c->err, "dot contracts a batch dimension");
    if (check_pairs(c, "contracts", &a->lhs_contracting_dims, &a->rhs_contracting_dims) ||
        check_pairs(c, "batches", &a->lhs_batch_dims, &a->rhs_batch_dims))
        return -1;
    for (int i = 0; i < a->lhs_batch_dims.n; i++)
        dims[rank++] = lhs->dims[a->lhs_batch_dims.v[i]];
    for (int d = 0; d < lhs->rank; d++)
        if (!((lc | lb) >> d & 1))
            dims[rank++] = lhs->dims[d];
    for (int d = 0; d < rhs->rank; d++)
        if (!((rc | rb) >> d & 1))
            dims[rank++] = rhs->dims[d];
    if (check_scores(c) || check_kinds(c))
        return -1;
    return check_result(c, c->node->shape.dtype, dims, rank);
}

/* ---- Fourier transforms ---- */

int check_fft(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    const struct ap_shape *in = check_in(c, 0);
    int n = a->fft_length.n, first = in->rank - n;
    bool from_real = a->fft_type == AP_FFT_RFFT, to_real = a->fft_type == AP_FFT_IRFFT;
    bool wide = in->dtype == AP_F64 || in->dtype == AP_C128;
    int64_t dims[AP_MAX_RANK];

    if (n < 1 || n > 3 || first < 0)
        return ap_err_set(c->err, "fft_length of %d dimensions of a tensor of rank %d", n,
                          in->rank);
    if (from_real ? in->dtype != AP_F32 && in->dtype != AP_F64
                  : in->dtype != AP_C64 && in->dtype != AP_C128)
        return ap_err_set(c->err, "fft of type %s does not work on %s",
                          ap_fft_names[a->fft_type], ap_dtype_name(in->dtype));
    for (int d = 0; d < in->rank; d++)
        dims[d] = in->dims[d];
    for (int i = 0; i < n; i++) {
        int64_t len = a->fft_length.v[i];
        bool last = i == n - 1;
        if (len < 1 || dims[first + i] != (to_real && last ? len / 2 + 1 : len))
            return ap_err_set(c->err,
                              "fft_length: %" PRId64 " of dimension %d with %" PRId64
                              " elements",
                              len, first + i, in->dims[first + i]);
        if (last && (from_real || to_real))
            dims[first + i] = from_real ? len / 2 + 1 : len;
    }
    enum ap_dtype real = wide ? AP_F64 : AP_F32, complex = wide ? AP_C128 : AP_C64;
    return check_result(c, to_real ? real : complex, dims, in->rank);
}

/* ---- linear algebra ---- */

int check_linalg(const struct check *c)
{
    const struct ap_shape *a = check_in(c, 0), *b = check_in(c, c->node->n_in - 1);
    int r = a->rank;

    if (!ap_dtype_is_float(a->dtype) && a->dtype != AP_C64 && a->dtype != AP_C128)
        return ap_err_set(c->err, "%s does not work on %s", ap_ops[c->node->op].name,
                          ap_dtype_name(a->dtype));
    if (r < 2 || a->dims[r - 1] != a->dims[r - 2])
        return ap_err_set(c->err, "%s needs square matrices", ap_ops[c->node->op].name);
    bool fits = b->rank == r && b->dtype == a->dtype;
    for (int d = 0; fits && d < r - 2; d++)
        fits = a->dims[d] == b->dims[d];
    if (fits && c->node->n_in == 2)
        fits = b->dims[r - (c->node->attrs->left_side ? 2 : 1)] == a->dims[r - 1];
    if (!fits)
        return ap_err_set(c->err, "%s: the matrices and the right sides do not fit",
                          ap_ops[c->node->op].name);
    return check_result_like(c, b);
}

/* ---- windows ---- */

/* Extent of n elements with d - 1 holes after each but the last; false when it overflows.
 */
static bool dilated(int64_t n, int64_t d, int64_t *out)
{
    *out = 0;
    return n == 0 || (!__builtin_mul_overflow(n - 1, d, out) &&
                      !__builtin_add_overflow(*out, 1, out));
}

/* Number of places of window dimension i over n elements. */
static int window_out(const struct check *c, int i, int64_t n, int64_t *out)
{
    const struct ap_window_dim *w = &c->node->attrs->window[i];
    int64_t base, size;

    if (w->size < 1 || w->stride < 1 || w->lhs_dilate < 1 || w->rhs_dilate < 1)
        return ap_err_set(c->err,
                          "window: size, stride and dilation of dimension %d must "
                          "be > 0",
                          i);
    if (!dilated(n, w->lhs_dilate, &base) || !dilated(w->size, w->rhs_dilate, &size) ||
        __builtin_add_overflow(base, w->pad_lo, &base) ||
        __builtin_add_overflow(base, w->pad_hi, &base) || base < 0)
        return ap_err_set(c->err, "window: padding of dimension %d leaves no valid size",
                          i);
    *out = base < size ? 0 : (base - size) / w->stride + 1;
    return 0;
}

/* Sizes of the operands that do not depend on the window. */
static int check_conv_sizes(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    const struct ap_conv_dims *v = &a->conv;
    const struct ap_shape *lhs = check_in(c, 0), *rhs = check_in(c, 1);
    int64_t features = lhs->dims[v->lhs_feature], batch = lhs->dims[v->lhs_batch];
    int64_t in = rhs->dims[v->rhs_in], out = rhs->dims[v->rhs_out];
    int64_t groups = a->feature_group_count, batch_groups = a->batch_group_count;

    if (groups < 1 || batch_groups < 1 || (groups > 1 && batch_groups > 1))
        return ap_err_set(c->err,
                          "convolution: group counts must be > 0 and not both > 1");
    if (features != ap_mul64(in, groups))
        return ap_err_set(c->err,
                          "convolution of %" PRId64 " features in %" PRId64
                          " groups with a kernel of %" PRId64,
                          features, groups, in);
    if (out % groups || out % batch_groups || batch % batch_groups)
        return ap_err_set(c->err,
                          "convolution: group counts do not divide %" PRId64
                          " output features or a batch of %" PRId64,
                          out, batch);
    for (int i = 0; i < v->n_spatial; i++)
        if (a->window[i].size != rhs->dims[v->rhs_spatial[i]])
            return ap_err_set(c->err,
                              "window size %" PRId64 " is not the kernel's %" PRId64
                              " (spatial dimension %d)",
                              a->window[i].size, rhs->dims[v->rhs_spatial[i]], i);
    return 0;
}

int check_convolution(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    const struct ap_conv_dims *v = &a->conv;
    const struct ap_shape *lhs = check_in(c, 0), *rhs = check_in(c, 1);
    int64_t dims[AP_MAX_RANK];
    int rank = v->n_spatial + 2;

    if (v->lhs_batch == v->lhs_feature)
        return ap_err_set(c->err, "convolution needs dim_labels");
    if (lhs->rank != rank || rhs->rank != rank)
        return ap_err_set(c->err, "dim_labels of rank %d for operands of rank %d and %d",
                          rank, lhs->rank, rhs->rank);
    if (check_count(c, "window", a->n_window, v->n_spatial) || check_conv_sizes(c))
        return -1;
    dims[v->out_batch] = lhs->dims[v->lhs_batch] / a->batch_group_count;
    dims[v->out_feature] = rhs->dims[v->rhs_out];
    for (int i = 0; i < v->n_spatial; i++)
        if (window_out(c, i, lhs->dims[v->lhs_spatial[i]], &dims[v->out_spatial[i]]))
            return -1;
    return check_kinds(c) ? -1 : check_result(c, c->node->shape.dtype, dims, rank);
}

/* What a window over operand 0 makes. */
static int windows_of(const struct check *c, int64_t dims[AP_MAX_RANK])
{
    const struct ap_shape *in = check_in(c, 0);

    if (check_count(c, "window", c->node->attrs->n_window, in->rank))
        return -1;
    for (int d = 0; d < in->rank; d++)
        if (window_out(c, d, in->dims[d], &dims[d]))
            return -1;
    return 0;
}

int check_reduce_window(const struct check *c)
{
    const struct ap_shape *in = check_in(c, 0);
    int64_t dims[AP_MAX_RANK];

    if (windows_of(c, dims) || check_scalar(c, 1, in->dtype) ||
        check_reducer_arity(c, "to_apply", c->node->attrs->to_apply, 2, 1))
        return -1;
    return check_result(c, in->dtype, dims, in->rank);
}

int check_select_and_scatter(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    const struct ap_shape *in = check_in(c, 0), *source = check_in(c, 1);
    int64_t dims[AP_MAX_RANK];

    if (windows_of(c, dims) || check_scalar(c, 2, in->dtype) ||
        check_reducer_arity(c, "select", a->select, 2, 1) ||
        check_reducer_arity(c, "scatter", a->scatter, 2, 1))
        return -1;
    struct ap_shape want = {.dtype = in->dtype, .rank = in->rank, .dims = dims};
    if (!ap_shape_equal(source, &want)) {
        struct ap_buf text = {0};
        ap_shape_print(&want, &text);
        ap_err_set(c->err, "select-and-scatter needs %s as operand 1", text.data);
        ap_buf_free(&text);
        return -1;
    }
    return check_result_like(c, in);
}
