#include "emit.h"

#include <stdlib.h>

#include "doc/literal.h"
#include "graph/element.h"

struct emit emit_start(struct frame *f, const struct hlo_instr *instr)
{
    const char *op_name = inline_op_name(f, instr);
    struct emit e = {.f = f, .instr = instr, .name = inline_name(f, instr)};
    e.pos = hlo_at(f->im->src, instr->opcode.s);
    e.info = (struct node_info){.pos = e.pos, .hint = import_hint(op_name)};
    e.scope = import_scope(f->im, op_name);
    e.barred = inline_is_barred(f, instr);
    return e;
}

int emit_operand(const struct emit *e, int k)
{
    int node = e->f->values[e->instr->in[k]].node;
    if (node < 0)
        hlo_fail(e->f->im->src, e->pos, "operand %d of %.*s is a tuple", k,
                 (int)e->instr->opcode.len, e->instr->opcode.s);
    return node;
}

const struct ap_shape *emit_shape(const struct emit *e, int node)
{
    return &e->f->im->g.nodes[node].shape;
}

struct ap_attrs *emit_attrs(const struct emit *e)
{
    return import_new_attrs(e->f->im->src->arena);
}

int emit_op(const struct emit *e, enum ap_op op, int n_in, const int *in,
            const struct ap_shape *shape, const struct ap_attrs *attrs)
{
    struct ap_arena *arena = e->f->im->src->arena;
    const char *name = e->name;
    if (!e->bare)
        name = ap_arena_printf(arena, "%s/%s", e->name, ap_ops[op].name);
    struct ap_node node = import_node(op, name);
    node.shape = *shape;
    node.scope = e->scope;
    if (attrs)
        node.attrs = attrs;
    if (e->barred && n_in)
        node.attrs = import_recomputed(arena, node.attrs);
    e->f->im->work++;
    node.n_in = n_in;
    if (n_in)
        node.in = ap_arena_dup(arena, in, (size_t)n_in * sizeof *in);
    return import_add(e->f->im, &node, &e->info);
}

int emit_unary(const struct emit *e, enum ap_op op, int x)
{
    struct ap_shape shape = *emit_shape(e, x);
    return emit_op(e, op, 1, &x, &shape, NULL);
}

int emit_binary(const struct emit *e, enum ap_op op, int x, int y)
{
    int in[2] = {x, y};
    struct ap_shape shape = *emit_shape(e, x);
    return emit_op(e, op, 2, in, &shape, NULL);
}

int emit_recast(const struct emit *e, enum ap_op op, int x, enum ap_dtype dtype)
{
    struct ap_shape shape = *emit_shape(e, x);
    if (shape.dtype == dtype)
        return x;
    shape.dtype = dtype;
    return emit_op(e, op, 1, &x, &shape, NULL);
}

int emit_transpose(const struct emit *e, int x, const int64_t *perm)
{
    struct ap_shape in = *emit_shape(e, x), out = in;
    struct ap_attrs *a = emit_attrs(e);
    int64_t dims[AP_MAX_RANK];
    bool moves = false;
    for (int d = 0; d < in.rank; d++) {
        dims[d] = in.dims[perm[d]];
        moves |= perm[d] != d;
    }
    if (!moves)
        return x;
    struct ap_arena *arena = e->f->im->src->arena;
    out.dims = ap_arena_dup(arena, dims, (size_t)in.rank * sizeof *dims);
    a->dimensions.n = in.rank;
    a->dimensions.v = ap_arena_dup(arena, perm, (size_t)in.rank * sizeof *perm);
    return emit_op(e, AP_OP_TRANSPOSE, 1, &x, &out, a);
}

int emit_reshape(const struct emit *e, int x, int rank, const int64_t *dims)
{
    struct ap_shape out = *emit_shape(e, x);
    struct ap_shape want = {.dtype = out.dtype, .rank = rank, .dims = dims};
    if (ap_shape_equal(&out, &want))
        return x;
    want.dims = ap_arena_dup(e->f->im->src->arena, dims, (size_t)rank * sizeof *dims + 1);
    return emit_op(e, AP_OP_RESHAPE, 1, &x, &want, NULL);
}

int emit_spread(const struct emit *e, int x, const struct ap_shape *like)
{
    struct ap_shape shape = *like;
    shape.dtype = emit_shape(e, x)->dtype;
    return like->rank ? emit_op(e, AP_OP_BROADCAST, 1, &x, &shape, NULL) : x;
}

static int constant(const struct emit *e, enum ap_dtype dtype, const void *data,
                    const struct ap_shape *like)
{
    struct ap_shape shape = {.dtype = dtype};
    struct ap_attrs *a = import_scalar_attrs(e->f->im->src->arena, dtype, data);
    return emit_spread(e, emit_op(e, AP_OP_CONSTANT, 0, NULL, &shape, a), like);
}

int emit_int(const struct emit *e, enum ap_dtype dtype, int64_t v,
             const struct ap_shape *like)
{
    unsigned char data[16] = {0};
    ap_elem_from_int(dtype, v, data);
    return constant(e, dtype, data, like);
}

int emit_number(const struct emit *e, enum ap_dtype dtype, double v,
                const struct ap_shape *like)
{
    unsigned char data[16] = {0};
    ap_elem_from_double(dtype, v, data);
    return constant(e, dtype, data, like);
}

int emit_with(const struct emit *e, enum ap_op op, int x, int64_t v)
{
    struct ap_shape shape = *emit_shape(e, x);
    return emit_binary(e, op, x, emit_int(e, shape.dtype, v, &shape));
}

int emit_select(const struct emit *e, int pred, int on_true, int on_false)
{
    int in[3] = {pred, on_true, on_false};
    struct ap_shape shape = *emit_shape(e, on_true);
    return emit_op(e, AP_OP_SELECT, 3, in, &shape, NULL);
}

int emit_compare(const struct emit *e, enum ap_direction direction, int x, int y)
{
    int in[2] = {x, y};
    struct ap_shape shape = *emit_shape(e, x);
    struct ap_attrs *a = emit_attrs(e);
    a->direction = direction;
    shape.dtype = AP_PRED;
    return emit_op(e, AP_OP_COMPARE, 2, in, &shape, a);
}

int emit_iota(const struct emit *e, enum ap_dtype dtype, const struct ap_shape *like,
              int dim)
{
    struct ap_shape shape = *like;
    struct ap_attrs *a = emit_attrs(e);
    shape.dtype = dtype;
    a->iota_dimension = dim;
    return emit_op(e, AP_OP_IOTA, 0, NULL, &shape, a);
}

int emit_apply(const struct emit *e, int reducer, const int *args, int *roots)
{
    const struct ap_reducer r = e->f->im->g.reducers[reducer];
    struct ap_shape like = *emit_shape(e, args[0]);
    if (r.red != AP_RED_NONE) {
        roots[0] = r.red == AP_RED_ASSIGN
                       ? args[1]
                       : emit_binary(e, ap_red_ops[r.red], args[0], args[1]);
        return 0;
    }
    int *id = ap_xrealloc(NULL, ((size_t)r.n_nodes + 1) * sizeof *id);
    for (int i = 0, p = 0; i < r.n_nodes; i++) {
        const struct ap_node *node = &r.nodes[i];
        struct ap_shape shape = like;
        int in[3] = {0};
        if (node->op == AP_OP_PARAMETER) {
            id[i] = args[p++];
            continue;
        }
        shape.dtype = node->shape.dtype;
        if (node->op == AP_OP_CONSTANT) {
            id[i] = emit_spread(
                e, emit_op(e, node->op, 0, NULL, &node->shape, node->attrs), &like);
            continue;
        }
        for (int k = 0; k < node->n_in && k < 3; k++)
            in[k] = id[node->in[k]];
        id[i] = emit_op(e, node->op, node->n_in, in, &shape, node->attrs);
    }
    for (int i = 0; i < r.n_results; i++)
        roots[i] = id[r.results[i]];
    free(id);
    return 0;
}
