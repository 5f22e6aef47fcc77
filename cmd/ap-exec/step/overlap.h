/* Collectives that run while calls after them do. */
#ifndef EXEC_OVERLAP_H
#define EXEC_OVERLAP_H

#include "step/exec.h"

/* Notes the memory that a call reads and writes, once it is prepared and before x->value
 * of its nodes changes; or that of a copy. */
void overlap_note(struct exec *x, struct call *call);
void overlap_note_copy(struct exec *x, struct call *call, const struct exec_copy *c);
/* All calls are noted: finds the first one that has to wait for each collective. */
void overlap_plan(struct exec *x);

/* Runs call i with a state; or only starts it. */
void overlap_run(struct exec *x, int i, void *state);
/* Before call i: finishes the collectives that it has to wait for. i = x->n_calls: all.
 */
void overlap_finish(struct exec *x, int i);

#endif
