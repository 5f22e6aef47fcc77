/*
 * NVRTC and the launch of what it compiles. The "cubin" of a source text is a shared
 * library that g++ makes of it and of shim.hpp, after a header with its length. Accesses
 * that are not aligned as their type, indices beyond arrays and overflows of int trap.
 */
#include "fake.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <nvrtc.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAGIC "fakecubin"
/* Bytes that the path of a temporary file may have. */
#define PATH_BYTES 1000
/* Shared memory of a block that is not asked for at the launch. */
#define MOST_SHARED 49152

struct cubin {
    char magic[16];
    size_t bytes;
    char library[];
};

struct _nvrtcProgram {
    char *source, *log;
    struct cubin *cubin;
};

extern char **environ;

nvrtcResult nvrtcVersion(int *major, int *minor)
{
    *major = 0; /* of no NVRTC: caches of kernels must not mix */
    *minor = 2;
    return NVRTC_SUCCESS;
}

const char *nvrtcGetErrorString(nvrtcResult rc)
{
    return rc == NVRTC_SUCCESS                ? "NVRTC_SUCCESS"
           : rc == NVRTC_ERROR_COMPILATION    ? "NVRTC_ERROR_COMPILATION"
           : rc == NVRTC_ERROR_INVALID_OPTION ? "NVRTC_ERROR_INVALID_OPTION"
                                              : "NVRTC_ERROR_INVALID_INPUT";
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *source, const char *name,
                               int n_headers, const char *const *headers,
                               const char *const *names)
{
    (void)name, (void)headers, (void)names;
    if (!source || n_headers)
        return NVRTC_ERROR_INVALID_INPUT;
    struct _nvrtcProgram *p = fake_alloc(sizeof *p);
    p->source = strdup(source);
    *out = p;
    return NVRTC_SUCCESS;
}

/* What NVRTC would take of the options that the backend gives. */
static bool is_option(const char *option)
{
    static const char arch[] = "--gpu-architecture=sm_";
    static const char *const others[] = {"--std=c++17", "--fmad=false",
                                         "--device-as-default-execution-space",
                                         "--diag-suppress=177"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(option, others[i]))
            return true;
    return !strncmp(option, arch, strlen(arch)) && atoi(option + strlen(arch)) >= 75;
}

static char *whole_file(const char *path, size_t *bytes, size_t front)
{
    struct stat st;
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st))
        fake_fail("%s: %s", path, strerror(errno));
    char *text = fake_alloc(front + (size_t)st.st_size + 1);
    for (size_t at = 0; at < (size_t)st.st_size;) {
        const ssize_t n = read(fd, text + front + at, (size_t)st.st_size - at);
        if (n <= 0)
            fake_fail("%s: %s", path, strerror(errno));
        at += (size_t)n;
    }
    close(fd);
    *bytes = (size_t)st.st_size;
    return text;
}

/* The template of a name below $TMPDIR, or /tmp, for mkdtemp and mkstemp. */
static void temporary(char path[PATH_BYTES])
{
    const char *dir = getenv("TMPDIR");
    const int n =
        snprintf(path, PATH_BYTES, "%s/fakecuda.XXXXXX", dir && *dir ? dir : "/tmp");
    if (n >= PATH_BYTES)
        fake_fail("TMPDIR is too long: %s", dir);
}

/* The compiler's exit status; its messages go to a file. */
static int compile(const char *source, const char *library, const char *log)
{
    static char *const flags[] = {"g++",
                                  "-x",
                                  "c++",
                                  "-std=c++17",
                                  "-O0",
                                  "-w",
                                  "-shared",
                                  "-nostdlib",
                                  "-fPIC",
                                  "-ffp-contract=off",
                                  "-fno-math-errno",
                                  "-fno-trapping-math",
                                  "-fno-strict-aliasing",
                                  "-fsanitize=alignment,bounds",
                                  "-fsanitize=signed-integer-overflow",
                                  "-fsanitize=integer-divide-by-zero",
                                  "-fsanitize-undefined-trap-on-error",
                                  "-I",
                                  FAKE_TOP "/cmd/ap-exec",
                                  "-I",
                                  FAKE_TOP "/libcommon",
                                  "-include",
                                  FAKE_TOP "/tests/fakecuda/shim.hpp"};
    enum { N = sizeof flags / sizeof *flags };
    char *argv[N + 5];
    pid_t pid;
    int status;
    posix_spawn_file_actions_t files;
    memcpy(argv, flags, sizeof flags);
    argv[N] = strdup(source);
    argv[N + 1] = "-o";
    argv[N + 2] = strdup(library);
    argv[N + 3] = NULL;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int rc = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (rc)
        fake_fail("g++: %s", strerror(rc));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            fake_fail("waitpid: %s", strerror(errno));
    free(argv[N]);
    free(argv[N + 2]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* The source, in which each variable of shared memory is in its kernel's section. */
static bool put_source(FILE *f, const char *text)
{
    static const char kernel[] = "AP_KERNEL(", word[] = "__shared__ ";
    char name[64] = "";
    for (const char *at = text, *next; *at; at = next) {
        const char *k = strstr(at, kernel), *w = strstr(at, word);
        const bool is_kernel = k && (!w || k < w);
        const size_t length = is_kernel ? strlen(kernel) : strlen(word);
        next = is_kernel ? k + length : w ? w + length : at + strlen(at);
        fwrite(at, 1, (size_t)(next - at) - (!is_kernel && w ? length : 0), f);
        if (is_kernel)
            snprintf(name, sizeof name, "%.*s", (int)strcspn(next, ", )"), next);
        else if (w)
            fprintf(f, "__shared__(%s) ", name);
    }
    return !ferror(f);
}

/* For people, and tests of the text: $AP_FAKE_SOURCES is a folder that sources go to. */
static void keep_source(const char *text)
{
    const char *dir = getenv("AP_FAKE_SOURCES");
    char path[PATH_BYTES];
    if (!dir || !*dir)
        return;
    snprintf(path, sizeof path, "%s/XXXXXX", dir);
    const int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f || fputs(text, f) < 0 || fclose(f))
        fake_fail("%s: %s", path, strerror(errno));
}

/* Called by several threads at once, as NVRTC may be. */
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int n, const char *const *options)
{
    char dir[PATH_BYTES], source[PATH_BYTES + 16], library[PATH_BYTES + 16],
        log[PATH_BYTES + 16];
    size_t bytes;
    for (int i = 0; i < n; i++)
        if (!is_option(options[i]))
            return NVRTC_ERROR_INVALID_OPTION;
    temporary(dir);
    if (!mkdtemp(dir))
        fake_fail("%s: %s", dir, strerror(errno));
    snprintf(source, sizeof source, "%s/source.cu", dir);
    snprintf(library, sizeof library, "%s/library.so", dir);
    snprintf(log, sizeof log, "%s/log", dir);
    FILE *f = fopen(source, "w");
    if (!f || !put_source(f, p->source) || fclose(f))
        fake_fail("%s: %s", source, strerror(errno));
    keep_source(p->source);
    const int rc = compile(source, library, log);
    p->log = whole_file(log, &bytes, 0);
    if (rc == 0) {
        p->cubin = (struct cubin *)whole_file(library, &bytes, sizeof *p->cubin);
        strcpy(p->cubin->magic, MAGIC);
        p->cubin->bytes = bytes;
    }
    remove(source);
    remove(library);
    remove(log);
    rmdir(dir);
    return rc ? NVRTC_ERROR_COMPILATION : NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *bytes)
{
    *bytes = p->log ? strlen(p->log) + 1 : 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *log)
{
    memcpy(log, p->log ? p->log : "", p->log ? strlen(p->log) + 1 : 1);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *bytes)
{
    *bytes = p->cubin ? sizeof *p->cubin + p->cubin->bytes : 0;
    return p->cubin ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_INPUT;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *cubin)
{
    if (!p->cubin)
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(cubin, p->cubin, sizeof *p->cubin + p->cubin->bytes);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *p)
{
    free((*p)->source);
    free((*p)->log);
    free((*p)->cubin);
    free(*p);
    *p = NULL;
    return NVRTC_SUCCESS;
}

/* ---- libraries of kernels ---- */

struct CUkern_st {
    struct fake_entry entry;
    char name[64];
    struct CUkern_st *next;
};

struct CUlib_st {
    void *handle;
    struct CUkern_st *kernels;
};

cudaError_t cudaLibraryLoadData(cudaLibrary_t *out, const void *code,
                                enum cudaJitOption *options, void **values, unsigned n,
                                enum cudaLibraryOption *library_options,
                                void **library_values, unsigned n_library)
{
    (void)options, (void)values, (void)library_options, (void)library_values;
    const struct cubin *cubin = code;
    char path[PATH_BYTES];
    if (n || n_library)
        return fake_error(cudaErrorNotSupported);
    if (strncmp(cubin->magic, MAGIC, sizeof cubin->magic))
        return fake_error(cudaErrorInvalidKernelImage);
    temporary(path);
    const int fd = mkstemp(path);
    if (fd < 0)
        fake_fail("%s: %s", path, strerror(errno));
    for (size_t at = 0; at < cubin->bytes;) {
        const ssize_t w = write(fd, cubin->library + at, cubin->bytes - at);
        if (w <= 0)
            fake_fail("%s: %s", path, strerror(errno));
        at += (size_t)w;
    }
    close(fd);
    struct CUlib_st *lib = fake_alloc(sizeof *lib);
    lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    remove(path);
    if (!lib->handle)
        fake_fail("%s", dlerror());
    void (**barrier)(int) = dlsym(lib->handle, "fake_barrier_of");
    *barrier = fake_barrier;
    *out = lib;
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *out, cudaLibrary_t lib, const char *name)
{
    const struct fake_entry *entry = dlsym(lib->handle, name);
    if (!entry)
        return fake_error(cudaErrorSymbolNotFound);
    struct CUkern_st *k = fake_alloc(sizeof *k);
    k->entry = *entry;
    if (entry->shared_end - entry->shared > MOST_SHARED)
        fake_fail("%s uses too much shared memory (%td bytes, at most %d)", name,
                  entry->shared_end - entry->shared, MOST_SHARED);
    snprintf(k->name, sizeof k->name, "%s", name);
    k->next = lib->kernels;
    lib->kernels = k;
    *out = k;
    return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t lib)
{
    fake_drain_all();
    dlclose(lib->handle);
    for (struct CUkern_st *k = lib->kernels, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    free(lib);
    return cudaSuccess;
}

struct launch {
    const struct CUkern_st *kernel;
    unsigned grid[3], block[3];
    char args[];
};

/* Blocks run from the first or from the last, by the seed; the threads of a block, too,
 * by turns. Shared memory begins as noise. */
static void launch_run(void *args)
{
    const struct launch *l = args;
    const int64_t n = (int64_t)l->grid[0] * l->grid[1] * l->grid[2];
    struct fake_block b = {.threads = (int)(l->block[0] * l->block[1] * l->block[2]),
                           .body = l->kernel->entry.body,
                           .resume = l->kernel->entry.resume,
                           .name = l->kernel->name,
                           .args = l->args};
    const bool from_last = fake_setting("AP_FAKE_SEED", 0) % 2 == 1;
    const struct fake_entry *e = &l->kernel->entry;
    memcpy(b.grid, l->grid, sizeof b.grid);
    memcpy(b.block, l->block, sizeof b.block);
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = from_last ? n - 1 - i : i;
        if (e->shared)
            memset(e->shared, 0xFF, (size_t)(e->shared_end - e->shared));
        b.backwards = from_last != (i % 2 == 1);
        b.at[0] = (unsigned)(k % l->grid[0]);
        b.at[1] = (unsigned)(k / l->grid[0] % l->grid[1]);
        b.at[2] = (unsigned)(k / l->grid[0] / l->grid[1]);
        fake_block_run(&b);
    }
}

cudaError_t cudaLaunchKernel(const void *fn, dim3 grid, dim3 block, void **args,
                             size_t shared_bytes, cudaStream_t stream)
{
    const struct CUkern_st *k = fn;
    if (!k)
        return fake_error(cudaErrorInvalidResourceHandle);
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z ||
        grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535 || block.z > 64 ||
        (int64_t)block.x * block.y * block.z > k->entry.block || shared_bytes > 0)
        return fake_error(cudaErrorInvalidConfiguration);
    struct launch *l = fake_alloc(sizeof *l + k->entry.bytes);
    *l = (struct launch){k, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}};
    if (fake_fault("wrong-launch")) {
        l->grid[0] = (grid.x + 1) / 2;
        l->block[0] = grid.x == 1 ? (block.x + 1) / 2 : block.x;
    }
    memcpy(l->args, args[0], k->entry.bytes);
    const cudaError_t rc =
        fake_enqueue(stream, k->name, launch_run, l, sizeof *l + k->entry.bytes);
    free(l);
    return rc;
}
