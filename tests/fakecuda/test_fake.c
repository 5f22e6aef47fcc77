/*
 * Tests of the fake itself. Without an argument: what it computes and which errors it
 * returns. With the name of a fault: a program that has it, which the fake must end with
 * exit 97 and a message (tests/cuda.bats).
 */
#include "../unit/tap.h"
#include "fake.h"

#include <cublasLt.h>
#include <mpi.h>
#include <nccl.h>
#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 1000

static const char source[] =
    "AP_KERNEL(scale, 2, 128) {\n"
    "    const int i = blockIdx.x * 128 + threadIdx.x;\n"
    "    if (i < 1000) ((float *)a.p[1])[i] = 2 * ((const float *)a.p[0])[i];\n"
    "}\n"
    "AP_KERNEL(beyond, 1, 128) {\n"
    "    ((float *)a.p[0])[blockIdx.x * 128 + threadIdx.x] = 1;\n"
    "}\n"
    /* the sum of a block, through shared memory */
    "AP_KERNEL(sum, 2, 128) {\n"
    "    __shared__ float part[128];\n"
    "    const int t = threadIdx.x;\n"
    "    part[t] = ((const float *)a.p[0])[blockIdx.x * 128 + t];\n"
    "    for (int s = 64; s > 0; s /= 2) {\n"
    "        __syncthreads();\n"
    "        if (t < s) part[t] += part[t + s];\n"
    "    }\n"
    "    if (t == 0) ((float *)a.p[1])[blockIdx.x] = part[0];\n"
    "}\n"
    "AP_KERNEL(unequal, 1, 128) {\n"
    "    if (threadIdx.x < 100) __syncthreads();\n"
    "}\n"
    /* a neighbour's element: before it is there; and when it may have changed */
    "AP_KERNEL(early, 2, 128) {\n"
    "    __shared__ float part[128];\n"
    "    const int t = threadIdx.x;\n"
    "    part[t] = ((const float *)a.p[0])[t];\n"
    "    ((float *)a.p[1])[blockIdx.x * 128 + t] = part[(t + 1) % 128];\n"
    "}\n"
    "AP_KERNEL(late, 2, 128) {\n"
    "    __shared__ float part[128];\n"
    "    const int t = threadIdx.x;\n"
    "    part[t] = ((const float *)a.p[0])[t];\n"
    "    __syncthreads();\n"
    "    part[t] = part[(t + 1) % 128];\n"
    "    ((float *)a.p[1])[blockIdx.x * 128 + t] = part[t];\n"
    "}\n"
    "struct alignas(16) four { float v[4]; };\n"
    "AP_KERNEL(unaligned, 2, 128) {\n"
    "    *(four *)a.p[1] = *(const four *)(a.p[0] + 8);\n"
    "}\n"
    "AP_KERNEL(outside, 2, 128) {\n"
    "    __shared__ float part[128];\n"
    "    part[threadIdx.x + blockIdx.x] = 1;\n"
    "}\n"
    "AP_KERNEL(overflow, 2, 128) {\n"
    "    const int far = 1 << 26, t = threadIdx.x;\n"
    "    ((float *)a.p[1])[t] = (float)(t * far);\n"
    "}\n"
    "AP_KERNEL(large, 2, 128) {\n"
    "    __shared__ double parts[6200];\n"
    "    parts[threadIdx.x] = 1;\n"
    "    ((float *)a.p[1])[0] = (float)parts[blockIdx.x];\n"
    "}\n";

static cudaKernel_t kernel_of(const char *name)
{
    static cudaLibrary_t library;
    static const char *const options[] = {"--gpu-architecture=sm_90", "--std=c++17"};
    cudaKernel_t k = NULL;
    if (!library) {
        nvrtcProgram p;
        size_t n;
        nvrtcCreateProgram(&p, source, "test", 0, NULL, NULL);
        if (nvrtcCompileProgram(p, 2, options)) {
            char log[4000];
            nvrtcGetProgramLog(p, log);
            fake_fail("%s", log);
        }
        nvrtcGetCUBINSize(p, &n);
        char *cubin = malloc(n);
        nvrtcGetCUBIN(p, cubin);
        cudaLibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0);
        free(cubin);
        nvrtcDestroyProgram(&p);
    }
    cudaLibraryGetKernel(&k, library, name);
    return k;
}

static cudaError_t launch(const char *name, unsigned blocks, unsigned threads, void *p,
                          void *q, cudaStream_t s)
{
    void *pointers[] = {p, q}, *args[] = {pointers};
    const dim3 grid = {blocks, 1, 1}, block = {threads, 1, 1};
    return cudaLaunchKernel((const void *)kernel_of(name), grid, block, args, 0, s);
}

static float *new_floats(int n)
{
    void *p = NULL;
    cudaMalloc(&p, sizeof(float) * (size_t)n);
    return p;
}

static cudaStream_t new_stream(void)
{
    cudaStream_t s = NULL;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    return s;
}

static float first_of(const float *p, cudaStream_t s)
{
    float v = 0;
    cudaMemcpyAsync(&v, p, sizeof v, cudaMemcpyDeviceToHost, s);
    return v;
}

/* x on one stream, twice x on another; true: the second saw the first. */
static bool in_order(bool with_event)
{
    float x[N], *a = new_floats(N), *b = new_floats(N);
    cudaStream_t s = new_stream(), t = new_stream();
    cudaEvent_t e;
    for (int i = 0; i < N; i++)
        x[i] = 3;
    cudaMemsetAsync(a, 0, sizeof x, s);
    cudaStreamSynchronize(s);
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    cudaMemcpyAsync(a, x, sizeof x, cudaMemcpyHostToDevice, s);
    cudaEventRecord(e, s);
    if (with_event)
        cudaStreamWaitEvent(t, e, 0);
    launch("scale", 8, 128, a, b, t);
    const bool is = first_of(b, t) == 6;
    cudaStreamSynchronize(s);
    cudaEventDestroy(e);
    cudaStreamDestroy(s);
    cudaStreamDestroy(t);
    cudaFree(a);
    cudaFree(b);
    return is;
}

static void test_kernels(void)
{
    cudaStream_t s = new_stream();
    float x[N], y[8], *a = new_floats(1024), *b = new_floats(1024);
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    cudaMemsetAsync(a, 0, 4096, s);
    cudaMemcpyAsync(a, x, sizeof x, cudaMemcpyHostToDevice, s);
    CHECK(launch("sum", 8, 128, a, b, s) == cudaSuccess, "a kernel with barriers");
    cudaMemcpyAsync(y, b, sizeof y, cudaMemcpyDeviceToHost, s);
    CHECK(y[0] == 127 * 64 && y[7] == 896 * 104 + 103 * 52, "sums of blocks");
    CHECK(launch("sum", 0, 128, a, b, s) == cudaErrorInvalidConfiguration, "no block");
    CHECK(launch("sum", 8, 256, a, b, s) == cudaErrorInvalidConfiguration,
          "more threads than the kernel was compiled for");
    const cudaError_t last = cudaGetLastError();
    CHECK(last == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess,
          "the last error, once");
    CHECK(kernel_of("none") == NULL, "an unknown kernel");
    cudaFree(a);
    cudaFree(b);
    CHECK(cudaMemcpyAsync(a, x, 4, cudaMemcpyHostToDevice, s) == cudaErrorInvalidValue,
          "memory that was freed");
}

/* Whether the threads of some block read what others write without a barrier between,
 * and it shows. */
static bool shows(const char *name)
{
    cudaStream_t s = new_stream();
    float x[128], y[256], *a = new_floats(128), *b = new_floats(256);
    bool all = true;
    for (int i = 0; i < 128; i++)
        x[i] = (float)i;
    cudaMemcpyAsync(a, x, sizeof x, cudaMemcpyHostToDevice, s);
    launch(name, 2, 128, a, b, s);
    cudaMemcpyAsync(y, b, sizeof y, cudaMemcpyDeviceToHost, s);
    for (int i = 0; i < 256; i++)
        all &= y[i] == x[(i + 1) % 128];
    cudaFree(a);
    cudaFree(b);
    return !all;
}

static void test_capture(void)
{
    cudaStream_t s = new_stream(), t = new_stream();
    cudaEvent_t e, f;
    cudaGraph_t g;
    cudaGraphExec_t x;
    float *a = new_floats(N), *b = new_floats(N), v;
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&f, cudaEventDisableTiming);
    cudaMemsetAsync(a, 0, N * sizeof *a, s);
    cudaStreamSynchronize(s);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    launch("scale", 8, 128, a, b, s);
    cudaEventRecord(e, s);
    cudaStreamWaitEvent(t, e, 0);
    launch("scale", 8, 128, b, a, t);
    cudaEventRecord(f, t);
    cudaStreamWaitEvent(s, f, 0);
    CHECK(cudaStreamEndCapture(s, &g) == cudaSuccess, "a capture over two streams");
    cudaGraphInstantiate(&x, g, 0);
    v = 1;
    cudaMemcpyAsync(a, &v, sizeof v, cudaMemcpyHostToDevice, s);
    cudaGraphLaunch(x, s);
    cudaGraphLaunch(x, s);
    CHECK(first_of(a, s) == 16, "a graph launched twice");
    cudaGraphExecDestroy(x);
    cudaGraphDestroy(g);

    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    launch("scale", 8, 128, a, b, s);
    cudaEventRecord(e, s);
    cudaStreamWaitEvent(t, e, 0);
    launch("scale", 8, 128, b, a, t);
    CHECK(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureUnjoined && !g,
          "a stream that is not joined");
    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    CHECK(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported,
          "waiting in a capture");
    CHECK(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureInvalidated,
          "which ends it");
    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    CHECK(cudaMemcpyAsync(a, &v, 4, cudaMemcpyHostToDevice, s) ==
              cudaErrorStreamCaptureUnsupported,
          "pageable memory in a capture");
    cudaStreamEndCapture(s, &g);
    launch("scale", 8, 128, a, b, t);
    cudaEventRecord(e, t);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
    CHECK(cudaStreamWaitEvent(s, e, 0) == cudaErrorStreamCaptureIsolation,
          "an event from outside of the capture");
    cudaStreamEndCapture(s, &g);
    cudaStreamSynchronize(t);
    cudaFree(a);
    cudaFree(b);
}

struct product {
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found;
    cublasStatus_t rc;
};

/* (2 x 3) (3 x 2) of f32, leading dimension lda of the first. */
static struct product new_product(cudaDataType_t in, cudaDataType_t out, int64_t lda,
                                  uint64_t workspace)
{
    struct product p;
    int n;
    const uint32_t align = 16;
    cublasLtCreate(&p.lt);
    cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&p.a, in, 2, 3, lda);
    cublasLtMatrixLayoutCreate(&p.b, in, 3, 2, 3);
    cublasLtMatrixLayoutCreate(&p.d, out, 2, 2, 2);
    cublasLtMatmulPreferenceCreate(&p.pref);
    cublasLtMatmulPreferenceSetAttribute(p.pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof workspace);
    cublasLtMatmulPreferenceSetAttribute(
        p.pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align);
    p.rc = cublasLtMatmulAlgoGetHeuristic(p.lt, p.desc, p.a, p.b, p.d, p.d, p.pref, 1,
                                          &p.found, &n);
    return p;
}

static cublasStatus_t multiply(struct product *p, const float *a, const float *b,
                               float *d, void *workspace, size_t bytes, cudaStream_t s)
{
    const float one = 1, zero = 0;
    return cublasLtMatmul(p->lt, p->desc, &one, a, p->a, b, p->b, &zero, d, p->d, d, p->d,
                          &p->found.algo, workspace, bytes, s);
}

static void free_product(struct product *p)
{
    cublasLtMatmulPreferenceDestroy(p->pref);
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->d);
    cublasLtMatmulDescDestroy(p->desc);
    cublasLtDestroy(p->lt);
}

static void test_products(void)
{
    cudaStream_t s = new_stream();
    const float x[] = {1, 2, 3, 4, 5, 6};
    float *a = new_floats(64), *b = new_floats(64), *d = new_floats(1024), y[4];
    struct product p = new_product(CUDA_R_32F, CUDA_R_32F, 2, 1024);
    cudaMemcpyAsync(a, x, sizeof x, cudaMemcpyHostToDevice, s);
    cudaMemcpyAsync(b, x, sizeof x, cudaMemcpyHostToDevice, s);
    CHECK(p.rc == CUBLAS_STATUS_SUCCESS &&
              multiply(&p, a, b, d, d + 64, 512, s) == CUBLAS_STATUS_SUCCESS,
          "a product");
    cudaMemcpyAsync(y, d, sizeof y, cudaMemcpyDeviceToHost, s);
    CHECK(y[0] == 22 && y[1] == 28 && y[2] == 49 && y[3] == 64, "its values");
    CHECK(multiply(&p, a, b, d, d + 64, 256, s) == CUBLAS_STATUS_INVALID_VALUE,
          "too small a workspace");
    CHECK(multiply(&p, a + 1, b, d, d + 64, 512, s) == CUBLAS_STATUS_NOT_SUPPORTED,
          "an operand that is not aligned as the heuristic was told");
    free_product(&p);
    p = new_product(CUDA_R_32F, CUDA_R_32F, 1, 0);
    CHECK(p.rc == CUBLAS_STATUS_INVALID_VALUE, "too small a leading dimension");
    free_product(&p);
    p = new_product(CUDA_R_16BF, CUDA_R_16F, 2, 0);
    CHECK(p.rc == CUBLAS_STATUS_NOT_SUPPORTED, "bf16 into f16");
    free_product(&p);
    p = new_product(CUDA_R_8F_E4M3, CUDA_R_32F, 2, 0);
    CHECK(p.rc == CUBLAS_STATUS_NOT_SUPPORTED, "f8 without the transpose that it needs");
    free_product(&p);
    cudaFree(a);
    cudaFree(b);
    cudaFree(d);
}

static ncclComm_t join_ranks(int rank, int n)
{
    ncclUniqueId id;
    ncclComm_t c;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclInProgress;
    config.blocking = 0;
    cudaSetDevice((int)fake_setting("AP_TEST_DEVICE", rank));
    if (rank == 0)
        ncclGetUniqueId(&id);
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    CHECK(ncclCommInitRankConfig(&c, n, id, rank, &config) == ncclInProgress,
          "ranks join without waiting");
    while (state == ncclInProgress)
        ncclCommGetAsyncError(c, &state);
    if (state != ncclSuccess)
        fake_fail("%s", ncclGetLastError(c));
    return c;
}

static void test_nccl(bool differ)
{
    int rank, n;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    ncclComm_t c = join_ranks(rank, n);
    cudaStream_t s = new_stream();
    float *a = new_floats(64), *b = new_floats(64), v[64];
    for (int i = 0; i < 64; i++)
        v[i] = (float)(rank + 1);
    cudaMemcpyAsync(a, v, sizeof v, cudaMemcpyHostToDevice, s);
    ncclAllReduce(a, b, differ ? (size_t)(8 + rank) : 8, ncclFloat, ncclSum, c, s);
    CHECK(first_of(b, s) == (float)n * (float)(n + 1) / 2, "all-reduce");
    ncclAllGather(a, b, 1, ncclFloat, c, s);
    CHECK(first_of(b + n - 1, s) == (float)n, "all-gather");
    ncclReduceScatter(a, b, 1, ncclFloat, ncclMax, c, s);
    CHECK(first_of(b, s) == (float)n, "reduce-scatter");
    ncclGroupStart();
    ncclSend(a, 4, ncclFloat, (rank + 1) % n, c, s);
    ncclRecv(b, 4, ncclFloat, (rank + n - 1) % n, c, s);
    ncclGroupEnd();
    CHECK(first_of(b, s) == (float)((rank + n - 1) % n + 1), "send and receive");
    ncclCommDestroy(c);
    MPI_Finalize();
}

/* ---- programs with a fault ---- */

static void read_on_host(void)
{
    const float *a = new_floats(N);
    printf("%g\n", a[5]);
}

static void write_beyond(unsigned blocks)
{
    cudaStream_t s = new_stream();
    launch("beyond", blocks, 128, new_floats(1000), NULL, s);
    cudaStreamSynchronize(s);
}

static void run_kernel(const char *name, unsigned blocks)
{
    cudaStream_t s = new_stream();
    launch(name, blocks, 128, new_floats(N), new_floats(N), s);
    cudaStreamSynchronize(s);
}

static void use_freed(void)
{
    cudaStream_t s = new_stream();
    float *a = new_floats(N);
    cudaFree(a);
    launch("scale", 8, 128, a, new_floats(N), s);
    cudaStreamSynchronize(s);
}

/* A graph that copies from memory of the host, which is freed. */
static void copy_unpinned(void)
{
    cudaStream_t s = new_stream();
    cudaGraph_t g;
    cudaGraphExec_t x;
    float *a = new_floats(N);
    void *p;
    cudaMallocHost(&p, N);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    cudaMemcpyAsync(a, p, N, cudaMemcpyHostToDevice, s);
    cudaStreamEndCapture(s, &g);
    cudaGraphInstantiate(&x, g, 0);
    cudaFreeHost(p);
    cudaGraphLaunch(x, s);
    cudaStreamSynchronize(s);
}

/* Fills new memory with zeros and reads it. */
static void read_unwritten(void)
{
    cudaStream_t s = new_stream();
    float *a = new_floats(N);
    cudaMemsetAsync(a, 0, N * sizeof *a, s);
    const bool is_zero = first_of(a, s) == 0;
    cudaMemsetAsync(a, 0, N * sizeof *a, s);
    printf("%s\n", is_zero ? "zero" : first_of(a, s) == 0 ? "noise" : "never zero");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "host-touch"))
        read_on_host();
    else if (!strcmp(what, "filler"))
        write_beyond(8); /* 1024 of 1000 floats: the end of the last 256 bytes */
    else if (!strcmp(what, "guard"))
        write_beyond(9);
    else if (!strcmp(what, "barrier"))
        run_kernel("unequal", 1);
    else if (!strcmp(what, "unaligned") || !strcmp(what, "outside") ||
             !strcmp(what, "overflow") || !strcmp(what, "large"))
        run_kernel(what, 2);
    else if (!strcmp(what, "early") || !strcmp(what, "late"))
        printf("%s\n", shows(what) ? "noticed" : "unnoticed");
    else if (!strcmp(what, "freed"))
        use_freed();
    else if (!strcmp(what, "unpinned"))
        copy_unpinned();
    else if (!strcmp(what, "unwritten"))
        read_unwritten();
    else if (!strcmp(what, "no-event"))
        printf("%s\n", in_order(false) ? "unnoticed" : "noticed");
    else if (!strcmp(what, "scale"))
        printf("%s\n", in_order(true) ? "right" : "wrong");
    else if (!strcmp(what, "nccl") || !strcmp(what, "nccl-differ"))
        test_nccl(!strcmp(what, "nccl-differ"));
    if (*what)
        return tap_done();
    CHECK(in_order(true), "an event orders two streams");
    test_kernels();
    test_capture();
    test_products();
    return tap_done();
}
