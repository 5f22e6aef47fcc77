/* ap-stage: cut blocks into pipeline stages, and a cluster into their submeshes. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "oracle.h"
#include "result.h"

static const struct ap_choice schedules[] = {
    {"auto", "the best that the algorithm has"},
    {"gpipe", "all forwards, then all backwards"},
    {"1f1b", "one forward, one backward"},
    {"interleaved-1f1b", "the same, several stages on a device"},
    {"inference", "forwards only, for graphs without a backward pass"},
    {NULL, NULL},
};
static const struct ap_choice reductions[] = {
    {"exact", "sums over the batch are those of the whole batch"},
    {"each", "reductions over the batch are taken per microbatch"},
    {NULL, NULL},
};
enum { REDUCTION_EACH = 1 };
static const struct ap_choice recomputes[] = {
    {"auto", "per stage, as memory demands"},
    {"none", "activations are kept"},
    {"blocks", "every stage makes its blocks again, one at a time"},
    {"selected", "the operators that save most memory per second, as memory demands"},
    {NULL, NULL},
};
static const struct ap_choice searches[] = {
    {"first", "stop at the first number of stages that fits"},
    {"all", "go on to the last"},
    {NULL, NULL},
};

struct request {
    int algorithm, schedule, reduction, recompute, search;
    const char *cluster_path, *microbatches, *memory, *command, *submeshes;
    int64_t jobs, n_stages;
    double limit_sec;
    struct stage_limits limits;
    struct plan_params params;
    struct plan_submesh submesh[64];
};

/* Options that only some algorithms read. */
static const struct {
    const char *option, *algorithms;
} own_options[] = {
    {"search", " rannc "},
    {"submesh-space", " auto alpa rannc equal-layer equal-operator exhaustive "},
    {"submeshes", " auto alpa rannc equal-layer equal-operator exhaustive "},
    {"imbalance", " rhino "},
    {"epsilon", " alpa equal-layer equal-operator "},
    {"kept", " auto "},
};

/* ---- options ---- */

static void read_options(struct ap_tool *tool, struct request *r, int argc, char **argv)
{
    const struct ap_opt opts[] = {
        {"algorithm", AP_OPT_CHOICE, &r->algorithm, "NAME", "how to plan",
         (const struct ap_choice *)plan_algorithms(), sizeof(struct plan_algorithm), 0,
         0},
        {"cluster", AP_OPT_CLUSTER, &r->cluster_path, "FILE",
         "file, or a name of --cluster help (default: the document's)", NULL, 0, 0, 0},
        {"microbatches", AP_OPT_STR, &r->microbatches, "N",
         "into how many the batch is cut, or auto: powers of two (auto)", NULL, 0, 0, 0},
        {"microbatch", AP_OPT_CHOICE, &r->reduction, "MODE",
         "what is reduced over the batch", reductions, sizeof *reductions, 0, 0},
        {"schedule", AP_OPT_CHOICE, &r->schedule, "NAME", "order of the microbatches",
         schedules, sizeof *schedules, 0, 0},
        {"stages", AP_OPT_INT, &r->n_stages, "N", "number of stages (any)", NULL, 0, 1,
         INT32_MAX},
        {"submesh-space", AP_OPT_CHOICE, &r->params.submesh_space, "NAME",
         "submeshes that a stage may have", plan_submesh_spaces,
         sizeof *plan_submesh_spaces, 0, 0},
        {"submeshes", AP_OPT_STR, &r->submeshes, "LIST",
         "the only ones that a stage may have, such as 1x4,2x8", NULL, 0, 0, 0},
        {"memory", AP_OPT_STR, &r->memory, "SIZE",
         "of a device: 16GiB, bytes, or device (device)", NULL, 0, 0, 0},
        {"recompute", AP_OPT_CHOICE, &r->recompute, "WHAT",
         "what is made again instead of kept", recomputes, sizeof *recomputes, 0, 0},
        {"shard-command", AP_OPT_STR, &r->command, "CMD",
         "answers what a stage costs (ap-shard --serve)", NULL, 0, 0, 0},
        {"jobs", AP_OPT_INT, &r->jobs, "N",
         "processes of the shard command (default: the cores)", NULL, 0, 1, 1024},
        {"time-out", AP_OPT_NUM, &r->limit_sec, "SEC",
         "most seconds until the shard command answers (600)", NULL, 0, 0, 0},
        {"search", AP_OPT_CHOICE, &r->search, "NAME", "rannc: when to stop", searches,
         sizeof *searches, 0, 0},
        {"imbalance", AP_OPT_NUM, &r->params.imbalance, "X",
         "rhino: how far a stage's FLOPs may be from the average (0.08)", NULL, 0, 0, 0},
        {"epsilon", AP_OPT_NUM, &r->params.epsilon_sec, "SEC",
         "alpa: gap between the slowest stages that are tried (1e-6)", NULL, 0, 0, 0},
        {"kept", AP_OPT_INT, &r->params.n_kept, "N",
         "auto: plans that are simulated (64)", NULL, 0, 1, 100000},
        {"latency", AP_OPT_FLAG, &r->params.latency, NULL,
         "inference: least time of one batch, not of the slowest stage", NULL, 0, 0, 0},
        {"work-limit", AP_OPT_INT, &r->params.work_limit, "N",
         "stop the search after N units of work", NULL, 0, 1, INT64_MAX},
        {0},
    };
    tool->opts = opts;
    ap_tool_start(tool, argc, argv);
    for (size_t i = 0; i < sizeof own_options / sizeof *own_options; i++) {
        char name[64];
        snprintf(name, sizeof name, " %s ", plan_algorithms()[r->algorithm].name);
        if (ap_tool_given(tool, own_options[i].option) &&
            !strstr(own_options[i].algorithms, name))
            ap_die_usage("--%s: %s has no such option", own_options[i].option,
                         plan_algorithms()[r->algorithm].name);
    }
    if (r->submeshes && ap_tool_given(tool, "submesh-space"))
        ap_die_usage("only one of --submesh-space and --submeshes");
    if (plan_algorithms()[r->algorithm].cuts != PLAN_CUTS_STAGES && r->n_stages > 1)
        ap_die_usage("--stages: %s has one stage", plan_algorithms()[r->algorithm].name);
    tool->opts = NULL; /* they end here */
}

/* "1x4,2x8" */
static void read_submeshes(struct request *r)
{
    const int most = sizeof r->submesh / sizeof *r->submesh;
    const char *at = r->submeshes;
    char *end = NULL;

    r->params.submesh = r->submesh;
    for (bool more = at != NULL; more; at = end + 1) {
        long n[2] = {0};
        for (int i = 0; i < 2; i++) {
            const char *digits = i ? end + (*end == 'x') : at;
            n[i] = strtol(digits, &end, 10);
            if (*digits < '0' || *digits > '9' || n[i] < 1 || n[i] > AP_MAX_DEVICES ||
                (i == 0 && *end != 'x'))
                ap_die_usage("--submeshes: expected HOSTSxDEVICES,..., got %s",
                             r->submeshes);
        }
        more = *end == ',';
        if ((*end && !more) || r->params.n_submeshes == most)
            ap_die_usage("--submeshes: expected at most %d of HOSTSxDEVICES,..., got %s",
                         most, r->submeshes);
        r->submesh[r->params.n_submeshes++] = (struct plan_submesh){(int)n[0], (int)n[1]};
    }
}

static void check_options(struct request *r)
{
    char *end;
    read_submeshes(r);
    if (r->microbatches && strcmp(r->microbatches, "auto") != 0) {
        r->limits.microbatches = strtoll(r->microbatches, &end, 10);
        if (end == r->microbatches || *end || r->limits.microbatches < 1 ||
            r->limits.microbatches > 1 << 20)
            ap_die_usage("--microbatches: expected auto or a number from 1 to %d, got %s",
                         1 << 20, r->microbatches);
        if (r->limits.microbatches > 1 &&
            plan_algorithms()[r->algorithm].cuts == PLAN_CUTS_NOTHING)
            ap_die_usage("--microbatches: %s takes the batch at once",
                         plan_algorithms()[r->algorithm].name);
    }
    if (r->command && !r->command[strspn(r->command, " \t")])
        ap_die_usage("--shard-command: expected a command");
    if (r->memory && strcmp(r->memory, "device") != 0) {
        r->limits.memory_bytes = ap_size_parse(r->memory);
        if (r->limits.memory_bytes < 0)
            ap_die_usage("--memory: expected bytes, a size such as 16GiB, or device, got "
                         "%s",
                         r->memory);
    }
    r->limits.each = r->reduction == REDUCTION_EACH;
    if (!(r->limit_sec > 0))
        ap_die_usage("--time-out: expected seconds > 0");
    if (r->params.imbalance < 0 || r->params.epsilon_sec < 0)
        ap_die_usage("--imbalance and --epsilon: expected a number >= 0");
    r->params.search_all = r->search;
    r->params.n_stages = (int)r->n_stages;
    r->params.schedule = r->schedule - 1;
    if (r->jobs == 0) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        r->jobs = cores > 0 ? cores : 1;
    }
}

/* The cluster has the submeshes that are asked for, and they can make it up. */
static void check_submeshes(struct ap_arena *arena, const struct request *r,
                            const struct ap_cluster *c)
{
    int devices = (int)c->levels[0].size, whole = (int)ap_cluster_devices(c), k;
    bool *sum = AP_NEW_N(arena, whole + 1, bool);
    struct plan_submesh *mesh;
    int n = plan_submeshes(arena, PLAN_ALL_SUBMESHES, whole / devices, devices, &mesh);

    sum[0] = true;
    for (int i = 0; i < r->params.n_submeshes; i++) {
        const struct plan_submesh *m = &r->submesh[i];
        for (k = 0; k < n; k++)
            if (mesh[k].hosts == m->hosts && mesh[k].devices == m->devices)
                break;
        if (k == n)
            ap_die(AP_NO_SOLUTION,
                   "--submeshes: %dx%d is no part of %dx%d: a power of two of a host's "
                   "devices, or whole hosts",
                   m->hosts, m->devices, whole / devices, devices);
        for (int d = m->hosts * m->devices; d <= whole; d++)
            sum[d] |= sum[d - m->hosts * m->devices];
    }
    if (r->params.n_submeshes > 0 && !sum[whole])
        ap_die(AP_NO_SOLUTION, "--submeshes: %s do not add up to the %d devices",
               r->submeshes, whole);
}

/* What a graph of this kind can be asked. */
static void check_graph(const struct request *r, const struct stage_model *m)
{
    bool inference = r->params.schedule == AP_SCHEDULE_INFERENCE;
    if (m->training && inference)
        ap_die_usage("--schedule inference: the graph has a backward pass");
    if (!m->training && r->params.schedule >= 0 && !inference)
        ap_die_usage("--schedule %s: the graph has no backward pass",
                     schedules[r->schedule].name);
    if (m->training && r->params.latency)
        ap_die_usage("--latency: the graph has a backward pass");
    if (r->params.n_stages > m->blocks.n)
        ap_die(AP_NO_SOLUTION,
               "%d stages of %d blocks: at most %d stages (ap-coarsen --blocks makes "
               "more blocks)",
               r->params.n_stages, m->blocks.n, m->blocks.n);
}

/* ---- what the shard command gets ---- */

static char temporary[4096]; /* path, "" for none */

static void remove_temporary(void)
{
    if (*temporary)
        unlink(temporary);
    *temporary = '\0';
}

static void remove_and_end(int signal_number)
{
    if (*temporary)
        unlink(temporary);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* A file with the document: its own, or a temporary one if it came through a pipe. */
static const char *document_file(const struct ap_tool *tool, const struct ap_doc *doc)
{
    struct stat st;
    if (*temporary)
        return temporary;
    if (strcmp(tool->path, "-") != 0 && !stat(tool->path, &st) && S_ISREG(st.st_mode))
        return tool->path;
    const char *dir = getenv("TMPDIR");
    size_t len = (size_t)snprintf(temporary, sizeof temporary, "%s/ap-stage.XXXXXX",
                                  dir && *dir ? dir : "/tmp");
    if (len >= sizeof temporary)
        ap_die(AP_BAD_INPUT, "TMPDIR is too long");
    int fd = mkstemp(temporary);
    if (fd < 0)
        ap_die(AP_BAD_INPUT, "%s: %s", temporary, strerror(errno));
    atexit(remove_temporary);
    const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        signal(ends[i], remove_and_end);
    FILE *f = fdopen(fd, "w");
    if (!f || fwrite(doc->text, 1, doc->len, f) != doc->len || fclose(f))
        ap_die(AP_BAD_INPUT, "%s: writing failed", temporary);
    return temporary;
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
                                     const char *file)
{
    const char **args = AP_NEW_N(arena, 6, const char *);
    int n = 0;
    if (r->cluster_path) {
        args[n++] = "--cluster";
        args[n++] = r->cluster_path;
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

struct input {
    struct ap_arena *arena;
    const struct ap_tool *tool;
    const struct request *r;
    const struct ap_doc *doc; /* when it has been read */
    struct stage_model *model;
    bool has_nests;
    struct coproc_pool *pool; /* NULL: is not started yet */
    int feed;                 /* where it reads what has come; -1: nowhere */
    size_t n_fed;
};

static void start_command(struct input *in, const char *file)
{
    const struct request *r = in->r;

    in->pool = coproc_start(r->command ? r->command
                                       : default_command(in->arena, in->tool->argv[0]),
                            shard_args(in->arena, r, file), (int)r->jobs);
}

/* It is ended if we find the document wrong. */
static void start_early(struct input *in, const char *file)
{
    start_command(in, file);
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
    return shard_args(in->arena, in->r, document_file(in->tool, in->doc));
}

static void read_document(struct input *in, struct ap_tool *tool, struct ap_doc *doc)
{
    const struct ap_early ahead = {
        .graph = read_graph, .ctx = in, .came = feed_command, .keeps_graph = true};

    ap_tool_read_early(tool, in->arena, doc, &ahead);
    in->doc = doc;
    if (!in->pool || in->n_fed == 0)
        return;
    feed_command(in, doc);
    if (in->feed >= 0)
        close(in->feed);
    coproc_args(in->pool, file_args, in);
}

/* ---- the run ---- */

/* While the shard command reads the document, too. */
static void make_instance(const struct input *in, struct plan_instance *inst)
{
    struct ap_err err = {0};
    int code = AP_OK;

    if (!in->has_nests && stage_model_nests(in->arena, in->doc, in->model, &err))
        code = AP_BAD_INPUT;
    else if (stage_instance_make(in->arena, in->model, &in->r->limits, inst, &err))
        code = AP_NO_SOLUTION;
    if (code == AP_OK)
        return;
    coproc_kill(in->pool);
    ap_die(code, "%s", err.msg);
}

/* No plan that keeps its activations fits: says so if one that makes them again does. */
static void suggest_recompute(struct ap_arena *arena, const struct request *r,
                              const struct stage_oracle_params *kept,
                              const struct plan_instance *inst, struct ap_err *err)
{
    struct stage_oracle_params params = *kept;
    struct plan_params brief = r->params;
    struct plan_instance again = *inst;
    struct plan_answer answer = {.replicas = 1, .chunks = 1};
    struct ap_err why = {0}, said = {0};

    params.recompute = STAGE_RECOMPUTE_AUTO;
    brief.brief = true;
    again.oracle = stage_oracle_again(inst->oracle, &params);
    if (plan_algorithms()[r->algorithm].run(arena, &again, &brief, &answer, &why) == 0) {
        ap_err_set(&said,
                   "%s; or --recompute auto: %d stages, %lld microbatches with "
                   "recomputation fit",
                   err->msg, answer.n_stages, (long long)answer.microbatches);
        *err = said;
    }
    stage_oracle_stop(again.oracle);
}

/* Appends a plan that is not among them. */
static void add_plan(struct ap_buf *plans, const struct plan_answer *a)
{
    const struct plan_answer *known = (const void *)plans->data;
    for (size_t i = 0; i < plans->len / sizeof *a; i++)
        if (plan_same(&known[i], a))
            return;
    ap_buf_put(plans, a, sizeof *a);
}

#define DEARER 1.1 /* a plan may turn out so much dearer than it is said to be */

/* Plans for when what is made again takes no time. */
struct light {
    double heard_sec;    /* as in struct plan_params */
    double bound;        /* of all of them */
    struct ap_buf plans; /* struct plan_answer: the planner's, and what it heard of */
};

/* Plans of one number of microbatches in so much memory; 1: there is none. */
static int plan_light_one(struct ap_arena *arena, const struct request *r,
                          const struct plan_instance *free, bool is_whole,
                          struct light *light, struct ap_err *err)
{
    struct plan_answer one = {.replicas = 1, .chunks = 1};
    struct plan_params brief = r->params;
    struct ap_err why = {0};

    brief.brief = true;
    brief.heard_sec = light->heard_sec;
    int rc = plan_algorithms()[r->algorithm].run(arena, free, &brief, &one, &why);
    if (rc == 0)
        rc = plan_judge(arena, free, &one, NULL, &why);
    if (rc < 0)
        return ap_err_set(err, "%s", why.msg);
    if (rc > 0)
        return 1;
    if (is_whole) /* with less memory it says nothing of all plans */
        light->bound = fmin(light->bound, one.bound);
    add_plan(&light->plans, &one);
    for (int i = 0; i < one.n_others; i++)
        add_plan(&light->plans, &one.others[i]);
    for (int i = 0; i < one.n_heard; i++)
        add_plan(&light->plans, &one.others[one.n_others + one.n_rivals + i]);
    return 0;
}

/*
 * Plans for when what is made again takes no time, as out->others: with little of it they
 * may be the best. Some for each number of microbatches, which trade memory for time,
 * too, and some that leave memory for what is kept. The bound is of all of them. What the
 * planner hears of others is among them, so that it is no worse than they are, asked so;
 * first is its answer at the full price: slower plans cannot be better than that.
 */
static int plan_light(struct ap_arena *arena, const struct request *r,
                      const struct plan_instance *inst, const struct plan_answer *first,
                      struct plan_answer *out, struct ap_err *err)
{
    static const double shares[] = {1, 0.8, 0.6}; /* of the memory */
    struct plan_instance free = *inst;
    struct light light = {.heard_sec = DEARER * first->step_sec, .bound = INFINITY};
    int rc = 0;

    free.ask = stage_oracle_ask_light;
    free.n_microbatches = 1;
    for (int i = 0; i < inst->n_microbatches && rc >= 0; i++) {
        free.microbatches = &inst->microbatches[i];
        rc = 0;
        for (size_t k = 0; k < sizeof shares / sizeof *shares && rc == 0; k++) {
            free.memory_bytes = (int64_t)(shares[k] * (double)inst->memory_bytes);
            rc = plan_light_one(arena, r, &free, k == 0, &light, err);
        }
    }
    out->bound = light.bound;
    out->n_others = (int)(light.plans.len / sizeof *out);
    out->others = ap_arena_dup(arena, light.plans.data, light.plans.len);
    ap_buf_free(&light.plans);
    return rc < 0 ? -1 : 0;
}

static _Noreturn void give_up(struct stage_oracle *oracle, int code,
                              const struct ap_err *err)
{
    struct stage_oracle_stats stats;
    const char *refusal = stage_oracle_refusal(oracle);
    stage_oracle_stats(oracle, &stats);
    stage_oracle_stop(oracle);
    if (stats.n_requests > 0 && stats.n_refused == stats.n_requests)
        ap_die(code, "%s; the shard command refused every request: %s", err->msg,
               refusal);
    if (code == AP_NO_SOLUTION && stats.n_refused > 0)
        ap_die(code, "%s; the shard command refused %lld of %lld requests, one with: %s",
               err->msg, (long long)stats.n_refused, (long long)stats.n_requests,
               refusal);
    ap_die(code, "%s", err->msg);
}

static const char *stats_text(struct ap_arena *arena, const struct stage_model *m,
                              const struct plan_answer *answer,
                              const struct stage_oracle_stats *s)
{
    return ap_arena_printf(
        arena,
        ",\"blocks\":%d,\"runs\":%d,\"distinct\":%d,\"stages\":%d,\"microbatches\":%lld,"
        "\"plans\":%lld,\"asked\":%lld,\"fronts\":%lld,\"requests\":%lld,\"refused\":%"
        "lld,"
        "\"wait_sec\":%.6f",
        m->blocks.n, m->blocks.n * (m->blocks.n + 1) / 2, s->n_distinct, answer->n_stages,
        (long long)answer->microbatches, (long long)answer->n_plans,
        (long long)s->n_asked, (long long)s->n_fronts, (long long)s->n_requests,
        (long long)s->n_refused, s->wait_sec);
}

int main(int argc, char **argv)
{
    struct request req = {
        .limit_sec = 600,
        .params = {.epsilon_sec = 1e-6, .imbalance = 0.08, .n_kept = 64}};
    struct ap_tool tool = {.name = "ap-stage",
                           .summary = "cut blocks into pipeline stages and place them",
                           .operand = "[FILE]"};
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct ap_doc doc;
    struct stage_model model;
    struct plan_instance inst;
    struct plan_answer answer = {.replicas = 1, .chunks = 1}, light = answer;
    struct stage_oracle_stats stats;
    struct stage_result result;
    struct input in = {
        .arena = &arena, .tool = &tool, .r = &req, .model = &model, .feed = -1};

    read_options(&tool, &req, argc, argv);
    check_options(&req);
    read_document(&in, &tool, &doc);
    stage_model_read(&arena, &doc, req.cluster_path, &model);
    check_graph(&req, &model);
    check_submeshes(&arena, &req, &model.cluster);
    early = NULL;
    if (!in.pool)
        start_command(&in, document_file(&tool, &doc));
    make_instance(&in, &inst);

    const struct plan_algorithm *algo = &plan_algorithms()[req.algorithm];
    const struct stage_oracle_params params = {
        .limit_sec = req.limit_sec, .recompute = (enum stage_recompute)req.recompute};
    struct stage_oracle *oracle =
        stage_oracle_start(&arena, &model, &inst, &params, in.pool);
    inst.ask = stage_oracle_ask;
    inst.ahead = stage_oracle_ahead;
    inst.least = stage_oracle_least;
    inst.oracle = oracle;
    bool select = params.recompute == STAGE_RECOMPUTE_SELECTED && !inst.inference;
    struct plan_params first = req.params;
    first.heard_sec = select ? INFINITY : 0; /* they may make less again than now */
    int rc = algo->run(&arena, &inst, &first, &answer, &err);
    if (rc < 0 && !stage_oracle_broken(oracle)) /* what it was asked is not its kind */
        give_up(oracle, AP_USAGE, &err);
    if (rc == 0)
        rc = plan_judge(&arena, &inst, &answer, NULL, &err);
    if (rc == 0 && select)
        rc = plan_light(&arena, &req, &inst, &answer, &light, &err);
    struct ap_stages stages = {.algorithm = algo->name,
                               .shard_command =
                                   req.command ? req.command : "ap-shard --serve",
                               .each = req.limits.each,
                               .throughput = inst.inference && !req.params.latency};
    const struct stage_replan again = {algo->run, &req.params};
    if (rc == 0)
        rc = stage_result_make(&arena, &model, &inst, oracle, select ? &light : NULL,
                               algo->replans && !select ? &again : NULL, &answer, &stages,
                               &result, &err);
    if (rc > 0 && params.recompute == STAGE_RECOMPUTE_NONE)
        suggest_recompute(&arena, &req, &params, &inst, &err);
    if (rc != 0)
        give_up(oracle, rc > 0 ? AP_NO_SOLUTION : AP_BAD_INPUT, &err);
    stage_oracle_stats(oracle, &stats);
    remove_temporary();
    signal(SIGPIPE, SIG_DFL); /* ignored for the shard command only */

    /* what was derived from an older plan goes */
    struct ap_new_section out[] = {
        {.name = "cluster"},  {.name = "stages", .json = result.json},
        {.name = "sharding"}, {.name = "cost"},
        {.name = "program"},  {.name = "pipeline"}};
    ap_cluster_to_json(&model.cluster, &out[0].json);
    ap_tool_write(&tool, &doc, out, (int)(sizeof out / sizeof *out), result.found);
    stage_oracle_stop(oracle); /* the shard command takes its time to end */
    return ap_tool_finish(&tool, stats_text(&arena, &model, &answer, &stats));
}
