/*
 * The roles of weights, found by the data flow of the forward phase: attention's
 * projections, and the pairs of contractions of feed-forward layers.
 */
#ifndef AP_WEIGHT_ROLES_H
#define AP_WEIGHT_ROLES_H

#include "plan/patterns.h"

/*
 * Sets a pattern for each weight of attention, or of feed-forward layers: columns for
 * projections into attention and for the first weight of a pair, rows for the projection
 * out of attention and for the second weight. pattern[] of other weights stays. Returns
 * the number of weights that were set.
 */
int ap_weight_roles_pattern(struct ap_arena *arena, const struct ap_plan *plan,
                            const struct ap_weights *weights, bool attention,
                            bool feed_forward, int *pattern);

#endif
