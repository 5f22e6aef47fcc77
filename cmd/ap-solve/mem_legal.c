/*
 * A first legal choice where forbidden cells are so many that roundings get stuck: the
 * same problem with a price of 1 for each forbidden cell, and all other costs so small
 * that together they stay below 1/2. Every node's least usage fits, so a choice to start
 * from is at hand; the neighbourhoods of mem_local.c go on from it until the cost
 * is below 1. Their forests decide long chains of forbidden cells exactly, which answers
 * of single nodes cannot. O(cells of the tables by class) to set up.
 */
#include "mem.h"

struct mem_legal {
    struct mem_core priced; /* the problem as above; parts and room are the problem's */
    struct mem_local *local;
};

static double cost_of(double x, double scale)
{
    return x < INFINITY ? x * scale : 1;
}

static struct sel_core *price_cells(struct ap_arena *arena, const struct sel_core *c,
                                    double scale)
{
    struct sel_core *to = sel_core_new(arena, c, c->n_nodes, c->n_edges);

    for (int v = 0; v < c->n_nodes; v++) {
        int n = c->node[v].n_strategies;
        double *cost = AP_NEW_N(arena, n, double);
        for (int s = 0; s < n; s++)
            cost[s] = cost_of(c->node[v].cost[s], scale);
        to->node[v] =
            (struct sel_node){.n_strategies = n, .label = c->node[v].label, .cost = cost};
    }
    for (int i = 0; i < c->n_edges; i++) {
        struct sel_edge e = c->edge[i];
        int n = e.table->n_rows * e.table->n_cols;
        double *cell = AP_NEW_N(arena, n, double);
        for (int k = 0; k < n; k++)
            cell[k] = cost_of(e.table->cost[k], scale);
        e.table = sel_table_new(arena, e.table->n_rows, e.table->n_cols, cell);
        sel_core_edge(to, e);
    }
    return to;
}

/* Each node's first strategy without usage beyond the least, or that with the fewest. */
static void use_least(const struct mem_core *m, int *choice)
{
    for (int v = 0; v < m->core->n_nodes; v++) {
        int64_t least = INT64_MAX;
        for (int s = 0; s < m->core->node[v].n_strategies; s++) {
            int64_t sum = 0;
            for (int i = m->first[v]; i < m->first[v + 1]; i++)
                sum += m->part[i].usage[s];
            if (sum < least) {
                least = sum;
                choice[v] = s;
            }
        }
    }
}

struct mem_legal *mem_legal_new(struct ap_arena *arena, const struct mem_core *m,
                                double worst, uint64_t seed)
{
    struct mem_legal *g = AP_NEW(arena, struct mem_legal);
    double *mu = AP_NEW_N(arena, m->n_slots + 1, double);
    int *choice = AP_NEW_N(arena, m->core->n_nodes + 1, int);
    struct mem_tree left = mem_tree_new(arena, m);

    use_least(m, choice);
    for (int v = 0; v < m->core->n_nodes; v++)
        mem_tree_take(&left, m, v, choice[v], -1);
    if (mem_tree_all(&left) < 0)
        return NULL;
    g->priced = *m;
    g->priced.core = price_cells(arena, m->core, 0.5 / worst);
    g->local = mem_local_new(arena, &g->priced, seed, false);
    mem_local_set(g->local, choice, mem_cost(&g->priced, choice), 0, mu);
    return g;
}

const int *mem_legal_run(struct mem_legal *g, struct mem_budget *budget)
{
    mem_local_run(g->local, 0.9, budget);
    const int *best = mem_local_best(g->local);
    return mem_cost(&g->priced, best) < 0.9 ? best : NULL;
}
