/*
 * Problem: what people type or search by hand: pipelines whose stages are identical.
 * Idea: all members of each family, by simulated time.
 *   none: one stage on everything, no microbatches.
 *   intra-only: one stage on everything.
 *   inter-only: a device for each stage, cuts by Alpa's programme; devices may be idle.
 *   pp-dp: pipelines of single devices, side by side.
 *   equal-pipelines: replicas of pipelines with equal numbers of blocks in each stage,
 *     which lies inside a host; where auto starts.
 *   equal-replicas: no pipeline; replicas of a submesh; likewise.
 * Cost: members of a family; inter-only and pp-dp run the programme for each.
 * Source: Zheng et al., "Alpa" (OSDI 2022), sections 8.1 and 8.3; Narayanan et al.,
 * "Efficient large-scale language model training on GPU clusters using Megatron-LM"
 * (SC 2021), section 3.
 */
#include <math.h>

#include "search/auto.h"

#include "base/array.h"

struct grid {
    struct space sp;
    struct plan_answer *best;
    double least;
    bool found;
};

static void consider(struct grid *g, struct plan_answer *a)
{
    struct ap_err why = {0};
    double score;
    if (g->found && !g->sp.inst->inference && plan_least_bare(a) >= g->least)
        return;
    if (plan_try(&g->sp, a, &score, &why) || (g->found && score >= g->least))
        return;
    g->found = true;
    g->least = score;
    *g->best = *a;
    g->best->objective = score;
    g->best->measure = "simulated";
    g->best->stopped = "whole family";
}

/* One of a family: stages that are identical, on the configuration's only mesh. */
struct member {
    struct config c;
    int n_stages, *end;
    int n_known; /* stages that are asked for, and fit */
    bool out;    /* one does not fit */
};

struct members {
    int n, cap;
    struct member *member; /* arena */
};

static void add_member(struct grid *g, struct members *all, int64_t microbatches,
                       int replicas, struct plan_submesh mesh, int n_stages)
{
    struct member m = {.n_stages = n_stages};
    struct plan_submesh *own = ap_arena_dup(g->sp.arena, &mesh, sizeof mesh);

    if (!config_init(&g->sp, &m.c, replicas, microbatches, own, 1))
        return;
    m.end = AP_NEW_N(g->sp.arena, n_stages, int);
    for (int s = 0; s < n_stages; s++)
        m.end[s] = (int)((int64_t)g->sp.n * (s + 1) / n_stages) - 1;
    AP_ROOM_IN(g->sp.arena, all->member, all->n, all->cap);
    all->member[all->n++] = m;
}

static bool has_schedule(const struct grid *g, enum ap_schedule schedule)
{
    const int asked = g->sp.params->schedule;
    const bool plain = schedule <= AP_SCHEDULE_1F1B || schedule == AP_SCHEDULE_INFERENCE;
    return g->sp.inst->inference == (schedule == AP_SCHEDULE_INFERENCE) &&
           (asked < 0
                ? plain
                : asked == (int)schedule && (plain || schedule == AP_SCHEDULE_EAGER));
}

static int first_block(const struct member *m, int s)
{
    return s > 0 ? m->end[s - 1] + 1 : 0;
}

/* The point of a stage that is fastest over a step, NULL when none fits. */
static int pick_point(struct grid *g, struct member *m, enum ap_schedule schedule, int s,
                      const struct plan_point **point, struct ap_err *err)
{
    int flight = plan_in_flight(schedule, m->n_stages - s, m->c.microbatches);
    const struct plan_front *front;

    if (config_front(&g->sp, &m->c, first_block(m, s), m->end[s], 0, &front, err))
        return -1;
    *point = plan_fastest(g->sp.inst, 0, front, m->c.microbatches, flight);
    return 0;
}

/* 1 when a stage has no point. */
static int pick_points(struct grid *g, struct member *m, enum ap_schedule schedule,
                       struct plan_answer *a, struct ap_err *err)
{
    *a = (struct plan_answer){.n_stages = m->n_stages,
                              .replicas = m->c.replicas,
                              .microbatches = m->c.microbatches,
                              .schedule = schedule,
                              .chunks = 1};
    a->stage = AP_NEW_N(g->sp.arena, m->n_stages, struct plan_stage);
    for (int s = 0; s < m->n_stages; s++) {
        a->stage[s] = (struct plan_stage){.lo = first_block(m, s),
                                          .hi = m->end[s],
                                          .hosts = m->c.mesh->hosts,
                                          .devices = m->c.mesh->devices};
        if (pick_point(g, m, schedule, s, &a->stage[s].point, err))
            return -1;
        if (!a->stage[s].point)
            return 1;
    }
    return 0;
}

/* Goes on to the first stage that must be asked for. */
static int go_on(struct grid *g, struct member *m, struct ap_err *err)
{
    while (!m->out && m->n_known < m->n_stages) {
        int s = m->n_known;
        bool fits = false;
        if (config_note(&g->sp, &m->c, first_block(m, s), m->end[s], 0))
            return 0;
        for (int i = 0; i < AP_N_SCHEDULES && !fits; i++) {
            const struct plan_point *point;
            if (!has_schedule(g, (enum ap_schedule)i))
                continue;
            if (pick_point(g, m, (enum ap_schedule)i, s, &point, err))
                return -1;
            fits = point != NULL;
        }
        m->out = !fits;
        m->n_known++;
    }
    return 0;
}

/* What all members ask for, side by side: stage after stage, while they fit. */
static int ask_members(struct grid *g, struct members *all, struct ap_err *err)
{
    for (;;) {
        for (int i = 0; i < all->n; i++)
            if (go_on(g, &all->member[i], err))
                return -1;
        if (g->sp.n_noted == 0)
            return 0;
        if (space_ask_noted(&g->sp, err))
            return -1;
        for (int i = 0; i < all->n; i++) {
            struct member *m = &all->member[i];
            const struct plan_front *front;
            if (!m->out && m->n_known < m->n_stages &&
                config_front(&g->sp, &m->c, first_block(m, m->n_known),
                             m->end[m->n_known], 0, &front, err))
                return -1;
        }
    }
}

/* All members, under every schedule asked. */
static int try_members(struct grid *g, struct members *all, struct ap_err *err)
{
    if (ask_members(g, all, err))
        return -1;
    for (int i = 0; i < all->n; i++)
        for (int k = 0; k < AP_N_SCHEDULES; k++) {
            struct member *m = &all->member[i];
            struct plan_answer a;
            if (m->out || !has_schedule(g, (enum ap_schedule)k))
                continue;
            int rc = pick_points(g, m, (enum ap_schedule)k, &a, err);
            if (rc < 0)
                return -1;
            if (rc == 0)
                consider(g, &a);
        }
    return 0;
}

static int begin(struct grid *g, const char *name, struct ap_arena *arena,
                 const struct plan_instance *inst, const struct plan_params *params,
                 struct plan_answer *answer, struct ap_err *err)
{
    *g = (struct grid){.best = answer, .least = INFINITY};
    space_init(&g->sp, arena, inst, params);
    return params->schedule == AP_SCHEDULE_EAGER ? 0
                                                 : plan_check_schedule(name, params, err);
}

static int end_of(struct grid *g, const char *name, struct ap_err *err)
{
    if (!g->found)
        return plan_none_fits(name, err);
    g->best->n_asked = g->sp.n_asked;
    g->best->n_plans = g->sp.n_plans;
    return 0;
}

/* ---- one stage ---- */

static void add_one_stage(struct grid *g, struct members *all, int64_t microbatches,
                          int replicas, struct plan_submesh mesh)
{
    if (g->sp.params->n_stages <= 1)
        add_member(g, all, microbatches, replicas, mesh, 1);
}

int plan_none(struct ap_arena *arena, const struct plan_instance *inst,
              const struct plan_params *params, struct plan_answer *answer,
              struct ap_err *err)
{
    struct grid g;
    struct members all = {0};
    struct plan_submesh whole = {inst->n_hosts, inst->n_devices, 0};

    if (begin(&g, "none", arena, inst, params, answer, err))
        return -1;
    if (inst->microbatches[0] == 1)
        add_one_stage(&g, &all, 1, 1, whole);
    return try_members(&g, &all, err) ? -1 : end_of(&g, "none", err);
}

int plan_intra_only(struct ap_arena *arena, const struct plan_instance *inst,
                    const struct plan_params *params, struct plan_answer *answer,
                    struct ap_err *err)
{
    struct grid g;
    struct members all = {0};
    struct plan_submesh whole = {inst->n_hosts, inst->n_devices, 0};

    if (begin(&g, "intra-only", arena, inst, params, answer, err))
        return -1;
    for (int i = 0; i < inst->n_microbatches; i++)
        add_one_stage(&g, &all, inst->microbatches[i], 1, whole);
    return try_members(&g, &all, err) ? -1 : end_of(&g, "intra-only", err);
}

int plan_equal_replicas(struct ap_arena *arena, const struct plan_instance *inst,
                        const struct plan_params *params, struct plan_answer *answer,
                        struct ap_err *err)
{
    struct grid g;
    struct members all = {0};
    struct plan_submesh *mesh;
    int n = plan_submeshes(arena, 0, inst->n_hosts, inst->n_devices, &mesh);
    int devices = inst->n_hosts * inst->n_devices;

    if (begin(&g, "equal-replicas", arena, inst, params, answer, err))
        return -1;
    for (int m = 0; m < n; m++)
        for (int i = 0; i < inst->n_microbatches; i++)
            if (devices % mesh_size(&mesh[m]) == 0)
                add_one_stage(&g, &all, inst->microbatches[i],
                              devices / mesh_size(&mesh[m]), mesh[m]);
    return try_members(&g, &all, err) ? -1 : end_of(&g, "equal-replicas", err);
}

/* ---- pipelines ---- */

int plan_equal_pipelines(struct ap_arena *arena, const struct plan_instance *inst,
                         const struct plan_params *params, struct plan_answer *answer,
                         struct ap_err *err)
{
    struct grid g;
    struct members all = {0};
    int devices = inst->n_hosts * inst->n_devices;

    if (begin(&g, "equal-pipelines", arena, inst, params, answer, err))
        return -1;
    for (int tp = 1; tp <= inst->n_devices; tp++)
        for (int pp = 1; pp <= inst->n_blocks; pp++)
            for (int i = 0; i < inst->n_microbatches; i++)
                if (inst->n_devices % tp == 0 && devices % (tp * pp) == 0 &&
                    inst->n_blocks % pp == 0 &&
                    (params->n_stages == 0 || params->n_stages == pp))
                    add_member(&g, &all, inst->microbatches[i], devices / (tp * pp),
                               (struct plan_submesh){1, tp, 0}, pp);
    return try_members(&g, &all, err) ? -1 : end_of(&g, "equal-pipelines", err);
}

/* Cuts by Alpa's programme, one device a stage. */
static int single_devices(struct grid *g, int replicas, bool idle, struct ap_err *err)
{
    static const struct plan_submesh one = {1, 1, 0};
    const struct plan_instance *inst = g->sp.inst;

    if (plan_check_schedule("one device a stage", g->sp.params, err))
        return -1;
    for (int i = 0; i < inst->n_microbatches; i++)
        for (int gpipe = 0; gpipe < 2; gpipe++) {
            struct config c;
            struct alpa_plans plans = {.limited = false};
            struct alpa_limits limits = {.n_stages = g->sp.params->n_stages,
                                         .idle = idle,
                                         .schedule_gpipe = gpipe};
            int asked = g->sp.params->schedule;
            if (asked >= 0 && asked != AP_SCHEDULE_INFERENCE &&
                asked != (gpipe ? AP_SCHEDULE_GPIPE : AP_SCHEDULE_1F1B))
                continue;
            if (!config_init(&g->sp, &c, replicas, inst->microbatches[i], &one, 1) ||
                (!idle && c.hosts * c.devices > g->sp.n))
                continue;
            if (alpa_search(&g->sp, &c, &limits, &plans, err))
                return -1;
            if (plans.own.n_stages > 0)
                consider(g, &plans.own);
        }
    return 0;
}

int plan_inter_only(struct ap_arena *arena, const struct plan_instance *inst,
                    const struct plan_params *params, struct plan_answer *answer,
                    struct ap_err *err)
{
    struct grid g;
    if (begin(&g, "inter-only", arena, inst, params, answer, err) ||
        single_devices(&g, 1, true, err))
        return -1;
    return end_of(&g, "inter-only", err);
}

int plan_pp_dp(struct ap_arena *arena, const struct plan_instance *inst,
               const struct plan_params *params, struct plan_answer *answer,
               struct ap_err *err)
{
    struct grid g;
    int all = inst->n_hosts * inst->n_devices;

    if (begin(&g, "pp-dp", arena, inst, params, answer, err))
        return -1;
    for (int r = 1; r <= all; r++)
        if (all % r == 0 && single_devices(&g, r, false, err))
            return -1;
    return end_of(&g, "pp-dp", err);
}
