/*
 * A lower bound of a large selection problem that falls into pieces, many of them
 * identical. A node at a border stands in several pieces; a multiplier per strategy is
 * added to its cost in some of them and taken from it in others, as often in all.
 * Whatever the multipliers are, the sum of the pieces' optima is no more than the
 * whole's.
 */
#ifndef AP_PIECES_H
#define AP_PIECES_H

#include "solve/problem.h"

/* The multiplier is added to (sign 1) or taken from (-1) the costs of a piece's node. */
struct ap_subproblem_term {
    int multiplier, node;
    double sign;
};

struct ap_subproblem {
    struct ap_problem problem; /* without memory */
    double weight;             /* how many pieces it speaks for */
    int n_terms;
    const struct ap_subproblem_term *term;
    const int
        *start; /* [node], a choice that is none too expensive; NULL: none is known */
};

/* Every multiplier is added as often as it is taken, weights counted. */
struct ap_pieces {
    int n;
    const struct ap_subproblem *piece;
    int n_multipliers;
    const int *n_strategies; /* [multiplier], those of all its nodes */
};

/*
 * The whole's price is found on the way: at first by what the pieces choose by
 * themselves, and if their bound does not meet that soon, by a search without what it
 * rules out.
 */
struct ap_pieces_search {
    void *arg;
    /* The price of a choice [piece][node] of all pieces; INFINITY: it fits nowhere. */
    double (*price)(void *arg, int *const *choice);
    /* kept: see ap_pieces_answer, for the price found so far; NULL if that is INFINITY.
       share: what it may take of the budget that is left.
       start [piece]: of the answer, as in struct ap_subproblem. -1: there is no solution
     */
    int (*solve)(void *arg, bool ***kept, double share, double *objective,
                 const int **start, struct ap_err *err);
    double (*at_hand)(void *arg); /* a price known without a search; may be NULL */
};

struct ap_pieces_params {
    double objective; /* a known price of the whole: what is aimed at */
    const struct ap_pieces_search *search; /* instead of objective; NULL: it is known */
    int max_rounds;                        /* trials of multipliers */
    int64_t work_limit;                    /* of a piece's solver, per trial */
    double gap;           /* relative, ends the rounds; 0: only a proof does */
    struct ap_work *work; /* a budget shared with other searches; NULL: none */
    bool want_kept;
};

struct ap_pieces_answer {
    double bound; /* 0 when no round was made */
    double objective;
    int n_rounds;
    /*
     * [piece][node][strategy], false: whatever has it anywhere costs more than the
     * objective. NULL for a node without known costs, NULL altogether if not wanted
     * or where the bound meets the objective.
     */
    bool ***kept;
};

/* -1 when a piece has no solution: then the whole has none. */
int ap_pieces_bound(struct ap_arena *arena, const struct ap_pieces *pieces,
                    const struct ap_pieces_params *params, struct ap_pieces_answer *out,
                    struct ap_err *err);

#endif
