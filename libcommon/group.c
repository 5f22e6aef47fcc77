/*
 * Fusion groups: the units of decision of every search.
 *
 * Problem: elementwise operators and broadcasts of equal dims that are joined by edges
 * should be one group, but groups must stay convex (no path may leave one and come back).
 * Idea: level(v) = max over operands u of level(u) + (0 when the edge joins two fusible
 * nodes of equal dims, else 1). Edges between groups rise in level, edges within one do
 * not, so the components of the fusible edges inside one level are convex. Small
 * producers with a single user (scalar constants, iotas, broadcasts) float up to their
 * user's group, which adds no path: their operands lie on lower levels. Groups are
 * numbered in a topological order that follows the program (Kahn, smallest last member
 * first). Cost: O((nodes + edges) log groups).
 */
#include "nest.h"

#include <assert.h>

static int find(int *parent, int i)
{
    while (parent[i] != i) {
        parent[i] = parent[parent[i]];
        i = parent[i];
    }
    return i;
}

/* The larger id becomes the root, so that a root is its group's last member. */
static void join(int *parent, int a, int b)
{
    a = find(parent, a);
    b = find(parent, b);
    if (a < b)
        parent[a] = b;
    else
        parent[b] = a;
}

static bool fusible(const struct ap_node *n)
{
    return n->op == AP_OP_BROADCAST || ap_ops[n->op].class == AP_CLASS_ELEMENTWISE;
}

/* The edge u -> v lies inside a group whenever both have the same level. */
static bool fusible_edge(const struct ap_node *u, const struct ap_node *v)
{
    return fusible(u) && ap_ops[v->op].class == AP_CLASS_ELEMENTWISE &&
           ap_shape_same_dims(&u->shape, &v->shape);
}

/* The only node that uses `id`, or -1. */
static int single_user(const struct ap_graph *g, int id)
{
    int first = g->user_start[id], end = g->user_start[id + 1];
    return first < end && g->users[first] == g->users[end - 1] ? g->users[first] : -1;
}

/* True for a node that joins the group of its single user. */
static bool floats(const struct ap_graph *g, int id, const bool *is_result)
{
    const struct ap_node *n = &g->nodes[id];
    bool scalar = n->op == AP_OP_CONSTANT && n->shape.dtype != AP_TUPLE && !n->shape.rank;
    if (!scalar && n->op != AP_OP_IOTA && n->op != AP_OP_BROADCAST)
        return false;
    int user = single_user(g, id);
    if (user < 0 || is_result[id])
        return false;
    const struct ap_node *u = &g->nodes[user];
    if (scalar)
        return fusible(u);
    return ap_ops[u->op].class == AP_CLASS_ELEMENTWISE &&
           ap_shape_same_dims(&n->shape, &u->shape);
}

/* Union of everything that shares a group. */
static void fuse(struct ap_arena *arena, const struct ap_graph *g, const bool *floating,
                 int *parent)
{
    int *level = AP_NEW_N(arena, g->n_nodes, int);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        bool tuple_part = n->op == AP_OP_GET_TUPLE_ELEMENT;
        parent[v] = v;
        for (int k = 0; k < n->n_in; k++) {
            int u = n->in[k];
            bool same = tuple_part || floating[u] || fusible_edge(&g->nodes[u], n);
            int above = level[u] + (same ? 0 : 1);
            level[v] = above > level[v] ? above : level[v];
        }
        for (int k = 0; k < n->n_in; k++) {
            int u = n->in[k];
            bool joined = tuple_part || floating[u] ||
                          (level[u] == level[v] && fusible_edge(&g->nodes[u], n));
            if (joined)
                join(parent, u, v);
        }
    }
}

/* ---- numbering ---- */

struct heap {
    int n;
    int *key;
};

static void heap_push(struct heap *h, int key)
{
    int i = h->n++;
    for (; i > 0 && h->key[(i - 1) / 2] > key; i = (i - 1) / 2)
        h->key[i] = h->key[(i - 1) / 2];
    h->key[i] = key;
}

static int heap_pop(struct heap *h)
{
    int top = h->key[0], last = h->key[--h->n], i = 0;
    for (;;) {
        int c = 2 * i + 1;
        if (c >= h->n)
            break;
        if (c + 1 < h->n && h->key[c + 1] < h->key[c])
            c++;
        if (h->key[c] >= last)
            break;
        h->key[i] = h->key[c];
        i = c;
    }
    h->key[i] = last;
    return top;
}

/* What numbering needs to know of the groups; a group is named by its root node. */
struct order {
    int *root;      /* of each node */
    int *next;      /* next member of the same group, -1 at the end */
    int *first;     /* of each root */
    int *n_waiting; /* of each root: operands from groups without a number */
};

static void order_init(struct ap_arena *arena, const struct ap_graph *g, int *parent,
                       struct order *o)
{
    *o = (struct order){
        AP_NEW_N(arena, g->n_nodes, int), AP_NEW_N(arena, g->n_nodes, int),
        AP_NEW_N(arena, g->n_nodes, int), AP_NEW_N(arena, g->n_nodes, int)};
    for (int v = 0; v < g->n_nodes; v++) {
        o->root[v] = find(parent, v);
        o->first[v] = -1;
    }
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        o->next[v] = o->first[o->root[v]];
        o->first[o->root[v]] = v;
        for (int k = 0; k < g->nodes[v].n_in; k++)
            o->n_waiting[o->root[v]] += o->root[g->nodes[v].in[k]] != o->root[v];
    }
}

/* Gives the group of `root` the number `id` and releases the groups that use it. */
static void order_take(struct ap_graph *g, struct order *o, struct heap *heap, int root,
                       int id)
{
    for (int v = o->first[root]; v >= 0; v = o->next[v]) {
        g->nodes[v].group = id;
        for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
            int to = o->root[g->users[u]];
            if (to != root && --o->n_waiting[to] == 0)
                heap_push(heap, to);
        }
    }
}

void ap_group(struct ap_arena *arena, struct ap_graph *g)
{
    struct ap_mark mark = ap_arena_mark(arena);
    bool *flag = AP_NEW_N(arena, g->n_nodes, bool);
    bool *floating = AP_NEW_N(arena, g->n_nodes, bool);
    int *parent = AP_NEW_N(arena, g->n_nodes, int);

    for (int i = 0; i < g->n_results; i++)
        flag[g->results[i].node] = true;
    for (int v = 0; v < g->n_nodes; v++)
        floating[v] = floats(g, v, flag);
    fuse(arena, g, floating, parent);

    struct order order;
    order_init(arena, g, parent, &order);
    struct heap heap = {0, AP_NEW_N(arena, g->n_nodes, int)};
    g->n_groups = 0;
    for (int v = 0; v < g->n_nodes; v++) {
        bool starts = order.root[v] == v && order.n_waiting[v] == 0;
        if (starts && g->nodes[order.first[v]].op != AP_OP_PARAMETER)
            heap_push(&heap, v);
    }
    /* parameters first, whatever their place in the text */
    for (int v = 0; v < g->n_nodes; v++) {
        if (g->nodes[v].op == AP_OP_PARAMETER)
            order_take(g, &order, &heap, order.root[v], g->n_groups++);
    }
    while (heap.n > 0)
        order_take(g, &order, &heap, heap_pop(&heap), g->n_groups++);
    ap_arena_rewind(arena, mark);
}
