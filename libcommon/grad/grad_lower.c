/*
 * Rewrites a graph in f32 to one that contracts in bf16 or f16, as PyTorch's autocast
 * does: dot and convolution in the low type (and, which is ours, what passes an
 * optimization barrier: it is kept between kernels, such as dropout's); reductions,
 * scatters, sorts and functions that lose much in it (exponential, logarithm, power,
 * root) in f32; every other operator in the type that its operands came out in, the wider
 * if they differ. Constants take the type of the other operands. Each value is converted
 * at most once. With cast_weights all but f32 operators read weights in the low type, as
 * FSDP and Megatron-LM do it. Linear.
 */
#include "grad/grad_impl.h"

#include <stdlib.h>

struct lower {
    struct ap_build *b;
    enum ap_dtype low;
    const struct ap_node *old;
    int *base;  /* per old node: its new node */
    int *as;    /* the same in the other of the two types, -1: not made */
    int *read;  /* of a cast weight: what is no contraction reads, -1: not made */
    bool *cast; /* a weight in f32 that all operators read in `low` */
    bool *weak; /* made of constants only: takes either type */
};

static enum ap_dtype type_of(const struct lower *l, int node)
{
    return l->cast[node] ? l->low : l->b->nodes[l->base[node]].shape.dtype;
}

/* The new node of an old one in a type. A weight that is embedding and head is cast for
 * each, since these may be in different stages of a pipeline. */
static int in_type(struct lower *l, int node, enum ap_dtype dtype, bool contraction)
{
    int *as = l->cast[node] && !contraction ? &l->read[node] : &l->as[node];

    if (l->b->nodes[l->base[node]].shape.dtype == dtype)
        return l->base[node];
    if (*as < 0)
        *as = ap_build_convert(l->b, l->base[node], dtype);
    return *as;
}

/* The type in which old node i, which has an operand or result in f32, is made. */
static enum ap_dtype choose(const struct lower *l, const struct ap_node *n)
{
    bool low = false, wide = false;

    switch (ap_ops[n->op].precision) {
    case AP_IN_F32:
        return AP_F32;
    case AP_IN_LOW:
        for (int k = 0; k < n->n_in; k++)
            wide |= l->old[n->in[k]].shape.dtype != AP_F32; /* it has a type already */
        return wide ? AP_F32 : l->low;
    case AP_LIKE_OPERANDS:
        break;
    }
    for (int k = 0; k < n->n_in; k++) {
        if (l->old[n->in[k]].shape.dtype != AP_F32 || l->weak[n->in[k]])
            continue;
        low |= type_of(l, n->in[k]) == l->low;
        wide |= type_of(l, n->in[k]) == AP_F32;
    }
    return low && !wide ? l->low : AP_F32;
}

static bool is_weak(const struct lower *l, const struct ap_node *n)
{
    if (n->op == AP_OP_CONSTANT || n->op == AP_OP_IOTA)
        return true;
    if (n->n_in == 0 || n->op == AP_OP_CONVERT)
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (!l->weak[n->in[k]])
            return false;
    return true;
}

static void lower_node(struct lower *l, int i, const struct ap_grad_params *p)
{
    struct ap_build *b = l->b;
    const struct ap_node *n = &l->old[i];
    struct ap_shape s = n->shape;
    int *in = AP_NEW_N(b->arena, n->n_in + 1, int);
    enum ap_dtype dtype = choose(l, n);
    const bool heavy = ap_ops[n->op].class == AP_CLASS_HEAVY;

    l->weak[i] = is_weak(l, n);
    for (int k = 0; k < n->n_in; k++) {
        bool f32 = l->old[n->in[k]].shape.dtype == AP_F32;
        in[k] = f32 && n->op != AP_OP_CONVERT ? in_type(l, n->in[k], dtype, heavy)
                                              : l->base[n->in[k]];
    }
    if (n->op == AP_OP_PARAMETER && n->role == AP_ROLE_WEIGHT && !p->master_weights)
        dtype = l->low;
    else if (n->n_in == 0 || n->op == AP_OP_CONVERT)
        dtype = AP_F32;
    if (s.dtype == AP_F32)
        s.dtype = dtype;
    b->scope = n->scope;
    b->phase = n->phase;
    if (n->op == AP_OP_CONVERT && ap_build_shape_of(b, in[0])->dtype == s.dtype) {
        l->base[i] = in[0];
        return;
    }
    int id = l->base[i] = ap_build_node(b, n->op, n->name, s, n->attrs, n->n_in, in);
    b->nodes[id].role = n->role;
    b->nodes[id].param = n->param;
    b->nodes[id].pin = n->pin;
    l->cast[i] = p->cast_weights && n->op == AP_OP_PARAMETER &&
                 n->role == AP_ROLE_WEIGHT && s.dtype == AP_F32;
}

int grad_lower(struct ap_build *b, struct ap_grad_params *p, struct ap_err *err)
{
    struct ap_node *old = b->nodes;
    struct lower l = {.b = b, .low = p->compute, .old = old};
    const char *scope = b->scope;
    enum ap_phase phase = b->phase;
    int n = b->n;

    if (p->compute != AP_BF16 && p->compute != AP_F16)
        return 0;
    if (old[p->loss].shape.dtype != AP_F32)
        return ap_err_set(err, "low precision is made from f32, and the loss (%s) is %s",
                          old[p->loss].name, ap_dtype_name(old[p->loss].shape.dtype));
    l.base = AP_NEW_N(b->arena, n, int);
    l.as = AP_NEW_N(b->arena, n, int);
    l.weak = AP_NEW_N(b->arena, n, bool);
    l.cast = AP_NEW_N(b->arena, n, bool);
    l.read = AP_NEW_N(b->arena, n, int);
    b->nodes = NULL;
    b->n = b->cap = 0;
    for (int i = 0; i < n; i++) {
        l.as[i] = l.read[i] = -1;
        lower_node(&l, i, p);
    }
    p->loss = in_type(&l, p->loss, AP_F32, false);
    for (int k = 0; k < p->n_keep; k++) {
        int x = p->keep[k];
        bool f32 = old[x].shape.dtype == AP_F32 && old[x].op != AP_OP_PARAMETER;
        b->phase = old[x].phase;
        b->scope = old[x].scope;
        p->keep[k] = f32 ? in_type(&l, x, AP_F32, false) : l.base[x];
    }
    free(old);
    b->scope = scope;
    b->phase = phase;
    return 0;
}
