/* Scopes that repeat in turns: layers of alternating kinds. */
#ifndef PERIOD_H
#define PERIOD_H

#include "owner.h"

/*
 * [scope]: the group that it is in, from 1 on, 0 for none, as owners_group wants it; NULL
 * when there is no group. skeleton[scope] is equal for scopes that may repeat each other.
 * Arena.
 */
int *period_groups(struct ap_arena *arena, const struct owners *o,
                   const uint64_t *skeleton);

#endif
