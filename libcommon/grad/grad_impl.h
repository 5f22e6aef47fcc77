/* Inside differentiation only: the interface of the rules (grad_rules_*.c). */
#ifndef AP_GRAD_IMPL_H
#define AP_GRAD_IMPL_H

#include "grad/grad.h"

struct grad {
    struct ap_build *b;
    struct ap_err *err;
    const bool *live; /* per node: a gradient of it is wanted */
    int *of;          /* per node: its gradient so far, -1 for zero */
    int **part;       /* per node of tuple type: gradients of its parts, or NULL */
};

/*
 * Adds the contributions of node i's gradient dy to the gradients of its operands. For
 * tuples dy is -1 and the parts' gradients are g->part[i]. -1 with err set if this use
 * has no derivative.
 */
typedef int grad_rule(struct grad *g, int i, int dy);

/*
 * From ops.def; NULL: no derivative; grad_flat: the derivative is zero where it exists.
 */
extern grad_rule *const grad_rules[AP_N_OPS];

/* A copy: the builder's array moves when nodes are added. */
static inline struct ap_node grad_node(const struct grad *g, int i)
{
    return g->b->nodes[i];
}
/* Whether operand k of node i wants a gradient. */
static inline bool grad_wants(const struct grad *g, int i, int k)
{
    return g->live[g->b->nodes[i].in[k]];
}
/* Adds d (-1: nothing) to the gradient of node x, if x wants one. */
void grad_add(struct grad *g, int x, int d);
/* Refuses operand k of node i; always returns -1. */
int grad_refuse(const struct grad *g, int i, const char *why);

/* ---- small expressions ---- */

int grad_zeros(struct grad *g, const struct ap_shape *like);
int grad_mul(struct grad *g, int x, int y);
/* dy where pred holds, zero elsewhere. */
int grad_where(struct grad *g, int pred, int dy);
/* Sum over all dimensions, a scalar. */
int grad_sum_all(struct grad *g, int x);
/* Broadcasts x, which has the dimensions of `like` without `dims`, over `dims`. */
int grad_spread(struct grad *g, int x, const struct ap_shape *like,
                const struct ap_ints *dims);

/* The window that, summed over a gradient, is the transpose of window w from n_in
 * elements to n_out places; reversal is inverted, as a kernel needs it. */
struct ap_window_dim grad_transposed_window(const struct ap_window_dim *w, int64_t n_in,
                                            int64_t n_out);

static inline bool grad_listed(const struct ap_ints *v, int64_t d)
{
    for (int i = 0; i < v->n; i++)
        if (v->v[i] == d)
            return true;
    return false;
}

/*
 * Rebuilds b with contractions of type p->compute, see struct ap_grad_params; p->loss and
 * p->keep become the new nodes, in the type that they had. Other types than bf16 and f16
 * change nothing.
 */
int grad_lower(struct ap_build *b, struct ap_grad_params *p, struct ap_err *err);

/*
 * Recomputes cheap values of the first n_forward nodes for the nodes after them that use
 * them; these and `grads` get new ids.
 */
void grad_recompute(struct ap_build *b, int n_forward, int n_grads, int *grads);

/* ---- rules, by file ---- */

grad_rule grad_expression, grad_flat, grad_atan2, grad_power, grad_remainder, grad_minmax,
    grad_convert, grad_same, grad_clamp, grad_select; /* elementwise */
grad_rule grad_broadcast, grad_concatenate, grad_pad, grad_reshape, grad_reverse,
    grad_slice, grad_transpose, grad_tuple_element;              /* moves */
grad_rule grad_dot, grad_convolution;                            /* heavy */
grad_rule grad_reduce, grad_reduce_window, grad_sort, grad_topk; /* reductions */
grad_rule grad_gather, grad_scatter, grad_dynamic_slice, grad_dynamic_update_slice;

#endif
