/* ap-exec: run a program, on this process or under MPI. */
#include "step/backend.h"
#include "base/file.h"
#include "comm/watch.h"
#include "cpu/cpu.h"
#include "cuda/plugin.h"
#include "run/arrays.h"
#include "run/job.h"
#include "run/launch.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BACKEND_CPU, BACKEND_CUDA, BACKEND_AUTO };
static const struct ap_choice backends[] = {
    {"cpu", "CPU cores, matrix products by BLAS"},
    {"cuda", "a CUDA device per rank"},
    {"auto", "cuda where it can be used, else cpu"},
    {NULL, NULL},
};
static const struct ap_choice products[] = {
    {"f32", "contractions of f32 as f32"},
    {"tf32", "their operands rounded to tf32 (cuda)"},
    {NULL, NULL},
};

/* Of --watchdog: longer than rank 0 takes to read a large document. */
#define WATCHDOG_SEC 300

/* What the options say beside the settings. */
struct chosen {
    int64_t seed;
    int backend, product;    /* rows of the tables */
    const char *compile_for; /* --cuda-compile */
    struct cuda_options cuda;
    struct ap_list alternate; /* documents whose steps alternate with the first one's */
};

/* A program and its run. */
struct task {
    const char *path;
    const struct settings *set;
    struct ap_progress *progress; /* NULL: nobody waits */
    struct ap_arena text;         /* of doc; freed when nobody reads it any more */
    struct ap_doc doc;
    struct ap_pipeline_program program;
    struct session session;
    struct session_hook hook;
};

/* Everything printed so far is written, or the tool ends. */
static void check_stdout(void)
{
    errno = 0;
    if (fflush(stdout) || ferror(stdout))
        ap_die(AP_BAD_INPUT, "cannot write to standard output: %s",
               strerror(errno ? errno : EIO));
}

/* The line of progress. */
static void show_step(const struct task *t, int64_t step, bool has_loss, double loss)
{
    static char what[128];
    const int n = snprintf(what, sizeof what, "step %lld of %lld", (long long)step,
                           (long long)t->set->steps);
    if (has_loss)
        snprintf(what + n, sizeof what - (size_t)n, ", loss %.6g", loss);
    t->progress->what = what;
    t->progress->show(t->progress);
}

/* Steps are printed as they end, unless the output is one piece. */
static void say_step(const void *ctx, int64_t step, bool has_loss, double loss)
{
    const struct task *t = ctx;
    if (t->progress)
        show_step(t, step, has_loss, loss);
    if (t->set->json || t->set->quiet)
        return;
    if (t->set->n_programs > 1)
        printf("%s: ", t->path);
    if (has_loss)
        printf("step %lld loss %.9g\n", (long long)step, loss);
    else
        printf("step %lld\n", (long long)step);
    check_stdout();
}

static void print_error(const char *what, double error, struct ap_buf *out)
{
    ap_buf_puts(out, what);
    if (error < 0)
        ap_buf_puts(out, "none");
    else
        ap_buf_printf(out, "%.3g", error);
}

static void print_comparison(const char *what, const struct comparison *c,
                             struct ap_buf *out)
{
    if (!c->done)
        return;
    ap_buf_puts(out, what);
    print_error("losses max rel ", c->loss_error, out);
    print_error(", params rel norm ", c->params_error, out);
    print_error(", states rel norm ", c->states_error, out);
    ap_buf_putc(out, '\n');
}

/* What rank 0 prints of a program after the last step. */
static void put_end(struct ap_arena *arena, const struct task *t,
                    const struct comparison *cmp, const struct comparison *verified,
                    struct ap_buf *out)
{
    const struct settings *set = t->set;
    if (set->json) {
        report_json(arena, &t->session, cmp, verified, out);
        return;
    }
    if (set->n_programs > 1 && (cmp->done || verified->done || set->report))
        ap_buf_printf(out, "%s:\n", t->path);
    print_comparison("", cmp, out);
    print_comparison("verify: ", verified, out);
    report_kinds(verified, out);
    if (set->report)
        report_text(arena, &t->session, out);
}

/* Numbers, in the whole graph, of parameters that a program gives new values (arena); how
 * many. */
static int list_updated(struct ap_arena *arena, const struct ap_pipeline_program *r,
                        int **out)
{
    int most = 0, n = 0;
    for (int s = 0; s < r->n_stages; s++)
        most += r->stage[s].prog.local.n_results;
    int *list = *out = AP_NEW_N(arena, most + 1, int);
    for (int s = 0; s < r->n_stages; s++) {
        const struct ap_graph *g = &r->stage[s].prog.local;
        for (int k = 0; k < g->n_results; k++) {
            if (g->results[k].alias < 0)
                continue;
            const struct ap_node *param = &g->nodes[g->results[k].alias];
            const struct ap_part *part = param->attrs->argument;
            list[n++] = part ? part->index : r->stage[s].param[param->param];
        }
    }
    return n;
}

/* What is read or written after the last step is looked at before the first; rank 0. */
static int check_ends(struct ap_arena *arena, const struct ap_doc *doc,
                      const struct settings *set,
                      const struct ap_pipeline_program *program, struct ap_err *err)
{
    int *list;
    const int n = list_updated(arena, program, &list);
    if (set->verify && !ap_doc_find(doc, "graph"))
        return ap_err_set(err, "%s: --verify: no section \"graph\"", doc->file);
    if ((set->source.dir && arrays_check(set->source.dir, err)) ||
        (set->out_dir && report_check(set->out_dir, err)))
        return -1;
    if ((set->profile_path && ap_tool_can_write(set->profile_path, err)) ||
        (set->trace_path && ap_tool_can_write(set->trace_path, err)))
        return -1;
    return set->compare_dir
               ? compare_check(arena, set->compare_dir, set->steps, n, list, err)
               : 0;
}

/* After the last step: files, comparisons and the report; all ranks. */
static void end_run(struct ap_arena *arena, struct task *t, struct ap_buf *out)
{
    const struct settings *set = t->set;
    struct session *s = &t->session;
    struct comm *comm = s->comm;
    struct comparison cmp = {0}, verified = {0};
    struct ap_err err = {{0}};
    struct ap_buf profile = {0};
    int rc = 0;
    session_end(s);
    if (s->profile)
        profile_write(s->profile, set->backend, &profile);
    if (s->profile && comm->rank == 0)
        ap_tool_write_file(set->profile_path, &profile);
    ap_buf_free(&profile);
    if (s->trace)
        trace_write(s->trace, comm);
    if (comm->rank == 0 && set->out_dir)
        rc = report_files(s, set->out_dir, &err);
    if (comm->rank == 0 && set->compare_dir && !rc)
        rc = compare_goldens(arena, s, set->compare_dir, set->tolerance, &cmp, &err);
    job_agree(comm, rc, AP_BAD_INPUT, &err);
    if (comm->rank == 0 && set->verify)
        rc = verify_run(arena, &t->doc, set, s, &verified, &err);
    job_agree(comm, rc, AP_BAD_INPUT, &err);
    if (comm->rank == 0)
        put_end(arena, t, &cmp, &verified, out);
}

/* --check: what a run would read, and that it may be trusted; one process. */
static void check(struct ap_tool *tool, const struct task *t, int n)
{
    struct ap_buf out = {0};
    for (int k = 0; k < n; k++) {
        struct ap_arena arena = {0};
        struct ap_err err = {{0}};
        struct ap_doc doc;
        struct ap_pipeline_program program;
        struct comm comm;
        comm_self_open(&comm);
        job_read(t[k].path, &arena, &comm, &doc);
        const int rc = job_check(&arena, &doc, (int)t->set->n_ranks, &program, &err);
        job_agree(&comm, rc, AP_BAD_INPUT, &err);
        report_checked(&program, t->set->json, &out);
        comm.close(&comm);
        ap_arena_free(&arena);
    }
    if (!tool->quiet)
        ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
}

/* Reads the program, and checks that what its end needs is there (check_ends). */
static void load(struct ap_arena *arena, struct task *t, struct comm *comm)
{
    const struct settings *set = t->set;
    struct ap_err err = {{0}};
    int rc = 0;
    job_read(t->path, &t->text, comm, &t->doc);
    job_program(arena, &t->doc, comm, &t->program);
    job_places(arena, &t->doc, comm);
    if (comm->rank == 0 && !set->prepare_only)
        rc = check_ends(arena, &t->doc, set, &t->program, &err);
    job_agree(comm, rc, AP_BAD_INPUT, &err);
    if (!set->verify)
        ap_arena_free(&t->text);
}

/* Prepares the programs, runs their steps and reports. */
static void run_tasks(struct ap_tool *tool, struct ap_arena *arena, struct task *t, int n,
                      struct comm *comm)
{
    const struct settings *set = t->set;
    const bool keep = set->out_dir || set->verify || set->compare_dir;
    struct session **all = AP_NEW_N(arena, n, struct session *);
    struct ap_buf out = {0};
    for (int k = 0; k < n; k++) {
        t[k].hook = (struct session_hook){say_step, &t[k]};
        const struct session_opts opts = {.keep = keep,
                                          .observed = true,
                                          .timed = set->report || set->json,
                                          .hook = &t[k].hook};
        all[k] = &t[k].session;
        session_open(all[k], arena, &t[k].program, set, comm, &opts);
    }
    if (!set->prepare_only)
        session_steps(all, n);
    watch_end();
    for (int k = 0; k < n && !set->prepare_only; k++)
        end_run(arena, &t[k], &out);
    if (out.len)
        ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
}

static void run(struct ap_tool *tool, struct settings *set, struct task *t, int n,
                const struct cuda_plugin *plugin, const struct ap_err *no_backend)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct comm comm;
    job_join(&comm, set->watchdog_sec);
    job_agree(&comm, set->backend ? 0 : -1, AP_BAD_INPUT, no_backend);
    int rc = 0;
    if (set->n_ranks && set->n_ranks != comm.size)
        rc = ap_err_set(&err, "-n %lld: this job has %d rank%s", (long long)set->n_ranks,
                        comm.size, comm.size == 1 ? "" : "s");
    job_agree(&comm, rc, AP_USAGE, &err);
    if (set->backend->join)
        rc = set->backend->join(&comm, &err);
    job_agree(&comm, rc, AP_BAD_INPUT, &err);
    tool->stats = tool->stats && comm.rank == 0;
    if (comm.rank == 0 && tool->out_path)
        rc = ap_tool_can_write(tool->out_path, &err);
    job_agree(&comm, rc, AP_BAD_INPUT, &err);
    for (int k = 0; k < n; k++)
        load(&arena, &t[k], &comm);
    run_tasks(tool, &arena, t, n, &comm);
    if (set->prepare_only && comm.rank == 0)
        printf("kernels %d\n", plugin->kernels());
    for (int k = 0; k < n; k++) {
        session_close(&t[k].session);
        ap_arena_free(&t[k].text);
    }
    comm.close(&comm);
    ap_arena_free(&arena);
}

/* The options, written to set and chosen; arena. */
static const struct ap_opt *options(struct ap_arena *arena, struct settings *set,
                                    struct chosen *chosen)
{
    const struct ap_opt opts[] = {
        {.name = "n",
         .kind = AP_OPT_INT,
         .out = &set->n_ranks,
         .arg = "N",
         .help = "start N ranks with mpirun",
         .lo = 1,
         .hi = 4096},
        {.name = "threads",
         .kind = AP_OPT_INT,
         .out = &set->threads,
         .arg = "N",
         .help = "threads of a rank on the CPU (1); 0: its share of the cores",
         .lo = 0,
         .hi = CPU_MAX_THREADS,
         .group = "more"},
        {.name = "steps",
         .kind = AP_OPT_INT,
         .out = &set->steps,
         .arg = "N",
         .help = "training steps to run (1; with --profile: 14)",
         .lo = 1,
         .hi = 1000000000},
        {.name = "data",
         .kind = AP_OPT_STR,
         .out = &set->source.dir,
         .arg = "DIR",
         .help = "initial values: DIR/K.npy for parameter K"},
        {.name = "batches",
         .kind = AP_OPT_STR,
         .out = &set->source.batches,
         .arg = "DIR",
         .help = "inputs of step S: DIR/S/K.npy for parameter K",
         .group = "more"},
        {.name = "seed",
         .kind = AP_OPT_INT,
         .out = &chosen->seed,
         .arg = "S",
         .help = "random seed for parameters without a file (0 without --data)",
         .lo = 0,
         .hi = INT64_MAX},
        {.name = "int-range",
         .kind = AP_OPT_INT,
         .out = &set->source.int_range,
         .arg = "N",
         .help = "random integers are in [0, N) (2)",
         .lo = 1,
         .hi = INT64_MAX,
         .group = "more"},
        {.name = "small-ints",
         .kind = AP_OPT_FLAG,
         .out = &set->source.small_ints,
         .help = "random floats are integers in [-2, 2]",
         .group = "more"},
        {.name = "out",
         .kind = AP_OPT_STR,
         .out = &set->out_dir,
         .arg = "DIR",
         .help = "write final parameters and results as .npy",
         .group = "more"},
        {.name = "alternate",
         .kind = AP_OPT_LIST,
         .out = &chosen->alternate,
         .arg = "FILE",
         .help = "also run FILE's program on the same ranks, a step of each in turn",
         .group = "more"},
        {.name = "watchdog",
         .kind = AP_OPT_NUM,
         .out = &set->watchdog_sec,
         .arg = "SECONDS",
         .help = "end the job if a rank waits so long for others (300); 0: never",
         .lo = 0,
         .hi = 1000000,
         .group = "more"},
        {.name = "profile",
         .kind = AP_OPT_STR,
         .out = &set->profile_path,
         .arg = "FILE",
         .help = "also write what kernels and collectives take, for ap-cost --calibrate",
         .group = "more"},
        {.name = "trace",
         .kind = AP_OPT_STR,
         .out = &set->trace_path,
         .arg = "FILE",
         .help = "also write the last step's timeline as Perfetto JSON"},
        {.name = "compare",
         .kind = AP_OPT_STR,
         .out = &set->compare_dir,
         .arg = "DIR",
         .help = "compare with DIR/losses.npy and DIR/out/K.npy"},
        {.name = "verify",
         .kind = AP_OPT_FLAG,
         .out = &set->verify,
         .help = "run the unpartitioned graph too and compare"},
        {.name = "tolerance",
         .kind = AP_OPT_NUM,
         .out = &set->tolerance,
         .arg = "T",
         .help = "largest error of --verify (by type) and --compare (any); 0: equal",
         .group = "more"},
        {.name = "backend",
         .kind = AP_OPT_CHOICE,
         .out = &chosen->backend,
         .arg = "NAME",
         .help = "backend; --backend=help lists them",
         .choices = backends,
         .choice_stride = sizeof backends[0]},
        {.name = "f32-matmul",
         .kind = AP_OPT_CHOICE,
         .out = &chosen->product,
         .arg = "TYPE",
         .help = "precision of f32 contractions",
         .choices = products,
         .choice_stride = sizeof products[0],
         .group = "more"},
        {.name = "no-graph-capture",
         .kind = AP_OPT_FLAG,
         .out = &chosen->cuda.no_graph,
         .help = "cuda: enqueue every step anew instead of replaying a CUDA graph",
         .group = "more"},
        {.name = "cuda-compile",
         .kind = AP_OPT_STR,
         .out = &chosen->compile_for,
         .arg = "ARCH",
         .help = "cuda: compile the kernels for ARCH (sm_90) and stop; needs no device",
         .group = "more"},
        {.name = "check",
         .kind = AP_OPT_FLAG,
         .out = &set->check,
         .help = "check the program for all ranks, without mpirun; run nothing",
         .group = "more"},
        {.name = "json",
         .kind = AP_OPT_FLAG,
         .out = &set->json,
         .help = "print one JSON object instead of lines",
         .group = "more"},
        {.name = "report",
         .kind = AP_OPT_FLAG,
         .out = &set->report,
         .help = "also print times, memory and collectives"},
        {.name = NULL}};
    return ap_arena_dup(arena, opts, sizeof opts);
}

/* sm_90 is 90. */
static int parse_arch(const char *text)
{
    char *end = NULL;
    const long v = strncmp(text, "sm_", 3) ? 0 : strtol(text + 3, &end, 10);
    if (v < 10 || v > 999 || *end)
        ap_die_usage("--cuda-compile: expected an architecture like sm_90, got %s", text);
    return (int)v;
}

/* The backend that the options ask for, NULL with err set; *plugin: NULL for the CPU. */
static const struct backend *choose_backend(struct chosen *chosen,
                                            const struct cuda_plugin **plugin,
                                            struct ap_err *err)
{
    *plugin = NULL;
    chosen->cuda.tf32 = chosen->product == 1;
    if (chosen->compile_for) {
        chosen->cuda.compile_for = parse_arch(chosen->compile_for);
        chosen->backend = BACKEND_CUDA;
    }
    if (chosen->backend == BACKEND_CPU)
        return &cpu_backend;
    *plugin = plugin_open(&chosen->cuda, err);
    if (*plugin)
        return (*plugin)->backend;
    if (chosen->backend == BACKEND_CUDA)
        return NULL;
    if (job_is_first())
        ap_say("%s; the CPU computes", err->msg);
    return &cpu_backend;
}

/* The programs of the command line (arena), the first of them FILE's. */
static struct task *tasks(struct ap_arena *arena, const struct ap_tool *tool,
                          const struct chosen *chosen, struct settings *set)
{
    struct ap_progress *progress =
        job_is_started() || (!set->json && isatty(STDOUT_FILENO)) ? NULL
                                                                  : ap_tool_progress();
    set->n_programs = 1 + chosen->alternate.n;
    struct task *t = AP_NEW_N(arena, set->n_programs, struct task);
    for (int k = 0; k < set->n_programs; k++)
        t[k] = (struct task){.path = k ? chosen->alternate.v[k - 1] : tool->path,
                             .set = set,
                             .progress = progress};
    return t;
}

static void check_options(const struct ap_tool *tool, struct settings *set,
                          const struct chosen *chosen)
{
    const char *trace = set->trace_path, *profile = set->profile_path;
    ap_tool_check_file(tool, "profile", profile);
    ap_tool_check_file(tool, "trace", trace);
    if (tool->out_path && ap_same_file(tool->out_path, tool->path))
        ap_die_usage("-o: %s is the input", tool->path);
    if (set->tolerance < 0)
        ap_die_usage("--tolerance: expected a number >= 0, got %g", set->tolerance);
    if (trace && profile && (!strcmp(trace, profile) || ap_same_file(trace, profile)))
        ap_die_usage("--trace and --profile: both would write %s", trace);
    if (set->steps == 0)
        set->steps = set->profile_path ? PROFILE_STEPS : 1;
    if (set->profile_path && set->steps < PROFILE_LEAST_STEPS)
        ap_die_usage("--profile: needs at least %d steps", PROFILE_LEAST_STEPS);
    const char *one = set->profile_path ? "profile"
                      : set->trace_path ? "trace"
                      : set->out_dir    ? "out"
                                        : NULL;
    const char *step = one                   ? one
                       : set->compare_dir    ? "compare"
                       : set->verify         ? "verify"
                       : set->report         ? "report"
                       : set->source.dir     ? "data"
                       : set->source.batches ? "batches"
                                             : NULL;
    if (set->check && step)
        ap_die_usage("--check: runs no step, which --%s needs", step);
    if (chosen->alternate.n && one)
        ap_die_usage("--alternate: --%s is of one program", one);
    for (int i = 0; i < chosen->alternate.n; i++)
        if (!strcmp(chosen->alternate.v[i], "-"))
            ap_die_usage("--alternate: expected a file, got -");
}

int main(int argc, char **argv)
{
    struct settings set = {.threads = 1, .tolerance = NAN, .watchdog_sec = WATCHDOG_SEC};
    struct chosen chosen = {.seed = -1};
    const struct cuda_plugin *plugin = NULL;
    struct ap_err err = {{0}};
    set.source.int_range = 2;
    struct ap_arena arena = {0};
    struct ap_tool tool = {.name = "ap-exec",
                           .summary = "run a program on one or many ranks",
                           .operand = "[FILE]",
                           .opts = options(&arena, &set, &chosen)};
    ap_tool_start(&tool, argc, argv);
    check_options(&tool, &set, &chosen);
    cpu_backend.open(argv); /* whatever computes: values are filled on the host */
    if (set.n_ranks && !set.check && !job_is_started())
        launch(&tool, set.n_ranks);
    cpu_set_threads(set.threads ? (int)set.threads : job_cores());
    set.backend = set.check ? &cpu_backend : choose_backend(&chosen, &plugin, &err);
    set.prepare_only = chosen.compile_for != NULL;
    set.source.seeded = chosen.seed >= 0 || !set.source.dir;
    set.source.seed = chosen.seed > 0 ? (uint64_t)chosen.seed : 0;
    set.quiet = tool.quiet;
    struct task *t = tasks(&arena, &tool, &chosen, &set);
    if (set.check)
        check(&tool, t, set.n_programs);
    else
        run(&tool, &set, t, set.n_programs, plugin, &err);
    check_stdout();
    ap_arena_free(&arena);
    return ap_tool_finish(&tool, "");
}
