/*
 * Collectives, as packing, the communicator's work on device memory and unpacking;
 * and the local steps ap-slice, ap-mask and ap-partial. The CPU backend's functions say
 * which blocks go where. The communicator orders itself after the stream's work and the
 * stream's later work after itself.
 */
#include "cuda.h"

#include <string.h>

/* ---- collectives ---- */

/* A collective and its memory. */
struct exchange {
    const struct coll *coll;
    struct cuda_at send, recv;
    int ticket; /* of the collective that was started */
};

static void collect_run(struct exec *x, void *state)
{
    const struct exchange *e = state;
    x->comm->collect(x->comm, &e->coll->job, cuda_place(x, e->send),
                     cuda_place(x, e->recv));
}

/* Collectives without packing run while later calls do (step/overlap.c). */
static void start_run(struct exec *x, void *state)
{
    struct exchange *e = state;
    x->comm->start(x->comm);
    collect_run(x, e);
    e->ticket = x->comm->event(x->comm);
}

/* state: of the call, whose last step is the collective. */
static void finish(struct exec *x, void *state)
{
    const struct cuda_call *c = state;
    const struct exchange *e = c->step[c->n - 1].state;
    x->comm->wait(x->comm, e->ticket);
}

static void add_pack(struct exec *x, struct cuda_call *call, const struct coll *c,
                     struct cuda_at to)
{
    const int64_t block = c->block_elems * c->size;
    if (c->padded)
        cuda_add_zero(x, call, to, c->n_ranks * block);
    for (int q = 0; q < c->n_ranks; q++)
        cuda_add_box(x, call, &c->pack[q], at_plus(to, q * block),
                     at_memory(c->src + c->pack_from[q] * c->size), c->size);
}

static void add_unpack(struct exec *x, struct cuda_call *call, const struct coll *c,
                       struct cuda_at from)
{
    for (int q = 0; q < c->n_ranks; q++)
        cuda_add_box(x, call, &c->unpack[q],
                     at_memory(c->dst + c->unpack_to[q] * c->size),
                     at_plus(from, q * c->block_elems * c->size), c->size);
}

/* The steps of a collective of struct coll; true: its last one only starts it. */
static bool add_coll(struct exec *x, struct cuda_call *call, const struct coll *c)
{
    struct exchange *e = AP_NEW(x->arena, struct exchange);
    const int64_t bytes = exec_room(c->n_ranks * c->block_elems * c->size);
    const bool pack = c->pack && !c->direct, unpack = c->unpack && !c->direct;
    *e = (struct exchange){c, at_memory(c->src), at_memory(c->dst), -1};
    if (c->job.op == AP_OP_ALL_REDUCE) {
        if (c->dst != c->src)
            cuda_add_copy(x, call, e->recv, e->send, c->in_elems * c->size);
        e->send = e->recv;
    }
    if (pack) {
        e->send = at_scratch(0);
        add_pack(x, call, c, e->send);
    }
    if (unpack)
        e->recv = at_scratch(pack ? bytes : 0);
    exec_need_scratch(x, pack * bytes + unpack * bytes);
    cuda_add(x, call, pack || unpack ? collect_run : start_run, e, NULL);
    if (unpack)
        add_unpack(x, call, c, e->recv);
    return !pack && !unpack;
}

/* ---- over the microbatch axis, without communication ---- */

/* dst = dst (red) src, each rounded; both are in registers of dst's type. */
static int add_sum(struct exec *x, struct cuda_call *call, const struct ap_node *v,
                   const struct accumulate *k, struct ap_err *err)
{
    const struct text_index t = text_index(k->n);
    const enum ap_op op = cpu_red_op(v->attrs->coll.red);
    const struct ap_node sum = {
        .op = op, .name = v->name, .n_in = 2, .shape = v->shape, .attrs = v->attrs};
    const struct text_operand in[2] = {{k->dtype, "x"}, {k->dtype, "y"}};
    const char *to = text_storage(k->dtype), *reg = text_register(k->dtype);
    struct ap_buf b = {0};
    if (!text_computes(k->dtype))
        return exec_unsupported(x, v, err, ap_dtype_name(k->dtype));
    text_thread(&b, &t, CUDA_BLOCK, k->n);
    ap_buf_printf(&b,
                  "    const %s x = load((const %s *)a.p[0] + i), "
                  "y = load((const %s *)a.p[1] + i);\n    store((%s *)a.p[0] + i, (%s)(",
                  reg, to, text_storage(k->from), to, reg);
    if (text_node(x, &b, &sum, in, err))
        return -1;
    ap_buf_puts(&b, "));\n");
    struct cuda_at arg[2] = {at_memory(k->dst), at_memory(k->src)};
    cuda_add_kernel(
        x, call, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(k->n, CUDA_BLOCK), 1, 2, arg});
    return 0;
}

static int add_accumulate(struct exec *x, struct cuda_call *call, const struct ap_node *v,
                          const struct accumulate *k, struct ap_err *err)
{
    const struct box whole = {.rank = 1, .n = {k->n}, .src = {1}, .dst = {1}};

    if (v->op == AP_OP_ALL_GATHER)
        cuda_add_box(x, call, &k->box, at_memory(k->dst + k->to * k->size),
                     at_memory(k->src), k->size);
    else if (k->first && k->from != k->dtype)
        cuda_add_convert(x, call, &whole, at_memory(k->dst), k->dtype, at_memory(k->src),
                         k->from);
    else if (k->first)
        cuda_add_copy(x, call, at_memory(k->dst), at_memory(k->src), k->n * k->size);
    else
        return add_sum(x, call, v, k, err);
    return 0;
}

int cuda_coll_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const void *state = cuda_state(x, call, cpu_coll_prepare, err);
    if (!state)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    call->finish = NULL;
    if (v->attrs->coll.axes & x->prog->mesh.microbatch)
        return add_accumulate(x, c, v, state, err);
    if (add_coll(x, c, state))
        call->finish = finish;
    return 0;
}

/* ---- local steps ---- */

/* Fills what the maps say is padding. */
static void add_mask(struct exec *x, struct cuda_call *call, const struct local *s,
                     struct cuda_at fill)
{
    const struct text_index t = text_index(s->n);
    struct cuda_at arg[AP_MAX_RANK + 2] = {at_memory(s->dst), fill};
    const char *word = text_word(s->size);
    struct ap_buf b = {0};
    int n_args = 2;
    int64_t run = 1;
    text_thread(&b, &t, CUDA_BLOCK, s->n);
    ap_buf_puts(&b, "    bool pad = false;\n");
    for (int d = s->shape.rank - 1; d >= 0; run *= s->shape.dims[d--]) {
        const int64_t n = s->shape.dims[d];
        if (!s->map[d])
            continue;
        ap_buf_printf(&b,
                      "    pad = pad || ((const int64_t *)a.p[%d])[i / %lld%s %% %lld%s] "
                      "< 0;\n",
                      n_args, (long long)run, t.suffix, (long long)n, t.suffix);
        arg[n_args++] =
            at_memory(cuda_upload(x, call, s->map[d], n * (int64_t)sizeof *s->map[d]));
    }
    ap_buf_printf(&b, "    if (pad)\n        ((%s *)a.p[0])[i] = *(const %s *)a.p[1];\n",
                  word, word);
    cuda_add_kernel(
        x, call, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(s->n, CUDA_BLOCK), 1, n_args, arg});
}

int cuda_local_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct local *s = cuda_state(x, call, cpu_local_prepare, err);
    if (!s)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    const struct cuda_at dst = at_memory(s->dst), src = at_memory(s->src);
    if (v->op == AP_OP_AP_SLICE) {
        if (s->zeroed)
            cuda_add_zero(x, c, dst, s->n * s->size);
        cuda_add_box(x, c, &s->box, dst, at_plus(src, s->from * s->size), s->size);
        return 0;
    }
    const struct cuda_at fill = at_memory(cuda_upload(x, c, s->fill, s->size));
    if (v->op == AP_OP_AP_PARTIAL && !s->keep)
        cuda_add_fill(x, c, dst, s->n, fill, s->size);
    else
        cuda_add_copy(x, c, dst, src, s->n * s->size);
    if (v->op == AP_OP_AP_MASK)
        add_mask(x, c, s, fill);
    return 0;
}
