/*
 * convolution by matrix products. The left side is unrolled (im2col): its rows are result
 * positions and its columns window elements, so that
 *
 *     result[batch, o][f] = sum over (k, i) of lhs[batch][o * stride + k - pad][i] rhs[k,
 * i][f].
 *
 * Three ways, all of which write the result in place where it lies in that order:
 * - CONV_RESULTS: the right side as the matrix [k, i][f], by blocks of rows of the left
 *   side (bounded memory).
 * - CONV_OFFSETS: the gradient of the input has a kernel that lies as [k][f][i]; where
 *   there are fewer result positions than features, a product per offset k, of a
 *   transposed matrix each, is cheaper than bringing the kernel to the other order.
 * - CONV_SUMS: the gradient of the kernel contracts images and positions (i, k), and its
 *   left side lies as [i][position][batch]. There the sum is over the unrolled rows:
 *   result[o, batch][f] = sum over rows (i, k) of cols[(i, k)][o, batch] rhs[(i, k)][f].
 * Blocks of unrolled rows are tasks of the threads wherever the sizes allow it, so that a
 * block stays in the cache of the thread that unrolled and multiplies it: CONV_RESULTS
 * with many rows, and CONV_SUMS with results so small that every task can have sums of
 * its own, which are added up at the end. Otherwise all threads unroll a block, and then
 * share its product. How many tasks there are follows from the sizes alone.
 * Strides, padding of either sign, dilation of both sides, reversal, feature and batch
 * groups, any order of dimensions. bf16 and f16 are accumulated in f32.
 */
#include "cpu/cpu_state.h"

#include <limits.h>
#include <string.h>

/* Elements of the rows that all threads unroll at once, and of the sums of all tasks:
 * bounds the scratch memory, 4 MB in f32. */
#define BLOCK_ELEMS (1 << 20)
/* Elements of rows that one task unrolls of such a block. */
#define TASK_ELEMS (1 << 15)
/* Elements of a block that one task unrolls and multiplies: 1 MB in f32, of the 1 to 2 MB
 * of a core's second-level cache. */
#define OWN_ELEMS (1 << 18)
/* Rows of such a block at least: BLAS rearranges the other side once for each. */
#define LEAST_ROWS 128
/* Tasks with sums of their own at most. */
#define MOST_SUMS 8
/* Elements of sums that a task adds up. */
#define ADD_ELEMS (16 * CPU_TILE)

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

/* One group of a convolution as its tasks see it. */
struct products {
    struct exec *x;
    const struct conv *c;
    int64_t g;                    /* the group */
    const char *lhs, *rhs, *cols; /* lhs: the group's */
    char *out;
};

/* Rows r .. r + n - 1, unrolled at cols with row length lda, times the right side; sums:
 * where CONV_SUMS adds up; first: there is nothing yet. */
static void multiply(const struct products *p, const char *cols, int64_t lda, int64_t r,
                     int64_t n, char *sums, bool first)
{
    const struct conv *c = p->c;
    const int size = cpu_kind_size(c->kind);
    const int64_t ld = c->co * c->n_groups;
    void (*product)(const struct gemm *g, const void *a, const void *b, void *to) =
        c->n_tasks ? cpu_gemm_whole : cpu_gemm;
    struct gemm gemm = {.kind = c->kind, .n = c->co, .ldb = c->co, .ldc = ld, .lda = lda};
    switch (c->way) {
    case CONV_RESULTS:
        gemm.m = n, gemm.k = c->unrolled.n_cols;
        product(&gemm, cols, p->rhs + p->g * c->unrolled.n_cols * c->co * size,
                p->out + (r * ld + p->g * c->co) * size);
        break;
    case CONV_OFFSETS:
        gemm.m = n, gemm.k = gemm.ldb = c->ci, gemm.tb = true;
        for (int64_t k = 0; k < c->window; k++, gemm.add = true)
            product(&gemm, cols + k * c->ci * size, p->rhs + k * c->ci * c->co * size,
                    p->out + r * ld * size);
        break;
    case CONV_SUMS:
        gemm.m = c->unrolled.n_cols, gemm.k = n, gemm.ta = true, gemm.add = !first;
        product(&gemm, cols, p->rhs + r * c->co * size, sums);
        break;
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Blocks that all threads share. */
static void run_shared(const struct products *p)
{
    const struct conv *c = p->c;
    const struct unrolled *u = &c->unrolled;
    const int size = cpu_kind_size(c->kind);
    char *cols = p->x->scratch + c->cols_at;
    for (int64_t r = 0; r < u->n_rows; r += c->block_rows) {
        const int64_t n = least(u->n_rows - r, c->block_rows);
        if (!u->as_it_lies)
            unroll(u, p->lhs, cols, r, n, size);
        multiply(p, u->as_it_lies ? p->lhs + r * u->pixel * size : cols,
                 u->as_it_lies ? u->pixel : u->n_cols, r, n, p->out, r == 0);
    }
}

/* The blocks of one task, neighbours of each other. */
static void run_task(void *ctx, int64_t task, int thread)
{
    const struct products *p = ctx;
    const struct conv *c = p->c;
    const struct unrolled *u = &c->unrolled;
    const int size = cpu_kind_size(c->kind);
    const int64_t n_blocks = ap_ceil_div(u->n_rows, c->block_rows);
    const int64_t from = n_blocks * task / c->n_tasks * c->block_rows;
    const int64_t end = n_blocks * (task + 1) / c->n_tasks * c->block_rows;
    char *cols = p->x->scratch + c->cols_at + thread * c->cols_bytes;
    char *sums = task == 0 ? p->out
                           : p->x->scratch + c->sums_at +
                                 (task - 1) * exec_room(u->n_cols * c->co * size);
    for (int64_t r = from; r < end && r < u->n_rows; r += c->block_rows) {
        const int64_t n = least(u->n_rows - r, c->block_rows);
        struct unrolling w = {u, p->lhs, cols, r, n, n, size};
        unroll_rows(&w, 0, thread);
        multiply(p, cols, u->n_cols, r, n, sums, r == from);
    }
}

/* The sums of all tasks into those of the first, in order. */
static void add_sums(void *ctx, int64_t task, int thread)
{
    (void)thread;
    static const int one[3] = {1, 1, 1};
    const struct products *p = ctx;
    const struct conv *c = p->c;
    const int size = cpu_kind_size(c->kind);
    const int64_t n = c->unrolled.n_cols * c->co, at = task * ADD_ELEMS;
    const enum ap_dtype dtype = cpu_is_plain(c->dtype) ? c->dtype : AP_F32;
    cpu_fn *add = cpu_op_find(AP_OP_ADD, AP_EQ, dtype, dtype);
    char *to = p->out + at * size;
    for (int64_t t = 1; t < c->n_tasks; t++) {
        const char *more =
            p->x->scratch + c->sums_at + (t - 1) * exec_room(n * size) + at * size;
        add(to, to, more, more, one, least(n - at, ADD_ELEMS));
    }
}

static void conv_run(struct exec *x, void *state)
{
    const struct conv *c = state;
    const struct unrolled *u = &c->unrolled;
    const int size = cpu_kind_size(c->kind);
    const char *lhs =
        side(x, c, c->lhs, c->lhs_half, c->lhs_at, c->lhs_elems, &c->lhs_box);
    const char *rhs =
        side(x, c, c->rhs, c->rhs_half, c->rhs_at, c->rhs_elems, &c->rhs_box);
    struct products p = {.x = x, .c = c, .rhs = rhs};
    p.out = c->out_at >= 0 ? x->scratch + c->out_at : c->out;
    if (c->out_elems == 0)
        return;
    if (c->way == CONV_SUMS && u->n_rows == 0)
        memset(p.out, 0, (size_t)(c->out_elems * size));
    for (p.g = 0; p.g < c->n_groups; p.g++) {
        /* batch groups follow each other, feature groups lie beside each other */
        const int64_t step = c->batch_groups ? c->lhs_elems / c->n_groups : c->ci;
        p.lhs = lhs + p.g * step * size;
        if (!c->n_tasks) {
            run_shared(&p);
            continue;
        }
        cpu_each(c->n_tasks, run_task, &p);
        if (c->way == CONV_SUMS && c->n_tasks > 1)
            cpu_each(ap_ceil_div(u->n_cols * c->co, ADD_ELEMS), add_sums, &p);
    }
    if (c->out_direct && c->half_at < 0)
        return;
    if (c->half_at < 0) {
        box_copy(&c->out_box, c->out, p.out, size);
        return;
    }
    box_copy(&c->out_box, x->scratch + c->half_at, p.out, size);
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

/* The three permutations, as c->way wants them. */
static void conv_boxes(struct conv *c, const struct ap_conv_dims *t,
                       const struct ap_shape *ls, const struct ap_shape *rs,
                       const struct ap_shape *os)
{
    const bool sums = c->way == CONV_SUMS, offsets = c->way == CONV_OFFSETS;
    const int lhs_minor = sums ? t->lhs_batch : t->lhs_feature;
    const int lhs_major = sums ? t->lhs_feature : t->lhs_batch;
    int64_t l[AP_MAX_RANK], r[AP_MAX_RANK], o[AP_MAX_RANK], lat = 1, rat = 1, oat = 1;
    cpu_strides(ls, l);
    cpu_strides(rs, r);
    cpu_strides(os, o);
    c->lhs_box = c->rhs_box = c->out_box = (struct box){0};
    add_in(&c->lhs_box, ls->dims[lhs_minor], l[lhs_minor], &lat);
    add_out(&c->out_box, os->dims[t->out_feature], o[t->out_feature], &oat);
    if (sums)
        add_out(&c->out_box, os->dims[t->out_batch], o[t->out_batch], &oat);
    if (offsets)
        add_in(&c->rhs_box, c->ci, r[t->rhs_in], &rat);
    add_in(&c->rhs_box, c->co, r[t->rhs_out], &rat);
    if (c->way == CONV_RESULTS)
        add_in(&c->rhs_box, c->ci, r[t->rhs_in], &rat);
    for (int d = c->n_spatial - 1; d >= 0; d--) {
        add_in(&c->lhs_box, c->in[d], l[t->lhs_spatial[d]], &lat);
        add_out(&c->out_box, c->res[d], o[t->out_spatial[d]], &oat);
        add_in(&c->rhs_box, c->w[d].size, r[t->rhs_spatial[d]], &rat);
    }
    add_in(&c->lhs_box, ls->dims[lhs_major], l[lhs_major], &lat);
    if (!sums)
        add_out(&c->out_box, os->dims[t->out_batch], o[t->out_batch], &oat);
    if (sums)
        add_in(&c->rhs_box, c->ci, r[t->rhs_in], &rat);
    else
        add_in(&c->rhs_box, c->n_groups, c->co * r[t->rhs_out], &rat);
    box_finish(&c->lhs_box);
    box_finish(&c->rhs_box);
    box_finish(&c->out_box);
    c->lhs_direct = is_same(&c->lhs_box);
    c->rhs_direct = is_same(&c->rhs_box);
    c->out_direct = is_same(&c->out_box);
}

/* Another backend (cuda/) has ways of its own and wants CONV_RESULTS. */
static void choose_way(const struct exec *x, struct conv *c, const struct ap_conv_dims *t,
                       const struct ap_shape *ls, const struct ap_shape *rs,
                       const struct ap_shape *os)
{
    struct conv other = *c;
    conv_boxes(c, t, ls, rs, os);
    if (!x->backend->on_host || c->n_groups > 1)
        return;
    other.way = CONV_SUMS;
    conv_boxes(&other, t, ls, rs, os);
    if (other.lhs_direct && !c->lhs_direct) {
        *c = other;
        return;
    }
    other.way = CONV_OFFSETS;
    conv_boxes(&other, t, ls, rs, os);
    if (other.rhs_direct && !c->rhs_direct && c->rows < c->ci)
        *c = other;
}

static void set_unrolled(struct conv *c)
{
    struct unrolled *u = &c->unrolled;
    const bool sums = c->way == CONV_SUMS;
    u->n_spatial = c->n_spatial;
    u->inner = sums ? c->batch : c->ci;
    u->pixel = sums ? c->batch : c->features;
    u->n_rows = sums ? c->ci : c->batch;
    u->n_cols = u->inner;
    u->as_it_lies = true;
    for (int d = 0; d < c->n_spatial; d++) {
        const struct ap_window_dim *w = &c->w[d];
        const int64_t k_step = w->reversal ? -w->rhs_dilate : w->rhs_dilate;
        u->offset[d] = (w->reversal ? (w->size - 1) * w->rhs_dilate : 0) - w->pad_lo;
        u->row_n[d] = sums ? w->size : c->res[d];
        u->row_step[d] = sums ? k_step : w->stride;
        u->col_n[d] = sums ? c->res[d] : w->size;
        u->col_step[d] = sums ? w->stride : k_step;
        u->in[d] = c->in[d];
        u->dilate[d] = w->lhs_dilate;
        u->n_rows *= u->row_n[d];
        u->n_cols *= u->col_n[d];
        u->as_it_lies &= u->col_n[d] == 1 && u->row_n[d] == u->in[d] &&
                         u->row_step[d] == 1 && u->offset[d] == 0 && u->dilate[d] == 1;
    }
}

/* Whether blocks of rows are tasks, and how many rows a block has: a power of two blocks
 * of equal length, so that threads have equally many. */
static void choose_blocks(const struct exec *x, struct conv *c)
{
    const struct unrolled *u = &c->unrolled;
    const int64_t sums = u->n_cols * c->co;
    int64_t n_blocks = 1, n_tasks = 1;
    while (u->n_rows / (2 * n_blocks) >= LEAST_ROWS &&
           u->n_rows / n_blocks * u->n_cols > OWN_ELEMS + OWN_ELEMS / 4)
        n_blocks *= 2;
    if (c->way == CONV_RESULTS)
        n_tasks = n_blocks;
    while (c->way == CONV_SUMS && n_tasks < MOST_SUMS && 2 * n_tasks <= n_blocks &&
           (2 * n_tasks - 1) * sums <= BLOCK_ELEMS)
        n_tasks *= 2;
    c->block_rows = u->n_cols ? BLOCK_ELEMS / u->n_cols : u->n_rows;
    if (n_tasks > 1 && !u->as_it_lies && x->backend->on_host) {
        c->n_tasks = n_tasks;
        c->block_rows = ap_ceil_div(u->n_rows, n_blocks);
    }
    c->block_rows = c->block_rows < 1 ? 1 : c->block_rows;
    if (u->as_it_lies || c->block_rows > u->n_rows)
        c->block_rows = u->n_rows;
}

static void conv_scratch(struct exec *x, struct conv *c)
{
    const int size = cpu_kind_size(c->kind);
    const bool half = !cpu_is_plain(c->dtype), host = x->backend->on_host;
    const struct unrolled *u = &c->unrolled;
    const int64_t threads = c->n_tasks ? cpu_n_threads() : 1;
    int64_t at = 0;
    c->lhs_half = half ? exec_take(&at, c->lhs_elems * size) : -1;
    c->rhs_half = half ? exec_take(&at, c->rhs_elems * size) : -1;
    c->half_at = half ? exec_take(&at, c->out_elems * size) : -1;
    c->lhs_at = c->lhs_direct && host ? -1 : exec_take(&at, c->lhs_elems * size);
    c->rhs_at = c->rhs_direct && host ? -1 : exec_take(&at, c->rhs_elems * size);
    c->out_at = c->out_direct && !half && host ? -1 : exec_take(&at, c->out_elems * size);
    c->cols_bytes = exec_room(c->block_rows * u->n_cols * size);
    c->cols_at = u->as_it_lies ? 0 : exec_take(&at, threads * c->cols_bytes);
    if (c->way == CONV_SUMS && c->n_tasks)
        c->sums_at =
            exec_take(&at, (c->n_tasks - 1) * exec_room(u->n_cols * c->co * size));
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
    choose_way(x, c, t, ls, rs, &v->shape);
    set_unrolled(c);
    if (c->unrolled.n_rows > INT_MAX || c->unrolled.n_cols > INT_MAX ||
        c->co * c->n_groups > INT_MAX)
        return exec_unsupported(x, v, err, "of this size");
    choose_blocks(x, c);
    conv_scratch(x, c);
    call->run = conv_run;
    call->state = c;
    return 0;
}
