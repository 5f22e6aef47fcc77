/*
 * Private to the mem_*.c files: the selection problem with memory, reduced.
 *
 * A sel_core (solve.h) holds the costs. Its nodes are composites: merging made nodes
 * functions of others, which keep their intervals and usages. Time is cut into slots,
 * one for each set of intervals that may peak; at each slot there is room for what the
 * choices use beyond the least.
 */
#ifndef SOLVE_MEM_H
#define SOLVE_MEM_H

#include "contest.h"
#include "solve/solve.h"

/* A part of a node's usage: at the slots lo .. hi - 1. */
struct mem_part {
    int lo, hi;
    int64_t *usage; /* [strategy], 0 for the least */
};

struct mem_core {
    struct sel_core *core;  /* packed: no node or edge is gone, edges add nothing */
    struct sel_core *whole; /* where it came from, with the undo stack */
    int *node_of;           /* [node], its id in whole */
    int n_slots;
    int64_t *room; /* [slot] */
    int *first;    /* [node]: its parts are part[first[v] .. first[v + 1]) */
    struct mem_part *part;
    int n_parts;
};

/* When to stop: at a time (0: none), or when so much work is done (0: none). */
struct mem_budget {
    double until_sec, end_sec; /* end_sec: of the whole search */
    int64_t work, work_limit;  /* cells looked at, about a nanosecond each */
    int ticks;
    bool out;
};
/* Adds work; true when the budget is spent. */
bool mem_spend(struct mem_budget *b, int64_t work);

/* ---- mem_core.c ---- */

/*
 * The reduced core of a problem. -1 with err when no choice is legal. Where the limit can
 * never bind it has no slots. From until_sec on (0: never) it is not reduced more.
 */
int mem_core_build(struct ap_arena *arena, const struct contest *contest,
                   double until_sec, struct mem_core *m, struct ap_err *err);
/* The choice of the problem's nodes for a state of the core's. Not for two threads. */
void mem_core_undo(const struct mem_core *m, const int *state, int *choice);

/* ---- mem_state.c: a choice under way, its usage and its neighbourhood ---- */

/* What is left of the room at each slot, with the least over any range. */
struct mem_tree {
    int size; /* leaves, a power of two */
    int64_t *least, *add;
};

struct mem_tree mem_tree_new(struct ap_arena *arena, const struct mem_core *m);
/* All of the room is left. */
void mem_tree_reset(struct mem_tree *t, const struct mem_core *m);
void mem_tree_add(struct mem_tree *t, int lo, int hi, int64_t x);
/* The least over all slots: >= 0 when everything fits. */
static inline int64_t mem_tree_all(const struct mem_tree *t)
{
    return t->least[1];
}
/* Takes what v uses with strategy s off (sign -1), or gives it back (1). */
void mem_tree_take(struct mem_tree *t, const struct mem_core *m, int v, int s, int sign);
/* Takes it if it fits. */
bool mem_tree_try(struct mem_tree *t, const struct mem_core *m, int v, int s);

struct mem_state {
    const struct mem_core *m;
    int *choice;
    double cost;     /* base included */
    double **answer; /* [node][strategy]: node cost plus finite cells, neighbours as is */
    int **forbidden; /* [node][strategy]: how many cells are not finite */
    struct mem_tree left;
};

struct mem_state *mem_state_new(struct ap_arena *arena, const struct mem_core *m);
/* Takes a choice over, which must be legal. */
void mem_state_set(struct mem_state *st, const int *choice);
/* Changes answers and cost, not the memory left. Returns the neighbours' cells. */
int64_t mem_state_change(struct mem_state *st, int v, int s);
/* Cost of a choice of the core's nodes, INFINITY when forbidden; not of memory. */
double mem_cost(const struct mem_core *m, const int *choice);

/* ---- mem_dual.c: multipliers on memory ---- */

struct mem_dual {
    const struct mem_core *m;
    struct sel_core *core; /* costs include what usage is priced at */
    struct sel_dual *dual;
    double *mu;     /* [slot], cost per unit of usage */
    double *prefix; /* [slot + 1], sums of mu */
    double bound;   /* the best so far, proven */
    double *best_mu;
    double step; /* part of the Polyak step */
    int n_fails, n_steps, n_stalls;
    int care;       /* more sweeps and patience, as the easy gains are made */
    bool went_back; /* to the best multipliers, just now */
    int *state;     /* [node], scratch of roundings */
    int *seen;      /* [node], rank of decided nodes while rounding */
    double *used;
    struct mem_tree left;
    double *theta;
};

struct mem_dual *mem_dual_new(struct ap_arena *arena, const struct mem_core *m);
/*
 * One change of the multipliers, after a sweep: a better bound, a worse one, or neither.
 * best_cost is the best known solution's, INFINITY if none.
 */
void mem_dual_step(struct mem_dual *d, double best_cost, struct mem_budget *budget);
/* Sweeps at the best multipliers; the bound without what is paid for the room. */
double mem_dual_settle(struct mem_dual *d, int n_sweeps, struct mem_budget *budget,
                       double *paid);
/* A legal state from the messages, d->state; its cost, INFINITY when it got stuck. */
double mem_dual_round(struct mem_dual *d, bool backward, struct mem_budget *budget);
/* mu's price of strategy s of v */
double mem_price(const struct mem_core *m, const double *prefix, int v, int s);
void mem_prefix(const struct mem_core *m, const double *mu, double *prefix);

/* ---- mem_local.c: neighbourhoods ---- */

struct mem_local;
/* plain: only kicks when descents are short, no cooling. */
struct mem_local *mem_local_new(struct ap_arena *arena, const struct mem_core *m,
                                uint64_t seed, bool plain);
/* Takes prices over, and a legal choice if it is better than what was found so far. */
void mem_local_set(struct mem_local *l, const int *choice, double cost, double bound,
                   const double *mu);
/* Improves until the budget is spent, or the best costs no more than enough. */
void mem_local_run(struct mem_local *l, double enough, struct mem_budget *budget);
const int *mem_local_best(const struct mem_local *l);
/* Single nodes answer best until nothing changes. */
void mem_settle(struct mem_state *st, struct mem_budget *budget);

/* ---- mem_legal.c: a first legal choice ---- */

struct mem_legal;
/*
 * No choice of finite cost is more expensive than worst. NULL when the least usages of a
 * node's parts are not those of one strategy, so that a start within the limit is not at
 * hand.
 */
struct mem_legal *mem_legal_new(struct ap_arena *arena, const struct mem_core *m,
                                double worst, uint64_t seed);
/* Goes on until the budget is spent: a legal choice, or NULL. */
const int *mem_legal_run(struct mem_legal *g, struct mem_budget *budget);

/* ---- mem_program.c: integer programming on what the bound leaves ---- */

/* Looks for a choice cheaper than the limit with the bound and multipliers of d, which it
 * sweeps; see sel_program_solve. */
void mem_program(struct ap_arena *arena, struct mem_dual *d,
                 const struct sel_program_limits *limits, struct sel_proof *proof);

/* ---- mem_prices.c: the search at prices of memory ---- */

/*
 * A better state, its cost, a better bound (all in place, cost INFINITY: none is known)
 * and the multipliers that prove it; until_sec limits it (0: not). False: none is legal,
 * or there was no time.
 */
bool mem_prices(struct ap_arena *arena, const struct mem_core *m, double until_sec,
                int *state, double *cost, double *bound, double *mu);

#endif
