/*
 * When two nodes are identical: equal operators, shapes, attributes, roles and phases,
 * and as many operands; names, scopes and which operands they are aside. Reducers are
 * compared by what they compute.
 */
#ifndef AP_IDENTITY_H
#define AP_IDENTITY_H

#include "graph/graph.h"

bool ap_nodes_identical(const struct ap_graph *g, int a, int b);
/* sig[node] gets a hash, equal for identical nodes. O(nodes). */
void ap_node_signatures(const struct ap_graph *g, uint64_t *sig);

#endif
