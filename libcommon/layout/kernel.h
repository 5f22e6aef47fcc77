/*
 * Kernels: what runs a fusion group, in as many kinds as are worth measuring apart.
 * Tables of measured times (cost/measured.h) and profiles of ap-exec are by kind.
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
    AP_KERNEL_ATTENTION, /* several operators with contractions among them, as one */
    AP_N_KERNELS
};
extern const char *const ap_kernel_names[AP_N_KERNELS];

/* The kind of an operator that runs alone. */
enum ap_kernel ap_kernel_of(enum ap_op op);
/* Of a group: the last kind, in the order above, of its members; attention if it has a
 * contraction and more. */
enum ap_kernel ap_kernel_of_group(const struct ap_graph *g, const int *members, int n);
/* Whether one of them takes operands in f32 that must not be rounded (to tf32). */
bool ap_kernel_is_precise(const struct ap_graph *g, const int *members, int n);
/* The kind of this name, AP_N_KERNELS: there is none. */
enum ap_kernel ap_kernel_find(const char *name);

#endif
