/* The calls that operators are lowered with: checks, broadcasting, then build.h. */
#include "onnx/onnx.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "doc/literal.h"
#include "graph/element.h"

#define MAX_TENSOR ((int64_t)1 << 48) /* elements */

static const char *about(struct ox *c, const char *fmt, va_list ap)
{
    char msg[700];
    vsnprintf(msg, sizeof msg, fmt, ap);
    if (!c->node)
        return ap_arena_strdup(c->file->arena, msg);
    return ap_arena_printf(c->file->arena, "node %.100s (%.60s): %s", c->node->name,
                           c->node->op, msg);
}

int ox_fail(struct ox *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *msg = about(c, fmt, ap);
    va_end(ap);
    return onnx_fail(c->file, "%s", msg);
}

int ox_refuse(struct ox *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *msg = about(c, fmt, ap);
    va_end(ap);
    return onnx_refuse(c->file, "%s", msg);
}

/* ---- attributes ---- */

const struct onnx_attr *ox_attr(const struct ox *c, const char *name)
{
    for (int i = 0; i < c->node->n_attrs; i++)
        if (strcmp(c->node->attrs[i].name, name) == 0)
            return &c->node->attrs[i];
    return NULL;
}

int64_t ox_attr_i(const struct ox *c, const char *name, int64_t otherwise)
{
    const struct onnx_attr *a = ox_attr(c, name);
    return a && a->has_i ? a->i : otherwise;
}

double ox_attr_f(const struct ox *c, const char *name, double otherwise)
{
    const struct onnx_attr *a = ox_attr(c, name);
    return a && a->has_f ? (double)a->f : otherwise;
}

const char *ox_attr_s(const struct ox *c, const char *name, const char *otherwise)
{
    const struct onnx_attr *a = ox_attr(c, name);
    return a && a->has_s ? a->s : otherwise;
}

bool ox_attr_ints(const struct ox *c, const char *name, struct ap_ints *v)
{
    const struct onnx_attr *a = ox_attr(c, name);
    *v = a ? a->ints : (struct ap_ints){0};
    return a != NULL;
}

bool ox_axis(struct ox *c, int64_t *axis, int rank)
{
    if (*axis < -rank || *axis >= rank) {
        ox_fail(c, "axis %lld of %d dimensions", (long long)*axis, rank);
        return false;
    }
    *axis += *axis < 0 ? rank : 0;
    return true;
}

/* ---- checks ---- */

static bool dims_ok(struct ox *c, int rank, const int64_t *dims)
{
    int64_t n = 1;
    for (int d = 0; d < rank && d < AP_MAX_RANK; d++) {
        if (dims[d] < 0) {
            ox_fail(c, "dimension %d would have size %lld", d, (long long)dims[d]);
            return false;
        }
        n = ap_mul64(n, dims[d] ? dims[d] : 1);
    }
    if (rank > AP_MAX_RANK || n > MAX_TENSOR) {
        ox_refuse(c,
                  rank > AP_MAX_RANK ? "%d dimensions are not supported yet"
                                     : "a tensor of this size is not supported yet",
                  rank);
        return false;
    }
    return true;
}

static bool distinct_in(struct ox *c, int n, const int64_t *v, int rank)
{
    unsigned seen = 0;
    for (int i = 0; i < n; i++) {
        if (v[i] < 0 || v[i] >= rank || (seen >> v[i] & 1)) {
            ox_fail(c, "dimension %lld is listed twice or does not exist",
                    (long long)v[i]);
            return false;
        }
        seen |= 1u << v[i];
    }
    return true;
}

static bool same_dims(int rank, const int64_t *a, int rank_b, const int64_t *b)
{
    return rank == rank_b && (!rank || memcmp(a, b, (size_t)rank * sizeof *a) == 0);
}

/* ---- leaves ---- */

int ox_scalar(struct ox *c, enum ap_dtype dtype, double v)
{
    if (c->file->err->msg[0])
        return -1;
    struct ap_attrs *a = ap_build_attrs(&c->b);
    void *data = ap_arena_alloc(c->file->arena, 16);
    bool whole = fabs(v) < 9e18 && floor(v) == v;
    bool fits = ap_dtype_is_float(dtype)
                    ? ap_elem_from_double(dtype, v, data)
                    : whole && ap_elem_from_int(dtype, (int64_t)v, data);
    if (!fits)
        return ox_refuse(c, "the constant %g in %s is not supported yet", v,
                         ap_dtype_name(dtype));
    a->literal = (struct ap_literal){.splat = true, .data = data};
    return ap_build_node(&c->b, AP_OP_CONSTANT, NULL,
                         ap_build_shape(&c->b, dtype, 0, NULL), a, 0, NULL);
}

int ox_full(struct ox *c, enum ap_dtype dtype, int rank, const int64_t *dims, double v)
{
    return ox_broadcast(c, ox_scalar(c, dtype, v), rank, dims, NULL);
}

int ox_full_like(struct ox *c, int x, double v)
{
    struct ap_shape s = ox_shape(c, x);
    return x < 0 ? -1 : ox_full(c, s.dtype, s.rank, s.dims, v);
}

int ox_ints_const(struct ox *c, enum ap_dtype dtype, int rank, const int64_t *dims,
                  const int64_t *v)
{
    if (!dims_ok(c, rank, dims))
        return -1;
    struct ap_shape s = ap_build_shape(&c->b, dtype, rank, dims);
    int64_t n = ap_shape_elems(&s);
    int size = ap_dtype_size(dtype);
    char *data = ap_arena_alloc_n(c->file->arena, (size_t)n + 1, (size_t)size);
    for (int64_t i = 0; i < n; i++)
        if (!ap_elem_from_int(dtype, v[i], data + i * size))
            return ox_refuse(c, "the constant %lld in %s is not supported yet",
                             (long long)v[i], ap_dtype_name(dtype));
    return ap_build_literal(&c->b, s, data);
}

int ox_floats_const(struct ox *c, enum ap_dtype dtype, int rank, const int64_t *dims,
                    const double *v)
{
    if (!dims_ok(c, rank, dims))
        return -1;
    struct ap_shape s = ap_build_shape(&c->b, dtype, rank, dims);
    int64_t n = ap_shape_elems(&s);
    int size = ap_dtype_size(dtype);
    if (!ap_dtype_is_float(dtype))
        return ox_refuse(c, "of %s is not supported yet", ap_dtype_name(dtype));
    char *data = ap_arena_alloc_n(c->file->arena, (size_t)n + 1, (size_t)size);
    for (int64_t i = 0; i < n; i++)
        ap_elem_from_double(dtype, v[i], data + i * size);
    return ap_build_literal(&c->b, s, data);
}

int ox_iota(struct ox *c, enum ap_dtype dtype, int rank, const int64_t *dims, int dim)
{
    if (c->file->err->msg[0] || !dims_ok(c, rank, dims))
        return -1;
    return ap_build_iota(&c->b, ap_build_shape(&c->b, dtype, rank, dims), dim);
}

/* ---- elementwise ---- */

int ox_unary(struct ox *c, enum ap_op op, int x)
{
    return x < 0 ? -1 : ap_build_unary(&c->b, op, x);
}

/* The common dimensions of x and y. */
static bool common(struct ox *c, int x, int y, int *rank, int64_t *dims)
{
    struct ap_shape a = ox_shape(c, x), b = ox_shape(c, y);
    *rank = a.rank > b.rank ? a.rank : b.rank;
    for (int d = 0; d < *rank; d++) {
        int i = d - (*rank - a.rank), k = d - (*rank - b.rank);
        int64_t p = i < 0 ? 1 : a.dims[i], q = k < 0 ? 1 : b.dims[k];
        if (p != q && p != 1 && q != 1) {
            ox_fail(c, "sizes %lld and %lld do not fit", (long long)p, (long long)q);
            return false;
        }
        dims[d] = p == 1 ? q : p;
    }
    return true;
}

/* Brings operands to one dtype (checked) and to common dimensions. */
static bool align(struct ox *c, int *x, int *y)
{
    int rank;
    int64_t dims[AP_MAX_RANK];
    if (*x < 0 || *y < 0)
        return false;
    if (ox_dtype(c, *x) != ox_dtype(c, *y)) {
        ox_fail(c, "operands are %s and %s", ap_dtype_name(ox_dtype(c, *x)),
                ap_dtype_name(ox_dtype(c, *y)));
        return false;
    }
    if (!common(c, *x, *y, &rank, dims))
        return false;
    *x = ox_expand(c, *x, rank, dims);
    *y = ox_expand(c, *y, rank, dims);
    return *x >= 0 && *y >= 0;
}

int ox_bin(struct ox *c, enum ap_op op, int x, int y)
{
    return align(c, &x, &y) ? ap_build_binary(&c->b, op, x, y) : -1;
}

int ox_cmp(struct ox *c, enum ap_direction dir, int x, int y)
{
    return align(c, &x, &y) ? ap_build_compare(&c->b, dir, x, y) : -1;
}

int ox_select(struct ox *c, int pred, int x, int y)
{
    int rank;
    int64_t dims[AP_MAX_RANK];
    if (pred < 0 || !align(c, &x, &y) || !common(c, pred, x, &rank, dims))
        return -1;
    if (ox_dtype(c, pred) != AP_PRED)
        return ox_fail(c, "the condition is %s", ap_dtype_name(ox_dtype(c, pred)));
    pred = ox_expand(c, pred, rank, dims);
    x = ox_expand(c, x, rank, dims);
    y = ox_expand(c, y, rank, dims);
    return pred < 0 || x < 0 || y < 0 ? -1 : ap_build_select(&c->b, pred, x, y);
}

int ox_with(struct ox *c, enum ap_op op, int x, double v)
{
    return ox_bin(c, op, x, ox_full_like(c, x, v));
}

int ox_to(struct ox *c, int x, enum ap_dtype dtype)
{
    if (x < 0)
        return -1;
    enum ap_dtype from = ox_dtype(c, x);
    if (from == dtype)
        return x;
    if (dtype == AP_PRED)
        return ox_cmp(c, AP_NE, x, ox_full_like(c, x, 0));
    return ap_build_convert(&c->b, x, dtype);
}

/* ---- moves ---- */

int ox_broadcast(struct ox *c, int x, int rank, const int64_t *dims, const int64_t *map)
{
    if (x < 0 || !dims_ok(c, rank, dims))
        return -1;
    return rank ? ap_build_broadcast(&c->b, x, rank, dims, map) : x;
}

int ox_expand(struct ox *c, int x, int rank, const int64_t *dims)
{
    if (x < 0 || !dims_ok(c, rank, dims))
        return -1;
    struct ap_shape s = ox_shape(c, x);
    int64_t kept[AP_MAX_RANK], map[AP_MAX_RANK];
    int n = 0;
    if (s.rank > rank)
        return ox_fail(c, "%d dimensions do not broadcast to %d", s.rank, rank);
    if (same_dims(s.rank, s.dims, rank, dims))
        return x;
    for (int d = 0; d < s.rank; d++) {
        int to = d + rank - s.rank;
        if (s.dims[d] != 1 && s.dims[d] != dims[to])
            return ox_fail(c, "size %lld does not broadcast to %lld",
                           (long long)s.dims[d], (long long)dims[to]);
        if (s.dims[d] == dims[to] && s.dims[d] != 1) {
            kept[n] = s.dims[d];
            map[n++] = to;
        }
    }
    if (n < s.rank)
        x = ap_build_reshape(&c->b, x, n, kept);
    return ap_build_broadcast(&c->b, x, rank, dims, map);
}

int ox_along(struct ox *c, int x, int d, int rank, const int64_t *dims)
{
    int64_t map = d;
    if (x < 0)
        return -1;
    struct ap_shape s = ox_shape(c, x);
    if (s.rank != 1 || d >= rank || s.dims[0] != dims[d])
        return ox_fail(c, "expected a vector of %lld elements",
                       (long long)(d < rank ? dims[d] : -1));
    return ox_broadcast(c, x, rank, dims, &map);
}

int ox_reshape(struct ox *c, int x, int rank, const int64_t *dims)
{
    if (x < 0 || !dims_ok(c, rank, dims))
        return -1;
    struct ap_shape s = ox_shape(c, x), to = {.rank = rank, .dims = dims};
    if (same_dims(s.rank, s.dims, rank, dims))
        return x;
    if (ap_shape_elems(&s) != ap_shape_elems(&to))
        return ox_fail(c, "%lld elements do not fit a shape of %lld",
                       (long long)ap_shape_elems(&s), (long long)ap_shape_elems(&to));
    return ap_build_reshape(&c->b, x, rank, dims);
}

int ox_transpose(struct ox *c, int x, const int64_t *perm)
{
    if (x < 0 || !distinct_in(c, ox_rank(c, x), perm, ox_rank(c, x)))
        return -1;
    bool same = true;
    for (int d = 0; d < ox_rank(c, x); d++)
        same = same && perm[d] == d;
    return same ? x : ap_build_transpose(&c->b, x, perm);
}

int ox_move(struct ox *c, int x, int from, int to)
{
    int64_t perm[AP_MAX_RANK];
    int n = 0, rank = ox_rank(c, x);
    if (x < 0)
        return -1;
    for (int d = 0; n < rank; d++) {
        if (n == to)
            perm[n++] = from;
        if (d < rank && d != from && n < rank)
            perm[n++] = d;
    }
    return ox_transpose(c, x, perm);
}

int ox_slice(struct ox *c, int x, int d, int64_t start, int64_t limit, int64_t step)
{
    struct ap_slice_dim slice[AP_MAX_RANK];
    if (x < 0)
        return -1;
    struct ap_shape s = ox_shape(c, x);
    if (d >= s.rank || start < 0 || limit > s.dims[d] || step < 1)
        return ox_fail(c, "slice [%lld, %lld) is outside of the tensor", (long long)start,
                       (long long)limit);
    limit = limit < start ? start : limit;
    if (!start && limit == s.dims[d] && step == 1)
        return x;
    for (int i = 0; i < s.rank; i++)
        slice[i] = (struct ap_slice_dim){0, s.dims[i], 1};
    slice[d] = (struct ap_slice_dim){start, limit, step};
    return ap_build_slice(&c->b, x, slice);
}

int ox_pad(struct ox *c, int x, int value, const struct ap_pad_dim *pad)
{
    int64_t dims[AP_MAX_RANK] = {0};
    bool any = false;
    if (x < 0 || value < 0)
        return -1;
    struct ap_shape s = ox_shape(c, x);
    for (int d = 0; d < s.rank; d++) {
        const struct ap_pad_dim *p = &pad[d];
        int64_t bound = (int64_t)1 << 40;
        if (p->lo < -bound || p->lo > bound || p->hi < -bound || p->hi > bound ||
            p->interior < 0 || p->interior > bound)
            return ox_fail(c, "padding out of range");
        int64_t gaps = ap_mul64(s.dims[d] > 0 ? s.dims[d] - 1 : 0, p->interior);
        dims[d] = gaps > bound ? -1 : s.dims[d] + p->lo + p->hi + gaps;
        any = any || p->lo || p->hi || p->interior;
    }
    if (!dims_ok(c, s.rank, dims))
        return -1;
    return any ? ap_build_pad(&c->b, x, value, pad) : x;
}

int ox_concat(struct ox *c, int n, const int *x, int d)
{
    int64_t dims[AP_MAX_RANK];
    if (n < 1)
        return ox_fail(c, "nothing to concatenate");
    for (int i = 0; i < n; i++)
        if (x[i] < 0)
            return -1;
    struct ap_shape first = ox_shape(c, x[0]);
    if (d >= first.rank)
        return ox_fail(c, "axis %d of %d dimensions", d, first.rank);
    memcpy(dims, first.dims, (size_t)first.rank * sizeof *dims);
    for (int i = 1; i < n; i++) {
        struct ap_shape s = ox_shape(c, x[i]);
        bool fits = s.rank == first.rank && s.dtype == first.dtype;
        for (int k = 0; k < s.rank && fits; k++)
            fits = k == d || s.dims[k] == first.dims[k];
        if (!fits)
            return ox_fail(c, "operand %d does not fit the first", i);
        dims[d] = ap_add64(dims[d], s.dims[d]);
    }
    if (!dims_ok(c, first.rank, dims))
        return -1;
    return n == 1 ? x[0] : ap_build_concat(&c->b, n, x, d);
}

int ox_reverse(struct ox *c, int x, int d)
{
    int64_t dim = d;
    return x < 0 ? -1 : ap_build_reverse(&c->b, x, 1, &dim);
}

/* ---- reductions and contractions ---- */

int ox_reduce(struct ox *c, int x, enum ap_red red, int n, const int64_t *dims, bool keep)
{
    int64_t kept[AP_MAX_RANK];
    if (x < 0 || !distinct_in(c, n, dims, ox_rank(c, x)))
        return -1;
    struct ap_shape s = ox_shape(c, x);
    int y = n ? ap_build_reduce(&c->b, x, red, n, dims) : x;
    if (!keep || !n)
        return y;
    memcpy(kept, s.dims, (size_t)s.rank * sizeof *kept);
    for (int i = 0; i < n; i++)
        kept[dims[i]] = 1;
    return ox_reshape(c, y, s.rank, kept);
}

int ox_reduce1(struct ox *c, int x, enum ap_red red, int d, bool keep)
{
    int64_t dim = d;
    return ox_reduce(c, x, red, 1, &dim, keep);
}

int ox_mean(struct ox *c, int x, int n, const int64_t *dims, bool keep)
{
    struct ap_shape s = ox_shape(c, x);
    int64_t count = 1;
    int sum = ox_reduce(c, x, AP_RED_SUM, n, dims, keep);
    for (int i = 0; i < n && sum >= 0; i++)
        count *= s.dims[dims[i]];
    return ox_with(c, AP_OP_DIVIDE, sum, (double)count);
}

static bool window_ok(struct ox *c, int64_t extent, const struct ap_window_dim *w)
{
    int64_t bound = (int64_t)1 << 24;
    bool ok = w->size > 0 && w->size < bound && w->stride > 0 && w->stride < bound &&
              w->rhs_dilate > 0 && w->rhs_dilate < bound && w->lhs_dilate > 0 &&
              w->lhs_dilate < bound && w->pad_lo > -bound && w->pad_lo < bound &&
              w->pad_hi > -bound && w->pad_hi < bound && extent < ((int64_t)1 << 38);
    if (!ok)
        ox_fail(c, "size, stride, dilation or padding of the window is out of range");
    return ok;
}

int ox_reduce_window(struct ox *c, int x, enum ap_red red,
                     const struct ap_window_dim *window)
{
    if (x < 0)
        return -1;
    struct ap_shape s = ox_shape(c, x);
    for (int d = 0; d < s.rank; d++)
        if (!window_ok(c, s.dims[d], &window[d]))
            return -1;
    return ap_build_reduce_window(&c->b, x, red, window);
}

int ox_conv(struct ox *c, int x, int w, struct ap_attrs *a)
{
    if (x < 0 || w < 0)
        return -1;
    struct ap_shape s = ox_shape(c, x);
    for (int d = 0; d < a->conv.n_spatial; d++)
        if (!window_ok(c, s.dims[a->conv.lhs_spatial[d]], &a->window[d]))
            return -1;
    return ap_build_conv(&c->b, x, w, a);
}

int ox_dot(struct ox *c, int x, int y, const struct ap_dot_dims *of)
{
    if (x < 0 || y < 0)
        return -1;
    struct ap_shape a = ox_shape(c, x), b = ox_shape(c, y);
    bool fits = a.dtype == b.dtype;
    for (int i = 0; i < of->n_batch && fits; i++)
        fits = a.dims[of->x_batch[i]] == b.dims[of->y_batch[i]];
    for (int i = 0; i < of->n_contract && fits; i++)
        fits = a.dims[of->x_contract[i]] == b.dims[of->y_contract[i]];
    if (!fits)
        return ox_fail(c, "the matrices do not fit");
    if (a.rank + b.rank - of->n_batch - 2 * of->n_contract > AP_MAX_RANK)
        return ox_refuse(c, "of this rank is not supported yet");
    return ap_build_dot(&c->b, x, y, of);
}

int ox_product(struct ox *c, int x, int y, int64_t x_dim, int64_t y_dim)
{
    return ox_dot(c, x, y,
                  &(struct ap_dot_dims){
                      .n_contract = 1, .x_contract = &x_dim, .y_contract = &y_dim});
}

int ox_matmul(struct ox *c, int x, int y)
{
    struct ap_shape a = ox_shape(c, x), b = ox_shape(c, y);
    int64_t at[AP_MAX_RANK], dims[AP_MAX_RANK], xd[AP_MAX_RANK], yd[AP_MAX_RANK];
    if (x < 0 || y < 0)
        return -1;
    if (!a.rank || !b.rank)
        return ox_fail(c, "of a scalar");
    int64_t cx = a.rank - 1, cy = b.rank < 2 ? 0 : b.rank - 2;
    if (b.rank <= 2 || a.rank == 1) { /* one product, however many rows */
        int z = ox_product(c, x, y, cx, cy);
        return z;
    }
    int na = a.rank - 2, nb = b.rank - 2, n = na > nb ? na : nb;
    for (int d = 0; d < n; d++) {
        int64_t p = d < n - na ? 1 : a.dims[d - (n - na)];
        int64_t q = d < n - nb ? 1 : b.dims[d - (n - nb)];
        dims[d] = p == 1 ? q : p;
        at[d] = d;
    }
    memcpy(xd, dims, sizeof xd);
    memcpy(yd, dims, sizeof yd);
    xd[n] = a.dims[na];
    xd[n + 1] = a.dims[na + 1];
    yd[n] = b.dims[nb];
    yd[n + 1] = b.dims[nb + 1];
    x = ox_expand(c, x, n + 2, xd);
    y = ox_expand(c, y, n + 2, yd);
    int64_t kx = n + 1, ky = n;
    return ox_dot(c, x, y, &(struct ap_dot_dims){n, at, at, 1, &kx, &ky});
}

/* ---- indexing ---- */

int ox_node(struct ox *c, enum ap_op op, struct ap_shape shape, struct ap_attrs *attrs,
            int n_in, const int *in)
{
    for (int i = 0; i < n_in; i++)
        if (in[i] < 0)
            return -1;
    if (shape.dtype != AP_TUPLE && !dims_ok(c, shape.rank, shape.dims))
        return -1;
    return ap_build_node(&c->b, op, NULL, shape, attrs, n_in, in);
}

int ox_wrap_index(struct ox *c, int indices, int64_t extent)
{
    if (indices < 0)
        return -1;
    enum ap_dtype t = ox_dtype(c, indices);
    if (!ap_dtype_is_int(t))
        return ox_fail(c, "indices are %s", ap_dtype_name(t));
    if (t != AP_S32 && t != AP_S64)
        return indices;
    int below = ox_cmp(c, AP_LT, indices, ox_full_like(c, indices, 0));
    return ox_select(c, below, ox_with(c, AP_OP_ADD, indices, (double)extent), indices);
}

int ox_take(struct ox *c, int x, int indices, int d)
{
    if (x < 0 || indices < 0)
        return -1;
    struct ap_shape s = ox_shape(c, x), i = ox_shape(c, indices);
    struct ap_attrs *a = ap_build_attrs(&c->b);
    int64_t dims[2 * AP_MAX_RANK], offset[AP_MAX_RANK], sizes[AP_MAX_RANK], at = d;
    int rank = 0, n = 0;
    if (s.rank + i.rank - 1 > AP_MAX_RANK)
        return ox_refuse(c, "of this rank is not supported yet");
    for (int k = 0; k < s.rank; k++) {
        sizes[k] = k == d ? 1 : s.dims[k];
        for (int j = 0; j < i.rank && k == d; j++)
            dims[rank++] = i.dims[j];
        if (k == d)
            continue;
        offset[n++] = rank;
        dims[rank++] = s.dims[k];
    }
    a->offset_dims = ap_build_ints(&c->b, n, offset);
    a->collapsed_slice_dims = ap_build_ints(&c->b, 1, &at);
    a->start_index_map = a->collapsed_slice_dims;
    a->index_vector_dim = i.rank;
    a->slice_sizes = ap_build_ints(&c->b, s.rank, sizes);
    int in[2] = {x, indices};
    return ox_node(c, AP_OP_GATHER, ap_build_shape(&c->b, s.dtype, rank, dims), a, 2, in);
}

int ox_take_known(struct ox *c, int x, int d, int64_t n, const int64_t *indices)
{
    return ox_take(c, x, ox_ints_const(c, AP_S32, 1, &n, indices), d);
}

int ox_index_grid(struct ox *c, int indices, int d)
{
    struct ap_shape s = ox_shape(c, indices);
    int64_t dims[AP_MAX_RANK + 1];
    int part[AP_MAX_RANK];
    if (indices < 0 || s.rank == AP_MAX_RANK)
        return indices < 0 ? -1 : ox_refuse(c, "of this rank is not supported yet");
    for (int k = 0; k < s.rank; k++)
        dims[k] = s.dims[k];
    dims[s.rank] = 1;
    for (int k = 0; k < s.rank; k++)
        part[k] = k == d ? ox_reshape(c, indices, s.rank + 1, dims)
                         : ox_iota(c, s.dtype, s.rank + 1, dims, k);
    return ox_concat(c, s.rank, part, s.rank);
}

int ox_gather_elements(struct ox *c, int x, int indices, int d)
{
    int64_t all[AP_MAX_RANK], ones[AP_MAX_RANK];
    struct ap_shape s = ox_shape(c, x), i = ox_shape(c, indices);
    int grid = ox_index_grid(c, indices, d);
    if (grid < 0 || x < 0)
        return -1;
    if (s.rank != i.rank)
        return ox_fail(c, "data and indices differ in rank");
    struct ap_attrs *a = ap_build_attrs(&c->b);
    for (int k = 0; k < s.rank; k++) {
        all[k] = k;
        ones[k] = 1;
        if (k != d && i.dims[k] > s.dims[k])
            return ox_fail(c, "the indices are larger than the data");
    }
    a->collapsed_slice_dims = a->start_index_map = ap_build_ints(&c->b, s.rank, all);
    a->index_vector_dim = s.rank;
    a->slice_sizes = ap_build_ints(&c->b, s.rank, ones);
    int in[2] = {x, grid};
    return ox_node(c, AP_OP_GATHER, ap_build_shape(&c->b, s.dtype, i.rank, i.dims), a, 2,
                   in);
}
