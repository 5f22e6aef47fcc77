/*
 * Which phase of the step a node belongs to, inferred from data flow, so that a step gets
 * the same phases whatever its metadata says or lacks:
 *
 * - forward: what the loss depends on, and masks (y > 0) made of such values; so is what
 *   states depend on in a step without update, of which the section `step` says the
 * roles;
 * - update: an elementwise node, or one that depends on no gradient, if all its users are
 *   updates; being a parameter's new value counts as such a user. Two kinds of node stay
 *   in the backward pass: a sum of gradients that depends on no state, and a gradient's
 *   conversion to the wider type of its weight. What depends on a weight's complete
 *   gradient, and leads to nothing that reads a value of the forward pass, is an update,
 *   too: the norm of all gradients, and clipping by it;
 * - forward: running statistics, which are states that no new weight depends on and whose
 *   new value is made elementwise of what the loss depends on;
 * - backward: the rest.
 *
 * Without a loss everything but updates is forward. Where no weight is updated nothing
 * marks the backward pass, and metadata counts, where there is any: JAX's names the
 * forward pass (jvp) and the backward pass (transpose), other nodes have the phase of
 * their users. A node's phase is never before an operand's phase; a broadcast, an iota
 * and a scalar constant have their user's phase. Linear.
 */
#include "import.h"

struct phases {
    struct ap_graph *g;
    const struct node_info *info;
    bool *forward;  /* the loss depends on it */
    bool *gradient; /* depends on more than parameters that are updated */
    bool *state;    /* depends on a state */
    bool *after;   /* depends on a complete gradient of a weight, and no gradient on it */
    int *least;    /* least phase of the users so far; AP_N_PHASES for none */
    bool metadata; /* there is any, and it counts */
    bool loss;     /* there is one */
};

static void mark(struct phases *p, bool said)
{
    const struct ap_graph *g = p->g;
    bool trains = false;
    for (int i = 0; i < g->n_results; i++)
        trains |= g->results[i].role == AP_ROLE_WEIGHT;
    for (int i = 0; i < g->n_results; i++) {
        const enum ap_role role = g->results[i].role;
        p->loss |= role == AP_ROLE_LOSS;
        p->forward[g->results[i].node] |=
            role == AP_ROLE_LOSS || (said && !trains && role == AP_ROLE_STATE);
    }
    import_mark_needed(g->nodes, g->n_nodes, p->forward);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        p->metadata |= !trains && (p->info[i].hint == HINT_FORWARD ||
                                   p->info[i].hint == HINT_BACKWARD);
        p->gradient[i] = node->role == AP_ROLE_INPUT;
        p->state[i] = node->role == AP_ROLE_STATE;
        for (int k = 0; k < node->n_in; k++) {
            int in = node->in[k];
            p->gradient[i] |= p->gradient[in];
            p->state[i] |= p->state[in];
            p->gradient[i] |= p->forward[in] && g->nodes[in].op != AP_OP_PARAMETER;
        }
    }
}

/* Results that are statistics of the forward pass have users there. */
static void mark_statistics(struct phases *p, struct ap_arena *arena)
{
    const struct ap_graph *g = p->g;
    bool *forward = AP_NEW_N(arena, g->n_nodes + 1, bool); /* elementwise of such */
    bool *weight = AP_NEW_N(arena, g->n_nodes + 1, bool);  /* a new weight needs it */
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].role == AP_ROLE_WEIGHT)
            weight[g->results[i].node] = true;
    import_mark_needed(g->nodes, g->n_nodes, weight);
    for (int i = 0; i < g->n_nodes; i++) {
        enum ap_op_class class = ap_ops[g->nodes[i].op].class;
        forward[i] = p->forward[i] || class == AP_CLASS_LEAF ||
                     class == AP_CLASS_ELEMENTWISE || class == AP_CLASS_MOVE;
        for (int k = 0; !p->forward[i] && k < g->nodes[i].n_in; k++)
            forward[i] &= forward[g->nodes[i].in[k]];
    }
    for (int i = 0; i < g->n_results; i++) {
        const struct ap_result *r = &g->results[i];
        if (r->role == AP_ROLE_STATE && r->alias >= 0 && !weight[r->alias] &&
            forward[r->node] && p->gradient[r->node])
            p->least[r->node] = AP_FORWARD;
    }
}

/* Of a weight that is used twice. */
static bool is_gradient_sum(const struct phases *p, int i)
{
    const struct ap_node *node = &p->g->nodes[i];
    return node->op == AP_OP_ADD && !p->state[i] && p->gradient[node->in[0]] &&
           p->gradient[node->in[1]];
}

/* A gradient in the type of its weight, which was converted before it was used. */
static bool is_wide_gradient(const struct phases *p, int i)
{
    const struct ap_node *node = &p->g->nodes[i];
    if (node->op != AP_OP_CONVERT || p->state[i] || !p->gradient[i])
        return false;
    enum ap_dtype from = p->g->nodes[node->in[0]].shape.dtype, to = node->shape.dtype;
    return ap_dtype_is_float(from) && ap_dtype_is_float(to) &&
           ap_dtype_size(from) < ap_dtype_size(to);
}

/* Whether a node reads a value of the forward pass, or what is made of it does. */
static void mark_readers(const struct phases *p, bool *reads)
{
    const struct ap_graph *g = p->g;
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const struct ap_node *node = &g->nodes[i];
        for (int k = 0; k < node->n_in; k++)
            reads[i] |= p->forward[node->in[k]] && p->gradient[node->in[k]] &&
                        g->nodes[node->in[k]].shape.rank > 0;
        for (int k = 0; reads[i] && k < node->n_in; k++)
            reads[node->in[k]] = true;
    }
}

/*
 * From a weight's new value up through elementwise nodes of its size: what the way ends
 * at is its gradient.
 */
static void mark_after(const struct phases *p, struct ap_arena *arena)
{
    const struct ap_graph *g = p->g;
    bool *reads = AP_NEW_N(arena, g->n_nodes + 1, bool);
    bool *own = AP_NEW_N(arena, g->n_nodes + 1, bool);
    mark_readers(p, reads);
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].alias >= 0 && g->results[i].role == AP_ROLE_WEIGHT)
            own[g->results[i].node] = true;
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const struct ap_node *node = &g->nodes[i];
        bool elementwise = ap_ops[node->op].class == AP_CLASS_ELEMENTWISE;
        if (!own[i] || !elementwise || reads[i] || is_gradient_sum(p, i) ||
            is_wide_gradient(p, i))
            continue;
        own[i] = false;
        for (int k = 0; k < node->n_in; k++)
            own[node->in[k]] |= p->gradient[node->in[k]] && !p->forward[node->in[k]] &&
                                ap_shape_elems(&g->nodes[node->in[k]].shape) ==
                                    ap_shape_elems(&node->shape);
    }
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; !reads[i] && k < g->nodes[i].n_in; k++)
            p->after[i] |= own[g->nodes[i].in[k]] || p->after[g->nodes[i].in[k]];
}

static bool is_cheap(const struct ap_node *node)
{
    return node->op == AP_OP_BROADCAST || node->op == AP_OP_IOTA ||
           (node->op == AP_OP_CONSTANT && node->shape.rank == 0);
}

static enum ap_phase decide(const struct phases *p, int i)
{
    const struct ap_node *node = &p->g->nodes[i];
    enum node_hint hint = p->metadata ? p->info[i].hint : HINT_NONE;
    int users = p->least[i];
    if (is_cheap(node) && users < AP_N_PHASES)
        return (enum ap_phase)users;
    if (node->op == AP_OP_PARAMETER)
        return users < AP_N_PHASES ? (enum ap_phase)users : AP_FORWARD;
    if (hint == HINT_FORWARD)
        return AP_FORWARD;
    if (hint == HINT_BACKWARD)
        return AP_BACKWARD;
    if (p->forward[i])
        return AP_FORWARD;
    if (p->after[i])
        return AP_UPDATE;
    if (users == AP_N_PHASES) /* a result on the side */
        return !p->loss                         ? AP_FORWARD
               : p->gradient[i] && !p->metadata ? AP_BACKWARD
                                                : AP_UPDATE;
    if (p->metadata)
        return (enum ap_phase)users;
    bool elementwise = ap_ops[node->op].class == AP_CLASS_ELEMENTWISE;
    if (users == AP_UPDATE && (elementwise || !p->gradient[i]) &&
        !is_gradient_sum(p, i) && !is_wide_gradient(p, i))
        return AP_UPDATE;
    return users < AP_BACKWARD ? AP_FORWARD : AP_BACKWARD;
}

/* Nodes without a module take that of the first user of their phase: what a module's
 * backward pass reads may be the loss's. */
static void inherit_scopes(struct ap_graph *g)
{
    for (int i = g->n_nodes - 1; i >= 0; i--)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            struct ap_node *in = &g->nodes[g->nodes[i].in[k]];
            if (!*in->scope && in->op != AP_OP_PARAMETER &&
                in->phase == g->nodes[i].phase)
                in->scope = g->nodes[i].scope;
        }
}

static int override(struct import *im, struct import_params *params)
{
    struct ap_graph *g = &im->g;
    for (int k = 0; k < params->n_phases; k++) {
        struct override *o = &params->phases[k];
        for (int i = 0; i < g->n_nodes; i++)
            if (ap_glob(o->glob, g->nodes[i].name) ||
                (*g->nodes[i].scope && ap_glob(o->glob, g->nodes[i].scope))) {
                g->nodes[i].phase = (enum ap_phase)o->value;
                o->used = true;
            }
        if (!o->used)
            return ap_err_set(im->src->err, "phases: '%.200s' matches no node", o->glob);
    }
    return 0;
}

int import_phases(struct import *im, struct import_params *params)
{
    struct ap_graph *g = &im->g;
    struct ap_arena *arena = im->src->arena;
    struct phases p = {.g = g, .info = im->info};
    p.forward = AP_NEW_N(arena, g->n_nodes + 1, bool);
    p.gradient = AP_NEW_N(arena, g->n_nodes + 1, bool);
    p.state = AP_NEW_N(arena, g->n_nodes + 1, bool);
    p.after = AP_NEW_N(arena, g->n_nodes + 1, bool);
    p.least = AP_NEW_N(arena, g->n_nodes + 1, int);
    mark(&p, im->step_role != NULL);
    mark_after(&p, arena);
    for (int i = 0; i < g->n_nodes; i++)
        p.least[i] = AP_N_PHASES;
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].alias >= 0)
            p.least[g->results[i].node] = AP_UPDATE;
    mark_statistics(&p, arena);
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        struct ap_node *node = &g->nodes[i];
        node->phase = decide(&p, i);
        for (int k = 0; k < node->n_in; k++)
            if ((int)node->phase < p.least[node->in[k]])
                p.least[node->in[k]] = (int)node->phase;
    }
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            const struct ap_node *in = &g->nodes[g->nodes[i].in[k]];
            if (in->op != AP_OP_PARAMETER && in->phase > g->nodes[i].phase)
                g->nodes[i].phase = in->phase;
        }
    ap_graph_keep_masks(g->nodes, g->n_nodes);
    inherit_scopes(g);
    return override(im, params);
}
