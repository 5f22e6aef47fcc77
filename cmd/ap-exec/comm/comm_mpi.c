/*
 * Collectives over MPI. Sums are made here, in the order of ranks, so that all ranks hold
 * the same bits whatever algorithm MPI would choose: an all-reduce is an all-to-all of
 * blocks, a local sum and an all-gather (which is also as fast as MPI's own, and half the
 * bytes in bf16); small ones gather everything and add it up on every rank.
 *
 * Those that are started ahead of their wait, and messages between stages, are
 * nonblocking, and move on when the executor looks after them between two kernels
 * (flight.h, progress). All calls of MPI are the main thread's.
 */
#include "base/array.h"
#include "comm/comm.h"
#include "comm/flight.h"
#include "comm/watch.h"
#include "tool/tool.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a tensor that is summed at a time: it bounds the memory for other ranks'
 * blocks, which no buffer plan knows, and keeps them in the cache. */
#define PIECE_BYTES (4 << 20)
/* Between two looks at what is under way, each of which is a system call or more, so that
 * kernels of some microseconds do not wait for them; scripts/bench/overlap-gain takes as
 * long with 0 and with 2 ms. */
#define LOOK_SEC 1e-4
/* Bytes of a tensor up to which an all-reduce gathers everything and adds up on every
 * rank: one latency instead of two. */
#define SMALL_BYTES 2048
/* Bytes of one MPI call at most: MPI counts in int. */
#define CHUNK_BYTES (1 << 30)

struct mpi_group {
    struct comm_key key;
    MPI_Comm comm, second; /* second: what follows a sum that was started (flight.h) */
    int size;
};

/* A message under way, and memory that later ones take again. */
struct message {
    MPI_Request request; /* MPI_REQUEST_NULL: it has arrived */
    char *copy;
    int64_t bytes; /* of the memory */
};

/* A message that is awaited, in parts of CHUNK_BYTES. */
struct awaited {
    bool taken; /* by somebody who has not waited for it yet */
    int n, cap;
    MPI_Request *request;
};

struct mpi {
    MPI_Comm all; /* ranks of the job, or those that split picked */
    int job_rank;
    int n_sends, cap_sends;
    struct message *sends;
    int n_awaited, cap_awaited;
    struct awaited *awaited;
    int n_groups;
    struct mpi_group groups[1 << AP_MAX_AXES];
    struct flights *flights; /* collectives under way; NULL: none was started */
    bool started;            /* the next collective may return before it has run */
    int ticket;              /* of the last one that was */
    struct mpi *root;        /* of the job, which has the messages between stages */
    double looked;           /* there: when progress last looked */
    struct flights *flying;  /* there: to which a collective was added last, or NULL */
    char *blocks, *sum;      /* n blocks received; a padded copy to send */
    int64_t bytes;
};

/* Ends the job if a call failed. */
static void check(struct comm *c, int rc, const char *what)
{
    if (rc == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int len = 0;
    MPI_Error_string(rc, text, &len);
    fprintf(stderr, "ap-exec: rank %d: %s: %.*s\n", ((struct mpi *)c->impl)->job_rank,
            what, len, text);
    watch_told(1);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check_wait(struct comm *c, int rc, const char *what)
{
    watch_go();
    check(c, rc, what);
}

/* A call that may wait for other ranks, as the watchdog sees it. */
#define CALL(c, call, what) (watch_wait(what), check_wait((c), (call), (what)))

/* Until all n requests are done. */
static void wait_all(struct comm *c, int n, MPI_Request *request, const char *what)
{
    const double start = ap_now_sec();
    const struct mpi *root = ((const struct mpi *)c->impl)->root;
    int done = 0;
    watch_wait(what);
    for (;;) {
        check(c, MPI_Testall(n, request, &done, MPI_STATUSES_IGNORE), what);
        if (done)
            break;
        if (root->flying)
            flights_progress(root->flying);
        flights_pause(start);
    }
    watch_go();
}

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
    CALL(c, MPI_Comm_dup(g->comm, &g->second), "MPI_Comm_dup");
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

/* Sends n bytes to one rank and receives as many from another. */
static void swap(struct comm *c, MPI_Comm comm, const struct comm_peers *peers,
                 const char *out, char *in, int n)
{
    const int tag = 1;
    CALL(c,
         MPI_Sendrecv(out, n, MPI_BYTE, peers->to, tag, in, n, MPI_BYTE, peers->from, tag,
                      comm, MPI_STATUS_IGNORE),
         "MPI_Sendrecv");
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
    if (bytes > INT_MAX / t->size)
        in_rounds(c, t, send, bytes, recv, bytes);
    else
        CALL(c, MPI_Alltoall(send, n, MPI_BYTE, recv, n, MPI_BYTE, t->comm),
             "MPI_Alltoall");
}

/* send: MPI_IN_PLACE, if the rank's block lies where it belongs. */
static void all_gather(struct comm *c, int g, const void *send, void *recv, int64_t bytes)
{
    const struct mpi_group *t = &((struct mpi *)c->impl)->groups[g];
    const int n = (int)bytes;
    if (bytes > INT_MAX / t->size)
        in_rounds(c, t, send, 0, recv, bytes);
    else
        CALL(c, MPI_Allgather(send, n, MPI_BYTE, recv, n, MPI_BYTE, t->comm),
             "MPI_Allgather");
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

/* ---- started ahead of the wait ---- */

static void start(struct comm *c)
{
    struct mpi *m = c->impl;
    m->started = true;
    m->ticket = -1;
}

static int event(struct comm *c)
{
    struct mpi *m = c->impl;
    m->started = false;
    return m->ticket;
}

static void wait_ticket(struct comm *c, int ticket)
{
    const struct mpi *m = c->impl;
    if (ticket < 0)
        return;
    const double start = ap_now_sec();
    watch_wait("a collective that was started");
    flights_progress(m->flights);
    while (!flights_take(m->flights, ticket)) {
        flights_pause(start);
        flights_progress(m->flights);
    }
    watch_go();
}

/* Whether a collective that was started can run beside kernels: one of blocks, of bytes
 * that MPI can count. */
static bool can_fly(const struct mpi *m, const struct comm_job *of)
{
    if (of->op == AP_OP_ALL_TO_ALL || of->op == AP_OP_COLLECTIVE_PERMUTE || of->n == 0)
        return false;
    return comm_block_bytes(of) <= INT_MAX / m->groups[of->group].size;
}

/* Adds a collective to what is under way. */
static void fly(struct comm *c, const struct comm_job *of, const void *send, void *recv)
{
    struct mpi *m = c->impl;
    const struct mpi_group *g = &m->groups[of->group];
    struct flight_job job = {*of, send, recv, g->comm, g->second, 0, g->size};
    MPI_Comm_rank(job.comm, &job.me);
    if (!m->flights)
        m->flights = flights_open(c, check);
    watch_wait("collectives that were started");
    m->ticket = flights_add(m->flights, &job);
    m->root->flying = m->flights;
    watch_go();
}

static void collect(struct comm *c, const struct comm_job *job, const void *send,
                    void *recv)
{
    const struct mpi *m = c->impl;
    const int g = job->group;

    if (m->started && can_fly(m, job))
        fly(c, job, send, recv);
    else if (job->op == AP_OP_ALL_TO_ALL)
        all_to_all(c, g, send, recv, job->n);
    else if (job->op == AP_OP_ALL_REDUCE)
        all_reduce(c, g, recv, job->n, job->dtype, job->red);
    else if (job->op == AP_OP_REDUCE_SCATTER)
        reduce_scatter(c, g, send, recv, job->n, job->dtype, job->red);
    else if (job->op == AP_OP_ALL_GATHER)
        all_gather(c, g, send, recv, job->n);
    else
        exchange(c, &job->peers, send, recv, job->n);
}

/* ---- the job ---- */

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
    bytes += m->flights ? flights_memory(m->flights) : 0;
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
    if (m->flights && m->root->flying == m->flights)
        m->root->flying = NULL;
    flights_close(m->flights);
    for (int i = 0; i < m->n_groups; i++) {
        MPI_Comm_free(&m->groups[i].comm);
        MPI_Comm_free(&m->groups[i].second);
    }
    const bool job = m->all == MPI_COMM_WORLD;
    if (!job)
        MPI_Comm_free(&m->all);
    for (int i = 0; i < m->n_sends; i++)
        free(m->sends[i].copy);
    free(m->sends);
    for (int i = 0; i < m->n_awaited; i++)
        free(m->awaited[i].request);
    free(m->awaited);
    free(m->blocks);
    free(m->sum);
    free(m);
    if (job)
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

static int expect(struct comm *c, int from, int tag, void *buf, int64_t bytes)
{
    struct mpi *m = c->impl;
    int i = 0;
    while (i < m->n_awaited && m->awaited[i].taken)
        i++;
    if (i == m->n_awaited) {
        AP_ROOM(m->awaited, m->n_awaited, m->cap_awaited);
        m->awaited[m->n_awaited++] = (struct awaited){0};
    }
    struct awaited *a = &m->awaited[i];
    a->taken = true;
    a->n = 0;
    for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        AP_ROOM(a->request, a->n, a->cap);
        check(c,
              MPI_Irecv((char *)buf + at, chunk(bytes - at), MPI_BYTE, from, tag, m->all,
                        &a->request[a->n++]),
              "MPI_Irecv");
    }
    return i;
}

static void await(struct comm *c, int message)
{
    const struct mpi *m = c->impl;
    struct awaited *a = &m->awaited[message];
    wait_all(c, a->n, a->request, "MPI_Recv");
    a->taken = false;
}

/* A test of one message in transit advances all messages; false if there is none. */
static bool test_message(struct comm *c, struct mpi *m)
{
    MPI_Request *r = NULL;
    int done;
    for (int i = 0; i < m->n_sends && !r; i++)
        if (m->sends[i].request != MPI_REQUEST_NULL)
            r = &m->sends[i].request;
    for (int i = 0; i < m->n_awaited && !r; i++)
        for (int k = 0; k < m->awaited[i].n && m->awaited[i].taken && !r; k++)
            if (m->awaited[i].request[k] != MPI_REQUEST_NULL)
                r = &m->awaited[i].request[k];
    if (r)
        check(c, MPI_Test(r, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return r;
}

static void progress(struct comm *c)
{
    struct mpi *m = c->impl;
    const double now = ap_now_sec();
    if (now < m->root->looked + LOOK_SEC)
        return;
    if (m->flights)
        flights_progress(m->flights);
    test_message(c, m->root);
    m->root->looked = now;
}

static void settle(struct comm *c)
{
    struct mpi *m = c->impl;
    for (int i = 0; i < m->n_sends; i++)
        wait_all(c, 1, &m->sends[i].request, "MPI_Wait");
}

static bool split(struct comm *c, const int *ranks, int n, struct comm *out)
{
    const struct mpi *m = c->impl;
    struct mpi *sub = ap_xrealloc(NULL, sizeof *sub);
    int place = 0;
    while (place < n && ranks[place] != c->rank)
        place++;
    *sub = (struct mpi){.job_rank = m->job_rank, .root = m->root};
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
    *m = (struct mpi){.all = MPI_COMM_WORLD, .root = m};
    *c = (struct comm){.name = "mpi",
                       .impl = m,
                       .group = group,
                       .reserve = reserve,
                       .collect = collect,
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
                       .expect = expect,
                       .await = await,
                       .progress = progress,
                       .settle = settle,
                       .close = close_mpi};
    int provided; /* the watchdog's thread calls nothing of MPI */
    watch_wait("MPI_Init");
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    watch_go();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &c->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c->size);
    m->job_rank = c->rank;
}
