/* Private to tap: the blocks whose plans are enumerated. */
#ifndef TAP_H
#define TAP_H

#include "plan/route.h"
#include "problem/shard.h"

#define TAP_MAX_PLANS     59049 /* 3^10: of a family that is enumerated as a whole */
#define TAP_PIECE_WEIGHTS 16    /* some have one pattern only */
#define TAP_PIECE_PLANS \
    729 /* 3^6: of a piece: weights outside of families that are enumerated */

struct tap_block {
    const char *name;
    int n_instances;
    /* [instance * n_weights + j]: weights of the graph; instance 0 is enumerated */
    int n_weights, *weight;
    int n_groups, *group; /* of instance 0, ascending */
    bool piece;           /* weights that are in no such family */
    /* results of the enumeration */
    int64_t plans, refused;
    double exposed;
};

/*
 * Families with few enough weights, outermost first, and pieces of the other weights in
 * the order of their use. families may be NULL.
 */
struct tap_block *tap_blocks(struct ap_arena *arena, const struct ap_plan *plan,
                             const struct ap_weights *weights,
                             const struct ap_families *families, int *n);

#endif
