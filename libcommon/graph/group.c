/*
 * Fusion groups: the units of decision of every search.
 *
 * Problem: elementwise operators and broadcasts of equal dims that are joined by edges
 * should be one group, but groups must stay convex (no path may leave one and come back).
 * Idea: level(v) = max over operands u of level(u) + (0 when the edge joins two fusible
 * nodes of equal dims, else 1). Edges between groups rise in level, edges within one do
 * not, so the components of the fusible edges inside one level are convex. Two kinds of
 * edges do not fuse though they could, so that choices stay free: between phases (a
 * gradient may be split otherwise than its update), and from a sum of contractions to its
 * readers (the sum of partial results is partial: one all-reduce, not one for each
 * summand). Any levels that respect the edges will do, so two kinds of nodes rise to
 * their users' level: small producers with a single user (scalar constants, iotas,
 * broadcasts), and chains that are made of parameters, constants and values of an earlier
 * phase alone (an optimizer's m * beta, a derivative's 1 - y of the forward y) where that
 * keeps no more bytes alive. The nodes of an attention (ap-fuse), which stand together,
 * are one group: all have the level of the one that needs the highest. Groups are
 * numbered in the order in which they run (order.c). Cost: O((nodes + edges) log groups).
 */
#include "graph/group.h"

#include "graph/order.h"

#include <assert.h>
#include <limits.h>

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

/* What a node adds up, seen from the collectives that its partial value would need. */
enum sums {
    SUMS_NONE,
    SUMS_ONE, /* a contraction, or one that was moved or converted */
    SUMS_MANY /* an addition of such values only */
};

static enum sums sums_of(const struct ap_graph *g, int v, const uint8_t *sums)
{
    const struct ap_node *n = &g->nodes[v];
    switch (n->op) {
    case AP_OP_DOT:
    case AP_OP_CONVOLUTION:
    case AP_OP_SCATTER:
        return SUMS_ONE;
    case AP_OP_REDUCE:
        return n->shape.dtype != AP_TUPLE &&
                       g->reducers[n->attrs->to_apply].red == AP_RED_SUM
                   ? SUMS_ONE
                   : SUMS_NONE;
    case AP_OP_TRANSPOSE:
    case AP_OP_RESHAPE:
    case AP_OP_CONVERT:
        return sums[n->in[0]] == SUMS_NONE ? SUMS_NONE : SUMS_ONE;
    case AP_OP_ADD:
        return sums[n->in[0]] && sums[n->in[1]] ? SUMS_MANY : SUMS_NONE;
    default:
        return SUMS_NONE;
    }
}

/* What is known of each node. */
struct facts {
    const struct ap_graph *g;
    bool *is_result;
    bool *floating; /* joins the group of its single user */
    bool *kept;     /* alive after its phase, whatever one of its users does */
    int64_t *late;  /* bytes that making it late keeps, -1 where it stays */
    uint8_t *sums;  /* enum sums */
    int *level;
    int *attention; /* number of the attention that it is of, 0 for none */
};

/* The edge u -> v lies inside a group whenever both have the same level. */
static bool fusible_edge(const struct facts *f, int u, int v)
{
    const struct ap_node *a = &f->g->nodes[u], *b = &f->g->nodes[v];
    return fusible(a) && ap_ops[b->op].class == AP_CLASS_ELEMENTWISE &&
           ap_shape_same_dims(&a->shape, &b->shape) && a->phase == b->phase &&
           (f->sums[u] != SUMS_MANY || f->sums[v] == SUMS_MANY);
}

/* Whether u is alive after its phase for more than one of its users. */
static bool is_kept(const struct ap_graph *g, int u, const bool *is_result)
{
    int later = -1;

    if (is_result[u] || g->nodes[u].op == AP_OP_PARAMETER)
        return true;
    for (int k = g->user_start[u]; k < g->user_start[u + 1]; k++) {
        if (g->users[k] == later || g->nodes[g->users[k]].phase <= g->nodes[u].phase)
            continue;
        if (later >= 0)
            return true;
        later = g->users[k];
    }
    return false;
}

/*
 * Bytes that are kept longer when v is made only where it is used, from operands that are
 * chains of such nodes, or of an earlier phase, or -1 when it has others or when keeping
 * v itself takes less.
 */
static int64_t late_bytes(const struct facts *f, int v)
{
    const struct ap_node *n = &f->g->nodes[v];
    int64_t sum = 0;

    if (ap_ops[n->op].class == AP_CLASS_LEAF)
        return 0;
    if (!fusible(n))
        return -1;
    for (int k = 0; k < n->n_in; k++) {
        int u = n->in[k];
        if (k > 0 && u == n->in[0])
            continue;
        if (f->late[u] < 0 && f->g->nodes[u].phase >= n->phase)
            return -1;
        if (f->late[u] >= 0)
            sum += f->late[u];
        else if (!f->kept[u])
            sum += ap_shape_bytes(&f->g->nodes[u].shape);
    }
    return sum <= ap_shape_bytes(&n->shape) ? sum : -1;
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

/* 0 when u and its user v may share a level, else 1. */
static int barrier(const struct facts *f, int u, int v)
{
    bool part = f->g->nodes[v].op == AP_OP_GET_TUPLE_ELEMENT;
    if (f->attention[u] || f->attention[v])
        return f->attention[u] != f->attention[v];
    if (f->g->nodes[u].attrs->kernel && f->g->nodes[v].attrs->kernel &&
        f->g->nodes[u].attrs->kernel != f->g->nodes[v].attrs->kernel)
        return 1;
    return part || f->floating[u] || fusible_edge(f, u, v) ? 0 : 1;
}

/* Numbers attentions. */
static void find_attentions(struct facts *f)
{
    int n = 0;

    for (int v = 0; v < f->g->n_nodes; v++) {
        int64_t is = f->g->nodes[v].attrs->attention;
        if (is == AP_ATTENTION_FIRST || (is && (v == 0 || !f->attention[v - 1])))
            n++;
        f->attention[v] = is ? n : 0;
    }
}

static void find_facts(struct ap_arena *arena, const struct ap_graph *g, bool plain,
                       struct facts *f)
{
    *f = (struct facts){.g = g,
                        .attention = AP_NEW_N(arena, g->n_nodes, int),
                        .is_result = AP_NEW_N(arena, g->n_nodes, bool),
                        .floating = AP_NEW_N(arena, g->n_nodes, bool),
                        .kept = AP_NEW_N(arena, g->n_nodes, bool),
                        .late = AP_NEW_N(arena, g->n_nodes, int64_t),
                        .sums = AP_NEW_N(arena, g->n_nodes, uint8_t),
                        .level = AP_NEW_N(arena, g->n_nodes, int)};
    if (!plain)
        find_attentions(f);
    for (int i = 0; i < g->n_results; i++)
        f->is_result[g->results[i].node] = true;
    for (int v = 0; v < g->n_nodes; v++) {
        f->kept[v] = is_kept(g, v, f->is_result);
        f->floating[v] = !f->attention[v] && floats(g, v, f->is_result);
        f->sums[v] = (uint8_t)sums_of(g, v, f->sums);
        f->late[v] = late_bytes(f, v);
    }
}

/* The level that v's operands ask for. */
static int level_above(const struct facts *f, int v)
{
    int level = 0;

    for (int k = 0; k < f->g->nodes[v].n_in; k++) {
        int u = f->g->nodes[v].in[k], above = f->level[u] + barrier(f, u, v);
        level = above > level ? above : level;
    }
    return level;
}

/* The end of the nodes from v on that are of one attention; of others, v + 1. */
static int end_of_attention(const struct facts *f, int v)
{
    int end = v + 1, attention = f->attention[v];

    while (attention && end < f->g->n_nodes && f->attention[end] == attention)
        end++;
    return end;
}

/* The lowest levels that respect the edges; then what may rise does. */
static void set_levels(struct facts *f)
{
    const struct ap_graph *g = f->g;

    for (int v = 0, end; v < g->n_nodes; v = end) {
        int level = 0;
        end = end_of_attention(f, v);
        for (int i = v; i < end; i++) {
            f->level[i] = level_above(f, i);
            level = f->level[i] > level ? f->level[i] : level;
        }
        for (int i = v; i < end; i++)
            f->level[i] = level;
    }
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        int start = g->user_start[v], end = g->user_start[v + 1], highest = INT_MAX;
        bool rises = f->floating[v] ||
                     (f->late[v] >= 0 && fusible(&g->nodes[v]) && !f->attention[v]);
        if (!rises || f->is_result[v] || start == end)
            continue;
        for (int i = start; i < end; i++) {
            int limit = f->level[g->users[i]] - barrier(f, v, g->users[i]);
            highest = limit < highest ? limit : highest;
        }
        f->level[v] = highest;
    }
}

/* Union of everything that shares a group. */
static void fuse(const struct facts *f, int *parent)
{
    const struct ap_graph *g = f->g;

    for (int v = 0; v < g->n_nodes; v++) {
        parent[v] = v;
        for (int k = 0; k < g->nodes[v].n_in; k++) {
            int u = g->nodes[v].in[k];
            if (f->level[u] == f->level[v] && !barrier(f, u, v))
                join(parent, u, v);
        }
    }
}

/* ---- numbering ---- */

/* Numbers of the groups by last member, of each node; how many there are. */
static int number_roots(int *parent, int n, int *group)
{
    int n_groups = 0;

    for (int v = 0; v < n; v++)
        if (find(parent, v) == v)
            group[v] = n_groups++;
    for (int v = 0; v < n; v++)
        group[v] = group[find(parent, v)];
    return n_groups;
}

/* In the order in which they run; group: room for a number per node. */
static void number_groups(struct ap_arena *arena, struct ap_graph *g, int *parent,
                          int *group)
{
    g->n_groups = number_roots(parent, g->n_nodes, group);
    int *place = AP_NEW_N(arena, g->n_groups, int);
    ap_order_groups(arena, g, group, g->n_groups, place);
    for (int v = 0; v < g->n_nodes; v++)
        g->nodes[v].group = place[group[v]];
}

static void group(struct ap_arena *arena, struct ap_graph *g, bool plain)
{
    struct ap_mark mark = ap_arena_mark(arena);
    int *parent = AP_NEW_N(arena, g->n_nodes, int);
    int *group = AP_NEW_N(arena, g->n_nodes, int);
    struct facts facts;

    find_facts(arena, g, plain, &facts);
    set_levels(&facts);
    fuse(&facts, parent);
    number_groups(arena, g, parent, group);
    ap_arena_rewind(arena, mark);
}

void ap_group(struct ap_arena *arena, struct ap_graph *g)
{
    group(arena, g, false);
}

void ap_group_plain(struct ap_arena *arena, struct ap_graph *g)
{
    group(arena, g, true);
}

void ap_group_part(struct ap_arena *arena, struct ap_graph *g, const int *whole)
{
    struct ap_mark mark = ap_arena_mark(arena);
    int *parent = AP_NEW_N(arena, g->n_nodes, int);
    int *group = AP_NEW_N(arena, g->n_nodes, int);

    for (int v = 0; v < g->n_nodes; v++) {
        parent[v] = v;
        for (int k = 0; k < g->nodes[v].n_in; k++) {
            int u = g->nodes[v].in[k];
            if (whole[u] >= 0 && whole[u] == whole[v])
                join(parent, u, v);
        }
    }
    number_groups(arena, g, parent, group);
    ap_arena_rewind(arena, mark);
}
