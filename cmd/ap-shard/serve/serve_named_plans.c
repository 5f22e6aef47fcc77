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

/* The named plans of a mesh, not priced. */
static void list_named_plans(struct ap_arena *arena, struct shard_task *task)
{
    struct ap_plan *plans = AP_NEW_N(arena, N_STARTS, struct ap_plan);
    const char **name = AP_NEW_N(arena, N_STARTS, const char *);

    for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
        struct ap_plan plan = shard_empty_plan(task);
        struct ap_err ignored = {0};
        if (!is_wanted(row) || ap_named_plan_make(arena, row, &plan, NULL, &ignored) ||
            (task->cost->variant != AP_COST_DEFAULT && /* where compute is free */
             ap_plan_check(&plan, task->cost, &ignored)))
            continue;
        plans[task->n_plans] = plan;
        name[task->n_plans++] = ap_named_plans[row].name;
    }
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
                                       .params = &req->params,
                                       .named_plan = row->named_plan}};
    if (row->run == shard_ilp)
        list_named_plans(&r->arena, &r->task);
    return r;
}

void serve_start_free(struct serve_start *start)
{
    ap_arena_free(&start->arena);
    free(start);
}
