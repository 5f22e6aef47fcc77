/*
 * Shape checks (shape_check.c) of gathers, scatters and dynamic slices: which dimensions
 * of the operand the indices choose, and which of the result's or updates' dimensions a
 * window covers, in order.
 */
#include "graph/shape_check.h"

#include <inttypes.h>

/* Sizes of the indices without the index vector's dimension; *vector gets its length. */
static int index_dims(const struct check *c, int64_t *dims, int *rank, int64_t *vector)
{
    const struct ap_shape *indices = check_in(c, 1);
    int64_t at = c->node->attrs->index_vector_dim;

    if (!ap_dtype_is_int(indices->dtype))
        return ap_err_set(c->err, "%s by indices of type %s", ap_ops[c->node->op].name,
                          ap_dtype_name(indices->dtype));
    if (at < 0 || at > indices->rank)
        return ap_err_set(c->err,
                          "index_vector_dim: dimension %" PRId64 " of indices of rank %d",
                          at, indices->rank);
    *rank = 0;
    *vector = at == indices->rank ? 1 : indices->dims[at];
    for (int d = 0; d < indices->rank; d++)
        if (d != at)
            dims[(*rank)++] = indices->dims[d];
    return 0;
}

/*
 * What gather and scatter have in common: `taken` dimensions of operand 0 (collapsed or
 * inserted) and batching ones are not in the window, mapped ones get an index. *outside
 * gets the bits of taken and batching.
 */
struct index_list {
    const char *name;
    const struct ap_ints *dims;
};
struct index_lists {
    struct index_list taken, map, batch, index_batch;
};

static int check_index_dims(const struct check *c, const struct index_lists *lists,
                            int64_t vector, unsigned *outside)
{
    const struct ap_ints *map = lists->map.dims, *batch = lists->batch.dims;
    const struct ap_ints *index_batch = lists->index_batch.dims;
    const struct ap_shape *in = check_in(c, 0), *indices = check_in(c, 1);
    unsigned t, m, b, ib;

    if (check_dims(c, lists->taken.name, lists->taken.dims, in->rank, &t) ||
        check_dims(c, lists->map.name, map, in->rank, &m) ||
        check_dims(c, lists->batch.name, batch, in->rank, &b) ||
        check_dims(c, lists->index_batch.name, index_batch, indices->rank, &ib) ||
        check_count(c, lists->index_batch.name, index_batch->n, batch->n))
        return -1;
    if (map->n != vector)
        return ap_err_set(c->err, "%s has %d entries for index vectors of %" PRId64,
                          lists->map.name, map->n, vector);
    if ((t & b) || (m & b))
        return ap_err_set(c->err, "%s: a batching dimension is indexed or taken twice",
                          lists->batch.name);
    if (c->node->attrs->index_vector_dim < indices->rank &&
        ib >> c->node->attrs->index_vector_dim & 1)
        return ap_err_set(c->err,
                          "%s: the index vector's dimension is not a batch dimension",
                          lists->index_batch.name);
    for (int i = 0; i < batch->n; i++)
        if (in->dims[batch->v[i]] != indices->dims[index_batch->v[i]])
            return ap_err_set(c->err, "%s pairs %" PRId64 " with %" PRId64 " elements",
                              lists->batch.name, in->dims[batch->v[i]],
                              indices->dims[index_batch->v[i]]);
    *outside = t | b;
    return 0;
}

/* Ascending, as the windows' dimensions must be. */
static int check_sorted(const struct check *c, const char *name,
                        const struct ap_ints *dims)
{
    for (int i = 1; i < dims->n; i++)
        if (dims->v[i] <= dims->v[i - 1])
            return ap_err_set(c->err, "%s is not ascending", name);
    return 0;
}

int check_gather(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    const struct index_lists lists = {
        {"collapsed_slice_dims", &a->collapsed_slice_dims},
        {"start_index_map", &a->start_index_map},
        {"operand_batching_dims", &a->operand_batching_dims},
        {"start_indices_batching_dims", &a->start_indices_batching_dims}};
    const struct ap_shape *in = check_in(c, 0);
    int64_t index[AP_MAX_RANK], window[AP_MAX_RANK], dims[2 * AP_MAX_RANK], vector;
    int n_index, n_window = 0;
    unsigned outside, offset;

    if (index_dims(c, index, &n_index, &vector) ||
        check_index_dims(c, &lists, vector, &outside) ||
        check_count(c, "slice_sizes", a->slice_sizes.n, in->rank))
        return -1;
    for (int d = 0; d < in->rank; d++) {
        int64_t size = a->slice_sizes.v[d];
        if (size < 0 || size > in->dims[d] || (outside >> d & 1 && size > 1))
            return ap_err_set(c->err,
                              "slice_sizes: %" PRId64 " of dimension %d with %" PRId64
                              " elements%s",
                              size, d, in->dims[d],
                              outside >> d & 1 ? ", which is collapsed or batching" : "");
        if (!(outside >> d & 1))
            window[n_window++] = size;
    }
    int rank = n_index + n_window;
    if (check_count(c, "offset_dims", a->offset_dims.n, n_window) ||
        check_dims(c, "offset_dims", &a->offset_dims, rank, &offset) ||
        check_sorted(c, "offset_dims", &a->offset_dims))
        return -1;
    for (int d = 0, w = 0, i = 0; d < rank; d++)
        dims[d] = offset >> d & 1 ? window[w++] : index[i++];
    return check_result(c, in->dtype, dims, rank);
}

int check_scatter(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    const struct index_lists lists = {
        {"inserted_window_dims", &a->inserted_window_dims},
        {"scatter_dims_to_operand_dims", &a->scatter_dims_to_operand_dims},
        {"input_batching_dims", &a->input_batching_dims},
        {"scatter_indices_batching_dims", &a->scatter_indices_batching_dims}};
    const struct ap_shape *in = check_in(c, 0), *updates = check_in(c, 2);
    int64_t index[AP_MAX_RANK], window[AP_MAX_RANK], vector;
    int n_index, n_window = 0;
    unsigned outside, in_window;

    if (index_dims(c, index, &n_index, &vector) ||
        check_index_dims(c, &lists, vector, &outside) ||
        check_reducer_arity(c, "to_apply", a->to_apply, 2, 1) ||
        check_dims(c, "update_window_dims", &a->update_window_dims, updates->rank,
                   &in_window) ||
        check_sorted(c, "update_window_dims", &a->update_window_dims))
        return -1;
    for (int d = 0; d < in->rank; d++)
        if (!(outside >> d & 1))
            window[n_window++] = in->dims[d];
    if (check_count(c, "update_window_dims", a->update_window_dims.n, n_window))
        return -1;
    if (updates->rank != n_index + n_window || updates->dtype != in->dtype)
        return ap_err_set(c->err, "scatter needs updates of type %s and rank %d",
                          ap_dtype_name(in->dtype), n_index + n_window);
    for (int d = 0, w = 0, i = 0; d < updates->rank; d++) {
        bool is_window = in_window >> d & 1;
        int64_t have = updates->dims[d], most = is_window ? window[w++] : index[i++];
        if (is_window ? have > most : have != most)
            return ap_err_set(c->err,
                              "scatter: dimension %d of the updates has %" PRId64
                              " elements, expected %s%" PRId64,
                              d, have, is_window ? "at most " : "", most);
    }
    return check_result_like(c, in);
}

/* Operands first .. are one scalar index per dimension of operand 0. */
static int check_starts(const struct check *c, int first)
{
    int rank = check_in(c, 0)->rank;

    if (c->node->n_in != first + rank)
        return ap_err_set(c->err, "%s needs one scalar index per dimension, %d, got %d",
                          ap_ops[c->node->op].name, rank, c->node->n_in - first);
    for (int k = first; k < c->node->n_in; k++)
        if (check_in(c, k)->rank || !ap_dtype_is_int(check_in(c, k)->dtype))
            return ap_err_set(c->err, "operand %d of %s must be an integer scalar", k,
                              ap_ops[c->node->op].name);
    return 0;
}

int check_dynamic_slice(const struct check *c)
{
    const struct ap_ints *sizes = &c->node->attrs->dynamic_slice_sizes;

    if (c->node->n_in < 1)
        return ap_err_set(c->err, "dynamic-slice without operands");
    const struct ap_shape *in = check_in(c, 0);
    if (check_starts(c, 1) || check_count(c, "dynamic_slice_sizes", sizes->n, in->rank))
        return -1;
    for (int d = 0; d < in->rank; d++)
        if (sizes->v[d] < 0 || sizes->v[d] > in->dims[d])
            return ap_err_set(c->err,
                              "dynamic_slice_sizes: %" PRId64
                              " of dimension %d with %" PRId64 " elements",
                              sizes->v[d], d, in->dims[d]);
    return check_result(c, in->dtype, sizes->v, in->rank);
}

int check_dynamic_update_slice(const struct check *c)
{
    if (c->node->n_in < 2)
        return ap_err_set(c->err, "dynamic-update-slice needs an operand and an update");
    const struct ap_shape *in = check_in(c, 0), *update = check_in(c, 1);
    if (check_starts(c, 2))
        return -1;
    if (update->dtype != in->dtype || update->rank != in->rank)
        return ap_err_set(c->err,
                          "dynamic-update-slice: the update's type or rank is not "
                          "the operand's");
    for (int d = 0; d < in->rank; d++)
        if (update->dims[d] > in->dims[d])
            return ap_err_set(c->err,
                              "dynamic-update-slice: %" PRId64
                              " elements into dimension %d with %" PRId64,
                              update->dims[d], d, in->dims[d]);
    return check_result_like(c, in);
}
