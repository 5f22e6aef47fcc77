/* Kernels that run chains of elementwise operators and reductions at once (kernels.c). */
#ifndef FUSE_KERNELS_H
#define FUSE_KERNELS_H

#include "graph/graph.h"

/* Which kernels a training software has. */
struct fuse_kernel_rules {
    bool norms;               /* only kernels that reduce */
    const char *const *eager; /* [n_eager]: names of parts of the model (scopes, "loss",
                                 "attn/core") without kernels: operators run one by one */
    int n_eager;
};

struct fuse_kernel_count {
    int kernels; /* of two or more operators */
    int copies;  /* nodes that the backward pass computes again */
};

/*
 * The graph with kernels marked (attribute `kernel`, numbers from 1): the operators
 * between two contractions in one phase are one kernel, and values that only its own
 * operators read are never in memory. The backward pass recomputes such values from
 * values that the forward pass has in memory anyway. If a wide value of the forward pass
 * is in memory only as a rounded copy, the backward pass reads the copy, as such kernels
 * do. The caller makes the groups anew; attentions (attention.h) do not change. Indexed;
 * nodes are new, in the arena. Linear in nodes and edges, but for copies. -1 never
 * happens for graphs that ap_graph_index accepted.
 */
int fuse_kernels_mark(struct ap_arena *arena, const struct ap_graph *g,
                      const struct fuse_kernel_rules *rules, struct ap_graph *out,
                      struct fuse_kernel_count *count, struct ap_err *err);

/* Whether the scope of a node has this part in it. */
bool fuse_kernels_has_part(const struct ap_graph *g, const char *part);

#endif
