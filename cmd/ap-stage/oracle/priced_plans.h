/*
 * Private to ap-stage: plans that were priced with their layouts, and what their prices
 * say of plans with the same outline: the same blocks on the same devices, in as many
 * microbatches and the same order. Layouts add nearly the same to the estimate of all
 * plans of one outline if there are several stages (a plan of one stage may differ from
 * its front), and a stage that does not fit in one of them fits in none.
 */
#ifndef PRICED_PLANS_H
#define PRICED_PLANS_H

#include "planner.h"

struct priced_plan {
    struct plan_answer plan;
    double step_sec;            /* priced; plan.step_sec is the estimate */
    const int64_t *stage_bytes; /* [stage]: peak of a device; NULL: not of one stage */
};

struct priced_plans {
    int n, cap;
    struct priced_plan *plan; /* arena of priced_plans_add */
};

/* stage_bytes may be NULL; what the plan points to must outlive the list. */
void priced_plans_add(struct ap_arena *arena, struct priced_plans *l,
                      const struct plan_answer *plan, double step_sec,
                      const int64_t *stage_bytes);

struct forecast {
    bool known;         /* something is known of it: one of its outline was priced */
    bool same;          /* it was priced itself: what is written is the same */
    double step_sec;    /* the estimate, if nothing is known */
    int64_t peak_bytes; /* of stages that were priced; 0: of none */
};

struct forecast priced_plans_forecast(const struct priced_plans *l,
                                      const struct plan_instance *inst,
                                      const struct plan_answer *plan);

#endif
