/*
 * Private to ap-stage: a document's graph, blocks and cluster, as the problem that
 * planners solve (planner.h), and as data of the oracle.
 */
#ifndef INSTANCE_H
#define INSTANCE_H

#include "judge/planner.h"
#include "pipeline/stage_cost.h"
#include "serve/server.h"

/* The work of every plan in a block with each microbatch: the groups that lie in the
 * block as a whole. */
struct stage_work {
    int block, n; /* groups that are identical in all of this */
    enum ap_dtype dtype;
    enum ap_kernel kernel;
    bool launched; /* by another group of its kernel */
    enum ap_phase phase;
    double size, width; /* as struct ap_kernel_work has them, of the whole batch */
    double flops;       /* 0 where the kernel's traffic hides them */
    double split_bytes, whole_bytes; /* that it moves: cut with the batch, or whole for
                                        each microbatch */
};

struct stage_model {
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_blocks blocks;
    struct ap_cluster cluster;
    int n_kinds;               /* 1: all devices are of one kind, the cluster's */
    struct ap_cluster *kind;   /* [kind]: its hosts as a cluster */
    const int *twin;           /* of runs, as in the instance */
    struct ap_block_sum *sums; /* [block] */
    int64_t batch;             /* rows; 0: no input has a batch */
    bool training;             /* there is a backward phase or an update */
    struct ap_stage_microbatch
        micro; /* of the most microbatches; by stage_instance_make */
    int n_work;
    struct stage_work *work;
};

/* The ways in which the batch may be cut, and the memory of a device. */
struct stage_limits {
    int64_t microbatches; /* 0: auto */
    int64_t also;         /* auto: this number, too; 0: none */
    int64_t memory_bytes; /* of a device, 0: the device's */
    bool each;            /* reductions over the batch are computed per microbatch */
};

/* Reads the graph, or dies (exit 1). */
void stage_model_graph(struct ap_arena *arena, const struct ap_doc *doc,
                       struct stage_model *m);

/* Reads blocks and cluster, or dies (exit 1). cluster_path may be NULL: the document's.
 */
void stage_model_read(struct ap_arena *arena, const struct ap_doc *doc,
                      const char *cluster_path, struct stage_model *m);
/* Groups the graph and builds its nests. */
int stage_model_nests(struct ap_arena *arena, const struct ap_doc *doc,
                      struct stage_model *m, struct ap_err *err);

/*
 * Fills all of the instance but the oracle, and the model's work. 1: the batch cannot be
 * cut so, err says what could be asked instead.
 */
int stage_instance_make(struct ap_arena *arena, struct stage_model *m,
                        const struct stage_limits *limits, struct plan_instance *inst,
                        struct ap_err *err);

/*
 * [block + 1]: seconds that the operators of the blocks before take at least, per
 * microbatch, with that many devices of a kind at work and nothing sent. Arena.
 */
double *stage_least_sec(struct ap_arena *arena, const struct stage_model *m, int kind,
                        int64_t devices, int64_t microbatches);

#endif
