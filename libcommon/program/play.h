/* Runs programs on an arena that holds owners in place of numbers. */
#ifndef AP_PLAY_H
#define AP_PLAY_H

#include "program/program.h"

/* The owners of an arena's bytes; the caller numbers values from 0. */
struct ap_owners {
    int64_t *edge; /* [n + 1]: borders of stretches of bytes with one owner */
    int n;
    int64_t *owner; /* tree over the stretches */
};
enum { AP_MIXED = -2, AP_NOBODY = -1 };

/*
 * edge: the n_edges places where buffers begin and end, in any order; the array is kept.
 */
void ap_owners_open(struct ap_arena *arena, struct ap_owners *o, int64_t *edge,
                    int n_edges);
void ap_owners_take(struct ap_owners *o, int64_t from, int64_t end, int64_t owner);
/* The first owner of bytes between from and end other than `owner`; AP_MIXED if there is
 * none. */
int64_t ap_owners_other(const struct ap_owners *o, int64_t from, int64_t end,
                        int64_t owner);

/* A program on the arena. */
struct ap_play {
    const struct ap_program *prog;
    struct ap_owners *owners;
    const int *value; /* [node]: the node whose value it shows (itself, or the operand of
                         a view) */
    const int *start; /* [group], and one more at the end: its first node */
    /* The number of node i is first + i * n_tags, plus tag if it is one of `each` */
    int64_t first, n_tags, tag;
    const bool *each;    /* [node] */
    struct ap_slot slot; /* current place of its values */
    /* [group]: a collective that is awaited before it, -1; [group of a collective]: one
       that is awaited at the same place */
    const int *first_awaited, *next_awaited;
};

/* The reason why a node cannot run; other: the number of the value that lies in its
 * place, or -1. */
struct ap_fault {
    const char *what; /* NULL: it can run */
    int node;
    int64_t other;
};

/* Fills value, start, first_awaited and next_awaited (arena). */
struct ap_fault ap_play_open(struct ap_arena *arena, struct ap_play *p);
/* Runs groups lo .. hi - 1; again: sums over microbatches have begun. */
struct ap_fault ap_play_groups(struct ap_play *p, int lo, int hi, bool again);
/* The value that holds bytes of the node's buffer in place of its own value; AP_MIXED if
 * there is none. */
int64_t ap_play_intruder(const struct ap_play *p, int node);
void ap_play_take(struct ap_play *p, int node);
/* Checks that parameters and results are in memory, as the next step needs them. lasting:
 * [parameter], then [result]: whether it has to be. */
struct ap_fault ap_play_end(const struct ap_play *p, const bool *lasting);
/* The node of this program with that number; -1 if it belongs to another program. */
int ap_play_node(const struct ap_play *p, int64_t number);

#endif
