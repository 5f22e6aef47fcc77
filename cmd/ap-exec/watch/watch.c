/* The watchdog's side of a rank. */
#include "watch/watch.h"
#include "watch/watch_wire.h"

#include "tool/tool.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* One process is one rank, and its watchdog is a thread: these are the process's. */
static _Atomic uint64_t ticks;
static _Atomic int64_t step_at;
static _Atomic(const char *) doing_at;
static _Atomic bool waits;
static atomic_int connection = -1;
static atomic_bool left; /* the farewell is sent */

void watch_note(const char *doing)
{
    atomic_store_explicit(&doing_at, doing, memory_order_relaxed);
    atomic_fetch_add_explicit(&ticks, 1, memory_order_relaxed);
}

void watch_step(int64_t step)
{
    atomic_store_explicit(&step_at, step, memory_order_relaxed);
}

void watch_wait(const char *what)
{
    watch_note(what);
    atomic_store_explicit(&waits, true, memory_order_relaxed);
}

void watch_go(void)
{
    atomic_store_explicit(&waits, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&ticks, 1, memory_order_relaxed);
}

/* ---- connecting ---- */

/* A connected socket, or -1 with errno. */
static int connect_to(const char *host, const char *port, int timeout_ms)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *a;
    if (getaddrinfo(host, port, &hints, &a)) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    int fd = socket(a->ai_family, SOCK_STREAM, 0);
    if (fd >= 0) {
        wire_prepare(fd);
        int why = connect(fd, a->ai_addr, a->ai_addrlen) ? errno : 0;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t len = sizeof why;
        if (why == EINPROGRESS && poll(&p, 1, timeout_ms) == 1)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len);
        if (why) {
            close(fd);
            errno = why == EINPROGRESS ? ETIMEDOUT : why;
            fd = -1;
        }
    }
    freeaddrinfo(a);
    return fd;
}

/* Whether the hub answers the greeting: the port may be somebody else's by now. */
static bool greet(int fd, const struct wire_beat *hello, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c;
    return send(fd, hello, sizeof *hello, MSG_NOSIGNAL) == sizeof *hello &&
           poll(&p, 1, timeout_ms) == 1 && recv(fd, &c, 1, 0) == 1 && c == WIRE_BEAT;
}

/* ---- the thread ---- */

struct watcher {
    struct watch_self self;
    struct wire_beat beat;
    int fd;
    uint64_t last_ticks;
    double last_cpu;
};

/* The connection is of no use any more: the process ends. */
_Noreturn static void leave(const struct watcher *w, const char *why, bool loud)
{
    if (loud)
        ap_say("rank %d: %s %s", w->self.rank, w->self.hub_name, why);
    _exit(AP_BAD_INPUT);
}

static double now_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fill_beat(struct watcher *w, double since)
{
    const uint64_t now = atomic_load_explicit(&ticks, memory_order_relaxed);
    const double cpu = now_of(CLOCK_PROCESS_CPUTIME_ID);
    const char *doing = atomic_load_explicit(&doing_at, memory_order_relaxed);
    const bool works = !atomic_load_explicit(&waits, memory_order_relaxed) &&
                       cpu - w->last_cpu > WIRE_BUSY * since;
    w->beat.kind = WIRE_BEAT;
    w->beat.progress += now != w->last_ticks || works;
    w->beat.step = atomic_load_explicit(&step_at, memory_order_relaxed);
    snprintf(w->beat.doing, sizeof w->beat.doing, "%s", doing ? doing : "start");
    w->last_ticks = now;
    w->last_cpu = cpu;
}

static void *watch(void *ctx)
{
    struct watcher *w = ctx;
    double answered = ap_now_sec(), last = answered;
    for (;;) {
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        char bytes[64];
        poll(&p, 1, WIRE_PERIOD_MS);
        const double now = ap_now_sec();
        if (now - last > WIRE_SUSPENDED)
            answered += now - last;
        const ssize_t n = p.revents ? recv(w->fd, bytes, sizeof bytes, 0) : -1;
        if (n > 0)
            answered = now;
        if (n > 0 && memchr(bytes, WIRE_END, (size_t)n)) {
            poll(NULL, 0, WIRE_GRACE_MS);
            leave(w, "", false);
        }
        const bool lost =
            n == 0 || (p.revents && n < 0 && errno != EAGAIN && errno != EINTR);
        if (atomic_load(&left))
            return NULL; /* the process ends in order */
        if (lost)
            leave(w, "is gone", w->self.rank == w->self.speaker);
        if (w->self.sec > 0 && now - answered > w->self.sec)
            leave(w, "has not answered within the watchdog's time", true);
        if (now - last < WIRE_PERIOD_MS * 1e-3 / 2)
            continue;
        fill_beat(w, now - last);
        last = now;
        if (send(w->fd, &w->beat, sizeof w->beat, MSG_NOSIGNAL) < 0 && errno != EAGAIN)
            leave(w, "is gone", w->self.rank == w->self.speaker);
    }
}

/* The last words; also of a handler. */
static void say_bye(int kind, int by)
{
    const struct wire_beat bye = {.kind = kind, .by = by};
    const int fd = atomic_load(&connection);
    if ((!atomic_exchange(&left, true) || kind == WIRE_SAID) && fd >= 0)
        send(fd, &bye, sizeof bye, MSG_NOSIGNAL);
}

void watch_leave(int said)
{
    say_bye(said ? WIRE_SAID : WIRE_BYE, said);
}

/* Says by what the process ends, and lets it end by what was to end it. */
static const int fatal[] = {SIGHUP, SIGINT, SIGTERM};
static struct sigaction before[3];

static void on_signal(int sig)
{
    say_bye(WIRE_BYE, sig);
    for (int i = 0; i < 3; i++)
        if (fatal[i] == sig)
            sigaction(sig, &before[i], NULL);
    raise(sig);
}

static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal};
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < 3; i++)
        if (!sigaction(fatal[i], NULL, &before[i]) && before[i].sa_handler != SIG_IGN)
            sigaction(fatal[i], &act, NULL);
}

static int start(struct watcher *w)
{
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the main thread */
    const int rc = pthread_create(&thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!rc)
        pthread_detach(thread);
    return rc;
}

int watch_join(const struct watch_self *self, const char *address, struct ap_err *err)
{
    static struct watcher watcher; /* the thread's, till the process ends */
    struct watcher *w = &watcher;
    char *copy = strdup(address), *save = NULL;
    *w = (struct watcher){.self = *self, .fd = -1};
    w->beat =
        (struct wire_beat){.kind = WIRE_HELLO, .rank = self->rank, .pid = (int)getpid()};
    gethostname(w->beat.host, sizeof w->beat.host - 1);
    const char *token = copy ? strtok_r(copy, ",", &save) : NULL;
    w->beat.token = token ? strtoull(token, NULL, 16) : 0;
    const char *port = strtok_r(NULL, ",", &save);
    for (const char *host; port && w->fd < 0 && (host = strtok_r(NULL, ",", &save));) {
        w->fd = connect_to(host, port, WIRE_CONNECT_MS);
        if (w->fd >= 0 && !greet(w->fd, &w->beat, WIRE_CONNECT_MS)) {
            close(w->fd);
            w->fd = -1;
        }
    }
    free(copy);
    if (w->fd < 0)
        return ap_err_set(err,
                          "rank %d: cannot reach the watchdog at %s; --watchdog 0 "
                          "runs without",
                          self->rank, address);
    atomic_store(&connection, w->fd);
    ap_tool_on_die(watch_leave);
    catch_signals();
    return start(w) ? ap_err_set(err, "watchdog: no thread") : 0;
}
