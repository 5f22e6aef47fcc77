/*
 * Kernels of a program: groups that a device runs as one kernel each.
 *
 * Problem: `ap-fuse --kernels` marks the operators between two contractions
 * (ap-fuse/kernels.c), but the program's groups end at every reduction and reshape, and
 * every value between two groups is written and read. Idea: kernel_units.c finds new
 * groups, and the values that each group recomputes. The list is written anew: a group
 * comes where its first member was, or as soon as its operands have been computed; nodes
 * without readers are dropped. Marks come from a document: a kernel that stands in a
 * circle with others stays as it was. Cost: O((nodes + edges) log groups), and the
 * copies.
 */
#include <assert.h>

#include "base/array.h"
#include "base/heap.h"
#include "program/kernel_units.h"

enum { NONE = -1 };

/* The nodes as they were, with other operands, then copies. */
struct records {
    const struct kernels *k;
    int n, cap, cap_source, cap_set;
    struct ap_node *node;
    int *source, *set;
    /* [node as it was]: its latest copy, and the set that that is in */
    int *copy, *copy_in;
};

static const struct ap_node *at(const struct kernels *k, int v)
{
    return kernels_node(k, v);
}

/* ---- the new list ---- */

static int put(struct records *r, const struct ap_node *n, int source, int set)
{
    int n_source = r->n, n_set = r->n;

    AP_ROOM_IN(r->k->arena, r->node, r->n, r->cap);
    AP_ROOM_IN(r->k->arena, r->source, n_source, r->cap_source);
    AP_ROOM_IN(r->k->arena, r->set, n_set, r->cap_set);
    r->node[r->n] = *n;
    r->source[r->n] = source;
    r->set[r->n] = set;
    return r->n++;
}

static int copy_of(struct records *r, int set, int v);

/* The record that node v, or its copy in `set`, reads as operand i. */
static int operand(struct records *r, int set, int v, int i)
{
    const struct kernel_set *s = &r->k->sets[set];
    const int in = at(r->k, v)->in[i];

    if (r->k->set[in] == set || s->unit == NONE || s->alone ||
        !ap_kernel_copies(r->k, s, v, in))
        return in;
    return copy_of(r, set, in);
}

static int copy_of(struct records *r, int set, int v)
{
    const struct kernel_set *s = &r->k->sets[set];
    struct ap_node n = *at(r->k, v);
    struct ap_attrs *attrs = ap_arena_dup(r->k->arena, n.attrs, sizeof *attrs);
    int *in = AP_NEW_N(r->k->arena, n.n_in + 1, int);

    if (r->copy_in[v] == set)
        return r->copy[v];
    for (int i = 0; i < n.n_in; i++)
        in[i] = operand(r, set, v, i);
    attrs->kernel = r->k->unit[s->unit].kernel;
    n.attrs = attrs;
    n.in = in;
    n.phase = at(r->k, s->lead)->phase;
    n.name = ap_arena_printf(r->k->arena, "%s.%s.%d", n.name,
                             s->columns ? "cols" : "copy", r->n - r->k->g->n_nodes);
    r->copy_in[v] = set;
    return r->copy[v] = put(r, &n, r->k->prog->source[v], set);
}

/* The nodes as they were, set by set. */
static int *by_set(const struct kernels *k)
{
    const int n = k->g->n_nodes;
    int *start = AP_NEW_N(k->arena, k->n_sets + 1, int);
    int *order = AP_NEW_N(k->arena, n + 1, int);

    for (int v = 0; v < n; v++)
        start[k->set[v] + 1]++;
    for (int s = 0; s < k->n_sets; s++)
        start[s + 1] += start[s];
    for (int v = 0; v < n; v++)
        order[start[k->set[v]]++] = v;
    return order;
}

static void make_records(struct records *r)
{
    const int n = r->k->g->n_nodes;
    const int *order = by_set(r->k);

    for (int v = 0; v < n; v++) {
        put(r, at(r->k, v), r->k->prog->source[v], r->k->set[v]);
        r->copy_in[v] = NONE;
    }
    for (int k = 0; k < n; k++) {
        const int v = order[k];
        int *in = AP_NEW_N(r->k->arena, at(r->k, v)->n_in + 1, int);
        for (int i = 0; i < at(r->k, v)->n_in; i++)
            in[i] = operand(r, r->k->set[v], v, i);
        r->node[v].in = in;
    }
}

/* Which records somebody reads in the end. */
static bool *find_alive(struct records *r)
{
    bool *alive = AP_NEW_N(r->k->arena, r->n + 1, bool);
    int *todo = AP_NEW_N(r->k->arena, r->n + 1, int), n = 0;

    for (int i = 0; i < r->k->g->n_results; i++)
        alive[r->k->g->results[i].node] = true;
    for (int v = 0; v < r->k->g->n_nodes; v++)
        alive[v] |= at(r->k, v)->op == AP_OP_PARAMETER ||
                    r->k->g->user_start[v] == r->k->g->user_start[v + 1];
    for (int v = 0; v < r->k->g->n_nodes; v++)
        if (alive[v])
            todo[n++] = v;
    while (n > 0) {
        const struct ap_node *node = &r->node[todo[--n]];
        for (int i = 0; i < node->n_in; i++)
            if (!alive[node->in[i]]) {
                alive[node->in[i]] = true;
                todo[n++] = node->in[i];
            }
    }
    return alive;
}

/* A set, by where it was. */
struct ready {
    int run, place, set;
};

static bool is_before(const void *pa, const void *pb)
{
    const struct ready *a = pa, *b = pb;
    if (a->run != b->run)
        return a->run < b->run;
    return a->place != b->place ? a->place < b->place : a->set < b->set;
}

struct links {
    int *start, *record; /* [set]: its records that are alive */
    int *left;           /* [set]: operands that are in sets that are not in the list */
    int *user_start, *user;
};

static int *start_of(struct records *r, int n)
{
    return AP_NEW_N(r->k->arena, n + 2, int);
}

static void find_links(struct records *r, const bool *alive, struct links *l)
{
    int n_edges = 0;

    *l = (struct links){.start = start_of(r, r->k->n_sets),
                        .record = AP_NEW_N(r->k->arena, r->n + 1, int),
                        .left = AP_NEW_N(r->k->arena, r->k->n_sets + 1, int),
                        .user_start = start_of(r, r->k->n_sets)};
    for (int v = 0; v < r->n; v++) {
        if (!alive[v])
            continue;
        l->start[r->set[v] + 2]++;
        for (int i = 0; i < r->node[v].n_in; i++) {
            const int from = r->set[r->node[v].in[i]];
            if (from == r->set[v])
                continue;
            l->user_start[from + 2]++;
            l->left[r->set[v]]++;
            n_edges++;
        }
    }
    for (int s = 2; s < r->k->n_sets + 2; s++) {
        l->start[s] += l->start[s - 1];
        l->user_start[s] += l->user_start[s - 1];
    }
    l->user = AP_NEW_N(r->k->arena, n_edges + 1, int);
    for (int v = 0; v < r->n; v++) {
        if (!alive[v])
            continue;
        l->record[l->start[r->set[v] + 1]++] = v;
        for (int i = 0; i < r->node[v].n_in; i++) {
            const int from = r->set[r->node[v].in[i]];
            if (from != r->set[v])
                l->user[l->user_start[from + 1]++] = r->set[v];
        }
    }
}

static void push(const struct records *r, struct ap_heap *heap, int set)
{
    ap_heap_push(heap, &(struct ready){r->k->sets[set].run, r->k->sets[set].place, set});
}

/* The sets in their new order; how many are in it. */
static int order_sets(struct records *r, const struct links *l, int *order)
{
    struct ap_heap heap = {.size = sizeof(struct ready), .before = is_before};
    struct ready next;
    int n = 0;

    for (int s = 0; s < r->k->n_sets; s++)
        if (l->start[s] < l->start[s + 1] && l->left[s] == 0)
            push(r, &heap, s);
    while (ap_heap_pop(&heap, &next)) {
        order[n++] = next.set;
        for (int i = l->user_start[next.set]; i < l->user_start[next.set + 1]; i++)
            if (--l->left[l->user[i]] == 0)
                push(r, &heap, l->user[i]);
    }
    ap_heap_free(&heap);
    return n;
}

/* Units with sets that are not in the list: they wait for each other. */
static bool ban(struct records *r, const struct links *l, bool *banned)
{
    bool any = false;

    for (int s = 0; s < r->k->n_sets; s++)
        if (l->left[s] > 0 && l->start[s] < l->start[s + 1] && r->k->sets[s].unit != NONE)
            any = banned[r->k->sets[s].unit] = true;
    return any;
}

struct list {
    struct ap_node *nodes;
    int *source, *turn, *to; /* to: [record], NONE */
    int n_nodes, n_groups;
};

/* A record after those of its set that it reads: copies may stand after their users. */
static void write(struct records *r, struct list *out, int v)
{
    struct ap_node n = r->node[v];
    int *in = AP_NEW_N(r->k->arena, n.n_in + 1, int);

    if (out->to[v] != NONE)
        return;
    for (int i = 0; i < n.n_in; i++) {
        if (r->set[n.in[i]] == r->set[v])
            write(r, out, n.in[i]);
        in[i] = out->to[n.in[i]];
        assert(in[i] != NONE);
    }
    n.in = in;
    n.group = out->n_groups;
    out->to[v] = out->n_nodes;
    out->source[out->n_nodes] = r->source[v];
    out->nodes[out->n_nodes++] = n;
}

static void take(struct records *r, struct ap_program *prog, const struct list *l)
{
    struct ap_err err = {0};

    prog->local.n_groups = l->n_groups;
    prog->source = l->source;
    prog->turn = l->turn;
    const int rc =
        ap_graph_replace(r->k->arena, &prog->local, l->nodes, l->n_nodes, l->to, &err);
    assert(rc == 0), (void)rc;
}

static void write_list(struct records *r, struct ap_program *prog, const struct links *l,
                       const int *order, int n)
{
    struct list out = {.nodes = AP_NEW_N(r->k->arena, r->n + 1, struct ap_node),
                       .source = AP_NEW_N(r->k->arena, r->n + 1, int),
                       .turn = AP_NEW_N(r->k->arena, n + 1, int),
                       .to = AP_NEW_N(r->k->arena, r->n + 1, int)};
    int before[3] = {0}; /* groups before the stretch after each */

    for (int v = 0; v < r->n; v++)
        out.to[v] = NONE;
    for (int i = 0; i < n; i++) {
        const struct kernel_set *s = &r->k->sets[order[i]];
        for (int v = l->start[order[i]]; v < l->start[order[i] + 1]; v++)
            write(r, &out, l->record[v]);
        out.turn[out.n_groups++] = r->k->prog->turn[s->place];
        before[kernels_stretch(r->k->prog, s->place)] = out.n_groups;
    }
    const bool loops = prog->each_lo < prog->each_hi;
    prog->each_lo = before[0];
    prog->each_hi = loops && before[1] > before[0] ? before[1] : before[0];
    take(r, prog, &out);
}

/* Whether the sets of units that are not banned have an order; the others are banned
 * then. */
static bool make_list(const struct kernels *k, struct ap_program *prog, bool *banned)
{
    const int n = k->g->n_nodes + 1;
    struct records r = {.k = k,
                        .copy = AP_NEW_N(k->arena, n, int),
                        .copy_in = AP_NEW_N(k->arena, n, int)};
    struct links links;

    make_records(&r);
    find_links(&r, find_alive(&r), &links);
    int *order = AP_NEW_N(k->arena, k->n_sets + 1, int);
    const int n_ordered = order_sets(&r, &links, order);
    if (ban(&r, &links, banned))
        return false;
    write_list(&r, prog, &links, order, n_ordered);
    return true;
}

void ap_program_kernels(struct ap_arena *arena, struct ap_program *prog)
{
    ap_program_split(arena, prog, true);
    ap_program_attention(arena, prog);
    const struct ap_graph before = prog->local;
    bool *banned = AP_NEW_N(arena, before.n_nodes + 1, bool);
    bool done = false;

    while (!done) {
        struct kernels k = {.arena = arena, .prog = prog, .g = &before};
        ap_kernel_units_find(&k, banned);
        done = k.n_units == 0 || make_list(&k, prog, banned);
    }
}
