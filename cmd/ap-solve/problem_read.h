/* Private to ap-solve: the reader of selection problems. */
#ifndef SOLVE_PROBLEM_READ_H
#define SOLVE_PROBLEM_READ_H

#include "contest.h"

/*
 * Reads a problem in the format of the ASPLOS 2025 contest on intra-operator parallelism:
 * one object {"problem": {"name", "nodes": {"intervals", "costs", "usages"}, "edges":
 * {"nodes", "costs"}, "usage_limit"}}, its members in any order, gzip or not, "-" for
 * standard input. Costs of 10^18 and above are forbidden. Equal arrays are kept once.
 * -1 with err that names line and column, or the element.
 */
int contest_read(struct ap_arena *arena, const char *path, struct contest *p,
                 struct ap_err *err);
/* Reads a problem from text in memory, which must not be compressed; name is for
 * messages. */
int contest_parse(struct ap_arena *arena, const char *name, const char *text, size_t len,
                  struct contest *p, struct ap_err *err);

#endif
