/*
 * Problem: pieces of memory with known lifetimes are to end as low as possible (dynamic
 * storage allocation, known in advance). Idea: one sweep over the steps: dead pieces give
 * their block back, new ones take the smallest free block that holds them (best fit), the
 * end grows when none does. The sweep also runs backwards in time, which is as valid and
 * often tighter; the lower end counts. Where both waste memory, pack.c packs the largest
 * pieces, which takes nearly all of the waste away. Cost: n times the free blocks (8 to
 * 24 on average, at most 56, in ZeRO-3 programs of GPT-3, Llama-3, T5, U-Net and
 * Wide-ResNet on 8 devices), and a bounded number of times the square of a bounded
 * number.
 */
#include "base/place.h"

#include "base/csr.h"

#include <stdlib.h>

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

/* ---- best fit ---- */

/* A stretch of the arena. All are chained by address; free ones are in a list. */
struct block {
    int64_t offset, size;
    int prev, next; /* by address, -1 */
    int at;         /* in the list of free ones, -1 */
};

struct heap {
    struct block *block;
    int *free;   /* free blocks, in any order */
    int n, last; /* blocks made, the one at the arena's end */
    int n_free;
    int spare; /* chain of unused blocks through `next` */
    int64_t end, peak;
    bool fixed; /* the end does not grow */
};

static struct heap heap_new(struct ap_arena *arena, int64_t n_pieces, bool fixed)
{
    const int64_t n = 2 * n_pieces + 2;
    return (struct heap){.block = AP_NEW_N(arena, n, struct block),
                         .free = AP_NEW_N(arena, n, int),
                         .last = -1,
                         .spare = -1,
                         .fixed = fixed};
}

static void free_add(struct heap *h, int b)
{
    h->block[b].at = h->n_free;
    h->free[h->n_free++] = b;
}

static void free_remove(struct heap *h, int b)
{
    const int moved = h->free[--h->n_free];
    h->free[h->block[b].at] = moved;
    h->block[moved].at = h->block[b].at;
    h->block[b].at = -1;
}

/*
 * The smallest free block of at least `size`, lowest address first; -1 if there is none.
 */
static int free_find(const struct heap *h, int64_t size)
{
    int best = -1;
    for (int i = 0; i < h->n_free; i++) {
        const struct block *b = &h->block[h->free[i]];
        if (b->size >= size &&
            (best < 0 || b->size < h->block[best].size ||
             (b->size == h->block[best].size && b->offset < h->block[best].offset)))
            best = h->free[i];
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
    h->block[b] = (struct block){offset, size, prev, next, -1};
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

/* -1: there is no room. */
static int heap_take(struct heap *h, int64_t size)
{
    int b = free_find(h, size);
    if (b >= 0) {
        free_remove(h, b);
    } else if (h->fixed) {
        return -1;
    } else if (h->last >= 0 && h->block[h->last].at >= 0) {
        b = h->last;
        free_remove(h, b);
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
        free_add(h, rest);
    }
    if (h->end > h->peak)
        h->peak = h->end;
    return b;
}

static void heap_give(struct heap *h, int b)
{
    int prev = h->block[b].prev, next = h->block[b].next;
    if (next >= 0 && h->block[next].at >= 0) {
        free_remove(h, next);
        h->block[b].size += h->block[next].size;
        drop_block(h, next);
    }
    if (prev >= 0 && h->block[prev].at >= 0) {
        free_remove(h, prev);
        h->block[prev].size += h->block[b].size;
        drop_block(h, b);
        b = prev;
    }
    free_add(h, b);
}

/* ---- the sweep ---- */

struct placing {
    struct ap_arena *arena;
    const struct ap_pack_piece *piece;
    int n, n_steps;
    bool *shared; /* per piece: it is not placed yet */
};

/* Pieces that are to be placed, by the step in which their life begins or ends. */
static struct ap_csr list_by_step(const struct placing *p, bool by_birth)
{
    int *row = AP_NEW_N(p->arena, p->n, int);

    for (int i = 0; i < p->n; i++)
        row[i] = !p->shared[i] ? -1 : by_birth ? p->piece[i].birth : p->piece[i].death;
    return ap_csr_new(p->arena, p->n_steps, p->n, row, NULL);
}

/*
 * Places all shared pieces; direction 1 goes forward through the steps (a piece is taken
 * at birth, given back after death), -1 backward. Returns the peak.
 */
static int64_t sweep(const struct placing *p, int direction, int64_t *offset)
{
    const struct ap_csr take = list_by_step(p, direction > 0);
    const struct ap_csr give = list_by_step(p, direction < 0);
    struct heap h = heap_new(p->arena, p->n, false);
    int *held = AP_NEW_N(p->arena, p->n, int);
    for (int i = 0; i < p->n_steps; i++) {
        int step = direction > 0 ? i : p->n_steps - 1 - i;
        for (int k = take.start[step]; k < take.start[step + 1]; k++) {
            int v = take.item[k];
            held[v] = heap_take(&h, p->piece[v].size);
            offset[v] = h.block[held[v]].offset;
        }
        for (int k = give.start[step]; k < give.start[step + 1]; k++)
            heap_give(&h, held[give.item[k]]);
    }
    return h.peak;
}

void ap_place_in_holes(struct ap_arena *arena, const struct ap_pack_piece *hole,
                       int n_holes, struct ap_pack_piece *piece, int n, int n_steps,
                       bool *taken)
{
    struct placing p = {arena, piece, n, n_steps, AP_NEW_N(arena, n, bool)};
    struct heap h = heap_new(arena, (int64_t)n + n_holes, true);
    int *held = AP_NEW_N(arena, n + 1, int), *from = AP_NEW_N(arena, n_holes, int);

    for (int i = 0; i < n_holes; i++) {
        from[i] = hole[i].birth < n_steps ? hole[i].birth : -1;
        new_block(&h, hole[i].offset, hole[i].size, i - 1, -1);
    }
    const struct ap_csr opens = ap_csr_new(arena, n_steps, n_holes, from, NULL);
    for (int i = 0; i < n; i++)
        p.shared[i] = true;
    const struct ap_csr take = list_by_step(&p, true), give = list_by_step(&p, false);
    for (int step = 0; step < n_steps; step++) {
        for (int k = opens.start[step]; k < opens.start[step + 1]; k++)
            heap_give(&h, opens.item[k]);
        for (int k = take.start[step]; k < take.start[step + 1]; k++) {
            int v = take.item[k];
            held[v] = heap_take(&h, piece[v].size);
            taken[v] = held[v] >= 0;
            if (taken[v])
                piece[v].offset = h.block[held[v]].offset;
        }
        for (int k = give.start[step]; k < give.start[step + 1]; k++)
            if (held[give.item[k]] >= 0)
                heap_give(&h, held[give.item[k]]);
    }
}

/* ---- packing ---- */

/* The most that is in use at once: no arena is smaller. */
static int64_t most_alive(const struct placing *p)
{
    int64_t *held = AP_NEW_N(p->arena, p->n_steps + 1, int64_t), most = 0, now = 0;

    for (int i = 0; i < p->n; i++) {
        held[p->piece[i].birth] += p->piece[i].size;
        held[p->piece[i].death + 1] -= p->piece[i].size;
    }
    for (int i = 0; i < p->n_steps; i++) {
        now += held[i];
        most = now > most ? now : most;
    }
    return most;
}

struct sized {
    int64_t bytes;
    int piece;
};

static int by_size(const void *x, const void *y)
{
    const struct sized *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return (a->piece > b->piece) - (a->piece < b->piece);
}

/* The largest pieces (arena), n of them; they are no longer shared. */
static struct sized *take_largest(const struct placing *p, int *n)
{
    struct sized *size = AP_NEW_N(p->arena, p->n, struct sized);

    for (int i = 0; i < p->n; i++)
        size[i] = (struct sized){p->piece[i].size, i};
    qsort(size, (size_t)p->n, sizeof *size, by_size);
    *n = p->n < AP_PACK_MOST ? p->n : AP_PACK_MOST;
    for (int i = 0; i < *n; i++)
        p->shared[size[i].piece] = false;
    return size;
}

/*
 * Where the sweeps waste memory: the largest pieces are packed until all are within
 * `enough`, or that has been tried; the others are swept, after them. hopeless: it is
 * known that they never are. Returns the peak, which is no larger than it was.
 */
static int64_t pack_shared(const struct placing *p, int64_t peak, bool hopeless,
                           int64_t enough, int64_t *offset)
{
    int64_t *rest = AP_NEW_N(p->arena, p->n, int64_t), work;
    int n;

    const struct sized *large = take_largest(p, &n);
    struct ap_pack_piece *piece = AP_NEW_N(p->arena, n, struct ap_pack_piece);
    const int64_t above = sweep(p, 1, rest);
    for (int i = 0; i < n; i++)
        piece[i] = p->piece[large[i].piece];
    work = (int64_t)n * n * (hopeless ? PACK_ROUNDS_HOPELESS : PACK_ROUNDS);
    work = work < PACK_WORK ? work : PACK_WORK;
    const int64_t end = ap_pack(p->arena, piece, n, enough - above, work);
    if (end + above >= peak)
        return peak;
    for (int i = 0; i < p->n; i++)
        offset[i] = end + rest[i];
    for (int i = 0; i < n; i++)
        offset[large[i].piece] = piece[i].offset;
    return end + above;
}

int64_t ap_place(struct ap_arena *arena, struct ap_pack_piece *piece, int n, int n_steps,
                 int64_t limit, int64_t *alive)
{
    const struct placing p = {arena, piece, n, n_steps, AP_NEW_N(arena, n, bool)};
    int64_t *forward = AP_NEW_N(arena, n, int64_t);
    int64_t *backward = AP_NEW_N(arena, n, int64_t);

    for (int i = 0; i < n; i++)
        p.shared[i] = true;
    int64_t peak = sweep(&p, 1, forward), other = sweep(&p, -1, backward);
    int64_t *offset = other < peak ? backward : forward;
    *alive = most_alive(&p);
    const bool hopeless = limit > 0 && *alive > limit;
    const int64_t enough = limit > *alive ? limit : *alive;
    peak = other < peak ? other : peak;
    if (peak > enough && *alive < INT64_MAX / AP_PACK_MOST)
        peak = pack_shared(&p, peak, hopeless, enough, offset);
    for (int i = 0; i < n; i++)
        piece[i].offset = offset[i];
    return peak;
}
