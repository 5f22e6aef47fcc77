/*
 * Rhino's view of a graph: critical nodes, the segments between them, and cones (Rhino,
 * 4.3.1 and 4.3.2). Shared by ap-coarsen, which writes them
 * down, and by ap-shard's rhino search, which walks along them.
 */
#ifndef AP_CRITICAL_H
#define AP_CRITICAL_H

#include "graph.h"

enum ap_critical_rule {
    AP_CRITICAL_PAPER, /* earliest == latest time with unit operators, and dot or
                          convolution */
    AP_CRITICAL_CODE   /* every other heavy operator is an ancestor or a descendant */
};

/*
 * Critical nodes of the forward phase in topological order, arena; returns their number.
 * Linear in nodes and edges.
 */
int ap_critical_nodes(struct ap_arena *arena, const struct ap_graph *g,
                      enum ap_critical_rule rule, int **critical);

/*
 * Segments: forward nodes between consecutive critical nodes. segment_of[node] for
 * forward nodes, -1 for others: segment i is what critical node i + 1 needs and earlier
 * segments did not take; the first also has what comes before critical node 0, the last
 * what comes after the last one. n_groups > 0 joins consecutive segments into so many
 * groups of about equally many critical nodes. Returns the number of segments,
 * max(1, n_critical - 1) before grouping.
 */
int ap_critical_segments(struct ap_arena *arena, const struct ap_graph *g, int n_critical,
                         const int *critical, int n_groups, int **segment_of);

struct ap_cones {
    int n;
    const int *root;    /* [cone], ascending ids */
    const int *cone_of; /* [node]: every node that is no parameter or constant has one */
};

/* Cones at optimisation levels 0 to 4 (level's table in the file's head). */
void ap_cones_of(struct ap_arena *arena, const struct ap_graph *g, int level,
                 struct ap_cones *cones);

#endif
