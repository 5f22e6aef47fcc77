#define _XOPEN_SOURCE 700 /* realpath */
#include "tool/tool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/file.h"
#include "base/text.h"
#include "cost/cost.h"
#include "tool/progress.h"

/* The running program, for messages that come without a struct ap_tool. */
static const struct ap_tool nameless = {.name = "autopar"};
static const struct ap_tool *running = &nameless;
static double start_sec;
static void (*on_die)(int code);
static struct ap_buf history_args; /* JSON strings of the options that shape the result */

/* ---- messages ---- */

/* Names and values in a message come from files: what a terminal would obey is escaped.
 */
static void say(const char *before, const char *fmt, va_list args)
{
    enum { MOST = 8000 };
    struct ap_buf out = {0};
    char *text = NULL;

    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    text = ap_xrealloc(NULL, (size_t)(n > 0 ? n : 0) + 1);
    text[0] = '\0';
    vsnprintf(text, (size_t)(n > 0 ? n : 0) + 1, fmt, args);
    ap_text_shown(text, strlen(text), MOST, &out);
    fflush(stdout);
    progress_clear();
    fprintf(stderr, "%s: %s%s\n", running->name, before, out.len ? out.data : "");
    free(text);
    ap_buf_free(&out);
}

void ap_say(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
}

_Noreturn void ap_die(int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
    if (on_die)
        on_die(code);
    exit(code);
}

void ap_tool_on_die(void (*told)(int code))
{
    on_die = told;
}

_Noreturn void ap_die_usage(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
    fprintf(stderr, "try '%s --help'\n", running->name);
    if (on_die)
        on_die(AP_USAGE);
    exit(AP_USAGE);
}

void ap_warn(const char *fmt, ...)
{
    va_list args;
    if (running->quiet)
        return;
    va_start(args, fmt);
    say("warning: ", fmt, args);
    va_end(args);
}

/* ---- options ---- */

enum { N_COMMON = 6 };

/* The common options, writing to tool and to version. */
static void common_options(struct ap_tool *tool, bool *version,
                           struct ap_opt opts[N_COMMON + 1])
{
    const struct ap_opt common[N_COMMON + 1] = {
        {.name = "o",
         .kind = AP_OPT_STR,
         .out = &tool->out_path,
         .arg = "FILE",
         .help = "write to FILE instead of standard output"},
        {.name = "quiet", .out = &tool->quiet, .help = "print no warnings or progress"},
        {.name = "stats",
         .out = &tool->stats,
         .help = "print seconds, peak bytes and counts as JSON on standard error"},
        {.name = "no-history",
         .out = &tool->no_history,
         .help = "append nothing to the document's history"},
        {.name = "help", .help = "print help and exit"},
        {.name = "version", .out = version, .help = "print the version and exit"},
        {0},
    };
    memcpy(opts, common, sizeof(common));
}

/* Writes all of buf to standard output or dies. */
static void put_stdout(const struct ap_buf *buf)
{
    errno = 0;
    if ((buf->len && fwrite(buf->data, 1, buf->len, stdout) != buf->len) ||
        fflush(stdout))
        ap_die(AP_BAD_INPUT, "cannot write to standard output: %s", strerror(errno));
}

_Noreturn static void print_and_exit(struct ap_buf *out)
{
    put_stdout(out);
    ap_buf_free(out);
    exit(AP_OK);
}

/* group: what --help=GROUP asks for; NULL: what most people need. */
_Noreturn static void print_help(const struct ap_tool *tool, const struct ap_opt *common,
                                 const char *group)
{
    struct ap_buf out = {0};
    if (!ap_tool_help(tool, common, group, &out))
        ap_die_usage("--help: '%s' is not one of %s", group, out.data);
    print_and_exit(&out);
}

_Noreturn static void print_completion(const struct ap_tool *tool,
                                       const struct ap_opt *common, const char *shell)
{
    struct ap_buf out = {0};
    if (!ap_tool_completion(tool, common, shell, &out))
        ap_die_usage("--completion: '%s' is not one of bash, zsh", shell);
    print_and_exit(&out);
}

_Noreturn static void print_choices(const struct ap_opt *opt)
{
    struct ap_buf out = {0};
    ap_tool_choices(opt, &out);
    print_and_exit(&out);
}

_Noreturn static void print_clusters(void)
{
    struct ap_buf out = {0};
    ap_cluster_list(&out);
    print_and_exit(&out);
}

const struct ap_choice ap_overlap_modes[] = {
    {"auto", "as the cluster says"},
    {"on", "wherever data and memory allow"},
    {"off", "never: one after the other"},
    {0},
};

void ap_tool_set_overlap(struct ap_cluster *c, int mode)
{
    if (mode > 0)
        c->overlap = mode == 1;
}

const struct ap_choice ap_f32_matmul_modes[] = {
    {"auto", "rounded to tf32 where the devices do that, as JAX does by default"},
    {"tf32", "rounded to tf32"},
    {"f32", "in f32"},
    {0},
};

void ap_tool_set_f32_matmul(struct ap_cluster *c, int mode)
{
    if (mode == 0)
        return;
    ap_tool_one_kind(c);
    if (ap_measured_kernel(&c->measured, AP_KERNEL_DOT, AP_F32))
        ap_die_usage("--f32-matmul: cluster %s has measured products of f32", c->name);
    if (mode == 1 && c->tf32_flops_per_sec == 0)
        ap_die_usage("--f32-matmul tf32: the devices of cluster %s have no "
                     "tf32_flops_per_sec",
                     c->name);
    if (mode == 2)
        c->tf32_flops_per_sec = 0;
}

void ap_tool_one_kind(const struct ap_cluster *c)
{
    struct ap_buf kinds = {0};

    if (c->n_kinds == 0)
        return;
    ap_cluster_put_kinds(c, &kinds);
    ap_die_usage(
        "cluster %s has several kinds of devices (%s), and a mesh is laid over one; "
        "ap-stage places stages on kinds",
        c->name, kinds.data);
}

/* Before anything is read or written; what can be read once only is left to the tool. */
static void check_cluster(const char *path)
{
    struct ap_arena arena = {0};
    struct ap_cluster c;
    struct ap_err err = {{0}};
    struct stat st;

    if (!strcmp(path, "-") || (stat(path, &st) == 0 && !S_ISREG(st.st_mode)))
        return;
    if (ap_cluster_get(&arena, NULL, path, 1, &c, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_arena_free(&arena);
}

static void set_choice(const struct ap_opt *opt, const char *value)
{
    struct ap_buf names = {0};

    if (!strcmp(value, "help"))
        print_choices(opt);
    for (int i = 0; ap_opt_choice(opt, i)->name; i++) {
        if (!strcmp(value, ap_opt_choice(opt, i)->name)) {
            *(int *)opt->out = i;
            ap_buf_free(&names);
            return;
        }
        ap_buf_printf(&names, "%s%s", i ? ", " : "", ap_opt_choice(opt, i)->name);
    }
    char meant[AP_MEANT];
    struct ap_nearest near = {.want = value};
    for (int i = 0; ap_opt_choice(opt, i)->name; i++)
        ap_nearest_try(&near, ap_opt_choice(opt, i)->name);
    ap_die_usage("%s%s: '%s' is not one of %s%s", ap_opt_dashes(opt), opt->name, value,
                 names.len ? names.data : "(nothing to choose)",
                 ap_nearest_meant(&near, "", meant));
}

static void set_int(const struct ap_opt *opt, const char *value)
{
    bool bounded = opt->lo || opt->hi;
    char *end;

    errno = 0;
    long long v = strtoll(value, &end, 10);
    if (end == value || *end || errno || strchr(" \t\n\v\f\r", *value))
        ap_die_usage("%s%s: expected an integer, got '%s'", ap_opt_dashes(opt), opt->name,
                     value);
    if (bounded && (v < opt->lo || v > opt->hi)) {
        if (opt->hi == INT64_MAX)
            ap_die_usage("%s%s: expected an integer >= %" PRId64 ", got %lld",
                         ap_opt_dashes(opt), opt->name, opt->lo, v);
        ap_die_usage("%s%s: expected an integer from %" PRId64 " to %" PRId64
                     ", got %lld",
                     ap_opt_dashes(opt), opt->name, opt->lo, opt->hi, v);
    }
    *(int64_t *)opt->out = v;
}

static void set_num(const struct ap_opt *opt, const char *value)
{
    bool bounded = opt->lo || opt->hi;
    char *end;
    double v = strtod(value, &end);

    if (end == value || *end || !isfinite(v) || strchr(" \t\n\v\f\r", *value))
        ap_die_usage("%s%s: expected a number, got '%s'", ap_opt_dashes(opt), opt->name,
                     value);
    if (bounded && (v < (double)opt->lo || v > (double)opt->hi))
        ap_die_usage("%s%s: expected a number from %" PRId64 " to %" PRId64 ", got %s",
                     ap_opt_dashes(opt), opt->name, opt->lo, opt->hi, value);
    *(double *)opt->out = v;
}

static void set_option(const struct ap_opt *opt, const char *value)
{
    switch (opt->kind) {
    case AP_OPT_FLAG:
        *(bool *)opt->out = true;
        return;
    case AP_OPT_INT:
        set_int(opt, value);
        return;
    case AP_OPT_NUM:
        set_num(opt, value);
        return;
    case AP_OPT_CLUSTER:
        if (!strcmp(value, "help"))
            print_clusters();
        check_cluster(value);
        *(const char **)opt->out = value;
        return;
    case AP_OPT_STR:
        *(const char **)opt->out = value;
        return;
    case AP_OPT_LIST: {
        struct ap_list *list = opt->out;
        if (list->n == AP_MAX_LIST)
            ap_die_usage("option %s%s: more than %d times", ap_opt_dashes(opt), opt->name,
                         AP_MAX_LIST);
        list->v[list->n++] = value;
        return;
    }
    case AP_OPT_CHOICE:
        set_choice(opt, value);
        return;
    }
}

static const struct ap_opt *find_option(const struct ap_opt *opts, const char *name,
                                        size_t len)
{
    for (; opts && opts->name; opts++)
        if (!strncmp(opts->name, name, len) && !opts->name[len])
            return opts;
    return NULL;
}

/* No option of the tool is called so. */
_Noreturn static void unknown_option(const struct ap_tool *tool,
                                     const struct ap_opt *common, const char *arg)
{
    struct ap_buf name = {0};
    char meant[AP_MEANT];

    ap_buf_printf(&name, "%.*s", (int)strcspn(arg, "="), arg);
    struct ap_nearest near = {.want = name.data + strspn(name.data, "-")};
    for (int own = 1; own >= 0; own--)
        for (const struct ap_opt *o = own ? tool->opts : common; o && o->name; o++)
            if (o->name[1])
                ap_nearest_try(&near, o->name);
    ap_die_usage("unknown option '%s'%s", arg, ap_nearest_meant(&near, "--", meant));
}

static void remember(const char *arg)
{
    if (history_args.len)
        ap_buf_putc(&history_args, ',');
    ap_json_str(&history_args, arg);
}

/* Handles the option at argv[i]; returns how many arguments it took. */
static int parse_option(struct ap_tool *tool, const struct ap_opt *common, int i)
{
    const char *arg = tool->argv[i];
    bool is_long = arg[1] == '-';
    const char *name = arg + 1 + is_long;
    const char *equals = is_long ? strchr(name, '=') : NULL;
    size_t len = equals ? (size_t)(equals - name) : strlen(name);
    const char *value = equals ? equals + 1 : NULL;
    int n = 1;

    const struct ap_opt *opt = find_option(tool->opts, name, len);
    bool own = opt != NULL;
    if (!opt)
        opt = find_option(common, name, len);
    if (!opt || (len == 1) == is_long)
        unknown_option(tool, common, arg);
    if (!own && !strcmp(opt->name, "help"))
        print_help(tool, common, value);
    if (opt->kind == AP_OPT_FLAG && value)
        ap_die_usage("option '%s%s' takes no value", ap_opt_dashes(opt), opt->name);
    if (opt->kind != AP_OPT_FLAG && !value) {
        if (i + 1 >= tool->argc)
            ap_die_usage("option '%s' needs a value", arg);
        value = tool->argv[i + n++];
    }
    set_option(opt, value);
    for (int k = 0; own && k < n; k++)
        remember(tool->argv[i + k]);
    if (own)
        tool->given |= (uint64_t)1 << (opt - tool->opts);
    return n;
}

bool ap_tool_given(const struct ap_tool *tool, const char *name)
{
    const struct ap_opt *opt = find_option(tool->opts, name, strlen(name));

    assert(opt);
    return tool->given >> (opt - tool->opts) & 1;
}

static void set_operand(struct ap_tool *tool, const char *arg, int *n)
{
    if (!tool->operand)
        ap_die_usage("unexpected operand '%s'", arg);
    if (tool->operands && tool->operands->n == AP_MAX_LIST)
        ap_die_usage("more than %d operands", AP_MAX_LIST);
    if (tool->operands)
        tool->operands->v[tool->operands->n++] = arg;
    if ((*n)++ && !tool->operands)
        ap_die_usage("more than one operand: '%s' and '%s'", tool->path, arg);
    tool->path = arg;
}

/*
 * Searches make large tables and throw them away again. Memory that is freed stays with
 * the process: fresh pages cost more than most tables do. Small pieces join their
 * neighbours as they are freed, not all at once whenever a large piece is asked for.
 */
static void keep_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the most that it takes */
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    mallopt(M_MXFAST, 0);
#endif
}

void ap_tool_start(struct ap_tool *tool, int argc, char **argv)
{
    struct ap_opt common[N_COMMON + 1];
    bool version = false, options_end = false;
    int n_operands = 0;

    running = tool;
    start_sec = ap_now_sec();
    signal(SIGPIPE, SIG_DFL);
    keep_memory();
    common_options(tool, &version, common);
    tool->argc = argc;
    tool->argv = argv;
    tool->path = "-";
    if (argc == 3 && !strcmp(argv[1], "--completion"))
        print_completion(tool, common, argv[2]);
    for (int i = 1; i < argc;) {
        if (options_end || argv[i][0] != '-' || !argv[i][1])
            set_operand(tool, argv[i++], &n_operands);
        else if (!strcmp(argv[i], "--"))
            options_end = ++i > 0;
        else
            i += parse_option(tool, common, i);
        if (version) {
            struct ap_buf out = {0};
            ap_buf_printf(&out, "%s (autopar) %s\n", tool->name, AP_VERSION);
            print_and_exit(&out);
        }
    }
    if (tool->operand && tool->operand[0] != '[' && !n_operands)
        ap_die_usage("operand %s is missing", tool->operand);
}

/* ---- input ---- */

void ap_tool_read(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc)
{
    struct ap_err err = {""};

    if (tool->out_path && ap_tool_can_write(tool->out_path, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (ap_doc_read(arena, tool->path, doc, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
}

void ap_tool_read_graph(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc,
                        struct ap_graph *g)
{
    struct ap_err err = {""};

    ap_tool_read(tool, arena, doc);
    if (ap_doc_graph(arena, doc, g, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
}

/* ---- output ---- */

/* Where a tool writes: a standard stream, or a file. */
struct output {
    FILE *file;
    const char *path;   /* NULL: standard output */
    struct ap_buf temp; /* name until it is complete; empty: written in place */
    char *target;       /* what temp becomes: path, or what it links to */
};

/* The temporary file of the output that is being written, which a handler removes. */
static char unfinished[PATH_MAX];
static const int ends_by[] = {SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
static struct sigaction before[sizeof ends_by / sizeof *ends_by];

static void remove_and_end(int sig)
{
    unlink(unfinished);
    for (size_t i = 0; i < sizeof ends_by / sizeof *ends_by; i++)
        if (ends_by[i] == sig)
            sigaction(sig, &before[i], NULL);
    raise(sig);
}

/* Sets the name of an incomplete file, which is removed if a signal ends the process;
 * NULL: there is no such file any more. */
static void set_unfinished(const char *path)
{
    struct sigaction act = {.sa_handler = remove_and_end};

    if (*unfinished)
        for (size_t i = 0; i < sizeof ends_by / sizeof *ends_by; i++)
            sigaction(ends_by[i], &before[i], NULL);
    *unfinished = 0;
    if (!path || strlen(path) >= sizeof unfinished)
        return;
    memcpy(unfinished, path, strlen(path) + 1);
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < sizeof ends_by / sizeof *ends_by; i++) {
        sigaction(ends_by[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(ends_by[i], &act, NULL);
    }
}

_Noreturn static void write_failed(const struct output *out)
{
    int why = errno;

    if (out->temp.len > 0)
        unlink(out->temp.data);
    if (!out->path)
        ap_die(AP_BAD_INPUT, "cannot write to standard output: %s", strerror(why));
    ap_die(AP_BAD_INPUT, "%s: cannot write: %s", out->path, strerror(why));
}

/* The descriptor that a path like /dev/stdout or /dev/fd/3 stands for; -1: none. */
static int descriptor_of(const char *path)
{
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (!strcmp(path, "/dev/stdout"))
        return STDOUT_FILENO;
    if (!strcmp(path, "/dev/stderr"))
        return STDERR_FILENO;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const size_t n = strlen(folders[i]);
        char *end;
        if (strncmp(path, folders[i], n) != 0 || path[n] < '0' || path[n] > '9')
            continue;
        const long fd = strtol(path + n, &end, 10);
        if (!*end && fd <= INT_MAX)
            return (int)fd;
    }
    return -1;
}

int ap_tool_can_write(const char *path, struct ap_err *err)
{
    struct stat st;
    int why = 0;

    if (!strcmp(path, "-") || descriptor_of(path) >= 0)
        return 0;
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
        why = S_ISDIR(st.st_mode) ? EISDIR : access(path, W_OK) ? errno : 0;
    } else {
        char *real = realpath(path, NULL), *end;
        if (!real && errno != ENOENT)
            why = errno;
        if (!why && (real || lstat(path, &st))) { /* no link to what does not exist yet */
            struct ap_buf folder = {0};
            ap_buf_puts(&folder, real ? real : path);
            end = strrchr(folder.data, '/');
            if (end)
                end[end == folder.data] = 0;
            why = access(end ? folder.data : ".", W_OK | X_OK) ? errno : 0;
            ap_buf_free(&folder);
        }
        free(real);
    }
    return why ? ap_err_set(err, "%s: cannot write: %s", path, strerror(why)) : 0;
}

/*
 * A regular file appears whole or not at all, where a symbolic link leads to it, too;
 * pipes, devices and descriptors are written in place.
 */
static void open_file(struct output *out, const char *path)
{
    struct stat st;
    int fd = descriptor_of(path);

    *out = (struct output){.path = path};
    if (fd >= 0) {
        fflush(stdout);
        fd = dup(fd);
    } else if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
        fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        struct ap_buf temp = {0};
        char *real = realpath(path, NULL); /* NULL: it does not exist yet */
        if (!real && !lstat(path, &st)) {  /* a link to what does not exist yet */
            fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        } else {
            out->target = strdup(real ? real : path);
            if (!out->target)
                write_failed(out);
            ap_buf_printf(&temp, "%s.XXXXXX", out->target);
            sigset_t all, old; /* or a signal could leave the file in between */
            sigfillset(&all);
            sigprocmask(SIG_SETMASK, &all, &old);
            fd = mkstemp(temp.data);
            if (fd >= 0)
                set_unfinished(temp.data);
            sigprocmask(SIG_SETMASK, &old, NULL);
        }
        free(real);
        if (fd >= 0 && temp.len > 0)
            out->temp = temp;
        else
            ap_buf_free(&temp);
    }
    out->file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out->file)
        write_failed(out);
}

static void open_output(struct output *out, const struct ap_tool *tool)
{
    *out = (struct output){.file = stdout};
    if (tool->out_path && strcmp(tool->out_path, "-"))
        open_file(out, tool->out_path);
    errno = 0;
}

static void close_output(struct output *out)
{
    if (fflush(out->file) || ferror(out->file))
        write_failed(out);
    if (out->temp.len > 0) {
        mode_t mask = umask(0);
        umask(mask);
        if (fchmod(fileno(out->file), 0666 & ~mask))
            write_failed(out);
    }
    if (out->file != stdout && out->file != stderr && fclose(out->file))
        write_failed(out);
    if (out->temp.len > 0 && rename(out->temp.data, out->target))
        write_failed(out);
    if (out->temp.len > 0)
        set_unfinished(NULL);
    free(out->target);
    ap_buf_free(&out->temp);
}

void ap_tool_check_file(const struct ap_tool *tool, const char *name, const char *path)
{
    if (path && !*path)
        ap_die_usage("--%s: expected a file, got an empty name", name);
    if (path && ap_same_file(path, tool->path))
        ap_die_usage("--%s: %s is the input", name, path);
    if (path && tool->out_path && ap_same_file(path, tool->out_path))
        ap_die_usage("--%s and -o: both would write %s", name, path);
}

void ap_tool_write_file(const char *path, const struct ap_buf *buf)
{
    struct output out = {.file = stderr, .path = path};

    if (strcmp(path, "-"))
        open_file(&out, path);
    errno = 0;
    if (buf->len > 0)
        fwrite(buf->data, 1, buf->len, out.file);
    close_output(&out);
}

void ap_tool_write_bytes(struct ap_tool *tool, const struct ap_buf *bytes)
{
    struct output out;

    open_output(&out, tool);
    if (bytes->len > 0)
        fwrite(bytes->data, 1, bytes->len, out.file);
    close_output(&out);
}

void ap_tool_write(struct ap_tool *tool, const struct ap_doc *doc,
                   struct ap_new_section *sections, int n, const char *extra)
{
    struct ap_buf entry = {0};
    struct output out;

    ap_buf_puts(&entry, "{\"tool\":");
    ap_json_str(&entry, tool->name);
    ap_buf_printf(&entry, ",\"version\":\"%s\",\"args\":[%s]%s}", AP_VERSION,
                  history_args.len ? history_args.data : "", extra);
    open_output(&out, tool);
    ap_doc_write(doc, sections, n, tool->no_history ? NULL : entry.data, out.file);
    close_output(&out);
    if (out.file == stdout) /* who reads it need not wait for what is still to be freed */
        if (close(STDOUT_FILENO))
            ap_die(AP_BAD_INPUT, "cannot write to standard output: %s", strerror(errno));
    for (int i = 0; i < n; i++)
        ap_buf_free(&sections[i].json);
    ap_buf_free(&entry);
}

struct ap_progress *ap_tool_progress(void)
{
    return running->quiet ? NULL : progress_new(running->name, start_sec);
}

int ap_tool_finish(struct ap_tool *tool, const char *extra)
{
    struct rusage usage;
    int n = 0;

    progress_clear();
    if (tool->stats && !getrusage(RUSAGE_SELF, &usage))
        n = fprintf(stderr, "{\"tool\":\"%s\",\"sec\":%.6f,\"peak_bytes\":%lld%s}\n",
                    tool->name, ap_now_sec() - start_sec,
                    (long long)usage.ru_maxrss * 1024, extra);
    ap_buf_free(&history_args);
    return n < 0 ? AP_BAD_INPUT : AP_OK;
}
