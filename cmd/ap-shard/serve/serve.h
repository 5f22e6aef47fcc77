/* Private to ap-shard --serve: parts of the graph, plans for them, sums of prices. */
#ifndef SERVE_H
#define SERVE_H

#include "graph/blocks.h"
#include "memory/memory.h"
#include "problem/shard.h"
#include "serve/server.h"
#include "pipeline/stage_cost.h"

/* ---- serve_blocks.c: which blocks, and which runs of blocks, are equal ---- */

/* Two blocks that share a value: one reads it of the other, or both read it. a < b. */
struct serve_pair {
    int a, b;
    int first;       /* the first pair of equal blocks that share equal values */
    uint64_t values; /* sum over the values of a hash of each */
};

/*
 * The blocks of a document, as parts are cut from them: get-tuple-element is in the block
 * of its operand. The externals of a block are the nodes of other blocks that it reads,
 * and the operands of the constants among those.
 */
struct serve_blocks {
    const struct ap_graph *graph;
    int n;                        /* 0: the document has none */
    const int *home, *rank;       /* [node]: its block, position in it */
    const int *node_start, *node; /* CSR by block, ascending */
    const int *ext_start, *ext;   /* CSR by block, in order of first use */
    const int *to_start,
        *to;          /* CSR by node: other blocks that use its value, ascending */
    const bool *leaf; /* [node]: made of constants; each part that reads it has a copy */
    const int *class_of; /* [block]: the first block that is equal inside */
    /* blocks that are no neighbours, where one reads a value of the other that no third
       one reads, or both read a parameter one after the other */
    int n_pairs;
    const struct serve_pair *pair;
};
/* split: as for serve_twins. Linear in the graph. Arena. */
const struct serve_blocks *serve_blocks_new(struct ap_arena *arena,
                                            const struct ap_graph *g,
                                            const struct ap_blocks *blocks,
                                            const bool *split);
/*
 * The content of a list of blocks: words that are equal for two lists if and only if the
 * parts are equal. Per block its class, where its operands come from, and which of its
 * values are used outside of the part.
 */
struct serve_content {
    int n;            /* blocks */
    const int *block; /* ascending */
    int n_words;
    const uint64_t *word;
    uint64_t hash;
};
void serve_content_of(struct ap_arena *arena, const struct serve_blocks *b, int n,
                      const int *block, struct serve_content *c);
bool serve_content_equal(const struct serve_content *a, const struct serve_content *b);

/* ---- serve_named_plans.c: the named plans that searches start from ---- */

/* The task of every search on a mesh, with the named plans that it starts from. */
struct serve_start {
    struct ap_arena arena;
    struct shard_task task;
    struct shard_params params; /* the request's, with Alpa's space on this mesh */
    struct shard_alpa alpa;
};
/* families may be NULL. */
struct serve_start *serve_start_new(const struct ap_graph *g,
                                    const struct ap_nests *nests,
                                    const struct ap_families *families,
                                    const struct ap_cost *cost,
                                    const struct shard_request *req);
void serve_start_free(struct serve_start *start);

/* ---- serve_pool.c: plans of a graph on a mesh ---- */

/* Plans of the searches at several prices of memory, and the named plans. */
struct serve_pool {
    struct ap_arena arena;
    int n, n_groups, n_nodes;
    int n_searched;    /* the first plans are the integer program's, the quickest first */
    const char **name; /* [plan] */
    struct ap_choice_vec **choice; /* [plan][group] */
    bool **regather;               /* [plan][node], NULL: none */
    double objective; /* of the search, for the whole batch; < 0: it has none */
    bool units;   /* objective, bound and least_sec are in those of another cost model */
    double bound; /* of all plans; 0: only least_sec is known */
    double *least_sec; /* [group]: its cheapest strategy, a bound without conversions */
    bool recompute_heavy;
};
/* The share of a value's local bytes that counts as memory of a stage. */
struct serve_share {
    int node;     /* of the first of the tied groups */
    double share; /* summed over the tied groups */
};
/* The ties of all searches of a graph, on any mesh. */
struct serve_ties {
    struct shard_fold fold;
    /* for an integer program, else empty */
    struct ilp_ties ilp;
    int n_shares;
    struct serve_share *share;
};
/* Ties all twins, also those of layers at the ends and in other surroundings; families
 * may be NULL. Arena. */
void serve_tie(struct ap_arena *arena, const struct ap_graph *g,
               const struct ap_nests *nests, const struct ap_families *families,
               const struct shard_request *req, struct serve_ties *ties);
/*
 * few_rows: microbatches with so few rows that a plan of the search must not split them
 * over all devices; NULL: there are enough rows, or the graph is a part. wide: with
 * few_rows, the mesh's pool for enough rows, or NULL. NULL with err; the caller frees the
 * pool before the start, whose plans it shares.
 */
struct serve_pool *serve_search(const struct serve_start *start,
                                const struct serve_ties *ties,
                                const struct ap_stage_microbatch *few_rows,
                                const struct serve_pool *wide,
                                const struct shard_request *req, struct ap_err *err);
void serve_pool_free(struct serve_pool *pool);
/* Whether objective, bound and least_sec are seconds. */
bool serve_pool_in_seconds(const struct serve_pool *pool);
/* Plan i without changes. */
struct ap_plan serve_pool_plan(const struct serve_pool *pool, int i,
                               const struct ap_graph *g, const struct ap_nests *nests,
                               const struct ap_cost *cost);

/* ---- serve_part.c: parts cut out, and plans of the whole graph for them ---- */

struct serve_part {
    struct ap_arena arena;
    struct ap_subgraph sub;
    struct ap_nests nests;
    /* [group]: the equal group of the whole graph; -1: a value from outside, or a group
       that the cut goes through; NULL: the part has plans of its own */
    const int *whole;
    const int *twin;            /* [group]: the first twin of that group; as whole */
    const enum ap_phase *phase; /* [group] */
    struct ap_stage_facts facts;
    int64_t bytes; /* about what it holds */
};
/* twin: of shard_fold, NULL: no twins. Blocks, ascending. NULL with err. The caller frees
 * with serve_part_free. */
struct serve_part *serve_part_new(const struct serve_blocks *b,
                                  const struct ap_nests *nests, const int *twin, int n,
                                  const int *block, struct ap_err *err);
/* The nodes inside. */
struct serve_part *serve_part_of_nodes(const struct ap_graph *g, const bool *inside,
                                       struct ap_err *err);
void serve_part_free(struct serve_part *part);

/* Layouts in which the plans of a pool for the whole graph pass values to other blocks.
 */
struct serve_border {
    const int *number; /* [node]: row, -1: never cut */
    /* [plan][row]; equal ones of a plan are one */
    const struct ap_layout *const **layout;
};
struct serve_rows {
    int *number, n;           /* [node]: as above; how many there are */
    int *group_start, *group; /* CSR by block: those whose first member is in it */
    int *inside;              /* [group]: the block of all its members, -1: of several */
};
void serve_border_rows(struct ap_arena *arena, const struct serve_blocks *b,
                       const struct ap_nests *nests, struct serve_rows *rows);
/*
 * [row] of plan i: of the layouts that readers in other blocks need, the one that costs
 * least to convert for all of them; scalars are replicated. Arena.
 */
const struct ap_layout *const *
serve_border_find(struct ap_arena *arena, const struct serve_blocks *b,
                  const struct ap_nests *nests, const struct serve_pool *pool, int i,
                  const struct ap_cost *cost, const struct serve_rows *rows);
/*
 * Plan i of the whole graph's pool for a part of it: equal groups keep their choice,
 * values from outside arrive in the border's layouts, the other groups follow
 * (ap_named_plan_complete).
 */
struct ap_plan serve_part_plan(struct ap_arena *arena, const struct serve_part *part,
                               const struct serve_pool *pool, int i,
                               const struct serve_border *border,
                               const struct ap_cost *cost);

/* The prices of a plan of a part for n numbers of microbatches. */
struct serve_wanted {
    int n;
    const struct ap_stage_microbatch *const *microbatch; /* [n] */
    /* [n]: of operators without conversions, the same for all places of the mesh; filled
       unless known */
    bool known;
    struct ap_stage_measure *alone;
    struct ap_stage_measure *measure; /* [n]: filled */
    double *whole; /* NULL, or filled with the seconds for the whole batch */
};
/* Numbers that leave too few rows are not priced. sizes: of groups on the mesh, so far.
 */
void serve_part_price(struct ap_arena *scratch, struct serve_part *part,
                      const struct ap_plan *plan, const struct ap_cost *cost,
                      struct ap_stage_known *sizes, const struct serve_wanted *want);

/* ---- serve_searched.c: a mesh that was searched ---- */

/* Plans of the whole graph for all places with this mesh. */
struct serve_searched {
    int place;     /* that was searched */
    uint64_t rows; /* serve_microbatches_rows of the numbers that the plans are for */
    struct ap_arena arena;
    struct serve_pool *pool; /* NULL: why */
    struct ap_err why;
    struct serve_border border;
    const uint64_t *
        *hash;     /* [plan][block]: of its groups' choices and operands' layouts */
    uint64_t *all; /* [block]: of all plans */
    double *bound; /* [block]: no plan of its groups is below the sum */
};
/* Fills border, hashes and bound. */
void serve_searched_describe(const struct serve_blocks *b, const struct ap_nests *nests,
                             const struct ap_cost *cost, const struct serve_rows *rows,
                             struct serve_searched *s);

/* ---- serve_microbatches.c: numbers of microbatches ---- */

struct serve_microbatches {
    int64_t n;
    struct ap_arena arena;
    struct ap_stage_microbatch axis;
    uint64_t *hash; /* [block]: of how its nodes lie on the microbatch axis */
    uint64_t dims;  /* hash of the dimensions that are split */
    int64_t *rows;  /* distinct sizes of them, ascending */
    int n_rows;
};
/* NULL with err: the batch has not as many rows. */
struct serve_microbatches *serve_microbatches_new(const struct serve_blocks *b,
                                                  const struct ap_graph *g,
                                                  const struct ap_nests *nests, int64_t n,
                                                  struct ap_err *err);
/* The same for another number, with the arrays of t, which must outlive it; NULL: that
 * number splits other values. */
struct serve_microbatches *serve_microbatches_like(const struct serve_microbatches *t,
                                                   int64_t n);
void serve_microbatches_free(struct serve_microbatches *t);
/*
 * Equal for numbers of microbatches that leave rows to the same devices under every
 * choice, so that the search is the same; 0: every device has some.
 */
uint64_t serve_microbatches_rows(const struct serve_microbatches *t,
                                 const struct ap_mesh *mesh);

/* ---- serve_columns.c: column generation ---- */

struct serve_columns {
    int n_known;
    const int *const *known; /* answers; NULL: none */
    ap_solver_fn *run;       /* solves the small problems */
    int rounds;              /* solutions of the small problem, at least one */
};
/*
 * A solver that works with few strategies per node at a time, those of the known answers
 * among them: no worse than params->start, if given. Proves nothing: bound 0.
 */
int serve_columns_solve(struct ap_arena *arena, const struct ap_problem *p,
                        const struct serve_columns *from,
                        const struct ap_solve_params *params, struct ap_solution *sol,
                        struct ap_err *err);

/* ---- serve_memo.c: searches and prices, kept between requests ---- */

/* A place for a part: a mesh laid over some hosts with some devices of each. */
struct serve_place {
    struct ap_mesh mesh;
    struct ap_cluster cluster;
    const struct ap_cluster *whole; /* the cluster that it is a part of */
};

/* The part of a cluster that has `hosts` hosts with `devices` devices of each. */
int serve_take(const struct ap_cluster *whole, int64_t hosts, int64_t devices,
               struct ap_cluster *c, struct ap_err *err);

/* Prices of a pool's plans for a number of microbatches. */
struct serve_prices {
    int n;
    struct ap_stage_measure *measure; /* [plan]; forward_sec INFINITY: too few rows */
    double objective, bound;
};

struct serve_memo;
struct serve_memo *serve_memo_new(const struct shard_job *job,
                                  const struct shard_request *req,
                                  const struct serve_blocks *b);
void serve_memo_free(struct serve_memo *memo);
/* How many searches were made, those forgotten included. */
int serve_memo_searches(const struct serve_memo *memo);
/* Frees the parts when they hold more than bytes. */
void serve_memo_trim(struct serve_memo *memo, int64_t bytes);

/* A request. */
struct serve_question {
    int n_blocks, *block; /* ascending; none: nodes lo to hi */
    int lo, hi;
    struct serve_place place;
    int64_t microbatches, memory; /* memory 0: no limit */
    int64_t plan;                 /* point whose sharding is wanted, -1 */
};

/* An answer: prices of the pool's plans for the requested part. */
struct serve_found {
    const struct serve_part *part; /* of a request by nodes, else NULL */
    const struct serve_pool *pool;
    const struct serve_border *border;
    const struct ap_cost *cost;
    const struct ap_stage_microbatch *microbatch;
    struct serve_prices prices;
};
/* Prices for the question's part, place and microbatches. Arrays in the arena. */
int serve_memo_find(struct serve_memo *memo, struct ap_arena *arena,
                    const struct serve_question *q, struct serve_found *found,
                    struct ap_err *err);

/* ---- serve.c ---- */

/* What requests about a document are answered with, once the job has its cluster; in the
 * job's arena, but for what serve_close frees. */
struct server;
struct server *serve_open(struct shard_job *job, const struct shard_request *req,
                          const struct ap_doc *doc);
/* One line in, one line out, which is added to out. */
void serve_line(const struct server *s, const char *line, struct ap_buf *out);
void serve_close(struct server *s);

/* ---- serve_fork.c: several processes ---- */

/* Forks a process for each pipe but the first; in all of them the own pipe becomes
 * standard input and output, and the others are closed. */
void serve_fork(const struct shard_pipes *pipes);
/* Waits until all forked servers have ended. */
void serve_wait(void);

#endif
