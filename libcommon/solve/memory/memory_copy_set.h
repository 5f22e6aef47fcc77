/* Private to memory_price.c: all copies of a tensor as one node of the priced problem. */
#ifndef AP_MEMORY_COPY_SET_H
#define AP_MEMORY_COPY_SET_H

#include "solve/memory/memory_search.h"

struct set_user {
    int var, n_uses;
    int n_needs,
        *need; /* [strategy]: strategies with equal needs ask for the same layouts */
    int *one;  /* [need]: a strategy with this need */
    int n_between, *between; /* edges of the problem between it and the home */
};

struct priced_set {
    int first, n; /* copies */
    int home, node;
    int n_users, n_states;
    struct set_user *user;
    double **kept; /* [copy - first][strategy of home]: its price, or NULL */
    const struct priced_wait **wait; /* [2 * (copy - first) + later], NULL */
    double *spare;                   /* [strategy of home], scratch */
    bool *twice; /* [strategy of home * n_states + state]: copies for both phases */
};

/*
 * The set of n copies of a tensor. False if the set is too large, or if all sets together
 * have too many cells. kept and wait are NULL.
 */
bool priced_set_find(struct ap_arena *arena, const struct ap_memory *m, int first, int n,
                     double *cells, struct priced_set *out);
/*
 * Moves edges between homes and users into the problem's sets, which have so many cells,
 * as far as these do not get too large, then adds the edges of the sets' nodes: there are
 * n_edges, with room for these; returns how many there are then. Time counts `weight`.
 */
int priced_sets_close(struct ap_arena *arena, const struct ap_memory *m, double weight,
                      double cells, const struct priced_problem *of,
                      struct ap_problem_edge *edges, int n_edges);
/* The state of a choice of variables. */
int priced_set_state(const struct priced_set *set, const int *choice);

#endif
