/*
 * gather, scatter, dynamic-slice and dynamic-update-slice.
 *
 * gather: a thread per element of the result finds its window's place; elements on other
 * devices are 0.
 *
 * scatter: updates of one place are combined in their order, as on the CPU, so that sums
 * of floats repeat. Windows of one element per indexed dimension are equal or apart:
 * (place, number of the update) are sorted, and for each run of equal places one row of
 * threads combines its updates (scatter_sorted). Windows that may overlap otherwise, and
 * few updates: each element of the result looks through all updates (scatter_pulled).
 * Cost: n log^2 n comparisons and one pass over the updates; results * updates.
 */
#include "cuda.h"

#include <stdio.h>

/* Updates up to which every element looks through all of them. */
#define FEW_UPDATES 8

/* ---- places ---- */

/* The maps from global to local indices, as arguments from `first` on. */
static int add_maps(struct exec *x, struct cuda_call *c, const struct index *s,
                    struct cuda_at *arg, int first)
{
    for (int i = 0; i < s->n_moved; i++) {
        const struct moved *m = &s->moved[i];
        if (m->here)
            arg[first++] = at_memory(
                cuda_upload(x, c, m->here, m->dim_size * (int64_t)sizeof *m->here));
    }
    return first;
}

/*
 * static int64_t window_at(indices, maps..., q): the offset in operand 0 of the window of
 * index tuple q, -1 when it is not here. The arguments come as `a.p`.
 */
static void put_window_at(struct ap_buf *b, const struct index *s, int indices, int maps)
{
    const struct text_index t = {true, "uint64_t", "int64_t", "ull"};
    const char *type = text_storage(s->index_dtype);
    ap_buf_printf(b, "static inline int64_t window_at(char *const *p, uint64_t q)\n{\n"
                     "    const int64_t at = ");
    text_offset(b, &t, "q", s->n_batch, s->batch, s->batch_index);
    ap_buf_puts(b, ";\n    int64_t base = ");
    text_offset(b, &t, "q", s->n_batch, s->batch, s->batch_operand);
    ap_buf_puts(b, ", g;\n");
    for (int i = 0; i < s->n_moved; i++) {
        const struct moved *m = &s->moved[i];
        const long long most = (long long)(m->dim_size - m->slice);
        ap_buf_printf(b, "    g = index_of(((const %s *)p[%d])[at + %lld]);\n", type,
                      indices, (long long)(i * s->component));
        if (s->scatter)
            ap_buf_printf(b, "    if (g < 0 || g > %lld)\n        return -1;\n", most);
        else
            ap_buf_printf(b, "    g = g > %lld ? %lld : g;\n    g = g < 0 ? 0 : g;\n",
                          most, most);
        if (m->here)
            ap_buf_printf(b,
                          "    g = ((const int64_t *)p[%d])[g];\n    if (g < 0)\n"
                          "        return -1;\n",
                          maps++);
        ap_buf_printf(b, "    base += g * %lld;\n", (long long)s->operand_stride[m->dim]);
    }
    ap_buf_puts(b, "    return base;\n}\n");
}

static int64_t index_tuples(const struct index *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->n_batch; i++)
        n *= s->batch[i];
    return n;
}

/* ---- gather ---- */

int cuda_gather_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct index *s = cuda_state(x, call, cpu_gather_prepare, err);
    if (!s)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    const int64_t w = s->window_elems, n = index_tuples(s) * w;
    const int64_t most = s->operand_bytes / ap_dtype_size(s->dtype);
    const struct text_index t = text_index(n > most ? n : most);
    const char *word = text_word(ap_dtype_size(s->dtype));
    struct cuda_at arg[AP_MAX_RANK + 3] = {at_memory(s->out), at_memory(s->operand),
                                           at_memory(s->indices)};
    const int n_args = add_maps(x, c, s, arg, 3);
    char tuple[64], inside[64];
    struct ap_buf b = {0};
    put_window_at(&b, s, 2, 3);
    ap_buf_puts(&b, KERNEL_MARK);
    text_thread(&b, &t, CUDA_BLOCK, n);
    snprintf(tuple, sizeof tuple, "(i / %lld%s)", (long long)w, t.suffix);
    snprintf(inside, sizeof inside, "(i %% %lld%s)", (long long)w, t.suffix);
    ap_buf_printf(&b,
                  "    const int64_t base = window_at(a.p, %s);\n"
                  "    ((%s *)a.p[0])[",
                  tuple, word);
    text_offset(&b, &t, tuple, s->n_batch, s->batch, s->batch_other);
    ap_buf_puts(&b, " + ");
    text_offset(&b, &t, inside, s->window.rank, s->window.n, s->window.dst);
    ap_buf_printf(&b, "] = base < 0 ? (%s)0 : ((const %s *)a.p[1])[base + ", word, word);
    text_offset(&b, &t, inside, s->window.rank, s->window.n, s->window.src);
    ap_buf_puts(&b, "];\n");
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, n_args, arg});
    return 0;
}

/* ---- scatter ---- */

/* acc = combine(acc, update), or the update. */
static void put_update(struct ap_buf *b, const struct index *s, const char *at)
{
    ap_buf_printf(b, "acc = %s", s->assign ? "" : "combine(acc, ");
    ap_buf_printf(b, "load((const %s *)a.p[2] + %s)%s;\n", text_storage(s->dtype), at,
                  s->assign ? "" : ")");
}

/* The element (i % window) of the window of every update in turn. */
static void scatter_pulled(struct exec *x, struct cuda_call *c, const struct index *s,
                           struct ap_buf *b)
{
    const struct text_index t = {true, "uint64_t", "int64_t", "ull"};
    const int64_t n = s->operand_bytes / ap_dtype_size(s->dtype);
    struct box w = s->window;
    for (int i = 1; i < w.rank; i++) /* target strides fall */
        for (int j = i; j > 0 && w.dst[j - 1] < w.dst[j]; j--)
            box_swap(&w, j, j - 1);
    const char *storage = text_storage(s->dtype);
    struct cuda_at arg[AP_MAX_RANK + 4] = {at_memory(s->out), at_memory(s->operand),
                                           at_memory(s->updates), at_memory(s->indices)};
    const int n_args = add_maps(x, c, s, arg, 4);
    put_window_at(b, s, 3, 4);
    ap_buf_puts(b, KERNEL_MARK);
    text_thread(b, &t, CUDA_BLOCK, n);
    ap_buf_printf(b,
                  "    %s acc = load((const %s *)a.p[1] + i);\n"
                  "    for (uint64_t q = 0; q < %lldull; q++) {\n"
                  "        int64_t rest = (int64_t)i - window_at(a.p, q), at = ",
                  text_register(s->dtype), storage, (long long)index_tuples(s));
    text_offset(b, &t, "q", s->n_batch, s->batch, s->batch_other);
    ap_buf_puts(b, ";\n        bool in = rest >= 0 && rest <= (int64_t)i;\n");
    for (int d = 0; d < w.rank; d++)
        ap_buf_printf(b,
                      "        in = in && rest / %lld < %lld;\n"
                      "        at += rest / %lld * %lld;\n        rest %%= %lld;\n",
                      (long long)w.dst[d], (long long)w.n[d], (long long)w.dst[d],
                      (long long)w.src[d], (long long)w.dst[d]);
    ap_buf_puts(b, "        if (in && rest == 0)\n            ");
    put_update(b, s, "at");
    ap_buf_printf(b, "    }\n    store((%s *)a.p[0] + i, acc);\n", storage);
    cuda_add_kernel(
        x, c, b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, n_args, arg});
}

/* keys[q] = place << bits | q, or all ones where the update is dropped. */
static void add_keys(struct exec *x, struct cuda_call *c, const struct index *s,
                     int64_t padded, int bits)
{
    const struct text_index t = {true, "uint64_t", "int64_t", "ull"};
    struct cuda_at arg[AP_MAX_RANK + 2] = {at_scratch(0), at_memory(s->indices)};
    const int n_args = add_maps(x, c, s, arg, 2);
    struct ap_buf b = {0};
    put_window_at(&b, s, 1, 2);
    ap_buf_puts(&b, KERNEL_MARK);
    text_thread(&b, &t, CUDA_BLOCK, padded);
    ap_buf_printf(
        &b,
        "    const int64_t place = i < %lldull ? window_at(a.p, i) : -1;\n"
        "    ((uint64_t *)a.p[0])[i] = place < 0 ? ~0ull : (uint64_t)place << %d "
        "| i;\n",
        (long long)index_tuples(s), bits);
    cuda_add_kernel(x, c, &b,
                    &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(padded, CUDA_BLOCK), 1,
                                          n_args, arg});
}

/* Some blocks, one after the other, per sorted key; those that begin a run of one place
 * combine it. */
static void add_runs(struct exec *x, struct cuda_call *c, const struct index *s,
                     struct ap_buf *b, int64_t padded, int bits)
{
    const struct text_index t = {true, "uint64_t", "int64_t", "ull"};
    const int64_t n = index_tuples(s), w = s->window_elems;
    const char *storage = text_storage(s->dtype);
    const int rows = w < CUDA_BLOCK ? (int)(CUDA_BLOCK / w) : 1;
    const int64_t width = w < CUDA_BLOCK ? w : CUDA_BLOCK, wide = ap_ceil_div(w, width);
    struct cuda_at arg[4] = {at_memory(s->out), at_memory(s->out), at_memory(s->updates),
                             at_scratch(0)};
    ap_buf_puts(b, KERNEL_MARK);
    ap_buf_printf(
        b,
        "    const uint64_t *keys = (const uint64_t *)a.p[3];\n"
        "    const uint64_t first = (uint64_t)(blockIdx.x / %lldu) * %d + threadIdx.x / "
        "%lld;\n"
        "    const uint64_t e = (uint64_t)(blockIdx.x %% %lldu) * %lld + threadIdx.x %% "
        "%lld;\n"
        "    if (threadIdx.x >= %lld || first >= %lldull || e >= %lldull)\n"
        "        return;\n"
        "    const uint64_t key = keys[first], place = key >> %d;\n"
        "    if (key == ~0ull || (first > 0 && keys[first - 1] >> %d == place))\n"
        "        return;\n",
        (long long)wide, rows, (long long)width, (long long)wide, (long long)width,
        (long long)width, (long long)(rows * width), (long long)n, (long long)w, bits,
        bits);
    ap_buf_printf(b, "    %s *const to = (%s *)a.p[0] + place + ", storage, storage);
    text_offset(b, &t, "e", s->window.rank, s->window.n, s->window.dst);
    ap_buf_printf(b, ";\n    const int64_t from = ");
    text_offset(b, &t, "e", s->window.rank, s->window.n, s->window.src);
    ap_buf_printf(b,
                  ";\n    %s acc = load((const %s *)to);\n"
                  "    for (uint64_t k = first; k < %lldull && keys[k] != ~0ull && "
                  "keys[k] >> %d == place; k++) {\n"
                  "        const uint64_t q = keys[k] & %lldull;\n"
                  "        const int64_t at = from + ",
                  text_register(s->dtype), storage, (long long)padded, bits,
                  (1ll << bits) - 1);
    text_offset(b, &t, "q", s->n_batch, s->batch, s->batch_other);
    ap_buf_puts(b, ";\n        ");
    put_update(b, s, "at");
    ap_buf_puts(b, "    }\n    store(to, acc);\n");
    cuda_add_kernel(
        x, c, b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, rows) * wide, 1, 4, arg});
}

static void scatter_sorted(struct exec *x, struct cuda_call *c, const struct index *s,
                           struct ap_buf *b)
{
    const int64_t n = index_tuples(s);
    int bits = 1;
    while (1ll << bits < n)
        bits++;
    const int64_t padded = SORT_KEYS(1ll << bits);
    add_keys(x, c, s, padded, bits);
    sort_add_keys(x, c, at_scratch(0), padded);
    cuda_add_copy(x, c, at_memory(s->out), at_memory(s->operand), s->operand_bytes);
    add_runs(x, c, s, b, padded, bits);
    exec_need_scratch(x, padded * 8);
}

int cuda_scatter_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct index *s = cuda_state(x, call, cpu_scatter_prepare, err);
    struct ap_buf b = {0};
    if (!s)
        return -1;
    if (!text_computes(s->dtype))
        return exec_unsupported(x, v, err, ap_dtype_name(s->dtype));
    struct cuda_call *c = cuda_call_new(x, call);
    const int64_t n = index_tuples(s);
    bool apart = true;
    for (int i = 0; i < s->n_moved; i++)
        apart &= s->moved[i].slice == 1 || s->moved[i].slice == s->moved[i].dim_size;
    if (n == 0 || s->window_elems == 0) {
        cuda_add_copy(x, c, at_memory(s->out), at_memory(s->operand), s->operand_bytes);
        return 0;
    }
    if (!s->assign && text_combine(x, &b, "combine", v, v->attrs->to_apply, err))
        return -1;
    if (ap_mul64(s->operand_bytes, n) > INT64_MAX / 2)
        return exec_unsupported(x, v, err, "of this size");
    if (apart && n > FEW_UPDATES)
        scatter_sorted(x, c, s, &b);
    else
        scatter_pulled(x, c, s, &b);
    return 0;
}

/* ---- dynamic-slice and dynamic-update-slice ---- */

int cuda_dynamic_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct dynamic *s = cuda_state(x, call, cpu_dynamic_prepare, err);
    if (!s)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    const struct text_index t = {true, "uint64_t", "int64_t", "ull"};
    struct cuda_at arg[AP_MAX_RANK + 2] = {at_memory(s->dst), at_memory(s->src)};
    struct ap_buf b = {0};
    int64_t n = 1;
    for (int d = 0; d < s->box.rank; d++)
        n *= s->box.n[d];
    if (s->operand)
        cuda_add_copy(x, c, at_memory(s->dst), at_memory(s->operand), s->bytes);
    text_thread(&b, &t, CUDA_BLOCK, n);
    ap_buf_puts(&b, "    int64_t start = 0, g;\n");
    for (int d = 0; d < s->rank; d++) {
        arg[2 + d] = at_memory(s->start[d]);
        ap_buf_printf(&b,
                      "    g = index_of(*(const %s *)a.p[%d]);\n"
                      "    g = g > %lld ? %lld : g;\n"
                      "    start += (g < 0 ? 0 : g) * %lld;\n",
                      text_storage(s->index_dtype[d]), 2 + d, (long long)s->most[d],
                      (long long)s->most[d], (long long)s->stride[d]);
    }
    ap_buf_printf(&b, "    ((%s *)a.p[0])[%s", text_word(s->size),
                  s->operand ? "start + " : "");
    text_offset(&b, &t, "i", s->box.rank, s->box.n, s->box.dst);
    ap_buf_printf(&b, "] = ((const %s *)a.p[1])[%s", text_word(s->size),
                  s->operand ? "" : "start + ");
    text_offset(&b, &t, "i", s->box.rank, s->box.n, s->box.src);
    ap_buf_puts(&b, "];\n    (void)g;\n");
    cuda_add_kernel(x, c, &b,
                    &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1,
                                          2 + s->rank, arg});
    return 0;
}
