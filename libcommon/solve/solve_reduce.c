/*
 * Exact reductions of the selection problem, to a
 * fixed point: parallel edges added up; strategies without a finite cell dropped; nodes
 * with one strategy folded into their neighbours; edges that are a sum of a row and a
 * column term moved into the nodes; nodes that are a function of a neighbour merged with
 * it; nodes of degree 0, 1 and 2 eliminated; dominated strategies dropped (dead-end
 * elimination, Goldstein's form).
 *
 * A queue of nodes drives it: a change puts the nodes it touches back. Removing a node
 * pushes one undo record (struct sel_undo); dropping strategies needs none, since labels
 * list the remaining ones. O(cells) per visit; elimination of degree 2 is cubic in the
 * strategy counts; dominance looks at pairs only that survive a test of O(degree).
 */
#include "solve/solve.h"

#include "base/array.h"

#include <string.h>

#define MAX_ELIMINATE        4e6 /* combinations of a node and its two neighbours */
#define DOMINANCE_ROUNDS     4
#define DOMINANCE_STRATEGIES 96    /* all pairs are tried: not for nodes with more */
#define TICKS                16    /* nodes between looks at the clock */
#define REDUCED              6     /* cells of work per cell of the tables */
#define ROUNDING             1e-15 /* relative differences of sums up to this are noise */

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
                            .edge = *e};
}

/* Takes v out; its edges are removed, those in arm[] (up to 2, -1 for none) remembered.
 */
static void node_remove(struct sel_core *c, int v, int arm0, int arm1)
{
    struct sel_node *node = &c->node[v];

    AP_ROOM_IN(c->arena, c->undo, c->n_undo, c->cap_undo);
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

static double *sum_of(struct sel_core *c, const double *x, const double *y, int n)
{
    double *sum = AP_NEW_N(c->arena, n, double);

    for (int i = 0; i < n; i++)
        sum[i] = x[i] + y[i];
    return sum;
}

/* What edge `into` costs with what `edge`, between the same nodes, costs on top. */
static void edge_sum(struct sel_core *c, struct sel_edge *into,
                     const struct sel_edge *edge)
{
    int na = c->node[into->a].n_strategies, nb = c->node[into->b].n_strategies;
    bool same = edge->a == into->a;
    double *t = AP_NEW_N(c->arena, (int64_t)na * nb, double);

    for (int i = 0; i < na; i++)
        for (int j = 0; j < nb; j++)
            t[i * nb + j] = sel_base(into, i, j) +
                            (same ? sel_base(edge, i, j) : sel_base(edge, j, i));
    struct sel_edge sum = sel_edge_compress(c, into->a, into->b, na, nb, t);
    sum.row_add = sum_of(c, into->row_add, same ? edge->row_add : edge->col_add, na);
    sum.col_add = sum_of(c, into->col_add, same ? edge->col_add : edge->row_add, nb);
    *into = sum;
}

/* Adds an edge, to the one between its nodes if there is one. */
static void edge_add(struct sel_core *c, struct sel_edge edge)
{
    int e = edge_find(c, edge.a, edge.b);

    if (e < 0)
        sel_core_edge(c, edge);
    else
        edge_sum(c, &c->edge[e], &edge);
    enqueue(c, edge.a);
    enqueue(c, edge.b);
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
            edge_sum(c, &c->edge[mark[w] - 1], e);
            edge_remove(c, node->edges[i]);
        }
}

static bool stays(const struct sel_core *c, int v)
{
    return c->stays && c->stays[v];
}

static const int *pick_int(struct sel_core *c, const int *x, const bool *keep, int n)
{
    int *out = AP_NEW_N(c->arena, n, int), k = 0;

    for (int i = 0; i < n; i++)
        if (keep[i])
            out[k++] = x[i];
    return out;
}

static double *pick_double(struct sel_core *c, const double *x, const bool *keep, int n)
{
    double *out = AP_NEW_N(c->arena, n, double);
    int k = 0;

    for (int i = 0; i < n; i++)
        if (keep[i])
            out[k++] = x[i];
    return out;
}

/* Keeps the strategies with keep[s]. */
static void shrink(struct sel_core *c, int v, const bool *keep)
{
    struct sel_node *node = &c->node[v];
    int n = node->n_strategies, kept = 0;

    for (int s = 0; s < n; s++)
        kept += keep[s];
    for (int i = 0; i < node->n_edges; i++) {
        struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        const int **class = e->a == v ? &e->row : &e->col;
        const double **add = e->a == v ? &e->row_add : &e->col_add;
        *class = pick_int(c, *class, keep, n);
        if (*add != c->zeros)
            *add = pick_double(c, *add, keep, n);
        e->checked = false;
        enqueue(c, sel_other(e, v));
    }
    node->label = pick_int(c, node->label, keep, n);
    node->cost = pick_double(c, node->cost, keep, n);
    node->n_strategies = kept;
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
            while (r < nw && sel_cell(e, v, s, r) == INFINITY)
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
            w->cost[r] += sel_cell(e, v, best, r);
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
            double x = node->cost[s] + sel_cell(e, v, s, r);
            least = x < least ? x : least;
        }
        w->cost[r] += least;
    }
    node_remove(c, v, id, -1);
}

/* The end of edge e away from v, and its table with v's classes as rows. */
struct side {
    const double *cost; /* [class of v][class of the other] */
    int n;              /* classes of the other end */
    const int *own, *other;
    const double *own_add, *other_add;
};

static struct side side_of(struct sel_core *c, const struct sel_edge *e, int v)
{
    const struct sel_table *t = e->table;

    if (e->a == v)
        return (struct side){t->cost, t->n_cols, e->row, e->col, e->row_add, e->col_add};
    double *cost = AP_NEW_N(c->arena, (int64_t)t->n_rows * t->n_cols, double);
    for (int i = 0; i < t->n_rows; i++)
        for (int j = 0; j < t->n_cols; j++)
            cost[j * t->n_rows + i] = t->cost[i * t->n_cols + j];
    return (struct side){cost, t->n_rows, e->col, e->row, e->col_add, e->row_add};
}

/* Min-sum over v between its two neighbours; false when that is too much work. */
static bool eliminate_middle(struct sel_core *c, int v)
{
    struct sel_node *node = &c->node[v];
    int i = next_edge(c, node, 0), eu = node->edges[i];
    int ew = node->edges[next_edge(c, node, i + 1)];
    const struct sel_table *tu = c->edge[eu].table, *tw = c->edge[ew].table;
    int nu = c->edge[eu].a == v ? tu->n_cols : tu->n_rows;
    int nw = c->edge[ew].a == v ? tw->n_cols : tw->n_rows;

    if ((double)node->n_strategies * nu * nw > MAX_ELIMINATE)
        return false;
    struct side u = side_of(c, &c->edge[eu], v), w = side_of(c, &c->edge[ew], v);
    double *t = AP_NEW_N(c->arena, (int64_t)nu * nw, double);
    for (int k = 0; k < nu * nw; k++)
        t[k] = INFINITY;
    for (int x = 0; x < nu; x++) {
        double *restrict out = t + (size_t)x * (size_t)nw;
        for (int s = 0; s < node->n_strategies; s++) {
            const double *restrict in = w.cost + (size_t)w.own[s] * (size_t)nw;
            double at = node->cost[s] + u.own_add[s] + w.own_add[s] +
                        u.cost[(size_t)u.own[s] * (size_t)nu + (size_t)x];
            if (at == INFINITY)
                continue;
            for (int y = 0; y < nw; y++)
                out[y] = at + in[y] < out[y] ? at + in[y] : out[y];
        }
    }
    struct sel_edge edge = {.a = sel_other(&c->edge[eu], v),
                            .b = sel_other(&c->edge[ew], v),
                            .table = sel_table_new(c->arena, nu, nw, t),
                            .row = u.other,
                            .col = w.other,
                            .row_add = u.other_add,
                            .col_add = w.other_add};
    node_remove(c, v, eu, ew);
    edge_add(c, edge);
    return true;
}

/* The least cost of v's strategy s over the other end's strategies. */
static double least_of(const struct sel_edge *e, int v, int s, int n_other)
{
    double least = INFINITY;

    for (int t = 0; t < n_other; t++)
        least = sel_lesser(least, sel_cell(e, v, s, t));
    return least;
}

/* An edge that is a row term plus a column term goes into its nodes, both terms >= 0. */
static bool split_separable(struct sel_core *c, int id)
{
    struct sel_edge *e = &c->edge[id];
    struct sel_node *a = &c->node[e->a], *b = &c->node[e->b];

    for (int s = 0; s < a->n_strategies; s++)
        for (int r = 0; r < b->n_strategies; r++) {
            double x = sel_base(e, s, r) + sel_base(e, 0, 0);
            double y = sel_base(e, s, 0) + sel_base(e, 0, r);
            if (x == INFINITY || !(fabs(x - y) <= c->tol + ROUNDING * x))
                return false;
        }
    double least = least_of(e, e->a, 0, b->n_strategies);
    for (int r = 0; r < b->n_strategies; r++)
        b->cost[r] += sel_cell(e, e->b, r, 0) - least;
    for (int s = 0; s < a->n_strategies; s++)
        a->cost[s] += least_of(e, e->a, s, b->n_strategies);
    edge_remove(c, id);
    return true;
}

/* The only strategy of e's other end that fits s at v, -1 when there are several. */
static int only_partner(const struct sel_core *c, const struct sel_edge *e, int v, int s)
{
    int found = -1, n = c->node[sel_other(e, v)].n_strategies;

    for (int r = 0; r < n; r++) {
        if (sel_cell(e, v, s, r) == INFINITY)
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

    if (stays(c, w))
        return false;
    for (int s = 0; s < n; s++) {
        map[s] = only_partner(c, &c->edge[id], u, s);
        if (map[s] < 0)
            return false;
    }
    int *labels = AP_NEW_N(c->arena, n, int);
    for (int s = 0; s < n; s++) {
        c->node[u].cost[s] +=
            c->node[w].cost[map[s]] + sel_cell(&c->edge[id], u, s, map[s]);
        labels[s] = c->node[w].label[map[s]];
    }
    if (c->holds)
        c->holds[u] |= c->holds[w];
    for (int i = 0; i < c->node[w].n_edges; i++) {
        int other = c->node[w].edges[i];
        struct sel_edge e = c->edge[other];
        if (e.gone || other == id)
            continue;
        const int **class = e.a == w ? &e.row : &e.col;
        const double **add = e.a == w ? &e.row_add : &e.col_add;
        int *to_class = AP_NEW_N(c->arena, n, int);
        double *to_add = AP_NEW_N(c->arena, n, double);
        for (int s = 0; s < n; s++) {
            to_class[s] = (*class)[map[s]];
            to_add[s] = (*add)[map[s]];
        }
        *class = to_class;
        *add = to_add;
        *(e.a == w ? &e.a : &e.b) = u;
        e.checked = false;
        edge_add(c, e);
    }
    node_remove(c, w, id, -1);
    c->undo[c->n_undo - 1].map = labels;
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
        const int *class = e->a == v ? e->row : e->col;
        const double *add = e->a == v ? e->row_add : e->col_add;
        double most = -INFINITY;
        if (class[s] == class[t]) {
            sum += add[t] - add[s];
            continue;
        }
        for (int r = 0; r < nw; r++) {
            double x = sel_cell(e, v, s, r), y = sel_cell(e, v, t, r);
            if (x < INFINITY && y - x > most)
                most = y - x;
        }
        sum += most;
        if (sum == INFINITY)
            return false;
    }
    return sum <= c->tol;
}

/* v's strategy s: the other end's cheapest answer, or a legal one if it has many. */
static int find_answer(const struct sel_edge *e, int v, int s, int n_other)
{
    double least = INFINITY;
    int best = 0;

    for (int r = 0; r < n_other; r++) {
        double x = sel_cell(e, v, s, r);
        if (x < least) {
            least = x;
            best = r;
            if (n_other > DOMINANCE_STRATEGIES)
                break;
        }
    }
    return best;
}

/* Answers of the neighbours to each class of v: answer[first + class]. */
static void find_answers(const struct sel_core *c, int v, const int *first, int *answer)
{
    const struct sel_node *node = &c->node[v];

    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        const int *class = e->a == v ? e->row : e->col;
        int *at = answer + first[i];
        for (int k = first[i]; k < first[i + 1]; k++)
            answer[k] = -1;
        for (int s = 0; s < node->n_strategies; s++)
            if (at[class[s]] < 0)
                at[class[s]] =
                    find_answer(e, v, s, c->node[sel_other(e, v)].n_strategies);
    }
}

struct answers {
    int *first;  /* [edge of the node], into answer */
    int *answer; /* see find_answers */
};

/* The cost of t, no more than `most` if it returns less, at the answers to s. */
static double cost_at(const struct sel_core *c, int v, int t, int s,
                      const struct answers *a, double most)
{
    const struct sel_node *node = &c->node[v];
    double x = node->cost[t];

    for (int i = 0; i < node->n_edges && x <= most; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (!e->gone)
            x += sel_cell(e, v, t,
                          a->answer[a->first[i] + (e->a == v ? e->row : e->col)[s]]);
    }
    return x;
}

/* Goes through the pairs; t can dominate s only if it costs no more at the answers. */
static int mark_dominated(struct sel_core *c, int v, const struct answers *a)
{
    int n = c->node[v].n_strategies, left = n;
    bool holds = c->holds && c->holds[v];

    for (int s = 0; s < n; s++)
        c->keep[s] = true;
    if ((holds && !c->memory) || stays(c, v))
        return n;
    for (int s = n - 1; s >= 0; s--) {
        double most = cost_at(c, v, s, s, a, INFINITY) * (1 + 1e-12) + c->tol;
        for (int t = 0; t < n && c->keep[s]; t++)
            if (t != s && c->keep[t] && (!holds || c->no_more(c->memory, v, t, s)) &&
                cost_at(c, v, t, s, a, most) <= most && dominates(c, v, t, s)) {
                c->keep[s] = false;
                left--;
            }
    }
    return left;
}

static bool drop_dominated(struct sel_core *c, int v)
{
    struct sel_node *node = &c->node[v];
    struct ap_mark mark = ap_arena_mark(c->arena);
    struct answers a = {.first = AP_NEW_N(c->arena, node->n_edges + 1, int)};

    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        a.first[i + 1] = a.first[i] + (e->gone     ? 0
                                       : e->a == v ? e->table->n_rows
                                                   : e->table->n_cols);
    }
    a.answer = AP_NEW_N(c->arena, a.first[node->n_edges] + 1, int);
    find_answers(c, v, a.first, a.answer);
    int n = node->n_strategies, left = mark_dominated(c, v, &a);
    ap_arena_rewind(c->arena, mark);
    if (left < n)
        shrink(c, v, c->keep);
    return left < n;
}

/* ---- driving ---- */

bool sel_late(struct sel_core *c, bool now)
{
    if (c->until_sec <= 0 || c->late || (!now && ++c->ticks % TICKS != 0))
        return c->late;
    c->late = ap_now_sec() >= c->until_sec;
    return c->late;
}

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
        if (sel_late(c, false)) /* what is left to do only saves time */
            continue;
        bool holds = (c->holds && c->holds[v]) || stays(c, v);
        if ((node->n_strategies == 1 && !stays(c, v)) || (node->degree == 0 && !holds))
            fold_decided(c, v);
        else if (node->degree == 1 && !holds)
            eliminate_leaf(c, v);
        else if (node->degree != 2 || holds || !eliminate_middle(c, v))
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

bool sel_drop_dominated(struct sel_core *c)
{
    bool some = false;

    for (int v = 0; v < c->n_nodes; v++)
        if (!c->node[v].gone && c->node[v].n_strategies <= DOMINANCE_STRATEGIES &&
            !sel_late(c, false))
            some |= drop_dominated(c, v);
    return some;
}

/* Rounds of dominance over the nodes that changed. */
static bool dominance(struct sel_core *c)
{
    for (int v = 0; v < c->n_nodes; v++)
        c->dirty[v] = true;
    for (int round = 0; round < DOMINANCE_ROUNDS; round++) {
        bool again = false;
        for (int v = 0; v < c->n_nodes; v++)
            if (!c->node[v].gone && c->dirty[v] && !sel_late(c, false) &&
                c->node[v].n_strategies <= DOMINANCE_STRATEGIES) {
                c->dirty[v] = false;
                again |= drop_dominated(c, v);
            }
        if (!drain(c))
            return false;
        if (!again || c->late)
            break;
    }
    return true;
}

static void start(struct sel_core *c)
{
    int *mark = AP_NEW_N(c->arena, c->n_nodes + 1, int);

    scratch_init(c);
    for (int v = 0; v < c->n_nodes; v++) {
        if (c->node[v].gone)
            continue;
        merge_parallel(c, v, mark);
        enqueue(c, v);
    }
}

bool sel_reduce(struct sel_core *c, bool with_dominance)
{
    if (c->work)
        ap_work_add(c->work, REDUCED * sel_cells(c));
    start(c);
    return drain(c) && (!with_dominance || dominance(c));
}

/* ---- undoing ---- */

int sel_index_of(const int *label, int n, int want)
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
            at[k] = sel_index_of(u->arm[k].label, u->arm[k].n_strategies,
                                 c->best[u->arm[k].node]);
        if (u->map) {
            c->best[u->node] = u->map[at[0]];
            continue;
        }
        for (int s = 0; s < u->n_strategies; s++) {
            double x = u->cost[s];
            for (int k = 0; k < u->n_arms; k++)
                x += sel_cell(&u->arm[k].edge, u->node, s, at[k]);
            if (x < least) {
                least = x;
                best = s;
            }
        }
        c->best[u->node] = u->label[best];
    }
}
