/*
 * The threads of a rank. Problem: a kernel's work is shared by the threads, and an
 * element's bits must not depend on how many there are. Idea: kernels are cut into tasks
 * whose number and bounds follow from sizes alone; which thread runs a task changes
 * nothing. One word holds the number of a piece of work and how many of its tasks nobody
 * has taken yet; a thread takes one by compare and swap, so that a late one can never
 * take a task of work that is over. Threads without work look for some for a moment, then
 * sleep. Cost: about a microsecond for each piece of work, more if threads sleep.
 */
#include "cpu/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

/* How often a thread looks for work before it sleeps: some 100 microseconds, a few times
 * what it takes to wake one. */
#define LOOKS 8000

static struct {
    int n_threads; /* 0: not set, one */
    bool started;
    cpu_task *task;
    void *ctx;
    atomic_uint_least64_t word; /* number of the work << 32 | tasks that are not taken */
    atomic_uint_least64_t done; /* tasks that are through */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_int sleeping;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static _Thread_local bool inside; /* a task runs on this thread */

#define LEFT(word) ((uint32_t)(word))

void cpu_set_threads(int n)
{
    pool.n_threads = n < 1 ? 1 : n > CPU_MAX_THREADS ? CPU_MAX_THREADS : n;
}

int cpu_n_threads(void)
{
    return pool.n_threads ? pool.n_threads : 1;
}

static void pause_a_moment(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}

/* Runs tasks until none is left. */
static void work(int thread)
{
    uint64_t word = atomic_load(&pool.word);
    inside = true;
    while (LEFT(word) > 0) {
        if (!atomic_compare_exchange_weak(&pool.word, &word, word - 1))
            continue;
        pool.task(pool.ctx, (int64_t)LEFT(word) - 1, thread);
        atomic_fetch_add(&pool.done, 1);
        word = atomic_load(&pool.word);
    }
    inside = false;
}

static void sleep_until_work(void)
{
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.sleeping, 1);
    while (LEFT(atomic_load(&pool.word)) == 0)
        pthread_cond_wait(&pool.wake, &pool.lock);
    atomic_fetch_sub(&pool.sleeping, 1);
    pthread_mutex_unlock(&pool.lock);
}

static void *thread_main(void *arg)
{
    const int thread = (int)(intptr_t)arg;
    for (;;) {
        int looks = 0;
        while (LEFT(atomic_load(&pool.word)) == 0 && looks++ < LOOKS)
            pause_a_moment();
        if (looks > LOOKS)
            sleep_until_work();
        work(thread);
    }
    return NULL;
}

/* With the first work; they end with the process. Fewer, if the system has no more. */
static void start(void)
{
    sigset_t all, old;
    pool.started = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the main thread */
    for (int t = 1; t < pool.n_threads; t++) {
        pthread_t id;
        if (pthread_create(&id, NULL, thread_main, (void *)(intptr_t)t))
            break;
        pthread_detach(id);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void cpu_each(int64_t n, cpu_task *task, void *ctx)
{
    if (n < 2 || pool.n_threads < 2 || inside || n > UINT32_MAX) {
        for (int64_t i = 0; i < n; i++)
            task(ctx, i, 0);
        return;
    }
    if (!pool.started)
        start();
    const uint64_t number = (atomic_load(&pool.word) >> 32) + 1;
    pool.task = task;
    pool.ctx = ctx;
    atomic_store(&pool.done, 0);
    atomic_store(&pool.word, number << 32 | (uint64_t)n);
    if (atomic_load(&pool.sleeping) > 0) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    work(0);
    for (int looks = 0; atomic_load(&pool.done) < (uint64_t)n; looks++)
        if (looks < LOOKS)
            pause_a_moment();
        else
            sched_yield(); /* the thread that has the last task needs a core, too */
}
