/* Private to ap-rewrite: stages as HLO and as PartitionSpecs. */
#ifndef REWRITE_STAGE_TEXTS_H
#define REWRITE_STAGE_TEXTS_H

#include "hlo.h"
#include "rewrite.h"

/*
 * One JSON object: an HLO module per stage, annotated with the stage's shardings, on its
 * whole batch, and the transfers from results of one to parameters of another. The tool's
 * exit code; ends the tool when the plan is bad or cannot be run.
 */
int stages_to_hlo(struct ap_tool *tool, struct ap_arena *arena, const struct ap_doc *doc,
                  enum hlo_dialect dialect, struct job *job);
/* A Python module: PartitionSpecs per stage, and the same transfers. */
int stages_to_jax(struct ap_tool *tool, struct ap_arena *arena, const struct ap_doc *doc,
                  struct job *job);

#endif
