/* README of libcommon/solve: the numbers of its worked examples. */
#include "solve/memory/memory_search.h"
#include "solve/pieces.h"
#include "solve/solve.h"

#include "contest_gen.h"
#include "tap.h"

#include <math.h>

#define README "README of libcommon/solve: "

static double optimum(struct ap_arena *arena, const struct ap_problem *p)
{
    const struct ap_solve_params params = {0};
    struct ap_solution s = {0};
    struct ap_err err = {""};

    return ap_solve_exact(arena, p, &params, &s, &err) ? -1 : s.objective;
}

/* ---- elimination ---- */

static void test_chain(void)
{
    struct ap_arena arena = {0};
    const double x[] = {1, 4}, y[] = {2, 0}, z[] = {3, 2};
    const double xy[] = {0, 5, 2, 0}, yz[] = {0, 4, 6, 1};
    const double *cost[] = {x, y, z};
    const int n[] = {2, 2, 2};
    const struct ap_problem_edge edges[] = {{0, 1, xy}, {1, 2, yz}};
    const struct ap_problem p = {3, 2, n, cost, edges};
    double to_y[2], to_z[2];

    for (int s = 0; s < 2; s++)
        to_y[s] = fmin(x[0] + xy[s], x[1] + xy[2 + s]);
    for (int s = 0; s < 2; s++)
        to_z[s] = fmin(y[0] + to_y[0] + yz[s], y[1] + to_y[1] + yz[2 + s]);
    CHECK(to_y[0] == 1 && to_y[1] == 4 && to_z[0] == 3 && to_z[1] == 5,
          README "messages of a chain are (%g, %g) and (%g, %g)", to_y[0], to_y[1],
          to_z[0], to_z[1]);
    CHECK(optimum(&arena, &p) == 6, README "the chain's optimum is 6");
    ap_arena_free(&arena);
}

/* ---- messages on a cycle ---- */

static void test_triangle(void)
{
    struct ap_arena arena = {0};
    const double zero[] = {0, 0}, differ[] = {1, 0, 0, 1};
    const double *cost[] = {zero, zero, zero};
    const int n[] = {2, 2, 2};
    const struct ap_problem_edge edges[] = {
        {0, 1, differ}, {1, 2, differ}, {0, 2, differ}};
    const struct ap_problem p = {3, 3, n, cost, edges};
    struct sel_dual *d = sel_dual_new(sel_core_from_problem(&arena, &p));

    for (int i = 0; i < 50; i++)
        sel_dual_sweep(d);
    CHECK(fabs(d->bound) < 1e-9 && optimum(&arena, &p) == 1,
          README "messages on a cycle bound it by %g, its optimum is 1", d->bound);
    ap_arena_free(&arena);
}

/* ---- copies ---- */

static void test_copies(void)
{
    struct ap_arena arena = {0};
    const double none[] = {0, 0}, home[] = {3, 0}, made[] = {0, 0, 0, 4};
    const double need[] = {0, AP_FORBIDDEN, 0, 0},
                 rest[] = {5, 0}; /* row: absent, made */
    const double each[] = {0, 0, 0, 4};
    const double *cost[] = {home, none, rest, rest};
    const int n[] = {2, 2, 2, 2};
    const struct ap_problem_edge once[] = {{0, 1, made}, {1, 2, need}, {1, 3, need}};
    const struct ap_problem copies = {4, 3, n, cost, once};
    const struct ap_problem_edge direct[] = {{0, 2, each}, {0, 3, each}};
    const struct ap_problem twice = {4, 2, n, cost, direct};
    const int by_home[] = {1, 1, 1, 1}; /* sharded, made, both users ask */

    CHECK(ap_problem_score(&copies, by_home) == 4 &&
              ap_problem_score(&twice, by_home) == 8,
          README "one copy for two users costs 4, charged to each user 8");
    CHECK(optimum(&arena, &copies) == 3 && optimum(&arena, &twice) == 3,
          README "a home that makes the copies' layout itself costs 3");
    ap_arena_free(&arena);
}

/* ---- pieces ---- */

static void test_pieces(void)
{
    struct ap_arena arena = {0};
    const double left[] = {0, 3}, right[] = {2, 0};
    const double *left_cost[] = {left}, *right_cost[] = {right};
    const int n[] = {2};
    const struct ap_subproblem_term plus = {0, 0, 1}, minus = {0, 0, -1};
    const struct ap_subproblem piece[] = {
        {{1, 0, n, left_cost, NULL}, 1, 1, &plus, NULL},
        {{1, 0, n, right_cost, NULL}, 1, 1, &minus, NULL}};
    const struct ap_pieces pieces = {2, piece, 1, n};
    const struct ap_pieces_params params = {.objective = 2, .max_rounds = 20};
    struct ap_pieces_answer answer;
    struct ap_err err = {""};

    CHECK(fmin(left[0], left[1]) + fmin(right[0], right[1]) == 0 &&
              fmin(left[0] + 2, left[1]) + fmin(right[0] - 2, right[1]) == 2,
          README "pieces prove 0 without multipliers, 2 with (2, 0)");
    CHECK(ap_pieces_bound(&arena, &pieces, &params, &answer, &err) == 0 &&
              fabs(answer.bound - 2) < 1e-6,
          README "multipliers are found: the bound is %g", answer.bound);
    ap_arena_free(&arena);
}

/* ---- prices of memory ---- */

/* Three layers that cost 10 and hold 3, or cost 14 and hold 1, at one time. */
static struct contest layers(struct ap_arena *arena, int64_t limit)
{
    static const double cost[] = {10, 14};
    static const int64_t usage[] = {3, 1};
    struct contest p = {.costs = {.n_nodes = 3}, .usage_limit = limit};
    int *n = AP_NEW_N(arena, 3, int);
    const double **costs = AP_NEW_N(arena, 3, const double *);
    const int64_t **usages = AP_NEW_N(arena, 3, const int64_t *);
    struct contest_span *span = AP_NEW_N(arena, 3, struct contest_span);

    for (int v = 0; v < 3; v++) {
        n[v] = 2;
        costs[v] = cost;
        usages[v] = usage;
        span[v] = (struct contest_span){0, 1};
    }
    p.costs.n_strategies = n;
    p.costs.cost = costs;
    p.usage = usages;
    p.span = span;
    return p;
}

/* The Lagrangian: the optimum at a price, less what the limit is worth. */
static double value_at(const struct contest *p, double price)
{
    double value = -price * (double)p->usage_limit;

    for (int v = 0; v < p->costs.n_nodes; v++)
        value += fmin(p->costs.cost[v][0] + price * (double)p->usage[v][0],
                      p->costs.cost[v][1] + price * (double)p->usage[v][1]);
    return value;
}

static void test_prices(void)
{
    struct ap_arena arena = {0};
    const struct contest p = layers(&arena, 8);
    int64_t held[2][1] = {{9}, {7}};
    struct search_cut cut[] = {{.sec = 30, .held = held[0]},
                               {.sec = 34, .held = held[1]}};
    int time[1] = {0};
    double price[1] = {0};
    const struct ap_memory model = {.n_times = 1};
    struct memory_search ms = {.arena = &arena,
                               .cut = cut,
                               .n_cuts = 2,
                               .max_times = 1,
                               .time = time,
                               .n_times = 1,
                               .unit = 1,
                               .highest = 1000,
                               .model = &model};
    const double theta = search_prices(&ms, 8, price);

    CHECK(value_at(&p, 0) == 30 && value_at(&p, 1) == 31 && value_at(&p, 2) == 32 &&
              value_at(&p, 3) == 27,
          README "the Lagrangian at prices 0, 1, 2, 3 is %g, %g, %g, %g", value_at(&p, 0),
          value_at(&p, 1), value_at(&p, 2), value_at(&p, 3));
    CHECK(fabs(theta - 32) < 1e-9 && fabs(price[0] / 8 - 2) < 1e-9,
          README "two cuts: value %g at price %g", theta, price[0] / 8);
    struct ap_solution best = {0};
    struct ap_err err = {""};
    const struct contest_params params = {0};
    CHECK(!contest_exhaustive(&arena, &p, &params, &best, &err) && best.objective == 34,
          README "the optimum is 34: the rest is the gap");
    ap_arena_free(&arena);
}

int main(void)
{
    test_chain();
    test_triangle();
    test_copies();
    test_pieces();
    test_prices();
    return tap_done();
}
