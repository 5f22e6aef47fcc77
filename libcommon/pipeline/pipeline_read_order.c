/*
 * Problem: a document has the lists that its devices run; in which order do microbatches
 * go through, for who simulates them? Idea: a pass of a microbatch through a stage is one
 * run of its groups or several in a row, forward or backward by the stage's cuts. A pass
 * without groups is in no list: then the list has to be the schedule's without these.
 * Cost: linear in the instructions.
 */
#include "pipeline/pipeline_program.h"

#include <limits.h>
#include <string.h>

struct order_reader {
    struct ap_arena *arena;
    const struct ap_stages *stages;
    struct ap_err *err;
    int n_lanes;
    const int **cuts; /* [stage] */
};

static bool is_same(const struct ap_instr *a, const struct ap_instr *b)
{
    return a->stage == b->stage && a->microbatch == b->microbatch &&
           a->backward == b->backward;
}

static int read_head(const struct order_reader *r, const json_t *o,
                     const struct ap_at *at)
{
    const struct ap_stages *s = r->stages;
    int64_t microbatches;
    int schedule = -1;

    if (!json_is_object(o))
        return ap_at_err(at, r->err, "expected an object");
    if (ap_opt_name(o, at, "schedule", ap_schedule_names, AP_N_SCHEDULES, &schedule,
                    r->err) ||
        ap_get_int(o, at, "microbatches", 1, INT_MAX, &microbatches, r->err))
        return -1;
    if (schedule != (int)s->schedule || microbatches != s->microbatches)
        return ap_at_err(at, r->err,
                         "is of another plan than the stages: pipe them through "
                         "ap-rewrite");
    return 0;
}

static int read_cuts(const struct order_reader *r, const json_t *o,
                     const struct ap_at *at)
{
    struct ap_at list = {at, "stages", 0};
    json_t *stages;

    if (ap_get_arr(o, at, "stages", &stages, r->err))
        return -1;
    if ((int)json_array_size(stages) != r->stages->n)
        return ap_at_err(&list, r->err, "%d stages, the plan has %d",
                         (int)json_array_size(stages), r->stages->n);
    for (int i = 0; i < r->stages->n; i++) {
        const json_t *st = json_array_get(stages, (size_t)i);
        struct ap_at here = {&list, NULL, i};
        int64_t lane;
        if (!json_is_object(st))
            return ap_at_err(&here, r->err, "expected an object");
        if (ap_get_int(st, &here, "lane", 0, INT_MAX, &lane, r->err) ||
            ap_get_ids(r->arena, st, &here, "cuts", 3, 0, INT_MAX, NULL, &r->cuts[i],
                       r->err))
            return -1;
        if (lane != i % r->n_lanes)
            return ap_at_err(&here, r->err, "lane: the plan has the stage on lane %d",
                             i % r->n_lanes);
    }
    return 0;
}

/* Adds the pass that an instruction is of, if it is not the one before. */
static int read_instr(const struct order_reader *r, const json_t *o,
                      const struct ap_at *at, int lane, struct ap_instr_list *out)
{
    const int n = (int)r->stages->microbatches;
    const int *groups;
    int64_t stage, m;

    if (!json_is_object(o))
        return ap_at_err(at, r->err, "expected an object");
    if (!json_object_get(o, "run"))
        return 0;
    if (ap_get_int(o, at, "run", 0, r->stages->n - 1, &stage, r->err) ||
        ap_get_int(o, at, "microbatch", 0, n - 1, &m, r->err) ||
        ap_get_ids(r->arena, o, at, "groups", 2, 0, INT_MAX, NULL, &groups, r->err))
        return -1;
    const int *cuts = r->cuts[stage];
    const struct ap_instr pass = {(int)stage, (int)m, groups[0] >= cuts[1]};
    if (stage % r->n_lanes != lane)
        return ap_at_err(at, r->err, "the stage is not of this lane");
    if (groups[0] < cuts[0] || groups[0] >= cuts[2] ||
        (out->n > 0 && is_same(&out->list[out->n - 1], &pass)))
        return 0;
    out->list[out->n++] = pass;
    return 0;
}

/* Every pass is there once: those of the schedule's list, or of it without those of spans
 * without groups, which then has to be the order. */
static int check_lane(const struct order_reader *r, int lane, const struct ap_at *at,
                      struct ap_instr_list *list)
{
    const struct ap_schedule_size size = {
        r->stages->schedule, r->n_lanes, r->stages->chunks, (int)r->stages->microbatches};
    const int b = (int)r->stages->microbatches;
    bool *there = AP_NEW_N(r->arena, 2 * r->stages->n * b + 1, bool);
    struct ap_instr *all;
    int n, k = 0;

    if (ap_schedule_order(r->arena, &size, lane, &all, &n, r->err))
        return -1;
    for (int i = 0; i < list->n; i++) {
        const struct ap_instr *x = &list->list[i];
        bool *seen = &there[(2 * x->stage + x->backward) * b + x->microbatch];
        if (*seen)
            return ap_at_err(at, r->err,
                             "microbatch %d goes through stage %d in two parts",
                             x->microbatch, x->stage);
        *seen = true;
    }
    if (list->n == n)
        return 0;
    for (int i = 0; i < n; i++) {
        const struct ap_instr *x = &all[i];
        const int *cuts = r->cuts[x->stage];
        if (!there[(2 * x->stage + x->backward) * b + x->microbatch] &&
            cuts[x->backward] < cuts[x->backward + 1])
            return ap_at_err(at, r->err, "leaves out microbatch %d of stage %d",
                             x->microbatch, x->stage);
        k += k < list->n && is_same(x, &list->list[k]);
    }
    if (k < list->n)
        return ap_at_err(at, r->err,
                         "passes without groups can only be simulated in the schedule's "
                         "order");
    *list = (struct ap_instr_list){n, all};
    return 0;
}

int ap_pipeline_read_order(struct ap_arena *arena, const json_t *o,
                           const struct ap_at *at, struct ap_stages *stages,
                           struct ap_err *err)
{
    struct ap_at lanes_at = {at, "lanes", 0};
    struct order_reader r = {.arena = arena,
                             .stages = stages,
                             .err = err,
                             .n_lanes = stages->n / stages->chunks,
                             .cuts = AP_NEW_N(arena, stages->n + 1, const int *)};
    struct ap_instr_list *order = AP_NEW_N(arena, r.n_lanes + 1, struct ap_instr_list);
    json_t *lanes;

    if (read_head(&r, o, at) || read_cuts(&r, o, at) ||
        ap_get_arr(o, at, "lanes", &lanes, err))
        return -1;
    if ((int)json_array_size(lanes) != r.n_lanes)
        return ap_at_err(&lanes_at, err, "%d lanes, the plan has %d",
                         (int)json_array_size(lanes), r.n_lanes);
    for (int i = 0; i < r.n_lanes; i++) {
        const json_t *lane = json_array_get(lanes, (size_t)i);
        struct ap_at here = {&lanes_at, NULL, i}, list = {&here, "instructions", 0};
        json_t *instr;
        if (!json_is_object(lane))
            return ap_at_err(&here, err, "expected an object");
        if (ap_get_arr(lane, &here, "instructions", &instr, err))
            return -1;
        order[i].list = AP_NEW_N(arena, json_array_size(instr) + 1, struct ap_instr);
        for (size_t k = 0; k < json_array_size(instr); k++) {
            struct ap_at item = {&list, NULL, (int)k};
            if (read_instr(&r, json_array_get(instr, k), &item, i, &order[i]))
                return -1;
        }
        if (check_lane(&r, i, &list, &order[i]))
            return -1;
    }
    stages->order = order;
    return 0;
}
