/*
 * Clusters of several kinds of devices: the programmes against all plans of tiny
 * instances, enumerated here: every cut, every kind and submesh of each stage.
 */
#include "search/space.h"
#include "stage_oracle.h"
#include "tap.h"

static struct random_case cases;

/* ---- all plans, by their definition ---- */

struct brute {
    const struct plan_instance *inst;
    struct ap_arena arena;
    int64_t microbatches;
    int left[AP_MAX_KINDS];
    struct plan_stage stage[8];
    int n_stages;
    bool idle; /* devices may be left over */
    double best;
    double (*objective)(struct brute *b);
};

static void walk(struct brute *b, int lo);

static void put(struct brute *b, int lo, int hi, int kind, const struct plan_submesh *m)
{
    const struct plan_ask ask = {.lo = lo,
                                 .hi = hi,
                                 .hosts = m->hosts,
                                 .devices = m->devices,
                                 .kind = kind,
                                 .replicas = 1,
                                 .microbatches = b->microbatches};
    const struct plan_front *front;
    struct ap_err err = {0};

    if (b->inst->ask(b->inst->oracle, &ask, &front, &err))
        return;
    b->left[kind] -= m->hosts * m->devices;
    for (int i = 0; i < front->n; i++) {
        b->stage[b->n_stages++] = (struct plan_stage){.lo = lo,
                                                      .hi = hi,
                                                      .hosts = m->hosts,
                                                      .devices = m->devices,
                                                      .kind = kind,
                                                      .point = &front->point[i]};
        walk(b, hi + 1);
        b->n_stages--;
    }
    b->left[kind] += m->hosts * m->devices;
}

static void walk(struct brute *b, int lo)
{
    if (lo == b->inst->n_blocks) {
        bool all = true;
        for (int k = 0; k < b->inst->n_kinds; k++)
            all &= b->left[k] == 0;
        if (all || b->idle)
            b->best = fmin(b->best, b->objective(b));
        return;
    }
    for (int hi = lo; hi < b->inst->n_blocks; hi++)
        for (int kind = 0; kind < b->inst->n_kinds; kind++) {
            struct plan_submesh *mesh;
            int n = plan_submeshes(&b->arena, 0, b->inst->kind[kind].n_hosts,
                                   b->inst->n_devices, &mesh);
            for (int m = 0; m < n; m++)
                if (mesh[m].hosts * mesh[m].devices <= b->left[kind])
                    put(b, lo, hi, kind, &mesh[m]);
        }
}

/* No stage holds more than its kind's memory: share of the largest kind's. */
static bool fits(const struct brute *b)
{
    for (int s = 0; s < b->n_stages && b->inst->memory_bytes > 0; s++) {
        const struct plan_point *p = b->stage[s].point;
        int64_t held = b->n_stages - s;
        held = held < b->microbatches ? held : b->microbatches;
        double memory =
            b->inst->kind[b->stage[s].kind].memory_share * (double)b->inst->memory_bytes;
        if ((double)(p->stage_bytes + held * p->microbatch_bytes) > memory)
            return false;
    }
    return true;
}

/* Zheng et al., "Alpa" (OSDI 2022), section 5.2, equation 2. */
static double alpa_by_definition(struct brute *b)
{
    const struct plan_point *first = b->stage[0].point;
    double sum = first->sync_sec + first->update_sec, most = 0;

    for (int s = 0; s < b->n_stages; s++) {
        const struct plan_point *p = b->stage[s].point;
        double sec = p->forward_sec + p->backward_sec;
        sum += sec;
        most = fmax(most, sec);
    }
    return fits(b) ? sum + (double)(b->microbatches - 1) * most : INFINITY;
}

static double simulated(struct brute *b)
{
    struct plan_answer a = {.n_stages = b->n_stages,
                            .stage = b->stage,
                            .replicas = 1,
                            .microbatches = b->microbatches,
                            .schedule = AP_SCHEDULE_1F1B,
                            .chunks = 1};
    struct ap_err err = {0};

    if (!fits(b) || plan_judge(&b->arena, b->inst, &a, &err))
        return INFINITY;
    return a.step_sec;
}

static double best_of(double (*objective)(struct brute *b), bool idle)
{
    struct brute b = {
        .inst = &cases.inst, .objective = objective, .idle = idle, .best = INFINITY};

    for (int i = 0; i < cases.inst.n_microbatches; i++) {
        b.microbatches = cases.inst.microbatches[i];
        for (int k = 0; k < cases.inst.n_kinds; k++)
            b.left[k] = cases.kind[k].n_hosts * cases.inst.n_devices;
        walk(&b, 0);
        ap_arena_free(&b.arena);
    }
    return b.best;
}

/* ---- the planners ---- */

struct tally {
    int n, n_plans, n_equal, n_mixed, n_apart, n_bound;
};

/* Whether stages are on several kinds; whether some kind's stages do not follow each
 * other. */
static void count_kinds(const struct plan_answer *a, struct tally *t)
{
    int changes = 0;
    unsigned kinds = 0;

    for (int s = 0; s < a->n_stages; s++) {
        kinds |= 1u << a->stage[s].kind;
        changes += s > 0 && a->stage[s].kind != a->stage[s - 1].kind;
    }
    t->n_mixed += changes > 0;
    t->n_apart += changes >= __builtin_popcount(kinds);
}

static void alpa_is_enumeration(void)
{
    struct tally t = {0};

    for (uint64_t seed = 1; seed <= 120; seed++) {
        struct plan_params params = {.schedule = -1};
        struct plan_answer a = {0};
        struct ap_arena arena = {0};
        struct ap_err err = {0};
        case_kinds(&cases, seed, 5);
        int rc = plan_alpa(&arena, &cases.inst, &params, &a, &err);
        double best = best_of(alpa_by_definition, false);
        t.n++;
        t.n_plans += rc == 0;
        t.n_equal += rc == 0 ? fabs(best - a.own->objective) <= 1e-9 * best
                             : rc == 1 && !isfinite(best);
        if (rc == 0)
            count_kinds(a.own, &t);
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(t.n_equal == t.n && t.n_plans >= 30,
          "alpa: equal to all cuts, kinds and submeshes: %d of %d, %d have plans",
          t.n_equal, t.n, t.n_plans);
    CHECK(t.n_mixed >= 20 && t.n_apart >= 3,
          "%d plans are on several kinds, in %d a kind's stages are apart", t.n_mixed,
          t.n_apart);
}

static void exhaustive_is_enumeration(void)
{
    struct tally t = {0};

    for (uint64_t seed = 200; seed < 240; seed++) {
        struct plan_params params = {.schedule = AP_SCHEDULE_1F1B};
        struct plan_answer a = {0};
        struct ap_arena arena = {0};
        struct ap_err err = {0};
        case_kinds(&cases, seed, 4);
        /* no number of replicas but one divides the hosts */
        cases.kind[0].n_hosts = 1;
        for (int k = 1; k < cases.inst.n_kinds; k++)
            cases.kind[k].first_host =
                cases.kind[k - 1].first_host + cases.kind[k - 1].n_hosts;
        int rc = plan_exhaustive(&arena, &cases.inst, &params, &a, &err);
        double best = best_of(simulated, true);
        t.n++;
        t.n_equal +=
            rc == 0 && (a.replicas > 1 ? a.objective <= best * (1 + 1e-9)
                                       : fabs(best - a.objective) <= 1e-9 * best);
        t.n_equal += rc == 1 && !isfinite(best);
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(t.n_equal == t.n, "exhaustive: equal to all plans: %d of %d", t.n_equal, t.n);
}

static void auto_is_exhaustive(void)
{
    struct tally t = {0};
    int n_infeasible = 0;

    for (uint64_t seed = 1000; seed < 1120; seed++) {
        struct plan_params params = {.schedule = -1, .imbalance = 0.08, .n_kept = 64};
        struct plan_answer all = {0}, a = {0};
        struct ap_arena arena = {0};
        struct ap_err err = {0}, why = {0};
        case_kinds(&cases, seed, 5);
        int rc = plan_exhaustive(&arena, &cases.inst, &params, &all, &err);
        int rc_auto = plan_auto(&arena, &cases.inst, &params, &a, &why);
        if (rc < 0 || rc_auto < 0)
            printf("# seed %d: %s %s\n", (int)seed, err.msg, why.msg);
        n_infeasible += rc == 1 && rc_auto == 1;
        if (rc == 0 && rc_auto == 0) {
            t.n_plans++;
            t.n_equal += a.step_sec <= all.step_sec * (1 + 1e-9);
            t.n_bound += a.bound <= all.step_sec * (1 + 1e-12);
            count_kinds(&a, &t);
        }
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(t.n_plans + n_infeasible == 120 && t.n_plans >= 60,
          "auto has a plan where there is one: %d plans, %d without", t.n_plans,
          n_infeasible);
    CHECK(t.n_equal * 100 >= 95 * t.n_plans, "auto: equal to the best plan: %d of %d",
          t.n_equal, t.n_plans);
    CHECK(t.n_bound == t.n_plans, "no bound is above the best plan: %d of %d", t.n_bound,
          t.n_plans);
    CHECK(t.n_mixed >= 30, "%d plans are on several kinds", t.n_mixed);
}

/* The first kind twice as fast, as many devices of each: it gets twice the blocks, less
 * what a whole number of blocks allows. */
static void faster_kind_has_more(void)
{
    struct plan_params params = {.schedule = -1, .imbalance = 0.08, .n_kept = 64};
    struct plan_answer a = {0};
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    int blocks[2] = {0};

    case_layers(&cases, 12, 2, 8, 32);
    cases.kind[0] = (struct plan_kind){0, 1, 1, 1};
    cases.kind[1] = (struct plan_kind){1, 1, 1, 0.5};
    cases.oracle.speed[1] = 0.5;
    cases.inst.n_kinds = 2;
    cases.inst.kind = cases.kind;
    CHECK(plan_auto(&arena, &cases.inst, &params, &a, &err) == 0, "there is a plan: %s",
          err.msg);
    for (int s = 0; s < a.n_stages; s++)
        blocks[a.stage[s].kind] += a.stage[s].hi - a.stage[s].lo + 1;
    CHECK(blocks[0] >= 7 && blocks[0] <= 9 && blocks[0] + blocks[1] == 12,
          "twice the speed, about twice the blocks: %d and %d", blocks[0], blocks[1]);
    CHECK(a.bound > 0.9 * a.step_sec && a.bound <= a.step_sec, "the bound is near: %g",
          a.bound / a.step_sec);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* Bytes of a kind with less memory as bytes of the largest: least that is enough. */
static void memory_in_proportion(void)
{
    struct plan_kind kind[2] = {{0, 1, 1, 1}, {1, 1, 0.3, 1}};
    struct plan_instance inst = {.n_kinds = 2, .kind = kind, .n_hosts = 2};
    int good = 0, n = 0;

    for (int64_t bytes = 1; bytes < (int64_t)1 << 45; bytes = bytes * 3 + 1, n++) {
        inst.memory_bytes = plan_whole_bytes(&inst, 1, bytes);
        good +=
            plan_memory(&inst, 1) >= bytes && plan_whole_bytes(&inst, 0, bytes) == bytes;
        inst.memory_bytes--;
        good -= inst.memory_bytes > 0 && plan_memory(&inst, 1) >= bytes && bytes > 1;
    }
    CHECK(good == n, "the least memory with which a kind has so many bytes: %d of %d",
          good, n);
}

int main(void)
{
    alpa_is_enumeration();
    exhaustive_is_enumeration();
    auto_is_exhaustive();
    faster_kind_has_more();
    memory_in_proportion();
    return tap_done();
}
