/*
 * A backend computes: it is a table of functions for a kind of device. ap-exec.c has a
 * row for each backend.
 *
 * A backend owns the memory that it allocates; only `write`, `read` and `copy` touch it
 * from outside of its kernels, so that it need not be addressable by the host. `prepare`
 * turns a node, or the nodes of a fused pass, into a call; a step is nothing but the
 * calls' run functions in order, with `copy` between them. `prepare` and `open` allocate
 * and compile everything that a step needs; a step allocates nothing.
 *
 * A backend that runs asynchronously (CUDA) keeps the order of its calls on a stream.
 * `read` returns when the bytes are there, so it waits for the calls before it; `write`
 * may return early only if it has copied `host`. A kernel that passes device memory to
 * the communicator (a collective) must order itself after the calls before it, and the
 * calls after it after itself; the CPU's collectives finish before they return.
 *
 * Another backend can use these parts of the CPU backend: exec_while_prepare (loops), the
 * functions below, the states of prepared calls (cpu/cpu_state.h), and, on host memory,
 * cpu_load, cpu_store, cpu_convert_find and cpu_strides, with which data.c fills
 * parameters. The CPU's results are the reference for the results of every other backend.
 */
#ifndef EXEC_BACKEND_H
#define EXEC_BACKEND_H

#include "step/exec.h"

/* Times between calls on a device that runs them later; all calls of a step. */
struct backend_clock {
    void (*begin)(void); /* a step begins: moments count from 0 */
    int (*moment)(void); /* after the work that was enqueued; returns its number */
    double (*between)(int a, int b); /* seconds; once `sync` has returned */
};

struct backend {
    const char *name;
    bool on_host; /* its memory is the host's */
    /* Once, before anything else; argv is main's. It may start the program anew. */
    void (*open)(char **argv);
    void *(*alloc)(int64_t bytes); /* zeroed, 64-byte aligned; NULL: not enough memory */
    void (*release)(void *p);      /* NULL is allowed */
    void (*write)(void *dst, const void *host, int64_t bytes);
    void (*read)(void *host, const void *src, int64_t bytes);
    void (*copy)(void *dst, const void *src, int64_t bytes); /* both the backend's */
    /* Whether the node may be one of several in a fused pass. */
    bool (*fusible)(const struct ap_node *node);
    /* Whether the kernel of this node alone may write its result over operand i. */
    bool (*in_place)(const struct ap_node *node, int i);
    /*
     * Sets call->run, call->state and, if the state holds more than arena memory,
     * call->close. x->value and x->element are final; the scratch that a kernel needs is
     * asked for by exec_need_scratch and lies at x->scratch when the call runs. Called
     * once per microbatch, with x->coords[0] its number, where the call depends on it. -1
     * with err set, by exec_unsupported if the backend cannot run the operator.
     */
    int (*prepare)(struct exec *x, struct call *call, struct ap_err *err);

    /* ---- the following functions may be NULL ---- */

    /* Called by all ranks once the job's communicator is open: picks the rank's device,
     * and may replace functions of *c by ones that take its memory. */
    int (*join)(struct comm *c, struct ap_err *err);
    /* Called when all calls are prepared, to make the data that they share. */
    int (*ready)(struct exec *x, struct ap_err *err);
    /* Before a whole step: true, if the backend has run it, from a recording; else the
     * calls run, and step_end follows. */
    bool (*step_begin)(struct exec *x);
    void (*step_end)(struct exec *x);
    void (*close)(struct exec *x);
    /* Once x->value is final, and before calls are prepared: may move a value that one
     * other node reads. aside: [node], computed elsewhere and copied to its place. */
    void (*place)(struct exec *x, const bool *aside);
    /*
     * How many nodes from `first` on, the first of an attention's group, one kernel
     * computes without their inner values; 0: they are calls of their own. Before values
     * have places; *state is the call's when it is prepared.
     */
    int (*attention)(struct exec *x, int first, void **state);
    /* Seconds that this thread spent in BLAS so far. NULL: calls cannot be timed. */
    double (*blas_sec)(void);
    /* Whether it runs these nodes, a whole group that is a kernel
     * (program/kernel_form.h), as one call; asked before values have places. NULL: such
     * groups fall into passes and operators. */
    bool (*runs_whole)(const struct exec *x, const int *nodes, int n);
    /* Waits for all that the device was given, so that a step's time is the step's. */
    void (*sync)(void);
    /* NULL: a call is over when it returns. */
    const struct backend_clock *clock;
    /* This rank's device: its name, cut to `size` bytes, and its memory, which is
     * returned. NULL: the host's processor and its memory. */
    int64_t (*device)(char *name, size_t size);
};

extern const struct backend cpu_backend;

/* ---- functions that backends share (backend.c) ---- */

typedef int backend_prepare_fn(struct exec *x, struct call *call, struct ap_err *err);
/* Elementwise nodes, broadcasts, iotas and scalar constants are fused. */
bool backend_fusible(const struct ap_node *node);
bool backend_in_place(const struct ap_node *node, int i);
/* struct backend's `prepare` by one function for fused passes and one per operator. */
int backend_prepare(struct exec *x, struct call *call, backend_prepare_fn *fused,
                    backend_prepare_fn *const kernels[AP_N_OPS], struct ap_err *err);

#endif
