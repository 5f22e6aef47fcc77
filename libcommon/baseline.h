/*
 * Named baselines: plans that a person would type, defined for every model by rules.
 *
 *   data         the batch split over all axes, weights whole
 *   zero2        data, and optimizer states and the update split over all axes
 *   zero3        zero2, and weights split, gathered again for the backward pass
 *   megatron     the batch over all axes but the last; on the last, weight dots and
 *                convolutions alternate output (column) and contracting (row) factor
 * along each chain, attention by heads, embedding and head by vocabulary largest-dim
 * every weight split on its largest dimension over all axes; the rest follows
 *
 *   mha-only     data, but on the last axis attention's weights are split: by output into
 *                it, by input out of it
 *   ffn-only     the same with feed-forward layers: pairs of contractions, the first by
 *                output, the second by input
 */
#ifndef AP_BASELINE_H
#define AP_BASELINE_H

#include "plan.h"

struct ap_baseline {
    const char *name, *help;
};
#define AP_N_BASELINES 7
extern const struct ap_baseline ap_baselines[AP_N_BASELINES];

/*
 * Fills plan->choice and plan->remake (arena) for the graph, nests and mesh already set.
 * -1 with the reason when the baseline does not exist ("batch 4 on 8 devices").
 */
int ap_baseline_plan(struct ap_arena *arena, int row, struct ap_plan *plan,
                     struct ap_err *err);
/*
 * The same for data parallelism as far as it goes: axes on which the batch is too small
 * stay idle. No baseline, what searches start from.
 */
void ap_batch_plan(struct ap_arena *arena, struct ap_plan *plan);

#endif
