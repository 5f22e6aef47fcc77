/* Offline dynamic storage allocation: pieces with known lifetimes into a small arena. */
#ifndef AP_PACK_H
#define AP_PACK_H

#include "base/base.h"

#define AP_PACK_ALIGN 64   /* divides every size and offset */
#define AP_PACK_MOST  8192 /* pieces; more take too long */

/* Takes size bytes (> 0) at offset, in the steps birth to death, both included. */
struct ap_pack_piece {
    int birth, death; /* 0 <= birth <= death */
    int64_t size, offset;
};

/*
 * Chooses the offsets of n <= AP_PACK_MOST pieces, whose sizes have a sum that n times
 * fits an int64_t, so that no two pieces that are in use together overlap. Stops when the
 * arena has at most `enough` bytes, when no smaller arena exists, or after `work`
 * comparisons with placed pieces (but not before one order has been tried). Returns the
 * size of the arena. `enough` and `work` only end the search; they do not change its
 * course.
 */
int64_t ap_pack(struct ap_arena *arena, struct ap_pack_piece *piece, int n,
                int64_t enough, int64_t work);

#endif
