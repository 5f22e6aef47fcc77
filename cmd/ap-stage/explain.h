/* Private to ap-stage: what to change where a planner found no plan. */
#ifndef EXPLAIN_H
#define EXPLAIN_H

#include "planner.h"

/* How the planner is asked again. */
struct plan_ask_again {
    const struct plan_algorithm *row;
    /* NULL, or tells how much memory a device needs for the plan as it is written, which
       may be more than the planner knows of. Not 0: it cannot be written. */
    int (*written)(void *ctx, const struct plan_instance *inst,
                   const struct plan_answer *plan, int64_t *peak_bytes,
                   struct ap_err *err);
    /* NULL, or tells whether there is a plan with so many times the hosts. */
    bool (*hosts)(void *ctx, const struct plan_instance *inst, int times);
    void *ctx;
};

/*
 * Puts behind the planner's words in err what would do: the least memory found, more
 * hosts, fewer rules (--stages, --submeshes, --schedule), else the default planner; each
 * has been tried. Where more memory would do, the words are replaced.
 */
void plan_explain(const struct plan_instance *inst, const struct plan_params *params,
                  const struct plan_ask_again *again, struct ap_err *err);

#endif
