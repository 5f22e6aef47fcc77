/*
 * A rank computes on one thread and communicates on another. Problem: MPI makes progress
 * only inside of its calls, and a rank's processor belongs to its kernels. Idea: a queue
 * of collectives and one thread that runs them in order, so that all ranks run them in
 * the same order. It looks for progress every PAUSE_NS while the main thread computes,
 * which costs little and is often enough for what socket buffers hold at some Gbit/s, and
 * all the time while the main thread waits for it.
 */
#include "comm/progress.h"

#include "tool/tool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Jobs that are not over; who adds one more waits. */
#define ROOM 1024
/* Between two looks. 1 Gbit/s are 6 kB in that time; each costs some microseconds. */
#define PAUSE_NS 50000
/* Tickets go round. */
#define TICKETS (1u << 30)

struct progress {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t change;
    void (*run)(void *ctx, const struct progress_job *job);
    void *ctx;
    struct progress_job job[ROOM];
    unsigned n_added, n_done; /* modulo TICKETS */
    bool end;
    atomic_bool hurry; /* the main thread waits */
};

static unsigned under_way(const struct progress *p)
{
    return (p->n_added - p->n_done) % TICKETS;
}

static void *work(void *ctx)
{
    struct progress *p = ctx;
    pthread_mutex_lock(&p->mutex);
    for (;;) {
        while (under_way(p) == 0 && !p->end)
            pthread_cond_wait(&p->change, &p->mutex);
        if (under_way(p) == 0)
            break;
        const struct progress_job job = p->job[p->n_done % ROOM];
        pthread_mutex_unlock(&p->mutex);
        p->run(p->ctx, &job);
        pthread_mutex_lock(&p->mutex);
        p->n_done = (p->n_done + 1) % TICKETS;
        pthread_cond_broadcast(&p->change);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

struct progress *progress_open(void (*run)(void *ctx, const struct progress_job *job),
                               void *ctx)
{
    struct progress *p = ap_xrealloc(NULL, sizeof *p);
    memset(p, 0, sizeof *p);
    p->run = run;
    p->ctx = ctx;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->change, NULL);
    if (pthread_create(&p->thread, NULL, work, p))
        ap_die(AP_BAD_INPUT, "no thread for the collectives can be started");
    return p;
}

void progress_close(struct progress *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->mutex);
    p->end = true;
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->change);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

int progress_add(struct progress *p, const struct progress_job *job)
{
    pthread_mutex_lock(&p->mutex);
    while (under_way(p) == ROOM)
        pthread_cond_wait(&p->change, &p->mutex);
    const unsigned ticket = p->n_added;
    p->job[ticket % ROOM] = *job;
    p->n_added = (p->n_added + 1) % TICKETS;
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->mutex);
    return (int)ticket;
}

void progress_wait(struct progress *p, int ticket)
{
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->hurry, true);
    /* a job that has not ended has a ticket from n_done to n_added - 1 */
    while (((unsigned)ticket - p->n_done) % TICKETS < under_way(p))
        pthread_cond_wait(&p->change, &p->mutex);
    atomic_store(&p->hurry, false);
    pthread_mutex_unlock(&p->mutex);
}

void progress_pause(struct progress *p)
{
    const struct timespec t = {0, PAUSE_NS};
    if (atomic_load(&p->hurry))
        sched_yield();
    else
        nanosleep(&t, NULL);
}
