/* Private to ap-rewrite: plans of pipeline stages. */
#ifndef REWRITE_PIPE_H
#define REWRITE_PIPE_H

#include "pipeline/pipeline_program.h"
#include "tool/tool.h"

struct staged_input {
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_blocks blocks;
    struct ap_cluster cluster;
    struct ap_stages stages;
};
/* Ends the tool when the plan is bad. */
void pipe_read(struct ap_arena *arena, const struct ap_doc *doc, struct staged_input *in);
/* The same, and its programs in that form. */
void pipe_build(struct ap_arena *arena, const struct ap_doc *doc,
                const struct ap_program_form *form, struct staged_input *in,
                struct ap_pipeline_program *program);
/* Ends the tool with the message, and the file before a JSON pointer. */
_Noreturn void pipe_refuse(const struct ap_doc *doc, int exit_code,
                           const struct ap_err *err);

/* The plan's n devices, ascending (arena): rank r is the r-th of them. */
const int *pipe_devices(struct ap_arena *arena, const struct staged_input *in, int n);

#endif
