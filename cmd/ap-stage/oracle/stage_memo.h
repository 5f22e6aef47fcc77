/*
 * Private to ap-stage: stages of plans that were read back and priced. Nearly equally
 * good plans share most of their stages.
 */
#ifndef STAGE_MEMO_H
#define STAGE_MEMO_H

#include "oracle/oracle.h"
#include "pipeline/pipeline_price.h"

struct stage_memo; /* memo */

/* The caller stops it. The model must outlive it. */
struct stage_memo *stage_memo_start(const struct stage_model *m);
void stage_memo_stop(struct stage_memo *memo);

/* A plan as it was read back. */
struct stage_memo_plan {
    struct ap_stages read;
    struct ap_stage_priced *const *priced; /* [stage], for ap_pipeline_compare */
};

/*
 * Writes the section of the plan, whose shardings are those of detail, and reads it back
 * as ap-cost does, which checks blocks, devices and shardings against each other; stages
 * that were read before are taken from there. The shardings in *stages are then as they
 * are to be written, with the memo's memory.
 */
int stage_memo_read(struct stage_memo *memo, struct ap_arena *arena,
                    const struct stage_detail *detail, struct ap_stages *stages,
                    struct stage_memo_plan *plan, struct ap_err *err);

#endif
