/*
 * One question of ap-shard, from a document to the section "sharding": reads the graph
 * and the cluster, lays the mesh over it, runs an algorithm of the table, and prices its
 * plan by the function that all algorithms share.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "emit.h"
#include "doc/families_json.h"
#include "doc/fingerprint.h"
#include "memory/memory.h"
#include "line/line.h"
#include "pipeline/pipeline_program.h"
#include "plan/microbatch.h"
#include "plan/overlap.h"
#include "problem/shard.h"
#include "tofu/tofu.h"
#include "tool/tool.h"

#define N_SEARCHES 4
/*
 * The budget of all that a search does, in cells of tables, 1 to 1.4 nanoseconds each:
 * `scripts/bench/ask-table` shows CPU seconds, price and gap of many questions under it.
 */
#define WORK   INT64_C(8000000000)
#define UNIT   INT64_C(100000000) /* of --work-limit */
#define PROVE  20                 /* times as much with --prove */
#define WITHIN 2 /* times as much within a limit of memory: two searches */

const struct shard_algorithm *shard_algorithms(void)
{
    static struct shard_algorithm table[N_SEARCHES + AP_N_NAMED_PLANS + 1] = {
        {.name = "ilp",
         .help = "integer program over all strategies, with a bound",
         .run = shard_ilp,
         .named_plan = -1,
         .takes = SHARD_TAKES_PADDING | SHARD_TAKES_SOLVER | SHARD_TAKES_FAMILIES |
                  SHARD_TAKES_FOLDING | SHARD_TAKES_SPACE | SHARD_TAKES_START |
                  SHARD_TAKES_EMIT,
         .keeps_pins = true,
         .compares_rules = true},
        {.name = "tofu",
         .help = "Tofu: recursive halving, least communication in each step",
         .run = shard_tofu,
         .named_plan = -1,
         .takes = SHARD_TAKES_PADDING | SHARD_TAKES_FAMILIES | SHARD_TAKES_TOFU,
         .whole_batch = true,
         .halves = true},
        {.name = "tap",
         .help = "TAP: a pattern per weight, exhaustive per repeated block",
         .run = shard_tap,
         .named_plan = -1,
         .takes = SHARD_TAKES_PADDING | SHARD_TAKES_FAMILIES},
        {.name = "rhino",
         .help = "Rhino: cones and segments, bytes moved",
         .run = shard_rhino,
         .named_plan = -1,
         .takes = SHARD_TAKES_PADDING | SHARD_TAKES_SOLVER | SHARD_TAKES_RHINO,
         .whole_batch = true,
         .limits_params = true},
    };
    for (int i = 0; i < AP_N_NAMED_PLANS; i++)
        table[N_SEARCHES + i] = (struct shard_algorithm){.name = ap_named_plans[i].name,
                                                         .help = ap_named_plans[i].help,
                                                         .run = shard_rule,
                                                         .named_plan = i,
                                                         .keeps_pins = true};
    return table;
}

static void set_alpa(struct shard_job *job, const struct shard_request *req)
{
    struct ap_err err = {0};

    if (shard_alpa_check(&job->graph, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    if (shard_alpa_init(job->arena, &job->graph, &job->nests, req, &job->alpa, &job->cost,
                        &err))
        ap_die_usage("%s", err.msg);
    ap_plan_results_lie(job->arena, &job->graph);
}

void shard_job_read(struct shard_job *job, const struct ap_doc *doc)
{
    struct ap_err err = {0};

    if (ap_doc_graph(job->arena, doc, &job->graph, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_group(job->arena, &job->graph); /* the document's own groups are ignored */
    if (ap_nests_build(job->arena, &job->graph, &job->nests, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
}

/* Layers are tied by what they compute and keep: without their weights and updates, which
 * families by hand may leave out, they differ. */
static void warn_untied(const struct ap_doc *doc, const struct ap_graph *g,
                        const struct ap_families *f)
{
    bool updates = false, has_weight = false, has_update = f->n == 0;

    for (int v = 0; v < g->n_nodes; v++)
        updates |= g->nodes[v].phase == AP_UPDATE;
    for (int i = 0; i < f->n; i++)
        for (int j = 0; j < f->family[i].n_nodes; j++) {
            const struct ap_node *node = &g->nodes[f->family[i].nodes[j]];
            has_weight |= node->role == AP_ROLE_WEIGHT;
            has_update |= node->phase == AP_UPDATE;
        }
    const bool by_hand = strcmp(f->algorithm, "given") == 0;
    if (by_hand && f->n > 0 && (!has_weight || (updates && !has_update)))
        ap_warn("%s: /families: no instance has %s: nothing is tied, and every layer is "
                "searched by itself",
                doc->file, has_weight ? "nodes of the update" : "a weight");
}

void shard_job_families(struct shard_job *job, const struct ap_doc *doc, bool warns)
{
    struct ap_err err = {0};
    int rc = ap_doc_families(job->arena, doc, &job->graph, &job->families, &err);

    if (rc < 0)
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    job->has_families = rc == 0;
    if (rc == 0 && warns)
        warn_untied(doc, &job->graph, &job->families);
}

static bool same_sizes(const struct ap_mesh *a, const struct ap_mesh *b)
{
    bool same = a->n_axes == b->n_axes;
    for (int i = 0; same && i < a->n_axes; i++)
        same = a->size[i] == b->size[i];
    return same;
}

/* The file of --plan or --start. */
static struct shard_given load_given(struct shard_job *job,
                                     const struct shard_request *req)
{
    struct shard_given given;
    struct ap_err err = {0};
    const char *path = req->plan_path ? req->plan_path : req->start_path;
    if (shard_given_load(job->arena, path, &given, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    return given;
}

struct ap_mesh shard_job_mesh(struct shard_job *job, const struct shard_request *req)
{
    struct ap_mesh mesh = {0}, theirs = {0};
    struct ap_err err = {0};

    if (req->mesh_text && ap_mesh_parse(job->arena, req->mesh_text, &mesh, &err))
        ap_die_usage("--mesh: %s", err.msg);
    if (!req->plan_path && !req->start_path)
        return mesh;
    struct shard_given given = load_given(job, req);
    if (shard_given_mesh(job->arena, &given, &theirs, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    json_decref(given.root);
    int64_t n = ap_mesh_microbatches(&theirs);
    ap_mesh_drop_microbatches(&theirs);
    if (mesh.n_axes == 0 && theirs.n_axes == 0)
        ap_die_usage("--mesh is missing, and %s names no mesh", given.path);
    if (mesh.n_axes > 0 && theirs.n_axes > 0 && !same_sizes(&mesh, &theirs))
        ap_die_usage("--mesh %s, but %s is for a mesh of another shape", req->mesh_text,
                     given.path);
    mesh = mesh.n_axes > 0 ? mesh : theirs;
    if (ap_mesh_add_microbatches(&mesh, n, &err))
        ap_die_usage("%s: microbatches: %s", given.path, err.msg);
    return mesh;
}

void shard_job_place(struct shard_job *job, const struct shard_request *req,
                     const struct ap_doc *doc, const struct ap_mesh *mesh)
{
    struct ap_arena *arena = job->arena;
    struct ap_err err = {0};
    struct ap_mesh halves, devices = *mesh, timed;
    int64_t n = req->microbatches > 0 ? req->microbatches : ap_mesh_microbatches(mesh);

    ap_mesh_drop_microbatches(&devices);
    if (shard_algorithms()[req->algorithm].halves) {
        if (tofu_mesh(arena, &devices, &halves, &err))
            ap_die_usage("--mesh: %s", err.msg);
        devices = halves;
    }
    if (req->pin_mode == 0 &&
        shard_pins_read(arena, &job->graph, &devices, &job->pins, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    if (shard_pins_add(arena, &job->graph, &devices, &req->pins, &job->pins, &err))
        ap_die_usage("%s", err.msg);
    if (job->pins.cut && ap_nests_build(arena, &job->graph, &job->nests, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    timed = devices;
    if (ap_mesh_add_microbatches(&timed, n, &err))
        ap_die_usage("--microbatches: %s", err.msg);
    mesh = &timed;
    if (mesh->microbatch && ap_microbatch_choices(arena, &job->graph, &job->nests, n,
                                                  &job->microbatch_choice, &err))
        ap_die(AP_NO_SOLUTION, "--microbatches: %s", err.msg);
    if (ap_cluster_get(arena, doc, req->cluster_path, ap_mesh_devices(mesh),
                       &job->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_tool_one_kind(&job->cluster);
    ap_tool_set_overlap(&job->cluster, req->overlap);
    ap_tool_set_f32_matmul(&job->cluster, req->f32_matmul);
    if (ap_cost_init(arena, &job->cost, (enum ap_cost_variant)req->cost_model,
                     &job->cluster, mesh, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    job->cost.alpa = req->alpa;
    if (req->space == SHARD_SPACE_ALPA)
        set_alpa(job, req);
    if (req->memory_text)
        job->memory_bytes = strcmp(req->memory_text, "device") == 0
                                ? job->cluster.memory_bytes
                                : mem_size_parse(req->memory_text);
    job->device_pins = job->pins;
    if (shard_pins_on_mesh(arena, &job->pins, &job->nests, mesh, job->microbatch_choice,
                           &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
}

struct ap_plan shard_empty_plan(const struct shard_task *task)
{
    return (struct ap_plan){.graph = task->graph,
                            .nests = task->nests,
                            .mesh = task->cost->mesh,
                            .choice = task->pinned_choice,
                            .microbatch_choice = task->microbatch_choice,
                            .recompute_heavy = task->params->recompute_heavy};
}

double shard_price(struct ap_arena *arena, const struct ap_plan *plan,
                   const struct ap_cost *cost, struct ap_conversions *conv,
                   struct ap_err *err)
{
    if (ap_plan_check_choices(plan, cost, err) ||
        ap_plan_conversions(arena, plan, cost, conv, err))
        return INFINITY;
    return ap_plan_price(plan, cost, conv).step_sec;
}

/* A file's plan for --plan and --start, and its price. */
static double given_plan(struct shard_job *job, const struct shard_request *req,
                         struct ap_plan *plan)
{
    struct shard_given given = load_given(job, req);
    struct ap_err err = {0};
    const char *differs;
    double sec;

    int code = shard_given_plan(job->arena, &given, &job->task, plan, &differs, &err);
    if (differs)
        ap_warn("%s: %s", given.path, differs);
    if (code)
        ap_die(code, "%s", err.msg);
    json_decref(given.root);
    if (ap_plan_sec(plan, &job->cost, &sec, &err))
        ap_die(AP_NO_SOLUTION, "%s: %s", given.path, err.msg);
    return sec;
}

static int make_rule(struct ap_arena *arena, const struct shard_task *task,
                     int (*check)(const struct ap_plan *, const struct ap_cost *,
                                  struct ap_err *),
                     struct shard_answer *answer, struct ap_err *err)
{
    const char *name = ap_named_plans[task->named_plan].name;
    struct ap_err why = {0};

    answer->plan = shard_empty_plan(task);
    answer->objective = -1;
    answer->stopped = "rule";
    const struct ap_named_plan_how how = {.fixed = task->fixed};
    if (ap_named_plan_make(arena, task->named_plan, &answer->plan, &how, &why))
        return ap_err_set(err, "%s does not exist here: %s", name, why.msg);
    if (check(&answer->plan, task->cost, &why))
        return ap_err_set(err, "%s: %s", name, why.msg);
    return 0;
}

int shard_rule(struct ap_arena *arena, const struct shard_task *task,
               struct shard_answer *answer, struct ap_err *err)
{
    return make_rule(arena, task, ap_plan_check, answer, err);
}

int shard_rule_unpriced(struct ap_arena *arena, const struct shard_task *task,
                        struct shard_answer *answer, struct ap_err *err)
{
    return make_rule(arena, task,
                     task->cost->variant == AP_COST_DEFAULT ? ap_plan_check_choices
                                                            : ap_plan_check,
                     answer, err);
}

/* Cells of work for all that a search does. */
static int64_t work_limit(const struct shard_job *job)
{
    double budgets =
        ap_cost_overlaps(&job->cost) ? shard_overlap_budgets(&job->params) : 1;

    if (job->params.work_limit && !job->params.prove)
        return ap_mul64(job->params.work_limit, UNIT);
    int64_t times = job->params.prove ? PROVE : job->memory_bytes > 0 ? WITHIN : 1;
    return llround((double)ap_mul64(WORK, times) * budgets);
}

static void set_task(struct shard_job *job, const struct shard_request *req)
{
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];
    struct ap_err err = {0};
    bool *fixed = NULL;

    job->params = req->params;
    job->work =
        (struct ap_work){.limit = work_limit(job), .progress = ap_tool_progress()};
    job->params.alpa = req->space == SHARD_SPACE_ALPA ? &job->alpa : NULL;
    job->task = (struct shard_task){.graph = &job->graph,
                                    .nests = &job->nests,
                                    .cost = &job->cost,
                                    .families = job->has_families ? &job->families : NULL,
                                    .pins = job->pins.n > 0 ? &job->pins : NULL,
                                    .params = &job->params,
                                    .microbatch_choice = job->microbatch_choice,
                                    .memory_bytes = job->memory_bytes,
                                    .work = &job->work,
                                    .named_plan = row->named_plan};
    if (row->limits_params)
        job->params.memory_bytes = job->memory_bytes;
    const struct ap_plan of = shard_empty_plan(&job->task);
    if (job->pins.n > 0 && (row->keeps_pins || req->pins.n > 0) &&
        ap_pins_fit(job->arena, &of, &job->pins, &job->task.pinned_choice, &fixed, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    job->task.fixed = fixed;
}

/* An algorithm that leaves out what the command line asks for is refused. */
static void check_pins(const struct shard_job *job)
{
    const struct ap_pins *pins = &job->pins;
    for (int i = 0; pins->n > 0 && i < job->graph.n_nodes; i++) {
        if (!pins->pinned[i] || !pins->asker[i])
            continue;
        struct ap_layout l = ap_plan_node_layout(&job->answer.plan, i);
        if (!ap_layout_equal(&l, &pins->layout[i]))
            ap_die_usage("%s keeps no pins: %s, %s", job->algorithm, pins->asker[i],
                         job->graph.nodes[i].name);
    }
}

/* The start joins the named plans, so that the space holds it. */
static double add_start(struct shard_job *job, const struct shard_request *req,
                        struct ap_plan *start)
{
    struct shard_task *task = &job->task;
    double sec = given_plan(job, req, start);
    task->plans[task->n_plans] = *start;
    task->plan_sec[task->n_plans++] = sec;
    return sec;
}

/* Runs a search that knows no microbatch axis on the whole batch and takes its plan. */
static int run_whole(struct shard_job *job, shard_fn *run, struct ap_err *err)
{
    struct shard_task task = job->task;
    struct ap_plan *plan = &job->answer.plan;
    struct ap_mesh mesh = job->cost.mesh;
    struct ap_cost cost;

    ap_mesh_drop_microbatches(&mesh);
    if (ap_cost_init(job->arena, &cost, job->cost.variant, &job->cluster, &mesh, err))
        return -1;
    task.cost = &cost;
    task.microbatch_choice = NULL;
    task.pins = job->device_pins.n > 0 ? &job->device_pins : NULL;
    int rc = run(job->arena, &task, &job->answer, err);
    ap_cost_free(&cost);
    if (rc)
        return -1;
    shard_choices_on_mesh(&job->task, &mesh, plan->choice);
    plan->mesh = job->cost.mesh;
    plan->microbatch_choice = job->microbatch_choice;
    struct ap_err why = {0};
    if (ap_plan_check(plan, &job->cost, &why))
        return ap_err_set(err, "%s, in microbatches: %s", job->algorithm, why.msg);
    return 0;
}

void shard_job_run(struct shard_job *job, const struct shard_request *req)
{
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];
    struct ap_err err = {0};
    struct ap_plan start;
    double start_sec = INFINITY;

    set_task(job, req);
    job->algorithm = row->name;
    if (row->compares_rules)
        shard_list_named_plans(job->arena, &job->task);
    if (req->plan_path) {
        given_plan(job, req, &job->answer.plan);
        job->answer.objective = -1;
        job->answer.stopped = "given";
        job->algorithm = "plan";
        return;
    }
    if (req->solution_path) {
        if (shard_solution(job->arena, &job->task, req->solution_path, &job->answer,
                           &err))
            ap_die(AP_BAD_INPUT, "%s", err.msg);
        check_pins(job);
        job->algorithm = "solution";
        return;
    }
    if (req->start_path)
        start_sec = add_start(job, req, &start);
    if (job->cost.mesh.microbatch && row->whole_batch ? run_whole(job, row->run, &err)
        : ap_cost_overlaps(&job->cost)
            ? shard_overlap(job->arena, &job->task, row->run, &job->answer, &err)
            : row->run(job->arena, &job->task, &job->answer, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    check_pins(job);
    if (job->answer.note)
        ap_warn("%s", job->answer.note);
    if (job->memory_bytes == 0 && job->answer.objective >= 0 &&
        start_sec < job->answer.objective) {
        job->answer.plan = start; /* pins kept the search from it */
        job->answer.objective = start_sec;
        job->answer.bound = fmin(job->answer.bound, start_sec);
    }
}

static _Noreturn void die_too_large(const struct shard_job *job, int64_t peak)
{
    struct ap_arena *arena = job->arena;

    ap_die(AP_NO_SOLUTION,
           "%s needs %s (%lld bytes) per device, more than %s: it holds %s",
           job->algorithm, mem_size_text(arena, peak), (long long)peak,
           mem_size_text(arena, job->memory_bytes),
           mem_holders(arena, &job->answer.plan, &job->cost));
}

struct shard_result shard_job_result(struct shard_job *job,
                                     const struct shard_request *req)
{
    struct ap_err err = {0};
    struct ap_conversions conv;
    struct ap_program prog;
    struct ap_buf json = {0};
    struct shard_answer *a = &job->answer;

    a->plan.recompute_heavy = req->params.recompute_heavy;
    double sec = shard_price(job->arena, &a->plan, &job->cost, &conv, &err);
    if (!isfinite(sec) || ap_partition(job->arena, &a->plan, &conv, &prog, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_plan_buffers(job->arena, &prog, 0);
    bool limited =
        job->memory_bytes > 0 && !shard_algorithms()[req->algorithm].limits_params;
    if (limited && prog.peak_bytes > job->memory_bytes)
        die_too_large(job, prog.peak_bytes);
    /* or the selection problem misstates the plan's price */
    assert(a->objective < 0 || fabs(sec - a->objective) <= 1e-9 * sec);
    struct ap_sharding s = {
        .plan = a->plan,
        .algorithm = job->algorithm,
        .solver = a->solver,
        .cost_model = ap_cost_variant_names[req->cost_model],
        .stopped = a->stopped,
        .alpa = job->cost.alpa,
        .objective_sec = sec,
        .lower_bound_sec = fmin(a->bound, sec),
        .peak_bytes = prog.peak_bytes,
        .limit_bytes = limited ? job->memory_bytes : 0,
        .device_bytes = job->cluster.memory_bytes,
        .graph_fingerprint = ap_graph_fingerprint(job->arena, &job->graph),
        .cluster_fingerprint = ap_cluster_fingerprint(job->arena, &job->cluster),
    };
    ap_sharding_to_json(&s, &conv, &json);
    return (struct shard_result){
        .json = json,
        .found = ap_arena_printf(
            job->arena,
            ",\"algorithm\":\"%s\",\"words\":\"%s\",\"objective_sec\":%.9g,"
            "\"lower_bound_sec\":%.9g%s",
            s.algorithm, ap_plan_words(job->arena, &a->plan), s.objective_sec,
            s.lower_bound_sec, a->found ? a->found : ""),
        .stats = a->stats ? a->stats : "",
        .objective = s.objective_sec,
        .bound = s.lower_bound_sec,
    };
}
