/* Private to ap-shard: the problem of the default search as a file. */
#ifndef EMIT_H
#define EMIT_H

#include "problem/shard.h"

/* The unfolded problem in the contest's format; plans: whose choices the space holds. */
int shard_emit(struct ap_arena *arena, const struct shard_task *task,
               const struct ap_plan *plans, struct ap_buf *out, struct ap_err *err);
/*
 * The plan of a solution of this problem: the last line of the file at path that is an
 * array has a strategy for each node, as ap-solve writes it. -1 with the place.
 */
int shard_solution(struct ap_arena *arena, const struct shard_task *task,
                   const char *path, struct shard_answer *answer, struct ap_err *err);

#endif
