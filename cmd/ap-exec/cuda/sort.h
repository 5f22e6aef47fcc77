/* Sorting on the device, for sort, topk and scatter. */
#ifndef EXEC_CUDA_SORT_H
#define EXEC_CUDA_SORT_H

#include "cuda.h"

/* How many keys are sorted where 2^k are needed. */
#define SORT_CHUNK   1024
#define SORT_KEYS(n) ((n) < SORT_CHUNK ? SORT_CHUNK : (n))
/* Sorts n = SORT_KEYS(2^k) unsigned 64-bit keys, no two equal but those of all ones,
 * ascending. */
void sort_add_keys(struct exec *x, struct cuda_call *c, struct cuda_at keys, int64_t n);

#endif
