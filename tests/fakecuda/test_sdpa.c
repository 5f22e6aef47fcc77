/*
 * Whether the cuDNN that is installed has kernels for the graphs of sdpa.c on an H100,
 * without one: its heuristics and its kernel generators run on properties of a device.
 * Needs libcudnn.so.9 and a libcuda.so.1, for which the toolkit's stub will do: a plan
 * counts once its kernel is compiled and only loading it fails. Exits 77 where there is
 * no cuDNN.
 */
#include "../unit/tap.h"
#include "sdpa.h"

#if CUDA_HAS_CUDNN

#include <dlfcn.h>
#include <string.h>

#define CUDNN_NAME(name) #name,
static const char *const names[] = {CUDNN_CALLS(CUDNN_NAME)};

static struct cudnn real, table;
static cudnnBackendDescriptor_t device;
static bool compiled; /* a kernel, since it was reset */

static const char h100[] =
    "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
    "\"totalGlobalMem\":85000000000,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,\"cudaDeviceId\":0,"
    "\"deviceVer\":900,\"driverVer\":13000,\"deviceName\":\"NVIDIA H100 80GB HBM3\"}";

/* ---- what sdpa.c calls: cuDNN, with the device's properties in place of a handle ----
 */

const struct cudnn *cudnn_open(void)
{
    return &table;
}

cudnnHandle_t cudnn_handle(void)
{
    return (cudnnHandle_t)(void *)&device;
}

void cudnn_check(cudnnStatus_t rc, const char *what)
{
    CHECK(rc == CUDNN_STATUS_SUCCESS, "%s", what);
}

static cudnnStatus_t set_attribute(cudnnBackendDescriptor_t d,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t n,
                                   const void *value)
{
    if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
        return CUDNN_STATUS_SUCCESS;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE)
        return real.cudnnBackendSetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
    if (name == CUDNN_ATTR_ENGINEHEUR_MODE) {
        const cudnnStatus_t rc =
            real.cudnnBackendSetAttribute(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
        if (rc != CUDNN_STATUS_SUCCESS)
            return rc;
    }
    return real.cudnnBackendSetAttribute(d, name, type, n, value);
}

static cudnnStatus_t finalize(cudnnBackendDescriptor_t d)
{
    if (compiled) /* one is enough */
        return CUDNN_STATUS_NOT_SUPPORTED;
    const cudnnStatus_t rc = real.cudnnBackendFinalize(d);
    compiled |= rc == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
    return rc;
}

static bool open_real(void)
{
    void *library = dlopen("libcudnn.so.9", RTLD_NOW);
    for (size_t i = 0; library && i < sizeof names / sizeof *names; i++) {
        void *function = dlsym(library, names[i]);
        memcpy((char *)&real + i * sizeof function, &function, sizeof function);
    }
    if (!library)
        return false;
    table = real;
    table.cudnnBackendSetAttribute = set_attribute;
    table.cudnnBackendFinalize = finalize;
    return real.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
                                             &device) == CUDNN_STATUS_SUCCESS &&
           real.cudnnBackendSetAttribute(
               device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
               (int64_t)sizeof h100, h100) == CUDNN_STATUS_SUCCESS &&
           real.cudnnBackendFinalize(device) == CUDNN_STATUS_SUCCESS;
}

/* ---- shapes ---- */

static bool has_kernel(struct sdpa_shape *s, bool rows_outside)
{
    for (int t = 0; t < SDPA_STATS; t++) {
        const bool of_keys = t == SDPA_K || t == SDPA_V || t == SDPA_DK || t == SDPA_DV;
        const int64_t heads = of_keys ? s->kv_heads : s->heads,
                      rows = of_keys ? s->keys : s->queries, width = s->width;
        const int64_t stride[4] = {heads * rows * width,
                                   rows_outside ? width : rows * width,
                                   rows_outside ? heads * width : width, 1};
        memcpy(s->stride[t], stride, sizeof stride);
    }
    compiled = false;
    return sdpa_plan(s) || compiled;
}

int main(void)
{
    static const struct {
        const char *name;
        int64_t batch, heads, kv_heads, queries, keys, width, back, ahead;
        bool f16, rows_outside;
    } cases[] = {
        {"causal", 8, 12, 12, 1024, 1024, 64, INT64_MAX, 0, false, true},
        {"full, f16", 2, 4, 4, 128, 256, 64, INT64_MAX, INT64_MAX, true, false},
        {"grouped queries, a window", 2, 8, 2, 1000, 1000, 128, 100, 0, false, true},
    };
    if (!open_real())
        return 77;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int backward = 0; backward < 2; backward++) {
            struct sdpa_shape s;
            memset(&s, 0, sizeof s);
            s.backward = backward;
            s.f16 = cases[i].f16;
            s.batch = cases[i].batch;
            s.heads = cases[i].heads, s.kv_heads = cases[i].kv_heads;
            s.queries = cases[i].queries, s.keys = cases[i].keys;
            s.width = s.value_width = cases[i].width;
            s.back = cases[i].back, s.ahead = cases[i].ahead;
            s.scale = 0.125f;
            CHECK(has_kernel(&s, cases[i].rows_outside), "%s, %s", cases[i].name,
                  backward ? "backward" : "forward");
        }
    struct sdpa_shape odd;
    memset(&odd, 0, sizeof odd);
    odd.batch = odd.heads = odd.kv_heads = 1;
    odd.queries = odd.keys = 64;
    odd.width = odd.value_width = 12;
    odd.back = odd.ahead = INT64_MAX;
    CHECK(!has_kernel(&odd, true), "no kernel of width 12");
    return tap_done();
}

#else

int main(void)
{
    return 77;
}

#endif
