/* Private to grid/: the interface between the files that list, estimate and price the
 * lines of a grid. */
#ifndef GRID_ROWS_IMPL_H
#define GRID_ROWS_IMPL_H

#include "grid/grid_impl.h"
#include "grid/grid_rows.h"

struct grid_candidate {
    struct ap_line line;
    struct ap_stages stages; /* blocks of each stage, microbatches */
    int shard;               /* row of shards */
    int at_once;             /* row of its microbatches, recompute and trainer */
    double step_sec, bytes;  /* estimates */
    bool fits;
};

/* A way to shard that lines share, whatever microbatches and stages they have. */
struct grid_sharding {
    int64_t pipeline;
    struct ap_mesh mesh;
    struct ap_axis_uses uses;
    int64_t *devices; /* of the first stage */
    int64_t n_devices;
    bool ok;
    bool *asked;                      /* [at_once] */
    struct ap_stage_measure *measure; /* [at_once * classes + class] */
};

/* Microbatches, recomputation, and the trainer's scatters, which change the price but not
 * the plan. */
struct grid_at_once {
    int64_t microbatches;
    enum ap_line_recompute recompute;
    struct ap_stage_microbatch micro;
};

/* Blocks that are alike. */
struct grid_class {
    int block; /* one of them */
    bool experts;
    struct ap_subgraph sub;
    struct ap_nests nests;
};

struct grid_rows {
    struct ap_arena *arena;
    const struct stage_model *m;
    const struct grid_want *want;
    struct ap_line_model model;
    int n_classes, *class_of; /* [block] */
    struct grid_class *class;
    bool experts; /* some class has */
    int64_t sequence;
    double again;     /* share of the contractions that is recomputed with all layers */
    double least_sec; /* of all lines that were looked at: no step is below */
    int n, cap;
    struct grid_candidate *row;
    int n_shardings, cap_shardings;
    struct grid_sharding *sharding;
    int n_at_once, cap_at_once;
    struct grid_at_once *at_once;
    struct ap_err why; /* of the last line without a plan */
};

/* grid_lines.c: fills row, sharding and at_once. */
int grid_list(struct grid_rows *r, struct ap_err *err);
/* grid_estimate.c: fills the estimates. */
int grid_estimate(struct grid_rows *r, struct ap_err *err);

#endif
