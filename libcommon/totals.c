#include "totals.h"

#include "blocks.h"

void ap_totals_of(const struct ap_graph *g, struct ap_totals *t)
{
    *t = (struct ap_totals){0};
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        t->n_phase[node->phase]++;
        t->n_params[node->role] += node->op == AP_OP_PARAMETER;
        if (node->role == AP_ROLE_WEIGHT)
            t->weight_elems = ap_add64(t->weight_elems, ap_shape_elems(&node->shape));
        t->heavy_flops += ap_node_heavy_flops(g, i);
    }
}

void ap_totals_put(const struct ap_graph *g, const struct ap_totals *t,
                   struct ap_buf *out)
{
    ap_put_int(out, "nodes", g->n_nodes);
    ap_put_int(out, "groups", g->n_groups);
    ap_put_int(out, "weights", t->n_params[AP_ROLE_WEIGHT]);
    ap_put_int(out, "states", t->n_params[AP_ROLE_STATE]);
    ap_put_int(out, "inputs", t->n_params[AP_ROLE_INPUT]);
    ap_put_int(out, "constants", t->n_params[AP_ROLE_CONSTANT]);
    ap_put_int(out, "weight_elems", t->weight_elems);
    for (int i = 0; i < AP_N_PHASES; i++)
        ap_put_int(out, ap_phase_names[i], t->n_phase[i]);
    ap_put_key(out, "heavy_flops");
    ap_json_num(out, t->heavy_flops);
}
