/*
 * What computes: a table of functions per kind of device. Kernels are prepared once and
 * then run by pointer; memory is the backend's own (host memory for the CPU).
 */
#ifndef EXEC_BACKEND_H
#define EXEC_BACKEND_H

#include "exec.h"

struct backend {
    const char *name;
    void (*open)(char **argv);     /* once, before anything else; argv is main's */
    void *(*alloc)(int64_t bytes); /* zeroed, 64-byte aligned; NULL when there is none */
    void (*release)(void *p);
    void (*write)(void *dst, const void *host, int64_t bytes);
    void (*read)(void *host, const void *src, int64_t bytes);
    void (*copy)(void *dst, const void *src, int64_t bytes); /* inside the device */
    /* Whether the node may be one of several in a fused pass. */
    bool (*fusible)(const struct ap_node *node);
    /* Whether the kernel of a single node may write its result over operand i. */
    bool (*in_place)(const struct ap_node *node, int i);
    /* Sets call->run and call->state; x->value and x->part are final. */
    int (*prepare)(struct exec *x, struct call *call, struct ap_err *err);
};

extern const struct backend cpu_backend;

#endif
