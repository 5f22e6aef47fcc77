/* Private to ap-rewrite: plans of pipeline stages. */
#ifndef REWRITE_PIPE_H
#define REWRITE_PIPE_H

#include "tool/tool.h"

/* Writes the document with the section "pipeline"; the tool's exit code. Ends the tool
 * when the plan is bad or cannot be run. */
int pipe_rewrite(struct ap_tool *tool, struct ap_arena *arena, const struct ap_doc *doc);

#endif
