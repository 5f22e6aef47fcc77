/* Private to ap-shard: a lower bound for the whole graph from its distinct layers. */
#ifndef FOLD_BOUND_H
#define FOLD_BOUND_H

#include "problem/fold.h"

struct fold_bound {
    double bound; /* below every plan in the space, tied or not; 0: nothing is known */
    int n_rounds;
};

/* Finds the plan to be bounded, where none is known before. Tied groups have the same
 * strategy. */
struct fold_search {
    void *arg;
    /* The price of a choice [group], which may become the plan; INFINITY: it is illegal.
     */
    double (*price)(void *arg, const int *strategy);
    /* Finds the plan; share: the share of the remaining budget that it may use. */
    int (*solve)(void *arg, double share, struct ap_err *err);
    double (*at_hand)(void *arg); /* the price of the best plan at hand */
};

struct fold_bound_params {
    const struct shard_answer *known;
    const struct fold_search *search; /* NULL: known is a plan with its objective */
    int max_rounds;
    int64_t work_limit;   /* of a piece's solver, per round */
    double gap;           /* relative, ends the rounds; 0: only a proof does */
    struct ap_work *work; /* a budget shared with other searches; NULL: none */
};

/*
 * known: a plan at hand and its objective; tied groups have one choice in it. Rounds go
 * on until the bound meets the objective (1e-9), stalls, or max_rounds. With a search
 * (else NULL), it fills in known, its plan and objective. -1 when a piece has no solution
 * (then the graph has none).
 */
int shard_fold_bound(struct ap_arena *arena, const struct shard_space *space,
                     const struct shard_fold *fold,
                     const struct fold_bound_params *params, struct fold_bound *out,
                     struct ap_err *err);

#endif
