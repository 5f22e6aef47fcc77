/* Private to grid/: a line's plan in parts. */
#ifndef GRID_IMPL_H
#define GRID_IMPL_H

#include "grid/grid.h"
#include "pipeline/pipeline_price.h"

/* Data that the lines of one model share. */
struct grid_facts {
    const struct stage_model *m;
    struct ap_layers layers;
    const int *first, *last;                 /* [layer]: blocks */
    const uint8_t *origins;                  /* [node] enum ap_origin */
    const bool *again[AP_N_LINE_RECOMPUTES]; /* [node]: is recomputed */
};
void grid_facts_find(struct ap_arena *arena, const struct stage_model *m,
                     struct grid_facts *facts);

/* A line on the model's cluster. */
struct grid_maker {
    struct ap_arena *arena;
    const struct stage_model *m;
    const struct grid_facts *facts;
    const struct ap_line *line;
    struct ap_stages *stages;
    struct ap_axis_uses uses;
    struct ap_mesh mesh; /* of every stage */
};
/* Mesh, degrees and microbatches, and the blocks of each stage. -1: the model or the
 * cluster cannot be divided so. */
int grid_lay(struct grid_maker *k, struct ap_err *err);
/* Devices of all stages. */
void grid_place(const struct grid_maker *k);
/* The plan of a part of the model, whose graph and nests are there. -1: as above. */
int grid_shard(const struct grid_maker *k, struct ap_arena *arena, struct ap_plan *plan,
               struct ap_err *err);
/* Fills all of *stages but their texts, and the price. */
int grid_build(struct grid_maker *k, struct ap_pipeline_price *price, struct ap_err *err);
/* The texts about the plan. */
int grid_write(struct grid_maker *k, double step_sec, int64_t peak_bytes,
               struct stage_result *out, struct ap_err *err);

#endif
