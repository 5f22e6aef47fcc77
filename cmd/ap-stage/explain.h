/* Private to ap-stage: what to change where a planner found no plan. */
#ifndef EXPLAIN_H
#define EXPLAIN_H

#include "judge/planner.h"

/* The text about a plan. */
struct plan_found {
    int n_stages;
    int64_t microbatches, peak_bytes;
    enum ap_schedule schedule;
    bool recompute; /* some stage */
};

/* How the planner is asked again. */
struct plan_ask_again {
    const struct plan_algorithm *row;
    /* NULL, or finds a plan that fits in the instance's memory where the planner has
       none: a line of a grid. */
    bool (*lines)(void *ctx, const struct plan_instance *inst, struct plan_found *out);
    /* NULL, or tells how much memory a device needs for the written plan, which may be
       more than the planner knows of. Returns nonzero if it cannot be written. */
    int (*written)(void *ctx, const struct plan_instance *inst,
                   const struct plan_answer *plan, int64_t *peak_bytes,
                   struct ap_err *err);
    /* NULL, or tells whether there is a plan with `times` as many hosts. */
    bool (*hosts)(void *ctx, const struct plan_instance *inst, int times);
    void *ctx;
};

/*
 * Puts after the planner's words in err what would do: the least memory found, more
 * hosts, fewer rules (--stages, --submeshes, --schedule), else the default planner; each
 * has been tried. Where more memory would do, the words are replaced.
 */
void plan_explain(const struct plan_instance *inst, const struct plan_params *params,
                  const struct plan_ask_again *again, struct ap_err *err);

#endif
