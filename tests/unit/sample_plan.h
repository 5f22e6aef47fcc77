/* Sample graphs with random plans, priced. For tests. */
#ifndef SAMPLE_PLAN_H
#define SAMPLE_PLAN_H

#include "random_plan.h"
#include "sample_graphs.h"

struct sample_plan {
    struct sample s;
    struct ap_plan plan;
    struct ap_cost cost; /* the caller frees it */
    struct ap_conversions conv;
};

/* A random plan on a random mesh. */
static inline int sample_plan(struct ap_arena *arena, const char *json, uint64_t seed,
                              struct sample_plan *p, struct ap_err *err)
{
    uint64_t state = seed;

    *p = (struct sample_plan){.cost = {.cache = NULL}};
    if (load_sample(arena, json, &p->s, err))
        return -1;
    p->plan = (struct ap_plan){.graph = &p->s.g, .nests = &p->s.nests};
    random_mesh(arena, &p->plan.mesh, &state);
    random_plan(arena, &p->plan, (struct random_weights){1, 3, 1}, seed);
    return make_cost(arena, AP_COST_DEFAULT, &p->plan.mesh, &p->cost, err) ||
           ap_plan_conversions(arena, &p->plan, &p->cost, &p->conv, err);
}

#endif
