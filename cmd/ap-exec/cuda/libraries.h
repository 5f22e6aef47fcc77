/*
 * Libraries of NVIDIA that are opened when a program needs them, because they are large
 * and few programs do. The functions that are called, as tables.
 */
#ifndef EXEC_CUDA_LIBRARIES_H
#define EXEC_CUDA_LIBRARIES_H

#include <cuda_runtime.h>
#include <stddef.h>
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define CUDA_HAS_CUDNN 1
#else
#define CUDA_HAS_CUDNN 0 /* convolutions are products */
#endif

/* ---- cuFFT, whose header not every toolkit folder has; cufft.h says the same ---- */

enum { CUFFT_FORWARD_ = -1, CUFFT_INVERSE_ = 1 };
enum { CUFFT_C2C_ = 0x29, CUFFT_R2C_ = 0x2a, CUFFT_C2R_ = 0x2c };

/* CALL(function, parameters); all return 0 or a cufftResult, plans are cufftHandle. */
#define CUFFT_CALLS(CALL)                                                               \
    CALL(cufftCreate, (int *plan))                                                      \
    CALL(cufftDestroy, (int plan))                                                      \
    CALL(cufftSetStream, (int plan, cudaStream_t stream))                               \
    CALL(cufftSetAutoAllocation, (int plan, int allocate))                              \
    CALL(cufftMakePlanMany, (int plan, int rank, int *n, int *in_embed, int in_stride,  \
                             int in_dist, int *out_embed, int out_stride, int out_dist, \
                             int type, int batch, size_t *work_bytes))                  \
    CALL(cufftSetWorkArea, (int plan, void *work))                                      \
    CALL(cufftExecC2C, (int plan, void *in, void *out, int direction))                  \
    CALL(cufftExecR2C, (int plan, void *in, void *out))                                 \
    CALL(cufftExecC2R, (int plan, void *in, void *out))

#define CUFFT_FIELD(name, parameters) int(*name) parameters;
struct cufft {
    CUFFT_CALLS(CUFFT_FIELD)
};
/* NULL: there is none. */
const struct cufft *cufft_open(void);

/* ---- cuDNN 9 ---- */

#define CUDNN_CALLS(CALL)               \
    CALL(cudnnGetVersion)               \
    CALL(cudnnCreate)                   \
    CALL(cudnnSetStream)                \
    CALL(cudnnGetErrorString)           \
    CALL(cudnnBackendCreateDescriptor)  \
    CALL(cudnnBackendDestroyDescriptor) \
    CALL(cudnnBackendSetAttribute)      \
    CALL(cudnnBackendGetAttribute)      \
    CALL(cudnnBackendFinalize)          \
    CALL(cudnnBackendExecute)

#if CUDA_HAS_CUDNN
#define CUDNN_FIELD(name) __typeof__(name) *name;
struct cudnn {
    CUDNN_CALLS(CUDNN_FIELD)
};
/* NULL: there is none. */
const struct cudnn *cudnn_open(void);
/* For this rank's device and stream; NULL: there is no cuDNN. */
cudnnHandle_t cudnn_handle(void);
/* Ends the program with the rank, the call and cuDNN's message unless rc is success. */
void cudnn_check(cudnnStatus_t rc, const char *what);
#endif

#endif
