/*
 * Each planner against the exhaustive optimum of its own objective on random instances;
 * the shared parts: submeshes, places, the judge.
 */
#include "planners/rhino.h"
#include "search/auto.h"
#include "stage_oracle.h"
#include "tap.h"

#define N_CASES 300

static struct random_case cases;

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

/* Every fifth case has its submeshes listed. */
static struct plan_params params_of(uint64_t seed)
{
    static const struct plan_submesh list[] = {{1, 1, 0}, {1, 2, 0}, {2, 4, 0}};
    struct plan_params p = {.schedule = -1, .submesh = list};
    p.n_submeshes = seed % 5 == 0 ? 3 : 0;
    return p;
}

/* ---- all plans that use all devices ---- */

struct brute {
    struct space sp;
    struct config c;
    struct ap_arena arena;
    struct plan_stage stage[8];
    int n_stages;
    int least_stages, most_stages;
    const int *end; /* [stage]: its last block; NULL: any */
    double (*objective)(const struct brute *b);
    double best;
};

static void walk(struct brute *b, int lo, int left)
{
    struct ap_err err = {0};
    if (lo == b->sp.n) {
        if (left == 0 && b->n_stages >= b->least_stages && b->n_stages <= b->most_stages)
            b->best = fmin(b->best, b->objective(b));
        return;
    }
    int first = b->end ? b->end[b->n_stages] : lo;
    int last = b->end ? first : b->sp.n - 1;
    for (int hi = first; hi <= last; hi++)
        for (int m = 0; m < b->c.n_meshes; m++) {
            const struct plan_front *front;
            int size = mesh_size(&b->c.mesh[m]);
            if (size > left || config_front(&b->sp, &b->c, lo, hi, m, &front, &err))
                continue;
            for (int i = 0; i < front->n; i++) {
                b->stage[b->n_stages++] = (struct plan_stage){lo,
                                                              hi,
                                                              NULL,
                                                              b->c.mesh[m].hosts,
                                                              b->c.mesh[m].devices,
                                                              0,
                                                              &front->point[i],
                                                              0,
                                                              0};
                walk(b, hi + 1, left - size);
                b->n_stages--;
            }
        }
}

static void brute_start(struct brute *b, const struct plan_params *params,
                        double (*objective)(const struct brute *b))
{
    *b = (struct brute){.objective = objective, .best = INFINITY, .most_stages = 8};
    space_init(&b->sp, &b->arena, &cases.inst, params);
}

/* ---- alpa ---- */

static double alpa_by_definition(const struct brute *b)
{
    const struct plan_point *first = b->stage[0].point;
    double sum = first->sync_sec + first->update_sec, most = 0,
           n = (double)b->c.microbatches;
    for (int s = 0; s < b->n_stages; s++) {
        const struct plan_point *p = b->stage[s].point;
        int64_t held = b->n_stages - s;
        if (held > b->c.microbatches)
            held = b->c.microbatches;
        if (cases.inst.memory_bytes > 0 &&
            p->stage_bytes + held * p->microbatch_bytes > cases.inst.memory_bytes)
            return INFINITY;
        sum += p->forward_sec + p->backward_sec;
        most = fmax(most, p->forward_sec + p->backward_sec);
    }
    return sum + (n - 1) * most;
}

static double best_of_alpa(const struct plan_params *params)
{
    struct brute b;
    brute_start(&b, params, alpa_by_definition);
    for (int i = 0; i < cases.inst.n_microbatches; i++) {
        config_init(&b.sp, &b.c, 1, cases.inst.microbatches[i], NULL, 0);
        walk(&b, 0, b.c.hosts * b.c.devices);
    }
    ap_arena_free(&b.arena);
    return b.best;
}

/* The same where stage i of s ends at the block whose sum of weights is nearest to i / s
 * of all, the later of two, and leaves a block for each stage after it. */
static double best_of_equal(const struct plan_params *params, const double *weight)
{
    struct brute b;
    int n = cases.inst.n_blocks, end[8];
    double sum[9] = {0};

    for (int k = 0; k < n; k++)
        sum[k + 1] = sum[k] + weight[k];
    brute_start(&b, params, alpa_by_definition);
    b.end = end;
    for (int s = 1; s <= n; s++) {
        b.least_stages = b.most_stages = s;
        for (int i = 1; i <= s; i++) {
            int from = i > 1 ? end[i - 2] + 1 : 0;
            end[i - 1] = from;
            for (int k = from; k < n - (s - i); k++)
                if (fabs(sum[k + 1] - sum[n] * i / s) <=
                    fabs(sum[end[i - 1] + 1] - sum[n] * i / s))
                    end[i - 1] = k;
        }
        for (int i = 0; i < cases.inst.n_microbatches; i++) {
            config_init(&b.sp, &b.c, 1, cases.inst.microbatches[i], NULL, 0);
            walk(&b, 0, b.c.hosts * b.c.devices);
        }
    }
    ap_arena_free(&b.arena);
    return b.best;
}

static bool is_best(int rc, const struct plan_answer *a, double best)
{
    const struct plan_answer *own = a->own ? a->own : a;
    return rc == 0 ? near(best, own->objective) : rc == 1 && !isfinite(best);
}

/* alpa §8.3: the named plans are what they say, and no better than Alpa; how much worse.
 */
static void equal_stages(void)
{
    int same[2] = {0}, n_plans = 0, worse[2] = {0};
    double most[2] = {0};

    for (uint64_t seed = 1; seed <= N_CASES; seed++) {
        struct plan_params params = params_of(seed);
        struct ap_arena arena = {0};
        struct plan_answer a = {0}, equal[2] = {0};
        struct ap_err err = {0};
        double weight[8];
        case_random(&cases, seed, seed % 4 == 0 ? 8 : 5);
        int rc = plan_alpa(&arena, &cases.inst, &params, &a, &err);
        for (int k = 0; k < 2; k++) {
            for (int b = 0; b < cases.inst.n_blocks; b++)
                weight[b] = k ? cases.n_ops[b] : 1;
            int rc_equal = (k ? plan_equal_operator : plan_equal_layer)(
                &arena, &cases.inst, &params, &equal[k], &err);
            same[k] += is_best(rc_equal, &equal[k], best_of_equal(&params, weight));
            n_plans += rc_equal == 0;
            double ratio = rc_equal == 0 ? equal[k].objective / a.own->objective : 1;
            worse[k] += rc != 0 ? rc_equal == 0 : ratio < 1 - 1e-9;
            most[k] = fmax(most[k], ratio);
        }
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(same[0] == N_CASES && same[1] == N_CASES && n_plans > 300,
          "equal layers and operators are exact: %d and %d, %d have plans", same[0],
          same[1], n_plans);
    CHECK(worse[0] == 0 && worse[1] == 0 && most[0] > 1 && most[1] > 1,
          "alpa §8.3: no better than alpa, more expensive by up to %.2f and %.2f times",
          most[0], most[1]);
}

/* alpa §5.2: what epsilon leaves out costs less than epsilon for each microbatch after
 * the first. */
static void epsilon_is_bounded(void)
{
    int bounded = 0, pruned = 0, slower = 0, n = 0;

    for (uint64_t seed = 1; seed <= N_CASES; seed++) {
        struct plan_params params = {.schedule = -1};
        struct ap_arena arena = {0};
        struct plan_answer a = {0}, gap = {0};
        struct ap_err err = {0};
        case_random(&cases, seed, 8);
        if (plan_alpa(&arena, &cases.inst, &params, &a, &err) == 0 &&
            a.own->microbatches > 1) {
            const double best = a.own->objective;
            const double others = (double)(a.own->microbatches - 1);
            params.epsilon_sec = 0.2 * best / others;
            int rc = plan_alpa(&arena, &cases.inst, &params, &gap, &err);
            n++;
            bounded += rc == 0 && gap.own->objective >= best * (1 - 1e-9) &&
                       gap.own->objective <= best + others * params.epsilon_sec;
            pruned += gap.n_plans < a.n_plans;
            slower += gap.own->objective > best * (1 + 1e-9);
        }
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(bounded == n && n > 100,
          "alpa §5.2: with a large epsilon the loss is bounded: %d", bounded);
    CHECK(pruned > 10 && slower > 2, "fewer plans in %d of %d, slower ones in %d", pruned,
          n, slower);
}

static void alpa_is_exact(void)
{
    int same = 0, n_plans = 0, pruned = 0, several = 0;
    for (uint64_t seed = 1; seed <= N_CASES; seed++) {
        struct plan_params params = params_of(seed);
        struct ap_arena arena = {0};
        struct plan_answer a = {0}, gap = {0};
        struct ap_err err = {0};
        case_random(&cases, seed, seed % 4 == 0 ? 8 : 5);
        double best = best_of_alpa(&params);
        int rc = plan_alpa(&arena, &cases.inst, &params, &a, &err);
        same += is_best(rc, &a, best);
        n_plans += rc == 0;
        several += a.n_stages > 1;
        params.epsilon_sec = 1e-6;
        int rc_gap = plan_alpa(&arena, &cases.inst, &params, &gap, &err);
        pruned += rc == rc_gap && (rc != 0 || near(a.own->objective, gap.own->objective));
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(same == N_CASES, "alpa is exact: %d of %d, %d have plans", same, N_CASES,
          n_plans);
    CHECK(several >= 80, "%d of them with several stages", several);
    CHECK(pruned == N_CASES,
          "alpa §5.2: epsilon 1e-6 changes no optimum: %d of %d random chains", pruned,
          N_CASES);
}

/* ---- rannc ---- */

static double cut_sec(const struct brute *b, int block, bool back, int lanes, int hosts)
{
    double split = 0, whole = 0;
    const struct ap_cluster *cl = &cases.cluster;
    int level = b->c.hosts * b->c.devices > cases.inst.n_devices ? 1 : 0;

    for (int i = 0; i < cases.inst.n_values; i++) {
        const struct plan_value *v = &cases.inst.value[i];
        if (v->from <= block && v->to[v->n_to - 1] > block)
            *(v->split ? &split : &whole) +=
                (double)(back ? v->backward_bytes : v->forward_bytes);
    }
    double bytes = floor(split / (double)(b->c.microbatches * b->c.replicas)) + whole;
    if (bytes == 0)
        return 0;
    return cl->levels[level].latency_sec +
           bytes / cl->levels[level].bandwidth_bytes_per_sec / (level ? hosts : lanes);
}

static double rannc_by_definition(const struct brute *b)
{
    double f = 0, back = 0, sync = 0;
    int64_t n = b->c.microbatches;

    for (int s = 0; s < b->n_stages; s++) {
        const struct plan_stage *st = &b->stage[s];
        const struct plan_point *p = st->point;
        int size = st->hosts * st->devices;
        double in = 0, out = 0;
        if (cases.inst.memory_bytes > 0 &&
            p->stage_bytes + n * p->microbatch_bytes > cases.inst.memory_bytes)
            return INFINITY;
        if (cases.oracle.recompute && p->recompute != (n > 1))
            return INFINITY;
        for (int k = 0; k < 2; k++)
            *(k ? &out : &in) =
                (st->lo > 0 ? cut_sec(b, st->lo - 1, k, size, st->hosts) : 0) +
                (st->hi + 1 < b->sp.n ? cut_sec(b, st->hi, k, size, st->hosts) : 0);
        f = fmax(f, p->forward_sec + in);
        back = fmax(back, p->backward_sec + out);
        sync = fmax(sync, p->sync_sec);
    }
    return (double)(n + b->n_stages - 1) * (f + back) + sync;
}

/* Of the numbers of stages that Algorithm 2 tries on n hosts. */
static double best_of_rannc(const struct plan_params *params)
{
    struct brute b;
    int most = 0;

    brute_start(&b, params, rannc_by_definition);
    for (int hosts = 1; hosts <= cases.inst.n_hosts; hosts++) {
        if (cases.inst.n_hosts % hosts)
            continue;
        b.least_stages = most + 1;
        b.most_stages = most = hosts * cases.inst.n_devices;
        for (int i = 0; i < cases.inst.n_microbatches; i++) {
            config_init(&b.sp, &b.c, cases.inst.n_hosts / hosts,
                        cases.inst.microbatches[i], NULL, 0);
            walk(&b, 0, b.c.hosts * b.c.devices);
        }
    }
    ap_arena_free(&b.arena);
    return b.best;
}

static void rannc_is_exact(void)
{
    int same = 0, n_plans = 0, first_is_no_better = 0, several = 0;
    for (uint64_t seed = 1; seed <= N_CASES; seed++) {
        struct plan_params params = params_of(seed);
        struct ap_arena arena = {0};
        struct plan_answer a = {0}, first = {0};
        struct ap_err err = {0};
        params.search_all = true;
        case_random(&cases, 5000 + seed, seed % 4 == 0 ? 8 : 5);
        double best = best_of_rannc(&params);
        int rc = plan_rannc(&arena, &cases.inst, &params, &a, &err);
        same += is_best(rc, &a, best);
        n_plans += rc == 0;
        several += a.n_stages > 1;
        params.search_all = false;
        int rc_first = plan_rannc(&arena, &cases.inst, &params, &first, &err);
        first_is_no_better +=
            rc == rc_first &&
            (rc != 0 || (first.n_stages <= a.n_stages && first.objective >= a.objective));
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(same == N_CASES,
          "rannc §III-C: rannc with search_all is exact: %d of %d, %d have plans", same,
          N_CASES, n_plans);
    CHECK(several >= 50, "%d of them with several stages", several);
    CHECK(first_is_no_better == N_CASES, "the first number of stages is the least: %d",
          first_is_no_better);
}

/* ---- rhino ---- */

static double rhino_brute(int n_stages, double imbalance, const int *least,
                          const int *most)
{
    int stage_of[8], n = cases.inst.n_blocks, n_all = 1;
    double best = INFINITY, total = 0;

    for (int b = 0; b < n; b++) {
        total += cases.flops[b];
        n_all *= n_stages;
    }
    for (int code = 0; code < n_all; code++) {
        double load[8] = {0};
        int count[8] = {0}, rest = code;
        bool ok = true;
        for (int b = 0; b < n; b++, rest /= n_stages) {
            stage_of[b] = rest % n_stages;
            load[stage_of[b]] += cases.flops[b];
            count[stage_of[b]]++;
            ok &= stage_of[b] >= least[b] && stage_of[b] <= most[b];
        }
        for (int s = 0; s < n_stages; s++)
            ok &= count[s] > 0 && load[s] <= total / n_stages * (1 + imbalance);
        for (int i = 0; i < cases.inst.n_values && ok; i++)
            for (int k = 0; k < cases.value[i].n_to; k++)
                ok &= stage_of[cases.value[i].to[k]] >= stage_of[cases.value[i].from];
        if (ok)
            best = fmin(best, (double)rhino_bytes(&cases.inst, stage_of));
    }
    return best;
}

static void rhino_is_exact(void)
{
    int same = 0, n_plans = 0, priced = 0, n_all = 0;
    for (uint64_t seed = 1; seed <= N_CASES; seed++) {
        struct ap_arena arena = {0};
        struct plan_params params = {.schedule = -1, .imbalance = 0.3};
        struct plan_answer a = {0};
        struct ap_err err = {0};
        int stage_of[8] = {0}, least[8], most[8];
        bool proven = false;
        case_random(&cases, 9000 + seed, 7);
        int n_stages = 2 + (int)(seed % 3);
        if (n_stages > cases.inst.n_blocks)
            n_stages = cases.inst.n_blocks;
        rhino_bounds(&arena, &cases.inst, n_stages, 0.3, least, most);
        double best = rhino_brute(n_stages, 0.3, least, most);
        bool ok = rhino_stages(&arena, &cases.inst, n_stages, 0.3, stage_of, &proven);
        if (ok)
            same += proven && near(best, (double)rhino_bytes(&cases.inst, stage_of));
        else
            same += !isfinite(best);
        n_plans += ok;
        if (plan_rhino(&arena, &cases.inst, &params, &a, &err) == 0) {
            n_all++;
            priced += a.step_sec > 0;
        }
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(same == N_CASES, "rhino's ILP is exact: %d of %d, %d have stages", same,
          N_CASES, n_plans);
    CHECK(n_plans > 60 && n_all > 150 && priced == n_all, "rhino: %d plans, all priced",
          n_all);
}

/* Stages x devices of each, m: in microbatches. */
static bool lists_proposals(const char *whole)
{
    struct rhino_proposal list[64];
    struct ap_buf said = {0};
    int devices = atoi(whole), n = rhino_proposals(devices, list);

    ap_buf_printf(&said, "%d:", devices);
    for (int i = 0; i < n; i++)
        ap_buf_printf(&said, " %dx%d%s", list[i].stages, list[i].devices,
                      list[i].micro ? "m" : "");
    bool same = !strcmp(said.data, whole);
    if (!same)
        printf("# %s, not %s\n", said.data, whole);
    ap_buf_free(&said);
    return same;
}

static void rhino_units(void)
{
    static const int want[8] = {0, 0, 1, 1, 2, 2, 3, 3};
    static const char *const whole[] = {
        "2: 1x2 1x2m 2x1m",         "4: 1x4 1x4m 2x2m 4x1m",
        "6: 1x6 1x6m 2x3m",         "8: 1x8 1x8m 2x4m 4x2m 8x1m",
        "12: 1x12 1x12m 2x6m 4x3m", "16: 1x16 1x16m 2x8m 4x4m 8x2m 16x1m"};
    struct ap_arena arena = {0};
    int least[8], most[8], good = 0;

    case_random(&cases, 1, 1);
    case_values(&cases, 8, 0, 1);
    cases.inst.n_blocks = 8;
    for (int b = 0; b < 8; b++)
        cases.flops[b] = 1;
    rhino_bounds(&arena, &cases.inst, 4, 0, least, most);
    struct ap_buf said = {0};
    for (int b = 0; b < 8; b++)
        ap_buf_printf(&said, "%s %d to %d", b ? "," : "", least[b], most[b]);
    CHECK(!memcmp(least, want, sizeof want) && !memcmp(most, want, sizeof want),
          "rhino §5.2: corrected bounds of 8 identical operators in 4 stages, earliest "
          "to latest:%s",
          said.data);
    ap_buf_free(&said);
    for (int i = 0; i < 6; i++)
        good += lists_proposals(whole[i]);
    CHECK(good == 6,
          "rhino's code: proposals for 2, 4, 6, 8, 12, 16 devices: %d lists of 6", good);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* ---- shared ---- */

static struct plan_stage many[64];

static bool places_well(const struct plan_instance *inst, int n)
{
    bool taken[32] = {false};
    struct plan_answer a = {.n_stages = n, .stage = many, .replicas = 1, .chunks = 1};
    struct ap_err err = {0};

    if (plan_place(inst, &a, &err))
        return false;
    for (int s = 0; s < n; s++)
        for (int h = 0; h < many[s].hosts; h++)
            for (int d = 0; d < many[s].devices; d++) {
                int at =
                    (many[s].first_host + h) * inst->n_devices + many[s].first_device + d;
                if (at >= inst->n_hosts * inst->n_devices || taken[at])
                    return false;
                taken[at] = true;
            }
    return true;
}

static void tile(const struct plan_instance *inst, const struct plan_submesh *mesh, int m,
                 int n, int left, int *good, int *all)
{
    if (left == 0) {
        ++*all;
        *good += places_well(inst, n);
        return;
    }
    for (; m >= 0; m--)
        if (mesh_size(&mesh[m]) <= left) {
            many[n] =
                (struct plan_stage){.hosts = mesh[m].hosts, .devices = mesh[m].devices};
            tile(inst, mesh, m, n + 1, left - mesh_size(&mesh[m]), good, all);
        }
}

static void submeshes(void)
{
    struct ap_arena arena = {0};
    struct plan_submesh *mesh;
    int good = 0, all = 0, n = plan_submeshes(&arena, 2, 8, 8, &mesh);

    CHECK(n == 11 && n * 16 * 17 / 2 == 1496 &&
              plan_submeshes(&arena, 0, 8, 8, &mesh) == 7,
          "alpa §5.2: 11 submeshes of 8x8, 7 with powers of two of hosts");
    for (int hosts = 1; hosts <= 4; hosts++)
        for (int devices = 1; devices <= 8; devices *= 2) {
            struct plan_instance inst = {.n_hosts = hosts, .n_devices = devices};
            n = plan_submeshes(&arena, 2, hosts, devices, &mesh);
            tile(&inst, mesh, n - 1, 0, hosts * devices, &good, &all);
        }
    CHECK(all > 300 && good == all,
          "alpa appendix A: submeshes that add up to the cluster fit: %d of %d", good,
          all);
    ap_arena_free(&arena);
}

/* auto takes the rules' plans, too, and these have submeshes of their own. */
static void listed_only(void)
{
    int n = 0, n_stages = 0, n_listed = 0, restricted = 0;
    for (uint64_t seed = 5; seed <= 200; seed += 5) {
        struct plan_params params = params_of(seed), all = {.schedule = -1};
        struct ap_arena arena = {0};
        struct plan_answer a[3] = {0};
        struct ap_err err = {0};
        case_random(&cases, seed, 4);
        int rc = plan_exhaustive(&arena, &cases.inst, &params, &a[0], &err);
        params.n_kept = all.n_kept = 64;
        params.imbalance = all.imbalance = 0.08;
        n += plan_auto(&arena, &cases.inst, &params, &a[1], &err) == rc;
        if (plan_exhaustive(&arena, &cases.inst, &all, &a[2], &err) == 0)
            restricted += rc == 1 || a[2].step_sec < a[0].step_sec * (1 - 1e-9);
        for (int k = 0; k < 2 && rc == 0; k++)
            for (int s = 0; s < a[k].n_stages; s++, n_stages++)
                n_listed +=
                    plan_may_have(&params, a[k].stage[s].hosts, a[k].stage[s].devices);
        oracle_free(&cases.oracle);
        ap_arena_free(&arena);
    }
    CHECK(n == 40 && n_listed == n_stages && n_stages > 40 && restricted > 5,
          "plans have listed submeshes only: %d of %d stages; slower for it: %d",
          n_listed, n_stages, restricted);
}

static void closed_forms(void)
{
    struct plan_point p = {.forward_sec = 1, .backward_sec = 2};
    struct plan_point synced = {.forward_sec = 1, .backward_sec = 2, .sync_sec = 0.5};
    int with_sync = 0;
    struct ap_arena arena = {0};
    int good = 0, all = 0;

    case_random(&cases, 1, 1);
    case_cluster(&cases, 1, 8);
    cases.inst.memory_bytes = 0;
    cases.inst.n_values = 0;
    cases.inst.n_blocks = 8;
    for (int n = 1; n <= 8; n *= 2)
        for (int b = 1; b <= 16; b *= 2)
            for (int k = 0; k < 2; k++) {
                struct ap_err err = {0};
                struct plan_answer a = {.n_stages = n,
                                        .stage = many,
                                        .replicas = 1,
                                        .chunks = 1,
                                        .microbatches = b,
                                        .schedule =
                                            k ? AP_SCHEDULE_1F1B : AP_SCHEDULE_GPIPE};
                for (int s = 0; s < n; s++)
                    many[s] = (struct plan_stage){.lo = s * 8 / n,
                                                  .hi = (s + 1) * 8 / n - 1,
                                                  .hosts = 1,
                                                  .devices = 1,
                                                  .point = &p};
                int rc = plan_judge(&arena, &cases.inst, &a, &err);
                all++;
                double step = a.step_sec;
                for (int s = 0; s < n; s++)
                    many[s].point = &synced;
                with_sync += plan_judge(&arena, &cases.inst, &a, &err) == 0 &&
                             near(a.step_sec, 3 * (b + n - 1) + 0.5);
                a.step_sec = step;
                for (int s = 0; s < n; s++)
                    many[s].point = &p;
                good += rc == 0 && near(a.step_sec, 3 * n + 3 * (b - 1)) &&
                        near(a.step_sec, alpa_objective(&cases.inst, &a)) &&
                        plan_least_bare(&a) <= a.step_sec;
            }
    CHECK(good == all,
          "alpa §5.1: the judge equals sum + (B - 1) max on equal stages: %d of %d", good,
          all);
    CHECK(with_sync == all, "rannc §III-C: (MB + S - 1) (tf + tb) + AR: %d", with_sync);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* ---- no plan ---- */

static void too_many_stages(void)
{
    struct ap_arena arena = {0};
    struct plan_params params = {.schedule = -1, .n_stages = 9};
    int good = 0, n = 0;

    case_random(&cases, 3, 6);
    cases.inst.memory_bytes = 0;
    for (const struct plan_algorithm *row = plan_algorithms(); row->name; row++) {
        struct plan_answer a = {0};
        struct ap_err err = {0};
        if (!row->run)
            continue;
        n++;
        good += row->run(&arena, &cases.inst, &params, &a, &err) == 1;
    }
    CHECK(good == n, "9 stages of fewer blocks: %d of %d rows have none", good, n);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* Two of 64 blocks fit on a device: of 2080 runs few are asked for. */
static void asks_for_few(void)
{
    struct ap_arena arena = {0};
    struct plan_params params = {.schedule = -1};
    struct plan_answer a = {0};
    struct ap_err err = {0};
    const struct plan_algorithm *row = case_algorithm("inter-only");

    case_layers(&cases, 64, 1, 8, 1);
    cases.microbatches[0] = 64;
    cases.inst.twin = NULL;
    int rc = row->run(&arena, &cases.inst, &params, &a, &err);
    int64_t search = cases.oracle.n_asked;
    CHECK(rc == 1 && search >= 128 && search <= 3 * 64,
          "runs that contain one that does not fit are not asked for: %lld",
          (long long)search);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* ---- README of cmd/ap-stage ---- */

/* Blocks of 2, 1, 1 and 2 seconds a microbatch on one device, of which a doubling of
 * devices loses a fifth of the speed; 8 microbatches on a host of four devices. */
static void readme_case(void)
{
    static const double sec[] = {2, 1, 1, 2};

    memset(&cases, 0, sizeof cases);
    case_cluster(&cases, 1, 4);
    for (int b = 0; b < 4; b++) {
        cases.n_ops[b] = 1;
        cases.flops[b] = sec[b];
        cases.oracle.sec[b] = 8 * sec[b] / 3; /* forward of the whole batch */
        cases.oracle.weight_bytes[b] = 1000000000;
    }
    cases.oracle.loss = 0.2;
    cases.oracle.bandwidth = 0.5e9;
    cases.microbatches[0] = 8;
    case_values(&cases, 4, 0, 0);
    case_instance(&cases, 4, 1);
    cases.inst.least = oracle_least;
}

static void readme_bounds(struct ap_arena *arena)
{
    static const double done[] = {18.95, 17.075, 18.2, 20.2}; /* by number of stages */
    struct plan_params params = {.schedule = -1};
    struct ap_err err = {0};
    struct space sp;
    struct config c;
    struct setting set;
    struct labels l;
    int least[4], most[4];

    space_init(&sp, arena, &cases.inst, &params);
    config_init(&sp, &c, 1, 8, NULL, 0);
    CHECK(near(setting_known_bound(&sp, &c), 12),
          "README of cmd/ap-stage: device-seconds: 12 s");
    setting_init(&set, &sp, &c, AP_SCHEDULE_1F1B, INFINITY, &err);
    setting_labels(&set, true, &l);
    for (int i = l.first[4]; i < l.first[4] + l.n[4]; i++) {
        int s = l.all[i].least_stages;
        CHECK(s == l.all[i].most_stages && near(l.all[i].done, done[s - 1]),
              "README of cmd/ap-stage: bound of %d stages: %g s", s, l.all[i].done);
    }
    setting_free(&l);
    rhino_bounds(arena, &cases.inst, 2, 0.08, least, most);
    CHECK(most[1] == 0 && least[2] == 1, "README of cmd/ap-stage: rhino's bounds decide");
}

static void readme(void)
{
    static const struct {
        const char *name;
        double objective, step, bound;
        int n_stages, first_devices;
    } rows[] = {{"alpa", 17.075, 17.075, 0, 2, 2},
                {"rannc", 18.75, 18.95, 0, 1, 4},
                {"rhino", 0, 17.075, 0, 2, 2},
                {"inter-only", 20.2, 20.2, 0, 4, 1},
                {"pp-dp", 17.9, 17.9, 0, 2, 1},
                {"auto", 17.075, 17.075, 17.075, 2, 2},
                {"exhaustive", 17.075, 17.075, 17.075, 2, 2}};
    struct ap_arena arena = {0};
    struct plan_params params = {.schedule = -1, .imbalance = 0.08, .n_kept = 64};

    readme_case();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct plan_answer a = {.replicas = 1, .chunks = 1};
        struct ap_err err = {0};
        int rc =
            case_algorithm(rows[i].name)->run(&arena, &cases.inst, &params, &a, &err);
        CHECK(rc == 0 && near(a.objective, rows[i].objective) &&
                  near(a.step_sec, rows[i].step) &&
                  fabs(a.bound - rows[i].bound) < 1e-6 &&
                  a.n_stages == rows[i].n_stages &&
                  a.stage[0].hosts * a.stage[0].devices == rows[i].first_devices,
              "README of cmd/ap-stage: %s: %g, %g s simulated", rows[i].name, a.objective,
              a.step_sec);
    }
    readme_bounds(&arena);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

int main(void)
{
    submeshes();
    listed_only();
    closed_forms();
    rhino_units();
    alpa_is_exact();
    epsilon_is_bounded();
    equal_stages();
    rannc_is_exact();
    rhino_is_exact();
    too_many_stages();
    asks_for_few();
    readme();
    return tap_done();
}
