/*
 * Problem: figures that users compare plans by, and papers print. Idea: samples and
 * tokens are dimensions of the inputs; MFU is the contractions of one forward and
 * backward pass over what the devices could do in the step (Chowdhery et al., "PaLM",
 * appendix B), HFU counts what is recomputed again; one device is the plan on a mesh of
 * one, priced as all plans are. Cost: linear in the graph.
 */
#include "plan_rates.h"

double ap_stages_recomputed_flops(const struct ap_graph *g, const struct ap_stages *s)
{
    double sum = 0;

    for (int i = 0; i < s->n; i++) {
        const struct ap_stage *st = &s->stage[i];
        if (st->recompute == AP_RECOMPUTE_SELECTED)
            for (int k = 0; k < st->n_recomputed; k++)
                sum += ap_contraction_flops(g, st->recomputed[k]);
        if (st->recompute == AP_RECOMPUTE_ALL)
            for (int k = 0; k < st->sub.graph.n_nodes; k++)
                if (st->sub.graph.nodes[k].phase == AP_FORWARD)
                    sum += ap_contraction_flops(&st->sub.graph, k);
    }
    return sum;
}

/* Seconds of the step on one device of the cluster, the fastest, infinite memory given;
 * 0: not known. */
static double one_device(struct ap_arena *arena, const struct ap_staged_graph *of)
{
    int n = of->cluster->n_kinds ? of->cluster->n_kinds : 1;
    struct ap_plan plan = {0};
    double least = 0;

    ap_plan_single(arena, of->graph, of->nests, &plan);
    for (int k = 0; k < n; k++) {
        struct ap_cluster cluster = *of->cluster;
        struct ap_cost cost = {0};
        struct ap_err err = {0};
        double sec = 0;
        ap_cluster_set_kind(&cluster, k);
        if (ap_cost_init(arena, &cost, AP_COST_DEFAULT, &cluster, &plan.mesh, &err) ||
            ap_plan_sec(&plan, &cost, &sec, &err))
            sec = 0;
        ap_cost_free(&cost);
        least = k == 0 || sec < least ? sec : least;
    }
    return least;
}

#define NO_USE 1.05 /* a speedup of this is none: prices are not that exact */

static const char *why_no_use(struct ap_arena *arena, const struct ap_plan_line *plan,
                              const struct ap_plan_rates *r)
{
    if (r->n_devices < 2)
        return NULL;
    if (plan->line.pipeline == 1 && plan->line.degrees.idle == r->n_devices)
        return ap_arena_printf(arena, "all %lld devices do the same work",
                               (long long)r->n_devices);
    if (r->one_device_sec > 0 && r->one_device_sec <= NO_USE * r->step_sec)
        return ap_arena_printf(
            arena, "the model is too small for %lld devices: one is %s",
            (long long)r->n_devices,
            r->one_device_sec <= r->step_sec ? "as fast" : "nearly as fast");
    return NULL;
}

void ap_rates_find(struct ap_arena *arena, const struct ap_plan_line *plan,
                   const struct ap_staged_graph *of, double step_sec, double recomputed,
                   struct ap_plan_rates *out)
{
    *out = (struct ap_plan_rates){.step_sec = step_sec,
                                  .n_devices = plan->n_devices,
                                  .samples = plan->batch,
                                  .tokens = ap_mul64(plan->batch, plan->sequence_length)};
    ap_model_flops_count(of->graph, of->cluster, &out->flops);
    out->flops.again += recomputed;
    double most = out->flops.peak * (double)out->n_devices * step_sec;
    for (int k = 0; k < of->cluster->n_kinds; k++)
        most = (k ? most : 0) +
               (double)plan->kind_devices[k] * step_sec *
                   ap_cluster_peak(of->cluster->kind[k].devices, out->flops.dtype);
    if (most > 0) {
        out->mfu = out->flops.model / most;
        out->hfu = (out->flops.model + out->flops.again) / most;
    }
    out->one_device_sec = one_device(arena, of);
    out->no_use = why_no_use(arena, plan, out);
}
