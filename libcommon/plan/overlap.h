/*
 * The time of a step on two streams, for clusters with "overlap": a device computes while
 * the network works, as far as data and memory allow.
 */
#ifndef AP_OVERLAP_H
#define AP_OVERLAP_H

#include "plan/plan.h"

/* Gathers of weights may run ahead of their use while their results together take at most
 * a device's memory divided by this number; one gather may always do so. */
#define AP_AHEAD_SHARE 32

/* A stretch of one of the streams. */
struct ap_stretch {
    bool comm;
    int id;    /* group, or conversion of the list; -1: `times` equal microbatches */
    int times; /* 1, or a number of microbatches */
    double start_sec, sec;
};

struct ap_overlap {
    double step_sec; /* until both streams are done: at most compute + comm, and at least
                        each of them */
    double exposed_sec;  /* the part without compute, in which the device waits for
                            collectives */
    int64_t ahead_bytes; /* the most memory that gathers ahead of their use take */
    int n;
    struct ap_stretch *stretch; /* by start, compute first; NULL if not asked for */
};

/* Whether steps of plans are priced on two streams: if prices are seconds and the cluster
 * overlaps. */
bool ap_cost_overlaps(const struct ap_cost *cost);

/* [group]: whether its values depend on weights, optimizer states and constants alone, so
 * that it may run ahead of its place if they are sent (arena). */
bool *ap_made_of_weights(struct ap_arena *arena, const struct ap_nests *nests);

/*
 * Simulates the plan's step with overlap, whether the cluster has it or not. group_sec:
 * ap_plan_group_sec of every group, or NULL. Linear in groups and operands, n log n in
 * conversions.
 */
void ap_plan_overlap(struct ap_arena *arena, const struct ap_plan *plan,
                     const struct ap_cost *cost, const struct ap_conversions *conv,
                     const double *group_sec, bool stretches, struct ap_overlap *out);

#endif
