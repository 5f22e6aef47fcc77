#include "space.h"

const struct plan_algorithm *plan_algorithms(void)
{
    static const struct plan_algorithm table[] = {
        {"auto", "least simulated time: sends, schedule, microbatches, recompute",
         plan_auto},
        {"alpa", "Alpa: sum + (B - 1) max over cuts and submeshes", plan_alpa},
        {"rhino", "Rhino: factorisations of the mesh, stages by ILP on the DAG",
         plan_rhino},
        {"rannc", "RaNNC: max forward + max backward, replicas, recompute", plan_rannc},
        {"equal-layer", "Alpa with as many blocks in each stage", plan_equal_layer},
        {"equal-operator", "Alpa with as many operators in each stage",
         plan_equal_operator},
        {"intra-only", "one stage on all devices", plan_intra_only},
        {"inter-only", "one device for each stage", plan_inter_only},
        {"pp-dp", "pipelines of single devices side by side", plan_pp_dp},
        {"megatron-grid", "pipeline x data x tensor, equal layers", plan_megatron_grid},
        {"deepspeed-moe-grid", "experts x data, no pipeline", plan_deepspeed_moe_grid},
        {"none", "one stage on all devices, the batch at once", plan_none},
        {"exhaustive", "every plan of a tiny instance", plan_exhaustive},
        {NULL, NULL, NULL}};
    return table;
}
