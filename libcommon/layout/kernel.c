#include "layout/kernel.h"

#include <string.h>

#include "graph/blocks.h"

const char *const ap_kernel_names[AP_N_KERNELS] = {
    "fused", "move",  "gather", "scatter",     "reduce",    "window",
    "sort",  "other", "dot",    "convolution", "attention", "grouped"};

enum ap_kernel ap_kernel_of(enum ap_op op)
{
    switch (ap_ops[op].class) {
    case AP_CLASS_HEAVY:
        return op == AP_OP_DOT ? AP_KERNEL_DOT : AP_KERNEL_CONVOLUTION;
    case AP_CLASS_REDUCE:
        if (op == AP_OP_REDUCE)
            return AP_KERNEL_REDUCE;
        if (op == AP_OP_REDUCE_WINDOW || op == AP_OP_SELECT_AND_SCATTER)
            return AP_KERNEL_WINDOW;
        return op == AP_OP_SORT || op == AP_OP_TOPK ? AP_KERNEL_SORT : AP_KERNEL_OTHER;
    case AP_CLASS_INDEX:
        if (op == AP_OP_GATHER || op == AP_OP_DYNAMIC_SLICE)
            return AP_KERNEL_GATHER;
        return op == AP_OP_SCATTER || op == AP_OP_DYNAMIC_UPDATE_SLICE ? AP_KERNEL_SCATTER
                                                                       : AP_KERNEL_OTHER;
    case AP_CLASS_MOVE:
        return op == AP_OP_BROADCAST || op == AP_OP_RESHAPE ? AP_KERNEL_FUSED
                                                            : AP_KERNEL_MOVE;
    case AP_CLASS_COLLECTIVE:
    case AP_CLASS_LOCAL:
        return AP_KERNEL_MOVE;
    case AP_CLASS_LEAF:
    case AP_CLASS_ELEMENTWISE:
    case AP_CLASS_TUPLE:
        return AP_KERNEL_FUSED;
    }
    return AP_KERNEL_OTHER;
}

enum ap_kernel ap_kernel_of_group(const struct ap_graph *g, const int *members, int n)
{
    enum ap_kernel last = AP_KERNEL_FUSED;

    for (int m = 0; m < n; m++) {
        enum ap_kernel kernel = ap_kernel_of(g->nodes[members[m]].op);
        last = kernel > last ? kernel : last;
    }
    return last >= AP_KERNEL_DOT && n > 1 ? AP_KERNEL_ATTENTION : last;
}

const int8_t *ap_kernel_experts(struct ap_arena *arena, const struct ap_graph *g)
{
    int8_t *experts = AP_NEW_N(arena, g->n_nodes + 1, int8_t);
    bool *sent = AP_NEW_N(arena, g->n_nodes + 1, bool); /* [node]: tokens, gradients */
    const uint8_t *from = ap_blocks_origins(arena, g);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        experts[v] = -1;
        if (!ap_node_is_of_experts(g, from, v))
            continue;
        experts[v] = from[n->in[0]] == AP_FROM_INPUTS ? 1 : 0;
        sent[n->in[1 - experts[v]]] = true;
    }
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        if (n->op == AP_OP_DOT && n->attrs->lhs_batch_dims.n > 0 && experts[v] < 0 &&
            sent[n->in[0]] && sent[n->in[1]])
            experts[v] = 2;
    }
    return experts;
}

bool ap_kernel_is_precise(const struct ap_graph *g, const int *members, int n)
{
    for (int m = 0; m < n; m++)
        for (int k = 0; k < 2; k++)
            if (g->nodes[members[m]].attrs->operand_precision[k] != AP_PRECISION_DEFAULT)
                return true;
    return false;
}

enum ap_kernel ap_kernel_find(const char *name)
{
    int k = 0;

    while (k < AP_N_KERNELS && strcmp(name, ap_kernel_names[k]) != 0)
        k++;
    return (enum ap_kernel)k;
}
