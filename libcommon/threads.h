/* Threads for loops whose rounds share nothing that changes. */
#ifndef AP_THREADS_H
#define AP_THREADS_H

/* Cores that are there, at most 16; 1 if that is not known. */
int ap_threads(void);

/*
 * Calls run(ctx, i) for each i from 0 to n - 1, at most ap_threads() at once, in any
 * order; returns when all have ended. A thread that cannot be started is done without.
 */
void ap_in_threads(int n, void (*run)(void *ctx, int i), void *ctx);

#endif
