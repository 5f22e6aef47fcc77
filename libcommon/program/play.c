/*
 * Problem: does every operator of a program find in its operands' buffers what they
 * computed, or has another value taken the memory? Idea: play the program on the arena
 * with owners in place of numbers. A group that writes a value becomes the owner of the
 * value's bytes; a reader of a value must find it the owner of all its bytes. Owners of
 * stretches are kept in a segment tree over the buffers' ends. Independent of the
 * lifetimes that buffers are planned by. Cost: O(log n) per operand, operator and result.
 */
#include "program/play.h"

#include <stdlib.h>

static const struct ap_fault no_fault = {NULL, -1, AP_NOBODY};

/* ---- owners of stretches ---- */

/* Stretches lo .. hi - 1 of node t of the tree, of which from .. end - 1 are meant. */
struct part {
    int t, lo, hi, from, end;
};

static struct part half(const struct part *a, bool right)
{
    const int mid = (a->lo + a->hi) / 2;
    return right ? (struct part){2 * a->t + 1, mid, a->hi, a->from, a->end}
                 : (struct part){2 * a->t, a->lo, mid, a->from, a->end};
}

static void assign(struct ap_owners *o, struct part a, int64_t owner)
{
    int64_t *mine = &o->owner[a.t];

    if (a.end <= a.lo || a.hi <= a.from)
        return;
    if (a.from <= a.lo && a.hi <= a.end) {
        *mine = owner;
        return;
    }
    int64_t *below = &o->owner[(size_t)2 * (size_t)a.t];
    if (*mine != AP_MIXED)
        below[0] = below[1] = *mine;
    assign(o, half(&a, false), owner);
    assign(o, half(&a, true), owner);
    *mine = below[0] == below[1] ? below[0] : AP_MIXED;
}

static int64_t find_other(const struct ap_owners *o, struct part a, int64_t owner)
{
    if (a.end <= a.lo || a.hi <= a.from || o->owner[a.t] == owner)
        return AP_MIXED;
    if (o->owner[a.t] != AP_MIXED)
        return o->owner[a.t];
    const int64_t left = find_other(o, half(&a, false), owner);
    return left != AP_MIXED ? left : find_other(o, half(&a, true), owner);
}

static int place_of(const struct ap_owners *o, int64_t at)
{
    int lo = 0, hi = o->n;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (o->edge[mid] < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct part part_of(const struct ap_owners *o, int64_t from, int64_t end)
{
    return (struct part){1, 0, o->n, place_of(o, from), place_of(o, end)};
}

void ap_owners_take(struct ap_owners *o, int64_t from, int64_t end, int64_t owner)
{
    if (from < end)
        assign(o, part_of(o, from, end), owner);
}

int64_t ap_owners_other(const struct ap_owners *o, int64_t from, int64_t end,
                        int64_t owner)
{
    return from < end ? find_other(o, part_of(o, from, end), owner) : AP_MIXED;
}

static int compare_int64(const void *pa, const void *pb)
{
    const int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return (a > b) - (a < b);
}

void ap_owners_open(struct ap_arena *arena, struct ap_owners *o, int64_t *edge,
                    int n_edges)
{
    int unique = 0;

    qsort(edge, (size_t)n_edges, sizeof *edge, compare_int64);
    for (int i = 0; i < n_edges; i++)
        if (i == 0 || edge[i] != edge[unique - 1])
            edge[unique++] = edge[i];
    *o = (struct ap_owners){.edge = edge, .n = unique > 1 ? unique - 1 : 1};
    o->owner = AP_NEW_N(arena, 4 * (size_t)o->n + 4, int64_t);
    o->owner[1] = AP_NOBODY;
}

/* ---- whose numbers a node shows ---- */

/* Nodes in place of a parameter are its new values, others with an alias are views. */
static struct ap_fault find_values(const struct ap_program *prog, int *value)
{
    const struct ap_graph *g = &prog->local;

    for (int i = 0; i < g->n_nodes; i++)
        value[i] = i;
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        if (res->alias < 0)
            continue;
        if (value[res->alias] != res->alias)
            return (struct ap_fault){"becomes a parameter that has a new value already",
                                     res->node, AP_NOBODY};
        value[res->alias] = AP_MIXED; /* has one */
        if (prog->buffer[res->node].alias == res->alias &&
            !ap_program_is_view(g, res->node))
            value[res->node] = AP_NOBODY; /* in place */
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        const int alias = prog->buffer[i].alias;
        const bool in_place = value[i] == AP_NOBODY;
        value[i] = i;
        if (alias < 0 || in_place)
            continue;
        if (ap_program_reduces_in_place(prog, i) && alias == n->in[0])
            continue; /* takes its operand's memory when it runs */
        if (!ap_program_is_view(g, i))
            return (struct ap_fault){
                "shares the buffer of another node, but is neither a view "
                "of it nor its new value",
                i, alias};
        const int from = prog->buffer[n->in[0]].alias;
        if ((from >= 0 ? from : n->in[0]) != alias)
            return (struct ap_fault){
                "is a view, but not of the node whose buffer it shares", i, alias};
        value[i] = value[n->in[0]];
    }
    return no_fault;
}

struct ap_fault ap_play_open(struct ap_arena *arena, struct ap_play *p)
{
    const struct ap_graph *g = &p->prog->local;
    int *value = AP_NEW_N(arena, g->n_nodes + 1, int);
    int *start = AP_NEW_N(arena, g->n_groups + 2, int), group = 0;
    int *first = AP_NEW_N(arena, g->n_groups + 2, int);
    int *next = AP_NEW_N(arena, g->n_groups + 2, int);

    for (int i = 0; i < g->n_nodes; i++)
        while (group <= g->nodes[i].group)
            start[group++] = i;
    while (group <= g->n_groups)
        start[group++] = g->n_nodes;
    for (int i = 0; i <= g->n_groups; i++)
        first[i] = -1;
    for (int i = 0; i < g->n_groups && p->prog->wait; i++)
        if (p->prog->wait[i] >= 0) {
            next[i] = first[p->prog->wait[i]];
            first[p->prog->wait[i]] = i;
        }
    p->value = value;
    p->start = start;
    p->first_awaited = first;
    p->next_awaited = next;
    return find_values(p->prog, value);
}

/* ---- a group ---- */

static int64_t number(const struct ap_play *p, int node)
{
    return p->first + node * p->n_tags + (p->each[node] ? p->tag : 0);
}

int ap_play_node(const struct ap_play *p, int64_t of)
{
    const int64_t at = (of - p->first) / p->n_tags;
    return of < p->first || at >= p->prog->local.n_nodes ? -1 : (int)at;
}

void ap_play_take(struct ap_play *p, int node)
{
    const struct ap_buffer *b = &p->prog->buffer[node];
    const int64_t at = ap_slot_offset(&p->slot, b);

    if (b->offset >= 0)
        ap_owners_take(p->owners, at, at + b->bytes, number(p, node));
}

int64_t ap_play_intruder(const struct ap_play *p, int node)
{
    const struct ap_buffer *b = &p->prog->buffer[node];
    const int64_t at = ap_slot_offset(&p->slot, b);

    return b->offset < 0
               ? AP_MIXED
               : ap_owners_other(p->owners, at, at + b->bytes, number(p, p->value[node]));
}

static bool is_written(const struct ap_play *p, int node)
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

static struct ap_fault check_operands(const struct ap_play *p, int node, bool written)
{
    const struct ap_graph *g = &p->prog->local;
    const struct ap_node *n = &g->nodes[node];

    for (int k = 0; k < n->n_in; k++) {
        const int in = n->in[k];
        if (g->nodes[in].group == n->group || p->prog->buffer[in].offset < 0)
            continue;
        const int64_t other = ap_play_intruder(p, in);
        if (other == AP_MIXED)
            continue;
        if (!written)
            return (struct ap_fault){other == AP_NOBODY
                                         ? "reads a value that is not there yet"
                                         : "reads a value whose memory is taken",
                                     node, other};
        const int writer = ap_play_node(p, other);
        if (writer == node && ap_program_reduces_in_place(p->prog, node))
            continue;
        if (writer < 0 || p->prog->buffer[writer].alias != in ||
            !reads_before(g, node, in, writer))
            return (struct ap_fault){"reads a value that its group overwrites", node,
                                     other};
    }
    return no_fault;
}

static struct ap_fault play_group(struct ap_play *p, int first, int end, bool again)
{
    struct ap_fault f = no_fault;

    for (int i = first; i < end && !f.what; i++) {
        f = check_operands(p, i, false);
        if (f.what || !again || !ap_program_is_carried(p->prog, i))
            continue;
        const int64_t other = ap_play_intruder(p, i);
        if (other != AP_MIXED)
            f = (struct ap_fault){
                "is carried from microbatch to microbatch, but its memory is taken", i,
                other};
    }
    for (int i = first; i < end && !f.what; i++)
        if (is_written(p, i))
            ap_play_take(p, i);
    for (int i = first; i < end && !f.what; i++) {
        f = check_operands(p, i, true);
        const int64_t other =
            f.what || !is_written(p, i) ? AP_MIXED : ap_play_intruder(p, i);
        if (other != AP_MIXED)
            f = (struct ap_fault){"has its memory taken by its own group", i, other};
    }
    return f;
}

/* A collective is awaited: meanwhile nobody wrote what it reads and writes. */
static struct ap_fault check_awaited(const struct ap_play *p, int node)
{
    const int in = p->prog->local.nodes[node].in[0];
    int64_t other = ap_play_intruder(p, node);

    if (other == AP_MIXED && !ap_program_reduces_in_place(p->prog, node))
        other = ap_play_intruder(p, in);
    if (other == AP_MIXED)
        return no_fault;
    return (struct ap_fault){"has its memory taken while it is in flight", node, other};
}

struct ap_fault ap_play_groups(struct ap_play *p, int lo, int hi, bool again)
{
    struct ap_fault f = no_fault;

    for (int group = lo; group < hi && !f.what; group++) {
        for (int c = p->first_awaited[group]; c >= 0 && !f.what; c = p->next_awaited[c])
            if (c >= lo) /* else it was awaited at the end of what ran before */
                f = check_awaited(p, p->start[c]);
        if (!f.what)
            f = play_group(p, p->start[group], p->start[group + 1], again);
    }
    for (int group = lo; group < hi && p->prog->wait && !f.what; group++)
        if (p->prog->wait[group] >= hi)
            f = check_awaited(p, p->start[group]);
    return f;
}

struct ap_fault ap_play_end(const struct ap_play *p, const bool *lasting)
{
    const struct ap_graph *g = &p->prog->local;

    for (int r = 0; r < g->n_results; r++) {
        const int node = g->results[r].node;
        const int64_t other =
            !lasting[g->n_params + r] ? AP_MIXED : ap_play_intruder(p, node);
        if (other != AP_MIXED)
            return (struct ap_fault){
                "is a result, but its memory is taken before the step ends", node, other};
    }
    for (int k = 0; k < g->n_params; k++) {
        const int node = g->params[k];
        const int64_t other = !lasting[k] ? AP_MIXED : ap_play_intruder(p, node);
        const int by = other < 0 ? -1 : ap_play_node(p, other);
        if (other != AP_MIXED && (by < 0 || p->prog->buffer[by].alias != node))
            return (struct ap_fault){
                "is a parameter, but its memory is taken before the step ends", node,
                other};
    }
    return no_fault;
}
