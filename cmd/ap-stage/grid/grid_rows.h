/* Private to ap-stage: the best line of a space of lines. */
#ifndef GRID_ROWS_H
#define GRID_ROWS_H

#include "grid/grid.h"
#include "line/trainer.h"
#include "simple.h"

/* A space of lines. */
struct grid_space {
    const char *name;
    const struct ap_trainer *trainer; /* that runs all of them; NULL: none need to */
    bool pipelines, tensors, contexts, experts; /* lines may have them */
    /* what people try: powers of two, tensor parallelism inside hosts and with sequence
       parallelism, ZeRO over all devices; else all divisors, and all ways */
    bool hand;
    bool staged_shards;       /* ZeRO-2 and 3 beside a pipeline */
    int64_t most_micro_batch; /* samples of a replica at a time */
    int64_t least_sequence;   /* tokens that a device keeps of a sequence that is split */
    int64_t most_chunks;
    unsigned schedules; /* bits of enum ap_schedule */
};
/* All that the trainer can run. */
struct grid_space grid_space_of(const struct ap_trainer *trainer);
/* Grids that experts search by hand: data parallelism and ZeRO; tensor, data and expert
 * parallelism without a pipeline; all that a line can say, with whole backward passes,
 * and with split ones. */
enum { GRID_DATA, GRID_DEEPSPEED, GRID_MEGATRON, GRID_ZERO_BUBBLE, N_GRIDS };
extern const struct grid_space grid_spaces[N_GRIDS];
/* All of them. */
struct grid_space grid_space_all(void);
bool grid_is_of(const struct grid_space *space, const struct ap_line *line);

/* The lines that are searched, with known prices of other plans. */
struct grid_want {
    const struct grid_space *space;
    const struct plan_instance *inst; /* microbatches and memory */
    int n_stages, schedule;           /* 0, -1: any */
    enum stage_recompute recompute;
    bool each;
    enum ap_resharding resharding;
    double below; /* plans of this step and above are of no interest; INFINITY */
    /* also the simplest line whose step is at most 1 + this times that of the best plan;
       0: none. is: of the plan whose step is `below` */
    double simple;
    struct stage_simplicity is;
};

/* The best line of a grid. */
struct grid_row {
    bool found; /* else none fits, or which it is was not needed */
    struct ap_line line;
    double step_sec;
    int64_t peak_bytes;
};

struct grid_found {
    struct grid_row row[N_GRIDS];
    double
        whole_sec; /* of the best plan with whole backward passes; INFINITY: none fits */
    bool found;    /* a plan below the limit */
    struct ap_line line; /* of the best one */
    double step_sec;     /* of it, and what is said of it where none fits in less */
    int64_t microbatches, peak_bytes;
    const struct ap_line *leanest; /* where none fits: with the least bound of its memory,
                                      leanest_bytes; NULL: there is no line */
    double leanest_bytes;
    /* the least that a device's part of its host cannot hold of lines that offload, where
       that keeps some from fitting; INFINITY: it does not */
    double host_bytes;
    double least_sec; /* no line that the memory may hold is below; INFINITY: none may */
    struct grid_row simple; /* the simplest line, if it is simpler than the best plan */
    struct ap_line_counts n;
    const char *why_not; /* what kept the last line that was no plan from being one */
};

/*
 * The best line of the space by its price: all others are priced, or excluded by bounds.
 * -1: the model has no microbatches, err says why. All in the arena.
 */
int grid_search(struct ap_arena *arena, const struct stage_model *m,
                const struct grid_want *want, struct grid_found *out, struct ap_err *err);

/* The plan of the simplest line, else of the best one, as section, with algorithm, limits
 * and bound of *like. -1: the shard of a stage cannot be written. */
int grid_take(struct ap_arena *arena, const struct stage_model *m,
              const struct grid_found *found, const struct ap_stages *like,
              struct ap_stages *stages, struct stage_result *out, struct ap_err *err);

/* Adds the rows to the section, an object with members, as its member "grids". */
void grid_put_rows(struct ap_arena *arena, const struct grid_found *found,
                   struct ap_buf *section);

#endif
