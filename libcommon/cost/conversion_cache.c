/*
 * A key is a few 64-bit words: element size and rank, the dimensions, and one word per
 * mesh axis and layout, so that a hit costs one pass over some ten words.
 */
#include "cost/conversion_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/index_map.h"

enum { MAX_WORDS = 1 + AP_MAX_RANK + 2 * AP_MAX_AXES };

struct ap_conversion_cache {
    struct ap_arena arena; /* of keys and steps */
    int n_axes, n, cap;
    struct ap_cached_conversion *entry;
    struct ap_index index; /* of entries, by key */
};

struct ap_conversion_cache *ap_conversion_cache_new(int n_axes)
{
    struct ap_conversion_cache *cache = ap_xrealloc(NULL, sizeof *cache);
    *cache = (struct ap_conversion_cache){.n_axes = n_axes};
    return cache;
}

void ap_conversion_cache_free(struct ap_conversion_cache *cache)
{
    if (!cache)
        return;
    free(cache->entry);
    ap_index_free(&cache->index);
    ap_arena_free(&cache->arena);
    free(cache);
}

/* One word per axis; false when a stride does not fit. */
static bool pack(const struct ap_layout *l, int n_axes, uint64_t *words)
{
    for (int a = 0; a < n_axes; a++) {
        if ((uint64_t)l->axis[a].stride >> 48)
            return false;
        words[a] = ap_placement_word(&l->axis[a]);
    }
    return true;
}

struct ap_cached_conversion *ap_conversion_cache_get(struct ap_conversion_cache *cache,
                                                     const struct ap_shape *shape,
                                                     const struct ap_layout *from,
                                                     const struct ap_layout *to,
                                                     bool *found)
{
    uint64_t words[MAX_WORDS], hash = 0;
    int n = 0;

    words[n++] = (uint64_t)ap_dtype_size(shape->dtype) << 8 | (uint64_t)shape->rank;
    for (int d = 0; d < shape->rank; d++)
        words[n++] = (uint64_t)shape->dims[d];
    if (!pack(from, cache->n_axes, words + n) ||
        !pack(to, cache->n_axes, words + n + cache->n_axes))
        return NULL;
    n += 2 * cache->n_axes;
    const size_t size = (size_t)n * sizeof *words;
    for (int i = 0; i < n; i++)
        hash = ap_hash_mix(hash, words[i]);
    struct ap_index_walk walk;
    for (int i = ap_index_first(&cache->index, hash, &walk); i >= 0;
         i = ap_index_next(&cache->index, &walk)) {
        struct ap_cached_conversion *e = &cache->entry[i];
        *found = true;
        if (e->n_words == n && memcmp(e->words, words, size) == 0)
            return e;
    }
    *found = false;
    ap_index_put(&cache->index, hash, cache->n);
    AP_ROOM(cache->entry, cache->n, cache->cap);
    cache->entry[cache->n] = (struct ap_cached_conversion){
        .n_steps = -1, .n_words = n, .words = ap_arena_dup(&cache->arena, words, size)};
    return &cache->entry[cache->n++];
}

void ap_conversion_cache_put_path(struct ap_conversion_cache *cache,
                                  struct ap_cached_conversion *entry,
                                  const struct ap_path *path)
{
    entry->n_steps = path->n_steps;
    entry->steps = ap_arena_dup(&cache->arena, path->steps,
                                (size_t)path->n_steps * sizeof *path->steps);
}
