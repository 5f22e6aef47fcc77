/*
 * Alpa's own rules of prices: the penalty of replication, and the conversions that exist.
 */
#ifndef AP_ALPA_H
#define AP_ALPA_H

#include "cost/cost.h"
#include "layout/nest.h"

/*
 * The units that a group costs if it is replicated on every axis (with a mixed mesh
 * shape, a parameter on one of two axes costs 0.8 of that). Let p be the price of a
 * one-byte all-reduce over each axis in turn. A parameter, a reshape with several users,
 * and a value that is broadcast from scalars alone cost p; a value that depends on an
 * iota alone costs 5 p. In Alpa's space a contraction that leaves an axis idle, which
 * --recompute-heavy allows, costs an all-reduce of its operands over each axis. Other
 * groups cost 0.
 */
double ap_alpa_penalty(const struct ap_nest *nest, const struct ap_graph *g,
                       const struct ap_cost *cost, const struct ap_choice_vec *choice);

/* The price p: the sum of the rounded all-reduces; a mesh counts as having at least two
 * axes. */
double ap_alpa_unit_penalty(const struct ap_cost *cost);

/*
 * Whether Alpa can bring a tensor from one layout to the other: no axis moves to another
 * place of the same dimension; at most one dimension is cut while one is gathered, and
 * only if a single axis is longer than 1, or if, with a mixed mesh shape, an axis leaves
 * or joins a dimension that the other axis splits; and no collective that cost->alpa
 * forbids is needed. Partial sums of `from` are reduced first.
 */
bool ap_alpa_converts(const struct ap_cost *cost, const struct ap_layout *from,
                      const struct ap_layout *to);
/* Whether an all-to-all over this axis of the mesh may be one of the steps. */
bool ap_alpa_all_to_all(const struct ap_cost *cost, int axis);

#endif
