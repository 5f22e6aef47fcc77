/* Private to ap-shard: the meaning of the user's names of mesh axes for a plan. */
#ifndef AXIS_NAMES_H
#define AXIS_NAMES_H

#include "problem/shard.h"

/*
 * Where axes are named for data (ap_mesh_axis_use) and have an equal axis that carries
 * more of the batch, exchanges the two in the answer's plan if the price is the same
 * (1e-9). Returns a message (arena) where the batch stays elsewhere, NULL for none. Pins
 * are kept.
 */
const char *shard_name_axes(struct ap_arena *arena, const struct shard_task *task,
                            struct shard_answer *answer);

#endif
