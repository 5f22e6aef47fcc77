/*
 * A step in microbatches: which groups run once per microbatch, on its share of the
 * batch, and which run once per step, before or behind them.
 *
 * Microbatches are the first axis of a mesh (struct ap_mesh). Choices on it are not
 * searched: the batch is split as far as it reaches, as under data parallelism. Sums over
 * the batch (weight gradients, the loss) are accumulated, and what is done with them is
 * done once. All numbers are those of the whole batch, if what is summed over the batch
 * is read behind the last microbatch only, or depends on inputs alone (numbers of
 * tokens): then it is taken of the whole inputs, before the first.
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

/* A whole graph in n microbatches, by ap_microbatch_choices. */
struct ap_microbatched {
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    const int16_t *choice;
    int64_t n;
};
/* The choices of a part of the graph, whose inputs from outside lie on the axis as in the
 * whole. -1 as above. */
int ap_microbatch_part(struct ap_arena *arena, const struct ap_microbatched *whole,
                       const struct ap_subgraph *sub, const struct ap_nests *sub_nests,
                       const int16_t **choice, struct ap_err *err);

enum ap_when { AP_BEFORE, AP_EACH, AP_BEHIND };

/*
 * When each group of a plan runs (arena): with every microbatch, or once, before the
 * first one if it is needed there, else behind the last one. NULL without a microbatch
 * axis.
 */
uint8_t *ap_plan_when(struct ap_arena *arena, const struct ap_plan *plan);

/* A group's share of the plan's order: before, each, behind, within these by turn, then
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
