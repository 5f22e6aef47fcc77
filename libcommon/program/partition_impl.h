/* Inside partition.c and partition_each.c: the local graph under construction. */
#ifndef AP_PARTITION_IMPL_H
#define AP_PARTITION_IMPL_H

#include "program/program.h"

struct partition {
    struct ap_arena *arena;
    const struct ap_plan *plan;
    const struct ap_conversions *conv;
    struct ap_program *prog;
    int *source;    /* per local node */
    int cap;        /* of nodes and source */
    int *node_of;   /* per source node: local node of its own value */
    int *conv_node; /* per conversion: local node of its latest step's result */
    int *n_made;    /* per conversion: number of steps made, plus one if it is complete */
    bool *leaves;   /* per conversion: its result is a value that a part passes on */
    bool *at_once;  /* per conversion: runs on each microbatch's estimate */
    int *slot_node; /* per operand slot of the group at hand */
    int *ring_block; /* per slot and round of the attention at hand in a ring, -1 */
    int next_conv;   /* first one not made yet */
    int n_groups;    /* of the local graph, so far */
    int now, *turn;  /* of the current group; per local group */
    bool after;      /* whether groups after the last microbatch are made */
    uint8_t *when;   /* per group, NULL without microbatches */
    int *order;      /* groups in the order in which they run */
    /* per node: first conversion that its own group starts, -1; next of the same */
    int *first_started, *next_started;
    /* per group: first conversion made right after it, -1; next of the same */
    int *first_early, *next_early;
    /* per node, per conversion: the average of estimates that a group after the last
       microbatch reads. 0: no group does; -1: not made yet; else 1 + local node of the
       sum, and later of the average */
    int *average, *conv_average;
};

/* Adds a node without a counterpart in the source (a step or a mask), in a group of its
 * own. */
int ap_part_add(struct partition *p, enum ap_op op, int in, int source,
                const struct ap_shape *shape, const struct ap_attrs *attrs,
                enum ap_phase phase);

/* ---- rings of attentions (partition_ring.c) ---- */

/*
 * Called after a group's operands: makes the blocks of keys that the group needs first.
 */
void ap_part_ring_start(struct partition *p, const struct ap_nest *nest);
/* Makes member m in rounds. in: its local operands; local: the shape of its value.
 * Returns the node of its value, or -1 if the ring does not change the member. */
int ap_part_ring_member(struct partition *p, const struct ap_nest *nest, int m,
                        const int *in, const struct ap_shape *local);
/* The largest number of nodes that the ring adds to a group. */
int ap_part_ring_nodes(const struct ap_plan *plan, const struct ap_nest *nest);

/* ---- statistics of each microbatch (partition_each.c) ---- */

/* Makes one microbatch's estimate of a sum over all microbatches, local node cur. */
int ap_part_estimate(struct partition *p, const struct ap_conversion *conv,
                     const struct ap_step *step, int cur);
/* Whether the value of a node of the plan's graph is each microbatch's estimate. */
bool ap_part_is_estimate(const struct partition *p, int node);
/* Finds which averages are wanted. */
void ap_part_list_averages(struct partition *p);
/* Starts an average that is wanted: a sum over microbatches of local node cur. */
void ap_part_start_average(struct partition *p, int *average, int cur, int source);
/* Completes all averages after the last microbatch. */
void ap_part_finish_averages(struct partition *p);
/* The local node of a value, or of the result of its conversion c (-1: none), that groups
 * after the last microbatch read. */
int ap_part_average_of(const struct partition *p, int node, int c);

#endif
