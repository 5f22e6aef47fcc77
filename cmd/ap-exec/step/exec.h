/*
 * A program prepared for one rank: a flat list of calls with resolved pointers, and all
 * memory that a step needs. Running a step is running the calls in order.
 */
#ifndef EXEC_EXEC_H
#define EXEC_EXEC_H

#include "comm/comm.h"
#include "program/program.h"

struct exec;

/* Memory that a call reads or writes. */
struct exec_access {
    const char *p;
    int64_t bytes;
    bool write;
};

/* One kernel call: a fused pass or a kernel of several nodes, or one node. */
struct call {
    int n_nodes;
    const int *nodes; /* ascending */
    bool fused;
    bool whole;     /* fused: the kernel that a group is, not a pass (backend.h) */
    bool attention; /* of an attention's group, by one kernel: inner values have no place
                     */
    bool again;     /* of an attention's gradients: its forward pass is computed again */
    void (*run)(struct exec *x, void *state);
    void *state; /* the backend's, in exec's arena */
    void **each; /* [microbatch]: its state, where they differ; else NULL */
    int64_t n_runs;
    void (*close)(void *state); /* releases what is not in the arena; NULL: nothing */
    /*
     * A collective that `run` only starts (comm.h): the calls from first_use on wait for
     * it (step/overlap.c). It uses no x->scratch between the two. NULL: `run` is all.
     */
    void (*finish)(struct exec *x, void *state);
    int first_use, n_access;
    bool starts; /* the program says that it is awaited later than at once */
    struct exec_access *access;
};

/* A call between two moments of the device's clock (backend.h). */
struct exec_noted {
    int call, from, to;
};

/* The times of calls in the timed steps (step/timing.c): ap-exec --report adds them up by
 * kind of kernel, and --profile takes medians over steps. */
struct exec_timing {
    bool on;          /* the step that runs is timed */
    bool alone;       /* a collective is finished where it starts */
    int n_calls, cap; /* cap: rows of sec, each of one step; 1: the sum of all steps */
    int n_steps;      /* timed so far */
    double *sec;      /* [row * n_calls + call]: of all runs of a call */
    double *blas_sec; /* [call]: of all steps, within BLAS on the rank's first thread */
    int64_t *runs;    /* [call]: of all steps */
    /* By a device's clock: the first of a rank's programs begins its steps; calls of this
     * step. */
    const struct backend_clock *clock;
    bool leads;
    int n_noted, cap_noted;
    struct exec_noted *noted;
};

/* A collective that is started and not finished. */
struct exec_flight {
    const struct call *call;
    void *state;
};

struct exec_copy {
    void *dst;
    const void *src;
    int64_t bytes;
};

/* Memory that an exec is opened in, and that stays when it is closed. */
struct exec_place {
    char *memory; /* NULL: it takes its own */
    int64_t bytes;
    /* Other programs, slots of this one, or messages use it between two calls of this one
       that follow each other. */
    bool shared;
    struct ap_slot slot; /* of this memory */
    /* The same program at another place, whose working memory this one shares, and which
     * is closed later; NULL: it has its own. */
    const struct exec *first;
};

struct exec {
    struct ap_arena *arena; /* of everything that is prepared */
    const struct ap_program *prog;
    const struct backend *backend;
    struct comm *comm;
    /* Coordinates of this rank on the mesh, and the number of the microbatch of the call
       being prepared */
    int64_t coords[AP_MAX_AXES];

    /* The backend's memory */
    char *memory; /* the program's buffers, prog->peak_bytes */
    struct exec_place place;
    char *temps;   /* values of one group that have no buffer */
    char *scratch; /* working memory of the kernel that runs */
    int64_t temps_bytes, scratch_bytes, stage_bytes;

    void **value;    /* [node]: its elements; NULL: fused away, or a tuple */
    void ***element; /* [tuple node][element]: its elements */
    /* [result of an attention's kernel on CUDA]: the transpose that alone reads it and in
     * whose order it is written, so that the transpose is a plain copy, or nothing; -1:
     * none. NULL: of no node */
    int *permuted;
    int *call_of; /* [node]: the call that computes it, -1 for none */
    int n_calls;
    struct call *calls;
    int *first_call; /* [group]: the first call of this group or of a later one */
    /* [parameter]: its number in the whole graph, -1: it comes from another stage; NULL:
     * its own */
    const int *number;
    /* New values of parameters that are not computed in place; exec_advance moves them,
     * the first n_staged by way of `stage`. */
    int n_copies, n_staged;
    struct exec_copy *copies, *staged;
    char *stage;
    int n_flight;
    struct exec_flight *flight;
    bool starts;                /* the collective that runs next is awaited later */
    bool late;                  /* collectives run as late as they may; for tests */
    struct exec *inner, *next;  /* the computations of loops, chained by next */
    void *recording;            /* the backend's, of a step; NULL: none */
    struct exec_timing *timing; /* NULL: calls are not timed */
    struct trace *trace;        /* of the rank (trace.h); NULL: no timeline */
    struct exec_noise *noise;   /* rounding at random (noise.h); NULL: none */
    int exit_code; /* of a failed preparation: 1, or 2 for "not supported yet" */
};

/* Prepares prog; -1 with err set and x->exit_code. exec_close releases everything. */
int exec_open(struct exec *x, struct ap_arena *arena, const struct ap_program *prog,
              const struct backend *backend, struct comm *comm, struct ap_err *err);

/* The same in memory that is there. */
int exec_open_at(struct exec *x, struct ap_arena *arena, const struct ap_program *prog,
                 const struct backend *backend, struct comm *comm,
                 const struct exec_place *place, struct ap_err *err);
void exec_close(struct exec *x);
/* Runs the program once; results stay readable until exec_advance. */
void exec_step(struct exec *x);
/*
 * The parts of a step, for callers that run its groups one by one. Whether the backend
 * has recorded the step, and runs it so; if not, the groups run, and then exec_recorded
 * says that the step has ended.
 */
bool exec_replays(struct exec *x);
void exec_recorded(struct exec *x);
/* Runs groups lo .. hi - 1 for microbatch j. */
void exec_run(struct exec *x, int lo, int hi, int64_t j);
/* Parameters take their new values. */
void exec_advance(struct exec *x);

/* Bytes that a value of `bytes` takes up in memory whose values begin at multiples of 64.
 */
static inline int64_t exec_room(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}
/* Bytes of x->memory. */
static inline int64_t exec_memory_bytes(const struct exec *x)
{
    return x->place.memory ? x->place.bytes : x->prog->peak_bytes;
}
/* Memory that a step needs in addition to the program's buffers. */
static inline int64_t exec_working_bytes(const struct exec *x)
{
    return x->temps_bytes + x->scratch_bytes + x->stage_bytes;
}
/* The place of the next value of `bytes`; moves *at past it. */
static inline int64_t exec_take(int64_t *at, int64_t bytes)
{
    const int64_t here = *at;
    *at = here + exec_room(bytes);
    return here;
}
/* Raises the kernels' common scratch to at least bytes; during preparation only. */
void exec_need_scratch(struct exec *x, int64_t bytes);
/* `while` for any backend: runs the loop's computations by the backend's own kernels. */
int exec_while_prepare(struct exec *x, struct call *call, struct ap_err *err);
/* "<name>: <op> ...: not supported yet", exit 2; returns -1. */
int exec_unsupported(struct exec *x, const struct ap_node *node, struct ap_err *err,
                     const char *what);
/* For dimension d of the tensor that attrs.global describes: map[i] is the global index
 * of local index i, -1 for padding; NULL: the dimension is not split. */
const int64_t *exec_index_map(struct exec *x, const struct ap_attrs *attrs,
                              const struct ap_shape *local, int d);

/* A tensor and its layout on the mesh of a program. */
struct placement {
    struct ap_shape global;
    struct ap_layout layout;
};
struct placement exec_placement(const struct ap_node *param);

/* The part of a tensor that the device at some mesh coordinates holds. */
struct shard {
    struct ap_shape local;
    int64_t *map[AP_MAX_RANK]; /* [dimension][local index]: global index, -1: padding */
};
struct shard exec_shard(struct ap_arena *arena, const struct ap_mesh *mesh,
                        const struct placement *place, const int64_t *coords);

/* ---- times (timing.c) ---- */

/* Seconds of the processor that all threads of this process took. */
double timing_process_sec(void);
struct exec_timing *timing_open(struct ap_arena *arena, const struct exec *x, int cap,
                                bool alone);
static inline bool timing_is_on(const struct exec *x)
{
    return x->timing && x->timing->on;
}
/* Clocks when a call begins. */
struct timing_start {
    double wall, process, thread, blas;
    int moment;
};
struct timing_start timing_begin(const struct exec *x);
/* Call i has run since `start`. */
void timing_note(struct exec *x, int i, const struct timing_start *start);
/* A step begins, which is timed or not; has ended. t may be NULL. */
void timing_step_begin(struct exec_timing *t, bool on);
void timing_step_end(struct exec_timing *t);
/* The bytes that a call reads from outside and leaves in memory, as ap_nest_work counts
 * them; dtype: the type of its largest result. */
double timing_bytes(const struct exec *x, const struct call *call, enum ap_dtype *dtype);

/* Kernels of one kind in a step, of the rank's program. */
struct timing_row {
    const char *kind; /* an operator's name, "elementwise" (fused passes) or "copy" */
    double calls;
    double sec;      /* as timing.c measures a call */
    double blas_sec; /* of this rank's first thread within BLAS */
    double flops;    /* of dot and convolution */
    double bytes;    /* each kernel reads its operands and writes its results once */
};
/* Lists rows in order of seconds per timed step; returns their number. A loop is one
 * kernel; x NULL: none. */
int timing_rows(struct ap_arena *arena, const struct exec *x, struct timing_row **out);

#endif
