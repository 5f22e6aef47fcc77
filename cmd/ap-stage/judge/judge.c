/*
 * What all planners share: the submeshes of a cluster, where the stages of a plan lie,
 * what they send to each other, and the simulated time and memory of a step.
 * Source: Zheng et al., "Alpa" (OSDI 2022), section 5.2 and appendix A: submeshes (1,
 * 2^p) and (n, M) whose sizes add up to the cluster's always fit when placed largest
 * first.
 */
#include "judge/planner.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const struct ap_choice plan_submesh_spaces[] = {
    {"power-of-two", "parts of a host and numbers of hosts that are powers of two"},
    {"small-power-of-two", "the same, up to 4 hosts"},
    {"all", "parts of a host that are powers of two, any number of hosts"},
    {"any", "any number of a host's devices, any number of hosts; rannc's default"},
    {NULL, NULL}};

int plan_submeshes(struct ap_arena *arena, int space, int n_hosts, int n_devices,
                   struct plan_submesh **out)
{
    struct plan_submesh *m =
        AP_NEW_N(arena, n_hosts + n_devices + 34, struct plan_submesh);
    const bool any = space == PLAN_ANY_SUBMESHES;
    int n = 0;

    for (int d = 1; any ? d < n_devices : d <= n_devices / 2; d = any ? d + 1 : 2 * d)
        m[n++] = (struct plan_submesh){1, d, 0};
    m[n++] = (struct plan_submesh){1, n_devices, 0};
    int last = space == 1 && n_hosts > 4 ? 4 : n_hosts;
    for (int h = 2; h <= last; h = space >= PLAN_ALL_SUBMESHES ? h + 1 : 2 * h)
        m[n++] = (struct plan_submesh){h, n_devices, 0};
    if (m[n - 1].hosts != n_hosts)
        m[n++] = (struct plan_submesh){n_hosts, n_devices, 0};
    *out = m;
    return n;
}

bool plan_may_have(const struct plan_params *params, int hosts, int devices)
{
    for (int i = 0; i < params->n_submeshes; i++)
        if (params->submesh[i].hosts == hosts && params->submesh[i].devices == devices)
            return true;
    return params->n_submeshes == 0;
}

/* ---- kinds of devices ---- */

int plan_n_kinds(const struct plan_instance *inst)
{
    return inst->n_kinds > 0 ? inst->n_kinds : 1;
}

int plan_kind_hosts(const struct plan_instance *inst, int kind)
{
    return inst->n_kinds > 0 ? inst->kind[kind].n_hosts : inst->n_hosts;
}

int plan_kind_first(const struct plan_instance *inst, int kind)
{
    return inst->n_kinds > 0 ? inst->kind[kind].first_host : 0;
}

double plan_kind_speed(const struct plan_instance *inst, int kind)
{
    return inst->n_kinds > 0 ? inst->kind[kind].speed : 1;
}

static int64_t share_of(const struct plan_instance *inst, int kind, int64_t bytes)
{
    double share = inst->n_kinds > 0 ? inst->kind[kind].memory_share : 1;
    return share < 1 ? (int64_t)(share * (double)bytes) : bytes;
}

int64_t plan_memory(const struct plan_instance *inst, int kind)
{
    int64_t bytes = share_of(inst, kind, inst->memory_bytes);
    return inst->memory_bytes > 0 && bytes < 1 ? 1 : bytes;
}

int64_t plan_whole_bytes(const struct plan_instance *inst, int kind, int64_t bytes)
{
    double share = inst->n_kinds > 0 ? inst->kind[kind].memory_share : 1;
    double whole = (double)bytes / share;

    if (share >= 1 || whole > 1e18)
        return bytes;
    int64_t x = (int64_t)whole;
    while (x > 0 && share_of(inst, kind, x - 1) >= bytes)
        x--;
    while (share_of(inst, kind, x) < bytes)
        x++;
    return x;
}

/* ---- places ---- */

bool plan_grid(const struct plan_instance *inst, int kind, int replicas, int *hosts,
               int *devices)
{
    int all = plan_kind_hosts(inst, kind);

    *hosts = all / replicas;
    *devices = inst->n_devices;
    if (replicas >= 1 && all % replicas == 0)
        return true;
    int parts = replicas / all;
    if (replicas % all != 0 || inst->n_devices % parts != 0)
        return false;
    *hosts = 1;
    *devices = inst->n_devices / parts;
    return true;
}

int plan_groups(const struct plan_answer *answer)
{
    return answer->n_stages / (answer->chunks > 1 ? answer->chunks : 1);
}

int64_t plan_first_device(const struct plan_instance *inst,
                          const struct plan_answer *answer, int s, int replica)
{
    const struct plan_stage *st = &answer->stage[s];
    int64_t all = (int64_t)plan_kind_hosts(inst, st->kind) * inst->n_devices;
    int64_t host = plan_kind_first(inst, st->kind) + st->first_host;

    return host * inst->n_devices + st->first_device + replica * (all / answer->replicas);
}

static int64_t size_of(const struct plan_stage *st)
{
    return (int64_t)st->hosts * st->devices;
}

struct filling {
    int hosts, devices; /* of the pipeline */
    int from;           /* first host that is not taken whole */
    int n_begun;        /* hosts from there on that are taken in part */
    int *used;          /* [begun]: their devices taken */
};

static bool put(struct filling *f, struct plan_stage *st)
{
    int h = 0;

    if (st->hosts > 1 || st->devices >= f->devices) {
        st->first_host = f->from; /* larger ones come first: none is begun */
        st->first_device = 0;
        f->from += st->hosts;
        return f->n_begun == 0 && f->from <= f->hosts && st->devices <= f->devices;
    }
    while (h < f->n_begun && f->used[h] + st->devices > f->devices)
        h++;
    if (f->from + h >= f->hosts)
        return false;
    f->n_begun += h == f->n_begun;
    st->first_host = f->from + h;
    st->first_device = f->used[h];
    f->used[h] += st->devices;
    return true;
}

/* The largest of a kind that is not placed, the first of those of one size; -1: none. */
static int next_to_place(const struct plan_answer *a, int n, int kind)
{
    int best = -1;
    for (int s = 0; s < n; s++)
        if (a->stage[s].first_host < 0 && a->stage[s].kind == kind &&
            (best < 0 || size_of(&a->stage[s]) > size_of(&a->stage[best])))
            best = s;
    return best;
}

/* Places the first n stages that are on the kind. */
static int place_kind(const struct plan_instance *inst, struct plan_answer *answer, int n,
                      int kind, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct filling f = {.used = AP_NEW_N(&scratch, n, int)};
    bool divides = plan_grid(inst, kind, answer->replicas, &f.hosts, &f.devices);
    int s = -1;

    while (divides && (s = next_to_place(answer, n, kind)) >= 0)
        if (!put(&f, &answer->stage[s]))
            break;
    ap_arena_free(&scratch);
    if (!divides)
        return ap_err_set(err, "%d replicas do not divide %d hosts of %d devices",
                          answer->replicas, plan_kind_hosts(inst, kind), inst->n_devices);
    if (s >= 0)
        return ap_err_set(err, "stage %d of %dx%d devices has no place on %dx%d", s,
                          answer->stage[s].hosts, answer->stage[s].devices, f.hosts,
                          f.devices);
    return 0;
}

int plan_place(const struct plan_instance *inst, struct plan_answer *answer,
               struct ap_err *err)
{
    int n = plan_groups(answer), s;

    for (s = 0; s < answer->n_stages; s++)
        answer->stage[s].first_host = -1;
    for (int kind = 0; kind < plan_n_kinds(inst); kind++)
        if (place_kind(inst, answer, n, kind, err))
            return -1;
    for (s = n; s < answer->n_stages; s++) {
        answer->stage[s].first_host = answer->stage[s - n].first_host;
        answer->stage[s].first_device = answer->stage[s - n].first_device;
    }
    return 0;
}

/* ---- what crosses ---- */

void plan_stages_of(const struct plan_instance *inst, const struct plan_answer *answer,
                    int *stage_of)
{
    for (int s = 0; s < answer->n_stages; s++) {
        const struct plan_stage *st = &answer->stage[s];
        for (int b = st->set ? 0 : st->lo; b < inst->n_blocks; b++) {
            if (!st->set && b > st->hi)
                break;
            if (!st->set || (st->set[b / 64] >> (b % 64) & 1))
                stage_of[b] = s;
        }
    }
}

double plan_link_sec(const struct ap_cluster *c, int level, int64_t bytes, int64_t lanes,
                     int64_t host_lanes)
{
    const struct ap_link_level *l = &c->levels[level];
    const struct ap_send_time *measured = ap_measured_send(&c->measured, level);
    if (bytes == 0)
        return 0;
    if (l->shared)
        lanes = 1;
    else if (l->uplink && level > 0 && (l->rails <= 1 || host_lanes * l->rails < lanes))
        lanes = host_lanes * (l->rails > 1 ? l->rails : 1);
    if (measured)
        return ap_time_at(&measured->bytes,
                          (double)bytes / (double)(lanes > 1 ? lanes : 1),
                          measured->bytes.row[0].sec);
    return l->latency_sec +
           (double)bytes / (ap_link_rate(l, 1, 1) * (double)(lanes > 1 ? lanes : 1));
}

/* ---- the judge ---- */

static int simulate(struct ap_arena *arena, const struct plan_instance *inst,
                    struct plan_answer *answer, struct ap_err *err)
{
    struct ap_sim_result out;
    int n = answer->n_stages;
    struct ap_sim_stage *stages = AP_NEW_N(arena, n, struct ap_sim_stage);

    if (plan_place(inst, answer, err))
        return 1;
    for (int s = 0; s < n; s++) {
        const struct plan_point *p = answer->stage[s].point;
        /* where a stage recomputes, a forward's own working set, the smaller part, is
           counted by ap_pipeline_price alone */
        stages[s] =
            (struct ap_sim_stage){.forward_sec = p->forward_sec,
                                  .backward_sec = p->backward_sec,
                                  .sync_sec = p->sync_sec,
                                  .update_sec = p->update_sec,
                                  .fixed_bytes = plan_always_bytes(p),
                                  .work_bytes = p->recompute ? 0 : p->passing_bytes,
                                  .recomputed_bytes = p->recompute ? p->passing_bytes : 0,
                                  .flight_bytes = p->microbatch_bytes};
    }
    plan_estimate_sends(inst, answer, stages);
    struct ap_sim sim = {.schedule = answer->schedule,
                         .n_stages = n,
                         .chunks = answer->chunks,
                         .microbatches = (int)answer->microbatches,
                         .stages = stages,
                         .overlap_send = true}; /* as ap_pipeline_price */
    if (ap_simulate(arena, &sim, &out, err))
        return 1;
    answer->step_sec = out.step_sec;
    answer->batch_sec = inst->inference ? ap_sim_batch_sec(&sim) : 0;
    answer->peak_bytes = 0;
    for (int d = 0; d < out.n_devices; d++) {
        int kind = answer->stage[d].kind;
        int64_t bytes = out.devices[d].peak_bytes, memory = plan_memory(inst, kind);
        int64_t peak = plan_whole_bytes(inst, kind, bytes);
        if (peak > answer->peak_bytes)
            answer->peak_bytes = peak;
        if (memory > 0 && bytes > memory)
            return ap_err_set(err,
                              "stage %d needs %lld bytes of memory, a device has "
                              "%lld",
                              d, (long long)bytes, (long long)memory),
                   1;
    }
    return 0;
}

bool plan_same_outline(const struct plan_answer *a, const struct plan_answer *b)
{
    if (a->n_stages != b->n_stages || a->replicas != b->replicas ||
        a->microbatches != b->microbatches || a->schedule != b->schedule ||
        a->chunks != b->chunks)
        return false;
    for (int s = 0; s < a->n_stages; s++) {
        const struct plan_stage *x = &a->stage[s], *y = &b->stage[s];
        if (x->lo != y->lo || x->hi != y->hi || x->set != y->set ||
            x->hosts != y->hosts || x->devices != y->devices || x->kind != y->kind)
            return false;
    }
    return true;
}

bool plan_same(const struct plan_answer *a, const struct plan_answer *b)
{
    bool same = plan_same_outline(a, b);

    for (int s = 0; s < a->n_stages && same; s++)
        same = a->stage[s].point == b->stage[s].point;
    return same;
}

int plan_judge(struct ap_arena *arena, const struct plan_instance *inst,
               struct plan_answer *answer, struct ap_err *err)
{
    struct ap_mark mark = ap_arena_mark(arena);
    int rc = simulate(arena, inst, answer, err);
    ap_arena_rewind(arena, mark);
    return rc;
}

int plan_in_flight(enum ap_schedule schedule, int n_behind, int64_t microbatches)
{
    if (schedule == AP_SCHEDULE_INFERENCE)
        return 1;
    if (schedule == AP_SCHEDULE_EAGER)
        n_behind = 2 * n_behind - 1;
    if (schedule == AP_SCHEDULE_GPIPE || n_behind > microbatches)
        return (int)microbatches;
    return n_behind;
}

bool plan_fits(const struct plan_instance *inst, int kind, const struct plan_point *p,
               int flight)
{
    return inst->memory_bytes == 0 ||
           ap_add64(p->stage_bytes, ap_mul64(p->microbatch_bytes, flight)) <=
               plan_memory(inst, kind);
}
