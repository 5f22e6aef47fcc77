/*
 * Problem: a priced problem of all strategies takes long, and few of them matter.
 * Idea: what each one costs at least, exactly or by message passing, tells which ones no
 * plan that is wanted has (ruled out for good), and which are near the best plans (prices
 * are made among these first).
 * Cost: that of ap_solve_rule_out and ap_solve_least.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory_search.h"

#define NEAREST     0.15  /* part of the strategies that prices are made among */
#define PLAIN_CELLS 14000 /* of tables that take as long as ever, see hunt_effort */

int64_t hunt_cells(struct ap_arena *scratch, const struct mem_priced *priced,
                   int first_star, bool all)
{
    const struct ap_problem *p = &priced->problem;
    const int end = first_star + priced->n_stars;
    int *n_left = AP_NEW_N(scratch, p->n_nodes, int);
    int64_t n = 0;

    for (int v = 0; v < p->n_nodes; v++)
        for (int s = 0; s < p->n_strategies[v]; s++)
            n_left[v] += all || p->cost[v][s] < AP_FORBIDDEN;
    for (int e = 0; e < p->n_edges; e++)
        if (p->edges[e].a < first_star || p->edges[e].a >= end)
            n += (int64_t)n_left[p->edges[e].a] * n_left[p->edges[e].b];
    return n;
}

int64_t hunt_effort(const struct hunt *h, int64_t cells)
{
    return h->plain ? cells * cells / PLAIN_CELLS : cells;
}

void hunt_price_problem(struct ap_arena *scratch, const struct hunt *h,
                        const struct hunt_view *v, const double *price, double per_byte,
                        double weight, bool *const *out, struct mem_priced *priced)
{
    double *before = AP_NEW_N(scratch, v->model.n_times + 1, double);

    for (int j = 0; j < h->n_times; j++)
        before[h->time[j] + 1] += price[j] * per_byte;
    for (int t = 0; t < v->model.n_times; t++)
        before[t + 1] += before[t];
    if (!out && weight > 0 && v == &h->whole)
        out = h->never;
    mem_price_problem(scratch, &v->model, &v->ip, before, weight, v->share, out,
                      !h->plain, priced);
}

static void leave_out(const struct ap_problem *p, int n_vars, bool *const *out)
{
    for (int v = 0; v < n_vars; v++)
        for (int s = 0; s < p->n_strategies[v] && out[v]; s++)
            if (out[v][s])
                ((double *)p->cost[v])[s] = AP_FORBIDDEN;
}

bool hunt_rule_out(struct hunt *h, const double *price, double limit, double sec,
                   bool *const *out)
{
    struct ap_arena scratch = {0};
    struct mem_priced priced;

    for (int j = 0; j < h->n_times; j++)
        sec += price[j] * h->unit;
    hunt_price_problem(&scratch, h, &h->whole, price, h->unit / limit, 1, out, &priced);
    bool **node = AP_NEW_N(&scratch, priced.problem.n_nodes, bool *);
    memcpy(node, out, (size_t)h->whole.model.n_vars * sizeof *node);
    const bool any = ap_solve_rule_out(&priced.problem, sec, node) >= 0;
    leave_out(&priced.problem, h->whole.model.n_vars, out);
    h->effort +=
        hunt_effort(h, hunt_cells(&scratch, &priced, h->whole.ip.problem.n_nodes, false));
    ap_arena_free(&scratch);
    return any;
}

/* How many strategies no plan has that keeps the limit at a time; -1: there is none. */
static int64_t rule_out_at(struct hunt *h, int time)
{
    struct ap_arena scratch = {0};
    struct mem_priced priced;
    double *price = AP_NEW_N(&scratch, h->n_times, double);

    price[time] = 1;
    hunt_price_problem(&scratch, h, &h->whole, price, 1, 0, h->never, &priced);
    bool **node = AP_NEW_N(&scratch, priced.problem.n_nodes, bool *);
    memcpy(node, h->never, (size_t)h->whole.model.n_vars * sizeof *node);
    const int64_t n =
        ap_solve_rule_out(&priced.problem, (double)h->task->memory_bytes + 1, node);
    h->effort +=
        hunt_effort(h, hunt_cells(&scratch, &priced, h->whole.ip.problem.n_nodes, false));
    ap_arena_free(&scratch);
    return n;
}

bool hunt_rule_out_for_good(struct hunt *h)
{
    const int n_vars = h->whole.model.n_vars;
    int64_t all = 0;

    if (!h->never) {
        h->never = AP_NEW_N(h->arena, n_vars, bool *);
        for (int v = 0; v < n_vars; v++)
            h->never[v] = AP_NEW_N(h->arena, h->whole.ip.problem.n_strategies[v], bool);
    }
    for (int j = 0; j < h->n_times; j++) {
        const int64_t n = rule_out_at(h, j);
        if (n < 0)
            break;
        all += n;
    }
    for (int i = 0; i < h->n_cuts; i++)
        h->cut[i].lost = !hunt_is_inside(h, h->never, h->cut[i].choice);
    return all > 0;
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* What all but the NEAREST part of the strategies cost more than. */
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
    return list[(int)(n * NEAREST)];
}

void hunt_find_far(struct hunt *h, double limit, const double *price)
{
    struct hunt_view *v = &h->whole;
    struct ap_arena scratch = {0};
    struct mem_priced priced;

    hunt_price_problem(&scratch, h, v, price, h->unit / limit, 1, NULL, &priced);
    const struct ap_problem *p = &priced.problem;
    double **least = AP_NEW_N(&scratch, p->n_nodes, double *);
    for (int i = 0; i < p->n_nodes; i++)
        least[i] = AP_NEW_N(&scratch, p->n_strategies[i], double);
    ap_solve_least(&scratch, p, INFINITY, least);
    const double most = threshold(&scratch, p, v->model.n_vars, least);
    if (!h->far)
        h->far = AP_NEW_N(h->arena, v->model.n_vars, bool *);
    for (int i = 0; i < v->model.n_vars; i++) {
        if (!h->far[i])
            h->far[i] = AP_NEW_N(h->arena, p->n_strategies[i], bool);
        for (int s = 0; s < p->n_strategies[i]; s++)
            h->far[i][s] = least[i][s] > most;
    }
    h->effort += hunt_cells(&scratch, &priced, v->ip.problem.n_nodes, false);
    ap_arena_free(&scratch);
}
