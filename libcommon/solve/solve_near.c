/*
 * A lower bound on the cost of every strategy of a problem, by message passing on the
 * problem with its copies joined; it shows the strategies that a solution near the best
 * one may have. That takes a small part of the time of a proof, and leaves a small
 * problem for it.
 *
 * O(cells) per sweep, plus the cost of sel_least_costs.
 */
#include "solve/solve.h"

#define SWEEPS 48
#define STALL  1e-3 /* of the gap in 8 sweeps, or of the bound */

static void sweep(struct sel_dual *d, double limit)
{
    double before = d->bound;

    for (int i = 1; i <= SWEEPS; i++) {
        sel_dual_sweep(d);
        if (i % 8 > 0)
            continue;
        if (d->bound >= limit ||
            d->bound - before < STALL * fmin(d->bound, limit - d->bound))
            return;
        before = d->bound;
    }
}

double ap_solve_least(struct ap_arena *arena, const struct ap_problem *p, double limit,
                      double **least)
{
    struct sel_core *c = sel_core_from_problem(arena, p);
    int *max_sets = AP_NEW_N(arena, p->n_nodes + 1, int);
    struct sel_join *join = sel_join_copies(c, max_sets);
    const int *n_labels = sel_count_labels(c);
    double **left = NULL, bound;

    if (!sel_reduce(c, false))
        return INFINITY;
    bound = c->base;
    if (c->n_left > 0) {
        struct sel_dual *d = sel_dual_new(c);
        sweep(d, limit);
        left = sel_dual_least(d, 0);
        bound = d->bound;
    }
    double **known = sel_least_costs(c, n_labels, left, bound, limit);
    for (int v = 0; v < p->n_nodes; v++) {
        const bool joined = n_labels[v] == 0 || sel_join_is_group(join, v);
        for (int s = 0; s < p->n_strategies[v]; s++)
            least[v][s] = joined ? bound : known[v][s];
    }
    return bound;
}
