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

#endif
