#include "tool/totals.h"
#include "doc/doc.h"

#include <stdlib.h>

#include "graph/blocks.h"

/* FLOPs of the contractions among nodes; a loop's count times its trips (once if they are
 * not known). of_comp: those of each computation before. */
static double sum_flops(const struct ap_graph *g, const double *of_comp)
{
    double sum = 0;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        sum += ap_node_heavy_flops(g, i);
        if (node->op != AP_OP_WHILE)
            continue;
        int64_t trips = node->attrs->trip_count < 0 ? 1 : node->attrs->trip_count;
        sum += (double)trips * of_comp[node->attrs->body] +
               (double)(trips + 1) * of_comp[node->attrs->condition];
    }
    return sum;
}

static double all_flops(const struct ap_graph *g)
{
    double *of_comp = ap_xrealloc(NULL, ((size_t)g->n_comps + 1) * sizeof(*of_comp));

    for (int c = 0; c < g->n_comps; c++) {
        struct ap_graph inner = {.n_nodes = g->comps[c].n_nodes,
                                 .nodes = g->comps[c].nodes};
        of_comp[c] = sum_flops(&inner, of_comp);
    }
    double sum = sum_flops(g, of_comp);
    free(of_comp);
    return sum;
}

void ap_totals_of(const struct ap_graph *g, struct ap_totals *t)
{
    *t = (struct ap_totals){0};
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        t->n_phase[node->phase]++;
        t->n_params[node->role] += node->op == AP_OP_PARAMETER;
        if (node->role == AP_ROLE_WEIGHT)
            t->weight_elems = ap_add64(t->weight_elems, ap_shape_elems(&node->shape));
    }
    t->heavy_flops = all_flops(g);
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
