/*
 * The best line of a space, by brute force: every line that a trainer can run is bounded
 * and priced; no price is below a bound, and the search finds the least price.
 *
 *     test_stage_lines DOCUMENT CLUSTER TRAINER MEMORY [SCHEDULE]
 *
 * with a document of blocks and bytes of memory; TRAINER "any": all lines of grids;
 * without arguments, spaces alone.
 */
#include "grid/grid_rows_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

static void test_spaces(void)
{
    struct ap_line line = ap_line_least;

    line.degrees.tensor = 2;
    CHECK(!grid_is_of(&grid_spaces[GRID_DATA], &line) &&
              grid_is_of(&grid_spaces[GRID_MEGATRON], &line),
          "tensor parallelism is none of data's");
    line.pipeline = 2;
    line.degrees.zero = 3;
    const struct grid_space megatron = grid_space_of(ap_trainer_find("megatron"));
    CHECK(!grid_is_of(&megatron, &line), "ZeRO-3 is not searched beside a pipeline");
    line.degrees.zero = 1;
    CHECK(grid_is_of(&megatron, &line), "ZeRO-1 is");
}

struct tally {
    int n_wrong_step, n_wrong_bytes, n_wrong_none, n_priced;
    double best, worst_gap; /* gap: of a price above its bound, relative */
};

/* Bounds and prices a line, whatever it needs. */
static void try_line(struct grid_rows *r, struct grid_candidate *row,
                     struct plan_instance *inst, int64_t limit, struct tally *t)
{
    const int sharding = row->shard;
    struct ap_arena scratch = {0};

    const int ways[2] = {sharding, r->sharding[sharding].bare};
    for (int i = 0; i < 2; i++)
        if (!r->sharding[ways[i]].measured)
            grid_measure(r, 1, &ways[i]);
    grid_bound_bare(r, row);
    const bool none = row->known == GRID_NO_PLAN;
    const double listed = row->step_sec;
    grid_bound(r, row);
    const double timed = row->step_sec;
    if (row->known == GRID_MEASURED)
        grid_simulate(r, row);
    const double bound = row->step_sec, bytes = row->bytes;
    inst->memory_bytes = limit;
    grid_price(r, INFINITY, row);
    inst->memory_bytes = 0;
    if (row->known == GRID_NO_PLAN)
        return;
    t->n_priced++;
    t->n_wrong_step +=
        listed > row->step_sec || timed > row->step_sec || bound > row->step_sec;
    t->n_wrong_none += none;
    const bool large = row->known == GRID_PRICED && bytes > row->bytes;
    t->n_wrong_bytes += large;
    if (bound > row->step_sec || large || none)
        printf("# %s: bounds %.9g s, %.0f bytes, prices %.9g, %.0f\n",
               ap_line_text(&scratch, &row->line), bound, bytes, row->step_sec,
               row->bytes);
    t->worst_gap = fmax(t->worst_gap, row->step_sec / bound - 1);
    if (row->known == GRID_PRICED)
        t->best = fmin(t->best, row->step_sec);
    ap_arena_free(&scratch);
}

static void test_trainer(char **arg, const char *schedule)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct ap_doc doc;
    struct stage_model m = {0};
    struct plan_instance inst;
    struct stage_limits limits = {.memory_bytes = ap_size_parse(arg[3])};
    const struct ap_trainer *trainer = ap_trainer_find(arg[2]);
    const struct grid_space space = trainer ? grid_space_of(trainer) : grid_space_all();
    struct grid_want want = {
        .space = &space, .inst = &inst, .schedule = -1, .below = INFINITY};
    struct grid_found found;
    struct grid_rows r;
    struct tally t = {.best = INFINITY};

    for (int i = 0; schedule && i < AP_N_TRAIN_SCHEDULES; i++)
        if (!strcmp(schedule, ap_schedule_names[i]))
            want.schedule = i;
    if (ap_doc_read(&arena, arg[0], &doc, &err)) {
        CHECK(false, "%s", err.msg);
        return;
    }
    stage_model_graph(&arena, &doc, &m);
    if (stage_model_nests(&arena, &doc, &m, &err)) {
        CHECK(false, "%s", err.msg);
        return;
    }
    stage_model_read(&arena, &doc, arg[1], &m);
    CHECK(stage_instance_make(&arena, &m, &limits, &inst, &err) == 0 &&
              grid_search(&arena, &m, &want, &found, &err) == 0,
          "%s: searched %s", arg[2], err.msg);
    inst.memory_bytes = 0;
    CHECK(grid_start(&arena, &m, &want, &r, &err) == 0, "listed");
    for (int i = 0; i < r.n; i++)
        try_line(&r, &r.row[i], &inst, limits.memory_bytes, &t);
    printf("# %lld lines, %d priced; the search priced %lld; best %.9g s, %s; a price is "
           "%.2f %% above its bound at most\n",
           (long long)found.n.legal, t.n_priced, (long long)found.n.priced, t.best,
           found.found ? ap_line_text(&arena, &found.line) : "none", 100 * t.worst_gap);
    CHECK(t.n_wrong_step == 0 && t.n_wrong_bytes == 0 && t.n_wrong_none == 0,
          "bounds hold: %d steps and %d programs' bytes are below; %d that were said to "
          "have no plan have one",
          t.n_wrong_step, t.n_wrong_bytes, t.n_wrong_none);
    CHECK(found.found == isfinite(t.best) &&
              (!found.found || found.step_sec <= t.best * (1 + 1e-12)),
          "the search finds the best line: %.9g, %.9g", found.step_sec, t.best);
    CHECK(!found.found || found.least_sec <= t.best, "its bound holds");
    CHECK(found.n.legal == r.n_legal, "lines are counted: %lld, %d",
          (long long)found.n.legal, r.n_legal);
    grid_end(&r);
    ap_arena_free(&arena);
}

int main(int argc, char **argv)
{
    test_spaces();
    if (argc >= 5)
        test_trainer(argv + 1, argv[5]);
    return tap_done();
}
