/* Scoring of the selection problem, the one place that says what a choice costs. */
#include "solve/problem.h"

#include <stdlib.h>

double ap_problem_score(const struct ap_problem *p, const int *choice)
{
    double sum = 0;
    bool legal = true;

    for (int v = 0; v < p->n_nodes; v++) {
        double c = p->cost[v][choice[v]];
        legal &= c < AP_FORBIDDEN;
        sum += c;
    }
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        double c = edge->cost[(size_t)choice[edge->a] * (size_t)p->n_strategies[edge->b] +
                              (size_t)choice[edge->b]];
        legal &= c < AP_FORBIDDEN;
        sum += c;
    }
    return legal || sum > AP_FORBIDDEN ? sum : AP_FORBIDDEN;
}

struct event {
    int64_t time, change;
};

/* What ends at a time is gone before something begins. */
static int by_time(const void *x, const void *y)
{
    const struct event *a = x, *b = y;

    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    return (a->change > b->change) - (a->change < b->change);
}

int64_t ap_problem_peak(const struct ap_problem *p, const int *choice)
{
    int64_t sum = 0, peak = 0;
    size_t n = 0;

    if (!p->span)
        return 0;
    struct event *event =
        ap_xrealloc(NULL, (2 * (size_t)p->n_nodes + 1) * sizeof(*event));
    for (int v = 0; v < p->n_nodes; v++)
        if (p->span[v].lo < p->span[v].hi) {
            int64_t usage = p->usage[v][choice[v]];
            event[n++] = (struct event){p->span[v].lo, usage};
            event[n++] = (struct event){p->span[v].hi, -usage};
        }
    qsort(event, n, sizeof(*event), by_time);
    for (size_t i = 0; i < n; i++) {
        sum += event[i].change;
        peak = sum > peak ? sum : peak;
    }
    free(event);
    return peak;
}

bool ap_problem_legal(const struct ap_problem *p, const int *choice)
{
    return ap_problem_score(p, choice) < AP_FORBIDDEN &&
           (!p->span || ap_problem_peak(p, choice) <= p->usage_limit);
}
