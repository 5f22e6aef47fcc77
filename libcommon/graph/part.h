/* Arrays of the exported step whose parts are parameters or results: struct ap_part. */
#ifndef AP_PART_H
#define AP_PART_H

#include "graph/graph.h"

/* The shape of the whole that an array of this shape is a part of; part may be NULL. */
struct ap_shape ap_part_whole(struct ap_arena *arena, const struct ap_shape *shape,
                              const struct ap_part *part);

/* -1, with err set, if an array of this shape cannot be such a part; a part of NULL is
 * valid. */
int ap_part_check(const struct ap_shape *shape, const struct ap_part *part,
                  struct ap_err *err);

/* Whether two parts belong to one whole: to one argument, split in the same way. */
bool ap_part_same_whole(const struct ap_part *a, const struct ap_part *b);

/*
 * The place of a part in its whole, in elements of row-major order: returns the place of
 * its first element, and stride[d] is the distance of neighbours along its dimension d.
 * If part is NULL, the array is the whole.
 */
int64_t ap_part_place(const struct ap_shape *shape, const struct ap_part *part,
                      int64_t *stride);

/*
 * Copies the elements of a part, of this shape and in row-major order at `data`, into its
 * whole at `to`, or out of the whole at `from`.
 */
void ap_part_put(const struct ap_shape *shape, const struct ap_part *part,
                 const void *data, void *to);
void ap_part_get(const struct ap_shape *shape, const struct ap_part *part,
                 const void *from, void *data);

#endif
