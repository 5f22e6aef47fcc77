/* Private to ap-stage: from a planner's answer to the section "stages". */
#ifndef RESULT_H
#define RESULT_H

#include "oracle/oracle.h"
#include "pipeline/pipeline_price.h"
#include "pipeline/stages.h"
#include "simple.h"

/* A plan that is simpler than the best one, and little slower; all in the arena. */
struct stage_simpler {
    struct stage_simplicity is;
    const char *json; /* as below, up to `found` */
    double step_sec;
    int64_t peak_bytes;
    const char *found;
    int n_stages;
    int64_t microbatches;
};

struct stage_result {
    struct ap_buf json;   /* the section */
    double objective_sec; /* as ap-cost says it, of a step or between batches */
    double bound_sec;
    bool in_other_units; /* the search's bound, which is not written then */
    int64_t peak_bytes;  /* of the fullest device; may be more than the limit */
    const char *found;   /* members for the history, each with a comma in front */
    const struct stage_simpler *simpler; /* NULL: none was asked for, or found */
};

/* The planner, for when its plans turn out to need more memory than there is. */
struct stage_replan {
    plan_fn *run;
    const struct plan_params *params;
    bool one_outline; /* its plans differ in their points only: all may be priced */
};

/* The context of a planner's answer, and the plans that may be better. */
struct stage_candidates {
    const struct stage_model *model;
    const struct plan_instance *inst;
    struct stage_oracle *oracle;
    /* NULL, or plans for when recomputation takes no time: its others are priced, too,
       and stages recompute only those operators that save most memory per second */
    const struct plan_answer *light;
    /* NULL, or called for plans with less memory if a plan that is much faster than the
       best one does not fit */
    const struct stage_replan *replan;
    /* NULL, or finds the plan that the answer must be no slower than */
    const struct stage_replan *given;
    struct ap_work *work; /* as in struct plan_params */
    /* 0, or the result has the simplest of the planner's plans whose step is at most 1 +
       this times that of the best: one for each number of stages is priced */
    double simple;
};

/* Programs are built of plans whose price takes at least this share of the memory, or of
 * whose price the memory is: the program takes no less and no more than that of the other
 * (scripts/bench/memory-table). */
#define STAGE_ARENA_SHARE 0.6
/*
 * Bytes of the fullest device of a priced plan, as plan_whole_bytes: by its programs
 * (ap_pipeline_measure, which has the limit), unless the price is far from the limit.
 */
int64_t stage_result_peak(const struct stage_model *m, const struct plan_instance *inst,
                          const struct ap_stages *read, int64_t limit,
                          struct ap_pipeline_price *pipe);

/* The plan of a section in words (arena), and how simple it is; NULL where the section
 * cannot be read back, which pricing has done. */
const char *stage_result_words(struct ap_arena *arena, const struct stage_model *m,
                               const struct ap_buf *section, struct stage_simplicity *is);

/*
 * Asks for the shardings of the chosen points, puts the section together and prices it;
 * takes the best of the answer and its others by that price, which *answer becomes. Of
 * *stages the list of stages is in the section only, NULL afterwards. -1: the shard
 * command broke, or what it gave is no plan.
 */
int stage_result_make(struct ap_arena *arena, const struct stage_candidates *of,
                      struct plan_answer *answer, struct ap_stages *stages,
                      struct stage_result *out, struct ap_err *err);

/* ap_stages_check_waits of the section: -1 with err set where its stages would wait for
 * each other for ever. Other reasons to refuse a plan are not checked, and no other plan
 * is looked for: blocks of ap_blocks_carry, which ap-coarsen's are, never do this. */
int stage_result_check(const struct stage_model *m, const struct ap_buf *section,
                       struct ap_err *err);

#endif
