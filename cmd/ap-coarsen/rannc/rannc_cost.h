/*
 * RaNNC's formulas: what a block or a stage needs and takes, from figures that add up
 * over its operators. Closed forms only; whoever calls decides what the figures are of
 * (a whole batch, or one microbatch).
 */
#ifndef RANNC_COST_H
#define RANNC_COST_H

#include "base/base.h"

/* What RaNNC takes links to do, whatever the cluster is. */
#define RANNC_SEND_BYTES_PER_SEC (20.0 * (1 << 30))

/* A block's record; members that are marked + add up when blocks join. */
struct rannc_profile {
    double fwd_sec, bwd_sec;  /* + */
    int64_t param_bytes;      /* + */
    int64_t activation_bytes; /* + what the backward pass reads of the forward values */
    int64_t working_bytes;    /* at once, beside all else: the largest of the parts' */
    int64_t in_bytes, out_bytes; /* values that come from and go to other blocks */
    int64_t copy_bytes;          /* those of in_bytes with several consumers inside */
};

struct rannc_memory {
    double optimizer_factor; /* optimizer state per parameter byte: 2 Adam, 1 momentum */
    int64_t microbatches;    /* what activations are kept of, unless checkpointing */
    bool checkpointing;      /* activations of one microbatch, recomputed */
};

/* Into a: times, parameters, activations and work of b; in, out and copies are left. */
void rannc_join(struct rannc_profile *a, const struct rannc_profile *b);

/* Parameters, their gradients, activations, working memory and the result. */
int64_t rannc_alloc_bytes(const struct rannc_profile *p,
                          const struct rannc_memory *params);
int64_t rannc_optimizer_bytes(int64_t param_bytes, double optimizer_factor);
/* Buffers of the transfers: inputs, outputs, input gradients, copies and theirs. */
int64_t rannc_buffer_bytes(const struct rannc_profile *p);
/* alloc_bytes is rannc_alloc_bytes', or a measured one. */
int64_t rannc_memory_bytes(const struct rannc_profile *p, int64_t alloc_bytes,
                           double optimizer_factor);

/* Of each device with a margin left free, and of the cluster's n devices. */
int64_t rannc_limit_bytes(int64_t device_bytes, double margin);

double rannc_send_sec(int64_t bytes);

#endif
