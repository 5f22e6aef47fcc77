/*
 * A lower bound of a large selection problem that falls into pieces, of which many are
 * alike. A node at a border stands in several pieces; a potential per strategy is added
 * to its cost in some of them and taken from it in others, as often in all. Whatever the
 * potentials are, the sum of the pieces' optima is no more than the whole's.
 */
#ifndef AP_PIECES_H
#define AP_PIECES_H

#include "problem.h"

/* The potential is added to (sign 1) or taken from (-1) the costs of a piece's node. */
struct ap_part_term {
    int potential, node;
    double sign;
};

struct ap_part {
    struct ap_problem problem; /* without memory */
    double weight;             /* how many pieces it speaks for */
    int n_terms;
    const struct ap_part_term *term;
};

/* Every potential is added as often as it is taken, weights counted. */
struct ap_pieces {
    int n;
    const struct ap_part *piece;
    int n_potentials;
    const int *n_strategies; /* [potential], those of all its nodes */
};

struct ap_pieces_params {
    double objective;   /* a known price of the whole: what is aimed at */
    int max_rounds;     /* trials of potentials */
    int64_t work_limit; /* of a piece's solver, per trial */
    bool want_kept;
};

struct ap_pieces_answer {
    double bound; /* 0 when no round was made */
    int n_rounds;
    /*
     * [piece][node][strategy], false: whatever has it anywhere costs more than the
     * objective. NULL for a node of which nothing is known, NULL altogether if not wanted
     * or where the bound meets the objective.
     */
    bool ***kept;
};

/* -1 when a piece has no solution: then the whole has none. */
int ap_pieces_bound(struct ap_arena *arena, const struct ap_pieces *pieces,
                    const struct ap_pieces_params *params, struct ap_pieces_answer *out,
                    struct ap_err *err);

#endif
