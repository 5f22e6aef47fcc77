/*
 * Problem: a planner of pipelines asks for every run of blocks; most runs are copies of
 * each other at another place. Idea: the content of a block is written as words (the
 * signatures of its nodes, their operands by position in the block, externals by number
 * of first use); blocks of equal words are a class. The content of a run is the classes
 * of its blocks and, for each external, where in the run it is made. Runs of equal words
 * are equal parts, so that no part has to be cut out to compare it. Hashes only find
 * candidates: words, and the nodes of blocks, are compared. Cost: linear in the graph
 * once; per run, the externals of its blocks and those of their nodes that other blocks
 * read, so that the twins of all runs of n blocks cost n * n / 6 times these of the
 * graph.
 */
#include "serve/serve.h"

#include "graph/identity.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/csr.h"
#include "problem/classes.h"

#define WIDE 3 /* a value that more blocks read is named by its place in the list */

/* ---- blocks ---- */

struct reader {
    struct ap_arena *arena;
    const struct ap_graph *g;
    struct serve_blocks *b;
    const uint64_t *sig;
    const bool *split;        /* [node], or NULL */
    int *seen, *number;       /* [node]: last block that reads it, its number there */
    int *ext, n_ext, cap_ext; /* malloc */
    int *first_result, *next_result; /* by node, 1-based */
    struct ap_buf words;             /* of one block */
};

/* Blocks that use each node's value, its own aside. */
static void list_users(struct ap_arena *arena, struct serve_blocks *b)
{
    const struct ap_graph *g = b->graph;
    int *start = AP_NEW_N(arena, g->n_nodes + 1, int), *to = NULL;
    int *last = AP_NEW_N(arena, b->n + 1, int);

    for (int pass = 0, n = 0; pass < 2; pass++, n = 0) {
        for (int i = 0; i < b->n; i++)
            last[i] = -1;
        for (int v = 0; v < g->n_nodes; v++) {
            start[v] = n;
            for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
                int block = b->home[g->users[u]];
                if (block == b->home[v] || last[block] == v)
                    continue;
                last[block] = v;
                if (to)
                    to[n] = block;
                n++;
            }
        }
        start[g->n_nodes] = n;
        if (!to)
            to = AP_NEW_N(arena, n + 1, int);
    }
    b->to_start = start;
    b->to = to;
}

static void put_word(struct reader *r, uint64_t word)
{
    ap_buf_put(&r->words, &word, sizeof word);
}

static bool is_split(const struct reader *r, int v)
{
    return r->split && r->split[v];
}

/* What a node of the block reads: by rank inside, by number outside. */
static uint64_t refer(struct reader *r, int block, int v)
{
    if (r->b->home[v] == block)
        return 2 * (uint64_t)r->b->rank[v];
    if (r->seen[v] != block) {
        AP_ROOM(r->ext, r->n_ext, r->cap_ext);
        r->seen[v] = block;
        r->number[v] = r->n_ext;
        r->ext[r->n_ext++] = v;
    }
    return 2 * (uint64_t)(r->number[v] - r->b->ext_start[block]) + 1;
}

static void put_node(struct reader *r, int block, int v)
{
    const struct ap_node *n = &r->g->nodes[v];
    put_word(r, r->sig[v]);
    put_word(r, 2 * (uint64_t)n->n_in + is_split(r, v));
    for (int k = 0; k < n->n_in; k++) {
        const struct ap_node *in = &r->g->nodes[n->in[k]]; /* of a part's groups */
        const bool one = in->group == n->group,
                   kernel = in->attrs->kernel == n->attrs->kernel;
        put_word(r, 4 * refer(r, block, n->in[k]) + 2 * kernel + one);
    }
    for (int i = r->first_result[v]; i > 0; i = r->next_result[i]) {
        const struct ap_result *result = &r->g->results[i - 1];
        put_word(r, (uint64_t)result->role);
        put_word(r, result->alias < 0 ? UINT64_MAX : refer(r, block, result->alias));
    }
}

/* A value of another block: what a part sees of it. */
static void put_external(struct reader *r, int v)
{
    const struct ap_node *n = &r->g->nodes[v];

    put_word(r, (uint64_t)n->shape.dtype << 32 | (uint64_t)n->shape.rank << 16 |
                    (uint64_t)n->phase << 1 | is_split(r, v));
    for (int d = 0; d < n->shape.rank; d++)
        put_word(r, (uint64_t)n->shape.dims[d]);
}

static void describe(struct reader *r, int block, int *ext_start)
{
    const struct serve_blocks *b = r->b;
    r->words.len = 0;
    ext_start[block] = r->n_ext;
    for (int i = b->node_start[block]; i < b->node_start[block + 1]; i++)
        put_node(r, block, b->node[i]);
    for (int e = ext_start[block]; e < r->n_ext; e++) { /* grows by what constants read */
        int v = r->ext[e];
        if (b->leaf[v])
            put_node(r, block, v);
        else
            put_external(r, v);
    }
    ext_start[block + 1] = r->n_ext;
}

static void chain_results(struct reader *r)
{
    const struct ap_graph *g = r->g;
    r->first_result = AP_NEW_N(r->arena, g->n_nodes + 1, int);
    r->next_result = AP_NEW_N(r->arena, g->n_results + 1, int);
    for (int i = g->n_results; i > 0; i--) {
        int v = g->results[i - 1].node;
        r->next_result[i] = r->first_result[v];
        r->first_result[v] = i;
    }
}

struct words {
    size_t len;
    const char *data;
};

struct contents {
    const struct serve_blocks *b;
    const struct words *words; /* [block] */
};

/* Equal words, and nodes that are compared in full. */
static bool same_block(const void *ctx, int i, int k)
{
    const struct contents *c = ctx;
    const struct words *w = &c->words[i], *v = &c->words[k];
    const int *x = c->b->node + c->b->node_start[i],
              *y = c->b->node + c->b->node_start[k];
    int n = c->b->node_start[i + 1] - c->b->node_start[i];

    if (w->len != v->len || memcmp(w->data, v->data, w->len) != 0)
        return false;
    for (int j = 0; j < n; j++)
        if (!ap_nodes_identical(c->b->graph, x[j], y[j]))
            return false;
    return true;
}

/* Which blocks share values without being neighbours. */
struct pair_list {
    struct serve_pair *pair; /* malloc */
    int n, cap;
};

/* A value that block `from` makes, or reads first, and block `to` reads. */
static void add_pair(struct pair_list *l, int from, int to, uint64_t sig)
{
    int a = from < to ? from : to, b = from < to ? to : from;
    if (b < a + 2)
        return;
    AP_ROOM(l->pair, l->n, l->cap);
    const uint64_t key[2] = {sig, from < to};
    l->pair[l->n++] = (struct serve_pair){a, b, 0, ap_hash(key, sizeof key, 0)};
}

static int compare_pairs(const void *pa, const void *pb)
{
    const struct serve_pair *a = pa, *b = pb;
    return a->a != b->a ? (a->a > b->a) - (a->a < b->a) : (a->b > b->b) - (a->b < b->b);
}

/* Equal values between equal blocks. */
static bool same_pair(const void *ctx, int i, int k)
{
    const struct serve_blocks *b = ctx;
    const struct serve_pair *p = &b->pair[i], *q = &b->pair[k];
    return q->values == p->values && b->class_of[q->a] == b->class_of[p->a] &&
           b->class_of[q->b] == b->class_of[p->b];
}

static void match_pairs(const struct serve_blocks *b, struct serve_pair *pair, int n)
{
    struct ap_classes classes = {.same = same_pair, .ctx = b};

    for (int i = 0; i < n; i++) {
        const struct serve_pair *p = &pair[i];
        const uint64_t key[3] = {(uint64_t)b->class_of[p->a], (uint64_t)b->class_of[p->b],
                                 p->values};
        pair[i].first = ap_class_of(&classes, ap_hash(key, sizeof key, 0), i);
    }
    ap_classes_free(&classes);
}

static void list_pairs(struct ap_arena *arena, const uint64_t *sig,
                       struct serve_blocks *b)
{
    const struct ap_graph *g = b->graph;
    struct pair_list l = {0};

    for (int v = 0; v < g->n_nodes; v++) {
        bool own = g->nodes[v].op == AP_OP_PARAMETER; /* each part has it */
        int n = b->to_start[v + 1] - b->to_start[v];
        const int *to = &b->to[b->to_start[v]];
        if ((b->leaf[v] || n > 1) && !own)
            continue; /* copied, or its readers know of each other as neighbours */
        for (int u = 0; u < n; u++)
            add_pair(&l, u > 0 ? to[u - 1] : b->home[v], to[u], sig[v]);
    }
    if (l.n > 0)
        qsort(l.pair, (size_t)l.n, sizeof *l.pair, compare_pairs);
    int n = 0;
    for (int i = 0; i < l.n; i++)
        if (n > 0 && compare_pairs(&l.pair[n - 1], &l.pair[i]) == 0)
            l.pair[n - 1].values += l.pair[i].values;
        else
            l.pair[n++] = l.pair[i];
    struct serve_pair *pair = ap_arena_dup(arena, l.pair, (size_t)n * sizeof *pair);
    b->n_pairs = n;
    b->pair = pair;
    match_pairs(b, pair, n);
    free(l.pair);
}

const struct serve_blocks *serve_blocks_new(struct ap_arena *arena,
                                            const struct ap_graph *g,
                                            const struct ap_blocks *blocks,
                                            const bool *split)
{
    struct serve_blocks *b = AP_NEW(arena, struct serve_blocks);
    int n = blocks->n, *home = AP_NEW_N(arena, g->n_nodes + 1, int);
    int *rank = AP_NEW_N(arena, g->n_nodes + 1, int);
    bool *leaf = AP_NEW_N(arena, g->n_nodes + 1, bool);
    uint64_t *sig = AP_NEW_N(arena, g->n_nodes + 1, uint64_t);

    *b = (struct serve_blocks){.graph = g, .n = n};
    if (n == 0)
        return b;
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        bool of_tuple = node->op == AP_OP_GET_TUPLE_ELEMENT;
        home[v] = of_tuple ? home[node->in[0]] : blocks->block_of[v];
        leaf[v] = true;
        for (int k = 0; k < node->n_in; k++) /* a parameter is a leaf, but no constant */
            leaf[v] &= leaf[node->in[k]] && g->nodes[node->in[k]].op != AP_OP_PARAMETER;
    }
    b->home = home;
    b->leaf = leaf;
    b->rank = rank;
    const struct ap_csr nodes = ap_csr_new(arena, n, g->n_nodes, home, NULL);
    b->node = nodes.item;
    b->node_start = nodes.start;
    for (int i = 0; i < n; i++)
        for (int k = nodes.start[i]; k < nodes.start[i + 1]; k++)
            rank[nodes.item[k]] = k - nodes.start[i];
    list_users(arena, b);
    ap_node_signatures(g, sig);
    struct reader r = {.arena = arena,
                       .g = g,
                       .b = b,
                       .sig = sig,
                       .split = split,
                       .seen = AP_NEW_N(arena, g->n_nodes + 1, int),
                       .number = AP_NEW_N(arena, g->n_nodes + 1, int)};
    memset(r.seen, -1, (size_t)g->n_nodes * sizeof *r.seen);
    chain_results(&r);
    int *ext_start = AP_NEW_N(arena, n + 1, int), *class_of = AP_NEW_N(arena, n, int);
    struct words *words = AP_NEW_N(arena, n, struct words);
    const struct contents contents = {b, words};
    struct ap_classes classes = {.same = same_block, .ctx = &contents};
    b->ext_start = ext_start;
    for (int i = 0; i < n; i++) {
        describe(&r, i, ext_start);
        words[i] =
            (struct words){r.words.len, ap_arena_dup(arena, r.words.data, r.words.len)};
        class_of[i] = ap_class_of(&classes, ap_hash(r.words.data, r.words.len, 0), i);
    }
    ap_classes_free(&classes);
    b->ext = ap_arena_dup(arena, r.ext, (size_t)r.n_ext * sizeof *r.ext);
    b->class_of = class_of;
    list_pairs(arena, sig, b);
    free(r.ext);
    ap_buf_free(&r.words);
    return b;
}

/* ---- lists of blocks ---- */

struct writer {
    const struct serve_blocks *b;
    int n;
    const int *block;
    int *position; /* [block]: in the list, -1 */
    int n_outside, cap_outside;
    int *outside; /* nodes that the part reads, in order of first use; malloc */
    struct ap_classes numbers;
    struct ap_buf words;
};

static void put(struct writer *w, uint64_t kind, int64_t x, int64_t y)
{
    uint64_t word = kind << 62 | (uint64_t)(x + (1 << 28)) << 32 | (uint32_t)y;
    ap_buf_put(&w->words, &word, sizeof word);
}

static bool same_outside(const void *ctx, int i, int k)
{
    const struct writer *w = ctx;
    return w->outside[i] == w->outside[k];
}

/* Number of a node that is outside of the list, by first use. */
static int number_outside(struct writer *w, int v)
{
    AP_ROOM(w->outside, w->n_outside, w->cap_outside);
    w->outside[w->n_outside] = v;
    int i = ap_class_of(&w->numbers, ap_hash(&v, sizeof v, 0), w->n_outside);
    w->n_outside += i == w->n_outside;
    return i;
}

static void write_block(struct writer *w, int i)
{
    const struct serve_blocks *b = w->b;
    int block = w->block[i];

    put(w, 0, b->class_of[block], 0);
    for (int e = b->ext_start[block]; e < b->ext_start[block + 1]; e++) {
        int v = b->ext[e], at = w->position[b->home[v]];
        if (at < 0)
            put(w, 1, 0, number_outside(w, v));
        else if (b->to_start[v + 1] - b->to_start[v] > WIDE) /* from its nearer end */
            put(w, 2, 2 * at < w->n ? at : at - w->n, b->rank[v]);
        else
            put(w, 3, at - i, b->rank[v]);
    }
    for (int k = b->node_start[block]; k < b->node_start[block + 1]; k++) {
        int v = b->node[k];
        if (b->leaf[v] || b->to_start[v] == b->to_start[v + 1])
            continue;
        bool outside = false;
        for (int u = b->to_start[v]; u < b->to_start[v + 1] && !outside; u++)
            outside = w->position[b->to[u]] < 0;
        put(w, 0, outside, k - b->node_start[block]);
    }
}

void serve_content_of(struct ap_arena *arena, const struct serve_blocks *b, int n,
                      const int *block, struct serve_content *c)
{
    struct writer w = {.b = b, .n = n, .block = block};

    w.numbers = (struct ap_classes){.same = same_outside, .ctx = &w};
    w.position = AP_NEW_N(arena, b->n, int);
    memset(w.position, -1, (size_t)b->n * sizeof *w.position);
    for (int i = 0; i < n; i++)
        w.position[block[i]] = i;
    for (int i = 0; i < n; i++)
        write_block(&w, i);
    *c = (struct serve_content){.n = n,
                                .block =
                                    ap_arena_dup(arena, block, (size_t)n * sizeof *block),
                                .n_words = (int)(w.words.len / sizeof(uint64_t)),
                                .word = ap_arena_dup(arena, w.words.data, w.words.len),
                                .hash = ap_hash(w.words.data, w.words.len, 0)};
    ap_buf_free(&w.words);
    free(w.outside);
    ap_classes_free(&w.numbers);
}

bool serve_content_equal(const struct serve_content *a, const struct serve_content *b)
{
    return a->hash == b->hash && a->n == b->n && a->n_words == b->n_words &&
           memcmp(a->word, b->word, (size_t)a->n_words * sizeof *a->word) == 0;
}

/* ---- runs ---- */

static bool same_run(const void *ctx, int a, int b)
{
    const struct serve_content *content = ctx;
    return serve_content_equal(&content[a], &content[b]);
}

const int *serve_twins(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_blocks *blocks, const bool *split)
{
    struct ap_arena scratch = {0};
    const struct serve_blocks *b = serve_blocks_new(&scratch, g, blocks, split);
    const int n = b->n;
    int *twin = AP_NEW_N(arena, (size_t)n * (size_t)n, int);
    int *block = AP_NEW_N(&scratch, n, int);
    struct serve_content *content = AP_NEW_N(&scratch, n, struct serve_content);

    for (int i = 0; i < n; i++)
        block[i] = i;
    for (int len = 1; len <= n; len++) {
        struct ap_mark mark = ap_arena_mark(&scratch);
        struct ap_classes classes = {.same = same_run, .ctx = content};
        for (int lo = 0; lo + len <= n; lo++) {
            serve_content_of(&scratch, b, len, &block[lo], &content[lo]);
            twin[lo * n + lo + len - 1] = ap_class_of(&classes, content[lo].hash, lo);
        }
        ap_classes_free(&classes);
        ap_arena_rewind(&scratch, mark);
    }
    ap_arena_free(&scratch);
    return twin;
}
