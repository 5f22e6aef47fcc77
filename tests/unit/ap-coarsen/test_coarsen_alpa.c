/* Layer clustering against brute force, on random graphs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coarsen_exhaustive.h"
#include "layers.h"
#include "tap.h"

static uint64_t state = 1;

static int below(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static struct ap_node node_of(struct ap_arena *arena, enum ap_op op, int64_t size)
{
    struct ap_node node = {
        .op = op, .name = "x", .scope = "", .param = -1, .attrs = &ap_attrs_default};

    node.shape = (struct ap_shape){.dtype = AP_S8, .rank = 1};
    node.shape.dims = ap_arena_dup(arena, &size, sizeof size);
    return node;
}

static const struct ap_attrs *dot_attrs(struct ap_arena *arena)
{
    static const int64_t zero = 0;
    struct ap_attrs *dot = ap_arena_dup(arena, &ap_attrs_default, sizeof *dot);

    dot->lhs_contracting_dims = (struct ap_ints){1, &zero};
    return dot;
}

/*
 * A parameter of each role, then n operators: dot of two, one of `light` a concatenate of
 * up to four. Small sizes make ties; shapes do not fit each other, which costs do not
 * look at. Modules follow each other.
 */
static void random_graph(struct ap_arena *arena, int n, int max_size, int light,
                         struct ap_graph *g)
{
    static const char *const modules[] = {"", "a", "a/b", "a/c", "d"};
    struct ap_node *nodes = AP_NEW_N(arena, n + 2, struct ap_node);
    const struct ap_attrs *dot = dot_attrs(arena);
    struct ap_err err = {{0}};

    for (int i = 0; i < 2; i++) {
        nodes[i] = node_of(arena, AP_OP_PARAMETER, 5);
        nodes[i].role = i ? AP_ROLE_WEIGHT : AP_ROLE_INPUT;
        nodes[i].param = i;
    }
    for (int i = 2; i < n + 2; i++) {
        bool heavy = below(light + 1) == 0;
        nodes[i] =
            node_of(arena, heavy ? AP_OP_DOT : AP_OP_CONCATENATE, 1 + below(max_size));
        nodes[i].attrs = heavy ? dot : &ap_attrs_default;
        nodes[i].n_in = heavy ? 2 : 1 + below(4);
        int *in = AP_NEW_N(arena, nodes[i].n_in, int);
        for (int k = 0; k < nodes[i].n_in; k++)
            in[k] = below(3) && i > 4 ? i - 1 - below(4) : below(i);
        if (in[0] == 1)
            in[0] = 0; /* something that is made of inputs */
        nodes[i].in = in;
        nodes[i].scope = modules[5 * (i - 2) / n];
    }
    *g = (struct ap_graph){.name = "random", .n_nodes = n + 2, .nodes = nodes};
    CHECK(ap_graph_index(arena, g, "", &err) == 0, "random graph of %d operators %s", n,
          err.msg);
}

/* The least received bytes of the most expensive block, counted by ap_blocks_sum. */
static double most_received(struct ap_arena *arena, const struct ap_graph *g,
                            const struct coarsen_answer *a)
{
    struct ap_blocks b = {.n = a->n, .block_of = a->block_of};
    int64_t most = 0;

    ap_blocks_carry(arena, g, a->n, a->block_of);
    const struct ap_block_sum *sums = ap_blocks_sum(arena, g, &b);
    for (int i = 0; i < a->n; i++)
        most = sums[i].in_bytes > most ? sums[i].in_bytes : most;
    return (double)most;
}

static enum ap_exit answer_of(struct ap_arena *arena, coarsen_fn *run,
                              const struct ap_graph *g, const struct coarsen_params *p,
                              struct coarsen_answer *a, struct ap_err *err)
{
    *a = (struct coarsen_answer){.block_of = AP_NEW_N(arena, g->n_nodes, int)};
    for (int i = 0; i < g->n_nodes; i++)
        a->block_of[i] = -1;
    *err = (struct ap_err){{0}};
    return run(arena, g, p, a, err);
}

/* The member of the stats after its key. */
static double stat_of(const struct coarsen_answer *a, const char *key)
{
    const char *at = strstr(a->stats, key);
    return at ? strtod(at + strlen(key), NULL) : NAN;
}

/* Whether both say the same: score by score, or why there is nothing. */
static bool agree(struct ap_arena *arena, const struct ap_graph *g,
                  const struct coarsen_params *p, int *solved)
{
    struct coarsen_answer a, b;
    struct ap_err why_a, why_b, err = {{0}};
    enum ap_exit x = answer_of(arena, coarsen_alpa, g, p, &a, &why_a);
    enum ap_exit y = answer_of(arena, coarsen_exhaustive, g, p, &b, &why_b);

    if (x != y || strcmp(why_a.msg, why_b.msg))
        return false;
    if (x != AP_OK)
        return x == AP_NO_SOLUTION;
    *solved += 1;
    struct ap_blocks blocks = {.n = a.n, .block_of = a.block_of};
    bool same = a.n == b.n && a.more.objective == b.more.objective &&
                a.more.bound == b.more.bound &&
                stat_of(&a, "\"sum_bytes\":") == stat_of(&b, "\"sum_bytes\":") &&
                stat_of(&a, "\"squares\":") == stat_of(&b, "\"squares\":");
    if (p->alpa.cost == COARSEN_COST_PAPER)
        same = same && most_received(arena, g, &a) == a.more.objective;
    ap_blocks_carry(arena, g, a.n, a.block_of);
    return same && ap_blocks_check(arena, g, &blocks, &err) == 0;
}

static void test_random(int cost, int balance, double eps)
{
    for (int i = 0; i < 200; i++) {
        struct ap_arena arena = {0};
        struct coarsen_params p = {
            .alpa = {cost, balance, eps,
                     i % 3 ? COARSEN_CUT_ANYWHERE : COARSEN_CUT_MODULES}};
        struct ap_graph g;
        int n = 1 + below(14), solved = 0;
        bool ok = true;
        random_graph(&arena, n, i % 2 ? 3 : 100000, 1, &g);
        for (p.n_blocks = 0; p.n_blocks <= n && p.n_blocks <= 8; p.n_blocks++)
            ok = agree(&arena, &g, &p, &solved) && ok;
        CHECK(ok,
              "graph %d: %d operators, cost %d, balance %d, eps %g: %d numbers of "
              "layers as brute force has them",
              i, n, cost, balance, eps, solved);
        ap_arena_free(&arena);
    }
}

/* The least (sum, squares) of layers that cost at most so much; the least cost in *max.
 */
struct plain {
    double sum, squares, max;
};

/* [first * n + last]: bytes that a layer receives, by looking at each of its operators.
 */
static double *list_received(struct ap_arena *arena, const struct layers *l)
{
    double *bytes = AP_NEW_N(arena, (int64_t)l->n * l->n, double);

    for (int first = 0; first < l->n; first++) {
        bool *seen = AP_NEW_N(arena, l->n, bool);
        double sum = 0;
        for (int last = first; last < l->n; last++) {
            for (int k = l->read_start[last]; k < l->read_start[last + 1]; k++) {
                int value = l->reads[k];
                if (value < first && !seen[value])
                    sum += (double)l->size[value];
                if (value < first)
                    seen[value] = true;
            }
            bytes[(int64_t)first * l->n + last] = sum;
        }
    }
    return bytes;
}

/* The recursion as it is written, over all pairs of cuts: by_max for the least maximum.
 */
static struct plain recursion(struct ap_arena *arena, const struct layers *l,
                              const double *bytes, int n_layers, double at_most,
                              bool by_max)
{
    struct layer_rule rule = layers_rule(l, n_layers);
    struct plain none = {INFINITY, INFINITY, INFINITY};
    struct plain *row = AP_NEW_N(arena, l->n + 1, struct plain);

    for (int p = 0; p <= l->n; p++)
        row[p] = p == l->n ? (struct plain){0} : none;
    for (int q = 1; q <= n_layers; q++) {
        struct plain *to = AP_NEW_N(arena, l->n + 1, struct plain);
        for (int first = 0; first <= l->n; first++)
            to[first] = none;
        for (int first = 0; first < l->n; first++)
            for (int last = first; last < l->n; last++) {
                double in = bytes[(int64_t)first * l->n + last];
                double cost = layers_cost(l, first, last, (int64_t)in);
                struct plain rest = row[last + 1], *best = &to[first];
                struct plain way = {in + rest.sum,
                                    layers_square(l, first, last, cost) + rest.squares,
                                    fmax(cost, rest.max)};
                if (isinf(rest.squares) || cost > at_most ||
                    !layers_weight_fits(l, &rule, first, last) ||
                    !layers_weight_suffices(l, &rule, first, last))
                    continue;
                if (by_max ? way.max < best->max
                           : way.sum < best->sum ||
                                 (way.sum == best->sum && way.squares < best->squares))
                    *best = way;
            }
        row = to;
    }
    return row[0];
}

/* Long stretches without heavy operators, where most of the cuts are ties. */
static void test_stretches(int cost, int light)
{
    for (int i = 0; i < 12; i++) {
        struct ap_arena arena = {0};
        struct coarsen_params p = {.n_blocks = 2 + i % 6,
                                   .alpa = {cost, COARSEN_FLOPS, 0.5}};
        struct ap_graph g;
        struct layers l;
        struct coarsen_answer a;
        struct ap_err err = {{0}};
        random_graph(&arena, 100 + below(200), i % 3 ? 2 : 1, light, &g);
        layers_init(&arena, &g, &p.alpa, &l);
        const double *bytes = list_received(&arena, &l);
        struct plain least = recursion(&arena, &l, bytes, p.n_blocks, INFINITY, true);
        struct plain want =
            recursion(&arena, &l, bytes, p.n_blocks, layers_tie(&l, least.max), false);
        enum ap_exit x = answer_of(&arena, coarsen_alpa, &g, &p, &a, &err);
        CHECK(isinf(least.max)
                  ? x == AP_NO_SOLUTION
                  : x == AP_OK && a.more.bound == least.max &&
                        a.more.objective == want.max &&
                        stat_of(&a, "\"sum_bytes\":") == want.sum &&
                        fabs(stat_of(&a, "\"squares\":") / want.squares - 1) < 1e-8,
              "%d layers of %d operators, a heavy one in %d, as the recursion has them: "
              "%g bytes, squares %g",
              p.n_blocks, l.n, light + 1, want.sum, want.squares);
        ap_arena_free(&arena);
    }
}

/* Every cut costs the same: the most work for the dynamic program. */
static void test_long_chain(bool heavy_ones)
{
    enum { N = 4000 };
    struct ap_arena arena = {0};
    struct ap_node *nodes = AP_NEW_N(&arena, N + 1, struct ap_node);
    struct ap_graph g = {.name = "chain", .n_nodes = N + 1, .nodes = nodes};
    struct coarsen_params p = {.n_blocks = 40, .alpa = {0, COARSEN_COUNT, 0.5}};
    struct coarsen_answer a;
    struct ap_err err = {{0}};

    for (int i = 0; i <= N; i++) {
        const int in[] = {i - 1, i - 1};
        const bool heavy = heavy_ones && i > 0 && i % 4 == 0;
        nodes[i] = node_of(&arena,
                           heavy ? AP_OP_DOT
                           : i   ? AP_OP_NEGATE
                                 : AP_OP_PARAMETER,
                           7);
        if (heavy)
            nodes[i].attrs = dot_attrs(&arena);
        nodes[i].param = i ? -1 : 0;
        nodes[i].role = i ? AP_ROLE_NONE : AP_ROLE_INPUT;
        nodes[i].n_in = (i > 0) + heavy;
        nodes[i].in = ap_arena_dup(&arena, in, sizeof in);
    }
    CHECK(ap_graph_index(&arena, &g, "", &err) == 0, "a chain of %d", N);
    CHECK(answer_of(&arena, coarsen_alpa, &g, &p, &a, &err) == AP_OK, "is cut %s",
          err.msg);
    CHECK(a.n == 40 && a.more.objective == 7 && a.more.bound == 7 &&
              stat_of(&a, "\"sum_bytes\":") == 7 * 39,
          "the least maximum and sum");
    CHECK(stat_of(&a, "\"squares\":") == 40.0 * 100 * 100,
          "layers of 100 operators each");
    CHECK(most_received(&arena, &g, &a) == 7, "counted again");
    ap_arena_free(&arena);
}

int main(void)
{
    test_random(COARSEN_COST_PAPER, COARSEN_FLOPS, 0.5);
    test_random(COARSEN_COST_OPTIMIZED, COARSEN_FLOPS, 0.5);
    test_random(COARSEN_COST_PAPER, COARSEN_COUNT, 0.1);
    test_random(COARSEN_COST_PAPER, COARSEN_INPUT_MEMORY, 2);
    test_stretches(COARSEN_COST_PAPER, 1000);
    test_stretches(COARSEN_COST_PAPER, 30);
    test_stretches(COARSEN_COST_OPTIMIZED, 60);
    test_long_chain(true);
    test_long_chain(false);
    return tap_done();
}
