/*
 * Every layering of a tiny graph: the oracle of the layer clustering (layers.h), made of
 * its definition alone.
 *
 * Cost: the received bytes of all n^2 / 2 layers by looking at every read, O(n^2 reads);
 * then every way to place L - 1 cuts among n - 1 places, twice: for the least maximum,
 * and for the least sum and squares among those within the tie.
 */
#ifndef AP_COARSEN_EXHAUSTIVE_H
#define AP_COARSEN_EXHAUSTIVE_H

#include <math.h>

#include "layers.h"

#define MAX_OPERATORS 20

struct trial {
    const struct layers *l;
    struct layer_rule rule;
    int64_t bytes[MAX_OPERATORS][MAX_OPERATORS]; /* [first][last] */
    double at_most;                              /* no layer above */
    bool only_max;                               /* compare maxima only */
    int cut[MAX_OPERATORS + 1];
    bool found;
    struct layer_score best;
    int best_cut[MAX_OPERATORS + 1];
};

static inline int64_t received(const struct layers *l, int first, int last)
{
    bool counted[MAX_OPERATORS] = {false};
    int64_t bytes = 0;

    for (int i = first; i <= last; i++)
        for (int k = l->read_start[i]; k < l->read_start[i + 1]; k++) {
            int value = l->reads[k];
            if (value >= first || counted[value])
                continue;
            counted[value] = true;
            bytes += l->size[value];
        }
    return bytes;
}

/* Alpa's rule as its code has it: operator by operator. */
static inline bool may_be_layer(const struct trial *t, int first, int last)
{
    const struct layers *l = t->l;
    bool allowed = false;

    for (int i = first; i <= last; i++) {
        int n_heavy = l->heavy[i + 1] - l->heavy[first];
        bool full = l->weight[i + 1] - l->weight[first] >= t->rule.max_weight;
        bool heavy = l->heavy[i + 1] > l->heavy[i];
        if (full && heavy && n_heavy > t->rule.min_heavy)
            return false;
        allowed = full || n_heavy >= t->rule.min_heavy;
    }
    return allowed;
}

static inline bool is_allowed(const struct trial *t, int first, int last)
{
    const struct layers *l = t->l;
    return l->begins[last + 1] && may_be_layer(t, first, last) &&
           layers_cost(l, first, last, t->bytes[first][last]) <= t->at_most;
}

static inline bool is_better(const struct trial *t, const struct layer_score *score)
{
    const struct layer_score *best = &t->best;

    if (!t->found)
        return true;
    if (t->only_max)
        return score->max < best->max;
    return score->sum_bytes < best->sum_bytes ||
           (score->sum_bytes == best->sum_bytes && score->squares < best->squares);
}

/* Places the cuts after layer k, which starts at cut[k]. */
static inline void place(struct trial *t, int k, struct layer_score so_far)
{
    int n = t->l->n, first = t->cut[k], left = t->rule.n_layers - k - 1;

    for (int last = first; last < n - left; last++) {
        struct layer_score score = so_far;
        if ((left == 0 && last != n - 1) || !is_allowed(t, first, last))
            continue;
        double cost = layers_cost(t->l, first, last, t->bytes[first][last]);
        score.max = fmax(score.max, cost);
        score.sum_bytes = ap_add64(score.sum_bytes, t->bytes[first][last]);
        score.squares += layers_square(t->l, first, last, cost);
        t->cut[k + 1] = last + 1;
        if (left > 0) {
            place(t, k + 1, score);
        } else if (is_better(t, &score)) {
            t->found = true;
            t->best = score;
            for (int i = 0; i <= t->rule.n_layers; i++)
                t->best_cut[i] = t->cut[i];
        }
    }
}

static inline bool try_all(struct trial *t, int n_layers, double at_most, bool only_max)
{
    t->rule = layers_rule(t->l, n_layers);
    t->at_most = at_most;
    t->only_max = only_max;
    t->found = false;
    t->cut[0] = 0;
    place(t, 0, (struct layer_score){0});
    return t->found;
}

static inline bool exist(void *ctx, int n_layers, double at_most, double *found)
{
    struct trial *t = ctx;
    bool any = try_all(t, n_layers, at_most, true);

    *found = t->best.max;
    return any;
}

static inline enum ap_exit coarsen_exhaustive(struct ap_arena *arena,
                                              const struct ap_graph *g,
                                              const struct coarsen_params *params,
                                              struct coarsen_answer *answer,
                                              struct ap_err *err)
{
    struct layers l;
    struct trial *t = AP_NEW(arena, struct trial);

    layers_init(arena, g, &params->alpa, &l);
    if (l.n > MAX_OPERATORS) {
        ap_err_set(err, "%d forward operators are too many to try everything, at most %d",
                   l.n, MAX_OPERATORS);
        return AP_USAGE;
    }
    t->l = &l;
    for (int first = 0; first < l.n; first++)
        for (int last = first; last < l.n; last++)
            t->bytes[first][last] = received(&l, first, last);
    int n = params->n_blocks ? params->n_blocks : layers_auto(&l, exist, t), less = n - 1;
    if (!try_all(t, n, INFINITY, true)) {
        struct layer_rule rule = t->rule;
        while (less > 0 && !try_all(t, less, INFINITY, true))
            less--;
        return layers_infeasible(&l, &rule, less, err);
    }
    double least = t->best.max;
    try_all(t, n, layers_tie(&l, least), false);
    layers_answer(&l, n, t->best_cut, &t->best, least, answer);
    answer->stats = ap_arena_printf(
        arena,
        ",\"operators\":%d,\"heavy\":%d,\"objective\":%.9g,\"bound\":%.9g,"
        "\"sum_bytes\":%lld,\"squares\":%.9g",
        l.n, l.heavy[l.n], t->best.max, least, (long long)t->best.sum_bytes,
        t->best.squares);
    return AP_OK;
}

#endif
