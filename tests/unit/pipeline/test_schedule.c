/* Schedules by definition, and their simulation against closed forms and a slow one. */
#include "pipeline/schedule.h"

#include <math.h>
#include <string.h>

#include "tap.h"

#define MAX_STAGES 12

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

static uint64_t state = 1;
static int draw(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)(state >> 33) % n;
}

/* "F0 F1 B0 ..." of a device; chunk numbers follow a dot where there are several. */
static const char *order(struct ap_arena *arena, enum ap_schedule schedule, int n,
                         int chunks, int microbatches, int device)
{
    const struct ap_schedule_size size = {schedule, n, chunks, microbatches, false};
    struct ap_instr *list;
    struct ap_err err = {""};
    struct ap_buf text = {0};
    int n_list;

    if (ap_schedule_order(arena, &size, device, &list, &n_list, &err))
        return ap_arena_strdup(arena, err.msg);
    for (int i = 0; i < n_list; i++) {
        ap_buf_printf(&text, "%s%c%d", i ? " " : "", "FBW"[list[i].pass],
                      list[i].microbatch);
        if (chunks > 1)
            ap_buf_printf(&text, ".%d", list[i].stage / n);
    }
    const char *out = ap_arena_strdup(arena, text.data);
    ap_buf_free(&text);
    return out;
}

/* Two microbatches more than stages: a backward beside a forward hides what both send. */
static void test_pairs(struct ap_arena *arena)
{
    struct ap_sim_stage stage = {
        .forward_sec = 4, .backward_sec = 7, .exchange_sec = {1, 2}, .flight_bytes = 10};
    struct ap_sim sim = {.schedule = AP_SCHEDULE_1F1B,
                         .n_stages = 1,
                         .chunks = 1,
                         .microbatches = 3,
                         .stages = &stage,
                         .overlap_send = true,
                         .pairs = true};
    struct ap_sim_result result;
    struct ap_err err = {""};

    CHECK(ap_simulate(arena, &sim, &result, &err) == 0 && near(result.step_sec, 33 - 6) &&
              near(result.devices[0].paired_sec, 6) && result.devices[0].peak_bytes == 20,
          "F0 F1 B0 F2 B1 B2: two pairs, one microbatch more in flight: %s, %g", err.msg,
          result.step_sec);
    stage.exchange_share = 0.2; /* both run at 0.8: 3 take 3.75 of the 6 of both */
    CHECK(ap_simulate(arena, &sim, &result, &err) == 0 &&
              near(result.step_sec, 33 - 2 * (6 - 3.75)),
          "pairs that share the device: %g", result.step_sec);
    stage.exchange_sec[1] = 6; /* of which the 3 that a forward computes hide 3 */
    stage.exchange_share = 0;
    CHECK(ap_simulate(arena, &sim, &result, &err) == 0 &&
              near(result.step_sec, 33 - 2 * (1 + 3)),
          "a pass hides no more than it computes: %g", result.step_sec);
    sim.pairs = false;
    CHECK(ap_simulate(arena, &sim, &result, &err) == 0 && near(result.step_sec, 33),
          "one after the other: %g", result.step_sec);
}

/* What is said to be held before the first backward is never more than what is held. */
static void test_warm_up(void)
{
    int n_wrong = 0, n = 0;

    for (int schedule = 0; schedule < AP_N_TRAIN_SCHEDULES; schedule++)
        for (int p = 2; p <= 8; p++)
            for (int b = 1; b <= 17; b++) {
                struct ap_arena arena = {0};
                const int chunks = ap_schedule_traits[schedule].least_chunks;
                const struct ap_schedule_size z = {schedule, p, chunks, b, false};
                const struct ap_sim sim = {
                    .schedule = schedule,
                    .n_stages = p * chunks,
                    .chunks = chunks,
                    .microbatches = b,
                    .stages = AP_NEW_N(&arena, p * chunks, struct ap_sim_stage),
                    .overlap_send = true};
                struct ap_sim_result result = {0};
                struct ap_err err = {""};
                if (ap_simulate(&arena, &sim, &result, &err) == 0)
                    n++;
                for (int d = 0; d < p && !*err.msg; d++)
                    n_wrong += ap_schedule_warm_up(&z, b * chunks, d) >
                               result.devices[d].peak_in_flight;
                ap_arena_free(&arena);
            }
    CHECK(n > 800 && n_wrong == 0, "in flight at least: %d of %d sizes are wrong",
          n_wrong, n);
}

static void test_orders(struct ap_arena *arena)
{
    static const struct {
        enum ap_schedule schedule;
        int n, chunks, microbatches, device;
        const char *want;
    } t[] = {
        {AP_SCHEDULE_GPIPE, 2, 1, 3, 0, "F0 F1 F2 B0 B1 B2"},
        {AP_SCHEDULE_GPIPE, 2, 1, 3, 1, "F0 F1 F2 B0 B1 B2"},
        {AP_SCHEDULE_1F1B, 3, 1, 5, 0, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"},
        {AP_SCHEDULE_1F1B, 3, 1, 5, 1, "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"},
        {AP_SCHEDULE_1F1B, 3, 1, 5, 2, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"},
        {AP_SCHEDULE_1F1B, 3, 1, 2, 0, "F0 F1 B0 B1"},
        {AP_SCHEDULE_INTERLEAVED, 2, 2, 2, 0, "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"},
        {AP_SCHEDULE_INTERLEAVED, 2, 2, 2, 1, "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"},
        {AP_SCHEDULE_INTERLEAVED, 2, 2, 4, 1,
         "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 "
         "B3.0"},
        {AP_SCHEDULE_INFERENCE, 2, 1, 3, 1, "F0 F1 F2"},
        {AP_SCHEDULE_EAGER, 3, 1, 6, 0, "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5"},
        {AP_SCHEDULE_EAGER, 3, 1, 5, 1, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"},
        {AP_SCHEDULE_EAGER, 3, 1, 5, 2, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"},
        {AP_SCHEDULE_LOOPED_BFS, 2, 2, 2, 1, "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"},
        {AP_SCHEDULE_ZB_H1, 3, 1, 5, 0, "F0 F1 F2 B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4"},
        {AP_SCHEDULE_ZB_H1, 3, 1, 5, 1, "F0 F1 B0 F2 B1 W0 F3 B2 W1 F4 B3 W2 B4 W3 W4"},
        {AP_SCHEDULE_ZB_H1, 3, 1, 5, 2, "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 F4 B4 W2 W3 W4"},
        {AP_SCHEDULE_ZB_H1, 2, 2, 2, 1,
         "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 W0.1 B0.0 W1.1 B1.0 W0.0 W1.0"},
        {AP_SCHEDULE_ZB_H2, 2, 1, 4, 0, "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"},
        {AP_SCHEDULE_ZB_H2, 2, 1, 4, 1, "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"},
        {AP_SCHEDULE_ZB_V, 2, 2, 4, 0,
         "F0.0 F1.0 F2.0 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 F3.0 B0.0 W0.0 F2.1 B2.1 W2.1 "
         "B1.0 W1.0 F3.1 B3.1 W3.1 B2.0 W2.0 B3.0 W3.0"},
        {AP_SCHEDULE_ZB_V, 2, 2, 4, 1,
         "F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 F2.0 B0.0 W0.0 F2.1 B1.1 W1.1 F3.0 B1.0 W1.0 "
         "F3.1 B2.1 W2.1 B2.0 B3.1 B3.0 W2.0 W3.1 W3.0"},
        {AP_SCHEDULE_ZB_V, 2, 2, 1, 1, "F0.0 F0.1 B0.1 W0.1 B0.0 W0.0"},
        {AP_SCHEDULE_DUALPIPE_V, 2, 2, 4, 1,
         "F0.0 F0.1 F1.0 F1.1 F2.0 B0.1 W0.1 F2.1 B0.0 W0.0 F3.0 B1.1 W1.1 F3.1 B1.0 "
         "W1.0 B2.1 W2.1 B2.0 W2.0 B3.1 B3.0 W3.1 W3.0"},
        {AP_SCHEDULE_V_HALF, 2, 2, 2, 1,
         "F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 B0.0 W0.0 B1.1 W1.1 B1.0 W1.0"},
        {AP_SCHEDULE_DUALPIPE_V, 3, 2, 5, 0,
         "dualpipe-v: 5 microbatches are fewer than twice the 3 devices"},
        {AP_SCHEDULE_ZB_V, 3, 3, 5, 0, "zb-v: a device has two stages, not 3"},
        {AP_SCHEDULE_LOOPED_BFS, 3, 1, 5, 0,
         "looped-bfs: a device has two stages or more, not 1"},
        {AP_SCHEDULE_GPIPE, 2, 2, 3, 0, "gpipe: a device has one stage, not 2"},
        {AP_SCHEDULE_INTERLEAVED, 4, 2, 6, 0,
         "interleaved-1f1b: 4 devices do not divide 6 microbatches"},
        {AP_SCHEDULE_1F1B, 2, 1, 0, 0,
         "1f1b: expected stages, chunks and microbatches > 0"},
        {AP_SCHEDULE_1F1B, 2, 1, 2000000000, 0,
         "1f1b: 2000000000 microbatches are too many"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const char *got = order(arena, t[i].schedule, t[i].n, t[i].chunks,
                                t[i].microbatches, t[i].device);
        CHECK(strcmp(got, t[i].want) == 0, "%s, device %d of %d, %d microbatches: %s",
              ap_schedule_names[t[i].schedule], t[i].device, t[i].n, t[i].microbatches,
              got);
    }
}

/* Identical stages. */
static struct ap_sim_result equal(struct ap_arena *arena, enum ap_schedule schedule,
                                  int stages, int chunks, int microbatches,
                                  struct ap_sim_stage stage)
{
    struct ap_sim_stage *all = AP_NEW_N(arena, stages, struct ap_sim_stage);
    struct ap_sim sim = {schedule, stages, chunks, microbatches, all,
                         NULL,     true,   false,  false,        0};
    struct ap_sim_result r;
    struct ap_err err = {""};

    for (int s = 0; s < stages; s++)
        all[s] = stage;
    if (ap_simulate(arena, &sim, &r, &err))
        r.step_sec = NAN;
    return r;
}

/* T = sum of t + (B - 1) max t, in flight S - i, bubble (S - 1) / (B + S - 1). */
static void test_closed_forms(struct ap_arena *arena)
{
    const struct ap_sim_stage stage = {.forward_sec = 1.25,
                                       .backward_sec = 2.5,
                                       .sync_sec = 7,
                                       .fixed_bytes = 1000,
                                       .flight_bytes = 10,
                                       .work_bytes = 3};
    struct ap_sim_stage no_sync = stage;
    int cases = 0, time_ok = 0, sync_ok = 0, flight_ok = 0, bubble_ok = 0;
    bool bytes_ok = true;
    no_sync.sync_sec = 0;

    for (int n = 1; n <= 8; n++)
        for (int b = 1; b <= 17; b++)
            for (int k = AP_SCHEDULE_GPIPE; k <= AP_SCHEDULE_1F1B; k++) {
                double t = 3.75, want = n * t + (b - 1) * t;
                struct ap_sim_result r =
                    equal(arena, (enum ap_schedule)k, n, 1, b, no_sync);
                int held = 0;
                time_ok += near(r.step_sec, want);
                bubble_ok += near(r.bubble, (n - 1.0) / (b + n - 1.0));
                r = equal(arena, (enum ap_schedule)k, n, 1, b, stage);
                sync_ok += near(r.step_sec, (b + n - 1) * t + 7);
                for (int i = 0; i < n; i++) {
                    int limit = k == AP_SCHEDULE_GPIPE || b < n - i ? b : n - i;
                    held += r.devices[i].peak_in_flight == limit;
                    bytes_ok &= r.devices[i].peak_bytes == 1000 + 10 * limit + 3;
                }
                flight_ok += held == n;
                cases++;
            }
    CHECK(time_ok == cases,
          "alpa §5.1: gpipe and 1f1b on 1 to 8 equal stages, 1 to 17 microbatches, take "
          "sum t + (B - 1) max t: %d of %d",
          time_ok, cases);
    CHECK(sync_ok == cases,
          "rannc §III-C: 1 to 8 equal stages, 1 to 17 microbatches, take "
          "(MB + S - 1)(tf + tb) + AR: %d of %d",
          sync_ok, cases);
    CHECK(flight_ok == cases,
          "alpa §5.1: 1f1b holds S - i microbatches in stage i, gpipe all: %d of %d",
          flight_ok, cases);
    CHECK(bubble_ok == cases, "alpa §5.1: the bubble is (S - 1) / (B + S - 1): %d of %d",
          bubble_ok, cases);
    CHECK(bytes_ok, "peak memory: fixed, microbatches in flight, working set");
}

/* Narayanan et al.: the bubble's seconds are those of 1F1B over the chunks. */
static void test_interleaved(struct ap_arena *arena)
{
    bool ok = true, forward_ok = true;
    for (int n = 2; n <= 6; n++)
        for (int chunks = 1; chunks <= 4; chunks++)
            for (int groups = 1; groups <= 3; groups++) {
                int b = groups * n;
                double f = 3.0 / chunks, back = 6.0 / chunks;
                struct ap_sim_stage stage = {.forward_sec = f, .backward_sec = back};
                struct ap_sim_result r =
                    equal(arena, AP_SCHEDULE_INTERLEAVED, n * chunks, chunks, b, stage);
                ok &= near(r.step_sec, b * 9.0 + (n - 1) * 9.0 / chunks);
                r = equal(arena, AP_SCHEDULE_INFERENCE, n, 1, b, stage);
                forward_ok &=
                    near(r.step_sec, (b + n - 1) * f) && r.devices[0].peak_in_flight == 1;
            }
    CHECK(ok, "interleaved-1f1b: B t + (p - 1) t / chunks on equal stages");
    CHECK(forward_ok, "inference: (B + S - 1) tf, one microbatch at a time");
}

/* Tick at which an instruction starts, all taking one: the schedules' definitions. */
static double clock_of(enum ap_schedule schedule, int n, int b, struct ap_instr in)
{
    int i = in.stage, m = in.microbatch;

    if (schedule == AP_SCHEDULE_INFERENCE)
        return i + m;
    if (schedule == AP_SCHEDULE_GPIPE) /* all there, then all back */
        return in.pass ? n + b - 1 + (n - 1 - i) + m : i + m;
    if (in.pass)
        return 2 * n - 1 - i + 2 * m;
    return m < n - i ? i + m : i + 2 * m; /* warm-up, then every other tick */
}

static void test_clocks(struct ap_arena *arena)
{
    static const enum ap_schedule kinds[] = {AP_SCHEDULE_GPIPE, AP_SCHEDULE_1F1B,
                                             AP_SCHEDULE_INFERENCE};
    const struct ap_sim_stage one = {.forward_sec = 1, .backward_sec = 1};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int wrong = 0, over = 0;
        for (int n = 1; n <= 8; n++)
            for (int b = 1; b <= 20; b++) {
                struct ap_sim_result r = equal(arena, kinds[k], n, 1, b, one);
                for (int d = 0; d < n; d++) {
                    int flying = 0;
                    for (int j = 0; j < r.devices[d].n_slices; j++) {
                        const struct ap_sim_slice *s = &r.devices[d].slices[j];
                        wrong +=
                            !near(s->start_sec, clock_of(kinds[k], n, b, s->instr)) ||
                            !near(s->end_sec, s->start_sec + 1);
                        flying += s->instr.pass ? -1 : 1;
                        over += kinds[k] == AP_SCHEDULE_1F1B && flying > n - d;
                    }
                    wrong += kinds[k] != AP_SCHEDULE_INFERENCE && flying != 0;
                }
            }
        CHECK(wrong == 0, "the clock table of %s, by its definition (%d wrong)",
              ap_schedule_names[kinds[k]], wrong);
        if (kinds[k] == AP_SCHEDULE_1F1B)
            CHECK(over == 0, "no stage i holds more than S - i microbatches under 1f1b");
    }
}

/* Narayanan et al., section 2.2: device d of p has (v - 1) p + 2 (p - d - 1) forwards
 * ahead, the k-th of them at tick d + k, and waits (p - 1) / v of what 1F1B does. */
static void test_interleaved_clocks(struct ap_arena *arena)
{
    const struct ap_sim_stage one = {.forward_sec = 1, .backward_sec = 1};
    int wrong = 0, flight = 0, bubble = 0;

    for (int p = 2; p <= 6; p++)
        for (int v = 2; v <= 4; v++)
            for (int groups = 1; groups <= 4; groups++) {
                int b = groups * p;
                struct ap_sim_result r =
                    equal(arena, AP_SCHEDULE_INTERLEAVED, p * v, v, b, one);
                bubble += !near(r.bubble, (p - 1.0) / (v * b + p - 1.0));
                for (int d = 0; d < p; d++) {
                    int ahead = (v - 1) * p + 2 * (p - d - 1) + 1;
                    ahead = ahead < b * v ? ahead : b * v;
                    flight += r.devices[d].peak_in_flight != ahead;
                    for (int k = 0; k < ahead && k < p * v; k++) {
                        const struct ap_sim_slice *s = &r.devices[d].slices[k];
                        wrong += s->instr.pass || s->instr.stage != k / p * p + d ||
                                 s->instr.microbatch != k % p ||
                                 (k < ahead - 1 && !near(s->start_sec, d + k));
                    }
                }
            }
    CHECK(wrong == 0, "interleaved-1f1b: groups of p through one chunk after the other");
    CHECK(flight == 0, "interleaved-1f1b: (v - 1) p + 2 (p - d - 1) + 1 in flight");
    CHECK(bubble == 0, "interleaved-1f1b: the bubble is (p - 1) / (v B + p - 1)");
}

static struct ap_sim random_sim(struct ap_arena *arena)
{
    const enum ap_schedule schedule = (enum ap_schedule)draw(AP_N_SCHEDULES);
    const struct ap_schedule_traits *t = &ap_schedule_traits[schedule];
    const int n = 1 + draw(5), most = t->most_chunks < 3 ? t->most_chunks : 3;
    const int chunks = t->least_chunks + draw(most - t->least_chunks + 1);
    struct ap_sim sim = {.schedule = schedule,
                         .n_stages = n * chunks,
                         .chunks = chunks,
                         .microbatches = 1 + draw(9),
                         .overlap_send = draw(2) || !t->may_wait};
    if (chunks > 1 || schedule == AP_SCHEDULE_INTERLEAVED)
        sim.microbatches = n * (1 + draw(3));
    if (schedule == AP_SCHEDULE_DUALPIPE_V)
        sim.microbatches += n;
    struct ap_sim_stage *st = AP_NEW_N(arena, sim.n_stages, struct ap_sim_stage);
    for (int i = 0; i < sim.n_stages; i++) {
        st[i] = (struct ap_sim_stage){.forward_sec = draw(9),
                                      .backward_sec = draw(9),
                                      .recompute_sec = draw(3),
                                      .send_forward_sec = draw(4),
                                      .send_backward_sec = draw(4),
                                      .send_forward_bytes = 1 + draw(100),
                                      .send_backward_bytes = 1 + draw(100),
                                      .send_forward_level = draw(2),
                                      .send_backward_level = draw(2)};
        st[i].weights_sec = st[i].backward_sec * draw(3) / 2;
    }
    sim.stages = st;
    return sim;
}

/* The same where sends wait: of each message, when its two sides are ready for it. */
struct sides {
    const struct ap_sim *sim;
    double
        *ready[2]; /* of the sender, of the receiver: by direction, stage, microbatch */
    bool changed;
};

static size_t at_instr(const struct ap_sim *sim, const struct ap_instr *i)
{
    return (size_t)(((int)i->pass * sim->n_stages + i->stage) * sim->microbatches +
                    i->microbatch);
}

/* One side of the message that `from` makes: when it is over. */
static double meet(struct sides *s, const struct ap_instr *from, int side, double now)
{
    const size_t at = at_instr(s->sim, from);
    const struct ap_sim_stage *st = &s->sim->stages[from->stage];

    s->changed |= s->ready[side][at] != now;
    s->ready[side][at] = now;
    return fmax(now, s->ready[!side][at]) +
           (from->pass ? st->send_backward_sec : st->send_forward_sec);
}

static void raise_device(struct sides *s, const struct ap_sim_device *d, double *end)
{
    const int last = s->sim->n_stages - 1;
    const struct ap_instr *left = NULL;
    double now = 0;

    for (int k = 0; k < d->n_slices; k++) {
        const struct ap_instr *i = &d->slices[k].instr;
        const struct ap_sim_stage *st = &s->sim->stages[i->stage];
        struct ap_instr before = *i;
        before.stage += i->pass ? 1 : -1;
        const bool in = before.stage >= 0 && before.stage <= last;
        const bool out = i->pass ? i->stage > 0 : i->stage < last;
        if (in && !i->pass)
            now = meet(s, &before, 1, now);
        if (left)
            now = meet(s, left, 0, now);
        if (in && i->pass)
            now = meet(s, &before, 1, now);
        now += i->pass ? st->backward_sec + st->recompute_sec : st->forward_sec;
        end[at_instr(s->sim, i)] = now;
        left = k + 1 < d->n_slices && d->slices[k + 1].instr.pass != i->pass ? i : NULL;
        if (out && !left)
            now = meet(s, i, 0, now);
        left = out ? left : NULL;
    }
}

static bool agrees_waiting(struct ap_arena *arena, const struct ap_sim *sim,
                           const struct ap_sim_result *r)
{
    const int n = sim->n_stages * sim->microbatches * 2;
    struct sides s = {
        sim, {AP_NEW_N(arena, n, double), AP_NEW_N(arena, n, double)}, true};
    double *end = AP_NEW_N(arena, n, double);

    while (s.changed) {
        s.changed = false;
        for (int d = 0; d < sim->n_stages; d++)
            raise_device(&s, &r->devices[d], end);
    }
    for (int d = 0; d < sim->n_stages; d++)
        for (int k = 0; k < r->devices[d].n_slices; k++) {
            const struct ap_sim_slice *slice = &r->devices[d].slices[k];
            if (!near(slice->end_sec, end[at_instr(sim, &slice->instr)]))
                return false;
        }
    return true;
}

/* Raises start times until every rule holds; the slow way to the same numbers. */
static bool agrees(struct ap_arena *arena, const struct ap_sim *sim,
                   const struct ap_sim_result *r)
{
    int n_stages = sim->n_stages, n_dev = n_stages / sim->chunks, b = sim->microbatches;
    if (!sim->overlap_send)
        return agrees_waiting(arena, sim, r);
    double *end = AP_NEW_N(arena, n_stages * b * AP_N_PASSES, double);
    double *there = AP_NEW_N(arena, n_stages * b * AP_N_PASSES, double);
    const bool splits = ap_schedule_traits[sim->schedule].splits;
    bool changed = true;
#define AT(i) (((int)(i).pass * n_stages + (i).stage) * b + (i).microbatch)
    while (changed) {
        changed = false;
        for (int d = 0; d < n_dev; d++) {
            double free_at = 0, link[AP_N_PASSES][MAX_STAGES * 2] = {{0}};
            for (int k = 0; k < r->devices[d].n_slices; k++) {
                struct ap_instr i = r->devices[d].slices[k].instr, in = i;
                const struct ap_sim_stage *st = &sim->stages[i.stage];
                bool has_input = true;
                if (i.pass == AP_PASS_WEIGHTS) {
                    has_input = false;
                } else if (i.pass == AP_PASS_FORWARD) {
                    in.stage--;
                    has_input = i.stage > 0;
                } else if (i.stage == n_stages - 1) {
                    in.pass = AP_PASS_FORWARD;
                } else {
                    in.stage++;
                }
                double start = fmax(free_at, has_input ? there[AT(in)] : 0);
                const double later = splits ? st->weights_sec : 0;
                double e =
                    start + (i.pass == AP_PASS_WEIGHTS ? later
                             : i.pass ? st->backward_sec + st->recompute_sec - later
                                      : st->forward_sec);
                double sec = i.pass ? st->send_backward_sec : st->send_forward_sec;
                if (i.stage == (i.pass ? 0 : n_stages - 1) || i.pass == AP_PASS_WEIGHTS)
                    sec = 0;
                double *l = &link[i.pass][i.stage];
                double at = fmax(*l, e) + sec;
                *l = at;
                changed |= e != end[AT(i)] || at != there[AT(i)];
                end[AT(i)] = e;
                there[AT(i)] = at;
                free_at = e;
            }
        }
    }
    for (int d = 0; d < n_dev; d++)
        for (int k = 0; k < r->devices[d].n_slices; k++) {
            const struct ap_sim_slice *s = &r->devices[d].slices[k];
            if (!near(s->end_sec, end[AT(s->instr)]))
                return false;
        }
#undef AT
    return true;
}

static double lower_bound(const struct ap_sim *sim)
{
    double before = 0, bound = 0;
    for (int s = 0; s < sim->n_stages; s++) {
        const struct ap_sim_stage *st = &sim->stages[s];
        double t = st->forward_sec + st->backward_sec + st->recompute_sec;
        bound = fmax(bound, before + sim->microbatches * t);
        before += t;
    }
    return fmax(bound, before);
}

static void test_random(struct ap_arena *arena)
{
    int wrong = 0, below = 0, bytes = 0;

    for (int i = 0; i < 2000; i++) {
        struct ap_mark mark = ap_arena_mark(arena);
        struct ap_sim sim = random_sim(arena);
        struct ap_sim_result r;
        struct ap_err err = {""};
        int64_t sent = 0;
        if (ap_simulate(arena, &sim, &r, &err)) {
            wrong++;
            continue;
        }
        wrong += !agrees(arena, &sim, &r);
        if (sim.schedule != AP_SCHEDULE_INFERENCE && sim.chunks == 1 &&
            !ap_schedule_traits[sim.schedule].splits)
            below += r.step_sec < lower_bound(&sim) - 1e-9;
        for (int s = 0; s + 1 < sim.n_stages; s++) {
            sent += sim.stages[s].send_forward_bytes;
            if (sim.schedule != AP_SCHEDULE_INFERENCE)
                sent += sim.stages[s + 1].send_backward_bytes;
        }
        bytes += r.level_bytes[0] + r.level_bytes[1] != sent * sim.microbatches;
        ap_arena_rewind(arena, mark);
    }
    CHECK(wrong == 0, "2000 random pipelines: as the slow simulation (%d wrong)", wrong);
    CHECK(below == 0, "none is faster than its slowest stage allows (%d are)", below);
    CHECK(bytes == 0, "bytes by link level add up (%d wrong)", bytes);
}

/* Peaks of chunks at rank r of p devices, of n microbatches. */
static int peak_of(enum ap_schedule schedule, int p, int v, int n, int r)
{
    switch (schedule) {
    case AP_SCHEDULE_1F1B:
        return p - r;
    case AP_SCHEDULE_INTERLEAVED:
        return 2 * (p - r - 1) + (v - 1) * p + 1;
    case AP_SCHEDULE_ZB_H1:
    case AP_SCHEDULE_ZB_V:
        return v * p;
    case AP_SCHEDULE_ZB_H2:
        return 2 * p - 1;
    case AP_SCHEDULE_DUALPIPE_V:
        return 2 * p + 1;
    case AP_SCHEDULE_V_HALF:
        return 2 * ((p + 2) / 2);
    case AP_SCHEDULE_V_MIN:
        return 2 * ((p + 4) / 3);
    default:
        return v * n;
    }
}

/* Idle seconds of a step where a rank's forward takes f, gradients of inputs b and of
 * weights w seconds per microbatch, least and most. */
static void idle_of(enum ap_schedule schedule, int p, int v, double f, double b, double w,
                    double idle[2])
{
    const double all = (p - 1) * (f + b + w);

    idle[0] = schedule == AP_SCHEDULE_ZB_H1        ? (p - 1) * fmax(f + b - w, w) / v
              : schedule == AP_SCHEDULE_ZB_H2      ? (p - 1) * f
              : schedule == AP_SCHEDULE_ZB_V       ? all * (f == w ? 1.0 / 6 : 0.2)
              : schedule == AP_SCHEDULE_DUALPIPE_V ? (p - 1) * (f + 2 * b - 2 * w) / 2
              : schedule == AP_SCHEDULE_V_HALF     ? 0.58 * all
              : schedule == AP_SCHEDULE_V_MIN      ? 0.61 * all
                                                   : all / v;
    idle[1] = schedule == AP_SCHEDULE_V_HALF  ? 0.67 * all
              : schedule == AP_SCHEDULE_V_MIN ? 0.75 * all
                                              : idle[0];
}

/* Whether every pass is there once, and each after the one before. */
static bool is_whole(const struct ap_sim_device *d, int n, int stages)
{
    int next[64][AP_N_PASSES] = {{0}}, left = d->n_slices;
    const bool splits = d->n_slices == AP_N_PASSES * n * stages;

    for (int i = 0; i < d->n_slices; i++) {
        const struct ap_instr *x = &d->slices[i].instr;
        int *at = next[x->stage];
        if (at[x->pass]++ != x->microbatch || (x->pass && at[x->pass] > at[x->pass - 1]))
            return false;
        left--;
    }
    return left == 0 && (splits || d->n_slices == 2 * n * stages);
}

/*
 * The papers' and trainers' figures: peaks of every rank's worst, idle seconds, for p = 2
 * to 16 and n = 2 p to 4 p, at F = B = W and at 10:12:8.
 */
static void test_split(struct ap_arena *arena)
{
    static const struct {
        enum ap_schedule schedule;
        int chunks;
        bool at_other; /* idle seconds are known at 10:12:8 */
    } rows[] = {{AP_SCHEDULE_1F1B, 1, true},        {AP_SCHEDULE_INTERLEAVED, 2, true},
                {AP_SCHEDULE_INTERLEAVED, 4, true}, {AP_SCHEDULE_LOOPED_BFS, 2, true},
                {AP_SCHEDULE_ZB_H1, 1, true},       {AP_SCHEDULE_ZB_H1, 2, true},
                {AP_SCHEDULE_ZB_H1, 3, true},       {AP_SCHEDULE_ZB_H2, 1, true},
                {AP_SCHEDULE_ZB_V, 2, true},        {AP_SCHEDULE_DUALPIPE_V, 2, false},
                {AP_SCHEDULE_V_HALF, 2, false},     {AP_SCHEDULE_V_MIN, 2, false}};

    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const int v = rows[k].chunks;
        int whole = 0, peaks = 0, idles = 0, cases = 0;
        for (int p = 2; p <= 16; p++)
            for (int n = 2 * p; n <= 4 * p; n += p)
                for (int other = 0; other <= rows[k].at_other; other++) {
                    struct ap_mark mark = ap_arena_mark(arena);
                    const double f = 10, b = other ? 12 : 10, w = other ? 8 : 10;
                    const struct ap_sim_stage stage = {.forward_sec = f / v,
                                                       .backward_sec = (b + w) / v,
                                                       .weights_sec = w / v};
                    struct ap_sim_result r =
                        equal(arena, rows[k].schedule, p * v, v, n, stage);
                    const double idle = r.step_sec - n * (f + b + w);
                    double want[2];
                    bool all = true;
                    int peak = 0, most = 0;
                    for (int d = 0; d < p; d++) {
                        const int of = peak_of(rows[k].schedule, p, v, n, d);
                        all &= is_whole(&r.devices[d], n, v);
                        peak = r.devices[d].peak_in_flight > peak
                                   ? r.devices[d].peak_in_flight
                                   : peak;
                        most = of > most ? of : most;
                    }
                    idle_of(rows[k].schedule, p, v, f, b, w, want);
                    const bool v_of_two = p == 2 && want[0] < want[1];
                    cases++;
                    whole += all;
                    peaks += peak == most;
                    idles +=
                        v_of_two || (idle >= want[0] - 1e-6 && idle <= want[1] + 1e-6);
                    ap_arena_rewind(arena, mark);
                }
        CHECK(whole == cases && peaks == cases && idles == cases,
              "%s, %d chunks: %d cases, all passes in order %d, peaks %d, idle %d",
              ap_schedule_names[rows[k].schedule], v, cases, whole, peaks, idles);
    }
}

/* gpipe with unequal stages: forwards and backwards are two pipelines. */
static void test_unequal(struct ap_arena *arena)
{
    int wrong = 0;
    for (int i = 0; i < 300; i++) {
        struct ap_mark mark = ap_arena_mark(arena);
        struct ap_sim sim = random_sim(arena);
        struct ap_sim_stage *st = ap_arena_dup(
            arena, sim.stages, (size_t)sim.n_stages * sizeof(struct ap_sim_stage));
        sim.stages = st;
        struct ap_sim_result r;
        struct ap_err err = {""};
        double sum = 0, most_f = 0, most_b = 0;
        sim.schedule = AP_SCHEDULE_GPIPE;
        sim.chunks = 1;
        for (int s = 0; s < sim.n_stages; s++) {
            double b = st[s].backward_sec + st[s].recompute_sec;
            st[s].send_forward_sec = st[s].send_backward_sec = 0;
            sum += st[s].forward_sec + b;
            most_f = fmax(most_f, st[s].forward_sec);
            most_b = fmax(most_b, b);
        }
        wrong += ap_simulate(arena, &sim, &r, &err) != 0 ||
                 !near(r.step_sec, sum + (sim.microbatches - 1) * (most_f + most_b));
        ap_arena_rewind(arena, mark);
    }
    CHECK(wrong == 0, "gpipe, unequal stages: sum t + (B - 1)(max tf + max tb)");
}

static void test_ends(struct ap_arena *arena)
{
    struct ap_sim_stage st[2] = {
        {.forward_sec = 1, .backward_sec = 2, .sync_sec = 3, .update_sec = 1},
        {.forward_sec = 1, .backward_sec = 2, .sync_sec = 1, .update_sec = 5}};
    struct ap_sim sim = {AP_SCHEDULE_1F1B, 2, 1, 2, st, NULL, true, false, false, 0};
    struct ap_sim_result r;
    struct ap_err err = {""};

    ap_simulate(arena, &sim, &r, &err);
    /* backwards end at 9 and 7 */
    CHECK(near(r.devices[0].end_sec, 13) && near(r.devices[1].end_sec, 13),
          "reduction and update follow the last backward: %g %g", r.devices[0].end_sec,
          r.devices[1].end_sec);
    sim.overlap_sync = true;
    ap_simulate(arena, &sim, &r, &err);
    CHECK(near(r.devices[0].end_sec, 11) && near(r.devices[1].end_sec, 12) &&
              near(r.devices[0].sync_sec, 1),
          "beside the last backward only its rest shows: %g %g", r.devices[0].end_sec,
          r.devices[1].end_sec);
    sim.norm_sec = 0.5;
    ap_simulate(arena, &sim, &r, &err);
    CHECK(near(r.devices[0].end_sec, 11.5) && near(r.step_sec, 15.5),
          "a global norm waits for all stages: %g %g", r.devices[0].end_sec, r.step_sec);
    st[0].recomputed_bytes = 100;
    st[0].flight_bytes = 10;
    ap_simulate(arena, &sim, &r, &err);
    CHECK(r.devices[0].peak_bytes == 120,
          "recomputed activations count in the backward pass");
    sim.overlap_send = false;
    sim.schedule = AP_SCHEDULE_EAGER;
    CHECK(ap_simulate(arena, &sim, &r, &err) == -1 &&
              strcmp(err.msg, "eager-1f1b: its sends cannot wait") == 0,
          "refused: %s", err.msg);
    err.msg[0] = 0;
    sim.chunks = 3;
    CHECK(ap_simulate(arena, &sim, &r, &err) == -1 &&
              strcmp(err.msg, "2 stages are not 3 to a device") == 0,
          "refused: %s", err.msg);
}

static void test_large(struct ap_arena *arena)
{
    struct ap_sim_stage stage = {.forward_sec = 1, .backward_sec = 2};
    struct ap_sim_result r = equal(arena, AP_SCHEDULE_1F1B, 64, 1, 4096, stage);
    CHECK(near(r.step_sec, 3.0 * (4096 + 63)), "64 stages, 4096 microbatches");
}

/* As many microbatches more take as long as a batch that follows another. */
static void test_batches(struct ap_arena *arena)
{
    int n_ok = 0, n_all = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct ap_sim_stage stages[6] = {0};
        struct ap_sim sim = {.schedule = AP_SCHEDULE_INFERENCE,
                             .n_stages = 1 + (int)(seed % 6),
                             .chunks = 1,
                             .microbatches = 1 + (int)(seed / 6 % 5),
                             .stages = stages,
                             .overlap_send = seed % 2};
        for (int s = 0; s < sim.n_stages; s++) {
            uint64_t key[2] = {seed, (uint64_t)s};
            uint64_t h = ap_hash(key, sizeof key, 1);
            stages[s].forward_sec = (double)(h % 100 + 1);
            stages[s].send_forward_sec = (double)(h / 100 % 120);
        }
        struct ap_sim twice = sim;
        struct ap_sim_result one, two;
        struct ap_err err = {0};
        twice.microbatches *= 2;
        n_all++;
        n_ok += ap_simulate(arena, &sim, &one, &err) == 0 &&
                ap_simulate(arena, &twice, &two, &err) == 0 &&
                near(two.step_sec - one.step_sec, ap_sim_batch_sec(&sim));
    }
    CHECK(n_ok == n_all, "time between batches: %d of %d as simulated", n_ok, n_all);
}

int main(void)
{
    struct ap_arena arena = {0};

    test_orders(&arena);
    test_warm_up();
    test_pairs(&arena);
    test_closed_forms(&arena);
    test_interleaved(&arena);
    test_clocks(&arena);
    test_interleaved_clocks(&arena);
    test_split(&arena);
    test_random(&arena);
    test_unequal(&arena);
    test_ends(&arena);
    test_batches(&arena);
    test_large(&arena);
    ap_arena_free(&arena);
    return tap_done();
}
