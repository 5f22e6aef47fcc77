/*
 * Opening of libraries by the backend: ap_cuda.so is linked with --wrap=dlopen, so that
 * NVIDIA's libraries that it opens by name are the functions of this fake, unless
 * AP_FAKE_WITHOUT names them.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);

/* "cufft" or "cudnn"; NULL: no library that is faked. */
static const char *faked(const char *name)
{
    static const char *const libraries[] = {
#ifdef AP_FFTW
        "cufft",
#endif
#if __has_include(<cudnn.h>)
        "cudnn",
#endif
        NULL
    };
    for (int i = 0; libraries[i]; i++)
        if (!strncmp(name, "lib", 3) && !strncmp(name + 3, libraries[i], 5))
            return libraries[i];
    return NULL;
}

void *__wrap_dlopen(const char *name, int flags)
{
    const char *library = name ? faked(name) : NULL, *without = getenv("AP_FAKE_WITHOUT");
    Dl_info self;
    if (name && (!strncmp(name, "libcufft", 8) || !strncmp(name, "libcudnn", 8)) &&
        (!library || (without && strstr(without, library))))
        return NULL;
    if (!library)
        return __real_dlopen(name, flags);
    if (!dladdr((void *)(uintptr_t)&fake_running, &self))
        fake_fail("the fake does not find its own library");
    return __real_dlopen(self.dli_fname, flags | RTLD_NOLOAD);
}
