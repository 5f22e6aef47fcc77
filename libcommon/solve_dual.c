/*
 * A lower bound of the selection problem by message passing, and what follows from it:
 * reduced costs, fixing, rounding.
 *
 * TRW-S (Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy
 * Minimization", 2006): messages move cost between edges and nodes without changing the
 * cost of any choice. A sweep visits the nodes in order; a node collects what its edges
 * sent, gives each edge ahead the share 1 / max(edges ahead, edges behind) of it, and the
 * edge passes on to the other end what it can for certain. The bound never falls.
 *
 * Invariant after the backward sweep: take theta(v) = cost plus messages, share * theta
 * of it lent to each edge back. Then every edge's least cell for a strategy of its lower
 * end is 0 but for the constant taken out of the message, so bound = base + sum of those
 * constants + sum of (1 - share * edges back) * min theta. At the moment when v is
 * visited all of theta(v) lies at v: theta - min theta is v's reduced cost.
 *
 * O(cells of all edges) per sweep.
 */
#include "solve.h"

#include <string.h>

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

struct sel_dual *sel_dual_new(struct sel_core *c)
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
    d->scratch = AP_NEW_N(c->arena, most, double);
    d->bound = c->base;
    return d;
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

/* out[r] = min over s of in[s] + t[s][r] */
static void min_sum_rows(const double *restrict in, const double *restrict t, int n,
                         int m, double *restrict out)
{
    for (int r = 0; r < m; r++)
        out[r] = in[0] + t[r];
    for (int s = 1; s < n; s++) {
        const double *restrict row = t + (size_t)s * (size_t)m;
        double x = in[s];
        for (int r = 0; r < m; r++)
            out[r] = x + row[r] < out[r] ? x + row[r] : out[r];
    }
}

/* out[r] = min over s of in[s] + t[r][s] */
static void min_sum_columns(const double *restrict in, const double *restrict t, int n,
                            int m, double *restrict out)
{
    for (int r = 0; r < m; r++) {
        const double *restrict row = t + (size_t)r * (size_t)n;
        double a = INFINITY, b = INFINITY;
        int s = 0;
        for (; s + 1 < n; s += 2) {
            double x = in[s] + row[s], y = in[s + 1] + row[s + 1];
            a = x < a ? x : a;
            b = y < b ? y : b;
        }
        if (s < n && in[s] + row[s] < a)
            a = in[s] + row[s];
        out[r] = a < b ? a : b;
    }
}

/* Sends v's share over edge id; returns the constant taken out of the message. */
static double send(struct sel_dual *d, int v, int id)
{
    const struct sel_core *c = d->core;
    const struct sel_edge *e = &c->edge[id];
    int w = sel_other(e, v), n = c->node[v].n_strategies, m = c->node[w].n_strategies;
    const double *back = e->a == v ? d->to_a[id] : d->to_b[id];
    double *out = e->a == v ? d->to_b[id] : d->to_a[id], least = INFINITY;

    for (int s = 0; s < n; s++)
        d->scratch[s] = d->share[v] * d->theta[s] - back[s];
    if (e->a == v)
        min_sum_rows(d->scratch, e->cost, n, m, out);
    else
        min_sum_columns(d->scratch, e->cost, n, m, out);
    for (int r = 0; r < m; r++)
        least = out[r] < least ? out[r] : least;
    for (int r = 0; r < m; r++)
        out[r] -= least;
    return least;
}

static double sweep(struct sel_dual *d, bool backward)
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

static void fold_edge(struct fold *f, int id)
{
    const struct sel_dual *d = f->d;
    const struct sel_core *c = d->core;
    const struct sel_edge *e = &c->edge[id];
    bool a_later = d->rank[e->a] > d->rank[e->b];
    int later = a_later ? e->a : e->b;
    int na = f->to->node[f->map[e->a]].n_strategies,
        nb = f->to->node[f->map[e->b]].n_strategies;
    const int *ka = f->keep[e->a], *kb = f->keep[e->b];
    double *t = AP_NEW_N(f->to->arena, (size_t)na * (size_t)nb, double);
    double least = INFINITY;

    const double *theta = f->theta[later];
    for (int i = 0; i < na; i++)
        for (int k = 0; k < nb; k++) {
            int s = ka[i], r = kb[k];
            double x =
                e->cost[(size_t)s * (size_t)c->node[e->b].n_strategies + (size_t)r] -
                d->to_a[id][s] - d->to_b[id][r] +
                d->share[later] * theta[a_later ? s : r];
            t[(size_t)i * (size_t)nb + (size_t)k] = x;
            least = x < least ? x : least;
        }
    if (least < INFINITY) {
        f->to->base += least;
        for (int k = 0; k < na * nb; k++)
            t[k] -= least;
    }
    sel_core_edge(f->to, f->map[e->a], f->map[e->b], t, true);
}

struct sel_core *sel_dual_fold(const struct sel_dual *d, double limit, int only,
                               int strategy)
{
    struct sel_core *c = d->core;
    struct fold f = {.d = d};
    int *parent = AP_NEW_N(c->arena, d->n + 1, int);
    bool ok = true;

    f.to = sel_core_new(c->arena, d->n, c->n_edges);
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
                double x = d->rank[w] < i ? sel_cell(c, e, v, s, state[w]) : in[s];
                d->theta[s] += x < INFINITY ? x : AP_FORBIDDEN;
            }
        }
        for (int s = 1; s < node->n_strategies; s++)
            if (d->theta[s] < d->theta[best])
                best = s;
        state[v] = best;
    }
}
