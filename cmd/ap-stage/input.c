/*
 * What ap-stage reads and its shard command gets: while the document comes through a pipe
 * it goes on to the command, so that both have read it at about the same time.
 */
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what the shard command gets ---- */

enum { DOCUMENT, CLUSTER, N_TEMPORARY };
static char temporary[N_TEMPORARY][4096]; /* paths, "" for none */

void stage_input_end(void)
{
    for (int i = 0; i < N_TEMPORARY; i++) {
        if (*temporary[i])
            unlink(temporary[i]);
        *temporary[i] = '\0';
    }
}

static void remove_and_end(int signal_number)
{
    for (int i = 0; i < N_TEMPORARY; i++)
        if (*temporary[i])
            unlink(temporary[i]);
    coproc_kill_all();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Signals leave neither files nor processes behind. */
static void clean_up_at_end(void)
{
    static bool is_done;
    const int ends[] = {SIGINT, SIGTERM, SIGHUP};

    if (is_done)
        return;
    is_done = true;
    atexit(stage_input_end);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (signal(ends[i], remove_and_end) == SIG_IGN)
            signal(ends[i], SIG_IGN); /* as nohup has it */
}

static const char *write_temporary(int which, const char *text, size_t len)
{
    char *path = temporary[which];
    const char *dir = getenv("TMPDIR");
    size_t n = (size_t)snprintf(path, sizeof temporary[0], "%s/ap-stage.XXXXXX",
                                dir && *dir ? dir : "/tmp");

    if (n >= sizeof temporary[0])
        ap_die(AP_BAD_INPUT, "TMPDIR is too long");
    clean_up_at_end();
    int fd = mkstemp(path);
    if (fd < 0)
        ap_die(AP_BAD_INPUT, "%s: %s", path, strerror(errno));
    FILE *f = fdopen(fd, "w");
    if (!f || fwrite(text, 1, len, f) != len || fclose(f))
        ap_die(AP_BAD_INPUT, "%s: writing failed", path);
    return path;
}

/* A file with the document: its own, or a temporary one if it came through a pipe. */
static const char *document_file(const struct ap_tool *tool, const struct ap_doc *doc)
{
    struct stat st;

    if (*temporary[DOCUMENT])
        return temporary[DOCUMENT];
    if (strcmp(tool->path, "-") != 0 && !stat(tool->path, &st) && S_ISREG(st.st_mode))
        return tool->path;
    return write_temporary(DOCUMENT, doc->text, doc->len);
}

/* ap-shard beside this program, quoted for the shell. */
static const char *default_command(struct ap_arena *arena, const char *self)
{
    const char *slash = strrchr(self, '/');
    struct ap_buf out = {0};
    if (!slash)
        return "ap-shard --serve";
    ap_buf_putc(&out, '\'');
    for (const char *c = self; c <= slash; c++)
        if (*c == '\'')
            ap_buf_puts(&out, "'\\''");
        else
            ap_buf_putc(&out, *c);
    ap_buf_puts(&out, "ap-shard' --serve");
    const char *text = ap_arena_strdup(arena, out.data);
    ap_buf_free(&out);
    return text;
}

static const char *const *shard_args(struct ap_arena *arena, const struct request *r,
                                     const char *cluster, const char *file)
{
    const char **args = AP_NEW_N(arena, 6, const char *);
    int n = 0;
    if (cluster) {
        args[n++] = "--cluster";
        args[n++] = cluster;
    }
    if (r->limits.each) {
        args[n++] = "--microbatch";
        args[n++] = "each";
    }
    args[n++] = file;
    return args;
}

static struct coproc_pool *early; /* NULL: none is to be ended */

static void kill_early(void)
{
    if (early)
        coproc_kill(early);
}

/* ---- reading, ours and the shard command's at the same time ---- */

enum { LONG = 4 << 20 }; /* bytes that are worth it: a short document is soon known */

static struct coproc_pool *start_command(const struct input *in, const char *cluster,
                                         const char *file)
{
    const struct request *r = in->r;

    clean_up_at_end();
    return coproc_start(r->command ? r->command
                                   : default_command(in->arena, in->tool->argv[0]),
                        shard_args(in->arena, r, cluster, file), (int)r->jobs);
}

/* It is ended if we find the document wrong. */
static void start_early(struct input *in, const char *file)
{
    in->pool = start_command(in, in->r->cluster_path, file);
    early = in->pool;
    atexit(kill_early);
}

/* Our own command reads a pipe, once; of others that is not known. */
static void start_fed(struct input *in)
{
    int fd[2];

    if (in->r->command || pipe(fd))
        return;
    int end = fcntl(fd[0], F_DUPFD, STDERR_FILENO + 1); /* its own streams lie below */
    close(fd[0]);
    const char *file = ap_arena_printf(in->arena, "/dev/fd/%d", end);
    fcntl(fd[1], F_SETFD, FD_CLOEXEC);
    fcntl(fd[1], F_SETFL, O_NONBLOCK);
    if (end >= 0 && access(file, R_OK) == 0) {
        start_early(in, file);
        in->feed = fd[1];
    } else {
        close(fd[1]);
    }
    if (end >= 0)
        close(end);
}

/* Waits until the command has read some of what it was fed. */
static void wait_for_room(const struct input *in)
{
    struct pollfd room = {.fd = in->feed, .events = POLLOUT};
    double ms = 1000 * in->r->limit_sec;

    if (poll(&room, 1, ms < INT_MAX ? (int)ms + 1 : -1) == 0)
        ap_die(AP_BAD_INPUT, "the shard command has read nothing for %g s (--time-out)",
               in->r->limit_sec);
}

static void feed_command(void *ctx, const struct ap_doc *doc)
{
    struct input *in = ctx;

    if (!in->pool && doc->len >= LONG)
        start_fed(in);
    while (in->feed >= 0 && in->n_fed < doc->len) {
        ssize_t n = write(in->feed, doc->text + in->n_fed, doc->len - in->n_fed);
        in->n_fed += n > 0 ? (size_t)n : 0;
        if (n < 0 && errno == EAGAIN) {
            wait_for_room(in);
        } else if (n < 0 && errno != EINTR) { /* its answers' end will say so */
            close(in->feed);
            in->feed = -1;
        }
    }
}

static void read_graph(void *ctx, const struct ap_doc *doc, bool more)
{
    struct input *in = ctx;
    struct ap_err err = {0};

    if (!more && !in->pool && doc->len >= LONG)
        start_early(in, document_file(in->tool, doc));
    stage_model_graph(in->arena, doc, in->model);
    if (more && stage_model_nests(in->arena, doc, in->model, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    in->has_nests = more;
}

/* The document as a file, for processes that start when it has come. */
static const char *const *file_args(void *ctx)
{
    const struct input *in = ctx;
    return shard_args(in->arena, in->r, in->r->cluster_path,
                      document_file(in->tool, in->doc));
}

void stage_input_read(struct input *in, struct ap_tool *tool, struct ap_doc *doc)
{
    const struct ap_stream ahead = {
        .graph = read_graph, .ctx = in, .progress = feed_command, .keeps_graph = true};

    ap_tool_stream(tool, in->arena, doc, &ahead);
    in->doc = doc;
    if (!in->pool || in->n_fed == 0)
        return;
    feed_command(in, doc);
    if (in->feed >= 0)
        close(in->feed);
    coproc_args(in->pool, file_args, in);
}

void stage_input_command(struct input *in)
{
    early = NULL;
    if (!in->pool)
        in->pool =
            start_command(in, in->r->cluster_path, document_file(in->tool, in->doc));
}

struct coproc_pool *stage_input_command_on(const struct input *in,
                                           const struct ap_cluster *c)
{
    struct ap_buf json = {0};

    ap_cluster_to_json(c, &json);
    if (*temporary[CLUSTER])
        unlink(temporary[CLUSTER]);
    const char *cluster = write_temporary(CLUSTER, json.data, json.len);
    ap_buf_free(&json);
    return start_command(in, cluster, document_file(in->tool, in->doc));
}
