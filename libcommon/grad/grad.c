/*
 * Reverse-mode differentiation: nodes that lie between wrt and the loss, through values
 * that carry a gradient, are visited from the loss back; each passes its gradient to its
 * operands by its operator's rule (grad_rules_*.c), where the gradients of several uses
 * are added. Each node is visited once. Then values that cost next to nothing are
 * recomputed for the backward pass (grad_recompute.c), and masks that it shares with the
 * forward pass are made there (ap_graph_keep_masks). Linear.
 */
#include "grad/grad_impl.h"

#include <string.h>

/* The column "gradient" of ops.def: NONE for leaves, operators on integers or predicates,
 * and select-and-scatter, which has no derivative yet. */
#define GRAD_UNARY(...)  grad_expression
#define GRAD_BINARY(...) grad_expression
#define GRAD_RULE(rule)  grad_##rule
#define GRAD_FLAT        grad_flat
#define GRAD_NONE        NULL
grad_rule *const grad_rules[AP_N_OPS] = {
#define AP_OP(id, name, arity, class, flops, types, precision, gradient, jax) \
    [AP_OP_##id] = GRAD_##gradient,
#include "graph/ops.def"
#undef AP_OP
};

int grad_refuse(const struct grad *g, int i, const char *why)
{
    const struct ap_node *n = &g->b->nodes[i];
    return ap_err_set(g->err, "cannot differentiate %s (%s) %s", ap_ops[n->op].name,
                      n->name, why);
}

void grad_add(struct grad *g, int x, int d)
{
    if (!g->live[x] || d < 0)
        return;
    if (g->of[x] >= 0) {
        const char *scope = g->b->scope;
        g->b->scope = g->b->nodes[x].scope;
        d = ap_build_binary(g->b, AP_OP_ADD, g->of[x], d);
        g->b->scope = scope;
    }
    g->of[x] = d;
}

/* ---- small expressions ---- */

int grad_zeros(struct grad *g, const struct ap_shape *like)
{
    return ap_build_full(g->b, like, 0);
}

int grad_mul(struct grad *g, int x, int y)
{
    return ap_build_binary(g->b, AP_OP_MULTIPLY, x, y);
}

int grad_where(struct grad *g, int pred, int dy)
{
    struct ap_shape s = *ap_build_shape_of(g->b, dy);
    return ap_build_select(g->b, pred, dy, grad_zeros(g, &s));
}

int grad_sum_all(struct grad *g, int x)
{
    int64_t dims[AP_MAX_RANK];
    int rank = ap_build_shape_of(g->b, x)->rank;
    for (int d = 0; d < rank; d++)
        dims[d] = d;
    return rank ? ap_build_reduce(g->b, x, AP_RED_SUM, rank, dims) : x;
}

int grad_spread(struct grad *g, int x, const struct ap_shape *like,
                const struct ap_ints *dims)
{
    int64_t map[AP_MAX_RANK];
    int n = 0;
    for (int d = 0; d < like->rank; d++)
        if (!grad_listed(dims, d))
            map[n++] = d;
    if (n == like->rank)
        return x;
    return ap_build_broadcast(g->b, x, like->rank, like->dims, map);
}

/* ---- the walk ---- */

static bool carries(const struct ap_shape *s)
{
    if (s->dtype == AP_TUPLE)
        return true;
    return (ap_dtype_is_float(s->dtype) || s->dtype == AP_C64 || s->dtype == AP_C128) &&
           ap_shape_elems(s) > 0;
}

static bool *mark(const struct ap_build *b, int n_wrt, const int *wrt)
{
    bool *live = AP_NEW_N(b->arena, b->n + 1, bool);

    for (int i = 0; i < n_wrt; i++)
        live[wrt[i]] = carries(&b->nodes[wrt[i]].shape);
    for (int i = 0; i < b->n; i++) {
        const struct ap_node *n = &b->nodes[i];
        if (live[i] || grad_rules[n->op] == grad_flat || !carries(&n->shape))
            continue;
        for (int k = 0; k < n->n_in; k++)
            live[i] |= live[n->in[k]];
    }
    return live;
}

static int visit(struct grad *g, int i)
{
    const struct ap_node *n = &g->b->nodes[i];

    if (ap_ops[n->op].class == AP_CLASS_LEAF) /* a wrt */
        return 0;
    if (n->shape.dtype == AP_C64 || n->shape.dtype == AP_C128)
        return grad_refuse(g, i, "of complex numbers");
    if (!grad_rules[n->op])
        return grad_refuse(g, i, "at all");
    g->b->scope = n->scope;
    return grad_rules[n->op](g, i, g->of[i]);
}

int ap_grad(struct ap_build *b, int loss, int n_wrt, const int *wrt, int *grads,
            struct ap_err *err)
{
    const struct ap_node *top = &b->nodes[loss];
    struct grad g = {.b = b, .err = err};
    const char *scope = b->scope;
    enum ap_phase phase = b->phase;
    int n = b->n, rc = 0;

    if (top->shape.rank || !ap_dtype_is_float(top->shape.dtype))
        return ap_err_set(err, "the loss (%s) is not a float scalar", top->name);
    g.live = mark(b, n_wrt, wrt);
    g.of = AP_NEW_N(b->arena, n, int);
    g.part = AP_NEW_N(b->arena, n, int *);
    memset(g.of, -1, (size_t)n * sizeof *g.of);
    b->phase = AP_BACKWARD;
    b->scope = top->scope;
    if (g.live[loss])
        g.of[loss] = ap_build_scalar(b, top->shape.dtype, 1);
    for (int i = loss; i >= 0 && rc == 0; i--)
        if (g.live[i] && (g.of[i] >= 0 || g.part[i]))
            rc = visit(&g, i);
    for (int i = 0; i < n_wrt; i++)
        grads[i] = g.of[wrt[i]];
    grad_recompute(b, n, n_wrt, grads);
    ap_graph_keep_masks(b->nodes, b->n);
    b->scope = scope;
    b->phase = phase;
    return rc;
}
