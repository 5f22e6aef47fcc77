/*
 * Problem: the plan that a trainer runs for given degrees: one use per axis, the same for
 * every layer. Idea: the sweeps of the named plans, one axis after the other: the axes
 * that split weights first, so that ZeRO shards the rest; then the batch and the
 * sequence, with states and weights seeded where ZeRO shards them. Cost: O(axes * operand
 * slots). Sources: see named_plan_sweep.c.
 */
#include "plan/degrees.h"

#include "plan/named_plan_impl.h"

static bool is_idle(const struct ap_mesh *mesh, int a)
{
    return mesh->size[a] == 1 || (mesh->microbatch >> a & 1);
}

/* Whether passes read nothing of the weight but its copy of fewer bytes: then ZeRO-1's
 * devices hold a share of it, as of the states, and gather the copy once per step. */
static bool is_master(const struct ap_graph *g, int weight)
{
    const struct ap_node *w = &g->nodes[weight];
    bool any = false;

    for (int u = g->user_start[weight]; u < g->user_start[weight + 1]; u++) {
        const struct ap_node *user = &g->nodes[g->users[u]];
        if (user->phase == AP_UPDATE)
            continue;
        if (user->op != AP_OP_CONVERT ||
            ap_dtype_size(user->shape.dtype) >= ap_dtype_size(w->shape.dtype))
            return false;
        any = true;
    }
    return any;
}

/* Splits states, and weights, that are whole on the axis. */
static void seed_shards(const struct ap_axis_uses *u, int axis,
                        const struct ap_plan *plan, struct ap_sweep *s)
{
    const struct ap_graph *g = plan->graph;
    const unsigned all = (1U << plan->mesh.n_axes) - 1;

    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        if (plan->choice[p->group].axis[axis] < 0 &&
            ((u->zero[axis] >= 1 && p->role == AP_ROLE_STATE) ||
             (p->role == AP_ROLE_WEIGHT &&
              (u->zero[axis] == 3 ||
               (u->zero[axis] >= 1 && is_master(g, g->params[i]))))))
            ap_sweep_seed_split(s, g->params[i], all, false);
    }
}

/* Experts, the batch where there are none; then what is whole is sharded, and what is
 * made of it follows. */
static int plan_experts(const struct ap_axis_uses *u, int axis,
                        const struct ap_plan *plan, struct ap_sweep *s,
                        struct ap_err *err)
{
    if (!ap_sweep_has_experts(s))
        return ap_err_set(err, "no dot is batched over weights (experts)");
    ap_sweep_axis(s, axis, AP_SWEEP_EXPERT);
    ap_sweep_seed_batch(s, ap_batch_size(plan->graph));
    ap_sweep_run(s);
    if (u->zero[axis] == 0)
        return 0;
    seed_shards(u, axis, plan, s);
    s->mode = AP_SWEEP_BATCH;
    for (int i = 0; i < plan->nests->n; i++)
        s->decided[i] =
            !(s->derived[i] || s->update[i]) || plan->choice[i].axis[axis] >= 0;
    ap_sweep_run(s);
    return 0;
}

/* Dimension of a parameter that its choice on the axis splits, -1. */
static int split_dim(const struct ap_plan *plan, int id, int axis)
{
    const struct ap_nest *nest = &plan->nests->nest[plan->graph->nodes[id].group];
    const int c = plan->choice[nest->group].axis[axis];

    for (int d = 0; d < plan->graph->nodes[id].shape.rank && c >= 0; d++)
        for (int j = 0; j < nest->values[0].dims[d].n; j++)
            if (nest->values[0].dims[d].factor[j] == c)
                return d;
    return -1;
}

/* Whether each device has a sum over its own rows of what it is not the product of: a
 * scatter of a table's gradient, and what is made of it. */
static bool is_scattered_sum(const struct ap_plan *plan, const struct ap_nest *nest,
                             int node, int axis)
{
    const struct ap_layout l = ap_plan_node_layout(plan, node);

    return !nest->heavy && l.axis[axis].kind == AP_PARTIAL;
}

/* Splits a value of the dimensions of a weight, that is whole or such a sum, like the
 * weight: rows are gathered for it, as trainers do, not tables summed up. */
static void split_like(const struct ap_plan *plan, const struct ap_sweep *s, int node,
                       int dim)
{
    const struct ap_nest *nest = &plan->nests->nest[plan->graph->nodes[node].group];
    const struct ap_access *value = &nest->values[ap_nest_member(nest, node)];
    int16_t *choice = &plan->choice[nest->group].axis[s->axis];
    const int16_t before = *choice;

    if (dim >= value->rank || value->dims[dim].n == 0)
        return;
    if (before >= 0 && is_scattered_sum(plan, nest, node, s->axis))
        *choice = -1;
    if (*choice < 0 && !ap_sweep_try(s, nest, value->dims[dim].factor[0]))
        *choice = before;
}

/*
 * What the update reads of a weight's gradient lies like the weight, where nothing that
 * it is made of has said otherwise: a scatter (of a table's gradient), what another stage
 * sends of it.
 */
static void split_gradients(struct ap_arena *arena, const struct ap_plan *plan,
                            struct ap_sweep *s)
{
    const struct ap_graph *g = plan->graph;
    int *todo = AP_NEW_N(arena, g->n_nodes + 1, int);
    bool *seen = AP_NEW_N(arena, g->n_nodes, bool);

    for (int r = 0; r < g->n_results; r++) {
        const int weight = g->results[r].alias;
        const int dim = weight < 0 || g->nodes[weight].role != AP_ROLE_WEIGHT
                            ? -1
                            : split_dim(plan, weight, s->axis);
        int n = 0;
        if (dim >= 0)
            todo[n++] = g->results[r].node;
        while (n > 0) {
            const int v = todo[--n];
            split_like(plan, s, v, dim);
            for (int k = 0; k < g->nodes[v].n_in; k++) {
                const int in = g->nodes[v].in[k];
                if (seen[in] ||
                    !ap_shape_same_dims(&g->nodes[in].shape, &g->nodes[weight].shape))
                    continue;
                seen[in] = true;
                todo[n++] = in;
            }
        }
    }
}

/* An axis that splits weights. */
static int plan_weights(struct ap_arena *arena, const struct ap_axis_uses *u, int axis,
                        struct ap_plan *plan, struct ap_sweep *s, struct ap_err *err)
{
    if (u->use[axis] == AP_USE_TENSOR) {
        if (!u->degrees.sequence)
            ap_sweep_axis(s, axis, AP_SWEEP_TENSOR);
        else if (ap_sweep_start_sequence(arena, plan, s, axis, err))
            return -1;
        ap_sweep_run(s);
        split_gradients(arena, plan, s);
        return 0;
    }
    return u->expert_use[axis] == AP_USE_EXPERT ? plan_experts(u, axis, plan, s, err) : 0;
}

/* All attentions that the axis splits are rings. */
static int check_rings(const struct ap_sweep *s, struct ap_err *err)
{
    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        const int c = s->choice[i].axis[s->axis];
        if (nest->attention && nest->heavy && c >= 0 && !ap_choice_is_ring(nest, c))
            return ap_err_set(err, "%s has no ring of %lld devices (ap-fuse)",
                              s->g->nodes[nest->members[0]].name,
                              (long long)s->mesh->size[s->axis]);
    }
    return 0;
}

/* The outermost axis that splits the sequence, where that is a ring; -1: none is. */
static int ring_axis(const struct ap_axis_uses *u, const struct ap_mesh *mesh)
{
    for (int a = 0; u->degrees.ring && a < mesh->n_axes; a++)
        if (!is_idle(mesh, a) && u->use[a] == AP_USE_CONTEXT)
            return a;
    return -1;
}

/* An axis that splits the batch or the sequence. */
static int plan_data(const struct ap_axis_uses *u, int axis, const struct ap_plan *plan,
                     struct ap_sweep *s, struct ap_err *err)
{
    int64_t batch = ap_batch_size(plan->graph);

    ap_sweep_axis(s, axis, AP_SWEEP_BATCH);
    s->ring = axis == ring_axis(u, &plan->mesh);
    if (u->use[axis] == AP_USE_CONTEXT) {
        if (ap_sweep_seed_sequence(s) < plan->mesh.size[axis])
            return ap_err_set(err, "no input has a sequence for %lld devices",
                              (long long)plan->mesh.size[axis]);
    } else {
        if (batch < u->degrees.data)
            return ap_err_set(err, "batch %lld on %lld devices", (long long)batch,
                              (long long)u->degrees.data);
        ap_sweep_seed_batch(s, batch);
    }
    seed_shards(u, axis, plan, s);
    ap_sweep_run(s);
    return s->ring ? check_rings(s, err) : 0;
}

int ap_degrees_plan(struct ap_arena *arena, const struct ap_axis_uses *u,
                    struct ap_plan *plan, struct ap_err *err)
{
    ap_sweep_start(arena, plan, NULL);
    struct ap_sweep s = ap_sweep_new(arena, plan, NULL);
    for (int a = 0; a < plan->mesh.n_axes; a++)
        if (!is_idle(&plan->mesh, a) && plan_weights(arena, u, a, plan, &s, err))
            return -1;
    for (int a = 0; a < plan->mesh.n_axes; a++)
        if (!is_idle(&plan->mesh, a) && u->expert_use[a] != AP_USE_EXPERT &&
            (u->use[a] == AP_USE_DATA || u->use[a] == AP_USE_CONTEXT) &&
            plan_data(u, a, plan, &s, err))
            return -1;
    for (int i = 0; u->degrees.zero == 3 && i < plan->graph->n_nodes; i++)
        plan->regather[i] = s.derived[plan->graph->nodes[i].group] &&
                            plan->graph->nodes[i].role != AP_ROLE_STATE;
    return 0;
}
