/*
 * Making graphs. Shapes are inferred here from operands and attributes, and
 * ap_graph_check_shapes checks them at the end. Cost: constant per node.
 */
#include "graph/build.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "graph/element.h"
#include "graph/group.h"

void ap_build_init(struct ap_build *b, struct ap_arena *arena)
{
    *b = (struct ap_build){.arena = arena, .scope = ""};
}

int ap_build_add_reducer(struct ap_build *b, struct ap_reducer reducer)
{
    AP_ROOM_IN(b->arena, b->reducers, b->n_reducers, b->cap_reducers);
    b->reducers[b->n_reducers] = reducer;
    return b->n_reducers++;
}

void ap_build_from(struct ap_build *b, struct ap_arena *arena, const struct ap_graph *g)
{
    ap_build_init(b, arena);
    b->n = b->cap = g->n_nodes;
    b->nodes = ap_xrealloc(NULL, (size_t)(b->cap + 1) * sizeof *b->nodes);
    memcpy(b->nodes, g->nodes, (size_t)b->n * sizeof *b->nodes);
    for (int i = 0; i < b->n; i++)
        b->nodes[i].group = -1;
    b->n_params = g->n_params;
    b->n_comps = g->n_comps;
    b->comps = g->comps;
    for (int i = 0; i < g->n_reducers; i++) {
        const struct ap_reducer *r = &g->reducers[i];
        ap_build_add_reducer(b, *r);
        if (r->red == AP_RED_NONE)
            continue;
        for (int t = 0; t < AP_N_DTYPES; t++) /* without a body: of any type */
            if (r->n_nodes == 0 || (int)r->nodes[0].shape.dtype == t)
                b->reducer_of[r->red][t] = i + 1;
    }
}

/*
 * The same bytes in the arena, once if they were met not long ago: most of what is said
 * of nodes is said of thousands. hash: of what they are likely to differ in.
 */
static const void *keep(struct ap_build *b, const void *data, size_t size, uint64_t hash)
{
    struct ap_build_kept *kept = &b->kept[hash % (sizeof b->kept / sizeof *b->kept)];

    if (kept->size != size || memcmp(kept->data, data, size) != 0)
        *kept = (struct ap_build_kept){ap_arena_dup(b->arena, data, size), size};
    return kept->data;
}

static const int64_t *keep_ints(struct ap_build *b, int n, const int64_t *v)
{
    size_t size = (size_t)n * sizeof *v;
    return keep(b, v, size, ap_hash(v, size, 0));
}

/* Lists in them are kept ones: equal ones are one. */
static const struct ap_attrs *keep_attrs(struct ap_build *b, const struct ap_attrs *a)
{
    enum { N = sizeof *a / sizeof(uint64_t) };
    uint64_t own[N], usual[N], hash = 1;

    memcpy(own, a, sizeof own);
    memcpy(usual, &ap_attrs_default, sizeof usual);
    for (size_t i = 0; i < N; i++)
        if (own[i] != usual[i])
            hash = ap_hash(&own[i], sizeof own[i], hash + i);
    return keep(b, a, sizeof *a, hash);
}

/* A scalar's value: 16 bytes, whose first bytes are the element. */
static const void *keep_element(struct ap_build *b, const unsigned char data[16])
{
    return keep(b, data, 16, ap_hash(data, 16, 1));
}

struct ap_attrs *ap_build_attrs(struct ap_build *b)
{
    return ap_arena_dup(b->arena, &ap_attrs_default, sizeof ap_attrs_default);
}

struct ap_shape ap_build_shape(struct ap_build *b, enum ap_dtype dtype, int rank,
                               const int64_t *dims)
{
    static const int64_t none;
    assert(rank <= AP_MAX_RANK);
    struct ap_shape s = {.dtype = dtype, .rank = rank};
    s.dims = rank ? keep_ints(b, rank, dims) : &none;
    return s;
}

struct ap_ints ap_build_ints(struct ap_build *b, int n, const int64_t *v)
{
    return (struct ap_ints){n, n ? keep_ints(b, n, v) : NULL};
}

/* "<op>.<id>" */
static const char *own_name(struct ap_build *b, enum ap_op op, int id)
{
    char text[64], *p = text + sizeof text;
    const char *name = ap_ops[op].name;
    size_t len = strlen(name);

    do
        *--p = (char)('0' + id % 10);
    while (id /= 10);
    *--p = '.';
    assert(len <= (size_t)(p - text));
    p -= len;
    memcpy(p, name, len);
    return ap_arena_strndup(b->arena, p, (size_t)(text + sizeof text - p));
}

int ap_build_node(struct ap_build *b, enum ap_op op, const char *name,
                  struct ap_shape shape, const struct ap_attrs *attrs, int n_in,
                  const int *in)
{
    AP_ROOM(b->nodes, b->n, b->cap);
    int id = b->n++;
    for (int k = 0; k < n_in; k++)
        assert(in[k] >= 0 && in[k] < id);
    b->nodes[id] = (struct ap_node){
        .op = op,
        .name = name ? name : own_name(b, op, id),
        .n_in = n_in,
        .in = n_in ? ap_arena_dup(b->arena, in, (size_t)n_in * sizeof *in) : NULL,
        .shape = shape,
        .attrs = attrs ? attrs : &ap_attrs_default,
        .scope = b->scope,
        .phase = b->phase,
        .param = -1,
        .group = -1};
    return id;
}

static int add1(struct ap_build *b, enum ap_op op, struct ap_shape shape,
                const struct ap_attrs *attrs, int x)
{
    return ap_build_node(b, op, NULL, shape, attrs, 1, &x);
}

static int add2(struct ap_build *b, enum ap_op op, struct ap_shape shape,
                const struct ap_attrs *attrs, int x, int y)
{
    int in[2] = {x, y};
    return ap_build_node(b, op, NULL, shape, attrs, 2, in);
}

/* ---- leaves ---- */

int ap_build_param(struct ap_build *b, const char *name, struct ap_shape shape,
                   enum ap_role role)
{
    int id = ap_build_node(b, AP_OP_PARAMETER, ap_arena_strdup(b->arena, name), shape,
                           NULL, 0, NULL);
    b->nodes[id].role = role;
    b->nodes[id].param = b->n_params++;
    return id;
}

int ap_build_scalar(struct ap_build *b, enum ap_dtype dtype, double value)
{
    struct ap_attrs a = ap_attrs_default;
    unsigned char data[16] = {0};

    if (dtype == AP_PRED || ap_dtype_is_int(dtype))
        ap_elem_from_int(dtype, (int64_t)value, data);
    else
        ap_elem_from_double(dtype, value, data);
    a.literal = (struct ap_literal){.splat = true, .data = keep_element(b, data)};
    return ap_build_node(b, AP_OP_CONSTANT, NULL, ap_build_shape(b, dtype, 0, NULL),
                         keep_attrs(b, &a), 0, NULL);
}

int ap_build_full(struct ap_build *b, const struct ap_shape *like, double value)
{
    int x = ap_build_scalar(b, like->dtype, value);
    return like->rank ? ap_build_broadcast(b, x, like->rank, like->dims, NULL) : x;
}

int ap_build_literal(struct ap_build *b, struct ap_shape shape, const void *data)
{
    struct ap_attrs a = ap_attrs_default;

    a.literal = (struct ap_literal){
        .data = ap_arena_dup(b->arena, data, (size_t)ap_shape_bytes(&shape))};
    return ap_build_node(b, AP_OP_CONSTANT, NULL, shape, keep_attrs(b, &a), 0, NULL);
}

int ap_build_iota(struct ap_build *b, struct ap_shape shape, int dim)
{
    struct ap_attrs a = ap_attrs_default;
    a.iota_dimension = dim;
    return ap_build_node(b, AP_OP_IOTA, NULL, shape, keep_attrs(b, &a), 0, NULL);
}

/* ---- elementwise ---- */

static struct ap_shape pred_like(struct ap_shape s)
{
    s.dtype = AP_PRED;
    return s;
}

int ap_build_unary(struct ap_build *b, enum ap_op op, int x)
{
    struct ap_shape s = b->nodes[x].shape;
    return add1(b, op, op == AP_OP_IS_FINITE ? pred_like(s) : s, NULL, x);
}

int ap_build_binary(struct ap_build *b, enum ap_op op, int x, int y)
{
    assert(ap_shape_equal(&b->nodes[x].shape, &b->nodes[y].shape));
    return add2(b, op, b->nodes[x].shape, NULL, x, y);
}

int ap_build_compare(struct ap_build *b, enum ap_direction direction, int x, int y)
{
    struct ap_attrs a = ap_attrs_default;
    a.direction = direction;
    return add2(b, AP_OP_COMPARE, pred_like(b->nodes[x].shape), keep_attrs(b, &a), x, y);
}

int ap_build_select(struct ap_build *b, int pred, int on_true, int on_false)
{
    int in[3] = {pred, on_true, on_false};
    return ap_build_node(b, AP_OP_SELECT, NULL, b->nodes[on_true].shape, NULL, 3, in);
}

int ap_build_convert(struct ap_build *b, int x, enum ap_dtype dtype)
{
    struct ap_shape s = b->nodes[x].shape;
    if (s.dtype == dtype)
        return x;
    s.dtype = dtype;
    return add1(b, AP_OP_CONVERT, s, NULL, x);
}

int ap_build_with(struct ap_build *b, enum ap_op op, int x, double value)
{
    struct ap_shape s = b->nodes[x].shape; /* the node array may move */
    return ap_build_binary(b, op, x, ap_build_full(b, &s, value));
}

/* ---- moves ---- */

int ap_build_broadcast(struct ap_build *b, int x, int rank, const int64_t *dims,
                       const int64_t *map)
{
    struct ap_attrs a = ap_attrs_default;
    a.dimensions = ap_build_ints(b, b->nodes[x].shape.rank, map);
    return add1(b, AP_OP_BROADCAST,
                ap_build_shape(b, b->nodes[x].shape.dtype, rank, dims), keep_attrs(b, &a),
                x);
}

int ap_build_reshape(struct ap_build *b, int x, int rank, const int64_t *dims)
{
    return add1(b, AP_OP_RESHAPE, ap_build_shape(b, b->nodes[x].shape.dtype, rank, dims),
                NULL, x);
}

int ap_build_transpose(struct ap_build *b, int x, const int64_t *perm)
{
    struct ap_shape s = b->nodes[x].shape;
    struct ap_attrs a = ap_attrs_default;
    int64_t dims[AP_MAX_RANK];

    for (int d = 0; d < s.rank; d++)
        dims[d] = s.dims[perm[d]];
    a.dimensions = ap_build_ints(b, s.rank, perm);
    return add1(b, AP_OP_TRANSPOSE, ap_build_shape(b, s.dtype, s.rank, dims),
                keep_attrs(b, &a), x);
}

int ap_build_slice(struct ap_build *b, int x, const struct ap_slice_dim *slice)
{
    struct ap_shape s = b->nodes[x].shape;
    struct ap_attrs a = ap_attrs_default;
    int64_t dims[AP_MAX_RANK];

    for (int d = 0; d < s.rank; d++)
        dims[d] = ap_ceil_div(slice[d].limit - slice[d].start, slice[d].stride);
    a.n_slice = s.rank;
    a.slice = ap_arena_dup(b->arena, slice, (size_t)s.rank * sizeof *slice);
    return add1(b, AP_OP_SLICE, ap_build_shape(b, s.dtype, s.rank, dims),
                keep_attrs(b, &a), x);
}

int ap_build_pad(struct ap_build *b, int x, int value, const struct ap_pad_dim *pad)
{
    struct ap_shape s = b->nodes[x].shape;
    struct ap_attrs a = ap_attrs_default;
    int64_t dims[AP_MAX_RANK];

    for (int d = 0; d < s.rank; d++) {
        int64_t gaps = s.dims[d] > 0 ? s.dims[d] - 1 : 0;
        dims[d] = s.dims[d] + pad[d].lo + pad[d].hi + gaps * pad[d].interior;
    }
    a.n_padding = s.rank;
    a.padding = ap_arena_dup(b->arena, pad, (size_t)s.rank * sizeof *pad);
    return add2(b, AP_OP_PAD, ap_build_shape(b, s.dtype, s.rank, dims), keep_attrs(b, &a),
                x, value);
}

int ap_build_concat(struct ap_build *b, int n, const int *x, int dim)
{
    struct ap_shape s = b->nodes[x[0]].shape;
    struct ap_attrs a = ap_attrs_default;
    int64_t dims[AP_MAX_RANK], at = dim;

    memcpy(dims, s.dims, (size_t)s.rank * sizeof *dims);
    for (int i = 1; i < n; i++)
        dims[dim] += b->nodes[x[i]].shape.dims[dim];
    a.dimensions = ap_build_ints(b, 1, &at);
    return ap_build_node(b, AP_OP_CONCATENATE, NULL,
                         ap_build_shape(b, s.dtype, s.rank, dims), keep_attrs(b, &a), n,
                         x);
}

int ap_build_reverse(struct ap_build *b, int x, int n, const int64_t *dims)
{
    struct ap_attrs a = ap_attrs_default;
    a.dimensions = ap_build_ints(b, n, dims);
    return add1(b, AP_OP_REVERSE, b->nodes[x].shape, keep_attrs(b, &a), x);
}

/* ---- contractions ---- */

static bool listed(const int64_t *v, int n, int64_t d)
{
    for (int i = 0; i < n; i++)
        if (v[i] == d)
            return true;
    return false;
}

int ap_build_dot(struct ap_build *b, int x, int y, const struct ap_dot_dims *of)
{
    struct ap_shape sx = b->nodes[x].shape, sy = b->nodes[y].shape;
    struct ap_attrs a = ap_attrs_default;
    int64_t dims[2 * AP_MAX_RANK];
    int rank = 0;

    for (int i = 0; i < of->n_batch; i++)
        dims[rank++] = sx.dims[of->x_batch[i]];
    for (int d = 0; d < sx.rank; d++)
        if (!listed(of->x_batch, of->n_batch, d) &&
            !listed(of->x_contract, of->n_contract, d))
            dims[rank++] = sx.dims[d];
    for (int d = 0; d < sy.rank; d++)
        if (!listed(of->y_batch, of->n_batch, d) &&
            !listed(of->y_contract, of->n_contract, d))
            dims[rank++] = sy.dims[d];
    a.lhs_batch_dims = ap_build_ints(b, of->n_batch, of->x_batch);
    a.rhs_batch_dims = ap_build_ints(b, of->n_batch, of->y_batch);
    a.lhs_contracting_dims = ap_build_ints(b, of->n_contract, of->x_contract);
    a.rhs_contracting_dims = ap_build_ints(b, of->n_contract, of->y_contract);
    return add2(b, AP_OP_DOT, ap_build_shape(b, sx.dtype, rank, dims), keep_attrs(b, &a),
                x, y);
}

int ap_build_matmul(struct ap_build *b, int x, int y, int64_t x_dim, int64_t y_dim)
{
    return ap_build_dot(b, x, y,
                        &(struct ap_dot_dims){
                            .n_contract = 1, .x_contract = &x_dim, .y_contract = &y_dim});
}

/* Positions of a window on an extent. */
static int64_t window_count(int64_t extent, const struct ap_window_dim *w)
{
    int64_t in = extent > 0 ? (extent - 1) * w->lhs_dilate + 1 : 0;
    int64_t reach = (w->size - 1) * w->rhs_dilate + 1;
    int64_t room = in + w->pad_lo + w->pad_hi - reach;
    return room < 0 ? 0 : room / w->stride + 1;
}

int ap_build_conv(struct ap_build *b, int x, int w, struct ap_attrs *attrs)
{
    struct ap_shape sx = b->nodes[x].shape, sw = b->nodes[w].shape;
    const struct ap_conv_dims *c = &attrs->conv;
    int64_t dims[AP_MAX_RANK];

    dims[c->out_batch] = sx.dims[c->lhs_batch] / attrs->batch_group_count;
    dims[c->out_feature] = sw.dims[c->rhs_out];
    for (int i = 0; i < c->n_spatial; i++)
        dims[c->out_spatial[i]] =
            window_count(sx.dims[c->lhs_spatial[i]], &attrs->window[i]);
    return add2(b, AP_OP_CONVOLUTION, ap_build_shape(b, sx.dtype, sx.rank, dims), attrs,
                x, w);
}

/* ---- reductions ---- */

int ap_build_reducer(struct ap_build *b, enum ap_red red, enum ap_dtype dtype)
{
    static const int operands[2] = {0, 1};
    static const int result = 2;

    if (b->reducer_of[red][dtype])
        return b->reducer_of[red][dtype] - 1;
    if (red == AP_RED_ASSIGN) {
        int r = ap_build_add_reducer(
            b, (struct ap_reducer){.name = ap_red_names[red], .red = red});
        b->reducer_of[red][dtype] = r + 1;
        return r;
    }
    assert(ap_red_ops[red]);
    struct ap_node *body = AP_NEW_N(b->arena, 3, struct ap_node);
    for (int i = 0; i < 3; i++) {
        body[i] = (struct ap_node){
            .op = i < 2 ? AP_OP_PARAMETER : ap_red_ops[red],
            .name = ap_arena_printf(b->arena, "%s.%d",
                                    i < 2 ? "x" : ap_ops[ap_red_ops[red]].name, i),
            .n_in = i < 2 ? 0 : 2,
            .in = operands,
            .shape = ap_build_shape(b, dtype, 0, NULL),
            .attrs = &ap_attrs_default,
            .scope = "",
            .param = i < 2 ? i : -1,
            .group = -1};
    }
    int r = ap_build_add_reducer(
        b,
        (struct ap_reducer){.name = ap_arena_printf(b->arena, "%s.%s", ap_red_names[red],
                                                    ap_dtype_name(dtype)),
                            .red = red,
                            .n_nodes = 3,
                            .n_results = 1,
                            .nodes = body,
                            .results = &result});
    b->reducer_of[red][dtype] = r + 1;
    return r;
}

static int neutral(struct ap_build *b, enum ap_red red, enum ap_dtype dtype)
{
    struct ap_attrs a = ap_attrs_default;
    unsigned char data[16] = {0};

    ap_red_neutral(red, dtype, data);
    a.literal = (struct ap_literal){.splat = true, .data = keep_element(b, data)};
    return ap_build_node(b, AP_OP_CONSTANT, NULL, ap_build_shape(b, dtype, 0, NULL),
                         keep_attrs(b, &a), 0, NULL);
}

int ap_build_reduce(struct ap_build *b, int x, enum ap_red red, int n,
                    const int64_t *dims)
{
    struct ap_shape s = b->nodes[x].shape;
    struct ap_attrs a = ap_attrs_default;
    int64_t kept[AP_MAX_RANK];
    int rank = 0;

    for (int d = 0; d < s.rank; d++)
        if (!listed(dims, n, d))
            kept[rank++] = s.dims[d];
    a.dimensions = ap_build_ints(b, n, dims);
    a.to_apply = ap_build_reducer(b, red, s.dtype);
    int init = neutral(b, red, s.dtype);
    return add2(b, AP_OP_REDUCE, ap_build_shape(b, s.dtype, rank, kept),
                keep_attrs(b, &a), x, init);
}

int ap_build_reduce_window(struct ap_build *b, int x, enum ap_red red,
                           const struct ap_window_dim *window)
{
    struct ap_shape s = b->nodes[x].shape;
    struct ap_attrs a = ap_attrs_default;
    int64_t dims[AP_MAX_RANK];

    for (int d = 0; d < s.rank; d++)
        dims[d] = window_count(s.dims[d], &window[d]);
    a.n_window = s.rank;
    a.window = ap_arena_dup(b->arena, window, (size_t)s.rank * sizeof *window);
    a.to_apply = ap_build_reducer(b, red, s.dtype);
    int init = neutral(b, red, s.dtype);
    return add2(b, AP_OP_REDUCE_WINDOW, ap_build_shape(b, s.dtype, s.rank, dims),
                keep_attrs(b, &a), x, init);
}

/* ---- indexing ---- */

int ap_build_take(struct ap_build *b, int table, int indices)
{
    struct ap_shape t = b->nodes[table].shape, i = b->nodes[indices].shape;
    struct ap_attrs a = ap_attrs_default;
    int64_t dims[2 * AP_MAX_RANK], offset[AP_MAX_RANK] = {0}, sizes[AP_MAX_RANK],
                                   zero = 0;
    int rank = 0;

    for (int d = 0; d < i.rank; d++)
        dims[rank++] = i.dims[d];
    for (int d = 1; d < t.rank; d++) {
        offset[d - 1] = rank;
        dims[rank++] = t.dims[d];
    }
    for (int d = 0; d < t.rank; d++)
        sizes[d] = d ? t.dims[d] : 1;
    a.offset_dims = ap_build_ints(b, t.rank - 1, offset);
    a.collapsed_slice_dims = ap_build_ints(b, 1, &zero);
    a.start_index_map = a.collapsed_slice_dims;
    a.index_vector_dim = i.rank;
    a.slice_sizes = ap_build_ints(b, t.rank, sizes);
    return add2(b, AP_OP_GATHER, ap_build_shape(b, t.dtype, rank, dims),
                keep_attrs(b, &a), table, indices);
}

/* ---- the end ---- */

int ap_build_finish(struct ap_build *b, const char *name, int n_results,
                    const struct ap_result *results, struct ap_graph *g,
                    struct ap_err *err)
{
    *g = (struct ap_graph){
        .name = ap_arena_strdup(b->arena, name),
        .n_nodes = b->n,
        .nodes = b->nodes,
        .n_results = n_results,
        .results = ap_arena_dup(b->arena, results, (size_t)n_results * sizeof *results),
        .n_reducers = b->n_reducers,
        .reducers = b->reducers,
        .n_comps = b->n_comps,
        .comps = b->comps};
    ap_arena_keep(b->arena, b->nodes);
    b->nodes = NULL;
    if (ap_graph_index(b->arena, g, "", err) || ap_graph_check_shapes(g, "", err))
        return -1;
    ap_group(b->arena, g);
    return 0;
}
