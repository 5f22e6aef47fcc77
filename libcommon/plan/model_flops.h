/*
 * FLOPs of a step's contractions, by which MFU and HFU are counted.
 */
#ifndef AP_MODEL_FLOPS_H
#define AP_MODEL_FLOPS_H

#include "cost/cost.h"

/* Of a contraction, or of a custom call with known FLOPs; 0 of all others. */
double ap_contraction_flops(const struct ap_graph *g, int node);

/*
 * FLOPs of contractions, and of custom calls with known FLOPs, of a step on all devices.
 */
struct ap_model_flops {
    double model; /* of the forward and backward pass, each once */
    double again; /* marked as recomputed in the graph (jax.checkpoint) */
    /* the fastest of the dtypes that are contracted, and its FLOP/s on a device: MFU
       against it is at most 1 */
    enum ap_dtype dtype;
    const char *peak_of; /* its name; tf32 if f32 operands are rounded to it */
    double peak;
};
void ap_model_flops_count(const struct ap_graph *g, const struct ap_cluster *cluster,
                          struct ap_model_flops *out);

#endif
