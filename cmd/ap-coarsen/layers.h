/*
 * The layer clustering problem: cut a list of operators into layers. The problem that
 * alpa solves, and that its test enumerates.
 */
#ifndef LAYERS_H
#define LAYERS_H

#include "coarsen.h"

struct layers {
    int n;               /* operators, in the program's order */
    const int *ids;      /* [n] node */
    const int64_t *size; /* [n] bytes of the value that it makes */
    /* operators whose values operator i reads: reads[read_start[i] .. read_start[i+1]) */
    const int *read_start, *reads;
    const double *weight; /* [n + 1] sums of the balanced quantity, */
    const double *capped; /* [n + 1] the same up to the last heavy operator */
    const double *flops;  /* [n + 1] sums of heavy FLOPs */
    const int *heavy;     /* [n + 1] counts of dot and convolution */
    const bool *begins;   /* [n + 1] whether a layer may begin with it; the end may */
    bool optimized;       /* COARSEN_COST_OPTIMIZED */
    bool counts;          /* COARSEN_COUNT */
    double eps;
};

/*
 * The layers that are allowed for a number of layers: each has min_heavy heavy operators,
 * or weighs max_weight or more; and at its last heavy operator it weighs less than that,
 * or has at most min_heavy of them.
 */
struct layer_rule {
    int n_layers;
    int min_heavy;
    double max_weight;
};

/* Compared in this order. Costs are bytes, or seconds of the optimized cost. */
struct layer_score {
    double max;        /* cost of the most expensive layer */
    int64_t sum_bytes; /* received by all layers */
    double squares;    /* of operators per layer, or of costs: how uneven */
};

void layers_init(struct ap_arena *arena, const struct ap_graph *g,
                 const struct coarsen_alpa *params, struct layers *l);
struct layer_rule layers_rule(const struct layers *l, int n_layers);

/* A layer of operators from..to (inclusive), and the bytes that it receives. */
static inline double layers_cost(const struct layers *l, int from, int to, int64_t bytes)
{
    double flops = l->flops[to + 1] - l->flops[from];
    return l->optimized ? flops / 30e12 + (double)bytes / 2e9 : (double)bytes;
}

/* Whether the layer is not too much; false for no longer layer where it is for this one.
 */
static inline bool layers_weight_fits(const struct layers *l,
                                      const struct layer_rule *rule, int from, int to)
{
    return l->capped[to + 1] - l->weight[from] < rule->max_weight ||
           l->heavy[to + 1] - l->heavy[from] <= rule->min_heavy;
}

/* Whether the layer is enough; true for all longer layers where it is for this one. */
static inline bool layers_weight_suffices(const struct layers *l,
                                          const struct layer_rule *rule, int from, int to)
{
    return l->heavy[to + 1] - l->heavy[from] >= rule->min_heavy ||
           l->weight[to + 1] - l->weight[from] >= rule->max_weight;
}

static inline double layers_square(const struct layers *l, int from, int to, double cost)
{
    double count = to + 1 - from;
    return l->optimized ? cost * cost : count * count;
}

/* Costs up to this tie with the least possible maximum. */
static inline double layers_tie(const struct layers *l, double least_max)
{
    return l->optimized ? least_max : least_max * (1 + 1e-4);
}

/*
 * The number of layers for "auto": by bisection between 2 and a third of the heavy
 * operators plus one, the largest number for which the most expensive layer costs no more
 * than with two layers; 1 if two are not possible. least_max(ctx, n, at_most): whether n
 * layers exist that cost at most at_most each; on true *found is the least maximum.
 */
typedef bool layers_exist_fn(void *ctx, int n_layers, double at_most, double *found);
int layers_auto(const struct layers *l, layers_exist_fn *exist, void *ctx);

/* Says why that number of layers is impossible; nearest: a possible number, 0: none. */
enum ap_exit layers_infeasible(const struct layers *l, const struct layer_rule *rule,
                               int nearest, struct ap_err *err);

/* Fills the answer from the cuts: layer k has operators cut[k] .. cut[k + 1] - 1. */
void layers_answer(const struct layers *l, int n_layers, const int *cut,
                   const struct layer_score *score, double bound,
                   struct coarsen_answer *answer);

#endif
