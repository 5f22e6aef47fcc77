/* Opening NVIDIA's libraries by name: where ap_cuda.so was linked to look, and where the
 * system does. */
#include "libraries.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "cuda.h"
#include "tool/tool.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The functions of these names, of the first library that there is, into a table of
 * pointers; false: there is none, or it lacks one. */
static bool fill(const char *const *library, size_t n_libraries, const char *const *name,
                 size_t n, void *table)
{
    void *handle = NULL;
    for (size_t i = 0; i < n_libraries && !handle; i++)
        handle = dlopen(library[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < n; i++) {
        void *function = handle ? dlsym(handle, name[i]) : NULL;
        if (!function)
            return false;
        memcpy((char *)table + i * sizeof function, &function, sizeof function);
    }
    return true;
}

#define CUFFT_NAME(name, parameters) #name,
#define CUDNN_NAME(name)             #name,

const struct cufft *cufft_open(void)
{
    static const char *const libraries[] = {"libcufft.so.12", "libcufft.so.11"};
    static const char *const names[] = {CUFFT_CALLS(CUFFT_NAME)};
    static struct cufft table;
    static int found = -1; /* not looked for yet */
    if (found < 0)
        found = fill(libraries, COUNT(libraries), names, COUNT(names), &table);
    return found ? &table : NULL;
}

#if CUDA_HAS_CUDNN
const struct cudnn *cudnn_open(void)
{
    static const char *const libraries[] = {"libcudnn.so.9"};
    static const char *const names[] = {CUDNN_CALLS(CUDNN_NAME)};
    static struct cudnn table;
    static int found = -1;
    if (found < 0)
        found = fill(libraries, COUNT(libraries), names, COUNT(names), &table);
    return found ? &table : NULL;
}

void cudnn_check(cudnnStatus_t rc, const char *what)
{
    if (rc != CUDNN_STATUS_SUCCESS)
        ap_die(AP_BAD_INPUT, "rank %d: cuda: %s: %s", cuda_dev.rank, what,
               cudnn_open()->cudnnGetErrorString(rc));
}

cudnnHandle_t cudnn_handle(void)
{
    static cudnnHandle_t handle;
    const struct cudnn *lib = cudnn_open();
    if (!lib || handle)
        return handle;
    cudnn_check(lib->cudnnCreate(&handle), "cudnnCreate");
    cudnn_check(lib->cudnnSetStream(handle, cuda_dev.stream), "cudnnSetStream");
    return handle;
}
#endif
