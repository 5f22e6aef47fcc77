/* Private to ap-stage: which of two plans is simpler to set up and to run. */
#ifndef SIMPLE_H
#define SIMPLE_H

#include "line/line.h"

/*
 * What makes a plan less simple, the gravest first: stages or layers that are sharded in
 * different ways; kinds of parallelism (of data with ZeRO, tensor, context, expert,
 * pipeline); a pipeline, one with split backward passes; chunks on a device; devices that
 * share a sample, or a model.
 */
enum { STAGE_N_TRAITS = 5 };
struct stage_simplicity {
    int64_t trait[STAGE_N_TRAITS];
};

/* Of a line; differ: its stages or layers do. */
struct stage_simplicity stage_simplicity_of(const struct ap_line *line, bool differ);
/* < 0: a is simpler than b; 0: they are equally simple. */
int stage_simplicity_compare(const struct stage_simplicity *a,
                             const struct stage_simplicity *b);

#endif
