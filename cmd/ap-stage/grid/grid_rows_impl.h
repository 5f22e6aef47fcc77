/* Private to grid/: the interface between the files that list, measure and price lines.
 */
#ifndef GRID_ROWS_IMPL_H
#define GRID_ROWS_IMPL_H

#include "grid/grid_impl.h"
#include "grid/grid_rows.h"

/* What is known of a line. */
enum grid_known {
    GRID_LISTED,    /* a bound by its operators */
    GRID_MEASURED,  /* bounds by its stages, without what they send */
    GRID_SIMULATED, /* the same in the order of its schedule */
    GRID_TIMED,     /* by its plan, whose memory is not known */
    GRID_PRICED,
    GRID_TOO_LARGE, /* does not fit */
    GRID_NO_PLAN    /* the model cannot be sharded so */
};

struct grid_candidate {
    struct ap_line line;
    int cut, shard, at_once; /* rows of these */
    int bare_at_once;        /* of the bare way to shard */
    enum grid_known known;
    double step_sec; /* no step is below; of a timed or priced line the step */
    double bytes;    /* likewise, of the fullest device */
    /* what was offloaded when it did not fit: 1 << bits of enum ap_line_offload, 1 for
       nothing */
    uint8_t tried;
    bool was_priced; /* with one of these */
    /* of the ways to offload that the host's memory rules out, the fewest bytes that a
       device needs there; 0: none is ruled out */
    double host_bytes;
};

/* Blocks of the stages: end[stage] is the block after its last. */
struct grid_cut {
    int64_t pipeline, chunks;
    int n;
    const int *end;
};

/* A block of a part under a sharding, for a number of microbatches. */
struct grid_measure {
    struct ap_stage_measure sum;
    int n_sent; /* what is sent together */
    struct grid_sent {
        uint8_t pack, kind, axes; /* of struct ap_stage_packs */
        double bytes;
    } * sent;
};

/* A way to shard that lines share, whatever microbatches and chunks they have. */
struct grid_sharding {
    bool even; /* all stages lie on the hosts as the first one does */
    struct ap_mesh mesh;
    struct ap_axis_uses uses;
    int64_t *devices; /* of the first stage */
    int64_t n_devices;
    double least_sec;              /* of its lines */
    bool is_bare;                  /* without replicas, ZeRO, and what these send */
    int bare;                      /* that one: ways that differ in this share it */
    int64_t replicas;              /* that it leaves out: it has more microbatches */
    bool bounded;                  /* its lines are, by the bare one */
    bool measured, ok;             /* ok: its parts have plans */
    uint8_t *needed;               /* [part]: bits of its blocks that lines have */
    bool *asked;                   /* [at_once] */
    struct ap_cost *cost;          /* of its collectives */
    struct ap_arena arena;         /* has sent of its measures */
    struct grid_measure **measure; /* [at_once]: [part * GRID_MOST_BLOCKS + block] */
};

/* Microbatches, recomputation, and the trainer's scatters, which change the price but not
 * the plan. */
struct grid_at_once {
    int64_t microbatches;
    enum ap_line_recompute recompute;
    bool is_bare; /* of bare ways: what is as large as the whole batch is left out */
    struct ap_stage_microbatch micro;
};

/* Up to three blocks that follow each other, for all such that are identical, or the ends
 * of the model. */
#define GRID_MOST_BLOCKS 3
struct grid_part {
    int n, block[GRID_MOST_BLOCKS]; /* that are measured */
    bool all; /* conversions of what further blocks read count, too */
    struct ap_subgraph sub;
    struct ap_nests nests;
};

struct grid_rows {
    struct ap_arena *arena;
    const struct stage_model *m;
    const struct grid_want *want;
    struct line_model model;
    struct ap_line_facts facts;
    /* what lines that do not fit may offload, and [node] all of that: with it blocks are
       measured; 0, NULL: the cluster has no link to the host, or the trainer no flag */
    unsigned offloads;
    const bool *host;
    int n_parts;
    struct grid_part *part;
    const int *run[GRID_MOST_BLOCKS]; /* [length - 1][first block]: its part */
    /* the first and the last two blocks together, where the first and the last block
       share a weight (tied embeddings); -1: none */
    int ends;
    const bool *far;       /* [node]: read beyond the next block */
    const bool *far_block; /* [block]: reads a weight or state that a block beyond the
                              next one reads */
    bool far_kept;         /* such a value is kept for a backward pass */
    int64_t sequence;
    int n, cap;
    struct grid_candidate *row;
    int n_cuts, cap_cuts;
    struct grid_cut *cut;
    int n_shardings, cap_shardings;
    struct grid_sharding *sharding;
    int n_at_once, cap_at_once;
    struct grid_at_once *at_once;
    int n_legal;            /* lines, with those that were not worth a row */
    int n_too_large;        /* of these: weights and states alone do not fit */
    int n_no_plan;          /* of these: the model cannot be laid out so */
    struct ap_line leanest; /* of the lines that do not fit */
    double leanest_bytes;   /* INFINITY: there is none */
    double host_bytes;      /* the least of lines without a row; likewise */
    double optimizer_bytes; /* states and masters */
    double least_sec;       /* of lines without a row that may fit */
    struct ap_err why;      /* of the last line without a plan */
};

/* ---- grid_rows.c ---- */

/* Lists the lines and the parts. -1: as grid_search. */
int grid_start(struct ap_arena *arena, const struct stage_model *m,
               const struct grid_want *want, struct grid_rows *r, struct ap_err *err);
void grid_end(struct grid_rows *r);
/* Lines of this step and above are left out: beside a plan whose report says the best
 * line none are. */
double grid_limit(const struct grid_want *want);
/* The plan of a line, by its price; its memory only if its step is less than `below`. */
void grid_price(const struct grid_rows *r, double below, struct grid_candidate *row);

/* grid_lines.c: fills row, cut, sharding and at_once. */
int grid_list(struct grid_rows *r, struct ap_err *err);

/* ---- grid_parts.c ---- */

/* Fills part and what follows it. */
int grid_find_parts(struct grid_rows *r, struct ap_err *err);
/* Marks the parts that lines of this way to shard and cut need. */
void grid_need(const struct grid_rows *r, struct grid_sharding *s, int cut);
/* Measures the parts that lines need under n ways to shard, side by side. */
void grid_measure(struct grid_rows *r, int n, const int *sharding);
/*
 * Of a line and its sharding or the bare one, which was measured: the stages (arena) as a
 * schedule has them, with no more seconds or bytes than they have. NULL: no such bound is
 * known, since blocks of a stage share weights.
 */
struct ap_sim_stage *grid_stages(const struct grid_rows *r,
                                 const struct grid_candidate *row, int sharding,
                                 struct ap_arena *arena);

/* ---- grid_bound.c ---- */

/* Bounds of a line whose bare sharding was measured, or its own, by its busiest devices,
 * and by its schedule. */
void grid_bound_bare(const struct grid_rows *r, struct grid_candidate *row);
void grid_bound(const struct grid_rows *r, struct grid_candidate *row);
void grid_simulate(const struct grid_rows *r, struct grid_candidate *row);
/* A row that does not fit offloads what was not tried, of which the bound is least;
 * false: it has no such plan. */
bool grid_offload(const struct grid_rows *r, struct grid_candidate *row);
/* Whether a device's part of the host cannot hold so many bytes, which the row notes. */
bool grid_exceeds_host(const struct grid_rows *r, double bytes,
                       struct grid_candidate *row);

/* ---- grid_lines.c ---- */

/* Bytes that some device has on its host at least, of the optimizer. */
double grid_host_bytes(const struct grid_rows *r, const struct ap_line *line);

#endif
