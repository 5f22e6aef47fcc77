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

const struct plan_algorithm *stage_algorithm(const struct stage_options *r)
{
    return r->plan_path ? plan_given_algorithm() : &plan_algorithms()[r->algorithm];
}

/* Runs a planner and prices what it finds. 0; 1: no plan, why says so; -1. */
static int run_priced(struct ap_arena *arena, plan_fn *run,
                      const struct plan_instance *inst, const struct plan_params *params,
                      struct plan_answer *answer, struct ap_err *why)
{
    double least;
    int rc = run(arena, inst, params, answer, why);

    if (rc == 0)
        rc = plan_judge(arena, inst, answer, why);
    return rc == 0 ? inst->price(inst->pricer, answer, &least, why) : rc;
}

/*
 * Plans for when what is recomputed takes no time: with little of it they may be the
 * best. Some for each number of microbatches, which trade memory for time, too, and some
 * that leave memory for what is kept. *bound: of all of them.
 */
static int plan_light(struct ap_arena *arena, const struct planning *p,
                      const struct plan_instance *inst, struct stage_pricer *pricer,
                      double *bound, struct ap_err *err)
{
    static const double shares[] = {1, 0.8, 0.6}; /* of the memory */
    struct plan_instance free = *inst;

    *bound = INFINITY;
    free.ask = stage_oracle_ask_light;
    free.n_microbatches = 1;
    for (int i = 0; i < inst->n_microbatches; i++) {
        int rc = 0;
        free.microbatches = &inst->microbatches[i];
        for (size_t k = 0; k < sizeof shares / sizeof *shares && rc == 0; k++) {
            struct plan_answer one = {.replicas = 1, .chunks = 1};
            struct ap_err why = {0};
            free.memory_bytes = (int64_t)(shares[k] * (double)inst->memory_bytes);
            free.below = stage_pricer_least(pricer);
            rc = run_priced(arena, p->algo->run, &free, &p->params, &one, &why);
            if (rc < 0)
                return ap_err_set(err, "%s", why.msg);
            /* with less memory it says nothing of all plans */
            if (k == 0 && (rc == 0 || one.bound > 0))
                *bound = fmin(*bound, one.bound);
        }
    }
    return 0;
}

#define REPLANS     5
#define LEAST_SHARE 64 /* of the memory is planned without: few bytes change nothing */

/*
 * Values that wait for their stage may make all quick plans too large: the planner runs
 * again with as much less memory as the quickest of these lacks, then with twice as much
 * less as it still lacks, until what it finds fits or is no quicker than the best; then
 * half way between a limit that was too high and one that was low enough.
 */
static int plan_lean(struct ap_arena *arena, plan_fn *run, const struct planning *p,
                     const struct plan_instance *inst, struct stage_pricer *pricer,
                     struct ap_err *err)
{
    const int64_t memory = inst->memory_bytes;
    struct plan_instance its = *inst;
    const int64_t least = memory / LEAST_SHARE;
    int64_t high = memory, low = 0;

    for (int i = 0; i < REPLANS; i++) {
        struct plan_answer lean = {.replicas = 1, .chunks = 1};
        struct ap_err why = {0};
        const int64_t lacks = stage_pricer_lacks(pricer), less = lacks * (i > 0 ? 2 : 1);

        if (lacks > 0)
            high = its.memory_bytes;
        else
            low = its.memory_bytes;
        if (high - low < least)
            return 0;
        its.memory_bytes =
            low > 0 ? low + (high - low) / 2 : high - (less > least ? less : least);
        if (its.memory_bytes <= 0)
            return 0;
        its.below = stage_pricer_least(pricer);
        int rc = run_priced(arena, run, &its, &p->params, &lean, &why);
        if (rc < 0)
            return ap_err_set(err, "%s", why.msg);
        if (rc > 0 && !isfinite(its.below))
            return 0;
    }
    return 0;
}

/* The plan of --start, however slow it seems, and leaner ones of its stages. */
static int plan_start(struct ap_arena *arena, const struct planning *p,
                      const struct plan_instance *inst, struct stage_pricer *pricer,
                      struct ap_err *err)
{
    struct plan_answer plan = {.replicas = 1, .chunks = 1};
    struct ap_err why = {0};

    int rc = run_priced(arena, plan_given, inst, &p->params, &plan, &why);
    if (rc < 0)
        return ap_err_set(err, "%s", why.msg);
    if (rc > 0)
        ap_warn("--start: %s", why.msg);
    return rc > 0 || p->select ? 0 : plan_lean(arena, plan_given, p, inst, pricer, err);
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
    start_oracle(arena, p, inst, pool);
}

/* All plans that are looked for, priced. 0; 1: no plan, err says so; -1. */
static int price_plans(struct ap_arena *arena, const struct planning *p,
                       const struct plan_instance *inst, struct stage_pricer *pricer,
                       struct plan_answer *answer, double *bound, struct ap_err *err)
{
    int rc = run_priced(arena, p->algo->run, inst, &p->params, answer, err);

    *bound = answer->bound;
    if (rc == 0 && p->select)
        rc = plan_light(arena, p, inst, pricer, bound, err);
    else if (rc == 0 && p->algo->replans)
        rc = plan_lean(arena, p->algo->run, p, inst, pricer, err);
    if (rc == 0 && p->in->r->start_path)
        rc = plan_start(arena, p, inst, pricer, err);
    return rc;
}

/* planning_run without the warning, which is left in err. */
static int find_plan(struct ap_arena *arena, const struct planning *p,
                     const struct plan_instance *inst, struct plan_answer *answer,
                     struct ap_stages *stages, struct stage_result *out,
                     struct ap_err *err)
{
    const struct stage_pricing of = {.model = p->model,
                                     .inst = inst,
                                     .oracle = p->oracle,
                                     .blank = &p->stages,
                                     .select = p->select,
                                     .work = p->params.work};
    struct stage_pricer *pricer = stage_pricer_start(&of);
    struct plan_instance its = *inst;
    double bound;

    its.price = stage_pricer_price;
    its.pricer = pricer;
    int rc = price_plans(arena, p, &its, pricer, answer, &bound, err);
    if (rc == 0) {
        stage_result_make(arena, pricer, answer, bound, stages, out);
        answer->n_stages = stages->n;
        answer->microbatches = stages->microbatches;
    }
    const bool broken = stage_oracle_broken(p->oracle) || stage_pricer_failed(pricer);
    stage_pricer_stop(pricer);
    if (rc < 0 && !broken) /* the planner has no plans of this kind */
        return AP_USAGE;
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

/* As in struct plan_ask_again. */
static int written(void *ctx, const struct plan_instance *inst,
                   const struct plan_params *params, int64_t *peak_bytes,
                   struct ap_err *err)
{
    struct planning its = *(const struct planning *)ctx;
    struct ap_arena scratch = {0};
    struct plan_answer answer = {.replicas = 1, .chunks = 1};
    struct ap_stages stages;
    struct stage_result result = {0};

    its.params = *params;
    find_plan(&scratch, &its, inst, &answer, &stages, &result, err);
    if (result.peak_bytes > 0)
        *peak_bytes = result.peak_bytes;
    ap_buf_free(&result.json);
    ap_arena_free(&scratch);
    return result.peak_bytes > 0 ? 0 : 1;
}

struct grid_want planning_grids(const struct stage_options *r,
                                const struct plan_instance *inst, enum grid_family family)
{
    return (struct grid_want){.family = family,
                              .inst = inst,
                              .n_stages = r->params.n_stages,
                              .schedule = r->params.schedule,
                              .recompute = (enum stage_recompute)r->recompute,
                              .each = r->limits.each,
                              .resharding = (enum ap_resharding)r->resharding,
                              .below = INFINITY};
}

/* Whether grids are plans that were asked for: of all shardings and submeshes. */
static bool takes_grids(const struct planning *p, const struct plan_instance *inst)
{
    const struct stage_options *r = p->in->r;

    return p->algo->run == plan_auto && !inst->inference && p->model->n_kinds == 1 &&
           p->model->batch > 0 && p->params.schedule != AP_SCHEDULE_EAGER &&
           !r->command && p->params.n_submeshes == 0;
}

/*
 * What experts find by hand is no worse a plan: the best line of the grids, where it is
 * quicker than the plan that was found, or fits where none does.
 */
static int take_grids(struct ap_arena *arena, const struct planning *p,
                      const struct grid_want *want, struct plan_answer *answer,
                      struct ap_stages *stages, struct stage_result *out,
                      struct ap_err *err)
{
    int code = isfinite(want->below) ? AP_OK : AP_NO_SOLUTION; /* of the other search */
    struct ap_stages like = code == AP_OK ? *stages : p->stages;
    struct grid_found found;
    struct ap_err why = {0};

    ap_work_tell(p->params.work, "grids", want->below, like.lower_bound_sec);
    if (grid_search(arena, p->model, want, &found, &why))
        return ap_err_set(err, "%s", why.msg), AP_BAD_INPUT;
    if (found.found) {
        struct ap_buf old = code == AP_OK ? out->json : (struct ap_buf){0};
        like.stopped = code == AP_OK ? like.stopped : "grids only";
        if (grid_take(arena, p->model, &found, &like, stages, out, &why))
            return ap_err_set(err, "%s", why.msg), AP_BAD_INPUT;
        ap_buf_free(&old);
        answer->n_stages = stages->n;
        answer->microbatches = stages->microbatches;
        *err = (struct ap_err){0};
        code = AP_OK;
    }
    if (code == AP_OK)
        grid_put_rows(arena, &found, &out->json);
    return code;
}

int planning_run(struct ap_arena *arena, const struct planning *p,
                 const struct plan_instance *inst, struct plan_answer *answer,
                 struct ap_stages *stages, struct stage_result *out, struct ap_err *err)
{
    int code = find_plan(arena, p, inst, answer, stages, out, err);

    if ((code == AP_OK || code == AP_NO_SOLUTION) && takes_grids(p, inst)) {
        struct grid_want want = planning_grids(p->in->r, inst, GRID_MEGATRON);
        want.below = code == AP_OK ? out->objective_sec : INFINITY;
        code = take_grids(arena, p, &want, answer, stages, out, err);
    }
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
    const struct grid_want want = planning_grids(p->in->r, inst, GRID_MEGATRON);
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
