/*
 * The selection problem by elimination: nodes go one after the other; the least cost of a
 * node becomes a table over its remaining neighbours (bucket elimination, Dechter 1999;
 * dynamic programming along a tree decomposition). The order takes the node whose table
 * is least next. Costs are >= 0, so a combination is dropped as soon as its known costs,
 * from tables and from edges that are counted later, reach the limit: with reduced costs
 * and a limit close to the bound few combinations remain.
 *
 * The least entry of a table is paid in any case, and is subtracted from the limit.
 *
 * O(nodes * strategies^(width + 1)) without such luck; the plan tells before.
 */
#include "solve/solve.h"

#include <stdlib.h>
#include <string.h>

#include "base/heap.h"

/* ---- planning ---- */

struct set { /* sorted neighbours */
    int *node, n;
};

struct heap_item {
    double key;
    int node;
};

struct planner {
    struct sel_core *c;
    struct set *set;
    double *key;         /* log2 of the cluster's combinations; NAN once eliminated */
    struct ap_heap heap; /* of struct heap_item; outdated ones stay in it */
};

static bool before(const void *a, const void *b)
{
    const struct heap_item *x = a, *y = b;

    return x->key != y->key ? x->key < y->key : x->node < y->node;
}

static void weigh(struct planner *p, int v)
{
    double key = log2(p->c->node[v].n_strategies);

    for (int i = 0; i < p->set[v].n; i++)
        key += log2(p->c->node[p->set[v].node[i]].n_strategies);
    p->key[v] = key;
    ap_heap_push(&p->heap, &(struct heap_item){key, v});
}

static int by_id(const void *x, const void *y)
{
    int a = *(const int *)x, b = *(const int *)y;

    return (a > b) - (a < b);
}

static void planner_init(struct planner *p, struct sel_core *c)
{
    p->c = c;
    p->set = AP_NEW_N(c->arena, c->n_nodes + 1, struct set);
    p->key = AP_NEW_N(c->arena, c->n_nodes + 1, double);
    for (int v = 0; v < c->n_nodes; v++) {
        const struct sel_node *node = &c->node[v];
        struct set *set = &p->set[v];
        if (node->gone)
            continue;
        set->node = AP_NEW_N(c->arena, node->degree + 1, int);
        for (int i = 0; i < node->n_edges; i++)
            if (!c->edge[node->edges[i]].gone)
                set->node[set->n++] = sel_other(&c->edge[node->edges[i]], v);
        qsort(set->node, (size_t)set->n, sizeof(int), by_id);
        weigh(p, v);
    }
}

/* set(u) becomes its union with set(v), without u and v. */
static void unite(struct planner *p, int u, int v)
{
    const struct set a = p->set[u], b = p->set[v];
    struct set out = {AP_NEW_N(p->c->arena, a.n + b.n + 1, int), 0};

    for (int i = 0, k = 0; i < a.n || k < b.n;) {
        int x =
            k == b.n || (i < a.n && a.node[i] < b.node[k]) ? a.node[i++] : b.node[k++];
        if (x != u && x != v && (out.n == 0 || out.node[out.n - 1] != x))
            out.node[out.n++] = x;
    }
    p->set[u] = out;
}

bool sel_elim_plan(struct sel_core *c, double max_entries, double max_work,
                   struct sel_elim *plan)
{
    struct planner p = {.heap = {.size = sizeof(struct heap_item), .before = before}};
    struct heap_item top;
    bool fits = true;

    *plan = (struct sel_elim){.widest_node = -1};
    plan->order = AP_NEW_N(c->arena, c->n_left + 1, int);
    plan->scope = AP_NEW_N(c->arena, c->n_left + 1, int *);
    plan->n_scope = AP_NEW_N(c->arena, c->n_left + 1, int);
    planner_init(&p, c);
    while (fits && ap_heap_pop(&p.heap, &top)) {
        int v = top.node;
        if (!(p.key[v] == top.key))
            continue;
        double cells = exp2(top.key);
        p.key[v] = NAN;
        plan->order[plan->n] = v;
        plan->scope[plan->n] = p.set[v].node;
        plan->n_scope[plan->n++] = p.set[v].n;
        plan->work += cells;
        plan->entries += cells / c->node[v].n_strategies;
        plan->widest = cells > plan->widest ? cells : plan->widest;
        fits = plan->work <= max_work && plan->entries <= max_entries;
        for (int i = 0; fits && i < p.set[v].n; i++) {
            unite(&p, p.set[v].node[i], v);
            weigh(&p, p.set[v].node[i]);
        }
        if (!fits) { /* the node to decide first: the most strategies times degree */
            double most = -1;
            for (int i = -1; i < p.set[v].n; i++) {
                int u = i < 0 ? v : p.set[v].node[i];
                double x = c->node[u].degree * log2(c->node[u].n_strategies);
                if (x > most) {
                    most = x;
                    plan->widest_node = u;
                }
            }
        }
    }
    ap_heap_free(&p.heap);
    return fits;
}

/* ---- running ---- */

struct table { /* of the i-th node eliminated, over its scope */
    double *least;
    uint16_t *arg;
    size_t *stride; /* [scope] */
    size_t n;
};

#define MAX_WIDTH 32

/* What is added to a combination once its last variable is set: cost[offset]. */
struct term {
    const double *cost;
    size_t stride[MAX_WIDTH]; /* per cluster variable */
    int last;
    bool counted; /* false: counted in a later bucket, here it only cuts */
};

struct bucket {
    int n; /* variables: the eliminated node first, then its scope */
    int size[MAX_WIDTH];
    size_t out_stride[MAX_WIDTH];
    struct term *term; /* sorted by last */
    int n_terms, first[MAX_WIDTH + 1];
    int state[MAX_WIDTH];
    double *sum[MAX_WIDTH], *cut[MAX_WIDTH]; /* [variable][strategy], see add_terms */
    double limit;
    double *least;
    uint16_t *arg;
};

/* What is counted, and what only cuts, once variable k is set, too: for each strategy. */
static void add_terms(struct bucket *b, int k, double sum, double cut)
{
    double *const x = b->sum[k], *const y = b->cut[k];
    const int n = b->size[k];

    for (int s = 0; s < n; s++) {
        x[s] = sum;
        y[s] = cut;
    }
    for (int i = b->first[k]; i < b->first[k + 1]; i++) {
        const struct term *t = &b->term[i];
        const double *cost = t->cost;
        double *to = t->counted ? x : y;
        for (int j = 0; j < k; j++)
            cost += t->stride[j] * (size_t)b->state[j];
        for (int s = 0; s < n; s++, cost += t->stride[k])
            to[s] += *cost;
    }
}

static void visit(struct bucket *b, int k, double sum, double cut)
{
    const double *x = b->sum[k], *y = b->cut[k];
    size_t at = 0;

    add_terms(b, k, sum, cut);
    if (k + 1 < b->n) {
        for (int s = 0; s < b->size[k]; s++) {
            b->state[k] = s;
            if (x[s] + y[s] < b->limit)
                visit(b, k + 1, x[s], y[s]);
        }
        return;
    }
    for (int j = 1; j < k; j++)
        at += b->out_stride[j] * (size_t)b->state[j];
    for (int s = 0; s < b->size[k]; s++, at += b->out_stride[k]) {
        b->state[k] = s;
        if (x[s] + y[s] < b->limit && x[s] < b->least[at]) {
            b->least[at] = x[s];
            b->arg[at] = (uint16_t)b->state[0];
        }
    }
}

static int by_last(const void *x, const void *y)
{
    const struct term *a = x, *b = y;

    return a->last != b->last ? (a->last > b->last) - (a->last < b->last)
                              : (a->counted < b->counted) - (a->counted > b->counted);
}

struct runner {
    struct sel_core *c;
    const struct sel_elim *plan;
    struct table *table;
    double **dense;        /* [edge], its table by strategies */
    int *place;            /* [node], when it is eliminated */
    int **inbox, *n_inbox; /* [i], tables whose first node is order[i] */
    int *slot;             /* [node], its variable in the present bucket, -1 */
};

static struct term *term_new(struct bucket *b, const double *cost, bool counted)
{
    struct term *t = &b->term[b->n_terms++];

    memset(t, 0, sizeof(*t));
    t->cost = cost;
    t->counted = counted;
    return t;
}

static void term_stride(struct term *t, int variable, size_t stride)
{
    t->stride[variable] = stride;
    t->last = variable > t->last ? variable : t->last;
}

/* Edges of the cluster's node u: those of the eliminated node (variable 0) count. */
static void edge_terms(struct runner *r, struct bucket *b, int u)
{
    const struct sel_node *node = &r->c->node[u];

    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &r->c->edge[node->edges[i]];
        if (e->gone || e->a != u || r->slot[e->b] < 0)
            continue;
        struct term *t = term_new(b, r->dense[node->edges[i]],
                                  r->slot[e->a] == 0 || r->slot[e->b] == 0);
        term_stride(t, r->slot[e->a], (size_t)r->c->node[e->b].n_strategies);
        term_stride(t, r->slot[e->b], 1);
    }
}

static int count_terms(const struct runner *r, int i)
{
    int n = r->plan->n_scope[i] + 1 + r->n_inbox[i];

    for (int k = -1; k < r->plan->n_scope[i]; k++)
        n += r->c->node[k < 0 ? r->plan->order[i] : r->plan->scope[i][k]].degree;
    return n;
}

static void bucket_fill(struct runner *r, struct bucket *b, int i)
{
    const struct sel_elim *plan = r->plan;
    int v = plan->order[i];

    b->n = plan->n_scope[i] + 1;
    b->term = AP_NEW_N(r->c->arena, count_terms(r, i), struct term);
    for (int k = 0; k < b->n; k++) {
        int u = k == 0 ? v : plan->scope[i][k - 1];
        b->size[k] = r->c->node[u].n_strategies;
        r->slot[u] = k;
        b->sum[k] = AP_NEW_N(r->c->arena, b->size[k], double);
        b->cut[k] = AP_NEW_N(r->c->arena, b->size[k], double);
        term_stride(term_new(b, r->c->node[u].cost, k == 0), k, 1);
    }
    for (int k = 0; k < b->n; k++)
        edge_terms(r, b, k == 0 ? v : plan->scope[i][k - 1]);
    for (int k = 0; k < r->n_inbox[i]; k++) {
        int from = r->inbox[i][k];
        struct term *t = term_new(b, r->table[from].least, true);
        for (int j = 0; j < plan->n_scope[from]; j++)
            term_stride(t, r->slot[plan->scope[from][j]], r->table[from].stride[j]);
    }
    for (int k = 0; k < b->n; k++)
        r->slot[k == 0 ? v : plan->scope[i][k - 1]] = -1;
    qsort(b->term, (size_t)b->n_terms, sizeof(*b->term), by_last);
    for (int k = 0, t = 0; k <= b->n; k++) {
        while (t < b->n_terms && b->term[t].last < k)
            t++;
        b->first[k] = t;
    }
}

/* Takes what all entries cost at least off them; all of it is known to be paid. */
static double take_least(double *table, size_t n)
{
    double least = INFINITY;

    for (size_t k = 0; k < n; k++)
        least = sel_lesser(least, table[k]);
    for (size_t k = 0; k < n && least > 0 && least < INFINITY; k++)
        table[k] -= least;
    return least;
}

/* Eliminates order[i]; returns what that costs at least, and is in no table then. */
static double eliminate(struct runner *r, int i, double limit)
{
    const struct sel_elim *plan = r->plan;
    struct table *table = &r->table[i];
    size_t n = 1;
    int first = -1;

    table->stride = AP_NEW_N(r->c->arena, plan->n_scope[i] + 1, size_t);
    for (int k = plan->n_scope[i] - 1; k >= 0; k--) {
        int u = plan->scope[i][k];
        table->stride[k] = n;
        n *= (size_t)r->c->node[u].n_strategies;
        if (first < 0 || r->place[u] < first)
            first = r->place[u];
    }
    table->n = n;
    table->least = AP_NEW_N(r->c->arena, n, double);
    table->arg = AP_NEW_N(r->c->arena, n, uint16_t);
    for (size_t k = 0; k < n; k++)
        table->least[k] = INFINITY;

    struct ap_mark mark = ap_arena_mark(r->c->arena);
    struct bucket b = {.limit = limit, .least = table->least, .arg = table->arg};
    bucket_fill(r, &b, i);
    for (int k = 1; k < b.n; k++)
        b.out_stride[k] = table->stride[k - 1];
    visit(&b, 0, 0, 0);
    ap_arena_rewind(r->c->arena, mark);
    if (first >= 0)
        r->inbox[first][r->n_inbox[first]++] = i;
    return take_least(table->least, n);
}

static double *unpack(struct sel_core *c, const struct sel_edge *e)
{
    int na = c->node[e->a].n_strategies, nb = c->node[e->b].n_strategies;
    double *t = AP_NEW_N(c->arena, (int64_t)na * nb, double);

    for (int i = 0; i < na; i++)
        for (int k = 0; k < nb; k++)
            t[i * nb + k] = sel_cell(e, e->a, i, k);
    return t;
}

static void runner_init(struct runner *r, struct sel_core *c, const struct sel_elim *plan)
{
    int *expect = AP_NEW_N(c->arena, plan->n + 1, int);

    r->c = c;
    r->plan = plan;
    r->dense = AP_NEW_N(c->arena, c->n_edges + 1, double *);
    for (int e = 0; e < c->n_edges; e++)
        if (!c->edge[e].gone)
            r->dense[e] = unpack(c, &c->edge[e]);
    r->table = AP_NEW_N(c->arena, plan->n + 1, struct table);
    r->place = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    r->slot = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    r->inbox = AP_NEW_N(c->arena, plan->n + 1, int *);
    r->n_inbox = AP_NEW_N(c->arena, plan->n + 1, int);
    for (int i = 0; i < plan->n; i++)
        r->place[plan->order[i]] = i;
    for (int v = 0; v < c->n_nodes; v++)
        r->slot[v] = -1;
    for (int i = 0; i < plan->n; i++) {
        int first = plan->n;
        for (int k = 0; k < plan->n_scope[i]; k++)
            if (r->place[plan->scope[i][k]] < first)
                first = r->place[plan->scope[i][k]];
        expect[first]++;
    }
    for (int i = 0; i < plan->n; i++)
        r->inbox[i] = AP_NEW_N(c->arena, expect[i] + 1, int);
}

/* The optimum, INFINITY where it is limit or more; what pending tables have is left. */
static double eliminate_all(struct runner *r, double limit)
{
    double total = r->c->base;

    for (int i = 0; i < r->plan->n; i++) {
        total += eliminate(r, i, limit - total);
        if (!(total < limit))
            return INFINITY;
    }
    return total;
}

double sel_elim_run(struct sel_core *c, const struct sel_elim *plan, double limit,
                    int *state)
{
    struct runner r = {0};

    runner_init(&r, c, plan);
    const double total = eliminate_all(&r, limit);
    if (total == INFINITY)
        return INFINITY;
    for (int i = plan->n - 1; i >= 0; i--) {
        size_t at = 0;
        for (int k = 0; k < plan->n_scope[i]; k++)
            at += r.table[i].stride[k] * (size_t)state[plan->scope[i][k]];
        state[plan->order[i]] = r.table[i].arg[at];
    }
    return total;
}
