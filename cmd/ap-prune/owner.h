/* The tree of name scopes, and which scope each node belongs to. */
#ifndef OWNER_H
#define OWNER_H

#include "graph/graph.h"

struct scope {
    int parent; /* -1 for the root, scope 0; a parent has a lower number */
    int depth;  /* the root's is 0 */
    const char *path;
    /* by owner_sort: its nodes and those of the scopes below are order[first..first + n)
     */
    int first, n;
    int last; /* scopes below: those whose rank lies in (rank, last] */
    int rank;
    int member; /* which of a group's scopes, from 1 on; 0: not in a group */
};

struct owners {
    int n_scopes;
    struct scope *scopes;
    int *of;      /* [node]: scope, 0 for nodes without a layer */
    int *order;   /* nodes by rank of their scope, then by id */
    int *by_rank; /* scopes in preorder */
};

/* [node]: whether it is made of constants alone. Arena. */
bool *owners_constant(struct ap_arena *arena, const struct ap_graph *g);

/* Scopes deeper than max_depth count as their ancestor of that depth. */
void owners_find(struct ap_arena *arena, const struct ap_graph *g, int max_depth,
                 struct owners *out);

/*
 * Puts scopes side by side below a scope of their own: group[scope] numbers the groups of
 * the scopes whose parent it is from 1 on, 0 for none. Members are at least two, and
 * neighbours. Its path is the path of the first scope, "+", and the last parts of the
 * others' paths.
 */
void owners_group(struct ap_arena *arena, const struct ap_graph *g, struct owners *o,
                  const int *group);

/* A scope's path below one around it, and in which member of a group; see owners_group.
 */
const char *owners_below(const struct owners *o, int top, int scope, int *member);

#endif
