/*
 * Problem: the plan of least simulated step: replicas, microbatches, schedule, cuts,
 * submeshes, and how each stage is run, recomputation among that; and a time that no plan
 * is below.
 * Idea: plans that people type come first. Then each
 * configuration (replicas, microbatches, schedule) is a line: a programme over labels
 * (auto_labels.c) finds plans near its best, sends between stages and what is paid once
 * per step included; the best n_kept by its arithmetic are simulated. When all lines have
 * had their turn a second programme finds the bound of each. Lines whose bound is below
 * the best plan are searched (auto_tree.c)
 * as far as the limits go; the best plan is improved by single changes, and compared with
 * what the published planners find. The bound of the
 * answer is the least of the lines that were not searched to the end, and of what is no
 * line (auto_sets.c).
 * Cost: auto_labels.c's for each configuration that its least device-seconds do not rule
 * out. Copies of the pipeline on many hosts have stages of one host only.
 * Source: the dynamic programme follows Alpa's (alpa.c) with the terms that it leaves
 * out.
 */
#include "search/auto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Plans waiting for the simulator, best estimate first. */
struct kept {
    double estimate;
    struct plan_answer plan;
};
struct pool {
    int n, most;
    struct kept *kept;
};

static bool is_within(struct hunt *h, const struct plan_answer *a)
{
    int64_t cost = 2 * ap_mul64(a->n_stages, a->microbatches);
    if (h->instructions + cost > h->instruction_limit)
        return false;
    h->instructions += cost;
    return true;
}

/* Whether the same stages lie on as many devices, however they run there. */
static bool same_outline(const struct plan_answer *a, const struct plan_answer *b)
{
    if (a->n_stages != b->n_stages || a->microbatches != b->microbatches ||
        a->schedule != b->schedule || a->chunks != b->chunks ||
        (a->replicas > 1) != (b->replicas > 1))
        return false;
    for (int s = 0; s < a->n_stages; s++) {
        const struct plan_stage *x = &a->stage[s], *y = &b->stage[s];
        if (x->lo != y->lo || x->hi != y->hi || x->set != y->set ||
            x->hosts * x->devices * a->replicas != y->hosts * y->devices * b->replicas)
            return false;
    }
    return true;
}

static void put_shortlist(struct ap_arena *arena, struct shortlist *l, double score,
                          const struct plan_answer *a,
                          bool (*alike)(const struct plan_answer *,
                                        const struct plan_answer *))
{
    int at = 0;
    if (l->n == HUNT_FINALISTS && score >= l->score[l->n - 1])
        return;
    while (at < l->n && !alike(&l->plan[at], a))
        at++;
    if (at == HUNT_FINALISTS)
        at--;
    if (at < l->n && score >= l->score[at])
        return;
    if (at == l->n)
        l->n++;
    for (; at > 0 && l->score[at - 1] > score; at--) {
        l->plan[at] = l->plan[at - 1];
        l->score[at] = l->score[at - 1];
    }
    l->plan[at] = plan_copy(arena, a);
    l->score[at] = score;
}

void hunt_take(struct hunt *h, double score, const struct plan_answer *a,
               const char *from)
{
    if (score < h->least) {
        h->least = score;
        h->best = plan_copy(h->arena, a);
        h->from = from;
    }
    put_shortlist(h->arena, &h->final, score, a, plan_same);
    put_shortlist(h->arena, &h->rivals, score, a, same_outline);
}

void hunt_bare(struct hunt *h, struct plan_answer *a)
{
    struct ap_arena scratch = {0};
    struct plan_instance bare = *h->inst;
    struct plan_answer copy = plan_copy(&scratch, a);
    struct ap_err why = {0};

    bare.n_values = bare.n_scalars = 0;
    if (h->inst->sends_are_guesses && !plan_judge(&scratch, &bare, &copy, NULL, &why)) {
        a->least_sec = copy.step_sec;
        h->bare = least_of(h->bare, plan_score(&bare, h->params, &copy));
    }
    ap_arena_free(&scratch);
}

double hunt_least_bare(const struct plan_instance *inst, const struct plan_answer *a)
{
    int groups = plan_groups(a);
    double b = (double)a->microbatches, way = 0, back = 0, least = 0;

    for (int g = 0; g < groups; g++) {
        double all = way, once = 0;
        for (int s = g; s < a->n_stages; s += groups) {
            const struct plan_point *p = a->stage[s].point;
            all += b * (p->forward_sec + p->backward_sec);
            once += p->update_sec + (inst->overlap_sync ? 0 : p->sync_sec);
        }
        least = most_of(least, all + most_of(back, once));
        way += a->stage[g].point->forward_sec;
        back += a->stage[g].point->backward_sec;
    }
    return least * (1 - 1e-9);
}

double hunt_score(struct hunt *h, struct space *sp, struct plan_answer *a,
                  const char *from)
{
    struct ap_err why = {0};
    double score;

    if (!is_within(h, a) || plan_try(sp, a, &score, &why))
        return INFINITY;
    a->least_sec = 0; /* know_bare, if it is kept and lifts nothing now */
    if (h->inst->inference || hunt_least_bare(h->inst, a) < h->bare)
        hunt_bare(h, a);
    hunt_take(h, score, a, from);
    return score;
}

/* Of plans that are kept it is found after all. */
static void know_bare(struct hunt *h, struct shortlist *l)
{
    for (int i = 0; i < l->n; i++)
        if (l->plan[i].least_sec == 0)
            hunt_bare(h, &l->plan[i]);
}

int64_t hunt_share(struct hunt *h)
{
    int64_t whole = h->instruction_limit;
    h->instruction_limit = h->instructions + (whole - h->instructions) / 4;
    return whole;
}

bool hunt_try(struct hunt *h, struct space *sp, struct plan_answer *a, const char *from)
{
    int64_t before = h->instructions;
    hunt_score(h, sp, a, from);
    return h->instructions > before;
}

/* ---- lines ---- */

static void put_pool(struct pool *pool, struct ap_arena *arena, double estimate,
                     const struct plan_answer *a)
{
    int at = pool->n;
    if (pool->n == pool->most && estimate >= pool->kept[pool->n - 1].estimate)
        return;
    if (pool->n < pool->most)
        pool->n++;
    else
        at--;
    for (; at > 0 && pool->kept[at - 1].estimate > estimate; at--)
        pool->kept[at] = pool->kept[at - 1];
    pool->kept[at] = (struct kept){estimate, plan_copy(arena, a)};
}

/* Roots of a line's plans: the best is simulated now, the others wait. */
static void gather(struct hunt *h, struct pool *pool, const struct line *ln,
                   const struct labels *l)
{
    int best = -1, want = h->params->n_stages;

    for (int d = 0; d <= ln->n_units; d++)
        for (int i = l->first[d]; i < l->first[d] + l->n[d]; i++) {
            if (want > 0 && l->all[i].least_stages != want)
                continue;
            if (best < 0 || l->all[i].done < l->all[best].done)
                best = i;
            if (pool->n == pool->most &&
                l->all[i].done >= pool->kept[pool->n - 1].estimate)
                continue;
            struct plan_answer a = line_plan(ln, l, i);
            put_pool(pool, h->arena, l->all[i].done, &a);
        }
    if (best >= 0) {
        struct plan_answer a = line_plan(ln, l, best);
        hunt_try(h, ln->sp, &a, "labels");
    }
}

/* 0; 1: no line of one stage per device can be better than the best; -1. */
static int one_line(struct hunt *h, struct pool *pool, struct space *sp, struct config *c,
                    enum ap_schedule schedule, struct ap_err *err)
{
    struct line ln;
    struct labels l;
    double b = (double)c->microbatches;

    if (line_init(&ln, sp, c, schedule, h->least, err))
        return -1;
    if (hunt_is_over(h, b * ln.front_device_sec[sp->n] / (c->hosts * c->devices)))
        return 1;
    if (!h->proves) {
        line_labels(&ln, false, &l);
        gather(h, pool, &ln, &l);
    } else {
        ln.below = h->least * (1 + 1e-12);
        line_labels(&ln, true, &l);
        hunt_tree(h, &ln, &l);
    }
    line_free(&l);
    return 0;
}

static bool has_schedule(const struct hunt *h, int schedule)
{
    int asked = h->params->schedule;
    if (h->inst->inference != (schedule == AP_SCHEDULE_INFERENCE))
        return false;
    return asked < 0 || asked == schedule;
}

/*
 * Copies of a stage over several hosts, in copies of the pipeline or inside the stage,
 * are nearly the same plan: where there are many hosts only the latter is looked at.
 */
static void leave_meshes(struct config *c)
{
    while (c->replicas > 1 && c->hosts > 8 && c->n_meshes > 1 &&
           c->mesh[c->n_meshes - 1].hosts > 1)
        c->n_meshes--;
}

static int one_config(struct hunt *h, struct pool *pool, const struct space *whole,
                      int replicas, int64_t microbatches, struct ap_err *err)
{
    static const enum ap_schedule lines[] = {AP_SCHEDULE_1F1B, AP_SCHEDULE_GPIPE,
                                             AP_SCHEDULE_INFERENCE};
    struct ap_arena scratch = {0};
    struct space sp = *whole;
    struct config c;
    int rc = 0;

    sp.arena = &scratch;
    sp.n_asked = sp.n_plans = 0;
    if (config_init(&sp, &c, replicas, microbatches, NULL, 0) &&
        !hunt_is_over(h, line_known_bound(&sp, &c))) {
        leave_meshes(&c);
        for (size_t i = 0; i < sizeof lines / sizeof *lines && rc == 0; i++)
            if (has_schedule(h, lines[i]))
                rc = one_line(h, pool, &sp, &c, lines[i], err);
        if (rc >= 0 && has_schedule(h, AP_SCHEDULE_INTERLEAVED))
            rc = hunt_chunks(h, &sp, &c, err);
    }
    h->n_asked += sp.n_asked;
    h->n_plans += sp.n_plans;
    ap_arena_free(&scratch);
    return rc < 0 ? -1 : 0;
}

/* ---- single changes of the best plan ---- */

/* The plan with a block moved over the cut behind stage s; false: there is none. */
static int shifted(struct space *sp, struct config *c, struct plan_answer *a, int s,
                   int by, bool *ok, struct ap_err *err)
{
    *ok = false;
    a->stage[s].hi += by;
    a->stage[s + 1].lo += by;
    if (a->stage[s].lo > a->stage[s].hi || a->stage[s + 1].lo > a->stage[s + 1].hi)
        return 0;
    *ok = true;
    for (int i = s; i <= s + 1; i++) {
        struct plan_stage *st = &a->stage[i];
        const struct plan_front *front;
        int m = 0, flight = plan_in_flight(a->schedule, a->n_stages - i, a->microbatches);
        double least = INFINITY;
        while (m < c->n_meshes &&
               (c->mesh[m].hosts != st->hosts || c->mesh[m].devices != st->devices))
            m++;
        if (m == c->n_meshes) {
            *ok = false;
            return 0;
        }
        if (config_front(sp, c, st->lo, st->hi, m, &front, err))
            return -1;
        st->point = NULL;
        for (int k = 0; k < front->n; k++) {
            const struct plan_point *p = &front->point[k];
            double sec = (double)a->microbatches * (p->forward_sec + p->backward_sec) +
                         p->sync_sec + p->update_sec;
            if (sec < least && plan_fits(sp->inst, p, flight)) {
                least = sec;
                st->point = p;
            }
        }
        *ok &= st->point != NULL;
    }
    return 0;
}

static int improve(struct hunt *h, const struct space *whole, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct space sp = *whole;
    struct config c;
    bool better = h->best.n_stages > 1 && h->best.chunks == 1 && !h->best.stage[0].set;
    int rc = 0;

    sp.arena = &scratch;
    sp.n_asked = sp.n_plans = 0;
    if (better)
        config_init(&sp, &c, h->best.replicas, h->best.microbatches, NULL, 0);
    while (better && rc == 0) {
        double before = h->least;
        for (int s = 0; s + 1 < h->best.n_stages && rc == 0; s++)
            for (int by = -1; by <= 1 && rc == 0; by += 2) {
                struct plan_answer a = plan_copy(&scratch, &h->best);
                bool ok;
                rc = shifted(&sp, &c, &a, s, by, &ok, err);
                if (rc == 0 && ok)
                    hunt_try(h, &sp, &a, "moved cut");
            }
        better = h->least < before;
    }
    h->n_asked += sp.n_asked;
    h->n_plans += sp.n_plans;
    ap_arena_free(&scratch);
    return rc;
}

/* ---- the row ---- */

#define NODE_LIMIT        ((int64_t)2000000)
#define INSTRUCTION_LIMIT ((int64_t)8000000)

static int all_configs(struct hunt *h, struct pool *pool, const struct space *sp,
                       struct ap_err *err)
{
    const struct plan_instance *inst = h->inst;
    int all = inst->n_hosts * inst->n_devices;

    for (int r = 1; r <= all; r++) {
        int hosts, devices;
        if (!plan_grid(inst, r, &hosts, &devices))
            continue;
        for (int i = 0; i < inst->n_microbatches; i++)
            if (one_config(h, pool, sp, r, inst->microbatches[i], err))
                return -1;
    }
    return 0;
}

/* Plans of all lines come first: a tree may use up what may be simulated. */
static int hunt_all(struct hunt *h, struct space *sp, struct ap_err *err)
{
    int most = (int)h->params->n_kept;
    struct pool pool = {.most = most > 0 ? most : 64};

    pool.kept = AP_NEW_N(h->arena, pool.most, struct kept);
    if (all_configs(h, &pool, sp, err))
        return -1;
    for (int i = 0; i < pool.n; i++)
        if (pool.kept[i].estimate < 1.2 * h->least)
            hunt_try(h, sp, &pool.kept[i].plan, "labels");
    h->proves = true;
    if (all_configs(h, &pool, sp, err))
        return -1;
    h->instruction_limit += INSTRUCTION_LIMIT / 4;
    return improve(h, sp, err);
}

static void put_other(struct plan_answer *others, int *n, const struct plan_answer *first,
                      const struct plan_answer *a)
{
    bool known = plan_same(first, a);
    for (int i = 0; i < *n && !known; i++)
        known = plan_same(&others[i], a);
    if (!known)
        others[(*n)++] = *a;
}

/* The finalists behind the best, the rivals that are none, and what rules found. */
static void put_others(const struct hunt *h, struct plan_answer *answer)
{
    struct plan_answer *others =
        AP_NEW_N(h->arena, 2 * HUNT_FINALISTS + HUNT_HEARD, struct plan_answer);
    int n = 0;

    for (int i = 1; i < h->final.n; i++)
        others[n++] = h->final.plan[i];
    answer->n_others = n;
    for (int i = 0; i < h->rivals.n; i++)
        put_other(others, &n, &h->final.plan[0], &h->rivals.plan[i]);
    answer->n_rivals = n - answer->n_others;
    for (int i = 0; i < h->n_heard; i++)
        put_other(others, &n, &h->final.plan[0], &h->heard[i]);
    answer->n_heard = n - answer->n_others - answer->n_rivals;
    answer->others = others;
}

int plan_auto(struct ap_arena *arena, const struct plan_instance *inst,
              const struct plan_params *params, struct plan_answer *answer,
              struct ap_err *err)
{
    struct space sp;
    struct hunt h = {.arena = arena,
                     .inst = inst,
                     .params = params,
                     .least = INFINITY,
                     .bound = INFINITY,
                     .bare = INFINITY,
                     .node_limit = params->work_limit ? params->work_limit : NODE_LIMIT,
                     .instruction_limit = INSTRUCTION_LIMIT};

    space_init(&sp, arena, inst, params);
    if (hunt_rules(&h, &sp, true, err) || hunt_all(&h, &sp, err) ||
        hunt_rules(&h, &sp, false, err))
        return -1;
    if (!isfinite(h.least))
        return plan_none_fits("auto", err);
    know_bare(&h, &h.final);
    know_bare(&h, &h.rivals);
    double sets = hunt_sets_bound(&sp);
    *answer = h.final.plan[0];
    answer->objective = h.least;
    answer->bound = fmin(h.least, fmin(sets, fmin(h.bound, h.bare)) * (1 - 1e-12));
    answer->measure = "simulated";
    answer->stopped = h.bound < h.least ? "work limit"
                      : sets < h.least  ? "all runs of blocks"
                                        : "all plans";
    answer->n_asked = h.n_asked + sp.n_asked;
    answer->n_plans = h.n_plans + sp.n_plans;
    put_others(&h, answer);
    return plan_judge(arena, inst, answer, NULL, err);
}
