/*
 * Problem: `auto` must be no worse than the grids that people type and the plans of the
 * published planners, without pricing every run that those planners ask for.
 * Idea: the plan of --start and grids of equal stages, which need few prices, run before
 * the search; the other
 * planners run after it. These get an empty front for every run that no plan below the
 * best one can contain: if a planner's own choice is better than the best plan, the
 * choice contains no such run, so that the planner still finds it, among fewer plans.
 * Where the blocks are no chain, the sets of blocks that rhino finds are not searched by
 * `auto`, and rhino runs with more load-imbalance tolerances. Sends are estimates:
 * plans up to PLAN_UNDERESTIMATE times the best one are kept: a plan's price with its
 * layouts may be above its estimate. Cost: the planners' on few runs.
 * Worth: the planners after the search change no plan of T5, Wide-ResNet, MoE, GPT, U-Net
 * and Llama; they have the stages that are no runs, such as a tower each.
 */
#include "search/auto.h"

#include "base/array.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Stands between a planner and the oracle. */
struct sieve {
    const struct plan_instance *inst;
    struct space sp;
    double below;
    int64_t n_asked; /* of the oracle */
    int n, cap;
    struct sieve_config {
        struct config c;
        double *known;
    } * config;
};

static struct sieve_config *find_config(struct sieve *v, const struct plan_ask *ask)
{
    for (int i = 0; i < v->n; i++)
        if (v->config[i].c.replicas == ask->replicas &&
            v->config[i].c.microbatches == ask->microbatches)
            return &v->config[i];
    AP_ROOM_IN(v->sp.arena, v->config, v->n, v->cap);
    struct sieve_config *c = &v->config[v->n];
    if (!config_init(&v->sp, &c->c, ask->replicas, ask->microbatches, NULL, 0))
        return NULL;
    c->known = setting_known(&v->sp, &c->c);
    v->n++;
    return c;
}

/* Whether no plan below the best can have it. */
static bool is_out(struct sieve *v, const struct plan_ask *ask)
{
    if (ask->set || !v->inst->least || !isfinite(v->below))
        return false;
    struct sieve_config *c = find_config(v, ask);
    return c && setting_is_hopeless(&v->sp, &c->c, c->known, ask, v->below);
}

static int ask_sieve(void *oracle, const struct plan_ask *ask,
                     const struct plan_front **front, struct ap_err *err)
{
    static const struct plan_front none;
    struct sieve *v = oracle;

    if (is_out(v, ask)) {
        *front = &none;
        return 0;
    }
    v->n_asked++;
    return v->inst->ask(v->inst->oracle, ask, front, err);
}

static int sieve_ahead(void *oracle, const struct plan_ask *ask, int n,
                       struct ap_err *err)
{
    struct sieve *v = oracle;
    struct plan_ask *left = ap_xrealloc(NULL, (size_t)n * sizeof *left);
    int n_left = 0;

    for (int i = 0; i < n; i++)
        if (!is_out(v, &ask[i]))
            left[n_left++] = ask[i];
    int rc = n_left > 0 ? v->inst->ahead(v->inst->oracle, left, n_left, err) : 0;
    free(left);
    return rc;
}

#define NO_TOLERANCE 1e4 /* more than there are stages */

struct rule {
    const char *name;
    plan_fn *run;
    bool typed;
    bool kinds;       /* has plans for several kinds of devices */
    int schedule;     /* the only one that it has, -1: gpipe and 1f1b */
    double imbalance; /* 0: as asked */
};

static bool applies(const struct stage_search *search, const struct rule *r)
{
    int64_t size =
        (int64_t)search->inst->n_blocks * search->inst->n_hosts * search->inst->n_devices;
    int asked = search->params->schedule;

    if (r->run == plan_given)
        return search->params->given != NULL;
    if (search->inst->n_kinds > 1 && !r->kinds)
        return false;
    if (!r->typed && size > (search->inst->least ? 8192 : 1024))
        return false;
    if ((asked > AP_SCHEDULE_1F1B && asked != AP_SCHEDULE_INFERENCE) ||
        (r->schedule >= 0 && asked >= 0 && asked != r->schedule &&
         asked != AP_SCHEDULE_INFERENCE))
        return false;
    if (r->imbalance > 0 && plan_is_chain(search->inst))
        return false;
    if ((r->run == plan_equal_operator && !search->inst->n_ops) ||
        (r->run == plan_rhino && !search->inst->flops))
        return false;
    return r->run != plan_none || search->params->n_stages <= 1;
}

static int run_rule(struct stage_search *search, struct sieve *v, const struct rule *r,
                    struct ap_err *err)
{
    struct plan_answer a = {0};
    struct ap_err why = {0};
    struct plan_instance inst = *search->inst;
    struct plan_params params = *search->params;

    v->below = most_of(search->least * PLAN_UNDERESTIMATE, search->params->reported_sec);
    inst.ask = ask_sieve;
    inst.ahead = search->inst->ahead ? sieve_ahead : NULL;
    inst.oracle = v;
    inst.least = NULL;     /* its oracle is another */
    inst.monotone = false; /* hopeless next to few blocks is not so next to more */
    params.work_limit = 0;
    if (r->imbalance > 0)
        params.imbalance = r->imbalance;
    int rc = r->run(search->arena, &inst, &params, &a, &why);
    if (rc < 0) {
        *err = why;
        return -1;
    }
    search->n_plans += a.n_plans;
    if (rc != 0)
        return 0;
    auto_price_bare(search, &a);
    auto_take(search, plan_score(search->inst, search->params, &a), &a, r->name);
    assert(search->n_reported < SEARCH_REPORTED);
    search->reported[search->n_reported++] = plan_copy(search->arena, &a);
    return 0;
}

int auto_rules(struct stage_search *search, const struct space *sp, bool typed,
               struct ap_err *err)
{
    static const struct rule rules[] = {
        {"plan", plan_given, true, true, -1, 0},
        {"equal-pipelines", plan_equal_pipelines, true, false, -1,
         0}, /* asks for most: all at once */
        {"none", plan_none, true, false, -1, 0},
        {"intra-only", plan_intra_only, true, false, -1, 0},
        {"equal-replicas", plan_equal_replicas, true, false, -1, 0},
        {"inter-only", plan_inter_only, false, false, -1, 0},
        {"pp-dp", plan_pp_dp, false, false, -1, 0},
        {"equal-layer", plan_equal_layer, false, true, -1, 0},
        {"equal-operator", plan_equal_operator, false, true, -1, 0},
        {"alpa", plan_alpa, false, true, -1, 0},
        {"rannc", plan_rannc, false, false, AP_SCHEDULE_GPIPE, 0},
        {"rhino", plan_rhino, false, false, -1, 0},
        {"rhino", plan_rhino, false, false, -1, 0.2},
        {"rhino", plan_rhino, false, false, -1, 0.5},
        {"rhino", plan_rhino, false, false, -1, 1},
        {"rhino", plan_rhino, false, false, -1, NO_TOLERANCE},
    };
    struct ap_arena scratch = {0};
    struct sieve v = {.inst = search->inst, .sp = *sp};
    int rc = 0;

    v.sp.arena = &scratch;
    for (size_t i = 0; i < sizeof rules / sizeof *rules && rc == 0; i++)
        if (rules[i].typed == typed && applies(search, &rules[i]))
            rc = run_rule(search, &v, &rules[i], err);
    search->n_asked += v.n_asked;
    ap_arena_free(&scratch);
    return rc;
}
