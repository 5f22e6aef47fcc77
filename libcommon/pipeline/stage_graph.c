/* Properties of a stage's graph that its price needs, and the layouts in which values
 * leave it. */
#include "pipeline/stage_facts.h"

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

const bool *ap_stage_leaving(struct ap_arena *arena, const struct ap_subgraph *sub)
{
    bool *leaves = AP_NEW_N(arena, sub->graph.n_nodes, bool);
    for (int i = 0; i < sub->n_cut_out; i++)
        leaves[sub->cut_out[i]] = true;
    return leaves;
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

bool ap_stage_is_weight(const struct ap_graph *g, int node)
{
    while (g->nodes[node].n_in == 1)
        node = g->nodes[node].in[0];
    return g->nodes[node].op == AP_OP_PARAMETER && g->nodes[node].role != AP_ROLE_INPUT;
}

bool ap_stage_keeps_weight(const struct ap_graph *g, int node)
{
    bool read = false;

    for (int u = g->user_start[node]; u < g->user_start[node + 1] && !read; u++)
        read = g->nodes[g->users[u]].phase == AP_BACKWARD;
    return read && ap_stage_is_weight(g, node);
}

bool *ap_stage_weights(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *nests, const enum ap_phase *phase,
                       const bool *leaves)
{
    bool *read = AP_NEW_N(arena, nests->n + 1, bool); /* by the rest of the phase */
    bool *weights = AP_NEW_N(arena, nests->n + 1, bool);

    for (int i = nests->n - 1; i >= 0; i--) {
        const struct ap_nest *nest = &nests->nest[i];
        for (int m = 0; m < nest->n_members; m++)
            read[i] |= leaves[nest->members[m]];
        weights[i] = phase[i] == AP_BACKWARD && !read[i];
        for (int k = 0; k < nest->n_ins && phase[i] != AP_UPDATE && !weights[i]; k++)
            read[g->nodes[nest->ins[k].node].group] = true;
    }
    return weights;
}

unsigned ap_stage_read_in(const struct ap_graph *g, const enum ap_phase *phase, int node)
{
    unsigned phases = 0;

    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int group = g->nodes[g->users[u]].group;
        if (group != g->nodes[node].group)
            phases |= 1u << phase[group];
    }
    return phases;
}

struct ap_layout ap_stage_out_layout(const struct ap_plan *plan, int node)
{
    struct ap_layout l = ap_plan_node_layout(plan, node);
    for (int a = 0; a < AP_MAX_AXES; a++)
        if (l.axis[a].kind == AP_PARTIAL)
            l.axis[a] = (struct ap_placement){0};
    return l;
}

int64_t ap_stage_master_copy_bytes(const struct ap_graph *g, int weight)
{
    const struct ap_node *w = &g->nodes[weight];
    int64_t bytes = 0;

    for (int u = g->user_start[weight]; u < g->user_start[weight + 1]; u++) {
        const struct ap_node *user = &g->nodes[g->users[u]];
        if (user->phase == AP_UPDATE)
            continue;
        if (user->op != AP_OP_CONVERT ||
            ap_dtype_size(user->shape.dtype) >= ap_dtype_size(w->shape.dtype))
            return 0;
        bytes = ap_shape_bytes(&user->shape);
    }
    return bytes;
}
