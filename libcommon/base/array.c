#include "base/array.h"

#include <limits.h>
#include <string.h>

enum { FIRST = 4 }; /* items: many arrays stay that small */

static int room_for(int64_t n, int cap)
{
    int64_t room = cap > 0 ? 2 * (int64_t)cap : FIRST;

    if (room < n)
        room = n;
    if (room > INT_MAX)
        room = INT_MAX;
    if (n > room) /* counts are ints: as if there were no memory for it */
        ap_xrealloc(NULL, SIZE_MAX);
    return (int)room;
}

void *ap_array_room(void *p, int64_t n, int *cap, size_t size)
{
    if (n <= *cap)
        return p;
    *cap = room_for(n, *cap);
    return ap_xrealloc(p, (size_t)ap_mul64(*cap, (int64_t)size));
}

void *ap_array_room_in(struct ap_arena *arena, void *p, int64_t n, int *cap, size_t size)
{
    if (n <= *cap)
        return p;
    size_t used = (size_t)*cap * size;
    *cap = room_for(n, *cap);
    void *more = ap_arena_alloc_n(arena, (size_t)*cap, size);
    if (used)
        memcpy(more, p, used);
    return more;
}
