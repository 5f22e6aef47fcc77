/*
 * Problem: thousands of questions, each of a millisecond or more, for programs that
 * answer one at a time. Idea: every process has a few requests in its pipe, so that it
 * never waits for us; poll says who has answered. Questions of one group go to the
 * process that had the group before; free processes take groups that nobody has. Who
 * answers what depends on the machine; the answers must not. One process is started with
 * the pipes of all, and may fork the others when it has read what all need; where its
 * first answer comes and it has not, they are started, too. An answer of one that it has
 * forked says nothing of that: it may be forking still.
 */
#include "oracle/coproc.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tool/tool.h"

#define DEPTH      4         /* requests that a process has at once */
#define MAX_LINE   (1 << 28) /* bytes of an answer */
#define MAX_GROUPS 4096      /* more are not ended by signals */
#define PIPES      "AP_SERVE_PIPES"

enum state {
    WAITS,  /* the first process may fork it */
    FORKED, /* by the first process, which waits for its end */
    CHILD,  /* ours */
};

struct worker {
    enum state state;
    pid_t pid;    /* 0: none */
    int to, from; /* pipes, -1 when closed */
    struct ap_buf got;
    size_t looked; /* bytes of `got` without a newline */
    int flight[DEPTH], n_flight;
    double since; /* when the oldest request began to wait for an answer */
    int range;    /* of the run under way, -1 for none */
};

struct coproc_pool {
    const char **argv; /* of the shell, NULL last; malloc, and argv[2] */
    const char *const *(*args)(void *ctx); /* for processes that start late; NULL: same */
    void *args_ctx;
    int n, n_waiting;
    bool answered; /* by the first process: it forks no more */
    struct worker *worker;
    int n_groups, *owner; /* [group]: worker that had it last, -1 */
};

/* Jobs of one group that are not sent yet. */
struct range {
    int group, next, end;
};

struct run {
    struct coproc_pool *pool;
    const struct coproc_job *jobs;
    int n_ranges, n_answered;
    struct range *range;
};

/* ---- starting and stopping ---- */

/* Processes of ours, each with what it has started in a group of its own, for signals. */
static volatile pid_t groups[MAX_GROUPS];

static void kill_group(pid_t pid)
{
    if (kill(-pid, SIGKILL))
        kill(pid, SIGKILL); /* one that another one has forked */
}

void coproc_kill_all(void)
{
    for (int i = 0; i < MAX_GROUPS; i++)
        if (groups[i] > 0)
            kill_group(groups[i]);
}

/* Notes a group, or (from) that it has ended. */
static void note_group(pid_t from, pid_t to)
{
    for (int i = 0; i < MAX_GROUPS; i++)
        if (groups[i] == from) {
            groups[i] = to;
            return;
        }
}

static void open_pipe(int fd[2])
{
    if (pipe(fd))
        ap_die(AP_BAD_INPUT, "pipe: %s", strerror(errno));
    fcntl(fd[0], F_SETFD, FD_CLOEXEC); /* dup2 leaves the flag behind */
    fcntl(fd[1], F_SETFD, FD_CLOEXEC);
}

/* Where standard input was closed, a pipe's end may lie there already. */
static bool lies_at(int fd, int at)
{
    return fd == at ? fcntl(fd, F_SETFD, 0) == 0 : dup2(fd, at) >= 0;
}

static _Noreturn void become(const char *const *argv, int in, int out)
{
    signal(SIGPIPE, SIG_DFL);
    if (lies_at(in, STDIN_FILENO) && lies_at(out, STDOUT_FILENO))
        execv("/bin/sh", (char *const *)argv);
    _exit(127);
}

/* Our ends of a worker's pipes; far: its own. */
static void connect_worker(struct worker *w, int far[2])
{
    int in[2], out[2];
    open_pipe(in);
    open_pipe(out);
    w->to = in[1];
    w->from = out[0];
    w->range = -1;
    far[0] = in[0];
    far[1] = out[1];
}

static unsigned long long inode(int fd)
{
    struct stat st = {0};
    fstat(fd, &st);
    return (unsigned long long)st.st_ino;
}

/*
 * Tells a program that starts where the n pipes behind its own are that it may fork
 * processes for, and by which number and inodes it knows that it is the one: only who
 * stands right at both of its pipes can speak for others, too, and whoever only waits for
 * it would keep the others' open.
 */
static void hand_over(const int (*far)[2], int n)
{
    struct ap_buf list = {0};
    ap_buf_printf(&list, "%ld:%llu:%llu", (long)getpid(), inode(far[0][0]),
                  inode(far[0][1]));
    for (int i = 1; i <= n; i++) {
        ap_buf_printf(&list, ",%d:%d", far[i][0], far[i][1]);
        fcntl(far[i][0], F_SETFD, 0);
        fcntl(far[i][1], F_SETFD, 0);
    }
    if (n > 0)
        setenv(PIPES, list.data, 1);
    else
        unsetenv(PIPES);
    ap_buf_free(&list);
}

/* far: the process's ends, then n of those that wait for it. */
static void start(struct coproc_pool *pool, struct worker *w, const int (*far)[2], int n)
{
    w->pid = fork();
    if (w->pid < 0)
        ap_die(AP_BAD_INPUT, "fork: %s", strerror(errno));
    setpgid(w->pid, w->pid); /* from both sides: who is first is not known */
    if (w->pid == 0) {
        hand_over(far, n);
        become(pool->argv, far[0][0], far[0][1]);
    }
    w->state = CHILD;
    note_group(0, w->pid);
    for (int i = 0; i <= n; i++) {
        close(far[i][0]);
        close(far[i][1]);
    }
}

/* A process of its own for a worker that the first one has not forked. */
static void start_late(struct coproc_pool *pool, struct worker *w)
{
    int far[1][2];
    const char *const *args = pool->args ? pool->args(pool->args_ctx) : NULL;
    for (int i = 0; args && args[i]; i++)
        pool->argv[4 + i] = args[i];
    close(w->to);
    close(w->from);
    connect_worker(w, far[0]);
    start(pool, w, (const int(*)[2])far, 0);
    pool->n_waiting--;
}

struct coproc_pool *coproc_start(const char *command, const char *const *args, int n)
{
    struct coproc_pool *pool = ap_xrealloc(NULL, sizeof *pool);
    struct ap_buf script = {0};
    int n_args = 0;

    while (args[n_args])
        n_args++;
    const char **argv = ap_xrealloc(NULL, sizeof *argv * (size_t)(n_args + 5));
    ap_buf_printf(&script, "exec %s \"$@\"", command);
    argv[0] = "sh";
    argv[1] = "-c";
    argv[2] = script.data;
    argv[3] = "ap-stage";
    for (int i = 0; i <= n_args; i++)
        argv[4 + i] = args[i];
    *pool = (struct coproc_pool){.argv = argv, .n = n, .n_waiting = n - 1};
    pool->worker = ap_xrealloc(NULL, sizeof *pool->worker * (size_t)n);
    memset(pool->worker, 0, sizeof *pool->worker * (size_t)n);
    signal(SIGPIPE, SIG_IGN); /* a dead process is noticed by its answers' end */
    int(*far)[2] = ap_xrealloc(NULL, sizeof *far * (size_t)n);
    for (int i = 0; i < n; i++)
        connect_worker(&pool->worker[i], far[i]);
    start(pool, &pool->worker[0], (const int(*)[2])far, n - 1);
    free(far);
    return pool;
}

void coproc_args(struct coproc_pool *pool, const char *const *(*args)(void *ctx),
                 void *ctx)
{
    pool->args = args;
    pool->args_ctx = ctx;
}

/* Waits for its end, and makes it end when that takes longer than a second (*stayed). */
static int reap(struct worker *w, bool *stayed)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int status = 0;
    pid_t rc = w->state == CHILD ? 0 : -1;
    for (int i = 0; i < 1000 && rc == 0; i++) {
        rc = waitpid(w->pid, &status, WNOHANG);
        if (rc == 0)
            nanosleep(&pause, NULL);
    }
    *stayed = rc == 0;
    if (rc == 0) {
        kill_group(w->pid);
        while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    if (w->state == CHILD)
        note_group(w->pid, 0);
    w->pid = 0;
    return status;
}

void coproc_stop(struct coproc_pool *pool)
{
    for (int i = 0; i < pool->n; i++) {
        struct worker *w = &pool->worker[i];
        if (w->n_flight > 0 && w->pid > 0) /* work of which nobody wants the answer */
            kill_group(w->pid);
        close(w->to);
        close(w->from);
    }
    for (int i = 0; i < pool->n; i++) {
        struct worker *w = &pool->worker[i];
        bool stayed;
        if (w->pid > 0)
            reap(w, &stayed);
        ap_buf_free(&w->got);
    }
    free((char *)pool->argv[2]);
    free(pool->argv);
    free(pool->owner);
    free(pool->worker);
    free(pool);
}

void coproc_kill(struct coproc_pool *pool)
{
    for (int i = 0; i < pool->n; i++)
        if (pool->worker[i].pid > 0)
            kill_group(pool->worker[i].pid);
    coproc_stop(pool);
}

/* ---- who does what ---- */

static int left(const struct range *r)
{
    return r->end - r->next;
}

/* A group that it had before; else, if it has nothing to do, one that nobody has; else
 * -1. */
static int own_range(const struct run *run, int worker)
{
    bool idle = run->pool->worker[worker].n_flight == 0;
    int free_range = -1;
    for (int i = 0; i < run->n_ranges; i++) {
        const struct range *r = &run->range[i];
        int owner = run->pool->owner[r->group];
        if (left(r) > 0 && owner == worker)
            return i;
        if (left(r) > 0 && owner < 0 && free_range < 0 && idle)
            free_range = i;
    }
    return free_range;
}

/* The next job of a worker, -1 when all are sent. */
static int pick(struct run *run, int worker)
{
    struct worker *w = &run->pool->worker[worker];
    if (w->range < 0 || left(&run->range[w->range]) == 0)
        w->range = own_range(run, worker);
    if (w->range < 0)
        return -1; /* the rest is for those who are prepared */
    struct range *r = &run->range[w->range];
    run->pool->owner[r->group] = worker;
    return r->next++;
}

static void list_ranges(struct run *run, int n)
{
    struct coproc_pool *pool = run->pool;
    run->range = ap_xrealloc(NULL, sizeof *run->range * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        int group = run->jobs[i].group;
        assert(group >= 0);
        if (i == 0 || run->jobs[i - 1].group != group)
            run->range[run->n_ranges++] = (struct range){group, i, i};
        run->range[run->n_ranges - 1].end = i + 1;
        if (group >= pool->n_groups) {
            pool->owner = ap_xrealloc(pool->owner, sizeof(int) * (size_t)(group + 1));
            while (pool->n_groups <= group)
                pool->owner[pool->n_groups++] = -1;
        }
    }
    for (int i = 0; i < pool->n; i++)
        pool->worker[i].range = -1;
}

/* ---- talking ---- */

static double now_sec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int died(const struct run *run, struct worker *w, struct ap_err *err)
{
    const char *line = w->n_flight > 0 ? run->jobs[w->flight[0]].line : "none";
    bool stayed, ours = w->state == CHILD;
    int status = reap(w, &stayed);
    if (!ours)
        ap_err_set(err, "the shard command ended; request: %.300s", line);
    else if (stayed)
        ap_err_set(err,
                   "the shard command closed its output and went on; request: %.300s",
                   line);
    else if (WIFSIGNALED(status))
        ap_err_set(err, "the shard command was killed by signal %d; request: %.300s",
                   WTERMSIG(status), line);
    else
        ap_err_set(err, "the shard command ended with exit status %d%s; request: %.300s",
                   WEXITSTATUS(status), WEXITSTATUS(status) == 127 ? " (not found)" : "",
                   line);
    return -1;
}

static bool put_line(int fd, const char *line)
{
    struct ap_buf buf = {0};
    size_t at = 0;
    ap_buf_puts(&buf, line);
    ap_buf_putc(&buf, '\n');
    while (at < buf.len) {
        ssize_t n = write(fd, buf.data + at, buf.len - at);
        if (n < 0 && errno != EINTR)
            break;
        at += n > 0 ? (size_t)n : 0;
    }
    bool all = at == buf.len;
    ap_buf_free(&buf);
    return all;
}

/* Fills a process's pipe. A write that fails is left to its end of file. */
static void feed(struct run *run, int worker)
{
    struct worker *w = &run->pool->worker[worker];
    while (w->state != WAITS && w->n_flight < DEPTH) {
        int job = pick(run, worker);
        if (job < 0)
            break;
        if (w->n_flight == 0)
            w->since = now_sec();
        w->flight[w->n_flight++] = job;
        if (!put_line(w->to, run->jobs[job].line))
            break;
    }
}

static int take_answer(struct run *run, struct worker *w, const char *line, size_t len,
                       coproc_answer_fn *answer, void *ctx, struct ap_err *err)
{
    struct ap_err why = {0};
    const char *asked = w->n_flight > 0 ? run->jobs[w->flight[0]].line : "none";
    int job = answer(ctx, line, len, &why), at = 0;
    while (at < w->n_flight && w->flight[at] != job)
        at++;
    if (job >= 0 && at == w->n_flight)
        ap_err_set(&why, "an id that was not asked");
    if (*why.msg)
        return ap_err_set(err,
                          "the shard command answered nonsense: %s; request: %.300s; "
                          "answer: %.*s",
                          why.msg, asked, (int)(len < 200 ? len : 200), line);
    memmove(w->flight + at, w->flight + at + 1,
            sizeof(int) * (size_t)(w->n_flight - at - 1));
    w->n_flight--;
    w->since = now_sec();
    run->n_answered++;
    run->pool->answered |= w == run->pool->worker;
    return 0;
}

/*
 * The first process says which process it has forked for a worker, with {"pid":N} in its
 * pipe, or its end shows that it has not.
 */
static void hear_who(struct run *run, struct worker *w)
{
    char line[64];
    ssize_t n = read(w->from, line, sizeof line - 1);
    if (n < 0 && errno == EINTR)
        return;
    line[n > 0 ? n : 0] = '\0';
    long pid =
        n > 0 && strncmp(line, "{\"pid\":", 7) == 0 ? strtol(line + 7, NULL, 10) : 0;
    if (pid <= 1) {
        start_late(run->pool, w);
        return;
    }
    w->state = FORKED;
    w->pid = (pid_t)pid;
    run->pool->n_waiting--;
}

/* What has been forked by the time of the first process's answer is known; the rest is
 * not. */
static void wait_no_longer(struct run *run)
{
    struct coproc_pool *pool = run->pool;
    for (int i = 0; i < pool->n && pool->n_waiting > 0; i++) {
        struct worker *w = &pool->worker[i];
        struct pollfd fd = {.fd = w->from, .events = POLLIN};
        if (w->state != WAITS)
            continue;
        if (poll(&fd, 1, 0) == 1)
            hear_who(run, w);
        else
            start_late(pool, w);
        feed(run, i);
    }
}

/* All that has come from a process; every whole line is an answer. */
static int run_rule(struct run *run, struct worker *w, coproc_answer_fn *answer,
                    void *ctx, struct ap_err *err)
{
    static char bytes[1 << 16];
    ssize_t n = read(w->from, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR)
        return 0;
    if (n <= 0)
        return died(run, w, err);
    ap_buf_put(&w->got, bytes, (size_t)n);
    char *line = w->got.data, *end;
    while ((end = memchr(line + w->looked, '\n',
                         w->got.len - (size_t)(line - w->got.data) - w->looked))) {
        *end = '\0';
        if (take_answer(run, w, line, (size_t)(end - line), answer, ctx, err))
            return -1;
        line = end + 1;
        w->looked = 0;
    }
    w->got.len -= (size_t)(line - w->got.data);
    memmove(w->got.data, line, w->got.len);
    w->looked = w->got.len;
    if (w->looked > MAX_LINE)
        return ap_err_set(err,
                          "the shard command answered more than %d MiB without an end of "
                          "line; request: %.300s",
                          MAX_LINE >> 20,
                          w->n_flight > 0 ? run->jobs[w->flight[0]].line : "none");
    return 0;
}

/* Waits for answers; -1 when a process is silent for too long. */
static int wait_some(struct run *run, struct pollfd *fds, double limit_sec,
                     struct ap_err *err)
{
    struct coproc_pool *pool = run->pool;
    double now = now_sec(), wait = limit_sec;
    for (int i = 0; i < pool->n; i++) {
        struct worker *w = &pool->worker[i];
        bool heard = w->n_flight || w->state == WAITS;
        fds[i] = (struct pollfd){.fd = heard ? w->from : -1, .events = POLLIN};
        if (w->n_flight && w->since + limit_sec - now < wait)
            wait = w->since + limit_sec - now;
    }
    int ms = wait > 1e6 ? 1000000000 : wait > 0 ? (int)(wait * 1000) + 1 : 0;
    int rc = poll(fds, (nfds_t)pool->n, ms);
    if (rc < 0 && errno != EINTR)
        ap_die(AP_BAD_INPUT, "poll: %s", strerror(errno));
    for (int i = 0; rc == 0 && i < pool->n; i++) {
        const struct worker *w = &pool->worker[i];
        if (w->n_flight && now_sec() >= w->since + limit_sec)
            return ap_err_set(err,
                              "the shard command gave no answer in %g seconds "
                              "(--time-out); request: %.300s",
                              limit_sec, run->jobs[w->flight[0]].line);
    }
    return rc < 0 ? 0 : rc;
}

int coproc_run(struct coproc_pool *pool, const struct coproc_job *jobs, int n,
               double limit_sec, coproc_answer_fn *answer, void *ctx, struct ap_err *err)
{
    struct run run = {.pool = pool, .jobs = jobs};
    struct pollfd *fds = ap_xrealloc(NULL, sizeof *fds * (size_t)pool->n);
    int rc = 0;

    list_ranges(&run, n);
    for (int i = 0; i < pool->n; i++)
        feed(&run, i);
    while (rc == 0 && run.n_answered < n) {
        rc = wait_some(&run, fds, limit_sec, err) < 0 ? -1 : 0;
        for (int i = 0; i < pool->n && rc == 0; i++) {
            if (fds[i].fd < 0 || !fds[i].revents)
                continue;
            if (pool->worker[i].state == WAITS)
                hear_who(&run, &pool->worker[i]);
            else
                rc = run_rule(&run, &pool->worker[i], answer, ctx, err);
            if (rc == 0)
                feed(&run, i);
        }
        if (rc == 0 && pool->answered && pool->n_waiting > 0)
            wait_no_longer(&run);
    }
    free(run.range);
    free(fds);
    return rc;
}
