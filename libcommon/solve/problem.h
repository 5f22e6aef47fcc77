/*
 * The bare selection problem: pick one strategy per node, minimise node plus edge costs.
 */
#ifndef AP_PROBLEM_H
#define AP_PROBLEM_H

#include "base/base.h"
#include "base/work.h"

#define AP_FORBIDDEN 1e30 /* a cost at or above this can never be chosen */

struct ap_problem_edge {
    int a, b;           /* nodes, a != b; parallel edges add up */
    const double *cost; /* [s_a * n_strategies[b] + s_b], >= 0 or AP_FORBIDDEN */
};

struct ap_problem {
    int n_nodes, n_edges;
    const int *n_strategies;   /* per node, >= 1 */
    const double *const *cost; /* [node][strategy], >= 0 or AP_FORBIDDEN */
    const struct ap_problem_edge *edges;
};

struct ap_solution {
    int *choice;         /* per node; arena */
    double objective;    /* of choice, summed by ap_problem_score */
    double bound;        /* proven lower bound, <= objective */
    const char *stopped; /* "optimal", "work limit", "time limit", "gap" */
    int64_t work;        /* search nodes, or simplex iterations */
    const char *stats;   /* more JSON members for --stats (",\"x\":1"), or NULL; arena */
};

struct ap_solve_params {
    int64_t work_limit;    /* 0: the solver's default */
    double time_limit_sec; /* 0: none; the only use of the clock */
    const int *start;      /* a known choice to beat, or NULL */
    double gap;            /* relative, good enough for the exact solver */
    bool is_small;         /* the solver starts at once, without looking ahead */
    struct ap_work *work;  /* a budget that it shares with other searches; NULL: none */
    bool tells;            /* progress shows its objective and bound */
    /* Improves the choice within a share of that work; the exact solver calls it once, if
       looking ahead leaves a gap. May be NULL. */
    void (*better)(void *arg, struct ap_work *work, int *choice);
    void *better_arg;
};

/* Node costs in node order, then edge costs in edge order; >= AP_FORBIDDEN when illegal.
 */
double ap_problem_score(const struct ap_problem *p, const int *choice);

/*
 * Solvers. -1 with err when no legal choice exists ("no solution") or is found within the
 * limits. "optimal" means bound >= objective * (1 - 1e-9). Where it fails, exact sets
 * stopped, too: NULL when no legal choice exists.
 */
typedef int ap_solver_fn(struct ap_arena *arena, const struct ap_problem *p,
                         const struct ap_solve_params *params, struct ap_solution *sol,
                         struct ap_err *err);
ap_solver_fn ap_solve_exact; /* reductions, dual bound, branch and bound */
ap_solver_fn ap_solve_glpk;  /* one-hot nodes, tight edges, dual simplex, then MIP */

#endif
