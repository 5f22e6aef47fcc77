/*
 * Problem: what of a stage's collectives runs beside what the device computes, where its
 * trainer has the kernels or the schedule for that. Idea: what tensor parallelism gathers
 * or scatters goes part by part, and the product that reads or makes it is cut into as
 * many parts: each is computed while copy engines send the next. Not hidden is what is
 * sent for longer than a part's product takes, what the parts are slower by than the
 * whole product, and the addition of the parts that a scatter brought. A scatter of the
 * sum of several products (gradients of what queries, keys and values are made of) has
 * no such kernel. The tokens of experts are only found here; which pass they are sent
 * beside is the schedule's. Cost: linear in operands. Sources: Wang et al., "Overlap
 * Communication with Dependent Computation via Decomposition", ASPLOS 2023, section 4;
 * PyTorch's async tensor parallelism (torch/distributed/_symmetric_memory).
 */
#include <math.h>

#include "pipeline/stage_facts.h"

/* ---- experts ---- */

unsigned ap_stage_expert_axes(const struct ap_plan *plan)
{
    unsigned axes = 0;

    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        for (int a = 0; a < plan->mesh.n_axes && nest->experts >= 0; a++) {
            const int f = plan->choice[i].axis[a];
            bool has = f >= 0 && f < nest->n_factors && ap_access_has(nest->values, f);
            for (int k = 0; k < nest->n_ins && has; k++)
                has = ap_access_has(&nest->ins[k].access, f);
            axes |= has ? 1U << a : 0;
        }
    }
    return axes;
}

bool ap_stage_is_exchange(const struct ap_conversion *c, unsigned experts)
{
    for (int i = 0; i < c->path.n_steps; i++)
        if (c->path.steps[i].op == AP_OP_ALL_TO_ALL &&
            c->path.steps[i].coll.axes & experts)
            return true;
    return false;
}

/* ---- products of tensor parallelism ---- */

struct beside {
    const struct ap_stage_products *of;
    int64_t parts;
    double whole_sec, parts_sec; /* of the products; in parts */
};

/* Adds a group if it is a product. */
static bool add_product(struct beside *b, int group)
{
    const struct ap_nest *nest = &b->of->stage->plan->nests->nest[group];
    const struct ap_stage_group *of = b->of->group[group];
    const double shares =
        (double)(b->of->fact->whole[group] ? 1 : b->of->stage->micro->n);
    struct ap_kernel_work part = {.kernel = AP_KERNEL_DOT,
                                  .dtype = of->dtype,
                                  .precise = nest->precise,
                                  .phase = b->of->fact->phase[group],
                                  .flops = of->flops / shares / (double)b->parts};

    if (nest->kernel != AP_KERNEL_DOT)
        return false;
    for (int i = 0; i < nest->n_ins + nest->n_outs; i++)
        part.bytes += of->moved[i] / shares / (double)b->parts;
    const double sec = ap_stage_group_sec(b->of->stage, b->of->fact, nest, of);
    b->whole_sec += sec;
    b->parts_sec +=
        fmax(sec, (double)b->parts * ap_cost_kernel(b->of->stage->cost, &part));
    return true;
}

/* The products that read the value as it is converted. */
static void find_readers(struct beside *b, const struct ap_conversion *c)
{
    const struct ap_graph *g = b->of->stage->plan->graph;
    int last = -1; /* users ascend: those of a group follow each other */

    for (int u = g->user_start[c->node]; u < g->user_start[c->node + 1]; u++) {
        const int group = g->nodes[g->users[u]].group;
        const struct ap_nest *nest = &b->of->stage->plan->nests->nest[group];
        bool reads = false;
        for (int k = 0; k < nest->n_ins; k++)
            reads |= nest->ins[k].node == c->node &&
                     ap_layout_equal(b->of->group[group]->layout[k], &c->to);
        if (reads && group != last)
            add_product(b, group);
        last = group;
    }
}

double ap_stage_beside_products(const struct ap_stage_products *of,
                                const struct ap_conversion *c, int64_t shares)
{
    const struct ap_plan *plan = of->stage->plan;
    const struct ap_node *node = &plan->graph->nodes[c->node];
    double saved = 0;

    for (int i = 0; i < c->path.n_steps; i++) {
        const struct ap_step *s = &c->path.steps[i];
        struct beside b = {of, ap_mesh_group(&plan->mesh, s->coll.axes), 0, 0};
        if (s->op == AP_OP_ALL_GATHER)
            find_readers(&b, c);
        else if (s->op == AP_OP_REDUCE_SCATTER && add_product(&b, node->group))
            b.parts_sec += ap_cost_compute(of->stage->cost, 0, node->shape.dtype,
                                           (double)(s->bytes / shares));
        if (b.whole_sec == 0)
            continue;
        const double sent =
            ap_cost_collective(of->stage->cost, s->op, s->coll.axes, s->bytes / shares);
        const double n = (double)b.parts, part = b.parts_sec / n;
        saved += b.whole_sec + sent - part - (n - 1) * fmax(part, sent / (n - 1));
    }
    return saved;
}
