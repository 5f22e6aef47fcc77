/* Private to ap-stage: from a planner's answer to the section "stages". */
#ifndef RESULT_H
#define RESULT_H

#include "oracle/oracle.h"
#include "pipeline/pipeline_price.h"
#include "pipeline/stages.h"

struct stage_result {
    struct ap_buf json;   /* the section */
    double objective_sec; /* as ap-cost says it, of a step or between batches */
    double bound_sec;
    int64_t peak_bytes; /* of the fullest device; may be more than the limit */
    const char *found;  /* members for the history, each with a comma in front */
};

/* How plans are priced, as they are written. */
struct stage_pricing {
    const struct stage_model *model;
    const struct plan_instance *inst; /* whose memory they must fit in */
    struct stage_oracle *oracle;
    const struct ap_stages *blank; /* what sections of all plans have in common */
    bool select; /* stages recompute only operators that save most memory per second */
    struct ap_work *work; /* as in struct plan_params */
};

/*
 * Prices plans, and keeps the best: those that fit first, then the quickest. What it is
 * given must outlive it. The caller stops it.
 */
struct stage_pricer;
struct stage_pricer *stage_pricer_start(const struct stage_pricing *of);
void stage_pricer_stop(struct stage_pricer *x);

/*
 * plan_price_fn: asks for the shardings of the plan's points, puts its section together
 * and prices that as ap-cost does. A plan that was priced before, or whose least_sec is
 * no less than the least price, is not priced. -1: the shard command broke, or what it
 * gave is no plan. *least counts plans that do not fit since stage_pricer_lacks was last
 * called.
 */
int stage_pricer_price(void *pricer, const struct plan_answer *plan, double *least,
                       struct ap_err *err);
/* Whether a plan could not be priced: else a planner's -1 is its own. */
bool stage_pricer_failed(const struct stage_pricer *x);
/* The price of the best plan that fits, INFINITY: none does. */
double stage_pricer_least(const struct stage_pricer *x);
/* Bytes that the quickest plan needs beyond what there is, of those priced since the last
 * call; 0: it fits, or a plan that does is as quick. */
int64_t stage_pricer_lacks(struct stage_pricer *x);

/*
 * Bytes of the fullest device of a priced plan, as plan_whole_bytes. The price counts
 * values, without what packing them loses. Near the limit the programs' buffers give the
 * memory of a device, if there are programs for such plans.
 */
int64_t stage_result_peak(struct ap_arena *scratch, const struct stage_model *m,
                          const struct plan_instance *inst, const struct ap_stages *read,
                          const struct ap_pipeline_price *pipe);

/*
 * The section of the best plan that was priced. first: what the planner answered, bound:
 * of all plans. Of *stages the list of stages is in the section only, NULL afterwards.
 */
void stage_result_make(struct ap_arena *arena, const struct stage_pricer *x,
                       const struct plan_answer *first, double bound,
                       struct ap_stages *stages, struct stage_result *out);

/*
 * Whether ap-rewrite can order what the section's stages run: 1 with err set where they
 * would wait for each other for ever. Other reasons to refuse a plan are not checked.
 * Linear, and programs are built only where a value of the backward pass goes to a later
 * block: blocks by hand may do that, those of ap_blocks_carry, which ap-coarsen's are,
 * never do (tests/unit/graph/test_blocks.c), so that no other plan is looked for.
 */
int stage_result_check(const struct stage_model *m, const struct ap_buf *section,
                       struct ap_err *err);

#endif
