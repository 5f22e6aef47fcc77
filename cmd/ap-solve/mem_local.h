/*
 * Private to mem_local.c, which chooses neighbourhoods, mem_try.c and
 * mem_repeat.c, which try them, and what those are made of: mem_fuse.c,
 * mem_trade.c.
 */
#ifndef SOLVE_MEM_LOCAL_H
#define SOLVE_MEM_LOCAL_H

#include "mem.h"

#define N_FACTORS 7
#define N_SIZES   10 /* of forests: 4, 8, ... nodes */
#define N_REPEAT  3  /* 16, 64, 256 nodes of repeated regions */
#define N_TRADES  3  /* 16, 128, 1024 nodes of forests that may not fit */
#define MEM_HUB   32 /* neighbours; a node with as many leads to all parts of the graph */

enum { ARM_FOREST, ARM_REPEAT = N_SIZES, ARM_TRADE = ARM_REPEAT + N_REPEAT };
#define N_ARMS (N_FACTORS * (ARM_TRADE + N_TRADES)) /* each with all factors */

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
    int *rank;  /* [node], -1: scratch of mem_fuse */
    int *touch; /* [node], neighbours in the forest */
    int *frontier, n_frontier;
    struct mem_repeat *repeat; /* which nodes are */
    double **local;            /* [place][strategy]: cost apart from the forest's edges */
    double **up;               /* the same with price and what the subtree costs */
    double *pool;              /* where local and up lie */
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

#define MEM_GOLDEN 0x9e3779b97f4a7c15u

/* Any number to one that looks random (splitmix64). */
static inline uint64_t mem_mix(uint64_t z)
{
    z += MEM_GOLDEN;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t mem_random(struct mem_local *l)
{
    uint64_t z = mem_mix(l->random);

    l->random += MEM_GOLDEN;
    return z;
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
/* The same of a forest that need not fit: memory is freed elsewhere for it. */
void mem_try_trade(struct mem_local *l, int start, int size, double factor,
                   struct mem_budget *budget);
/* Takes pick[] over if it is welcome, which changes the cost by that; false when it is,
 * but does not fit. */
bool mem_take_picks(struct mem_local *l, double change, int64_t *work);

/* ---- the steps of a try ---- */

/*
 * Decides a random forest around start into pick[], whatever it uses, with rate times the
 * prices that prefix (NULL: none) sums up on top of the multipliers'; returns the work.
 */
int64_t mem_decide_forest(struct mem_local *l, int start, int size, double factor,
                          const double *prefix, double rate);
/* Lets the forest go. */
void mem_disband(struct mem_local *l);
/* What pick[] is priced at, less what the choice is. */
double mem_price_change(const struct mem_local *l);
/* Swaps usages of the nodes that pick[] changes, or back; whether everything fits. */
bool mem_swap_usage(struct mem_local *l, bool back);

/*
 * Takes pick[] over if it is welcome and fits. What saves cost but does not fit is taken
 * as well and returned as a trade (else NULL), in whose end all fits, for less, or is as
 * before. Between the two the nodes must go. The end returns the work.
 */
struct trade *mem_take_or_trade(struct mem_local *l, double change, int64_t *work);
int64_t mem_trade_end(struct trade *t);

#define MEM_FUSE 256 /* nodes, at most */

/* Decides who of node[] takes the strategy alt[node], into pick[]; adds the work, returns
 * the change of cost. */
double mem_fuse(struct mem_local *l, const int *alt, double factor, int64_t *work);

/* Which nodes are similar, for mem_try_repeat. */
struct mem_repeat *mem_repeat_new(struct ap_arena *arena, const struct mem_core *m);
/* Proposes that about size nodes around start do as an similar region does. */
void mem_try_repeat(struct mem_local *l, int start, int size, double factor,
                    struct mem_budget *budget);

#endif
