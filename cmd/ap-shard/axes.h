/* Private to ap-shard: better plans on a mesh of several axes, one axis at a time. */
#ifndef AXES_H
#define AXES_H

#include "memory/memory.h"
#include "problem/fold.h"

/* The problem that is searched, and the ties between its groups. */
struct shard_axes {
    const struct shard_fold *fold;
    const struct ilp_problem *ip;
};

/* The `better` of struct ap_solve_params; axes: a struct shard_axes. */
void shard_axes_better(void *axes, struct ap_work *work, int *choice);

#endif
