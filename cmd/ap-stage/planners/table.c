#include "search/space.h"

const struct plan_algorithm *plan_algorithms(void)
{
    static const struct plan_algorithm table[] = {
        {"auto", "least simulated step time, over all that is not fixed", plan_auto,
         PLAN_CUTS_STAGES, true, true},
        {"alpa", "Alpa: sum + (B - 1) max over cuts and submeshes", plan_alpa,
         PLAN_CUTS_STAGES, false, true},
        {"rhino", "Rhino: factorizations of the mesh, stages by ILP on the DAG",
         plan_rhino, PLAN_CUTS_STAGES, false, false},
        {"rannc", "RaNNC: max forward + max backward, replicas, recompute", plan_rannc,
         PLAN_CUTS_STAGES, false, false},
        {"equal-layer", "Alpa with as many blocks in each stage", plan_equal_layer,
         PLAN_CUTS_STAGES, false, true},
        {"equal-operator", "Alpa with as many operators in each stage",
         plan_equal_operator, PLAN_CUTS_STAGES, false, true},
        {"intra-only", "one stage on all devices", plan_intra_only, PLAN_CUTS_BATCH,
         false, false},
        {"inter-only", "one device for each stage", plan_inter_only, PLAN_CUTS_STAGES,
         false, false},
        {"pp-dp", "pipelines of single devices side by side", plan_pp_dp,
         PLAN_CUTS_STAGES, false, false},
        {"megatron-grid", "the best line of --grid", NULL, PLAN_CUTS_STAGES, false,
         false},
        {"zero-bubble-grid", "the best line of --grid with split backward passes", NULL,
         PLAN_CUTS_STAGES, false, false},
        {"deepspeed-moe-grid", "the best line of --grid with experts, without stages",
         NULL, PLAN_CUTS_BATCH, false, false},
        {"none", "one stage on all devices, no microbatches", plan_none,
         PLAN_CUTS_NOTHING, false, false},
        {"exhaustive", "every plan of a tiny instance", plan_exhaustive, PLAN_CUTS_STAGES,
         false, true},
        {NULL, NULL, NULL, PLAN_CUTS_STAGES, false, false}};
    return table;
}

const struct plan_algorithm *plan_given_algorithm(void)
{
    static const struct plan_algorithm row = {
        "plan", "the plan of a file", plan_given, PLAN_CUTS_STAGES, true, true};
    return &row;
}
