/*
 * A hash index over the items of an array: from a hash to the positions that were put
 * under it. The owner keeps the items and decides when two of them are equal:
 *
 *     struct ap_index_walk walk;
 *     for (int i = ap_index_first(&index, hash, &walk); i >= 0;
 *          i = ap_index_next(&index, &walk))
 *         if (equal(&item[i], key))
 *             return i;
 *     ap_index_put(&index, hash, n);
 *
 * Open addressing, linear probing, at most half full; candidates with another hash are
 * skipped without asking the owner. The order of positions does not matter if there is
 * one item per key. Expected O(1) per call.
 */
#ifndef AP_INDEX_MAP_H
#define AP_INDEX_MAP_H

#include "base/base.h"

struct ap_index_slot {
    uint32_t tag; /* the hash's upper half */
    int at;       /* position + 1, 0: free */
};

/* Starts zeroed; the owner calls ap_index_free. */
struct ap_index {
    struct ap_index_slot *slot;
    uint64_t
        *hash;   /* per position, so that the table can grow without asking the owner */
    size_t mask; /* slots - 1 */
    int n, cap;  /* positions below cap have room in hash */
};

struct ap_index_walk {
    size_t at;
    uint32_t tag;
};

void ap_index_free(struct ap_index *index);
/* Forgets all positions, keeps the memory. */
void ap_index_clear(struct ap_index *index);
/* Puts position i (each at most once) under a hash. */
void ap_index_put(struct ap_index *index, uint64_t hash, int i);

/* The next position under the walk's hash; -1 if none is left. */
static inline int ap_index_next(const struct ap_index *index, struct ap_index_walk *walk)
{
    while (index->slot[walk->at].at) {
        const struct ap_index_slot *slot = &index->slot[walk->at];
        walk->at = (walk->at + 1) & index->mask;
        if (slot->tag == walk->tag)
            return slot->at - 1;
    }
    return -1;
}

static inline int ap_index_first(const struct ap_index *index, uint64_t hash,
                                 struct ap_index_walk *walk)
{
    *walk = (struct ap_index_walk){(size_t)hash & index->mask, (uint32_t)(hash >> 32)};
    return index->slot ? ap_index_next(index, walk) : -1;
}

#endif
