/*
 * While loops kept (--keep-loops): one node while on the tensors of the state, with the
 * condition and the body as computations of the graph.
 *
 * A computation is inlined and cleaned as the entry computation is, but into a list of
 * nodes of its own; it depends on its parameters alone, so that each is built once,
 * however many loops use it. The trip count is the text's known_trip_count, or what
 * counting says: the elements of the state that the condition depends on, from iteration
 * to iteration, are followed as numbers where they are scalar integers that start from
 * known ones. Linear in the instructions, and in the iterations times the few nodes that
 * count.
 */
#include "inline/inline.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define MAX_COUNTED (1 << 24) /* nodes evaluated to find a trip count */

/* ---- leaves ---- */

static int count_leaves(const struct value *v)
{
    int n = v->node >= 0;
    for (int i = 0; v->node < 0 && i < v->n_parts; i++)
        n += count_leaves(&v->parts[i]);
    return n;
}

static int *put_leaves(const struct value *v, int *out)
{
    if (v->node >= 0)
        *out++ = v->node;
    for (int i = 0; v->node < 0 && i < v->n_parts; i++)
        out = put_leaves(&v->parts[i], out);
    return out;
}

/* The tuple of `shape` whose leaves are nodes *next, *next + 1, ... */
static struct value value_of(struct ap_arena *arena, const struct ap_shape *shape,
                             int *next)
{
    if (shape->dtype != AP_TUPLE)
        return (struct value){.node = (*next)++};
    struct value *parts = AP_NEW_N(arena, shape->n_parts + 1, struct value);
    for (int i = 0; i < shape->n_parts; i++)
        parts[i] = value_of(arena, &shape->parts[i], next);
    return inline_tuple(shape->n_parts, parts);
}

/* ---- computations ---- */

static void add_params(struct import *im, const struct ap_shape *shape)
{
    if (shape->dtype == AP_TUPLE) {
        for (int i = 0; i < shape->n_parts; i++)
            add_params(im, &shape->parts[i]);
        return;
    }
    struct ap_node node = import_node(
        AP_OP_PARAMETER, ap_arena_printf(im->src->arena, "state.%d", im->g.n_nodes));
    node.shape = *shape;
    node.param = im->g.n_nodes;
    struct node_info info = {.auto_named = true};
    import_add(im, &node, &info);
}

/* Fills im, which has no nodes, with comp's; -1 on error. */
static int fill(struct import *im, const struct frame *outer, const struct hlo_comp *comp,
                const char *op_name)
{
    struct ap_arena *arena = im->src->arena;
    const struct hlo_instr *param = &comp->instr[comp->params[0]];
    int next = 0;
    add_params(im, &param->shape);
    im->g.n_params = im->g.n_nodes;
    struct value root, state = value_of(arena, &param->shape, &next);
    struct frame f = inline_inner(outer, comp, "", op_name);
    f.iteration = NULL;
    if (inline_comp(&f, &state, &root))
        return -1;
    int n = count_leaves(&root);
    int *leaf = AP_NEW_N(arena, n + 1, int);
    put_leaves(&root, leaf);
    im->g.n_results = n;
    im->g.results = AP_NEW_N(arena, n + 1, struct ap_result);
    for (int i = 0; i < n; i++)
        im->g.results[i] = (struct ap_result){leaf[i], AP_ROLE_AUX, -1, NULL};
    import_clean(im);
    return 0;
}

static int add_comp(struct import *im, const struct hlo_comp *comp)
{
    struct ap_arena *arena = im->src->arena;
    int *results = AP_NEW_N(arena, im->g.n_results + 1, int);
    for (int i = 0; i < im->g.n_results; i++)
        results[i] = im->g.results[i].node;
    struct ap_comp made = {
        comp->name, im->g.n_nodes,
        ap_arena_dup(arena, im->g.nodes, (size_t)im->g.n_nodes * sizeof *im->g.nodes),
        im->g.n_results, results};
    AP_ROOM(im->comps, im->g.n_comps, im->cap_comps);
    im->g.comps = im->comps;
    im->comps[im->g.n_comps] = made;
    return im->g.n_comps++;
}

/* The graph's computation for computation `id` of the text, or -1. */
static int computation(struct frame *f, int id, const char *op_name)
{
    struct import *im = f->im;
    if (im->comp_of[id] >= 0)
        return im->comp_of[id];
    struct import_nodes outer = import_set_aside(im);
    im->g.results = NULL;
    im->g.n_results = im->g.n_params = 0;
    int made = -1;
    if (!fill(im, f, &im->module->comps[id], op_name))
        made = add_comp(im, &im->module->comps[id]);
    struct import_nodes inner = import_set_aside(im);
    import_free_nodes(&inner);
    im->g.nodes = outer.g.nodes;
    im->g.n_nodes = outer.g.n_nodes;
    im->g.results = outer.g.results;
    im->g.n_results = outer.g.n_results;
    im->g.n_params = outer.g.n_params;
    im->info = outer.info;
    im->cap = outer.cap;
    return im->comp_of[id] = made;
}

/* ---- trip count ---- */

/* A computation as far as counting goes. */
struct counted {
    const struct ap_comp *comp;
    bool *needed;   /* per node */
    int64_t *value; /* per node, of those needed */
};

/* Marks what node `id` needs; false if it cannot be followed as a number. */
static bool need(struct counted *c, int id)
{
    if (c->needed[id])
        return true;
    c->needed[id] = true;
    for (int i = id; i >= 0; i--) { /* operands come before their users */
        const struct ap_node *node = &c->comp->nodes[i];
        if (!c->needed[i])
            continue;
        if (!inline_countable(node))
            return false;
        for (int k = 0; k < node->n_in; k++)
            c->needed[node->in[k]] = true;
    }
    return true;
}

/* Marks all elements of the state that the condition depends on, in both. */
static bool need_state(struct counted *cond, struct counted *body, int n)
{
    if (!need(cond, cond->comp->results[0]))
        return false;
    for (bool more = true; more;) {
        more = false;
        for (int k = 0; k < n; k++) {
            bool wanted = cond->needed[k] || body->needed[k];
            if (!wanted || (cond->needed[k] && body->needed[k] &&
                            body->needed[body->comp->results[k]]))
                continue;
            cond->needed[k] = body->needed[k] = more = true;
            if (!need(body, body->comp->results[k]))
                return false;
        }
    }
    return true;
}

/* Values of the needed nodes after the n parameters; false if one has none. */
static bool count_nodes(struct counted *c, int n, int64_t *work)
{
    for (int i = n; i < c->comp->n_nodes; i++) {
        if (!c->needed[i])
            continue;
        const struct ap_node *node = &c->comp->nodes[i];
        int64_t v[3] = {0};
        for (int k = 0; k < node->n_in && k < 3; k++)
            v[k] = c->value[node->in[k]];
        enum ap_dtype dtype =
            node->n_in ? c->comp->nodes[node->in[0]].shape.dtype : node->shape.dtype;
        if (++*work > MAX_COUNTED || !inline_count(node, dtype, v, &c->value[i]))
            return false;
    }
    return true;
}

static int64_t count(struct counted *cond, struct counted *body, int n)
{
    int64_t work = 0;
    for (int64_t trips = 0;; trips++) {
        if (!count_nodes(cond, n, &work))
            return -1;
        if (!cond->value[cond->comp->results[0]])
            return trips;
        if (++work > MAX_COUNTED || !count_nodes(body, n, &work))
            return -1;
        for (int k = 0; k < n; k++)
            if (cond->needed[k])
                cond->value[k] = body->value[body->comp->results[k]];
        memcpy(body->value, cond->value, (size_t)n * sizeof *body->value);
    }
}

static struct counted counted_of(struct ap_arena *arena, const struct ap_comp *comp)
{
    return (struct counted){comp, AP_NEW_N(arena, comp->n_nodes, bool),
                            AP_NEW_N(arena, comp->n_nodes, int64_t)};
}

/* How often the loop runs from these operands, or -1. */
static int64_t find_trips(struct import *im, const struct ap_node *loop)
{
    struct ap_arena *arena = im->src->arena;
    struct counted cond = counted_of(arena, &im->comps[loop->attrs->condition]);
    struct counted body = counted_of(arena, &im->comps[loop->attrs->body]);
    if (!need_state(&cond, &body, loop->n_in))
        return -1;
    for (int k = 0; k < loop->n_in; k++) {
        if (!cond.needed[k])
            continue;
        if (!inline_known(im, loop->in[k], &cond.value[k]))
            return -1;
        body.value[k] = cond.value[k];
    }
    return count(&cond, &body, loop->n_in);
}

/* ---- the node ---- */

static struct ap_shape state_shape(struct import *im, const int *leaf, int n)
{
    struct ap_shape *parts = AP_NEW_N(im->src->arena, n + 1, struct ap_shape);
    for (int k = 0; k < n; k++)
        parts[k] = im->g.nodes[leaf[k]].shape;
    return (struct ap_shape){.dtype = AP_TUPLE, .n_parts = n, .parts = parts};
}

int inline_kept_while(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    struct ap_arena *arena = im->src->arena;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    const char *op_name = inline_op_name(f, instr);
    struct ap_attrs *attrs = import_new_attrs(arena);
    attrs->condition =
        computation(f, instr->comp[1], ap_arena_printf(arena, "%s/cond", op_name));
    if (attrs->condition < 0)
        return -1;
    attrs->body =
        computation(f, instr->comp[0], ap_arena_printf(arena, "%s/body", op_name));
    if (attrs->body < 0)
        return -1;
    const struct value *state = &f->values[instr->in[0]];
    int n = count_leaves(state), *leaf = AP_NEW_N(arena, n + 1, int);
    put_leaves(state, leaf);
    struct ap_node node = import_node(AP_OP_WHILE, inline_name(f, instr));
    node.n_in = n;
    node.in = leaf;
    node.shape = state_shape(im, leaf, n);
    node.attrs = attrs;
    node.scope = import_scope(im, op_name);
    if (inline_check(im, pos, &node))
        return -1;
    attrs->trip_count =
        instr->trip_count >= 0 ? instr->trip_count : find_trips(im, &node);
    if (attrs->trip_count < 0)
        hlo_warn(im->src, pos,
                 "while '%.100s': unknown trip count, priced as one iteration",
                 node.name);
    struct node_info info = {.pos = pos, .hint = import_hint(op_name)};
    int first = inline_parts(im, import_add(im, &node, &info));
    *out = value_of(arena, &instr->shape, &first);
    return 0;
}

void import_loop_phases(struct import *im)
{
    int n = im->g.n_comps;
    int *phase = AP_NEW_N(im->src->arena, n + 1, int);
    for (int c = 0; c < n; c++)
        phase[c] = -1;
    for (int c = n; c >= 0; c--) { /* the graph, then computations after their users */
        int n_nodes = c == n ? im->g.n_nodes : im->comps[c].n_nodes;
        struct ap_node *nodes = im->g.nodes;
        if (c < n)
            im->comps[c].nodes = nodes = ap_arena_dup(im->src->arena, im->comps[c].nodes,
                                                      (size_t)n_nodes * sizeof *nodes);
        for (int i = 0; i < n_nodes; i++) {
            if (c < n && phase[c] >= 0)
                nodes[i].phase = (enum ap_phase)phase[c];
            if (nodes[i].op != AP_OP_WHILE)
                continue;
            phase[nodes[i].attrs->condition] = (int)nodes[i].phase;
            phase[nodes[i].attrs->body] = (int)nodes[i].phase;
        }
    }
}
