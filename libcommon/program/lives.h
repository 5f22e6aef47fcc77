/* Lifetimes of a program's values, from which buffer plans are made. */
#ifndef AP_LIVES_H
#define AP_LIVES_H

#include "program/program.h"

struct ap_lives {
    const struct ap_graph *g;
    /* Per local node */
    int *root; /* node that owns the memory (itself, or the node of which it is a view) */
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

/* Derives the buffers of all other nodes from those of the roots. */
void ap_lives_share(const struct ap_lives *lives, struct ap_buffer *buffer);

#endif
