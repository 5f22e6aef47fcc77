/* Messages between the stages of a pipeline: who sends which part of a value to whom. */
#ifndef EXEC_HANDOVER_H
#define EXEC_HANDOVER_H

#include "exec.h"
#include "pipeline/pipeline_program.h"

struct handover;

/*
 * Prepares all messages that this rank sends or receives. x: [stage], the stages of this
 * rank ready to run, the others not looked at; job: of all ranks. Memory is the arena's.
 */
struct handover *handover_open(struct ap_arena *arena,
                               const struct ap_pipeline_program *relay, struct exec *x,
                               struct comm *job);
void handover_close(struct handover *h);
/* This rank's part of one message of a transfer; a send does not wait. */
void handover_send(struct handover *h, int transfer, int message);
void handover_receive(struct handover *h, int transfer, int message);
/* Bytes that this rank sent to others, so far. */
int64_t handover_bytes(const struct handover *h);

#endif
