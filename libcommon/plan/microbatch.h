/*
 * A step in microbatches: which groups run once per microbatch, on its share of the
 * batch, and which run once per step, before or after them.
 *
 * Microbatches are the first axis of a mesh (struct ap_mesh). Choices on it are not
 * searched: every operator on the batch is split along it, as under data parallelism.
 * Sums over the batch (weight gradients, the loss) are accumulated, and operators that
 * read them run once. All numbers are the same as for the whole batch if sums over the
 * batch are read only after the last microbatch, or depend on inputs alone (numbers of
 * tokens): such sums are computed from the whole inputs, before the first microbatch.
 *
 * If each microbatch has its own statistics (batch norms, experts' balance losses), a
 * step is the average of the steps that the microbatches would make alone from the same
 * parameters. A microbatch has an *estimate* of a sum over the batch: n times its own
 * share of the sum; its estimate of a maximum is its own maximum. A group that reads a
 * sum before the update, or computes something other than a sum from it, runs with each
 * microbatch on estimates, and its values are estimates, too; the update and the results
 * read the average over the microbatches. As sum and average are both linear, gradients
 * follow: the gradient of an estimate is again n times the sum of a microbatch.
 */
#ifndef AP_MICROBATCH_H
#define AP_MICROBATCH_H

#include "plan/plan.h"
#include "graph/subgraph.h"

/*
 * Choices on the axis of n microbatches, per group (arena). -1 with the reason if n does
 * not divide the batch (the message has the nearest number that does), or if a value that
 * is reduced over the batch is read before the update (the message names the node).
 */
int ap_microbatch_choices(struct ap_arena *arena, const struct ap_graph *g,
                          const struct ap_nests *nests, int64_t n, const int16_t **choice,
                          struct ap_err *err);

/*
 * The same with statistics of each microbatch: each[group] as in struct ap_plan. -1 if n
 * does not divide the batch, if a microbatch reads rows of another one, or if an estimate
 * would be a power or an average of integers (the message names the node).
 */
int ap_microbatch_choices_each(struct ap_arena *arena, const struct ap_graph *g,
                               const struct ap_nests *nests, int64_t n,
                               const int16_t **choice, const bool **each,
                               struct ap_err *err);

/* A whole graph in n microbatches, by one of these two functions; each is NULL for the
 * first. */
struct ap_microbatched {
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    const int16_t *choice;
    const bool *each;
    int64_t n;
};
/*
 * The choices of a part of the graph, with *each; inputs from outside have the same
 * placement on the axis as in the whole graph. *each also marks inputs that are each
 * microbatch's estimate; it is NULL if whole->each is. -1 as above.
 */
int ap_microbatch_part(struct ap_arena *arena, const struct ap_microbatched *whole,
                       const struct ap_subgraph *sub, const struct ap_nests *sub_nests,
                       const int16_t **choice, const bool **each, struct ap_err *err);
/*
 * Whether a node's value is read by a part (by node `reader` of the whole graph) as each
 * microbatch's estimate. when: as by ap_microbatch_when.
 */
bool ap_microbatch_is_estimate(const struct ap_microbatched *whole, const uint8_t *when,
                               int node, int reader);
/* ap_plan_when of the whole graph, on the microbatch axis alone (arena). */
uint8_t *ap_microbatch_when(struct ap_arena *arena, const struct ap_microbatched *whole);

enum ap_when { AP_BEFORE, AP_EACH, AP_AFTER };

/*
 * When each group of a plan runs (arena): with every microbatch; or once, before the
 * first microbatch if one of them needs it, else after the last one. NULL without a
 * microbatch axis.
 */
uint8_t *ap_plan_when(struct ap_arena *arena, const struct ap_plan *plan);

/* order[n_groups]: the groups in the order before, each, after; within these by turn,
 * then by number. It is the identity without microbatches and turns. */
int *ap_plan_order(struct ap_arena *arena, const struct ap_plan *plan,
                   const uint8_t *when);

/*
 * Whether operand slot k of a group that runs with every microbatch is available when the
 * group runs: it is whole over the microbatch axis, or belongs to the same microbatch.
 */
bool ap_plan_slot_is_ready(const struct ap_plan *plan, const struct ap_nest *nest, int k,
                           const uint8_t *when);

/* Whether a group under this choice runs once per microbatch. */
bool ap_runs_each(const struct ap_nest *nest, const struct ap_graph *g,
                  const struct ap_mesh *mesh, const struct ap_choice_vec *choice);

#endif
