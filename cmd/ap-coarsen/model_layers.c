/*
 * Problem: trainers cut a model between its layers, and count them: "24 layers in four
 * stages". Idea: layers are numbered by the names of the weights (plan/layers.h); a block
 * for each layer, one for the operators before the layers (embeddings) and one for the
 * operators after them (the head, the loss). An operator without a layer goes to the
 * block of its operands, or, after the last operator of the last layer, to the head.
 * Cost: linear in the names and the operands.
 */
#include <string.h>

#include "coarsen.h"
#include "graph/group.h"
#include "plan/layers.h"

/* The layers of the operators, in one order, -1 where names say nothing. */
static int find_layers(struct ap_arena *arena, const struct ap_graph *g,
                       struct ap_layers *layers, struct ap_err *err)
{
    struct ap_graph *grouped = ap_arena_dup(arena, g, sizeof *g);
    struct ap_nests nests;

    grouped->nodes = ap_arena_dup(arena, g->nodes, sizeof *g->nodes * (size_t)g->n_nodes);
    ap_group(arena, grouped);
    if (ap_nests_build(arena, grouped, &nests, err))
        return -1;
    ap_layers_find(arena, grouped, &nests, layers);
    return 0;
}

/* Place in the operators of the last one of a layer, -1. */
static int last_of(const struct ap_layers *layers, const int *ids, int n, int layer)
{
    while (n > 0 && layers->of_node[ids[n - 1]] != layer)
        n--;
    return n - 1;
}

/* The latest block that an operator reads of. */
static int latest_read(const struct ap_graph *g, int node, const int *block_of)
{
    int latest = 0;

    for (int k = 0; k < g->nodes[node].n_in; k++)
        if (block_of[g->nodes[node].in[k]] > latest)
            latest = block_of[g->nodes[node].in[k]];
    return latest;
}

enum ap_exit coarsen_layers(struct ap_arena *arena, const struct ap_graph *g,
                            const struct coarsen_params *params,
                            struct coarsen_answer *answer, struct ap_err *err)
{
    struct ap_layers layers;
    int *ids, n = ap_blocks_operators(arena, g, &ids);

    if (find_layers(arena, g, &layers, err))
        return AP_BAD_INPUT;
    if (layers.n == 0) {
        ap_err_set(err, "the names of the weights number no layers");
        return AP_NO_SOLUTION;
    }
    answer->n = layers.n + 2;
    if (params->n_blocks > 0 && params->n_blocks != answer->n) {
        ap_err_set(err, "layers makes %d blocks, of %d layers, not %d", answer->n,
                   layers.n, params->n_blocks);
        return AP_NO_SOLUTION;
    }
    int last = last_of(&layers, ids, n, layers.n - 1);
    for (int i = 0; i < n; i++) {
        int layer = layers.of_node[ids[i]],
            before = latest_read(g, ids[i], answer->block_of);
        int block = layer >= 0 ? layer + 1 : i > last ? layers.n + 1 : before;
        if (block < before) {
            ap_err_set(err, "%s of layer %d reads of layer %d", g->nodes[ids[i]].name,
                       layer, before - 1);
            return AP_NO_SOLUTION;
        }
        answer->block_of[ids[i]] = block;
    }
    return AP_OK;
}
