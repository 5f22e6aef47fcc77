/*
 * Training recipes in fp8.
 *
 * Problem: on devices with products in fp8, trainers run a layer's linear maps in it, and
 * the rest as before. The gain is less than half of the products' time: attentions and
 * the head keep 16 bits, and casts read and write the products' operands. Idea: a forward
 * contraction of a weight belongs to a layer if a contraction of a weight depends on its
 * result; the backward contractions that read one of its operands compute its gradients.
 * Each value that they read is cast once, where it is made, to the type that the recipe
 * has for it. Weights of kept copies in fp8 (no cast with each microbatch), the second,
 * transposed copy that Hopper's products need, and the maxima of delayed scaling are not
 * in the graph. Cost: linear. Sources: Micikevicius et al., "FP8 Formats for Deep
 * Learning", 2022; NVIDIA, Transformer Engine (its Linear; the head is not one).
 */
#include "fp8.h"

#include <stdlib.h>

#include "base/array.h"

struct caster {
    struct ap_arena *arena;
    const struct ap_graph *g;
    bool *weight;         /* [node]: made of weights and scalars alone */
    bool *layer;          /* [node]: a contraction that reads fp8 */
    bool *kept;           /* [node]: an operand of a forward one: not a gradient */
    bool *read;           /* [node]: an operand of one */
    int *id, *cast;       /* [node]: new number, and that of its copy in fp8 */
    struct ap_node *node; /* the new nodes; malloc */
    int n, cap;
};

static bool is_contraction(const struct ap_node *n)
{
    return (n->op == AP_OP_DOT || n->op == AP_OP_CONVOLUTION) && !n->attrs->attention;
}

static void find_weights(struct caster *c)
{
    const struct ap_graph *g = c->g;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        const enum ap_op_class class = ap_ops[n->op].class;
        bool all = class == AP_CLASS_ELEMENTWISE || class == AP_CLASS_MOVE, any = false;
        for (int k = 0; k < n->n_in; k++) {
            all &= c->weight[n->in[k]] || g->nodes[n->in[k]].shape.rank == 0;
            any |= c->weight[n->in[k]];
        }
        c->weight[v] =
            (all && any) || (n->op == AP_OP_PARAMETER && n->role == AP_ROLE_WEIGHT);
    }
}

static bool reads_weight(const struct caster *c, const struct ap_node *n)
{
    return n->phase == AP_FORWARD && is_contraction(n) &&
           (c->weight[n->in[0]] || c->weight[n->in[1]]);
}

/* Both operands have 16 bits, and matrices whose sizes products in fp8 take: multiples of
 * 16, which a router of few experts has not. */
static bool is_wide(const struct caster *c, const struct ap_node *n)
{
    for (int k = 0; k < 2; k++) {
        const struct ap_shape *s = &c->g->nodes[n->in[k]].shape;
        if (!ap_dtype_is_float(s->dtype) || ap_dtype_size(s->dtype) != 2)
            return false;
        if (c->weight[n->in[k]])
            for (int d = 0; d < s->rank; d++)
                if (s->dims[d] % 16 != 0 && s->dims[d] != 1)
                    return false;
    }
    return true;
}

static void find_layers(struct caster *c)
{
    const struct ap_graph *g = c->g;
    bool *followed = AP_NEW_N(c->arena, g->n_nodes, bool);

    for (int v = g->n_nodes - 1; v >= 0; v--) {
        const struct ap_node *n = &g->nodes[v];
        for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++)
            followed[v] |=
                followed[g->users[u]] || reads_weight(c, &g->nodes[g->users[u]]);
        if (!followed[v] || !reads_weight(c, n) || !is_wide(c, n))
            continue;
        c->layer[v] = true;
        c->kept[n->in[0]] = c->kept[n->in[1]] = true;
    }
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        c->layer[v] |= n->phase == AP_BACKWARD && is_contraction(n) && is_wide(c, n) &&
                       (c->kept[n->in[0]] || c->kept[n->in[1]]);
        if (c->layer[v])
            c->read[n->in[0]] = c->read[n->in[1]] = true;
    }
}

static int put(struct caster *c, const struct ap_node *n)
{
    AP_ROOM(c->node, c->n, c->cap);
    c->node[c->n] = *n;
    return c->n++;
}

static void put_cast(struct caster *c, int v)
{
    const struct ap_node *of = &c->g->nodes[v];
    struct ap_node n = {.op = AP_OP_CONVERT,
                        .name = ap_arena_printf(c->arena, "%s.fp8", of->name),
                        .n_in = 1,
                        .shape = of->shape,
                        .attrs = &ap_attrs_default,
                        .scope = of->scope,
                        .phase = of->phase,
                        .param = -1,
                        .group = -1};

    n.shape.dtype = c->kept[v] ? AP_F8E4M3FN : AP_F8E5M2;
    n.in = ap_arena_dup(c->arena, &c->id[v], sizeof c->id[v]);
    c->cast[v] = put(c, &n);
}

static void copy_nodes(struct caster *c)
{
    for (int v = 0; v < c->g->n_nodes; v++) {
        struct ap_node n = c->g->nodes[v];
        int *in = AP_NEW_N(c->arena, n.n_in + 1, int);
        for (int k = 0; k < n.n_in; k++)
            in[k] = c->layer[v] ? c->cast[n.in[k]] : c->id[n.in[k]];
        n.in = in;
        n.group = -1;
        c->id[v] = put(c, &n);
        if (c->read[v])
            put_cast(c, v);
    }
}

int fp8_mark(struct ap_arena *arena, const struct ap_graph *g, struct ap_graph *out,
             struct fp8_count *count, struct ap_err *err)
{
    struct caster c = {.arena = arena,
                       .g = g,
                       .weight = AP_NEW_N(arena, g->n_nodes + 1, bool),
                       .layer = AP_NEW_N(arena, g->n_nodes + 1, bool),
                       .kept = AP_NEW_N(arena, g->n_nodes + 1, bool),
                       .read = AP_NEW_N(arena, g->n_nodes + 1, bool),
                       .id = AP_NEW_N(arena, g->n_nodes + 1, int),
                       .cast = AP_NEW_N(arena, g->n_nodes + 1, int)};

    find_weights(&c);
    find_layers(&c);
    copy_nodes(&c);
    *count = (struct fp8_count){.casts = c.n - g->n_nodes};
    for (int v = 0; v < g->n_nodes; v++)
        count->contractions += c.layer[v];
    *out = *g;
    out->n_groups = 0;
    struct ap_node *nodes = ap_arena_dup(arena, c.node, (size_t)c.n * sizeof *c.node);
    free(c.node);
    return ap_graph_replace(arena, out, nodes, c.n, c.id, err);
}
