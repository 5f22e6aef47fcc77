/*
 * Exact reductions of the selection problem (SELECTION.md section 4 names them), to a
 * fixed point: parallel edges added up; strategies without a finite cell dropped; nodes
 * with one strategy folded into their neighbours; edges that are a sum of a row and a
 * column term moved into the nodes; nodes that are a function of a neighbour merged with
 * it; nodes of degree 0, 1 and 2 eliminated; dominated strategies dropped (dead-end
 * elimination, Goldstein's form).
 *
 * A queue of nodes drives it: a change puts the nodes it touches back. What takes a node
 * out pushes one undo record (struct sel_undo); dropping strategies needs none, as
 * labels say what is left. O(cells) per visit; elimination of degree 2 is cubic in the
 * strategy counts; dominance looks at pairs only that survive a test of O(degree).
 */
#include "solve.h"

#include <string.h>

#define MAX_ELIMINATE    4e6 /* combinations of a node and its two neighbours */
#define DOMINANCE_ROUNDS 4
#define ROUNDING         1e-15 /* relative differences of sums up to this are noise */

/* ---- building ---- */

struct sel_core *sel_core_new(struct ap_arena *arena, int n_nodes, int n_edges)
{
    struct sel_core *c = AP_NEW(arena, struct sel_core);

    c->arena = arena;
    c->n_nodes = c->n_left = n_nodes;
    c->node = AP_NEW_N(arena, n_nodes + 1, struct sel_node);
    c->cap_edges = n_edges + 4;
    c->edge = AP_NEW_N(arena, c->cap_edges, struct sel_edge);
    c->best = AP_NEW_N(arena, n_nodes + 1, int);
    c->queue = AP_NEW_N(arena, n_nodes + 1, int);
    return c;
}

static void *grow(struct ap_arena *arena, void *old, int *cap, size_t size)
{
    int n = *cap ? 2 * *cap : 4;
    void *p = ap_arena_alloc_n(arena, (size_t)n, size);

    if (*cap)
        memcpy(p, old, (size_t)*cap * size);
    *cap = n;
    return p;
}

static void attach(struct sel_core *c, int v, int e)
{
    struct sel_node *node = &c->node[v];

    if (node->n_edges == node->cap_edges)
        node->edges = grow(c->arena, node->edges, &node->cap_edges, sizeof(int));
    node->edges[node->n_edges++] = e;
    node->degree++;
}

void sel_core_edge(struct sel_core *c, int a, int b, const double *cost, bool owned)
{
    if (c->n_edges == c->cap_edges)
        c->edge = grow(c->arena, c->edge, &c->cap_edges, sizeof(*c->edge));
    c->edge[c->n_edges] = (struct sel_edge){.a = a, .b = b, .cost = cost, .owned = owned};
    attach(c, a, c->n_edges);
    attach(c, b, c->n_edges);
    c->n_edges++;
}

static size_t n_cells(const struct sel_core *c, const struct sel_edge *e)
{
    return (size_t)c->node[e->a].n_strategies * (size_t)c->node[e->b].n_strategies;
}

/* A table that may be written. */
static double *own(struct sel_core *c, struct sel_edge *e)
{
    if (!e->owned)
        e->cost = ap_arena_dup(c->arena, e->cost, n_cells(c, e) * sizeof(double));
    e->owned = true;
    return (double *)e->cost;
}

struct sel_core *sel_core_from_problem(struct ap_arena *arena, const struct ap_problem *p)
{
    struct sel_core *c = sel_core_new(arena, p->n_nodes, p->n_edges);

    for (int v = 0; v < p->n_nodes; v++) {
        int n = c->node[v].n_strategies = p->n_strategies[v];
        int *label = AP_NEW_N(arena, n, int);
        c->node[v].cost = AP_NEW_N(arena, n, double);
        c->node[v].label = label;
        for (int s = 0; s < n; s++) {
            label[s] = s;
            c->node[v].cost[s] = p->cost[v][s] >= AP_FORBIDDEN ? INFINITY : p->cost[v][s];
        }
    }
    for (int i = 0; i < p->n_edges; i++) {
        const struct ap_problem_edge *edge = &p->edges[i];
        sel_core_edge(c, edge->a, edge->b, edge->cost, false);
        struct sel_edge *e = &c->edge[i];
        size_t n = n_cells(c, e), k = 0;
        while (k < n && edge->cost[k] < AP_FORBIDDEN)
            k++;
        if (k == n)
            continue;
        double *cost = own(c, e);
        for (; k < n; k++)
            if (cost[k] >= AP_FORBIDDEN)
                cost[k] = INFINITY;
    }
    return c;
}

/* ---- small steps ---- */

static void enqueue(struct sel_core *c, int v)
{
    if (c->node[v].queued || c->node[v].gone)
        return;
    c->node[v].queued = c->dirty[v] = true;
    c->queue[(c->queue_head + c->queue_len++) % c->n_nodes] = v;
}

static int dequeue(struct sel_core *c)
{
    int v = c->queue[c->queue_head];

    c->queue_head = (c->queue_head + 1) % c->n_nodes;
    c->queue_len--;
    c->node[v].queued = false;
    return v;
}

static void edge_remove(struct sel_core *c, int e)
{
    struct sel_edge *edge = &c->edge[e];

    edge->gone = true;
    c->node[edge->a].degree--;
    c->node[edge->b].degree--;
    enqueue(c, edge->a);
    enqueue(c, edge->b);
}

/* Forgets edges that are gone, when they are half of a node's list or more. */
static void tidy(struct sel_core *c, struct sel_node *node)
{
    int k = 0;

    if (node->n_edges < 2 * node->degree + 4)
        return;
    for (int i = 0; i < node->n_edges; i++)
        if (!c->edge[node->edges[i]].gone)
            node->edges[k++] = node->edges[i];
    node->n_edges = k;
}

static struct sel_arm arm_of(const struct sel_core *c, int v, const struct sel_edge *e)
{
    int u = sel_other(e, v);

    return (struct sel_arm){.node = u,
                            .n_strategies = c->node[u].n_strategies,
                            .label = c->node[u].label,
                            .cost = e->cost,
                            .arm_major = e->a == u};
}

/* Takes v out; its edges are removed, those in arm[] (up to 2, -1 for none) remembered.
 */
static void node_remove(struct sel_core *c, int v, int arm0, int arm1)
{
    struct sel_node *node = &c->node[v];

    if (c->n_undo == c->cap_undo)
        c->undo = grow(c->arena, c->undo, &c->cap_undo, sizeof(*c->undo));
    struct sel_undo *u = &c->undo[c->n_undo++];
    *u = (struct sel_undo){.node = v,
                           .n_strategies = node->n_strategies,
                           .label = node->label,
                           .cost = node->cost};
    if (arm0 >= 0)
        u->arm[u->n_arms++] = arm_of(c, v, &c->edge[arm0]);
    if (arm1 >= 0)
        u->arm[u->n_arms++] = arm_of(c, v, &c->edge[arm1]);
    node->gone = true;
    c->n_left--;
    for (int i = 0; i < node->n_edges; i++)
        if (!c->edge[node->edges[i]].gone)
            edge_remove(c, node->edges[i]);
}

/* The edge between u and w, -1 if none. */
static int edge_find(const struct sel_core *c, int u, int w)
{
    int from = c->node[u].degree <= c->node[w].degree ? u : w, to = from == u ? w : u;

    for (int i = 0; i < c->node[from].n_edges; i++) {
        int e = c->node[from].edges[i];
        if (!c->edge[e].gone && sel_other(&c->edge[e], from) == to)
            return e;
    }
    return -1;
}

/* Adds a table laid out [s_u][s_w] to the edge u-w, made if there is none. */
static void edge_add(struct sel_core *c, int u, int w, double *cost)
{
    int e = edge_find(c, u, w), nu = c->node[u].n_strategies,
        nw = c->node[w].n_strategies;

    if (e < 0) {
        sel_core_edge(c, u, w, cost, true);
    } else {
        double *t = own(c, &c->edge[e]);
        bool same = c->edge[e].a == u;
        for (int i = 0; i < nu; i++)
            for (int j = 0; j < nw; j++)
                t[same ? i * nw + j : j * nu + i] += cost[i * nw + j];
        c->edge[e].checked = false;
    }
    enqueue(c, u);
    enqueue(c, w);
}

/* Adds up the parallel edges at v; mark[w] - 1 is the edge seen to w. */
static void merge_parallel(struct sel_core *c, int v, int *mark)
{
    struct sel_node *node = &c->node[v];

    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < node->n_edges; i++) {
            struct sel_edge *e = &c->edge[node->edges[i]];
            int w = sel_other(e, v);
            if (e->gone)
                continue;
            if (pass == 1 || mark[w] == 0) {
                mark[w] = pass == 1 ? 0 : node->edges[i] + 1;
                continue;
            }
            struct sel_edge *into = &c->edge[mark[w] - 1];
            double *t = own(c, into);
            for (int s = 0; s < node->n_strategies; s++)
                for (int r = 0; r < c->node[w].n_strategies; r++) {
                    size_t k =
                        into->a == v
                            ? (size_t)s * (size_t)c->node[w].n_strategies + (size_t)r
                            : (size_t)r * (size_t)node->n_strategies + (size_t)s;
                    t[k] += sel_cell(c, e, v, s, r);
                }
            edge_remove(c, node->edges[i]);
        }
}

/* Keeps the strategies with keep[s]; tables of all edges of v are rebuilt. */
static void shrink(struct sel_core *c, int v, const bool *keep)
{
    struct sel_node *node = &c->node[v];
    int n = node->n_strategies, k = 0;
    int *label = AP_NEW_N(c->arena, n, int);
    double *cost = AP_NEW_N(c->arena, n, double);

    for (int i = 0; i < node->n_edges; i++) {
        struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        int w = sel_other(e, v), nw = c->node[w].n_strategies, kept = 0;
        for (int s = 0; s < n; s++)
            kept += keep[s];
        double *t = AP_NEW_N(c->arena, (size_t)kept * (size_t)nw, double), *p = t;
        if (e->a == v) {
            for (int s = 0; s < n; s++)
                if (keep[s]) {
                    memcpy(p, e->cost + (size_t)s * (size_t)nw,
                           (size_t)nw * sizeof(double));
                    p += nw;
                }
        } else {
            for (int r = 0; r < nw; r++)
                for (int s = 0; s < n; s++)
                    if (keep[s])
                        *p++ = e->cost[(size_t)r * (size_t)n + (size_t)s];
        }
        e->cost = t;
        e->owned = true;
        e->checked = false;
        enqueue(c, w);
    }
    for (int s = 0; s < n; s++)
        if (keep[s]) {
            label[k] = node->label[s];
            cost[k++] = node->cost[s];
        }
    node->n_strategies = k;
    node->label = label;
    node->cost = cost;
    enqueue(c, v);
}

/* ---- the rules ---- */

/* Drops strategies that are forbidden, or have no finite cell at some edge. */
static bool drop_forbidden(struct sel_core *c, int v)
{
    struct sel_node *node = &c->node[v];
    int n = node->n_strategies, left = 0;

    for (int s = 0; s < n; s++)
        c->keep[s] = node->cost[s] < INFINITY;
    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone || e->checked)
            continue;
        int nw = c->node[sel_other(e, v)].n_strategies;
        for (int s = 0; s < n; s++) {
            int r = 0;
            while (r < nw && sel_cell(c, e, v, s, r) == INFINITY)
                r++;
            c->keep[s] &= r < nw;
        }
    }
    for (int s = 0; s < n; s++)
        left += c->keep[s];
    if (left > 0 && left < n)
        shrink(c, v, c->keep);
    return left > 0;
}

/* One strategy, or no edge: decided. */
static void fold_decided(struct sel_core *c, int v)
{
    struct sel_node *node = &c->node[v];
    int best = 0;

    for (int s = 1; s < node->n_strategies; s++)
        if (node->cost[s] < node->cost[best])
            best = s;
    c->base += node->cost[best];
    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        struct sel_node *w = &c->node[sel_other(e, v)];
        for (int r = 0; r < w->n_strategies; r++)
            w->cost[r] += sel_cell(c, e, v, best, r);
    }
    node_remove(c, v, -1, -1);
}

static int next_edge(const struct sel_core *c, const struct sel_node *node, int i)
{
    while (i < node->n_edges && c->edge[node->edges[i]].gone)
        i++;
    return i;
}

static void eliminate_leaf(struct sel_core *c, int v)
{
    struct sel_node *node = &c->node[v];
    int id = node->edges[next_edge(c, node, 0)];
    const struct sel_edge *e = &c->edge[id];
    struct sel_node *w = &c->node[sel_other(e, v)];

    for (int r = 0; r < w->n_strategies; r++) {
        double least = INFINITY;
        for (int s = 0; s < node->n_strategies; s++) {
            double x = node->cost[s] + sel_cell(c, e, v, s, r);
            least = x < least ? x : least;
        }
        w->cost[r] += least;
    }
    node_remove(c, v, id, -1);
}

/* Rows [s_v] of an edge's table. */
static const double *rows_of(struct sel_core *c, const struct sel_edge *e, int v)
{
    int n = c->node[v].n_strategies, nw = c->node[sel_other(e, v)].n_strategies;

    if (e->a == v)
        return e->cost;
    double *t = AP_NEW_N(c->arena, (size_t)n * (size_t)nw, double);
    for (int r = 0; r < nw; r++)
        for (int s = 0; s < n; s++)
            t[(size_t)s * (size_t)nw + (size_t)r] =
                e->cost[(size_t)r * (size_t)n + (size_t)s];
    return t;
}

/* Min-sum over v between its two neighbours; false when that is too much work. */
static bool eliminate_middle(struct sel_core *c, int v)
{
    struct sel_node *node = &c->node[v];
    int i = next_edge(c, node, 0), eu = node->edges[i];
    int ew = node->edges[next_edge(c, node, i + 1)];
    int u = sel_other(&c->edge[eu], v), w = sel_other(&c->edge[ew], v);
    int n = node->n_strategies, nu = c->node[u].n_strategies,
        nw = c->node[w].n_strategies;

    if ((double)n * nu * nw > MAX_ELIMINATE)
        return false;
    double *t = AP_NEW_N(c->arena, (size_t)nu * (size_t)nw, double);
    struct ap_mark mark = ap_arena_mark(c->arena);
    const double *rows = rows_of(c, &c->edge[ew], v);
    for (int k = 0; k < nu * nw; k++)
        t[k] = INFINITY;
    for (int x = 0; x < nu; x++) {
        double *restrict out = t + (size_t)x * (size_t)nw;
        for (int s = 0; s < n; s++) {
            const double *restrict in = rows + (size_t)s * (size_t)nw;
            double at = node->cost[s] + sel_cell(c, &c->edge[eu], v, s, x);
            if (at == INFINITY)
                continue;
            for (int y = 0; y < nw; y++)
                out[y] = at + in[y] < out[y] ? at + in[y] : out[y];
        }
    }
    ap_arena_rewind(c->arena, mark);
    node_remove(c, v, eu, ew);
    edge_add(c, u, w, t);
    return true;
}

static double least_of(const double *x, size_t n)
{
    double least = x[0];

    for (size_t i = 1; i < n; i++)
        least = x[i] < least ? x[i] : least;
    return least;
}

/* An edge that is a row term plus a column term goes into its nodes, both terms >= 0. */
static bool split_separable(struct sel_core *c, int id)
{
    struct sel_edge *e = &c->edge[id];
    struct sel_node *a = &c->node[e->a], *b = &c->node[e->b];
    size_t nb = (size_t)b->n_strategies;
    const double *t = e->cost;

    for (int s = 0; s < a->n_strategies; s++)
        for (size_t r = 0; r < nb; r++) {
            double x = t[(size_t)s * nb + r] + t[0], y = t[(size_t)s * nb] + t[r];
            if (!(fabs(x - y) <= c->tol + ROUNDING * x))
                return false;
        }
    double least = least_of(t, nb);
    for (size_t r = 0; r < nb; r++)
        b->cost[r] += t[r] - least;
    for (int s = 0; s < a->n_strategies; s++)
        a->cost[s] += least_of(t + (size_t)s * nb, nb);
    edge_remove(c, id);
    return true;
}

/* The only strategy of e's other end that fits s at v, -1 when there are several. */
static int only_partner(const struct sel_core *c, const struct sel_edge *e, int v, int s)
{
    int found = -1, n = c->node[sel_other(e, v)].n_strategies;

    for (int r = 0; r < n; r++) {
        if (sel_cell(c, e, v, s, r) == INFINITY)
            continue;
        if (found >= 0)
            return -1;
        found = r;
    }
    return found;
}

/* Where each strategy of u has one partner at w, w is a function of u: moved into u. */
static bool merge_function(struct sel_core *c, int id, int u)
{
    int w = sel_other(&c->edge[id], u), n = c->node[u].n_strategies;
    int *map = c->map;

    for (int s = 0; s < n; s++) {
        map[s] = only_partner(c, &c->edge[id], u, s);
        if (map[s] < 0)
            return false;
    }
    for (int s = 0; s < n; s++)
        c->node[u].cost[s] +=
            c->node[w].cost[map[s]] + sel_cell(c, &c->edge[id], u, s, map[s]);
    for (int i = 0; i < c->node[w].n_edges; i++) {
        int other = c->node[w].edges[i];
        const struct sel_edge *e = &c->edge[other];
        if (e->gone || other == id)
            continue;
        int x = sel_other(e, w), nx = c->node[x].n_strategies;
        double *t = AP_NEW_N(c->arena, (size_t)n * (size_t)nx, double);
        for (int s = 0; s < n; s++)
            for (int r = 0; r < nx; r++)
                t[s * nx + r] = sel_cell(c, e, w, map[s], r);
        edge_add(c, u, x, t);
    }
    node_remove(c, w, id, -1);
    return true;
}

/* Looks at v's new or changed edges. True when v itself was merged away. */
static bool check_edges(struct sel_core *c, int v)
{
    for (int i = 0; i < c->node[v].n_edges; i++) {
        int id = c->node[v].edges[i];
        struct sel_edge *e = &c->edge[id];
        if (e->gone || e->checked || c->node[sel_other(e, v)].queued)
            continue; /* a queued neighbour may shrink; the edge is looked at from there
                       */
        e->checked = true;
        if (split_separable(c, id) || merge_function(c, id, v))
            continue;
        if (merge_function(c, id, sel_other(&c->edge[id], v)))
            return true;
    }
    return false;
}

/* ---- dominance ---- */

/* At every choice of the neighbours, t costs no more than s. */
static bool dominates(const struct sel_core *c, int v, int t, int s)
{
    const struct sel_node *node = &c->node[v];
    double sum = node->cost[t] - node->cost[s];

    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        int nw = c->node[sel_other(e, v)].n_strategies;
        double most = -INFINITY;
        for (int r = 0; r < nw; r++) {
            double x = sel_cell(c, e, v, s, r), y = sel_cell(c, e, v, t, r);
            if (x < INFINITY && y - x > most)
                most = y - x;
        }
        sum += most;
        if (sum == INFINITY)
            return false;
    }
    return sum <= c->tol;
}

/* The cheapest answers of the neighbours to s, by edge; their total with s. */
static double answers(const struct sel_core *c, int v, int s, int *answer)
{
    const struct sel_node *node = &c->node[v];
    double sum = node->cost[s];

    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        int nw = c->node[sel_other(e, v)].n_strategies, best = 0;
        for (int r = 1; r < nw; r++)
            if (sel_cell(c, e, v, s, r) < sel_cell(c, e, v, s, best))
                best = r;
        answer[i] = best;
        sum += sel_cell(c, e, v, s, best);
    }
    return sum;
}

/* t can dominate s only if it costs no more at the answers to s. */
static bool may_dominate(const struct sel_core *c, int v, int t, const int *answer,
                         double sum)
{
    const struct sel_node *node = &c->node[v];
    double x = node->cost[t], most = sum * (1 + 1e-12) + c->tol;

    for (int i = 0; i < node->n_edges && x <= most; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (!e->gone)
            x += sel_cell(c, e, v, t, answer[i]);
    }
    return x <= most;
}

static bool drop_dominated(struct sel_core *c, int v)
{
    struct sel_node *node = &c->node[v];
    int n = node->n_strategies, left = n;
    struct ap_mark mark = ap_arena_mark(c->arena);
    int *answer = AP_NEW_N(c->arena, node->n_edges + 1, int);

    for (int s = 0; s < n; s++)
        c->keep[s] = true;
    for (int s = n - 1; s >= 0; s--) {
        double sum = answers(c, v, s, answer);
        for (int t = 0; t < n && c->keep[s]; t++)
            if (t != s && c->keep[t] && may_dominate(c, v, t, answer, sum) &&
                dominates(c, v, t, s)) {
                c->keep[s] = false;
                left--;
            }
    }
    ap_arena_rewind(c->arena, mark);
    if (left < n)
        shrink(c, v, c->keep);
    return left < n;
}

/* ---- driving ---- */

static bool drain(struct sel_core *c)
{
    while (c->queue_len > 0) {
        int v = dequeue(c);
        struct sel_node *node = &c->node[v];
        if (node->gone)
            continue;
        tidy(c, node);
        if (!drop_forbidden(c, v))
            return false;
        if (node->n_strategies == 1 || node->degree == 0)
            fold_decided(c, v);
        else if (node->degree == 1)
            eliminate_leaf(c, v);
        else if (node->degree != 2 || !eliminate_middle(c, v))
            check_edges(c, v);
    }
    return true;
}

static void scratch_init(struct sel_core *c)
{
    int most = 1;

    for (int v = 0; v < c->n_nodes; v++)
        if (c->node[v].n_strategies > most)
            most = c->node[v].n_strategies;
    c->keep = AP_NEW_N(c->arena, most, bool);
    c->map = AP_NEW_N(c->arena, most, int);
    c->dirty = AP_NEW_N(c->arena, c->n_nodes + 1, bool);
}

bool sel_reduce(struct sel_core *c)
{
    scratch_init(c);
    int *mark = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    for (int v = 0; v < c->n_nodes; v++) {
        if (c->node[v].gone)
            continue;
        merge_parallel(c, v, mark);
        enqueue(c, v);
    }
    if (!drain(c))
        return false;
    for (int v = 0; v < c->n_nodes; v++)
        c->dirty[v] = true;
    for (int round = 0; round < DOMINANCE_ROUNDS; round++) {
        bool again = false;
        for (int v = 0; v < c->n_nodes; v++)
            if (!c->node[v].gone && c->dirty[v]) {
                c->dirty[v] = false;
                again |= drop_dominated(c, v);
            }
        if (!drain(c))
            return false;
        if (!again)
            break;
    }
    return true;
}

/* ---- undoing ---- */

static int index_of(const int *label, int n, int want)
{
    int lo = 0, hi = n - 1;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (label[mid] < want)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void sel_set_best(struct sel_core *c, const int *state)
{
    for (int v = 0; v < c->n_nodes; v++)
        if (!c->node[v].gone)
            c->best[v] = c->node[v].label[state[v]];
    sel_undo_all(c);
}

void sel_undo_all(struct sel_core *c)
{
    for (int i = c->n_undo - 1; i >= 0; i--) {
        const struct sel_undo *u = &c->undo[i];
        double least = INFINITY;
        int best = 0, at[2] = {0, 0};
        for (int k = 0; k < u->n_arms; k++)
            at[k] = index_of(u->arm[k].label, u->arm[k].n_strategies,
                             c->best[u->arm[k].node]);
        for (int s = 0; s < u->n_strategies; s++) {
            double x = u->cost[s];
            for (int k = 0; k < u->n_arms; k++) {
                const struct sel_arm *arm = &u->arm[k];
                x += arm->cost[arm->arm_major ? at[k] * u->n_strategies + s
                                              : s * arm->n_strategies + at[k]];
            }
            if (x < least) {
                least = x;
                best = s;
            }
        }
        c->best[u->node] = u->label[best];
    }
}
