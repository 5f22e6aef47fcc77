/*
 * Routing: given the patterns of some weights, chooses layouts for all other operators of
 * a region of the graph on one mesh axis so that every operator can be reached, and
 * counts the bytes that move.
 */
#ifndef AP_ROUTE_H
#define AP_ROUTE_H

#include "plan/patterns.h"

/* Data that all regions of one plan share. */
struct ap_router {
    struct ap_arena *arena;
    const struct ap_plan *plan; /* choices outside a region stay as here */
    const struct ap_cost *cost;
    const struct ap_weights *weights;
    int axis;
    bool no_padding;
    /* scratch: numbers within the current region, -1 elsewhere */
    int *local_group;  /* per group */
    int *local_tensor; /* per node */
    int *next_result;  /* results of one node or one parameter, linked; -1 ends */
    int *first_result; /* per node: the first result with its value */
    int *first_alias;  /* per node: the first result that becomes this parameter */
    int *next_alias;
};

struct ap_router *ap_router_new(struct ap_arena *arena, const struct ap_plan *plan,
                                const struct ap_cost *cost,
                                const struct ap_weights *weights, int axis,
                                bool no_padding);

/* A region: groups with their legal choices on the axis, and the tensors between them. */
struct ap_region;
/*
 * groups must ascend. Tensors without dimensions are ignored, since each is one number.
 */
struct ap_region *ap_region_new(struct ap_router *router, const int *groups, int n);

/* In the cost model's unit. */
struct ap_traffic {
    double activations; /* all communication of both phases except gradients */
    double
        gradients;   /* of weights, which may be sent while the backward phase computes */
    double backward; /* compute of the backward phase; 0 where compute is free */
};
/* The traffic on the critical path: gradients count as far as nothing hides them. */
double ap_traffic_exposed(const struct ap_traffic *t);

/*
 * Routes the region under a pattern per weight of the graph (weights that own no group of
 * the region are ignored). -1 if an operator cannot be reached: a weight's factor is too
 * small, none of the operator's layouts can be made of its operands' layouts, or a
 * contraction would be replicated although that is not allowed.
 */
int ap_region_route(struct ap_region *region, const int *pattern,
                    struct ap_traffic *traffic);
/* Writes the latest route's choices into a plan. */
void ap_region_write(const struct ap_region *region, struct ap_plan *plan);

#endif
