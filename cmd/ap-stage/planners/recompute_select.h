/*
 * Which values a pipeline stage recomputes before each backward: what saves most memory
 * per second spent, until the stage fits.
 */
#ifndef RECOMPUTE_SELECT_H
#define RECOMPUTE_SELECT_H

#include "pipeline/pipeline_price.h"

/* What may be chosen, and for how much. */
struct recompute_problem {
    const struct ap_graph *graph; /* of the stage */
    const struct ap_nests *nests;
    const struct ap_stage_weights *weights;
    double flights;     /* microbatches that are in flight at most, >= 1 */
    double stage_bytes; /* of the stage that keeps all values, as a point has them */
    double microbatch_bytes;
    double most_bytes; /* what the stage may take */
};
/*
 * Marks values ([node of graph], all false before) that are not kept, so that the stage
 * takes no more than most_bytes; none where it does not anyway. 1: it takes more,
 * whatever it recomputes.
 */
int recompute_select(struct ap_arena *arena, const struct recompute_problem *s,
                     bool *again);

/*
 * Stages that recompute all of their blocks make only what they must, or nothing, while
 * no device takes more than memory_bytes or what it takes now: changes recompute and
 * recomputed (arena) of those where that is quicker, and the price, which is the plan's
 * before and after. The step is not slower than before. -1: as ap_pipeline_price.
 */
int recompute_select_stages(struct ap_arena *arena, const struct ap_staged_graph *of,
                            int64_t memory_bytes, struct ap_stages *stages,
                            struct ap_pipeline_price *price, struct ap_err *err);

#endif
