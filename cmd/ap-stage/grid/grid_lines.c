/*
 * Problem: the lines of --grid that somebody would try on a model and a cluster.
 * Idea: all products of the degrees, in which tensor parallelism stays inside a host, all
 * stages have as many layers, and a device of a sequence keeps a length of it that is
 * worth to be split off; less what no price is needed for: lines whose weights and states
 * do not fit, or whose operators take longer at the devices' best than the plan to beat.
 * Lines that shard in the same way share their sharding, those with the same microbatches
 * and recomputation their microbatch axis. Cost: products of divisors. Sources: Narayanan
 * et al., SC 2021, section 3 (degrees, inside a host); Korthikanti et al., section 4.2.
 */
#include <math.h>
#include <string.h>

#include "base/array.h"
#include "grid/grid_rows_impl.h"

#define MOST_MICRO_BATCH 16   /* samples of a replica at a time */
#define LEAST_SEQUENCE   2048 /* tokens that a device keeps of a sequence that is split */
#define MOST_CHUNKS      8
/* Of a layer's contractions, what recomputing it does at least: its last one makes what
 * is kept, a third of a GPT's. */
#define LEAST_AGAIN 0.6

/* Bytes of weights, and of states, that all devices together hold once. */
struct stored {
    double weights, states;
};

static struct stored count_stored(const struct ap_graph *g)
{
    struct stored all = {0};

    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        if (p->role == AP_ROLE_WEIGHT)
            all.weights += (double)ap_shape_bytes(&p->shape);
        else if (p->role == AP_ROLE_STATE)
            all.states += (double)ap_shape_bytes(&p->shape);
    }
    return all;
}

/* No less of a device, on average over the stages. */
static double least_bytes(const struct ap_line *l, const struct stored *all)
{
    const struct ap_degrees *d = &l->degrees;
    const int64_t split = d->expert_tensor > d->tensor ? d->expert_tensor : d->tensor;
    const double model = (double)(split * l->pipeline * d->expert);
    const double data = (double)(d->data * d->context);

    return all->weights / (d->zero == 3 ? model * data : model) +
           all->states / (d->zero >= 1 ? model * data : model);
}

/* Share of all contractions that recomputing the layers does again. */
static double share_again(const struct grid_rows *r)
{
    double all = 0, again = 0;

    for (int b = 0; b < r->m->blocks.n; b++) {
        const double *flops = r->m->sums[b].flops;
        all += flops[AP_FORWARD] + flops[AP_BACKWARD];
        if (r->m->blocks.n > 2 && b > 0 && b + 1 < r->m->blocks.n)
            again += flops[AP_FORWARD];
    }
    return all > 0 ? LEAST_AGAIN * again / all : 0;
}

static double stage_sec(const double *sum, const struct ap_stage *st)
{
    return sum[st->blocks[st->n_blocks - 1] + 1] - sum[st->blocks[0]];
}

/*
 * No step of the line is below: the devices of a stage work on all microbatches, at their
 * best, and wait for the first one's way to them and the last one's way back.
 */
static double least_sec(struct grid_rows *r, const struct grid_candidate *row)
{
    const int n = (int)row->line.pipeline;
    const double microbatches = (double)row->stages.microbatches;
    const struct ap_stage *stage = row->stages.stage;
    struct ap_mark mark = ap_arena_mark(r->arena);
    const double *sum =
        stage_least_sec(r->arena, r->m, 0, ap_cluster_devices(&r->m->cluster) / n,
                        row->stages.microbatches);
    double *lane = AP_NEW_N(r->arena, n, double), way = 0, least = 0;

    for (int s = 0; s < row->stages.n; s++)
        lane[s % n] += stage_sec(sum, &stage[s]);
    for (int g = 0; g < n; g++) {
        least = fmax(least, microbatches * lane[g] + way);
        way += stage_sec(sum, &stage[g]);
    }
    ap_arena_rewind(r->arena, mark);
    return least;
}

/* Recomputed layers take longer. */
static double share_of_full(const struct grid_rows *r, const struct ap_line *l)
{
    return l->recompute == AP_LINE_RECOMPUTE_FULL ? 1 + r->again : 1;
}

/* Row of the same microbatches, recompute and trainer, -1: the batch cannot be cut so. */
static int find_at_once(struct grid_rows *r, int64_t microbatches,
                        const struct ap_line *line)
{
    const unsigned trainer = ap_line_trainer(line);
    const struct stage_model *m = r->m;
    struct grid_at_once *a;

    for (int i = 0; i < r->n_at_once; i++)
        if (r->at_once[i].microbatches == microbatches &&
            r->at_once[i].recompute == line->recompute &&
            r->at_once[i].micro.trainer == trainer)
            return i;
    AP_ROOM_IN(r->arena, r->at_once, r->n_at_once, r->cap_at_once);
    a = &r->at_once[r->n_at_once];
    *a =
        (struct grid_at_once){.microbatches = microbatches, .recompute = line->recompute};
    if (!ap_stage_microbatch_like(&m->micro, microbatches, &a->micro) &&
        ap_stage_microbatch_axis(r->arena, &m->graph, &m->nests, microbatches, &a->micro,
                                 &r->why))
        return -1;
    a->micro.block_of = m->blocks.block_of;
    a->micro.trainer = trainer;
    if (microbatches > 1 && !r->want->each && a->micro.whole >= 0)
        return -1;
    return r->n_at_once++;
}

static bool same_mesh(const struct ap_mesh *a, const struct ap_mesh *b)
{
    bool same = a->n_axes == b->n_axes;

    for (int i = 0; i < a->n_axes && same; i++)
        same = a->size[i] == b->size[i] && !strcmp(a->name[i], b->name[i]);
    return same;
}

static int find_sharding(struct grid_rows *r, const struct ap_line_maker *k)
{
    struct grid_sharding *s;

    for (int i = 0; i < r->n_shardings; i++) {
        s = &r->sharding[i];
        if (s->pipeline == k->line.pipeline && same_mesh(&s->mesh, &k->mesh) &&
            s->uses.degrees.sequence == k->uses.degrees.sequence &&
            !memcmp(s->uses.zero, k->uses.zero, sizeof s->uses.zero))
            return i;
    }
    AP_ROOM_IN(r->arena, r->sharding, r->n_shardings, r->cap_shardings);
    s = &r->sharding[r->n_shardings];
    *s = (struct grid_sharding){.pipeline = k->line.pipeline,
                                .mesh = k->mesh,
                                .uses = k->uses,
                                .n_devices = ap_mesh_devices(&k->mesh)};
    s->devices = AP_NEW_N(r->arena, (int)s->n_devices, int64_t);
    for (int64_t i = 0; i < s->n_devices; i++)
        s->devices[i] = i;
    return r->n_shardings++;
}

/* A line whose degrees are there. */
static void add_line(struct grid_rows *r, const struct ap_line *line,
                     const struct stored *all)
{
    const struct plan_instance *inst = r->want->inst;
    struct grid_candidate row = {
        .line = *line,
        .stages = {.each = r->want->each, .resharding = r->want->resharding}};
    struct ap_line_maker k = {
        .arena = r->arena, .model = &r->model, .line = row.line, .stages = &row.stages};
    const int64_t microbatches = r->m->batch / (line->degrees.data * line->micro_batch);
    bool asked = inst->n_microbatches != 1;
    struct ap_mark mark = ap_arena_mark(r->arena);

    for (int i = 0; i < inst->n_microbatches && !asked; i++)
        asked = inst->microbatches[i] == microbatches;
    if (!asked ||
        (inst->memory_bytes > 0 && least_bytes(line, all) > (double)inst->memory_bytes))
        return;
    const bool ok = ap_line_lay(&k, &r->why) == 0;
    const double least = ok ? least_sec(r, &row) : INFINITY;
    r->least_sec = fmin(r->least_sec, least);
    if (least * share_of_full(r, line) >= r->want->below) {
        ap_arena_rewind(r->arena, mark);
        return;
    }
    row.at_once = find_at_once(r, row.stages.microbatches, line);
    if (row.at_once < 0)
        return;
    row.shard = find_sharding(r, &k);
    AP_ROOM_IN(r->arena, r->row, r->n, r->cap);
    r->row[r->n++] = row;
}

static bool may_recompute(const struct grid_rows *r, enum ap_line_recompute how)
{
    const enum stage_recompute asked = r->want->recompute;
    bool any = how == AP_LINE_RECOMPUTE_NONE;

    if (how == AP_LINE_RECOMPUTE_OPERATORS)
        return false;
    for (int v = 0; v < r->m->graph.n_nodes && !any; v++)
        any = r->model.again[how][v];
    if (asked == STAGE_RECOMPUTE_NONE)
        return how == AP_LINE_RECOMPUTE_NONE;
    return any && (asked != STAGE_RECOMPUTE_ALL || how == AP_LINE_RECOMPUTE_FULL);
}

/* Micro-batches, ZeRO and recomputation of given degrees. */
static void add_lines(struct grid_rows *r, const struct ap_line *degrees,
                      const struct stored *all)
{
    struct ap_line line = *degrees;
    struct ap_degrees *d = &line.degrees;
    const int64_t share = r->m->batch / d->data;

    if (r->m->batch % d->data)
        return;
    for (int how = 0; how < AP_N_LINE_RECOMPUTES; how++) {
        if (!may_recompute(r, (enum ap_line_recompute)how))
            continue;
        line.recompute = (enum ap_line_recompute)how;
        for (d->zero = 0; d->zero <= (d->data * d->context > 1 ? 3 : 0); d->zero++) {
            for (int64_t b = 1; b <= share && b <= MOST_MICRO_BATCH; b *= 2) {
                line.micro_batch = b;
                if (share % b == 0)
                    add_line(r, &line, all);
            }
        }
    }
}

/* Schedules and virtual stages of given degrees. */
static void add_schedules(struct grid_rows *r, const struct ap_line *degrees,
                          const struct stored *all)
{
    const int asked = r->want->schedule, want = r->want->n_stages;
    const int layers = r->model.layers.n;
    struct ap_line line = *degrees;

    for (line.chunks = 1; line.chunks <= (line.pipeline > 1 ? MOST_CHUNKS : 1);
         line.chunks++) {
        const int64_t stages = line.pipeline * line.chunks;
        line.schedule = line.chunks > 1              ? AP_SCHEDULE_INTERLEAVED
                        : asked == AP_SCHEDULE_GPIPE ? AP_SCHEDULE_GPIPE
                                                     : AP_SCHEDULE_1F1B;
        if ((asked >= 0 && asked != (int)line.schedule) || (want > 0 && want != stages) ||
            (stages > 1 && (layers == 0 || layers % stages)))
            continue;
        add_lines(r, &line, all);
    }
}

static bool divides(int64_t n, int64_t whole)
{
    return n > 0 && whole % n == 0;
}

/* Sequences and experts that are split, on what tensor parallelism and stages leave. */
static void add_degrees(struct grid_rows *r, struct ap_line *line, int64_t rest,
                        const struct stored *all)
{
    struct ap_degrees *d = &line->degrees;

    for (d->context = 1; d->context <= rest; d->context *= 2) {
        if (d->context > 1 &&
            (!divides(d->context, rest) || r->sequence / d->context < LEAST_SEQUENCE))
            break;
        d->data = rest / d->context;
        for (d->expert = 1; d->expert <= (r->experts ? d->data : 1); d->expert *= 2)
            if (divides(d->expert, d->data))
                add_schedules(r, line, all);
    }
}

int grid_list(struct grid_rows *r, struct ap_err *err)
{
    const int64_t devices = ap_cluster_devices(&r->m->cluster);
    const int64_t host = r->m->cluster.levels[0].size;
    const struct stored all = count_stored(&r->m->graph);
    const bool pipelines = r->want->family == GRID_MEGATRON;

    if (r->m->batch == 0)
        return ap_err_set(err, "no input has a batch dimension");
    if (r->want->schedule == AP_SCHEDULE_EAGER)
        return ap_err_set(err, "no line says schedule eager-1f1b");
    r->again = share_again(r);
    r->sequence = ap_sequence_length(r->arena, &r->m->graph, &r->m->nests);
    for (int64_t tp = 1; tp <= host; tp *= 2)
        for (int64_t pp = 1; pp <= (pipelines ? devices / tp : 1); pp++) {
            struct ap_line line = ap_line_least;
            line.degrees.tensor = tp;
            line.degrees.sequence = tp > 1 && r->sequence % tp == 0;
            line.degrees.shard = 0;
            line.pipeline = pp;
            if (divides(tp, host) && divides(tp * pp, devices))
                add_degrees(r, &line, devices / (tp * pp), &all);
        }
    return 0;
}
