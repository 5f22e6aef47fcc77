/* Operators that pick elements by indices, or put them. */
#include "onnx/onnx.h"

#include <string.h>

static int gather(struct ox *c)
{
    int64_t axis = ox_attr_i(c, "axis", 0);
    struct ap_shape s = ox_shape(c, c->in[0]);
    if (!ox_axis(c, &axis, s.rank))
        return -1;
    return ox_take(c, c->in[0], ox_wrap_index(c, c->in[1], s.dims[axis]), (int)axis);
}

static int gather_elements(struct ox *c)
{
    int64_t axis = ox_attr_i(c, "axis", 0);
    struct ap_shape s = ox_shape(c, c->in[0]);
    if (!ox_axis(c, &axis, s.rank))
        return -1;
    return ox_gather_elements(c, c->in[0], ox_wrap_index(c, c->in[1], s.dims[axis]),
                              (int)axis);
}

/* Index vectors [..., k] into dimensions first .. first + k - 1, all counted from 0. */
static int wrap_vectors(struct ox *c, int indices, const struct ap_shape *s, int first)
{
    struct ap_shape i = ox_shape(c, indices);
    if (indices < 0)
        return -1;
    if (i.dtype != AP_S64 && i.dtype != AP_S32)
        return ox_fail(c, "indices are %s", ap_dtype_name(i.dtype));
    int64_t k = i.dims[i.rank - 1];
    int sizes = ox_ints_const(c, i.dtype, 1, &k, s->dims + first);
    int below = ox_cmp(c, AP_LT, indices, ox_full_like(c, indices, 0));
    int moved =
        ox_bin(c, AP_OP_ADD, indices, ox_along(c, sizes, i.rank - 1, i.rank, i.dims));
    return ox_select(c, below, moved, indices);
}

static int gather_nd(struct ox *c)
{
    int64_t b = ox_attr_i(c, "batch_dims", 0), dims[2 * AP_MAX_RANK], sizes[AP_MAX_RANK],
            first[AP_MAX_RANK], offset[AP_MAX_RANK];
    struct ap_shape s = ox_shape(c, c->in[0]), i = ox_shape(c, c->in[1]);
    if (i.rank < 1 || b < 0 || b >= i.rank || b >= s.rank ||
        i.dims[i.rank - 1] > s.rank - b || i.dims[i.rank - 1] < 1)
        return ox_fail(c, "data, indices and batch_dims do not fit");
    int last = i.rank - 1, k = (int)(b + i.dims[last]), rank = last, n = 0;
    int part[AP_MAX_RANK + 1];
    for (int d = 0; d < b; d++)
        if (s.dims[d] != i.dims[d])
            return ox_fail(c, "batch dimension %d differs", d);
    part[b] = wrap_vectors(c, c->in[1], &s, (int)b);
    memcpy(dims, i.dims, (size_t)i.rank * sizeof *dims);
    dims[last] = 1;
    for (int d = 0; d < b; d++)
        part[d] = ox_iota(c, i.dtype, i.rank, dims, d);
    int index = ox_concat(c, (int)b + 1, part, last);
    if (last + s.rank - k > AP_MAX_RANK)
        return ox_refuse(c, "of this rank is not supported yet");
    for (int d = 0; d < s.rank; d++) {
        sizes[d] = d < k ? 1 : s.dims[d];
        first[d] = d;
        if (d >= k) {
            offset[n++] = rank;
            dims[rank++] = s.dims[d];
        }
    }
    struct ap_attrs *a = ap_build_attrs(&c->b);
    a->offset_dims = ap_build_ints(&c->b, n, offset);
    a->collapsed_slice_dims = a->start_index_map = ap_build_ints(&c->b, k, first);
    a->index_vector_dim = last;
    a->slice_sizes = ap_build_ints(&c->b, s.rank, sizes);
    int in[2] = {c->in[0], index};
    return ox_node(c, AP_OP_GATHER, ap_build_shape(&c->b, s.dtype, rank, dims), a, 2, in);
}

/* ---- scatter ---- */

static bool reduction(struct ox *c, enum ap_red *red)
{
    static const struct {
        const char *name;
        enum ap_red red;
    } names[] = {{"none", AP_RED_ASSIGN},
                 {"add", AP_RED_SUM},
                 {"mul", AP_RED_PROD},
                 {"max", AP_RED_MAX},
                 {"min", AP_RED_MIN}};
    const char *name = ox_attr_s(c, "reduction", "none");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0) {
            *red = names[i].red;
            return true;
        }
    ox_fail(c, "reduction '%s'", name);
    return false;
}

static int scatter(struct ox *c, int x, int index, int updates, enum ap_red red, int k)
{
    struct ap_shape s = ox_shape(c, x), i = ox_shape(c, index), u = ox_shape(c, updates);
    int64_t first[AP_MAX_RANK], window[AP_MAX_RANK];
    int n = 0;
    if (x < 0 || index < 0 || updates < 0)
        return -1;
    if (s.dtype != u.dtype)
        return ox_fail(c, "updates are of another type");
    for (int d = 0; d < k; d++)
        first[d] = d;
    for (int d = i.rank - 1; d < u.rank; d++)
        window[n++] = d;
    struct ap_attrs *a = ap_build_attrs(&c->b);
    a->update_window_dims = ap_build_ints(&c->b, n, window);
    a->inserted_window_dims = a->scatter_dims_to_operand_dims =
        ap_build_ints(&c->b, k, first);
    a->index_vector_dim = i.rank - 1;
    a->to_apply = ap_build_reducer(&c->b, red, s.dtype);
    int in[3] = {x, index, updates};
    return ox_node(c, AP_OP_SCATTER, s, a, 3, in);
}

static int scatter_elements(struct ox *c)
{
    int64_t axis = ox_attr_i(c, "axis", 0);
    struct ap_shape s = ox_shape(c, c->in[0]), i = ox_shape(c, c->in[1]);
    struct ap_shape u = ox_shape(c, c->in[2]);
    enum ap_red red;
    if (!ox_axis(c, &axis, s.rank) || !reduction(c, &red))
        return -1;
    if (s.rank != i.rank || !ap_shape_same_dims(&i, &u))
        return ox_fail(c, "data, indices and updates do not fit");
    int wrapped = ox_wrap_index(c, c->in[1], s.dims[axis]);
    return scatter(c, c->in[0], ox_index_grid(c, wrapped, (int)axis), c->in[2], red,
                   s.rank);
}

static int scatter_nd(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]), i = ox_shape(c, c->in[1]);
    struct ap_shape u = ox_shape(c, c->in[2]);
    enum ap_red red;
    if (!reduction(c, &red))
        return -1;
    bool fits = i.rank >= 1 && i.dims[i.rank - 1] >= 1 && i.dims[i.rank - 1] <= s.rank;
    int k = fits ? (int)i.dims[i.rank - 1] : 0;
    fits = fits && u.rank == i.rank - 1 + s.rank - k;
    for (int d = 0; fits && d < u.rank; d++)
        fits = u.dims[d] == (d < i.rank - 1 ? i.dims[d] : s.dims[k + d - (i.rank - 1)]);
    if (!fits)
        return ox_fail(c, "data, indices and updates do not fit");
    return scatter(c, c->in[0], wrap_vectors(c, c->in[1], &s, 0), c->in[2], red, k);
}

/* ---- others ---- */

static int one_hot(struct ox *c)
{
    const double *depth;
    int64_t n, dims[AP_MAX_RANK], axis = ox_attr_i(c, "axis", -1);
    int x = c->in[0];
    struct ap_shape s = ox_shape(c, x), v = ox_shape(c, c->in[2]);
    if (!ox_floats(c, 1, &depth, &n) || !ox_axis(c, &axis, s.rank + 1))
        return -1;
    if (n != 1 || !(depth[0] >= 1 && depth[0] < 1e9) || v.rank != 1 || v.dims[0] != 2)
        return ox_fail(c, "depth is not a positive scalar, or values are not two");
    if (s.rank == AP_MAX_RANK)
        return ox_refuse(c, "of this rank is not supported yet");
    int64_t size = (int64_t)depth[0];
    for (int d = 0, k = 0; d <= s.rank; d++)
        dims[d] = d == axis ? 1 : s.dims[k++];
    x = ox_wrap_index(c, ox_to(c, x, AP_S64), size);
    x = ox_reshape(c, x, s.rank + 1, dims);
    dims[axis] = size;
    int hot = ox_cmp(c, AP_EQ, ox_iota(c, AP_S64, s.rank + 1, dims, (int)axis), x);
    int off = ox_reshape(c, ox_slice(c, c->in[2], 0, 0, 1, 1), 0, NULL);
    int on = ox_reshape(c, ox_slice(c, c->in[2], 0, 1, 2, 1), 0, NULL);
    return ox_select(c, hot, on, off);
}

/* Elements where a condition holds, which must be known. */
static int compress(struct ox *c)
{
    struct ap_ints cond;
    int x = c->in[0];
    struct ap_shape s = ox_shape(c, x);
    int64_t axis = ox_attr_i(c, "axis", 0), n = 0, all = ap_shape_elems(&s);
    if (!ox_ints(c, 1, &cond))
        return -1;
    if (!ox_attr(c, "axis")) {
        x = ox_reshape(c, x, 1, &all);
        s = ox_shape(c, x);
    }
    if (!ox_axis(c, &axis, s.rank))
        return -1;
    int64_t *index = AP_NEW_N(c->file->arena, cond.n + 1, int64_t);
    for (int i = 0; i < cond.n && i < s.dims[axis]; i++)
        if (cond.v[i])
            index[n++] = i;
    return ox_take_known(c, x, (int)axis, n, index);
}

static int reverse_sequence(struct ox *c)
{
    int x = c->in[0];
    struct ap_shape s = ox_shape(c, x);
    int64_t time = ox_attr_i(c, "time_axis", 0), batch = ox_attr_i(c, "batch_axis", 1);
    if (!ox_axis(c, &time, s.rank) || !ox_axis(c, &batch, s.rank))
        return -1;
    int len = ox_along(c, ox_to(c, c->in[1], AP_S64), (int)batch, s.rank, s.dims);
    int at = ox_iota(c, AP_S64, s.rank, s.dims, (int)time);
    int back = ox_with(c, AP_OP_SUBTRACT, ox_bin(c, AP_OP_SUBTRACT, len, at), 1);
    int index = ox_select(c, ox_cmp(c, AP_LT, at, len), back, at);
    return ox_gather_elements(c, x, index, (int)time);
}

const struct ox_op ox_index_ops[] = {
    {"Gather", 1, 20, 2, 2, gather, 0},
    {"GatherElements", 11, 20, 2, 2, gather_elements, 0},
    {"GatherND", 11, 20, 2, 2, gather_nd, 0},
    {"Scatter", 9, 10, 3, 3, scatter_elements, 0},
    {"ScatterElements", 11, 20, 3, 3, scatter_elements, 0},
    {"ScatterND", 11, 20, 3, 3, scatter_nd, 0},
    {"OneHot", 9, 20, 3, 3, one_hot, 0},
    {"Compress", 9, 20, 2, 2, compress, 0},
    {"ReverseSequence", 10, 20, 2, 2, reverse_sequence, 0},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
