/*
 * Problem: a planner of pipelines asks for every run of blocks; most are equal but for
 * where they stand. Idea: a block is written down as words (its nodes' signatures, who
 * reads whom by rank, externals by number of first use), equal words make a class, and a
 * run is the classes of its blocks with, per external, where in the run it is made.
 * Equal words are equal parts, so nothing is cut out to find out.
 * Cost: linear in the graph once; per run, nodes and externals of its blocks.
 */
#include "serve/serve.h"

#include "graph/identity.h"

#include <stdlib.h>
#include <string.h>

#define WIDE 3 /* read by more blocks than this: told by its place in the list */

/* ---- blocks ---- */

struct reader {
    struct ap_arena *arena;
    const struct ap_graph *g;
    struct serve_blocks *b;
    const uint64_t *sig;
    int *seen, *number;       /* [node]: last block that reads it, its number there */
    int *ext, n_ext, cap_ext; /* malloc */
    int *first_result, *next_result; /* by node, 1-based */
    struct ap_buf words;             /* of one block */
};

static int *sort_by_block(struct ap_arena *arena, const struct ap_graph *g, int n,
                          const int *home, int *rank, int **start)
{
    int *at = AP_NEW_N(arena, n + 2, int), *nodes = AP_NEW_N(arena, g->n_nodes + 1, int);
    for (int v = 0; v < g->n_nodes; v++)
        at[home[v] + 2]++;
    for (int i = 2; i <= n + 1; i++)
        at[i] += at[i - 1];
    for (int v = 0; v < g->n_nodes; v++)
        nodes[at[home[v] + 1]++] = v;
    for (int i = 0; i < n; i++)
        for (int k = at[i]; k < at[i + 1]; k++)
            rank[nodes[k]] = k - at[i];
    *start = at;
    return nodes;
}

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

/* What a node of the block reads: by rank inside, by number outside. */
static uint64_t refer(struct reader *r, int block, int v)
{
    if (r->b->home[v] == block)
        return 2 * (uint64_t)r->b->rank[v];
    if (r->seen[v] != block) {
        if (r->n_ext == r->cap_ext) {
            r->cap_ext = r->cap_ext ? 2 * r->cap_ext : 1024;
            r->ext = ap_xrealloc(r->ext, (size_t)r->cap_ext * sizeof *r->ext);
        }
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
    put_word(r, (uint64_t)n->n_in);
    for (int k = 0; k < n->n_in; k++) {
        bool one = r->g->nodes[n->in[k]].group == n->group; /* of a part's groups */
        put_word(r, 2 * refer(r, block, n->in[k]) + one);
    }
    for (int i = r->first_result[v]; i > 0; i = r->next_result[i]) {
        const struct ap_result *result = &r->g->results[i - 1];
        put_word(r, (uint64_t)result->role);
        put_word(r, result->alias < 0 ? UINT64_MAX : refer(r, block, result->alias));
    }
}

/* A value of another block: what a part sees of it. */
static uint64_t cut_signature(const struct ap_node *n)
{
    uint64_t h = ap_hash(n->shape.dims, (size_t)n->shape.rank * sizeof *n->shape.dims,
                         (uint64_t)n->shape.dtype + 1);
    const int more[2] = {n->shape.rank, (int)n->phase};
    return ap_hash(more, sizeof more, h);
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
            put_word(r, cut_signature(&r->g->nodes[v]));
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
    uint64_t hash;
    size_t len;
    const char *data;
};

/* Blocks with equal words, nodes compared in full, are one class. */
static int class_among(const struct serve_blocks *b, const struct words *w,
                       const int *class_of, int block)
{
    for (int i = 0; i < block; i++) {
        if (class_of[i] != i || w[i].hash != w[block].hash || w[i].len != w[block].len ||
            memcmp(w[i].data, w[block].data, w[i].len) != 0)
            continue;
        int n = b->node_start[i + 1] - b->node_start[i], k = 0;
        while (k < n && ap_nodes_identical(b->graph, b->node[b->node_start[i] + k],
                                       b->node[b->node_start[block] + k]))
            k++;
        if (k == n)
            return i;
    }
    return block;
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
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->pair = ap_xrealloc(l->pair, (size_t)l->cap * sizeof *l->pair);
    }
    const uint64_t key[2] = {sig, from < to};
    l->pair[l->n++] = (struct serve_pair){a, b, 0, ap_hash(key, sizeof key, 0)};
}

static int compare_pairs(const void *pa, const void *pb)
{
    const struct serve_pair *a = pa, *b = pb;
    return a->a != b->a ? (a->a > b->a) - (a->a < b->a) : (a->b > b->b) - (a->b < b->b);
}

/* Finds for each pair the first one like it. */
static void match_pairs(struct ap_arena *arena, const struct serve_blocks *b,
                        struct serve_pair *pair, int n)
{
    size_t mask = 1;
    while (mask < 2 * (size_t)n)
        mask = 2 * mask + 1;
    int *table = AP_NEW_N(arena, mask + 1, int); /* pair + 1 */
    for (int i = 0; i < n; i++) {
        const struct serve_pair *p = &pair[i];
        const uint64_t key[3] = {(uint64_t)b->class_of[p->a], (uint64_t)b->class_of[p->b],
                                 p->values};
        size_t at = ap_hash(key, sizeof key, 0) & mask;
        for (; table[at]; at = (at + 1) & mask) {
            const struct serve_pair *q = &pair[table[at] - 1];
            if (q->values == p->values && b->class_of[q->a] == b->class_of[p->a] &&
                b->class_of[q->b] == b->class_of[p->b])
                break;
        }
        table[at] = table[at] ? table[at] : i + 1;
        pair[i].like = table[at] - 1;
    }
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
    match_pairs(arena, b, l.pair, n);
    b->n_pairs = n;
    b->pair = ap_arena_dup(arena, l.pair, (size_t)n * sizeof *l.pair);
    free(l.pair);
}

void serve_blocks_init(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_blocks *blocks, struct serve_blocks *b)
{
    int n = blocks->n, *home = AP_NEW_N(arena, g->n_nodes + 1, int);
    int *rank = AP_NEW_N(arena, g->n_nodes + 1, int), *start;
    bool *leaf = AP_NEW_N(arena, g->n_nodes + 1, bool);
    uint64_t *sig = AP_NEW_N(arena, g->n_nodes + 1, uint64_t);

    *b = (struct serve_blocks){.graph = g, .n = n};
    if (n == 0)
        return;
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
    b->node = sort_by_block(arena, g, n, home, rank, &start);
    b->node_start = start;
    list_users(arena, b);
    ap_node_signatures(g, sig);
    struct reader r = {.arena = arena,
                       .g = g,
                       .b = b,
                       .sig = sig,
                       .seen = AP_NEW_N(arena, g->n_nodes + 1, int),
                       .number = AP_NEW_N(arena, g->n_nodes + 1, int)};
    memset(r.seen, -1, (size_t)g->n_nodes * sizeof *r.seen);
    chain_results(&r);
    int *ext_start = AP_NEW_N(arena, n + 1, int), *class_of = AP_NEW_N(arena, n, int);
    struct words *words = AP_NEW_N(arena, n, struct words);
    b->ext_start = ext_start;
    for (int i = 0; i < n; i++) {
        describe(&r, i, ext_start);
        words[i] =
            (struct words){ap_hash(r.words.data, r.words.len, 0), r.words.len, NULL};
        words[i].data = ap_arena_dup(arena, r.words.data, r.words.len);
        class_of[i] = class_among(b, words, class_of, i);
    }
    b->ext = ap_arena_dup(arena, r.ext, (size_t)r.n_ext * sizeof *r.ext);
    b->class_of = class_of;
    list_pairs(arena, sig, b);
    free(r.ext);
    ap_buf_free(&r.words);
}

/* ---- lists of blocks ---- */

struct writer {
    const struct serve_blocks *b;
    int n;
    const int *block;
    int *position; /* [block]: in the list, -1 */
    int n_outside, cap_outside;
    int *outside; /* nodes that the part reads, in order of first use; malloc */
    int *slot;    /* hash table of them: index + 1 */
    size_t mask;
    struct ap_buf words;
};

static void put(struct writer *w, uint64_t kind, int64_t x, int64_t y)
{
    uint64_t word = kind << 62 | (uint64_t)(x + (1 << 28)) << 32 | (uint32_t)y;
    ap_buf_put(&w->words, &word, sizeof word);
}

static void grow_table(struct writer *w)
{
    w->mask = w->mask ? 2 * w->mask + 1 : 63;
    free(w->slot);
    w->slot = ap_xrealloc(NULL, (w->mask + 1) * sizeof *w->slot);
    memset(w->slot, 0, (w->mask + 1) * sizeof *w->slot);
    for (int i = 0; i < w->n_outside; i++) {
        size_t at = ap_hash(&w->outside[i], sizeof(int), 0) & w->mask;
        while (w->slot[at])
            at = (at + 1) & w->mask;
        w->slot[at] = i + 1;
    }
    w->cap_outside = (int)(w->mask / 2);
    w->outside = ap_xrealloc(w->outside, (size_t)(w->cap_outside + 1) * sizeof(int));
}

/* Number of a node that is outside of the list, by first use. */
static int number_outside(struct writer *w, int v)
{
    if (w->n_outside >= w->cap_outside)
        grow_table(w);
    size_t at = ap_hash(&v, sizeof v, 0) & w->mask;
    while (w->slot[at] && w->outside[w->slot[at] - 1] != v)
        at = (at + 1) & w->mask;
    if (!w->slot[at]) {
        w->outside[w->n_outside] = v;
        w->slot[at] = ++w->n_outside;
    }
    return w->slot[at] - 1;
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
    free(w.slot);
}

bool serve_content_equal(const struct serve_content *a, const struct serve_content *b)
{
    return a->hash == b->hash && a->n == b->n && a->n_words == b->n_words &&
           memcmp(a->word, b->word, (size_t)a->n_words * sizeof *a->word) == 0;
}
