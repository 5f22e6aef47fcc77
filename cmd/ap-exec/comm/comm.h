/*
 * How ranks communicate: a table of functions with three rows, comm_self.c (one rank,
 * without MPI), comm_mpi.c and cuda/comm_nccl.c. A failed call names the rank and aborts
 * the job.
 *
 * Collectives (group to wait) take the memory of the backend; all ranks that take part
 * call them in the same order, and the backend's later work sees the result. Messages
 * (send to settle) take host memory, and so do the others, which steer the job (broadcast
 * to close).
 *
 * Sums are made in the order of ranks by comm_combine, so that every rank holds the same
 * bits and a run repeats; a communicator that leaves sums to a library (NCCL) can keep
 * the second promise only.
 */
#ifndef EXEC_COMM_H
#define EXEC_COMM_H

#include "layout/layout.h"

/* Ranks of the job that one sends to and receives from. */
struct comm_peers {
    int to, from;
};

/* A collective, but for its memory. */
struct comm_job {
    enum ap_op op; /* all-reduce, reduce-scatter, all-gather, all-to-all or permute */
    int group;
    struct comm_peers peers; /* of a permute, which has no group */
    int64_t n;               /* elements of a block where blocks are summed; else bytes */
    enum ap_dtype dtype;     /* of what is summed */
    enum ap_red red;
};
/* Whether blocks are summed, and the bytes of a block. */
bool comm_sums(const struct comm_job *job);
int64_t comm_block_bytes(const struct comm_job *job);

struct comm {
    const char *name;
    int rank, size;
    void *impl;

    /* ---- collectives ---- */

    /*
     * Prepares the group of ranks that differ on the axes of the bit set only; members
     * are ordered by their coordinates on those axes, first axis major. Called by all
     * ranks before step 1; the same axes give the same group.
     */
    int (*group)(struct comm *c, const struct ap_mesh *mesh, unsigned axes);
    /* Room for all-reduces and reduce-scatters of up to `bytes` (of the full tensor),
     * before step 1. */
    void (*reserve)(struct comm *c, int64_t bytes);
    /*
     * Runs a collective. All-reduce: a block is combined over the group, in place (send
     * is recv); bf16 and f16 are summed in f32 and rounded once. Reduce-scatter: send has
     * a block for each member, in order, and recv is one, combined. All-gather: recv has
     * the block of every member, in order. All-to-all: send and recv have a block for
     * each member. Permute: a block goes to one rank and another one comes from a rank;
     * where this rank is both, it is copied.
     */
    void (*collect)(struct comm *c, const struct comm_job *job, const void *send,
                    void *recv);

    /*
     * Overlap. After start, the next collective may return before it has
     * run; event gives its ticket; wait, once per ticket, orders what the backend does
     * afterwards after it. Until then nobody may write what it reads, nor touch what it
     * writes. A communicator without overlap runs it at once. Over MPI it goes on in
     * `progress` and in waits.
     */
    void (*start)(struct comm *c);
    int (*event)(struct comm *c);
    void (*wait)(struct comm *c, int ticket);

    /* ---- messages between stages ---- */

    /* To another rank, without waiting; buf is copied. Messages of one tag arrive in
     * order. */
    void (*send)(struct comm *c, int to, int tag, const void *buf, int64_t bytes);
    /* A message that will come: it may be written to buf from now on, and is there after
     * await, which takes what expect returned, once. */
    int (*expect)(struct comm *c, int from, int tag, void *buf, int64_t bytes);
    void (*await)(struct comm *c, int message);
    /* Waits until all that this rank sent has arrived. */
    void (*settle)(struct comm *c);

    /* Moves on collectives that were started, and messages; called between kernels, and
     * returns at once. */
    void (*progress)(struct comm *c);

    /* ---- the job ---- */

    /* Rank 0's bytes to all ranks. */
    void (*broadcast)(struct comm *c, void *buf, int64_t bytes);
    /* From rank `from` to rank 0; called by these two only. */
    void (*to_root)(struct comm *c, int from, void *buf, int64_t bytes);
    int64_t (*max)(struct comm *c, int64_t v);
    /* Bytes of memory that it has taken for collectives and messages. */
    int64_t (*memory)(const struct comm *c);
    double (*max_sec)(struct comm *c, double v);
    /*
     * The communicator of n of the ranks, numbered in the order of the list; false on the
     * others. All ranks call it; *out is closed before c is.
     */
    bool (*split)(struct comm *c, const int *ranks, int n, struct comm *out);
    void (*close)(struct comm *c);
};

void comm_self_open(struct comm *c);
/* Joins the job that mpirun started. */
void comm_mpi_open(struct comm *c);

/* For a communicator that has no overlap: start, event and wait. */
void comm_start_none(struct comm *c);
int comm_event_none(struct comm *c);
void comm_wait_none(struct comm *c, int ticket);

/* A message, now: expect and await. */
void comm_receive(struct comm *c, int from, int tag, void *buf, int64_t bytes);

/* The ranks of a mesh that differ on the axes of the bit set only. */
struct comm_key {
    unsigned axes;
    struct ap_mesh mesh; /* programs of several meshes may run in one job */
};
bool comm_key_same(const struct comm_key *a, const struct comm_key *b);
/* The number of the group that the rank is in, and its place there. */
void comm_key_split(const struct comm_key *k, int rank, int *group, int *place);

/* out = block 0 (red) block 1 (red) ..., blocks of n elements; out may be block 0. */
void comm_combine(void *out, const void *blocks, int n_blocks, int64_t n,
                  enum ap_dtype dtype, enum ap_red red);

#endif
