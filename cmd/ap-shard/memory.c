/*
 * Problem: the cheapest plan whose program fits a limit of memory on every device.
 * Idea: Lagrange multipliers, prices of memory at the few times at which it binds. What
 * is surely held (memory_model.c) is priced on the tables of the selection problem, which
 * stays as easy as it was and is solved exactly; its value less what the limit is worth
 * at these prices is a lower bound, whatever the prices are. Prices come from cutting
 * planes (Kelley): a linear program over the plans met so far, with a column for each
 * time at which one of them held too much. Every plan met is measured by its program's
 * buffers; where programs need more than the model sees, the limit that prices are made
 * for is lowered. Plans too large are tried with weights gathered again in each phase
 * (ZeRO-3, Rajbhandari et al. 2020, section 5.3), and the best one that fits takes over
 * what it can of cheaper ones (memory_mend.c).
 * Cost: an exact solution of the problem per round, a program per plan.
 */
#include "memory.h"

#include <glpk.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory_search.h"
#include "tool.h"

#define ROUNDS     8 /* per limit that prices are made for */
#define TRIES      3 /* of those, more in small graphs */
#define MANY_TRIES 40
#define TRIES_WORK 1e6   /* strategies * nodes * tries */
#define SMALL      4096  /* parts of the limit: smaller tensors are not priced */
#define DEAREST    300.  /* a price's limit: the whole memory, in plans without a limit */
#define NEAR       1e-3  /* good enough */
#define WHOLE      60000 /* strategies of a graph that is priced unfolded */
#define SOLVE_WORK 20    /* for bounds */
#define PLAN_WORK  1     /* for plans */

/* ---- the problem at given prices ---- */

static double span_price(const double *before, const struct mem_item *it)
{
    return before[it->hi] - before[it->lo];
}

static bool forbids(const struct ap_problem *p, const struct ap_problem_edge *e)
{
    const int n = p->n_strategies[e->a] * p->n_strategies[e->b];
    for (int i = 0; i < n; i++)
        if (e->cost[i] >= AP_FORBIDDEN)
            return true;
    return false;
}

/* Time counts `weight` (0 or 1); before[t]: sum of prices of the times before t. */
static struct ap_problem price_problem(struct ap_arena *arena, const struct hunt *h,
                                       const double *before, double weight)
{
    const struct ap_problem *base = &h->ip.problem;
    const struct mem_model *m = &h->model;
    struct ap_problem p = *base;
    double **cost = AP_NEW_N(arena, p.n_nodes, double *);
    struct ap_problem_edge *edges =
        AP_NEW_N(arena, p.n_edges + m->n_items + 1, struct ap_problem_edge);

    for (int v = 0; v < p.n_nodes; v++) {
        cost[v] = AP_NEW_N(arena, p.n_strategies[v], double);
        for (int s = 0; s < p.n_strategies[v]; s++)
            cost[v][s] = base->cost[v][s] >= AP_FORBIDDEN ? AP_FORBIDDEN
                                                          : weight * base->cost[v][s];
    }
    p.n_edges = 0;
    for (int e = 0; e < base->n_edges; e++) {
        if (weight > 0) {
            edges[p.n_edges++] = base->edges[e];
        } else if (forbids(base, &base->edges[e])) {
            const struct ap_problem_edge *from = &base->edges[e];
            const int n = p.n_strategies[from->a] * p.n_strategies[from->b];
            double *table = AP_NEW_N(arena, n, double);
            for (int i = 0; i < n; i++)
                table[i] = from->cost[i] >= AP_FORBIDDEN ? AP_FORBIDDEN : 0;
            edges[p.n_edges++] = (struct ap_problem_edge){from->a, from->b, table};
        }
    }
    for (int i = 0; i < m->n_items; i++) {
        const struct mem_item *it = &m->items[i];
        const double price = span_price(before, it);
        const int n = p.n_strategies[it->a] * it->n_b;
        if (price <= 0)
            continue;
        double *table = it->b < 0 ? cost[it->a] : AP_NEW_N(arena, n, double);
        for (int s = 0; s < n; s++)
            table[s] += price * (double)it->bytes[s];
        if (it->b >= 0)
            edges[p.n_edges++] = (struct ap_problem_edge){it->a, it->b, table};
    }
    p.cost = (const double *const *)cost;
    p.edges = edges;
    return p;
}

/* ---- prices from the plans met ---- */

/* What a plan holds by the model; its fullest time is one to price. */
static void weigh(struct hunt *h, struct hunt_cut *cut)
{
    int worst = 0;

    cut->held = AP_NEW_N(h->arena, h->model.n_times, int64_t);
    mem_model_held(&h->model, cut->choice, cut->held);
    for (int t = 1; t < h->model.n_times; t++)
        if (cut->held[t] > cut->held[worst])
            worst = t;
    cut->peak = cut->held[worst];
    for (int j = 0; j < h->n_times; j++)
        if (h->time[j] == worst)
            return;
    h->time[h->n_times++] = worst;
}

static void meet(struct hunt *h, const int *choice)
{
    struct hunt_cut *cut = &h->cut[h->n_cuts++];
    const struct ap_problem *p = &h->ip.problem;

    cut->choice = ap_arena_dup(h->arena, choice, (size_t)p->n_nodes * sizeof *choice);
    cut->sec = ap_problem_score(p, choice);
    weigh(h, cut);
}

static void set_model(struct hunt *h, bool kept)
{
    h->kept = kept;
    h->n_times = 0;
    mem_model_build(h->arena, &h->ip.space, h->ip.var, h->task->memory_bytes / SMALL,
                    kept, &h->model);
    for (int i = 0; i < h->n_cuts; i++)
        weigh(h, &h->cut[i]);
}

/*
 * max theta: theta <= sec_i + sum of price_j (held_i(t_j) / limit - 1) for each plan i,
 * in units of h->unit; with only_memory theta <= sum of price_j held_i(t_j) / limit, the
 * prices adding up to 1.
 */
static double find_prices(struct hunt *h, double limit, bool only_memory, double *price)
{
    glp_prob *lp = glp_create_prob();
    glp_smcp params;
    int *index = AP_NEW_N(h->arena, h->n_times + 3, int);
    double *value = AP_NEW_N(h->arena, h->n_times + 3, double), theta = INFINITY;

    glp_set_obj_dir(lp, GLP_MAX);
    glp_add_cols(lp, h->n_times + 1);
    glp_set_col_bnds(lp, 1, GLP_FR, 0, 0);
    glp_set_obj_coef(lp, 1, 1);
    for (int j = 0; j < h->n_times; j++)
        glp_set_col_bnds(lp, j + 2, GLP_DB, 0, only_memory ? 1 : DEAREST);
    glp_add_rows(lp, h->n_cuts + 1);
    for (int i = 0; i < h->n_cuts; i++) {
        const struct hunt_cut *cut = &h->cut[i];
        index[1] = 1;
        value[1] = 1;
        for (int j = 0; j < h->n_times; j++) {
            index[j + 2] = j + 2;
            value[j + 2] = (only_memory ? 0 : 1) - (double)cut->held[h->time[j]] / limit;
        }
        glp_set_mat_row(lp, i + 1, h->n_times + 1, index, value);
        glp_set_row_bnds(lp, i + 1, GLP_UP, 0, only_memory ? 0 : cut->sec / h->unit);
    }
    for (int j = 0; j < h->n_times; j++) {
        index[j + 1] = j + 2;
        value[j + 1] = 1;
    }
    glp_set_mat_row(lp, h->n_cuts + 1, h->n_times, index, value);
    glp_set_row_bnds(lp, h->n_cuts + 1, only_memory ? GLP_FX : GLP_FR, 1, 1);
    glp_init_smcp(&params);
    params.msg_lev = GLP_MSG_OFF;
    if (glp_simplex(lp, &params) == 0 && glp_get_status(lp) == GLP_OPT) {
        theta = glp_get_obj_val(lp);
        for (int j = 0; j < h->n_times; j++)
            price[j] = fmax(glp_get_col_prim(lp, j + 2), 0);
    }
    glp_delete_prob(lp);
    return theta;
}

/* Solves at the prices (per byte); meets the plan. Its proven value, -1 when stuck. */
static double solve_at(struct hunt *h, const double *price, double per_byte,
                       double weight)
{
    struct ap_arena scratch = {0};
    struct ap_err err = {0};
    struct ap_solution sol;
    double *before = AP_NEW_N(&scratch, h->model.n_times + 1, double), bound = -1;

    for (int j = 0; j < h->n_times; j++)
        before[h->time[j] + 1] += price[j] * per_byte;
    for (int t = 0; t < h->model.n_times; t++)
        before[t + 1] += before[t];
    struct ap_problem p = price_problem(&scratch, h, before, weight);
    struct ap_solve_params params = {.work_limit = h->kept ? PLAN_WORK : SOLVE_WORK,
                                     .start = h->n_cuts > 0 ? h->cut[h->n_cuts - 1].choice
                                                            : NULL};
    if (ap_solve_exact(&scratch, &p, &params, &sol, &err) == 0) {
        bound = sol.bound;
        meet(h, sol.choice);
        h->n_solves++;
    }
    ap_arena_free(&scratch);
    return bound;
}

/* Prices for a limit; bounds hold for the true one. */
static void price_memory(struct hunt *h, double limit)
{
    double *price = AP_NEW_N(h->arena, h->max_cuts + 2 * ROUNDS + 1, double);
    double aimed = 0; /* the bound for this limit */

    for (int round = 0; round < ROUNDS && h->n_cuts < h->max_cuts; round++) {
        double theta = find_prices(h, limit, false, price), paid = 0;
        if (theta * h->unit <= aimed * (1 + NEAR / 10) || !isfinite(theta) ||
            h->bound > h->best_sec * (1 - NEAR / 10))
            return;
        double value = solve_at(h, price, h->unit / limit, 1);
        if (value < 0)
            return;
        for (int j = 0; j < h->n_times; j++)
            paid += price[j] * h->unit / limit;
        aimed = fmax(aimed, value - paid * limit);
        if (!h->kept)
            h->bound = fmax(h->bound, value - paid * (double)h->task->memory_bytes);
        struct ap_plan plan = shard_ilp_plan(&h->ip, h->cut[h->n_cuts - 1].choice);
        hunt_try(h, &plan);
    }
}

/* The least memory that plans surely need, and plans that need little. */
static void find_least(struct hunt *h, bool kept)
{
    double *price = AP_NEW_N(h->arena, h->max_cuts + 2 * ROUNDS + 1, double);
    const double limit = (double)h->task->memory_bytes;
    double proven = 0;

    set_model(h, kept);
    for (int round = 0; round < ROUNDS; round++) {
        double theta = find_prices(h, limit, true, price);
        if (!isfinite(theta) || (round > 0 && theta * limit <= proven * (1 + NEAR)))
            break;
        double value = solve_at(h, price, 1, 0);
        if (value < 0)
            break;
        proven = fmax(proven, value);
        struct ap_plan plan = shard_ilp_plan(&h->ip, h->cut[h->n_cuts - 1].choice);
        hunt_try(h, &plan);
    }
    if (!kept && !h->folded)
        h->least_proven = (int64_t)(proven * (1 - 1e-9));
}

/* ---- the search ---- */

static int build(struct hunt *h, const struct shard_answer *answer, struct ap_err *err)
{
    const struct shard_task *task = h->task;
    struct ap_plan *plans = AP_NEW_N(h->arena, task->n_plans + 1, struct ap_plan);
    struct shard_fold fold;

    if (task->n_plans > 0)
        memcpy(plans, task->plans, (size_t)task->n_plans * sizeof *plans);
    for (int i = 0; i < task->n_plans; i++)
        plans[i].remake = NULL;
    plans[task->n_plans] = answer->plan;
    shard_fold_find(h->arena, task->graph, task->nests, NULL, task->pins, 1, &fold);
    if (shard_ilp_build(h->arena, task, &fold, plans, task->n_plans + 1, &h->ip, err))
        return -1;
    if (h->ip.space.n_strategies > WHOLE && task->families) {
        select_free(&h->ip.builder);
        shard_fold_find(h->arena, task->graph, task->nests, task->families, task->pins, 1,
                        &fold);
        h->folded = true;
        if (shard_ilp_build(h->arena, task, &fold, plans, task->n_plans + 1, &h->ip, err))
            return -1;
    }
    set_model(h, false);
    return 0;
}

static void report_none(struct hunt *h, struct ap_err *err)
{
    struct ap_arena *arena = h->arena;

    find_least(h, false);
    find_least(h, true);
    const char *proven =
        h->least_proven > 0
            ? ap_arena_printf(arena, "at least %s (%lld bytes) are needed",
                              mem_size_text(arena, h->least_proven),
                              (long long)h->least_proven)
            : "how much is needed is not known";
    ap_err_set(err,
               "no plan found within %s per device: the least found needs %s (%lld "
               "bytes), %s; it holds %s",
               mem_size_text(arena, h->task->memory_bytes),
               mem_size_text(arena, h->least_bytes), (long long)h->least_bytes, proven,
               mem_holders(arena, &h->least, h->task->cost));
}

/* A bound and plans by what is sure, then plans by what is likely, for less and less. */
static void search(struct hunt *h)
{
    const double full = (double)h->task->memory_bytes;
    double limit = full;

    price_memory(h, full);
    hunt_mend(h);
    for (int i = 0; i < h->n_tries && h->bound < h->best_sec * (1 - NEAR); i++) {
        h->aim = 0;
        if (i == 0)
            set_model(h, true);
        price_memory(h, limit);
        hunt_mend(h);
        limit = h->aim > 0 && h->aim < limit ? h->aim : limit - full / 50;
        if (limit < full / 2)
            break;
    }
}

int shard_memory(struct ap_arena *arena, const struct shard_task *task,
                 struct shard_answer *answer, struct ap_err *err)
{
    struct hunt h = {
        .arena = arena,
        .task = task,
        .best_sec = INFINITY,
        .least_bytes = INT64_MAX,
        .bound = answer->bound,
        .unit = answer->objective > 0 ? answer->objective : 1,
    };
    double start = ap_now_sec();
    int64_t peak;
    double sec;

    answer->plan.recompute_heavy = task->params->recompute_heavy;
    mem_measure(&answer->plan, task->cost, &sec, &peak);
    if (peak <= task->memory_bytes)
        return 0;
    if (build(&h, answer, err))
        return -1;
    double tries = TRIES_WORK / ((double)h.ip.space.n_strategies * task->graph->n_nodes);
    h.n_tries = (int)fmin(fmax(tries, TRIES), MANY_TRIES);
    h.max_cuts = ROUNDS * (h.n_tries + 1) + 2;
    h.cut = AP_NEW_N(arena, h.max_cuts + 2 * ROUNDS + 1, struct hunt_cut);
    h.time = AP_NEW_N(arena, h.max_cuts + 2 * ROUNDS + 1, int);
    hunt_try(&h, &answer->plan);
    for (int i = 0; i < task->n_plans; i++)
        hunt_try(&h, &task->plans[i]);
    double *none = AP_NEW_N(arena, h.max_cuts + 1, double);
    int *first = hunt_choice(&h, &answer->plan);
    if (first)
        meet(&h, first);
    else if (solve_at(&h, none, 1, 1) < 0)
        return ap_err_set(err, "no solution");
    search(&h);
    if (h.best_sec == INFINITY)
        report_none(&h, err);
    select_free(&h.ip.builder);
    if (h.best_sec == INFINITY)
        return -1;
    answer->plan = h.best;
    answer->objective = h.best_sec;
    answer->bound = fmin(h.folded ? answer->bound : h.bound, h.best_sec);
    answer->stopped = answer->bound >= h.best_sec * (1 - 1e-9) ? "optimal" : "prices";
    answer->stats =
        ap_arena_printf(arena,
                        "%s,\"memory_solves\":%d,\"memory_plans\":%d,\"memory_times\":%d,"
                        "\"memory_sec\":%.6f",
                        answer->stats ? answer->stats : "", h.n_solves, h.n_measured,
                        h.n_times, ap_now_sec() - start);
    return 0;
}
