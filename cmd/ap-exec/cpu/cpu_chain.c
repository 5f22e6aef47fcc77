/*
 * Chains: elementwise nodes as a flat list of (function, operand registers), run over one
 * tile at a time. A fused pass and the body of a custom reducer are chains; the only
 * per-node cost is one call per tile.
 */
#include "cpu/cpu.h"

#include <string.h>

int chain_add(struct exec *x, struct chain *chain, const struct ap_node *node,
              const struct chain_operand *in, int dst, bool uniform, struct ap_err *err)
{
    struct chain_instr *p = &chain->instr[chain->n_instr++];
    *p = (struct chain_instr){.dst = dst, .uniform = uniform, .round = node->shape.dtype};
    const struct ap_attrs *a = node->attrs;
    p->fn = node->op == AP_OP_COMPARE
                ? cpu_compare_find(a, in[0].dtype)
                : cpu_op_find(node->op, a->direction, in[0].dtype, node->shape.dtype);
    if (!p->fn)
        return exec_unsupported(x, node, err, ap_dtype_name(in[0].dtype));
    for (int i = 0; i < 3; i++) {
        const struct chain_operand *from = &in[i < node->n_in ? i : 0];
        p->src[i] = from->value;
        p->stride[i] = !from->uniform;
    }
    if (node->op == AP_OP_REDUCE_PRECISION) {
        if (a->exponent_bits < 2 || a->exponent_bits > 8 || a->mantissa_bits < 1)
            return exec_unsupported(x, node, err, "these widths");
        int64_t *bits = AP_NEW_N(x->arena, 2, int64_t);
        bits[0] = a->exponent_bits;
        bits[1] = a->mantissa_bits;
        p->aux = bits;
    }
    /* these only move values that are rounded already */
    if (node->op == AP_OP_SELECT || node->op == AP_OP_COPY ||
        node->op == AP_OP_OPT_BARRIER || node->op == AP_OP_BITCAST_CONVERT)
        p->round = AP_F32;
    return 0;
}

void chain_run(const struct chain *chain, void *const *ptr, bool uniform, int64_t n)
{
    for (int i = 0; i < chain->n_instr; i++) {
        const struct chain_instr *p = &chain->instr[i];
        if (p->uniform != uniform)
            continue;
        void *d = ptr[p->dst];
        p->fn(d, ptr[p->src[0]], ptr[p->src[1]], p->aux ? p->aux : ptr[p->src[2]],
              p->stride, n);
        if (!cpu_is_plain(p->round))
            cpu_round(d, p->round, n);
    }
}

/* ---- bodies of reducers ---- */

static int body_node(struct exec *x, const struct ap_reducer *red, struct body *body,
                     int i, bool *uniform, int *slot, struct ap_err *err)
{
    const struct ap_node *v = &red->nodes[i];
    struct chain_operand in[3] = {{v->shape.dtype, 0, false}};
    if (ap_ops[v->op].class != AP_CLASS_ELEMENTWISE)
        return exec_unsupported(x, v, err, "inside a reducer");
    uniform[i] = true;
    for (int k = 0; k < v->n_in && k < 3; k++) {
        const int u = v->in[k];
        in[k] = (struct chain_operand){red->nodes[u].shape.dtype, u, uniform[u]};
        uniform[i] &= uniform[u];
    }
    slot[i] = body->chain.n_values++;
    return chain_add(x, &body->chain, v, in, i, uniform[i], err);
}

int body_prepare(struct exec *x, const struct ap_reducer *red, struct body *body,
                 struct ap_err *err)
{
    const int n = red->n_nodes;
    *body = (struct body){0};
    body->chain.instr = AP_NEW_N(x->arena, n + 1, struct chain_instr);
    body->ptr = AP_NEW_N(x->arena, n + 1, void *);
    bool *uniform = AP_NEW_N(x->arena, n + 1, bool);
    int *slot = AP_NEW_N(x->arena, n + 1, int);
    for (int i = 0; i < n; i++) {
        const struct ap_node *v = &red->nodes[i];
        slot[i] = -1;
        if (v->op == AP_OP_PARAMETER) {
            body->n_params++;
        } else if (v->op == AP_OP_CONSTANT) {
            uniform[i] = true;
            char *value = ap_arena_alloc(x->arena, 16);
            cpu_load(value, v->attrs->literal.data, 1, v->shape.dtype, 1);
            body->ptr[i] = value;
        } else if (body_node(x, red, body, i, uniform, slot, err)) {
            return -1;
        }
    }
    body->slot = slot;
    body->n_results = red->n_results;
    body->result = red->results;
    enum ap_dtype *dtype = AP_NEW_N(x->arena, red->n_results + 1, enum ap_dtype);
    for (int i = 0; i < red->n_results; i++) {
        dtype[i] = red->nodes[red->results[i]].shape.dtype;
        if (uniform[red->results[i]])
            return exec_unsupported(x, &red->nodes[red->results[i]], err,
                                    "as a reducer's constant result");
    }
    body->dtype = dtype;
    body->scratch_bytes = (int64_t)body->chain.n_values * CPU_TILE * 8;
    body->chain.n_values = n;
    const struct ap_node *last = &red->nodes[red->results[0]];
    body->bare_compare = last->op == AP_OP_COMPARE && last->in[0] == 0 &&
                         last->in[1] == 1 && !last->attrs->total_order;
    body->direction = last->attrs->direction;
    return 0;
}

void body_start(struct body *body, char *scratch)
{
    for (int i = 0; i < body->chain.n_values; i++)
        if (body->slot[i] >= 0)
            body->ptr[i] = scratch + (int64_t)body->slot[i] * CPU_TILE * 8;
    chain_run(&body->chain, body->ptr, true, 1);
}

void body_run(struct body *body, int64_t n)
{
    chain_run(&body->chain, body->ptr, false, n);
}

/* ---- combining two registers ---- */

int combine_prepare(struct exec *x, const struct ap_node *v, int reducer,
                    struct combine *c, struct ap_err *err)
{
    const struct ap_reducer *red = &x->prog->local.reducers[reducer];
    c->dtype = v->shape.dtype;
    if (cpu_kind(c->dtype) == CPU_N_KINDS)
        return exec_unsupported(x, v, err, ap_dtype_name(c->dtype));
    if (red->red != AP_RED_NONE && red->red != AP_RED_ASSIGN) {
        c->fn = cpu_op_find(cpu_red_op(red->red), AP_EQ, c->dtype, c->dtype);
        return c->fn ? 0 : exec_unsupported(x, v, err, ap_dtype_name(c->dtype));
    }
    if (red->n_nodes == 0)
        return exec_unsupported(x, v, err, "with a reducer that has no body");
    return body_prepare(x, red, &c->body, err);
}

void combine_run(struct combine *c, void *acc, void *x, int64_t n)
{
    static const int one[3] = {1, 1, 1};
    if (c->fn) {
        c->fn(acc, acc, x, x, one, n);
        return;
    }
    c->body.ptr[0] = acc;
    c->body.ptr[1] = x;
    body_run(&c->body, n);
    memmove(acc, c->body.ptr[c->body.result[0]],
            (size_t)(n * cpu_kind_size(cpu_kind(c->dtype))));
}
