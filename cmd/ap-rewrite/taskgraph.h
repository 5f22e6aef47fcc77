/* Private to ap-rewrite: --to taskgraph. */
#ifndef REWRITE_TASKGRAPH_H
#define REWRITE_TASKGRAPH_H

#include "program/program.h"
#include "tool/tool.h"

/* Write the task graph to standard output; the tool's exit code. Of stages: ends the tool
 * when the plan is bad or cannot be run. */
int taskgraph_of_stages(struct ap_tool *tool, struct ap_arena *arena,
                        const struct ap_doc *doc);
int taskgraph_of_program(struct ap_tool *tool, struct ap_arena *arena,
                         const struct ap_program *prog);

#endif
