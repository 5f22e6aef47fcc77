/* Products that are written in the order in which they are read. */
#ifndef EXEC_PERMUTE_H
#define EXEC_PERMUTE_H

#include "exec.h"

/* Fills x->permuted, once values have their places and before calls are prepared. aside:
 * [node], computed elsewhere and copied to its place. */
void permute_find(struct exec *x, const bool *aside);

#endif
