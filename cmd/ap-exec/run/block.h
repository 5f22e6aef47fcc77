/* A rank's shard of a parameter as runs of elements that are neighbours in the whole. */
#ifndef EXEC_BLOCK_H
#define EXEC_BLOCK_H

#include "step/exec.h"

/*
 * A shard row by row. The whole is row-major: the tensor itself, or, where the tensor is
 * a part of an argument of the step, the argument.
 */
struct block {
    struct shard shard;
    int64_t stride[AP_MAX_RANK]; /* of the tensor's dimensions in the whole, elements */
    int64_t offset;              /* of the tensor's first element there */
    int64_t row, n_rows;         /* local elements of a row; rows */
};

/* The shard of the device at coords; part: NULL, the tensor is the whole. arena. */
void block_open(struct ap_arena *arena, struct block *b, const struct ap_mesh *mesh,
                const struct placement *place, const struct ap_part *part,
                const int64_t *coords);

/* n elements that are neighbours in the shard, from `local`, and in the whole, from
 * `whole`. A result other than 0 ends the enumeration. */
typedef int block_run_fn(void *ctx, int64_t local, int64_t whole, int64_t n);
/* All runs, as long as they can be, in the order of the shard; padding is in none. The
 * result of the last call of run, or 0. */
int block_each(const struct block *b, block_run_fn *run, void *ctx);

/* Copies between a shard and the whole, elements of `size` bytes; out: to the whole. */
void block_move(const struct block *b, char *local, char *whole, int size, bool out);

#endif
