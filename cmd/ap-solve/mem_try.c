/*
 * The neighbourhoods of mem_local.c: a random set of nodes that induces a forest is
 * decided anew, all others as they are. Dynamic programming from the leaves finds what
 * every strategy of a node costs with its subtree, usage priced by the multipliers of the
 * dual (times a random factor); from the roots down, each node takes the cheapest
 * strategy that fits into the memory left, on top of the least usage of the nodes still
 * to come. Without memory this is the optimum of the set. O(cells of its edges + parts
 * log slots).
 */
#include "mem_local.h"

#include <string.h>

#define TRY_WORK 100 /* of a try in any case */
#define HUB      400 /* neighbours; a node with more is seldom part of a forest */

/* ---- forests ---- */

static void join(struct mem_local *l, int v)
{
    const struct sel_node *node = &l->m->core->node[v];

    l->parent[l->n] = l->edge[l->n] = -1;
    l->place[v] = l->n;
    for (int k = 0; k < node->n_edges; k++) {
        int w = sel_other(&l->m->core->edge[node->edges[k]], v);
        if (l->place[w] >= 0) {
            l->parent[l->n] = l->place[w];
            l->edge[l->n] = node->edges[k];
        }
        if (l->touch[w]++ == 0 && l->place[w] < 0)
            l->frontier[l->n_frontier++] = w;
    }
    l->node[l->n++] = v;
}

/* A random forest around v; nodes join that have one neighbour in it. */
static void grow(struct mem_local *l, int v, int size, bool breadth)
{
    int head = 0;

    l->n = l->n_frontier = 0;
    join(l, v);
    while (l->n < size && head < l->n_frontier) {
        if (!breadth) {
            int i = head + mem_pick(l, l->n_frontier - head);
            int t = l->frontier[i];
            l->frontier[i] = l->frontier[head];
            l->frontier[head] = t;
        }
        int w = l->frontier[head++];
        if (l->touch[w] == 1 && l->place[w] < 0 &&
            (l->m->core->node[w].degree <= HUB || mem_pick(l, 16) == 0))
            join(l, w);
    }
}

static void disband(struct mem_local *l)
{
    for (int i = 0; i < l->n_frontier; i++)
        l->touch[l->frontier[i]] = 0;
    for (int i = 0; i < l->n; i++) {
        l->place[l->node[i]] = -1;
        l->touch[l->node[i]] = 0;
    }
}

/* An edge's cells from v's side, the other end at t: cell[class[s] * stride]. */
struct side {
    const double *cell;
    const int *class;
    size_t stride;
};

static struct side side_of(const struct sel_edge *e, int v, int t)
{
    const struct sel_table *table = e->table;
    size_t width = (size_t)table->n_cols;

    if (e->a == v)
        return (struct side){table->cost + e->col[t], e->row, width};
    return (struct side){table->cost + (size_t)e->row[t] * width, e->col, 1};
}

static double cell(const struct side *side, int s)
{
    return side->cell[(size_t)side->class[s] * side -> stride];
}

/* Takes the cells of edge e at the other end's choice out of v's local costs. */
static void take_out(struct mem_local *l, int i, const struct sel_edge *e)
{
    int v = l->node[i], n = l->m->core->node[v].n_strategies;
    const struct side side = side_of(e, v, l->st->choice[sel_other(e, v)]);
    double *restrict local = l->local[i];
    int *restrict forbidden = l->pick;

    for (int s = 0; s < n; s++) {
        double x = cell(&side, s);
        if (x < INFINITY)
            local[s] -= x;
        else
            forbidden[s]--;
    }
}

/* The local costs of the forest's nodes; work is returned. */
static int64_t localise(struct mem_local *l, double factor)
{
    const struct sel_core *c = l->m->core;
    double *at = l->pool;
    int64_t work = 0;

    for (int i = 0; i < l->n; i++) {
        int v = l->node[i], n = c->node[v].n_strategies;
        l->local[i] = at;
        l->up[i] = at + n;
        at += 2 * n;
        memcpy(l->local[i], l->st->answer[v], (size_t)n * sizeof(double));
        memcpy(l->pick, l->st->forbidden[v], (size_t)n * sizeof(int));
        /* an induced forest: its edges are those to parents and children */
        for (int k = 0; k < c->node[v].n_edges; k++) {
            const struct sel_edge *e = &c->edge[c->node[v].edges[k]];
            if (l->place[sel_other(e, v)] >= 0)
                take_out(l, i, e);
        }
        for (int s = 0; s < n; s++) {
            if (l->pick[s] > 0)
                l->local[i][s] = INFINITY;
            l->up[i][s] = l->local[i][s] + factor * l->price[v][s];
        }
        work += (int64_t)n * 4 + c->node[v].n_edges;
    }
    return work;
}

/* Adds to the parent what the subtree of place i costs. */
static int64_t send_up(struct mem_local *l, int i)
{
    const struct sel_edge *e = &l->m->core->edge[l->edge[i]];
    const struct sel_table *t = e->table;
    int v = l->node[i], p = l->node[l->parent[i]];
    bool from_a = e->a == v;
    int n_in = from_a ? t->n_rows : t->n_cols;
    const int *in = from_a ? e->row : e->col, *out = from_a ? e->col : e->row;
    double *up = l->up[l->parent[i]];

    for (int k = 0; k < n_in; k++)
        l->in[k] = INFINITY;
    for (int s = 0; s < l->m->core->node[v].n_strategies; s++)
        if (l->up[i][s] < l->in[in[s]])
            l->in[in[s]] = l->up[i][s];
    if (from_a)
        sel_min_over_rows(t, l->in, l->out);
    else
        sel_min_over_cols(t, l->in, l->out);
    for (int s = 0; s < l->m->core->node[p].n_strategies; s++)
        up[s] += l->out[out[s]];
    return (int64_t)t->n_rows * t->n_cols;
}

/* Cheapest strategies whatever they use, from the roots down, into pick[]. */
static void decide_freely(struct mem_local *l)
{
    for (int i = 0; i < l->n; i++) {
        int v = l->node[i], n = l->m->core->node[v].n_strategies, best = 0;
        const double *up = l->up[i];
        double least = up[0];
        if (l->parent[i] < 0) {
            for (int s = 1; s < n; s++)
                if (up[s] < least) {
                    least = up[s];
                    best = s;
                }
        } else {
            const struct sel_edge *e = &l->m->core->edge[l->edge[i]];
            const struct side side = side_of(e, v, l->pick[l->parent[i]]);
            least += cell(&side, 0);
            for (int s = 1; s < n; s++) {
                double x = up[s] + cell(&side, s);
                if (x < least) {
                    least = x;
                    best = s;
                }
            }
        }
        l->pick[i] = best;
    }
}

/* Cheapest strategies that fit, from the roots down, into pick[]; false when stuck. */
static bool decide(struct mem_local *l, int *n_decided)
{
    const struct sel_core *c = l->m->core;

    for (int i = 0; i < l->n; i++) {
        int v = l->node[i], n = c->node[v].n_strategies, best;
        double *up = l->up[i];
        if (l->parent[i] >= 0) {
            const struct side side =
                side_of(&c->edge[l->edge[i]], v, l->pick[l->parent[i]]);
            for (int s = 0; s < n; s++)
                up[s] += cell(&side, s);
        }
        for (;;) {
            best = 0;
            for (int s = 1; s < n; s++)
                if (up[s] < up[best])
                    best = s;
            *n_decided = i;
            if (!(up[best] < INFINITY))
                return false;
            if (mem_tree_try(&l->st->left, l->m, v, best))
                break;
            up[best] = INFINITY;
        }
        l->pick[i] = best;
    }
    *n_decided = l->n;
    return true;
}

/* What pick[] costs less the present choice. */
static double change_of(const struct mem_local *l)
{
    double sum = 0;

    for (int i = 0; i < l->n; i++) {
        int v = l->node[i], s = l->pick[i], old = l->st->choice[v];
        sum += l->local[i][s] - l->local[i][old];
        if (l->parent[i] >= 0) {
            const struct sel_edge *e = &l->m->core->edge[l->edge[i]];
            int p = l->node[l->parent[i]];
            struct side now = side_of(e, v, l->pick[l->parent[i]]);
            struct side before = side_of(e, v, l->st->choice[p]);
            sum += cell(&now, s) - cell(&before, old);
        }
    }
    return sum;
}

static double price_change(const struct mem_local *l)
{
    double sum = 0;

    for (int i = 0; i < l->n; i++) {
        const double *price = l->price[l->node[i]];
        sum += price[l->pick[i]] - price[l->st->choice[l->node[i]]];
    }
    return sum;
}

/* Whether pick[] is good enough, which changes the cost by that. */
static bool welcome(const struct mem_local *l, double change)
{
    if (l->weight > 0)
        change += l->weight * price_change(l);
    return change <= l->tol || mem_value(l) + change <= l->level;
}

/* Random factors on what the forest's strategies cost, seen from the cheapest. */
static void shake(struct mem_local *l)
{
    for (int i = 0; i < l->n; i++) {
        int n = l->m->core->node[l->node[i]].n_strategies;
        double least = INFINITY;
        for (int s = 0; s < n; s++)
            least = fmin(least, l->up[i][s]);
        for (int s = 0; s < n; s++)
            if (l->up[i][s] < INFINITY)
                l->up[i][s] += (l->up[i][s] - least + l->noise) * mem_uniform(l);
    }
}

/* Swaps usages of the nodes that pick[] changes, or back; whether everything fits. */
static bool swap_usage(struct mem_local *l, bool back)
{
    const struct mem_core *m = l->m;

    for (int i = 0; i < l->n; i++) {
        int v = l->node[i], old = l->st->choice[v], new = l->pick[i];
        for (int k = m->first[v]; old != new &&k < m->first[v + 1]; k++) {
            const struct mem_part *part = &m->part[k];
            int64_t less = part->usage[old] - part->usage[new];
            if (less != 0)
                mem_tree_add(&l->st->left, part->lo, part->hi, back ? -less : less);
        }
    }
    return mem_tree_all(&l->st->left) >= 0;
}

/* Decides again, within the memory; whether that is possible and good enough. */
static bool decide_within(struct mem_local *l, bool kick)
{
    struct mem_state *st = l->st;
    int n_decided = 0;

    for (int i = 0; i < l->n; i++)
        mem_tree_take(&st->left, l->m, l->node[i], st->choice[l->node[i]], 1);
    if (decide(l, &n_decided) && (kick || welcome(l, change_of(l))))
        return true;
    for (int i = 0; i < n_decided; i++)
        mem_tree_take(&st->left, l->m, l->node[i], l->pick[i], 1);
    for (int i = 0; i < l->n; i++)
        mem_tree_take(&st->left, l->m, l->node[i], st->choice[l->node[i]], -1);
    return false;
}

/* Most often memory does not matter, and what is decided freely can be swapped in. */
static bool decide_all(struct mem_local *l, bool kick)
{
    int n_changed = 0;

    decide_freely(l);
    for (int i = 0; i < l->n; i++)
        n_changed += l->pick[i] != l->st->choice[l->node[i]];
    if (n_changed == 0)
        return false;
    bool fits = swap_usage(l, false);
    if (fits && (kick || welcome(l, change_of(l))))
        return true;
    swap_usage(l, true);
    return !fits && decide_within(l, kick);
}

/* pick[], whose usage was swapped in, becomes the choice; returns the work. */
static int64_t take_over(struct mem_local *l)
{
    int64_t work = 0;

    l->priced += price_change(l);
    for (int i = 0; i < l->n; i++)
        if (l->pick[i] != l->st->choice[l->node[i]])
            work += mem_state_change(l->st, l->node[i], l->pick[i]);
    return work;
}

void mem_try_forest(struct mem_local *l, int start, int size, double factor, bool kick,
                    struct mem_budget *budget)
{
    grow(l, start, size, mem_random(l) & 1);
    int64_t work = localise(l, factor) + 8 * l->n + TRY_WORK;
    if (kick)
        shake(l);
    for (int i = l->n - 1; i > 0; i--)
        if (l->parent[i] >= 0)
            work += send_up(l, i);
    if (decide_all(l, kick))
        work += take_over(l);
    disband(l);
    mem_spend(budget, work);
}

/* ---- single answers ---- */

void mem_settle(struct mem_state *st, struct mem_budget *budget)
{
    const struct sel_core *c = st->m->core;
    bool again = true;

    for (int round = 0; again && round < 20 && !budget->out; round++) {
        again = false;
        for (int v = 0; v < c->n_nodes; v++) {
            int best = st->choice[v], n = c->node[v].n_strategies;
            mem_tree_take(&st->left, st->m, v, best, 1);
            for (int s = 0; s < n; s++)
                if (st->forbidden[v][s] == 0 &&
                    st->answer[v][s] < st->answer[v][best] * (1 - 1e-12) &&
                    mem_tree_try(&st->left, st->m, v, s)) {
                    mem_tree_take(&st->left, st->m, v, s, 1);
                    best = s;
                }
            mem_tree_take(&st->left, st->m, v, best, -1);
            if (best != st->choice[v]) {
                again = true;
                mem_spend(budget, mem_state_change(st, v, best));
            }
        }
        mem_spend(budget, 8 * c->n_nodes);
    }
}
