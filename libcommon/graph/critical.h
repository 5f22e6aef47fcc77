/*
 * Rhino's view of a graph: critical nodes, the segments between them, and cones (Rhino,
 * 4.3.1 and 4.3.2). Shared by ap-coarsen, which writes them down, and by ap-shard's rhino
 * search, which walks along them: a dynamic program over the chain of segments whose
 * states are the strategies of the critical nodes, and inside a segment a choice of one
 * strategy per cone.
 *
 * Nothing here fails. Everything is linear in nodes, edges and results.
 */
#ifndef AP_CRITICAL_H
#define AP_CRITICAL_H

#include "graph/blocks.h"

enum ap_critical_rule {
    AP_CRITICAL_PAPER, /* heavy and without slack: earliest time == latest time when
                          every operator takes one unit and transfers take none */
    AP_CRITICAL_CODE,  /* heavy, and every other heavy operator is its ancestor or its
                          descendant */
    AP_N_CRITICAL_RULES
};
extern const char *const ap_critical_names[AP_N_CRITICAL_RULES]; /* "paper", "code" */

/*
 * The critical nodes, ascending ids (a topological order), in the arena; returns their
 * number. Candidates are the heavy operators (dot, convolution, custom calls whose FLOPs
 * are known) among ap_blocks_operators: they belong to the forward phase and depend on
 * inputs, since operators on weights alone have no place in the chain. Only paths inside
 * the forward phase count.
 */
int ap_critical_nodes(struct ap_arena *arena, const struct ap_graph *g,
                      enum ap_critical_rule rule, const int **critical);

/* ---- segments ---- */

struct ap_segments {
    int n;                 /* >= 1 */
    const int *segment_of; /* [node]: for nodes of ap_blocks_operators; -1 for others,
                              which ap_blocks_carry completes */
    const int *tail; /* [segment]: critical node at its end, or -1; segment i > 0 starts
                        after its head, tail[i - 1] */
};

/* How many segments n critical nodes make before any grouping: max(1, n - 1). */
int ap_segments_max(int n_critical);

/*
 * Cuts the operators between critical nodes (as ap_critical_nodes orders them). Segment i
 * holds the nodes that critical node i + 1 needs and that no earlier segment holds; the
 * first segment also holds the nodes that critical node 0 needs. A node that no critical
 * node needs is as early as its operands allow if it depends on a critical node, and
 * otherwise as late as its readers allow. An operand is never in a later segment than its
 * reader. n_groups (0: no grouping, else 1 to ap_segments_max) joins consecutive segments
 * into that many groups, equal up to one.
 */
void ap_segments_of(struct ap_arena *arena, const struct ap_graph *g, int n_critical,
                    const int *critical, int n_groups, struct ap_segments *s);

/* ---- cones ---- */

#define AP_CONE_LEVEL_MAX 4

struct ap_cones {
    int n;
    const int *root; /* [cone], ascending ids */
    const int
        *cone_of; /* [node]; -1: constants, iotas and nodes that depend on these alone */
};

/*
 * Cones: trees of nodes that end in a root; every node but the root has one reader in its
 * scope, which is in the same cone. A value that crosses between the cones of a scope is
 * therefore the root of a cone. level:
 *
 *   0, 1  roots have several readers in their scope or none, or are results, or
 *         parameters that a result becomes in the next step (the two must agree)
 *   2, 3  and so do nodes with several operands in their scope, and these operands
 *   4     every node is a cone
 *
 * Operands and readers are counted once each, and nodes without a cone are not counted.
 * scope_of[node] names the scope of a node, say its block; NULL: the graph is one scope.
 * Rhino's levels 0 to 2 work on segments, 3 and 4 on the whole graph. The nodes of fixed
 * are roots too: critical nodes, whose strategies the search along the chain fixes, nodes
 * that a person has pinned, or those that a search promotes.
 */
void ap_cones_of(struct ap_arena *arena, const struct ap_graph *g, const int *scope_of,
                 int level, int n_fixed, const int *fixed, struct ap_cones *cones);
static inline bool ap_cone_level_has_scopes(int level)
{
    return level <= 2;
}

/*
 * ---- parts: the nodes in segments, blocks or cones, and the tensors between parts ----
 */

struct ap_parts {
    int n;
    const int *node_start, *node; /* part i: node[node_start[i] .. node_start[i + 1]),
                                     ascending */
    const int *in_start, *in;     /* nodes of other parts that nodes of part i read, each
                                     once, ascending: the tensors that are cut */
};

/* part_of[node]: 0 to n - 1, or -1 for a node in no part, which is not a cut tensor
 * either. */
void ap_parts_of(struct ap_arena *arena, const struct ap_graph *g, int n,
                 const int *part_of, struct ap_parts *parts);

#endif
