/*
 * Private to ap-stage: which runs of blocks are identical, so that their price is asked
 * once.
 */
#ifndef CLASSES_H
#define CLASSES_H

#include "graph/blocks.h"

/* Classes of a block by which of its neighbours are in the same run. */
enum { RUN_INNER = 0, RUN_FIRST = 1, RUN_LAST = 2, RUN_SINGLE = 3, N_RUN_PLACES };

struct stage_classes {
    int n_blocks;
    const int *id[N_RUN_PLACES]; /* [block]: equal ids, equal content */
    const int *twin; /* [lo * n_blocks + hi]: lowest start of an identical run */
};

/*
 * Two runs are identical when their parts of the graph (ap_subgraph) are equal:
 * operators, shapes, attributes, roles, phases, wiring, what comes from outside and what
 * is used outside, and which of it a microbatch splits (split: [node], may be NULL).
 * Names and the sharing of constants do not count. Linear in the graph, and in the runs
 * of blocks.
 */
void stage_classes_find(struct ap_arena *arena, const struct ap_graph *g,
                        const struct ap_blocks *blocks, const bool *split,
                        struct stage_classes *out);

/* Class of block b in the run lo to hi. */
static inline int stage_class(const struct stage_classes *c, int lo, int hi, int b)
{
    return c->id[(b == lo ? RUN_FIRST : 0) | (b == hi ? RUN_LAST : 0)][b];
}

#endif
