/* Between serve_memo.c, which searches, and serve_sums.c, which prices. */
#ifndef SERVE_MEMO_H
#define SERVE_MEMO_H

#include "serve/serve.h"

/* A mesh laid over a part of the cluster. */
struct placed {
    struct serve_place place;
    struct ap_cost cost;
    /* of a place that is searched; rules: NULL until it is */
    struct serve_rules *rules;
    struct ap_stage_known sizes;
};

/* A list of blocks that is priced, not added up; equal ones are one. */
struct listed {
    struct serve_content content;
    struct serve_part *part; /* NULL: not cut, or not any more */
};

struct price_key {
    int list, place;
    int64_t microbatches;
    uint64_t hash; /* of the choices and times of the very blocks */
};

struct priced {
    struct price_key key;
    struct serve_prices prices; /* measure: malloc */
};

/* One plan of them: searches on a mesh share most. */
struct plan_price {
    struct price_key key;
    struct ap_stage_measure measure;
    double whole; /* seconds, all at once; of the first plan of a pool */
};

struct serve_memo {
    const struct shard_job *job;
    const struct shard_request *req;
    const struct serve_blocks *b;
    struct ap_arena arena; /* contents, costs: what stays */
    struct placed **placed;
    struct serve_time **timed;
    struct serve_shape **shaped;
    struct listed *listed;
    struct priced **priced;
    struct plan_price *one;
    int n_placed, cap_placed, n_timed, cap_timed, n_shaped, cap_shaped, n_listed,
        cap_listed, n_priced, cap_priced, n_one, cap_one;
    int *listed_at, *priced_at, *one_at; /* hash tables: index + 1 */
    size_t listed_mask, priced_mask, one_mask;
    const struct ap_families *families; /* NULL: the document has none */
    struct serve_book book;             /* of the whole graph */
    struct serve_ties ties;             /* of the whole graph, once tied */
    bool tied;
    struct serve_rows rows; /* of the borders, once tied */
    int64_t bytes;          /* of the parts */
    int n_searches;
    int *alone_at,
        *pair_at; /* [block]: list + 1 of it, of it and the next; 0: not known */
    /* the last part by nodes */
    struct serve_part *nodes;
    struct serve_book nodes_book;
    struct serve_rules *nodes_rules;
    struct serve_pool *nodes_pool;
};

/* A list with room for one more item. */
void *serve_memo_room(void *list, int n, int *cap, size_t size);
/* Rules, and searches that do not know of rows, give one answer for all numbers. */
uint64_t serve_memo_rows(const struct serve_memo *m, const struct serve_time *t,
                         const struct ap_mesh *mesh);

/* ---- serve_sums.c ---- */

/* Blocks, ascending, on a place under the plans of a search: adds their prices to the
 * sum, which has a measure per plan. */
int serve_sum(struct serve_memo *m, const struct serve_shape *shaped, int place,
              const struct serve_time *t, int n, const int *block,
              struct serve_prices *sum, struct ap_err *err);

#endif
