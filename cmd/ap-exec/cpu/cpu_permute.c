/*
 * Products that are written transposed. Problem: the gradient of a weight comes as a dot
 * and a transpose of it, and so do attention's results; a transpose reads and writes its
 * tensor with strides. Idea: BLAS writes a matrix with any row stride, and its transpose
 * if the operands change places. A dot that only a transpose reads is therefore written
 * in the transpose's order: straight to the transpose's place, if nothing else is read or
 * written there from the dot to the transpose, else to its own, and the transpose is a
 * plain copy. Cost: linear in the calls between the two.
 */
#include "cpu/cpu.h"

static bool overlap(const char *a, int64_t n, const char *b, int64_t m)
{
    return a && b && a < b + m && b < a + n;
}

/* Whether a call reads or writes one of the n bytes at p; true also where that is not
 * known. */
static bool touches(const struct exec *x, const struct call *call, const char *p,
                    int64_t n)
{
    const struct ap_node *nodes = x->prog->local.nodes;
    for (int m = 0; m < call->n_nodes; m++) {
        const struct ap_node *v = &nodes[call->nodes[m]];
        if (v->shape.dtype == AP_TUPLE ||
            overlap(x->value[call->nodes[m]], ap_shape_bytes(&v->shape), p, n))
            return true;
        for (int k = 0; k < v->n_in; k++) {
            const struct ap_shape *s = &nodes[v->in[k]].shape;
            if (s->dtype == AP_TUPLE ||
                overlap(x->value[v->in[k]], ap_shape_bytes(s), p, n))
                return true;
        }
    }
    return false;
}

static bool runs_each(const struct exec *x, int node)
{
    const int group = x->prog->local.nodes[node].group;
    return group >= x->prog->each_lo && group < x->prog->each_hi;
}

bool cpu_place_is_free(const struct exec *x, int dot, int to)
{
    const struct ap_graph *g = &x->prog->local;
    const int64_t bytes = ap_shape_bytes(&g->nodes[to].shape);
    if (x->place.shared || x->prog->buffer[to].offset < 0 ||
        runs_each(x, dot) != runs_each(x, to))
        return false;
    for (int c = x->call_of[dot]; c < x->call_of[to]; c++)
        if (touches(x, &x->calls[c], x->value[to], bytes))
            return false;
    return true;
}

void cpu_permute(struct exec *x, const bool *aside)
{
    const struct ap_graph *g = &x->prog->local;
    x->permuted = AP_NEW_N(x->arena, g->n_nodes + 1, int);
    for (int i = 0; i < g->n_nodes; i++)
        x->permuted[i] = -1;
    for (int i = 0; i < g->n_nodes; i++) {
        const int dot = g->nodes[i].op == AP_OP_TRANSPOSE ? g->nodes[i].in[0] : -1;
        if (dot < 0 || g->nodes[dot].op != AP_OP_DOT || x->call_of[i] < 0 || aside[i] ||
            aside[dot] || g->user_start[dot + 1] - g->user_start[dot] != 1 ||
            ap_graph_is_result(g, dot) || !cpu_writes_permuted(g, dot, &g->nodes[i]))
            continue;
        x->permuted[dot] = i;
        if (cpu_place_is_free(x, dot, i))
            x->value[dot] = x->value[i];
    }
}
