/* Collectives under way while kernels compute: comm_mpi.c starts them, the main thread
 * moves them on between kernels. */
#ifndef EXEC_FLIGHT_H
#define EXEC_FLIGHT_H

#include <mpi.h>

#include "comm/comm.h"

/* Bytes of a tensor up to which an all-reduce gathers everything and adds up on every
 * rank: one latency instead of two. */
#define COMM_SMALL_BYTES 2048

/* A collective, its memory and its ranks; all but an all-to-all. */
struct flight_job {
    struct comm_job of;
    const void *send;
    void *recv;
    MPI_Comm comm;   /* of the group; of a permute: of the job */
    int me, n_ranks; /* in it */
};

struct flights;
/* check: as comm_mpi.c checks every call. */
struct flights *flights_open(struct comm *c,
                             void (*check)(struct comm *c, int rc, const char *what));
/* When nothing is under way; NULL is allowed. */
void flights_close(struct flights *f);
/* Whether too many are under way for another one. */
bool flights_full(const struct flights *f);
/* The job's ticket, not negative; its blocks are not empty. Ranks of a communicator add
 * the same jobs in the same order. */
int flights_add(struct flights *f, const struct flight_job *job);
/* Advances all transfers that can advance, and returns at once. */
void flights_progress(struct flights *f);
/* Whether the job is over. */
bool flights_done(const struct flights *f, int ticket);
/* Bytes of memory for other ranks' blocks. */
int64_t flights_memory(const struct flights *f);

#endif
