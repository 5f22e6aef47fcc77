/* Private to RaNNC: the price of every node on one device, for one microbatch. */
#ifndef RANNC_PRICE_H
#define RANNC_PRICE_H

#include "rannc/rannc.h"

/* For a microbatch: the share rows / batch of quantities that grow with the batch; 1 if
 * no input of the graph shows the size of the batch. */
struct rannc_rows {
    int64_t rows, batch;
};

struct rannc_rows rannc_rows_of(const struct ap_graph *g,
                                const struct rannc_params *params);
int64_t rannc_rows_bytes(const struct rannc_rows *r, int64_t bytes);

/*
 * sec[node] of forward and backward nodes, arena: fusion groups by the cluster's
 * roofline, shared out by the bytes that members write. varies[node]: depends on an
 * input. Linear.
 */
const double *rannc_node_sec(struct ap_arena *arena, const struct ap_graph *g,
                             const struct ap_cluster *cluster,
                             const struct rannc_rows *rows, const bool *varies);

#endif
