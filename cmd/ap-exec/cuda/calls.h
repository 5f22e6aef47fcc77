/*
 * All functions of CUDA's libraries that the backend calls, except those of libraries
 * that are opened on demand (libraries.h). tests/fakecuda implements them on the host. A
 * new function goes here first; the test of the plug-in compares this list with the
 * undefined symbols of ap_cuda.so.
 */
#ifndef EXEC_CUDA_CALLS_H
#define EXEC_CUDA_CALLS_H

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nvrtc.h>

#define CUDA_CALLS(CALL)                       \
    /* devices and errors */                   \
    CALL(cudaGetDeviceCount)                   \
    CALL(cudaSetDevice)                        \
    CALL(cudaDeviceGetAttribute)               \
    CALL(cudaDeviceGetPCIBusId)                \
    CALL(cudaGetDeviceProperties)              \
    CALL(cudaGetErrorString)                   \
    CALL(cudaGetLastError)                     \
    /* memory */                               \
    CALL(cudaMalloc)                           \
    CALL(cudaFree)                             \
    CALL(cudaMallocHost)                       \
    CALL(cudaFreeHost)                         \
    CALL(cudaMemcpyAsync)                      \
    CALL(cudaMemsetAsync)                      \
    /* streams and events */                   \
    CALL(cudaStreamCreateWithFlags)            \
    CALL(cudaStreamQuery)                      \
    CALL(cudaStreamWaitEvent)                  \
    CALL(cudaEventCreateWithFlags)             \
    CALL(cudaEventRecord)                      \
    CALL(cudaEventElapsedTime)                 \
    CALL(cudaLaunchHostFunc)                   \
    CALL(cudaEventDestroy)                     \
    /* graphs */                               \
    CALL(cudaStreamBeginCapture)               \
    CALL(cudaStreamEndCapture)                 \
    CALL(cudaGraphInstantiate)                 \
    CALL(cudaGraphLaunch)                      \
    CALL(cudaGraphDestroy)                     \
    CALL(cudaGraphExecDestroy)                 \
    /* kernels */                              \
    CALL(cudaLibraryLoadData)                  \
    CALL(cudaLibraryGetKernel)                 \
    CALL(cudaLaunchKernel)                     \
    CALL(nvrtcVersion)                         \
    CALL(nvrtcCreateProgram)                   \
    CALL(nvrtcCompileProgram)                  \
    CALL(nvrtcGetProgramLogSize)               \
    CALL(nvrtcGetProgramLog)                   \
    CALL(nvrtcGetCUBINSize)                    \
    CALL(nvrtcGetCUBIN)                        \
    CALL(nvrtcDestroyProgram)                  \
    CALL(nvrtcGetErrorString)                  \
    /* matrix products */                      \
    CALL(cublasLtCreate)                       \
    CALL(cublasLtGetStatusString)              \
    CALL(cublasLtMatmulDescCreate)             \
    CALL(cublasLtMatmulDescSetAttribute)       \
    CALL(cublasLtMatmulDescDestroy)            \
    CALL(cublasLtMatrixLayoutCreate)           \
    CALL(cublasLtMatrixLayoutSetAttribute)     \
    CALL(cublasLtMatrixLayoutDestroy)          \
    CALL(cublasLtMatmulPreferenceCreate)       \
    CALL(cublasLtMatmulPreferenceSetAttribute) \
    CALL(cublasLtMatmulPreferenceDestroy)      \
    CALL(cublasLtMatmulAlgoGetHeuristic)       \
    CALL(cublasLtMatmul)                       \
    /* collectives */                          \
    CALL(ncclGetUniqueId)                      \
    CALL(ncclCommInitRankConfig)               \
    CALL(ncclCommSplit)                        \
    CALL(ncclCommGetAsyncError)                \
    CALL(ncclCommAbort)                        \
    CALL(ncclCommDestroy)                      \
    CALL(ncclGetErrorString)                   \
    CALL(ncclGetLastError)                     \
    CALL(ncclGroupStart)                       \
    CALL(ncclGroupEnd)                         \
    CALL(ncclAllReduce)                        \
    CALL(ncclAllGather)                        \
    CALL(ncclReduceScatter)                    \
    CALL(ncclSend)                             \
    CALL(ncclRecv)

#endif
