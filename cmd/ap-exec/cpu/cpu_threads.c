/*
 * The threads of a rank. Problem: a kernel's work is shared by the threads, and an
 * element's bits must not depend on how many there are. Idea: kernels are cut into tasks
 * whose number and bounds follow from sizes alone; which thread runs a task changes
 * nothing. Every thread has a share of neighbouring tasks, the same part of each kernel,
 * so that it finds in its own cache what it wrote before; a thread that has finished its
 * share takes tasks from the others. One word for each share holds the number of a piece
 * of work and how many of the share's tasks nobody has taken yet; a thread takes one by
 * compare and swap, so that a late one can never take a task of work that is over.
 * Threads without work look for some for a moment, then sleep. Cost: about a microsecond
 * for each piece of work, more if threads sleep.
 */
#include "cpu/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

/* How often a thread looks for work before it sleeps: some 100 microseconds, a few times
 * what it takes to wake one. */
#define LOOKS 8000

/* The tasks of one thread, on a cache line of its own. */
struct share {
    _Alignas(64) atomic_uint_least64_t word; /* number of the work << 32 | not taken */
    int64_t end;                             /* after its last task */
};

static struct {
    int n_threads; /* 0: not set, one */
    bool started;
    cpu_task *task;
    void *ctx;
    struct share share[CPU_MAX_THREADS];
    _Alignas(64) atomic_uint_least64_t done; /* tasks that are through */
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

/* Runs tasks of a share until none is left. */
static void work_share(struct share *s, int thread)
{
    uint64_t word = atomic_load(&s->word);
    while (LEFT(word) > 0) {
        if (!atomic_compare_exchange_weak(&s->word, &word, word - 1))
            continue;
        pool.task(pool.ctx, s->end - (int64_t)LEFT(word), thread);
        atomic_fetch_add(&pool.done, 1);
        word = atomic_load(&s->word);
    }
}

/* Runs tasks until none is left, those of its own share first. */
static void work(int thread)
{
    inside = true;
    for (int i = 0; i < pool.n_threads; i++)
        work_share(&pool.share[(thread + i) % pool.n_threads], thread);
    inside = false;
}

static bool is_work(void)
{
    for (int t = 0; t < pool.n_threads; t++)
        if (LEFT(atomic_load(&pool.share[t].word)) > 0)
            return true;
    return false;
}

static void sleep_until_work(void)
{
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.sleeping, 1);
    while (!is_work())
        pthread_cond_wait(&pool.wake, &pool.lock);
    atomic_fetch_sub(&pool.sleeping, 1);
    pthread_mutex_unlock(&pool.lock);
}

static void *thread_main(void *arg)
{
    const int thread = (int)(intptr_t)arg;
    for (;;) {
        int looks = 0;
        while (!is_work() && looks++ < LOOKS)
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
    const uint64_t number = (atomic_load(&pool.share[0].word) >> 32) + 1;
    pool.task = task;
    pool.ctx = ctx;
    atomic_store(&pool.done, 0);
    for (int t = pool.n_threads - 1; t >= 0; t--) {
        const int64_t from = n * t / pool.n_threads, end = n * (t + 1) / pool.n_threads;
        pool.share[t].end = end;
        atomic_store(&pool.share[t].word, number << 32 | (uint64_t)(end - from));
    }
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
