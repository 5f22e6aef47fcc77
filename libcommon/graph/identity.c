/* Identical nodes, and hashes of the properties that are compared. */
#include "graph/identity.h"

#include <string.h>

#include "graph/attrs.h"

static bool nodes_equal(const struct ap_graph *g, const struct ap_node *a,
                        const struct ap_node *b);

/* ---- reducers ---- */

static bool body_equal(const struct ap_graph *g, const struct ap_reducer *a,
                       const struct ap_reducer *b)
{
    if (a->n_nodes != b->n_nodes || a->n_results != b->n_results ||
        memcmp(a->results, b->results, (size_t)a->n_results * sizeof *a->results) != 0)
        return false;
    for (int i = 0; i < a->n_nodes; i++) {
        const struct ap_node *x = &a->nodes[i], *y = &b->nodes[i];
        if (x->param != y->param || !nodes_equal(g, x, y) ||
            (x->n_in && memcmp(x->in, y->in, (size_t)x->n_in * sizeof *x->in) != 0))
            return false;
    }
    return true;
}

static bool reducers_equal(const struct ap_graph *g, int a, int b)
{
    const struct ap_reducer *x = &g->reducers[a], *y = &g->reducers[b];

    return a == b || (x->red == y->red && (x->red != AP_RED_NONE || body_equal(g, x, y)));
}

static uint64_t node_hash(const struct ap_graph *g, const struct ap_node *node);

static uint64_t reducer_hash(const struct ap_graph *g, int id)
{
    const struct ap_reducer *r = &g->reducers[id];
    uint64_t h = ap_hash_mix((uint64_t)r->red, (uint64_t)r->n_results);

    for (int i = 0; r->red == AP_RED_NONE && i < r->n_nodes; i++) {
        h = ap_hash_mix(h, node_hash(g, &r->nodes[i]));
        for (int k = 0; k < r->nodes[i].n_in; k++)
            h = ap_hash_mix(h, (uint64_t)r->nodes[i].in[k]);
    }
    return h;
}

/* ---- nodes ---- */

static bool attrs_equal(const struct ap_graph *g, const struct ap_node *a,
                        const struct ap_node *b)
{
    const ap_attr_set compared =
        ~(ap_attr_bit(AP_ATTR_argument) | ap_attr_bit(AP_ATTR_recomputed));
    ap_attr_set given = ap_attrs_given(a->attrs) & compared;

    if (given != (ap_attrs_given(b->attrs) & compared))
        return false;
    for (given &= ~ap_attr_bit(AP_ATTR_kernel); given; given &= given - 1) {
        const enum ap_attr attr = ap_attr_first(given);
        if (ap_attr_table[attr].kind == AP_ATTR_IS_REDUCER
                ? !reducers_equal(g, *(const int *)ap_attr_place(attr, a->attrs),
                                  *(const int *)ap_attr_place(attr, b->attrs))
                : !ap_attr_equal(attr, a->attrs, b->attrs, ap_attr_value_shape(a)))
            return false;
    }
    return true;
}

static bool nodes_equal(const struct ap_graph *g, const struct ap_node *a,
                        const struct ap_node *b)
{
    return a->op == b->op && a->phase == b->phase && a->role == b->role &&
           a->n_in == b->n_in && ap_shape_equal(&a->shape, &b->shape) &&
           (a->attrs == b->attrs || attrs_equal(g, a, b));
}

bool ap_nodes_identical(const struct ap_graph *g, int a, int b)
{
    return nodes_equal(g, &g->nodes[a], &g->nodes[b]);
}

static uint64_t attrs_hash(const struct ap_graph *g, const struct ap_node *node)
{
    uint64_t h = 0;

    for (ap_attr_set given = ap_attrs_given(node->attrs); given; given &= given - 1) {
        const enum ap_attr attr = ap_attr_first(given);
        if (attr == AP_ATTR_argument || attr == AP_ATTR_recomputed)
            continue;
        h = attr == AP_ATTR_kernel
                ? ap_hash_mix(h, 1)
                : ap_hash_mix(h,
                              ap_attr_hash(attr, node->attrs, ap_attr_value_shape(node)));
        if (ap_attr_table[attr].kind == AP_ATTR_IS_REDUCER)
            h = ap_hash_mix(
                h, reducer_hash(g, *(const int *)ap_attr_place(attr, node->attrs)));
    }
    return h;
}

static uint64_t shape_hash(const struct ap_shape *shape, uint64_t h)
{
    h = ap_hash_mix(h, (uint64_t)shape->dtype);
    for (int d = 0; d < shape->rank; d++)
        h = ap_hash_mix(h, (uint64_t)shape->dims[d]);
    for (int i = 0; i < shape->n_parts; i++)
        h = shape_hash(&shape->parts[i], h);
    return h;
}

static uint64_t node_hash(const struct ap_graph *g, const struct ap_node *node)
{
    const uint64_t head = (uint64_t)node->op << 40 | (uint64_t)node->phase << 36 |
                          (uint64_t)node->role << 32 | (uint64_t)node->n_in;
    uint64_t h = shape_hash(&node->shape, ap_hash_mix(0, head));

    return node->attrs == &ap_attrs_default ? h : ap_hash_mix(h, attrs_hash(g, node));
}

void ap_node_signatures(const struct ap_graph *g, uint64_t *sig)
{
    for (int v = 0; v < g->n_nodes; v++)
        sig[v] = node_hash(g, &g->nodes[v]);
}
