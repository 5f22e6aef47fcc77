/* Seconds of a step by kind of kernel. */
#ifndef EXEC_TIMING_H
#define EXEC_TIMING_H

#include "exec.h"

/* Kernels of one kind in a step, of the rank's program. */
struct timing_row {
    const char *kind; /* an operator's name, "elementwise" (fused passes) or "copy" */
    double calls;
    double sec, blas_sec; /* of this rank's first thread; of it within BLAS */
    double flops;         /* of dot and convolution */
    double bytes;         /* each kernel reads its operands and writes its results once */
};

/* Seconds of the processor that this thread, all threads of this process took. */
double timing_thread_sec(void);
double timing_process_sec(void);
/* Call c of x->timing took this thread from `start` on, and BLAS since then. */
void timing_note(struct exec *x, int c, double start, double blas_start);
/* Forgets what was noted: the first step touches memory for the first time. */
void timing_reset(struct exec *x);
/* Rows in order of seconds, per step of `steps`; how many. A loop is one kernel. */
int timing_rows(struct ap_arena *arena, const struct exec *x, int64_t steps,
                struct timing_row **out);

#endif
