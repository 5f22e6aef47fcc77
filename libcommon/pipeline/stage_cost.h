/*
 * What a plan of a pipeline stage's graph costs per microbatch and once per step: what
 * ap-shard --serve answers, ap-stage chooses among, and ap-cost simulates.
 */
#ifndef AP_STAGE_COST_H
#define AP_STAGE_COST_H

#include "plan/plan.h"
#include "pipeline/schedule.h"
#include "graph/subgraph.h"

/*
 * What the trainer that runs a plan does by itself, bits of ap_stages.trainer; 0: what
 * ap-exec does, which is none of it.
 */
enum ap_trainer {
    /* sends what goes to and from weights together, a latency for each kind and set of
       devices: buckets, flat parameters */
    AP_TRAINER_PACKS = 1,
    /* sums gradients of 16 bits over microbatches in their own type, not in f32 */
    AP_TRAINER_LOW_SUMS = 2,
    /* reduces and scatters gradients with each microbatch, and gathers with each what is
       gathered for a pass: ZeRO-2, ZeRO-3 */
    AP_TRAINER_SCATTERS = 4,
    /* keeps activations that were gathered for a product up to the backward pass */
    AP_TRAINER_KEEPS_GATHERED = 8,
    /* keeps gradients of 16 bits beside their sums in f32: DeepSpeed's bf16 optimizer */
    AP_TRAINER_KEEPS_GRADIENTS = 16,
    /* stages send between passes, and wait: !overlap_send of struct ap_sim */
    AP_TRAINER_WAITS = 32,
    /* updated weights are not gathered: each device broadcasts its own, in turn */
    AP_TRAINER_BROADCASTS = 64
};
#define AP_N_TRAINER 7
extern const char *const ap_trainer_names[AP_N_TRAINER]; /* by bit */
/* The member "trainer": ",\"trainer\":[...]", nothing where it is 0. */
void ap_trainer_put(unsigned trainer, struct ap_buf *out);
/* Refuses what a trainer cannot do under the schedule. */
int ap_trainer_read(const json_t *o, const struct ap_at *at, enum ap_schedule schedule,
                    unsigned *trainer, struct ap_err *err);

/* How the whole graph lies on the microbatch axis (by the sweep of `data`).
 */
struct ap_stage_microbatch {
    int64_t n;
    bool *split; /* [node of the whole graph]: its value is one microbatch's */
    bool *runs;  /* [same]: its operator works on one microbatch's share */
    int8_t *dim; /* [same]: dimension that is split, -1 for none */
    /* a value with a share per microbatch, or a sum over them, that a forward or backward
       node needs of the whole batch: its microbatches are no longer those of one batch
       (batch norm); what is made of inputs alone may be, before the first. -1: none */
    int whole;
    /* [same]: the likes of `whole` and what is made of them before the update: if they
       are taken of each microbatch, they are made with each, in full size. NULL: none */
    bool *each;
    /* [same]: block, of the section "blocks", where a stage that recomputes starts again;
       NULL: it does so in one go. Left to the caller. */
    const int *block_of;
    bool overlap;     /* as in struct ap_stages; left to the caller, too */
    unsigned trainer; /* likewise */
    bool even;        /* numbers above 1 that divide n lie in the same way */
};
/* -1 when the batch does not have as many rows. */
int ap_stage_microbatch_axis(struct ap_arena *arena, const struct ap_graph *g,
                             const struct ap_nests *nests, int64_t n,
                             struct ap_stage_microbatch *micro, struct ap_err *err);
/* The same for another number of microbatches, with the arrays of t; false: it may be
 * another. */
bool ap_stage_microbatch_like(const struct ap_stage_microbatch *t, int64_t n,
                              struct ap_stage_microbatch *micro);

/*
 * Microbatches are identical, and each device has rows of each: an input that carries the
 * batch has as many on every device that splits them. Else the first that has not: its
 * node of sub->graph, its rows, and the devices that split them. -1: all have.
 */
int ap_stage_few_rows(const struct ap_subgraph *sub,
                      const struct ap_stage_microbatch *micro, const struct ap_plan *plan,
                      int64_t *rows, int64_t *devices);

struct ap_stage_point {
    const char *algorithm;
    double forward_sec, backward_sec; /* per microbatch; recompute is in backward_sec */
    double sync_sec, update_sec;      /* once per step: sums of gradients; all the rest */
    int64_t stage_bytes;              /* per device, whatever is in flight */
    /* of these, what is there only while a pass runs, an operator's working set and what
       is recomputed: a device has it of one of its stages at a time */
    int64_t passing_bytes;
    int64_t microbatch_bytes; /* per device and microbatch in flight */
    bool recompute;
    double slack_sec; /* the plan itself may take so much longer: it is a sum of blocks */
    int tag;          /* the caller's own */
};

/*
 * What the two points below are made of: sums over the operators, but for working_bytes
 * (the largest of any) and recomputed_bytes (of any block).
 */
struct ap_stage_measure {
    double forward_sec, backward_sec, sync_sec, update_sec;
    double fixed_bytes, working_bytes; /* there all the time; while an operator runs */
    /* of fixed, gradients that the update reads; and, with one microbatch, copies of
       weights from its forward to its backward, which end as gradients begin */
    double gradient_bytes, copied_bytes;
    double kept_bytes, input_bytes; /* per microbatch: for the backward pass, and what
                                       the stage and its blocks read of others */
    double recomputed_bytes;        /* recomputed at once: the largest block's */
    /* of forward, backward, sync and update: what scalars take */
    double scalar_sec[4];
    double slack_sec;     /* see struct ap_stage_point */
    double host_sec[2];   /* to launch a forward and a backward of a microbatch */
    double gather_sec[2]; /* of these, weights gathered beside the pass */
};
/* ---- stage_known.c: a group under a choice ---- */

struct ap_stage_group {
    int like;
    struct ap_choice_vec choice;
    double sec, flops;
    enum ap_dtype dtype;
    struct ap_rounds rounds;
    uint64_t masked; /* of ap_nest_masked */
    /* of operands, then of results */
    const struct ap_layout **layout;
    double *bytes, *moved; /* as it lies, and of it (ap_nest_moved) */
};
/*
 * Those that were met, of groups that are identical: on one mesh, wherever it lies on a
 * cluster. Starts zeroed; the caller frees the arena.
 */
struct ap_stage_known {
    struct ap_arena arena;
    struct ap_stage_group **slot;    /* hash tables, arena */
    const struct ap_layout **layout; /* by content */
    size_t mask, layout_mask;
    int n, n_layouts;
};
/*
 * All groups of a plan, arena. like[group]: equal for groups with equal nests and values,
 * -1: it is like none; NULL: none is.
 */
const struct ap_stage_group *const *
ap_stage_know(struct ap_arena *arena, struct ap_stage_known *known, const int *like,
              const struct ap_plan *plan, const struct ap_cost *cost);
/* Their layouts, arena. */
struct ap_plan_layouts ap_stage_layouts(struct ap_arena *arena,
                                        const struct ap_plan *plan,
                                        const struct ap_stage_group *const *known);

/* A stage's graph under a plan: what is priced. */
struct ap_stage_plan {
    const struct ap_subgraph *sub;
    const struct ap_stage_microbatch *micro;
    const struct ap_plan *plan;
    const struct ap_conversions *conv;
    const struct ap_cost *cost;
};

/* ---- stage_groups.c: what operators take ---- */

/* What does not depend on the plan; starts with the arena in which it stays. */
struct ap_stage_facts {
    struct ap_arena *arena;
    struct ap_stage_fact *first;
};
/*
 * What operators alone take, the same wherever a mesh lies on a cluster: measure[n], for
 * n microbatch axes at once, of a plan that was not made for one of them; stage->micro
 * and conv are not looked at. facts: of the part and its groups.
 */
void ap_stage_measure_all(struct ap_arena *scratch, const struct ap_stage_plan *stage,
                          struct ap_stage_facts *facts, int n,
                          const struct ap_stage_microbatch *const *micro,
                          const struct ap_stage_group *const *known,
                          struct ap_stage_measure *measure);

/* ---- stage_cost.c ---- */

/* Adds to those what conversions take; stage->micro is not looked at; phase: [group]. */
void ap_stage_measure_conversions(struct ap_arena *arena,
                                  const struct ap_stage_plan *stage,
                                  const enum ap_phase *phase, int n,
                                  const struct ap_stage_microbatch *const *micro,
                                  struct ap_stage_measure *measure);
/* The two points below; algorithm and tag are those of point[0]. */
void ap_stage_points(const struct ap_stage_measure *m, struct ap_stage_point point[2]);

/* Two points: activations kept, and recomputed block by block from what each block reads
 * of others, which is kept. */
void ap_stage_price(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    struct ap_stage_point point[2]);

/*
 * One point: only the values of the marked nodes ([node of sub->graph], forward) are not
 * kept; the groups that make them run again before each backward, block by block, from
 * values that are kept for that.
 */
void ap_stage_price_recomputed(struct ap_arena *arena, const struct ap_stage_plan *stage,
                               const bool *recomputed, struct ap_stage_point *point);

/* What the points are made of, of a plan that recomputes the values marked as above;
 * NULL: none. recomputed_bytes are then those of the values marked. */
void ap_stage_measure_plan(struct ap_arena *arena, const struct ap_stage_plan *stage,
                           const bool *recomputed, struct ap_stage_measure *measure);

/* What there is to choose from: a forward value of a device and microbatch. */
struct ap_stage_value {
    double bytes; /* 0: a weight or a state, which is there all the time */
    bool kept;    /* the backward pass reads it */
    bool each;    /* one per microbatch, else one for all */
    bool may;   /* may be recomputed: with each microbatch, and read by one block only */
    int reader; /* block whose backward has it when it is recomputed; -1: several */
};
struct ap_stage_weights {
    double *group_sec; /* [group]: to run it again for a microbatch, with what is sent for
                          it; forward groups */
    struct ap_stage_value *value; /* [node of sub->graph], zero but for forward values
                                     that are read outside of their group */
    int n_blocks;
};
/* Linear in operands; memory in the arena. */
void ap_stage_weigh(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    struct ap_stage_weights *w);

/*
 * Where a point's seconds come from: those of a step by group and by conversion, once for
 * each microbatch or once in all; what is recomputed not counted.
 */
void ap_stage_spent(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    double *group_sec, double *conv_sec);

/* Layout in which a value leaves its stage: as it lies, sums completed. */
struct ap_layout ap_stage_out_layout(const struct ap_plan *plan, int node);

/* Keeps the points that no other one equals or beats in everything, cheapest first;
 * returns how many. */
int ap_stage_front(struct ap_stage_point *points, int n);

#endif
