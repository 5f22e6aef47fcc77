/*
 * The bare selection problem: pick one strategy per node, minimise node plus edge costs.
 * With memory, a node holds usage[strategy] while it lives, and at no time may the sum be
 * above a limit.
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

struct ap_span {
    int64_t lo, hi; /* the times lo .. hi - 1, none if lo == hi */
};

struct ap_problem {
    int n_nodes, n_edges;
    const int *n_strategies;   /* per node, >= 1 */
    const double *const *cost; /* [node][strategy], >= 0 or AP_FORBIDDEN */
    const struct ap_problem_edge *edges;
    /* memory; span is NULL without */
    const struct ap_span *span;  /* [node] */
    const int64_t *const *usage; /* [node][strategy], >= 0 */
    int64_t usage_limit;         /* the largest sum allowed at any time */
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
    uint64_t seed;
    const int *start;     /* a known choice to beat, or NULL */
    int threads;          /* of solvers with memory; 0: one */
    double gap;           /* relative, good enough for the exact solver without memory */
    bool is_small;        /* that solver goes to work at once, without looking ahead */
    struct ap_work *work; /* a budget that it shares with other searches; NULL: none */
    bool tells;           /* who waits for that work is told of its objective and bound */
    /* Makes the choice better, if it can, within a share of that work; called once, by
       the exact solver, where a look ahead leaves a gap. NULL: it cannot. */
    void (*better)(void *arg, struct ap_work *work, int *choice);
    void *better_arg;
};

/* Node costs in node order, then edge costs in edge order; >= AP_FORBIDDEN when illegal.
 */
double ap_problem_score(const struct ap_problem *p, const int *choice);
/* The largest sum of usage at any time, 0 without memory. Allocates and frees scratch. */
int64_t ap_problem_peak(const struct ap_problem *p, const int *choice);
/* Whether choice is legal: no forbidden cost, and within the limit of memory. */
bool ap_problem_legal(const struct ap_problem *p, const int *choice);

/*
 * Writes a problem in the format of the ASPLOS 2025 contest on intra-operator
 * parallelism (cmd/ap-solve reads it). Costs are multiplied by scale and rounded to
 * integers, as the format wants them; forbidden ones become 10^18.
 */
void ap_problem_write(const struct ap_problem *p, const char *name, double scale,
                      struct ap_buf *out);

/*
 * Solvers. -1 with err when no legal choice exists ("no solution") or is found within the
 * limits. "optimal" means bound >= objective * (1 - 1e-9). Without memory, exact sets
 * stopped where it fails, too: NULL when no legal choice exists.
 */
typedef int ap_solver_fn(struct ap_arena *arena, const struct ap_problem *p,
                         const struct ap_solve_params *params, struct ap_solution *sol,
                         struct ap_err *err);
ap_solver_fn ap_solve_auto;       /* bounds, proofs and searches share what they find */
ap_solver_fn ap_solve_local;      /* the same without proofs */
ap_solver_fn ap_solve_exact;      /* reductions, dual bound, branch and bound */
ap_solver_fn ap_solve_glpk;       /* one-hot nodes, tight edges, dual simplex, then MIP */
ap_solver_fn ap_solve_exhaustive; /* the oracle: at most 10^7 combinations */

/*
 * least[node][strategy]: a lower bound of what choices that have it cost, INFINITY where
 * none costs less than limit. Of a problem without memory; the bound of all choices.
 */
double ap_solve_least(struct ap_arena *arena, const struct ap_problem *p, double limit,
                      double **least);

#endif
