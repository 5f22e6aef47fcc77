/*
 * Problem: trainers cut a model between its layers, and count them: "24 layers in four
 * stages". Idea: layers are numbered by the names of the weights; each is a block, with
 * one before and one after them (plan/layers.h). Cost: linear in the names and the
 * operands.
 */
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

enum ap_exit coarsen_layers(struct ap_arena *arena, const struct ap_graph *g,
                            const struct coarsen_params *params,
                            struct coarsen_answer *answer, struct ap_err *err)
{
    struct ap_layers layers;

    if (find_layers(arena, g, &layers, err))
        return AP_BAD_INPUT;
    answer->n = ap_layers_cut(arena, g, &layers, answer->block_of, err);
    if (answer->n < 0)
        return AP_NO_SOLUTION;
    if (params->n_blocks == 0 || params->n_blocks == answer->n)
        return AP_OK;
    ap_err_set(err, "layers makes %d blocks, of %d layers, not %d", answer->n, layers.n,
               params->n_blocks);
    return AP_NO_SOLUTION;
}
