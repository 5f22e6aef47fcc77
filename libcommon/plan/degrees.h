/*
 * A sharding plan in the words of the field: degrees of tensor, data, context and expert
 * parallelism, sequence parallel activations, ZeRO's stage.
 *
 * A plan has a choice per group, whereas a trainer has one use per device axis. The
 * degrees give the use that most FLOPs of the forward contractions make of an axis, and
 * the share of FLOPs that agrees with it, for the whole plan and per layer.
 */
#ifndef AP_DEGREES_H
#define AP_DEGREES_H

#include "plan/layers.h"

/* The part of a contraction that an axis of the mesh splits. */
enum ap_axis_split {
    AP_USE_NONE,    /* nothing: its devices do the same work */
    AP_USE_DATA,    /* the batch, or another dimension of the activation alone */
    AP_USE_CONTEXT, /* the sequence */
    AP_USE_TENSOR,  /* the weight (its columns, its rows), or the heads of attention */
    AP_USE_EXPERT,  /* the experts: a batch dimension of weight and activation */
    AP_N_AXIS_USES
};

/* How many devices of a stage, or of a plan without stages, do what. */
struct ap_degrees {
    /*
     * devices by use, whose product is the number of devices; idle: devices without a use
     */
    int64_t tensor, data, context, idle;
    /* for experts: devices that have different experts, and devices that split each
       expert; 0: the model has no experts */
    int64_t expert, expert_tensor;
    /*
     * 0: weights, gradients and states whole. 1: states and update sharded. 2: gradients,
     * too: they are reduce-scattered when they are computed. 3: weights, too: they are
     * gathered for each pass. Gradients that microbatches accumulate whole, or that are
     * all-reduced, make it 1. Weights that are sharded between steps and gathered once
     * per step are not a separate stage (FSDP's SHARD_GRAD_OP, "no reshard after
     * forward").
     */
    int64_t zero;
    int64_t shard; /* devices that ZeRO shards over */
    bool sequence; /* activations between tensor parallel regions are split along the
                      sequence */
    /* of context, the devices that exchange the tokens of an attention for its heads:
       each has some heads of all their tokens; 0 and 1: none */
    int64_t exchange;
    bool ring; /* for a plan to be made: keys and values go round the outermost axis that
                  splits the sequence; else they are gathered */
};

/* What each axis of a mesh is used for, and the degrees that this makes. */
struct ap_axis_uses {
    enum ap_axis_split use[AP_MAX_AXES];        /* by contractions without experts */
    enum ap_axis_split expert_use[AP_MAX_AXES]; /* by those of experts */
    /* ZeRO's stage on the axis; where use is tensor that of experts alone, which may have
       other data there */
    uint8_t zero[AP_MAX_AXES];
    bool exchange[AP_MAX_AXES]; /* attentions split their heads where use is context */
    struct ap_degrees degrees;
};

struct ap_plan_degrees {
    struct ap_axis_uses all;
    double flops;    /* of the forward contractions */
    double agreeing; /* the part of flops in contractions that use all axes as all says */
    struct ap_layers layers;
    struct ap_axis_uses *layer; /* [layer]; ZeRO of its own weights */
};

/* microbatches: of the step, if the plan's mesh does not have them (as for a stage).
 * Linear in operand slots times axes. */
void ap_degrees_find(struct ap_arena *arena, const struct ap_plan *plan,
                     int64_t microbatches, struct ap_plan_degrees *out);

/* The sequence length of the inputs: the second dimension of integers [batch, seq], or of
 * numbers [batch, seq, features]; 0 if no input has one. */
int64_t ap_sequence_length(struct ap_arena *arena, const struct ap_graph *g,
                           const struct ap_nests *nests);

/* Whether both give the same degrees; experts are not compared if one of the two has
 * none. */
bool ap_degrees_equal(const struct ap_degrees *a, const struct ap_degrees *b);

/* "TP 8 with sequence parallelism · DP 4 · ZeRO-1"; "1 device". */
void ap_degrees_print(const struct ap_degrees *d, struct ap_buf *out);
/* Runs of layers with equal degrees: "layers 0-3 TP 4 · DP 2, layers 4-7 DP 8"; nothing
 * if all layers are equal. Layers are counted from 0 in the order in which they run. */
void ap_degrees_print_layers(const struct ap_plan_degrees *d, struct ap_buf *out);

/* Fills the devices by use, shard and zero from the uses (those by experts if the model
 * has experts) on a mesh. */
void ap_degrees_count(struct ap_axis_uses *u, const struct ap_mesh *mesh, bool experts);

#endif
