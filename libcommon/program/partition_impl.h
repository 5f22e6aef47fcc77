/* Inside partition.c and partition_each.c: the local graph as far as it is made. */
#ifndef AP_PARTITION_IMPL_H
#define AP_PARTITION_IMPL_H

#include "program/program.h"

struct partition {
    struct ap_arena *arena;
    const struct ap_plan *plan;
    const struct ap_conversions *conv;
    struct ap_program *prog;
    int *source;     /* per local node */
    int cap;         /* of nodes and source */
    int *node_of;    /* per source node: local node of its own value */
    int *conv_node;  /* per conversion: local node of its result, or as far as it came */
    int *n_made;     /* per conversion: steps made; one more when it is done */
    bool *leaves;    /* per conversion: made for a value that a part passes on */
    bool *at_once;   /* per conversion: for each microbatch's estimate of it */
    int *slot_node;  /* per operand slot of the group at hand */
    int *ring_block; /* per slot and round of the attention at hand in a ring, -1 */
    int next_conv;   /* first one not made yet */
    int n_groups;    /* of the local graph, so far */
    int now, *turn;  /* at hand; per local group */
    bool behind;     /* the last microbatch */
    uint8_t *when;   /* per group, NULL without microbatches */
    int *order;      /* groups in the order in which they run */
    /* per node: first conversion that its own group starts, -1; next of the same */
    int *first_started, *next_started;
    /* per group: first conversion made right after it, -1; next of the same */
    int *first_early, *next_early;
    /* per node, per conversion: of estimates that something after reads. 0: nothing
       does, -1: not made yet, else 1 + local node: their sum, then their average */
    int *average, *conv_average;
};

/* A node that no source node is: a step or a mask, in a group of its own. */
int ap_part_add(struct partition *p, enum ap_op op, int in, int source,
                const struct ap_shape *shape, const struct ap_attrs *attrs,
                enum ap_phase phase);

/* ---- rings of attentions (partition_ring.c) ---- */

/* After a group's operands: blocks of keys that come before it. */
void ap_part_ring_start(struct partition *p, const struct ap_nest *nest);
/* Member m in rounds, in: its local operands; local: the shape of its value. The node of
 * its value, -1: it is what it is without a ring. */
int ap_part_ring_member(struct partition *p, const struct ap_nest *nest, int m,
                        const int *in, const struct ap_shape *local);
/* Most nodes that a group has in addition. */
int ap_part_ring_nodes(const struct ap_plan *plan, const struct ap_nest *nest);

/* ---- statistics of each microbatch (partition_each.c) ---- */

/* What one microbatch makes of a sum over all of them, local node cur. */
int ap_part_estimate(struct partition *p, const struct ap_conversion *conv,
                     const struct ap_step *step, int cur);
/* Whether a node of the plan's graph has a value that is each microbatch's estimate. */
bool ap_part_is_estimate(const struct partition *p, int node);
/* Finds which averages are wanted. */
void ap_part_list_averages(struct partition *p);
/* Starts one that is: a sum over microbatches of local node cur. */
void ap_part_start_average(struct partition *p, int *average, int cur, int source);
/* After the last microbatch: all of them. */
void ap_part_finish_averages(struct partition *p);
/* A value, or what conversion c (-1: none) made of it, as something after reads it. */
int ap_part_average_of(const struct partition *p, int node, int c);

#endif
