/*
 * reduce-window and select-and-scatter. Both go over the window's offsets one by one, and
 * for each over all windows at once, in tiles along one dimension; so an element's terms
 * are combined in the order of the window, wherever it lies. Threads share a dimension
 * that no window reaches across, such as the images of a batch. Cost: result * window.
 */
#include "elem/formula.h"
#include "cpu/cpu_state.h"

/* Elements: tiles of reduce-window run along a longer dimension than the last one where
 * that is shorter, so that a vector is filled. */
#define SHORT_ROW 8

/* First and last output o >= 0, in steps, whose window offset k falls on an element. */
struct hits {
    int64_t first, step, n, from; /* from: element under the first */
};

static struct hits window_hits(const struct ap_window_dim *w, int64_t k, int64_t n_out,
                               int64_t n_in)
{
    struct hits h = {0, 1, 0, 0};
    const int64_t base = (w->reversal ? w->size - 1 - k : k) * w->rhs_dilate - w->pad_lo;
    const int64_t span = (n_in - 1) * w->lhs_dilate; /* last element's place */
    if (n_in == 0)
        return h;
    int64_t o = base < 0 ? ap_ceil_div(-base, w->stride) : 0;
    int64_t tries = 0;
    while ((o * w->stride + base) % w->lhs_dilate && tries++ < w->lhs_dilate)
        o++;
    if ((o * w->stride + base) % w->lhs_dilate)
        return h;
    while (h.step * w->stride % w->lhs_dilate)
        h.step++;
    h.first = o;
    h.from = (o * w->stride + base) / w->lhs_dilate;
    int64_t last = span - base >= 0 ? (span - base) / w->stride : -1;
    last = last < n_out - 1 ? last : n_out - 1;
    h.n = last >= o ? (last - o) / h.step + 1 : 0;
    return h;
}

static struct ap_shape with_one(struct ap_arena *arena, const struct ap_shape *s, int d)
{
    struct ap_shape part = *s;
    int64_t *dims = AP_NEW_N(arena, s->rank, int64_t);
    for (int i = 0; i < s->rank; i++)
        dims[i] = i == d ? 1 : s->dims[i];
    part.dims = dims;
    return part;
}

/* The first dimension in which every window is one element, operand and result have the
 * same places, and tiles do not run. There is none where a body combines, which has
 * registers for one thread. */
static void find_shared_dim(struct exec *x, struct window *s, bool bodies)
{
    s->shared_dim = -1;
    for (int d = 0; d < s->out.rank && !bodies && s->shared_dim < 0; d++) {
        const struct ap_window_dim *w = &s->w[d];
        if (d == s->tile_dim || w->size != 1 || w->stride != 1 || w->pad_lo != 0 ||
            w->lhs_dilate != 1 || s->in.dims[d] != s->out.dims[d] || s->out.dims[d] < 2)
            continue;
        s->shared_dim = d;
        s->part_in = with_one(x->arena, &s->in, d);
        s->part_out = with_one(x->arena, &s->out, d);
    }
}

static int64_t n_tasks_of(const struct window *s)
{
    return s->shared_dim < 0 ? 1 : s->out.dims[s->shared_dim];
}

/* The part of one task: its elements begin at *from in the operand, at *to in the result,
 * and its registers are the thread's. */
static struct window task_part(const struct window *s, int64_t task, int thread,
                               int64_t *from, int64_t *to)
{
    struct window part = *s;
    const int d = s->shared_dim;
    *from = *to = 0;
    part.reg_at += thread * s->reg_bytes;
    if (d >= 0) {
        part.in = s->part_in;
        part.out = s->part_out;
        *from = task * s->ss[d];
        *to = task * s->ds[d];
    }
    return part;
}

struct window_work {
    struct exec *x;
    const struct window *s;
    char *acc;
};

/* acc[o] (red) src[element] for all windows at one offset. */
static void window_offset(struct exec *x, struct window *s, const int64_t *k, char *acc)
{
    static const int one[3] = {1, 1, 1};
    const int r = s->out.rank, t = s->tile_dim,
              size = cpu_kind_size(cpu_kind(s->out.dtype));
    const int esize = ap_dtype_size(s->in.dtype);
    const enum ap_dtype plain = cpu_is_plain(s->out.dtype) ? s->out.dtype : AP_F32;
    char *reg = x->scratch + s->reg_at, *old = reg + CPU_TILE * 8;
    struct hits h[AP_MAX_RANK];
    int64_t n[AP_MAX_RANK], fs[AP_MAX_RANK], ts[AP_MAX_RANK], at[AP_MAX_RANK] = {0};
    int64_t from = 0, to = 0; /* elements of the operand and of acc, and their strides */
    for (int d = 0; d < r; d++) {
        h[d] = window_hits(&s->w[d], k[d], s->out.dims[d], s->in.dims[d]);
        if (h[d].n == 0)
            return;
        n[d] = d == t ? 1 : h[d].n;
        fs[d] = h[d].step * s->w[d].stride / s->w[d].lhs_dilate * s->ss[d];
        ts[d] = h[d].step * s->ds[d];
        from += h[d].from * s->ss[d];
        to += h[d].first * s->ds[d];
    }
    const bool in_place =
        fs[t] == 1 && ts[t] == 1 && s->combine.fn && cpu_is_plain(s->in.dtype);
    do {
        for (int64_t i = 0; i < h[t].n; i += CPU_TILE) {
            const int64_t m = h[t].n - i < CPU_TILE ? h[t].n - i : CPU_TILE;
            char *a = acc + (to + i * ts[t]) * size;
            if (in_place) {
                const char *v = s->src + (from + i) * esize;
                s->combine.fn(a, a, v, v, one, m);
                continue;
            }
            cpu_load(reg, s->src + (from + i * fs[t]) * esize, fs[t], s->in.dtype, m);
            cpu_load(old, a, ts[t], plain, m);
            combine_run(&s->combine, old, reg, m);
            cpu_store(a, ts[t], old, plain, m);
        }
    } while (cpu_next(r, n, at, fs, &from, ts, &to));
}

static void window_task(void *ctx, int64_t task, int thread)
{
    const struct window_work *work = ctx;
    int64_t from, to, k[AP_MAX_RANK] = {0};
    struct window s = task_part(work->s, task, thread, &from, &to);
    char *acc = work->acc + to * cpu_kind_size(cpu_kind(s.out.dtype));
    s.src += from * ap_dtype_size(s.in.dtype);
    for (int64_t i = 0; i < s.n_window; i++) {
        window_offset(work->x, &s, k, acc);
        for (int d = s.out.rank - 1; d >= 0 && ++k[d] == s.w[d].size; d--)
            k[d] = 0;
    }
}

static void window_run(struct exec *x, void *state)
{
    struct window *s = state;
    const int size = cpu_kind_size(cpu_kind(s->out.dtype));
    const int64_t n = ap_shape_elems(&s->out);
    struct window_work work = {x, s, s->in_scratch ? x->scratch : s->dst};
    if (n == 0)
        return;
    cpu_load(work.acc, s->init, 1, s->out.dtype, 1);
    cpu_fill(work.acc, work.acc, size, n);
    if (!s->combine.fn)
        body_start(&s->combine.body, x->scratch + s->body_at);
    cpu_each(n_tasks_of(s), window_task, &work);
    if (s->in_scratch)
        cpu_store(s->dst, 1, work.acc, s->out.dtype, n);
}

static void window_common(struct exec *x, const struct ap_node *v, struct window *s)
{
    s->w = v->attrs->window;
    cpu_strides(&s->in, s->ss);
    cpu_strides(&s->out, s->ds);
    s->src = x->value[v->in[0]];
    s->n_window = 1;
    for (int d = 0; d < s->out.rank; d++)
        s->n_window *= s->w[d].size;
}

int cpu_window_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    struct window *s = AP_NEW(x->arena, struct window);
    s->in = call_in(x, v, 0)->shape;
    s->out = v->shape;
    if (combine_prepare(x, v, v->attrs->to_apply, &s->combine, err))
        return -1;
    if (v->n_in != 2 || v->shape.rank == 0)
        return exec_unsupported(x, v, err, "of several operands or of a scalar");
    window_common(x, v, s);
    s->init = x->value[v->in[1]];
    s->dst = x->value[call->nodes[0]];
    s->tile_dim = s->out.rank - 1;
    for (int d = s->out.rank - 1; d >= 0; d--)
        if (s->out.dims[s->tile_dim] < SHORT_ROW &&
            s->out.dims[d] > s->out.dims[s->tile_dim])
            s->tile_dim = d;
    s->in_scratch = !cpu_is_plain(s->out.dtype);
    s->reg_at = s->in_scratch ? exec_room(ap_shape_elems(&s->out) * 4) : 0;
    s->reg_bytes = 2 * CPU_TILE * 8;
    find_shared_dim(x, s, !s->combine.fn);
    s->body_at = s->reg_at + cpu_n_threads() * s->reg_bytes;
    exec_need_scratch(x, s->body_at + s->combine.body.scratch_bytes);
    call->run = window_run;
    call->state = s;
    return 0;
}

/* ---- select-and-scatter ---- */

/* Whether window offset k of source position o lies inside the operand; its place. */
static bool window_place(const struct window *s, const int64_t *o, const int64_t *k,
                         int64_t *place)
{
    *place = 0;
    for (int d = 0; d < s->in.rank; d++) {
        const int64_t p = o[d] * s->w[d].stride + k[d] - s->w[d].pad_lo;
        if (p < 0 || p >= s->in.dims[d])
            return false;
        *place += p * s->ss[d];
    }
    return true;
}

/* Windows of a tile: the element under the i-th of n is at + i * stride. */
struct under {
    int64_t at, stride, n;
};

/* Where `picked` does not keep the best so far, the best and its place are val's. */
#define BETTER(T)                                             \
    {                                                         \
        T *b = best;                                          \
        const T *v = val;                                     \
        CPU_LOOP                                              \
        {                                                     \
            b[i] = picked[i] ? b[i] : v[i];                   \
            idx[i] = picked[i] ? idx[i] : place + i * stride; \
        }                                                     \
    }
CPU_WIDE static void take_better(void *best, const void *val, int size,
                                 const uint8_t *picked, int64_t *idx, struct under where)
{
    const int64_t place = where.at, stride = where.stride, n = where.n;
    CPU_BY_SIZE(size, BETTER)
}

/* Which of each window's elements is selected: places in idx, for n windows along t. */
static int64_t *select_tile(struct exec *x, struct window *s, int64_t *o, int64_t n)
{
    static const int one[3] = {1, 1, 1};
    const int t = s->tile_dim, size = cpu_kind_size(cpu_kind(s->in.dtype));
    char *best = x->scratch + s->reg_at, *room = best + CPU_TILE * 8;
    const bool in_place = s->ss[t] == 1 && cpu_is_plain(s->in.dtype) && s->select.fn;
    uint8_t *keep = (uint8_t *)room + CPU_TILE * 8;
    int64_t *idx = (int64_t *)(void *)(keep + CPU_TILE * 8);
    int64_t k[AP_MAX_RANK] = {0}, place;
    bool any = false;
    for (int64_t i = 0; i < s->n_window; i++) {
        if (window_place(s, o, k, &place)) {
            const char *from = s->src + place * ap_dtype_size(s->in.dtype);
            const char *val = in_place ? from : room;
            if (!any || !in_place)
                cpu_load(any ? room : best, from, s->ss[t], s->in.dtype, n);
            const uint8_t *picked = keep;
            if (any && s->select.fn) {
                s->select.fn(keep, best, val, val, one, n);
            } else if (any) {
                s->select.body.ptr[0] = best;
                s->select.body.ptr[1] = room;
                body_run(&s->select.body, n);
                picked = s->select.body.ptr[s->select.body.result[0]];
            }
            if (any)
                take_better(best, val, size, picked, idx,
                            (struct under){place, s->ss[t], n});
            else
                for (int64_t j = 0; j < n; j++)
                    idx[j] = place + j * s->ss[t];
            any = true;
        }
        for (int d = s->in.rank - 1; d >= 0 && ++k[d] == s->w[d].size; d--)
            k[d] = 0;
    }
    return any ? idx : NULL;
}

#define GATHER(T)                       \
    {                                   \
        T *d = reg;                     \
        const T *v = acc;               \
        for (int64_t i = 0; i < n; i++) \
            d[i] = v[idx[i]];           \
    }
#define PUT_BACK(T)                     \
    {                                   \
        T *d = acc;                     \
        const T *v = reg;               \
        for (int64_t i = 0; i < n; i++) \
            d[idx[i]] = v[i];           \
    }
static void gather(void *reg, const void *acc, const int64_t *idx, int64_t n, int size)
{
    CPU_BY_SIZE(size, GATHER)
}

static void put_back(void *acc, const void *reg, const int64_t *idx, int64_t n, int size)
{
    CPU_BY_SIZE(size, PUT_BACK)
}

static void scatter_tile(struct exec *x, struct window *s, char *acc, const int64_t *idx,
                         int64_t from, int64_t n)
{
    const int size = cpu_kind_size(cpu_kind(s->in.dtype)), t = s->tile_dim;
    char *old = x->scratch + s->reg_at, *upd = old + CPU_TILE * 8;
    gather(old, acc, idx, n, size);
    cpu_load(upd, s->updates + from * ap_dtype_size(s->in.dtype), s->ds[t], s->in.dtype,
             n);
    combine_run(&s->combine, old, upd, n);
    put_back(acc, old, idx, n, size);
}

static void select_scatter_task(void *ctx, int64_t task, int thread)
{
    const struct window_work *work = ctx;
    int64_t o[AP_MAX_RANK] = {0}, count[AP_MAX_RANK], from = 0, same = 0, in, out;
    struct window s = task_part(work->s, task, thread, &in, &out);
    const int r = s.in.rank, t = s.tile_dim;
    char *acc = work->acc + in * cpu_kind_size(cpu_kind(s.in.dtype));
    const struct ap_window_dim *wt = &s.w[t];
    const bool plain = wt->size == 1 && wt->stride == 1 && wt->pad_lo == 0 &&
                       s.out.dims[t] <= s.in.dims[t];
    const int64_t width = plain ? CPU_TILE : 1;
    s.src += in * ap_dtype_size(s.in.dtype);
    s.updates += out * ap_dtype_size(s.in.dtype);
    for (int d = 0; d < r; d++)
        count[d] = d == t ? 1 : s.out.dims[d];
    do {
        for (o[t] = 0; o[t] < s.out.dims[t]; o[t] += width) {
            const int64_t left = s.out.dims[t] - o[t], n = left < width ? left : width;
            const int64_t *idx = select_tile(work->x, &s, o, n);
            if (idx)
                scatter_tile(work->x, &s, acc, idx, from + o[t] * s.ds[t], n);
        }
        o[t] = 0;
    } while (cpu_next(r, count, o, s.ds, &from, s.ds, &same));
}

static void select_scatter_run(struct exec *x, void *state)
{
    struct window *s = state;
    const int size = cpu_kind_size(cpu_kind(s->in.dtype));
    const int64_t n_in = ap_shape_elems(&s->in);
    struct window_work work = {x, s, s->in_scratch ? x->scratch : s->dst};
    if (n_in == 0)
        return;
    cpu_load(work.acc, s->init, 1, s->in.dtype, 1);
    cpu_fill(work.acc, work.acc, size, n_in);
    if (!s->combine.fn)
        body_start(&s->combine.body, x->scratch + s->body_at);
    if (!s->select.fn)
        body_start(&s->select.body,
                   x->scratch + s->body_at + s->combine.body.scratch_bytes);
    if (ap_shape_elems(&s->out) > 0)
        cpu_each(n_tasks_of(s), select_scatter_task, &work);
    if (s->in_scratch)
        cpu_store(s->dst, 1, work.acc, s->in.dtype, n_in);
}

int cpu_select_scatter_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    struct window *s = AP_NEW(x->arena, struct window);
    s->in = v->shape;
    s->out = call_in(x, v, 1)->shape;
    if (v->shape.rank == 0)
        return exec_unsupported(x, v, err, "of a scalar");
    if (combine_prepare(x, v, v->attrs->scatter, &s->combine, err))
        return -1;
    const struct ap_reducer *select = &x->prog->local.reducers[v->attrs->select];
    if (select->n_nodes == 0)
        return exec_unsupported(x, v, err, "with a selector that has no body");
    if (body_prepare(x, select, &s->select.body, err))
        return -1;
    if (s->select.body.bare_compare)
        s->select.fn =
            cpu_op_find(AP_OP_COMPARE, s->select.body.direction, v->shape.dtype, AP_PRED);
    window_common(x, v, s);
    s->updates = x->value[v->in[1]];
    s->init = x->value[v->in[2]];
    s->dst = x->value[call->nodes[0]];
    /* tiles run along the longest dimension that the window leaves alone */
    s->tile_dim = s->in.rank - 1;
    for (int d = s->in.rank - 1; d >= 0; d--) {
        const struct ap_window_dim *w = &s->w[d], *best = &s->w[s->tile_dim];
        const bool plain = w->size == 1 && w->stride == 1 && w->pad_lo == 0;
        const bool best_plain = best->size == 1 && best->stride == 1 && best->pad_lo == 0;
        if (plain && (!best_plain || s->in.dims[d] > s->in.dims[s->tile_dim]))
            s->tile_dim = d;
    }
    s->in_scratch = !cpu_is_plain(s->in.dtype);
    s->reg_at = s->in_scratch ? exec_room(ap_shape_elems(&s->in) * 4) : 0;
    s->reg_bytes = 4 * CPU_TILE * 8;
    find_shared_dim(x, s, !s->combine.fn || !s->select.fn);
    s->body_at = s->reg_at + cpu_n_threads() * s->reg_bytes;
    exec_need_scratch(x, s->body_at + s->combine.body.scratch_bytes +
                             s->select.body.scratch_bytes);
    call->run = select_scatter_run;
    call->state = s;
    return 0;
}
