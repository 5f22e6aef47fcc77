/*
 * Blocks: an ordered partition of the graph's nodes, what ap-stage puts into stages and
 * what Rhino's search walks along (the document's section "blocks"). A block is made of
 * forward nodes; the backward and update nodes, the parameters and the states that belong
 * to them go with it.
 */
#ifndef AP_BLOCKS_H
#define AP_BLOCKS_H

#include "doc.h"

struct ap_blocks {
    const char *algorithm;
    int n;               /* blocks, in forward order */
    const int *block_of; /* [node], 0..n-1: every node is in a block */
    /* what the algorithm knew of it; objective's meaning is the algorithm's, in
       objective_unit ("bytes", "seconds", "flops"); bound is proven, <= objective */
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

/* What a block adds up to. */
struct ap_block_sum {
    int64_t nodes[AP_N_PHASES];
    double flops[AP_N_PHASES];   /* of dot and convolution */
    int64_t weight_bytes;        /* parameters of role weight */
    int64_t state_bytes;         /* parameters of role state */
    int64_t in_bytes, out_bytes; /* forward values read from, and read by, other blocks,
                                    each once; parameters not counted */
    int64_t kept_bytes;          /* forward values that its backward nodes read */
};

/*
 * Given block_of for the forward nodes that are no parameters, constants or iotas (-1
 * for all others), places the rest: a parameter or constant in the first block that
 * reads it (constant chains too: they belong to their reader); a backward node
 * by data flow, in mirrored order; update nodes with their weight; what no block owns
 * (global norms, step counters, losses) in the last block. block_of is completed in
 * place; n is the number of blocks. Linear.
 */
void ap_blocks_carry(struct ap_arena *arena, const struct ap_graph *g, int n,
                     int *block_of);

/*
 * Checks that every node has a block, no block is empty of forward nodes, forward edges
 * never go to an earlier block and backward edges never to a later one (constants,
 * parameters and what is made of them alone are exempt), in linear time. Blocks so
 * ordered are convex. -1 with "/blocks: node 17 (dot.5) of block 2 reads ...".
 */
int ap_blocks_check(const struct ap_graph *g, const struct ap_blocks *b,
                    struct ap_err *err);

/* One per block, arena. */
struct ap_block_sum *ap_blocks_sum(struct ap_arena *arena, const struct ap_graph *g,
                                   const struct ap_blocks *b);

/* FLOPs of one node: dot and convolution (2 per multiply-add), others per ops.def. */
double ap_node_flops(const struct ap_graph *g, int node);
double ap_node_heavy_flops(const struct ap_graph *g, int node);

/* ---- the section ---- */

void ap_blocks_to_json(const struct ap_graph *g, const struct ap_blocks *b,
                       const struct ap_block_sum *sums, struct ap_buf *out);
/* Reads and checks (ap_blocks_check). */
int ap_blocks_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        const struct ap_graph *g, struct ap_blocks *b,
                        struct ap_err *err);

#endif
