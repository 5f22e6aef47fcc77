/*
 * Random legal plans from a seed, for tests: a mesh, and per group and axis a factor, a
 * linear set or none. What comes out passes ap_choice_ok everywhere.
 */
#ifndef AP_TEST_RANDOM_PLAN_H
#define AP_TEST_RANDOM_PLAN_H

#include <string.h>

#include "plan/plan.h"

/* splitmix64: the same numbers on every machine. */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* 0 .. n - 1. */
static inline int random_below(uint64_t *state, int n)
{
    return (int)(random_next(state) % (uint64_t)n);
}

/* How often an axis tries to stay replicated, take a factor, take a linear set. */
struct random_weights {
    int none, factor, linear;
};

/*
 * A random choice of a group. A factor is drawn among all of the nest's; a draw that is
 * not legal beside the axes before it is drawn again a few times, then the axis stays
 * replicated.
 */
static inline struct ap_choice_vec random_choice(const struct ap_nest *nest,
                                                 const struct ap_mesh *mesh,
                                                 struct random_weights w, uint64_t *state)
{
    struct ap_choice_vec choice;
    for (int a = 0; a < AP_MAX_AXES; a++)
        choice.axis[a] = -1;
    for (int a = 0; a < mesh->n_axes; a++) {
        for (int attempt = 0; attempt < 8 && choice.axis[a] < 0; attempt++) {
            int kind = random_below(state, w.none + w.factor + w.linear);
            if (kind < w.none)
                break;
            if (kind < w.none + w.factor && nest->n_factors)
                choice.axis[a] = (int16_t)random_below(state, nest->n_factors);
            else if (kind >= w.none + w.factor && nest->n_linear)
                choice.axis[a] =
                    (int16_t)(nest->n_factors + random_below(state, nest->n_linear));
            if (choice.axis[a] >= 0 && !ap_choice_ok(nest, mesh, &choice))
                choice.axis[a] = -1;
        }
    }
    return choice;
}

/* Choices and regathered tensors (one in four) for the graph, nests and mesh in plan. */
static inline void random_plan(struct ap_arena *arena, struct ap_plan *plan,
                               struct random_weights w, uint64_t seed)
{
    uint64_t state = seed;
    plan->choice = AP_NEW_N(arena, plan->nests->n, struct ap_choice_vec);
    plan->regather = AP_NEW_N(arena, plan->graph->n_nodes, bool);
    for (int i = 0; i < plan->nests->n; i++)
        plan->choice[i] = random_choice(&plan->nests->nest[i], &plan->mesh, w, &state);
    for (int i = 0; i < plan->graph->n_nodes; i++)
        plan->regather[i] = random_below(&state, 4) == 0;
}

/* A mesh of 2 to 8 devices with 1 to 3 axes. */
static inline void random_mesh(struct ap_arena *arena, struct ap_mesh *mesh,
                               uint64_t *state)
{
    static const char *const meshes[] = {"2",   "3",   "4",     "6",   "8",
                                         "2x2", "2x3", "3x2",   "2x4", "4x2",
                                         "1x4", "2x1", "2x2x2", "5",   "2x1x3"};
    struct ap_err err = {{0}};
    int n = (int)(sizeof(meshes) / sizeof(meshes[0]));
    if (ap_mesh_parse(arena, meshes[random_below(state, n)], mesh, &err))
        memset(mesh, 0, sizeof(*mesh)); /* no axes: the test that uses it fails */
}

#endif
