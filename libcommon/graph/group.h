/* Fusion groups: the units of decision of every search. */
#ifndef AP_GROUP_H
#define AP_GROUP_H

#include "graph/graph.h"

/*
 * Puts every node into a fusion group and numbers groups in execution order
 * (node->group, g->n_groups). Elementwise and broadcast nodes of equal dims and phase
 * that are joined by edges form one group where that keeps groups convex: with level(v) =
 * max over operands u of level(u) + (1 unless the edge joins two fusible nodes of equal
 * dims and phase), groups are the components of the fusible edges within one level. Sums
 * of contractions stay apart from what is done with them. Chains of parameters and
 * constants alone take the highest level that their users allow. Scalar constants, iotas
 * and broadcasts with a single user that is fusible (and, for the latter two, elementwise
 * of equal dims) join it. get-tuple-element joins its producer. The nodes of an attention
 * that stand together are one group (ap-fuse). Ids are the order in
 * which groups run, parameters first: the program's, but what gives memory back as early
 * as that can be (order.c). O((nodes + edges) log groups).
 */
void ap_group(struct ap_arena *arena, struct ap_graph *g);
/* The same with attentions as the operators that they consist of: what can be run. */
void ap_group_plain(struct ap_arena *arena, struct ap_graph *g);
/*
 * Groups of a part of a graph. whole[node]: its group in the whole graph, -1: it is
 * alone. Members of a group are joined by its edges: those that an edge still joins stay
 * one group, a group that the part's border cuts falls into its pieces. So a part runs
 * what the whole graph runs, and an operator takes the same in both.
 */
void ap_group_part(struct ap_arena *arena, struct ap_graph *g, const int *whole);

#endif
