/* Plans for trainers: a line as flags and files. */
#ifndef REWRITE_TRAINER_H
#define REWRITE_TRAINER_H

#include "line/trainer.h"
#include "tool/tool.h"

/*
 * Writes the line of the document's plan for a trainer, to the tool's output; what the
 * user's script must say to standard error. Ends the tool where the plan is bad, is no
 * line, or not one that the trainer runs. Returns the exit code.
 */
int trainer_rewrite(struct ap_tool *tool, struct ap_arena *arena,
                    const struct ap_doc *doc, const struct ap_trainer *trainer);

#endif
