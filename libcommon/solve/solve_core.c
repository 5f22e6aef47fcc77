/*
 * The working form of a selection problem: nodes, edges, and tables by class. Strategies
 * of a step often share layouts, so that their rows in a conversion table are equal: rows
 * and columns are found equal by hashing, O(cells), and kept once.
 */
#include "solve/solve.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

struct sel_core *sel_core_new(struct ap_arena *arena, const struct sel_core *like,
                              int n_nodes, int n_edges)
{
    struct sel_core *c = AP_NEW(arena, struct sel_core);

    c->arena = arena;
    c->n_nodes = c->n_left = n_nodes;
    c->node = AP_NEW_N(arena, n_nodes + 1, struct sel_node);
    c->cap_edges = n_edges + 4;
    c->edge = AP_NEW_N(arena, c->cap_edges, struct sel_edge);
    c->best = AP_NEW_N(arena, n_nodes + 1, int);
    c->queue = AP_NEW_N(arena, n_nodes + 1, int);
    if (like) {
        c->identity = like->identity;
        c->n_identity = like->n_identity;
        c->zeros = like->zeros;
        c->tol = like->tol;
        c->until_sec = like->until_sec;
        c->work = like->work;
    }
    return c;
}

static void attach(struct sel_core *c, int v, int e)
{
    struct sel_node *node = &c->node[v];

    AP_ROOM_IN(c->arena, node->edges, node->n_edges, node->cap_edges);
    node->edges[node->n_edges++] = e;
    node->degree++;
}

void sel_core_edge(struct sel_core *c, struct sel_edge edge)
{
    AP_ROOM_IN(c->arena, c->edge, c->n_edges, c->cap_edges);
    c->edge[c->n_edges] = edge;
    attach(c, edge.a, c->n_edges);
    attach(c, edge.b, c->n_edges);
    c->n_edges++;
}

#define SPARSE 2  /* cells that are looked up one by one take longer than rows of them */
#define VISIT  12 /* cells that going to an edge is worth */

int64_t sel_cells(const struct sel_core *c)
{
    int64_t n = 0;

    for (int e = 0; e < c->n_edges; e++) {
        const struct sel_edge *edge = &c->edge[e];
        const struct sel_table *t = edge->table;
        if (!edge->gone)
            n += VISIT +
                 (t->first ? SPARSE * t->first[t->n_rows]
                           : (int64_t)t->n_rows * t->n_cols) +
                 c->node[edge->a].n_strategies + c->node[edge->b].n_strategies;
    }
    return n;
}

/* ---- tables ---- */

struct sel_table *sel_table_new(struct ap_arena *arena, int n_rows, int n_cols,
                                const double *cost)
{
    struct sel_table *t = AP_NEW(arena, struct sel_table);
    int finite = 0, zero = 0, n = n_rows * n_cols;

    *t = (struct sel_table){.n_rows = n_rows, .n_cols = n_cols, .cost = cost};
    for (int i = 0; i < n; i++) {
        finite += cost[i] < INFINITY;
        zero += cost[i] == 0;
    }
    bool plain = zero == finite; /* then a cell takes 2 bytes instead of 8 */
    if (n < 64 || n_cols > UINT16_MAX || finite > n * (plain ? 0.7 : 0.25))
        return t;
    int *first = AP_NEW_N(arena, n_rows + 1, int);
    uint16_t *at = AP_NEW_N(arena, finite + 1, uint16_t);
    double *value = plain ? NULL : AP_NEW_N(arena, finite + 1, double);
    for (int r = 0, k = 0; r < n_rows; r++) {
        for (int i = 0; i < n_cols; i++) {
            double x = cost[(size_t)r * (size_t)n_cols + (size_t)i];
            if (x == INFINITY)
                continue;
            if (!plain)
                value[k] = x;
            at[k++] = (uint16_t)i;
        }
        first[r + 1] = k;
    }
    t->first = first;
    t->at = at;
    t->value = value;
    return t;
}

int sel_classify(double *rows, int n, int width, int *class)
{
    size_t size = (size_t)width * sizeof(double);
    int n_slots = 4, n_classes = 0;

    while (n_slots < 2 * n)
        n_slots *= 2;
    int *slot = ap_xrealloc(NULL, (size_t)n_slots * sizeof(int));
    for (int i = 0; i < n_slots; i++)
        slot[i] = -1;
    for (int i = 0; i < n; i++) {
        double *row = rows + (size_t)i * (size_t)width;
        int h = (int)(ap_hash(row, size, 0) & (uint64_t)(n_slots - 1));
        while (slot[h] >= 0 && memcmp(rows + (size_t)slot[h] * (size_t)width, row, size))
            h = (h + 1) & (n_slots - 1);
        if (slot[h] < 0) {
            slot[h] = n_classes;
            if (n_classes != i)
                memcpy(rows + (size_t)n_classes * (size_t)width, row, size);
            n_classes++;
        }
        class[i] = slot[h];
    }
    free(slot);
    return n_classes;
}

struct sel_edge sel_edge_compress(struct sel_core *c, int a, int b, int n_a, int n_b,
                                  const double *cost)
{
    size_t n = (size_t)n_a * (size_t)n_b;
    double *rows = ap_xrealloc(NULL, 2 * n * sizeof(double)), *turned = rows + n;
    int *row = AP_NEW_N(c->arena, n_a, int), *col = AP_NEW_N(c->arena, n_b, int);

    memcpy(rows, cost, n * sizeof(double));
    int n_rows = sel_classify(rows, n_a, n_b, row);
    for (int i = 0; i < n_rows; i++)
        for (int k = 0; k < n_b; k++)
            turned[(size_t)k * (size_t)n_rows + (size_t)i] =
                rows[(size_t)i * (size_t)n_b + (size_t)k];
    int n_cols = sel_classify(turned, n_b, n_rows, col);
    double *table = AP_NEW_N(c->arena, (int64_t)n_rows * n_cols, double);
    for (int i = 0; i < n_rows; i++)
        for (int k = 0; k < n_cols; k++)
            table[i * n_cols + k] = turned[(size_t)k * (size_t)n_rows + (size_t)i];
    free(rows);
    return (struct sel_edge){.a = a,
                             .b = b,
                             .table = sel_table_new(c->arena, n_rows, n_cols, table),
                             .row = row,
                             .col = col,
                             .row_add = c->zeros,
                             .col_add = c->zeros};
}

/* ---- whole cores ---- */

static void node_from(struct sel_core *c, int v, const double *cost, int n)
{
    struct sel_node *node = &c->node[v];

    node->n_strategies = n;
    node->label = c->identity;
    node->cost = AP_NEW_N(c->arena, n, double);
    for (int s = 0; s < n; s++)
        node->cost[s] = cost[s] >= AP_FORBIDDEN ? INFINITY : cost[s];
}

struct sel_core *sel_core_from_problem(struct ap_arena *arena, const struct ap_problem *p)
{
    struct sel_core *c = sel_core_new(arena, NULL, p->n_nodes, p->n_edges);
    double *cost = NULL, choices = 2;
    int most = SEL_MAX_PAIRS;
    size_t cap = 0;

    for (int v = 0; v < p->n_nodes; v++) {
        most = p->n_strategies[v] > most ? p->n_strategies[v] : most;
        choices = fmin(choices * p->n_strategies[v], SEL_MAX_SETS);
    }
    most = choices > most ? (int)choices : most; /* sets of copies, and proxies */
    int *identity = AP_NEW_N(arena, most, int);
    for (int i = 0; i < most; i++)
        identity[i] = i;
    c->identity = identity;
    c->n_identity = most;
    c->zeros = AP_NEW_N(arena, most, double);
    for (int v = 0; v < p->n_nodes; v++)
        node_from(c, v, p->cost[v], p->n_strategies[v]);
    for (int i = 0; i < p->n_edges; i++) {
        const struct ap_problem_edge *e = &p->edges[i];
        int na = p->n_strategies[e->a], nb = p->n_strategies[e->b];
        size_t n = (size_t)na * (size_t)nb;
        if (n > cap) {
            cap = 2 * n;
            cost = ap_xrealloc(cost, cap * sizeof(double));
        }
        for (size_t k = 0; k < n; k++)
            cost[k] = e->cost[k] >= AP_FORBIDDEN ? INFINITY : e->cost[k];
        sel_core_edge(c, sel_edge_compress(c, e->a, e->b, na, nb, cost));
    }
    free(cost);
    return c;
}

struct sel_core *sel_core_copy(const struct sel_core *c)
{
    struct sel_core *to = sel_core_new(c->arena, c, c->n_nodes, c->n_edges);

    for (int v = 0; v < c->n_nodes; v++) {
        struct sel_node *node = &to->node[v];
        *node = c->node[v];
        node->cost = ap_arena_dup(c->arena, node->cost,
                                  (size_t)node->n_strategies * sizeof(double));
        if (node->n_edges > 0)
            node->edges = ap_arena_dup(c->arena, node->edges,
                                       (size_t)node->cap_edges * sizeof(int));
    }
    memcpy(to->edge, c->edge, (size_t)c->n_edges * sizeof(*c->edge));
    to->n_edges = c->n_edges;
    return to;
}

struct sel_core *sel_core_extract(struct sel_core *c, const int *list, int n, int *map)
{
    int n_edges = 0;
    int *parent = AP_NEW_N(c->arena, n, int);

    for (int i = 0; i < n; i++)
        n_edges += c->node[list[i]].degree;
    struct sel_core *to = sel_core_new(c->arena, c, n, n_edges / 2);
    to->parent = parent;
    for (int i = 0; i < n; i++) {
        const struct sel_node *node = &c->node[list[i]];
        parent[i] = list[i];
        map[list[i]] = i;
        to->node[i].n_strategies = node->n_strategies;
        to->node[i].label = node->label;
        to->node[i].cost = ap_arena_dup(c->arena, node->cost,
                                        (size_t)node->n_strategies * sizeof(double));
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < c->node[list[i]].n_edges; k++) {
            struct sel_edge e = c->edge[c->node[list[i]].edges[k]];
            if (e.gone || e.a != list[i])
                continue;
            e.a = i;
            e.b = map[e.b];
            sel_core_edge(to, e);
        }
    return to;
}
