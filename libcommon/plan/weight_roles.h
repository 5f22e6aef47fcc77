/*
 * What weights are for, seen from the data flow of the forward phase: attention's
 * projections, and the pairs of contractions of feed-forward layers.
 */
#ifndef AP_WEIGHT_ROLES_H
#define AP_WEIGHT_ROLES_H

#include "plan/patterns.h"

/*
 * A pattern for each of those weights that attention, or feed-forward layers, have:
 * columns into attention and for the first of a pair, rows out of it and for the second;
 * pattern[] of others stays. Returns how many there are.
 */
int ap_weight_roles_pattern(struct ap_arena *arena, const struct ap_plan *plan,
                            const struct ap_weights *weights, bool attention,
                            bool feed_forward, int *pattern);

#endif
