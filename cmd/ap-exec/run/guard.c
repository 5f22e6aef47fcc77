/*
 * Problem: buffers lie side by side in one arena, so that a kernel that writes beyond its
 * own is not seen by AddressSanitizer. Idea: every call knows the memory that it reads
 * and writes (run/overlap.c); while it runs, all else of the arena is poisoned. BLAS is
 * not instrumented and not watched. Cost: linear in the arena's bytes / 8 for each call.
 */
#include "run/guard.h"

#include "backend.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>

static void allow(const struct call *call)
{
    for (int i = 0; i < call->n_access; i++)
        ASAN_UNPOISON_MEMORY_REGION(call->access[i].p, (size_t)call->access[i].bytes);
}

void guard_begin(const struct exec *x, const struct call *call)
{
    if (!x->backend->on_host)
        return;
    ASAN_POISON_MEMORY_REGION(x->memory, (size_t)exec_memory_bytes(x));
    ASAN_POISON_MEMORY_REGION(x->temps, (size_t)x->temps_bytes);
    allow(call);
    for (int k = 0; k < x->n_flight; k++)
        allow(x->flight[k].call);
}

void guard_end(const struct exec *x)
{
    if (!x->backend->on_host)
        return;
    ASAN_UNPOISON_MEMORY_REGION(x->memory, (size_t)exec_memory_bytes(x));
    ASAN_UNPOISON_MEMORY_REGION(x->temps, (size_t)x->temps_bytes);
}
#else
void guard_begin(const struct exec *x, const struct call *call)
{
    (void)x, (void)call;
}

void guard_end(const struct exec *x)
{
    (void)x;
}
#endif
