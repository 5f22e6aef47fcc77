/* Private to ap-stage: the plan that a line says (--grid). Nothing is searched. */
#ifndef GRID_H
#define GRID_H

#include "oracle/instance.h"
#include "line/line.h"
#include "result.h"

/*
 * The plan of the line on the model's cluster, priced. A stage's devices follow each
 * other, tensor parallelism innermost, then context, experts and data. -1 if the model or
 * the cluster has no such plan; err has the reason.
 */
int grid_plan(struct ap_arena *arena, const struct stage_model *m,
              const struct ap_line *line, struct ap_stages *stages,
              struct stage_result *out, struct ap_err *err);

/*
 * The line that a file of a trainer says, "TRAINER:FILE", or the text itself, which
 * begins with "-" or "{" or has flags in it; with more keys (NULL: none);
 * what does not map is a warning. Ends the tool where the file is bad, is about another
 * model or other devices, or says what no line or the trainer cannot.
 */
void grid_from(struct ap_arena *arena, const struct stage_model *m, const char *from,
               const char *more, struct ap_line *line);

#endif
