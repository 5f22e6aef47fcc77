/*
 * How ranks talk: a table of functions with two rows, comm_self.c (one rank, without MPI)
 * and comm_mpi.c. Buffers are host memory. A failed call names the rank and aborts the
 * job.
 */
#ifndef EXEC_COMM_H
#define EXEC_COMM_H

#include "layout/layout.h"

struct comm {
    const char *name;
    int rank, size;
    void *impl;

    /*
     * Prepares the group of ranks that differ on the axes of the bit set only; members
     * are ordered by their coordinates on those axes, first axis major. Called by all
     * ranks before step 1; the same axes give the same group.
     */
    int (*group)(struct comm *c, const struct ap_mesh *mesh, unsigned axes);
    /* Room for collectives of up to `bytes` (full tensor), before step 1. */
    void (*reserve)(struct comm *c, int64_t bytes);

    /*
     * Combine n elements of dtype over a group, in rank order, so that every rank gets
     * the same bits; bf16 and f16 are summed in f32 and rounded once. In place.
     */
    void (*all_reduce)(struct comm *c, int group, void *buf, int64_t n,
                       enum ap_dtype dtype, enum ap_red red);
    /* send: one block of n elements per member, in order; recv: n elements, combined. */
    void (*reduce_scatter)(struct comm *c, int group, const void *send, void *recv,
                           int64_t n, enum ap_dtype dtype, enum ap_red red);
    /* recv: a block of `bytes` from every member, in order. */
    void (*all_gather)(struct comm *c, int group, const void *send, void *recv,
                       int64_t bytes);
    /* send and recv: a block of `bytes` per member, in order. */
    void (*all_to_all)(struct comm *c, int group, const void *send, void *recv,
                       int64_t bytes);
    /* Swaps `bytes` with another rank of the job (or copies, if it is this one). */
    void (*exchange)(struct comm *c, int peer, const void *send, void *recv,
                     int64_t bytes);

    /* Rank 0's bytes to everybody. */
    void (*broadcast)(struct comm *c, void *buf, int64_t bytes);
    /* From rank `from` to rank 0; called by these two only. */
    void (*to_root)(struct comm *c, int from, void *buf, int64_t bytes);
    /*
     * The job of n of the ranks, numbered as they are listed; false on the others. All
     * ranks call it; *out is closed before c is.
     */
    bool (*split)(struct comm *c, const int *ranks, int n, struct comm *out);
    /* To another rank, without waiting; buf stays as it is until settle. Messages of one
     * tag arrive in order. */
    void (*send)(struct comm *c, int to, int tag, const void *buf, int64_t bytes);
    void (*receive)(struct comm *c, int from, int tag, void *buf, int64_t bytes);
    /* Until all that this rank sent has arrived. */
    void (*settle)(struct comm *c);
    int64_t (*max)(struct comm *c, int64_t v);
    double (*max_sec)(struct comm *c, double v);
    void (*close)(struct comm *c);
};

void comm_self_open(struct comm *c);
/* Joins the job that mpirun started. */
void comm_mpi_open(struct comm *c);

/* out = block 0 (red) block 1 (red) ..., blocks of n elements; out may be block 0. */
void comm_combine(void *out, const void *blocks, int n_blocks, int64_t n,
                  enum ap_dtype dtype, enum ap_red red);

#endif
