/*
 * Batch normalisation in plain operators, as XLA expands it. With n elements per feature:
 *
 *   training    mean = sum(x) / n, var = sum((x - mean)^2) / n,
 *               y = (x - mean) * rsqrt(var + epsilon) * scale + offset
 *   inference   y from the mean and variance given
 *   grad        r = rsqrt(var + epsilon), h = (x - mean) * r,
 *               d offset = sum(dy), d scale = sum(dy * h),
 *               dx = scale * r * (dy - d offset / n - h * d scale / n)
 */
#include "inline/inline.h"

#include <string.h>

#include "doc/literal.h"
#include "graph/element.h"

struct norm {
    struct frame *f;
    const struct hlo_instr *instr;
    struct node_info info;
    const char *name, *scope;
    struct ap_shape x, feature; /* of the input; of one number per feature */
    int dim;                    /* of the features */
    int64_t n;                  /* elements per feature */
    int sum;                    /* reducer */
};

static int add(struct norm *b, enum ap_op op, int n_in, const int *in,
               const struct ap_shape *shape, const struct ap_attrs *attrs)
{
    struct ap_arena *arena = b->f->im->src->arena;
    struct ap_node node = {.op = op,
                           .name =
                               ap_arena_printf(arena, "%s/%s", b->name, ap_ops[op].name),
                           .n_in = n_in,
                           .in = ap_arena_dup(arena, in, (size_t)n_in * sizeof *in),
                           .shape = *shape,
                           .attrs = attrs ? attrs : &ap_attrs_default,
                           .scope = b->scope,
                           .param = -1,
                           .group = -1};
    return import_add(b->f->im, &node, &b->info);
}

/* x op y, in the shape of x. */
static int add2(struct norm *b, enum ap_op op, int x, int y)
{
    int in[2] = {x, y};
    struct ap_shape shape = b->f->im->g.nodes[x].shape;
    return add(b, op, 2, in, &shape, NULL);
}

static int add_number(struct norm *b, double v)
{
    struct ap_arena *arena = b->f->im->src->arena;
    struct ap_shape shape = {.dtype = b->x.dtype};
    struct ap_attrs *a = ap_arena_dup(arena, &ap_attrs_default, sizeof *a);
    unsigned char data[16] = {0};
    ap_elem_from_double(shape.dtype, v, data);
    a->literal = *hlo_literal_make(arena, data, 1, (size_t)ap_dtype_size(shape.dtype));
    return add(b, AP_OP_CONSTANT, 0, &b->dim, &shape, a);
}

/* A number, or one number per feature, for every element of `like`. */
static int spread(struct norm *b, int x, const struct ap_shape *like)
{
    struct import *im = b->f->im;
    struct ap_attrs *a = ap_arena_dup(im->src->arena, &ap_attrs_default, sizeof *a);
    int64_t dim = b->dim;
    a->dimensions.n = im->g.nodes[x].shape.rank;
    a->dimensions.v = ap_arena_dup(im->src->arena, &dim, sizeof dim);
    return add(b, AP_OP_BROADCAST, 1, &x, like, a);
}

/* Per feature: the sum of x. */
static int add_sum(struct norm *b, int x)
{
    struct import *im = b->f->im;
    struct ap_attrs *a = ap_arena_dup(im->src->arena, &ap_attrs_default, sizeof *a);
    int64_t dims[AP_MAX_RANK];
    for (int d = 0; d < b->x.rank; d++)
        if (d != b->dim)
            dims[a->dimensions.n++] = d;
    a->dimensions.v = ap_arena_dup(im->src->arena, dims, sizeof dims);
    a->to_apply = b->sum;
    int in[2] = {x, add_number(b, 0)};
    return add(b, AP_OP_REDUCE, 2, in, &b->feature, a);
}

/* Per feature: x / n. */
static int over_n(struct norm *b, int x)
{
    return add2(b, AP_OP_DIVIDE, x, spread(b, add_number(b, (double)b->n), &b->feature));
}

/* Per feature: rsqrt(var + epsilon). */
static int add_scale(struct norm *b, int var)
{
    int eps = spread(b, add_number(b, b->instr->epsilon), &b->feature);
    int sum = add2(b, AP_OP_ADD, var, eps);
    return add(b, AP_OP_RSQRT, 1, &sum, &b->feature, NULL);
}

/* (x - mean) * r */
static int add_hat(struct norm *b, int x, int mean, int r)
{
    int shifted = add2(b, AP_OP_SUBTRACT, x, spread(b, mean, &b->x));
    return add2(b, AP_OP_MULTIPLY, shifted, spread(b, r, &b->x));
}

static int add_normal(struct norm *b, const int *in, int mean, int var)
{
    int hat = add_hat(b, in[0], mean, add_scale(b, var));
    int y = add2(b, AP_OP_MULTIPLY, hat, spread(b, in[1], &b->x));
    return add2(b, AP_OP_ADD, y, spread(b, in[2], &b->x));
}

static struct value three(struct norm *b, int x, int y, int z)
{
    struct value parts[3] = {{.node = x}, {.node = y}, {.node = z}};
    return (struct value){-1, 3, ap_arena_dup(b->f->im->src->arena, parts, sizeof parts)};
}

static struct value training(struct norm *b, const int *in)
{
    int mean = over_n(b, add_sum(b, in[0]));
    int shifted = add2(b, AP_OP_SUBTRACT, in[0], spread(b, mean, &b->x));
    int var = over_n(b, add_sum(b, add2(b, AP_OP_MULTIPLY, shifted, shifted)));
    return three(b, add_normal(b, in, mean, var), mean, var);
}

/* in: x, scale, mean, variance, dy */
static struct value gradient(struct norm *b, const int *in)
{
    int r = add_scale(b, in[3]), hat = add_hat(b, in[0], in[2], r), dy = in[4];
    int d_offset = add_sum(b, dy);
    int d_scale = add_sum(b, add2(b, AP_OP_MULTIPLY, dy, hat));
    int dx = add2(b, AP_OP_SUBTRACT, dy, spread(b, over_n(b, d_offset), &b->x));
    int part = add2(b, AP_OP_MULTIPLY, hat, spread(b, over_n(b, d_scale), &b->x));
    dx = add2(b, AP_OP_SUBTRACT, dx, part);
    int factor = add2(b, AP_OP_MULTIPLY, in[1], r);
    dx = add2(b, AP_OP_MULTIPLY, dx, spread(b, factor, &b->x));
    return three(b, dx, d_scale, d_offset);
}

int inline_batch_norm(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    const char *op_name = inline_op_name(f, instr);
    struct norm b = {.f = f, .instr = instr, .name = inline_name(f, instr)};
    bool train = hlo_span_is(instr->opcode, "batch-norm-training");
    bool infer = hlo_span_is(instr->opcode, "batch-norm-inference");
    int in[5], n = train ? 3 : 5;
    b.info = (struct node_info){.pos = pos, .hint = import_hint(op_name)};
    b.scope = import_scope(im, op_name);
    if (instr->n_in != n)
        return hlo_fail(im->src, pos, "%.*s takes %d operands, got %d",
                        (int)instr->opcode.len, instr->opcode.s, n, instr->n_in);
    for (int k = 0; k < n; k++)
        if ((in[k] = f->values[instr->in[k]].node) < 0)
            return hlo_fail(im->src, pos, "operand %d of a batch norm is a tuple", k);
    b.x = im->g.nodes[in[0]].shape;
    if (instr->attrs->index < 0 || instr->attrs->index >= b.x.rank)
        return hlo_fail(im->src, pos, "feature_index: no such dimension");
    b.dim = (int)instr->attrs->index;
    b.feature =
        (struct ap_shape){.dtype = b.x.dtype, .rank = 1, .dims = &b.x.dims[b.dim]};
    for (int k = 1; k < n; k++)
        if (!ap_shape_equal(&im->g.nodes[in[k]].shape,
                            !train && !infer && k == 4 ? &b.x : &b.feature))
            return hlo_fail(im->src, pos, "operand %d of a batch norm has another shape",
                            k);
    b.n = ap_shape_elems(&b.x) / (b.x.dims[b.dim] ? b.x.dims[b.dim] : 1);
    b.sum = import_sum(im);
    *out = train   ? training(&b, in)
           : infer ? (struct value){.node = add_normal(&b, in, in[3], in[4])}
                   : gradient(&b, in);
    if (!inline_has_shape(im, out, &instr->shape))
        return hlo_fail(im->src, pos, "the result of a batch norm has another shape");
    return 0;
}
