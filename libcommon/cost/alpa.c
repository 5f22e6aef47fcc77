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

static bool is_split(const struct ap_mesh *mesh, const struct ap_choice_vec *choice)
{
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        if (mesh->size[a] > 1 && choice->axis[a] >= 0)
            return true;
    return false;
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

    if (ap_mesh_devices(&cost->mesh) == 1 || is_split(&cost->mesh, choice))
        return 0;
    if (first->op == AP_OP_PARAMETER)
        return ap_alpa_unit_penalty(cost);
    if (first->op == AP_OP_RESHAPE && first->shape.rank > 0)
        return g->user_start[id + 1] - g->user_start[id] > 1 ? ap_alpa_unit_penalty(cost)
                                                             : 0;
    return made_of_scalars(nest, g) * ap_alpa_unit_penalty(cost);
}

static int count_long_axes(const struct ap_mesh *mesh)
{
    int n = 0;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        n += mesh->size[a] > 1;
    return n;
}

bool ap_alpa_all_to_all(const struct ap_cost *cost, int axis)
{
    int k = ap_mesh_device_axis(&cost->mesh, axis);
    return count_long_axes(&cost->mesh) <= 1 && !(cost->alpa.no_all_to_all >> k & 1);
}

/* The axis that splits dimension d, -1 for none, -2 for more than one or a stride. */
static int axis_on(const struct ap_mesh *mesh, const struct ap_layout *l, int d)
{
    int axis = -1;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++) {
        const struct ap_placement *p = &l->axis[a];
        if (p->kind == AP_SPLIT && p->dim == d)
            axis = axis == -1 && p->stride == 0 ? a : -2;
    }
    return axis;
}

bool ap_alpa_converts(const struct ap_cost *cost, const struct ap_layout *from,
                      const struct ap_layout *to)
{
    const struct ap_mesh *mesh = &cost->mesh;
    int slices = 0, gathers = 0, axis = -1;
    bool may_gather = true;

    for (int d = 0; d < AP_MAX_RANK; d++) {
        int f = axis_on(mesh, from, d), t = axis_on(mesh, to, d);
        if (f == -2 || t == -2 || (f >= 0 && t >= 0 && f != t))
            return false;
        slices += f < 0 && t >= 0;
        if (f < 0 || t >= 0)
            continue;
        gathers++;
        axis = f;
        may_gather &= !(cost->alpa.no_all_gather >> ap_mesh_device_axis(mesh, f) & 1);
    }
    if (gathers == 0)
        return true;
    if (slices == 1 && gathers == 1)
        return ap_alpa_all_to_all(cost, axis);
    return may_gather && (slices <= 1 || gathers <= 1);
}
