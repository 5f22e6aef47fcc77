/*
 * A step in microbatches: which groups run once per microbatch, on its share of the
 * batch, and which run once per step, before or after them.
 *
 * Microbatches are the first axis of a mesh (struct ap_mesh). Choices on it are not
 * searched: the batch is split as far as it reaches, as under data parallelism. Sums over
 * the batch (weight gradients, the loss) are accumulated, and what is done with them is
 * done once. All numbers are those of the whole batch, if what is summed over the batch
 * is read after the last microbatch only, or depends on inputs alone (numbers of
 * tokens): then it is taken of the whole inputs, before the first.
 *
 * Where each microbatch takes its own statistics (batch norms, experts' balance losses),
 * a step is the average of the steps that the microbatches would make alone from the same
 * parameters. What a microbatch knows of a sum over the batch is its *estimate*: n times
 * its own share of the sum, of a maximum its own maximum. A group that reads a sum before
 * the update, or makes something other than a sum of it, runs with each microbatch on
 * estimates, and its values are estimates, too; the update and the results have their
 * average over the microbatches. As sum and average are both linear, gradients follow:
 * the gradient of an estimate is again n times the sum of a microbatch.
 */
#ifndef AP_MICROBATCH_H
#define AP_MICROBATCH_H

#include "plan/plan.h"
#include "graph/subgraph.h"

/*
 * Choices on the axis of n microbatches, per group (arena). -1 with the reason when the
 * batch does not divide (the nearest number that does is named), or when something that
 * is combined over the batch is read before the update (the node is named).
 */
int ap_microbatch_choices(struct ap_arena *arena, const struct ap_graph *g,
                          const struct ap_nests *nests, int64_t n, const int16_t **choice,
                          struct ap_err *err);

/*
 * The same with statistics of each microbatch: each[group] as in struct ap_plan. -1 when
 * the batch does not divide, and when rows of one microbatch are read with another, or an
 * estimate would be a power or an average of integers (the node is named).
 */
int ap_microbatch_choices_each(struct ap_arena *arena, const struct ap_graph *g,
                               const struct ap_nests *nests, int64_t n,
                               const int16_t **choice, const bool **each,
                               struct ap_err *err);

/* A whole graph in n microbatches, by one of the two; each is NULL for the first. */
struct ap_microbatched {
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    const int16_t *choice;
    const bool *each;
    int64_t n;
};
/*
 * The choices of a part of the graph, whose inputs from outside lie on the axis as in the
 * whole; *each likewise, NULL if whole->each is: inputs that come as each microbatch's
 * estimate are among them. -1 as above.
 */
int ap_microbatch_part(struct ap_arena *arena, const struct ap_microbatched *whole,
                       const struct ap_subgraph *sub, const struct ap_nests *sub_nests,
                       const int16_t **choice, const bool **each, struct ap_err *err);
/*
 * Whether node, read by nodes of a part (reader of the whole graph), is read as each
 * microbatch's estimate (arena: when, as by ap_plan_when of the whole).
 */
bool ap_microbatch_is_estimate(const struct ap_microbatched *whole, const uint8_t *when,
                               int node, int reader);
/* Of the whole graph: ap_plan_when on the axis alone (arena). */
uint8_t *ap_microbatch_when(struct ap_arena *arena, const struct ap_microbatched *whole);

enum ap_when { AP_BEFORE, AP_EACH, AP_BEHIND };

/*
 * When each group of a plan runs (arena): with every microbatch, or once, before the
 * first one if it is needed there, else after the last one. NULL without a microbatch
 * axis.
 */
uint8_t *ap_plan_when(struct ap_arena *arena, const struct ap_plan *plan);

/* A group's share of the plan's order: before, each, after, within these by turn, then
 * by number. order[n_groups]; the identity without microbatches and turns. */
int *ap_plan_order(struct ap_arena *arena, const struct ap_plan *plan,
                   const uint8_t *when);

/*
 * Whether operand slot k of a group that runs with every microbatch is there by then:
 * whole over the microbatch axis, or the same microbatch's.
 */
bool ap_plan_slot_is_ready(const struct ap_plan *plan, const struct ap_nest *nest, int k,
                           const uint8_t *when);

/* Whether a group under this choice runs once per microbatch. */
bool ap_runs_each(const struct ap_nest *nest, const struct ap_graph *g,
                  const struct ap_mesh *mesh, const struct ap_choice_vec *choice);

#endif
