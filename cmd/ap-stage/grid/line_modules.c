/*
 * Problem: which operators are of a module that Megatron-LM recomputes by name. Idea:
 * passes along the graph, as for the scores of attention: a norm's output depends on the
 * root of a mean and is read by a map with a weight; what lies between two such maps
 * without a norm is a feed-forward part, of experts where the maps have a weight for
 * each. Cost: linear in the graph. Source: Megatron-LM,
 * core/transformer/transformer_config.py (recompute_modules).
 */
#include "grid/line_plan.h"

/* What a forward value depends on by elementwise operators and moves. */
enum behind {
    OF_NORM = 1,       /* the root of a sum */
    OF_LAYER_NORM = 2, /* over the features of a token: not of heads, or of latents */
    OF_MAP = 4,        /* a map with a weight */
    OF_EXPERTS = 8     /* with one for each expert */
};

static bool is_map(const struct line_model *model, int v)
{
    const struct ap_graph *g = model->of.graph;

    return g->nodes[v].phase == AP_FORWARD && line_is_contraction(g, v) &&
           model->origins[v] == AP_FROM_INPUTS &&
           !line_is_of_activations(g, model->origins, v);
}

static bool passes(const struct ap_graph *g, int v)
{
    const enum ap_op_class class = ap_ops[g->nodes[v].op].class;

    return g->nodes[v].phase == AP_FORWARD &&
           (class == AP_CLASS_ELEMENTWISE || class == AP_CLASS_MOVE);
}

/* Features of a token, by the table that it is looked up in; 0: there is none. */
static int64_t find_hidden(const struct line_model *model)
{
    const struct ap_graph *g = model->of.graph;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        if (n->op == AP_OP_GATHER && n->phase == AP_FORWARD && n->shape.rank > 0 &&
            model->origins[n->in[0]] == AP_FROM_WEIGHTS)
            return n->shape.dims[n->shape.rank - 1];
    }
    return 0;
}

static const uint8_t *find_behind(struct ap_arena *arena, const struct line_model *model)
{
    const struct ap_graph *g = model->of.graph;
    uint8_t *behind = AP_NEW_N(arena, g->n_nodes + 1, uint8_t);
    int64_t *width = AP_NEW_N(arena, g->n_nodes + 1, int64_t); /* of sums behind it */
    const int64_t hidden = find_hidden(model);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        if (is_map(model, v))
            behind[v] = ap_node_is_of_experts(g, model->origins, v) ? OF_EXPERTS : OF_MAP;
        if (n->op == AP_OP_REDUCE) {
            const struct ap_shape *s = ap_value_shape(&g->nodes[n->in[0]]);
            width[v] = s->rank > 0 ? s->dims[s->rank - 1] : 0;
        }
        for (int i = 0; i < n->n_in && passes(g, v); i++) {
            behind[v] |= behind[n->in[i]];
            width[v] = width[n->in[i]] > width[v] ? width[n->in[i]] : width[v];
        }
        if ((n->op == AP_OP_RSQRT || n->op == AP_OP_SQRT) && width[v] > 0 && passes(g, v))
            behind[v] = OF_NORM | (hidden == 0 || width[v] == hidden ? OF_LAYER_NORM : 0);
    }
    return behind;
}

/* Marks what reaches a map of experts, or another, from one of its kind without a norm on
 * the way, with the maps that begin there; norms: what reaches any from a layer's norm.
 */
static void mark_before(const struct line_model *model, const uint8_t *behind,
                        bool experts, bool norms, bool *marks)
{
    const struct ap_graph *g = model->of.graph;
    const uint8_t of = norms ? OF_LAYER_NORM : experts ? OF_EXPERTS : OF_MAP;

    for (int v = g->n_nodes - 1; v >= 0; v--) {
        const struct ap_node *n = &g->nodes[v];
        const bool map = is_map(model, v);
        if (!(map && (norms || ap_node_is_of_experts(g, model->origins, v) == experts)) &&
            !(marks[v] && passes(g, v)))
            continue;
        for (int i = 0; i < n->n_in; i++) {
            const uint8_t has = behind[n->in[i]];
            if (has & of && (norms || !(has & OF_NORM)) &&
                (passes(g, n->in[i]) || (!norms && is_map(model, n->in[i]))))
                marks[n->in[i]] = true;
        }
    }
}

void line_mark_modules(struct ap_arena *arena, struct line_model *model)
{
    const struct ap_graph *g = model->of.graph;
    const uint8_t *behind = find_behind(arena, model);
    bool *has_experts = AP_NEW_N(arena, model->layers.n + 1, bool);
    bool *marks[AP_N_LINE_MODULES];

    for (int i = 0; i < AP_N_LINE_MODULES; i++)
        marks[i] = AP_NEW_N(arena, g->n_nodes + 1, bool);
    mark_before(model, behind, false, true, marks[AP_LINE_LAYERNORM]);
    mark_before(model, behind, false, false, marks[AP_LINE_MLP]);
    mark_before(model, behind, true, false, marks[AP_LINE_MOE_ACT]);
    for (int v = 0; v < g->n_nodes; v++)
        if (model->layers.of_node[v] >= 0 && is_map(model, v) &&
            ap_node_is_of_experts(g, model->origins, v))
            has_experts[model->layers.of_node[v]] = true;
    for (int v = 0; v < g->n_nodes; v++) {
        const int layer = model->layers.of_node[v];
        if (layer < 0)
            marks[AP_LINE_LAYERNORM][v] = marks[AP_LINE_MLP][v] = false;
        else if (has_experts[layer] && marks[AP_LINE_MLP][v])
            marks[AP_LINE_SHARED_EXPERTS][v] = true, marks[AP_LINE_MLP][v] = false;
        marks[AP_LINE_MOE_ACT][v] &= !is_map(model, v); /* its maps are kept */
        marks[AP_LINE_CORE_ATTN][v] = model->again[AP_LINE_RECOMPUTE_SELECTIVE][v];
    }
    for (int i = 0; i < AP_N_LINE_MODULES; i++)
        model->module[i] = marks[i];
}

const bool *line_join_modules(struct ap_arena *arena, const struct line_model *model,
                              unsigned modules)
{
    bool *again = AP_NEW_N(arena, model->of.graph->n_nodes + 1, bool);

    for (int v = 0; v < model->of.graph->n_nodes; v++)
        for (int i = 0; i < AP_N_LINE_MODULES; i++)
            again[v] |= modules >> i & 1 && model->module[i][v];
    return again;
}
