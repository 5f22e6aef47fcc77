/*
 * Better choices near a legal one, for the selection problem with memory. Forests and
 * chains (solve_mem_try.c), what repeated regions have (solve_mem_repeat.c) and what
 * needs memory freed elsewhere (solve_mem_trade.c) are tried in turns, in several sizes
 * and with several weights of memory, until the budget is spent, those most often that
 * gained most per work.
 *
 * A result is taken if it is legal and not more expensive; among equal ones this is a
 * walk. When that stalls, there are two ways to go on: kicks, where a round has time for
 * many, which decide a part anew at random (variable neighbourhood search); and cooling,
 * where the cost may rise a little above a record, or costs are noisy (heat), and usage
 * has a price, all less from step to step: first memory is freed where that is cheap,
 * then it is spent where that saves most. Coolings grow longer, the last one as long as
 * there is time; others begin in a part of the graph only. After Dueck, "New optimization
 * heuristics", 1993 (record-to-record travel), Kirkpatrick, Gelatt and Vecchi,
 * "Optimization by simulated annealing", 1983, Papandreou and Yuille, "Perturb-and-MAP
 * random fields", 2011, and Hansen and Mladenovic, "Variable neighborhood search", 2001.
 */
#include "solve/memory/solve_mem_local.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_RATE 0.05 /* of the best arm's, for all arms */
#define PICK_WORK  100
#define FORGET     0.999
#define WINDOW     40   /* times all cells, as work */
#define LITTLE     1e-4 /* part of the cost gained in a window */
#define COOLING    100  /* times all cells, as work, and in so many steps: */
#define STEPS      30
#define LONGER     1.3 /* the next one, up to: */
#define LONGEST    20
#define ALONE      12 /* such coolings must have time for searches to go their own ways */
#define LAST_PART  0.85 /* of the time left is for the last one */
#define MIN_PART   0.2  /* of a cooling's least length; not worth while if shorter */
#define SMALLER    5    /* halvings of a part that is cooled by itself */
#define MAX_RISE   0.04 /* of the gap, at the first step */
#define MIN_HEAT   0.4  /* of the gap, divided by the nodes, at the first step */
#define MAX_HEAT   4.0
#define MAX_WEIGHT 1.6  /* of the price of usage, at the first step */
#define FAR        0.02 /* of the gap: cooling starts from the best choice instead */
#define FORGET_WAY 0.8
#define LEAST_WAY  0.15 /* of the better way's rate, for both */
#define STRENGTHS  8
#define MANY       8 /* descents as long as the first */
#define SCRAMBLE   12
#define SHORT      4   /* kicks in a round, where new starts */
#define FAR_START  0.5 /* of the gap away from the best choice end */

/* What a try of that kind may cost, until that is known. */
static double first_work(int kind)
{
    if (kind < ARM_CHAIN)
        return 800 << kind;
    if (kind < ARM_REPEAT)
        return 4000;
    return kind < ARM_TRADE ? 4000 << 2 * (kind - ARM_REPEAT)
                            : 10000 << 2 * (kind - ARM_TRADE);
}

struct mem_local *mem_local_new(struct ap_arena *arena, const struct mem_core *m,
                                uint64_t seed, bool plain)
{
    const struct sel_core *c = m->core;
    struct mem_local *l = AP_NEW(arena, struct mem_local);
    int n = c->n_nodes + 1, most = 1;

    l->m = m;
    l->random = seed;
    l->plain = plain;
    l->st = mem_state_new(arena, m);
    l->best_cost = INFINITY;
    l->level = -INFINITY;
    l->way_now = -1;
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
    for (int i = 0; i < N_ELITE; i++)
        l->elite[i] = AP_NEW_N(arena, n, int);
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
    l->focus = AP_NEW_N(arena, n, int);
    l->local = AP_NEW_N(arena, n, double *);
    l->up = AP_NEW_N(arena, n, double *);
    l->pick = AP_NEW_N(arena, most > n ? most : n, int);
    l->repeat = mem_repeat_new(arena, m);
    memset(l->place, 0xff, (size_t)n * sizeof(int));
    for (int i = 0; i < N_ARMS; i++) {
        l->arm[i].work = first_work(i / N_FACTORS);
        l->arm[i].per_try = l->arm[i].work;
    }
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

/* Keeps a choice to join later ones with. */
static void keep_end(struct mem_local *l, const int *choice)
{
    int *last = l->elite[N_ELITE - 1];

    memmove(&l->elite[1], &l->elite[0], (N_ELITE - 1) * sizeof(*l->elite));
    l->elite[0] = last;
    memcpy(last, choice, (size_t)l->m->core->n_nodes * sizeof(int));
    l->n_elite += l->n_elite < N_ELITE;
}

bool mem_local_has_time(const struct mem_local *l, double until_sec)
{
    double now = mem_now_sec();

    if (now >= until_sec || l->total_work == 0 || now <= l->start_sec)
        return false;
    return (double)l->total_work / (now - l->start_sec) * (until_sec - l->start_sec) >
           ALONE * COOLING * (double)(l->n_cells + 1000);
}

void mem_local_set(struct mem_local *l, const int *choice, double cost, double bound,
                   const double *mu, bool apart)
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
    bool joins = l->apart && !apart;
    l->apart = apart;
    if (cost >= l->best_cost - l->tol || (apart && l->best_cost < INFINITY))
        return;
    if (l->best_cost < INFINITY)
        l->way_cost -= l->best_cost - cost; /* it was not gained here */
    if (joins) {
        keep_end(l, l->best);
        l->joins = true;
    }
    l->best_cost = cost;
    memcpy(l->best, choice, (size_t)m->core->n_nodes * sizeof(int));
    if ((l->strength < 2 && l->way_now <= WAY_KICK) || l->st->cost == INFINITY) {
        mem_state_set(l->st, choice);
        reprice(l);
        make_home(l, choice, cost);
        l->strength = 0;
        l->window_work = 0;
        l->window_cost = cost;
    }
}

/* ---- which neighbourhood to try ---- */

/*
 * Time goes to the arms by what they gained per work lately. An arm is tried with a
 * probability of rate / work per try, its rate being at least a part of the best one's.
 */
static int pick_arm(struct mem_local *l)
{
    double best = 0, sum = 0, weight[N_ARMS];

    for (int i = 0; i < N_ARMS; i++)
        best = fmax(best, l->arm[i].gain / l->arm[i].work);
    for (int i = 0; i < N_ARMS; i++) {
        double rate = best > 0 ? l->arm[i].gain / l->arm[i].work / best : 1;
        weight[i] = fmax(rate, LEAST_RATE) / l->arm[i].per_try;
        sum += weight[i];
    }
    double u = mem_uniform(l) * sum;
    int i = 0;
    while (i < N_ARMS - 1 && (u -= weight[i]) > 0)
        i++;
    return i;
}

static void reward(struct arm *a, double gain, double work)
{
    a->gain = FORGET * a->gain + gain;
    a->work = FORGET * a->work + work;
    a->per_try += 0.1 * (work - a->per_try);
}

/* The part of the graph where tries begin. */
static double part_of(const struct mem_local *l)
{
    return l->n_focus > 0 ? (double)l->n_focus / l->m->core->n_nodes : 1;
}

static int pick_start(struct mem_local *l)
{
    return l->n_focus > 0 ? l->focus[mem_pick(l, l->n_focus)]
                          : mem_pick(l, l->m->core->n_nodes);
}

static void try_arm(struct mem_local *l, int arm, struct mem_budget *budget)
{
    static const double factors[N_FACTORS] = {1, 0, 0.5, 2, 0.2, 4, 10};
    const struct sel_core *c = l->m->core;
    int kind = arm / N_FACTORS, v = pick_start(l);
    double factor = factors[arm % N_FACTORS], before = mem_value(l);
    int64_t work = budget->work;

    if (kind < ARM_CHAIN) {
        int n = (4 << kind) + mem_pick(l, 4 << kind);
        mem_try_forest(l, v, n, factor, false, budget);
    } else if (kind < ARM_REPEAT) {
        int s = mem_pick(l, c->node[v].n_strategies);
        if (s != l->st->choice[v])
            mem_try_chain(l, v, s, factor, budget);
    } else if (kind < ARM_TRADE) {
        mem_try_repeat(l, v, 16 << 2 * (kind - ARM_REPEAT), factor, budget);
    } else {
        mem_try_trade(l, v, 16 << 3 * (kind - ARM_TRADE), factor, budget);
    }
    reward(&l->arm[arm], fmax(before - mem_value(l), 0),
           (double)(budget->work - work + 20));
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

    if (++l->strength > STRENGTHS) {
        l->strength = 0;
        make_home(l, l->best, l->best_cost);
        go_to(l, l->best);
        if (l->total_work > MANY * l->first_descent && mem_pick(l, 4) > 0) {
            kick(l, n_nodes, SCRAMBLE, budget);
            make_home(l, l->st->choice, l->st->cost);
        }
        return;
    }
    go_to(l, l->home);
    kick(l, 4 + (n_nodes >> (STRENGTHS - l->strength + 1)), l->strength, budget);
}

/* ---- cooling ---- */

/* The work that can be done until the end, at the speed so far. */
static double work_left(const struct mem_local *l, const struct mem_budget *budget)
{
    double now;

    if (budget->end_sec == 0 || (now = mem_now_sec()) <= l->start_sec)
        return INFINITY;
    return (budget->end_sec - now) * (double)l->total_work / (now - l->start_sec);
}

/* A random part of the graph, hubs leading no further. */
static void find_focus(struct mem_local *l)
{
    const struct sel_core *c = l->m->core;
    int size = c->n_nodes >> (1 + mem_pick(l, SMALLER)), n = 0;
    bool breadth = mem_random(l) & 1;

    l->focus[n++] = mem_pick(l, c->n_nodes);
    l->touch[l->focus[0]] = 1;
    for (int head = 0; head < n && head < size; head++) {
        if (!breadth) {
            int i = head + mem_pick(l, n - head), t = l->focus[i];
            l->focus[i] = l->focus[head];
            l->focus[head] = t;
        }
        const struct sel_node *node = &c->node[l->focus[head]];
        for (int k = 0; k < node->n_edges && node->n_edges < MEM_HUB; k++) {
            int w = sel_other(&c->edge[node->edges[k]], l->focus[head]);
            if (l->touch[w]++ == 0)
                l->focus[n++] = w;
        }
    }
    for (int i = 0; i < n; i++)
        l->touch[l->focus[i]] = 0;
    l->n_focus = n < size ? n : size;
}

static void start_cooling(struct mem_local *l, const struct mem_budget *budget)
{
    bool all = l->way_now < WAY_PART_LEVEL;
    bool heated = l->way_now == WAY_HEAT || l->way_now == WAY_PART_HEAT;
    double gap = l->best_cost - l->bound, u = mem_uniform(l);

    if (!all)
        find_focus(l);
    double part = part_of(l);
    if (l->st->cost > l->best_cost + FAR * part * gap)
        go_to(l, l->best);
    l->cool.weight = MAX_WEIGHT * mem_uniform(l);
    l->cool.rise = heated ? 0 : MAX_RISE * u * gap * pow(part, mem_uniform(l));
    l->cool.heat = heated ? MIN_HEAT * pow(MAX_HEAT / MIN_HEAT, u) * gap : 0;
    l->cool.heat /= l->m->core->n_nodes;
    l->cool.step = -1;
    l->cool.work = 0;
    double longer = all ? l->cool.longer : pow(LONGEST, mem_uniform(l));
    double least = COOLING * part * (double)(l->n_cells + 1000);
    double last = LAST_PART * work_left(l, budget);
    l->cool.length = last < MIN_PART * least ? 0 : (int64_t)fmin(least * longer, last);
    if (all)
        l->cool.longer = fmin(l->cool.longer * LONGER, LONGEST);
}

static void end_cooling(struct mem_local *l)
{
    l->cool.length = 0;
    l->weight = l->heat = 0;
    l->level = -INFINITY;
    l->window_work = 0;
    l->window_cost = l->st->cost;
}

/* Goes on to the step that is due; true while there is one. */
static bool cool(struct mem_local *l, int64_t work)
{
    l->cool.work += work;
    int step = (int)(STEPS * l->cool.work / l->cool.length);
    if (step >= STEPS) {
        end_cooling(l);
        return false;
    }
    if (step != l->cool.step) {
        double part = 1 - (double)step / STEPS;
        l->cool.step = step;
        l->weight = l->cool.weight * part * part;
        l->heat = l->cool.heat * part * part;
        l->level = l->heat > 0 ? -INFINITY : mem_value(l) + l->cool.rise * part * part;
    }
    return true;
}

bool mem_local_is_short(const struct mem_local *l)
{
    const struct way *w = &l->way[WAY_KICK];

    return w->n > 0 && (double)l->run_work * w->n > (l->far ? SHORT : 1) * w->work;
}

/*
 * Ways are tried with a probability of rate / work per try, the rate being at least a
 * part of the best one's; those not tried yet come first.
 */
static int pick_way(struct mem_local *l, int from, int until)
{
    double rate[N_WAYS], most = 0, sum = 0;

    for (int i = from; i < until; i++) {
        if (l->way[i].n == 0)
            return i;
        rate[i] = l->way[i].gain / l->way[i].work;
        most = fmax(most, rate[i]);
    }
    for (int i = from; i < until; i++) {
        rate[i] = most > 0 ? fmax(rate[i] / most, LEAST_WAY) : 1;
        rate[i] *= l->way[i].n / l->way[i].work;
        sum += rate[i];
    }
    double u = mem_uniform(l) * sum;
    int i = from;
    while (i < until - 1 && (u -= rate[i]) > 0)
        i++;
    return i;
}

static void count_way(struct mem_local *l)
{
    if (l->way_now >= 0) {
        struct way *w = &l->way[l->way_now];
        w->gain = FORGET_WAY * w->gain + l->way_cost - l->best_cost;
        w->work = FORGET_WAY * w->work + (double)l->way_work;
        w->n = FORGET_WAY * w->n + 1;
    }
    l->way_cost = l->best_cost;
    l->way_work = 0;
}

/* Joins the end of a cooling with where others ended; that of a part with the best. */
static void join_ends(struct mem_local *l, struct mem_budget *budget)
{
    if (l->n_focus > 0) {
        mem_relink(l, l->best, budget);
        return;
    }
    keep_end(l, l->st->choice);
    mem_relink(l, l->best, budget);
    for (int i = 1; i < l->n_elite; i++)
        mem_relink(l, l->elite[i], budget);
}

/* Little was gained for a while. */
static void move_on(struct mem_local *l, struct mem_budget *budget)
{
    if (l->way_now > WAY_KICK)
        join_ends(l, budget);
    keep_best(l);
    if (l->first_descent == 0)
        l->first_descent = l->total_work;
    count_way(l);
    bool kicks = l->way[WAY_KICK].n == 0 || mem_local_is_short(l);
    bool cools = l->way[WAY_KICK].n > 0 && !(kicks && l->plain);
    l->way_now = pick_way(l, kicks ? WAY_KICK : WAY_LEVEL, cools ? N_WAYS : WAY_LEVEL);
    l->n_focus = 0;
    if (l->way_now == WAY_KICK)
        kick_on(l, budget);
    else
        start_cooling(l, budget);
}

void mem_local_move(struct mem_local *l, const int *choice)
{
    go_to(l, choice);
    make_home(l, choice, l->st->cost);
    l->strength = 0;
    l->moved = true;
    l->n_focus = 0;
    end_cooling(l);
}

/* Joins what others found with what was found here, the first time they are seen. */
static void join_best(struct mem_local *l, struct mem_budget *budget)
{
    l->joins = false;
    go_to(l, l->best);
    end_cooling(l);
    for (int i = 0; i < l->n_elite; i++)
        mem_relink(l, l->elite[i], budget);
    keep_best(l);
}

void mem_local_run(struct mem_local *l, double enough, struct mem_budget *budget)
{
    if (l->m->core->n_nodes == 0)
        return;
    int64_t work = budget->work;
    if (l->total_work == 0 && budget->end_sec > 0)
        l->start_sec = mem_now_sec();
    mem_settle(l->st, budget);
    reprice(l);
    if (l->joins)
        join_best(l, budget);
    while (!budget->out && l->best_cost > enough) {
        int64_t before = budget->work;
        mem_spend(budget, PICK_WORK);
        try_arm(l, pick_arm(l), budget);
        before = budget->work - before;
        l->window_work += before;
        l->total_work += before;
        l->way_work += before;
        if (l->st->cost < l->best_cost - l->tol)
            keep_best(l);
        if (l->cool.length > 0 && cool(l, before))
            continue;
        if (l->window_work < WINDOW * part_of(l) * (double)(l->n_cells + 1000))
            continue;
        if (l->st->cost >= l->window_cost - LITTLE * fabs(l->window_cost))
            move_on(l, budget);
        l->window_work = 0;
        l->window_cost = l->st->cost;
    }
    l->run_work = budget->work - work;
    keep_best(l);
    l->far |=
        l->moved && l->home_cost - l->best_cost > FAR_START * (l->best_cost - l->bound);
    l->moved = false;
}
