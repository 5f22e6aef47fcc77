/* Where parameters come from (.npy files or a seed), and whole arrays out of shards. */
#ifndef EXEC_DATA_H
#define EXEC_DATA_H

#include "backend.h"
#include "doc/npy.h"

struct source {
    const char *dir; /* of struct arrays; NULL: none */
    bool seeded; /* parameters without a file come from the seed; states are 0 anyway */
    bool small_ints; /* seeded floats are integers in [-2, 2] */
    uint64_t seed;
    int64_t int_range; /* seeded integer inputs are in [0, int_range) */
};

/* Fills this rank's shards of all parameters of x with initial values; padding is 0. */
int data_load(struct exec *x, const struct source *source, struct ap_err *err);

/*
 * The whole array of which every rank holds a shard at `value`, on rank 0 in row-major
 * order (caller frees); NULL on other ranks. Called by all ranks.
 */
void *data_collect(struct exec *x, const void *value, const struct placement *place);

/*
 * Files of arguments, DIR/K.npy: an array K of the step that a program's parameters are
 * the parts of (their attribute argument), or parameter K. The last whole array read
 * stays until another one is asked for.
 */
struct arrays {
    const char *dir;
    int index; /* of `whole`, which is malloc's; NULL: none yet */
    void *whole;
};
/* What a file has of parameter number k, as the whole array of `shape`; caller frees
 * *out. -1 with err; *missing: there is no such file. */
int arrays_read(struct arrays *a, struct ap_arena *arena, const struct ap_node *param,
                int k, const struct ap_shape *shape, void **out, bool *missing,
                struct ap_err *err);
void arrays_free(struct arrays *a);

/* Element i as a double; pred and integers too. */
double data_number(const void *data, enum ap_dtype dtype, int64_t i);

#endif
