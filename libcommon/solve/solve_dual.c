/*
 * A lower bound of the selection problem by message passing, with its uses: reduced
 * costs, fixing, rounding.
 *
 * TRW-S (Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy
 * Minimization", 2006): messages move cost between edges and nodes without changing the
 * cost of any choice. A sweep visits the nodes in order; a node collects what its edges
 * sent, gives each later edge the share 1 / max(later edges, earlier edges) of it, and
 * the edge passes the part that is certain on to its other end. The bound never falls.
 *
 * Invariant after the backward sweep: take theta(v) = cost plus messages, share * theta
 * of it lent to each edge back. Then every edge's least cell for a strategy of its lower
 * end is 0 but for the constant taken out of the message, so bound = base + sum of those
 * constants + sum of (1 - share * edges back) * min theta. At the moment when v is
 * visited all of theta(v) lies at v: theta - min theta is v's reduced cost.
 *
 * O(strategies + cells of the tables by class) per sweep.
 */
#include "solve/solve.h"

#include <string.h>

#define SWEPT 2 /* cells of work per cell of the tables: there and back */

/* Most of the time goes here; minima and sums of two have the same bits at any width. */
#define LANES 8
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

/* Breadth-first from the node found last by another such search: long things unroll. */
static int flood(const struct sel_core *c, int start, int *order, int *rank)
{
    int n = 0;

    for (int v = 0; v < c->n_nodes; v++)
        rank[v] = -1;
    for (int root = start; n < c->n_left; root = (root + 1) % c->n_nodes) {
        if (c->node[root].gone || rank[root] >= 0)
            continue;
        rank[root] = n;
        order[n++] = root;
        for (int i = rank[root]; i < n; i++) {
            const struct sel_node *node = &c->node[order[i]];
            for (int k = 0; k < node->n_edges; k++) {
                const struct sel_edge *e = &c->edge[node->edges[k]];
                int w = sel_other(e, order[i]);
                if (e->gone || rank[w] >= 0)
                    continue;
                rank[w] = n;
                order[n++] = w;
            }
        }
    }
    return n ? order[n - 1] : 0;
}

static void by_id(const struct sel_core *c, int *order, int *rank)
{
    for (int v = 0, n = 0; v < c->n_nodes; v++)
        if (!c->node[v].gone) {
            rank[v] = n;
            order[n++] = v;
        }
}

static struct sel_dual *dual_new(struct sel_core *c, bool in_order)
{
    struct sel_dual *d = AP_NEW(c->arena, struct sel_dual);
    int most = 1;

    d->core = c;
    d->n = c->n_left;
    d->order = AP_NEW_N(c->arena, d->n + 1, int);
    d->rank = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    d->share = AP_NEW_N(c->arena, c->n_nodes + 1, double);
    d->n_back = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    d->slack = AP_NEW_N(c->arena, c->n_nodes + 1, double *);
    d->to_a = AP_NEW_N(c->arena, c->n_edges + 1, double *);
    d->to_b = AP_NEW_N(c->arena, c->n_edges + 1, double *);
    if (in_order)
        by_id(c, d->order, d->rank);
    else
        flood(c, flood(c, 0, d->order, d->rank), d->order, d->rank);

    for (int e = 0; e < c->n_edges; e++) {
        const struct sel_edge *edge = &c->edge[e];
        if (edge->gone)
            continue;
        d->to_a[e] = AP_NEW_N(c->arena, c->node[edge->a].n_strategies, double);
        d->to_b[e] = AP_NEW_N(c->arena, c->node[edge->b].n_strategies, double);
        d->n_back[d->rank[edge->a] > d->rank[edge->b] ? edge->a : edge->b]++;
    }
    for (int i = 0; i < d->n; i++) {
        int v = d->order[i], back = d->n_back[v], ahead = c->node[v].degree - back;
        d->share[v] = 1.0 / (back > ahead ? back : ahead > 0 ? ahead : 1);
        d->slack[v] = AP_NEW_N(c->arena, c->node[v].n_strategies, double);
        if (c->node[v].n_strategies > most)
            most = c->node[v].n_strategies;
    }
    d->theta = AP_NEW_N(c->arena, most, double);
    for (int e = 0; e < c->n_edges; e++) {
        const struct sel_table *t = c->edge[e].table;
        if (!c->edge[e].gone && t->n_rows + t->n_cols > most)
            most = t->n_rows + t->n_cols;
    }
    d->least_in = AP_NEW_N(c->arena, most, double);
    d->least_out = AP_NEW_N(c->arena, most, double);
    d->bound = c->base;
    return d;
}

struct sel_dual *sel_dual_new(struct sel_core *c)
{
    return dual_new(c, false);
}

struct sel_dual *sel_dual_in_order(struct sel_core *c)
{
    return dual_new(c, true);
}

/* theta = cost plus messages into v; returns its least. */
static double collect(const struct sel_dual *d, int v, double *theta)
{
    const struct sel_core *c = d->core;
    const struct sel_node *node = &c->node[v];
    double least = INFINITY;

    memcpy(theta, node->cost, (size_t)node->n_strategies * sizeof(double));
    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        const double *in = (e->a == v ? d->to_a : d->to_b)[node->edges[i]];
        for (int s = 0; s < node->n_strategies; s++)
            theta[s] += in[s];
    }
    for (int s = 0; s < node->n_strategies; s++)
        least = theta[s] < least ? theta[s] : least;
    return least;
}

/* out[k] = min(out[k], x + row[k]) */
static inline void add_min(double x, const double *restrict row, int m,
                           double *restrict out)
{
    for (int k = 0; k < m; k++) {
        double y = x + row[k];
        out[k] = y < out[k] ? y : out[k];
    }
}

/* The same for the finite cells of row r only. */
static inline void scatter_min(const struct sel_table *t, int r, double x, double *out)
{
    for (int i = t->first[r]; i < t->first[r + 1]; i++) {
        double y = t->value ? x + t->value[i] : x, *at = &out[t->at[i]];
        *at = y < *at ? y : *at;
    }
}

/* min over the finite cells of row r of in[k] + cell */
static inline double gather_min(const struct sel_table *t, int r, const double *in)
{
    double least = INFINITY;

    for (int i = t->first[r]; i < t->first[r + 1]; i++) {
        double x = t->value ? in[t->at[i]] + t->value[i] : in[t->at[i]];
        least = x < least ? x : least;
    }
    return least;
}

WIDE void sel_min_over_rows(const struct sel_table *t, const double *restrict in,
                            double *restrict out)
{
    int m = t->n_cols;

    for (int k = 0; k < m; k++)
        out[k] = INFINITY;
    for (int r = 0; r < t->n_rows; r++) {
        double x = in[r];
        if (x == INFINITY)
            continue;
        if (t->first) {
            scatter_min(t, r, x, out);
            continue;
        }
        add_min(x, t->cost + (size_t)r * (size_t)m, m, out);
    }
}

/* min over k of in[k] + row[k], in LANES at a time */
static inline double min_sum(const double *restrict in, const double *restrict row, int m)
{
    double lane[LANES];
    int k = 0;

    for (int i = 0; i < LANES; i++)
        lane[i] = INFINITY;
    for (; k + LANES <= m; k += LANES)
        for (int i = 0; i < LANES; i++) {
            double x = in[k + i] + row[k + i];
            lane[i] = x < lane[i] ? x : lane[i];
        }
    for (int i = 0; k < m; k++, i++)
        lane[i] = sel_lesser(lane[i], in[k] + row[k]);
    for (int i = 1; i < LANES; i++)
        lane[0] = lane[i] < lane[0] ? lane[i] : lane[0];
    return lane[0];
}

WIDE void sel_min_over_cols(const struct sel_table *t, const double *restrict in,
                            double *restrict out)
{
    int m = t->n_cols;

    for (int r = 0; r < t->n_rows; r++) {
        if (!t->first) {
            out[r] = min_sum(in, t->cost + (size_t)r * (size_t)m, m);
            continue;
        }
        out[r] = gather_min(t, r, in);
    }
}

/* Sends v's share over edge id; returns the constant taken out of the message. */
static double send(struct sel_dual *d, int v, int id)
{
    const struct sel_core *c = d->core;
    const struct sel_edge *e = &c->edge[id];
    bool from_a = e->a == v;
    int n = c->node[v].n_strategies, m = c->node[sel_other(e, v)].n_strategies;
    int n_in = from_a ? e->table->n_rows : e->table->n_cols;
    const double *back = from_a ? d->to_a[id] : d->to_b[id];
    const double *add_in = from_a ? e->row_add : e->col_add;
    const double *add_out = from_a ? e->col_add : e->row_add;
    const int *in = from_a ? e->row : e->col, *out_class = from_a ? e->col : e->row;
    double *out = from_a ? d->to_b[id] : d->to_a[id], least = INFINITY;

    for (int k = 0; k < n_in; k++)
        d->least_in[k] = INFINITY;
    for (int s = 0; s < n; s++) {
        double x = d->share[v] * d->theta[s] - back[s] + add_in[s];
        if (x < d->least_in[in[s]])
            d->least_in[in[s]] = x;
    }
    if (from_a)
        sel_min_over_rows(e->table, d->least_in, d->least_out);
    else
        sel_min_over_cols(e->table, d->least_in, d->least_out);
    for (int r = 0; r < m; r++) {
        out[r] = d->least_out[out_class[r]] + add_out[r];
        least = out[r] < least ? out[r] : least;
    }
    for (int r = 0; r < m; r++)
        out[r] -= least;
    return least;
}

WIDE static double sweep(struct sel_dual *d, bool backward)
{
    const struct sel_core *c = d->core;
    double bound = c->base;

    for (int i = 0; i < d->n; i++) {
        int v = d->order[backward ? d->n - 1 - i : i];
        const struct sel_node *node = &c->node[v];
        double least = collect(d, v, d->theta);
        int ahead = backward ? d->n_back[v] : node->degree - d->n_back[v];
        bound += (1 - ahead * d->share[v]) * least;
        if (backward)
            for (int s = 0; s < node->n_strategies; s++)
                d->slack[v][s] = d->theta[s] - least;
        for (int k = 0; k < node->n_edges; k++) {
            int id = node->edges[k];
            const struct sel_edge *e = &c->edge[id];
            if (!e->gone && (d->rank[sel_other(e, v)] < d->rank[v]) == backward)
                bound += send(d, v, id);
        }
    }
    return bound;
}

void sel_dual_sweep(struct sel_dual *d)
{
    if (d->core->work)
        ap_work_add(d->core->work, SWEPT * sel_cells(d->core));
    double forward = sweep(d, false);

    d->slack_base = forward > d->bound ? forward : d->bound;
    double bound = sweep(d, true);
    d->bound = bound > d->slack_base ? bound : d->slack_base;
}

int64_t sel_dual_kept(const struct sel_dual *d, double limit, int64_t *all)
{
    int64_t kept = 0;

    *all = 0;
    for (int i = 0; i < d->n; i++) {
        int v = d->order[i], n = d->core->node[v].n_strategies;
        for (int s = 0; s < n; s++)
            kept += d->slack_base + d->slack[v][s] < limit;
        *all += n;
    }
    return kept;
}

/* ---- folding ---- */

struct fold {
    const struct sel_dual *d;
    struct sel_core *to;
    int *map;       /* [node], its id in to */
    int **keep;     /* [node], the strategies kept */
    double **theta; /* [node], cost plus messages */
};

static bool fold_node(struct fold *f, int v, double limit, int only)
{
    const struct sel_dual *d = f->d;
    const struct sel_node *node = &d->core->node[v];
    struct sel_node *to = &f->to->node[f->map[v]];
    int *keep = AP_NEW_N(f->to->arena, node->n_strategies, int);
    int *label = AP_NEW_N(f->to->arena, node->n_strategies, int);
    int n = 0;

    for (int s = 0; s < node->n_strategies; s++)
        if ((only < 0 || s == only) && d->slack_base + d->slack[v][s] < limit) {
            keep[n] = s;
            label[n++] = node->label[s];
        }
    f->keep[v] = keep;
    to->label = label;
    to->n_strategies = n;
    to->cost = AP_NEW_N(f->to->arena, n + 1, double);
    double own = 1 - d->n_back[v] * d->share[v];
    double *theta = AP_NEW_N(f->to->arena, node->n_strategies, double);
    double least = collect(d, v, theta);
    f->theta[v] = theta;
    f->to->base += own * least;
    for (int s = 0; s < n; s++) /* own may be 1e-16 off 0 */
        to->cost[s] = own > 1e-9 ? own * (theta[keep[s]] - least) : 0;
    return n > 0;
}

/* One end of a folded edge: classes and additions of the strategies kept. */
static const double *fold_end(struct fold *f, int v, const double *add,
                              const double *message, bool later, const int *class,
                              const int **to_class)
{
    struct ap_arena *arena = f->to->arena;
    int n = f->to->node[f->map[v]].n_strategies;
    int *classes = AP_NEW_N(arena, n, int);
    double *sum = AP_NEW_N(arena, n, double);

    for (int i = 0; i < n; i++) {
        int s = f->keep[v][i];
        classes[i] = class[s];
        sum[i] = add[s] - message[s] + (later ? f->d->share[v] * f->theta[v][s] : 0);
    }
    *to_class = classes;
    return sum;
}

/* The classes in use, renumbered: used[k] becomes the new number or -1. Their number. */
static int used_classes(struct ap_arena *arena, const int **class, int n, int n_classes,
                        int *used)
{
    int *to = AP_NEW_N(arena, n, int), k = 0;

    for (int i = 0; i < n_classes; i++)
        used[i] = -1;
    for (int i = 0; i < n; i++)
        used[(*class)[i]] = 0;
    for (int i = 0; i < n_classes; i++)
        if (used[i] == 0)
            used[i] = k++;
    for (int i = 0; i < n; i++)
        to[i] = used[(*class)[i]];
    *class = to;
    return k;
}

/* Leaves out rows and columns of the table that no strategy uses, if many. */
static void compact(struct ap_arena *arena, struct sel_edge *e, int na, int nb)
{
    const struct sel_table *t = e->table;
    const int *row = e->row, *col = e->col;
    int *used_row = AP_NEW_N(arena, t->n_rows, int);
    int *used_col = AP_NEW_N(arena, t->n_cols, int);
    int n_rows = used_classes(arena, &row, na, t->n_rows, used_row);
    int n_cols = used_classes(arena, &col, nb, t->n_cols, used_col);

    if (4.0 * n_rows * n_cols > 3.0 * t->n_rows * t->n_cols)
        return;
    double *cost = AP_NEW_N(arena, (int64_t)n_rows * n_cols, double), *at = cost;
    for (int i = 0; i < t->n_rows; i++)
        for (int k = 0; used_row[i] >= 0 && k < t->n_cols; k++)
            if (used_col[k] >= 0)
                *at++ = t->cost[i * t->n_cols + k];
    e->row = row;
    e->col = col;
    e->table = sel_table_new(arena, n_rows, n_cols, cost);
}

static void least_by_class(const double *add, const int *class, int n, int n_classes,
                           double *least)
{
    for (int k = 0; k < n_classes; k++)
        least[k] = INFINITY;
    for (int i = 0; i < n; i++)
        least[class[i]] = sel_lesser(least[class[i]], add[i]);
}

static void fold_edge(struct fold *f, int id)
{
    const struct sel_dual *d = f->d;
    struct sel_edge e = d->core->edge[id];
    bool a_later = d->rank[e.a] > d->rank[e.b];
    double least = INFINITY;

    e.row_add = fold_end(f, e.a, e.row_add, d->to_a[id], a_later, e.row, &e.row);
    e.col_add = fold_end(f, e.b, e.col_add, d->to_b[id], !a_later, e.col, &e.col);
    e.a = f->map[e.a];
    e.b = f->map[e.b];
    e.checked = false;
    int na = f->to->node[e.a].n_strategies, nb = f->to->node[e.b].n_strategies;
    compact(f->to->arena, &e, na, nb);
    least_by_class(e.row_add, e.row, na, e.table->n_rows, d->least_in);
    sel_min_over_rows(e.table, d->least_in, d->least_out);
    for (int i = 0; i < nb; i++)
        least = sel_lesser(least, d->least_out[e.col[i]] + e.col_add[i]);
    if (least < INFINITY) {
        double *add = ap_arena_dup(f->to->arena, e.row_add, (size_t)na * sizeof *add);
        for (int i = 0; i < na; i++)
            add[i] -= least;
        e.row_add = add;
        f->to->base += least;
    }
    sel_core_edge(f->to, e);
}

struct sel_core *sel_dual_fold(const struct sel_dual *d, double limit, int only,
                               int strategy)
{
    struct sel_core *c = d->core;
    struct fold f = {.d = d};
    int *parent = AP_NEW_N(c->arena, d->n + 1, int);
    bool ok = true;

    f.to = sel_core_new(c->arena, c, d->n, c->n_edges);
    f.map = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    f.keep = AP_NEW_N(c->arena, c->n_nodes + 1, int *);
    f.theta = AP_NEW_N(c->arena, c->n_nodes + 1, double *);
    f.to->parent = parent;
    f.to->base = c->base;
    f.to->tol = fmax(c->tol, 1e-16 * fabs(d->bound)); /* rounding of moved costs */
    for (int v = 0, k = 0; v < c->n_nodes; v++)
        if (!c->node[v].gone) {
            f.map[v] = k;
            parent[k++] = v;
            ok &= fold_node(&f, v, limit, v == only ? strategy : -1);
        }
    if (!ok)
        return NULL;
    for (int e = 0; e < c->n_edges; e++)
        if (!c->edge[e].gone)
            fold_edge(&f, e);
    return f.to;
}

void sel_dual_round(struct sel_dual *d, int *state)
{
    const struct sel_core *c = d->core;

    for (int i = 0; i < d->n; i++) {
        int v = d->order[i], best = 0;
        const struct sel_node *node = &c->node[v];
        memcpy(d->theta, node->cost, (size_t)node->n_strategies * sizeof(double));
        for (int k = 0; k < node->n_edges; k++) {
            const struct sel_edge *e = &c->edge[node->edges[k]];
            if (e->gone)
                continue;
            int w = sel_other(e, v);
            const double *in = (e->a == v ? d->to_a : d->to_b)[node->edges[k]];
            for (int s = 0; s < node->n_strategies; s++) {
                double x = d->rank[w] < i ? sel_cell(e, v, s, state[w]) : in[s];
                d->theta[s] += x < INFINITY ? x : AP_FORBIDDEN;
            }
        }
        for (int s = 1; s < node->n_strategies; s++)
            if (d->theta[s] < d->theta[best])
                best = s;
        state[v] = best;
    }
}
