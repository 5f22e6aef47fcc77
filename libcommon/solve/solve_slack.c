/*
 * A lower bound on the cost of every strategy of a reduced core, including nodes that
 * were removed. Message passing tells it of the nodes that are left (sel_dual_sweep). A
 * node that was eliminated cost its neighbours the least over its strategies; strategy s
 * costs more by the difference at the neighbours' strategies, which have lower bounds of
 * their own: the undo stack is traversed from its end, neighbours first. Between two
 * neighbours the more expensive of both counts.
 *
 * O(strategies * cells below the limit) per node taken out.
 */
#include "solve/solve.h"

#include <string.h>

struct slack {
    struct sel_core *c;
    double limit, bound;
    double **least; /* [node][label] */
};

/* fmin without NaN: calls would be most of the work. */
static double least_of(double a, double b)
{
    return a < b ? a : b;
}

/* An arm by classes: what the other end costs at least, and its table for v's strategy.
 */
struct ways {
    int n;
    double *least;     /* [class of the other end] */
    const double *add; /* [strategy of v] */
    const int *own;    /* [strategy of v], class */
    const struct sel_table *table;
    bool rows; /* v's classes are the table's rows */
};

static struct ways ways_of(const struct slack *sl, int v, const struct sel_arm *arm)
{
    const struct sel_edge *e = &arm->edge;
    bool rows = e->a == v;
    const int *class = rows ? e->col : e->row;
    struct ways w = {.n = rows ? e->table->n_cols : e->table->n_rows,
                     .add = rows ? e->row_add : e->col_add,
                     .own = rows ? e->row : e->col,
                     .table = e->table,
                     .rows = rows};

    w.least = AP_NEW_N(sl->c->arena, w.n, double);
    for (int k = 0; k < w.n; k++)
        w.least[k] = INFINITY;
    for (int t = 0; t < arm->n_strategies; t++)
        w.least[class[t]] =
            least_of(w.least[class[t]], sl->least[arm->node][arm->label[t]]);
    return w;
}

/* Of a class of the other end: [strategy of v] in to, on top of from; the least of them.
 */
static double add_way(const struct ways *w, int n, int k, const double *from, double *to)
{
    int step = w->rows ? w->table->n_cols : 1;
    const double *cost = w->table->cost + (w->rows ? k : k * w->table->n_cols);
    double best = INFINITY;

    for (int s = 0; s < n; s++) {
        to[s] = from[s] + cost[w->own[s] * step];
        best = least_of(best, to[s]);
    }
    return best;
}

/* Lowers what strategies cost at least when the others cost `others`. */
static void lower(double *least, int n, double others, const double *sum, double best)
{
    for (int s = 0; s < n && best < INFINITY; s++)
        least[s] = least_of(least[s], others + (sum[s] - best));
}

static void by_one(struct slack *sl, const struct sel_undo *u, double *least)
{
    struct ways w = ways_of(sl, u->node, &u->arm[0]);
    int n = u->n_strategies;
    double *own = AP_NEW_N(sl->c->arena, n, double);
    double *sum = AP_NEW_N(sl->c->arena, n, double);

    for (int s = 0; s < n; s++)
        own[s] = u->cost[s] + w.add[s];
    for (int k = 0; k < w.n; k++)
        if (w.least[k] < sl->limit)
            lower(least, n, w.least[k], sum, add_way(&w, n, k, own, sum));
}

static void by_two(struct slack *sl, const struct sel_undo *u, double *least)
{
    struct ways w = ways_of(sl, u->node, &u->arm[0]);
    struct ways x = ways_of(sl, u->node, &u->arm[1]);
    int n = u->n_strategies;
    double *own = AP_NEW_N(sl->c->arena, n, double);
    double *one = AP_NEW_N(sl->c->arena, n, double);
    double *sum = AP_NEW_N(sl->c->arena, n, double);

    for (int s = 0; s < n; s++)
        own[s] = u->cost[s] + w.add[s] + x.add[s];
    for (int k = 0; k < w.n; k++) {
        if (w.least[k] >= sl->limit)
            continue;
        add_way(&w, n, k, own, one);
        for (int l = 0; l < x.n; l++) {
            double others = w.least[k] > x.least[l] ? w.least[k] : x.least[l];
            if (others < sl->limit)
                lower(least, n, others, sum, add_way(&x, n, l, one, sum));
        }
    }
}

static void by_none(const struct slack *sl, const struct sel_undo *u, double *least)
{
    double best = INFINITY;

    for (int s = 0; s < u->n_strategies; s++)
        best = least_of(best, u->cost[s]);
    for (int s = 0; s < u->n_strategies; s++)
        least[s] = sl->bound + (u->cost[s] - best);
}

/* A function of its arm: it costs what the cheapest of the strategies does that have it.
 */
static void by_map(struct slack *sl, const struct sel_undo *u)
{
    const struct sel_arm *arm = &u->arm[0];
    double *to = sl->least[u->node];

    for (int t = 0; t < arm->n_strategies; t++)
        to[u->map[t]] = least_of(to[u->map[t]], sl->least[arm->node][arm->label[t]]);
}

static void undo(struct slack *sl, const struct sel_undo *u)
{
    struct ap_mark mark = ap_arena_mark(sl->c->arena);

    if (u->map) {
        by_map(sl, u);
        return;
    }
    double *least = AP_NEW_N(sl->c->arena, u->n_strategies, double);
    for (int s = 0; s < u->n_strategies; s++)
        least[s] = INFINITY;
    if (u->n_arms == 0)
        by_none(sl, u, least);
    else if (u->n_arms == 1)
        by_one(sl, u, least);
    else
        by_two(sl, u, least);
    for (int s = 0; s < u->n_strategies; s++)
        sl->least[u->node][u->label[s]] = least[s];
    ap_arena_rewind(sl->c->arena, mark);
}

double **sel_least_costs(struct sel_core *c, const int *n_labels, double *const *left,
                         double bound, double limit)
{
    struct slack sl = {.c = c, .limit = limit, .bound = bound};

    sl.least = AP_NEW_N(c->arena, c->n_nodes + 1, double *);
    for (int v = 0; v < c->n_nodes; v++) {
        sl.least[v] = AP_NEW_N(c->arena, n_labels[v] + 1, double);
        for (int s = 0; s < n_labels[v]; s++)
            sl.least[v][s] = INFINITY;
        for (int s = 0; s < c->node[v].n_strategies && !c->node[v].gone; s++)
            sl.least[v][c->node[v].label[s]] = left[v][s];
    }
    for (int i = c->n_undo - 1; i >= 0; i--)
        undo(&sl, &c->undo[i]);
    return sl.least;
}

int *sel_count_labels(const struct sel_core *c)
{
    int *n = AP_NEW_N(c->arena, c->n_nodes + 1, int);

    for (int v = 0; v < c->n_nodes; v++)
        n[v] = c->node[v].gone ? 0 : c->node[v].n_strategies;
    return n;
}

double **sel_dual_least(const struct sel_dual *d, double shift)
{
    const struct sel_core *c = d->core;
    double **least = AP_NEW_N(c->arena, c->n_nodes + 1, double *);

    for (int i = 0; i < d->n; i++) {
        int v = d->order[i];
        least[v] = AP_NEW_N(c->arena, c->node[v].n_strategies, double);
        for (int s = 0; s < c->node[v].n_strategies; s++)
            least[v][s] = d->slack_base + d->slack[v][s] - shift;
    }
    return least;
}
