/*
 * Problem: the choices met at prices do not fit, or cost more than the prices promise,
 * but others of the same strategies may not. Idea: branch and bound among the strategies
 * of the choices nearest to the bound; a solution among these takes a small part of the
 * time. The mixture of choices that the prices leave says which variable's layouts differ
 * most in what they hold; in one branch it takes those that hold more, in the other one
 * the rest, and each has prices of its own, found from the choices met so far that are in
 * it. Choices met on the way are tried. This proves nothing. Cost: a few solutions of the
 * priced problem per branch; their number is limited by the problem's size.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "solve/memory/memory_search.h"

#define MOST_BRANCHES 400
#define AMONG_EFFORT  10  /* part of what solving takes otherwise */
#define SETTLED       0.1 /* of the gap that is good enough */
#define SAME          1e-6
#define LITTLE        0.05 /* of the gap: what a round must gain */

struct branch {
    int up;    /* where it branched off, -1 */
    int var;   /* its strategies that are left out */
    bool *out; /* [strategy] */
    double bound;
    int n_price; /* of the times known when they were found */
    double *price;
};

struct tree {
    struct memory_search *ms;
    struct ap_arena *arena;
    int n;
    struct branch *branch; /* MOST_BRANCHES + 2 of them */
    struct ap_heap open;   /* of struct open_branch */
    int most_solves;
    double limit;       /* of the model */
    bool *const *among; /* [var][strategy] left out everywhere */
    int next;           /* the branch to go down, -1 */
    bool fits;          /* the last choice met keeps the limit: far enough down */
    double gap;         /* that is good enough */
    double enough;      /* a bound that ends a branch: below the best by so much */
};

/* ---- a branch's part of the space ---- */

static bool **left_out(const struct tree *t, struct ap_arena *arena, int b)
{
    const struct ap_memory *m = t->ms->model;
    bool **out = AP_NEW_N(arena, m->n_vars, bool *);

    for (int v = 0; v < m->n_vars; v++) {
        const size_t n = (size_t)m->problem->n_strategies[v];
        out[v] = AP_NEW_N(arena, (int64_t)n, bool);
        memcpy(out[v], t->among[v], n * sizeof(bool));
    }
    for (; b >= 0; b = t->branch[b].up) {
        const struct branch *br = &t->branch[b];
        for (int s = 0; br->out && s < m->problem->n_strategies[br->var]; s++)
            out[br->var][s] |= br->out[s];
    }
    return out;
}

/* Which of the choices met are in the branch; how many. */
static int list_inside(const struct memory_search *ms, bool *const *out, bool *inside)
{
    int n = 0;

    for (int i = 0; i < ms->n_cuts; i++)
        n += inside[i] = search_is_inside(ms, out, ms->cut[i].choice);
    return n;
}

/* ---- its bound ---- */

/* Solves at prices, in units of the limit; what that proves, INFINITY: nothing is left.
 */
static double solve(struct tree *t, bool *const *out, const double *price)
{
    struct memory_search *ms = t->ms;
    const int n_times = ms->n_times, n_cuts = ms->n_cuts;
    double value = search_solve(ms, &ms->whole, price, ms->unit / t->limit, 1, out);

    for (int j = 0; j < n_times; j++)
        value -= price[j] * ms->unit;
    if (ms->by_program && ms->n_cuts > n_cuts && isfinite(value))
        value = search_priced(ms, &ms->cut[n_cuts], price, t->limit);
    t->fits = ms->n_cuts > n_cuts && (double)ms->cut[n_cuts].peak <= t->limit;
    if (ms->n_cuts > n_cuts && ms->cut[n_cuts].sec < ms->best_sec &&
        (double)ms->cut[n_cuts].peak <= t->limit) {
        search_try_last(ms);
        t->enough = ms->best_sec * (1 - t->gap);
    }
    return value;
}

static bool is_full(const struct tree *t)
{
    return t->n >= MOST_BRANCHES || t->ms->n_solves >= t->most_solves ||
           t->ms->n_cuts >= t->ms->max_cuts || search_is_late(t->ms);
}

/* Finds prices for the branch; weight[cut], of the mixture that is left. */
static void find_bound(struct tree *t, int b, bool *const *out, double *weight)
{
    struct memory_search *ms = t->ms;
    struct branch *br = &t->branch[b];
    const int n_most = ms->max_times;
    struct ap_arena scratch = {0};
    double *at = AP_NEW_N(&scratch, n_most, double);
    bool *inside = AP_NEW_N(&scratch, n_most, bool);

    memset(weight, 0, (size_t)n_most * sizeof *weight);
    memcpy(at, br->price, (size_t)br->n_price * sizeof *at);
    for (int round = 0;; round++) {
        const int n_price = ms->n_times;
        if (round > 0 || list_inside(ms, out, inside) == 0) {
            double bound = solve(t, out, at);
            if (bound > br->bound || round == 0) {
                br->bound = fmax(br->bound, bound);
                br->price = ap_arena_dup(t->arena, at, (size_t)n_price * sizeof *at);
                br->n_price = n_price;
            }
        }
        if (br->bound >= t->enough || list_inside(ms, out, inside) == 0)
            break;
        double *next = AP_NEW_N(&scratch, n_most, double);
        double theta = search_prices(ms, t->limit, inside, next, weight) * ms->unit;
        if (round >= memory_tuning.branch_rounds || is_full(t) || !isfinite(theta) ||
            (!search_pays_more(ms, next) &&
             theta - br->bound < LITTLE * (t->enough - br->bound)))
            break;
        for (int j = 0; j < ms->n_times; j++) /* between the best and the hoped for */
            at[j] = 0.5 * (next[j] + (j < br->n_price ? br->price[j] : 0));
    }
    ap_arena_free(&scratch);
}

/* ---- open branches ---- */

struct open_branch {
    double bound;
    int branch;
};

/* Of the branches to look at, the one that proves least comes first. */
static bool proves_less(const void *x, const void *y)
{
    const struct open_branch *a = x, *b = y;

    return a->bound != b->bound ? a->bound < b->bound : a->branch < b->branch;
}

static void push(struct tree *t, int b)
{
    ap_heap_push(&t->open, &(struct open_branch){t->branch[b].bound, b});
}

/* -1: none is left. */
static int pop(struct tree *t)
{
    struct open_branch top = {0, -1};

    return ap_heap_pop(&t->open, &top) ? top.branch : -1;
}

/* ---- where to branch ---- */

/* held[var][strategy]: what it holds whatever the others do, priced. */
static double **price_strategies(const struct memory_search *ms, struct ap_arena *arena,
                                 const struct branch *br)
{
    const struct ap_memory *m = ms->model;
    const int *n = ms->model->problem->n_strategies;
    double *before = AP_NEW_N(arena, m->n_times + 1, double);
    double **held = AP_NEW_N(arena, m->n_vars, double *);

    for (int v = 0; v < m->n_vars; v++)
        held[v] = AP_NEW_N(arena, n[v], double);
    for (int j = 0; j < br->n_price; j++)
        before[ms->time[j] + 1] += br->price[j];
    for (int t = 0; t < m->n_times; t++)
        before[t + 1] += before[t];
    for (int i = 0; i < m->n_items; i++) {
        const struct ap_usage_item *it = &m->items[i];
        const double price = before[it->hi] - before[it->lo];
        if (price <= 0)
            continue;
        for (int s = 0; s < n[it->a]; s++) {
            int64_t least = INT64_MAX;
            for (int k = 0; k < it->n_b; k++)
                if (it->bytes[s * it->n_b + k] < least)
                    least = it->bytes[s * it->n_b + k];
            held[it->a][s] += price * (double)least;
        }
        for (int k = 0; k < it->n_b && it->b >= 0; k++) {
            int64_t least = INT64_MAX;
            for (int s = 0; s < n[it->a]; s++)
                if (it->bytes[s * it->n_b + k] < least)
                    least = it->bytes[s * it->n_b + k];
            held[it->b][k] += price * (double)least;
        }
    }
    for (int i = 0; i < m->n_maxima; i++) {
        const struct ap_usage_max *it = &m->maxima[i];
        const double price = before[it->hi] - before[it->lo];
        int64_t least = INT64_MAX;
        for (int s = 0; s < n[it->home]; s++)
            least = it->own[s] < least ? it->own[s] : least;
        for (int s = 0; s < n[it->home]; s++)
            held[it->home][s] += price * fmin((double)it->own[s], (double)it->level[0]);
        for (int a = 0; a < it->n_users; a++)
            for (int s = 0; s < n[it->user[a].var]; s++)
                held[it->user[a].var][s] +=
                    price * fmin((double)least, (double)it->user[a].bytes[s]);
    }
    return held;
}

static int heaviest(const struct memory_search *ms, const double *weight)
{
    int best = 0;

    for (int i = 1; i < ms->n_cuts; i++)
        best = weight[i] > weight[best] ? i : best;
    return best;
}

struct split {
    int var;
    bool *high; /* [strategy] */
};

/* By what a variable holds: above and below the mixture's mean. */
static bool split_by_bytes(const struct memory_search *ms, struct ap_arena *arena,
                           double *const *held, const double *weight, struct split *out)
{
    double most = 0, at = 0;

    for (int v = 0; v < ms->model->n_vars; v++) {
        double mean = 0, spread = 0;
        for (int i = 0; i < ms->n_cuts; i++)
            mean += weight[i] * held[v][ms->cut[i].choice[v]];
        for (int i = 0; i < ms->n_cuts; i++)
            spread += weight[i] * fabs(held[v][ms->cut[i].choice[v]] - mean);
        if (spread > most * (1 + 1e-9) && spread > SAME * mean) {
            most = spread;
            at = mean;
            out->var = v;
        }
    }
    if (most <= 0)
        return false;
    const int n = ms->model->problem->n_strategies[out->var];
    out->high = AP_NEW_N(arena, n, bool);
    for (int s = 0; s < n; s++)
        out->high[s] = held[out->var][s] > at;
    return true;
}

/* By one strategy that about half of the mixture takes. */
static bool split_by_share(const struct memory_search *ms, struct ap_arena *arena,
                           const double *weight, struct split *out)
{
    double best = SAME;
    int strategy = -1;

    for (int v = 0; v < ms->model->n_vars; v++) {
        struct ap_mark mark = ap_arena_mark(arena);
        double *share = AP_NEW_N(arena, ms->model->problem->n_strategies[v], double);
        for (int i = 0; i < ms->n_cuts; i++)
            share[ms->cut[i].choice[v]] += weight[i];
        for (int s = 0; s < ms->model->problem->n_strategies[v]; s++)
            if (share[s] * (1 - share[s]) > best * (1 + 1e-9)) {
                best = share[s] * (1 - share[s]);
                out->var = v;
                strategy = s;
            }
        ap_arena_rewind(arena, mark);
    }
    if (strategy < 0)
        return false;
    out->high = AP_NEW_N(arena, ms->model->problem->n_strategies[out->var], bool);
    out->high[strategy] = true;
    return true;
}

/* One choice is left, and it does not fit: by a variable in which other choices differ.
 */
static bool split_off(const struct memory_search *ms, struct ap_arena *arena,
                      bool *const *out, double *const *held, const double *weight,
                      struct split *by)
{
    const struct ap_problem *p = ms->model->problem;
    const int i = heaviest(ms, weight);
    double most = -1;
    int strategy = -1;

    for (int v = 0; v < ms->model->n_vars; v++) {
        const int s = ms->cut[i].choice[v];
        int n_left = 0;
        for (int k = 0; k < p->n_strategies[v]; k++)
            n_left += !out[v] || !out[v][k];
        if (n_left > 1 && held[v][s] > most) {
            most = held[v][s];
            by->var = v;
            strategy = s;
        }
    }
    if (strategy < 0)
        return false;
    by->high = AP_NEW_N(arena, p->n_strategies[by->var], bool);
    by->high[strategy] = true;
    return true;
}

/* How much of the mixture takes what is high. */
static double share_of(const struct memory_search *ms, const double *weight,
                       const struct split *by)
{
    double high = 0, all = 0;

    for (int i = 0; i < ms->n_cuts; i++) {
        all += weight[i];
        high += by->high[ms->cut[i].choice[by->var]] ? weight[i] : 0;
    }
    return all > 0 ? high / all : 0;
}

/* Two branches of branch b, unless its mixture is one choice. */
static void split(struct tree *t, int b, bool *const *out, const double *weight)
{
    struct memory_search *ms = t->ms;
    struct ap_arena scratch = {0};
    struct branch *br = &t->branch[b];
    double **held = price_strategies(ms, &scratch, br);
    struct split by;
    bool found = split_by_bytes(ms, t->arena, held, weight, &by) ||
                 split_by_share(ms, t->arena, weight, &by) ||
                 split_off(ms, t->arena, out, held, weight, &by);

    ap_arena_free(&scratch);
    if (!found)
        return;
    const int n = ms->model->problem->n_strategies[by.var];
    const int down = share_of(ms, weight, &by) > 0.5; /* where most of the mixture is */
    bool *low = AP_NEW_N(t->arena, n, bool);
    for (int s = 0; s < n; s++)
        low[s] = !by.high[s];
    for (int side = 0; side < 2; side++) {
        t->branch[t->n] = *br;
        t->branch[t->n].up = b;
        t->branch[t->n].var = by.var;
        t->branch[t->n].out = side ? low : by.high;
        if (side == down && !t->fits)
            t->next = t->n++;
        else
            push(t, t->n++);
    }
}

/* ---- the tree ---- */

/* Goes through the branches from a root with these prices. */
static void grow(struct tree *t, double *price, int n_price)
{
    struct memory_search *ms = t->ms;
    double *weight = AP_NEW_N(ms->arena, ms->max_times, double);

    t->branch = AP_NEW_N(ms->arena, MOST_BRANCHES + 2, struct branch);
    t->open = (struct ap_heap){.size = sizeof(struct open_branch), .before = proves_less};
    t->branch[t->n++] = (struct branch){.up = -1, .price = price, .n_price = n_price};
    push(t, 0);
    t->next = -1;
    while ((t->open.n > 0 || t->next >= 0) && !is_full(t)) {
        struct ap_arena scratch = {0};
        const int b = t->next >= 0 ? t->next : pop(t);
        t->next = -1;
        bool **out = left_out(t, &scratch, b);
        if (t->branch[b].bound < t->enough)
            find_bound(t, b, out, weight);
        if (t->branch[b].bound < t->enough && !is_full(t) &&
            weight[heaviest(ms, weight)] > 0)
            split(t, b, out, weight);
        ap_arena_free(&scratch);
    }
    ap_heap_free(&t->open);
}

/* ---- among the strategies of choices met ---- */

struct ranked {
    int cut;
    double sec;
};

static int by_sec(const void *x, const void *y)
{
    const struct ranked *a = x, *b = y;
    if (a->sec != b->sec)
        return a->sec < b->sec ? -1 : 1;
    return (a->cut > b->cut) - (a->cut < b->cut);
}

/* Strategies that the choices nearest to the bound leave out. */
static bool **leave_others_out(struct memory_search *ms, double limit,
                               const double *price)
{
    const struct ap_problem *p = ms->model->problem;
    const int n_vars = ms->model->n_vars;
    struct ranked *list = AP_NEW_N(ms->arena, ms->n_cuts, struct ranked);
    bool **out = AP_NEW_N(ms->arena, n_vars, bool *);
    int n = 0;

    for (int i = 0; i < ms->n_cuts; i++)
        list[n++] = (struct ranked){i, search_priced(ms, &ms->cut[i], price, limit)};
    qsort(list, (size_t)n, sizeof *list, by_sec);
    for (int v = 0; v < n_vars; v++) {
        out[v] = AP_NEW_N(ms->arena, p->n_strategies[v], bool);
        memset(out[v], 1, (size_t)p->n_strategies[v] * sizeof **out);
        for (int i = 0; i < n && i < memory_tuning.n_among; i++)
            out[v][ms->cut[list[i].cut].choice[v]] = false;
    }
    return out;
}

void search_among(struct memory_search *ms, double limit, const double *price)
{
    const double solves = memory_tuning.among_work / (double)ms->n_strategies;
    struct tree t = {.ms = ms,
                     .arena = ms->arena,
                     .limit = limit,
                     .among = leave_others_out(ms, limit, price),
                     .most_solves = ms->n_solves +
                                    (int)fmin(fmax(solves, memory_tuning.among_solves),
                                              memory_tuning.most_among_solves),
                     .gap = ms->near,
                     .enough = ms->best_sec * (1 - ms->near)};
    const int64_t effort = ms->effort;

    grow(&t, ap_arena_dup(ms->arena, price, (size_t)ms->n_times * sizeof *price),
         ms->n_times);
    ms->effort = effort + (ms->effort - effort) / AMONG_EFFORT;
}

/* Tries the last choice met if the model says that it fits and it would be the best. */
static void try_if_wanted(struct memory_search *ms, double limit)
{
    const struct search_cut *last = &ms->cut[ms->n_cuts - 1];

    if (last->sec < ms->best_sec && (double)last->peak <= limit)
        search_try_last(ms);
}

void search_settle(struct memory_search *ms, double limit, double *price)
{
    bool **out = leave_others_out(ms, limit, price);
    double *next = AP_NEW_N(ms->arena, ms->max_times, double), aimed = 0;
    const int64_t effort = ms->effort;
    int stalls = 0;

    for (int v = 0; v < ms->model->n_vars && ms->far; v++)
        for (int s = 0; s < ms->model->problem->n_strategies[v]; s++)
            out[v][s] &= ms->far[v][s];
    for (int round = 0; round < memory_tuning.settle_rounds && ms->n_cuts < ms->max_cuts;
         round++) {
        const double theta = search_prices(ms, limit, NULL, next, NULL) * ms->unit;
        const int n_times = ms->n_times;
        if (!isfinite(theta) || theta <= aimed * (1 + SETTLED * ms->near))
            break;
        for (int j = 0; j < n_times && round > 0; j++)
            next[j] = 0.5 * (next[j] + price[j]);
        double value = search_solve(ms, &ms->whole, next, ms->unit / limit, 1, out);
        if (value < 0 || !isfinite(value))
            break;
        for (int j = 0; j < n_times; j++)
            value -= next[j] * ms->unit;
        if (ms->by_program)
            value = search_priced(ms, &ms->cut[ms->n_cuts - 1], next, limit);
        try_if_wanted(ms, limit);
        stalls = search_met_before(ms) ? stalls + 1 : 0;
        if (stalls > 1)
            break;
        if (value <= aimed)
            continue;
        aimed = value;
        memcpy(price, next, (size_t)n_times * sizeof *price);
    }
    ms->effort = effort + (ms->effort - effort) / AMONG_EFFORT;
}
