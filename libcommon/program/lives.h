/* From when to when a program's values are in memory: what buffer plans start from. */
#ifndef AP_LIVES_H
#define AP_LIVES_H

#include "program/program.h"

struct ap_lives {
    const struct ap_graph *g;
    /* Per local node */
    int *root;  /* node that owns the memory (itself, or what it is a view of) */
    int *birth; /* group that writes it; of roots */
    int *death; /* last group that reads it, n_groups for ever */
    bool *has;  /* owns memory */
    int *read;  /* last group that reads it or a view of it, -1 */
    int lo, hi; /* groups of the loop over microbatches */
};

/* Views and results that take their parameter's memory have another node as root. */
void ap_lives_find(struct ap_arena *arena, const struct ap_program *prog,
                   struct ap_lives *lives);

/* Bytes of a buffer: a multiple of AP_PACK_ALIGN above zero. */
int64_t ap_buffer_align(int64_t bytes);

/* Where the roots' buffers are known: those of all others. */
void ap_lives_share(const struct ap_lives *lives, struct ap_buffer *buffer);

#endif
