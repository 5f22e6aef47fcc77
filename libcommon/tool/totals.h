/* Counts over a graph, for --stats. */
#ifndef AP_TOTALS_H
#define AP_TOTALS_H

#include "graph/graph.h"

struct ap_totals {
    int64_t n_params[AP_N_ROLES], n_phase[AP_N_PHASES]; /* nodes */
    int64_t weight_elems;
    double heavy_flops; /* of dot and convolution */
};

void ap_totals_of(const struct ap_graph *g, struct ap_totals *t);
/* ,"nodes":..,"groups":.. and all totals, as members of a JSON object. */
void ap_totals_put(const struct ap_graph *g, const struct ap_totals *t,
                   struct ap_buf *out);

#endif
