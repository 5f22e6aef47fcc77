/* A job of one rank, without MPI: every collective is a copy. */
#include "comm/comm.h"

#include <assert.h>
#include <string.h>

static int group(struct comm *c, const struct ap_mesh *mesh, unsigned axes)
{
    (void)c, (void)mesh, (void)axes;
    return 0;
}

static void reserve(struct comm *c, int64_t bytes)
{
    (void)c, (void)bytes;
}

static void collect(struct comm *c, const struct comm_job *job, const void *send,
                    void *recv)
{
    (void)c;
    assert(job->op != AP_OP_COLLECTIVE_PERMUTE ||
           (job->peers.to == 0 && job->peers.from == 0));
    if (send != recv)
        memcpy(recv, send, (size_t)comm_block_bytes(job));
}

static void broadcast(struct comm *c, void *buf, int64_t bytes)
{
    (void)c, (void)buf, (void)bytes;
}

static void to_root(struct comm *c, int from, void *buf, int64_t bytes)
{
    (void)c, (void)from, (void)buf, (void)bytes;
}

static bool split(struct comm *c, const int *ranks, int n, struct comm *out)
{
    (void)ranks;
    *out = *c;
    return n > 0;
}

/* There is no other rank. */
static void send(struct comm *c, int to, int tag, const void *buf, int64_t bytes)
{
    (void)c, (void)to, (void)tag, (void)buf, (void)bytes;
    assert(!"sends to another rank");
}

static int expect(struct comm *c, int from, int tag, void *buf, int64_t bytes)
{
    (void)c, (void)from, (void)tag, (void)buf, (void)bytes;
    assert(!"receives from another rank");
    return 0;
}

static void await(struct comm *c, int message)
{
    (void)c, (void)message;
}

static void progress(struct comm *c)
{
    (void)c;
}

static void settle(struct comm *c)
{
    (void)c;
}

static int64_t max(struct comm *c, int64_t v)
{
    (void)c;
    return v;
}

static int64_t memory(const struct comm *c)
{
    (void)c;
    return 0;
}

static double max_sec(struct comm *c, double v)
{
    (void)c;
    return v;
}

static void close_self(struct comm *c)
{
    (void)c;
}

void comm_self_open(struct comm *c)
{
    *c = (struct comm){.name = "self",
                       .rank = 0,
                       .size = 1,
                       .group = group,
                       .reserve = reserve,
                       .collect = collect,
                       .start = comm_start_none,
                       .event = comm_event_none,
                       .wait = comm_wait_none,
                       .broadcast = broadcast,
                       .to_root = to_root,
                       .max = max,
                       .memory = memory,
                       .max_sec = max_sec,
                       .split = split,
                       .send = send,
                       .expect = expect,
                       .await = await,
                       .progress = progress,
                       .settle = settle,
                       .close = close_self};
}
