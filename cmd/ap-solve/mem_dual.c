/*
 * A lower bound of the selection problem with memory, and choices from it.
 *
 * Every slot has a multiplier mu >= 0, the price of a unit of memory there. With usage
 * priced, what is left has no memory, and message passing (solve_dual.c) bounds it; less
 * sum of mu * room, that is a bound of the problem. The multipliers follow a subgradient,
 * the usage beyond the room of the choice that the messages suggest, with Polyak's step
 * towards the best known cost, or TARGET times the best bound if less; after FAILS steps
 * without a better bound they go back to the best ones, and the step shrinks. Only the
 * worst slot of each stretch that is over the room gets a multiplier: few bind.
 *
 * Roundings that heed memory decide the nodes in order: each takes its cheapest strategy,
 * by cells to decided neighbours and messages of the others, that fits on top of what the
 * decided use and the least of the others.
 *
 * O(strategies + cells) per sweep, O(parts * strategies) per change of multipliers.
 * After Held, Wolfe and Crowder, "Validation of subgradient optimization", 1974, and
 * Kolmogorov's message passing (see solve_dual.c).
 */
#include "mem.h"

#include <string.h>

#define FIRST_SWEEPS 20
#define SWEEPS       1
#define FAILS        4
#define TARGET       1.1 /* of the best bound, where the best cost is further off */
#define SHRINK       0.6
#define GROW         1.2 /* of the step, when the bound got better; up to MAX_STEP */
#define MAX_STEP     5
#define MIN_STEP     1e-3 /* below it the step starts again at 1, with more care */
#define MAX_CARE     4
#define SMALL        1000 /* nodes; sweeps are cheap: more care from the start */
#define SETTLE       3    /* sweeps after going back */

void mem_prefix(const struct mem_core *m, const double *mu, double *prefix)
{
    prefix[0] = 0;
    for (int t = 0; t < m->n_slots; t++)
        prefix[t + 1] = prefix[t] + mu[t];
}

double mem_price(const struct mem_core *m, const double *prefix, int v, int s)
{
    double sum = 0;

    for (int i = m->first[v]; i < m->first[v + 1]; i++) {
        const struct mem_part *part = &m->part[i];
        sum += (double)part->usage[s] * (prefix[part->hi] - prefix[part->lo]);
    }
    return sum;
}

/* Puts the prices of mu into the core's costs. */
static int64_t set_prices(struct mem_dual *d)
{
    const struct mem_core *m = d->m;
    int64_t work = m->n_slots;

    mem_prefix(m, d->mu, d->prefix);
    for (int v = 0; v < d->core->n_nodes; v++) {
        const struct sel_node *from = &m->core->node[v];
        double *cost = d->core->node[v].cost;
        memcpy(cost, from->cost, (size_t)from->n_strategies * sizeof(double));
        for (int i = m->first[v]; i < m->first[v + 1]; i++) {
            const struct mem_part *part = &m->part[i];
            double price = d->prefix[part->hi] - d->prefix[part->lo];
            if (price <= 0)
                continue;
            for (int s = 0; s < from->n_strategies; s++)
                cost[s] += price * (double)part->usage[s];
            work += from->n_strategies;
        }
    }
    return work;
}

struct mem_dual *mem_dual_new(struct ap_arena *arena, const struct mem_core *m)
{
    struct mem_dual *d = AP_NEW(arena, struct mem_dual);
    struct sel_core own = *m->core;
    int most = 1;

    own.arena = arena;
    d->m = m;
    d->core = sel_core_copy(&own);
    d->core->base = m->core->base;
    d->dual = sel_dual_in_order(d->core);
    d->mu = AP_NEW_N(arena, m->n_slots + 1, double);
    d->best_mu = AP_NEW_N(arena, m->n_slots + 1, double);
    d->prefix = AP_NEW_N(arena, m->n_slots + 2, double);
    d->used = AP_NEW_N(arena, m->n_slots + 2, double);
    d->state = AP_NEW_N(arena, m->core->n_nodes + 1, int);
    d->seen = AP_NEW_N(arena, m->core->n_nodes + 1, int);
    for (int v = 0; v < m->core->n_nodes; v++)
        if (m->core->node[v].n_strategies > most)
            most = m->core->node[v].n_strategies;
    d->theta = AP_NEW_N(arena, most, double);
    d->left = mem_tree_new(arena, m);
    d->bound = m->core->base;
    d->step = 1;
    d->care = m->core->n_nodes <= SMALL;
    return d;
}

static int64_t cells(const struct sel_core *c)
{
    int64_t sum = 0;

    for (int e = 0; e < c->n_edges; e++)
        sum += (int64_t)c->edge[e].table->n_rows * c->edge[e].table->n_cols;
    return sum;
}

/* Sweeps at the present multipliers; the bound of the problem. */
static double evaluate(struct mem_dual *d, int n_sweeps, struct mem_budget *budget)
{
    int64_t work = set_prices(d), sweep = 2 * cells(d->core) + d->core->n_nodes;
    double paid = 0, bound = -INFINITY;

    mem_spend(budget, work);
    for (int t = 0; t < d->m->n_slots; t++)
        paid += d->mu[t] * (double)d->m->room[t];
    for (int i = 0; i < n_sweeps; i++) {
        d->dual->bound = -INFINITY;
        sel_dual_sweep(d->dual);
        bound = fmax(bound, d->dual->bound);
        if (mem_spend(budget, sweep))
            break;
    }
    return bound - paid;
}

double mem_dual_settle(struct mem_dual *d, int n_sweeps, struct mem_budget *budget,
                       double *paid)
{
    memcpy(d->mu, d->best_mu, (size_t)d->m->n_slots * sizeof(double));
    *paid = 0;
    for (int t = 0; t < d->m->n_slots; t++)
        *paid += d->mu[t] * (double)d->m->room[t];
    return evaluate(d, n_sweeps, budget) + *paid;
}

/* used[] becomes usage minus room of the state. */
static void measure(struct mem_dual *d)
{
    const struct mem_core *m = d->m;

    memset(d->used, 0, ((size_t)m->n_slots + 1) * sizeof(double));
    for (int v = 0; v < m->core->n_nodes; v++)
        for (int i = m->first[v]; i < m->first[v + 1]; i++) {
            const struct mem_part *part = &m->part[i];
            d->used[part->lo] += (double)part->usage[d->state[v]];
            d->used[part->hi] -= (double)part->usage[d->state[v]];
        }
    for (int t = 1; t < m->n_slots; t++)
        d->used[t] += d->used[t - 1];
    for (int t = 0; t < m->n_slots; t++)
        d->used[t] -= (double)m->room[t];
}

/* Keeps of used[] the slots with a multiplier and the peaks; the square of its length. */
static double subgradient(struct mem_dual *d)
{
    double square = 0;
    int n = d->m->n_slots;

    for (int t = 0; t < n;) {
        int peak = t, end = t;
        while (end < n && (d->used[end] > 0) == (d->used[t] > 0)) {
            if (d->used[end] > d->used[peak])
                peak = end;
            end++;
        }
        for (int i = t; i < end; i++)
            if (d->mu[i] == 0 && (i != peak || d->used[i] <= 0))
                d->used[i] = 0;
        t = end;
    }
    for (int t = 0; t < n; t++)
        square += d->used[t] * d->used[t];
    return square;
}

void mem_dual_step(struct mem_dual *d, double best_cost, struct mem_budget *budget)
{
    int n = d->m->n_slots;
    double bound = evaluate(d,
                            d->n_steps++ == 0 ? FIRST_SWEEPS
                            : d->went_back    ? SETTLE
                                              : SWEEPS,
                            budget);

    d->went_back = false;
    if (bound > d->bound || d->n_steps == 1) {
        d->n_stalls = bound > d->bound * (1 + 1e-6) ? 0 : d->n_stalls + 1;
        d->bound = fmax(bound, d->bound);
        memcpy(d->best_mu, d->mu, (size_t)n * sizeof(double));
        d->n_fails = 0;
        d->step = fmin(d->step * GROW, MAX_STEP);
    } else {
        d->n_stalls++;
        if (++d->n_fails >= FAILS * (1 + d->care)) {
            memcpy(d->mu, d->best_mu, (size_t)n * sizeof(double));
            d->n_fails = 0;
            d->went_back = true;
            d->step *= SHRINK;
            if (d->step < MIN_STEP) {
                d->step = 1;
                d->care += d->care < MAX_CARE;
            }
            return;
        }
    }
    sel_dual_round(d->dual, d->state);
    measure(d);
    double square = subgradient(d),
           target = fmin(best_cost, (TARGET + d->care) * d->bound);
    if (square <= 0 || target <= bound)
        return;
    double step = d->step * (target - bound) / square;
    for (int t = 0; t < n; t++)
        d->mu[t] = fmax(0, d->mu[t] + step * d->used[t]);
}

/* ---- rounding within the limit ---- */

static void fill_theta(struct mem_dual *d, int v, int stamp)
{
    const struct sel_core *c = d->core;
    const struct sel_node *node = &c->node[v];

    memcpy(d->theta, node->cost, (size_t)node->n_strategies * sizeof(double));
    for (int k = 0; k < node->n_edges; k++) {
        int id = node->edges[k];
        const struct sel_edge *e = &c->edge[id];
        int w = sel_other(e, v);
        const double *in = (e->a == v ? d->dual->to_a : d->dual->to_b)[id];
        if (d->seen[w] == stamp)
            for (int s = 0; s < node->n_strategies; s++)
                d->theta[s] +=
                    e->a == v ? sel_base(e, s, d->state[w]) : sel_base(e, d->state[w], s);
        else
            for (int s = 0; s < node->n_strategies; s++)
                d->theta[s] += in[s];
    }
}

double mem_dual_round(struct mem_dual *d, bool backward, struct mem_budget *budget)
{
    int n = d->core->n_nodes;

    memset(d->seen, 0, (size_t)n * sizeof(int));
    mem_tree_reset(&d->left, d->m);
    for (int i = 0; i < n; i++) {
        int v = d->dual->order[backward ? n - 1 - i : i], best;
        int n_strategies = d->core->node[v].n_strategies;
        fill_theta(d, v, 1);
        for (;;) {
            best = 0;
            for (int s = 1; s < n_strategies; s++)
                if (d->theta[s] < d->theta[best])
                    best = s;
            if (!(d->theta[best] < INFINITY))
                return INFINITY;
            if (mem_tree_try(&d->left, d->m, v, best))
                break;
            d->theta[best] = INFINITY;
        }
        d->state[v] = best;
        d->seen[v] = 1;
        mem_spend(budget, (int64_t)n_strategies * d->core->node[v].degree);
    }
    return mem_cost(d->m, d->state);
}
