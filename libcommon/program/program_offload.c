/*
 * Problem: a plan keeps values on the host while nothing reads them: weights and states
 * of the optimizer, and values of the forward pass that the backward pass reads. Which
 * copies does a device make, and when?
 * Idea: a segment of the list of groups has one turn, and its groups run once, or with
 * each microbatch. All groups of a segment that read a value on the host read one copy of
 * it on the device. A copy to the device starts one such group early, so that the device
 * copies while it computes; its memory holds the copies in flight. A value of the forward pass is copied out behind its group, the
 * new value of a parameter on the host behind the group that computes it. Who reads a
 * view of such a value reads the same view of the copy. Linear in the operands. After Ren
 * et al., "ZeRO-Offload", USENIX ATC 2021 (states), and Rhu et al., "vDNN", MICRO 2016
 * (values of the forward pass, one step ahead).
 */
#include <assert.h>

#include "program/program.h"

enum { NONE = -1 };

/* A value that is copied in before group `at`. */
struct move {
    int node, at;
};

struct offload {
    struct ap_arena *arena;
    struct ap_program *prog;
    const struct ap_graph *g; /* before */
    int *start;   /* [group]: its first node; the number of nodes at the end */
    int *segment; /* [group] */
    bool *moved;  /* [node]: is copied in somewhere */
    int n_moves;
    struct move *move; /* by place */
    /* the new list */
    struct ap_node *nodes;
    int n_nodes, n_groups;
    int *source, *turn;
    int *to;     /* [node]: its new number */
    int *out;    /* [node]: its copy on the host, NONE */
    int *in;     /* [node]: its newest copy on the device, or view of one */
    int *in_for; /* [node]: the segment that this is for, NONE */
};

/* The value of which a node is a view, or the node itself. */
static int root_of(const struct ap_graph *g, int node)
{
    while (ap_program_is_view(g, node))
        node = g->nodes[node].in[0];
    return node;
}

static bool is_parameter(const struct offload *o, int node)
{
    return o->g->nodes[node].op == AP_OP_PARAMETER;
}

/* Whether a group reads a value, of which it reads a view, from the host. */
static bool reads_from_host(const struct offload *o, const bool *host, int group,
                            int root)
{
    const struct ap_node *n = &o->g->nodes[root];

    return host[o->prog->source[root]] && n->group != group &&
           (is_parameter(o, root) ||
            (o->prog->turn[n->group] == AP_TURN_FORWARD &&
             o->prog->turn[group] > AP_TURN_FORWARD && n->shape.dtype != AP_TUPLE &&
             !ap_program_is_carried(o->prog, root)));
}

static void find_groups(struct offload *o)
{
    const struct ap_program *prog = o->prog;
    int group = 0;

    for (int i = 0; i < o->g->n_nodes; i++)
        while (group <= o->g->nodes[i].group)
            o->start[group++] = i;
    while (group <= o->g->n_groups)
        o->start[group++] = o->g->n_nodes;
    for (int k = 1; k < o->g->n_groups; k++)
        o->segment[k] = o->segment[k - 1] + (prog->turn[k] != prog->turn[k - 1] ||
                                             k == prog->each_lo || k == prog->each_hi);
}

/* Lists what each group is the first of its segment to read. */
static void find_moves(struct offload *o, const bool *host)
{
    const struct ap_graph *g = o->g;
    int before = NONE; /* the last group that was the first to read something */

    for (int k = 0; k < g->n_groups; k++) {
        const bool follows = before != NONE && o->segment[before] == o->segment[k];
        const int at = follows ? before : k;
        for (int i = o->start[k]; i < o->start[k + 1]; i++)
            for (int j = 0; j < g->nodes[i].n_in; j++) {
                const int root = root_of(g, g->nodes[i].in[j]);
                if (!reads_from_host(o, host, k, root) ||
                    o->in_for[root] == o->segment[k])
                    continue;
                o->in_for[root] = o->segment[k];
                o->moved[root] = true;
                o->move[o->n_moves++] = (struct move){root, at};
                before = k;
            }
    }
    for (int i = 0; i < g->n_nodes; i++)
        o->in_for[i] = NONE;
}

/* ---- the new list ---- */

/* A node alone in its group, of the phase and the turn of old group `like`. */
static int add_alone(struct offload *o, const struct ap_node *node, int in, int source,
                     int like)
{
    const int id = o->n_nodes++;

    o->nodes[id] = *node;
    o->nodes[id].in = ap_arena_dup(o->arena, &in, sizeof in);
    o->nodes[id].n_in = 1;
    o->nodes[id].group = o->n_groups;
    o->nodes[id].phase = o->g->nodes[o->start[like]].phase;
    o->source[id] = source;
    o->turn[o->n_groups++] = o->prog->turn[like];
    return id;
}

/* A copy of new node `in`, which has the value of old node `of`. */
static int add_copy(struct offload *o, int in, int of, bool to_host, int like)
{
    const struct ap_node *old = &o->g->nodes[of];
    struct ap_attrs *attrs =
        ap_arena_dup(o->arena, &ap_attrs_default, sizeof ap_attrs_default);

    attrs->host = to_host;
    return add_alone(
        o,
        &(struct ap_node){.op = AP_OP_COPY,
                          .name = ap_arena_printf(o->arena, "%s.%s-host%d", old->name,
                                                  to_host ? "to" : "from", o->n_nodes),
                          .shape = old->shape,
                          .attrs = attrs,
                          .scope = old->scope,
                          .param = NONE},
        in, o->prog->source[of], like);
}

/* What a group reads as old node `node`: its copy, or a view of that. */
static int read_as(struct offload *o, int node, int root, int group)
{
    if (o->in_for[node] == o->segment[group])
        return o->in[node];
    assert(node != root);
    const struct ap_node *view = &o->g->nodes[node];
    const int from = read_as(o, view->in[0], root, group);
    o->in[node] = add_alone(o, view, from, o->prog->source[node], group);
    o->nodes[o->in[node]].name =
        ap_arena_printf(o->arena, "%s.again%d", view->name, o->in[node]);
    o->in_for[node] = o->segment[group];
    return o->in[node];
}

static void add_group(struct offload *o, const bool *host, int group)
{
    const int first = o->start[group], n = o->start[group + 1] - first;
    int **in = AP_NEW_N(o->arena, n + 1, int *);

    for (int i = 0; i < n; i++) {
        const struct ap_node *old = &o->g->nodes[first + i];
        in[i] = AP_NEW_N(o->arena, old->n_in + 1, int);
        for (int k = 0; k < old->n_in; k++) {
            const int root = root_of(o->g, old->in[k]);
            in[i][k] = NONE;
            if (reads_from_host(o, host, group, root))
                in[i][k] = read_as(o, old->in[k], root, group);
        }
    }
    for (int i = 0; i < n; i++) {
        const struct ap_node *old = &o->g->nodes[first + i];
        const int id = o->to[first + i] = o->n_nodes++;
        if (ap_program_is_view(o->g, first + i) && in[i][0] != NONE) {
            o->in[first + i] = id;
            o->in_for[first + i] = o->segment[group];
        }
        for (int k = 0; k < old->n_in; k++)
            if (in[i][k] == NONE)
                in[i][k] = o->to[old->in[k]];
        o->nodes[id] = *old;
        o->nodes[id].in = in[i];
        o->nodes[id].group = o->n_groups;
        o->source[id] = o->prog->source[first + i];
        if (!is_parameter(o, first + i) || !host[o->source[id]])
            continue;
        struct ap_attrs *attrs = ap_arena_dup(o->arena, old->attrs, sizeof *attrs);
        attrs->host = true;
        o->nodes[id].attrs = attrs;
    }
    o->turn[o->n_groups++] = o->prog->turn[group];
}

/* What a group made, that is on the host from there on. */
static void copy_out(struct offload *o, const bool *host, int group, int *new_value)
{
    const struct ap_graph *g = o->g;

    for (int i = o->start[group]; i < o->start[group + 1]; i++)
        if (o->moved[i] && !is_parameter(o, i))
            o->out[i] = add_copy(o, o->to[i], i, true, group);
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        if (g->nodes[res->node].group == group && res->alias >= 0 &&
            res->node != res->alias && host[o->prog->source[res->alias]])
            new_value[r] = add_copy(o, o->to[res->node], res->node, true, group);
    }
}

/* Takes the new list for the program's. */
static void take(struct offload *o, const int *new_value)
{
    struct ap_program *prog = o->prog;
    struct ap_err err = {0};

    prog->local.n_groups = o->n_groups;
    prog->source = o->source;
    prog->turn = o->turn;
    int rc = ap_graph_replace(o->arena, &prog->local, o->nodes, o->n_nodes, o->to, &err);
    for (int r = 0; r < prog->local.n_results; r++)
        if (new_value[r] != NONE)
            prog->local.results[r].node = new_value[r];
    rc |= ap_graph_index(o->arena, &prog->local, "/graph", &err);
    assert(rc == 0), (void)rc;
}

void ap_program_offload(struct ap_arena *arena, const bool *host, struct ap_program *prog)
{
    const struct ap_graph before = prog->local;
    const int n = before.n_nodes, n_groups = before.n_groups;
    int n_operands = 0, lo = 0, hi = 0, at = 0;
    struct offload o = {.arena = arena, .prog = prog, .g = &before};

    for (int i = 0; i < n; i++)
        n_operands += before.nodes[i].n_in;
    const int cap = n + 2 * n_operands + n + before.n_results;
    o.start = AP_NEW_N(arena, n_groups + 2, int);
    o.segment = AP_NEW_N(arena, n_groups + 1, int);
    o.moved = AP_NEW_N(arena, n + 1, bool);
    o.move = AP_NEW_N(arena, n_operands + 1, struct move);
    o.nodes = AP_NEW_N(arena, cap, struct ap_node);
    o.source = AP_NEW_N(arena, cap, int);
    o.turn = AP_NEW_N(arena, cap, int);
    o.to = AP_NEW_N(arena, n + 1, int);
    o.out = AP_NEW_N(arena, n + 1, int);
    o.in = AP_NEW_N(arena, n + 1, int);
    o.in_for = AP_NEW_N(arena, n + 1, int);
    int *new_value = AP_NEW_N(arena, before.n_results + 1, int);
    for (int i = 0; i < n; i++)
        o.in_for[i] = NONE;
    for (int r = 0; r < before.n_results; r++)
        new_value[r] = NONE;
    find_groups(&o);
    find_moves(&o, host);
    for (int k = 0; k < n_groups; k++) {
        lo = k == prog->each_lo ? o.n_groups : lo;
        hi = k == prog->each_hi ? o.n_groups : hi;
        for (; at < o.n_moves && o.move[at].at == k; at++) {
            const int v = o.move[at].node;
            o.in[v] = add_copy(&o, is_parameter(&o, v) ? o.to[v] : o.out[v], v, false, k);
            o.in_for[v] = o.segment[k];
        }
        add_group(&o, host, k);
        copy_out(&o, host, k, new_value);
    }
    prog->each_lo = prog->each_lo < n_groups ? lo : o.n_groups;
    prog->each_hi = prog->each_hi < n_groups ? hi : o.n_groups;
    take(&o, new_value);
}
