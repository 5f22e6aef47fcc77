/*
 * Problem: a plan of a pipeline stage is searched for the whole batch; what does it cost
 * per microbatch, and once per step? Idea: microbatches are a mesh axis, on which the
 * whole graph lies as under data parallelism. An operator with a factor on that axis runs
 * once per microbatch on a share of the rows, and a tensor split on it is converted once
 * per microbatch; sums over it (weight gradients) are accumulated and reduced once per
 * step. Memory: parameters, gradients until the update and the largest working set are
 * there all the time; what the backward pass reads of the forward pass is there per
 * microbatch in flight, in its own layout: a converted copy of it counts for the group
 * that reads it, not between the phases; one of a weight is there all the time. A stage
 * that recomputes keeps the values that its blocks read from each other and has the
 * activations of one block at a time (Chen et al., "Training Deep Nets with Sublinear
 * Memory Cost", 2016, section 4). After Zheng et al., "Alpa", sections 5.1 and 5.2. Cost:
 * linear in operands.
 */
#include "pipeline/stage_cost.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/microbatch.h"
#include "pipeline/stage_facts.h"
#include "cost/convert.h"

struct pricer {
    const struct ap_subgraph *sub;
    const struct ap_stage_microbatch *micro;
    const struct ap_plan *plan;
    const struct ap_cost *cost;
    const enum ap_phase *phase; /* per group */
    const bool *leaves;         /* per node: used outside of the stage */
    const bool *recomputed; /* per group: recomputed before each backward; NULL: none */
    const bool *again;      /* per node: values that are not kept for it; NULL: none */
    const bool *free;       /* per node: made of constants and scalars alone */
    const bool *weights;    /* per group: as of struct ap_stage_fact; NULL: none */
    const struct ap_stage_products *products; /* beside which it sends; NULL: none */
    int only;                                 /* as block of struct ap_stage_case */
    int n_blocks;                             /* above all numbers of blocks */
    /* [block]: the first of those that are recomputed at once with it, since they read
       each other's recomputed values; NULL: each by itself */
    int *together;
};

/* Whether the plan itself was made for microbatches, and says what runs with each. */
static bool timed(const struct pricer *p)
{
    return p->plan->mesh.microbatch;
}

/* In such a plan: whether the value is one microbatch's. */
static bool is_share(const struct pricer *p, int node)
{
    const struct ap_node *n = &p->plan->graph->nodes[node];
    if (n->op == AP_OP_PARAMETER) /* there for all, read share by share */
        return p->plan->choice[n->group].axis[0] >= 0;
    return ap_plan_node_layout(p->plan, node).axis[0].kind == AP_SPLIT;
}

/* Local bytes of a value: of one microbatch's share where it has one. */
static double local_bytes(const struct pricer *p, int node, const struct ap_layout *l)
{
    const struct ap_shape *shape = &p->sub->graph.nodes[node].shape;
    double bytes = (double)ap_layout_local_bytes(&p->plan->mesh, shape, l);
    if (timed(p))
        return p->sub->graph.nodes[node].op == AP_OP_PARAMETER && is_share(p, node) &&
                       l->axis[0].kind == AP_REPLICATED
                   ? bytes / (double)p->micro->n
                   : bytes;
    return p->micro->split[p->sub->source[node]] ? bytes / (double)p->micro->n : bytes;
}

static double value_bytes(const struct pricer *p, int node)
{
    struct ap_layout l = ap_plan_node_layout(p->plan, node);
    return local_bytes(p, node, &l);
}

/* Made with each microbatch, but not a share of anything. */
static bool is_whole_each(const struct pricer *p, int node)
{
    return p->micro->each && p->micro->each[p->sub->source[node]];
}

/* Once per microbatch? With one microbatch: all but the update. */
static bool per_microbatch(const struct pricer *p, int node, const bool *marks,
                           enum ap_phase phase)
{
    if (p->micro->n == 1)
        return phase != AP_UPDATE;
    return marks[p->sub->source[node]] || is_whole_each(p, node);
}

static bool group_runs(const struct pricer *p, const struct ap_nest *nest)
{
    if (timed(p))
        return ap_runs_each(nest, p->plan->graph, &p->plan->mesh,
                            &p->plan->choice[nest->group]);
    for (int m = 0; m < nest->n_members; m++)
        if (per_microbatch(p, nest->members[m], p->micro->runs, p->phase[nest->group]))
            return true;
    return false;
}

/* Whether all of its work is done with each microbatch: what it reads has no share. */
static bool is_work_whole(const struct pricer *p, const struct ap_nest *nest)
{
    for (int m = 0; m < nest->n_members; m++)
        if (p->micro->runs[p->sub->source[nest->members[m]]])
            return false;
    return true;
}

static double path_sec(const struct pricer *p, int node, const struct ap_path *path,
                       bool shared)
{
    double sec = 0;
    if (!shared || p->micro->n == 1 || is_whole_each(p, node))
        return path->sec;
    for (int i = 0; i < path->n_steps; i++) {
        const struct ap_step *s = &path->steps[i];
        sec += ap_cost_collective(p->cost, s->op, s->coll.axes, s->bytes / p->micro->n);
    }
    return sec;
}

/*
 * A plan brings its results to every device whole; a value that only leaves the stage is
 * sent as it lies, once its sums are complete. Whether the conversion is of that kind.
 */
static bool leaves_stage(const struct pricer *p, const struct ap_conversion *c)
{
    return c->first_group == p->plan->nests->n && p->leaves[c->node];
}

/* Adds what completes the sums of such a value, where it is made. */
static void add_leaving(const struct pricer *p, const struct ap_conversion *c,
                        struct ap_stage_measure *m)
{
    const struct ap_node *node = &p->plan->graph->nodes[c->node];
    struct ap_layout to = ap_stage_out_layout(p->plan, c->node);
    struct ap_step room[AP_MAX_STEPS];
    struct ap_path path;
    bool shared = per_microbatch(p, c->node, p->micro->split, node->phase);

    if (!ap_layout_is_partial(&c->from) ||
        ap_convert(p->cost, &node->shape, &c->from, &to, room, &path) != 0)
        return;
    if (timed(p)) {
        ap_stage_add_timed(&path, &c->from, node->phase, m);
        return;
    }
    double sec = path_sec(p, c->node, &path, shared);
    if (shared)
        ap_stage_add_sec(m, true, node->phase, sec);
    else
        m->sync_sec += sec;
}

static bool read_again(const struct pricer *p, int node)
{
    const struct ap_graph *g = p->plan->graph;
    for (int u = g->user_start[node]; p->recomputed && u < g->user_start[node + 1]; u++) {
        int group = g->nodes[g->users[u]].group;
        if (group != g->nodes[node].group && p->recomputed[group])
            return true;
    }
    return false;
}

/* get-tuple-element is where its operand is. */
static int block_of(const struct pricer *p, int node)
{
    const struct ap_graph *g = p->plan->graph;
    while (g->nodes[node].op == AP_OP_GET_TUPLE_ELEMENT)
        node = g->nodes[node].in[0];
    const int block = p->micro->block_of ? p->micro->block_of[p->sub->source[node]] : 0;
    return p->together ? p->together[block] : block;
}

/*
 * Block whose backward reads a forward value; -1: other blocks read it, too. What is made
 * of constants is recomputed where it is read.
 */
static int reader_of(const struct pricer *p, int node)
{
    const struct ap_graph *g = p->plan->graph;
    int home = block_of(p, node), reader = home;

    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int user = g->users[u];
        if (p->phase[g->nodes[user].group] == AP_UPDATE || block_of(p, user) == home)
            continue;
        if (!p->free[node])
            return -1;
        reader = block_of(p, user);
    }
    return reader;
}

/* Whether there is one for each microbatch. */
static bool is_shared(const struct pricer *p, int node)
{
    return p->micro->n == 1 ||
           (timed(p) ? is_share(p, node)
                     : per_microbatch(p, node, p->micro->split,
                                      p->plan->graph->nodes[node].phase));
}

/* Whether a value is a sum over microbatches that leaves the stage: the gradient of a
 * weight that another stage updates. */
static bool is_sent_sum(const struct pricer *p, int node)
{
    return p->micro->n > 1 && p->leaves[node] && !is_shared(p, node);
}

/*
 * Where the memory of one value counts: ap_stage_counted; reader is set with IN_BLOCK.
 * With what a stage that recomputes its blocks needs: what other blocks read is kept,
 * the rest is there while its reader's backward runs, or for the whole backward if it is
 * recomputed for several.
 */
static unsigned count_value(const struct pricer *p, int node, int *reader)
{
    const struct ap_node *n = &p->plan->graph->nodes[node];
    bool own = n->op == AP_OP_PARAMETER && n->role != AP_ROLE_INPUT;
    bool shared = is_shared(p, node), again = p->again && p->again[node];
    unsigned phases = ap_stage_read_in(p->plan->graph, p->phase, node), counted = 0;
    bool to_backward = phases >> AP_BACKWARD & 1;
    const bool host = p->micro->host && p->micro->host[p->sub->source[node]] &&
                      (own || (n->op != AP_OP_PARAMETER && shared));

    if (own)
        return host ? AP_ON_HOST : AP_IN_FIXED | AP_STAYS;
    if (n->phase == AP_BACKWARD &&
        (phases >> AP_UPDATE & 1 || is_sent_sum(p, node))) /* a gradient, to the update */
        return AP_IN_FIXED | AP_STAYS | AP_IN_GRADIENTS |
               (p->micro->n > 1 && ap_dtype_is_float(n->shape.dtype) &&
                        ap_dtype_size(n->shape.dtype) == 2 &&
                        !(p->micro->trainer & AP_TRAINER_LOW_SUMS)
                    ? AP_SUMMED
                    : 0);
    if (n->phase != AP_FORWARD)
        return 0;
    if (n->op == AP_OP_PARAMETER && shared) {
        counted |= AP_IN_INPUTS;
    } else if (shared && !p->again) {
        *reader = reader_of(p, node);
        counted |= *reader < 0 ? AP_IN_INPUTS : to_backward ? AP_IN_BLOCK : 0;
    }
    if (again) {
        *reader = reader_of(p, node);
        if (to_backward || (*reader < 0 && read_again(p, node)))
            counted |= *reader < 0 ? AP_IN_RECOMPUTED : AP_IN_BLOCK;
    } else if (to_backward || read_again(p, node)) {
        counted |= host ? AP_ON_HOST : shared ? AP_IN_KEPT : AP_IN_FIXED;
    }
    return counted | (to_backward && !shared && !again && !host ? AP_STAYS : 0);
}

/*
 * Bytes of a converted copy that is made once, before the first microbatch, and read with
 * each of them, or, where there is one, by its forward and backward: a gathered weight.
 * Copies of one microbatch's values, and those that are gathered again, count where they
 * are read.
 */
static double lasting_copy(const struct pricer *p, const struct ap_conversion *c)
{
    if (timed(p) || c->each || c->phase == AP_UPDATE || p->free[c->node] ||
        (p->plan->regather && p->plan->regather[c->node]) ||
        c->first_group == p->plan->nests->n || ap_layout_is_partial(&c->from))
        return 0;
    if (p->micro->n == 1
            ? c->phase != AP_FORWARD || !ap_stage_keeps_weight(p->plan->graph, c->node)
            : per_microbatch(p, c->node, p->micro->split, c->phase))
        return 0;
    return local_bytes(p, c->node, &c->to);
}

/*
 * Bytes of the value of which a lasting copy is made, if all that reads it reads a copy:
 * a weight's part in 16 bits, which is there no longer than until it is gathered.
 */
static double copied_whole(const struct pricer *p, const struct ap_conversions *conv,
                           const struct ap_conversion *c)
{
    const struct ap_graph *g = p->plan->graph;
    const struct ap_node *n = &g->nodes[c->node];

    if (n->op == AP_OP_PARAMETER || n->phase != AP_FORWARD ||
        !(ap_stage_read_in(g, p->phase, c->node) >> AP_BACKWARD & 1) ||
        ap_graph_is_result(g, c->node))
        return 0;
    for (int u = g->user_start[c->node]; u < g->user_start[c->node + 1]; u++) {
        const struct ap_nest *user = &p->plan->nests->nest[g->nodes[g->users[u]].group];
        for (int k = 0; k < user->n_ins && user->group != n->group; k++)
            if (user->ins[k].node == c->node &&
                conv->in_conv[conv->in_start[user->group] + k] < c - conv->conv)
                return 0; /* read as it lies, or counted with an earlier copy */
    }
    return value_bytes(p, c->node);
}

/* Bytes of the value after the steps of its conversion that come before a sum. */
static double cut_bytes(const struct pricer *p, const struct ap_conversion *c)
{
    const struct ap_step *steps = c->path.steps;
    const struct ap_layout *at = &c->from;

    for (int i = 0; i < c->path.n_steps && steps[i].op != AP_OP_ALL_REDUCE &&
                    steps[i].op != AP_OP_REDUCE_SCATTER;
         i++)
        at = &steps[i].to;
    return local_bytes(p, c->node, at);
}

/* A conversion as a trainer sees it: with one microbatch, too, weights are sent once. */
static struct ap_stage_sent sent_of(const struct pricer *p, const struct ap_conversion *c)
{
    const struct ap_node *n = &p->plan->graph->nodes[c->node];
    const bool weight = p->plan->regather && p->plan->regather[c->node];
    const bool only_weights = p->micro->n == 1 && c->phase != AP_UPDATE;
    return (struct ap_stage_sent){
        .conv = c,
        .node = n,
        .weight = weight,
        .partial = ap_layout_is_partial(&c->from),
        .inside = c->first_group < p->plan->nests->n,
        .once = !timed(p) && !leaves_stage(p, c) && n->shape.rank > 0 &&
                (only_weights ? ap_stage_is_weight(p->plan->graph, c->node) &&
                                    (!weight || p->micro->trainer & AP_TRAINER_PACKS)
                              : !per_microbatch(p, c->node, p->micro->split, c->phase)),
        .shared = is_shared(p, c->node),
        .read_in = ap_stage_read_in(p->plan->graph, p->phase, c->node),
        .more_bytes = local_bytes(p, c->node, &c->to) - value_bytes(p, c->node),
        .cut_bytes = fmin(0, cut_bytes(p, c) - value_bytes(p, c->node))};
}

/* Whether a conversion is made for a group that is recomputed. */
static bool is_again(const struct pricer *p, const struct ap_conversion *c)
{
    return p->recomputed && c->first_group < p->plan->nests->n &&
           p->recomputed[c->first_group];
}

/* Block whose operator a conversion is made for, or that sends it to others. */
static int home_of(const struct pricer *p, const struct ap_conversion *c)
{
    const struct ap_nests *nests = p->plan->nests;

    return block_of(p, c->first_group < nests->n ? nests->nest[c->first_group].members[0]
                                                 : c->node);
}

/* Adds what a conversion takes. */
static void price_conversion(const struct pricer *p, const struct ap_conversion *c,
                             struct ap_stage_measure *m)
{
    const bool shared = per_microbatch(p, c->node, p->micro->split, c->phase);
    double sec = path_sec(p, c->node, &c->path, shared);

    if (leaves_stage(p, c)) {
        add_leaving(p, c, m);
        return;
    }
    if (timed(p)) {
        sec = ap_stage_add_timed(&c->path, &c->from, c->phase, m);
        m->backward_sec += is_again(p, c) ? sec : 0;
        return;
    }
    if (shared && p->products &&
        p->micro->trainer & (AP_TRAINER_TP_OVERLAP | AP_TRAINER_WGRAD_OVERLAP) &&
        !ap_stage_is_weight(p->plan->graph, c->node))
        sec -= ap_stage_beside_products(p->products, c, p->micro->trainer,
                                        is_whole_each(p, c->node) ? 1 : p->micro->n);
    if (!shared && ap_layout_is_partial(&c->from))
        m->sync_sec += sec;
    else
        ap_stage_add_sec(m, shared, c->phase, sec);
    m->backward_sec += shared && is_again(p, c) ? sec : 0;
}

static void price_conversions(const struct pricer *p, const struct ap_conversions *conv,
                              struct ap_stage_packs *packs, struct ap_stage_measure *m)
{
    const bool beside = p->micro->trainer & AP_TRAINER_EP_OVERLAP;
    const unsigned experts = beside ? ap_stage_expert_axes(p->plan) : 0;
    for (const struct ap_conversion *c = conv->conv; c < conv->conv + conv->n; c++) {
        if (p->only >= 0 && home_of(p, c) != p->only)
            continue;
        const double lasting = lasting_copy(p, c);
        *(p->micro->n == 1 ? &m->copied_bytes : &m->fixed_bytes) += lasting;
        if (lasting > 0)
            *(p->micro->n == 1 ? &m->kept_bytes : &m->fixed_bytes) -=
                copied_whole(p, conv, c);
        if (p->micro->trainer || ap_layout_is_partial(&c->from)) {
            const struct ap_stage_sent sent = sent_of(p, c);
            const double fixed = m->fixed_bytes;
            ap_stage_count_sent(p->micro, &sent, &m->fixed_bytes, &m->kept_bytes);
            m->gradient_bytes += p->micro->n == 1 ? m->fixed_bytes - fixed : 0;
            if (ap_stage_pack(p->micro, &sent, packs))
                continue;
        }
        const struct ap_stage_measure before = *m;
        price_conversion(p, c, m);
        if (p->weights && c->first_group < p->plan->nests->n &&
            p->weights[c->first_group])
            m->weights_sec += m->backward_sec - before.backward_sec;
        if (per_microbatch(p, c->node, p->micro->split, c->phase))
            ap_stage_launch(p->cost, c->phase, is_again(p, c), c->path.n_steps, m);
        if (p->micro->overlap && p->plan->regather && p->plan->regather[c->node]) {
            m->gather_sec[0] += m->forward_sec - before.forward_sec;
            m->gather_sec[1] += m->backward_sec - before.backward_sec;
            m->gather_share = p->cost->cluster.collective_share[AP_OP_ALL_GATHER];
        }
        if (ap_stage_is_exchange(c, experts)) {
            m->exchange_sec[0] += m->forward_sec - before.forward_sec;
            m->exchange_sec[1] += m->backward_sec - before.backward_sec;
        }
        if (p->plan->graph->nodes[c->node].shape.rank > 0)
            continue;
        m->scalar_sec[0] += m->forward_sec - before.forward_sec;
        m->scalar_sec[1] += m->backward_sec - before.backward_sec;
        m->scalar_sec[2] += m->sync_sec - before.sync_sec;
        m->scalar_sec[3] += m->update_sec - before.update_sec;
    }
}

/* The same with what is sent together. */
static void price_all_conversions(const struct pricer *p,
                                  const struct ap_conversions *conv,
                                  struct ap_stage_measure *m)
{
    struct ap_stage_packs *packs = ap_xrealloc(NULL, sizeof *packs);

    memset(packs, 0, sizeof *packs);
    price_conversions(p, conv, packs, m);
    ap_stage_add_packs(p->micro, packs, p->cost, m);
    free(packs);
}

static void start(struct ap_arena *arena, const struct ap_stage_plan *stage,
                  struct pricer *p)
{
    const struct ap_plan *plan = stage->plan;
    const struct ap_subgraph *sub = stage->sub;
    enum ap_phase *phase = AP_NEW_N(arena, plan->nests->n, enum ap_phase);

    for (int i = 0; i < plan->nests->n; i++)
        phase[i] = ap_plan_group_phase(plan->graph, &plan->nests->nest[i]);
    *p = (struct pricer){.sub = sub,
                         .micro = stage->micro,
                         .plan = plan,
                         .cost = stage->cost,
                         .phase = phase,
                         .leaves = ap_stage_leaving(arena, sub),
                         .free = ap_stage_made_of_scalars(arena, &sub->graph),
                         .only = -1,
                         .n_blocks = 1};
    for (int i = 0; i < sub->graph.n_nodes; i++)
        if (block_of(p, i) >= p->n_blocks)
            p->n_blocks = block_of(p, i) + 1;
}

/* Gradients of weights, and values of the rest of the backward pass that they read. */
static void find_weights(struct ap_arena *arena, const struct pricer *p,
                         struct ap_stage_fact *f)
{
    const struct ap_graph *g = &p->sub->graph;
    bool *leaves = AP_NEW_N(arena, g->n_nodes + 1, bool);

    for (int v = 0; v < g->n_nodes; v++)
        leaves[v] = p->leaves[v] && !is_sent_sum(p, v);
    f->weights = ap_stage_weights(arena, g, p->plan->nests, p->phase, leaves);
    f->pending = AP_NEW_N(arena, g->n_nodes + 1, bool);
    for (int v = 0; v < g->n_nodes; v++) {
        const bool made = (g->nodes[v].phase == AP_BACKWARD && is_shared(p, v)) ||
                          (p->again && p->again[v]);
        for (int u = g->user_start[v]; u < g->user_start[v + 1] && made; u++)
            f->pending[v] |=
                !f->weights[g->nodes[v].group] && f->weights[g->nodes[g->users[u]].group];
    }
}

/* What an operator or a value is to the microbatches of the pricer. */
static void fill_fact(struct ap_arena *arena, const struct pricer *p,
                      struct ap_stage_fact *f)
{
    const struct ap_nests *nests = p->plan->nests;
    const struct ap_graph *g = &p->sub->graph;
    int n_groups = nests->n, n_nodes = g->n_nodes, n_ins = 0;

    f->n_blocks = p->n_blocks;
    f->phase = p->phase;
    find_weights(arena, p, f);
    f->recomputed = p->recomputed;
    if (p->micro->host && p->micro->trainer & AP_TRAINER_HOST_UPDATE)
        f->updated = ap_stage_updated_bytes(arena, g);
    f->runs = AP_NEW_N(arena, n_groups + 1, bool);
    f->whole = AP_NEW_N(arena, n_groups + 1, bool);
    f->scalar = AP_NEW_N(arena, n_groups + 1, bool);
    f->split = AP_NEW_N(arena, n_nodes + 1, bool);
    f->counted = AP_NEW_N(arena, n_nodes + 1, uint16_t);
    f->reader = AP_NEW_N(arena, n_nodes + 1, int);
    for (int i = 0; i < n_groups; i++)
        n_ins += nests->nest[i].n_ins;
    f->stays = AP_NEW_N(arena, n_ins + 1, bool);
    n_ins = 0;
    for (int i = 0; i < n_groups; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        f->runs[i] = group_runs(p, nest);
        f->scalar[i] = ap_stage_is_scalar(g, nest);
        f->whole[i] = !f->runs[i] || p->micro->n == 1 ||
                      (!timed(p) && p->micro->each && is_work_whole(p, nest));
        for (int k = 0; k < nest->n_ins; k++)
            f->stays[n_ins++] = f->counted[nest->ins[k].node] & AP_STAYS;
        for (int o = 0; o < nest->n_outs; o++)
            f->counted[nest->outs[o]] =
                (uint16_t)count_value(p, nest->outs[o], &f->reader[nest->outs[o]]);
    }
    for (int v = 0; v < n_nodes; v++)
        f->split[v] = timed(p) ? g->nodes[v].op == AP_OP_PARAMETER && is_share(p, v)
                               : p->micro->split[p->sub->source[v]];
}

void ap_stage_fact_fill(struct ap_arena *arena, const struct ap_subgraph *sub,
                        const struct ap_nests *nests, struct ap_stage_fact *f)
{
    const struct ap_plan none = {.graph = &sub->graph, .nests = nests};
    struct pricer p;

    start(arena, &(struct ap_stage_plan){sub, &f->micro, &none, NULL, NULL}, &p);
    fill_fact(arena, &p, f);
}

/* Facts and groups of one plan. */
struct priced {
    struct ap_stage_fact fact;
    struct ap_stage_known known; /* to be freed */
    const struct ap_stage_group *const *group;
};

static void know(struct ap_arena *arena, const struct pricer *p, struct priced *one)
{
    *one = (struct priced){.fact.micro = *p->micro};
    fill_fact(arena, p, &one->fact);
    one->group = ap_stage_know(arena, &one->known, NULL, p->plan, p->cost);
}

static void measure_one(struct ap_arena *arena, const struct pricer *p,
                        const struct ap_stage_plan *stage, struct ap_stage_measure *m)
{
    struct pricer own = *p;
    struct priced one;

    know(arena, p, &one);
    own.weights = one.fact.weights;
    ap_stage_measure_groups(arena, stage, &one.fact, one.group, -1, m);
    own.products = &(struct ap_stage_products){stage, &one.fact, one.group};
    if (stage->conv)
        price_all_conversions(&own, stage->conv, m);
    ap_arena_free(&one.known.arena);
}

void ap_stage_measure_conversions(struct ap_arena *arena,
                                  const struct ap_stage_plan *stage,
                                  const enum ap_phase *phase, int n,
                                  const struct ap_stage_microbatch *const *micro,
                                  struct ap_stage_measure *measure)
{
    struct pricer p = {.sub = stage->sub,
                       .phase = phase,
                       .only = -1,
                       .plan = stage->plan,
                       .cost = stage->cost,
                       .leaves = ap_stage_leaving(arena, stage->sub),
                       .free = ap_stage_made_of_scalars(arena, &stage->sub->graph)};

    for (int i = 0; i < n; i++) {
        p.micro = micro[i];
        price_all_conversions(&p, stage->conv, &measure[i]);
    }
}

void ap_stage_price(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    struct ap_stage_point point[2])
{
    struct ap_stage_measure m;
    struct pricer p;

    start(arena, stage, &p);
    measure_one(arena, &p, stage, &m);
    ap_stage_points(&m, point);
}

/* Blocks whose recomputation reads what others recompute run again with these. */
static void join_blocks(struct ap_arena *arena, struct pricer *p)
{
    const struct ap_graph *g = &p->sub->graph;
    int *together = AP_NEW_N(arena, p->n_blocks, int);

    for (int b = 0; b < p->n_blocks; b++)
        together[b] = b;
    for (int v = 0; v < g->n_nodes; v++)
        for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
            int a = block_of(p, v), b = block_of(p, g->users[u]);
            if (a == b || !p->again[v] || !p->again[g->users[u]] || p->free[v])
                continue;
            for (; together[a] != a; a = together[a])
                ;
            for (; together[b] != b; b = together[b])
                ;
            together[a > b ? a : b] = a < b ? a : b;
        }
    for (int b = 0; b < p->n_blocks; b++)
        together[b] = together[together[b]];
    p->together = together;
}

/* Sets what is recomputed; memory in the arena. */
static void mark_recomputed(struct ap_arena *arena, const bool *recomputed,
                            struct pricer *p)
{
    bool *groups = AP_NEW_N(arena, p->plan->nests->n, bool);

    for (int i = 0; i < p->sub->graph.n_nodes; i++)
        if (recomputed[i] && p->phase[p->sub->graph.nodes[i].group] == AP_FORWARD)
            groups[p->sub->graph.nodes[i].group] = true;
    p->recomputed = groups;
    p->again = recomputed;
    join_blocks(arena, p);
}

/* Facts of a case, which those with the same placements and marks have in common. */
struct case_facts {
    struct ap_stage_fact fact;
    const bool *recomputed, *groups; /* [group]: is recomputed */
    struct case_facts *next;
};

static struct case_facts *facts_of(struct ap_arena *arena, const struct pricer *of,
                                   const struct ap_stage_case *c,
                                   struct case_facts **known)
{
    struct case_facts *f = *known;
    struct pricer p = *of;

    while (f && !(f->recomputed == c->recomputed &&
                  ap_stage_same_axis(&f->fact.micro, c->micro)))
        f = f->next;
    if (f)
        return f;
    f = AP_NEW(arena, struct case_facts);
    p.micro = c->micro;
    p.recomputed = p.again = NULL;
    if (c->recomputed)
        mark_recomputed(arena, c->recomputed, &p);
    f->recomputed = c->recomputed;
    f->groups = p.recomputed;
    f->fact.micro = *c->micro;
    fill_fact(arena, &p, &f->fact);
    f->next = *known;
    return *known = f;
}

void ap_stage_measure_cases(struct ap_arena *arena, const struct ap_stage_plan *stage,
                            int n, const struct ap_stage_case *cases)
{
    struct ap_stage_known known = {0};
    const struct ap_stage_group *const *group =
        ap_stage_know(arena, &known, NULL, stage->plan, stage->cost);
    struct ap_stage_plan one = *stage;
    struct case_facts *facts = NULL;
    struct pricer p;

    for (int i = 0; i < n; i++) {
        const struct ap_stage_case *c = &cases[i];
        one.micro = c->micro;
        if (i == 0)
            start(arena, &one, &p);
        struct case_facts *f = facts_of(arena, &p, c, &facts);
        f->fact.micro = *c->micro;
        p.micro = c->micro;
        p.only = c->block;
        p.recomputed = f->groups;
        p.weights = f->fact.weights;
        p.again = c->recomputed;
        p.products = &(struct ap_stage_products){&one, &f->fact, group};
        ap_stage_measure_groups(arena, &one, &f->fact, group, c->block, c->measure);
        if (stage->conv && c->packs)
            price_conversions(&p, stage->conv, c->packs, c->measure);
        else if (stage->conv)
            price_all_conversions(&p, stage->conv, c->measure);
        if (!c->recomputed)
            c->measure->recomputed_bytes = 0;
    }
    ap_arena_free(&known.arena);
}

void ap_stage_price_recomputed(struct ap_arena *arena, const struct ap_stage_plan *stage,
                               const bool *recomputed, struct ap_stage_point *point)
{
    struct ap_stage_measure m;
    struct ap_stage_point both[2];
    struct pricer p;

    start(arena, stage, &p);
    mark_recomputed(arena, recomputed, &p);
    measure_one(arena, &p, stage, &m);
    m.input_bytes = m.kept_bytes; /* what is recomputed is not in it */
    ap_stage_points(&m, both);
    both[1].backward_sec = both[0].backward_sec;
    both[1].algorithm = point->algorithm;
    both[1].tag = point->tag;
    *point = both[1];
}

void ap_stage_weigh(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    struct ap_stage_weights *w)
{
    const struct ap_nests *nests = stage->plan->nests;
    struct priced one;
    struct pricer p;

    start(arena, stage, &p);
    know(arena, &p, &one);
    w->group_sec = AP_NEW_N(arena, nests->n, double);
    w->value = AP_NEW_N(arena, stage->sub->graph.n_nodes, struct ap_stage_value);
    w->n_blocks = p.n_blocks;
    for (int i = 0; i < nests->n; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        const bool shared = one.fact.runs[i];
        w->group_sec[i] = ap_stage_group_sec(stage, &one.fact, nest, one.group[i]);
        for (int o = 0; o < nest->n_outs && p.phase[i] == AP_FORWARD; o++) {
            const struct ap_node *n = &stage->sub->graph.nodes[nest->outs[o]];
            struct ap_stage_value *v = &w->value[nest->outs[o]];
            if (n->op == AP_OP_PARAMETER && n->role != AP_ROLE_INPUT)
                continue;
            v->bytes = value_bytes(&p, nest->outs[o]);
            v->kept =
                ap_stage_read_in(p.plan->graph, p.phase, nest->outs[o]) >> AP_BACKWARD &
                1;
            v->each = is_shared(&p, nest->outs[o]);
            v->reader = reader_of(&p, nest->outs[o]);
            v->may = n->op != AP_OP_PARAMETER && n->phase == AP_FORWARD && v->each &&
                     shared && v->reader >= 0;
        }
    }
    ap_arena_free(&one.known.arena);
    for (int i = 0; i < stage->conv->n; i++) {
        const struct ap_conversion *c = &stage->conv->conv[i];
        struct ap_stage_measure ignored = {0};
        bool shared = per_microbatch(&p, c->node, stage->micro->split, c->phase);
        if (c->first_group == nests->n)
            continue;
        if (timed(&p))
            w->group_sec[c->first_group] +=
                ap_stage_add_timed(&c->path, &c->from, c->phase, &ignored);
        else if (shared)
            w->group_sec[c->first_group] += path_sec(&p, c->node, &c->path, true);
    }
}

void ap_stage_spent(struct ap_arena *arena, const struct ap_stage_plan *stage,
                    double *sec_of_group, double *conv_sec)
{
    struct priced one;
    struct pricer p;

    start(arena, stage, &p);
    know(arena, &p, &one);
    for (int i = 0; i < stage->plan->nests->n; i++) {
        double sec = ap_stage_group_sec(stage, &one.fact, &stage->plan->nests->nest[i],
                                        one.group[i]);
        sec_of_group[i] = one.fact.runs[i] ? sec * (double)stage->micro->n : sec;
    }
    ap_arena_free(&one.known.arena);
    for (int i = 0; i < stage->conv->n; i++) {
        const struct ap_conversion *c = &stage->conv->conv[i];
        bool shared = per_microbatch(&p, c->node, stage->micro->split, c->phase);
        double sec = path_sec(&p, c->node, &c->path, shared);
        if (leaves_stage(&p, c)) {
            struct ap_stage_measure m = {0};
            add_leaving(&p, c, &m);
            sec = m.forward_sec + m.backward_sec + m.update_sec + m.sync_sec;
            shared = m.sync_sec == 0;
        }
        conv_sec[i] = shared ? sec * (double)stage->micro->n : sec;
    }
}
