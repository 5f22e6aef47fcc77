/* The layer clustering problem of a graph, see layers.h. */
#include "layers.h"

#include <assert.h>
#include <string.h>

#include "base/names.h"

static bool is_heavy(const struct ap_node *node)
{
    return ap_ops[node->op].class == AP_CLASS_HEAVY;
}

static double balanced(const struct ap_graph *g, int id, enum coarsen_balance balance)
{
    const struct ap_node *node = &g->nodes[id];
    double bytes = 0;

    switch (balance) {
    case COARSEN_FLOPS:
        return ap_node_heavy_flops(g, id);
    case COARSEN_COUNT:
        return is_heavy(node);
    case COARSEN_INPUT_MEMORY: /* of the step's inputs: weights, states and data */
        for (int k = 0; k < node->n_in; k++) {
            int in = node->in[k], first = 0;
            while (node->in[first] != in)
                first++;
            if (first == k && g->nodes[in].op == AP_OP_PARAMETER)
                bytes += (double)ap_shape_bytes(&g->nodes[in].shape);
        }
        return bytes;
    }
    return 0;
}

/* Operators' values are found by position; what is no operator has none. */
static void list_reads(struct ap_arena *arena, const struct ap_graph *g, struct layers *l)
{
    int *at = AP_NEW_N(arena, g->n_nodes + 1, int), n_reads = 0;
    int *start = AP_NEW_N(arena, l->n + 1, int);

    for (int i = 0; i < l->n; i++) {
        at[l->ids[i]] = i + 1;
        n_reads += g->nodes[l->ids[i]].n_in;
    }
    int *reads = AP_NEW_N(arena, n_reads + 1, int), n = 0;
    for (int i = 0; i < l->n; i++) {
        const struct ap_node *node = &g->nodes[l->ids[i]];
        for (int k = 0; k < node->n_in; k++)
            if (at[node->in[k]])
                reads[n++] = at[node->in[k]] - 1;
        start[i + 1] = n;
    }
    l->reads = reads;
    l->read_start = start;
}

/* Whether the operator is the first of a module that the names do not have yet. */
static bool begins_module(struct ap_names *seen, const char *scope)
{
    bool begins = false;

    for (size_t len = strlen(scope); len; len--) {
        if ((scope[len] && scope[len] != '/') || ap_names_get(seen, scope, len) >= 0)
            continue;
        ap_names_put(seen, scope, len, 0);
        begins = true;
    }
    return begins;
}

/* Only what depends on the inputs says where a module begins: masks may be made earlier.
 */
static const bool *list_begins(struct ap_arena *arena, const struct ap_graph *g,
                               const struct layers *l, enum coarsen_cut cut)
{
    bool *begins = AP_NEW_N(arena, l->n + 1, bool);
    const uint8_t *origin = ap_blocks_origins(arena, g);
    struct ap_names seen = {0};

    for (int i = 0; i < l->n; i++)
        begins[i] = i == 0 || cut == COARSEN_CUT_ANYWHERE ||
                    (origin[l->ids[i]] == AP_FROM_INPUTS &&
                     begins_module(&seen, g->nodes[l->ids[i]].scope));
    begins[l->n] = true;
    ap_names_free(&seen);
    return begins;
}

void layers_init(struct ap_arena *arena, const struct ap_graph *g,
                 const struct coarsen_alpa *params, struct layers *l)
{
    int *ids;

    *l = (struct layers){.optimized = params->cost == COARSEN_COST_OPTIMIZED,
                         .counts = params->balance == COARSEN_COUNT,
                         .eps = params->eps};
    l->n = ap_blocks_operators(arena, g, &ids);
    l->ids = ids;
    int64_t *size = AP_NEW_N(arena, l->n + 1, int64_t);
    int64_t most = INT64_MAX / 2 / (l->n + 1); /* so that all of them add up */
    double *weight = AP_NEW_N(arena, l->n + 1, double);
    double *capped = AP_NEW_N(arena, l->n + 1, double);
    double *flops = AP_NEW_N(arena, l->n + 1, double);
    int *heavy = AP_NEW_N(arena, l->n + 1, int);
    for (int i = 0; i < l->n; i++) {
        int id = ids[i];
        size[i] = ap_shape_bytes(&g->nodes[id].shape);
        if (size[i] > most)
            size[i] = most;
        weight[i + 1] =
            weight[i] + balanced(g, id, (enum coarsen_balance)params->balance);
        flops[i + 1] = flops[i] + ap_node_heavy_flops(g, id);
        heavy[i + 1] = heavy[i] + is_heavy(&g->nodes[id]);
        capped[i + 1] = is_heavy(&g->nodes[id]) ? weight[i + 1] : capped[i];
    }
    l->size = size;
    l->weight = weight;
    l->capped = capped;
    l->flops = flops;
    l->heavy = heavy;
    l->begins = list_begins(arena, g, l, (enum coarsen_cut)params->cut);
    list_reads(arena, g, l);
}

struct layer_rule layers_rule(const struct layers *l, int n_layers)
{
    struct layer_rule rule = {.n_layers = n_layers, .max_weight = 1e300};

    if (l->optimized)
        return rule;
    int average = l->heavy[l->n] / n_layers;
    rule.min_heavy = average < 3 ? average : 3;
    double mean = l->weight[l->n] / n_layers;
    rule.max_weight = mean * (1 + l->eps);
    if (l->counts && rule.max_weight < mean + 5)
        rule.max_weight = mean + 5;
    return rule;
}

int layers_auto(const struct layers *l, layers_exist_fn *exist, void *ctx)
{
    int most = l->heavy[l->n] / 3 + 1, n = 2;
    double two, found;

    if (l->n < 2 || !exist(ctx, 2, 1e300, &two))
        return 1;
    while (most - n > 1) {
        int mid = n + (most - n) / 2;
        if (mid <= l->n && exist(ctx, mid, two, &found))
            n = mid;
        else
            most = mid;
    }
    return n;
}

enum ap_exit layers_infeasible(const struct layers *l, const struct layer_rule *rule,
                               int nearest, struct ap_err *err)
{
    if (nearest)
        ap_err_set(err,
                   "no %d layers with at least %d dot or convolution each and less than "
                   "%.9g times the average: there are %d, or a larger --eps is needed",
                   rule->n_layers, rule->min_heavy, 1 + l->eps, nearest);
    else
        ap_err_set(err,
                   "no %d layers with at least %d dot or convolution each and less than "
                   "%.9g times the average, nor any smaller number: a larger --eps is "
                   "needed",
                   rule->n_layers, rule->min_heavy, 1 + l->eps);
    return AP_NO_SOLUTION;
}

void layers_answer(const struct layers *l, int n_layers, const int *cut,
                   const struct layer_score *score, double bound,
                   struct coarsen_answer *answer)
{
    assert(cut[0] == 0 && cut[n_layers] == l->n);
    for (int k = 0; k < n_layers; k++)
        for (int i = cut[k]; i < cut[k + 1]; i++)
            answer->block_of[l->ids[i]] = k;
    answer->n = n_layers;
    answer->more.objective = score->max;
    answer->more.bound = bound;
    answer->more.objective_unit = l->optimized ? "seconds" : "bytes";
}
