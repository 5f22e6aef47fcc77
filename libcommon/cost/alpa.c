/*
 * Problem: Alpa's integer program has free computation and free slices, so that splitting
 * and replicating a small tensor would often be ties, and its partitioner could not make
 * every change of layout. Idea: a replicated leaf costs as much as the smallest
 * all-reduce on each axis, and changes of layout that the partitioner was bad at are
 * forbidden; an axis of length 1 still has its latency. Cost: O(members) per group,
 * O(axes) per pair of layouts. After Zheng et al., "Alpa", OSDI 2022, section 4, and the
 * public code of its sharding pass (replicated penalty, resharding cost).
 */
#include "cost/alpa.h"

#include <math.h>

double ap_alpa_unit_penalty(const struct ap_cost *cost)
{
    const struct ap_mesh *mesh = &cost->mesh;
    int first = mesh->microbatch ? 1 : 0;
    int n_axes = mesh->n_axes - first > 2 ? mesh->n_axes - first : 2;
    double sum = 0;

    for (int k = 0; k < n_axes; k++) {
        double n = first + k < mesh->n_axes ? (double)mesh->size[first + k] : 1;
        sum += round(cost->alpa.alpha[k] + cost->alpa.beta[k] * 2 * (n - 1) / n) + 0.01;
    }
    return round(sum);
}

static int count_long_axes(const struct ap_mesh *mesh)
{
    int n = 0;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        n += mesh->size[a] > 1;
    return n;
}

static int count_split(const struct ap_mesh *mesh, const struct ap_choice_vec *choice)
{
    int n = 0;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        n += mesh->size[a] > 1 && choice->axis[a] >= 0;
    return n;
}

/* What stands for the work of a contraction that an axis does not share: an all-reduce of
 * its operands on each axis. */
static double work_done_twice(const struct ap_nest *nest, const struct ap_graph *g,
                              const struct ap_cost *cost)
{
    int64_t bytes = 0;
    double sum = 0;

    for (int k = 0; k < 2; k++)
        bytes += ap_shape_bytes(&g->nodes[g->nodes[nest->members[0]].in[k]].shape);
    for (int a = cost->mesh.microbatch ? 1 : 0; a < cost->mesh.n_axes; a++)
        sum += ap_cost_collective(cost, AP_OP_ALL_REDUCE, 1u << a, bytes);
    return sum;
}

/* Penalties' worth of a group that is made of scalars, iotas and their broadcasts alone.
 */
static double made_of_scalars(const struct ap_nest *nest, const struct ap_graph *g)
{
    double worth = 0;

    for (int i = 0; i < nest->n_ins; i++)
        if (g->nodes[nest->ins[i].node].shape.rank > 0)
            return 0;
    for (int m = 0; m < nest->n_members; m++) {
        const struct ap_node *n = &g->nodes[nest->members[m]];
        bool leaf = n->op == AP_OP_IOTA || n->op == AP_OP_BROADCAST ||
                    ap_ops[n->op].class == AP_CLASS_ELEMENTWISE;
        if (!leaf && n->shape.rank > 0)
            return 0;
        if (n->op == AP_OP_IOTA)
            return 5;
        if (n->op == AP_OP_BROADCAST)
            worth = 1;
    }
    return worth;
}

double ap_alpa_penalty(const struct ap_nest *nest, const struct ap_graph *g,
                       const struct ap_cost *cost, const struct ap_choice_vec *choice)
{
    int id = nest->members[0];
    const struct ap_node *first = &g->nodes[id];
    int n_long = count_long_axes(&cost->mesh), n_split = count_split(&cost->mesh, choice);

    if (cost->alpa.space && nest->heavy && n_split < n_long)
        return work_done_twice(nest, g, cost);
    if (cost->alpa.mixed && first->op == AP_OP_PARAMETER && n_split == 1 && n_long == 2)
        return 0.8 * ap_alpa_unit_penalty(cost);
    if (n_long == 0 || n_split > 0)
        return 0;
    if (first->op == AP_OP_PARAMETER)
        return ap_alpa_unit_penalty(cost);
    if (first->op == AP_OP_RESHAPE && first->shape.rank > 0)
        return g->user_start[id + 1] - g->user_start[id] > 1 ? ap_alpa_unit_penalty(cost)
                                                             : 0;
    return made_of_scalars(nest, g) * ap_alpa_unit_penalty(cost);
}

bool ap_alpa_all_to_all(const struct ap_cost *cost, int axis)
{
    int k = ap_mesh_device_axis(&cost->mesh, axis);
    return (cost->alpa.mixed || count_long_axes(&cost->mesh) <= 1) &&
           !(cost->alpa.no_all_to_all >> k & 1);
}

/* The set of axes that split dimension d; ~0 where one does with a stride, unless it is
 * that of a microbatch's share. */
static unsigned axes_on(const struct ap_mesh *mesh, const struct ap_layout *l, int d)
{
    unsigned axes = 0;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++) {
        const struct ap_placement *p = &l->axis[a];
        if (p->kind == AP_SPLIT && p->dim == d)
            axes |= p->stride && !mesh->microbatch ? ~0u : 1u << a;
    }
    return axes;
}

bool ap_alpa_converts(const struct ap_cost *cost, const struct ap_layout *from,
                      const struct ap_layout *to)
{
    const struct ap_mesh *mesh = &cost->mesh;
    int slices = 0, gathers = 0;
    unsigned sliced = 0, gathered = 0;
    bool is_mixed = false;

    for (int d = 0; d < AP_MAX_RANK; d++) {
        unsigned f = axes_on(mesh, from, d), t = axes_on(mesh, to, d);
        if (f == ~0u || t == ~0u || (f & ~t && t & ~f))
            return false; /* a stride, or an axis would move inside a dimension */
        is_mixed |= (f & (f - 1)) || (t & (t - 1));
        slices += (t & ~f) != 0;
        gathers += (f & ~t) != 0;
        sliced |= t & ~f;
        gathered |= f & ~t;
    }
    if (is_mixed && (!cost->alpa.mixed || gathers > 1))
        return false;
    if (gathers == 0)
        return true;
    bool one = !(gathered & (gathered - 1)), moves = (sliced & gathered) != 0;
    if (slices == 1 && gathers == 1 && (moves || !is_mixed))
        return sliced == gathered && one && (is_mixed || count_long_axes(mesh) == 1) &&
               ap_alpa_all_to_all(cost, __builtin_ctz(gathered));
    return !(gathered >> (mesh->microbatch ? 1 : 0) & cost->alpa.no_all_gather) &&
           (is_mixed ? !moves : slices <= 1 || gathers <= 1);
}
