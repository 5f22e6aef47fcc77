/*
 * Device memory. An allocation is pages of its own: a guard below, the bytes, aligned to
 * 256 as cudaMalloc does, against a guard above. Its pages cannot be touched but while
 * queued work runs, so that the host's reading a device pointer faults; an access beyond
 * the end hits the guard, or the few filler bytes before it, which are looked at after
 * every operation. New memory is full of 0xFF (a NaN in every float type), with
 * $AP_FAKE_NOISE also after the program's first fill of all of it with zeros: nobody
 * should read what nobody wrote. Places of memory that was freed are not used again, so
 * that whoever still has them is found.
 */
#include "fake.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT   256
#define GUARD_BYTES (1 << 16)
#define FILLER      0xA5
/* Bytes of new memory that are overwritten: more would only cost time. */
#define SPOILED_BYTES (64 << 20)

struct allocation {
    char *base; /* of the mapping, guards included */
    size_t mapped;
    char *p;
    size_t bytes, asked; /* asked: by the program */
    bool is_new;         /* nothing has filled it */
};

struct pinned {
    char *p;
    size_t bytes;
    bool is_own; /* to be freed */
};

static struct {
    int n, n_pinned, n_freed;
    struct allocation *list, *freed;
    struct pinned *pinned;
    int open;
    size_t used;
} mem;

const char *volatile fake_running;

static char *end_of(const struct allocation *a)
{
    return a->base + a->mapped - GUARD_BYTES;
}

static char *data_of(const struct allocation *a)
{
    return a->base + GUARD_BYTES;
}

/* The message of a fault, with what is allowed in a handler; then the fault happens. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)context;
    char text[512];
    const char *at = info->si_addr;
    int n = 0;
    for (int i = 0; i < mem.n && n == 0; i++) {
        const struct allocation *a = &mem.list[i];
        if (at < a->base || at >= a->base + a->mapped)
            continue;
        const char *who = fake_running ? fake_running : "the host";
        if (at >= a->p && at < a->p + a->bytes)
            n = snprintf(text, sizeof text,
                         "fakecuda: rank %d: %s touches byte %ld of device memory of %zu "
                         "bytes outside of queued work\n",
                         fake_job_rank(), who, (long)(at - a->p), a->asked);
        else
            n = snprintf(text, sizeof text,
                         "fakecuda: rank %d: %s touches byte %ld of device memory of %zu "
                         "bytes\n",
                         fake_job_rank(), who, (long)(at - a->p), a->asked);
    }
    for (int i = 0; i < mem.n_freed && n == 0; i++)
        if (at >= mem.freed[i].base && at < mem.freed[i].base + mem.freed[i].mapped)
            n = snprintf(text, sizeof text,
                         "fakecuda: rank %d: %s touches device memory that was freed\n",
                         fake_job_rank(), fake_running ? fake_running : "the host");
    if (n == 0 && fake_running && sig == SIGILL)
        n = snprintf(text, sizeof text,
                     "fakecuda: rank %d: %s: an access that is not aligned, an index "
                     "beyond its array, or an overflow\n",
                     fake_job_rank(), fake_running);
    else if (n == 0 && fake_running)
        n = snprintf(text, sizeof text,
                     "fakecuda: rank %d: %s touches %p, which is no memory\n",
                     fake_job_rank(), fake_running, (const void *)at);
    if (n > 0 && write(STDERR_FILENO, text, (size_t)n) < 0)
        _exit(FAKE_EXIT);
    if (n > 0)
        _exit(FAKE_EXIT);
    signal(sig, SIG_DFL); /* not ours: the access is repeated, and ends the process */
}

static void catch_faults(void)
{
    static char stack[1 << 16]; /* a fibre's own may be what overflowed */
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction act = {.sa_sigaction = on_fault,
                            .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&act.sa_mask);
    sigaltstack(&alternative, NULL);
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    sigaction(SIGILL, &act, NULL);
}

static void protect(const struct allocation *a, bool is_open)
{
    if (mprotect(data_of(a), (size_t)(end_of(a) - data_of(a)),
                 is_open ? PROT_READ | PROT_WRITE : PROT_NONE))
        fake_fail("mprotect failed");
}

void fake_memory_open(void)
{
    if (mem.open++ == 0)
        for (int i = 0; i < mem.n; i++)
            protect(&mem.list[i], true);
}

void fake_memory_close(void)
{
    if (--mem.open == 0)
        for (int i = 0; i < mem.n; i++)
            protect(&mem.list[i], false);
}

void fake_memory_check(void)
{
    for (int i = 0; i < mem.n; i++) {
        const struct allocation *a = &mem.list[i];
        for (const char *c = a->p + a->bytes; c < end_of(a); c++)
            if (*(const unsigned char *)c != FILLER)
                fake_fail("%s wrote byte %ld of device memory of %zu bytes",
                          fake_running ? fake_running : "the host", (long)(c - a->p),
                          a->asked);
    }
}

bool fake_is_device(const void *p, size_t bytes)
{
    const char *c = p;
    for (int i = 0; i < mem.n; i++)
        if (c >= mem.list[i].p && c + bytes <= mem.list[i].p + mem.list[i].bytes)
            return true;
    return false;
}

bool fake_touches_device(const void *p)
{
    const char *c = p;
    for (int i = 0; i < mem.n; i++)
        if (c >= mem.list[i].base && c < mem.list[i].base + mem.list[i].mapped)
            return true;
    return false;
}

bool fake_is_pinned(const void *p, size_t bytes)
{
    const char *c = p;
    for (int i = 0; i < mem.n_pinned; i++)
        if (c >= mem.pinned[i].p && c + bytes <= mem.pinned[i].p + mem.pinned[i].bytes)
            return true;
    return false;
}

static size_t capacity(void)
{
    return (size_t)fake_setting("AP_FAKE_MEMORY", 8L << 30);
}

static void append(struct allocation **list, int *n, const struct allocation *a)
{
    struct allocation *longer = realloc(*list, sizeof *longer * (size_t)(*n + 1));
    if (!longer)
        fake_fail("out of host memory");
    *list = longer;
    longer[(*n)++] = *a;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (!p)
        return fake_error(cudaErrorInvalidValue);
    if (fake_capture_forbids())
        return fake_error(cudaErrorStreamCaptureUnsupported);
    *p = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (mem.used + bytes > capacity())
        return fake_error(cudaErrorMemoryAllocation);
    if (mem.n == 0)
        catch_faults();
    const size_t asked = bytes;
    if (fake_fault("small-buffer"))
        bytes = bytes / 2 + 1;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t used = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t data = (used + page - 1) / page * page;
    struct allocation a = {.mapped = data + 2 * GUARD_BYTES,
                           .bytes = bytes,
                           .asked = asked,
                           .is_new = fake_setting("AP_FAKE_NOISE", 0) != 0};
    void *base = mmap(NULL, a.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return fake_error(cudaErrorMemoryAllocation);
    a.base = base;
    a.p = end_of(&a) - used;
    protect(&a, true);
    memset(a.p, 0xFF, bytes < SPOILED_BYTES ? bytes : SPOILED_BYTES);
    memset(a.p + bytes, FILLER, (size_t)(end_of(&a) - a.p) - bytes);
    protect(&a, mem.open > 0);
    append(&mem.list, &mem.n, &a);
    mem.used += bytes;
    *p = a.p;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    if (fake_capture_forbids())
        return fake_error(cudaErrorStreamCaptureUnsupported);
    fake_drain_all(); /* as the real one does, implicitly */
    for (int i = 0; i < mem.n; i++)
        if (mem.list[i].p == p) {
            fake_memory_open();
            fake_memory_check();
            fake_memory_close();
            if (mmap(mem.list[i].base, mem.list[i].mapped, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
                fake_fail("mmap failed");
            append(&mem.freed, &mem.n_freed, &mem.list[i]);
            mem.used -= mem.list[i].bytes;
            mem.list[i] = mem.list[--mem.n];
            return cudaSuccess;
        }
    return fake_error(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = capacity();
    *free_bytes = *total - mem.used;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    memset(a, 0, sizeof *a);
    a->type = fake_touches_device(p) ? cudaMemoryTypeDevice
              : fake_is_pinned(p, 1) ? cudaMemoryTypeHost
                                     : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

/* ---- host memory that copies may use late ---- */

static void add_pinned(void *p, size_t bytes, bool is_own)
{
    struct pinned *list = realloc(mem.pinned, sizeof *list * (size_t)(mem.n_pinned + 1));
    if (!list)
        fake_fail("out of host memory");
    mem.pinned = list;
    mem.pinned[mem.n_pinned++] = (struct pinned){p, bytes, is_own};
}

static cudaError_t remove_pinned(void *p, bool is_own)
{
    for (int i = 0; i < mem.n_pinned; i++)
        if (mem.pinned[i].p == p && mem.pinned[i].is_own == is_own) {
            mem.pinned[i] = mem.pinned[--mem.n_pinned];
            fake_drain_all();
            if (is_own)
                free(p);
            return cudaSuccess;
        }
    return fake_error(cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    *p = fake_alloc(bytes);
    add_pinned(*p, bytes, true);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    return cudaMallocHost(p, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    return p ? remove_pinned(p, true) : cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)flags;
    add_pinned(p, bytes, false);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    return remove_pinned(p, false);
}

/* ---- copies ---- */

struct copy {
    void *dst;
    const void *src;
    size_t bytes;
    bool late; /* it may run after the call, and in a graph again */
};

static void check_late(const void *p, size_t bytes)
{
    if (!fake_touches_device(p) && !fake_is_pinned(p, bytes))
        fake_fail("a copy touches memory of the host that is no longer pinned");
}

static void copy_run(void *args)
{
    const struct copy *c = args;
    if (c->late) {
        check_late(c->dst, c->bytes);
        check_late(c->src, c->bytes);
    }
    memmove(c->dst, c->src, c->bytes);
}

/* A copy whose source is the bytes after it. */
static void write_run(void *args)
{
    const struct copy *c = args;
    memcpy(c->dst, c + 1, c->bytes);
}

/* cudaErrorInvalidValue unless each end is where kind says and whole. */
static cudaError_t check_copy(const struct copy *c, enum cudaMemcpyKind kind)
{
    const bool to = fake_touches_device(c->dst), from = fake_touches_device(c->src);
    if ((to && !fake_is_device(c->dst, c->bytes)) ||
        (from && !fake_is_device(c->src, c->bytes)))
        return cudaErrorInvalidValue;
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to && !from ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyHostToDevice:
        return to && !from ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDeviceToHost:
        return !to && from ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDeviceToDevice:
        return to && from ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDefault:
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    struct copy c = {dst, src, bytes, false};
    if (bytes == 0)
        return cudaSuccess;
    cudaError_t rc = check_copy(&c, kind);
    if (rc)
        return fake_error(rc);
    const bool to_host = !fake_touches_device(dst), from_host = !fake_touches_device(src);
    c.late = (!to_host || fake_is_pinned(dst, bytes)) &&
             (!from_host || fake_is_pinned(src, bytes));
    if (c.late)
        return fake_enqueue(stream, "cudaMemcpyAsync", copy_run, &c, sizeof c);
    if (fake_capturing(stream))
        return fake_error(cudaErrorStreamCaptureUnsupported);
    if (!to_host) { /* pageable source: the call has read it when it returns */
        struct copy *whole = fake_alloc(sizeof *whole + bytes);
        *whole = c;
        memcpy(whole + 1, src, bytes);
        rc = fake_enqueue(stream, "cudaMemcpyAsync", write_run, whole,
                          sizeof *whole + bytes);
        free(whole);
        return rc;
    }
    rc = fake_enqueue(stream, "cudaMemcpyAsync", copy_run, &c, sizeof c);
    return rc ? rc : fake_drain(stream);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    if (fake_capture_forbids())
        return fake_error(cudaErrorStreamCaptureUnsupported);
    const cudaError_t rc = cudaMemcpyAsync(dst, src, bytes, kind, NULL);
    return rc ? rc : fake_drain(NULL);
}

struct fill {
    void *dst;
    int value;
    size_t bytes;
};

static void fill_run(void *args)
{
    const struct fill *f = args;
    memset(f->dst, f->value, f->bytes);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    const struct fill f = {dst, value, bytes};
    if (bytes == 0)
        return cudaSuccess;
    if (!fake_is_device(dst, bytes))
        return fake_error(cudaErrorInvalidValue);
    for (int i = 0; i < mem.n; i++) {
        struct allocation *a = &mem.list[i];
        const bool first = a->is_new && value == 0 && a->p == dst && a->bytes == bytes;
        a->is_new &= (char *)dst < a->p || (char *)dst >= a->p + a->bytes;
        if (first)
            return cudaSuccess;
    }
    return fake_enqueue(stream, "cudaMemsetAsync", fill_run, &f, sizeof f);
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    if (fake_capture_forbids())
        return fake_error(cudaErrorStreamCaptureUnsupported);
    return cudaMemsetAsync(dst, value, bytes, NULL);
}
