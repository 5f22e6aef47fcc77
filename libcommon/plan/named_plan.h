/*
 * Named plans: plans that people write by hand, defined for every model by rules.
 *
 *   data         the batch split over all axes, weights whole
 *   zero1        data, and optimizer states and the update split over all axes;
 *                gradients are all-reduced and kept whole
 *   zero2        the same with gradients reduce-scattered
 *   zero3        zero2, and weights split, gathered again for the backward pass
 *   megatron     the batch over all axes but the tensor axis, on which weight dots and
 *                convolutions alternate output (column) and contracting (row) factor
 *                along each chain, attention by heads, embedding and head by vocabulary
 *   megatron-sp  megatron, and activations outside of tensor parallel regions are split
 *                along the sequence on the tensor axis
 *   expert       dots batched over weights (experts) are split along experts over all
 *                axes, the batch everywhere else
 *   largest-dim  every weight split on its largest dimension over all axes
 *   mha-only     data, but on the tensor axis attention's weights are split: by output
 *                into attention, by input out of it
 *   ffn-only     the same with feed-forward layers: pairs of contractions, the first by
 *                output, the second by input
 *
 * The tensor axis is the axis named for tensors (ap_mesh_axis_use), or else the last axis
 * of the mesh. If an axis is named for FSDP, ZeRO shards over such axes only and
 * replicates over the others (HSDP: Zhao et al., "PyTorch FSDP", section 3.2.2); if an
 * axis is named for experts, `expert` splits experts over such axes only.
 */
#ifndef AP_NAMED_PLAN_H
#define AP_NAMED_PLAN_H

#include "plan/plan.h"

struct ap_named_plan {
    const char *name, *help;
    bool whole; /* sets plan->whole: a reduce-scatter instead never costs more */
};
#define AP_N_NAMED_PLANS 10
extern const struct ap_named_plan ap_named_plans[AP_N_NAMED_PLANS];

/*
 * Data parallelism as far as possible: axes on which the batch is too small stay idle.
 * This is not a named plan but the start of searches.
 */
void ap_batch_plan(struct ap_arena *arena, struct ap_plan *plan);
/*
 * Data that the named plans of one graph, nests and mesh share, made by the first plan
 * that needs it. Starts zeroed; the caller frees it after the last named plan.
 */
struct ap_named_plan_shared {
    struct ap_arena arena;
    struct ap_role_plans *roles;        /* mha-only, ffn-only */
    const struct ap_sweep_facts *facts; /* of groups, on any mesh */
};
void ap_named_plan_shared_free(struct ap_named_plan_shared *shared);
/* Options of making a named plan; all members may be NULL. */
struct ap_named_plan_how {
    const bool *fixed; /* per group: its choice in plan->choice is given and stays */
    struct ap_named_plan_shared *shared;
    /* for `data`, on a mesh of one axis: set if all sizes that were compared with the
       axis are larger multiples of it, so that every axis above 1 that divides this one
       has the same choices */
    bool *even;
};
/*
 * Fills plan->choice, regather and whole (arena) for the graph, nests and mesh already
 * set. On the microbatch axis the choices are plan->microbatch_choice. how may be NULL.
 * -1 with the reason if the named plan does not exist ("batch 4 on 8 devices").
 */
int ap_named_plan_make(struct ap_arena *arena, int row, struct ap_plan *plan,
                       const struct ap_named_plan_how *how, struct ap_err *err);
/*
 * Completes a plan in which the choices of some groups are given: the other groups follow
 * existing splits, the batch first, and are replicated on other axes.
 */
void ap_named_plan_complete(struct ap_arena *arena, struct ap_plan *plan,
                            const bool *fixed);

#endif
