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
#include "emit.h"

struct norm {
    struct emit e;
    struct ap_shape x, feature; /* of the input; of one number per feature */
    int dim;                    /* of the features */
    int64_t n;                  /* elements per feature */
    int sum;                    /* reducer */
};

/* x op y, in the shape of x. */
static int add2(const struct norm *b, enum ap_op op, int x, int y)
{
    return emit_binary(&b->e, op, x, y);
}

/* A number per feature, for every element. */
static int spread(const struct norm *b, int x)
{
    struct ap_attrs *a = emit_attrs(&b->e);
    int64_t dim = b->dim;
    a->dimensions =
        (struct ap_ints){1, ap_arena_dup(b->e.f->im->src->arena, &dim, sizeof dim)};
    return emit_op(&b->e, AP_OP_BROADCAST, 1, &x, &b->x, a);
}

/* Per feature: a constant. */
static int number(const struct norm *b, double v)
{
    return emit_number(&b->e, b->x.dtype, v, &b->feature);
}

/* Per feature: the sum of x. */
static int add_sum(const struct norm *b, int x)
{
    static const struct ap_shape scalar = {0};
    struct ap_attrs *a = emit_attrs(&b->e);
    int64_t dims[AP_MAX_RANK];
    for (int d = 0; d < b->x.rank; d++)
        if (d != b->dim)
            dims[a->dimensions.n++] = d;
    a->dimensions.v = ap_arena_dup(b->e.f->im->src->arena, dims, sizeof dims);
    a->to_apply = b->sum;
    int in[2] = {x, emit_number(&b->e, b->x.dtype, 0, &scalar)};
    return emit_op(&b->e, AP_OP_REDUCE, 2, in, &b->feature, a);
}

/* Per feature: x / n. */
static int over_n(const struct norm *b, int x)
{
    return add2(b, AP_OP_DIVIDE, x, number(b, (double)b->n));
}

/* Per feature: rsqrt(var + epsilon). */
static int add_scale(const struct norm *b, int var)
{
    int sum = add2(b, AP_OP_ADD, var, number(b, b->e.instr->epsilon));
    return emit_unary(&b->e, AP_OP_RSQRT, sum);
}

/* (x - mean) * r */
static int add_hat(const struct norm *b, int x, int mean, int r)
{
    int shifted = add2(b, AP_OP_SUBTRACT, x, spread(b, mean));
    return add2(b, AP_OP_MULTIPLY, shifted, spread(b, r));
}

static int add_normal(const struct norm *b, const int *in, int mean, int var)
{
    int hat = add_hat(b, in[0], mean, add_scale(b, var));
    int y = add2(b, AP_OP_MULTIPLY, hat, spread(b, in[1]));
    return add2(b, AP_OP_ADD, y, spread(b, in[2]));
}

static struct value three(const struct norm *b, int x, int y, int z)
{
    struct value parts[3] = {{.node = x}, {.node = y}, {.node = z}};
    return inline_tuple(3, ap_arena_dup(b->e.f->im->src->arena, parts, sizeof parts));
}

static struct value training(const struct norm *b, const int *in)
{
    int mean = over_n(b, add_sum(b, in[0]));
    int shifted = add2(b, AP_OP_SUBTRACT, in[0], spread(b, mean));
    int var = over_n(b, add_sum(b, add2(b, AP_OP_MULTIPLY, shifted, shifted)));
    return three(b, add_normal(b, in, mean, var), mean, var);
}

/* in: x, scale, mean, variance, dy */
static struct value gradient(const struct norm *b, const int *in)
{
    int r = add_scale(b, in[3]), hat = add_hat(b, in[0], in[2], r), dy = in[4];
    int d_offset = add_sum(b, dy);
    int d_scale = add_sum(b, add2(b, AP_OP_MULTIPLY, dy, hat));
    int dx = add2(b, AP_OP_SUBTRACT, dy, spread(b, over_n(b, d_offset)));
    int part = add2(b, AP_OP_MULTIPLY, hat, spread(b, over_n(b, d_scale)));
    dx = add2(b, AP_OP_SUBTRACT, dx, part);
    int factor = add2(b, AP_OP_MULTIPLY, in[1], r);
    dx = add2(b, AP_OP_MULTIPLY, dx, spread(b, factor));
    return three(b, dx, d_scale, d_offset);
}

int inline_batch_norm(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    struct norm b = {.e = emit_start(f, instr)};
    size_t pos = b.e.pos;
    bool train = hlo_span_is(instr->opcode, "batch-norm-training");
    bool infer = hlo_span_is(instr->opcode, "batch-norm-inference");
    int in[5], n = train ? 3 : 5;
    if (instr->n_in != n)
        return hlo_fail(im->src, pos, "%.*s takes %d operands, got %d",
                        (int)instr->opcode.len, instr->opcode.s, n, instr->n_in);
    for (int k = 0; k < n; k++)
        if ((in[k] = emit_operand(&b.e, k)) < 0)
            return -1;
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
