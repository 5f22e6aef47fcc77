/*
 * Problem: the FLOPs that a model needs, apart from how it is run. Idea: the contractions
 * of one forward and backward pass (Chowdhery et al., "PaLM", appendix B). Cost: linear
 * in the graph.
 */
#include "plan/model_flops.h"

#include "graph/blocks.h"

double ap_contraction_flops(const struct ap_graph *g, int i)
{
    return ap_node_heavy_flops(g, i) + (double)g->nodes[i].attrs->flops;
}

void ap_model_flops_count(const struct ap_graph *g, const struct ap_cluster *cluster,
                          struct ap_model_flops *out)
{
    *out = (struct ap_model_flops){.dtype = AP_F32, .peak_of = "f32"};
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        double flops = ap_contraction_flops(g, i);
        if (flops <= 0)
            continue;
        if (node->attrs->recomputed)
            out->again += flops;
        else
            out->model += flops;
        enum ap_dtype dtype =
            node->n_in ? g->nodes[node->in[0]].shape.dtype : node->shape.dtype;
        double peak = ap_cluster_peak(cluster, dtype);
        if (peak > out->peak) {
            out->peak = peak;
            out->dtype = dtype;
            out->peak_of = dtype == AP_F32 && cluster->tf32_flops_per_sec > 0
                               ? "tf32"
                               : ap_dtype_name(dtype);
        }
    }
}
