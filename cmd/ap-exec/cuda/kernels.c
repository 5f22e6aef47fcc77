/*
 * Kernels: text, compiled by NVRTC, kept by content.
 *
 * Problem: a program has hundreds of calls but few different ones, and a compilation
 * takes a tenth of a second. Idea: a kernel's text holds shapes but no addresses, so that
 * equal calls of all layers are one kernel, whose name is its text's hash. Missing
 * kernels are compiled when a program is prepared, CHUNK kernels to a compilation, on all
 * cores. A chunk's cubin is kept on disk under the hash of its text, the architecture and
 * the compiler's version.
 */
#include "cuda.h"
#include "base/array.h"
#include "base/index_map.h"
#include "base/threads.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kernels per compilation: enough that the prelude's parsing (30 ms) counts little, few
 * enough that all cores have work; `ap-exec --stats` shows the seconds. */
#define CHUNK 12

struct kernel {
    char name[24];
    int n_args, block;
    char *body;
    size_t len;
    cudaKernel_t fn;
};

struct kernels {
    int n, cap, n_built;
    struct kernel **kernel;
    struct ap_index index;
};

static struct kernels *registry(void)
{
    if (!cuda_dev.kernels) {
        cuda_dev.kernels = ap_xrealloc(NULL, sizeof *cuda_dev.kernels);
        *cuda_dev.kernels = (struct kernels){0};
    }
    return cuda_dev.kernels;
}

int kernels_count(void)
{
    return registry()->n;
}

struct kernel *kernel_get(const char *body, size_t len, int n_args, int block)
{
    struct kernels *all = registry();
    const uint64_t hash = ap_hash(body, len, (uint64_t)block << 32 | (uint64_t)n_args);
    struct ap_index_walk walk;
    for (int i = ap_index_first(&all->index, hash, &walk); i >= 0;
         i = ap_index_next(&all->index, &walk)) {
        struct kernel *k = all->kernel[i];
        if (k->len == len && k->n_args == n_args && k->block == block &&
            !memcmp(k->body, body, len))
            return k;
    }
    struct kernel *k = ap_xrealloc(NULL, sizeof *k);
    *k = (struct kernel){.n_args = n_args, .block = block, .len = len};
    snprintf(k->name, sizeof k->name, "k_%016llx", (unsigned long long)hash);
    k->body = ap_xrealloc(NULL, len + 1);
    memcpy(k->body, body, len + 1);
    AP_ROOM(all->kernel, all->n, all->cap);
    ap_index_put(&all->index, hash, all->n);
    all->kernel[all->n++] = k;
    return k;
}

void kernel_launch(const struct kernel *k, int64_t grid_x, int64_t grid_y, void **args)
{
    const dim3 grid = {(unsigned)grid_x, (unsigned)grid_y, 1};
    const dim3 block = {(unsigned)k->block, 1, 1};
    void *arg[1] = {args};
    cuda_check(
        cudaLaunchKernel((const void *)k->fn, grid, block, arg, 0, cuda_dev.stream),
        k->name);
}

/* ---- compiling ---- */

/*
 * A body has up to two parts: functions that it calls, and, after the mark, what the
 * kernel does. Functions of one kernel are kept apart from those of others by a
 * namespace.
 */
static void put_kernel(struct ap_buf *text, const struct kernel *k)
{
    const char *mark = strstr(k->body, KERNEL_MARK);
    const char *inside = mark ? mark + strlen(KERNEL_MARK) : k->body;
    ap_buf_printf(text, "namespace ns_%s {\n", k->name);
    if (mark)
        ap_buf_put(text, k->body, (size_t)(mark - k->body));
    ap_buf_printf(text, "AP_KERNEL(%s, %d, %d)\n{\n%s}\n}\n", k->name,
                  k->n_args ? k->n_args : 1, k->block, inside);
}

struct chunk {
    int lo, hi; /* kernels of the registry */
    struct ap_buf cubin;
};

/* Compiles text for the device's architecture; rc of NVRTC, whose messages are in err. */
static int compile(const char *text, struct ap_buf *cubin, struct ap_err *err)
{
    char arch[48];
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d", cuda_dev.arch);
    const char *opts[] = {arch, "--std=c++17", "--fmad=false",
                          "--device-as-default-execution-space",
                          "--diag-suppress=177"}; /* functions that no kernel calls */
    nvrtcProgram prog;
    size_t len = 0;
    nvrtcResult rc = nvrtcCreateProgram(&prog, text, "autopar.cu", 0, NULL, NULL);
    if (rc != NVRTC_SUCCESS)
        return ap_err_set(err, "cuda: nvrtc: %s", nvrtcGetErrorString(rc));
    rc = nvrtcCompileProgram(prog, sizeof opts / sizeof *opts, opts);
    if (nvrtcGetProgramLogSize(prog, &len) == NVRTC_SUCCESS && len > 1) {
        char *log = ap_xrealloc(NULL, len + 1);
        nvrtcGetProgramLog(prog, log);
        ap_err_set(err, "cuda: nvrtc for sm_%d: %.900s", cuda_dev.arch, log);
        free(log);
    }
    if (rc != NVRTC_SUCCESS)
        ap_err_set(err, "cuda: nvrtc: %s", nvrtcGetErrorString(rc));
    else if (nvrtcGetCUBINSize(prog, &len) == NVRTC_SUCCESS &&
             nvrtcGetCUBIN(prog, ap_buf_room(cubin, len)) == NVRTC_SUCCESS)
        cubin->len += len;
    nvrtcDestroyProgram(&prog);
    return cubin->len ? 0 : ap_err_set(err, "cuda: nvrtc made no cubin");
}

static uint64_t key_of(const char *text, size_t len)
{
    int major = 0, minor = 0;
    nvrtcVersion(&major, &minor);
    uint64_t key = ap_hash(text, len, (uint64_t)cuda_dev.arch);
    return ap_hash_mix(key, (uint64_t)major << 32 | (uint64_t)minor);
}

/* A warning is an error: it names a fault of the generator. */
static int chunk_build(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    (void)arena;
    struct chunk *c = &((struct chunk *)ctx)[i];
    struct ap_buf text = {0};
    bool is_complex = false;
    for (int k = c->lo; k < c->hi; k++)
        is_complex |= strstr(cuda_dev.kernels->kernel[k]->body, "c64") != NULL;
    ap_buf_puts(&text, cuda_prelude);
    ap_buf_puts(&text, cuda_formulas);
    if (is_complex) {
        ap_buf_puts(&text, cuda_complex);
        ap_buf_puts(&text, cuda_complex_formulas);
    }
    for (int k = c->lo; k < c->hi; k++)
        put_kernel(&text, cuda_dev.kernels->kernel[k]);
    const uint64_t key = key_of(text.data, text.len);
    if (!cache_read(key, &c->cubin)) {
        const int lock = cache_lock(key);
        if (!cache_read(key, &c->cubin) && compile(text.data, &c->cubin, err) == 0 &&
            !err->msg[0])
            cache_write(key, c->cubin.data, c->cubin.len);
        cache_unlock(key, lock);
    }
    ap_buf_free(&text);
    return err->msg[0] ? -1 : 0;
}

static void chunk_load(struct chunk *c)
{
    cudaLibrary_t library;
    if (cuda_dev.opts.compile_for == 0) {
        cuda_check(
            cudaLibraryLoadData(&library, c->cubin.data, NULL, NULL, 0, NULL, NULL, 0),
            "cudaLibraryLoadData");
        for (int k = c->lo; k < c->hi; k++) {
            struct kernel *kernel = cuda_dev.kernels->kernel[k];
            cuda_check(cudaLibraryGetKernel(&kernel->fn, library, kernel->name),
                       "cudaLibraryGetKernel");
        }
    }
    ap_buf_free(&c->cubin); /* the library has its own copy */
}

int kernels_build(struct ap_err *err)
{
    struct kernels *all = registry();
    const int n = (all->n - all->n_built + CHUNK - 1) / CHUNK;
    struct ap_arena arena = {0};
    struct chunk *chunk = AP_NEW_N(&arena, n + 1, struct chunk);
    for (int i = 0; i < n; i++) {
        chunk[i].lo = all->n_built + i * CHUNK;
        chunk[i].hi = chunk[i].lo + CHUNK < all->n ? chunk[i].lo + CHUNK : all->n;
    }
    const int rc = ap_in_arenas(&arena, n, chunk_build, chunk, err);
    for (int i = 0; i < n && !rc; i++)
        chunk_load(&chunk[i]);
    all->n_built = all->n;
    ap_arena_free(&arena);
    return rc;
}
