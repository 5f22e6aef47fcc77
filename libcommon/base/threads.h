/* Threads for loops whose iterations share only constant data. */
#ifndef AP_THREADS_H
#define AP_THREADS_H

#include "base/base.h"

/* The number of cores, at most 16; 1 if it is not known. */
int ap_threads(void);

/*
 * Calls run(ctx, i) for each i from 0 to n - 1, at most ap_threads() at once, in any
 * order; returns when all calls have ended. If a thread cannot be started, the others do
 * its share.
 */
void ap_in_threads(int n, void (*run)(void *ctx, int i), void *ctx);

/*
 * The same with an arena and a message for each i; `arena` takes over the memory of these
 * arenas. Returns the result of the lowest i whose call did not return 0, with its
 * message, or 0.
 */
int ap_in_arenas(struct ap_arena *arena, int n,
                 int (*run)(void *ctx, int i, struct ap_arena *arena, struct ap_err *err),
                 void *ctx, struct ap_err *err);

#endif
