/* Where parameters come from (.npy files or a seed), and whole arrays out of shards. */
#ifndef EXEC_DATA_H
#define EXEC_DATA_H

#include "step/backend.h"
#include "doc/npy.h"

struct source {
    const char *dir;      /* DIR/K.npy, see arrays.h; NULL: none */
    const char *batches;  /* DIR/S/K.npy: inputs of step S; NULL: none */
    struct arrays *files; /* data_load's own */
    bool seeded; /* parameters without a file come from the seed; states are 0 anyway */
    bool small_ints; /* seeded floats are integers in [-2, 2] */
    uint64_t seed;
    int64_t int_range; /* seeded integer inputs are in [0, int_range) */
};

/*
 * Fills this rank's shards of all parameters of x with initial values; padding is 0.
 * Rank 0 of x->comm reads the files, once, and sends each rank its part. Called by all
 * ranks of x->comm, which fail together, but for a type that x cannot run.
 */
int data_load(struct exec *x, const struct source *source, struct ap_err *err);

/* How many batches DIR/1, DIR/2, ... there are, as rank 0 of the job sees it; 0 with err.
 * Called by all ranks. */
int64_t data_batches(struct comm *c, const char *dir, struct ap_err *err);
/* The inputs of x that have files DIR/BATCH/K.npy take their values; read, likewise, and
 * sent by rank 0 of x->comm. *n_read grows by their number. Called by all ranks of
 * x->comm, which fail together. */
int data_batch(struct exec *x, const char *dir, int64_t batch, int *n_read,
               struct ap_err *err);

/*
 * Gathers parameter k, of which every rank holds a shard: on rank 0 the whole
 * array in row-major order (the caller frees it), NULL on other ranks. Called by all
 * ranks.
 */
void *data_collect(struct exec *x, int k);

/* Element i as a double; pred and integers too. */
double data_number(const void *data, enum ap_dtype dtype, int64_t i);

#endif
