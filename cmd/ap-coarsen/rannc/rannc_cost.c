/*
 * RaNNC's memory and time of blocks and stages. A profile of joined blocks is estimated,
 * not measured: times, parameters and activations add up, work is the larger one's. After
 * Tanaka et al., "Automatic Graph Partitioning for Very Large-scale Deep Learning",
 * sections III-A to III-C; constants are taken from its published code.
 */
#include "rannc/rannc_cost.h"

#include <math.h>

void rannc_join(struct rannc_profile *a, const struct rannc_profile *b)
{
    a->fwd_sec += b->fwd_sec;
    a->bwd_sec += b->bwd_sec;
    a->param_bytes = ap_add64(a->param_bytes, b->param_bytes);
    a->activation_bytes = ap_add64(a->activation_bytes, b->activation_bytes);
    if (b->working_bytes > a->working_bytes)
        a->working_bytes = b->working_bytes;
}

int64_t rannc_alloc_bytes(const struct rannc_profile *p,
                          const struct rannc_memory *params)
{
    int64_t kept = params->checkpointing
                       ? p->activation_bytes
                       : ap_mul64(p->activation_bytes, params->microbatches);
    int64_t rest = ap_add64(kept, ap_add64(p->working_bytes, p->out_bytes));
    return ap_add64(ap_mul64(2, p->param_bytes), rest);
}

int64_t rannc_optimizer_bytes(int64_t param_bytes, double optimizer_factor)
{
    double bytes = ceil((double)param_bytes * optimizer_factor);
    return bytes < 9e18 ? (int64_t)bytes : INT64_MAX;
}

int64_t rannc_buffer_bytes(const struct rannc_profile *p)
{
    int64_t inputs = ap_mul64(2, ap_add64(p->in_bytes, p->copy_bytes));
    return ap_add64(inputs, p->out_bytes);
}

int64_t rannc_memory_bytes(const struct rannc_profile *p, int64_t alloc_bytes,
                           double optimizer_factor)
{
    int64_t states = rannc_optimizer_bytes(p->param_bytes, optimizer_factor);
    return ap_add64(alloc_bytes, ap_add64(states, rannc_buffer_bytes(p)));
}

int64_t rannc_limit_bytes(int64_t device_bytes, double margin)
{
    return (int64_t)((double)device_bytes * (1 - margin));
}

double rannc_send_sec(int64_t bytes)
{
    return (double)bytes / RANNC_SEND_BYTES_PER_SEC;
}
