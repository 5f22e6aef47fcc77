/*
 * Operators on a shard. The factor rules split only dimensions that an operator treats as
 * a whole, so that most attributes stay; the extents among them become local ones, and
 * what depends on an element's global place (iota, literals, lookups) carries that place.
 */
#include "program/partition.h"

#include <string.h>

struct ap_shape ap_local_shape(struct ap_arena *arena, const struct ap_mesh *mesh,
                               const struct ap_shape *shape, const struct ap_layout *l)
{
    if (shape->dtype != AP_TUPLE)
        return ap_layout_local(arena, mesh, shape, l);
    struct ap_shape *part = AP_NEW_N(arena, shape->n_parts, struct ap_shape);
    for (int i = 0; i < shape->n_parts; i++)
        part[i] = ap_layout_local(arena, mesh, &shape->parts[i], l);
    struct ap_shape local = *shape;
    local.parts = part;
    return local;
}

bool ap_is_neutral(const struct ap_graph *g, int node, enum ap_red red)
{
    enum { MAX_HOPS = 8 };
    const struct ap_node *n = &g->nodes[node];
    for (int hop = 0; hop < MAX_HOPS; hop++) {
        if (n->op != AP_OP_BROADCAST && n->op != AP_OP_RESHAPE &&
            n->op != AP_OP_TRANSPOSE && n->op != AP_OP_COPY && n->op != AP_OP_OPT_BARRIER)
            break;
        n = &g->nodes[n->in[0]];
    }
    const struct ap_literal *lit = &n->attrs->literal;
    if (n->op != AP_OP_CONSTANT || lit->elided || !lit->splat)
        return false;
    unsigned char neutral[16];
    ap_red_neutral(red, n->shape.dtype, neutral);
    return memcmp(neutral, lit->data, (size_t)ap_dtype_size(n->shape.dtype)) == 0;
}

static struct ap_attrs *copy_attrs(struct ap_arena *arena, const struct ap_attrs *a)
{
    return ap_arena_dup(arena, a, sizeof(*a));
}

/* Notes where the shard lies; attributes of an unsplit value stay as they are.
 */
static const struct ap_attrs *place(struct ap_arena *arena, const struct ap_attrs *attrs,
                                    const struct ap_shape *global,
                                    const struct ap_layout *layout)
{
    struct ap_attrs *a = copy_attrs(arena, attrs);
    a->layout = *layout;
    a->global = ap_arena_dup(arena, global, sizeof(*global));
    return a;
}

static bool is_split(const struct ap_localise *l, const struct ap_layout *layout)
{
    for (int a = 0; a < l->mesh->n_axes; a++)
        if (layout->axis[a].kind == AP_SPLIT)
            return true;
    return false;
}

static bool is_split_in(const struct ap_localise *l, const struct ap_layout *layout,
                        const struct ap_ints *dims)
{
    for (int a = 0; a < l->mesh->n_axes; a++)
        for (int i = 0; layout->axis[a].kind == AP_SPLIT && i < dims->n; i++)
            if (dims->v[i] == layout->axis[a].dim)
                return true;
    return false;
}

static int not_whole(const struct ap_localise *l, int d, struct ap_err *err)
{
    return ap_err_set(err, "%s (%s): dimension %d is split but not taken as a whole",
                      l->node->name, ap_ops[l->node->op].name, d);
}

/* Slices take a split dimension whole: the limit becomes the local extent. */
static int localise_slice(struct ap_arena *arena, const struct ap_localise *l,
                          const struct ap_attrs **out, struct ap_err *err)
{
    const struct ap_shape *global = &l->g->nodes[l->node->in[0]].shape;
    struct ap_slice_dim *dim = AP_NEW_N(arena, global->rank, struct ap_slice_dim);
    bool changed = false;
    for (int d = 0; d < global->rank; d++) {
        dim[d] = l->node->attrs->slice[d];
        if (l->in_local->dims[d] == global->dims[d])
            continue;
        if (dim[d].start != 0 || dim[d].stride != 1 || dim[d].limit != global->dims[d])
            return not_whole(l, d, err);
        dim[d].limit = l->in_local->dims[d];
        changed = true;
    }
    if (changed) {
        struct ap_attrs *a = copy_attrs(arena, l->node->attrs);
        a->slice = dim;
        *out = a;
    }
    return 0;
}

/* Sizes of a dynamic slice: those of the local result. */
static int localise_dynamic_slice(struct ap_arena *arena, const struct ap_localise *l,
                                  const struct ap_attrs **out, struct ap_err *err)
{
    const struct ap_shape *global = &l->g->nodes[l->node->in[0]].shape;
    for (int d = 0; d < global->rank; d++)
        if (l->in_local->dims[d] != global->dims[d] &&
            l->in_local->dims[d] != l->local->dims[d])
            return not_whole(l, d, err);
    if (ap_shape_same_dims(l->local, &l->node->shape))
        return 0;
    struct ap_attrs *a = copy_attrs(arena, l->node->attrs);
    a->dynamic_slice_sizes.n = l->local->rank;
    a->dynamic_slice_sizes.v = l->local->dims;
    *out = a;
    return 0;
}

/* Slice sizes of dimensions that are taken whole become local; a split looked-up
 * dimension turns the gather into a masked lookup. */
static int localise_gather(struct ap_arena *arena, const struct ap_localise *l,
                           const struct ap_attrs **out, struct ap_err *err)
{
    const struct ap_node *node = l->node;
    const struct ap_shape *global = &l->g->nodes[node->in[0]].shape;
    const struct ap_ints *sizes = &node->attrs->slice_sizes;
    int64_t *local = AP_NEW_N(arena, sizes->n, int64_t);
    bool changed = false;
    for (int d = 0; d < sizes->n; d++) {
        local[d] = sizes->v[d];
        if (l->in_local->dims[d] == global->dims[d] || sizes->v[d] == 1)
            continue;
        if (sizes->v[d] != global->dims[d])
            return not_whole(l, d, err);
        local[d] = l->in_local->dims[d];
        changed = true;
    }
    bool lookup = is_split_in(l, l->in_layout, &node->attrs->start_index_map);
    if (!changed && !lookup)
        return 0;
    struct ap_attrs *a = copy_attrs(arena, node->attrs);
    a->slice_sizes.v = local;
    *out = lookup ? place(arena, a, global, l->in_layout) : a;
    return 0;
}

/*
 * Group counts follow from the local shapes: features = groups * features per group, and
 * batch = batch groups * batch of the result.
 */
static int localise_convolution(struct ap_arena *arena, const struct ap_localise *l,
                                const struct ap_attrs **out, struct ap_err *err)
{
    const struct ap_attrs *attrs = l->node->attrs;
    const struct ap_conv_dims *c = &attrs->conv;
    int64_t feature_groups = attrs->feature_group_count;
    int64_t batch_groups = attrs->batch_group_count;
    if (feature_groups != 1) {
        int64_t feature = l->in_local->dims[c->lhs_feature];
        int64_t per_group = l->in1_local->dims[c->rhs_in];
        if (per_group < 1 || feature % per_group)
            return not_whole(l, c->lhs_feature, err);
        feature_groups = feature / per_group;
    }
    if (batch_groups != 1) {
        int64_t batch = l->in_local->dims[c->lhs_batch];
        int64_t out_batch = l->local->dims[c->out_batch];
        if (out_batch < 1 || batch % out_batch)
            return not_whole(l, c->lhs_batch, err);
        batch_groups = batch / out_batch;
    }
    if (feature_groups == attrs->feature_group_count &&
        batch_groups == attrs->batch_group_count)
        return 0;
    struct ap_attrs *a = copy_attrs(arena, attrs);
    a->feature_group_count = feature_groups;
    a->batch_group_count = batch_groups;
    *out = a;
    return 0;
}

int ap_localise_attrs(struct ap_arena *arena, const struct ap_localise *l,
                      const struct ap_attrs **out, struct ap_err *err)
{
    const struct ap_node *node = l->node;
    *out = node->attrs;
    switch ((int)node->op) {
    case AP_OP_PARAMETER:
        *out = place(arena, node->attrs, &node->shape, l->layout);
        return 0;
    case AP_OP_CONSTANT:
    case AP_OP_IOTA:
        if (!node->attrs->literal.splat && is_split(l, l->layout))
            *out = place(arena, node->attrs, &node->shape, l->layout);
        return 0;
    case AP_OP_SLICE:
        return localise_slice(arena, l, out, err);
    case AP_OP_DYNAMIC_SLICE:
        return localise_dynamic_slice(arena, l, out, err);
    case AP_OP_GATHER:
        return localise_gather(arena, l, out, err);
    case AP_OP_SCATTER:
        if (is_split_in(l, l->in_layout, &node->attrs->scatter_dims_to_operand_dims))
            *out =
                place(arena, node->attrs, &l->g->nodes[node->in[0]].shape, l->in_layout);
        return 0;
    case AP_OP_CONVOLUTION:
        return localise_convolution(arena, l, out, err);
    }
    return 0;
}
