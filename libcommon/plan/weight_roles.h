/*
 * What weights are for, seen from the data flow of the forward phase: attention's
 * projections, and the pairs of contractions of feed-forward layers.
 */
#ifndef AP_WEIGHT_ROLES_H
#define AP_WEIGHT_ROLES_H

#include "plan/patterns.h"

enum ap_weight_role {
    AP_WEIGHT_ROLE_OTHER,
    AP_WEIGHT_ROLE_INTO_ATTENTION,   /* queries, keys, values */
    AP_WEIGHT_ROLE_OUT_OF_ATTENTION, /* what its output is multiplied with */
    AP_WEIGHT_ROLE_FIRST,            /* of a pair with elementwise operators in between */
    AP_WEIGHT_ROLE_SECOND
};

/* role[i] for each weight. Linear in the operand slots. */
void ap_weight_roles_find(struct ap_arena *arena, const struct ap_plan *plan,
                          const struct ap_weights *weights, enum ap_weight_role *role);

/*
 * A pattern for each of those weights that attention, or feed-forward layers, have:
 * columns into attention and for the first of a pair, rows out of it and for the second;
 * pattern[] of others stays. Returns how many there are.
 */
int ap_weight_roles_pattern(struct ap_arena *arena, const struct ap_plan *plan,
                            const struct ap_weights *weights, bool attention,
                            bool feed_forward, int *pattern);

#endif
