/*
 * The selection problem within a memory limit: the memory of a choice over time, on
 * nodes, on edges and in copies, and the search for the cheapest choice within the limit.
 *
 * A problem's first n_vars nodes are variables. After them come the copies of tensors: a
 * copy node has the strategies absent and made, one edge from the node that makes the
 * tensor (its home) with the cost of making the copy, and edges to the users, which
 * forbid absent if the copy is needed. A settled choice has a strategy per variable and,
 * per copy, an ap_copy_state, which follows from the users except for one decision:
 * whether a copy that both phases need is kept in between or recomputed.
 *
 * Times are whole numbers 0 .. n_times - 1. Usage is in bytes.
 */
#ifndef AP_MEMORY_H
#define AP_MEMORY_H

#include "solve/problem.h"

/* Usage of one variable, or, for an edge, of two, at the times lo .. hi - 1. */
struct ap_usage_item {
    int lo, hi;
    int a, b;             /* variables; b is -1 if a alone decides */
    int n_b;              /* strategies of b, 1 without */
    const int64_t *bytes; /* [s_a * n_b + s_b] */
};

/* The bytes that a user asks for, by its strategy. */
struct ap_usage_user {
    int var;
    const int64_t *bytes; /* [strategy] */
};

/* The largest number of bytes that several users ask for, but at most the home's own
 * bytes. */
struct ap_usage_max {
    int lo, hi, home;
    const int64_t *own; /* [strategy of home] */
    int n_users;
    const struct ap_usage_user *user;
    int n_levels;
    const int64_t *level; /* the bytes that users may ask for, ascending */
};

/* A copy is made for one phase, kept from the first phase to the later one, or made in
 * each. */
enum ap_copy_state {
    AP_COPY_ABSENT,
    AP_COPY_FORWARD,
    AP_COPY_LATER,
    AP_COPY_KEPT,
    AP_COPY_AGAIN
};

/* The bytes of a kept copy between the phases, by the strategy of its home. */
struct ap_usage_keep {
    int lo, hi, copy, home;
    const int64_t *extra; /* [strategy of home] */
};

/*
 * The bytes of a copy between one user of a phase and the next one, if both lie between
 * the first and the last user that ask for it; or (over) while a user runs that does not
 * ask for it.
 */
struct ap_usage_hold {
    int lo, hi, copy, home;
    int turn; /* of the previous user, or of the user that runs */
    bool later, over;
    const int64_t *extra; /* [strategy of home] */
};

struct ap_copy_use {
    int edge;   /* of the problem, from the copy to the user */
    int turn;   /* number of the user, from 0 in the order in which users run; -1: unknown
                 */
    bool later; /* in the later phase */
    uint8_t when;  /* the uses of a phase with the least value make the copy ... */
    int64_t times; /* ... this often per step, if each phase makes its own */
};

struct ap_copy {
    int tensor; /* copies of one tensor are adjacent: all are recomputed, or none */
    int home_edge, n_uses, n_turns;
    struct ap_copy_use *use;
    bool both; /* users in both phases */
};

struct ap_memory {
    const struct ap_problem *problem; /* its nodes: n_vars variables, then n_copies */
    int n_vars, n_copies;
    struct ap_copy *copy;
    int n_times;
    const int64_t *time; /* [n_times], number for messages; NULL: the index */
    int n_items, n_maxima, n_keeps, n_holds;
    struct ap_usage_item *items;
    struct ap_usage_max *maxima;
    struct ap_usage_keep *keeps;
    struct ap_usage_hold *holds; /* those of one copy and phase are adjacent */
};

/* held[time], of n_times: the sum of all usage of a settled choice. */
void ap_memory_held(const struct ap_memory *m, const int *choice, int64_t *held);
/*
 * Sets the states of the copies by the users that ask for them. Copies for both phases
 * are kept, unless they were regathered (their state in choice) or of_tensor[tensor] says
 * so (NULL: none).
 */
void ap_memory_settle(const struct ap_memory *m, const bool *of_tensor, int *choice);
/* The price of a settled choice; AP_FORBIDDEN or more if it is not legal. */
double ap_memory_score(const struct ap_memory *m, const int *choice);

/* ---- the search ---- */

/*
 * The program of a choice may need more memory than the model says. The caller measures
 * programs, and may keep them.
 */
struct ap_measure {
    void *arg;
    /*
     * Price (INFINITY: not legal) and peak of a settled choice's program; again: with all
     * copies made in each phase; false if that changes nothing. A peak above the limit
     * may be the bytes that are alive at once, which is less than the program needs.
     * NULL: the model is exact.
     */
    bool (*program)(void *arg, const int *choice, bool again, double *sec, int64_t *peak);
    /* held[time] of that program; -1: not legal. NULL: the model is exact. */
    int (*held)(void *arg, const int *choice, int64_t *held);
};

struct ap_memory_task {
    const struct ap_memory *model;
    int64_t limit;
    bool least; /* search only for choices that need little memory, the same for all
                   limits */
    /* the same with repeated nodes as one, in which prices are searched first; or NULL */
    const struct ap_memory *tied;
    const int *tied_var;    /* [variable]: its variable in tied */
    const int *tied_copy;   /* [copy]: the copy in tied with the same layout, -1 */
    const int *tied_copies; /* [copy]: first copy in tied of the copy's tensor, -1 */
    /* layers: nodes with equal family and layer belong together; -1: no layer */
    const int *family, *layer;
    const int *cell; /* [variable]: number of its piece, of n_cells that are bounded
                        separately; -1: none */
    int n_cells;
    int n_starts;
    int *const *start;       /* settled choices */
    double bound, objective; /* of the problem without a limit */
    double best_sec;         /* a known price of a choice within the limit, or INFINITY */
    double until_sec;        /* time of CLOCK_MONOTONIC at which to stop; 0: never */
    struct ap_work
        *work; /* a budget at whose end the search stops once a choice fits; NULL: none */
    int64_t program_work; /* cost of measuring a program, about 1 us each */
    struct ap_measure measure;
};

struct ap_memory_answer {
    int *choice;          /* settled; NULL: no choice was found */
    double sec, bound;    /* sec: no more than best_sec */
    double *price;        /* [time], per byte: the prices that prove the largest bound */
    int64_t least_proven; /* bytes that every choice needs; 0: not computed */
    int n_solves, n_measured, n_times;
};

/*
 * The search, at prices of memory (memory/memory_search.c). -1 with err when no choice is
 * legal, whatever the limit.
 */
int ap_memory_search(struct ap_arena *arena, const struct ap_memory_task *task,
                     struct ap_memory_answer *answer, struct ap_err *err);

#endif
