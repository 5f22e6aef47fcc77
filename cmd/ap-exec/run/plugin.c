/* Opening the CUDA backend, a shared object, so that ap-exec itself needs no CUDA. */
#include "cuda/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The library beside this program, or, where that has none, of its installation. */
static void find(char path[PATH_MAX])
{
    static const char *const places[] = {"ap_cuda.so", "../lib/autopar/ap_cuda.so"};
    char self[PATH_MAX], at[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    for (int i = 0; i < 2; i++) {
        const int len = snprintf(at, sizeof at, "%s/%s", slash ? self : ".", places[i]);
        if (len >= PATH_MAX || (*path && access(at, R_OK) != 0))
            continue; /* the first place is named where there is neither */
        memcpy(path, at, (size_t)len + 1);
        if (access(at, R_OK) == 0)
            return;
    }
}

const struct cuda_plugin *plugin_open(const struct cuda_options *opts, struct ap_err *err)
{
    char path[PATH_MAX] = "";
    const char *given = getenv("AP_CUDA_LIBRARY");
    if (given && *given)
        snprintf(path, sizeof path, "%s", given);
    else
        find(path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        ap_err_set(err, "cuda: %s", dlerror());
        return NULL;
    }
    const struct cuda_plugin *plugin = dlsym(library, CUDA_PLUGIN_SYMBOL);
    if (!plugin || plugin->version != CUDA_PLUGIN_VERSION) {
        ap_err_set(err, "cuda: %s is not of this ap-exec", path);
        return NULL;
    }
    return plugin->probe(opts, err) ? NULL : plugin;
}
