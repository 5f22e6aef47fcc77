/*
 * convolution: windows of one element, and the gradients of their filters, as one product
 * where operands lie so; others by cuDNN where that can (conv_cudnn.c), else: the rows of
 * all window elements are unrolled in memory, a block of rows at a time, and multiplied
 * with the filter (im2col), as on the CPU, whose function plans it. Any strides, padding,
 * dilation, reversal, groups and order of dimensions. Cost: the unrolled operand is
 * window times as large as the operand, written and read once.
 */
#include "cuda.h"
#include "matmul.h"

#include <stdio.h>

/* Elements of the rows that are unrolled at once: bounds the scratch memory. */
#define BLOCK_ELEMS (1ll << 26)

/* Elements of one feature run that a thread copies: 16 bytes where runs allow. */
static int piece(const struct conv *v)
{
    const int k = 16 / ap_dtype_size(v->dtype);
    return v->ci % k == 0 && v->features % k == 0 ? k : 1;
}

/* at += the place along dimension d of the window's element; in: whether there is one. */
static void put_spatial(struct ap_buf *b, const struct text_index *t,
                        const struct conv *v, int d, int64_t run)
{
    const struct ap_window_dim *w = &v->w[d];
    char k[64];
    if (w->reversal)
        snprintf(k, sizeof k, "(%lld - (%s)(k %% %lld%s))", (long long)w->size - 1, t->s,
                 (long long)w->size, t->suffix);
    else
        snprintf(k, sizeof k, "(%s)(k %% %lld%s)", t->s, (long long)w->size, t->suffix);
    ap_buf_printf(b,
                  "    q = (%s)(r %% %lld%s) * %lld + %s * %lld - (%lld);\n"
                  "    in = in && q >= 0 && q %% %lld == 0 && q / %lld < %lld;\n"
                  "    at += q / %lld * %lld;\n    k /= %lld%s;\n    r /= %lld%s;\n",
                  t->s, (long long)v->res[d], t->suffix, (long long)w->stride, k,
                  (long long)w->rhs_dilate, (long long)w->pad_lo,
                  (long long)w->lhs_dilate, (long long)w->lhs_dilate, (long long)v->in[d],
                  (long long)w->lhs_dilate, (long long)run, (long long)w->size, t->suffix,
                  (long long)v->res[d], t->suffix);
}

/* Rows that are unrolled at once: n from `first` on, of a group. */
struct conv_block {
    int64_t group, first, n;
};

/* Unrolls a block, a thread per piece. */
static void add_unroll(struct exec *x, struct cuda_call *c, const struct conv *v,
                       struct cuda_at cols, struct cuda_at lhs, struct conv_block block)
{
    const int64_t g = block.group, r0 = block.first, n = block.n;
    const int part = piece(v), bytes = part * ap_dtype_size(v->dtype);
    const int64_t ci = v->ci / part, total = n * v->window * ci;
    const int64_t first = v->batch_groups ? 0 : g * ci;
    const struct text_index t =
        text_index(total + r0 > v->lhs_elems ? total + r0 : v->lhs_elems);
    const char *word = text_word(bytes);
    struct ap_buf b = {0};
    text_thread(&b, &t, CUDA_BLOCK, total);
    ap_buf_printf(&b,
                  "    const %s f = i %% %lld%s;\n"
                  "    %s k = i / %lld%s %% %lld%s, r = i / %lld%s + %lld%s;\n"
                  "    bool in = true;\n    %s q, at = 0;\n",
                  t.s, (long long)ci, t.suffix, t.u, (long long)ci, t.suffix,
                  (long long)v->window, t.suffix, (long long)(ci * v->window), t.suffix,
                  (long long)r0, t.suffix, t.s);
    int64_t run = v->features / part;
    for (int d = v->n_spatial - 1; d >= 0; run *= v->in[d--])
        put_spatial(&b, &t, v, d, run);
    ap_buf_printf(&b,
                  "    at += (%s)(r + %lld%s) * %lld + f + %lld;\n    (void)q, (void)k;\n"
                  "    %s none = {};\n"
                  "    ((%s *)a.p[0])[i] = in ? ((const %s *)a.p[1])[at] : none;\n",
                  t.s, (long long)(v->batch_groups ? g * v->batch : 0), t.suffix,
                  (long long)run, (long long)first, word, word, word);
    struct cuda_at arg[2] = {cols, lhs};
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(total, CUDA_BLOCK), 1, 2, arg});
}

/* Whether the unrolled rows are the operand itself: windows of one element. */
static bool is_product(const struct conv *v)
{
    bool yes = v->n_groups == 1 && v->window == 1;
    for (int d = 0; d < v->n_spatial; d++)
        yes &= v->w[d].stride == 1 && v->w[d].pad_lo == 0 && v->w[d].lhs_dilate == 1 &&
               v->in[d] == v->res[d];
    return yes;
}

/* Whether a packed operand is the operand as it lies. */
static bool is_same(const struct box *b)
{
    return b->rank == 0 || (b->rank == 1 && b->src[0] == 1 && b->dst[0] == 1);
}

/* An operand that is wanted packed, as another type. */
struct conv_operand {
    const struct box *box;
    int64_t elems;
    const void *src;
    enum ap_dtype from, type;
};

/* The packed operand, in the scratch memory unless it lies so; f8 as bf16. */
static struct cuda_at add_operand(struct exec *x, struct cuda_call *c,
                                  const struct conv_operand *o, int64_t *scratch)
{
    if (o->type == o->from && is_same(o->box))
        return at_memory(o->src);
    const int size = ap_dtype_size(o->type);
    const struct cuda_at dst = at_scratch(exec_take(scratch, o->elems * size));
    if (o->type == o->from)
        cuda_add_box(x, c, o->box, dst, at_memory(o->src), size);
    else
        cuda_add_convert(x, c, o->box, dst, o->type, at_memory(o->src), o->from);
    return dst;
}

/* Unrolls and multiplies block by block, group by group; m is the first block's. */
static int add_blocks(struct exec *x, struct cuda_call *c, const struct conv *v,
                      struct matmul m, struct cuda_at lhs, struct ap_err *err)
{
    const struct cuda_at rhs = m.b, out = m.c;
    const int64_t ld = v->co * v->n_groups, block = m.m;
    const int in = ap_dtype_size(m.in), res = ap_dtype_size(m.out);
    for (int64_t g = 0; g < v->n_groups; g++)
        for (int64_t r = 0; r < v->rows; r += block) {
            m.m = v->rows - r < block ? v->rows - r : block;
            m.b = at_plus(rhs, g * v->cols * v->co * in);
            m.c = at_plus(out, (r * ld + g * v->co) * res);
            if (!is_product(v))
                add_unroll(x, c, v, m.a, lhs, (struct conv_block){g, r, m.m});
            if (cuda_add_matmul(x, c, &m, err))
                return -1;
        }
    return 0;
}

/* Whether operands of f32 may be rounded to tf32. */
static bool may_round(const struct ap_node *node)
{
    return cuda_dev.opts.tf32 &&
           node->attrs->operand_precision[0] == AP_PRECISION_DEFAULT &&
           node->attrs->operand_precision[1] == AP_PRECISION_DEFAULT;
}

/* The product of a block of rows; where its matrices lie follows. */
static struct matmul block_product(const struct conv *v, const struct ap_node *node,
                                   enum ap_dtype in, enum ap_dtype out)
{
    const int64_t block = BLOCK_ELEMS / v->cols;
    return (struct matmul){.in = in,
                           .out = out,
                           .tf32 = may_round(node),
                           .m = is_product(v) || block > v->rows ? v->rows
                                : block < 1                      ? 1
                                                                 : block,
                           .n = v->co,
                           .k = v->cols,
                           .lda = v->cols,
                           .ldb = v->co,
                           .ldc = v->co * v->n_groups,
                           .batch = 1};
}

/* Whether it is one sum over batch and space for each pair of features, of operands that
 * lie alike with these features last: the gradient of the filter of a window of one. */
static bool is_contraction(const struct conv *v, const struct ap_node *node,
                           const struct ap_shape *lhs, const struct ap_shape *rhs)
{
    const struct ap_conv_dims *t = &node->attrs->conv;
    bool yes = v->n_groups == 1 && t->lhs_batch == lhs->rank - 1 &&
               t->rhs_out == rhs->rank - 1 && t->out_feature == node->shape.rank - 1 &&
               t->lhs_feature == t->rhs_in;
    for (int d = 0; d < v->n_spatial; d++) {
        const struct ap_window_dim *w = &v->w[d];
        yes &= v->res[d] == 1 && w->size == v->in[d] && w->pad_lo == 0 &&
               w->lhs_dilate == 1 && w->rhs_dilate == 1 && !w->reversal &&
               t->lhs_spatial[d] == t->rhs_spatial[d];
    }
    return yes;
}

/*
 * A convolution that is a product of its operands in their own layouts; 1 if it is not.
 */
static int add_product(struct exec *x, struct cuda_call *c, const struct conv *v,
                       const struct ap_node *node, struct ap_err *err)
{
    const struct ap_shape *lhs = &call_in(x, node, 0)->shape;
    const struct ap_shape *rhs = &call_in(x, node, 1)->shape;
    const enum ap_dtype type = node->shape.dtype;
    struct matmul m = {.in = type,
                       .out = type,
                       .tf32 = may_round(node),
                       .batch = 1,
                       .a = at_memory(v->lhs),
                       .b = at_memory(v->rhs),
                       .c = at_memory(v->out)};
    if (matmul_type(type, type) != type || matmul_result(type, type) != type)
        return 1;
    if (is_contraction(v, node, lhs, rhs)) {
        m.m = lhs->dims[node->attrs->conv.lhs_batch];
        m.n = rhs->dims[node->attrs->conv.rhs_out];
        m.k = ap_shape_elems(lhs) / m.m;
        m.ta = true;
        m.lda = m.m;
    } else if (is_product(v) && is_same(&v->lhs_box) && is_same(&v->out_box)) {
        const struct ap_conv_dims *t = &node->attrs->conv;
        m.m = v->rows;
        m.n = v->co;
        m.k = v->cols;
        m.lda = m.k;
        m.tb = t->rhs_out < t->rhs_in;
        if (ap_shape_elems(rhs) != m.n * m.k ||
            (m.tb ? t->rhs_in : t->rhs_out) != rhs->rank - 1 ||
            (m.tb ? t->rhs_out : t->rhs_in) != rhs->rank - 2)
            return 1;
    } else {
        return 1;
    }
    m.ldb = m.tb ? m.k : m.n;
    m.ldc = m.n;
    int64_t scratch = 0;
    m.workspace = cuda_workspace(&scratch, matmul_workspace(&m));
    exec_need_scratch(x, scratch);
    return cuda_add_matmul(x, c, &m, err);
}

int cuda_conv_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *node = call_node(x, call);
    struct conv *v = cuda_state(x, call, cpu_conv_prepare, err);
    if (!v)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    const enum ap_dtype from = v->dtype, in = matmul_type(from, from);
    const enum ap_dtype out = matmul_result(in, from);
    const bool direct = out == from && is_same(&v->out_box);
    int64_t scratch = 0;
    if (v->cols == 0 || v->rows == 0 || v->out_elems == 0) {
        cuda_add_zero(x, c, at_memory(v->out), ap_shape_bytes(&node->shape));
        return 0;
    }
    v->dtype = in; /* of the packed operands */
    const int rc = add_product(x, c, v, node, err);
    if (rc <= 0)
        return rc;
    if (cuda_add_cudnn(x, c, v, node, may_round(node)))
        return 0;
    struct matmul m = block_product(v, node, in, out);
    const struct conv_operand left = {&v->lhs_box, v->lhs_elems, v->lhs, from, in};
    const struct conv_operand right = {&v->rhs_box, v->rhs_elems, v->rhs, from, in};
    const struct cuda_at lhs = add_operand(x, c, &left, &scratch);
    m.b = add_operand(x, c, &right, &scratch);
    m.a = is_product(v)
              ? lhs
              : at_scratch(exec_take(&scratch, m.m * v->cols * ap_dtype_size(in)));
    m.c = direct ? at_memory(v->out)
                 : at_scratch(exec_take(&scratch, v->out_elems * ap_dtype_size(out)));
    m.workspace = cuda_workspace(&scratch, matmul_workspace(&m));
    exec_need_scratch(x, scratch);
    if (add_blocks(x, c, v, m, lhs, err))
        return -1;
    if (!direct && out == from)
        cuda_add_box(x, c, &v->out_box, at_memory(v->out), m.c, ap_dtype_size(out));
    else if (!direct)
        cuda_add_convert(x, c, &v->out_box, at_memory(v->out), from, m.c, out);
    return 0;
}
