/*
 * A part of a graph as a graph of its own, such as the graph of a pipeline stage. Values
 * that come from outside become parameters (role input), values that are used outside
 * become results (role aux). Nodes that depend on constants alone are copied rather than
 * cut, and so are broadcasts of a scalar, whose scalar is cut. Forward nodes that depend
 * on weights alone, such as a bias by position, are copied, too (as in Tanaka et al.,
 * IPDPS 2021, section III-A), where that needs no more bytes of other parts than the
 * value has. Weights, states and other parameters that the part reads are its own
 * parameters, with their roles. A parameter whose next value is computed in the part is a
 * parameter of the part as well, read or not, and is tied to that result. A result that
 * is an unchanged parameter belongs to the part that has the parameter. The whole graph
 * is grouped, and the part has its groups (ap_group_part).
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
 * shared with g. get-tuple-element goes with its operand. -1 if no node inside is a
 * result or used outside. Linear in the whole graph.
 */
int ap_subgraph(struct ap_arena *arena, const struct ap_graph *g, const bool *inside,
                struct ap_subgraph *sub, struct ap_err *err);
/* The nodes of blocks lo to hi, both included. */
int ap_subgraph_blocks(struct ap_arena *arena, const struct ap_graph *g,
                       const int *block_of, int lo, int hi, struct ap_subgraph *sub,
                       struct ap_err *err);
/* [node], arena: whether every part that reads the value computes it. Linear. */
const bool *ap_subgraph_copied(struct ap_arena *arena, const struct ap_graph *g);

#endif
