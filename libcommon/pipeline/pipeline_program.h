/*
 * A pipelined plan as programs: a program for each stage, the transfers between them, and
 * the order in which every device runs, sends and receives. ap-rewrite writes it (the
 * document's section "pipeline"), ap-exec runs it.
 */
#ifndef AP_PIPELINE_PROGRAM_H
#define AP_PIPELINE_PROGRAM_H

#include "program/program.h"
#include "pipeline/stages.h"

/* Where a stage's program is cut: groups before each_lo run once, before the first
 * microbatch, then come those of each microbatch, forward up to backward_lo, and from
 * each_hi on what runs once, at the end. */
struct ap_pipeline_cuts {
    int each_lo, backward_lo, each_hi;
};

struct ap_pipeline_stage {
    int lane;
    struct ap_program prog; /* of one device of the stage; its parameters may be shares */
    struct ap_pipeline_cuts cuts;
    /* [parameter of prog]: its number in the whole graph, -1: another stage sends it
     */
    const int *param;
    /* [result of prog]: its number in the whole graph, -1: only sent */
    const int *result;
    /* what prog was partitioned from, without copies of what is recomputed: parameters
       and results are those of prog, in whole shapes. Of ap_pipeline_build; NULL when
       read */
    const struct ap_graph *graph;
};

/*
 * Result `result` of one stage becomes parameter `param` of another: a value of the graph
 * that the second stage reads, or the new value of a weight that both hold. One message,
 * or one per microbatch where the value is a share of the batch on at least one side.
 * Each device of the receiver gets its tile from devices of the sender that hold it;
 * those that hold the same tile take turns.
 */
struct ap_transfer {
    int from, to; /* stages */
    int result, param;
    struct ap_shape shape;   /* of the whole value */
    struct ap_layout layout; /* on the sender's mesh; over time it is split or whole */
    int n_messages;          /* 1, or as many as microbatches */
};

/* keep, restore: what a forward leaves to its backward while other microbatches run. */
enum ap_pipeline_do {
    AP_PIPELINE_RUN,
    AP_PIPELINE_SEND,
    AP_PIPELINE_RECEIVE,
    AP_PIPELINE_KEEP,
    AP_PIPELINE_RESTORE
};

struct ap_pipeline_instr {
    enum ap_pipeline_do what;
    int stage;    /* run, keep, restore */
    int slot;     /* keep, restore: place among those of the stage */
    int lo, hi;   /* run: groups lo .. hi - 1 of its program */
    int transfer; /* send, receive */
    int message;  /* of the transfer; run: the microbatch at hand */
};

/* Devices that run the same instructions: those of a stage, or of the chunks that share
 * them. */
struct ap_lane {
    int n_ranks;
    const int *ranks; /* of the job, in the order of the stages' meshes */
    int n;
    struct ap_pipeline_instr *instr;
};

struct ap_pipeline_program {
    enum ap_schedule schedule;
    int microbatches;
    int n_ranks; /* of all lanes, each in one */
    int n_stages;
    struct ap_pipeline_stage *stage;
    int n_transfers;
    struct ap_transfer *transfer;
    int n_lanes;
    struct ap_lane *lane;
};

/*
 * The programs of a plan. g is grouped, nests and blocks are its own. -1 where the
 * plan cannot be run, with *unsupported where programs for such plans do not exist yet.
 */
int ap_pipeline_build(struct ap_arena *arena, const struct ap_staged_graph *of,
                      const struct ap_stages *stages, struct ap_pipeline_program *program,
                      bool *unsupported, struct ap_err *err);

/*
 * Whether the instructions are valid: stages, groups and messages exist, every message is
 * sent once and received once, and no lane waits for ever, given that sends never wait.
 * Linear in the instructions.
 */
int ap_pipeline_check(const struct ap_pipeline_program *program, const struct ap_at *at,
                      struct ap_err *err);

/*
 * Whether lanes whose instructions are valid compute what the schedule's would: every
 * group runs as often as it should and in order, with the values of its own microbatch in
 * memory, after what it receives and before it is sent. (pipeline_flow.c)
 */
int ap_pipeline_check_flow(const struct ap_pipeline_program *program,
                           const struct ap_at *at, struct ap_err *err);

/* Section "pipeline". The reader checks all of it (ap_program_check and its memory,
 * ap_pipeline_check, ap_pipeline_check_flow). */
void ap_pipeline_to_json(const struct ap_pipeline_program *program, struct ap_buf *out);
int ap_pipeline_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                          struct ap_pipeline_program *program, struct ap_err *err);

/* Whether a stage's parameter holds one microbatch's share at a time. */
bool ap_pipeline_is_share(const struct ap_program *prog, int param);

/* ---- private: the order of instructions (pipeline_order.c) ---- */

/* Fills the lanes' instructions. -1 when some lane would wait for ever. */
int ap_pipeline_order(struct ap_arena *arena, int chunks,
                      struct ap_pipeline_program *program, struct ap_err *err);

#endif
