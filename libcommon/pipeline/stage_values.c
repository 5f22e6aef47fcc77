/*
 * What the price of a stage asks of the graph alone, whatever the plan. Linear in the
 * graph.
 */
#include "pipeline/stage_facts.h"

bool ap_stage_keeps_weight(const struct ap_graph *g, int node)
{
    bool read = false;

    for (int u = g->user_start[node]; u < g->user_start[node + 1] && !read; u++)
        read = g->nodes[g->users[u]].phase == AP_BACKWARD;
    while (g->nodes[node].n_in == 1)
        node = g->nodes[node].in[0];
    return read && g->nodes[node].op == AP_OP_PARAMETER &&
           g->nodes[node].role != AP_ROLE_INPUT;
}

const bool *ap_stage_made_of_scalars(struct ap_arena *arena, const struct ap_graph *g)
{
    bool *free = AP_NEW_N(arena, g->n_nodes, bool);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        free[i] = n->op != AP_OP_PARAMETER;
        for (int k = 0; k < n->n_in && free[i]; k++)
            free[i] = free[n->in[k]] || ap_shape_elems(&g->nodes[n->in[k]].shape) == 1;
    }
    return free;
}

bool ap_stage_is_scalar(const struct ap_graph *g, const struct ap_nest *nest)
{
    for (int k = 0; k < nest->n_ins; k++)
        if (g->nodes[nest->ins[k].node].shape.rank > 0)
            return false;
    for (int o = 0; o < nest->n_outs; o++)
        if (g->nodes[nest->outs[o]].shape.rank > 0)
            return false;
    return true;
}
