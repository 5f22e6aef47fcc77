/*
 * SPMD partitioning: the plan as the one local graph that every rank runs.
 *
 * Groups are taken in execution order. The conversions that a group is the first to need
 * come before it, one node per step, with the masks of its padded operands; then come its
 * members on local shapes, wired to the converted and masked operands. The time is linear
 * in nodes and steps.
 *
 * With microbatches, the groups that run once before the loop come first, then the groups
 * of every microbatch, then the rest. A conversion is split in three. Steps on tensors
 * that are not per microbatch run once: before the loop if their input already exists,
 * otherwise after it. Steps per microbatch run inside the loop. Accumulation happens
 * right after the producing group, or after its share of the sum over devices, if the
 * plan scatters. Sums of half precision are accumulated in f32, unless the plan has low
 * sums.
 *
 * A sum over microbatches that each of them reads as an estimate (plan/microbatch.h) is
 * multiplied instead of accumulated. Groups after the loop read the average of estimates:
 * these are accumulated right after the group that makes them, and divided after the last
 * microbatch.
 *
 * A value that a part of a larger program passes on is converted to its layout right
 * after the group that makes it; a sum over microbatches, after the last one.
 *
 * A conversion to a smaller value for the backward phase would keep the larger value in
 * memory until then. It is therefore made as soon as no other reader needs the larger
 * value (list_early), except with microbatches or turns, whose order is given, and for
 * values that are regathered or are results.
 *
 * A step that makes a value partial is left out where the value is the reducer's neutral
 * element everywhere (zeros that a sum starts from), since such a value is partial
 * already.
 */
#include "program/partition_impl.h"
#include "program/partition.h"

#include <assert.h>
#include <string.h>

#include "plan/microbatch.h"

static int add_node(struct partition *p, const struct ap_node *node, int source)
{
    struct ap_graph *local = &p->prog->local;
    assert(local->n_nodes < p->cap);
    local->nodes[local->n_nodes] = *node;
    p->source[local->n_nodes] = source;
    return local->n_nodes++;
}

/* A node that no source node is: a step or a mask, in a group of its own. */
int ap_part_add(struct partition *p, enum ap_op op, int in, int source,
                const struct ap_shape *shape, const struct ap_attrs *attrs,
                enum ap_phase phase)
{
    const struct ap_node *src = &p->plan->graph->nodes[source];
    struct ap_node node = {
        .op = op,
        .name = ap_arena_printf(p->arena, "%s.%s.%d", src->name, ap_ops[op].name,
                                p->prog->local.n_nodes),
        .n_in = 1,
        .in = ap_arena_dup(p->arena, &in, sizeof(in)),
        .shape = *shape,
        .attrs = attrs,
        .scope = src->scope,
        .phase = phase,
        .param = -1,
        .group = p->n_groups,
    };
    p->turn[p->n_groups++] = p->now;
    return add_node(p, &node, source);
}

/* ---- conversions and masks ---- */

/* Whether the step accumulates sums over microbatches. */
static bool accumulates(const struct partition *p, const struct ap_conversion *conv,
                        const struct ap_step *step)
{
    return p->when && !conv->estimate && step->op == AP_OP_ALL_REDUCE &&
           step->coll.axes == p->plan->mesh.microbatch && step->coll.red == AP_RED_SUM;
}

/*
 * Whether a group only widens what all its readers read as a sum over microbatches, which
 * is added up in the wide type anyway: it needs no values of its own.
 */
static bool only_widens(const struct partition *p, const struct ap_nest *nest)
{
    const struct ap_graph *g = p->plan->graph;
    const int id = nest->members[0];
    const struct ap_node *n = &g->nodes[id];

    if (!p->when || p->when[nest->group] != AP_EACH || nest->n_members != 1 ||
        n->op != AP_OP_CONVERT || ap_graph_is_result(g, id) ||
        n->shape.dtype != ap_dtype_of_sums(g->nodes[n->in[0]].shape.dtype))
        return false;
    for (int u = g->user_start[id]; u < g->user_start[id + 1]; u++) {
        const struct ap_nest *user = &p->plan->nests->nest[g->nodes[g->users[u]].group];
        for (int k = 0; k < user->n_ins; k++) {
            const int c = p->conv->in_conv[p->conv->in_start[user->group] + k];
            if (user->ins[k].node == id &&
                (c < 0 || p->conv->conv[c].path.n_steps == 0 ||
                 !accumulates(p, &p->conv->conv[c], &p->conv->conv[c].path.steps[0])))
                return false;
        }
    }
    return true;
}

/* The result of a step in the type of the conversion's value. */
static int narrowed(struct partition *p, int in, const struct ap_conversion *conv)
{
    struct ap_shape shape = p->prog->local.nodes[in].shape;
    const enum ap_dtype dtype = p->plan->graph->nodes[conv->node].shape.dtype;
    if (shape.dtype == dtype)
        return in;
    shape.dtype = dtype;
    return ap_part_add(p, AP_OP_CONVERT, in, conv->node, &shape, &ap_attrs_default,
                       conv->phase);
}

/* Step i of a conversion on local node cur; returns its result. */
static int add_step(struct partition *p, const struct ap_conversion *conv, int i, int cur)
{
    const struct ap_step *step = &conv->path.steps[i];
    const struct ap_graph *g = p->plan->graph;
    const struct ap_shape *global = &g->nodes[conv->node].shape;
    bool moved = false; /* something other than a slice came before: no longer neutral */

    for (int k = 0; k < i; k++)
        moved |= conv->path.steps[k].op != AP_OP_AP_SLICE &&
                 conv->path.steps[k].op != AP_OP_AP_PARTIAL;
    if (step->op == AP_OP_AP_PARTIAL && !moved &&
        ap_is_neutral(g, conv->node, step->coll.red))
        return cur;
    if (conv->estimate && step->op == AP_OP_ALL_REDUCE &&
        (step->coll.axes & p->plan->mesh.microbatch))
        return ap_part_estimate(p, conv, step, cur);
    struct ap_attrs *attrs =
        ap_arena_dup(p->arena, &ap_attrs_default, sizeof(ap_attrs_default));
    attrs->coll = step->coll;
    attrs->recomputed = p->plan->regather && p->plan->regather[conv->node] &&
                        (conv->each || conv->phase != AP_FORWARD);
    struct ap_shape shape = ap_local_shape(p->arena, &p->plan->mesh, global, &step->to);
    if (accumulates(p, conv, step) && !p->plan->low_sums)
        shape.dtype = ap_dtype_of_sums(shape.dtype);
    return ap_part_add(p, step->op, cur, conv->node, &shape, attrs, conv->phase);
}

/* The steps of a conversion up to number `end` that are not made yet. */
static void add_steps(struct partition *p, int c, int end)
{
    const struct ap_conversion *conv = &p->conv->conv[c];
    int cur = p->n_made[c] ? p->conv_node[c] : p->node_of[conv->node];

    if (p->n_made[c] == 0 && p->after)
        cur = ap_part_average_of(p, conv->node, -1);
    for (int i = p->n_made[c]; i < end; i++)
        cur = add_step(p, conv, i, i > 0 ? narrowed(p, cur, conv) : cur);
    if (end > p->n_made[c]) /* a conversion without steps is the value itself */
        p->n_made[c] = end;
    p->conv_node[c] = cur;
}

static void add_conversion(struct partition *p, int c)
{
    const struct ap_conversion *conv = &p->conv->conv[c];
    int n = conv->path.n_steps;

    if (p->n_made[c] > n)
        return;
    add_steps(p, c, n);
    if (n > 0)
        p->conv_node[c] = narrowed(p, p->conv_node[c], conv);
    p->n_made[c] = n + 1;
    ap_part_start_average(p, &p->conv_average[c], p->conv_node[c], conv->node);
}

/* ---- conversions with microbatches ---- */

/* What is passed on, and no sum over microbatches. */
static bool leaves_at_once(const struct partition *p, int c)
{
    const struct ap_conversion *conv = &p->conv->conv[c];
    const struct ap_mesh *mesh = &p->plan->mesh;
    if (conv->estimate || ap_part_is_estimate(p, conv->node))
        return p->leaves[c] && p->at_once[c];
    return p->leaves[c] && ap_layout_per_microbatch(mesh, &conv->from) ==
                               ap_layout_per_microbatch(mesh, &conv->to);
}

/* A gradient that is reduced as it comes, of a step that is not in microbatches. */
static bool is_scattered(const struct partition *p, int c)
{
    const struct ap_conversion *conv = &p->conv->conv[c];
    const struct ap_mesh *mesh = &p->plan->mesh;
    const struct ap_node *n = &p->plan->graph->nodes[conv->node];

    return !p->when && p->plan->scatters && conv->phase == AP_UPDATE &&
           n->phase == AP_BACKWARD && conv->first_group < p->plan->nests->n &&
           ap_layout_local_bytes(mesh, &n->shape, &conv->to) <
               ap_layout_local_bytes(mesh, &n->shape, &conv->from);
}

/* The steps of a conversion that run right after the group of its tensor. */
static int n_started(const struct partition *p, int c)
{
    const struct ap_conversion *conv = &p->conv->conv[c];
    const struct ap_mesh *mesh = &p->plan->mesh;
    int n = 0;
    if (leaves_at_once(p, c) || is_scattered(p, c))
        return conv->path.n_steps;
    if (conv->estimate || !ap_layout_per_microbatch(mesh, &conv->from) ||
        ap_layout_per_microbatch(mesh, &conv->to))
        return 0;
    while (n < conv->path.n_steps &&
           ap_layout_per_microbatch(mesh, &conv->path.steps[n].from))
        n++;
    return n;
}

/* Steps that a conversion for a microbatch's group makes before the first microbatch. */
static int n_before(const struct partition *p, const struct ap_conversion *conv)
{
    const struct ap_mesh *mesh = &p->plan->mesh;
    int n = 0;
    if (conv->each || ap_layout_per_microbatch(mesh, &conv->from))
        return 0;
    while (n < conv->path.n_steps &&
           !ap_layout_per_microbatch(mesh, &conv->path.steps[n].to))
        n++;
    return n;
}

static void list_started(struct partition *p)
{
    int n = p->plan->graph->n_nodes;
    p->first_started = AP_NEW_N(p->arena, n, int);
    p->next_started = AP_NEW_N(p->arena, p->conv->n + 1, int);
    for (int i = 0; i < n; i++)
        p->first_started[i] = -1;
    for (int c = p->conv->n - 1; c >= 0; c--) {
        const struct ap_conversion *conv = &p->conv->conv[c];
        if (n_started(p, c) == 0)
            continue;
        p->next_started[c] = p->first_started[conv->node];
        p->first_started[conv->node] = c;
    }
}

/* What is passed on, and made with no other group: made as soon as it can be. */
static void list_leaving(struct partition *p)
{
    const struct ap_graph *g = p->plan->graph;
    p->leaves = AP_NEW_N(p->arena, p->conv->n + 1, bool);
    p->at_once = AP_NEW_N(p->arena, p->conv->n + 1, bool);
    for (int r = 0; r < g->n_results && g->taken; r++) {
        int c = p->conv->result_conv[r];
        if (c < 0 || !g->taken[r])
            continue;
        p->leaves[c] = p->conv->conv[c].first_group == p->plan->nests->n;
        p->at_once[c] |= p->plan->each_result && p->plan->each_result[r];
    }
}

/* The rest of what is passed on of sums over microbatches. */
static void finish_leaving(struct partition *p)
{
    for (int c = 0; c < p->conv->n; c++)
        if (p->leaves[c] &&
            (p->n_made[c] > 0 || ap_part_is_estimate(p, p->conv->conv[c].node)))
            add_conversion(p, c);
}

/* Accumulates what the group made; one sum serves all conversions that start with it. */
static void start_conversions(struct partition *p, const struct ap_nest *nest)
{
    for (int o = 0; o < nest->n_outs; o++) {
        int shared = -1;
        ap_part_start_average(p, &p->average[nest->outs[o]], p->node_of[nest->outs[o]],
                              nest->outs[o]);
        for (int c = p->first_started[nest->outs[o]]; c >= 0; c = p->next_started[c]) {
            int n = n_started(p, c);
            if (leaves_at_once(p, c) || is_scattered(p, c)) {
                add_conversion(p, c);
                continue;
            }
            if (n == 1 && shared >= 0) {
                p->n_made[c] = 1;
                p->conv_node[c] = shared;
                continue;
            }
            add_steps(p, c, n);
            shared = n == 1 ? p->conv_node[c] : shared;
        }
    }
}

/* What microbatches read of values that are there, as far as it is made once. */
static void prepare_each(struct partition *p)
{
    for (int c = p->next_conv; c < p->conv->n; c++) {
        const struct ap_conversion *conv = &p->conv->conv[c];
        if (conv->first_group == p->plan->nests->n ||
            p->when[conv->first_group] != AP_EACH)
            break;
        if (p->when[p->plan->graph->nodes[conv->node].group] == AP_BEFORE)
            add_steps(p, c, n_before(p, conv));
    }
}

/* ---- conversions that give memory back ---- */

/* No more than another name for its operand's value. */
static bool is_view(const struct ap_graph *g, const struct ap_nest *nest)
{
    enum ap_op op = g->nodes[nest->members[0]].op;
    return nest->n_members == 1 && (op == AP_OP_RESHAPE || op == AP_OP_OPT_BARRIER);
}

static int conv_last(const struct ap_conversion *conv, const int *next, int c, int need)
{
    for (; c >= 0; c = next[c])
        need = conv[c].first_group > need ? conv[c].first_group : need;
    return need;
}

/*
 * The conversions of one value, from c on by first use: once the forward phase is through
 * with it and those that are left, for later phases, take less memory than the value,
 * which is needed itself up to group `need`, they are made. Returns the last group that
 * needs the value then.
 */
static int make_early(struct partition *p, const int *next, int c, int need)
{
    const struct ap_conversion *conv = p->conv->conv;
    const struct ap_mesh *mesh = &p->plan->mesh;
    const struct ap_shape *shape = &p->plan->graph->nodes[conv[c].node].shape;
    int64_t own = ap_layout_local_bytes(mesh, shape, &conv[c].from), rest = 0;

    for (int i = c; i >= 0; i = next[i])
        rest = ap_add64(rest, ap_layout_local_bytes(mesh, shape, &conv[i].to));
    for (; c >= 0 &&
           (conv[c].first_group <= need || rest >= own || conv[c].phase == AP_FORWARD);
         c = next[c]) {
        rest -= ap_layout_local_bytes(mesh, shape, &conv[c].to);
        need = conv[c].first_group > need ? conv[c].first_group : need;
    }
    const struct ap_nest *nest = p->plan->nests->nest;
    if (ap_plan_group_phase(p->plan->graph, &nest[need]) != AP_FORWARD)
        return conv_last(conv, next, c, need);
    for (int i = c; i >= 0; i = next[i]) {
        p->next_early[i] = p->first_early[need];
        p->first_early[need] = i;
    }
    return need;
}

/*
 * sole[node]: read once; of views those whose memory nobody else reads, neither their
 * operand nor what was made from that.
 */
static bool *find_sole(const struct partition *p, const int *first)
{
    const struct ap_plan *plan = p->plan;
    const struct ap_graph *g = plan->graph;
    int *n_readers = AP_NEW_N(p->arena, g->n_nodes, int);
    bool *sole = AP_NEW_N(p->arena, g->n_nodes, bool);

    for (int i = 0; i < plan->nests->n; i++)
        for (int k = 0; k < plan->nests->nest[i].n_ins; k++)
            n_readers[plan->nests->nest[i].ins[k].node]++;
    for (int r = 0; r < g->n_results; r++)
        n_readers[g->results[r].node]++;
    for (int i = 0; i < g->n_nodes; i++)
        sole[i] = n_readers[i] == 1 && g->nodes[i].op != AP_OP_PARAMETER;
    for (int i = 0; i < plan->nests->n; i++) { /* operands come first */
        const struct ap_nest *nest = &plan->nests->nest[i];
        if (!is_view(g, nest))
            continue;
        const int from = nest->ins[0].node;
        sole[nest->members[0]] = sole[from] && first[from] < 0;
    }
    return sole;
}

/* Finds the conversions that run before they are needed, and the groups after which they
 * run. */
static void list_early(struct partition *p)
{
    const struct ap_plan *plan = p->plan;
    const struct ap_graph *g = plan->graph;
    int n = plan->nests->n;
    int *need = AP_NEW_N(p->arena, g->n_nodes, int); /* last group that reads it */
    int *first = AP_NEW_N(p->arena, g->n_nodes, int);
    int *next = AP_NEW_N(p->arena, p->conv->n + 1, int);

    p->first_early = AP_NEW_N(p->arena, n, int);
    p->next_early = AP_NEW_N(p->arena, p->conv->n + 1, int);
    for (int i = 0; i < n; i++)
        p->first_early[i] = -1;
    for (int i = 0; i < g->n_nodes; i++) {
        first[i] = -1;
        need[i] = g->nodes[i].op == AP_OP_PARAMETER ? n : g->nodes[i].group;
    }
    for (int c = p->conv->n - 1; c >= 0; c--) {
        const struct ap_conversion *conv = &p->conv->conv[c];
        next[c] = first[conv->node];
        first[conv->node] = c;
        if (conv->first_group == n)
            need[conv->node] = n;
    }
    for (int r = 0; r < g->n_results; r++)
        need[g->results[r].node] = n;
    const bool *sole = find_sole(p, first);
    for (int i = n - 1; i >= 0 && !p->when && !plan->turn; i--) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        bool view = is_view(g, nest);
        int until = i; /* what it reads is needed */
        for (int o = 0; o < nest->n_outs; o++) {
            int v = nest->outs[o];
            bool fixed = (view && !sole[v]) || need[v] == n ||
                         (plan->regather && plan->regather[v]);
            if (first[v] >= 0 && !fixed)
                need[v] = make_early(p, next, first[v], need[v]);
            if (view && fixed)
                need[v] = conv_last(p->conv->conv, next, first[v], need[v]);
            until = view ? need[v] : until;
        }
        for (int k = 0; k < nest->n_ins; k++) {
            int v = nest->ins[k].node;
            if (p->conv->in_conv[p->conv->in_start[i] + k] < 0 && need[v] < until)
                need[v] = until;
        }
    }
}

/* Reducer of a padded reduced factor that the operand carries. */
static enum ap_red mask_red(const struct partition *p, const struct ap_nest *nest, int in)
{
    const struct ap_choice_vec *choice = &p->plan->choice[nest->group];
    const struct ap_access *access = &nest->ins[in].access;
    int rank = p->plan->graph->nodes[nest->ins[in].node].shape.rank;
    for (int d = 0; d < rank; d++)
        for (int i = 0; i < access->dims[d].n; i++) {
            int f = access->dims[d].factor[i];
            if (nest->factors[f].kind == AP_FACTOR_REDUCED &&
                ap_nest_is_padded(nest, &p->plan->mesh, choice, f))
                return nest->factors[f].red;
        }
    assert(!"a masked operand carries a padded reduced factor");
    return AP_RED_SUM;
}

static int add_mask(struct partition *p, const struct ap_nest *nest, int in)
{
    const struct ap_plan *plan = p->plan;
    int source = nest->ins[in].node;
    const struct ap_shape *global = &plan->graph->nodes[source].shape;
    struct ap_attrs *attrs =
        ap_arena_dup(p->arena, &ap_attrs_default, sizeof(ap_attrs_default));
    attrs->global = ap_arena_dup(p->arena, global, sizeof(*global));
    attrs->layout =
        ap_nest_in_layout(nest, plan->graph, &plan->mesh, &plan->choice[nest->group], in);
    void *fill = ap_arena_alloc(p->arena, 16);
    ap_red_neutral(mask_red(p, nest, in), global->dtype, fill);
    attrs->literal = (struct ap_literal){.splat = true, .data = fill};
    struct ap_shape shape = ap_local_shape(p->arena, &plan->mesh, global, &attrs->layout);
    return ap_part_add(p, AP_OP_AP_MASK, p->slot_node[in], source, &shape, attrs,
                       ap_plan_group_phase(plan->graph, nest));
}

/* Makes the group's operands: conversions first needed here, then masks. */
static void add_operands(struct partition *p, const struct ap_nest *nest)
{
    int g = nest->group;
    while (p->next_conv < p->conv->n && p->conv->conv[p->next_conv].first_group == g)
        add_conversion(p, p->next_conv++);
    const int *in_conv = p->conv->in_conv + p->conv->in_start[g];
    for (int i = 0; i < nest->n_ins; i++)
        p->slot_node[i] = p->after ? ap_part_average_of(p, nest->ins[i].node, in_conv[i])
                          : in_conv[i] < 0 ? p->node_of[nest->ins[i].node]
                                           : p->conv_node[in_conv[i]];
    uint64_t masked = ap_nest_masked(nest, &p->plan->mesh, &p->plan->choice[g]);
    for (int i = 0; i < nest->n_ins && i < 64; i++)
        if (masked >> i & 1)
            p->slot_node[i] = add_mask(p, nest, i);
}

/* ---- members ---- */

/* Layout of operand k of member m. */
static struct ap_layout operand_layout(const struct partition *p,
                                       const struct ap_nest *nest, int m, int k)
{
    const struct ap_plan *plan = p->plan;
    const struct ap_choice_vec *choice = &plan->choice[nest->group];
    int slot = nest->in_slot[m][k];
    if (slot >= 0)
        return ap_nest_in_layout(nest, plan->graph, &plan->mesh, choice, slot);
    int in = plan->graph->nodes[nest->members[m]].in[k];
    return ap_nest_value_layout(nest, plan->graph, &plan->mesh, choice,
                                ap_nest_member(nest, in));
}

static int add_member(struct partition *p, const struct ap_nest *nest, int m,
                      struct ap_err *err)
{
    const struct ap_plan *plan = p->plan;
    int id = nest->members[m];
    const struct ap_node *src = &plan->graph->nodes[id];
    struct ap_layout layout = ap_nest_value_layout(nest, plan->graph, &plan->mesh,
                                                   &plan->choice[nest->group], m);
    struct ap_node node = *src;
    int *in = AP_NEW_N(p->arena, src->n_in, int);
    for (int k = 0; k < src->n_in; k++) {
        int slot = nest->in_slot[m][k];
        in[k] = slot >= 0 ? p->slot_node[slot] : p->node_of[src->in[k]];
    }
    node.in = in;
    node.shape = ap_local_shape(p->arena, &plan->mesh, &src->shape, &layout);
    node.group = p->n_groups;
    node.pin = NULL;
    const int rounds = ap_part_ring_member(p, nest, m, in, &node.shape);
    if (rounds >= 0) {
        p->node_of[id] = rounds;
        return 0;
    }

    const struct ap_node *nodes = p->prog->local.nodes;
    struct ap_layout in_layout = {.axis = {{0}}};
    if (src->n_in > 0)
        in_layout = operand_layout(p, nest, m, 0);
    struct ap_localise l = {
        .mesh = &plan->mesh,
        .g = plan->graph,
        .node = src,
        .layout = &layout,
        .in_layout = src->n_in > 0 ? &in_layout : NULL,
        .in_local = src->n_in > 0 ? &nodes[in[0]].shape : NULL,
        .in1_local = src->n_in > 1 ? &nodes[in[1]].shape : NULL,
        .local = &node.shape,
    };
    if (ap_localise_attrs(p->arena, &l, &node.attrs, err))
        return -1;
    if (node.op == AP_OP_PARAMETER && ap_part_is_estimate(p, id)) {
        struct ap_attrs *attrs = ap_arena_dup(p->arena, node.attrs, sizeof *node.attrs);
        attrs->each = true;
        node.attrs = attrs;
    }
    p->node_of[id] = add_node(p, &node, id);
    return 0;
}

/* ---- the whole ---- */

/* Upper bound on local nodes: members, steps, masks. Also the most slots of a group. */
static int count_nodes(const struct ap_plan *plan, const struct ap_conversions *conv,
                       int *max_ins)
{
    int n = plan->graph->n_nodes, converts = plan->mesh.microbatch ? 2 : 0;
    const int average = 6, number = 3; /* nodes of one */
    for (int i = 0; i < conv->n; i++)
        n += conv->conv[i].path.n_steps + converts + (plan->each ? average + number : 0);
    n += plan->each ? average * plan->graph->n_nodes : 0;
    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        uint64_t masked = ap_nest_masked(nest, &plan->mesh, &plan->choice[i]);
        for (; masked; masked &= masked - 1)
            n++;
        n += ap_part_ring_nodes(plan, nest);
        if (nest->n_ins > *max_ins)
            *max_ins = nest->n_ins;
    }
    return n;
}

static void add_results(struct partition *p)
{
    const struct ap_graph *g = p->plan->graph;
    struct ap_graph *local = &p->prog->local;
    while (p->next_conv < p->conv->n)
        add_conversion(p, p->next_conv++);
    local->n_results = g->n_results;
    local->results = AP_NEW_N(p->arena, g->n_results, struct ap_result);
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        int c = p->conv->result_conv[r];
        bool each = p->plan->each_result && p->plan->each_result[r];
        local->results[r].node = each ? c < 0 ? p->node_of[res->node] : p->conv_node[c]
                                      : ap_part_average_of(p, res->node, c);
        local->results[r].role = res->role;
        local->results[r].part = res->part;
        local->results[r].alias = res->alias < 0 ? -1 : p->node_of[res->alias];
    }
}

/* Groups in an order in which operands come first, as ap_group numbers them. */
static int check_order(const struct ap_graph *g, struct ap_err *err)
{
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            if (g->nodes[g->nodes[i].in[k]].group > g->nodes[i].group)
                return ap_err_set(err,
                                  "node %d (%s): its group runs before its operand's", i,
                                  g->nodes[i].name);
    return 0;
}

/* Results fit what they become; offsets of buffers are far from overflowing. */
static int check_local(const struct ap_graph *local, struct ap_err *err)
{
    for (int r = 0; r < local->n_results; r++) {
        const struct ap_result *res = &local->results[r];
        if (res->alias >= 0 && !ap_shape_equal(&local->nodes[res->node].shape,
                                               &local->nodes[res->alias].shape))
            return ap_err_set(err,
                              "result %d (%s) has another shape than parameter %s, "
                              "which it becomes",
                              r, local->nodes[res->node].name,
                              local->nodes[res->alias].name);
    }
    int64_t sum = 0;
    for (int i = 0; i < local->n_nodes; i++)
        sum = ap_add64(sum, ap_shape_bytes(&local->nodes[i].shape));
    if (sum > INT64_MAX / 4)
        return ap_err_set(err,
                          "the values of one device's program are too large to count");
    return 0;
}

static int add_groups(struct partition *p, struct ap_err *err)
{
    const struct ap_plan *plan = p->plan;
    int last = AP_BEFORE;

    for (int o = 0; o <= plan->nests->n; o++) {
        int when = AP_BEFORE;
        if (p->when)
            when = o < plan->nests->n ? p->when[p->order[o]] : AP_AFTER;
        if (last == AP_BEFORE && when > last)
            prepare_each(p);
        if (last == AP_BEFORE && when > last)
            p->prog->each_lo = p->n_groups;
        if (last < AP_AFTER && when == AP_AFTER) {
            p->prog->each_hi = p->n_groups;
            p->now = AP_TURN_END;
            p->after = true;
            ap_part_finish_averages(p);
            finish_leaving(p);
        }
        last = when;
        if (o == plan->nests->n)
            break;
        if (plan->turn)
            p->now = plan->turn[p->order[o]];
        const struct ap_nest *nest = &plan->nests->nest[p->order[o]];
        add_operands(p, nest);
        ap_part_ring_start(p, nest);
        const bool widens = only_widens(p, nest);
        for (int m = 0; m < nest->n_members && !widens; m++)
            if (add_member(p, nest, m, err))
                return -1;
        if (widens)
            p->node_of[nest->members[0]] = p->slot_node[0];
        else
            p->turn[p->n_groups++] = p->now;
        start_conversions(p, nest);
        for (int c = p->first_early[nest->group]; c >= 0; c = p->next_early[c])
            add_conversion(p, c);
    }
    return 0;
}

int ap_partition(struct ap_arena *arena, const struct ap_plan *plan,
                 const struct ap_conversions *conv, struct ap_program *prog,
                 struct ap_err *err)
{
    const struct ap_graph *g = plan->graph;
    int max_ins = 0;
    if (check_order(g, err))
        return -1;
    struct partition p = {.arena = arena, .plan = plan, .conv = conv, .prog = prog};
    p.cap = count_nodes(plan, conv, &max_ins);
    p.source = AP_NEW_N(arena, p.cap, int);
    p.node_of = AP_NEW_N(arena, g->n_nodes, int);
    p.conv_node = AP_NEW_N(arena, conv->n, int);
    p.n_made = AP_NEW_N(arena, conv->n, int);
    p.slot_node = AP_NEW_N(arena, max_ins, int);

    p.turn = AP_NEW_N(arena, p.cap, int);
    *prog = (struct ap_program){.mesh = plan->mesh, .source = p.source, .turn = p.turn};
    prog->local.name = g->name;
    prog->local.nodes = AP_NEW_N(arena, p.cap, struct ap_node);
    prog->local.n_reducers = g->n_reducers;
    prog->local.reducers = g->reducers;
    prog->local.n_comps = g->n_comps;
    prog->local.comps = g->comps;
    p.when = ap_plan_when(arena, plan);
    p.order = ap_plan_order(arena, plan, p.when);
    list_leaving(&p);
    ap_part_list_averages(&p);
    list_started(&p);
    list_early(&p);
    if (add_groups(&p, err))
        return -1;
    add_results(&p);
    prog->local.n_groups = p.n_groups;
    if (check_local(&prog->local, err))
        return -1;
    return ap_graph_index(arena, &prog->local, "/program", err);
}
