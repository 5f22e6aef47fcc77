/*
 * Problem: choose one strategy per fusion group so that compute plus conversions cost
 * least (Alpa, section 4, with conversions paid once per tensor and target).
 * Idea: the selection problem of select.h, folded: groups that stand at the same place of
 * alike layers are one variable, and tensors between the same variables are one star that
 * counts as often as there are such tensors, so that the folded objective is the price of
 * the unfolded plan. Where the folded optimum meets the unfolded graph's lower bound
 * (fold_bound.c) it is proven; where it does not, the whole graph is searched from there.
 * Cost: that of the distinct layers, plus linear passes over the graph.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fold.h"
#include "fold_bound.h"
#include "select.h"
#include "tool.h"

const struct shard_solver shard_solvers[] = {
    {"exact", "reductions, dual bound and branch and bound", ap_solve_exact, 100},
    {"glpk", "integer program in GLPK, as the papers state it", ap_solve_glpk, 0},
    {NULL, NULL, NULL, 0},
};

/* ---- stars that are the same once groups are tied ---- */

static int by_var(const void *x, const void *y)
{
    const struct select_use *a = x, *b = y;
    if (a->var != b->var)
        return a->var < b->var ? -1 : 1;
    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Sorts the uses by variable and drops those that ask for the same. */
static void name_uses(struct select_users *users, const int *var, const int *twin_alias)
{
    int n = 0;
    for (int u = 0; u < users->n; u++) {
        struct select_use *use = &users->uses[u];
        use->var = use->group < 0 ? -1 : var[use->group];
    }
    qsort(users->uses, (size_t)users->n, sizeof *users->uses, by_var);
    for (int u = 0; u < users->n; u++) {
        const struct select_use *use = &users->uses[u];
        const struct select_use *last = n > 0 ? &users->uses[n - 1] : NULL;
        if (last && last->var == use->var && last->slot == use->slot &&
            (use->alias < 0) == (last->alias < 0) &&
            (use->alias < 0 || twin_alias[use->alias] == twin_alias[last->alias]))
            continue;
        users->uses[n++] = *use;
    }
    users->n = n;
}

static uint64_t star_hash(int home_var, int out, const struct select_users *users,
                          const int *place)
{
    uint64_t h = ap_hash(&home_var, sizeof home_var, (uint64_t)out);
    for (int u = 0; u < users->n; u++) {
        const struct select_use *use = &users->uses[u];
        int alias = use->alias < 0 ? -1 : place[use->alias];
        const int key[3] = {use->var, use->slot, alias};
        h = ap_hash(key, sizeof key, h);
    }
    return h;
}

struct star_table {
    uint64_t *key; /* 0: free */
    int *star;
    size_t mask;
};

static int *star_slot(struct star_table *t, uint64_t key)
{
    size_t i = key & t->mask;
    key += key == 0;
    while (t->key[i] && t->key[i] != key)
        i = (i + 1) & t->mask;
    t->key[i] = key;
    return &t->star[i];
}

/*
 * All stars of the graph with groups replaced by variables, equal ones once; arena. Tied
 * groups have their members at equal places.
 */
static struct select_star *fold_stars(struct ap_arena *arena,
                                      const struct shard_space *space, const int *var,
                                      int *n_stars)
{
    const struct ap_nests *nests = space->nests;
    int n_outs = 0, n = 0;
    struct select_users users;
    struct star_table table = {.mask = 1};
    int *place = AP_NEW_N(arena, space->graph->n_nodes, int); /* within its group */

    for (int i = 0; i < nests->n; i++) {
        n_outs += nests->nest[i].n_outs;
        for (int m = 0; m < nests->nest[i].n_members; m++)
            place[nests->nest[i].members[m]] = m;
    }
    while (table.mask < 2 * (size_t)n_outs)
        table.mask = 2 * table.mask + 1;
    table.key = AP_NEW_N(arena, table.mask + 1, uint64_t);
    table.star = AP_NEW_N(arena, table.mask + 1, int);
    struct select_star *stars = AP_NEW_N(arena, n_outs + 1, struct select_star);
    select_users_init(arena, space->graph, nests, &users);
    for (int i = 0; i < nests->n; i++)
        for (int o = 0; o < nests->nest[i].n_outs; o++) {
            int node = nests->nest[i].outs[o];
            select_users_of(&users, node);
            if (users.n == 0)
                continue;
            name_uses(&users, var, place);
            int *at = star_slot(&table, star_hash(var[i], o, &users, place));
            if (*at > 0) {
                stars[*at - 1].weight += 1;
                continue;
            }
            stars[n] = (struct select_star){.node = node,
                                            .home = i,
                                            .home_var = var[i],
                                            .n_uses = users.n,
                                            .weight = 1};
            stars[n].uses =
                ap_arena_dup(arena, users.uses, (size_t)users.n * sizeof *users.uses);
            *at = ++n;
        }
    select_users_free(&users);
    *n_stars = n;
    return stars;
}

/* ---- the problem, its start and its answer ---- */

static int *make_vars(struct select_builder *b, const struct shard_fold *fold)
{
    int n = b->space->nests->n;
    int *var = AP_NEW_N(b->arena, n, int);
    for (int i = 0; i < n; i++)
        var[i] =
            fold->tied[i] == i ? select_var(b, i, fold->weight[i]) : var[fold->tied[i]];
    return var;
}

static int *start_choice(const struct shard_space *sp, const struct shard_fold *fold,
                         const int *var, const struct ap_problem *p,
                         const struct ap_plan *start)
{
    int n_vars = 0, *choice = AP_NEW_N(sp->arena, p->n_nodes, int);

    for (int i = 0; i < sp->nests->n; i++) {
        if (fold->tied[i] != i)
            continue;
        choice[var[i]] = shard_space_find(sp, i, &start->choice[i]);
        if (choice[var[i]] < 0)
            return NULL; /* not in the space (pins) */
        n_vars++;
    }
    for (int e = 0; e < p->n_edges; e++) { /* a copy is made where somebody needs it */
        const struct ap_problem_edge *edge = &p->edges[e];
        if (edge->a >= n_vars && edge->cost[choice[edge->b]] >= AP_FORBIDDEN)
            choice[edge->a] = 1;
    }
    return choice;
}

static struct ap_plan plan_of(const struct shard_space *space, const int *var,
                              const int *choice)
{
    struct ap_plan plan = {
        .graph = space->graph, .nests = space->nests, .mesh = space->cost->mesh};
    plan.choice = AP_NEW_N(space->arena, space->nests->n, struct ap_choice_vec);
    plan.remake = AP_NEW_N(space->arena, space->graph->n_nodes, bool);
    for (int i = 0; i < space->nests->n; i++)
        plan.choice[i] = space->choice[i][choice[var[i]]];
    return plan;
}

struct timing {
    double fold, space, build, solve;
    int n_nodes, n_edges;
    int64_t work;
};

/* One search, folded or not (then fold says that nothing is alike). */
static int solve_once(struct ap_arena *arena, const struct shard_task *task,
                      const struct shard_fold *fold, const struct ap_plan *plans,
                      int n_plans, int start, struct shard_space *space,
                      struct shard_answer *answer, struct timing *t, struct ap_err *err)
{
    double t0 = ap_now_sec();
    if (shard_space_build(arena, task, fold, plans, n_plans, space, err))
        return -1;
    double t1 = ap_now_sec();
    struct select_builder b;
    select_init(&b, arena, space);
    int n_stars, *var = make_vars(&b, fold);
    struct select_star *stars = fold_stars(arena, space, var, &n_stars);
    for (int i = 0; i < n_stars; i++)
        select_add_star(&b, &stars[i]);
    struct ap_problem p = select_problem(&b);
    const struct shard_solver *solver = &shard_solvers[task->params->solver];
    struct ap_solve_params params = {.work_limit = task->params->work_limit
                                                       ? task->params->work_limit
                                                       : solver->work_limit};
    struct ap_solution sol;
    if (start >= 0)
        params.start = start_choice(space, fold, var, &p, &plans[start]);
    double t2 = ap_now_sec();
    int rc = solver->run(arena, &p, &params, &sol, err);
    if (rc == 0) {
        *answer = (struct shard_answer){.plan = plan_of(space, var, sol.choice),
                                        .objective = sol.objective,
                                        .bound = sol.bound,
                                        .stopped = sol.stopped,
                                        .solver = solver->name};
        *t = (struct timing){.space = t1 - t0,
                             .build = t2 - t1,
                             .solve = ap_now_sec() - t2,
                             .n_nodes = p.n_nodes,
                             .n_edges = p.n_edges,
                             .work = sol.work};
    }
    select_free(&b);
    return rc;
}

int shard_ilp(struct ap_arena *arena, const struct shard_task *task,
              struct shard_answer *answer, struct ap_err *err)
{
    struct shard_space space;
    struct shard_fold fold;
    struct timing t;
    struct ap_plan *plans = AP_NEW_N(arena, task->n_plans + 1, struct ap_plan);
    int start = -1;
    double t0 = ap_now_sec();

    for (int i = 0; i < task->n_plans; i++) {
        plans[i] = task->plans[i];
        plans[i].remake = NULL; /* the search keeps what it gathered */
        if (start < 0 || task->plan_sec[i] < task->plan_sec[start])
            start = i;
    }
    shard_fold_find(arena, task->graph, task->nests, task->families, task->pins, &fold);
    double fold_sec = ap_now_sec() - t0;
    if (solve_once(arena, task, &fold, plans, task->n_plans, start, &space, answer, &t,
                   err))
        return -1;
    double t1 = ap_now_sec();
    struct fold_bound fb = {0};
    if (fold.n_tied > 0) {
        if (shard_fold_bound(arena, &space, &fold, answer->objective,
                             (int)task->params->rounds, 100, &fb, err))
            return -1;
        answer->bound = fb.bound;
        answer->stopped = fb.bound >= answer->objective * (1 - 1e-9) ? "optimal" : "gap";
    }
    fprintf(stderr, "bound %g s, %d rounds, %d pieces, %d potentials\n",
            ap_now_sec() - t1, fb.n_rounds, fb.n_pieces, fb.n_potentials);
    answer->stats = ap_arena_printf(
        arena,
        ",\"groups\":%d,\"tied\":%d,\"strategies\":%lld,\"folded_strategies\":%lld,"
        "\"log10_plans\":%.1f,\"log10_folded_plans\":%.1f,\"problem_nodes\":%d,"
        "\"problem_edges\":%d,\"fold_sec\":%.6f,\"space_sec\":%.6f,\"build_sec\":%.6f,"
        "\"solve_sec\":%.6f,\"work\":%lld",
        task->nests->n, fold.n_tied, (long long)space.n_strategies,
        (long long)space.n_folded, space.log10_plans, space.log10_folded, t.n_nodes,
        t.n_edges, fold_sec, t.space, t.build, t.solve, (long long)t.work);
    return 0;
}
