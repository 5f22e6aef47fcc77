/*
 * Problem: choose one strategy per fusion group so that compute plus conversions cost
 * least, a conversion being paid once per tensor and target layout (Alpa, section 4, pays
 * it per consumer). Idea: groups are the nodes of a selection problem (problem.h); for a
 * tensor and a layout that several groups may ask for, a copy node (absent, made) stands
 * between producer and consumers: "made" costs the conversion from the producer's layout,
 * "absent" is forbidden to a consumer that needs the layout. A layout that only one group
 * can ask for is charged on a direct edge. Cost: one table per edge; conversions are
 * priced once per pair of distinct layouts.
 */
#include "shard.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

const struct shard_solver shard_solvers[] = {
    {"exact", "reductions, dual bound and branch and bound", ap_solve_exact, 100},
    {"glpk", "integer program in GLPK, as the papers state it", ap_solve_glpk, 0},
    {NULL, NULL, NULL, 0},
};

/* A group's need of a tensor: target layout (number in the tensor's list) per strategy.
 */
struct use {
    int group;
    int *target;
};

/* All that concerns one tensor. */
struct tensor {
    int node, home;
    int n_uses, cap_uses;
    struct use *uses;
    bool whole; /* a result that must end up replicated */
    int n_layouts;
    struct ap_layout *layouts; /* distinct targets */
    int cap_layouts;
    int n_homes;
    struct ap_layout *homes; /* distinct layouts of the producer */
    int *home_of;            /* per strategy of the home group */
    double *conv;            /* [home layout][target] */
};

struct builder {
    struct ap_arena *arena;
    const struct shard_space *space;
    int *member; /* per node: position in its group */
    int n_nodes, cap_nodes;
    int *n_strategies;
    const double **cost;
    int n_edges, cap_edges;
    struct ap_problem_edge *edges;
    double **home_cost; /* unary costs of groups, written to while building */
};

static int add_node(struct builder *b, int n, const double *cost)
{
    if (b->n_nodes == b->cap_nodes) {
        b->cap_nodes = b->cap_nodes ? 2 * b->cap_nodes : 1024;
        size_t cap = (size_t)b->cap_nodes;
        b->n_strategies = ap_xrealloc(b->n_strategies, cap * sizeof *b->n_strategies);
        b->cost = ap_xrealloc(b->cost, cap * sizeof *b->cost);
    }
    b->n_strategies[b->n_nodes] = n;
    b->cost[b->n_nodes] = cost;
    return b->n_nodes++;
}

static void add_edge(struct builder *b, int x, int y, const double *cost)
{
    if (b->n_edges == b->cap_edges) {
        b->cap_edges = b->cap_edges ? 2 * b->cap_edges : 4096;
        b->edges = ap_xrealloc(b->edges, (size_t)b->cap_edges * sizeof *b->edges);
    }
    b->edges[b->n_edges++] = (struct ap_problem_edge){x, y, cost};
}

static int intern(struct ap_layout **list, int *n, int *cap, const struct ap_layout *l)
{
    for (int i = 0; i < *n; i++)
        if (ap_layout_equal(&(*list)[i], l))
            return i;
    if (*n == *cap) {
        *cap = *cap ? 2 * *cap : 16;
        *list = ap_xrealloc(*list, (size_t)*cap * sizeof **list);
    }
    (*list)[*n] = *l;
    return (*n)++;
}

static int *add_use(struct builder *b, struct tensor *t, int group)
{
    if (t->n_uses == t->cap_uses) {
        t->cap_uses = t->cap_uses ? 2 * t->cap_uses : 8;
        t->uses = ap_xrealloc(t->uses, (size_t)t->cap_uses * sizeof *t->uses);
    }
    int *target = AP_NEW_N(b->arena, b->space->n[group], int);
    t->uses[t->n_uses++] = (struct use){group, target};
    return target;
}

/* ---- what a tensor's users need ---- */

static void collect_uses(struct builder *b, struct tensor *t)
{
    const struct shard_space *sp = b->space;
    const struct ap_graph *g = sp->graph;
    int last = -1;

    for (int k = g->user_start[t->node]; k < g->user_start[t->node + 1]; k++) {
        int group = g->nodes[g->users[k]].group;
        bool seen = group == t->home || group == last;
        for (int u = 0; u < t->n_uses && !seen; u++)
            seen = t->uses[u].group == group;
        last = group;
        if (seen)
            continue;
        const struct ap_nest *nest = &sp->nests->nest[group];
        for (int i = 0; i < nest->n_ins; i++) {
            if (nest->ins[i].node != t->node)
                continue;
            int *target = add_use(b, t, group);
            for (int s = 0; s < sp->n[group]; s++) {
                struct ap_layout l =
                    ap_nest_in_layout(nest, g, &sp->cost->mesh, &sp->choice[group][s], i);
                target[s] = intern(&t->layouts, &t->n_layouts, &t->cap_layouts, &l);
            }
        }
    }
}

static void collect_result(struct builder *b, struct tensor *t, int alias)
{
    const struct shard_space *sp = b->space;

    if (alias < 0) {
        t->whole = true;
        return;
    }
    int group = sp->graph->nodes[alias].group;
    if (group == t->home)
        return;
    int *target = add_use(b, t, group);
    for (int s = 0; s < sp->n[group]; s++) {
        struct ap_layout l =
            ap_nest_value_layout(&sp->nests->nest[group], sp->graph, &sp->cost->mesh,
                                 &sp->choice[group][s], b->member[alias]);
        target[s] = intern(&t->layouts, &t->n_layouts, &t->cap_layouts, &l);
    }
}

static void price_tensor(struct builder *b, struct tensor *t)
{
    const struct shard_space *sp = b->space;
    const struct ap_shape *shape = &sp->graph->nodes[t->node].shape;
    int cap = 0;

    t->home_of = AP_NEW_N(b->arena, sp->n[t->home], int);
    for (int s = 0; s < sp->n[t->home]; s++) {
        struct ap_layout l =
            ap_nest_value_layout(&sp->nests->nest[t->home], sp->graph, &sp->cost->mesh,
                                 &sp->choice[t->home][s], b->member[t->node]);
        t->home_of[s] = intern(&t->homes, &t->n_homes, &cap, &l);
    }
    t->conv =
        ap_xrealloc(NULL, (size_t)(t->n_homes * t->n_layouts + 1) * sizeof *t->conv);
    for (int h = 0; h < t->n_homes; h++)
        for (int r = 0; r < t->n_layouts; r++) {
            double sec = ap_convert_sec(sp->cost, shape, &t->homes[h], &t->layouts[r]);
            t->conv[h * t->n_layouts + r] = isfinite(sec) ? sec : AP_FORBIDDEN;
        }
}

/* ---- nodes and edges of one tensor ---- */

static bool costs_nothing(const struct tensor *t, int r)
{
    for (int h = 0; h < t->n_homes; h++)
        if (t->conv[h * t->n_layouts + r] > 0)
            return false;
    return true;
}

/* Adds layout r to the direct edge's table (allocated on first use). */
static void charge_direct(struct builder *b, const struct tensor *t, int group, int r,
                          double **table)
{
    const struct shard_space *sp = b->space;
    int n = sp->n[group];

    if (!*table) {
        *table = AP_NEW_N(b->arena, (int64_t)sp->n[t->home] * n, double);
        add_edge(b, t->home, group, *table);
    }
    for (int s = 0; s < n; s++) {
        bool needs = false;
        for (int u = 0; u < t->n_uses && !needs; u++)
            needs = t->uses[u].group == group && t->uses[u].target[s] == r;
        if (!needs)
            continue;
        for (int h = 0; h < sp->n[t->home]; h++)
            (*table)[h * n + s] += t->conv[t->home_of[h] * t->n_layouts + r];
    }
}

static void charge_copy(struct builder *b, const struct tensor *t, int r)
{
    static const double free_of_charge[2] = {0, 0};
    const struct shard_space *sp = b->space;
    int copy = add_node(b, 2, free_of_charge);
    double *made = AP_NEW_N(b->arena, 2 * sp->n[t->home], double);

    for (int h = 0; h < sp->n[t->home]; h++)
        made[2 * h + 1] = t->conv[t->home_of[h] * t->n_layouts + r];
    add_edge(b, t->home, copy, made);
    for (int u = 0; u < t->n_uses; u++) {
        int group = t->uses[u].group, n = sp->n[group];
        double *table = NULL;
        for (int s = 0; s < n; s++) {
            if (t->uses[u].target[s] != r)
                continue;
            if (!table) {
                table = AP_NEW_N(b->arena, 2 * n, double);
                add_edge(b, copy, group, table);
            }
            table[s] = AP_FORBIDDEN;
        }
    }
}

static void charge_tensor(struct builder *b, struct tensor *t)
{
    const struct shard_space *sp = b->space;
    double **direct = ap_xrealloc(NULL, (size_t)(t->n_uses + 1) * sizeof *direct);
    struct ap_layout whole = ap_layout_replicated();

    memset(direct, 0, (size_t)(t->n_uses + 1) * sizeof *direct);
    if (t->whole)
        intern(&t->layouts, &t->n_layouts, &t->cap_layouts, &whole);
    price_tensor(b, t);
    for (int r = 0; r < t->n_layouts; r++) {
        int only = -1; /* the one group that may need r; -2: several */
        if (costs_nothing(t, r))
            continue;
        if (t->whole && ap_layout_equal(&t->layouts[r], &whole)) {
            for (int s = 0; s < sp->n[t->home]; s++)
                b->home_cost[t->home][s] += t->conv[t->home_of[s] * t->n_layouts + r];
            continue;
        }
        int first = 0;
        for (int u = 0; u < t->n_uses && only != -2; u++) {
            bool needs = false;
            for (int s = 0; s < sp->n[t->uses[u].group] && !needs; s++)
                needs = t->uses[u].target[s] == r;
            if (!needs || t->uses[u].group == only)
                continue;
            if (only == -1)
                first = u;
            only = only == -1 ? t->uses[u].group : -2;
        }
        if (only >= 0)
            charge_direct(b, t, only, r, &direct[first]);
        else if (only == -2)
            charge_copy(b, t, r);
    }
    free(direct);
}

static void tensor_free(struct tensor *t)
{
    free(t->uses);
    free(t->layouts);
    free(t->homes);
    free(t->conv);
}

static void build(struct builder *b)
{
    const struct shard_space *sp = b->space;
    const struct ap_graph *g = sp->graph;
    int *first_result = AP_NEW_N(b->arena, g->n_nodes, int);
    int *next_result = AP_NEW_N(b->arena, g->n_results + 1, int);

    b->member = AP_NEW_N(b->arena, g->n_nodes, int);
    b->home_cost = AP_NEW_N(b->arena, sp->nests->n, double *);
    for (int i = 0; i < sp->nests->n; i++) {
        for (int m = 0; m < sp->nests->nest[i].n_members; m++)
            b->member[sp->nests->nest[i].members[m]] = m;
        b->home_cost[i] =
            ap_arena_dup(b->arena, sp->sec[i], (size_t)sp->n[i] * sizeof(double));
        add_node(b, sp->n[i], b->home_cost[i]);
    }
    for (int r = g->n_results; r >= 1; r--) { /* 1-based lists, 0 ends */
        next_result[r] = first_result[g->results[r - 1].node];
        first_result[g->results[r - 1].node] = r;
    }
    for (int i = 0; i < sp->nests->n; i++) {
        const struct ap_nest *nest = &sp->nests->nest[i];
        for (int o = 0; o < nest->n_outs; o++) {
            struct tensor t = {.node = nest->outs[o], .home = i};
            collect_uses(b, &t);
            for (int r = first_result[t.node]; r; r = next_result[r])
                collect_result(b, &t, g->results[r - 1].alias);
            charge_tensor(b, &t);
            tensor_free(&t);
        }
    }
}

/* ---- a plan as a start, and the answer as a plan ---- */

static int *start_choice(const struct builder *b, const struct ap_problem *p,
                         const struct ap_plan *start)
{
    const struct shard_space *sp = b->space;
    int *choice = AP_NEW_N(b->arena, p->n_nodes, int);

    for (int i = 0; i < sp->nests->n; i++) {
        choice[i] = shard_space_find(sp, i, &start->choice[i]);
        if (choice[i] < 0)
            return NULL; /* not in the space (pins) */
    }
    for (int e = 0; e < p->n_edges; e++) { /* a copy is made where somebody needs it */
        const struct ap_problem_edge *edge = &p->edges[e];
        if (edge->a >= sp->nests->n && edge->cost[choice[edge->b]] >= AP_FORBIDDEN)
            choice[edge->a] = 1;
    }
    return choice;
}

static void set_answer(const struct shard_space *space, const struct ap_solution *sol,
                       struct shard_answer *answer)
{
    struct ap_arena *arena = space->arena;
    answer->plan = (struct ap_plan){
        .graph = space->graph, .nests = space->nests, .mesh = space->cost->mesh};
    answer->plan.choice = AP_NEW_N(arena, space->nests->n, struct ap_choice_vec);
    answer->plan.remake = AP_NEW_N(arena, space->graph->n_nodes, bool);
    for (int i = 0; i < space->nests->n; i++)
        answer->plan.choice[i] = space->choice[i][sol->choice[i]];
    answer->objective = sol->objective;
    answer->bound = sol->bound;
    answer->stopped = sol->stopped;
}

/* The space, and the cheapest plan at hand in it; the search keeps what it gathered. */
static int build_space(struct ap_arena *arena, const struct shard_task *task,
                       struct shard_space *space, struct ap_plan *start,
                       struct ap_err *err)
{
    struct ap_plan *plans = AP_NEW_N(arena, task->n_plans + 1, struct ap_plan);
    int best = -1;
    for (int i = 0; i < task->n_plans; i++) {
        plans[i] = task->plans[i];
        plans[i].remake = NULL;
        if (best < 0 || task->plan_sec[i] < task->plan_sec[best])
            best = i;
    }
    if (best >= 0)
        *start = plans[best];
    return shard_space_build(arena, task->graph, task->nests, task->cost, task->params,
                             task->pins, plans, task->n_plans, space, err);
}

int shard_ilp(struct ap_arena *arena, const struct shard_task *task,
              struct shard_answer *answer, struct ap_err *err)
{
    double t0 = ap_now_sec();
    struct shard_space space = {0};
    struct ap_plan start = {0};
    if (build_space(arena, task, &space, &start, err))
        return -1;

    struct builder b = {.arena = arena, .space = &space};
    build(&b);
    struct ap_problem p = {.n_nodes = b.n_nodes,
                           .n_edges = b.n_edges,
                           .n_strategies = b.n_strategies,
                           .cost = b.cost,
                           .edges = b.edges};
    const struct shard_params *params = task->params;
    const struct shard_solver *solver = &shard_solvers[params->solver];
    struct ap_solve_params sp = {.work_limit = params->work_limit ? params->work_limit
                                                                  : solver->work_limit};
    struct ap_solution sol;
    if (start.choice)
        sp.start = start_choice(&b, &p, &start);
    double t1 = ap_now_sec();
    int rc = solver->run(arena, &p, &sp, &sol, err);
    if (rc == 0) {
        set_answer(&space, &sol, answer);
        answer->solver = solver->name;
        answer->stats = ap_arena_printf(
            arena,
            ",\"groups\":%d,\"strategies\":%lld,\"problem_nodes\":%d,"
            "\"problem_edges\":%d,\"build_sec\":%.6f,\"solve_sec\":%.6f,\"work\":%lld",
            task->nests->n, (long long)space.n_strategies, p.n_nodes, p.n_edges, t1 - t0,
            ap_now_sec() - t1, (long long)sol.work);
    }
    free(b.n_strategies);
    free(b.cost);
    free(b.edges);
    return rc;
}
