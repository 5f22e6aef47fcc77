/*
 * The process above mpirun.
 * Problem: mpirun goes on when its output cannot be written or its parent is gone, says
 * little of ranks that were killed, and does not see that a rank waits for ever.
 * Idea: this process reads mpirun's output, has the watchdog's hub (watch.h), and is the
 * one that says how the job ended. When it is killed itself, the ranks lose the hub, and
 * mpirun gets SIGTERM by the kernel.
 */
#include "run/launch.h"
#include "watch/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* Seconds in which mpirun ends its ranks and itself when it is asked to: it gives them
 * one second, then kills them. */
enum { GRACE_SEC = 5 };

/* ---- signals ---- */

/* For the handlers only. */
static volatile sig_atomic_t mpirun_pid, got_signal;

static void forward(int sig, siginfo_t *info, void *context)
{
    (void)context;
    got_signal = sig;
    /* a terminal sends mpirun its own */
    if (sig != SIGINT || info->si_code == SI_USER)
        kill((pid_t)mpirun_pid, sig);
    alarm(GRACE_SEC);
}

static void give_up(int sig)
{
    (void)sig;
    kill((pid_t)mpirun_pid, SIGKILL);
}

static void catch_signals(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction act = {.sa_sigaction = forward, .sa_flags = SA_RESTART | SA_SIGINFO};
    struct sigaction late = {.sa_handler = give_up, .sa_flags = SA_RESTART}, old;
    sigemptyset(&act.sa_mask);
    sigemptyset(&late.sa_mask);
    for (int i = 0; i < 3; i++)
        if (!sigaction(ends[i], NULL, &old) && old.sa_handler != SIG_IGN)
            sigaction(ends[i], &act, NULL);
    sigaction(SIGALRM, &late, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* ---- the watchdog ---- */

struct launched {
    pid_t pid; /* mpirun's */
    const struct watch_hub *hub;
    _Atomic(enum watch_verdict) verdict;
    atomic_bool told; /* the hub has told mpirun to end */
    char who[4096];   /* the rank that is dead, once the verdict says so */
    int64_t steps;
    struct ap_progress *progress; /* NULL: nobody waits; by the hub's thread */
    pthread_mutex_t showing;      /* while it is written */
};

/* Called by the hub's thread: all ranks are in this step or after it. */
static void show_step(void *ctx, int64_t step)
{
    struct launched *l = ctx;
    static char what[64];
    pthread_mutex_lock(&l->showing);
    if (l->progress) {
        snprintf(what, sizeof what,
                 step < 1           ? "start"
                 : step <= l->steps ? "step %lld of %lld"
                                    : "step %lld",
                 (long long)step, (long long)l->steps);
        l->progress->what = what;
        l->progress->show(l->progress);
    }
    pthread_mutex_unlock(&l->showing);
}

/* No line of progress from now on. */
static void hide_steps(struct launched *l)
{
    pthread_mutex_lock(&l->showing);
    l->progress = NULL;
    pthread_mutex_unlock(&l->showing);
}

/* Called by the hub's thread. mpirun ends a job of which a rank died by itself, if it
 * can.
 */
static void stop(void *ctx, enum watch_verdict why, const char *text)
{
    struct launched *l = ctx;
    if (why != WATCH_STALL)
        snprintf(l->who, sizeof l->who, "%s", text);
    else
        ap_say("%s", text);
    hide_steps(l);
    atomic_store(&l->verdict, why);
    if (why != WATCH_STALL)
        sleep(GRACE_SEC);
    atomic_store(&l->told, true);
    kill(l->pid, SIGTERM);
    sleep(GRACE_SEC);
    kill(l->pid, SIGKILL);
}

/* ---- mpirun ---- */

/* All bytes that come from fd, to standard output; 0 or the errno of a failed write. */
static int pass_output(int fd)
{
    static char block[1 << 16];
    for (;;) {
        const ssize_t n = read(fd, block, sizeof block);
        if (n == 0 || (n < 0 && errno != EINTR))
            return 0;
        for (ssize_t done = 0; done < n;) {
            const ssize_t w = write(STDOUT_FILENO, block + done, (size_t)(n - done));
            if (w < 0 && errno != EINTR)
                return errno;
            done += w > 0 ? w : 0;
        }
    }
}

/* What is to be said of mpirun's end, and the exit code. */
static int tell_end(struct launched *l, int status)
{
    const bool killed = WIFSIGNALED(status);
    int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    const int sig = code > 128 ? code - 128 : 0; /* mpirun's way to say a rank's signal */
    const enum watch_verdict verdict = atomic_load(&l->verdict);
    if (verdict == WATCH_STALL)
        return AP_BAD_INPUT;
    if (code > 0 && !sig && code == watch_hub_said(l->hub))
        return code; /* mpirun ended it, after a rank that has said why */
    if (verdict == WATCH_ENDED && (sig || code == 0))
        ap_say("%s", l->who);
    else if (killed && !atomic_load(&l->told)) /* its ranks die of it, before or after */
        ap_say("mpirun was killed by signal %d (%s)", sig, strsignal(sig));
    else if (verdict == WATCH_DEAD && sig)
        ap_say("%s was killed by signal %d (%s)", l->who, sig, strsignal(sig));
    else if (verdict == WATCH_DEAD)
        ap_say("%s has ended out of order (exit %d)", l->who, code);
    else if (sig)
        ap_say("a rank was killed by signal %d (%s)", sig, strsignal(sig));
    else if (code > 0)
        ap_say("mpirun ended the job (exit %d)", code);
    return verdict != WATCH_FINE && code == 0 ? AP_BAD_INPUT : code;
}

/* Stands between mpirun and standard output: mpirun does not mind failed writes. */
_Noreturn static void supervise(struct launched *l, int fd)
{
    int status;
    const int why = pass_output(fd);
    if (why)
        kill(l->pid, SIGTERM);
    while (waitpid(l->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    hide_steps(l);
    ap_tool_clear_progress();
    const int sig = got_signal ? got_signal : why == EPIPE ? SIGPIPE : 0;
    if (got_signal)
        ap_say("ended by signal %d (%s)", sig, strsignal(sig));
    if (sig) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    if (why)
        ap_die(AP_BAD_INPUT, "cannot write to standard output: %s", strerror(why));
    exit(tell_end(l, status));
}

/* mpirun 4.1 can die of a null pointer at the end of a standard input that it forwards
   (its iof/hnp, when the reader's end closed first). It gets none: rank 0 opens our copy,
   a file without a name that lives as long as this process. */
static void keep_input(void)
{
    static char block[1 << 16];
    char path[64];
    FILE *copy = tmpfile();
    if (!copy)
        ap_die(AP_BAD_INPUT, "temporary file: %s", strerror(errno));
    for (ssize_t n; (n = read(STDIN_FILENO, block, sizeof block)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            ap_die(AP_BAD_INPUT, "<stdin>: %s", strerror(errno));
        if (fwrite(block, 1, (size_t)n, copy) != (size_t)n)
            ap_die(AP_BAD_INPUT, "temporary file: %s", strerror(errno));
    }
    if (fflush(copy)) /* open till the end: /proc is its only name */
        ap_die(AP_BAD_INPUT, "temporary file: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fileno(copy));
    setenv(INPUT_VARIABLE, path, 1);
}

/* The command: mpirun's options, then our own. Caller frees. */
static char **command(const struct ap_tool *tool, char *count)
{
    static char *const mpirun[] = {
        "mpirun", "-q", "--oversubscribe", "--bind-to", "none", "--stdin",
        "none",   "-x", WATCH_VARIABLE,    "-n"};
    const int n = sizeof mpirun / sizeof *mpirun;
    char **argv = ap_xrealloc(NULL, sizeof *argv * ((size_t)tool->argc + n + 2));
    memcpy(argv, mpirun, sizeof mpirun);
    argv[n] = count;
    memcpy(argv + n + 1, tool->argv, sizeof *argv * (size_t)tool->argc);
    argv[n + 1 + tool->argc] = NULL;
    return argv;
}

static void set_environment(const char *hub)
{
    /* several ranks on a core, as root, in a container; what the user set stays */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    setenv("OMPI_MCA_orte_base_help_aggregate", "0", 0);
    setenv("OMPI_MCA_orte_forward_job_control", "1", 0); /* ^Z stops the ranks, too */
    setenv("EVENT_NOEPOLL", "1", 0); /* mpirun's libevent warns of ranks that are gone */
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    setenv(WATCH_VARIABLE, hub, 1);
}

_Noreturn void launch(const struct ap_tool *tool, const struct launch_opts *opts)
{
    /* the hub's thread has it, too */
    static struct launched launched = {.showing = PTHREAD_MUTEX_INITIALIZER};
    struct ap_buf address = {0};
    struct ap_err err = {{0}};
    char count[32];
    snprintf(count, sizeof count, "%lld", (long long)opts->n_ranks);
    char **argv = command(tool, count);
    struct watch_hub *hub =
        watch_hub_open((int)opts->n_ranks, opts->watchdog_sec, &address, &err);
    if (!hub)
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    set_environment(address.data);
    if (!strcmp(tool->path, "-"))
        keep_input();
    int ends[2], failed[2]; /* of its output; of execvp, closed where it succeeds */
    if (pipe(ends) || pipe(failed))
        ap_die(AP_BAD_INPUT, "pipe: %s", strerror(errno));
    fcntl(failed[1], F_SETFD, FD_CLOEXEC);
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        ap_die(AP_BAD_INPUT, "fork: %s", strerror(errno));
    if (pid > 0) {
        int why;
        close(ends[1]);
        close(failed[1]);
        if (read(failed[0], &why, sizeof why) == sizeof why)
            ap_die(AP_BAD_INPUT, "mpirun: %s", strerror(why));
        close(failed[0]);
        launched.pid = pid;
        launched.hub = hub;
        launched.steps = opts->steps;
        if (opts->json || !isatty(STDOUT_FILENO))
            launched.progress = ap_tool_progress();
        watch_hub_look(hub, show_step);
        mpirun_pid = pid;
        catch_signals();
        watch_hub_run(hub, stop, &launched);
        supervise(&launched, ends[0]);
    }
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* when this process's parent is killed */
#endif
    if (getppid() != parent)
        exit(AP_BAD_INPUT);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    close(failed[0]);
    execvp(argv[0], argv);
    const int why = errno;
    const bool told = write(failed[1], &why, sizeof why) == sizeof why;
    _exit(told ? AP_OK : AP_BAD_INPUT);
}
