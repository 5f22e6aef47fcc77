/* One question of ap-shard, from a document to the section "sharding". */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "program.h"
#include "shard.h"
#include "tofu.h"
#include "tool.h"

#define N_SEARCHES 4

const struct shard_algorithm *shard_algorithms(void)
{
    static struct shard_algorithm table[N_SEARCHES + AP_N_BASELINES + 1] = {
        {"ilp", "integer program over all strategies, proven bound", shard_ilp, -1},
        {"tofu", "halve the devices again and again, each time moving least", shard_tofu,
         -1},
        {"tap", "a pattern per weight, all plans of each block that repeats", shard_tap,
         -1},
        {"rhino", "Rhino: candidates by flooding, cones, segments, in bytes", shard_rhino,
         -1},
    };
    for (int i = 0; i < AP_N_BASELINES; i++)
        table[N_SEARCHES + i] = (struct shard_algorithm){
            ap_baselines[i].name, ap_baselines[i].help, shard_rule, i};
    return table;
}

/* The axis that --batch-axis names; by default the first of two long ones. */
static int batch_axis(const struct ap_mesh *mesh, const char *text)
{
    int long_axes = 0;
    for (int a = 0; a < mesh->n_axes; a++) {
        long_axes += mesh->size[a] > 1;
        if (!text || strcmp(text, mesh->name[a]) != 0)
            continue;
        if (mesh->size[a] == 1)
            ap_die_usage("--batch-axis: axis %s has one device", text);
        return a;
    }
    if (text && strcmp(text, "none") != 0)
        ap_die_usage("--batch-axis: the mesh has no axis %s", text);
    return !text && long_axes == 2 ? 0 : -1;
}

static void set_alpa(struct shard_job *job, const struct shard_request *req)
{
    const struct ap_mesh *mesh = &job->cost.mesh;
    struct ap_err err = {0};

    if (mesh->n_axes > 2)
        ap_die_usage("--space alpa: a mesh of %d axes, Alpa's have two at most",
                     mesh->n_axes);
    if (shard_alpa_check(&job->graph, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    job->alpa.axis = batch_axis(mesh, req->batch_axis);
    if (job->alpa.axis >= 0)
        job->alpa.batch = shard_alpa_batch(job->arena, &job->graph, &job->nests);
    job->cost.alpa_steps = true;
}

void shard_job_read(struct shard_job *job, const struct shard_request *req,
                    const struct ap_doc *doc)
{
    struct ap_arena *arena = job->arena;
    struct ap_err err = {0};
    struct ap_mesh mesh;

    if (ap_doc_graph(arena, doc, &job->graph, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_group(arena, &job->graph); /* whatever the document says of groups */
    if (ap_nests_build(arena, &job->graph, &job->nests, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    if (ap_mesh_parse(arena, req->mesh_text, &mesh, &err))
        ap_die_usage("--mesh: %s", err.msg);
    if (shard_algorithms()[req->algorithm].run == shard_tofu) {
        struct ap_mesh halves;
        if (tofu_mesh(arena, &mesh, &halves, &err))
            ap_die_usage("--mesh: %s", err.msg);
        mesh = halves;
    }
    if (ap_cluster_get(arena, doc, req->cluster_path, ap_mesh_devices(&mesh),
                       &job->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (ap_cost_init(arena, &job->cost, (enum ap_cost_variant)req->cost_model,
                     &job->cluster, &mesh, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    if (req->space == SHARD_SPACE_ALPA)
        set_alpa(job, req);
    if (req->pin_mode == 0 &&
        shard_pins_read(arena, &job->graph, &mesh, &job->pins, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
}

void shard_job_families(struct shard_job *job, const struct ap_doc *doc)
{
    const struct ap_section *section = ap_doc_find(doc, "families");
    const struct ap_at at = {.key = "families"};
    struct ap_err err = {0};

    if (!section)
        return;
    json_t *o = ap_doc_load(doc, section, &err);
    if (!o ||
        ap_families_from_json(job->arena, o, &at, &job->graph, &job->families, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    json_decref(o);
    job->has_families = true;
}

static struct ap_plan empty_plan(const struct shard_task *task)
{
    return (struct ap_plan){.graph = task->graph,
                            .nests = task->nests,
                            .mesh = task->cost->mesh,
                            .recompute_heavy = task->params->recompute_heavy};
}

static double price_of(struct ap_arena *arena, const struct ap_plan *plan,
                       const struct ap_cost *cost, struct ap_conversions *conv,
                       struct ap_err *err)
{
    if (ap_plan_check(plan, cost, err) ||
        ap_plan_conversions(arena, plan, cost, conv, err))
        return INFINITY;
    return ap_plan_price(plan, cost, conv).serial_sec;
}

/* All baselines that exist and are legal under the cost model. */
static void list_baselines(struct ap_arena *arena, struct shard_task *task)
{
    struct ap_plan *plans = AP_NEW_N(arena, AP_N_BASELINES, struct ap_plan);
    double *sec = AP_NEW_N(arena, AP_N_BASELINES, double);
    int n = 0;

    for (int row = 0; row < AP_N_BASELINES; row++) {
        struct ap_conversions conv;
        struct ap_err err = {0};
        plans[n] = empty_plan(task);
        if (ap_baseline_plan(arena, row, &plans[n], &err))
            continue;
        sec[n] = price_of(arena, &plans[n], task->cost, &conv, &err);
        n += isfinite(sec[n]) ? 1 : 0;
    }
    task->n_plans = n;
    task->plans = plans;
    task->plan_sec = sec;
}

int shard_rule(struct ap_arena *arena, const struct shard_task *task,
               struct shard_answer *answer, struct ap_err *err)
{
    const char *name = ap_baselines[task->baseline].name;
    struct ap_err why = {0};

    if (task->pins && task->pins->n > 0)
        ap_warn("%s keeps no imported shardings: %d are ignored", name, task->pins->n);
    answer->plan = empty_plan(task);
    answer->objective = -1;
    answer->stopped = "rule";
    if (ap_baseline_plan(arena, task->baseline, &answer->plan, &why))
        return ap_err_set(err, "%s does not exist here: %s", name, why.msg);
    if (ap_plan_check(&answer->plan, task->cost, &why))
        return ap_err_set(err, "%s: %s", name, why.msg);
    return 0;
}

void shard_job_run(struct shard_job *job, const struct shard_request *req)
{
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];
    struct ap_err err = {0};
    struct shard_params params = req->params;
    params.alpa = req->space == SHARD_SPACE_ALPA ? &job->alpa : NULL;
    struct shard_task task = {.graph = &job->graph,
                              .nests = &job->nests,
                              .cost = &job->cost,
                              .families = job->has_families ? &job->families : NULL,
                              .pins = req->pin_mode == 0 ? &job->pins : NULL,
                              .params = &params,
                              .baseline = row->baseline};
    if (row->run != shard_rule && row->run != shard_rhino)
        list_baselines(job->arena, &task);
    if (row->run(job->arena, &task, &job->answer, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
}

struct ap_buf shard_job_finish(struct shard_job *job, const struct shard_request *req,
                               struct ap_sharding *sharding)
{
    struct ap_err err = {0};
    struct ap_conversions conv;
    struct ap_program prog;
    struct ap_buf json = {0};
    struct shard_answer *a = &job->answer;

    a->plan.recompute_heavy = req->params.recompute_heavy;
    double sec = price_of(job->arena, &a->plan, &job->cost, &conv, &err);
    if (!isfinite(sec) || ap_partition(job->arena, &a->plan, &conv, &prog, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_plan_buffers(job->arena, &prog);
    /* else problem and plan disagree */
    assert(a->objective < 0 || fabs(sec - a->objective) <= 1e-9 * sec);
    *sharding = (struct ap_sharding){
        .plan = a->plan,
        .algorithm = shard_algorithms()[req->algorithm].name,
        .solver = a->solver,
        .cost_model = ap_cost_variant_names[req->cost_model],
        .stopped = a->stopped,
        .alpa_space = req->space == SHARD_SPACE_ALPA,
        .objective_sec = sec,
        .lower_bound_sec = fmin(a->bound, sec),
        .peak_bytes = prog.peak_bytes,
    };
    ap_sharding_to_json(sharding, &conv, &json);
    return json;
}
