/*
 * Problem: thousands of questions, each of a millisecond or more, for programs that
 * answer one at a time. Idea: every process has a few requests in its pipe, so that it
 * never waits for us; poll says who has answered. Questions of one group go to the
 * process that had the group before; free processes take groups that nobody has. Who
 * answers what depends on the machine; the answers must not. A command is started once
 * for each process; a function of this program in one process that forks the others when
 * it has prepared what all need.
 */
#include "oracle/coproc.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tool/tool.h"

#define DEPTH      4         /* requests that a process has at once */
#define MAX_LINE   (1 << 28) /* bytes of an answer */
#define MAX_GROUPS 4096      /* more are not ended by signals */

struct worker {
    pid_t pid;    /* 0: none, or another worker's process has forked it */
    int to, from; /* pipes, -1 when closed */
    struct ap_buf got;
    size_t n_searched; /* bytes of `got` without a newline */
    int flight[DEPTH], n_flight;
    double since; /* when the oldest request began to wait for an answer */
    int range;    /* of the run under way, -1 for none */
};

struct coproc_pool {
    struct coproc_pool *next; /* of all that there are */
    int n;
    struct ap_work *work; /* of the program */
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

static struct coproc_pool *pools;

static void kill_group(pid_t pid)
{
    if (kill(-pid, SIGKILL))
        kill(pid, SIGKILL);
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

/* Above the standard streams, which may be closed. */
static int lift(int fd)
{
    int high = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
    close(fd);
    return high;
}

static void open_pipe(int fd[2])
{
    bool opened = !pipe(fd);
    fd[0] = opened ? lift(fd[0]) : -1;
    fd[1] = opened ? lift(fd[1]) : -1;
    if (fd[0] < 0 || fd[1] < 0)
        ap_die(AP_BAD_INPUT, "pipe: %s", strerror(errno));
}

/* Our ends of a worker's pipes; far: its own. */
static void connect_worker(struct worker *w, int far[2])
{
    int in[2], out[2];
    open_pipe(in);
    open_pipe(out);
    *w = (struct worker){.to = in[1], .from = out[0], .range = -1};
    far[0] = in[0];
    far[1] = out[1];
}

static void close_pipes(const struct coproc_pool *pool)
{
    for (int i = 0; i < pool->n; i++) {
        close(pool->worker[i].to);
        close(pool->worker[i].from);
    }
}

/* sh -c 'exec COMMAND "$@"' ap-stage ARG... */
static _Noreturn void run_command(const struct coproc_program *program, const int far[2])
{
    struct ap_buf script = {0};
    int n = 0;

    ap_buf_printf(&script, "exec %s \"$@\"", program->command);
    while (program->args[n])
        n++;
    char **argv = ap_xrealloc(NULL, sizeof *argv * (size_t)(n + 5));
    const char *const shell[] = {"sh", "-c", script.data, "ap-stage"};
    memcpy(argv, shell, sizeof shell); /* execv takes char *const *, and keeps them */
    memcpy(argv + 4, program->args, sizeof *argv * (size_t)(n + 1));
    signal(SIGPIPE, SIG_DFL);
    if (dup2(far[0], STDIN_FILENO) >= 0 && dup2(far[1], STDOUT_FILENO) >= 0)
        execv("/bin/sh", argv);
    _exit(127);
}

/* One process, with n pipes if the program is a function. */
static pid_t start(const struct coproc_program *program, int n, const int (*far)[2])
{
    pid_t pid = fork();
    if (pid < 0)
        ap_die(AP_BAD_INPUT, "fork: %s", strerror(errno));
    setpgid(pid, pid); /* from both sides: who is first is not known */
    if (pid == 0 && program->command)
        run_command(program, far[0]);
    if (pid == 0) {
        for (const struct coproc_pool *p = pools; p; p = p->next)
            close_pipes(p); /* or others never see that we close them */
        program->serve(program->ctx, n, far);
        _exit(127);
    }
    note_group(0, pid);
    return pid;
}

/* Whether the len bytes at name are a program: a path, or a name in a folder of PATH. */
static bool is_program(const char *name, int len)
{
    const char *path = memchr(name, '/', (size_t)len) ? NULL : getenv("PATH");
    struct ap_buf file = {0};
    bool found = false;

    if (!path)
        path = "";
    for (bool more = true; more && !found;) {
        const int n = (int)strcspn(path, ":");
        file.len = 0;
        ap_buf_printf(&file, "%.*s%s%.*s", n, path, n ? "/" : "", len, name);
        found = access(file.data, X_OK) == 0;
        more = path[n] != '\0';
        path += n + more;
    }
    ap_buf_free(&file);
    return found;
}

/* One message for all processes, where the shell would have one for each. What only the
 * shell understands is left to it. */
static void check_command(const char *command)
{
    command += strspn(command, " \t");
    const int len = (int)strcspn(command, " \t");
    const int plain =
        (int)strspn(command, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                             "0123456789_./+-");
    if (plain >= len && !is_program(command, len))
        ap_die(AP_BAD_INPUT, "the shard command: %.*s: not found", len, command);
}

struct coproc_pool *coproc_start(const struct coproc_program *program, int n)
{
    if (program->command)
        check_command(program->command);
    struct coproc_pool *pool = ap_xrealloc(NULL, sizeof *pool);
    int(*far)[2] = ap_xrealloc(NULL, sizeof *far * (size_t)n);

    *pool = (struct coproc_pool){.next = pools, .n = n, .work = program->work};
    pool->worker = ap_xrealloc(NULL, sizeof *pool->worker * (size_t)n);
    pools = pool;
    signal(SIGPIPE, SIG_IGN); /* a dead process is noticed by its answers' end */
    for (int i = 0; i < n; i++)
        connect_worker(&pool->worker[i], far[i]);
    for (int i = 0; i < (program->command ? n : 1); i++)
        pool->worker[i].pid = start(program, n, (const int(*)[2])far + i);
    for (int i = 0; i < n; i++) {
        close(far[i][0]);
        close(far[i][1]);
    }
    free(far);
    return pool;
}

/* Waits for its end, and makes it end when that takes longer than a second (*stayed). Its
 * number is free for other processes once it is waited for: it is noted before that it is
 * ours no more, so that no handler ends what is not ours. */
static int reap(struct worker *w, bool *stayed)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    siginfo_t info = {0};
    int status = 0, rc = 0;
    for (int i = 0; i < 1000 && rc == 0 && info.si_pid == 0; i++) {
        rc = waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT);
        if (rc == 0 && info.si_pid == 0)
            nanosleep(&pause, NULL);
    }
    *stayed = rc == 0 && info.si_pid == 0;
    if (*stayed) {
        kill_group(w->pid);
        while (waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOWAIT) < 0 &&
               errno == EINTR)
            ;
    }
    note_group(w->pid, 0);
    while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR)
        ;
    w->pid = 0;
    return status;
}

void coproc_stop(struct coproc_pool *pool)
{
    struct coproc_pool **at = &pools;
    pid_t pid = 0;

    for (int i = 0; i < pool->n; i++) {
        const struct worker *w = &pool->worker[i];
        pid = w->pid > 0 ? w->pid : pid;
        if (w->n_flight > 0 && pid > 0) /* its answers are not needed any more */
            kill_group(pid);
    }
    close_pipes(pool);
    for (int i = 0; i < pool->n; i++) {
        struct worker *w = &pool->worker[i];
        bool stayed;
        if (w->pid > 0)
            reap(w, &stayed);
        ap_buf_free(&w->got);
    }
    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
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

static int died(const struct run *run, struct worker *w, struct ap_err *err)
{
    const char *line = w->n_flight > 0 ? run->jobs[w->flight[0]].line : "none";
    bool stayed = false, ours = w->pid > 0;
    int status = ours ? reap(w, &stayed) : 0;
    if (!ours)
        ap_err_set(err, "the shard command ended; request: %.300s", line);
    else if (stayed)
        ap_err_set(
            err, "the shard command closed its output but did not exit; request: %.300s",
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
    while (w->n_flight < DEPTH) {
        int job = pick(run, worker);
        if (job < 0)
            break;
        if (w->n_flight == 0)
            w->since = ap_now_sec();
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
        ap_err_set(&why, "an id without a request");
    if (*why.msg)
        return ap_err_set(
            err,
            "the shard command gave an invalid answer: %s; request: %.300s; answer: %.*s",
            why.msg, asked, (int)(len < 200 ? len : 200), line);
    memmove(w->flight + at, w->flight + at + 1,
            sizeof(int) * (size_t)(w->n_flight - at - 1));
    w->n_flight--;
    w->since = ap_now_sec();
    run->n_answered++;
    return 0;
}

/* All that has come from a process; every whole line is an answer. */
static int read_answers(struct run *run, struct worker *w, coproc_answer_fn *answer,
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
    while ((end = memchr(line + w->n_searched, '\n',
                         w->got.len - (size_t)(line - w->got.data) - w->n_searched))) {
        *end = '\0';
        if (take_answer(run, w, line, (size_t)(end - line), answer, ctx, err))
            return -1;
        line = end + 1;
        w->n_searched = 0;
    }
    w->got.len -= (size_t)(line - w->got.data);
    memmove(w->got.data, line, w->got.len);
    w->n_searched = w->got.len;
    if (w->n_searched > MAX_LINE)
        return ap_err_set(err,
                          "the shard command answered more than %d MiB without an end of "
                          "line; request: %.300s",
                          MAX_LINE >> 20,
                          w->n_flight > 0 ? run->jobs[w->flight[0]].line : "none");
    return 0;
}

#define TELL_SEC 0.5 /* between two lines of progress while answers are awaited */

/* Waits for answers; -1 when a process is silent for too long. */
static int wait_some(struct run *run, struct pollfd *fds, double limit_sec,
                     struct ap_err *err)
{
    struct coproc_pool *pool = run->pool;
    double now = ap_now_sec(), wait = limit_sec;
    for (int i = 0; i < pool->n; i++) {
        struct worker *w = &pool->worker[i];
        fds[i] = (struct pollfd){.fd = w->n_flight ? w->from : -1, .events = POLLIN};
        if (w->n_flight && w->since + limit_sec - now < wait)
            wait = w->since + limit_sec - now;
    }
    if (pool->work && pool->work->progress)
        wait = fmin(wait, TELL_SEC);
    ap_work_add(pool->work, 0);
    int ms = wait > 1e6 ? 1000000000 : wait > 0 ? (int)(wait * 1000) + 1 : 0;
    int rc = poll(fds, (nfds_t)pool->n, ms);
    if (rc < 0 && errno != EINTR)
        ap_die(AP_BAD_INPUT, "poll: %s", strerror(errno));
    for (int i = 0; rc == 0 && i < pool->n; i++) {
        const struct worker *w = &pool->worker[i];
        if (w->n_flight && ap_now_sec() >= w->since + limit_sec)
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
            rc = read_answers(&run, &pool->worker[i], answer, ctx, err);
            if (rc == 0)
                feed(&run, i);
        }
    }
    free(run.range);
    free(fds);
    return rc;
}
