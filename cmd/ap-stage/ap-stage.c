/*
 * ap-stage: cut blocks into pipeline stages, and a cluster into their submeshes. Options
 * and defaults first, then the run: read the document, start what prices stages, plan,
 * and write the section with the best plan's price.
 */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "grid/grid.h"
#include "planning.h"
#include "tool/passes.h"

static const struct ap_choice schedules[] = {
    {"auto", "the best that the algorithm has"},
    {"gpipe", "all forwards, then all backwards"},
    {"1f1b", "one forward, one backward"},
    {"interleaved-1f1b", "1f1b with several stages on a device"},
    {"looped-bfs", "gpipe with several stages on a device, one after the other"},
    {"zb-h1", "1f1b with gradients of weights later, in the memory of 1f1b"},
    {"zb-h2", "the same with forwards ahead, in twice the memory"},
    {"zb-v", "zero bubble, two stages on a device, in the memory of 1f1b"},
    {"v-half", "the same in half the memory"},
    {"v-min", "the same in a third of the memory"},
    {"dualpipe-v", "two stages on a device, both directions at once"},
    {"inference", "forwards only, for graphs without a backward pass"},
    {"eager-1f1b", "1f1b with forwards ahead, while values are sent"},
    {NULL, NULL},
};
static const struct ap_choice reductions[] = {
    {"exact", "as of the whole batch"},
    {"each", "per microbatch"},
    {NULL, NULL},
};
enum { REDUCTION_EACH = 1 };
/* in the order of enum ap_resharding */
static const struct ap_choice reshardings[] = {
    {"auto", "the quickest by price"},
    {"send-recv", "every receiver is sent its tile"},
    {"local-allgather", "each is sent a part of a tile, and they gather it"},
    {"broadcast", "the first is sent a tile and passes it on"},
    {NULL, NULL},
};
static const struct ap_choice recomputes[] = {
    {"auto", "per stage, as memory demands"},
    {"none", "keep all activations"},
    {"blocks", "every stage recomputes its blocks, one at a time"},
    {"selected", "the operators that save most memory per second, as memory demands"},
    {NULL, NULL},
};
static const struct ap_choice searches[] = {
    {"first", "stop at the first number of stages that fits memory"},
    {"all", "try all numbers of stages"},
    {NULL, NULL},
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
    {"start", " auto "},
    {"simple", " auto "},
    {"shard-command",
     " auto alpa rhino rannc equal-layer equal-operator intra-only inter-only pp-dp none "
     "exhaustive "},
};

/* Options of a search for stages, which --plan is not; --grid has no others either. */
static const char *const searched[] = {
    "algorithm", "schedule",  "stages",  "submesh-space", "submeshes",  "start",
    "search",    "imbalance", "epsilon", "kept",          "work-limit", "simple"};
static const char *const priced[] = {"plan", "microbatches",  "memory",  "recompute",
                                     "jobs", "shard-command", "latency", "time-out"};

/* Options that --for has no use for. */
static const char *const not_for[] = {
    "algorithm",  "from",    "plan",          "start",   "submesh-space",
    "submeshes",  "search",  "imbalance",     "epsilon", "kept",
    "work-limit", "latency", "shard-command", "simple"};

/* ---- options ---- */

static void check_for(struct ap_tool *tool, struct stage_options *r)
{
    for (size_t i = 0; i < sizeof not_for / sizeof *not_for; i++)
        if (ap_tool_given(tool, not_for[i]))
            ap_die_usage("--%s: not with --for, which searches lines", not_for[i]);
    r->trainer = ap_trainers[r->for_row];
}

static void read_options(struct ap_tool *tool, struct stage_options *r, int argc,
                         char **argv)
{
    struct ap_choice trainers[AP_N_TRAINERS + 1] = {{NULL, NULL}};
    for (int i = 0; i < AP_N_TRAINERS; i++)
        trainers[i] = (struct ap_choice){ap_trainers[i]->name, ap_trainers[i]->title};
    const struct ap_opt opts[] = {
        {"algorithm", AP_OPT_CHOICE, &r->algorithm, "NAME",
         "planner; --algorithm=help lists them",
         (const struct ap_choice *)plan_algorithms(), sizeof(struct plan_algorithm), 0, 0,
         NULL},
        {"grid", AP_OPT_STR, &r->grid, "LINE",
         "build this plan instead of searching: tp=8,pp=4,sp,mbs=1", NULL, 0, 0, 0, NULL},
        {"for", AP_OPT_CHOICE, &r->for_row, "TRAINER",
         "the best plan that a trainer can run; beside --grid: that line, as it runs it",
         trainers, 0, 0, 0, NULL},
        {"from", AP_OPT_STR, &r->from, "TRAINER:FILE",
         "build the plan of a trainer's flags or file: megatron:train.sh", NULL, 0, 0, 0,
         "more"},
        {"plan", AP_OPT_STR, &r->plan_path, "FILE",
         "take the stages from a file's plan instead of searching", NULL, 0, 0, 0,
         "more"},
        {"start", AP_OPT_STR, &r->start_path, "FILE",
         "auto: start from a file's plan: the answer is never slower", NULL, 0, 0, 0,
         "more"},
        {"cluster", AP_OPT_CLUSTER, &r->cluster_path, "FILE",
         "file, or a name of --cluster help (default: the document's)", NULL, 0, 0, 0,
         NULL},
        {"f32-matmul", AP_OPT_CHOICE, &r->f32_matmul, "TYPE",
         "precision of f32 contractions", ap_f32_matmul_modes,
         sizeof *ap_f32_matmul_modes, 0, 0, "more"},
        {"microbatches", AP_OPT_STR, &r->microbatches, "N",
         "number of microbatches, or auto: several are tried (auto)", NULL, 0, 0, 0,
         NULL},
        {"microbatch", AP_OPT_CHOICE, &r->reduction, "MODE",
         "what reductions over the batch mean", reductions, sizeof *reductions, 0, 0,
         "more"},
        {"resharding", AP_OPT_CHOICE, &r->resharding, "WAY",
         "how stages send what several devices need", reshardings, sizeof *reshardings, 0,
         0, "more"},
        {"schedule", AP_OPT_CHOICE, &r->schedule, "NAME", "pipeline schedule", schedules,
         sizeof *schedules, 0, 0, "more"},
        {"stages", AP_OPT_INT, &r->n_stages, "N", "number of stages (any)", NULL, 0, 1,
         INT32_MAX, NULL},
        {"submesh-space", AP_OPT_CHOICE, &r->params.submesh_space, "NAME",
         "submeshes that a stage may have", plan_submesh_spaces,
         sizeof *plan_submesh_spaces, 0, 0, "alpa"},
        {"submeshes", AP_OPT_STR, &r->submeshes, "LIST",
         "allow only these submeshes, such as 1x4,2x8", NULL, 0, 0, 0, "more"},
        {"memory", AP_OPT_STR, &r->memory, "SIZE",
         "limit per device: 16GiB, bytes, or device (device)", NULL, 0, 0, 0, NULL},
        {"recompute", AP_OPT_CHOICE, &r->recompute, "WHAT",
         "which activations are recomputed", recomputes, sizeof *recomputes, 0, 0, NULL},
        {"shard-command", AP_OPT_STR, &r->command, "CMD",
         "program that prices stages (ap-shard --serve)", NULL, 0, 0, 0, "more"},
        {"jobs", AP_OPT_INT, &r->jobs, "N",
         "processes of the shard command (default: the cores)", NULL, 0, 1, 1024, "more"},
        {"time-out", AP_OPT_NUM, &r->limit_sec, "SEC",
         "seconds to wait for an answer of the shard command (600)", NULL, 0, 0, 0,
         "more"},
        {"simple", AP_OPT_NUM, &r->simple, "PERCENT",
         "auto: take the simplest plan that is slower by so much at most (0)", NULL, 0, 0,
         0, "more"},
        {"search", AP_OPT_CHOICE, &r->search, "NAME", "rannc: when to stop", searches,
         sizeof *searches, 0, 0, "rannc"},
        {"imbalance", AP_OPT_NUM, &r->params.imbalance, "X",
         "rhino: largest relative deviation of a stage's FLOPs (0.08)", NULL, 0, 0, 0,
         "rhino"},
        {"epsilon", AP_OPT_NUM, &r->params.epsilon_sec, "SEC",
         "alpa: gap between the slowest stages that are tried (1e-6)", NULL, 0, 0, 0,
         "alpa"},
        {"kept", AP_OPT_INT, &r->params.n_kept, "N",
         "auto: number of plans to simulate (64)", NULL, 0, 1, 100000, "more"},
        {"latency", AP_OPT_FLAG, &r->params.latency, NULL,
         "inference: minimize the latency, not the slowest stage", NULL, 0, 0, 0, "more"},
        {"work-limit", AP_OPT_INT, &r->params.work_limit, "N",
         "stop the search after N units of work", NULL, 0, 1, INT64_MAX, "more"},
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
    const bool line = r->grid || r->from;
    for (size_t i = 0; line && i < sizeof priced / sizeof *priced; i++)
        if (ap_tool_given(tool, priced[i]))
            ap_die_usage("--%s: %s says the whole plan", priced[i],
                         r->from ? "--from" : "--grid");
    for (size_t i = 0; (line || r->plan_path) && i < sizeof searched / sizeof *searched;
         i++)
        if (ap_tool_given(tool, searched[i]))
            ap_die_usage("--%s: %s", searched[i],
                         r->from   ? "--from says the whole plan"
                         : r->grid ? "--grid says the whole plan"
                                   : "--plan says the stages");
    if (r->for_row >= 0)
        check_for(tool, r);
    if (r->submeshes && ap_tool_given(tool, "submesh-space"))
        ap_die_usage("only one of --submesh-space and --submeshes");
    if (!strcmp(plan_algorithms()[r->algorithm].name, "rannc") &&
        !ap_tool_given(tool, "submesh-space")) /* any number of replicas */
        r->params.submesh_space = PLAN_ANY_SUBMESHES;
    if (plan_algorithms()[r->algorithm].cuts != PLAN_CUTS_STAGES && r->n_stages > 1)
        ap_die_usage("--stages: %s has one stage", plan_algorithms()[r->algorithm].name);
    tool->opts = NULL; /* they end here */
}

/* "1x4,2x8" */
static void read_submeshes(struct stage_options *r)
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
        r->submesh[r->params.n_submeshes++] =
            (struct plan_submesh){(int)n[0], (int)n[1], 0};
    }
}

static void check_options(struct stage_options *r)
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
    if (r->params.imbalance < 0 || r->params.epsilon_sec < 0 || !(r->simple >= 0))
        ap_die_usage("--imbalance, --epsilon and --simple: expected a number >= 0");
    r->params.search_all = r->search;
    r->params.n_stages = (int)r->n_stages;
    r->params.schedule = r->schedule - 1;
    if (r->jobs == 0) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        r->jobs = cores > 0 ? cores : 1;
    }
}

/* The hosts of one kind have the submeshes that are asked for, and these can make them
 * up. */
static void check_submeshes(struct ap_arena *arena, const struct stage_options *r,
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
            ap_die(
                AP_NO_SOLUTION,
                "--submeshes: %dx%d is not a part of %dx%d: a power of two of a host's "
                "devices, or whole hosts",
                m->hosts, m->devices, whole / devices, devices);
        for (int d = m->hosts * m->devices; d <= whole; d++)
            sum[d] |= sum[d - m->hosts * m->devices];
    }
    if (r->params.n_submeshes > 0 && !sum[whole])
        ap_die(AP_NO_SOLUTION, "--submeshes: %s do not add up to the %d devices",
               r->submeshes, whole);
}

/* What a cluster of several kinds of devices can be asked. */
static void check_kinds(const struct stage_options *r, const struct stage_model *m)
{
    const struct plan_algorithm *algo = &plan_algorithms()[r->algorithm], *a = NULL;
    struct ap_buf kinds = {0}, others = {0};

    if (m->n_kinds == 1 || algo->kinds)
        return;
    ap_cluster_put_kinds(&m->cluster, &kinds);
    for (a = plan_algorithms(); a->name; a++)
        if (a->kinds)
            ap_buf_printf(&others, "%s%s", others.len ? ", " : "", a->name);
    ap_die_usage(
        "--algorithm %s plans for one kind of device, and cluster %s has several "
        "(%s); %s place stages on kinds",
        algo->name, m->cluster.name, kinds.data, others.data);
}

/* What a graph of this kind can be asked. */
static void check_graph(const struct stage_options *r, const struct stage_model *m)
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

/* ---- the run ---- */

/* The plan of --plan or --start, and its number of microbatches where none is asked for.
 */
static void read_given(struct ap_arena *arena, struct stage_options *r)
{
    const char *path = r->plan_path ? r->plan_path : r->start_path;
    struct ap_err err = {0};

    if (!path)
        return;
    if (plan_outline_read(arena, path, &r->given, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    r->params.given = &r->given;
    if (r->microbatches)
        r->given.microbatches = r->limits.microbatches;
    else if (r->plan_path)
        r->limits.microbatches = r->given.microbatches;
    else
        r->limits.also = r->given.microbatches;
}

/* While the processes that price stages prepare. given: NULL, or gets its submeshes. */
static void make_instance(const struct input *in, struct coproc_pool *const *pool,
                          struct plan_outline *given, struct plan_instance *inst)
{
    struct plan_params params = in->r->params;
    struct ap_err err = {0};

    if (in->r->plan_path) /* a file may have any */
        params.submesh_space = PLAN_ANY_SUBMESHES;
    if (stage_instance_make(in->arena, in->model, &in->r->limits, inst, &err) == 0 &&
        (!params.given || plan_outline_fit(in->arena, inst, &params, given, &err) == 0))
        return;
    for (int kind = 0; kind < in->model->n_kinds && pool; kind++)
        coproc_kill(pool[kind]);
    ap_die(AP_NO_SOLUTION, "%s", err.msg);
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

/* Adds the sections, of a plan that ap-rewrite can order; what was derived from an older
 * plan goes. */
static void write_stages(struct ap_tool *tool, const struct ap_doc *doc,
                         const struct stage_model *model,
                         const struct stage_result *result)
{
    struct ap_new_section out[] = {
        {.name = "cluster"},  {.name = "stages", .json = result->json},
        {.name = "sharding"}, {.name = "cost"},
        {.name = "program"},  {.name = "pipeline"},
        {.name = "placement"}};
    struct ap_err err = {0};

    if (stage_result_check(model, &result->json, &err))
        ap_die(AP_NO_SOLUTION, "%s: %s", doc->file, err.msg);
    ap_cluster_to_json(&model->cluster, &out[0].json);
    ap_tool_write(tool, doc, out, (int)(sizeof out / sizeof *out), result->found);
}

/* Whether a line's microbatches are --microbatch each: trainers compute what reduces over
 * the batch, such as the experts' losses, of each. */
static bool lines_reduce_each(struct ap_arena *arena, const struct stage_model *m)
{
    struct ap_stage_microbatch micro = {.whole = -1};
    struct ap_err ignored = {0};
    int64_t n = 2;

    while (n < m->batch && m->batch % n)
        n++;
    return ap_stage_microbatch_axis(arena, &m->graph, &m->nests, n, &micro, &ignored) ==
               0 &&
           micro.whole >= 0;
}

/* The line of --grid with all that the trainer of --for does by itself. */
static void settle_line(struct ap_arena *arena, const struct stage_model *m,
                        const struct stage_options *r, struct ap_line *line)
{
    struct ap_line_facts facts;
    struct ap_err err = {0};

    ap_line_facts_find(arena, &m->graph, &m->nests, &facts);
    facts.world = ap_cluster_devices(&m->cluster);
    if (ap_trainer_check(r->trainer, line, &facts, &err) ||
        ap_trainer_settle(r->trainer, &facts, line, &err))
        ap_die(AP_NO_SOLUTION, "--grid %s: %s", r->grid, err.msg);
}

/* The plan of --grid or --from, without a search. */
static int run_grid(struct ap_arena *arena, struct ap_tool *tool,
                    const struct ap_doc *doc, const struct stage_options *r,
                    const struct stage_model *model)
{
    struct ap_line line;
    struct ap_stages stages = {.each = r->limits.each,
                               .resharding = (enum ap_resharding)r->resharding};
    struct stage_result result;
    struct ap_err err = {0};

    if (!r->from && ap_line_read(arena, r->grid, &line, &err))
        ap_die_usage("--grid: %s", err.msg);
    if (model->n_kinds > 1 || !model->training)
        ap_die_usage("--%s: %s", r->from ? "from" : "grid",
                     model->training ? "a cluster of several kinds"
                                     : "the graph has no backward pass");
    if (r->from)
        grid_from(arena, model, r->from, r->grid, &line);
    else if (r->trainer)
        settle_line(arena, model, r, &line);
    if (grid_plan(arena, model, &line, &stages, &result, &err))
        ap_die(AP_NO_SOLUTION, "--%s %s: %s", r->from ? "from:" : "grid",
               r->from ? ap_line_text(arena, &line) : r->grid, err.msg);
    write_stages(tool, doc, model, &result);
    return ap_tool_finish(
        tool, ap_arena_printf(arena, "%s,\"stages\":%d", result.found, stages.n));
}

/* No line of the space fits, or there is none. */
_Noreturn static void refuse_lines(struct ap_arena *arena, const struct grid_want *want,
                                   const struct grid_found *found)
{
    const struct ap_trainer *trainer = want->space->trainer;
    const char *name = want->space->name, *title = trainer ? trainer->title : name;
    const char *host =
        isfinite(found->host_bytes)
            ? ap_arena_printf(
                  arena,
                  "; with values on the host (offload) a device needs %.0f bytes there, "
                  "and has %lld (memory_bytes of the cluster's host_link)",
                  found->host_bytes,
                  (long long)want->inst->cluster->host_link.memory_bytes)
            : "";

    if (found->leanest)
        ap_die(AP_NO_SOLUTION,
               "%s: nothing fits in %lld bytes of memory: of %lld lines the leanest, %s, "
               "needs %.0f%s",
               name, (long long)want->inst->memory_bytes, (long long)found->n.legal,
               ap_line_text(arena, found->leanest), found->leanest_bytes, host);
    if (*host)
        ap_die(AP_NO_SOLUTION, "%s: nothing fits%s", name, host);
    ap_die(AP_NO_SOLUTION, "%s: %s of this model on this cluster%s%s", name,
           trainer ? ap_arena_printf(arena, "%s can run no line", title)
                   : "there is no line",
           *found->why_not ? "; a reason: " : "", found->why_not);
}

/* The best line of a space: of --algorithm, or of --for. */
static int run_grids(struct ap_arena *arena, struct ap_tool *tool,
                     const struct ap_doc *doc, const struct input *in)
{
    const struct stage_options *r = in->r;
    const char *name =
        r->trainer ? r->trainer->name : plan_algorithms()[r->algorithm].name;
    const struct grid_space *space = grid_spaces;
    struct grid_space own;
    struct ap_stages stages,
        like = {.algorithm = r->trainer ? ap_arena_printf(arena, "for %s", name) : name,
                .stopped = r->trainer ? "proven" : "rule",
                .for_trainer = r->trainer ? name : NULL,
                .each = r->limits.each,
                .resharding = (enum ap_resharding)r->resharding,
                .limit_bytes = r->limits.memory_bytes};
    struct plan_instance inst;
    struct grid_found found;
    struct stage_result result;
    struct ap_err err = {0};

    if (r->trainer) {
        own = grid_space_of(r->trainer);
        space = &own;
    }
    while (!r->trainer && strcmp(space->name, name) != 0)
        space++;
    make_instance(in, NULL, NULL, &inst);
    const struct grid_want want = planning_grids(r, &inst, space);
    if (!in->model->training || in->model->n_kinds > 1)
        ap_die_usage("%s %s: %s", r->trainer ? "--for" : "--algorithm", name,
                     in->model->training ? "a cluster of several kinds"
                                         : "the graph has no backward pass");
    if (grid_search(arena, in->model, &want, &found, &err))
        ap_die(AP_NO_SOLUTION, "%s: %s", name, err.msg);
    if (!found.found)
        refuse_lines(arena, &want, &found);
    const char *line = ap_line_text(arena, &found.line);
    if (r->trainer) {
        like.lines = found.n;
        like.lower_bound_sec = INFINITY; /* found.least_sec */
    }
    if (grid_take(arena, in->model, &found, &like, &stages, &result, &err))
        ap_die(AP_NO_SOLUTION, "%s: %s: %s", name, line, err.msg);
    if (!r->trainer)
        grid_put_rows(arena, &found, &result.json);
    write_stages(tool, doc, in->model, &result);
    return ap_tool_finish(
        tool, ap_arena_printf(arena, "%s,\"line\":\"%s\",\"lines\":%lld,\"priced\":%lld",
                              result.found, line, (long long)found.n.legal,
                              (long long)found.n.priced));
}

int main(int argc, char **argv)
{
    struct stage_options req = {
        .for_row = -1,
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
    struct plan_answer answer = {.replicas = 1, .chunks = 1};
    struct planning planning;
    struct ap_stages stages;
    struct stage_oracle_stats stats;
    struct stage_result result;
    struct input in = {.arena = &arena, .tool = &tool, .r = &req, .model = &model};

    read_options(&tool, &req, argc, argv);
    check_options(&req);
    read_given(&arena, &req);
    struct ap_work work = {.progress = ap_tool_progress()};
    req.params.work = &work;
    stage_input_read(&in, &tool, &doc);
    stage_model_read(&arena, &doc, req.cluster_path, &model);
    ap_tool_set_f32_matmul(&model.cluster, req.f32_matmul);
    const bool line = req.grid || req.from;
    req.limits.each |= (line || req.trainer) && lines_reduce_each(&arena, &model);
    ap_passes_warn(&doc, &model.graph, &model.cluster, !line);
    if (line)
        return run_grid(&arena, &tool, &doc, &req, &model);
    check_graph(&req, &model);
    check_kinds(&req, &model);
    for (int kind = 0; kind < model.n_kinds; kind++)
        check_submeshes(&arena, &req, &model.kind[kind]);
    if (req.trainer || !plan_algorithms()[req.algorithm].run)
        return run_grids(&arena, &tool, &doc, &in);
    struct coproc_pool *const *pool = stage_input_commands(&in);
    make_instance(&in, pool, &req.given, &inst);

    planning_start(&arena, &in, pool, &inst, &planning);
    int code = planning_run(&arena, &planning, &inst, &answer, &stages, &result, &err);
    if (code != AP_OK)
        planning_give_up(&arena, &planning, &inst, code, &err);
    stage_oracle_stats(planning.oracle, &stats);
    stage_input_end();
    signal(SIGPIPE, SIG_DFL); /* ignored for the shard command only */

    write_stages(&tool, &doc, &model, &result);
    stage_oracle_stop(planning.oracle); /* the shard command takes its time to end */
    return ap_tool_finish(&tool,
                          ap_arena_printf(&arena, "%s%s", result.found,
                                          stats_text(&arena, &model, &answer, &stats)));
}
