/*
 * Problem: to read a plan back and to price it takes as long as all of the planner's
 * search in a large graph, and there are several to compare. Idea: a stage with the same
 * blocks, sharding and recompute, on devices that lie in the same way, is the same in all
 * plans: its part of the graph, its sharding and its price are kept. Only what is said of
 * the plan as a whole is written and read each time, and only sends and schedule are
 * priced.
 */
#include "oracle/stage_memo.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

struct memo_stage {
    const char
        *asked; /* text that the shard command gave: of blocks, mesh, batch, point */
    enum ap_recompute recompute;
    int kind;                                /* of its devices */
    int64_t n_devices, level[AP_MAX_LEVELS]; /* as ap_cluster_take has them */
    const char *written;                     /* NULL: it was not read yet */
    struct ap_stage stage;
    struct ap_stage_priced priced;
};

struct stage_memo {
    const struct stage_model *model;
    struct ap_arena arena;
    int n, cap;
    struct memo_stage **part;
};

struct stage_memo *stage_memo_start(const struct stage_model *m)
{
    struct stage_memo *memo = ap_xrealloc(NULL, sizeof *memo);
    *memo = (struct stage_memo){.model = m};
    return memo;
}

void stage_memo_stop(struct stage_memo *memo)
{
    ap_arena_free(&memo->arena);
    free(memo->part);
    free(memo);
}

static bool same_stage(const struct memo_stage *a, const struct memo_stage *b)
{
    return a->asked == b->asked && a->recompute == b->recompute && a->kind == b->kind &&
           a->n_devices == b->n_devices && !memcmp(a->level, b->level, sizeof a->level);
}

/* The stage's part, which is new if it has nothing written. */
static int find_stage(struct stage_memo *memo, const struct ap_stage *st,
                      const char *asked, struct memo_stage **part, struct ap_err *err)
{
    struct memo_stage key = {
        .asked = asked,
        .recompute = st->recompute,
        .kind = ap_cluster_kind_of(&memo->model->cluster, st->devices[0]),
        .n_devices = st->n_devices};
    struct ap_cluster own;

    if (ap_cluster_take(&memo->model->cluster, st->n_devices, st->devices, &own, err))
        return -1;
    for (int l = 0; l < own.n_levels; l++)
        key.level[l] = own.levels[l].size;
    for (int i = 0; i < memo->n; i++)
        if (same_stage(memo->part[i], &key)) {
            *part = memo->part[i];
            return 0;
        }
    AP_ROOM(memo->part, memo->n, memo->cap);
    *part = AP_NEW(&memo->arena, struct memo_stage);
    **part = key;
    memo->part[memo->n++] = *part;
    return 0;
}

/* Shardings that only name a named plan are written out. */
static int take_stage(struct stage_memo *memo, const struct stage_detail *detail,
                      struct ap_stage *read, struct memo_stage *part, struct ap_err *err)
{
    if (detail->names_only &&
        ap_stage_put_sharding(&memo->arena, &memo->model->cluster, read, err))
        return -1;
    part->written = detail->names_only ? read->sharding_json : detail->sharding;
    part->stage = *read;
    return 0;
}

static int read_text(struct stage_memo *memo, const struct ap_stages *stages,
                     const struct ap_stage *const *known, struct ap_stages *read,
                     struct ap_err *err)
{
    const struct stage_model *m = memo->model;
    struct ap_buf json = {0};

    ap_stages_to_json(stages, &json);
    int rc = ap_stages_from_text(
        &memo->arena, json.data, json.len,
        &(struct ap_staged_graph){&m->graph, NULL, &m->blocks, &m->cluster}, known, read,
        err);
    ap_buf_free(&json);
    return rc;
}

int stage_memo_read(struct stage_memo *memo, struct ap_arena *arena,
                    const struct stage_detail *detail, struct ap_stages *stages,
                    struct stage_memo_plan *plan, struct ap_err *err)
{
    int n = stages->n;
    struct memo_stage **part = AP_NEW_N(arena, n, struct memo_stage *);
    const struct ap_stage **known = AP_NEW_N(arena, n, const struct ap_stage *);
    struct ap_stage_priced **prices = AP_NEW_N(arena, n, struct ap_stage_priced *);

    for (int s = 0; s < n; s++) {
        if (find_stage(memo, &stages->stage[s], detail[s].sharding, &part[s], err))
            return -1;
        known[s] = part[s]->written ? &part[s]->stage : NULL;
        prices[s] = &part[s]->priced;
        stages->stage[s].sharding_json = known[s] ? "{}" : detail[s].sharding;
    }
    if (read_text(memo, stages, known, &plan->read, err))
        return -1;
    for (int s = 0; s < n; s++) {
        if (!known[s] && take_stage(memo, &detail[s], &plan->read.stage[s], part[s], err))
            return -1;
        stages->stage[s].sharding_json = part[s]->written;
    }
    plan->priced = prices;
    return 0;
}
