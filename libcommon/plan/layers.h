/* The layers of a model, by the numbers in the names of its weights. */
#ifndef AP_LAYERS_H
#define AP_LAYERS_H

#include "plan/plan.h"

/* The weights named "<stem><number>..." of one number: "gpt/h_" 3, "model.layers." 0. */
struct ap_layer {
    const char *stem; /* arena; a stem has at least two numbers */
    int number;
};

struct ap_layers {
    int n;                        /* in the order of their first forward contraction */
    const struct ap_layer *layer; /* 0: the names have no numbers */
    int n_stems;                  /* 2: encoder and decoder, say */
    /* [node]: layer of weights, states and operators; -1: before, between or after them
       (embeddings, the head), or not told by the names */
    const int *of_node;
};

/* Per group: the weight (node) that its values are made of alone, by casts and moves; -1:
 * none, or more than one (arena). */
int *ap_weight_origins(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *nests);

/*
 * Layers with a weight of two or more dimensions that is contracted in the forward
 * phase. A name is cut at '/', '.', '[', ']' and quotes; the first component that ends in
 * a number, and of which several numbers exist, is the layer's. An operator's name is its
 * scope; a contraction without one is its weight's. Stems that take turns are merged: the
 * layer has the first one's. Linear in the names.
 */
void ap_layers_find(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, struct ap_layers *out);

#endif
