/*
 * Kernels between contractions.
 *
 * Problem: a layer norm, a softmax or a gelu with its bias is one kernel in all training
 * software: it reads its operands and writes its result. In the graph it is several
 * operators; fusion groups (group.c) end at reductions, and a backward pass reads wide
 * intermediate values, which are then written and kept. Priced so, elementwise work takes
 * two to three times as long as it does, and activations as much memory.
 *
 * Idea: depth(v) counts the operators that are not *joinable* (contractions, look-ups,
 * attentions) on the longest way to v. Edges between joinable nodes of one phase and one
 * depth join them to a kernel, but not after an optimization barrier; since depth rises
 * on any way through another operator, kernels are convex. A node that depends on leaves,
 * or on values of an earlier phase, alone has the depth of its users. A forward value is
 * *stored* if a node outside of its kernel reads it in the forward pass, or no joinable
 * node made it. What the backward pass reads of values that are not stored it gets as a
 * copy of the chain that leads there from stored ones, made in the kernel that reads it;
 * or, if the value's rounded copy is stored, as that. Which values stay inside kernels is
 * found when nests are made (layout/nest.h). Cost: linear, and the copies.
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/union_find.h"

/* Of a chain that is computed again: copying is a recursion. */
#define MAX_CHAIN 128

struct joiner {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const struct fuse_kernel_rules *rules;
    bool *is_result; /* [node] */
    int *depth;      /* [node] */
    int *up;         /* union-find over nodes: kernels */
};

static const struct ap_node *node_at(const struct joiner *j, int v)
{
    return &j->g->nodes[v];
}

static bool is_leaf(const struct ap_node *n)
{
    return ap_ops[n->op].class == AP_CLASS_LEAF;
}

/* Whether a scope is, or is in, a part of the model named `part`: whole names only. */
static bool is_within(const char *scope, const char *part)
{
    const size_t length = strlen(part);

    for (const char *at = length ? strstr(scope, part) : NULL; at;
         at = strstr(at + 1, part))
        if ((at == scope || at[-1] == '/') && (at[length] == '/' || at[length] == '\0'))
            return true;
    return false;
}

bool fuse_kernels_has_part(const struct ap_graph *g, const char *part)
{
    for (int v = 0; v < g->n_nodes; v++)
        if (is_within(g->nodes[v].scope, part))
            return true;
    return false;
}

static bool is_eager(const struct joiner *j, const struct ap_node *n)
{
    for (int i = 0; i < j->rules->n_eager; i++)
        if (is_within(n->scope, j->rules->eager[i]))
            return true;
    return false;
}

static bool is_joinable(const struct joiner *j, const struct ap_node *n)
{
    enum ap_op_class class = ap_ops[n->op].class;
    return n->phase != AP_UPDATE && !n->attrs->attention && n->shape.dtype != AP_TUPLE &&
           (class == AP_CLASS_ELEMENTWISE || class == AP_CLASS_MOVE ||
            n->op == AP_OP_REDUCE) &&
           !is_eager(j, n);
}

/* Whether the edge u -> v may lie inside a kernel. */
static bool joins(const struct joiner *j, int u, int v)
{
    const struct ap_node *a = node_at(j, u), *b = node_at(j, v);
    return is_joinable(j, a) && is_joinable(j, b) && a->phase == b->phase &&
           a->op != AP_OP_OPT_BARRIER;
}

/* Nodes whose operands are leaves, values of an earlier phase and such nodes. */
static void raise_late(const struct joiner *j)
{
    const struct ap_graph *g = j->g;
    bool *late = AP_NEW_N(j->arena, g->n_nodes, bool);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = node_at(j, v);
        late[v] = is_joinable(j, n);
        for (int k = 0; k < n->n_in && late[v]; k++)
            late[v] = is_leaf(node_at(j, n->in[k])) || late[n->in[k]] ||
                      node_at(j, n->in[k])->phase < n->phase;
    }
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        int least = -1;
        for (int u = g->user_start[v]; u < g->user_start[v + 1] && late[v]; u++) {
            int at = j->depth[g->users[u]] - !joins(j, v, g->users[u]);
            least = least < 0 || at < least ? at : least;
        }
        if (least > j->depth[v])
            j->depth[v] = least;
    }
}

static void find_kernels(struct joiner *j)
{
    const struct ap_graph *g = j->g;

    j->is_result = AP_NEW_N(j->arena, g->n_nodes, bool);
    j->depth = AP_NEW_N(j->arena, g->n_nodes, int);
    j->up = ap_sets_new(j->arena, g->n_nodes);
    for (int r = 0; r < g->n_results; r++)
        j->is_result[g->results[r].node] = true;
    for (int v = 0; v < g->n_nodes; v++)
        for (int k = 0; k < node_at(j, v)->n_in; k++) {
            int u = node_at(j, v)->in[k], at = j->depth[u];
            at += !joins(j, u, v) && !is_leaf(node_at(j, u));
            j->depth[v] = at > j->depth[v] ? at : j->depth[v];
        }
    raise_late(j);
    for (int v = 0; v < g->n_nodes; v++)
        for (int k = 0; k < node_at(j, v)->n_in; k++)
            if (joins(j, node_at(j, v)->in[k], v) &&
                j->depth[node_at(j, v)->in[k]] == j->depth[v])
                ap_sets_join(j->up, node_at(j, v)->in[k], v);
}

/* [node]: whether no reduction of its set is of the same part of the model (scope). */
static bool *find_others(const struct joiner *j, const int *root)
{
    const struct ap_graph *g = j->g;
    bool *other = AP_NEW_N(j->arena, g->n_nodes, bool);
    int *last = AP_NEW_N(j->arena, g->n_nodes, int); /* [root]: 1 + a reduction */
    int *next = AP_NEW_N(j->arena, g->n_nodes, int);

    for (int v = 0; v < g->n_nodes; v++)
        if (node_at(j, v)->op == AP_OP_REDUCE) {
            next[v] = last[root[v]];
            last[root[v]] = 1 + v;
        }
    for (int v = 0; v < g->n_nodes; v++) {
        int r = last[root[v]];
        while (r > 0 && strcmp(node_at(j, r - 1)->scope, node_at(j, v)->scope) != 0)
            r = next[r - 1];
        other[v] = r == 0;
    }
    return other;
}

/*
 * Leaves only kernels that reduce, without what begins or ends them in another part of
 * the model: a residual sum before a norm. No way leads from what is left through
 * what is not.
 */
static void keep_norms(const struct joiner *j)
{
    const struct ap_graph *g = j->g;
    int *root = AP_NEW_N(j->arena, g->n_nodes, int);
    int *least = AP_NEW_N(j->arena, g->n_nodes, int); /* [root]: 1 + the least left */

    for (int v = 0; v < g->n_nodes; v++)
        root[v] = ap_sets_root(j->up, v);
    const bool *other = find_others(j, root);
    bool *begins = ap_arena_dup(j->arena, other, (size_t)g->n_nodes * sizeof *other);
    bool *ends = ap_arena_dup(j->arena, other, (size_t)g->n_nodes * sizeof *other);
    for (int v = 0; v < g->n_nodes; v++)
        for (int k = 0; k < node_at(j, v)->n_in; k++) {
            const int u = node_at(j, v)->in[k];
            begins[v] &= root[u] != root[v] || begins[u];
        }
    for (int v = g->n_nodes - 1; v >= 0; v--)
        for (int k = 0; k < node_at(j, v)->n_in; k++) {
            const int u = node_at(j, v)->in[k];
            ends[u] &= root[u] != root[v] || ends[v];
        }
    for (int v = 0; v < g->n_nodes; v++) {
        int *set = &least[root[v]];
        if (begins[v] || ends[v]) {
            j->up[v] = v;
            continue;
        }
        *set = *set ? *set : 1 + v;
        j->up[v] = *set - 1;
    }
}

/* ---- what the backward pass computes again ---- */

struct copier {
    struct joiner j;
    uint8_t *chain; /* [node]: of a forward value that is not stored, length of the chain
                       to stored ones; 0: it is stored, or there anyway */
    int *rounded;   /* [node]: its stored copy of fewer bytes, -1 */
    struct ap_node *node; /* the new nodes; malloc */
    int n, cap;
    int *id;        /* [node]: new number */
    int *copy, *of; /* [node]: its latest copy, and the kernel that that is in */
    int n_copies;
};

static bool is_remade(const struct copier *c, int v)
{
    const struct ap_graph *g = c->j.g;
    const struct ap_node *n = node_at(&c->j, v);
    bool backward = false;

    if (n->op == AP_OP_IOTA)
        return !c->j.is_result[v];
    if (n->phase != AP_FORWARD || !is_joinable(&c->j, n) || n->op == AP_OP_REDUCE ||
        c->j.is_result[v])
        return false;
    for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
        const struct ap_node *user = node_at(&c->j, g->users[u]);
        if (user->phase == AP_FORWARD
                ? ap_sets_root(c->j.up, g->users[u]) != ap_sets_root(c->j.up, v)
                : !is_joinable(&c->j, user))
            return false;
        backward |= user->phase != AP_FORWARD;
    }
    return backward || g->user_start[v] < g->user_start[v + 1];
}

/* A stored conversion of v to fewer bytes. */
static int rounded_copy(const struct copier *c, int v)
{
    const struct ap_graph *g = c->j.g;

    for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
        const struct ap_node *user = node_at(&c->j, g->users[u]);
        if (user->op == AP_OP_CONVERT && user->phase == AP_FORWARD &&
            ap_dtype_is_float(user->shape.dtype) &&
            ap_dtype_is_float(node_at(&c->j, v)->shape.dtype) &&
            ap_dtype_size(user->shape.dtype) <
                ap_dtype_size(node_at(&c->j, v)->shape.dtype) &&
            !is_remade(c, g->users[u]))
            return g->users[u];
    }
    return -1;
}

static void find_chains(struct copier *c)
{
    const struct ap_graph *g = c->j.g;

    for (int v = 0; v < g->n_nodes; v++) {
        int longest = 0;
        c->rounded[v] = -1;
        if (!is_remade(c, v))
            continue;
        c->rounded[v] = rounded_copy(c, v);
        for (int k = 0; k < node_at(&c->j, v)->n_in && c->rounded[v] < 0; k++)
            if (c->chain[node_at(&c->j, v)->in[k]] > longest)
                longest = c->chain[node_at(&c->j, v)->in[k]];
        c->chain[v] = (uint8_t)(longest < MAX_CHAIN ? longest + 1 : 0);
    }
}

static int put(struct copier *c, const struct ap_node *n)
{
    AP_ROOM(c->node, c->n, c->cap);
    c->node[c->n] = *n;
    return c->n++;
}

/* New number of v as a backward node of the kernel reads it. */
static int read_in(struct copier *c, int v, int kernel)
{
    if (c->chain[v] == 0)
        return c->id[v];
    if (c->copy[v] >= 0 && c->of[v] == kernel)
        return c->copy[v];
    struct ap_node n = *node_at(&c->j, v);
    struct ap_attrs *attrs = ap_arena_dup(c->j.arena, n.attrs, sizeof *attrs);
    int *in = AP_NEW_N(c->j.arena, n.n_in + 1, int);
    if (c->rounded[v] >= 0) {
        *attrs = ap_attrs_default;
        n.op = AP_OP_CONVERT;
        n.n_in = 1;
        in[0] = c->id[c->rounded[v]];
    } else {
        for (int k = 0; k < n.n_in; k++)
            in[k] = read_in(c, n.in[k], kernel);
    }
    attrs->recomputed = true;
    n.name = ap_arena_printf(c->j.arena, "%s.kernel.%d", n.name, ++c->n_copies);
    n.attrs = attrs;
    n.in = in;
    n.phase = AP_BACKWARD;
    c->of[v] = kernel;
    return c->copy[v] = put(c, &n);
}

static void copy_chains(struct copier *c)
{
    const struct ap_graph *g = c->j.g;

    for (int v = 0; v < g->n_nodes; v++) {
        struct ap_node n = *node_at(&c->j, v);
        int *in = AP_NEW_N(c->j.arena, n.n_in + 1, int);
        for (int k = 0; k < n.n_in; k++)
            in[k] = n.phase == AP_FORWARD ? c->id[n.in[k]]
                                          : read_in(c, n.in[k], ap_sets_root(c->j.up, v));
        n.in = in;
        c->id[v] = put(c, &n);
    }
}

/* ---- the new graph ---- */

/* Without what nobody reads any more; results are renumbered. */
static int write_graph(struct copier *c, struct ap_graph *out, struct ap_err *err)
{
    const struct ap_graph *g = c->j.g;
    bool *alive = AP_NEW_N(c->j.arena, c->n, bool);
    int *place = AP_NEW_N(c->j.arena, c->n, int);

    for (int v = 0; v < g->n_nodes; v++)
        alive[c->id[v]] = c->j.is_result[v] || node_at(&c->j, v)->op == AP_OP_PARAMETER ||
                          g->user_start[v] == g->user_start[v + 1];
    for (int v = c->n - 1; v >= 0; v--)
        for (int k = 0; k < c->node[v].n_in && alive[v]; k++)
            alive[c->node[v].in[k]] = true;
    struct ap_node *nodes = AP_NEW_N(c->j.arena, c->n, struct ap_node);
    int n_nodes = 0;
    for (int v = 0; v < c->n; v++) {
        if (!alive[v])
            continue;
        struct ap_node n = c->node[v];
        int *in = AP_NEW_N(c->j.arena, n.n_in + 1, int);
        for (int k = 0; k < n.n_in; k++)
            in[k] = place[n.in[k]];
        n.in = in;
        n.group = -1;
        place[v] = n_nodes;
        nodes[n_nodes++] = n;
    }
    for (int v = 0; v < g->n_nodes; v++)
        c->id[v] = place[c->id[v]];
    *out = *g;
    out->n_groups = 0;
    return ap_graph_replace(c->j.arena, out, nodes, n_nodes, c->id, err);
}

/* Numbers kernels of two or more nodes. */
static int number(struct ap_arena *arena, const struct fuse_kernel_rules *rules,
                  struct ap_graph *g)
{
    struct joiner j = {.arena = arena, .g = g, .rules = rules};
    int *count = AP_NEW_N(arena, g->n_nodes, int);
    int *kernel = AP_NEW_N(arena, g->n_nodes, int), n = 0;

    find_kernels(&j);
    if (rules->norms)
        keep_norms(&j);
    for (int v = 0; v < g->n_nodes; v++)
        count[ap_sets_root(j.up, v)]++;
    for (int v = 0; v < g->n_nodes; v++) {
        int root = ap_sets_root(j.up, v);
        if (!is_joinable(&j, &g->nodes[v]) || count[root] < 2)
            continue;
        if (kernel[root] == 0)
            kernel[root] = ++n;
        struct ap_attrs *attrs = ap_arena_dup(arena, g->nodes[v].attrs, sizeof *attrs);
        attrs->kernel = kernel[root];
        g->nodes[v].attrs = attrs;
    }
    return n;
}

int fuse_kernels_mark(struct ap_arena *arena, const struct ap_graph *g,
                      const struct fuse_kernel_rules *rules, struct ap_graph *out,
                      struct fuse_kernel_count *count, struct ap_err *err)
{
    struct copier c = {.j = {.arena = arena, .g = g, .rules = rules},
                       .chain = AP_NEW_N(arena, g->n_nodes, uint8_t),
                       .rounded = AP_NEW_N(arena, g->n_nodes, int),
                       .id = AP_NEW_N(arena, g->n_nodes, int),
                       .copy = AP_NEW_N(arena, g->n_nodes, int),
                       .of = AP_NEW_N(arena, g->n_nodes, int)};

    memset(c.copy, -1, sizeof *c.copy * (size_t)g->n_nodes);
    find_kernels(&c.j);
    if (rules->norms)
        keep_norms(&c.j);
    find_chains(&c);
    copy_chains(&c);
    int rc = write_graph(&c, out, err);
    free(c.node);
    if (rc)
        return -1;
    *count = (struct fuse_kernel_count){.kernels = number(arena, rules, out),
                                        .copies = c.n_copies};
    return 0;
}
