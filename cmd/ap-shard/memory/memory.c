/*
 * Problem: the cheapest plan whose program fits a limit of memory on every device.
 * Idea: Lagrange multipliers, prices of memory at the few times at which it binds. What
 * is surely held (memory_model.c) is priced on the tables of the selection problem, which
 * stays as easy as it was and is solved exactly; its value less what the limit is worth
 * at these prices is a lower bound, whatever the prices are. Prices come from a linear
 * program over the plans met so far (memory_lp.c). Between two solutions of the whole
 * problem prices settle among the strategies that cost little by a message-passing bound,
 * which takes a small part of the time; strategies that hold too much at some time,
 * whatever the others do, are left out from then on (memory_near.c). Of a graph whose
 * alike layers were priced as one the bound is that of the whole (memory_prove.c). Then
 * plans are looked for by what their programs have in use at each time, which the model
 * may not see in full; since arenas are larger than that, also for lower limits, by as
 * much as was missing, then between one that is kept and one that is not. Every plan that
 * may fit is measured by its program's buffers.
 * Whether a copy is kept for the later phases or gathered again (ZeRO-3, Rajbhandari et
 * al. 2020, section 5.3) is part of the priced problem (memory_price.c). The best plan
 * that fits is blended with cheaper ones, layer by layer (memory_blend.c), and takes over
 * what it can of them (memory_mend.c); the gap that is left is closed by branching
 * (memory_branch.c) where that takes a bounded number of solutions.
 * Cost: an exact solution of the problem per round, a program per plan.
 */
#include "memory/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory_search.h"
#include "tool/tool.h"

#define LOWER        0.85     /* of a limit that no plan met */
#define TRIES_LOWER  8        /* such limits */
#define COARSE       50       /* parts of the limit: steps to lower ones */
#define FINE         100      /* the same where it is known how much is missing */
#define ABOUT        1.02     /* times a limit that prices are for: plans that keep it */
#define ROUNDS       8        /* per limit that prices are made for */
#define FEW_ROUNDS   3        /* the same where they take much work */
#define MOST_ROUNDS  32       /* the same where they take little work */
#define ROUNDS_WORK  30000000 /* see hunt.work */
#define TRIES        3        /* of those, more in small graphs */
#define MANY_TRIES   40
#define LEAST_TRIES  3     /* of lower limits */
#define MOST_FITTING 8     /* plans that may fit: measured at a time */
#define MOST_LOWER   12    /* the same where they take little work */
#define TRIES_WORK   1e6   /* strategies * nodes * tries */
#define SMALL        16384 /* parts of the limit: smaller tensors are not priced */
#define DEAREST \
    1000. /* the highest limit of a price: the whole memory, in plans without one */
#define NEAR        1e-3    /* good enough */
#define FAIR        5e-3    /* the same where more tries take long */
#define INWARD      0.5     /* of the best prices, in the next ones */
#define MOST_STALLS 2       /* plans met again, one after the other */
#define WORTH_TYING 3       /* tie if at least one group in so many follows another */
#define MOST_CUTS   4000    /* of branches */
#define CACHED      4       /* thousands of cells */
#define CELL        8       /* work of one where copies are one node per tensor */
#define SOLVED_TO   0.2     /* of the gap that is good enough: priced problems */
#define GIVEN_UP    1.2     /* times the gap asked for: more was left open */
#define OPEN_TO     20      /* the same of that times the gap that is open */
#define SETTLES     2       /* times that these are chosen before all are asked */
#define EFFORT      8000000 /* see hunt.effort */
#define SEARCHED    10      /* nodes that take as long as reading the tables */

/* ---- prices from the plans met ---- */

/* Its fullest time is one to price. */
static void find_peak(struct hunt *h, struct hunt_cut *cut)
{
    int worst = 0;

    for (int t = 1; t < h->whole.model.n_times; t++)
        if (cut->held[t] > cut->held[worst])
            worst = t;
    cut->peak = cut->held[worst];
    for (int j = 0; j < h->n_times; j++)
        if (h->time[j] == worst)
            return;
    h->time[h->n_times++] = worst;
}

/* What a plan holds. */
static void weigh(struct hunt *h, struct hunt_cut *cut)
{
    const struct mem_model *m = &h->whole.model;

    if (!cut->by_model) {
        cut->by_model = AP_NEW_N(h->arena, m->n_times, int64_t);
        mem_model_held(m, cut->choice, cut->by_model);
    }
    cut->held = cut->by_model;
    if (h->by_program && !cut->by_program) {
        struct ap_plan plan = mem_plan_of(m, &h->whole.ip, cut->choice);
        plan.recompute_heavy = h->task->params->recompute_heavy;
        cut->by_program = AP_NEW_N(h->arena, m->n_times, int64_t);
        if (mem_measure_held(&plan, h->task->cost, m, cut->by_program))
            memcpy(cut->by_program, cut->by_model,
                   (size_t)m->n_times * sizeof *cut->by_program);
    }
    if (h->by_program)
        cut->held = cut->by_program;
    find_peak(h, cut);
}

void hunt_look_at(struct hunt *h, bool programs)
{
    h->by_program = programs;
    for (int i = 0; i < h->n_cuts; i++)
        weigh(h, &h->cut[i]);
}

double hunt_priced(const struct hunt *h, const struct hunt_cut *cut, const double *price,
                   double limit)
{
    double sec = cut->sec;

    for (int j = 0; j < h->n_times; j++)
        sec += price[j] * h->unit * ((double)cut->held[h->time[j]] / limit - 1);
    return sec;
}

/* regather: of a plan, NULL when the choice tells. */
static void meet(struct hunt *h, const int *choice, const bool *regather)
{
    struct hunt_cut *cut = &h->cut[h->n_cuts++];
    const struct ap_problem *p = &h->whole.ip.problem;

    cut->choice = ap_arena_dup(h->arena, choice, (size_t)p->n_nodes * sizeof *choice);
    mem_settle_copies(&h->whole.model, &h->whole.ip, regather, cut->choice);
    cut->sec = mem_plan_score(&h->whole.model, &h->whole.ip, cut->choice);
    cut->lost = h->never && !hunt_is_inside(h, h->never, cut->choice);
    weigh(h, cut);
}

/* A plan met as a start for the problem of a view, whose copies it settles. */
static int *start_at(struct ap_arena *arena, const struct hunt *h,
                     const struct hunt_view *v, const struct mem_priced *priced,
                     const int *last)
{
    int *choice = AP_NEW_N(arena, v->ip.problem.n_nodes, int);

    for (int i = h->task->nests->n - 1; i >= 0; i--)
        choice[v->ip.var[i]] = last[h->whole.ip.var[i]];
    if (v == &h->whole)
        memcpy(choice, last, (size_t)v->ip.problem.n_nodes * sizeof *choice);
    else
        mem_settle_copies(&v->model, &v->ip, NULL, choice);
    return mem_priced_start(arena, &v->model, priced, choice);
}

/* Meets the plan of a view's choice. */
static void meet_view(struct hunt *h, const struct hunt_view *v, const int *choice)
{
    int *whole = AP_NEW_N(h->arena, h->whole.ip.problem.n_nodes, int);

    if (v == &h->whole) {
        meet(h, choice, NULL);
        return;
    }
    struct ap_plan plan = mem_plan_of(&v->model, &v->ip, choice);
    for (int i = 0; i < h->task->nests->n; i++)
        whole[h->whole.ip.var[i]] = choice[v->ip.var[i]];
    meet(h, whole, plan.regather);
}

/* More than linear in cells, as caches see them, where many nodes stand for copies. */
static int64_t work_of(const struct hunt *h, int64_t all, int64_t cells,
                       int64_t n_searched)
{
    const int64_t once = h->tied ? cells * (cells / 1000) / CACHED : CELL * cells;

    return all + once * (n_searched > 0 ? n_searched : 1);
}

bool hunt_is_inside(const struct hunt *h, bool *const *out, const int *choice)
{
    for (int v = 0; v < h->whole.ip.n_vars; v++)
        if (out[v] && out[v][choice[v]])
            return false;
    return true;
}

/* Of the plans met that leave these strategies out; -1: there is none. */
static int cheapest_inside(const struct hunt *h, bool *const *out, const double *price,
                           double per_byte, double weight)
{
    double least = INFINITY;
    int best = -1;

    for (int i = 0; i < h->n_cuts; i++) {
        double cost = weight * h->cut[i].sec;
        if (!hunt_is_inside(h, out, h->cut[i].choice))
            continue;
        for (int j = 0; j < h->n_times; j++)
            cost += price[j] * per_byte * (double)h->cut[i].held[h->time[j]];
        if (cost < least) {
            least = cost;
            best = i;
        }
    }
    return best;
}

/* Of a priced problem: little beside what is open, and beside what is good enough. */
static double gap_of(const struct hunt *h, bool *const *out)
{
    const double open = h->best_sec < INFINITY ? 1 - h->bound / h->best_sec : 1;

    return h->near *
           (out || !h->tied ? SOLVED_TO : fmin(fmax(open * OPEN_TO, SOLVED_TO), 1));
}

double hunt_solve(struct hunt *h, struct hunt_view *v, const double *price,
                  double per_byte, double weight, bool *const *out)
{
    struct ap_arena scratch = {0};
    struct ap_err err = {0};
    struct ap_solution sol = {0};
    struct mem_priced priced;
    double bound = -1;

    hunt_price_problem(&scratch, h, v, price, per_byte, weight, out, &priced);
    struct ap_solve_params params = {.work_limit = h->solve_work, .gap = gap_of(h, out)};
    const int from =
        out ? cheapest_inside(h, out, price, per_byte, weight) : h->n_cuts - 1;
    if (from >= 0)
        params.start = start_at(&scratch, h, v, &priced, h->cut[from].choice);
    int rc = ap_solve_exact(&scratch, &priced.problem, &params, &sol, &err);
    const int first = v->ip.problem.n_nodes;
    const int64_t cells = hunt_cells(&scratch, &priced, first, false);
    h->effort += hunt_effort(h, cells) * (SEARCHED + sol.work) / SEARCHED;
    h->work += work_of(h, hunt_cells(&scratch, &priced, first, true), cells,
                       rc == 0 ? sol.work : 1);
    if (rc && out && !sol.stopped)
        bound = INFINITY;
    if (!out)
        h->gave_up = rc || sol.bound < sol.objective * (1 - GIVEN_UP * params.gap);
    if (rc == 0) {
        bound = sol.bound;
        v->moved = mem_move_shares(&v->model, &priced, sol.choice,
                                   1.0 / (2 + h->n_solves), v->share);
        mem_priced_states(&v->model, &v->ip, &priced, sol.choice);
        meet_view(h, v, sol.choice);
        h->n_solves++;
    }
    ap_arena_free(&scratch);
    return bound;
}

bool hunt_met_before(const struct hunt *h)
{
    const size_t size = (size_t)h->whole.ip.problem.n_nodes * sizeof(int);
    const int last = h->n_cuts - 1;

    for (int i = 0; i < last; i++)
        if (memcmp(h->cut[i].choice, h->cut[last].choice, size) == 0)
            return true;
    return false;
}

static bool at_dearest(const struct hunt *h, const double *price)
{
    for (int j = 0; j < h->n_times; j++)
        if (price[j] >= h->dearest * (1 - NEAR))
            return true;
    return false;
}

static bool pay_more(struct hunt *h)
{
    if (h->dearest >= DEAREST)
        return false;
    h->dearest = fmin(8 * h->dearest, DEAREST);
    return true;
}

bool hunt_pays_more(struct hunt *h, const double *price)
{
    return at_dearest(h, price) && pay_more(h);
}

void hunt_try_last(struct hunt *h)
{
    struct ap_plan plan =
        mem_plan_of(&h->whole.model, &h->whole.ip, h->cut[h->n_cuts - 1].choice);
    int64_t peak = hunt_try(h, &plan);
    if ((double)h->cut[h->n_cuts - 1].peak <= h->limit * ABOUT && peak < INT64_MAX)
        h->excess = fmin(h->excess, (double)(peak - h->task->memory_bytes));
    if (peak < INT64_MAX)
        h->slack = fmin(h->slack, (double)(peak - h->cut[h->n_cuts - 1].peak));
}

static struct hunt_view *view_of(struct hunt *h)
{
    return h->tied ? h->tied : &h->whole;
}

/* Whether some plan met may be one that fits. */
static bool any_left(const struct hunt *h)
{
    for (int i = 0; i < h->n_cuts; i++)
        if (!h->cut[i].lost)
            return true;
    return false;
}

/* The next prices to solve for; false when they promise no more than what is known. */
static bool next_prices(struct hunt *h, double limit, double aimed, bool inward,
                        double *price)
{
    if (!any_left(h)) {
        memcpy(price, h->last_price, (size_t)h->n_times * sizeof *price);
        return true;
    }
    const double theta = hunt_prices(h, limit, NULL, price, NULL);
    if (theta * h->unit <= aimed * (1 + h->near / 4) || !isfinite(theta))
        return false;
    for (int i = 0; i < SETTLES && !h->tied; i++) {
        hunt_find_far(h, limit, price);
        hunt_settle(h, limit, price);
    }
    for (int j = 0; j < h->n_times && inward; j++)
        price[j] = INWARD * h->last_price[j] + (1 - INWARD) * price[j];
    return true;
}

/* Prices for a limit; bounds hold for the true one. */
static void price_memory(struct hunt *h, double limit)
{
    struct hunt_view *v = view_of(h);
    double *price = AP_NEW_N(h->arena, h->max_times, double);
    const int64_t until = h->work + ROUNDS_WORK;
    double *best = h->last_price, aimed = 0; /* the best value for this limit */
    bool inward = h->tied != NULL;
    int stalls = 0;

    h->limit = limit;
    h->excess = h->slack = INFINITY;
    if (any_left(h))
        memset(best, 0, (size_t)h->n_times * sizeof *best);
    for (int round = 0; round < MOST_ROUNDS && h->n_cuts < h->max_cuts; round++) {
        const bool between = inward && stalls == 0 && aimed > 0;
        if ((round >= ROUNDS && h->work > until) ||
            (round >= FEW_ROUNDS && h->effort > EFFORT &&
             (!h->tied || aimed > h->bound)) ||
            h->bound > h->best_sec * (1 - NEAR / 10) ||
            !next_prices(h, limit, aimed, between, price))
            return;
        const bool dearest = at_dearest(h, price);
        double paid = hunt_price_sum(h, price, h->n_times, limit);
        double value = hunt_solve(h, v, price, h->unit / limit, 1, NULL);
        if (value < 0)
            return;
        inward = h->tied || value - paid * limit <= aimed;
        if (value - paid * limit > aimed) {
            aimed = value - paid * limit;
            memcpy(best, price, (size_t)h->n_times * sizeof *price);
            if (limit >= (double)h->task->memory_bytes && aimed > h->best_value) {
                h->best_value = aimed;
                memcpy(h->best_price, price, (size_t)h->n_times * sizeof *price);
            }
        }
        if (v == &h->whole)
            hunt_raise_bound(h, value, paid);
        hunt_try_last(h);
        stalls = hunt_met_before(h) ? stalls + 1 : 0;
        if (stalls == 0 || between || (v->moved && stalls < MOST_STALLS))
            continue;
        if (!dearest || !pay_more(h))
            return;
    }
}

/* The least memory that plans surely need, and plans that need little. */
static void find_least(struct hunt *h)
{
    struct hunt_view *v = view_of(h);
    double *price = AP_NEW_N(h->arena, h->max_times, double);
    double aimed = 0, value = 0, limit = 1;

    for (int i = 0; i < h->n_cuts; i++) /* in numbers near 1 the simplex method ends */
        limit = fmax(limit, (double)h->cut[i].peak);
    for (int round = 0; round < ROUNDS; round++) {
        double theta = hunt_least_prices(h, limit, price);
        if (!isfinite(theta) || (round > 0 && theta * limit <= aimed * (1 + NEAR)))
            break;
        value = hunt_solve(h, v, price, 1, 0, NULL);
        if (value < 0)
            break;
        if (value > aimed) {
            aimed = value;
            memcpy(h->last_price, price, (size_t)h->n_times * sizeof *price);
        }
        hunt_try_last(h);
    }
    if (v != &h->whole && aimed > 0) {
        aimed = fmax(hunt_solve(h, &h->whole, h->last_price, 1, 0, NULL), 0);
        hunt_try_last(h);
    }
    h->least_proven = (int64_t)(aimed * (1 - 1e-9));
}

/* ---- the search ---- */

static void open_view(struct hunt *h, struct hunt_view *v)
{
    mem_model_build(h->arena, &v->ip, h->task->memory_bytes / SMALL, &v->model);
    v->share = AP_NEW_N(h->arena, v->model.n_copies + 1, double);
    for (int c = 0; c < v->model.n_copies; c++)
        v->share[c] = 0.5;
}

/* The whole graph; if much of it is alike also with that tied. */
static int build(struct hunt *h, const struct shard_answer *answer, struct ap_err *err)
{
    const struct shard_task *task = h->task;
    struct ap_plan *plans = AP_NEW_N(h->arena, task->n_plans + 1, struct ap_plan);
    struct shard_fold alone;

    if (task->n_plans > 0)
        memcpy(plans, task->plans, (size_t)task->n_plans * sizeof *plans);
    for (int i = 0; i < task->n_plans; i++)
        plans[i].regather = NULL;
    plans[task->n_plans] = answer->plan;
    shard_fold_find(h->arena, task->graph, task->nests, task->families, task->pins,
                    task->microbatch_choice, 1, &h->layers);
    alone = h->layers;
    alone.tied = AP_NEW_N(h->arena, task->nests->n, int);
    alone.weight = AP_NEW_N(h->arena, task->nests->n, int);
    for (int i = 0; i < task->nests->n; i++) {
        alone.tied[i] = i;
        alone.weight[i] = 1;
    }
    if (shard_ilp_build(h->arena, task, &alone, plans, task->n_plans + 1, &h->whole.ip,
                        err))
        return -1;
    open_view(h, &h->whole);
    if (h->layers.n_tied * WORTH_TYING < task->nests->n)
        return 0;
    h->tied = AP_NEW(h->arena, struct hunt_view);
    shard_ilp_tie(h->arena, &h->whole.ip.space, &h->layers, &h->tied->ip);
    open_view(h, h->tied);
    return 0;
}

static void report_none(struct hunt *h, struct ap_err *err)
{
    struct ap_arena *arena = h->arena;
    double sec;

    h->least.recompute_heavy = h->task->params->recompute_heavy;
    mem_measure(&h->least, h->task->cost, 0, &sec, &h->least_bytes, NULL);

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

/* Limits of the model between which programs begin to fit. */
struct bracket {
    double low, high; /* they fit, 0: not known; they do not */
};

/* Where to look after plans for a limit; 0: nowhere. */
static double next_limit(const struct hunt *h, struct bracket *b, double limit, bool fits)
{
    const double full = (double)h->task->memory_bytes;
    double next;

    if (fits)
        b->low = fmax(b->low, limit);
    else
        b->high = fmin(b->high, limit);
    if (b->low > 0)
        next = b->high - b->low < full / FINE ? 0 : 0.5 * (b->low + b->high);
    else if (isfinite(h->excess))
        next = fmin(b->high - h->excess, b->high - full / FINE);
    else if (isfinite(h->slack))
        next = fmin(full - h->slack, b->high - full / COARSE);
    else /* no plan was worth a program */
        next = b->high - full / FINE;
    return next > full / 2 ? next : 0;
}

/* The same for a lower limit, of which no bound is asked for. */
static void price_below(struct hunt *h, double limit)
{
    if (h->tied) {
        price_memory(h, limit);
        return;
    }
    h->limit = limit;
    h->excess = h->slack = INFINITY;
    hunt_settle(h, limit, h->last_price);
}

/* Tries the cheapest plans met of which no more is in use at once than fits. */
static void try_fitting(struct hunt *h)
{
    for (int i = 0; i < MOST_FITTING; i++) {
        int best = -1;
        for (int c = 0; c < h->n_cuts; c++) {
            const struct hunt_cut *cut = &h->cut[c];
            if (!cut->tried && cut->sec < h->best_sec &&
                cut->peak <= h->task->memory_bytes &&
                (best < 0 || cut->sec < h->cut[best].sec))
                best = c;
        }
        if (best < 0)
            return;
        struct ap_plan plan =
            mem_plan_of(&h->whole.model, &h->whole.ip, h->cut[best].choice);
        h->cut[best].tried = true;
        hunt_measure(h, &plan);
    }
}

/* Plans for lower limits, since arenas are larger than what is in use. */
static void search_below(struct hunt *h)
{
    const double full = (double)h->task->memory_bytes;
    struct bracket bracket = {0, full};
    double limit = full;
    bool fits = h->tied && h->excess <= 0;

    for (int i = 0; i < MOST_LOWER && !hunt_is_near(h); i++) {
        const double before = h->best_sec;
        limit = next_limit(h, &bracket, limit, fits);
        if (limit <= 0 || (i >= LEAST_TRIES && h->effort >= EFFORT))
            return;
        price_below(h, limit);
        hunt_mend(h);
        hunt_among(h, limit, h->last_price);
        try_fitting(h);
        fits = h->tied && (h->excess <= 0 || h->best_sec < before);
    }
}

/* Plans for the limit, by what their programs hold. */
static void search_programs(struct hunt *h)
{
    hunt_look_at(h, true);
    price_below(h, (double)h->task->memory_bytes);
    hunt_mend(h);
    hunt_among(h, (double)h->task->memory_bytes, h->last_price);
    try_fitting(h);
    search_below(h);
    hunt_look_at(h, false);
}

/* A plan that fits where prices for the limit itself met none: for lower ones. */
static void search_lower(struct hunt *h)
{
    double limit = (double)h->task->memory_bytes;

    find_least(h);
    if (h->least_proven > h->task->memory_bytes)
        return;
    for (int i = 0; i < TRIES_LOWER && h->best_sec == INFINITY; i++) {
        if (h->n_cuts >= h->max_cuts)
            return;
        price_memory(h, limit *= LOWER);
    }
    hunt_mend(h);
}

/* Plans for the limit and a bound. */
static void search(struct hunt *h)
{
    const double full = (double)h->task->memory_bytes;

    price_memory(h, full);
    if (!h->tied && !hunt_is_wide(h) && !hunt_is_near(h) && hunt_rule_out_for_good(h))
        price_memory(h, full);
    hunt_mend(h);
    hunt_prove_tied(h);
    if (h->best_sec == INFINITY)
        search_lower(h);
    if (h->best_sec == INFINITY)
        return;
    if (!hunt_is_near(h))
        hunt_among(h, full, h->last_price);
    if (!hunt_is_near(h))
        search_programs(h);
    hunt_prove_tied(h);
    if (!hunt_is_near(h))
        hunt_prove(h);
    for (int i = 1; i < h->n_tries && !hunt_is_near(h) && h->effort < EFFORT; i++) {
        const double limit = full - i * full / COARSE;
        price_memory(h, limit);
        hunt_mend(h);
        hunt_among(h, limit, h->last_price);
    }
}

/* Plans at hand, as far as the space has them: what prices are first made from. */
static int meet_plans(struct hunt *h, const struct ap_plan *answer)
{
    const struct shard_task *task = h->task;
    double *none = AP_NEW_N(h->arena, h->max_cuts + 1, double);

    for (int i = 0; i <= task->n_plans; i++) {
        const struct ap_plan *plan = i < task->n_plans ? &task->plans[i] : answer;
        int *choice = hunt_choice(h, plan);
        hunt_try(h, plan);
        if (choice)
            meet(h, choice, plan->regather);
    }
    return h->n_cuts > 0 || hunt_solve(h, view_of(h), none, 1, 1, NULL) >= 0 ? 0 : -1;
}

int shard_memory(struct ap_arena *arena, const struct shard_task *task,
                 struct shard_answer *answer, struct ap_err *err)
{
    struct hunt h = {
        .arena = arena,
        .task = task,
        .best_sec = INFINITY,
        .dearest = 0.25,
        .solve_work = HUNT_SOLVE_WORK,
        .least_bytes = INT64_MAX,
        .bound = answer->bound,
        .unit = answer->objective > 0 ? answer->objective : 1,
    };
    double start = ap_now_sec();
    int64_t peak;
    double sec;

    answer->plan.recompute_heavy = task->params->recompute_heavy;
    mem_measure(&answer->plan, task->cost, task->memory_bytes, &sec, &peak, NULL);
    if (peak <= task->memory_bytes)
        return 0;
    if (build(&h, answer, err))
        return -1;
    double tries =
        TRIES_WORK / ((double)h.whole.ip.space.n_strategies * task->graph->n_nodes);
    h.n_tries = (int)fmin(fmax(tries, TRIES), MANY_TRIES);
    h.near = h.n_tries > TRIES ? NEAR : FAIR;
    h.max_cuts =
        MOST_ROUNDS * (h.n_tries + 1) + MOST_CUTS + HUNT_PROOFS + task->n_plans + 2;
    h.max_times = h.whole.model.n_times + 2 * (h.max_cuts + MOST_ROUNDS) + 1;
    h.cut = AP_NEW_N(arena, h.max_cuts + 2 * MOST_ROUNDS + 1, struct hunt_cut);
    h.time = AP_NEW_N(arena, h.max_times, int);
    h.best_price = AP_NEW_N(arena, h.max_times, double);
    h.last_price = AP_NEW_N(arena, h.max_times, double);
    if (meet_plans(&h, &answer->plan))
        return ap_err_set(err, "no solution");
    search(&h);
    if (h.best_sec == INFINITY)
        report_none(&h, err);
    select_free(&h.whole.ip.builder);
    if (h.tied)
        select_free(&h.tied->ip.builder);
    if (h.best_sec == INFINITY)
        return -1;
    answer->plan = h.best;
    answer->objective = h.best_sec;
    answer->bound = fmin(h.bound, h.best_sec);
    answer->stopped = answer->bound >= h.best_sec * (1 - 1e-9) ? "optimal" : "prices";
    answer->stats =
        ap_arena_printf(arena,
                        "%s,\"memory_solves\":%d,\"memory_plans\":%d,\"memory_times\":%d,"
                        "\"memory_sec\":%.6f",
                        answer->stats ? answer->stats : "", h.n_solves, h.n_measured,
                        h.n_times, ap_now_sec() - start);
    return 0;
}
