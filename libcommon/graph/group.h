/* Fusion groups: the units of decision of every search. */
#ifndef AP_GROUP_H
#define AP_GROUP_H

#include "graph/graph.h"

/*
 * Puts every node into a fusion group and numbers groups in execution order (node->group,
 * g->n_groups). Elementwise and broadcast nodes of equal dims and phase that are joined
 * by edges form one group where that keeps groups convex: with level(v) = max over
 * operands u of level(u) + (1 unless the edge joins two fusible nodes of equal dims and
 * phase), groups are the components of the fusible edges within one level. Sums of
 * contractions stay apart from the operators that read them. Chains of parameters and
 * constants alone take the highest level that their users allow. Scalar constants, iotas
 * and broadcasts with a single user that is fusible (and, for the latter two, elementwise
 * of equal dims) join it. get-tuple-element joins its producer. The nodes of an attention
 * that stand together are one group (ap-fuse). Ids follow the order in which groups run,
 * parameters first: the program's order, except that groups that free memory run as early
 * as possible (order.c). O((nodes + edges) log groups).
 */
void ap_group(struct ap_arena *arena, struct ap_graph *g);
/* The same, with each attention as separate operators, which backends without a fused
 * kernel can run. */
void ap_group_plain(struct ap_arena *arena, struct ap_graph *g);
/*
 * Groups of a part of a graph. whole[node] is its group in the whole graph, or -1 if the
 * node is alone. Members of a group that edges still connect stay one group, and a group
 * that the part's border cuts falls into pieces. A part therefore runs the same groups as
 * the whole graph, and an operator takes the same time in both.
 */
void ap_group_part(struct ap_arena *arena, struct ap_graph *g, const int *whole);

#endif
