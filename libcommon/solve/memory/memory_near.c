/*
 * Problem: a priced problem of all strategies takes long, and few of them matter. Idea: a
 * lower bound on the cost of each strategy, by message passing, shows which strategies
 * are near the best choices; prices are found among these first. Cost: as ap_solve_least.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "solve/memory/memory_search.h"

int64_t search_cells(struct ap_arena *scratch, const struct priced_problem *priced,
                     int first_set)
{
    const struct ap_problem *p = &priced->problem;
    const int end = first_set + priced->n_sets;
    int *n_left = AP_NEW_N(scratch, p->n_nodes, int);
    int64_t n = 0;

    for (int v = 0; v < p->n_nodes; v++)
        for (int s = 0; s < p->n_strategies[v]; s++)
            n_left[v] += p->cost[v][s] < AP_FORBIDDEN;
    for (int e = 0; e < p->n_edges; e++)
        if (p->edges[e].a < first_set || p->edges[e].a >= end)
            n += (int64_t)n_left[p->edges[e].a] * n_left[p->edges[e].b];
    return n;
}

void search_price_problem(struct ap_arena *scratch, const struct memory_search *ms,
                          const struct search_view *v, const struct at_prices *at,
                          struct priced_problem *priced)
{
    double *before = AP_NEW_N(scratch, v->model->n_times + 1, double);

    for (int j = 0; j < ms->n_times; j++)
        before[ms->time[j] + 1] += at->price[j] * at->per_byte;
    for (int t = 0; t < v->model->n_times; t++)
        before[t + 1] += before[t];
    price_problem(scratch, v->model, before, at->weight, v->share, at->out, priced);
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* What all but the memory_tuning.nearest part of the strategies cost more than. */
static double threshold(struct ap_arena *arena, const struct ap_problem *p, int n_vars,
                        double *const *least)
{
    double *list;
    int n = 0;

    for (int v = 0; v < n_vars; v++)
        n += p->n_strategies[v];
    list = AP_NEW_N(arena, n + 1, double);
    n = 0;
    for (int v = 0; v < n_vars; v++)
        for (int s = 0; s < p->n_strategies[v]; s++)
            list[n++] = least[v][s];
    qsort(list, (size_t)n, sizeof *list, by_value);
    return list[(int)(n * memory_tuning.nearest)];
}

void search_find_far(struct memory_search *ms, double limit, const double *price)
{
    struct search_view *v = &ms->whole;
    struct ap_arena scratch = {0};
    struct priced_problem priced;

    const struct at_prices at = {price, ms->unit / limit, 1, NULL};
    search_price_problem(&scratch, ms, v, &at, &priced);
    const struct ap_problem *p = &priced.problem;
    double **least = AP_NEW_N(&scratch, p->n_nodes, double *);
    for (int i = 0; i < p->n_nodes; i++)
        least[i] = AP_NEW_N(&scratch, p->n_strategies[i], double);
    ap_solve_least(&scratch, p, INFINITY, least);
    const double most = threshold(&scratch, p, v->model->n_vars, least);
    if (!ms->far)
        ms->far = AP_NEW_N(ms->arena, v->model->n_vars, bool *);
    for (int i = 0; i < v->model->n_vars; i++) {
        if (!ms->far[i])
            ms->far[i] = AP_NEW_N(ms->arena, p->n_strategies[i], bool);
        for (int s = 0; s < p->n_strategies[i]; s++)
            ms->far[i][s] = least[i][s] > most;
    }
    ms->effort += search_cells(&scratch, &priced, v->model->problem->n_nodes);
    ap_arena_free(&scratch);
}
