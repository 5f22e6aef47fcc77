/* Private to ap-shard: of plans that cost the same, one that holds less. */
#ifndef TIEBREAK_H
#define TIEBREAK_H

#include "problem/statement.h"

/*
 * Changes choices of the plan (its choice array is written) to strategies of the space as
 * long as no cost rises and the bytes that a device holds fall: of tensors, and of the
 * copies that are converted from them. A group whose choice is not in the space stays.
 */
void shard_tiebreak(const struct shard_space *space, struct ap_plan *plan);
/* The same of an answer, which becomes cheaper where it was not the cheapest. */
void shard_break_ties(struct ap_arena *arena, const struct shard_space *space,
                      struct shard_answer *answer);
/* The answer is this plan, unless that is more expensive. */
void shard_take_cheaper(struct shard_answer *answer, const struct ap_plan *plan,
                        double sec);

#endif
