/*
 * The selection problem of the ASPLOS 2025 contest: in addition to costs, a node holds
 * usage[strategy] while it lives, and the sum must not exceed a limit at any time.
 */
#ifndef SOLVE_CONTEST_H
#define SOLVE_CONTEST_H

#include "solve/problem.h"

struct contest_span {
    int64_t lo, hi; /* the times lo .. hi - 1, none if lo == hi */
};

struct contest {
    struct ap_problem costs;
    const struct contest_span *span; /* [node]; NULL: there is no memory */
    const int64_t *const *usage;     /* [node][strategy], >= 0 */
    int64_t usage_limit;             /* the largest sum allowed at any time */
};

/* The largest sum of usage at any time, 0 without memory. Allocates and frees scratch. */
int64_t contest_peak(const struct contest *p, const int *choice);
/* Whether choice is legal: no forbidden cost, and within the limit of memory. */
bool contest_legal(const struct contest *p, const int *choice);

struct contest_params {
    int64_t work_limit;    /* 0: the solver's default */
    double time_limit_sec; /* 0: none; the only use of the clock */
    uint64_t seed;
    int threads;          /* 0: one */
    struct ap_work *work; /* gets the objective and the bound as they improve, or NULL */
};

/*
 * Solvers. -1 with err when no legal choice exists ("no solution") or is found within the
 * limits. "optimal" means bound >= objective * (1 - 1e-9).
 */
typedef int contest_solver(struct ap_arena *arena, const struct contest *p,
                           const struct contest_params *params, struct ap_solution *sol,
                           struct ap_err *err);
contest_solver contest_auto;  /* bounds, proofs and searches share what they find */
contest_solver contest_local; /* the same without proofs */
contest_solver contest_exact; /* with proofs first */
contest_solver contest_glpk;  /* one integer program of all that is left */

#endif
