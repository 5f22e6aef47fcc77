/* Private to ap-shard: strategies and tensors as a selection problem. */
#ifndef SELECT_H
#define SELECT_H

#include "problem/shard.h"

#define SELECT_TAKEN (-2)

/* A user of a tensor. */
struct select_use {
    int group;      /* -1: a result that must end up replicated, or is taken as it lies */
    int slot;       /* operand slot of the group's nest, -1: it becomes parameter `alias`;
                       SELECT_TAKEN: a result that is taken as it lies, with sums made whole */
    int alias;      /* node id, -1 */
    int var;        /* the group's variable */
    uint64_t alike; /* uses of one variable with one value here ask for the same */
};

/* A tensor that a group makes, with all its users; conversions count `weight` times. */
struct copy_set {
    int node;           /* the tensor */
    int home, home_var; /* its group and the group's variable */
    int n_uses;
    struct select_use *uses;
    double weight;
};

/* A problem node that says whether a tensor's copy in a layout is made. */
struct select_copy {
    int node, tensor;
    struct ap_layout layout;
};

struct select_builder {
    struct ap_arena *arena;
    const struct shard_space *space;
    int *member; /* per graph node: position in its group */
    int n_nodes, cap_nodes;
    int *n_strategies;
    int *group;    /* per problem node: whose strategies these are, -1: it is a copy */
    double **cost; /* per problem node; variables' may be changed after building */
    int n_edges, cap_edges;
    struct ap_problem_edge *edges;
    int n_copies, cap_copies;
    struct select_copy *copy; /* by copy set, in the order of their nodes */
};

void select_init(struct select_builder *b, struct ap_arena *arena,
                 const struct shard_space *space);
void select_free(struct select_builder *b);

/* A variable with the strategies of a group, whose seconds count `weight` times. */
int select_var(struct select_builder *b, int group, double weight);

/* Who needs which tensor, found tensor by tensor. */
struct select_users {
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    int *first_result, *next_result; /* results of a node, 1-based, 0 ends */
    int64_t n_walks, *seen;          /* [group]: the last walk that met it, from 1 */
    int n, cap;
    struct select_use *uses;
};
void select_users_init(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *nests, struct select_users *u);
void select_users_free(struct select_users *u);
/* Fills u->uses (but var): slots of other groups in the order of users, then results. */
void select_users_of(struct select_users *u, int node);

void statement_add_copy_set(struct select_builder *b, const struct copy_set *set);

/* Makes the copies that the variables' choices need; choice[] of all others is 0. */
void select_make_copies(const struct select_builder *b, int *choice);
/* Borrows the builder's arrays. */
struct ap_problem select_problem(const struct select_builder *b);

#endif
