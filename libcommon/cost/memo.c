/*
 * Problem: the searches ask for the price of the same conversions millions of times.
 *
 * Idea: an open-addressing hash table. A key is a few 64-bit words: element size and
 * rank, the dimensions, and one word per mesh axis and layout, so that a hit costs one
 * pass over some ten words.
 */
#include "cost/memo.h"
#include "cost/convert.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 1 + AP_MAX_RANK + 2 * AP_MAX_AXES };

struct ap_memo {
    struct ap_arena arena; /* of keys and steps */
    int n_axes;
    size_t n, n_slots; /* slots: a power of two, at most half full */
    struct ap_memo_entry *slot;
};

struct ap_memo *ap_memo_new(int n_axes)
{
    struct ap_memo *memo = ap_xrealloc(NULL, sizeof(*memo));
    *memo = (struct ap_memo){.n_axes = n_axes};
    return memo;
}

void ap_memo_free(struct ap_memo *memo)
{
    if (!memo)
        return;
    free(memo->slot);
    ap_arena_free(&memo->arena);
    free(memo);
}

/* One word per axis; false when a stride does not fit. */
static bool pack(const struct ap_layout *l, int n_axes, uint64_t *words)
{
    for (int a = 0; a < n_axes; a++) {
        const struct ap_placement *p = &l->axis[a];
        if ((uint64_t)p->stride >> 48)
            return false;
        words[a] = (uint64_t)p->stride << 16 | (uint64_t)p->dim << 8 |
                   (uint64_t)p->red << 2 | p->kind;
    }
    return true;
}

static uint64_t hash_words(const uint64_t *words, uint32_t n)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

static void grow(struct ap_memo *memo)
{
    size_t n_old = memo->n_slots;
    struct ap_memo_entry *old = memo->slot;

    memo->n_slots = n_old ? 2 * n_old : 256;
    memo->slot = ap_xrealloc(NULL, memo->n_slots * sizeof(*memo->slot));
    memset(memo->slot, 0, memo->n_slots * sizeof(*memo->slot));
    for (size_t i = 0; i < n_old; i++) {
        if (!old[i].words)
            continue;
        size_t at = old[i].hash & (memo->n_slots - 1);
        while (memo->slot[at].words)
            at = (at + 1) & (memo->n_slots - 1);
        memo->slot[at] = old[i];
    }
    free(old);
}

struct ap_memo_entry *ap_memo_get(struct ap_memo *memo, const struct ap_shape *shape,
                                  const struct ap_layout *from,
                                  const struct ap_layout *to, bool *found)
{
    uint64_t words[MAX_WORDS];
    uint32_t n = 0;

    words[n++] = (uint64_t)ap_dtype_size(shape->dtype) << 8 | (uint64_t)shape->rank;
    for (int d = 0; d < shape->rank; d++)
        words[n++] = (uint64_t)shape->dims[d];
    if (!pack(from, memo->n_axes, words + n) ||
        !pack(to, memo->n_axes, words + n + memo->n_axes))
        return NULL;
    n += 2 * (uint32_t)memo->n_axes;
    if (2 * memo->n >= memo->n_slots)
        grow(memo);
    uint64_t hash = hash_words(words, n);
    size_t at = hash & (memo->n_slots - 1);
    for (; memo->slot[at].words; at = (at + 1) & (memo->n_slots - 1)) {
        struct ap_memo_entry *e = &memo->slot[at];
        if (e->hash == hash && e->n_words == n &&
            memcmp(e->words, words, n * sizeof(*words)) == 0) {
            *found = true;
            return e;
        }
    }
    memo->n++;
    memo->slot[at] = (struct ap_memo_entry){
        .hash = hash,
        .n_steps = -1,
        .n_words = n,
        .words = ap_arena_dup(&memo->arena, words, n * sizeof(*words))};
    *found = false;
    return &memo->slot[at];
}

void ap_memo_put_path(struct ap_memo *memo, struct ap_memo_entry *entry,
                      const struct ap_path *path)
{
    entry->n_steps = path->n_steps;
    entry->steps = ap_arena_dup(&memo->arena, path->steps,
                                (size_t)path->n_steps * sizeof(*path->steps));
}
