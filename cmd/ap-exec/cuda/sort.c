/*
 * sort and topk: bitonic sorting networks (Batcher, "Sorting networks and their
 * applications", 1968) over the positions of each row.
 *
 * Idea: rows are padded to n2 = 2^k positions; positions after a row's end compare as
 * larger than all elements, and of two equal elements the one at the lower position is
 * smaller, so that the order is stable. Steps between positions closer than CHUNK run in
 * shared memory, many to a kernel; the others are a kernel each. Steps are told their
 * distance by arguments, so that all rows and steps of a sort share three kernels. Cost:
 * n log^2 n comparisons, (log n2 - log CHUNK)^2 / 2 kernels.
 */
#include "cuda.h"

#include <stdio.h>

/* Elements that a block sorts in shared memory. */
#define CHUNK SORT_CHUNK

/* A number where a kernel's arguments have pointers. */
static struct cuda_at number(int64_t v)
{
    return at_memory((void *)(uintptr_t)v);
}

/* What the networks of positions and of keys have in common. */
struct network {
    const char *functions; /* text of less(p, row, a, b) of two elements */
    const char *element;   /* their type */
    int64_t n2, total;     /* of a row; of all rows, a multiple of CHUNK */
    int n_args;            /* args[0]: the elements; the last two are free */
    struct cuda_at *arg;
};

/* Compares elements x and y, which are `j` apart in a stage of size k. */
#define EXCHANGE                                                                 \
    "            const uint64_t row = (base + i) / N2, in = (base + i) %% N2;\n" \
    "            const bool up = (in & k) == 0;\n"                               \
    "            const ELEMENT x = s[i], y = s[i + j];\n"                        \
    "            if (up ? less(a.p, row, y, x) : less(a.p, row, x, y)) {\n"      \
    "                s[i] = y;\n                s[i + j] = x;\n            }\n"

static void put_head(struct ap_buf *b, const struct network *w)
{
    ap_buf_printf(b, "typedef %s ELEMENT;\nstatic const uint64_t N2 = %lldull;\n",
                  w->element, (long long)w->n2);
    ap_buf_puts(b, w->functions);
    ap_buf_puts(b, KERNEL_MARK);
}

/* In shared memory: stages k = from ... to (by doubling), each from distance min(k,
 * CHUNK) / 2 down to 1. */
static void add_inside(struct exec *x, struct cuda_call *c, const struct network *w,
                       int64_t from, int64_t to)
{
    struct ap_buf b = {0};
    put_head(&b, w);
    ap_buf_printf(
        &b,
        "    __shared__ ELEMENT s[%d];\n"
        "    const uint64_t from = (uint64_t)a.p[%d], to = (uint64_t)a.p[%d];\n"
        "    const uint64_t base = (uint64_t)blockIdx.x * %d;\n"
        "    ELEMENT *const all = (ELEMENT *)a.p[0] + base;\n"
        "    for (int i = threadIdx.x; i < %d; i += %d)\n        s[i] = all[i];\n"
        "    for (uint64_t k = from; k <= to; k *= 2)\n"
        "        for (int j = k > %d ? %d : (int)k / 2; j > 0; j /= 2) {\n"
        "            __syncthreads();\n"
        "            for (int t = threadIdx.x; t < %d; t += %d) {\n"
        "            const int i = t / j * 2 * j + t %% j;\n" EXCHANGE
        "            }\n        }\n    __syncthreads();\n"
        "    for (int i = threadIdx.x; i < %d; i += %d)\n        all[i] = s[i];\n",
        CHUNK, w->n_args - 2, w->n_args - 1, CHUNK, CHUNK, CUDA_BLOCK, CHUNK, CHUNK / 2,
        CHUNK / 2, CUDA_BLOCK, CHUNK, CUDA_BLOCK);
    w->arg[w->n_args - 2] = number(from);
    w->arg[w->n_args - 1] = number(to);
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, w->total / CHUNK, 1, w->n_args, w->arg});
}

/* One step of stage k between elements j apart, j >= CHUNK. */
static void add_across(struct exec *x, struct cuda_call *c, const struct network *w,
                       int64_t k, int64_t j)
{
    struct ap_buf b = {0};
    put_head(&b, w);
    ap_buf_printf(&b,
                  "    const uint64_t k = (uint64_t)a.p[%d], j = (uint64_t)a.p[%d];\n"
                  "    const uint64_t t = (uint64_t)blockIdx.x * %d + threadIdx.x;\n"
                  "    const uint64_t base = 0, i = t / j * 2 * j + t %% j;\n"
                  "    ELEMENT *const s = (ELEMENT *)a.p[0];\n" EXCHANGE,
                  w->n_args - 2, w->n_args - 1, CUDA_BLOCK);
    w->arg[w->n_args - 2] = number(k);
    w->arg[w->n_args - 1] = number(j);
    cuda_add_kernel(x, c, &b,
                    &(struct cuda_launch){CUDA_BLOCK, w->total / 2 / CUDA_BLOCK, 1,
                                          w->n_args, w->arg});
}

static void add_network(struct exec *x, struct cuda_call *c, const struct network *w)
{
    add_inside(x, c, w, 2, w->n2 < CHUNK ? w->n2 : CHUNK);
    for (int64_t k = 2 * CHUNK; k <= w->n2; k *= 2) {
        for (int64_t j = k / 2; j >= CHUNK; j /= 2)
            add_across(x, c, w, k, j);
        add_inside(x, c, w, k, k);
    }
}

/* ---- keys ---- */

void sort_add_keys(struct exec *x, struct cuda_call *c, struct cuda_at keys, int64_t n)
{
    struct cuda_at arg[3] = {keys};
    const struct network w = {
        .functions =
            "static inline bool less(char *const *, uint64_t, uint64_t x, uint64_t "
            "y) { return x < y; }\n",
        .element = "uint64_t",
        .n2 = n,
        .total = n,
        .n_args = 3,
        .arg = arg};
    add_network(x, c, &w);
}

/* ---- rows ---- */

/* Arguments: positions, operands, two numbers. */
static void put_less(struct ap_buf *b, const struct sort *s)
{
    const char *storage = text_storage(s->dtype[0]), *reg = text_register(s->dtype[0]);
    ap_buf_printf(
        b,
        "static inline bool less(char *const *p, uint64_t row, int x, int y)\n{\n"
        "    if (x >= %lld || y >= %lld)\n        return x < y;\n"
        "    const uint64_t from = row / %lldull * %lldull + row %% %lldull;\n"
        "    const uint64_t i = from + (uint64_t)x * %lldull, "
        "j = from + (uint64_t)y * %lldull;\n",
        (long long)s->n, (long long)s->n, (long long)s->inner,
        (long long)(s->n * s->inner), (long long)s->inner, (long long)s->inner,
        (long long)s->inner);
    if (s->topk) { /* NaN is larger than all else, as in XLA's top-k */
        ap_buf_printf(b,
                      "    const %s u = load((const %s *)p[1] + i), "
                      "v = load((const %s *)p[1] + j);\n"
                      "    const bool nu = u != u, nv = v != v;\n"
                      "    const bool before = nu || nv ? %s : u %s v;\n"
                      "    const bool after = nu || nv ? %s : v %s u;\n",
                      reg, storage, storage, s->largest ? "nu && !nv" : "nv && !nu",
                      s->largest ? ">" : "<", s->largest ? "nv && !nu" : "nu && !nv",
                      s->largest ? ">" : "<");
    } else {
        for (int turn = 0; turn < 2; turn++) {
            ap_buf_printf(b, "    uint8_t %s = 0;\n    compare(",
                          turn ? "after" : "before");
            for (int p = 0; p < s->n_ops; p++)
                for (int k = 0; k < 2; k++)
                    ap_buf_printf(b, "load((const %s *)p[%d] + %s), ",
                                  text_storage(s->dtype[p]), p + 1,
                                  k == turn ? "i" : "j");
            ap_buf_printf(b, "%s);\n", turn ? "after" : "before");
        }
    }
    ap_buf_puts(b, "    return before ? true : after ? false : x < y;\n}\n");
}

/* Positions 0 ... n2 - 1 of every row; those of rows that are not there count as after
 * the end. */
static void add_positions(struct exec *x, struct cuda_call *c, const struct sort *s,
                          int64_t n2, int64_t total)
{
    const struct text_index t = text_index(total);
    struct cuda_at arg[1] = {at_scratch(0)};
    struct ap_buf b = {0};
    text_thread(&b, &t, CUDA_BLOCK, total);
    ap_buf_printf(
        &b, "    ((int *)a.p[0])[i] = (int)(i %% %lld%s) + (i >= %lld%s ? %lld : 0);\n",
        (long long)n2, t.suffix, (long long)(s->outer * s->inner * n2), t.suffix,
        (long long)s->n);
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(total, CUDA_BLOCK), 1, 1, arg});
}

/* The first k elements of every row, of all operands. */
static void add_results(struct exec *x, struct cuda_call *c, const struct sort *s,
                        int64_t n2)
{
    const int64_t n = s->outer * s->inner * s->k;
    const struct text_index t = text_index(s->outer * s->inner * n2);
    struct cuda_at *arg = AP_NEW_N(x->arena, 2 * s->n_ops + 2, struct cuda_at);
    struct ap_buf b = {0};
    int n_args = 1;
    arg[0] = at_scratch(0);
    text_thread(&b, &t, CUDA_BLOCK, n);
    ap_buf_printf(&b,
                  "    const %s row = i / %lld%s, k = i %% %lld%s;\n"
                  "    const %s pos = ((const int *)a.p[0])[row * %lld%s + k];\n"
                  "    const %s outer = row / %lld%s, inner = row %% %lld%s;\n"
                  "    const %s from = (outer * %lld%s + pos) * %lld%s + inner;\n"
                  "    const %s to = (outer * %lld%s + k) * %lld%s + inner;\n",
                  t.u, (long long)s->k, t.suffix, (long long)s->k, t.suffix, t.u,
                  (long long)n2, t.suffix, t.u, (long long)s->inner, t.suffix,
                  (long long)s->inner, t.suffix, t.u, (long long)s->n, t.suffix,
                  (long long)s->inner, t.suffix, t.u, (long long)s->k, t.suffix,
                  (long long)s->inner, t.suffix);
    for (int p = 0; p < s->n_ops; p++) {
        const char *storage = text_storage(s->dtype[p]);
        ap_buf_printf(&b, "    ((%s *)a.p[%d])[to] = ((const %s *)a.p[%d])[from];\n",
                      storage, n_args, storage, n_args + 1);
        arg[n_args++] = at_memory(s->dst[p]);
        arg[n_args++] = at_memory(s->src[p]);
    }
    if (s->topk) {
        ap_buf_printf(&b, "    ((int *)a.p[%d])[to] = (int)pos;\n", n_args);
        arg[n_args++] = at_memory(s->dst[1]);
    }
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, n_args, arg});
}

static int rows_prepare(struct exec *x, struct call *call, const struct sort *s,
                        const struct ap_reducer *compare, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    struct cuda_call *c = cuda_call_new(x, call);
    struct ap_buf text = {0};
    int64_t n2 = 2;
    for (int p = 0; p < s->n_ops; p++)
        if (!text_computes(s->dtype[p]))
            return exec_unsupported(x, v, err, ap_dtype_name(s->dtype[p]));
    while (n2 < s->n)
        n2 *= 2;
    const int64_t rows = s->outer * s->inner;
    const int64_t total = ap_ceil_div(ap_mul64(rows, n2), CHUNK) * CHUNK;
    if (rows == 0 || s->n == 0)
        return 0;
    if (compare && text_body(x, &text, "compare", compare, err))
        return -1;
    put_less(&text, s);
    struct cuda_at *arg = AP_NEW_N(x->arena, s->n_ops + 3, struct cuda_at);
    arg[0] = at_scratch(0);
    for (int p = 0; p < s->n_ops; p++)
        arg[1 + p] = at_memory(s->src[p]);
    const struct network w = {.functions = text.data,
                              .element = "int",
                              .n2 = n2,
                              .total = total,
                              .n_args = s->n_ops + 3,
                              .arg = arg};
    add_positions(x, c, s, n2, total);
    add_network(x, c, &w);
    add_results(x, c, s, n2);
    exec_need_scratch(x, total * 4);
    ap_buf_free(&text);
    return 0;
}

int cuda_sort_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct sort *s = cuda_state(x, call, cpu_sort_prepare, err);
    return s ? rows_prepare(x, call, s, &x->prog->local.reducers[v->attrs->to_apply], err)
             : -1;
}

int cuda_topk_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct sort *s = cuda_state(x, call, cpu_topk_prepare, err);
    return s ? rows_prepare(x, call, s, NULL, err) : -1;
}
