/* ap-shard: choose how every tensor of a graph is split over one mesh. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "shard.h"
#include "tool.h"

/* Row 0 searches; the others are ap_baselines, one row each. */
static const struct ap_choice algorithms[] = {
    {"ilp", "integer program over all strategies, proven bound"},
    {"data", "the batch over all axes, weights whole"},
    {"zero2", "data, with optimizer states and update split over all axes"},
    {"zero3", "zero2, with weights split and gathered for each phase"},
    {"megatron", "tensor parallel on the last axis, the batch over the others"},
    {"largest-dim", "every weight split on its largest dimension over all axes"},
    {NULL, NULL},
};
static const struct ap_choice solvers[] = {
    {"exact", "reductions, dual bound and branch and bound"},
    {"glpk", "integer program in GLPK, in the tight form"},
    {NULL, NULL},
};
static const struct ap_choice cost_models[] = {
    {"default", "seconds: roofline and alpha-beta collectives"},
    {"alpa", "Alpa's units and constants, compute free"},
    {"bytes", "bytes moved, compute free"},
    {NULL, NULL},
};
static const struct ap_choice pin_modes[] = {
    {"use", "imported shardings are kept"},
    {"ignore", "imported shardings are dropped"},
    {NULL, NULL},
};

struct request {
    int algorithm, cost_model, pin_mode;
    const char *mesh_text, *cluster_path;
    struct shard_params params;
};

struct job {
    struct ap_arena arena;
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_cluster cluster;
    struct ap_cost cost;
    struct shard_pins pins;
    struct shard_space space;
    struct shard_answer answer;
    double baseline_sec[AP_N_BASELINES]; /* -1: does not exist */
};

static void set_up(struct job *job, const struct request *req, const struct ap_doc *doc)
{
    struct ap_err err = {0};
    struct ap_mesh mesh;

    if (ap_doc_graph(&job->arena, doc, &job->graph, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_group(&job->arena, &job->graph); /* whatever the document says of groups */
    if (ap_nests_build(&job->arena, &job->graph, &job->nests, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    if (ap_mesh_parse(&job->arena, req->mesh_text, &mesh, &err))
        ap_die_usage("--mesh: %s", err.msg);
    if (ap_cluster_get(&job->arena, doc, req->cluster_path, ap_mesh_devices(&mesh),
                       &job->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (ap_cost_init(&job->arena, &job->cost, (enum ap_cost_variant)req->cost_model,
                     &job->cluster, &mesh, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    if (req->pin_mode == 0 &&
        shard_pins_read(&job->arena, &job->graph, &mesh, &job->pins, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
}

static struct ap_plan plan_of(const struct job *job, const struct request *req)
{
    return (struct ap_plan){.graph = &job->graph,
                            .nests = &job->nests,
                            .mesh = job->cost.mesh,
                            .recompute_heavy = req->params.recompute_heavy};
}

static double price_of(struct job *job, const struct ap_plan *plan,
                       struct ap_conversions *conv)
{
    struct ap_err err = {0};
    if (ap_plan_check(plan, &job->cost, &err) ||
        ap_plan_conversions(&job->arena, plan, &job->cost, conv, &err))
        return INFINITY;
    return ap_plan_price(plan, &job->cost, conv).serial_sec;
}

/* All baselines that exist and are legal under the cost model; their number. */
static int list_baselines(struct job *job, const struct request *req,
                          struct ap_plan *plans, double *sec)
{
    int n = 0;
    for (int row = 0; row < AP_N_BASELINES; row++) {
        struct ap_conversions conv;
        struct ap_err err = {0};
        plans[n] = plan_of(job, req);
        job->baseline_sec[row] = -1;
        if (ap_baseline_plan(&job->arena, row, &plans[n], &err))
            continue;
        sec[n] = price_of(job, &plans[n], &conv);
        if (isfinite(sec[n]))
            job->baseline_sec[row] = sec[n++];
    }
    return n;
}

static void search(struct job *job, const struct request *req)
{
    struct ap_plan plans[AP_N_BASELINES];
    double sec[AP_N_BASELINES];
    int n = list_baselines(job, req, plans, sec), best = -1;
    struct ap_err err = {0};

    for (int i = 0; i < n; i++) {
        plans[i].remake = NULL; /* the search keeps what it gathered */
        if (best < 0 || sec[i] < sec[best])
            best = i;
    }
    if (shard_space_build(&job->arena, &job->graph, &job->nests, &job->cost, &req->params,
                          req->pin_mode == 0 ? &job->pins : NULL, plans, n, &job->space,
                          &err) ||
        shard_ilp(&job->arena, &job->space, &req->params, best < 0 ? NULL : &plans[best],
                  &job->answer, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
}

static void rule(struct job *job, const struct request *req)
{
    struct ap_err err = {0};
    struct ap_conversions conv;
    struct shard_answer *a = &job->answer;

    a->plan = plan_of(job, req);
    a->stopped = "rule";
    if (ap_baseline_plan(&job->arena, req->algorithm - 1, &a->plan, &err))
        ap_die(AP_NO_SOLUTION, "%s does not exist here: %s",
               algorithms[req->algorithm].name, err.msg);
    if (ap_plan_check(&a->plan, &job->cost, &err))
        ap_die(AP_NO_SOLUTION, "%s: %s", algorithms[req->algorithm].name, err.msg);
    a->objective = price_of(job, &a->plan, &conv);
}

/* Prices the answer, builds its program for the memory promise, writes the section. */
static struct ap_buf finish(struct job *job, const struct request *req,
                            struct ap_sharding *s)
{
    struct ap_err err = {0};
    struct ap_conversions conv;
    struct ap_program prog;
    struct ap_buf json = {0};
    struct shard_answer *a = &job->answer;

    a->plan.recompute_heavy = req->params.recompute_heavy;
    if (ap_plan_check(&a->plan, &job->cost, &err) ||
        ap_plan_conversions(&job->arena, &a->plan, &job->cost, &conv, &err) ||
        ap_partition(&job->arena, &a->plan, &conv, &prog, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_plan_buffers(&job->arena, &prog);
    double sec = ap_plan_price(&a->plan, &job->cost, &conv).serial_sec;
    assert(fabs(sec - a->objective) <= 1e-9 * sec); /* else problem and plan disagree */
    *s = (struct ap_sharding){
        .plan = a->plan,
        .algorithm = algorithms[req->algorithm].name,
        .solver = req->algorithm == 0 ? solvers[req->params.solver].name : NULL,
        .cost_model = cost_models[req->cost_model].name,
        .stopped = a->stopped,
        .objective_sec = sec,
        .lower_bound_sec = fmin(a->bound, sec),
        .peak_bytes = prog.peak_bytes,
    };
    ap_sharding_to_json(s, &conv, &json);
    return json;
}

static const char *stats_json(struct job *job)
{
    const struct shard_answer *a = &job->answer;
    return ap_arena_printf(
        &job->arena,
        ",\"groups\":%d,\"strategies\":%lld,\"problem_nodes\":%d,"
        "\"problem_edges\":%d,\"build_sec\":%.6f,\"solve_sec\":%.6f,"
        "\"work\":%lld,\"objective_sec\":%.9g,\"lower_bound_sec\":%.9g",
        job->nests.n, (long long)job->space.n_strategies, a->n_nodes, a->n_edges,
        a->build_sec, a->solve_sec, (long long)a->work, a->objective, a->bound);
}

int main(int argc, char **argv)
{
    struct request req = {0};
    const struct ap_opt opts[] = {
        {"mesh", AP_OPT_STR, &req.mesh_text, "MESH", "logical mesh: 8, 2x4, dp=2,tp=4",
         NULL, 0, 0, 0},
        {"algorithm", AP_OPT_CHOICE, &req.algorithm, "NAME", "how to choose", algorithms,
         sizeof *algorithms, 0, 0},
        {"solver", AP_OPT_CHOICE, &req.params.solver, "NAME", "solver of ilp", solvers,
         sizeof *solvers, 0, 0},
        {"cluster", AP_OPT_STR, &req.cluster_path, "FILE",
         "cluster description (default: the document's, else A100s)", NULL, 0, 0, 0},
        {"cost-model", AP_OPT_CHOICE, &req.cost_model, "NAME", "what things cost",
         cost_models, sizeof *cost_models, 0, 0},
        {"pins", AP_OPT_CHOICE, &req.pin_mode, "MODE", "imported shardings", pin_modes,
         sizeof *pin_modes, 0, 0},
        {"no-padding", AP_OPT_FLAG, &req.params.no_padding, NULL,
         "only split sizes that divide, as the papers do", NULL, 0, 0, 0},
        {"recompute-heavy", AP_OPT_FLAG, &req.params.recompute_heavy, NULL,
         "let alpa and bytes replicate dot and convolution", NULL, 0, 0, 0},
        {"work-limit", AP_OPT_INT, &req.params.work_limit, "N",
         "stop the solver after N units of work (exact: 100 cores, glpk: none)", NULL, 0,
         0, INT64_MAX},
        {0},
    };
    struct ap_tool tool = {.name = "ap-shard",
                           .summary = "choose how every tensor is split over a mesh",
                           .operand = "[FILE]",
                           .opts = opts};
    struct job job = {0};
    struct ap_doc doc;
    struct ap_sharding sharding;

    ap_tool_start(&tool, argc, argv);
    if (!req.mesh_text)
        ap_die_usage("--mesh is missing: which logical mesh, for example --mesh 2x4");
    if (req.algorithm != 0 &&
        (req.params.no_padding || req.params.solver != 0 || req.params.work_limit != 0))
        ap_die_usage("--no-padding, --solver and --work-limit are for the search (ilp), "
                     "%s is a rule",
                     algorithms[req.algorithm].name);
    ap_tool_read(&tool, &job.arena, &doc);
    set_up(&job, &req, &doc);
    if (req.algorithm != 0 && req.pin_mode == 0 && job.pins.n > 0)
        ap_warn("%s keeps no imported shardings: %d are ignored",
                algorithms[req.algorithm].name, job.pins.n);
    if (req.algorithm == 0)
        search(&job, &req);
    else
        rule(&job, &req);

    /* what was derived from an older plan goes */
    struct ap_new_section out[] = {
        {.name = "cluster"}, {.name = "sharding"}, {.name = "cost"}, {.name = "program"}};
    ap_cluster_to_json(&job.cluster, &out[0].json);
    out[1].json = finish(&job, &req, &sharding);
    ap_tool_write(&tool, &doc, out, 4,
                  ap_arena_printf(&job.arena,
                                  ",\"algorithm\":\"%s\",\"objective_sec\":%.9g,"
                                  "\"lower_bound_sec\":%.9g",
                                  sharding.algorithm, sharding.objective_sec,
                                  sharding.lower_bound_sec));
    ap_cost_free(&job.cost);
    return ap_tool_finish(&tool, stats_json(&job));
}
