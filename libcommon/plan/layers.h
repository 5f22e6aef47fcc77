/* The layers of a model, by the numbers in the names of its weights. */
#ifndef AP_LAYERS_H
#define AP_LAYERS_H

#include "plan/plan.h"

/* A layer: the weights named "<stem><number>..." with one number, such as "gpt/h_" 3 or
 * "model.layers." 0. */
struct ap_layer {
    const char *stem; /* arena; a stem has at least two numbers */
    int number;
};

struct ap_layers {
    int n;                        /* in the order of their last forward contraction */
    const struct ap_layer *layer; /* 0: the names have no numbers */
    int n_stems;                  /* 2: encoder and decoder, say */
    /* [node]: layer of weights, states and operators; -1: before, between or after the
       layers (embeddings, the head), or unknown by name */
    const int *of_node;
};

/* Per group: the only weight (node) that its values are made of, by casts and moves; -1:
 * none, or more than one (arena). */
int *ap_weight_origins(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *nests);

/*
 * Layers with a weight of two or more dimensions that is contracted in the forward phase.
 * A name is cut at '/', '.', '[', ']' and quotes; the first component that ends in a
 * number, and that occurs with several numbers, names the layer. An operator's name is
 * its scope; a contraction without a scope belongs to its weight's layer. Stems that
 * alternate are merged: the layer has the first stem. Linear in the names.
 */
void ap_layers_find(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, struct ap_layers *out);

/*
 * Blocks of the forward operators, of ap_blocks_operators: one for each layer, one before
 * them and one after; those without an operator are left out. An operator without a layer
 * goes to the latest block that it reads of, or, after the last operator of the last
 * layer, to the head. Fills block_of of these operators; returns the number of blocks.
 * -1: there are no layers, or one reads of a later one. Linear in the operands.
 */
int ap_layers_cut(struct ap_arena *arena, const struct ap_graph *g,
                  const struct ap_layers *layers, int *block_of, struct ap_err *err);

#endif
