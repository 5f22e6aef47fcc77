/*
 * A binary heap of items of one size: the first item by the owner's order comes out
 * first. With a total order, items come out in an order that does not depend on when they
 * were pushed. O(log n) per call.
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
/* Takes the first item out; false if the heap is empty. */
bool ap_heap_pop(struct ap_heap *heap, void *item);
/* The first item, valid until the next call; NULL if the heap is empty. */
static inline const void *ap_heap_top(const struct ap_heap *heap)
{
    return heap->n ? heap->item : NULL;
}

#endif
