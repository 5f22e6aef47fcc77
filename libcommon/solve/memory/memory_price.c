/*
 * Problem: state the selection problem at given prices of memory. Idea: usage adds its
 * price to the tables of the nodes that decide it. If the copies of a tensor hold much
 * memory, all of them are one node whose strategies are combinations of the users' needs
 * (memory_copy_set.c): its table to the home has the exact price. Where that node would
 * have too many strategies, every copy has a node of its own. A copy that users of both
 * phases may need is then made for both at the cost of making it plus the smaller of two
 * prices: keeping it, or making it again. That takes three tables at once; instead each
 * phase has a copy, and what both together save is shared between them: either one,
 * alone, is too cheap by its share. Shares are moved away from where they are abused from
 * one solution to the next (a subgradient). Where keeping is cheap it costs nothing and
 * there is one copy. The value of the problem gets no larger by any of this. Cost: linear
 * in the tables.
 */
#include "solve/memory/memory_search.h"

#include <math.h>
#include <string.h>

#include "solve/memory/memory_copy_set.h"

#define MOST_TURNS 6 /* users of a copy in a phase that waits are priced for */

static double span_price(const double *before, int lo, int hi)
{
    return before[hi] - before[lo];
}

static bool is_forbidden(double cost)
{
    return cost >= AP_FORBIDDEN;
}

static bool forbids(const struct ap_problem *p, const struct ap_problem_edge *e)
{
    const int n = p->n_strategies[e->a] * p->n_strategies[e->b];
    for (int i = 0; i < n; i++)
        if (is_forbidden(e->cost[i]))
            return true;
    return false;
}

/* ---- the problem ---- */

struct pricer {
    struct ap_arena *arena;
    const struct ap_memory *m;
    double weight;
    const double *share;       /* [copy]: of what is saved, the later copy's */
    struct priced_wait **wait; /* [2 * copy + later], NULL */
    struct priced_problem *out;
    double set_cells;
    double **cost;
    int *n_strategies;
    struct ap_problem_edge *edges;
    int n_edges, cap_edges;
};

static void add_edge(struct pricer *k, int a, int b, const double *cost)
{
    k->edges[k->n_edges++] = (struct ap_problem_edge){a, b, cost};
}

static double weighed(const struct pricer *k, double cost)
{
    return is_forbidden(cost) ? AP_FORBIDDEN : k->weight * cost;
}

static const struct ap_problem_edge *home_edge(const struct pricer *k, int copy)
{
    return &k->m->problem->edges[k->m->copy[copy].home_edge];
}

/* What keeping each copy costs, by the strategy of its home. */
static void price_keeps(struct pricer *k, const double *before)
{
    const struct ap_memory *m = k->m;

    k->out->kept = AP_NEW_N(k->arena, m->n_copies + 1, double *);
    for (int i = 0; i < m->n_keeps; i++) {
        const struct ap_usage_keep *it = &m->keeps[i];
        const double price = span_price(before, it->lo, it->hi);
        const int n = k->m->problem->n_strategies[it->home];
        if (price <= 0)
            continue;
        double **kept = &k->out->kept[it->copy];
        if (!*kept)
            *kept = AP_NEW_N(k->arena, n, double);
        for (int h = 0; h < n; h++)
            (*kept)[h] += price * (double)it->extra[h];
    }
}

/* Keeping it costs little beside making it again, whatever its home is. */
static bool is_cheap(const struct pricer *k, int copy)
{
    const struct ap_problem_edge *e = home_edge(k, copy);

    for (int h = 0; h < k->m->problem->n_strategies[e->a]; h++) {
        const double made = weighed(k, e->cost[2 * h + 1]);
        if (!is_forbidden(made) && k->out->kept[copy][h] > memory_tuning.cheap * made)
            return false;
    }
    return true;
}

/* Which copies there are one of for each phase. */
static void find_split(struct pricer *k)
{
    struct priced_problem *out = k->out;

    out->later = AP_NEW_N(k->arena, k->m->n_copies + 1, int);
    for (int c = 0; c < k->m->n_copies; c++) {
        out->later[c] = -1;
        if (!out->kept[c])
            continue;
        if (is_cheap(k, c)) {
            out->kept[c] = NULL;
            continue;
        }
        out->later[c] = out->problem.n_nodes++;
        k->cap_edges++;
    }
}

/* ---- copies that wait for their next user in a phase ---- */

/* States: from one turn to another one, which is where the copy waits. */
static int span_state(int n, int lo, int hi)
{
    return lo * n - lo * (lo - 1) / 2 + hi - lo;
}

static int n_spans(int n)
{
    return n * (n + 1) / 2;
}

static bool is_expensive(const struct pricer *k, const struct priced_wait *w)
{
    const struct ap_problem_edge *e = home_edge(k, w->copy);
    const int n = k->m->problem->n_strategies[e->a];

    for (int h = 0; h < n; h++) {
        const double made = weighed(k, e->cost[2 * h + 1]);
        double sum = 0;
        for (int i = 0; i + 1 < w->n; i++)
            sum += w->cost[i * n + h];
        if (!is_forbidden(made) && sum > memory_tuning.cheap_wait * made)
            return true;
    }
    return false;
}

/* Users of a phase have turns one after the other. */
static bool find_turns(const struct ap_copy *c, struct priced_wait *w)
{
    int last = -1;

    w->first = c->n_turns;
    for (int u = 0; u < c->n_uses; u++) {
        const int turn = c->use[u].turn;
        if (c->use[u].later != w->later)
            continue;
        if (turn < 0)
            return false;
        w->first = turn < w->first ? turn : w->first;
        last = turn > last ? turn : last;
    }
    w->n = last - w->first + 1;
    return true;
}

/* What copies cost while they wait; [2 * copy + later], NULL for nothing. */
static void price_waits(struct pricer *k, const double *before)
{
    const struct ap_memory *m = k->m;

    k->wait = AP_NEW_N(k->arena, 2 * m->n_copies + 2, struct priced_wait *);
    for (int i = 0; i < m->n_holds; i++) {
        const struct ap_usage_hold *it = &m->holds[i];
        const double price = span_price(before, it->lo, it->hi);
        const int n = k->m->problem->n_strategies[it->home];
        struct priced_wait **w = &k->wait[2 * it->copy + it->later];
        if (price <= 0)
            continue;
        if (!*w) {
            struct priced_wait new = {.copy = it->copy, .later = it->later};
            if (!find_turns(&m->copy[it->copy], &new))
                continue;
            new.cost = AP_NEW_N(k->arena, (int64_t)n * new.n, double);
            new.over = AP_NEW_N(k->arena, (int64_t)n * new.n, double);
            *w = ap_arena_dup(k->arena, &new, sizeof new);
        }
        double *cost =
            (it->over ? (*w)->over : (*w)->cost) + (it->turn - (*w)->first) * n;
        for (int h = 0; h < n; h++)
            cost[h] += price * (double)it->extra[h];
    }
}

/* The nodes of expensive waits. */
static void find_waits(struct pricer *k)
{
    const struct ap_memory *m = k->m;
    struct priced_problem *out = k->out;

    out->wait = AP_NEW_N(k->arena, 2 * m->n_copies + 1, struct priced_wait);
    for (int i = 0; i < 2 * m->n_copies; i++) {
        struct priced_wait *w = k->wait[i];
        if (!w || out->set_of[i / 2] >= 0 || w->n > MOST_TURNS || !is_expensive(k, w))
            continue;
        w->node = out->problem.n_nodes++;
        out->wait[out->n_waits++] = *w;
        k->cap_edges += 1 + m->copy[i / 2].n_uses;
    }
}

/* ---- tensors whose copies are one node ---- */

static bool wants_set(const struct pricer *k, int copy)
{
    for (int i = 2 * copy; i < 2 * copy + 2; i++)
        if (k->wait[i] && is_expensive(k, k->wait[i]))
            return true;
    return k->out->kept[copy] && !is_cheap(k, copy);
}

static void take_prices(struct pricer *k, struct priced_set *set)
{
    for (int i = 0; i < set->n; i++) {
        set->kept[i] = k->out->kept[set->first + i];
        k->out->kept[set->first + i] = NULL;
        k->out->set_of[set->first + i] = k->out->n_sets;
        for (int j = 0; j < 2; j++) {
            const struct priced_wait *w = k->wait[2 * (set->first + i) + j];
            if (!w)
                continue;
            set->wait[2 * i + j] = w;
        }
    }
}

static void find_sets(struct pricer *k)
{
    const struct ap_copy *copy = k->m->copy;
    const int n_copies = k->m->n_copies;
    struct priced_problem *out = k->out;

    out->set = AP_NEW_N(k->arena, n_copies + 1, struct priced_set);
    out->set_of = AP_NEW_N(k->arena, n_copies + 1, int);
    for (int c = 0, n; c < n_copies; c += n) {
        struct priced_set *set = &out->set[out->n_sets];
        bool wanted = false;
        for (n = 0; c + n < n_copies && copy[c + n].tensor == copy[c].tensor; n++) {
            wanted |= wants_set(k, c + n);
            out->set_of[c + n] = -1;
        }
        if (!wanted || !priced_set_find(k->arena, k->m, c, n, &k->set_cells, set))
            continue;
        take_prices(k, set);
        set->node = out->problem.n_nodes++;
        k->cap_edges += 1 + set->n_users;
        out->n_sets++;
    }
}

static void add_wait(struct pricer *k, const struct priced_wait *w)
{
    const struct ap_problem *base = k->m->problem;
    const int home = home_edge(k, w->copy)->a, n = base->n_strategies[home];
    const int n_states = n_spans(w->n);
    const struct ap_copy *c = &k->m->copy[w->copy];
    double *cost = AP_NEW_N(k->arena, (int64_t)n * n_states, double);

    for (int h = 0; h < n; h++)
        for (int lo = 0; lo < w->n; lo++) {
            double sum = 0;
            for (int hi = lo; hi < w->n; hi++) {
                cost[h * n_states + span_state(w->n, lo, hi)] = sum;
                sum += w->cost[hi * n + h];
            }
        }
    add_edge(k, home, w->node, cost);
    for (int u = 0; u < c->n_uses; u++) {
        const struct ap_problem_edge *e = &base->edges[c->use[u].edge];
        const int n_b = base->n_strategies[e->b], turn = c->use[u].turn - w->first;
        if (c->use[u].later != w->later)
            continue;
        double *need = AP_NEW_N(k->arena, (int64_t)n_states * n_b, double);
        for (int lo = 0; lo < w->n; lo++)
            for (int hi = lo; hi < w->n; hi++)
                for (int s = 0; s < n_b && (turn < lo || turn > hi); s++)
                    if (is_forbidden(e->cost[s]))
                        need[span_state(w->n, lo, hi) * n_b + s] = AP_FORBIDDEN;
        add_edge(k, w->node, e->b, need);
    }
}

/* Between which of these users the copies of a choice wait. */
static int wait_state(const struct ap_memory *m, const struct priced_wait *w,
                      const int *choice)
{
    const struct ap_copy *c = &m->copy[w->copy];
    int lo = w->n, hi = -1;

    for (int u = 0; u < c->n_uses; u++) {
        const struct ap_problem_edge *e = &m->problem->edges[c->use[u].edge];
        const int turn = c->use[u].turn - w->first;
        if (c->use[u].later != w->later || !is_forbidden(e->cost[choice[e->b]]))
            continue;
        lo = turn < lo ? turn : lo;
        hi = turn > hi ? turn : hi;
    }
    return hi < 0 ? 0 : span_state(w->n, lo, hi);
}

/* ---- what several users ask for ---- */

static void find_mosts(struct pricer *k, const double *before)
{
    const struct ap_memory *m = k->m;
    struct priced_problem *out = k->out;

    out->most = AP_NEW_N(k->arena, m->n_maxima + 1, int);
    for (int i = 0; i < m->n_maxima; i++) {
        const struct ap_usage_max *it = &m->maxima[i];
        out->most[i] = -1;
        if (span_price(before, it->lo, it->hi) <= 0)
            continue;
        out->most[i] = out->problem.n_nodes++;
        k->cap_edges += 1 + it->n_users;
    }
}

/* No level below what a user asks for. */
static void add_most(struct pricer *k, const struct ap_usage_max *it, int node,
                     double price)
{
    const int *n = k->m->problem->n_strategies, n_z = it->n_levels;
    double *cost = AP_NEW_N(k->arena, (int64_t)n[it->home] * n_z, double);

    for (int h = 0; h < n[it->home]; h++)
        for (int z = 0; z < n_z; z++)
            cost[h * n_z + z] = price * fmin((double)it->own[h], (double)it->level[z]);
    add_edge(k, it->home, node, cost);
    for (int i = 0; i < it->n_users; i++) {
        const struct ap_usage_user *a = &it->user[i];
        double *need = AP_NEW_N(k->arena, (int64_t)n[a->var] * n_z, double);
        for (int s = 0; s < n[a->var]; s++)
            for (int z = 0; z < n_z; z++)
                need[s * n_z + z] = it->level[z] < a->bytes[s] ? AP_FORBIDDEN : 0;
        add_edge(k, a->var, node, need);
    }
}

/* ---- the tables ---- */

static void add_plain_edge(struct pricer *k, const struct ap_problem_edge *e)
{
    const struct ap_problem *p = k->m->problem;

    if (k->weight > 0) {
        add_edge(k, e->a, e->b, e->cost);
    } else if (forbids(p, e)) {
        const int n = p->n_strategies[e->a] * p->n_strategies[e->b];
        double *table = AP_NEW_N(k->arena, n, double);
        for (int i = 0; i < n; i++)
            table[i] = weighed(k, e->cost[i]);
        add_edge(k, e->a, e->b, table);
    }
}

static void add_split(struct pricer *k, int copy)
{
    const struct ap_problem_edge *e = home_edge(k, copy);
    const struct ap_copy *c = &k->m->copy[copy];
    const double *kept = k->out->kept[copy];
    const int n = k->m->problem->n_strategies[e->a], later = k->out->later[copy];
    double *first = AP_NEW_N(k->arena, n * 2, double);
    double *again = AP_NEW_N(k->arena, n * 2, double);

    for (int h = 0; h < n; h++) {
        const double made = weighed(k, e->cost[2 * h + 1]);
        const double saved = kept[h] < made ? made - kept[h] : 0;
        const double part = k->share[copy] * saved;
        first[2 * h + 1] = is_forbidden(made) ? AP_FORBIDDEN : made - (saved - part);
        again[2 * h + 1] = is_forbidden(made) ? AP_FORBIDDEN : made - part;
    }
    add_edge(k, e->a, e->b, first);
    add_edge(k, e->a, later, again);
    for (int u = 0; u < c->n_uses; u++) {
        const struct ap_problem_edge *use = &k->m->problem->edges[c->use[u].edge];
        add_edge(k, c->use[u].later ? later : use->a, use->b, use->cost);
    }
}

static void add_base_edges(struct pricer *k)
{
    const struct ap_problem *base = k->m->problem;
    const struct ap_memory *m = k->m;

    for (int e = 0; e < base->n_edges; e++) {
        const struct ap_problem_edge *edge = &base->edges[e];
        const int copy = (edge->a >= m->n_vars ? edge->a : edge->b) - m->n_vars;
        if (copy < 0 || (!k->out->kept[copy] && k->out->set_of[copy] < 0))
            add_plain_edge(k, edge);
    }
    for (int c = 0; c < m->n_copies; c++)
        if (k->out->kept[c])
            add_split(k, c);
    for (int i = 0; i < k->out->n_waits; i++)
        add_wait(k, &k->out->wait[i]);
}

static void add_costs(struct pricer *k)
{
    const struct ap_problem *base = k->m->problem;
    const int n = k->out->problem.n_nodes;

    k->cost = AP_NEW_N(k->arena, n, double *);
    k->n_strategies = AP_NEW_N(k->arena, n, int);
    for (int v = 0; v < n; v++)
        k->n_strategies[v] = v < base->n_nodes ? base->n_strategies[v] : 2;
    for (int i = 0; i < k->out->n_waits; i++)
        k->n_strategies[k->out->wait[i].node] = n_spans(k->out->wait[i].n);
    for (int i = 0; i < k->m->n_maxima; i++)
        if (k->out->most[i] >= 0)
            k->n_strategies[k->out->most[i]] = k->m->maxima[i].n_levels;
    for (int v = 0; v < n; v++) {
        k->cost[v] = AP_NEW_N(k->arena, k->n_strategies[v], double);
        for (int s = 0; v < base->n_nodes && s < base->n_strategies[v]; s++)
            k->cost[v][s] = weighed(k, base->cost[v][s]);
    }
}

static void add_set_node(struct pricer *k, const struct priced_set *set)
{
    k->n_strategies[set->node] = set->n_states;
    k->cost[set->node] = AP_NEW_N(k->arena, set->n_states, double);
}

void price_problem(struct ap_arena *arena, const struct ap_memory *m,
                   const double *before, double weight, const double *share,
                   struct priced_problem *out)
{
    struct pricer k = {
        .arena = arena, .m = m, .weight = weight, .share = share, .out = out};

    *out = (struct priced_problem){0};
    out->problem.n_nodes = m->problem->n_nodes;
    k.cap_edges = m->problem->n_edges + m->n_items + 1;
    price_keeps(&k, before);
    price_waits(&k, before);
    find_sets(&k);
    find_split(&k);
    find_waits(&k);
    find_mosts(&k, before);
    add_costs(&k);
    k.edges = AP_NEW_N(arena, k.cap_edges, struct ap_problem_edge);
    add_base_edges(&k);
    for (int i = 0; i < m->n_items; i++) {
        const struct ap_usage_item *it = &m->items[i];
        const double price = span_price(before, it->lo, it->hi);
        const int n = k.n_strategies[it->a] * it->n_b;
        if (price <= 0)
            continue;
        double *table = it->b < 0 ? k.cost[it->a] : AP_NEW_N(arena, n, double);
        for (int s = 0; s < n; s++)
            table[s] += price * (double)it->bytes[s];
        if (it->b >= 0)
            add_edge(&k, it->a, it->b, table);
    }
    for (int i = 0; i < m->n_maxima; i++)
        if (out->most[i] >= 0)
            add_most(&k, &m->maxima[i], out->most[i],
                     span_price(before, m->maxima[i].lo, m->maxima[i].hi));
    k.n_edges = priced_sets_close(arena, m, weight, k.set_cells, out, k.edges, k.n_edges);
    for (int i = 0; i < out->n_sets; i++)
        add_set_node(&k, &out->set[i]);
    out->problem.n_strategies = k.n_strategies;
    out->cost = k.cost;
    out->problem.cost = (const double *const *)k.cost;
    out->problem.edges = k.edges;
    out->problem.n_edges = k.n_edges;
}

/* ---- its choices ---- */

int *priced_start(struct ap_arena *arena, const struct ap_memory *m,
                  const struct priced_problem *priced, const int *choice)
{
    int *start = AP_NEW_N(arena, priced->problem.n_nodes, int);

    memcpy(start, choice, (size_t)(m->n_vars + m->n_copies) * sizeof *start);
    for (int c = 0; c < m->n_copies; c++) {
        int *state = &start[m->n_vars + c];
        const bool both = *state == AP_COPY_KEPT || *state == AP_COPY_AGAIN;
        if (priced->kept[c]) {
            start[priced->later[c]] = both || *state == AP_COPY_LATER;
            *state = both || *state == AP_COPY_FORWARD;
        } else {
            *state = *state != AP_COPY_ABSENT;
        }
    }
    for (int i = 0; i < priced->n_sets; i++)
        start[priced->set[i].node] = priced_set_state(&priced->set[i], choice);
    for (int i = 0; i < priced->n_waits; i++)
        start[priced->wait[i].node] = wait_state(m, &priced->wait[i], choice);
    for (int i = 0; i < m->n_maxima; i++)
        if (priced->most[i] >= 0)
            start[priced->most[i]] = usage_level(&m->maxima[i], choice);
    return start;
}

bool price_move_shares(const struct ap_memory *m, const struct priced_problem *priced,
                       const int *choice, double step, double *share)
{
    bool moved = false;

    for (int c = 0; c < m->n_copies; c++) {
        if (!priced->kept[c])
            continue;
        const bool first = choice[m->n_vars + c], again = choice[priced->later[c]];
        const double to = first == again ? share[c]
                          : first        ? fmin(share[c] + step, 1)
                                         : fmax(share[c] - step, 0);
        moved |= to != share[c];
        share[c] = to;
    }
    return moved;
}

void priced_states(const struct ap_memory *m, const struct priced_problem *priced,
                   int *choice)
{
    for (int c = 0; c < m->n_copies; c++) {
        const struct ap_problem_edge *e = &m->problem->edges[m->copy[c].home_edge];
        const int h = choice[e->a];
        const int64_t more = copy_times(m, &m->copy[c], choice, true) - 1;
        const double again = e->cost[2 * h + 1] * (double)more;
        choice[m->n_vars + c] =
            priced->kept[c] && priced->kept[c][h] > again ? AP_COPY_AGAIN : AP_COPY_KEPT;
        if (priced->set_of[c] >= 0) {
            const struct priced_set *set = &priced->set[priced->set_of[c]];
            if (set->twice[h * set->n_states + priced_set_state(set, choice)])
                choice[m->n_vars + c] = AP_COPY_AGAIN;
        }
    }
    ap_memory_settle(m, NULL, choice);
}
