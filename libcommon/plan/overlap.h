/*
 * A step on two streams: a device computes while the network works, as far as data and
 * memory allow. What a step takes where the cluster says "overlap".
 */
#ifndef AP_OVERLAP_H
#define AP_OVERLAP_H

#include "plan/plan.h"

/* Gathers of weights may run ahead of their use while what they hold ahead, together, is
 * at most this share of a device's memory; one may always. */
#define AP_AHEAD_SHARE 32

/* A stretch of one of the streams. */
struct ap_stretch {
    bool comm;
    int id;    /* group, or conversion of the list; -1: `times` microbatches alike */
    int times; /* 1, or how many microbatches */
    double start_sec, sec;
};

struct ap_overlap {
    double step_sec;     /* until both streams are done: at most compute + comm, at least
                            either */
    double exposed_sec;  /* of it, without compute: it waits for collectives */
    int64_t ahead_bytes; /* that gathers ahead of their use hold at most */
    int n;
    struct ap_stretch *stretch; /* by start, compute first; NULL: not asked for */
};

/* Whether steps of plans are priced on two streams: in seconds, where the cluster says
 * so. */
bool ap_cost_overlaps(const struct ap_cost *cost);

/* [group]: its values depend on weights, optimizer states and constants alone, so that it
 * may run ahead of its place where they are sent (arena). */
bool *ap_made_of_weights(struct ap_arena *arena, const struct ap_nests *nests);

/*
 * Simulates the plan's step, whatever the cluster says. group_sec: ap_plan_group_sec of
 * every group, NULL: not at hand. Linear in groups and operands, n log n in conversions.
 */
void ap_plan_overlap(struct ap_arena *arena, const struct ap_plan *plan,
                     const struct ap_cost *cost, const struct ap_conversions *conv,
                     const double *group_sec, bool stretches, struct ap_overlap *out);

#endif
