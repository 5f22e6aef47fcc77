/*
 * Better choices near a legal one, for the selection problem with memory. Forests
 * (mem_try.c) are tried in several sizes and with several weights of memory, until the
 * budget is spent.
 *
 * A result is taken if it is legal and not more expensive; among equal ones this is a
 * walk. When that stalls, there are two ways to go on: kicks, where a round has time for
 * many, which decide a part anew at random (variable neighbourhood search); and cooling,
 * where the cost may rise a little above a record and usage has a price, both less from
 * step to step: first memory is freed where that is cheap, then it is spent where that
 * saves most. Coolings grow longer, the last one as long as there is time. After Dueck,
 * "New optimization heuristics", 1993 (record-to-record travel), and Hansen and
 * Mladenovic, "Variable neighborhood search", 2001.
 */
#include "mem_local.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_WORK \
    800 /* what a try of the smallest forest may cost, until that is known */

/*
 * Parameters of the local search. Work is in cells looked at, about a nanosecond each.
 * `SEEDS='0 1 2' scripts/bench/solve FOLDER 10`, with the contest's instances K and U in
 * the folder, shows what they are worth: the objective and its ratio to the best known.
 */
static const struct {
    int64_t pick_work;      /* of choosing what to try */
    double window;          /* work times all cells, after which is looked whether ... */
    double little;          /* ... no more than this part of the cost was gained */
    double cooling;         /* work of the first one, times all cells */
    int steps;              /* of a cooling */
    double longer, longest; /* each next one's length, up to this many times the first */
    double last_part;       /* of the time left is for the last one ... */
    double min_part;        /* ... if that is this part of the first one's length */
    double rise;   /* above the record, part of the gap, at the first step, at most */
    double weight; /* of usage's price at the first step, at most */
    double far;    /* part of the gap: cooling starts from the best choice instead */
    int strengths; /* of kicks, before they start elsewhere */
    int scramble;  /* kicks to start from a choice that is decided anew */
    int many;      /* descents as long as the first one, before that is done */
} tuning = {
    .pick_work = 100,
    .window = 40,
    .little = 1e-4,
    .cooling = 100,
    .steps = 30,
    .longer = 1.3,
    .longest = 20,
    .last_part = 0.85,
    .min_part = 0.2,
    .rise = 0.04,
    .weight = 1.6,
    .far = 0.02,
    .strengths = 8,
    .scramble = 12,
    .many = 8,
};

struct mem_local *mem_local_new(struct ap_arena *arena, const struct mem_core *m,
                                uint64_t seed, bool plain)
{
    const struct sel_core *c = m->core;
    struct mem_local *l = AP_NEW(arena, struct mem_local);
    int n = c->n_nodes + 1, most = 1;

    l->arena = arena;
    l->m = m;
    l->random = seed;
    l->plain = plain;
    l->st = mem_state_new(arena, m);
    l->best_cost = INFINITY;
    l->level = -INFINITY;
    l->cool.longer = 1;
    l->price = AP_NEW_N(arena, n, double *);
    for (int v = 0; v < c->n_nodes; v++) {
        l->price[v] = AP_NEW_N(arena, c->node[v].n_strategies, double);
        l->cap_pool += 2 * (size_t)c->node[v].n_strategies;
        if (c->node[v].n_strategies > most)
            most = c->node[v].n_strategies;
    }
    l->best = AP_NEW_N(arena, n, int);
    l->home = AP_NEW_N(arena, n, int);
    for (int e = 0; e < c->n_edges; e++) {
        const struct sel_table *t = c->edge[e].table;
        l->n_cells += (int64_t)t->n_rows * t->n_cols;
        most = t->n_rows > most ? t->n_rows : most;
        most = t->n_cols > most ? t->n_cols : most;
    }
    l->in = AP_NEW_N(arena, most, double);
    l->out = AP_NEW_N(arena, most, double);
    l->pool = AP_NEW_N(arena, l->cap_pool + 1, double);
    l->node = AP_NEW_N(arena, n, int);
    l->parent = AP_NEW_N(arena, n, int);
    l->edge = AP_NEW_N(arena, n, int);
    l->place = AP_NEW_N(arena, n, int);
    l->touch = AP_NEW_N(arena, n, int);
    l->frontier = AP_NEW_N(arena, n, int);
    l->local = AP_NEW_N(arena, n, double *);
    l->up = AP_NEW_N(arena, n, double *);
    l->pick = AP_NEW_N(arena, most > n ? most : n, int);
    memset(l->place, 0xff, (size_t)n * sizeof(int));
    for (int i = 0; i < N_ARMS; i++)
        l->per_try[i] = FIRST_WORK << i / N_FACTORS;
    return l;
}

const int *mem_local_best(const struct mem_local *l)
{
    return l->best;
}

static void make_home(struct mem_local *l, const int *choice, double cost)
{
    l->home_cost = cost;
    memcpy(l->home, choice, (size_t)l->m->core->n_nodes * sizeof(int));
}

/* Adds up the prices of the choice; what may be risen to stays as far away. */
static void reprice(struct mem_local *l)
{
    double sum = 0;

    for (int v = 0; v < l->m->core->n_nodes; v++)
        sum += l->price[v][l->st->choice[v]];
    l->level += l->weight * (sum - l->priced);
    l->priced = sum;
}

void mem_local_set(struct mem_local *l, const int *choice, double cost, double bound,
                   const double *mu)
{
    const struct mem_core *m = l->m;
    double *prefix = ap_xrealloc(NULL, ((size_t)m->n_slots + 1) * sizeof(double));

    mem_prefix(m, mu, prefix);
    for (int v = 0; v < m->core->n_nodes; v++)
        for (int s = 0; s < m->core->node[v].n_strategies; s++)
            l->price[v][s] = mem_price(m, prefix, v, s);
    free(prefix);
    l->tol = 1e-12 * fabs(cost);
    l->bound = bound;
    if (l->st->cost < INFINITY)
        reprice(l);
    if (cost >= l->best_cost - l->tol)
        return;
    l->best_cost = cost;
    memcpy(l->best, choice, (size_t)m->core->n_nodes * sizeof(int));
    if ((l->strength < 2 && l->cool.length == 0) || l->st->cost == INFINITY) {
        mem_state_set(l->st, choice);
        reprice(l);
        make_home(l, choice, cost);
        l->strength = 0;
        l->window_work = 0;
        l->window_cost = cost;
    }
}

/* ---- which neighbourhood to try ---- */

/* All arms get the same work: one is tried with a probability of 1 / work per try. */
static int pick_arm(struct mem_local *l)
{
    double sum = 0;
    int i = 0;

    for (int k = 0; k < N_ARMS; k++)
        sum += 1 / l->per_try[k];
    double u = mem_uniform(l) * sum;
    while (i < N_ARMS - 1 && (u -= 1 / l->per_try[i]) > 0)
        i++;
    return i;
}

static void try_arm(struct mem_local *l, int arm, struct mem_budget *budget)
{
    static const double factors[N_FACTORS] = {1, 0, 0.5, 2, 0.2, 4, 10};
    const struct sel_core *c = l->m->core;
    int size = 4 << arm / N_FACTORS, v = mem_pick(l, c->n_nodes);
    double factor = factors[arm % N_FACTORS];
    int64_t work = budget->work;

    mem_try_forest(l, v, size + mem_pick(l, size), factor, false, budget);
    l->per_try[arm] += 0.1 * ((double)(budget->work - work + 20) - l->per_try[arm]);
}

static void keep_best(struct mem_local *l)
{
    const struct mem_state *st = l->st;

    if (st->cost < l->home_cost - l->tol) {
        make_home(l, st->choice, st->cost);
        l->strength = 0;
    }
    if (st->cost < l->best_cost - l->tol) {
        l->best_cost = st->cost;
        memcpy(l->best, st->choice, (size_t)l->m->core->n_nodes * sizeof(int));
    }
}

static void go_to(struct mem_local *l, const int *choice)
{
    mem_state_set(l->st, choice);
    reprice(l);
}

static void kick(struct mem_local *l, int size, int n, struct mem_budget *budget)
{
    int n_nodes = l->m->core->n_nodes;

    l->noise = (double)mem_pick(l, 8) * 0.2 * fabs(l->best_cost) / n_nodes;
    for (int i = 0; i < n && !budget->out; i++)
        mem_try_forest(l, mem_pick(l, n_nodes), size, 0.5 * mem_pick(l, 6), true, budget);
    mem_settle(l->st, budget);
    reprice(l);
}

/*
 * Goes on from home, the best choice around here, with random parts of it decided anew:
 * more of it each time, until that finds a better one. When no strength does, a new home
 * is made of the best choice, or of all of it decided anew, once the descents seem short.
 */
static void kick_on(struct mem_local *l, struct mem_budget *budget)
{
    int n_nodes = l->m->core->n_nodes;

    if (++l->strength > tuning.strengths) {
        l->strength = 0;
        make_home(l, l->best, l->best_cost);
        go_to(l, l->best);
        if (l->total_work > tuning.many * l->first_descent && mem_pick(l, 4) > 0) {
            kick(l, n_nodes, tuning.scramble, budget);
            make_home(l, l->st->choice, l->st->cost);
        }
        return;
    }
    go_to(l, l->home);
    kick(l, 4 + (n_nodes >> (tuning.strengths - l->strength + 1)), l->strength, budget);
}

/* ---- cooling ---- */

/* The work that can be done until the end, at the speed so far. */
static double work_left(const struct mem_local *l, const struct mem_budget *budget)
{
    double now;

    if (budget->end_sec == 0 || (now = ap_now_sec()) <= l->start_sec)
        return INFINITY;
    return (budget->end_sec - now) * (double)l->total_work / (now - l->start_sec);
}

static void start_cooling(struct mem_local *l, const struct mem_budget *budget)
{
    double gap = l->best_cost - l->bound;
    double least = tuning.cooling * (double)(l->n_cells + 1000);
    double last = tuning.last_part * work_left(l, budget);

    if (l->st->cost > l->best_cost + tuning.far * gap)
        go_to(l, l->best);
    l->cool.weight = tuning.weight * mem_uniform(l);
    l->cool.rise = tuning.rise * mem_uniform(l) * gap;
    l->cool.step = -1;
    l->cool.work = 0;
    l->cool.length =
        last < tuning.min_part * least ? 0 : (int64_t)fmin(least * l->cool.longer, last);
    l->cool.longer = fmin(l->cool.longer * tuning.longer, tuning.longest);
}

static void end_cooling(struct mem_local *l)
{
    l->cool.length = 0;
    l->weight = 0;
    l->level = -INFINITY;
    l->window_work = 0;
    l->window_cost = l->st->cost;
}

/* Goes on to the step that is due; true while there is one. */
static bool cool(struct mem_local *l, int64_t work)
{
    l->cool.work += work;
    int step = (int)(tuning.steps * l->cool.work / l->cool.length);
    if (step >= tuning.steps) {
        end_cooling(l);
        return false;
    }
    if (step != l->cool.step) {
        double part = 1 - (double)step / tuning.steps;
        l->cool.step = step;
        l->weight = l->cool.weight * part * part;
        l->level = mem_value(l) + l->cool.rise * part * part;
    }
    return true;
}

/* Whether a round is longer than a kick with the descent from it. */
static bool is_short(const struct mem_local *l)
{
    return l->n_kicks > 0 && (double)l->run_work * l->n_kicks > l->kick_work;
}

/* Little was gained for a while. */
static void move_on(struct mem_local *l, struct mem_budget *budget)
{
    bool kicked = l->kicks;

    keep_best(l);
    if (l->first_descent == 0)
        l->first_descent = l->total_work;
    if (kicked) {
        l->kick_work += (double)l->way_work;
        l->n_kicks++;
    }
    l->way_work = 0;
    l->kicks = l->n_kicks == 0 || (is_short(l) && (l->plain || !kicked));
    if (l->kicks)
        kick_on(l, budget);
    else
        start_cooling(l, budget);
}

void mem_local_run(struct mem_local *l, double enough, struct mem_budget *budget)
{
    if (l->m->core->n_nodes == 0)
        return;
    int64_t work = budget->work;
    if (l->total_work == 0 && budget->end_sec > 0)
        l->start_sec = ap_now_sec();
    mem_settle(l->st, budget);
    reprice(l);
    while (!budget->out && l->best_cost > enough) {
        int64_t before = budget->work;
        mem_spend(budget, tuning.pick_work);
        try_arm(l, pick_arm(l), budget);
        before = budget->work - before;
        l->window_work += before;
        l->total_work += before;
        l->way_work += before;
        if (l->st->cost < l->best_cost - l->tol)
            keep_best(l);
        if (l->cool.length > 0 && cool(l, before))
            continue;
        if (l->window_work < tuning.window * (double)(l->n_cells + 1000))
            continue;
        if (l->st->cost >= l->window_cost - tuning.little * fabs(l->window_cost))
            move_on(l, budget);
        l->window_work = 0;
        l->window_cost = l->st->cost;
    }
    l->run_work = budget->work - work;
    keep_best(l);
}
