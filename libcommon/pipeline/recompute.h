/*
 * Recomputation: the graph and plan of a stage in which forward groups run again in front
 * of the backward groups that read their values, so that the values need not be kept.
 */
#ifndef AP_RECOMPUTE_H
#define AP_RECOMPUTE_H

#include "plan/plan.h"
#include "graph/subgraph.h"

/*
 * Rewrites the part and its plan in place (new arrays in the arena; the old ones do not
 * change). again[group]: whether the group may run again. gone[node]: whether the value
 * is not kept, if its group runs again; results are always kept. plan->turn tells the
 * forward (0) from the backward (1). Copies of groups have the phase and the turn of the
 * backward pass and the choices of the forward pass. Without gone values nothing changes.
 * Linear.
 */
void ap_recompute(struct ap_arena *arena, const bool *again, const bool *gone,
                  struct ap_subgraph *sub, struct ap_plan *plan);

#endif
