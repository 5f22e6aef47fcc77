/*
 * The rates of a step, from the price of its plan: samples and tokens per second, model
 * and hardware FLOPs utilization (MFU, HFU), and whether the devices are of any use. Only
 * the step on one device is priced here.
 */
#ifndef COST_PLAN_RATES_H
#define COST_PLAN_RATES_H

#include "line/line.h"
#include "plan/model_flops.h"

struct ap_plan_rates {
    double step_sec;
    int64_t n_devices;
    /* of a step: the first dimension that most inputs (role input) share; samples times
       their sequence length. 0: no input has one */
    int64_t samples, tokens;
    struct ap_model_flops flops; /* again: includes operators that stages recompute */
    double mfu, hfu;             /* model, model + again, over peak * devices * step */
    double one_device_sec;       /* the step on one device, without a memory limit */
    const char *no_use; /* the reason why the plan is of no use; NULL: it is of use */
};

/* step_sec: the step for which rates are computed; recomputed: FLOPs of contractions that
 * stages run again. The blocks of `of` are not read. Linear in the graph. */
void ap_rates_find(struct ap_arena *arena, const struct ap_plan_line *plan,
                   const struct ap_staged_graph *of, double step_sec, double recomputed,
                   struct ap_plan_rates *out);
/* FLOPs of contractions that the stages run again before the backward pass. */
double ap_stages_recomputed_flops(const struct ap_graph *g, const struct ap_stages *s);

#endif
