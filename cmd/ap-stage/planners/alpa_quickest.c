/*
 * Problem: Alpa's sum has no sends, fills all devices, and counts two unequal stages in
 * full although with few microbatches one hides a part of the other. Idea: every plan
 * that the dynamic program of alpa.c meets is simulated. The quickest plans are then
 * changed while that makes the best one quicker: a block moves over a cut, neighbouring
 * stages exchange their devices, a stage takes another point. Cost: in each round,
 * stages x points simulations for each plan of the shortlist.
 */
#include <math.h>

#include "search/space.h"

void alpa_take(struct space *sp, struct alpa_plans *plans, struct plan_answer *a)
{
    struct ap_err why = {0};
    double score;

    a->objective = alpa_objective(sp->inst, a);
    if (plan_try(sp, a, &score, &why) == 0)
        shortlist_put(sp->arena, &plans->quickest, score, a);
}

static const struct plan_front *front_of(const struct space *sp,
                                         const struct plan_answer *a, int s)
{
    const struct plan_stage *st = &a->stage[s];
    const struct plan_ask ask = {.lo = st->lo,
                                 .hi = st->hi,
                                 .hosts = st->hosts,
                                 .devices = st->devices,
                                 .kind = st->kind,
                                 .replicas = a->replicas,
                                 .microbatches = a->microbatches};
    const struct plan_front *front;
    struct ap_err why = {0};

    return sp->inst->ask(sp->inst->oracle, &ask, &front, &why) ? NULL : front;
}

/* Takes the plan with the points that are quickest over a whole step for `n` stages from
 * `first` on: the program's sum counts only what the first stage pays once. */
void alpa_take_fastest(struct space *sp, struct alpa_plans *plans,
                       const struct plan_answer *like, int first, int n)
{
    struct plan_answer a = plan_copy(sp->arena, like);

    for (int s = first; s < first + n; s++) {
        const struct plan_front *front = front_of(sp, &a, s);
        int flight = plan_in_flight(a.schedule, a.n_stages - s, a.microbatches);
        a.stage[s].point =
            front ? plan_fastest(sp->inst, a.stage[s].kind, front, a.microbatches, flight)
                  : NULL;
        if (!a.stage[s].point)
            return;
    }
    alpa_take(sp, plans, &a);
}

/* Takes the plan with the best point of each stage in turn: what a stage pays once per
 * step may be hidden behind the backward passes of earlier stages. */
static void take_points(struct space *sp, struct alpa_plans *plans,
                        const struct plan_answer *like)
{
    struct plan_answer a = plan_copy(sp->arena, like);
    double least = INFINITY, score;
    struct ap_err why = {0};

    for (int s = 0; s < a.n_stages; s++) {
        const struct plan_front *front = front_of(sp, &a, s);
        const struct plan_point *best = a.stage[s].point;
        for (int i = 0; front && i < front->n; i++) {
            a.stage[s].point = &front->point[i];
            if (plan_try(sp, &a, &score, &why) == 0 && score < least) {
                least = score;
                best = a.stage[s].point;
            }
        }
        a.stage[s].point = best;
    }
    alpa_take(sp, plans, &a);
}

/* A block goes over the cut after stage s, to the right (-1) or left (1), or the stages
 * there exchange their devices (0). */
static void take_changed(struct space *sp, struct alpa_plans *plans,
                         const struct plan_answer *like, int s, int by)
{
    struct plan_answer a = plan_copy(sp->arena, like);
    struct plan_stage *st = &a.stage[s], left = st[0];

    if (by == 0) {
        st[0] = st[1];
        st[1] = left;
        st[1].lo = st[0].lo, st[1].hi = st[0].hi;
        st[0].lo = left.lo, st[0].hi = left.hi;
    }
    st[0].hi += by;
    st[1].lo += by;
    if (st[0].lo <= st[0].hi && st[1].lo <= st[1].hi)
        alpa_take_fastest(sp, plans, &a, s, 2);
}

/* Changes the quickest plans, and their points, while that makes the quickest one
 * quicker: with few microbatches a slow stage hides a part of the others. */
static void improve(struct space *sp, struct alpa_plans *plans)
{
    struct shortlist from;
    double before;

    do {
        from = plans->quickest;
        before = from.n > 0 ? from.score[0] : 0;
        for (int i = 0; i < from.n; i++)
            for (int s = 0; s + 1 < from.plan[i].n_stages; s++)
                for (int by = -1; by <= 1; by++)
                    take_changed(sp, plans, &from.plan[i], s, by);
        from = plans->quickest;
        for (int i = 0; i < from.n; i++)
            take_points(sp, plans, &from.plan[i]);
    } while (plans->quickest.n > 0 && plans->quickest.score[0] < before);
}

void alpa_put_quickest(struct space *sp, struct alpa_plans *plans,
                       struct plan_answer *answer)
{
    struct shortlist *l = &plans->quickest;

    improve(sp, plans);
    *answer = l->n > 0 ? l->plan[0] : plans->own;
    if (l->n > 1) {
        answer->n_others = l->n - 1;
        answer->others =
            ap_arena_dup(sp->arena, l->plan + 1, (size_t)(l->n - 1) * sizeof *l->plan);
    }
    answer->own = ap_arena_dup(sp->arena, &plans->own, sizeof plans->own);
}
