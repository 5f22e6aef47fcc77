/*
 * A plan of stages from a file: what can be used again on another graph or cluster is
 * which blocks are a stage, on which devices, in how many microbatches and in which
 * order. Replicas of the pipeline are not said; they are the least number with which
 * places found as for any plan (plan_place) are the file's devices. Cost: a placement for
 * each divisor of the stages' devices.
 */
#include "outline.h"

#include <stdlib.h>
#include <string.h>

#include "doc/doc.h"
#include "search/space.h"

/* ---- reading ---- */

/* A stage's blocks or devices: ascending numbers below `end`. */
static int read_numbers(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        const char *what, int64_t end, struct ap_ints *out,
                        struct ap_err *err)
{
    const char *key = ap_arena_printf(arena, "%ss", what);
    const struct ap_at list = {at, key, 0};

    if (ap_get_ints(arena, o, at, key, out, err))
        return -1;
    if (out->n == 0)
        return ap_at_err(&list, err, "expected the numbers of the stage's %s", key);
    for (int i = 0; i < out->n; i++) {
        const struct ap_at here = {&list, NULL, i};
        if (out->v[i] < 0 || out->v[i] >= end)
            return ap_at_err(&here, err, "expected a %s", what);
        if (i > 0 && out->v[i] <= out->v[i - 1])
            return ap_at_err(&here, err, "expected %s in ascending order", key);
    }
    return 0;
}

/* Each block once; the stages' runs, or sets where they are no runs. */
static int fill_stages(struct ap_arena *arena, const struct ap_ints *blocks,
                       const struct ap_at *list, struct plan_outline *out,
                       struct ap_err *err)
{
    int64_t n = 0;
    int s, *stage_of;

    for (s = 0; s < out->n_stages; s++)
        n += blocks[s].n;
    out->n_blocks = (int)n;
    stage_of = AP_NEW_N(arena, out->n_blocks, int);
    for (s = 0; s < out->n_stages; s++) {
        const struct ap_at here = {list, NULL, s}, own = {&here, "blocks", 0};
        struct plan_stage *st = &out->stage[s];
        uint64_t *set = AP_NEW_N(arena, (out->n_blocks + 63) / 64, uint64_t);
        for (int i = 0; i < blocks[s].n; i++) {
            const struct ap_at one = {&own, NULL, i};
            int64_t b = blocks[s].v[i];
            if (b >= n)
                return ap_at_err(&one, err,
                                 "the stages have %d blocks, 0 to %d, not block %lld",
                                 out->n_blocks, out->n_blocks - 1, (long long)b);
            if (stage_of[b] > 0)
                return ap_at_err(&one, err, "block %lld is in stage %d already",
                                 (long long)b, stage_of[b] - 1);
            stage_of[b] = s + 1;
            set[b / 64] |= (uint64_t)1 << (b % 64);
        }
        st->lo = (int)blocks[s].v[0];
        st->hi = (int)blocks[s].v[blocks[s].n - 1];
        st->set = st->hi - st->lo + 1 == blocks[s].n ? NULL : set;
    }
    return 0;
}

static bool same_ints(const struct ap_ints *a, const struct ap_ints *b)
{
    return a->n == b->n && !memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v);
}

static int read_list(struct ap_arena *arena, const json_t *stages,
                     const struct ap_at *list, struct plan_outline *out,
                     struct ap_err *err)
{
    int n = out->n_stages, round = n / out->chunks;
    struct ap_ints *blocks = AP_NEW_N(arena, n, struct ap_ints);

    out->stage = AP_NEW_N(arena, n, struct plan_stage);
    out->devices = AP_NEW_N(arena, n, struct ap_ints);
    for (int s = 0; s < n; s++) {
        const struct ap_at here = {list, NULL, s}, own = {&here, "devices", 0};
        const json_t *o = json_array_get(stages, (size_t)s);
        if (!json_is_object(o))
            return ap_at_err(&here, err, "expected an object");
        if (read_numbers(arena, o, &here, "block", (int64_t)INT32_MAX + 1, &blocks[s],
                         err) ||
            read_numbers(arena, o, &here, "device", AP_MAX_DEVICES, &out->devices[s],
                         err))
            return -1;
        if (s >= round && !same_ints(&out->devices[s], &out->devices[s - round]))
            return ap_at_err(&own, err,
                             "expected the devices of stage %d: a device has %d chunks, "
                             "%d stages apart",
                             s - round, out->chunks, round);
    }
    return fill_stages(arena, blocks, list, out, err);
}

static int read_section(struct ap_arena *arena, const json_t *o, struct plan_outline *out,
                        struct ap_err *err)
{
    const struct ap_at at = {.key = "stages"}, list = {&at, "stages", 0},
                       chunks = {&at, "chunks", 0};
    json_t *stages;

    if (!json_is_object(o))
        return ap_at_err(&at, err, "expected an object");
    if (ap_opt_name(o, &at, "schedule", ap_schedule_names, AP_N_SCHEDULES, &out->schedule,
                    err) ||
        ap_opt_int(o, &at, "chunks", 1, &out->chunks, err) ||
        ap_get_int(o, &at, "microbatches", 1, 1 << 20, &out->microbatches, err) ||
        ap_get_arr(o, &at, "stages", &stages, err))
        return -1;
    out->n_stages = (int)json_array_size(stages);
    if (out->n_stages == 0)
        return ap_at_err(&list, err, "expected stages");
    if (out->schedule >= 0 && ap_schedule_traits[out->schedule].splits)
        return ap_at_err(&at, err,
                         "a plan of schedule %s is built from its line (--grid)",
                         ap_schedule_names[out->schedule]);
    if (out->n_stages % out->chunks ||
        (out->chunks > 1 && out->schedule != AP_SCHEDULE_INTERLEAVED))
        return ap_at_err(&chunks, err,
                         "%d chunks are of interleaved-1f1b, and divide the %d stages",
                         out->chunks, out->n_stages);
    return read_list(arena, stages, &list, out, err);
}

int plan_outline_read(struct ap_arena *arena, const char *path, struct plan_outline *out,
                      struct ap_err *err)
{
    struct ap_doc doc;

    *out = (struct plan_outline){.schedule = -1, .chunks = 1};
    if (ap_doc_read(arena, path, &doc, err))
        return -1;
    out->file = doc.file;
    const struct ap_section *section = ap_doc_find(&doc, "stages");
    if (!section)
        return ap_err_set(err, "%s: no section \"stages\" (ap-stage writes it)",
                          doc.file);
    json_t *o = ap_doc_load(&doc, section, err);
    if (!o)
        return -1;
    int rc = read_section(arena, o, out, err);
    json_decref(o);
    return rc ? ap_doc_err(&doc, err) : 0;
}

/* ---- fitting ---- */

/* Blocks and devices that there are; the schedule, as asked. 1: not so. */
static int check_parts(const struct plan_instance *inst, const struct plan_params *params,
                       struct plan_outline *o, struct ap_err *err)
{
    const int64_t all = (int64_t)inst->n_hosts * inst->n_devices;

    if (o->schedule < 0)
        o->schedule = inst->inference ? AP_SCHEDULE_INFERENCE : AP_SCHEDULE_1F1B;
    if (o->n_blocks != inst->n_blocks)
        return ap_err_set(err, "%s: the plan has %d blocks, the document has %d", o->file,
                          o->n_blocks, inst->n_blocks),
               1;
    for (int s = 0; s < o->n_stages; s++)
        if (o->devices[s].v[o->devices[s].n - 1] >= all)
            return ap_err_set(err,
                              "%s: stage %d of the plan has device %lld, the cluster has "
                              "devices 0 to %lld",
                              o->file, s, (long long)o->devices[s].v[o->devices[s].n - 1],
                              (long long)all - 1),
                   1;
    if (inst->inference != (o->schedule == AP_SCHEDULE_INFERENCE))
        return ap_err_set(err, "%s: the plan's schedule is %s, and the graph has %s",
                          o->file, ap_schedule_names[o->schedule],
                          inst->inference ? "no backward pass" : "a backward pass"),
               1;
    if (params->schedule >= 0 && params->schedule != o->schedule)
        return ap_err_set(err, "%s: the plan's schedule is %s, --schedule asks for %s",
                          o->file, ap_schedule_names[o->schedule],
                          ap_schedule_names[params->schedule]),
               1;
    if (params->n_stages > 0 && params->n_stages != o->n_stages)
        return ap_err_set(err, "%s: the plan has %d stages, --stages asks for %d",
                          o->file, o->n_stages, params->n_stages),
               1;
    return 0;
}

/* No value flows to a stage before its own. 1: one does. */
static int check_order(struct ap_arena *arena, const struct plan_instance *inst,
                       const struct plan_outline *o, struct ap_err *err)
{
    const struct plan_answer a = {.n_stages = o->n_stages, .stage = o->stage};
    int *stage_of = AP_NEW_N(arena, inst->n_blocks, int);

    plan_stages_of(inst, &a, stage_of);
    for (int i = 0; i < inst->n_values; i++) {
        const struct plan_value *v = &inst->value[i];
        for (int k = 0; k < v->n_to; k++)
            if (stage_of[v->to[k]] < stage_of[v->from])
                return ap_err_set(err,
                                  "%s: block %d in stage %d of the plan reads block %d, "
                                  "which is in stage %d",
                                  o->file, v->to[k], stage_of[v->to[k]], v->from,
                                  stage_of[v->from]),
                       1;
    }
    return 0;
}

static int kind_of(const struct plan_instance *inst, int64_t device)
{
    int kind = plan_n_kinds(inst) - 1;

    while (kind > 0 && device / inst->n_devices < plan_kind_first(inst, kind))
        kind--;
    return kind;
}

/* The submesh of so many devices of one of `replicas` pipelines; false: none. */
static bool shape(const struct plan_instance *inst, int replicas, int64_t n,
                  struct plan_stage *st)
{
    int hosts, devices;

    if (n % replicas != 0 || !plan_grid(inst, st->kind, replicas, &hosts, &devices))
        return false;
    n /= replicas;
    st->hosts = n > devices ? (int)(n / devices) : 1;
    st->devices = n > devices ? devices : (int)n;
    return (int64_t)st->hosts * st->devices == n && st->hosts <= hosts;
}

/* Whether a placed stage has those devices. */
static bool has_devices(const struct plan_instance *inst, const struct plan_answer *a,
                        int s, const struct ap_ints *devices)
{
    const struct plan_stage *st = &a->stage[s];
    int i = 0;

    for (int r = 0; r < a->replicas; r++) {
        int64_t first = plan_first_device(inst, a, s, r);
        for (int h = 0; h < st->hosts; h++)
            for (int d = 0; d < st->devices; d++)
                if (devices->v[i++] != first + (int64_t)h * inst->n_devices + d)
                    return false;
    }
    return true;
}

static bool is_placed(const struct plan_instance *inst, struct plan_outline *o)
{
    struct plan_answer a = {.n_stages = o->n_stages,
                            .stage = o->stage,
                            .replicas = o->replicas,
                            .chunks = o->chunks};
    struct ap_err why = {0};

    for (int s = 0; s < o->n_stages; s++)
        if (!shape(inst, o->replicas, o->devices[s].n, &o->stage[s]))
            return false;
    if (plan_place(inst, &a, &why))
        return false;
    for (int s = 0; s < o->n_stages; s++)
        if (!has_devices(inst, &a, s, &o->devices[s]))
            return false;
    return true;
}

/* Whether params allow all submeshes; err names one that they do not. */
static bool are_allowed(struct ap_arena *arena, const struct plan_instance *inst,
                        const struct plan_params *params, const struct plan_outline *o,
                        struct ap_err *err)
{
    const int space =
        params->n_submeshes > 0 ? PLAN_ALL_SUBMESHES : params->submesh_space;

    for (int s = 0; s < o->n_stages; s++) {
        const struct plan_stage *st = &o->stage[s];
        struct plan_submesh *mesh;
        int hosts, devices, i = 0;
        plan_grid(inst, st->kind, o->replicas, &hosts, &devices);
        int n = plan_submeshes(arena, space, hosts, devices, &mesh);
        while (i < n && (mesh[i].hosts != st->hosts || mesh[i].devices != st->devices))
            i++;
        if (i < n && plan_may_have(params, st->hosts, st->devices))
            continue;
        ap_err_set(err, "%s: stage %d of the plan has %dx%d devices, no submesh of %s%s",
                   o->file, s, st->hosts, st->devices,
                   params->n_submeshes > 0 ? "--submeshes" : "--submesh-space ",
                   params->n_submeshes > 0 ? "" : plan_submesh_spaces[space].name);
        return false;
    }
    return true;
}

int plan_outline_fit(struct ap_arena *arena, const struct plan_instance *inst,
                     const struct plan_params *params, struct plan_outline *outline,
                     struct ap_err *err)
{
    if (check_parts(inst, params, outline, err) || check_order(arena, inst, outline, err))
        return 1;
    for (int s = 0; s < outline->n_stages; s++)
        outline->stage[s].kind = kind_of(inst, outline->devices[s].v[0]);
    for (int r = 1; r <= outline->devices[0].n; r++) {
        outline->replicas = r;
        if (is_placed(inst, outline))
            return are_allowed(arena, inst, params, outline, err) ? 0 : 1;
    }
    return ap_err_set(err,
                      "%s: on %dx%d devices no stages get the plan's devices: it is of "
                      "another cluster",
                      outline->file, inst->n_hosts, inst->n_devices),
           1;
}
