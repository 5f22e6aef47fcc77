/*
 * A part of a graph as a graph of its own: what a pipeline stage runs. Values that come
 * from outside become parameters (role input), values that are used outside become
 * results (role aux). What is made of constants alone is copied rather than cut, and so
 * are broadcasts of a scalar, whose scalar is cut; weights, states and other
 * parameters that the part reads are its own parameters, with their roles, and tied to
 * the part's results where the new value is made inside: there, read or not. A result
 * that is a parameter as it is, is one of the part that the parameter is inside of. The
 * whole graph is grouped, and the part has its groups (ap_group_part).
 */
#ifndef AP_SUBGRAPH_H
#define AP_SUBGRAPH_H

#include "graph/graph.h"

struct ap_subgraph {
    struct ap_graph graph; /* indexed and grouped */
    const int *source;     /* [node of graph]: node of the whole graph */
    int n_cut_in, n_cut_out;
    const int *cut_in;  /* nodes of graph: the parameters that cut values became */
    const int *cut_out; /* nodes of graph: values that are used outside, ascending */
};

/*
 * The nodes with inside[node], in their order; all memory in the arena, nodes and names
 * shared with g. get-tuple-element goes with its operand. -1 when there is nothing inside
 * that is a result or used outside. Linear in the whole graph.
 */
int ap_subgraph(struct ap_arena *arena, const struct ap_graph *g, const bool *inside,
                struct ap_subgraph *sub, struct ap_err *err);
/* The nodes of blocks lo to hi, both included. */
int ap_subgraph_blocks(struct ap_arena *arena, const struct ap_graph *g,
                       const int *block_of, int lo, int hi, struct ap_subgraph *sub,
                       struct ap_err *err);

#endif
