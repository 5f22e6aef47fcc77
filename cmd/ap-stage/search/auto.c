/*
 * Problem: the plan of least simulated step time over replicas, microbatches, schedules,
 * cuts, submeshes and points of each stage (recomputation among these), and a lower bound
 * on the step of every plan. Idea: grids that people type are simulated first
 * (auto_rules.c). Each number of replicas and microbatches under a schedule is a setting:
 * a dynamic programme over labels (auto_labels.c) finds plans near the setting's best,
 * with sends between stages and what is paid once per step; the n_kept plans of least
 * estimate are simulated. Then a second programme gives the lower bound of each setting,
 * and settings whose bound is below the best plan are searched by branch and bound
 * (auto_tree.c) as far as the limits go. The answer's bound is the least bound of the
 * settings that were not searched to the end and of plans whose stages are no runs
 * (auto_sets.c). Cost: auto_labels.c's for each configuration that its device-seconds do
 * not rule out. Source: the dynamic programme is Alpa's (alpa.c) with the terms that Alpa
 * leaves out.
 */
#include "search/auto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Plans waiting for the simulator, best estimate first. */
struct kept {
    double estimate;
    struct plan_answer plan;
};
struct pool {
    int n, most;
    struct kept *kept;
};

static bool is_within(struct stage_search *search, const struct plan_answer *a)
{
    int64_t cost = 2 * ap_mul64(a->n_stages, a->microbatches);
    if (search->instructions + cost > search->instruction_limit)
        return false;
    search->instructions += cost;
    return true;
}

void auto_take(struct stage_search *search, double score, const struct plan_answer *a,
               const char *from)
{
    if (score < search->least) {
        search->least = score;
        search->best = plan_copy(search->arena, a);
        search->from = from;
    }
    shortlist_put(search->arena, &search->final, score, a);
}

void auto_price_bare(struct stage_search *search, const struct plan_answer *a)
{
    struct ap_arena scratch = {0};
    struct plan_instance bare = *search->inst;
    struct plan_answer copy = plan_copy(&scratch, a);
    struct ap_err why = {0};

    bare.n_values = 0;
    if (!plan_judge(&scratch, &bare, &copy, &why))
        search->bare = least_of(search->bare, plan_score(&bare, search->params, &copy));
    ap_arena_free(&scratch);
}

double auto_score(struct stage_search *search, struct space *sp, struct plan_answer *a,
                  const char *from)
{
    struct ap_err why = {0};
    double score;

    if (!is_within(search, a) || plan_try(sp, a, &score, &why))
        return INFINITY;
    if (search->inst->inference || plan_least_bare(a) < search->bare)
        auto_price_bare(search, a);
    auto_take(search, score, a, from);
    return score;
}

int64_t auto_share(struct stage_search *search)
{
    int64_t whole = search->instruction_limit;
    search->instruction_limit = search->instructions + (whole - search->instructions) / 4;
    return whole;
}

bool auto_try(struct stage_search *search, struct space *sp, struct plan_answer *a,
              const char *from)
{
    int64_t before = search->instructions;
    auto_score(search, sp, a, from);
    return search->instructions > before;
}

/* ---- settings ---- */

static void put_pool(struct pool *pool, struct ap_arena *arena, double estimate,
                     const struct plan_answer *a)
{
    int at = pool->n;
    if (pool->n == pool->most && estimate >= pool->kept[pool->n - 1].estimate)
        return;
    if (pool->n < pool->most)
        pool->n++;
    else
        at--;
    for (; at > 0 && pool->kept[at - 1].estimate > estimate; at--)
        pool->kept[at] = pool->kept[at - 1];
    pool->kept[at] = (struct kept){estimate, plan_copy(arena, a)};
}

/* Roots of a setting's plans: the best is simulated now, the others wait. */
static void gather(struct stage_search *search, struct pool *pool,
                   const struct setting *set, const struct labels *l)
{
    int best = -1, want = search->params->n_stages;

    for (int d = 0; d <= set->n_units; d++)
        for (int i = l->first[d]; i < l->first[d] + l->n[d]; i++) {
            if (want > 0 && l->all[i].least_stages != want)
                continue;
            if (best < 0 || l->all[i].done < l->all[best].done)
                best = i;
            if (pool->n == pool->most &&
                l->all[i].done >= pool->kept[pool->n - 1].estimate)
                continue;
            struct plan_answer a = setting_plan(set, l, i);
            put_pool(pool, search->arena, l->all[i].done, &a);
        }
    if (best >= 0) {
        struct plan_answer a = setting_plan(set, l, best);
        auto_try(search, set->sp, &a, "labels");
    }
}

/* 0; 1: no setting of one stage per device can be better than the best; -1. */
static int one_setting(struct stage_search *search, struct pool *pool, struct space *sp,
                       struct config *c, enum ap_schedule schedule, struct ap_err *err)
{
    struct setting set;
    struct labels l;
    double b = (double)c->microbatches;

    if (setting_init(&set, sp, c, schedule, search->least, err))
        return -1;
    if (auto_is_over(search, b * set.front_device_sec[sp->n] / c->capacity))
        return 1;
    if (!search->proves) {
        setting_labels(&set, false, &l);
        gather(search, pool, &set, &l);
    } else {
        set.below = search->least * (1 + 1e-12);
        setting_labels(&set, true, &l);
        auto_tree(search, &set, &l);
    }
    setting_free(&l);
    return 0;
}

static bool has_schedule(const struct stage_search *search, int schedule)
{
    int asked = search->params->schedule;
    if (search->inst->inference != (schedule == AP_SCHEDULE_INFERENCE))
        return false;
    if (asked < 0) /* eager 1F1B holds more than 1f1b: only where asked for */
        return schedule != AP_SCHEDULE_EAGER;
    return asked == schedule;
}

static int one_config(struct stage_search *search, struct pool *pool,
                      const struct space *whole, int replicas, int64_t microbatches,
                      struct ap_err *err)
{
    static const enum ap_schedule schedules[] = {
        AP_SCHEDULE_1F1B, AP_SCHEDULE_GPIPE, AP_SCHEDULE_INFERENCE, AP_SCHEDULE_EAGER};
    struct ap_arena scratch = {0};
    struct space sp = *whole;
    struct config c;
    int rc = 0;

    ap_work_tell(search->params->work, search->proves ? "all stages" : "stages",
                 search->least, 0);
    sp.arena = &scratch;
    sp.n_asked = sp.n_plans = 0;
    if (config_init(&sp, &c, replicas, microbatches, NULL, 0) &&
        !auto_is_over(search, setting_known_bound(&sp, &c))) {
        for (size_t i = 0; i < sizeof schedules / sizeof *schedules && rc == 0; i++)
            if (has_schedule(search, schedules[i]))
                rc = one_setting(search, pool, &sp, &c, schedules[i], err);
        if (rc >= 0 && has_schedule(search, AP_SCHEDULE_INTERLEAVED))
            rc = auto_chunks(search, &sp, &c, err);
    }
    search->n_asked += sp.n_asked;
    search->n_plans += sp.n_plans;
    ap_arena_free(&scratch);
    return rc < 0 ? -1 : 0;
}

/* ---- the row ---- */

/* Nodes of all trees, and instructions of all simulated plans. With a tenth of both the
 * step of GPT-39B on 64 devices is 2.6 % longer: scripts/bench/stage-table --models
 * gpt3-39b:dtype=f16@64 --algorithms auto. */
#define NODE_LIMIT        ((int64_t)2000000)
#define INSTRUCTION_LIMIT ((int64_t)8000000)

static int all_configs(struct stage_search *search, struct pool *pool,
                       const struct space *sp, struct ap_err *err)
{
    const struct plan_instance *inst = search->inst;
    int all = inst->n_hosts * inst->n_devices;

    for (int r = 1; r <= all; r++) {
        for (int i = 0; i < inst->n_microbatches; i++)
            if (one_config(search, pool, sp, r, inst->microbatches[i], err))
                return -1;
    }
    return 0;
}

/* Plans of all settings come first: a tree may use up what may be simulated. */
static int auto_settings(struct stage_search *search, struct space *sp,
                         struct ap_err *err)
{
    int most = (int)search->params->n_kept;
    struct pool pool = {.most = most > 0 ? most : 64};

    pool.kept = AP_NEW_N(search->arena, pool.most, struct kept);
    if (all_configs(search, &pool, sp, err))
        return -1;
    for (int i = 0; i < pool.n; i++)
        if (pool.kept[i].estimate < 1.2 * search->least)
            auto_try(search, sp, &pool.kept[i].plan, "labels");
    search->proves = true;
    return all_configs(search, &pool, sp, err);
}

/* The finalists after the best, and what people type, however slow: it may be simpler. */
static void put_others(const struct stage_search *search, struct plan_answer *answer)
{
    struct plan_answer *others =
        AP_NEW_N(search->arena, SHORTLIST + SEARCH_TYPED, struct plan_answer);
    int n = 0;

    for (int i = 1; i < search->final.n; i++)
        others[n++] = search->final.plan[i];
    for (int i = 0; i < search->n_typed; i++) {
        const struct plan_answer *a = &search->typed[i];
        const double score = plan_score(search->inst, search->params, a);
        int at = n;
        bool known = plan_same(&search->final.plan[0], a);
        for (int k = 0; k < n && !known; k++)
            known = plan_same(&others[k], a);
        if (known)
            continue;
        for (;
             at > 0 && plan_score(search->inst, search->params, &others[at - 1]) > score;
             at--)
            others[at] = others[at - 1];
        others[at] = *a;
        n++;
    }
    answer->n_others = n;
    answer->others = others;
}

int plan_auto(struct ap_arena *arena, const struct plan_instance *inst,
              const struct plan_params *params, struct plan_answer *answer,
              struct ap_err *err)
{
    struct space sp;
    struct stage_search search = {.arena = arena,
                                  .inst = inst,
                                  .params = params,
                                  .least = INFINITY,
                                  .bound = INFINITY,
                                  .bare = INFINITY,
                                  .node_limit = params->work_limit ? params->work_limit
                                                                   : NODE_LIMIT,
                                  .instruction_limit = INSTRUCTION_LIMIT};

    space_init(&sp, arena, inst, params);
    if (auto_rules(&search, true, err) || auto_settings(&search, &sp, err) ||
        auto_rules(&search, false, err))
        return -1;
    if (!isfinite(search.least))
        return plan_none_fits("auto", err);
    double sets = space_sets_bound(&sp);
    *answer = search.final.plan[0];
    answer->objective = search.least;
    answer->bound =
        fmin(search.least, fmin(sets, fmin(search.bound, search.bare)) * (1 - 1e-12));
    answer->measure = "simulated";
    answer->stopped = search.bound < search.least ? "work limit"
                      : sets < search.least       ? "all runs of blocks"
                                                  : "all plans";
    answer->n_asked = search.n_asked + sp.n_asked;
    answer->n_plans = search.n_plans + sp.n_plans;
    put_others(&search, answer);
    return plan_judge(arena, inst, answer, err);
}
