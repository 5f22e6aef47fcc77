/* The parts of `structure`: colours and cuts, growing regions, choosing among them. */
#ifndef STRUCTURE_H
#define STRUCTURE_H

#include "prune.h"

/*
 * Kept colours: radii 0 to 4, and one of users only. With a radius fewer the
 * Switch transformer's alternating layers are not seen, without the last one T5 loses a
 * family of nine; radii 6, 8 and 12 changed no family of 51 models and took
 * twice the time: tests/structure.bats, ap-prune --algorithm structure --stats.
 */
#define STRUCTURE_COLORS    5
#define STRUCTURE_GROUPINGS 6
#define STRUCTURE_SAMPLE    4  /* instances that an estimate grows */
#define STRUCTURE_USERS     32 /* users of a node that are followed, at most */

struct structure {
    struct prune_space *space;
    const struct ap_graph *g;
    uint64_t *color[STRUCTURE_GROUPINGS]; /* [radius][node] */
    bool *data;                           /* [node]: forward, made of inputs and weights,
                                             and the loss needs it */
    int *last_use;                        /* [node]: last such reader, -1 for none */
    /* the region in which a node may be taken: 0 outside all families, i inside the first
       instance of draft i - 1 (but not inside a child of it), -1 in other instances */
    int *home;
    uint8_t *is_end;  /* [node]: some instance ends here */
    uint8_t *reached; /* [node]: scratch of structure_cut, 0 between calls */
    int *owner;       /* [node]: scratch of growing, instance + 1, 0 between calls */
};

/* Scratch memory and colours of a graph; everything lies in the arena. */
void structure_init(struct structure *s, struct ap_arena *arena, struct prune_space *sp);

/* ---- cuts (structure_color.c) ---- */

/*
 * Where a chain may be cut between two of its nodes: data nodes that alone are alive
 * between lo and hi, ascending; before: the node of the period before, or -1. Returns how
 * many (the first max from hi on), 0 when hi does not depend on lo.
 */
int structure_cuts(struct structure *s, int before, int lo, int hi, int max, int *cut);
/* The first data node that a node of the forward phase leads to, -1 for none near. */
int structure_data_of(const struct structure *s, int node);

/* ---- regions (structure_grow.c) ---- */

/* Instances grown in lock-step: position p of instance i is nodes[i * cap + p]. */
struct region {
    int k, n, cap;
    int *nodes; /* malloc'ed */
};

/*
 * Grows k regions of nodes at `home` from k equivalent anchors; edges between is_end
 * nodes and their readers are not followed. The result satisfies ap_families_check's
 * conditions. The caller frees nodes.
 */
void structure_grow(struct structure *s, int home, int k, const int *anchors,
                    struct region *r);

#endif
