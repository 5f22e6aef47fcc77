#include "run/job.h"
#include "base/file.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool job_is_started(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL;
}

bool job_is_first(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return !rank || !strcmp(rank, "0");
}

static volatile sig_atomic_t mpirun_pid; /* for the handler only */

static void forward(int sig)
{
    kill((pid_t)mpirun_pid, sig);
}

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

/* Stands between mpirun and standard output: mpirun does not mind failed writes. */
_Noreturn static void supervise(pid_t pid, int fd)
{
    struct sigaction act = {.sa_handler = forward, .sa_flags = SA_RESTART};
    int status;
    mpirun_pid = pid;
    sigemptyset(&act.sa_mask);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
    signal(SIGINT, SIG_IGN); /* the terminal sends mpirun its own */
    signal(SIGPIPE, SIG_IGN);
    const int why = pass_output(fd);
    if (why)
        kill(pid, SIGTERM);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (why == EPIPE) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    if (why)
        ap_die(AP_BAD_INPUT, "cannot write to standard output: %s", strerror(why));
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* mpirun 4.1 can die of a null pointer at the end of a standard input that it forwards
   (its iof/hnp, when the reader's end closed first). It gets none: rank 0 opens our copy,
   a file without a name that lives as long as this process. */
#define INPUT_VARIABLE "AP_EXEC_INPUT"

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

_Noreturn void job_start(const struct ap_tool *tool, int64_t n_ranks)
{
    static char *const mpirun[] = {
        "mpirun", "-q", "--oversubscribe", "--bind-to", "none", "--stdin", "none", "-n"};
    const int n = sizeof mpirun / sizeof *mpirun;
    char count[32];
    char **argv = ap_xrealloc(NULL, sizeof *argv * ((size_t)tool->argc + n + 2));
    snprintf(count, sizeof count, "%lld", (long long)n_ranks);
    memcpy(argv, mpirun, sizeof mpirun);
    argv[n] = count;
    memcpy(argv + n + 1, tool->argv, sizeof *argv * (size_t)tool->argc);
    argv[n + 1 + tool->argc] = NULL;
    /* several ranks on a core, as root, in a container; what the user set stays */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    setenv("OMPI_MCA_orte_base_help_aggregate", "0", 0);
    setenv("EVENT_NOEPOLL", "1", 0); /* mpirun's libevent warns of ranks that are gone */
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    if (!strcmp(tool->path, "-"))
        keep_input();
    int ends[2];
    if (pipe(ends))
        ap_die(AP_BAD_INPUT, "pipe: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid < 0)
        ap_die(AP_BAD_INPUT, "fork: %s", strerror(errno));
    if (pid > 0) {
        close(ends[1]);
        supervise(pid, ends[0]);
    }
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execvp(mpirun[0], argv);
    ap_die(AP_BAD_INPUT, "mpirun: %s", strerror(errno));
}

void job_join(struct comm *c)
{
    if (job_is_started())
        comm_mpi_open(c);
    else
        comm_self_open(c);
}

void job_agree(struct comm *c, int rc, int exit_code, const struct ap_err *err)
{
    const int64_t first = -c->max(c, rc ? -(int64_t)c->rank : -(int64_t)c->size);
    if (first == c->size)
        return;
    const int code = (int)c->max(c, c->rank == first ? exit_code : 0);
    if (c->rank == first && c->size > 1 && first > 0)
        ap_say("rank %d: %s", c->rank, err->msg);
    else if (c->rank == first)
        ap_say("%s", err->msg);
    c->close(c);
    exit(code);
}

/* What other ranks need of a document: what they run. */
static void put_part(const struct ap_doc *doc, struct ap_buf *out)
{
    const struct ap_section *run = ap_doc_find(doc, "program");
    if (!run)
        run = ap_doc_find(doc, "pipeline");
    ap_buf_printf(out, "{\"autopar\":%d", AP_DOC_VERSION);
    if (run) {
        ap_buf_printf(out, ",\"%s\":", run->name);
        ap_buf_put(out, run->text, run->len);
    }
    ap_buf_putc(out, '}');
}

void job_read(const struct ap_tool *tool, struct ap_arena *arena, struct comm *c,
              struct ap_doc *doc)
{
    struct ap_err err = {{0}};
    struct ap_buf part = {0};
    char *text = NULL;
    size_t len = 0;
    int rc = 0;
    const char *kept = strcmp(tool->path, "-") ? NULL : getenv(INPUT_VARIABLE);
    const char *file = strcmp(tool->path, "-") ? tool->path : "<stdin>";
    if (c->rank == 0)
        rc = ap_read_file(arena, kept ? kept : tool->path, false, &text, &len, &err) ||
             ap_doc_parse(arena, file, text, len, doc, &err);
    job_agree(c, rc, AP_BAD_INPUT, &err);
    if (c->rank == 0 && c->size > 1)
        put_part(doc, &part);
    int64_t bytes = (int64_t)part.len;
    c->broadcast(c, &bytes, sizeof bytes);
    if (c->rank != 0)
        part.data = ap_arena_alloc(arena, (size_t)bytes + 1);
    c->broadcast(c, part.data, bytes);
    if (c->rank != 0)
        rc = ap_doc_parse(arena, file, part.data, (size_t)bytes, doc, &err);
    else
        ap_buf_free(&part);
    job_agree(c, rc, AP_BAD_INPUT, &err);
}

/* c: the job that it has to fit, or NULL. */
static int read_program(struct ap_arena *arena, const struct ap_doc *doc, struct comm *c,
                        bool staged, struct ap_program *prog,
                        struct ap_pipeline_program *pipeline, struct ap_err *err)
{
    const char *name = staged ? "pipeline" : "program";
    const struct ap_section *section = ap_doc_find(doc, name);
    struct ap_err why = {{0}};
    if (!section)
        return ap_err_set(err, "%s: has no program: pipe it through ap-rewrite first",
                          doc->file);
    json_t *o = ap_doc_load(doc, section, &why);
    const struct ap_at at = {NULL, name, 0};
    int rc = !o       ? -1
             : staged ? ap_pipeline_from_json(arena, o, &at, pipeline, &why)
                      : ap_program_from_json(arena, o, &at, prog, &why);
    json_decref(o);
    if (rc) {
        const bool placed = !strncmp(why.msg, doc->file, strlen(doc->file));
        return ap_err_set(err, placed ? "%s%s" : "%s: %s", placed ? "" : doc->file,
                          why.msg);
    }
    const long long n =
        staged ? pipeline->n_ranks : (long long)ap_mesh_devices(&prog->mesh);
    if (c && n != c->size)
        return ap_err_set(err,
                          "%s: the program is for %lld rank%s, this job has %d: run it "
                          "with -n %lld",
                          doc->file, n, n == 1 ? "" : "s", c->size, n);
    return 0;
}

bool job_check(struct ap_arena *arena, const struct ap_doc *doc, struct ap_program *prog,
               struct ap_pipeline_program *pipeline, struct ap_err *err, int *rc)
{
    const bool staged = !ap_doc_find(doc, "program") && ap_doc_find(doc, "pipeline");
    *rc = read_program(arena, doc, NULL, staged, prog, pipeline, err);
    return staged;
}

bool job_program(struct ap_arena *arena, const struct ap_doc *doc, struct comm *c,
                 struct ap_program *prog, struct ap_pipeline_program *pipeline)
{
    struct ap_err err = {{0}};
    const bool staged = !ap_doc_find(doc, "program") && ap_doc_find(doc, "pipeline");
    const int rc = read_program(arena, doc, c, staged, prog, pipeline, &err);
    job_agree(c, rc, AP_BAD_INPUT, &err);
    return staged;
}
