/* Playing programs on an arena with owners in place of numbers. */
#ifndef AP_PLAY_H
#define AP_PLAY_H

#include "program/program.h"

/* Who owns which bytes of an arena; values are numbered by the caller, from 0. */
struct ap_owners {
    int64_t *edge; /* [n + 1]: stretches of bytes that are owned as a whole */
    int n;
    int64_t *owner; /* tree over the stretches */
};
enum { AP_MIXED = -2, AP_NOBODY = -1 };

/* edge: where buffers begin and end, n_edges of them in any order; it is kept. */
void ap_owners_open(struct ap_arena *arena, struct ap_owners *o, int64_t *edge,
                    int n_edges);
void ap_owners_take(struct ap_owners *o, int64_t from, int64_t end, int64_t owner);
/* The first owner of bytes between from and end that is not `owner`; AP_MIXED: none is.
 */
int64_t ap_owners_other(const struct ap_owners *o, int64_t from, int64_t end,
                        int64_t owner);

/* A program on the arena. */
struct ap_play {
    const struct ap_program *prog;
    struct ap_owners *owners;
    const int *value; /* [node]: the node whose numbers it shows (itself, or a view's) */
    const int *start; /* [group], and after the last: its first node */
    /* The number of node i is first + i * n_tags, and tag where it is one of `each` */
    int64_t first, n_tags, tag;
    const bool *each;    /* [node] */
    struct ap_slot slot; /* where its values lie now */
    /* [group]: a collective that is awaited before it, -1; [group of a collective]: one
       that is awaited at the same place */
    const int *first_awaited, *next_awaited;
};

/* Why a node cannot run; other: the number of the value that is in the way, -1. */
struct ap_fault {
    const char *what; /* NULL: it can */
    int node;
    int64_t other;
};

/* Fills value, start, first_awaited and next_awaited (arena). */
struct ap_fault ap_play_open(struct ap_arena *arena, struct ap_play *p);
/* Runs groups lo .. hi - 1; again: sums over microbatches are under way. */
struct ap_fault ap_play_groups(struct ap_play *p, int lo, int hi, bool again);
/* Who holds bytes of the node's buffer in place of its value; AP_MIXED: nobody does. */
int64_t ap_play_intruder(const struct ap_play *p, int node);
void ap_play_take(struct ap_play *p, int node);
/* Whether parameters and results are in memory, as the next step needs them. lasting:
 * [parameter], then [result]: which have to be. */
struct ap_fault ap_play_end(const struct ap_play *p, const bool *lasting);
/* The node of this program with that number, -1: it is not of this program. */
int ap_play_node(const struct ap_play *p, int64_t number);

#endif
