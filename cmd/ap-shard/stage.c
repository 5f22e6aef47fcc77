/*
 * Problem: a plan of a pipeline stage is searched for the whole batch; what does it cost
 * per microbatch, and once per step? Idea: microbatches are a mesh axis in time, on which
 * the whole graph lies as under data parallelism. An operator with a factor there runs
 * once per microbatch on its share, a tensor split there is converted once per
 * microbatch; sums over it (weight gradients) are kept and reduced once per step. Memory:
 * parameters, gradients that wait for the update and the largest working set are there
 * all the time; what the backward pass reads of the forward pass, per microbatch in
 * flight. After Zheng et al., "Alpa", sections 5.1 and 5.2. Cost: linear in operands.
 */
#include "stage.h"

#include <stdlib.h>

#include "baseline.h"

int stage_time_of(struct ap_arena *arena, const struct ap_graph *g,
                  const struct ap_nests *nests, int64_t n, struct stage_time *time,
                  struct ap_err *err)
{
    struct ap_plan plan = {.graph = g, .nests = nests};
    plan.mesh = (struct ap_mesh){.n_axes = 1, .size = {n}, .name = {"time"}};
    *time = (struct stage_time){.n = n,
                                .split = AP_NEW_N(arena, g->n_nodes, bool),
                                .runs = AP_NEW_N(arena, g->n_nodes, bool)};
    if (n == 1)
        return 0;
    if (ap_baseline_plan(arena, 0, &plan, err))
        return -1;
    for (int i = 0; i < g->n_nodes; i++) {
        int c = plan.choice[g->nodes[i].group].axis[0];
        time->split[i] = ap_plan_node_layout(&plan, i).axis[0].kind == AP_SPLIT;
        time->runs[i] = c >= 0 && c < nests->nest[g->nodes[i].group].n_factors;
    }
    return 0;
}

struct pricer {
    const struct ap_subgraph *sub;
    const struct stage_time *time;
    const struct ap_plan *plan;
    const struct ap_cost *cost;
    enum ap_phase *phase; /* per group */
};

/* Local bytes of a value: of one microbatch's share where it has one. */
static double local_bytes(const struct pricer *p, int node, const struct ap_layout *l)
{
    const struct ap_shape *shape = &p->sub->graph.nodes[node].shape;
    double bytes = (double)ap_layout_local_bytes(&p->plan->mesh, shape, l);
    return p->time->split[p->sub->source[node]] ? bytes / (double)p->time->n : bytes;
}

static double value_bytes(const struct pricer *p, int node)
{
    struct ap_layout l = ap_plan_node_layout(p->plan, node);
    return local_bytes(p, node, &l);
}

/* Once per microbatch? With one microbatch: all but the update. */
static bool per_microbatch(const struct pricer *p, int node, const bool *marks,
                           enum ap_phase phase)
{
    return p->time->n == 1 ? phase != AP_UPDATE : marks[p->sub->source[node]];
}

static bool group_runs(const struct pricer *p, const struct ap_nest *nest)
{
    for (int m = 0; m < nest->n_members; m++)
        if (per_microbatch(p, nest->members[m], p->time->runs, p->phase[nest->group]))
            return true;
    return false;
}

static double working_bytes(const struct pricer *p, const struct ap_nest *nest)
{
    double bytes = 0;
    for (int i = 0; i < nest->n_ins; i++) {
        struct ap_layout l = ap_nest_in_layout(nest, p->plan->graph, &p->plan->mesh,
                                               &p->plan->choice[nest->group], i);
        bytes += local_bytes(p, nest->ins[i].node, &l);
    }
    for (int i = 0; i < nest->n_outs; i++)
        bytes += value_bytes(p, nest->outs[i]);
    return bytes;
}

/* Seconds of a group; of one microbatch's share if it runs once for each. */
static double group_sec(const struct pricer *p, const struct ap_nest *nest, bool shared)
{
    const struct ap_graph *g = p->plan->graph;
    const struct ap_choice_vec *choice = &p->plan->choice[nest->group];
    double sec = ap_plan_group_sec(nest, g, p->cost, choice), flops, bytes;
    enum ap_dtype dtype;
    if (!shared || p->time->n == 1 || sec == 0)
        return sec;
    ap_nest_work(nest, g, &p->plan->mesh, choice, &flops, &bytes, &dtype);
    return ap_cost_compute(p->cost, flops / (double)p->time->n, dtype,
                           working_bytes(p, nest));
}

static void add_sec(struct stage_point *point, bool shared, enum ap_phase phase,
                    double sec)
{
    if (!shared)
        point->step_sec += sec;
    else if (phase == AP_FORWARD)
        point->forward_sec += sec;
    else
        point->backward_sec += sec;
}

static double conversion_sec(const struct pricer *p, const struct ap_conversion *c,
                             bool shared)
{
    double sec = 0;
    if (!shared || p->time->n == 1)
        return c->path.sec;
    for (int i = 0; i < c->path.n_steps; i++) {
        const struct ap_step *s = &c->path.steps[i];
        sec += ap_cost_collective(p->cost, s->op, s->coll.axes, s->bytes / p->time->n);
    }
    return sec;
}

/* Bit per phase in which another group reads the value. */
static unsigned read_in(const struct pricer *p, int node)
{
    const struct ap_graph *g = p->plan->graph;
    unsigned phases = 0;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int group = g->nodes[g->users[u]].group;
        if (group != g->nodes[node].group)
            phases |= 1u << p->phase[group];
    }
    return phases;
}

struct memory {
    double fixed, working, kept, kept_inputs;
};

/* Where the memory of one value counts. */
static void add_value(const struct pricer *p, int node, struct memory *m)
{
    const struct ap_node *n = &p->plan->graph->nodes[node];
    bool own = n->op == AP_OP_PARAMETER && n->role != AP_ROLE_INPUT;
    bool shared = p->time->n == 1 || p->time->split[p->sub->source[node]];
    unsigned phases = read_in(p, node);
    double bytes = value_bytes(p, node);

    if (own) {
        m->fixed += bytes;
    } else if (n->phase == AP_FORWARD) {
        if (n->op == AP_OP_PARAMETER && shared)
            m->kept_inputs += bytes;
        if (phases >> AP_BACKWARD & 1)
            *(shared ? &m->kept : &m->fixed) += bytes;
    } else if (n->phase == AP_BACKWARD && phases >> AP_UPDATE & 1) {
        m->fixed += bytes; /* a gradient until the update */
    }
}

void stage_price(struct ap_arena *arena, const struct ap_subgraph *sub,
                 const struct stage_time *time, const struct ap_plan *plan,
                 const struct ap_conversions *conv, const struct ap_cost *cost,
                 struct stage_point point[2])
{
    struct pricer p = {sub, time, plan, cost,
                       AP_NEW_N(arena, plan->nests->n, enum ap_phase)};
    struct memory m = {0};

    for (int i = 0; i < plan->nests->n; i++)
        p.phase[i] = ap_plan_group_phase(plan->graph, &plan->nests->nest[i]);
    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        bool shared = group_runs(&p, nest);
        double working = working_bytes(&p, nest);
        add_sec(&point[0], shared, p.phase[i], group_sec(&p, nest, shared));
        if (nest->n_ins > 0 && working > m.working)
            m.working = working;
        for (int o = 0; o < nest->n_outs; o++)
            add_value(&p, nest->outs[o], &m);
    }
    for (int i = 0; i < conv->n; i++) {
        const struct ap_conversion *c = &conv->conv[i];
        bool shared = per_microbatch(&p, c->node, time->split, c->phase);
        add_sec(&point[0], shared, c->phase, conversion_sec(&p, c, shared));
    }
    point[0].stage_bytes = (int64_t)(m.fixed + m.working);
    point[0].microbatch_bytes = (int64_t)m.kept;
    point[1] = point[0];
    point[1].recompute = true;
    point[1].backward_sec += point[0].forward_sec;
    point[1].stage_bytes = (int64_t)(m.fixed + m.working + m.kept);
    point[1].microbatch_bytes = (int64_t)m.kept_inputs;
}

/* ---- the front ---- */

static double microbatch_sec(const struct stage_point *p)
{
    return p->forward_sec + p->backward_sec;
}

static bool covers(const struct stage_point *a, const struct stage_point *b)
{
    return microbatch_sec(a) <= microbatch_sec(b) && a->step_sec <= b->step_sec &&
           a->stage_bytes <= b->stage_bytes && a->microbatch_bytes <= b->microbatch_bytes;
}

static int compare(const void *pa, const void *pb)
{
    const struct stage_point *a = pa, *b = pb;
    double x = microbatch_sec(a), y = microbatch_sec(b);
    if (x != y)
        return x < y ? -1 : 1;
    if (a->step_sec != b->step_sec)
        return a->step_sec < b->step_sec ? -1 : 1;
    if (a->stage_bytes != b->stage_bytes)
        return a->stage_bytes < b->stage_bytes ? -1 : 1;
    return a->microbatch_bytes < b->microbatch_bytes
               ? -1
               : a->microbatch_bytes > b->microbatch_bytes;
}

int stage_front(struct stage_point *points, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) { /* among equals, the first one stays */
        bool covered = false;
        for (int k = 0; k < kept && !covered; k++)
            covered = covers(&points[k], &points[i]);
        if (covered)
            continue;
        int left = 0;
        for (int k = 0; k < kept; k++)
            if (!covers(&points[i], &points[k]))
                points[left++] = points[k];
        points[left++] = points[i];
        kept = left;
    }
    qsort(points, (size_t)kept, sizeof *points, compare);
    return kept;
}
