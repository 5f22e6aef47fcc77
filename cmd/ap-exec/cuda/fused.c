/*
 * Fused passes: the elementwise, broadcast, iota and scalar nodes of one group as one
 * kernel. A thread computes `width` elements that lie side by side: operands that do so
 * too are read in one access of up to 16 bytes, before the loop over the elements, and
 * results are written in one, behind it; a broadcast operand is read once per thread
 * where its innermost size is a multiple of the width, else once per element. All else
 * stays in registers.
 */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

/* Loads among which an equal one is looked for: keeps preparing linear. */
#define LOOK_BACK 64
/* Elements from which threads compute several: below, more threads are worth more. */
#define WIDE_ELEMS (1 << 15)

/* How a load is read. */
enum mode { UNIFORM, PACK, ELEMENT };

struct load {
    enum mode mode;
    enum ap_dtype dtype;
    const void *src;
    int rank; /* -1: an iota of n[0] indices, n[1] elements each */
    int64_t n[AP_MAX_RANK], stride[AP_MAX_RANK];
    bool mapped; /* iota: src holds the global indices */
};

struct pass {
    struct exec *x;
    const struct call *call;
    struct cuda_call *out;
    int64_t n;
    int width;
    struct text_index index;
    int n_loads;
    struct load *load;
    struct text_operand *value; /* [member] */
    struct ap_buf body;
};

static const struct ap_node *member(const struct pass *p, int m)
{
    return &p->x->prog->local.nodes[p->call->nodes[m]];
}

/* ---- loads ---- */

static void name_load(const struct load *l, int k, struct text_operand *in)
{
    in->dtype = l->dtype;
    snprintf(in->name, sizeof in->name, l->mode == PACK ? "l%d[k]" : "l%d", k);
}

static struct text_operand add_load(struct pass *p, struct load l)
{
    struct text_operand in;
    const int from = p->n_loads > LOOK_BACK ? p->n_loads - LOOK_BACK : 0;
    int k = from;
    for (; k < p->n_loads; k++) {
        const struct load *o = &p->load[k];
        if (o->src == l.src && o->dtype == l.dtype && o->rank == l.rank &&
            o->mapped == l.mapped && !memcmp(o->n, l.n, sizeof l.n) &&
            !memcmp(o->stride, l.stride, sizeof l.stride))
            break;
    }
    if (k == p->n_loads)
        p->load[p->n_loads++] = l;
    name_load(&l, k, &in);
    return in;
}

/* map: a broadcast's; NULL: the operand has the pass's dims. */
static struct text_operand load_node(struct pass *p, const struct ap_shape *dims,
                                     int node, const int64_t *map)
{
    const struct ap_shape *s = &p->x->prog->local.nodes[node].shape;
    struct load l = {.src = p->x->value[node], .dtype = s->dtype};
    l.rank = cpu_collapse(dims, s, map, l.n, l.stride);
    const int last = l.rank - 1;
    if (l.rank == 0 || (l.rank == 1 && l.stride[0] == 0))
        l.mode = UNIFORM;
    else if (l.n[last] % p->width == 0 && l.stride[last] == 0)
        l.mode = UNIFORM; /* of this thread */
    else if (l.n[last] % p->width == 0 && l.stride[last] == 1)
        l.mode = PACK;
    else
        l.mode = ELEMENT;
    for (int d = 0; l.mode == PACK && d < last; d++)
        if (l.stride[d] % p->width)
            l.mode = ELEMENT; /* rows begin where a wide access may not */
    return add_load(p, l);
}

static struct text_operand load_iota(struct pass *p, const struct ap_node *v)
{
    const int d = (int)v->attrs->iota_dimension;
    const int64_t *map = exec_index_map(p->x, v->attrs, &v->shape, d);
    struct load l = {.mode = ELEMENT, .dtype = v->shape.dtype, .rank = -1};
    l.n[0] = v->shape.dims[d];
    l.n[1] = 1;
    for (int i = d + 1; i < v->shape.rank; i++)
        l.n[1] *= v->shape.dims[i];
    l.mapped = map != NULL;
    if (map)
        l.src = cuda_upload(p->x, p->out, map, l.n[0] * (int64_t)sizeof *map);
    return add_load(p, l);
}

static void put_iota(struct ap_buf *b, const struct pass *p, int k)
{
    const struct load *l = &p->load[k];
    char index[160];
    snprintf(index, sizeof index, "(int64_t)(j / %lld%s %% %lld%s)", (long long)l->n[1],
             p->index.suffix, (long long)l->n[0], p->index.suffix);
    ap_buf_printf(b, "        const int64_t g%d = ", k);
    if (l->mapped)
        ap_buf_printf(b, "((const int64_t *)a.p[%d])[%s];\n", k, index);
    else
        ap_buf_printf(b, "%s;\n", index);
    ap_buf_printf(b, "        const %s l%d = %s(to_%s((int64_t)(g%d < 0 ? 0 : g%d)));\n",
                  text_register(l->dtype), k, text_round(l->dtype),
                  cpu_is_plain(l->dtype) ? ap_dtype_name(l->dtype) : "f32", k, k);
}

/* The loads of a thread (mode UNIFORM, PACK) or of an element. */
static void put_loads(struct ap_buf *b, const struct pass *p, bool element)
{
    for (int k = 0; k < p->n_loads; k++) {
        const struct load *l = &p->load[k];
        const char *storage = text_storage(l->dtype), *reg = text_register(l->dtype);
        if ((l->mode == ELEMENT) != element)
            continue;
        if (l->rank < 0) {
            put_iota(b, p, k);
            continue;
        }
        if (l->mode == PACK)
            ap_buf_printf(b, "    %s l%d[%d];\n    load_pack(l%d, (const %s *)a.p[%d] + ",
                          reg, k, p->width, k, storage, k);
        else
            ap_buf_printf(b, "    const %s l%d = load((const %s *)a.p[%d] + ", reg, k,
                          storage, k);
        text_offset(b, &p->index, element ? "j" : "i", l->rank, l->n, l->stride);
        ap_buf_puts(b, ");\n");
    }
}

/* ---- members ---- */

static int put_elementwise(struct pass *p, int m, const struct ap_shape *dims,
                           struct ap_err *err)
{
    static const int64_t none[1] = {0};
    const struct ap_node *v = member(p, m);
    struct text_operand in[3] = {{v->shape.dtype, ""}};
    for (int k = 0; k < v->n_in; k++) {
        const struct ap_node *u = call_in(p->x, v, k);
        const int at = call_member(p->call, v->in[k]);
        in[k] = at >= 0 ? p->value[at]
                        : load_node(p, dims, v->in[k], u->shape.rank ? NULL : none);
    }
    if (!text_computes(v->shape.dtype))
        return exec_unsupported(p->x, v, err, ap_dtype_name(v->shape.dtype));
    ap_buf_printf(&p->body, "        const %s v%d = ", text_register(v->shape.dtype), m);
    if (text_node(p->x, &p->body, v, in, err))
        return -1;
    ap_buf_puts(&p->body, ";\n");
    p->value[m].dtype = v->shape.dtype;
    snprintf(p->value[m].name, sizeof p->value[m].name, "v%d", m);
    return 0;
}

static int put_member(struct pass *p, int m, struct ap_err *err)
{
    const struct ap_node *v = member(p, m);
    if (!text_computes(v->shape.dtype))
        return exec_unsupported(p->x, v, err, ap_dtype_name(v->shape.dtype));
    if (v->op == AP_OP_IOTA) {
        p->value[m] = load_iota(p, v);
    } else if (v->op == AP_OP_CONSTANT) {
        ap_buf_printf(&p->body, "        const %s v%d = ", text_register(v->shape.dtype),
                      m);
        text_constant(&p->body, v->shape.dtype, v->attrs->literal.data);
        ap_buf_puts(&p->body, ";\n");
        p->value[m].dtype = v->shape.dtype;
        snprintf(p->value[m].name, sizeof p->value[m].name, "v%d", m);
    } else if (v->op == AP_OP_BROADCAST) {
        const int at = call_member(p->call, v->in[0]);
        p->value[m] = at >= 0 ? p->value[at]
                              : load_node(p, &v->shape, v->in[0], v->attrs->dimensions.v);
    } else {
        return put_elementwise(p, m, &v->shape, err);
    }
    return 0;
}

/* Elements of a thread: as many as 16 bytes hold of the widest type, if all fit. */
static int choose_width(const struct pass *p)
{
    bool narrow = true;
    for (int m = 0; m < p->call->n_nodes; m++) {
        const struct ap_node *v = member(p, m);
        narrow &= !p->x->value[p->call->nodes[m]] || ap_dtype_size(v->shape.dtype) <= 2;
        for (int k = 0; k < v->n_in; k++)
            narrow &= call_member(p->call, v->in[k]) >= 0 ||
                      ap_dtype_size(call_in(p->x, v, k)->shape.dtype) <= 2;
    }
    if (p->n < WIDE_ELEMS)
        return 1;
    return narrow && p->n % 8 == 0 ? 8 : p->n % 4 == 0 ? 4 : 1;
}

/* ---- the kernel ---- */

/* Results, as arguments behind the loads; n_args: of all. */
static void put_stores(struct pass *p, struct ap_buf *before, struct ap_buf *after,
                       struct cuda_at *arg, int *n_args)
{
    for (int m = 0; m < p->call->n_nodes; m++) {
        const struct ap_node *v = member(p, m);
        void *dst = p->x->value[p->call->nodes[m]];
        const int k = *n_args;
        const char *storage = text_storage(v->shape.dtype);
        if (!dst)
            continue;
        arg[(*n_args)++] = at_memory(dst);
        if (ap_shape_elems(&v->shape) != p->n) { /* a scalar beside larger values */
            ap_buf_printf(&p->body,
                          "        if (j == 0)\n            store((%s *)a.p[%d], "
                          "(%s)%s);\n",
                          storage, k, text_register(v->shape.dtype), p->value[m].name);
            continue;
        }
        ap_buf_printf(before, "    %s s%d[%d];\n", text_register(v->shape.dtype), m,
                      p->width);
        ap_buf_printf(&p->body, "        s%d[k] = %s;\n", m, p->value[m].name);
        ap_buf_printf(after, "    store_pack((%s *)a.p[%d] + i, s%d);\n", storage, k, m);
    }
}

static void put_kernel(struct pass *p)
{
    struct ap_buf text = {0}, before = {0}, after = {0};
    struct cuda_at *arg =
        AP_NEW_N(p->x->arena, p->n_loads + p->call->n_nodes + 1, struct cuda_at);
    int n_args = p->n_loads;
    for (int k = 0; k < p->n_loads; k++)
        arg[k] = at_memory(p->load[k].src);
    put_stores(p, &before, &after, arg, &n_args);
    ap_buf_printf(&text,
                  "    const %s i = ((%s)blockIdx.x * %d + threadIdx.x) * %d;\n"
                  "    if (i >= %lld%s)\n        return;\n",
                  p->index.u, p->index.u, CUDA_BLOCK, p->width, (long long)p->n,
                  p->index.suffix);
    put_loads(&text, p, false);
    if (before.len)
        ap_buf_put(&text, before.data, before.len);
    ap_buf_printf(&text,
                  "#pragma unroll\n    for (int k = 0; k < %d; k++) {\n"
                  "        const %s j = i + k;\n",
                  p->width, p->index.u);
    put_loads(&text, p, true);
    if (p->body.len)
        ap_buf_put(&text, p->body.data, p->body.len);
    ap_buf_puts(&text, "        (void)j;\n    }\n");
    if (after.len)
        ap_buf_put(&text, after.data, after.len);
    ap_buf_free(&before);
    ap_buf_free(&after);
    ap_buf_free(&p->body);
    cuda_add_kernel(p->x, p->out, &text,
                    &(struct cuda_launch){
                        CUDA_BLOCK, ap_ceil_div(p->n, (int64_t)CUDA_BLOCK * p->width), 1,
                        n_args, arg});
}

int cuda_fused_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    struct pass p = {.x = x, .call = call, .out = cuda_call_new(x, call), .n = 1};
    int most = 1;
    for (int m = 0; m < call->n_nodes; m++) {
        const struct ap_node *v = member(&p, m);
        most += 1 + v->n_in;
        if (m == 0 || v->op != AP_OP_CONSTANT) /* scalar constants may be in any pass */
            p.n = ap_shape_elems(&v->shape);
    }
    p.load = AP_NEW_N(x->arena, most, struct load);
    p.value = AP_NEW_N(x->arena, call->n_nodes, struct text_operand);
    p.index = text_index(p.n);
    p.width = choose_width(&p);
    for (int m = 0; m < call->n_nodes; m++)
        if (put_member(&p, m, err))
            return -1;
    put_kernel(&p);
    return 0;
}
