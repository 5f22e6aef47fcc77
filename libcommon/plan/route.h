/*
 * Routing: given the patterns of some weights, lay out all other operators of a region of
 * the graph on one mesh axis so that every one is reached, and say what moves.
 */
#ifndef AP_ROUTE_H
#define AP_ROUTE_H

#include "plan/patterns.h"

/* What all regions of one plan share. */
struct ap_router {
    struct ap_arena *arena;
    const struct ap_plan *plan; /* what lies outside a region stays as here */
    const struct ap_cost *cost;
    const struct ap_weights *weights;
    int axis;
    bool no_padding;
    /* scratch: numbers within the region at hand, -1 elsewhere */
    int *local_group;  /* per group */
    int *local_tensor; /* per node */
    int *next_result;  /* results of one node or one parameter, linked; -1 ends */
    int *first_result; /* per node: of its value */
    int *first_alias;  /* per node: that become this parameter */
    int *next_alias;
};

struct ap_router *ap_router_new(struct ap_arena *arena, const struct ap_plan *plan,
                                const struct ap_cost *cost,
                                const struct ap_weights *weights, int axis,
                                bool no_padding);

/* A region: groups with what they may do on the axis, and the tensors between them. */
struct ap_region;
/* groups ascend. Tensors without dimensions are not looked at: they move a number each.
 */
struct ap_region *ap_region_new(struct ap_router *router, const int *groups, int n);

/* In the cost model's unit. */
struct ap_traffic {
    double activations; /* all that moves, of both phases, but for gradients */
    double gradients;   /* of weights: may move while the backward phase computes */
    double backward;    /* compute of the backward phase; 0 where compute is free */
};
/* What stands on the critical path: gradients count as far as nothing hides them. */
double ap_traffic_exposed(const struct ap_traffic *t);

/*
 * Routes the region under a pattern per weight of the graph (weights that own no group of
 * the region do not matter). -1 when an operator, and thus a leaf, cannot be reached: a
 * weight's factor is too small, no layout of it can be made of its operands', or it is a
 * contraction that would be replicated where that is not allowed.
 */
int ap_region_route(struct ap_region *region, const int *pattern,
                    struct ap_traffic *traffic);
/* Writes the latest route's choices into a plan. */
void ap_region_write(const struct ap_region *region, struct ap_plan *plan);

#endif
