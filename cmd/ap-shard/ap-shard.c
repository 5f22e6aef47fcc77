/* ap-shard: choose how every tensor of a graph is split over one mesh. */
#include "memory.h"
#include "shard.h"

#include <stdio.h>
#include <string.h>

#include "tofu.h"
#include "tool.h"

static const struct ap_choice cost_models[] = {
    {"default", "seconds: roofline and alpha-beta collectives"},
    {"alpa", "Alpa's units and constants, compute free"},
    {"bytes", "bytes moved, compute free"},
    {NULL, NULL},
};
#define UNFOLD 120000

static const struct ap_choice spaces[] = {
    {"default", "all that the factors allow"},
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
    {"exact", "what is combined over the batch is of the whole batch"},
    {"each", "it is taken of each microbatch (prices of --serve only)"},
    {NULL, NULL},
};

static bool is_rhino(const struct shard_request *req)
{
    return shard_algorithms()[req->algorithm].run == shard_rhino;
}

static void check_memory(const struct shard_request *req)
{
    if (!req->memory_text)
        return;
    if (req->serve)
        ap_die_usage("--serve: requests say the memory; no --memory with it");
    if (req->space != SHARD_SPACE_DEFAULT)
        ap_die_usage("--memory: plans of Alpa's space are not searched within a limit");
    if (strcmp(req->memory_text, "device") != 0 && mem_size_parse(req->memory_text) < 0)
        ap_die_usage("--memory: expected bytes, a size such as 16GiB, or device, got %s",
                     req->memory_text);
}

static void check_microbatches(const struct shard_request *req)
{
    if (req->microbatch == MICROBATCH_EACH && !req->serve)
        ap_die_usage("--microbatch each is not built yet but for --serve: only exact "
                     "microbatches");
    if (req->microbatches <= 1)
        return;
    if (req->serve)
        ap_die_usage("--serve: requests say the microbatches; no --microbatches with it");
}

static void check_request(struct shard_request *req)
{
    const char *level = shard_levels[req->level_row].name;
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];
    bool is_auto = req->mesh_text && !strcmp(req->mesh_text, "auto");

    if (req->serve && req->space != SHARD_SPACE_DEFAULT)
        ap_die_usage("--serve has no --space alpa");
    if (req->serve && (req->mesh_text || req->plan_path || req->start_path ||
                       req->pins.n > 0 || req->top > 0))
        ap_die_usage(
            "--serve: requests say the mesh; no --mesh, --plan, --start, --pin or "
            "--top with it");
    if (!req->serve && !req->mesh_text && !req->plan_path && !req->start_path)
        ap_die_usage("--mesh is missing: which logical mesh, for example --mesh 2x4");
    if (row->run != shard_ilp && req->space != SHARD_SPACE_DEFAULT)
        ap_die_usage("--space alpa is for the search (ilp), not for %s", row->name);
    if (req->params.recompute_heavy && req->space != SHARD_SPACE_DEFAULT)
        ap_die_usage("--recompute-heavy: Alpa's space has no replicated contraction");
    if (req->batch_axis && req->space == SHARD_SPACE_DEFAULT)
        ap_die_usage("--batch-axis is for --space alpa");
    if (row->run == shard_rule && (req->params.no_padding || req->params.solver != 0 ||
                                   req->params.work_limit != 0))
        ap_die_usage("--no-padding, --solver and --work-limit are for the search (ilp), "
                     "%s is a rule",
                     row->name);
    if (row->run == shard_tofu &&
        (req->params.solver != 0 || req->params.work_limit != 0 ||
         req->params.no_families))
        ap_die_usage("--solver, --work-limit and --no-families are for ilp, tofu has no "
                     "solver and folds nothing");
    if (row->run != shard_tofu &&
        (req->params.tofu_space != 0 || req->params.tofu_ties != 1))
        ap_die_usage("--tofu-space and --tofu-ties are for tofu, not for %s", row->name);
    if (row->run == shard_tap &&
        (req->params.solver != 0 || req->params.work_limit != 0 ||
         req->params.period != 1 || req->params.rounds != 12 ||
         req->params.unfold != UNFOLD))
        ap_die_usage(
            "--solver, --work-limit, --period, --rounds and --unfold are for ilp, "
            "tap enumerates");
    if (req->plan_path && (req->start_path || req->algorithm != 0 || req->pins.n > 0))
        ap_die_usage("--plan says all: no --start, --algorithm or --pin with it");
    if (req->start_path && row->run != shard_ilp)
        ap_die_usage("--start is for ilp, not for %s", row->name);
    if (req->space != SHARD_SPACE_DEFAULT && (req->plan_path || req->start_path))
        ap_die_usage("--space alpa does not go with --plan or --start");
    if (is_auto && (req->plan_path || req->start_path))
        ap_die_usage("--mesh auto does not go with --plan or --start");
    if (req->explain_path && (is_auto || req->serve))
        ap_die_usage("--explain does not go with --mesh auto or --serve");
    if (req->emit_path && row->run != shard_ilp)
        ap_die_usage("--emit-problem is for the search (ilp), not for %s", row->name);
    if (req->emit_path && (req->serve || req->plan_path || is_auto))
        ap_die_usage("--emit-problem is for a search on one mesh, without --plan, "
                     "--serve and --mesh auto");
    req->params.emit = req->emit_path != NULL;
    if (!is_rhino(req) &&
        (req->level_row != 0 || req->params.critical != 0 || req->explain_path))
        ap_die_usage("--level, --critical and --explain are for rhino, not for %s",
                     row->name);
    if (req->params.critical != 0 && level[strlen(level) - 1] > '2')
        ap_die_usage("--critical: level %s has no segments between critical nodes (0 to "
                     "2 have)",
                     level);
    check_memory(req);
    check_microbatches(req);
    req->params.level = level[strlen(level) - 1] - '0';
    req->params.explain = req->explain_path != NULL;
}

static void read_options(struct ap_tool *tool, struct shard_request *req, int argc,
                         char **argv)
{
    const struct ap_opt opts[] = {
        {"mesh", AP_OPT_STR, &req->mesh_text, "MESH",
         "logical mesh: 8, 2x4, dp=2,tp=4, or auto for the best", NULL, 0, 0, 0},
        {"algorithm", AP_OPT_CHOICE, &req->algorithm, "NAME", "how to choose",
         (const struct ap_choice *)shard_algorithms(), sizeof(struct shard_algorithm), 0,
         0},
        {"solver", AP_OPT_CHOICE, &req->params.solver, "NAME",
         "solver of ilp and of rhino's cones", (const struct ap_choice *)shard_solvers,
         sizeof(struct shard_solver), 0, 0},
        {"cluster", AP_OPT_CLUSTER, &req->cluster_path, "FILE",
         "file, or a name of --cluster help (default: the document's, else A100s)", NULL,
         0, 0, 0},
        {"cost-model", AP_OPT_CHOICE, &req->cost_model, "NAME", "what things cost",
         cost_models, sizeof *cost_models, 0, 0},
        {"space", AP_OPT_CHOICE, &req->space, "NAME", "strategies that ilp may choose",
         spaces, sizeof *spaces, 0, 0},
        {"batch-axis", AP_OPT_STR, &req->batch_axis, "AXIS",
         "axis of the batch in Alpa's space, or none (default: the first of two)", NULL,
         0, 0, 0},
        {"pins", AP_OPT_CHOICE, &req->pin_mode, "MODE", "imported shardings", pin_modes,
         sizeof *pin_modes, 0, 0},
        {"pin", AP_OPT_LIST, &req->pins, "GLOB=LAYOUT",
         "give nodes a layout, such as '*/kernel=R,S1'", NULL, 0, 0, 0},
        {"plan", AP_OPT_STR, &req->plan_path, "FILE",
         "take the plan from a file, by the names of nodes", NULL, 0, 0, 0},
        {"start", AP_OPT_STR, &req->start_path, "FILE",
         "search from the plan of a file: the answer is never dearer", NULL, 0, 0, 0},
        {"top", AP_OPT_INT, &req->top, "K", "list the K best distinct plans at hand",
         NULL, 0, 1, 1000},
        {"max-axes", AP_OPT_INT, &req->max_axes, "N", "most axes of --mesh auto (2)",
         NULL, 0, 1, AP_MAX_AXES},
        {"jobs", AP_OPT_INT, &req->jobs, "N",
         "processes of --mesh auto (default: the cores)", NULL, 0, 1, 1024},
        {"serve", AP_OPT_FLAG, &req->serve, NULL,
         "answer requests on standard input, a line each, about parts of FILE", NULL, 0,
         0, 0},
        {"microbatches", AP_OPT_INT, &req->microbatches, "B",
         "run the batch in B parts, one after the other (1)", NULL, 0, 1,
         AP_MAX_MICROBATCHES},
        {"microbatch", AP_OPT_CHOICE, &req->microbatch, "MODE",
         "what is combined over the batch", microbatch_modes, sizeof *microbatch_modes, 0,
         0},
        {"no-padding", AP_OPT_FLAG, &req->params.no_padding, NULL,
         "only split sizes that divide, as the papers do", NULL, 0, 0, 0},
        {"recompute-heavy", AP_OPT_FLAG, &req->params.recompute_heavy, NULL,
         "let alpa and bytes replicate dot and convolution", NULL, 0, 0, 0},
        {"no-families", AP_OPT_FLAG, &req->params.no_families, NULL,
         "search the whole graph at once, whatever repeats", NULL, 0, 0, 0},
        {"period", AP_OPT_INT, &req->params.period, "N",
         "also tie only layers that stand 2, ..., N apart (1)", NULL, 0, 1, 16},
        {"rounds", AP_OPT_INT, &req->params.rounds, "N",
         "rounds that the bound of a folded search may take (12)", NULL, 0, 0, 10000},
        {"unfold", AP_OPT_INT, &req->params.unfold, "N",
         "search the whole graph if the folded bound leaves a gap and N strategies "
         "(120000)",
         NULL, 0, 0, INT64_MAX},
        {"work-limit", AP_OPT_INT, &req->params.work_limit, "N",
         "stop the solver after N units of work (exact: 100 cores, glpk: none)", NULL, 0,
         0, INT64_MAX},
        {"tofu-space", AP_OPT_CHOICE, &req->params.tofu_space, "NAME",
         "what tofu may do with a tensor", shard_tofu_spaces, sizeof *shard_tofu_spaces,
         0, 0},
        {"tofu-ties", AP_OPT_INT, &req->params.tofu_ties, "N",
         "break ties between equally good cuts in N ways (1)", NULL, 0, 1, 1000},
        {"level", AP_OPT_CHOICE, &req->level_row, "LEVEL",
         "how much of the graph rhino decides at once", shard_levels,
         sizeof *shard_levels, 0, 0},
        {"critical", AP_OPT_CHOICE, &req->params.critical, "NAME",
         "which nodes rhino's segments end at", shard_criticals, sizeof *shard_criticals,
         0, 0},
        {"emit-problem", AP_OPT_STR, &req->emit_path, "FILE",
         "also write ilp's selection problem, for ap-solve", NULL, 0, 0, 0},
        {"memory", AP_OPT_STR, &req->memory_text, "SIZE",
         "of a device, for the plan (rhino: for parameters): 16GiB, bytes, or device",
         NULL, 0, 0, 0},
        {"explain", AP_OPT_STR, &req->explain_path, "FILE",
         "write rhino's cones and segments", NULL, 0, 0, 0},
        {0},
    };
    tool->opts = opts;
    ap_tool_start(tool, argc, argv);
    tool->opts = NULL; /* they end here */
    if (req->serve && (!strcmp(tool->path, "-") || tool->out_path))
        ap_die_usage(
            "--serve reads requests on standard input: name the document's FILE, "
            "and no -o");
    check_request(req);
}

int main(int argc, char **argv)
{
    struct shard_request req = {
        .max_axes = 2,
        .params = {.rounds = 12, .unfold = UNFOLD, .period = 1, .tofu_ties = 1}};
    struct ap_tool tool = {.name = "ap-shard",
                           .summary = "choose how every tensor is split over a mesh",
                           .operand = "[FILE]"};
    struct ap_arena arena = {0};
    struct shard_job job = {.arena = &arena};
    struct shard_result result;
    struct ap_doc doc;

    read_options(&tool, &req, argc, argv);
    ap_tool_read(&tool, &arena, &doc);
    shard_job_read(&job, &doc);
    if (!req.params.no_families && !is_rhino(&req))
        shard_job_families(&job, &doc);
    if (req.serve)
        return ap_tool_finish(&tool, shard_serve(&job, &req, &doc));
    if (req.mesh_text && !strcmp(req.mesh_text, "auto")) {
        result = shard_auto(&job, &req, &doc);
    } else {
        struct ap_mesh mesh = shard_job_mesh(&job, &req);
        shard_job_place(&job, &req, &doc, &mesh);
        shard_job_run(&job, &req);
        if (req.explain_path)
            ap_tool_write_file(req.explain_path, &job.answer.explanation);
        if (req.emit_path)
            ap_tool_write_file(req.emit_path, &job.answer.problem);
        result = shard_job_result(&job, &req);
    }

    /* what was derived from an older plan goes */
    struct ap_new_section out[] = {
        {.name = "cluster"}, {.name = "sharding", .json = result.json},
        {.name = "stages"},  {.name = "cost"},
        {.name = "program"}, {.name = "pipeline"}};
    ap_cluster_to_json(&job.cluster, &out[0].json);
    ap_tool_write(&tool, &doc, out, (int)(sizeof out / sizeof *out), result.found);
    ap_cost_free(&job.cost);
    return ap_tool_finish(&tool,
                          ap_arena_printf(&arena, "%s%s", result.found, result.stats));
}
