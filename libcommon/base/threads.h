/* Threads for loops whose rounds share nothing that changes. */
#ifndef AP_THREADS_H
#define AP_THREADS_H

#include "base/base.h"

/* Cores that are there, at most 16; 1 if that is not known. */
int ap_threads(void);

/*
 * Calls run(ctx, i) for each i from 0 to n - 1, at most ap_threads() at once, in any
 * order; returns when all have ended. A thread that cannot be started is done without.
 */
void ap_in_threads(int n, void (*run)(void *ctx, int i), void *ctx);

/*
 * The same with an arena and a message for each i; arena takes over what they hold. What
 * the lowest i gave whose call did not give 0, with its message, or 0.
 */
int ap_in_arenas(struct ap_arena *arena, int n,
                 int (*run)(void *ctx, int i, struct ap_arena *arena, struct ap_err *err),
                 void *ctx, struct ap_err *err);

#endif
