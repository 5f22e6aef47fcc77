/*
 * convolution: the rows of all window elements are unrolled in memory, a block of rows at
 * a time, and multiplied with the filter (im2col), as on the CPU, whose function plans
 * it. Any strides, padding, dilation, reversal, groups and order of dimensions. Cost: the
 * unrolled operand is window times as large as the operand, written and read once.
 */
#include "matmul.h"

#include <stdio.h>

/* Elements of the rows that are unrolled at once: bounds the scratch memory. */
#define BLOCK_ELEMS (1ll << 26)

/* The rows [r0, r0 + n) of group g, a thread per element. */
static void add_unroll(struct exec *x, struct cuda_call *c, const struct conv *v,
                       struct cuda_at cols, struct cuda_at lhs, int64_t g, int64_t r0,
                       int64_t n)
{
    const struct text_index t = {true, "uint64_t", "int64_t", "ull"};
    const char *word = ap_dtype_size(v->dtype) == 1   ? "uint8_t"
                       : ap_dtype_size(v->dtype) == 2 ? "uint16_t"
                       : ap_dtype_size(v->dtype) == 4 ? "uint32_t"
                                                      : "uint64_t";
    const int64_t total = n * v->cols, first = v->batch_groups ? 0 : g * v->ci;
    struct ap_buf b = {0};
    text_thread(&b, &t, CUDA_BLOCK, total);
    ap_buf_printf(&b,
                  "    const int64_t f = i %% %lldull;\n"
                  "    uint64_t k = i / %lldull %% %lldull, r = i / %lldull + %lldull;\n"
                  "    bool in = true;\n    int64_t q, at = 0;\n",
                  (long long)v->ci, (long long)v->ci, (long long)v->window,
                  (long long)v->cols, (long long)r0);
    int64_t run = v->features;
    for (int d = v->n_spatial - 1; d >= 0; d--) {
        const struct ap_window_dim *w = &v->w[d];
        char kd[64];
        if (w->reversal)
            snprintf(kd, sizeof kd, "(%lld - (int64_t)(k %% %lldull))",
                     (long long)w->size - 1, (long long)w->size);
        else
            snprintf(kd, sizeof kd, "(int64_t)(k %% %lldull)", (long long)w->size);
        ap_buf_printf(
            &b,
            "    q = (int64_t)(r %% %lldull) * %lld + %s * %lld - (%lld);\n"
            "    in = in && q >= 0 && q %% %lld == 0 && q / %lld < %lld;\n"
            "    at += q / %lld * %lld;\n    k /= %lldull;\n    r /= %lldull;\n",
            (long long)v->res[d], (long long)w->stride, kd, (long long)w->rhs_dilate,
            (long long)w->pad_lo, (long long)w->lhs_dilate, (long long)w->lhs_dilate,
            (long long)v->in[d], (long long)w->lhs_dilate, (long long)run,
            (long long)w->size, (long long)v->res[d]);
        run *= v->in[d];
    }
    ap_buf_printf(
        &b,
        "    at += (int64_t)(r + %lldull) * %lld + f + %lld;\n    (void)q, (void)k;\n"
        "    ((%s *)a.p[0])[i] = in ? ((const %s *)a.p[1])[at] : (%s)0;\n",
        (long long)(v->batch_groups ? g * v->batch : 0), (long long)run, (long long)first,
        word, word, word);
    struct cuda_at arg[2] = {cols, lhs};
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(total, CUDA_BLOCK), 1, 2, arg});
}

/* f8 as bf16; other types as they are. */
static void add_operand(struct exec *x, struct cuda_call *c, const struct box *b,
                        struct cuda_at dst, enum ap_dtype type, const void *src,
                        enum ap_dtype from)
{
    if (type == from)
        cuda_add_box(x, c, b, dst, at_memory(src), ap_dtype_size(type));
    else
        cuda_add_convert(x, c, b, dst, type, at_memory(src), from);
}

/* Unrolls and multiplies block by block, group by group. */
static int add_blocks(struct exec *x, struct cuda_call *c, const struct conv *v,
                      struct matmul m, const struct cuda_at part[3], struct ap_err *err)
{
    const struct cuda_at lhs = part[0], rhs = part[1], out = part[2];
    const int64_t ld = v->co * v->n_groups, block = m.m;
    const int in = ap_dtype_size(m.in), res = ap_dtype_size(m.out);
    for (int64_t g = 0; g < v->n_groups; g++)
        for (int64_t r = 0; r < v->rows; r += block) {
            m.m = v->rows - r < block ? v->rows - r : block;
            m.b = at_plus(rhs, g * v->cols * v->co * in);
            m.c = at_plus(out, (r * ld + g * v->co) * res);
            add_unroll(x, c, v, m.a, lhs, g, r, m.m);
            if (cuda_add_matmul(x, c, &m, err))
                return -1;
        }
    return 0;
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
    const int size = ap_dtype_size(in);
    int64_t scratch = 0;
    v->dtype = in; /* of the packed operands */
    if (v->cols == 0 || v->rows == 0 || v->out_elems == 0) {
        cuda_add_zero(x, c, at_memory(v->out), ap_shape_bytes(&node->shape));
        return 0;
    }
    int64_t block = BLOCK_ELEMS / v->cols;
    block = block < 1 ? 1 : block > v->rows ? v->rows : block;
    const struct cuda_at part[3] = {
        at_scratch(exec_take(&scratch, v->lhs_elems * size)),
        at_scratch(exec_take(&scratch, v->rhs_elems * size)),
        at_scratch(exec_take(&scratch, v->out_elems * ap_dtype_size(out)))};
    struct matmul m = {.in = in,
                       .out = out,
                       .tf32 = cuda_dev.opts.tf32 &&
                               node->attrs->operand_precision[0] == AP_PRECISION_DEFAULT,
                       .m = block,
                       .n = v->co,
                       .k = v->cols,
                       .lda = v->cols,
                       .ldb = v->co,
                       .ldc = v->co * v->n_groups,
                       .batch = 1,
                       .a = at_scratch(exec_take(&scratch, block * v->cols * size))};
    m.workspace = at_scratch(exec_take(&scratch, matmul_workspace(&m)));
    exec_need_scratch(x, scratch);
    add_operand(x, c, &v->lhs_box, part[0], in, v->lhs, from);
    add_operand(x, c, &v->rhs_box, part[1], in, v->rhs, from);
    if (add_blocks(x, c, v, m, part, err))
        return -1;
    if (out == from)
        cuda_add_box(x, c, &v->out_box, at_memory(v->out), part[2], ap_dtype_size(out));
    else
        cuda_add_convert(x, c, &v->out_box, at_memory(v->out), from, part[2], out);
    return 0;
}
