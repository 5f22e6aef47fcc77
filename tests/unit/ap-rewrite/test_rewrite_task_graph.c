/* The list scheduler: its limit of microbatches in flight alone makes every schedule. */
#include "task_graph.h"

#include "tap.h"

/* Passes of stages that hand values on, one after the other; every pass in order of
 * stage, direction and microbatch. */
static struct ap_task_graph chain(struct ap_arena *arena, int n_stages, int m,
                                  bool backward)
{
    const int n = n_stages * m;
    struct ap_task_graph g = {0};

    g.task = AP_NEW_N(arena, 2 * n + 2, struct ap_task);
    g.task[g.n++] = (struct ap_task){AP_TASK_SPLIT, .module = -1, .stage = -1,
                                     .microbatch = -1, .transfer = -1};
    for (int s = 0; s < n_stages; s++)
        for (int back = 0; back <= backward; back++)
            for (int j = 0; j < m; j++) {
                int *in = AP_NEW_N(arena, 2, int), n_in = 0;
                const int here = 1 + s * (1 + backward) * m + back * m + j;
                const int step = (1 + backward) * m;
                if (back)
                    in[n_in++] = here - m;
                if (back && s + 1 < n_stages)
                    in[n_in++] = here + step;
                if (!back)
                    in[n_in++] = s ? here - step : 0;
                g.task[g.n++] =
                    (struct ap_task){back ? AP_TASK_BACKWARD : AP_TASK_FORWARD,
                                     .module = -1,
                                     .stage = s,
                                     .microbatch = j,
                                     .transfer = -1,
                                     .n_in = n_in,
                                     .in = in};
            }
    return g;
}

/* Whether every lane has the passes of ap_schedule_order. */
static bool same(struct ap_arena *arena, const struct ap_schedule_size *z)
{
    const bool backward = z->schedule != AP_SCHEDULE_INFERENCE;
    const struct ap_task_graph g =
        chain(arena, z->n_devices * z->chunks, z->microbatches, backward);
    int *order[16], n[16];
    struct ap_err err = {0};

    if (ap_task_schedule(arena, &g, z, order, n, &err))
        return false;
    for (int l = 0; l < z->n_devices; l++) {
        struct ap_instr *want;
        int n_want;
        if (ap_schedule_order(arena, z, l, &want, &n_want, &err) || n_want != n[l])
            return false;
        for (int i = 0; i < n_want; i++) {
            const struct ap_task *t = &g.task[order[l][i]];
            if (t->stage != want[i].stage || t->microbatch != want[i].microbatch ||
                (t->kind == AP_TASK_BACKWARD) != (want[i].pass == AP_PASS_BACKWARD))
                return false;
        }
    }
    return true;
}

int main(void)
{
    struct ap_arena arena = {0};

    for (int k = 0; k < AP_N_SCHEDULES; k++) {
        const struct ap_schedule_traits *t = &ap_schedule_traits[k];
        int n = 0, bad = 0;
        if (t->splits)
            continue;
        for (int devices = 1; devices <= 6; devices++)
            for (int chunks = t->least_chunks; chunks <= 4 && chunks <= t->most_chunks;
                 chunks++)
                for (int m = 1; m <= 13; m++) {
                    const struct ap_schedule_size z = {(enum ap_schedule)k, devices,
                                                       chunks, m, false};
                    if (k == AP_SCHEDULE_INTERLEAVED && m % devices)
                        continue;
                    n++;
                    bad += !same(&arena, &z);
                }
        CHECK(bad == 0, "%s is an order of the list scheduler: %d of %d sizes differ",
              ap_schedule_names[k], bad, n);
    }
    /* two tasks that wait for each other */
    struct ap_task_graph g = chain(&arena, 2, 1, true);
    const int in[] = {4};
    struct ap_err err = {0};
    int *order[2], n[2];
    g.task[1].in = in;
    const struct ap_schedule_size z = {AP_SCHEDULE_1F1B, 2, 1, 1, false};
    CHECK(ap_task_schedule(&arena, &g, &z, order, n, &err), "a cycle is refused: %s",
          err.msg);
    ap_arena_free(&arena);
    return tap_done();
}
