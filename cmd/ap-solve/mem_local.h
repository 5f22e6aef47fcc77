/* Private to mem_local.c, which chooses forests, and mem_try.c, which decides them anew.
 */
#ifndef SOLVE_MEM_LOCAL_H
#define SOLVE_MEM_LOCAL_H

#include "mem.h"

#define N_FACTORS 7
#define N_SIZES   10 /* of forests: 4, 8, ... nodes */
#define N_ARMS    (N_FACTORS * N_SIZES)

struct mem_local {
    struct ap_arena *arena;
    const struct mem_core *m;
    struct mem_state *st;
    double **price; /* [node][strategy], by the multipliers */
    uint64_t random;
    /* the forest: nodes in the order in which they joined */
    int n, *node;
    int *parent,
        *edge;  /* [place]: place of the parent and the edge to it, -1 at a root */
    int *place; /* [node], -1 when not in the forest */
    int *touch; /* [node], neighbours in the forest */
    int *frontier, n_frontier;
    double **local; /* [place][strategy]: cost apart from the forest's edges */
    double **up;    /* the same with price and what the subtree costs */
    double *pool;   /* where local and up lie */
    size_t cap_pool;
    int *pick; /* [place], or [strategy] as scratch */
    double *in, *out;
    double tol, noise;
    double bound;  /* of the problem; the gap gives the scale of cooling */
    double priced; /* the prices of the choice, added up */
    double weight; /* of it: taken is what costs, with that, not more, or up to level */
    double level;
    struct {
        double weight, rise; /* at the first step */
        int step;
        int64_t work, length; /* length 0: not now */
        double longer;        /* the next, times the least length */
    } cool;
    bool kicks;       /* now, else cools; both once little is gained */
    double kick_work; /* of all kicks with the descents from them */
    int n_kicks;
    int64_t way_work; /* since the last kick or cooling began */
    int64_t run_work; /* of the last round */
    bool plain;       /* only kicks when descents are short */
    int *best;        /* [node], the best choice so far */
    double best_cost, window_cost;
    int *home; /* where kicks start, see move_on */
    double home_cost;
    int strength;
    int64_t total_work, first_descent;
    double start_sec;             /* of the first run, with a limit of time */
    int64_t window_work, n_cells; /* since it was noted; of all tables */
    double per_try[N_ARMS];       /* work of a try, lately */
};

/* splitmix64 */
static inline uint64_t mem_random(struct mem_local *l)
{
    uint64_t z = l->random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int mem_pick(struct mem_local *l, int n)
{
    return (int)((mem_random(l) >> 33) % (uint64_t)n);
}

static inline double mem_uniform(struct mem_local *l)
{
    return (double)(mem_random(l) >> 11) * 0x1p-53;
}

/* Of the choice, with usage at its price. */
static inline double mem_value(const struct mem_local *l)
{
    return l->st->cost + l->weight * l->priced;
}

/*
 * Decides a random forest of about size nodes around start anew. Takes what it finds if
 * that is welcome, or whatever it is when kicking.
 */
void mem_try_forest(struct mem_local *l, int start, int size, double factor, bool kick,
                    struct mem_budget *budget);
#endif
