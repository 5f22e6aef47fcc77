/*
 * Problem: plans from outside the search of `auto`. Idea: the plan of --start and grids
 * of equal stages, which need few prices, are simulated before the search: a plan to
 * beat. Where the blocks are no chain, rhino runs after the search, with several
 * load-imbalance tolerances: its stages may be sets of blocks, such as a tower each,
 * which the search does not have. All other published planners only have plans that the
 * search has, too. Cost: the planners' on few runs.
 */
#include "search/auto.h"

#include <assert.h>

#define NO_TOLERANCE 1e4 /* more than there are stages */

struct rule {
    const char *name;
    plan_fn *run;
    bool typed;
    double imbalance; /* rhino's; 0: as asked */
};

static bool applies(const struct stage_search *search, const struct rule *r)
{
    const int64_t size =
        (int64_t)search->inst->n_blocks * search->inst->n_hosts * search->inst->n_devices;
    int asked = search->params->schedule;

    if (r->run == plan_given)
        return search->params->given != NULL;
    if (search->inst->n_kinds > 1 ||
        (asked > AP_SCHEDULE_1F1B && asked != AP_SCHEDULE_INFERENCE))
        return false;
    if (r->run == plan_inter_only) /* scalars may be most of small models' work */
        return size <= (search->inst->inference ? 8192 : 128);
    if (r->run == plan_rhino)
        return size <= (search->inst->least ? 8192 : 1024) && search->inst->flops &&
               !plan_is_chain(search->inst);
    return r->run != plan_none || search->params->n_stages <= 1;
}

static int run_rule(struct stage_search *search, const struct rule *r, struct ap_err *err)
{
    struct plan_answer a = {0};
    struct ap_err why = {0};
    struct plan_params params = *search->params;

    params.work_limit = 0;
    if (r->imbalance > 0)
        params.imbalance = r->imbalance;
    int rc = r->run(search->arena, search->inst, &params, &a, &why);
    if (rc < 0) {
        *err = why;
        return -1;
    }
    search->n_asked += a.n_asked;
    search->n_plans += a.n_plans;
    if (rc != 0)
        return 0;
    a.typed = r->run != plan_rhino;
    auto_price_bare(search, &a);
    auto_take(search, plan_score(search->inst, search->params, &a), &a, r->name);
    assert(search->n_typed < SEARCH_TYPED);
    if (a.typed)
        search->typed[search->n_typed++] = plan_copy(search->arena, &a);
    return 0;
}

int auto_rules(struct stage_search *search, bool typed, struct ap_err *err)
{
    static const struct rule rules[] = {
        {"plan", plan_given, true, 0},
        {"equal-pipelines", plan_equal_pipelines, true,
         0}, /* asks for most: all at once */
        {"none", plan_none, true, 0},
        {"intra-only", plan_intra_only, true, 0},
        {"equal-replicas", plan_equal_replicas, true, 0},
        {"inter-only", plan_inter_only, false, 0}, /* of runs that are known by then */
        {"rhino", plan_rhino, false, 0},
        {"rhino", plan_rhino, false, 0.2},
        {"rhino", plan_rhino, false, 0.5},
        {"rhino", plan_rhino, false, 1},
        {"rhino", plan_rhino, false, NO_TOLERANCE},
    };

    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].typed == typed && applies(search, &rules[i]) &&
            run_rule(search, &rules[i], err))
            return -1;
    return 0;
}
