/*
 * Packing: random pieces never overlap, small sets against all orders, and walls of
 * bricks, which are known to leave no gap.
 */
#include "base/place.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

#define MOST 400

static uint64_t seed = 1;

static int below(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* Pieces of three kinds: short ones, such as are kept until late, and some for ever. */
static void random_pieces(struct ap_pack_piece *p, int n, int n_steps)
{
    for (int i = 0; i < n; i++) {
        const int kind = below(10), from = below(n_steps);
        int to = from + below(4);
        if (kind < 4)
            to = n_steps - 1 - below(from + 1);
        if (to >= n_steps || kind == 9)
            to = n_steps - 1;
        p[i].birth = from < to ? from : to;
        p[i].death = from < to ? to : from;
        p[i].size = AP_PACK_ALIGN * (below(3) ? 1 << below(8) : 1 + below(200));
        p[i].offset = -1;
    }
}

static bool in_use_together(const struct ap_pack_piece *a, const struct ap_pack_piece *b)
{
    return a->birth <= b->death && b->birth <= a->death;
}

/* NULL when the pieces lie apart and end at `end`. */
static const char *check_apart(const struct ap_pack_piece *p, int n, int64_t end)
{
    int64_t last = 0;

    for (int i = 0; i < n; i++) {
        if (p[i].offset < 0 || p[i].offset % AP_PACK_ALIGN)
            return "a piece is nowhere";
        if (p[i].offset + p[i].size > last)
            last = p[i].offset + p[i].size;
        for (int j = 0; j < i; j++)
            if (in_use_together(&p[i], &p[j]) && p[i].offset < p[j].offset + p[j].size &&
                p[j].offset < p[i].offset + p[i].size)
                return "pieces overlap";
    }
    return last == end ? NULL : "they end elsewhere";
}

static int64_t most_in_use(const struct ap_pack_piece *p, int n)
{
    int64_t most = 0;

    for (int i = 0; i < n; i++) { /* the fullest step is one in which a piece is born */
        int64_t sum = 0;
        for (int j = 0; j < n; j++)
            if (p[j].birth <= p[i].birth && p[i].birth <= p[j].death)
                sum += p[j].size;
        most = sum > most ? sum : most;
    }
    return most;
}

static void test_random(void)
{
    struct ap_arena arena = {0};
    struct ap_pack_piece p[MOST], again[MOST];
    const char *what = NULL;
    int n_tight = 0;

    for (int k = 0; k < 300 && !what; k++) {
        const int n = 1 + below(k % 10 ? 120 : MOST);
        random_pieces(p, n, 2 + below(2 * n));
        memcpy(again, p, sizeof p);
        const int64_t least = most_in_use(p, n), work = 1000000;
        const int64_t end = ap_pack(&arena, p, n, 0, work);
        what = check_apart(p, n, end);
        n_tight += end == least;
        if (!what && end < least)
            what = "less than is in use";
        if (!what &&
            (ap_pack(&arena, again, n, 0, work) != end || memcmp(p, again, sizeof p)))
            what = "another answer to the same question";
        if (!what && ap_pack(&arena, again, n, end, work) != end)
            what = "a limit that can be kept is not";
        if (!what && ap_pack(&arena, again, n, end - AP_PACK_ALIGN, work) != end)
            what = "a limit makes for another answer";
        const int64_t once = what ? end : ap_pack(&arena, again, n, 0, 0);
        if (!what)
            what = check_apart(again, n, once);
        if (!what && once < end)
            what = "more work makes it worse";
    }
    CHECK(!what, "random pieces: %s", what ? what : "apart, the same each time");
    CHECK(n_tight >= 260, "%d of 300 random sets take what is in use at once", n_tight);
    ap_arena_free(&arena);
}

/*
 * The least arena: some order in which each piece lies right above the highest of those
 * before it that it meets makes it. order[0 .. n_placed) are placed; best so far.
 */
static int64_t least_arena(struct ap_pack_piece *p, int n, int n_placed, int64_t best)
{
    for (int i = n_placed; i < n; i++) {
        struct ap_pack_piece piece = p[i];
        p[i] = p[n_placed];
        piece.offset = 0;
        for (int j = 0; j < n_placed; j++)
            if (in_use_together(&p[j], &piece) && p[j].offset + p[j].size > piece.offset)
                piece.offset = p[j].offset + p[j].size;
        p[n_placed] = piece;
        if (piece.offset + piece.size < best) {
            if (n_placed + 1 == n)
                best = 0;
            for (int j = 0; j < n && n_placed + 1 == n; j++)
                best = p[j].offset + p[j].size > best ? p[j].offset + p[j].size : best;
            best = least_arena(p, n, n_placed + 1, best);
        }
        p[n_placed] = p[i];
        p[i] = piece;
    }
    return best;
}

static void test_small(void)
{
    struct ap_arena arena = {0};
    struct ap_pack_piece p[8], all[8];
    int n_best = 0, n_wrong = 0;

    for (int k = 0; k < 400; k++) {
        const int n = 2 + below(7);
        for (int i = 0; i < n; i++) {
            const int a = below(8), b = below(8);
            p[i] = (struct ap_pack_piece){a < b ? a : b, a < b ? b : a,
                                          AP_PACK_ALIGN * (1 + below(5)), 0};
        }
        memcpy(all, p, sizeof p);
        const int64_t best = least_arena(all, n, 0, INT64_MAX);
        const int64_t end = ap_pack(&arena, p, n, 0, 200 * n * n);
        n_wrong += end < best || check_apart(p, n, end) != NULL;
        n_best += end == best;
    }
    CHECK(n_wrong == 0, "small sets are no better than the best of all orders");
    CHECK(n_best >= 398, "%d of 400 small sets are as good", n_best);
    ap_arena_free(&arena);
}

/* Cuts a rectangle of steps and bytes into bricks; how many there are then. */
static int cut(struct ap_pack_piece *p, int n, int n_bricks)
{
    while (n < n_bricks) {
        struct ap_pack_piece *old = &p[below(n)];
        const int steps = old->death - old->birth + 1;
        const int units = (int)(old->size / AP_PACK_ALIGN);
        p[n] = *old;
        if (below(2) && steps > 1) {
            old->death = old->birth + below(steps - 1);
            p[n++].birth = old->death + 1;
        } else if (units > 1) {
            old->size = AP_PACK_ALIGN * (1 + below(units - 1));
            p[n++].size -= old->size;
        }
    }
    return n;
}

static void test_walls(void)
{
    struct ap_arena arena = {0};
    struct ap_pack_piece p[MOST];
    const int64_t high = (int64_t)1024 * AP_PACK_ALIGN;
    int n_tight = 0;
    int64_t waste = 0;

    for (int k = 0; k < 60; k++) {
        p[0] = (struct ap_pack_piece){0, 299, high, 0};
        const int n = cut(p, 1, 30 + below(171));
        const int64_t end = ap_pack(&arena, p, n, 0, 4000000);
        n_tight += end == high && !check_apart(p, n, end);
        waste += end - high;
    }
    CHECK(n_tight >= 30, "%d of 60 walls are built again without a gap", n_tight);
    CHECK(waste * 100 < 2 * 60 * high, "the others with %.2f %% of gaps",
          100. * (double)waste / (double)(60 * high));
    ap_arena_free(&arena);
}

static void test_readme(void)
{
    struct ap_pack_piece p[] = {{0, 2, 128, -1}, {1, 3, 64, -1}, {3, 4, 192, -1}};
    struct ap_arena arena = {0};
    int64_t end = ap_pack(&arena, p, 3, 0, 1000);
    CHECK(end == 256 && !check_apart(p, 3, end),
          "README of libcommon/program: three pieces end at %lld", (long long)end);
    ap_arena_free(&arena);
}

/* Holes of 64 and 128 bytes that open in step 2 and 4: one of 192 from then on. */
static void test_holes(void)
{
    const struct ap_pack_piece hole[] = {{2, 0, 64, 0}, {4, 0, 128, 64}};
    struct ap_pack_piece p[] = {{0, 1, 64, -1},  {2, 3, 64, -1},  {2, 9, 64, -1},
                                {4, 5, 192, -1}, {5, 9, 128, -1}, {6, 7, 64, -1}};
    struct ap_arena arena = {0};
    bool taken[6] = {0};

    ap_place_in_holes(&arena, hole, 2, p, 6, 10, taken);
    CHECK(!taken[0] && taken[1] && !taken[2] && !taken[4] && taken[5],
          "a piece is placed where a hole is open and large enough");
    CHECK(taken[3] && p[3].offset == 0, "holes next to each other become one");

    for (int k = 0; k < 200; k++) {
        struct ap_pack_piece holes[20], some[MOST], both[MOST + 20];
        int n = 0, n_holes = 1 + below(20);
        int64_t end = 0, least;
        random_pieces(some, 40, 60);
        bool in[40] = {0};
        for (int i = 0; i < n_holes; i++) {
            holes[i] = (struct ap_pack_piece){below(60), 0, 64 * (1 + below(30)), end};
            end += holes[i].size;
            /* what is there before the hole opens */
            if (holes[i].birth > 0)
                both[n++] = (struct ap_pack_piece){0, holes[i].birth - 1, holes[i].size,
                                                   holes[i].offset};
        }
        ap_place_in_holes(&arena, holes, n_holes, some, 40, 60, in);
        for (int i = 0; i < 40; i++)
            if (in[i])
                both[n++] = some[i];
        least = 0;
        for (int i = 0; i < n; i++)
            least = both[i].offset + both[i].size > least ? both[i].offset + both[i].size
                                                          : least;
        const char *what = least > end ? "beyond the holes" : check_apart(both, n, least);
        CHECK(!what, "random holes %d: %s", k, what ? what : "apart");
    }
    ap_arena_free(&arena);
}

int main(void)
{
    test_holes();
    test_readme();
    test_random();
    test_small();
    test_walls();
    return tap_done();
}
