/*
 * Problem: the plan that a trainer runs for given degrees: one use per axis, the same for
 * every layer, and another one for experts. Idea: the sweeps of the named plans, one axis
 * after the other: the axes that split weights first, so that ZeRO shards the rest; then
 * the batch and the sequence, with states and weights seeded where ZeRO shards them.
 * Where experts use an axis in another way, a sweep of theirs comes first; its choices
 * replace those of the sweep of all others. Where tokens are exchanged for heads, only
 * attentions change. Cost: O(axes * operand slots). Sources: see named_plan_sweep.c; Liu
 * et al., "MoE Parallel Folding" (experts' own grid); Jacobs et al., "DeepSpeed Ulysses".
 */
#include "grid/line_plan.h"
#include "pipeline/stage_cost.h"
#include "plan/named_plan_impl.h"

static bool is_idle(const struct ap_mesh *mesh, int a)
{
    return mesh->size[a] == 1 || (mesh->microbatch >> a & 1);
}

/* One plan of degrees. */
struct maker {
    struct ap_arena *arena;
    const struct ap_axis_uses *u;
    struct ap_plan *plan;
    struct ap_sweep s;
    bool experts;          /* the graph has some, and so has u */
    const bool *of_expert; /* [node]: a weight of experts, or its state; NULL: unknown */
};

/* Experts' use of an axis. */
static enum ap_axis_split expert_use(const struct maker *m, int axis)
{
    const enum ap_axis_split use = m->u->use[axis], own = m->u->expert_use[axis];

    if (m->experts && (own == AP_USE_TENSOR || own == AP_USE_EXPERT))
        return own;
    return m->experts && use == AP_USE_TENSOR ? AP_USE_DATA : use;
}

/* ---- ZeRO ---- */

static void mark_states(const struct maker *m, int weight, int result, int *todo,
                        bool *seen, bool *marks)
{
    const struct ap_graph *g = m->plan->graph;
    int n = 0;

    todo[n++] = result;
    while (n > 0) {
        const struct ap_node *node = &g->nodes[todo[--n]];
        for (int k = 0; k < node->n_in; k++) {
            const int in = node->in[k];
            if (seen[in] ||
                (g->nodes[in].phase != AP_UPDATE && g->nodes[in].op != AP_OP_PARAMETER))
                continue;
            if (!ap_shape_same_dims(&g->nodes[in].shape, &g->nodes[weight].shape))
                continue;
            seen[in] = marks[in] = true;
            todo[n++] = in;
        }
    }
}

/* Weights that contractions of experts read, and the states of their updates. */
static const bool *find_experts(const struct maker *m)
{
    const struct ap_graph *g = m->plan->graph;
    const int *origin = ap_weight_origins(m->arena, g, m->plan->nests);
    bool *marks = AP_NEW_N(m->arena, g->n_nodes, bool);
    bool *seen = AP_NEW_N(m->arena, g->n_nodes, bool);
    int *todo = AP_NEW_N(m->arena, g->n_nodes + 1, int);

    for (int i = 0; i < m->plan->nests->n; i++) {
        const struct ap_nest *nest = &m->plan->nests->nest[i];
        if (ap_sweep_experts_of(&m->s, nest) == 0)
            continue;
        for (int k = 0; k < nest->n_ins; k++) {
            const int from = origin[g->nodes[nest->ins[k].node].group];
            if (from >= 0)
                marks[from] = true;
        }
    }
    for (int r = 0; r < g->n_results; r++) {
        const int weight = g->results[r].alias;
        if (weight >= 0 && marks[weight] && g->nodes[weight].role == AP_ROLE_WEIGHT)
            mark_states(m, weight, g->results[r].node, todo, seen, marks);
    }
    return marks;
}

/* Splits states, and weights, that are whole on the axis, where those that they belong to
 * have different data. */
static void seed_shards(const struct maker *m, int axis, struct ap_sweep *s)
{
    const struct ap_graph *g = m->plan->graph;
    const unsigned all = (1U << m->plan->mesh.n_axes) - 1;
    const int zero = m->u->zero[axis];

    for (int i = 0; i < g->n_params && zero > 0; i++) {
        const int id = g->params[i];
        const struct ap_node *p = &g->nodes[id];
        const bool expert = m->of_expert && m->of_expert[id];
        const enum ap_axis_split use = expert ? expert_use(m, axis) : m->u->use[axis];
        if (use == AP_USE_TENSOR || use == AP_USE_EXPERT ||
            m->plan->choice[p->group].axis[axis] >= 0)
            continue;
        if (p->role == AP_ROLE_STATE ||
            (p->role == AP_ROLE_WEIGHT &&
             (zero == 3 || ap_stage_master_copy_bytes(g, id) > 0)))
            ap_sweep_seed_split(s, id, all, false);
    }
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
        if (!is_idle(mesh, a) && u->use[a] == AP_USE_CONTEXT && !u->exchange[a])
            return a;
    return -1;
}

/* The factor of an attention's heads: the innermost that all operands have; -1. */
static int heads_of(const struct ap_nest *nest)
{
    const struct ap_access *first = &nest->ins[0].access;
    int heads = -1;

    for (int d = 0; d < first->rank; d++)
        for (int j = 0; j < first->dims[d].n; j++) {
            const int f = first->dims[d].factor[j];
            bool all = nest->factors[f].kind == AP_FACTOR_PARALLEL;
            for (int i = 1; i < nest->n_ins; i++)
                all &= nest->ins[i].access.rank < 2 ||
                       ap_access_has(&nest->ins[i].access, f);
            heads = all ? f : heads;
        }
    return heads;
}

/* Attentions that the axis splits by tokens have some heads of all tokens instead. */
static int exchange_heads(const struct maker *m, int axis, struct ap_err *err)
{
    const struct ap_plan *plan = m->plan;

    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        const int f = nest->attention && nest->heavy ? heads_of(nest) : -1;
        int64_t devices = 1;
        if (!nest->attention || !nest->heavy || plan->choice[i].axis[axis] < 0)
            continue;
        plan->choice[i].axis[axis] = (int16_t)f;
        for (int a = 0; a < plan->mesh.n_axes; a++)
            devices *= plan->choice[i].axis[a] == f ? plan->mesh.size[a] : 1;
        plan->choice[i].axis[axis] = -1;
        if (f < 0 || nest->factors[f].size % devices || !ap_sweep_try(&m->s, nest, f))
            return ap_err_set(
                err, "%s: %lld heads of %s are not split over %lld devices",
                plan->mesh.name[axis], (long long)(f < 0 ? 1 : nest->factors[f].size),
                plan->graph->nodes[nest->members[0]].name, (long long)devices);
    }
    return 0;
}

/* The choices of experts on the axis, by group (arena), where they use it in another way
 * than the rest; NULL: they do not. */
static const int16_t *plan_experts(struct maker *m, int axis)
{
    const enum ap_axis_split use = m->u->use[axis], of = expert_use(m, axis);
    const int n = m->plan->nests->n;
    int16_t *own;

    if (of == use || (of != AP_USE_EXPERT && of != AP_USE_TENSOR))
        return NULL;
    ap_sweep_axis(&m->s, axis, of == AP_USE_EXPERT ? AP_SWEEP_EXPERT : AP_SWEEP_TENSOR);
    m->s.experts = AP_EXPERTS_ONLY;
    ap_sweep_run(&m->s);
    m->s.experts = AP_EXPERTS_FIRST;
    own = AP_NEW_N(m->arena, n + 1, int16_t);
    for (int i = 0; i < n; i++) {
        own[i] = m->plan->choice[i].axis[axis];
        m->plan->choice[i].axis[axis] = -1;
    }
    return own;
}

static void take_experts(const struct maker *m, int axis, const int16_t *own)
{
    for (int i = 0; own && i < m->plan->nests->n; i++)
        if (own[i] >= 0)
            m->plan->choice[i].axis[axis] = own[i];
}

/* An axis that splits weights. */
static int plan_weights(struct maker *m, int axis, struct ap_err *err)
{
    const bool sequence = m->u->degrees.sequence;
    const enum ap_axis_split of = expert_use(m, axis);
    struct ap_sweep *s = &m->s;

    const int16_t *own = plan_experts(m, axis);
    s->experts = !m->experts           ? AP_EXPERTS_FIRST
                 : of == AP_USE_TENSOR ? AP_EXPERTS_INSIDE
                                       : AP_EXPERTS_WHOLE;
    if (sequence) {
        if (ap_sweep_start_sequence(m->arena, m->plan, s, axis, err))
            return -1;
    } else { /* each device has all tokens: what its experts make is summed */
        take_experts(m, axis, own);
        ap_sweep_again(s, axis, AP_SWEEP_TENSOR);
    }
    ap_sweep_run(s);
    take_experts(m, axis, own);
    split_gradients(m->arena, m->plan, s);
    if (m->u->zero[axis] > 0 && of == AP_USE_DATA) {
        ap_sweep_again(s, axis, AP_SWEEP_BATCH);
        seed_shards(m, axis, s);
        for (int i = 0; i < m->plan->nests->n; i++)
            s->decided[i] |= !(s->derived[i] || s->update[i]);
        ap_sweep_run(s);
    }
    return 0;
}

/* An axis that splits the batch or the sequence. */
static int plan_data(struct maker *m, int axis, struct ap_err *err)
{
    const struct ap_plan *plan = m->plan;
    const int64_t batch = ap_batch_size(plan->graph);
    struct ap_sweep *s = &m->s;

    const int16_t *own = plan_experts(m, axis);
    s->experts = AP_EXPERTS_FIRST;
    ap_sweep_axis(s, axis, AP_SWEEP_BATCH);
    s->ring = axis == ring_axis(m->u, &plan->mesh);
    if (m->u->use[axis] == AP_USE_CONTEXT) {
        if (ap_sweep_seed_sequence(s) < plan->mesh.size[axis])
            return ap_err_set(err, "no input has a sequence for %lld devices",
                              (long long)plan->mesh.size[axis]);
    } else {
        if (batch < m->u->degrees.data)
            return ap_err_set(err, "batch %lld on %lld devices", (long long)batch,
                              (long long)m->u->degrees.data);
        ap_sweep_seed_batch(s, batch);
    }
    seed_shards(m, axis, s);
    ap_sweep_run(s);
    take_experts(m, axis, own);
    if (m->u->use[axis] == AP_USE_CONTEXT && m->u->exchange[axis])
        return exchange_heads(m, axis, err);
    return s->ring ? check_rings(s, err) : 0;
}

int line_plan_degrees(struct ap_arena *arena, const struct ap_axis_uses *u,
                      struct ap_plan *plan, struct ap_err *err)
{
    struct maker m = {.arena = arena, .u = u, .plan = plan};
    bool apart = false;

    ap_sweep_start(arena, plan, NULL);
    m.s = ap_sweep_new(arena, plan, NULL);
    for (int i = 0; i < plan->nests->n && u->degrees.expert > 0 && !m.experts; i++) {
        m.s.n_experts = ap_sweep_experts_of(&m.s, &plan->nests->nest[i]);
        m.experts = m.s.n_experts > 0;
    }
    for (int a = 0; a < plan->mesh.n_axes; a++)
        apart |= expert_use(&m, a) != u->use[a];
    if (apart)
        m.of_expert = find_experts(&m);
    /* what splits all weights, then what splits experts': shards follow both */
    for (int turn = 2; turn >= 0; turn--)
        for (int a = 0; a < plan->mesh.n_axes; a++) {
            const enum ap_axis_split of = expert_use(&m, a);
            const bool experts = of == AP_USE_TENSOR || of == AP_USE_EXPERT;
            if (is_idle(&plan->mesh, a) || u->use[a] == AP_USE_NONE ||
                turn != (u->use[a] == AP_USE_TENSOR ? 2 : experts))
                continue;
            if (u->use[a] == AP_USE_TENSOR ? plan_weights(&m, a, err)
                                           : plan_data(&m, a, err))
                return -1;
        }
    plan->scatters = u->degrees.zero >= 2;
    for (int i = 0; u->degrees.zero == 3 && i < plan->graph->n_nodes; i++)
        plan->regather[i] = m.s.derived[plan->graph->nodes[i].group] &&
                            plan->graph->nodes[i].role != AP_ROLE_STATE;
    return 0;
}
