/*
 * Plans within a limit of memory: the model of what is surely held never says more than
 * a program needs; on a tiny net, for every limit at which the answer changes, the search
 * finds what trying all plans finds (on four devices up to what is good enough), and its
 * bounds hold.
 */
#include <math.h>
#include <stdlib.h>

#include "memory/memory.h"
#include "plan/microbatch.h"
#include "solve/memory/memory_search.h"
#include "random_plan.h"
#include "sample_graphs.h"
#include "tap.h"

#define MAX_PLANS 100000

/* A question about a sample on a mesh. */
struct question {
    struct ap_arena arena;
    struct ap_err err;
    struct sample sample;
    struct ap_mesh mesh;
    struct ap_cost cost;
    struct shard_params params;
    struct shard_task task;
    struct ilp_problem ip;
};

/* microbatches: 1 for a step as it is. */
static bool ask(struct question *q, const char *json, const char *mesh, int microbatches)
{
    struct shard_fold fold;

    *q = (struct question){.params = {.rounds = 12}};
    q->task = (struct shard_task){.graph = &q->sample.g,
                                  .nests = &q->sample.nests,
                                  .cost = &q->cost,
                                  .params = &q->params};
    if (load_sample(&q->arena, json, &q->sample, &q->err) ||
        ap_mesh_parse(&q->arena, mesh, &q->mesh, &q->err) ||
        ap_mesh_add_microbatches(&q->mesh, microbatches, &q->err) ||
        (q->mesh.microbatch &&
         ap_microbatch_choices(&q->arena, &q->sample.g, &q->sample.nests, microbatches,
                               &q->task.microbatch_choice, &q->err)) ||
        make_cost(&q->arena, AP_COST_DEFAULT, &q->mesh, &q->cost, &q->err))
        return false;
    shard_fold_find(&q->arena, &q->task, NULL, &fold);
    return shard_ilp_build(&q->arena, &q->task, &fold, NULL, 0, &q->ip, &q->err) == 0;
}

static void drop(struct question *q)
{
    select_free(&q->ip.builder);
    ap_cost_free(&q->cost);
    ap_arena_free(&q->arena);
}

/* ---- the model ---- */

static int64_t held_peak(struct question *q, const struct ap_memory *m, const int *choice)
{
    int64_t *held = AP_NEW_N(&q->arena, m->n_times, int64_t), peak = 0;
    ap_memory_held(m, choice, held);
    for (int t = 0; t < m->n_times; t++)
        peak = held[t] > peak ? held[t] : peak;
    return peak;
}

/* While groups run, no more than their program has in use. */
static bool is_in_use(struct question *q, const struct mem_model *m,
                      const struct ap_plan *plan, const int *choice)
{
    int64_t *held = AP_NEW_N(&q->arena, m->memory.n_times, int64_t);
    int64_t *in_use = AP_NEW_N(&q->arena, m->memory.n_times, int64_t);

    ap_memory_held(&m->memory, choice, held);
    if (mem_measure_held(plan, &q->cost, m, in_use))
        return true;
    for (int i = 0; i < q->sample.nests.n; i++) {
        const int run = m->base[i] + q->sample.nests.nest[i].n_ins;
        if (held[run] > in_use[run])
            return false;
    }
    return true;
}

static void test_model(const struct sample_graph *sg, const char *mesh, int n_seeds)
{
    struct question q;
    struct mem_model m;
    double nearest = 0;
    bool sound = true;

    if (!ask(&q, sg->json, mesh, 1)) {
        CHECK(false, "%s: %s", sg->name, q.err.msg);
        return;
    }
    mem_model_build(&q.arena, &q.ip, 0, &m);
    int *choice = AP_NEW_N(&q.arena, q.ip.problem.n_nodes, int);
    for (int seed = 1; seed <= n_seeds && sound; seed++) {
        uint64_t state = (uint64_t)seed;
        double sec;
        int64_t peak;
        for (int v = 0; v < q.ip.n_vars; v++)
            choice[v] = random_below(&state, q.ip.problem.n_strategies[v]);
        struct ap_plan plan = shard_ilp_plan(&q.ip, choice);
        for (int v = 0; v < q.sample.g.n_nodes; v++)
            plan.regather[v] = random_below(&state, 3) == 0;
        for (int c = 0; c < m.memory.n_copies; c++)
            choice[m.memory.n_vars + c] = AP_COPY_ABSENT;
        ap_memory_settle(&m.memory, plan.regather, choice);
        mem_measure(&plan, &q.cost, 0, &sec, &peak, NULL);
        int64_t held = held_peak(&q, &m.memory, choice);
        sound = !isfinite(sec) || (held <= peak && is_in_use(&q, &m, &plan, choice));
        if (isfinite(sec))
            nearest = fmax(nearest, (double)held / (double)peak);
    }
    CHECK(sound && nearest > 0.5, "%s on %s: held at most %.2f of what is needed",
          sg->name, mesh, nearest);
    drop(&q);
}

/* The price of a choice is its program's, also where copies come with microbatches. */
static void test_price(int microbatches, const char *mesh)
{
    int n_priced = 0, n_again = 0;

    for (size_t i = 0; i < sizeof sample_graphs / sizeof *sample_graphs; i++) {
        struct question q;
        struct mem_model m;
        double sec, worst = 0;
        int64_t peak;
        if (!ask(&q, sample_graphs[i].json, mesh, microbatches)) {
            drop(&q); /* what cannot be split */
            continue;
        }
        mem_model_build(&q.arena, &q.ip, 0, &m);
        int *choice = AP_NEW_N(&q.arena, q.ip.problem.n_nodes, int);
        for (int seed = 1; seed <= tap_cases(50); seed++) {
            uint64_t state = (uint64_t)seed;
            for (int v = 0; v < q.ip.n_vars; v++)
                choice[v] = random_below(&state, q.ip.problem.n_strategies[v]);
            for (int c = 0; c < m.memory.n_copies; c++)
                choice[m.memory.n_vars + c] =
                    random_below(&state, 2) ? AP_COPY_AGAIN : AP_COPY_KEPT;
            ap_memory_settle(&m.memory, NULL, choice);
            struct ap_plan plan = mem_plan_of(&m.memory, &q.ip, choice);
            mem_measure(&plan, &q.cost, 0, &sec, &peak, NULL);
            if (!isfinite(sec))
                continue;
            for (int c = 0; c < m.memory.n_copies; c++)
                n_again += choice[m.memory.n_vars + c] == AP_COPY_AGAIN;
            double score = ap_memory_score(&m.memory, choice);
            worst = fmax(worst, fabs(score - sec) / sec);
            n_priced++;
        }
        CHECK(worst < 1e-9, "%s on %s, %d microbatches: prices differ by %.2g",
              sample_graphs[i].name, mesh, microbatches, worst);
        drop(&q);
    }
    CHECK(n_priced > 0 && n_again > 0, "%d microbatches: %d prices, %d copies made twice",
          microbatches, n_priced, n_again);
}

/* At prices a choice costs what it costs and holds, and no less where all is expensive.
 */
static void test_priced(const char *mesh)
{
    int n_exact = 0, n_all = 0, n_sets = 0;
    double most = -INFINITY;

    for (size_t i = 0; i < sizeof sample_graphs / sizeof *sample_graphs; i++) {
        struct question q;
        struct mem_model m;
        struct priced_problem priced;
        if (!ask(&q, sample_graphs[i].json, mesh, 1)) {
            drop(&q);
            continue;
        }
        mem_model_build(&q.arena, &q.ip, 0, &m);
        int *choice = AP_NEW_N(&q.arena, q.ip.problem.n_nodes, int);
        int64_t *held = AP_NEW_N(&q.arena, m.memory.n_times, int64_t);
        double *before = AP_NEW_N(&q.arena, m.memory.n_times + 1, double);
        double *share = AP_NEW_N(&q.arena, m.memory.n_copies + 1, double);
        for (uint64_t seed = 1; seed <= 20; seed++) {
            uint64_t state = seed;
            double sec = 0;
            for (int t = 0; t < m.memory.n_times; t++)
                before[t + 1] = before[t] + 1e-6 * random_below(&state, 10);
            for (int v = 0; v < q.ip.n_vars; v++)
                choice[v] = random_below(&state, q.ip.problem.n_strategies[v]);
            price_problem(&q.arena, &m.memory, before, 1, share, &priced);
            priced_states(&m.memory, &priced, choice);
            sec = ap_memory_score(&m.memory, choice);
            ap_memory_held(&m.memory, choice, held);
            for (int t = 0; t < m.memory.n_times; t++)
                sec += (before[t + 1] - before[t]) * (double)held[t];
            int *start = priced_start(&q.arena, &m.memory, &priced, choice);
            double value = ap_problem_score(&priced.problem, start);
            if (sec >= AP_FORBIDDEN)
                continue;
            most = fmax(most, value / sec - 1);
            n_exact += value >= sec * (1 - 1e-9);
            n_sets += priced.n_sets;
            n_all++;
        }
        drop(&q);
    }
    CHECK(most < 1e-9 && n_exact > n_all * 0.9 && n_sets > 0,
          "%s: priced %.2g too high, %d of %d exact, %d sets", mesh, most, n_exact, n_all,
          n_sets);
}

/* ---- prices, and what they prove ---- */

/* A mixture of plans keeps the limit at all times, not only where one of them peaks. */
static void test_mixture(void)
{
    struct ap_arena arena = {0};
    int64_t held[2][3] = {{20, 18, 0}, {0, 4, 12}};
    struct search_cut cut[] = {{.sec = 1, .held = held[0]}, {.sec = 2, .held = held[1]}};
    int time[3] = {0};
    double price[3] = {0};
    const struct ap_memory model = {.n_times = 3};
    struct memory_search ms = {.arena = &arena,
                               .cut = cut,
                               .n_cuts = 2,
                               .time = time,
                               .n_times = 1,
                               .unit = 1,
                               .highest = 100,
                               .model = &model};
    const double theta = search_prices(&ms, 10, price);

    CHECK(fabs(theta - 11. / 7) < 1e-9, "a mixture is worth %.6f", theta);
    CHECK(ms.n_times == 2 && ms.time[1] == 1 && price[0] < 1e-9 && price[1] > 0,
          "%d times are priced", ms.n_times);
    ap_arena_free(&arena);
}

/* The priced problem's optimum and a choice that has it; -1: not proven. */
static double solve_priced(struct memory_search *ms, const double *price, int **choice)
{
    const double per_byte = ms->unit / (double)ms->task->limit;
    struct priced_problem priced;
    struct ap_solve_params params = {0};
    struct ap_solution sol = {0};
    struct ap_err err = {0};

    search_price_problem(ms->arena, ms, &ms->whole, price, per_byte, 1, &priced);
    if (ap_solve_exact(ms->arena, &priced.problem, &params, &sol, &err) ||
        sol.bound < sol.objective * (1 - 1e-9))
        return -1;
    *choice = sol.choice;
    priced_states(ms->model, &priced, *choice);
    return sol.objective;
}

/* However groups are spread over pieces, these prove no more than the optimum; all in one
 * prove all of it. */
static void test_pieces(const char *mesh)
{
    int n_all = 0, n_whole = 0, n_good = 0;
    double most = -INFINITY;

    for (size_t i = 0; i < sizeof sample_graphs / sizeof *sample_graphs; i++) {
        struct question q;
        if (!ask(&q, sample_graphs[i].json, mesh, 1)) {
            drop(&q);
            continue;
        }
        struct mem_model m;
        int time[3], *cell = AP_NEW_N(&q.arena, q.ip.n_vars, int), *choice;
        double price[3];
        mem_model_build(&q.arena, &q.ip, 0, &m);
        struct ap_memory_task task = {.model = &m.memory, .limit = 1000000, .cell = cell};
        struct memory_search ms = {.arena = &q.arena,
                                   .task = &task,
                                   .model = &m.memory,
                                   .unit = 1,
                                   .time = time,
                                   .n_times = 3};
        ms.whole = (struct search_view){
            &m.memory, AP_NEW_N(&q.arena, m.memory.n_copies + 1, double), false};
        for (uint64_t seed = 1; seed <= 10; seed++) {
            uint64_t state = seed;
            task.n_cells = (int)(seed % 4);
            for (int v = 0; v < q.ip.n_vars; v++)
                cell[v] = random_below(&state, task.n_cells + 1) - 1;
            for (int j = 0; j < 3; j++) {
                time[j] = random_below(&state, m.memory.n_times);
                price[j] = 1e-2 * random_below(&state, 10);
            }
            const double optimum = solve_priced(&ms, price, &choice);
            if (optimum <= 0)
                continue;
            const double bound = search_bound_pieces(&ms, price, choice);
            most = fmax(most, bound / optimum - 1);
            n_all++;
            n_good += bound > 0.9 * optimum;
            n_whole += task.n_cells == 0 && bound > optimum * (1 - 1e-6);
        }
        drop(&q);
    }
    CHECK(n_all > 0 && most < 1e-9 && n_whole >= n_all / 5 && 2 * n_good > n_all,
          "%s: %.2g too high, of %d bounds %d good, %d of one piece tight", mesh, most,
          n_all, n_good, n_whole);
}

/* ---- the search ---- */

/* clang-format off */
static const char tiny[] =
    DOC(PARAM(0, "weight", "f32[64,96]") "," PARAM(1, "weight", "f32[96,32]") ","
        PARAM(2, "input", "f32[48,64]")
        NODE("dot", "h", "2,0", "f32[48,96]",
             ",\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]")
        NODE("tanh", "r", "3", "f32[48,96]", "")
        NODE("dot", "y", "4,1", "f32[48,32]",
             ",\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]")
        NODE("constant", "zero", "", "f32[]", ",\"value\":0")
        NODE("reduce", "loss", "5,6", "f32[]", ",\"dimensions\":[0,1],\"to_apply\":0"),
        "{\"node\":7,\"role\":\"loss\"}");
/* clang-format on */

struct tried {
    double sec;
    int64_t peak;
};

static int by_peak(const void *x, const void *y)
{
    const struct tried *a = x, *b = y;
    if (a->peak != b->peak)
        return a->peak < b->peak ? -1 : 1;
    return (a->sec > b->sec) - (a->sec < b->sec);
}

/* All plans of the space, by peak. */
static int try_all(struct question *q, struct tried *all)
{
    int *choice = AP_NEW_N(&q->arena, q->ip.problem.n_nodes, int), n = 0, v = 0;

    while (v < q->ip.n_vars && n < MAX_PLANS) {
        struct ap_mark mark = ap_arena_mark(&q->arena);
        struct ap_plan plan = shard_ilp_plan(&q->ip, choice);
        mem_measure(&plan, &q->cost, 0, &all[n].sec, &all[n].peak, NULL);
        n += isfinite(all[n].sec);
        ap_arena_rewind(&q->arena, mark);
        for (v = 0; v < q->ip.n_vars; v++) {
            if (++choice[v] < q->ip.problem.n_strategies[v])
                break;
            choice[v] = 0;
        }
    }
    qsort(all, (size_t)n, sizeof *all, by_peak);
    return n;
}

/* slack: how much more expensive than the best the answer may be, as a part of it. */
static void check_limit(struct question *q, int64_t limit, double best, double slack)
{
    struct shard_answer a;
    struct ap_err err = {{0}};
    double sec = 0;
    int64_t peak = 0;

    q->task.memory_bytes = limit;
    int rc = shard_ilp(&q->arena, &q->task, &a, &err);
    if (rc == 0)
        mem_measure(&a.plan, &q->cost, 0, &sec, &peak, NULL);
    if (isinf(best))
        CHECK(rc != 0, "%lld bytes: %s", (long long)limit, err.msg);
    else
        CHECK(rc == 0 && peak <= limit && a.bound <= best * (1 + 1e-9) &&
                  a.objective >= best * (1 - 1e-9) && a.objective <= best * (1 + slack) &&
                  sec == a.objective,
              "%lld bytes: %.9g found, %.9g is best, the bound is %.9g", (long long)limit,
              rc ? NAN : a.objective, best, a.bound);
}

static void test_all_plans(const char *mesh, double slack)
{
    struct tried *all = ap_xrealloc(NULL, MAX_PLANS * sizeof *all);
    struct question q;
    double best = INFINITY;

    if (!ask(&q, tiny, mesh, 1)) {
        CHECK(false, "tiny: %s", q.err.msg);
        free(all);
        return;
    }
    int n = try_all(&q, all), n_steps = 0;
    CHECK(n > 100 && n < MAX_PLANS, "%s: %d plans", mesh, n);
    check_limit(&q, all[0].peak - 1, INFINITY, slack);
    for (int i = 0; i < n; i++) {
        if (all[i].sec >= best)
            continue;
        if (i > 0 && all[i].peak - 1 >= all[0].peak) /* just too little for this one */
            check_limit(&q, all[i].peak - 1, best, slack);
        best = all[i].sec;
        check_limit(&q, all[i].peak, best, slack);
        n_steps++;
    }
    CHECK(n_steps > 1, "%s: %d limits matter", mesh, n_steps);
    drop(&q);
    free(all);
}

static void test_sizes(void)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"4096", 4096},
                 {"16GiB", INT64_C(17179869184)},
                 {"1.5kB", 1500},
                 {"32 GiB", -1},
                 {"0.5TiB", INT64_C(549755813888)},
                 {"-1", -1},
                 {"1.5", -1},
                 {"GiB", -1},
                 {"1e30", -1},
                 {"0", -1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK(mem_size_parse(sizes[i].text) == sizes[i].bytes, "size %s", sizes[i].text);
}

int main(void)
{
    for (size_t i = 0; i < sizeof sample_graphs / sizeof *sample_graphs; i++) {
        test_model(&sample_graphs[i], "2", tap_cases(100));
        test_model(&sample_graphs[i], "2x2", tap_cases(200));
    }
    test_priced("2x2");
    test_price(1, "2");
    test_price(1, "2x2");
    test_price(2, "2");
    test_price(4, "2x2");
    test_mixture();
    test_pieces("2x2");
    test_all_plans("2", 1e-9);
    test_all_plans("4", 2e-3);
    test_sizes();
    return tap_done();
}
