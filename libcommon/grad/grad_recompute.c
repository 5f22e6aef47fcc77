/*
 * Problem: a derivative's rule uses values of the forward pass: a row broadcast over a
 * matrix, a mask made of two iotas. Taken from there it is a tensor that is written, kept
 * until the backward pass and read again, where recomputing it inside of its user reads
 * next to nothing. Idea: a value that is made of much less (broadcasts that at least
 * quadruple, iotas, and cheap elementwise operators on such values and scalars alone, up
 * to MAX_TREE nodes) is recomputed right before each node of the backward pass that uses
 * it. The copy has that node as its only user, so that fusion takes it in. Cost: O(nodes
 * + edges) times MAX_TREE.
 */
#include "grad/grad_impl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TREE   8 /* nodes that are recomputed for one operand */
#define MIN_SPREAD 4 /* elements of a broadcast for one of its operand */

struct recompute {
    struct ap_build *b;
    struct ap_node *old; /* the builder's nodes so far */
    int n_forward;       /* the first of them: the forward pass */
    int *tree; /* per forward node: nodes that recomputing it takes; 0: it is kept */
    int *to;   /* per old node: its new id */
    int n_copies;
};

/* One operation per element, by the table of operators. */
static bool is_cheap_op(enum ap_op op)
{
    return ap_ops[op].class == AP_CLASS_ELEMENTWISE && ap_ops[op].flops <= 1;
}

/* Nodes that recomputing i takes, 0 when it is better kept. */
static int tree_of(const struct recompute *r, int i)
{
    const struct ap_node *n = &r->old[i];
    int size = 1;

    if (n->op == AP_OP_IOTA)
        return 1;
    if (n->op != AP_OP_BROADCAST && !is_cheap_op(n->op))
        return 0;
    if (n->shape.rank == 0)
        return 0;
    for (int k = 0; k < n->n_in; k++) {
        const struct ap_shape *in = &r->old[n->in[k]].shape;
        bool small = n->op == AP_OP_BROADCAST &&
                     ap_shape_elems(in) <= ap_shape_elems(&n->shape) / MIN_SPREAD;
        if (!r->tree[n->in[k]] && !small && in->rank > 0)
            return 0;
        size += r->tree[n->in[k]];
    }
    return size <= MAX_TREE ? size : 0;
}

/* The id of a copy of old node i, made for one user. */
static int copy_of(struct recompute *r, int i, enum ap_phase phase)
{
    struct ap_node n = r->old[i];
    int *in = AP_NEW_N(r->b->arena, n.n_in + 1, int);

    for (int k = 0; k < n.n_in; k++)
        in[k] = r->tree[n.in[k]] ? copy_of(r, n.in[k], phase) : r->to[n.in[k]];
    const char *name = ap_arena_printf(r->b->arena, "%s.again.%d", n.name, r->n_copies++);
    r->b->scope = n.scope;
    r->b->phase = phase;
    return ap_build_node(r->b, n.op, name, n.shape, n.attrs, n.n_in, in);
}

/* Old node i with the ids of the new nodes; returns its own. */
static int move(struct recompute *r, int i)
{
    struct ap_node n = r->old[i];
    int *in = AP_NEW_N(r->b->arena, n.n_in + 1, int);

    for (int k = 0; k < n.n_in; k++) {
        int from = n.in[k], same = 0;
        while (same < k && n.in[same] != from)
            same++;
        in[k] = same < k                                   ? in[same]
                : from < r->n_forward && r->tree[from] > 0 ? copy_of(r, from, n.phase)
                                                           : r->to[from];
    }
    r->b->scope = n.scope;
    r->b->phase = n.phase;
    int id = ap_build_node(r->b, n.op, n.name, n.shape, n.attrs, n.n_in, in);
    r->b->nodes[id].role = n.role;
    r->b->nodes[id].param = n.param;
    r->b->nodes[id].pin = n.pin;
    return id;
}

void grad_recompute(struct ap_build *b, int n_forward, int n_grads, int *grads)
{
    int n = b->n;
    struct recompute r = {.b = b, .old = b->nodes, .n_forward = n_forward};
    const char *scope = b->scope;
    enum ap_phase phase = b->phase;

    r.tree = AP_NEW_N(b->arena, n, int);
    r.to = AP_NEW_N(b->arena, n, int);
    for (int i = 0; i < n_forward; i++) {
        r.tree[i] = tree_of(&r, i);
        r.to[i] = i;
    }
    b->n = n_forward;
    b->cap = n;
    b->nodes = ap_xrealloc(NULL, (size_t)(b->cap + 1) * sizeof *b->nodes);
    memcpy(b->nodes, r.old, (size_t)n_forward * sizeof *b->nodes);
    for (int i = n_forward; i < n; i++)
        r.to[i] = move(&r, i);
    for (int k = 0; k < n_grads; k++)
        if (grads[k] >= 0)
            grads[k] = r.to[grads[k]];
    free(r.old);
    b->scope = scope;
    b->phase = phase;
}
