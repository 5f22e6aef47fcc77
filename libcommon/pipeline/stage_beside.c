/*
 * Problem: what of a stage's collectives runs beside what the device computes, where its
 * trainer has the kernels or the schedule for that. Idea: what tensor parallelism gathers
 * or scatters goes part by part, and the product that reads or makes it is cut into as
 * many parts: each is computed while copy engines send the next. Not hidden is what is
 * sent for longer than a part's product takes, what the parts are slower by than the
 * whole product, and the addition of the parts that a scatter brought. A scatter of the
 * sum of several products (gradients of what queries, keys and values are made of) has
 * no such kernel, nor has a product that sums over the gathered dimension (a weight's
 * gradient): it reads what another product's kernel has gathered. Such a scatter, or
 * sum, runs as a whole beside the weights' gradients that are computed after it was sent
 * (Megatron-LM): of what is sent, the share of the device that it takes is lost. The tokens of experts are only found here; which pass they are sent
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

/* Whether a nest sums over the dimension of its operand that the step gathers. */
static bool sums_over(const struct ap_nest *nest, const struct ap_access *in,
                      const struct ap_step *s)
{
    const struct ap_dim_factors *dim = &in->dims[s->coll.split.dim];

    for (int k = 0; k < dim->n; k++)
        if (nest->factors[dim->factor[k]].kind == AP_FACTOR_REDUCED)
            return true;
    return false;
}

/* The products that read the value as it is converted and gathered by step s. */
static void find_readers(struct beside *b, const struct ap_conversion *c,
                         const struct ap_step *s)
{
    const struct ap_graph *g = b->of->stage->plan->graph;
    int last = -1; /* users ascend: those of a group follow each other */

    for (int u = g->user_start[c->node]; u < g->user_start[c->node + 1]; u++) {
        const int group = g->nodes[g->users[u]].group;
        const struct ap_nest *nest = &b->of->stage->plan->nests->nest[group];
        bool reads = false;
        for (int k = 0; k < nest->n_ins; k++)
            reads |= nest->ins[k].node == c->node &&
                     ap_layout_equal(b->of->group[group]->layout[k], &c->to) &&
                     !sums_over(nest, &nest->ins[k].access, s);
        if (reads && group != last)
            add_product(b, group);
        last = group;
    }
}

/* Adds the products of weights' gradients: those that read what a product of a partial
 * sum reads, which is the group, or makes one of the partial operands that it adds up. */
static void find_weights(struct beside *b, int group, unsigned axes)
{
    const struct ap_plan *plan = b->of->stage->plan;
    const struct ap_graph *g = plan->graph;
    const struct ap_nest *nest = &plan->nests->nest[group];

    for (int k = 0; k < nest->n_ins; k++) {
        const int in = nest->ins[k].node;
        for (int a = 0; a < plan->mesh.n_axes; a++) {
            const int linear = plan->choice[group].axis[a] - nest->n_factors;
            if (axes >> a & 1 && linear >= 0 && linear < nest->n_linear &&
                nest->linear[linear].ins >> k & 1 && g->nodes[in].group >= 0)
                find_weights(b, g->nodes[in].group, 1U << a);
        }
        int last = -1;
        for (int u = g->user_start[in];
             nest->kernel == AP_KERNEL_DOT && u < g->user_start[in + 1]; u++) {
            const int user = g->nodes[g->users[u]].group;
            if (user != last && user != group &&
                b->of->fact->phase[user] == AP_BACKWARD)
                add_product(b, user);
            last = user;
        }
    }
}

/* What a step saves beside the products that read what it gathers, or make what it
 * scatters, part by part; sent: its seconds. */
static double beside_parts(const struct ap_stage_products *of,
                           const struct ap_conversion *c, const struct ap_step *s,
                           int64_t shares, double sent)
{
    const struct ap_node *node = &of->stage->plan->graph->nodes[c->node];
    struct beside b = {of, ap_mesh_group(&of->stage->plan->mesh, s->coll.axes), 0, 0};

    if (s->op == AP_OP_ALL_GATHER)
        find_readers(&b, c, s);
    else if (s->op == AP_OP_REDUCE_SCATTER && add_product(&b, node->group))
        b.parts_sec += ap_cost_compute(of->stage->cost, 0, node->shape.dtype,
                                       (double)(s->bytes / shares));
    if (b.whole_sec == 0)
        return 0;
    const double n = (double)b.parts, part = b.parts_sec / n;
    return b.whole_sec + sent - part - (n - 1) * fmax(part, sent / (n - 1));
}

/* What a sum over devices saves beside weights' gradients, which have the rest of the
 * device while it is sent. */
static double beside_weights(const struct ap_stage_products *of,
                             const struct ap_conversion *c, const struct ap_step *s,
                             double sent)
{
    struct beside b = {of, 1, 0, 0};

    if (c->phase == AP_BACKWARD &&
        (s->op == AP_OP_REDUCE_SCATTER || s->op == AP_OP_ALL_REDUCE))
        find_weights(&b, of->stage->plan->graph->nodes[c->node].group, s->coll.axes);
    return fmin(b.whole_sec,
                (1 - of->stage->cost->cluster.collective_share[s->op]) * sent);
}

double ap_stage_beside_products(const struct ap_stage_products *of,
                                const struct ap_conversion *c, unsigned trainer,
                                int64_t shares)
{
    double saved = 0;

    for (int i = 0; i < c->path.n_steps; i++) {
        const struct ap_step *s = &c->path.steps[i];
        const double sent =
            ap_cost_collective(of->stage->cost, s->op, s->coll.axes, s->bytes / shares);
        const double parts = trainer & AP_TRAINER_TP_OVERLAP
                                 ? beside_parts(of, c, s, shares, sent)
                                 : 0;
        const double weights =
            trainer & AP_TRAINER_WGRAD_OVERLAP ? beside_weights(of, c, s, sent) : 0;
        saved += weights > 0 ? fmax(parts, weights) : parts;
    }
    return saved;
}
