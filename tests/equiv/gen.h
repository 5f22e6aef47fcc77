/*
 * Random graphs for the equivalence test. All values are small integers wherever they are
 * summed, so that sums are exact in any order and one rank and n ranks agree to the bit.
 */
#ifndef AP_GEN_H
#define AP_GEN_H

#include "graph/graph.h"

struct gen_rng {
    uint64_t state;
};
uint32_t gen_next(struct gen_rng *r);
/* Uniform in [0, n). */
int gen_below(struct gen_rng *r, int n);

/*
 * A random graph from a seed: parameters, about n_ops random operators of every kind,
 * some results, one of which may become a parameter. Indexed and checked, not grouped; -1
 * is a bug of the generator.
 */
int gen_graph(struct ap_arena *arena, uint64_t seed, int n_ops, struct ap_graph *g,
              struct ap_err *err);

/* Value of element i of parameter p: a small integer, the same for every rank. */
double gen_value(uint64_t seed, int p, int64_t i, enum ap_dtype dtype);

#endif
