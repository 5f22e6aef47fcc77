#include "base/index_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

enum { FIRST = 32 }; /* slots, a power of two */

void ap_index_free(struct ap_index *index)
{
    free(index->slot);
    free(index->hash);
    *index = (struct ap_index){0};
}

void ap_index_clear(struct ap_index *index)
{
    if (index->slot)
        memset(index->slot, 0, (index->mask + 1) * sizeof *index->slot);
    index->n = 0;
}

static void place(struct ap_index *index, uint64_t hash, int at)
{
    size_t i = (size_t)hash & index->mask;

    while (index->slot[i].at)
        i = (i + 1) & index->mask;
    index->slot[i] = (struct ap_index_slot){(uint32_t)(hash >> 32), at};
}

static void grow(struct ap_index *index)
{
    struct ap_index_slot *old = index->slot;
    size_t n_old = old ? index->mask + 1 : 0, n = n_old ? 2 * n_old : FIRST;

    index->slot = ap_xrealloc(NULL, n * sizeof *index->slot);
    memset(index->slot, 0, n * sizeof *index->slot);
    index->mask = n - 1;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].at)
            place(index, index->hash[old[i].at - 1], old[i].at);
    free(old);
}

void ap_index_put(struct ap_index *index, uint64_t hash, int i)
{
    if (!index->slot || 2 * ((size_t)index->n + 1) > index->mask + 1)
        grow(index);
    AP_ROOM_FOR(index->hash, i, index->cap, 1);
    index->hash[i] = hash;
    place(index, hash, i + 1);
    index->n++;
}
