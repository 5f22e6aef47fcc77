/* Figures of libcommon/pipeline's README: steps of schedules, memory of a stage, fronts.
 */
#include "pipeline/schedule.h"
#include "pipeline/stage_cost.h"

#include <math.h>

#include "tap.h"

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

/* Stages of t[i] seconds for a microbatch there and back, a third of them forward, and
 * sends of so long each way. */
static struct ap_sim_result readme_run(struct ap_arena *arena, enum ap_schedule schedule,
                                       int chunks, const double *t, double send,
                                       bool overlap)
{
    struct ap_sim_stage stages[8] = {{0}};
    struct ap_sim sim = {.schedule = schedule,
                         .n_stages = 4 * chunks,
                         .chunks = chunks,
                         .microbatches = 8,
                         .stages = stages,
                         .overlap_send = overlap};
    struct ap_sim_result out = {0};
    struct ap_err err = {0};

    for (int i = 0; i < sim.n_stages; i++) {
        stages[i].forward_sec = t[i] / 3;
        stages[i].backward_sec = 2 * t[i] / 3;
        stages[i].send_forward_sec = i + 1 < sim.n_stages ? send : 0;
        stages[i].send_backward_sec = i > 0 ? send : 0;
    }
    ap_simulate(arena, &sim, &out, &err);
    return out;
}

static void test_readme_schedules(struct ap_arena *arena)
{
    static const double equal[] = {3, 3, 3, 3}, unequal[] = {3, 3, 6, 3},
                        chunks[] = {1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5};
    static const struct {
        enum ap_schedule schedule;
        int chunks;
        const double *t;
        double send;
        bool overlap;
        double step;
        int flight[4];
    } rows[] = {
        {AP_SCHEDULE_GPIPE, 1, equal, 0, true, 33, {8, 8, 8, 8}},
        {AP_SCHEDULE_1F1B, 1, equal, 0, true, 33, {4, 3, 2, 1}},
        {AP_SCHEDULE_INTERLEAVED, 2, chunks, 0, true, 28.5, {11, 9, 7, 5}},
        {AP_SCHEDULE_GPIPE, 1, unequal, 0, true, 57, {8, 8, 8, 8}},
        {AP_SCHEDULE_1F1B, 1, unequal, 0, true, 55, {4, 3, 2, 1}},
        {AP_SCHEDULE_GPIPE, 1, equal, 0.5, true, 36, {8, 8, 8, 8}},
        {AP_SCHEDULE_GPIPE, 1, equal, 0.5, false, 50, {8, 8, 8, 8}},
        {AP_SCHEDULE_1F1B, 1, equal, 0.5, true, 41, {4, 3, 2, 1}},
        {AP_SCHEDULE_1F1B, 1, equal, 0.5, false, 49, {4, 3, 2, 1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ap_sim_result r = readme_run(arena, rows[i].schedule, rows[i].chunks,
                                            rows[i].t, rows[i].send, rows[i].overlap);
        bool flight = true;
        for (int d = 0; d < 4; d++)
            flight &= r.devices[d].peak_in_flight == rows[i].flight[d];
        CHECK(near(r.step_sec, rows[i].step) && flight,
              "README of libcommon/pipeline: %s, row %d: %g s",
              ap_schedule_names[rows[i].schedule], (int)i, r.step_sec);
    }
    CHECK(near(readme_run(arena, AP_SCHEDULE_1F1B, 1, equal, 0, true).bubble, 3.0 / 11),
          "README of libcommon/pipeline: the bubble is 3/11");
}

/* A point is no worse than another only if it is so beside stages that need more while
 * they run. */
static void test_fronts(void)
{
    struct ap_stage_point p[] = {
        {.forward_sec = 1, .stage_bytes = 10},
        {.forward_sec = 2, .stage_bytes = 12, .passing_bytes = 5, .recompute = true},
        {.forward_sec = 3, .stage_bytes = 11, .passing_bytes = 1, .recompute = true},
        {.forward_sec = 4, .stage_bytes = 12, .passing_bytes = 3, .recompute = true},
        {.forward_sec = 4, .stage_bytes = 12, .passing_bytes = 6, .recompute = true}};
    const int n = ap_stage_front(p, 5);

    CHECK(n == 3 && p[0].passing_bytes == 0 && p[1].passing_bytes == 5 &&
              p[2].passing_bytes == 6,
          "a front of %d points", n);
}

static void test_readme_memory(void)
{
    const struct ap_stage_measure m = {.forward_sec = 1,
                                       .backward_sec = 2,
                                       .fixed_bytes = 10,
                                       .working_bytes = 2,
                                       .kept_bytes = 8,
                                       .input_bytes = 1,
                                       .recomputed_bytes = 5};
    struct ap_stage_point p[2] = {{0}};

    ap_stage_points(&m, p);
    CHECK(p[0].stage_bytes + 4 * p[0].microbatch_bytes == 44 && p[0].backward_sec == 2 &&
              p[1].stage_bytes + 4 * p[1].microbatch_bytes == 21 &&
              p[1].backward_sec == 3 && p[0].passing_bytes == 2 &&
              p[1].passing_bytes == 7,
          "README of libcommon/pipeline: 44 MB kept, 21 MB recomputed");
}

int main(void)
{
    struct ap_arena arena = {0};

    test_readme_schedules(&arena);
    test_fronts();
    test_readme_memory();
    ap_arena_free(&arena);
    return tap_done();
}
