/*
 * A run of the planner, from the options to the section as it is written, and the message
 * where there is no plan.
 */
#include "planning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "explain.h"
#include "doc/families_json.h"
#include "search/space.h"

static void add_plan(struct ap_buf *plans, const struct plan_answer *a)
{
    const struct plan_answer *known = (const void *)plans->data;
    for (size_t i = 0; i < plans->len / sizeof *a; i++)
        if (plan_same(&known[i], a))
            return;
    ap_buf_put(plans, a, sizeof *a);
}

/* Row of what was asked for: of the table, or of --plan. */
static const struct plan_algorithm *stage_algorithm(const struct stage_options *r)
{
    return r->plan_path ? plan_given_algorithm() : &plan_algorithms()[r->algorithm];
}

/* Plans for when what is recomputed takes no time. */
struct light {
    double bound;        /* of all of them */
    struct ap_buf plans; /* struct plan_answer */
};

/* Plans of one number of microbatches in so much memory; 1: there is none. */
static int plan_light_one(struct ap_arena *arena, const struct stage_options *r,
                          const struct plan_instance *free, bool is_whole,
                          struct light *light, struct ap_err *err)
{
    struct plan_answer one = {.replicas = 1, .chunks = 1};
    struct ap_err why = {0};

    int rc = stage_algorithm(r)->run(arena, free, &r->params, &one, &why);
    if (rc == 0)
        rc = plan_judge(arena, free, &one, &why);
    if (rc < 0)
        return ap_err_set(err, "%s", why.msg);
    if (rc > 0)
        return 1;
    if (is_whole) /* with less memory it says nothing of all plans */
        light->bound = fmin(light->bound, one.bound);
    add_plan(&light->plans, &one);
    for (int i = 0; i < one.n_others; i++)
        add_plan(&light->plans, &one.others[i]);
    return 0;
}

/* Blocks times devices up to which rows beside auto are asked, too. */
#define MOST_OF_ROWS 8192

/* What other rows of the table find: a selection of what is recomputed may make any of
 * their plans the best one (tests/auto.bats). */
static void add_rows(struct ap_arena *arena, const struct stage_options *r,
                     const struct plan_instance *free, struct light *light)
{
    if (stage_algorithm(r)->run != plan_auto ||
        (int64_t)free->n_blocks * free->n_hosts * free->n_devices > MOST_OF_ROWS)
        return;
    for (const struct plan_algorithm *a = plan_algorithms(); a->name; a++) {
        struct plan_answer one = {.replicas = 1, .chunks = 1};
        struct ap_err why = {0};
        if (a->run && a->run != plan_auto && a->run != plan_exhaustive &&
            (free->n_kinds <= 1 || a->kinds) &&
            a->run(arena, free, &r->params, &one, &why) == 0 &&
            plan_judge(arena, free, &one, &why) == 0)
            add_plan(&light->plans, &one);
    }
}

/*
 * Plans for when what is recomputed takes no time, as out->others: with little of it they
 * may be the best. Some for each number of microbatches, which trade memory for time,
 * too, and some that leave memory for what is kept. The bound is of all of them.
 */
static int plan_light(struct ap_arena *arena, const struct stage_options *r,
                      const struct plan_instance *inst, struct plan_answer *out,
                      struct ap_err *err)
{
    static const double shares[] = {1, 0.8, 0.6}; /* of the memory */
    struct plan_instance free = *inst;
    struct light light = {.bound = INFINITY};
    int rc = 0;

    free.ask = stage_oracle_ask_light;
    free.n_microbatches = 1;
    for (int i = 0; i < inst->n_microbatches && rc >= 0; i++) {
        free.microbatches = &inst->microbatches[i];
        rc = 0;
        const size_t n = inst->memory_bytes > 0 ? sizeof shares / sizeof *shares : 1;
        for (size_t k = 0; k < n && rc == 0; k++) {
            free.memory_bytes = (int64_t)(shares[k] * (double)inst->memory_bytes);
            rc = plan_light_one(arena, r, &free, k == 0, &light, err);
            if (rc == 0)
                add_rows(arena, r, &free, &light);
        }
    }
    out->bound = light.bound;
    out->n_others = (int)(light.plans.len / sizeof *out);
    out->others = ap_arena_dup(arena, light.plans.data, light.plans.len);
    ap_buf_free(&light.plans);
    return rc < 0 ? -1 : 0;
}

/* ---- the plan, as it is written ---- */

static void start_oracle(struct ap_arena *arena, struct planning *p,
                         struct plan_instance *inst, struct coproc_pool *const *pool)
{
    p->oracle = stage_oracle_start(arena, p->model, inst, &p->oracle_params, pool);
    inst->ask = stage_oracle_ask;
    inst->ahead = stage_oracle_ahead;
    inst->least = stage_oracle_least;
    inst->oracle = p->oracle;
}

/* Whether grids are plans that were asked for: of all shardings and submeshes. */
static bool takes_grids(const struct planning *p, const struct plan_instance *inst)
{
    const struct stage_options *r = p->in->r;

    return p->algo->run == plan_auto && !inst->inference && p->model->n_kinds == 1 &&
           p->model->batch > 0 && p->params.schedule != AP_SCHEDULE_EAGER &&
           !r->command && p->params.n_submeshes == 0;
}

void planning_start(struct ap_arena *arena, const struct input *in,
                    struct coproc_pool *const *pool, struct plan_instance *inst,
                    struct planning *p)
{
    const struct stage_options *r = in->r;
    const struct plan_algorithm *algo = stage_algorithm(r);

    *p = (struct planning){
        .in = in,
        .algo = algo,
        .model = in->model,
        .params = r->params,
        .select = r->recompute == STAGE_RECOMPUTE_SELECTED && !inst->inference,
        .oracle_params = {.limit_sec = r->limit_sec,
                          .recompute = (enum stage_recompute)r->recompute},
        .stages = {.algorithm = algo->name,
                   .shard_command = r->command ? r->command : "ap-shard --serve",
                   .each = r->limits.each,
                   .resharding = (enum ap_resharding)r->resharding,
                   .limit_bytes = r->limits.memory_bytes,
                   .throughput = inst->inference && !r->params.latency}};
    p->offloads =
        takes_grids(p, inst) && in->model->cluster.host_link.out_bytes_per_sec > 0;
    start_oracle(arena, p, inst, pool);
}

/*
 * Lines may keep values on the host, and so may the planner's plans (stages.offload),
 * which are not searched. Copies only add time, so that they take no less than plans
 * without a limit of memory: these are searched for their bound.
 */
static int bound_offloaded(struct ap_arena *arena, const struct planning *p,
                           const struct plan_instance *inst, double *bound,
                           struct ap_err *err)
{
    struct plan_instance free = *inst;
    struct plan_answer all = {.replicas = 1, .chunks = 1};

    if (!p->offloads || inst->memory_bytes == 0)
        return 0;
    free.memory_bytes = 0;
    if (p->select ? plan_light(arena, p->in->r, &free, &all, err)
                  : p->algo->run(arena, &free, &p->params, &all, err))
        return -1;
    *bound = fmin(*bound, all.bound);
    return 0;
}

/* The section of the planner's answer, or of a better one of its others. */
static int write_plan(struct ap_arena *arena, const struct planning *p,
                      const struct plan_instance *inst, struct plan_answer *answer,
                      struct ap_stages *stages, struct stage_result *out,
                      struct ap_err *err)
{
    struct plan_answer light = {.replicas = 1, .chunks = 1};
    const struct stage_replan replan = {p->algo->run, &p->in->r->params,
                                        p->algo->run == plan_given},
                              given = {plan_given, &p->in->r->params, true};
    const struct stage_candidates of = {.model = p->model,
                                        .inst = inst,
                                        .oracle = p->oracle,
                                        .light = p->select ? &light : NULL,
                                        .work = p->params.work,
                                        .simple = p->select ? 0 : p->in->r->simple / 100,
                                        .replan = p->algo->replans && !p->select ? &replan
                                                                                 : NULL,
                                        .given = p->in->r->start_path ? &given : NULL};

    *stages = p->stages;
    if ((p->select && plan_light(arena, p->in->r, inst, &light, err)) ||
        bound_offloaded(arena, p, inst, p->select ? &light.bound : &answer->bound, err))
        return -1;
    return stage_result_make(arena, &of, answer, stages, out, err);
}

/* As in struct plan_ask_again. */
static int written(void *ctx, const struct plan_instance *inst,
                   const struct plan_answer *plan, int64_t *peak_bytes,
                   struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct planning fits = *(const struct planning *)ctx;
    struct plan_answer answer = *plan;
    struct ap_stages stages;
    struct stage_result result;

    fits.offloads = false; /* whatever the bound */
    int rc = write_plan(&scratch, &fits, inst, &answer, &stages, &result, err);
    if (rc == 0) {
        *peak_bytes = result.peak_bytes;
        ap_buf_free(&result.json);
    }
    ap_arena_free(&scratch);
    return rc;
}

/* planning_run without the warning, which is left in err. */
static int find_plan(struct ap_arena *arena, const struct planning *p,
                     const struct plan_instance *inst, struct plan_answer *answer,
                     struct ap_stages *stages, struct stage_result *out,
                     struct ap_err *err)
{
    int rc = p->algo->run(arena, inst, &p->params, answer, err);

    if (rc < 0 && !stage_oracle_broken(p->oracle)) /* that is not its kind */
        return AP_USAGE;
    if (rc == 0)
        rc = plan_judge(arena, inst, answer, err);
    if (rc == 0)
        rc = write_plan(arena, p, inst, answer, stages, out, err);
    if (rc)
        return rc > 0 ? AP_NO_SOLUTION : AP_BAD_INPUT;
    if (inst->memory_bytes == 0 || out->peak_bytes <= inst->memory_bytes)
        return AP_OK;
    ap_err_set(err,
               "%s: with activations that arrive early from other stages a device needs "
               "%lld bytes, of %lld",
               p->algo->name, (long long)out->peak_bytes, (long long)inst->memory_bytes);
    return p->algo->replans ? AP_NO_SOLUTION : AP_OK;
}

struct grid_want planning_grids(const struct stage_options *r,
                                const struct plan_instance *inst,
                                const struct grid_space *space)
{
    return (struct grid_want){.space = space,
                              .inst = inst,
                              .n_stages = r->params.n_stages,
                              .schedule = r->params.schedule,
                              .recompute = (enum stage_recompute)r->recompute,
                              .each = r->limits.each,
                              .resharding = (enum ap_resharding)r->resharding,
                              .below = INFINITY};
}

/* Whether plans of the schedule that is asked for are lines. */
static bool has_lines_only(const struct planning *p)
{
    const int schedule = p->params.schedule;

    return p->algo->run == plan_auto && schedule >= 0 &&
           (ap_schedule_traits[schedule].splits || schedule == AP_SCHEDULE_LOOPED_BFS);
}

/* What a simpler plan takes the place of: member "best" of the section. */
static void put_best(const char *words, double step_sec, struct ap_buf *section)
{
    section->len--; /* the object goes on */
    ap_buf_puts(section, ",\"best\":{\"words\":");
    ap_json_str(section, words);
    ap_put_key(section, "step_sec");
    ap_json_num(section, step_sec);
    ap_buf_puts(section, "}}");
}

/* Whether the planner's simpler plan is still little slower than the best one, now that
 * lines are known, and simpler than these, or as simple and quicker. */
static bool takes_own(const struct stage_simpler *own, const struct grid_want *want,
                      const struct grid_found *found)
{
    const struct grid_row *line = &found->simple;
    const double best = fmin(found->step_sec, want->below);

    if (!own || own->step_sec > (1 + want->simple) * best)
        return false;
    if (!line->found && !found->found)
        return true;
    const struct stage_simplicity is =
        stage_simplicity_of(line->found ? &line->line : &found->line, false);
    const int order = stage_simplicity_compare(&own->is, &is);
    return order < 0 || (order == 0 && line->found && own->step_sec <= line->step_sec);
}

static void take_own(const struct stage_simpler *own, struct plan_answer *answer,
                     struct stage_result *out)
{
    out->json.len = 0;
    ap_buf_puts(&out->json, own->json);
    out->objective_sec = own->step_sec;
    out->peak_bytes = own->peak_bytes;
    out->found = own->found;
    answer->n_stages = own->n_stages;
    answer->microbatches = own->microbatches;
}

/*
 * What experts find by hand is no worse a plan: the best line of the grids, where it is
 * quicker than the plan that was found, or fits where none does; or the simplest plan
 * that is little slower than the best one.
 */
static int take_grids(struct ap_arena *arena, const struct planning *p,
                      struct grid_want *want, struct plan_answer *answer,
                      struct ap_stages *stages, struct stage_result *out,
                      struct ap_err *err)
{
    int code = isfinite(want->below) ? AP_OK : AP_NO_SOLUTION; /* of the other search */
    const struct stage_simpler *own = code == AP_OK ? out->simpler : NULL;
    struct ap_stages like = code == AP_OK ? *stages : p->stages;
    struct ap_buf best = {0};
    struct grid_found found;
    struct ap_err why = {0};

    if (code == AP_OK && want->simple > 0)
        ap_buf_puts(&best, stage_result_words(arena, p->model, &out->json, &want->is));
    ap_work_tell(p->params.work, "grids", want->below, like.lower_bound_sec);
    if (grid_search(arena, p->model, want, &found, &why))
        return ap_err_set(err, "%s", why.msg), AP_BAD_INPUT;
    /* its bound is of plans made of fronts, which a line may be below */
    const bool takes = takes_own(own, want, &found) &&
                       fmin(found.step_sec, want->below) >= like.lower_bound_sec;
    if (takes) {
        take_own(own, answer, out);
    } else if (found.found || found.simple.found) {
        struct ap_buf old = code == AP_OK ? out->json : (struct ap_buf){0};
        like.stopped = code == AP_OK ? like.stopped : "grids only";
        if (has_lines_only(p))
            like.lower_bound_sec = INFINITY; /* found.least_sec */
        if (grid_take(arena, p->model, &found, &like, stages, out, &why))
            return ap_err_set(err, "%s", why.msg), AP_BAD_INPUT;
        ap_buf_free(&old);
        answer->n_stages = stages->n;
        answer->microbatches = stages->microbatches;
        *err = (struct ap_err){0};
        code = AP_OK;
    }
    if (found.found) {
        best.len = 0;
        ap_line_words(&found.line, &best);
    }
    if (takes || found.simple.found)
        put_best(best.data, fmin(found.step_sec, want->below), &out->json);
    ap_buf_free(&best);
    if (code == AP_OK)
        grid_put_rows(arena, &found, &out->json);
    return code;
}

int planning_run(struct ap_arena *arena, const struct planning *p,
                 const struct plan_instance *inst, struct plan_answer *answer,
                 struct ap_stages *stages, struct stage_result *out, struct ap_err *err)
{
    const bool lines_only = has_lines_only(p);
    int code = AP_NO_SOLUTION;

    if (lines_only && !takes_grids(p, inst))
        return ap_err_set(err,
                          "--schedule %s: only lines (--grid) have it, which are not "
                          "searched beside --shard-command, --submeshes or several kinds "
                          "of devices",
                          ap_schedule_names[p->params.schedule]),
               AP_USAGE;
    if (!lines_only)
        code = find_plan(arena, p, inst, answer, stages, out, err);
    if (code == AP_OK && out->in_other_units)
        ap_warn(
            "no lower bound is written: that of the search is above its plan's step, as "
            "if --shard-command did not answer in seconds");
    if ((code == AP_OK || code == AP_NO_SOLUTION) && takes_grids(p, inst)) {
        const struct grid_space all = grid_space_all();
        struct grid_want want = planning_grids(p->in->r, inst, &all);
        want.below = code == AP_OK ? out->objective_sec : INFINITY;
        want.simple = p->in->r->simple / 100;
        code = take_grids(arena, p, &want, answer, stages, out, err);
    }
    if (lines_only && code == AP_NO_SOLUTION && !*err->msg)
        ap_err_set(
            err,
            "--schedule %s: no line that fits has it: a line has two sets of devices "
            "or more, %d stages or more on each, all of as many layers, and "
            "micro-batches of 1 to 16 samples; there are %d blocks",
            ap_schedule_names[p->params.schedule],
            ap_schedule_traits[p->params.schedule].least_chunks, inst->n_blocks);
    if (code == AP_OK && *err->msg)
        ap_warn("%s", err->msg);
    return code;
}

/* ---- where there is none ---- */

/* No plan that keeps its activations fits: says so if one that recomputes them does. */
static void suggest_recompute(struct ap_arena *arena, const struct planning *p,
                              const struct plan_instance *inst, struct ap_err *err)
{
    struct stage_oracle_params params = p->oracle_params;
    struct plan_instance again = *inst;
    struct plan_answer answer = {.replicas = 1, .chunks = 1};
    struct ap_err why = {0}, both = {0};

    params.recompute = STAGE_RECOMPUTE_AUTO;
    again.oracle = stage_oracle_share(inst->oracle, &params);
    int rc = p->algo->run(arena, &again, &p->params, &answer, &why);
    if (rc == 0 && plan_judge(arena, &again, &answer, &why) == 0) {
        ap_err_set(&both,
                   "%s; or --recompute auto: %d stages, %lld microbatches with "
                   "recomputation fit",
                   err->msg, answer.n_stages, (long long)answer.microbatches);
        *err = both;
    }
    stage_oracle_stop(again.oracle);
}

/* As in struct plan_ask_again: all is asked anew, since there are larger submeshes. */
static bool fits_on(void *ctx, const struct plan_instance *inst, int times)
{
    struct planning its = *(const struct planning *)ctx;
    struct ap_arena scratch = {0};
    struct stage_model model = *its.model;
    struct plan_instance larger = *inst;
    struct plan_answer answer = {.replicas = 1, .chunks = 1};
    struct ap_stages stages;
    struct stage_result result = {0};
    struct ap_err why = {0};

    model.cluster.levels[model.cluster.n_levels - 1].size *= times;
    larger.cluster = &model.cluster;
    larger.n_hosts *= times;
    larger.links = plan_links_new(&scratch);
    its.model = &model;
    model.kind = &model.cluster;
    struct coproc_pool *pool = stage_input_command_on(its.in, &model.cluster);
    start_oracle(&scratch, &its, &larger, &pool);
    int code = find_plan(&scratch, &its, &larger, &answer, &stages, &result, &why);
    stage_oracle_stop(its.oracle);
    ap_buf_free(&result.json);
    ap_arena_free(&scratch);
    return code == AP_OK;
}

/*
 * The shard command reads families, too, and names the file that it was given if they are
 * wrong. Whoever has broken may have found that: the document's own name is said then.
 */
static void blame_families(const struct input *in)
{
    struct ap_arena scratch = {0};
    struct ap_families families;
    struct ap_err err = {0};

    if (ap_doc_families(&scratch, in->doc, &in->model->graph, &families, &err) < 0)
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_arena_free(&scratch);
}

/* As in struct plan_ask_again. */
static bool line_fits(void *ctx, const struct plan_instance *inst, struct plan_found *out)
{
    const struct planning *p = ctx;
    const struct grid_space all = grid_space_all();
    const struct grid_want want = planning_grids(p->in->r, inst, &all);
    struct ap_arena scratch = {0};
    struct grid_found found;
    struct ap_err why = {0};

    bool fits = grid_search(&scratch, p->model, &want, &found, &why) == 0 && found.found;
    if (fits)
        *out = (struct plan_found){ap_line_stages(&found.line), found.microbatches,
                                   found.peak_bytes, found.line.schedule,
                                   found.line.recompute != AP_LINE_RECOMPUTE_NONE};
    ap_arena_free(&scratch);
    return fits;
}

_Noreturn void planning_give_up(struct ap_arena *arena, struct planning *p,
                                const struct plan_instance *inst, int code,
                                struct ap_err *err)
{
    const struct plan_ask_again again = {
        .row = p->algo,
        .written = p->algo->replans ? written : NULL,
        .lines = takes_grids(p, inst) ? line_fits : NULL,
        .hosts = p->model->n_kinds > 1 || p->params.given ? NULL : fits_on,
        .ctx = p};
    struct stage_oracle_stats stats;

    stage_oracle_stats(p->oracle, &stats);
    const char *refusal = stage_oracle_refusal(p->oracle);
    if (code == AP_NO_SOLUTION) {
        plan_explain(inst, &p->params, &again, err);
        if (p->oracle_params.recompute == STAGE_RECOMPUTE_NONE)
            suggest_recompute(arena, p, inst, err);
    }
    bool broken = stage_oracle_broken(p->oracle);
    stage_oracle_stop(p->oracle);
    if (broken)
        blame_families(p->in);
    if (stats.n_requests > 0 && stats.n_refused == stats.n_requests)
        ap_die(code, "%s; the shard command refused every request: %s", err->msg,
               refusal);
    if (code == AP_NO_SOLUTION && stats.n_refused > 0)
        ap_die(code, "%s; the shard command refused %lld of %lld requests, one with: %s",
               err->msg, (long long)stats.n_refused, (long long)stats.n_requests,
               refusal);
    ap_die(code, "%s", err->msg);
}
