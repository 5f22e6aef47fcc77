/* What is left of a conversion at the least: guides the search on meshes of many axes. */
#ifndef AP_CONVERSION_BOUND_H
#define AP_CONVERSION_BOUND_H

#include "cost/cost.h"

/* How a mesh axis lies in a layout, seen from the target's. */
enum ap_axis_state {
    AP_STATE_WHOLE, /* replicated */
    AP_STATE_DONE,  /* as in the target, and not replicated */
    AP_STATE_SPLIT, /* split, otherwise than in the target */
    AP_STATE_SUMS,  /* partial, likewise */
    AP_N_AXIS_STATES
};

/* All that the bound looks at of a conversion. */
struct ap_bound_task {
    int64_t bytes;             /* of the whole tensor */
    uint8_t goal[AP_MAX_AXES]; /* enum ap_placement_kind, in the target */
    unsigned split;            /* axes that the source splits, as the target does not */
    bool sums;                 /* partial sums in the source or the target */
    bool loose;                /* any split of the target's dimension is DONE */
    bool fewest;               /* every step costs 1 */
};

struct ap_bound {
    int32_t weight[AP_MAX_AXES][AP_N_AXIS_STATES]; /* -1: no state of the axis */
    const double *left; /* [sum of the weights of the axes' states]: to the target */
    double step;        /* that left counts for each step, beside its seconds */
};

/* Bounds of one mesh and cost model, made when they are asked for first. */
struct ap_bounds;
struct ap_bounds *ap_bounds_new(void);
void ap_bounds_free(struct ap_bounds *bounds);
/* Holds until the next call. */
const struct ap_bound *ap_bounds_get(struct ap_bounds *bounds, const struct ap_cost *cost,
                                     const struct ap_bound_task *task);

#endif
