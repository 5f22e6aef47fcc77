/*
 * Problem: the plan of a file (--plan, --start) on another batch, other sizes of layers
 * or another cluster: stages, devices, schedule and microbatches stay, the point of each
 * stage's front is free. Idea: every stage gets its fastest point that fits; where that
 * is too much memory the first stages get their leanest ones, as few as fit. Then one
 * stage after the other, or with all that are like it, changes its point as long as the
 * simulated step gets shorter.
 * Cost: a front for each stage; a simulation for each point of each stage and round,
 * within a limit.
 */
#include <math.h>

#include "search/auto.h"

/* Simulated instructions of one number of microbatches, a quarter of what auto may
 * simulate, and so many plans, however large they are: leanest points are found by
 * halves.
 */
#define MOST_SIMULATED ((int64_t)2000000)
#define SIMULATED      16

struct given {
    struct stage_search search;
    struct space sp;
    const struct plan_front **front;        /* [stage] */
    const struct plan_point **fast, **lean; /* [stage] */
    int *flight, *held; /* [stage]: microbatches in flight, at least and about */
    struct plan_answer now;
    struct plan_stage *best; /* the points of the best one, while others are tried */
};

static struct plan_ask ask_of(const struct plan_answer *a, int s)
{
    const struct plan_stage *st = &a->stage[s];
    return (struct plan_ask){.lo = st->lo,
                             .hi = st->hi,
                             .set = st->set,
                             .hosts = st->hosts,
                             .devices = st->devices,
                             .kind = st->kind,
                             .replicas = a->replicas,
                             .microbatches = a->microbatches};
}

static int ask_all(struct given *g, struct ap_err *err)
{
    const struct plan_instance *inst = g->sp.inst;
    const int n = g->now.n_stages;
    struct plan_ask *ask = AP_NEW_N(g->sp.arena, n, struct plan_ask);

    for (int s = 0; s < n; s++)
        ask[s] = ask_of(&g->now, s);
    if (inst->ahead && inst->ahead(inst->oracle, ask, n, err))
        return -1;
    for (int s = 0; s < n; s++)
        if (inst->ask(inst->oracle, &ask[s], &g->front[s], err))
            return -1;
    g->sp.n_asked += n;
    return 0;
}

static int64_t bytes_of(const struct given *g, int s, const struct plan_point *p)
{
    const int64_t own = g->now.chunks > 1 ? plan_always_bytes(p) : p->stage_bytes;
    return ap_add64(own, ap_mul64(p->microbatch_bytes, g->held[s]));
}

/* 1: nothing runs a stage in the memory; err says which. */
static int pick_points(struct given *g, struct ap_err *err)
{
    const struct plan_instance *inst = g->sp.inst;
    const struct plan_answer *a = &g->now;

    for (int s = 0; s < a->n_stages; s++) {
        const struct plan_front *front = g->front[s];
        g->flight[s] = g->held[s] =
            plan_in_flight(a->schedule, a->n_stages - s, a->microbatches);
        if (a->schedule == AP_SCHEDULE_INTERLEAVED) {
            g->flight[s] = 1;
            g->held[s] = plan_groups(a);
        }
        g->fast[s] =
            plan_fastest(inst, a->stage[s].kind, front, a->microbatches, g->flight[s]);
        g->lean[s] = g->fast[s];
        for (int i = 0; i < front->n; i++)
            if (g->lean[s] &&
                bytes_of(g, s, &front->point[i]) < bytes_of(g, s, g->lean[s]))
                g->lean[s] = &front->point[i];
        if (!g->fast[s])
            return ap_err_set(err, "plan: stage %d with %lld microbatch%s %s", s,
                              (long long)a->microbatches,
                              a->microbatches == 1 ? "" : "es",
                              front->n > 0 ? "does not fit in memory"
                                           : "does not run on its devices"),
                   1;
    }
    return 0;
}

/* The score with the leanest points for the first n_lean stages. */
static double try_lean(struct given *g, int n_lean)
{
    for (int s = 0; s < g->now.n_stages; s++)
        g->now.stage[s].point = s < n_lean ? g->lean[s] : g->fast[s];
    return auto_score(&g->search, &g->sp, &g->now, "plan");
}

/* The best score found by that; the plan is left in now. */
static double try_first(struct given *g)
{
    int lo = 0, hi = g->now.n_stages;
    double score = try_lean(g, lo);

    if (isfinite(score) || !isfinite(try_lean(g, hi)))
        return score;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (isfinite(try_lean(g, mid)))
            hi = mid;
        else
            lo = mid;
    }
    return try_lean(g, hi);
}

/* Gives stage s a point, or all stages of its front; false: it does not fit in one. */
static bool set_point(struct given *g, int s, bool all, const struct plan_point *p)
{
    bool fits = true;

    for (int t = 0; t < g->now.n_stages; t++) {
        struct plan_stage *st = &g->now.stage[t];
        if (t != s && (!all || g->front[t] != g->front[s]))
            continue;
        st->point = p;
        fits = fits && plan_fits(g->sp.inst, st->kind, p, g->flight[t]);
    }
    return fits;
}

static void copy_points(struct plan_stage *to, const struct plan_stage *from, int n)
{
    for (int s = 0; s < n; s++)
        to[s].point = from[s].point;
}

/* Other points of stage s, or of all that are like it; whether the score became less. */
static bool improve(struct given *g, int s, bool all, double *score)
{
    const int n = g->now.n_stages;
    bool found = false;

    copy_points(g->best, g->now.stage, n);
    for (int i = 0; i < g->front[s]->n; i++) {
        copy_points(g->now.stage, g->best, n);
        if (!set_point(g, s, all, &g->front[s]->point[i]) ||
            (!g->sp.inst->inference && plan_least_bare(&g->now) >= *score))
            continue;
        double its = auto_score(&g->search, &g->sp, &g->now, "plan");
        if (its < *score) {
            *score = its;
            copy_points(g->best, g->now.stage, n);
            found = true;
        }
    }
    copy_points(g->now.stage, g->best, n);
    return found;
}

/* With one number of microbatches. 0; 1: it does not fit, err says why; -1. */
static int try_microbatches(struct given *g, const struct plan_outline *o,
                            int64_t microbatches, struct ap_err *err)
{
    g->now = (struct plan_answer){
        .n_stages = o->n_stages,
        .stage =
            ap_arena_dup(g->sp.arena, o->stage, (size_t)o->n_stages * sizeof *o->stage),
        .replicas = o->replicas,
        .microbatches = microbatches,
        .schedule = (enum ap_schedule)o->schedule,
        .chunks = o->chunks};
    if (ask_all(g, err))
        return -1;
    if (pick_points(g, err))
        return 1;
    g->search.instruction_limit = g->search.instructions + MOST_SIMULATED +
                                  SIMULATED * 2 * o->n_stages * microbatches;
    double score = try_first(g);
    if (!isfinite(score)) {
        double ignored;
        return plan_try(&g->sp, &g->now, &ignored, err) ? 1 : 0;
    }
    for (bool more = true; more;) {
        more = false;
        for (int s = 0; s < 2 * g->now.n_stages; s++)
            more |= improve(g, s / 2, s % 2 == 0, &score);
    }
    return 0;
}

int plan_given(struct ap_arena *arena, const struct plan_instance *inst,
               const struct plan_params *params, struct plan_answer *answer,
               struct ap_err *err)
{
    const struct plan_outline *o = params->given;
    struct given g = {.search = {.arena = arena,
                                 .inst = inst,
                                 .params = params,
                                 .least = INFINITY,
                                 .bare = INFINITY},
                      .front = AP_NEW_N(arena, o->n_stages, const struct plan_front *),
                      .fast = AP_NEW_N(arena, o->n_stages, const struct plan_point *),
                      .lean = AP_NEW_N(arena, o->n_stages, const struct plan_point *),
                      .flight = AP_NEW_N(arena, o->n_stages, int),
                      .held = AP_NEW_N(arena, o->n_stages, int),
                      .best = AP_NEW_N(arena, o->n_stages, struct plan_stage)};
    struct ap_err why = {0};

    space_init(&g.sp, arena, inst, params);
    for (int i = 0; i < inst->n_microbatches; i++)
        if ((o->microbatches == 0 || o->microbatches == inst->microbatches[i]) &&
            try_microbatches(&g, o, inst->microbatches[i], &why) < 0)
            return *err = why, -1;
    const struct shortlist *found = &g.search.final;
    if (found->n == 0)
        return *why.msg ? (*err = why, 1) : plan_none_fits("plan", err);
    *answer = found->plan[0];
    answer->objective = found->score[0];
    answer->bound = 0;
    answer->measure = "simulated";
    answer->stopped = "given";
    answer->n_asked = g.sp.n_asked;
    answer->n_plans = g.sp.n_plans;
    answer->n_others = found->n - 1;
    answer->others = ap_arena_dup(arena, found->plan + 1,
                                  (size_t)answer->n_others * sizeof *found->plan);
    return 0;
}
