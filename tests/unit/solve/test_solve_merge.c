/* Pairs of neighbours as one node: the optimum stays, and so does the way back to it. */
#include <math.h>

#include "solve/solve.h"
#include "contest_gen.h"
#include "tap.h"

#define NODES      7
#define STRATEGIES 4

/* Dense, so that reductions leave much of it; one cell in eight is forbidden. */
static struct ap_problem make(struct ap_arena *arena)
{
    static int n[NODES];
    double **cost = AP_NEW_N(arena, NODES, double *);
    struct ap_problem_edge *edges =
        AP_NEW_N(arena, NODES * NODES, struct ap_problem_edge);
    int n_edges = 0;

    for (int v = 0; v < NODES; v++) {
        n[v] = STRATEGIES;
        cost[v] = AP_NEW_N(arena, STRATEGIES, double);
        for (int s = 0; s < STRATEGIES; s++)
            cost[v][s] = gen_int(0, 50);
    }
    for (int a = 0; a < NODES; a++)
        for (int b = a + 1; b < NODES; b++) {
            double *table = AP_NEW_N(arena, STRATEGIES * STRATEGIES, double);
            for (int k = 0; k < STRATEGIES * STRATEGIES; k++)
                table[k] = gen_int(0, 7) == 0 ? AP_FORBIDDEN : gen_int(0, 50);
            if (gen_int(0, 3) > 0)
                edges[n_edges++] = (struct ap_problem_edge){a, b, table};
        }
    return (struct ap_problem){.n_nodes = NODES,
                               .n_edges = n_edges,
                               .n_strategies = n,
                               .cost = (const double *const *)cost,
                               .edges = edges};
}

/* Merges and reduces until nothing is left; false where none costs less than limit. */
static bool solve(struct sel_core *c, double limit, int *n_merged)
{
    bool some = sel_reduce(c, false);

    for (int n = 1; some && c->n_left > 0 && n > 0; *n_merged += n)
        some = sel_merge_pairs(c, limit, &n) && sel_reduce(c, false);
    return some && c->n_left == 0 && c->base < limit;
}

int main(void)
{
    int n_merged = 0, n_right = 0, n_none = 0, n_solved = 0;

    for (gen_state = 1; gen_state < 300u * 1000003u; gen_state += 1000003u) {
        struct ap_arena arena = {0};
        uint64_t seed = gen_state;
        struct ap_problem p = make(&arena);
        struct ap_solve_params params = {0};
        struct ap_solution best;
        struct ap_err err = {0};
        gen_state = seed;
        if (gen_exhaustive(&arena, &p, &params, &best, &err) == 0) {
            struct sel_core *c = sel_core_from_problem(&arena, &p);
            n_solved++;
            if (solve(c, best.objective + 0.5, &n_merged)) {
                sel_undo_all(c);
                n_right += c->base == best.objective &&
                           ap_problem_score(&p, c->best) == best.objective;
            }
            n_none +=
                !solve(sel_core_from_problem(&arena, &p), best.objective, &n_merged);
        }
        ap_arena_free(&arena);
    }
    CHECK(n_solved > 250 && n_merged > n_solved, "%d problems, %d pairs merged", n_solved,
          n_merged);
    CHECK(n_right == n_solved, "the optimum is found again, %d times", n_right);
    CHECK(n_none == n_solved, "nothing is cheaper than the optimum, %d times", n_none);
    return tap_done();
}
