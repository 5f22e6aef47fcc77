/*
 * The process above mpirun.
 * Problem: mpirun goes on when its output cannot be written or its parent is gone, and
 * says little of ranks that were killed.
 * Idea: this process reads mpirun's output, and is the one that says how the job ended,
 * unless a rank has said it, which notes that in a file. When this process is killed
 * itself, mpirun gets SIGTERM by the kernel.
 */
#define _GNU_SOURCE /* memfd_create */
#include "run/launch.h"
#include "comm/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* Whether a rank has said why it ends. */
static bool is_told(FILE *told)
{
    return fseek(told, 0, SEEK_END) == 0 && ftell(told) > 0;
}

/* What is to be said of mpirun's end, and the exit code. */
static int tell_end(int status, FILE *told)
{
    const bool killed = WIFSIGNALED(status);
    const int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    const int sig = code > 128 ? code - 128 : 0; /* mpirun's way to say a rank's signal */
    if (sig)
        ap_say("%s was killed by signal %d (%s)", killed ? "mpirun" : "a rank", sig,
               strsignal(sig));
    else if (code > 0 && !is_told(told))
        ap_say("mpirun ended the job (exit %d)", code);
    return code;
}

/* Stands between mpirun and standard output: mpirun does not mind failed writes. */
_Noreturn static void supervise(pid_t pid, int fd, FILE *told)
{
    int status;
    const int why = pass_output(fd);
    if (why)
        kill(pid, SIGTERM);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    const int sig = got_signal ? got_signal : why == EPIPE ? SIGPIPE : 0;
    if (got_signal)
        ap_say("ended by signal %d (%s)", sig, strsignal(sig));
    if (sig) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    if (why)
        ap_die(AP_BAD_INPUT, "cannot write to standard output: %s", strerror(why));
    exit(tell_end(status, told));
}

/* An empty file in memory that the ranks of this host find by the variable
   (watch_shared); open till the end: /proc is its only name. */
static FILE *open_shared(const char *variable)
{
    char host[256] = {0};
    struct ap_buf where = {0};
    const int fd = memfd_create(variable, MFD_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w+");
    if (!file || gethostname(host, sizeof host - 1))
        ap_die(AP_BAD_INPUT, "temporary file: %s", strerror(errno));
    ap_buf_printf(&where, "%s/proc/%ld/fd/%d", host, (long)getpid(), fd);
    setenv(variable, where.data, 1);
    ap_buf_free(&where);
    return file;
}

/* mpirun 4.1 can die of a null pointer at the end of a standard input that it forwards
   (its iof/hnp, when the reader's end closed first). It gets none: rank 0 opens our copy,
   a file without a name that lives as long as this process. */
static void keep_input(void)
{
    static char block[1 << 16];
    FILE *copy = open_shared(INPUT_VARIABLE);
    for (ssize_t n; (n = read(STDIN_FILENO, block, sizeof block)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            ap_die(AP_BAD_INPUT, "<stdin>: %s", strerror(errno));
        if (fwrite(block, 1, (size_t)n, copy) != (size_t)n)
            ap_die(AP_BAD_INPUT, "temporary file: %s", strerror(errno));
    }
    if (fflush(copy))
        ap_die(AP_BAD_INPUT, "temporary file: %s", strerror(errno));
}

/* The command: mpirun's options, then our own. Caller frees. */
static char **command(const struct ap_tool *tool, char *count)
{
    static char *const mpirun[] = {
        "mpirun", "-q", "--oversubscribe", "--bind-to", "none", "--stdin", "none", "-n"};
    const int n = sizeof mpirun / sizeof *mpirun;
    char **argv = ap_xrealloc(NULL, sizeof *argv * ((size_t)tool->argc + n + 2));
    memcpy(argv, mpirun, sizeof mpirun);
    argv[n] = count;
    memcpy(argv + n + 1, tool->argv, sizeof *argv * (size_t)tool->argc);
    argv[n + 1 + tool->argc] = NULL;
    return argv;
}

static void set_environment(void)
{
    /* several ranks on a core, as root, in a container; what the user set stays */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    setenv("OMPI_MCA_orte_base_help_aggregate", "0", 0);
    setenv("OMPI_MCA_orte_forward_job_control", "1", 0); /* ^Z stops the ranks, too */
    setenv("EVENT_NOEPOLL", "1", 0); /* mpirun's libevent warns of ranks that are gone */
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
}

_Noreturn void launch(const struct ap_tool *tool, int64_t n_ranks)
{
    char count[32];
    snprintf(count, sizeof count, "%lld", (long long)n_ranks);
    char **argv = command(tool, count);
    FILE *told = open_shared(TOLD_VARIABLE);
    set_environment();
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
        mpirun_pid = pid;
        catch_signals();
        supervise(pid, ends[0], told);
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
    const bool said = write(failed[1], &why, sizeof why) == sizeof why;
    _exit(said ? AP_OK : AP_BAD_INPUT);
}
