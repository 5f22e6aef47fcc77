/* Operators that make, move, cut and join tensors; shapes as values. */
#include "onnx/onnx.h"

#include <math.h>
#include <string.h>

/* ---- shapes ---- */

/* Target sizes of Reshape: 0 keeps one (unless allowzero), -1 is what remains. */
static int reshape(struct ox *c)
{
    struct ap_ints v;
    int64_t dims[AP_MAX_RANK], known = 1;
    int x = c->in[0], hole = -1;
    struct ap_shape s = ox_shape(c, x);
    bool allow_zero = ox_attr_i(c, "allowzero", 0) != 0;
    if (!ox_ints(c, 1, &v))
        return -1;
    if (v.n > AP_MAX_RANK)
        return ox_refuse(c, "to %d dimensions is not supported yet", v.n);
    for (int d = 0; d < v.n; d++) {
        dims[d] = v.v[d];
        if (dims[d] == 0 && !allow_zero) {
            if (d >= s.rank)
                return ox_fail(c, "size 0 at %d has no dimension to copy", d);
            dims[d] = s.dims[d];
        }
        if (dims[d] == -1 && hole >= 0)
            return ox_fail(c, "two sizes are -1");
        if (dims[d] < -1)
            return ox_fail(c, "size %lld", (long long)dims[d]);
        if (dims[d] == -1)
            hole = d;
        else
            known = ap_mul64(known, dims[d]);
    }
    if (hole >= 0) {
        if (known == 0)
            return ox_fail(c, "a size of -1 with a size of 0");
        dims[hole] = ap_shape_elems(&s) / known;
    }
    return ox_reshape(c, x, v.n, dims);
}

static int flatten(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    int64_t axis = ox_attr_i(c, "axis", 1), dims[2] = {1, 1};
    if (axis != s.rank && !ox_axis(c, &axis, s.rank))
        return -1;
    for (int d = 0; d < s.rank; d++)
        dims[d >= axis] *= s.dims[d];
    return ox_reshape(c, c->in[0], 2, dims);
}

/* Marks axes of a tensor of this rank; false and failed if one stands twice. */
static bool mark_axes(struct ox *c, struct ap_ints axes, int rank, bool *marked)
{
    memset(marked, 0, AP_MAX_RANK * sizeof *marked);
    for (int i = 0; i < axes.n; i++) {
        int64_t a = axes.v[i];
        if (!ox_axis(c, &a, rank))
            return false;
        if (marked[a]) {
            ox_fail(c, "axis %lld stands twice", (long long)a);
            return false;
        }
        marked[a] = true;
    }
    return true;
}

static int squeeze(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    struct ap_ints axes;
    bool given, drop[AP_MAX_RANK];
    int64_t dims[AP_MAX_RANK];
    int n = 0;
    if (!ox_ints_of(c, "axes", 1, &axes, &given) || !mark_axes(c, axes, s.rank, drop))
        return -1;
    for (int d = 0; d < s.rank; d++) {
        if (given && drop[d] && s.dims[d] != 1)
            return ox_fail(c, "dimension %d has size %lld, not 1", d,
                           (long long)s.dims[d]);
        if (given ? !drop[d] : s.dims[d] != 1)
            dims[n++] = s.dims[d];
    }
    return ox_reshape(c, c->in[0], n, dims);
}

static int unsqueeze(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    struct ap_ints axes;
    bool given, put[AP_MAX_RANK];
    int64_t dims[AP_MAX_RANK];
    if (!ox_ints_of(c, "axes", 1, &axes, &given))
        return -1;
    int rank = s.rank + axes.n;
    if (rank > AP_MAX_RANK)
        return ox_refuse(c, "to %d dimensions is not supported yet", rank);
    if (!mark_axes(c, axes, rank, put))
        return -1;
    for (int d = 0, k = 0; d < rank; d++)
        dims[d] = put[d] ? 1 : s.dims[k++];
    return ox_reshape(c, c->in[0], rank, dims);
}

static int shape_of(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    int64_t start = ox_attr_i(c, "start", 0), end = ox_attr_i(c, "end", s.rank);
    start += start < 0 ? s.rank : 0;
    end += end < 0 ? s.rank : 0;
    start = start < 0 ? 0 : start > s.rank ? s.rank : start;
    end = end > s.rank ? s.rank : end < start ? start : end;
    int64_t n = end - start;
    return ox_ints_const(c, AP_S64, 1, &n, s.dims + start);
}

static int size_of(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    int64_t n = ap_shape_elems(&s);
    return ox_ints_const(c, AP_S64, 0, NULL, &n);
}

/* ---- constants ---- */

static int tensor_attr(struct ox *c, const struct onnx_attr *a)
{
    struct onnx_tensor t;
    if (onnx_read_tensor(c->file, a->tensor,
                         ap_arena_printf(c->file->arena, "node %s", c->node->name), &t) ||
        onnx_map_external(c->file, &t))
        return -1;
    if (ap_dtype_size(t.shape.dtype) > 8 || t.shape.dtype == AP_C64)
        return ox_refuse(c, "of complex numbers is not supported yet");
    return ap_build_literal(&c->b, t.shape, t.data);
}

static int constant(struct ox *c)
{
    for (int i = 0; i < c->node->n_attrs; i++) {
        const struct onnx_attr *a = &c->node->attrs[i];
        int64_t n;
        if (strcmp(a->name, "value") == 0 && a->tensor.p)
            return tensor_attr(c, a);
        if (strcmp(a->name, "value_int") == 0)
            return ox_ints_const(c, AP_S64, 0, NULL, &a->i);
        if (strcmp(a->name, "value_float") == 0)
            return ox_scalar(c, AP_F32, (double)a->f);
        if (strcmp(a->name, "value_ints") == 0) {
            n = a->ints.n;
            return ox_ints_const(c, AP_S64, 1, &n, a->ints.v);
        }
        if (strcmp(a->name, "value_floats") == 0) {
            n = a->n_floats;
            return ap_build_literal(&c->b, ap_build_shape(&c->b, AP_F32, 1, &n),
                                    a->floats);
        }
    }
    return ox_refuse(c, "of this kind is not supported yet");
}

static int constant_of_shape(struct ox *c)
{
    const struct onnx_attr *a = ox_attr(c, "value");
    struct ap_ints v;
    if (!ox_ints(c, 0, &v))
        return -1;
    int x = a && a->tensor.p ? tensor_attr(c, a) : ox_scalar(c, AP_F32, 0);
    struct ap_shape s = ox_shape(c, x);
    if (v.n > AP_MAX_RANK)
        return ox_refuse(c, "of %d dimensions is not supported yet", v.n);
    if (x >= 0 && ap_shape_elems(&s) != 1)
        return ox_fail(c, "the value has %lld elements", (long long)ap_shape_elems(&s));
    return ox_broadcast(c, ox_reshape(c, x, 0, NULL), v.n, v.v, NULL);
}

static int eye_like(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    int64_t k = ox_attr_i(c, "k", 0), dtype = ox_attr_i(c, "dtype", 0);
    enum ap_dtype to = dtype ? onnx_dtype(dtype) : s.dtype;
    if (s.rank != 2)
        return ox_fail(c, "of %d dimensions", s.rank);
    if (to == AP_N_DTYPES || ap_dtype_size(to) > 8 || to == AP_C64)
        return ox_refuse(c, "of this element type is not supported yet");
    int row = ox_iota(c, AP_S64, 2, s.dims, 0), col = ox_iota(c, AP_S64, 2, s.dims, 1);
    int eq = ox_cmp(c, AP_EQ, ox_with(c, AP_OP_ADD, row, (double)k), col);
    return to == AP_PRED ? eq : ox_to(c, eq, to);
}

static int range(struct ox *c)
{
    const double *v;
    double part[3];
    int64_t n;
    enum ap_dtype t = ox_dtype(c, c->in[0]);
    for (int i = 0; i < 3; i++) {
        if (!ox_floats(c, i, &v, &n))
            return -1;
        if (n != 1 || ox_dtype(c, c->in[i]) != t)
            return ox_fail(c, "expected three scalars of one type");
        part[i] = v[0];
    }
    double count = ceil((part[1] - part[0]) / part[2]);
    if (!(count < 1e12) && part[2] != 0)
        return ox_refuse(c, "of this length is not supported yet");
    if (part[2] == 0 || !isfinite(count))
        return ox_fail(c, "the step is 0, or a bound is infinite");
    n = count > 0 ? (int64_t)count : 0;
    int x = ox_iota(c, t, 1, &n, 0);
    if (part[2] != 1)
        x = ox_bin(c, AP_OP_MULTIPLY, x, ox_reshape(c, c->in[2], 0, NULL));
    return part[0] != 0 ? ox_bin(c, AP_OP_ADD, x, ox_reshape(c, c->in[0], 0, NULL)) : x;
}

static int trilu(struct ox *c)
{
    int x = c->in[0], rank = ox_rank(c, x);
    struct ap_shape s = ox_shape(c, x);
    struct ap_ints k = {0};
    bool upper = ox_attr_i(c, "upper", 1) != 0;
    if (ox_in(c, 1) >= 0 && !ox_ints(c, 1, &k))
        return -1;
    if (rank < 2 || k.n > 1)
        return ox_fail(c, "expected a matrix and a scalar");
    int row = ox_iota(c, AP_S64, rank, s.dims, rank - 2);
    int col = ox_iota(c, AP_S64, rank, s.dims, rank - 1);
    if (k.n && k.v[0])
        row = ox_bin(c, AP_OP_ADD, row,
                     ox_expand(c, ox_ints_const(c, AP_S64, 0, NULL, k.v), rank, s.dims));
    return ox_select(c, ox_cmp(c, upper ? AP_GE : AP_LE, col, row), x,
                     ox_full_like(c, x, 0));
}

/* ---- moves ---- */

static int transpose(struct ox *c)
{
    struct ap_ints perm;
    int64_t reverse[AP_MAX_RANK];
    int rank = ox_rank(c, c->in[0]);
    if (ox_attr_ints(c, "perm", &perm)) {
        if (perm.n != rank)
            return ox_fail(c, "perm has %d entries for %d dimensions", perm.n, rank);
        return ox_transpose(c, c->in[0], perm.v);
    }
    for (int d = 0; d < rank; d++)
        reverse[d] = rank - 1 - d;
    return ox_transpose(c, c->in[0], reverse);
}

static int concat(struct ox *c)
{
    int64_t axis = ox_attr_i(c, "axis", 0);
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] < 0)
            return ox_fail(c, "input %d is missing", i);
    if (!ox_axis(c, &axis, ox_rank(c, c->in[0])))
        return -1;
    return ox_concat(c, c->n_in, c->in, (int)axis);
}

static int split(struct ox *c)
{
    struct ap_ints sizes;
    bool given;
    int n = c->node->n_out;
    int64_t axis = ox_attr_i(c, "axis", 0), at = 0;
    struct ap_shape s = ox_shape(c, c->in[0]);
    if (!ox_axis(c, &axis, s.rank) || !ox_ints_of(c, "split", 1, &sizes, &given))
        return -1;
    if ((given && sizes.n != n) || n < 1)
        return ox_fail(c, "%d sizes for %d outputs", sizes.n, n);
    int64_t each = ap_ceil_div(s.dims[axis], n);
    if (!given && c->opset < 18 && s.dims[axis] % n)
        return ox_fail(c, "%lld elements in %d equal parts", (long long)s.dims[axis], n);
    for (int k = 0; k < n; k++) {
        int64_t room = s.dims[axis] - at;
        int64_t size = given ? sizes.v[k] : each < room ? each : room;
        if (size < 0 || size > room)
            return ox_fail(c, "part %d does not fit", k);
        c->out[k] = ox_slice(c, c->in[0], (int)axis, at, at + size, 1);
        at += size;
    }
    return at == s.dims[axis] ? c->out[0] : ox_fail(c, "the parts are too small");
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* One dimension of Slice, as numpy's x[start:end:step]. */
static int slice_dim(struct ox *c, int x, int d, int64_t start, int64_t end, int64_t step)
{
    int64_t n = ox_shape(c, x).dims[d];
    if (step == 0)
        return ox_fail(c, "the step is 0");
    step = clamp(step, -n - 1, n + 1); /* nothing but the first element either way */
    start = start < 0 && start >= -n ? start + n : start;
    end = end < 0 && end >= -n ? end + n : end;
    if (step > 0)
        return ox_slice(c, x, d, clamp(start, 0, n), clamp(end, 0, n), step);
    start = clamp(start, -1, n - 1);
    end = clamp(end, -1, n - 1);
    /* elements start, start + step, ... > end: reversed, they start at n - 1 - start */
    return ox_slice(c, ox_reverse(c, x, d), d, n - 1 - start,
                    end < start ? n - 1 - end : n - 1 - start, -step);
}

static int slice(struct ox *c)
{
    struct ap_ints start, end, axes, step = {0};
    bool given, has_axes;
    int x = c->in[0], rank = ox_rank(c, x);
    if (!ox_ints_of(c, "starts", 1, &start, &given) ||
        !ox_ints_of(c, "ends", 2, &end, &given) ||
        !ox_ints_of(c, "axes", 3, &axes, &has_axes) ||
        (ox_in(c, 4) >= 0 && !ox_ints(c, 4, &step)))
        return -1;
    if (start.n != end.n || (has_axes && axes.n != start.n) ||
        (step.n && step.n != start.n) || start.n > rank)
        return ox_fail(c, "starts, ends, axes and steps differ in length");
    for (int i = 0; i < start.n && x >= 0; i++) {
        int64_t d = has_axes ? axes.v[i] : i;
        if (!ox_axis(c, &d, rank))
            return -1;
        x = slice_dim(c, x, (int)d, start.v[i], end.v[i], step.n ? step.v[i] : 1);
    }
    return x;
}

/* ---- repeats and padding ---- */

static int expand(struct ox *c)
{
    struct ap_ints v;
    int64_t dims[AP_MAX_RANK];
    struct ap_shape s = ox_shape(c, c->in[0]);
    if (!ox_ints(c, 1, &v))
        return -1;
    int rank = v.n > s.rank ? v.n : s.rank;
    if (rank > AP_MAX_RANK)
        return ox_refuse(c, "to %d dimensions is not supported yet", rank);
    for (int d = 0; d < rank; d++) {
        int64_t have = d < rank - s.rank ? 1 : s.dims[d - (rank - s.rank)];
        int64_t want = d < rank - v.n ? 1 : v.v[d - (rank - v.n)];
        dims[d] = want == 1 ? have : want;
    }
    return ox_expand(c, c->in[0], rank, dims);
}

static int tile(struct ox *c)
{
    struct ap_ints v;
    int64_t wide[AP_MAX_RANK], map[AP_MAX_RANK], dims[AP_MAX_RANK];
    struct ap_shape s = ox_shape(c, c->in[0]);
    int n = 0;
    if (!ox_ints(c, 1, &v))
        return -1;
    if (v.n != s.rank)
        return ox_fail(c, "%d repeats for %d dimensions", v.n, s.rank);
    for (int d = 0; d < s.rank; d++) {
        if (v.v[d] < 0 || v.v[d] > (int64_t)1 << 40)
            return ox_fail(c, "%lld repeats", (long long)v.v[d]);
        if (n + 2 > AP_MAX_RANK)
            return ox_refuse(c, "of this rank is not supported yet");
        if (v.v[d] != 1)
            wide[n++] = v.v[d];
        map[d] = n;
        wide[n++] = s.dims[d];
        dims[d] = ap_mul64(s.dims[d], v.v[d]);
    }
    return ox_reshape(c, ox_broadcast(c, c->in[0], n, wide, map), s.rank, dims);
}

/* Where element i of a padded dimension comes from. */
static int64_t source_index(const char *mode, int64_t i, int64_t n)
{
    if (*mode == 'e')
        return clamp(i, 0, n - 1);
    if (*mode == 'w')
        return (i % n + n) % n;
    int64_t period = n > 1 ? 2 * (n - 1) : 1;
    i = (i % period + period) % period;
    return i < n ? i : period - i;
}

static int pad_by_index(struct ox *c, int x, int d, int64_t lo, int64_t hi,
                        const char *mode)
{
    int64_t n = ox_shape(c, x).dims[d], total = lo + n + hi;
    if (x < 0 || (!lo && !hi))
        return x;
    if (n < 1 || total < 0 || total > 1 << 20)
        return ox_refuse(c, "of this size in mode %s is not supported yet", mode);
    int64_t *index = AP_NEW_N(c->file->arena, total + 1, int64_t);
    for (int64_t i = 0; i < total; i++)
        index[i] = source_index(mode, i - lo, n);
    return ox_take_known(c, x, d, total, index);
}

static int pad(struct ox *c)
{
    struct ap_ints v, axes = {0};
    bool given;
    int64_t lo[AP_MAX_RANK] = {0}, hi[AP_MAX_RANK] = {0};
    struct ap_pad_dim dims[AP_MAX_RANK] = {{0}};
    const char *mode = ox_attr_s(c, "mode", "constant");
    int x = c->in[0], rank = ox_rank(c, x), value = ox_in(c, 2);
    if (!ox_ints_of(c, "pads", c->opset < 11 ? 99 : 1, &v, &given) ||
        (ox_in(c, 3) >= 0 && !ox_ints(c, 3, &axes)))
        return -1;
    int n = ox_in(c, 3) >= 0 ? axes.n : rank;
    if (v.n != 2 * n)
        return ox_fail(c, "%d pads for %d dimensions", v.n, n);
    for (int i = 0; i < n; i++) {
        int64_t d = ox_in(c, 3) >= 0 ? axes.v[i] : i, bound = (int64_t)1 << 40;
        if (!ox_axis(c, &d, rank))
            return -1;
        lo[d] = clamp(v.v[i], -bound, bound);
        hi[d] = clamp(v.v[n + i], -bound, bound);
        dims[d] = (struct ap_pad_dim){lo[d], hi[d], 0};
    }
    if (strcmp(mode, "constant") != 0) {
        if (strcmp(mode, "edge") != 0 && strcmp(mode, "reflect") != 0 &&
            strcmp(mode, "wrap") != 0)
            return ox_fail(c, "mode '%s'", mode);
        for (int d = 0; d < rank && x >= 0; d++)
            x = pad_by_index(c, x, d, lo[d], hi[d], mode);
        return x;
    }
    if (c->opset < 11)
        value = ox_scalar(c, ox_dtype(c, x), ox_attr_f(c, "value", 0));
    else if (value < 0)
        value = ox_scalar(c, ox_dtype(c, x), 0);
    if (value >= 0 && ox_dtype(c, value) != ox_dtype(c, x))
        return ox_fail(c, "the value is of another type");
    return ox_pad(c, x, ox_reshape(c, value, 0, NULL), dims);
}

/* ---- depth and space ---- */

static int depth_to_space(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    int64_t k = ox_attr_i(c, "blocksize", 0);
    bool crd = strcmp(ox_attr_s(c, "mode", "DCR"), "CRD") == 0;
    if (s.rank != 4 || k < 1 || k > 1 << 20 || s.dims[1] % (k * k))
        return ox_fail(c, "block size %lld does not fit", (long long)k);
    int64_t n = s.dims[0], f = s.dims[1] / (k * k), h = s.dims[2], w = s.dims[3];
    const int64_t dcr_dims[6] = {n, k, k, f, h, w}, crd_dims[6] = {n, f, k, k, h, w};
    static const int64_t dcr_perm[6] = {0, 3, 4, 1, 5, 2},
                         crd_perm[6] = {0, 1, 4, 2, 5, 3};
    const int64_t out[4] = {n, f, h * k, w * k};
    int x = ox_reshape(c, c->in[0], 6, crd ? crd_dims : dcr_dims);
    return ox_reshape(c, ox_transpose(c, x, crd ? crd_perm : dcr_perm), 4, out);
}

static int space_to_depth(struct ox *c)
{
    struct ap_shape s = ox_shape(c, c->in[0]);
    int64_t k = ox_attr_i(c, "blocksize", 0);
    if (s.rank != 4 || k < 1 || k > 1 << 20 || s.dims[2] % k || s.dims[3] % k)
        return ox_fail(c, "block size %lld does not fit", (long long)k);
    int64_t n = s.dims[0], f = s.dims[1], h = s.dims[2] / k, w = s.dims[3] / k;
    const int64_t dims[6] = {n, f, h, k, w, k}, out[4] = {n, f * k * k, h, w};
    static const int64_t perm[6] = {0, 3, 5, 1, 2, 4};
    int x = ox_transpose(c, ox_reshape(c, c->in[0], 6, dims), perm);
    return ox_reshape(c, x, 4, out);
}

const struct ox_op ox_shape_ops[] = {
    {"Reshape", 5, 20, 2, 2, reshape, 0},
    {"Flatten", 1, 20, 1, 1, flatten, 0},
    {"Squeeze", 1, 20, 1, 2, squeeze, 0},
    {"Unsqueeze", 1, 20, 1, 2, unsqueeze, 0},
    {"Shape", 1, 20, 1, 1, shape_of, 0},
    {"Size", 1, 20, 1, 1, size_of, 0},
    {"Constant", 1, 20, 0, 0, constant, 0},
    {"ConstantOfShape", 9, 20, 1, 1, constant_of_shape, 0},
    {"EyeLike", 9, 20, 1, 1, eye_like, 0},
    {"Range", 11, 20, 3, 3, range, 0},
    {"Trilu", 14, 20, 1, 2, trilu, 0},
    {"Transpose", 1, 20, 1, 1, transpose, 0},
    {"Concat", 4, 20, 1, -1, concat, 0},
    {"Split", 2, 20, 1, 2, split, 0},
    {"Slice", 1, 20, 1, 5, slice, 0},
    {"Expand", 8, 20, 2, 2, expand, 0},
    {"Tile", 6, 20, 2, 2, tile, 0},
    {"Pad", 2, 20, 1, 4, pad, 0},
    {"DepthToSpace", 1, 20, 1, 1, depth_to_space, 0},
    {"SpaceToDepth", 1, 20, 1, 1, space_to_depth, 0},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
