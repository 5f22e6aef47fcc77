/*
 * Collectives over MPI. Sums are made here, in the order of ranks, so that all ranks hold
 * the same bits whatever algorithm MPI would choose: an all-reduce is an all-to-all of
 * blocks, a local sum and an all-gather (which is also as fast as MPI's own, and half the
 * bytes in bf16); small ones gather everything and add it up on every rank.
 *
 * Once one is started ahead of its wait, all run on a thread (progress.h), by MPI's
 * nonblocking calls. The main thread calls MPI only while none is under way
 * (MPI_THREAD_SERIALIZED): run/overlap.c finishes all of them before messages are sent.
 */
#include "base/array.h"
#include "comm/comm.h"
#include "comm/progress.h"
#include "run/watch.h"
#include "tool/tool.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a tensor up to which an all-reduce gathers everything and adds up on every
 * rank: one latency instead of two. */
#define SMALL_BYTES 2048
/* Bytes of a tensor that is summed at a time: it bounds the memory for other ranks'
 * blocks, which no buffer plan knows, and keeps them in the cache. */
#define PIECE_BYTES (4 << 20)
/* Bytes of one MPI call at most: MPI counts in int. */
#define CHUNK_BYTES (1 << 30)

struct mpi_group {
    struct comm_key key;
    MPI_Comm comm;
    int size;
};

/* A message under way, and memory that later ones take again. */
struct message {
    MPI_Request request; /* MPI_REQUEST_NULL: it has arrived */
    char *copy;
    int64_t bytes; /* of the memory */
};

struct mpi {
    MPI_Comm all; /* ranks of the job, or those that split picked */
    int job_rank;
    int n_sends, cap_sends;
    struct message *sends;
    int n_groups;
    struct mpi_group groups[1 << AP_MAX_AXES];
    struct progress *thread; /* runs all collectives; NULL: none was started */
    bool warned;
    bool serialized;    /* a thread may call MPI */
    bool started;       /* the next collective may return before it has run */
    int ticket;         /* of the last one that was */
    char *blocks, *sum; /* n blocks received; a padded copy to send */
    int64_t bytes;
};

static struct progress *thread_of(const struct comm *c)
{
    return ((const struct mpi *)c->impl)->thread;
}

/* The watchdog watches the main thread, so the thread of the collectives tells it
 * nothing. */
static void begin_wait(const struct comm *c, const char *what)
{
    if (!thread_of(c))
        watch_wait(what);
}

static void check(struct comm *c, int rc, const char *what)
{
    if (!thread_of(c))
        watch_go();
    if (rc == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int len = 0;
    MPI_Error_string(rc, text, &len);
    fprintf(stderr, "ap-exec: rank %d: %s: %.*s\n", ((struct mpi *)c->impl)->job_rank,
            what, len, text);
    watch_leave();
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* A call that may wait for other ranks, as the watchdog sees it. */
#define CALL(c, call, what) (begin_wait((c), what), check((c), (call), (what)))

static MPI_Comm job_of(const struct comm *c)
{
    return ((const struct mpi *)c->impl)->all;
}

static int chunk(int64_t left)
{
    return (int)(left < CHUNK_BYTES ? left : CHUNK_BYTES);
}

static int group(struct comm *c, const struct ap_mesh *mesh, unsigned axes)
{
    struct mpi *m = c->impl;
    const struct comm_key key = {axes, *mesh};
    for (int i = 0; i < m->n_groups; i++)
        if (comm_key_same(&m->groups[i].key, &key))
            return i;
    int color, place;
    comm_key_split(&key, c->rank, &color, &place);
    struct mpi_group *g = &m->groups[m->n_groups];
    g->key = key;
    CALL(c, MPI_Comm_split(m->all, color, place, &g->comm), "MPI_Comm_split");
    MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
    MPI_Comm_size(g->comm, &g->size);
    return m->n_groups++;
}

static void reserve(struct comm *c, int64_t bytes)
{
    struct mpi *m = c->impl;
    /* n padded blocks, or n copies of what is small */
    const int64_t need = (bytes < PIECE_BYTES ? bytes : PIECE_BYTES) +
                         (int64_t)c->size * (SMALL_BYTES + 64);
    if (need <= m->bytes)
        return;
    m->bytes = need;
    m->blocks = ap_xrealloc(m->blocks, (size_t)need);
    m->sum = ap_xrealloc(m->sum, (size_t)need);
    memset(m->blocks, 0, (size_t)need);
    memset(m->sum, 0, (size_t)need);
}

/* On the thread: until all n requests are done. */
static void complete(struct comm *c, MPI_Request *requests, int n, const char *what)
{
    int done = 0;
    for (;;) {
        CALL(c, MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE), what);
        if (done)
            return;
        progress_pause(thread_of(c));
    }
}

/* Sends n bytes to one rank and receives as many from another. */
static void swap(struct comm *c, MPI_Comm comm, const struct comm_peers *peers,
                 const char *out, char *in, int n)
{
    const int tag = 1;
    if (!thread_of(c)) {
        CALL(c,
             MPI_Sendrecv(out, n, MPI_BYTE, peers->to, tag, in, n, MPI_BYTE, peers->from,
                          tag, comm, MPI_STATUS_IGNORE),
             "MPI_Sendrecv");
        return;
    }
    MPI_Request r[2];
    CALL(c, MPI_Irecv(in, n, MPI_BYTE, peers->from, tag, comm, &r[0]), "MPI_Irecv");
    CALL(c, MPI_Isend(out, n, MPI_BYTE, peers->to, tag, comm, &r[1]), "MPI_Isend");
    complete(c, r, 2, "MPI_Testall");
}

/*
 * Collectives of more bytes than MPI counts, or of parts of blocks: round by round with a
 * rank at a distance.
 * send_step: bytes between what is sent to one rank and to the next.
 */
static void in_rounds(struct comm *c, const struct mpi_group *t, const void *send,
                      int64_t send_step, void *recv, int64_t bytes)
{
    int me;
    MPI_Comm_rank(t->comm, &me);
    for (int k = 0; k < t->size; k++) {
        const struct comm_peers peers = {(me + k) % t->size,
                                         (me + t->size - k) % t->size};
        const char *out = (const char *)send + peers.to * send_step;
        char *in = (char *)recv + peers.from * bytes;
        for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
            const int n = chunk(bytes - at);
            swap(c, t->comm, &peers, out + at, in + at, n);
        }
    }
}

static void all_to_all(struct comm *c, int g, const void *send, void *recv, int64_t bytes)
{
    const struct mpi_group *t = &((struct mpi *)c->impl)->groups[g];
    const int n = (int)bytes;
    MPI_Request r;
    if (bytes > INT_MAX / t->size) {
        in_rounds(c, t, send, bytes, recv, bytes);
    } else if (thread_of(c)) {
        CALL(c, MPI_Ialltoall(send, n, MPI_BYTE, recv, n, MPI_BYTE, t->comm, &r),
             "MPI_Ialltoall");
        complete(c, &r, 1, "MPI_Ialltoall");
    } else {
        CALL(c, MPI_Alltoall(send, n, MPI_BYTE, recv, n, MPI_BYTE, t->comm),
             "MPI_Alltoall");
    }
}

/* send: MPI_IN_PLACE, if the rank's block lies where it belongs. */
static void all_gather(struct comm *c, int g, const void *send, void *recv, int64_t bytes)
{
    const struct mpi_group *t = &((struct mpi *)c->impl)->groups[g];
    const int n = (int)bytes;
    MPI_Request r;
    if (bytes > INT_MAX / t->size) {
        in_rounds(c, t, send, 0, recv, bytes);
    } else if (thread_of(c)) {
        CALL(c, MPI_Iallgather(send, n, MPI_BYTE, recv, n, MPI_BYTE, t->comm, &r),
             "MPI_Iallgather");
        complete(c, &r, 1, "MPI_Iallgather");
    } else {
        CALL(c, MPI_Allgather(send, n, MPI_BYTE, recv, n, MPI_BYTE, t->comm),
             "MPI_Allgather");
    }
}

/* n elements, of at most PIECE_BYTES. */
static void reduce_piece(struct comm *c, int g, char *buf, int64_t n, enum ap_dtype dtype,
                         enum ap_red red)
{
    struct mpi *m = c->impl;
    const int size = ap_dtype_size(dtype), k = m->groups[g].size;
    if (n * size <= SMALL_BYTES) {
        all_gather(c, g, buf, m->blocks, n * size);
        comm_combine(buf, m->blocks, k, n, dtype, red);
        return;
    }
    const int64_t block = ap_ceil_div(n, k);
    int me;
    MPI_Comm_rank(m->groups[g].comm, &me);
    /* the last blocks may be padding: exchange from a copy that has room for it */
    char *whole = buf;
    if (block * k != n) {
        whole = m->sum;
        memcpy(whole, buf, (size_t)(n * size));
        memset(whole + n * size, 0, (size_t)((block * k - n) * size));
    }
    all_to_all(c, g, whole, m->blocks, block * size);
    comm_combine(whole + me * block * size, m->blocks, k, block, dtype, red);
    all_gather(c, g, MPI_IN_PLACE, whole, block * size);
    if (whole != buf)
        memcpy(buf, whole, (size_t)(n * size));
}

/* What is left of n elements, of at most one piece. */
static int64_t piece_of(int64_t n, int64_t size)
{
    const int64_t most = PIECE_BYTES / size > 0 ? PIECE_BYTES / size : 1;
    return n < most ? n : most;
}

static void all_reduce(struct comm *c, int g, void *buf, int64_t n, enum ap_dtype dtype,
                       enum ap_red red)
{
    const int size = ap_dtype_size(dtype);
    if (((struct mpi *)c->impl)->groups[g].size == 1)
        return;
    for (int64_t at = 0, piece; at < n; at += piece) {
        piece = piece_of(n - at, size);
        reduce_piece(c, g, (char *)buf + at * size, piece, dtype, red);
    }
}

static void reduce_scatter(struct comm *c, int g, const void *send, void *recv, int64_t n,
                           enum ap_dtype dtype, enum ap_red red)
{
    struct mpi *m = c->impl;
    const struct mpi_group *t = &m->groups[g];
    const int size = ap_dtype_size(dtype);
    for (int64_t at = 0, piece; at < n; at += piece) {
        piece = piece_of(n - at, (int64_t)size * t->size);
        if (piece == n)
            all_to_all(c, g, send, m->blocks, n * size);
        else
            in_rounds(c, t, (const char *)send + at * size, n * size, m->blocks,
                      piece * size);
        comm_combine((char *)recv + at * size, m->blocks, t->size, piece, dtype, red);
    }
}

static void exchange(struct comm *c, const struct comm_peers *peers, const void *send,
                     void *recv, int64_t bytes)
{
    if (peers->to == c->rank) {
        if (send != recv)
            memcpy(recv, send, (size_t)bytes);
        return;
    }
    for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const int n = chunk(bytes - at);
        swap(c, job_of(c), peers, (const char *)send + at, (char *)recv + at, n);
    }
}

/* ---- on this thread, or on the one for collectives ---- */

static void run_job(void *ctx, const struct progress_job *j)
{
    struct comm *c = ctx;
    switch (j->op) {
    case PROGRESS_ALL_REDUCE:
        all_reduce(c, j->group, j->recv, j->n, j->dtype, j->red);
        break;
    case PROGRESS_REDUCE_SCATTER:
        reduce_scatter(c, j->group, j->send, j->recv, j->n, j->dtype, j->red);
        break;
    case PROGRESS_ALL_GATHER:
        all_gather(c, j->group, j->send, j->recv, j->n);
        break;
    case PROGRESS_ALL_TO_ALL:
        all_to_all(c, j->group, j->send, j->recv, j->n);
        break;
    case PROGRESS_EXCHANGE:
        exchange(c, &j->peers, j->send, j->recv, j->n);
        break;
    }
}

static void wait_ticket(struct comm *c, int ticket)
{
    if (ticket < 0)
        return;
    watch_wait("a collective that was started");
    progress_wait(thread_of(c), ticket);
    watch_go();
}

/* Runs a job, on the thread once there is one, so that all are run in order. */
static void submit(struct comm *c, const struct progress_job *j)
{
    struct mpi *m = c->impl;
    if (m->started && m->serialized && !m->thread)
        m->thread = progress_open(run_job, c);
    if (!m->thread) {
        run_job(c, j);
        return;
    }
    m->ticket = progress_add(m->thread, j);
    if (!m->started)
        wait_ticket(c, m->ticket);
}

static void start(struct comm *c)
{
    struct mpi *m = c->impl;
    m->started = true;
    m->ticket = -1;
    if (!m->serialized && !m->warned && c->rank == 0)
        ap_warn("MPI offers no MPI_THREAD_SERIALIZED: collectives do not overlap");
    m->warned = true;
}

static int event(struct comm *c)
{
    struct mpi *m = c->impl;
    const int ticket = m->started ? m->ticket : -1;
    m->started = false;
    return ticket;
}

static void submit_all_reduce(struct comm *c, int g, void *buf, int64_t n,
                              enum ap_dtype dtype, enum ap_red red)
{
    submit(c,
           &(struct progress_job){PROGRESS_ALL_REDUCE, g, {0}, buf, buf, n, dtype, red});
}

static void submit_reduce_scatter(struct comm *c, int g, const void *send, void *recv,
                                  int64_t n, enum ap_dtype dtype, enum ap_red red)
{
    submit(c, &(struct progress_job){
                  PROGRESS_REDUCE_SCATTER, g, {0}, send, recv, n, dtype, red});
}

static void submit_all_gather(struct comm *c, int g, const void *send, void *recv,
                              int64_t bytes)
{
    submit(c, &(struct progress_job){.op = PROGRESS_ALL_GATHER,
                                     .group = g,
                                     .send = send,
                                     .recv = recv,
                                     .n = bytes});
}

static void submit_all_to_all(struct comm *c, int g, const void *send, void *recv,
                              int64_t bytes)
{
    submit(c, &(struct progress_job){.op = PROGRESS_ALL_TO_ALL,
                                     .group = g,
                                     .send = send,
                                     .recv = recv,
                                     .n = bytes});
}

static void submit_exchange(struct comm *c, const struct comm_peers *peers,
                            const void *send, void *recv, int64_t bytes)
{
    submit(c, &(struct progress_job){.op = PROGRESS_EXCHANGE,
                                     .peers = *peers,
                                     .send = send,
                                     .recv = recv,
                                     .n = bytes});
}

static void broadcast(struct comm *c, void *buf, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const int n = chunk(bytes - at);
        CALL(c, MPI_Bcast((char *)buf + at, n, MPI_BYTE, 0, job_of(c)), "MPI_Bcast");
    }
}

static void to_root(struct comm *c, int from, void *buf, int64_t bytes)
{
    if (from == 0)
        return;
    for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const int n = chunk(bytes - at);
        if (c->rank == from)
            CALL(c, MPI_Send((char *)buf + at, n, MPI_BYTE, 0, 2, job_of(c)), "MPI_Send");
        else
            CALL(c,
                 MPI_Recv((char *)buf + at, n, MPI_BYTE, from, 2, job_of(c),
                          MPI_STATUS_IGNORE),
                 "MPI_Recv");
    }
}

static int64_t max(struct comm *c, int64_t v)
{
    int64_t most = v;
    CALL(c, MPI_Allreduce(&v, &most, 1, MPI_INT64_T, MPI_MAX, job_of(c)),
         "MPI_Allreduce");
    return most;
}

static int64_t memory(const struct comm *c)
{
    const struct mpi *m = c->impl;
    int64_t bytes = m->blocks ? 2 * m->bytes : 0;
    for (int i = 0; i < m->n_sends; i++)
        bytes += m->sends[i].bytes;
    return bytes;
}

static double max_sec(struct comm *c, double v)
{
    double most = v;
    CALL(c, MPI_Allreduce(&v, &most, 1, MPI_DOUBLE, MPI_MAX, job_of(c)), "MPI_Allreduce");
    return most;
}

static void close_mpi(struct comm *c)
{
    struct mpi *m = c->impl;
    progress_close(m->thread);
    m->thread = NULL;
    for (int i = 0; i < m->n_groups; i++)
        MPI_Comm_free(&m->groups[i].comm);
    const bool job = m->all == MPI_COMM_WORLD;
    if (!job)
        MPI_Comm_free(&m->all);
    for (int i = 0; i < m->n_sends; i++)
        free(m->sends[i].copy);
    free(m->sends);
    free(m->blocks);
    free(m->sum);
    free(m);
    if (!job)
        return;
    watch_leave();
    MPI_Finalize();
}

/* Memory for a message: the smallest that is large enough and whose own has arrived. */
static struct message *message_room(struct comm *c, int64_t bytes)
{
    struct mpi *m = c->impl;
    struct message *best = NULL;
    for (int i = 0; i < m->n_sends; i++) {
        struct message *s = &m->sends[i];
        int done = s->request == MPI_REQUEST_NULL;
        if (!done)
            check(c, MPI_Test(&s->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (done && s->bytes >= bytes && (!best || s->bytes < best->bytes))
            best = s;
    }
    if (best)
        return best;
    AP_ROOM(m->sends, m->n_sends, m->cap_sends);
    best = &m->sends[m->n_sends++];
    *best =
        (struct message){MPI_REQUEST_NULL, ap_xrealloc(NULL, (size_t)bytes + 1), bytes};
    return best;
}

static void send(struct comm *c, int to, int tag, const void *buf, int64_t bytes)
{
    struct mpi *m = c->impl;
    for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const int n = chunk(bytes - at);
        struct message *s = message_room(c, n);
        memcpy(s->copy, (const char *)buf + at, (size_t)n);
        CALL(c, MPI_Isend(s->copy, n, MPI_BYTE, to, tag, m->all, &s->request),
             "MPI_Isend");
    }
}

static void receive(struct comm *c, int from, int tag, void *buf, int64_t bytes)
{
    struct mpi *m = c->impl;
    for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const int n = chunk(bytes - at);
        CALL(
            c,
            MPI_Recv((char *)buf + at, n, MPI_BYTE, from, tag, m->all, MPI_STATUS_IGNORE),
            "MPI_Recv");
    }
}

static void settle(struct comm *c)
{
    struct mpi *m = c->impl;
    for (int i = 0; i < m->n_sends; i++)
        CALL(c, MPI_Wait(&m->sends[i].request, MPI_STATUS_IGNORE), "MPI_Wait");
}

static bool split(struct comm *c, const int *ranks, int n, struct comm *out)
{
    const struct mpi *m = c->impl;
    struct mpi *sub = ap_xrealloc(NULL, sizeof *sub);
    int place = 0;
    while (place < n && ranks[place] != c->rank)
        place++;
    *sub = (struct mpi){.job_rank = m->job_rank, .serialized = m->serialized};
    CALL(c, MPI_Comm_split(m->all, place < n ? 0 : MPI_UNDEFINED, place, &sub->all),
         "MPI_Comm_split");
    if (place == n) {
        free(sub);
        return false;
    }
    MPI_Comm_set_errhandler(sub->all, MPI_ERRORS_RETURN);
    *out = *c;
    out->impl = sub;
    out->rank = place;
    out->size = n;
    return true;
}

void comm_mpi_open(struct comm *c)
{
    struct mpi *m = ap_xrealloc(NULL, sizeof *m);
    *m = (struct mpi){.all = MPI_COMM_WORLD};
    *c = (struct comm){.name = "mpi",
                       .impl = m,
                       .group = group,
                       .reserve = reserve,
                       .all_reduce = submit_all_reduce,
                       .reduce_scatter = submit_reduce_scatter,
                       .all_gather = submit_all_gather,
                       .all_to_all = submit_all_to_all,
                       .exchange = submit_exchange,
                       .start = start,
                       .event = event,
                       .wait = wait_ticket,
                       .broadcast = broadcast,
                       .to_root = to_root,
                       .max = max,
                       .memory = memory,
                       .max_sec = max_sec,
                       .split = split,
                       .send = send,
                       .receive = receive,
                       .settle = settle,
                       .close = close_mpi};
    int provided; /* the watchdog's thread calls nothing of MPI */
    watch_wait("MPI_Init");
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    watch_go();
    m->serialized = provided >= MPI_THREAD_SERIALIZED;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &c->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c->size);
    m->job_rank = c->rank;
}
