/*
 * The document, and who prices its stages: the library of ap-shard where the shard
 * command is ap-shard's own with its options, in processes forked from this one, which
 * has read the document; else the command, which gets a file with the document.
 */
#include "input.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "serve/server.h"

#define DEFAULT_COMMAND "ap-shard --serve"

/* ---- temporary files, and signals ---- */

/* CLUSTER: the first of one for each kind of devices */
enum { DOCUMENT, CLUSTER, N_TEMPORARY = CLUSTER + AP_MAX_KINDS };
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
    coproc_kill_all(); /* kill() alone. NOLINT(bugprone-signal-handler) */
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static const int ends[] = {SIGINT, SIGTERM, SIGHUP};

/* Signals leave no files and no processes. */
static void clean_up_at_end(void)
{
    static bool is_done;

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

/* ---- the library ---- */

/* The words of a command that the shell would hand to ap-shard as they are: argv of
 * ap-shard; NULL for other commands. more: words that will be appended. */
static char **library_words(struct ap_arena *arena, const char *command, int more, int *n)
{
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                        "-_=./,:@%+ \t";
    char *text = ap_arena_strdup(arena, command), *rest = NULL;
    char **word = AP_NEW_N(arena, strlen(command) + (size_t)more + 1, char *);
    bool serves = false;

    *n = 0;
    if (command[strspn(command, plain)])
        return NULL;
    for (char *w = strtok_r(text, " \t", &rest); w; w = strtok_r(NULL, " \t", &rest)) {
        serves |= !strcmp(w, "--serve");
        word[(*n)++] = w;
    }
    return *n > 0 && !strcmp(word[0], "ap-shard") && serves ? word : NULL;
}

struct library {
    const struct input *in;
    const struct ap_cluster *cluster; /* NULL: as in->r or the document has it */
    int argc;
    char **argv;
};

static void serve_library(void *ctx, int n, const int (*pipes)[2])
{
    const struct library *l = ctx;
    const struct shard_server server = {l->in->doc, &l->in->model->graph,
                                        &l->in->model->nests, l->cluster};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (signal(ends[i], SIG_DFL) == SIG_IGN)
            signal(ends[i], SIG_IGN);
    memset(temporary, 0, sizeof temporary); /* they are not this process's to remove */
    shard_server_run(&server, l->argc, l->argv, n, pipes);
}

/* ---- who prices stages ---- */

enum { MOST_ARGS = 6 };

static int shard_args(const struct input *in, const char *cluster, const char *file,
                      const char *args[MOST_ARGS])
{
    int n = 0;
    if (cluster) {
        args[n++] = "--cluster";
        args[n++] = cluster;
    }
    if (in->r->limits.each) {
        args[n++] = "--microbatch";
        args[n++] = "each";
    }
    args[n++] = file;
    args[n] = NULL;
    return n;
}

/* cluster: NULL, or other than what was asked for, of this kind of its devices. */
static struct coproc_pool *start_on(const struct input *in,
                                    const struct ap_cluster *cluster, int kind)
{
    const struct stage_options *r = in->r;
    const char *command = r->command ? r->command : DEFAULT_COMMAND;
    const char *args[MOST_ARGS], *path = r->cluster_path;
    struct library library = {.in = in, .cluster = cluster};
    struct coproc_program program = {
        .args = args, .ctx = &library, .work = r->params.work};

    clean_up_at_end();
    library.argv = library_words(in->arena, command, MOST_ARGS, &library.argc);
    if (library.argv) {
        int n = shard_args(in, cluster ? NULL : path, in->doc->file, args);
        memcpy(library.argv + library.argc, args, sizeof *args * (size_t)(n + 1));
        library.argc += n;
        program.serve = serve_library;
        return coproc_start(&program, (int)r->jobs);
    }
    if (cluster) {
        struct ap_buf json = {0};
        ap_cluster_to_json(cluster, &json);
        if (*temporary[CLUSTER + kind])
            unlink(temporary[CLUSTER + kind]);
        path = write_temporary(CLUSTER + kind, json.data, json.len);
        ap_buf_free(&json);
    }
    shard_args(in, path, document_file(in->tool, in->doc), args);
    program.command = command;
    return coproc_start(&program, (int)r->jobs);
}

struct coproc_pool *const *stage_input_commands(const struct input *in)
{
    const struct stage_model *m = in->model;
    struct coproc_pool **pool = AP_NEW_N(in->arena, m->n_kinds, struct coproc_pool *);

    for (int kind = 0; kind < m->n_kinds; kind++)
        pool[kind] = start_on(
            in, m->n_kinds > 1 || in->r->f32_matmul ? &m->kind[kind] : NULL, kind);
    return pool;
}

struct coproc_pool *stage_input_command_on(const struct input *in,
                                           const struct ap_cluster *c)
{
    return start_on(in, c, 0);
}

/* ---- reading ---- */

void stage_input_read(struct input *in, struct ap_tool *tool, struct ap_doc *doc)
{
    struct ap_err err = {0};

    ap_tool_read(tool, in->arena, doc);
    stage_model_graph(in->arena, doc, in->model);
    if (stage_model_nests(in->arena, doc, in->model, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    in->doc = doc;
}
