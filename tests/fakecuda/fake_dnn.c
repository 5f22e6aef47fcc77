/*
 * cuDNN's convolutions as loops in double precision, rounded once. What is inconsistent
 * is refused with cuDNN's status; a workspace that is too small, too. The heuristic
 * proposes first an algorithm that does not repeat its bits, and has none for f32 in NHWC
 * without tensor cores.
 */
#include "fake.h"

#include "base/float16.h"

#if __has_include(<cudnn.h>)

#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

#define MOST 5
/* The workspace that the algorithms want, bytes. */
#define WORK_BYTES 1000

struct cudnnContext {
    cudaStream_t stream;
};
struct cudnnTensorStruct {
    cudnnDataType_t type;
    int rank, dims[MOST], strides[MOST];
};
struct cudnnFilterStruct {
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int rank, dims[MOST];
};
struct cudnnConvolutionStruct {
    int rank, pad[MOST], stride[MOST], dilation[MOST], groups; /* rank: spatial */
    cudnnConvolutionMode_t mode;
    cudnnDataType_t compute;
    cudnnMathType_t math;
};

const char *cudnnGetErrorString(cudnnStatus_t rc)
{
    return rc == CUDNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
           : rc == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                              : "CUDNN_STATUS_BAD_PARAM";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
    *h = fake_alloc(sizeof **h);
    return CUDNN_STATUS_SUCCESS;
}

cudaStream_t fake_dnn_stream(const struct cudnnContext *h)
{
    return h->stream;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream)
{
    if (!fake_stream_is(stream))
        return CUDNN_STATUS_BAD_PARAM;
    h->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

#define CREATE_AND_DESTROY(Kind)                                              \
    cudnnStatus_t cudnnCreate##Kind##Descriptor(cudnn##Kind##Descriptor_t *d) \
    {                                                                         \
        *d = fake_alloc(sizeof **d);                                          \
        return CUDNN_STATUS_SUCCESS;                                          \
    }                                                                         \
    cudnnStatus_t cudnnDestroy##Kind##Descriptor(cudnn##Kind##Descriptor_t d) \
    {                                                                         \
        free(d);                                                              \
        return CUDNN_STATUS_SUCCESS;                                          \
    }
CREATE_AND_DESTROY(Tensor)
CREATE_AND_DESTROY(Filter)
CREATE_AND_DESTROY(Convolution)

static bool positive(int n, const int *v)
{
    for (int i = 0; i < n; i++)
        if (v[i] < 1)
            return false;
    return true;
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type,
                                         int rank, const int dims[], const int strides[])
{
    if (rank < 4 || rank > MOST || !positive(rank, dims) || !positive(rank, strides))
        return CUDNN_STATUS_BAD_PARAM;
    d->type = type, d->rank = rank;
    memcpy(d->dims, dims, sizeof *dims * (size_t)rank);
    memcpy(d->strides, strides, sizeof *strides * (size_t)rank);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int rank,
                                         const int dims[])
{
    if (rank < 4 || rank > MOST || !positive(rank, dims) ||
        (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC))
        return CUDNN_STATUS_BAD_PARAM;
    d->type = type, d->format = format, d->rank = rank;
    memcpy(d->dims, dims, sizeof *dims * (size_t)rank);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t d, int rank,
                                              const int pad[], const int stride[],
                                              const int dilation[],
                                              cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    if (rank < 2 || rank > MOST - 2 || !positive(rank, stride) ||
        !positive(rank, dilation))
        return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < rank; i++)
        if (pad[i] < 0)
            return CUDNN_STATUS_BAD_PARAM;
    *d = (struct cudnnConvolutionStruct){
        .rank = rank, .groups = 1, .mode = mode, .compute = compute};
    memcpy(d->pad, pad, sizeof *pad * (size_t)rank);
    memcpy(d->stride, stride, sizeof *stride * (size_t)rank);
    memcpy(d->dilation, dilation, sizeof *dilation * (size_t)rank);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups)
{
    d->groups = groups;
    return groups < 1 ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d,
                                          cudnnMathType_t math)
{
    d->math = math;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what is supported ---- */

static cudnnStatus_t consistent(const struct cudnnTensorStruct *x,
                                const struct cudnnFilterStruct *w,
                                const struct cudnnConvolutionStruct *c,
                                const struct cudnnTensorStruct *y)
{
    const bool wide = x->type == CUDNN_DATA_DOUBLE;
    if (x->rank != c->rank + 2 || w->rank != x->rank || y->rank != x->rank ||
        x->type != w->type || x->type != y->type || x->dims[0] != y->dims[0] ||
        x->dims[1] != w->dims[1] * c->groups || y->dims[1] != w->dims[0] ||
        w->dims[0] % c->groups)
        return CUDNN_STATUS_BAD_PARAM;
    if (c->compute != (wide ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
        return CUDNN_STATUS_NOT_SUPPORTED;
    for (int d = 0; d < c->rank; d++) {
        const int reach = (w->dims[2 + d] - 1) * c->dilation[d] + 1;
        const int room = x->dims[2 + d] + 2 * c->pad[d] - reach;
        if (room < 0 || room / c->stride[d] + 1 != y->dims[2 + d])
            return CUDNN_STATUS_BAD_PARAM;
    }
    if (x->dims[1] > 1 && x->dims[2] * x->dims[3] > 1 &&
        (x->strides[1] == 1) != (w->format == CUDNN_TENSOR_NHWC))
        return CUDNN_STATUS_NOT_SUPPORTED; /* the filter lies another way */
    if (w->format == CUDNN_TENSOR_NHWC && x->type == CUDNN_DATA_FLOAT &&
        c->math == CUDNN_FMA_MATH)
        return CUDNN_STATUS_NOT_SUPPORTED;
    return CUDNN_STATUS_SUCCESS;
}

#define PROPOSE(fast, slow)                                                      \
    const cudnnStatus_t rc = consistent(x, w, c, y);                             \
    *found = 0;                                                                  \
    if (rc == CUDNN_STATUS_BAD_PARAM || n < 2)                                   \
        return CUDNN_STATUS_BAD_PARAM;                                           \
    memset(perf, 0, 2 * sizeof *perf);                                           \
    for (int i = 0; i < 2; i++) {                                                \
        perf[i].algo = i ? slow : fast;                                          \
        perf[i].status = rc;                                                     \
        perf[i].memory = WORK_BYTES;                                             \
        perf[i].determinism = i ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC; \
        perf[i].mathType = c->math;                                              \
    }                                                                            \
    *found = 2;                                                                  \
    return CUDNN_STATUS_SUCCESS

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y, const int n,
    int *found, cudnnConvolutionFwdAlgoPerf_t *perf)
{
    (void)h;
    PROPOSE(CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t h, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t x, const int n,
    int *found, cudnnConvolutionBwdDataAlgoPerf_t *perf)
{
    (void)h;
    PROPOSE(CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t w, const int n,
    int *found, cudnnConvolutionBwdFilterAlgoPerf_t *perf)
{
    (void)h;
    PROPOSE(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
}

/* ---- the loops ---- */

enum { X, W, Y };

struct run {
    int result; /* X, W or Y */
    cudnnDataType_t type;
    struct cudnnConvolutionStruct conv;
    int64_t dims[3][MOST], strides[3][MOST]; /* batch or k, features, 3 spatial ones */
    void *p[3];
    void *work;
};

static int size_of(cudnnDataType_t t)
{
    return t == CUDNN_DATA_DOUBLE ? 8 : t == CUDNN_DATA_FLOAT ? 4 : 2;
}

static double load(const void *p, cudnnDataType_t t, int64_t i)
{
    return t == CUDNN_DATA_DOUBLE  ? ((const double *)p)[i]
           : t == CUDNN_DATA_FLOAT ? (double)((const float *)p)[i]
           : t == CUDNN_DATA_HALF  ? (double)ap_f16_to_f32(((const uint16_t *)p)[i])
                                   : (double)ap_bf16_to_f32(((const uint16_t *)p)[i]);
}

static void store(void *p, cudnnDataType_t t, int64_t i, double v)
{
    if (t == CUDNN_DATA_DOUBLE)
        ((double *)p)[i] = v;
    else if (t == CUDNN_DATA_FLOAT)
        ((float *)p)[i] = (float)v;
    else
        ((uint16_t *)p)[i] =
            t == CUDNN_DATA_HALF ? ap_f32_to_f16((float)v) : ap_f32_to_bf16((float)v);
}

/* A tensor's elements as doubles, dense in the order of its dims. */
static double *dense(const struct run *r, int t, bool read)
{
    const int64_t *n = r->dims[t], *s = r->strides[t];
    double *out = fake_alloc(sizeof *out * (size_t)(n[0] * n[1] * n[2] * n[3] * n[4]));
    int64_t at = 0;
    for (int64_t a = 0; read && a < n[0]; a++)
        for (int64_t b = 0; b < n[1]; b++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t j = 0; j < n[3]; j++)
                    for (int64_t k = 0; k < n[4]; k++)
                        out[at++] =
                            load(r->p[t], r->type,
                                 a * s[0] + b * s[1] + i * s[2] + j * s[3] + k * s[4]);
    return out;
}

static void write_back(const struct run *r, const double *v)
{
    const int64_t *n = r->dims[r->result], *s = r->strides[r->result];
    int64_t at = 0;
    for (int64_t a = 0; a < n[0]; a++)
        for (int64_t b = 0; b < n[1]; b++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t j = 0; j < n[3]; j++)
                    for (int64_t k = 0; k < n[4]; k++)
                        store(r->p[r->result], r->type,
                              a * s[0] + b * s[1] + i * s[2] + j * s[3] + k * s[4],
                              v[at++]);
}

/* The terms of one image's and one feature's plane: v[result] += product of the others.
 */
static void plane(const struct run *r, double *const v[3], int64_t x0, int64_t w0,
                  int64_t y0)
{
    const struct cudnnConvolutionStruct *c = &r->conv;
    const int64_t *xn = r->dims[X] + 2, *wn = r->dims[W] + 2, *yn = r->dims[Y] + 2;
    const int64_t n_y = yn[0] * yn[1] * yn[2], n_w = wn[0] * wn[1] * wn[2];
    for (int64_t o = 0; o < n_y; o++)
        for (int64_t f = 0; f < n_w; f++) {
            const int64_t at_o[3] = {o / yn[2] / yn[1], o / yn[2] % yn[1], o % yn[2]};
            const int64_t at_f[3] = {f / wn[2] / wn[1], f / wn[2] % wn[1], f % wn[2]};
            int64_t i = 0;
            bool in = true;
            for (int d = 0; d < 3; d++) {
                const int64_t q =
                    at_o[d] * c->stride[d] + at_f[d] * c->dilation[d] - c->pad[d];
                in = in && q >= 0 && q < xn[d];
                i = i * xn[d] + q;
            }
            const int64_t own = c->mode == CUDNN_CONVOLUTION ? n_w - 1 - f : f;
            if (!in)
                continue;
            if (r->result == Y)
                v[Y][y0 + o] += v[X][x0 + i] * v[W][w0 + own];
            else if (r->result == X)
                v[X][x0 + i] += v[Y][y0 + o] * v[W][w0 + own];
            else
                v[W][w0 + own] += v[X][x0 + i] * v[Y][y0 + o];
        }
}

static void convolution_run(void *args)
{
    const struct run *r = args;
    double *v[3];
    int64_t area[3];
    const int64_t c = r->dims[W][1], k = r->dims[W][0], per = k / r->conv.groups;
    memset(r->work, 0xFF, WORK_BYTES);
    for (int t = 0; t < 3; t++) {
        v[t] = dense(r, t, t != r->result);
        area[t] = r->dims[t][2] * r->dims[t][3] * r->dims[t][4];
    }
    for (int64_t n = 0; n < r->dims[X][0]; n++)
        for (int64_t o = 0; o < k; o++)
            for (int64_t i = 0; i < c; i++)
                plane(r, v, (n * r->dims[X][1] + o / per * c + i) * area[X],
                      (o * c + i) * area[W], (n * k + o) * area[Y]);
    write_back(r, v[r->result]);
    for (int t = 0; t < 3; t++)
        free(v[t]);
}

/* Two spatial dimensions are three, of which the first is 1. */
static void set_tensor(struct run *r, int t, int rank, const int *dims,
                       const int *strides)
{
    const int more = MOST - rank;
    r->dims[t][2] = r->strides[t][2] = 1;
    for (int d = 0; d < rank; d++) {
        r->dims[t][d < 2 ? d : d + more] = dims[d];
        r->strides[t][d < 2 ? d : d + more] = strides[d];
    }
}

static cudnnStatus_t run(cudnnHandle_t h, int result, const void *const scalars[2],
                         const struct cudnnTensorStruct *x,
                         const struct cudnnFilterStruct *w,
                         const struct cudnnConvolutionStruct *c,
                         const struct cudnnTensorStruct *y, struct run r)
{
    const cudnnStatus_t rc = consistent(x, w, c, y);
    const bool wide = x->type == CUDNN_DATA_DOUBLE;
    int strides[MOST], step = 1;
    if (rc != CUDNN_STATUS_SUCCESS)
        return rc;
    if (load(scalars[0], wide ? x->type : CUDNN_DATA_FLOAT, 0) != 1 ||
        load(scalars[1], wide ? x->type : CUDNN_DATA_FLOAT, 0) != 0)
        fake_fail("cudnn: scalars other than 1 and 0 are not in the fake");
    for (int t = 0; t < 3; t++)
        if (!r.p[t] || (uintptr_t)r.p[t] % (uintptr_t)size_of(x->type))
            return CUDNN_STATUS_BAD_PARAM;
    const bool nhwc = w->format == CUDNN_TENSOR_NHWC;
    step = nhwc ? w->dims[1] : 1;
    for (int d = w->rank - 1; d >= 2; step *= w->dims[d--])
        strides[d] = step;
    strides[1] = nhwc ? 1 : step;
    strides[0] = nhwc ? step : step * w->dims[1];
    r.result = result, r.type = x->type, r.conv = *c;
    set_tensor(&r, X, x->rank, x->dims, x->strides);
    set_tensor(&r, W, w->rank, w->dims, strides);
    set_tensor(&r, Y, y->rank, y->dims, y->strides);
    if (c->rank == 2) {
        for (int d = 2; d > 0; d--) {
            r.conv.pad[d] = c->pad[d - 1], r.conv.stride[d] = c->stride[d - 1];
            r.conv.dilation[d] = c->dilation[d - 1];
        }
        r.conv.pad[0] = 0, r.conv.stride[0] = r.conv.dilation[0] = 1;
    }
    return fake_enqueue(h->stream, "cudnn", convolution_run, &r, sizeof r)
               ? CUDNN_STATUS_EXECUTION_FAILED
               : CUDNN_STATUS_SUCCESS;
}

static void *changed(const void *p)
{
    return (void *)(uintptr_t)p;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t h, const void *alpha,
                                      const cudnnTensorDescriptor_t xd, const void *x,
                                      const cudnnFilterDescriptor_t wd, const void *w,
                                      const cudnnConvolutionDescriptor_t c,
                                      cudnnConvolutionFwdAlgo_t algo, void *work,
                                      size_t bytes, const void *beta,
                                      const cudnnTensorDescriptor_t yd, void *y)
{
    if (algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM || bytes < WORK_BYTES)
        return CUDNN_STATUS_BAD_PARAM;
    return run(h, Y, (const void *const[]){alpha, beta}, xd, wd, c, yd,
               (struct run){.p = {changed(x), changed(w), y}, .work = work});
}

cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t h, const void *alpha, const cudnnFilterDescriptor_t wd, const void *w,
    const cudnnTensorDescriptor_t yd, const void *y, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionBwdDataAlgo_t algo, void *work, size_t bytes, const void *beta,
    const cudnnTensorDescriptor_t xd, void *x)
{
    if (algo != CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 || bytes < WORK_BYTES)
        return CUDNN_STATUS_BAD_PARAM;
    return run(h, X, (const void *const[]){alpha, beta}, xd, wd, c, yd,
               (struct run){.p = {x, changed(w), changed(y)}, .work = work});
}

cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnTensorDescriptor_t yd, const void *y, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionBwdFilterAlgo_t algo, void *work, size_t bytes, const void *beta,
    const cudnnFilterDescriptor_t wd, void *w)
{
    if (algo != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 || bytes < WORK_BYTES)
        return CUDNN_STATUS_BAD_PARAM;
    return run(h, W, (const void *const[]){alpha, beta}, xd, wd, c, yd,
               (struct run){.p = {changed(x), w, changed(y)}, .work = work});
}

#endif
