/*
 * Named plans: what a person would type, defined for every model by rules.
 *
 *   data         the batch split over all axes, weights whole
 *   zero1        data, and optimizer states and the update split over all axes; gradients
 *                are all-reduced and kept whole
 *   zero2        the same with gradients reduce-scattered
 *   zero3        zero2, and weights split, gathered again for the backward pass
 *   megatron     the batch over all axes but one, the tensor axis, on which weight dots
 * and convolutions alternate output (column) and contracting (row) factor along each
 * chain, attention by heads, embedding and head by vocabulary megatron-sp  megatron; on
 * the tensor axis, activations outside of its tensor parallel regions are split along the
 * sequence expert       dots batched over weights (experts) are split along them over all
 * axes, the batch everywhere else largest-dim  every weight split on its largest
 * dimension over all axes mha-only     data, but on the tensor axis attention's weights
 * are split: by output into it, by input out of it ffn-only     the same with
 * feed-forward layers: pairs of contractions, the first by output, the second by input
 *
 * The tensor axis is the last of the mesh, unless names say otherwise (ap_mesh_axis_use):
 * it is then the one named for tensors. Where an axis is named for FSDP, ZeRO shards over
 * such axes only and repeats over the others (HSDP: Zhao et al., "PyTorch FSDP", section
 * 3.2.2); where one is named for experts, `expert` splits these over such axes only.
 */
#ifndef AP_NAMED_PLAN_H
#define AP_NAMED_PLAN_H

#include "plan/plan.h"

struct ap_named_plan {
    const char *name, *help;
    bool whole; /* sets plan->whole: reduce-scatter instead never costs more */
};
#define AP_N_NAMED_PLANS 10
extern const struct ap_named_plan ap_named_plans[AP_N_NAMED_PLANS];

/*
 * The same for data parallelism as far as it goes: axes on which the batch is too small
 * stay idle. No named plan, what searches start from.
 */
void ap_batch_plan(struct ap_arena *arena, struct ap_plan *plan);
/*
 * What named plans of one graph, nests and mesh have in common, made by the first that
 * needs it. Starts zeroed; freed by the caller, when no named plan is made any more.
 */
struct ap_named_plan_shared {
    struct ap_arena arena;
    struct ap_role_plans *roles;        /* mha-only, ffn-only */
    const struct ap_sweep_facts *facts; /* of groups, on any mesh */
};
void ap_named_plan_shared_free(struct ap_named_plan_shared *shared);
/* How a named plan is made; all members may be NULL. */
struct ap_named_plan_how {
    const bool *fixed; /* per group: its choice in plan->choice is given and stays */
    struct ap_named_plan_shared *shared;
    /* data, on a mesh of one axis: all sizes that were compared with the axis are
       multiples of it and larger, so that every axis above 1 that divides this one has
       the same choices */
    bool *even;
};
/*
 * Fills plan->choice, regather and whole (arena) for the graph, nests and mesh already
 * set. On the microbatch axis the choices are plan->microbatch_choice. how may be NULL.
 * -1 with the reason when the named plan does not exist ("batch 4 on 8 devices").
 */
int ap_named_plan_make(struct ap_arena *arena, int row, struct ap_plan *plan,
                       const struct ap_named_plan_how *how, struct ap_err *err);
/*
 * Completes a plan in which some groups are given: the others follow what is split
 * already, the batch first, and are replicated where nothing is.
 */
void ap_named_plan_complete(struct ap_arena *arena, struct ap_plan *plan,
                            const bool *fixed);

/* The batch: the first dimension that most inputs share; 0 when there is none. */
int64_t ap_batch_size(const struct ap_graph *g);

#endif
