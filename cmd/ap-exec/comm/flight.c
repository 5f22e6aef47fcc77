/*
 * Collectives that run concurrently with kernels on one thread. Problem: MPI makes
 * progress only inside of its calls, and a thread that calls it takes the processor from
 * the kernels. Idea: the kernel's TCP stack (or a network card) needs no processor of
 * ours, it needs data in time. A collective is one or two nonblocking ones of MPI, which
 * the main thread tests between two kernels: every rank's part of a block to the rank
 * that sums it, which sums in the order of ranks; then the sums to all. MPI wants the
 * calls on a communicator in the same order on all ranks, so that the second ones have a
 * communicator of their own, and begin in the order in which the jobs were added.
 *
 * Cost: a test for each job under way at each look, and the memory of the blocks that are
 * under way to their sums: a job that finds ROOM_BYTES of them waits till some are
 * summed.
 */
#include "comm/flight.h"

#include "base/array.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Half a second of a link of 1 Gbit/s. */
#define ROOM_BYTES (64 << 20)

/* A rank that waits for messages looks for them all the time at first. Then it sleeps for
 * a part of what it has waited so far, so that it leaves the processor to others, and an
 * idle one takes their load: two stages of two ranks on two cores
 * (scripts/bench/hosts-table) take two thirds of the time. */
#define SPIN_SEC       2e-4
#define PAUSE_SHARE    0.05
#define MOST_PAUSE_SEC 1e-3

enum round { SUM, SUMMED, SHARE, OVER };

/* Memory for the blocks of a job, which later jobs take again. */
struct room {
    char *blocks;
    int64_t bytes;
    bool taken;
};

struct flight {
    struct flight_job job;
    enum round round;
    MPI_Request request;
    int *count, *at;   /* [rank]: bytes of an all-reduce's blocks, and where they begin */
    int *same, *place; /* [rank]: of the blocks that this rank sums, likewise */
    int room;          /* until the blocks are summed */
};

struct flights {
    struct comm *c;
    void (*check)(struct comm *c, int rc, const char *what);
    struct flight *flight;      /* in the order in which they were added */
    int n, n_over, n_made, cap; /* added; taken; that have lists */
    struct room *room;
    int n_rooms, cap_rooms;
};

struct flights *flights_open(struct comm *c,
                             void (*check)(struct comm *c, int rc, const char *what))
{
    struct flights *f = ap_xrealloc(NULL, sizeof *f);
    *f = (struct flights){.c = c, .check = check};
    return f;
}

void flights_close(struct flights *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n_made; i++)
        free(f->flight[i].count);
    for (int i = 0; i < f->n_rooms; i++)
        free(f->room[i].blocks);
    free(f->flight);
    free(f->room);
    free(f);
}

int64_t flights_memory(const struct flights *f)
{
    int64_t bytes = 0;
    for (int i = 0; i < f->n_rooms; i++)
        bytes += f->room[i].bytes;
    return bytes;
}

/* An all-reduce in blocks, one a rank; the last ones may be shorter. */
static void cut(struct flight *x)
{
    const struct flight_job *j = &x->job;
    const int64_t size = ap_dtype_size(j->of.dtype), n = j->of.n;
    const int64_t each = ap_ceil_div(n, j->n_ranks);
    for (int r = 0; r < j->n_ranks; r++) {
        const int64_t lo = each * r < n ? each * r : n;
        const int64_t hi = each * (r + 1) < n ? each * (r + 1) : n;
        x->at[r] = (int)(lo * size);
        x->count[r] = (int)((hi - lo) * size);
    }
    for (int r = 0; r < j->n_ranks; r++) {
        x->same[r] = x->count[j->me];
        x->place[r] = r * x->count[j->me];
    }
}

static void begin_sum(struct flights *f, struct flight *x)
{
    const struct flight_job *j = &x->job;
    const int bytes = (int)(j->of.n * ap_dtype_size(j->of.dtype));
    char *blocks = f->room[x->room].blocks;
    x->round = SUM;
    if (j->of.op == AP_OP_REDUCE_SCATTER)
        f->check(f->c,
                 MPI_Ialltoall(j->send, bytes, MPI_BYTE, blocks, bytes, MPI_BYTE, j->comm,
                               &x->request),
                 "MPI_Ialltoall");
    else
        f->check(f->c,
                 MPI_Ialltoallv(j->recv, x->count, x->at, MPI_BYTE, blocks, x->same,
                                x->place, MPI_BYTE, j->comm, &x->request),
                 "MPI_Ialltoallv");
}

static void end_sum(struct flights *f, struct flight *x)
{
    const struct flight_job *j = &x->job;
    const bool scatters = j->of.op == AP_OP_REDUCE_SCATTER;
    const int64_t n = scatters ? j->of.n : x->count[j->me] / ap_dtype_size(j->of.dtype);
    comm_combine((char *)j->recv + (scatters ? 0 : x->at[j->me]), f->room[x->room].blocks,
                 j->n_ranks, n, j->of.dtype, j->of.red);
    f->room[x->room].taken = false;
    x->round = scatters ? OVER : SUMMED;
}

static void begin_share(struct flights *f, struct flight *x)
{
    const struct flight_job *j = &x->job;
    const int bytes = (int)j->of.n;
    x->round = SHARE;
    if (j->of.op == AP_OP_ALL_GATHER)
        f->check(f->c,
                 MPI_Iallgather(j->send, bytes, MPI_BYTE, j->recv, bytes, MPI_BYTE,
                                j->comm, &x->request),
                 "MPI_Iallgather");
    else
        f->check(f->c,
                 MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, j->recv, x->count, x->at,
                                 MPI_BYTE, j->second, &x->request),
                 "MPI_Iallgatherv");
}

void flights_progress(struct flights *f)
{
    bool first = true; /* no earlier job has still to share */
    for (int i = 0; i < f->n; i++) {
        struct flight *x = &f->flight[i];
        int done = 0;
        if (x->round == SUM || x->round == SHARE)
            f->check(f->c, MPI_Test(&x->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (done && x->round == SHARE)
            x->round = OVER;
        else if (done)
            end_sum(f, x);
        if (x->round == SUMMED && first)
            begin_share(f, x);
        first &= x->round >= SHARE || x->job.of.op != AP_OP_ALL_REDUCE;
    }
}

void flights_pause(double start)
{
    const double waited = ap_now_sec() - start, sec = PAUSE_SHARE * waited;
    const struct timespec t = {
        0, (long)(1e9 * (sec < MOST_PAUSE_SEC ? sec : MOST_PAUSE_SEC))};
    if (waited > SPIN_SEC)
        nanosleep(&t, NULL);
}

/* Memory for so many bytes of blocks, as soon as there may be more: its number. */
static int take_room(struct flights *f, int64_t bytes)
{
    const double start = ap_now_sec();
    int best = -1;
    for (;;) {
        int64_t taken = 0;
        flights_progress(f);
        for (int i = 0; i < f->n_rooms; i++)
            taken += f->room[i].taken ? f->room[i].bytes : 0;
        if (taken < ROOM_BYTES)
            break;
        flights_pause(start);
    }
    for (int i = 0; i < f->n_rooms; i++)
        if (!f->room[i].taken && f->room[i].bytes >= bytes &&
            (best < 0 || f->room[i].bytes < f->room[best].bytes))
            best = i;
    if (best < 0) {
        AP_ROOM(f->room, f->n_rooms, f->cap_rooms);
        best = f->n_rooms++;
        f->room[best] = (struct room){ap_xrealloc(NULL, (size_t)bytes), bytes, false};
    }
    f->room[best].taken = true;
    return best;
}

/* The next flight, for a job. */
static struct flight *take_flight(struct flights *f, const struct flight_job *j)
{
    AP_ROOM(f->flight, f->n, f->cap);
    struct flight *x = &f->flight[f->n];
    if (f->n == f->n_made) {
        *x = (struct flight){0};
        x->count = ap_xrealloc(NULL, 4 * (size_t)f->c->size * sizeof *x->count);
        x->at = x->count + f->c->size;
        x->same = x->at + f->c->size;
        x->place = x->same + f->c->size;
        f->n_made++;
    }
    x->job = *j;
    return x;
}

int flights_add(struct flights *f, const struct flight_job *job)
{
    const bool reduces = job->of.op == AP_OP_ALL_REDUCE;
    const int64_t n = reduces ? ap_ceil_div(job->of.n, job->n_ranks) : job->of.n;
    const bool sums = comm_sums(&job->of);
    const int room =
        sums ? take_room(f, n * ap_dtype_size(job->of.dtype) * job->n_ranks) : -1;
    struct flight *x = take_flight(f, job);
    x->room = room;
    if (reduces)
        cut(x);
    if (sums)
        begin_sum(f, x);
    else
        begin_share(f, x);
    return f->n++;
}

bool flights_take(struct flights *f, int ticket)
{
    if (f->flight[ticket].round != OVER)
        return false;
    if (++f->n_over == f->n) /* the next job is the first again */
        f->n = f->n_over = 0;
    return true;
}
