/* Random rounding, to measure its effect on results. */
#ifndef EXEC_NOISE_H
#define EXEC_NOISE_H

#include "step/exec.h"

struct exec_noise {
    uint64_t seed, n; /* n: values disturbed so far */
    double units;     /* most that a sum is off by, in units of its last place */
};

/* Disturbs what call has just computed: the sums among its values. */
void noise_apply(struct exec *x, const struct call *call);
/* From now on every run of x, and of the loops inside, is disturbed. noise outlives x. */
void noise_set(struct exec *x, struct exec_noise *noise);

#endif
