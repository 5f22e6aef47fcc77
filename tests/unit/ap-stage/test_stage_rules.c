/*
 * What RaNNC's and Rhino's papers say of their searches: which microbatches and replicas
 * are tried, what uneven replicas are good for, which proposal is taken.
 */
#include "planners/rhino.h"
#include "search/space.h"
#include "stage_oracle.h"
#include "tap.h"

static struct random_case cases;

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

/* ---- rannc ---- */

#define BATCH 256

/* The most microbatches that some stage runs with, by replicas; nothing runs with so few
 * that the first search takes them. */
struct trace {
    int64_t most[5];
};

static int ask_traced(void *oracle, const struct plan_ask *ask,
                      const struct plan_front **front, struct ap_err *err)
{
    static const struct plan_front none;
    struct trace *t = oracle;

    *front = &none;
    if (ask->microbatches * ask->replicas > BATCH || ask->microbatches <= 32)
        return 0;
    if (ask->microbatches > t->most[ask->replicas])
        t->most[ask->replicas] = ask->microbatches;
    return oracle_ask(&cases.oracle, ask, front, err);
}

static void rannc_loops(void)
{
    static const struct plan_rannc_loop want[3] = {
        {1, 8, 4, 1, 8}, {2, 16, 2, 9, 16}, {4, 32, 1, 17, 32}};
    struct plan_rannc_loop loop[32];
    int n = plan_rannc_loops(4, 8, loop);
    for (int i = 0; i < n; i++)
        CHECK(i < 3 && memcmp(&loop[i], &want[i], sizeof want[i]) == 0,
              "rannc algorithm 2, on 4x8: %d hosts, %d devices, %d replicas, %d to %d "
              "stages",
              loop[i].hosts, loop[i].devices, loop[i].replicas, loop[i].first_stages,
              loop[i].last_stages);
    CHECK(n == 3, "rannc algorithm 2, on 4x8: %d sizes of a replica", n);

    struct ap_arena arena = {0};
    const struct plan_params params = {.schedule = -1, .search_all = true};
    struct plan_answer a = {0};
    struct trace trace = {0};
    struct ap_err err = {0};
    int64_t doubled[9];
    case_random(&cases, 1, 1);
    case_cluster(&cases, 4, 8);
    case_values(&cases, 18, 0, 1);
    cases.inst.n_blocks = 18;
    cases.inst.memory_bytes = 0;
    for (int b = 0; b < 18; b++)
        cases.oracle.sec[b] = 1;
    for (int i = 0; i < 9; i++)
        doubled[i] = (int64_t)1 << i;
    cases.inst.microbatches = doubled;
    cases.inst.n_microbatches = 9;
    cases.inst.ask = ask_traced;
    cases.inst.oracle = &trace;
    cases.inst.least = NULL;
    int rc = plan_rannc(&arena, &cases.inst, &params, &a, &err);
    CHECK(rc == 0 && trace.most[4] == 64 && trace.most[2] == 128 && trace.most[1] == 256,
          "rannc algorithm 2: a batch of 256 in up to %lld, %lld, %lld microbatches for "
          "4, 2, 1 replicas",
          (long long)trace.most[4], (long long)trace.most[2], (long long)trace.most[1]);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/*
 * One host of n devices and blocks of uneven work, without anything that is sent. With
 * few stages the cuts even the work out, with one device a stage nothing can.
 */
static void uneven_case(uint64_t seed, int n_blocks, int n_devices)
{
    case_random(&cases, seed, 1);
    case_cluster(&cases, 1, n_devices);
    case_values(&cases, n_blocks, 0, 0);
    cases.oracle.noise = cases.oracle.hole = cases.oracle.loss = 0;
    cases.oracle.launch_sec = 0;
    cases.inst.memory_bytes = 0;
    cases.inst.n_blocks = n_blocks;
    for (int b = 0; b < n_blocks; b++)
        cases.oracle.sec[b] = case_num(&cases, 0.2, 5);
}

/* How much slower as many devices for each stage are than RaNNC's choice, on average. */
static double gain_of(int n_stages, int *no_worse)
{
    double sum = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const struct plan_submesh alike = {1, 16 / n_stages, 0};
        struct plan_params params = {.schedule = -1, .n_stages = n_stages};
        struct ap_arena arena = {0};
        struct plan_answer a = {0}, equal = {0};
        struct ap_err err = {0};
        uneven_case(seed, 16, 16);
        int rc = plan_rannc(&arena, &cases.inst, &params, &a, &err);
        params.n_submeshes = 1;
        params.submesh = &alike;
        rc |= plan_rannc(&arena, &cases.inst, &params, &equal, &err);
        double gain = rc == 0 ? equal.objective / a.objective : 0;
        *no_worse += gain >= 1 - 1e-9;
        sum += gain / 20;
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    return sum;
}

static void replicas_pay(void)
{
    int no_worse = 0;
    double two = gain_of(2, &no_worse), four = gain_of(4, &no_worse),
           eight = gain_of(8, &no_worse), all = gain_of(16, &no_worse);
    CHECK(no_worse == 80,
          "rannc §IV-B: as many devices for all stages are no faster: %d of 80",
          no_worse);
    CHECK(eight > 1.01 && eight > all && near(all, 1),
          "rannc §IV-B: slower by, with 2, 4, 8, 16 stages: %.3f %.3f %.3f %.3f", two,
          four, eight, all);
}

/* Blocks of one, one and two units of work on four devices. */
static void rannc_replicates(void)
{
    struct ap_arena arena = {0};
    struct plan_answer a = {0};
    struct ap_err err = {0};
    struct plan_params params = {.schedule = -1, .n_stages = 3};

    uneven_case(1, 3, 4);
    for (int b = 0; b < 3; b++)
        cases.oracle.sec[b] = b == 2 ? 2 : 1;
    int rc = plan_rannc(&arena, &cases.inst, &params, &a, &err);
    CHECK(rc == 0 && a.stage[0].devices == 1 && a.stage[1].devices == 1 &&
              a.stage[2].devices == 2,
          "rannc §IV-B: the stage with twice the work has two devices %s", err.msg);
    double most = 0;
    for (int s = 0; s < a.n_stages; s++)
        most = fmax(most, a.stage[s].point->forward_sec);
    CHECK(rc == 0 && near(most * (double)a.microbatches, 1),
          "rannc §IV-B: its stages are balanced");
    const int64_t *few = cases.inst.microbatches, many_mb[] = {64};
    int n_few = cases.inst.n_microbatches;
    cases.inst.microbatches = many_mb;
    cases.inst.n_microbatches = 1;
    rc = plan_rannc(&arena, &cases.inst, &params, &a, &err);
    CHECK(
        rc == 0 && a.microbatches == 64,
        "rannc: more microbatches than its code takes are tried where those do not run");
    cases.inst.microbatches = few;
    cases.inst.n_microbatches = n_few;
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* ---- rhino ---- */

/* The fastest way over a step that fits; NULL: none. */
static const struct plan_point *fastest(const struct plan_front *front, int64_t n,
                                        int held)
{
    const struct plan_point *best = NULL;
    double least = INFINITY;
    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        double sec =
            (double)n * (p->forward_sec + p->backward_sec) + p->sync_sec + p->update_sec;
        if (cases.inst.memory_bytes > 0 &&
            p->stage_bytes + held * p->microbatch_bytes > cases.inst.memory_bytes)
            continue;
        if (sec < least) {
            least = sec;
            best = p;
        }
    }
    return best;
}

/* Simulated step of stages on as many devices each; INFINITY: they do not run. */
static double step_of(struct ap_arena *arena, const int *stage_of, int n_stages,
                      int devices, int64_t n)
{
    const struct plan_instance *inst = &cases.inst;
    struct plan_answer a = {.n_stages = n_stages,
                            .replicas = 1,
                            .chunks = 1,
                            .microbatches = n,
                            .schedule = AP_SCHEDULE_1F1B};
    int m = inst->n_devices;
    struct ap_err why = {0};

    a.stage = AP_NEW_N(arena, n_stages, struct plan_stage);
    for (int s = 0; s < n_stages; s++) {
        uint64_t *set = AP_NEW(arena, uint64_t);
        struct plan_stage *st = &a.stage[s];
        const struct plan_front *front;
        st->hosts = devices > m ? devices / m : 1;
        st->devices = devices > m ? m : devices;
        st->lo = -1;
        for (int b = 0; b < inst->n_blocks; b++)
            if (stage_of[b] == s) {
                *set |= (uint64_t)1 << b;
                st->lo = st->lo < 0 ? b : st->lo;
                st->hi = b;
            }
        bool gaps = __builtin_popcountll(*set) <= st->hi - st->lo;
        st->set = gaps ? set : NULL;
        struct plan_ask ask = {st->lo, st->hi, st->set, st->hosts, st->devices, 0, 1, n};
        if (inst->ask(inst->oracle, &ask, &front, &why))
            return NAN;
        int behind = n_stages - s, held = behind < n ? behind : (int)n;
        st->point = fastest(front, n, held);
        if (!st->point)
            return INFINITY;
    }
    return plan_judge(arena, inst, &a, &why) ? INFINITY : a.step_sec;
}

/* Least step over powers of two of stages that divide the devices; of each the fewest
 * microbatches that keep its stages busy and run. One stage takes the batch whole, too.
 */
static double best_proposal(struct ap_arena *arena, double imbalance)
{
    const struct plan_instance *inst = &cases.inst;
    int all = inst->n_hosts * inst->n_devices, stage_of[8] = {0};
    double best = INFINITY;

    for (int s = 1; s <= all && s <= inst->n_blocks; s *= 2) {
        bool proven,
            whole_hosts = all / s <= inst->n_devices || all / s % inst->n_devices == 0;
        if (all % s || !whole_hosts ||
            (s > 1 && !rhino_stages(arena, inst, s, imbalance, stage_of, &proven)))
            continue;
        for (int cut = s > 1; cut < 2; cut++) {
            double sec = INFINITY;
            for (int i = 0; i < inst->n_microbatches && !isfinite(sec); i++) {
                int64_t n = inst->microbatches[i];
                if (cut ? n >= 2 && n >= 2 * s - 1 : n == 1)
                    sec = step_of(arena, stage_of, s, all / s, n);
            }
            best = fmin(best, sec);
        }
    }
    return best;
}

static void best_of_proposals(void)
{
    int same = 0, n_plans = 0, several = 0, gaps = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct ap_arena arena = {0};
        const struct plan_params params = {.schedule = -1, .imbalance = 0.3};
        struct plan_answer a = {0};
        struct ap_err err = {0};
        case_random(&cases, 9000 + seed, 7);
        if (seed % 2 == 0) /* two chains, that of the odd blocks and that of the others */
            for (int i = 0; i < cases.inst.n_values; i++)
                if (cases.to[i][0] == cases.value[i].from + 1)
                    cases.to[i][0] += cases.to[i][0] + 1 < cases.inst.n_blocks;
        double best = best_proposal(&arena, 0.3);
        int rc = plan_rhino(&arena, &cases.inst, &params, &a, &err);
        same += rc == 0 ? near(a.step_sec, best) : rc == 1 && !isfinite(best);
        n_plans += rc == 0;
        several += rc == 0 && a.n_stages > 1;
        for (int s = 0; s < a.n_stages && rc == 0; s++)
            gaps += a.stage[s].set != NULL;
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(same == 300, "rhino takes its fastest proposal: %d of 300, %d have plans", same,
          n_plans);
    CHECK(several > 30 && gaps > 0, "%d of several stages, %d stages that are no runs",
          several, gaps);
}

int main(void)
{
    rannc_loops();
    replicas_pay();
    rannc_replicates();
    best_of_proposals();
    return tap_done();
}
