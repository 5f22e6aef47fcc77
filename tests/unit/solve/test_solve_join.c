/* Copies that are paid once: tensors so wanted that no set of copies can be listed. */
#include <stdio.h>
#include <string.h>

#include "solve/solve.h"
#include "tap.h"

#define CONSUMERS 12
#define NEEDS     3
#define HOMES     4
#define COPIES    (CONSUMERS * NEEDS)
#define NODES     (1 + CONSUMERS + COPIES)

static uint64_t state;

static double chance(void)
{
    state = ap_hash(&state, sizeof state, 1);
    return (double)(state >> 11) / 9007199254740992.0;
}

/*
 * One producer; each strategy of each consumer needs a copy of its own and one that it
 * shares with the next consumer, so that every set of copies has many members.
 */
static void make(struct ap_arena *arena, struct ap_problem *p)
{
    int *n = AP_NEW_N(arena, NODES, int), n_edges = 0;
    double **cost = AP_NEW_N(arena, NODES, double *);
    struct ap_problem_edge *edges =
        AP_NEW_N(arena, COPIES * (1 + 2) + CONSUMERS, struct ap_problem_edge);

    for (int v = 0; v < NODES; v++) {
        n[v] = v == 0 ? HOMES : v <= CONSUMERS ? NEEDS : 2;
        cost[v] = AP_NEW_N(arena, n[v], double);
        for (int s = 0; s < n[v] && v <= CONSUMERS; s++)
            cost[v][s] = chance();
    }
    for (int i = 0; i < COPIES; i++) {
        double *making = AP_NEW_N(arena, 2 * HOMES, double);
        for (int h = 0; h < HOMES; h++)
            making[2 * h + 1] = chance() < 0.3 ? 0 : chance();
        edges[n_edges++] = (struct ap_problem_edge){0, 1 + CONSUMERS + i, making};
        for (int k = 0; k < 2; k++) {
            double *need = AP_NEW_N(arena, 2 * NEEDS, double);
            need[i % NEEDS] = AP_FORBIDDEN;
            edges[n_edges++] = (struct ap_problem_edge){
                1 + CONSUMERS + i, 1 + (i / NEEDS + k) % CONSUMERS, need};
        }
    }
    *p = (struct ap_problem){.n_nodes = NODES,
                             .n_edges = n_edges,
                             .n_strategies = n,
                             .cost = (const double *const *)cost,
                             .edges = edges};
}

/* Some nodes stand for copies: they have other strategies than the problem's. */
static bool has_groups(struct ap_arena *arena, const struct ap_problem *p)
{
    int *max_sets = AP_NEW_N(arena, p->n_nodes, int), n_groups = 0;
    struct sel_core *c = sel_core_from_problem(arena, p);
    struct sel_join *join = sel_join_copies(c, max_sets);

    for (int v = 0; v < p->n_nodes; v++) {
        n_groups += !c->node[v].gone && c->node[v].n_strategies != p->n_strategies[v];
    }
    return n_groups > 0 && sel_join_relaxed(join);
}

int main(void)
{
    for (state = 1; state <= 20; state++) {
        struct ap_arena arena = {0};
        struct ap_problem p;
        struct ap_solve_params params = {0};
        struct ap_solution exact, glpk;
        struct ap_err err = {0};
        uint64_t seed = state;

        make(&arena, &p);
        CHECK(has_groups(&arena, &p), "the groups of copies are known, seed %d",
              (int)seed);
        bool solved = ap_solve_exact(&arena, &p, &params, &exact, &err) == 0 &&
                      ap_solve_glpk(&arena, &p, &params, &glpk, &err) == 0;
        CHECK(solved && exact.bound <= glpk.objective * (1 + 1e-9) &&
                  exact.objective >= glpk.objective * (1 - 1e-9) &&
                  (strcmp(exact.stopped, "optimal") != 0 ||
                   exact.objective <= glpk.objective * (1 + 1e-9)),
              "exact's bound holds where no set is listed, seed %d", (int)seed);
        state = seed;
        ap_arena_free(&arena);
    }
    return tap_done();
}
