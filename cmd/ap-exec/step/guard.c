/*
 * Problem: buffers lie side by side in one arena, so that a kernel that writes beyond its
 * own is not seen by AddressSanitizer. Idea: every call knows the memory that it reads
 * and writes (overlap.c); while it runs, all else of the arena is poisoned. BLAS is
 * not instrumented and not watched. Cost: linear in the arena's bytes / 8 for each call.
 */
#include "step/guard.h"

#include "step/backend.h"
#include "base/poison.h"

static void allow(const struct call *call)
{
    for (int i = 0; i < call->n_access; i++)
        ap_unpoison(call->access[i].p, (size_t)call->access[i].bytes);
}

void guard_begin(const struct exec *x, const struct call *call)
{
    if (!AP_POISONS || !x->backend->on_host)
        return;
    ap_poison(x->memory, (size_t)exec_memory_bytes(x));
    ap_poison(x->temps, (size_t)x->temps_bytes);
    allow(call);
    for (int k = 0; k < x->n_flight; k++)
        allow(x->flight[k].call);
}

void guard_end(const struct exec *x)
{
    if (!AP_POISONS || !x->backend->on_host)
        return;
    ap_unpoison(x->memory, (size_t)exec_memory_bytes(x));
    ap_unpoison(x->temps, (size_t)x->temps_bytes);
}
