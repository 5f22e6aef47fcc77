/*
 * RaNNC's memory and time of blocks and stages. A profile of joined blocks is estimated,
 * not measured: times, parameters and activations add up, work is the larger one's.
 * After Tanaka et al., "Automatic Graph Partitioning for Very Large-scale Deep Learning",
 * sections III-A to III-C; constants are those of its published code.
 */
#include "rannc/rannc_cost.h"

#include <math.h>

void ap_rannc_join(struct ap_rannc_profile *a, const struct ap_rannc_profile *b)
{
    a->fwd_sec += b->fwd_sec;
    a->bwd_sec += b->bwd_sec;
    a->param_bytes = ap_add64(a->param_bytes, b->param_bytes);
    a->activation_bytes = ap_add64(a->activation_bytes, b->activation_bytes);
    if (b->working_bytes > a->working_bytes)
        a->working_bytes = b->working_bytes;
}

int64_t ap_rannc_alloc_bytes(const struct ap_rannc_profile *p,
                             const struct ap_rannc_params *params)
{
    int64_t kept = params->checkpointing
                       ? p->activation_bytes
                       : ap_mul64(p->activation_bytes, params->microbatches);
    int64_t rest = ap_add64(kept, ap_add64(p->working_bytes, p->out_bytes));
    return ap_add64(ap_mul64(2, p->param_bytes), rest);
}

int64_t ap_rannc_optimizer_bytes(int64_t param_bytes, double optimizer_factor)
{
    double bytes = ceil((double)param_bytes * optimizer_factor);
    return bytes < 9e18 ? (int64_t)bytes : INT64_MAX;
}

int64_t ap_rannc_buffer_bytes(const struct ap_rannc_profile *p)
{
    int64_t inputs = ap_mul64(2, ap_add64(p->in_bytes, p->copy_bytes));
    return ap_add64(inputs, p->out_bytes);
}

int64_t ap_rannc_memory_bytes(const struct ap_rannc_profile *p, int64_t alloc_bytes,
                              double optimizer_factor)
{
    int64_t states = ap_rannc_optimizer_bytes(p->param_bytes, optimizer_factor);
    return ap_add64(alloc_bytes, ap_add64(states, ap_rannc_buffer_bytes(p)));
}

int64_t ap_rannc_limit_bytes(int64_t device_bytes, double margin)
{
    return (int64_t)((double)device_bytes * (1 - margin));
}

double ap_rannc_send_sec(int64_t bytes)
{
    return (double)bytes / AP_RANNC_SEND_BYTES_PER_SEC;
}

double ap_rannc_all_reduce_sec(int64_t param_bytes)
{
    return (double)param_bytes / AP_RANNC_ALL_REDUCE_BYTES_PER_SEC;
}

/* At tick t stages t - microbatches + 1 .. t work on a microbatch, as far as they exist.
 */
static double ticks(int n, const double *sec, int64_t microbatches)
{
    double sum = 0;
    for (int64_t t = 0; t < microbatches + n - 1; t++) {
        double slowest = 0;
        for (int64_t i = t < n ? t : n - 1; i >= 0 && i > t - microbatches; i--)
            slowest = fmax(slowest, sec[i]);
        sum += slowest;
    }
    return sum;
}

double ap_rannc_pipeline_sec(int n, const double *fwd_sec, const double *bwd_sec,
                             const int64_t *param_bytes, int64_t microbatches)
{
    int64_t largest = 0;
    for (int i = 0; i < n; i++)
        if (param_bytes[i] > largest)
            largest = param_bytes[i];
    return ticks(n, fwd_sec, microbatches) + ticks(n, bwd_sec, microbatches) +
           ap_rannc_all_reduce_sec(largest);
}
