/* The watchdog's hub: hears all ranks, and decides when the job has to end. */
#include "watch/watch.h"
#include "watch/watch_wire.h"

#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

struct member {
    int fd;      /* -1: none */
    bool joined; /* and is here, unless it has left */
    bool left;
    int signal;      /* that it left by; 0: none */
    double last_sec; /* of its last report */
    struct wire_beat last;
};

/* A connection that has not yet said which rank it is of. */
struct guest {
    int fd;
    double since;
};
enum { MAX_GUESTS = 256 };

struct watch_hub {
    int n;
    double sec;
    int fd; /* that listens */
    uint64_t token;
    struct member *member; /* [rank] */
    atomic_int said;       /* exit code of a rank that has printed why it ends */
    int n_guests;
    struct guest guest[MAX_GUESTS];
    double progress; /* when a rank made some */
    double last;     /* when the hub looked */
    void (*stop)(void *ctx, enum watch_verdict why, const char *text);
    void (*look)(void *ctx, int64_t step); /* NULL: nobody looks */
    void *ctx;
};

void wire_prepare(int fd)
{
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

int wire_receive(int fd, struct wire_beat *beat)
{
    const ssize_t n = recv(fd, beat, sizeof *beat, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return -1;
    return n < (ssize_t)sizeof *beat ? 0 : recv(fd, beat, sizeof *beat, 0) > 0 ? 1 : -1;
}

/* ---- the address ---- */

/* "TOKEN,PORT,HOST,HOST...": all addresses of this machine. */
static void put_address(const struct watch_hub *h, int port, struct ap_buf *out)
{
    struct ifaddrs *all = NULL;
    int n = 0;
    ap_buf_printf(out, "%llx,%d", (unsigned long long)h->token, port);
    if (getifaddrs(&all))
        all = NULL;
    for (struct ifaddrs *i = all; i && n < WIRE_ADDRESSES; i = i->ifa_next) {
        char host[64];
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET ||
            getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), host, sizeof host, NULL,
                        0, NI_NUMERICHOST))
            continue;
        ap_buf_printf(out, ",%s", host);
        n++;
    }
    if (n == 0)
        ap_buf_puts(out, ",127.0.0.1");
    freeifaddrs(all);
}

static uint64_t make_token(void)
{
    uint64_t token = (uint64_t)getpid() << 32;
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, &token, sizeof token) < 0)
            token++;
        close(fd);
    }
    return token;
}

struct watch_hub *watch_hub_open(int n, double sec, struct ap_buf *address,
                                 struct ap_err *err)
{
    struct watch_hub *h = ap_xrealloc(NULL, sizeof *h);
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t len = sizeof any;
    struct rlimit files;
    *h = (struct watch_hub){.n = n, .sec = sec, .token = make_token()};
    h->member = ap_xrealloc(NULL, (size_t)n * sizeof *h->member);
    for (int r = 0; r < n; r++)
        h->member[r] = (struct member){.fd = -1};
    if (!getrlimit(RLIMIT_NOFILE, &files)) { /* a connection per rank */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    h->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (h->fd < 0 || bind(h->fd, (struct sockaddr *)&any, len) ||
        listen(h->fd, WIRE_LISTEN) || getsockname(h->fd, (struct sockaddr *)&any, &len)) {
        ap_err_set(err, "watchdog: %s", strerror(errno));
        return NULL;
    }
    wire_prepare(h->fd);
    put_address(h, ntohs(any.sin_port), address);
    return h;
}

/* ---- verdicts ---- */

/* "rank 2 (process 17 on host a, step 3, all-reduce)" */
static void put_rank(const struct watch_hub *h, int rank, struct ap_buf *out)
{
    const struct wire_beat *b = &h->member[rank].last;
    ap_buf_printf(out, "rank %d (process %d on %s", rank, b->pid, b->host);
    if (b->step > 0)
        ap_buf_printf(out, ", step %lld", (long long)b->step);
    ap_buf_printf(out, "%s%s)", b->doing[0] ? ", " : "", b->doing);
}

static void judge(struct watch_hub *h, enum watch_verdict why, struct ap_buf *text)
{
    const char end = WIRE_END;
    for (int r = 0; r < h->n; r++)
        if (h->member[r].fd >= 0)
            send(h->member[r].fd, &end, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    h->stop(h->ctx, why, text->data);
    ap_buf_free(text);
    h->stop = NULL;
}

static void find_stall(struct watch_hub *h, double now)
{
    enum { MOST = 8 };
    struct ap_buf text = {0};
    int n = 0;
    for (int r = 0; r < h->n; r++) {
        const struct member *m = &h->member[r];
        if (m->left || now - m->last_sec <= h->sec)
            continue;
        if (m->joined)
            put_rank(h, r, &text);
        else
            ap_buf_printf(&text, "rank %d", r);
        ap_buf_printf(&text,
                      m->joined ? " has not answered for %g s: stopped or cut off"
                                : " has not started within %g s",
                      h->sec);
        judge(h, WATCH_STALL, &text);
        return;
    }
    if (now - h->progress <= h->sec)
        return;
    ap_buf_printf(&text, "no rank has made progress for %g s:", h->sec);
    for (int r = 0; r < h->n && n < MOST; r++)
        if (!h->member[r].left) {
            ap_buf_puts(&text, n++ ? ", " : " ");
            put_rank(h, r, &text);
        }
    ap_buf_puts(&text, n < h->n ? " and others" : n ? "" : "mpirun has not ended");
    judge(h, WATCH_STALL, &text);
}

/* ---- what ranks say ---- */

static void hear(struct watch_hub *h, int rank, double now)
{
    struct member *m = &h->member[rank];
    struct wire_beat beat;
    int rc;
    while ((rc = wire_receive(m->fd, &beat)) > 0) {
        m->last_sec = now;
        if (beat.kind == WIRE_SAID)
            atomic_store(&h->said, beat.by);
        if (beat.kind == WIRE_BYE || beat.kind == WIRE_SAID) {
            m->left = true;
            m->signal = beat.kind == WIRE_BYE ? beat.by : 0;
            h->progress = now;
            continue;
        }
        if (beat.progress != m->last.progress)
            h->progress = now;
        m->last = beat;
    }
    if (rc < 0) {
        close(m->fd);
        m->fd = -1;
    }
}

static void hear_all(struct watch_hub *h, double now)
{
    for (int r = 0; r < h->n; r++)
        if (h->member[r].fd >= 0)
            hear(h, r, now);
}

/* Who ended out of order. That a rank ends by a signal is often what mpirun does because
 * another one was killed, which says nothing any more. */
static void find_dead(struct watch_hub *h, double now)
{
    struct ap_buf text = {0};
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < h->n; r++) {
            const struct member *m = &h->member[r];
            if (!m->joined || (pass ? !m->signal : m->left || m->fd >= 0))
                continue;
            hear_all(h, now); /* what others said before */
            put_rank(h, r, &text);
            if (pass)
                ap_buf_printf(&text, " was ended by signal %d (%s)", m->signal,
                              strsignal(m->signal));
            judge(h, pass ? WATCH_ENDED : WATCH_DEAD, &text);
            return;
        }
}

/* A guest's greeting; whether it is a guest still. */
static bool is_guest(struct watch_hub *h, const struct guest *g, double now)
{
    struct wire_beat beat;
    const char yes = WIRE_BEAT;
    const int rc = wire_receive(g->fd, &beat);
    if (rc == 0 && now - g->since < 1e-3 * WIRE_CONNECT_MS)
        return true;
    if (rc <= 0 || beat.kind != WIRE_HELLO || beat.token != h->token || beat.rank < 0 ||
        beat.rank >= h->n || h->member[beat.rank].joined) {
        close(g->fd);
        return false;
    }
    beat.host[sizeof beat.host - 1] = 0;
    h->member[beat.rank] =
        (struct member){.fd = g->fd, .joined = true, .last_sec = now, .last = beat};
    send(g->fd, &yes, 1, MSG_NOSIGNAL);
    h->progress = now;
    return false;
}

static void hear_guests(struct watch_hub *h, double now)
{
    int fd, n = 0;
    while (h->n_guests < MAX_GUESTS && (fd = accept(h->fd, NULL, NULL)) >= 0) {
        wire_prepare(fd);
        h->guest[h->n_guests++] = (struct guest){fd, now};
    }
    for (int i = 0; i < h->n_guests; i++)
        if (is_guest(h, &h->guest[i], now))
            h->guest[n++] = h->guest[i];
    h->n_guests = n;
}

/* ---- the thread ---- */

/* Waits for something to hear, at most a period. */
static void listen_all(const struct watch_hub *h, struct pollfd *p)
{
    nfds_t n = 0;
    p[n++] = (struct pollfd){.fd = h->fd, .events = POLLIN};
    for (int i = 0; i < h->n_guests; i++)
        p[n++] = (struct pollfd){.fd = h->guest[i].fd, .events = POLLIN};
    for (int r = 0; r < h->n; r++)
        if (h->member[r].fd >= 0)
            p[n++] = (struct pollfd){.fd = h->member[r].fd, .events = POLLIN};
    poll(p, n, WIRE_PERIOD_MS);
}

static void answer_all(struct watch_hub *h)
{
    const char beat = WIRE_BEAT;
    for (int r = 0; r < h->n; r++)
        if (h->member[r].fd >= 0)
            send(h->member[r].fd, &beat, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void show_step(const struct watch_hub *h)
{
    int64_t step = INT64_MAX;
    for (int r = 0; r < h->n; r++)
        if (h->member[r].last.step < step && !h->member[r].left)
            step = h->member[r].last.step;
    if (step < INT64_MAX)
        h->look(h->ctx, step);
}

static void *run(void *ctx)
{
    struct watch_hub *h = ctx;
    struct pollfd *p = ap_xrealloc(NULL, ((size_t)h->n + MAX_GUESTS + 1) * sizeof *p);
    double answered = h->last;
    while (h->stop) {
        listen_all(h, p);
        const double now = ap_now_sec(), gap = now - h->last;
        h->last = now;
        if (gap > WIRE_SUSPENDED) { /* the hub itself was suspended */
            h->progress += gap;
            for (int r = 0; r < h->n; r++)
                h->member[r].last_sec += gap;
        }
        hear_guests(h, now);
        hear_all(h, now);
        find_dead(h, now);
        if (h->stop && h->sec > 0)
            find_stall(h, now);
        if (now - answered > WIRE_PERIOD_MS * 1e-3) {
            answer_all(h);
            answered = now;
            if (h->stop && h->look)
                show_step(h);
        }
    }
    free(p);
    return NULL;
}

void watch_hub_look(struct watch_hub *h, void (*look)(void *ctx, int64_t step))
{
    h->look = look;
}

int watch_hub_said(const struct watch_hub *h)
{
    return atomic_load(&h->said);
}

void watch_hub_run(struct watch_hub *h,
                   void (*stop)(void *ctx, enum watch_verdict why, const char *text),
                   void *ctx)
{
    pthread_t thread;
    sigset_t all, old;
    h->stop = stop;
    h->ctx = ctx;
    h->progress = h->last = ap_now_sec();
    for (int r = 0; r < h->n; r++)
        h->member[r].last_sec = h->last;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, NULL, run, h))
        ap_die(AP_BAD_INPUT, "watchdog: no thread");
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_detach(thread);
}
