/* In builds with AddressSanitizer: a call may touch its own operands and results only. */
#ifndef EXEC_GUARD_H
#define EXEC_GUARD_H

#include "step/exec.h"

/*
 * Until guard_end, memory that neither the call nor a call in flight names is poisoned.
 */
void guard_begin(const struct exec *x, const struct call *call);
void guard_end(const struct exec *x);

#endif
