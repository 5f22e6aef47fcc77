/*
 * The search at prices of memory for problems whose usage lies on nodes alone: what a
 * choice holds is known exactly, so that measuring it is adding up. Times are those at
 * which some interval begins.
 */
#include "solve/memory/memory_search.h"

#include <math.h>
#include <stdlib.h>

static int by_time(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

static int place_of(const int64_t *time, int n, int64_t t)
{
    int lo = 0, hi = n;

    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (time[mid] < t)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void state_items(struct ap_arena *arena, const struct ap_problem *p,
                        struct ap_memory *m)
{
    int64_t *time = AP_NEW_N(arena, p->n_nodes + 1, int64_t);
    int n = 0;

    *m = (struct ap_memory){.problem = p, .n_vars = p->n_nodes};
    m->items = AP_NEW_N(arena, p->n_nodes + 1, struct ap_usage_item);
    for (int v = 0; v < p->n_nodes; v++)
        if (p->span[v].lo < p->span[v].hi)
            time[n++] = p->span[v].lo;
    qsort(time, (size_t)n, sizeof *time, by_time);
    for (int i = 0; i < n; i++)
        if (i == 0 || time[i] != time[m->n_times - 1])
            time[m->n_times++] = time[i];
    for (int v = 0; v < p->n_nodes; v++)
        if (p->span[v].lo < p->span[v].hi)
            m->items[m->n_items++] = (struct ap_usage_item){
                place_of(time, m->n_times, p->span[v].lo),
                place_of(time, m->n_times, p->span[v].hi), v, -1, 1, p->usage[v]};
}

static bool add_up(void *arg, const int *choice, bool again, double *sec, int64_t *peak)
{
    const struct ap_problem *p = arg;

    if (again)
        return false;
    *sec = ap_problem_score(p, choice);
    if (*sec >= AP_FORBIDDEN)
        *sec = INFINITY;
    *peak = *sec < INFINITY ? ap_problem_peak(p, choice) : INT64_MAX;
    return true;
}

int ap_solve_prices(struct ap_arena *arena, const struct ap_problem *p,
                    const struct ap_solve_params *params, struct ap_solution *sol,
                    struct ap_err *err)
{
    struct ap_memory model;
    int *none = AP_NEW_N(arena, p->n_nodes + 1, int);
    struct ap_memory_answer found;

    if (!p->span)
        return ap_solve_exact(arena, p, params, sol, err);
    state_items(arena, p, &model);
    for (int v = 0; v < p->n_nodes; v++)
        none[v] = -1;
    struct ap_memory_task task = {.model = &model,
                                  .limit = p->usage_limit,
                                  .family = none,
                                  .layer = none,
                                  .cell = none,
                                  .objective = 1,
                                  .best_sec = INFINITY,
                                  .program_work = 1 + p->n_nodes / 100,
                                  .measure = {(void *)p, add_up, NULL}};
    struct ap_problem bare = *p;
    struct ap_solution free_sol = {0};
    struct ap_solve_params fp = {.work_limit = 100};
    bare.span = NULL;
    if (ap_solve_exact(arena, &bare, &fp, &free_sol, err))
        return -1;
    task.bound = free_sol.bound;
    task.objective = free_sol.objective;
    task.n_starts = 1;
    task.start = &free_sol.choice;
    if (ap_memory_search(arena, &task, &found, err))
        return -1;
    if (!found.choice)
        return ap_err_set(err, "no solution found");
    *sol = (struct ap_solution){.choice = found.choice,
                                .objective = found.sec,
                                .bound = found.bound,
                                .stopped = "prices",
                                .work = found.n_solves};
    return 0;
}
