/*
 * --profile: the times of kernels and collectives in the steps of this run, with all
 * ranks running, and the times of collectives and messages alone, by size; ap-cost
 * --calibrate reads them.
 *
 * The first PROFILE_WARMUP steps count for nothing. After these, every second step runs
 * as without a profile and gives the step's seconds; in the steps between, every call is
 * timed (step/timing.c), and a collective is finished where it starts. A load on the
 * machine that comes and goes is therefore in both. A kernel's seconds are the median
 * over steps. A collective's seconds are measured on the rank that came last, which did
 * not wait, and are the lower quartile.
 */
#ifndef EXEC_PROFILE_H
#define EXEC_PROFILE_H

#include "step/exec.h"

#include "tool/tool.h"

enum {
    PROFILE_WARMUP = 2,
    PROFILE_LEAST_STEPS = PROFILE_WARMUP + 2, /* one of each kind */
    PROFILE_STEPS = 14                        /* without --steps */
};

/* Of a job. */
struct profile;
struct profile *profile_open(struct ap_arena *arena, struct comm *job, int64_t steps);
/* Watches x, the program of stage `stage` on x->comm; all ranks that run it call this,
 * for each of their stages in the order of stages. A second x of the stage (another slot)
 * shares the first one's. */
void profile_watch(struct profile *p, struct exec *x, int stage);
/* Step i of this run begins; has ended, after sec on the slowest rank. p may be NULL. */
void profile_begin(struct profile *p, int64_t i);
void profile_end(struct profile *p, int64_t i, double sec);
/* After the last step, called by all ranks: measures collectives and messages alone; the
 * document is in *out on rank 0. */
void profile_write(struct profile *p, const struct backend *backend, struct ap_buf *out);

/* ---- collectives and messages alone (profile_comm.c) ---- */

/* Appends rows of "collectives" and of "sends" on rank 0. host[rank]: the number of its
 * host. Called by all ranks. */
void profile_comm(struct ap_arena *arena, struct comm *job, const struct backend *backend,
                  const int *host, struct ap_buf *collectives, struct ap_buf *sends);
/* "groups":[[0,1],[2,3]]: the ranks of the mesh that communicate over the axes; rank[r]
 * the number in the job, NULL: r. */
void profile_put_groups(struct ap_arena *arena, const struct ap_mesh *mesh, unsigned axes,
                        const int *rank, struct ap_buf *out);

/* The median, and the lower quartile, of n numbers, which are sorted. */
double profile_median(double *v, int n);
double profile_quartile(double *v, int n);

#endif
