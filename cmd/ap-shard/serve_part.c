/*
 * Parts of the graph for --serve: cut out once, with their nests, for all meshes. Nodes
 * are named by block of the list and rank in it, or as an external of the first block
 * that reads them; by these names parts of different depth correspond. Cost: linear in
 * the graph to cut, in the part to tie and map.
 */
#include "serve.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* About what a node costs with its nest. */
#define NODE_BYTES 2000

/* Node of the part, -1. Sources ascend. */
static int find_node(const struct serve_part *part, int v)
{
    int lo = 0, hi = part->sub.graph.n_nodes;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (part->sub.source[mid] < v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < part->sub.graph.n_nodes && part->sub.source[lo] == v ? lo : -1;
}

static struct serve_part *cut(const struct ap_graph *g, const bool *inside,
                              struct ap_err *err)
{
    struct serve_part *part = ap_xrealloc(NULL, sizeof *part);

    *part = (struct serve_part){.arena = {0}};
    if (ap_subgraph(&part->arena, g, inside, &part->sub, err) ||
        ap_nests_build(&part->arena, &part->sub.graph, &part->nests, err)) {
        serve_part_free(part);
        return NULL;
    }
    part->bytes = (int64_t)part->sub.graph.n_nodes * NODE_BYTES + 16 * g->n_nodes;
    return part;
}

struct serve_part *serve_part_of_nodes(const struct ap_graph *g, const bool *inside,
                                       struct ap_err *err)
{
    return cut(g, inside, err);
}

void serve_part_free(struct serve_part *part)
{
    ap_arena_free(&part->arena);
    free(part);
}

static void name_nodes(const struct serve_blocks *b, struct serve_part *part)
{
    const struct serve_content *c = &part->content;
    int n = part->sub.graph.n_nodes;
    int *at = AP_NEW_N(&part->arena, n + 1, int);
    int *place = AP_NEW_N(&part->arena, n + 1, int);

    memset(at, -1, (size_t)n * sizeof *at);
    for (int i = 0; i < c->n; i++)
        for (int k = b->node_start[c->block[i]]; k < b->node_start[c->block[i] + 1];
             k++) {
            int id = find_node(part, b->node[k]);
            assert(id >= 0);
            at[id] = i;
            place[id] = b->rank[b->node[k]];
        }
    for (int i = 0; i < c->n; i++)
        for (int e = b->ext_start[c->block[i]]; e < b->ext_start[c->block[i] + 1]; e++) {
            int id = find_node(part, b->ext[e]); /* -1: an alias that nobody reads */
            if (id < 0 || at[id] >= 0)
                continue;
            at[id] = i;
            place[id] = -1 - (e - b->ext_start[c->block[i]]);
        }
    for (int v = 0; v < n; v++)
        assert(at[v] >= 0);
    part->at = at;
    part->place = place;
}

struct serve_part *serve_part_new(const struct serve_blocks *b,
                                  const struct serve_content *c, struct ap_err *err)
{
    bool *chosen = ap_xrealloc(NULL, (size_t)b->n * sizeof *chosen);
    bool *inside = ap_xrealloc(NULL, ((size_t)b->graph->n_nodes + 1) * sizeof *inside);

    memset(chosen, 0, (size_t)b->n * sizeof *chosen);
    for (int i = 0; i < c->n; i++)
        chosen[c->block[i]] = true;
    for (int v = 0; v < b->graph->n_nodes; v++)
        inside[v] = chosen[b->home[v]];
    struct serve_part *part = cut(b->graph, inside, err);
    free(chosen);
    free(inside);
    if (!part)
        return NULL;
    struct ap_arena *arena = &part->arena;
    size_t n_words = (size_t)c->start[c->n];
    part->content = *c;
    part->content.block = ap_arena_dup(arena, c->block, (size_t)c->n * sizeof(int));
    part->content.start = ap_arena_dup(arena, c->start, (size_t)(c->n + 1) * sizeof(int));
    part->content.word = ap_arena_dup(arena, c->word, n_words * sizeof(uint64_t));
    name_nodes(b, part);
    return part;
}

/* ---- what is alike within a part ---- */

/* up to so many groups, layers inside of blocks are searched freely */
#define FREE_GROUPS 600

/* Blocks [from, to) of the list are of the same class as those a period on. */
struct stretch {
    int from, to, period;
};

static struct stretch alike_blocks(const struct serve_blocks *b,
                                   const struct serve_content *c)
{
    struct stretch best = {0};
    for (int p = 1; p < c->n && p <= 8; p++) {
        int from = 0;
        for (int i = 0; i + p <= c->n; i++) {
            if (i + p < c->n && b->class_of[c->block[i]] == b->class_of[c->block[i + p]])
                continue;
            if (i > from && i + p - from > best.to - best.from)
                best = (struct stretch){from, i + p, p};
            from = i + 1;
        }
    }
    return best;
}

static uint64_t group_label(const struct serve_part *part, const struct ap_nest *nest,
                            const struct stretch *s)
{
    uint64_t h = 0;
    int first = part->at[nest->members[0]];
    for (int m = 0; m < nest->n_members; m++) {
        int v = nest->members[m], i = part->at[v];
        bool repeats = i >= s->from && i < s->to;
        const int key[4] = {repeats, repeats ? (i - s->from) % s->period : i,
                            part->place[v], i - first};
        h = ap_hash(key, sizeof key, h);
    }
    return h;
}

static void tie_blocks(struct ap_arena *arena, const struct serve_blocks *b,
                       const struct serve_part *part, struct shard_fold *fold)
{
    const struct ap_graph *g = &part->sub.graph;
    const struct ap_nest *nest = part->nests.nest;
    int n = part->nests.n;
    struct stretch s = {0};
    size_t mask = 1;

    if (part->at)
        s = alike_blocks(b, &part->content);
    while (mask < 2 * (size_t)n)
        mask = 2 * mask + 1;
    int *table = AP_NEW_N(arena, mask + 1, int); /* group + 1, by label */
    *fold = (struct shard_fold){
        .twin = AP_NEW_N(arena, n, int), .weight = AP_NEW_N(arena, n, int), .period = 1};
    fold->tied = fold->twin;
    for (int i = 0; i < n; i++) {
        fold->twin[i] = i;
        fold->weight[i] = 1;
        if (s.to == 0)
            continue;
        size_t at = group_label(part, &nest[i], &s) & mask;
        while (table[at] &&
               !(shard_fold_same_nest(g, &nest[table[at] - 1], g, &nest[i]) &&
                 group_label(part, &nest[table[at] - 1], &s) ==
                     group_label(part, &nest[i], &s)))
            at = (at + 1) & mask;
        if (!table[at]) {
            table[at] = i + 1;
            continue;
        }
        fold->twin[i] = table[at] - 1;
        fold->weight[fold->twin[i]]++;
        fold->weight[i] = 0;
        fold->n_tied++;
    }
}

static int root_of(int *tied, int i)
{
    while (tied[i] != i)
        i = tied[i] = tied[tied[i]];
    return i;
}

/* 0: some member stands in no layer. */
static uint64_t layer_label(const struct serve_blocks *b, const struct serve_part *part,
                            const struct ap_nest *nest)
{
    uint64_t h = 1;
    for (int m = 0; m < nest->n_members; m++) {
        uint64_t label = b->layer[part->sub.source[nest->members[m]]];
        if (label == 0)
            return 0;
        h = ap_hash(&label, sizeof label, h);
    }
    return h | 1;
}

/* Joins what is tied among the layers inside of blocks, the first of all being the one
 * that the others follow. */
static void tie_layers(struct ap_arena *arena, const struct serve_blocks *b,
                       const struct serve_part *part, struct shard_fold *fold)
{
    const struct ap_graph *g = &part->sub.graph;
    const struct ap_nest *nest = part->nests.nest;
    int n = part->nests.n;
    size_t mask = 1;

    while (mask < 2 * (size_t)n)
        mask = 2 * mask + 1;
    int *table = AP_NEW_N(arena, mask + 1, int); /* group + 1, by label */
    uint64_t *label = AP_NEW_N(arena, n + 1, uint64_t);
    for (int i = 0; i < n; i++) {
        label[i] = layer_label(b, part, &nest[i]);
        if (label[i] == 0)
            continue;
        size_t at = label[i] >> 1 & mask;
        while (table[at] && label[table[at] - 1] != label[i])
            at = (at + 1) & mask;
        if (!table[at])
            table[at] = i + 1;
        int x = root_of(fold->tied, table[at] - 1), y = root_of(fold->tied, i);
        if (shard_fold_same_nest(g, &nest[x], g, &nest[y]))
            fold->tied[x > y ? x : y] = x < y ? x : y;
    }
    fold->n_tied = 0;
    for (int i = 0; i < n; i++) {
        int root = fold->tied[i] = root_of(fold->tied, i);
        fold->weight[i] = 0;
        fold->weight[root]++;
        fold->n_tied += root != i;
    }
}

void serve_part_tie(struct ap_arena *arena, const struct serve_blocks *b,
                    const struct serve_part *part, struct shard_fold *fold)
{
    tie_blocks(arena, b, part, fold);
    if (part->nests.n > FREE_GROUPS)
        tie_layers(arena, b, part, fold);
}

/* ---- parts of different depth ---- */

/* Block of the smaller list that stands for block i of the larger one. */
static int map_block(const struct serve_period *p, int extra, int i)
{
    int hole = p->from + p->period, more = extra * p->period;
    if (i < hole)
        return i;
    return i < hole + more ? p->from + (i - p->from) % p->period : i - more;
}

int serve_part_map(const struct serve_blocks *b, const struct serve_part *large,
                   const struct serve_part *small, const struct serve_period *p,
                   int extra, int *group, int *node)
{
    const struct ap_graph *lg = &large->sub.graph, *sg = &small->sub.graph;

    for (int v = 0; v < lg->n_nodes; v++) {
        int block = small->content.block[map_block(p, extra, large->at[v])];
        int place = large->place[v];
        node[v] =
            find_node(small, place >= 0 ? b->node[b->node_start[block] + place]
                                        : b->ext[b->ext_start[block] + (-1 - place)]);
        if (node[v] < 0)
            return -1;
    }
    for (int i = 0; i < large->nests.n; i++) {
        const struct ap_nest *nest = &large->nests.nest[i];
        group[i] = sg->nodes[node[nest->members[0]]].group;
        const struct ap_nest *same = &small->nests.nest[group[i]];
        if (!shard_fold_same_nest(lg, nest, sg, same))
            return -1;
        for (int m = 0; m < nest->n_members; m++)
            if (node[nest->members[m]] != same->members[m])
                return -1;
    }
    return 0;
}

/* ---- parts and their cores ---- */

/* Node of the core that stands where v does, block `at` of the core's list, -1. */
static int core_node(const struct serve_blocks *b, const struct serve_part *part,
                     const struct serve_part *core, int v, int at)
{
    if (at < 0 || at >= core->content.n)
        return -1;
    int block = core->content.block[at], place = part->place[v];
    if (b->class_of[block] != b->class_of[part->content.block[part->at[v]]])
        return -1;
    return find_node(core, place >= 0 ? b->node[b->node_start[block] + place]
                                      : b->ext[b->ext_start[block] + (-1 - place)]);
}

static bool copies(const struct serve_blocks *b, const struct serve_part *part,
                   const struct serve_part *core, const struct ap_nest *nest, int shift,
                   int *group)
{
    const struct ap_nest *same = NULL;
    for (int m = 0; m < nest->n_members; m++) {
        int v = nest->members[m];
        int node = core_node(b, part, core, v, part->at[v] + shift);
        if (node < 0)
            return false;
        if (m == 0) {
            *group = core->sub.graph.nodes[node].group;
            same = &core->nests.nest[*group];
            if (!shard_fold_same_nest(&part->sub.graph, nest, &core->sub.graph, same))
                return false;
        }
        if (same->members[m] != node)
            return false;
    }
    return true;
}

void serve_part_core(const struct serve_blocks *b, const struct serve_part *part,
                     const struct serve_part *core, int *seen)
{
    for (int i = 0; i < part->nests.n; i++) {
        const struct ap_nest *nest = &part->nests.nest[i];
        int at = part->at[nest->members[0]], block = part->content.block[at];
        if (b->core[block] != core->content.block[0])
            continue;
        int shift = b->core_offset[block] - at, group;
        if (copies(b, part, core, nest, shift, &group) ||
            copies(b, part, core, nest, shift + b->core_period[block], &group))
            seen[i] = group;
    }
}
