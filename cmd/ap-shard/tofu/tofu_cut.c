/*
 * Problem: halve a train step once: a scheme for every tensor (cut at a place, or whole
 * on both halves) and a request for every operator so that least is moved.
 *
 * Idea: the cost of an operator is a sum over its operands and results of conversions
 * between the tensor's scheme and the scheme of the request. Schemes and requests are
 * therefore variables, and the cost is a sum of tables over pairs of variables, for the
 * dynamic program. A tensor need only be cut at the places that some operator requests,
 * and only where its size divides. After the cut every tensor, and every operator's view
 * of it, is a half; the other half of the devices does the same by symmetry, so that the
 * next cut's bytes count twice as often.
 *
 * The later space (cut_only) has no whole tensors, and each is cut on its first two
 * dimensions that a contraction can be cut at; where nothing divides, a tensor stays
 * whole.
 *
 * Cost: linear in operands times requests times schemes, and the dynamic program's.
 * Source: Wang, Huang, Li, "Unifying Data, Model and Hybrid Parallelism in Deep Learning
 * via Tensor Tiling", one-cut and k-cuts tiling.
 */

#include "tofu/tofu.h"

enum { MAX_REQUESTS = AP_MAX_FACTORS + 2 };

/* A place where a class may be cut. */
struct candidate {
    int piece, rank,
        next; /* rank 0: a contraction requests it, 1: another group, 2: none */
};

/* A choice of a unit: factor of each of its groups, -1 none. */
struct request {
    int f[2];
};

struct cut {
    struct tofu_net *net;
    struct ap_plan *plan;
    int axis;
    struct ap_arena *arena;
    uint64_t *offered; /* per group: factors that divide and may be chosen */
    int *first;        /* per class: candidates, -1 */
    struct candidate *candidate;
    int n_candidates;
    bool *whole;     /* per class: may be whole */
    int *n_schemes;  /* per class */
    int **scheme;    /* per class: piece or TOFU_REP */
    int *class_var;  /* per class: variable, -1 if there is nothing to decide */
    int *n_requests; /* per unit; tied ones have none of their own */
    struct request **request;
    int *unit_var;
};

static const struct tofu_slot *anchor_of(const struct cut *c, int g)
{
    const struct tofu_group *group = &c->net->groups[g];
    return group->anchor < 0 ? NULL : &group->slot[group->anchor];
}

static int class_at(const struct cut *c, const struct tofu_slot *s)
{
    return c->net->class_of[s->node];
}

static uint64_t offer(const struct cut *c, int g)
{
    const struct ap_nest *nest = &c->net->nests->nest[g];
    struct ap_choice_vec choice = c->plan->choice[g];
    uint64_t offered = 0;

    for (int f = 0; f < nest->n_factors; f++) {
        choice.axis[c->axis] = -1;
        if (!tofu_factor_usable(nest, f) ||
            ap_nest_extent(nest, c->net->mesh, &choice, f) % 2 != 0)
            continue;
        choice.axis[c->axis] = (int16_t)f;
        if (ap_choice_ok(nest, c->net->mesh, &choice))
            offered |= (uint64_t)1 << f;
    }
    return offered;
}

/* ---- schemes ---- */

static void add_candidate(struct cut *c, int class, int piece, int rank)
{
    if (c->net->twisted[piece])
        return;
    for (int i = c->first[class]; i >= 0; i = c->candidate[i].next) {
        if (c->candidate[i].piece != piece)
            continue;
        if (rank < c->candidate[i].rank)
            c->candidate[i].rank = rank;
        return;
    }
    c->candidate[c->n_candidates] = (struct candidate){piece, rank, c->first[class]};
    c->first[class] = c->n_candidates++;
}

static void add_candidates(struct cut *c, int g)
{
    const struct ap_nest *nest = &c->net->nests->nest[g];
    const struct tofu_group *group = &c->net->groups[g];
    const struct tofu_slot *anchor = anchor_of(c, g);

    for (int i = 0; i < group->n_slots; i++) {
        const struct tofu_slot *s = &group->slot[i];
        bool tied = anchor && class_at(c, s) == class_at(c, anchor);
        for (int f = 0; f < nest->n_factors; f++)
            if (s->piece[f] >= 0 && (c->offered[g] >> f & 1) &&
                (!tied || c->net->cut_only))
                add_candidate(c, class_at(c, s), s->piece[f],
                              tied          ? 2
                              : nest->heavy ? 0
                                            : 1);
    }
}

/* Factor by which a group cuts slot s at this piece, -1. */
static int factor_for(const struct cut *c, int g, const struct tofu_slot *s, int piece)
{
    for (int f = 0; f < c->net->nests->nest[g].n_factors; f++)
        if (s->piece[f] == piece && (c->offered[g] >> f & 1))
            return f;
    return -1;
}

/* A tied group must be able to follow its tensors. */
static void drop_candidates(struct cut *c, int g)
{
    const struct tofu_slot *anchor = anchor_of(c, g);
    if (!anchor)
        return;
    for (int *i = &c->first[class_at(c, anchor)]; *i >= 0;) {
        struct candidate *x = &c->candidate[*i];
        if (factor_for(c, g, anchor, x->piece) < 0)
            *i = x->next;
        else
            i = &x->next;
    }
}

static bool comes_before(const struct cut *c, const struct candidate *a,
                         const struct candidate *b)
{
    int da = c->net->piece_dim[a->piece], db = c->net->piece_dim[b->piece];
    if (c->net->cut_only && a->rank != b->rank)
        return a->rank < b->rank;
    return da != db ? da < db : a->piece < b->piece;
}

/* Cuts by dimension, then whole. */
static void list_schemes(struct cut *c, int class)
{
    int n = 0, n_all = 0;

    for (int i = c->first[class]; i >= 0; i = c->candidate[i].next)
        n_all++;
    int *scheme = AP_NEW_N(c->arena, n_all + 1, int);
    const struct candidate **sorted =
        AP_NEW_N(c->arena, n_all + 1, const struct candidate *);
    for (int i = c->first[class]; i >= 0; i = c->candidate[i].next) {
        int k = n++;
        for (; k > 0 && comes_before(c, &c->candidate[i], sorted[k - 1]); k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = &c->candidate[i];
    }
    for (int i = 0; i < n; i++)
        scheme[i] = sorted[i]->piece;
    if (c->net->cut_only && n > 2)
        n = 2;
    bool fixed = c->net->fixed && c->net->fixed[class];
    if (fixed) { /* its rows, where they can be cut */
        int k = 0;
        while (k < n && c->net->piece_dim[scheme[k]] != 0)
            k++;
        fixed = k < n;
        scheme[0] = fixed ? scheme[k] : scheme[0];
        n = fixed ? 1 : n;
    }
    if (n == 0 || (c->whole[class] && !fixed))
        scheme[n++] = TOFU_REP;
    c->n_schemes[class] = n;
    c->scheme[class] = scheme;
}

static void find_schemes(struct cut *c)
{
    const struct tofu_net *net = c->net;
    int n_nodes = net->graph->n_nodes, n = 0;

    for (int g = 0; g < net->nests->n; g++) {
        n += net->groups[g].n_slots * net->nests->nest[g].n_factors;
        c->offered[g] = offer(c, g);
    }
    c->candidate = AP_NEW_N(c->arena, n, struct candidate);
    for (int v = 0; v < n_nodes; v++) {
        c->first[v] = -1;
        c->whole[v] = !net->cut_only;
    }
    for (int g = 0; g < net->nests->n; g++) {
        const struct ap_nest *nest = &net->nests->nest[g];
        add_candidates(c, g);
        if (nest->n_ins == 0 && net->graph->nodes[nest->members[0]].op != AP_OP_PARAMETER)
            for (int i = 0; i < net->groups[g].n_slots; i++)
                c->whole[class_at(c, &net->groups[g].slot[i])] = true;
    }
    for (int g = 0; g < net->nests->n; g++)
        drop_candidates(c, g);
    for (int v = 0; v < n_nodes; v++)
        if (net->class_of[v] == v)
            list_schemes(c, v);
}

/* ---- requests ---- */

static void add_request(struct cut *c, int unit, int f, int h)
{
    c->request[unit][c->n_requests[unit]++] = (struct request){{f, h}};
}

static void list_requests(struct cut *c, int unit)
{
    const struct tofu_unit *u = &c->net->units[unit];
    const struct ap_nest *nest = &c->net->nests->nest[u->group[0]];
    uint64_t first = c->offered[u->group[0]];

    c->request[unit] = AP_NEW_N(c->arena, MAX_REQUESTS, struct request);
    for (int f = 0; f < nest->n_factors; f++) {
        if (!(first >> f & 1))
            continue;
        if (u->n_groups == 1)
            add_request(c, unit, f, -1);
        else if (u->joint[f] >= 0 && (c->offered[u->group[1]] >> u->joint[f] & 1))
            add_request(c, unit, f, u->joint[f]);
    }
    if (!nest->heavy || c->n_requests[unit] == 0)
        add_request(c, unit, -1, -1);
}

/* ---- costs ---- */

static double slot_cost(const struct cut *c, const struct tofu_slot *s, int f, int scheme)
{
    const struct tofu_region *home = &c->net->home[class_at(c, s)];
    int want = f < 0 ? TOFU_REP : s->piece[f];

    return s->out ? tofu_move(s->bytes, &s->region, want, home, scheme)
                  : tofu_move(s->bytes, home, scheme, &s->region, want);
}

/* Is operand s of the second gradient converted for the first one already? */
static bool is_shared(const struct cut *c, const struct tofu_unit *u, int k,
                      const struct tofu_slot *s, const struct request *q)
{
    const struct tofu_group *first = &c->net->groups[u->group[0]];

    for (int i = 0; k == 1 && !s->out && i < first->n_slots; i++) {
        const struct tofu_slot *t = &first->slot[i];
        int ps = q->f[1] < 0 ? TOFU_REP : s->piece[q->f[1]];
        int pt = q->f[0] < 0 ? TOFU_REP : t->piece[q->f[0]];
        if (!t->out && class_at(c, t) == class_at(c, s) && pt == ps)
            return true;
    }
    return false;
}

/* The request that a tied group derives from its tensors' scheme. */
static struct request follow(const struct cut *c, int g, int scheme)
{
    int f = scheme < 0 ? -1 : factor_for(c, g, anchor_of(c, g), scheme);
    return (struct request){{f, -1}};
}

struct side { /* one who decides the request */
    int n, var;
    const struct request *request;
};

static struct side side_of(struct cut *c, int unit)
{
    const struct tofu_unit *u = &c->net->units[unit];
    const struct tofu_slot *anchor = anchor_of(c, u->group[0]);

    if (!anchor)
        return (struct side){c->n_requests[unit], c->unit_var[unit], c->request[unit]};
    int class = class_at(c, anchor), n = c->n_schemes[class];
    struct request *q = AP_NEW_N(c->arena, n, struct request);
    for (int i = 0; i < n; i++)
        q[i] = follow(c, u->group[0], c->scheme[class][i]);
    return (struct side){n, c->class_var[class], q};
}

static void add_costs(struct cut *c, struct tofu_dp *dp, const struct tofu_unit *u,
                      const struct side *side, int k, const struct tofu_slot *s)
{
    int class = class_at(c, s), n = c->n_schemes[class], var = c->class_var[class];
    double *cost = AP_NEW_N(c->arena, side->n * n, double);

    for (int q = 0; q < side->n; q++)
        for (int i = 0; i < n; i++)
            if (!is_shared(c, u, k, s, &side->request[q]))
                cost[q * n + i] =
                    slot_cost(c, s, side->request[q].f[k], c->scheme[class][i]);
    if (var >= 0 && var == side->var)
        for (int i = 0; i < n; i++)
            dp->unary[var][i] += cost[i * n + i];
    else if (var >= 0 && side->var >= 0)
        tofu_dp_add(dp, side->var, var, cost);
    else if (var >= 0)
        for (int i = 0; i < n; i++)
            dp->unary[var][i] += cost[i];
    else if (side->var >= 0)
        for (int q = 0; q < side->n; q++)
            dp->unary[side->var][q] += cost[q * n];
    else
        dp->constant += cost[0];
}

static void fill_tables(struct cut *c, struct tofu_dp *dp)
{
    for (int unit = 0; unit < c->net->n_units; unit++) {
        const struct tofu_unit *u = &c->net->units[unit];
        struct side side = side_of(c, unit);
        for (int k = 0; k < u->n_groups; k++) {
            const struct tofu_group *group = &c->net->groups[u->group[k]];
            for (int i = 0; i < group->n_slots; i++)
                add_costs(c, dp, u, &side, k, &group->slot[i]);
        }
    }
}

/*
 * Which of equally good cuts is taken decides what the next ones cost: a seed draws it,
 * by costs so small that they decide nothing else (differences are a byte at least).
 */
static void break_ties(const struct cut *c, struct tofu_dp *dp)
{
    for (int v = 0; c->net->seed && v < dp->n_vars; v++)
        for (int s = 0; s < dp->n_states[v]; s++) {
            uint64_t key[3] = {(uint64_t)c->axis, (uint64_t)v, (uint64_t)s};
            uint64_t h = ap_hash(key, sizeof key, c->net->seed);
            dp->unary[v][s] += 1e-3 * (double)(h >> 40) / (1 << 24) / dp->n_vars;
        }
}

/* ---- all together ---- */

static int number_vars(struct cut *c, int **n_states)
{
    const struct tofu_net *net = c->net;
    int n_nodes = net->graph->n_nodes, n = 0;

    *n_states = AP_NEW_N(c->arena, n_nodes + net->n_units, int);
    for (int v = 0; v < n_nodes; v++) {
        c->class_var[v] = -1;
        if (net->class_of[v] == v && c->n_schemes[v] > 1) {
            (*n_states)[n] = c->n_schemes[v];
            c->class_var[v] = n++;
        }
    }
    for (int u = 0; u < net->n_units; u++) {
        c->unit_var[u] = -1;
        if (anchor_of(c, net->units[u].group[0]))
            continue;
        list_requests(c, u);
        if (net->units[u].leader != u) {
            c->unit_var[u] = c->unit_var[net->units[u].leader];
        } else if (c->n_requests[u] > 1) {
            (*n_states)[n] = c->n_requests[u];
            c->unit_var[u] = n++;
        }
    }
    return n;
}

/* The variable of the first result: its operator's request or its scheme, -1. */
static int root_var(const struct cut *c)
{
    const struct tofu_net *net = c->net;
    int node = net->graph->n_results ? net->graph->results[0].node : 0;

    for (int u = 0; u < net->n_units; u++)
        for (int k = 0; k < net->units[u].n_groups; k++)
            if (net->units[u].group[k] == net->graph->nodes[node].group &&
                c->unit_var[u] >= 0)
                return c->unit_var[u];
    return c->class_var[net->class_of[node]];
}

static void push(struct tofu_region *r, int scheme)
{
    if (scheme >= 0)
        r->piece[r->n++] = scheme;
}

static void apply(struct cut *c, int g, int f)
{
    struct tofu_group *group = &c->net->groups[g];

    c->plan->choice[g].axis[c->axis] = (int16_t)f;
    for (int i = 0; i < group->n_slots && f >= 0; i++)
        push(&group->slot[i].region, group->slot[i].piece[f]);
}

static void apply_all(struct cut *c, const uint8_t *state)
{
    struct tofu_net *net = c->net;

    for (int u = 0; u < net->n_units; u++) {
        const struct tofu_unit *unit = &net->units[u];
        struct side side = side_of(c, u);
        const struct request *q = &side.request[side.var < 0 ? 0 : state[side.var]];
        for (int k = 0; k < unit->n_groups; k++)
            apply(c, unit->group[k], q->f[k]);
    }
    for (int v = 0; v < net->graph->n_nodes; v++)
        if (net->class_of[v] == v)
            push(&net->home[v],
                 c->scheme[v][c->class_var[v] < 0 ? 0 : state[c->class_var[v]]]);
}

/* Bytes that the chosen states move. */
static double price(struct cut *c, const uint8_t *state)
{
    double sum = 0;

    for (int unit = 0; unit < c->net->n_units; unit++) {
        const struct tofu_unit *u = &c->net->units[unit];
        struct side side = side_of(c, unit);
        const struct request *q = &side.request[side.var < 0 ? 0 : state[side.var]];
        for (int k = 0; k < u->n_groups; k++) {
            const struct tofu_group *group = &c->net->groups[u->group[k]];
            for (int i = 0; i < group->n_slots; i++) {
                const struct tofu_slot *s = &group->slot[i];
                int class = class_at(c, s), var = c->class_var[class];
                int scheme = c->scheme[class][var < 0 ? 0 : state[var]];
                if (!is_shared(c, u, k, s, q))
                    sum += slot_cost(c, s, q->f[k], scheme);
            }
        }
    }
    return sum;
}

void tofu_cut(struct tofu_net *net, struct ap_plan *plan, int axis,
              struct tofu_stats *stats)
{
    struct ap_mark mark = ap_arena_mark(net->arena);
    int n_nodes = net->graph->n_nodes, n_groups = net->nests->n, *n_states;
    struct cut c = {.net = net, .plan = plan, .axis = axis, .arena = net->arena};
    struct tofu_dp dp;

    c.offered = AP_NEW_N(c.arena, n_groups, uint64_t);
    c.first = AP_NEW_N(c.arena, n_nodes, int);
    c.whole = AP_NEW_N(c.arena, n_nodes, bool);
    c.n_schemes = AP_NEW_N(c.arena, n_nodes, int);
    c.scheme = AP_NEW_N(c.arena, n_nodes, int *);
    c.class_var = AP_NEW_N(c.arena, n_nodes, int);
    c.n_requests = AP_NEW_N(c.arena, net->n_units, int);
    c.request = AP_NEW_N(c.arena, net->n_units, struct request *);
    c.unit_var = AP_NEW_N(c.arena, net->n_units, int);
    find_schemes(&c);
    int n_vars = number_vars(&c, &n_states);
    uint8_t *state = AP_NEW_N(c.arena, n_vars, uint8_t);
    tofu_dp_init(&dp, c.arena, n_vars, n_states);
    fill_tables(&c, &dp);
    break_ties(&c, &dp);
    tofu_dp_solve(&dp, root_var(&c), state);

    stats->cut_bytes[axis] = price(&c, state);
    if (dp.largest > stats->largest)
        stats->largest = dp.largest;
    stats->n_fixed += dp.n_fixed;
    for (int v = 0; axis == 0 && v < n_vars; v++)
        stats->n_states += n_states[v];
    if (axis == 0)
        stats->n_vars = n_vars;
    apply_all(&c, state);
    ap_arena_rewind(net->arena, mark);
}
