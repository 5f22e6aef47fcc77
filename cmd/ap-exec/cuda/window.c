/*
 * reduce-window and select-and-scatter: a thread per result, which visits the elements
 * that reach it in the order of the CPU. For select-and-scatter that is every window that
 * covers the element, and a kernel before it finds which element each window selects, so
 * that no two threads write one place. Cost: results * window.
 */
#include "cuda.h"

#include <stdio.h>

/* Whether windows of dimension d are single elements, each at its own place. */
static bool is_plain(const struct window *s, int d)
{
    const struct ap_window_dim *w = &s->w[d];
    return s->in.dims[d] == s->out.dims[d] && w->size == 1 && w->stride == 1 &&
           w->pad_lo == 0 && w->lhs_dilate == 1;
}

/* int o0 = ..., the multi-index of `i` in dims. */
static void put_index(struct ap_buf *b, const struct text_index *t, const char *name,
                      const struct ap_shape *s)
{
    int64_t run = 1;
    for (int d = s->rank - 1; d >= 0; d--) {
        ap_buf_printf(b, "    const %s %s%d = i / %lld%s %% %lld%s;\n", t->s, name, d,
                      (long long)run, t->suffix, (long long)s->dims[d], t->suffix);
        run *= s->dims[d];
    }
}

/* Loops over the window; p0, p1, ...: the element under it, and nothing where it lies
 * between elements or outside. */
static void put_window(struct ap_buf *b, const struct window *s,
                       const struct text_index *t)
{
    for (int d = 0; d < s->out.rank; d++) {
        const struct ap_window_dim *w = &s->w[d];
        char k[48];
        if (is_plain(s, d)) {
            ap_buf_printf(b, "    const %s p%d = o%d;\n", t->s, d, d);
            continue;
        }
        if (w->reversal)
            snprintf(k, sizeof k, "%lld - k%d", (long long)w->size - 1, d);
        else
            snprintf(k, sizeof k, "k%d", d);
        ap_buf_printf(b,
                      "    for (%s k%d = 0; k%d < %lld; k%d++) {\n"
                      "        const %s q%d = o%d * %lld + (%s) * %lld - (%lld);\n"
                      "        const %s p%d = q%d / %lld;\n"
                      "        if (q%d < 0 || q%d %% %lld != 0 || p%d >= %lld)\n"
                      "            continue;\n",
                      t->s, d, d, (long long)w->size, d, t->s, d, d, (long long)w->stride,
                      k, (long long)w->rhs_dilate, (long long)w->pad_lo, t->s, d, d,
                      (long long)w->lhs_dilate, d, d, (long long)w->lhs_dilate, d,
                      (long long)s->in.dims[d]);
    }
}

static void put_ends(struct ap_buf *b, const struct window *s)
{
    for (int d = 0; d < s->out.rank; d++)
        if (!is_plain(s, d))
            ap_buf_puts(b, "    }\n");
}

/* p0 * stride0 + p1 * stride1 + ... */
static void put_place(struct ap_buf *b, const char *name, int rank, const int64_t *stride)
{
    for (int d = 0; d < rank; d++)
        ap_buf_printf(b, "%s%s%d * %lld", d ? " + " : "", name, d, (long long)stride[d]);
}

int cuda_window_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct window *s = cuda_state(x, call, cpu_window_prepare, err);
    if (!s)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    const int64_t n = ap_shape_elems(&s->out), m = ap_shape_elems(&s->in);
    const struct text_index t = text_index(n > m ? n : m);
    const char *storage = text_storage(s->out.dtype);
    struct ap_buf b = {0};
    if (text_combine(x, &b, "combine", v, v->attrs->to_apply, err))
        return -1;
    ap_buf_puts(&b, KERNEL_MARK);
    text_thread(&b, &t, CUDA_BLOCK, n);
    put_index(&b, &t, "o", &s->out);
    ap_buf_printf(&b, "    %s acc = load((const %s *)a.p[1]);\n",
                  text_register(s->out.dtype), storage);
    put_window(&b, s, &t);
    ap_buf_printf(&b, "    acc = combine(acc, load((const %s *)a.p[0] + ", storage);
    put_place(&b, "p", s->out.rank, s->ss);
    ap_buf_puts(&b, "));\n");
    put_ends(&b, s);
    ap_buf_printf(&b, "    store((%s *)a.p[2] + i, acc);\n", storage);
    struct cuda_at arg[3] = {at_memory(s->src), at_memory(s->init), at_memory(s->dst)};
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, 3, arg});
    return 0;
}

/* ---- select-and-scatter ---- */

/* Loops over the windows o0, o1, ... that cover element e0, e1, ... */
static void put_covering(struct ap_buf *b, const struct window *s,
                         const struct text_index *t)
{
    for (int d = 0; d < s->in.rank; d++) {
        const struct ap_window_dim *w = &s->w[d];
        ap_buf_printf(
            b,
            "    %s lo%d = e%d + (%lld), hi%d = lo%d < 0 ? 0 : lo%d / %lld + 1;\n"
            "    lo%d = lo%d < %lld ? 0 : (lo%d - %lld) / %lld + 1;\n"
            "    hi%d = hi%d < %lld ? hi%d : %lld;\n",
            t->s, d, d, (long long)w->pad_lo, d, d, d, (long long)w->stride, d, d,
            (long long)w->size, d, (long long)w->size, (long long)w->stride, d, d,
            (long long)s->out.dims[d], d, (long long)s->out.dims[d]);
    }
    for (int d = 0; d < s->in.rank; d++)
        ap_buf_printf(b, "    for (%s o%d = lo%d; o%d < hi%d; o%d++) {\n", t->s, d, d, d,
                      d, d);
}

/* int best: the place of the element that the window selects. */
static void put_selection(struct ap_buf *b, const struct window *s,
                          const struct text_index *t)
{
    const char *storage = text_storage(s->in.dtype), *reg = text_register(s->in.dtype);
    ap_buf_printf(b, "    %s best = -1;\n    %s top = 0;\n", t->s, reg);
    for (int d = 0; d < s->in.rank; d++)
        ap_buf_printf(b,
                      "    for (%s k%d = 0; k%d < %lld; k%d++) {\n"
                      "        const %s p%d = o%d * %lld + k%d - (%lld);\n"
                      "        if (p%d < 0 || p%d >= %lld)\n            continue;\n",
                      t->s, d, d, (long long)s->w[d].size, d, t->s, d, d,
                      (long long)s->w[d].stride, d, (long long)s->w[d].pad_lo, d, d,
                      (long long)s->in.dims[d]);
    ap_buf_printf(b, "    const %s place = ", t->s);
    put_place(b, "p", s->in.rank, s->ss);
    ap_buf_printf(b,
                  ";\n    const %s v = load((const %s *)a.p[0] + place);\n"
                  "    uint8_t keep = 0;\n"
                  "    if (best >= 0)\n        select_one(top, v, keep);\n"
                  "    if (!keep) {\n        best = place;\n        top = v;\n    }\n",
                  reg, storage);
    for (int d = 0; d < s->in.rank; d++)
        ap_buf_puts(b, "    }\n");
}

/* The place that each window selects, -1 for none, by a thread per window. */
static int add_selections(struct exec *x, struct cuda_call *c, const struct ap_node *v,
                          const struct window *s, const struct text_index *t,
                          struct cuda_at selected, struct ap_err *err)
{
    const int64_t n = ap_shape_elems(&s->out);
    struct ap_buf b = {0};
    if (text_body(x, &b, "select_one", &x->prog->local.reducers[v->attrs->select], err))
        return -1;
    ap_buf_puts(&b, KERNEL_MARK);
    text_thread(&b, t, CUDA_BLOCK, n);
    put_index(&b, t, "o", &s->out);
    put_selection(&b, s, t);
    ap_buf_printf(&b, "    ((%s *)a.p[1])[i] = best;\n", t->s);
    struct cuda_at arg[2] = {at_memory(s->src), selected};
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, 2, arg});
    return 0;
}

int cuda_select_scatter_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct window *s = cuda_state(x, call, cpu_select_scatter_prepare, err);
    if (!s)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    const int64_t n = ap_shape_elems(&s->in), windows = ap_shape_elems(&s->out);
    const struct text_index t = text_index(n > windows ? n : windows);
    const char *storage = text_storage(s->in.dtype);
    int64_t scratch = 0, stride[AP_MAX_RANK];
    const struct cuda_at selected =
        at_scratch(exec_take(&scratch, windows * (t.wide ? 8 : 4)));
    struct ap_buf b = {0};
    exec_need_scratch(x, scratch);
    cpu_strides(&s->out, stride);
    if (add_selections(x, c, v, s, &t, selected, err) ||
        text_combine(x, &b, "combine", v, v->attrs->scatter, err))
        return -1;
    ap_buf_puts(&b, KERNEL_MARK);
    text_thread(&b, &t, CUDA_BLOCK, n);
    put_index(&b, &t, "e", &s->in);
    ap_buf_printf(&b, "    %s acc = load((const %s *)a.p[2]);\n",
                  text_register(s->in.dtype), storage);
    put_covering(&b, s, &t);
    ap_buf_printf(&b, "    if (((const %s *)a.p[0])[", t.s);
    put_place(&b, "o", s->in.rank, stride);
    ap_buf_printf(&b,
                  "] == (%s)i)\n        acc = combine(acc, load((const %s *)a.p[1] + ",
                  t.s, storage);
    put_place(&b, "o", s->in.rank, s->ds);
    ap_buf_puts(&b, "));\n");
    for (int d = 0; d < s->in.rank; d++)
        ap_buf_puts(&b, "    }\n");
    ap_buf_printf(&b, "    store((%s *)a.p[3] + i, acc);\n", storage);
    struct cuda_at arg[4] = {selected, at_memory(s->updates), at_memory(s->init),
                             at_memory(s->dst)};
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, 4, arg});
    return 0;
}
