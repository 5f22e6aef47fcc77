/* How graphs lie in time: what is taken over from another number of microbatches. */
#include "plan/named_plan.h"
#include "pipeline/stage_cost.h"

#include <string.h>

#include "sample_graphs.h"
#include "tap.h"

static bool same(const struct ap_graph *g, const struct ap_stage_microbatch *a,
                 const struct ap_stage_microbatch *b)
{
    size_t n = (size_t)g->n_nodes;
    return a->n == b->n && a->whole == b->whole && !memcmp(a->split, b->split, n) &&
           !memcmp(a->runs, b->runs, n) && !memcmp(a->dim, b->dim, n) &&
           !a->each == !b->each && (!a->each || !memcmp(a->each, b->each, n));
}

/* All pairs of numbers; returns how many were taken over. */
static int compare(struct ap_arena *arena, const struct sample *s, int *differ)
{
    struct ap_err err = {0};
    struct ap_stage_microbatch of[16], like;
    int taken = 0;

    for (int64_t n = 1; n < 16; n++)
        if (ap_stage_microbatch_axis(arena, &s->g, &s->nests, n, &of[n], &err))
            of[n].n = 0;
    for (int n = 1; n < 16; n++)
        for (int k = 1; k < 16 && of[n].n > 0; k++)
            if (k != n && ap_stage_microbatch_like(&of[n], k, &like)) {
                taken++;
                *differ += of[k].n == 0 || !same(&s->g, &like, &of[k]);
            }
    return taken;
}

int main(void)
{
    struct ap_arena arena = {0};
    int differ = 0, taken = 0;

    for (int i = 0; i < N_SAMPLE_GRAPHS; i++) {
        struct ap_err err = {0};
        struct sample s;
        if (load_sample(&arena, sample_graphs[i].json, &s, &err)) {
            CHECK(false, "%s: %s", sample_graphs[i].name, err.msg);
            continue;
        }
        taken += compare(&arena, &s, &differ);
        int64_t batch = ap_batch_size(&s.g);
        struct ap_stage_microbatch all, like;
        ap_stage_microbatch_axis(&arena, &s.g, &s.nests, batch, &all, &err);
        CHECK(!ap_stage_microbatch_like(&all, 2, &like),
              "%s: one row each is its own case", sample_graphs[i].name);
    }
    CHECK(taken > 0, "some are taken over (%d)", taken);
    CHECK(differ == 0, "what is taken over is what would be found (%d differ)", differ);
    ap_arena_free(&arena);
    return tap_done();
}
