/* Private to ap-stage: the best of the grids that experts search by hand. */
#ifndef GRID_ROWS_H
#define GRID_ROWS_H

#include "grid/grid.h"

/* The lines of a grid. */
enum grid_family {
    GRID_DATA,      /* data parallelism and ZeRO */
    GRID_DEEPSPEED, /* tensor, data and expert parallelism, no pipeline */
    GRID_MEGATRON,  /* all that a line can say */
    N_GRIDS
};
extern const char *const grid_names[N_GRIDS];

/* The lines that are searched, with known prices of other plans. */
struct grid_want {
    enum grid_family family; /* all of its lines; of the others the best is reported */
    const struct plan_instance *inst; /* microbatches and memory */
    int n_stages, schedule;           /* 0, -1: any */
    enum stage_recompute recompute;
    bool each;
    enum ap_resharding resharding;
    double below; /* plans of this step and above are of no interest; INFINITY */
};

/* The best line of a grid. */
struct grid_row {
    enum grid_family family;
    bool found; /* else none fits */
    struct ap_line line;
    double step_sec;
    int64_t peak_bytes;
    bool priced; /* else both are estimates */
};

struct grid_found {
    struct grid_row row[N_GRIDS];
    bool found;          /* a plan below the limit */
    struct ap_line line; /* of the best one */
    double step_sec;     /* of it, and what is said of it where none fits in less */
    int64_t microbatches, peak_bytes;
    double least_sec; /* no line that the memory may hold is below; INFINITY: none may */
    int64_t n_lines;  /* that were looked at */
    int64_t n_priced; /* of these */
    const char *why_not; /* what kept the last line that was no plan from being one */
};

/*
 * The best line of the family by its price, and rows of all grids. -1: the model has no
 * microbatches, err says why. All in the arena.
 */
int grid_search(struct ap_arena *arena, const struct stage_model *m,
                const struct grid_want *want, struct grid_found *out, struct ap_err *err);

/* The plan of the best line as section, with algorithm, limits and bound of *like. -1:
 * the shard of a stage cannot be written. */
int grid_take(struct ap_arena *arena, const struct stage_model *m,
              const struct grid_found *found, const struct ap_stages *like,
              struct ap_stages *stages, struct stage_result *out, struct ap_err *err);

/* Adds the rows to the section, an object with members, as its member "grids". */
void grid_put_rows(struct ap_arena *arena, const struct grid_found *found,
                   struct ap_buf *section);

#endif
