/* The named plans of a mesh, from which its searches start. */
#include "serve/serve.h"

#include <stdlib.h>
#include <string.h>

/* Named plans that are rarely worse than another one in both seconds and memory. */
static const char *const starts[] = {"data",     "zero2",       "zero3",
                                     "megatron", "megatron-sp", "expert"};
#define N_STARTS ((int)(sizeof starts / sizeof *starts))

static bool is_wanted(int row)
{
    for (int i = 0; i < N_STARTS; i++)
        if (!strcmp(ap_named_plans[row].name, starts[i]))
            return true;
    return false;
}

/* A plan of its own, in the arena. */
static struct ap_plan keep(struct ap_arena *arena, const struct ap_plan *plan)
{
    struct ap_plan kept = *plan;
    const size_t n = (size_t)plan->nests->n, n_nodes = (size_t)plan->graph->n_nodes;

    kept.choice = ap_arena_dup(arena, plan->choice, n * sizeof *plan->choice);
    kept.regather = NULL;
    kept.whole = NULL;
    if (plan->regather && memchr(plan->regather, true, n_nodes))
        kept.regather = ap_arena_dup(arena, plan->regather, n_nodes);
    if (plan->whole)
        kept.whole = ap_arena_dup(arena, plan->whole, n_nodes);
    return kept;
}

/* The named plans of a mesh, not priced. */
static void list_named_plans(struct ap_arena *arena, struct shard_task *task)
{
    struct ap_arena scratch = {0};
    struct ap_named_plan_shared shared = {.roles = NULL};
    const struct ap_named_plan_how how = {.shared = &shared};
    struct ap_plan *plans = AP_NEW_N(arena, N_STARTS, struct ap_plan);
    const char **name = AP_NEW_N(arena, N_STARTS, const char *);

    for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
        struct ap_plan plan = shard_empty_plan(task);
        struct ap_err ignored = {0};
        if (!is_wanted(row) || ap_named_plan_make(&scratch, row, &plan, &how, &ignored) ||
            (task->cost->variant != AP_COST_DEFAULT && /* where compute is free */
             ap_plan_check(&plan, task->cost, &ignored)))
            continue;
        plans[task->n_plans] = keep(arena, &plan);
        name[task->n_plans++] = ap_named_plans[row].name;
    }
    ap_named_plan_shared_free(&shared);
    ap_arena_free(&scratch);
    task->plans = plans;
    task->plan_name = name;
}

struct serve_start *serve_start_new(const struct ap_graph *g,
                                    const struct ap_nests *nests,
                                    const struct ap_families *families,
                                    const struct ap_cost *cost,
                                    const struct shard_request *req)
{
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];
    struct serve_start *r = ap_xrealloc(NULL, sizeof *r);

    *r = (struct serve_start){.task = {.graph = g,
                                       .nests = nests,
                                       .cost = cost,
                                       .families = families,
                                       .params = &r->params,
                                       .named_plan = row->named_plan},
                              .params = req->params};
    if (req->space == SHARD_SPACE_ALPA) {
        struct ap_cost set = *cost; /* as the place has it already */
        struct ap_err none;         /* nor was it refused there */
        shard_alpa_init(&r->arena, g, nests, req, &r->alpa, &set, &none);
        r->params.alpa = &r->alpa;
    }
    if (row->run == shard_ilp && !r->params.alpa) /* whose conversions are others */
        list_named_plans(&r->arena, &r->task);
    return r;
}

void serve_start_free(struct serve_start *start)
{
    ap_arena_free(&start->arena);
    free(start);
}
