/* Private to memory_price.c: all copies of a tensor as one node of the priced problem. */
#ifndef MEMORY_STAR_H
#define MEMORY_STAR_H

#include "memory/memory.h"

struct star_user {
    int var, n_uses;
    int n_needs, *need;      /* [strategy]: those with the same need ask for the same */
    int *one;                /* [need]: a strategy that has it */
    const bool *out;         /* [strategy]: is left out, NULL */
    int n_between, *between; /* edges of the problem between it and the home */
};

struct mem_copy_set {
    int first, n; /* copies */
    int home, node;
    int n_users, n_states;
    struct star_user *user;
    double **kept; /* [copy - first][strategy of home]: its price, or NULL */
    const struct mem_wait **wait; /* [2 * (copy - first) + later], NULL */
    double *spare;                /* [strategy of home], scratch */
    bool *twice; /* [strategy of home * n_states + state]: copies for both phases */
};

/*
 * The star of n copies of a tensor without strategies that are left out (of a variable;
 * may be NULL); false when it is too large, as all stars together, which have so many
 * cells, may be. kept and wait are NULLs.
 */
bool mem_copy_set_find(struct ap_arena *arena, const struct mem_model *m, int first,
                       int n, bool *const *left_out, double *cells,
                       struct mem_copy_set *out);
/*
 * Takes edges between homes and users over into the stars, as far as these do not get
 * too large, then adds the edges of the stars' nodes. Time counts `weight`.
 */
int mem_copy_sets_close(struct ap_arena *arena, const struct mem_model *m, double weight,
                        double cells, struct mem_copy_set *stars, int n_stars,
                        struct ap_problem_edge *edges, int n_edges);
/* The state of a choice of variables. */
int mem_copy_set_state(const struct mem_copy_set *star, const int *choice);

#endif
