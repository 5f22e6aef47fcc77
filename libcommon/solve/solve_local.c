/*
 * Local search on the selection problem: single nodes answer their neighbours best until
 * nothing changes, then chains: a node is set to some other strategy, its neighbours
 * answer, theirs answer, breadth-first, up to MAX_CHAIN changes; kept if cheaper.
 * Single moves alone get stuck where edges are strict.
 * A forbidden cost counts as AP_FORBIDDEN, so that repairs come first.
 * O(degree * strategies) per answer.
 */
#include "solve/solve.h"

#include <string.h>

#define MAX_CHAIN  40
#define MAX_ROUNDS 50

static double finite(double x)
{
    return x < INFINITY ? x : AP_FORBIDDEN;
}

double sel_cost(const struct sel_core *c, const int *state)
{
    double sum = c->base;

    for (int v = 0; v < c->n_nodes; v++)
        if (!c->node[v].gone)
            sum += c->node[v].cost[state[v]];
    for (int i = 0; i < c->n_edges; i++) {
        const struct sel_edge *e = &c->edge[i];
        if (!e->gone)
            sum += sel_cell(e, e->a, state[e->a], state[e->b]);
    }
    return sum < AP_FORBIDDEN ? sum : INFINITY;
}

/* Forbidden costs swallow finite ones: they are counted apart. */
struct amount {
    int forbidden;
    double sum;
};

static bool less(struct amount x, struct amount y)
{
    return x.forbidden != y.forbidden ? x.forbidden < y.forbidden : x.sum < y.sum;
}

static struct amount cost_at(const struct sel_core *c, const int *state, int v, int s)
{
    const struct sel_node *node = &c->node[v];
    struct amount x = {0, node->cost[s]};

    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (e->gone)
            continue;
        double y = finite(sel_cell(e, v, s, state[sel_other(e, v)]));
        if (y >= AP_FORBIDDEN)
            x.forbidden++;
        else
            x.sum += y;
    }
    return x;
}

/* v's best strategy (the present one unless another is better) and its cost. */
static int answer(const struct sel_core *c, const int *state, int v, struct amount *cost)
{
    int best = state[v];

    *cost = cost_at(c, state, v, best);
    for (int s = 0; s < c->node[v].n_strategies; s++) {
        if (s == best)
            continue;
        struct amount x = cost_at(c, state, v, s);
        if (less(x, *cost)) {
            *cost = x;
            best = s;
        }
    }
    return best;
}

static void settle(const struct sel_core *c, int *state)
{
    bool again = true;

    for (int round = 0; again && round < MAX_ROUNDS; round++) {
        again = false;
        for (int v = 0; v < c->n_nodes; v++) {
            struct amount cost;
            if (c->node[v].gone)
                continue;
            int s = answer(c, state, v, &cost);
            again |= s != state[v];
            state[v] = s;
        }
    }
}

struct chain {
    int n, node[MAX_CHAIN], before[MAX_CHAIN];
    struct amount gain; /* new cost minus old */
};

static void change(const struct sel_core *c, int *state, struct chain *chain, int v,
                   int s)
{
    struct amount old = cost_at(c, state, v, state[v]), now = cost_at(c, state, v, s);

    chain->gain.forbidden += now.forbidden - old.forbidden;
    chain->gain.sum += now.sum - old.sum;
    chain->node[chain->n] = v;
    chain->before[chain->n++] = state[v];
    state[v] = s;
}

/* One chain from v := s; undone unless it gains more than noise. */
static void try_chain(const struct sel_core *c, int *state, int v, int s, double noise)
{
    struct chain chain = {0};

    change(c, state, &chain, v, s);
    for (int i = 0; i < chain.n && chain.n < MAX_CHAIN; i++) {
        const struct sel_node *node = &c->node[chain.node[i]];
        for (int k = 0; k < node->n_edges && chain.n < MAX_CHAIN; k++) {
            const struct sel_edge *e = &c->edge[node->edges[k]];
            struct amount cost;
            int w = sel_other(e, chain.node[i]);
            if (e->gone || w == v)
                continue;
            int t = answer(c, state, w, &cost);
            if (t != state[w])
                change(c, state, &chain, w, t);
        }
    }
    if (chain.gain.forbidden < 0 ||
        (chain.gain.forbidden == 0 && chain.gain.sum < -noise))
        return;
    while (chain.n-- > 0)
        state[chain.node[chain.n]] = chain.before[chain.n];
}

double sel_local(struct sel_core *c, int *state, int n_chains, uint64_t seed)
{
    settle(c, state);
    double cost = sel_cost(c, state);
    if (n_chains > 0) {
        double noise = cost < INFINITY ? 1e-13 * cost : 0;
        for (int i = 0; i < n_chains; i++) {
            uint64_t key[2] = {seed, (uint64_t)i};
            uint64_t h = ap_hash(key, sizeof(key), 0);
            int v = (int)(h % (uint64_t)c->n_nodes);
            int n = c->node[v].n_strategies, s = (int)((h >> 32) % (uint64_t)n);
            if (!c->node[v].gone && s != state[v])
                try_chain(c, state, v, s, noise);
        }
        settle(c, state);
        cost = sel_cost(c, state);
    }
    return cost;
}
