/*
 * The price of a plan of a pipeline stage's graph, per microbatch and once per step:
 * ap-shard --serve answers with it, ap-stage chooses among such prices, and ap-cost
 * simulates them.
 */
#ifndef AP_STAGE_COST_H
#define AP_STAGE_COST_H

#include "plan/plan.h"
#include "pipeline/schedule.h"
#include "graph/subgraph.h"

/*
 * Actions that the trainer of a plan takes by itself, bits of ap_stages.trainer. The
 * programs of a plan scatter, have low sums and keep what they gathered, too; of the
 * others they do none.
 */
enum ap_trainer_trait {
    /* sends gradients and gathered weights together, with one latency for each kind and
       set of devices: buckets, flat parameters */
    AP_TRAINER_PACKS = 1,
    /* sums gradients of 16 bits over microbatches in their own type, not in f32 */
    AP_TRAINER_LOW_SUMS = 2,
    /* reduces and scatters gradients, and gathers weights for each pass, with each
       microbatch: ZeRO-2, ZeRO-3 */
    AP_TRAINER_SCATTERS = 4,
    /* keeps activations that were gathered for a product until the backward pass */
    AP_TRAINER_KEEPS_GATHERED = 8,
    /* keeps gradients of 16 bits in addition to their sums in f32: DeepSpeed's bf16
     * optimizer */
    AP_TRAINER_KEEPS_GRADIENTS = 16,
    /* stages send between passes, and wait: !overlap_send of struct ap_sim */
    AP_TRAINER_WAITS = 32,
    /* updated weights are not gathered: each device broadcasts its own, in turn */
    AP_TRAINER_BROADCASTS = 64,
    /* sends the tokens of experts beside a pass of another microbatch: a backward runs
       beside the forward before it on its device (combined 1F1B) */
    AP_TRAINER_EP_OVERLAP = 128,
    /* sends what tensor parallelism gathers or scatters beside the products that read or
       make it, part by part (async TP) */
    AP_TRAINER_TP_OVERLAP = 256,
    /* sends gradients of activations that tensor parallelism sums beside the products for
       weights' gradients of the same layer, which do not need them */
    AP_TRAINER_WGRAD_OVERLAP = 512,
    /* the host updates offloaded parameters: gradients in f32 go out, what passes read
       comes in */
    AP_TRAINER_HOST_UPDATE = 1024,
    /* runs only that part of a layer again which its backward needs (PyTorch) */
    AP_TRAINER_STOPS_EARLY = 2048
};
#define AP_N_TRAINER 12
extern const char *const ap_trainer_names[AP_N_TRAINER]; /* by bit */
/* Puts the member "trainer": ",\"trainer\":[...]"; nothing if it is 0. */
void ap_trainer_put(unsigned trainer, struct ap_buf *out);
/* Reads the member; refuses actions that are impossible under the schedule. */
int ap_trainer_read(const json_t *o, const struct ap_at *at, enum ap_schedule schedule,
                    unsigned *trainer, struct ap_err *err);

/* The placement of the whole graph on the microbatch axis (by the sweep of `data`). */
struct ap_stage_microbatch {
    int64_t n;
    bool *split; /* [node of the whole graph]: its value is one microbatch's */
    bool *runs;  /* [same]: its operator works on one microbatch's share */
    int8_t *dim; /* [same]: dimension that is split, -1 for none */
    /* a node with a share per microbatch, or a sum over microbatches, that a forward or
       backward node needs for the whole batch, so that the microbatches are not
       equivalent to one batch (batch norm); values that depend on inputs alone are
       exempt, since they are computed before the first microbatch. -1: none */
    int whole;
    /* [same]: nodes like `whole`, and values made of them before the update: with
       statistics per microbatch they are computed with each microbatch, in full size.
       NULL: none */
    bool *each;
    /* [same]: block of the section "blocks": a stage recomputes block by block; NULL: it
       recomputes all at once. Set by the caller. */
    const int *block_of;
    /* [same]: on the host while nothing reads it (ap_stages_host); NULL: no value is. Set
       by the caller, as the next two are */
    const bool *host;
    bool overlap;     /* as in struct ap_stages */
    unsigned trainer; /* likewise */
    bool even;        /* numbers above 1 that divide n have the same placements */
};
/* -1 if the batch has fewer than n rows. */
int ap_stage_microbatch_axis(struct ap_arena *arena, const struct ap_graph *g,
                             const struct ap_nests *nests, int64_t n,
                             struct ap_stage_microbatch *micro, struct ap_err *err);
/* The same for another number of microbatches, with the arrays of t; false if the
 * placement may differ. */
bool ap_stage_microbatch_like(const struct ap_stage_microbatch *t, int64_t n,
                              struct ap_stage_microbatch *micro);

/*
 * Microbatches must be identical, and each device must have rows of each microbatch: an
 * input with the batch must have equal numbers of rows on all devices that split them.
 * Returns the first input for which this does not hold: its node of sub->graph, its rows,
 * and the devices that split them. -1 if there is none.
 */
int ap_stage_few_rows(const struct ap_subgraph *sub,
                      const struct ap_stage_microbatch *micro, const struct ap_plan *plan,
                      int64_t *rows, int64_t *devices);

struct ap_stage_point {
    const char *algorithm;
    double forward_sec, backward_sec; /* per microbatch; recompute is in backward_sec */
    double sync_sec, update_sec;      /* once per step: sums of gradients, and the rest */
    int64_t stage_bytes; /* per device, independent of microbatches in flight */
    /* the part that is needed only while a pass runs, an operator's working set and
       recomputed values: a device needs it for one of its stages at a time */
    int64_t passing_bytes;
    int64_t microbatch_bytes; /* per device and microbatch in flight */
    /* of a forward and a backward: the tokens of experts that are sent beside others */
    double exchange_sec[2];
    bool recompute;
    /* where backward passes are split: the part of backward_sec that makes gradients of
       weights, and bytes that this needs of the rest, per microbatch that waits for it */
    double weights_sec;
    int64_t pending_bytes;
    /* on the host: all the time, and per microbatch in flight; and seconds of the link to
       it in a forward, in a backward, and once per step, beside which these work, and the
       part of these that waits for the host */
    int64_t host_bytes, host_flight_bytes;
    double link_sec[3], host_wait_sec[3];
    double slack_sec; /* the plan may take longer by this, since the price is a sum of
                         blocks */
    int tag;          /* the caller's own */
};

/*
 * The figures of which the two points below are made: sums over operators, except for
 * working_bytes (the largest of an operator) and recomputed_bytes (of a block).
 */
struct ap_stage_measure {
    double forward_sec, backward_sec, sync_sec, update_sec;
    double weights_sec, pending_bytes; /* as of a point */
    double fixed_bytes, working_bytes; /* all the time; while an operator runs */
    /* with one microbatch, else 0: the part of fixed_bytes that is gradients; and copies
       of weights from the forward to the backward pass. The lifetimes of these, and of
       what is kept, end when those of gradients begin */
    double gradient_bytes, copied_bytes;
    double kept_bytes, input_bytes; /* per microbatch: for the backward pass, and values
                                       that the stage and its blocks read from others */
    double recomputed_bytes;        /* recomputed at one time: the largest block's */
    /* on the host: all the time, and per microbatch; and seconds of the link to it, in
       which a forward brings the latter out and a backward in, and a step brings the
       former out, in, and both beside each other */
    double host_bytes, host_flight_bytes;
    double pass_link_sec[2], step_link_sec[4]; /* [3]: in which the host updates */
    /* the part for scalars of forward, backward, sync and update */
    double scalar_sec[4];
    double slack_sec;       /* see struct ap_stage_point */
    double host_sec[2];     /* to launch a forward and a backward of a microbatch */
    double gather_sec[2];   /* of these, for weights gathered during the pass */
    double gather_share;    /* of the device, that this takes from what is beside it */
    double exchange_sec[2]; /* as in struct ap_stage_point */
};
/* ---- stage_known.c: a group under a choice ---- */

struct ap_stage_group {
    int like;
    struct ap_choice_vec choice;
    double sec, flops;
    enum ap_dtype dtype;
    struct ap_rounds rounds;
    uint64_t masked; /* of ap_nest_masked */
    /* of operands, then of results: */
    const struct ap_layout **layout;
    double *bytes, *moved; /* in this layout, and moved (ap_nest_moved) */
};
/*
 * The groups under choices that were computed, one for identical groups, on one mesh at
 * any place of a cluster. Starts zeroed; the caller frees the arena.
 */
struct ap_stage_known {
    struct ap_arena arena;
    struct ap_stage_group **slot;    /* hash tables, arena */
    const struct ap_layout **layout; /* by content */
    size_t mask, layout_mask;
    int n, n_layouts;
};
/*
 * All groups of a plan, arena. like[group]: equal for groups with equal nests and values;
 * -1: the group equals no other; NULL: no groups are equal.
 */
const struct ap_stage_group *const *
ap_stage_know(struct ap_arena *arena, struct ap_stage_known *known, const int *like,
              const struct ap_plan *plan, const struct ap_cost *cost);
/* Their layouts, arena. */
struct ap_plan_layouts ap_stage_layouts(struct ap_arena *arena,
                                        const struct ap_plan *plan,
                                        const struct ap_stage_group *const *known);

/* A stage's graph under a plan, which is priced. */
struct ap_stage_plan {
    const struct ap_subgraph *sub;
    const struct ap_stage_microbatch *micro;
    const struct ap_plan *plan;
    const struct ap_conversions *conv;
    const struct ap_cost *cost;
};

/* ---- stage_groups.c: seconds and bytes of operators ---- */

/* Facts that do not depend on the plan; starts with `arena` set, which holds them. */
struct ap_stage_facts {
    struct ap_arena *arena;
    struct ap_stage_fact *first;
};
/*
 * The measure of operators alone, which is the same at any place of a mesh on a cluster:
 * measure[n], for n microbatch axes at once, of a plan that was not made for one of them;
 * stage->micro and conv are not read. facts: of the part and its groups.
 */
void ap_stage_measure_all(struct ap_arena *scratch, const struct ap_stage_plan *stage,
                          struct ap_stage_facts *facts, int n,
                          const struct ap_stage_microbatch *const *micro,
                          const struct ap_stage_group *const *known,
                          struct ap_stage_measure *measure);

/* ---- stage_cost.c ---- */

/* Adds the seconds and bytes of conversions to these; stage->micro is not read; phase:
 * [group]. */
void ap_stage_measure_conversions(struct ap_arena *arena,
                                  const struct ap_stage_plan *stage,
                                  const enum ap_phase *phase, int n,
                                  const struct ap_stage_microbatch *const *micro,
                                  struct ap_stage_measure *measure);
/* Makes the two points below; algorithm and tag are copied from point[0]. */
void ap_stage_points(const struct ap_stage_measure *m, struct ap_stage_point point[2]);

/* Two points: one keeps activations, and one recomputes them block by block from the kept
 * values that each block reads from others. */
void ap_stage_price(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    struct ap_stage_point point[2]);

/*
 * One point: only the values of the marked nodes ([node of sub->graph], forward) are not
 * kept; the groups that make them run again before each backward, block by block, from
 * values that are kept for that.
 */
void ap_stage_price_recomputed(struct ap_arena *arena, const struct ap_stage_plan *stage,
                               const bool *recomputed, struct ap_stage_point *point);

/* Steps that run together: bytes of each kind on each set of axes. */
#define AP_N_PACKED 5
enum { AP_PACK_FORWARD, AP_PACK_BACKWARD, AP_PACK_SYNC, AP_PACK_UPDATE, AP_N_PACKS };
struct ap_stage_packs {
    double bytes[AP_N_PACKS][AP_N_PACKED][1 << AP_MAX_AXES];
};
/* Adds their seconds; seconds during the passes are also added to gather_sec. */
void ap_stage_add_packs(const struct ap_stage_microbatch *micro,
                        const struct ap_stage_packs *packs, const struct ap_cost *cost,
                        struct ap_stage_measure *measure);

/* A number of microbatches under which a plan is measured. */
struct ap_stage_case {
    const struct ap_stage_microbatch *micro;
    const bool *recomputed; /* marked as above; NULL: nothing is. recomputed_bytes then
                               counts the marked values */
    struct ap_stage_measure *measure;
    int block; /* what this one of micro's blocks has alone counts; -1: all */
    /* zero: gets what is sent together, which is then not in the measure
       (ap_stage_add_packs); NULL: it is in the measure */
    struct ap_stage_packs *packs;
};
/* The measures of a plan, n at once; stage->micro is not read, conv may be NULL. */
void ap_stage_measure_cases(struct ap_arena *arena, const struct ap_stage_plan *stage,
                            int n, const struct ap_stage_case *cases);

/* A candidate for recomputation: a forward value of a device and microbatch. */
struct ap_stage_value {
    double bytes; /* 0: a weight or a state, which is always in memory */
    bool kept;    /* the backward pass reads it */
    bool each;    /* one per microbatch, else one for all */
    bool may;   /* may be recomputed: with each microbatch, and read by one block only */
    int reader; /* block whose backward pass reads it; -1: several */
};
struct ap_stage_weights {
    double *group_sec; /* [group]: seconds to run a forward group again for a microbatch,
                          with its sends */
    struct ap_stage_value *value; /* [node of sub->graph], zero except for forward values
                                     that are read outside of their group */
    int n_blocks;
};
/* Linear in operands; memory in the arena. */
void ap_stage_weigh(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    struct ap_stage_weights *w);

/*
 * The seconds of a point's step by group and by conversion, for all microbatches;
 * recomputation is not counted.
 */
void ap_stage_spent(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    double *group_sec, double *conv_sec);

/* Bytes of the copy of a weight that passes read in its place, if it has fewer: then
 * ZeRO-1's devices hold a share of the weight, as of the states, and gather the copy once
 * per step. 0: passes read the weight. */
int64_t ap_stage_master_copy_bytes(const struct ap_graph *g, int weight);

/* [node] (arena): of the first state that a weight is updated by, bytes of this weight,
 * if passes read the weight itself; else 0. (stage_offload.c) */
const int64_t *ap_stage_updated_bytes(struct ap_arena *arena, const struct ap_graph *g);

/* The layout in which a value leaves its stage: its own layout with sums completed. */
struct ap_layout ap_stage_out_layout(const struct ap_plan *plan, int node);

/* Keeps the points that no other point equals or beats in every member, cheapest first;
 * returns their number. */
int ap_stage_front(struct ap_stage_point *points, int n);

#endif
