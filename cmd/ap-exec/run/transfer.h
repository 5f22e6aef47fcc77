/*
 * Transfers between the stages of a pipeline: a value leaves the devices of one stage in
 * one layout and arrives on the devices of another stage in another layout (cross-mesh
 * resharding).
 */
#ifndef EXEC_TRANSFER_H
#define EXEC_TRANSFER_H

#include "step/exec.h"
#include "pipeline/pipeline_program.h"

/*
 * Messages that a rank may expect in addition to the one that it receives next: MPI moves
 * a long message only after both sides have named it, so that an expected message arrives
 * while the receiver computes. One tensor a microbatch needs none, as in
 * scripts/bench/hosts-table.
 */
#define TRANSFERS_AHEAD 1

struct transfers;

/*
 * Prepares all messages that this rank sends or receives. x: [stage], opened for the
 * stages of this rank, else not read; job: the communicator of all ranks. Closed by the
 * caller, before the arena is freed.
 */
struct transfers *transfers_open(struct ap_arena *arena,
                                 const struct ap_pipeline_program *pipeline,
                                 struct exec *x, struct comm *job);
void transfers_close(struct transfers *h);
/*
 * Send or receive this rank's tiles of one message of a transfer, from or to a value of
 * x, the stage in the current slot. A send does not wait; a received message was expected
 * before.
 */
void transfers_expect(struct transfers *h, int transfer, int message);
void transfers_send(struct transfers *h, const struct exec *x, int transfer, int message);
void transfers_receive(struct transfers *h, const struct exec *x, int transfer,
                       int message);
/* Bytes of memory for messages. */
int64_t transfers_memory(const struct transfers *h);
/* [rank of the job]: bytes that this rank has sent it. */
const int64_t *transfers_bytes(const struct transfers *h);

#endif
