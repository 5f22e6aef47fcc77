/*
 * A reduced core stated for the search at prices of memory (memory_search.c): what is
 * left of the nodes as variables, their parts as usage over slots. Slots have different
 * room; the missing part is held by every choice.
 */
#include "mem.h"

#include <string.h>

#include "solve/memory.h"

#define REPEATED 100 /* nodes whose usage takes about 1 us to add up */

struct stated {
    const struct mem_core *m;
    struct ap_problem problem;
    struct ap_memory memory;
    int64_t limit;
    double base; /* what the core costs more than the problem */
};

static double no_infinity(double cost)
{
    return cost < INFINITY ? cost : AP_FORBIDDEN;
}

/* Costs less their least one, which goes to the base. */
static const double *lift(struct ap_arena *arena, double *cost, int n, double *base)
{
    double least = INFINITY, *lifted = AP_NEW_N(arena, n, double);

    for (int i = 0; i < n; i++)
        least = fmin(least, cost[i]);
    for (int i = 0; i < n; i++)
        lifted[i] = no_infinity(cost[i] - least);
    *base += least;
    return lifted;
}

static void state_edges(struct ap_arena *arena, struct stated *s)
{
    const struct sel_core *c = s->m->core;
    struct ap_problem_edge *edges =
        AP_NEW_N(arena, c->n_edges + 1, struct ap_problem_edge);

    for (int i = 0; i < c->n_edges; i++) {
        const struct sel_edge *e = &c->edge[i];
        const int n_a = c->node[e->a].n_strategies, n_b = c->node[e->b].n_strategies;
        double *cell = AP_NEW_N(arena, (int64_t)n_a * n_b, double);
        for (int x = 0; x < n_a; x++)
            for (int y = 0; y < n_b; y++)
                cell[x * n_b + y] = sel_cell(e, e->a, x, y);
        edges[i] =
            (struct ap_problem_edge){e->a, e->b, lift(arena, cell, n_a * n_b, &s->base)};
    }
    s->problem.edges = edges;
    s->problem.n_edges = c->n_edges;
}

static void state_problem(struct ap_arena *arena, struct stated *s)
{
    const struct sel_core *c = s->m->core;
    int *n = AP_NEW_N(arena, c->n_nodes + 1, int);
    const double **cost = AP_NEW_N(arena, c->n_nodes + 1, const double *);

    s->base = c->base;
    for (int v = 0; v < c->n_nodes; v++) {
        n[v] = c->node[v].n_strategies;
        cost[v] = lift(arena, c->node[v].cost, n[v], &s->base);
    }
    s->problem.n_nodes = c->n_nodes;
    s->problem.n_strategies = n;
    s->problem.cost = cost;
    state_edges(arena, s);
}

static void state_usage(struct ap_arena *arena, struct stated *s)
{
    const struct mem_core *m = s->m;
    const int n_first = m->core->node[0].n_strategies;
    struct ap_memory *mem = &s->memory;

    mem->problem = &s->problem;
    mem->n_vars = m->core->n_nodes;
    mem->n_times = m->n_slots;
    mem->items = AP_NEW_N(arena, m->n_parts + m->n_slots + 1, struct ap_usage_item);
    for (int t = 0; t < m->n_slots; t++)
        s->limit = m->room[t] > s->limit ? m->room[t] : s->limit;
    s->limit++; /* prices are in units of it */
    for (int v = 0; v < m->core->n_nodes; v++)
        for (int i = m->first[v]; i < m->first[v + 1]; i++)
            mem->items[mem->n_items++] = (struct ap_usage_item){
                m->part[i].lo, m->part[i].hi, v, -1, 1, m->part[i].usage};
    for (int t = 0; t < m->n_slots; t++) {
        int64_t *bytes = AP_NEW_N(arena, n_first, int64_t);
        for (int k = 0; k < n_first; k++)
            bytes[k] = s->limit - m->room[t];
        mem->items[mem->n_items++] = (struct ap_usage_item){t, t + 1, 0, -1, 1, bytes};
    }
}

bool mem_prices(struct ap_arena *arena, const struct mem_core *m, double until_sec,
                int *state, double *cost, double *bound, double *mu)
{
    struct stated s = {.m = m};
    struct ap_memory_answer found;
    struct ap_err err = {{0}};
    int *none = AP_NEW_N(arena, m->core->n_nodes + 1, int), *start = state;

    state_problem(arena, &s);
    state_usage(arena, &s);
    for (int v = 0; v < m->core->n_nodes; v++)
        none[v] = -1;
    struct ap_memory_task task = {.model = &s.memory,
                                  .limit = s.limit,
                                  .family = none,
                                  .layer = none,
                                  .cell = none,
                                  .n_starts = *cost < INFINITY,
                                  .start = &start,
                                  .bound = fmax(*bound - s.base, 0),
                                  .objective =
                                      fmax(*cost < INFINITY ? *cost - s.base : 0, 0),
                                  .best_sec = INFINITY,
                                  .program_work = 1 + m->core->n_nodes / REPEATED,
                                  .until_sec = until_sec};
    if (ap_memory_search(arena, &task, &found, &err))
        return false;
    *bound = fmax(*bound, found.bound + s.base);
    memcpy(mu, found.price, (size_t)m->n_slots * sizeof *mu);
    if (found.choice && found.sec + s.base < *cost) {
        memcpy(state, found.choice, (size_t)m->core->n_nodes * sizeof *state);
        *cost = mem_cost(m, state);
    }
    return true;
}
