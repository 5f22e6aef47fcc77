/*
 * Problem: a plan's price with its layouts takes as long as all of the planner's search
 * in a large graph, and the plans that a planner finds nearly as good as its best are
 * mostly the best with one stage's point hardly different. Idea: as priced_plans.h says.
 * Cost: linear in the plans priced and their stages.
 */
#include "oracle/priced_plans.h"

#include "base/array.h"

#include <math.h>
#include <string.h>

void priced_plans_add(struct ap_arena *arena, struct priced_plans *l,
                      const struct plan_answer *plan, double step_sec,
                      const int64_t *stage_bytes)
{
    size_t bytes = sizeof *stage_bytes * (size_t)plan->n_stages;

    AP_ROOM_IN(arena, l->plan, l->n, l->cap);
    l->plan[l->n++] = (struct priced_plan){
        *plan, step_sec, stage_bytes ? ap_arena_dup(arena, stage_bytes, bytes) : NULL};
}

static bool same_blocks(const struct plan_instance *inst, const struct plan_stage *a,
                        const struct plan_stage *b)
{
    size_t words = (size_t)(inst->n_blocks + 63) / 64;

    if (!a->set != !b->set)
        return false;
    return a->set ? !memcmp(a->set, b->set, sizeof *a->set * words)
                  : a->lo == b->lo && a->hi == b->hi;
}

/* One microbatch goes forward and back, whatever the schedule is called. */
static bool same_order(const struct plan_answer *a, const struct plan_answer *b)
{
    return a->chunks == b->chunks &&
           (a->schedule == b->schedule || (a->microbatches == 1 && a->chunks == 1));
}

/* Replicas of one stage on all devices are the stage on all devices. */
static bool is_whole(const struct plan_instance *inst, const struct plan_answer *a)
{
    const struct plan_stage *st = &a->stage[0];
    return a->n_stages == 1 &&
           st->hosts * st->devices * a->replicas == inst->n_hosts * inst->n_devices;
}

static bool same_outline(const struct plan_instance *inst, const struct plan_answer *a,
                         const struct plan_answer *b)
{
    bool whole = is_whole(inst, a) && is_whole(inst, b);

    if (a->n_stages != b->n_stages || a->microbatches != b->microbatches ||
        !same_order(a, b) || (a->replicas != b->replicas && !whole))
        return false;
    for (int s = 0; s < a->n_stages; s++) {
        const struct plan_stage *x = &a->stage[s], *y = &b->stage[s];
        bool there = whole || (x->hosts == y->hosts && x->devices == y->devices);
        if (!there || !same_blocks(inst, x, y))
            return false;
    }
    return true;
}

/* Whether the stages are the same, in any order; points are of a run, identical ones
 * once. */
static bool same_stages(const struct plan_answer *a, const struct plan_answer *b)
{
    if (a->n_stages != b->n_stages || a->microbatches != b->microbatches ||
        !same_order(a, b) || a->replicas != b->replicas)
        return false;
    for (int s = 0; s < a->n_stages; s++) {
        const struct plan_point *point = a->stage[s].point;
        int n = 0;
        for (int k = 0; k < a->n_stages; k++)
            n += (a->stage[k].point == point) - (b->stage[k].point == point);
        if (n != 0)
            return false;
    }
    return true;
}

struct forecast priced_plans_forecast(const struct priced_plans *l,
                                      const struct plan_instance *inst,
                                      const struct plan_answer *plan)
{
    struct forecast f = {.step_sec = plan->step_sec};
    double more = INFINITY; /* than the estimate */

    for (int i = 0; i < l->n && !f.same; i++) {
        const struct priced_plan *at = &l->plan[i];
        int n_same = 0;
        bool outline = same_outline(inst, &at->plan, plan);
        if (!outline && !same_stages(&at->plan, plan))
            continue;
        for (int s = 0; s < plan->n_stages && outline; s++) {
            if (plan->stage[s].point != at->plan.stage[s].point)
                continue;
            n_same++;
            if (at->stage_bytes && at->stage_bytes[s] > f.peak_bytes)
                f.peak_bytes = at->stage_bytes[s];
        }
        f.same |= n_same == plan->n_stages;
        f.known = f.same || plan->n_stages > 1;
        more = fmin(more, at->step_sec - at->plan.step_sec);
    }
    if (f.known)
        f.step_sec += more;
    return f;
}
