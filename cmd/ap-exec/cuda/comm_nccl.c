/*
 * Collectives over NCCL, on device memory and a stream of their own.
 *
 * The job's communicator (MPI, or the one of a single rank) stays in use: it steers the
 * job, and carries messages between stages, which are packed on the host, and collectives
 * for which NCCL has no function. It also makes NCCL's communicators: the one of all
 * ranks with an id that rank 0 sends, and those of groups by ncclCommSplit. They are
 * non-blocking, so that a rank that never comes is found by a time-out, and errors of
 * other ranks while the host waits (comm_nccl_sync).
 *
 * A collective is ordered by two events: it follows the earlier work of the compute
 * stream, and precedes the later work, or, between start and wait, the work after wait.
 * All collectives of a rank are on one stream, because ranks that ran the collectives of
 * two communicators in different orders would wait for each other for ever.
 *
 * NCCL refuses two ranks on one device (up to 2.29); such a job goes through the host.
 */
#include "cuda.h"
#include "base/array.h"
#include "tool/tool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Seconds that communicators may take to be made; $AP_NCCL_TIMEOUT. */
#define TIMEOUT_SEC 120
/* Queries of a stream between two checks for asynchronous errors of NCCL. */
#define QUERIES 256

struct nccl_group {
    struct comm_key key;
    ncclComm_t comm; /* NULL: one rank, or through the host */
    int size;
    int beneath; /* the same group of the communicator beneath */
};

struct nccl {
    struct comm beneath;
    ncclComm_t all; /* of c's ranks; NULL: as above */
    int n_groups;
    struct nccl_group groups[1 << AP_MAX_AXES];
    cudaEvent_t ready;
    bool started;
    int ticket;    /* of the last collective that was started, -1: it is in order */
    char *host[2]; /* pinned: what is sent, what is received */
    int64_t host_bytes[2];
};

/* State of the process that the host polls while it waits. */
static struct {
    int n_comms, cap_comms;
    ncclComm_t *comms;
    int n_events, cap_events;
    cudaEvent_t *events; /* by ticket */
    bool *busy;
    int64_t n_started;
    char last[96]; /* the last collective that was started */
} live;

static struct nccl *of(const struct comm *c)
{
    return c->impl;
}

/* ---- trouble ---- */

_Noreturn static void fail(const char *what, ncclResult_t rc, ncclComm_t comm)
{
    char text[256];
    snprintf(text, sizeof text, "%s", ncclGetLastError(comm));
    const char *why = ncclGetErrorString(rc);
    for (int i = 0; i < live.n_comms; i++)
        ncclCommAbort(live.comms[i]);
    live.n_comms = 0;
    ap_die(AP_BAD_INPUT, "rank %d: nccl: %s: %s%s%s", cuda_dev.rank, what, why,
           *text ? ": " : "", text);
}

static double now_sec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double timeout_sec(void)
{
    const char *text = getenv("AP_NCCL_TIMEOUT");
    const double v = text ? strtod(text, NULL) : 0;
    return v > 0 ? v : TIMEOUT_SEC;
}

/* Until the communicator has done what it was asked for; rc: what the call returned. */
static void settle_nccl(ncclComm_t comm, ncclResult_t rc, const char *what)
{
    const double end = now_sec() + timeout_sec();
    if (rc == ncclInProgress)
        rc = ncclSuccess;
    while (rc == ncclSuccess) {
        ncclResult_t state = ncclSuccess;
        rc = ncclCommGetAsyncError(comm, &state);
        if (rc == ncclSuccess && state == ncclSuccess)
            return;
        if (rc == ncclSuccess && state != ncclInProgress)
            rc = state;
        if (rc == ncclSuccess && now_sec() > end)
            ap_die(AP_BAD_INPUT,
                   "rank %d: nccl: %s: not done after %g s; a rank has not come "
                   "(AP_NCCL_TIMEOUT sets the seconds)",
                   cuda_dev.rank, what, timeout_sec());
        sched_yield();
    }
    fail(what, rc, comm);
}

static void look_for_errors(void)
{
    char what[160];
    for (int i = 0; i < live.n_comms; i++) {
        ncclResult_t state = ncclSuccess;
        if (ncclCommGetAsyncError(live.comms[i], &state) == ncclSuccess &&
            (state == ncclSuccess || state == ncclInProgress))
            continue;
        snprintf(what, sizeof what, "at or before %s", live.last);
        fail(what, state, live.comms[i]);
    }
}

void comm_nccl_sync(cudaStream_t stream)
{
    for (int64_t i = 1;; i++) {
        const cudaError_t rc = cudaStreamQuery(stream);
        if (rc == cudaSuccess)
            return;
        if (rc != cudaErrorNotReady)
            cuda_check(rc, "a step of the stream");
        if (i % QUERIES == 0) {
            look_for_errors();
            sched_yield();
        }
    }
}

/*
 * Before the host waits for other ranks: they may wait for collectives of this one, which
 * its device should not keep back.
 */
static struct comm *host_of(struct comm *c)
{
    const cudaError_t rc = cudaStreamQuery(cuda_dev.stream);
    if (rc != cudaErrorNotReady)
        cuda_check(rc, "a step of the stream");
    return &of(c)->beneath;
}

/* ---- order ---- */

static int new_ticket(void)
{
    for (int i = 0; i < live.n_events; i++)
        if (!live.busy[i])
            return i;
    AP_ROOM(live.events, live.n_events, live.cap_events);
    live.busy = ap_xrealloc(live.busy, sizeof *live.busy * (size_t)live.cap_events);
    live.busy[live.n_events] = false;
    cuda_check(
        cudaEventCreateWithFlags(&live.events[live.n_events], cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
    return live.n_events++;
}

static void wait_ticket(struct comm *c, int ticket)
{
    (void)c;
    if (ticket < 0)
        return;
    cuda_check(cudaStreamWaitEvent(cuda_dev.stream, live.events[ticket], 0),
               "cudaStreamWaitEvent");
    live.busy[ticket] = false;
}

static void start(struct comm *c)
{
    of(c)->started = true;
    of(c)->ticket = -1;
}

static int event(struct comm *c)
{
    of(c)->started = false;
    return of(c)->ticket;
}

/* The communication stream comes after the compute stream; then a group is open. */
static void begin(struct nccl *n, const char *what, int64_t bytes, int ranks)
{
    snprintf(live.last, sizeof live.last,
             "%s of %lld bytes over %d ranks, number %lld of this run", what,
             (long long)bytes, ranks, (long long)++live.n_started);
    cuda_check(cudaEventRecord(n->ready, cuda_dev.stream), "cudaEventRecord");
    cuda_check(cudaStreamWaitEvent(cuda_dev.comm, n->ready, 0), "cudaStreamWaitEvent");
    ncclGroupStart();
}

/* rc: of the calls since begin. */
static void end(struct comm *c, ncclComm_t comm, ncclResult_t rc)
{
    struct nccl *n = of(c);
    const ncclResult_t closed = ncclGroupEnd();
    rc = rc == ncclSuccess || rc == ncclInProgress ? closed : rc;
    settle_nccl(comm, rc, live.last);
    const int ticket = new_ticket();
    live.busy[ticket] = true;
    cuda_check(cudaEventRecord(live.events[ticket], cuda_dev.comm), "cudaEventRecord");
    if (n->started)
        n->ticket = ticket;
    else
        wait_ticket(c, ticket);
}

/* ---- through the host ---- */

/* Room for what is sent (0) or received (1). */
static char *room(struct nccl *n, int which, int64_t bytes)
{
    if (bytes > n->host_bytes[which]) {
        void *p = NULL;
        cuda_check(cudaFreeHost(n->host[which]), "cudaFreeHost");
        cuda_check(cudaMallocHost(&p, (size_t)bytes), "cudaMallocHost");
        n->host[which] = p;
        n->host_bytes[which] = bytes;
    }
    return n->host[which];
}

static char *to_host(struct nccl *n, const void *p, int64_t bytes)
{
    char *host = room(n, 0, bytes);
    cuda_dev.no_capture = true; /* it waits */
    cuda_read(host, p, bytes);
    return host;
}

static void copy(const void *send, void *recv, int64_t bytes)
{
    if (send != recv)
        cuda_copy(recv, send, bytes);
}

/* ---- collectives ---- */

static void add_comm(ncclComm_t comm)
{
    AP_ROOM(live.comms, live.n_comms, live.cap_comms);
    live.comms[live.n_comms++] = comm;
}

/* The communicator of this rank's group, for groups numbered by color; NULL: none. */
static ncclComm_t split_nccl(ncclComm_t all, int color, int key)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    config.blocking = 0;
    config.splitShare = 1;
    const ncclResult_t rc = ncclCommSplit(all, color, key, &comm, &config);
    settle_nccl(all, rc, "ncclCommSplit");
    if (comm) {
        settle_nccl(comm, ncclSuccess, "ncclCommSplit");
        add_comm(comm);
    }
    return comm;
}

static int group(struct comm *c, const struct ap_mesh *mesh, unsigned axes)
{
    struct nccl *n = of(c);
    const struct comm_key key = {axes, *mesh};
    for (int i = 0; i < n->n_groups; i++)
        if (comm_key_same(&n->groups[i].key, &key))
            return i;
    struct nccl_group *g = &n->groups[n->n_groups];
    int color, place;
    comm_key_split(&key, c->rank, &color, &place);
    *g = (struct nccl_group){.key = key, .size = 1};
    for (int a = 0; a < mesh->n_axes; a++)
        g->size *= axes >> a & 1 ? (int)mesh->size[a] : 1;
    g->beneath = n->beneath.group(&n->beneath, mesh, axes);
    if (n->all && g->size > 1)
        g->comm = split_nccl(n->all, color, place);
    return n->n_groups++;
}

static void reserve(struct comm *c, int64_t bytes)
{
    of(c)->beneath.reserve(&of(c)->beneath, bytes);
}

/* NCCL's type and operation for a sum of n elements, or false: it has none that rounds
 * once and wraps as the program says. */
static bool find_type(enum ap_dtype dtype, enum ap_red red, int64_t *n,
                      ncclDataType_t *type, ncclRedOp_t *op)
{
    static const int types[AP_N_DTYPES] = {
        [AP_PRED] = 1 + ncclUint8,    [AP_S8] = 1 + ncclInt8,
        [AP_U8] = 1 + ncclUint8,      [AP_S32] = 1 + ncclInt32,
        [AP_U32] = 1 + ncclUint32,    [AP_S64] = 1 + ncclInt64,
        [AP_U64] = 1 + ncclUint64,    [AP_F16] = 1 + ncclFloat16,
        [AP_BF16] = 1 + ncclBfloat16, [AP_F32] = 1 + ncclFloat32,
        [AP_F64] = 1 + ncclFloat64,   [AP_C64] = 1 + ncclFloat32};
    static const int ops[AP_N_REDS] = {[AP_RED_SUM] = 1 + ncclSum,
                                       [AP_RED_PROD] = 1 + ncclProd,
                                       [AP_RED_MAX] = 1 + ncclMax,
                                       [AP_RED_MIN] = 1 + ncclMin};
    int what = ops[red];
    if (dtype == AP_PRED)
        what = red == AP_RED_AND || red == AP_RED_MIN || red == AP_RED_PROD ? 1 + ncclMin
                                                                            : 1 + ncclMax;
    if (!types[dtype] || !what || (dtype == AP_C64 && red != AP_RED_SUM))
        return false;
    *n *= dtype == AP_C64 ? 2 : 1;
    *type = (ncclDataType_t)(types[dtype] - 1);
    *op = (ncclRedOp_t)(what - 1);
    return true;
}

/* The calls of a collective of count elements. */
static ncclResult_t call_nccl(const struct comm_job *job, const void *send, void *recv,
                              const struct nccl_group *g, int64_t count,
                              ncclDataType_t type, ncclRedOp_t op)
{
    const ncclComm_t comm = g->comm;
    const size_t n = (size_t)count;
    ncclResult_t rc = ncclSuccess;

    switch ((int)job->op) {
    case AP_OP_ALL_REDUCE:
        return ncclAllReduce(send, recv, n, type, op, comm, cuda_dev.comm);
    case AP_OP_REDUCE_SCATTER:
        return ncclReduceScatter(send, recv, n, type, op, comm, cuda_dev.comm);
    case AP_OP_ALL_GATHER:
        return ncclAllGather(send, recv, n, type, comm, cuda_dev.comm);
    case AP_OP_ALL_TO_ALL: /* ncclAlltoAll came with 2.28 */
        for (int q = 0; q < g->size && rc == ncclSuccess; q++) {
            rc =
                ncclSend((const char *)send + q * count, n, type, q, comm, cuda_dev.comm);
            if (rc == ncclSuccess)
                rc = ncclRecv((char *)recv + q * count, n, type, q, comm, cuda_dev.comm);
        }
        return rc;
    default:
        rc = ncclSend(send, n, type, job->peers.to, comm, cuda_dev.comm);
        return rc == ncclSuccess
                   ? ncclRecv(recv, n, type, job->peers.from, comm, cuda_dev.comm)
                   : rc;
    }
}

/* By the communicator beneath, on host memory; group: there. */
static void collect_on_host(struct nccl *n, const struct comm_job *job, int group,
                            int ranks, const void *send, void *recv)
{
    const bool cuts = job->op == AP_OP_REDUCE_SCATTER || job->op == AP_OP_ALL_TO_ALL;
    const bool joins = job->op == AP_OP_ALL_GATHER || job->op == AP_OP_ALL_TO_ALL;
    const int64_t bytes = comm_block_bytes(job), back = joins ? bytes * ranks : bytes;
    struct comm_job host = *job;
    char *from = to_host(n, send, cuts ? bytes * ranks : bytes);
    char *to = job->op == AP_OP_ALL_REDUCE ? from : room(n, 1, back);

    host.group = group;
    n->beneath.collect(&n->beneath, &host, from, to);
    cuda_write(recv, to, back);
}

static void collect(struct comm *c, const struct comm_job *job, const void *send,
                    void *recv)
{
    struct nccl *n = of(c);
    const bool permutes = job->op == AP_OP_COLLECTIVE_PERMUTE;
    const int64_t bytes = comm_block_bytes(job);
    struct nccl_group g = {.size = 2, .comm = n->all};
    ncclDataType_t type = ncclUint8;
    ncclRedOp_t op = ncclSum;
    int64_t count = job->n;

    if (!permutes)
        g = n->groups[job->group];
    if ((permutes ? job->peers.to == c->rank : g.size == 1) || bytes == 0) {
        copy(send, recv, bytes);
    } else if (g.comm &&
               (!comm_sums(job) || find_type(job->dtype, job->red, &count, &type, &op))) {
        begin(n, permutes ? "exchange" : ap_ops[job->op].name, bytes, g.size);
        end(c, g.comm, call_nccl(job, send, recv, &g, count, type, op));
    } else {
        collect_on_host(n, job, g.beneath, g.size, send, recv);
    }
}

/* ---- the job, and messages between stages: on host memory ---- */

static void send(struct comm *c, int to, int tag, const void *buf, int64_t bytes)
{
    of(c)->beneath.send(&of(c)->beneath, to, tag, buf, bytes);
}

static int expect(struct comm *c, int from, int tag, void *buf, int64_t bytes)
{
    return of(c)->beneath.expect(&of(c)->beneath, from, tag, buf, bytes);
}

static void await(struct comm *c, int message)
{
    struct comm *host = host_of(c);
    host->await(host, message);
}

static void progress(struct comm *c)
{
    of(c)->beneath.progress(&of(c)->beneath);
}

static void settle(struct comm *c)
{
    struct comm *host = host_of(c);
    host->settle(host);
}

static void broadcast(struct comm *c, void *buf, int64_t bytes)
{
    struct comm *host = host_of(c);
    host->broadcast(host, buf, bytes);
}

static void to_root(struct comm *c, int from, void *buf, int64_t bytes)
{
    struct comm *host = host_of(c);
    host->to_root(host, from, buf, bytes);
}

static int64_t max(struct comm *c, int64_t v)
{
    struct comm *host = host_of(c);
    return host->max(host, v);
}

static int64_t memory(const struct comm *c)
{
    const struct comm *host = &((const struct nccl *)c->impl)->beneath;
    return host->memory(host);
}

static double max_sec(struct comm *c, double v)
{
    struct comm *host = host_of(c);
    return host->max_sec(host, v);
}

static void drop_comm(ncclComm_t comm)
{
    for (int i = 0; i < live.n_comms; i++)
        if (live.comms[i] == comm)
            live.comms[i--] = live.comms[--live.n_comms];
    if (comm)
        ncclCommDestroy(comm);
}

static void close_nccl(struct comm *c)
{
    struct nccl *n = of(c);
    comm_nccl_sync(cuda_dev.stream);
    for (int i = 0; i < n->n_groups; i++)
        drop_comm(n->groups[i].comm);
    drop_comm(n->all);
    cuda_check(cudaEventDestroy(n->ready), "cudaEventDestroy");
    for (int i = 0; i < 2; i++)
        cuda_check(cudaFreeHost(n->host[i]), "cudaFreeHost");
    n->beneath.close(&n->beneath);
    free(n);
}

/* c: rank and size are set. */
static void make(struct comm *c, const struct comm *beneath, ncclComm_t all);

static bool split(struct comm *c, const int *ranks, int n_ranks, struct comm *out)
{
    struct nccl *n = of(c);
    struct comm beneath;
    ncclComm_t all = NULL;
    int place = 0;
    while (place < n_ranks && ranks[place] != c->rank)
        place++;
    const bool is_in = place < n_ranks;
    n->beneath.split(&n->beneath, ranks, n_ranks, &beneath);
    if (n->all && n_ranks > 1)
        all = split_nccl(n->all, is_in ? 0 : NCCL_SPLIT_NOCOLOR, place);
    if (is_in)
        make(out, &beneath, all);
    return is_in;
}

static void make(struct comm *c, const struct comm *beneath, ncclComm_t all)
{
    struct nccl *n = ap_xrealloc(NULL, sizeof *n);
    *n = (struct nccl){.beneath = *beneath, .all = all, .ticket = -1};
    cuda_check(cudaEventCreateWithFlags(&n->ready, cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
    *c = (struct comm){.name = all || beneath->size == 1 ? "nccl" : beneath->name,
                       .rank = beneath->rank,
                       .size = beneath->size,
                       .impl = n,
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
                       .close = close_nccl};
}

/* ---- opening ---- */

/* Bytes of "host bus", by which devices are told apart. */
#define NAME_BYTES 320

/* Whether two ranks of the job have one device. */
static bool share_device(struct comm *c)
{
    bool share = false;
    char *names = ap_xrealloc(NULL, (size_t)NAME_BYTES * (size_t)c->size);
    memset(names, 0, (size_t)NAME_BYTES * (size_t)c->size);
    char *mine = names + (ptrdiff_t)NAME_BYTES * c->rank;
    gethostname(mine, 256);
    snprintf(mine + 256, NAME_BYTES - 256, "%s", cuda_dev.bus_id);
    for (int k = 0; k < c->size; k++)
        if (c->rank == k || c->rank == 0)
            c->to_root(c, k, names + (ptrdiff_t)NAME_BYTES * k, NAME_BYTES);
    c->broadcast(c, names, (int64_t)NAME_BYTES * c->size);
    for (int i = 0; i < c->size; i++)
        for (int k = 0; k < i; k++)
            share |= !memcmp(names + (ptrdiff_t)NAME_BYTES * i,
                             names + (ptrdiff_t)NAME_BYTES * k, NAME_BYTES);
    free(names);
    return share;
}

int comm_nccl_open(struct comm *c, struct ap_err *err)
{
    const struct comm beneath = *c;
    ncclComm_t all = NULL;
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const bool share = share_device(c);
    if (share && c->rank == 0)
        ap_say(
            "several ranks have one device, which NCCL refuses: collectives go through "
            "the host");
    cuda_dev.no_capture |= share;
    if (c->size > 1 && !share) {
        int64_t rc = c->rank == 0 ? (int64_t)ncclGetUniqueId(&id) : 0;
        rc = c->max(c, rc);
        if (rc)
            return ap_err_set(err, "nccl: ncclGetUniqueId: %s",
                              ncclGetErrorString((ncclResult_t)rc));
        c->broadcast(c, &id, sizeof id);
        config.blocking = 0;
        const ncclResult_t begun =
            ncclCommInitRankConfig(&all, c->size, id, c->rank, &config);
        settle_nccl(all, begun, "ncclCommInitRankConfig");
        add_comm(all);
    }
    make(c, &beneath, all);
    return 0;
}
