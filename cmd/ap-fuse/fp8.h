/* Private to ap-fuse: contractions in fp8, as training recipes run them (fp8.c). */
#ifndef FP8_H
#define FP8_H

#include "graph/graph.h"

struct fp8_count {
    int contractions; /* that read fp8 */
    int casts;        /* nodes that were added */
};

/*
 * The graph whose contractions of layers' weights in 16 bits read copies in fp8: of
 * activations and weights in f8e4m3fn, of gradients in f8e5m2; results keep their type.
 * Operators that no contraction of a weight follows (the head's logits), weights with a
 * dimension that is not a multiple of 16, attentions and the update keep their types. The
 * casts round numbers without the scales that recipes keep. Nodes are new, in the arena;
 * indexed; groups are the caller's to make. Linear in nodes and edges. -1 never happens
 * for graphs that ap_graph_index accepted.
 */
int fp8_mark(struct ap_arena *arena, const struct ap_graph *g, struct ap_graph *out,
             struct fp8_count *count, struct ap_err *err);

#endif
