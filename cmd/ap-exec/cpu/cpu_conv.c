/*
 * convolution: im2col and matrix products. The left side is brought to [batch][spatial]
 * [feature] and the right side to [spatial, feature][result feature] per group; blocks of
 * result positions (bounded memory) are unrolled into rows of all window elements and
 * multiplied. Strides, padding of either sign, dilation of both sides, reversal, feature
 * and batch groups, any order of dimensions. bf16 and f16 are accumulated in f32.
 */
#include "cpu/cpu_state.h"

#include <limits.h>
#include <string.h>

/* Elements of the rows that are unrolled at once: bounds the scratch memory, 4 MB in f32.
 */
#define BLOCK_ELEMS (1 << 20)

/* Rows [r0, r0 + n) of the unrolled left side, of group g. */
static void unroll(const struct conv *c, const char *lhs, char *cols, int64_t g,
                   int64_t r0, int64_t n)
{
    const int size = cpu_kind_size(c->kind), ns = c->n_spatial;
    const int64_t first = c->batch_groups ? 0 : g * c->ci;
    int64_t o[AP_MAX_RANK] = {0}, rest = r0;
    for (int d = ns - 1; d >= 0; d--) {
        o[d] = rest % c->res[d];
        rest /= c->res[d];
    }
    int64_t b = rest;
    for (int64_t r = 0; r < n; r++) {
        int64_t k[AP_MAX_RANK] = {0};
        const int64_t image = c->batch_groups ? g * c->batch + b : b;
        for (int64_t i = 0; i < c->window; i++) {
            int64_t at = image;
            bool inside = true;
            for (int d = 0; d < ns; d++) {
                const struct ap_window_dim *w = &c->w[d];
                const int64_t kd = w->reversal ? w->size - 1 - k[d] : k[d];
                const int64_t p = o[d] * w->stride + kd * w->rhs_dilate - w->pad_lo;
                inside &=
                    p >= 0 && p % w->lhs_dilate == 0 && p / w->lhs_dilate < c->in[d];
                at = at * c->in[d] + p / w->lhs_dilate;
            }
            const size_t bytes = (size_t)(c->ci * size);
            if (inside)
                memcpy(cols, lhs + (at * c->features + first) * size, bytes);
            else
                memset(cols, 0, bytes);
            cols += bytes;
            for (int d = ns - 1; d >= 0 && ++k[d] == c->w[d].size; d--)
                k[d] = 0;
        }
        int d = ns - 1;
        for (; d >= 0 && ++o[d] == c->res[d]; d--)
            o[d] = 0;
        b += d < 0;
    }
}

static const char *side(struct exec *x, const struct conv *c, const char *src,
                        int64_t half, int64_t to, int64_t elems, const struct box *box)
{
    if (half >= 0) {
        cpu_load(x->scratch + half, src, 1, c->dtype, elems);
        src = x->scratch + half;
    }
    box_copy(box, x->scratch + to, src, cpu_kind_size(c->kind));
    return x->scratch + to;
}

static void conv_run(struct exec *x, void *state)
{
    const struct conv *c = state;
    const int size = cpu_kind_size(c->kind);
    const char *lhs =
        side(x, c, c->lhs, c->lhs_half, c->lhs_at, c->lhs_elems, &c->lhs_box);
    const char *rhs =
        side(x, c, c->rhs, c->rhs_half, c->rhs_at, c->rhs_elems, &c->rhs_box);
    char *cols = x->scratch + c->cols_at, *out = x->scratch + c->out_at;
    const int64_t ld = c->co * c->n_groups;
    for (int64_t g = 0; g < c->n_groups; g++)
        for (int64_t r = 0; r < c->rows; r += c->block_rows) {
            const int64_t n = c->rows - r < c->block_rows ? c->rows - r : c->block_rows;
            unroll(c, lhs, cols, g, r, n);
            const struct gemm gemm = {.kind = c->kind,
                                      .m = n,
                                      .n = c->co,
                                      .k = c->cols,
                                      .lda = c->cols,
                                      .ldb = c->co,
                                      .ldc = ld};
            cpu_gemm(&gemm, cols, rhs + g * c->cols * c->co * size,
                     out + (r * ld + g * c->co) * size);
        }
    if (c->half_at < 0) {
        box_copy(&c->out_box, c->out, out, size);
        return;
    }
    box_copy(&c->out_box, x->scratch + c->half_at, out, size);
    cpu_store(c->out, 1, x->scratch + c->half_at, c->dtype, c->out_elems);
}

/* The three permutations: dimensions from major to minor of the packed form. */
static void conv_boxes(struct conv *c, const struct ap_conv_dims *t,
                       const struct ap_shape *ls, const struct ap_shape *rs,
                       const struct ap_shape *os)
{
    int64_t l[AP_MAX_RANK], r[AP_MAX_RANK], o[AP_MAX_RANK];
    cpu_strides(ls, l);
    cpu_strides(rs, r);
    cpu_strides(os, o);
    int64_t at = 1, oat = 1;
    box_add(&c->lhs_box, c->features, l[t->lhs_feature], at);
    at *= c->features;
    const int64_t of = os->dims[t->out_feature];
    box_add(&c->out_box, of, oat, o[t->out_feature]);
    oat *= of;
    for (int d = c->n_spatial - 1; d >= 0; d--) {
        box_add(&c->lhs_box, c->in[d], l[t->lhs_spatial[d]], at);
        at *= c->in[d];
        box_add(&c->out_box, c->res[d], oat, o[t->out_spatial[d]]);
        oat *= c->res[d];
    }
    box_add(&c->lhs_box, ls->dims[t->lhs_batch], l[t->lhs_batch], at);
    box_add(&c->out_box, os->dims[t->out_batch], oat, o[t->out_batch]);
    /* right side: [group][spatial][in][out of group] */
    at = 1;
    box_add(&c->rhs_box, c->co, r[t->rhs_out], at);
    at *= c->co;
    box_add(&c->rhs_box, c->ci, r[t->rhs_in], at);
    at *= c->ci;
    for (int d = c->n_spatial - 1; d >= 0; d--) {
        box_add(&c->rhs_box, c->w[d].size, r[t->rhs_spatial[d]], at);
        at *= c->w[d].size;
    }
    box_add(&c->rhs_box, c->n_groups, c->co * r[t->rhs_out], at);
    box_finish(&c->lhs_box);
    box_finish(&c->rhs_box);
    box_finish(&c->out_box);
}

static void conv_scratch(struct exec *x, struct conv *c)
{
    const int size = cpu_kind_size(c->kind);
    const bool half = !cpu_is_plain(c->dtype);
    int64_t at = 0;
    c->lhs_half = half ? exec_take(&at, c->lhs_elems * size) : -1;
    c->rhs_half = half ? exec_take(&at, c->rhs_elems * size) : -1;
    c->half_at = half ? exec_take(&at, c->out_elems * size) : -1;
    c->lhs_at = exec_take(&at, c->lhs_elems * size);
    c->rhs_at = exec_take(&at, c->rhs_elems * size);
    c->out_at = exec_take(&at, c->out_elems * size);
    c->block_rows = c->cols ? BLOCK_ELEMS / c->cols : c->rows;
    c->block_rows = c->block_rows < 1 ? 1 : c->block_rows;
    c->block_rows = c->block_rows > c->rows ? c->rows : c->block_rows;
    c->cols_at = exec_take(&at, c->block_rows * c->cols * size);
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
    if (c->rows > INT_MAX || c->cols > INT_MAX || c->co * c->n_groups > INT_MAX)
        return exec_unsupported(x, v, err, "of this size");
    conv_boxes(c, t, ls, rs, &v->shape);
    conv_scratch(x, c);
    call->run = conv_run;
    call->state = c;
    return 0;
}
