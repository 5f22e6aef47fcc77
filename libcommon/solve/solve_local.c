/*
 * Local search on the selection problem: single nodes answer their neighbours best until
 * nothing changes. A forbidden cost counts as AP_FORBIDDEN, so that repairs come first.
 * O(degree * strategies) per answer.
 */
#include "solve/solve.h"

#define MAX_ROUNDS 50

static double no_infinity(double x)
{
    return x < INFINITY ? x : AP_FORBIDDEN;
}

double sel_cost(const struct sel_core *c, const int *state)
{
    double sum = c->base;

    for (int v = 0; v < c->n_nodes; v++)
        if (!c->node[v].gone)
            sum += c->node[v].cost[state[v]];
    for (int i = 0; i < c->n_edges; i++) {
        const struct sel_edge *e = &c->edge[i];
        if (!e->gone)
            sum += sel_cell(e, e->a, state[e->a], state[e->b]);
    }
    return sum < AP_FORBIDDEN ? sum : INFINITY;
}

/* Forbidden costs swallow finite ones: they are counted apart. */
struct amount {
    int forbidden;
    double sum;
};

static bool less(struct amount x, struct amount y)
{
    return x.forbidden != y.forbidden ? x.forbidden < y.forbidden : x.sum < y.sum;
}

static struct amount cost_at(const struct sel_core *c, const int *state, int v, int s)
{
    const struct sel_node *node = &c->node[v];
    struct amount x = {0, node->cost[s]};

    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        double y = no_infinity(sel_cell(e, v, s, state[sel_other(e, v)]));
        if (y >= AP_FORBIDDEN)
            x.forbidden++;
        else
            x.sum += y;
    }
    return x;
}

/* v's best strategy (the present one unless another is better) and its cost. */
static int answer(const struct sel_core *c, const int *state, int v, struct amount *cost)
{
    int best = state[v];

    *cost = cost_at(c, state, v, best);
    for (int s = 0; s < c->node[v].n_strategies; s++) {
        if (s == best)
            continue;
        struct amount x = cost_at(c, state, v, s);
        if (less(x, *cost)) {
            *cost = x;
            best = s;
        }
    }
    return best;
}

static void settle(const struct sel_core *c, int *state)
{
    bool again = true;

    for (int round = 0; again && round < MAX_ROUNDS; round++) {
        again = false;
        for (int v = 0; v < c->n_nodes; v++) {
            struct amount cost;
            if (c->node[v].gone)
                continue;
            int s = answer(c, state, v, &cost);
            again |= s != state[v];
            state[v] = s;
        }
    }
}

double sel_local(const struct sel_core *c, int *state)
{
    settle(c, state);
    return sel_cost(c, state);
}
