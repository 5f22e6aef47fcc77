/*
 * The named plans of a task, from which every search starts, and their prices, which few
 * searches need. Named plans do not depend on each other: two threads make and price
 * them, each with memory and a conversion cache of its own, and the result does not
 * depend on which thread made which.
 */
#include <math.h>
#include <string.h>

#include "base/threads.h"
#include "cost/conversion_cache.h"
#include "problem/shard.h"

#define HALF 6 /* the rows before it take as long as the rows from it on */

struct made {
    struct ap_plan plan;
    bool exists; /* also under the cost model */
};

struct maker {
    const struct shard_task *task;
    struct ap_cost cost;
    struct ap_arena arena;
    struct ap_named_plan_shared shared;
    int first, last;   /* rows */
    struct made *made; /* [row] */
};

static void make_one(struct maker *m, int row)
{
    const struct shard_task *task = m->task;
    struct ap_err err = {0};
    struct made *made = &m->made[row];
    size_t n_groups = (size_t)task->nests->n, n_nodes = (size_t)task->graph->n_nodes;

    *made = (struct made){.plan = shard_empty_plan(task), .exists = false};
    struct ap_choice_vec *choice = AP_NEW_N(&m->arena, n_groups, struct ap_choice_vec);
    bool *regather = AP_NEW_N(&m->arena, n_nodes, bool);
    struct ap_mark mark = ap_arena_mark(&m->arena);
    const struct ap_named_plan_how how = {.fixed = task->fixed, .shared = &m->shared};
    if (!ap_named_plans[row].whole &&
        ap_named_plan_make(&m->arena, row, &made->plan, &how, &err) == 0) {
        memcpy(choice, made->plan.choice, n_groups * sizeof *choice);
        memcpy(regather, made->plan.regather, n_nodes * sizeof *regather);
        made->exists = ap_plan_check_choices(&made->plan, &m->cost, &err) == 0;
    }
    made->plan.choice = choice;
    made->plan.regather = regather;
    ap_arena_rewind(&m->arena, mark);
}

static void make_some(void *ctx, int i)
{
    struct maker *m = (struct maker *)ctx + i;

    for (int row = m->first; row < m->last; row++)
        make_one(m, row);
}

void shard_list_named_plans(struct ap_arena *arena, struct shard_task *task)
{
    struct made made[AP_N_NAMED_PLANS];
    struct maker maker[2];
    struct ap_plan *plans = AP_NEW_N(arena, AP_N_NAMED_PLANS + 1, struct ap_plan);
    double *sec = AP_NEW_N(arena, AP_N_NAMED_PLANS + 1, double);
    const char **name = AP_NEW_N(arena, AP_N_NAMED_PLANS + 1, const char *);
    int n = 0;

    for (int i = 0; i < 2; i++)
        maker[i] = (struct maker){.task = task,
                                  .cost = *task->cost,
                                  .first = i == 0 ? 0 : HALF,
                                  .last = i == 0 ? HALF : AP_N_NAMED_PLANS,
                                  .made = made};
    maker[1].cost.cache = ap_conversion_cache_new(task->cost->mesh.n_axes);
    ap_in_threads(2, make_some, maker);
    for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
        if (!made[row].exists)
            continue;
        plans[n] = made[row].plan;
        plans[n].choice = ap_arena_dup(arena, plans[n].choice,
                                       (size_t)task->nests->n * sizeof *plans[n].choice);
        plans[n].regather = ap_arena_dup(arena, plans[n].regather,
                                         (size_t)task->graph->n_nodes * sizeof(bool));
        sec[n] = NAN;
        name[n++] = ap_named_plans[row].name;
    }
    ap_conversion_cache_free(maker[1].cost.cache);
    for (int i = 0; i < 2; i++) {
        ap_named_plan_shared_free(&maker[i].shared);
        ap_arena_free(&maker[i].arena);
    }
    name[n] = "start";
    task->n_plans = n;
    task->plans = plans;
    task->plan_sec = sec;
    task->plan_name = name;
}

struct pricer {
    const struct shard_task *task;
    struct ap_cost cost;
    int first; /* plans first, first + 2, ... */
    double *sec;
};

static void price_some(void *ctx, int k)
{
    struct pricer *p = (struct pricer *)ctx + k;
    struct ap_err err = {0};

    for (int i = p->first; i < p->task->n_plans; i += 2)
        if (isnan(p->sec[i]) &&
            ap_plan_sec(&p->task->plans[i], &p->cost, &p->sec[i], &err))
            p->sec[i] = INFINITY;
}

void shard_price_named_plans(const struct shard_task *task)
{
    struct pricer pricer[2];

    for (int i = 0; i < 2; i++)
        pricer[i] = (struct pricer){task, *task->cost, i, task->plan_sec};
    pricer[1].cost.cache = ap_conversion_cache_new(task->cost->mesh.n_axes);
    ap_in_threads(2, price_some, pricer);
    ap_conversion_cache_free(pricer[1].cost.cache);
}
