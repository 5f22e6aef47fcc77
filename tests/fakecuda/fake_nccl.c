/*
 * NCCL over MPI. Communicators are made non-blocking, as a program that wants a time-out
 * asks for; a group becomes one operation of its stream. Ranks compare what they are
 * about to run before each collective, so that ranks that disagree are found.
 */
#include "fake.h"

#include "base/float16.h"

#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TASKS 256

enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };
static const char *const kind_names[] = {"ncclAllReduce", "ncclAllGather",
                                         "ncclReduceScatter", "ncclSend", "ncclRecv"};

struct ncclComm {
    MPI_Comm mpi;
    int rank, n;
    bool blocking;
    ncclResult_t state;
    int polls; /* since it became "in progress" */
    /* what is in progress: the start of itself, or of a child */
    MPI_Comm from;
    struct ncclComm *child; /* NULL: this rank has no part in it */
    int color, key;
    bool splits;
    char error[128];
};

struct task {
    enum kind kind;
    struct ncclComm *comm;
    const void *send;
    void *recv;
    int64_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer;
    cudaStream_t stream;
};

static struct {
    int depth, n;
    struct task task[MAX_TASKS];
} group;

const char *ncclGetErrorString(ncclResult_t rc)
{
    return rc == ncclSuccess       ? "no error"
           : rc == ncclInProgress  ? "NCCL operation in progress"
           : rc == ncclRemoteError ? "remote process exited or there was a network error"
           : rc == ncclInvalidArgument ? "invalid argument"
           : rc == ncclInvalidUsage    ? "invalid usage"
                                       : "internal error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? comm->error : "";
}

/* ---- communicators ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "fake %ld", (long)getpid());
    return ncclSuccess;
}

/* Two ranks of a communicator must not have one device. */
static ncclResult_t check_devices(struct ncclComm *c)
{
    enum { BYTES = 320 };
    char mine[BYTES] = {0};
    char *all = fake_alloc((size_t)BYTES * (size_t)c->n);
    int device;
    ncclResult_t rc = ncclSuccess;
    gethostname(mine, 256);
    cudaGetDevice(&device);
    cudaDeviceGetPCIBusId(mine + 256, BYTES - 256, device);
    MPI_Allgather(mine, BYTES, MPI_BYTE, all, BYTES, MPI_BYTE, c->mpi);
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < i; k++)
            if (!memcmp(all + i * BYTES, all + k * BYTES, BYTES)) {
                snprintf(
                    c->error, sizeof c->error,
                    "Duplicate GPU detected : rank %d and rank %d both on CUDA device "
                    "%s",
                    k, i, all + i * BYTES + 256);
                rc = ncclInvalidUsage;
            }
    free(all);
    return rc;
}

/* Does what is in progress; all ranks of `from` do at once. */
static void proceed(struct ncclComm *c)
{
    struct ncclComm *made = c->splits ? c->child : c;
    const int color =
        c->splits && c->color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : c->color;
    MPI_Comm mpi;
    MPI_Comm_split(c->from, color, c->key, &mpi);
    c->state = ncclSuccess;
    c->splits = false;
    if (!made)
        return;
    made->mpi = mpi;
    MPI_Comm_rank(mpi, &made->rank);
    const int wanted = made->n;
    MPI_Comm_size(mpi, &made->n);
    if (wanted && wanted != made->n)
        fake_fail("ncclCommInitRankConfig: %d ranks, and %d have come", wanted, made->n);
    made->state = check_devices(made);
}

static ncclResult_t begin(struct ncclComm *c)
{
    c->state = ncclInProgress;
    c->polls = 0;
    if (!c->blocking)
        return ncclInProgress;
    proceed(c);
    return c->state;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    struct ncclComm *c = fake_alloc(sizeof *c);
    if (strncmp(id.internal, "fake ", 5))
        return ncclInvalidArgument;
    *c = (struct ncclComm){.n = n,
                           .rank = rank,
                           .from = MPI_COMM_WORLD,
                           .key = rank,
                           .blocking = !config || config->blocking != 0};
    *out = c;
    int is_up = 0;
    MPI_Initialized(&is_up);
    if (!is_up) { /* a job of one rank, without MPI */
        if (n != 1)
            fake_fail("ncclCommInitRankConfig: %d ranks without MPI", n);
        MPI_Init(NULL, NULL);
        c->from = MPI_COMM_SELF;
    }
    return begin(c);
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    if (c->state != ncclSuccess)
        return ncclInvalidUsage;
    struct ncclComm *child = NULL;
    if (color != NCCL_SPLIT_NOCOLOR) {
        child = fake_alloc(sizeof *child);
        child->blocking = config ? config->blocking != 0 : c->blocking;
        child->state = ncclInProgress;
    }
    *out = child;
    c->child = child;
    c->color = color;
    c->key = key;
    c->from = c->mpi;
    c->splits = true;
    return begin(c);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    static bool never;
    if (c->state == ncclInProgress && (c->splits || !c->mpi)) {
        never |= c->polls == 0 && fake_fault("nccl-init");
        if (c->polls++ > 0 && !never) /* not at once: the program has to ask again */
            proceed(c);
        else if (never)
            usleep(1000);
    }
    *state = c->state;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    int is_down = 0;
    MPI_Finalized(&is_down);
    if (c->mpi && !is_down)
        MPI_Comm_free(&c->mpi);
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    fake_drain_all();
    return ncclCommAbort(c);
}

/* ---- what a collective does ---- */

static int size_of(ncclDataType_t t)
{
    switch ((int)t) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    }
    return 8;
}

#define COMBINE(T, a, b, op)                      \
    ((op) == ncclSum    ? (T)((a) + (b))          \
     : (op) == ncclProd ? (T)((a) * (b))          \
     : (op) == ncclMax  ? ((a) > (b) ? (a) : (b)) \
                        : ((a) < (b) ? (a) : (b)))
#define LOOP(T)                     \
    for (int64_t i = 0; i < n; i++) \
    ((T *)acc)[i] = (T)COMBINE(T, ((T *)acc)[i], ((const T *)x)[i], op)
#define NARROW(T, load, store)                                            \
    for (int64_t i = 0; i < n; i++) {                                     \
        const float a = load(((T *)acc)[i]), b = load(((const T *)x)[i]); \
        ((T *)acc)[i] = store(COMBINE(float, a, b, op));                  \
    }

/* acc = acc (op) x; narrow floats are rounded after every addition, as by NCCL. */
static void combine(void *acc, const void *x, int64_t n, ncclDataType_t t, ncclRedOp_t op)
{
    switch ((int)t) {
    case ncclInt8:
        LOOP(int8_t);
        break;
    case ncclUint8:
        LOOP(uint8_t);
        break;
    case ncclInt32: /* wraps; order is kept by max and min of the signed type below */
        if (op == ncclSum || op == ncclProd)
            LOOP(uint32_t);
        else
            LOOP(int32_t);
        break;
    case ncclUint32:
        LOOP(uint32_t);
        break;
    case ncclInt64:
        if (op == ncclSum || op == ncclProd)
            LOOP(uint64_t);
        else
            LOOP(int64_t);
        break;
    case ncclUint64:
        LOOP(uint64_t);
        break;
    case ncclFloat32:
        LOOP(float);
        break;
    case ncclFloat64:
        LOOP(double);
        break;
    case ncclFloat16:
        NARROW(uint16_t, ap_f16_to_f32, ap_f32_to_f16)
        break;
    case ncclBfloat16:
        NARROW(uint16_t, ap_bf16_to_f32, ap_f32_to_bf16)
        break;
    case ncclFloat8e4m3:
        NARROW(uint8_t, ap_f8e4m3fn_to_f32, ap_f32_to_f8e4m3fn)
        break;
    case ncclFloat8e5m2:
        NARROW(uint8_t, ap_f8e5m2_to_f32, ap_f32_to_f8e5m2)
        break;
    }
}

static void check_rc(int rc, const char *what)
{
    if (rc != MPI_SUCCESS)
        fake_fail("%s: MPI error %d", what, rc);
}

/* All ranks are about to do the same. */
static void check_agreement(const struct task *t)
{
    const struct ncclComm *c = t->comm;
    const int64_t mine[4] = {t->kind, t->count, t->type, t->op};
    int64_t *all = fake_alloc(sizeof mine * (size_t)c->n);
    check_rc(MPI_Allgather(mine, 4, MPI_INT64_T, all, 4, MPI_INT64_T, c->mpi), "NCCL");
    for (int i = 0; i < c->n; i++)
        if (memcmp(all + 4 * i, mine, sizeof mine))
            fake_fail("%s of %lld elements: rank %d of the communicator runs %s of %lld",
                      kind_names[t->kind], (long long)t->count, i, kind_names[all[4 * i]],
                      (long long)all[4 * i + 1]);
    free(all);
}

static void task_run(const struct task *t)
{
    const struct ncclComm *c = t->comm;
    const int64_t bytes = t->count * size_of(t->type);
    const int64_t blocks = t->kind == REDUCE_SCATTER ? c->n : 1;
    char *all = fake_alloc((size_t)(blocks * bytes * c->n) + 1);
    check_agreement(t);
    check_rc(MPI_Allgather(t->send, (int)(blocks * bytes), MPI_BYTE, all,
                           (int)(blocks * bytes), MPI_BYTE, c->mpi),
             kind_names[t->kind]);
    if (t->kind == ALL_GATHER) {
        memcpy(t->recv, all, (size_t)(bytes * c->n));
    } else {
        const int64_t first = t->kind == REDUCE_SCATTER ? c->rank * bytes : 0;
        memcpy(t->recv, all + first, (size_t)bytes);
        for (int q = 1; q < c->n; q++)
            combine(t->recv, all + q * blocks * bytes + first, t->count, t->type, t->op);
    }
    free(all);
}

struct batch {
    int n;
    struct task task[];
};

static void batch_run(void *args)
{
    const struct batch *b = args;
    MPI_Request request[MAX_TASKS];
    int n = 0;
    if (fake_fault("nccl-error")) {
        b->task[0].comm->state = ncclRemoteError;
        fake_stuck = true;
        return;
    }
    for (int i = 0; i < b->n; i++) {
        const struct task *t = &b->task[i];
        const int bytes = (int)(t->count * size_of(t->type));
        if (t->kind == SEND)
            check_rc(MPI_Isend(t->send, bytes, MPI_BYTE, t->peer, 7, t->comm->mpi,
                               &request[n++]),
                     "ncclSend");
        else if (t->kind == RECV)
            check_rc(MPI_Irecv(t->recv, bytes, MPI_BYTE, t->peer, 7, t->comm->mpi,
                               &request[n++]),
                     "ncclRecv");
        else
            task_run(t);
    }
    check_rc(MPI_Waitall(n, request, MPI_STATUSES_IGNORE), "ncclGroupEnd");
}

/* ---- calls ---- */

/* nccl.h declares these two without (void) */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group.depth < 1)
        return ncclInvalidUsage;
    if (--group.depth > 0 || group.n == 0)
        return ncclSuccess;
    const size_t bytes = sizeof(struct batch) + sizeof(struct task) * (size_t)group.n;
    struct batch *b = fake_alloc(bytes);
    b->n = group.n;
    memcpy(b->task, group.task, sizeof(struct task) * (size_t)group.n);
    for (int i = 1; i < b->n; i++)
        if (b->task[i].stream != b->task[0].stream)
            fake_fail("ncclGroupEnd: one group on several streams is not in the fake");
    group.n = 0;
    const cudaError_t rc = fake_enqueue_collective(
        b->task[0].stream, kind_names[b->task[0].kind], batch_run, b, bytes);
    free(b);
    return rc ? ncclUnhandledCudaError : ncclSuccess;
}

static void check_memory(const struct task *t, const void *p, int64_t blocks)
{
    const size_t bytes = (size_t)(blocks * t->count * size_of(t->type));
    if (p && bytes && !fake_is_device(p, bytes))
        fake_fail("%s: %zu bytes at %p are not in one allocation of the device",
                  kind_names[t->kind], bytes, p);
}

static ncclResult_t add(struct task t, int64_t send_blocks, int64_t recv_blocks)
{
    if (!t.comm || t.comm->state != ncclSuccess || (int)t.type >= ncclNumTypes ||
        (int)t.op >= ncclAvg || t.peer < 0 || t.peer >= t.comm->n)
        return ncclInvalidArgument;
    check_memory(&t, t.send, send_blocks);
    check_memory(&t, t.recv, recv_blocks);
    if (group.n == MAX_TASKS)
        fake_fail("%d operations in one group", MAX_TASKS);
    ncclGroupStart();
    group.task[group.n++] = t;
    return ncclGroupEnd();
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    const struct task t = {ALL_REDUCE, c, send, recv, (int64_t)n, type, op, 0, s};
    return add(t, 1, 1);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t n, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t s)
{
    const struct task t = {ALL_GATHER, c, send, recv, (int64_t)n, type, ncclSum, 0, s};
    return add(t, 1, c ? c->n : 1);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t n,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                               cudaStream_t s)
{
    const struct task t = {REDUCE_SCATTER, c, send, recv, (int64_t)n, type, op, 0, s};
    return add(t, c ? c->n : 1, 1);
}

ncclResult_t ncclSend(const void *send, size_t n, ncclDataType_t type, int peer,
                      ncclComm_t c, cudaStream_t s)
{
    const struct task t = {SEND, c, send, NULL, (int64_t)n, type, ncclSum, peer, s};
    return add(t, 1, 1);
}

ncclResult_t ncclRecv(void *recv, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    const struct task t = {RECV, c, NULL, recv, (int64_t)n, type, ncclSum, peer, s};
    return add(t, 1, 1);
}
