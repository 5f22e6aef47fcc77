/*
 * Blocks: an ordered partition of the graph's nodes (the document's section "blocks").
 * ap-stage makes stages of blocks, and Rhino's search visits them in order. A block is
 * made of forward nodes; the backward and update nodes, the parameters and the states
 * that belong to them go with it.
 */
#ifndef AP_BLOCKS_H
#define AP_BLOCKS_H

#include "graph/graph.h"

struct ap_blocks {
    const char *algorithm;
    int n;               /* blocks, in forward order */
    const int *block_of; /* [node], 0..n-1: every node is in a block */
    /* nodes that are not where ap_blocks_carry places them, given the operators; the
       first of them, and where that is. Stages may then wait for each other for ever. */
    int n_moved, moved, moved_from;
    /* the quantity that the algorithm minimized, in objective_unit ("bytes", "seconds",
       "flops"), and its proven lower bound */
    double objective, bound;
    const char *objective_unit; /* NULL: no objective */
    /* Rhino: the critical nodes of the forward phase in order, and the cones (libcommon
       critical.h); 0 and NULL for others */
    int n_critical;
    const int *critical;
    int n_cones;
    const int *cone_of;   /* [node], -1 for none; NULL if there are no cones */
    const int *cone_root; /* [cone] */
};

/* The parameters that a node's value depends on, by data flow. */
enum ap_origin {
    AP_FROM_CONSTANTS, /* constants, iotas, parameters of role constant */
    AP_FROM_WEIGHTS,   /* weights or states, and no input */
    AP_FROM_INPUTS     /* inputs of the step; a coarsener places these nodes */
};
/*
 * [node] enum ap_origin, arena. In a graph whose forward pass reads no input, weights
 * count as inputs. Linear.
 */
uint8_t *ap_blocks_origins(struct ap_arena *arena, const struct ap_graph *g);
/*
 * The operators that a coarsener places: forward nodes that a forward result needs, that
 * depend on inputs and are not leaves, in the program's order (ascending ids), in the
 * arena. Returns their number. Forward nodes that only the backward pass needs (a traced
 * program has them anywhere) are placed by ap_blocks_carry.
 */
int ap_blocks_operators(struct ap_arena *arena, const struct ap_graph *g, int **ids);

/* The sums over a block. */
struct ap_block_sum {
    int64_t nodes[AP_N_PHASES];
    double flops[AP_N_PHASES];   /* of dot and convolution */
    int64_t weight_bytes;        /* parameters of role weight */
    int64_t state_bytes;         /* parameters of role state */
    int64_t in_bytes, out_bytes; /* forward values read from, and read by, the forward
                                    nodes of other blocks, each once; only values that
                                    depend on inputs count, and no parameters */
    int64_t kept_bytes; /* forward values that its backward nodes read, each once */
};

/*
 * Given block_of for at least the nodes of ap_blocks_operators (-1 for the others),
 * places the other nodes. A parameter, or a forward node made of weights and constants
 * alone, goes to the first block that reads it; a forward node that only backward nodes
 * need, to the block of its last operand. A backward node goes to the block of the
 * forward values and weights that it reads, in mirrored order, or, if it is made of
 * weights and constants alone, to the block of its first reader. An update node goes to
 * the block of its weight, or to the block of everything that it reads; nodes that no
 * block owns (global norms, step counters) go to the last block. Recomputed nodes are
 * backward nodes: if they span blocks, they are in the last of these blocks. block_of is
 * completed in place; n is the number of blocks. Linear.
 */
void ap_blocks_carry(struct ap_arena *arena, const struct ap_graph *g, int n,
                     int *block_of);

/*
 * Checks that phases follow each other along the edges: no forward node reads a backward
 * node, and no forward or backward node reads an update node. Blocks are not defined for
 * a graph in which this does not hold. -1 with "/graph/nodes/5 (add.5): ...".
 */
int ap_blocks_check_phases(const struct ap_graph *g, struct ap_err *err);
/*
 * Checks that every node has a block, no block is empty of operators, forward edges never
 * go to an earlier block and backward edges never to a later one (parameters, and nodes
 * that do not depend on inputs, are exempt), in linear time. Blocks so ordered are
 * convex. -1 with "/blocks: node 17 (dot.5) of block 2 reads ...".
 */
int ap_blocks_check(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_blocks *b, struct ap_err *err);

/* One per block, arena. */
struct ap_block_sum *ap_blocks_sum(struct ap_arena *arena, const struct ap_graph *g,
                                   const struct ap_blocks *b);

/*
 * FLOPs of one node. ap_node_heavy_flops counts dot and convolution, 2 per multiply-add,
 * and 0 for others. ap_node_flops also counts elementwise operators (per result element)
 * and reductions (per operand element) by ops.def, and custom calls by their own
 * attribute.
 */
double ap_node_heavy_flops(const struct ap_graph *g, int node);
double ap_node_flops(const struct ap_graph *g, int node);

/* ---- experts; from: ap_blocks_origins ---- */

/* Of the FLOPs of forward contractions: with less, dots that are batched over weights are
 * no experts. The two codebooks of `ap-model wav2vec2-base` have 0.05 %, the experts of
 * switch-base 22 %, of moe-380m 42 %. */
#define AP_LEAST_EXPERTS 0.01
/* Whether a node is a contraction of values with a weight for each expert: batched over
 * both. */
bool ap_node_is_of_experts(const struct ap_graph *g, const uint8_t *from, int node);
/* The first contraction of experts, if theirs are worth it; -1: the model has no experts.
 * Linear. */
int ap_experts_find(const struct ap_graph *g, const uint8_t *from);

#endif
