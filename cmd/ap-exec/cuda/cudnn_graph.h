/*
 * Graphs of cuDNN's operations, and plans that run them, for convolutions and attentions.
 * A builder puts descriptors together; nothing in it ends the program, because what cuDNN
 * refuses is left to other kernels.
 */
#ifndef EXEC_CUDA_CUDNN_GRAPH_H
#define EXEC_CUDA_CUDNN_GRAPH_H

#include "libraries.h"

#include <stdbool.h>
#include <stdint.h>

#if CUDA_HAS_CUDNN

/* Tensors in memory and scalars of a graph; its operations. */
#define CUDNN_MOST_TENSORS 48
#define CUDNN_MOST_OPS     32

/* A graph and the plan that runs it. */
struct cudnn_plan {
    cudnnBackendDescriptor_t plan; /* NULL: there is none */
    int64_t workspace;             /* bytes */
    int n;                         /* tensors that a run is given */
    int64_t uid[CUDNN_MOST_TENSORS];
    int of[CUDNN_MOST_TENSORS]; /* the caller's number of each */
    int n_made, cap_made;
    cudnnBackendDescriptor_t *made;
};

/* A graph while it is built. */
struct cudnn_builder {
    struct cudnn_plan *p; /* zeroed */
    cudnnStatus_t rc;     /* the first that is no success */
    int n_uids, n_ops;
    cudnnBackendDescriptor_t ops[CUDNN_MOST_OPS];
};

/* ---- descriptors ---- */

cudnnBackendDescriptor_t cudnn_make(struct cudnn_builder *b,
                                    cudnnBackendDescriptorType_t type);
void cudnn_set(struct cudnn_builder *b, cudnnBackendDescriptor_t d,
               cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               int64_t n, const void *value);
void cudnn_set_desc(struct cudnn_builder *b, cudnnBackendDescriptor_t d,
                    cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value);
void cudnn_set_type(struct cudnn_builder *b, cudnnBackendDescriptor_t d,
                    cudnnBackendAttributeName_t name, cudnnDataType_t value);
void cudnn_finalize(struct cudnn_builder *b, cudnnBackendDescriptor_t d);

enum cudnn_storage { CUDNN_VIRTUAL, CUDNN_BY_VALUE, CUDNN_IN_MEMORY };
/* A tensor at multiples of 16 bytes; of: the caller's number, unless it is virtual. */
cudnnBackendDescriptor_t cudnn_tensor(struct cudnn_builder *b, cudnnDataType_t type,
                                      int rank, const int64_t *n, const int64_t *stride,
                                      enum cudnn_storage storage, int of);
/* Ends an operation and makes it the graph's next one. */
void cudnn_end_op(struct cudnn_builder *b, cudnnBackendDescriptor_t op);

/* ---- plans ---- */

/* Numerical notes that an engine must have, and must not: bits CUDNN_NOTE(...). */
struct cudnn_wish {
    unsigned with, without;
};
#define CUDNN_NOTE(name) (1u << CUDNN_NUMERICAL_NOTE_##name)

/*
 * Ends the graph, and makes its plan: of the configurations in the order of cuDNN's
 * heuristic the first that has a plan of at most most_bytes of workspace, with an engine
 * as the first wish says, or else as the second, and so on. b->p->plan is NULL if there
 * is none, or if anything before was refused.
 */
void cudnn_end_graph(struct cudnn_builder *b, int n_wishes, const struct cudnn_wish *wish,
                     int64_t most_bytes);
/*
 * The arguments of a run of the plan: memory for tensor i at pointer[i], and workspace.
 */
cudnnBackendDescriptor_t cudnn_bind(const struct cudnn_plan *p,
                                    const void *const *pointer, char *workspace);
void cudnn_unbind(cudnnBackendDescriptor_t pack);
void cudnn_run(const struct cudnn_plan *p, cudnnBackendDescriptor_t pack);

#endif
#endif
