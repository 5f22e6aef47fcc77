/*
 * Finds the best end of a layer in a range of cuts: the least sum of the bytes that later
 * layers receive, then the least squares, including the layer's own, then the first cut.
 */
#ifndef CUT_TREE_H
#define CUT_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

/* The best layers from a cut to the end. */
struct layers_rest {
    int64_t sum;
    double squares; /* INFINITY if there are none */
    double max;
    int next; /* cut after the first of them */
};

struct cut_tree;

/*
 * For cuts 0 .. n. by_count: a layer from `first` to a cut adds (cut - first)² to the
 * squares; otherwise it adds the same for all cuts of a question.
 */
struct cut_tree *cut_tree_new(struct ap_arena *arena, int n, bool by_count);

/* For new rests, [n + 1], which the caller keeps; `first` may be anything again. */
void cut_tree_reset(struct cut_tree *t, const struct layers_rest *rest);

/*
 * The best of the cuts from..to (inclusive, after `first`), -1 where none has layers
 * after it. `first` never grows from one question to the next.
 */
int cut_tree_best(struct cut_tree *t, int first, int from, int to);

#endif
