/*
 * Problem: does every operator of a program from a file find in its operands' buffers
 * what they computed, or has another value taken the memory? Idea: play one step on the
 * arena with owners in place of numbers. A group that writes a value becomes the owner of
 * the value's bytes; whoever reads a value must find it the owner of all of them. Groups
 * of the microbatch loop are played twice, so that what an iteration destroys for the
 * next is seen, and what a step destroys for the next step is seen at its end. Owners of
 * stretches are kept in a segment tree over the buffers' ends. Independent of the
 * lifetimes that buffers.c plans by. Cost: O(log n) per operand, operator and result.
 */
#include "program/program.h"

#include <stdlib.h>

enum { MIXED = -2, NOBODY = -1 };

struct play {
    const struct ap_program *prog;
    const int *value; /* [node]: the node whose numbers it shows (itself, or a view's) */
    int *lo, *hi;     /* [node]: stretches of its buffer; none where it is empty */
    int n;            /* stretches */
    int *owner;       /* the tree: a node, NOBODY, or MIXED */
    int first;        /* group that is played */
};

/* Why a node cannot run; other: the node that is in the way, -1. */
struct fault {
    const char *what;
    int other;
};

/* ---- owners of stretches ---- */

static void assign(struct play *p, int t, int lo, int hi, int from, int end, int owner)
{
    const int mid = (lo + hi) / 2;

    if (end <= lo || hi <= from)
        return;
    if (from <= lo && hi <= end) {
        p->owner[t] = owner;
        return;
    }
    if (p->owner[t] != MIXED)
        p->owner[2 * t] = p->owner[2 * t + 1] = p->owner[t];
    assign(p, 2 * t, lo, mid, from, end, owner);
    assign(p, 2 * t + 1, mid, hi, from, end, owner);
    p->owner[t] = p->owner[2 * t] == p->owner[2 * t + 1] ? p->owner[2 * t] : MIXED;
}

/* The first owner of a stretch that is not `owner`; MIXED: there is none. */
static int find_other(const struct play *p, int t, int lo, int hi, int from, int end,
                      int owner)
{
    const int mid = (lo + hi) / 2;

    if (end <= lo || hi <= from || p->owner[t] == owner)
        return MIXED;
    if (p->owner[t] != MIXED)
        return p->owner[t];
    const int left = find_other(p, 2 * t, lo, mid, from, end, owner);
    return left != MIXED ? left : find_other(p, 2 * t + 1, mid, hi, from, end, owner);
}

static void take(struct play *p, int node, int owner)
{
    assign(p, 1, 0, p->n, p->lo[node], p->hi[node], owner);
}

/* Who holds bytes of the buffer in place of the node's value; MIXED: nobody does. */
static int intruder(const struct play *p, int node)
{
    return find_other(p, 1, 0, p->n, p->lo[node], p->hi[node], p->value[node]);
}

static int compare_int64(const void *pa, const void *pb)
{
    const int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return (a > b) - (a < b);
}

static int place_of(const int64_t *edge, int n, int64_t at)
{
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (edge[mid] < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void cut_stretches(struct ap_arena *arena, struct play *p)
{
    const struct ap_graph *g = &p->prog->local;
    int64_t *edge = AP_NEW_N(arena, 2 * (size_t)g->n_nodes + 2, int64_t);
    int n = 0, unique = 0;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_buffer *b = &p->prog->buffer[i];
        if (b->offset < 0)
            continue;
        edge[n++] = b->offset;
        edge[n++] = b->offset + b->bytes;
    }
    qsort(edge, (size_t)n, sizeof *edge, compare_int64);
    for (int i = 0; i < n; i++)
        if (i == 0 || edge[i] != edge[unique - 1])
            edge[unique++] = edge[i];
    p->n = unique > 1 ? unique - 1 : 1;
    p->lo = AP_NEW_N(arena, g->n_nodes + 1, int);
    p->hi = AP_NEW_N(arena, g->n_nodes + 1, int);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_buffer *b = &p->prog->buffer[i];
        if (b->offset < 0)
            continue;
        p->lo[i] = place_of(edge, unique, b->offset);
        p->hi[i] = place_of(edge, unique, b->offset + b->bytes);
    }
    p->owner = AP_NEW_N(arena, 4 * (size_t)p->n + 2, int);
    assign(p, 1, 0, p->n, 0, p->n, NOBODY);
}

/* ---- whose numbers a node shows ---- */

/* Nodes in place of a parameter are its new values, others with an alias are views. */
static struct fault find_values(const struct ap_program *prog, int *value, int *node)
{
    const struct ap_graph *g = &prog->local;

    for (int i = 0; i < g->n_nodes; i++)
        value[i] = i;
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        if (res->alias < 0)
            continue;
        *node = res->node;
        if (value[res->alias] != res->alias)
            return (struct fault){"becomes a parameter that has a new value already", -1};
        value[res->alias] = MIXED; /* has one */
        if (prog->buffer[res->node].alias == res->alias &&
            !ap_program_is_view(g, res->node))
            value[res->node] = NOBODY; /* in place */
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        const int alias = prog->buffer[i].alias;
        const bool in_place = value[i] == NOBODY;
        value[i] = i;
        if (alias < 0 || in_place)
            continue;
        *node = i;
        if (!ap_program_is_view(g, i))
            return (struct fault){
                "shares the buffer of another node, but is neither a view "
                "of it nor its new value",
                alias};
        const int from = prog->buffer[n->in[0]].alias;
        if ((from >= 0 ? from : n->in[0]) != alias)
            return (struct fault){"is a view, but not of the node whose buffer it shares",
                                  alias};
        value[i] = value[n->in[0]];
    }
    return (struct fault){NULL, -1};
}

/* ---- a step ---- */

static bool is_written(const struct play *p, int node)
{
    return p->prog->buffer[node].offset >= 0 && p->value[node] == node &&
           p->prog->local.nodes[node].op != AP_OP_PARAMETER;
}

/* The fused pass of node `writer` reads parameter `param`, which it gives a new value:
 * element by element, before it is written. */
static bool reads_before(const struct ap_graph *g, int reader, int param, int writer)
{
    const struct ap_node *n = &g->nodes[reader];
    return reader <= writer && ap_ops[n->op].class == AP_CLASS_ELEMENTWISE &&
           ap_shape_same_dims(&n->shape, &g->nodes[param].shape);
}

static struct fault check_operands(const struct play *p, int node, bool written)
{
    const struct ap_graph *g = &p->prog->local;
    const struct ap_node *n = &g->nodes[node];

    for (int k = 0; k < n->n_in; k++) {
        const int in = n->in[k];
        if (g->nodes[in].group == n->group || p->prog->buffer[in].offset < 0)
            continue;
        const int other = intruder(p, in);
        if (other == MIXED)
            continue;
        if (!written)
            return (struct fault){other == NOBODY ? "reads a value that is not there yet"
                                                  : "reads a value whose memory is taken",
                                  other};
        if (p->prog->buffer[other].alias != in || !reads_before(g, node, in, other))
            return (struct fault){"reads a value that its group overwrites", other};
    }
    return (struct fault){NULL, -1};
}

/* Plays one group; *node: where a fault is. */
static struct fault play_group(struct play *p, int first, int end, bool again, int *node)
{
    struct fault f = {NULL, -1};

    for (*node = first; *node < end; ++*node) {
        f = check_operands(p, *node, false);
        if (!f.what && again && ap_program_is_carried(p->prog, *node) &&
            (f.other = intruder(p, *node)) != MIXED)
            f.what = "is carried from microbatch to microbatch, but its memory is taken";
        if (f.what)
            return f;
    }
    for (int i = first; i < end; i++)
        if (is_written(p, i))
            take(p, i, i);
    for (*node = first; *node < end; ++*node) {
        f = check_operands(p, *node, true);
        if (!f.what && is_written(p, *node) && (f.other = intruder(p, *node)) != MIXED)
            f.what = "has its memory taken by its own group";
        if (f.what)
            return f;
    }
    return (struct fault){NULL, -1};
}

/* Groups lo .. hi - 1. */
static struct fault play_groups(struct play *p, int lo, int hi, bool again, int *node)
{
    const struct ap_graph *g = &p->prog->local;
    struct fault f = {NULL, -1};

    for (int first = p->first, end; first < g->n_nodes && !f.what; first = end) {
        const int group = g->nodes[first].group;
        if (group >= hi)
            break;
        for (end = first; end < g->n_nodes && g->nodes[end].group == group; end++)
            ;
        if (group == lo)
            p->first = first; /* where the loop begins anew */
        if (group >= lo)
            f = play_group(p, first, end, again, node);
    }
    return f;
}

static struct fault play_step(struct play *p, int *node)
{
    const struct ap_program *prog = p->prog;
    const struct ap_graph *g = &prog->local;
    const bool loops = ap_mesh_microbatches(&prog->mesh) > 1;

    for (int i = 0; i < g->n_params; i++)
        take(p, g->params[i], g->params[i]);
    struct fault f = play_groups(p, 0, prog->each_hi, false, node);
    if (!f.what && loops)
        f = play_groups(p, prog->each_lo, prog->each_hi, true, node);
    if (!f.what)
        f = play_groups(p, prog->each_hi, g->n_groups, false, node);
    for (int r = 0; r < g->n_results && !f.what; r++) {
        *node = g->results[r].node;
        if ((f.other = intruder(p, *node)) != MIXED)
            f.what = "is a result, but its memory is taken before the step ends";
    }
    for (int i = 0; i < g->n_params && !f.what; i++) {
        *node = g->params[i];
        f.other = intruder(p, *node);
        if (f.other != MIXED && prog->buffer[f.other].alias != *node)
            f.what = "is a parameter, but its memory is taken before the step ends";
    }
    return f;
}

int ap_program_check_memory(const struct ap_program *prog, const struct ap_at *at,
                            struct ap_err *err)
{
    const struct ap_graph *g = &prog->local;
    struct ap_arena scratch = {0};
    struct play p = {.prog = prog};
    int *value = AP_NEW_N(&scratch, g->n_nodes + 1, int), node = 0;
    struct fault f = find_values(prog, value, &node);

    p.value = value;
    if (!f.what) {
        cut_stretches(&scratch, &p);
        f = play_step(&p, &node);
    }
    ap_arena_free(&scratch);
    if (!f.what)
        return 0;
    struct ap_at graph = {at, "graph", 0}, nodes = {&graph, "nodes", 0};
    struct ap_at here = {&nodes, NULL, node};
    if (f.other < 0)
        return ap_at_err(&here, err, "(%s) %s", g->nodes[node].name, f.what);
    return ap_at_err(&here, err, "(%s) %s (by node %d, %s)", g->nodes[node].name, f.what,
                     f.other, g->nodes[f.other].name);
}
