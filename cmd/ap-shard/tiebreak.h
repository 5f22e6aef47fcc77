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

#endif
