/* Between serve_memo.c, which searches, and serve_sums.c, which prices. */
#ifndef SERVE_MEMO_H
#define SERVE_MEMO_H

#include "problem/classes.h"
#include "serve/serve.h"

/* A mesh laid over a part of the cluster. */
struct placed {
    struct serve_place place;
    struct ap_cost cost;  /* in seconds: prices */
    struct ap_cost model; /* of the request's cost model: searches */
    /* of a place that is searched; start: NULL until it is */
    struct serve_start *start;
    struct ap_stage_known sizes;
};

/* Blocks that are priced together; equal lists are one. */
struct block_list {
    struct serve_content content;
    struct serve_part *part; /* NULL: not cut, or not any more */
};

/* A list on a place, for a number of microbatches. */
struct price_key {
    int list, place;
    int64_t microbatches;
    uint64_t hash; /* of the choices, and of the microbatches, of the very blocks */
};

/* Prices by key: the owner's arrays are parallel to key. */
struct price_table {
    struct ap_index index;
    struct price_key *key;
    int n, cap;
};

/* The price of one plan. */
struct plan_price {
    struct ap_stage_measure measure;
    double whole; /* seconds, all at once; of the first plan of a pool */
};

/*
 * All that is kept between requests. What is kept, under which key, and why:
 *   placed       mesh and cluster           conversions' prices, sizes of groups
 *   microbatches their number               how they split the graph
 *   searched     place, rows (see below)    the plans of a search
 *   list         content of the blocks      the part that is cut out for them
 *   plan_price   list, place, microbatches, a plan's choices there: plans of several
 *                                           searches share most of their blocks
 *   list_price   the same, all plans of a search: an answer adds up a few of these
 */
struct serve_memo {
    const struct shard_job *job;
    const struct shard_request *req;
    const struct serve_blocks *b;
    struct ap_arena arena; /* contents, costs: what stays */
    struct placed **placed;
    struct serve_microbatches **microbatches;
    struct serve_searched **searched;
    struct block_list *list;
    struct price_table list_keys, plan_keys;
    struct serve_prices *list_price; /* measure: malloc */
    struct plan_price *plan_price;
    int n_placed, cap_placed, n_microbatches, cap_microbatches, n_searched, cap_searched,
        n_lists, cap_lists, cap_list_prices, cap_plan_prices;
    struct ap_classes lists;            /* by content */
    const struct ap_families *families; /* NULL: the document has none */
    struct serve_ties ties;             /* of the whole graph, once tied */
    bool tied;
    struct serve_rows rows; /* of the borders, once tied */
    int64_t bytes;          /* of the parts */
    int n_searches;
    int *alone_at,
        *pair_at; /* [block]: list + 1 of it, of it and the next; 0: not known */
    /* the last part by nodes */
    struct serve_part *nodes;
    struct serve_start *nodes_start;
    struct serve_pool *nodes_pool;
};

/* As serve_microbatches_rows; 0 for algorithms that know no rows: one search serves all.
 */
uint64_t serve_memo_rows(const struct serve_memo *m, const struct serve_microbatches *t,
                         const struct ap_mesh *mesh);

/* ---- serve_sums.c ---- */

/* Same content, of lists a and b of a memo. */
bool serve_same_list(const void *memo, int a, int b);
/* The plans of a search, on a place, for a number of microbatches. */
struct serve_run {
    const struct serve_searched *searched;
    int place;
    const struct serve_microbatches *microbatches;
};
/* Adds the prices of blocks, ascending, to the sum, which has a measure per plan. */
int serve_sum(struct serve_memo *m, const struct serve_run *run, int n, const int *block,
              struct serve_prices *sum, struct ap_err *err);

#endif
