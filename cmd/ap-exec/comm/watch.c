/*
 * A thread looks LOOKS times in the watchdog's seconds whether the rank is still in the
 * call in which it was at the last look. Looks are counted, not seconds, so that the time
 * in which the process itself was suspended does not count.
 */
#include "comm/watch.h"

#include "tool/tool.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS = 16 };

/* One process is one rank, and its watchdog is a thread: these are the process's. */
static _Atomic uint64_t calls; /* that waited, so far */
static _Atomic int64_t step_at;
static _Atomic(const char *) waits_for; /* NULL: for nobody */
static atomic_bool ended;

struct watcher {
    int rank;
    double sec;
};

void watch_step(int64_t step)
{
    atomic_store_explicit(&step_at, step, memory_order_relaxed);
}

void watch_wait(const char *what)
{
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    atomic_store_explicit(&waits_for, what, memory_order_relaxed);
}

void watch_go(void)
{
    atomic_store_explicit(&waits_for, NULL, memory_order_relaxed);
}

void watch_end(void)
{
    atomic_store(&ended, true);
}

const char *watch_shared(const char *variable)
{
    char host[256] = {0};
    const char *value = getenv(variable);
    if (!value || gethostname(host, sizeof host - 1))
        return NULL;
    const size_t n = strlen(host);
    return !strncmp(value, host, n) && value[n] == '/' ? value + n : NULL;
}

void watch_told(int code)
{
    const char *path = code ? watch_shared(TOLD_VARIABLE) : NULL;
    const int fd = path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    const char byte = 1;
    struct stat st;
    /* hosts may have one name: it must be a file of a byte at most, without a name */
    if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && !st.st_nlink &&
        st.st_size <= 1)
        (void)!write(fd, &byte, 1);
    if (fd >= 0)
        close(fd);
}

static void *watch(void *ctx)
{
    const struct watcher *w = ctx;
    const double period = w->sec / LOOKS;
    const struct timespec t = {(time_t)period,
                               (long)(1e9 * (period - (double)(time_t)period))};
    const char *what = NULL;
    uint64_t last = 0;
    for (int n = 0; n < LOOKS;) {
        nanosleep(&t, NULL);
        if (atomic_load(&ended))
            return NULL;
        const uint64_t now = atomic_load_explicit(&calls, memory_order_relaxed);
        what = atomic_load_explicit(&waits_for, memory_order_relaxed);
        n = what && now == last ? n + 1 : 0;
        last = now;
    }
    ap_say("rank %d has waited for other ranks for %g s (step %lld, %s): one of them "
           "has stopped, computes for longer than --watchdog, or cannot be reached",
           w->rank, w->sec, (long long)atomic_load(&step_at), what);
    watch_told(AP_BAD_INPUT);
    _exit(AP_BAD_INPUT);
}

void watch_start(int rank, double sec)
{
    static struct watcher watcher; /* the thread's, till the process ends */
    pthread_t thread;
    sigset_t all, old;
    ap_tool_on_die(watch_told);
    if (sec <= 0)
        return;
    watcher = (struct watcher){rank, sec};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the main thread */
    if (pthread_create(&thread, NULL, watch, &watcher))
        ap_die(AP_BAD_INPUT, "watchdog: no thread");
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_detach(thread);
}
