/* Scoring of the selection problem: the only place that computes the cost of a choice. */
#include "solve/problem.h"

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
