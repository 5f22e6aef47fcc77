/*
 * Problem: state the choice of strategies as a selection problem in which a conversion is
 * paid once per tensor and target layout (Alpa, section 4, pays it per consumer).
 * Idea: an exact encoding with copies. A variable stands for a fusion group, or for all
 * groups that are tied to choose alike. For a tensor and a layout that several variables
 * may ask for, a copy node (absent, made) stands between producer and consumers: "made"
 * costs the conversion from the producer's layout, "absent" is forbidden to a consumer
 * that needs the layout. A layout that only one variable can ask for is charged on a
 * direct edge. Cost: one table per edge; conversions are priced once per pair of distinct
 * layouts.
 */
#include "problem/statement.h"
#include "base/array.h"
#include "cost/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All that concerns one tensor while its nodes and edges are made. */
struct tensor {
    const struct copy_set *set;
    int **target; /* [use][strategy]: number of the layout that it needs */
    int n_layouts, cap_layouts;
    struct ap_layout *layouts; /* distinct targets */
    int n_homes, cap_homes;
    struct ap_layout *homes; /* distinct layouts of the producer */
    int *home_of;            /* per strategy of the home group */
    double *conv;            /* [home layout][target] */
};

void select_init(struct select_builder *b, struct ap_arena *arena,
                 const struct shard_space *space)
{
    *b = (struct select_builder){.arena = arena, .space = space};
    b->member = AP_NEW_N(arena, space->graph->n_nodes, int);
    for (int i = 0; i < space->nests->n; i++)
        for (int m = 0; m < space->nests->nest[i].n_members; m++)
            b->member[space->nests->nest[i].members[m]] = m;
}

void select_free(struct select_builder *b)
{
    free(b->n_strategies);
    free(b->group);
    free(b->cost);
    free(b->edges);
    free(b->copy);
}

static int add_node(struct select_builder *b, int group, int n, double *cost)
{
    int cap_groups = b->cap_nodes, cap_costs = b->cap_nodes;

    AP_ROOM(b->group, b->n_nodes, cap_groups);
    AP_ROOM(b->cost, b->n_nodes, cap_costs);
    AP_ROOM(b->n_strategies, b->n_nodes, b->cap_nodes);
    b->n_strategies[b->n_nodes] = n;
    b->group[b->n_nodes] = group;
    b->cost[b->n_nodes] = cost;
    return b->n_nodes++;
}

int select_var(struct select_builder *b, int group, double weight)
{
    const struct shard_space *sp = b->space;
    double *cost = AP_NEW_N(b->arena, sp->n[group], double);
    for (int s = 0; s < sp->n[group]; s++)
        cost[s] = weight * sp->sec[group][s];
    return add_node(b, group, sp->n[group], cost);
}

static void add_edge(struct select_builder *b, int x, int y, const double *cost)
{
    AP_ROOM(b->edges, b->n_edges, b->cap_edges);
    b->edges[b->n_edges++] = (struct ap_problem_edge){x, y, cost};
}

/* ---- copy sets: a tensor's producer and those who need it ---- */

void select_users_init(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *nests, struct select_users *u)
{
    *u = (struct select_users){.graph = g, .nests = nests};
    u->first_result = AP_NEW_N(arena, g->n_nodes, int);
    u->next_result = AP_NEW_N(arena, g->n_results + 1, int);
    u->seen = AP_NEW_N(arena, nests->n, int64_t);
    for (int r = g->n_results; r >= 1; r--) {
        u->next_result[r] = u->first_result[g->results[r - 1].node];
        u->first_result[g->results[r - 1].node] = r;
    }
}

void select_users_free(struct select_users *u)
{
    free(u->uses);
}

static void put_use(struct select_users *u, int group, int slot, int alias)
{
    AP_ROOM(u->uses, u->n, u->cap);
    u->uses[u->n++] = (struct select_use){group, slot, alias, -1, 0};
}

void select_users_of(struct select_users *u, int node)
{
    const struct ap_graph *g = u->graph;
    int home = g->nodes[node].group;

    u->n = 0;
    u->seen[home] = ++u->n_walks;
    for (int k = g->user_start[node]; k < g->user_start[node + 1]; k++) {
        int group = g->nodes[g->users[k]].group;
        if (u->seen[group] == u->n_walks)
            continue;
        u->seen[group] = u->n_walks;
        const struct ap_nest *nest = &u->nests->nest[group];
        for (int i = 0; i < nest->n_ins; i++)
            if (nest->ins[i].node == node)
                put_use(u, group, i, -1);
    }
    for (int r = u->first_result[node]; r; r = u->next_result[r]) {
        int alias = g->results[r - 1].alias;
        int group = alias < 0 ? -1 : g->nodes[alias].group;
        if (g->taken && g->taken[r - 1])
            put_use(u, -1, SELECT_TAKEN, -1);
        else if (group != home)
            put_use(u, group, -1, alias);
    }
}

static int intern(struct ap_layout **list, int *n, int *cap, const struct ap_layout *l)
{
    for (int i = 0; i < *n; i++)
        if (ap_layout_equal(&(*list)[i], l))
            return i;
    AP_ROOM(*list, *n, *cap);
    (*list)[*n] = *l;
    return (*n)++;
}

static void find_targets(struct select_builder *b, struct tensor *t)
{
    const struct shard_space *sp = b->space;
    const struct copy_set *set = t->set;

    t->target = AP_NEW_N(b->arena, set->n_uses + 1, int *);
    for (int u = 0; u < set->n_uses; u++) {
        const struct select_use *use = &set->uses[u];
        if (use->group < 0)
            continue;
        const struct ap_nest *nest = &sp->nests->nest[use->group];
        t->target[u] = AP_NEW_N(b->arena, sp->n[use->group], int);
        for (int s = 0; s < sp->n[use->group]; s++) {
            const struct ap_choice_vec *c = &sp->choice[use->group][s];
            struct ap_layout l =
                use->slot >= 0
                    ? ap_nest_in_layout(nest, sp->graph, &sp->cost->mesh, c, use->slot)
                    : ap_nest_value_layout(nest, sp->graph, &sp->cost->mesh, c,
                                           b->member[use->alias]);
            t->target[u][s] = intern(&t->layouts, &t->n_layouts, &t->cap_layouts, &l);
        }
    }
}

/* Factor on the price of a tensor's conversions. */
static double weight_of(const struct shard_space *sp, int node)
{
    return sp->cost->weighting ? sp->cost->weighting->tensor[node] : 1;
}

static void price_conversions(struct select_builder *b, struct tensor *t)
{
    const struct shard_space *sp = b->space;
    const struct copy_set *set = t->set;
    const struct ap_shape *shape = &sp->graph->nodes[set->node].shape;
    const double weight = weight_of(sp, set->node);

    t->home_of = AP_NEW_N(b->arena, sp->n[set->home], int);
    for (int s = 0; s < sp->n[set->home]; s++) {
        struct ap_layout l =
            ap_nest_value_layout(&sp->nests->nest[set->home], sp->graph, &sp->cost->mesh,
                                 &sp->choice[set->home][s], b->member[set->node]);
        t->home_of[s] = intern(&t->homes, &t->n_homes, &t->cap_homes, &l);
    }
    t->conv =
        ap_xrealloc(NULL, (size_t)(t->n_homes * t->n_layouts + 1) * sizeof *t->conv);
    for (int h = 0; h < t->n_homes; h++)
        for (int r = 0; r < t->n_layouts; r++) {
            double sec =
                ap_convert_sec(sp->cost, shape, &t->homes[h], &t->layouts[r]) * weight;
            t->conv[h * t->n_layouts + r] =
                isfinite(sec) ? set->weight * sec : AP_FORBIDDEN;
        }
}

/* Whether the use lies as the tensor does, where it can: Alpa follows here. */
static bool is_following(const struct select_builder *b, const struct select_use *use)
{
    const struct shard_alpa *alpa = b->space->alpa;
    if (!alpa || use->group < 0)
        return false;
    return use->slot >= 0 ? alpa->follows[use->group] == use->slot : alpa->ties;
}

/*
 * Forbids that a use that follows asks for another layout than the tensor has once its
 * sums are made, where one of its strategies has that layout.
 */
static void forbid_leaving(struct select_builder *b, const struct tensor *t, int u)
{
    const struct select_use *use = &t->set->uses[u];
    int home = t->set->home_var, n_home = b->n_strategies[home];
    int n = b->n_strategies[use->var];
    double *table = NULL;

    if (home != use->var) {
        table = AP_NEW_N(b->arena, (int64_t)n_home * n, double);
        add_edge(b, home, use->var, table);
    }
    for (int h = 0; h < n_home; h++) {
        const struct ap_layout *from = &t->homes[t->home_of[h]];
        const struct ap_layout whole = ap_layout_whole(from);
        bool any = false;
        for (int s = 0; s < n; s++) {
            const struct ap_layout *to = &t->layouts[t->target[u][s]];
            any |= ap_layout_equal(to, &whole) || ap_layout_equal(to, from);
        }
        for (int s = 0; s < n && any; s++) {
            const struct ap_layout *to = &t->layouts[t->target[u][s]];
            if (ap_layout_equal(to, &whole) || ap_layout_equal(to, from))
                continue;
            if (table)
                table[h * n + s] = AP_FORBIDDEN;
            else if (s == h) /* tied groups, one after the other */
                b->cost[home][s] = AP_FORBIDDEN;
        }
    }
}

static bool costs_nothing(const struct tensor *t, int r)
{
    for (int h = 0; h < t->n_homes; h++)
        if (t->conv[h * t->n_layouts + r] > 0)
            return false;
    return true;
}

static double made_from(const struct tensor *t, int home_strategy, int r)
{
    return t->conv[t->home_of[home_strategy] * t->n_layouts + r];
}

/* Whether the variable asks for layout r when it takes strategy s. */
static bool asks(const struct tensor *t, int var, int s, int r)
{
    for (int u = 0; u < t->set->n_uses; u++)
        if (t->set->uses[u].group >= 0 && t->set->uses[u].var == var &&
            t->target[u][s] == r)
            return true;
    return false;
}

/* Adds layout r to the direct edge's table (allocated on first use). */
static void charge_direct(struct select_builder *b, const struct tensor *t, int var,
                          int r, double **table)
{
    int n = b->n_strategies[var], home = t->set->home_var, n_home = b->n_strategies[home];

    if (home == var) { /* tied groups, one after the other */
        for (int s = 0; s < n; s++)
            if (asks(t, var, s, r))
                b->cost[var][s] += made_from(t, s, r);
        return;
    }
    if (!*table) {
        *table = AP_NEW_N(b->arena, (int64_t)n_home * n, double);
        add_edge(b, home, var, *table);
    }
    for (int s = 0; s < n; s++)
        for (int h = 0; h < n_home && asks(t, var, s, r); h++)
            (*table)[h * n + s] += made_from(t, h, r);
}

static void note_copy(struct select_builder *b, const struct tensor *t, int node, int r)
{
    AP_ROOM(b->copy, b->n_copies, b->cap_copies);
    b->copy[b->n_copies++] = (struct select_copy){node, t->set->node, t->layouts[r]};
}

static void charge_copy(struct select_builder *b, const struct tensor *t, int r)
{
    const struct copy_set *set = t->set;
    int home = set->home_var, n_home = b->n_strategies[home];
    int copy = add_node(b, -1, 2, AP_NEW_N(b->arena, 2, double));
    double *made = AP_NEW_N(b->arena, 2 * n_home, double);

    note_copy(b, t, copy, r);
    for (int h = 0; h < n_home; h++)
        made[2 * h + 1] = made_from(t, h, r);
    add_edge(b, home, copy, made);
    for (int u = 0; u < set->n_uses; u++) {
        if (set->uses[u].group < 0)
            continue;
        int var = set->uses[u].var, n = b->n_strategies[var];
        double *table = NULL;
        for (int s = 0; s < n; s++) {
            if (t->target[u][s] != r)
                continue;
            if (!table) {
                table = AP_NEW_N(b->arena, 2 * n, double);
                add_edge(b, copy, var, table);
            }
            table[s] = AP_FORBIDDEN;
        }
    }
}

/* The one variable that may ask for layout r, with its first use; -1 none, -2 several. */
static int who_asks(const struct select_builder *b, const struct tensor *t, int r,
                    int *first)
{
    int only = -1;
    for (int u = 0; u < t->set->n_uses; u++) {
        const struct select_use *use = &t->set->uses[u];
        bool needs = false;
        for (int s = 0; use->group >= 0 && s < b->n_strategies[use->var] && !needs; s++)
            needs = t->target[u][s] == r;
        if (!needs || use->var == only)
            continue;
        if (only >= 0)
            return -2;
        only = use->var;
        *first = u;
    }
    return only;
}

/*
 * A result that is taken as it lies costs what makes its sums whole. (Where somebody else
 * wants the same it is made once, and the plan costs less than is charged here.)
 */
static void charge_sums(struct select_builder *b, const struct copy_set *set)
{
    const struct shard_space *sp = b->space;
    const struct ap_nest *nest = &sp->nests->nest[set->home];
    for (int s = 0; s < sp->n[set->home]; s++) {
        struct ap_layout from =
            ap_nest_value_layout(nest, sp->graph, &sp->cost->mesh,
                                 &sp->choice[set->home][s], b->member[set->node]);
        struct ap_layout to = ap_layout_whole(&from);
        if (!ap_layout_equal(&from, &to))
            b->cost[set->home_var][s] +=
                set->weight * weight_of(sp, set->node) *
                ap_convert_sec(sp->cost, &sp->graph->nodes[set->node].shape, &from, &to);
    }
}

void statement_add_copy_set(struct select_builder *b, const struct copy_set *set)
{
    struct tensor t = {.set = set};
    double **direct = AP_NEW_N(b->arena, set->n_uses + 1, double *);
    struct ap_layout whole = ap_layout_replicated();
    bool ends_whole = false;

    find_targets(b, &t);
    for (int u = 0; u < set->n_uses; u++)
        if (set->uses[u].slot == SELECT_TAKEN)
            charge_sums(b, set);
    for (int u = 0; u < set->n_uses; u++)
        ends_whole |= set->uses[u].group < 0 && set->uses[u].slot != SELECT_TAKEN;
    if (ends_whole)
        intern(&t.layouts, &t.n_layouts, &t.cap_layouts, &whole);
    price_conversions(b, &t);
    for (int u = 0; u < set->n_uses; u++)
        if (is_following(b, &set->uses[u]))
            forbid_leaving(b, &t, u);
    for (int r = 0; r < t.n_layouts; r++) {
        int first = 0;
        if (costs_nothing(&t, r))
            continue;
        if (ends_whole && ap_layout_equal(&t.layouts[r], &whole)) {
            for (int s = 0; s < b->n_strategies[set->home_var]; s++)
                b->cost[set->home_var][s] += made_from(&t, s, r);
            continue;
        }
        int only = who_asks(b, &t, r, &first);
        if (only >= 0)
            charge_direct(b, &t, only, r, &direct[first]);
        else if (only == -2)
            charge_copy(b, &t, r);
    }
    free(t.layouts);
    free(t.homes);
    free(t.conv);
}

void select_make_copies(const struct select_builder *b, int *choice)
{
    for (int e = 0; e < b->n_edges; e++) { /* a copy is made where somebody needs it */
        const struct ap_problem_edge *edge = &b->edges[e];
        if (b->group[edge->a] < 0 && edge->cost[choice[edge->b]] >= AP_FORBIDDEN)
            choice[edge->a] = 1;
    }
}

struct ap_problem select_problem(const struct select_builder *b)
{
    return (struct ap_problem){.n_nodes = b->n_nodes,
                               .n_edges = b->n_edges,
                               .n_strategies = b->n_strategies,
                               .cost = (const double *const *)b->cost,
                               .edges = b->edges};
}
