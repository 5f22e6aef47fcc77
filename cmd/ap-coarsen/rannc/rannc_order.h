/* Private to RaNNC's passes: a topological order that survives pairwise merging. */
#ifndef RANNC_ORDER_H
#define RANNC_ORDER_H

#include "rannc/rannc.h"

struct rannc_order {
    const struct rannc_level *l;
    int *mate; /* [cluster] it was merged with, -1 none */
    int *rank; /* [cluster] place in the order; for a pair: the place of its lower id */
    int *at;   /* [rank] the cluster that has it, or had it last */
    int *n_readers; /* [cluster] edges out of it */
    int *mark;      /* scratch of the searches */
    int n_marks;
    int *ahead, *behind, *slots; /* scratch */
};

void rannc_order_init(struct ap_arena *arena, const struct rannc_level *l,
                      struct rannc_order *o);
/*
 * Merges unmatched clusters a and b if nothing outside the two lies on a path between
 * them, given all merges so far, and keeps the order topological. False: there is such a
 * path, or it was not found out within RANNC_MAX_SEARCH edges. O(1) if no cluster lies
 * between them, else linear in the clusters that change places.
 */
#define RANNC_MAX_SEARCH 4096
bool rannc_order_merge(struct rannc_order *o, int a, int b);
/* The same where b follows a directly, so that there can be no path. */
void rannc_order_merge_next(struct rannc_order *o, int a, int b);
/* Numbers the remaining clusters in order: map[cluster]; returns their number. */
int rannc_order_number(const struct rannc_order *o, int *map);

#endif
