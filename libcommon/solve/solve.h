/*
 * Private to the solve_*.c files: the working form of a selection problem (a "core"),
 * which reductions shrink, message passing bounds and elimination solves.
 *
 * A core's nodes keep their ids while it lives; reductions mark them gone. Strategies
 * are renumbered when some are dropped: label[] (ascending) maps them to the strategy
 * numbers of the problem that ap_solve_exact was given. Forbidden is INFINITY here.
 * Everything lives in an arena and is never freed singly, so that tables taken out of
 * the core stay valid for the undo stack.
 */
#ifndef AP_SOLVE_H
#define AP_SOLVE_H

#include "solve/problem.h"

#include <math.h>

/* fmin where nothing is NaN, without a call. */
static inline double sel_lesser(double a, double b)
{
    return b < a ? b : a;
}

#define SEL_MAX_SETS  65536 /* strategies of a node that stands for copies */
#define SEL_MAX_PAIRS 600   /* strategies of a node that stands for two */

struct sel_node {
    int n_strategies;
    const int *label; /* [strategy], immutable: a change makes a new array */
    double *cost;     /* [strategy], owned by this core */
    int *edges;       /* incident edges, gone ones included */
    int n_edges, cap_edges, degree; /* degree counts the edges that are not gone */
    bool gone, queued;
};

/*
 * Costs by class: strategies of an end with equal costs share a row or column. Tables are
 * immutable and shared by edges and cores.
 */
struct sel_table {
    int n_rows, n_cols;
    const double *cost; /* [row * n_cols + col] */
    /*
     * The columns of row r's finite cells are at[first[r] .. first[r + 1]), their costs
     * in the same places of value, or 0 if value is NULL. first is NULL if most cells are
     * finite.
     */
    const int *first;
    const uint16_t *at;
    const double *value;
};

struct sel_edge {
    int a, b;
    const struct sel_table *table;
    const int *row, *col;            /* [strategy of a], [of b]: their class */
    const double *row_add, *col_add; /* [strategy of a], [of b]: added to the table */
    bool gone, checked;
};

/*
 * A node taken out: once its neighbours are decided, it takes the first strategy that
 * minimises cost plus the tables of its arms. One form undoes every reduction.
 */
struct sel_arm {
    int node, n_strategies;
    const int *label;
    struct sel_edge edge; /* as it was */
};

struct sel_undo {
    int node, n_strategies, n_arms;
    const int *label;
    const double *cost;
    struct sel_arm arm[2];
    const int *map; /* [strategy of the arm's node], a label: a function; NULL if none */
};

struct sel_core {
    struct ap_arena *arena;
    int n_nodes, n_left; /* all, and those not gone */
    struct sel_node *node;
    struct sel_edge *edge;
    int n_edges, cap_edges;
    const int
        *identity; /* 0, 1, 2, ... and zeros, for any strategy; shared by all cores */
    const double *zeros;
    int n_identity;    /* how many */
    const int *parent; /* [node], the id in the core that this one was made from */
    struct sel_undo *undo;
    int n_undo, cap_undo;
    double
        base; /* cost of the removed nodes; a lower bound of the core if costs are >= 0 */
    double tol; /* cost differences up to this are noise */
    int *best;  /* [node], labels of the best solution found */
    int *queue; /* ring of nodes to look at again, with queued flags */
    int queue_head, queue_len;
    bool *keep, *dirty; /* scratch of the reductions: per strategy, per node */
    int *map;
    bool *stays; /* [node], it is never taken out; NULL: all may be */
    struct ap_work
        *work;        /* counts the work on the core and its parts; NULL: not counted */
    double until_sec; /* reductions stop when the clock is past this; 0: never */
    int ticks;        /* until they look at it */
    bool late;
    bool *holds; /* [node], its usage depends on its choice; NULL without memory */
    /* t may replace s at v: it uses no more at any time; for holds[v] only */
    bool (*no_more)(const void *memory, int v, int t, int s);
    const void *memory; /* of no_more; NULL: none may */
};

/* ---- solve_core.c: cores, tables ---- */

/* n nodes, no edges; the caller fills in n_strategies, label and cost of each node. */
struct sel_core *sel_core_new(struct ap_arena *arena, const struct sel_core *like,
                              int n_nodes, int n_edges);
/* edge is copied. Parallel edges are added up later, by sel_reduce. */
void sel_core_edge(struct sel_core *c, struct sel_edge edge);
struct sel_core *sel_core_from_problem(struct ap_arena *arena,
                                       const struct ap_problem *p);
/* Finite cells of the tables between nodes that are left, and strategies at their ends.
 */
int64_t sel_cells(const struct sel_core *c);
/* A core to work on, copied from one that does not change. */
struct sel_core *sel_core_copy(const struct sel_core *c);
/*
 * A core of the nodes list[0 .. n), which must not be gone and have no edges to other
 * nodes; map[] is scratch per node, and has the new ids of the listed nodes afterwards.
 */
struct sel_core *sel_core_extract(struct sel_core *c, const int *list, int n, int *map);
/* cost is kept, not copied. */
struct sel_table *sel_table_new(struct ap_arena *arena, int n_rows, int n_cols,
                                const double *cost);
/* class[i] numbers the distinct rows; the first row of each class is moved up. Returns
 * the number of classes. */
int sel_classify(double *rows, int n, int width, int *class);
/* An edge for a dense table [s_a][s_b]: finds the classes. */
struct sel_edge sel_edge_compress(struct sel_core *c, int a, int b, int n_a, int n_b,
                                  const double *cost);
/* ---- solve_reduce.c: exact reductions ---- */

/*
 * All reductions to a fixed point, or, past until_sec, only those that drop strategies
 * without a finite cell. False if a node has no strategy left.
 */
bool sel_reduce(struct sel_core *c, bool with_dominance);
/* One round of dominance; false if nothing was dropped. sel_reduce should follow. */
bool sel_drop_dominated(struct sel_core *c);
/* True from until_sec on; looks at the clock once in a while, or now. */
bool sel_late(struct sel_core *c, bool now);
/* The place of want in label[0 .. n), which ascends. */
int sel_index_of(const int *label, int n, int want);
/* Given best[v] (a label) for each node left, fills in best[] of the nodes gone. */
void sel_undo_all(struct sel_core *c);
/* Takes state[v] (a strategy) of each node left as the best solution. */
void sel_set_best(struct sel_core *c, const int *state);
/* The other end, and the cost of (own strategy s, other's t) seen from node v. */
static inline int sel_other(const struct sel_edge *e, int v)
{
    return e->a == v ? e->b : e->a;
}
static inline double sel_base(const struct sel_edge *e, int sa, int sb)
{
    return e->table
        ->cost[(size_t)e->row[sa] * (size_t)e->table->n_cols + (size_t)e->col[sb]];
}
static inline double sel_cell(const struct sel_edge *e, int v, int s, int t)
{
    int sa = e->a == v ? s : t, sb = e->a == v ? t : s;

    return sel_base(e, sa, sb) + e->row_add[sa] + e->col_add[sb];
}

/* ---- solve_join.c: copies that are paid once ---- */

struct sel_join;
/*
 * Before sel_reduce, on a core fresh from a problem. max_sets [node], 0 at first, is kept
 * by the caller from one refinement to the next. Where a group has more sets, the others
 * are represented by proxies, which makes the core a relaxation.
 */
struct sel_join *sel_join_copies(struct sel_core *c, int *max_sets);
/* Whether some group does not have all its sets. */
bool sel_join_relaxed(const struct sel_join *j);
/* Raises max_sets of groups for which best[] (labels) uses a proxy; false if none can be
 * raised. */
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
    double *theta, *scratch, *least_in, *least_out;
    double bound; /* proven lower bound of the core, base included */
    double slack_base;
};

struct sel_dual *sel_dual_new(struct sel_core *c);
/* The same with the nodes in the order of their ids. */
struct sel_dual *sel_dual_in_order(struct sel_core *c);
/* out[k] = min over r of in[r] + table[r][k], which is INFINITY where none is finite */
void sel_min_over_rows(const struct sel_table *t, const double *restrict in,
                       double *restrict out);
/* out[r] = min over k of in[k] + table[r][k] */
void sel_min_over_cols(const struct sel_table *t, const double *restrict in,
                       double *restrict out);
/*
 * One forward and one backward sweep; raises bound. Afterwards every solution with
 * strategy s at v costs at least slack_base + slack[v][s].
 */
void sel_dual_sweep(struct sel_dual *d);
/* The number of strategies that remain if the cost must be below limit; *all gets the
 * number of all strategies. */
int64_t sel_dual_kept(const struct sel_dual *d, double limit, int64_t *all);
/*
 * The core with costs moved by the messages (base = bound, all costs >= 0), without the
 * strategies that cannot be part of a solution cheaper than limit; node `only` (or -1) is
 * left with one strategy. NULL if a node has none left.
 */
struct sel_core *sel_dual_fold(const struct sel_dual *d, double limit, int only,
                               int strategy);
/* Decides nodes in order, by decided neighbours and messages of the others. */
void sel_dual_round(struct sel_dual *d, int *state);

/* ---- solve_local.c: local search ---- */

/* Cost of state[] for the remaining nodes, base included; INFINITY if forbidden. */
double sel_cost(const struct sel_core *c, const int *state);
/* Improves state[] by best answers. Returns its cost. */
double sel_local(const struct sel_core *c, int *state);

/* ---- solve_merge.c: pairs of neighbours as one node ---- */

/*
 * A round of merging on a core whose costs are >= 0 (of sel_dual_fold); no solution that
 * costs less than limit is lost. sel_reduce should follow. False if no solution costs
 * less.
 */
bool sel_merge_pairs(struct sel_core *c, double limit, int *n_merged);

/* ---- solve_elim.c: elimination along a tree decomposition ---- */

struct sel_elim {
    int n;
    int *order;  /* [n], node ids in the order of elimination */
    int **scope; /* [i], the neighbours of order[i] at that time, by place in order */
    int *n_scope;
    double entries, work; /* table entries, and combinations to look at */
    double widest;        /* combinations of the largest cluster */
    int widest_node;      /* the most frequent node of the largest clusters, or -1 */
};

/* Plans only; stops early (and says false) when entries or work exceed the limits. */
bool sel_elim_plan(struct sel_core *c, double max_entries, double max_work,
                   struct sel_elim *plan);
/*
 * Puts the optimum below limit into state[] and returns its cost; INFINITY if there is
 * none. Costs must be >= 0: combinations are cut as soon as base plus their sum reaches
 * limit.
 */
double sel_elim_run(struct sel_core *c, const struct sel_elim *plan, double limit,
                    int *state);
/* ---- solve_exact.c: solving one core ---- */

/* No solution is cheaper than bound; if found, best[] of the core has one of cost. */
struct sel_verdict {
    double bound, cost;
    bool found;
};
/*
 * Searches a solution cheaper than limit by all methods, within work_limit; costs must be
 * >= 0. If none is found, the bound is at most limit.
 */
struct sel_verdict sel_solve_core(struct sel_core *c, double limit, int64_t work_limit);

/* ---- solve_glpk.c: integer programming on what a bound leaves ---- */

/* The program under way: see the opening comment of the file. */
struct sel_program {
    const struct sel_core *core; /* folded: costs are reduced costs */
    const struct sel_rows *rows;
    struct glp_prob *lp;
    int **column;      /* [node][strategy of the core] */
    double scale, gap; /* costs are multiplied by scale; what reaches gap is out */
    int *index;        /* scratch of a row with all columns of strategies, and two more */
    double *coef;
    double bound; /* of the tree, scaled */
    int64_t n_nodes, node_limit;
};

/* What the program's caller adds to it. */
struct sel_rows {
    void *arg;
    /* Adds rows that the values break, or (value NULL) those that are there from the
     * beginning; their number. NULL: there are none. */
    int (*add)(void *arg, struct sel_program *g,
               double (*value)(struct glp_prob *lp, int column));
    /* The cost of state[node], labels; INFINITY: it is not legal. */
    double (*cost)(void *arg, const int *state);
};

struct sel_program_limits {
    double cost;        /* only choices that cost less */
    int64_t cells;      /* nothing is done but counting if there are more */
    double until_sec;   /* 0: never */
    int64_t iterations; /* and nodes of the tree; 0: no limit */
};

struct sel_proof {
    double bound; /* of all choices cheaper than the limit; the limit if there are none */
    bool done;    /* bound is exact */
    double cost;  /* of state[], INFINITY when nothing cheaper was found */
    int *state;   /* [node], labels; the caller's */
    int64_t n_cells; /* of the program, or that it would have had */
};

/* Looks for the cheapest choice of a core from sel_dual_fold, NULL when that left none.
 */
void sel_program_solve(struct ap_arena *arena, struct sel_core *folded,
                       const struct sel_program_limits *limits,
                       const struct sel_rows *rows, struct sel_proof *proof);

#endif
