/* Private to ap-rewrite: --to taskgraph. */
#ifndef REWRITE_TASKGRAPH_H
#define REWRITE_TASKGRAPH_H

#include "pipeline/pipeline_program.h"
#include "tool/tool.h"

/* Writes the task graph of programs to standard output; the tool's exit code. */
int taskgraph_write(struct ap_tool *tool, struct ap_arena *arena,
                    const struct ap_pipeline_program *program);

#endif
