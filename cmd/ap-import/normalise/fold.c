/*
 * Folds values that follow from a loop's counter. When a loop is unrolled its counter is
 * a constant in every iteration, and so are values computed from it alone: the condition,
 * the index of the layer (also counted from the end), the bounds checks that JAX puts
 * around an index. Only scalar integers and truth values are folded, and only where a
 * counter takes part: the rest of the graph stays as it was written. A dynamic-slice at
 * such an index becomes a slice; a dynamic-update-slice keeps its form, with constants as
 * indices.
 */
#include "inline/inline.h"

#include "doc/literal.h"
#include "graph/element.h"

static bool is_scalar(const struct ap_shape *s)
{
    return s->rank == 0 && (ap_dtype_is_int(s->dtype) || s->dtype == AP_PRED);
}

bool inline_known(const struct import *im, int id, int64_t *value)
{
    const struct ap_node *node = &im->g.nodes[id];
    if (node->op != AP_OP_CONSTANT || !is_scalar(&node->shape) ||
        node->attrs->literal.elided)
        return false;
    *value = ap_elem_to_int(node->shape.dtype, node->attrs->literal.data);
    return true;
}

bool inline_countable(const struct ap_node *node)
{
    return is_scalar(&node->shape) && node->n_in <= 3 && !node->attrs->literal.elided;
}

bool inline_count(const struct ap_node *node, enum ap_dtype dtype, const int64_t *v,
                  int64_t *out)
{
    if (node->op != AP_OP_CONSTANT)
        return ap_eval_int(node, dtype, v, out);
    *out = ap_elem_to_int(dtype, node->attrs->literal.data);
    return true;
}

static const struct ap_attrs *scalar_attrs(struct import *im, enum ap_dtype dtype,
                                           int64_t value)
{
    unsigned char data[16] = {0};
    ap_elem_from_int(dtype, value, data);
    return import_scalar_attrs(im->src->arena, dtype, data);
}

static void fold_slice(struct import *im, struct ap_node *node, struct node_info *info)
{
    const struct ap_shape *x = &im->g.nodes[node->in[0]].shape;
    struct ap_slice_dim *slice =
        AP_NEW_N(im->src->arena, x->rank + 1, struct ap_slice_dim);
    for (int d = 0; d < x->rank; d++) {
        int64_t start, size = node->shape.dims[d];
        if (!inline_known(im, node->in[1 + d], &start))
            return;
        start = start < 0 ? 0 : start > x->dims[d] - size ? x->dims[d] - size : start;
        slice[d] = (struct ap_slice_dim){start, start + size, 1};
    }
    struct ap_attrs *a = import_new_attrs(im->src->arena);
    a->slice = slice;
    a->n_slice = x->rank;
    node->op = AP_OP_SLICE;
    node->attrs = a;
    node->n_in = 1;
    info->layered = true;
}

int inline_fold(struct import *im, struct ap_node *node, struct node_info *info)
{
    bool known = true;
    int64_t v[3] = {0};
    int first = node->op == AP_OP_DYNAMIC_SLICE          ? 1
                : node->op == AP_OP_DYNAMIC_UPDATE_SLICE ? 2
                                                         : 0;
    for (int k = first; k < node->n_in; k++) {
        int depth = im->info[node->in[k]].counter;
        info->counter = depth > info->counter ? depth : info->counter;
        int64_t value = 0;
        known &= inline_known(im, node->in[k], &value);
        if (k < 3)
            v[k] = value;
    }
    if (!info->counter)
        return -1;
    if (node->op == AP_OP_DYNAMIC_SLICE) {
        fold_slice(im, node, info);
        return -1;
    }
    if (node->op == AP_OP_DYNAMIC_UPDATE_SLICE) {
        info->layered = known;
        return -1;
    }
    int64_t value;
    if (node->op == AP_OP_SELECT && inline_known(im, node->in[0], v))
        return node->in[v[0] ? 1 : 2];
    enum ap_dtype dtype = node->n_in ? im->g.nodes[node->in[0]].shape.dtype : AP_TUPLE;
    if (!known || node->n_in > 3 || !is_scalar(&node->shape) ||
        !ap_eval_int(node, dtype, v, &value)) {
        info->counter = 0;
        return -1;
    }
    node->attrs = scalar_attrs(im, node->shape.dtype, value);
    node->op = AP_OP_CONSTANT;
    node->n_in = 0;
    node->in = NULL;
    return -1;
}
