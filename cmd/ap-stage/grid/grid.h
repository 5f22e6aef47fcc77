/*
 * Private to ap-stage: a plan as its trainer's users write it, in one line:
 * "tp=8,pp=8,vpp=3,dp=1,sp,recompute=selective,mbs=1". It is the plan itself: nothing is
 * searched.
 */
#ifndef GRID_H
#define GRID_H

#include "oracle/instance.h"
#include "result.h"

/* The operators that a stage runs again before each backward pass. */
enum grid_recompute {
    GRID_RECOMPUTE_NONE,
    GRID_RECOMPUTE_SELECTIVE, /* scores and softmax of attention */
    GRID_RECOMPUTE_OPERATORS, /* all but attention and every other contraction */
    GRID_RECOMPUTE_FULL,      /* each layer, from its inputs */
    N_GRID_RECOMPUTES
};

#define GRID_MOST_STAGES 1024
struct grid_line {
    const char *text;
    int64_t tensor, pipeline, chunks, data, context,
        expert;          /* data 0: the remaining devices */
    int64_t shard;       /* devices that ZeRO shards over, the nearest; 0: all */
    int64_t micro_batch; /* samples of a replica at a time */
    int zero;
    bool sequence;    /* activations between tensor parallel regions are split along it */
    bool ring;        /* keys and values go round the devices that share a sequence */
    bool overlap;     /* as in struct ap_stages */
    unsigned trainer; /* likewise */
    enum grid_recompute recompute;
    enum ap_schedule schedule;
    int n_layers;                 /* 0: as many in each stage */
    int layers[GRID_MOST_STAGES]; /* of each stage, in the order of the model */
};

/* The actions of a trainer with each microbatch at a stage of ZeRO: bits of enum
 * ap_trainer. */
unsigned grid_scatters(int zero);

/* -1: err names the key. */
int grid_parse(const char *text, struct grid_line *line, struct ap_err *err);

/*
 * The plan of the line on the model's cluster, priced. A stage's devices follow each
 * other, tensor parallelism innermost, then context, experts and data. -1 if the model or
 * the cluster has no such plan; err has the reason.
 */
int grid_plan(struct ap_arena *arena, const struct stage_model *m,
              const struct grid_line *line, struct ap_stages *stages,
              struct stage_result *out, struct ap_err *err);

#endif
