/*
 * gather, scatter, dynamic-slice and dynamic-update-slice. Where operand 0 is a shard
 * (attrs.global), indices are global: they are clamped against (gather) or checked
 * against (scatter) the whole operand and then looked up in the shard's inverse index
 * map; elements on other devices read as 0 and are not written. Cost: one window copy per
 * index.
 */
#include "cpu/cpu_state.h"

#include <string.h>

static int64_t read_index(const char *p, enum ap_dtype dtype, int64_t i)
{
    switch ((int)dtype) {
    case AP_PRED:
    case AP_U8:
        return ((const uint8_t *)p)[i];
    case AP_S8:
        return ((const int8_t *)p)[i];
    case AP_S16:
        return ((const int16_t *)(const void *)p)[i];
    case AP_U16:
        return ((const uint16_t *)(const void *)p)[i];
    case AP_S32:
        return ((const int32_t *)(const void *)p)[i];
    case AP_U32:
        return ((const uint32_t *)(const void *)p)[i];
    case AP_U64: {
        const uint64_t u = ((const uint64_t *)(const void *)p)[i];
        return u > INT64_MAX ? INT64_MAX : (int64_t)u;
    }
    }
    return ((const int64_t *)(const void *)p)[i];
}

/* Offset of the window in the local operand, -1 when it is not here. */
static int64_t window_offset(const struct index *s, int64_t index_at, int64_t base)
{
    for (int i = 0; i < s->n_moved; i++) {
        const struct moved *m = &s->moved[i];
        int64_t g = read_index(s->indices, s->index_dtype, index_at + i * s->component);
        const int64_t most = m->dim_size - m->slice;
        if (s->scatter && (g < 0 || g > most))
            return -1;
        g = g > most ? most : g;
        g = g < 0 ? 0 : g;
        if (m->here && (g = m->here[g]) < 0)
            return -1;
        base += g * s->operand_stride[m->dim];
    }
    return base;
}

static void gather_one(const struct index *s, int64_t from, int64_t to)
{
    const int size = ap_dtype_size(s->dtype);
    static const char zero[8] = {0};
    if (from >= 0) {
        box_copy(&s->window, s->out + to * size, s->operand + from * size, size);
        return;
    }
    struct box none = s->window;
    for (int d = 0; d < none.rank; d++)
        none.src[d] = 0;
    box_copy(&none, s->out + to * size, zero, size);
}

/* Combines the updates at `from` into the accumulators at `to`, row by row. */
static void scatter_one(struct exec *x, struct index *s, char *acc, int64_t to,
                        int64_t from)
{
    const struct box *w = &s->window;
    const enum ap_dtype plain = s->in_scratch ? AP_F32 : s->dtype;
    const int size = ap_dtype_size(plain), esize = ap_dtype_size(s->dtype);
    char *upd = x->scratch + s->reg_at, *old = upd + CPU_TILE * 8;
    const int last = w->rank - 1;
    const int64_t run = w->rank ? w->n[last] : 1;
    const int64_t us = w->rank ? w->src[last] : 1, os = w->rank ? w->dst[last] : 1;
    int64_t at[AP_MAX_RANK] = {0};
    for (int64_t done = 0; done < s->window_elems; done += run) {
        for (int64_t i = 0; i < run; i += CPU_TILE) {
            const int64_t n = run - i < CPU_TILE ? run - i : CPU_TILE;
            char *a = acc + (to + i * os) * size;
            cpu_load(upd, s->updates + (from + i * us) * esize, us, s->dtype, n);
            if (!s->assign) {
                cpu_load(old, a, os, plain, n);
                combine_run(&s->combine, old, upd, n);
            }
            cpu_store(a, os, s->assign ? upd : old, plain, n);
        }
        cpu_next(last, w->n, at, w->src, &from, w->dst, &to);
    }
}

static void index_run(struct exec *x, void *state)
{
    struct index *s = state;
    char *acc = s->in_scratch ? x->scratch : s->out;
    const int64_t operand_elems = s->operand_bytes / ap_dtype_size(s->dtype);
    if (s->scatter && s->in_scratch)
        cpu_load(acc, s->operand, 1, s->dtype, operand_elems);
    else if (s->scatter && s->out != s->operand)
        memcpy(s->out, s->operand, (size_t)s->operand_bytes);
    if (s->scatter && !s->assign && !s->combine.fn)
        body_start(&s->combine.body, x->scratch + s->body_at);
    int64_t at[AP_MAX_RANK] = {0}, n = s->window_elems ? 1 : 0;
    for (int i = 0; i < s->n_batch; i++)
        n *= s->batch[i];
    for (int64_t q = 0; q < n; q++) {
        int64_t index_at = 0, base = 0, other = 0;
        for (int i = 0; i < s->n_batch; i++) {
            index_at += at[i] * s->batch_index[i];
            base += at[i] * s->batch_operand[i];
            other += at[i] * s->batch_other[i];
        }
        const int64_t offset = window_offset(s, index_at, base);
        if (!s->scatter)
            gather_one(s, offset, other);
        else if (offset >= 0)
            scatter_one(x, s, acc, offset, other);
        for (int i = s->n_batch - 1; i >= 0 && ++at[i] == s->batch[i]; i--)
            at[i] = 0;
    }
    if (s->scatter && s->in_scratch)
        cpu_store(s->out, 1, acc, s->dtype, operand_elems);
}

static bool has(struct ap_ints list, int64_t d)
{
    for (int i = 0; i < list.n; i++)
        if (list.v[i] == d)
            return true;
    return false;
}

/* Global to local index of a split dimension, NULL if it is not split. */
static const int64_t *inverse_map(struct exec *x, const struct ap_node *v,
                                  const struct ap_shape *local, int d)
{
    const int64_t *map = exec_index_map(x, v->attrs, local, d);
    if (!map)
        return NULL;
    const int64_t n = v->attrs->global->dims[d];
    int64_t *here = AP_NEW_N(x->arena, n + 1, int64_t);
    for (int64_t i = 0; i < n; i++)
        here[i] = -1;
    for (int64_t i = 0; i < local->dims[d]; i++)
        if (map[i] >= 0)
            here[map[i]] = i;
    return here;
}

/*
 * The attributes of gather, and those of scatter that say the same. Dimensions of the
 * gather's result or of the updates that are in window_dims run over those of operand 0
 * that are in neither `dropped` nor `batching`, in order.
 */
struct index_dims {
    struct ap_ints window_dims, dropped, batching, index_batching, index_map;
};

/* The window, in operand 0 and in `other`; its extents in operand 0's dimensions. */
static void set_window(struct index *s, const struct ap_shape *op,
                       const struct ap_shape *other, const struct index_dims *t,
                       int64_t *extent)
{
    int64_t stride[AP_MAX_RANK];
    cpu_strides(other, stride);
    s->window_elems = 1;
    for (int d = 0, k = 0; d < op->rank; d++) {
        extent[d] = 1;
        if (has(t->dropped, d) || has(t->batching, d))
            continue;
        const int64_t to = t->window_dims.v[k++];
        extent[d] = other->dims[to];
        s->window_elems *= extent[d];
        if (s->scatter)
            box_add(&s->window, extent[d], stride[to], s->operand_stride[d]);
        else
            box_add(&s->window, extent[d], s->operand_stride[d], stride[to]);
    }
    box_finish(&s->window);
}

/* Loops over the dimensions of the indices but the index vector's: those of `other` but
 * the window's. */
static void set_loops(struct index *s, const struct ap_shape *ix,
                      const struct ap_shape *other, const struct index_dims *t)
{
    const int64_t vector = s->node->attrs->index_vector_dim;
    int64_t is[AP_MAX_RANK], os[AP_MAX_RANK];
    cpu_strides(ix, is);
    cpu_strides(other, os);
    s->component = vector < ix->rank ? is[vector] : 1;
    for (int d = 0, o = 0; d < ix->rank; d++) {
        if (d == vector)
            continue;
        while (has(t->window_dims, o))
            o++;
        const int i = s->n_batch++;
        s->batch[i] = ix->dims[d];
        s->batch_index[i] = is[d];
        s->batch_other[i] = os[o++];
        for (int b = 0; b < t->index_batching.n; b++)
            if (t->index_batching.v[b] == d)
                s->batch_operand[i] = s->operand_stride[t->batching.v[b]];
    }
}

/* What gather and scatter share. other: the gather's result or the updates. */
static int index_prepare(struct exec *x, struct index *s, const struct ap_node *v,
                         const struct ap_shape *other, const struct index_dims *t,
                         struct ap_err *err)
{
    const struct ap_shape *op = &call_in(x, v, 0)->shape, *ix = &call_in(x, v, 1)->shape;
    int64_t extent[AP_MAX_RANK];
    cpu_strides(op, s->operand_stride);
    s->node = v;
    s->dtype = op->dtype;
    s->index_dtype = ix->dtype;
    if (cpu_kind(s->dtype) == CPU_N_KINDS || ap_dtype_is_float(ix->dtype))
        return exec_unsupported(x, v, err, ap_dtype_name(s->dtype));
    s->operand = x->value[v->in[0]];
    s->indices = x->value[v->in[1]];
    s->operand_bytes = ap_shape_bytes(op);
    set_window(s, op, other, t, extent);
    set_loops(s, ix, other, t);
    for (int i = 0; i < t->index_map.n; i++) {
        struct moved *m = &s->moved[s->n_moved++];
        m->dim = (int)t->index_map.v[i];
        m->here = inverse_map(x, v, op, m->dim);
        m->dim_size = m->here ? v->attrs->global->dims[m->dim] : op->dims[m->dim];
        m->slice = extent[m->dim];
        if (m->here && m->slice > 1) { /* a window over the whole dimension starts at 0 */
            if (m->slice != op->dims[m->dim])
                return exec_unsupported(x, v, err, "of a window that is cut");
            m->here = NULL;
            m->dim_size = op->dims[m->dim];
        }
    }
    return 0;
}

int cpu_gather_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_attrs *a = v->attrs;
    struct index *s = AP_NEW(x->arena, struct index);
    const struct index_dims dims = {a->offset_dims, a->collapsed_slice_dims,
                                    a->operand_batching_dims,
                                    a->start_indices_batching_dims, a->start_index_map};
    if (index_prepare(x, s, v, &v->shape, &dims, err))
        return -1;
    s->out = x->value[call->nodes[0]];
    call->run = index_run;
    call->state = s;
    return 0;
}

int cpu_scatter_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_attrs *a = v->attrs;
    struct index *s = AP_NEW(x->arena, struct index);
    const struct ap_reducer *red = &x->prog->local.reducers[a->to_apply];
    s->scatter = true;
    const struct index_dims dims = {
        a->update_window_dims, a->inserted_window_dims, a->input_batching_dims,
        a->scatter_indices_batching_dims, a->scatter_dims_to_operand_dims};
    if (index_prepare(x, s, v, &call_in(x, v, 2)->shape, &dims, err))
        return -1;
    s->out = x->value[call->nodes[0]];
    s->updates = x->value[v->in[2]];
    s->assign = red->red == AP_RED_ASSIGN;
    if (!s->assign && combine_prepare(x, v, a->to_apply, &s->combine, err))
        return -1;
    if (!s->assign && !s->combine.fn && !cpu_is_plain(s->dtype))
        return exec_unsupported(x, v, err, "with this computation in half precision");
    s->in_scratch = s->combine.fn && !cpu_is_plain(s->dtype);
    s->reg_at = s->in_scratch ? exec_room(s->operand_bytes * 2) : 0;
    s->body_at = s->reg_at + 2 * CPU_TILE * 8;
    exec_need_scratch(x, s->body_at + s->combine.body.scratch_bytes);
    call->run = index_run;
    call->state = s;
    return 0;
}

/* ---- dynamic-slice and dynamic-update-slice ---- */

static void dynamic_run(struct exec *x, void *state)
{
    (void)x;
    const struct dynamic *s = state;
    int64_t offset = 0;
    for (int d = 0; d < s->rank; d++) {
        int64_t at = read_index(s->start[d], s->index_dtype[d], 0);
        at = at > s->most[d] ? s->most[d] : at;
        offset += (at < 0 ? 0 : at) * s->stride[d];
    }
    if (!s->operand) {
        box_copy(&s->box, s->dst, s->src + offset * s->size, s->size);
        return;
    }
    if (s->dst != s->operand)
        memcpy(s->dst, s->operand, (size_t)s->bytes);
    box_copy(&s->box, s->dst + offset * s->size, s->src, s->size);
}

int cpu_dynamic_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    (void)err;
    const struct ap_node *v = call_node(x, call);
    const bool update = v->op == AP_OP_DYNAMIC_UPDATE_SLICE;
    const struct ap_shape *op = &call_in(x, v, 0)->shape;
    const struct ap_shape *win = update ? &call_in(x, v, 1)->shape : &v->shape;
    struct dynamic *s = AP_NEW(x->arena, struct dynamic);
    int64_t ws[AP_MAX_RANK];
    cpu_strides(op, s->stride);
    cpu_strides(win, ws);
    s->rank = op->rank;
    s->size = ap_dtype_size(op->dtype);
    for (int d = 0; d < op->rank; d++) {
        const int k = 1 + update + d;
        s->most[d] = op->dims[d] - win->dims[d];
        s->start[d] = x->value[v->in[k]];
        s->index_dtype[d] = call_in(x, v, k)->shape.dtype;
        if (update)
            box_add(&s->box, win->dims[d], ws[d], s->stride[d]);
        else
            box_add(&s->box, win->dims[d], s->stride[d], ws[d]);
    }
    box_finish(&s->box);
    s->src = x->value[v->in[update ? 1 : 0]];
    s->operand = update ? x->value[v->in[0]] : NULL;
    s->dst = x->value[call->nodes[0]];
    s->bytes = ap_shape_bytes(op);
    call->run = dynamic_run;
    call->state = s;
    return 0;
}
