/*
 * reduce, of one operand or several, by a known function or any computation.
 *
 * Idea: `lanes` threads share the terms of a result, neighbours taking neighbours where
 * the innermost dimension is reduced; where it is kept, neighbouring threads make
 * neighbouring results instead. Either way a warp reads what lies side by side. Their
 * partial results meet in shared memory. Few results of many terms (the gradient of a
 * bias, a loss) are cut into `splits` ranges of terms, whose results lie in the scratch
 * memory and are reduced once more. No order depends on time, so that a run repeats.
 * Cost: the operand is read once.
 */
#include "cuda.h"

#include <string.h>

/* Terms per thread below which more threads do not pay. */
#define TERMS 4
/* Threads that fill a large device: 132 multiprocessors of 2048 threads. */
#define FULL_THREADS (132 * 2048)
/* Terms of a split, at least. */
#define SPLIT_TERMS 2048

struct reduction {
    struct exec *x;
    int k;                          /* operands */
    const enum ap_dtype *from, *to; /* storage types; registers are the same */
    struct cuda_at *arg;            /* k operands, k initial values, k results */
    const char *functions;          /* text of `body(acc..., x..., r...)` */
    const void *neutral;            /* of dtype to[0]; NULL: the first term starts */
    int64_t n_out, n_red;
    int kept_rank, red_rank;
    int64_t kept[AP_MAX_RANK], kept_stride[AP_MAX_RANK];
    int64_t red[AP_MAX_RANK], red_stride[AP_MAX_RANK];
    bool inner_kept;
    int lanes, pack;       /* pack: terms of one access */
    int64_t splits, chunk; /* terms of a split */
    bool last;             /* the initial values are combined, too */
};

static int power_of_two(int64_t n, int most)
{
    int p = 1;
    while (p < n && p < most)
        p *= 2;
    return p;
}

/* Whether a thread can read `pack` terms at once, which one run of the operand has. */
static bool packs(const struct reduction *r, int pack)
{
    if (r->inner_kept || r->k != 1 || r->red_rank != 1 || r->red_stride[0] != 1 ||
        r->red[0] % pack || (uintptr_t)r->arg[0].p % 16)
        return false;
    for (int d = 0; d < r->kept_rank; d++)
        if (r->kept_stride[d] % pack)
            return false;
    return true;
}

static void choose(struct reduction *r)
{
    const int pack = 16 / ap_dtype_size(r->from[0]);
    r->pack = pack <= 8 && packs(r, pack) ? pack : 1;
    const int64_t terms = ap_ceil_div(r->n_red, (int64_t)TERMS * r->pack);
    r->lanes =
        r->inner_kept ? power_of_two(r->n_red / 2, 8) : power_of_two(terms, CUDA_BLOCK);
    r->splits = 1;
    const int64_t threads = ap_mul64(r->n_out, r->lanes);
    if (r->k == 1 && r->neutral && threads < FULL_THREADS) {
        const int64_t most = r->n_red / SPLIT_TERMS;
        r->splits = ap_ceil_div(FULL_THREADS, threads > 0 ? threads : 1);
        r->splits = r->splits > most ? most : r->splits;
        r->splits = r->splits < 1 ? 1 : r->splits > 1024 ? 1024 : r->splits;
    }
    const int64_t unit = (int64_t)r->lanes * r->pack;
    r->chunk = ap_ceil_div(ap_ceil_div(r->n_red, r->splits), unit) * unit;
    r->chunk = r->chunk ? r->chunk : unit;
    r->splits = ap_ceil_div(r->n_red, r->chunk);
    r->splits = r->splits < 1 ? 1 : r->splits;
}

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
    if (r->inner_kept)
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
                  t->u, t->u, slots, (long long)r->n_out, t->suffix, t->s);
    text_offset(b, t, "o", r->kept_rank, r->kept, r->kept_stride);
    ap_buf_printf(b,
                  " : 0;\n    const %s lo = (%s)blockIdx.y * %lld%s + lane * %d;\n"
                  "    %s hi = (%s)(blockIdx.y + 1) * %lld%s;\n"
                  "    hi = hi > %lld%s ? %lld%s : hi;\n    bool any = false;\n",
                  t->u, t->u, (long long)r->chunk, t->suffix, r->pack, t->u, t->u,
                  (long long)r->chunk, t->suffix, (long long)r->n_red, t->suffix,
                  (long long)r->n_red, t->suffix);
    for (int i = 0; i < r->k; i++) {
        ap_buf_printf(b, "    %s r%d, acc%d = ", text_register(r->to[i]), i, i);
        if (r->neutral)
            text_constant(b, r->to[0], r->neutral);
        else
            ap_buf_puts(b, "{}");
        ap_buf_puts(b, ";\n");
    }
}

/* This thread's terms. */
static void put_terms(struct ap_buf *b, const struct reduction *r,
                      const struct text_index *t)
{
    ap_buf_printf(b,
                  "#pragma unroll 4\n    for (%s j = lo; on && j < hi; j += %d) {\n"
                  "        const %s at = from + ",
                  t->u, r->lanes * r->pack, t->s);
    text_offset(b, t, "j", r->red_rank, r->red, r->red_stride);
    ap_buf_puts(b, ";\n");
    if (r->pack > 1) {
        ap_buf_printf(
            b,
            "        %s p[%d];\n        load_pack(p, (const %s *)a.p[0] + at);\n"
            "#pragma unroll\n        for (int e = 0; e < %d; e++) {\n"
            "            body(acc0, p[e], r0);\n            acc0 = r0;\n"
            "        }\n    }\n",
            text_register(r->from[0]), r->pack, text_storage(r->from[0]), r->pack);
        return;
    }
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "        const %s x%d = load((const %s *)a.p[%d] + at);\n",
                      text_register(r->from[i]), i, text_storage(r->from[i]), i);
    if (!r->neutral) {
        ap_buf_puts(b, "        if (any) {\n");
        put_combine(b, r->k, "            ", "x");
        ap_buf_puts(b, "        } else {\n");
        for (int i = 0; i < r->k; i++)
            ap_buf_printf(b, "            acc%d = x%d;\n", i, i);
        ap_buf_puts(b, "            any = true;\n        }\n    }\n");
    } else {
        put_combine(b, r->k, "        ", "x");
        ap_buf_puts(b, "    }\n");
    }
}

/* The lanes' partial results, by halves. */
static void put_tree(struct ap_buf *b, const struct reduction *r)
{
    if (r->lanes == 1)
        return;
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "    __shared__ %s part%d[%d];\n", text_register(r->to[i]), i,
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
                  "        if (lane < s && (%s || full[mine + s])) {\n",
                  r->lanes / 2, r->neutral ? "true" : "false");
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "            const %s y%d = part%d[mine + s];\n",
                      text_register(r->to[i]), i, i);
    ap_buf_printf(b, "            if (%s || any) {\n", r->neutral ? "true" : "false");
    put_combine(b, r->k, "                ", "y");
    ap_buf_puts(b, "            } else {\n");
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "                acc%d = y%d;\n", i, i);
    ap_buf_puts(b, "            }\n            any = true;\n");
    for (int i = 0; i < r->k; i++)
        ap_buf_printf(b, "            part%d[mine] = acc%d;\n", i, i);
    ap_buf_puts(b, "            full[mine] = true;\n        }\n    }\n");
}

static void put_end(struct ap_buf *b, const struct reduction *r,
                    const struct text_index *t)
{
    const int k = r->k;
    ap_buf_puts(b, "    if (lane == 0 && on) {\n");
    if (r->last) {
        for (int i = 0; i < k; i++)
            ap_buf_printf(b,
                          "        const %s x%d = acc%d;\n        acc%d = "
                          "load((const %s *)a.p[%d]);\n",
                          text_register(r->to[i]), i, i, i, text_storage(r->to[i]),
                          k + i);
        ap_buf_printf(b, "        if (%s || any) {\n", r->neutral ? "true" : "false");
        put_combine(b, k, "            ", "x");
        ap_buf_puts(b, "        }\n");
    }
    for (int i = 0; i < k; i++)
        ap_buf_printf(b,
                      "        store((%s *)a.p[%d] + (%s)blockIdx.y * %lld%s + o, "
                      "acc%d);\n",
                      text_storage(r->to[i]), 2 * k + i, t->u, (long long)r->n_out,
                      t->suffix, i);
    ap_buf_puts(b, "    }\n");
}

static void add_pass(struct cuda_call *c, const struct reduction *r)
{
    const int64_t elems = ap_mul64(r->n_out, r->n_red > r->splits ? r->n_red : r->splits);
    const struct text_index t = text_index(elems + r->chunk);
    struct ap_buf b = {0};
    ap_buf_puts(&b, r->functions);
    ap_buf_puts(&b, KERNEL_MARK);
    put_start(&b, r, &t);
    put_terms(&b, r, &t);
    put_tree(&b, r);
    put_end(&b, r, &t);
    const struct cuda_launch l = {CUDA_BLOCK,
                                  ap_ceil_div(r->n_out, CUDA_BLOCK / r->lanes), r->splits,
                                  3 * r->k, r->arg};
    cuda_add_kernel(r->x, c, &b, &l);
}

/* Results of the splits lie one behind the other in the scratch memory. */
static void add_split(struct cuda_call *c, const struct reduction *r)
{
    enum ap_dtype reg = cpu_is_plain(r->to[0]) ? r->to[0] : AP_F32;
    uint64_t neutral[2] = {0};
    cpu_load(neutral, r->neutral, 1, r->to[0], 1);
    struct cuda_at first[3] = {r->arg[0], r->arg[1], at_scratch(0)};
    struct cuda_at second[3] = {at_scratch(0), r->arg[1], r->arg[2]};
    struct reduction part = *r;
    part.to = &reg;
    part.neutral = neutral;
    part.last = false;
    part.arg = first;
    add_pass(c, &part);
    struct reduction rest = *r;
    rest.from = &reg;
    rest.arg = second;
    rest.n_red = rest.red[0] = r->splits;
    rest.red_rank = rest.kept_rank = 1;
    rest.red_stride[0] = rest.kept[0] = r->n_out;
    rest.kept_stride[0] = 1;
    rest.inner_kept = true;
    rest.pack = 1;
    rest.lanes = power_of_two(r->splits / TERMS, 8);
    rest.splits = 1;
    rest.chunk = ap_ceil_div(r->splits, rest.lanes) * rest.lanes;
    add_pass(c, &rest);
    exec_need_scratch(r->x, ap_mul64(r->splits * r->n_out, ap_dtype_size(reg)));
}

/* The operand's dimensions, kept ones and reduced ones apart, neighbours as one. */
static void set_dims(struct reduction *r, const struct ap_node *v,
                     const struct ap_shape *in)
{
    int64_t stride[AP_MAX_RANK];
    bool reduced[AP_MAX_RANK] = {false};
    int before = -1; /* what the dimension before this one was */
    cpu_strides(in, stride);
    for (int i = 0; i < v->attrs->dimensions.n; i++)
        reduced[v->attrs->dimensions.v[i]] = true;
    r->n_out = r->n_red = 1;
    for (int d = 0; d < in->rank; d++) {
        int64_t *n = reduced[d] ? r->red : r->kept;
        int64_t *s = reduced[d] ? r->red_stride : r->kept_stride;
        int *rank = reduced[d] ? &r->red_rank : &r->kept_rank;
        *(reduced[d] ? &r->n_red : &r->n_out) *= in->dims[d];
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
        r->inner_kept = !reduced[d];
    }
}

/* The function `body` of a known reducer or of any other; its neutral element. */
static int set_body(struct reduction *r, struct ap_buf *text, const struct ap_node *v,
                    void *neutral, struct ap_err *err)
{
    const struct ap_reducer *red = &r->x->prog->local.reducers[v->attrs->to_apply];
    if (red->red == AP_RED_NONE || v->n_in != 2 || v->shape.dtype == AP_TUPLE) {
        if (red->n_nodes == 0)
            return exec_unsupported(r->x, v, err, "with a reducer that has no body");
        return text_body(r->x, text, "body", red, err);
    }
    if (text_combine(r->x, text, "combine", v, v->attrs->to_apply, err))
        return -1;
    const char *reg = text_register(v->shape.dtype);
    ap_buf_printf(text,
                  "static inline void body(%s x, %s y, %s &r) { r = combine(x, y); }\n",
                  reg, reg, reg);
    ap_red_neutral(red->red, v->shape.dtype, neutral);
    r->neutral = neutral;
    return 0;
}

int cuda_reduce_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const int node = call->nodes[0], k = v->n_in / 2;
    struct reduction r = {.x = x, .k = k, .last = true};
    enum ap_dtype *dtype = AP_NEW_N(x->arena, k, enum ap_dtype);
    struct ap_buf text = {0};
    uint64_t neutral[2];
    struct cuda_call *c = cuda_call_new(x, call);
    r.arg = AP_NEW_N(x->arena, 3 * k, struct cuda_at);
    r.from = r.to = dtype;
    for (int i = 0; i < k; i++) {
        dtype[i] = call_in(x, v, i)->shape.dtype;
        if (!text_computes(dtype[i]))
            return exec_unsupported(x, v, err, ap_dtype_name(dtype[i]));
        r.arg[i] = at_memory(x->value[v->in[i]]);
        r.arg[k + i] = at_memory(x->value[v->in[k + i]]);
        r.arg[2 * k + i] =
            at_memory(v->shape.dtype == AP_TUPLE ? x->element[node][i] : x->value[node]);
    }
    set_dims(&r, v, &call_in(x, v, 0)->shape);
    if (set_body(&r, &text, v, neutral, err))
        return -1;
    r.functions = text.data;
    choose(&r);
    if (r.splits > 1)
        add_split(c, &r);
    else
        add_pass(c, &r);
    ap_buf_free(&text);
    return 0;
}
