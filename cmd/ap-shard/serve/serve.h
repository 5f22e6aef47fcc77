/* Private to ap-shard --serve: parts of the graph, plans for them, sums of prices. */
#ifndef SERVE_H
#define SERVE_H

#include "graph/blocks.h"
#include "memory/memory.h"
#include "shard.h"
#include "pipeline/stage_cost.h"

/* ---- serve_blocks.c: which blocks are alike ---- */

/* Two blocks that know of each other: a value of one is read in the other, or both read
 * the same. a < b. */
struct serve_pair {
    int a, b;
    int like;        /* the first pair of equal blocks that share values like theirs */
    uint64_t values; /* sum over the values of a hash of each */
};

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
        *to;             /* CSR by node: other blocks that use its value, ascending */
    const bool *leaf;    /* [node]: a part that reads it has a copy of its own */
    const int *class_of; /* [block]: the first block that is equal inside */
    /* that are no neighbours, and one reads of the other what no third one reads, or both
       read a parameter one after the other */
    int n_pairs;
    const struct serve_pair *pair;
};
/* Linear in the graph. */
void serve_blocks_init(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_blocks *blocks, struct serve_blocks *b);

/*
 * Words that are equal for two lists of blocks if and only if the parts are equal: per
 * block its class, where what it reads comes from, and what is used outside of the part.
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

/* ---- serve_rules.c: the plans that people type ---- */

/* What a rule says on a mesh, and on those that are alike. */
struct serve_written {
    int row;
    struct ap_mesh mesh;
    struct ap_mesh_queries looks;
    bool exists;
    struct ap_choice_vec *choice;
    bool *regather, *whole;
};

/* The rules' plans of a graph, for all meshes. Starts zeroed. */
struct serve_book {
    struct ap_arena arena;
    struct serve_cache *shelf; /* NULL: all is written down here; else freed with it */
    struct ap_named_plan_links links;
    int n;
    struct serve_written **list; /* malloc */
};
void serve_book_free(struct serve_book *book);

/* What every search on a mesh starts from; the plans are the book's. */
struct serve_rules {
    struct ap_arena arena;
    struct shard_task task;
};
/* What repeats in the graph may be NULL. The caller frees, before the book. */
struct serve_rules *
serve_rules_new(const struct ap_graph *g, const struct ap_nests *nests,
                const struct ap_families *families, const struct ap_cost *cost,
                const struct shard_request *req, struct serve_book *book);
void serve_rules_free(struct serve_rules *rules);

/* ---- serve_cache.c: what all processes have written down ---- */

struct serve_cache;
/* For plans of a graph so large; before processes are forked. NULL: there is no memory
 * that they have in common. */
struct serve_cache *serve_cache_new(int n_groups, int n_nodes);
/* This process has no more use for it; may be NULL. */
void serve_cache_free(struct serve_cache *shelf);
/* NULL: nobody has written it down; begun: but somebody may have begun to. shelf may be
 * NULL. */
const struct serve_written *serve_cache_find(struct serve_cache *shelf, int row,
                                             const struct ap_mesh *mesh, bool *begun);
/* Says so; its number, -1 when there is no room. shelf may be NULL. */
int serve_cache_begin(struct serve_cache *shelf, int row, const struct ap_mesh *mesh);
/* Room for all that `written` points to, and itself. NULL: none is left. */
void *serve_cache_room(struct serve_cache *shelf, size_t bytes);
void serve_cache_end(struct serve_cache *shelf, int i, const struct serve_written *w);

/* ---- serve_pool.c: plans of a graph on a mesh ---- */

/* Plans of the searches at several prices of memory, and the named plans. */
struct serve_pool {
    struct ap_arena arena;
    int n, n_groups, n_nodes;
    int n_searched;    /* of an integer program: the first plans are its own, the quickest
                          first */
    const char **name; /* [plan] */
    struct ap_choice_vec **choice; /* [plan][group] */
    bool **regather;               /* [plan][node], NULL: none */
    double objective;  /* of the search, < 0: it has another measure; whole batch */
    double bound;      /* of all plans; 0: only least_sec is known */
    double *least_sec; /* [group]: cheapest strategy, a bound without conversions */
    bool recompute_heavy;
};
/* What a value adds to the memory of a stage, as a share of its local bytes. */
struct serve_share {
    int node;     /* of the first of the groups that are tied */
    double share; /* of all of them */
};
/* What searches of a graph tie, on all meshes. */
struct serve_ties {
    struct shard_fold fold;
    /* of an integer program, else empty */
    struct ilp_ties ilp;
    int n_shares;
    struct serve_share *share;
};
/* All twins, those of layers at the ends and in other surroundings, too; families may be
 * NULL. Arena. */
void serve_tie(struct ap_arena *arena, const struct ap_graph *g,
               const struct ap_nests *nests, const struct ap_families *families,
               const struct shard_request *req, struct serve_ties *ties);
/*
 * time: microbatches have so few rows that a plan of the search must not split them over
 * all devices; NULL: they have enough, or the graph is a part. wide: with time, the pool
 * of the mesh without it, or NULL. NULL with err; the caller frees, before the rules,
 * whose plans it shares.
 */
struct serve_pool *serve_search(const struct serve_rules *rules,
                                const struct serve_ties *ties,
                                const struct ap_stage_microbatch *time,
                                const struct serve_pool *wide,
                                const struct shard_request *req, struct ap_err *err);
void serve_pool_free(struct serve_pool *pool);
/* Plan i as it is. */
struct ap_plan serve_pool_plan(const struct serve_pool *pool, int i,
                               const struct ap_graph *g, const struct ap_nests *nests,
                               const struct ap_cost *cost);

/* ---- serve_part.c: parts cut out, and plans of the whole graph for them ---- */

struct serve_part {
    struct ap_arena arena;
    struct ap_subgraph sub;
    struct ap_nests nests;
    /* [group]: the equal one of the whole graph, -1: what comes from outside, and groups
       that the cut goes through; NULL: the part has plans of its own */
    const int *whole;
    const int *like; /* [group]: of the whole graph, the first like it; as whole */
    const enum ap_phase *phase; /* [group] */
    struct ap_stage_facts facts;
    int64_t bytes; /* about what it holds */
};
/* twin: of shard_fold, NULL: nothing is like another. Blocks, ascending. NULL with err.
 * The caller frees with serve_part_free. */
struct serve_part *serve_part_new(const struct serve_blocks *b,
                                  const struct ap_nests *nests, const int *twin, int n,
                                  const int *block, struct ap_err *err);
/* The nodes inside. */
struct serve_part *serve_part_of_nodes(const struct ap_graph *g, const bool *inside,
                                       struct ap_err *err);
void serve_part_free(struct serve_part *part);

/* Layouts in which the plans of a pool for the whole graph hand values to other blocks.
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
 * [row] of plan i: the layout that costs least to bring to the readers in other blocks,
 * among those that they want; scalars are replicated. Arena.
 */
const struct ap_layout *const *
serve_border_find(struct ap_arena *arena, const struct serve_blocks *b,
                  const struct ap_nests *nests, const struct serve_pool *pool, int i,
                  const struct ap_cost *cost, const struct serve_rows *rows);
/*
 * Plan i of the whole graph's pool for a part of it: equal groups keep their choice, what
 * comes from outside arrives as the border has it, the rest follows
 * (ap_named_plan_complete).
 */
struct ap_plan serve_part_plan(struct ap_arena *arena, const struct serve_part *part,
                               const struct serve_pool *pool, int i,
                               const struct serve_border *border,
                               const struct ap_cost *cost);

/*
 * Prices of a plan of a part, for n numbers of microbatches: measure[n] and, if whole is
 * not NULL, its seconds with all at once. Those who have too few rows are not looked at.
 * sizes: what is known of groups on the mesh. alone: [n] of operators without
 * conversions, the same wherever the mesh lies; filled if they are not known.
 */
void serve_part_price(struct ap_arena *scratch, struct serve_part *part,
                      const struct ap_plan *plan, const struct ap_cost *cost, int n,
                      const struct ap_stage_microbatch *const *time,
                      struct ap_stage_known *sizes, bool known,
                      struct ap_stage_measure *alone, struct ap_stage_measure *measure,
                      double *whole);

/* ---- serve_shape.c: a mesh that was searched ---- */

/* Plans of the whole graph for all places with this mesh. */
struct serve_shape {
    int place;     /* that they were searched for */
    uint64_t rows; /* serve_time_rows of the numbers of microbatches that they are for */
    struct ap_arena arena;
    struct serve_pool *pool; /* NULL: why */
    struct ap_err why;
    struct serve_border border;
    /* [plan][block]: of the choices of its groups, and of what it reads; of all plans */
    const uint64_t **hash;
    uint64_t *all;
    double *bound; /* [block]: no plan of its groups is below the sum */
};
/* Fills border, hashes and bound of a pool; those of plans that earlier shapes of its
 * place have are shared with them. */
void serve_shape_look(const struct serve_blocks *b, const struct ap_nests *nests,
                      const struct ap_cost *cost, const struct serve_rows *rows,
                      int n_before, struct serve_shape *const *before,
                      struct serve_shape *s);

/* ---- serve_microbatch.c: numbers of microbatches ---- */

struct serve_time {
    int64_t n;
    struct ap_arena arena;
    struct ap_stage_microbatch time;
    uint64_t *hash; /* [block]: of what its nodes do */
    uint64_t dims;  /* hash of the dimensions that are split */
    int64_t *rows;  /* distinct sizes of them, ascending */
    int n_rows;
};
/* NULL with err: the batch has not as many rows. */
struct serve_time *serve_time_new(const struct serve_blocks *b, const struct ap_graph *g,
                                  const struct ap_nests *nests, int64_t n,
                                  struct ap_err *err);
/* The same for another number, with the arrays of t, which must outlive it; NULL: it lies
 * in time in a way of its own. */
struct serve_time *serve_time_like(const struct serve_time *t, int64_t n);
void serve_time_free(struct serve_time *t);
/*
 * Equal for numbers of microbatches that leave rows to the same devices under every
 * choice, so that the search is the same; 0: every device has some.
 */
uint64_t serve_time_rows(const struct serve_time *t, const struct ap_mesh *mesh);

/* ---- serve_columns.c: good answers at once ---- */

/*
 * As a solver, but with few strategies per node at a time, those of the known answers
 * among them (NULL ones are none): no worse than params->start, if that is given. Nothing
 * is proven: bound 0. rounds: of solving it, once at least; others join in between.
 */
int serve_narrow(struct ap_arena *arena, const struct ap_problem *p, int n_known,
                 const int *const *known, ap_solver_fn *run,
                 const struct ap_solve_params *params, int rounds,
                 struct ap_solution *sol, struct ap_err *err);

/* ---- serve_memo.c: what was found stays ---- */

/* A place for a part: a mesh laid over so many hosts with so many devices each. */
struct serve_place {
    struct ap_mesh mesh;
    struct ap_cluster cluster;
    const struct ap_cluster *whole; /* that it was taken from */
};

/* The cluster that is left when so many hosts with so many devices each are taken. */
int serve_take(const struct ap_cluster *whole, int64_t hosts, int64_t devices,
               struct ap_cluster *c, struct ap_err *err);

/* What the plans of a pool cost for so many microbatches. */
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
/* Forgets parts and what is quick to find again when it holds more than bytes. */
void serve_memo_trim(struct serve_memo *memo, int64_t bytes);

/* An answer: prices of the pool's plans for the part that was asked about. */
struct serve_found {
    const struct serve_part *part; /* by nodes, else NULL */
    const struct serve_pool *pool;
    const struct serve_border *border;
    const struct ap_cost *cost;
    const struct ap_stage_microbatch *time;
    struct serve_prices prices;
};
/* Blocks, ascending; or, with n = 0, nodes with inside[node]. Arrays in the arena. */
int serve_memo_find(struct serve_memo *memo, struct ap_arena *arena, int n,
                    const int *block, const bool *inside, const struct serve_place *place,
                    int64_t microbatches, struct serve_found *found, struct ap_err *err);

/* ---- serve_fork.c: several processes ---- */

/* Forks a process for each pipe but the first; in all of them the own pipe becomes
 * standard input and output, and the others are closed. */
void serve_fork(const struct shard_pipes *pipes);
/* Waits for the end of those forked. */
void serve_wait(void);

#endif
