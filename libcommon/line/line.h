/*
 * A line: a parallel configuration as people type it, such as
 * "tp=8,pp=8,vpp=3,sp,recompute=selective,mbs=1". One structure for what is typed
 * (ap-stage --grid), what grids list, what is found of a plan, and what trainers are
 * told. line.c has the table of keys.
 */
#ifndef AP_LINE_H
#define AP_LINE_H

#include "pipeline/stages.h"
#include "plan/degrees.h"

/* What a stage runs again before each backward. */
enum ap_line_recompute {
    AP_LINE_RECOMPUTE_NONE,
    AP_LINE_RECOMPUTE_SELECTIVE, /* scores and softmax of attention */
    AP_LINE_RECOMPUTE_OPERATORS, /* all but attention and every other contraction */
    AP_LINE_RECOMPUTE_FULL,      /* each layer from what it reads */
    AP_N_LINE_RECOMPUTES
};

/* What Megatron-LM recomputes by name, and a line with "recompute=core_attn+mlp". */
enum ap_line_module {
    AP_LINE_CORE_ATTN,
    AP_LINE_LAYERNORM,      /* what norms give to the maps behind them */
    AP_LINE_MLP,            /* first maps of feed-forward parts and what follows them */
    AP_LINE_SHARED_EXPERTS, /* likewise, of shared experts */
    AP_LINE_MOE_ACT,        /* between the maps of experts */
    AP_N_LINE_MODULES
};
extern const char *const ap_line_modules[AP_N_LINE_MODULES];

/* What a line with "offload=optimizer+activations" keeps on the host, bits. */
enum ap_line_offload {
    AP_LINE_OFFLOAD_OPTIMIZER = 1,  /* states, and weights that passes read as copies */
    AP_LINE_OFFLOAD_ACTIVATIONS = 2 /* what layers keep for their backward pass */
};

#define AP_LINE_MOST_STAGES 1024
struct ap_line {
    /* of each stage; in a line that was typed, data 0 takes all devices that the others
       leave, with shard 0 ZeRO shards over all devices that have other data, and
       expert_tensor 0 is tensor (ap_line_complete) */
    struct ap_degrees degrees;
    int64_t pipeline, chunks; /* sets of devices, and stages on each */
    int n_layers;             /* 0: as many layers in each stage; else number of stages */
    const int *layers;        /* [stage]: in the order of the model (arena) */
    enum ap_schedule schedule;
    enum ap_line_recompute recompute;
    /* of full: only so many first layers of each stage, 0: all; so many layers together,
       from what the first of them reads, 0: one */
    int64_t recompute_first, recompute_group;
    unsigned recompute_modules; /* of selective: 1 << module; 0: core_attn alone */
    unsigned offload;           /* bits of enum ap_line_offload */
    int64_t offload_first; /* activations of so many first layers of each stage alone,
                              0: of all */
    int64_t micro_batch;   /* samples of a replica at a time; 0: no input has a batch */
    bool overlap;          /* as in struct ap_stages */
    unsigned trainer;      /* likewise, but for what follows from ZeRO's stage */
};

/* The line of one device that takes one sample at a time. */
extern const struct ap_line ap_line_least;

/* ---- line.c: as text ---- */

/*
 * Reads and checks a line; what it does not say is as in ap_line_least, but data, shard
 * and expert_tensor are 0, and the schedule is interleaved where there are chunks. -1:
 * err names the key.
 */
int ap_line_read(struct ap_arena *arena, const char *text, struct ap_line *line,
                 struct ap_err *err);
/* The line (arena) in one order of keys, without what is said by silence: ap_line_read
 * reads the same line back. */
const char *ap_line_text(struct ap_arena *arena, const struct ap_line *line);
/* Gives a line what silence says on so many devices: data, shard (1 without ZeRO) and
 * expert_tensor. -1: they cannot be divided so. */
int ap_line_complete(struct ap_line *line, int64_t devices, struct ap_err *err);

/* Cuts a step's batch, the model's layers (0: unknown) and experts (0: none) by a
 * complete line; writes the number of microbatches. -1: one of them cannot be cut so. */
int ap_line_divide(const struct ap_line *line, int64_t batch, int64_t layers,
                   int64_t experts, int64_t *microbatches, struct ap_err *err);

int ap_line_stages(const struct ap_line *line);
/* What the trainer does, with what it does at the line's stage of ZeRO. */
unsigned ap_line_trainer(const struct ap_line *line);

/* ---- line_words.c: of a plan ---- */

/* The line of a plan, and what else there is to say. */
struct ap_plan_line {
    struct ap_line line;     /* of the stages with most FLOPs, or of the one plan */
    int64_t batch;           /* of a step; 0: no input has one */
    int64_t microbatches;    /* line.micro_batch is rounded up: batch / these / data */
    int64_t sequence_length; /* of the inputs; 0: they have none */
    int64_t n_devices;       /* that run something */
    bool said;               /* the section says the line, and the plan agrees */
    bool stages_differ;      /* in degrees, devices or recomputation */
    /* where the cluster has several kinds of devices: how many of each run something, and
       "stage 0 on H100-80GB, stage 1 on A100-80GB" (arena); else NULL */
    int64_t kind_devices[AP_MAX_KINDS];
    const char *kinds;
};

/* The line of a sharding plan; d has the plan's degrees. */
void ap_line_of_plan(struct ap_arena *arena, const struct ap_plan *plan,
                     const struct ap_plan_degrees *d, struct ap_plan_line *out);
/* The line of stages has the degrees under which most FLOPs run; each[stage] (arena) are
 * the degrees of every stage. */
void ap_line_of_stages(struct ap_arena *arena, const struct ap_staged_graph *of,
                       const struct ap_stages *stages, struct ap_plan_line *out,
                       struct ap_plan_degrees **each);
/* In the words of the field: "TP 8 with sequence parallelism · PP 2 × VPP 3 · DP 4 ·
 * ZeRO-1 · micro-batch 1 · recompute selected". */
void ap_line_words(const struct ap_line *line, struct ap_buf *out);
/*
 * The first line of a report, without an end of line: ap_line_words', or where layers
 * or stages differ the mixture: "PP 4 · 8 microbatches; stages 0-1 TP 8, stages 2-3 DP
 * 8". each: one per stage; stages NULL: a plan without them, and each is one.
 */
void ap_plan_line_words(const struct ap_plan_line *p, const struct ap_plan_degrees *each,
                        const struct ap_stages *stages, struct ap_buf *out);
/* That line (arena) of a plan without stages, and of stages. */
const char *ap_plan_words(struct ap_arena *arena, const struct ap_plan *plan);
const char *ap_stages_words(struct ap_arena *arena, const struct ap_staged_graph *of,
                            const struct ap_stages *stages);

#endif
