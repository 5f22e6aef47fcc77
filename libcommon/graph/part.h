/* Arrays of the exported step whose parts are parameters or results: struct ap_part. */
#ifndef AP_PART_H
#define AP_PART_H

#include "graph/graph.h"

/* The shape of the whole that an array of this shape is a part of; part may be NULL. */
struct ap_shape ap_part_whole(struct ap_arena *arena, const struct ap_shape *shape,
                              const struct ap_part *part);

/*
 * Copies the elements of a part, of this shape and in row-major order at `data`, into its
 * whole at `to`, or out of the whole at `from`.
 */
void ap_part_put(const struct ap_shape *shape, const struct ap_part *part,
                 const void *data, void *to);
void ap_part_get(const struct ap_shape *shape, const struct ap_part *part,
                 const void *from, void *data);

#endif
