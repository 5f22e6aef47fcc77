/*
 * What the fake's files of cuDNN share: descriptors as lists of attributes (fake_dnn.c),
 * operations of attentions (fake_attention.c), convolutions (fake_conv.c).
 */
#ifndef FAKECUDA_FAKE_DNN_H
#define FAKECUDA_FAKE_DNN_H

#include "fake.h"

#include <cudnn.h>

#define DNN_ATTRIBUTES 12
#define DNN_TENSORS    64 /* of a graph */

struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n;
    void *value;
};

/* An engine with its configuration, as the heuristic proposes it. */
struct proposal {
    unsigned notes; /* bits of cudnnBackendNumericalNote_t */
    int64_t workspace;
    bool has_plan;
    bool runs; /* a program that takes it is wrong otherwise */
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    int n;
    struct attribute attribute[DNN_ATTRIBUTES];
    const struct descriptor *graph; /* of a configuration and of a plan */
    struct proposal proposal;       /* of these and of an engine */
};

/* An execution's tensor in memory, or a scalar in the host's. */
struct dnn_memory {
    const struct descriptor *tensor;
    void *p;
};

/* ---- descriptors (fake_dnn.c) ---- */

const struct attribute *dnn_find(const struct descriptor *d,
                                 cudnnBackendAttributeName_t name);
/* 0, or NULL, where there is none. */
int64_t dnn_integer(const struct descriptor *d, cudnnBackendAttributeName_t name);
const struct descriptor *dnn_member(const struct descriptor *d,
                                    cudnnBackendAttributeName_t name);
int dnn_rank(const struct descriptor *tensor);
const int64_t *dnn_dims(const struct descriptor *tensor);
const int64_t *dnn_strides(const struct descriptor *tensor);
bool dnn_is_virtual(const struct descriptor *tensor);
bool dnn_is_by_value(const struct descriptor *tensor);
double dnn_load(const void *p, int64_t type, int64_t i);
void dnn_store(void *p, int64_t type, int64_t i, double v);

/* ---- operations ---- */

/* Whether the operation is none of the file's, or consistent. */
bool dnn_is_attention(const struct descriptor *op);
bool dnn_is_convolution(const struct descriptor *op);
/* The list of one heuristic for a graph; returns its length. */
int dnn_propose_attention(const struct descriptor *graph, int64_t mode,
                          struct proposal *out);
int dnn_propose_convolution(const struct descriptor *graph, int64_t mode,
                            struct proposal *out);
#define DNN_PROPOSALS 8
cudaError_t dnn_run_attention(cudaStream_t stream, const struct descriptor *plan,
                              void *work, int n, const struct dnn_memory *memory);
cudaError_t dnn_run_convolution(cudaStream_t stream, const struct descriptor *plan,
                                void *work, int n, const struct dnn_memory *memory);

#endif
