/*
 * Kernels of sums: one or several reductions of equal sizes by known functions, with the
 * elementwise nodes that their operands are made of: the gradient of a bias with the gelu
 * before it, the two sums of a batch norm.
 *
 * Problem: a sum over rows, f32[8192,768] to f32[768], has few results, each from terms
 * that lie far apart; and its terms are often values that nobody else reads. Idea: terms
 * are computed where they are added. A thread reads `width` adjacent elements at a time:
 * of `width` results if the innermost dimension is kept, or else of one. `lanes` threads
 * of a block share results, whose parts meet in shared memory by halves, and the terms
 * are cut into as many ranges (`splits`) as fill the device; their results lie in the
 * scratch memory and are added by a second kernel. No order depends on time, so that a
 * run repeats. Cost: operands are read once.
 */
#include "members.h"

#include <stdio.h>

/* Blocks that fill a large device: 132 multiprocessors of 4 blocks. */
#define FULL_BLOCKS 528
/* Accesses of a thread, at least, before ranges are cut. */
#define LEAST_READS 8
/* Results side by side that a block makes, in accesses. */
#define MOST_SLOTS 32

struct columns {
    struct members *m;
    struct reduce_dims dims;
    bool kept;        /* an access has elements of several results */
    int lanes, slots; /* threads of a result; results (kept: accesses) of a block */
    int parts;        /* results of a thread */
    int64_t chunk, splits;
    struct ap_buf functions, text;
};

struct reduce_dims reduce_dims_of(const struct ap_node *v, const struct ap_shape *in)
{
    struct reduce_dims r = {.n_out = 1, .n_red = 1};
    int64_t stride[AP_MAX_RANK];
    bool reduced[AP_MAX_RANK] = {false};
    int before = -1; /* what the dimension before this one was */
    cpu_strides(in, stride);
    for (int i = 0; i < v->attrs->dimensions.n; i++)
        reduced[v->attrs->dimensions.v[i]] = true;
    for (int d = 0; d < in->rank; d++) {
        int64_t *n = reduced[d] ? r.red : r.kept;
        int64_t *s = reduced[d] ? r.red_stride : r.kept_stride;
        int *rank = reduced[d] ? &r.red_rank : &r.kept_rank;
        *(reduced[d] ? &r.n_red : &r.n_out) *= in->dims[d];
        if (in->dims[d] == 1)
            continue;
        if (before == reduced[d]) {
            n[*rank - 1] *= in->dims[d];
        } else {
            n[*rank] = in->dims[d];
            (*rank)++;
        }
        s[*rank - 1] = stride[d];
        before = reduced[d];
        r.inner_kept = !reduced[d];
    }
    return r;
}

static void choose(struct columns *c)
{
    struct members *m = c->m;
    const struct reduce_dims *d = &c->dims;
    const int64_t inner = d->inner_kept ? d->kept[d->kept_rank - 1]
                          : d->red_rank ? d->red[d->red_rank - 1]
                                        : 1;
    m->width = members_width(m, m->n_elems);
    while (inner % m->width)
        m->width /= 2;
    c->kept = d->inner_kept;
    c->parts = c->kept ? m->width : 1;
    if (c->kept) {
        c->slots = power_of_two(d->n_out / m->width, MOST_SLOTS);
        c->lanes = CUDA_BLOCK / c->slots;
    } else {
        c->lanes = power_of_two(ap_ceil_div(d->n_red, (int64_t)m->width * LEAST_READS),
                                CUDA_BLOCK);
        c->slots = CUDA_BLOCK / c->lanes;
    }
    const int64_t unit = (int64_t)c->lanes * (c->kept ? 1 : m->width);
    const int64_t blocks = ap_ceil_div(d->n_out, (int64_t)c->slots * c->parts);
    const int64_t most = d->n_red / (unit * LEAST_READS);
    c->splits = ap_ceil_div(FULL_BLOCKS, blocks > 0 ? blocks : 1);
    c->splits = c->splits < most ? c->splits : most;
    c->splits = c->splits > 1 ? c->splits : 1;
    c->chunk = ap_ceil_div(ap_ceil_div(d->n_red, c->splits), unit) * unit;
    c->chunk = c->chunk ? c->chunk : unit;
    c->splits = d->n_red ? ap_ceil_div(d->n_red, c->chunk) : 1;
}

/* acc0[...] of sum i, at its neutral element. */
static void put_neutral(struct ap_buf *b, const struct members *m, int i)
{
    const struct ap_node *v = m->of[i].node;
    uint64_t neutral[2];
    ap_red_neutral(m->x->prog->local.reducers[v->attrs->to_apply].red, v->shape.dtype,
                   neutral);
    text_constant(b, v->shape.dtype, neutral);
}

static void put_start(struct columns *c)
{
    const struct members *m = c->m;
    const struct reduce_dims *d = &c->dims;
    const char *u = m->index.u, *s = m->index.suffix;
    if (c->kept)
        ap_buf_printf(
            &c->text,
            "    const int slot = threadIdx.x %% %d, lane = threadIdx.x / %d;\n",
            c->slots, c->slots);
    else
        ap_buf_printf(
            &c->text,
            "    const int lane = threadIdx.x %% %d, slot = threadIdx.x / %d;\n",
            c->lanes, c->lanes);
    ap_buf_printf(&c->text,
                  "    const %s o = ((%s)blockIdx.x * %d + slot) * %d;\n"
                  "    const bool on = o < %lld%s;\n    const %s from = on ? ",
                  u, u, c->slots, c->parts, (long long)d->n_out, s, u);
    text_offset(&c->text, &m->index, "o", d->kept_rank, d->kept, d->kept_stride);
    ap_buf_printf(&c->text,
                  " : 0;\n    const %s lo = (%s)blockIdx.y * %lld%s + lane * %d;\n"
                  "    %s hi = (%s)(blockIdx.y + 1) * %lld%s;\n"
                  "    hi = hi > %lld%s ? %lld%s : hi;\n",
                  u, u, (long long)c->chunk, s, c->kept ? 1 : m->width, u, u,
                  (long long)c->chunk, s, (long long)d->n_red, s, (long long)d->n_red, s);
    for (int i = 0; i < m->n; i++) {
        if (!m->of[i].sum)
            continue;
        ap_buf_printf(&c->text,
                      "    %s acc%d[%d];\n    for (int k = 0; k < %d; k++)\n"
                      "        acc%d[k] = ",
                      text_register(m->of[i].value.dtype), i, c->parts, c->parts, i);
        put_neutral(&c->text, m, i);
        ap_buf_puts(&c->text, ";\n");
    }
}

static void put_terms(struct columns *c)
{
    const struct members *m = c->m;
    const struct reduce_dims *d = &c->dims;
    struct members_need need = members_need_new(m);
    char room[24];
    for (int i = 0; i < m->n; i++)
        if (m->of[i].sum)
            members_need_add(m, &need, m->of[i].in[0]);
    ap_buf_printf(&c->text,
                  "#pragma unroll 4\n    for (%s t = lo; on && t < hi; t += %d) {\n"
                  "    const %s i = from + ",
                  m->index.u, c->lanes * (c->kept ? 1 : m->width), m->index.u);
    text_offset(&c->text, &m->index, "t", d->red_rank, d->red, d->red_stride);
    ap_buf_puts(&c->text, ";\n");
    members_put_loads(&c->text, m, &need, LOAD_ONCE, "    ", "i");
    members_put_loads(&c->text, m, &need, LOAD_PACK, "    ", "i");
    ap_buf_printf(&c->text,
                  "#pragma unroll\n    for (int k = 0; k < %d; k++) {\n"
                  "        const %s j = i + k;\n",
                  m->width, m->index.u);
    members_put_loads(&c->text, m, &need, LOAD_ELEMENT, "        ", "j");
    members_put_lines(&c->text, m, &need, -1);
    for (int i = 0; i < m->n; i++)
        if (m->of[i].sum)
            ap_buf_printf(&c->text, "        acc%d[%s] = combine%d(acc%d[%s], %s);\n", i,
                          c->kept ? "k" : "0", i, i, c->kept ? "k" : "0",
                          members_name(m, m->of[i].in[0], room, sizeof room));
    ap_buf_puts(&c->text, "        (void)j;\n    }\n    }\n");
}

/* The memory in which the parts of one sum after the other meet. */
static void put_shared(struct ap_buf *b, const struct members *m, int parts)
{
    int size = 4;
    for (int i = 0; i < m->n; i++)
        if (m->of[i].sum && ap_dtype_size(m->of[i].value.dtype) > size)
            size = ap_dtype_size(m->of[i].value.dtype);
    ap_buf_printf(b, "    __shared__ double parts[%d];\n", CUDA_BLOCK * parts * size / 8);
}

/* Sum i of the lanes, by halves; lane 0 has it in acc. */
static void put_tree(struct ap_buf *b, const char *reg, int i, int parts, int lanes,
                     const char *mine, int next)
{
    if (lanes == 1)
        return;
    ap_buf_printf(b,
                  "    %s *const part%d = (%s *)parts + (%s) * %d;\n"
                  "    __syncthreads();\n    for (int k = 0; k < %d; k++)\n"
                  "        part%d[k] = acc%d[k];\n"
                  "    for (int s = %d; s > 0; s /= 2) {\n        __syncthreads();\n"
                  "        for (int k = 0; lane < s && k < %d; k++)\n"
                  "            part%d[k] = acc%d[k] = combine%d(acc%d[k], "
                  "part%d[s * %d + k]);\n    }\n",
                  reg, i, reg, mine, parts, parts, i, i, lanes / 2, parts, i, i, i, i, i,
                  next * parts);
}

/* Stores of sum i: the value; of several ranges, this range's part. */
static void put_end(struct columns *c, int i, int arg)
{
    const struct members *m = c->m;
    const enum ap_dtype dtype = m->of[i].value.dtype;
    char room[24], mine[64];
    snprintf(mine, sizeof mine, c->kept ? "lane * %d + slot" : "slot * %d + lane",
             c->kept ? c->slots : c->lanes);
    put_tree(&c->text, text_register(dtype), i, c->parts, c->lanes, mine,
             c->kept ? c->slots : 1);
    ap_buf_printf(&c->text, "    for (int k = 0; lane == 0 && on && k < %d; k++)\n",
                  c->parts);
    if (c->splits > 1)
        ap_buf_printf(&c->text,
                      "        ((%s *)a.p[%d])[(%s)blockIdx.y * %lld%s + o + k] = "
                      "acc%d[k];\n",
                      text_register(dtype), arg, m->index.u, (long long)c->dims.n_out,
                      m->index.suffix, i);
    else
        ap_buf_printf(&c->text,
                      "        store((%s *)a.p[%d] + o + k, combine%d(%s, acc%d[k]));\n",
                      text_storage(dtype), arg, i,
                      members_name(m, m->of[i].in[1], room, sizeof room), i);
}

/* What sum i begins with, where it is no load that the loop has. */
static void put_initial(struct ap_buf *b, const struct members *m)
{
    struct members_need need = members_need_new(m);
    for (int i = 0; i < m->n; i++)
        if (m->of[i].sum)
            members_need_add(m, &need, m->of[i].in[1]);
    members_put_loads(b, m, &need, LOAD_ONCE, "    ", "0");
    members_put_lines(b, m, &need, -1);
}

/* The sums of the ranges' parts, all of them in one kernel. */
static void add_second(struct columns *c, const struct cuda_at *part)
{
    const struct members *m = c->m;
    struct cuda_at *arg = members_args(m, 2 * m->n);
    struct ap_buf b = {0};
    char room[24], mine[64];
    const int lanes = power_of_two(c->splits / LEAST_READS, 32);
    const int slots = CUDA_BLOCK / lanes;
    int n_args = m->n_loads;
    snprintf(mine, sizeof mine, "lane * %d + slot", slots);
    text_append(&b, &c->functions);
    ap_buf_puts(&b, KERNEL_MARK);
    ap_buf_printf(&b,
                  "    const int slot = threadIdx.x %% %d, lane = threadIdx.x / %d;\n"
                  "    const int64_t o = (int64_t)blockIdx.x * %d + slot;\n"
                  "    const bool on = o < %lld;\n",
                  slots, slots, slots, (long long)c->dims.n_out);
    if (lanes > 1)
        put_shared(&b, m, 1);
    put_initial(&b, m);
    for (int i = 0, k = 0; i < m->n; i++) {
        const enum ap_dtype dtype = m->of[i].value.dtype;
        if (!m->of[i].sum)
            continue;
        arg[n_args] = part[k++];
        arg[n_args + 1] = at_memory(members_result(m, i));
        ap_buf_printf(&b, "    %s acc%d[1] = {", text_register(dtype), i);
        put_neutral(&b, m, i);
        ap_buf_printf(&b,
                      "};\n#pragma unroll 4\n    for (int t = lane; on && t < %lld; t += "
                      "%d)\n        acc%d[0] = combine%d(acc%d[0], ((const %s *)"
                      "a.p[%d])[t * (int64_t)%lld + o]);\n",
                      (long long)c->splits, lanes, i, i, i, text_register(dtype), n_args,
                      (long long)c->dims.n_out);
        put_tree(&b, text_register(dtype), i, 1, lanes, mine, slots);
        ap_buf_printf(&b,
                      "    if (lane == 0 && on)\n        store((%s *)a.p[%d] + o, "
                      "combine%d(%s, acc%d[0]));\n",
                      text_storage(dtype), n_args + 1, i,
                      members_name(m, m->of[i].in[1], room, sizeof room), i);
        n_args += 2;
    }
    cuda_add_kernel(m->x, m->out, &b,
                    &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(c->dims.n_out, slots),
                                          1, n_args, arg});
}

static void add_first(struct columns *c)
{
    const struct members *m = c->m;
    struct cuda_at *arg = members_args(m, m->n),
                   *part = AP_NEW_N(m->x->arena, m->n, struct cuda_at);
    int n_args = m->n_loads, n_parts = 0;
    int64_t scratch = 0;
    text_append(&c->text, &c->functions);
    ap_buf_puts(&c->text, KERNEL_MARK);
    put_start(c);
    put_terms(c);
    if (c->lanes > 1)
        put_shared(&c->text, m, c->parts);
    if (c->splits == 1)
        put_initial(&c->text, m);
    for (int i = 0; i < m->n; i++) {
        if (!m->of[i].sum)
            continue;
        const int64_t size = ap_dtype_size(m->of[i].value.dtype);
        if (c->splits > 1)
            arg[n_args] = part[n_parts++] = at_scratch(exec_take(
                &scratch, ap_mul64(c->splits * c->dims.n_out, size < 4 ? 4 : size)));
        else
            arg[n_args] = at_memory(members_result(m, i));
        put_end(c, i, n_args++);
    }
    exec_need_scratch(m->x, scratch);
    cuda_add_kernel(
        m->x, m->out, &c->text,
        &(struct cuda_launch){CUDA_BLOCK,
                              ap_ceil_div(c->dims.n_out, (int64_t)c->slots * c->parts),
                              c->splits, n_args, arg});
    if (c->splits > 1)
        add_second(c, part);
}

int cuda_add_columns(struct members *m, struct ap_err *err)
{
    struct columns c = {.m = m};
    for (int i = 0; i < m->call->n_nodes; i++) {
        const struct ap_node *v = &m->x->prog->local.nodes[m->call->nodes[i]];
        if (v->op == AP_OP_REDUCE)
            c.dims = reduce_dims_of(v, &call_in(m->x, v, 0)->shape);
    }
    m->row = m->n_elems;
    choose(&c);
    int rc = members_set(m, err);
    if (!rc)
        rc = members_put_combines(m, &c.functions, err);
    if (!rc)
        add_first(&c);
    ap_buf_free(&c.functions);
    members_free(m);
    return rc;
}
