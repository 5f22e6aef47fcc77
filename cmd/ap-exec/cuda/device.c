/* The device of this rank: choosing it, its streams, handles and memory. */
#include "cuda.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cuda_device cuda_dev;

void cuda_check(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess)
        ap_die(AP_BAD_INPUT, "rank %d: cuda: %s: %s", cuda_dev.rank, what,
               cudaGetErrorString(rc));
}

void cuda_check_lt(cublasStatus_t rc, const char *what)
{
    if (rc != CUBLAS_STATUS_SUCCESS)
        ap_die(AP_BAD_INPUT, "rank %d: cublasLt: %s: %s", cuda_dev.rank, what,
               cublasLtGetStatusString(rc));
}

/* Without a driver there is no device; cudaGetDeviceCount then does not change n. */
int cuda_probe(const struct cuda_options *opts, struct ap_err *err)
{
    int n = 0;
    cuda_dev.opts = *opts;
    if (opts->compile_for) {
        cuda_dev.arch = opts->compile_for;
        return 0;
    }
    const cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess)
        return ap_err_set(err, "cuda: %s", cudaGetErrorString(rc));
    return n > 0 ? 0 : ap_err_set(err, "cuda: no device");
}

/* ---- joining the job ---- */

/* Bytes of a host's name that are compared. */
#define HOST_BYTES 256

/* This rank's number among the ranks of its host. */
static int local_rank(struct comm *c)
{
    char mine[HOST_BYTES] = {0};
    int n = 0;
    gethostname(mine, sizeof mine - 1);
    const uint64_t hash = ap_hash(mine, strlen(mine), 0);
    int64_t *host = ap_xrealloc(NULL, sizeof *host * (size_t)c->size);
    for (int k = 0; k < c->size; k++) {
        host[k] = (int64_t)hash;
        if (c->rank == k || c->rank == 0)
            c->to_root(c, k, &host[k], sizeof *host);
    }
    c->broadcast(c, host, (int64_t)sizeof *host * c->size);
    for (int k = 0; k < c->rank; k++)
        n += host[k] == (int64_t)hash;
    free(host);
    return n;
}

static int attribute(enum cudaDeviceAttr what)
{
    int v = 0;
    cuda_check(cudaDeviceGetAttribute(&v, what, cuda_dev.ordinal),
               "cudaDeviceGetAttribute");
    return v;
}

int cuda_join(struct comm *c, struct ap_err *err)
{
    int n = 0;
    cuda_dev.rank = c->rank;
    if (cuda_dev.opts.compile_for)
        return 0;
    cuda_check(cudaGetDeviceCount(&n), "cudaGetDeviceCount");
    cuda_dev.ordinal = local_rank(c) % n;
    cuda_check(cudaSetDevice(cuda_dev.ordinal), "cudaSetDevice");
    cuda_check(
        cudaDeviceGetPCIBusId(cuda_dev.bus_id, sizeof cuda_dev.bus_id, cuda_dev.ordinal),
        "cudaDeviceGetPCIBusId");
    cuda_dev.arch = attribute(cudaDevAttrComputeCapabilityMajor) * 10 +
                    attribute(cudaDevAttrComputeCapabilityMinor);
    cuda_check(cudaStreamCreateWithFlags(&cuda_dev.stream, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
    cuda_check(cudaStreamCreateWithFlags(&cuda_dev.comm, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
    cuda_check_lt(cublasLtCreate(&cuda_dev.lt), "cublasLtCreate");
    return comm_nccl_open(c, err);
}

int64_t cuda_describe(char *name, size_t size)
{
    struct cudaDeviceProp p;
    cuda_check(cudaGetDeviceProperties(&p, cuda_dev.ordinal), "cudaGetDeviceProperties");
    snprintf(name, size, "%s", p.name);
    return (int64_t)p.totalGlobalMem;
}

void cuda_sync(void)
{
    comm_nccl_sync(cuda_dev.stream);
}

/* ---- memory ---- */

/* Kernels that are only compiled get addresses that nothing reads. */
static void *no_memory(int64_t bytes)
{
    static uintptr_t next = (uintptr_t)1 << 40;
    const uintptr_t p = next;
    next += (uintptr_t)exec_room(bytes + 1);
    return (void *)p;
}

void *cuda_alloc(int64_t bytes)
{
    void *p = NULL;
    if (cuda_dev.opts.compile_for)
        return no_memory(bytes);
    const size_t n = (size_t)exec_room(bytes > 0 ? bytes : 1);
    if (cudaMalloc(&p, n) != cudaSuccess) {
        cudaGetLastError(); /* not enough memory is the caller's message */
        return NULL;
    }
    cuda_check(cudaMemsetAsync(p, 0, n, cuda_dev.stream), "cudaMemsetAsync");
    return p;
}

void cuda_release(void *p)
{
    if (!p || cuda_dev.opts.compile_for)
        return;
    comm_nccl_sync(cuda_dev.stream);
    cuda_check(cudaFree(p), "cudaFree");
}

static void transfer(void *dst, const void *src, int64_t bytes, enum cudaMemcpyKind kind,
                     const char *what)
{
    if (bytes <= 0 || dst == src || cuda_dev.opts.compile_for)
        return;
    cuda_check(cudaMemcpyAsync(dst, src, (size_t)bytes, kind, cuda_dev.stream), what);
    if (kind != cudaMemcpyDeviceToDevice) /* the host's memory is the caller's again */
        comm_nccl_sync(cuda_dev.stream);
}

void cuda_write(void *dst, const void *host, int64_t bytes)
{
    transfer(dst, host, bytes, cudaMemcpyHostToDevice, "copy to the device");
}

void cuda_read(void *host, const void *src, int64_t bytes)
{
    transfer(host, src, bytes, cudaMemcpyDeviceToHost, "copy from the device");
}

void cuda_copy(void *dst, const void *src, int64_t bytes)
{
    transfer(dst, src, bytes, cudaMemcpyDeviceToDevice, "copy on the device");
}
