/* Private to memory.c and memory_mend.c: a search for plans that fit, under way. */
#ifndef MEMORY_SEARCH_H
#define MEMORY_SEARCH_H

#include "memory.h"

/* A plan met at some prices. */
struct hunt_cut {
    int *choice;   /* per node of the problem */
    double sec;    /* without prices */
    int64_t *held; /* [time], by the model */
    int64_t peak;  /* the most of these */
};

struct hunt {
    struct ap_arena *arena;
    const struct shard_task *task;
    struct ilp_problem ip;
    struct mem_model model;
    bool kept;   /* the model has copies stay: it proves nothing */
    bool folded; /* the model's bounds hold for tied plans only */
    int n_cuts, max_cuts;
    struct hunt_cut *cut;
    int n_times, *time; /* those that are priced */
    double unit, bound; /* of plans that fit, proven */
    struct ap_plan best;
    double best_sec; /* INFINITY: none fits */
    struct ap_plan least;
    int64_t least_bytes, least_proven;
    double aim; /* by the model, for a plan that it lets pass and that is too large */
    int n_tries, n_solves, n_measured;
};

/* Measures the plan, and again with its weights made anew in each phase if it is too
 * large; keeps it if it is the best, or the smallest. */
void hunt_try(struct hunt *h, const struct ap_plan *plan);
/* The best plan takes over what it can of plans that are cheaper but too large. */
void hunt_mend(struct hunt *h);
/* The problem's choice that a plan stands for; NULL when it is not in the space. */
int *hunt_choice(const struct hunt *h, const struct ap_plan *plan);

#endif
