/*
 * The selection problem by trying every combination: the oracle of the other solvers.
 * Nodes are the wheels of an odometer; sum[i] is the cost of the first i nodes and the
 * edges among them, so that a turn of wheel i recomputes the wheels from i on only, and
 * a prefix with a forbidden cost is skipped whole. The first of equal optima in the
 * order of the wheels wins. O(product of the strategy counts), at most 10^7.
 */
#ifndef AP_CONTEST_EXHAUSTIVE_H
#define AP_CONTEST_EXHAUSTIVE_H

#include "contest.h"

#include <math.h>
#include <string.h>

#define MAX_COMBINATIONS 1e7

struct odometer {
    const struct contest *contest;
    const struct ap_problem *p; /* its costs */
    int *first,
        *edges; /* node i's edges to lower nodes: edges[first[i] .. first[i + 1]) */
    int *at;
};

static inline void odometer_init(struct ap_arena *arena, struct odometer *o,
                                 const struct contest *contest)
{
    const struct ap_problem *p = &contest->costs;

    o->contest = contest;
    o->p = p;
    o->at = AP_NEW_N(arena, p->n_nodes + 1, int);
    o->first = AP_NEW_N(arena, p->n_nodes + 2, int);
    o->edges = AP_NEW_N(arena, p->n_edges + 1, int);
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        o->first[(edge->a > edge->b ? edge->a : edge->b) + 2]++;
    }
    for (int v = 0; v < p->n_nodes; v++)
        o->first[v + 2] += o->first[v + 1];
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        o->edges[o->first[(edge->a > edge->b ? edge->a : edge->b) + 1]++] = e;
    }
}

/* What node i adds at its present strategy, given the lower nodes. */
static inline double odometer_term(const struct odometer *o, int i)
{
    const struct ap_problem *p = o->p;
    double c = p->cost[i][o->at[i]];

    for (int k = o->first[i]; k < o->first[i + 1]; k++) {
        const struct ap_problem_edge *edge = &p->edges[o->edges[k]];
        c += edge->cost[(size_t)o->at[edge->a] * (size_t)p->n_strategies[edge->b] +
                        (size_t)o->at[edge->b]];
    }
    return c;
}

/* Turns the wheels; best gets the optimum. Returns the number of complete combinations.
 */
static inline int64_t odometer_run(struct ap_arena *arena, struct odometer *o, int *best,
                                   double *best_cost)
{
    const struct ap_problem *p = o->p;
    double *sum = AP_NEW_N(arena, p->n_nodes + 1, double);
    int64_t seen = 0;
    int i = 0;

    o->at[0] = -1;
    while (i >= 0) {
        if (i < p->n_nodes && ++o->at[i] < p->n_strategies[i]) {
            double c = odometer_term(o, i);
            if (c >= AP_FORBIDDEN)
                continue;
            sum[i + 1] = sum[i] + c;
            if (++i < p->n_nodes) {
                o->at[i] = -1;
                continue;
            }
        }
        if (i == p->n_nodes) {
            seen++;
            if (sum[i] < *best_cost &&
                (!o->contest->span ||
                 contest_peak(o->contest, o->at) <= o->contest->usage_limit)) {
                *best_cost = sum[i];
                memcpy(best, o->at, (size_t)p->n_nodes * sizeof(int));
            }
        }
        i--;
    }
    return seen;
}

static inline int contest_exhaustive(struct ap_arena *arena,
                                     const struct contest *contest,
                                     const struct contest_params *params,
                                     struct ap_solution *sol, struct ap_err *err)
{
    const struct ap_problem *p = &contest->costs;
    double n = 1;

    (void)params;
    for (int v = 0; v < p->n_nodes; v++)
        n *= p->n_strategies[v];
    if (n > MAX_COMBINATIONS)
        return ap_err_set(err,
                          "exhaustive search is limited to %.0e combinations, this "
                          "problem has %.3g",
                          MAX_COMBINATIONS, n);

    sol->choice = AP_NEW_N(arena, p->n_nodes + 1, int);
    struct ap_mark mark = ap_arena_mark(arena);
    struct odometer o;
    double best = INFINITY;
    odometer_init(arena, &o, contest);
    sol->work = odometer_run(arena, &o, sol->choice, &best);
    ap_arena_rewind(arena, mark);
    if (best >= AP_FORBIDDEN)
        return ap_err_set(err, "no solution: every combination holds a forbidden cost or "
                               "breaks the limit on usage");
    sol->objective = ap_problem_score(p, sol->choice);
    sol->bound = sol->objective;
    sol->stopped = "optimal";
    return 0;
}

#endif
