/* Pieces of memory with known lifetimes: quick placing by best fit, then by packing. */
#ifndef AP_PLACE_H
#define AP_PLACE_H

#include "base/pack.h"

/*
 * Chooses the offsets of n pieces (multiples of AP_PACK_ALIGN, sizes too) with lifetimes
 * in steps 0 .. n_steps - 1 and returns where the last one ends; *alive: the most that is
 * in use at once. With a limit > 0, no more work is done than it takes to see whether the
 * pieces can end within it: they do, if and only if they would without a limit.
 */
int64_t ap_place(struct ap_arena *arena, struct ap_pack_piece *piece, int n, int n_steps,
                 int64_t limit, int64_t *alive);

/*
 * The same in memory that becomes free part by part: hole i is free from the step `birth`
 * on, for good. Holes lie next to each other, by ascending offset. Sets taken[piece]
 * for those that found room; the others have no offset.
 */
void ap_place_in_holes(struct ap_arena *arena, const struct ap_pack_piece *hole,
                       int n_holes, struct ap_pack_piece *piece, int n, int n_steps,
                       bool *taken);

#endif
