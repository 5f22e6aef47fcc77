/* Private to ap-shard: a lower bound for the whole graph from its distinct layers. */
#ifndef FOLD_BOUND_H
#define FOLD_BOUND_H

#include "fold.h"

struct fold_bound {
    double bound; /* of any plan in the space, tied or not; 0 if nothing is known */
    int n_rounds, n_pieces, n_potentials;
};

/*
 * objective: the folded optimum, choice: its strategy per group. Rounds go on until the
 * bound meets the objective (1e-9) or max_rounds. -1 when a piece has no solution (then
 * the graph has none).
 */
int shard_fold_bound(struct ap_arena *arena, const struct shard_space *space,
                     const struct shard_fold *fold, double objective, int max_rounds,
                     int64_t work_limit, struct fold_bound *out, struct ap_err *err);

#endif
