/*
 * Problem: what of a stage's collectives runs beside what the device computes, where its
 * trainer has the kernels or the schedule for that. Idea: what tensor parallelism gathers
 * or scatters goes part by part, and the product that reads or makes it is cut into as
 * many parts: each is computed while copy engines send the next. Not hidden is what is
 * sent for longer than a part's product takes, what the parts are slower by than the
 * whole product, the copy of a device's own part to where the others read it, and the
 * addition of the parts that a scatter brought. A scatter of the
 * sum of several products (gradients of what queries, keys and values are made of) has
 * no such kernel, nor has a product that sums over the gathered dimension (a weight's
 * gradient): it reads what another product's kernel has gathered. Such a scatter, or
 * sum, runs as a whole beside the weights' gradients that are computed after it was sent
 * (Megatron-LM): of what is sent, the share of the device that it takes is lost. The
 * tokens of experts are only found here; which pass they are sent beside is the
 * schedule's. Cost: linear in operands. Sources: Wang et al., "Overlap Communication with
 * Dependent Computation via Decomposition", ASPLOS 2023, section 4; PyTorch's async
 * tensor parallelism (torch/distributed/_symmetric_memory).
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

/* Groups that find_weights has visited, or added: of what queries, keys and values are
 * made of there are 3 products, their gradients, and 2 sums. */
#define MOST_SEEN 16
struct seen {
    int n, group[MOST_SEEN];
};

static bool see(struct seen *seen, int group)
{
    for (int i = 0; i < seen->n; i++)
        if (seen->group[i] == group)
            return false;
    if (seen->n < MOST_SEEN)
        seen->group[seen->n++] = group;
    return seen->n < MOST_SEEN;
}

/* The operand of a product that is no weight, if the other one is: the gradient of a
 * linear layer's result, where the product makes that of its input. -1: another product.
 */
static int gradient_of(const struct ap_graph *g, const struct ap_nest *nest)
{
    int gradient = -1, n = 0;

    for (int k = 0; k < nest->n_ins && nest->kernel == AP_KERNEL_DOT; k++)
        if (!ap_stage_is_weight(g, nest->ins[k].node)) {
            gradient = nest->ins[k].node;
            n++;
        }
    return n == 1 && nest->n_ins > 1 ? gradient : -1;
}

/* Adds the weights' gradients of the layers whose inputs' gradients make a partial sum:
 * the group, or those whose partial results it adds up. */
static void find_weights(struct beside *b, int group, unsigned axes, struct seen *seen)
{
    const struct ap_plan *plan = b->of->stage->plan;
    const struct ap_graph *g = plan->graph;
    const struct ap_nest *nest = &plan->nests->nest[group];
    const int gradient = gradient_of(g, nest);

    for (int k = 0; k < nest->n_ins; k++)
        for (int a = 0; a < plan->mesh.n_axes; a++) {
            const int linear = plan->choice[group].axis[a] - nest->n_factors;
            const int from = g->nodes[nest->ins[k].node].group;
            if (axes >> a & 1 && linear >= 0 && linear < nest->n_linear &&
                nest->linear[linear].ins >> k & 1 && from >= 0 && see(seen, from))
                find_weights(b, from, 1U << a, seen);
        }
    for (int u = gradient >= 0 ? g->user_start[gradient] : 0;
         gradient >= 0 && u < g->user_start[gradient + 1]; u++) {
        const int user = g->nodes[g->users[u]].group;
        if (b->of->fact->phase[user] == AP_BACKWARD &&
            gradient_of(g, &plan->nests->nest[user]) < 0 && see(seen, user))
            add_product(b, user);
    }
}

/* What torch.sum of the 2 to 8 parts that a scatter brought reaches of the rate of
 * copies: 0.23 to 0.43 of the memory's, in the middle, where a copying kernel reaches
 * 0.82 to 0.88 (H100; pytorch/pytorch pull request 191803). */
#define SUM_OF_COPIES 0.39

/* What a step saves beside the products that read what it gathers, or make what it
 * scatters, part by part; sent: its seconds. */
static double beside_parts(const struct ap_stage_products *of,
                           const struct ap_conversion *c, const struct ap_step *s,
                           int64_t shares, double sent)
{
    const struct ap_node *node = &of->stage->plan->graph->nodes[c->node];
    struct beside b = {of, ap_mesh_group(&of->stage->plan->mesh, s->coll.axes), 0, 0};
    const double n = (double)b.parts, whole = (double)(s->bytes / shares);
    double moved = 0; /* bytes of copies beside which nothing runs */

    if (s->op == AP_OP_ALL_GATHER) {
        find_readers(&b, c, s);
        moved = 2 * whole / n;
    } else if (s->op == AP_OP_REDUCE_SCATTER && add_product(&b, node->group)) {
        moved = (whole + whole / n) / SUM_OF_COPIES;
    }
    if (b.whole_sec == 0)
        return 0;
    const double part = b.parts_sec / n;
    return b.whole_sec + sent - part - (n - 1) * fmax(part, sent / (n - 1)) -
           ap_cost_compute(of->stage->cost, 0, node->shape.dtype, moved);
}

double ap_stage_beside_products(const struct ap_stage_products *of,
                                const struct ap_conversion *c, unsigned trainer,
                                int64_t shares)
{
    const struct ap_cost *cost = of->stage->cost;
    double parts = 0, sums = 0; /* saved part by part; sums, at most, beside gradients */
    unsigned axes = 0;

    for (int i = 0; i < c->path.n_steps; i++) {
        const struct ap_step *s = &c->path.steps[i];
        const double sent =
            ap_cost_collective(cost, s->op, s->coll.axes, s->bytes / shares);
        if (trainer & AP_TRAINER_TP_OVERLAP)
            parts += beside_parts(of, c, s, shares, sent);
        if (s->op != AP_OP_REDUCE_SCATTER && s->op != AP_OP_ALL_REDUCE)
            continue;
        axes |= s->coll.axes;
        sums += (1 - cost->cluster.collective_share[s->op]) * sent;
    }
    if (c->phase == AP_BACKWARD && trainer & AP_TRAINER_WGRAD_OVERLAP && axes) {
        struct beside b = {of, 1, 0, 0};
        struct seen seen = {0};
        find_weights(&b, of->stage->plan->graph->nodes[c->node].group, axes, &seen);
        parts = b.whole_sec > 0 ? fmax(parts, fmin(b.whole_sec, sums)) : parts;
    }
    return parts;
}
