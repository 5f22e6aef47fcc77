/* Data and functions that ap-prune's algorithms share: parameters, regions,
 * correspondences, nesting. */
#ifndef PRUNE_H
#define PRUNE_H

#include "graph/families.h"

enum prune_order {
    PRUNE_DEEP,   /* from the deepest scopes up: families inside families are kept */
    PRUNE_SHALLOW /* from the outermost scopes down, not into those that repeat */
};

struct prune_params {
    int min_duplicate; /* least instances of a family, >= 2 */
    int min_nodes;     /* least nodes of an instance, >= 1 */
    int max_depth;     /* deeper scopes count as their ancestor of this depth, >= 1 */
    int order;         /* enum prune_order */
};

/* Things by hash: equal hashes stand side by side, in the order of `at`. */
struct prune_ranked {
    uint64_t hash;
    int at;
};
void prune_rank(struct prune_ranked *list, int n);
/* Where the run of equal hashes that begins at i ends. */
static inline int prune_run_end(const struct prune_ranked *list, int n, int i)
{
    int end = i + 1;

    while (end < n && list[end].hash == list[i].hash)
        end++;
    return end;
}

typedef int prune_fn(struct ap_arena *arena, const struct ap_graph *g,
                     const struct prune_params *params, struct ap_families *f,
                     struct ap_err *err);
prune_fn prune_scope, prune_structure;

/* ---- correspondence (correspond.c) ---- */

/*
 * The properties of the graph that every step reads. sig[v] is a hash of operator, shape,
 * attributes, role and phase of node v; identical nodes (ap_nodes_identical) have equal
 * ones. key[v] is sig[v] or a refinement of it that corresponding nodes must agree in
 * when they are first matched (scope: with the name below the instance); the caller may
 * change it. The other arrays are the functions' own: [node], -1 or 0 between calls.
 */
struct prune_space {
    struct ap_arena *arena; /* of results; scratch memory is malloc'ed or rewound */
    const struct ap_graph *g;
    uint64_t *sig, *key;
    uint64_t *up, *down; /* hashes of the region's nodes above and below a node */
    int *at[2];          /* position of a node in the first and the second region */
    int *mate[2];        /* counterpart of an operand, of either side */
};
struct prune_space *prune_space_new(struct ap_arena *arena, const struct ap_graph *g);

/*
 * Matches region b to region a (ascending ids each, disjoint): counterpart[i] becomes the
 * node of b that stands for a[i], or -1. The pairs are equivalent, and so are their
 * operands, in the sense of ap_families_check, and as many as found: unequal
 * neighbourhoods cost the nodes next to them, not the region. Returns the number of
 * pairs. O((nodes + edges) log nodes).
 */
int prune_align(struct prune_space *s, const int *a, int n_a, const int *b, int n_b,
                int *counterpart);

/*
 * Makes one region's correspondence sound: nodes[instance * n + j] are candidates, each
 * row without duplicates, rows disjoint, -1 for "none". Drops columns (in place, the
 * rows close up) until ap_families_check's conditions hold, and returns how many
 * columns stay. Linear in nodes and edges.
 */
int prune_reconcile(struct prune_space *s, int n_instances, int n, int *nodes);

/* ---- families in the making (nest.c) ---- */

struct prune_draft {
    const char *name;          /* NULL: made up */
    int n_instances, n_nodes;  /* nodes as in struct ap_family, any order */
    int *nodes;                /* [instance * n_nodes + j] */
    const char *const *labels; /* [instance], NULL: made up */
    int parent;                /* enclosing draft, an earlier one, or -1 */
    int scope;                 /* of the first instance; by prune_scope only */
};

/*
 * A child was found only inside the first instance of `parent`, as instances of n nodes:
 * makes the draft of the child in all instances of the parent. labels (of the child's
 * instances in the first one) may be NULL.
 */
void prune_repeat(struct prune_space *s, const struct prune_draft *parent, int parent_id,
                  struct prune_draft *child);

/* Orders instances and nodes as families.h says, makes up missing names, and counts. */
void prune_finish(struct ap_arena *arena, const struct ap_graph *g,
                  const struct prune_draft *drafts, int n, struct ap_families *f);

#endif
