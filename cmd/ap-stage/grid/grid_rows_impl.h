/* Private to grid/: the interface between the files that list, measure and price lines.
 */
#ifndef GRID_ROWS_IMPL_H
#define GRID_ROWS_IMPL_H

#include "grid/grid_impl.h"
#include "grid/grid_rows.h"

/* What is known of a line. */
enum grid_known {
    GRID_LISTED,    /* a bound by its operators */
    GRID_TIMED,     /* a bound by its stages, without what they send */
    GRID_MEASURED,  /* and of its memory */
    GRID_SIMULATED, /* the same in the order of its schedule */
    GRID_PRICED,
    GRID_TOO_LARGE, /* does not fit */
    GRID_NO_PLAN    /* the model cannot be sharded so */
};

struct grid_candidate {
    struct ap_line line;
    int cut, shard, at_once; /* rows of these */
    enum grid_known known;
    double step_sec; /* no step is below; of a priced line the step */
    double bytes;    /* likewise, of the fullest device; 0: not known yet */
};

/* Blocks of the stages: end[stage] is the block after its last. */
struct grid_cut {
    int64_t pipeline, chunks;
    int n;
    const int *end;
};

/* Of a part under a sharding, for a number of microbatches. */
#define GRID_MOST_BLOCKS 3
struct grid_measure {
    struct ap_stage_measure sum; /* not filled of three blocks */
    struct ap_stage_largest largest[GRID_MOST_BLOCKS];
};

/* A way to shard that lines share, whatever microbatches and chunks they have. */
struct grid_sharding {
    int64_t pipeline;
    struct ap_mesh mesh;
    struct ap_axis_uses uses;
    int64_t *devices; /* of the first stage */
    int64_t n_devices;
    double least_sec;              /* of its lines */
    int measured;                  /* blocks of the longest parts; 0: none are */
    bool ok;                       /* these have plans */
    bool *asked;                   /* [at_once] */
    struct grid_measure **measure; /* [at_once]: [part], NULL: not asked */
};

/* Microbatches, recomputation, and the trainer's scatters, which change the price but not
 * the plan. */
struct grid_at_once {
    int64_t microbatches;
    enum ap_line_recompute recompute;
    struct ap_stage_microbatch micro;
};

/* Up to three blocks that are measured for all that are identical. */
struct grid_part {
    int first, last;
    bool experts;
    struct ap_subgraph sub;
    struct ap_nests nests;
};

struct grid_rows {
    struct ap_arena *arena;
    const struct stage_model *m;
    const struct grid_want *want;
    struct ap_line_model model;
    int n_parts;
    struct grid_part *part;
    const int *run[GRID_MOST_BLOCKS]; /* [length - 1][first block]: its part */
    const bool *far;                  /* [node]: read beyond the next block */
    const bool *far_block; /* [block]: reads a weight or state that a block beyond the
                              next one reads */
    bool far_kept;         /* such a value is kept for a backward pass */
    bool experts;          /* some block has */
    int64_t sequence;
    int n, cap;
    struct grid_candidate *row;
    int n_cuts, cap_cuts;
    struct grid_cut *cut;
    int n_shardings, cap_shardings;
    struct grid_sharding *sharding;
    int n_at_once, cap_at_once;
    struct grid_at_once *at_once;
    int n_legal;       /* lines, with those that were not worth a row */
    int n_too_large;   /* of these: weights and states alone do not fit */
    double least_sec;  /* of lines without a row that may fit */
    struct ap_err why; /* of the last line without a plan */
};

/* grid_lines.c: fills row, cut, sharding and at_once. */
int grid_list(struct grid_rows *r, struct ap_err *err);

/* ---- grid_parts.c ---- */

/* Fills part and what follows it. */
int grid_find_parts(struct grid_rows *r, struct ap_err *err);
/* Measures parts of so many blocks under n ways to shard, side by side: one and two for
 * times, three for what is largest. */
void grid_measure(struct grid_rows *r, int n, const int *sharding, int blocks);
/* Of a line whose sharding was measured: the stages (arena) as a schedule has them, with
 * no more seconds or bytes than they have; false: it has no plan. */
bool grid_stages(const struct grid_rows *r, const struct grid_candidate *row,
                 struct ap_arena *arena, struct ap_sim_stage **stage);

/* ---- grid_bound.c ---- */

/* Bounds of a line whose sharding was measured: of its step and its memory by its busiest
 * devices, and of both by its schedule. */
void grid_bound_time(const struct grid_rows *r, struct grid_candidate *row);
void grid_bound_memory(const struct grid_rows *r, struct grid_candidate *row);
void grid_simulate(const struct grid_rows *r, struct grid_candidate *row);

#endif
