/* Inside program_tile.c and program_tile_coll.c: a program of several devices per rank
 * under construction. */
#ifndef AP_PROGRAM_TILE_H
#define AP_PROGRAM_TILE_H

#include "program/program.h"

struct tile {
    struct ap_arena *arena;
    const struct ap_program *prog; /* of one device */
    const struct ap_graph *g;      /* its graph */
    int n;                         /* devices of a rank */
    /* The number of ranks, and of devices of a rank, per axis: their product is the
       mesh's size. The microbatch axis is 1 in `inner`. */
    struct ap_mesh ranks, inner;
    int *start; /* [group], and one more at the end: its first node */
    int *order; /* groups in the order in which a device runs them */
    int *value; /* [node * n + device]: the new node with its value, -1: not made yet */
    /* For a reduction over several devices of a rank, [node * n + first of these
       devices]: the new node with the sum of the first n_added devices */
    int *sum, *n_added;
    int *member, *adding; /* room for n devices */
    /* the new list */
    struct ap_node *nodes;
    int *source, *turn;
    int n_nodes, n_groups, cap_nodes, cap_source, cap_turn;
};

/* Adds a new node for the value of node `like`, in a group of its own or in the last
 * group. */
int tile_add(struct tile *t, const struct ap_node *node, int like, bool new_group);
/* The value of a node on a device. */
static inline int *tile_value(const struct tile *t, int node, int device)
{
    return &t->value[(int64_t)node * t->n + device];
}
/* The devices of a rank that differ from `device` on the axes only, ascending; room for
 * n. */
int tile_members(const struct tile *t, unsigned axes, int device, int *member);
/* Whether a node is a collective between devices of which several belong to one rank. */
bool tile_meets(const struct tile *t, int node);

/* ---- collectives (program_tile_coll.c) ---- */

/* Adds up, in the order of devices, the available operands of a reduction in which
 * `device` takes part; does nothing for other nodes. */
void tile_add_up(struct tile *t, int node, int device);
/* Makes a collective of k devices of a rank whose operands have been made. */
void tile_meet(struct tile *t, int node, const int *member, int k);
/* The reason why a collective cannot be made of parts; NULL if it can. */
const char *tile_refuses(const struct tile *t, int node);

#endif
