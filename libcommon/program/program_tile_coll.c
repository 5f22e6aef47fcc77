/*
 * Collectives in which several devices belong to one rank.
 *
 * A collective's group has k devices of this rank and k devices of each other rank that
 * it spans; in the order of devices, the devices of a rank are a block of k. So
 *
 *     all-reduce      is the sum of k, and an all-reduce between ranks, which all share;
 *     all-gather      k blocks side by side, and an all-gather of such rows;
 *     reduce-scatter  the sum, a reduce-scatter of rows of k blocks, and slices;
 *     all-to-all      k operands side by side where they are joined, an all-to-all of
 *                     rows of k x k blocks, and slices;
 *     permute         another name for a neighbour's value, but for the first of a rank;
 *     swap of axes    other names, or an all-to-all of whole values.
 *
 * The step between ranks is left out where one rank has all devices. It moves the bytes
 * that the plan's collective moves between ranks. Blocks that do not divide evenly are
 * cut off in a rank that has all of them, and travel between ranks padded. Sums are made
 * in the order of devices, in f32 for half precision, which is rounded before it goes
 * between ranks. Tensors are seen as (outer, x, inner) with x in blocks, as everywhere
 * (struct ap_coll). Linear in the operands, for an all-to-all within a rank in k of them.
 */
#include "program/program_tile.h"

#include <assert.h>
#include <string.h>

static const struct ap_coll *coll_of(const struct tile *t, int node)
{
    return &t->g->nodes[node].attrs->coll;
}

static int operand_of(const struct tile *t, int node, int device)
{
    return *tile_value(t, t->g->nodes[node].in[0], device);
}

/* ---- nodes ---- */

static struct ap_attrs *new_attrs(const struct tile *t)
{
    return ap_arena_dup(t->arena, &ap_attrs_default, sizeof ap_attrs_default);
}

static struct ap_shape shape_of(const struct tile *t, enum ap_dtype dtype, int rank,
                                const int64_t *dims)
{
    int64_t *own = AP_NEW_N(t->arena, rank + 1, int64_t);
    memcpy(own, dims, (size_t)rank * sizeof *dims);
    return (struct ap_shape){.dtype = dtype, .rank = rank, .dims = own};
}

/* A node of the source node, phase and scope of `like`. */
static int put(struct tile *t, enum ap_op op, int n_in, const int *in,
               const struct ap_shape *shape, const struct ap_attrs *attrs, int like)
{
    const struct ap_node *old = &t->g->nodes[like];
    const struct ap_node node = {
        .op = op,
        .name =
            ap_arena_printf(t->arena, "%s.%s.%d", old->name, ap_ops[op].name, t->n_nodes),
        .n_in = n_in,
        .in = ap_arena_dup(t->arena, in, (size_t)(n_in + 1) * sizeof *in),
        .shape = *shape,
        .attrs = attrs,
        .scope = old->scope,
        .phase = old->phase,
        .param = -1,
    };
    return tile_add(t, &node, like, true);
}

static int put_one(struct tile *t, enum ap_op op, int in, const struct ap_shape *shape,
                   const struct ap_attrs *attrs, int like)
{
    const int operand[2] = {in, -1};
    return put(t, op, 1, operand, shape, attrs, like);
}

static int reshape(struct tile *t, int in, const struct ap_shape *to, int like)
{
    if (ap_shape_equal(&t->nodes[in].shape, to))
        return in;
    return put_one(t, AP_OP_RESHAPE, in, to, &ap_attrs_default, like);
}

/* A value with one dimension of another size. */
static struct ap_shape with_dim(const struct tile *t, int node, int d, int64_t size)
{
    const struct ap_shape *s = &t->nodes[node].shape;
    int64_t dims[AP_MAX_RANK];
    memcpy(dims, s->dims, (size_t)s->rank * sizeof *dims);
    dims[d] = size;
    return shape_of(t, s->dtype, s->rank, dims);
}

/* Elements from .. from + n - 1 of dimension d. */
static int cut(struct tile *t, int in, int d, int64_t from, int64_t n, int like)
{
    const struct ap_shape to = with_dim(t, in, d, n);
    struct ap_slice_dim *slice = AP_NEW_N(t->arena, to.rank + 1, struct ap_slice_dim);
    struct ap_attrs *attrs = new_attrs(t);

    if (from == 0 && t->nodes[in].shape.dims[d] == n)
        return in;
    for (int i = 0; i < to.rank; i++)
        slice[i] =
            (struct ap_slice_dim){i == d ? from : 0, i == d ? from + n : to.dims[i], 1};
    attrs->slice = slice;
    attrs->n_slice = to.rank;
    return put_one(t, AP_OP_SLICE, in, &to, attrs, like);
}

/* n values one after the other along dimension d. */
static int join(struct tile *t, int n, const int *in, int d, int like)
{
    int64_t *dim = AP_NEW(t->arena, int64_t), size = 0;
    struct ap_attrs *attrs = new_attrs(t);

    assert(n > 0);
    if (n == 1)
        return in[0];
    for (int i = 0; i < n; i++)
        size += t->nodes[in[i]].shape.dims[d];
    *dim = d;
    attrs->dimensions = (struct ap_ints){1, dim};
    const struct ap_shape to = with_dim(t, in[0], d, size);
    return put(t, AP_OP_CONCATENATE, n, in, &to, attrs, like);
}

/* Zeros after, so that dimension d has n elements. */
static int pad(struct tile *t, int in, int d, int64_t n, int like)
{
    const struct ap_shape to = with_dim(t, in, d, n);
    const struct ap_shape scalar = {.dtype = to.dtype};
    const int64_t more = n - t->nodes[in].shape.dims[d];
    struct ap_pad_dim *dims = AP_NEW_N(t->arena, to.rank + 1, struct ap_pad_dim);
    struct ap_attrs *attrs = new_attrs(t), *zero = new_attrs(t);
    int operand[3] = {in, -1, -1};

    if (more == 0)
        return in;
    zero->literal =
        (struct ap_literal){.splat = true, .data = AP_NEW_N(t->arena, 16, char)};
    operand[1] = put(t, AP_OP_CONSTANT, 0, operand + 2, &scalar, zero, like);
    dims[d].hi = more;
    attrs->padding = dims;
    attrs->n_padding = to.rank;
    return put(t, AP_OP_PAD, 2, operand, &to, attrs, like);
}

/* ---- views ---- */

/* Elements within one of the x of a dimension that is (outer, x, inner). */
static int64_t within(const struct ap_shape *s, const struct ap_split *split, int64_t x)
{
    const int64_t step = split->outer * x;
    return step ? s->dims[split->dim] / step : 1;
}

static int64_t product(const struct ap_shape *s, int from, int end)
{
    int64_t n = 1;
    for (int d = from; d < end; d++)
        n *= s->dims[d];
    return n;
}

/* A value as (outer, x, inner). */
static int flat(struct tile *t, int in, const struct ap_split *split, int64_t x, int like)
{
    const struct ap_shape *s = &t->nodes[in].shape;
    const int64_t dims[3] = {product(s, 0, split->dim) * split->outer, x,
                             within(s, split, x) * product(s, split->dim + 1, s->rank)};
    const struct ap_shape to = shape_of(t, s->dtype, 3, dims);
    return reshape(t, in, &to, like);
}

/* Its part of block q of x, without padding. */
static int64_t block_len(const struct ap_split *split, int64_t q)
{
    const int64_t left = split->full - q * split->part;
    return left < 0 ? 0 : left < split->part ? left : split->part;
}

/* Attributes of a step between ranks on the axes of a collective. */
static struct ap_attrs *between(const struct tile *t, int node)
{
    const struct ap_attrs *of = t->g->nodes[node].attrs;
    struct ap_attrs *attrs = new_attrs(t);

    attrs->recomputed = of->recomputed;
    attrs->coll.red = of->coll.red;
    for (int a = 0; a < t->ranks.n_axes; a++)
        if (of->coll.axes >> a & 1 && t->ranks.size[a] > 1)
            attrs->coll.axes |= 1u << a;
    return attrs;
}

/* ---- sums ---- */

void tile_add_up(struct tile *t, int node, int device)
{
    const struct ap_node *n = &t->g->nodes[node];
    const enum ap_red red = n->attrs->coll.red;

    if (n->op != AP_OP_ALL_REDUCE && n->op != AP_OP_REDUCE_SCATTER)
        return;
    int *member = t->adding;
    const int k = tile_members(t, n->attrs->coll.axes, device, member);
    int *sum = &t->sum[(int64_t)node * t->n + member[0]];
    int *added = &t->n_added[(int64_t)node * t->n + member[0]];
    for (; *added < k && operand_of(t, node, member[*added]) >= 0; ++*added) {
        int in[3] = {*sum, operand_of(t, node, member[*added]), -1};
        struct ap_shape shape = t->nodes[in[1]].shape;
        const enum ap_dtype dtype = ap_dtype_of_sums(shape.dtype);
        const bool wide = red == AP_RED_SUM && dtype != shape.dtype;
        if (wide) {
            shape.dtype = dtype;
            in[1] = put_one(t, AP_OP_CONVERT, in[1], &shape, &ap_attrs_default, node);
        }
        if (*added > 0) {
            t->n_groups -= wide; /* in one pass with the conversion */
            in[1] = put(t, ap_red_ops[red], 2, in, &shape, &ap_attrs_default, node);
        }
        *sum = in[1];
    }
}

/* The sum of all devices of the rank. */
static int sum_of(struct tile *t, int node, const int *member)
{
    tile_add_up(t, node, member[0]);
    const int sum = t->sum[(int64_t)node * t->n + member[0]];
    struct ap_shape shape = t->nodes[sum].shape;

    shape.dtype = t->g->nodes[node].shape.dtype;
    return shape.dtype == t->nodes[sum].shape.dtype
               ? sum
               : put_one(t, AP_OP_CONVERT, sum, &shape, &ap_attrs_default, node);
}

static void all_reduce(struct tile *t, int node, const int *member, int k, int64_t ranks)
{
    int sum = sum_of(t, node, member);
    const struct ap_shape shape = t->nodes[sum].shape;

    if (ranks > 1)
        sum = put_one(t, AP_OP_ALL_REDUCE, sum, &shape, between(t, node), node);
    for (int i = 0; i < k; i++)
        *tile_value(t, node, member[i]) = sum;
}

/* What device `of` of the rank keeps of a value that all its devices have. */
static int keep(struct tile *t, int node, int value, int of)
{
    const struct ap_node *n = &t->g->nodes[node];
    struct ap_attrs *attrs = new_attrs(t);
    int64_t dims[AP_MAX_RANK];
    const struct ap_split *split = &n->attrs->coll.split;
    const struct ap_shape *s = &t->nodes[value].shape;

    memcpy(dims, s->dims, (size_t)s->rank * sizeof *dims);
    dims[split->dim] = dims[split->dim] / split->full * split->part;
    const struct ap_shape to = shape_of(t, s->dtype, s->rank, dims);
    attrs->coll.axes = n->attrs->coll.axes;
    attrs->coll.split = *split;
    attrs->device = of;
    return put_one(t, AP_OP_AP_SLICE, value, &to, attrs, node);
}

static void reduce_scatter(struct tile *t, int node, const int *member, int k,
                           int64_t ranks)
{
    const struct ap_split *s = &coll_of(t, node)->split;
    int sum = sum_of(t, node, member);

    if (ranks == 1) {
        for (int i = 0; i < k; i++)
            *tile_value(t, node, member[i]) = keep(t, node, sum, member[i]);
        return;
    }
    struct ap_attrs *attrs = between(t, node);
    const int64_t whole = ranks * k * s->part;
    sum = pad(t, flat(t, sum, s, s->full, node), 1, whole, node);
    attrs->coll.split = (struct ap_split){1, 1, whole, k * s->part};
    const struct ap_shape row = with_dim(t, sum, 1, k * s->part);
    sum = put_one(t, AP_OP_REDUCE_SCATTER, sum, &row, attrs, node);
    for (int i = 0; i < k; i++)
        *tile_value(t, node, member[i]) =
            reshape(t, cut(t, sum, 1, i * s->part, s->part, node),
                    &t->g->nodes[node].shape, node);
}

/* ---- gathers ---- */

/* Blocks 0 .. k - 1 of all there are, side by side, without padding. */
static int join_blocks(struct tile *t, int node, const int *block, int k,
                       const struct ap_split *s)
{
    int *piece = AP_NEW_N(t->arena, k + 1, int), n = 0;

    for (int i = 0; i < k; i++)
        if (block_len(s, i) > 0)
            piece[n++] =
                cut(t, flat(t, block[i], s, s->part, node), 1, 0, block_len(s, i), node);
    return reshape(t, join(t, n, piece, 1, node), &t->g->nodes[node].shape, node);
}

static void all_gather(struct tile *t, int node, const int *member, int k, int64_t ranks)
{
    const struct ap_split *s = &coll_of(t, node)->split;
    int *block = AP_NEW_N(t->arena, k + 1, int), all;

    for (int i = 0; i < k; i++)
        block[i] = operand_of(t, node, member[i]);
    if (ranks == 1) {
        all = join_blocks(t, node, block, k, s);
    } else {
        struct ap_attrs *attrs = between(t, node);
        const int64_t whole = ranks * k * s->part;
        for (int i = 0; i < k; i++)
            block[i] = flat(t, block[i], s, s->part, node);
        all = join(t, k, block, 1, node);
        attrs->coll.split = (struct ap_split){1, 1, whole, k * s->part};
        const struct ap_shape to = with_dim(t, all, 1, whole);
        all = put_one(t, AP_OP_ALL_GATHER, all, &to, attrs, node);
        all =
            reshape(t, cut(t, all, 1, 0, s->full, node), &t->g->nodes[node].shape, node);
    }
    for (int i = 0; i < k; i++)
        *tile_value(t, node, member[i]) = all;
}

/* ---- all-to-all ---- */

/* A value as (outer, x, inner) along both dimensions of an all-to-all, what lies between
 * them being one; *split and *joined: which of the five are the x. */
static int flat_twice(struct tile *t, int node, int in, int *split, int *joined)
{
    const struct ap_coll *c = coll_of(t, node);
    const bool first = c->split.dim < c->join.dim;
    const struct ap_split *a = first ? &c->split : &c->join;
    const struct ap_split *b = first ? &c->join : &c->split;
    const int64_t xa = first ? c->split.full : c->join.part;
    const int64_t xb = first ? c->join.part : c->split.full;
    const struct ap_shape *s = &t->nodes[in].shape;
    const int64_t dims[5] = {product(s, 0, a->dim) * a->outer, xa,
                             within(s, a, xa) * product(s, a->dim + 1, b->dim) * b->outer,
                             xb, within(s, b, xb) * product(s, b->dim + 1, s->rank)};
    const struct ap_shape to = shape_of(t, s->dtype, 5, dims);

    *split = first ? 1 : 3;
    *joined = first ? 3 : 1;
    return reshape(t, in, &to, node);
}

static void all_to_all(struct tile *t, int node, const int *member, int k, int64_t ranks)
{
    const struct ap_coll *c = coll_of(t, node);
    const int64_t split_all = ranks * k * c->split.part;
    const int64_t join_all = ranks * k * c->join.part;
    int *block = AP_NEW_N(t->arena, k + 1, int), s = 0, j = 0;

    if (ranks == 1) {
        for (int i = 0; i < k; i++) {
            for (int q = 0; q < k; q++)
                block[q] = keep(t, node, operand_of(t, node, member[q]), member[i]);
            *tile_value(t, node, member[i]) = join_blocks(t, node, block, k, &c->join);
        }
        return;
    }
    for (int i = 0; i < k; i++)
        block[i] = flat_twice(t, node, operand_of(t, node, member[i]), &s, &j);
    int all = pad(t, join(t, k, block, j, node), s, split_all, node);
    struct ap_attrs *attrs = between(t, node);
    attrs->coll.split = (struct ap_split){s, 1, split_all, k * c->split.part};
    attrs->coll.join = (struct ap_split){j, 1, join_all, k * c->join.part};
    struct ap_shape to = with_dim(t, all, s, k * c->split.part);
    int64_t dims[5];
    memcpy(dims, to.dims, sizeof dims);
    dims[j] = join_all;
    to = shape_of(t, to.dtype, 5, dims);
    all = put_one(t, AP_OP_ALL_TO_ALL, all, &to, attrs, node);
    all = cut(t, all, j, 0, c->join.full, node);
    for (int i = 0; i < k; i++)
        *tile_value(t, node, member[i]) =
            reshape(t, cut(t, all, s, i * c->split.part, c->split.part, node),
                    &t->g->nodes[node].shape, node);
}

/* ---- permutes ---- */

/* One place further along an axis. */
static void shift(struct tile *t, int node, const int *member, int k, int64_t ranks)
{
    const struct ap_shape *shape = &t->g->nodes[node].shape;
    int last = operand_of(t, node, member[k - 1]);

    if (ranks > 1)
        last = put_one(t, AP_OP_COLLECTIVE_PERMUTE, last, shape, between(t, node), node);
    for (int i = 0; i < k; i++)
        *tile_value(t, node, member[i]) =
            i == 0 ? last : operand_of(t, node, member[i - 1]);
}

/* The device of the rank with other coordinates on two axes. */
static int device_at(const struct tile *t, int device, const int axis[2], int64_t first,
                     int64_t second)
{
    int64_t at[AP_MAX_AXES];
    int d = 0;

    ap_mesh_coords(&t->inner, device, at);
    at[axis[0]] = first;
    at[axis[1]] = second;
    for (int a = 0; a < t->inner.n_axes; a++)
        d = d * (int)t->inner.size[a] + (int)at[a];
    return d;
}

/*
 * Axes a and b change places; the rank has all of b, and k of a. Its value of the device
 * at (i, p k + j) goes to rank p, to the device at (j, q k + i), q being this rank:
 * blocks of k x k whole values.
 */
static void swap_ranks(struct tile *t, int node, int device, const int axis[2])
{
    const struct ap_shape *shape = &t->g->nodes[node].shape;
    const int64_t k = t->inner.size[axis[0]], ranks = t->ranks.size[axis[0]];
    const int64_t n = ranks * k * k, dims[2] = {1, ap_shape_elems(shape)};
    const struct ap_shape row = shape_of(t, shape->dtype, 2, dims);
    int *block = AP_NEW_N(t->arena, n + 1, int), *to = AP_NEW_N(t->arena, n + 1, int);

    for (int64_t p = 0, at = 0; p < ranks; p++)
        for (int64_t j = 0; j < k; j++)
            for (int64_t i = 0; i < k; i++, at++) {
                const int from = device_at(t, device, axis, i, p * k + j);
                block[at] = reshape(t, operand_of(t, node, from), &row, node);
                to[at] = device_at(t, device, axis, j, p * k + i);
            }
    int all = join(t, (int)n, block, 0, node);
    struct ap_attrs *attrs = new_attrs(t);
    attrs->recomputed = t->g->nodes[node].attrs->recomputed;
    attrs->coll.axes = 1u << axis[0];
    attrs->coll.split = attrs->coll.join = (struct ap_split){0, 1, n, k * k};
    const struct ap_shape same = t->nodes[all].shape;
    all = put_one(t, AP_OP_ALL_TO_ALL, all, &same, attrs, node);
    for (int64_t at = 0; at < n; at++)
        *tile_value(t, node, to[at]) =
            reshape(t, cut(t, all, 0, at, 1, node), shape, node);
}

static void swap(struct tile *t, int node, const int *member, int k, int64_t ranks)
{
    const unsigned axes = coll_of(t, node)->axes;
    const int axis[2] = {__builtin_ctz(axes), __builtin_ctz(axes & (axes - 1))};

    if (ranks > 1) {
        swap_ranks(t, node, member[0], axis);
        return;
    }
    for (int i = 0; i < k; i++) {
        int64_t at[AP_MAX_AXES];
        ap_mesh_coords(&t->inner, member[i], at);
        *tile_value(t, node, member[i]) =
            operand_of(t, node, device_at(t, member[i], axis, at[axis[1]], at[axis[0]]));
    }
}

const char *tile_refuses(const struct tile *t, int node)
{
    const struct ap_node *n = &t->g->nodes[node];
    const unsigned axes = n->attrs->coll.axes;

    if (n->op != AP_OP_COLLECTIVE_PERMUTE || __builtin_popcount(axes) == 1 ||
        t->ranks.size[__builtin_ctz(axes & (axes - 1))] == 1)
        return NULL;
    return "it swaps two axes, and a rank has a part of the second only";
}

void tile_meet(struct tile *t, int node, const int *member, int k)
{
    const unsigned axes = coll_of(t, node)->axes;
    const int64_t ranks = ap_mesh_group(&t->ranks, axes);

    switch ((int)t->g->nodes[node].op) {
    case AP_OP_ALL_REDUCE:
        all_reduce(t, node, member, k, ranks);
        break;
    case AP_OP_ALL_GATHER:
        all_gather(t, node, member, k, ranks);
        break;
    case AP_OP_REDUCE_SCATTER:
        reduce_scatter(t, node, member, k, ranks);
        break;
    case AP_OP_ALL_TO_ALL:
        all_to_all(t, node, member, k, ranks);
        break;
    case AP_OP_COLLECTIVE_PERMUTE:
        if (__builtin_popcount(axes) == 1)
            shift(t, node, member, k, ranks);
        else
            swap(t, node, member, k, ranks);
        break;
    }
}
