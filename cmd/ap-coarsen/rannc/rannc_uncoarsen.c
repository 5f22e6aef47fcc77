/*
 * Problem: borders of blocks fall where coarse clusters end, not where little is sent.
 * Idea: walk down the levels; a finer cluster on a border, whose neighbours in that
 * direction are all in one other block, moves there if both blocks' times and the bytes
 * that all blocks send decrease and both still fit. Successors all in one block (or
 * predecessors) means that no cycle of blocks can come of it: the block that it goes to
 * was after (before) its own already. A hash table has the number of clusters of a block
 * that read a value, or have a clone, so the cost of a move is linear in the cluster's
 * own lists. Cost: a level O(its lists) expected; nothing is undone by search: a move
 * that does not pay is made back. After Tanaka et al., "Automatic Graph Partitioning for
 * Very Large-scale Deep Learning", section III-B, uncoarsening.
 */
#include "rannc/rannc.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/index_map.h"

/* Counts of (thing, block). */
struct counts {
    struct ap_index index;
    int n, cap;
    struct count {
        int thing, block, n;
    } * count;
};

/* Holds until the next call. */
static int *count_of(struct counts *t, int thing, int block)
{
    uint64_t hash = ap_hash_mix((uint64_t)thing, (uint64_t)block);
    struct ap_index_walk walk;
    int i = ap_index_first(&t->index, hash, &walk);

    while (i >= 0 && (t->count[i].thing != thing || t->count[i].block != block))
        i = ap_index_next(&t->index, &walk);
    if (i < 0) {
        AP_ROOM(t->count, t->n, t->cap);
        i = t->n++;
        t->count[i] = (struct count){thing, block, 0};
        ap_index_put(&t->index, hash, i);
    }
    return &t->count[i].n;
}

static void counts_free(struct counts *t)
{
    ap_index_free(&t->index);
    free(t->count);
}

struct shift {
    const struct rannc_level *l;
    const struct rannc_atoms *atoms;
    struct counts readers, clones;
    int *n_outside;        /* [value] blocks besides its own that read it */
    int *block_of;         /* [cluster] */
    int64_t *result_bytes; /* [cluster] of what the graph's caller reads */
    int *n_clusters;       /* [block] */
    struct rannc_profile *block;
    int64_t sent_bytes; /* every value once to each block that reads it */
    double clone_sec;   /* all blocks' clones; other times only change hands */
};

/* ---- what a block reads ---- */

/* Takes the value's part (sign -1) out of, or puts it (1) into, what block b reads and
 * its maker sends. */
static void account(struct shift *s, int v, int b, int count, int sign)
{
    int maker = s->block_of[s->l->owner[v]];
    int64_t bytes = s->atoms->value_bytes[v];
    if (maker == b || !count)
        return;
    s->block[b].in_bytes += sign * bytes;
    s->sent_bytes += sign * bytes;
    if (count > 1)
        s->block[b].copy_bytes += sign * bytes;
    int before = s->n_outside[v];
    s->n_outside[v] += sign;
    if (!s->atoms->is_result[v] && (before == 0 || s->n_outside[v] == 0))
        s->block[maker].out_bytes += sign * bytes;
}

static void read_by(struct shift *s, int v, int b, int n)
{
    int *count = count_of(&s->readers, v, b);
    account(s, v, b, *count, -1);
    *count += n;
    account(s, v, b, *count, 1);
}

static void clone_in(struct shift *s, int c, int b, int n)
{
    int *count = count_of(&s->clones, c, b), before = *count;
    *count += n;
    if ((before > 0) == (*count > 0))
        return;
    int sign = n > 0 ? 1 : -1;
    s->block[b].param_bytes += sign * s->atoms->shared_bytes[c];
    s->block[b].fwd_sec += sign * s->atoms->shared_sec[c];
    s->clone_sec += sign * s->atoms->shared_sec[c];
}

/* Number of components of cluster x that read value v. */
static int readings(const struct rannc_level *l, int x, int v)
{
    return l->reader_count[rannc_find(l->reader_start, l->reader, v, x)];
}

static void shift_inputs(struct shift *s, int x, int from, int to)
{
    const struct rannc_level *l = s->l;
    for (int i = l->in_start[x]; i < l->in_start[x + 1]; i++) {
        int n = readings(l, x, l->in[i]);
        read_by(s, l->in[i], from, -n);
        read_by(s, l->in[i], to, n);
    }
    for (int i = l->shared_start[x]; i < l->shared_start[x + 1]; i++) {
        clone_in(s, l->shared[i], from, -1);
        clone_in(s, l->shared[i], to, 1);
    }
}

/* Only from and to see a difference when what x makes is made in the other one. */
static void shift_outputs(struct shift *s, int x, int from, int to)
{
    const struct rannc_level *l = s->l;
    for (int i = l->out_start[x]; i < l->out_start[x + 1]; i++) {
        int v = l->out[i];
        account(s, v, to, *count_of(&s->readers, v, to), -1);
        if (s->n_outside[v] && !s->atoms->is_result[v]) {
            s->block[from].out_bytes -= s->atoms->value_bytes[v];
            s->block[to].out_bytes += s->atoms->value_bytes[v];
        }
    }
    s->block_of[x] = to;
    for (int i = l->out_start[x]; i < l->out_start[x + 1]; i++)
        account(s, l->out[i], from, *count_of(&s->readers, l->out[i], from), 1);
}

static void shift_own(struct shift *s, int x, int from, int to)
{
    const struct rannc_profile *p = &s->l->own[x];
    struct rannc_profile *a = &s->block[from];
    rannc_join(&s->block[to], p);
    a->fwd_sec -= p->fwd_sec;
    a->bwd_sec -= p->bwd_sec;
    a->param_bytes -= p->param_bytes;
    a->activation_bytes -= p->activation_bytes; /* work: stays an upper bound */
    a->out_bytes -= s->result_bytes[x];
    s->block[to].out_bytes += s->result_bytes[x];
    s->n_clusters[from]--;
    s->n_clusters[to]++;
}

static void move(struct shift *s, int x, int to)
{
    int from = s->block_of[x];
    shift_inputs(s, x, from, to);
    shift_outputs(s, x, from, to);
    shift_own(s, x, from, to);
}

/* ---- which to move ---- */

/* The only other block of all readers of x; -1 if there is none, or there are several. */
static int block_behind(const struct shift *s, int x)
{
    const struct rannc_level *l = s->l;
    int b = -1;
    for (int i = l->out_start[x]; i < l->out_start[x + 1]; i++)
        for (int v = l->out[i], k = l->reader_start[v]; k < l->reader_start[v + 1]; k++) {
            int r = s->block_of[l->reader[k]];
            if (r == s->block_of[x] || (b >= 0 && r != b))
                return -1;
            b = r;
        }
    return b;
}

static int block_before(const struct shift *s, int x)
{
    const struct rannc_level *l = s->l;
    int b = -1;
    for (int i = l->in_start[x]; i < l->in_start[x + 1]; i++) {
        int o = s->block_of[l->owner[l->in[i]]];
        if (o == s->block_of[x] || (b >= 0 && o != b))
            return -1;
        b = o;
    }
    return b;
}

/* Moves x to a block if that pays. */
static void try_move(struct shift *s, const struct rannc_params *params, int x, int to)
{
    int from = s->block_of[x];
    if (to < 0 || s->n_clusters[from] < 2)
        return;
    int64_t sent_bytes = s->sent_bytes;
    double clone_sec = s->clone_sec;
    struct rannc_profile a = s->block[from], b = s->block[to];

    move(s, x, to);
    double gain = clone_sec - s->clone_sec + rannc_send_sec(sent_bytes) -
                  rannc_send_sec(s->sent_bytes);
    if (gain > 0 && rannc_fits(params, &s->block[from]) &&
        rannc_fits(params, &s->block[to]))
        return;
    move(s, x, from);
    s->clone_sec = clone_sec;
    s->block[from] = a; /* what rounding left */
    s->block[to] = b;
}

static void shift_init(struct ap_arena *arena, struct shift *s, int n)
{
    const struct rannc_level *l = s->l;

    s->n_outside = AP_NEW_N(arena, s->atoms->n, int);
    s->n_clusters = AP_NEW_N(arena, n, int);
    s->block = AP_NEW_N(arena, n, struct rannc_profile);
    for (int x = 0; x < l->n; x++) {
        int b = s->block_of[x];
        s->n_clusters[b]++;
        rannc_join(&s->block[b], &l->own[x]);
        for (int i = l->in_start[x]; i < l->in_start[x + 1]; i++)
            read_by(s, l->in[i], b, readings(l, x, l->in[i]));
        for (int i = l->shared_start[x]; i < l->shared_start[x + 1]; i++)
            clone_in(s, l->shared[i], b, 1);
    }
    s->result_bytes = AP_NEW_N(arena, l->n, int64_t);
    for (int v = 0; v < s->atoms->n; v++)
        if (s->atoms->is_result[v]) {
            s->result_bytes[l->owner[v]] += s->atoms->value_bytes[v];
            s->block[s->block_of[l->owner[v]]].out_bytes += s->atoms->value_bytes[v];
        }
}

void rannc_uncoarsen(struct ap_arena *arena, const struct rannc_level *l,
                     const struct rannc_params *params, int n, int *block_of)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct shift s = {.l = l, .atoms = l->atoms, .block_of = block_of};

    shift_init(arena, &s, n);
    for (int x = 0; x < l->n; x++) {
        try_move(&s, params, x, block_behind(&s, x));
        try_move(&s, params, x, block_before(&s, x));
    }
    counts_free(&s.readers);
    counts_free(&s.clones);
    ap_arena_rewind(arena, mark);
}
