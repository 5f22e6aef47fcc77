/* Parts of ap_program_kernels: kernel_units.c finds new groups, program_kernels.c makes
 * the list of them. */
#ifndef AP_KERNEL_UNITS_H
#define AP_KERNEL_UNITS_H

#include "program/program.h"

/* Marked nodes of one kernel, of one stretch of the list. */
struct kernel_unit {
    int64_t kernel;
    int run;
    int n, *member; /* ascending */
};

/* A new group. */
struct kernel_set {
    int run, place; /* stretch and old place of its first member */
    int unit;       /* -1: an unchanged group, or a single operator */
    bool columns;   /* consists of reduces, which no member reads */
    bool alone;     /* one operator, for which no value is recomputed */
    int lead;       /* its first member */
    int n_from;     /* for columns: the values in memory that they read */
    const int *from;
};

struct kernels {
    struct ap_arena *arena;
    const struct ap_program *prog;
    const struct ap_graph *g; /* before the change */
    int *run; /* [group]: stretch: groups of one turn that run equally often */
    int n_units, cap_units;
    struct kernel_unit *unit;
    int n_sets, cap_sets;
    struct kernel_set *sets;
    /* [node of g] */
    int *unit_of; /* -1: it belongs to no unit */
    int *set;     /* the new group of the node */
    bool *stored; /* it is in memory in any case */
    uint8_t
        *constant; /* not 0: depends on constants alone, and is computed in each reader */
    int *class, *level;
    bool *name;           /* a reshape, which is a view if it is a group of its own */
    int *tag, *low;       /* levels of the current unit and of the nodes between */
    bool *late;           /* in the current unit: depends on values from outside */
    int *up;              /* union-find: sets */
    int *stamp, n_stamps; /* the latest search that visited the node */
    int n_counts;
    struct kernel_count *counts; /* of the unit at hand */
};

/*
 * Fills sets, and the set of each node; sets of units without banned[unit] are kernels
 * (kernel_form.h). The caller sets arena, prog and g. The function may be called again.
 */
void ap_kernel_units_find(struct kernels *k, const bool *banned);

/* Whether node v of a set, or a copy of it in the set, reads a copy of its operand `in`,
 * which belongs to another set. */
bool ap_kernel_copies(const struct kernels *k, const struct kernel_set *s, int v, int in);

static inline const struct ap_node *kernels_node(const struct kernels *k, int v)
{
    return &k->g->nodes[v];
}

/* Whether a group runs before the microbatches, with each or after them: 0, 1, 2. */
static inline int kernels_stretch(const struct ap_program *prog, int group)
{
    return (group >= prog->each_lo) + (group >= prog->each_hi);
}

#endif
