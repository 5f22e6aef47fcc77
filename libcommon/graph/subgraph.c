/*
 * Cuts a part out of a graph. One pass back over the nodes marks the nodes that are taken
 * whole, copied and cut; one pass forward writes the part. Linear, and no more than a
 * word of a node that is not taken is read: pipelines cut a large graph into many parts.
 */
#include "graph/subgraph.h"

#include <stdlib.h>

#include "base/array.h"
#include "graph/group.h"

enum taking { LEFT, WHOLE, COPIED, CUT };
/* Bytes that a part needs of others to compute a value again. */
enum { UNKNOWN = 0, OF_CONSTANTS = 1 };
#define OF_OTHERS INT64_MAX

struct cutter {
    struct ap_arena *arena, scratch;
    const struct ap_graph *g;
    uint8_t *take; /* enum taking */
    int64_t *need; /* 1 + bytes, of nodes that were asked for; UNKNOWN, OF_OTHERS */
    bool reads;    /* the graph has inputs */
    int *id;       /* node of the part, -1 */
    int *todo;     /* scratch of is_copied */
    int n_todo, cap_todo;
};

/* A parameter is read by every part; weights are sent to it by the one that updates
 * them. */
static int64_t need_of_parameter(const struct cutter *c, const struct ap_node *n)
{
    return n->role == AP_ROLE_CONSTANT             ? OF_CONSTANTS
           : n->role == AP_ROLE_WEIGHT && c->reads ? 1 + ap_shape_bytes(&n->shape)
                                                   : OF_OTHERS;
}

/* The bytes that a node needs if each operand is received or computed again, whichever is
 * less. UNKNOWN if an operand's are not known yet: *next is the first such operand, since
 * parameters are near to the first operands. */
static int64_t need_of(const struct cutter *c, int node, int *next)
{
    const struct ap_node *n = &c->g->nodes[node];
    int64_t sum = OF_CONSTANTS;

    *next = -1;
    if (n->op == AP_OP_PARAMETER)
        return need_of_parameter(c, n);
    for (int k = 0; k < n->n_in; k++) {
        const int in = n->in[k];
        if (c->need[in] == OF_OTHERS)
            return OF_OTHERS;
        if (c->need[in] == UNKNOWN && (*next < 0 || in < *next))
            *next = in;
        const int64_t whole = ap_shape_bytes(&c->g->nodes[in].shape);
        sum = ap_add64(sum, c->need[in] - 1 < whole ? c->need[in] - 1 : whole);
    }
    if (*next >= 0)
        return UNKNOWN;
    const bool weights = n->phase == AP_FORWARD && n->shape.dtype != AP_TUPLE;
    return sum == OF_CONSTANTS || weights ? sum : OF_OTHERS;
}

/* Made of constants and iotas alone, or in the forward pass of weights, too, if the part
 * then receives no more bytes. */
static bool is_copied(struct cutter *c, int node)
{
    int next = node;

    while (c->need[node] == UNKNOWN) {
        AP_ROOM(c->todo, c->n_todo, c->cap_todo);
        c->todo[c->n_todo++] = next;
        while (c->n_todo > 0) {
            const int at = c->todo[c->n_todo - 1];
            c->need[at] = need_of(c, at, &next);
            if (c->need[at] == UNKNOWN)
                break;
            c->n_todo--;
        }
    }
    return c->need[node] == OF_CONSTANTS ||
           (c->need[node] != OF_OTHERS && c->g->nodes[node].op != AP_OP_PARAMETER &&
            c->need[node] - 1 <= ap_shape_bytes(&c->g->nodes[node].shape));
}

static void start_copies(struct cutter *c)
{
    c->need = AP_NEW_N(&c->scratch, c->g->n_nodes, int64_t);
    for (int k = 0; k < c->g->n_params && !c->reads; k++)
        c->reads = c->g->nodes[c->g->params[k]].role == AP_ROLE_INPUT;
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
    return inside[r->node] || !(parameter || is_copied(c, r->node));
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
                c->take[in] = g->nodes[in].op == AP_OP_PARAMETER || is_copied(c, in)
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

/* [node]: used by a node that is not part of it, or from which a copy there is made. */
static const bool *find_used_outside(struct cutter *c)
{
    const struct ap_graph *g = c->g;
    bool *outside = AP_NEW_N(&c->scratch, g->n_nodes, bool);

    for (int i = g->n_nodes - 1; i >= 0; i--)
        for (int u = g->user_start[i];
             c->take[i] == WHOLE && u < g->user_start[i + 1] && !outside[i]; u++) {
            const int user = g->users[u];
            outside[i] =
                c->take[user] != WHOLE ||
                (outside[user] && (is_spread_scalar(g, user) || is_copied(c, user)));
        }
    return outside;
}

static void write_results(struct cutter *c, const bool *inside, struct ap_subgraph *sub)
{
    const struct ap_graph *g = c->g;
    bool *is_result = AP_NEW_N(&c->scratch, g->n_nodes, bool);
    int most = g->n_results + sub->graph.n_nodes + 1, n = 0;
    int *cut = AP_NEW_N(&c->scratch, most, int);
    struct ap_result *results = AP_NEW_N(&c->scratch, most, struct ap_result);
    bool *taken = AP_NEW_N(&c->scratch, most, bool);
    const bool *outside = find_used_outside(c);

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
        if (c->take[i] != WHOLE || g->nodes[i].op == AP_OP_PARAMETER || is_copied(c, i) ||
            g->nodes[i].shape.dtype == AP_TUPLE || is_spread_scalar(g, i) || !outside[i])
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
    start_copies(&c);
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

const bool *ap_subgraph_copied(struct ap_arena *arena, const struct ap_graph *g)
{
    struct cutter c = {.arena = arena, .g = g};
    bool *copied = AP_NEW_N(arena, g->n_nodes, bool);

    start_copies(&c);
    for (int i = 0; i < g->n_nodes; i++)
        copied[i] = is_copied(&c, i);
    free(c.todo);
    ap_arena_free(&c.scratch);
    return copied;
}
