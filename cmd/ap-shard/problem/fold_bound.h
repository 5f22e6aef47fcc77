/* Private to ap-shard: a lower bound for the whole graph from its distinct layers. */
#ifndef FOLD_BOUND_H
#define FOLD_BOUND_H

#include "problem/fold.h"

struct fold_bound {
    double bound; /* of any plan in the space, tied or not; 0 if nothing is known */
    int n_rounds, n_pieces, n_potentials;
    /* [group][strategy], false: every plan that has it costs the objective or more. NULL
       for a group of which nothing is known, or for all */
    const bool **kept;
};

/*
 * Finds the plan that is bounded, where none is known before. Strategies are by group,
 * those of tied groups alike.
 */
struct fold_search {
    void *arg;
    /* What the choice costs; it may be the plan. INFINITY: it is none. */
    double (*price)(void *arg, const int *strategy);
    /* The plan, without what kept (as in fold_bound, NULL for all) rules out. */
    int (*solve)(void *arg, const bool **kept, struct ap_err *err);
};

/*
 * known: a plan at hand and its objective; tied groups choose alike in it. Rounds go on
 * until the bound meets the objective (1e-9), stalls, or max_rounds. With a search (else
 * NULL), it fills in known, its plan and objective. -1 when a piece has no solution (then
 * the graph has none).
 */
int shard_fold_bound(struct ap_arena *arena, const struct shard_space *space,
                     const struct shard_fold *fold, const struct shard_answer *known,
                     const struct fold_search *search, int max_rounds, int64_t work_limit,
                     bool want_kept, struct fold_bound *out, struct ap_err *err);

#endif
