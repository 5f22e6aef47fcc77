/*
 * Problem: weights have patterns; lay out everything between them. Idea: a group may
 * follow a split of an operand or a user, stay as data parallelism has it, or be whole on
 * the axis; weights' patterns fix the groups that they own. Walking from inputs to
 * leaves, each group takes what its operands can be brought to most cheaply (a conversion
 * for a target that somebody asked for already is free); if nothing can be, the route
 * ends there and the plan is refused. Two more walks, from the leaves back and forward
 * again, count what users pay as well, so that backward operators follow their forward
 * ones and optimizer states their weights. Cost: linear in the operand slots per route,
 * with all conversions of the region priced at most once. After Shi et al., "TAP:
 * Efficient Derivation of Tensor Parallel Plans for Large Neural Networks", arXiv
 * 2302.00247, algorithm 3; it stops at the first leaf that it reaches, here all leaves
 * and all operands count.
 */
#include "plan/route.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define MAX_CHOICES 10 /* per group; more are not followed */

/* A tensor: layouts that it may be made in and brought to. */
struct tensor {
    int node;
    int n_from, n_to, cap_from, cap_to;
    struct ap_layout *from, *to;
    double *cost; /* [from][to], NAN: not priced yet */
    /* per target: users outside; all users at the moment; those among them that are
       weights and states, which become this tensor and so may follow it */
    int *fixed, *asked, *becomes;
    int heir, heir_slot; /* member that becomes this tensor, and its slot; -1: none */
    int made;            /* at the moment: index of from */
    bool gradient;
};

struct member {
    int group;
    int n; /* choices, data parallelism's first */
    int choice[MAX_CHOICES];
    struct ap_choice_vec vec[MAX_CHOICES];
    double sec[MAX_CHOICES]; /* compute in the backward phase, else 0 */
    int n_slots, n_reads; /* slots: operands, then results that become this parameter */
    int *tensor;          /* per slot, -1: no dimensions */
    int *target;          /* [choice][slot] */
    int n_outs, *out;     /* tensors */
    int *layout;          /* [choice][out] */
    int owner, at;        /* weight that decides, position in its list; -1 */
    bool is_variable;     /* a weight or state */
    int now;              /* choice */
};

struct ap_region {
    struct ap_router *router;
    int n_members, n_tensors;
    struct member *member;
    struct tensor *tensor;
};

/* ---- building ---- */

static int *minus_ones(struct ap_arena *arena, int n)
{
    int *list = AP_NEW_N(arena, n + 1, int);
    memset(list, -1, sizeof *list * ((size_t)n + 1));
    return list;
}

struct ap_router *ap_router_new(struct ap_arena *arena, const struct ap_plan *plan,
                                const struct ap_cost *cost,
                                const struct ap_weights *weights, int axis,
                                bool no_padding)
{
    const struct ap_graph *g = plan->graph;
    struct ap_router *r = AP_NEW(arena, struct ap_router);

    *r = (struct ap_router){.arena = arena,
                            .plan = plan,
                            .cost = cost,
                            .weights = weights,
                            .axis = axis,
                            .no_padding = no_padding,
                            .local_group = minus_ones(arena, plan->nests->n),
                            .local_tensor = minus_ones(arena, g->n_nodes),
                            .next_result = minus_ones(arena, g->n_results),
                            .first_result = minus_ones(arena, g->n_nodes),
                            .first_alias = minus_ones(arena, g->n_nodes),
                            .next_alias = minus_ones(arena, g->n_results)};
    for (int i = g->n_results - 1; i >= 0; i--) {
        const struct ap_result *res = &g->results[i];
        r->next_result[i] = r->first_result[res->node];
        r->first_result[res->node] = i;
        if (res->alias < 0 ||
            !ap_shape_same_dims(&g->nodes[res->alias].shape, &g->nodes[res->node].shape))
            continue;
        r->next_alias[i] = r->first_alias[res->alias];
        r->first_alias[res->alias] = i;
    }
    return r;
}

static const struct ap_nest *nest_at(const struct ap_router *r, int group)
{
    return &r->plan->nests->nest[group];
}

/* A heavy group that is whole on an axis would be free where compute is. */
static bool heavy_ok(const struct ap_router *r, const struct ap_nest *nest,
                     const struct ap_choice_vec *vec)
{
    return !nest->heavy || r->cost->variant == AP_COST_DEFAULT ||
           r->plan->recompute_heavy || ap_plan_idle_axis(nest, &r->plan->mesh, vec) < 0;
}

static void add_choice(const struct ap_router *r, struct member *m, int choice)
{
    for (int i = 0; i < m->n; i++)
        if (m->choice[i] == choice)
            return;
    if (m->n < MAX_CHOICES &&
        ap_choice_with(r->plan, m->group, r->axis, choice, r->no_padding,
                       &m->vec[m->n]) &&
        heavy_ok(r, nest_at(r, m->group), &m->vec[m->n]))
        m->choice[m->n++] = choice;
}

static void follow_operands(struct ap_region *rg, struct member *m)
{
    const struct ap_router *r = rg->router;
    const struct ap_nest *nest = nest_at(r, m->group);

    for (int k = 0; k < nest->n_ins; k++) {
        int node = nest->ins[k].node;
        int from = r->local_group[r->plan->graph->nodes[node].group];
        if (from < 0)
            continue;
        const struct member *p = &rg->member[from];
        const struct ap_nest *made = nest_at(r, p->group);
        const struct ap_access *value = &made->values[ap_nest_member(made, node)];
        for (int c = 0; c < p->n; c++) {
            int f = ap_place_factor(nest, &nest->ins[k].access,
                                    ap_place_of(made, value, p->choice[c]));
            if (f >= 0)
                add_choice(r, m, f);
        }
    }
    for (int k = 0; k < nest->n_linear && ap_nest_only_adds(r->plan->graph, nest); k++)
        add_choice(r, m, nest->n_factors + k);
}

/* Lets the makers of this group's operands follow what it may do. */
static void lead_operands(struct ap_region *rg, const struct member *m)
{
    const struct ap_router *r = rg->router;
    const struct ap_nest *nest = nest_at(r, m->group);

    for (int k = 0; k < nest->n_ins; k++) {
        int node = nest->ins[k].node;
        int from = r->local_group[r->plan->graph->nodes[node].group];
        if (from < 0 || rg->member[from].owner >= 0)
            continue;
        struct member *p = &rg->member[from];
        const struct ap_nest *made = nest_at(r, p->group);
        for (int c = 0; c < m->n; c++) {
            int f =
                ap_place_factor(made, &made->values[ap_nest_member(made, node)],
                                ap_place_of(nest, &nest->ins[k].access, m->choice[c]));
            if (f >= 0)
                add_choice(r, p, f);
        }
    }
}

static void list_choices(struct ap_region *rg)
{
    const struct ap_router *r = rg->router;

    for (int i = 0; i < rg->n_members; i++) {
        struct member *m = &rg->member[i];
        add_choice(r, m, r->plan->choice[m->group].axis[r->axis]);
        if (m->owner >= 0) {
            const struct ap_weight *w = &r->weights->weight[m->owner];
            m->at = r->weights->at[m->group];
            for (int p = 0; p < w->n; p++)
                if (w->choice[p][m->at] != AP_CHOICE_FREE)
                    add_choice(r, m, w->choice[p][m->at]);
        }
        follow_operands(rg, m);
        add_choice(r, m, -1);
    }
    for (int i = rg->n_members - 1; i >= 0; i--)
        lead_operands(rg, &rg->member[i]);
}

static int intern(struct ap_arena *arena, struct ap_layout **list, int *n, int *cap,
                  const struct ap_layout *l)
{
    for (int i = 0; i < *n; i++)
        if (ap_layout_equal(&(*list)[i], l))
            return i;
    AP_ROOM_IN(arena, *list, *n, *cap);
    (*list)[*n] = *l;
    return (*n)++;
}

static int add_target(struct ap_region *rg, int t, const struct ap_layout *l)
{
    struct tensor *x = &rg->tensor[t];
    return intern(rg->router->arena, &x->to, &x->n_to, &x->cap_to, l);
}

static int tensor_of(struct ap_region *rg, int node)
{
    struct ap_router *r = rg->router;
    const struct ap_node *n = &r->plan->graph->nodes[node];

    if (n->shape.rank == 0)
        return -1;
    if (r->local_tensor[node] < 0) {
        r->local_tensor[node] = rg->n_tensors;
        rg->tensor[rg->n_tensors++] = (struct tensor){
            .node = node, .heir = -1, .gradient = r->weights->gradient[node]};
    }
    return r->local_tensor[node];
}

static void link_slots(struct ap_region *rg, struct member *m)
{
    struct ap_router *r = rg->router;
    const struct ap_graph *g = r->plan->graph;
    const struct ap_nest *nest = nest_at(r, m->group);
    int param = nest->members[0], k = 0;

    for (int a = r->first_alias[param]; a >= 0; a = r->next_alias[a])
        m->n_slots++;
    m->n_reads = nest->n_ins;
    m->n_slots += nest->n_ins;
    m->tensor = AP_NEW_N(r->arena, m->n_slots + 1, int);
    m->target = AP_NEW_N(r->arena, m->n * m->n_slots + 1, int);
    for (; k < nest->n_ins; k++)
        m->tensor[k] = tensor_of(rg, nest->ins[k].node);
    for (int a = r->first_alias[param]; a >= 0; a = r->next_alias[a]) {
        m->tensor[k] = tensor_of(rg, g->results[a].node);
        if (m->tensor[k] >= 0) {
            rg->tensor[m->tensor[k]].heir = (int)(m - rg->member);
            rg->tensor[m->tensor[k]].heir_slot = k;
        }
        k++;
    }
    for (int c = 0; c < m->n; c++) {
        for (k = 0; k < m->n_slots; k++) {
            if (m->tensor[k] < 0)
                continue;
            struct ap_layout l =
                k < nest->n_ins
                    ? ap_nest_in_layout(nest, g, &r->plan->mesh, &m->vec[c], k)
                    : ap_nest_value_layout(nest, g, &r->plan->mesh, &m->vec[c], 0);
            m->target[c * m->n_slots + k] = add_target(rg, m->tensor[k], &l);
        }
    }
}

static void link_outs(struct ap_region *rg, struct member *m)
{
    struct ap_router *r = rg->router;
    const struct ap_nest *nest = nest_at(r, m->group);

    m->out = AP_NEW_N(r->arena, nest->n_outs + 1, int);
    m->layout = AP_NEW_N(r->arena, m->n * nest->n_outs + 1, int);
    for (int o = 0; o < nest->n_outs; o++) {
        int t = tensor_of(rg, nest->outs[o]);
        if (t >= 0)
            m->out[m->n_outs++] = t;
    }
    for (int o = 0; o < m->n_outs; o++) {
        struct tensor *x = &rg->tensor[m->out[o]];
        int pos = ap_nest_member(nest, x->node);
        for (int c = 0; c < m->n; c++) {
            struct ap_layout l = ap_nest_value_layout(nest, r->plan->graph,
                                                      &r->plan->mesh, &m->vec[c], pos);
            m->layout[c * m->n_outs + o] =
                intern(r->arena, &x->from, &x->n_from, &x->cap_from, &l);
        }
    }
    if (r->cost->variant == AP_COST_DEFAULT &&
        ap_plan_group_phase(r->plan->graph, nest) == AP_BACKWARD)
        for (int c = 0; c < m->n; c++)
            m->sec[c] = ap_plan_group_sec(nest, r->plan->graph, r->cost, &m->vec[c]);
}

/* Targets that users outside the region have, which stay. */
struct outside {
    int n, cap;
    struct outside_target {
        int tensor, target;
    } * item; /* malloc */
};

static void add_outside(struct ap_region *rg, int t, const struct ap_layout *l,
                        struct outside *list)
{
    AP_ROOM(list->item, list->n, list->cap);
    list->item[list->n++] = (struct outside_target){t, add_target(rg, t, l)};
}

static void find_outside(struct ap_region *rg, int t, struct outside *list)
{
    struct ap_router *r = rg->router;
    const struct ap_graph *g = r->plan->graph;
    int node = rg->tensor[t].node, last = -1;

    if (r->local_group[g->nodes[node].group] < 0) {
        struct tensor *x = &rg->tensor[t];
        struct ap_layout l = ap_plan_node_layout(r->plan, node);
        intern(r->arena, &x->from, &x->n_from, &x->cap_from, &l);
    }
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int group = g->nodes[g->users[u]].group;
        if (group == last || group == g->nodes[node].group || r->local_group[group] >= 0)
            continue;
        last = group;
        const struct ap_nest *nest = nest_at(r, group);
        for (int k = 0; k < nest->n_ins; k++) {
            if (nest->ins[k].node != node)
                continue;
            struct ap_layout l =
                ap_nest_in_layout(nest, g, &r->plan->mesh, &r->plan->choice[group], k);
            add_outside(rg, t, &l, list);
        }
    }
    for (int i = r->first_result[node]; i >= 0; i = r->next_result[i]) {
        int alias = g->results[i].alias;
        if (alias >= 0 && r->local_group[g->nodes[alias].group] >= 0)
            continue;
        struct ap_layout l = ap_plan_result_layout(r->plan, i);
        add_outside(rg, t, &l, list);
    }
}

static void finish_tensors(struct ap_region *rg)
{
    struct outside list = {0};

    for (int t = 0; t < rg->n_tensors; t++)
        find_outside(rg, t, &list);
    for (int t = 0; t < rg->n_tensors; t++) {
        struct tensor *x = &rg->tensor[t];
        x->cost = AP_NEW_N(rg->router->arena, x->n_from * x->n_to + 1, double);
        x->fixed = AP_NEW_N(rg->router->arena, x->n_to + 1, int);
        x->asked = AP_NEW_N(rg->router->arena, x->n_to + 1, int);
        x->becomes = AP_NEW_N(rg->router->arena, x->n_to + 1, int);
        for (int i = 0; i < x->n_from * x->n_to; i++)
            x->cost[i] = NAN;
    }
    for (int i = 0; i < list.n; i++)
        rg->tensor[list.item[i].tensor].fixed[list.item[i].target]++;
    free(list.item);
}

struct ap_region *ap_region_new(struct ap_router *r, const int *groups, int n)
{
    struct ap_region *rg = AP_NEW(r->arena, struct ap_region);
    int n_tensors = 0;

    *rg = (struct ap_region){.router = r, .n_members = n};
    rg->member = AP_NEW_N(r->arena, n + 1, struct member);
    for (int i = 0; i < n; i++) {
        const struct ap_nest *nest = nest_at(r, groups[i]);
        const struct ap_node *first = &r->plan->graph->nodes[nest->members[0]];
        rg->member[i].group = groups[i];
        rg->member[i].owner = r->weights->owner[groups[i]];
        rg->member[i].is_variable =
            first->role == AP_ROLE_WEIGHT || first->role == AP_ROLE_STATE;
        r->local_group[groups[i]] = i;
        n_tensors += nest->n_ins + nest->n_outs;
        for (int a = r->first_alias[nest->members[0]]; a >= 0; a = r->next_alias[a])
            n_tensors++;
    }
    rg->tensor = AP_NEW_N(r->arena, n_tensors + 1, struct tensor);
    list_choices(rg);
    for (int i = 0; i < n; i++) {
        link_slots(rg, &rg->member[i]);
        link_outs(rg, &rg->member[i]);
    }
    finish_tensors(rg);
    for (int t = 0; t < rg->n_tensors; t++)
        r->local_tensor[rg->tensor[t].node] = -1;
    for (int i = 0; i < n; i++)
        r->local_group[groups[i]] = -1;
    return rg;
}

/* ---- routing ---- */

static double move_cost(const struct ap_region *rg, struct tensor *x, int from, int to)
{
    double *cell = &x->cost[from * x->n_to + to];
    if (isnan(*cell)) {
        const struct ap_router *r = rg->router;
        *cell = ap_layout_equal(&x->from[from], &x->to[to])
                    ? 0
                    : ap_convert_sec(r->cost, &r->plan->graph->nodes[x->node].shape,
                                     &x->from[from], &x->to[to]);
    }
    return *cell;
}

/* All targets that anybody asks for, out of layout `from`; without what follows it. */
static double supply_cost(const struct ap_region *rg, struct tensor *x, int from,
                          bool followers)
{
    double sum = 0;
    for (int k = 0; k < x->n_to; k++)
        if (x->asked[k] > (followers ? 0 : x->becomes[k]))
            sum += move_cost(rg, x, from, k);
    return sum;
}

/* What a weight or state pays at least if it becomes what is made in layout `from`. */
static double heir_cost(const struct ap_region *rg, struct tensor *x, int from)
{
    double best = INFINITY;

    if (x->heir < 0)
        return 0;
    const struct member *m = &rg->member[x->heir];
    for (int c = 0; c < m->n; c++) {
        if (m->owner >= 0 && c != m->now)
            continue; /* its pattern decides */
        double sum = move_cost(rg, x, from, m->target[c * m->n_slots + x->heir_slot]);
        for (int o = 0; o < m->n_outs; o++)
            sum += supply_cost(rg, &rg->tensor[m->out[o]], m->layout[c * m->n_outs + o],
                               false);
        best = fmin(best, sum);
    }
    return best;
}

static void ask(struct ap_region *rg, const struct member *m, int c, int by)
{
    for (int k = 0; k < m->n_slots; k++)
        if (m->tensor[k] >= 0) {
            struct tensor *x = &rg->tensor[m->tensor[k]];
            x->asked[m->target[c * m->n_slots + k]] += by;
            if (k >= m->n_reads)
                x->becomes[m->target[c * m->n_slots + k]] += by;
        }
}

/* What choice c adds, with the group's own needs not asked for; `users`: theirs too. */
static double choice_cost(struct ap_region *rg, const struct member *m, int c, bool users)
{
    double sum = 0;
    int n_slots = users ? m->n_slots : m->n_reads;

    for (int k = 0; k < n_slots; k++) {
        if (m->tensor[k] < 0)
            continue;
        struct tensor *x = &rg->tensor[m->tensor[k]];
        int to = m->target[c * m->n_slots + k];
        if (x->asked[to]++ == 0)
            sum += move_cost(rg, x, x->made, to);
    }
    for (int k = 0; k < n_slots; k++)
        if (m->tensor[k] >= 0)
            rg->tensor[m->tensor[k]].asked[m->target[c * m->n_slots + k]]--;
    for (int o = 0; users && o < m->n_outs; o++) {
        struct tensor *x = &rg->tensor[m->out[o]];
        int from = m->layout[c * m->n_outs + o];
        sum += supply_cost(rg, x, from, false) + heir_cost(rg, x, from);
    }
    return sum;
}

/* Position of the choice that the weight's pattern asks for: -1 none, -2 impossible. */
static int stamped(const struct ap_region *rg, const struct member *m, const int *pattern)
{
    if (m->owner < 0)
        return -1;
    int p = pattern[m->owner];
    int want = rg->router->weights->weight[m->owner].choice[p][m->at];
    if (want == AP_CHOICE_FREE)
        return -1;
    for (int c = 0; c < m->n; c++)
        if (m->choice[c] == want)
            return c;
    return -2;
}

static void set(struct ap_region *rg, struct member *m, int c)
{
    m->now = c;
    ask(rg, m, c, 1);
    for (int o = 0; o < m->n_outs; o++)
        rg->tensor[m->out[o]].made = m->layout[c * m->n_outs + o];
}

/* The cheapest choice by what operands cost; -1: none can be. The first of equals, but a
   sum rather stays partial: the sums after it may then, too, and if not it is improved.
 */
static int cheapest(struct ap_region *rg, const struct member *m)
{
    int at = -1, n_factors = nest_at(rg->router, m->group)->n_factors;
    double best = INFINITY;

    for (int c = 0; c < m->n; c++) {
        double cost = choice_cost(rg, m, c, false);
        bool partial = m->choice[c] >= n_factors && cost <= best * (1 + 1e-12);
        if (isfinite(cost) && (partial || cost < best * (1 - 1e-12))) {
            best = cost;
            at = c;
        }
    }
    return at;
}

/* From inputs to leaves by what operands cost; -1 where the route ends. */
static int walk_down(struct ap_region *rg, const int *pattern)
{
    for (int t = 0; t < rg->n_tensors; t++) {
        struct tensor *x = &rg->tensor[t];
        memcpy(x->asked, x->fixed, sizeof *x->asked * (size_t)x->n_to);
        memset(x->becomes, 0, sizeof *x->becomes * (size_t)x->n_to);
        x->made = 0;
    }
    for (int i = 0; i < rg->n_members; i++) {
        struct member *m = &rg->member[i];
        int c = stamped(rg, m, pattern);
        if (c == -1)
            c = cheapest(rg, m);
        if (c < 0 || !isfinite(choice_cost(rg, m, c, false)))
            return -1;
        set(rg, m, c);
    }
    return 0;
}

/* The cheapest choice, users counted, the first of equals; of weights and states, one
   that splits them. */
static void improve(struct ap_region *rg, struct member *m, const int *pattern)
{
    double best = INFINITY;
    int at = -1;

    if (m->n < 2 || stamped(rg, m, pattern) >= 0)
        return;
    ask(rg, m, m->now, -1);
    for (int c = 0; c < m->n; c++) {
        double cost = choice_cost(rg, m, c, true);
        bool splits = m->is_variable && at >= 0 && m->choice[at] < 0 && m->choice[c] >= 0;
        if (cost < best * (1 - 1e-12) || (splits && cost <= best)) {
            best = cost;
            at = c;
        }
    }
    set(rg, m, at >= 0 ? at : m->now);
}

int ap_region_route(struct ap_region *rg, const int *pattern, struct ap_traffic *traffic)
{
    *traffic = (struct ap_traffic){0};
    for (int i = 0; i < rg->n_members; i++) {
        const struct member *m = &rg->member[i];
        const struct ap_weights *w = rg->router->weights;
        if (m->n == 0 || (m->owner >= 0 && !w->weight[m->owner].fits[pattern[m->owner]]))
            return -1;
    }
    if (walk_down(rg, pattern))
        return -1;
    for (int i = rg->n_members - 1; i >= 0; i--)
        improve(rg, &rg->member[i], pattern);
    for (int i = 0; i < rg->n_members; i++) {
        improve(rg, &rg->member[i], pattern);
        traffic->backward += rg->member[i].sec[rg->member[i].now];
    }
    for (int t = 0; t < rg->n_tensors; t++) {
        double moved = supply_cost(rg, &rg->tensor[t], rg->tensor[t].made, true);
        if (!isfinite(moved))
            return -1;
        *(rg->tensor[t].gradient ? &traffic->gradients : &traffic->activations) += moved;
    }
    return 0;
}

double ap_traffic_exposed(const struct ap_traffic *t)
{
    return t->activations + fmax(0, t->gradients - t->backward);
}

void ap_region_write(const struct ap_region *rg, struct ap_plan *plan)
{
    for (int i = 0; i < rg->n_members; i++)
        plan->choice[rg->member[i].group] = rg->member[i].vec[rg->member[i].now];
}
