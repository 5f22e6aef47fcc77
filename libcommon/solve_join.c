/*
 * Copies that are paid once. A copy node has two strategies, absent and made: one edge to
 * its producer says what making it costs, edges to its consumers forbid absent where it
 * is needed. As single nodes the copies of a tensor make every relaxation weak: a
 * producer that is half this and half that feeds each copy from its better half. Exact
 * remedy: one node for all copies of a tensor, whose strategies are the sets that can be
 * needed, the unions of one need per consumer; being made costs at least as much as being
 * absent, so no other set is of use. The edge to the producer then couples it with the
 * whole set. Which copies are made follows from the consumers in the end.
 *
 * Where there are too many sets, only those of few members are exact and a few
 * stand-ins, at a price below any set that they stand for, serve all needs. The problem
 * is then a relaxation; if its solution is worth what it says it is optimal, else the
 * groups concerned get more sets and all is solved again.
 *
 * O(sets * consumers' distinct needs) per tensor. Groups of over 64 copies stay as they
 * are.
 */
#include "solve.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SETS 192 /* exact sets of a group at first */
#define MORE_SETS  4   /* times as many after each refinement */
#define MAX_SETS   13000

struct copy {
    int node, producer; /* producer edge */
    bool made_is_0;     /* the strategy that means made */
    int leader;         /* union-find among the copies, lowest index */
};

struct sel_join {
    struct sel_core *c;
    int *copy_of; /* [node], index of its copy, -1 */
    struct copy *copy;
    int n_copies;
    int *max_sets; /* [node], of the group that it leads; the caller's */
    int *n_sets;   /* [node], exact sets of the group that it leads, 0: none */
    bool relaxed;
};

/* ---- recognising copies ---- */

static double cell(const struct sel_core *c, const struct sel_edge *e, int v, int s,
                   int t)
{
    return sel_cell(c, e, v, s, t);
}

/* Absent forbids some of the other end's strategies and costs nothing else. */
static bool is_need(const struct sel_core *c, const struct sel_edge *e, int v, int made)
{
    int n = c->node[sel_other(e, v)].n_strategies;

    for (int t = 0; t < n; t++) {
        double absent = cell(c, e, v, !made, t);
        if (cell(c, e, v, made, t) != 0 || (absent != 0 && absent != INFINITY))
            return false;
    }
    return true;
}

/* Absent costs nothing. */
static bool is_making(const struct sel_core *c, const struct sel_edge *e, int v, int made)
{
    int n = c->node[sel_other(e, v)].n_strategies;

    for (int t = 0; t < n; t++)
        if (cell(c, e, v, !made, t) != 0)
            return false;
    return true;
}

static bool recognise(const struct sel_core *c, int v, int made, struct copy *copy)
{
    const struct sel_node *node = &c->node[v];

    if (node->cost[!made] == INFINITY || node->cost[!made] > node->cost[made])
        return false;
    copy->node = v;
    copy->made_is_0 = made == 0;
    copy->producer = -1;
    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (is_need(c, e, v, made))
            continue;
        if (copy->producer >= 0 || !is_making(c, e, v, made))
            return false;
        copy->producer = node->edges[i];
    }
    return copy->producer >= 0 && node->n_edges > 1;
}

static int made(const struct copy *copy)
{
    return copy->made_is_0 ? 0 : 1;
}

static int producer(const struct sel_join *j, int i)
{
    return sel_other(&j->c->edge[j->copy[i].producer], j->copy[i].node);
}

static bool needs(const struct sel_join *j, int i, const struct sel_edge *e, int t)
{
    return cell(j->c, e, j->copy[i].node, !made(&j->copy[i]), t) == INFINITY;
}

/* ---- grouping: copies of one producer that some consumer has to choose between ---- */

static int leader(struct sel_join *j, int i)
{
    while (j->copy[i].leader != i)
        i = j->copy[i].leader = j->copy[j->copy[i].leader].leader;
    return i;
}

/* No strategy of consumer v needs what both edges lead to. */
static bool exclusive(const struct sel_join *j, int v, int e1, int e2)
{
    const struct sel_edge *a = &j->c->edge[e1], *b = &j->c->edge[e2];

    for (int t = 0; t < j->c->node[v].n_strategies; t++)
        if (needs(j, j->copy_of[sel_other(a, v)], a, t) &&
            needs(j, j->copy_of[sel_other(b, v)], b, t))
            return false;
    return true;
}

static int by_producer(const void *x, const void *y)
{
    const int *a = x, *b = y;

    return a[0] != b[0] ? (a[0] > b[0]) - (a[0] < b[0]) : (a[1] > b[1]) - (a[1] < b[1]);
}

static void group_at(struct sel_join *j, int v, int (*seen)[2])
{
    const struct sel_node *node = &j->c->node[v];
    int n = 0;

    for (int i = 0; i < node->n_edges; i++) {
        int e = node->edges[i], k = j->copy_of[sel_other(&j->c->edge[e], v)];
        if (k < 0 || j->copy[k].producer == e)
            continue;
        seen[n][0] = producer(j, k);
        seen[n++][1] = e;
    }
    qsort(seen, (size_t)n, sizeof(*seen), by_producer);
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n && seen[k][0] == seen[i][0]; k++) {
            int a = leader(j, j->copy_of[sel_other(&j->c->edge[seen[i][1]], v)]);
            int b = leader(j, j->copy_of[sel_other(&j->c->edge[seen[k][1]], v)]);
            if (a != b && exclusive(j, v, seen[i][1], seen[k][1]))
                j->copy[a > b ? a : b].leader = a < b ? a : b;
        }
}

/* ---- one group ---- */

struct group {
    int n, copy[64];
    int n_needs;    /* edges from the group, by consumer */
    int (*need)[2]; /* consumer, edge */
    uint64_t *mask; /* scratch [strategies of a consumer] */
    uint64_t *set;  /* exact ones, then stand-ins, the one of all copies last */
    int n_sets, first_stand_in, max_sets;
    int members; /* exact sets have up to so many */
};

static int by_value(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

    return (a > b) - (a < b);
}

static int unique(uint64_t *x, int n)
{
    int k = 0;

    qsort(x, (size_t)n, sizeof(*x), by_value);
    for (int i = 0; i < n; i++)
        if (i == 0 || x[i] != x[k - 1])
            x[k++] = x[i];
    return k;
}

static void collect_needs(struct sel_join *j, struct group *g)
{
    int n = 0;

    for (int i = 0; i < g->n; i++)
        n += j->c->node[j->copy[g->copy[i]].node].degree;
    g->need = ap_arena_alloc_n(j->c->arena, (size_t)n, sizeof(*g->need));
    for (int i = 0; i < g->n; i++) {
        const struct copy *copy = &j->copy[g->copy[i]];
        const struct sel_node *node = &j->c->node[copy->node];
        for (int k = 0; k < node->n_edges; k++)
            if (node->edges[k] != copy->producer) {
                g->need[g->n_needs][0] =
                    sel_other(&j->c->edge[node->edges[k]], copy->node);
                g->need[g->n_needs++][1] = node->edges[k];
            }
    }
    qsort(g->need, (size_t)g->n_needs, sizeof(*g->need), by_producer);
}

/* mask[t]: what consumer need[from][0] needs with t; returns the end of its edges. */
static int masks_of(struct sel_join *j, const struct group *g, int from, uint64_t *mask)
{
    int v = g->need[from][0], n = j->c->node[v].n_strategies, k = from;

    memset(mask, 0, (size_t)n * sizeof(*mask));
    for (; k < g->n_needs && g->need[k][0] == v; k++) {
        const struct sel_edge *e = &j->c->edge[g->need[k][1]];
        int i = j->copy_of[sel_other(e, v)], bit = 0;
        while (g->copy[bit] != i)
            bit++;
        for (int t = 0; t < n; t++)
            if (needs(j, i, e, t))
                mask[t] |= (uint64_t)1 << bit;
    }
    return k;
}

/* Adds the sets that come with one more consumer, up to most_members each. */
static bool add_consumer(struct sel_join *j, struct group *g, int v, int most_members,
                         bool *all)
{
    struct ap_mark mark = ap_arena_mark(j->c->arena);
    int m = 0, n = 0;

    for (int t = 0; t < j->c->node[v].n_strategies; t++)
        if (j->c->node[v].cost[t] < INFINITY)
            g->mask[m++] = g->mask[t];
    m = unique(g->mask, m);
    uint64_t *next =
        ap_arena_alloc_n(j->c->arena, (size_t)m * (size_t)g->n_sets + 1, sizeof(*next));
    for (int i = 0; i < g->n_sets; i++)
        for (int k = 0; k < m; k++) {
            uint64_t set = g->set[i] | g->mask[k];
            if (__builtin_popcountll(set) <= most_members)
                next[n++] = set;
            else
                *all = false;
        }
    g->n_sets = unique(next, n);
    if (g->n_sets <= g->max_sets)
        memcpy(g->set, next, (size_t)g->n_sets * sizeof(*next));
    ap_arena_rewind(j->c->arena, mark);
    return g->n_sets <= g->max_sets;
}

/* The unions of one need per consumer, of up to most_members; false: too many. */
static bool find_sets(struct sel_join *j, struct group *g, int most_members, bool *all)
{
    g->set[0] = 0;
    g->n_sets = 1;
    *all = true;
    for (int from = 0; from < g->n_needs;) {
        int v = g->need[from][0];
        from = masks_of(j, g, from, g->mask);
        if (!add_consumer(j, g, v, most_members, all)) {
            *all = false;
            return false;
        }
    }
    return true;
}

/* What it costs the producer's strategy s to make copy i of the group. */
static double making(const struct sel_join *j, const struct group *g, int i, int s)
{
    const struct copy *copy = &j->copy[g->copy[i]];
    const double *own = j->c->node[copy->node].cost;

    return cell(j->c, &j->c->edge[copy->producer], copy->node, made(copy), s) +
           (own[made(copy)] - own[!made(copy)]);
}

static uint64_t free_copies(const struct sel_join *j, const struct group *g, int s)
{
    uint64_t set = 0;

    for (int i = 0; i < g->n; i++)
        set |= (uint64_t)(making(j, g, i, s) == 0) << i;
    return set;
}

/*
 * Stand-ins for the sets of more than `members`: what each producer's strategy makes for
 * nothing, where that is more, and all copies for the rest.
 */
static void add_stand_ins(struct sel_join *j, struct group *g)
{
    int p = producer(j, g->copy[0]), n = 0;
    uint64_t all = g->n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << g->n) - 1;

    g->first_stand_in = g->n_sets;
    for (int s = 0; s < j->c->node[p].n_strategies; s++) {
        uint64_t set = free_copies(j, g, s);
        if (__builtin_popcountll(set) > g->members && set != all)
            g->set[g->n_sets + n++] = set;
    }
    n = unique(g->set + g->n_sets, n);
    g->set[g->n_sets + n++] = all;
    g->n_sets += n;
}

/* Chooses the sets: all of them, or those of few members and stand-ins for the others. */
static bool choose_sets(struct sel_join *j, struct group *g)
{
    bool all = false;

    g->members = 0;
    while (!all && find_sets(j, g, g->members + 1, &all))
        g->members++;
    if (!all && (g->members == 0 || !find_sets(j, g, g->members, &all)))
        return false;
    g->first_stand_in = g->n_sets;
    if (!all)
        add_stand_ins(j, g);
    return true;
}

static int by_size(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

/*
 * The least that more than `members` copies of the set cost; of all copies, at least one
 * is not free (a stand-in of its own has those that are).
 */
static double stand_in_cost(struct sel_join *j, const struct group *g, int k, int s)
{
    double x[64], sum = 0;
    int n = 0, m = g->members;

    for (int i = 0; i < g->n; i++)
        if (g->set[k] >> i & 1)
            x[n++] = making(j, g, i, s);
    if (n <= m)
        return INFINITY;
    qsort(x, (size_t)n, sizeof(*x), by_size);
    for (int i = 0; i < m; i++)
        sum += x[i];
    while (k == g->n_sets - 1 && m < n - 1 && x[m] == 0)
        m++;
    return sum + x[m];
}

static double set_cost(struct sel_join *j, const struct group *g, int k, int s)
{
    double sum = 0;

    if (k >= g->first_stand_in)
        return stand_in_cost(j, g, k, s);
    for (int i = 0; i < g->n; i++)
        if (g->set[k] >> i & 1)
            sum += making(j, g, i, s);
    return sum;
}

static void drop_edge(struct sel_core *c, int e)
{
    c->edge[e].gone = true;
    c->node[c->edge[e].a].degree--;
    c->node[c->edge[e].b].degree--;
}

static void replace(struct sel_join *j, struct group *g)
{
    struct sel_core *c = j->c;
    int rep = j->copy[g->copy[0]].node, p = producer(j, g->copy[0]), n = g->n_sets;
    int np = c->node[p].n_strategies;
    double *cost = AP_NEW_N(c->arena, n, double);
    double *making_cost = AP_NEW_N(c->arena, (int64_t)n * np, double);
    int *label = AP_NEW_N(c->arena, n, int);
    double absent = 0;

    for (int i = 0; i < g->n; i++) {
        const struct copy *copy = &j->copy[g->copy[i]];
        absent += c->node[copy->node].cost[!made(copy)];
    }
    for (int k = 0; k < n; k++) {
        label[k] = k;
        cost[k] = absent;
        for (int s = 0; s < np; s++)
            making_cost[s * n + k] = set_cost(j, g, k, s);
    }
    int n_old = c->n_edges;
    sel_core_edge(c, p, rep, making_cost, true);
    for (int from = 0; from < g->n_needs;) {
        int v = g->need[from][0], nv = c->node[v].n_strategies;
        double *t = AP_NEW_N(c->arena, (int64_t)n * nv, double);
        from = masks_of(j, g, from, g->mask);
        for (int k = 0; k < n; k++)
            for (int s = 0; s < nv; s++)
                t[k * nv + s] = g->mask[s] & ~g->set[k] ? INFINITY : 0;
        sel_core_edge(c, rep, v, t, true);
    }
    for (int i = 0; i < g->n; i++) {
        struct sel_node *node = &c->node[j->copy[g->copy[i]].node];
        for (int k = 0; k < node->n_edges; k++)
            if (node->edges[k] < n_old)
                drop_edge(c, node->edges[k]);
        if (i > 0) {
            node->gone = true;
            c->n_left--;
        }
    }
    c->node[rep].n_strategies = n;
    c->node[rep].cost = cost;
    c->node[rep].label = label;
}

/* ---- all of it ---- */

static void join_group(struct sel_join *j, struct group *g, const int *next, int i)
{
    int *max_sets = &j->max_sets[j->copy[i].node];

    g->n = g->n_needs = 0;
    for (; i >= 0 && g->n < 64; i = next[i])
        g->copy[g->n++] = i;
    if (i >= 0)
        return;
    if (*max_sets == 0)
        *max_sets = FIRST_SETS;
    g->max_sets = *max_sets;
    g->set = AP_NEW_N(j->c->arena,
                      g->max_sets + j->c->node[producer(j, g->copy[0])].n_strategies + 1,
                      uint64_t);
    collect_needs(j, g);
    if (!choose_sets(j, g))
        return;
    replace(j, g);
    j->n_sets[j->copy[g->copy[0]].node] = g->first_stand_in;
    if (g->first_stand_in < g->n_sets)
        j->relaxed = true;
}

static void join_groups(struct sel_join *j, int most)
{
    struct ap_arena *arena = j->c->arena;
    int *next = AP_NEW_N(arena, j->n_copies + 1, int);
    int *last = AP_NEW_N(arena, j->n_copies + 1, int);
    struct group g = {.mask = AP_NEW_N(arena, most, uint64_t)};

    for (int i = 0; i < j->n_copies; i++) {
        int l = leader(j, i);
        next[i] = -1;
        if (l != i)
            next[last[l]] = i;
        last[l] = i;
    }
    for (int i = 0; i < j->n_copies; i++)
        if (leader(j, i) == i && next[i] >= 0)
            join_group(j, &g, next, i);
}

/* A copy next to a copy is none: needs and sets would depend on each other. */
static void drop_chained(struct sel_join *j)
{
    bool *chained = AP_NEW_N(j->c->arena, j->c->n_nodes + 1, bool);
    int n = 0;

    for (int i = 0; i < j->c->n_edges; i++) {
        const struct sel_edge *e = &j->c->edge[i];
        if (j->copy_of[e->a] >= 0 && j->copy_of[e->b] >= 0)
            chained[e->a] = chained[e->b] = true;
    }
    for (int i = 0; i < j->n_copies; i++) {
        int v = j->copy[i].node;
        j->copy_of[v] = chained[v] ? -1 : n;
        if (chained[v])
            continue;
        j->copy[n] = j->copy[i];
        j->copy[n].leader = n;
        n++;
    }
    j->n_copies = n;
}

struct sel_join *sel_join_copies(struct sel_core *c, int *max_sets)
{
    struct sel_join *j = AP_NEW(c->arena, struct sel_join);
    int most = 1, most_edges = 1;

    j->c = c;
    j->max_sets = max_sets;
    j->n_sets = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    j->copy_of = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    j->copy = AP_NEW_N(c->arena, c->n_nodes + 1, struct copy);
    for (int v = 0; v < c->n_nodes; v++) {
        struct copy *copy = &j->copy[j->n_copies];
        j->copy_of[v] = -1;
        most = c->node[v].n_strategies > most ? c->node[v].n_strategies : most;
        most_edges = c->node[v].n_edges > most_edges ? c->node[v].n_edges : most_edges;
        if (c->node[v].n_strategies != 2 ||
            !(recognise(c, v, 1, copy) || recognise(c, v, 0, copy)))
            continue;
        j->copy_of[v] = j->n_copies++;
    }
    drop_chained(j);
    int(*seen)[2] = ap_arena_alloc_n(c->arena, (size_t)most_edges, sizeof(*seen));
    for (int v = 0; v < c->n_nodes; v++)
        if (j->copy_of[v] < 0)
            group_at(j, v, seen);
    join_groups(j, most);
    return j;
}

void sel_join_decide(const struct sel_join *j, const struct ap_problem *p, int *choice)
{
    for (int i = 0; i < j->n_copies; i++)
        choice[j->copy[i].node] = !made(&j->copy[i]);
    for (int i = 0; i < p->n_edges; i++) {
        const struct ap_problem_edge *e = &p->edges[i];
        int a = j->copy_of[e->a], b = j->copy_of[e->b];
        int sa = a < 0 ? choice[e->a] : !made(&j->copy[a]);
        int sb = b < 0 ? choice[e->b] : !made(&j->copy[b]);
        if ((a < 0 && b < 0) || e->cost[sa * p->n_strategies[e->b] + sb] < AP_FORBIDDEN)
            continue;
        if (a >= 0)
            choice[e->a] = made(&j->copy[a]);
        if (b >= 0)
            choice[e->b] = made(&j->copy[b]);
    }
}

bool sel_join_refine(const struct sel_join *j, const int *best)
{
    bool again = false;

    for (int i = 0; i < j->n_copies && j->relaxed; i++) {
        int v = j->copy[i].node;
        if (j->n_sets[v] == 0 || best[v] < j->n_sets[v] || j->max_sets[v] >= MAX_SETS)
            continue;
        j->max_sets[v] = MORE_SETS * j->max_sets[v];
        again = true;
    }
    return again;
}

bool sel_join_relaxed(const struct sel_join *j)
{
    return j->relaxed;
}
