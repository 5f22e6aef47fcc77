/*
 * Recomputation: the graph and plan of a stage in which forward groups run again in front
 * of the backward groups that read their values, so that the values need not be kept.
 */
#ifndef AP_RECOMPUTE_H
#define AP_RECOMPUTE_H

#include "plan/plan.h"
#include "graph/subgraph.h"

/*
 * Rewrites the part and its plan in place (new arrays in the arena; the old ones stay as
 * they are). again[group]: may run again. gone[node]: is not kept, if a group makes it
 * that runs again; not of results. plan->turn tells the forward (0) from the backward
 * (1). Copies of groups have the phase and the turn of the backward, the choices of the
 * forward. Nothing changes where nothing is gone. Linear.
 */
void ap_recompute(struct ap_arena *arena, const bool *again, const bool *gone,
                  struct ap_subgraph *sub, struct ap_plan *plan);

#endif
