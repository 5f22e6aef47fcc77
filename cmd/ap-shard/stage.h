/* Private to ap-shard --serve: what a plan of a stage's graph costs per microbatch. */
#ifndef SHARD_STAGE_H
#define SHARD_STAGE_H

#include "plan.h"
#include "subgraph.h"

/* How the whole graph lies on the time axis of n microbatches (by the sweep of `data`).
 */
struct stage_time {
    int64_t n;
    bool *split; /* [node of the whole graph]: its value is one microbatch's */
    bool *runs;  /* [same]: its operator works on one microbatch's share */
};
/* -1 when the batch does not have as many rows. */
int stage_time_of(struct ap_arena *arena, const struct ap_graph *g,
                  const struct ap_nests *nests, int64_t n, struct stage_time *time,
                  struct ap_err *err);

struct stage_point {
    const char *algorithm;
    double forward_sec, backward_sec; /* per microbatch */
    double step_sec;                  /* once per step */
    int64_t stage_bytes;              /* per device, whatever is in flight */
    int64_t microbatch_bytes;         /* per device and microbatch in flight */
    bool recompute;
};

/* Two points: activations kept, and made again from the stage's inputs. */
void stage_price(struct ap_arena *arena, const struct ap_subgraph *sub,
                 const struct stage_time *time, const struct ap_plan *plan,
                 const struct ap_conversions *conv, const struct ap_cost *cost,
                 struct stage_point point[2]);

/* Keeps the points that no other one equals or beats in everything, cheapest first;
 * returns how many. */
int stage_front(struct stage_point *points, int n);

#endif
