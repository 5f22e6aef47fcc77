/* Inside program_tile.c and program_tile_coll.c: a program of several devices per rank,
 * as far as it is made. */
#ifndef AP_PROGRAM_TILE_H
#define AP_PROGRAM_TILE_H

#include "program/program.h"

struct tile {
    struct ap_arena *arena;
    const struct ap_program *prog; /* of one device */
    const struct ap_graph *g;      /* its graph */
    int n;                         /* devices of a rank */
    /* Axis by axis, how many ranks and how many devices of a rank: their product is the
       mesh's size. The microbatch axis is 1 in `inner`. */
    struct ap_mesh ranks, inner;
    int *start; /* [group], and after the last: its first node */
    int *order; /* groups as a device runs them */
    int *value; /* [node * n + device]: the new node that has it, -1: not made yet */
    /* Of reductions over several devices of a rank, [node * n + first device of these]:
       the sum of the first n_added of them, a new node */
    int *sum, *n_added;
    int *member, *adding; /* room for n devices */
    /* the new list */
    struct ap_node *nodes;
    int *source, *turn;
    int n_nodes, n_groups, cap_nodes, cap_source, cap_turn;
};

/* A new node of what node `like` computes, in a group of its own, or with the last one.
 */
int tile_add(struct tile *t, const struct ap_node *node, int like, bool new_group);
/* The value of a node on a device. */
static inline int *tile_value(const struct tile *t, int node, int device)
{
    return &t->value[(int64_t)node * t->n + device];
}
/* Devices of a rank that differ from one of them on the axes only, ascending; room for n.
 */
int tile_members(const struct tile *t, unsigned axes, int device, int *member);
/* Whether a node is a collective between devices, several of them of one rank. */
bool tile_meets(const struct tile *t, int node);

/* ---- collectives (program_tile_coll.c) ---- */

/* Adds up, in the order of devices, what is there of a reduction that `device` takes part
 * in; nothing for other nodes. */
void tile_add_up(struct tile *t, int node, int device);
/* A collective of k devices of a rank: their operands are there. */
void tile_meet(struct tile *t, int node, const int *member, int k);
/* Why a collective cannot be made of parts; NULL: it can. */
const char *tile_refuses(const struct tile *t, int node);

#endif
