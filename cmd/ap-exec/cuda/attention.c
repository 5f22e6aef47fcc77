/*
 * Attentions as calls of cuDNN.
 *
 * Problem: the program has an attention as a group of operators on scores, which in
 * memory are queries x keys numbers per head. Idea: a group of the right form
 * (program/attention_form.c) that computes softmax or its gradients (attention_probe.c
 * there), and of whose inner values nothing is read elsewhere, becomes one call of a
 * fused kernel (sdpa.c), which reads and writes the operands at the strides at which they
 * lie. All else runs operator by operator.
 *
 * The kernel for the gradients needs the result o of the forward pass and the logarithm
 * of each row's sum. Where the program passes them on (program_attention.c), the forward
 * call writes both and the backward call reads them. Where it does not, the backward call
 * computes both again by the forward kernel: a forward group's maxima and sums are not
 * written then; it is taken only if all that reads them is a group that is taken, too.
 */
#include "sdpa.h"

#include "cpu/cpu.h"

#if CUDA_HAS_CUDNN

#include <string.h>

/* A call, and what it is prepared from. */
struct attention_call {
    struct ap_attention_form a;
    struct sdpa_shape shape;
    bool handed; /* a backward group, with o and statistics of the forward pass */
    /* forward: NULL if handed; backward: NULL, of a forward group */
    const struct sdpa_plan *forward, *backward;
    struct box
        box[SDPA_STATS]; /* of tensors that are packed to dense ones; rank 0: not */
    struct cuda_at at[N_SDPA], workspace;
    void *pack[2]; /* of the plans; NULL: not bound yet */
    char *scratch; /* that they are bound to */
};

/* ---- dimensions ---- */

/* Dimensions of the scores besides queries and keys, as one of each tensor's dimensions
 * and strides; some run on and are one. */
struct axes {
    int n;
    int64_t size[AP_MAX_RANK], stride[AP_MAX_RANK][SDPA_STATS];
};

static bool is_of_keys(int t)
{
    return t == SDPA_K || t == SDPA_V || t == SDPA_DK || t == SDPA_DV;
}

/* The stride of what the dimension `what` of the scores is in a tensor; 0: it has none.
 */
static int64_t stride_of(const struct ap_graph *g, const struct ap_attention_tensor *t,
                         int what, int64_t *size)
{
    const struct ap_shape *s = &g->nodes[t->order].shape;
    int64_t stride = 1;
    for (int d = s->rank - 1; d >= 0; stride *= s->dims[d--])
        if (t->is[d] == what) {
            if (size)
                *size = s->dims[d];
            return stride;
        }
    return 0;
}

/* Whether dimension b, after a, runs on in all tensors of the mask. */
static bool runs_on(const struct axes *x, int a, int b, unsigned tensors)
{
    for (int t = 0; t < SDPA_STATS; t++)
        if ((tensors >> t & 1) && x->stride[a][t] != x->stride[b][t] * x->size[b])
            return false;
    return true;
}

static void add_axis(struct axes *x, int64_t size, const int64_t *stride,
                     unsigned tensors)
{
    if (size == 1)
        return;
    x->size[x->n] = size;
    memcpy(x->stride[x->n], stride, sizeof x->stride[0]);
    if (x->n > 0 && runs_on(x, x->n - 1, x->n, tensors)) {
        x->size[x->n - 1] *= size;
        memcpy(x->stride[x->n - 1], stride, sizeof x->stride[0]);
        return;
    }
    x->n++;
}

/* The dimensions of batch (shared: keys have them, too), and those of queries alone. */
static void find_axes(const struct ap_graph *g, const struct ap_attention_form *a,
                      struct axes *shared, struct axes *own)
{
    const struct ap_shape *s = &g->nodes[a->scores].shape;
    unsigned all = 0, of_queries = 0;

    for (int t = 0; t < SDPA_STATS; t++)
        if (a->of[t].node >= 0) {
            all |= 1u << t;
            of_queries |= is_of_keys(t) ? 0 : 1u << t;
        }
    for (int d = 0; d < s->rank; d++) {
        int64_t stride[SDPA_STATS] = {0};
        if (d == a->query || d == a->key)
            continue;
        for (int t = 0; t < SDPA_STATS; t++)
            if (all >> t & 1)
                stride[t] = stride_of(g, &a->of[t], d, NULL);
        if (stride_of(g, &a->of[SDPA_K], d, NULL) > 0)
            add_axis(shared, s->dims[d], stride, all);
        else
            add_axis(own, s->dims[d], stride, of_queries);
    }
}

static void set_axis(struct sdpa_shape *s, int d, const struct axes *x, int i)
{
    for (int t = 0; t < SDPA_STATS; t++)
        s->stride[t][d] = x->stride[i][t];
}

/*
 * Batch and heads of cuDNN from the dimensions of the scores. Where queries have heads of
 * their own beside those that they share with keys, both are one dimension of heads, the
 * shared one outside; tensors in which it does not run on are packed.
 */
static bool set_heads(struct attention_call *c, const struct axes *shared,
                      const struct axes *own)
{
    struct sdpa_shape *s = &c->shape;
    const int kv = shared->n == 2 ? 1 : own->n == 1 && shared->n == 1 ? 0 : -1;
    s->batch = s->heads = s->kv_heads = 1;
    if (shared->n > 2 || own->n > 1)
        return false;
    if (shared->n > 0 && kv != 0) {
        s->batch = shared->size[0];
        set_axis(s, 0, shared, 0);
    }
    if (kv >= 0) {
        s->heads = s->kv_heads = shared->size[kv];
        set_axis(s, 1, shared, kv);
    }
    if (own->n == 0)
        return true;
    s->heads *= own->size[0];
    for (int t = 0; t < SDPA_STATS; t++) {
        const int64_t stride = own->stride[0][t];
        if (is_of_keys(t))
            continue;
        s->stride[t][1] = stride;
        if (c->a.of[t].node < 0 || kv < 0 ||
            shared->stride[kv][t] == stride * own->size[0])
            continue;
        c->box[t] = (struct box){
            .rank = 5,
            .n = {s->batch, s->kv_heads, own->size[0], s->queries, 0},
            .src = {s->stride[t][0], shared->stride[kv][t], stride, s->stride[t][2], 1}};
    }
    return true;
}

/* A dimension of size 1 that a tensor does not have gets the stride that a dense one has.
 */
static void fill_strides(struct sdpa_shape *s, int t)
{
    const int64_t heads = is_of_keys(t) ? s->kv_heads : s->heads,
                  rows = is_of_keys(t) ? s->keys : s->queries;
    int64_t *stride = s->stride[t];
    if (stride[1] == 0)
        stride[1] = rows * stride[2];
    if (stride[0] == 0)
        stride[0] =
            heads * stride[1] > rows * stride[2] ? heads * stride[1] : rows * stride[2];
}

/* ---- results in another order ---- */

static const int results[] = {SDPA_O, SDPA_DQ, SDPA_DK, SDPA_DV};

/* A result that only a transpose reads is written in the transpose's order, if rows are
 * whole there. */
static void take_order(const struct ap_graph *g, struct ap_attention_tensor *t)
{
    struct ap_attention_tensor moved = *t;
    if (t->node < 0 || g->user_start[t->node + 1] - g->user_start[t->node] != 1 ||
        ap_graph_is_result(g, t->node))
        return;
    const int to = g->users[g->user_start[t->node]];
    const struct ap_node *n = &g->nodes[to];
    if (n->op != AP_OP_TRANSPOSE || n->attrs->attention)
        return;
    moved.order = to;
    for (int d = 0; d < n->shape.rank; d++)
        moved.is[d] = t->is[n->attrs->dimensions.v[d]];
    if (moved.is[n->shape.rank - 1] == AP_OF_WIDTH)
        *t = moved;
}

static bool overlap(const char *a, int64_t n, const char *b, int64_t m)
{
    return a && b && a < b + m && b < a + n;
}

/* Whether a call reads or writes one of the n bytes at p; true also where that is not
 * known. */
static bool touches(const struct exec *x, const struct call *call, const char *p,
                    int64_t n)
{
    const struct ap_node *nodes = x->prog->local.nodes;
    for (int m = 0; m < call->n_nodes; m++) {
        const struct ap_node *v = &nodes[call->nodes[m]];
        if (v->shape.dtype == AP_TUPLE ||
            overlap(x->value[call->nodes[m]], ap_shape_bytes(&v->shape), p, n))
            return true;
        for (int k = 0; k < v->n_in; k++) {
            const struct ap_shape *s = &nodes[v->in[k]].shape;
            if (s->dtype == AP_TUPLE ||
                overlap(x->value[v->in[k]], ap_shape_bytes(s), p, n))
                return true;
        }
    }
    return false;
}

static bool runs_each(const struct exec *x, int node)
{
    const int group = x->prog->local.nodes[node].group;
    return group >= x->prog->each_lo && group < x->prog->each_hi;
}

/* Whether a result can be written to the place of the transpose that alone reads it. */
static bool place_is_free(const struct exec *x, int node, int to)
{
    const struct ap_graph *g = &x->prog->local;
    const int64_t bytes = ap_shape_bytes(&g->nodes[to].shape);
    if (x->place.shared || x->prog->buffer[to].offset < 0 ||
        runs_each(x, node) != runs_each(x, to))
        return false;
    for (int c = x->call_of[node]; c < x->call_of[to]; c++)
        if (touches(x, &x->calls[c], x->value[to], bytes))
            return false;
    return true;
}

void cuda_attention_place(struct exec *x, const bool *aside)
{
    for (int v = 0; v < x->prog->local.n_nodes && x->permuted; v++) {
        const int to = x->permuted[v];
        if (to >= 0 && !aside[v] && !aside[to] && place_is_free(x, v, to))
            x->value[v] = x->value[to];
    }
}

/* Whether statistics lie as cuDNN wants them: batch and heads of keys in the scores'
 * order, heads of queries alone, the rows. */
static bool has_dense_rows(const struct ap_graph *g, const struct ap_attention_form *a)
{
    const struct ap_shape *s = &g->nodes[a->stats].shape;
    int last = -1;
    for (int d = 0; d < s->rank; d++) {
        const int8_t is = a->stats_is[d];
        const int place = is == AP_OF_QUERIES                          ? 2 * AP_MAX_RANK
                          : stride_of(g, &a->of[SDPA_K], is, NULL) > 0 ? is
                                                                       : AP_MAX_RANK + is;
        if (s->dims[d] > 1 && place < last)
            return false;
        last = s->dims[d] > 1 ? place : last;
    }
    return s->dtype == AP_F32;
}

/* Heads, one after the other, of rows one after the other. */
static void make_dense(const struct sdpa_shape *s, int64_t width, int64_t stride[4])
{
    stride[3] = 1;
    stride[2] = width;
    stride[1] = s->queries * stride[2];
    stride[0] = s->heads * stride[1];
}

static bool is_packed(const struct attention_call *c, int t)
{
    return c->box[t].rank > 0;
}

/* From a tensor of queries to its dense copy. */
static void finish_box(struct attention_call *c, int t)
{
    struct box *b = &c->box[t];
    int64_t *stride = c->shape.stride[t];
    const int64_t width =
        t == SDPA_O || t == SDPA_DO ? c->shape.value_width : c->shape.width;
    make_dense(&c->shape, width, stride);
    b->n[4] = width;
    b->dst[0] = stride[0], b->dst[1] = b->n[2] * stride[1], b->dst[2] = stride[1];
    b->dst[3] = stride[2], b->dst[4] = 1;
}

/* What cuDNN is asked for; false: what it cannot be given. */
static bool set_shape(const struct ap_graph *g, struct attention_call *c)
{
    const struct ap_attention_form *a = &c->a;
    struct sdpa_shape *s = &c->shape;
    struct axes shared = {0}, own = {0};
    s->f16 = g->nodes[a->of[SDPA_Q].node].shape.dtype == AP_F16;
    for (int t = 0; t < SDPA_STATS; t++) {
        if (a->of[t].node < 0)
            continue;
        const bool value = t == SDPA_V || t == SDPA_O || t == SDPA_DO || t == SDPA_DV;
        s->stride[t][2] =
            stride_of(g, &a->of[t], is_of_keys(t) ? AP_OF_KEYS : AP_OF_QUERIES,
                      is_of_keys(t) ? &s->keys : &s->queries);
        s->stride[t][3] =
            stride_of(g, &a->of[t], AP_OF_WIDTH, value ? &s->value_width : &s->width);
        if (s->stride[t][3] != 1)
            return false;
    }
    find_axes(g, a, &shared, &own);
    if (!set_heads(c, &shared, &own))
        return false;
    for (int t = 0; t < SDPA_STATS; t++) {
        if (a->of[t].node >= 0)
            fill_strides(s, t);
        if (is_packed(c, t))
            finish_box(c, t);
    }
    s->back = a->back < s->queries - 1 ? a->back : INT64_MAX;
    s->ahead = a->ahead < s->keys - 1 ? a->ahead : INT64_MAX;
    s->scale = (float)a->scale;
    /* rows that see no key are left to the operators */
    return s->queries <= INT32_MAX && s->keys <= INT32_MAX &&
           (s->back == INT64_MAX || s->queries <= s->keys);
}

/* ---- which groups ---- */

static bool is_inner(const struct ap_attention_form *a, int v)
{
    for (int t = 0; t < SDPA_STATS; t++)
        if (a->of[t].node == v)
            return false;
    return true;
}

/* Whether the dims depend on the microbatch at hand, which is not known yet. */
static bool is_of_microbatch(const struct exec *x, const struct ap_attention_form *a)
{
    for (int v = a->first; v < a->end; v++) {
        const struct ap_attrs *n = x->prog->local.nodes[v].attrs;
        if (n->global && ap_layout_per_microbatch(&x->prog->mesh, &n->layout))
            return true;
    }
    return false;
}

static bool take(struct exec *x, int first, struct attention_call *c);

/* Whether the program has a place for statistics that the call writes, or reads. */
static bool has_stats(const struct attention_call *c)
{
    return c->handed || (!c->a.backward && c->a.stats >= 0);
}

/* Whether every reader of an inner value is in the group, or in one of gradients that is
 * taken and computes it again. */
static bool keeps_values(struct exec *x, const struct ap_attention_form *a)
{
    const struct ap_graph *g = &x->prog->local;
    int known = -1; /* the first node of a group that is taken */
    for (int v = a->first; v < a->end; v++) {
        if (!is_inner(a, v) || v == a->stats)
            continue;
        if (ap_graph_is_result(g, v))
            return false;
        for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
            int user = g->users[u];
            if (user >= a->first && user < a->end)
                continue;
            while (g->nodes[user].attrs->attention == AP_ATTENTION_NEXT)
                user--;
            if (user == known)
                continue;
            struct attention_call c;
            if (a->backward || user < a->end ||
                g->nodes[user].attrs->attention != AP_ATTENTION_FIRST ||
                !take(x, user, &c) || !c.a.backward)
                return false;
            known = user;
        }
    }
    return true;
}

static bool has_readers(const struct ap_graph *g, const struct ap_attention_form *a)
{
    for (int i = 0; i < 4; i++) {
        const int v = a->of[results[i]].node;
        if (v >= 0 && g->user_start[v] == g->user_start[v + 1] &&
            !ap_graph_is_result(g, v))
            return false;
    }
    return true;
}

static bool has_type(const struct ap_graph *g, const struct ap_attention_form *a)
{
    const enum ap_dtype type = g->nodes[a->of[SDPA_Q].node].shape.dtype;
    return type == AP_BF16 || type == AP_F16;
}

/* Plans of a call: a backward call that nothing is handed to has both. */
static bool find_plans(struct attention_call *c)
{
    struct sdpa_shape forward = c->shape;
    if (c->a.backward) {
        c->shape.backward = true;
        if (!c->handed)
            make_dense(&c->shape, c->shape.value_width, c->shape.stride[SDPA_O]);
        forward = c->shape;
        forward.backward = false;
        for (int t = SDPA_DO; t < SDPA_STATS; t++)
            memset(forward.stride[t], 0, sizeof forward.stride[t]);
    }
    c->forward = c->handed ? NULL : sdpa_plan(&forward);
    if (!c->handed && !c->forward)
        return false;
    c->backward = c->a.backward ? sdpa_plan(&c->shape) : NULL;
    return !c->a.backward || c->backward;
}

/* The group from node `first` on, if a plan computes it. */
static bool take(struct exec *x, int first, struct attention_call *c)
{
    const struct ap_graph *g = &x->prog->local;
    memset(c, 0, sizeof *c); /* shapes are compared byte by byte */
    if (!ap_attention_form_of(g, first, &c->a) || !has_type(g, &c->a) ||
        !has_readers(g, &c->a) || is_of_microbatch(x, &c->a) ||
        !ap_attention_probe(x->arena, x->prog, &c->a) || !keeps_values(x, &c->a))
        return false;
    c->handed = c->a.total >= 0;
    if (has_stats(c) && !has_dense_rows(g, &c->a))
        return false;
    for (int i = c->a.backward; i < 4; i++) /* o is no result of a backward group */
        take_order(g, &c->a.of[results[i]]);
    return set_shape(g, c) && find_plans(c);
}

int cuda_attention(struct exec *x, int first, void **state)
{
    struct attention_call c;
    if (cuda_dev.opts.compile_for || !take(x, first, &c))
        return 0;
    if (!x->permuted) {
        x->permuted = AP_NEW_N(x->arena, x->prog->local.n_nodes + 1, int);
        memset(x->permuted, -1, sizeof *x->permuted * (size_t)x->prog->local.n_nodes);
    }
    for (int i = 0; i < 4; i++) {
        const struct ap_attention_tensor *t = &c.a.of[results[i]];
        if (t->node >= 0 && t->order != t->node)
            x->permuted[t->node] = t->order;
    }
    *state = ap_arena_dup(x->arena, &c, sizeof c);
    return c.a.end - c.a.first;
}

/* ---- the call ---- */

static void attention_unbind(struct attention_call *c)
{
    for (int i = 0; i < 2; i++)
        if (c->pack[i])
            sdpa_unbind(c->pack[i]);
    c->pack[0] = c->pack[1] = NULL;
}

static void attention_close(struct exec *x, void *state)
{
    (void)x;
    attention_unbind(state);
}

/* The scratch memory has an address only when the first step runs. */
static void bind(const struct exec *x, struct attention_call *c)
{
    char *at[N_SDPA];
    attention_unbind(c);
    for (int t = 0; t < N_SDPA; t++)
        at[t] = cuda_place(x, c->at[t]);
    if (c->forward)
        c->pack[0] = sdpa_bind(c->forward, at, cuda_place(x, c->workspace));
    if (c->backward)
        c->pack[1] = sdpa_bind(c->backward, at, cuda_place(x, c->workspace));
    c->scratch = x->scratch;
}

static void attention_run(struct exec *x, void *state)
{
    struct attention_call *c = state;
    if ((!c->pack[0] && !c->pack[1]) || c->scratch != x->scratch)
        bind(x, c);
    if (c->forward)
        sdpa_run(c->forward, c->pack[0]);
    if (c->backward)
        sdpa_run(c->backward, c->pack[1]);
}

static bool is_written(const struct attention_call *c, int t)
{
    return t >= SDPA_DQ || (t == SDPA_O && !c->a.backward);
}

/* Tensors that are packed lie in scratch memory, the others where the program has them.
 */
static void place_tensors(struct exec *x, struct cuda_call *list,
                          struct attention_call *c, int64_t *scratch)
{
    const struct sdpa_shape *s = &c->shape;
    for (int t = 0; t < SDPA_STATS; t++) {
        if (c->a.of[t].node < 0)
            continue;
        c->at[t] = at_memory(x->value[c->a.of[t].node]);
        if (!is_packed(c, t))
            continue;
        const struct cuda_at from = c->at[t];
        c->at[t] = at_scratch(exec_take(scratch, s->batch * s->stride[t][0] * 2));
        if (!is_written(c, t))
            cuda_add_box(x, list, &c->box[t], c->at[t], from, 2);
    }
}

/* What a packed result is copied back by. */
static struct box reversed(const struct box *b)
{
    struct box r = *b;
    memcpy(r.src, b->dst, sizeof r.src);
    memcpy(r.dst, b->src, sizeof r.dst);
    return r;
}

int cuda_attention_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    struct attention_call *c = call->state;
    const struct sdpa_shape *s = &c->shape;
    const int64_t rows = s->batch * s->heads * s->queries;
    int64_t scratch = 0, workspace = c->forward ? sdpa_workspace(c->forward) : 0;
    struct cuda_call *list = cuda_call_new(x, call);

    (void)err;
    place_tensors(x, list, c, &scratch);
    call->again = c->forward && c->backward;
    c->at[SDPA_STATS] = has_stats(c) ? at_memory(x->value[c->a.stats])
                                     : at_scratch(exec_take(&scratch, rows * 4));
    if (c->backward) {
        if (!c->handed)
            c->at[SDPA_O] = at_scratch(exec_take(&scratch, rows * s->value_width * 2));
        c->at[SDPA_SUM] = at_scratch(exec_take(&scratch, rows * 4));
        c->at[SDPA_ACCUM] = at_scratch(exec_take(&scratch, rows * s->width * 4));
        if (sdpa_workspace(c->backward) > workspace)
            workspace = sdpa_workspace(c->backward);
    }
    c->workspace = cuda_workspace(&scratch, workspace);
    exec_need_scratch(x, scratch);
    cuda_add(x, list, attention_run, c, attention_close);
    for (int t = SDPA_O; t <= SDPA_DQ; t++)
        if (is_packed(c, t) && is_written(c, t)) {
            const struct box b = reversed(&c->box[t]);
            cuda_add_box(x, list, &b, at_memory(x->value[c->a.of[t].node]), c->at[t], 2);
        }
    return 0;
}

#else

int cuda_attention(struct exec *x, int first, void **state)
{
    (void)x, (void)first, (void)state;
    return 0;
}

void cuda_attention_place(struct exec *x, const bool *aside)
{
    (void)x, (void)aside;
}

int cuda_attention_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    (void)x, (void)call, (void)err;
    return 0;
}

#endif
