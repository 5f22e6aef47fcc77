/* Private to ap-shard: a lower bound for the whole graph from its distinct layers. */
#ifndef FOLD_BOUND_H
#define FOLD_BOUND_H

#include "fold.h"

struct fold_bound {
    double bound; /* of any plan in the space, tied or not; 0 if nothing is known */
    int n_rounds, n_pieces, n_potentials;
    /* [group][strategy], false: every plan that has it costs the objective or more. NULL
       for a group of which nothing is known, or for all */
    const bool **kept;
};

/*
 * objective: the price of a plan at hand. Rounds go on until the bound meets the
 * objective (1e-9), stalls, or max_rounds. -1 when a piece has no solution (then
 * the graph has none).
 */
int shard_fold_bound(struct ap_arena *arena, const struct shard_space *space,
                     const struct shard_fold *fold, double objective, int max_rounds,
                     int64_t work_limit, bool want_kept, struct fold_bound *out,
                     struct ap_err *err);

#endif
