/*
 * Kernels of rows: elementwise nodes with reductions along the innermost dimensions, as
 * one kernel: a softmax, a norm, and their gradients.
 *
 * Problem: y = exp(x - max x) / sum exp(x - max x) along rows reads x three times and
 * writes exp(x - max x) in between if each reduction is a kernel. Idea: T threads share a
 * row. They go over it once for each reduction that waits for another, and once more for
 * the results; values between them are computed again each time, from operands that stay
 * in registers where rows are short (l[q][k]: access q of this thread, element k of it)
 * and are read again, mostly from the cache, where they are long. Partial results meet in
 * shared memory by halves, in an order that follows from T alone. Rows whose length is no
 * multiple of the access are read from the last multiple before them on; elements of the
 * neighbours are left out one by one. Cost: each operand is read once or, of long rows,
 * once per pass; results are written once, in the last pass, so that one may lie where an
 * operand did.
 */
#include "members.h"

/* Accesses of a thread for which operands stay in registers; threads of a row. */
#define HELD_ACCESSES 2
#define MOST_THREADS  512
/* Threads of a block, at least. */
#define LEAST_BLOCK 128
/* Bytes of a block's shared memory. */
#define SHARED_BYTES 49152

struct rows {
    struct members *m;
    int64_t n;          /* rows */
    int threads, slots; /* of a row; rows of a block */
    int accesses;       /* of a thread, where operands stay in registers */
    bool ragged;        /* rows begin where an access may not */
    bool crowded;       /* shared memory has not room for all sums at once */
    struct ap_buf functions, text;
};

static void choose(struct rows *r)
{
    const int64_t width = r->m->width, row = r->m->row;
    const int64_t reads = ap_ceil_div(row, width) + (row % width != 0);
    const int64_t threads = ap_ceil_div(reads, 32 * HELD_ACCESSES) * 32;
    r->ragged = row % width != 0;
    r->threads = (int)(threads < MOST_THREADS ? threads : MOST_THREADS);
    r->accesses = (int)ap_ceil_div(reads, r->threads);
    r->m->held = r->accesses <= HELD_ACCESSES;
    r->slots = r->threads < LEAST_BLOCK ? LEAST_BLOCK / r->threads : 1;
    int64_t bytes = 0; /* of all sums at once */
    for (int i = 0; i < r->m->call->n_nodes; i++) {
        const struct ap_node *v = &r->m->x->prog->local.nodes[r->m->call->nodes[i]];
        const int size = ap_dtype_size(v->shape.dtype);
        if (v->op == AP_OP_REDUCE)
            bytes += (int64_t)r->threads * r->slots * (size < 4 ? 4 : size);
    }
    r->crowded = bytes > SHARED_BYTES;
}

static void put_start(struct rows *r)
{
    const struct members *m = r->m;
    const char *u = m->index.u, *s = m->index.suffix;
    ap_buf_printf(&r->text,
                  "    const int lane = threadIdx.x %% %d, slot = threadIdx.x / %d;\n"
                  "    const bool on = (int64_t)blockIdx.x * %d + slot < %lld;\n"
                  "    const %s r = on ? (%s)blockIdx.x * %d + slot : 0;\n"
                  "    const %s lo = r * %lld%s, hi = on ? lo + %lld%s : 0;\n"
                  "    const %s first = lo / %d * %d + lane * %d;\n",
                  r->threads, r->threads, r->slots, (long long)r->n, u, u, r->slots, u,
                  (long long)m->row, s, (long long)m->row, s, u, m->width, m->width,
                  m->width);
    if (r->crowded)
        ap_buf_printf(&r->text, "    __shared__ double parts[%d];\n",
                      r->threads * r->slots);
    members_put_loads(&r->text, m, NULL, LOAD_ONCE, "    ", "lo");
    members_put_loads(&r->text, m, NULL, LOAD_ROW, "    ", "lo");
    if (!m->held)
        return;
    for (int k = 0; k < m->n_loads; k++)
        if (m->load[k].mode == LOAD_PACK)
            ap_buf_printf(&r->text, "    %s l%d[%d][%d];\n",
                          text_register(m->load[k].dtype), k, r->accesses, m->width);
    ap_buf_printf(&r->text,
                  "#pragma unroll\n    for (int q = 0; q < %d; q++) {\n"
                  "        const %s i = first + q * %d;\n        if (i >= hi)\n"
                  "            break;\n",
                  r->accesses, u, r->threads * m->width);
    members_put_loads(&r->text, m, NULL, LOAD_PACK, "        ", "i");
    ap_buf_puts(&r->text, "        (void)i;\n    }\n");
}

/* Opens the two loops over this thread's elements, with what is needed of each. */
static void open_loops(struct rows *r, const struct members_need *need,
                       const struct ap_buf *before)
{
    const struct members *m = r->m;
    const int step = r->threads * m->width;
    if (m->held)
        ap_buf_printf(&r->text,
                      "#pragma unroll\n    for (int q = 0; q < %d; q++) {\n"
                      "    const %s i = first + q * %d;\n    if (i >= hi)\n"
                      "        break;\n",
                      r->accesses, m->index.u, step);
    else
        ap_buf_printf(&r->text, "    for (%s i = first; i < hi; i += %d) {\n", m->index.u,
                      step);
    if (!m->held)
        members_put_loads(&r->text, m, need, LOAD_PACK, "    ", "i");
    text_append(&r->text, before);
    ap_buf_printf(&r->text,
                  "#pragma unroll\n    for (int k = 0; k < %d; k++) {\n"
                  "        const %s j = i + k;\n",
                  m->width, m->index.u);
    if (r->ragged)
        ap_buf_puts(&r->text, "        if (j < lo || j >= hi)\n            continue;\n");
    members_put_loads(&r->text, m, need, LOAD_ELEMENT, "        ", "j");
    members_put_lines(&r->text, m, need, -1);
}

static bool is_of_phase(const struct members *m, int i, int phase)
{
    return m->of[i].sum && m->of[i].after == phase;
}

/* The lanes' partial results of the sums lo ... hi - 1 of a phase, by halves; then the
 * values. */
static void put_meeting(struct rows *r, int phase, int lo, int hi)
{
    const struct members *m = r->m;
    struct ap_buf *b = &r->text;
    char room[24];
    int half = 1;
    while (half * 2 < r->threads)
        half *= 2;
    for (int i = lo; i < hi; i++) {
        const char *reg = text_register(m->of[i].value.dtype);
        if (!is_of_phase(m, i, phase))
            continue;
        if (r->crowded)
            ap_buf_printf(b,
                          "    %s *const part%d = (%s *)parts;\n    __syncthreads();\n",
                          reg, i, reg);
        else
            ap_buf_printf(b, "    __shared__ %s part%d[%d];\n", reg, i,
                          r->threads * r->slots);
        ap_buf_printf(b, "    part%d[threadIdx.x] = acc%d;\n", i, i);
    }
    ap_buf_printf(b,
                  "    for (int s = %d; s > 0; s /= 2) {\n        __syncthreads();\n"
                  "        if (lane < s && lane + s < %d) {\n",
                  half, r->threads);
    for (int i = lo; i < hi; i++)
        if (is_of_phase(m, i, phase))
            ap_buf_printf(b,
                          "            part%d[threadIdx.x] = combine%d(part%d[threadIdx."
                          "x], part%d[threadIdx.x + s]);\n",
                          i, i, i, i);
    ap_buf_puts(b, "        }\n    }\n    __syncthreads();\n");
    for (int i = lo; i < hi; i++)
        if (is_of_phase(m, i, phase))
            ap_buf_printf(
                b, "    const %s w%d = %s(combine%d(%s, part%d[slot * %d]));\n",
                text_register(m->of[i].value.dtype), i, text_round(m->of[i].value.dtype),
                i, members_name(m, m->of[i].in[1], room, sizeof room), i, r->threads);
}

/* All at once; or one after the other, in the same memory. */
static void put_tree(struct rows *r, int phase)
{
    if (!r->crowded)
        put_meeting(r, phase, 0, r->m->n);
    for (int i = 0; i < r->m->n && r->crowded; i++)
        if (is_of_phase(r->m, i, phase))
            put_meeting(r, phase, i, i + 1);
}

/* One pass for the sums that wait for `phase` others; false if there are none. */
static bool put_phase(struct rows *r, int phase)
{
    const struct members *m = r->m;
    struct members_need need = members_need_new(m);
    struct ap_buf none = {0};
    char room[24];
    bool any = false;
    for (int i = 0; i < m->n; i++) {
        const struct member *of = &m->of[i];
        uint64_t neutral[2];
        if (!is_of_phase(m, i, phase))
            continue;
        any = true;
        members_need_add(m, &need, of->in[0]);
        ap_red_neutral(m->x->prog->local.reducers[of->node->attrs->to_apply].red,
                       of->node->shape.dtype, neutral);
        ap_buf_printf(&r->text, "    %s acc%d = ", text_register(of->value.dtype), i);
        text_constant(&r->text, of->value.dtype, neutral);
        ap_buf_puts(&r->text, ";\n");
    }
    if (!any)
        return false;
    open_loops(r, &need, &none);
    for (int i = 0; i < m->n; i++)
        if (is_of_phase(m, i, phase))
            ap_buf_printf(&r->text, "        acc%d = combine%d(acc%d, %s);\n", i, i, i,
                          members_name(m, m->of[i].in[0], room, sizeof room));
    ap_buf_puts(&r->text, "        (void)j;\n    }\n    }\n");
    put_tree(r, phase);
    return true;
}

/* The last pass: results of all elements; and those of rows. */
static void put_results(struct rows *r, struct cuda_at *arg, int *n_args)
{
    const struct members *m = r->m;
    struct members_need need = members_need_new(m);
    struct ap_buf before = {0}, body = {0}, after = {0}, rows = {0};
    bool any = false;
    for (int i = 0; i < m->n; i++) {
        const struct member *of = &m->of[i];
        const char *storage = text_storage(of->value.dtype);
        const char *reg = text_register(of->value.dtype);
        const int64_t n = ap_shape_elems(&of->node->shape);
        void *dst = members_result(m, i);
        if (!dst)
            continue;
        const int p = (*n_args)++;
        arg[p] = at_memory(dst);
        if (of->row || of->sum) {
            ap_buf_printf(
                &rows,
                "    if (on && lane == 0%s)\n        store((%s *)a.p[%d]%s, (%s)%s);\n",
                n == 1 ? " && r == 0" : "", storage, p, n == 1 ? "" : " + r", reg,
                of->value.name);
            continue;
        }
        any = true;
        members_need_add(m, &need, i);
        if (r->ragged) {
            ap_buf_printf(&body, "        store((%s *)a.p[%d] + j, (%s)%s);\n", storage,
                          p, reg, of->value.name);
            continue;
        }
        ap_buf_printf(&before, "    %s s%d[%d];\n", reg, i, m->width);
        ap_buf_printf(&body, "        s%d[k] = %s;\n", i, of->value.name);
        ap_buf_printf(&after, "    store_pack((%s *)a.p[%d] + i, s%d);\n", storage, p, i);
    }
    if (any) {
        open_loops(r, &need, &before);
        text_append(&r->text, &body);
        ap_buf_puts(&r->text, "        (void)j;\n    }\n");
        text_append(&r->text, &after);
        ap_buf_puts(&r->text, "    }\n");
    }
    text_append(&r->text, &rows);
    ap_buf_free(&before);
    ap_buf_free(&body);
    ap_buf_free(&after);
    ap_buf_free(&rows);
}

static void put_kernel(struct rows *r)
{
    const struct members *m = r->m;
    struct cuda_at *arg = members_args(m, m->n);
    int n_args = m->n_loads;
    text_append(&r->text, &r->functions);
    ap_buf_puts(&r->text, KERNEL_MARK);
    put_start(r);
    members_put_lines(&r->text, m, NULL, 0);
    for (int phase = 0; put_phase(r, phase); phase++)
        members_put_lines(&r->text, m, NULL, phase + 1);
    put_results(r, arg, &n_args);
    cuda_add_kernel(m->x, m->out, &r->text,
                    &(struct cuda_launch){r->threads * r->slots,
                                          ap_ceil_div(r->n, r->slots), 1, n_args, arg});
}

int cuda_add_rows(struct members *m, int64_t row, struct ap_err *err)
{
    struct rows r = {.m = m, .n = m->n_elems / row};
    m->row = row;
    m->width = members_width(m, m->n_elems);
    choose(&r);
    int rc = members_set(m, err);
    if (!rc)
        rc = members_put_combines(m, &r.functions, err);
    if (!rc)
        put_kernel(&r);
    ap_buf_free(&r.functions);
    members_free(m);
    return rc;
}
