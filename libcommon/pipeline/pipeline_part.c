/*
 * The part of a pipeline that the ranks of one lane need: the programs of their own
 * stages, and the values that they exchange with other stages. A rank's memory therefore
 * grows with its lane's stages; of other stages it has the parameters and results.
 */
#include "pipeline/pipeline_program.h"

/* A stage of another lane, its operators left out: a result that an operator makes stands
 * as a parameter of its shape after the others. */
static struct ap_pipeline_stage outline(struct ap_arena *arena,
                                        const struct ap_pipeline_stage *of)
{
    const struct ap_graph *from = &of->prog.local;
    const int n = from->n_params + from->n_results;
    struct ap_pipeline_stage st = {.lane = of->lane, .prog = of->prog};
    struct ap_graph *g = &st.prog.local;
    int *params = AP_NEW_N(arena, n + 1, int), *number = AP_NEW_N(arena, n + 1, int);
    int *result = AP_NEW_N(arena, from->n_results + 1, int);

    *g = (struct ap_graph){.name = from->name, .n_results = from->n_results};
    g->nodes = AP_NEW_N(arena, n + 1, struct ap_node);
    g->results = AP_NEW_N(arena, from->n_results + 1, struct ap_result);
    for (int k = 0; k < from->n_params; k++) {
        number[k] = of->param[k];
        g->nodes[g->n_nodes] = from->nodes[from->params[k]];
        g->nodes[g->n_nodes++].group = -1;
    }
    for (int r = 0; r < from->n_results; r++) {
        const struct ap_result *res = &from->results[r];
        const struct ap_node *v = &from->nodes[res->node];
        result[r] = of->result[r];
        g->results[r] = *res;
        g->results[r].node = v->op == AP_OP_PARAMETER ? v->param : g->n_nodes;
        if (res->alias >= 0)
            g->results[r].alias = from->nodes[res->alias].param;
        if (v->op == AP_OP_PARAMETER)
            continue;
        number[g->n_nodes] = -1;
        g->nodes[g->n_nodes] = (struct ap_node){.op = AP_OP_PARAMETER,
                                                .name = v->name,
                                                .shape = v->shape,
                                                .scope = "",
                                                .param = g->n_nodes,
                                                .group = -1,
                                                .attrs = &ap_attrs_default};
        g->n_nodes++;
    }
    for (int i = 0; i < g->n_nodes; i++)
        params[i] = i;
    g->params = params;
    g->n_params = g->n_nodes;
    st.param = number;
    st.result = result;
    st.prog.buffer = AP_NEW_N(arena, n + 1, struct ap_buffer);
    for (int i = 0; i < g->n_nodes; i++)
        st.prog.buffer[i] = (struct ap_buffer){-1, 0, -1};
    st.prog.source = AP_NEW_N(arena, n + 1, int);
    return st;
}

struct ap_pipeline_program
ap_pipeline_part(struct ap_arena *arena, const struct ap_pipeline_program *of, int lane)
{
    struct ap_pipeline_program r = *of;

    r.stage = AP_NEW_N(arena, r.n_stages + 1, struct ap_pipeline_stage);
    for (int s = 0; s < r.n_stages; s++)
        r.stage[s] =
            of->stage[s].lane == lane ? of->stage[s] : outline(arena, &of->stage[s]);
    r.lane = AP_NEW_N(arena, r.n_lanes + 1, struct ap_lane);
    for (int i = 0; i < r.n_lanes; i++) {
        r.lane[i] = of->lane[i];
        if (i != lane)
            r.lane[i].n = 0;
    }
    return r;
}
