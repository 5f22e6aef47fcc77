/*
 * Problem: hundreds of lines, each of whose plans takes a second to price in a large
 * model.
 * Idea: a plan of given degrees shards all layers alike, and blocks of one content have
 * one price: one block of each class is sharded and measured, for each way to shard, and
 * for each number of microbatches and recomputation; a stage is the sum of its blocks, a
 * step that of its busiest devices, with the way of a microbatch to them and back.
 * Devices of a pipeline that hold w microbatches end one in no less than the w-th part of
 * a microbatch's way through all stages after and back, with what is sent on it. Cost:
 * ways to shard times the operators of a block of each class.
 */
#include <math.h>

#include "base/threads.h"
#include "grid/grid_rows_impl.h"

static int measure_class(const struct grid_rows *r, const struct grid_sharding *s, int c,
                         struct ap_arena *arena, struct ap_err *err)
{
    const struct grid_class *class = &r->class[c];
    struct ap_stages stages = {.microbatches = 1};
    struct ap_line_maker k = {.arena = arena,
                              .model = &r->model,
                              .line = ap_line_least,
                              .stages = &stages,
                              .uses = s->uses,
                              .mesh = s->mesh};
    struct ap_plan plan = {
        .graph = &class->sub.graph, .nests = &class->nests, .mesh = s->mesh};
    struct ap_cluster own;
    struct ap_cost cost;
    struct ap_conversions conv;

    for (int a = 0; a < s->mesh.n_axes && !class->experts; a++)
        k.uses.expert_use[a] = k.uses.use[a];
    if (!class->experts)
        k.uses.degrees.expert = 0;
    if (ap_line_shard(&k, arena, &plan, err) ||
        ap_cluster_take(&r->m->cluster, s->n_devices, s->devices, &own, err) ||
        ap_cost_init(arena, &cost, AP_COST_DEFAULT, &own, &s->mesh, err))
        return -1;
    int rc = ap_plan_conversions(arena, &plan, &cost, &conv, err);
    bool *again = AP_NEW_N(arena, class->sub.graph.n_nodes, bool);
    for (int i = 0; i < r->n_at_once && !rc; i++) {
        if (!s->asked[i])
            continue;
        const struct grid_at_once *a = &r->at_once[i];
        const bool *marks = r->model.again[a->recompute];
        for (int v = 0; v < class->sub.graph.n_nodes; v++)
            again[v] = marks[class->sub.source[v]];
        ap_stage_measure_plan(
            arena, &(struct ap_stage_plan){&class->sub, &a->micro, &plan, &conv, &cost},
            a->recompute == AP_LINE_RECOMPUTE_NONE ? NULL : again,
            &s->measure[i * r->n_classes + c]);
    }
    ap_cost_free(&cost);
    return rc;
}

/* One way to shard; what cannot be sharded so is no line, and no mistake. */
static int measure_sharding(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    const struct grid_rows *r = ctx;
    struct grid_sharding *s = &r->sharding[i];
    struct ap_arena scratch = {0};
    struct ap_err why = {0};

    (void)arena;
    (void)err;
    s->ok = true;
    for (int c = 0; c < r->n_classes && s->ok; c++)
        s->ok = measure_class(r, s, c, &scratch, &why) == 0;
    ap_arena_free(&scratch);
    return 0;
}

/* Sums of stages on the same devices. */
struct lane {
    struct ap_stage_measure sum;
    double kept, forward, backward; /* kept: of a microbatch in a stage; seconds of the
                                       first stage there */
};

static void add_block(struct lane *l, const struct ap_stage_measure *m, bool first)
{
    struct ap_stage_measure *s = &l->sum;

    l->forward += first ? m->forward_sec : 0;
    l->backward += first ? m->backward_sec : 0;
    s->forward_sec += m->forward_sec;
    s->backward_sec += m->backward_sec;
    s->sync_sec += m->sync_sec;
    s->update_sec += m->update_sec;
    s->fixed_bytes += m->fixed_bytes;
    s->gradient_bytes += m->gradient_bytes;
    s->copied_bytes += m->copied_bytes;
    s->kept_bytes += m->kept_bytes;
    s->working_bytes = fmax(s->working_bytes, m->working_bytes);
    s->recomputed_bytes = fmax(s->recomputed_bytes, m->recomputed_bytes);
}

/* Forwards of stages that the lane holds at most before their backwards. */
static double in_flight(const struct ap_line *l, int64_t microbatches, int lane)
{
    const double all = (double)(microbatches * l->chunks);
    const double behind = (double)(l->pipeline - lane);

    if (l->schedule == AP_SCHEDULE_GPIPE)
        return all;
    if (l->chunks == 1)
        return fmin(all, behind);
    return fmin(all, 2 * (behind - 1) + (double)((l->chunks - 1) * l->pipeline) + 1);
}

/* To the next devices and back, of a microbatch: the largest cut of any two blocks. */
static double send_sec(const struct grid_rows *r, const struct grid_candidate *row)
{
    const struct plan_instance *inst = r->want->inst;
    const struct grid_sharding *s = &r->sharding[row->shard];
    const int n = (int)s->n_devices, last = row->stages.stage[0].n_blocks - 1;
    struct ap_mark mark = ap_arena_mark(r->arena);
    int64_t *next = AP_NEW_N(r->arena, n, int64_t);
    double sec = 0;

    for (int i = 0; i < n; i++)
        next[i] = s->devices[i] + n;
    const struct ap_devices from = {n, s->devices}, to = {n, next};
    const struct ap_link link = ap_link_between(&r->m->cluster, &from, &to);
    for (int i = 0; i < inst->n_values; i++) {
        const struct plan_value *v = &inst->value[i];
        if (v->once || !v->split || v->from > last || v->to[v->n_to - 1] <= last)
            continue;
        const double share = (double)row->stages.microbatches;
        sec += ap_link_sec(&link, (double)v->forward_bytes / share, v->n_forward);
        sec += ap_link_sec(&link, (double)v->backward_bytes / share, v->n_backward);
    }
    ap_arena_rewind(r->arena, mark);
    return sec;
}

/* Of a microbatch on the lane: its own work, or the way after it and back, shared by
 * those that it holds. */
static double cycle_sec(const struct grid_candidate *row, const struct lane *lane, int g,
                        double send)
{
    const struct ap_line *l = &row->line;
    const double own = lane[g].sum.forward_sec + lane[g].sum.backward_sec;
    const double hops = (double)(l->pipeline * l->chunks - 1 - g);
    double trip = hops * send;

    if (l->schedule == AP_SCHEDULE_GPIPE || l->pipeline == 1)
        return own;
    for (int i = l->chunks > 1 ? 0 : g; i < l->pipeline; i++)
        trip += lane[i].sum.forward_sec + lane[i].sum.backward_sec;
    return fmax(own,
                trip * (double)l->chunks / in_flight(l, row->stages.microbatches, g));
}

static void estimate(const struct grid_rows *r, struct grid_candidate *row)
{
    const struct grid_sharding *s = &r->sharding[row->shard];
    const struct ap_stage_measure *of = s->measure + row->at_once * r->n_classes;
    const int n = (int)row->line.pipeline;
    const double microbatches = (double)row->stages.microbatches;
    struct ap_mark mark = ap_arena_mark(r->arena);
    struct lane *lane = AP_NEW_N(r->arena, n, struct lane);
    const double send = n > 1 ? send_sec(r, row) : 0;
    double way = 0, back = 0;

    for (int i = 0; i < row->stages.n; i++)
        for (int b = 0; b < row->stages.stage[i].n_blocks; b++)
            add_block(&lane[i % n], &of[r->class_of[row->stages.stage[i].blocks[b]]],
                      i < n);
    row->step_sec = row->bytes = 0;
    for (int g = 0; g < n; g++) {
        const struct ap_stage_measure *m = &lane[g].sum;
        const double bytes = m->fixed_bytes +
                             fmax(0, m->copied_bytes - m->gradient_bytes) +
                             m->working_bytes + m->recomputed_bytes +
                             m->kept_bytes / (double)row->line.chunks *
                                 in_flight(&row->line, row->stages.microbatches, g);
        const double sec = way + microbatches * cycle_sec(row, lane, g, send) +
                           fmax(back, m->sync_sec + m->update_sec);
        way += lane[g].forward + send / 2;
        back += lane[g].backward + send / 2;
        row->step_sec = fmax(row->step_sec, sec);
        row->bytes = fmax(row->bytes, bytes);
    }
    ap_arena_rewind(r->arena, mark);
}

int grid_estimate(struct grid_rows *r, struct ap_err *err)
{
    const int64_t limit = r->want->inst->memory_bytes;

    for (int i = 0; i < r->n_shardings; i++) {
        r->sharding[i].asked = AP_NEW_N(r->arena, r->n_at_once, bool);
        r->sharding[i].measure =
            AP_NEW_N(r->arena, r->n_at_once * r->n_classes, struct ap_stage_measure);
    }
    for (int i = 0; i < r->n; i++)
        r->sharding[r->row[i].shard].asked[r->row[i].at_once] = true;
    if (ap_in_arenas(r->arena, r->n_shardings, measure_sharding, r, err))
        return -1;
    for (int i = 0; i < r->n; i++) {
        struct grid_candidate *row = &r->row[i];
        if (!r->sharding[row->shard].ok)
            continue;
        estimate(r, row);
        row->fits = limit == 0 || row->bytes <= (double)limit;
    }
    return 0;
}
