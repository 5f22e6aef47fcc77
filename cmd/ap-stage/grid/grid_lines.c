/*
 * Problem: the lines of a space, which are what somebody would try on a model and a
 * cluster, or what a trainer can run.
 * Idea: all products of the degrees within the limits of a row of `spaces`, less what the
 * trainer refuses (ap_trainer_check) and what no price is needed for: lines whose weights
 * and states do not fit, or whose operators take longer at the devices' best than the
 * plan to beat. Lines that shard in the same way share their sharding, those that cut the
 * model in the same way their stages, those with the same microbatches and recomputation
 * their microbatch axis. Cost: products of divisors. Sources: Narayanan et al., SC 2021,
 * section 3 (degrees, inside a host); Korthikanti et al., section 4.2.
 */
#include <math.h>
#include <string.h>

#include "base/array.h"
#include "grid/grid_rows_impl.h"

/* Bytes of weights, and of states, that all devices together hold once. */
struct stored {
    double weights, states;
    double masters, copies; /* of such weights, and of what passes read in their place */
    double elements;        /* of all weights */
};

/* Seconds of blocks at the devices' best. */
struct least {
    int64_t devices, microbatches;
    const double *sum; /* as of stage_least_sec */
};

struct lister {
    struct grid_rows *r;
    const struct grid_space *space;
    struct stored stored;
    struct ap_line_facts facts;
    int n_least, cap_least;
    struct least *least;
    bool recomputes[AP_N_LINE_RECOMPUTES];
};

static struct stored count_stored(const struct ap_graph *g)
{
    struct stored all = {0};

    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        const int64_t copy =
            p->role == AP_ROLE_WEIGHT ? ap_stage_master_copy_bytes(g, g->params[i]) : 0;
        all.copies += (double)copy;
        if (p->role == AP_ROLE_WEIGHT)
            all.elements += (double)ap_shape_elems(&p->shape);
        if (copy > 0)
            all.masters += (double)ap_shape_bytes(&p->shape);
        else if (p->role == AP_ROLE_WEIGHT)
            all.weights += (double)ap_shape_bytes(&p->shape);
        else if (p->role == AP_ROLE_STATE)
            all.states += (double)ap_shape_bytes(&p->shape);
    }
    return all;
}

/* Parts of the model that the line makes, at most, and of what ZeRO shards. */
static double model_shares(const struct ap_line *l)
{
    const struct ap_degrees *d = &l->degrees;

    return (double)((d->expert_tensor > d->tensor ? d->expert_tensor : d->tensor) *
                    l->pipeline * d->expert);
}

static double zero_shares(const struct grid_rows *r, const struct ap_line *l)
{
    const struct ap_degrees *d = &l->degrees;

    return fmax(model_shares(l), (double)ap_cluster_devices(&r->m->cluster) /
                                     (double)(d->data * d->context) * (double)d->shard);
}

/* Of states and masters, on average over the stages, no device has less. */
static double optimizer_bytes(const struct grid_rows *r, const struct ap_line *l)
{
    return r->optimizer_bytes /
           (l->degrees.zero >= 1 ? zero_shares(r, l) : model_shares(l));
}

double grid_host_bytes(const struct grid_rows *r, const struct ap_line *line)
{
    return line->offload & AP_LINE_OFFLOAD_OPTIMIZER ? optimizer_bytes(r, line) : 0;
}

/*
 * No less of a device, on average over the stages: copies of what ZeRO shards are those
 * of the groups that it shards over. Where the last of several microbatches' backward
 * pass begins, what ZeRO-1 and 2 gather once per step is there, and the sums of whole
 * gradients; with experts, plans may sum the shares that ZeRO-1 updates.
 */
static double least_bytes(const struct lister *w, const struct ap_line *l)
{
    const struct grid_rows *r = w->r;
    const struct stored *all = &w->stored;
    const struct ap_degrees *d = &l->degrees;
    const double model = model_shares(l), sharded = zero_shares(r, l);
    const bool several = r->m->batch > d->data * l->micro_batch;
    const double summed = w->facts.experts > 0 && d->zero >= 1 ? sharded : model;
    double bytes = all->weights / (d->zero == 3 ? sharded : model);

    if (!(l->offload & AP_LINE_OFFLOAD_OPTIMIZER))
        bytes += optimizer_bytes(r, l);

    if (several && (d->zero == 1 || d->zero == 2))
        bytes += all->copies / model;
    if (several && d->zero <= 1)
        bytes += all->elements * (l->trainer & AP_TRAINER_LOW_SUMS ? 2 : 4) / summed;
    return bytes;
}

/* ---- bounds ---- */

static const double *least_of(struct lister *l, int64_t devices, int64_t microbatches)
{
    struct grid_rows *r = l->r;

    for (int i = 0; i < l->n_least; i++)
        if (l->least[i].devices == devices && l->least[i].microbatches == microbatches)
            return l->least[i].sum;
    AP_ROOM_IN(r->arena, l->least, l->n_least, l->cap_least);
    l->least[l->n_least] = (struct least){
        devices, microbatches, stage_least_sec(r->arena, r->m, 0, devices, microbatches)};
    return l->least[l->n_least++].sum;
}

static double stage_sec(const double *sum, const struct grid_cut *cut, int s)
{
    return sum[cut->end[s]] - sum[s ? cut->end[s - 1] : 0];
}

/*
 * No step of the line is below: the devices of a stage work on all microbatches, at their
 * best, and wait for the first one's way to them and the last one's way back; where
 * gradients of weights come last, the way is not known here.
 */
static double least_sec(struct lister *l, const struct ap_line *line,
                        const struct grid_cut *cut, int64_t microbatches)
{
    const int n = (int)cut->pipeline;
    const double *sum =
        least_of(l, ap_cluster_devices(&l->r->m->cluster) / n, microbatches);
    double way = 0, least = 0;

    for (int g = 0; g < n; g++) {
        double lane = 0;
        for (int k = 0; k < cut->n / n; k++)
            lane += stage_sec(sum, cut, ap_schedule_stage(line->schedule, n, g, k));
        least = fmax(least, (double)microbatches * lane + way);
        if (!ap_schedule_traits[line->schedule].splits)
            way += stage_sec(sum, cut, g);
    }
    return least;
}

/* ---- what lines share ---- */

/* Row of the same microbatches, recompute and trainer; of a bare way to shard without a
 * trainer. -1: the batch cannot be cut so. */
static int find_at_once(struct grid_rows *r, int64_t microbatches,
                        const struct ap_line *line, bool bare)
{
    const unsigned trainer =
        (ap_line_trainer(line) &
         (bare ? (unsigned)(AP_TRAINER_EP_OVERLAP | AP_TRAINER_TP_OVERLAP |
                            AP_TRAINER_WGRAD_OVERLAP)
               : ~0U)) |
        (r->want->space->trainer && r->offloads ? AP_TRAINER_HOST_UPDATE : 0U);
    const struct stage_model *m = r->m;
    struct grid_at_once *a;

    for (int i = r->n_at_once - 1; i >= 0; i--)
        if (r->at_once[i].microbatches == microbatches &&
            r->at_once[i].recompute == line->recompute && r->at_once[i].is_bare == bare &&
            r->at_once[i].micro.trainer == trainer)
            return i;
    AP_ROOM_IN(r->arena, r->at_once, r->n_at_once, r->cap_at_once);
    a = &r->at_once[r->n_at_once];
    *a = (struct grid_at_once){
        .microbatches = microbatches, .recompute = line->recompute, .is_bare = bare};
    if (!ap_stage_microbatch_like(&m->micro, microbatches, &a->micro) &&
        ap_stage_microbatch_axis(r->arena, &m->graph, &m->nests, microbatches, &a->micro,
                                 &r->why))
        return -1;
    a->micro.block_of = m->blocks.block_of;
    a->micro.host = r->host;
    a->micro.trainer = trainer;
    a->micro.overlap = line->overlap;
    if (bare)
        a->micro.each = NULL;
    else if (microbatches > 1 && !r->want->each && a->micro.whole >= 0)
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

static int find_way(struct grid_rows *r, const struct line_maker *k, bool even, bool bare)
{
    struct grid_sharding *s;

    for (int i = 0; i < r->n_shardings; i++) {
        s = &r->sharding[i];
        if (s->is_bare == bare && s->even == even && same_mesh(&s->mesh, &k->mesh) &&
            s->uses.degrees.sequence == k->uses.degrees.sequence &&
            s->uses.degrees.ring == k->uses.degrees.ring &&
            !memcmp(s->uses.use, k->uses.use, sizeof s->uses.use) &&
            !memcmp(s->uses.expert_use, k->uses.expert_use, sizeof s->uses.expert_use) &&
            !memcmp(s->uses.exchange, k->uses.exchange, sizeof s->uses.exchange) &&
            !memcmp(s->uses.zero, k->uses.zero, sizeof s->uses.zero))
            return i;
    }
    AP_ROOM_IN(r->arena, r->sharding, r->n_shardings, r->cap_shardings);
    s = &r->sharding[r->n_shardings];
    *s = (struct grid_sharding){.even = even,
                                .mesh = k->mesh,
                                .uses = k->uses,
                                .n_devices = ap_mesh_devices(&k->mesh),
                                .least_sec = INFINITY,
                                .is_bare = bare,
                                .bare = -1};
    for (int a = 0; a < k->mesh.n_axes; a++)
        s->mesh.name[a] = ap_arena_strdup(r->arena, k->mesh.name[a]);
    s->devices = AP_NEW_N(r->arena, (int)s->n_devices, int64_t);
    for (int64_t i = 0; i < s->n_devices; i++)
        s->devices[i] = i;
    return r->n_shardings++;
}

static bool is_of_data(const struct ap_axis_uses *u, int axis)
{
    return u->use[axis] == AP_USE_DATA && u->expert_use[axis] == AP_USE_DATA;
}

/* The same with ZeRO-3 over all devices, under which operators of weights and gradients
 * take least, and without the replicas that experts' own grid does not need; returns
 * their number. */
static int64_t make_bare(struct line_maker *k)
{
    struct ap_axis_uses *u = &k->uses;
    int64_t replicas = 1;

    for (int a = 0; a < k->mesh.n_axes; a++)
        u->zero[a] =
            u->use[a] != AP_USE_TENSOR || u->expert_use[a] == AP_USE_DATA ? 3 : 0;
    for (; k->mesh.n_axes > 1 && is_of_data(u, 0); k->mesh.n_axes--) {
        replicas *= k->mesh.size[0];
        for (int a = 0; a + 1 < k->mesh.n_axes; a++) {
            k->mesh.size[a] = k->mesh.size[a + 1];
            k->mesh.name[a] = k->mesh.name[a + 1];
            u->use[a] = u->use[a + 1];
            u->zero[a] = u->zero[a + 1];
            u->expert_use[a] = u->expert_use[a + 1];
            u->exchange[a] = u->exchange[a + 1];
        }
    }
    if (is_of_data(u, 0)) {
        replicas *= k->mesh.size[0];
        k->mesh.size[0] = 1;
        k->mesh.name[0] = "dp";
    }
    u->degrees.zero = 3;
    u->degrees.data /= replicas;
    u->degrees.shard = u->degrees.data * u->degrees.context;
    return replicas;
}

/* Whether all stages lie on the hosts as the first one does. */
static bool lies_evenly(const struct grid_rows *r, const struct line_maker *k)
{
    const int64_t host = r->m->cluster.levels[0].size;
    const int64_t n = ap_mesh_devices(&k->mesh);

    return k->line.pipeline == 1 || (n <= host ? host % n : n % host) == 0;
}

static int find_sharding(struct grid_rows *r, const struct line_maker *k)
{
    struct line_maker bare = *k;
    const bool even = lies_evenly(r, k);
    const int at = find_way(r, k, even, false);

    if (r->sharding[at].bare < 0) {
        const int64_t replicas = make_bare(&bare);
        const int of = find_way(r, &bare, even, true);
        r->sharding[at].replicas = replicas;
        r->sharding[at].bare = r->sharding[of].bare = of;
    }
    return at;
}

static int find_cut(struct grid_rows *r, const struct line_maker *k)
{
    const int n = k->stages->n;
    int *end = AP_NEW_N(r->arena, n, int), at = 0;

    for (int s = 0; s < n; s++)
        end[s] = at += k->stages->stage[s].n_blocks;
    for (int i = 0; i < r->n_cuts; i++)
        if (r->cut[i].pipeline == k->line.pipeline && r->cut[i].n == n &&
            !memcmp(r->cut[i].end, end, (size_t)n * sizeof *end))
            return i;
    AP_ROOM_IN(r->arena, r->cut, r->n_cuts, r->cap_cuts);
    r->cut[r->n_cuts] = (struct grid_cut){k->line.pipeline, k->line.chunks, n, end};
    return r->n_cuts++;
}

/* ---- lines ---- */

/* Whether the number of microbatches is asked for. */
static bool is_asked(const struct grid_rows *r, int64_t microbatches)
{
    const struct plan_instance *inst = r->want->inst;
    bool asked = inst->n_microbatches != 1;

    for (int i = 0; i < inst->n_microbatches && !asked; i++)
        asked = inst->microbatches[i] == microbatches;
    return asked;
}

/* Whether weights and states, of so many bytes, alone do not fit. */
static bool is_too_large(struct lister *l, const struct ap_line *line, double bytes)
{
    struct grid_rows *r = l->r;
    const double limit = (double)r->want->inst->memory_bytes;

    if (limit == 0 || bytes <= limit)
        return false;
    if (bytes < r->leanest_bytes) {
        r->leanest_bytes = bytes;
        r->leanest = *line;
    }
    return true;
}

/* A line that is laid out. */
static void add_line(struct lister *l, const struct ap_line *line, int cut, int shard)
{
    struct grid_rows *r = l->r;
    const int64_t microbatches = r->m->batch / (line->degrees.data * line->micro_batch);
    struct grid_candidate row = {.line = *line, .cut = cut, .shard = shard};

    row.bytes = least_bytes(l, line);
    while (is_too_large(l, &row.line, row.bytes)) {
        if (!grid_offload(r, &row)) {
            r->n_too_large++;
            if (row.host_bytes > 0)
                r->host_bytes = fmin(r->host_bytes, row.host_bytes);
            return;
        }
        row.bytes = least_bytes(l, &row.line);
    }
    line = &row.line;
    row.step_sec = least_sec(l, line, &r->cut[cut], microbatches);
    if (row.step_sec >= grid_limit(r->want)) {
        r->least_sec = fmin(r->least_sec, row.step_sec);
        return;
    }
    row.at_once = find_at_once(r, microbatches, line, false);
    row.bare_at_once =
        find_at_once(r, microbatches * r->sharding[shard].replicas, line, true);
    if (row.at_once < 0 || row.bare_at_once < 0) {
        r->n_no_plan++;
        return;
    }
    r->sharding[shard].least_sec = fmin(r->sharding[shard].least_sec, row.step_sec);
    AP_ROOM_IN(r->arena, r->row, r->n, r->cap);
    r->row[r->n++] = row;
}

/* Whether the line is one of the space; what the trainer does by itself is added. */
static bool is_legal(struct lister *l, struct ap_line *line)
{
    const struct grid_space *space = l->space;
    const int64_t n = l->r->m->batch / (line->degrees.data * line->micro_batch);

    const struct ap_schedule_size size = {line->schedule, (int)line->pipeline,
                                          (int)line->chunks, (int)n, false};

    if (!grid_is_of(space, line) || !is_asked(l->r, n))
        return false;
    if (!space->trainer)
        return ap_schedule_check(&size, &(struct ap_err){0}) == 0;
    line->overlap = line->degrees.data * line->degrees.context > 1;
    /* the trainer's reasons say more than degrees that are none */
    struct ap_err *why = &l->r->why, degrees = {0};
    if (ap_trainer_settle(space->trainer, &l->facts, line, *why->msg ? &degrees : why))
        return false;
    return ap_trainer_check(space->trainer, line, &l->facts, why) == 0;
}

/* The divisor of `whole` that the space tries after n. */
static int64_t next_of(const struct grid_space *space, int64_t n, int64_t whole)
{
    if (space->hand)
        return 2 * n;
    for (n++; n < whole && whole % n; n++)
        ;
    return n;
}

/* Ways to overlap, by number: of experts, of sequence parallelism, each without, and with
 * it where the trainer may. */
#define N_OVERLAPS 4
static bool set_overlaps(const struct lister *l, int how, struct ap_line *line)
{
    const unsigned asked =
        (how & 1 ? AP_TRAINER_EP_OVERLAP : 0U) | (how & 2 ? AP_TRAINER_TP_OVERLAP : 0U);

    if ((how & 1 && line->degrees.expert == 1) || (how & 2 && !line->degrees.sequence) ||
        (asked && (!l->space->trainer || asked & ~l->space->trainer->may)))
        return false;
    line->trainer |= asked;
    return true;
}

/* Micro-batches, recomputation and overlap of lines that are laid out in the same way. */
static void add_lines(struct lister *l, const struct ap_line *line)
{
    struct grid_rows *r = l->r;
    const int64_t share = r->m->batch / line->degrees.data;
    struct ap_stages stages = {0};
    struct ap_arena scratch = {0};
    enum { UNKNOWN = -1, NONE = -2 };
    int cut = UNKNOWN, shard = UNKNOWN;

    for (int64_t b = 1; b <= share && b <= l->space->most_micro_batch;
         b = next_of(l->space, b, share))
        for (int i = 0; i < N_OVERLAPS * AP_N_LINE_RECOMPUTES && share % b == 0; i++) {
            const int how = i / N_OVERLAPS;
            struct line_maker k = {
                .arena = &scratch, .model = &r->model, .line = *line, .stages = &stages};
            k.line.micro_batch = b;
            k.line.recompute = (enum ap_line_recompute)how;
            if (!l->recomputes[how] || !set_overlaps(l, i % N_OVERLAPS, &k.line) ||
                !is_legal(l, &k.line))
                continue;
            r->n_legal++;
            if (cut == UNKNOWN && line_lay(&k, &r->why)) {
                cut = NONE;
            } else if (cut == UNKNOWN) {
                cut = find_cut(r, &k);
                shard = find_sharding(r, &k);
            }
            if (cut == NONE)
                r->n_no_plan++;
            else
                add_line(l, &k.line, cut, shard);
        }
    ap_arena_free(&scratch);
}

/* ZeRO of given degrees and stages: over all devices with other data, or over fewer that
 * follow each other. */
static void add_zero(struct lister *l, struct ap_line *line)
{
    struct ap_degrees *d = &line->degrees;
    const int64_t all = d->data * d->context;

    for (d->zero = 0; d->zero <= (all > 1 ? 3 : 0); d->zero++) {
        d->shard = d->zero ? all : 1;
        add_lines(l, line);
        for (d->shard = 2; d->zero && !l->space->hand && d->shard < all; d->shard++)
            if (all % d->shard == 0)
                add_lines(l, line);
    }
}

/* Ways to send what tensor and context parallelism send. */
static void add_ways(struct lister *l, struct ap_line *line)
{
    struct ap_degrees *d = &line->degrees;
    const bool may = d->tensor > 1 && l->r->sequence % d->tensor == 0;

    /* keys and values are gathered, go round a ring; tokens are exchanged for heads */
    for (int how = 0; how < (d->context > 1 && !l->space->hand ? 3 : 1); how++)
        for (int sp = may; sp >= (may && l->space->hand); sp--) {
            d->ring = how == 1;
            d->exchange = how == 2 ? d->context : 1;
            d->sequence = sp;
            add_zero(l, line);
        }
}

/* Whether no stages of the pipeline are equal, with embedding and head or without, and
 * fewer chunks have more layers in the largest stage. */
static bool is_uneven(int layers, int units, const struct ap_line *line)
{
    const int64_t pp = line->pipeline, fewer = pp * (line->chunks - 1);

    return layers % pp && units % pp &&
           (fewer == 0 ||
            ap_ceil_div(units, fewer) > ap_ceil_div(units, pp * line->chunks));
}

/* Lines of given degrees, schedule and number of stages: as many layers in each, or as
 * the trainer deals them with embedding and head. */
static void add_layers(struct lister *l, struct ap_line *line)
{
    const struct ap_trainer *trainer = l->space->trainer;
    const int layers = l->r->model.layers.n, n = ap_line_stages(line);
    const int ends = trainer ? trainer->ends : 0, units = layers + 2 * ends;

    line->n_layers = 0;
    if (n == 1 || (layers > 0 && layers % n == 0))
        add_ways(l, line);
    if (!trainer || !(units % n ? is_uneven(layers, units, line) : ends > 0 && n > 2))
        return;
    if (ap_trainer_deal(l->r->arena, line, layers, ends, ends) == 0)
        add_ways(l, line);
}

/* Whether the line's schedule is searched: it is the one asked for, or the space has it.
 * Of schedules that take equally long, only the one with the least memory is. */
static bool is_tried(const struct grid_want *want, const struct ap_line *line)
{
    const struct ap_schedule_traits *t = &ap_schedule_traits[line->schedule];
    const bool one = line->chunks == 1 && line->schedule == AP_SCHEDULE_INTERLEAVED;

    if (one || line->chunks < t->least_chunks || line->chunks > t->most_chunks ||
        (line->pipeline == 1 && t->splits))
        return false;
    return want->schedule >= 0 ? want->schedule == (int)line->schedule
                               : line->schedule != AP_SCHEDULE_GPIPE &&
                                     (want->space->schedules >> line->schedule & 1);
}

/* Schedules, virtual stages and layers of given degrees. */
static void add_schedules(struct lister *l, const struct ap_line *degrees)
{
    const struct grid_rows *r = l->r;
    const int want = r->want->n_stages, layers = r->model.layers.n;
    struct ap_line line = *degrees;

    for (line.chunks = 1; line.chunks <= (line.pipeline > 1 ? l->space->most_chunks : 1);
         line.chunks++) {
        const int64_t stages = line.pipeline * line.chunks;
        if ((want > 0 && want != stages) || stages > layers + 2)
            continue;
        for (int s = 0; s < AP_N_TRAIN_SCHEDULES; s++) {
            line.schedule = (enum ap_schedule)s;
            if (is_tried(r->want, &line))
                add_layers(l, &line);
        }
    }
}

/* Experts' own grid. */
static void add_experts(struct lister *l, struct ap_line *line)
{
    const int64_t experts = l->r->model.experts > 0 ? l->r->model.experts : 1;
    struct ap_degrees *d = &line->degrees;
    const int64_t each = d->tensor * d->context * d->data;

    for (d->expert = 1; d->expert <= experts;
         d->expert = next_of(l->space, d->expert, experts)) {
        if (experts % d->expert || each % d->expert)
            continue;
        d->expert_tensor = d->tensor;
        if (each % (d->expert * d->tensor) == 0)
            add_schedules(l, line);
        for (d->expert_tensor = 1; d->expert > 1 && d->expert_tensor < d->tensor;
             d->expert_tensor = next_of(l->space, d->expert_tensor, d->tensor))
            if (d->tensor % d->expert_tensor == 0)
                add_schedules(l, line);
    }
}

/* Sequences that are split, on what tensor parallelism and stages leave. */
static void add_degrees(struct lister *l, struct ap_line *line, int64_t rest)
{
    const struct grid_rows *r = l->r;
    struct ap_degrees *d = &line->degrees;

    for (d->context = 1; d->context <= rest;
         d->context = next_of(l->space, d->context, rest)) {
        d->data = rest / d->context;
        if (rest % d->context == 0 && r->m->batch % d->data == 0 &&
            (d->context == 1 || r->sequence / d->context >= l->space->least_sequence))
            add_experts(l, line);
    }
}

static bool may_recompute(const struct grid_rows *r, enum ap_line_recompute how)
{
    const enum stage_recompute asked = r->want->recompute;
    bool any = how == AP_LINE_RECOMPUTE_NONE;

    if (how == AP_LINE_RECOMPUTE_OPERATORS && !r->want->space->trainer)
        return false;
    for (int v = 0; v < r->m->graph.n_nodes && !any; v++)
        any = r->model.again[how][v];
    if (asked == STAGE_RECOMPUTE_NONE)
        return how == AP_LINE_RECOMPUTE_NONE;
    return any && (asked != STAGE_RECOMPUTE_ALL || how == AP_LINE_RECOMPUTE_FULL);
}

/* What is to be measured of each way to shard. */
static void mark_asked(struct grid_rows *r)
{
    int *last = AP_NEW_N(r->arena, r->n_shardings, int); /* cut + 1 that was marked */

    for (int i = 0; i < r->n_shardings; i++) {
        r->sharding[i].asked = AP_NEW_N(r->arena, r->n_at_once, bool);
        r->sharding[i].needed = AP_NEW_N(r->arena, r->n_parts, uint8_t);
    }
    for (int i = 0; i < r->n; i++) {
        const struct grid_candidate *row = &r->row[i];
        const int ways[2] = {row->shard, r->sharding[row->shard].bare};
        for (int k = 0; k < 2; k++) {
            r->sharding[ways[k]].asked[k ? row->bare_at_once : row->at_once] = true;
            if (last[ways[k]] != row->cut + 1)
                grid_need(r, &r->sharding[ways[k]], row->cut);
            last[ways[k]] = row->cut + 1;
        }
    }
}

int grid_list(struct grid_rows *r, struct ap_err *err)
{
    const int64_t devices = ap_cluster_devices(&r->m->cluster);
    const struct grid_space *space = r->want->space;
    const int64_t host = space->hand ? r->m->cluster.levels[0].size : devices;
    struct lister l = {.r = r, .space = space, .stored = count_stored(&r->m->graph)};

    r->optimizer_bytes = l.stored.states + l.stored.masters;

    if (r->m->batch == 0)
        return ap_err_set(err, "no input has a batch dimension");
    if (r->want->schedule == AP_SCHEDULE_EAGER)
        return ap_err_set(err, "no line says schedule eager-1f1b");
    for (int i = 0; i < AP_N_LINE_RECOMPUTES; i++)
        l.recomputes[i] = may_recompute(r, (enum ap_line_recompute)i);
    ap_line_facts_find(r->arena, &r->m->graph, &r->m->nests, &l.facts);
    l.facts.world = devices;
    r->facts = l.facts;
    if (r->m->cluster.host_link.out_bytes_per_sec > 0) {
        r->offloads =
            (l.stored.states + l.stored.masters > 0 ? AP_LINE_OFFLOAD_OPTIMIZER : 0U) |
            (r->model.layers.n > 0 ? AP_LINE_OFFLOAD_ACTIVATIONS : 0U);
        if (space->trainer && r->m->cluster.host_link.memory_bytes_per_sec == 0)
            r->offloads = 0;
        r->offloads &= space->trainer ? space->trainer->offloads : ~0U;
        r->host = line_mark_offloaded(r->arena, &r->model, r->offloads);
    }
    r->sequence = l.facts.sequence;
    for (int64_t tp = 1; tp <= host; tp = next_of(space, tp, devices))
        for (int64_t pp = 1; pp <= (space->pipelines ? devices / tp : 1); pp++) {
            struct ap_line line = ap_line_least;
            line.degrees.tensor = tp;
            line.pipeline = pp;
            if (host % tp == 0 && devices % (tp * pp) == 0 &&
                (tp == 1 || l.facts.heads == 0 || space->hand || l.facts.heads % tp == 0))
                add_degrees(&l, &line, devices / (tp * pp));
        }
    mark_asked(r);
    return 0;
}
