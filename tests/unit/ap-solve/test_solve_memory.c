/*
 * The selection problem with memory: solvers against each other, bounds, peaks, and the
 * contest's format.
 */
#include "problem_read.h"

#include "contest_gen.h"
#include "mem_local.h"
#include "tap.h"

#include <math.h>
#include <stdlib.h>

static const struct contest_params plain = {.threads = 1, .work_limit = 8};

static struct contest tiny(struct ap_arena *arena, int i)
{
    static const int forbid[] = {0, 9, 4, 0};

    gen_state = 77000 + (uint64_t)i;
    struct ap_problem p = gen_random(arena, gen_int(1, 7), gen_int(0, 12), 2 + i % 3,
                                     i % 2 ? 1000 : 6, forbid[i % 4], 0);
    return gen_memory(arena, p, 1 + i % 8, i % 5 ? 100 : 3, 6);
}

static bool sound(const struct contest *p, const struct ap_solution *s, double optimum)
{
    return contest_legal(p, s->choice) &&
           s->objective == ap_problem_score(&p->costs, s->choice) &&
           s->bound <= s->objective && s->bound <= optimum * (1 + 1e-9);
}

static bool same(double x, double y)
{
    return fabs(x - y) <= 1e-9 * fmax(fabs(x), fabs(y)) + 1e-15;
}

/* One solver on one problem whose optimum is known; prints what is wrong. */
static int check(const char *name, contest_solver *run, const struct contest *p,
                 int feasible, double optimum, bool must_prove, int i)
{
    struct ap_arena arena = {0};
    struct ap_solution s = {0};
    struct ap_err err = {""};
    const struct contest_params none = {0};
    int rc = run(&arena, p, run == contest_glpk ? &none : &plain, &s, &err);
    bool ok = feasible ? rc == 0 && sound(p, &s, optimum)
                       : rc < 0 && strstr(err.msg, "no solution");

    if (ok && feasible && must_prove)
        ok = same(s.objective, optimum) && !strcmp(s.stopped, "optimal");
    if (!ok)
        printf("# %s, problem %d: %d %s, objective %.17g bound %.17g, optimum %.17g\n",
               name, i, rc, rc ? err.msg : s.stopped, s.objective, s.bound, optimum);
    ap_arena_free(&arena);
    return !ok;
}

static void test_tiny(int n, int n_glpk)
{
    int wrong[4] = {0}, feasible = 0, bound_by = 0;

    for (int i = 0; i < n; i++) {
        struct ap_arena arena = {0};
        struct ap_solution all, bare;
        struct ap_err err = {""};
        struct contest p = tiny(&arena, i), without = p;
        bool found = !contest_exhaustive(&arena, &p, &plain, &all, &err);
        double optimum = found ? all.objective : 0;
        feasible += found;
        without.span = NULL;
        bound_by += found && !contest_exhaustive(&arena, &without, &plain, &bare, &err) &&
                    bare.objective < optimum;
        wrong[0] += check("exact", contest_exact, &p, found, optimum, true, i);
        if (i < n_glpk) {
            wrong[1] += check("glpk", contest_glpk, &p, found, optimum, true, i);
            wrong[2] += check("auto", contest_auto, &p, found, optimum, true, i);
        }
        if (i < n_glpk && found && i % 10 == 0)
            wrong[3] += check("local", contest_local, &p, found, optimum, false, i);
        ap_arena_free(&arena);
    }
    CHECK(wrong[0] == 0, "exact equals exhaustive on %d problems, %d feasible", n,
          feasible);
    CHECK(wrong[1] == 0, "glpk on %d of them", n_glpk);
    CHECK(wrong[2] == 0, "auto on %d of them", n_glpk);
    CHECK(wrong[3] == 0, "local is legal and its bounds hold");
    CHECK(bound_by > n / 10, "the limit binds in %d", bound_by);
}

/* The limit of time is over before anything is reduced: what goes out is sound still. */
static void test_late(int n)
{
    const struct contest_params late = {.threads = 1, .time_limit_sec = 1e-9};
    int wrong = 0, feasible = 0, found = 0;

    for (int i = 0; i < 3 * n; i++) {
        struct ap_arena arena = {0};
        struct ap_solution all, s = {0};
        struct ap_err err = {""};
        struct contest p = tiny(&arena, i / 3);
        contest_solver *run = i % 3 == 0 ? contest_auto : contest_exact;
        if (i % 3 == 2)
            p.span = NULL;
        bool any = !contest_exhaustive(&arena, &p, &plain, &all, &err);
        int rc = run(&arena, &p, &late, &s, &err);
        feasible += any;
        found += any && rc == 0;
        if (rc == 0 ? !any || !sound(&p, &s, all.objective)
                    : !strstr(err.msg, "no sol")) {
            printf("# problem %d, solver %d: %d %s\n", i / 3, i % 3, rc, err.msg);
            wrong++;
        }
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0, "late answers are legal, their bounds hold");
    CHECK(found > feasible * 9 / 10, "%d answers to %d problems", found, feasible);
}

static void test_repeats(void)
{
    struct ap_arena arena = {0};
    struct ap_solution one, two;
    struct ap_err err = {""};
    struct contest_params params = {.threads = 1, .work_limit = 2, .seed = 5};

    gen_state = 5;
    struct contest p =
        gen_memory(&arena, gen_random(&arena, 120, 260, 8, 100000, 0, 30), 60, 1000, 2);
    p.usage_limit += p.usage_limit / 4;
    int rc = contest_auto(&arena, &p, &params, &one, &err);
    params.threads = 2;
    rc |= contest_auto(&arena, &p, &params, &two, &err);
    CHECK(rc == 0 && one.bound == two.bound &&
              !memcmp(one.choice, two.choice, (size_t)p.costs.n_nodes * sizeof(int)),
          "one and two threads give the same: %s", err.msg);
    CHECK(rc == 0 && sound(&p, &one, one.objective), "and it is legal");
    ap_arena_free(&arena);
}

/* Changes nodes at random as far as they fit. */
static void wander(struct mem_local *l, int n)
{
    struct mem_state *st = l->st;

    for (int i = 0; i < n; i++) {
        int v = gen_int(0, l->m->core->n_nodes - 1);
        int t = gen_int(0, l->m->core->node[v].n_strategies - 1), s = st->choice[v];
        mem_tree_take(&st->left, l->m, v, s, 1);
        if (st->forbidden[v][t] == 0 && mem_tree_try(&st->left, l->m, v, t))
            mem_state_change(st, v, t);
        else
            mem_tree_take(&st->left, l->m, v, s, -1);
    }
}

static bool kept(struct mem_local *l, struct ap_arena *arena)
{
    struct mem_state *st = l->st;
    size_t size = (size_t)l->m->core->n_nodes * sizeof(int);
    double cost = st->cost;
    int64_t left = mem_tree_all(&st->left);

    mem_state_set(st, ap_arena_dup(arena, st->choice, size));
    return same(st->cost, cost) && left >= 0 && mem_tree_all(&st->left) == left;
}

/* What is tried leaves the state legal, true and not more expensive. */
static void test_tries(int n)
{
    int wrong = 0, n_cheaper = 0;

    for (int i = 0; i < n; i++) {
        struct ap_arena arena = {0};
        struct mem_core m;
        struct ap_err err = {""};
        struct mem_budget budget = {.work_limit = 1000000};
        gen_state = 5000 + (uint64_t)i;
        struct contest p = gen_memory(
            &arena, gen_random(&arena, 80, 140, 4, 1000, i % 2, 0), 1 + i % 8, 100, 6);
        const int *start = NULL;
        if (!mem_core_build(&arena, &p, 0, &m, &err) && m.core->n_nodes > 9)
            start = mem_legal_run(mem_legal_new(&arena, &m, 1e9, 1), &budget);
        if (start) {
            struct mem_local *l = mem_local_new(&arena, &m, 1, true);
            double *mu = AP_NEW_N(&arena, m.n_slots + 1, double);
            mem_local_set(l, start, mem_cost(&m, start), 0, mu);
            wander(l, 100);
            double before = l->st->cost, last = before;
            for (int k = 0; k < 40; k++) {
                int v = gen_int(0, m.core->n_nodes - 1), size = gen_int(2, 40);
                mem_try_forest(l, v, size, gen_int(0, 1), false, &budget);
                wrong += l->st->cost > last + 1e-9 * last || !kept(l, &arena);
                last = l->st->cost;
            }
            n_cheaper += l->st->cost < before;
        }
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0, "what is tried stays legal");
    CHECK(n_cheaper > n / 4, "and is cheaper in the end %d of %d times", n_cheaper, n);
}

/* What the search at prices says of a reduced core. */
static bool is_sound(struct ap_arena *arena, const struct mem_core *m, double best)
{
    int *state = AP_NEW_N(arena, m->core->n_nodes + 1, int);
    double *mu = AP_NEW_N(arena, m->n_slots + 1, double);
    double cost = INFINITY, bound = m->core->base;

    if (!mem_prices(arena, m, 0, state, &cost, &bound, mu))
        return false;
    return bound <= best * (1 + 1e-9) + 1e-9 && cost >= best * (1 - 1e-9) - 1e-9 &&
           (isinf(cost) || cost == mem_cost(m, state));
}

static void test_prices(int n)
{
    int n_all = 0, n_sound = 0;

    for (int i = 0; i < n; i++) {
        const struct contest_params params = {.threads = 1};
        struct ap_arena arena = {0};
        struct ap_solution all;
        struct ap_err err = {""};
        struct mem_core m;
        gen_state = 99000 + (uint64_t)i;
        struct ap_problem costs =
            gen_random(&arena, gen_int(3, 7), gen_int(2, 12), 2 + i % 3, 1000, i % 5, 0);
        struct contest p = gen_memory(&arena, costs, 1 + i % 8, 100, 6);
        if (!contest_exhaustive(&arena, &p, &params, &all, &err) &&
            !mem_core_build(&arena, &p, 0, &m, &err) && m.n_slots > 0) {
            n_all++;
            n_sound += is_sound(&arena, &m, all.objective);
        }
        ap_arena_free(&arena);
    }
    CHECK(n_all > n / 8 && n_sound == n_all,
          "prices of memory: %d of %d answers and bounds hold", n_sound, n_all);
}

static void test_peak(void)
{
    double cost[] = {0, 1};
    const double *costs[] = {cost, cost, cost};
    int n[] = {2, 2, 2};
    struct contest_span span[] = {{0, 2}, {2, 4}, {3, 3}};
    int64_t use[] = {5, 1}, much[] = {1000, 1000};
    const int64_t *usage[] = {use, use, much};
    struct contest p = {.costs = {.n_nodes = 3, .n_strategies = n, .cost = costs},
                        .span = span,
                        .usage = usage,
                        .usage_limit = 5};
    int zero[3] = {0, 0, 0};

    CHECK(contest_peak(&p, zero) == 5, "intervals that touch do not overlap");
    CHECK(contest_legal(&p, zero), "an empty interval holds nothing");
    span[1].lo = 1;
    CHECK(contest_peak(&p, zero) == 10 && !contest_legal(&p, zero),
          "those that overlap add up");
    p.span = NULL;
    CHECK(contest_peak(&p, zero) == 0 && contest_legal(&p, zero), "no memory");
}

static void test_format(void)
{
    int wrong = 0;

    for (int i = 0; i < 50; i++) {
        struct ap_arena arena = {0};
        struct ap_buf first = {0}, second = {0};
        struct contest p = tiny(&arena, i), back;
        struct ap_err err = {""};
        gen_write(&p, 1e6, &first);
        if (contest_parse(&arena, "tiny", first.data, first.len, &back, &err))
            printf("# %d: %s\n", i, err.msg);
        gen_write(&back, 1, &second);
        wrong += first.len != second.len || memcmp(first.data, second.data, first.len);
        ap_buf_free(&first);
        ap_buf_free(&second);
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0, "what is written reads back");
}

static void test_exhaustive(void)
{
    struct ap_arena arena = {0};
    struct ap_solution s;
    struct ap_err err = {""};
    const struct contest big = {.costs = gen_random(&arena, 40, 40, 9, 10, 0, 0)};

    CHECK(contest_exhaustive(&arena, &big, &plain, &s, &err) < 0 &&
              strstr(err.msg, "1e+07"),
          "exhaustive says its limit: %s", err.msg);
    ap_arena_free(&arena);
}

int main(void)
{
    test_tiny(tap_cases(2000), tap_cases(500));
    test_late(tap_cases(100));
    test_tries(tap_cases(40));
    test_repeats();
    test_prices(400);
    test_peak();
    test_exhaustive();
    test_format();
    return tap_done();
}
