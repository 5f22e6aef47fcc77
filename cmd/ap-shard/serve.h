/* Private to ap-shard --serve: parts of the graph, what is alike, pools of plans. */
#ifndef SERVE_H
#define SERVE_H

#include "blocks.h"
#include "fold.h"
#include "shard.h"
#include "stage_cost.h"

/* ---- serve_blocks.c: which blocks are alike ---- */

/*
 * Blocks as parts are cut: get-tuple-element is where its operand is. The externals of a
 * block are what its nodes read of others, and what constants among those are made of.
 */
struct serve_blocks {
    const struct ap_graph *graph;
    int n;                        /* 0: the document has none */
    const int *home, *rank;       /* [node]: its block, position in it */
    const int *node_start, *node; /* CSR by block, ascending */
    const int *ext_start, *ext;   /* CSR by block, in order of first use */
    const int *to_start,
        *to;               /* CSR by node: other blocks that use its value, ascending */
    const bool *leaf;      /* [node]: a part that reads it has a copy of its own */
    const uint64_t *layer; /* [node]: alike for nodes at the same place of a family's
                              instances, 0 for none */
    const int *class_of;   /* [block]: the first block that is equal inside */
    /* The core of a block: two periods in a row of what it repeats with, anywhere in the
       graph, the same for a class; of a block that stands alone, it and a neighbour that
       repeats. [block]: its first block (-1: none), its
       period, and which block of the period this one is. */
    const int *core, *core_period, *core_offset;
};
/* Linear in the graph; families may be NULL. */
void serve_blocks_init(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_blocks *blocks, const struct ap_families *families,
                       struct serve_blocks *b);

/*
 * Words that are equal for two lists of blocks if and only if the parts are equal: per
 * block its class, where what it reads comes from, and what is used outside of the part.
 */
struct serve_content {
    int n;            /* blocks */
    const int *block; /* ascending */
    const int *start; /* [n + 1] into word */
    const uint64_t *word;
    uint64_t hash;
};
void serve_content_of(struct ap_arena *arena, const struct serve_blocks *b, int n,
                      const int *block, struct serve_content *c);
bool serve_content_equal(const struct serve_content *a, const struct serve_content *b);

/*
 * From `from` on blocks of the same classes follow each other with a period, wired alike
 * but for the first and the last of them; extra periods may be left out behind the first.
 * 0: nothing repeats.
 */
struct serve_period {
    int from, period, extra;
};
struct serve_period serve_content_period(const struct serve_blocks *b,
                                         const struct serve_content *c);
/* The list without `drop` of the extra periods; -1 when no part of the graph is equal to
 * it. Otherwise the first such part. */
int serve_content_drop(struct ap_arena *arena, const struct serve_blocks *b,
                       const struct serve_content *c, const struct serve_period *p,
                       int drop, struct serve_content *out);

/* ---- serve_part.c: parts cut out ---- */

struct serve_part {
    struct ap_arena arena;
    struct serve_content content;
    struct ap_subgraph sub;
    struct ap_nests nests;
    int64_t bytes; /* about what it holds */
    /* [node of the part]: block of the list and rank there, or first block that reads it
       and -1 - which external of it */
    const int *at, *place;
};
/* NULL with err. The caller frees with serve_part_free. */
struct serve_part *serve_part_new(const struct serve_blocks *b,
                                  const struct serve_content *c, struct ap_err *err);
/* The nodes inside; no content, nothing alike. */
struct serve_part *serve_part_of_nodes(const struct ap_graph *g, const bool *inside,
                                       struct ap_err *err);
void serve_part_free(struct serve_part *part);
/*
 * Groups that stand at the same place of alike blocks, or of a family's instances, and
 * have equal nests are tied.
 * Arena of the caller.
 */
void serve_part_tie(struct ap_arena *arena, const struct serve_blocks *b,
                    const struct serve_part *part, struct shard_fold *fold);
/*
 * group[g]: the group of the small part that group g of the large one copies, and
 * node[v] likewise; large has `extra` periods p more. -1 when some group has no equal.
 */
int serve_part_map(const struct serve_blocks *b, const struct serve_part *large,
                   const struct serve_part *small, const struct serve_period *p,
                   int extra, int *group, int *node);

/*
 * seen[g]: the group of a core's part that group g of the part copies, -1 for none; only
 * those of blocks with this core are written.
 */
void serve_part_core(const struct serve_blocks *b, const struct serve_part *part,
                     const struct serve_part *core, int *seen);

/* ---- serve_pool.c: plans of a part on a mesh ---- */

#define SERVE_VARIANTS 3 /* plans of a search, by price of memory */

/* What is decided before a search, by the searches of the part's cores. */
struct serve_seed {
    bool any, *fixed;                             /* [group] */
    struct ap_choice_vec *choice[SERVE_VARIANTS]; /* [group] */
};

/* Plans of a part on one mesh: the search's at several prices of memory, baselines. */
struct serve_pool {
    struct ap_arena arena;
    int n, n_groups, n_nodes;
    const char **name;             /* [plan] */
    struct ap_choice_vec **choice; /* [plan][group] */
    bool **remake;                 /* [plan][node], NULL: none */
    double objective;  /* of the search, < 0: it has another measure; whole batch */
    double bound;      /* of all plans; 0: only least_sec is known */
    double *least_sec; /* [group]: cheapest strategy, a bound without conversions */
    int variant[SERVE_VARIANTS]; /* plans of the search, quickest first */
    bool recompute_heavy;
    int64_t bytes;
};
/* NULL with err; the caller frees. seed may be NULL; ties add to it. */
struct serve_pool *serve_search(const struct serve_blocks *b,
                                const struct serve_part *part, const struct ap_cost *cost,
                                const struct shard_request *req, struct serve_seed *seed,
                                struct ap_err *err);
void serve_pool_free(struct serve_pool *pool);
/*
 * Plan i for a part whose groups and nodes copy those of the pool's part (NULL: it is
 * that part).
 */
struct ap_plan serve_pool_plan(struct ap_arena *arena, const struct serve_pool *pool,
                               int i, const struct serve_part *part, const int *group,
                               const int *node, const struct ap_cost *cost);

/* ---- serve_narrow.c: good answers at once ---- */

/*
 * As a solver, but with few strategies per node at a time; known: answers that it is to
 * be no worse than (NULL ones are none). Nothing is proven: bound 0.
 */
int serve_narrow(struct ap_arena *arena, const struct ap_problem *p, int n_known,
                 const int *const *known, ap_solver_fn *run,
                 const struct ap_solve_params *params, struct ap_solution *sol,
                 struct ap_err *err);

/* ---- serve_memo.c: what was found stays ---- */

/* A place for a part: a mesh laid over so many hosts with so many devices each. */
struct serve_place {
    struct ap_mesh mesh;
    struct ap_cluster cluster;
};

/* Equal parts, and parts that differ only in how often their blocks repeat. */
struct serve_family {
    struct serve_period period;
    struct serve_part *part[3]; /* with 0, 1 and 2 extra periods; NULL: not cut yet */
    int *group[3], *node[3];    /* serve_part_map to part[0] */
    int base;                   /* the first family with this part[0], which has it */
    bool own;                   /* for these very blocks, wherever else they stand */
};

/* What the plans of a pool cost for so many microbatches, with so many extra periods. */
struct serve_prices {
    int n;
    struct ap_stage_measure *measure; /* [plan] */
    double objective, bound;
};

/*
 * serve_depth.c: prices of a run with `extra` more periods than zero's, from those with
 * none, one and two more. Arrays in the arena; false when two does not lie on the line
 * through zero and one.
 */
bool serve_prices_lengthen(struct ap_arena *arena, const struct serve_prices *zero,
                           const struct serve_prices *one, const struct serve_prices *two,
                           int extra, struct serve_prices *out);

struct serve_memo;
struct serve_memo *serve_memo_new(const struct shard_job *job,
                                  const struct shard_request *req,
                                  const struct serve_blocks *b);
void serve_memo_free(struct serve_memo *memo);
/* How many searches were made, those forgotten included. */
int serve_memo_searches(const struct serve_memo *memo);
/* Forgets all when it holds more than bytes; pointers that it gave are then void. */
void serve_memo_trim(struct serve_memo *memo, int64_t bytes);

/* An answer: prices of the pool's plans for the part that was asked about. */
struct serve_found {
    const struct serve_family *family; /* NULL: a part by nodes, part is it */
    const struct serve_part *part;
    int extra;
    const struct serve_pool *pool;
    const struct ap_cost *cost;
    const struct ap_stage_time *time;
    struct serve_prices prices;
};
/* Blocks, ascending; or, with n = 0, nodes with inside[node]. Arrays in the arena. */
int serve_memo_find(struct serve_memo *memo, struct ap_arena *arena, int n,
                    const int *block, const bool *inside, const struct serve_place *place,
                    int64_t microbatches, struct serve_found *found, struct ap_err *err);

#endif
