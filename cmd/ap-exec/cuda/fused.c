/*
 * Fused passes: the elementwise, broadcast, iota and scalar nodes of one group as one
 * kernel, with reshapes of them, and transposes and slices of their operands. A thread
 * computes `width` elements that lie side by side: operands that do so too are read in
 * one access of up to 16 bytes, before the loop over the elements, and results are
 * written in one, after it; a broadcast operand is read once per thread where its
 * innermost size is a multiple of the width, else once per element. All else stays in
 * registers. A call with reductions is a kernel of rows (rows.c) or of sums (columns.c).
 */
#include "members.h"

/* Results, as arguments after the loads; n_args: of all. */
static void put_stores(struct members *m, struct ap_buf *before, struct ap_buf *body,
                       struct ap_buf *after, struct cuda_at *arg, int *n_args)
{
    for (int i = 0; i < m->n; i++) {
        const struct ap_node *v = m->of[i].node;
        const struct text_operand *value = &m->of[i].value;
        void *dst = members_result(m, i);
        const int k = *n_args;
        const char *storage = text_storage(v->shape.dtype);
        if (!dst || ap_shape_elems(&v->shape) == 0)
            continue;
        arg[(*n_args)++] = at_memory(dst);
        if (ap_shape_elems(&v->shape) != m->n_elems) { /* a scalar beside larger values */
            ap_buf_printf(body,
                          "        if (j == 0)\n            store((%s *)a.p[%d], "
                          "(%s)%s);\n",
                          storage, k, text_register(v->shape.dtype), value->name);
            continue;
        }
        ap_buf_printf(before, "    %s s%d[%d];\n", text_register(v->shape.dtype), i,
                      m->width);
        ap_buf_printf(body, "        s%d[k] = %s;\n", i, value->name);
        ap_buf_printf(after, "    store_pack((%s *)a.p[%d] + i, s%d);\n", storage, k, i);
    }
}

/* What the results are computed from. */
static struct members_need find_need(const struct members *m)
{
    struct members_need need = members_need_new(m);
    for (int i = 0; i < m->n; i++)
        if (members_result(m, i) && ap_shape_elems(&m->of[i].node->shape) > 0)
            members_need_add(m, &need, i);
    return need;
}

static void put_kernel(struct members *m)
{
    const struct members_need need = find_need(m);
    struct ap_buf text = {0}, before = {0}, body = {0}, after = {0};
    struct cuda_at *arg = members_args(m, m->n);
    int n_args = m->n_loads;
    put_stores(m, &before, &body, &after, arg, &n_args);
    ap_buf_printf(&text,
                  "    const %s i = ((%s)blockIdx.x * %d + threadIdx.x) * %d;\n"
                  "    if (i >= %lld%s)\n        return;\n",
                  m->index.u, m->index.u, CUDA_BLOCK, m->width, (long long)m->n_elems,
                  m->index.suffix);
    members_put_loads(&text, m, &need, LOAD_ONCE, "    ", "i");
    members_put_loads(&text, m, &need, LOAD_PACK, "    ", "i");
    text_append(&text, &before);
    ap_buf_printf(&text,
                  "#pragma unroll\n    for (int k = 0; k < %d; k++) {\n"
                  "        const %s j = i + k;\n",
                  m->width, m->index.u);
    members_put_loads(&text, m, &need, LOAD_ELEMENT, "        ", "j");
    members_put_lines(&text, m, &need, -1);
    text_append(&text, &body);
    ap_buf_puts(&text, "        (void)j;\n    }\n");
    text_append(&text, &after);
    ap_buf_free(&before);
    ap_buf_free(&body);
    ap_buf_free(&after);
    cuda_add_kernel(
        m->x, m->out, &text,
        &(struct cuda_launch){CUDA_BLOCK,
                              ap_ceil_div(m->n_elems, (int64_t)CUDA_BLOCK * m->width), 1,
                              n_args, arg});
}

static int add_pass(struct members *m, struct ap_err *err)
{
    m->row = m->n_elems;
    m->width = members_width(m, m->n_elems);
    const int rc = members_set(m, err);
    if (!rc)
        put_kernel(m);
    members_free(m);
    return rc;
}

/* Whether somebody in the call reads the node's value. */
static bool is_read_inside(const struct exec *x, const struct call *call, int node)
{
    for (int i = 0; i < call->n_nodes; i++) {
        const struct ap_node *v = &x->prog->local.nodes[call->nodes[i]];
        for (int k = 0; k < v->n_in; k++)
            if (v->in[k] == node)
                return true;
    }
    return false;
}

int cuda_fused_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    struct members m = {
        .x = x, .call = call, .out = cuda_call_new(x, call), .n_elems = 1};
    int64_t row = 0;
    bool sums = false, columns = true;
    for (int i = 0; i < call->n_nodes; i++) {
        const struct ap_node *v = &x->prog->local.nodes[call->nodes[i]];
        const bool sum = v->op == AP_OP_REDUCE;
        const int64_t n = ap_shape_elems(sum ? &call_in(x, v, 0)->shape : &v->shape);
        const int64_t n_out = ap_shape_elems(&v->shape);
        m.n_elems = i == 0 || n > m.n_elems ? n : m.n_elems;
        sums |= sum;
        columns &= !sum || !is_read_inside(x, call, call->nodes[i]);
        columns &= sum || !x->value[call->nodes[i]] || n == 1;
        if (sum)
            row = n_out > 0 ? n / n_out : 0;
    }
    for (int i = 0; i < call->n_nodes; i++) { /* of kernels of sums none is per row */
        const struct ap_node *v = &x->prog->local.nodes[call->nodes[i]];
        const int64_t n = ap_shape_elems(&v->shape);
        columns &= v->op == AP_OP_REDUCE || n == 1 || n == m.n_elems;
    }
    m.index = text_index(m.n_elems);
    if (!sums)
        return add_pass(&m, err);
    return columns ? cuda_add_columns(&m, err) : cuda_add_rows(&m, row, err);
}
