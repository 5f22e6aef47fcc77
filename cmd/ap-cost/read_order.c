/*
 * Problem: a document has the lists that its devices run; find the order of microbatches
 * in them, for the simulation. Idea: a pass of a microbatch through a stage is one run of
 * its groups or several in a row, forward or backward by the stage's cuts. A pass without
 * groups is in no list: then the list has to be the schedule's without these. Cost:
 * linear in the instructions.
 */
#include "pipeline/pipeline_program.h"
#include "price.h"

struct order_reader {
    struct ap_arena *arena;
    const struct ap_stages *stages;
    const struct ap_pipeline_program *r; /* its lists */
    struct ap_err *err;
};

static bool is_same(const struct ap_instr *a, const struct ap_instr *b)
{
    return a->stage == b->stage && a->microbatch == b->microbatch && a->pass == b->pass;
}

/* Adds the pass that an instruction is of, if it is not the one before. */
static int add_pass(const struct order_reader *o, const struct ap_pipeline_instr *x,
                    const struct ap_at *at, int lane, struct ap_instr_list *out)
{
    if (x->what != AP_PIPELINE_RUN)
        return 0;
    if (x->stage >= o->r->n_stages || o->r->stage[x->stage].lane != lane)
        return ap_at_err(at, o->err, "the stage is not of this lane");
    if (x->message >= o->r->microbatches)
        return ap_at_err(at, o->err, "there is no microbatch %d", x->message);
    const struct ap_pipeline_stage *st = &o->r->stage[x->stage];
    const struct ap_instr pass = {x->stage, x->message,
                                  ap_pipeline_pass(&st->cuts, x->lo)};
    if (ap_pipeline_is_each(st, x->lo) &&
        !(out->n > 0 && is_same(&out->list[out->n - 1], &pass)))
        out->list[out->n++] = pass;
    return 0;
}

/* Whether some groups of the stage are of the pass. */
static bool has_groups(const struct ap_pipeline_cuts *c, enum ap_pass pass)
{
    return ap_pipeline_pass_lo(c, pass) < ap_pipeline_pass_hi(c, pass);
}

/* Every pass is there once: those of the schedule's list, or of it without those of spans
 * without groups, which then has to be the order. */
static int check_lane(const struct order_reader *o, int lane, const struct ap_at *at,
                      struct ap_instr_list *list)
{
    const int b = o->r->microbatches;
    const struct ap_schedule_size size = {o->stages->schedule, o->r->n_lanes,
                                          o->stages->chunks, b, o->r->pairs};
    bool *there = AP_NEW_N(o->arena, AP_N_PASSES * o->stages->n * b + 1, bool);
    struct ap_instr *all;
    int n, k = 0;

    if (ap_schedule_order(o->arena, &size, lane, &all, &n, o->err))
        return -1;
    for (int i = 0; i < list->n; i++) {
        const struct ap_instr *x = &list->list[i];
        bool *seen = &there[(AP_N_PASSES * x->stage + (int)x->pass) * b + x->microbatch];
        if (*seen)
            return ap_at_err(at, o->err,
                             "microbatch %d goes through stage %d in two parts",
                             x->microbatch, x->stage);
        *seen = true;
    }
    if (list->n == n)
        return 0;
    for (int i = 0; i < n; i++) {
        const struct ap_instr *x = &all[i];
        if (!there[(AP_N_PASSES * x->stage + (int)x->pass) * b + x->microbatch] &&
            has_groups(&o->r->stage[x->stage].cuts, x->pass))
            return ap_at_err(at, o->err, "leaves out microbatch %d of stage %d",
                             x->microbatch, x->stage);
        k += k < list->n && is_same(x, &list->list[k]);
    }
    if (k < list->n)
        return ap_at_err(at, o->err,
                         "passes without groups can only be simulated in the schedule's "
                         "order");
    *list = (struct ap_instr_list){n, all};
    return 0;
}

static int read_lane(const struct order_reader *o, int i, const struct ap_at *at,
                     struct ap_instr_list *out)
{
    const struct ap_lane *lane = &o->r->lane[i];
    const struct ap_at list = {at, "instructions", 0};

    out->list = AP_NEW_N(o->arena, lane->n + 1, struct ap_instr);
    for (int k = 0; k < lane->n; k++) {
        const struct ap_at here = {&list, NULL, k};
        if (add_pass(o, &lane->instr[k], &here, i, out))
            return -1;
    }
    return check_lane(o, i, &list, out);
}

int price_read_order(struct ap_arena *arena, const json_t *json, const struct ap_at *at,
                     struct ap_stages *stages, struct ap_err *err)
{
    const struct ap_at list = {at, "stages", 0}, lanes = {at, "lanes", 0};
    struct ap_pipeline_program r;
    const struct order_reader o = {arena, stages, &r, err};

    if (ap_pipeline_lists_from_json(arena, json, at, stages, &r, err))
        return -1;
    for (int i = 0; i < r.n_stages; i++) {
        const struct ap_at here = {&list, NULL, i};
        const int lane = ap_stages_device(stages, i);
        if (r.stage[i].lane != lane)
            return ap_at_err(&here, err, "lane: the plan has the stage on lane %d", lane);
    }
    struct ap_instr_list *order = AP_NEW_N(arena, r.n_lanes + 1, struct ap_instr_list);
    for (int i = 0; i < r.n_lanes; i++) {
        const struct ap_at here = {&lanes, NULL, i};
        if (read_lane(&o, i, &here, &order[i]))
            return -1;
    }
    stages->order = order;
    return 0;
}
