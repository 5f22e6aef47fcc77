/* Conversions: the steps from one layout of a tensor to another, and their price. */
#ifndef AP_CONVERT_H
#define AP_CONVERT_H

#include "layout/layout.h"

struct ap_cost; /* cost.h */

/* One step; op is AP_OP_ALL_REDUCE .. AP_OP_COLLECTIVE_PERMUTE, AP_OP_AP_SLICE or
 * AP_OP_AP_PARTIAL. */
struct ap_step {
    enum ap_op op;
    struct ap_coll coll;
    struct ap_layout from, to;
    int64_t bytes; /* of the full tensor on the step's axes, per group: ap_step_bytes */
    int64_t times; /* that it runs in a training step: once, or per microbatch */
    double sec;    /* by the cost model, all times together */
};

#define AP_MAX_STEPS 12
struct ap_path {
    int n_steps;
    const struct ap_step *steps;
    double sec;
};

/*
 * Cheapest way from one layout of a tensor to another, ties to fewer steps, then to the
 * order in which steps are tried. Every pair of layouts can be converted unless the
 * target is partial on an axis on which the source is split (then -1: the source must be
 * gathered first, which the search does whenever it can). If the target is P, then P
 * stays P, and R becomes P by ap-partial. Over the microbatch axis, sums (all-reduce) and
 * gathers are local and free, and occur only if the target is whole on it; steps before
 * them run for every microbatch. The steps lie in `room`, of AP_MAX_STEPS, or in the
 * memory of `cost`, until it is freed.
 */
int ap_convert(const struct ap_cost *cost, const struct ap_shape *shape,
               const struct ap_layout *from, const struct ap_layout *to,
               struct ap_step *room, struct ap_path *path);
/* The seconds of that path alone, INFINITY if ap_convert fails; for inner loops. */
double ap_convert_sec(const struct ap_cost *cost, const struct ap_shape *shape,
                      const struct ap_layout *from, const struct ap_layout *to);
/*
 * Bytes of the full tensor on a step's axes, per group: the local result's for
 * all-gather; the local operand's for all-reduce, reduce-scatter and collective-permute;
 * the local operand's times the size of the axis for all-to-all; 0 for local steps.
 */
int64_t ap_step_bytes(const struct ap_mesh *mesh, enum ap_op op,
                      const struct ap_coll *coll, const struct ap_shape *operand_local,
                      const struct ap_shape *result_local);

#endif
