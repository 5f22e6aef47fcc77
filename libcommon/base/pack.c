/*
 * Pieces that are in use for some steps each get offsets in an arena that shall be small:
 * at least as large as the bytes in use in the fullest step (strongly NP-hard: "dynamic
 * storage allocation", Garey & Johnson, problem SR2).
 *
 * Pieces are placed in an order, each in the smallest gap that holds it between those
 * that are placed and in use with it; first the pieces in use in the fullest steps, and
 * among these the ones in use longest. Then the order is mended: there is an aim between
 * the fullest step and the best arena so far, and the first piece that would end above it
 * goes to the front, where it has its choice; those after it need not be placed before
 * the next attempt. After many of these in vain the search goes on from the order of the
 * best arena, a little shuffled, or now and then from the first order or one in which the
 * largest come first, with another aim. This is "squeaky wheel" optimization
 * (Joslin & Clements, JAIR 10, 1999) that stops at the first squeak. Random choices come
 * from a generator with a fixed start.
 *
 * Cost: n^2 / 2 comparisons with placed pieces for a whole order, but most orders are
 * given up early; the sum is bounded.
 */
#include "base/pack.h"

#include <stdlib.h>
#include <string.h>

#define PATIENCE             128     /* orders that fail before another is mended */
#define PATIENCE_COMPARISONS 2500000 /* the same, in comparisons */
#define FRESH                4 /* one in this number of trials does not start from the best */
#define SHUFFLES             4 /* moves that make the best order another */

/* Where a piece is: placed ones are sorted by offset. */
struct spot {
    int64_t offset, end;
    int birth, death;
};

struct packing {
    struct ap_pack_piece *piece;
    int n, n_steps;
    int64_t *held;       /* [step] bytes in use; one step without any at the end */
    int *order;          /* pieces, as they are placed */
    int *best_order;     /* that of the best arena */
    int64_t *end;        /* [piece] in the last order that was placed */
    struct spot *placed; /* [n] */
    int64_t least;       /* in use in the fullest step */
    int64_t best, comparisons, most_comparisons;
    uint64_t random;
};

/* ---- what is in use ---- */

static void find_held(struct packing *k)
{
    for (int i = 0; i < k->n; i++) {
        k->held[k->piece[i].birth] += k->piece[i].size;
        k->held[k->piece[i].death + 1] -= k->piece[i].size;
    }
    for (int t = 1; t <= k->n_steps; t++)
        k->held[t] += k->held[t - 1];
}

/* ---- orders to start from ---- */

/* What a piece is sorted by: descending, descending, ascending. */
struct rank {
    int64_t fullest; /* bytes in use in the fullest step of its life */
    int64_t size;    /* its steps or its bytes */
    int piece;
};

static int by_rank(const void *x, const void *y)
{
    const struct rank *a = x, *b = y;
    if (a->fullest != b->fullest)
        return a->fullest > b->fullest ? -1 : 1;
    if (a->size != b->size)
        return a->size > b->size ? -1 : 1;
    return (a->piece > b->piece) - (a->piece < b->piece);
}

/*
 * The most of held[birth .. death] of each piece: steps pass, and `peak` keeps those that
 * are fuller than any after them so far.
 */
static void find_fullest(struct ap_arena *arena, const struct packing *k,
                         struct rank *rank)
{
    int *start = AP_NEW_N(arena, k->n_steps + 1, int), *next = AP_NEW_N(arena, k->n, int);
    int *peak = AP_NEW_N(arena, k->n_steps + 1, int), n_peaks = 0;

    for (int i = 0; i < k->n; i++) { /* chains of pieces that end in a step */
        const int death = k->piece[rank[i].piece].death;
        next[i] = start[death] - 1;
        start[death] = i + 1;
    }
    for (int t = 0; t < k->n_steps; t++) {
        while (n_peaks > 0 && k->held[peak[n_peaks - 1]] <= k->held[t])
            n_peaks--;
        peak[n_peaks++] = t;
        for (int i = start[t] - 1; i >= 0; i = next[i]) {
            int lo = 0, hi = n_peaks - 1;
            while (lo < hi) {
                const int mid = (lo + hi) / 2;
                if (peak[mid] < k->piece[rank[i].piece].birth)
                    lo = mid + 1;
                else
                    hi = mid;
            }
            rank[i].fullest = k->held[peak[lo]];
        }
    }
}

static void sort_pieces(struct ap_arena *arena, struct packing *k, bool by_bytes)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct rank *rank = AP_NEW_N(arena, k->n, struct rank);

    for (int i = 0; i < k->n; i++) {
        const struct ap_pack_piece *p = &k->piece[i];
        rank[i] = (struct rank){.size = by_bytes ? p->size : p->death - p->birth + 1,
                                .piece = i};
    }
    find_fullest(arena, k, rank);
    qsort(rank, (size_t)k->n, sizeof *rank, by_rank);
    for (int i = 0; i < k->n; i++)
        k->order[i] = rank[i].piece;
    ap_arena_rewind(arena, mark);
}

/* ---- one order ---- */

/* The smallest gap for p between placed pieces that are in use with it. */
static int64_t find_gap(const struct spot *placed, int n, const struct ap_pack_piece *p)
{
    int64_t end = 0, best = -1, best_size = INT64_MAX;

    for (int i = 0; i < n; i++) {
        if (placed[i].death < p->birth || placed[i].birth > p->death)
            continue;
        const int64_t gap = placed[i].offset - end;
        if (gap >= p->size && gap < best_size) {
            best_size = gap;
            best = end;
        }
        if (placed[i].end > end)
            end = placed[i].end;
    }
    return best < 0 ? end : best;
}

static void put_spot(struct spot *placed, int n, const struct ap_pack_piece *p,
                     int64_t offset)
{
    for (; n > 0 && placed[n - 1].offset > offset; n--)
        placed[n] = placed[n - 1];
    placed[n] = (struct spot){offset, offset + p->size, p->birth, p->death};
}

/* Places pieces in order up to the first that ends above `aim`; its place in the order,
 * or n. */
static int place(struct packing *k, int64_t aim)
{
    for (int i = 0; i < k->n; i++) {
        const struct ap_pack_piece *p = &k->piece[k->order[i]];
        const int64_t offset = find_gap(k->placed, i, p);
        k->comparisons += i;
        if (offset + p->size > aim)
            return i;
        put_spot(k->placed, i, p, offset);
        k->end[k->order[i]] = offset + p->size;
    }
    return k->n;
}

/* Keeps what was placed in full. */
static void keep(struct packing *k)
{
    k->best = 0;
    for (int i = 0; i < k->n; i++) {
        struct ap_pack_piece *p = &k->piece[k->order[i]];
        p->offset = k->end[k->order[i]] - p->size;
        if (k->end[k->order[i]] > k->best)
            k->best = k->end[k->order[i]];
    }
    memcpy(k->best_order, k->order, (size_t)k->n * sizeof *k->order);
}

/* ---- orders ---- */

static int below(struct packing *k, int n)
{
    k->random ^= k->random << 13;
    k->random ^= k->random >> 7;
    k->random ^= k->random << 17;
    return (int)(k->random % (uint64_t)n);
}

static void move(int *order, int from, int to)
{
    const int piece = order[from];
    memmove(order + to + 1, order + to, (size_t)(from - to) * sizeof *order);
    order[to] = piece;
}

/* Pieces that end above the aim come first, else the order stays. */
static void put_first(struct packing *k, int64_t aim)
{
    int n_first = 0;

    for (int i = 0; i < k->n; i++)
        if (k->end[k->order[i]] > aim)
            move(k->order, i, n_first++);
}

static void shuffle_best(struct packing *k)
{
    memcpy(k->order, k->best_order, (size_t)k->n * sizeof *k->order);
    for (int i = 0; i < SHUFFLES; i++) {
        const int from = below(k, k->n);
        move(k->order, from, below(k, from + 1));
    }
}

/* Below the best by half of what is wasted, or a quarter, or an eighth. */
static int64_t next_aim(const struct packing *k, int round)
{
    const int64_t down = (k->best - k->least) >> (1 + round % 3);
    return k->best - (down > AP_PACK_ALIGN ? down : AP_PACK_ALIGN);
}

static void search(struct ap_arena *arena, struct packing *k, int64_t enough)
{
    int n_failed = 0, round = 0;
    int64_t aim, since;

    sort_pieces(arena, k, false);
    place(k, INT64_MAX);
    keep(k);
    since = k->comparisons;
    put_first(k, aim = next_aim(k, round));
    while (k->best > enough && k->best > k->least &&
           k->comparisons < k->most_comparisons) {
        const int at = place(k, aim);
        if (at == k->n) {
            n_failed = 0;
            keep(k);
            since = k->comparisons;
            put_first(k, aim = next_aim(k, round));
        } else if (++n_failed == PATIENCE ||
                   k->comparisons > since + PATIENCE_COMPARISONS) {
            n_failed = 0;
            since = k->comparisons;
            if (++round % FRESH == 0)
                sort_pieces(arena, k, round / FRESH % 2);
            else
                shuffle_best(k);
            aim = next_aim(k, round);
        } else {
            move(k->order, at, 0);
        }
    }
}

int64_t ap_pack(struct ap_arena *arena, struct ap_pack_piece *piece, int n,
                int64_t enough, int64_t work)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct packing k = {
        .piece = piece, .n = n, .most_comparisons = work, .random = 88172645463325252u};

    k.order = AP_NEW_N(arena, n, int);
    k.best_order = AP_NEW_N(arena, n, int);
    k.end = AP_NEW_N(arena, n, int64_t);
    k.placed = AP_NEW_N(arena, n, struct spot);
    for (int i = 0; i < n; i++)
        k.n_steps = piece[i].death >= k.n_steps ? piece[i].death + 1 : k.n_steps;
    k.held = AP_NEW_N(arena, k.n_steps + 1, int64_t);
    find_held(&k);
    for (int t = 0; t < k.n_steps; t++)
        k.least = k.held[t] > k.least ? k.held[t] : k.least;
    search(arena, &k, enough);
    ap_arena_rewind(arena, mark);
    return k.best;
}
