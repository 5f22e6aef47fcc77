/* What is Alpa's own in prices: the penalty of replication, and which layouts convert. */
#ifndef AP_ALPA_H
#define AP_ALPA_H

#include "cost/cost.h"
#include "layout/nest.h"

/*
 * Units that a group costs for being replicated on every axis (with a mixed mesh shape a
 * parameter on one of two axes 0.8 of that): a parameter, a reshape
 * with several users and what is broadcast from scalars alone once, what is counted from
 * an iota alone five times the price of a one-byte all-reduce over each axis in turn; in
 * Alpa's space a contraction that leaves an axis idle, which recomputing allows, an
 * all-reduce of its operands over each axis. 0 for everything else.
 */
double ap_alpa_penalty(const struct ap_nest *nest, const struct ap_graph *g,
                       const struct ap_cost *cost, const struct ap_choice_vec *choice);

/* That price: each all-reduce rounded, then the sum; a mesh has at least two axes. */
double ap_alpa_unit_penalty(const struct ap_cost *cost);

/*
 * Alpa can bring a tensor from one layout to the other: no axis moves to another place of
 * the same dimension, at most one dimension is cut while one is gathered, and that only
 * where one axis is longer than 1, or where with a mixed mesh shape an axis leaves a
 * dimension that it shares with the other, or joins it there; collectives that cost->alpa
 * forbids are not needed. Sums of `from` are taken first.
 */
bool ap_alpa_converts(const struct ap_cost *cost, const struct ap_layout *from,
                      const struct ap_layout *to);
/* Whether an all-to-all over this axis of the mesh may be one of the steps. */
bool ap_alpa_all_to_all(const struct ap_cost *cost, int axis);

#endif
