/* --trace: the last step as it ran, on the timeline that ap-cost --trace draws. */
#ifndef EXEC_TRACE_H
#define EXEC_TRACE_H

#include "step/exec.h"
#include "pipeline/pipeline_program.h"

#include "doc/trace.h"

struct trace;

/* lane: the number of the one that the rank runs. (arena) */
struct trace *trace_new(struct ap_arena *arena, const char *path,
                        const struct ap_pipeline_program *program, int lane);
/* A step begins, on all ranks at once; on: it is the one that is drawn. t may be NULL. */
void trace_begin(struct trace *t, bool on);
/* The clock, where the exec's step is drawn; else 0. */
double trace_clock(const struct trace *t);
/* Call i has run, with microbatch j, since `start`. */
void trace_call(const struct exec *x, int i, int64_t j, double start);
/* A collective that was started has ended. */
void trace_awaited(const struct exec *x, const struct call *call);
/* Instruction i of the lane has run since `start`. */
void trace_instr(struct trace *t, int i, double start);
/* After the steps, called by all ranks: rank 0 writes the file. */
void trace_write(const struct trace *t, struct comm *job);

#endif
