/*
 * Cones, and the values that cross between parts of a graph.
 *
 * Problem: choosing a strategy for every node of a train step at once is too much for an
 * integer program, though most nodes just follow the one that reads them. Idea: a node
 * with a single reader belongs to its reader's cone, so a cone is a tree that grows
 * backwards from its root until the next roots; given the root's strategy a dynamic
 * program over the tree decides the rest, and the integer program only sees roots. Higher
 * levels have more roots: more choices that are made together, and more of them.
 *
 * Roots are marked in one sweep (readers counted through the stamp of the last one); a
 * sweep from the end hands every other node its reader's cone. A node that depends on
 * constants alone can be computed in any layout by its readers, so it has no cone and
 * counts neither as operand nor as reader; a heavy operator never is such a node.
 *
 * Cost: linear in nodes and edges. After Rhino (Zhang et al., "Auto-Parallelizing Large
 * Models with Rhino: A Systematic Approach on Production AI Platform"), 4.3.2, which has
 * roots by operands, and its open program TePDist, which has them by readers at levels 0
 * and 1, and by both at 2 and 3.
 */
#include "graph/critical.h"

/* Which nodes are constants, iotas or made of these alone. */
static uint8_t *find_constant(struct ap_arena *arena, const struct ap_graph *g)
{
    uint8_t *constant = AP_NEW_N(arena, g->n_nodes, uint8_t);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        constant[v] =
            node->op != AP_OP_PARAMETER && ap_ops[node->op].class != AP_CLASS_HEAVY;
        for (int k = 0; k < node->n_in; k++)
            constant[v] &= constant[node->in[k]];
    }
    return constant;
}

struct marks {
    const struct ap_graph *g;
    const int *scope_of;     /* NULL: one scope */
    const uint8_t *constant; /* [node] */
    int *reader;             /* [node]: its last one in its scope, -1 for none */
    uint8_t *root;           /* [node] */
};

static bool counts(const struct marks *m, int operand, int reader)
{
    return !m->constant[operand] &&
           (m->scope_of == NULL || m->scope_of[operand] == m->scope_of[reader]);
}

/* Marks nodes that several others of their scope read; by_operands: also nodes that read
   several, and what these read. */
static void mark_joints(struct marks *m, bool by_operands)
{
    for (int v = 0; v < m->g->n_nodes; v++)
        m->reader[v] = -1;
    for (int v = 0; v < m->g->n_nodes; v++) {
        const struct ap_node *node = &m->g->nodes[v];
        int n_operands = 0;
        for (int k = 0; k < node->n_in; k++) {
            int u = node->in[k];
            if (!counts(m, u, v) || m->reader[u] == v)
                continue;
            m->root[u] |= m->reader[u] >= 0;
            m->reader[u] = v;
            n_operands++;
        }
        if (!by_operands || n_operands < 2)
            continue;
        m->root[v] = 1;
        for (int k = 0; k < node->n_in; k++)
            m->root[node->in[k]] |= counts(m, node->in[k], v);
    }
}

static void mark_results(struct marks *m)
{
    for (int i = 0; i < m->g->n_results; i++) {
        m->root[m->g->results[i].node] = 1;
        if (m->g->results[i].alias >= 0)
            m->root[m->g->results[i].alias] = 1;
    }
}

void ap_cones_of(struct ap_arena *arena, const struct ap_graph *g, const int *scope_of,
                 int level, int n_fixed, const int *fixed, struct ap_cones *cones)
{
    int *cone_of = AP_NEW_N(arena, g->n_nodes, int);
    int *roots = AP_NEW_N(arena, g->n_nodes, int);
    struct ap_mark mark = ap_arena_mark(arena);
    struct marks m = {.g = g,
                      .scope_of = scope_of,
                      .constant = find_constant(arena, g),
                      .reader = AP_NEW_N(arena, g->n_nodes, int),
                      .root = AP_NEW_N(arena, g->n_nodes, uint8_t)};
    int n = 0;

    mark_joints(&m, level >= 2);
    mark_results(&m);
    for (int i = 0; i < n_fixed; i++)
        m.root[fixed[i]] = 1;
    for (int v = 0; v < g->n_nodes; v++) {
        cone_of[v] = -1;
        if (m.constant[v] || !(m.root[v] || m.reader[v] < 0 || level >= 4))
            continue;
        cone_of[v] = n;
        roots[n++] = v;
    }
    for (int v = g->n_nodes - 1; v >= 0; v--)
        if (!m.constant[v] && cone_of[v] < 0)
            cone_of[v] = cone_of[m.reader[v]];
    ap_arena_rewind(arena, mark);
    *cones = (struct ap_cones){.n = n, .root = roots, .cone_of = cone_of};
}

/* ---- parts ---- */

/* Counts become starts: start[i] items before part i's, moved up by one to be filled. */
static void add_up(int *start, int n)
{
    for (int i = 0; i < n; i++)
        start[i + 1] += start[i];
}

/*
 * Pairs (part, node that it reads from another part), nodes ascending. last[part] is the
 * node seen last; item NULL: only counts them in fill[part + 1].
 */
static void each_input(const struct ap_graph *g, const int *part_of, int *last, int *fill,
                       int *item)
{
    for (int u = 0; u < g->n_nodes; u++) {
        if (part_of[u] < 0)
            continue;
        for (int k = g->user_start[u]; k < g->user_start[u + 1]; k++) {
            int part = part_of[g->users[k]];
            if (part < 0 || part == part_of[u] || last[part] == u)
                continue;
            last[part] = u;
            if (item == NULL)
                fill[part + 1]++;
            else
                item[fill[part]++] = u;
        }
    }
}

void ap_parts_of(struct ap_arena *arena, const struct ap_graph *g, int n,
                 const int *part_of, struct ap_parts *parts)
{
    int *node_start = AP_NEW_N(arena, n + 1, int),
        *in_start = AP_NEW_N(arena, n + 1, int);
    int *node = AP_NEW_N(arena, g->n_nodes, int);
    int *last = AP_NEW_N(arena, n, int), *fill = AP_NEW_N(arena, n, int);

    for (int v = 0; v < g->n_nodes; v++)
        if (part_of[v] >= 0)
            node_start[part_of[v] + 1]++;
    add_up(node_start, n);
    for (int i = 0; i < n; i++) {
        last[i] = -1;
        fill[i] = node_start[i];
    }
    for (int v = 0; v < g->n_nodes; v++)
        if (part_of[v] >= 0)
            node[fill[part_of[v]]++] = v;

    each_input(g, part_of, last, in_start, NULL);
    add_up(in_start, n);
    int *in = AP_NEW_N(arena, in_start[n], int);
    for (int i = 0; i < n; i++) {
        last[i] = -1;
        fill[i] = in_start[i];
    }
    each_input(g, part_of, last, fill, in);
    *parts = (struct ap_parts){n, node_start, node, in_start, in};
}
