/*
 * What all filters have in common: options, --help, --version, input, output, --stats,
 * exit codes. The only room that prints, and, but for memory that runs out, exits.
 */
#ifndef AP_TOOL_H
#define AP_TOOL_H

#include "base/work.h"
#include "cost/cost.h"
#include "doc/doc.h"

#define AP_VERSION "0.1.0"

enum ap_exit { AP_OK = 0, AP_BAD_INPUT = 1, AP_USAGE = 2, AP_NO_SOLUTION = 3 };

enum ap_opt_kind {
    AP_OPT_FLAG,
    AP_OPT_INT,
    AP_OPT_NUM,
    AP_OPT_STR,
    AP_OPT_LIST,
    AP_OPT_CHOICE,
    AP_OPT_CLUSTER /* as AP_OPT_STR; "help" lists the clusters that are known by name */
};

/* What an option that may be given several times collects. */
#define AP_MAX_LIST 64
struct ap_list {
    int n;
    const char *v[AP_MAX_LIST];
};

/* A row of choices, e.g. of algorithms; the first is the default. NULL name ends. */
struct ap_choice {
    const char *name, *help;
};

struct ap_opt {
    const char *name; /* without "--"; a one-letter name stands for "-x" */
    enum ap_opt_kind kind;
    void *out; /* bool, int64_t, double, const char *, struct ap_list, int (row
           number) */
    const char *arg, *help; /* arg: metavariable, NULL for flags */
    const struct ap_choice *choices;
    size_t choice_stride; /* bytes from one row's struct ap_choice to the next one's */
    int64_t lo, hi;       /* bounds of AP_OPT_INT, both 0 for none */
    /* NULL: most people need the option, and --help shows it. Otherwise the heading of
       --help=all that it stands under: "more", or the paper or part it belongs to */
    const char *group;
};

struct ap_tool {
    const char *name, *summary; /* "ap-shard", "choose how every tensor is split" */
    const char *operand;        /* usage of the positional argument: "[FILE]" */
    struct ap_list *operands;   /* collects all of them; NULL: one is allowed */
    /* appends, a blank before each, what the operand may be called; NULL: files */
    void (*operand_names)(struct ap_buf *out);
    const struct ap_opt *opts; /* its own; NULL name ends; the common ones are added */
    /* filled by ap_tool_start */
    int argc;
    char **argv;
    const char *path;     /* positional operand or "-" */
    const char *out_path; /* -o, NULL for stdout */
    bool quiet, stats, no_history;
    uint64_t given; /* own options, a bit for each place in opts */
};

/*
 * Parses options (GNU style: --name VALUE, --name=VALUE, -o FILE, --), handles --help,
 * --help=all, --help=GROUP, --version, --CHOICE=help and --CLUSTER=help, dies with usage
 * errors (exit 2).
 * Common options: -o FILE,
 * --quiet, --stats, --no-history, --help, --version, and, alone and not in --help,
 * --completion bash|zsh, for `make install`. Starts the clock of --stats.
 */
void ap_tool_start(struct ap_tool *tool, int argc, char **argv);
/* Whether the own option `name` ("seed") was given; after ap_tool_start. */
bool ap_tool_given(const struct ap_tool *tool, const char *name);

_Noreturn void ap_die(int code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* "ap-shard: ..." on stderr */
_Noreturn void ap_die_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Called with the exit code after the message of the two, before the process exits. */
void ap_tool_on_die(void (*told)(int code));
/* The message alone: who ends otherwise says it so. */
void ap_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void ap_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Reads the document of tool->path or dies (exit 1). */
void ap_tool_read(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc);

/* What a tool does while a document arrives through a pipe. */
struct ap_stream {
    /* Called once, as soon as doc has the section "graph", or at the end if it never has.
       more: the rest of the document is still to arrive, and doc's texts will move. */
    void (*graph)(void *ctx, const struct ap_doc *doc, bool more);
    void *ctx;
    bool keeps_graph; /* ap_tool_write will not replace the graph */
};
/*
 * As ap_tool_read, but a long graph is read as soon as it has arrived, and if the tool
 * keeps the graph, the graph is valid, and standard output is a pipe, too, the text of
 * the graph is passed on at once: the tools of a pipe work at the same time. A tool that
 * fails later leaves half a document in the pipe, which all readers refuse; of an invalid
 * graph nothing is written.
 */
void ap_tool_stream(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc,
                    const struct ap_stream *stream);
/* The same for tools that only read the graph, and keep it. */
void ap_tool_read_graph(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc,
                        struct ap_graph *g);

/*
 * Writes the document with the new sections and this tool's history entry {"tool",
 * "version","args", then the members in `extra` (",\"seed\":0" style, may be "")} to -o
 * (temporary file and rename) or stdout, all at once, but for what ap_tool_stream has
 * passed on; frees the sections' buffers; dies on failure (exit 1).
 */
void ap_tool_write(struct ap_tool *tool, const struct ap_doc *doc,
                   struct ap_new_section *sections, int n, const char *extra);
/* Writes bytes likewise (for tools whose output is no document). */
void ap_tool_write_bytes(struct ap_tool *tool, const struct ap_buf *bytes);

/* Dies (exit 2) if the file of the option `name` is the input or that of -o. */
void ap_tool_check_file(const struct ap_tool *tool, const char *name, const char *path);
/*
 * Whether a file can be written there, as far as its folder tells: what takes long asks
 * before it begins. "-" and descriptors can. -1 with err, which names the path.
 */
int ap_tool_can_write(const char *path, struct ap_err *err);
/* Dies (exit 1) where -o cannot be written; what reads the input asks. */
void ap_tool_check_out(const struct ap_tool *tool);
/* The file that is not complete yet, which a signal that ends the process removes; NULL:
 * there is none any more. */
void ap_tool_unfinished(const char *path);
/* Writes bytes to a file beside it likewise: temporary file and rename, or dies; "-" is
 * standard error, for the output is the document's. */
void ap_tool_write_file(const char *path, const struct ap_buf *bytes);

/*
 * For a struct ap_work: on a terminal, what the search does is shown on standard error
 * from a second on, in one line that is rewritten, and taken away before any message and
 * at the end. NULL where standard error is no terminal, or with --quiet.
 */
struct ap_progress *ap_tool_progress(void);
/* Takes the line away, for who writes to the terminal by other ways. */
void ap_tool_clear_progress(void);
/* Dies (exit 2) of a cluster with several kinds of devices, for tools that plan for one.
 */
void ap_tool_one_kind(const struct ap_cluster *c);
/* Choices of --overlap, and what the row makes of the cluster. */
extern const struct ap_choice ap_overlap_modes[];
void ap_tool_set_overlap(struct ap_cluster *c, int mode);
/* Choices of --f32-matmul, and what the row makes of the cluster; dies (exit 2) of one
 * whose products are measured, or whose devices have no tf32. */
extern const struct ap_choice ap_f32_matmul_modes[];
void ap_tool_set_f32_matmul(struct ap_cluster *c, int mode);

/* Prints the --stats line ({"tool":..,"sec":..,"peak_bytes":.. and `extra`}) if asked;
 * returns AP_OK, or AP_BAD_INPUT when it cannot be written. */
int ap_tool_finish(struct ap_tool *tool, const char *extra);

/* ---- private: help.c ---- */

/* What is before an option's name: "-" or "--". */
const char *ap_opt_dashes(const struct ap_opt *opt);
/*
 * Appends the text of --help (group NULL: at most fifteen lines), of --help=all, or of
 * the options of one group. Where no option has the group, appends the names of all
 * groups instead and returns false.
 */
bool ap_tool_help(const struct ap_tool *tool, const struct ap_opt *common,
                  const char *group, struct ap_buf *out);
/* Appends the choices of an option, one a line. */
void ap_tool_choices(const struct ap_opt *opt, struct ap_buf *out);

/* ---- private: completion.c ---- */

/* Row `row` of an option's choices; its name is NULL at their end. */
const struct ap_choice *ap_opt_choice(const struct ap_opt *opt, int row);
/* The completion of bash or zsh for a tool with its own and the common options; whether
 * the shell is one of them. */
bool ap_tool_completion(const struct ap_tool *tool, const struct ap_opt *common,
                        const char *shell, struct ap_buf *out);

#endif
