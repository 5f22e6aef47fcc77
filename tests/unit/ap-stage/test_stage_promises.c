/*
 * What the search promises of two questions, on random instances that are too large to be
 * searched whole: more memory, and no number of stages, never make the plan slower, and
 * no plan of another question is a better start.
 */
#include "search/auto.h"
#include "stage_oracle.h"
#include "tap.h"

#define N_CASES 200

static struct random_case cases;

/* More blocks and devices than a tree of so few nodes ends with. */
static void case_many(uint64_t seed)
{
    static const int shape[][2] = {{1, 8}, {2, 4}, {4, 4}, {2, 8}, {3, 4}, {4, 8}};
    case_random(&cases, seed, 1);
    const int *s = shape[case_int(&cases, 0, 5)];
    const int n = case_int(&cases, 8, 20);
    double total = 0, act = 0;

    for (int b = 0; b < n; b++) {
        cases.flops[b] = case_num(&cases, 0.2, 2);
        cases.n_ops[b] = 1;
        cases.oracle.sec[b] = cases.flops[b] * 0.1;
        cases.oracle.weight_bytes[b] = (int64_t)case_num(&cases, 1e8, 4e8);
        cases.oracle.activation_bytes[b] = (int64_t)case_num(&cases, 1e8, 2e9);
        total += (double)cases.oracle.weight_bytes[b];
        act += (double)cases.oracle.activation_bytes[b];
    }
    case_cluster(&cases, s[0], s[1]);
    case_values(&cases, n, 30, case_num(&cases, 0, 1e8));
    for (int i = 0; i < 5; i++)
        cases.microbatches[i] = (int64_t)1 << i;
    case_instance(&cases, n, 5);
    cases.inst.least = oracle_least;
    cases.inst.memory_bytes =
        (int64_t)((total + act / 4) * case_num(&cases, 0.3, 1.2) / (double)(s[0] * s[1]));
}

/* Step of the plan; INFINITY: none fits. */
static double step_of(struct ap_arena *arena, int64_t memory, int n_stages,
                      const struct plan_outline *start, struct plan_answer *a)
{
    const struct plan_params params = {.schedule = -1,
                                       .imbalance = 0.08,
                                       .n_kept = 64,
                                       .n_stages = n_stages,
                                       .work_limit = 500000,
                                       .given = start};
    struct plan_instance inst = cases.inst;
    struct ap_err err = {0};

    inst.memory_bytes = memory;
    return plan_auto(arena, &inst, &params, a, &err) == 0 ? a->step_sec : INFINITY;
}

static struct plan_outline outline_of(const struct plan_answer *a)
{
    return (struct plan_outline){.n_blocks = cases.inst.n_blocks,
                                 .schedule = (int)a->schedule,
                                 .chunks = a->chunks,
                                 .microbatches = a->microbatches,
                                 .replicas = a->replicas,
                                 .n_stages = a->n_stages,
                                 .stage = a->stage};
}

/* Plans of questions that have fewer answers. */
struct tally {
    int n, memory, stages, start;
    double worst[3];
};

static void one(uint64_t seed, struct tally *t)
{
    struct ap_arena arena = {0};
    struct plan_answer base = {0}, other = {0}, best = {0};

    case_many(seed);
    const int64_t m = cases.inst.memory_bytes;
    const double step = step_of(&arena, m, 0, NULL, &base);
    double least = step, over[3] = {1, 1, 1};
    best = base;
    for (int k = 1; k <= 8; k *= 2) {
        const double its = step_of(&arena, m, k, NULL, &other);
        over[1] = fmax(over[1], isfinite(its) ? step / its : 1);
        if (its < least) {
            least = its;
            best = other;
        }
    }
    for (int k = 1; k <= 2; k++) {
        const double its = step_of(&arena, m - m * k / 8, 0, NULL, &other);
        over[0] = fmax(over[0], isfinite(its) ? step / its : 1);
        if (its < least) {
            least = its;
            best = other;
        }
    }
    if (isfinite(least)) {
        const struct plan_outline start = outline_of(&best);
        over[2] = step / step_of(&arena, m, 0, &start, &other);
        t->n++;
    }
    t->memory += over[0] > 1 + 1e-9;
    t->stages += over[1] > 1 + 1e-9;
    t->start += over[2] > 1 + 1e-9;
    for (int i = 0; i < 3; i++)
        t->worst[i] = fmax(t->worst[i], over[i]);
    if (over[0] > 1 + 1e-9 || over[1] > 1 + 1e-9 || over[2] > 1 + 1e-9)
        printf("# seed %d: %d blocks on %dx%d: %.5f %.5f %.5f\n", (int)seed,
               cases.inst.n_blocks, cases.inst.n_hosts, cases.inst.n_devices, over[0],
               over[1], over[2]);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

int main(void)
{
    struct tally t = {.worst = {1, 1, 1}};
    const int n = tap_cases(N_CASES);

    for (int seed = 1; seed <= n; seed++)
        one((uint64_t)seed, &t);
    CHECK(t.n > n / 2, "%d of %d have plans", t.n, n);
    CHECK(t.memory == 0, "less memory has a better plan: %d, worst %g", t.memory,
          t.worst[0]);
    CHECK(t.stages == 0, "a number of stages has a better plan: %d, worst %g", t.stages,
          t.worst[1]);
    CHECK(t.start == 0, "a start has a better plan: %d, worst %g", t.start, t.worst[2]);
    return tap_done();
}
