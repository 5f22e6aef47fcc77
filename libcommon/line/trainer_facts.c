/*
 * Problem: what trainers ask of a model, from its graph. Idea: attention's scores are the
 * first contraction of two values that both depend on inputs, and its dimensions count
 * heads; the table of tokens is the largest weight that is looked up. Cost: linear in
 * the graph.
 */
#include <string.h>

#include "graph/blocks.h"
#include "line/trainer_impl.h"
#include "plan/named_plan.h"

int64_t trainer_product(const struct ap_shape *s, const struct ap_ints *dims)
{
    int64_t p = 1;

    for (int i = 0; i < dims->n; i++)
        p *= s->dims[dims->v[i]];
    return p;
}

/* "[batch, heads, queries, width] . [batch, heads, keys, width]"; keys of one head may
 * serve a group of queries, which are then beside the queries' positions. */
static void find_heads(const struct ap_attrs *a, const struct ap_shape *queries,
                       const struct ap_shape *keys, struct ap_line_facts *facts)
{
    const int64_t batch = trainer_product(queries, &a->lhs_batch_dims);
    const int64_t rest = batch * trainer_product(queries, &a->lhs_contracting_dims);
    const int64_t of_queries = rest > 0 ? ap_shape_elems(queries) / rest : 0;
    const int64_t of_keys = rest > 0 ? ap_shape_elems(keys) / rest : 0;

    if (facts->batch == 0 || batch % facts->batch || of_keys == 0)
        return;
    facts->kv_heads = batch / facts->batch;
    facts->layer.head_width = rest / batch;
    facts->heads = facts->kv_heads;
    if (of_queries % of_keys == 0)
        facts->heads *= of_queries / of_keys;
}

/* Experts, and by the tokens that they compute how many each token has; unknown where
 * tokens are lost, or each expert computes all. v: a contraction of theirs, -1: none. */
static void find_experts(const struct ap_graph *g, const uint8_t *from, int v,
                         struct ap_line_facts *facts)
{
    if (v < 0)
        return;
    const struct ap_node *n = &g->nodes[v];
    const struct ap_shape *lhs = ap_value_shape(&g->nodes[n->in[0]]);
    const int values = from[n->in[0]] == AP_FROM_INPUTS ? 0 : 1;
    const int64_t width = trainer_product(lhs, &n->attrs->lhs_contracting_dims);
    const int64_t tokens = ap_mul64(facts->batch, facts->sequence);

    facts->experts = trainer_product(lhs, &n->attrs->lhs_batch_dims);
    if (tokens == 0 || width == 0)
        return;
    const int64_t computed =
        ap_shape_elems(ap_value_shape(&g->nodes[n->in[values]])) / width;
    if (computed % tokens == 0 && computed / tokens < facts->experts)
        facts->experts_per_token = computed / tokens;
}

static void find_of_dot(const struct ap_graph *g, const uint8_t *from, int v,
                        struct ap_line_facts *facts)
{
    const struct ap_node *n = &g->nodes[v];
    const struct ap_shape *lhs = ap_value_shape(&g->nodes[n->in[0]]);
    const struct ap_shape *rhs = ap_value_shape(&g->nodes[n->in[1]]);
    const int inputs =
        (from[n->in[0]] == AP_FROM_INPUTS) + (from[n->in[1]] == AP_FROM_INPUTS);
    const bool weights =
        from[n->in[0]] == AP_FROM_WEIGHTS || from[n->in[1]] == AP_FROM_WEIGHTS;
    const int64_t of_heads =
        ap_mul64(ap_mul64(facts->batch, facts->sequence), facts->heads);

    if (inputs == 2 && of_heads && facts->layer.value_width == 0)
        facts->layer.value_width = ap_shape_elems(&n->shape) / of_heads;
    if (inputs == 2 && facts->heads == 0)
        find_heads(n->attrs, lhs, rhs, facts);
    if (inputs == 1 && weights && facts->compute == AP_TUPLE)
        facts->compute = lhs->dtype;
}

/* Types of the first weight of two dimensions, and of the first and last state of such.
 */
/* And layers that predict further, by the name of a map in ap-model and Hugging Face. */
static void find_types(const struct ap_graph *g, struct ap_line_facts *facts)
{
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        if (p->shape.rank < 2 || !ap_dtype_is_float(p->shape.dtype))
            continue;
        if (p->role == AP_ROLE_WEIGHT && facts->master == AP_TUPLE)
            facts->master = p->shape.dtype;
        facts->mtp += p->role == AP_ROLE_WEIGHT && strstr(p->name, "/eh_proj/");
        if (p->role == AP_ROLE_STATE && facts->moments == AP_TUPLE)
            facts->moments = p->shape.dtype;
        if (p->role == AP_ROLE_STATE)
            facts->second = p->shape.dtype;
    }
}

/* Whether a forward contraction has the weight that tokens are looked up in. */
static bool is_tied(const struct ap_graph *g, const int *origin, int table)
{
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        for (int k = 0; k < n->n_in && n->op == AP_OP_DOT && n->phase == AP_FORWARD; k++)
            if (origin[g->nodes[n->in[k]].group] == table)
                return true;
    }
    return false;
}

void ap_line_facts_find(struct ap_arena *arena, const struct ap_graph *g,
                        const struct ap_nests *nests, struct ap_line_facts *facts)
{
    struct ap_mark mark = ap_arena_mark(arena);
    const uint8_t *from = ap_blocks_origins(arena, g);
    const int *origin = ap_weight_origins(arena, g, nests);
    struct ap_layers layers;
    int table = -1;

    *facts = ap_line_facts_none;
    facts->batch = ap_batch_size(g);
    facts->sequence = ap_sequence_length(arena, g, nests);
    ap_layers_find(arena, g, nests, &layers);
    facts->layers = layers.n;
    find_types(g, facts);
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        facts->muon |= n->phase == AP_UPDATE && n->op == AP_OP_DOT;
        if (n->phase != AP_FORWARD)
            continue;
        if (n->op == AP_OP_DOT)
            find_of_dot(g, from, v, facts);
        if (n->op != AP_OP_GATHER || from[n->in[0]] != AP_FROM_WEIGHTS)
            continue;
        const struct ap_shape *looked_up = ap_value_shape(&g->nodes[n->in[0]]);
        if (looked_up->rank == 2 && looked_up->dims[0] > facts->vocab) {
            facts->vocab = looked_up->dims[0];
            facts->hidden = looked_up->dims[1];
            table = origin[g->nodes[n->in[0]].group];
        }
    }
    find_experts(g, from, ap_experts_find(g, from), facts);
    facts->kind = facts->heads == 0    ? AP_MODEL_OTHER
                  : layers.n_stems > 1 ? AP_MODEL_MIXED
                  : facts->vocab == 0  ? AP_MODEL_PATCHES
                                       : AP_MODEL_LANGUAGE;
    facts->tied = table >= 0 && is_tied(g, origin, table);
    trainer_find_layers(arena, g, from, origin, &layers, facts);
    ap_arena_rewind(arena, mark);
}
