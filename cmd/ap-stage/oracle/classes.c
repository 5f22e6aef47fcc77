/*
 * Problem: thousands of runs of blocks are priced, and in a deep model most are copies of
 * each other; which? Idea: a block's content is hashed with each operand described by
 * where it stands: its place in the same block, its place in the block before or after,
 * or outside of the run. A run's content then is the sequence of its blocks' hashes, and
 * a block needs four of them, one for each choice of neighbours that are in the run too.
 * What makes this work in real graphs: where blocks that are no neighbours read from each
 * other, one of them is mostly the same (the first, with masks and step counters; the
 * last, with the norm of all gradients). Such a block is a hub, and runs with a hub are
 * like no other run; all other edges join neighbours. A value of a hub that one block
 * alone reads is to that block an input like any other; one that several read is named by
 * its number. What is made of constants alone is copied into every part and counts by its
 * value. Cost: linear in operands, four hashes each; runs: one comparison of prefix
 * hashes each, and one of the sequences where these agree.
 */
#include "oracle/classes.h"

#include "base/csr.h"

#include <stdlib.h>
#include <string.h>

#include "graph/identity.h"

struct finder {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const struct ap_blocks *blocks;
    int n;                 /* blocks */
    uint64_t *sig;         /* [node], content of one that is made of constants alone */
    bool *constant;        /* [node] */
    int *place;            /* [node]: position in its block */
    struct ap_csr members; /* nodes by block, ascending */
    int *reader;    /* [node]: the one block outside hubs and its own that reads it,
                       -1 none, -2 several */
    bool *hub;      /* [block] */
    uint8_t *users; /* [node]: bits USED_* */
    struct ap_csr results;                           /* by node */
    int *number[N_RUN_PLACES], *stamp[N_RUN_PLACES]; /* [node]: of outside values */
    int n_numbers[N_RUN_PLACES];
};
enum { USED_BEFORE = 1, USED_BEHIND = 2, USED_FAR = 4 };

/* Such edges make the groups of a part (ap_group_part). */
static bool same_group(const struct ap_graph *g, int a, int b)
{
    return g->nodes[a].group == g->nodes[b].group;
}

static void sign_nodes(struct finder *f, const bool *split)
{
    const struct ap_graph *g = f->g;
    ap_node_signatures(g, f->sig);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        f->constant[i] = n->op != AP_OP_PARAMETER;
        for (int k = 0; k < n->n_in && f->constant[i]; k++)
            f->constant[i] = f->constant[n->in[k]];
        for (int k = 0; k < n->n_in && f->constant[i]; k++) {
            const uint64_t in[2] = {f->sig[n->in[k]], same_group(g, n->in[k], i)};
            f->sig[i] = ap_hash(in, sizeof in, f->sig[i]);
        }
        if (split && split[i])
            f->sig[i] = ap_hash("split", 5, f->sig[i]);
    }
}

static void list_members(struct finder *f)
{
    f->members = ap_csr_new(f->arena, f->n, f->g->n_nodes, f->blocks->block_of, NULL);
    for (int b = 0; b < f->n; b++)
        for (int m = f->members.start[b]; m < f->members.start[b + 1]; m++)
            f->place[f->members.item[m]] = m - f->members.start[b];
}

static void list_results(struct finder *f)
{
    const struct ap_graph *g = f->g;
    int *node = AP_NEW_N(f->arena, g->n_results + 1, int);

    for (int r = 0; r < g->n_results; r++)
        node[r] = g->results[r].node;
    f->results = ap_csr_new(f->arena, g->n_nodes, g->n_results, node, NULL);
}

/* ---- hubs ---- */

static void join(const struct finder *f, uint8_t *far, int from, int to)
{
    int a = f->blocks->block_of[from], b = f->blocks->block_of[to];
    if (!f->constant[from] && abs(a - b) > 1)
        far[(size_t)a * (size_t)f->n + (size_t)b] =
            far[(size_t)b * (size_t)f->n + (size_t)a] = 1;
}

/*
 * Takes hubs until every far pair has one: always a block with the most partners that
 * have none yet, of those one with the most partners at all, the lowest number.
 */
static void cover(struct finder *f, const uint8_t *far)
{
    int n = f->n;
    int *all = AP_NEW_N(f->arena, n, int), *left = AP_NEW_N(f->arena, n, int);
    for (int a = 0; a < n; a++) {
        for (int b = 0; b < n; b++)
            all[a] += far[(size_t)a * (size_t)n + (size_t)b];
        left[a] = all[a];
    }
    for (;;) {
        int best = 0;
        for (int a = 1; a < n; a++)
            if (left[a] > left[best] || (left[a] == left[best] && all[a] > all[best]))
                best = a;
        if (left[best] == 0)
            break;
        f->hub[best] = true;
        left[best] = 0;
        for (int b = 0; b < n; b++)
            left[b] -= far[(size_t)best * (size_t)n + (size_t)b] && !f->hub[b];
    }
}

static void find_hubs(struct finder *f)
{
    struct ap_mark mark = ap_arena_mark(f->arena);
    const struct ap_graph *g = f->g;
    size_t n = (size_t)f->n;
    uint8_t *far = AP_NEW_N(f->arena, n * n, uint8_t);

    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            join(f, far, g->nodes[i].in[k], i);
    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].alias >= 0)
            join(f, far, g->results[r].alias, g->results[r].node);
    cover(f, far);
    ap_arena_rewind(f->arena, mark);
}

static void find_users(struct finder *f)
{
    const struct ap_graph *g = f->g;
    const int *block_of = f->blocks->block_of;
    for (int i = 0; i < g->n_nodes; i++) {
        f->reader[i] = -1;
        for (int u = g->user_start[i]; u < g->user_start[i + 1]; u++) {
            int a = block_of[i], b = block_of[g->users[u]];
            if (a == b)
                continue;
            f->users[i] |= f->hub[b] ? USED_FAR : b < a ? USED_BEFORE : USED_BEHIND;
            if (!f->hub[b])
                f->reader[i] = f->reader[i] == -1 || f->reader[i] == b ? b : -2;
        }
    }
}

/* ---- hashes ---- */

/* A value from outside of the run: its number among those that the block reads. */
static uint64_t outside(struct finder *f, int place, int node, int b)
{
    if (f->stamp[place][node] != b + 1) {
        f->stamp[place][node] = b + 1;
        f->number[place][node] = f->n_numbers[place]++;
    }
    return (uint64_t)f->number[place][node] << 8 | 'E';
}

/* Before which member of block b a node stands: parts keep this order. */
static uint64_t stands(const struct finder *f, int node, int b)
{
    int lo = f->members.start[b], hi = f->members.start[b + 1];
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (f->members.item[mid] < node)
            lo = mid + 1;
        else
            hi = mid;
    }
    return (uint64_t)(lo - f->members.start[b]);
}

/* How block b, at this place of a run, sees a node. */
static uint64_t see(struct finder *f, int place, int node, int b)
{
    int a = f->blocks->block_of[node];
    if (f->constant[node])
        return ap_hash_mix(ap_hash_mix('C', f->sig[node]), stands(f, node, b));
    if (a == b)
        return (uint64_t)f->place[node] << 8 | 'I';
    uint64_t where;
    if (f->hub[a])
        where =
            f->reader[node] == b ? outside(f, place, node, b) : (uint64_t)node << 8 | 'A';
    else if (place & (a < b ? RUN_FIRST : RUN_LAST))
        where = outside(f, place, node, b);
    else
        where = (uint64_t)f->place[node] << 8 | (a < b ? 'L' : 'R');
    return ap_hash_mix(ap_hash_mix(where, f->sig[node]), stands(f, node, b));
}

static uint64_t add_node(struct finder *f, int place, int node, int b, uint64_t h)
{
    const struct ap_node *n = &f->g->nodes[node];
    unsigned away = USED_FAR | (place & RUN_FIRST ? USED_BEFORE : 0) |
                    (place & RUN_LAST ? USED_BEHIND : 0);
    h = ap_hash_mix(h, f->sig[node]);
    h = ap_hash_mix(h, (f->users[node] & away) != 0);
    for (int k = 0; k < n->n_in; k++)
        h = ap_hash_mix(ap_hash_mix(h, see(f, place, n->in[k], b)),
                        same_group(f->g, n->in[k], node));
    for (int r = f->results.start[node]; r < f->results.start[node + 1]; r++) {
        const struct ap_result *result = &f->g->results[f->results.item[r]];
        h = ap_hash_mix(h, (uint64_t)result->role);
        h = ap_hash_mix(h, result->alias < 0 ? 0 : see(f, place, result->alias, b));
    }
    return h;
}

static uint64_t hash_block(struct finder *f, int place, int b)
{
    uint64_t h = ap_hash_mix((uint64_t)place, f->hub[b] ? (uint64_t)b + 1 : 0);
    f->n_numbers[place] = 0;
    for (int m = f->members.start[b]; !f->hub[b] && m < f->members.start[b + 1]; m++) {
        int node = f->members.item[m];
        if (!f->constant[node] || f->results.start[node] < f->results.start[node + 1])
            h = add_node(f, place, node, b, h);
    }
    return h;
}

/* Small numbers for hashes, in the order of their first blocks. */
static const int *number(struct ap_arena *arena, const uint64_t *hash, int n)
{
    int *id = AP_NEW_N(arena, n, int), n_ids = 0;
    for (int b = 0; b < n; b++) {
        int a = 0;
        while (a < b && hash[a] != hash[b])
            a++;
        id[b] = a < b ? id[a] : n_ids++;
    }
    return id;
}

/* ---- runs ---- */

struct run {
    uint64_t hash;
    int lo, hi;
};

static int compare_runs(const void *pa, const void *pb)
{
    const struct run *a = pa, *b = pb;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return a->lo - b->lo;
}

static bool same_run(const struct stage_classes *c, const struct run *a,
                     const struct run *b)
{
    size_t n = a->hi - a->lo > 1 ? (size_t)(a->hi - a->lo - 1) : 0;
    return a->hi - a->lo == b->hi - b->lo &&
           stage_class(c, a->lo, a->hi, a->lo) == stage_class(c, b->lo, b->hi, b->lo) &&
           stage_class(c, a->lo, a->hi, a->hi) == stage_class(c, b->lo, b->hi, b->hi) &&
           !memcmp(c->id[RUN_INNER] + a->lo + 1, c->id[RUN_INNER] + b->lo + 1,
                   n * sizeof(int));
}

static void find_twins(struct ap_arena *arena, struct stage_classes *c)
{
    int n = c->n_blocks, *twin = AP_NEW_N(arena, (size_t)n * (size_t)n, int);
    struct ap_mark mark = ap_arena_mark(arena);
    struct run *runs = AP_NEW_N(arena, (size_t)n * (size_t)(n + 1) / 2, struct run);
    int n_runs = 0;

    for (int lo = 0; lo < n; lo++) {
        uint64_t inner = 0; /* of blocks lo + 1 to hi - 1 */
        for (int hi = lo; hi < n; hi++) {
            if (hi > lo + 1)
                inner = ap_hash_mix(inner, (uint64_t)c->id[RUN_INNER][hi - 1]);
            uint64_t h = ap_hash_mix(inner, (uint64_t)stage_class(c, lo, hi, lo));
            h = ap_hash_mix(h, (uint64_t)stage_class(c, lo, hi, hi));
            runs[n_runs++] = (struct run){ap_hash_mix(h, (uint64_t)(hi - lo)), lo, hi};
        }
    }
    qsort(runs, (size_t)n_runs, sizeof *runs, compare_runs);
    for (int i = 0, first = 0; i < n_runs; i++) {
        if (runs[i].hash != runs[first].hash || !same_run(c, &runs[first], &runs[i]))
            first = i;
        twin[(size_t)runs[i].lo * (size_t)n + (size_t)runs[i].hi] = runs[first].lo;
    }
    ap_arena_rewind(arena, mark);
    c->twin = twin;
}

void stage_classes_find(struct ap_arena *arena, const struct ap_graph *g,
                        const struct ap_blocks *blocks, const bool *split,
                        struct stage_classes *out)
{
    int n = blocks->n, n_nodes = g->n_nodes;
    struct finder f = {.arena = arena,
                       .g = g,
                       .blocks = blocks,
                       .n = n,
                       .sig = AP_NEW_N(arena, n_nodes, uint64_t),
                       .constant = AP_NEW_N(arena, n_nodes, bool),
                       .place = AP_NEW_N(arena, n_nodes, int),
                       .reader = AP_NEW_N(arena, n_nodes, int),
                       .hub = AP_NEW_N(arena, n, bool),
                       .users = AP_NEW_N(arena, n_nodes, uint8_t)};
    *out = (struct stage_classes){.n_blocks = n};
    sign_nodes(&f, split);
    list_members(&f);
    list_results(&f);
    find_hubs(&f);
    find_users(&f);
    for (int place = 0; place < N_RUN_PLACES; place++) {
        f.number[place] = AP_NEW_N(arena, n_nodes, int);
        f.stamp[place] = AP_NEW_N(arena, n_nodes, int);
        uint64_t *hash = AP_NEW_N(arena, n, uint64_t);
        for (int b = 0; b < n; b++)
            hash[b] = hash_block(&f, place, b);
        out->id[place] = number(arena, hash, n);
    }
    find_twins(arena, out);
}
