/*
 * Problem: the smallest pieces that blocks are made of: one operator that depends on the
 * input, with all that it needs and that does not. Idea: mark the operators that depend
 * on an input; each such forward operator is a component (a get-tuple-element belongs to
 * its tuple's component). Constant chains (weights, casts of them, masks) are cloned into
 * the component of every consumer. The document has each node in one block only, so
 * clones are kept separately: a constant that one component alone reads counts as part of
 * it; a constant that several read is an item with a price, each component lists the
 * items of which it would have a clone, and an item that two joined components both list
 * counts once. The nodes themselves go to the block of their first reader. Backward
 * operators count for the component to which data flow assigns them. Cost: linear in
 * nodes and edges, and in the lengths of shared chains per consumer. After Tanaka et al.,
 * "Automatic Graph Partitioning for Very Large-scale Deep Learning", section III-A.
 */
#include "base/array.h"
#include "graph/blocks.h"
#include "layout/nest.h"
#include "rannc/rannc_price.h"

#include <stdlib.h>

#define SHARED (-2) /* a constant that several components read; -1: none does */

struct build {
    struct ap_arena *arena;
    struct ap_graph g; /* grouped */
    struct rannc_rows rows;
    bool *varies; /* [node] of the forward pass: depends on an input */
    int *atom_of, *node;
    int n;
    int *owner;   /* [node] of constants: the component that reads it alone */
    int *item_of; /* [node] of shared constants: number, -1 if it costs nothing */
    const double *sec;
};

static bool is_leaf(const struct ap_graph *g, int i)
{
    return ap_ops[g->nodes[i].op].class == AP_CLASS_LEAF;
}

/* Forward operators that depend on an input, and losses even if they do not. */
static void find_components(struct build *b)
{
    const struct ap_graph *g = &b->g;
    const uint8_t *origin = ap_blocks_origins(b->arena, g);
    bool *loss = AP_NEW_N(b->arena, g->n_nodes, bool);

    for (int i = 0; i < g->n_results; i++)
        loss[g->results[i].node] = g->results[i].role == AP_ROLE_LOSS;
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        b->atom_of[i] = -1;
        if (n->phase != AP_FORWARD)
            continue;
        bool weight = n->op == AP_OP_PARAMETER && n->role != AP_ROLE_INPUT;
        b->varies[i] =
            (origin[i] == AP_FROM_INPUTS && !weight) || (loss[i] && !is_leaf(g, i));
        if (!b->varies[i] || is_leaf(g, i))
            continue;
        if (ap_ops[n->op].class == AP_CLASS_TUPLE && b->atom_of[n->in[0]] >= 0) {
            b->atom_of[i] = b->atom_of[n->in[0]];
            continue;
        }
        b->atom_of[i] = b->n;
        b->node[b->n++] = i;
    }
}

/* Which component reads a constant, users first. */
static void find_owners(struct build *b)
{
    const struct ap_graph *g = &b->g;

    for (int i = g->n_nodes - 1; i >= 0; i--) {
        int owner = -1;
        for (int k = g->user_start[i]; k < g->user_start[i + 1]; k++) {
            int u = g->users[k];
            int o = b->atom_of[u] >= 0 ? b->atom_of[u] : b->owner[u];
            if (g->nodes[u].phase != AP_FORWARD || o == -1)
                continue;
            owner = owner == -1 || owner == o ? o : SHARED;
        }
        bool constant = g->nodes[i].phase == AP_FORWARD && !b->varies[i];
        b->owner[i] = constant ? owner : -1;
    }
}

static int64_t weight_bytes(const struct ap_node *n)
{
    return n->op == AP_OP_PARAMETER && n->role == AP_ROLE_WEIGHT
               ? ap_shape_bytes(&n->shape)
               : 0;
}

/* ---- values ---- */

/* Components that read v's result, from `at` on in list; seen holds v + 1 for those. */
static int add_readers(const struct build *b, int i, int v, int *seen, int *list, int at)
{
    const struct ap_graph *g = &b->g;
    for (int k = g->user_start[i]; k < g->user_start[i + 1]; k++) {
        int u = g->users[k], a = b->atom_of[u];
        if (a == v) { /* a get-tuple-element */
            at = add_readers(b, u, v, seen, list, at);
        } else if (a >= 0 && seen[a] != v + 1) {
            seen[a] = v + 1;
            list[at++] = a;
        }
    }
    return at;
}

static void find_values(struct build *b, struct rannc_atoms *atoms)
{
    const struct ap_graph *g = &b->g;
    int *start = AP_NEW_N(b->arena, b->n + 1, int), *seen = AP_NEW_N(b->arena, b->n, int);
    int *list = AP_NEW_N(b->arena, g->user_start[g->n_nodes] + 1, int);
    int64_t *bytes = AP_NEW_N(b->arena, b->n, int64_t);
    bool *is_result = AP_NEW_N(b->arena, b->n, bool);

    for (int v = 0; v < b->n; v++) {
        int end = add_readers(b, b->node[v], v, seen, list, start[v]);
        qsort(list + start[v], (size_t)(end - start[v]), sizeof(int), ap_compare_int);
        start[v + 1] = end;
        bytes[v] =
            rannc_rows_bytes(&b->rows, ap_shape_bytes(&g->nodes[b->node[v]].shape));
    }
    for (int i = 0; i < g->n_results; i++)
        if (b->atom_of[g->results[i].node] >= 0)
            is_result[b->atom_of[g->results[i].node]] = true;
    atoms->value_bytes = bytes;
    atoms->is_result = is_result;
    atoms->reader_start = start;
    atoms->reader = list;
}

/* ---- clones ---- */

static void find_items(struct build *b, struct rannc_atoms *atoms)
{
    const struct ap_graph *g = &b->g;
    double *sec = AP_NEW_N(b->arena, g->n_nodes, double);
    int64_t *bytes = AP_NEW_N(b->arena, g->n_nodes, int64_t);

    for (int i = 0; i < g->n_nodes; i++) {
        b->item_of[i] = -1;
        if (b->owner[i] != SHARED || (b->sec[i] == 0 && weight_bytes(&g->nodes[i]) == 0))
            continue;
        b->item_of[i] = atoms->n_shared;
        sec[atoms->n_shared] = b->sec[i];
        bytes[atoms->n_shared++] = weight_bytes(&g->nodes[i]);
    }
    atoms->shared_sec = sec;
    atoms->shared_bytes = bytes;
}

/* Shared and own constants that component a needs, nearest first, shared ones up to
 * RANNC_MAX_CHAIN; their number, and they in queue. */
static int closure(const struct build *b, int a, int *seen, int *queue)
{
    const struct ap_graph *g = &b->g;
    int n = 0, n_shared = 0;

    for (int at = -1; at < n; at++) {
        const struct ap_node *x = &g->nodes[at < 0 ? b->node[a] : queue[at]];
        for (int k = 0; k < x->n_in; k++) {
            int u = x->in[k];
            if (b->owner[u] == -1 || seen[u] == a + 1)
                continue;
            seen[u] = a + 1;
            n_shared += b->owner[u] == SHARED;
            if (b->owner[u] != SHARED || n_shared <= RANNC_MAX_CHAIN)
                queue[n++] = u;
        }
    }
    return n;
}

static void find_clones(struct build *b, struct rannc_atoms *atoms)
{
    const struct ap_graph *g = &b->g;
    int *start = AP_NEW_N(b->arena, b->n + 1, int);
    int *seen = AP_NEW_N(b->arena, g->n_nodes, int);
    int *queue = AP_NEW_N(b->arena, g->n_nodes, int);
    int *list = NULL, n_list = 0, cap = 0;

    for (int a = 0; a < b->n; a++) {
        int n = closure(b, a, seen, queue);
        AP_ROOM_FOR(list, n_list, cap, n + 1);
        for (int i = 0; i < n; i++)
            if (b->item_of[queue[i]] >= 0)
                list[n_list++] = b->item_of[queue[i]];
        qsort(list + start[a], (size_t)(n_list - start[a]), sizeof(int), ap_compare_int);
        start[a + 1] = n_list;
    }
    atoms->shared_start = start;
    atoms->shared = ap_arena_dup(b->arena, list, ((size_t)n_list + 1) * sizeof(int));
    free(list);
}

/* ---- what is a component's own ---- */

static bool read_backward(const struct ap_graph *g, int i)
{
    for (int k = g->user_start[i]; k < g->user_start[i + 1]; k++)
        if (g->nodes[g->users[k]].phase == AP_BACKWARD)
            return true;
    return false;
}

/* Beside the rest: an operator's result, its gradient, and those of what it reads. */
static int64_t working_bytes(const struct build *b, int a)
{
    const struct ap_node *n = &b->g.nodes[b->node[a]];
    int64_t bytes = ap_mul64(2, ap_shape_bytes(&n->shape));
    for (int k = 0; k < n->n_in; k++)
        if (b->varies[n->in[k]])
            bytes = ap_add64(bytes, ap_shape_bytes(&b->g.nodes[n->in[k]].shape));
    return rannc_rows_bytes(&b->rows, bytes);
}

/*
 * Component of each backward node: the backward pass visits components in falling order,
 * so a node is not before what its users are in, nor before what made, or alone reads,
 * the forward values that it reads; it is as early as that allows.
 */
static const int *place_backward(const struct build *b)
{
    const struct ap_graph *g = &b->g;
    int *at = AP_NEW_N(b->arena, g->n_nodes, int);

    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const struct ap_node *n = &g->nodes[i];
        at[i] = -1;
        if (n->phase != AP_BACKWARD)
            continue;
        for (int k = g->user_start[i]; k < g->user_start[i + 1]; k++)
            if (at[g->users[k]] > at[i])
                at[i] = at[g->users[k]];
        for (int k = 0; k < n->n_in; k++) {
            int u = n->in[k], a = b->atom_of[u] >= 0 ? b->atom_of[u] : b->owner[u];
            if (g->nodes[u].phase == AP_FORWARD && a > at[i])
                at[i] = a;
        }
    }
    return at;
}

static void add_own(struct build *b, struct rannc_atoms *atoms)
{
    const struct ap_graph *g = &b->g;
    const int *backward = place_backward(b);

    atoms->own = AP_NEW_N(b->arena, b->n, struct rannc_profile);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        int a = n->phase == AP_BACKWARD ? backward[i] : b->atom_of[i];
        if (b->owner[i] >= 0)
            a = b->owner[i];
        if (a < 0)
            continue; /* shared, or an input, or an update */
        struct rannc_profile *p = &atoms->own[a];
        *(n->phase == AP_BACKWARD ? &p->bwd_sec : &p->fwd_sec) += b->sec[i];
        p->param_bytes = ap_add64(p->param_bytes, weight_bytes(n));
        if (b->atom_of[i] >= 0 && n->shape.dtype != AP_TUPLE && read_backward(g, i))
            p->activation_bytes =
                ap_add64(p->activation_bytes,
                         rannc_rows_bytes(&b->rows, ap_shape_bytes(&n->shape)));
    }
    for (int a = 0; a < b->n; a++)
        atoms->own[a].working_bytes = working_bytes(b, a);
}

int rannc_atoms_make(struct ap_arena *arena, const struct ap_graph *g,
                     const struct rannc_params *params, struct rannc_atoms *atoms,
                     struct ap_err *err)
{
    struct build b = {.arena = arena, .g = *g};

    b.g.nodes = ap_arena_dup(arena, g->nodes, (size_t)g->n_nodes * sizeof *g->nodes);
    ap_group(arena, &b.g); /* whatever the document says of groups */
    b.rows = rannc_rows_of(g, params);
    b.varies = AP_NEW_N(arena, g->n_nodes, bool);
    b.atom_of = AP_NEW_N(arena, g->n_nodes, int);
    b.node = AP_NEW_N(arena, g->n_nodes, int);
    b.owner = AP_NEW_N(arena, g->n_nodes, int);
    b.item_of = AP_NEW_N(arena, g->n_nodes, int);
    find_components(&b);
    if (!b.n)
        return ap_err_set(err, "/graph: no forward operator depends on an input");
    find_owners(&b);
    b.sec = rannc_node_sec(arena, &b.g, params->cluster, &b.rows, b.varies);
    *atoms = (struct rannc_atoms){.g = g, .n = b.n, .node = b.node, .atom_of = b.atom_of};
    find_values(&b, atoms);
    find_items(&b, atoms);
    find_clones(&b, atoms);
    add_own(&b, atoms);
    return 0;
}
