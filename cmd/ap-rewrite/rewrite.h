/* Private to ap-rewrite: the document's plan, and its programs. */
#ifndef REWRITE_H
#define REWRITE_H

#include "pipeline/pipeline_program.h"
#include "tool/tool.h"

struct job {
    struct ap_planned in;
    struct ap_cost cost; /* of a sharding; ap_cost_free */
};

/* Reads the plan; ends the tool when something is bad. */
void rewrite_read(struct ap_arena *arena, const struct ap_doc *doc, struct job *job);
/* Its programs in that form; ends the tool where there are none. */
void rewrite_build(struct ap_arena *arena, const struct ap_doc *doc,
                   const struct ap_program_form *form, struct job *job,
                   struct ap_pipeline_program *program);
/* The cluster's devices that n ranks run on, by rank (arena). */
const int *rewrite_devices(struct ap_arena *arena, const struct job *job, int n);

#endif
