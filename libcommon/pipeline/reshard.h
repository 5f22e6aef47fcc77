/*
 * Cross-mesh resharding: a value lies on the devices of one stage in one layout, and the
 * devices of another stage need it in another layout. Lists the elements that each device
 * sends to each other device, for one message of a transfer; ap-exec moves them, and
 * ap-cost counts them.
 */
#ifndef AP_RESHARD_H
#define AP_RESHARD_H

#include "layout/layout.h"

/*
 * auto: the quickest of them by price; of plans, not of one transfer.
 * send-recv: every receiver is sent its own tile.
 * local-allgather: of receivers that need the same tile, each is sent a part of it, and
 *   they gather the parts in a ring.
 * broadcast: the first of them is sent the tile and passes it on, and so on.
 */
enum ap_resharding {
    AP_RESHARD_AUTO,
    AP_RESHARD_SEND_RECV,
    AP_RESHARD_ALL_GATHER,
    AP_RESHARD_BROADCAST,
    AP_N_RESHARDINGS
};
extern const char *const ap_resharding_names[AP_N_RESHARDINGS];

/* One side: devices in the order of the mesh. id: their numbers in the job or the
 * cluster, unique over both sides. */
struct ap_reshard_side {
    const struct ap_mesh *mesh; /* may have the microbatch axis */
    const struct ap_layout *layout;
    const int64_t *id;
};

/*
 * Indices of one dimension, ascending: in the whole value, and in a device's own block.
 */
struct ap_index_set {
    int64_t n;
    const int64_t *global, *local;
};

struct ap_reshard_move {
    int from, to; /* devices of the sides */
    int64_t elems;
};

struct ap_reshard {
    int rank;         /* of the value */
    int n_from, n_to; /* devices */
    const int *group; /* [n_to]: receivers, sorted by tile */
    /* [receiver]: the first receiver of its tile in `group`, their number, and its own
       place among them */
    const int *start, *size, *place;
    struct ap_index_set *has;   /* [sender * rank + dimension] */
    struct ap_index_set *needs; /* [receiver * rank + dimension]: at the end */
    struct ap_index_set *lands; /* the same: elements that senders send it */
    int n_moves;
    struct ap_reshard_move *move; /* from senders, by receiver; never empty */
};

/*
 * Result in the arena. Devices of the sender that hold the same elements share the work:
 * the device that has sent least so far sends, or the receiver itself if it is one of
 * them.
 */
struct ap_reshard ap_reshard_new(struct ap_arena *arena, const struct ap_shape *shape,
                                 const struct ap_reshard_side *from,
                                 const struct ap_reshard_side *to, int message,
                                 enum ap_resharding how);

/* The number of elements in the index sets of a value: a product over dimensions. */
int64_t ap_reshard_elems(int rank, const struct ap_index_set *a);

/*
 * The number of steps in which the receivers of one tile exchange it afterwards: in each
 * step, a receiver sends one block to the next receiver (ap_reshard_next) and receives
 * one from the previous one. A block is the part that one receiver was sent, numbered by
 * its place (local-allgather), or the whole tile, block 0 (broadcast).
 */
int ap_reshard_steps(const struct ap_reshard *r, enum ap_resharding how, int receiver);
/* The block that a receiver sends, or receives, in a step; -1: none. */
int ap_reshard_sends(const struct ap_reshard *r, enum ap_resharding how, int receiver,
                     int step);
int ap_reshard_receives(const struct ap_reshard *r, enum ap_resharding how, int receiver,
                        int step);
/* The receiver `by` places later in the ring. */
int ap_reshard_next(const struct ap_reshard *r, int receiver, int by);
/* The index sets of a block of the receiver's tile. */
const struct ap_index_set *ap_reshard_block(const struct ap_reshard *r,
                                            enum ap_resharding how, int receiver,
                                            int block);

#endif
