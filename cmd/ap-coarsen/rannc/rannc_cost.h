/*
 * RaNNC's formulas: the memory and time of a block or a stage, from figures that are sums
 * over its operators. They are closed forms; the caller decides whether the figures
 * describe a whole batch or one microbatch.
 */
#ifndef RANNC_COST_H
#define RANNC_COST_H

#include "base/base.h"

/* RaNNC's assumption about links, which does not depend on the cluster. */
#define RANNC_SEND_BYTES_PER_SEC (20.0 * (1 << 30))

/* A block's record; members that are marked + add up when blocks join. */
struct rannc_profile {
    double fwd_sec, bwd_sec;  /* + */
    int64_t param_bytes;      /* + */
    int64_t activation_bytes; /* plus the forward values that the backward pass reads */
    int64_t working_bytes;    /* in addition, at one time: the largest of the parts */
    int64_t in_bytes, out_bytes; /* values that come from and go to other blocks */
    int64_t copy_bytes;          /* the part of in_bytes with several consumers inside */
};

struct rannc_memory {
    double optimizer_factor; /* optimizer state per parameter byte: 2 Adam, 1 momentum */
    int64_t microbatches;    /* number of microbatches whose activations are kept without
                                checkpointing */
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

/* The memory of each device without the margin, and of the cluster's n devices. */
int64_t rannc_limit_bytes(int64_t device_bytes, double margin);

double rannc_send_sec(int64_t bytes);

#endif
