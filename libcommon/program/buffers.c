/*
 * Where a program's values live: one arena per rank, offsets fixed before the first step.
 *
 * A value lives from its group to the last group that reads it or a view of it;
 * parameters live throughout and come first. The rest is placed in one sweep over the
 * groups: dead values give their block back, new ones take the smallest free block that
 * holds them (best fit), the end of the arena grows when none does. The sweep also runs
 * backwards in time, which is as valid and often tighter; the smaller arena counts. Where
 * both waste memory, pack.c packs the buffers, which takes nearly all of the waste away.
 * O(n log n), and a bounded number of times the square of a bounded number.
 *
 * Groups that run once per microbatch are a loop: what is made before and read in it
 * lives to its end, and what it accumulates or gathers lives from its start.
 */
#include "base/csr.h"
#include "base/pack.h"
#include "program/program.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN AP_PACK_ALIGN
/*
 * Work of the packer (visits of placed pieces): at most PACK_WORK, some tenths of a
 * second, and PACK_ROUNDS times the square of the pieces; PACK_ROUNDS_HOPELESS times when
 * no arena is within the limit. What it saves:
 *     ap-model bert --layers 4 | ap-shard --mesh 8 --algorithm zero3 | ap-rewrite --stats
 * has a peak_device_bytes of 573 MB, without packing (PACK_WORK 1) 606 MB.
 */
#define PACK_WORK            40000000
#define PACK_ROUNDS          200
#define PACK_ROUNDS_HOPELESS 4

/* What buffers are planned from; arrays are per local node. */
struct lives {
    const struct ap_graph *g;
    int *root;  /* node that owns the memory (itself, or what it is a view of) */
    int *birth; /* group that writes it; of roots */
    int *death; /* last group that reads it, n_groups for ever */
    bool *has;  /* owns memory */
    int lo, hi; /* groups of the loop over microbatches */
};

static bool is_fusible(const struct ap_graph *g, int node)
{
    enum ap_op op = g->nodes[node].op;
    return ap_ops[op].class == AP_CLASS_ELEMENTWISE || op == AP_OP_BROADCAST;
}

/* ---- lifetimes ---- */

bool ap_program_is_view(const struct ap_graph *g, int node)
{
    const struct ap_node *n = &g->nodes[node];
    if (n->op != AP_OP_RESHAPE && n->op != AP_OP_OPT_BARRIER)
        return false;
    return (node == 0 || g->nodes[node - 1].group != n->group) &&
           (node + 1 == g->n_nodes || g->nodes[node + 1].group != n->group);
}

bool ap_program_is_inner(const struct ap_graph *g, int node)
{
    int group = g->nodes[node].group;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++)
        if (g->nodes[g->users[u]].group != group)
            return false;
    return g->user_start[node] < g->user_start[node + 1];
}

bool ap_program_is_carried(const struct ap_program *prog, int node)
{
    const struct ap_node *n = &prog->local.nodes[node];
    return ap_ops[n->op].class == AP_CLASS_COLLECTIVE &&
           (n->attrs->coll.axes & prog->mesh.microbatch);
}

void ap_program_stretch(const struct ap_program *prog, int node, int *birth, int *death)
{
    int lo = prog->each_lo, hi = prog->each_hi;
    bool carried = ap_program_is_carried(prog, node);

    if (carried)
        *birth = lo;
    if ((carried || *birth < lo) && *death >= lo && *death < hi)
        *death = hi - 1;
}

static void find_lives(struct ap_arena *arena, const struct ap_program *prog,
                       struct lives *l)
{
    const struct ap_graph *g = &prog->local;
    l->g = g;
    l->lo = prog->each_lo;
    l->hi = prog->each_hi;
    l->root = AP_NEW_N(arena, g->n_nodes, int);
    l->birth = AP_NEW_N(arena, g->n_nodes, int);
    l->death = AP_NEW_N(arena, g->n_nodes, int);
    l->has = AP_NEW_N(arena, g->n_nodes, bool);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        l->root[i] = ap_program_is_view(g, i) ? l->root[n->in[0]] : i;
        l->birth[i] = l->death[i] = n->group;
        l->has[i] =
            l->root[i] == i && n->shape.dtype != AP_TUPLE && !ap_program_is_inner(g, i);
        for (int k = 0; k < n->n_in; k++) {
            int from = l->root[n->in[k]];
            if (l->death[from] < n->group)
                l->death[from] = n->group;
        }
    }
    for (int r = 0; r < g->n_results; r++) {
        int from = l->root[g->results[r].node];
        l->has[from] = true;
        l->death[from] = g->n_groups;
    }
    for (int i = 0; i < g->n_nodes; i++)
        ap_program_stretch(prog, i, &l->birth[i], &l->death[i]);
    for (int i = 0; i < g->n_params; i++) {
        l->has[g->params[i]] = true;
        l->birth[g->params[i]] = 0;
        l->death[g->params[i]] = g->n_groups;
    }
}

/* ---- results in place ---- */

/* Every reader of the parameter in `group` comes at or before node `at`, element by
 * element. */
static bool reads_in_step(const struct lives *l, int param, int group, int at)
{
    const struct ap_graph *g = l->g;
    for (int u = g->user_start[param]; u < g->user_start[param + 1]; u++) {
        int user = g->users[u];
        if (l->root[user] == param)
            return false; /* a view: its readers may index otherwise */
        if (g->nodes[user].group == group &&
            (user > at || ap_ops[g->nodes[user].op].class != AP_CLASS_ELEMENTWISE ||
             !ap_shape_same_dims(&g->nodes[user].shape, &g->nodes[param].shape)))
            return false;
    }
    return true;
}

/*
 * True when a result can be computed straight into the buffer of the parameter that it
 * becomes: nobody reads the old value later, and what reads it in the same fused group
 * does so at the same index, before the new value is written. last_read: the group that
 * last reads the parameter or a view of it (n_groups when it is a result, too).
 */
static bool can_be_in_place(const struct lives *l, const struct ap_result *res,
                            int last_read)
{
    const struct ap_graph *g = l->g;
    int v = res->node, p = res->alias;
    if (l->root[v] != v || g->nodes[v].op == AP_OP_PARAMETER || !l->has[v] ||
        !ap_shape_equal(&g->nodes[v].shape, &g->nodes[p].shape))
        return false;
    int group = g->nodes[v].group;
    if (group >= l->lo && group < l->hi) /* later microbatches may read the parameter */
        return false;
    if (last_read < group)
        return true;
    return last_read == group && is_fusible(g, v) && reads_in_step(l, p, group, v);
}

/* Gives results their parameters' memory where they may have it. */
static void put_in_place(const struct lives *l, int *last_read)
{
    const struct ap_graph *g = l->g;
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        if (res->alias < 0 || !can_be_in_place(l, res, last_read[res->alias]))
            continue;
        l->has[res->node] = false;
        l->root[res->node] = res->alias;
        last_read[res->alias] = g->n_groups; /* taken */
    }
}

/* Last group that reads each parameter's memory, before parameters live for ever. */
static int *find_last_reads(struct ap_arena *arena, const struct lives *l)
{
    const struct ap_graph *g = l->g;
    int *last = AP_NEW_N(arena, g->n_nodes, int);
    for (int i = 0; i < g->n_nodes; i++)
        last[i] = -1;
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            int from = l->root[g->nodes[i].in[k]];
            if (last[from] < g->nodes[i].group)
                last[from] = g->nodes[i].group;
        }
    for (int r = 0; r < g->n_results; r++)
        last[l->root[g->results[r].node]] = g->n_groups;
    return last;
}

/* ---- best fit ---- */

/* A stretch of the arena. All are chained by address; free ones are in a treap by size.
 */
struct block {
    int64_t offset, size;
    int prev, next; /* by address, -1 */
    int left, right;
    uint32_t priority;
    bool free;
};

struct heap {
    struct block *block;
    int n, last, root; /* blocks made, the one at the arena's end, the treap's root */
    int spare;         /* chain of unused blocks through `next` */
    int64_t end, peak;
};

static bool is_less(const struct heap *h, int a, int b)
{
    const struct block *x = &h->block[a], *y = &h->block[b];
    return x->size != y->size ? x->size < y->size : x->offset < y->offset;
}

/* Splits treap t at block b: what is less goes left. */
static void treap_split(struct heap *h, int t, int b, int *left, int *right)
{
    while (t >= 0) {
        if (is_less(h, t, b)) {
            *left = t;
            left = &h->block[t].right;
            t = *left;
        } else {
            *right = t;
            right = &h->block[t].left;
            t = *right;
        }
    }
    *left = *right = -1;
}

static void treap_add(struct heap *h, int b)
{
    int *at = &h->root;
    while (*at >= 0 && h->block[*at].priority >= h->block[b].priority)
        at = is_less(h, b, *at) ? &h->block[*at].left : &h->block[*at].right;
    int left, right;
    treap_split(h, *at, b, &left, &right);
    h->block[b].left = left;
    h->block[b].right = right;
    *at = b;
    h->block[b].free = true;
}

static void treap_remove(struct heap *h, int b)
{
    int *at = &h->root;
    while (*at != b)
        at = is_less(h, b, *at) ? &h->block[*at].left : &h->block[*at].right;
    int left = h->block[b].left, right = h->block[b].right;
    while (left >= 0 && right >= 0) {
        if (h->block[left].priority >= h->block[right].priority) {
            *at = left;
            at = &h->block[left].right;
            left = *at;
        } else {
            *at = right;
            at = &h->block[right].left;
            right = *at;
        }
    }
    *at = left >= 0 ? left : right;
    h->block[b].free = false;
}

/* Smallest free block of at least `size`, lowest address first; -1 if there is none. */
static int treap_find(const struct heap *h, int64_t size)
{
    int best = -1;
    for (int t = h->root; t >= 0;) {
        if (h->block[t].size >= size) {
            best = t;
            t = h->block[t].left;
        } else {
            t = h->block[t].right;
        }
    }
    return best;
}

static int new_block(struct heap *h, int64_t offset, int64_t size, int prev, int next)
{
    int b = h->spare;
    if (b >= 0)
        h->spare = h->block[b].next;
    else
        b = h->n++;
    uint32_t priority = (uint32_t)ap_hash(&offset, sizeof(offset), (uint64_t)size);
    h->block[b] = (struct block){offset, size, prev, next, -1, -1, priority, false};
    if (prev >= 0)
        h->block[prev].next = b;
    if (next >= 0)
        h->block[next].prev = b;
    else
        h->last = b;
    return b;
}

static void drop_block(struct heap *h, int b)
{
    int prev = h->block[b].prev, next = h->block[b].next;
    if (prev >= 0)
        h->block[prev].next = next;
    if (next >= 0)
        h->block[next].prev = prev;
    else
        h->last = prev;
    h->block[b].next = h->spare;
    h->spare = b;
}

static int heap_take(struct heap *h, int64_t size)
{
    int b = treap_find(h, size);
    if (b >= 0) {
        treap_remove(h, b);
    } else if (h->last >= 0 && h->block[h->last].free) {
        b = h->last;
        treap_remove(h, b);
        h->end = h->block[b].offset + size;
        h->block[b].size = size;
    } else {
        b = new_block(h, h->end, size, h->last, -1);
        h->end += size;
    }
    if (h->block[b].size > size) {
        int rest = new_block(h, h->block[b].offset + size, h->block[b].size - size, b,
                             h->block[b].next);
        h->block[b].size = size;
        treap_add(h, rest);
    }
    if (h->end > h->peak)
        h->peak = h->end;
    return b;
}

static void heap_give(struct heap *h, int b)
{
    int prev = h->block[b].prev, next = h->block[b].next;
    if (next >= 0 && h->block[next].free) {
        treap_remove(h, next);
        h->block[b].size += h->block[next].size;
        drop_block(h, next);
    }
    if (prev >= 0 && h->block[prev].free) {
        treap_remove(h, prev);
        h->block[prev].size += h->block[b].size;
        drop_block(h, b);
        b = prev;
    }
    treap_add(h, b);
}

/* ---- the sweep ---- */

static int64_t align(int64_t bytes)
{
    if (bytes > INT64_MAX - ALIGN)
        return bytes - bytes % ALIGN;
    return bytes < 1 ? ALIGN : (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* held[group], of n_groups + 2 zeros: bytes of those that are in use. */
static void add_alive(const struct lives *l, const bool *which, int64_t *held)
{
    for (int i = 0; i < l->g->n_nodes; i++)
        if (which[i]) {
            const int64_t bytes = align(ap_shape_bytes(&l->g->nodes[i].shape));
            held[l->birth[i]] += bytes;
            held[l->death[i] + 1] -= bytes;
        }
    for (int i = 1; i <= l->g->n_groups; i++)
        held[i] += held[i - 1];
}

/* What is to be placed, and in what. */
struct placing {
    struct ap_arena *arena;
    const struct lives *l;
    const struct ap_buffer *buffer;
    bool *shared; /* per node: its buffer is not placed yet */
};

/* The buffers that are to be placed, by the group in which their life begins or ends. */
static struct ap_csr list_by_group(const struct placing *p, const int *group)
{
    int n = p->l->g->n_nodes, *row = AP_NEW_N(p->arena, n, int);

    for (int i = 0; i < n; i++)
        row[i] = p->shared[i] ? group[i] : -1;
    return ap_csr_new(p->arena, p->l->g->n_groups + 1, n, row, NULL);
}

/*
 * Places all shared buffers; step 1 goes forward through the groups (first taken at
 * birth, given back after death), -1 backward. Returns the peak.
 */
static int64_t sweep(const struct placing *p, int step, int64_t *offset)
{
    const struct ap_graph *g = p->l->g;
    const struct ap_csr take = list_by_group(p, step > 0 ? p->l->birth : p->l->death);
    const struct ap_csr give = list_by_group(p, step > 0 ? p->l->death : p->l->birth);
    struct heap h = {.last = -1, .root = -1, .spare = -1};
    h.block = AP_NEW_N(p->arena, 2 * (int64_t)g->n_nodes + 2, struct block);
    int *held = AP_NEW_N(p->arena, g->n_nodes, int);
    for (int i = 0; i <= g->n_groups; i++) {
        int group = step > 0 ? i : g->n_groups - i;
        for (int k = take.start[group]; k < take.start[group + 1]; k++) {
            int v = take.item[k];
            held[v] = heap_take(&h, align(p->buffer[v].bytes));
            offset[v] = h.block[held[v]].offset;
        }
        for (int k = give.start[group]; k < give.start[group + 1]; k++)
            heap_give(&h, held[give.item[k]]);
    }
    return h.peak;
}

/* ---- packing ---- */

/* The most that is in use at once: no arena is smaller. */
static int64_t most_alive(const struct placing *p)
{
    int n_groups = p->l->g->n_groups;
    int64_t *held = AP_NEW_N(p->arena, n_groups + 2, int64_t), most = 0;

    add_alive(p->l, p->shared, held);
    for (int i = 0; i <= n_groups; i++)
        most = held[i] > most ? held[i] : most;
    return most;
}

struct sized {
    int64_t bytes;
    int node;
};

static int by_size(const void *x, const void *y)
{
    const struct sized *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

/* The largest shared buffers (arena), n of them; they are no longer shared. */
static struct sized *take_largest(const struct placing *p, int *n)
{
    int n_nodes = p->l->g->n_nodes;
    struct sized *size = AP_NEW_N(p->arena, n_nodes, struct sized);

    *n = 0;
    for (int i = 0; i < n_nodes; i++)
        if (p->shared[i])
            size[(*n)++] = (struct sized){align(p->buffer[i].bytes), i};
    qsort(size, (size_t)*n, sizeof *size, by_size);
    *n = *n < AP_PACK_MOST ? *n : AP_PACK_MOST;
    for (int i = 0; i < *n; i++)
        p->shared[size[i].node] = false;
    return size;
}

/*
 * Where the sweeps waste memory: the largest buffers are packed until all are within
 * `enough`, or that has been tried; the others are swept, behind them. hopeless: it is
 * known that they never are. Returns the peak, which is no larger than it was.
 */
static int64_t pack_shared(const struct placing *p, int64_t peak, bool hopeless,
                           int64_t enough, int64_t *offset)
{
    const struct lives *l = p->l;
    int64_t *rest = AP_NEW_N(p->arena, l->g->n_nodes, int64_t), work;
    int n;

    const struct sized *large = take_largest(p, &n);
    struct ap_pack_piece *piece = AP_NEW_N(p->arena, n, struct ap_pack_piece);
    const int64_t above = sweep(p, 1, rest);
    for (int i = 0; i < n; i++)
        piece[i] = (struct ap_pack_piece){l->birth[large[i].node],
                                          l->death[large[i].node], large[i].bytes, 0};
    work = (int64_t)n * n * (hopeless ? PACK_ROUNDS_HOPELESS : PACK_ROUNDS);
    work = work < PACK_WORK ? work : PACK_WORK;
    const int64_t end = ap_pack(p->arena, piece, n, enough - above, work);
    if (end + above >= peak)
        return peak;
    for (int i = 0; i < l->g->n_nodes; i++)
        offset[i] = end + rest[i];
    for (int i = 0; i < n; i++)
        offset[large[i].node] = piece[i].offset;
    return end + above;
}

/* Places what is not a parameter, from `base` on; the arena's size, and what is alive. */
static void place_shared(struct ap_arena *arena, const struct lives *l, int64_t base,
                         int64_t limit, struct ap_buffer *buffer, struct ap_program *prog)
{
    const struct ap_graph *g = l->g;
    const struct placing p = {arena, l, buffer, AP_NEW_N(arena, g->n_nodes, bool)};
    for (int i = 0; i < g->n_nodes; i++)
        p.shared[i] = l->has[i] && g->nodes[i].op != AP_OP_PARAMETER;
    int64_t *forward = AP_NEW_N(arena, g->n_nodes, int64_t);
    int64_t *backward = AP_NEW_N(arena, g->n_nodes, int64_t);
    int64_t peak = sweep(&p, 1, forward);
    int64_t other = sweep(&p, -1, backward);
    int64_t *offset = other < peak ? backward : forward;
    int64_t alive = most_alive(&p);
    const bool hopeless = limit > 0 && base + alive > limit;
    const int64_t enough = limit - base > alive ? limit - base : alive;
    peak = other < peak ? other : peak;
    if (peak > enough && alive < INT64_MAX / AP_PACK_MOST)
        peak = pack_shared(&p, peak, hopeless, enough, offset);
    for (int i = 0; i < g->n_nodes; i++)
        if (l->has[i] && g->nodes[i].op != AP_OP_PARAMETER)
            buffer[i].offset = base + offset[i];
    prog->peak_bytes = base + peak;
    prog->alive_bytes = base + alive;
}

int64_t *ap_program_alive(struct ap_arena *arena, const struct ap_program *prog)
{
    int64_t *held = AP_NEW_N(arena, prog->local.n_groups + 2, int64_t);
    struct ap_mark mark = ap_arena_mark(arena);
    struct lives l;

    find_lives(arena, prog, &l);
    put_in_place(&l, find_last_reads(arena, &l));
    add_alive(&l, l.has, held);
    ap_arena_rewind(arena, mark);
    return held;
}

void ap_plan_buffers(struct ap_arena *arena, struct ap_program *prog)
{
    ap_plan_buffers_within(arena, prog, 0);
}

void ap_plan_buffers_within(struct ap_arena *arena, struct ap_program *prog,
                            int64_t limit)
{
    const struct ap_graph *g = &prog->local;
    struct ap_buffer *buffer = AP_NEW_N(arena, g->n_nodes, struct ap_buffer);
    struct ap_mark mark = ap_arena_mark(arena);
    struct lives l;
    find_lives(arena, prog, &l);
    put_in_place(&l, find_last_reads(arena, &l));

    int64_t base = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        buffer[i] = (struct ap_buffer){-1, ap_shape_bytes(&g->nodes[i].shape), -1};
        if (g->nodes[i].op == AP_OP_PARAMETER) {
            buffer[i].offset = base;
            base += align(buffer[i].bytes);
        }
    }
    place_shared(arena, &l, base, limit, buffer, prog);
    for (int i = 0; i < g->n_nodes; i++) {
        int root = l.root[i];
        while (l.root[root] != root) /* a view of a result that was put in place */
            root = l.root[root];
        if (root == i)
            continue;
        buffer[i].alias = root;
        buffer[i].offset = buffer[root].offset;
    }
    ap_arena_rewind(arena, mark);
    prog->buffer = buffer;
}
