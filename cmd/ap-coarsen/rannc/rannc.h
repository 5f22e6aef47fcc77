/* Private to ap-coarsen's RaNNC: atomic components, levels of clusters, the phases. */
#ifndef RANNC_H
#define RANNC_H

#include "cost/cost.h"
#include "rannc/rannc_cost.h"

/* Which neighbour a cluster merges with. */
enum rannc_merge {
    RANNC_MERGE_TIME, /* paper: the smallest merged time */
    RANNC_MERGE_GAIN  /* code: the largest gain, none above mean + 2 sigma */
};

struct rannc_params {
    int max_blocks;       /* k */
    int stop_blocks;      /* coarsening ends here; 0: at max_blocks */
    int unprofiled_above; /* merges of more clusters are not priced (gain only); 0: all
                             are */
    enum rannc_merge merge;
    bool successors_only; /* else predecessors too */
    bool uncoarsen;
    int64_t limit_bytes; /* of a block */
    int64_t n_devices;   /* of the cluster: a microbatch is the batch by n_devices */
    struct rannc_memory memory; /* and by microbatches */
    const struct ap_cluster *cluster;
};

/*
 * Atomic components: one forward operator that depends on an input, and with it the
 * operators, weights and constants that it alone reads. Component ids follow the graph.
 */
struct rannc_atoms {
    const struct ap_graph *g;
    int n;
    const int *node;            /* [component] its operator */
    const int *atom_of;         /* [node] of operators that depend on an input (with their
                                   get-tuple-elements), else -1 */
    const int64_t *value_bytes; /* [component] of its result, for one microbatch */
    const bool *is_result;      /* [component] read by the graph's caller too */
    /* distinct components that read a component's result, ascending */
    const int *reader_start, *reader;
    struct rannc_profile *own; /* what only this component has; no in, out, copies */
    /* constants that several components read (clones): the cost of each in a component,
       and the clones of each component, ascending */
    int n_shared;
    const double *shared_sec;
    const int64_t *shared_bytes;
    const int *shared_start, *shared;
};

/* Components and their costs. -1: no operator depends on an input. Linear, except for
 * long shared chains, of which a component has the nearest RANNC_MAX_CHAIN nodes. */
#define RANNC_MAX_CHAIN 256
int rannc_atoms_make(struct ap_arena *arena, const struct ap_graph *g,
                     const struct rannc_params *params, struct rannc_atoms *atoms,
                     struct ap_err *err);

/*
 * An acyclic partition of the components into clusters, numbered in topological order.
 * All lists are ascending.
 */
struct rannc_level {
    const struct rannc_atoms *atoms;
    int n;
    int *owner;                 /* [value] cluster of the component that makes it */
    int *reader_start;          /* [value] other clusters that read it, ... */
    int *reader, *reader_count; /* ... and how many components do there */
    int *in_start, *in;         /* [cluster] values that other clusters make, ... */
    bool *in_several;           /* ... and whether several components here read them */
    int *out_start, *out;       /* [cluster] values that other clusters read */
    int *shared_start, *shared; /* [cluster] clones */
    struct rannc_profile *own;  /* [cluster] without clones, in, out, copies */
    struct rannc_profile *all;  /* [cluster] with them */
    int *parent;                /* [cluster] of the next coarser level, set by it */
};

/* Each component alone. */
struct rannc_level *rannc_level_first(struct ap_arena *arena,
                                      const struct rannc_atoms *atoms);
/*
 * Clusters of fine that have equal map[] (0..n-1, every number used, topological order)
 * together. fine->parent becomes map. Linear in the components and the lists of fine.
 */
struct rannc_level *rannc_level_contract(struct ap_arena *arena, struct rannc_level *fine,
                                         int n, int *map);
/*
 * The profile of a and b joined, as after a contraction; cut_bytes: the bytes that one
 * sends the other. O(min of their lists * log of the larger), which is exact.
 */
void rannc_level_join(const struct rannc_level *l, int a, int b,
                      struct rannc_profile *joined, int64_t *cut_bytes);

/* Where x is in the ascending list v[start[row]..start[row + 1]), -1: nowhere. */
int rannc_find(const int *start, const int *v, int row, int x);

double rannc_sec(const struct rannc_profile *p);
bool rannc_fits(const struct rannc_params *params, const struct rannc_profile *p);

/*
 * One pass of merging: map for rannc_level_contract, and the number of clusters then
 * (l->n: nothing merged). Never below target.
 */
int rannc_coarsen_pass(struct ap_arena *arena, const struct rannc_level *l,
                       const struct rannc_params *params, int target, int *map);
/* The same for clusters that follow each other in topological order. */
int rannc_compact_pass(struct ap_arena *arena, const struct rannc_level *l,
                       const struct rannc_params *params, int target, int *map);
/*
 * Moves clusters of l across the borders of the n blocks of block_of[cluster] where that
 * costs less, keeping blocks acyclic and within the limit. Linear.
 */
void rannc_uncoarsen(struct ap_arena *arena, const struct rannc_level *l,
                     const struct rannc_params *params, int n, int *block_of);

/*
 * Runs all phases; the clusters of the resulting level are the blocks. -1 if a component
 * does not fit (err names it) or more than max_blocks blocks remain.
 */
int rannc_blocks(struct ap_arena *arena, const struct rannc_atoms *atoms,
                 const struct rannc_params *params, struct rannc_level **blocks,
                 struct ap_err *err);

#endif
