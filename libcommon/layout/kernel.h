/*
 * Kinds of kernels that run a fusion group; kinds are distinguished if they are measured
 * separately. Tables of measured times (cost/measured.h) and profiles of ap-exec have an
 * entry per kind.
 */
#ifndef AP_KERNEL_H
#define AP_KERNEL_H

#include "graph/graph.h"

enum ap_kernel {
    AP_KERNEL_FUSED, /* elementwise operators and broadcasts, in one pass */
    AP_KERNEL_MOVE,  /* transpose, slice, pad, ..., masks of padding */
    AP_KERNEL_GATHER,
    AP_KERNEL_SCATTER,
    AP_KERNEL_REDUCE,
    AP_KERNEL_WINDOW,
    AP_KERNEL_SORT,
    AP_KERNEL_OTHER, /* factorizations, Fourier transforms, custom calls */
    AP_KERNEL_DOT,
    AP_KERNEL_CONVOLUTION,
    AP_KERNEL_ATTENTION, /* several operators, contractions among them, as one kernel */
    AP_KERNEL_GROUPED,   /* a dot with a matrix of weights for each of several experts */
    AP_N_KERNELS
};
extern const char *const ap_kernel_names[AP_N_KERNELS];

/* The kind of an operator that runs alone. */
enum ap_kernel ap_kernel_of(enum ap_op op);
/* The kind of a group: the last one, in the order above, of its members' kinds, or
 * attention if it has a contraction and other operators. */
enum ap_kernel ap_kernel_of_group(const struct ap_graph *g, const int *members, int n);
/*
 * Where the weights of experts are in each dot of the graph that is a grouped product:
 * [node] 0 or 1: that operand, 2: the result, a gradient of weights; -1: no such dot.
 * These are contractions of experts (graph/blocks.h), and batched dots of their other
 * operands.
 */
const int8_t *ap_kernel_experts(struct ap_arena *arena, const struct ap_graph *g);
/* Whether a member reads operands in f32 that must not be rounded to tf32. */
bool ap_kernel_is_precise(const struct ap_graph *g, const int *members, int n);
/* The kind of this name; AP_N_KERNELS if there is none. */
enum ap_kernel ap_kernel_find(const char *name);

#endif
