/*
 * Problem: the plan of least simulated time.
 * Idea: all of them: replicas, microbatches, schedules, cuts, submeshes, points. Only
 * plans in which some device has at least as much work as the best plan takes are
 * left out. Chunks of interleaved-1f1b lie on two or more groups of devices of
 * one shape and kind.
 * Cost: exponential; the oracle of the others on tiny instances.
 */
#include <math.h>

#include "search/space.h"

#define PLAN_LIMIT  ((int64_t)20000000)
#define MAX_BLOCKS  10
#define MAX_DEVICES 16

struct walk {
    struct space *sp;
    struct config c;
    enum ap_schedule schedule;
    int chunks, mesh, n_stages; /* interleaved: of these; otherwise chunks 1 */
    struct plan_answer now, best;
    double least, *load; /* [stage]: of its group up to it, seconds */
    int64_t limit;
    bool found;
};

static void judge(struct walk *w)
{
    struct ap_err why = {0};
    double score;
    const struct plan_instance *inst = w->sp->inst;
    struct plan_answer *a = &w->now;

    if (w->chunks == 1)
        for (int s = 0; s < a->n_stages; s++)
            if (!plan_fits(
                    inst, a->stage[s].kind, a->stage[s].point,
                    plan_in_flight(w->schedule, a->n_stages - s, w->c.microbatches)))
                return;
    if (plan_try(w->sp, a, &score, &why) == 0 && (!w->found || score < w->least)) {
        w->found = true;
        w->least = score;
        for (int s = 0; s < a->n_stages; s++)
            w->best.stage[s] = a->stage[s];
        struct plan_stage *stage = w->best.stage;
        w->best = *a;
        w->best.stage = stage;
    }
}

static int walk(struct walk *w, int lo, int left, struct ap_err *err);

/* One stage on one mesh, in every way. */
static int walk_points(struct walk *w, int lo, int hi, int mesh, int left,
                       struct ap_err *err)
{
    const struct plan_front *front;
    int s = w->now.n_stages, groups = w->n_stages / w->chunks;

    if (config_front(w->sp, &w->c, lo, hi, mesh, &front, err))
        return -1;
    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        double sec = (p->forward_sec + p->backward_sec) * (double)w->c.microbatches;
        w->load[s] = sec + (w->chunks > 1 && s >= groups ? w->load[s - groups] : 0);
        if (w->found && w->load[s] >= w->least)
            continue;
        w->now.stage[s] = (struct plan_stage){.lo = lo,
                                              .hi = hi,
                                              .hosts = w->c.mesh[mesh].hosts,
                                              .devices = w->c.mesh[mesh].devices,
                                              .kind = w->c.mesh[mesh].kind,
                                              .point = p};
        w->now.n_stages = s + 1;
        if (walk(w, hi + 1, left, err))
            return -1;
        w->now.n_stages = s;
    }
    return 0;
}

static int walk(struct walk *w, int lo, int left, struct ap_err *err)
{
    int n = w->sp->n, s = w->now.n_stages;

    if (lo == n) {
        if (w->n_stages == 0 || s == w->n_stages)
            judge(w);
        if (w->sp->n_plans > w->limit)
            return ap_err_set(err,
                              "exhaustive: more than %lld plans: too many blocks, "
                              "devices or points",
                              (long long)w->limit);
        return 0;
    }
    if (w->n_stages > 0 && s == w->n_stages)
        return 0;
    for (int hi = lo; hi < n; hi++)
        for (int m = 0; m < w->c.n_meshes; m++) {
            bool same = w->chunks > 1 && m == w->mesh;
            if (w->chunks > 1 ? !same : !config_has(&w->c, left, m))
                continue;
            if (walk_points(w, lo, hi, m,
                            w->chunks > 1 ? left : left - config_take(&w->c, m), err))
                return -1;
        }
    return 0;
}

static int start(struct walk *w, enum ap_schedule schedule, int chunks, int mesh,
                 int n_stages, struct ap_err *err)
{
    w->schedule = schedule;
    w->chunks = chunks;
    w->mesh = mesh;
    w->n_stages = n_stages;
    w->now = (struct plan_answer){.stage = w->now.stage,
                                  .replicas = w->c.replicas,
                                  .microbatches = w->c.microbatches,
                                  .schedule = schedule,
                                  .chunks = chunks,
                                  .measure = "simulated",
                                  .stopped = "all plans"};
    return walk(w, 0, w->c.counts.width - 1, err);
}

static int walk_chunks(struct walk *w, struct ap_err *err)
{
    int n = w->sp->n, want = w->sp->params->n_stages;

    for (int m = 0; m < w->c.n_meshes; m++) {
        int most = w->c.counts.most[w->c.mesh[m].kind] / mesh_size(&w->c.mesh[m]);
        for (int groups = 2; groups <= most; groups++) {
            if (w->c.microbatches % groups != 0)
                continue;
            for (int s = 2 * groups; s <= n; s += groups)
                if ((want == 0 || want == s) &&
                    start(w, AP_SCHEDULE_INTERLEAVED, s / groups, m, s, err))
                    return -1;
        }
    }
    return 0;
}

static int walk_config(struct walk *w, struct ap_err *err)
{
    const struct plan_params *p = w->sp->params;

    if (w->sp->inst->inference)
        return start(w, AP_SCHEDULE_INFERENCE, 1, 0, p->n_stages, err);
    if (p->schedule == AP_SCHEDULE_EAGER)
        return start(w, AP_SCHEDULE_EAGER, 1, 0, p->n_stages, err);
    for (int s = AP_SCHEDULE_GPIPE; s <= AP_SCHEDULE_1F1B; s++)
        if ((p->schedule < 0 || p->schedule == s) &&
            start(w, (enum ap_schedule)s, 1, 0, p->n_stages, err))
            return -1;
    if (p->schedule < 0 || p->schedule == AP_SCHEDULE_INTERLEAVED)
        return walk_chunks(w, err);
    return plan_check_schedule("exhaustive", p, err);
}

int plan_exhaustive(struct ap_arena *arena, const struct plan_instance *inst,
                    const struct plan_params *params, struct plan_answer *answer,
                    struct ap_err *err)
{
    struct space sp;
    int all = inst->n_hosts * inst->n_devices;

    if (inst->n_blocks > MAX_BLOCKS || all > MAX_DEVICES)
        return ap_err_set(err,
                          "exhaustive: up to %d blocks and %d devices, not %d and %d",
                          MAX_BLOCKS, MAX_DEVICES, inst->n_blocks, all);
    space_init(&sp, arena, inst, params);
    struct walk w = {.sp = &sp,
                     .load = AP_NEW_N(arena, inst->n_blocks, double),
                     .limit = params->work_limit ? params->work_limit : PLAN_LIMIT};
    w.now.stage = AP_NEW_N(arena, inst->n_blocks, struct plan_stage);
    w.best.stage = AP_NEW_N(arena, inst->n_blocks, struct plan_stage);
    for (int r = 1; r <= all; r++)
        for (int i = 0; i < inst->n_microbatches; i++)
            if (config_init(&sp, &w.c, r, inst->microbatches[i], NULL, 0) &&
                walk_config(&w, err))
                return -1;
    if (!w.found)
        return plan_none_fits("exhaustive", err);
    *answer = w.best;
    answer->objective = w.least;
    answer->bound = w.least;
    for (int i = 0; i < inst->n_values; i++) /* sends are estimates */
        if (inst->value[i].forward_bytes > 0 || inst->value[i].backward_bytes > 0)
            answer->bound = 0;
    answer->n_asked = sp.n_asked;
    answer->n_plans = sp.n_plans;
    return plan_judge(arena, inst, answer, err);
}
