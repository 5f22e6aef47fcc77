/*
 * Problem: `logits[arange(batch), labels]` reads one element of each row, but its indices
 * may point at any row, so that microbatches and stages would need all of them. Idea: a
 * column of the indices that counts along one of their own dimensions makes that
 * dimension a batch dimension of the gather, or of the scatter that is its gradient,
 * which reads row i for index i alone. The column goes; the others stay. Cost: linear in
 * the columns, and in a constant's elements where a column is one.
 */
#include "import.h"

#include "graph/element.h"

#define MAX_STEPS 8 /* operators between a column and what it counts by */

static const struct ap_node *node_at(const struct import *im, int id)
{
    return &im->g.nodes[id];
}

static bool counts(const struct import *im, int id, int dim, int steps);

/* A dimension of the operand that dimension dim of a reshape is, or -1. */
static int reshaped_from(const struct ap_shape *x, const struct ap_shape *shape, int dim)
{
    int64_t outer = 1, before = 1;

    for (int d = 0; d < dim; d++)
        outer *= shape->dims[d];
    for (int i = 0; i < x->rank; i++) {
        if (before == outer && x->dims[i] == shape->dims[dim] && x->dims[i] != 1)
            return i;
        before *= x->dims[i];
    }
    return -1;
}

static int broadcast_from(const struct ap_node *node, const struct ap_shape *x, int dim)
{
    for (int i = 0; i < node->attrs->dimensions.n; i++)
        if (node->attrs->dimensions.v[i] == dim && x->dims[i] == node->shape.dims[dim])
            return i;
    return -1;
}

/* Whether a constant's elements are their places along dimension dim. */
static bool constant_counts(const struct ap_node *node, int dim)
{
    const struct ap_literal *l = &node->attrs->literal;
    const int size = ap_dtype_size(node->shape.dtype);
    int64_t inner = 1;

    if (l->elided || l->splat || !ap_dtype_is_int(node->shape.dtype))
        return false;
    for (int d = dim + 1; d < node->shape.rank; d++)
        inner *= node->shape.dims[d];
    for (int64_t i = 0; i < ap_shape_elems(&node->shape); i++)
        if (ap_elem_to_int(node->shape.dtype, (const char *)l->data + i * size) !=
            i / inner % node->shape.dims[dim])
            return false;
    return true;
}

/* Whether the node is "a place is below 0", which none is. */
static bool is_never(const struct import *im, int id, int dim, int steps)
{
    const struct ap_node *node = node_at(im, id);
    const struct ap_node *zero = node->n_in == 2 ? node_at(im, node->in[1]) : NULL;

    if (node->op != AP_OP_COMPARE || node->attrs->direction != AP_LT)
        return false;
    if (zero->op == AP_OP_BROADCAST)
        zero = node_at(im, zero->in[0]);
    return zero->op == AP_OP_CONSTANT && zero->shape.rank == 0 &&
           !zero->attrs->literal.elided && ap_dtype_is_int(zero->shape.dtype) &&
           ap_elem_to_int(zero->shape.dtype, zero->attrs->literal.data) == 0 &&
           counts(im, node->in[0], dim, steps);
}

/* Whether every element is its place along dimension dim. */
static bool counts(const struct import *im, int id, int dim, int steps)
{
    const struct ap_node *node = node_at(im, id);
    const struct ap_shape *x = node->n_in ? &node_at(im, node->in[0])->shape : NULL;
    int from = dim;

    if (steps == 0)
        return false;
    switch ((int)node->op) {
    case AP_OP_IOTA:
        return node->attrs->iota_dimension == dim;
    case AP_OP_CONSTANT:
        return constant_counts(node, dim);
    case AP_OP_SELECT:
        return is_never(im, node->in[0], dim, steps - 1) &&
               counts(im, node->in[2], dim, steps - 1);
    case AP_OP_CONVERT:
        break;
    case AP_OP_RESHAPE:
        from = reshaped_from(x, &node->shape, dim);
        break;
    case AP_OP_BROADCAST:
        from = broadcast_from(node, x, dim);
        break;
    default:
        return false;
    }
    return from >= 0 && ap_dtype_is_int(node->shape.dtype) &&
           counts(im, node->in[0], from, steps - 1);
}

/* The list with v put in at place at, or without the entry there (v < 0). */
static void edit(struct ap_arena *arena, struct ap_ints *list, int at, int64_t v)
{
    int64_t *out = AP_NEW_N(arena, list->n + 2, int64_t);
    int n = 0;

    for (int i = 0; i <= list->n; i++) {
        if (i == at && v >= 0)
            out[n++] = v;
        if (i < list->n && (i != at || v >= 0))
            out[n++] = list->v[i];
    }
    *list = (struct ap_ints){n, out};
}

static int place_of(const struct ap_ints *list, int64_t v)
{
    for (int i = 0; i < list->n; i++)
        if (list->v[i] == v)
            return i;
    return -1;
}

/* The lists of a gather or of a scatter. */
struct lists {
    struct ap_ints *map;     /* column: dimension that it indexes */
    struct ap_ints *dropped; /* dimensions of one element, left out of the window */
    struct ap_ints *batch, *index_batch;
};

static struct lists lists_of(struct ap_attrs *a, bool gather)
{
    return gather ? (struct lists){&a->start_index_map, &a->collapsed_slice_dims,
                                   &a->operand_batching_dims,
                                   &a->start_indices_batching_dims}
                  : (struct lists){&a->scatter_dims_to_operand_dims,
                                   &a->inserted_window_dims, &a->input_batching_dims,
                                   &a->scatter_indices_batching_dims};
}

/* A dimension of the indices that column k counts along, as long as the one that it
 * indexes; -1: none. */
static int counted_dim(const struct import *im, const struct lists *l,
                       const struct ap_node *column, int vector_dim, int64_t size)
{
    for (int d = 0; d < column->shape.rank; d++)
        if (d != vector_dim && column->shape.dims[d] == size && size > 1 &&
            place_of(l->index_batch, d) < 0 &&
            counts(im, (int)(column - im->g.nodes), d, MAX_STEPS))
            return d;
    return -1;
}

void import_batch_rows(struct import *im, struct ap_node *node,
                       const struct node_info *info)
{
    struct ap_arena *arena = im->src->arena;
    const struct ap_node *indices = node_at(im, node->in[1]);
    const int vector_dim = (int)node->attrs->index_vector_dim;
    struct ap_attrs *a = ap_arena_dup(arena, node->attrs, sizeof *a);
    struct lists l = lists_of(a, node->op == AP_OP_GATHER);
    struct ap_node kept = *indices;

    if (indices->op != AP_OP_CONCATENATE || indices->n_in != l.map->n ||
        indices->attrs->dimensions.v[0] != vector_dim)
        return;
    int *columns =
        ap_arena_dup(arena, indices->in, (size_t)indices->n_in * sizeof *columns);
    kept.in = columns;
    for (int k = 0; k < kept.n_in && kept.n_in > 1; k++) {
        const int64_t dim = l.map->v[k];
        const int at = place_of(l.dropped, dim);
        const int d = at < 0 ? -1
                             : counted_dim(im, &l, node_at(im, columns[k]), vector_dim,
                                           node_at(im, node->in[0])->shape.dims[dim]);
        if (d < 0)
            continue;
        int place = 0;
        while (place < l.batch->n && l.batch->v[place] < dim)
            place++;
        edit(arena, l.dropped, at, -1);
        edit(arena, l.map, k, -1);
        edit(arena, l.batch, place, dim);
        edit(arena, l.index_batch, place, d);
        for (int i = k--; i + 1 < kept.n_in; i++)
            columns[i] = columns[i + 1];
        kept.n_in--;
    }
    if (kept.n_in == indices->n_in)
        return;
    int64_t *dims = ap_arena_dup(arena, kept.shape.dims,
                                 (size_t)kept.shape.rank * sizeof *kept.shape.dims);
    dims[vector_dim] = kept.n_in;
    kept.shape.dims = dims;
    int *in = ap_arena_dup(arena, node->in, (size_t)node->n_in * sizeof *in);
    in[1] = kept.n_in > 1 ? import_add(im, &kept, info) : columns[0];
    node->in = in;
    node->attrs = a;
}
