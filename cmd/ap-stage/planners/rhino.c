/*
 * Problem: one mesh for the whole model of which stages may be a dimension.
 * Idea: proposals are the factorisations of the number of devices into stages (a power of
 * two) x devices, and for one stage with and without microbatches. A pipeline takes the
 * least number of microbatches from 2 stages - 1 on that runs, its stages come from an
 * ILP on the DAG of blocks (rhino_ilp.c). Each proposal is priced; the cheapest is taken.
 * One that fails is left out.
 * Cost: an ILP for each number of stages.
 * Source: Zhang et al., "Rhino" (2023), sections 4 and 5, and its code.
 */
#include "planners/rhino.h"

#include <math.h>

int rhino_proposals(int n_devices, struct rhino_proposal out[64])
{
    int n = 0;
    for (int s = 1; s <= n_devices && n < 63; s *= 2) {
        if (n_devices % s != 0)
            continue;
        if (s == 1)
            out[n++] = (struct rhino_proposal){1, n_devices, false};
        out[n++] = (struct rhino_proposal){s, n_devices / s, true};
    }
    return n;
}

struct rhino {
    struct space sp;
    struct plan_answer *best;
    double least;
    bool found, proven;
    int n_unbalanced; /* proposals without stages within the tolerance */
    bool tried;       /* some number of microbatches */
};

/* Blocks of each stage: a run where they are one, a set otherwise. */
static void fill_sets(struct ap_arena *arena, const struct plan_instance *inst,
                      const int *stage_of, struct plan_answer *a)
{
    int words = (inst->n_blocks + 63) / 64;

    for (int s = 0; s < a->n_stages; s++) {
        uint64_t *set = AP_NEW_N(arena, words, uint64_t);
        struct plan_stage *st = &a->stage[s];
        int n = 0;
        st->lo = -1;
        for (int b = 0; b < inst->n_blocks; b++) {
            if (stage_of[b] != s)
                continue;
            set[b / 64] |= (uint64_t)1 << (b % 64);
            st->lo = st->lo < 0 ? b : st->lo;
            st->hi = b;
            n++;
        }
        st->set = n == st->hi - st->lo + 1 ? NULL : set;
    }
}

/* 0, 1: some stage runs nowhere, -1. */
static int fill_points(struct rhino *r, struct plan_answer *a, struct ap_err *err)
{
    const struct plan_instance *inst = r->sp.inst;

    for (int s = 0; s < a->n_stages; s++) {
        struct plan_stage *st = &a->stage[s];
        struct plan_ask ask = {.lo = st->lo,
                               .hi = st->hi,
                               .set = st->set,
                               .hosts = st->hosts,
                               .devices = st->devices,
                               .replicas = 1,
                               .microbatches = a->microbatches};
        int flight = plan_in_flight(a->schedule, a->n_stages - s, a->microbatches);
        const struct plan_front *front;
        if (inst->ask(inst->oracle, &ask, &front, err))
            return -1;
        r->sp.n_asked++;
        st->point = plan_fastest(inst, 0, front, a->microbatches, flight);
        if (!st->point)
            return 1;
    }
    return 0;
}

/* 0: priced, 1: does not run, -1. */
static int price(struct rhino *r, struct plan_answer *a, const int *stage_of, bool proven,
                 struct ap_err *err)
{
    struct ap_err why = {0};
    double score;
    int rc = fill_points(r, a, err);

    if (rc != 0 || plan_try(&r->sp, a, &score, &why))
        return rc ? rc : 1;
    if (r->found && score >= r->least)
        return 0;
    r->found = true;
    r->least = score;
    *r->best = *a;
    r->best->objective = (double)rhino_bytes(r->sp.inst, stage_of);
    r->proven = proven;
    return 0;
}

static int propose(struct rhino *r, const struct rhino_proposal *p, struct ap_err *err)
{
    const struct plan_instance *inst = r->sp.inst;
    struct ap_arena *arena = r->sp.arena;
    int *stage_of = AP_NEW_N(arena, inst->n_blocks, int), m = inst->n_devices, rc = 1;
    int64_t least = p->micro ? 2 * p->stages - 1 : 1;
    bool proven = true;

    if (p->stages > inst->n_blocks || (p->devices > m && p->devices % m != 0))
        return 0;
    if (p->stages > 1 && !rhino_stages(arena, inst, p->stages, r->sp.params->imbalance,
                                       stage_of, &proven)) {
        r->n_unbalanced++;
        return 0;
    }
    struct plan_answer a = {.n_stages = p->stages,
                            .replicas = 1,
                            .schedule = AP_SCHEDULE_1F1B,
                            .chunks = 1,
                            .measure = "bytes"};
    if (r->sp.params->schedule == AP_SCHEDULE_GPIPE)
        a.schedule = AP_SCHEDULE_GPIPE;
    if (inst->inference)
        a.schedule = AP_SCHEDULE_INFERENCE;
    if (p->micro && least < 2)
        least = 2;
    for (int i = 0; i < inst->n_microbatches && rc == 1; i++) {
        a.microbatches = inst->microbatches[i];
        if (a.microbatches < least || (!p->micro && a.microbatches != 1))
            continue;
        r->tried = true;
        a.stage = AP_NEW_N(arena, p->stages, struct plan_stage);
        fill_sets(arena, inst, stage_of, &a);
        for (int s = 0; s < p->stages; s++) {
            a.stage[s].hosts = p->devices > m ? p->devices / m : 1;
            a.stage[s].devices = p->devices > m ? m : p->devices;
        }
        rc = price(r, &a, stage_of, proven, err);
    }
    return rc < 0 ? -1 : 0;
}

int plan_rhino(struct ap_arena *arena, const struct plan_instance *inst,
               const struct plan_params *params, struct plan_answer *answer,
               struct ap_err *err)
{
    struct rhino_proposal list[64];
    struct rhino r = {.best = answer};
    int n = rhino_proposals(inst->n_hosts * inst->n_devices, list);

    if (plan_check_schedule("rhino", params, err))
        return -1;
    space_init(&r.sp, arena, inst, params);
    bool any = false;
    for (int i = 0; i < n; i++) {
        if (params->n_stages != 0 && params->n_stages != list[i].stages)
            continue;
        any = true;
        if (propose(&r, &list[i], err))
            return -1;
    }
    if (!any)
        return ap_err_set(err,
                          "rhino: %d stages: a number of stages is a power of two that "
                          "divides the %d devices",
                          params->n_stages, inst->n_hosts * inst->n_devices),
               1;
    if (!r.found && r.n_unbalanced == 0 && !r.tried && params->n_stages > 1)
        return ap_err_set(err,
                          "rhino: %d stages need %d microbatches at least, so that "
                          "each has one at any time",
                          params->n_stages, 2 * params->n_stages - 1),
               1;
    if (!r.found && r.n_unbalanced > 0 && params->n_stages > 1)
        return ap_err_set(
                   err,
                   "rhino: no %d stages have their FLOPs within %g %% of the mean: "
                   "allow more imbalance, or make more blocks",
                   params->n_stages, 100 * params->imbalance),
               1;
    if (!r.found)
        return plan_none_fits("rhino", err);
    answer->stopped = r.proven ? "done" : "work limit";
    answer->n_asked = r.sp.n_asked;
    answer->n_plans = r.sp.n_plans;
    return 0;
}
