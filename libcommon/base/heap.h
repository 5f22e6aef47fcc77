/*
 * A binary heap of items of one size: the first by the owner's order comes out first. An
 * order that is total makes what comes out independent of what went in when. O(log n)
 * per call.
 */
#ifndef AP_HEAP_H
#define AP_HEAP_H

#include "base/base.h"

/* Starts with size and before set, the rest zero; the owner calls ap_heap_free. */
struct ap_heap {
    size_t size; /* of an item, bytes */
    bool (*before)(const void *a, const void *b);
    int n, cap;
    char *item;
};

void ap_heap_free(struct ap_heap *heap);
void ap_heap_push(struct ap_heap *heap, const void *item);
/* Takes the first item out; false when there is none. */
bool ap_heap_pop(struct ap_heap *heap, void *item);
/* The first item, NULL when there is none; holds until the next call. */
static inline const void *ap_heap_top(const struct ap_heap *heap)
{
    return heap->n ? heap->item : NULL;
}

#endif
