/*
 * reduce: of one operand by a known function as a kernel of sums (columns.c); here, of
 * several operands or by any computation.
 *
 * Idea: `lanes` threads share the terms of a result, neighbours taking neighbours where
 * the innermost dimension is reduced; where it is kept, neighbouring threads make
 * neighbouring results instead. In both cases a warp reads adjacent elements. Their
 * partial results meet in shared memory. No order depends on time, so that a run repeats.
 * Cost: the operand is read once.
 */
#include "members.h"

/* Terms per thread below which more threads do not pay. */
#define TERMS 4

struct reduction {
    struct exec *x;
    int k;                     /* operands */
    const enum ap_dtype *type; /* of them and of the results */
    struct cuda_at *arg;       /* k operands, k initial values, k results */
    const char *functions;     /* text of `body(acc..., x..., r...)` */
    struct reduce_dims dims;
    int lanes;
};

/* A list of k times `text` with the number in it, with commas between. */
static void put_list(struct ap_buf *b, int k, const char *text)
{
    for (int i = 0; i < k; i++) {
        ap_buf_puts(b, i ? ", " : "");
        ap_buf_printf(b, "%s%d", text, i);
    }
}

/* acc... = body(acc..., with...) */
static void put_combine(struct ap_buf *b, int k, const char *indent, const char *with)
{
    ap_buf_printf(b, "%sbody(", indent);
    put_list(b, k, "acc");
    ap_buf_puts(b, ", ");
    put_list(b, k, with);
    ap_buf_puts(b, ", ");
    put_list(b, k, "r");
    ap_buf_puts(b, ");\n");
    for (int i = 0; i < k; i++)
        ap_buf_printf(b, "%sacc%d = r%d;\n", indent, i, i);
}

static void put_start(struct ap_buf *b, const struct reduction *r,
                      const struct text_index *t)
{
    const int slots = CUDA_BLOCK / r->lanes;
    if (r->dims.inner_kept)
        ap_buf_printf(
            b, "    const int slot = threadIdx.x %% %d, lane = threadIdx.x / %d;\n",
            slots, slots);
    else
        ap_buf_printf(
            b, "    const int lane = threadIdx.x %% %d, slot = threadIdx.x / %d;\n",
            r->lanes, r->lanes);
    ap_buf_printf(b,
                  "    const %s o = (%s)blockIdx.x * %d + slot;\n"
                  "    const bool on = o < %lld%s;\n"
                  "    const %s from = on ? ",
                  t->u, t->u, slots, (long long)r->dims.n_out, t->suffix, t->s);
    text_offset(b, t, "o", r->dims.kept_rank, r->dims.kept, r->dims.kept_stride);
    ap_buf_puts(b, " : 0;\n    bool any = false;\n");
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "    %s r%d, acc%d = {};\n", text_register(r->type[i]), i, i);
}

/* This thread's terms. */
static void put_terms(struct ap_buf *b, const struct reduction *r,
                      const struct text_index *t)
{
    ap_buf_printf(b,
                  "#pragma unroll 4\n    for (%s j = lane; on && j < %lld%s; j += %d) {\n"
                  "        const %s at = from + ",
                  t->u, (long long)r->dims.n_red, t->suffix, r->lanes, t->s);
    text_offset(b, t, "j", r->dims.red_rank, r->dims.red, r->dims.red_stride);
    ap_buf_puts(b, ";\n");
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "        const %s x%d = load((const %s *)a.p[%d] + at);\n",
                      text_register(r->type[i]), i, text_storage(r->type[i]), i);
    ap_buf_puts(b, "        if (any) {\n");
    put_combine(b, r->k, "            ", "x");
    ap_buf_puts(b, "        } else {\n");
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "            acc%d = x%d;\n", i, i);
    ap_buf_puts(b, "            any = true;\n        }\n    }\n");
}

/* The lanes' partial results, by halves. */
static void put_tree(struct ap_buf *b, const struct reduction *r)
{
    if (r->lanes == 1)
        return;
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "    __shared__ %s part%d[%d];\n", text_register(r->type[i]), i,
                      CUDA_BLOCK);
    ap_buf_printf(b,
                  "    __shared__ bool full[%d];\n"
                  "    const int mine = slot * %d + lane;\n",
                  CUDA_BLOCK, r->lanes);
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "    part%d[mine] = acc%d;\n", i, i);
    ap_buf_printf(b,
                  "    full[mine] = any;\n"
                  "    for (int s = %d; s > 0; s /= 2) {\n        __syncthreads();\n"
                  "        if (lane < s && full[mine + s]) {\n",
                  r->lanes / 2);
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "            const %s y%d = part%d[mine + s];\n",
                      text_register(r->type[i]), i, i);
    ap_buf_puts(b, "            if (any) {\n");
    put_combine(b, r->k, "                ", "y");
    ap_buf_puts(b, "            } else {\n");
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "                acc%d = y%d;\n", i, i);
    ap_buf_puts(b, "            }\n            any = true;\n");
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "            part%d[mine] = acc%d;\n", i, i);
    ap_buf_puts(b, "            full[mine] = true;\n        }\n    }\n");
}

static void put_end(struct ap_buf *b, const struct reduction *r)
{
    const int k = r->k;
    ap_buf_puts(b, "    if (lane == 0 && on) {\n");
    for (int i = 0; i < k; i++)
        ap_buf_printf(b,
                      "        const %s x%d = acc%d;\n        acc%d = "
                      "load((const %s *)a.p[%d]);\n",
                      text_register(r->type[i]), i, i, i, text_storage(r->type[i]),
                      k + i);
    ap_buf_puts(b, "        if (any) {\n");
    put_combine(b, k, "            ", "x");
    ap_buf_puts(b, "        }\n");
    for (int i = 0; i < k; i++)
        ap_buf_printf(b, "        store((%s *)a.p[%d] + o, acc%d);\n",
                      text_storage(r->type[i]), 2 * k + i, i);
    ap_buf_puts(b, "    }\n");
}

static void add_kernel(struct cuda_call *c, const struct reduction *r)
{
    const struct text_index t =
        text_index(ap_mul64(r->dims.n_out, r->dims.n_red) + CUDA_BLOCK);
    struct ap_buf b = {0};
    ap_buf_puts(&b, r->functions);
    ap_buf_puts(&b, KERNEL_MARK);
    put_start(&b, r, &t);
    put_terms(&b, r, &t);
    put_tree(&b, r);
    put_end(&b, r);
    cuda_add_kernel(r->x, c, &b,
                    &(struct cuda_launch){
                        CUDA_BLOCK, ap_ceil_div(r->dims.n_out, CUDA_BLOCK / r->lanes), 1,
                        3 * r->k, r->arg});
}

/* The function `body` of any reducer. */
static int put_body(struct reduction *r, struct ap_buf *text, const struct ap_node *v,
                    struct ap_err *err)
{
    const struct ap_reducer *red = &r->x->prog->local.reducers[v->attrs->to_apply];
    return red->n_nodes
               ? text_body(r->x, text, "body", red, err)
               : exec_unsupported(r->x, v, err, "with a reducer that has no body");
}

static bool is_known(const struct exec *x, const struct ap_node *v)
{
    const enum ap_red red = x->prog->local.reducers[v->attrs->to_apply].red;
    return v->n_in == 2 && v->shape.dtype != AP_TUPLE && red != AP_RED_NONE &&
           red != AP_RED_ASSIGN;
}

int cuda_reduce_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const int node = call->nodes[0], k = v->n_in / 2;
    struct reduction r = {.x = x, .k = k};
    enum ap_dtype *dtype = AP_NEW_N(x->arena, k, enum ap_dtype);
    struct ap_buf text = {0};
    if (is_known(x, v))
        return cuda_fused_prepare(x, call, err);
    struct cuda_call *c = cuda_call_new(x, call);
    r.arg = AP_NEW_N(x->arena, 3 * k, struct cuda_at);
    r.type = dtype;
    for (int i = 0; i < k; i++) {
        dtype[i] = call_in(x, v, i)->shape.dtype;
        if (!text_computes(dtype[i]))
            return exec_unsupported(x, v, err, ap_dtype_name(dtype[i]));
        r.arg[i] = at_memory(x->value[v->in[i]]);
        r.arg[k + i] = at_memory(x->value[v->in[k + i]]);
        r.arg[2 * k + i] =
            at_memory(v->shape.dtype == AP_TUPLE ? x->element[node][i] : x->value[node]);
    }
    r.dims = reduce_dims_of(v, &call_in(x, v, 0)->shape);
    if (put_body(&r, &text, v, err))
        return -1;
    r.functions = text.data;
    r.lanes = r.dims.inner_kept
                  ? power_of_two(r.dims.n_red / 2, 8)
                  : power_of_two(ap_ceil_div(r.dims.n_red, TERMS), CUDA_BLOCK);
    add_kernel(c, &r);
    ap_buf_free(&text);
    return 0;
}
