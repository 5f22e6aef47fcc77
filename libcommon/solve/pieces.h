/*
 * A lower bound of a large selection problem that consists of pieces, many of them
 * identical. A node at a border occurs in several pieces; a multiplier per strategy is
 * added to its cost in some pieces and subtracted in others, so that multipliers cancel.
 * For all multipliers, the sum of the pieces' optima is at most the optimum of the whole
 * problem.
 */
#ifndef AP_PIECES_H
#define AP_PIECES_H

#include "solve/problem.h"

/* The multiplier is added to (sign 1) or subtracted from (-1) the costs of a piece's
 * node. */
struct ap_subproblem_term {
    int multiplier, node;
    double sign;
};

struct ap_subproblem {
    struct ap_problem problem; /* without memory */
    double weight;             /* the number of pieces that it represents */
    int n_terms;
    const struct ap_subproblem_term *term;
    const int *start; /* [node], a good choice; NULL: none is known */
};

/* Every multiplier is added as often as it is subtracted, counted with weights. */
struct ap_pieces {
    int n;
    const struct ap_subproblem *piece;
    int n_multipliers;
    const int *n_strategies; /* [multiplier], of each of its nodes */
};

/*
 * Finds a price of the whole problem during the rounds: at first from the choices of the
 * pieces, and if their bound does not reach that price soon, by a search.
 */
struct ap_pieces_search {
    void *arg;
    /* The price of a choice [piece][node] of all pieces; INFINITY if the whole problem
     * has no such choice. */
    double (*price)(void *arg, int *const *choice);
    /* share: its share of the remaining budget. start [piece]: the solution, as in struct
       ap_subproblem. -1: there is no solution */
    int (*solve)(void *arg, double share, double *objective, const int **start,
                 struct ap_err *err);
    double (*at_hand)(void *arg); /* a price known without a search; may be NULL */
};

struct ap_pieces_params {
    double
        objective; /* a known price of the whole problem, which the bound should reach */
    const struct ap_pieces_search
        *search;        /* instead of objective; NULL: the price is known */
    int max_rounds;     /* trials of multipliers */
    int64_t work_limit; /* of a piece's solver, per trial */
    double gap;         /* relative gap that ends the rounds; 0: only a proof ends them */
    struct ap_work *work; /* a budget shared with other searches; NULL: none */
};

struct ap_pieces_answer {
    double bound; /* 0 if no round was made */
    double objective;
    int n_rounds;
};

/* -1 if a piece, and so the whole problem, has no solution. */
int ap_pieces_bound(struct ap_arena *arena, const struct ap_pieces *pieces,
                    const struct ap_pieces_params *params, struct ap_pieces_answer *out,
                    struct ap_err *err);

#endif
