/*
 * A program made ready to run on one rank: a flat list of calls with resolved pointers,
 * all memory allocated before step 1.
 */
#ifndef EXEC_EXEC_H
#define EXEC_EXEC_H

#include "comm/comm.h"
#include "program/program.h"

struct exec;

/* One kernel call: a fused pass over several nodes, or one node. */
struct call {
    int n_nodes;
    const int *nodes; /* ascending */
    bool fused;
    void (*run)(struct exec *x, void *state);
    void *state; /* the backend's, in exec's arena */
    void **each; /* states per microbatch, NULL when they are all the same */
    int64_t n_runs;
    void (*close)(void *state); /* what the state holds beside the arena; NULL: nothing */
};

struct exec_copy {
    void *dst;
    const void *src;
    int64_t bytes;
};

struct exec {
    struct ap_arena *arena; /* of everything that is prepared */
    const struct ap_program *prog;
    const struct backend *backend;
    struct comm *comm;
    int64_t coords[AP_MAX_AXES]; /* of this rank; in time, of what is prepared */

    char *memory;  /* the program's arena, prog->peak_bytes */
    char *temps;   /* values of one group that no buffer holds */
    char *scratch; /* of one kernel at a time */
    int64_t temps_bytes, scratch_bytes;

    void **value;    /* per node: its elements; NULL when fused away or a tuple */
    void ***element; /* per tuple node: the values of its elements */
    int *call_of;    /* per node: the call that makes it, -1 for none */
    int n_calls;
    struct call *calls;
    int *first_call; /* [group + 1]: of this group or one behind it */
    /* [parameter]: its number in the whole graph, -1: not loaded; NULL: as they come */
    const int *number;
    /* end of a step: parameters whose new value lies elsewhere */
    int n_copies, n_staged;
    struct exec_copy *copies; /* first n_staged: through `stage` */
    struct exec_copy *staged;
    char *stage;
    struct exec *inner, *next; /* those of loops' computations, chained by next */
    int exit_code; /* what a failed preparation ends with: 1, or 2 for "not supported yet"
                    */
};

/* Prepares prog; -1 with err set and x->exit_code. Everything is released by exec_close.
 */
int exec_open(struct exec *x, struct ap_arena *arena, const struct ap_program *prog,
              const struct backend *backend, struct comm *comm, struct ap_err *err);
void exec_close(struct exec *x);
/* Runs the program once; results stay readable until exec_advance. */
void exec_step(struct exec *x);
/* The same of groups lo .. hi - 1 only, with microbatch j at hand. */
void exec_run(struct exec *x, int lo, int hi, int64_t j);
/* Parameters take their new values. */
void exec_advance(struct exec *x);

/* Bytes that a value of `bytes` takes up in memory whose values begin at multiples of 64.
 */
static inline int64_t exec_room(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}
/* Where the next value of `bytes` begins; moves *at behind it. */
static inline int64_t exec_take(int64_t *at, int64_t bytes)
{
    const int64_t here = *at;
    *at = here + exec_room(bytes);
    return here;
}
/* Raises the kernels' common scratch to at least bytes; during preparation only. */
void exec_need_scratch(struct exec *x, int64_t bytes);
/* "<name>: <op> ...: not supported yet", exit 2; returns -1. */
int exec_unsupported(struct exec *x, const struct ap_node *node, struct ap_err *err,
                     const char *what);
/* Distinct index maps: for dimension d of the tensor that attrs.global describes, map[i]
 * = global index of local index i or -1; NULL when the dimension is not split. */
const int64_t *exec_index_map(struct exec *x, const struct ap_attrs *attrs,
                              const struct ap_shape *local, int d);

/* A tensor and its layout on the mesh of a program. */
struct placement {
    struct ap_shape global;
    struct ap_layout layout;
};
struct placement exec_placement(const struct ap_node *param);

/* What the device at some mesh coordinates holds of a tensor. */
struct shard {
    struct ap_shape local;
    int64_t *map[AP_MAX_RANK]; /* [dimension][local index]: global index, -1: padding */
};
struct shard exec_shard(struct ap_arena *arena, const struct ap_mesh *mesh,
                        const struct placement *place, const int64_t *coords);

#endif
