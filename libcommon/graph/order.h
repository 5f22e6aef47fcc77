/* Inside libcommon: the order in which fusion groups run (order.c). */
#ifndef AP_ORDER_H
#define AP_ORDER_H

#include "graph/graph.h"

/*
 * place[group]: its number in an order in which operands come first, parameters before
 * all others. group[node] is 0 .. n - 1, by the groups' last members; g is indexed.
 */
void ap_order_groups(struct ap_arena *arena, const struct ap_graph *g, const int *group,
                     int n, int *place);

#endif
