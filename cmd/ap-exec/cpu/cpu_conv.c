/*
 * convolution by matrix products. The left side is unrolled (im2col): its rows are result
 * positions and its columns window elements, so that
 *
 *     result[batch, o][f] = sum over (k, i) of lhs[batch][o * stride + k - pad][i] rhs[k,
 * i][f].
 *
 * The right side is the matrix [k, i][f]. The left side is unrolled by blocks of rows
 * (bounded memory): all threads unroll a block, and then share its product. The result is
 * written in place where it lies in that order.
 * Strides, padding of either sign, dilation of both sides, reversal, feature and batch
 * groups, any order of dimensions. bf16 and f16 are accumulated in f32.
 */
#include "cpu/cpu_state.h"

#include <limits.h>
#include <string.h>

/* Elements of the rows that are unrolled at once: bounds the scratch memory, 4 MB in f32.
 */
#define BLOCK_ELEMS (1 << 20)
/* Elements of rows that one task unrolls of such a block. */
#define TASK_ELEMS (1 << 15)

/* ---- unrolling ---- */

/* The columns of one row and all but the last spatial dimension's: n positions from p on,
 * `step` apart, of the last one. at: the elements of position 0; NULL: all are outside.
 */
static char *unroll_last(const struct unrolled *u, const char *at, int64_t p, char *to,
                         int size)
{
    const int d = u->n_spatial - 1;
    const int64_t n = u->col_n[d], bytes = u->inner * size;
    if (at && u->col_step[d] == 1 && u->dilate[d] == 1 && u->inner == u->pixel) {
        int64_t lo = p < 0 ? -p : 0, hi = u->in[d] - p;
        lo = lo < n ? lo : n;
        hi = hi < lo ? lo : hi < n ? hi : n;
        memset(to, 0, (size_t)(lo * bytes));
        if (hi > lo)
            memcpy(to + lo * bytes, at + (p + lo) * bytes, (size_t)((hi - lo) * bytes));
        memset(to + hi * bytes, 0, (size_t)((n - hi) * bytes));
        return to + n * bytes;
    }
    for (int64_t c = 0; c < n; c++, p += u->col_step[d], to += bytes) {
        const bool inside =
            at && p >= 0 && p % u->dilate[d] == 0 && p / u->dilate[d] < u->in[d];
        if (inside)
            memcpy(to, at + p / u->dilate[d] * u->pixel * size, (size_t)bytes);
        else
            memset(to, 0, (size_t)bytes);
    }
    return to;
}

/* One row, of the image at src and the row position r. */
static void unroll_row(const struct unrolled *u, const char *src, const int64_t *r,
                       char *to, int size)
{
    const int last = u->n_spatial - 1;
    int64_t c[AP_MAX_RANK] = {0};
    if (last < 0) {
        memcpy(to, src, (size_t)(u->inner * size));
        return;
    }
    for (bool more = true; more;) {
        int64_t at = 0;
        bool inside = true;
        for (int d = 0; d < last; d++) {
            const int64_t p =
                r[d] * u->row_step[d] + c[d] * u->col_step[d] + u->offset[d];
            inside &= p >= 0 && p % u->dilate[d] == 0 && p / u->dilate[d] < u->in[d];
            at = at * u->in[d] + p / u->dilate[d];
        }
        const char *pixels = src + at * u->in[last] * u->pixel * size;
        to = unroll_last(u, inside ? pixels : NULL,
                         r[last] * u->row_step[last] + u->offset[last], to, size);
        more = false;
        for (int d = last - 1; d >= 0 && !more; d--) {
            more = ++c[d] < u->col_n[d];
            c[d] = more ? c[d] : 0;
        }
    }
}

struct unrolling {
    const struct unrolled *u;
    const char *lhs;
    char *cols;
    int64_t from, n, each; /* rows from .. from + n - 1, shared by the tasks */
    int size;
};

static void unroll_rows(void *ctx, int64_t task, int thread)
{
    (void)thread;
    const struct unrolling *w = ctx;
    const struct unrolled *u = w->u;
    const int64_t lo = task * w->each, left = w->n - lo;
    const int64_t hi = lo + (left < w->each ? left : w->each);
    int64_t r[AP_MAX_RANK] = {0}, outer = w->from + lo, image = u->pixel;
    for (int d = u->n_spatial - 1; d >= 0; d--) {
        r[d] = outer % u->row_n[d];
        outer /= u->row_n[d];
        image *= u->in[d];
    }
    for (int64_t i = lo; i < hi; i++) {
        unroll_row(u, w->lhs + outer * image * w->size, r,
                   w->cols + i * u->n_cols * w->size, w->size);
        int d = u->n_spatial - 1;
        for (; d >= 0 && ++r[d] == u->row_n[d]; d--)
            r[d] = 0;
        outer += d < 0;
    }
}

static void unroll(const struct unrolled *u, const char *lhs, char *cols, int64_t from,
                   int64_t n, int size)
{
    struct unrolling w = {u, lhs, cols, from, n, TASK_ELEMS / (u->n_cols + 1) + 1, size};
    cpu_each(ap_ceil_div(n, w.each), unroll_rows, &w);
}

/* ---- products ---- */

static const char *side(struct exec *x, const struct conv *c, const char *src,
                        int64_t half, int64_t to, int64_t elems, const struct box *box)
{
    if (half >= 0) {
        cpu_load(x->scratch + half, src, 1, c->dtype, elems);
        src = x->scratch + half;
    }
    if (to < 0)
        return src;
    box_copy(box, x->scratch + to, src, cpu_kind_size(c->kind));
    return x->scratch + to;
}

/* Group g of the convolution; lhs: the group's. */
static void run_group(struct exec *x, const struct conv *c, int64_t g, const char *lhs,
                      const char *rhs, char *out)
{
    const struct unrolled *u = &c->unrolled;
    const int size = cpu_kind_size(c->kind);
    const int64_t ld = c->co * c->n_groups;
    char *cols = x->scratch + c->cols_at;
    struct gemm gemm = {.kind = c->kind,
                        .n = c->co,
                        .k = u->n_cols,
                        .lda = u->as_it_lies ? u->pixel : u->n_cols,
                        .ldb = c->co,
                        .ldc = ld};
    for (int64_t r = 0; r < u->n_rows; r += c->block_rows) {
        const int64_t left = u->n_rows - r;
        gemm.m = left < c->block_rows ? left : c->block_rows;
        if (!u->as_it_lies)
            unroll(u, lhs, cols, r, gemm.m, size);
        cpu_gemm(&gemm, u->as_it_lies ? lhs + r * u->pixel * size : cols,
                 rhs + g * u->n_cols * c->co * size, out + (r * ld + g * c->co) * size);
    }
}

static void conv_run(struct exec *x, void *state)
{
    const struct conv *c = state;
    const int size = cpu_kind_size(c->kind);
    const char *lhs =
        side(x, c, c->lhs, c->lhs_half, c->lhs_at, c->lhs_elems, &c->lhs_box);
    const char *rhs =
        side(x, c, c->rhs, c->rhs_half, c->rhs_at, c->rhs_elems, &c->rhs_box);
    char *out = c->out_at >= 0 ? x->scratch + c->out_at : c->out;
    if (c->out_elems == 0)
        return;
    for (int64_t g = 0; g < c->n_groups; g++) {
        /* batch groups follow each other, feature groups lie beside each other */
        const int64_t step = c->batch_groups ? c->lhs_elems / c->n_groups : c->ci;
        run_group(x, c, g, lhs + g * step * size, rhs, out);
    }
    if (c->out_direct && c->half_at < 0)
        return;
    if (c->half_at < 0) {
        box_copy(&c->out_box, c->out, out, size);
        return;
    }
    box_copy(&c->out_box, x->scratch + c->half_at, out, size);
    cpu_store(c->out, 1, x->scratch + c->half_at, c->dtype, c->out_elems);
}

/* ---- preparing ---- */

/* The next dimension, from minor to major, of an operand that is brought into order. */
static void add_in(struct box *b, int64_t n, int64_t stride, int64_t *at)
{
    box_add(b, n, stride, *at);
    *at *= n;
}

static void add_out(struct box *b, int64_t n, int64_t stride, int64_t *at)
{
    box_add(b, n, *at, stride);
    *at *= n;
}

static bool is_same(const struct box *b)
{
    return b->rank == 0 || (b->rank == 1 && b->src[0] == 1 && b->dst[0] == 1);
}

/* The three permutations. */
static void conv_boxes(struct conv *c, const struct ap_conv_dims *t,
                       const struct ap_shape *ls, const struct ap_shape *rs,
                       const struct ap_shape *os)
{
    int64_t l[AP_MAX_RANK], r[AP_MAX_RANK], o[AP_MAX_RANK], lat = 1, rat = 1, oat = 1;
    cpu_strides(ls, l);
    cpu_strides(rs, r);
    cpu_strides(os, o);
    add_in(&c->lhs_box, ls->dims[t->lhs_feature], l[t->lhs_feature], &lat);
    add_out(&c->out_box, os->dims[t->out_feature], o[t->out_feature], &oat);
    add_in(&c->rhs_box, c->co, r[t->rhs_out], &rat);
    add_in(&c->rhs_box, c->ci, r[t->rhs_in], &rat);
    for (int d = c->n_spatial - 1; d >= 0; d--) {
        add_in(&c->lhs_box, c->in[d], l[t->lhs_spatial[d]], &lat);
        add_out(&c->out_box, c->res[d], o[t->out_spatial[d]], &oat);
        add_in(&c->rhs_box, c->w[d].size, r[t->rhs_spatial[d]], &rat);
    }
    add_in(&c->lhs_box, ls->dims[t->lhs_batch], l[t->lhs_batch], &lat);
    add_out(&c->out_box, os->dims[t->out_batch], o[t->out_batch], &oat);
    add_in(&c->rhs_box, c->n_groups, c->co * r[t->rhs_out], &rat);
    box_finish(&c->lhs_box);
    box_finish(&c->rhs_box);
    box_finish(&c->out_box);
    c->lhs_direct = is_same(&c->lhs_box);
    c->rhs_direct = is_same(&c->rhs_box);
    c->out_direct = is_same(&c->out_box);
}

static void set_unrolled(struct conv *c)
{
    struct unrolled *u = &c->unrolled;
    u->n_spatial = c->n_spatial;
    u->inner = c->ci;
    u->pixel = c->features;
    u->n_rows = c->batch;
    u->n_cols = u->inner;
    u->as_it_lies = true;
    for (int d = 0; d < c->n_spatial; d++) {
        const struct ap_window_dim *w = &c->w[d];
        const int64_t k_step = w->reversal ? -w->rhs_dilate : w->rhs_dilate;
        u->offset[d] = (w->reversal ? (w->size - 1) * w->rhs_dilate : 0) - w->pad_lo;
        u->row_n[d] = c->res[d];
        u->row_step[d] = w->stride;
        u->col_n[d] = w->size;
        u->col_step[d] = k_step;
        u->in[d] = c->in[d];
        u->dilate[d] = w->lhs_dilate;
        u->n_rows *= u->row_n[d];
        u->n_cols *= u->col_n[d];
        u->as_it_lies &= u->col_n[d] == 1 && u->row_n[d] == u->in[d] &&
                         u->row_step[d] == 1 && u->offset[d] == 0 && u->dilate[d] == 1;
    }
}

static void conv_scratch(struct exec *x, struct conv *c)
{
    const int size = cpu_kind_size(c->kind);
    const bool half = !cpu_is_plain(c->dtype), host = x->backend->on_host;
    const struct unrolled *u = &c->unrolled;
    int64_t at = 0;
    c->block_rows = u->n_cols ? BLOCK_ELEMS / u->n_cols : u->n_rows;
    c->block_rows = c->block_rows < 1 ? 1 : c->block_rows;
    if (u->as_it_lies || c->block_rows > u->n_rows)
        c->block_rows = u->n_rows;
    c->lhs_half = half ? exec_take(&at, c->lhs_elems * size) : -1;
    c->rhs_half = half ? exec_take(&at, c->rhs_elems * size) : -1;
    c->half_at = half ? exec_take(&at, c->out_elems * size) : -1;
    c->lhs_at = c->lhs_direct && host ? -1 : exec_take(&at, c->lhs_elems * size);
    c->rhs_at = c->rhs_direct && host ? -1 : exec_take(&at, c->rhs_elems * size);
    c->out_at = c->out_direct && !half && host ? -1 : exec_take(&at, c->out_elems * size);
    c->cols_at = u->as_it_lies ? 0 : exec_take(&at, c->block_rows * u->n_cols * size);
    exec_need_scratch(x, at);
}

int cpu_conv_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_conv_dims *t = &v->attrs->conv;
    const struct ap_shape *ls = &call_in(x, v, 0)->shape, *rs = &call_in(x, v, 1)->shape;
    struct conv *c = AP_NEW(x->arena, struct conv);
    c->dtype = v->shape.dtype;
    c->kind = cpu_kind(c->dtype);
    if (c->kind == CPU_C64)
        return exec_unsupported(x, v, err, ap_dtype_name(c->dtype));
    if (c->kind == CPU_N_KINDS || ls->dtype != c->dtype || rs->dtype != c->dtype)
        return exec_unsupported(x, v, err, "of these element types");
    c->lhs = x->value[v->in[0]];
    c->rhs = x->value[v->in[1]];
    c->out = x->value[call->nodes[0]];
    c->lhs_elems = ap_shape_elems(ls);
    c->rhs_elems = ap_shape_elems(rs);
    c->out_elems = ap_shape_elems(&v->shape);
    c->batch_groups = v->attrs->batch_group_count > 1;
    c->n_groups =
        c->batch_groups ? v->attrs->batch_group_count : v->attrs->feature_group_count;
    c->n_groups = c->n_groups < 1 ? 1 : c->n_groups;
    if (c->batch_groups && v->attrs->feature_group_count > 1)
        return exec_unsupported(x, v, err,
                                "with feature groups and batch groups at once");
    c->n_spatial = t->n_spatial;
    c->features = ls->dims[t->lhs_feature];
    c->ci = rs->dims[t->rhs_in];
    c->co = rs->dims[t->rhs_out] / c->n_groups;
    c->batch = v->shape.dims[t->out_batch];
    c->rows = c->batch;
    c->window = 1;
    for (int d = 0; d < c->n_spatial; d++) {
        c->w[d] = v->attrs->window[d];
        c->in[d] = ls->dims[t->lhs_spatial[d]];
        c->res[d] = v->shape.dims[t->out_spatial[d]];
        c->rows *= c->res[d];
        c->window *= c->w[d].size;
    }
    c->cols = c->window * c->ci;
    conv_boxes(c, t, ls, rs, &v->shape);
    set_unrolled(c);
    if (c->unrolled.n_rows > INT_MAX || c->unrolled.n_cols > INT_MAX ||
        c->co * c->n_groups > INT_MAX)
        return exec_unsupported(x, v, err, "of this size");
    conv_scratch(x, c);
    call->run = conv_run;
    call->state = c;
    return 0;
}
