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
    int run, place; /* where it goes: of its first member, as it was */
    int unit;       /* -1: a group that stays, or an operator by itself */
    bool columns;   /* reduces, that nobody in it reads */
    bool alone;     /* one operator, for which nothing is computed again */
    int lead;       /* its first member */
    int n_from;     /* of columns: values in memory that they read */
    const int *from;
};

struct kernels {
    struct ap_arena *arena;
    const struct ap_program *prog;
    const struct ap_graph *g; /* as it was */
    int *run;                 /* [group]: stretches of one turn that run equally often */
    int n_units, cap_units;
    struct kernel_unit *unit;
    int n_sets, cap_sets;
    struct kernel_set *sets;
    /* [node as it was] */
    int *unit_of;      /* -1: it is of none */
    int *set;          /* the new group that it is a member of */
    bool *stored;      /* it is in memory, whatever the unit's groups read */
    uint8_t *constant; /* not 0: made of constants alone, computed where it is read */
    int *class, *level;
    bool *name;           /* a reshape that is a view, if it is alone */
    int *tag, *low;       /* of the unit at hand, and of what lies between: levels */
    bool *late;           /* of the unit at hand: made of values from outside */
    int *up;              /* union-find: sets */
    int *stamp, n_stamps; /* the latest search that met it */
    int n_counts;
    struct kernel_count *counts; /* of the unit at hand */
};

/* Fills sets, and for each node its set; those of units that are not banned[unit] are
 * kernels (kernel_form.h). arena, prog and g are given; may be called again. */
void ap_kernel_units_find(struct kernels *k, const bool *banned);

/* Whether node v of a set, or a copy of it in there, reads a copy of its operand `in`,
 * which is of another set. */
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
