/*
 * Streams, events and captures. Problem: a program that forgets an event works whenever
 * the device happens to be fast. Idea: run nothing when it is queued; when the host
 * waits, run one operation after the other, each time the worst of those that may run
 * now, by the seed:
 *
 *     0  of the stream that was made last (communication runs ahead of computing)
 *     1  of the stream that was made first (computing runs ahead)
 *     2  any, at random
 *     3  in the order in which they were queued
 *
 * and plus 4: only what the wait is for. A collective runs only when a wait needs it,
 * because other ranks may not have queued theirs. Each step looks at all that is queued:
 * quadratic in the operations between two waits.
 *
 * A capture records operations as nodes of a graph instead.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_LANES 64

struct fake_work {
    int refs;
    fake_run_fn *run;
    char what[64];
    char args[];
};

struct fake_op {
    int refs;
    bool done, needed, collective;
    int lane;
    int n_deps;
    struct fake_op **deps;
    struct fake_work *work; /* NULL: only an order */
    double sec;             /* when it ran */
    struct fake_op *next;   /* of those that have not run */
};

struct capture {
    struct CUgraph_st *graph;
    cudaStream_t origin;
    enum cudaStreamCaptureMode mode;
    bool spoiled;
    int refs, last_collective;
};

struct CUstream_st {
    int lane;
    bool blocking; /* ordered with the legacy stream */
    struct fake_op *last;
    struct capture *capture; /* NULL: none */
    int node;                /* the last captured, -1: none */
    struct CUstream_st *next;
};

struct CUevent_st {
    struct fake_op *op;
    struct capture *capture; /* of its last record; else NULL */
    int node;
    bool timed;
};

static struct {
    struct CUstream_st legacy, *streams;
    int n_lanes;
    struct fake_op *first, **end, *last_collective;
    struct capture *global; /* the capture that forbids unsafe calls */
    uint64_t random;
} queue = {.n_lanes = 1, .end = &queue.first};

bool fake_stuck;

/* ---- operations ---- */

void fake_work_keep(struct fake_work *w)
{
    if (w)
        w->refs++;
}

void fake_work_drop(struct fake_work *w)
{
    if (w && --w->refs == 0)
        free(w);
}

static struct fake_op *keep(struct fake_op *op)
{
    if (op)
        op->refs++;
    return op;
}

static void drop(struct fake_op *op)
{
    if (!op || --op->refs > 0)
        return;
    for (int i = 0; i < op->n_deps; i++)
        drop(op->deps[i]);
    free(op->deps);
    fake_work_drop(op->work);
    free(op);
}

static void set(struct fake_op **place, struct fake_op *op)
{
    struct fake_op *old = *place;
    *place = keep(op);
    drop(old);
}

/* Queues an operation after deps, of which some may be NULL; the queue holds it. */
static struct fake_op *add_op(int lane, struct fake_work *work, bool collective,
                              struct fake_op *const *deps, int n)
{
    struct fake_op *op = fake_alloc(sizeof *op);
    *op =
        (struct fake_op){.refs = 1, .lane = lane, .work = work, .collective = collective};
    op->deps = fake_alloc(sizeof(struct fake_op *) * (size_t)(n + 1));
    fake_work_keep(work);
    for (int i = 0; i < n; i++)
        if (deps[i] && !deps[i]->done)
            op->deps[op->n_deps++] = keep(deps[i]);
    *queue.end = op;
    queue.end = &op->next;
    return op;
}

static bool is_behind(const struct fake_op *op, const struct fake_op *other)
{
    if (!other || other->done || op == other)
        return true;
    for (int i = 0; i < op->n_deps; i++)
        if (!op->deps[i]->done && is_behind(op->deps[i], other))
            return true;
    return false;
}

/* ---- streams ---- */

static struct CUstream_st *real_stream(cudaStream_t s)
{
    return s == NULL || s == cudaStreamLegacy ? &queue.legacy : s;
}

bool fake_stream_is(cudaStream_t stream)
{
    const struct CUstream_st *s = real_stream(stream), *k = queue.streams;
    while (k && k != s)
        k = k->next;
    return s == &queue.legacy || k;
}

bool fake_capturing(cudaStream_t stream)
{
    return real_stream(stream)->capture;
}

static cudaError_t spoil(struct capture *c, cudaError_t rc)
{
    c->spoiled = true;
    return fake_error(rc);
}

bool fake_capture_forbids(void)
{
    if (queue.global)
        queue.global->spoiled = true;
    return queue.global;
}

static cudaError_t create(cudaStream_t *out, bool blocking)
{
    struct CUstream_st *s = fake_alloc(sizeof *s);
    *s = (struct CUstream_st){.lane = queue.n_lanes++ % MAX_LANES,
                              .blocking = blocking,
                              .node = -1,
                              .next = queue.streams};
    queue.streams = s;
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return create(out, !(flags & cudaStreamNonBlocking));
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return create(out, true);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)priority;
    return create(out, !(flags & cudaStreamNonBlocking));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    struct CUstream_st **p = &queue.streams;
    while (*p && *p != s)
        p = &(*p)->next;
    if (!*p)
        return fake_error(cudaErrorInvalidResourceHandle);
    *p = s->next;
    drop(s->last);
    free(s);
    return cudaSuccess;
}

/* ---- queueing ---- */

static int add_node(struct capture *c, int lane, struct fake_work *work, bool collective,
                    int a, int b)
{
    struct CUgraph_st *g = c->graph;
    struct fake_node *nodes = realloc(g->node, sizeof *nodes * (size_t)(g->n + 1));
    if (!nodes)
        fake_fail("out of host memory");
    g->node = nodes;
    struct fake_node *node = &nodes[g->n];
    *node = (struct fake_node){work, lane, collective, 0, fake_alloc(2 * sizeof(int))};
    fake_work_keep(work);
    if (a >= 0)
        node->deps[node->n_deps++] = a;
    if (b >= 0 && b != a)
        node->deps[node->n_deps++] = b;
    return g->n++;
}

static bool node_is_behind(const struct CUgraph_st *g, int node, int other)
{
    bool *seen = fake_alloc((size_t)g->n + 1);
    seen[node] = true;
    for (int i = node; i > other; i--)
        for (int k = 0; seen[i] && k < g->node[i].n_deps; k++)
            seen[g->node[i].deps[k]] = true;
    const bool is = seen[other];
    free(seen);
    return is;
}

/* Queues work on s, or captures it. */
static cudaError_t give(struct CUstream_st *s, struct fake_work *work, bool collective)
{
    if (s->capture) {
        struct capture *c = s->capture;
        if (c->spoiled)
            return fake_error(cudaErrorStreamCaptureInvalidated);
        s->node = add_node(c, s->lane, work, collective, s->node, -1);
        if (collective && c->last_collective >= 0 &&
            !node_is_behind(c->graph, s->node, c->last_collective))
            fake_fail("%s: not ordered behind the collective before it: ranks may run "
                      "them in different orders",
                      work->what);
        c->last_collective = collective ? s->node : c->last_collective;
        return cudaSuccess;
    }
    struct fake_op *deps[MAX_LANES + 2] = {s->last};
    int n = 1;
    if (s->blocking)
        deps[n++] = queue.legacy.last;
    for (struct CUstream_st *k = queue.streams; k && s == &queue.legacy; k = k->next) {
        if (k->blocking && k->capture)
            return spoil(k->capture, cudaErrorStreamCaptureImplicit);
        if (k->blocking && n < MAX_LANES)
            deps[n++] = k->last;
    }
    struct fake_op *op = add_op(s->lane, work, collective, deps, n);
    if (collective && queue.last_collective && !is_behind(op, queue.last_collective))
        fake_fail(
            "%s: not ordered behind the collective before it: ranks may run them in "
            "different orders",
            work->what);
    if (collective)
        set(&queue.last_collective, op);
    set(&s->last, op);
    return cudaSuccess;
}

static cudaError_t enqueue(cudaStream_t stream, const char *what, fake_run_fn *run,
                           const void *args, size_t bytes, bool collective)
{
    if (!fake_stream_is(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    struct CUstream_st *s = real_stream(stream);
    if (fake_fault("wrong-stream")) {
        cudaStream_t wrong;
        cudaStreamCreateWithFlags(&wrong, cudaStreamNonBlocking);
        s = wrong;
    }
    struct fake_work *w = fake_alloc(sizeof *w + bytes);
    *w = (struct fake_work){.refs = 1, .run = run};
    snprintf(w->what, sizeof w->what, "%s", what);
    memcpy(w->args, args, bytes);
    const cudaError_t rc = give(s, w, collective);
    fake_work_drop(w);
    return rc;
}

cudaError_t fake_enqueue(cudaStream_t stream, const char *what, fake_run_fn *run,
                         const void *args, size_t bytes)
{
    return enqueue(stream, what, run, args, bytes, false);
}

cudaError_t fake_enqueue_collective(cudaStream_t stream, const char *what,
                                    fake_run_fn *run, const void *args, size_t bytes)
{
    return enqueue(stream, what, run, args, bytes, true);
}

cudaError_t fake_enqueue_graph(cudaStream_t stream, const struct CUgraph_st *g)
{
    struct CUstream_st *s = real_stream(stream);
    if (!fake_stream_is(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    if (s->capture)
        fake_fail("cudaGraphLaunch in a capture: child graphs are not in the fake");
    struct fake_op **op = fake_alloc(sizeof(struct fake_op *) * (size_t)(g->n + 1));
    struct fake_op **deps = fake_alloc(sizeof(struct fake_op *) * (size_t)(g->n + 1));
    for (int i = 0; i < g->n; i++) {
        const struct fake_node *node = &g->node[i];
        for (int k = 0; k < node->n_deps; k++)
            deps[k] = op[node->deps[k]];
        deps[node->n_deps] = node->n_deps ? NULL : s->last;
        op[i] = add_op(node->lane, node->work, node->collective, deps, node->n_deps + 1);
        if (node->collective && queue.last_collective &&
            !is_behind(op[i], queue.last_collective))
            fake_fail("a graph's collective is not ordered behind the one before it");
        if (node->collective)
            set(&queue.last_collective, op[i]);
    }
    set(&s->last, add_op(s->lane, NULL, false, op, g->n));
    free(op);
    free(deps);
    return cudaSuccess;
}

/* ---- running ---- */

static double now_sec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool is_ready(const struct fake_op *op)
{
    for (int i = 0; i < op->n_deps; i++)
        if (!op->deps[i]->done)
            return false;
    return op->needed || !op->collective;
}

static uint64_t draw(void)
{
    queue.random = queue.random * 6364136223846793005u + 1442695040888963407u;
    return queue.random >> 33;
}

/* The place in the queue of what runs next; NULL: nothing may. */
static struct fake_op **pick(void)
{
    static long seed = -1;
    struct fake_op **best = NULL;
    int n = 0;
    if (seed < 0) {
        seed = fake_setting("AP_FAKE_SEED", 0);
        queue.random = (uint64_t)seed * 2654435761u + 1;
    }
    for (struct fake_op **p = &queue.first; *p; p = &(*p)->next) {
        const struct fake_op *op = *p;
        if (!is_ready(op) || (seed / 4 % 2 && !op->needed))
            continue;
        const bool better = !best           ? true
                            : seed % 4 == 0 ? op->lane > (*best)->lane
                            : seed % 4 == 1 ? op->lane < (*best)->lane
                            : seed % 4 == 2 ? draw() % (uint64_t)(n + 1) == 0
                                            : false;
        best = better ? p : best;
        n++;
    }
    return best;
}

static void run_op(struct fake_op **place)
{
    struct fake_op *op = *place;
    if (op->work) {
        fake_running = op->work->what;
        op->work->run(op->work->args);
        fake_memory_check();
        fake_running = NULL;
    }
    if (fake_stuck)
        return;
    op->sec = now_sec();
    op->done = true;
    for (int i = 0; i < op->n_deps; i++)
        drop(op->deps[i]);
    op->n_deps = 0;
    place = &queue.first; /* running may have queued more, after */
    while (*place != op)
        place = &(*place)->next;
    *place = op->next;
    if (queue.end == &op->next)
        queue.end = place;
    drop(op);
}

static void mark_needed(struct fake_op *op)
{
    if (op->done || op->needed)
        return;
    op->needed = true;
    for (int i = 0; i < op->n_deps; i++)
        mark_needed(op->deps[i]);
}

/* Runs until target has; and then, by the seed, what else could have run. */
static void run_until(struct fake_op *target)
{
    if (!target || target->done)
        return;
    keep(target);
    mark_needed(target);
    fake_memory_open();
    while (!target->done && !fake_stuck) {
        struct fake_op **place = pick();
        if (!place)
            fake_fail("nothing that is queued can run");
        run_op(place);
    }
    fake_memory_close();
    drop(target);
}

void fake_drain_all(void)
{
    for (struct fake_op *op = queue.first; op; op = op->next)
        op->needed = true;
    if (!queue.first)
        return;
    fake_memory_open();
    while (queue.first && !fake_stuck)
        run_op(pick());
    fake_memory_close();
}

cudaError_t fake_drain(cudaStream_t stream)
{
    struct CUstream_st *s = real_stream(stream);
    if (!fake_stream_is(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    if (s->capture)
        return spoil(s->capture, cudaErrorStreamCaptureUnsupported);
    for (struct CUstream_st *k = queue.streams; k && s == &queue.legacy; k = k->next)
        if (k->blocking)
            run_until(k->last);
    run_until(s->last);
    return cudaSuccess;
}

static cudaError_t wait_for(cudaError_t rc)
{
    if (rc == cudaSuccess && fake_stuck)
        fake_fail("the host would wait for ever");
    return rc;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return wait_for(fake_drain(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    const cudaError_t rc = fake_drain(stream);
    return rc == cudaSuccess && fake_stuck ? cudaErrorNotReady : rc;
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (fake_capture_forbids())
        return fake_error(cudaErrorStreamCaptureUnsupported);
    fake_drain_all();
    return cudaSuccess;
}

struct host_call {
    cudaHostFn_t fn;
    void *data;
};

static void host_run(void *args)
{
    const struct host_call *h = args;
    h->fn(h->data);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
    const struct host_call h = {fn, data};
    return fake_enqueue(stream, "cudaLaunchHostFunc", host_run, &h, sizeof h);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    struct CUevent_st *e = fake_alloc(sizeof *e);
    e->timed = !(flags & cudaEventDisableTiming);
    *out = e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

static void forget_capture(struct capture *c)
{
    if (c && --c->refs == 0)
        free(c);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    drop(e->op);
    forget_capture(e->capture);
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    struct CUstream_st *s = real_stream(stream);
    if (!e || !fake_stream_is(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    forget_capture(e->capture);
    e->capture = s->capture;
    if (s->capture) {
        s->capture->refs++;
        e->node = s->node;
        return cudaSuccess;
    }
    const cudaError_t rc = give(s, NULL, false);
    if (rc == cudaSuccess)
        set(&e->op, s->last);
    return rc;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    (void)flags;
    struct CUstream_st *s = real_stream(stream);
    if (!e || !fake_stream_is(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    if (fake_fault("drop-event"))
        return cudaSuccess;
    if (s->capture && !e->capture)
        return e->op ? spoil(s->capture, cudaErrorStreamCaptureIsolation) : cudaSuccess;
    if (e->capture && !e->capture->graph)
        return fake_error(cudaErrorCapturedEvent); /* its capture has ended */
    if (e->capture) {
        if (s->capture && s->capture != e->capture)
            return spoil(s->capture, cudaErrorStreamCaptureMerge);
        if (!s->capture) {
            s->capture = e->capture;
            s->node = -1;
        }
        s->node = add_node(s->capture, s->lane, NULL, false, s->node, e->node);
        return cudaSuccess;
    }
    if (e->op && !e->op->done) {
        struct fake_op *deps[] = {s->last, e->op};
        struct fake_op *op = add_op(s->lane, NULL, false, deps, 2);
        set(&s->last, op);
    }
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    if (e->capture)
        return fake_error(cudaErrorCapturedEvent);
    run_until(e->op);
    return wait_for(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (e->capture)
        return fake_error(cudaErrorCapturedEvent);
    run_until(e->op);
    return fake_stuck ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    if (!a->op || !b->op || !a->timed || !b->timed)
        return fake_error(cudaErrorInvalidResourceHandle);
    if (!a->op->done || !b->op->done)
        return fake_error(cudaErrorNotReady);
    *ms = (float)(1e3 * (b->op->sec - a->op->sec));
    return cudaSuccess;
}

/* ---- captures ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    if (!s || !fake_stream_is(s))
        return fake_error(cudaErrorStreamCaptureUnsupported);
    if (s->capture)
        return spoil(s->capture, cudaErrorIllegalState);
    struct capture *c = fake_alloc(sizeof *c);
    *c = (struct capture){.graph = fake_alloc(sizeof *c->graph),
                          .origin = s,
                          .mode = mode,
                          .refs = 1,
                          .last_collective = -1};
    s->capture = c;
    s->node = -1;
    queue.global = mode == cudaStreamCaptureModeRelaxed ? queue.global : c;
    return cudaSuccess;
}

/* Whether every node is after the origin's last one or is it. */
static bool is_joined(const struct capture *c)
{
    const struct CUgraph_st *g = c->graph;
    bool *seen = fake_alloc((size_t)g->n + 1), all = true;
    if (c->origin->node >= 0)
        seen[c->origin->node] = true;
    for (int i = g->n - 1; i >= 0; i--) {
        for (int k = 0; seen[i] && k < g->node[i].n_deps; k++)
            seen[g->node[i].deps[k]] = true;
        all &= seen[i];
    }
    free(seen);
    return all;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    *out = NULL;
    if (!s || !fake_stream_is(s) || !s->capture)
        return fake_error(cudaErrorIllegalState);
    struct capture *c = s->capture;
    if (c->origin != s)
        return spoil(c, cudaErrorStreamCaptureUnmatched);
    const cudaError_t rc = c->spoiled      ? cudaErrorStreamCaptureInvalidated
                           : !is_joined(c) ? cudaErrorStreamCaptureUnjoined
                                           : cudaSuccess;
    for (struct CUstream_st *k = queue.streams; k; k = k->next)
        if (k->capture == c) {
            k->capture = NULL;
            k->node = -1;
        }
    queue.global = queue.global == c ? NULL : queue.global;
    if (rc)
        fake_graph_free(c->graph);
    else
        *out = c->graph;
    c->graph = NULL;
    forget_capture(c);
    return fake_error(rc);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    const struct capture *c = real_stream(s)->capture;
    *status = !c           ? cudaStreamCaptureStatusNone
              : c->spoiled ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
