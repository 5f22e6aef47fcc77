/* A round is taken by whichever thread is free, so that uneven ones even out. */
#include "base/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
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

/* ---- with arenas ---- */

struct round {
    struct ap_arena arena;
    struct ap_err err;
    int rc;
};

struct rounds {
    int (*run)(void *ctx, int i, struct ap_arena *arena, struct ap_err *err);
    void *ctx;
    struct round *round;
};

static void take_one(void *ctx, int i)
{
    const struct rounds *all = ctx;
    struct round *r = &all->round[i];

    *r = (struct round){.rc = 0};
    r->rc = all->run(all->ctx, i, &r->arena, &r->err);
}

int ap_in_arenas(struct ap_arena *arena, int n,
                 int (*run)(void *ctx, int i, struct ap_arena *arena, struct ap_err *err),
                 void *ctx, struct ap_err *err)
{
    struct rounds all = {.run = run, .ctx = ctx};
    int rc = 0;

    all.round = ap_xrealloc(NULL, sizeof *all.round * (size_t)n);
    ap_in_threads(n, take_one, &all);
    for (int i = 0; i < n; i++) {
        struct round *r = &all.round[i];
        if (r->rc && !rc) {
            rc = r->rc;
            ap_err_set(err, "%s", r->err.msg);
        }
        ap_arena_join(arena, &r->arena);
    }
    free(all.round);
    return rc;
}
