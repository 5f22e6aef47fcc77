/*
 * Better choices near a legal one, for the selection problem with memory. Two kinds of
 * neighbourhood, taken in turns until the budget is spent:
 *
 * Forests: a random set of nodes that induces a forest is decided anew, all others as
 * they are. Dynamic programming from the leaves finds what every strategy of a node
 * costs with its subtree, usage priced by the multipliers of the dual (times a random
 * factor); from the roots down, each node takes the cheapest strategy that fits into the
 * memory left, on top of the least usage of the nodes still to come. Without memory this
 * is the optimum of the set. O(cells of its edges + parts log slots).
 *
 * Chains: a random node takes a random strategy, and its neighbours answer, and theirs,
 * breadth-first, up to MAX_CHAIN changes.
 *
 * A result is taken if it is legal and not dearer; among equal ones this is a walk.
 */
#include "solve_mem.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CHAIN  40
#define MAX_FOREST 3000
#define N_FACTORS  7
#define N_SIZES    10 /* 4, 8, ... nodes, then chains */
#define N_ARMS     (N_FACTORS * (N_SIZES + 1))
#define LEAST_RATE 0.05 /* of the best arm's, for all arms */
#define TRY_WORK   100  /* of a try in any case */
#define PICK_WORK  100
#define FORGET     0.98
#define WINDOW     40   /* times all cells, as work */
#define LITTLE     1e-5 /* part of the cost gained in a window */
#define STRENGTHS  8
#define MANY       8 /* descents as long as the first */
#define SCRAMBLE   12
#define HUB        400 /* neighbours; a node with more is seldom part of a forest */

struct mem_local {
    const struct mem_core *m;
    struct mem_state *st;
    double **price; /* [node][strategy], by the multipliers */
    uint64_t random;
    /* the forest: nodes in the order in which they joined */
    int n, *node;
    int *parent,
        *edge;  /* [place]: place of the parent and the edge to it, -1 at a root */
    int *place; /* [node], -1 when not in the forest */
    int *touch; /* [node], neighbours in the forest */
    int *frontier, n_frontier;
    double **local; /* [place][strategy]: cost apart from the forest's edges */
    double **up;    /* the same with price and what the subtree costs */
    double *pool;   /* where local and up lie */
    size_t cap_pool;
    int *pick;
    double *in, *out;
    double tol, noise;
    int *best; /* [node], the best choice so far */
    double best_cost, window_cost;
    int *home; /* where kicks start, see move_on */
    double home_cost;
    int strength;
    int64_t total_work, first_descent;
    int64_t window_work, n_cells; /* since it was noted; of all tables */
    struct arm {
        double gain, work; /* lately */
        double per_try;    /* work of a try, lately */
    } arm[N_ARMS];
};

static uint64_t next_random(struct mem_local *l)
{
    uint64_t z = l->random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int pick_below(struct mem_local *l, int n)
{
    return (int)((next_random(l) >> 33) % (uint64_t)n);
}

struct mem_local *mem_local_new(struct ap_arena *arena, const struct mem_core *m,
                                uint64_t seed)
{
    const struct sel_core *c = m->core;
    struct mem_local *l = AP_NEW(arena, struct mem_local);
    int n = c->n_nodes + 1, most = 1;

    l->m = m;
    l->random = seed;
    l->st = mem_state_new(arena, m);
    l->best_cost = INFINITY;
    l->price = AP_NEW_N(arena, n, double *);
    for (int v = 0; v < c->n_nodes; v++) {
        l->price[v] = AP_NEW_N(arena, c->node[v].n_strategies, double);
        l->cap_pool += 2 * (size_t)c->node[v].n_strategies;
        if (c->node[v].n_strategies > most)
            most = c->node[v].n_strategies;
    }
    l->best = AP_NEW_N(arena, n, int);
    l->home = AP_NEW_N(arena, n, int);
    for (int e = 0; e < c->n_edges; e++) {
        const struct sel_table *t = c->edge[e].table;
        l->n_cells += (int64_t)t->n_rows * t->n_cols;
        most = t->n_rows > most ? t->n_rows : most;
        most = t->n_cols > most ? t->n_cols : most;
    }
    l->in = AP_NEW_N(arena, most, double);
    l->out = AP_NEW_N(arena, most, double);
    l->pool = AP_NEW_N(arena, l->cap_pool + 1, double);
    l->node = AP_NEW_N(arena, n, int);
    l->parent = AP_NEW_N(arena, n, int);
    l->edge = AP_NEW_N(arena, n, int);
    l->place = AP_NEW_N(arena, n, int);
    l->touch = AP_NEW_N(arena, n, int);
    l->frontier = AP_NEW_N(arena, n, int);
    l->local = AP_NEW_N(arena, n, double *);
    l->up = AP_NEW_N(arena, n, double *);
    l->pick = AP_NEW_N(arena, n, int);
    memset(l->place, 0xff, (size_t)n * sizeof(int));
    for (int i = 0; i < N_ARMS; i++) {
        int size = i / N_FACTORS;
        l->arm[i].work = l->arm[i].per_try = size < N_SIZES ? 800 << size : 4000;
    }
    return l;
}

const int *mem_local_best(const struct mem_local *l)
{
    return l->best;
}

static void make_home(struct mem_local *l, const int *choice, double cost)
{
    l->home_cost = cost;
    memcpy(l->home, choice, (size_t)l->m->core->n_nodes * sizeof(int));
}

void mem_local_set(struct mem_local *l, const int *choice, double cost, const double *mu)
{
    const struct mem_core *m = l->m;
    double *prefix = ap_xrealloc(NULL, ((size_t)m->n_slots + 1) * sizeof(double));

    mem_prefix(m, mu, prefix);
    for (int v = 0; v < m->core->n_nodes; v++)
        for (int s = 0; s < m->core->node[v].n_strategies; s++)
            l->price[v][s] = mem_price(m, prefix, v, s);
    free(prefix);
    l->tol = 1e-12 * fabs(cost);
    if (cost >= l->best_cost - l->tol)
        return;
    l->best_cost = cost;
    memcpy(l->best, choice, (size_t)m->core->n_nodes * sizeof(int));
    if (l->strength < 2 || l->st->cost == INFINITY) {
        mem_state_set(l->st, choice);
        make_home(l, choice, cost);
        l->strength = 0;
        l->window_work = 0;
        l->window_cost = cost;
    }
}

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
            int i = head + pick_below(l, l->n_frontier - head);
            int t = l->frontier[i];
            l->frontier[i] = l->frontier[head];
            l->frontier[head] = t;
        }
        int w = l->frontier[head++];
        if (l->touch[w] == 1 && l->place[w] < 0 &&
            (l->m->core->node[w].degree <= HUB || pick_below(l, 16) == 0))
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

static double cell(const struct sel_edge *e, int v, int s, int t)
{
    return e->a == v ? sel_base(e, s, t) : sel_base(e, t, s);
}

/* Takes the cells of edge e at the other end's choice out of v's local costs. */
static void take_out(struct mem_local *l, int i, const struct sel_edge *e)
{
    int v = l->node[i], n = l->m->core->node[v].n_strategies;
    int t = l->st->choice[sel_other(e, v)];

    for (int s = 0; s < n; s++) {
        double x = cell(e, v, s, t);
        if (x < INFINITY)
            l->local[i][s] -= x;
        else
            l->pick[s]--;
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

/* Cheapest strategies that fit, from the roots down, into pick[]; false when stuck. */
static bool decide(struct mem_local *l, int *n_decided)
{
    const struct sel_core *c = l->m->core;

    for (int i = 0; i < l->n; i++) {
        int v = l->node[i], n = c->node[v].n_strategies, best;
        double *up = l->up[i];
        if (l->parent[i] >= 0) {
            int t = l->pick[l->parent[i]];
            const struct sel_edge *e = &c->edge[l->edge[i]];
            for (int s = 0; s < n; s++)
                up[s] += cell(e, v, s, t);
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
            sum +=
                cell(e, v, s, l->pick[l->parent[i]]) - cell(e, v, old, l->st->choice[p]);
        }
    }
    return sum;
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
                l->up[i][s] += (l->up[i][s] - least + l->noise) *
                               (double)(next_random(l) >> 11) * 0x1p-53;
    }
}

/* Takes what it finds if it is not dearer, or whatever it is when kicking. */
static void try_forest(struct mem_local *l, int start, int size, double factor, bool kick,
                       struct mem_budget *budget)
{
    struct mem_state *st = l->st;
    int n_decided = 0;

    grow(l, start, size, next_random(l) & 1);
    int64_t work = localise(l, factor) + 8 * l->n + TRY_WORK;
    if (kick)
        shake(l);
    for (int i = l->n - 1; i > 0; i--)
        if (l->parent[i] >= 0)
            work += send_up(l, i);
    for (int i = 0; i < l->n; i++)
        mem_tree_take(&st->left, l->m, l->node[i], st->choice[l->node[i]], 1);
    bool better = decide(l, &n_decided) && (kick || change_of(l) <= l->tol);
    if (better) {
        for (int i = 0; i < l->n; i++)
            if (l->pick[i] != st->choice[l->node[i]])
                work += mem_state_change(st, l->node[i], l->pick[i]);
    } else {
        for (int i = 0; i < n_decided; i++)
            mem_tree_take(&st->left, l->m, l->node[i], l->pick[i], 1);
        for (int i = 0; i < l->n; i++)
            mem_tree_take(&st->left, l->m, l->node[i], st->choice[l->node[i]], -1);
    }
    disband(l);
    mem_spend(budget, work);
}

/* ---- single answers and chains ---- */

/* v's best strategy by answers and price. */
static int best_answer(const struct mem_local *l, int v, double factor)
{
    const double *answer = l->st->answer[v], *price = l->price[v];
    const int *forbidden = l->st->forbidden[v];
    int best = l->st->choice[v], n = l->m->core->node[v].n_strategies;

    for (int s = 0; s < n; s++)
        if (forbidden[s] < forbidden[best] ||
            (forbidden[s] == forbidden[best] &&
             answer[s] + factor * price[s] < answer[best] + factor * price[best]))
            best = s;
    return best;
}

static void try_chain(struct mem_local *l, int v, int s, double factor,
                      struct mem_budget *budget)
{
    struct mem_state *st = l->st;
    const struct sel_core *c = l->m->core;
    int n = 0, node[MAX_CHAIN], before[MAX_CHAIN], illegal = 0;
    double cost = st->cost;
    int64_t work = TRY_WORK;

    for (int i = -1; i < n && n < MAX_CHAIN; i++) {
        int from = i < 0 ? v : node[i];
        for (int k = 0; k < (i < 0 ? 1 : c->node[from].n_edges) && n < MAX_CHAIN; k++) {
            int w = i < 0 ? v : sel_other(&c->edge[c->node[from].edges[k]], from);
            if (i >= 0 && w == v)
                continue;
            int t = i < 0 ? s : best_answer(l, w, factor);
            work += c->node[w].n_strategies;
            if (t == st->choice[w])
                continue;
            node[n] = w;
            before[n++] = st->choice[w];
            illegal += st->forbidden[w][t] - st->forbidden[w][st->choice[w]];
            work += 2 * mem_state_change(st, w, t);
        }
    }
    bool better = illegal == 0 && st->cost <= cost + l->tol;
    for (int i = 0; better && i < n; i++) { /* in order: a node may change twice */
        mem_tree_take(&st->left, l->m, node[i], before[i], 1);
        int now = st->choice[node[i]];
        for (int k = n - 1; k > i; k--)
            if (node[k] == node[i])
                now = before[k];
        mem_tree_take(&st->left, l->m, node[i], now, -1);
    }
    bool fits = mem_tree_all(&st->left) >= 0;
    for (int i = n - 1; i >= 0 && (!better || !fits); i--) {
        if (better) {
            mem_tree_take(&st->left, l->m, node[i], st->choice[node[i]], 1);
            mem_tree_take(&st->left, l->m, node[i], before[i], -1);
        }
        mem_state_change(st, node[i], before[i]);
    }
    if (!better || !fits)
        st->cost = cost;
    mem_spend(budget, work);
}

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

/* ---- which neighbourhood to try ---- */

/*
 * Time goes to the arms by what they gained per work lately. An arm is tried with a
 * probability of rate / work per try, its rate being at least a part of the best one's.
 */
static int pick_arm(struct mem_local *l)
{
    double best = 0, sum = 0, weight[N_ARMS];

    for (int i = 0; i < N_ARMS; i++)
        best = fmax(best, l->arm[i].gain / l->arm[i].work);
    for (int i = 0; i < N_ARMS; i++) {
        double rate = best > 0 ? l->arm[i].gain / l->arm[i].work / best : 1;
        weight[i] = fmax(rate, LEAST_RATE) / l->arm[i].per_try;
        sum += weight[i];
    }
    double u = (double)(next_random(l) >> 11) * 0x1p-53 * sum;
    int i = 0;
    while (i < N_ARMS - 1 && (u -= weight[i]) > 0)
        i++;
    return i;
}

static void reward(struct arm *a, double gain, double work)
{
    a->gain = FORGET * a->gain + gain;
    a->work = FORGET * a->work + work;
    a->per_try += 0.1 * (work - a->per_try);
}

static void try_arm(struct mem_local *l, int arm, struct mem_budget *budget)
{
    static const double factors[N_FACTORS] = {1, 0, 0.5, 2, 0.2, 4, 10};
    const struct sel_core *c = l->m->core;
    int size = arm / N_FACTORS, v = pick_below(l, c->n_nodes);
    double factor = factors[arm % N_FACTORS], cost = l->st->cost;
    int64_t work = budget->work;

    if (size < N_SIZES) {
        int n = (4 << size) + pick_below(l, 4 << size);
        try_forest(l, v, n, factor, false, budget);
    } else {
        int s = pick_below(l, c->node[v].n_strategies);
        if (s != l->st->choice[v])
            try_chain(l, v, s, factor, budget);
    }
    reward(&l->arm[arm], fmax(cost - l->st->cost, 0), (double)(budget->work - work + 20));
}

static void keep_best(struct mem_local *l)
{
    const struct mem_state *st = l->st;

    if (st->cost < l->home_cost - l->tol) {
        make_home(l, st->choice, st->cost);
        l->strength = 0;
    }
    if (st->cost < l->best_cost - l->tol) {
        l->best_cost = st->cost;
        memcpy(l->best, st->choice, (size_t)l->m->core->n_nodes * sizeof(int));
    }
}

static void kick(struct mem_local *l, int size, int n, struct mem_budget *budget)
{
    int n_nodes = l->m->core->n_nodes;

    l->noise = (double)pick_below(l, 8) * 0.2 * fabs(l->best_cost) / n_nodes;
    for (int i = 0; i < n; i++)
        try_forest(l, pick_below(l, n_nodes), size, 0.5 * pick_below(l, 6), true, budget);
    mem_settle(l->st, budget);
}

/*
 * Little was gained for a while. Goes on from home, the best choice around here, with
 * random parts of it decided anew: more of it each time, until that finds a better one
 * (variable neighbourhood search). When no strength does, a new home is made of the best
 * choice, or of all of it decided anew, once the descents seem short.
 */
static void move_on(struct mem_local *l, struct mem_budget *budget)
{
    int n_nodes = l->m->core->n_nodes;

    keep_best(l);
    if (l->first_descent == 0)
        l->first_descent = l->total_work;
    if (++l->strength > STRENGTHS) {
        l->strength = 0;
        make_home(l, l->best, l->best_cost);
        mem_state_set(l->st, l->best);
        if (mem_local_is_short(l) && pick_below(l, 4) > 0) {
            kick(l, n_nodes, SCRAMBLE, budget);
            make_home(l, l->st->choice, l->st->cost);
        }
        return;
    }
    mem_state_set(l->st, l->home);
    kick(l, 4 + (n_nodes >> (STRENGTHS - l->strength + 1)), l->strength, budget);
}

bool mem_local_is_short(const struct mem_local *l)
{
    return l->first_descent > 0 && l->total_work > MANY * l->first_descent;
}

void mem_local_move(struct mem_local *l, const int *choice)
{
    mem_state_set(l->st, choice);
    make_home(l, choice, l->st->cost);
    l->strength = 0;
    l->window_work = 0;
    l->window_cost = l->st->cost;
}

void mem_local_run(struct mem_local *l, struct mem_budget *budget)
{
    if (l->m->core->n_nodes == 0)
        return;
    mem_settle(l->st, budget);
    while (!budget->out) {
        int64_t before = budget->work;
        mem_spend(budget, PICK_WORK);
        try_arm(l, pick_arm(l), budget);
        l->window_work += budget->work - before;
        l->total_work += budget->work - before;
        if (l->window_work < WINDOW * (l->n_cells + 1000))
            continue;
        if (l->st->cost >= l->window_cost - LITTLE * fabs(l->window_cost))
            move_on(l, budget);
        l->window_work = 0;
        l->window_cost = l->st->cost;
    }
    keep_best(l);
}
