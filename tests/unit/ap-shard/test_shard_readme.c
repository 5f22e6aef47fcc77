/* The worked examples of cmd/ap-shard/README.md and of its serve/README.md. */
#include <math.h>

#include "serve/serve.h"
#include "solve/pieces.h"

#include "tap.h"

/* ---- four identical layers ---- */

static const double layer_cost[2] = {3, 4};             /* strategies A and B */
static const double same_cost[2][2] = {{2, 0}, {0, 2}}; /* of neighbours */
static const double free_cost[2];

static double chain_cost(const int *s)
{
    double sum = layer_cost[s[0]];
    for (int i = 1; i < 4; i++)
        sum += layer_cost[s[i]] + same_cost[s[i - 1]][s[i]];
    return sum;
}

static double least_chain(bool folded)
{
    double least = INFINITY;
    for (int k = 0; k < 16; k++) {
        const int s[4] = {k & 1, k >> 1 & 1, k >> 2 & 1, k >> 3 & 1};
        if (!folded || k == 0 || k == 15)
            least = fmin(least, chain_cost(s));
    }
    return least;
}

/* The inner layers with the proxy of the next one; the first with its, and the last. */
static double bound_of_chain(int rounds)
{
    static const int two[3] = {2, 2, 2}, n_strategies[1] = {2};
    static const double *const inner_cost[2] = {layer_cost, free_cost};
    static const double *const rest_cost[3] = {layer_cost, free_cost, layer_cost};
    static const struct ap_problem_edge edge = {0, 1, &same_cost[0][0]};
    static const struct ap_subproblem_term inner_term[2] = {{0, 1, 1}, {0, 0, -1}},
                                           rest_term[2] = {{0, 1, 1}, {0, 2, -1}};
    const struct ap_subproblem part[2] = {{.problem = {.n_nodes = 2,
                                                       .n_edges = 1,
                                                       .n_strategies = two,
                                                       .cost = inner_cost,
                                                       .edges = &edge},
                                           .weight = 2,
                                           .n_terms = 2,
                                           .term = inner_term},
                                          {.problem = {.n_nodes = 3,
                                                       .n_edges = 1,
                                                       .n_strategies = two,
                                                       .cost = rest_cost,
                                                       .edges = &edge},
                                           .weight = 1,
                                           .n_terms = 2,
                                           .term = rest_term}};
    const struct ap_pieces pieces = {2, part, 1, n_strategies};
    const struct ap_pieces_params params = {
        .objective = 14, .max_rounds = rounds, .work_limit = 100};
    struct ap_pieces_answer answer = {0};
    struct ap_arena arena = {0};
    struct ap_err err = {0};

    int rc = ap_pieces_bound(&arena, &pieces, &params, &answer, &err);
    ap_arena_free(&arena);
    return rc ? NAN : answer.bound;
}

/* The sum of the pieces' optima by hand, with multiplier d on strategy B. */
static double pieces_at(double d)
{
    const double m[2] = {0, d};
    double inner = INFINITY, first = INFINITY, last = INFINITY;
    for (int s = 0; s < 2; s++) {
        for (int z = 0; z < 2; z++) {
            inner = fmin(inner, layer_cost[s] + same_cost[s][z] + m[z] - m[s]);
            first = fmin(first, layer_cost[s] + same_cost[s][z] + m[z]);
        }
        last = fmin(last, layer_cost[s] - m[s]);
    }
    return 2 * inner + first + last;
}

static void test_chain(void)
{
    double best = -INFINITY;

    for (int k = -40; k <= 40; k++)
        best = fmax(best, pieces_at(k / 10.0));
    CHECK(least_chain(true) == 18, "README of cmd/ap-shard: folded, four layers cost 18");
    CHECK(least_chain(false) == 14, "README of cmd/ap-shard: A B A B costs 14");
    CHECK(pieces_at(0) == 12 && pieces_at(1) == 13 && fabs(best - 13.5) < 1e-12 &&
              fabs(pieces_at(0.5) - 13.5) < 1e-12,
          "README of cmd/ap-shard: the pieces sum up to 12, with multiplier 0.5 to 13.5");
    double bound = bound_of_chain(200);
    CHECK(bound > 13.4 && bound <= 13.5 + 1e-9,
          "README of cmd/ap-shard: multipliers that are found give %.4f", bound);
}

/* ---- column generation ---- */

static void test_columns(void)
{
    enum { N = 6 };
    double cost[N], table[N * N];
    const double *const costs[2] = {cost, cost};
    const int n[2] = {N, N}, start[2] = {0, 0}, *known[1] = {start};

    for (int s = 0; s < N; s++) {
        cost[s] = 10 - s;
        for (int t = 0; t < N; t++)
            table[s * N + t] = s == t ? 0 : 100;
    }
    const struct ap_problem_edge edge = {0, 1, table};
    const struct ap_problem p = {
        .n_nodes = 2, .n_edges = 1, .n_strategies = n, .cost = costs, .edges = &edge};
    const struct ap_solve_params params = {.start = start};
    const int one_moves[2] = {5, 0};
    struct ap_solution sol = {0};
    struct ap_arena arena = {0};
    struct ap_err err = {0};

    CHECK(ap_problem_score(&p, start) == 20 && ap_problem_score(&p, one_moves) == 115,
          "README of cmd/ap-shard/serve: 20 at first, 115 if one node changes alone");
    const struct serve_columns from = {1, known, ap_solve_exact, 1};
    int rc = serve_columns_solve(&arena, &p, &from, &params, &sol, &err);
    CHECK(rc == 0 && sol.objective == 10 && sol.choice[0] == 5 && sol.choice[1] == 5 &&
              sol.bound == 0,
          "README of cmd/ap-shard/serve: both change in one round, to 10");
    ap_arena_free(&arena);
}

int main(void)
{
    test_chain();
    test_columns();
    return tap_done();
}
