/*
 * Layer clustering: the program's operators are cut into L consecutive layers so that the
 * most expensive layer is as cheap as possible.
 *
 * Problem (Zheng et al., "Alpa", OSDI 2022, section 5.2 and equation 6): a layer costs
 * the bytes that it receives, values made before it and read in it, each once. As in the
 * public code a layer has three heavy operators, or (1 + eps) times the average FLOPs; a
 * layer with more heavy operators than that has fewer FLOPs than that. Ties (the code: up
 * to 1e-4) go to the least sum, then to the least variance of operator counts. The code's
 * newer cost is seconds, FLOPs / 30e12 + bytes / 2e9, without bounds; ties go to the
 * least sum, then to the least sum of squares. Read as a program of its own, not as the
 * paper's recursion, this has three steps: the least maximum M; among the layerings with
 * no layer above M (1 + 1e-4) the least sum; among those the least squares. Each is
 * solved exactly.
 *
 * Idea: for a fixed first operator the cost grows with the last one, as FLOPs and counts
 * do. The last operators that a threshold allows are therefore one interval for each
 * first operator, found by one descent in a Fenwick tree over the next uses of live
 * values, while the first operator sweeps from the back. Which cuts L layers can reach is
 * then a union of intervals per layer, and M follows by bisection over the costs that
 * occur. Sum and squares are a dynamic program over numbers of layers and first
 * operators, from the back.
 *
 * Cost: O((n + edges) log n + n L) per threshold, some tens of thresholds; then O(L (n +
 * edges) log n + L steps log n + L ends), steps: pairs of a first operator and a value
 * that a layer below M may receive from there on; ends: pairs of the first and last
 * operator of such a layer. Both are far below n^2.
 */
#include "layers.h"

#include <math.h>
#include <string.h>

#define SCAN                                                                  \
    32 /* operators looked at one by one for the next that receives something \
        */
#define MAX_CELLS 50000000LL /* operators times layers, of 32 bytes each */

struct search {
    struct ap_arena *arena;
    const struct layers *l;
    int top;       /* largest power of two <= n */
    int *next;     /* [n] next use of a value at or after the sweep; n: none */
    int64_t *at;   /* [n] bytes of the values whose next use is here */
    int64_t *tree; /* [n + 1] Fenwick tree of at */
    int *end;      /* [n + 1] the least last operator, of this one and later ones, that a
                      layer may end with; n: none */
    int *lo, *hi;  /* [n] last operators allowed for each first one; empty: lo > hi */
    int *reach[2]; /* [n + 2] cuts reached, as differences and as flags */
    int n_probes;
};

static void search_init(struct search *s, struct ap_arena *arena, const struct layers *l)
{
    *s = (struct search){.arena = arena, .l = l, .top = 1};
    while (s->top <= l->n / 2)
        s->top *= 2;
    s->next = AP_NEW_N(arena, l->n + 1, int);
    s->at = AP_NEW_N(arena, l->n + 1, int64_t);
    s->tree = AP_NEW_N(arena, l->n + 1, int64_t);
    s->end = AP_NEW_N(arena, l->n + 2, int);
    s->end[l->n] = s->end[l->n + 1] = l->n;
    for (int i = l->n - 1; i >= 0; i--)
        s->end[i] = l->begins[i + 1] ? i : s->end[i + 1];
    s->lo = AP_NEW_N(arena, l->n + 1, int);
    s->hi = AP_NEW_N(arena, l->n + 1, int);
    for (int k = 0; k < 2; k++)
        s->reach[k] = AP_NEW_N(arena, l->n + 2, int);
}

/* ---- received bytes, for a first operator that sweeps from the back ---- */

static void add(struct search *s, int i, int64_t bytes)
{
    s->at[i] += bytes;
    for (int k = i + 1; k <= s->l->n; k += k & -k)
        s->tree[k] += bytes;
}

static void sweep_start(struct search *s)
{
    memset(s->at, 0, (size_t)s->l->n * sizeof *s->at);
    memset(s->tree, 0, ((size_t)s->l->n + 1) * sizeof *s->tree);
    for (int i = 0; i < s->l->n; i++)
        s->next[i] = s->l->n;
}

/* From first operator `first` + 1 to `first`. */
static void sweep_step(struct search *s, int first)
{
    const struct layers *l = s->l;

    if (s->next[first] < l->n)
        add(s, s->next[first], -l->size[first]); /* no longer made before the layer */
    for (int k = l->read_start[first]; k < l->read_start[first + 1]; k++) {
        int value = l->reads[k];
        if (s->next[value] == first)
            continue;
        if (s->next[value] < l->n)
            add(s, s->next[value], -l->size[value]);
        s->next[value] = first;
        add(s, first, l->size[value]);
    }
}

/* Bytes that the layer from the sweep's operator to `last` receives. */
static int64_t received(const struct search *s, int last)
{
    int64_t bytes = 0;

    for (int k = last + 1; k > 0; k -= k & -k)
        bytes += s->tree[k];
    return bytes;
}

/* ---- thresholds ---- */

/* The costs that occur next to a threshold. */
struct around {
    double below, above; /* largest <= it (-1: none), smallest > it */
};

/* Last operator that a layer from `first` may have, first - 1 for none. */
static int last_within(const struct search *s, const struct layer_rule *rule, int first,
                       double at_most, int64_t *bytes)
{
    const struct layers *l = s->l;
    int n = 0;

    *bytes = 0;
    for (int step = s->top; step; step /= 2) {
        int end = n + step;
        if (end > l->n)
            continue;
        int64_t more = *bytes + s->tree[end];
        if (end <= first || (layers_weight_fits(l, rule, first, end - 1) &&
                             layers_cost(l, first, end - 1, more) <= at_most)) {
            n = end;
            *bytes = more;
        }
    }
    return n - 1;
}

/* lo and hi of every first operator under the threshold. */
static struct around find_intervals(struct search *s, const struct layer_rule *rule,
                                    double at_most)
{
    const struct layers *l = s->l;
    struct around around = {-1, INFINITY};
    int need = l->n; /* least last operator with which the layer is enough */

    sweep_start(s);
    for (int first = l->n - 1; first >= 0; first--) {
        int64_t bytes;
        sweep_step(s, first);
        while (need > first && layers_weight_suffices(l, rule, first, need - 1))
            need--;
        s->lo[first] = s->end[need];
        if (!l->begins[first]) {
            s->hi[first] = first - 1;
            continue;
        }
        s->hi[first] = last_within(s, rule, first, at_most, &bytes);
        int beyond = s->hi[first] + 1;
        while (s->hi[first] >= first && !l->begins[s->hi[first] + 1])
            s->hi[first]--;
        bytes = received(s, s->hi[first]);
        if (s->lo[first] <= s->hi[first])
            around.below = fmax(around.below, layers_cost(l, first, s->hi[first], bytes));
        beyond = s->end[beyond < need ? need : beyond];
        if (beyond < l->n && layers_weight_fits(l, rule, first, beyond))
            around.above =
                fmin(around.above, layers_cost(l, first, beyond, received(s, beyond)));
    }
    return around;
}

/* The cuts that one more layer reaches from those of `from`. */
static bool reach_step(const struct search *s, const int *from, int *to)
{
    int n = s->l->n, open = 0;
    bool any = false;

    memset(to, 0, ((size_t)n + 2) * sizeof *to);
    for (int p = 0; p < n; p++)
        if (from[p] && s->lo[p] <= s->hi[p]) {
            to[s->lo[p] + 1]++;
            to[s->hi[p] + 2]--;
        }
    for (int p = 0; p <= n; p++) {
        open += to[p];
        to[p] = open > 0;
        any |= open > 0;
    }
    return any;
}

/* Whether there are n_layers layers of at most this cost. */
static bool probe(struct search *s, const struct layer_rule *rule, double at_most,
                  struct around *around)
{
    *around = find_intervals(s, rule, at_most);
    s->n_probes++;
    memset(s->reach[0], 0, ((size_t)s->l->n + 2) * sizeof(int));
    s->reach[0][0] = 1;
    for (int q = 0; q < rule->n_layers; q++)
        if (!reach_step(s, s->reach[q % 2], s->reach[1 - q % 2]))
            return false;
    return s->reach[rule->n_layers % 2][s->l->n] != 0;
}

/* The least maximum that is at most at_most, if there is one. */
static bool least_max(void *ctx, int n_layers, double at_most, double *found)
{
    struct search *s = ctx;
    struct layer_rule rule = layers_rule(s->l, n_layers);
    struct around around;
    double lo = 0;

    if (!probe(s, &rule, at_most, &around))
        return false;
    double hi = around.below;
    while (lo < hi) {
        double mid = lo + (hi - lo) / 2;
        if (mid >= hi)
            mid = lo;
        if (probe(s, &rule, mid, &around))
            hi = around.below;
        else
            lo = around.above;
    }
    *found = hi;
    return true;
}

/* For layers_auto: only two layers' maximum matters. */
static bool exist(void *ctx, int n_layers, double at_most, double *found)
{
    struct search *s = ctx;
    struct layer_rule rule = layers_rule(s->l, n_layers);
    struct around around;

    return n_layers == 2 ? least_max(ctx, 2, at_most, found)
                         : probe(s, &rule, at_most, &around);
}

/* ---- ties ---- */

/* The best layers from a cut to the end. */
struct layers_rest {
    int64_t sum;
    double squares; /* INFINITY if there are none */
    double max;
    int next; /* cut after the first of them */
};

static bool is_better(const struct layers_rest *a, const struct layers_rest *b)
{
    return a->sum < b->sum || (a->sum == b->sum && a->squares < b->squares);
}

/* [cut]: least layers before it, more than n_layers where none lead there. */
static int *count_before(struct search *s, int n_layers)
{
    int *before = AP_NEW_N(s->arena, s->l->n + 1, int);

    memset(s->reach[0], 0, ((size_t)s->l->n + 2) * sizeof(int));
    s->reach[0][0] = 1;
    for (int p = 1; p <= s->l->n; p++)
        before[p] = n_layers + 1;
    for (int q = 1; q <= n_layers; q++) {
        const int *row = s->reach[q % 2];
        reach_step(s, s->reach[1 - q % 2], s->reach[q % 2]);
        for (int p = 1; p <= s->l->n; p++)
            if (row[p] && before[p] > q)
                before[p] = q;
    }
    return before;
}

/* The last operator up to `most` until which the sweep's layer receives and costs as much
 * as the one until `last`, which receives so many bytes. */
static int same_until(const struct search *s, const int *next_heavy, int64_t bytes,
                      int last, int most)
{
    const struct layers *l = s->l;
    int end = last, n = 0;

    if (l->optimized && most >= next_heavy[last])
        most = next_heavy[last] - 1;
    while (end < most && end - last < SCAN && !s->at[end + 1])
        end++;
    if (end - last < SCAN)
        return end;
    for (int step = s->top; step; step /= 2)
        if (n + step <= l->n && s->tree[n + step] <= bytes) {
            n += step;
            bytes -= s->tree[n];
        }
    return n - 1 < most ? n - 1 : most;
}

/* The best end of a layer that receives and costs the same up to all cuts from..to: the
 * least sum after it, then the least squares, then the first; -1 where none has layers
 * after it. */
static int best_cut(const struct layers *l, const struct layers_rest *rest, int first,
                    int from, int to)
{
    double least = INFINITY;
    int best = -1;

    for (int p = from; p <= to; p++) {
        const double count = l->optimized ? 0 : p - first;
        const double squares = count * count + rest[p].squares;
        if (isinf(squares) ||
            (best >= 0 && (rest[p].sum > rest[best].sum ||
                           (rest[p].sum == rest[best].sum && squares >= least))))
            continue;
        best = p;
        least = squares;
    }
    return best;
}

/* The best layers from the sweep's operator on, with one more than those after it. */
static struct layers_rest best_layer(struct search *s, int first, const int *next_heavy,
                                     const struct layers_rest *rest)
{
    const struct layers *l = s->l;
    struct layers_rest best = {.sum = INT64_MAX, .squares = INFINITY};
    int64_t bytes = received(s, s->lo[first] - 1);

    for (int last = s->lo[first], end; last <= s->hi[first]; last = end + 1) {
        bytes += s->at[last];
        end = same_until(s, next_heavy, bytes, last, s->hi[first]);
        int cut = best_cut(l, rest, first, last + 1, end + 1);
        if (cut < 0)
            continue;
        double cost = layers_cost(l, first, cut - 1, bytes);
        struct layers_rest way = {ap_add64(bytes, rest[cut].sum),
                                  layers_square(l, first, cut - 1, cost) +
                                      rest[cut].squares,
                                  fmax(cost, rest[cut].max), cut};
        if (is_better(&way, &best))
            best = way;
    }
    return best;
}

/* [n]: the first operator with FLOPs after each one. */
static const int *list_next_heavy(struct search *s)
{
    const struct layers *l = s->l;
    int *next = AP_NEW_N(s->arena, l->n + 1, int);

    next[l->n] = l->n;
    for (int i = l->n - 1; i >= 0; i--)
        next[i] =
            i + 1 == l->n || l->flops[i + 2] > l->flops[i + 1] ? i + 1 : next[i + 1];
    return next;
}

/* cut[0..n_layers] of the best layering with no layer above the threshold. */
static struct layer_score break_ties(struct search *s, const struct layer_rule *rule,
                                     double at_most, int *cut)
{
    int n = s->l->n, n_layers = rule->n_layers;
    int64_t row = n + 1;
    struct layers_rest *best =
        AP_NEW_N(s->arena, (n_layers + 1) * row, struct layers_rest);
    const int *next_heavy = list_next_heavy(s);

    find_intervals(s, rule, at_most);
    const int *before = count_before(s, n_layers);
    for (int64_t i = 0; i < (n_layers + 1) * row; i++)
        best[i] = (struct layers_rest){.sum = INT64_MAX, .squares = INFINITY};
    best[n] = (struct layers_rest){0};
    for (int q = 1; q <= n_layers; q++) {
        const struct layers_rest *rest = best + (q - 1) * row;
        sweep_start(s);
        for (int first = n - 1; first >= 0; first--) {
            sweep_step(s, first);
            if (q <= n_layers - before[first])
                best[q * row + first] = best_layer(s, first, next_heavy, rest);
        }
    }
    for (int q = n_layers; q > 0; q--)
        cut[n_layers - q + 1] = best[q * row + cut[n_layers - q]].next;
    const struct layers_rest *all = &best[n_layers * row];
    return (struct layer_score){all->max, all->sum, all->squares};
}

/* ---- the row ---- */

/* The largest smaller number of layers that exists, 0 for none. */
static int nearest(struct search *s, int n_layers)
{
    for (int n = n_layers - 1; n > 0; n--) {
        struct layer_rule rule = layers_rule(s->l, n);
        struct around around;
        if (probe(s, &rule, INFINITY, &around))
            return n;
    }
    return 0;
}

enum ap_exit coarsen_alpa(struct ap_arena *arena, const struct ap_graph *g,
                          const struct coarsen_params *params,
                          struct coarsen_answer *answer, struct ap_err *err)
{
    struct layers l;
    struct search s;
    double least;

    layers_init(arena, g, &params->alpa, &l);
    search_init(&s, arena, &l);
    int n = params->n_blocks ? params->n_blocks : layers_auto(&l, exist, &s);
    struct layer_rule rule = layers_rule(&l, n);
    if (ap_mul64(n, l.n) > MAX_CELLS) {
        ap_err_set(err, "%d layers of %d operators: their product must be at most %lld",
                   n, l.n, MAX_CELLS);
        return AP_USAGE;
    }
    if (!least_max(&s, n, INFINITY, &least))
        return layers_infeasible(&l, &rule, nearest(&s, n), err);
    int *cut = AP_NEW_N(arena, n + 1, int);
    struct layer_score score = break_ties(&s, &rule, layers_tie(&l, least), cut);
    layers_answer(&l, n, cut, &score, least, answer);
    answer->stats = ap_arena_printf(
        arena,
        ",\"operators\":%d,\"heavy\":%d,\"objective\":%.9g,\"bound\":%.9g,"
        "\"sum_bytes\":%lld,\"squares\":%.9g,\"probes\":%d",
        l.n, l.heavy[l.n], score.max, least, (long long)score.sum_bytes, score.squares,
        s.n_probes);
    return AP_OK;
}
