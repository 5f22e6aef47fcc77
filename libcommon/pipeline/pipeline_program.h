/*
 * A plan as programs: a program for each stage, the transfers between them, and the order
 * in which every device runs, sends and receives. ap-rewrite writes it (the document's
 * section "pipeline", or "program" for a plan of one stage that a sharding is), ap-exec
 * runs it.
 */
#ifndef AP_PIPELINE_PROGRAM_H
#define AP_PIPELINE_PROGRAM_H

#include "program/program.h"
#include "pipeline/pipeline_price.h"
#include "pipeline/reshard.h"
#include "pipeline/stages.h"

/*
 * The parts of a stage's program: groups before each_lo run once, before the first
 * microbatch; groups up to each_hi run for each microbatch, the forward pass up to
 * backward_lo, the backward pass up to weights_lo, and then the pass of weights (each_hi:
 * there is none); and groups from each_hi on run once, at the end.
 */
struct ap_pipeline_cuts {
    int each_lo, backward_lo, weights_lo, each_hi;
};
/* The pass of a group that runs for each microbatch. */
static inline enum ap_pass ap_pipeline_pass(const struct ap_pipeline_cuts *c, int group)
{
    return group < c->backward_lo  ? AP_PASS_FORWARD
           : group < c->weights_lo ? AP_PASS_BACKWARD
                                   : AP_PASS_WEIGHTS;
}
/* The first group of a pass, and the one after its last. */
static inline int ap_pipeline_pass_lo(const struct ap_pipeline_cuts *c, enum ap_pass pass)
{
    return pass == AP_PASS_FORWARD    ? c->each_lo
           : pass == AP_PASS_BACKWARD ? c->backward_lo
                                      : c->weights_lo;
}
static inline int ap_pipeline_pass_hi(const struct ap_pipeline_cuts *c, enum ap_pass pass)
{
    return pass == AP_PASS_FORWARD    ? c->backward_lo
           : pass == AP_PASS_BACKWARD ? c->weights_lo
                                      : c->each_hi;
}

struct ap_pipeline_stage {
    int lane;
    struct ap_program prog; /* of one device of the stage; its parameters may be shares */
    struct ap_pipeline_cuts cuts;
    /*
     * [parameter of prog]: its number in the whole graph, or -1 if another stage sends it
     */
    const int *param;
    /* [result of prog]: its number in the whole graph, or -1 if it is only sent */
    const int *result;
    /* Slots of the lane's arena for the values that a microbatch in flight keeps from its
       forward to its backward pass, and for others that fit in. Buffers of prog within
       slot_bytes from slot[0] on are the buffers of slot 0; in slot k they lie slot[k] -
       slot[0] further. Without slots every value has one place. */
    int n_slots;
    int64_t slot_bytes;
    const int64_t *slot; /* offsets in the arena */
    /* What a microbatch has on the host: so many bytes for each slot, from here on */
    int64_t host_at, host_slot_bytes;
    /* the graph from which prog was partitioned, without copies of recomputed operators:
       it has the parameters and results of prog, in whole shapes. Set by
       ap_pipeline_build; NULL if read */
    const struct ap_graph *graph;
};

/*
 * Result `result` of one stage becomes parameter `param` of another: a value of the graph
 * that the second stage reads, or the new value of a weight that both hold. It is one
 * message, or one per microbatch if the value is a share of the batch on at least one
 * side. ap_reshard_new (reshard.h) gives the sends of each device.
 */
struct ap_transfer {
    int from, to; /* stages */
    int result, param;
    struct ap_shape shape; /* of the whole value */
    struct ap_layout
        layout; /* on the sender's mesh; on the microbatch axis it is split or whole */
    int n_messages; /* 1, or the number of microbatches */
    enum ap_resharding how;
};

enum ap_pipeline_do { AP_PIPELINE_RUN, AP_PIPELINE_SEND, AP_PIPELINE_RECEIVE };

struct ap_pipeline_instr {
    enum ap_pipeline_do what;
    int stage;    /* run */
    int lo, hi;   /* run: groups lo .. hi - 1 of its program */
    int transfer; /* send, receive */
    int message;  /* of the transfer; run: the microbatch */
    int slot;     /* of the stage's values */
};

/* The devices that run the same instructions: those of a stage, or of the chunks that
 * share them. */
struct ap_lane {
    int n_ranks;
    const int *ranks; /* ranks of the job, in the order of the stages' meshes */
    int n;
    struct ap_pipeline_instr *instr;
    int64_t peak_bytes; /* size of the arena of all its stages, which contains their
                           buffers */
    int64_t host_bytes; /* of what is on the host, behind that */
};

struct ap_pipeline_program {
    bool alone; /* of ap_pipeline_of_program: the section is "program" */
    enum ap_schedule schedule;
    int microbatches;
    bool pairs;  /* as in struct ap_sim */
    bool each;   /* each microbatch has its own statistics (plan/microbatch.h) */
    int n_ranks; /* of all lanes; each rank is in one */
    int n_stages;
    struct ap_pipeline_stage *stage;
    int n_transfers;
    struct ap_transfer *transfer;
    int n_lanes;
    struct ap_lane *lane;
};

/*
 * The programs of a plan. g is grouped, nests and blocks are its own. form: of each
 * stage's program; without `split` attentions are as the plan is priced, their scores in
 * no memory. -1 where the plan cannot be run, with *unsupported where programs for such
 * plans do not exist yet; 1, with *unsupported, where its stages would wait for each
 * other for ever.
 */
int ap_pipeline_build(struct ap_arena *arena, const struct ap_staged_graph *of,
                      const struct ap_stages *stages, const struct ap_program_form *form,
                      struct ap_pipeline_program *program, bool *unsupported,
                      struct ap_err *err);

/*
 * Memory of a priced plan's devices as its programs have it: sets the peak_bytes of the
 * price and of its devices, and what they hold over time, to the bytes of the lanes'
 * arenas, which share, pack and copy what the price adds up, and to what the trainer
 * keeps besides. With a limit > 0 only peak_bytes of the price is of use, and of a plan
 * above the limit it is that of the first lane above it. The plan has stages. 1, with the
 * price as it was, where there are no programs for such plans.
 * Cost: that of ap_pipeline_build.
 */
int ap_pipeline_measure(const struct ap_staged_graph *of, const struct ap_stages *stages,
                        int64_t limit, struct ap_pipeline_price *price);

/*
 * Checks the instructions: stages, groups and messages exist, every message is sent once
 * and received once, and no lane waits for ever, given that sends never wait. Linear in
 * the instructions.
 */
int ap_pipeline_check(const struct ap_pipeline_program *program, const struct ap_at *at,
                      struct ap_err *err);

/*
 * Checks that lanes whose instructions are valid compute the step: every group runs the
 * right number of times and in order, after the values that it receives, and sums are
 * sent when they are complete. (pipeline_flow.c)
 */
int ap_pipeline_check_flow(const struct ap_pipeline_program *program,
                           const struct ap_at *at, struct ap_err *err);

/*
 * Checks that every operator and every message of such lanes finds its operands, of its
 * own microbatch, in the lane's arena. O(log n) per operand that a step reads.
 * (pipeline_memory.c)
 */
int ap_pipeline_check_memory(const struct ap_pipeline_program *program,
                             const struct ap_at *at, struct ap_err *err);

/*
 * A program that all ranks run, as the only stage of a pipeline, in one lane without
 * messages: it has the parameters and results of the whole graph. Shares prog's memory.
 */
void ap_pipeline_of_program(struct ap_arena *arena, const struct ap_program *prog,
                            struct ap_pipeline_program *out);

/* The section in which the programs are written: "pipeline" or "program". */
const char *ap_pipeline_section(const struct ap_pipeline_program *program);
/* The reader is of the section that at->key names. It checks all of it (ap_program_check,
 * ap_pipeline_check, its flow and its memory). */
void ap_pipeline_to_json(const struct ap_pipeline_program *program, struct ap_buf *out);
int ap_pipeline_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                          struct ap_pipeline_program *program, struct ap_err *err);

/*
 * The part of the program that the ranks of a lane need: their own stages, and the
 * parameters and results of other stages without operators (arena; shares the memory of
 * `of`). ap_pipeline_to_json writes it, and the lane reads it without checks, since the
 * whole program has been checked.
 */
struct ap_pipeline_program
ap_pipeline_part(struct ap_arena *arena, const struct ap_pipeline_program *of, int lane);
int ap_pipeline_part_from_json(struct ap_arena *arena, const json_t *o,
                               const struct ap_at *at,
                               struct ap_pipeline_program *program, struct ap_err *err);

/*
 * Of the section "pipeline" only what lanes run: the head, the lanes with their
 * instructions, and lane and cuts of each stage, without programs and unchecked. of: the
 * plan that the section must be of; NULL: any.
 */
int ap_pipeline_lists_from_json(struct ap_arena *arena, const json_t *o,
                                const struct ap_at *at, const struct ap_stages *of,
                                struct ap_pipeline_program *program, struct ap_err *err);

/* Whether a stage's parameter belongs to one microbatch at a time: it is its share of a
 * value, or its estimate. */
bool ap_pipeline_is_share(const struct ap_program *prog, int param);
/* Whether each message of a transfer is sent with its microbatch. */
bool ap_pipeline_sends_each(const struct ap_pipeline_program *program,
                            const struct ap_transfer *t);

/* Whether a stage's group runs once per microbatch. */
static inline bool ap_pipeline_is_each(const struct ap_pipeline_stage *st, int group)
{
    return group >= st->cuts.each_lo && group < st->cuts.each_hi;
}
/* Whether a stage's value belongs to one microbatch: it is made, or received, anew for
 * each microbatch. */
bool ap_pipeline_is_per_microbatch(const struct ap_pipeline_stage *st, int node);

/* The number of places of a stage's values, and slot k, if it has slots. */
static inline int ap_pipeline_n_slots(const struct ap_pipeline_stage *st)
{
    return st->n_slots > 0 ? st->n_slots : 1;
}
static inline struct ap_slot ap_pipeline_slot(const struct ap_pipeline_stage *st, int k)
{
    return st->n_slots > 0 ? (struct ap_slot){.at = st->slot[0],
                                              .bytes = st->slot_bytes,
                                              .shift = st->slot[k] - st->slot[0],
                                              .host_at = st->host_at,
                                              .host_bytes = st->host_slot_bytes,
                                              .host_shift = k * st->host_slot_bytes}
                           : (struct ap_slot){0};
}

/*
 * Places of a program's values in its arena: fills buffer, peak_bytes and alive_bytes.
 * Parameters live throughout; a value lives from its group to its last user's group;
 * values that only their own fused group reads get no buffer; a result that becomes a
 * parameter is copied into the parameter's buffer at the end of the step unless it can be
 * computed in place. With a limit > 0, no more work is done than it takes to see whether
 * the arena can be kept within it: peak_bytes is, if and only if it would be without.
 * (pipeline_buffers.c)
 */
void ap_plan_buffers(struct ap_arena *arena, struct ap_program *prog, int64_t limit);

/*
 * A plan on one mesh as a program in a form: partitioned, with groups that the device can
 * run, tiled, packed and placed. Fills conv. -1 where the plan is not legal; 1: it has no
 * such form. (pipeline_build.c)
 */
int ap_program_make(struct ap_arena *arena, const struct ap_plan *plan,
                    const struct ap_program_form *form, struct ap_conversions *conv,
                    struct ap_program *prog, struct ap_err *err);

/* ---- private: the order of instructions (pipeline_order.c) ---- */

/* Fills the lanes' instructions. 1 if a lane would wait for ever; -1 if there are too
 * many instructions. */
int ap_pipeline_order(struct ap_arena *arena, int chunks,
                      struct ap_pipeline_program *program, struct ap_err *err);

/* Buffers and slots of all lanes, by their instructions (pipeline_buffers.c); with a
 * limit > 0, up to the first lane that needs more. */
void ap_pipeline_buffers(struct ap_arena *arena, struct ap_pipeline_program *program,
                         int64_t limit);

#endif
