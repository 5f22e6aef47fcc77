/*
 * Layer clustering: the program's operators are cut into L consecutive layers so that the
 * most expensive layer is as cheap as possible.
 *
 * Problem (Zheng et al., "Alpa", OSDI 2022, section 5.2 and equation 6): a layer costs
 * the bytes that it receives, values made before it and read in it, each once; it must
 * have less than (1 + eps) of the average FLOPs and, as in the public code, three heavy
 * operators. Ties (the code: up to 1e-4) go to the least sum, then to the least variance
 * of operator counts. The code's newer cost is seconds, FLOPs / 30e12 + bytes / 2e9,
 * without bounds; ties go to the least sum, then to the least sum of squares. Read as a
 * program of its own, not as the paper's recursion, this has three steps: the least
 * maximum M; among the layerings with no layer above M (1 + 1e-4) the least sum; among
 * those the least squares. Each is solved exactly.
 *
 * Idea: for a fixed first operator the cost grows with the last one, as FLOPs and counts
 * do. So the last operators that a threshold allows are one interval for each first one,
 * found by one descent in a Fenwick tree over the next uses of live values, while the
 * first operator sweeps from the back. Which cuts L layers can reach is then a union of
 * intervals per layer, and M follows by bisection over the costs that occur. Under M only
 * cuts that lie on some allowed layering matter, few of all: where little is live. Sum
 * and squares are a dynamic program over these.
 *
 * Cost: O((n + edges) log n + n L) per threshold, some tens of thresholds; then O(pairs
 * of remaining cuts, times L), where pairs is far below n^2 / L on models and could reach
 * it on a graph where every cut costs the same. There (MAX_WORK) only every k-th cut and
 * those of one layering of least maximum stay: the maximum is still the least, the ties
 * behind it may not be ("ties" in --stats says "some").
 */
#include "layers.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/bit_set.h"

#define MAX_WORK  200000000LL /* pairs of cuts times layers */
#define MAX_PAIRS 8000000LL   /* pairs that are held */
#define MAX_CELLS 200000000LL /* operators times layers */

struct search {
    struct ap_arena *arena;
    const struct layers *l;
    int top;       /* largest power of two <= n */
    int *next;     /* [n] next use of a value at or behind the sweep; n: none */
    int64_t *at;   /* [n] bytes of the values whose next use is here */
    int64_t *tree; /* [n + 1] Fenwick tree of at */
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
    int need = l->n; /* least last operator with enough heavy ones */

    sweep_start(s);
    for (int first = l->n - 1; first >= 0; first--) {
        int64_t bytes;
        sweep_step(s, first);
        while (need > first && l->heavy[need] - l->heavy[first] >= rule->min_heavy)
            need--;
        s->lo[first] = need;
        s->hi[first] = last_within(s, rule, first, at_most, &bytes);
        if (s->lo[first] <= s->hi[first])
            around.below = fmax(around.below, layers_cost(l, first, s->hi[first], bytes));
        int beyond = s->hi[first] + 1 < need ? need : s->hi[first] + 1;
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

/* ---- ties: a dynamic program over the cuts that lie on some allowed layering ---- */

struct cuts {
    int n;
    int *pos;          /* [n] ascending, 0 first and the number of operators last */
    int *from, *to;    /* [n] the next cuts that a layer may end at */
    int64_t *start;    /* [n + 1] of a cut's pairs in bytes */
    int64_t *bytes;    /* [pair] received */
    double *square;    /* [pair] see layers_square */
    int *least, *most; /* [n] layers from a cut to the end; least > most: none */
    bool all;          /* none was left out */
};

/* Marks the cuts that lie between 0 and the end on allowed layers, of any number. */
static void mark_useful(struct search *s, int *useful)
{
    int n = s->l->n, open = 0;
    int *ends = AP_NEW_N(s->arena, n + 2, int), *sum = AP_NEW_N(s->arena, n + 3, int);

    ends[0] = 1;
    ends[1] = -1;
    for (int p = 0; p <= n; p++) {
        open += ends[p];
        useful[p] = open > 0;
        if (p < n && useful[p] && s->lo[p] <= s->hi[p]) {
            ends[s->lo[p] + 1]++;
            ends[s->hi[p] + 2]--;
        }
    }
    for (int p = n; p >= 0; p--) { /* sum[p]: useful cuts at and behind p */
        bool ahead =
            p == n || (s->lo[p] <= s->hi[p] && sum[s->lo[p] + 1] > sum[s->hi[p] + 2]);
        useful[p] = useful[p] && ahead;
        sum[p] = sum[p + 1] + useful[p];
    }
}

/* The cuts of one layering under the intervals, marked in `keep`. */
static void mark_one(struct search *s, const struct layer_rule *rule, int *keep)
{
    int n = s->l->n, p = n;
    uint64_t **rows = AP_NEW_N(s->arena, rule->n_layers, uint64_t *);

    memset(s->reach[0], 0, ((size_t)n + 2) * sizeof(int));
    s->reach[0][0] = 1;
    for (int q = 0; q < rule->n_layers; q++) {
        const int *row = s->reach[q % 2];
        rows[q] = ap_bits_new(s->arena, n + 1);
        for (int i = 0; i <= n; i++)
            if (row[i])
                ap_bits_add(rows[q], i);
        reach_step(s, row, s->reach[1 - q % 2]);
    }
    keep[n] = 1;
    for (int q = rule->n_layers - 1; q >= 0; q--) {
        int from = p - 1;
        while (!ap_bits_has(rows[q], from) || s->lo[from] > p - 1 || s->hi[from] < p - 1)
            from--;
        p = from;
        keep[p] = 1;
    }
}

/* Next cuts of each cut; returns the number of pairs. */
static int64_t link_cuts(const struct search *s, struct cuts *c)
{
    int n = s->l->n;
    int *index = AP_NEW_N(s->arena, n + 2, int); /* first cut at or behind a position */

    for (int k = 0, p = 0; p <= n + 1; p++) {
        while (k < c->n && c->pos[k] < p)
            k++;
        index[p] = k;
    }
    for (int k = 0; k < c->n; k++) {
        int p = c->pos[k];
        bool none = p == n || s->lo[p] > s->hi[p];
        c->from[k] = none ? 0 : index[s->lo[p] + 1];
        c->to[k] = none ? 0 : index[s->hi[p] + 2 > n + 1 ? n + 1 : s->hi[p] + 2];
        c->start[k + 1] = c->start[k] + c->to[k] - c->from[k];
    }
    return c->start[c->n];
}

/* The cuts that the dynamic program works on: all useful ones, or some if too many. */
static void choose_cuts(struct search *s, const struct layer_rule *rule, struct cuts *c)
{
    int n = s->l->n;
    int *useful = AP_NEW_N(s->arena, n + 1, int), *keep = AP_NEW_N(s->arena, n + 1, int);

    *c = (struct cuts){.all = true};
    c->pos = AP_NEW_N(s->arena, n + 1, int);
    c->from = AP_NEW_N(s->arena, n + 1, int);
    c->to = AP_NEW_N(s->arena, n + 1, int);
    c->start = AP_NEW_N(s->arena, n + 2, int64_t);
    mark_useful(s, useful);
    for (int stride = 1;; stride *= 2) {
        c->n = 0;
        for (int p = 0, k = 0; p <= n; p++)
            if (useful[p] && (k++ % stride == 0 || keep[p]))
                c->pos[c->n++] = p;
        int64_t pairs = link_cuts(s, c);
        if ((pairs <= MAX_PAIRS && ap_mul64(pairs, rule->n_layers) <= MAX_WORK) ||
            stride > n)
            return;
        if (stride == 1)
            mark_one(s, rule, keep);
        c->all = false;
    }
}

static void price_pairs(struct search *s, struct cuts *c)
{
    c->bytes = AP_NEW_N(s->arena, c->start[c->n] + 1, int64_t);
    c->square = AP_NEW_N(s->arena, c->start[c->n] + 1, double);
    sweep_start(s);
    for (int first = s->l->n - 1, k = c->n - 2; k >= 0; first--) {
        sweep_step(s, first);
        if (c->pos[k] != first)
            continue;
        for (int j = c->from[k]; j < c->to[k]; j++) {
            int64_t at = c->start[k] + j - c->from[k];
            int last = c->pos[j] - 1;
            c->bytes[at] = received(s, last);
            c->square[at] = layers_square(s->l, first, last,
                                          layers_cost(s->l, first, last, c->bytes[at]));
        }
        k--;
    }
}

/* How many layers may follow each cut: with another number there the end is missed. */
static void count_ahead(struct search *s, struct cuts *c)
{
    c->least = AP_NEW_N(s->arena, c->n, int);
    c->most = AP_NEW_N(s->arena, c->n, int);
    for (int k = c->n - 2; k >= 0; k--) {
        c->least[k] = INT_MAX;
        c->most[k] = -1;
        for (int j = c->from[k]; j < c->to[k]; j++) {
            if (c->least[j] > c->most[j])
                continue;
            if (c->least[j] + 1 < c->least[k])
                c->least[k] = c->least[j] + 1;
            if (c->most[j] + 1 > c->most[k])
                c->most[k] = c->most[j] + 1;
        }
    }
}

struct state {
    int64_t sum;
    double squares; /* INFINITY: not reached */
};

/* ap_add64, in the innermost loop. */
static inline int64_t plus(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

static bool is_better(const struct state *a, const struct state *b)
{
    return a->sum < b->sum || (a->sum == b->sum && a->squares < b->squares);
}

/* Best ways to each cut with one layer more, n_left with it; back[cut]: the cut before.
 */
static void extend(const struct cuts *c, int n_left, const struct state *from,
                   struct state *to, int *back)
{
    for (int k = 0; k < c->n; k++)
        to[k] = (struct state){INT64_MAX, INFINITY};
    for (int k = 0; k < c->n; k++) {
        if (isinf(from[k].squares) || n_left < c->least[k] || n_left > c->most[k])
            continue;
        const int64_t *bytes = c->bytes + c->start[k];
        const double *square = c->square + c->start[k];
        for (int j = c->from[k], i = 0; j < c->to[k]; j++, i++) {
            struct state way = {plus(from[k].sum, bytes[i]), from[k].squares + square[i]};
            if (is_better(&way, &to[j])) {
                to[j] = way;
                back[j] = k;
            }
        }
    }
}

/* Costs of the layers between the cuts, in their order. */
static struct layer_score score_of(struct search *s, int n_layers, const int *cut)
{
    struct layer_score score = {0};
    int64_t *bytes = AP_NEW_N(s->arena, n_layers, int64_t);

    sweep_start(s);
    for (int first = s->l->n - 1, k = n_layers - 1; first >= 0; first--) {
        sweep_step(s, first);
        if (cut[k] == first) {
            bytes[k] = received(s, cut[k + 1] - 1);
            k--;
        }
    }
    for (int k = 0; k < n_layers; k++) {
        double cost = layers_cost(s->l, cut[k], cut[k + 1] - 1, bytes[k]);
        score.max = fmax(score.max, cost);
        score.sum_bytes = ap_add64(score.sum_bytes, bytes[k]);
        score.squares += layers_square(s->l, cut[k], cut[k + 1] - 1, cost);
    }
    return score;
}

/* cut[0..n_layers] of the best layering with no layer above the threshold. */
static bool break_ties(struct search *s, const struct layer_rule *rule, double at_most,
                       int *cut)
{
    struct cuts c;
    int n_layers = rule->n_layers;

    find_intervals(s, rule, at_most);
    choose_cuts(s, rule, &c);
    price_pairs(s, &c);
    count_ahead(s, &c);
    struct state *best[2];
    int *back = AP_NEW_N(s->arena, (int64_t)n_layers * c.n, int);
    for (int k = 0; k < 2; k++)
        best[k] = AP_NEW_N(s->arena, c.n, struct state);
    for (int k = 0; k < c.n; k++)
        best[0][k] = (struct state){0, k ? INFINITY : 0};
    for (int q = 0; q < n_layers; q++)
        extend(&c, n_layers - q, best[q % 2], best[1 - q % 2], back + (int64_t)q * c.n);
    assert(!isinf(best[n_layers % 2][c.n - 1].squares));
    for (int q = n_layers, k = c.n - 1; q >= 0; q--) {
        cut[q] = c.pos[k];
        k = q ? back[(int64_t)(q - 1) * c.n + k] : 0;
    }
    return c.all;
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
    bool all = break_ties(&s, &rule, layers_tie(&l, least), cut);
    struct layer_score score = score_of(&s, n, cut);
    layers_answer(&l, n, cut, &score, least, answer);
    answer->stats = ap_arena_printf(
        arena,
        ",\"operators\":%d,\"heavy\":%d,\"objective\":%.9g,\"bound\":%.9g,"
        "\"sum_bytes\":%lld,\"squares\":%.9g,\"ties\":\"%s\",\"probes\":%d",
        l.n, l.heavy[l.n], score.max, least, (long long)score.sum_bytes, score.squares,
        all ? "all" : "some", s.n_probes);
    return AP_OK;
}
