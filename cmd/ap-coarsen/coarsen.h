/* Private to ap-coarsen: the parameters and the result of every algorithm. */
#ifndef COARSEN_H
#define COARSEN_H

#include "graph/blocks.h"
#include "cost/cost.h"
#include "tool/tool.h"

/* The cost of a block in the layer clustering. */
enum coarsen_cluster_cost {
    COARSEN_COST_PAPER,    /* bytes that it receives, FLOPs bounded */
    COARSEN_COST_OPTIMIZED /* seconds: FLOPs / 30e12 + received bytes / 2e9 */
};

/* The quantity that the paper's cost keeps about equal among layers. */
enum coarsen_balance { COARSEN_FLOPS, COARSEN_COUNT, COARSEN_INPUT_MEMORY };

/* Where layers may begin. */
enum coarsen_cut { COARSEN_CUT_ANYWHERE, COARSEN_CUT_MODULES };

/* Options of alpa. */
struct coarsen_alpa {
    int cost;    /* enum coarsen_cluster_cost */
    int balance; /* enum coarsen_balance */
    double eps;  /* a layer has less than (1 + eps) of the average */
    int cut;     /* enum coarsen_cut */
};

/* Options of rannc. */
struct coarsen_rannc {
    int merge;            /* enum rannc_merge (rannc.h) */
    bool successors_only; /* merge with readers only, not with operands */
    bool no_uncoarsening, no_checkpointing;
    int64_t stop_blocks;      /* coarsening ends here, 0: at n_blocks */
    int64_t unprofiled_above; /* merge gain: pairs among more clusters than this have no
                                 price, 0: all have one */
    int64_t microbatches;     /* per step, >= 1 */
    double memory_margin;     /* share of the memory left free, [0, 1) */
    double optimizer_factor;  /* bytes of states per byte of weights; -INFINITY: the
                                 graph's */
};

/* Options of rhino. */
struct coarsen_rhino {
    int critical;  /* enum ap_critical_rule */
    int64_t level; /* of cones, 0 to AP_CONE_LEVEL_MAX */
};

struct coarsen_params {
    const struct ap_doc *doc;         /* what is read */
    int n_blocks;                     /* --blocks, 0: auto, the algorithm decides */
    int64_t memory_bytes;             /* --memory, else the cluster's; 0: no limit */
    const struct ap_cluster *cluster; /* NULL unless the row needs one */
    struct coarsen_alpa alpa;
    struct coarsen_rannc rannc;
    struct coarsen_rhino rhino;
};

struct coarsen_answer {
    int n;                 /* blocks */
    int *block_of;         /* [node], -1 at the start; at least the nodes of
                              ap_blocks_operators must get 0..n-1, the rest is carried */
    struct ap_blocks more; /* objective, bound, unit, critical nodes, cones: copied to the
                              section; n, block_of and algorithm are not read */
    const char *stats;     /* members for --stats (",\"x\":1"), "" for none */
};

/*
 * Puts the operators into blocks. Returns AP_OK, or the exit code with err filled:
 * AP_NO_SOLUTION with the nearest feasible value, AP_USAGE for an unsupported graph or
 * option. Prints nothing, reads no option.
 */
typedef enum ap_exit coarsen_fn(struct ap_arena *arena, const struct ap_graph *g,
                                const struct coarsen_params *params,
                                struct coarsen_answer *answer, struct ap_err *err);

coarsen_fn coarsen_alpa, coarsen_rannc, coarsen_rhino, coarsen_layers;

#endif
