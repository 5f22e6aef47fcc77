/*
 * Problem: the cheapest choice that keeps a limit of memory at all times, also if its
 * program needs more than the model says. Idea: Lagrange multipliers, prices of memory at
 * the few times at which it binds. Usage is priced on the tables of the selection
 * problem, which stays as easy as it was and is solved exactly; its value minus the price
 * of the limit is a lower bound for all prices. Prices come from a linear program over
 * the choices met so far (memory_lp.c). If repeated layers were priced as one, the
 * bound still holds for the whole problem (memory_prove.c). Then choices are looked for
 * by what their programs have in use at each time, which the model may not see in full;
 * since a program may need more than is in use at once, also for lower limits, by as much
 * as was missing, then between one that is kept and one that is not. The best choice that
 * fits takes over strategies of cheaper choices, layer by layer (memory_mend.c). Cost: an
 * exact solution of the problem per round, a program per choice that may fit. Source:
 * Held, Wolfe and Crowder, "Validation of subgradient optimization", 1974, for the
 * relaxation; Kelley, "The cutting-plane method", 1960, for the prices. Where copies are
 * kept or gathered again (ZeRO-3): Rajbhandari et al. 2020, section 5.3.
 */
#include "solve/memory/memory_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAN        0.5  /* of what the starts need: a limit that asks for little */
#define ABOUT       1.02 /* times a limit that prices are for: choices that keep it */
#define INWARD      0.5  /* of the best prices, in the next ones */
#define MOST_STALLS 2    /* choices met again, one after the other */
#define GIVEN_UP    1.2  /* times the gap asked for: more was left open */
#define SEARCHED    10   /* nodes that take as long as reading the tables */

const struct memory_tuning memory_tuning = {
    .gap = 5e-3,
    .gap_small = 1e-3,
    .solved_to = 0.2,
    .open_to = 20,
    .cheap = 0.2,
    .cheap_wait = 0.05,
    .step = 0.02,
    .fine = 0.01,
    .lower = 0.85,
    .highest_price = 1000,
    .effort = 8000000,
    .round_effort = 1500000,
    .program_effort = 1600000,
    .solve_work = 20,
    .proof_work = 100,
    .few_rounds = 3,
    .rounds = 8,
    .most_rounds = 32,
    .tries = 3,
    .most_tries = 40,
    .n_lower = 12,
    .changes = 20000,
    .tries_work = 1e6,
    .whole = 120000,
    .set_states = 4000,
    .set_cells = 150000,
    .all_set_cells = 16000000,
};

/* ---- prices from the choices met ---- */

/* Its fullest time is one to price. */
static void find_peak(struct memory_search *ms, struct search_cut *cut)
{
    int worst = 0;

    for (int t = 1; t < ms->model->n_times; t++)
        if (cut->held[t] > cut->held[worst])
            worst = t;
    cut->peak = cut->held[worst];
    for (int j = 0; j < ms->n_times; j++)
        if (ms->time[j] == worst)
            return;
    ms->time[ms->n_times++] = worst;
}

/* What a choice holds. */
static void weigh(struct memory_search *ms, struct search_cut *cut)
{
    const struct ap_memory *m = ms->model;
    const struct ap_measure *measure = &ms->task->measure;

    if (!cut->by_model) {
        cut->by_model = AP_NEW_N(ms->arena, m->n_times, int64_t);
        ap_memory_held(m, cut->choice, cut->by_model);
    }
    cut->held = cut->by_model;
    if (ms->by_program && !cut->by_program) {
        cut->by_program = AP_NEW_N(ms->arena, m->n_times, int64_t);
        if (measure->held(measure->arg, cut->choice, cut->by_program))
            memcpy(cut->by_program, cut->by_model,
                   (size_t)m->n_times * sizeof *cut->by_program);
    }
    if (ms->by_program)
        cut->held = cut->by_program;
    find_peak(ms, cut);
}

/* From now on what choices hold is what their programs do, or what the model says. */
static void look_at(struct memory_search *ms, bool programs)
{
    ms->by_program = programs;
    for (int i = 0; i < ms->n_cuts; i++)
        weigh(ms, &ms->cut[i]);
}

double search_priced(const struct memory_search *ms, const struct search_cut *cut,
                     const double *price, double limit)
{
    double sec = cut->sec;

    for (int j = 0; j < ms->n_times; j++)
        sec += price[j] * ms->unit * ((double)cut->held[ms->time[j]] / limit - 1);
    return sec;
}

static size_t choice_size(const struct ap_memory *m)
{
    return (size_t)(m->n_vars + m->n_copies) * sizeof(int);
}

/* A choice whose copies may have to be settled. */
static void meet(struct memory_search *ms, const int *choice)
{
    struct search_cut *cut = &ms->cut[ms->n_cuts++];

    cut->choice = ap_arena_dup(ms->arena, choice, choice_size(ms->model));
    ap_memory_settle(ms->model, NULL, cut->choice);
    cut->sec = ap_memory_score(ms->model, cut->choice);
    weigh(ms, cut);
}

/* A choice met as a start for the problem of a view, whose copies it settles. */
static int *start_at(struct ap_arena *arena, const struct memory_search *ms,
                     const struct search_view *v, const struct priced_problem *priced,
                     const int *last)
{
    int *choice;

    if (v == &ms->whole) {
        choice = ap_arena_dup(arena, last, choice_size(ms->model));
    } else {
        choice = AP_NEW_N(arena, v->model->n_vars + v->model->n_copies, int);
        for (int x = ms->model->n_vars - 1; x >= 0; x--)
            choice[ms->task->tied_var[x]] = last[x];
        ap_memory_settle(v->model, NULL, choice);
    }
    return priced_start(arena, v->model, priced, choice);
}

/* The choice of the whole that a settled choice of the tied problem stands for. */
static int *untie(struct memory_search *ms, const int *choice)
{
    const struct ap_memory *m = ms->model, *tied = ms->tied->model;
    int *whole = AP_NEW_N(ms->arena, m->n_vars + m->n_copies, int);

    for (int v = 0; v < m->n_vars; v++)
        whole[v] = choice[ms->task->tied_var[v]];
    for (int c = 0; c < m->n_copies; c++)
        for (int t = ms->task->tied_copies[c];
             t >= 0 && t < tied->n_copies &&
             tied->copy[t].tensor == tied->copy[ms->task->tied_copies[c]].tensor;
             t++)
            if (choice[tied->n_vars + t] == AP_COPY_AGAIN)
                whole[m->n_vars + c] = AP_COPY_AGAIN;
    return whole;
}

/* Meets what a view's settled choice stands for. */
static void meet_view(struct memory_search *ms, const struct search_view *v,
                      const int *choice)
{
    meet(ms, v == &ms->whole ? choice : untie(ms, choice));
}

/* Of a priced problem: little beside what is open, and beside what is good enough. */
static double gap_of(const struct memory_search *ms)
{
    const double open = ms->best_sec < INFINITY ? 1 - ms->bound / ms->best_sec : 1;

    return ms->near *
           (!ms->tied
                ? memory_tuning.solved_to
                : fmin(fmax(open * memory_tuning.open_to, memory_tuning.solved_to), 1));
}

/* Table cells of a priced problem, without the tables between copy sets (from node
 * first_set on) and users, which do not measure the work. */
static int64_t count_cells(struct ap_arena *scratch, const struct priced_problem *priced,
                           int first_set)
{
    const struct ap_problem *p = &priced->problem;
    const int end = first_set + priced->n_sets;
    int *n_left = AP_NEW_N(scratch, p->n_nodes, int);
    int64_t n = 0;

    for (int v = 0; v < p->n_nodes; v++)
        for (int s = 0; s < p->n_strategies[v]; s++)
            n_left[v] += p->cost[v][s] < AP_FORBIDDEN;
    for (int e = 0; e < p->n_edges; e++)
        if (p->edges[e].a < first_set || p->edges[e].a >= end)
            n += (int64_t)n_left[p->edges[e].a] * n_left[p->edges[e].b];
    return n;
}

void search_price_problem(struct ap_arena *scratch, const struct memory_search *ms,
                          const struct search_view *v, const double *price,
                          double per_byte, double weight, struct priced_problem *priced)
{
    double *before = AP_NEW_N(scratch, v->model->n_times + 1, double);

    for (int j = 0; j < ms->n_times; j++)
        before[ms->time[j] + 1] += price[j] * per_byte;
    for (int t = 0; t < v->model->n_times; t++)
        before[t + 1] += before[t];
    price_problem(scratch, v->model, before, weight, v->share, priced);
}

double search_solve(struct memory_search *ms, struct search_view *v, const double *price,
                    double per_byte, double weight)
{
    struct ap_arena scratch = {0};
    struct ap_err err = {0};
    struct ap_solution sol = {0};
    struct priced_problem priced;
    double bound = -1;

    search_price_problem(&scratch, ms, v, price, per_byte, weight, &priced);
    struct ap_solve_params params = {
        .work_limit = ms->solve_work, .gap = gap_of(ms), .work = ms->task->work};
    ap_work_tell(ms->task->work, "plans within the memory limit", ms->best_sec,
                 ms->bound);
    if (search_is_late(ms)) {
        ap_arena_free(&scratch);
        return -1;
    }
    if (ms->task->until_sec > 0)
        params.time_limit_sec = ms->task->until_sec - ap_now_sec();
    if (ms->n_cuts > 0)
        params.start = start_at(&scratch, ms, v, &priced, ms->cut[ms->n_cuts - 1].choice);
    int rc = ap_solve_exact(&scratch, &priced.problem, &params, &sol, &err);
    const int64_t cells = count_cells(&scratch, &priced, v->model->problem->n_nodes);
    ms->effort += cells * (SEARCHED + sol.work) / SEARCHED;
    ms->gave_up = rc || sol.bound < sol.objective * (1 - GIVEN_UP * params.gap);
    if (rc == 0) {
        bound = sol.bound;
        v->moved = price_move_shares(v->model, &priced, sol.choice,
                                     1.0 / (2 + ms->n_solves), v->share);
        priced_states(v->model, &priced, sol.choice);
        meet_view(ms, v, sol.choice);
        ms->n_solves++;
    }
    ap_arena_free(&scratch);
    return bound;
}

bool search_is_late(const struct memory_search *ms)
{
    if (ms->best_sec < INFINITY && ap_work_over(ms->task->work))
        return true;
    return ms->task->until_sec > 0 && ap_now_sec() >= ms->task->until_sec;
}

/* Whether the last cut equals an earlier one, so that its prices give no new information.
 */
static bool met_before(const struct memory_search *ms)
{
    const size_t size = choice_size(ms->model);
    const int last = ms->n_cuts - 1;

    for (int i = 0; i < last; i++)
        if (memcmp(ms->cut[i].choice, ms->cut[last].choice, size) == 0)
            return true;
    return false;
}

static bool at_highest(const struct memory_search *ms, const double *price)
{
    for (int j = 0; j < ms->n_times; j++)
        if (price[j] >= ms->highest * (1 - memory_tuning.gap_small))
            return true;
    return false;
}

static bool pay_more(struct memory_search *ms)
{
    if (ms->highest >= memory_tuning.highest_price)
        return false;
    ms->highest = fmin(8 * ms->highest, memory_tuning.highest_price);
    return true;
}

void search_try_last(struct memory_search *ms)
{
    const int64_t peak = search_try(ms, ms->cut[ms->n_cuts - 1].choice);

    if ((double)ms->cut[ms->n_cuts - 1].peak <= ms->limit * ABOUT && peak < INT64_MAX)
        ms->excess = fmin(ms->excess, (double)(peak - ms->task->limit));
    if (peak < INT64_MAX)
        ms->slack = fmin(ms->slack, (double)(peak - ms->cut[ms->n_cuts - 1].peak));
}

static struct search_view *view_of(struct memory_search *ms)
{
    return ms->tied ? ms->tied : &ms->whole;
}

/* The next prices to solve for; false when they promise no more than what is known. */
static bool next_prices(struct memory_search *ms, double limit, double aimed, bool inward,
                        double *price)
{
    const double theta = search_prices(ms, limit, price);
    if (theta * ms->unit <= aimed * (1 + ms->near / 4) || !isfinite(theta))
        return false;
    for (int j = 0; j < ms->n_times && inward; j++)
        price[j] = INWARD * ms->last_price[j] + (1 - INWARD) * price[j];
    return true;
}

/* Prices for a limit; bounds hold for the true one. */
static void price_memory(struct memory_search *ms, double limit)
{
    struct search_view *v = view_of(ms);
    double *price = AP_NEW_N(ms->arena, ms->max_times, double);
    const int64_t until = ms->effort + memory_tuning.round_effort;
    double *best = ms->last_price, aimed = 0; /* the best value for this limit */
    bool inward = ms->tied != NULL;
    int stalls = 0;

    ms->limit = limit;
    ms->excess = ms->slack = INFINITY;
    memset(best, 0, (size_t)ms->n_times * sizeof *best);
    for (int round = 0; round < memory_tuning.most_rounds && ms->n_cuts < ms->max_cuts;
         round++) {
        const bool between = inward && stalls == 0 && aimed > 0;
        if ((round >= memory_tuning.rounds && ms->effort > until) ||
            (round >= memory_tuning.few_rounds && ms->effort > memory_tuning.effort &&
             (!ms->tied || aimed > ms->bound)) ||
            ms->bound > ms->best_sec * (1 - memory_tuning.gap_small / 10) ||
            !next_prices(ms, limit, aimed, between, price))
            return;
        const bool is_highest = at_highest(ms, price);
        double paid = search_price_sum(ms, price, ms->n_times, limit);
        double value = search_solve(ms, v, price, ms->unit / limit, 1);
        if (value < 0)
            return;
        inward = ms->tied || value - paid * limit <= aimed;
        if (value - paid * limit > aimed) {
            aimed = value - paid * limit;
            memcpy(best, price, (size_t)ms->n_times * sizeof *price);
            if (limit >= (double)ms->task->limit && aimed > ms->best_value) {
                ms->best_value = aimed;
                memcpy(ms->best_price, price, (size_t)ms->n_times * sizeof *price);
            }
        }
        if (v == &ms->whole)
            search_raise_bound(ms, value, paid);
        search_try_last(ms);
        stalls = met_before(ms) ? stalls + 1 : 0;
        if (stalls == 0 || between || (v->moved && stalls < MOST_STALLS))
            continue;
        if (!is_highest || !pay_more(ms))
            return;
    }
}

/* The least memory that choices surely need, and choices that need little. */
static void find_least(struct memory_search *ms)
{
    struct search_view *v = view_of(ms);
    double *price = AP_NEW_N(ms->arena, ms->max_times, double);
    double aimed = 0, value = 0, limit = 1;

    for (int i = 0; i < ms->n_cuts; i++) /* in numbers near 1 the simplex method ends */
        limit = fmax(limit, (double)ms->cut[i].peak);
    for (int round = 0; round < memory_tuning.rounds; round++) {
        double theta = search_least_prices(ms, limit, price);
        if (!isfinite(theta) ||
            (round > 0 && theta * limit <= aimed * (1 + memory_tuning.gap_small)))
            break;
        value = search_solve(ms, v, price, 1, 0);
        if (value < 0)
            break;
        if (value > aimed) {
            aimed = value;
            memcpy(ms->last_price, price, (size_t)ms->n_times * sizeof *price);
        }
        search_try_last(ms);
    }
    if (v != &ms->whole && aimed > 0) {
        aimed = fmax(search_solve(ms, &ms->whole, ms->last_price, 1, 0), 0);
        search_try_last(ms);
    }
    ms->least_proven = (int64_t)(aimed * (1 - 1e-9));
}

/* ---- the search ---- */

static void open_view(struct memory_search *ms, struct search_view *v,
                      const struct ap_memory *model)
{
    v->model = model;
    v->share = AP_NEW_N(ms->arena, model->n_copies + 1, double);
    for (int c = 0; c < model->n_copies; c++)
        v->share[c] = 0.5;
}

/* Limits of the model between which programs begin to fit. */
struct bracket {
    double low, high; /* they fit, 0: not known; they do not */
};

/* Where to look after choices for a limit; 0: nowhere. */
static double next_limit(const struct memory_search *ms, struct bracket *b, double limit,
                         bool fits)
{
    const double full = (double)ms->task->limit;
    double next;

    if (fits)
        b->low = fmax(b->low, limit);
    else
        b->high = fmin(b->high, limit);
    if (b->low > 0)
        next =
            b->high - b->low < full * memory_tuning.fine ? 0 : 0.5 * (b->low + b->high);
    else if (isfinite(ms->excess))
        next = fmin(b->high - ms->excess, b->high - full * memory_tuning.fine);
    else if (isfinite(ms->slack))
        next = fmin(full - ms->slack, b->high - full * memory_tuning.step);
    else /* no choice was worth a program */
        next = b->high - full * memory_tuning.fine;
    return next > full / 2 ? next : 0;
}

/* Choices for lower limits, since arenas are larger than what is in use. */
static void search_below(struct memory_search *ms)
{
    const double full = (double)ms->task->limit;
    struct bracket bracket = {0, full};
    double limit = full;
    bool fits = ms->tied && ms->excess <= 0;

    for (int i = 0; i < memory_tuning.n_lower && !search_is_near(ms); i++) {
        const double before = ms->best_sec;
        limit = next_limit(ms, &bracket, limit, fits);
        if (limit <= 0 ||
            (i >= memory_tuning.tries && ms->effort >= memory_tuning.effort))
            return;
        price_memory(ms, limit);
        search_mend(ms);
        fits = ms->tied && (ms->excess <= 0 || ms->best_sec < before);
    }
}

/* Choices for the limit, by what their programs hold. */
static void search_programs(struct memory_search *ms)
{
    look_at(ms, ms->task->measure.held != NULL);
    price_memory(ms, (double)ms->task->limit);
    search_mend(ms);
    search_below(ms);
    look_at(ms, false);
}

/* A choice that fits where prices for the limit itself met none: for lower ones. */
static void search_lower(struct memory_search *ms)
{
    double limit = (double)ms->task->limit;

    find_least(ms);
    if (ms->least_proven > ms->task->limit)
        return;
    for (int i = 0; i < memory_tuning.n_lower && ms->best_sec == INFINITY; i++) {
        if (ms->n_cuts >= ms->max_cuts)
            return;
        price_memory(ms, limit *= memory_tuning.lower);
    }
    search_mend(ms);
}

/* Choices that need little, by prices for a limit that follows from the starts alone. */
static void search_least(struct memory_search *ms)
{
    double limit = INFINITY;

    for (int i = 0; i < ms->n_cuts; i++)
        limit = fmin(limit, (double)ms->cut[i].peak * LEAN);
    price_memory(ms, limit);
    find_least(ms);
}

/* Choices for the limit and a bound. */
static void search(struct memory_search *ms)
{
    const double full = (double)ms->task->limit;

    if (ms->task->least) {
        search_least(ms);
        return;
    }
    price_memory(ms, full);
    search_mend(ms);
    search_prove_tied(ms);
    if (ms->best_sec == INFINITY)
        search_lower(ms);
    if (ms->best_sec == INFINITY)
        return;
    if (!search_is_near(ms))
        search_programs(ms);
    search_prove_tied(ms);
    if (!search_is_near(ms))
        search_prove(ms);
    for (int i = 1; i < ms->n_tries && !search_is_near(ms) &&
                    ms->effort < memory_tuning.effort && !search_is_late(ms);
         i++) {
        const double limit = full - i * full * memory_tuning.step;
        price_memory(ms, limit);
        search_mend(ms);
    }
    search_change(ms);
}

/* Choices at hand: what prices are first made from. */
static int meet_starts(struct memory_search *ms)
{
    double *none = AP_NEW_N(ms->arena, ms->max_cuts + 1, double);

    for (int i = 0; i < ms->task->n_starts; i++) {
        search_try(ms, ms->task->start[i]);
        meet(ms, ms->task->start[i]);
    }
    return ms->n_cuts > 0 || search_solve(ms, view_of(ms), none, 1, 1) >= 0 ? 0 : -1;
}

static void open_search(struct memory_search *ms)
{
    const struct ap_memory_task *task = ms->task;
    double tries;

    open_view(ms, &ms->whole, task->model);
    if (task->tied) {
        ms->tied = AP_NEW(ms->arena, struct search_view);
        open_view(ms, ms->tied, task->tied);
    }
    for (int v = 0; v < task->model->n_vars; v++)
        ms->n_strategies += task->model->problem->n_strategies[v];
    tries = memory_tuning.tries_work /
            ((double)ms->n_strategies * (double)task->program_work);
    ms->n_tries = (int)fmin(fmax(tries, memory_tuning.tries), memory_tuning.most_tries);
    ms->near =
        ms->n_tries > memory_tuning.tries ? memory_tuning.gap_small : memory_tuning.gap;
    ms->max_cuts =
        memory_tuning.most_rounds * (ms->n_tries + 2 * memory_tuning.n_lower + 2) +
        SEARCH_PROOFS + task->n_starts + 1;
    ms->max_times =
        task->model->n_times + 2 * (ms->max_cuts + memory_tuning.most_rounds) + 1;
    ms->cut = AP_NEW_N(ms->arena, ms->max_cuts + 2 * memory_tuning.most_rounds + 1,
                       struct search_cut);
    ms->time = AP_NEW_N(ms->arena, ms->max_times, int);
    ms->best_price = AP_NEW_N(ms->arena, ms->max_times, double);
    ms->last_price = AP_NEW_N(ms->arena, ms->max_times, double);
}

int ap_memory_search(struct ap_arena *arena, const struct ap_memory_task *task,
                     struct ap_memory_answer *answer, struct ap_err *err)
{
    struct memory_search ms = {
        .arena = arena,
        .task = task,
        .model = task->model,
        .best_sec = task->best_sec,
        .highest = 0.25,
        .solve_work = memory_tuning.solve_work,
        .bound = task->bound,
        .unit = task->objective > 0 ? task->objective : 1,
    };

    open_search(&ms);
    if (meet_starts(&ms))
        return ap_err_set(err, "no solution");
    search(&ms);
    double *best = AP_NEW_N(arena, task->model->n_times, double);
    for (int j = 0; j < ms.n_times; j++)
        best[ms.time[j]] += ms.best_price[j] * ms.unit / (double)task->limit;
    *answer = (struct ap_memory_answer){.choice = ms.best,
                                        .sec = ms.best_sec,
                                        .bound = fmin(ms.bound, ms.best_sec),
                                        .price = best,
                                        .least_proven = ms.least_proven,
                                        .n_solves = ms.n_solves,
                                        .n_measured = ms.n_measured,
                                        .n_times = ms.n_times};
    return 0;
}
