/*
 * Operators that move elements: constant, reshape, transpose, slice, reverse, pad and
 * concatenate. Each is one or a few strided copies, prepared once.
 */
#include "cpu/cpu_state.h"

#include <string.h>

static void move_run(struct exec *x, void *state)
{
    (void)x;
    const struct move *m = state;
    if (m->fill_value)
        cpu_fill(m->fill_dst, m->fill_value, m->size, m->fill_n);
    for (int i = 0; i < m->n; i++)
        box_copy(&m->box[i], m->dst[i], m->src[i], m->size);
}

static struct move *move_new(struct exec *x, struct call *call, int n)
{
    struct move *m = AP_NEW(x->arena, struct move);
    const struct ap_node *v = call_node(x, call);
    m->box = AP_NEW_N(x->arena, n + 1, struct box);
    m->dst = AP_NEW_N(x->arena, n + 1, char *);
    m->src = AP_NEW_N(x->arena, n + 1, const char *);
    m->size = ap_dtype_size(v->shape.dtype);
    m->n = n;
    for (int i = 0; i < n; i++) {
        m->dst[i] = x->value[call->nodes[0]];
        m->src[i] = i < v->n_in ? x->value[v->in[i]] : NULL;
    }
    call->run = move_run;
    call->state = m;
    return m;
}

/* Result dimension d reads operand dimension from[d] with a step, from an offset. */
int cpu_move_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    (void)err;
    const struct ap_node *v = call_node(x, call);
    const struct ap_node *u = call_in(x, v, 0);
    struct move *m = move_new(x, call, 1);
    int64_t ds[AP_MAX_RANK], ss[AP_MAX_RANK], offset = 0;
    const bool permuted = x->permuted && x->permuted[v->in[0]] == call->nodes[0];
    if (v->op == AP_OP_RESHAPE || permuted) {
        m->n = m->src[0] != m->dst[0];
        box_add(&m->box[0], ap_shape_elems(&v->shape), 1, 1);
        box_finish(&m->box[0]);
        return 0;
    }
    cpu_strides(&v->shape, ds);
    cpu_strides(&u->shape, ss);
    bool reversed[AP_MAX_RANK] = {false};
    if (v->op == AP_OP_REVERSE)
        for (int i = 0; i < v->attrs->dimensions.n; i++)
            reversed[v->attrs->dimensions.v[i]] = true;
    for (int d = 0; d < v->shape.rank; d++) {
        int64_t from = d, step = 1;
        if (v->op == AP_OP_TRANSPOSE)
            from = v->attrs->dimensions.v[d];
        if (v->op == AP_OP_SLICE) {
            offset += v->attrs->slice[d].start * ss[d];
            step = v->attrs->slice[d].stride;
        }
        if (reversed[d]) {
            offset += (u->shape.dims[d] - 1) * ss[d];
            step = -1;
        }
        box_add(&m->box[0], v->shape.dims[d], step * ss[from], ds[d]);
    }
    box_finish(&m->box[0]);
    m->src[0] += offset * m->size;
    return 0;
}

int cpu_pad_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    (void)err;
    const struct ap_node *v = call_node(x, call);
    const struct ap_node *u = call_in(x, v, 0);
    struct move *m = move_new(x, call, 1);
    int64_t ds[AP_MAX_RANK], ss[AP_MAX_RANK];
    cpu_strides(&v->shape, ds);
    cpu_strides(&u->shape, ss);
    m->fill_dst = m->dst[0];
    m->fill_value = x->value[v->in[1]];
    m->fill_n = ap_shape_elems(&v->shape);
    for (int d = 0; d < v->shape.rank; d++) {
        const struct ap_pad_dim p = v->attrs->padding[d];
        const int64_t step = p.interior + 1;
        /* operand elements lo <= i < hi fall inside the result */
        const int64_t lo = p.lo < 0 ? ap_ceil_div(-p.lo, step) : 0;
        const int64_t room = v->shape.dims[d] - p.lo; /* lo + i * step < dims */
        int64_t hi = room > 0 ? ap_ceil_div(room, step) : 0;
        hi = hi < u->shape.dims[d] ? hi : u->shape.dims[d];
        if (hi <= lo) {
            m->n = 0; /* nothing but padding */
            return 0;
        }
        m->src[0] += lo * ss[d] * m->size;
        m->dst[0] += (p.lo + lo * step) * ds[d] * m->size;
        box_add(&m->box[0], hi - lo, ss[d], step * ds[d]);
    }
    box_finish(&m->box[0]);
    return 0;
}

int cpu_concat_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    (void)err;
    const struct ap_node *v = call_node(x, call);
    struct move *m = move_new(x, call, v->n_in);
    const int64_t axis = v->attrs->dimensions.v[0];
    int64_t ds[AP_MAX_RANK], ss[AP_MAX_RANK], at = 0;
    cpu_strides(&v->shape, ds);
    for (int i = 0; i < v->n_in; i++) {
        const struct ap_shape *s = &call_in(x, v, i)->shape;
        cpu_strides(s, ss);
        for (int d = 0; d < s->rank; d++)
            box_add(&m->box[i], s->dims[d], ss[d], ds[d]);
        box_finish(&m->box[i]);
        m->dst[i] += at * ds[axis] * m->size;
        at += s->dims[axis];
    }
    return 0;
}

/* The rank's block of a whole constant, once; padding is 0. */
static const char *constant_block(struct exec *x, const struct ap_node *v)
{
    const int64_t n = ap_shape_elems(&v->shape);
    const int size = ap_dtype_size(v->shape.dtype);
    char *block = ap_arena_alloc(x->arena, (size_t)(n * size + 1));
    const int64_t *map[AP_MAX_RANK];
    int64_t at[AP_MAX_RANK] = {0}, gs[AP_MAX_RANK];
    cpu_strides(v->attrs->global, gs);
    for (int d = 0; d < v->shape.rank; d++)
        map[d] = exec_index_map(x, v->attrs, &v->shape, d);
    for (int64_t i = 0; i < n; i++) {
        int64_t from = 0;
        bool inside = true;
        for (int d = 0; d < v->shape.rank; d++) {
            const int64_t g = map[d] ? map[d][at[d]] : at[d];
            inside &= g >= 0;
            from += g * gs[d];
        }
        if (inside)
            memcpy(block + i * size, (const char *)v->attrs->literal.data + from * size,
                   (size_t)size);
        for (int d = v->shape.rank - 1; d >= 0 && ++at[d] == v->shape.dims[d]; d--)
            at[d] = 0;
    }
    return block;
}

int cpu_constant_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    (void)err;
    const struct ap_node *v = call_node(x, call);
    struct move *m = move_new(x, call, 1);
    const int64_t n = ap_shape_elems(&v->shape);
    if (v->attrs->literal.splat || n == 0) {
        m->n = 0;
        m->fill_dst = m->dst[0];
        m->fill_n = n;
        m->fill_value = n ? v->attrs->literal.data : NULL;
        return 0;
    }
    m->src[0] = v->attrs->global ? constant_block(x, v) : v->attrs->literal.data;
    box_add(&m->box[0], n, 1, 1);
    box_finish(&m->box[0]);
    return 0;
}
