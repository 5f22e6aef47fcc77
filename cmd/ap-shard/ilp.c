/*
 * Problem: choose one strategy per fusion group so that compute plus conversions cost
 * least (Alpa, section 4, with conversions paid once per tensor and target). Idea: the
 * selection problem of problem/statement.h, folded: groups at the same place of identical
 * layers are one variable, and tensors between the same variables are one copy set,
 * weighted by the number of such tensors, so that the folded objective is the price of
 * the unfolded plan. The lower bound of the unfolded graph (fold_bound.c) comes first: if
 * the choices of its pieces cost no more than the bound, they are optimal; else the
 * folded problem is solved. Where the folded optimum does not meet the bound, the whole
 * graph is searched from there. If the answer's program needs more than the memory limit,
 * memory/ goes on from it. Among plans with the same cost, the answer needs the least
 * memory that a descent finds (tiebreak.c). Cost: the cost of the distinct layers, plus
 * linear passes over the graph.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem/classes.h"
#include "memory/memory.h"
#include "axes.h"
#include "axis_names.h"
#include "emit.h"
#include "problem/fold.h"
#include "problem/fold_bound.h"
#include "problem/statement.h"
#include "tiebreak.h"
#include "tool/tool.h"

#define PROVEN     1e-9 /* relative gap that counts as none */
#define PIECE_WORK 100  /* branches of a piece's solver, per round of the bound */
/* Of the budget, for the whole graph: a cell of many small tables takes longer. */
#define UNFOLDED_SHARE 0.85
#define WORTH_FOLDING  3 /* fold if at least one in so many groups is tied */

const struct shard_solver shard_solvers[] = {
    {"exact", "reductions, dual bound and branch and bound", ap_solve_exact},
    {"glpk", "integer program in GLPK, as the papers state it", ap_solve_glpk},
    {NULL, NULL, NULL},
};

/* ---- tensors whose copies are the same once groups are tied ---- */

static int by_var(const void *x, const void *y)
{
    const struct select_use *a = x, *b = y;
    if (a->var != b->var)
        return a->var < b->var ? -1 : 1;
    if (a->alike != b->alike)
        return a->alike < b->alike ? -1 : 1;
    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Sorts the uses by variable and drops those that ask for the same. */
static void name_uses(struct select_users *users, const struct ap_nests *nests,
                      const int *var, const int *place)
{
    int n = 0;
    for (int u = 0; u < users->n; u++) {
        struct select_use *use = &users->uses[u];
        use->var = use->group < 0 ? -1 : var[use->group];
        use->alike = use->group < 0 ? use->slot == SELECT_TAKEN
                     : use->alias < 0
                         ? shard_fold_slot(&nests->nest[use->group], use->slot)
                         : (uint64_t)place[use->alias];
    }
    qsort(users->uses, (size_t)users->n, sizeof *users->uses, by_var);
    for (int u = 0; u < users->n; u++) {
        const struct select_use *use = &users->uses[u];
        const struct select_use *last = n > 0 ? &users->uses[n - 1] : NULL;
        if (!last || last->var != use->var || last->alike != use->alike ||
            (use->alias < 0) != (last->alias < 0))
            users->uses[n++] = *use;
    }
    users->n = n;
}

static uint64_t hash_copy_set(int home_var, int out, const struct select_users *users)
{
    uint64_t h = ap_hash(&home_var, sizeof home_var, (uint64_t)out);
    for (int u = 0; u < users->n; u++) {
        const struct select_use *use = &users->uses[u];
        const uint64_t key[3] = {(uint64_t)(use->var + 1), use->alike, use->alias >= 0};
        h = ap_hash(key, sizeof key, h);
    }
    return h;
}

static bool same_key(const void *ctx, int a, int b)
{
    const uint64_t *key = ctx;
    return key[a] == key[b];
}

/*
 * The copy sets of all tensors with groups replaced by variables, equal ones once. Tied
 * groups have their members at equal places.
 */
static void fold_copy_sets(struct ap_arena *arena, const struct ap_graph *g,
                           const struct ap_nests *nests, struct ilp_ties *ties)
{
    int n_outs = 0, n = 0;
    struct select_users users;
    struct ap_arena scratch = {0};
    int *place = AP_NEW_N(&scratch, g->n_nodes, int); /* within its group */

    for (int i = 0; i < nests->n; i++) {
        n_outs += nests->nest[i].n_outs;
        for (int m = 0; m < nests->nest[i].n_members; m++)
            place[nests->nest[i].members[m]] = m;
    }
    uint64_t *key = AP_NEW_N(&scratch, n_outs + 1, uint64_t); /* [copy set] */
    struct copy_set *sets = AP_NEW_N(&scratch, n_outs + 1, struct copy_set);
    struct ap_classes classes = {.same = same_key, .ctx = key};
    select_users_init(&scratch, g, nests, &users);
    for (int i = 0; i < nests->n; i++)
        for (int o = 0; o < nests->nest[i].n_outs; o++) {
            int node = nests->nest[i].outs[o];
            select_users_of(&users, node);
            if (users.n == 0)
                continue;
            name_uses(&users, nests, ties->var, place);
            key[n] = hash_copy_set(ties->var[i], o, &users);
            int first = ap_class_of(&classes, key[n], n);
            ties->tensor[node] = first < n ? sets[first].node : node;
            if (first < n) {
                sets[first].weight += 1;
                continue;
            }
            sets[n] = (struct copy_set){.node = node,
                                        .home = i,
                                        .home_var = ties->var[i],
                                        .n_uses = users.n,
                                        .weight = 1};
            sets[n++].uses =
                ap_arena_dup(arena, users.uses, (size_t)users.n * sizeof *users.uses);
        }
    select_users_free(&users);
    ap_classes_free(&classes);
    ties->n_sets = n;
    ties->sets = ap_arena_dup(arena, sets, (size_t)n * sizeof *sets);
    ap_arena_free(&scratch);
}

void shard_ilp_ties(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, const struct shard_fold *fold,
                    struct ilp_ties *ties)
{
    int n = 0;

    *ties = (struct ilp_ties){.var = AP_NEW_N(arena, nests->n + 1, int),
                              .tensor = AP_NEW_N(arena, g->n_nodes + 1, int)};
    for (int i = 0; i < nests->n; i++)
        ties->var[i] = fold->tied[i] == i ? n++ : ties->var[fold->tied[i]];
    fold_copy_sets(arena, g, nests, ties);
}

/* ---- the problem, its start and its answer ---- */

int *shard_ilp_choice(struct ap_arena *arena, const struct ilp_problem *p,
                      const struct ap_plan *plan)
{
    const struct ap_problem *q = &p->problem;
    int *choice = AP_NEW_N(arena, q->n_nodes, int), next = 0;

    for (int i = 0; i < p->space.nests->n; i++) {
        if (p->var[i] < next)
            continue; /* tied to one before */
        choice[next] = shard_space_find(&p->space, i, &plan->choice[i]);
        if (choice[next++] < 0)
            return NULL; /* not in the space (pins) */
    }
    select_make_copies(&p->builder, choice);
    return choice;
}

struct ap_plan shard_ilp_plan(const struct ilp_problem *p, const int *choice)
{
    const struct shard_space *space = &p->space;
    struct ap_plan plan = {
        .graph = space->graph, .nests = space->nests, .mesh = space->cost->mesh};
    plan.microbatch_choice = space->microbatch_choice;
    plan.choice = AP_NEW_N(space->arena, space->nests->n, struct ap_choice_vec);
    plan.regather = AP_NEW_N(space->arena, space->graph->n_nodes, bool);
    for (int i = 0; i < space->nests->n; i++)
        plan.choice[i] = space->choice[i][choice[p->var[i]]];
    return plan;
}

void shard_ilp_state(struct ap_arena *arena, const struct shard_space *space,
                     const struct shard_fold *fold, const struct ilp_ties *ties,
                     struct ilp_problem *out)
{
    out->space = *space;
    select_init(&out->builder, arena, &out->space);
    for (int i = 0; i < space->nests->n; i++)
        if (fold->tied[i] == i)
            select_var(&out->builder, i, fold->weight[i]);
    out->n_vars = out->builder.n_nodes;
    out->var = ties->var;
    out->tensor = ties->tensor;
    for (int i = 0; i < ties->n_sets; i++)
        statement_add_copy_set(&out->builder, &ties->sets[i]);
    out->problem = select_problem(&out->builder);
}

void shard_ilp_tie(struct ap_arena *arena, const struct shard_space *space,
                   const struct shard_fold *fold, struct ilp_problem *out)
{
    struct ilp_ties ties;
    shard_ilp_ties(arena, space->graph, space->nests, fold, &ties);
    shard_ilp_state(arena, space, fold, &ties, out);
}

int shard_ilp_build(struct ap_arena *arena, const struct shard_task *task,
                    const struct shard_fold *fold, const struct ap_plan *plans,
                    int n_plans, struct ilp_problem *out, struct ap_err *err)
{
    struct shard_space space;
    if (shard_space_build(arena, task, fold, plans, n_plans, &space, err))
        return -1;
    shard_ilp_tie(arena, &space, fold, out);
    return 0;
}

/* Seconds of all searches together; the sizes are those of the first one. */
struct timing {
    double fold, space, build, solve, bound;
    int n_nodes, n_edges, n_tied, rounds, n_searches;
    int64_t work;
    double folded_objective, folded_bound;
    struct shard_space space_sizes;
};

static void add_timing(struct timing *t, const struct timing *more)
{
    t->space += more->space;
    t->build += more->build;
    t->solve += more->solve;
    t->work += more->work;
    t->n_searches++;
}

/* The plan with mesh axis a unused. */
static struct ap_plan without_axis(struct ap_arena *arena, const struct ap_plan *plan,
                                   int a)
{
    struct ap_plan less = *plan;

    less.choice =
        ap_arena_dup(arena, plan->choice, (size_t)plan->nests->n * sizeof *less.choice);
    for (int i = 0; i < plan->nests->n; i++)
        less.choice[i].axis[a] = -1;
    return less;
}

/* The cheapest of `from` (may be NULL), the plans at hand, and these with an axis of the
 * mesh unused, better where it is slow. NULL: none is in the space. */
static const int *first_choice(struct ap_arena *arena, const struct shard_task *task,
                               const struct ilp_problem *ip, const struct ap_plan *plans,
                               const int *from)
{
    double least = from ? ap_problem_score(&ip->problem, from) : AP_FORBIDDEN;

    for (int i = 0; i < task->n_plans; i++)
        for (int a = -1; a < task->cost->mesh.n_axes; a++) {
            struct ap_plan plan = a < 0 ? plans[i] : without_axis(arena, &plans[i], a);
            const int *choice = shard_ilp_choice(arena, ip, &plan);
            double cost = choice ? ap_problem_score(&ip->problem, choice) : AP_FORBIDDEN;
            if (cost < least) {
                least = cost;
                from = choice;
            }
        }
    return from;
}

/* What one search knows. */
struct search_in {
    const struct shard_fold *fold; /* ties nothing where the search is not folded */
    const struct shard_space *space;
    const struct ap_plan *plans, *start; /* start: one of them, or NULL */
};

static int solve_in(struct ap_arena *arena, const struct shard_task *task,
                    const struct search_in *in, struct shard_answer *answer,
                    struct timing *t, struct ap_err *err)
{
    struct ilp_problem ip;
    double t1 = ap_now_sec();
    shard_ilp_tie(arena, in->space, in->fold, &ip);
    const struct ap_problem p = ip.problem;
    const struct shard_solver *solver = &shard_solvers[task->params->solver];
    struct ap_solution sol;
    const int *from =
        first_choice(arena, task, &ip, in->plans,
                     in->start ? shard_ilp_choice(arena, &ip, in->start) : NULL);
    double t2 = ap_now_sec();
    ap_work_tell(task->work, "whole graph", from ? ap_problem_score(&p, from) : INFINITY,
                 0);
    struct ap_work part = ap_work_share(task->work, UNFOLDED_SHARE);
    struct shard_axes axes = {in->fold, &ip};
    const struct ap_solve_params with = {.start = from,
                                         .gap = task->params->gap,
                                         .work = &part,
                                         .better = shard_axes_better,
                                         .better_arg = &axes};
    int rc = solver->run(arena, &p, &with, &sol, err);
    ap_work_add(task->work, part.done);
    if (rc == 0) {
        *answer = (struct shard_answer){.plan = shard_ilp_plan(&ip, sol.choice),
                                        .objective = sol.objective,
                                        .bound = sol.bound,
                                        .stopped = sol.stopped,
                                        .solver = solver->name};
        t->build = t2 - t1;
        t->solve = ap_now_sec() - t2;
        t->n_nodes = p.n_nodes;
        t->n_edges = p.n_edges;
        t->work = sol.work;
        t->n_searches = 1;
    }
    select_free(&ip.builder);
    return rc;
}

/* The cheapest of the plans at hand, -1 for none. */
static int cheapest(const struct shard_task *task)
{
    int best = -1;

    shard_price_named_plans(task);
    for (int i = 0; i < task->n_plans; i++)
        if (isfinite(task->plan_sec[i]) &&
            (best < 0 || task->plan_sec[i] < task->plan_sec[best]))
            best = i;
    return best;
}

/* The unfolded search from the folded plan, and never worse than that. */
static int search_unfolded(struct ap_arena *arena, const struct shard_task *task,
                           const struct ap_plan *plans, struct shard_answer *answer,
                           struct timing *t, struct ap_err *err)
{
    struct ap_plan *more = AP_NEW_N(arena, task->n_plans + 1, struct ap_plan);
    int start = cheapest(task);
    struct shard_fold alone;
    struct shard_space space;
    struct shard_answer whole;

    memcpy(more, plans, (size_t)task->n_plans * sizeof *plans);
    more[task->n_plans] = answer->plan;
    if (start < 0 || answer->objective <= task->plan_sec[start])
        start = task->n_plans;
    shard_fold_find(arena, task, NULL, &alone);
    double t0 = ap_now_sec();
    if (shard_space_build(arena, task, &alone, more, task->n_plans + 1, &space, err))
        return -1;
    t->space = ap_now_sec() - t0;
    const struct search_in in = {&alone, &space, plans, &more[start]};
    if (solve_in(arena, task, &in, &whole, t, err))
        return -1;
    whole.bound = fmax(whole.bound, answer->bound);
    *answer = whole;
    return 0;
}

/* A fold, its space, and what its search found. */
struct folded {
    struct shard_fold fold;
    struct shard_space space;
    struct shard_answer answer;
    struct timing took;
};

/* ---- the folded problem, answered while its bound is found ---- */

struct bounded {
    struct ap_arena *arena;
    const struct shard_task *task;
    const struct shard_fold *fold;
    const struct ap_plan *plans;
    struct ilp_problem ip;
    const int *best; /* per problem node, NULL: none is known */
    double cost;
    struct shard_answer *answer;
    struct timing *t;
};

static void take_best(struct bounded *b, const int *choice)
{
    double cost = choice ? ap_problem_score(&b->ip.problem, choice) : AP_FORBIDDEN;

    if (cost >= AP_FORBIDDEN || cost >= b->cost)
        return;
    b->best = choice;
    b->cost = cost;
}

static void answer_best(struct bounded *b)
{
    *b->answer =
        (struct shard_answer){.plan = shard_ilp_plan(&b->ip, b->best),
                              .objective = b->cost,
                              .solver = shard_solvers[b->task->params->solver].name};
}

static double price_choice(void *arg, const int *strategy)
{
    struct bounded *b = arg;
    int *choice = AP_NEW_N(b->arena, b->ip.problem.n_nodes, int);

    for (int i = 0; i < b->task->nests->n; i++)
        choice[b->ip.var[i]] = strategy[i];
    select_make_copies(&b->ip.builder, choice);
    take_best(b, choice);
    if (b->best)
        answer_best(b);
    return b->cost;
}

static double price_at_hand(void *arg)
{
    struct bounded *b = arg;

    take_best(b, first_choice(b->arena, b->task, &b->ip, b->plans, b->best));
    return b->cost;
}

static int solve_folded(void *arg, double share, struct ap_err *err)
{
    struct bounded *b = arg;
    const struct shard_solver *solver = &shard_solvers[b->task->params->solver];
    ap_work_tell(b->task->work, "folded problem", b->cost, 0);
    struct ap_work part = ap_work_share(b->task->work, share);
    struct shard_axes axes = {b->fold, &b->ip};
    struct ap_solve_params with = {.start = b->best,
                                   .gap = b->task->params->gap,
                                   .work = &part,
                                   .better = shard_axes_better,
                                   .better_arg = &axes};
    struct ap_solution sol;
    double t0 = ap_now_sec();

    if (solver->run(b->arena, &b->ip.problem, &with, &sol, err))
        return -1;
    ap_work_add(b->task->work, part.done);
    b->t->solve = ap_now_sec() - t0;
    b->t->work = sol.work;
    take_best(b, sol.choice);
    answer_best(b);
    return 0;
}

/*
 * The choices of the bound's pieces are the folded optimum where their price meets the
 * bound; else the folded problem is solved.
 */
static int search_bounded(struct ap_arena *arena, const struct shard_task *task,
                          const struct ap_plan *plans, const struct folded *f,
                          struct shard_answer *answer, struct timing *t,
                          struct ap_err *err)
{
    struct bounded b = {.arena = arena,
                        .task = task,
                        .fold = &f->fold,
                        .plans = plans,
                        .cost = INFINITY,
                        .answer = answer,
                        .t = t};
    const struct fold_search search = {&b, price_choice, solve_folded, price_at_hand};
    double t0 = ap_now_sec();

    ap_work_tell(task->work, "distinct layers", INFINITY, 0);
    shard_ilp_tie(arena, &f->space, &f->fold, &b.ip);
    t->build = ap_now_sec() - t0;
    t->n_nodes = b.ip.problem.n_nodes;
    t->n_edges = b.ip.problem.n_edges;
    t->n_searches = t->work = 1;
    for (int i = 0; i < task->n_plans; i++)
        if (isfinite(task->plan_sec[i])) /* one was given with its price */
            take_best(&b, shard_ilp_choice(arena, &b.ip, &plans[i]));
    t0 = ap_now_sec();
    const struct fold_bound_params params = {.known = answer,
                                             .search = &search,
                                             .max_rounds = (int)task->params->rounds,
                                             .work_limit = PIECE_WORK,
                                             .gap = task->params->gap,
                                             .work = task->work};
    struct fold_bound bound;
    int rc = shard_fold_bound(arena, &f->space, &f->fold, &params, &bound, err);
    t->bound = ap_now_sec() - t0 - t->solve;
    t->rounds = bound.n_rounds;
    answer->bound = bound.bound;
    answer->stopped = "folded";
    select_free(&b.ip.builder);
    return rc;
}

/* Searches folded and finds the bound. */
static int search_folded(struct ap_arena *arena, const struct shard_task *task,
                         const struct ap_plan *plans, struct folded *f,
                         struct ap_err *err)
{
    struct timing *took = &f->took;
    double t0 = ap_now_sec();

    *f = (struct folded){.fold = {0}};
    if (task->fold)
        f->fold = *task->fold;
    else
        shard_fold_find(arena, task, task->families, &f->fold);
    if (f->fold.n_tied * WORTH_FOLDING < task->nests->n)
        shard_fold_find(arena, task, NULL, &f->fold);
    took->fold = ap_now_sec() - t0;
    t0 = ap_now_sec();
    if (shard_space_build(arena, task, &f->fold, plans, task->n_plans, &f->space, err))
        return -1;
    took->space = ap_now_sec() - t0;
    bool bounded = f->fold.n_tied > 0 && task->params->rounds > 0;
    int start = bounded ? -1 : cheapest(task);
    const struct search_in in = {&f->fold, &f->space, plans,
                                 start >= 0 ? &plans[start] : NULL};
    if (bounded ? search_bounded(arena, task, plans, f, &f->answer, took, err)
                : solve_in(arena, task, &in, &f->answer, took, err))
        return -1;
    took->n_tied = f->fold.n_tied;
    took->space_sizes = f->space;
    if (f->fold.n_tied > 0 && !bounded) {
        f->answer.bound = 0; /* the solver's bound holds for tied plans only */
        f->answer.stopped = "folded";
    }
    took->folded_objective = f->answer.objective;
    took->folded_bound = f->answer.bound;
    return 0;
}

static const char *stats_of(struct ap_arena *arena, const struct shard_task *task,
                            const struct timing *t)
{
    const struct shard_space *sp = &t->space_sizes;
    return ap_arena_printf(
        arena,
        ",\"groups\":%d,\"tied\":%d,\"strategies\":%lld,\"folded_strategies\":%lld,"
        "\"log10_plans\":%.1f,\"log10_folded_plans\":%.1f,\"problem_nodes\":%d,"
        "\"problem_edges\":%d,\"fold_sec\":%.6f,\"space_sec\":%.6f,\"build_sec\":%.6f,"
        "\"solve_sec\":%.6f,\"bound_sec\":%.6f,\"bound_rounds\":%d,\"searches\":%d,"
        "\"folded_objective_sec\":%.12g,\"folded_bound_sec\":%.12g,\"work\":%lld,"
        "\"cells\":%lld",
        task->nests->n, t->n_tied, (long long)sp->n_strategies, (long long)sp->n_folded,
        sp->log10_plans, sp->log10_folded, t->n_nodes, t->n_edges, t->fold, t->space,
        t->build, t->solve, t->bound, t->rounds, t->n_searches, t->folded_objective,
        t->folded_bound, (long long)t->work,
        (long long)(task->work ? task->work->done : 0));
}

/* Within the memory limit again; what the plan's program holds at its peak can rise,
 * where that is above the limit the plan stays. */
static int limit_memory(struct ap_arena *arena, const struct shard_task *task,
                        const struct shard_space *space, struct shard_answer *answer,
                        struct ap_err *err)
{
    int64_t peak;
    double sec;

    if (shard_memory(arena, task, answer, err))
        return -1;
    struct ap_plan less = answer->plan;
    less.choice =
        ap_arena_dup(arena, less.choice, (size_t)less.nests->n * sizeof *less.choice);
    shard_tiebreak(space, &less);
    mem_measure(&less, task->cost, task->memory_bytes, &sec, &peak, NULL);
    if (peak <= task->memory_bytes)
        shard_take_cheaper(answer, &less, sec);
    return 0;
}

static int search_all(struct ap_arena *arena, const struct shard_task *task,
                      const struct ap_plan *plans, struct shard_answer *answer,
                      struct timing *t, struct ap_err *err)
{
    struct timing whole = {0};
    struct folded folded;
    const struct ap_work *work = task->work;
    const double near = 1 - fmax(PROVEN, task->params->gap);

    if (search_folded(arena, task, plans, &folded, err))
        return -1;
    *t = folded.took;
    *answer = folded.answer;
    answer->bound = fmin(answer->bound, answer->objective);
    if (answer->bound >= answer->objective * (1 - PROVEN))
        answer->stopped = "optimal";
    bool open = t->n_tied > 0 && answer->bound < answer->objective * near;
    int best = open ? cheapest(task) : -1;
    bool named_is_better = best >= 0 && task->plan_sec[best] < answer->objective;
    /* of a weighted search, one of several, no named plan is worth the unfolded space */
    if (open && ap_work_over(work) && (!named_is_better || task->cost->weighting)) {
        answer->stopped = "work limit";
    } else if (t->n_tied > 0 &&
               (named_is_better ||
                (open && t->space_sizes.n_strategies <= task->params->unfold))) {
        if (search_unfolded(arena, task, plans, answer, &whole, err))
            return -1;
        add_timing(t, &whole);
    }
    return 0;
}

/* Part of the budget for the search without a limit of memory, if there is one. */
#define OPEN_SHARE 0.5

int shard_ilp(struct ap_arena *arena, const struct shard_task *task,
              struct shard_answer *answer, struct ap_err *err)
{
    struct timing t = {0};
    struct ap_plan *plans = AP_NEW_N(arena, task->n_plans + 1, struct ap_plan);
    struct ap_work work =
        ap_work_share(task->work, task->memory_bytes > 0 ? OPEN_SHARE : 1);
    struct shard_task whatever = *task;

    for (int i = 0; i < task->n_plans; i++) {
        plans[i] = task->plans[i];
        plans[i].regather = NULL; /* the search keeps what it gathered */
        plans[i].scatters = false;
    }
    struct ap_buf problem = {0};
    if (task->params->emit && shard_emit(arena, task, plans, &problem, err))
        return -1;
    *answer = (struct shard_answer){0};
    whatever.work = &work;
    if (search_all(arena, &whatever, plans, answer, &t, err))
        return -1;
    ap_work_add(task->work, work.done);
    answer->stats = stats_of(arena, task, &t);
    if (!task->params->known)
        shard_break_ties(arena, &t.space_sizes, answer);
    int rc = task->memory_bytes > 0
                 ? limit_memory(arena, task, &t.space_sizes, answer, err)
                 : 0;
    if (rc == 0 && !task->cost->weighting)
        answer->note = shard_name_axes(arena, task, answer);
    answer->problem = problem;
    return rc;
}
