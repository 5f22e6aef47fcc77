/*
 * Inside libcommon: the changes of an operator's attributes on a shard (partition_ops.c).
 */
#ifndef AP_PARTITION_H
#define AP_PARTITION_H

#include "program/program.h"

/* One node of the source graph about to be made local. */
struct ap_localise {
    const struct ap_mesh *mesh;
    const struct ap_graph *g; /* source */
    const struct ap_node *node;
    const struct ap_layout *layout;    /* of its value */
    const struct ap_layout *in_layout; /* of operand 0; NULL if there is none */
    const struct ap_shape *in_local;   /* local shape of operand 0; likewise */
    const struct ap_shape *in1_local;  /* of operand 1 */
    const struct ap_shape *local;      /* of its value */
};

/*
 * Attributes of the local node: the source's own if nothing changes, else a copy in the
 * arena. -1 if a dimension is split on which the operator does not work as a whole.
 */
int ap_localise_attrs(struct ap_arena *arena, const struct ap_localise *l,
                      const struct ap_attrs **out, struct ap_err *err);

/* A tensor's value on one device (tuples: each part). */
struct ap_shape ap_local_shape(struct ap_arena *arena, const struct ap_mesh *mesh,
                               const struct ap_shape *shape, const struct ap_layout *l);

/*
 * True when every element of the node is red's neutral element: a splat constant, also
 * through a few broadcasts, reshapes and the like.
 */
bool ap_is_neutral(const struct ap_graph *g, int node, enum ap_red red);

#endif
