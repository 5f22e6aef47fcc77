/*
 * Which nodes of a set take another strategy, each one of its own: the cheapest choice,
 * usage at its price, all nodes outside as they are.
 *
 * That is a selection problem with two strategies a node, whose tables stay small where
 * those of whole nodes would not: a set with cycles is decided exactly (solve_elim.c).
 * Where it is too wide, the node met most in the widest places stays as it is. After
 * Lempitsky, Rother, Roth and Blake, "Fusion moves for Markov random field optimization",
 * 2010. O(nodes * 2^(width + 1)), most often far less.
 */
#include "mem_local.h"

#define MOST_ENTRIES 20000 /* of the tables: sets up to about 10 neighbours wide */

struct fuse {
    struct mem_local *l;
    const int *alt; /* [node], the other strategy */
    int n, node[MEM_FUSE];
    int *at; /* [node], its node in core, -1 outside; the caller's place[] is kept */
    struct sel_core *core;
    double own[MEM_FUSE][2]; /* what it costs apart from the set's edges */
    int64_t work;
};

static int strategy(const struct fuse *f, int i, int which)
{
    int v = f->node[i];

    return which ? f->alt[v] : f->l->st->choice[v];
}

/* Costs of the set's edge e, less their least. */
static void add_edge(struct fuse *f, const struct sel_edge *e)
{
    struct sel_core *c = f->core;
    int a = f->at[e->a], b = f->at[e->b];
    double *cost = AP_NEW_N(c->arena, 4, double), least = INFINITY;

    for (int x = 0; x < 4; x++) {
        cost[x] = sel_base(e, strategy(f, a, x / 2), strategy(f, b, x % 2));
        least = sel_lesser(least, cost[x]);
    }
    for (int x = 0; x < 4; x++)
        cost[x] -= least;
    sel_core_edge(c, (struct sel_edge){.a = a,
                                       .b = b,
                                       .table = sel_table_new(c->arena, 2, 2, cost),
                                       .row = c->identity,
                                       .col = c->identity,
                                       .row_add = c->zeros,
                                       .col_add = c->zeros});
}

/* What node i costs with the set's edges out; adds those whose first end it is. */
static void add_node(struct fuse *f, int i, double factor)
{
    const struct mem_local *l = f->l;
    const struct sel_core *c = l->m->core;
    int v = f->node[i], forbidden = l->st->forbidden[v][f->alt[v]];
    double *own = f->own[i], *cost = AP_NEW_N(f->core->arena, 2, double);

    for (int x = 0; x < 2; x++)
        own[x] = l->st->answer[v][strategy(f, i, x)];
    for (int k = 0; k < c->node[v].n_edges; k++) {
        const struct sel_edge *e = &c->edge[c->node[v].edges[k]];
        int w = sel_other(e, v);
        if (f->at[w] < 0)
            continue;
        for (int x = 0; x < 2; x++) {
            double cell = sel_cell(e, v, strategy(f, i, x), l->st->choice[w]);
            own[x] -= cell < INFINITY ? cell : 0;
            forbidden -= !(cell < INFINITY);
        }
        if (e->a == v)
            add_edge(f, e);
    }
    if (forbidden > 0)
        own[1] = INFINITY;
    for (int x = 0; x < 2; x++)
        cost[x] = own[x] + factor * l->price[v][strategy(f, i, x)];
    double least = sel_lesser(cost[0], cost[1]);
    cost[0] -= least;
    cost[1] -= least;
    f->core->node[i].n_strategies = 2;
    f->core->node[i].label = f->core->identity;
    f->core->node[i].cost = cost;
    f->work += 4 * c->node[v].n_edges;
}

/* The problem of the set, and how it is solved; false when it is too wide. */
static bool plan_set(struct fuse *f, double factor, struct sel_elim *plan)
{
    f->core = sel_core_new(f->l->arena, f->l->m->core, f->n, 2 * f->n);
    for (int i = 0; i < f->n; i++)
        f->at[f->node[i]] = i;
    for (int i = 0; i < f->n; i++)
        add_node(f, i, factor);
    f->work += 20 * f->n;
    return sel_elim_plan(f->core, MOST_ENTRIES, 2 * MOST_ENTRIES, plan);
}

/* What the set's choice costs more than the present one, without usage. */
static double change_of(const struct fuse *f, const int *state)
{
    const struct sel_core *c = f->core;
    double sum = 0;

    for (int i = 0; i < f->n; i++)
        sum += f->own[i][state[i]] - f->own[i][0];
    for (int e = 0; e < c->n_edges; e++)
        sum += sel_base(&c->edge[e], state[c->edge[e].a], state[c->edge[e].b]) -
               sel_base(&c->edge[e], 0, 0);
    return sum;
}

double mem_fuse(struct mem_local *l, const int *alt, double factor, int64_t *work)
{
    const struct ap_mark mark = ap_arena_mark(l->arena);
    struct fuse f = {.l = l, .alt = alt, .n = l->n, .at = l->rank};
    int state[MEM_FUSE] = {0};
    struct sel_elim plan;

    for (int i = 0; i < l->n; i++)
        f.node[i] = l->node[i];
    while (!plan_set(&f, factor, &plan)) {
        int stays = f.node[plan.widest_node];
        f.at[stays] = -1;
        for (int i = plan.widest_node; i + 1 < f.n; i++)
            f.node[i] = f.node[i + 1];
        f.n--;
    }
    sel_elim_run(f.core, &plan, INFINITY, state);
    const double change = change_of(&f, state);
    *work += f.work + 6 * (int64_t)plan.work;
    for (int i = 0; i < l->n; i++) {
        int v = l->node[i], at = f.at[v];
        l->pick[i] = at >= 0 && state[at] ? alt[v] : l->st->choice[v];
    }
    for (int i = 0; i < f.n; i++)
        f.at[f.node[i]] = -1;
    ap_arena_rewind(l->arena, mark);
    return change;
}
