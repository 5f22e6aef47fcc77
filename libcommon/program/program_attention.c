/*
 * The values that an attention's forward pass keeps for its backward pass.
 *
 * Problem: the gradients of softmax(c q k') v need of each row of scores z = c q k' the
 * logarithm of its sum of exponentials, and of each row D = sum_j p_j dp_j, where p are
 * the weights and dp = dO v'. Programs hand on a row's maximum m and sum l, and write D
 * as a sum over scores. Kernels that keep no scores (Dao et al., "FlashAttention",
 * NeurIPS 2022, algorithm 4) take one number and the result o instead:
 *
 *   lambda = m + log l,   p = exp(z - lambda),   D = sum_d dO_d o_d
 *
 * for sum_j p_j (dO v_j) = dO (sum_j p_j v_j). Without them they have to run the forward
 * pass again. Idea: the forward group gets a value more, lambda, of a number per row,
 * which has a buffer as any other; in the backward group lambda takes the place of m, one
 * that of l (any m and its l give the same weights: those of lambda are exp(z - lambda)
 * and 1), and the sum over the width that of the sum over scores. o is kept for the
 * gradient of what reads it anyway; where it is not, or where no forward group with equal
 * operands stands before the backward group, that one stays as it is. Of several forward
 * groups the nearest is taken: with recomputation, the one in the backward pass. The
 * function of the new group is compared with the gradients once more (attention_probe.c).
 * Cost: probes, and linear.
 */
#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "graph/element.h"
#include "program/attention_form.h"

enum { NONE = -1 };

#define MOST_DEPTH 16 /* operators one after the other in a factor, or of views */

/* The numbers per row of a softmax: scores have `shift` subtracted, `sum` is that of
 * their exponentials. */
struct softmax {
    int shift, sum;
};

/* A backward group and the forward group that hands it o and the statistics. */
struct pair {
    struct ap_attention_form forward, backward;
    struct softmax made, read; /* in the forward group; by the backward group */
    struct ap_attention_tensor o;
};

struct handing {
    struct ap_arena *arena;
    struct ap_program *prog;
    const struct ap_graph *g; /* as it was */
    int n_forms, cap_forms, n_pairs;
    struct ap_attention_form *form;
    struct pair *pair;
    bool *refused;   /* [pair] */
    const int *turn; /* [group], as it was */
    /* the new list */
    int n, cap, cap_source;
    struct ap_node *node;
    int *source;
    int *to;      /* [node as it was] */
    int *pair_of; /* [node as it was]: of a backward group; NONE */
    int *stats;   /* [first node of a group]: what it passes on, or reads; NONE */
};

static const struct ap_node *at(const struct handing *h, int v)
{
    return &h->g->nodes[v];
}

static bool is_inside(const struct ap_attention_form *a, int v)
{
    return v >= a->first && v < a->end;
}

/* ---- softmaxes ---- */

static int without_converts(const struct handing *h, int v)
{
    while (at(h, v)->op == AP_OP_CONVERT)
        v = at(h, v)->in[0];
    return v;
}

/* What is subtracted from scores, of which v is the exponential; NONE. */
static int shift_of(const struct handing *h, int v)
{
    if (at(h, v)->op != AP_OP_EXPONENTIAL)
        return NONE;
    v = without_converts(h, at(h, v)->in[0]);
    if (at(h, v)->op != AP_OP_SUBTRACT)
        return NONE;
    const struct ap_node *row = at(h, at(h, v)->in[1]);
    return row->op == AP_OP_BROADCAST ? row->in[0] : NONE;
}

/* Whether v sums over the keys of scores. */
static bool sums_keys(const struct handing *h, const struct ap_attention_form *a, int v)
{
    const struct ap_node *n = at(h, v);
    return n->op == AP_OP_REDUCE && n->n_in == 2 && n->attrs->dimensions.n == 1 &&
           n->attrs->dimensions.v[0] == a->key &&
           n->shape.rank == at(h, a->scores)->shape.rank - 1 &&
           h->g->reducers[n->attrs->to_apply].red == AP_RED_SUM;
}

static bool find_softmax(const struct handing *h, const struct ap_attention_form *a,
                         struct softmax *s)
{
    for (int v = a->first; v < a->end; v++) {
        if (!sums_keys(h, a, v))
            continue;
        s->sum = v;
        s->shift = shift_of(h, without_converts(h, at(h, v)->in[0]));
        if (s->shift == NONE)
            continue;
        const enum ap_dtype type = at(h, v)->shape.dtype;
        return (type == AP_F32 || type == AP_F64) &&
               ap_shape_equal(&at(h, v)->shape, &at(h, s->shift)->shape);
    }
    return false;
}

/* The forward group whose rows a backward group reads; itself, if it reads none. */
static const struct ap_attention_form *rows_from(const struct handing *h,
                                                 const struct ap_attention_form *b)
{
    for (int v = b->first; v < b->end; v++)
        for (int k = 0; k < at(h, v)->n_in; k++)
            for (int i = 0; i < h->n_forms; i++)
                if (!h->form[i].backward && is_inside(&h->form[i], at(h, v)->in[k]) &&
                    at(h, v)->in[k] != h->form[i].of[AP_ATTENTION_O].node)
                    return &h->form[i];
    return b;
}

/* ---- what the sum's place is taken by: one ---- */

static bool is_one(const struct handing *h, const struct pair *p, int v, int depth)
{
    const struct ap_node *n = at(h, v);
    const struct ap_literal *l = &n->attrs->literal;
    unsigned char one[16];

    if (v == p->read.sum)
        return true;
    if (depth == MOST_DEPTH || n->shape.dtype == AP_TUPLE)
        return false;
    switch ((int)n->op) {
    case AP_OP_CONSTANT:
        return l->splat && l->data && ap_dtype_is_float(n->shape.dtype) &&
               ap_elem_from_double(n->shape.dtype, 1, one) &&
               !memcmp(one, l->data, (size_t)ap_dtype_size(n->shape.dtype));
    case AP_OP_BROADCAST:
    case AP_OP_CONVERT:
    case AP_OP_RESHAPE:
        return is_one(h, p, n->in[0], depth + 1);
    case AP_OP_DIVIDE:
    case AP_OP_MULTIPLY:
        return is_one(h, p, n->in[0], depth + 1) && is_one(h, p, n->in[1], depth + 1);
    }
    return false;
}

/* The operand that v is, times one, or divided by it; NONE. */
static int times_one(const struct handing *h, const struct pair *p, int v)
{
    const struct ap_node *n = at(h, v);
    if (n->op != AP_OP_DIVIDE && n->op != AP_OP_MULTIPLY)
        return NONE;
    for (int k = 1; k >= (n->op == AP_OP_DIVIDE); k--)
        if (is_one(h, p, n->in[k], 0) &&
            ap_shape_equal(&at(h, n->in[1 - k])->shape, &n->shape))
            return n->in[1 - k];
    return NONE;
}

/* ---- what o's place is taken in ---- */

struct factors {
    int n_weights, n_products, sign;
};

/* Of what is multiplied in v: weights, and dO v'; false: something else, too. */
static bool find_factors(const struct handing *h, const struct pair *p, int v, int depth,
                         struct factors *f)
{
    const struct ap_node *n = at(h, v);
    const int same = times_one(h, p, v);

    if (depth == MOST_DEPTH)
        return false;
    if (v == p->backward.products)
        return ++f->n_products == 1;
    if (shift_of(h, v) == p->read.shift)
        return ++f->n_weights == 1;
    if (same != NONE || n->op == AP_OP_CONVERT)
        return find_factors(h, p, same != NONE ? same : n->in[0], depth + 1, f);
    if (n->op == AP_OP_NEGATE) {
        f->sign = -f->sign;
        return find_factors(h, p, n->in[0], depth + 1, f);
    }
    return n->op == AP_OP_MULTIPLY && find_factors(h, p, n->in[0], depth + 1, f) &&
           find_factors(h, p, n->in[1], depth + 1, f);
}

/* 1 or -1: v is the sum of p dp, or less than nothing by it; 0: something else. */
static int sign_of_total(const struct handing *h, const struct pair *p, int v)
{
    struct factors f = {.sign = 1};
    if (!sums_keys(h, &p->backward, v) || !ap_dtype_is_float(at(h, v)->shape.dtype) ||
        !find_factors(h, p, at(h, v)->in[0], 0, &f))
        return 0;
    return f.n_weights == 1 && f.n_products == 1 ? f.sign : 0;
}

static bool has_total(const struct handing *h, const struct pair *p)
{
    bool any = false;
    for (int v = p->backward.first; v < p->backward.end; v++)
        any |= sign_of_total(h, p, v) != 0;
    return any;
}

/* ---- where o is ---- */

/* Whether v, or a view of it, is kept for a reader in the backward pass. */
static bool is_kept(const struct handing *h, int v, int depth)
{
    for (int u = h->g->user_start[v]; u < h->g->user_start[v + 1]; u++) {
        const int user = h->g->users[u];
        if (ap_program_is_view(h->g, user)
                ? depth < MOST_DEPTH && is_kept(h, user, depth + 1)
                : at(h, user)->phase == AP_BACKWARD)
            return true;
    }
    return false;
}

static int stretch(const struct handing *h, int v)
{
    const int group = at(h, v)->group;
    return (group >= h->prog->each_lo) + (group >= h->prog->each_hi);
}

/* Whether v, after node `first`, may stand before it: a group of its own, of what it
 * reads there already. */
static bool can_be_early(const struct handing *h, int v, int first)
{
    const int group = at(h, v)->group;
    return at(h, v)->in[0] < first && at(h, v - 1)->group != group &&
           (v + 1 == h->g->n_nodes || at(h, v + 1)->group != group) &&
           h->turn[group] == h->turn[at(h, first)->group];
}

/* The result as it is in memory: where a transpose alone reads it, the transpose. */
static bool find_result(const struct handing *h, struct pair *p)
{
    const struct ap_graph *g = h->g;
    const int first = p->backward.first;
    p->o = p->forward.of[AP_ATTENTION_O];
    const int o = p->o.node, user = g->user_start[o];
    if (g->user_start[o + 1] == user + 1 && !ap_graph_is_result(g, o) &&
        at(h, g->users[user])->op == AP_OP_TRANSPOSE) {
        const struct ap_node *n = at(h, g->users[user]);
        p->o.node = p->o.order = g->users[user];
        for (int d = 0; d < n->shape.rank; d++)
            p->o.is[d] = p->forward.of[AP_ATTENTION_O].is[n->attrs->dimensions.v[d]];
    }
    return (p->o.node < first || can_be_early(h, p->o.node, first)) &&
           stretch(h, p->forward.first) == stretch(h, first) &&
           stretch(h, p->o.node) == stretch(h, first) && is_kept(h, p->o.node, 0);
}

/* ---- pairs ---- */

static void find_forms(struct handing *h)
{
    for (int v = 0; v < h->g->n_nodes; v++) {
        struct ap_attention_form a;
        if (at(h, v)->attrs->attention != AP_ATTENTION_FIRST ||
            !ap_attention_form_of(h->g, v, &a) ||
            !ap_attention_probe(h->arena, h->prog, &a))
            continue;
        AP_ROOM_IN(h->arena, h->form, h->n_forms, h->cap_forms);
        h->form[h->n_forms++] = a;
    }
}

/* The nearest forward group before backward group i that can hand it what it needs. */
static bool find_pair(const struct handing *h, int i, struct pair *p)
{
    p->backward = h->form[i];
    if (!p->backward.backward || p->backward.total >= 0 ||
        !find_softmax(h, rows_from(h, &p->backward), &p->read))
        return false;
    for (i--; i >= 0; i--) {
        p->forward = h->form[i];
        if (ap_attention_same(h->g, &p->forward, &p->backward) &&
            find_softmax(h, &p->forward, &p->made) &&
            ap_shape_equal(&at(h, p->made.sum)->shape, &at(h, p->read.sum)->shape) &&
            find_result(h, p) && has_total(h, p))
            return true;
    }
    return false;
}

static void find_pairs(struct handing *h)
{
    h->pair = AP_NEW_N(h->arena, h->n_forms + 1, struct pair);
    h->refused = AP_NEW_N(h->arena, h->n_forms + 1, bool);
    for (int i = 0; i < h->n_forms; i++)
        h->n_pairs += find_pair(h, i, &h->pair[h->n_pairs]);
}

/* ---- the new list ---- */

static int put(struct handing *h, const struct ap_node *n, int source)
{
    int n_source = h->n;
    AP_ROOM_IN(h->arena, h->node, h->n, h->cap);
    AP_ROOM_IN(h->arena, h->source, n_source, h->cap_source);
    h->node[h->n] = *n;
    h->source[h->n] = source;
    return h->n++;
}

/* A member of node `like`'s group; b: NONE, of one operand. */
static int put_new(struct handing *h, int like, enum ap_op op, struct ap_shape shape,
                   struct ap_attrs *attrs, int a, int b)
{
    const int in[2] = {a, b};
    struct ap_node n = *at(h, like);
    if (!attrs)
        attrs = ap_arena_dup(h->arena, &ap_attrs_default, sizeof *attrs);
    attrs->attention = AP_ATTENTION_NEXT;
    n.op = op;
    n.n_in = b == NONE ? 1 : 2;
    n.in = ap_arena_dup(h->arena, in, sizeof in);
    n.shape = shape;
    n.attrs = attrs;
    n.name = ap_arena_printf(h->arena, "%s.handed.%d", n.name, h->n);
    return put(h, &n, h->prog->source[like]);
}

/* v with dimensions such that it has want[d] where it has is[d]; v if they are the same.
 */
static int put_turned(struct handing *h, int like, int v, const int8_t *is,
                      const int8_t *want)
{
    const struct ap_shape *from = &h->node[v].shape;
    struct ap_attrs *attrs = ap_arena_dup(h->arena, &ap_attrs_default, sizeof *attrs);
    int64_t *order = AP_NEW_N(h->arena, from->rank + 1, int64_t),
            *dims = AP_NEW_N(h->arena, from->rank + 1, int64_t);
    struct ap_shape shape = *from;

    if (!memcmp(is, want, (size_t)from->rank))
        return v;
    for (int d = 0; d < from->rank; d++) {
        while (is[order[d]] != want[d])
            order[d]++;
        dims[d] = from->dims[order[d]];
    }
    attrs->dimensions = (struct ap_ints){from->rank, order};
    shape.dims = dims;
    return put_new(h, like, AP_OP_TRANSPOSE, shape, attrs, v, NONE);
}

/* The order of a row's number: of the scores; passed on: with queries last, and what keys
 * have before what they have not, as kernels want it. */
static void row_order(const struct handing *h, const struct ap_attention_form *a,
                      int8_t *is, int8_t *handed)
{
    const struct ap_attention_tensor *keys = &a->of[AP_ATTENTION_K];
    int n = 0, n_handed = 0;

    for (int d = 0; d < at(h, a->scores)->shape.rank; d++)
        if (d != a->key)
            is[n++] = d == a->query ? AP_OF_QUERIES : (int8_t)d;
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < n; i++) {
            const bool shared =
                memchr(keys->is, (uint8_t)is[i], (size_t)at(h, keys->node)->shape.rank);
            if ((is[i] == AP_OF_QUERIES ? 2 : !shared) == pass)
                handed[n_handed++] = is[i];
        }
}

/* lambda */
static int put_stats(struct handing *h, const struct pair *p)
{
    const struct softmax *s = &p->made;
    const struct ap_shape *row = &at(h, s->sum)->shape;
    int8_t is[AP_MAX_RANK], handed[AP_MAX_RANK];
    const int log = put_new(h, s->sum, AP_OP_LOG, *row, NULL, h->to[s->sum], NONE);
    const int sum = put_new(h, s->sum, AP_OP_ADD, *row, NULL, h->to[s->shift], log);
    row_order(h, &p->forward, is, handed);
    return put_turned(h, s->sum, sum, is, handed);
}

/* It where the backward group reads it, in the order of the scores. */
static int read_stats(struct handing *h, const struct pair *p, int like)
{
    int *stats = &h->stats[p->backward.first];
    int8_t is[AP_MAX_RANK], handed[AP_MAX_RANK];
    row_order(h, &p->forward, is, handed);
    if (*stats == NONE)
        *stats = put_turned(h, like, h->stats[p->forward.first], handed, is);
    return *stats;
}

static int put_converted(struct handing *h, int like, int v, enum ap_dtype type)
{
    struct ap_shape shape = h->node[v].shape;
    if (shape.dtype == type)
        return v;
    shape.dtype = type;
    return put_new(h, like, AP_OP_CONVERT, shape, NULL, v, NONE);
}

/* D in place of node v: sum of dO o over the width. */
static int put_total(struct handing *h, const struct pair *p, int v, int sign)
{
    const struct ap_attention_tensor *t = &p->backward.of[AP_ATTENTION_DO];
    const struct ap_node *old = at(h, v);
    const int d_o = put_converted(h, v, h->to[t->node], old->shape.dtype);
    int o = put_turned(h, v, h->to[p->o.node], p->o.is, t->is);
    o = put_converted(h, v, o, old->shape.dtype);
    const int product = put_new(h, v, AP_OP_MULTIPLY, h->node[d_o].shape, NULL, d_o, o);
    struct ap_shape shape = h->node[d_o].shape;
    struct ap_attrs *attrs = ap_arena_dup(h->arena, &ap_attrs_default, sizeof *attrs);
    int64_t *dims = AP_NEW_N(h->arena, shape.rank + 1, int64_t),
            *over = AP_NEW_N(h->arena, 1, int64_t);
    int8_t is[AP_MAX_RANK], want[AP_MAX_RANK], handed[AP_MAX_RANK];

    while (t->is[*over] != AP_OF_WIDTH)
        ++*over;
    for (int d = 0, n = 0; d < shape.rank; d++)
        if (d != *over) {
            is[n] = t->is[d];
            dims[n++] = shape.dims[d];
        }
    shape.rank--;
    shape.dims = dims;
    attrs->dimensions = (struct ap_ints){1, over};
    attrs->to_apply = old->attrs->to_apply;
    int sum = put_new(h, v, AP_OP_REDUCE, shape, attrs, product, h->to[old->in[1]]);
    row_order(h, &p->backward, want, handed);
    sum = put_turned(h, v, sum, is, want);
    return sign > 0 ? sum : put_new(h, v, AP_OP_NEGATE, old->shape, NULL, sum, NONE);
}

/* Node v of a backward group. */
static int put_backward(struct handing *h, const struct pair *p, int v)
{
    const int same = times_one(h, p, v), sign = sign_of_total(h, p, v);
    struct ap_node n = *at(h, v);
    int *in = AP_NEW_N(h->arena, n.n_in + 1, int);

    if (same != NONE)
        return h->to[same];
    if (sign != 0)
        return put_total(h, p, v, sign);
    for (int k = 0; k < n.n_in; k++)
        in[k] = n.op == AP_OP_BROADCAST && n.in[k] == p->read.shift ? read_stats(h, p, v)
                                                                    : h->to[n.in[k]];
    n.in = in;
    return put(h, &n, h->prog->source[v]);
}

static int put_same(struct handing *h, int v)
{
    struct ap_node n = *at(h, v);
    int *in = AP_NEW_N(h->arena, n.n_in + 1, int);
    for (int k = 0; k < n.n_in; k++)
        in[k] = h->to[n.in[k]];
    n.in = in;
    return put(h, &n, h->prog->source[v]);
}

static void make_list(struct handing *h)
{
    h->n = 0;
    for (int v = 0; v < h->g->n_nodes; v++)
        h->pair_of[v] = h->stats[v] = h->to[v] = NONE;
    for (int i = 0; i < h->n_pairs; i++)
        for (int v = h->pair[i].backward.first;
             v < h->pair[i].backward.end && !h->refused[i]; v++)
            h->pair_of[v] = i;
    for (int v = 0; v < h->g->n_nodes; v++) {
        const struct pair *p = h->pair_of[v] == NONE ? NULL : &h->pair[h->pair_of[v]];
        if (p && v == p->backward.first && h->to[p->o.node] == NONE)
            h->to[p->o.node] = put_same(h, p->o.node);
        if (h->to[v] == NONE)
            h->to[v] = p ? put_backward(h, p, v) : put_same(h, v);
        for (int i = 0; i < h->n_pairs; i++) {
            const struct ap_attention_form *f = &h->pair[i].forward;
            if (v == f->end - 1 && !h->refused[i] && h->stats[f->first] == NONE)
                h->stats[f->first] = put_stats(h, &h->pair[i]);
        }
    }
}

/* Whether a new node is of a backward group with a pair: what nobody reads there any more
 * is left out. */
static void drop_unread(struct handing *h)
{
    bool *groups = AP_NEW_N(h->arena, h->g->n_groups + 1, bool),
         *alive = AP_NEW_N(h->arena, h->n + 1, bool);
    int *to = AP_NEW_N(h->arena, h->n + 1, int), n = 0;

    for (int i = 0; i < h->n_pairs; i++)
        groups[at(h, h->pair[i].backward.first)->group] |= !h->refused[i];
    for (int r = 0; r < h->g->n_results; r++)
        alive[h->to[h->g->results[r].node]] = true;
    for (int v = h->n - 1; v >= 0; v--) {
        const struct ap_node *node = &h->node[v];
        alive[v] |= node->group < 0 || !groups[node->group];
        for (int k = 0; alive[v] && k < node->n_in; k++)
            alive[node->in[k]] = true;
    }
    for (int v = 0; v < h->n; v++) {
        to[v] = n;
        if (!alive[v])
            continue;
        int *in = AP_NEW_N(h->arena, h->node[v].n_in + 1, int);
        for (int k = 0; k < h->node[v].n_in; k++)
            in[k] = to[h->node[v].in[k]];
        h->node[n] = h->node[v];
        h->node[n].in = in;
        h->source[n++] = h->source[v];
    }
    for (int v = 0; v < h->g->n_nodes; v++)
        h->to[v] = to[h->to[v]];
    h->n = n;
}

/* Groups' numbers rise in the new order; those that nodes have are the same ones. */
static void number_groups(struct handing *h)
{
    const int n_groups = h->g->n_groups;
    bool *has = AP_NEW_N(h->arena, n_groups + 1, bool);
    int *turn = ap_arena_dup(h->arena, h->turn, sizeof *turn * (size_t)n_groups);
    int next = NONE, last = NONE;

    for (int v = 0; v < h->n; v++)
        has[h->node[v].group] = true;
    for (int v = 0; v < h->n; v++) {
        const int group = h->node[v].group;
        for (next += group != last; !has[next]; next++)
            ;
        last = group;
        h->node[v].group = next;
        turn[next] = h->turn[group];
    }
    h->prog->turn = turn;
}

static void take_list(struct handing *h)
{
    struct ap_node *nodes =
        ap_arena_dup(h->arena, h->node, sizeof *h->node * (size_t)h->n);
    struct ap_err err = {0};

    h->prog->source = ap_arena_dup(h->arena, h->source, sizeof *h->source * (size_t)h->n);
    const int rc = ap_graph_replace(h->arena, &h->prog->local, nodes, h->n, h->to, &err);
    assert(rc == 0), (void)rc;
}

/* Whether all new groups compute the gradients, of what they are handed; others are
 * refused. */
static bool are_right(struct handing *h)
{
    bool all = true;
    for (int i = 0; i < h->n_pairs; i++) {
        struct ap_attention_form a;
        if (h->refused[i] ||
            (ap_attention_form_of(&h->prog->local, h->to[h->pair[i].backward.first],
                                  &a) &&
             a.total >= 0 && ap_attention_probe(h->arena, h->prog, &a)))
            continue;
        h->refused[i] = true;
        all = false;
    }
    return all;
}

void ap_program_attention(struct ap_arena *arena, struct ap_program *prog)
{
    const struct ap_graph before = prog->local;
    const int *source = prog->source;
    struct handing h = {.arena = arena, .prog = prog, .g = &before, .turn = prog->turn};
    bool done;

    find_forms(&h);
    find_pairs(&h);
    h.to = AP_NEW_N(arena, before.n_nodes + 1, int);
    h.pair_of = AP_NEW_N(arena, before.n_nodes + 1, int);
    h.stats = AP_NEW_N(arena, before.n_nodes + 1, int);
    done = h.n_pairs == 0;
    while (!done) {
        prog->local = before;
        prog->source = source;
        make_list(&h);
        drop_unread(&h);
        number_groups(&h);
        take_list(&h);
        done = are_right(&h);
    }
}
