/*
 * Cuts a part out of a graph. One pass back over the nodes marks the nodes that are taken
 * whole, copied and cut; one pass forward writes the part. Linear, and no more than a
 * byte of a node that is not taken is read: pipelines cut a large graph into many parts.
 */
#include "graph/subgraph.h"

#include <stdlib.h>

#include "base/array.h"
#include "graph/group.h"

enum taking { LEFT, WHOLE, COPIED, CUT };
enum made { UNKNOWN, OF_CONSTANTS, OF_OTHERS };

struct cutter {
    struct ap_arena *arena, scratch;
    const struct ap_graph *g;
    uint8_t *take; /* enum taking */
    uint8_t *made; /* enum made, of nodes that were asked for */
    int *id;       /* node of the part, -1 */
    int *todo;     /* scratch of is_constant */
    int n_todo, cap_todo;
};

/* What is known of a node by its operands; *next: the first of those to ask for, if more
 * is to be known. Parameters are near to the first operands. */
static enum made made_of(const struct cutter *c, int node, int *next)
{
    const struct ap_node *n = &c->g->nodes[node];

    *next = -1;
    if (n->op == AP_OP_PARAMETER)
        return OF_OTHERS;
    for (int k = 0; k < n->n_in; k++) {
        const int in = n->in[k];
        if (c->made[in] == OF_OTHERS)
            return OF_OTHERS;
        if (c->made[in] == UNKNOWN && (*next < 0 || in < *next))
            *next = in;
    }
    return *next < 0 ? OF_CONSTANTS : UNKNOWN;
}

/* Made of constants and iotas alone. */
static bool is_constant(struct cutter *c, int node)
{
    int next = node;

    while (c->made[node] == UNKNOWN) {
        AP_ROOM(c->todo, c->n_todo, c->cap_todo);
        c->todo[c->n_todo++] = next;
        while (c->n_todo > 0) {
            const int at = c->todo[c->n_todo - 1];
            c->made[at] = (uint8_t)made_of(c, at, &next);
            if (c->made[at] == UNKNOWN)
                break;
            c->n_todo--;
        }
    }
    return c->made[node] == OF_CONSTANTS;
}

/* A scalar is cut rather than its broadcast. */
static bool is_spread_scalar(const struct ap_graph *g, int node)
{
    const struct ap_node *n = &g->nodes[node];
    return n->op == AP_OP_BROADCAST && g->nodes[n->in[0]].shape.rank == 0;
}

/* A result that is the new value of another parameter, which the part that makes the
 * result has, whether it reads it or not. */
static bool is_new_value(const struct ap_result *r)
{
    return r->alias >= 0 && r->alias != r->node;
}

/* Whether the part has the result: of a parameter, the part that it is inside of. */
static bool has_result(struct cutter *c, const bool *inside, const struct ap_result *r)
{
    const bool parameter = c->g->nodes[r->node].op == AP_OP_PARAMETER;

    if (c->take[r->node] != WHOLE || (parameter && r->alias == r->node))
        return false;
    return inside[r->node] || !(parameter || is_constant(c, r->node));
}

static void mark_new_values(struct cutter *c, const bool *inside)
{
    const struct ap_graph *g = c->g;

    for (int r = 0; r < g->n_results; r++) {
        const int alias = g->results[r].alias;
        if (!is_new_value(&g->results[r]))
            continue;
        if (has_result(c, inside, &g->results[r]))
            c->take[alias] = WHOLE;
        else if (g->user_start[alias] == g->user_start[alias + 1])
            c->take[alias] = LEFT;
    }
}

/* Takes a node, and its elements with it. */
static void take_whole(struct cutter *c, int node)
{
    const struct ap_graph *g = c->g;

    c->take[node] = WHOLE;
    for (int u = g->user_start[node];
         u < g->user_start[node + 1] && g->nodes[node].shape.dtype == AP_TUPLE; u++)
        if (g->nodes[g->users[u]].op == AP_OP_GET_TUPLE_ELEMENT)
            take_whole(c, g->users[u]);
}

/* What the part is made of; users come after their operands, so one pass back will do. */
static void mark_taken(struct cutter *c, const bool *inside)
{
    const struct ap_graph *g = c->g;
    for (int i = 0; i < g->n_nodes; i++)
        if (inside[i] && g->nodes[i].op != AP_OP_GET_TUPLE_ELEMENT)
            take_whole(c, i);
    mark_new_values(c, inside);
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        if (c->take[i] != WHOLE && c->take[i] != COPIED)
            continue;
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            int in = g->nodes[i].in[k];
            if (c->take[in] == LEFT)
                c->take[in] = g->nodes[in].op == AP_OP_PARAMETER || is_constant(c, in)
                                  ? WHOLE
                              : is_spread_scalar(g, in) ? COPIED
                                                        : CUT;
        }
    }
}

/* group: room for the whole graph's per node. */
static void write_nodes(struct cutter *c, struct ap_subgraph *sub, int *group)
{
    const struct ap_graph *g = c->g;
    int n = 0, n_params = 0, n_cut = 0;
    size_t n_in = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        c->id[i] = c->take[i] == LEFT ? -1 : n++;
        n_in += c->take[i] == LEFT || c->take[i] == CUT ? 0 : (size_t)g->nodes[i].n_in;
    }
    int *in = AP_NEW_N(c->arena, n_in + 1, int); /* of all nodes */
    sub->graph.nodes = AP_NEW_N(c->arena, n + 1, struct ap_node);
    int *source = AP_NEW_N(c->arena, n + 1, int), *cut = AP_NEW_N(c->arena, n + 1, int);
    for (int i = 0; i < g->n_nodes; i++) {
        if (c->id[i] < 0)
            continue;
        struct ap_node *to = &sub->graph.nodes[c->id[i]];
        *to = g->nodes[i];
        to->group = -1;
        group[c->id[i]] = c->take[i] == CUT ? -1 : g->nodes[i].group;
        source[c->id[i]] = i;
        if (c->take[i] == CUT) {
            to->op = AP_OP_PARAMETER;
            to->n_in = 0;
            to->in = NULL;
            to->attrs = &ap_attrs_default;
            to->role = AP_ROLE_INPUT;
            cut[n_cut++] = c->id[i];
        }
        if (to->op == AP_OP_PARAMETER)
            to->param = n_params++;
        const int *from = to->in;
        to->in = in;
        for (int k = 0; k < to->n_in; k++)
            *in++ = c->id[from[k]];
    }
    sub->source = source;
    sub->cut_in = cut;
    sub->n_cut_in = n_cut;
    sub->graph.n_nodes = n;
}

/* Used by a node that is not part of it, or is spread there from a copy. */
static bool used_outside(const struct cutter *c, int node)
{
    for (int u = c->g->user_start[node]; u < c->g->user_start[node + 1]; u++) {
        int user = c->g->users[u];
        if (c->take[user] != WHOLE ||
            (is_spread_scalar(c->g, user) && used_outside(c, user)))
            return true;
    }
    return false;
}

static void write_results(struct cutter *c, const bool *inside, struct ap_subgraph *sub)
{
    const struct ap_graph *g = c->g;
    bool *is_result = AP_NEW_N(&c->scratch, g->n_nodes, bool);
    int most = g->n_results + sub->graph.n_nodes + 1, n = 0;
    int *cut = AP_NEW_N(&c->scratch, most, int);
    struct ap_result *results = AP_NEW_N(&c->scratch, most, struct ap_result);
    bool *taken = AP_NEW_N(&c->scratch, most, bool);

    for (int r = 0; r < g->n_results; r++) {
        int node = g->results[r].node, alias = g->results[r].alias;
        if (!has_result(c, inside, &g->results[r]))
            continue;
        is_result[node] = true;
        taken[n] = g->taken && g->taken[r];
        results[n] = g->results[r];
        results[n].node = c->id[node];
        results[n++].alias = alias >= 0 ? c->id[alias] : -1;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        if (c->take[i] != WHOLE || g->nodes[i].op == AP_OP_PARAMETER ||
            is_constant(c, i) || g->nodes[i].shape.dtype == AP_TUPLE ||
            is_spread_scalar(g, i) || !used_outside(c, i))
            continue;
        cut[sub->n_cut_out++] = c->id[i];
        taken[n] = !is_result[i];
        if (!is_result[i])
            results[n++] = (struct ap_result){c->id[i], AP_ROLE_AUX, -1, NULL};
    }
    sub->cut_out = ap_arena_dup(c->arena, cut, (size_t)sub->n_cut_out * sizeof *cut);
    sub->graph.results = ap_arena_dup(c->arena, results, (size_t)n * sizeof *results);
    sub->graph.taken = ap_arena_dup(c->arena, taken, ((size_t)n + 1) * sizeof *taken);
    sub->graph.n_results = n;
}

int ap_subgraph(struct ap_arena *arena, const struct ap_graph *g, const bool *inside,
                struct ap_subgraph *sub, struct ap_err *err)
{
    struct cutter c = {.arena = arena, .g = g};
    c.take = AP_NEW_N(&c.scratch, g->n_nodes, uint8_t);
    c.made = AP_NEW_N(&c.scratch, g->n_nodes, uint8_t);
    c.id = AP_NEW_N(&c.scratch, g->n_nodes, int);
    *sub = (struct ap_subgraph){.graph = {.name = g->name,
                                          .batch = ap_batch_size(g),
                                          .n_reducers = g->n_reducers,
                                          .reducers = g->reducers}};
    mark_taken(&c, inside);
    int *group = AP_NEW_N(&c.scratch, g->n_nodes, int), rc = -1;
    write_nodes(&c, sub, group);
    write_results(&c, inside, sub);
    if (sub->graph.n_results == 0)
        ap_err_set(err, "no value of this part is used outside of it");
    else
        rc = ap_graph_index(arena, &sub->graph, "/graph", err);
    if (rc == 0)
        ap_group_part(arena, &sub->graph, group);
    free(c.todo);
    ap_arena_free(&c.scratch);
    return rc;
}

int ap_subgraph_blocks(struct ap_arena *arena, const struct ap_graph *g,
                       const int *block_of, int lo, int hi, struct ap_subgraph *sub,
                       struct ap_err *err)
{
    bool *inside = AP_NEW_N(arena, g->n_nodes, bool);
    for (int i = 0; i < g->n_nodes; i++)
        inside[i] = block_of[i] >= lo && block_of[i] <= hi;
    return ap_subgraph(arena, g, inside, sub, err);
}
