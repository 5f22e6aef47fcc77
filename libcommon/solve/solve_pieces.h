/* Private to solve_pieces*.c: pieces as cores that are solved again and again. */
#ifndef AP_SOLVE_PIECES_H
#define AP_SOLVE_PIECES_H

#include "solve/pieces.h"
#include "solve/solve.h"

enum { MAX_KNOWN = 32 };

struct pieces_core {
    const struct ap_subproblem *piece;
    struct ap_arena arena, scratch, found; /* pieces are solved concurrently */
    int *first;                            /* [multiplier], its place in phi; shared */
    struct sel_core *whole; /* copies joined, reduced but for the terms' nodes */
    struct sel_join *join;
    int *max_sets;
    struct sel_core *core; /* the rest of `whole` after reductions */
    int *place;            /* [node of the problem], its node in core, -1 */
    int *list;             /* [node of core], its node of the problem */
    double base;           /* cost of the piece minus cost of core */
    double *origin;        /* [n_phi], the multipliers included in core's costs */
    int n_phi;
    const double *phi; /* of the present trial */
    int64_t work_limit;
    struct ap_work work; /* work of this trial, within its share of the budget */
    double share;        /* of the budget, since pieces are solved concurrently */
    bool failed;
    /* known choices of the piece: the start, then the latest solutions of trials */
    struct known {
        double cost;       /* without multipliers */
        const int *choice; /* [term] */
    } known[MAX_KNOWN];
    int n_known, n_found;
    double gap;         /* relative gap that counts as zero */
    int max_refined;    /* how often this trial may add sets of copies; -1: always */
    bool settled;       /* it needed no more sets, and was solved to the end */
    int *solution;      /* [node of the problem], of the last trial */
    int *choice;        /* [term], of the last trial: strategies */
    double cost, bound; /* of choice */
};

/* ---- solve_pieces_core.c ---- */

/* With piece, first and n_phi set. A thread's start routine, as pieces_core_solve. */
void *pieces_core_open(void *piece);
void pieces_core_close(struct pieces_core *p);
/* start [node]: a choice of the piece. */
void pieces_core_start(struct pieces_core *p, const int *start);
/* Solves under p->phi: choice, solution, cost, bound. A thread's start routine. */
void *pieces_core_solve(void *piece);

/* ---- solve_pieces_start.c ---- */

/*
 * Multipliers to begin with, from messages between all pieces as they were opened;
 * phi[n_phi], which is 0. Patience takes several times as long.
 */
void pieces_start(const struct ap_pieces *pieces, const struct pieces_core *cores,
                  const int *first, bool patient, struct ap_work *work, double *phi);

#endif
