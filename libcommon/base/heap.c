#include "base/heap.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

static char *item_at(const struct ap_heap *heap, int i)
{
    return heap->item + (size_t)i * heap->size;
}

void ap_heap_free(struct ap_heap *heap)
{
    free(heap->item);
    heap->item = NULL;
    heap->n = heap->cap = 0;
}

void ap_heap_push(struct ap_heap *heap, const void *item)
{
    int i = heap->n++;

    heap->item = ap_array_room(heap->item, heap->n, &heap->cap, heap->size);
    for (int up; i > 0; i = up) {
        up = (i - 1) / 2;
        if (!heap->before(item, item_at(heap, up)))
            break;
        memcpy(item_at(heap, i), item_at(heap, up), heap->size);
    }
    memcpy(item_at(heap, i), item, heap->size);
}

bool ap_heap_pop(struct ap_heap *heap, void *item)
{
    if (heap->n == 0)
        return false;
    memcpy(item, heap->item, heap->size);
    const char *last = item_at(heap, --heap->n);
    int i = 0;
    for (int c; (c = 2 * i + 1) < heap->n; i = c) {
        if (c + 1 < heap->n && heap->before(item_at(heap, c + 1), item_at(heap, c)))
            c++;
        if (!heap->before(item_at(heap, c), last))
            break;
        memcpy(item_at(heap, i), item_at(heap, c), heap->size);
    }
    if (i != heap->n)
        memcpy(item_at(heap, i), last, heap->size);
    return true;
}
