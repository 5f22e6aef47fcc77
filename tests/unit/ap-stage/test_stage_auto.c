/*
 * `auto` against all plans of tiny instances by simulated time, its bound, and that the
 * other rows are never better. With an argument: times on large synthetic instances.
 */
#include <time.h>

#include "search/auto.h"
#include "search/space.h"
#include "stage_oracle.h"
#include "tap.h"

#define N_CASES 300

static struct random_case cases;

struct tally {
    int n_equal, n_within, n_plans, n_infeasible, n_agree, bad_bound, n_proven, rows_ok;
    int n_several, n_replicated, n_schedule[AP_N_SCHEDULES];
    double worst;
};

static bool is_complete(const struct plan_instance *inst, const struct plan_answer *a)
{
    int at = 0;
    for (int s = 0; s < a->n_stages; s++) {
        if (a->stage[s].lo != at || !a->stage[s].point)
            return false;
        at = a->stage[s].hi + 1;
    }
    return at == inst->n_blocks;
}

static void one(uint64_t seed, struct tally *t)
{
    struct plan_params params = {.schedule = -1, .imbalance = 0.08, .n_kept = 64};
    struct plan_answer all = {0}, found = {0};
    struct ap_arena arena = {0};
    struct ap_err err = {0}, why = {0};

    case_random(&cases, seed, seed % 4 == 0 ? 8 : 6);
    int rc = plan_exhaustive(&arena, &cases.inst, &params, &all, &err);
    int rc_auto = plan_auto(&arena, &cases.inst, &params, &found, &why);
    if (rc < 0 || rc_auto < 0)
        printf("# seed %d: %s %s\n", (int)seed, err.msg, why.msg);
    t->n_agree += rc == rc_auto;
    t->n_infeasible += rc == 1;
    if (rc == 0 && rc_auto == 0) {
        t->n_plans++;
        double over = found.step_sec / all.step_sec;
        t->rows_ok += is_complete(&cases.inst, &found) || found.stage[0].set;
        t->n_several += all.n_stages > 1;
        t->n_replicated += all.replicas > 1;
        t->n_schedule[all.schedule]++;
        t->n_equal += over <= 1 + 1e-9;
        t->n_within += over <= 1.01;
        t->worst = fmax(t->worst, over);
        if (over > 1.01)
            printf("# seed %d: %g of the best\n", (int)seed, over);
        t->bad_bound += found.bound > all.step_sec * (1 + 1e-12);
        if (found.bound > all.step_sec * (1 + 1e-12))
            printf("# seed %d: bound %g above %g\n", (int)seed, found.bound,
                   all.step_sec);
        for (int i = 0; i < cases.inst.n_values; i++) /* bounds count no sends */
            cases.value[i].forward_bytes = cases.value[i].backward_bytes = 0;
        t->n_proven += plan_auto(&arena, &cases.inst, &params, &found, &why) == 0 &&
                       found.bound >= found.step_sec * (1 - 1e-9);
    }
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

static void random_instances(void)
{
    const int n = tap_cases(N_CASES);
    struct tally t = {0};
    for (int seed = 1; seed <= n; seed++)
        one((uint64_t)seed, &t);
    CHECK(t.n_agree == n, "auto has a plan where there is one: %d of %d", t.n_agree, n);
    CHECK(t.n_plans >= n * 2 / 3 && t.n_infeasible >= n / 60,
          "%d instances have plans, %d none", t.n_plans, t.n_infeasible);
    printf("# best plans: %d replicated; gpipe %d, 1f1b %d, interleaved %d\n",
           t.n_replicated, t.n_schedule[AP_SCHEDULE_GPIPE],
           t.n_schedule[AP_SCHEDULE_1F1B], t.n_schedule[AP_SCHEDULE_INTERLEAVED]);
    CHECK(t.n_several >= n / 3, "%d of the best have several stages", t.n_several);
    CHECK(t.n_within == t.n_plans, "within 1 %% of the best plan: %d of %d, worst %g",
          t.n_within, t.n_plans, t.worst);
    CHECK(t.n_equal * 100 >= 95 * t.n_plans, "equal to the best plan: %d of %d",
          t.n_equal, t.n_plans);
    CHECK(t.bad_bound == 0, "no bound is above the best plan");
    CHECK(t.n_proven * 100 >= 90 * t.n_plans, "without sends: proven %d of %d",
          t.n_proven, t.n_plans);
    CHECK(t.rows_ok == t.n_plans, "every plan is complete");
}

/* Instances whose best plan is interleaved in a configuration in which no plan with one
 * stage on a device is near it. */
static void chunks_alone(void)
{
    static const uint64_t seeds[] = {573, 652, 746};
    const int n = sizeof seeds / sizeof *seeds;
    struct tally t = {0};
    for (int i = 0; i < n; i++)
        one(seeds[i], &t);
    CHECK(t.n_plans == n && t.n_equal == n && t.bad_bound == 0,
          "chunks are looked at on their own: %d of %d equal, %d bounds too high",
          t.n_equal, n, t.bad_bound);
}

/* Submeshes are slower than single devices, of which some are better left over. */
static void chunks_on_a_part(void)
{
    int equal = 0, n = 0, part = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct plan_params params = {.schedule = AP_SCHEDULE_INTERLEAVED, .n_kept = 64};
        struct plan_answer all = {0}, found = {0};
        struct ap_arena arena = {0};
        struct ap_err err = {0}, why = {0};
        int used = 0;
        case_random(&cases, 5000 + seed, 6);
        cases.oracle.loss = 0.9;
        cases.oracle.launch_sec = 0.05; /* copies save little */
        cases.inst.memory_bytes = 0;
        int rc = plan_exhaustive(&arena, &cases.inst, &params, &all, &err);
        int rc_auto = plan_auto(&arena, &cases.inst, &params, &found, &why);
        n += rc == 0;
        equal += rc == 0 && rc_auto == 0 &&
                 found.objective <= all.objective * (1 + 1e-9) &&
                 found.bound <= all.objective * (1 + 1e-12);
        for (int s = 0; rc == 0 && s < plan_groups(&all); s++)
            used += all.stage[s].hosts * all.stage[s].devices * all.replicas;
        part += rc == 0 && used < cases.inst.n_hosts * cases.inst.n_devices;
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(n >= 10 && equal == n, "chunks on slow submeshes: %d of %d equal", equal, n);
    CHECK(part >= 3, "%d leave devices over", part);
}

/* Inference, given schedules and given numbers of stages, likewise. */
static void asked_for(const char *what, int schedule, int n_stages, bool inference,
                      bool latency)
{
    int equal = 0, n = 0, bad = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct plan_params params = {.schedule = schedule,
                                     .n_stages = n_stages,
                                     .latency = latency,
                                     .imbalance = 0.08,
                                     .n_kept = 64};
        struct plan_answer all = {0}, found = {0};
        struct ap_arena arena = {0};
        struct ap_err err = {0}, why = {0};
        case_random(&cases, 3000 + seed, 6);
        cases.oracle.inference = cases.inst.inference = inference;
        int rc = plan_exhaustive(&arena, &cases.inst, &params, &all, &err);
        bad += rc != plan_auto(&arena, &cases.inst, &params, &found, &why);
        if (rc == 0) {
            n++;
            equal += found.objective <= all.objective * (1 + 1e-9) &&
                     found.bound <= all.objective * (1 + 1e-12) &&
                     (n_stages == 0 || found.n_stages == n_stages) &&
                     (schedule < 0 || (int)found.schedule == schedule);
        }
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(n >= 3 && equal == n && bad == 0, "%s: %d of %d equal", what, equal, n);
}

/* A U: each block of the way down is read by its mirror on the way up; and two towers
 * whose ends meet in the last block. */
static void not_chains(void)
{
    int good = 0, all = 0, sets = 0;
    for (int kind = 0; kind < 2; kind++)
        for (int devices = 4; devices <= 8; devices *= 2) {
            struct plan_params params = {.schedule = -1, .imbalance = 0.3, .n_kept = 64};
            struct plan_answer best = {0}, line = {0}, dag = {0};
            struct ap_arena arena = {0};
            struct ap_err err = {0};
            case_layers(&cases, 9, 1, devices, 16);
            for (int b = 0; b < 8; b++) /* towers: even and odd blocks */
                cases.to[b][0] = kind ? (b + 2 < 8 ? b + 2 : 8) : b + 1;
            for (int i = 0; i < 4 && !kind; i++) {
                int n = cases.inst.n_values++;
                cases.value[n] = cases.value[0];
                cases.value[n].from = i;
                cases.to[n][0] = 8 - i;
                cases.value[n].to = cases.to[n];
            }
            cases.inst.twin = NULL;
            int rc = plan_auto(&arena, &cases.inst, &params, &best, &err);
            all++;
            good += rc == 0;
            if (plan_alpa(&arena, &cases.inst, &params, &line, &err) == 0)
                good -= line.step_sec < best.step_sec;
            params.n_stages = 2;
            if (plan_rhino(&arena, &cases.inst, &params, &dag, &err) == 0) {
                good -= dag.step_sec < best.step_sec;
                sets += dag.stage[0].set != NULL;
            }
            oracle_free(&cases.oracle);
            ap_arena_free(&arena);
        }
    CHECK(good == all, "U and towers on 4 and 8 devices: auto is no worse: %d of %d",
          good, all);
    CHECK(sets > 0, "rhino's stages of the towers are no runs: %d", sets);
}

/* Two towers with much to send: their stages are no runs. Of no tolerance rhino's plan is
 * below the bound, or better where auto hears it. */
static void towers_are_sets(void)
{
    static const double tolerance[] = {0.2, 0.5, 1, 100};
    const int n_reported = sizeof tolerance / sizeof *tolerance;
    int good = 0, sets = 0;
    struct plan_params params = {.schedule = -1, .imbalance = 0.08, .n_kept = 64};
    struct plan_answer best = {0};
    struct ap_arena arena = {0};
    struct ap_err err = {0};

    case_layers(&cases, 9, 1, 2, 4);
    cases.inst.memory_bytes = 0;
    for (int b = 0; b < 8; b++) {
        cases.to[b][0] = b + 2 < 8 ? b + 2 : 8;
        cases.value[b].forward_bytes = (int64_t)1 << 45;
    }
    cases.inst.twin = NULL;
    params.n_stages = 2;
    int rc = plan_auto(&arena, &cases.inst, &params, &best, &err);
    for (int i = 0; i < n_reported && rc == 0; i++) {
        struct plan_answer dag = {0};
        params.imbalance = tolerance[i];
        if (plan_rhino(&arena, &cases.inst, &params, &dag, &err) != 0)
            continue;
        good += best.bound > 0 && best.bound <= dag.step_sec &&
                best.step_sec <= dag.step_sec * (1 + 1e-12);
        sets += dag.stage[0].set || dag.stage[1].set;
    }
    CHECK(good == n_reported, "towers: auto is no worse: %d", good);
    CHECK(sets > 0, "%d plans of sets", sets);
    CHECK(rc == 0 && best.stopped && !strcmp(best.stopped, "all runs of blocks"),
          "not all plans were looked at: %s", best.stopped ? best.stopped : err.msg);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* A bound of plans whose sends are estimates is below all plans if sends take no time. */
static void guessed_sends(void)
{
    int n = 0, valid = 0, sends = 0, ordered = 0, others = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct plan_params params = {.schedule = -1, .imbalance = 0.3, .n_kept = 64};
        struct plan_answer found = {0}, all = {0};
        struct ap_arena arena = {0};
        struct ap_err err = {0};
        case_random(&cases, 7000 + seed, 6);
        struct plan_instance bare = cases.inst;
        bare.n_values = 0;
        if (plan_auto(&arena, &cases.inst, &params, &found, &err) == 0 &&
            plan_exhaustive(&arena, &bare, &params, &all, &err) == 0) {
            double last = found.step_sec;
            n++;
            sends += all.step_sec < found.step_sec * (1 - 1e-9);
            valid += found.bound > 0 && found.bound <= all.step_sec * (1 + 1e-12);
            others += found.n_others;
            for (int i = 0; i < found.n_others; i++) {
                ordered += found.others[i].step_sec >= last;
                last = found.others[i].step_sec;
            }
        }
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(n > 20 && valid == n && sends > 0,
          "bounds hold at any price of sends: %d of %d, %d with sends", valid, n, sends);
    CHECK(others > n && ordered == others, "%d plans come behind the best", others);
}

/* Slow updates, slow sums, and a plan's step without sends: which is below is counted. */
static int is_below(struct ap_arena *arena, const struct plan_instance *bare,
                    const struct plan_answer *plan, double slower)
{
    struct plan_answer a = plan_copy(arena, plan);
    struct ap_err err = {0};

    for (int s = 0; s < a.n_stages; s++) {
        struct plan_point *p = ap_arena_dup(arena, a.stage[s].point, sizeof *p);
        p->update_sec *= s % 2 ? slower : 1;
        p->sync_sec *= s % 3 ? slower : 1;
        a.stage[s].point = p;
    }
    double least = plan_least_bare(&a);
    return plan_judge(arena, bare, &a, &err) == 0 && least > 0 && least <= a.step_sec;
}

static void bare_steps(void)
{
    int n = 0, below = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct plan_params params = {.schedule = -1, .imbalance = 0.3, .n_kept = 64};
        struct plan_answer found = {0};
        struct ap_arena arena = {0};
        struct ap_err err = {0};
        case_random(&cases, 9000 + seed, 6);
        struct plan_instance bare = cases.inst;
        bare.n_values = 0;
        if (plan_auto(&arena, &bare, &params, &found, &err) == 0 && !bare.inference)
            for (int i = -1; i < found.n_others; i++)
                for (double slower = 1; slower < 2000; slower *= 10) {
                    n++;
                    below += is_below(&arena, &bare, i < 0 ? &found : &found.others[i],
                                      slower);
                }
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(n > 500 && below == n, "least steps without sends: %d of %d hold", below, n);
}

static void same_bytes(void)
{
    int same = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct plan_answer a[2] = {{0}, {0}};
        struct ap_arena arena = {0};
        int rc[2];
        for (int k = 0; k < 2; k++) {
            struct plan_params params = {.schedule = -1, .imbalance = 0.08, .n_kept = 64};
            struct ap_err err = {0};
            case_random(&cases, 1000 + seed, 6);
            rc[k] = plan_auto(&arena, &cases.inst, &params, &a[k], &err);
            bool is_same =
                k == 0 || (rc[0] == rc[1] && a[0].step_sec == a[1].step_sec &&
                           a[0].bound == a[1].bound && a[0].n_stages == a[1].n_stages &&
                           a[0].n_asked == a[1].n_asked);
            for (int s = 0; k && is_same && rc[0] == 0 && s < a[0].n_stages; s++)
                is_same = a[0].stage[s].hi == a[1].stage[s].hi &&
                          a[0].stage[s].devices == a[1].stage[s].devices &&
                          a[0].stage[s].first_host == a[1].stage[s].first_host &&
                          a[0].stage[s].first_device == a[1].stage[s].first_device;
            same += k && is_same;
            oracle_free(&cases.oracle);
        }
        ap_arena_free(&arena);
    }
    CHECK(same == 20, "the same plan twice: %d of 20", same);
}

static void rows_are_not_better(void)
{
    int worse = 0, n = 0;
    case_layers(&cases, 12, 2, 8, 64);
    struct plan_params params = {
        .schedule = -1, .imbalance = 0.08, .epsilon_sec = 1e-6, .n_kept = 64};
    struct ap_arena arena = {0};
    struct plan_answer best = {0};
    struct ap_err err = {0};
    cases.inst.memory_bytes *= 4;
    int rc = plan_auto(&arena, &cases.inst, &params, &best, &err);
    CHECK(rc == 0, "12 layers on 2x8: %s", err.msg);
    for (const struct plan_algorithm *row = plan_algorithms(); row->name; row++) {
        struct plan_answer a = {0};
        struct ap_err why = {0};
        if (!row->run || !strcmp(row->name, "exhaustive"))
            continue;
        int r = row->run(&arena, &cases.inst, &params, &a, &why);
        printf("# %s: %d, %g s, %s\n", row->name, r, a.step_sec, why.msg);
        n += r == 0;
        worse += r == 0 && a.step_sec < best.step_sec;
    }
    CHECK(n >= 6 && worse == 0, "of %d rows with a plan none is faster", n);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* 48 layers on 8x8: the bound is near, and not everything is asked for. */
static void a_large_one(void)
{
    struct plan_params params = {.schedule = -1, .imbalance = 0.08, .n_kept = 64};
    struct ap_arena arena = {0};
    struct plan_answer a = {0};
    struct ap_err err = {0};

    case_layers(&cases, 48, 8, 8, 64);
    cases.inst.memory_bytes *= 16;
    int rc = plan_auto(&arena, &cases.inst, &params, &a, &err);
    CHECK(rc == 0 && a.bound > 0 && a.bound <= a.step_sec && a.step_sec <= 1.25 * a.bound,
          "48 layers on 64 devices: %g s, at least %g s %s", a.step_sec, a.bound,
          err.msg);
    CHECK(cases.oracle.n_asked < 8000, "%lld fronts were asked for",
          (long long)cases.oracle.n_asked);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

static double cpu_sec(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void measure(const char *name)
{
    static const int shape[][4] = {{16, 8, 8, 64},
                                   {48, 8, 8, 64},
                                   {96, 128, 8, 1024},
                                   {96, 512, 8, 1024},
                                   {256, 4, 8, 256}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        struct plan_params params = {
            .schedule = -1, .imbalance = 0.08, .epsilon_sec = 1e-6, .n_kept = 64};
        struct ap_arena arena = {0};
        struct plan_answer a = {0};
        struct ap_err err = {0};
        case_layers(&cases, shape[i][0], shape[i][1], shape[i][2], shape[i][3]);
        cases.inst.memory_bytes *= shape[i][1] < 100 ? 16 : 1;
        double from = cpu_sec();
        int rc = case_algorithm(name)->run(&arena, &cases.inst, &params, &a, &err);
        printf("# %s %dx%d: rc %d, %.3f s cpu, step %g s, bound %g s, %d stages, B %d, R "
               "%d, %s x%d, asks %lld, plans %lld, %s %s\n",
               name, shape[i][0], shape[i][1] * shape[i][2], rc, cpu_sec() - from,
               a.step_sec, a.bound, a.n_stages, (int)a.microbatches, a.replicas,
               ap_schedule_names[a.schedule], a.chunks, (long long)cases.oracle.n_asked,
               (long long)a.n_plans, a.stopped ? a.stopped : "", err.msg);
        fflush(stdout);
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
}

/* Who has several questions asks them at once, the same ones as one by one. */
static void asks_together(void)
{
    static const char *const names[] = {"auto", "alpa", "intra-only"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct plan_algorithm *row = case_algorithm(names[i]);
        const struct plan_params params = {.schedule = AP_SCHEDULE_1F1B};
        double objective[2] = {0}, bound[2] = {0};
        int64_t asked[2] = {0}, waves = 0, alone = 0;
        for (int together = 0; together < 2; together++) {
            struct ap_arena arena = {0};
            struct plan_answer a = {0};
            struct ap_err err = {0};
            case_layers(&cases, 12, 4, 8, 64);
            cases.inst.ahead = together ? oracle_ahead : NULL;
            if (row->run(&arena, &cases.inst, &params, &a, &err) == 0) {
                objective[together] = a.objective;
                bound[together] = a.bound;
            }
            asked[together] = cases.oracle.n_asked;
            waves = cases.oracle.n_waves;
            alone = cases.oracle.n_alone;
            oracle_free(&cases.oracle);
            ap_arena_free(&arena);
        }
        CHECK(objective[0] > 0 && objective[0] == objective[1] && bound[0] == bound[1],
              "%s: the same answer", names[i]);
        CHECK(asked[0] == asked[1] && alone * 20 <= asked[1] && waves * 3 <= asked[1],
              "%s: %lld questions one by one, %lld in %lld waves, %lld alone", names[i],
              (long long)asked[0], (long long)asked[1], (long long)waves,
              (long long)alone);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        measure(argv[1]);
        return 0;
    }
    random_instances();
    chunks_alone();
    chunks_on_a_part();
    asked_for("inference, throughput", -1, 0, true, false);
    asked_for("inference, latency", -1, 0, true, true);
    asked_for("gpipe", AP_SCHEDULE_GPIPE, 0, false, false);
    asked_for("1f1b", AP_SCHEDULE_1F1B, 0, false, false);
    asked_for("interleaved", AP_SCHEDULE_INTERLEAVED, 0, false, false);
    asked_for("2 stages", -1, 2, false, false);
    asked_for("3 stages", -1, 3, false, false);
    not_chains();
    towers_are_sets();
    guessed_sends();
    bare_steps();
    same_bytes();
    rows_are_not_better();
    a_large_one();
    asks_together();
    return tap_done();
}
