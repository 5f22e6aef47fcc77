/* Private to ap-cost: everything that is said about one plan. */
#ifndef PRICE_H
#define PRICE_H

#include "baseline.h"
#include "program.h"

struct cost_input {
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_cluster cluster;
    struct ap_cost cost;       /* the plan's cost model */
    struct ap_cost byte_count; /* the bytes variant: what a device sends */
    struct ap_sharding sharding;
};

struct priced {
    const char *name;
    const char *why_not; /* the plan does not exist: the reason; nothing else is filled */
    struct ap_plan plan;
    struct ap_price price;
    int n_colls;
    struct ap_coll_count *colls;
    double *coll_sec; /* per row of colls */
    double phase_sec[AP_N_PHASES];
    double sent_bytes;                   /* per device and step */
    double flops;                        /* per device and step */
    int64_t peak_bytes, parameter_bytes; /* per device */
};

/* Prices a plan; the program is built for memory. -1 when it is not legal. */
int price_plan(struct ap_arena *arena, const struct cost_input *in,
               const struct ap_plan *plan, struct priced *out, struct ap_err *err);

/* Section "cost". */
void price_to_json(const struct cost_input *in, const struct priced *p,
                   struct ap_buf *out);

/* Tables for people: model, plan, plan beside the baselines, collectives. */
void price_report(const struct cost_input *in, const struct priced *plan,
                  const struct priced *baselines, int n, struct ap_buf *out);

#endif
