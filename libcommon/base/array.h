/*
 * Arrays that grow. An array is three variables of its owner: the items, how many there
 * are, and for how many there is room; AP_ROOM makes room for one more:
 *
 *     AP_ROOM(list->item, list->n, list->cap);
 *     list->item[list->n++] = item;
 *
 * Room doubles, so that n appends cost O(n). Memory is malloc's and the owner frees it;
 * AP_ROOM_IN takes it from an arena, which keeps the older copies until it is rewound.
 */
#ifndef AP_ARRAY_H
#define AP_ARRAY_H

#include "base/base.h"

/* Room for at least n items of size bytes in p, which has room for *cap. */
void *ap_array_room(void *p, int64_t n, int *cap, size_t size);
void *ap_array_room_in(struct ap_arena *arena, void *p, int64_t n, int *cap, size_t size);

/* An item may be a pointer to a struct. */
#define AP_ITEM_BYTES(p) sizeof *(p) /* NOLINT(bugprone-sizeof-expression) */

#define AP_ROOM(p, n, cap) AP_ROOM_FOR(p, n, cap, 1)
/* Room for `more` items after the n that are there. */
#define AP_ROOM_FOR(p, n, cap, more)                                      \
    ((int64_t)(n) + (more) <= (cap)                                       \
         ? (void)0                                                        \
         : (void)((p) = ap_array_room((p), (int64_t)(n) + (more), &(cap), \
                                      AP_ITEM_BYTES(p))))
#define AP_ROOM_IN(arena, p, n, cap)                                                     \
    ((n) < (cap) ? (void)0                                                               \
                 : (void)((p) = ap_array_room_in((arena), (p), (int64_t)(n) + 1, &(cap), \
                                                 AP_ITEM_BYTES(p))))

#endif
