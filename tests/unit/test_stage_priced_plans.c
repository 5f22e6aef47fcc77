/* What plans that were priced tell of others. */
#include "oracle/priced_plans.h"

#include <string.h>

#include "tap.h"

static const struct plan_point points[4];

struct plans {
    struct plan_instance inst;
    struct plan_stage stage[4][2];
    struct plan_answer plan[4];
};

/* Two stages of two blocks on halves of 1 x 8 devices, with point 0. */
static void make(struct plans *p)
{
    *p = (struct plans){.inst = {.n_blocks = 4, .n_hosts = 1, .n_devices = 8}};
    for (int i = 0; i < 4; i++) {
        for (int s = 0; s < 2; s++)
            p->stage[i][s] = (struct plan_stage){.lo = 2 * s,
                                                 .hi = 2 * s + 1,
                                                 .hosts = 1,
                                                 .devices = 4,
                                                 .point = &points[0]};
        p->plan[i] = (struct plan_answer){.n_stages = 2,
                                          .stage = p->stage[i],
                                          .replicas = 1,
                                          .microbatches = 4,
                                          .schedule = AP_SCHEDULE_1F1B,
                                          .chunks = 1,
                                          .step_sec = 10 + i};
    }
}

static void of_several_stages(struct ap_arena *arena)
{
    static const int64_t bytes[] = {5, 9};
    struct priced_plans priced = {0};
    struct plans p;

    make(&p);
    p.stage[1][1].point = &points[1];
    struct forecast f = priced_plans_forecast(&priced, &p.inst, &p.plan[1]);
    CHECK(!f.known && !f.same && f.step_sec == 11 && f.peak_bytes == 0,
          "README of cmd/ap-stage/oracle: nothing is priced, the estimate");
    priced_plans_add(arena, &priced, &p.plan[0], 10.5, bytes);
    f = priced_plans_forecast(&priced, &p.inst, &p.plan[1]);
    CHECK(f.known && !f.same && f.step_sec == 11.5,
          "README of cmd/ap-stage/oracle: what layouts add to one of its outline");
    CHECK(f.peak_bytes == 5,
          "README of cmd/ap-stage/oracle: memory of the stage that both have");
    p.stage[2][0].point = &points[2];
    priced_plans_add(arena, &priced, &p.plan[2], 12.25, NULL);
    f = priced_plans_forecast(&priced, &p.inst, &p.plan[1]);
    CHECK(f.step_sec == 11.25,
          "README of cmd/ap-stage/oracle: the least that layouts add");
    f = priced_plans_forecast(&priced, &p.inst, &p.plan[3]);
    CHECK(f.same, "the same stages");
    p.plan[3].schedule = AP_SCHEDULE_GPIPE;
    CHECK(!priced_plans_forecast(&priced, &p.inst, &p.plan[3]).known, "another schedule");
    p.plan[3].schedule = AP_SCHEDULE_1F1B;
    p.plan[3].replicas = 2;
    CHECK(!priced_plans_forecast(&priced, &p.inst, &p.plan[3]).known, "replicas");
    p.plan[3].replicas = 1;
    p.stage[3][0].hi = 0;
    p.stage[3][0].point = &points[3];
    CHECK(!priced_plans_forecast(&priced, &p.inst, &p.plan[3]).known, "other blocks");
}

static void in_another_order(struct ap_arena *arena)
{
    static const int64_t bytes[] = {5, 9};
    struct priced_plans priced = {0};
    struct plans p;

    make(&p);
    for (int i = 0; i < 4; i++) { /* 1 + 3 blocks, or 3 + 1 */
        bool other = i % 2;
        p.stage[i][0].hi = other ? 2 : 0;
        p.stage[i][1].lo = other ? 3 : 1;
        p.stage[i][0].point = &points[other];
        p.stage[i][1].point = &points[!other];
    }
    priced_plans_add(arena, &priced, &p.plan[0], 12, bytes);
    struct forecast f = priced_plans_forecast(&priced, &p.inst, &p.plan[1]);
    CHECK(f.known && !f.same && f.step_sec == 13 && f.peak_bytes == 0,
          "the same stages in another order: as much more, memory may be another");
    p.stage[3][0].point = &points[2];
    CHECK(!priced_plans_forecast(&priced, &p.inst, &p.plan[3]).known, "other stages");
}

static void of_one_stage(struct ap_arena *arena)
{
    struct priced_plans priced = {0};
    struct plans p;

    make(&p);
    for (int i = 0; i < 4; i++) {
        p.plan[i].n_stages = 1;
        p.plan[i].microbatches = 1;
        p.stage[i][0].hi = 3;
        p.stage[i][0].devices = 8;
    }
    priced_plans_add(arena, &priced, &p.plan[0], 12, NULL);
    p.stage[1][0].point = &points[1];
    struct forecast f = priced_plans_forecast(&priced, &p.inst, &p.plan[1]);
    CHECK(!f.known && f.step_sec == 11, "another point says nothing of this one");
    p.plan[2].replicas = 8;
    p.stage[2][0].devices = 1;
    p.plan[2].schedule = AP_SCHEDULE_GPIPE;
    CHECK(priced_plans_forecast(&priced, &p.inst, &p.plan[2]).same,
          "eight replicas of one device, one microbatch: what is written is the same");
    p.plan[2].replicas = 4;
    CHECK(!priced_plans_forecast(&priced, &p.inst, &p.plan[2]).same,
          "but not on four devices");
}

static void of_sets(struct ap_arena *arena)
{
    static const uint64_t even[] = {5}, again[] = {5}, odd[] = {10};
    struct priced_plans priced = {0};
    struct plans p;

    make(&p);
    for (int i = 0; i < 3; i++) {
        p.stage[i][0].set = i == 0 ? even : i == 1 ? again : odd;
        p.stage[i][1].set = i < 2 ? odd : even;
    }
    p.stage[2][0].point = &points[1];
    p.stage[3][0].point = p.stage[3][1].point = &points[2];
    priced_plans_add(arena, &priced, &p.plan[0], 12, NULL);
    CHECK(priced_plans_forecast(&priced, &p.inst, &p.plan[1]).same,
          "sets with equal blocks");
    CHECK(!priced_plans_forecast(&priced, &p.inst, &p.plan[2]).known, "other sets");
    CHECK(!priced_plans_forecast(&priced, &p.inst, &p.plan[3]).known, "runs are no sets");
}

int main(void)
{
    struct ap_arena arena = {0};

    of_several_stages(&arena);
    in_another_order(&arena);
    of_one_stage(&arena);
    of_sets(&arena);
    ap_arena_free(&arena);
    return tap_done();
}
