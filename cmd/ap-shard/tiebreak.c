/*
 * Problem: many plans have the least cost. Cutting a replicated tensor is free, so that a
 * batch that every user wants split may lie replicated and be cut by each of them. Among
 * plans with the same cost, finds one that needs fewer bytes per device. Idea:
 * lexicographic descent over the groups of parameters, which lie in memory during the
 * whole step. A group's strategy changes its own seconds, and the conversions and bytes
 * of its tensors and their copies. A strategy that costs no more to the bit and holds
 * less is taken; passes go on until none is found. Cost never rises, so that a bound and
 * a proof of optimality stay valid, and bytes fall with every step, so that the descent
 * ends. Cost: users of parameters, times their strategies. Worth: peaks of U-Net 1.2 %
 * and of Wide-ResNet 0.4 % lower on 4x2, those of BERT, GPT and MoE the same.
 */
#include "tiebreak.h"

#include <math.h>
#include <stdlib.h>

#include "base/array.h"

#define SAME 1e-9 /* relative difference of prices that rounding explains */

/* Seconds and bytes that depend on one group's strategy. */
struct held {
    double sec, bytes;
    int n_copies;
};

struct descent {
    const struct shard_space *space;
    const struct ap_graph *graph;
    const struct ap_mesh *mesh;
    const struct ap_cost *cost;
    struct ap_plan *plan;
    struct select_users users;
    int *tensor; /* those whose conversions the group at hand can change */
    int n_tensors, cap_tensors;
    struct ap_layout *target; /* of the tensor at hand */
    bool *later;              /* [target]: a copy for the phases after the forward one */
    int n_targets, cap_targets, cap_later;
};

static void put_tensor(struct descent *d, int node)
{
    for (int i = 0; i < d->n_tensors; i++)
        if (d->tensor[i] == node)
            return;
    AP_ROOM(d->tensor, d->n_tensors, d->cap_tensors);
    d->tensor[d->n_tensors++] = node;
}

/* What the group makes and reads, and results that are to lie like its parameter. */
static void list_tensors(struct descent *d, const struct ap_nest *nest,
                         const int *results)
{
    d->n_tensors = 0;
    for (int i = 0; i < nest->n_outs; i++)
        put_tensor(d, nest->outs[i]);
    for (int i = 0; i < nest->n_ins; i++)
        put_tensor(d, nest->ins[i].node);
    for (int m = 0; m < nest->n_members; m++)
        if (results[nest->members[m]] >= 0)
            put_tensor(d, results[nest->members[m]]);
}

static struct ap_layout use_layout(const struct descent *d, const struct select_use *use,
                                   const struct ap_layout *home)
{
    if (use->slot == SELECT_TAKEN)
        return ap_layout_whole(home);
    if (use->group < 0)
        return ap_layout_replicated();
    const struct ap_nest *nest = &d->plan->nests->nest[use->group];
    const struct ap_choice_vec *c = &d->plan->choice[use->group];
    return use->slot >= 0 ? ap_nest_in_layout(nest, d->graph, d->mesh, c, use->slot)
                          : ap_nest_value_layout(nest, d->graph, d->mesh, c,
                                                 ap_nest_member(nest, use->alias));
}

/* Whether the copy is made already; notes it. */
static bool is_made(struct descent *d, const struct ap_layout *l, bool later)
{
    for (int i = 0; i < d->n_targets; i++)
        if (d->later[i] == later && ap_layout_equal(&d->target[i], l))
            return true;
    AP_ROOM(d->later, d->n_targets, d->cap_later);
    AP_ROOM(d->target, d->n_targets, d->cap_targets);
    d->target[d->n_targets] = *l;
    d->later[d->n_targets++] = later;
    return false;
}

/* A tensor and its copies under the plan; what becomes a parameter takes that one's
 * place.
 */
static void add_tensor(struct descent *d, int node, struct held *held)
{
    const struct ap_shape *shape = &d->graph->nodes[node].shape;
    const struct ap_layout home = ap_plan_node_layout(d->plan, node);
    bool again = d->plan->regather && d->plan->regather[node];

    held->bytes += (double)ap_layout_local_bytes(d->mesh, shape, &home);
    d->n_targets = 0;
    select_users_of(&d->users, node);
    for (int u = 0; u < d->users.n; u++) {
        const struct select_use *use = &d->users.uses[u];
        struct ap_layout to = use_layout(d, use, &home);
        bool later =
            again && (use->slot < 0 ||
                      ap_plan_group_phase(d->graph, &d->plan->nests->nest[use->group]) !=
                          AP_FORWARD);
        if (ap_layout_equal(&to, &home) || is_made(d, &to, later))
            continue;
        held->n_copies++;
        held->sec += ap_convert_sec(d->cost, shape, &home, &to) *
                     (d->cost->weighting ? d->cost->weighting->tensor[node] : 1);
        if (use->alias < 0)
            held->bytes += (double)ap_layout_local_bytes(d->mesh, shape, &to);
    }
}

static struct held of_strategy(struct descent *d, int group, int s)
{
    const struct ap_choice_vec before = d->plan->choice[group];
    struct held held = {d->space->sec[group][s], 0, 0};

    d->plan->choice[group] = d->space->choice[group][s];
    for (int i = 0; i < d->n_tensors; i++)
        add_tensor(d, d->tensor[i], &held);
    d->plan->choice[group] = before;
    return held;
}

/* True if the parameter's group took another strategy. */
static bool settle(struct descent *d, int group, const int *results)
{
    const double *sec = d->space->sec[group];
    int now = shard_space_find(d->space, group, &d->plan->choice[group]), best = now;
    struct held least = {0};

    if (now < 0)
        return false;
    list_tensors(d, &d->plan->nests->nest[group], results);
    least = of_strategy(d, group, now);
    if (least.n_copies == 0) /* all lies as it is needed */
        return false;
    for (int s = 0; s < d->space->n[group]; s++) {
        if (s == now || sec[s] > sec[now])
            continue;
        struct held held = of_strategy(d, group, s);
        if (held.sec > least.sec || held.bytes >= least.bytes)
            continue;
        best = s;
        least = held;
    }
    if (best != now)
        d->plan->choice[group] = d->space->choice[group][best];
    return best != now;
}

/* [node]: the result that becomes this parameter, -1 for none. */
static int *results_of(struct ap_arena *arena, const struct ap_graph *g)
{
    int *result = AP_NEW_N(arena, g->n_nodes + 1, int);

    for (int i = 0; i < g->n_nodes; i++)
        result[i] = -1;
    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].alias >= 0)
            result[g->results[r].alias] = g->results[r].node;
    return result;
}

void shard_tiebreak(const struct shard_space *space, struct ap_plan *plan)
{
    struct ap_arena scratch = {0};
    struct descent d = {.space = space,
                        .graph = space->graph,
                        .mesh = &space->cost->mesh,
                        .cost = space->cost,
                        .plan = plan};
    const int *results = results_of(&scratch, d.graph);
    bool changed = true;

    select_users_init(&scratch, d.graph, plan->nests, &d.users);
    while (changed) {
        changed = false;
        for (int p = 0; p < d.graph->n_params; p++) {
            const int group = d.graph->nodes[d.graph->params[p]].group;
            if (space->n[group] > 1)
                changed |= settle(&d, group, results);
        }
    }
    select_users_free(&d.users);
    free(d.tensor);
    free(d.target);
    free(d.later);
    ap_arena_free(&scratch);
}

void shard_take_cheaper(struct shard_answer *answer, const struct ap_plan *plan,
                        double sec)
{
    if (sec > answer->objective * (1 + SAME))
        return;
    answer->plan = *plan;
    if (sec >= answer->objective * (1 - SAME))
        return;
    answer->objective = sec;
    answer->bound = fmin(answer->bound, sec);
}

void shard_break_ties(struct ap_arena *arena, const struct shard_space *space,
                      struct shard_answer *answer)
{
    struct ap_plan plan = answer->plan;
    struct ap_conversions conv;
    struct ap_err err = {0};

    plan.choice =
        ap_arena_dup(arena, plan.choice, (size_t)plan.nests->n * sizeof *plan.choice);
    shard_tiebreak(space, &plan);
    const struct ap_mark mark = ap_arena_mark(arena);
    const double sec = shard_price(arena, &plan, space->cost, &conv, &err);
    ap_arena_rewind(arena, mark);
    shard_take_cheaper(answer, &plan, sec);
}
