/* The solvers of the selection problem against each other, and what they do with trouble.
 */
#include "solve/problem.h"

#include "contest_gen.h"
#include "tap.h"

#include <math.h>
#include <stdlib.h>

static const struct ap_solve_params plain;

static bool near(double x, double y)
{
    return fabs(x - y) <= 1e-9 * fmax(fabs(x), fabs(y)) + 1e-300;
}

/* What every answer must be; prints why not. */
static bool sound(const struct ap_problem *p, const struct ap_solution *s)
{
    if (s->objective != ap_problem_score(p, s->choice) || s->objective >= AP_FORBIDDEN ||
        !(s->bound <= s->objective)) {
        printf("# objective %.17g, score %.17g, bound %.17g\n", s->objective,
               ap_problem_score(p, s->choice), s->bound);
        return false;
    }
    return true;
}

static bool proven(const struct ap_problem *p, const struct ap_solution *s)
{
    return sound(p, s) && strcmp(s->stopped, "optimal") == 0 &&
           s->bound >= s->objective * (1 - 1e-9);
}

static struct ap_problem tiny_problem(struct ap_arena *arena, int i)
{
    static const int forbid[] = {0, 12, 5, 3}, most[] = {4, 2, 6};
    int n = gen_int(1, 9), n_edges = gen_int(0, 22);

    return gen_random(arena, n, n_edges, most[i % 3], i % 2 ? 1000 : 5, forbid[i % 4], 0);
}

/* All three on tiny problems, forbidden cells and infeasible ones included. */
static void test_tiny(void)
{
    int wrong = 0, infeasible = 0, solved = 0;

    for (int i = 0; i < 400; i++) {
        struct ap_arena arena = {0};
        struct ap_solution s[3];
        struct ap_err err[3] = {0};
        gen_state = (uint64_t)i;
        struct ap_problem p = tiny_problem(&arena, i);
        int all = gen_exhaustive(&arena, &p, &plain, &s[0], &err[0]);
        if (all < 0 && strstr(err[0].msg, "limited")) {
            ap_arena_free(&arena);
            continue;
        }
        int exact = ap_solve_exact(&arena, &p, &plain, &s[1], &err[1]);
        int glpk = ap_solve_glpk(&arena, &p, &plain, &s[2], &err[2]);
        bool ok = all == exact && all == glpk;
        infeasible += all < 0;
        if (all < 0)
            ok = ok && strstr(err[1].msg, "no solution") &&
                 strstr(err[2].msg, "no solution");
        else
            ok = ok && proven(&p, &s[1]) && proven(&p, &s[2]) &&
                 near(s[0].objective, s[1].objective) &&
                 near(s[0].objective, s[2].objective);
        solved += all == 0;
        if (!ok) {
            wrong++;
            printf("# seed %d: %d %d %d\n", i, all, exact, glpk);
        }
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0, "exhaustive, exact and glpk agree on %d problems", solved);
    CHECK(infeasible > 30, "%d infeasible ones are refused by all", infeasible);
}

/* exact and glpk on mid-size problems: sparse, banded, tied, with forbidden cells. */
static void test_random(void)
{
    int wrong = 0, infeasible = 0;

    for (int i = 0; i < 200; i++) {
        struct ap_arena arena = {0};
        struct ap_solution x, y;
        struct ap_err err[2] = {0};
        gen_state = 1000 + (uint64_t)i;
        int n = gen_int(20, 60);
        struct ap_problem p =
            gen_random(&arena, n, n + n / (2 + i % 3), 3 + i % 5, i % 3 ? 100000 : 8,
                       i % 4 == 1 ? 20 : 0, i % 2 ? 3 : 12);
        int exact = ap_solve_exact(&arena, &p, &plain, &x, &err[0]);
        int glpk = ap_solve_glpk(&arena, &p, &plain, &y, &err[1]);
        infeasible += exact < 0;
        if (exact != glpk || (exact == 0 && !(proven(&p, &x) && proven(&p, &y) &&
                                              near(x.objective, y.objective)))) {
            wrong++;
            printf("# seed %d: %d %d %s %s\n", 1000 + i, exact, glpk, err[0].msg,
                   err[1].msg);
        }
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0, "exact and glpk agree on 200 random problems (%d infeasible)",
          infeasible);
}

/* Dense little problems: no tree decomposition helps, the bound and branching must. */
static void test_dense(void)
{
    int wrong = 0;

    for (int i = 0; i < 12; i++) {
        struct ap_arena arena = {0};
        struct ap_solution x, y;
        struct ap_err err = {0};
        gen_state = 5000 + (uint64_t)i;
        struct ap_problem p = gen_random(&arena, 10, 60, 4, 1000, i % 2 ? 15 : 0, 0);
        int exact = ap_solve_exact(&arena, &p, &plain, &x, &err);
        int all = gen_exhaustive(&arena, &p, &plain, &y, &err);
        if (exact != all ||
            (all == 0 && !(proven(&p, &x) && near(x.objective, y.objective))))
            wrong++;
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0, "exact and exhaustive agree on dense problems");
}

/* One tensor with random needs: copies are paid once, however they are encoded. */
static struct ap_problem copies_problem(struct ap_arena *arena, int n_users,
                                        int n_layouts)
{
    struct gen g = {.arena = arena};
    int n_own = gen_int(2, 4);
    double *cost = gen_node(&g, n_own);

    for (int s = 0; s < n_own; s++)
        cost[s] = 1e-6 * gen_int(0, 20);
    for (int u = 0; u < n_users; u++) {
        int n = gen_int(2, 4);
        cost = gen_node(&g, n);
        for (int s = 0; s < n; s++)
            cost[s] = 1e-6 * gen_int(0, 20);
    }
    int *need = AP_NEW_N(arena, n_users * 4, int);
    for (int i = 0; i < n_users * 4; i++)
        need[i] = gen_int(-1, n_layouts - 1);
    for (int l = 0; l < n_layouts; l++) {
        int copy = g.n_nodes;
        gen_node(&g, 2);
        double *made = gen_edge(&g, 0, copy);
        for (int s = 0; s < n_own; s++)
            made[2 * s + 1] = gen_int(0, 2) ? 1e-6 * gen_int(1, 12) : 0;
        for (int u = 0; u < n_users; u++) {
            int n = g.n_strategies[u + 1];
            double *t = gen_edge(&g, copy, u + 1);
            for (int s = 0; s < n; s++)
                if (need[u * 4 + s] == l)
                    t[s] = AP_FORBIDDEN;
        }
    }
    return gen_problem(&g);
}

static void test_copies(void)
{
    int wrong = 0, n = 0;

    for (int i = 0; i < 150; i++) {
        struct ap_arena arena = {0};
        struct ap_solution x, y;
        struct ap_err err[2] = {0};
        gen_state = 9000 + (uint64_t)i;
        struct ap_problem p = copies_problem(&arena, 2 + i % 4, 2 + i % 5);
        if (gen_exhaustive(&arena, &p, &plain, &y, &err[0]) == 0) {
            n++;
            if (ap_solve_exact(&arena, &p, &plain, &x, &err[1]) < 0 || !proven(&p, &x) ||
                !near(x.objective, y.objective))
                wrong++;
        }
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0 && n > 100, "copies paid once: %d problems", n);
    wrong = 0;
    for (int i = 0; i < 6; i++) { /* more sets than are listed at first */
        struct ap_arena arena = {0};
        struct ap_solution x, y;
        struct ap_err err[2] = {0};
        gen_state = 9500 + (uint64_t)i;
        struct ap_problem p = copies_problem(&arena, 12, 14);
        if (ap_solve_exact(&arena, &p, &plain, &x, &err[0]) < 0 ||
            ap_solve_glpk(&arena, &p, &plain, &y, &err[1]) < 0 || !proven(&p, &x) ||
            !near(x.objective, y.objective))
            wrong++;
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0, "copies in more sets than can be listed at once");
}

/* With a gap that is good enough: the bound holds, and is as near as was asked. */
static void test_gap(void)
{
    int wrong = 0, early = 0, n = 0;

    for (int i = 0; i < 60; i++) {
        struct ap_arena arena = {0};
        struct ap_solution best, x, from;
        struct ap_err err = {0};
        struct ap_solve_params params = {.gap = i % 2 ? 0.05 : 0.3};
        gen_state = 20000 + (uint64_t)i;
        struct ap_problem p = i % 3
                                  ? gen_random(&arena, 22, 90, 4, 1000, i % 5 ? 0 : 4, 0)
                                  : copies_problem(&arena, 8, 8);
        int exact = ap_solve_exact(&arena, &p, &plain, &best, &err);
        if (exact != ap_solve_exact(&arena, &p, &params, &x, &err)) {
            wrong++;
        } else if (exact == 0) {
            params.start = x.choice;
            const double least = (1 - params.gap) * (1 - 1e-9);
            n++;
            wrong +=
                x.objective < best.objective * (1 - 1e-9) ||
                x.bound > best.objective * (1 + 1e-9) || x.bound < x.objective * least ||
                ap_solve_exact(&arena, &p, &params, &from, &err) ||
                from.objective > x.objective || from.bound < from.objective * least ||
                from.bound > best.objective * (1 + 1e-9);
            early += from.bound < best.objective * (1 - 1e-6);
        }
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0 && n > 40 && early > 5,
          "gaps that are good enough: %d problems, %d not proven to the end", n, early);
}

static void test_train(void)
{
    struct ap_arena arena = {0};
    struct ap_solution x, again, from;
    struct ap_err err = {0};
    struct ap_problem p = gen_train(&arena, 2, 2, 4);
    int rc = ap_solve_exact(&arena, &p, &plain, &x, &err);

    CHECK(rc == 0 && proven(&p, &x), "a training step of 2 layers is solved: %s",
          err.msg);
    rc = ap_solve_exact(&arena, &p, &plain, &again, &err);
    CHECK(rc == 0 && memcmp(x.choice, again.choice, (size_t)p.n_nodes * sizeof(int)) == 0,
          "the same choice every time");
    struct ap_solve_params params = {.start = x.choice};
    rc = ap_solve_exact(&arena, &p, &params, &from, &err);
    CHECK(rc == 0 && proven(&p, &from) && from.objective <= x.objective,
          "a start that is optimal stays");

    /* any legal start: every solver is at least as good under any limit */
    params.work_limit = 1;
    rc = ap_solve_exact(&arena, &p, &params, &from, &err);
    CHECK(rc == 0 && sound(&p, &from) && from.bound <= x.objective,
          "work limit 1 with a start: %s", from.stopped);
    params.start = NULL;
    rc = ap_solve_exact(&arena, &p, &params, &from, &err);
    CHECK(rc < 0 || (sound(&p, &from) && from.bound <= x.objective * (1 + 1e-9)),
          "work limit 1 without: a valid bound or a message");
    params.start = x.choice;
    rc = ap_solve_glpk(&arena, &p, &params, &from, &err);
    CHECK(rc == 0 && sound(&p, &from) && from.objective == x.objective,
          "glpk keeps a start under a limit: %s", from.stopped);
    ap_arena_free(&arena);
}

static bool all_solve(struct ap_arena *arena, const struct ap_problem *p, double want)
{
    ap_solver_fn *solver[] = {ap_solve_exact, ap_solve_glpk, gen_exhaustive};

    for (int i = 0; i < 3; i++) {
        struct ap_solution s;
        struct ap_err err = {0};
        if (solver[i](arena, p, &plain, &s, &err) < 0 || !proven(p, &s) ||
            !near(s.objective, want))
            return false;
    }
    return true;
}

static void test_small(void)
{
    struct ap_arena arena = {0};
    double one[] = {3, 1, 1}, two[] = {2, AP_FORBIDDEN, 5};
    const double *cost[] = {one, two, one};
    int n[] = {3, 3, 3};
    double pair[] = {0, 0, 0, 4, 0, 4, 0, 0, 0};
    struct ap_problem_edge edges[] = {{0, 1, pair}, {1, 0, pair}};
    struct ap_problem p = {.n_nodes = 1, .n_strategies = n, .cost = cost};

    CHECK(all_solve(&arena, &p, 1), "a single node");
    struct ap_solution s;
    struct ap_err err = {0};
    CHECK(ap_solve_exact(&arena, &p, &plain, &s, &err) == 0 && s.choice[0] == 1,
          "of two equal strategies the lower");
    p.n_nodes = 0;
    CHECK(all_solve(&arena, &p, 0), "no node");
    p.n_nodes = 3;
    CHECK(all_solve(&arena, &p, 4), "isolated nodes");
    p.edges = edges;
    p.n_edges = 2;
    CHECK(all_solve(&arena, &p, 4), "parallel edges, one each way");
    double blocked[9];
    for (int i = 0; i < 9; i++)
        blocked[i] = AP_FORBIDDEN;
    edges[1].cost = blocked;
    ap_solver_fn *solver[] = {ap_solve_exact, ap_solve_glpk, gen_exhaustive};
    for (int i = 0; i < 3; i++) {
        struct ap_err e = {0};
        CHECK(solver[i](&arena, &p, &plain, &s, &e) < 0 && strstr(e.msg, "no solution"),
              "infeasible: %s", e.msg);
    }
    ap_arena_free(&arena);
}

int main(void)
{
    test_small();
    test_tiny();
    test_random();
    test_dense();
    test_copies();
    test_gap();
    test_train();
    return tap_done();
}
