/*
 * Problem: how does a graph lie on the microbatch axis?
 * Idea: as under data parallelism on a mesh of that one axis. Where every size that this
 * plan looked at is a multiple of the number of microbatches, and larger, the plan is the
 * same for all numbers that divide it. Cost: linear in operands.
 */
#include "plan/named_plan.h"
#include "pipeline/stage_cost.h"

/* Nodes made of inputs and constants alone. */
static bool *made_of_inputs(struct ap_arena *arena, const struct ap_graph *g)
{
    bool *inputs = AP_NEW_N(arena, g->n_nodes, bool);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        inputs[i] = n->op != AP_OP_PARAMETER || n->role == AP_ROLE_INPUT ||
                    n->role == AP_ROLE_CONSTANT;
        for (int k = 0; k < n->n_in && inputs[i]; k++)
            inputs[i] = inputs[n->in[k]];
    }
    return inputs;
}

/* [node]: how its value lies on the microbatch axis. */
static struct ap_placement *lay(struct ap_arena *arena, const struct ap_plan *plan)
{
    struct ap_placement *at =
        AP_NEW_N(arena, plan->graph->n_nodes + 1, struct ap_placement);
    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        for (int m = 0; m < nest->n_members && plan->choice[i].axis[0] >= 0; m++)
            at[nest->members[m]] =
                ap_nest_value_layout(nest, plan->graph, &plan->mesh, &plan->choice[i], m)
                    .axis[0];
    }
    return at;
}

/* Nodes that something with a share per microbatch is made of: not the loss's sum, nor a
 * gradient that is complete. */
static bool *that_matter(struct ap_arena *arena, const struct ap_graph *g,
                         const struct ap_placement *at)
{
    bool *matter = AP_NEW_N(arena, g->n_nodes, bool);
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        matter[i] |= at[i].kind == AP_SPLIT;
        for (int k = 0; matter[i] && k < g->nodes[i].n_in; k++)
            matter[g->nodes[i].in[k]] = true;
    }
    return matter;
}

/* Whether a group reads operand k as it lies. */
static bool is_read_so(const struct ap_plan *plan, const struct ap_nest *nest, int k,
                       const struct ap_placement *at)
{
    struct ap_layout has = ap_layout_replicated(), needs = has;
    has.axis[0] = at[nest->ins[k].node];
    if (plan->choice[nest->group].axis[0] >= 0)
        needs = ap_nest_in_layout(nest, plan->graph, &plan->mesh,
                                  &plan->choice[nest->group], k);
    return ap_layout_equal(&has, &needs);
}

/*
 * Marks values that the plan over microbatches would move between them before the update,
 * and what is made of those alone; returns the first, -1 for none.
 */
static int find_whole(struct ap_arena *arena, const struct ap_plan *plan,
                      const struct ap_placement *at, bool **each)
{
    const struct ap_graph *g = plan->graph;
    const bool *inputs = made_of_inputs(arena, g), *matter = that_matter(arena, g, at);
    int first = -1;

    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        bool matters = false;
        for (int o = 0; o < nest->n_outs; o++)
            matters |= matter[nest->outs[o]];
        if (!matters || ap_plan_group_phase(g, nest) == AP_UPDATE)
            continue;
        for (int k = 0; k < nest->n_ins; k++) {
            int node = nest->ins[k].node;
            if (inputs[node] || at[node].kind == AP_REPLICATED ||
                is_read_so(plan, nest, k, at))
                continue;
            if (!*each)
                *each = AP_NEW_N(arena, g->n_nodes, bool);
            (*each)[node] |= at[node].kind == AP_PARTIAL;
            first = first < 0 ? node : first;
        }
    }
    return first;
}

/* What is made of those: as large as of the whole batch, and made with each microbatch.
 */
static void follow_each(const struct ap_graph *g, struct ap_stage_microbatch *micro)
{
    for (int i = 0; i < g->n_nodes && micro->each; i++) {
        const struct ap_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_in && n->phase != AP_UPDATE && !micro->split[i]; k++)
            micro->each[i] |= micro->each[n->in[k]];
    }
}

int ap_stage_microbatch_axis(struct ap_arena *arena, const struct ap_graph *g,
                             const struct ap_nests *nests, int64_t n,
                             struct ap_stage_microbatch *micro, struct ap_err *err)
{
    struct ap_plan plan = {.graph = g, .nests = nests};
    plan.mesh = (struct ap_mesh){.n_axes = 1, .size = {n}, .name = {"time"}};
    *micro = (struct ap_stage_microbatch){.n = n,
                                          .split = AP_NEW_N(arena, g->n_nodes, bool),
                                          .runs = AP_NEW_N(arena, g->n_nodes, bool),
                                          .dim = AP_NEW_N(arena, g->n_nodes, int8_t),
                                          .whole = -1};
    for (int i = 0; i < g->n_nodes; i++)
        micro->dim[i] = -1;
    if (n == 1)
        return 0;
    const int64_t batch = ap_batch_size(g);
    if (batch > 0 && batch < n)
        return ap_err_set(err, "the batch has %lld row%s", (long long)batch,
                          batch == 1 ? "" : "s");
    const struct ap_named_plan_how how = {.even = &micro->even};
    if (ap_named_plan_make(arena, 0, &plan, &how, err)) /* data */
        return -1;
    const struct ap_placement *at = lay(arena, &plan);
    micro->whole = find_whole(arena, &plan, at, &micro->each);
    for (int i = 0; i < g->n_nodes; i++) {
        int c = plan.choice[g->nodes[i].group].axis[0];
        micro->split[i] = at[i].kind == AP_SPLIT;
        const bool one = g->nodes[i].shape.dtype != AP_TUPLE; /* its elements are nodes */
        micro->dim[i] = micro->split[i] && one ? (int8_t)at[i].dim : -1;
        micro->runs[i] = c >= 0 && c < nests->nest[g->nodes[i].group].n_factors;
    }
    follow_each(g, micro);
    return 0;
}

bool ap_stage_microbatch_like(const struct ap_stage_microbatch *t, int64_t n,
                              struct ap_stage_microbatch *micro)
{
    if (n != t->n && (!t->even || n < 2 || t->n % n))
        return false;
    *micro = *t;
    micro->n = n;
    return true;
}

int ap_stage_few_rows(const struct ap_subgraph *sub,
                      const struct ap_stage_microbatch *micro, const struct ap_plan *plan,
                      int64_t *rows, int64_t *devices)
{
    int first = -1;

    for (int i = 0; i < sub->graph.n_params && micro->n > 1; i++) {
        int k = sub->graph.params[i], d = (int)micro->dim[sub->source[k]];
        int64_t split = 1, size;
        if (d < 0 || (first >= 0 && first < k))
            continue;
        struct ap_layout l = ap_plan_node_layout(plan, k);
        for (int a = 0; a < plan->mesh.n_axes; a++)
            if (l.axis[a].kind == AP_SPLIT && l.axis[a].dim == d)
                split *= plan->mesh.size[a];
        size = sub->graph.nodes[k].shape.dims[d];
        if (size % micro->n == 0 && size / micro->n >= split)
            continue;
        first = k;
        *rows = size;
        *devices = split;
    }
    return first;
}
