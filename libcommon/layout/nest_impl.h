/*
 * Inner workings of the factor rules; only nest*.c include this.
 *
 * A rule describes one node by the relations between its dimensions. It refers to ports
 * (operand positions, or AP_OUT for the result), their dimensions, and, if it cuts a
 * dimension, the pieces of it. A dimension that it does not mention is a parallel factor.
 */
#ifndef AP_NEST_IMPL_H
#define AP_NEST_IMPL_H

#include "layout/nest.h"

#define AP_OUT        (-1)
#define AP_UNCUT      (-1)
#define AP_MAX_PIECES 128 /* of one side of a reshape */

struct ap_rule_at {
    int port, dim;
    int piece; /* AP_UNCUT, or the number of a piece of a dimension that the rule cut */
};

/* Two places with the same factors. */
struct ap_rule_link {
    struct ap_rule_at a, b;
};

struct ap_rule_mark {
    struct ap_rule_at at;
    enum ap_factor_kind kind;
    enum ap_red red;
};

/* Splitting `over` makes the tensor of `port` partial. */
struct ap_rule_partial {
    int port;
    struct ap_rule_at over;
};

/* Dimension = sizes[first .. first + n) of the rule, major to minor. */
struct ap_rule_cut {
    int port, dim, n, first;
};

struct ap_refine;

/* The rule of one node; reused from node to node, freed by ap_rule_free. */
struct ap_rule {
    const struct ap_graph *g;
    const struct ap_node *node;
    const struct ap_refine *refine; /* boundaries that reshapes use; NULL for none */
    struct ap_rule_link *links;
    struct ap_rule_mark *marks;
    struct ap_rule_partial *partials;
    struct ap_rule_cut *cuts;
    int64_t *sizes; /* of the cuts */
    int n_links, n_marks, n_partials, n_cuts, n_sizes;
    int cap_links, cap_marks, cap_partials, cap_cuts, cap_sizes;
    bool opaque; /* the node's dimensions cannot be split and are not factors */
};

/* Fills `rule` for node `id`; -1 if the operator has no rule (programs only). */
int ap_rule_run(struct ap_rule *rule, const struct ap_graph *g, int id,
                const struct ap_refine *refine, struct ap_err *err);
void ap_rule_free(struct ap_rule *rule);
void ap_rule_add_link(struct ap_rule *rule, struct ap_rule_at a, struct ap_rule_at b);
void ap_rule_add_mark(struct ap_rule *rule, struct ap_rule_at at,
                      enum ap_factor_kind kind, enum ap_red red);
void ap_rule_add_cut(struct ap_rule *rule, int port, int dim, int n, const int64_t *size);

/* ---- refinement (nest_refine.c) ---- */

/* Boundaries inside a dimension: the extent that is minor to each, descending. */
struct ap_bounds {
    int n;
    int64_t minor[2];
    int64_t run, devices; /* the stride of a pin and the devices that share a run, or 0 */
    int64_t stripe;       /* the boundary below the stripes of a sequence, or 0 */
};

/* All dimensions of all nodes in classes that share factors. */
struct ap_refine {
    const struct ap_graph *g;
    int *dim_start;           /* of each node */
    int *class;               /* of each dimension: its class's representative */
    struct ap_bounds *bounds; /* of representatives */
};

int ap_refine_build(struct ap_arena *arena, const struct ap_graph *g,
                    struct ap_rule *rule, struct ap_refine *refine, struct ap_err *err);
const struct ap_bounds *ap_refine_bounds(const struct ap_refine *refine, int node,
                                         int dim);
/* The rule of reshape: the common refinement of both shapes. */
void ap_rule_reshape(struct ap_rule *rule);

/* ---- masks of attentions (nest_scores.c) ---- */

/*
 * The share of all pairs of its queries and keys that a mask leaves to the device with
 * the last queries. scores: access of the contraction's scores; attr: its attribute of
 * five numbers; extent: of each factor, on a device.
 */
double ap_nest_seen(const struct ap_nest *nest, const struct ap_access *scores,
                    const struct ap_ints *attr, const int64_t *extent);

/* ---- rings of attentions (nest_ring.c) ---- */

/* Gives an attention its ring, if it can have one; called when the rest of the nest is
 * complete. */
void ap_nest_find_ring(struct ap_arena *arena, const struct ap_graph *g,
                       struct ap_nest *nest);
/* Whether the value of members[m] is split like the keys. */
bool ap_ring_splits_keys(const struct ap_nest *nest, const struct ap_graph *g, int m);

/* ---- linear sets (nest_linear.c) ---- */

#define AP_MAX_LINEAR 8
/* Sets n_linear, linear and linear_values; pos[node] = its position among its group's
 * members. */
void ap_nest_find_linear(struct ap_arena *arena, struct ap_arena *scratch,
                         const struct ap_graph *g, const int *pos, struct ap_nest *nest);

#endif
