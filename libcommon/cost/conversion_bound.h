/* Lower bounds on the rest of a conversion, which guide the search on meshes of many
 * axes. */
#ifndef AP_CONVERSION_BOUND_H
#define AP_CONVERSION_BOUND_H

#include "cost/cost.h"

/* The state of a mesh axis in a layout, compared with the target. */
enum ap_axis_state {
    AP_STATE_WHOLE, /* replicated */
    AP_STATE_DONE,  /* as in the target, but not replicated */
    AP_STATE_SPLIT, /* split in another way than in the target */
    AP_STATE_SUMS,  /* partial in another way than in the target */
    AP_N_AXIS_STATES
};

/* The properties of a conversion on which the bound depends. */
struct ap_bound_task {
    int64_t bytes;             /* of the whole tensor */
    uint8_t goal[AP_MAX_AXES]; /* enum ap_placement_kind, in the target */
    unsigned split; /* axes that the source splits in another way than the target */
    bool sums;      /* partial sums in the source or the target */
    bool loose;     /* every split of the target's dimension counts as DONE */
    bool fewest;    /* every step costs 1 */
};

struct ap_bound {
    int32_t weight[AP_MAX_AXES]
                  [AP_N_AXIS_STATES]; /* -1: the axis cannot have the state */
    const double *left; /* [sum of the weights of the axes' states]: bound on the rest */
    double step;        /* included in `left` for each step, in addition to its seconds */
};

/* The bounds of one mesh and cost model, made at their first use. */
struct ap_bounds;
struct ap_bounds *ap_bounds_new(void);
void ap_bounds_free(struct ap_bounds *bounds);
/* The result is valid until the next call. */
const struct ap_bound *ap_bounds_get(struct ap_bounds *bounds, const struct ap_cost *cost,
                                     const struct ap_bound_task *task);

#endif
