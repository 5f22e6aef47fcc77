/*
 * Problem: what a model's layers are made of, as far as the flags of trainers say it:
 * width of the feed-forward part, gates, norms, positions, biases. Idea: the second map
 * of a feed-forward part is a contraction of a weight whose values come from one or two
 * other such maps by elementwise operators alone (norms have sums between); a norm is a
 * root of a mean of squares, of differences in a layer norm; rotary positions are waves
 * that are multiplied with values, learned ones a table beside that of tokens. Cost:
 * linear in the graph but for chains of additions, which are walked to the next map.
 */
#include "base/array.h"
#include "line/trainer_impl.h"
#include "plan/layers.h"

#define MOST_SOURCES 2 /* of a gated part: value and gate */

struct finder {
    const struct ap_graph *g;
    const uint8_t *from;
    const int *layer;  /* [node] */
    bool *has_experts; /* [layer] */
    int *seen, stamp;  /* [node] */
    int n, source[MOST_SOURCES];
    bool other, tanh; /* something else is on the way; a function of GELU */
    struct ap_layer_facts *to;
};

/* The operand of a forward contraction of a weight and values that has the values, 0 or
 * 1; -1: it is none. */
static int values_of(const struct finder *f, int v)
{
    const struct ap_node *n = &f->g->nodes[v];

    for (int k = 0; k < 2 && n->op == AP_OP_DOT && n->phase == AP_FORWARD; k++)
        if (f->from[n->in[k]] == AP_FROM_INPUTS &&
            f->from[n->in[1 - k]] == AP_FROM_WEIGHTS)
            return k;
    return -1;
}

/* Features that a map reads, and that it makes. */
static void measure_map(const struct finder *f, int v, int64_t *in, int64_t *out)
{
    const struct ap_node *n = &f->g->nodes[v];
    const struct ap_shape *lhs = ap_value_shape(&f->g->nodes[n->in[0]]);
    const struct ap_node *weight = &f->g->nodes[n->in[1 - values_of(f, v)]];

    *in = trainer_product(lhs, &n->attrs->lhs_contracting_dims);
    *out = ap_shape_elems(ap_value_shape(weight)) /
           (*in * trainer_product(lhs, &n->attrs->lhs_batch_dims));
}

/* The maps that a value is made of. */
static void walk(struct finder *f, int v)
{
    const struct ap_node *n = &f->g->nodes[v];
    const enum ap_op_class class = ap_ops[n->op].class;

    if (f->other || f->seen[v] == f->stamp || f->from[v] != AP_FROM_INPUTS)
        return;
    f->seen[v] = f->stamp;
    if (values_of(f, v) >= 0 && f->n < MOST_SOURCES) {
        f->source[f->n++] = v;
        return;
    }
    f->other = class != AP_CLASS_ELEMENTWISE && class != AP_CLASS_MOVE;
    f->tanh |= n->op == AP_OP_TANH || n->op == AP_OP_ERF;
    for (int k = 0; k < n->n_in; k++)
        walk(f, n->in[k]);
}

/* Whether a vector of weights is added to what a map makes. */
static bool has_bias(const struct finder *f, int v)
{
    const struct ap_graph *g = f->g;

    for (int i = g->user_start[v]; i < g->user_start[v + 1]; i++) {
        const int u = g->users[i];
        const struct ap_node *n = &g->nodes[u];
        if (n->phase != AP_FORWARD)
            continue;
        if ((n->op == AP_OP_ADD && f->from[n->in[n->in[0] == v]] == AP_FROM_WEIGHTS) ||
            (n->op == AP_OP_CONVERT && has_bias(f, u)) ||
            (n->op == AP_OP_RESHAPE && has_bias(f, u)))
            return true;
    }
    return false;
}

/* The second map of a feed-forward part. */
static void find_width(struct finder *f, int v)
{
    struct ap_layer_facts *to = f->to;
    const bool experts = ap_node_is_of_experts(f->g, f->from, v);
    int64_t *width = experts                       ? &to->expert_ffn
                     : f->has_experts[f->layer[v]] ? &to->shared_ffn
                                                   : &to->ffn;
    int64_t in, ignored, made;

    if (*width)
        return;
    f->n = 0;
    f->other = f->tanh = false;
    f->stamp++;
    walk(f, f->g->nodes[v].in[values_of(f, v)]);
    if (f->other || f->n == 0)
        return;
    measure_map(f, v, &in, &ignored);
    measure_map(f, f->source[0], &ignored, &made);
    if (made != in && made != 2 * in)
        return;
    *width = in;
    to->gated = f->n == 2 || made == 2 * in;
    to->gelu = f->tanh;
    to->bias = has_bias(f, v) ? AP_BIAS_ALL : to->bias;
}

/* Whether a root is of a mean of squares over so many features; of differences: of a
 * layer norm. */
static bool is_of_mean(struct finder *f, int v, int64_t features, bool *differences)
{
    const struct ap_node *n = &f->g->nodes[v], *of;
    bool found = false;

    if (f->seen[v] == f->stamp)
        return false;
    f->seen[v] = f->stamp;
    if (n->op == AP_OP_REDUCE) {
        int square = n->in[0];
        while (f->g->nodes[square].op == AP_OP_CONVERT)
            square = f->g->nodes[square].in[0];
        of = &f->g->nodes[square];
        const struct ap_shape *s = ap_value_shape(of);
        if (of->n_in == 0 || s->rank == 0 || s->dims[s->rank - 1] != features)
            return false;
        for (of = &f->g->nodes[of->in[0]]; of->op == AP_OP_CONVERT;)
            of = &f->g->nodes[of->in[0]];
        *differences |= of->op == AP_OP_SUBTRACT;
        return true;
    }
    if (ap_ops[n->op].class != AP_CLASS_ELEMENTWISE &&
        ap_ops[n->op].class != AP_CLASS_MOVE)
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (f->from[n->in[k]] == AP_FROM_INPUTS)
            found |= is_of_mean(f, n->in[k], features, differences);
    *differences |= found && n->op == AP_OP_SUBTRACT;
    return found;
}

static void find_norm(struct finder *f, int v, int64_t hidden)
{
    bool differences = false;

    f->stamp++;
    if (f->to->norm == AP_NORM_UNKNOWN && is_of_mean(f, v, hidden, &differences))
        f->to->norm = differences ? AP_NORM_LAYER : AP_NORM_RMS;
    f->stamp++;
    if (is_of_mean(f, v, f->to->head_width, &differences))
        f->to->query_norm = true;
}

/* Whether a wave is multiplied with values. */
static bool turns_values(const struct finder *f, int v)
{
    const struct ap_graph *g = f->g;

    for (int i = g->user_start[v]; i < g->user_start[v + 1]; i++) {
        const struct ap_node *n = &g->nodes[g->users[i]];
        if (n->phase == AP_FORWARD &&
            ((n->op == AP_OP_MULTIPLY &&
              f->from[n->in[n->in[0] == v]] == AP_FROM_INPUTS) ||
             (n->n_in == 1 && turns_values(f, g->users[i]))))
            return true;
    }
    return false;
}

/* A table of a row for each position that no contraction has. */
static bool has_positions(struct ap_arena *arena, const struct ap_graph *g,
                          const int *origin, const struct ap_line_facts *facts)
{
    bool *contracted = AP_NEW_N(arena, g->n_nodes + 1, bool); /* [node] */

    for (int v = 0; v < g->n_nodes; v++)
        for (int k = 0; k < g->nodes[v].n_in && g->nodes[v].op == AP_OP_DOT; k++)
            contracted[1 + origin[g->nodes[g->nodes[v].in[k]].group]] = true;
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        if (p->role == AP_ROLE_WEIGHT && p->shape.rank == 2 &&
            p->shape.dims[0] >= facts->sequence && p->shape.dims[0] != facts->vocab &&
            p->shape.dims[1] == facts->hidden && !contracted[1 + g->params[i]])
            return true;
    }
    return false;
}

static void count_experts(const bool *has, int n_layers, struct ap_layer_facts *to)
{
    for (int i = 0; i < n_layers; i++) {
        to->n_experts += has[i];
        to->turns += has[i] && (i == 0 || !has[i - 1]);
    }
    for (int i = 0; to->turns > 0 && i < n_layers; i++) {
        const int64_t each = n_layers / to->turns, with = to->n_experts / to->turns;
        if (each * to->turns != n_layers || with * to->turns != to->n_experts ||
            has[i] != (i % each >= each - with))
            to->turns = 0;
    }
}

void trainer_find_layers(struct ap_arena *arena, const struct ap_graph *g,
                         const uint8_t *from, const int *origin,
                         const struct ap_layers *layers, struct ap_line_facts *facts)
{
    struct finder f = {.g = g,
                       .from = from,
                       .layer = layers->of_node,
                       .has_experts = AP_NEW_N(arena, layers->n + 1, bool),
                       .seen = AP_NEW_N(arena, g->n_nodes + 1, int),
                       .to = &facts->layer};
    bool first = true;

    for (int v = 0; v < g->n_nodes; v++)
        if (f.layer[v] >= 0 && g->nodes[v].phase == AP_FORWARD &&
            ap_node_is_of_experts(g, from, v))
            f.has_experts[f.layer[v]] = true;
    count_experts(f.has_experts, layers->n, &facts->layer);
    for (int v = 0; v < g->n_nodes; v++) {
        const enum ap_op op = g->nodes[v].op;
        if (g->nodes[v].phase != AP_FORWARD)
            continue;
        if (f.layer[v] >= 0 && values_of(&f, v) >= 0) {
            if (first)
                f.to->bias = has_bias(&f, v) ? AP_BIAS_QKV : AP_BIAS_NONE;
            first = false;
            find_width(&f, v);
        }
        if ((op == AP_OP_RSQRT || op == AP_OP_SQRT) && from[v] == AP_FROM_INPUTS)
            find_norm(&f, v, facts->hidden);
        if (op == AP_OP_COSINE && f.to->positions == AP_POSITIONS_UNKNOWN &&
            turns_values(&f, v))
            f.to->positions = AP_POSITIONS_ROTARY;
    }
    if (f.to->positions == AP_POSITIONS_UNKNOWN && has_positions(arena, g, origin, facts))
        f.to->positions = AP_POSITIONS_LEARNED;
}
