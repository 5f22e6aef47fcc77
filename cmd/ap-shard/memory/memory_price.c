/*
 * Problem: state the selection problem at given prices of memory.
 * Idea: what is held adds its price to the tables of those who decide it. A copy that
 * users of both phases may need is made for both at the cost of making it plus what is
 * less: the price of keeping it, or making it again. That takes three tables at once;
 * instead the phases have a copy each, and what both together save is shared between
 * them: either one, alone, is too cheap by its share. Shares are moved away from where
 * they are abused from one solution to the next (a subgradient). Where keeping is cheap
 * it costs nothing and there is one copy, as ever. With microbatches, a copy that is made
 * again is made with every one of them; beyond twice that is no part of the shares, but
 * of what a choice is worth. A copy that waits for its next user in a phase has a node
 * beside it whose states are spans of its users; where that costs little there is none.
 * The value of the problem gets no larger by any of this. Cost: linear in the tables.
 */
#include <math.h>
#include <string.h>

#include "memory/memory.h"
#include "memory/memory_copy_set.h"
#include "plan/microbatch.h"

#define CHEAP      0.2  /* part of what making again costs: keeping costs nothing */
#define CHEAP_WAIT 0.05 /* the same, of waiting for the next user */
#define MOST_TURNS 6    /* users of a copy in a phase that waits are priced for */

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

/* ---- states of copies ---- */

static int state_of(const struct mem_copy *copy, const struct ap_problem *p,
                    const int *choice, bool twice)
{
    bool needs[2] = {false, false};

    for (int u = 0; u < copy->n_uses; u++) {
        const struct ap_problem_edge *e = &p->edges[copy->use[u].edge];
        needs[copy->use[u].later] |= is_forbidden(e->cost[choice[e->b]]);
    }
    if (needs[0] && needs[1])
        return twice ? MEM_TWICE : MEM_KEPT;
    return needs[0] ? MEM_FORWARD : needs[1] ? MEM_LATER : MEM_ABSENT;
}

void mem_settle_copies(const struct mem_model *m, const struct ilp_problem *ip,
                       const bool *regather, int *choice)
{
    for (int c = 0; c < m->n_copies; c++) {
        int *state = &choice[m->n_vars + c];
        bool twice =
            *state == MEM_TWICE || (regather && regather[ip->builder.copy[c].tensor]);
        *state = state_of(&m->copy[c], &ip->problem, choice, twice);
    }
}

/* How often a step makes a copy, once if it is kept. */
static int64_t times_made(const struct mem_copy *copy, const struct ap_problem *p,
                          const int *choice, bool remade)
{
    int64_t times[2] = {0, 0};
    int first[2] = {-1, -1}; /* when its first user of a phase runs */

    for (int u = 0; u < copy->n_uses; u++) {
        const struct ap_problem_edge *e = &p->edges[copy->use[u].edge];
        int *at = &first[copy->use[u].later];
        if (is_forbidden(e->cost[choice[e->b]]) && (*at < 0 || copy->use[u].when < *at))
            *at = copy->use[u].when;
    }
    for (int i = 0; i < 2; i++)
        times[i] = first[i] < 0 ? 0 : first[i] == AP_EACH && remade ? copy->n_each : 1;
    return remade ? times[0] + times[1] : times[0] || times[1];
}

/* What the copies of a settled choice cost: those of a tensor are all made again or none.
 */
static double copies_score(const struct mem_model *m, const struct ilp_problem *ip,
                           const int *choice)
{
    const struct select_copy *copy = ip->builder.copy;
    double sec = 0;
    bool remade = false;

    for (int c = 0; c < m->n_copies; c++) {
        const struct ap_problem_edge *home = &ip->problem.edges[m->copy[c].home_edge];
        if (c == 0 || copy[c].tensor != copy[c - 1].tensor) {
            remade = false;
            for (int d = c; d < m->n_copies && copy[d].tensor == copy[c].tensor; d++)
                remade |= choice[m->n_vars + d] == MEM_TWICE;
        }
        const int64_t times = times_made(&m->copy[c], &ip->problem, choice, remade);
        if (times > 0)
            sec += home->cost[choice[home->a] * 2 + 1] * (double)times;
    }
    return sec;
}

double mem_plan_score(const struct mem_model *m, const struct ilp_problem *ip,
                      const int *choice)
{
    const struct ap_problem *p = &ip->problem;
    double sec = copies_score(m, ip, choice);

    for (int v = 0; v < m->n_vars; v++)
        sec += p->cost[v][choice[v]];
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        if (edge->a < m->n_vars && edge->b < m->n_vars)
            sec +=
                edge->cost[choice[edge->a] * p->n_strategies[edge->b] + choice[edge->b]];
    }
    return sec;
}

struct ap_plan mem_plan_of(const struct mem_model *m, const struct ilp_problem *ip,
                           const int *choice)
{
    struct ap_plan plan = shard_ilp_plan(ip, choice);
    const int n_nodes = ip->space.graph->n_nodes;
    bool *twice = AP_NEW_N(ip->space.arena, n_nodes, bool);

    for (int c = 0; c < m->n_copies; c++)
        if (choice[m->n_vars + c] == MEM_TWICE)
            twice[ip->builder.copy[c].tensor] = true;
    for (int v = 0; v < n_nodes; v++)
        plan.regather[v] = twice[ip->tensor[v]];
    return plan;
}

/* ---- the problem ---- */

struct pricer {
    struct ap_arena *arena;
    const struct mem_model *m;
    const struct ilp_problem *ip;
    double weight;
    const double *share;    /* [copy]: of what is saved, the later copy's */
    struct mem_wait **wait; /* [2 * copy + later], NULL */
    struct mem_priced *out;
    bool *const *left_out; /* [var][strategy], NULL */
    double star_cells;
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
    return &k->ip->problem.edges[k->m->copy[copy].home_edge];
}

/* What keeping each copy costs, by the strategy of its home. */
static void price_keeps(struct pricer *k, const double *before)
{
    const struct mem_model *m = k->m;

    k->out->kept = AP_NEW_N(k->arena, m->n_copies + 1, double *);
    for (int i = 0; i < m->n_keeps; i++) {
        const struct mem_keep *it = &m->keeps[i];
        const double price = span_price(before, it->lo, it->hi);
        const int n = k->ip->problem.n_strategies[it->home];
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

    for (int h = 0; h < k->ip->problem.n_strategies[e->a]; h++) {
        const double made = weighed(k, e->cost[2 * h + 1]);
        if (!is_forbidden(made) && k->out->kept[copy][h] > CHEAP * made)
            return false;
    }
    return true;
}

/* Which copies there are one of for each phase. */
static void find_split(struct pricer *k)
{
    struct mem_priced *out = k->out;

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

static bool is_dear(const struct pricer *k, const struct mem_wait *w)
{
    const struct ap_problem_edge *e = home_edge(k, w->copy);
    const int n = k->ip->problem.n_strategies[e->a];

    for (int h = 0; h < n; h++) {
        const double made = weighed(k, e->cost[2 * h + 1]);
        double sum = 0;
        for (int i = 0; i + 1 < w->n; i++)
            sum += w->cost[i * n + h];
        if (!is_forbidden(made) && sum > CHEAP_WAIT * made)
            return true;
    }
    return false;
}

/* Users of a phase have turns one after the other. */
static bool find_turns(const struct mem_copy *c, struct mem_wait *w)
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
    const struct mem_model *m = k->m;

    k->wait = AP_NEW_N(k->arena, 2 * m->n_copies + 2, struct mem_wait *);
    for (int i = 0; i < m->n_holds; i++) {
        const struct mem_hold *it = &m->holds[i];
        const double price = span_price(before, it->lo, it->hi);
        const int n = k->ip->problem.n_strategies[it->home];
        struct mem_wait **w = &k->wait[2 * it->copy + it->later];
        if (price <= 0)
            continue;
        if (!*w) {
            struct mem_wait new = {.copy = it->copy, .later = it->later};
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

/* The nodes of dear waits. */
static void find_waits(struct pricer *k)
{
    const struct mem_model *m = k->m;
    struct mem_priced *out = k->out;

    out->wait = AP_NEW_N(k->arena, 2 * m->n_copies + 1, struct mem_wait);
    for (int i = 0; i < 2 * m->n_copies; i++) {
        struct mem_wait *w = k->wait[i];
        if (!w || out->star_of[i / 2] >= 0 || w->n > MOST_TURNS || !is_dear(k, w))
            continue;
        w->node = out->problem.n_nodes++;
        out->wait[out->n_waits++] = *w;
        k->cap_edges += 1 + m->copy[i / 2].n_uses;
    }
}

/* ---- tensors whose copies are one node ---- */

static bool wants_star(const struct pricer *k, int copy)
{
    for (int i = 2 * copy; i < 2 * copy + 2; i++)
        if (k->wait[i] && is_dear(k, k->wait[i]))
            return true;
    return k->out->kept[copy] && !is_cheap(k, copy);
}

static void take_prices(struct pricer *k, struct mem_copy_set *star)
{
    for (int i = 0; i < star->n; i++) {
        star->kept[i] = k->out->kept[star->first + i];
        k->out->kept[star->first + i] = NULL;
        k->out->star_of[star->first + i] = k->out->n_stars;
        for (int j = 0; j < 2; j++) {
            const struct mem_wait *w = k->wait[2 * (star->first + i) + j];
            if (!w)
                continue;
            star->wait[2 * i + j] = w;
        }
    }
}

static void find_stars(struct pricer *k, bool any)
{
    const struct select_copy *copy = k->ip->builder.copy;
    const int n_copies = k->m->n_copies;
    struct mem_priced *out = k->out;

    out->star = AP_NEW_N(k->arena, n_copies + 1, struct mem_copy_set);
    out->star_of = AP_NEW_N(k->arena, n_copies + 1, int);
    for (int c = 0, n; c < n_copies; c += n) {
        struct mem_copy_set *star = &out->star[out->n_stars];
        bool wanted = false;
        for (n = 0; c + n < n_copies && copy[c + n].tensor == copy[c].tensor; n++) {
            wanted |= any && wants_star(k, c + n);
            out->star_of[c + n] = -1;
        }
        if (!wanted ||
            !mem_copy_set_find(k->arena, k->m, c, n, k->left_out, &k->star_cells, star))
            continue;
        take_prices(k, star);
        star->node = out->problem.n_nodes++;
        k->cap_edges += 1 + star->n_users;
        out->n_stars++;
    }
}

static void add_wait(struct pricer *k, const struct mem_wait *w)
{
    const struct ap_problem *base = &k->ip->problem;
    const int home = home_edge(k, w->copy)->a, n = base->n_strategies[home];
    const int n_states = n_spans(w->n);
    const struct mem_copy *c = &k->m->copy[w->copy];
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
static int wait_state(const struct mem_model *m, const struct mem_wait *w,
                      const int *choice)
{
    const struct mem_copy *c = &m->copy[w->copy];
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
    const struct mem_model *m = k->m;
    struct mem_priced *out = k->out;

    out->most = AP_NEW_N(k->arena, m->n_mosts + 1, int);
    for (int i = 0; i < m->n_mosts; i++) {
        const struct mem_most *it = &m->mosts[i];
        out->most[i] = -1;
        if (span_price(before, it->lo, it->hi) <= 0)
            continue;
        out->most[i] = out->problem.n_nodes++;
        k->cap_edges += 1 + it->n_askers;
    }
}

/* No level below what a user asks for. */
static void add_most(struct pricer *k, const struct mem_most *it, int node, double price)
{
    const int *n = k->ip->problem.n_strategies, n_z = it->n_levels;
    double *cost = AP_NEW_N(k->arena, (int64_t)n[it->home] * n_z, double);

    for (int h = 0; h < n[it->home]; h++)
        for (int z = 0; z < n_z; z++)
            cost[h * n_z + z] = price * fmin((double)it->own[h], (double)it->level[z]);
    add_edge(k, it->home, node, cost);
    for (int i = 0; i < it->n_askers; i++) {
        const struct mem_asker *a = &it->asker[i];
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
    const struct ap_problem *p = &k->ip->problem;

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
    const struct mem_copy *c = &k->m->copy[copy];
    const double *kept = k->out->kept[copy];
    const int n = k->ip->problem.n_strategies[e->a], later = k->out->later[copy];
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
        const struct ap_problem_edge *use = &k->ip->problem.edges[c->use[u].edge];
        add_edge(k, c->use[u].later ? later : use->a, use->b, use->cost);
    }
}

static void add_base_edges(struct pricer *k)
{
    const struct ap_problem *base = &k->ip->problem;
    const struct mem_model *m = k->m;

    for (int e = 0; e < base->n_edges; e++) {
        const struct ap_problem_edge *edge = &base->edges[e];
        const int copy = (edge->a >= m->n_vars ? edge->a : edge->b) - m->n_vars;
        if (copy < 0 || (!k->out->kept[copy] && k->out->star_of[copy] < 0))
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
    const struct ap_problem *base = &k->ip->problem;
    const int n = k->out->problem.n_nodes;

    k->cost = AP_NEW_N(k->arena, n, double *);
    k->n_strategies = AP_NEW_N(k->arena, n, int);
    for (int v = 0; v < n; v++)
        k->n_strategies[v] = v < base->n_nodes ? base->n_strategies[v] : 2;
    for (int i = 0; i < k->out->n_waits; i++)
        k->n_strategies[k->out->wait[i].node] = n_spans(k->out->wait[i].n);
    for (int i = 0; i < k->m->n_mosts; i++)
        if (k->out->most[i] >= 0)
            k->n_strategies[k->out->most[i]] = k->m->mosts[i].n_levels;
    for (int v = 0; v < n; v++) {
        k->cost[v] = AP_NEW_N(k->arena, k->n_strategies[v], double);
        for (int s = 0; v < base->n_nodes && s < base->n_strategies[v]; s++)
            k->cost[v][s] =
                v < k->m->n_vars && k->left_out && k->left_out[v] && k->left_out[v][s]
                    ? AP_FORBIDDEN
                    : weighed(k, base->cost[v][s]);
    }
}

static void add_star_node(struct pricer *k, const struct mem_copy_set *star)
{
    k->n_strategies[star->node] = star->n_states;
    k->cost[star->node] = AP_NEW_N(k->arena, star->n_states, double);
}

void mem_price_problem(struct ap_arena *arena, const struct mem_model *m,
                       const struct ilp_problem *ip, const double *before, double weight,
                       const double *share, bool *const *left_out, bool stars,
                       struct mem_priced *out)
{
    struct pricer k = {.arena = arena,
                       .m = m,
                       .ip = ip,
                       .weight = weight,
                       .share = share,
                       .left_out = left_out,
                       .out = out};

    *out = (struct mem_priced){0};
    out->problem.n_nodes = ip->problem.n_nodes;
    k.cap_edges = ip->problem.n_edges + m->n_items + 1;
    price_keeps(&k, before);
    price_waits(&k, before);
    find_stars(&k, stars);
    find_split(&k);
    find_waits(&k);
    find_mosts(&k, before);
    add_costs(&k);
    k.edges = AP_NEW_N(arena, k.cap_edges, struct ap_problem_edge);
    add_base_edges(&k);
    for (int i = 0; i < m->n_items; i++) {
        const struct mem_item *it = &m->items[i];
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
    for (int i = 0; i < m->n_mosts; i++)
        if (out->most[i] >= 0)
            add_most(&k, &m->mosts[i], out->most[i],
                     span_price(before, m->mosts[i].lo, m->mosts[i].hi));
    k.n_edges = mem_copy_sets_close(arena, m, weight, k.star_cells, out->star,
                                    out->n_stars, k.edges, k.n_edges);
    for (int i = 0; i < out->n_stars; i++)
        add_star_node(&k, &out->star[i]);
    out->problem.n_strategies = k.n_strategies;
    out->problem.cost = (const double *const *)k.cost;
    out->problem.edges = k.edges;
    out->problem.n_edges = k.n_edges;
}

/* ---- its choices ---- */

int *mem_priced_start(struct ap_arena *arena, const struct mem_model *m,
                      const struct mem_priced *priced, const int *choice)
{
    int *start = AP_NEW_N(arena, priced->problem.n_nodes, int);

    memcpy(start, choice, (size_t)(m->n_vars + m->n_copies) * sizeof *start);
    for (int c = 0; c < m->n_copies; c++) {
        int *state = &start[m->n_vars + c];
        const bool both = *state == MEM_KEPT || *state == MEM_TWICE;
        if (priced->kept[c]) {
            start[priced->later[c]] = both || *state == MEM_LATER;
            *state = both || *state == MEM_FORWARD;
        } else {
            *state = *state != MEM_ABSENT;
        }
    }
    for (int i = 0; i < priced->n_stars; i++)
        start[priced->star[i].node] = mem_copy_set_state(&priced->star[i], choice);
    for (int i = 0; i < priced->n_waits; i++)
        start[priced->wait[i].node] = wait_state(m, &priced->wait[i], choice);
    for (int i = 0; i < m->n_mosts; i++)
        if (priced->most[i] >= 0)
            start[priced->most[i]] = mem_most_level(&m->mosts[i], choice);
    return start;
}

bool mem_move_shares(const struct mem_model *m, const struct mem_priced *priced,
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

void mem_priced_states(const struct mem_model *m, const struct ilp_problem *ip,
                       const struct mem_priced *priced, int *choice)
{
    for (int c = 0; c < m->n_copies; c++) {
        const struct ap_problem_edge *e = &ip->problem.edges[m->copy[c].home_edge];
        const int h = choice[e->a];
        const int64_t more = times_made(&m->copy[c], &ip->problem, choice, true) - 1;
        const double again = e->cost[2 * h + 1] * (double)more;
        choice[m->n_vars + c] =
            priced->kept[c] && priced->kept[c][h] > again ? MEM_TWICE : MEM_KEPT;
        if (priced->star_of[c] >= 0) {
            const struct mem_copy_set *star = &priced->star[priced->star_of[c]];
            if (star->twice[h * star->n_states + mem_copy_set_state(star, choice)])
                choice[m->n_vars + c] = MEM_TWICE;
        }
    }
    mem_settle_copies(m, ip, NULL, choice);
}
