/* Private to grid/: a line's plan in parts. */
#ifndef GRID_IMPL_H
#define GRID_IMPL_H

#include "grid/grid.h"
#include "grid/line_plan.h"
#include "pipeline/pipeline_price.h"

void grid_model_find(struct ap_arena *arena, const struct stage_model *m,
                     struct line_model *model);
/* Fills all of *stages but their texts, and the price. */
int grid_build(struct line_maker *k, const struct stage_model *m,
               struct ap_pipeline_price *price, struct ap_err *err);
/* The texts about the plan. */
int grid_write(struct line_maker *k, double step_sec, int64_t peak_bytes,
               struct stage_result *out, struct ap_err *err);

#endif
