/* Attention as one operator (attention.c). */
#ifndef FUSE_ATTENTION_H
#define FUSE_ATTENTION_H

#include "graph/graph.h"

struct fuse_attention_count {
    int forward, backward; /* fused groups */
    int plain;             /* softmaxes between contractions that are not fused */
    int copies;            /* nodes that a backward group runs again */
    int striped;           /* fused groups whose queries are in stripes */
};

/*
 * The graph with attentions marked (attribute `attention`), each of which ap_group makes
 * one group: forward softmax(q k) v, backward the gradients of q, k and v, with the
 * scores computed again. Its nodes are new, in the arena; a graph with marks does not
 * change. Indexed; groups are the caller's to make. Linear in nodes and edges, but for a
 * heap. -1 never happens for graphs that ap_graph_index accepted.
 */
int fuse_attention_mark(struct ap_arena *arena, const struct ap_graph *g,
                        struct ap_graph *out, struct fuse_attention_count *count,
                        struct ap_err *err);

/*
 * Gives the contractions of marked attentions the attribute `scores`: where queries and
 * keys are, and how far from its query a key may lie by a mask that is proved from iotas,
 * comparisons and constants (attention_scores.c). Called by fuse_attention_mark.
 */
void fuse_attention_describe(struct ap_arena *arena, struct ap_graph *g);

/*
 * Lets attentions under a causal mask be split by stripes: the sequence is cut into this
 * number of equal parts, and every device may have a block of each part, so that devices
 * compute about equally many pairs (Brandon et al., "Striped Attention", 2023). Returns
 * how many groups can be split so: those whose queries and keys the number divides.
 */
int fuse_attention_stripe(struct ap_arena *arena, struct ap_graph *g, int64_t stripes);

#endif
