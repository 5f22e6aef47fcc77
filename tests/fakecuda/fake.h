/*
 * The CUDA functions that ap-exec's backend calls, on the host: what the files of
 * tests/fakecuda share. See README.md.
 *
 * Everything that a stream is given becomes an operation: a function, its arguments by
 * value, and the operations that it comes after. Operations run when the host waits for
 * one of them, in an order that the seed picks among those that streams and events allow.
 * One process is one host thread; none of this is thread-safe.
 */
#ifndef FAKECUDA_FAKE_H
#define FAKECUDA_FAKE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- trouble (fake_runtime.c) ---- */

/* What is wrong with the program that is tested: says it and ends the process (exit 97,
 * the job with it). */
_Noreturn void fake_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define FAKE_EXIT 97
/* Remembers an error for cudaGetLastError and returns it. */
cudaError_t fake_error(cudaError_t rc);
/* Environment: AP_FAKE_SEED, and others that are numbers. */
long fake_setting(const char *name, long otherwise);
/* Whether this is the call at which AP_FAKE_FAULT=kind:N plants a fault: the Nth, from 1,
 * of those that ask for the kind. */
bool fake_fault(const char *kind);
int fake_job_rank(void); /* of mpirun, 0 without it */
void *
fake_alloc(size_t bytes); /* zeroed host memory; ends the process if there is none */

/* ---- memory (fake_memory.c) ---- */

/* Device memory can be touched between the two; they nest. */
void fake_memory_open(void);
void fake_memory_close(void);
/* What runs now, for messages of faults; NULL: nothing. */
extern const char *volatile fake_running;
/* Whether something wrote between the end of an allocation and its guard page. */
void fake_memory_check(void);
bool fake_is_pinned(const void *p, size_t bytes);
/* Whether p .. p + bytes lies within one allocation. */
bool fake_is_device(const void *p, size_t bytes);
bool fake_touches_device(const void *p);

/* ---- operations (fake_stream.c) ---- */

struct fake_op;
typedef void fake_run_fn(void *args);
/* Queues run(args) on a stream; args are copied, and what, a name for messages. */
cudaError_t fake_enqueue(cudaStream_t stream, const char *what, fake_run_fn *run,
                         const void *args, size_t bytes);
/* As above for a collective; those of all communicators must be ordered on a device. */
cudaError_t fake_enqueue_collective(cudaStream_t stream, const char *what,
                                    fake_run_fn *run, const void *args, size_t bytes);
/* Runs what is needed for all of a stream's operations; NULL: the legacy stream. */
cudaError_t fake_drain(cudaStream_t stream);
void fake_drain_all(void);
/* Set by an operation that never ends: no stream goes on. */
extern bool fake_stuck;
bool fake_stream_is(cudaStream_t stream); /* exists and is not destroyed */
bool fake_capturing(cudaStream_t stream);
/* Whether a capture forbids calls that allocate or wait; such a call ends the capture. */
bool fake_capture_forbids(void);

/* ---- graphs (fake_graph.c uses these of fake_stream.c) ---- */

struct fake_node {
    struct fake_work *work;
    int lane;
    bool collective;
    int n_deps;
    int *deps; /* numbers of nodes before this one */
};
struct CUgraph_st {
    int n;
    struct fake_node *node;
};
void fake_work_keep(struct fake_work *w);
void fake_work_drop(struct fake_work *w);
/* Queues the nodes after what the stream has, and the stream after them. */
cudaError_t fake_enqueue_graph(cudaStream_t stream, const struct CUgraph_st *g);
void fake_graph_free(struct CUgraph_st *g);

/* ---- kernels (fake_fibre.c, fake_kernel.c, shim.hpp) ---- */

/*
 * A block of threads. body starts thread `started++` until there is none left; it is
 * called again, on a stack of its own, whenever a thread waits at a barrier.
 */
struct fake_block {
    int threads, started;
    void (*body)(struct fake_block *b);
    void (*resume)(struct fake_block *b, int thread); /* thread runs again */
    const char *name;
    const void *args;
    unsigned grid[3], block[3], at[3]; /* at: blockIdx */
    bool backwards;                    /* the last thread starts first */
};
/* Runs all threads of the block to their ends. */
void fake_block_run(struct fake_block *b);
/* __syncthreads of the running thread, whose number is `thread`. */
void fake_barrier(int thread);

/* What a kernel's source exports under its name, by shim.hpp. */
struct fake_entry {
    size_t bytes; /* of its argument */
    int block;    /* __launch_bounds__ */
    void (*body)(struct fake_block *b);
    void (*resume)(struct fake_block *b, int thread);
    char *shared, *shared_end; /* NULL: it has no shared memory */
};

#endif
