/* Private to ap-stage: from the request to the section that is written. */
#ifndef PLANNING_H
#define PLANNING_H

#include "grid/grid_rows.h"
#include "input.h"
#include "oracle/oracle.h"
#include "result.h"

struct planning {
    const struct input *in;
    const struct plan_algorithm *algo;
    const struct stage_model *model;
    struct stage_oracle *oracle; /* ends the pool */
    struct stage_oracle_params oracle_params;
    struct plan_params params; /* the planner's */
    struct ap_stages stages;   /* but for the stages */
    bool select;               /* operators that are recomputed */
    bool offloads;             /* plans may keep values on the host */
};

/* pool: [kind of device]. It and p must stay where it is; the instance gets the oracle.
 */
void planning_start(struct ap_arena *arena, const struct input *in,
                    struct coproc_pool *const *pool, struct plan_instance *inst,
                    struct planning *p);

/* The question about the best line of a grid. */
struct grid_want planning_grids(const struct stage_options *r,
                                const struct plan_instance *inst,
                                const struct grid_space *space);

/*
 * Returns the exit code; err says why there is no plan. A plan may need more memory as it
 * is written than its planner knows of: who asks again for leaner ones ends with none,
 * the plans of others stand, with a warning.
 */
int planning_run(struct ap_arena *arena, const struct planning *p,
                 const struct plan_instance *inst, struct plan_answer *answer,
                 struct ap_stages *stages, struct stage_result *out, struct ap_err *err);

/* Ends the program with that code, and says what would do if there is no plan. */
_Noreturn void planning_give_up(struct ap_arena *arena, struct planning *p,
                                const struct plan_instance *inst, int code,
                                struct ap_err *err);

#endif
