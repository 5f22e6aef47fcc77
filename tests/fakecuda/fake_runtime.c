/* Devices, errors, settings: the part of the runtime that queues nothing. */
#include "fake.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cudaError_t last_error;
static int device;

void fake_fail(const char *format, ...)
{
    va_list ap;
    char text[1024];
    int is_up = 0, is_down = 0;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    fprintf(stderr, "fakecuda: rank %d: %s\n", fake_job_rank(), text);
    fflush(stderr);
    MPI_Initialized(&is_up);
    MPI_Finalized(&is_down);
    if (is_up && !is_down)
        MPI_Abort(MPI_COMM_WORLD, FAKE_EXIT);
    _exit(FAKE_EXIT);
}

void *fake_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        fake_fail("out of host memory for %zu bytes", bytes);
    return p;
}

cudaError_t fake_error(cudaError_t rc)
{
    if (rc != cudaSuccess)
        last_error = rc;
    return rc;
}

long fake_setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

int fake_job_rank(void)
{
    return (int)fake_setting("OMPI_COMM_WORLD_RANK", 0);
}

bool fake_fault(const char *kind)
{
    static long seen; /* of the kind that the setting names */
    const char *fault = getenv("AP_FAKE_FAULT");
    const size_t n = strlen(kind);
    if (!fault || strncmp(fault, kind, n) || fault[n] != ':')
        return false;
    const bool is_now = ++seen == strtol(fault + n + 1, NULL, 10);
    if (is_now)
        fprintf(stderr, "fakecuda: rank %d: planted %s\n", fake_job_rank(), fault);
    return is_now;
}

static int n_devices(void)
{
    return (int)fake_setting("AP_FAKE_DEVICES", 8);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = n_devices();
    return *count > 0 ? cudaSuccess : fake_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int d)
{
    if (d < 0 || d >= n_devices())
        return fake_error(cudaErrorInvalidDevice);
    device = d;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *d)
{
    *d = device;
    return cudaSuccess;
}

/* An H100's figures where a program may plan by them. */
static const struct {
    enum cudaDeviceAttr attr;
    int value;
} attributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrMemoryPoolsSupported, 1},
};

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int d)
{
    if (d < 0 || d >= n_devices())
        return fake_error(cudaErrorInvalidDevice);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attr == attr) {
            *value = attributes[i].value;
            return cudaSuccess;
        }
    fake_fail("cudaDeviceGetAttribute: attribute %d is not in the table", (int)attr);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d)
{
    if (d < 0 || d >= n_devices())
        return fake_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "fakecuda");
    p->totalGlobalMem = (size_t)fake_setting("AP_FAKE_MEMORY", 8L << 30);
    p->major = 9;
    p->warpSize = 32;
    p->multiProcessorCount = 132;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = 232448;
    p->l2CacheSize = 50 << 20;
    p->pciBusID = d + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int len, int d)
{
    if (d < 0 || d >= n_devices())
        return fake_error(cudaErrorInvalidDevice);
    snprintf(text, (size_t)len, "0000:%02X:00.0", d + 1);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t rc = last_error;
    last_error = cudaSuccess;
    return rc;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* Those that the fake returns; the texts are CUDA's. */
static const struct {
    cudaError_t rc;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
     "invalid resource handle"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage",
     "device kernel image is invalid"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not initiated in this stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const char *cudaGetErrorString(cudaError_t rc)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].rc == rc)
            return errors[i].text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t rc)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].rc == rc)
            return errors[i].name;
    return "cudaErrorUnknown";
}
