/* Layouts that a person gives to nodes, and the choices that bring them about. */
#ifndef AP_PINS_H
#define AP_PINS_H

#include "plan/plan.h"

/* A pinned tensor: its layout is given. */
struct ap_pins {
    bool *pinned;             /* per node */
    struct ap_layout *layout; /* per node */
    const char **asker;       /* per node: "--pin 'a=R'", NULL for an imported sharding */
    int n, n_dropped;
    bool cut; /* a pin of the command line has a stride: its node keeps it */
};

struct ap_pins ap_pins_none(struct ap_arena *arena, const struct ap_graph *g);
/* Pins one node; mesh and text of the layout as ap_layout_parse has them. asker is kept.
 */
int ap_pins_set(struct ap_pins *pins, const struct ap_graph *g,
                const struct ap_mesh *mesh, int node, const char *layout,
                const char *asker, struct ap_err *err);
/*
 * Choices of the groups with pinned values, and whether a group has one (per group,
 * arena), for the plan's nests, mesh and choices on the microbatch axis. -1 with a
 * message that names the first node whose group cannot have the layouts, the pin, and the
 * reason.
 */
int ap_pins_fit(struct ap_arena *arena, const struct ap_plan *plan,
                const struct ap_pins *pins, struct ap_choice_vec **choice, bool **fixed,
                struct ap_err *err);

/* Sets err: the node cannot have the layout of a pin, with the pin and the reason. */
int ap_pins_refuse(const struct ap_pins *pins, const struct ap_graph *g, int node,
                   const char *why, struct ap_err *err);

#endif
