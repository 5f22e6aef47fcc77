/* Opening NVIDIA's libraries by name: where ap_cuda.so was linked to look, and where the
 * system does. */
#include "libraries.h"

#include <dlfcn.h>
#include <stdbool.h>

/* The first that there is of some names, ended by NULL. */
static void *open_first(const char *const *name)
{
    void *library = NULL;
    for (; *name && !library; name++)
        library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    return library;
}

#define CUFFT_FIND(name, parameters)                   \
    *(void **)&functions.name = dlsym(library, #name); \
    all = all && functions.name;

const struct cufft *cufft_open(void)
{
    static const char *const names[] = {"libcufft.so.12", "libcufft.so.11", NULL};
    static struct cufft functions;
    static bool opened, all = true;
    if (!opened) {
        void *library = open_first(names);
        opened = true;
        all = library != NULL;
        if (library) {
            CUFFT_CALLS(CUFFT_FIND)
        }
    }
    return all ? &functions : NULL;
}

#if CUDA_HAS_CUDNN

#define CUDNN_FIND(name)                               \
    *(void **)&functions.name = dlsym(library, #name); \
    all = all && functions.name;

const struct cudnn *cudnn_open(void)
{
    static const char *const names[] = {"libcudnn.so.9", NULL};
    static struct cudnn functions;
    static bool opened, all = true;
    if (!opened) {
        void *library = open_first(names);
        opened = true;
        all = library != NULL;
        if (library) {
            CUDNN_CALLS(CUDNN_FIND)
        }
    }
    return all ? &functions : NULL;
}

#endif
