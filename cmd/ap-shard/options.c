/*
 * The options of ap-shard: their table, their defaults, and which of them go together.
 * Each algorithm says in its row (job.c) what it takes; options that it would ignore are
 * refused.
 */
#include "memory/memory.h"
#include "problem/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tofu/tofu.h"
#include "tool/tool.h"

static const struct ap_choice cost_models[] = {
    {"default", "seconds: roofline and alpha-beta collectives"},
    {"alpa", "Alpa's units and constants, compute free"},
    {"bytes", "bytes moved, compute free"},
    {NULL, NULL},
};
static const struct ap_choice spaces[] = {
    {"default", "all factors over all axes"},
    {"alpa", "what Alpa lists, converted as Alpa does"},
    {NULL, NULL},
};
static const struct ap_choice pin_modes[] = {
    {"use", "imported shardings are kept"},
    {"ignore", "imported shardings are dropped"},
    {NULL, NULL},
};

enum { MICROBATCH_EXACT, MICROBATCH_EACH };
static const struct ap_choice microbatch_modes[] = {
    {"exact", "as of the whole batch"},
    {"each", "per microbatch (prices of --serve only)"},
    {NULL, NULL},
};

static void check_memory(const struct shard_request *req)
{
    if (!req->memory_text)
        return;
    if (req->serve)
        ap_die_usage("--serve: requests have their own limit, --memory cannot be "
                     "combined with it");
    if (req->space != SHARD_SPACE_DEFAULT)
        ap_die_usage("--memory: plans of Alpa's space are not searched within a limit");
    if (strcmp(req->memory_text, "device") != 0 && mem_size_parse(req->memory_text) < 0)
        ap_die_usage("--memory: expected bytes, a size such as 16GiB, or device, got %s",
                     req->memory_text);
}

static void check_microbatches(const struct shard_request *req)
{
    if (req->microbatch == MICROBATCH_EACH && !req->serve)
        ap_die_usage("--microbatch each is supported with --serve only");
    if (req->microbatches <= 1)
        return;
    if (req->serve)
        ap_die_usage("--serve: requests have their own number, --microbatches cannot be "
                     "combined with it");
}

/* ---- what goes with what ---- */

static const struct {
    const char *option;
    enum shard_takes takes;
} only_for[] = {
    {"no-padding", SHARD_TAKES_PADDING},   {"solver", SHARD_TAKES_SOLVER},
    {"work-limit", SHARD_TAKES_SOLVER},    {"prove", SHARD_TAKES_FOLDING},
    {"no-families", SHARD_TAKES_FAMILIES}, {"rounds", SHARD_TAKES_FOLDING},
    {"unfold", SHARD_TAKES_FOLDING},       {"batch-axis", SHARD_TAKES_SPACE},
    {"start", SHARD_TAKES_START},          {"emit-problem", SHARD_TAKES_EMIT},
    {"solution", SHARD_TAKES_EMIT},        {"tofu-space", SHARD_TAKES_TOFU},
    {"tofu-ties", SHARD_TAKES_TOFU},       {"level", SHARD_TAKES_RHINO},
    {"critical", SHARD_TAKES_RHINO},       {"explain", SHARD_TAKES_RHINO},
};

/* "ilp, tap and rhino": the algorithms that take such an option. */
static const char *takers(struct ap_arena *arena, enum shard_takes takes)
{
    const struct shard_algorithm *rows = shard_algorithms();
    const char *text = "";
    int left = 0;

    for (int i = 0; rows[i].name; i++)
        left += (rows[i].takes & takes) != 0;
    for (int i = 0; rows[i].name; i++)
        if (rows[i].takes & takes)
            text = ap_arena_printf(arena, "%s%s%s", text, rows[i].name,
                                   --left > 1  ? ", "
                                   : left == 1 ? " and "
                                               : "");
    return text;
}

static void check_algorithm(struct ap_arena *arena, const struct ap_tool *tool,
                            const struct shard_request *req)
{
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];

    for (size_t i = 0; i < sizeof only_for / sizeof *only_for; i++) {
        if (!ap_tool_given(tool, only_for[i].option))
            continue;
        if (!(row->takes & only_for[i].takes))
            ap_die_usage("--%s is for %s, not for %s", only_for[i].option,
                         takers(arena, only_for[i].takes), row->name);
        if (req->plan_path)
            ap_die_usage("--plan is a complete plan: it cannot be combined with --%s",
                         only_for[i].option);
    }
    if (req->space != SHARD_SPACE_DEFAULT && !(row->takes & SHARD_TAKES_SPACE))
        ap_die_usage("--space alpa is for %s, not for %s",
                     takers(arena, SHARD_TAKES_SPACE), row->name);
}

/* Numbers of --alpha or --beta, one per axis of devices, separated by commas. */
static void read_units(const char *option, const char *text, double *units)
{
    const char *p = text;

    for (int a = 0; p; a++) {
        char *end;
        double v = strtod(p, &end);
        if (a == AP_MAX_AXES || end == p || !(v >= 0 && v <= 1e9) ||
            (*end && *end != ','))
            ap_die_usage("--%s: expected numbers >= 0, one per axis and separated by "
                         "commas, got %s",
                         option, text);
        units[a] = v;
        p = *end ? end + 1 : NULL;
    }
}

static void read_alpa(const struct ap_tool *tool, struct shard_request *req)
{
    static const char *const of_space[] = {"batch-axis", "forbid", "mixed-mesh",
                                           "reduce-scatter"};

    for (size_t i = 0; i < sizeof of_space / sizeof *of_space; i++)
        if (req->space == SHARD_SPACE_DEFAULT && ap_tool_given(tool, of_space[i]))
            ap_die_usage("--%s is for --space alpa", of_space[i]);
    if ((req->alpha_text || req->beta_text) && req->cost_model != AP_COST_ALPA)
        ap_die_usage("--%s is for --cost-model alpa", req->alpha_text ? "alpha" : "beta");
    if (req->alpha_text)
        read_units("alpha", req->alpha_text, req->alpa.alpha);
    if (req->beta_text)
        read_units("beta", req->beta_text, req->alpa.beta);
    for (int i = 0; i < req->forbid.n; i++) {
        if (!strcmp(req->forbid.v[i], "all-gather"))
            req->alpa.no_all_gather = ~0u;
        else if (!strcmp(req->forbid.v[i], "all-to-all"))
            req->alpa.no_all_to_all = ~0u;
        else
            ap_die_usage("--forbid: expected all-gather or all-to-all, got %s",
                         req->forbid.v[i]);
    }
}

static void check_space(const struct shard_request *req)
{
    if (req->space == SHARD_SPACE_DEFAULT)
        return;
    if (req->plan_path || req->start_path)
        ap_die_usage("--space alpa does not go with --plan or --start");
}

static void check_mesh(const struct shard_request *req)
{
    bool is_auto = req->mesh_text && !strcmp(req->mesh_text, "auto");

    if (req->serve &&
        (req->mesh_text || req->plan_path || req->start_path || req->pins.n > 0))
        ap_die_usage("--serve: requests have their own mesh; it cannot be combined with "
                     "--mesh, --plan, --start or --pin");
    if (req->serve && req->overlap)
        ap_die_usage("--serve: its prices are serial, without --overlap");
    if (!req->serve && !req->mesh_text && !req->plan_path && !req->start_path)
        ap_die_usage("--mesh is missing: which logical mesh, for example --mesh 2x4");
    if (req->plan_path && (req->start_path || req->algorithm != 0 || req->pins.n > 0))
        ap_die_usage("--plan is a complete plan: it cannot be combined with --start, "
                     "--algorithm or --pin");
    if (is_auto && (req->plan_path || req->start_path))
        ap_die_usage("--mesh auto does not go with --plan or --start");
    if (req->explain_path && (is_auto || req->serve))
        ap_die_usage("--explain does not go with --mesh auto or --serve");
    if (req->emit_path && (req->serve || req->plan_path || is_auto))
        ap_die_usage("--emit-problem is for a search on one mesh, without --plan, "
                     "--serve and --mesh auto");
    if (req->solution_path &&
        (req->serve || req->plan_path || req->start_path || is_auto || req->emit_path))
        ap_die_usage("--solution is a complete plan of one mesh: it cannot be combined "
                     "with --plan, --start, --emit-problem, --serve and --mesh auto");
}

static void check_request(struct ap_arena *arena, const struct ap_tool *tool,
                          struct shard_request *req)
{
    const char *level = shard_levels[req->level_row].name;

    ap_tool_check_file(tool, "emit-problem", req->emit_path);
    ap_tool_check_file(tool, "explain", req->explain_path);
    check_mesh(req);
    check_algorithm(arena, tool, req);
    read_alpa(tool, req);
    check_space(req);
    check_memory(req);
    check_microbatches(req);
    if (req->params.critical != 0 && level[strlen(level) - 1] > '2')
        ap_die_usage("--critical: level %s has no segments between critical nodes (0 to "
                     "2 have)",
                     level);
    req->params.emit = req->emit_path != NULL;
    req->params.level = level[strlen(level) - 1] - '0';
    req->params.explain = req->explain_path != NULL;
}

void shard_read_options(struct ap_arena *arena, struct ap_tool *tool,
                        struct shard_request *req, int argc, char **argv)
{
    *tool = (struct ap_tool){.name = "ap-shard",
                             .summary = "choose how every tensor is split over a mesh",
                             .operand = "[FILE]"};
    *req = (struct shard_request){.max_axes = 2,
                                  .alpa = ap_alpa_defaults(),
                                  .params = {.rounds = 12, .unfold = 120000}};
    const struct ap_opt opts[] = {
        {"mesh", AP_OPT_STR, &req->mesh_text, "MESH",
         "logical mesh: 8, 2x4, dp=2,tp=4, or auto for the best", NULL, 0, 0, 0, NULL},
        {"algorithm", AP_OPT_CHOICE, &req->algorithm, "NAME",
         "planner; --algorithm=help lists them",
         (const struct ap_choice *)shard_algorithms(), sizeof(struct shard_algorithm), 0,
         0, NULL},
        {"solver", AP_OPT_CHOICE, &req->params.solver, "NAME",
         "solver of ilp and of rhino's cones", (const struct ap_choice *)shard_solvers,
         sizeof(struct shard_solver), 0, 0, "more"},
        {"cluster", AP_OPT_CLUSTER, &req->cluster_path, "FILE",
         "file, or a name of --cluster help (default: the document's, else A100s)", NULL,
         0, 0, 0, NULL},
        {"cost-model", AP_OPT_CHOICE, &req->cost_model, "NAME", "cost model", cost_models,
         sizeof *cost_models, 0, 0, "more"},
        {"space", AP_OPT_CHOICE, &req->space, "NAME", "strategies that ilp may choose",
         spaces, sizeof *spaces, 0, 0, "alpa"},
        {"batch-axis", AP_OPT_STR, &req->batch_axis, "AXIS",
         "axis of the batch in Alpa's space, none or free (first of two)", NULL, 0, 0, 0,
         "alpa"},
        {"forbid", AP_OPT_LIST, &req->forbid, "COLLECTIVE",
         "all-gather or all-to-all: not in Alpa's space", NULL, 0, 0, 0, "alpa"},
        {"reduce-scatter", AP_OPT_FLAG, &req->alpa.scatter, NULL,
         "let partial sums be reduce-scattered in Alpa's space", NULL, 0, 0, 0, "alpa"},
        {"mixed-mesh", AP_OPT_FLAG, &req->alpa.mixed, NULL,
         "let both axes split one dimension in Alpa's space", NULL, 0, 0, 0, "alpa"},
        {"alpha", AP_OPT_STR, &req->alpha_text, "A,B",
         "latency units of cost model alpa, per axis (1,1)", NULL, 0, 0, 0, "alpa"},
        {"beta", AP_OPT_STR, &req->beta_text, "A,B",
         "units per byte of cost model alpa, per axis (1,0.1)", NULL, 0, 0, 0, "alpa"},
        {"pins", AP_OPT_CHOICE, &req->pin_mode, "MODE", "imported shardings", pin_modes,
         sizeof *pin_modes, 0, 0, "more"},
        {"pin", AP_OPT_LIST, &req->pins, "GLOB=LAYOUT",
         "fix the layout of nodes, such as '*/kernel=R,S1'", NULL, 0, 0, 0, NULL},
        {"plan", AP_OPT_STR, &req->plan_path, "FILE",
         "take the plan from a file, by the names of nodes", NULL, 0, 0, 0, NULL},
        {"start", AP_OPT_STR, &req->start_path, "FILE",
         "start from a file's plan: the answer is never more expensive", NULL, 0, 0, 0,
         NULL},
        {"max-axes", AP_OPT_INT, &req->max_axes, "N", "--mesh auto: at most N axes (2)",
         NULL, 0, 1, AP_MAX_STATED_AXES, "more"},
        {"jobs", AP_OPT_INT, &req->jobs, "N",
         "--mesh auto: processes (default: the cores)", NULL, 0, 1, 1024, "more"},
        {"serve", AP_OPT_FLAG, &req->serve, NULL,
         "answer requests about parts of FILE, one a line on standard input", NULL, 0, 0,
         0, "more"},
        {"microbatches", AP_OPT_INT, &req->microbatches, "B",
         "accumulate gradients over B microbatches (1)", NULL, 0, 1, AP_MAX_MICROBATCHES,
         NULL},
        {"microbatch", AP_OPT_CHOICE, &req->microbatch, "MODE",
         "what reductions over the batch mean", microbatch_modes,
         sizeof *microbatch_modes, 0, 0, "more"},
        {"overlap", AP_OPT_CHOICE, &req->overlap, "WHEN",
         "whether a step's collectives run beside its operators", ap_overlap_modes,
         sizeof *ap_overlap_modes, 0, 0, "more"},
        {"f32-matmul", AP_OPT_CHOICE, &req->f32_matmul, "TYPE",
         "precision of f32 contractions", ap_f32_matmul_modes,
         sizeof *ap_f32_matmul_modes, 0, 0, "more"},
        {"no-padding", AP_OPT_FLAG, &req->params.no_padding, NULL,
         "only split sizes that divide evenly, as the papers do", NULL, 0, 0, 0, "more"},
        {"recompute-heavy", AP_OPT_FLAG, &req->params.recompute_heavy, NULL,
         "let dot and convolution be replicated where compute is free", NULL, 0, 0, 0,
         "more"},
        {"no-families", AP_OPT_FLAG, &req->params.no_families, NULL,
         "do not fold repeated layers", NULL, 0, 0, 0, "more"},
        {"rounds", AP_OPT_INT, &req->params.rounds, "N",
         "rounds for the lower bound of a folded search (12)", NULL, 0, 0, 10000, "more"},
        {"unfold", AP_OPT_INT, &req->params.unfold, "N",
         "after a gap, search an unfolded graph of up to N strategies (120000)", NULL, 0,
         0, INT64_MAX, "more"},
        {"work-limit", AP_OPT_INT, &req->params.work_limit, "N",
         "stop after N units of work, 0.1 CPU seconds each (the default: 80)", NULL, 0, 0,
         INT64_MAX, "more"},
        {"prove", AP_OPT_FLAG, &req->params.prove, NULL,
         "search twenty times longer if the default leaves a gap", NULL, 0, 0, 0, NULL},
        {"tofu-space", AP_OPT_CHOICE, &req->params.tofu_space, "NAME",
         "tofu: how it may split a tensor", shard_tofu_spaces, sizeof *shard_tofu_spaces,
         0, 0, "tofu"},
        {"tofu-ties", AP_OPT_INT, &req->params.tofu_ties, "N",
         "tofu: break ties between equal cuts in N ways, not until it brings nothing",
         NULL, 0, 1, 1000, "tofu"},
        {"level", AP_OPT_CHOICE, &req->level_row, "LEVEL", "rhino: optimization level",
         shard_levels, sizeof *shard_levels, 0, 0, "rhino"},
        {"critical", AP_OPT_CHOICE, &req->params.critical, "NAME",
         "rhino: definition of a critical node", shard_criticals, sizeof *shard_criticals,
         0, 0, "rhino"},
        {"emit-problem", AP_OPT_STR, &req->emit_path, "FILE",
         "also write ilp's selection problem, for ap-solve", NULL, 0, 0, 0, "more"},
        {"solution", AP_OPT_STR, &req->solution_path, "FILE",
         "take ap-solve's answer to the problem of --emit-problem", NULL, 0, 0, 0,
         "more"},
        {"memory", AP_OPT_STR, &req->memory_text, "SIZE",
         "limit per device (rhino: of parameters): 16GiB, bytes, or device", NULL, 0, 0,
         0, NULL},
        {"explain", AP_OPT_STR, &req->explain_path, "FILE",
         "write rhino's cones and segments", NULL, 0, 0, 0, "rhino"},
        {0},
    };
    tool->opts = opts;
    ap_tool_start(tool, argc, argv);
    if (req->serve && (!strcmp(tool->path, "-") || tool->out_path))
        ap_die_usage(
            "--serve reads requests on standard input: name the document's FILE, "
            "and no -o");
    check_request(arena, tool, req);
    tool->opts = NULL; /* they end here */
}
