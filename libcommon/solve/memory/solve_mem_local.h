/*
 * Private to solve_mem_local.c, which chooses neighbourhoods, solve_mem_try.c, which
 * solve_mem_repeat.c,
 * which try them, and what those are made of: solve_mem_fuse.c, solve_mem_trade.c; and
 * solve_mem_relink.c, which joins choices.
 */
#ifndef AP_SOLVE_MEM_LOCAL_H
#define AP_SOLVE_MEM_LOCAL_H

#include "solve/memory/solve_mem.h"

#define N_FACTORS 7
#define N_SIZES   10 /* of forests: 4, 8, ... nodes */
#define N_REPEAT  3  /* 16, 64, 256 nodes of repeated regions */
#define N_TRADES  3  /* 16, 128, 1024 nodes of forests that may not fit */
#define N_ELITE   4
#define MEM_HUB   32 /* neighbours; a node with as many leads to all parts of the graph */

enum { ARM_FOREST, ARM_CHAIN = N_SIZES, ARM_REPEAT, ARM_TRADE = ARM_REPEAT + N_REPEAT };
#define N_ARMS (N_FACTORS * (ARM_TRADE + N_TRADES)) /* each with all factors */

/* Cooling is of the whole graph or of a part of it. */
enum { WAY_KICK, WAY_LEVEL, WAY_HEAT, WAY_PART_LEVEL, WAY_PART_HEAT, N_WAYS };

struct mem_local {
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
    struct mem_repeat *repeat; /* which nodes are */
    int *focus, n_focus;       /* nodes where tries begin, 0: anywhere */
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
    double heat; /* scale of noise in costs, 0 if not now */
    struct {
        double weight, rise, heat; /* at the first step */
        int step;
        int64_t work, length; /* length 0: not now */
        double longer;        /* the next, times the least length */
    } cool;
    struct way {
        double gain, work, n; /* lately; n times */
    } way[N_WAYS];
    int way_now;      /* -1 at first */
    double way_cost;  /* the best when it began */
    int64_t way_work; /* since */
    int64_t run_work; /* of the last round */
    bool plain;       /* only kicks when descents are short */
    int *best;        /* [node], the best choice so far */
    double best_cost, window_cost;
    int *elite[N_ELITE], n_elite; /* where earlier coolings ended, the latest first */
    int *home;                    /* where kicks start, see move_on */
    double home_cost;
    bool apart;      /* does not take over what others found */
    bool joins;      /* it sees that for the first time */
    bool moved, far; /* this round began anew; such a one ended far from the best */
    int strength;
    int64_t total_work, first_descent;
    double start_sec;             /* of the first run, with a limit of time */
    int64_t window_work, n_cells; /* since it was noted; of all tables */
    struct arm {
        double gain, work; /* lately */
        double per_try;    /* work of a try, lately */
    } arm[N_ARMS];
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

/* The strategy with the least cost plus heat times this is one drawn by Boltzmann. */
static inline double mem_gumbel(struct mem_local *l)
{
    return log(-log(mem_uniform(l) + 0x1p-54));
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
/* Gives strategy s to v, and lets neighbours answer. Takes the result if it is welcome.
 */
void mem_try_chain(struct mem_local *l, int v, int s, double factor,
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

#define MEM_FUSE 256 /* nodes, at most, a multiple of 64 */

/* Decides who of node[] takes the strategy alt[node], into pick[]; adds the work, returns
 * the change of cost. */
double mem_fuse(struct mem_local *l, const int *alt, double factor, int64_t *work);

/* Which nodes are similar, for mem_try_repeat. */
struct mem_repeat *mem_repeat_new(struct ap_arena *arena, const struct mem_core *m);
/* Proposes that about size nodes around start do as an similar region does. */
void mem_try_repeat(struct mem_local *l, int start, int size, double factor,
                    struct mem_budget *budget);

/*
 * Takes over what is better in another legal choice, component by component; true if
 * anything was. The choice under way does not become more expensive.
 */
bool mem_relink(struct mem_local *l, const int *to, struct mem_budget *budget);

#endif
