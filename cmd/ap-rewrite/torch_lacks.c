/*
 * Problem: a plan has layouts that DTensor has no word for, or takes and computes
 * otherwise than one process. Idea: a table of such layouts, found mesh axis by mesh
 * axis. A tensor that has one is whole along that axis in PyTorch, or, where DTensor
 * computes some operators in parts, stays and is gathered by the others. Notes say for
 * each row how many tensors there are, and what the plan's cluster takes to gather them
 * once. What depends on operators alone is the loader's (LACKS in
 * python/autopar/torch/gather.py). The rows were found with PyTorch 2.15 by
 * tests/torch_back.py, which compares with one process. Cost: linear in the tensors.
 */
#include "torch.h"

#include <math.h>

struct lack {
    const char *what;
    bool stays; /* gathered by the operators that need it */
    bool (*finds)(const struct torch_part *part, int node, const struct ap_layout *l,
                  int axis, unsigned where);
};

static bool is_strided(const struct torch_part *part, int node, const struct ap_layout *l,
                       int axis, unsigned where)
{
    (void)part, (void)node, (void)where;
    return l->axis[axis].kind == AP_SPLIT && l->axis[axis].stride;
}

static bool is_spatial(const struct torch_part *part, int node, const struct ap_layout *l,
                       int axis, unsigned where)
{
    const struct ap_shape *shape = &part->plan->graph->nodes[node].shape;
    return where & TORCH_CONVOLVED && l->axis[axis].kind == AP_SPLIT &&
           l->axis[axis].dim >= 2 && shape->rank > 2;
}

/* DTensor adds no partial sums of a parameter to what an operator computes. */
static bool is_partial(const struct torch_part *part, int node, const struct ap_layout *l,
                       int axis, unsigned where)
{
    (void)part, (void)node;
    return where & TORCH_USED && l->axis[axis].kind == AP_PARTIAL;
}

/* Whether the axis splits a dimension into parts of different sizes; of so many axes. */
static int uneven_axes(const struct torch_part *part, int node, const struct ap_layout *l,
                       int axis)
{
    const struct ap_mesh *mesh = &part->plan->mesh;
    const struct ap_placement *p = &l->axis[axis];
    int64_t parts = 1;
    int n = 0;

    if (p->kind != AP_SPLIT)
        return 0;
    for (int a = 0; a < mesh->n_axes; a++)
        if (l->axis[a].kind == AP_SPLIT && l->axis[a].dim == p->dim) {
            parts *= mesh->size[a];
            n++;
        }
    return part->plan->graph->nodes[node].shape.dims[p->dim] % parts ? n : 0;
}

/* All but the first axis of a dimension. */
static bool is_nested(const struct torch_part *part, int node, const struct ap_layout *l,
                      int axis, unsigned where)
{
    (void)where;
    if (uneven_axes(part, node, l, axis) < 2)
        return false;
    for (int a = 0; a < axis; a++)
        if (l->axis[a].kind == AP_SPLIT && l->axis[a].dim == l->axis[axis].dim)
            return true;
    return false;
}

static bool is_uneven(const struct torch_part *part, int node, const struct ap_layout *l,
                      int axis, unsigned where)
{
    return !(where & (TORCH_USED | TORCH_HELD)) && uneven_axes(part, node, l, axis) == 1;
}

static const struct lack lacks[TORCH_N_LACKS] = {
    {"split at a stride: whole along that axis", false, is_strided},
    {"split along a spatial dimension of a convolution: whole along that axis", false,
     is_spatial},
    {"partial sums of a parameter: it is used whole", false, is_partial},
    {"split along several axes into parts of different sizes: split along the first "
     "alone",
     false, is_nested},
    {"split into parts of different sizes: gathered by operators other than products and "
     "elementwise ones",
     true, is_uneven},
};

void torch_express(struct torch_part *part, int node, unsigned where, struct ap_layout *l)
{
    const struct ap_mesh *mesh = &part->plan->mesh;
    const struct ap_shape *shape = &part->plan->graph->nodes[node].shape;

    for (int k = 0; k < TORCH_N_LACKS; k++) {
        struct ap_layout whole = *l;
        for (int a = mesh->n_axes; a-- > 0;)
            if (!(mesh->microbatch >> a & 1) &&
                lacks[k].finds(part, node, &whole, a, where))
                whole.axis[a] = (struct ap_placement){0};
        if (ap_layout_equal(&whole, l))
            continue;
        const double sec = ap_convert_sec(part->cost, shape, l, &whole);
        part->lack[k].n++;
        part->lack[k].sec += isfinite(sec) ? sec : 0;
        *l = lacks[k].stays ? *l : whole;
    }
}

void torch_note_lacks(const struct torch_part *part)
{
    for (int k = 0; k < TORCH_N_LACKS; k++)
        if (part->lack[k].n)
            ap_note(part->notes, "%d tensor%s %s (%.3g s to gather once)",
                    part->lack[k].n, part->lack[k].n == 1 ? " is" : "s are",
                    lacks[k].what, part->lack[k].sec);
}
