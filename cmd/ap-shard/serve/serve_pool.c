/*
 * Problem: a planner of stages trades seconds for memory, so that one plan per part and
 * mesh is not enough. Idea: the selection problem is stated once, identical blocks tied,
 * and solved at several prices of memory (seconds per byte; a Lagrangian of the memory
 * limit: each answer is the quickest plan with its memory or less). The named plans are
 * added. Cost: one problem per part and mesh, of as many variables as its distinct blocks
 * have, and a solution per price.
 */
#include "serve/serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * scripts/bench/stage shows what the constants below are worth: the step time of the
 * pipelines that ap-stage builds from the answers, and the seconds that this takes.
 */
#define VARIANTS 3 /* prices of memory */
/* Prices of memory, so that the bytes of the quickest plan cost this share of its
 * seconds. */
static const double prices[VARIANTS] = {0, 0.05, 0.5};
#define KEPT_IN_FLIGHT  (1.0 / 16) /* share of the batch whose activations are held */
#define ROUNDS          6          /* of column generation */
#define SOLVE_WORK      20         /* units of work of the solver where nothing is tied */
#define CLOSE           2e-3  /* gap: a folded answer proves nothing of the whole graph */
#define SMALL           20000 /* strategies of a problem that is searched at once */
#define SMALL_WITH_WIDE 2000  /* the same where there are plans for more rows */
#define HOPELESS        1.25 /* a plan for few rows so much slower is not traded for memory */

/* ---- what is tied ---- */

static double share_of(const struct ap_graph *g, const enum ap_phase *phase, int node)
{
    const struct ap_node *n = &g->nodes[node];
    bool backward = false, update = false;

    if (n->op == AP_OP_PARAMETER && n->role != AP_ROLE_INPUT)
        return 1;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int group = g->nodes[g->users[u]].group;
        backward |= group != n->group && phase[group] == AP_BACKWARD;
        update |= group != n->group && phase[group] == AP_UPDATE;
    }
    if (n->phase == AP_FORWARD)
        return backward ? KEPT_IN_FLIGHT : 0;
    return n->phase == AP_BACKWARD && update ? 1 : 0;
}

/* Shares of the values of all groups; sums of sixteenths are exact. */
static void find_shares(struct ap_arena *arena, const struct ap_graph *g,
                        const struct ap_nests *nests, struct serve_ties *ties)
{
    struct ap_arena scratch = {0};
    enum ap_phase *phase = AP_NEW_N(&scratch, nests->n + 1, enum ap_phase);
    double *share = AP_NEW_N(&scratch, g->n_nodes + 1, double);
    int n = 0;

    for (int i = 0; i < nests->n; i++)
        phase[i] = ap_plan_group_phase(g, &nests->nest[i]);
    for (int i = 0; i < nests->n; i++)
        for (int o = 0; o < nests->nest[i].n_outs; o++) {
            const struct ap_nest *first = &nests->nest[ties->fold.tied[i]];
            double more = share_of(g, phase, nests->nest[i].outs[o]);
            n += share[first->outs[o]] == 0 && more > 0;
            share[first->outs[o]] += more;
        }
    ties->share = AP_NEW_N(arena, n + 1, struct serve_share);
    for (int v = 0; v < g->n_nodes; v++)
        if (share[v] > 0)
            ties->share[ties->n_shares++] = (struct serve_share){v, share[v]};
    ap_arena_free(&scratch);
}

void serve_tie(struct ap_arena *arena, const struct ap_graph *g,
               const struct ap_nests *nests, const struct ap_families *families,
               const struct shard_request *req, struct serve_ties *ties)
{
    struct shard_fold *fold = &ties->fold;

    *ties = (struct serve_ties){.n_shares = 0};
    const struct shard_task task = {.graph = g, .nests = nests};
    shard_fold_find(arena, &task, families, fold);
    fold->tied = fold->twin;
    fold->n_tied = 0;
    for (int i = 0; i < nests->n; i++)
        fold->weight[i] = 0;
    for (int i = 0; i < nests->n; i++) {
        fold->weight[fold->tied[i]]++;
        fold->n_tied += fold->tied[i] != i;
    }
    if (shard_algorithms()[req->algorithm].run != shard_ilp)
        return;
    shard_ilp_ties(arena, g, nests, fold, &ties->ilp);
    find_shares(arena, g, nests, ties);
}

struct searcher {
    struct ap_arena *arena; /* scratch */
    const struct shard_task *task;
    struct serve_pool *pool;
    struct shard_space space; /* of all strategies */
    struct ilp_problem ip;
    double **base, **bytes; /* [variable][strategy]: seconds, bytes of memory */
    struct ap_solve_params params;
    const struct ap_stage_microbatch *few_rows; /* NULL: every device has rows */
    const struct serve_pool *wide;              /* with few rows: plans for many rows */
};

/* lasts: the plan outlives the pool. */
static void keep_plan(struct serve_pool *pool, const struct ap_plan *plan,
                      const char *name, bool lasts)
{
    size_t n = (size_t)pool->n_groups;
    int i = pool->n;
    for (int k = 0; k < i; k++)
        if (!plan->regather && !pool->regather[k] &&
            memcmp(pool->choice[k], plan->choice, n * sizeof *plan->choice) == 0)
            return;
    pool->name[i] = name;
    pool->choice[i] =
        lasts ? plan->choice
              : ap_arena_dup(&pool->arena, plan->choice, n * sizeof *plan->choice);
    bool any = false;
    for (int v = 0; plan->regather && v < pool->n_nodes; v++)
        any |= plan->regather[v];
    pool->regather[i] =
        !any    ? NULL
        : lasts ? plan->regather
                : ap_arena_dup(&pool->arena, plan->regather, (size_t)pool->n_nodes);
    pool->n++;
}

/* [variable][strategy]: bytes of memory, of all groups that are tied to it. */
static double **count_bytes(struct searcher *s, const struct serve_ties *ties)
{
    const struct shard_space *space = &s->ip.space;
    const struct ap_graph *g = space->graph;
    const struct ap_mesh *mesh = &space->cost->mesh;
    double **bytes = AP_NEW_N(s->arena, s->ip.n_vars + 1, double *);

    for (int v = 0; v < s->ip.n_vars; v++)
        bytes[v] = AP_NEW_N(s->arena, s->ip.problem.n_strategies[v], double);
    for (int i = 0; i < ties->n_shares; i++) {
        const struct serve_share *share = &ties->share[i];
        int group = g->nodes[share->node].group;
        const struct ap_nest *nest = &space->nests->nest[group];
        int m = ap_nest_member(nest, share->node);
        for (int k = 0; k < space->n[group]; k++) {
            struct ap_layout l =
                ap_nest_value_layout(nest, g, mesh, &space->choice[group][k], m);
            bytes[s->ip.var[group]][k] +=
                share->share *
                (double)ap_layout_local_bytes(mesh, &g->nodes[share->node].shape, &l);
        }
    }
    return bytes;
}

/* States the problem. */
static void state(struct searcher *s, const struct serve_ties *ties)
{
    struct ilp_problem *ip = &s->ip;
    shard_ilp_state(s->arena, &s->space, &ties->fold, &ties->ilp, ip);
    s->bytes = count_bytes(s, ties);
    s->base = AP_NEW_N(s->arena, ip->n_vars + 1, double *);
    for (int v = 0; v < ip->n_vars; v++)
        s->base[v] = ap_arena_dup(s->arena, ip->builder.cost[v],
                                  (size_t)ip->problem.n_strategies[v] * sizeof(double));
}

/* Answers at hand: the plans', and those at other prices. */
struct known {
    int n;
    const int **choice; /* NULL: not in the space */
};

/*
 * The choice for few rows that is nearest to a plan for many rows: a strategy that is not
 * in the space gives way to the cheapest strategy that agrees with it on the most axes.
 * Column generation from there finds nearly what a search of all strategies finds, and
 * where no strategy is near the plan for many rows often something better.
 */
static int *nearest_choice(struct searcher *s, const struct ap_choice_vec *plan)
{
    const struct ilp_problem *ip = &s->ip;
    const struct shard_space *space = &ip->space;
    int n_axes = s->task->cost->mesh.n_axes, next = 0;
    int *choice = AP_NEW_N(s->arena, ip->problem.n_nodes + 1, int);

    for (int i = 0; i < space->nests->n; i++) {
        int best = 0, most = -1;
        if (ip->var[i] < next)
            continue; /* tied to one before */
        for (int k = 0; k < space->n[i]; k++) {
            const int16_t *axis = space->choice[i][k].axis;
            int agree = 0;
            for (int a = 0; a < n_axes; a++)
                agree += axis[a] == plan[i].axis[a];
            if (agree > most ||
                (agree == most && space->sec[i][k] < space->sec[i][best])) {
                most = agree;
                best = k;
            }
        }
        choice[next++] = best;
    }
    select_make_copies(&ip->builder, choice);
    return choice;
}

/* NULL: none is legal. */
static const int *cheapest(const struct ap_problem *p, const struct known *known)
{
    const int *best = NULL;
    double least = AP_FORBIDDEN;

    for (int i = 0; i < known->n; i++) {
        const int *choice = known->choice[i];
        double cost = choice ? ap_problem_score(p, choice) : AP_FORBIDDEN;
        if (cost < least) {
            least = cost;
            best = choice;
        }
    }
    return best;
}

/*
 * Searches all strategies at once where there are few; where that proves nothing, or the
 * answer is one of several trades, generates columns from the known answers.
 */
static int answer(struct searcher *s, const struct ap_problem *p, struct known *known,
                  bool tied, bool priced, struct ap_solution *sol, struct ap_err *err)
{
    ap_solver_fn *run = shard_solvers[s->task->params->solver].run;
    struct ap_solve_params params = s->params;
    bool columns = s->task->params->work_limit == 0;
    int64_t n = 0, most = tied && priced ? 0 : tied && s->wide ? SMALL_WITH_WIDE : SMALL;

    for (int v = 0; v < s->ip.n_vars; v++)
        n += p->n_strategies[v];
    params.start = cheapest(p, known);
    if (priced && columns)
        params.work_limit = 1;
    if (!columns || n <= most) {
        if (run(s->arena, p, &params, sol, err))
            return -1;
        known->choice[known->n++] = params.start = sol->choice;
        if (!columns || !tied || sol->bound >= sol->objective * (1 - 2 * CLOSE))
            return 0;
    }
    const struct serve_columns from = {known->n, known->choice, run, priced ? 1 : ROUNDS};
    if (serve_columns_solve(s->arena, p, &from, &params, sol, err))
        return -1;
    known->choice[known->n++] = sol->choice;
    return 0;
}

/* The quickest plan, and the answers at the other prices of memory, by rising price. */
static int solve_prices(struct searcher *s, const struct ap_plan *plans,
                        const struct shard_fold *fold, struct ap_solution *quickest,
                        struct ap_err *err)
{
    struct ilp_problem *ip = &s->ip;
    struct known known = {.n = s->task->n_plans};
    double total = 0;

    /* two answers for each price, and the plans for many rows */
    known.choice = AP_NEW_N(s->arena, known.n + 3 * VARIANTS, const int *);
    for (int i = 0; i < known.n; i++)
        known.choice[i] = shard_ilp_choice(s->arena, ip, &plans[i]);
    for (int i = 0; s->wide && i < s->wide->n_searched; i++)
        known.choice[known.n++] = nearest_choice(s, s->wide->choice[i]);
    for (int k = 0; k < VARIANTS; k++) {
        struct ap_solution sol;
        double price = k > 0 && total > 0 ? prices[k] * quickest->objective / total : 0;
        for (int v = 0; v < ip->n_vars; v++)
            for (int i = 0; i < ip->problem.n_strategies[v]; i++)
                ip->builder.cost[v][i] =
                    s->base[v][i] + (price > 0 ? price * s->bytes[v][i] : 0);
        const struct ap_problem p = select_problem(&ip->builder);
        if (answer(s, &p, &known, fold->n_tied > 0, k > 0, &sol, err))
            return -1;
        struct ap_plan plan = shard_ilp_plan(ip, sol.choice);
        keep_plan(s->pool, &plan, "ilp", false);
        s->pool->n_searched = s->pool->n;
        if (k > 0)
            continue;
        *quickest = sol;
        if (s->wide && sol.objective > HOPELESS * s->wide->objective)
            break;
        for (int v = 0; v < ip->n_vars; v++)
            total += s->bytes[v][sol.choice[v]];
    }
    return 0;
}

/* Whether every device has a row of a microbatch under a choice. */
static bool has_rows(const struct searcher *s, const struct ap_nest *nest,
                     const struct ap_choice_vec *choice)
{
    const struct ap_graph *g = s->task->graph;
    const struct ap_mesh *mesh = &s->task->cost->mesh;
    for (int o = 0; o < nest->n_outs; o++) {
        int v = nest->outs[o], d = (int)s->few_rows->dim[v];
        int64_t devices = 1;
        if (d < 0)
            continue;
        struct ap_layout l =
            ap_nest_value_layout(nest, g, mesh, choice, ap_nest_member(nest, v));
        for (int a = 0; a < mesh->n_axes; a++)
            if (l.axis[a].kind == AP_SPLIT && l.axis[a].dim == d)
                devices *= mesh->size[a];
        if (g->nodes[v].shape.dims[d] / s->few_rows->n < devices)
            return false;
    }
    return true;
}

/* Drops the strategies under which a device has no row of a microbatch, unless all do. */
static void drop_empty_devices(struct searcher *s, const struct shard_fold *fold)
{
    struct shard_space *space = &s->space;
    for (int i = 0; i < space->nests->n; i++) {
        int root = fold->tied[i], n = 0;
        if (root != i) { /* the same list, for one variable chooses for both */
            space->n[i] = space->n[root];
            space->choice[i] = space->choice[root];
            space->sec[i] = space->sec[root];
            space->sig[i] = space->sig[root];
            continue;
        }
        size_t most = (size_t)space->n[i];
        struct ap_choice_vec *choice =
            ap_arena_dup(s->arena, space->choice[i], most * sizeof *choice);
        double *sec = ap_arena_dup(s->arena, space->sec[i], most * sizeof *sec);
        uint64_t *sig = ap_arena_dup(s->arena, space->sig[i], most * sizeof *sig);
        for (int k = 0; k < space->n[i]; k++)
            if (has_rows(s, &space->nests->nest[i], &choice[k])) {
                choice[n] = choice[k];
                sec[n] = sec[k];
                sig[n++] = sig[k];
            }
        if (n == 0 || n == space->n[i])
            continue;
        space->n[i] = n;
        space->choice[i] = choice;
        space->sec[i] = sec;
        space->sig[i] = sig;
    }
}

static int solve(struct searcher *s, const struct serve_ties *ties, struct ap_err *err)
{
    const struct shard_fold *fold = &ties->fold;
    const struct shard_task *task = s->task;
    struct ap_plan *plans = AP_NEW_N(s->arena, task->n_plans + 1, struct ap_plan);
    struct ap_solution quickest;

    for (int i = 0; i < task->n_plans; i++) {
        plans[i] = task->plans[i];
        plans[i].regather = NULL; /* the search keeps what it gathered */
        plans[i].scatters = false;
    }
    if (shard_space_build(s->arena, task, fold, plans, task->n_plans, &s->space, err))
        return -1;
    if (s->few_rows)
        drop_empty_devices(s, fold);
    for (int i = 0; i < s->pool->n_groups; i++) {
        double least = INFINITY;
        if (fold->tied[i] < i) { /* they share the strategies */
            s->pool->least_sec[i] = s->pool->least_sec[fold->tied[i]];
            continue;
        }
        for (int k = 0; k < s->space.n[i]; k++)
            least = s->space.sec[i][k] < least ? s->space.sec[i][k] : least;
        s->pool->least_sec[i] = least;
    }
    s->params.gap = fold->n_tied > 0 ? CLOSE : 0;
    s->params.work_limit = task->params->work_limit;
    if (s->params.work_limit == 0) /* a folded answer proves nothing */
        s->params.work_limit = fold->n_tied > 0 ? 1 : SOLVE_WORK;
    state(s, ties);
    int rc = solve_prices(s, plans, fold, &quickest, err);
    select_free(&s->ip.builder);
    if (rc)
        return -1;
    s->pool->objective = quickest.objective;
    s->pool->bound = fold->n_tied == 0 ? quickest.bound : 0;
    return 0;
}

static int fill(struct searcher *s, const struct serve_ties *ties,
                const struct shard_request *req, struct ap_err *err)
{
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];
    const struct shard_task *task = s->task;
    struct serve_pool *pool = s->pool;
    struct shard_answer found = {0};

    int most = task->n_plans + VARIANTS + 1;
    pool->name = AP_NEW_N(&pool->arena, most, const char *);
    pool->choice = AP_NEW_N(&pool->arena, most, struct ap_choice_vec *);
    pool->regather = AP_NEW_N(&pool->arena, most, bool *);
    pool->recompute_heavy = req->params.recompute_heavy;
    pool->least_sec = AP_NEW_N(&pool->arena, pool->n_groups + 1, double);
    if (row->run == shard_ilp) {
        if (solve(s, ties, err))
            return -1;
    } else {
        shard_fn *run = row->run == shard_rule ? shard_rule_unpriced : row->run;
        if (run(s->arena, task, &found, err))
            return -1;
        keep_plan(pool, &found.plan, row->name, false);
        pool->objective = found.objective;
        pool->bound = found.bound;
    }
    for (int i = 0; i < task->n_plans && !pool->units; i++)
        keep_plan(pool, &task->plans[i], task->plan_name[i], true);
    return 0;
}

struct serve_pool *serve_search(const struct serve_start *start,
                                const struct serve_ties *ties,
                                const struct ap_stage_microbatch *few_rows,
                                const struct serve_pool *wide,
                                const struct shard_request *req, struct ap_err *err)
{
    struct serve_pool *pool = ap_xrealloc(NULL, sizeof *pool);
    struct ap_arena scratch = {0};

    *pool = (struct serve_pool){.n_groups = start->task.nests->n,
                                .n_nodes = start->task.graph->n_nodes,
                                .units = start->task.cost->variant != AP_COST_DEFAULT};
    struct searcher s = {.arena = &scratch,
                         .task = &start->task,
                         .pool = pool,
                         .few_rows = few_rows,
                         .wide = wide};
    int rc = fill(&s, ties, req, err);
    ap_arena_free(&scratch);
    if (rc == 0)
        return pool;
    serve_pool_free(pool);
    return NULL;
}

bool serve_pool_in_seconds(const struct serve_pool *pool)
{
    return !pool->units && pool->objective >= 0;
}

void serve_pool_free(struct serve_pool *pool)
{
    ap_arena_free(&pool->arena);
    free(pool);
}

struct ap_plan serve_pool_plan(const struct serve_pool *pool, int i,
                               const struct ap_graph *g, const struct ap_nests *nests,
                               const struct ap_cost *cost)
{
    return (struct ap_plan){.graph = g,
                            .nests = nests,
                            .mesh = cost->mesh,
                            .choice = pool->choice[i],
                            .regather = pool->regather[i],
                            .recompute_heavy = pool->recompute_heavy};
}
