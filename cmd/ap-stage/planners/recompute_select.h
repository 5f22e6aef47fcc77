/*
 * Selects the values that a pipeline stage recomputes before each backward pass: the
 * values that save most memory per second, until the stage fits.
 */
#ifndef RECOMPUTE_SELECT_H
#define RECOMPUTE_SELECT_H

#include "pipeline/pipeline_price.h"

/*
 * Stages that recompute all of their blocks make only what they must, or nothing, while
 * no device takes more than its memory_bytes or what it takes now: changes recompute and
 * recomputed (arena) of those where that is quicker, and the price, which is the plan's
 * before and after. The step is not slower than before. -1: as ap_pipeline_price.
 * memory_bytes: [device of the price]. Stages of one device have equal parts of what it
 * has left, and share what then turns out to be left if fills.
 */
int recompute_select_stages(struct ap_arena *arena, const struct ap_staged_graph *of,
                            const int64_t *memory_bytes, bool fills,
                            struct ap_stages *stages, struct ap_pipeline_price *price,
                            struct ap_err *err);

#endif
