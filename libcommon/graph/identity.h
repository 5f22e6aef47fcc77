/*
 * When two nodes are identical: equal operators, shapes, attributes, roles and phases,
 * and equal numbers of operands; names, scopes and the operands themselves are not
 * compared. Reducers are compared by their computations, of kernels whether there is one.
 */
#ifndef AP_IDENTITY_H
#define AP_IDENTITY_H

#include "graph/graph.h"

bool ap_nodes_identical(const struct ap_graph *g, int a, int b);
/* sig[node] gets a hash, equal for identical nodes. O(nodes). */
void ap_node_signatures(const struct ap_graph *g, uint64_t *sig);

#endif
