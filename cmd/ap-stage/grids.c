/*
 * Problem: what people type or search by hand: pipelines whose stages are alike.
 * Idea: all members of each family, by simulated time.
 *   none: one stage on everything, no microbatches.
 *   intra-only: one stage on everything.
 *   inter-only: a device for each stage, cuts by Alpa's programme; devices may be idle.
 *   pp-dp: pipelines of single devices, side by side.
 *   megatron-grid: pipeline x data x tensor, equal numbers of layers in each stage, a
 *     stage's tensor parallelism inside a host.
 *   deepspeed-moe-grid: no pipeline; experts over a submesh, data over its copies.
 * Cost: members of a family; inter-only and pp-dp run the programme for each.
 * Source: Zheng et al., "Alpa" (OSDI 2022), sections 8.1 and 8.3; Narayanan et al.,
 * "Efficient large-scale language model training on GPU clusters using Megatron-LM"
 * (SC 2021), section 3.
 */
#include <math.h>

#include "space.h"

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
    if (g->found && plan_least_sec(g->sp.inst, a) >= g->least * (1 + 1e-12))
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

/* Stages with given ends, each on the configuration's first mesh, every one the point
 * that is fastest over a step; false when one has none. */
static int pick_points(struct grid *g, struct config *c, enum ap_schedule schedule,
                       const int *end, int n_stages, struct plan_answer *a,
                       struct ap_err *err)
{
    *a = (struct plan_answer){.n_stages = n_stages,
                              .replicas = c->replicas,
                              .microbatches = c->microbatches,
                              .schedule = schedule,
                              .chunks = 1};
    a->stage = AP_NEW_N(g->sp.arena, n_stages, struct plan_stage);
    for (int s = 0; s < n_stages; s++) {
        int lo = s > 0 ? end[s - 1] + 1 : 0;
        int flight = plan_in_flight(schedule, n_stages - s, c->microbatches);
        const struct plan_front *front;
        double least = INFINITY;
        if (config_front(&g->sp, c, lo, end[s], 0, &front, err))
            return -1;
        a->stage[s] = (struct plan_stage){
            .lo = lo, .hi = end[s], .hosts = c->mesh->hosts, .devices = c->mesh->devices};
        for (int i = 0; i < front->n; i++) {
            const struct plan_point *p = &front->point[i];
            double sec = (double)c->microbatches * (p->forward_sec + p->backward_sec) +
                         p->sync_sec + p->update_sec;
            if (sec < least && plan_fits(g->sp.inst, p, flight)) {
                least = sec;
                a->stage[s].point = p;
            }
        }
        if (!a->stage[s].point)
            return 1;
    }
    return 0;
}

/* Equal numbers of blocks in n_stages stages on one mesh, under every schedule asked. */
static int equal_stages(struct grid *g, struct config *c, int n_stages,
                        struct ap_err *err)
{
    int n = g->sp.n, asked = g->sp.params->schedule;
    int *end = AP_NEW_N(g->sp.arena, n_stages, int);

    for (int s = 0; s < n_stages; s++)
        end[s] = (int)((int64_t)n * (s + 1) / n_stages) - 1;
    for (int i = AP_SCHEDULE_GPIPE; i <= AP_SCHEDULE_INFERENCE; i++) {
        struct plan_answer a;
        if (i == AP_SCHEDULE_INTERLEAVED ||
            g->sp.inst->inference != (i == AP_SCHEDULE_INFERENCE) ||
            (asked >= 0 && asked != i))
            continue;
        int rc = pick_points(g, c, (enum ap_schedule)i, end, n_stages, &a, err);
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
    if (params->schedule == AP_SCHEDULE_INTERLEAVED)
        return ap_err_set(err, "%s: plans no chunks (schedule interleaved-1f1b)", name);
    return 0;
}

static int end_of(struct grid *g, const char *name, struct ap_err *err)
{
    if (!g->found)
        return plan_explain(&g->sp, name, err);
    g->best->n_asked = g->sp.n_asked;
    g->best->n_plans = g->sp.n_plans;
    return 0;
}

/* ---- one stage ---- */

static int one_stage(struct grid *g, int64_t microbatches, int replicas,
                     struct plan_submesh mesh, struct ap_err *err)
{
    struct config c;
    struct plan_submesh *own = ap_arena_dup(g->sp.arena, &mesh, sizeof mesh);
    if (g->sp.params->n_stages > 1 ||
        !config_init(&g->sp, &c, replicas, microbatches, own, 1))
        return 0;
    return equal_stages(g, &c, 1, err);
}

int plan_none(struct ap_arena *arena, const struct plan_instance *inst,
              const struct plan_params *params, struct plan_answer *answer,
              struct ap_err *err)
{
    struct grid g;
    if (begin(&g, "none", arena, inst, params, answer, err) ||
        (inst->microbatches[0] == 1 &&
         one_stage(&g, 1, 1, (struct plan_submesh){inst->n_hosts, inst->n_devices}, err)))
        return -1;
    return end_of(&g, "none", err);
}

int plan_intra_only(struct ap_arena *arena, const struct plan_instance *inst,
                    const struct plan_params *params, struct plan_answer *answer,
                    struct ap_err *err)
{
    struct grid g;
    struct plan_submesh whole = {inst->n_hosts, inst->n_devices};
    if (begin(&g, "intra-only", arena, inst, params, answer, err))
        return -1;
    for (int i = 0; i < inst->n_microbatches; i++)
        if (one_stage(&g, inst->microbatches[i], 1, whole, err))
            return -1;
    return end_of(&g, "intra-only", err);
}

int plan_deepspeed_moe_grid(struct ap_arena *arena, const struct plan_instance *inst,
                            const struct plan_params *params, struct plan_answer *answer,
                            struct ap_err *err)
{
    struct grid g;
    struct plan_submesh *mesh;
    int n = plan_submeshes(arena, 0, inst->n_hosts, inst->n_devices, &mesh);
    int all = inst->n_hosts * inst->n_devices;

    if (begin(&g, "deepspeed-moe-grid", arena, inst, params, answer, err))
        return -1;
    for (int m = 0; m < n; m++)
        for (int i = 0; i < inst->n_microbatches; i++)
            if (all % mesh_size(&mesh[m]) == 0 &&
                one_stage(&g, inst->microbatches[i], all / mesh_size(&mesh[m]), mesh[m],
                          err))
                return -1;
    return end_of(&g, "deepspeed-moe-grid", err);
}

/* ---- pipelines ---- */

int plan_megatron_grid(struct ap_arena *arena, const struct plan_instance *inst,
                       const struct plan_params *params, struct plan_answer *answer,
                       struct ap_err *err)
{
    struct grid g;
    int all = inst->n_hosts * inst->n_devices;

    if (begin(&g, "megatron-grid", arena, inst, params, answer, err))
        return -1;
    for (int tp = 1; tp <= inst->n_devices; tp++)
        for (int pp = 1; pp <= inst->n_blocks; pp++)
            for (int i = 0; i < inst->n_microbatches; i++) {
                struct config c;
                struct plan_submesh own = {1, tp};
                if (inst->n_devices % tp != 0 || all % (tp * pp) != 0 ||
                    inst->n_blocks % pp != 0 ||
                    (params->n_stages > 0 && params->n_stages != pp))
                    continue;
                if (config_init(&g.sp, &c, all / (tp * pp), inst->microbatches[i],
                                ap_arena_dup(arena, &own, sizeof own), 1) &&
                    equal_stages(&g, &c, pp, err))
                    return -1;
            }
    return end_of(&g, "megatron-grid", err);
}

/* Cuts by Alpa's programme, one device a stage. */
static int single_devices(struct grid *g, int replicas, bool idle, struct ap_err *err)
{
    static const struct plan_submesh one = {1, 1};
    const struct plan_instance *inst = g->sp.inst;

    for (int i = 0; i < inst->n_microbatches; i++)
        for (int gpipe = 0; gpipe < 2; gpipe++) {
            struct config c;
            struct plan_answer a;
            struct alpa_limits limits = {.n_stages = g->sp.params->n_stages,
                                         .idle = idle,
                                         .schedule_gpipe = gpipe,
                                         .below = INFINITY};
            int asked = g->sp.params->schedule;
            if (asked >= 0 && asked != AP_SCHEDULE_INFERENCE &&
                asked != (gpipe ? AP_SCHEDULE_GPIPE : AP_SCHEDULE_1F1B))
                continue;
            if (!config_init(&g->sp, &c, replicas, inst->microbatches[i], &one, 1) ||
                (!idle && c.hosts * c.devices > g->sp.n))
                continue;
            int rc = alpa_search(&g->sp, &c, &limits, &a, err);
            if (rc < 0)
                return -1;
            if (rc == 0)
                consider(g, &a);
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
