/*
 * How far prices on a cluster are from steps that others measured and published: for each
 * kind of plan, which measured / predicted eight of ten runs have, and what the runs are.
 * scripts/published-errors reckons them; presets have them as member "published".
 */
#ifndef AP_COST_PUBLISHED_H
#define AP_COST_PUBLISHED_H

#include "doc/doc.h"

/* By the types of contractions of layers, and by what cuts the model. */
enum ap_published_types {
    AP_PUBLISHED_16_BIT,
    AP_PUBLISHED_NARROW,
    AP_N_PUBLISHED_TYPES
};
enum ap_published_plan {
    AP_PUBLISHED_ONE_STAGE,
    AP_PUBLISHED_PIPELINE,
    AP_PUBLISHED_EXPERTS, /* models with experts, in stages or not */
    AP_N_PUBLISHED_PLANS
};

struct ap_published {
    int types, plan;          /* values of these enums */
    int64_t runs, sources;    /* that the interval is of, >= 1 */
    int64_t devices;          /* of the largest run of this kind */
    double low, median, high; /* measured / predicted: 10 %, 50 % and 90 % */
    const char *of;           /* the runs' devices and sources (arena) */
};

#define AP_MAX_PUBLISHED (AP_N_PUBLISHED_TYPES * AP_N_PUBLISHED_PLANS)

/* Member "published" of a cluster o: rows[AP_MAX_PUBLISHED], *n of them; absent: none.
 * -1: err names the place. */
int ap_published_from_json(struct ap_arena *arena, const json_t *o,
                           const struct ap_at *at, struct ap_published *rows, int *n,
                           struct ap_err *err);
/* Writes the member, a comma in front; [] where there are no rows. */
void ap_published_put(const struct ap_published *rows, int n, struct ap_buf *out);
/* The row of a plan on so many devices, in contractions of the element type; NULL: no
 * run is near, by type, kind, or devices (at most twice as many as were measured). */
const struct ap_published *ap_published_near(const struct ap_published *rows, int n,
                                             enum ap_dtype dtype,
                                             enum ap_published_plan plan,
                                             int64_t devices);

#endif
