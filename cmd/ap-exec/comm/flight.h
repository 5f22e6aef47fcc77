/* Collectives under way while kernels compute: comm_mpi.c starts them, the main thread
 * moves them on between kernels. */
#ifndef EXEC_FLIGHT_H
#define EXEC_FLIGHT_H

#include <mpi.h>

#include "comm/comm.h"

/* A collective, its memory and its ranks: an all-reduce, reduce-scatter or all-gather. */
struct flight_job {
    struct comm_job of;
    const void *send;
    void *recv;
    MPI_Comm comm, second; /* of the group, both with the same ranks */
    int me, n_ranks;
};

struct flights;
/* check: as comm_mpi.c checks every call. */
struct flights *flights_open(struct comm *c,
                             void (*check)(struct comm *c, int rc, const char *what));
/* When nothing is under way; NULL is allowed. */
void flights_close(struct flights *f);
/* Starts a job, and returns its ticket, not negative. Ranks of a communicator add the
 * same jobs in the same order, of less than 2 GiB each. */
int flights_add(struct flights *f, const struct flight_job *job);
/* Advances all jobs that can advance, and returns at once. */
void flights_progress(struct flights *f);
/* Whether the job is over; then its ticket is not valid any more. */
bool flights_take(struct flights *f, int ticket);
/* Between two looks of a wait for other ranks that began at `start` (ap_now_sec). */
void flights_pause(double start);
/* Bytes of memory for other ranks' blocks. */
int64_t flights_memory(const struct flights *f);

#endif
