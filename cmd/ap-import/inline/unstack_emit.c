/* The nodes of one pass: the form of each operator on operands that are split layer by
 * layer. */
#include "inline/unstack.h"

#include <assert.h>
#include <string.h>

#include "doc/literal.h"
#include "graph/element.h"

static const struct ap_node *old_node(const struct unstack *u, int id)
{
    return &u->old.nodes[id];
}

static int64_t layers_of(const struct unstack *u, int id)
{
    return old_node(u, id)->shape.dims[u->axis[id]];
}

static bool has(const struct ap_ints *v, int64_t x)
{
    for (int i = 0; i < v->n; i++)
        if (v->v[i] == x)
            return true;
    return false;
}

/* ---- pieces of attributes and shapes ---- */

static struct ap_shape shape_without(struct unstack *u, const struct ap_shape *s, int d)
{
    struct ap_shape out = *s;
    int64_t *dims = AP_NEW_N(u->arena, s->rank, int64_t);
    for (int i = 0, n = 0; i < s->rank; i++)
        if (i != d)
            dims[n++] = s->dims[i];
    out.dims = dims;
    out.rank--;
    return out;
}

/* Dimension numbers after dimension d is gone; d itself is left out. */
static struct ap_ints ints_without(struct unstack *u, const struct ap_ints *v, int d)
{
    int64_t *out = AP_NEW_N(u->arena, v->n + 1, int64_t);
    int n = 0;
    for (int i = 0; i < v->n; i++)
        if (v->v[i] != d)
            out[n++] = v->v[i] - (v->v[i] > d);
    return (struct ap_ints){n, out};
}

/* Entry number d left out of a list of n things of some size. */
static const void *list_without(struct unstack *u, const void *list, int n, size_t size,
                                int d)
{
    const char *from = list;
    char *out = ap_arena_alloc_n(u->arena, (size_t)n, size);
    memcpy(out, from, (size_t)d * size);
    memcpy(out + (size_t)d * size, from + (size_t)(d + 1) * size,
           (size_t)(n - d - 1) * size);
    return out;
}

/* Attributes of one layer of a node that is split along a; b is operand 0's axis. */
static const struct ap_attrs *attrs_without(struct unstack *u, const struct ap_node *node,
                                            int a, int b)
{
    const struct ap_attrs *old = node->attrs;
    struct ap_attrs *out = ap_arena_dup(u->arena, old, sizeof *old);
    switch ((int)node->op) {
    case AP_OP_BROADCAST: {
        int64_t *dims = AP_NEW_N(u->arena, old->dimensions.n + 1, int64_t);
        int n = 0;
        for (int i = 0; i < old->dimensions.n; i++)
            if (i != b)
                dims[n++] = old->dimensions.v[i] - (old->dimensions.v[i] > a);
        out->dimensions = (struct ap_ints){n, dims};
        break;
    }
    case AP_OP_TRANSPOSE:
    case AP_OP_REDUCE:
        out->dimensions = ints_without(u, &old->dimensions, b);
        break;
    case AP_OP_CONCATENATE:
    case AP_OP_REVERSE:
        out->dimensions = ints_without(u, &old->dimensions, a);
        break;
    case AP_OP_IOTA:
        out->iota_dimension -= old->iota_dimension > a;
        break;
    case AP_OP_SLICE:
        out->slice = list_without(u, old->slice, old->n_slice, sizeof *old->slice, a);
        out->n_slice--;
        break;
    case AP_OP_PAD:
        out->padding =
            list_without(u, old->padding, old->n_padding, sizeof *old->padding, a);
        out->n_padding--;
        break;
    case AP_OP_DYNAMIC_SLICE: {
        const struct ap_ints *sizes = &old->dynamic_slice_sizes;
        out->dynamic_slice_sizes = (struct ap_ints){
            sizes->n - 1, list_without(u, sizes->v, sizes->n, sizeof *sizes->v, a)};
        break;
    }
    case AP_OP_DOT: {
        int rhs = (int)old->rhs_batch_dims.v[a];
        out->lhs_batch_dims = ints_without(u, &old->lhs_batch_dims, b);
        out->lhs_contracting_dims = ints_without(u, &old->lhs_contracting_dims, b);
        out->rhs_batch_dims = ints_without(u, &old->rhs_batch_dims, rhs);
        out->rhs_contracting_dims = ints_without(u, &old->rhs_contracting_dims, rhs);
        break;
    }
    }
    return out;
}

/* ---- adding ---- */

static int add_as(struct unstack *u, const struct ap_node *node,
                  const struct node_info *info)
{
    struct node_info own = *info;
    own.auto_named = true;
    return import_add(u->im, node, &own);
}

/* operator(x) with default attributes, named and placed as the old node `like`. */
static int add_unary(struct unstack *u, int like, enum ap_op op, const char *name, int x,
                     const struct ap_shape *shape, const struct ap_attrs *attrs)
{
    struct ap_node node = *old_node(u, like);
    node.op = op;
    node.name = name;
    node.in = ap_arena_dup(u->arena, &x, sizeof x);
    node.n_in = 1;
    node.shape = *shape;
    node.attrs = attrs ? attrs : &ap_attrs_default;
    node.pin = NULL;
    struct node_info info = u->old_info[like];
    info.layered = op == AP_OP_SLICE;
    return add_as(u, &node, &info);
}

static int add_reshape(struct unstack *u, int like, const char *name, int x,
                       const struct ap_shape *shape)
{
    if (ap_shape_same_dims(&u->im->g.nodes[x].shape, shape))
        return x;
    return add_unary(u, like, AP_OP_RESHAPE, name, x, shape, NULL);
}

static int add_scalar(struct unstack *u, int like, const char *name, enum ap_dtype dtype,
                      const void *data)
{
    struct ap_node node = *old_node(u, like);
    struct node_info info = u->old_info[like];
    node.op = AP_OP_CONSTANT;
    node.name = name;
    node.n_in = 0;
    node.in = NULL;
    node.shape = (struct ap_shape){.dtype = dtype};
    node.attrs = import_scalar_attrs(u->arena, dtype, data);
    node.pin = NULL;
    info.layered = false;
    return add_as(u, &node, &info);
}

static const char *piece_name(struct unstack *u, int id, int64_t l)
{
    return ap_arena_printf(u->arena, "%s/%lld", old_node(u, id)->name, (long long)l);
}

/* Layer l of an operand, or the whole of one that is not split. */
static int operand(const struct unstack *u, int id, int64_t l)
{
    return u->axis[id] < 0 ? u->to[id] : u->pieces[id][l];
}

/* Layer l of a node that works layer by layer. */
static int add_layer(struct unstack *u, int id, int64_t l)
{
    struct ap_node node = *old_node(u, id);
    int a = u->axis[id], b = node.n_in ? u->axis[node.in[0]] : -1, n = 0;
    int first = node.op == AP_OP_DYNAMIC_SLICE          ? 1
                : node.op == AP_OP_DYNAMIC_UPDATE_SLICE ? 2
                                                        : node.n_in;
    int *in = AP_NEW_N(u->arena, node.n_in + 1, int);
    bool turned = node.op == AP_OP_REVERSE && has(&node.attrs->dimensions, a);
    for (int k = 0; k < node.n_in; k++)
        if (k != first + a)
            in[n++] = operand(u, node.in[k], turned ? layers_of(u, id) - 1 - l : l);
    node.name = piece_name(u, id, l);
    node.attrs = attrs_without(u, &node, a, b);
    node.shape = shape_without(u, &node.shape, a);
    node.pin = unstack_pin(u->arena, node.pin, a);
    node.in = in;
    node.n_in = n;
    return add_as(u, &node, &u->old_info[id]);
}

static void add_params(struct unstack *u, int id)
{
    const struct ap_node *old = old_node(u, id);
    if (old->pin && !unstack_pin(u->arena, old->pin, u->axis[id]) &&
        !u->im->warned_pins) {
        u->im->warned_pins = true;
        hlo_warn(
            u->im->src, u->old_info[id].pos,
            "the sharding %.100s of '%.100s' splits its layers, or cannot be inferred "
            "without them, and is dropped",
            old->pin, old->name);
    }
    const int64_t n_layers = layers_of(u, id);
    for (int64_t l = 0; l < n_layers; l++) {
        struct ap_node node = *old;
        struct node_info info = u->old_info[id];
        node.name = unstack_param_name(u->arena, old->name, l);
        node.shape = shape_without(u, &old->shape, u->axis[id]);
        node.pin = unstack_pin(u->arena, old->pin, u->axis[id]);
        if (*old->scope)
            node.scope = import_path_scope(u->im, node.name);
        if (old->attrs->argument) {
            struct ap_attrs *a = ap_arena_dup(u->arena, old->attrs, sizeof *old->attrs);
            a->argument = import_part(u->arena, a->argument, u->axis[id], l, n_layers);
            node.attrs = a;
        }
        u->pieces[id][l] = import_add(u->im, &node, &info);
    }
}

/* Elements [l] along axis a of a constant's data. */
static int add_constant(struct unstack *u, int id, int64_t l)
{
    struct ap_node node = *old_node(u, id);
    const struct ap_literal *old = &node.attrs->literal;
    int a = u->axis[id];
    struct ap_shape shape = shape_without(u, &node.shape, a);
    size_t size = (size_t)ap_dtype_size(shape.dtype), inner = size;
    if (!old->splat && !old->elided) {
        int64_t outer = 1, n = node.shape.dims[a];
        for (int d = 0; d < a; d++)
            outer *= node.shape.dims[d];
        for (int d = a + 1; d < node.shape.rank; d++)
            inner *= (size_t)node.shape.dims[d];
        char *data = ap_arena_alloc_n(u->arena, (size_t)outer + 1, inner);
        for (int64_t i = 0; i < outer; i++)
            memcpy(data + (size_t)i * inner,
                   (const char *)old->data + (size_t)(i * n + l) * inner, inner);
        struct ap_attrs *attrs = ap_arena_dup(u->arena, node.attrs, sizeof *attrs);
        attrs->literal = *hlo_literal_make(u->arena, data,
                                           (int64_t)((size_t)outer * inner / size), size);
        node.attrs = attrs;
    }
    node.name = piece_name(u, id, l);
    node.shape = shape;
    node.pin = unstack_pin(u->arena, node.pin, a);
    return add_as(u, &node, &u->old_info[id]);
}

/* Layer l of an iota along the layers: the number l everywhere. */
static int add_number(struct unstack *u, int id, int64_t l)
{
    const struct ap_node *old = old_node(u, id);
    unsigned char data[16] = {0};
    if (ap_dtype_is_int(old->shape.dtype))
        ap_elem_from_int(old->shape.dtype, l, data);
    else
        ap_elem_from_double(old->shape.dtype, (double)l, data);
    int x =
        add_scalar(u, id, ap_arena_printf(u->arena, "%s.scalar", piece_name(u, id, l)),
                   old->shape.dtype, data);
    struct ap_shape shape = shape_without(u, &old->shape, u->axis[id]);
    return shape.rank
               ? add_unary(u, id, AP_OP_BROADCAST, piece_name(u, id, l), x, &shape, NULL)
               : x;
}

/* ---- across layers ---- */

/* One layer of a stack is set: the others are what they were. */
static void add_update(struct unstack *u, int id, int64_t place)
{
    const struct ap_node *node = old_node(u, id);
    int a = u->axis[id], x = node->in[0], n = 0;
    int64_t n_layers = layers_of(u, id);
    if (u->n_users[x] == 1) { /* nobody else reads the old stack's list */
        u->pieces[id] = u->pieces[x];
    } else {
        for (int64_t l = 0; l < n_layers; l++)
            u->pieces[id][l] = u->pieces[x][l];
    }
    const struct ap_shape *update = &old_node(u, node->in[1])->shape;
    struct ap_shape shape = shape_without(u, update, a);
    const char *name = piece_name(u, id, place);
    int value = add_reshape(u, id, name, u->to[node->in[1]], &shape);
    struct ap_node set = *node;
    set.shape = shape_without(u, &node->shape, a);
    if (!ap_shape_same_dims(&shape, &set.shape)) {
        int *in = AP_NEW_N(u->arena, node->n_in, int);
        in[n++] = u->pieces[id][place];
        in[n++] = value;
        for (int d = 0; d < node->shape.rank; d++)
            if (d != a)
                in[n++] = u->to[node->in[2 + d]];
        set.in = in;
        set.n_in = n;
        set.name = name;
        set.pin = NULL;
        value = add_as(u, &set, &u->old_info[id]);
    }
    u->pieces[id][place] = value;
}

/* A slice of one layer. */
static int add_pick(struct unstack *u, int id)
{
    const struct ap_node *node = old_node(u, id);
    int b = u->axis[node->in[0]];
    int x = u->pieces[node->in[0]][node->attrs->slice[b].start];
    struct ap_shape shape = shape_without(u, &node->shape, b);
    if (!ap_shape_same_dims(&u->im->g.nodes[x].shape, &shape))
        x = add_unary(u, id, AP_OP_SLICE,
                      ap_arena_printf(u->arena, "%s.slice", node->name), x, &shape,
                      attrs_without(u, node, b, b));
    return add_unary(u, id, AP_OP_RESHAPE, node->name, x, &node->shape, NULL);
}

bool unstack_can_combine(const struct import *im, const struct ap_node *node)
{
    return ap_red_ops[im->reducers[node->attrs->to_apply].red] != AP_OP_PARAMETER;
}

static int add_combine(struct unstack *u, int id, enum ap_op op, int x, int y)
{
    struct ap_node node = *old_node(u, id);
    int in[2] = {x, y};
    node.op = op;
    node.in = ap_arena_dup(u->arena, in, sizeof in);
    node.n_in = 2;
    node.attrs = &ap_attrs_default;
    node.pin = NULL;
    return add_as(u, &node, &u->old_info[id]);
}

static bool is_neutral(const struct ap_node *init, const void *neutral)
{
    return init->op == AP_OP_CONSTANT && !init->attrs->literal.elided &&
           memcmp(init->attrs->literal.data, neutral,
                  (size_t)ap_dtype_size(init->shape.dtype)) == 0;
}

/* A reduction over the layers: reductions within each, combined in order. */
static int add_reduce(struct unstack *u, int id)
{
    const struct ap_node *node = old_node(u, id);
    int x = node->in[0], init = u->to[node->in[1]];
    enum ap_red red = u->im->reducers[node->attrs->to_apply].red;
    const struct ap_attrs *attrs = attrs_without(u, node, -1, u->axis[x]);
    unsigned char neutral[16] = {0};
    ap_red_neutral(red, node->shape.dtype, neutral);
    bool from_neutral = is_neutral(old_node(u, node->in[1]), neutral);
    int total = -1;
    for (int64_t l = 0; l < layers_of(u, x); l++) {
        struct ap_node layer = *node;
        int part = u->pieces[x][l];
        if (attrs->dimensions.n) {
            int in[2] = {part, init};
            if (!from_neutral)
                in[1] =
                    add_scalar(u, id, ap_arena_printf(u->arena, "%s.init", node->name),
                               node->shape.dtype, neutral);
            layer.in = ap_arena_dup(u->arena, in, sizeof in);
            layer.name = piece_name(u, id, l);
            layer.attrs = attrs;
            layer.pin = NULL;
            part = add_as(u, &layer, &u->old_info[id]);
        }
        total = total < 0 ? part : add_combine(u, id, ap_red_ops[red], total, part);
    }
    if (!from_neutral && node->shape.rank)
        init = add_unary(u, id, AP_OP_BROADCAST,
                         ap_arena_printf(u->arena, "%s.init", node->name), init,
                         &node->shape, NULL);
    return from_neutral ? total : add_combine(u, id, ap_red_ops[red], init, total);
}

/* ---- nodes in order ---- */

static int add_whole(struct unstack *u, int id)
{
    struct ap_node node = *old_node(u, id);
    if (node.n_in && u->axis[node.in[0]] >= 0) {
        if (node.op == AP_OP_SLICE)
            return add_pick(u, id);
        assert(node.op == AP_OP_REDUCE);
        return add_reduce(u, id);
    }
    import_rewire(u->arena, &node, u->to);
    return import_add(u->im, &node, &u->old_info[id]);
}

/* True if the layers of a split node are other nodes' results, or parameters. */
static bool is_across(const struct unstack *u, int id, int64_t *place)
{
    const struct ap_node *node = old_node(u, id);
    int a = u->axis[id];
    if (node->op == AP_OP_DYNAMIC_UPDATE_SLICE)
        return u->axis[node->in[1]] < 0 &&
               unstack_sets(&(struct import){.g = u->old}, node, a, place);
    return node->op == AP_OP_PARAMETER ||
           (node->op == AP_OP_CONCATENATE && node->attrs->dimensions.v[0] == a);
}

static void add_across(struct unstack *u, int id, int64_t place)
{
    const struct ap_node *node = old_node(u, id);
    struct ap_shape shape = shape_without(u, &node->shape, u->axis[id]);
    if (node->op == AP_OP_PARAMETER)
        add_params(u, id);
    else if (node->op == AP_OP_DYNAMIC_UPDATE_SLICE)
        add_update(u, id, place);
    else
        for (int l = 0; l < node->n_in; l++)
            u->pieces[id][l] =
                add_reshape(u, id, piece_name(u, id, l), u->to[node->in[l]], &shape);
}

static int add_piece(struct unstack *u, int id, int64_t l)
{
    const struct ap_node *node = old_node(u, id);
    if (node->op == AP_OP_CONSTANT)
        return add_constant(u, id, l);
    if (node->op == AP_OP_IOTA && node->attrs->iota_dimension == u->axis[id])
        return add_number(u, id, l);
    return add_layer(u, id, l);
}

/* Nodes that work layer by layer and wait for others of their kind. */
struct run {
    int n, *ids;
    bool *waits; /* per old node */
};

/* A layer at a time, so that what an update needs of a layer is freed before the next. */
static void flush(struct unstack *u, struct run *run)
{
    for (int64_t l = 0; run->n && l < layers_of(u, run->ids[0]); l++)
        for (int i = 0; i < run->n; i++)
            u->pieces[run->ids[i]][l] = add_piece(u, run->ids[i], l);
    for (int i = 0; i < run->n; i++)
        run->waits[run->ids[i]] = false;
    run->n = 0;
}

void unstack_emit(struct unstack *u)
{
    struct run run = {0};
    run.ids = AP_NEW_N(u->arena, u->old.n_nodes + 1, int);
    run.waits = AP_NEW_N(u->arena, u->old.n_nodes + 1, bool);
    for (int i = 0; i < u->old.n_nodes; i++) {
        const struct ap_node *node = old_node(u, i);
        bool split = u->axis[i] >= 0, waits = false;
        int64_t place = 0;
        if (!u->live[i]) {
            if (!u->old_info[i].auto_named)
                import_drop(u->im, node->name);
            continue;
        }
        for (int k = 0; k < node->n_in; k++)
            waits |= run.waits[node->in[k]];
        bool across = split && is_across(u, i, &place);
        if (across || (!split && waits) ||
            (split && run.n && layers_of(u, run.ids[0]) != layers_of(u, i)))
            flush(u, &run);
        if (!split) {
            u->to[i] = add_whole(u, i);
            continue;
        }
        u->pieces[i] = AP_NEW_N(u->arena, layers_of(u, i), int);
        if (across) {
            add_across(u, i, place);
        } else {
            run.ids[run.n++] = i;
            run.waits[i] = true;
        }
    }
    flush(u, &run);
}
