/*
 * A plan, with or without pipeline stages, in the words of the field:
 * "TP 8 with sequence parallelism · PP 2 × VPP 3 · DP 4 · ZeRO-1 · micro-batch 1 ·
 * recompute selected".
 */
#ifndef AP_PLAN_WORDS_H
#define AP_PLAN_WORDS_H

#include "pipeline/stages.h"
#include "plan/degrees.h"

struct ap_plan_words {
    struct ap_degrees degrees; /* of the stages with most FLOPs */
    int pipeline, chunks;      /* sets of devices, and stages on each */
    enum ap_schedule schedule; /* if there are several stages */
    int64_t batch;             /* of a step; 0: no input has one */
    int64_t microbatches;
    /* rows of a microbatch that a device has, rounded up; batch / microbatches / data */
    int64_t micro_batch;
    int64_t sequence_length;     /* of the inputs; 0: they have none */
    enum ap_recompute recompute; /* of the stages with most FLOPs */
    int64_t n_devices;           /* that run something */
    bool stages_differ;          /* in degrees, devices or recomputation */
    /* if the cluster has several kinds of devices: the number of devices of each kind
       that run something, and "stage 0 on H100-80GB, stage 1 on A100-80GB" (arena); else
       NULL */
    int64_t kind_devices[AP_MAX_KINDS];
    const char *kinds;
};

/* Of one sharding plan; d is the plan's. */
void ap_words_of_plan(struct ap_arena *arena, const struct ap_plan *plan,
                      const struct ap_plan_degrees *d, struct ap_plan_words *out);
/* Of stages; each[stage] (arena) are theirs. The degrees are those under which most FLOPs
 * run. */
void ap_words_of_stages(struct ap_arena *arena, const struct ap_staged_graph *of,
                        const struct ap_stages *stages, struct ap_plan_words *out,
                        struct ap_plan_degrees **each);

void ap_words_print(const struct ap_plan_words *s, struct ap_buf *out);
/*
 * The first line of a report, without an end of line: ap_words_print's, or where layers
 * or stages differ the mixture: "PP 4 · 8 microbatches; stages 0-1 TP 8, stages 2-3 DP
 * 8". each: one per stage; stages NULL: a plan without them, and each is one.
 */
void ap_words_line(const struct ap_plan_words *s, const struct ap_plan_degrees *each,
                   const struct ap_stages *stages, struct ap_buf *out);
/* That line (arena) of a plan without stages, and of stages. */
const char *ap_words_text(struct ap_arena *arena, const struct ap_plan *plan);
const char *ap_words_text_stages(struct ap_arena *arena, const struct ap_staged_graph *of,
                                 const struct ap_stages *stages);

#endif
