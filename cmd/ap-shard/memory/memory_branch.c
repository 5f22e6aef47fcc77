/*
 * Problem: prices of memory prove no more than a mixture of plans would cost. Where few
 * choices make large steps that is well below the best plan.
 * Idea: branch and bound. The mixture that the prices leave says which group's layouts
 * differ most in what they hold; in one branch it takes those that hold more, in the
 * other one the rest, and each has prices of its own, found like the first ones from the
 * plans met so far that are in it. A branch ends when it proves that its plans are no
 * better than the best one. Strategies that no better plan of a branch has, by its
 * prices, are ruled out in it: what is left takes a fraction of the time, and less so the
 * larger a gap is good enough, which is why a large one is looked after first. Plans met
 * on the way are tried. The same among no more than
 * the strategies of plans met near the bound proves nothing, but a solution takes a small
 * part of the time and combines these plans.
 * Cost: a few solutions of the priced problem per branch; their number is limited by the
 * problem's size.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory_search.h"

#define MOST_BRANCHES 4000
#define BRANCH_EFFORT 64000000 /* see hunt.effort */
#define PLAIN_EFFORT  40000000 /* the same where copies are nodes of their own */
#define MORE_EFFORT   1000000  /* for less than SOME_GAP */
#define NARROW        2000     /* strategies of a small graph */
#define DIVES         8        /* one in so many looks goes down to a plan that fits */
#define MOST_TRIALS   8192     /* of one choice's copies */
#define TRIED         256      /* times, items and edges of one that take 1 us */
#define ROUNDS        6        /* of prices per branch */
#define MOST_AMONG    16       /* plans whose strategies are combined */
#define AMONG_SOLVES  40       /* at least */
#define MORE_SOLVES   200
#define AMONG_WORK    400000 /* strategies * solves */
#define AMONG_EFFORT  10     /* part of what solving takes otherwise */
#define SETTLE_ROUNDS 24     /* of prices among these */
#define SETTLED       0.1    /* of the gap that is good enough */
#define SOME_GAP      9e-3   /* is looked after first: less is left of all branches */
#define SAME          1e-6
#define LITTLE        0.05 /* of the gap: what a round must gain */

struct ruled {
    int var, strategy;
};

struct branch {
    int up;    /* where it branched off, -1 */
    int var;   /* its strategies that are left out */
    bool *out; /* [strategy] */
    int n_ruled;
    struct ruled *ruled; /* out, too, as no plan that is wanted has them */
    double bound;
    int n_price; /* of the times known when they were found */
    double *price;
};

struct tree {
    struct hunt *h;
    struct ap_arena *arena;
    int n;
    struct branch *branch; /* MOST_BRANCHES + 2 of them */
    int n_open, *open;     /* a heap */
    int64_t most_effort;
    int most_solves;
    double limit;       /* of the model */
    bool *const *among; /* [var][strategy] left out everywhere; NULL: none */
    int n_pops, next;   /* the branch to go down, -1 */
    bool dives;         /* on the way down to a plan that fits */
    bool fits;          /* the last plan met keeps the limit: far enough down */
    double gap;         /* that is good enough */
    double enough;      /* a bound that ends a branch: below the best by so much */
};

/* ---- a branch's part of the space ---- */

static bool **left_out(const struct tree *t, struct ap_arena *arena, int b)
{
    const struct ilp_problem *ip = &t->h->whole.ip;
    bool **out = AP_NEW_N(arena, ip->n_vars, bool *);

    for (int v = 0; v < ip->n_vars; v++) {
        const size_t n = (size_t)ip->problem.n_strategies[v];
        out[v] = AP_NEW_N(arena, (int64_t)n, bool);
        if (t->among || t->h->never)
            memcpy(out[v], t->among ? t->among[v] : t->h->never[v], n * sizeof(bool));
    }
    for (; b >= 0; b = t->branch[b].up) {
        const struct branch *br = &t->branch[b];
        for (int s = 0; br->out && s < ip->problem.n_strategies[br->var]; s++)
            out[br->var][s] |= br->out[s];
        for (int i = 0; i < br->n_ruled; i++)
            out[br->ruled[i].var][br->ruled[i].strategy] = true;
    }
    return out;
}

/* Which of the plans met are in the branch; how many. */
static int list_inside(const struct hunt *h, bool *const *out, bool *inside)
{
    int n = 0;

    for (int i = 0; i < h->n_cuts; i++)
        n += inside[i] = hunt_is_inside(h, out, h->cut[i].choice);
    return n;
}

/* ---- its bound ---- */

/* Solves at prices, in units of the limit; what that proves, INFINITY: nothing is left.
 */
static double solve(struct tree *t, bool *const *out, const double *price)
{
    struct hunt *h = t->h;
    const int n_times = h->n_times, n_cuts = h->n_cuts;
    double value = hunt_solve(h, &h->whole, price, h->unit / t->limit, 1, out);

    for (int j = 0; j < n_times; j++)
        value -= price[j] * h->unit;
    if (h->by_program && h->n_cuts > n_cuts && isfinite(value))
        value = hunt_priced(h, &h->cut[n_cuts], price, t->limit);
    t->fits = h->n_cuts > n_cuts && (double)h->cut[n_cuts].peak <= t->limit;
    if (h->n_cuts > n_cuts && h->cut[n_cuts].sec < h->best_sec &&
        (double)h->cut[n_cuts].peak <= t->limit) {
        hunt_try_last(h);
        t->enough = h->best_sec * (1 - t->gap);
    }
    return value;
}

static bool is_full(const struct tree *t)
{
    return t->n >= MOST_BRANCHES || t->h->effort >= t->most_effort ||
           t->h->n_solves >= t->most_solves || t->h->n_cuts >= t->h->max_cuts;
}

/* Strategies that no plan of the branch has that is wanted; false: none are new, or no
 * such plan is left. */
static bool rule_out(struct tree *t, int b, bool **out)
{
    const struct ilp_problem *ip = &t->h->whole.ip;
    struct branch *br = &t->branch[b];
    struct ap_arena scratch = {0};
    bool **was = AP_NEW_N(&scratch, ip->n_vars, bool *);
    double *price = AP_NEW_N(&scratch, t->h->max_times, double);
    int n = 0;

    for (int v = 0; v < ip->n_vars; v++)
        was[v] = ap_arena_dup(&scratch, out[v],
                              (size_t)ip->problem.n_strategies[v] * sizeof(bool));
    memcpy(price, br->price, (size_t)br->n_price * sizeof *price);
    if (!hunt_rule_out(t->h, price, t->limit, t->enough, out)) {
        br->bound = t->enough;
        ap_arena_free(&scratch);
        return false;
    }
    for (int v = 0; v < ip->n_vars; v++)
        for (int s = 0; s < ip->problem.n_strategies[v]; s++)
            n += out[v][s] != was[v][s];
    br->ruled = AP_NEW_N(t->arena, n, struct ruled);
    br->n_ruled = 0;
    for (int v = 0; v < ip->n_vars; v++)
        for (int s = 0; s < ip->problem.n_strategies[v]; s++)
            if (out[v][s] != was[v][s])
                br->ruled[br->n_ruled++] = (struct ruled){v, s};
    ap_arena_free(&scratch);
    return n > 0;
}

/* Finds prices for the branch; weight[cut], of the mixture that is left. */
static void find_bound(struct tree *t, int b, bool *const *out, double *weight)
{
    struct hunt *h = t->h;
    struct branch *br = &t->branch[b];
    const int n_most = h->max_times;
    struct ap_arena scratch = {0};
    double *at = AP_NEW_N(&scratch, n_most, double);
    bool *inside = AP_NEW_N(&scratch, n_most, bool);

    memset(weight, 0, (size_t)n_most * sizeof *weight);
    memcpy(at, br->price, (size_t)br->n_price * sizeof *at);
    for (int round = 0;; round++) {
        const int n_price = h->n_times;
        if (round > 0 || list_inside(h, out, inside) == 0) {
            double bound = solve(t, out, at);
            if (bound > br->bound || round == 0) {
                br->bound = fmax(br->bound, bound);
                br->price = ap_arena_dup(t->arena, at, (size_t)n_price * sizeof *at);
                br->n_price = n_price;
            }
        }
        if (br->bound >= t->enough || list_inside(h, out, inside) == 0)
            break;
        double *next = AP_NEW_N(&scratch, n_most, double);
        double theta = hunt_prices(h, t->limit, inside, next, weight) * h->unit;
        if (round >= ROUNDS || is_full(t) || !isfinite(theta) ||
            (!hunt_pays_more(h, next) &&
             theta - br->bound < LITTLE * (t->enough - br->bound)))
            break;
        for (int j = 0; j < h->n_times; j++) /* between the best and the hoped for */
            at[j] = 0.5 * (next[j] + (j < br->n_price ? br->price[j] : 0));
    }
    ap_arena_free(&scratch);
}

/* What the prices of where it branched off rule out is not solved for. */
static void bound_branch(struct tree *t, int b, bool **out, double *weight)
{
    const struct branch *br = &t->branch[b];
    const bool is_new = br->up < 0 || t->among;

    if (is_new)
        find_bound(t, b, out, weight);
    if (t->among || br->bound >= t->enough || is_full(t))
        return;
    const bool any = rule_out(t, b, out);
    if ((any || !is_new) && br->bound < t->enough)
        find_bound(t, b, out, weight);
}

/* ---- open branches ---- */

static bool proves_less(const struct tree *t, int a, int b)
{
    const double x = t->branch[a].bound, y = t->branch[b].bound;
    return x != y ? x < y : a < b;
}

/* A branch to look at, into the heap. */
static void push(struct tree *t, int b)
{
    int i = t->n_open++;

    for (; i > 0 && proves_less(t, b, t->open[(i - 1) / 2]); i = (i - 1) / 2)
        t->open[i] = t->open[(i - 1) / 2];
    t->open[i] = b;
}

/* The one that proves least, out of the heap. */
static int pop(struct tree *t)
{
    const int top = t->open[0], last = t->open[--t->n_open];
    int i = 0;

    for (int k; (k = 2 * i + 1) < t->n_open; i = k) {
        if (k + 1 < t->n_open && proves_less(t, t->open[k + 1], t->open[k]))
            k++;
        if (!proves_less(t, t->open[k], last))
            break;
        t->open[i] = t->open[k];
    }
    t->open[i] = last;
    return top;
}

/* ---- where to branch ---- */

/* held[var][strategy]: what it holds whatever the others do, priced. */
static double **price_strategies(const struct hunt *h, struct ap_arena *arena,
                                 const struct branch *br)
{
    const struct mem_model *m = &h->whole.model;
    const int *n = h->whole.ip.problem.n_strategies;
    double *before = AP_NEW_N(arena, m->n_times + 1, double);
    double **held = AP_NEW_N(arena, m->n_vars, double *);

    for (int v = 0; v < m->n_vars; v++)
        held[v] = AP_NEW_N(arena, n[v], double);
    for (int j = 0; j < br->n_price; j++)
        before[h->time[j] + 1] += br->price[j];
    for (int t = 0; t < m->n_times; t++)
        before[t + 1] += before[t];
    for (int i = 0; i < m->n_items; i++) {
        const struct mem_item *it = &m->items[i];
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
    for (int i = 0; i < m->n_mosts; i++) {
        const struct mem_most *it = &m->mosts[i];
        const double price = before[it->hi] - before[it->lo];
        int64_t least = INT64_MAX;
        for (int s = 0; s < n[it->home]; s++)
            least = it->own[s] < least ? it->own[s] : least;
        for (int s = 0; s < n[it->home]; s++)
            held[it->home][s] += price * fmin((double)it->own[s], (double)it->level[0]);
        for (int a = 0; a < it->n_askers; a++)
            for (int s = 0; s < n[it->asker[a].var]; s++)
                held[it->asker[a].var][s] +=
                    price * fmin((double)least, (double)it->asker[a].bytes[s]);
    }
    return held;
}

static int heaviest(const struct hunt *h, const double *weight)
{
    int best = 0;

    for (int i = 1; i < h->n_cuts; i++)
        best = weight[i] > weight[best] ? i : best;
    return best;
}

struct split {
    int var;
    bool *high; /* [strategy] */
};

/* By what a group holds: above and below the mixture's mean. */
static bool split_by_bytes(const struct hunt *h, struct ap_arena *arena,
                           double *const *held, const double *weight, struct split *out)
{
    double most = 0, at = 0;

    for (int v = 0; v < h->whole.ip.n_vars; v++) {
        double mean = 0, spread = 0;
        for (int i = 0; i < h->n_cuts; i++)
            mean += weight[i] * held[v][h->cut[i].choice[v]];
        for (int i = 0; i < h->n_cuts; i++)
            spread += weight[i] * fabs(held[v][h->cut[i].choice[v]] - mean);
        if (spread > most * (1 + 1e-9) && spread > SAME * mean) {
            most = spread;
            at = mean;
            out->var = v;
        }
    }
    if (most <= 0)
        return false;
    const int n = h->whole.ip.problem.n_strategies[out->var];
    out->high = AP_NEW_N(arena, n, bool);
    for (int s = 0; s < n; s++)
        out->high[s] = held[out->var][s] > at;
    return true;
}

/* By one strategy that about half of the mixture takes. */
static bool split_by_share(const struct hunt *h, struct ap_arena *arena,
                           const double *weight, struct split *out)
{
    double best = SAME;
    int strategy = -1;

    for (int v = 0; v < h->whole.ip.n_vars; v++) {
        struct ap_mark mark = ap_arena_mark(arena);
        double *share = AP_NEW_N(arena, h->whole.ip.problem.n_strategies[v], double);
        for (int i = 0; i < h->n_cuts; i++)
            share[h->cut[i].choice[v]] += weight[i];
        for (int s = 0; s < h->whole.ip.problem.n_strategies[v]; s++)
            if (share[s] * (1 - share[s]) > best * (1 + 1e-9)) {
                best = share[s] * (1 - share[s]);
                out->var = v;
                strategy = s;
            }
        ap_arena_rewind(arena, mark);
    }
    if (strategy < 0)
        return false;
    out->high = AP_NEW_N(arena, h->whole.ip.problem.n_strategies[out->var], bool);
    out->high[strategy] = true;
    return true;
}

/* One plan is left, and it does not fit: by a group in which other plans differ. */
static bool split_off(const struct hunt *h, struct ap_arena *arena, bool *const *out,
                      double *const *held, const double *weight, struct split *by)
{
    const struct ap_problem *p = &h->whole.ip.problem;
    const int i = heaviest(h, weight);
    double most = -1;
    int strategy = -1;

    for (int v = 0; v < h->whole.ip.n_vars; v++) {
        const int s = h->cut[i].choice[v];
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
static double share_of(const struct hunt *h, const double *weight, const struct split *by)
{
    double high = 0, all = 0;

    for (int i = 0; i < h->n_cuts; i++) {
        all += weight[i];
        high += by->high[h->cut[i].choice[by->var]] ? weight[i] : 0;
    }
    return all > 0 ? high / all : 0;
}

/* Two branches of branch b; false when its mixture is one plan. */
static bool split(struct tree *t, int b, bool *const *out, const double *weight)
{
    struct hunt *h = t->h;
    struct ap_arena scratch = {0};
    struct branch *br = &t->branch[b];
    double **held = price_strategies(h, &scratch, br);
    struct split by;
    bool found = split_by_bytes(h, t->arena, held, weight, &by) ||
                 split_by_share(h, t->arena, weight, &by) ||
                 split_off(h, t->arena, out, held, weight, &by);

    ap_arena_free(&scratch);
    if (!found)
        return false;
    const int n = h->whole.ip.problem.n_strategies[by.var];
    const int down = share_of(h, weight, &by) > 0.5; /* where most of the mixture is */
    bool *low = AP_NEW_N(t->arena, n, bool);
    for (int s = 0; s < n; s++)
        low[s] = !by.high[s];
    for (int side = 0; side < 2; side++) {
        t->branch[t->n] = *br;
        t->branch[t->n].up = b;
        t->branch[t->n].var = by.var;
        t->branch[t->n].out = side ? low : by.high;
        t->branch[t->n].n_ruled = 0;
        if (side == down && t->dives && !t->fits)
            t->next = t->n++;
        else
            push(t, t->n++);
    }
    return true;
}

/* ---- a branch of one choice ---- */

/* tensor[copy]: of those kept or made twice, by tensor; -1 for others. How many. */
static int number_kept(const struct hunt *h, const int *choice, int *tensor)
{
    const struct mem_model *m = &h->whole.model;
    const struct select_copy *copy = h->whole.ip.builder.copy;
    int n = 0, last = -1;

    for (int c = 0; c < m->n_copies; c++) {
        tensor[c] = -1;
        if (choice[m->n_vars + c] < MEM_KEPT)
            continue;
        n += copy[c].tensor != last;
        last = copy[c].tensor;
        tensor[c] = n - 1;
    }
    return n;
}

/* A choice whose copies are tried. */
struct trial {
    int *choice, *tensor; /* [copy], see number_kept */
    int n, n_left;        /* tensors; trials that may still be made */
    int64_t *held;        /* [time], scratch */
};

/* The copies of tensor i and, if asked for, of the later ones. */
static void set_copies(const struct tree *t, struct trial *k, int i, bool later,
                       enum mem_state state)
{
    const struct mem_model *m = &t->h->whole.model;

    for (int c = 0; c < m->n_copies; c++)
        if (k->tensor[c] == i || (later && k->tensor[c] > i))
            k->choice[m->n_vars + c] = state;
}

/* Whether more is held than fits, even if those of tensor i and the later ones are made
 * twice. */
static bool is_too_large(const struct tree *t, struct trial *k, int i)
{
    const struct mem_model *m = &t->h->whole.model;
    int64_t most = 0;

    set_copies(t, k, i, true, MEM_TWICE);
    mem_model_held(m, k->choice, k->held);
    set_copies(t, k, i, true, MEM_KEPT);
    for (int j = 0; j < m->n_times; j++)
        most = k->held[j] > most ? k->held[j] : most;
    return (double)most > t->limit;
}

/* With the copies of tensor i and the later ones kept or made twice; false: too many. */
static bool measure_from(struct tree *t, struct trial *k, int i)
{
    struct hunt *h = t->h;
    const struct mem_model *m = &h->whole.model;

    if (k->n_left-- <= 0)
        return false;
    h->effort += (m->n_times + m->n_items + h->whole.ip.problem.n_edges) / TRIED;
    if (mem_plan_score(m, &h->whole.ip, k->choice) >= t->enough)
        return true; /* and so is what makes more of them twice */
    if (is_too_large(t, k, i))
        return true;
    if (i == k->n) {
        struct ap_plan plan = mem_plan_of(m, &h->whole.ip, k->choice);
        h->effort += h->task->graph->n_nodes;
        hunt_measure(h, &plan);
        t->enough = h->best_sec * (1 - t->gap);
        return true;
    }
    for (int state = MEM_TWICE; state >= MEM_KEPT; state--) {
        set_copies(t, k, i, false, state);
        if (!measure_from(t, k, i + 1))
            return false;
    }
    return true;
}

/*
 * Measures all plans of the heaviest choice, with copies kept or made twice, that are
 * cheap enough to be wanted; false when there are too many.
 */
static bool measure_all(struct tree *t, const double *weight)
{
    struct hunt *h = t->h;
    const struct mem_model *m = &h->whole.model;
    struct ap_arena scratch = {0};
    struct trial k = {.n_left = MOST_TRIALS};
    bool few = !h->task->microbatch_choice;

    k.choice = ap_arena_dup(&scratch, h->cut[heaviest(h, weight)].choice,
                            (size_t)h->whole.ip.problem.n_nodes * sizeof *k.choice);
    k.tensor = AP_NEW_N(&scratch, m->n_copies + 1, int);
    k.held = AP_NEW_N(&scratch, m->n_times, int64_t);
    k.n = number_kept(h, k.choice, k.tensor);
    set_copies(t, &k, 0, true, MEM_KEPT);
    few = few && measure_from(t, &k, 0);
    ap_arena_free(&scratch);
    return few;
}

/* ---- the tree ---- */

/* The bound of all branches from a root with these prices. */
static double grow(struct tree *t, double bound, double *price, int n_price)
{
    struct hunt *h = t->h;
    double *weight = AP_NEW_N(h->arena, h->max_times, double), proven = INFINITY;

    t->branch = AP_NEW_N(h->arena, MOST_BRANCHES + 2, struct branch);
    t->open = AP_NEW_N(h->arena, MOST_BRANCHES + 2, int);
    t->branch[t->n++] =
        (struct branch){.up = -1, .bound = bound, .price = price, .n_price = n_price};
    push(t, 0);
    t->next = -1;
    while (t->n_open > 0 || t->next >= 0) {
        struct ap_arena scratch = {0};
        const int b = t->next >= 0 ? t->next : pop(t);
        t->n_pops += t->next < 0;
        t->dives = t->among || t->n_pops % DIVES == 0;
        t->next = -1;
        bool **out = left_out(t, &scratch, b);
        if (t->branch[b].bound < t->enough && !is_full(t))
            bound_branch(t, b, out, weight);
        if (t->branch[b].bound >= t->enough || is_full(t) ||
            weight[heaviest(h, weight)] <= 0)
            proven = fmin(proven, t->branch[b].bound);
        else if (!split(t, b, out, weight)) /* what is not measured costs enough */
            proven =
                fmin(proven, measure_all(t, weight) ? t->enough : t->branch[b].bound);
        ap_arena_free(&scratch);
    }
    return proven;
}

/* Raises the bound as far as a gap, or by some effort. */
static void branch_to(struct hunt *h, double gap, int64_t effort)
{
    struct tree t = {.h = h,
                     .arena = h->arena,
                     .limit = (double)h->task->memory_bytes,
                     .most_effort = h->effort + effort,
                     .most_solves = INT_MAX,
                     .gap = gap,
                     .enough = h->best_sec * (1 - gap)};
    if (h->bound >= t.enough)
        return;
    const double proven = grow(&t, h->bound, h->best_price, h->n_times);

    h->bound = fmax(h->bound, fmin(proven, t.enough));
}

/*
 * With the copies of a tensor as one node bounds are best; with nodes of their own small
 * problems stay narrow, so that more strategies are ruled out, and take a small part of
 * the time.
 */
void hunt_branch(struct hunt *h)
{
    h->plain = h->whole.ip.space.n_strategies < NARROW;
    branch_to(h, SOME_GAP, h->plain ? PLAIN_EFFORT : BRANCH_EFFORT);
    if (h->bound >= h->best_sec * (1 - SOME_GAP))
        branch_to(h, h->near, MORE_EFFORT);
    h->plain = false;
}

/* ---- among the strategies of plans met ---- */

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

/* Strategies that the plans nearest to the bound leave out. */
static bool **leave_others_out(struct hunt *h, double limit, const double *price)
{
    const struct ap_problem *p = &h->whole.ip.problem;
    const int n_vars = h->whole.ip.n_vars;
    struct ranked *list = AP_NEW_N(h->arena, h->n_cuts, struct ranked);
    bool **out = AP_NEW_N(h->arena, n_vars, bool *);
    int n = 0;

    for (int i = 0; i < h->n_cuts; i++)
        if (!h->cut[i].lost)
            list[n++] = (struct ranked){i, hunt_priced(h, &h->cut[i], price, limit)};
    qsort(list, (size_t)n, sizeof *list, by_sec);
    for (int v = 0; v < n_vars; v++) {
        out[v] = AP_NEW_N(h->arena, p->n_strategies[v], bool);
        memset(out[v], 1, (size_t)p->n_strategies[v] * sizeof **out);
        for (int i = 0; i < n && i < MOST_AMONG; i++)
            out[v][h->cut[list[i].cut].choice[v]] = false;
    }
    return out;
}

void hunt_among(struct hunt *h, double limit, const double *price)
{
    const double solves = AMONG_WORK / (double)h->whole.ip.space.n_strategies;
    struct tree t = {.h = h,
                     .arena = h->arena,
                     .limit = limit,
                     .among = leave_others_out(h, limit, price),
                     .most_effort = INT64_MAX,
                     .most_solves =
                         h->n_solves + (int)fmin(fmax(solves, AMONG_SOLVES), MORE_SOLVES),
                     .gap = h->near,
                     .enough = h->best_sec * (1 - h->near)};
    const int64_t effort = h->effort, work = h->work;

    grow(&t, 0, ap_arena_dup(h->arena, price, (size_t)h->n_times * sizeof *price),
         h->n_times);
    h->effort = effort + (h->effort - effort) / AMONG_EFFORT;
    h->work = work;
}

/* Tries the last plan met if the model says that it fits and it would be the best. */
static void try_if_wanted(struct hunt *h, double limit)
{
    const struct hunt_cut *last = &h->cut[h->n_cuts - 1];

    if (last->sec < h->best_sec && (double)last->peak <= limit)
        hunt_try_last(h);
}

void hunt_settle(struct hunt *h, double limit, double *price)
{
    bool **out = leave_others_out(h, limit, price);
    double *next = AP_NEW_N(h->arena, h->max_times, double), aimed = 0;
    const int64_t effort = h->effort, work = h->work;
    int stalls = 0;

    for (int v = 0; v < h->whole.ip.n_vars && h->far; v++)
        for (int s = 0; s < h->whole.ip.problem.n_strategies[v]; s++)
            out[v][s] &= h->far[v][s];
    for (int round = 0; round < SETTLE_ROUNDS && h->n_cuts < h->max_cuts; round++) {
        const double theta = hunt_prices(h, limit, NULL, next, NULL) * h->unit;
        const int n_times = h->n_times;
        if (!isfinite(theta) || theta <= aimed * (1 + SETTLED * h->near))
            break;
        for (int j = 0; j < n_times && round > 0; j++)
            next[j] = 0.5 * (next[j] + price[j]);
        double value = hunt_solve(h, &h->whole, next, h->unit / limit, 1, out);
        if (value < 0 || !isfinite(value))
            break;
        for (int j = 0; j < n_times; j++)
            value -= next[j] * h->unit;
        if (h->by_program)
            value = hunt_priced(h, &h->cut[h->n_cuts - 1], next, limit);
        try_if_wanted(h, limit);
        stalls = hunt_met_before(h) ? stalls + 1 : 0;
        if (stalls > 1)
            break;
        if (value <= aimed)
            continue;
        aimed = value;
        memcpy(price, next, (size_t)n_times * sizeof *price);
    }
    h->effort = effort + (h->effort - effort) / AMONG_EFFORT;
    h->work = work;
}
