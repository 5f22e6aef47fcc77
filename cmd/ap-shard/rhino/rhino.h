/* Private to ap-shard's rhino search (rhino*.c). */
#ifndef RHINO_H
#define RHINO_H

#include "graph/critical.h"
#include "problem/shard.h"

/* The penalty if a parameter and the value that it becomes have different layouts, in
   addition to the conversion: more than any graph moves, but small enough to be added
   exactly. */
#define RHINO_AFFINITY 1e14

/* ---- rhino_view.c: the graph of fusion groups, the same for every axis ---- */

struct rhino_view {
    int level, n_groups;
    const uint8_t *constant; /* [group]: made of constants alone, and free */
    const uint8_t *root;     /* [group]: of a cone before any is promoted */
    const int *member;       /* [node]: position in its group */
    const int *out_slot;     /* [node]: position in its group's outs, -1 for none */
    /* uses of node i: (group, position in ins) pairs from use_start[i] on */
    const int *use_start, *use_group, *use_slot;
    /* the parameter that a result becomes, or the results that a parameter becomes */
    const int *partner_start, *partner;
    /* scopes: segments at levels 0 to 2, one for the whole graph above */
    int n_scopes;
    const int *scope_of;             /* [group], constants too */
    const int *scope_start, *scoped; /* groups without constants, ascending */
    const int *position;             /* [group]: in its scope */
    const int *tail;                 /* [scope]: group of the critical node, or -1 */
    int n_critical;
};

/* -1: the level needs segments, and the phases of the graph do not follow each other. */
int rhino_view_build(struct ap_arena *arena, const struct shard_task *task, int level,
                     struct rhino_view *view, struct ap_err *err);
/* Operands first, then values that others read. */
static inline int rhino_n_slots(const struct ap_nest *nest)
{
    return nest->n_ins + nest->n_outs;
}

/* ---- rhino_space.c: one axis, its candidates ---- */

/* The cost of group b for the layout in which group a leaves a tensor. */
struct rhino_edge {
    int a, b;
    bool affinity;
    const double *cost; /* [strategy of a * n[b] + strategy of b], bytes */
};

struct rhino_axis {
    struct ap_arena *arena;
    const struct shard_task *task;
    const struct rhino_view *view;
    const uint8_t *forced; /* [node]: parameters that may not be whole; NULL: none */
    int axis;
    int64_t n_devices;
    struct ap_mesh mesh;                 /* this axis alone */
    const struct ap_choice_vec *earlier; /* [group]: of the axes before; the rest -1 */
    struct ap_placement **place;         /* [group][(factor + 1) * slots + slot] */
    int **piece;                         /* [group][factor]: that reached it first, -1 */
    int n_pieces;
    int *n;                          /* [group]: strategies */
    int16_t **factor;                /* [group][strategy]: -1 whole */
    int64_t n_strategies, n_methods; /* of groups; of tensors (rhino_methods) */
    double **self; /* [group][strategy]: bytes of all-reduces and of results */
    int n_edges;
    struct rhino_edge *edge;
    const int *edge_start, *edge_of; /* edges of group i, ascending */
};

static inline const struct ap_placement *rhino_place(const struct rhino_axis *ax,
                                                     int group, int factor, int slot)
{
    int n = rhino_n_slots(&ax->task->nests->nest[group]);
    return &ax->place[group][(factor + 1) * n + slot];
}
static inline bool rhino_same(const struct ap_placement *p, const struct ap_placement *q)
{
    return p->kind == q->kind && p->dim == q->dim && p->stride == q->stride &&
           p->red == q->red;
}
/* n, factor, piece and place; -1 when a pin cannot be kept. */
int rhino_axis_strategies(struct rhino_axis *ax, struct ap_err *err);
/* In how many ways a tensor can lie on n devices: every stride of every dimension that
   divides, whole, and partial (Rhino, 4.3.3). */
int64_t rhino_methods(const struct ap_shape *shape, int64_t n_devices);

/* ---- rhino_cost.c: bytes ---- */

/* self, edge, edge_start and edge_of. */
void rhino_axis_costs(struct rhino_axis *ax);

/* The sums over a choice, without constants. */
struct rhino_total {
    double bytes;
    int n_mismatches; /* parameters whose layouts differ from their next values' */
};
struct rhino_total rhino_axis_total(const struct rhino_axis *ax, const int *choice);

/* ---- rhino_cones.c: the groups of one scope ---- */

/* The cost of a choice of a scope. */
struct rhino_least {
    double bytes;
    bool cut_short; /* the solver stopped before it was sure; never at level 0 */
};

/* A scope's cones as a selection problem. */
struct rhino_cones {
    int scope, n;
    const int *root;           /* [cone]: group */
    const int *cone;           /* [position in the scope] */
    const int *const *follow;  /* [position][strategy of its root]: strategy */
    const double *const *cost; /* [cone][strategy] */
    struct ap_problem problem;
};

/*
 * The dynamic program inside the cones. outside[group][strategy]: the cost of edges that
 * leave the scope; entries, or all, may be NULL.
 */
void rhino_cones_build(const struct rhino_axis *ax, int scope,
                       const double *const *outside, struct rhino_cones *cones);
/*
 * Chooses a strategy per cone; fixed is the group whose strategy is given, -1 for none.
 * Sets choice[position in the scope]; returns 1 if there is no legal choice.
 */
int rhino_cones_solve(const struct rhino_axis *ax, const struct rhino_cones *cones,
                      int fixed, int strategy, int *choice, struct rhino_least *least);

/* ---- rhino_chain.c: from scope to scope ---- */

/* Added up over all axes. */
struct rhino_counts {
    int64_t n_cones;               /* of each segment, as solved last */
    int64_t n_solved, n_cut_short; /* problems, and those that the work limit ended */
};

/* choice[group], of all groups; explain may be NULL. */
int rhino_chain(const struct rhino_axis *ax, int *choice, struct rhino_counts *counts,
                struct ap_buf *explain, struct ap_err *err);

/* ---- rhino_explain.c ---- */

void rhino_explain_axis(const struct rhino_axis *ax, const int *choice,
                        struct ap_buf *out);
void rhino_explain_scope(const struct rhino_axis *ax, const struct rhino_cones *cones,
                         const int *choice, double bytes, struct ap_buf *out);

#endif
