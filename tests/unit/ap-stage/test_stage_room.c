/*
 * Bounds of interleaved plans, against all plans of one number of groups and stages: of
 * chunks that must fit together, and of whole blocks that must.
 */
#include "search/auto.h"
#include "stage_oracle.h"
#include "tap.h"

#define N_CASES 400

static struct random_case cases;

struct tally {
    int n, n_none, n_raised, n_near, n_wrong, n_short;
    int n_over; /* by whole blocks above the average over the groups */
};

typedef double bound_fn(const struct chunk_plans *x, double enough);

static double loads_bound(const struct chunk_plans *x, double enough)
{
    return chunks_loads_bound(x, 0, enough);
}

/* All cuts and points of one shape, simulated. */
struct walk {
    struct space *sp;
    struct config *c;
    const struct chunk_plans *of;
    struct plan_answer now;
    double least;
};

static void walk(struct walk *w, int s, int lo)
{
    const int n = w->sp->n, last = w->of->n_stages - 1;
    struct ap_err err = {0};
    double score;

    if (s > last) {
        if (lo == n && plan_try(w->sp, &w->now, &score, &err) == 0)
            w->least = fmin(w->least, score);
        return;
    }
    for (int hi = s == last && lo < n ? n - 1 : lo; hi < n; hi++) {
        const struct plan_front *front;
        if (config_front(w->sp, w->c, lo, hi, w->of->mesh, &front, &err))
            return;
        for (int i = 0; i < front->n; i++) {
            w->now.stage[s] =
                (struct plan_stage){.lo = lo,
                                    .hi = hi,
                                    .hosts = w->c->mesh[w->of->mesh].hosts,
                                    .devices = w->c->mesh[w->of->mesh].devices,
                                    .point = &front->point[i]};
            walk(w, s + 1, hi + 1);
        }
    }
}

static void one_shape(struct space *sp, struct config *c, struct chunk_plans *x,
                      struct tally *t)
{
    struct plan_instance free = *sp->inst;
    struct space roomy = *sp;
    struct plan_stage stage[8];
    struct walk w = {.sp = sp, .c = c, .of = x, .least = INFINITY};

    w.now = (struct plan_answer){.replicas = c->replicas,
                                 .microbatches = c->microbatches,
                                 .schedule = AP_SCHEDULE_INTERLEAVED,
                                 .n_stages = x->n_stages,
                                 .chunks = x->n_stages / x->groups,
                                 .stage = stage};
    walk(&w, 0, 0);
    for (int i = 0; i < 4; i++) {
        bound_fn *const fn = i < 2 ? chunks_room_bound : loads_bound;
        x->counts_once = i % 2;
        x->sp = sp;
        const double bound = fn(x, INFINITY);
        const double some = fn(x, 0.7 * w.least);
        t[i / 2].n_over +=
            isfinite(bound) && bound > chunks_room_bound(x, INFINITY) * 1.01;
        free.memory_bytes = 0;
        roomy.inst = &free;
        x->sp = &roomy;
        const double without = fn(x, INFINITY);
        t[i / 2].n++;
        t[i / 2].n_wrong += bound > w.least * (1 + 1e-9) || without > bound * (1 + 1e-9);
        t[i / 2].n_none += isfinite(without) && !isfinite(bound);
        t[i / 2].n_raised += isfinite(bound) && bound > without * 1.01;
        t[i / 2].n_near +=
            isfinite(bound) && bound > without * 1.01 && bound > 0.8 * w.least;
        t[i / 2].n_short +=
            some > bound * (1 + 1e-9) ||
            (some < bound * (1 - 1e-9) && some < 0.7 * w.least * (1 - 1e-9));
    }
    x->sp = sp;
}

/* All but the first and the last are one block. */
static void make_alike(struct random_case *c)
{
    for (int b = 2; b + 1 < c->inst.n_blocks; b++) {
        c->oracle.sec[b] = c->oracle.sec[1];
        c->oracle.weight_bytes[b] = c->oracle.weight_bytes[1];
        c->oracle.activation_bytes[b] = c->oracle.activation_bytes[1];
    }
    case_alike(c, c->inst.n_blocks);
}

static void one(uint64_t seed, struct tally *t)
{
    struct plan_params params = {.schedule = -1};
    struct ap_arena arena = {0};
    struct space sp;
    struct config c;

    case_random(&cases, seed, 6);
    if (seed % 3 == 0)
        make_alike(&cases);
    cases.oracle.recompute = true;
    cases.oracle.recomputed = seed % 2 ? 1 : 0;
    cases.inst.n_values = 0;
    cases.inst.memory_bytes = cases.inst.memory_bytes * 3 / 2;
    space_init(&sp, &arena, &cases.inst, &params);
    const int i = (int)(seed % (uint64_t)cases.inst.n_microbatches);
    if (config_init(&sp, &c, 1, cases.inst.microbatches[i], NULL, 0) &&
        cases.inst.memory_bytes > 0)
        for (int m = 0; m < c.n_meshes; m++)
            for (int g = 2; g <= c.counts.most[0] / mesh_size(&c.mesh[m]); g++)
                for (int s = 2 * g; s <= sp.n && c.microbatches % g == 0; s += g) {
                    struct chunk_plans x = {.c = &c,
                                            .mesh = m,
                                            .groups = g,
                                            .n_stages = s,
                                            .below = INFINITY};
                    one_shape(&sp, &c, &x, t);
                }
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* Equal blocks, many microbatches and no limit of memory: no second is left out but some
 * of the first microbatch's. */
static void equal_blocks(void)
{
    const struct plan_params params = {.schedule = -1};
    struct ap_arena arena = {0};
    struct space sp;
    struct config c;

    case_random(&cases, 1, 6);
    case_cluster(&cases, 1, 2);
    cases.oracle.noise = cases.oracle.hole = cases.oracle.loss = 0;
    cases.oracle.recompute = false;
    for (int b = 0; b < 6; b++)
        cases.oracle.sec[b] = 1;
    case_instance(&cases, 6, 1);
    cases.microbatches[0] = 64;
    cases.inst.n_values = 0;
    cases.inst.memory_bytes = 0;
    space_init(&sp, &arena, &cases.inst, &params);
    bool is_one = config_init(&sp, &c, 1, 64, NULL, 0);
    struct chunk_plans x = {
        .sp = &sp, .c = &c, .groups = 2, .n_stages = 6, .below = INFINITY};
    struct plan_stage stage[8];
    struct walk w = {.sp = &sp, .c = &c, .of = &x, .least = INFINITY};
    w.now = (struct plan_answer){.replicas = 1,
                                 .microbatches = 64,
                                 .schedule = AP_SCHEDULE_INTERLEAVED,
                                 .n_stages = 6,
                                 .chunks = 3,
                                 .stage = stage};
    walk(&w, 0, 0);
    const double bound = chunks_room_bound(&x, INFINITY);
    CHECK(is_one && bound <= w.least && bound >= 0.995 * w.least,
          "equal blocks: %g s, at least %g s", w.least, bound);
    oracle_free(&cases.oracle);
    ap_arena_free(&arena);
}

/* ---- points of a device's stages ---- */

/* Least seconds of all choices that fit; most: what one of them recomputes. */
static double least_choice(const struct device_stages *d, int s, double bytes,
                           double most, double sec, double limit)
{
    double least = INFINITY;

    if (bytes + most > limit || s == d->n)
        return bytes + most > limit ? INFINITY : sec;
    for (int i = 0; i < d->stage[s].front->n; i++) {
        const struct plan_point *p = &d->stage[s].front->point[i];
        const double its = (double)(p->stage_bytes - p->passing_bytes) +
                           d->stage[s].flights * (double)p->microbatch_bytes;
        const double more =
            p->update_sec + d->microbatches * (p->forward_sec + p->backward_sec);
        least = fmin(least, least_choice(d, s + 1, bytes + its,
                                         fmax(most, (double)p->passing_bytes), sec + more,
                                         limit));
    }
    return least;
}

static void points(void)
{
    int n_fit = 0, n_none = 0, n_wrong = 0, n_best = 0;
    double worst = 1;

    for (uint64_t seed = 1; seed <= N_CASES; seed++) {
        struct random_case c = {.state = seed};
        struct plan_point point[4][3];
        struct plan_front front[4];
        struct device_stage stage[4];
        struct device_stages d = {
            .n = case_int(&c, 1, 4), .microbatches = 8, .stage = stage};
        for (int s = 0; s < d.n; s++) {
            front[s] = (struct plan_front){.n = case_int(&c, 1, 3), .point = point[s]};
            stage[s] =
                (struct device_stage){.front = &front[s], .flights = case_int(&c, 1, 8)};
            for (int i = 0; i < front[s].n; i++) {
                const int64_t again = seed % 2 && i ? case_int(&c, 1 << 18, 1 << 23) : 0;
                point[s][i] = (struct plan_point){
                    .forward_sec = 1 + 0.3 * i,
                    .backward_sec = case_num(&c, 1, 2),
                    .update_sec = case_num(&c, 0, 1),
                    .stage_bytes = again + case_int(&c, 1 << 20, 1 << 22),
                    .passing_bytes = again,
                    .microbatch_bytes = case_int(&c, 1 << 18, 1 << 22) >> i};
            }
        }
        const double limit = d.n * case_num(&c, 2e6, 2e7);
        const double least = least_choice(&d, 0, 0, 0, 0, limit);
        const bool fits = choose_points(&d, limit);
        n_fit += fits;
        n_none += !fits;
        n_wrong += fits != isfinite(least) || (fits && d.bytes > limit) ||
                   (fits && d.sec < least * (1 - 1e-9));
        n_best += fits && d.sec <= least * (1 + 1e-9);
        worst = fits ? fmax(worst, d.sec / least) : worst;
    }
    CHECK(n_wrong == 0 && n_fit >= 200 && n_none >= 20,
          "points fit where some do: %d, not %d, wrong %d", n_fit, n_none, n_wrong);
    CHECK(n_best * 10 >= n_fit * 9 && worst < 1.2,
          "%d of %d are the quickest, the others %.2f times as slow at most", n_best,
          n_fit, worst);
}

static void check_bounds(const char *name, const struct tally *t)
{
    printf("# %s: %d shapes: %d have no room, %d are raised, %d of these near, %d above "
           "the average\n",
           name, t->n, t->n_none, t->n_raised, t->n_near, t->n_over);
    CHECK(t->n >= 300 && t->n_wrong == 0,
          "%s: no bound of %d is above the best plan: %d are", name, t->n, t->n_wrong);
    CHECK(t->n_none >= 10, "%s: %d shapes are known to have no plan", name, t->n_none);
    CHECK(t->n_raised >= 100 && t->n_near >= 30,
          "%s: memory raises %d bounds, %d of them to 0.8 of the best plan", name,
          t->n_raised, t->n_near);
    CHECK(t->n_short == 0, "%s: with a lower aim bounds are no worse than that: %d are",
          name, t->n_short);
}

int main(void)
{
    struct tally t[2] = {{0}, {0}};

    for (uint64_t seed = 1; seed <= 2 * N_CASES; seed++)
        one(seed, t);
    check_bounds("average", &t[0]);
    check_bounds("whole blocks", &t[1]);
    CHECK(t[1].n_over >= 100, "by whole blocks %d bounds are above the average",
          t[1].n_over);
    equal_blocks();
    points();
    return tap_done();
}
