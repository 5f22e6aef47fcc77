/* A round is taken by whichever thread is free, so that uneven ones even out. */
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MOST = 16 };

struct loop {
    void (*run)(void *ctx, int i);
    void *ctx;
    int n;
    atomic_int next;
};

int ap_threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n < 1 ? 1 : n > MOST ? MOST : (int)n;
}

static void *take_rounds(void *arg)
{
    struct loop *loop = arg;

    for (int i; (i = atomic_fetch_add(&loop->next, 1)) < loop->n;)
        loop->run(loop->ctx, i);
    return NULL;
}

void ap_in_threads(int n, void (*run)(void *ctx, int i), void *ctx)
{
    struct loop loop = {.run = run, .ctx = ctx, .n = n};
    pthread_t thread[MOST];
    int n_threads = ap_threads(), started = 0;

    atomic_init(&loop.next, 0);
    while (started + 1 < n_threads && started + 1 < n &&
           !pthread_create(&thread[started], NULL, take_rounds, &loop))
        started++;
    take_rounds(&loop);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
}
