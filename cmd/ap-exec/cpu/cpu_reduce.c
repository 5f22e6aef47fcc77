/*
 * reduce. Known reducers (sum, max, ...) over one operand: the input is read once, in
 * memory order, into accumulators (f32 for bf16 and f16, rounded once at the end). Runs
 * of a kept dimension combine element by element; runs of a reduced dimension go into
 * LANES partial results by index modulo LANES, which are then combined in a fixed order.
 * An element's bits therefore depend on its own operands and the reduced sizes only.
 * Other reducers and several operands: the operands are brought to [reduced][kept], and
 * the body runs over tiles of kept elements.
 */
#include "cpu/cpu_state.h"

#include <string.h>

/* Partial results of a run of a reduced dimension: two vectors of 8 f32. A part of the
 * definition: another number gives other bits. */
#define LANES 16

/* Combines n register elements at x into one, in LANES interleaved streams. */
static void reduce_lanes(const struct reduce *r, char *acc, const char *x, int64_t n,
                         char *lanes)
{
    static const int one[3] = {1, 1, 1};
    const int size = cpu_kind_size(r->kind);
    const int64_t w = n < LANES ? n : LANES;
    memcpy(lanes, x, (size_t)(w * size));
    int64_t i = LANES;
    for (; i + LANES <= n; i += LANES)
        r->fn(lanes, lanes, x + i * size, lanes, one, LANES);
    if (i < n)
        r->fn(lanes, lanes, x + i * size, lanes, one, n - i);
    for (int64_t k = 0; k < w; k++)
        r->fn(acc, acc, lanes + k * size, acc, one, 1);
}

/* The same of common reducers without a call per LANES elements: a lane starts at START
 * and combines by OF. */
#define RUN_LANES(name, T, START, OF)                                             \
    CPU_WIDE static void name(void *accumulator, const void *elements, int64_t n) \
    {                                                                             \
        T *acc = accumulator, lanes[LANES];                                       \
        const T *x = elements;                                                    \
        int64_t i = 0;                                                            \
        for (int k = 0; k < LANES; k++)                                           \
            lanes[k] = START;                                                     \
        for (; i + LANES <= n; i += LANES)                                        \
            for (int k = 0; k < LANES; k++)                                       \
                lanes[k] = OF(lanes[k], x[i + k]);                                \
        for (int k = 0; i < n; i++, k++)                                          \
            lanes[k] = OF(lanes[k], x[i]);                                        \
        T all = *acc;                                                             \
        for (int k = 0; k < LANES; k++)                                           \
            all = OF(all, lanes[k]);                                              \
        *acc = all;                                                               \
    }
#define SUM(x, y) ((x) + (y))
#define MAX(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
RUN_LANES(sum_lanes_f32, float, 0, SUM)
RUN_LANES(sum_lanes_f64, double, 0, SUM)
RUN_LANES(max_lanes_f32, float, *acc, MAX)

static run_lanes_fn *find_run_lanes(enum ap_red red, enum cpu_kind kind)
{
    if (red == AP_RED_SUM)
        return kind == CPU_F32 ? sum_lanes_f32 : kind == CPU_F64 ? sum_lanes_f64 : NULL;
    return red == AP_RED_MAX && kind == CPU_F32 ? max_lanes_f32 : NULL;
}

/* Rows of a reduced dimension, `ld` elements apart, into n kept elements: in the order of
 * rows, with as many elements at a time as registers hold. */
#define ROW_RUN 64
#define ROWS_OF(width, OF)                                \
    for (; i + (width) <= n; i += (width)) {              \
        for (int k = 0; k < (width); k++)                 \
            part[k] = acc[i + k];                         \
        for (int64_t r = 0; r < rows; r++)                \
            for (int k = 0; k < (width); k++)             \
                part[k] = OF(part[k], x[r * ld + i + k]); \
        for (int k = 0; k < (width); k++)                 \
            acc[i + k] = part[k];                         \
    }
#define RUN_ROWS(name, T, OF)                                                         \
    CPU_WIDE static void name(void *accumulators, const void *elements, int64_t rows, \
                              int64_t ld, int64_t n)                                  \
    {                                                                                 \
        T *acc = accumulators, part[ROW_RUN];                                         \
        const T *x = elements;                                                        \
        int64_t i = 0;                                                                \
        ROWS_OF(ROW_RUN, OF)                                                          \
        ROWS_OF(LANES, OF)                                                            \
        for (int64_t r = 0; r < rows && i < n; r++)                                   \
            for (int64_t k = i; k < n; k++)                                           \
                acc[k] = OF(acc[k], x[r * ld + k]);                                   \
    }
RUN_ROWS(sum_rows_f32, float, SUM)
RUN_ROWS(sum_rows_f64, double, SUM)

static run_rows_fn *find_run_rows(enum ap_red red, enum cpu_kind kind)
{
    if (red != AP_RED_SUM)
        return NULL;
    return kind == CPU_F32 ? sum_rows_f32 : kind == CPU_F64 ? sum_rows_f64 : NULL;
}

/* One inner run of n elements. `own`: working memory of the thread. */
static void reduce_run_inner(const struct reduce *r, int64_t n, char *acc,
                             const char *src, char *own)
{
    static const int one[3] = {1, 1, 1};
    const int last = r->rank - 1, size = cpu_kind_size(r->kind);
    char *tile = own, *lanes = tile + CPU_TILE * 8;
    for (int64_t i = 0; i < n; i += CPU_TILE) {
        const int64_t k = n - i < CPU_TILE ? n - i : CPU_TILE;
        const char *p = src + i * ap_dtype_size(r->dtype);
        if (!cpu_is_plain(r->dtype)) {
            cpu_load(tile, p, 1, r->dtype, k);
            p = tile;
        }
        if (!r->reduced[last])
            r->fn(acc + i * size, acc + i * size, p, p, one, k);
        else if (r->run_lanes)
            r->run_lanes(acc, p, k);
        else
            reduce_lanes(r, acc, p, k, lanes);
    }
}

/* Working memory of a thread. */
#define OWN_BYTES (CPU_TILE * 8 + LANES * 8)
/* Elements of a task, and of its part of an inner run. */
#define TASK_ELEMS (32 * CPU_TILE)
#define TASK_RUN   16

/* The kept dimension that threads share, and how much of it is one task. Elements that
 * are kept do not depend on each other: how they are shared changes no bits. */
struct shares {
    struct exec *x;
    const struct reduce *r;
    int dim; /* -1: none is kept */
    int64_t each, n;
    char *acc;
};

static struct shares shares_of(struct exec *x, const struct reduce *r)
{
    struct shares s = {.x = x, .r = r, .dim = -1, .n = 1};
    int64_t elems = 1;
    for (int d = 0; d < r->rank; d++) {
        elems *= r->n[d];
        if (!r->reduced[d] && (s.dim < 0 || r->n[d] > r->n[s.dim]))
            s.dim = d;
    }
    if (s.dim < 0 || cpu_n_threads() == 1)
        return s;
    /* parts of an inner run take equally long */
    const int64_t n = r->n[s.dim], per_thread = s.dim == r->rank - 1 ? 1 : 2;
    const int64_t even = ap_ceil_div(n, per_thread * cpu_n_threads());
    s.each = elems > 0 ? ap_ceil_div(n * TASK_ELEMS, elems) : n;
    s.each = s.each < even ? even : s.each;
    if (s.dim == r->rank - 1)
        s.each = ap_ceil_div(s.each, TASK_RUN) * TASK_RUN;
    s.n = s.each >= n ? 1 : ap_ceil_div(n, s.each);
    return s;
}

static void run_share(void *ctx, int64_t task, int thread)
{
    const struct shares *s = ctx;
    const struct reduce *r = s->r;
    const int size = cpu_kind_size(r->kind), last = r->rank - 1;
    const bool rows =
        r->run_rows && last > 0 && !r->reduced[last] && r->reduced[last - 1];
    const int outer = rows ? last - 1 : last;
    const int esize = ap_dtype_size(r->dtype);
    char *own = s->x->scratch + r->acc_bytes + (int64_t)thread * OWN_BYTES;
    int64_t at[AP_MAX_RANK] = {0}, n[AP_MAX_RANK], from = 0, to = 0, src = 0, dst = 0;
    memcpy(n, r->n, sizeof n);
    if (s->n > 1) {
        const int64_t first = task * s->each, left = r->n[s->dim] - first;
        n[s->dim] = left < s->each ? left : s->each;
        src = first * r->stride[s->dim];
        dst = first * r->step[s->dim];
    }
    do {
        char *acc = s->acc + (dst + to) * size;
        const char *x = r->src + (src + from) * esize;
        if (rows)
            r->run_rows(acc, x, n[last - 1], r->stride[last - 1], n[last]);
        else
            reduce_run_inner(r, n[last], acc, x, own);
    } while (cpu_next(outer, n, at, r->stride, &from, r->step, &to));
}

static void reduce_run(struct exec *x, void *state)
{
    const struct reduce *r = state;
    const int size = cpu_kind_size(r->kind);
    struct shares s = shares_of(x, r);
    s.acc = r->in_scratch ? x->scratch : r->out;
    if (r->n_out == 0)
        return;
    cpu_load(s.acc, r->init, 1, r->dtype, 1);
    cpu_fill(s.acc, s.acc, size, r->n_out);
    bool empty = false;
    for (int d = 0; d < r->rank; d++)
        empty |= r->n[d] == 0;
    if (!empty)
        cpu_each(s.n, run_share, &s);
    if (r->in_scratch)
        cpu_store(r->out, 1, s.acc, r->dtype, r->n_out);
}

/* Per operand dimension: its stride in the result, 0 when reduced. */
static void kept_strides(const struct ap_node *v, const struct ap_shape *in,
                         bool *reduced, int64_t *step)
{
    for (int d = 0; d < in->rank; d++)
        reduced[d] = false;
    for (int i = 0; i < v->attrs->dimensions.n; i++)
        reduced[v->attrs->dimensions.v[i]] = true;
    int64_t run = 1;
    for (int d = in->rank - 1; d >= 0; d--) {
        step[d] = reduced[d] ? 0 : run;
        run *= reduced[d] ? 1 : in->dims[d];
    }
}

/* ---- any computation, any number of operands ---- */

static void custom_tile(struct exec *x, struct custom *c, int64_t at, int64_t n)
{
    const int k = c->n_ops;
    char *reg = x->scratch + c->reg_at;
    for (int i = 0; i < k; i++) {
        char *acc = reg + (int64_t)i * CPU_TILE * 8;
        c->body.ptr[i] = acc;
        c->body.ptr[k + i] = reg + (int64_t)(k + i) * CPU_TILE * 8;
        cpu_load(acc, c->init[i], 1, c->dtype[i], 1);
        cpu_fill(acc, acc, cpu_kind_size(cpu_kind(c->dtype[i])), n);
    }
    for (int64_t r = 0; r < c->n_red; r++) {
        for (int i = 0; i < k; i++) {
            const char *src = c->direct[i] ? c->src[i] : x->scratch + c->at[i];
            cpu_load(c->body.ptr[k + i],
                     src + (r * c->n_kept + at) * ap_dtype_size(c->dtype[i]), 1,
                     c->dtype[i], n);
        }
        body_run(&c->body, n);
        /* results may be parameters themselves: through spare registers */
        for (int i = 0; i < k; i++)
            memcpy(reg + (int64_t)(2 * k + i) * CPU_TILE * 8,
                   c->body.ptr[c->body.result[i]],
                   (size_t)(n * cpu_kind_size(cpu_kind(c->dtype[i]))));
        for (int i = 0; i < k; i++)
            memcpy(c->body.ptr[i], reg + (int64_t)(2 * k + i) * CPU_TILE * 8,
                   (size_t)(n * cpu_kind_size(cpu_kind(c->dtype[i]))));
    }
    for (int i = 0; i < k; i++)
        cpu_store(c->out[i] + at * ap_dtype_size(c->dtype[i]), 1, c->body.ptr[i],
                  c->dtype[i], n);
}

static void custom_run(struct exec *x, void *state)
{
    struct custom *c = state;
    for (int i = 0; i < c->n_ops; i++)
        if (!c->direct[i])
            box_copy(&c->box[i], x->scratch + c->at[i], c->src[i],
                     ap_dtype_size(c->dtype[i]));
    body_start(&c->body, x->scratch + c->body_at);
    for (int64_t at = 0; at < c->n_kept; at += CPU_TILE)
        custom_tile(x, c, at, c->n_kept - at < CPU_TILE ? c->n_kept - at : CPU_TILE);
}

/* Reduced dimensions go first, in order; direct if they are first already. */
static void custom_box(struct custom *c, int i, const struct ap_node *v,
                       const struct ap_shape *in)
{
    bool reduced[AP_MAX_RANK];
    int64_t step[AP_MAX_RANK], stride[AP_MAX_RANK], at = 1;
    kept_strides(v, in, reduced, step);
    cpu_strides(in, stride);
    c->n_red = c->n_kept = 1;
    bool kept_before = false;
    c->direct[i] = true;
    for (int d = 0; d < in->rank; d++) {
        if (reduced[d])
            c->n_red *= in->dims[d];
        else
            c->n_kept *= in->dims[d];
        if (in->dims[d] != 1) {
            c->direct[i] &= !(reduced[d] && kept_before);
            kept_before |= !reduced[d];
        }
    }
    for (int pass = 0; pass < 2; pass++)
        for (int d = in->rank - 1; d >= 0; d--)
            if (reduced[d] == (pass == 1)) {
                box_add(&c->box[i], in->dims[d], stride[d], at);
                at *= in->dims[d];
            }
    box_finish(&c->box[i]);
}

static int custom_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_reducer *red = &x->prog->local.reducers[v->attrs->to_apply];
    struct custom *c = AP_NEW(x->arena, struct custom);
    const int k = c->n_ops = v->n_in / 2;
    const int node = call->nodes[0];
    c->src = AP_NEW_N(x->arena, k, const char *);
    c->init = AP_NEW_N(x->arena, k, const char *);
    c->out = AP_NEW_N(x->arena, k, char *);
    c->dtype = AP_NEW_N(x->arena, k, enum ap_dtype);
    c->box = AP_NEW_N(x->arena, k, struct box);
    c->direct = AP_NEW_N(x->arena, k, bool);
    c->at = AP_NEW_N(x->arena, k, int64_t);
    if (red->n_nodes == 0)
        return exec_unsupported(x, v, err, "with a reducer that has no body");
    if (body_prepare(x, red, &c->body, err))
        return -1;
    int64_t at = 0;
    for (int i = 0; i < k; i++) {
        const struct ap_shape *in = &call_in(x, v, i)->shape;
        c->dtype[i] = in->dtype;
        if (cpu_kind(in->dtype) == CPU_N_KINDS || c->body.dtype[i] != in->dtype)
            return exec_unsupported(x, v, err, ap_dtype_name(in->dtype));
        c->src[i] = x->value[v->in[i]];
        c->init[i] = x->value[v->in[k + i]];
        c->out[i] = v->shape.dtype == AP_TUPLE ? x->element[node][i] : x->value[node];
        custom_box(c, i, v, in);
        c->at[i] = at;
        if (!c->direct[i])
            at += exec_room(ap_shape_bytes(in));
    }
    c->reg_at = at;
    c->body_at = at + (int64_t)3 * k * CPU_TILE * 8;
    exec_need_scratch(x, c->body_at + c->body.scratch_bytes);
    call->run = custom_run;
    call->state = c;
    return 0;
}

/* ---- the operator ---- */

int cpu_reduce_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_reducer *red = &x->prog->local.reducers[v->attrs->to_apply];
    if (red->red == AP_RED_NONE || v->n_in != 2 || v->shape.dtype == AP_TUPLE)
        return custom_prepare(x, call, err);
    const struct ap_shape *in = &call_in(x, v, 0)->shape;
    struct reduce *r = AP_NEW(x->arena, struct reduce);
    bool reduced[AP_MAX_RANK];
    int64_t step[AP_MAX_RANK], stride[AP_MAX_RANK];
    r->dtype = v->shape.dtype;
    r->kind = cpu_kind(r->dtype);
    r->fn = r->kind == CPU_N_KINDS
                ? NULL
                : cpu_op_find(cpu_red_op(red->red), AP_EQ, r->dtype, r->dtype);
    if (!r->fn)
        return exec_unsupported(x, v, err, ap_dtype_name(r->dtype));
    r->run_lanes = find_run_lanes(red->red, r->kind);
    r->run_rows = cpu_is_plain(r->dtype) ? find_run_rows(red->red, r->kind) : NULL;
    r->src = x->value[v->in[0]];
    r->init = x->value[v->in[1]];
    r->out = x->value[call->nodes[0]];
    r->n_out = ap_shape_elems(&v->shape);
    kept_strides(v, in, reduced, step);
    cpu_strides(in, stride);
    for (int d = 0; d < in->rank; d++) {
        const int k = r->rank;
        if (in->dims[d] == 1 && reduced[d]) /* a kept one may be longer on other ranks */
            continue;
        if (k && r->reduced[k - 1] == reduced[d]) {
            r->n[k - 1] *= in->dims[d];
        } else {
            r->n[k] = in->dims[d];
            r->reduced[k] = reduced[d];
            r->rank++;
        }
        r->stride[r->rank - 1] = stride[d];
        r->step[r->rank - 1] = step[d];
    }
    if (r->rank == 0) {
        r->n[0] = r->stride[0] = r->step[0] = 1;
        r->rank = 1;
    }
    r->in_scratch = !cpu_is_plain(r->dtype);
    r->acc_bytes = r->in_scratch ? exec_room(r->n_out * 4) : 0;
    exec_need_scratch(x, r->acc_bytes + (int64_t)cpu_n_threads() * OWN_BYTES);
    call->run = reduce_run;
    call->state = r;
    return 0;
}
