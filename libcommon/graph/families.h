/*
 * Families: the repeated parts of a graph (the document's section "families"). A family
 * is a region of the graph that occurs several times; its instances are disjoint and
 * isomorphic: node j of one instance stands for node j of any other. Forward, backward
 * and update nodes of one layer belong to one instance. Families nest: an instance of a
 * child lies inside one instance of its parent, and each instance of the parent holds
 * equally many.
 */
#ifndef AP_FAMILIES_H
#define AP_FAMILIES_H

#include "graph/graph.h"

struct ap_family {
    const char
        *name; /* the scopes of its instances: "gpt/h_*"; made up if there are no names */
    int parent;      /* enclosing family, an earlier one, or -1 */
    int n_instances; /* >= 2 */
    int n_nodes;     /* of one instance */
    /* [instance * n_nodes + j]; instance 0, the representative, has ascending ids; the
       instances stand in the order of their first nodes */
    const int *nodes;
    const char *const *labels; /* [instance]: "gpt/h_3", or made up */
};

struct ap_families {
    const char *algorithm;
    int n;
    const struct ap_family *family; /* parents before their children */
    /* auxiliary nodes that belong to no instance and were not looked at, ascending */
    int n_trimmed;
    const int *trimmed;
};

/* Counts over the families, for the section, --stats and tables. */
struct ap_families_summary {
    int n_outer;     /* families without a parent */
    int n_instances; /* of these families */
    int n_distinct;  /* outer families, and blocks of weights outside them: the rest of
                        each innermost scope that has families below it */
    int64_t nodes;   /* nodes in instances of outer families */
    int64_t weights; /* parameters of role weight there */
    int64_t all_weights; /* parameters of role weight in the graph */
};

/*
 * Checks the properties that the comment at the top states, in time linear in nodes and
 * edges: ids exist, instances are disjoint within a family and among families that are
 * not nested, nesting is as described, and corresponding nodes have equal operators,
 * shapes, attributes, roles and phases; an operand inside the instance corresponds to the
 * same operand of the other instance; an operand outside is outside in both, at the same
 * place and with equal shapes; and two operands that are one node in one instance are one
 * node in the other. -1 with "/families/3/nodes/1/17: ..." as the message.
 */
int ap_families_check(struct ap_arena *arena, const struct ap_graph *g,
                      const struct ap_families *f, struct ap_err *err);

void ap_families_sum(struct ap_arena *arena, const struct ap_graph *g,
                     const struct ap_families *f, struct ap_families_summary *sum);

#endif
