/*
 * Patterns of weights: the placements of a weight on one mesh axis, with the choices of
 * the operators that use it, compute its gradient and update it. Patterns follow from the
 * factor rule of the weight's first use in the forward phase: the weight is whole
 * (replicate), or split along a factor of the output (column), a summed factor (row), a
 * factor that the other operand has, too (expert: a batch of weights), or a factor that
 * is looked up (table).
 */
#ifndef AP_PATTERNS_H
#define AP_PATTERNS_H

#include "plan/plan.h"

enum ap_pattern {
    AP_PATTERN_REPLICATE,
    AP_PATTERN_COLUMN,
    AP_PATTERN_ROW,
    AP_PATTERN_EXPERT,
    AP_PATTERN_TABLE,
    AP_N_PATTERNS
};
extern const char *const ap_pattern_names[AP_N_PATTERNS]; /* "replicate", ... */

#define AP_CHOICE_FREE (-2) /* the pattern leaves it open */

/* A weight of two or more dimensions that a contraction or look-up uses. */
struct ap_weight {
    int node; /* the parameter */
    int use;  /* group of its first use in the forward phase */
    int n;    /* patterns, replicate first */
    enum ap_pattern pattern[AP_N_PATTERNS];
    bool fits[AP_N_PATTERNS]; /* the factor is as large as the devices that share it */
    /* Groups whose choices the pattern decides: the weight and values made of it alone,
       the contractions that use it or compute its gradient, its update, its states. */
    int n_own, *own;
    int16_t *choice[AP_N_PATTERNS]; /* [pattern][own]: on the axis */
};

struct ap_weights {
    int n;
    struct ap_weight *weight; /* in the order of their first uses */
    int *owner;               /* per group: weight that decides it, or -1 */
    int *at;                  /* per group: position in its owner's list */
    int *of_node;             /* per node: number of the weight that it is, or -1 */
    bool *gradient;           /* per node: on a way from a gradient to its update */
    int n_variables;          /* parameters of role weight, those without patterns too */
};

/*
 * Finds the weights and their patterns on one axis of the plan's mesh; the plan's choices
 * are those of data parallelism, which replicate keeps. O(nodes + edges), except for
 * groups that several weights share.
 */
void ap_weights_find(struct ap_arena *arena, const struct ap_plan *plan, int axis,
                     bool no_padding, struct ap_weights *out);

/* ---- functions on nests for patterns and routes ---- */

/* The place at which a tensor is split on an axis, before layouts are made canonical. */
struct ap_place {
    enum ap_placement_kind kind;
    int dim;
    int64_t stride; /* product of the sizes of the split factor and those minor to it */
};
struct ap_place ap_place_of(const struct ap_nest *nest, const struct ap_access *access,
                            int factor);
/* The factor at a place of an access; -1 if its boundaries do not fit. */
int ap_place_factor(const struct ap_nest *nest, const struct ap_access *access,
                    struct ap_place place);
/* Whether the group consists of sums of operands and moves only, so that partial operands
 * may stay partial until the next collective. */
bool ap_nest_only_adds(const struct ap_graph *g, const struct ap_nest *nest);
/*
 * The plan's choice of the group, with another one on this axis. False if it is not
 * legal, or if a factor is smaller than the number of devices that share it (or, without
 * padding, is not divided by it).
 */
bool ap_choice_with(const struct ap_plan *plan, int group, int axis, int choice,
                    bool no_padding, struct ap_choice_vec *out);

#endif
