/*
 * The part that all filters share: options, --help, --version, input, output, --stats,
 * exit codes. It is the only room that prints and, except when memory runs out, exits.
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

/* The values of an option that may be given several times. */
#define AP_MAX_LIST 64
struct ap_list {
    int n;
    const char *v[AP_MAX_LIST];
};

/* A row of a table of choices, e.g. of algorithms; the first is the default, and a NULL
 * name ends the table. */
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
    struct ap_list *operands;   /* collects all operands; NULL: one operand is allowed */
    /* appends the possible names of the operand, each after a blank; NULL: files */
    void (*operand_names)(struct ap_buf *out);
    const struct ap_opt
        *opts; /* the tool's own, ended by a NULL name; the common options are added */
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
/* Sets a function that is called with the exit code after a message of these two
 * functions, before the process exits. */
void ap_tool_on_die(void (*told)(int code));
/* Prints the message alone, for a caller that ends the process in another way. */
void ap_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void ap_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Reads the document of tool->path, or dies (exit 1), also if -o cannot be written. */
void ap_tool_read(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc);

/* The same, and the document's graph. */
void ap_tool_read_graph(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc,
                        struct ap_graph *g);

/*
 * Writes the document with the new sections and this tool's history entry {"tool",
 * "version","args", then the members in `extra` (",\"seed\":0" style, may be "")} to -o
 * (temporary file and rename) or stdout, all at once; frees the sections' buffers; dies
 * on failure (exit 1).
 */
void ap_tool_write(struct ap_tool *tool, const struct ap_doc *doc,
                   struct ap_new_section *sections, int n, const char *extra);
/* Writes bytes in the same way, for output that is not a document. */
void ap_tool_write_bytes(struct ap_tool *tool, const struct ap_buf *bytes);

/* Dies (exit 2) if the file of the option `name` is the input or the output of -o. */
void ap_tool_check_file(const struct ap_tool *tool, const char *name, const char *path);
/*
 * Checks whether a file can be written there, as far as its folder tells; a long
 * computation asks before it begins. "-" and descriptors can be written. -1 with err,
 * which names the path.
 */
int ap_tool_can_write(const char *path, struct ap_err *err);
/* Writes bytes to an additional file in the same way (temporary file and rename), or
 * dies; "-" is standard error, since standard output belongs to the document. */
void ap_tool_write_file(const char *path, const struct ap_buf *bytes);

/*
 * For a struct ap_work: on a terminal, the activity of a search is shown on standard
 * error once it has run for a second, in one line that is rewritten, and that is erased
 * before any message and at the end. NULL if standard error is not a terminal, or with
 * --quiet.
 */
struct ap_progress *ap_tool_progress(void);
/* Dies (exit 2) if the cluster has several kinds of devices, for tools that plan for one
 * kind. */
void ap_tool_one_kind(const struct ap_cluster *c);
/* The choices of --overlap, and the change of the cluster by a row. */
extern const struct ap_choice ap_overlap_modes[];
void ap_tool_set_overlap(struct ap_cluster *c, int mode);
/* The choices of --f32-matmul, and the change of the cluster by a row; dies (exit 2) if
 * the cluster's products are measured, or its devices have no tf32. */
extern const struct ap_choice ap_f32_matmul_modes[];
void ap_tool_set_f32_matmul(struct ap_cluster *c, int mode);

/* Prints the --stats line ({"tool":..,"sec":..,"peak_bytes":.. and `extra`}) if asked;
 * returns AP_OK, or AP_BAD_INPUT when it cannot be written. */
int ap_tool_finish(struct ap_tool *tool, const char *extra);

/* ---- private: help.c ---- */

/* The dashes of an option's name: "-" or "--". */
const char *ap_opt_dashes(const struct ap_opt *opt);
/*
 * Appends the text of --help (group NULL: at most fifteen lines), of --help=all, or of
 * the options of one group. If no option has the group, appends the names of all groups
 * instead and returns false.
 */
bool ap_tool_help(const struct ap_tool *tool, const struct ap_opt *common,
                  const char *group, struct ap_buf *out);
/* Appends the choices of an option, one a line. */
void ap_tool_choices(const struct ap_opt *opt, struct ap_buf *out);

/* ---- private: completion.c ---- */

/* Row `row` of an option's choices; its name is NULL at the end of the table. */
const struct ap_choice *ap_opt_choice(const struct ap_opt *opt, int row);
/* Appends the completion of a shell for a tool with its own and the common options; false
 * if the shell is neither bash nor zsh. */
bool ap_tool_completion(const struct ap_tool *tool, const struct ap_opt *common,
                        const char *shell, struct ap_buf *out);

#endif
