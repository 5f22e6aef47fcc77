/*
 * Private to the solve_*.c files: the working form of a selection problem (a "core"),
 * which reductions shrink, message passing bounds and elimination solves.
 *
 * A core's nodes keep their ids while it lives; reductions mark them gone. Strategies
 * are renumbered as they are dropped: label[] (ascending) maps them to the strategy
 * numbers of the problem that ap_solve_exact was given. Forbidden is INFINITY here.
 * Everything lives in an arena and is never freed singly, so that tables taken out of
 * the core stay valid for the undo stack.
 */
#ifndef AP_SOLVE_H
#define AP_SOLVE_H

#include "problem.h"

#include <math.h>

struct sel_node {
    int n_strategies;
    const int *label; /* [strategy], immutable: a change makes a new array */
    double *cost;     /* [strategy], owned by this core */
    int *edges;       /* incident edges, gone ones included */
    int n_edges, cap_edges, degree; /* degree counts the edges that are not gone */
    bool gone, queued;
};

struct sel_edge {
    int a, b;
    const double *cost;        /* [s_a * n_strategies(b) + s_b] */
    bool owned, gone, checked; /* owned: cost may be written in place */
};

/*
 * A node taken out: once its neighbours are decided, it takes the first strategy that
 * minimises cost plus the tables of its arms. One form undoes every reduction.
 */
struct sel_arm {
    int node, n_strategies;
    const int *label;
    const double *cost; /* laid out [arm's strategy][node's] if arm_major, else swapped */
    bool arm_major;
};

struct sel_undo {
    int node, n_strategies, n_arms;
    const int *label;
    const double *cost;
    struct sel_arm arm[2];
};

struct sel_core {
    struct ap_arena *arena;
    int n_nodes, n_left; /* all, and those not gone */
    struct sel_node *node;
    struct sel_edge *edge;
    int n_edges, cap_edges;
    const int *parent; /* [node], the id in the core that this one was made from */
    struct sel_undo *undo;
    int n_undo, cap_undo;
    double
        base; /* what the gone nodes cost; a lower bound of the core if costs are >= 0 */
    double tol; /* cost differences up to this are noise */
    int *best;  /* [node], labels of the best solution found */
    int *queue; /* ring of nodes to look at again, with queued flags */
    int queue_head, queue_len;
    bool *keep, *dirty; /* scratch of the reductions: per strategy, per node */
    int *map;
};

/* ---- solve_reduce.c: cores and exact reductions ---- */

/* n nodes, no edges; the caller fills in n_strategies, label and cost of each node. */
struct sel_core *sel_core_new(struct ap_arena *arena, int n_nodes, int n_edges);
/* Parallel edges are added up later, by sel_reduce. */
void sel_core_edge(struct sel_core *c, int a, int b, const double *cost, bool owned);
struct sel_core *sel_core_from_problem(struct ap_arena *arena,
                                       const struct ap_problem *p);
/* All reductions to a fixed point. False when some node has no strategy left. */
bool sel_reduce(struct sel_core *c);
/* Given best[v] (a label) for each node left, fills in best[] of the nodes gone. */
void sel_undo_all(struct sel_core *c);
/* Takes state[v] (a strategy) of each node left as the best solution. */
void sel_set_best(struct sel_core *c, const int *state);
/* The other end, and the cost of (own strategy s, other's t) seen from node v. */
static inline int sel_other(const struct sel_edge *e, int v)
{
    return e->a == v ? e->b : e->a;
}
static inline double sel_cell(const struct sel_core *c, const struct sel_edge *e, int v,
                              int s, int t)
{
    size_t nb = (size_t)c->node[e->b].n_strategies;
    return e->a == v ? e->cost[(size_t)s * nb + (size_t)t]
                     : e->cost[(size_t)t * nb + (size_t)s];
}

/* ---- solve_join.c: copies that are paid once ---- */

struct sel_join;
/*
 * Before sel_reduce, on a core fresh from a problem. max_sets [node], 0 at first, is kept
 * by the caller from one refinement to the next.
 */
struct sel_join *sel_join_copies(struct sel_core *c, int *max_sets);
bool sel_join_relaxed(const struct sel_join *j);
/* Raises max_sets where best[] (labels) uses a stand-in; false when none can be raised.
 */
bool sel_join_refine(const struct sel_join *j, const int *best);
/* Decides the copies by their consumers' choices. */
void sel_join_decide(const struct sel_join *j, const struct ap_problem *p, int *choice);

/* ---- solve_dual.c: message passing ---- */

struct sel_dual {
    struct sel_core *core;
    int n;                 /* nodes left */
    int *order;            /* [n], node ids */
    int *rank;             /* [node], place in order */
    double *share;         /* [node], the part of a node's cost that an edge gets */
    int *n_back;           /* [node], edges to nodes of lower rank */
    double **to_a, **to_b; /* [edge][strategy], messages */
    double **slack;        /* [node][strategy], see sel_dual_sweep */
    double *theta, *scratch;
    double bound; /* proven lower bound of the core, base included */
    double slack_base;
};

struct sel_dual *sel_dual_new(struct sel_core *c);
/*
 * One forward and one backward sweep; raises bound. Afterwards every solution with
 * strategy s at v costs at least slack_base + slack[v][s].
 */
void sel_dual_sweep(struct sel_dual *d);
/* How many strategies remain if the cost must be below limit; *all gets their number. */
int64_t sel_dual_kept(const struct sel_dual *d, double limit, int64_t *all);
/*
 * The core with costs moved by the messages (base = bound, all costs >= 0), without the
 * strategies that cannot be part of a solution cheaper than limit; node `only` (or -1)
 * is left with one strategy. NULL when a node has none left.
 */
struct sel_core *sel_dual_fold(const struct sel_dual *d, double limit, int only,
                               int strategy);
/* Decides nodes in order, by decided neighbours and messages of the others. */
void sel_dual_round(struct sel_dual *d, int *state);

/* ---- solve_local.c: local search ---- */

/* Cost of state[] for the nodes left, base included; INFINITY when forbidden. */
double sel_cost(const struct sel_core *c, const int *state);
/* Improves state[] by best answers, then by chains of them. Returns its cost. */
double sel_local(struct sel_core *c, int *state, int n_chains, uint64_t seed);

/* ---- solve_elim.c: elimination along a tree decomposition ---- */

struct sel_elim {
    int n;
    int *order;  /* [n], node ids as they are eliminated */
    int **scope; /* [i], the neighbours of order[i] then, by place in order */
    int *n_scope;
    double entries, work; /* table entries, and combinations to look at */
    double widest;        /* combinations of the largest cluster */
    int widest_node;      /* the node met most in the largest clusters, -1 if none */
};

/* Plans only; stops early (and says false) when entries or work exceed the limits. */
bool sel_elim_plan(struct sel_core *c, double max_entries, double max_work,
                   struct sel_elim *plan);
/*
 * The optimum below limit, into state[]; returns its cost, INFINITY when there is none.
 * Costs must be >= 0: combinations are cut as soon as base plus their sum reaches limit.
 */
double sel_elim_run(struct sel_core *c, const struct sel_elim *plan, double limit,
                    int *state);

#endif
