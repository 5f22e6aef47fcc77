/* Collectives that run on a thread of their own, one after the other. */
#ifndef EXEC_PROGRESS_H
#define EXEC_PROGRESS_H

#include "comm/comm.h"

enum progress_op {
    PROGRESS_ALL_REDUCE,
    PROGRESS_REDUCE_SCATTER,
    PROGRESS_ALL_GATHER,
    PROGRESS_ALL_TO_ALL,
    PROGRESS_EXCHANGE
};

/* Arguments of a collective of struct comm. */
struct progress_job {
    enum progress_op op;
    int group;
    struct comm_peers peers; /* of an exchange */
    const void *send;
    void *recv;
    int64_t n; /* elements, or bytes */
    enum ap_dtype dtype;
    enum ap_red red;
};

struct progress;
/* Starts the thread, which calls run for each job, in order. */
struct progress *progress_open(void (*run)(void *ctx, const struct progress_job *job),
                               void *ctx);
/* Ends it when all is done; NULL is allowed. */
void progress_close(struct progress *p);
/* The job's ticket, not negative; waits while too many are under way. */
int progress_add(struct progress *p, const struct progress_job *job);
/* Until the job and all before it are done. */
void progress_wait(struct progress *p, int ticket);
/* For run, between two tests of its requests: leaves the processor to the main thread's
 * kernels, but yields for a moment only if the main thread waits for the job. */
void progress_pause(struct progress *p);

#endif
