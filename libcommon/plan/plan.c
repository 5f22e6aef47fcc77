/*
 * Consequences of the choices of a plan: layouts, conversions, price.
 *
 * Conversions: groups are visited in execution order and their operand slots in order; a
 * tensor's conversions hang in a list at its node, which is as short as the number of its
 * distinct targets. Linear in the operand slots, plus a sort of the conversions.
 */
#include "plan/plan.h"

#include "base/array.h"
#include "cost/alpa.h"
#include "plan/microbatch.h"
#include "plan/overlap.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int ap_nest_member(const struct ap_nest *nest, int node)
{
    int lo = 0, hi = nest->n_members - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (nest->members[mid] < node)
            lo = mid + 1;
        else
            hi = mid;
    }
    assert(nest->members[lo] == node);
    return lo;
}

static bool is_used_outside(const struct ap_graph *g, int node)
{
    int group = g->nodes[node].group;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++)
        if (g->nodes[g->users[u]].group != group)
            return true;
    return g->user_start[node] == g->user_start[node + 1]; /* a result, or dead */
}

enum ap_phase ap_plan_group_phase(const struct ap_graph *g, const struct ap_nest *nest)
{
    int same = 1;

    while (same < nest->n_members &&
           g->nodes[nest->members[same]].phase == g->nodes[nest->members[0]].phase)
        same++;
    for (int m = 0; m < nest->n_members && same < nest->n_members; m++)
        if (is_used_outside(g, nest->members[m]))
            return g->nodes[nest->members[m]].phase;
    return g->nodes[nest->members[0]].phase;
}

struct ap_layout ap_plan_node_layout(const struct ap_plan *plan, int node)
{
    int group = plan->graph->nodes[node].group;
    const struct ap_nest *nest = &plan->nests->nest[group];
    return ap_nest_value_layout(nest, plan->graph, &plan->mesh, &plan->choice[group],
                                ap_nest_member(nest, node));
}

static bool is_taken(const struct ap_graph *g, int r)
{
    return g->taken && g->taken[r];
}

/* The parameter that a result is to lie like, -1 for none. */
static int lies_like(const struct ap_graph *g, int r)
{
    int alias = g->results[r].alias;
    return !is_taken(g, r) && alias >= 0 &&
                   ap_shape_same_dims(&g->nodes[alias].shape,
                                      &g->nodes[g->results[r].node].shape)
               ? alias
               : -1;
}

struct ap_layout ap_plan_result_layout(const struct ap_plan *plan, int r)
{
    const struct ap_graph *g = plan->graph;
    int alias = lies_like(g, r);
    if (is_taken(g, r)) {
        struct ap_layout l = ap_plan_node_layout(plan, g->results[r].node);
        return ap_layout_whole(&l);
    }
    return alias < 0 ? ap_layout_replicated() : ap_plan_node_layout(plan, alias);
}

void ap_plan_results_lie(struct ap_arena *arena, struct ap_graph *g)
{
    bool *taken = AP_NEW_N(arena, g->n_results + 1, bool);

    for (int r = 0; r < g->n_results; r++)
        taken[r] = lies_like(g, r) < 0;
    g->taken = taken;
}

/* ---- conversions ---- */

/* A conversion before its path is known. */
struct wanted {
    int node, first_group, next; /* next of the same node, -1 at the end */
    enum ap_phase phase;
    bool estimate;
    struct ap_layout from, to;
};

struct want_list {
    const struct ap_plan *plan;
    const uint8_t *when;                /* per group; NULL without microbatches */
    const struct ap_plan_layouts *laid; /* NULL: they are found here */
    struct wanted *item;                /* malloc */
    int n, cap;
    int *head; /* per node: latest of its conversions, -1 */
    /* what struct ap_conversions has of them, as numbers of items */
    int *in_start, *in_conv, *result_conv;
    /* per node: its layout, once somebody asked (malloc) */
    bool *known;
    struct ap_layout *made;
};

/* A kept copy serves every phase; a regathered one the forward phase or the later ones.
 */
static bool serves(const struct ap_plan *plan, const struct wanted *w,
                   enum ap_phase phase)
{
    if (!plan->regather || !plan->regather[w->node])
        return true;
    return (w->phase == AP_FORWARD) == (phase == AP_FORWARD);
}

/* Whether a sum over microbatches is read as what each makes of it alone. */
static bool is_estimate(const struct want_list *l, int group,
                        const struct ap_layout *from, const struct ap_layout *to)
{
    const struct ap_plan *plan = l->plan;
    return plan->each && group < plan->nests->n && l->when[group] == AP_EACH &&
           ap_layout_per_microbatch(&plan->mesh, from) &&
           !ap_layout_per_microbatch(&plan->mesh, to);
}

/* Index of the conversion of node to the layout for that user, -1 if none is needed;
 * each: an estimate is wanted whatever the group. */
static int want(struct want_list *l, int node, const struct ap_layout *to, int group,
                enum ap_phase phase, bool each)
{
    const struct ap_layout *from = l->laid ? l->laid->value[node] : &l->made[node];
    if (from == to)
        return -1;
    if (!l->laid && !l->known[node]) {
        l->made[node] = ap_plan_node_layout(l->plan, node);
        l->known[node] = true;
    }
    if (ap_layout_equal(from, to))
        return -1;
    const bool estimate = is_estimate(l, group, from, to) ||
                          (each && ap_layout_per_microbatch(&l->plan->mesh, from));
    for (int i = l->head[node]; i >= 0; i = l->item[i].next)
        if (ap_layout_equal(&l->item[i].to, to) && l->item[i].estimate == estimate &&
            serves(l->plan, &l->item[i], phase))
            return i;
    AP_ROOM(l->item, l->n, l->cap);
    l->item[l->n] =
        (struct wanted){node, group, l->head[node], phase, estimate, *from, *to};
    l->head[node] = l->n;
    return l->n++;
}

/* What is passed on is not made anew for that: other stages wait for it. */
static enum ap_phase result_phase(const struct ap_plan *plan, int r)
{
    const struct ap_graph *g = plan->graph;
    const int node = g->results[r].node;

    return g->taken && g->taken[r]
               ? ap_plan_group_phase(g, &plan->nests->nest[g->nodes[node].group])
               : AP_UPDATE;
}

static void want_all(struct want_list *l, const int *order)
{
    const struct ap_plan *plan = l->plan;
    const struct ap_graph *g = plan->graph;
    for (int o = 0; o < plan->nests->n; o++) {
        int i = order[o];
        const struct ap_nest *nest = &plan->nests->nest[i];
        enum ap_phase phase =
            l->laid && l->laid->phase ? l->laid->phase[i] : ap_plan_group_phase(g, nest);
        for (int k = 0; k < nest->n_ins; k++) {
            struct ap_layout own;
            const struct ap_layout *to = l->laid ? l->laid->in[i][k] : &own;
            if (!l->laid)
                own = ap_nest_in_layout(nest, g, &plan->mesh, &plan->choice[i], k);
            l->in_conv[l->in_start[i] + k] =
                want(l, nest->ins[k].node, to, i, phase, false);
        }
    }
    for (int r = 0; r < g->n_results; r++) {
        int alias = l->laid ? lies_like(g, r) : -1;
        const struct ap_layout *to = alias < 0 ? NULL : l->laid->value[alias];
        struct ap_layout own;
        if (!to) {
            own = ap_plan_result_layout(plan, r);
            to = &own;
        }
        l->result_conv[r] =
            want(l, g->results[r].node, to, plan->nests->n, result_phase(plan, r),
                 plan->each_result && plan->each_result[r]);
    }
}

struct sort_key {
    int first, node, index; /* first: its group's place in the order */
};

static int compare_keys(const void *pa, const void *pb)
{
    const struct sort_key *a = pa, *b = pb;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Sorted order of the wanted conversions; place[i] = position of item i. */
static struct sort_key *sort_wanted(struct ap_arena *arena, const struct want_list *l,
                                    const int *order, int *place)
{
    int n_groups = l->plan->nests->n;
    struct sort_key *key = AP_NEW_N(arena, l->n, struct sort_key);
    int *turn = AP_NEW_N(arena, n_groups + 1, int);
    for (int o = 0; o < n_groups; o++)
        turn[order[o]] = o;
    turn[n_groups] = n_groups;
    for (int i = 0; i < l->n; i++)
        key[i] = (struct sort_key){turn[l->item[i].first_group], l->item[i].node, i};
    qsort(key, (size_t)l->n, sizeof(*key), compare_keys);
    for (int i = 0; i < l->n; i++)
        place[key[i].index] = i;
    return key;
}

static int no_path(const struct ap_plan *plan, const struct wanted *w, struct ap_err *err)
{
    struct ap_buf from = {0}, to = {0};
    ap_layout_print(&plan->mesh, &w->from, &from);
    ap_layout_print(&plan->mesh, &w->to, &to);
    ap_err_set(err, "node %d (%s): no way from layout %s to %s", w->node,
               plan->graph->nodes[w->node].name, from.data, to.data);
    ap_buf_free(&from);
    ap_buf_free(&to);
    return -1;
}

/* The layout in which all that was partial is whole. */
static struct ap_layout made_whole(const struct wanted *w)
{
    struct ap_layout whole = w->from;
    for (int a = 0; a < AP_MAX_AXES; a++)
        if (w->from.axis[a].kind == AP_PARTIAL && w->to.axis[a].kind != AP_PARTIAL)
            whole.axis[a] = ap_layout_replicated().axis[0];
    return whole;
}

/* Whether each microbatch's part of a sum is reduced over devices. */
static bool is_scattered(const struct ap_plan *plan, const struct wanted *w)
{
    return plan->scatters && plan->mesh.microbatch && !w->estimate &&
           w->first_group < plan->nests->n && w->from.axis[0].kind == AP_PARTIAL &&
           w->to.axis[0].kind == AP_REPLICATED;
}

/* The path by way of another layout. */
static int path_by(const struct ap_cost *cost, const struct ap_shape *shape,
                   const struct wanted *w, const struct ap_layout *by,
                   struct ap_step *room, struct ap_path *path)
{
    struct ap_step more[AP_MAX_STEPS];
    struct ap_path rest;
    if (ap_convert(cost, shape, &w->from, by, room, path))
        return -1;
    if (ap_layout_equal(by, &w->to))
        return 0;
    if (ap_convert(cost, shape, by, &w->to, more, &rest) ||
        path->n_steps + rest.n_steps > AP_MAX_STEPS)
        return -1;
    if (path->steps != room)
        memcpy(room, path->steps, (size_t)path->n_steps * sizeof *room);
    memcpy(room + path->n_steps, rest.steps, (size_t)rest.n_steps * sizeof *room);
    path->steps = room;
    path->n_steps += rest.n_steps;
    path->sec += rest.sec;
    return 0;
}

/*
 * Regathered copies, and copies of what every microbatch computes, are made once per
 * microbatch that needs them.
 */
static void make_each(const struct ap_plan *plan, const uint8_t *when,
                      struct ap_step *steps, struct ap_conversion *c)
{
    bool regather = plan->regather && plan->regather[c->node];
    if (!c->estimate &&
        (!when || c->first_group == plan->nests->n || when[c->first_group] != AP_EACH ||
         (!regather && when[plan->graph->nodes[c->node].group] != AP_EACH)))
        return;
    c->each = true;
    c->path.sec = 0;
    for (int i = 0; i < c->path.n_steps; i++) {
        struct ap_step *step = &steps[i];
        int64_t times = ap_mesh_microbatches(&plan->mesh);
        if (step->times == 1)
            step->sec *= (double)times;
        step->times = times;
        c->path.sec += step->sec;
    }
}

static void weigh(double weight, struct ap_step *steps, struct ap_path *path)
{
    for (int i = 0; i < path->n_steps; i++)
        steps[i].sec *= weight;
    path->sec *= weight;
}

/* A wanted conversion and its path, whose steps are in the arena. */
static int find_path(struct ap_arena *arena, const struct ap_plan *plan,
                     const struct ap_cost *cost, const uint8_t *when,
                     const struct wanted *w, struct ap_conversion *conv,
                     struct ap_err *err)
{
    const struct ap_shape *shape = &plan->graph->nodes[w->node].shape;
    struct ap_step room[AP_MAX_STEPS];

    conv->node = w->node;
    conv->from = w->from;
    conv->to = w->to;
    conv->phase = w->phase;
    conv->first_group = w->first_group;
    conv->each = false;
    conv->estimate = w->estimate;
    struct ap_layout by = w->to;
    if (is_scattered(plan, w))
        by.axis[0] = w->from.axis[0];
    else if (plan->whole && plan->whole[w->node])
        by = made_whole(w);
    if (path_by(cost, shape, w, &by, room, &conv->path))
        return no_path(plan, w, err);
    struct ap_step *steps =
        ap_arena_dup(arena, conv->path.steps, (size_t)conv->path.n_steps * sizeof *steps);
    conv->path.steps = steps;
    if (cost->weighting)
        weigh(cost->weighting->tensor[w->node], steps, &conv->path);
    make_each(plan, when, steps, conv);
    return 0;
}

/* All wanted conversions; the caller frees the items, the rest is the arena's. */
static struct want_list list_wanted(struct ap_arena *arena, const struct ap_plan *plan,
                                    const struct ap_plan_layouts *laid,
                                    const uint8_t *when, const int *order)
{
    int n_groups = plan->nests->n, n_nodes = plan->graph->n_nodes;
    struct want_list l = {.plan = plan, .when = when, .laid = laid};

    l.in_start = AP_NEW_N(arena, n_groups + 1, int);
    for (int i = 0; i < n_groups; i++)
        l.in_start[i + 1] = l.in_start[i] + plan->nests->nest[i].n_ins;
    l.in_conv = AP_NEW_N(arena, l.in_start[n_groups] + 1, int);
    l.result_conv = AP_NEW_N(arena, plan->graph->n_results + 1, int);
    struct ap_mark mark = ap_arena_mark(arena);
    l.head = AP_NEW_N(arena, n_nodes + 1, int);
    memset(l.head, -1, ((size_t)n_nodes + 1) * sizeof(int));
    if (!laid) {
        l.known = AP_NEW_N(arena, n_nodes + 1, bool);
        l.made = ap_xrealloc(NULL, ((size_t)n_nodes + 1) * sizeof *l.made);
    }
    want_all(&l, order);
    ap_arena_rewind(arena, mark);
    free(l.made);
    l.head = NULL, l.known = NULL, l.made = NULL;
    return l;
}

int ap_plan_conversions(struct ap_arena *arena, const struct ap_plan *plan,
                        const struct ap_cost *cost, struct ap_conversions *out,
                        struct ap_err *err)
{
    return ap_plan_conversions_laid(arena, plan, NULL, cost, out, err);
}

int ap_plan_conversions_laid(struct ap_arena *arena, const struct ap_plan *plan,
                             const struct ap_plan_layouts *laid,
                             const struct ap_cost *cost, struct ap_conversions *out,
                             struct ap_err *err)
{
    int n_results = plan->graph->n_results, rc = 0;
    struct ap_arena scratch = {0};
    uint8_t *when = ap_plan_when(&scratch, plan);
    const int *order = ap_plan_order(&scratch, plan, when);
    struct want_list l = list_wanted(arena, plan, laid, when, order);

    *out = (struct ap_conversions){l.n, AP_NEW_N(arena, l.n + 1, struct ap_conversion),
                                   l.in_start, l.in_conv, l.result_conv};
    int *place = AP_NEW_N(&scratch, l.n + 1, int);
    struct sort_key *key = sort_wanted(&scratch, &l, order, place);
    for (int i = 0; i < l.in_start[plan->nests->n]; i++)
        l.in_conv[i] = l.in_conv[i] < 0 ? -1 : place[l.in_conv[i]];
    for (int i = 0; i < n_results; i++)
        l.result_conv[i] = l.result_conv[i] < 0 ? -1 : place[l.result_conv[i]];
    for (int i = 0; i < l.n && rc == 0; i++)
        rc =
            find_path(arena, plan, cost, when, &l.item[key[i].index], &out->conv[i], err);
    ap_arena_free(&scratch);
    free(l.item);
    return rc;
}

/* Seconds of all conversions, in the order of ap_plan_conversions. */
static int sum_conversions(struct ap_arena *arena, const struct ap_plan *plan,
                           const struct ap_cost *cost, double *sec, struct ap_err *err)
{
    uint8_t *when = ap_plan_when(arena, plan);
    const int *order = ap_plan_order(arena, plan, when);
    struct want_list l = list_wanted(arena, plan, NULL, when, order);
    int *place = AP_NEW_N(arena, l.n + 1, int), rc = 0;
    struct sort_key *key = sort_wanted(arena, &l, order, place);
    struct ap_conversion conv;

    *sec = 0;
    for (int i = 0; i < l.n && rc == 0; i++) {
        struct ap_mark mark = ap_arena_mark(arena);
        rc = find_path(arena, plan, cost, when, &l.item[key[i].index], &conv, err);
        *sec += rc == 0 ? conv.path.sec : 0;
        ap_arena_rewind(arena, mark);
    }
    free(l.item);
    return rc;
}

/* ---- price ---- */

bool ap_plan_group_is_free(const struct ap_graph *g, const struct ap_nest *nest)
{
    for (int m = 0; m < nest->n_members; m++) {
        enum ap_op op = g->nodes[nest->members[m]].op;
        if (op != AP_OP_PARAMETER && op != AP_OP_CONSTANT && op != AP_OP_RESHAPE &&
            op != AP_OP_GET_TUPLE_ELEMENT)
            return false;
    }
    return true;
}

static double unweighted_sec(const struct ap_nest *nest, const struct ap_graph *g,
                             const struct ap_cost *cost,
                             const struct ap_choice_vec *choice);

/* One run of a loop's computation, whole on every device. */
static double comp_sec(const struct ap_nests *nests, const struct ap_cost *cost)
{
    const struct ap_choice_vec whole = AP_CHOICE_NONE;
    double sec = 0;

    for (int i = 0; i < nests->n; i++)
        sec += unweighted_sec(&nests->nest[i], nests->graph, cost, &whole);
    return sec;
}

/*
 * Seconds of a group in one round. If the group is part of a kernel (ap-fuse --kernels),
 * the kernel's memory traffic hides its operators, and the kernel is launched once.
 */
static double kernel_sec(const struct ap_nest *nest, const struct ap_cost *cost,
                         const struct ap_rounds *r, double flops, enum ap_dtype dtype,
                         double bytes)
{
    const bool hidden = nest->in_kernel && !nest->heavy;
    const struct ap_cluster *c = &cost->cluster;
    const struct ap_kernel_work w = {
        .kernel = nest->kernel,
        .dtype = dtype,
        .precise = nest->precise,
        .phase = r->phase,
        .flops = hidden ? 0 : flops,
        .bytes = bytes,
        .size = r->expert_elems > 0 ? flops / 2 / r->expert_elems : r->length,
        .width = r->width};
    double sec = ap_cost_kernel(cost, &w);

    if (nest->attention && c->attention_of_peak > 0 && cost->variant == AP_COST_DEFAULT &&
        c->flops_per_sec[dtype] > 0)
        sec = fmax(sec, flops / ap_cluster_peak(c, dtype) / c->attention_of_peak +
                            c->launch_sec);
    return nest->launched ? fmax(0, sec - cost->cluster.launch_sec) : sec;
}

/* Whether rows of a local tensor, which are along its last dimension, are not at
 * multiples of 16 bytes, as the loads of tensor cores want them. */
static bool has_uneven_rows(const struct ap_nest *nest, const struct ap_graph *g,
                            const struct ap_mesh *mesh,
                            const struct ap_choice_vec *choice, int node,
                            const struct ap_access *access)
{
    int64_t bytes = ap_dtype_size(ap_value_shape(&g->nodes[node])->dtype);

    if (access->rank < 2)
        return false;
    const struct ap_dim_factors *last = &access->dims[access->rank - 1];
    for (int i = 0; i < last->n; i++)
        bytes = ap_mul64(bytes, ap_nest_extent(nest, mesh, choice, last->factor[i]));
    return bytes % 16 != 0;
}

static bool is_uneven(const struct ap_nest *nest, const struct ap_graph *g,
                      const struct ap_mesh *mesh, const struct ap_choice_vec *choice)
{
    bool uneven = false;

    for (int i = 0; i < nest->n_ins && !uneven; i++)
        uneven = has_uneven_rows(nest, g, mesh, choice, nest->ins[i].node,
                                 &nest->ins[i].access);
    for (int m = 0; m < nest->n_members && !uneven; m++)
        uneven =
            has_uneven_rows(nest, g, mesh, choice, nest->members[m], &nest->values[m]);
    return uneven;
}

struct ap_rounds ap_plan_rounds(const struct ap_nest *nest, const struct ap_graph *g,
                                const struct ap_cost *cost,
                                const struct ap_choice_vec *choice)
{
    const int a = ap_choice_ring_axis(nest, &cost->mesh, choice);
    struct ap_rounds r = {.n = 1,
                          .phase = g->nodes[nest->members[0]].phase,
                          .uneven = cost->cluster.uneven_of_peak > 0 &&
                                    nest->kernel == AP_KERNEL_DOT &&
                                    is_uneven(nest, g, &cost->mesh, choice)};

    if (nest->experts >= 0)
        r.expert_elems = ap_nest_expert_elems(nest, g, &cost->mesh, choice);
    if (nest->attention)
        ap_nest_heads(nest, g, &cost->mesh, choice, &r.length, &r.width);
    if (a < 0)
        return r;
    r.n = cost->mesh.size[a];
    r.axes = 1u << a;
    r.messages =
        ap_nest_ring_bytes(nest, g, &cost->mesh, choice, &r.in_bytes, &r.out_bytes);
    return r;
}

double ap_plan_rounds_sec(const struct ap_nest *nest, const struct ap_cost *cost,
                          const struct ap_rounds *r, double flops, enum ap_dtype dtype,
                          double bytes)
{
    const double n = (double)r->n;
    const struct ap_cluster *c = &cost->cluster;
    double compute = kernel_sec(nest, cost, r, flops / n, dtype, bytes / n);

    if (r->uneven && cost->variant == AP_COST_DEFAULT)
        compute =
            fmax(compute, flops / n / ap_cluster_peak(c, dtype) / c->uneven_of_peak +
                              (nest->launched ? 0 : c->launch_sec));
    if (r->n == 1)
        return compute;
    const double sums = ap_cost_collective(cost, AP_OP_COLLECTIVE_PERMUTE, r->axes,
                                           (int64_t)r->out_bytes);
    const double pass = ap_cost_collective(cost, AP_OP_COLLECTIVE_PERMUTE, r->axes,
                                           (int64_t)(r->in_bytes + r->out_bytes));
    if (cost->variant != AP_COST_DEFAULT)
        return compute + (n - 1) * pass;
    return n * compute + (n - 1) * fmax(0, pass - compute) +
           (r->out_bytes > 0 ? sums : 0);
}

static double run_sec(const struct ap_nest *nest, const struct ap_graph *g,
                      const struct ap_cost *cost, const struct ap_choice_vec *choice)
{
    if (cost->variant == AP_COST_ALPA)
        return ap_alpa_penalty(nest, g, cost, choice);
    if (cost->variant != AP_COST_DEFAULT) {
        const struct ap_rounds r = ap_plan_rounds(nest, g, cost, choice);
        return ap_plan_rounds_sec(nest, cost, &r, 0, AP_F32, 0);
    }
    if (ap_plan_group_is_free(g, nest))
        return 0;
    if (nest->body) {
        double trips = ap_nest_trips(nest, g);
        return trips * comp_sec(nest->body, cost) +
               (trips + 1) * comp_sec(nest->condition, cost);
    }
    double flops, bytes;
    enum ap_dtype dtype;
    ap_nest_work(nest, g, &cost->mesh, choice, &flops, &bytes, &dtype);
    struct ap_rounds r = ap_plan_rounds(nest, g, cost, choice);
    double sec = ap_plan_rounds_sec(nest, cost, &r, flops, dtype, bytes);

    uint64_t masked = ap_nest_masked(nest, &cost->mesh, choice);
    for (int i = 0; i < nest->n_ins && i < 64; i++) {
        if (!(masked >> i & 1))
            continue;
        const struct ap_shape *shape = &g->nodes[nest->ins[i].node].shape;
        struct ap_layout l = ap_nest_in_layout(nest, g, &cost->mesh, choice, i);
        int64_t moved = ap_layout_local_bytes(&cost->mesh, shape, &l);
        sec += ap_cost_compute(cost, 0, shape->dtype, 2 * (double)moved);
    }
    return sec;
}

static double unweighted_sec(const struct ap_nest *nest, const struct ap_graph *g,
                             const struct ap_cost *cost,
                             const struct ap_choice_vec *choice)
{
    double sec = run_sec(nest, g, cost, choice);
    return ap_runs_each(nest, g, &cost->mesh, choice)
               ? (double)ap_mesh_microbatches(&cost->mesh) * sec
               : sec;
}

double ap_plan_group_sec(const struct ap_nest *nest, const struct ap_graph *g,
                         const struct ap_cost *cost, const struct ap_choice_vec *choice)
{
    double sec = unweighted_sec(nest, g, cost, choice);

    return cost->weighting ? cost->weighting->compute * sec : sec;
}

struct ap_price ap_plan_price_known(const struct ap_plan *plan,
                                    const struct ap_cost *cost,
                                    const struct ap_conversions *conv,
                                    const double *group_sec)
{
    struct ap_price price = {0};
    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        double sec = group_sec
                         ? group_sec[i]
                         : ap_plan_group_sec(nest, plan->graph, cost, &plan->choice[i]);
        price.compute_sec += sec;
        if (ap_runs_each(nest, plan->graph, &plan->mesh, &plan->choice[i]))
            price.each_compute_sec += sec;
    }
    for (int i = 0; i < conv->n; i++) {
        const struct ap_path *path = &conv->conv[i].path;
        price.comm_sec += path->sec;
        for (int k = 0; k < path->n_steps && plan->mesh.microbatch; k++)
            price.each_comm_sec += path->steps[k].times > 1 ? path->steps[k].sec : 0;
    }
    price.serial_sec = price.step_sec = price.compute_sec + price.comm_sec;
    return price;
}

struct ap_price ap_plan_price(const struct ap_plan *plan, const struct ap_cost *cost,
                              const struct ap_conversions *conv)
{
    struct ap_price price = ap_plan_price_known(plan, cost, conv, NULL);
    struct ap_arena scratch = {0};
    struct ap_overlap overlap;

    if (!ap_cost_overlaps(cost))
        return price;
    ap_plan_overlap(&scratch, plan, cost, conv, NULL, false, &overlap);
    ap_arena_free(&scratch);
    price.step_sec = fmin(overlap.step_sec, price.serial_sec);
    return price;
}

/* ---- legality ---- */

int ap_plan_idle_axis(const struct ap_nest *nest, const struct ap_mesh *mesh,
                      const struct ap_choice_vec *choice)
{
    for (int a = 0; a < mesh->n_axes; a++) {
        if (mesh->size[a] == 1 || choice->axis[a] >= 0 || (mesh->microbatch >> a & 1))
            continue;
        for (int f = 0; f < nest->n_factors; f++) {
            struct ap_choice_vec other = *choice;
            other.axis[a] = (int16_t)f;
            if (ap_choice_ok(nest, mesh, &other) &&
                ap_choice_reaches(nest, mesh, &other, f))
                return a;
        }
    }
    return -1;
}

static int check_heavy(const struct ap_plan *plan, int group, struct ap_err *err)
{
    const struct ap_nest *nest = &plan->nests->nest[group];
    int a = ap_plan_idle_axis(nest, &plan->mesh, &plan->choice[group]);
    if (a < 0)
        return 0;
    return ap_err_set(err,
                      "group %d (%s): replicated on axis %s: compute is free in this "
                      "cost model, so replicated heavy operators would be free",
                      group, plan->graph->nodes[nest->members[0]].name,
                      plan->mesh.name[a]);
}

/* What runs with every microbatch needs nothing of later ones. */
static int check_microbatches(struct ap_arena *arena, const struct ap_plan *plan,
                              struct ap_err *err)
{
    const struct ap_node *nodes = plan->graph->nodes;
    const uint8_t *when = ap_plan_when(arena, plan);

    for (int i = 0; when && i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        for (int k = 0; k < nest->n_ins && when[i] == AP_EACH; k++)
            if (!ap_plan_slot_is_ready(plan, nest, k, when))
                return ap_err_set(err,
                                  "group %d (%s): runs with every microbatch, but needs "
                                  "node %d (%s) of all microbatches",
                                  i, nodes[nest->members[0]].name, nest->ins[k].node,
                                  nodes[nest->ins[k].node].name);
    }
    return 0;
}

int ap_plan_check_choices(const struct ap_plan *plan, const struct ap_cost *cost,
                          struct ap_err *err)
{
    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        const char *name = plan->graph->nodes[nest->members[0]].name;
        if (!ap_choice_ok(nest, &plan->mesh, &plan->choice[i]))
            return ap_err_set(
                err, "group %d (%s): its operators cannot be split this way", i, name);
        if (nest->heavy && cost->variant != AP_COST_DEFAULT && !plan->recompute_heavy &&
            check_heavy(plan, i, err))
            return -1;
    }
    struct ap_arena scratch = {0};
    int rc = check_microbatches(&scratch, plan, err);
    ap_arena_free(&scratch);
    return rc;
}

int ap_plan_check(const struct ap_plan *plan, const struct ap_cost *cost,
                  struct ap_err *err)
{
    struct ap_arena scratch = {0};
    double sec;

    if (ap_plan_check_choices(plan, cost, err))
        return -1;
    int rc = sum_conversions(&scratch, plan, cost, &sec, err);
    ap_arena_free(&scratch);
    return rc;
}

int ap_plan_sec(const struct ap_plan *plan, const struct ap_cost *cost, double *sec,
                struct ap_err *err)
{
    struct ap_arena scratch = {0};
    double compute = 0, comm = 0;

    if (ap_plan_check_choices(plan, cost, err))
        return -1;
    if (ap_cost_overlaps(cost)) {
        struct ap_conversions conv;
        int bad = ap_plan_conversions(&scratch, plan, cost, &conv, err);
        if (!bad)
            *sec = ap_plan_price(plan, cost, &conv).step_sec;
        ap_arena_free(&scratch);
        return bad;
    }
    int rc = sum_conversions(&scratch, plan, cost, &comm, err);
    ap_arena_free(&scratch);
    for (int i = 0; i < plan->nests->n && rc == 0; i++)
        compute +=
            ap_plan_group_sec(&plan->nests->nest[i], plan->graph, cost, &plan->choice[i]);
    *sec = compute + comm;
    return rc;
}

void ap_plan_single(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, struct ap_plan *plan)
{
    *plan = (struct ap_plan){.graph = g, .nests = nests};
    plan->mesh.n_axes = 1;
    plan->mesh.size[0] = 1;
    plan->mesh.name[0] = "x";
    plan->choice = AP_NEW_N(arena, nests->n, struct ap_choice_vec);
    for (int i = 0; i < nests->n; i++)
        plan->choice[i] = AP_CHOICE_NONE;
}
