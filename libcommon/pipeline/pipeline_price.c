/*
 * Problem: the seconds of a step of a pipelined plan, and where its time and memory go.
 * Idea: each stage's plan is priced for its own devices, per microbatch and once per
 * step; sends between stages are added; the schedule is simulated. Nothing is estimated
 * twice: planners choose by the same price of a stage. Cost: linear in the graph, the
 * sends and the instructions of the schedule. Source: Zheng et al., "Alpa" (OSDI 2022),
 * sections 5 and 6; the schedules' sources are in schedule.c.
 */
#include "pipeline/pipeline_price.h"

#include "base/threads.h"
#include "cost/convert.h"
#include "plan/model_flops.h"

#include <limits.h>
#include <math.h>
#include <string.h>

static int check_stage(const struct ap_stage *st, int i, struct ap_err *err)
{
    const struct ap_sharding *s = &st->sharding;
    if (strcmp(s->cost_model, ap_cost_variant_names[AP_COST_DEFAULT]) != 0)
        return ap_err_set(err, "/stages/stages/%d: cost model %s is not in seconds", i,
                          s->cost_model);
    return 0;
}

/* The stage's cost model and conversions. */
static int lay_stage(struct ap_pricing *p, int i, struct ap_err *err)
{
    const struct ap_stage *st = &p->stages->stage[i];
    struct ap_stage_breakdown *part = &p->out->breakdown[i];
    struct ap_err why = {0};

    if (check_stage(st, i, err))
        return -1;
    if (ap_stage_cost(p->arena, p->cluster, st, &st->sharding.plan.mesh, &part->cost,
                      &why) ||
        ap_plan_check_choices(&st->sharding.plan, &part->cost, &why) ||
        ap_plan_conversions(p->arena, &st->sharding.plan, &part->cost, &part->conv, &why))
        return ap_err_set(err, "/stages/stages/%d: %s", i, why.msg);
    return 0;
}

static int check_rows(const struct ap_pricing *p, int i, struct ap_err *err)
{
    const struct ap_stage *st = &p->stages->stage[i];
    int64_t rows, devices;

    if (ap_stage_few_rows(&st->sub, &p->micro, &st->sharding.plan, &rows, &devices) < 0)
        return 0;
    if (rows % p->micro.n)
        return ap_err_set(err,
                          "/stages/microbatches: %lld rows are not %lld microbatches of "
                          "equal size",
                          (long long)rows, (long long)p->micro.n);
    return ap_err_set(err,
                      "/stages/stages/%d: %lld rows in %lld microbatches are too few for "
                      "%lld devices that split them: at most %lld microbatches",
                      i, (long long)rows, (long long)p->micro.n, (long long)devices,
                      (long long)(rows / devices));
}

static const bool *recomputed_nodes(struct ap_pricing *p, const struct ap_stage *st)
{
    bool *whole = AP_NEW_N(p->arena, p->g->n_nodes, bool);
    bool *own = AP_NEW_N(p->arena, st->sub.graph.n_nodes, bool);

    for (int k = 0; k < st->n_recomputed; k++)
        whole[st->recomputed[k]] = true;
    for (int i = 0; i < st->sub.graph.n_nodes; i++)
        own[i] = whole[st->sub.source[i]];
    return own;
}

/* A stage's price with its conversions, or without: what is theirs is the difference. The
 * second of two is with what the plan recomputes. */
struct kept_price {
    struct ap_stage_point with[2], without[2];
};

struct pricing_rounds {
    const struct ap_pricing *p;
    struct kept_price *kept; /* [stage] */
};

/* What a stage takes without conversions, and what does not depend on them. */
static void price_bare(struct ap_pricing *p, int stage, struct ap_stage_point without[2])
{
    struct ap_stage_point some = {0};
    const struct ap_stage *st = &p->stages->stage[stage];
    struct ap_stage_breakdown *part = &p->out->breakdown[stage];
    struct ap_conversions none = part->conv;
    struct ap_cost cost = part->cost;

    none.n = 0;
    cost.cache = NULL; /* the other round's */
    ap_stage_price(
        p->arena,
        &(struct ap_stage_plan){&st->sub, &p->micro, &st->sharding.plan, &none, &cost},
        without);
    if (st->recompute == AP_RECOMPUTE_SELECTED) {
        ap_stage_price_recomputed(p->arena,
                                  &(struct ap_stage_plan){&st->sub, &p->micro,
                                                          &st->sharding.plan, &none,
                                                          &cost},
                                  recomputed_nodes(p, st), &some);
        without[1] = some;
    }
    for (int i = 0; i < st->sub.graph.n_nodes; i++) {
        const struct ap_node *n = &st->sub.graph.nodes[i];
        struct ap_layout l = ap_plan_node_layout(&st->sharding.plan, i);
        if (n->op == AP_OP_PARAMETER)
            part->role_bytes[n->role] +=
                ap_layout_local_bytes(&st->sharding.plan.mesh, &n->shape, &l);
        part->flops += ap_node_heavy_flops(&st->sub.graph, i);
    }
}

/* A stage as the simulation has it, and its point. */
static void price_stage(struct ap_pricing *p, int i, struct ap_stage_point point[2])
{
    const struct ap_stage *st = &p->stages->stage[i];
    struct ap_stage_breakdown *part = &p->out->breakdown[i];
    struct ap_sim_stage *sim = &p->out->stage[i];
    struct ap_stage_point some = {0};

    point[0] = (struct ap_stage_point){.algorithm = st->sharding.algorithm};
    ap_stage_price(p->arena,
                   &(struct ap_stage_plan){&st->sub, &p->micro, &st->sharding.plan,
                                           &part->conv, &part->cost},
                   point);
    *sim = (struct ap_sim_stage){
        .forward_sec = point[0].forward_sec,
        .backward_sec = point[0].backward_sec,
        .weights_sec = point[0].weights_sec,
        .exchange_sec = {point[0].exchange_sec[0], point[0].exchange_sec[1]},
        .exchange_share = part->cost.cluster.collective_share[AP_OP_ALL_TO_ALL],
        .sync_sec = point[0].sync_sec,
        .update_sec = point[0].update_sec,
        .fixed_bytes = point[0].stage_bytes - point[0].passing_bytes,
        .work_bytes = point[0].passing_bytes,
        .flight_bytes = point[0].microbatch_bytes,
        .pending_bytes = point[0].pending_bytes};
    if (st->recompute == AP_RECOMPUTE_ALL) {
        some = point[1];
    } else if (st->recompute == AP_RECOMPUTE_SELECTED) {
        some.algorithm = st->sharding.algorithm;
        ap_stage_price_recomputed(p->arena,
                                  &(struct ap_stage_plan){&st->sub, &p->micro,
                                                          &st->sharding.plan, &part->conv,
                                                          &part->cost},
                                  recomputed_nodes(p, st), &some);
        point[1] = some;
    }
    p->out->point[i] = st->recompute == AP_RECOMPUTE_NONE ? point[0] : some;
    if (st->recompute != AP_RECOMPUTE_NONE) {
        sim->forward_sec = some.forward_sec; /* less is copied to the host, if anything */
        /* with recomputation less is copied in: the pass may be shorter than the other,
           that waits for its copies, and recompute_sec is never negative */
        sim->backward_sec = fmin(point[0].backward_sec, some.backward_sec);
        sim->recompute_sec = some.backward_sec - sim->backward_sec;
        sim->flight_bytes = some.microbatch_bytes;
        sim->pending_bytes = some.pending_bytes;
        sim->recomputed_bytes = some.stage_bytes - point[0].stage_bytes;
    }
}

static void price_conversions(const struct kept_price *kept, bool recompute,
                              struct ap_stage_breakdown *part)
{
    struct ap_stage_point at[4] = {kept->with[0], kept->without[0], kept->with[1],
                                   kept->without[1]};

    for (int i = 0; i < 4; i++) { /* waiting for the host is not theirs */
        at[i].forward_sec -= at[i].host_wait_sec[0];
        at[i].backward_sec -= at[i].host_wait_sec[1];
        at[i].update_sec -= at[i].host_wait_sec[2];
    }
    part->forward_comm_sec = at[0].forward_sec - at[1].forward_sec;
    part->backward_comm_sec = at[0].backward_sec - at[1].backward_sec;
    part->update_comm_sec = at[0].update_sec - at[1].update_sec;
    if (recompute)
        part->recompute_comm_sec =
            at[2].backward_sec - at[3].backward_sec - part->backward_comm_sec;
}

/* ---- bytes on the links inside a stage ---- */

/* Level that two devices of a list meet at. */
static int level_between(const struct ap_cluster *c, int64_t a, int64_t b)
{
    int64_t span = 1;
    for (int l = 0; l < c->n_levels; l++) {
        span = ap_mul64(span, c->levels[l].size);
        if (a / span == b / span)
            return l;
    }
    return c->n_levels - 1;
}

/* Hops of the stage's first ring over the axes, by level. */
static void ring_hops(const struct ap_cluster *cluster, const struct ap_stage *st,
                      unsigned axes, int64_t hops[AP_MAX_LEVELS])
{
    const struct ap_mesh *mesh = &st->sharding.plan.mesh;
    int64_t coords[AP_MAX_AXES], n = ap_mesh_devices(mesh), first = -1, last = -1;

    memset(hops, 0, AP_MAX_LEVELS * sizeof *hops);
    for (int64_t r = 0; r < n; r++) {
        bool on = true;
        ap_mesh_coords(mesh, r, coords);
        for (int a = 0; a < mesh->n_axes; a++)
            on &= (axes >> a & 1) || coords[a] == 0;
        if (!on)
            continue;
        if (last >= 0)
            hops[level_between(cluster, st->devices[last], st->devices[r])]++;
        else
            first = r;
        last = r;
    }
    if (last != first)
        hops[level_between(cluster, st->devices[last], st->devices[first])]++;
}

/* Adds what the stage's collectives move, a ring's bytes spread over its hops. */
static int count_inside(struct ap_pricing *p, int i, struct ap_err *err)
{
    const struct ap_stage *st = &p->stages->stage[i];
    const struct ap_conversions *conv = &p->out->breakdown[i].conv;
    int64_t hops[1 << AP_MAX_AXES][AP_MAX_LEVELS];
    bool known[1 << AP_MAX_AXES] = {false};
    const bool *runs_again = ap_stage_recomputed_groups(p->arena, st, p->g->n_nodes);
    struct ap_cost count;

    if (ap_cost_init(p->arena, &count, AP_COST_BYTES, &p->out->breakdown[i].cost.cluster,
                     &st->sharding.plan.mesh, err))
        return -1;
    for (int c = 0; c < conv->n; c++) {
        const struct ap_conversion *v = &conv->conv[c];
        bool again = v->first_group < st->nests.n && runs_again[v->first_group];
        if (st->recompute == AP_RECOMPUTE_ALL)
            again = v->phase == AP_FORWARD;
        for (int k = 0; k < v->path.n_steps; k++) {
            const struct ap_step *step = &v->path.steps[k];
            unsigned axes = step->coll.axes;
            double sent = ap_cost_collective(&count, step->op, axes, step->bytes);
            if (sent == 0)
                continue;
            if (!known[axes])
                ring_hops(p->cluster, st, axes, hops[axes]);
            known[axes] = true;
            double ring = 0;
            for (int l = 0; l < AP_MAX_LEVELS; l++)
                ring += (double)hops[axes][l];
            for (int l = 0; l < AP_MAX_LEVELS && ring > 0; l++)
                p->out->level_bytes[l] += (again ? 2 : 1) * sent * (double)st->n_devices *
                                          (double)hops[axes][l] / ring;
        }
    }
    ap_cost_free(&count);
    return 0;
}

/* ---- the whole ---- */

static void count_flops(struct ap_pricing *p)
{
    struct ap_pipeline_price *out = p->out;
    struct ap_model_flops flops;

    ap_model_flops_count(p->g, p->cluster, &flops);
    out->flops = flops.model;
    for (int i = 0; i < p->stages->n / p->stages->chunks; i++)
        out->n_devices += p->stages->stage[i].n_devices;
    double most = flops.peak * out->result.step_sec * (double)out->n_devices;
    if (most > 0)
        out->mfu = flops.model / most;
}

static int check_graph(const struct ap_pricing *p, struct ap_err *err)
{
    bool backward = false;

    for (int i = 0; i < p->g->n_nodes && !backward; i++)
        backward = p->g->nodes[i].phase != AP_FORWARD;
    if (backward && p->stages->schedule == AP_SCHEDULE_INFERENCE)
        return ap_err_set(err, "/stages/schedule: inference, but the graph has a "
                               "backward pass");
    if (p->stages->microbatches > INT_MAX)
        return ap_err_set(err, "/stages/microbatches: too many");
    return 0;
}

static int lay_one(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    struct ap_pricing p = *(const struct ap_pricing *)ctx;

    p.arena = arena;
    return check_rows(&p, i, err) || lay_stage(&p, i, err) ? -1 : 0;
}

/* Two rounds to a stage: a plan may have one that is all of a long model. */
static int price_half(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    const struct pricing_rounds *rounds = ctx;
    struct ap_pricing p = *rounds->p;
    struct kept_price *kept = &rounds->kept[i / 2];

    (void)err;
    p.arena = arena;
    if (i % 2 == 0)
        price_stage(&p, i / 2, kept->with);
    else
        price_bare(&p, i / 2, kept->without);
    return 0;
}

/* What devices have on the host, and how long their links work. */
static void count_host(struct ap_pipeline_price *out)
{
    double least = INFINITY;

    for (int d = 0; d < out->result.n_devices; d++) {
        double sec = 0;
        int64_t bytes = 0, limit = 0;
        for (int i = 0; i < out->sim.n_stages; i++) {
            const struct ap_stage_point *p = &out->point[i];
            if (ap_sim_device_of(&out->sim, i) != d)
                continue;
            sec += out->sim.microbatches * (p->link_sec[0] + p->link_sec[1]) +
                   p->link_sec[2];
            limit = out->breakdown[i].cost.cluster.host_link.memory_bytes;
            bytes = ap_add64(bytes, p->host_bytes);
            bytes = ap_add64(bytes, ap_mul64(p->host_flight_bytes,
                                             out->result.devices[d].peak_in_flight));
        }
        out->host_link_sec = fmax(out->host_link_sec, sec);
        const double room = (limit > 0 ? (double)limit : 0x1p62) - (double)bytes;
        if (bytes > 0 && room < least) {
            least = room;
            out->host_bytes = bytes;
            out->host_limit_bytes = limit;
        }
    }
}

/* What stages send each other, and the schedule. */
static int simulate(struct ap_pricing *p, struct ap_err *err)
{
    struct ap_pipeline_price *out = p->out;

    ap_pipeline_sends(p);
    if (ap_simulate(p->arena, &out->sim, &out->result, err))
        return -1;
    for (int d = 0; d < out->result.n_devices; d++)
        if (out->result.devices[d].peak_bytes > out->peak_bytes)
            out->peak_bytes = out->result.devices[d].peak_bytes;
    count_host(out);
    return 0;
}

static int price(struct ap_pricing *p, struct ap_err *err)
{
    struct ap_pipeline_price *out = p->out;
    int n = p->stages->n;
    struct pricing_rounds rounds = {p, AP_NEW_N(p->arena, n, struct kept_price)};

    if (ap_in_arenas(p->arena, n, lay_one, p, err) ||
        ap_in_arenas(p->arena, 2 * n, price_half, &rounds, err))
        return -1;
    for (int i = 0; i < n; i++)
        price_conversions(&rounds.kept[i],
                          p->stages->stage[i].recompute != AP_RECOMPUTE_NONE,
                          &out->breakdown[i]);
    for (int i = 0; i < n; i++)
        if (count_inside(p, i, err))
            return -1;
    if (simulate(p, err))
        return -1;
    ap_pipeline_links(p);
    for (int i = 0; i < out->n_links; i++)
        for (int64_t k = 0; k < out->links[i].n; k++)
            out->level_bytes[level_between(p->cluster, out->links[i].from + k,
                                           out->links[i].to + k)] +=
                (double)out->links[i].bytes;
    count_flops(p);
    return 0;
}

/* How the graph lies on the microbatch axis, and which values have rows of the batch. */
static int find_axis(struct ap_pricing *p, const struct ap_nests *nests,
                     const struct ap_stage_microbatch *known, struct ap_err *err)
{
    const struct ap_stages *stages = p->stages;
    struct ap_stage_microbatch two; /* one microbatch has all rows: see with two */
    struct ap_err why = {0};

    if (!(known && ap_stage_microbatch_like(known, stages->microbatches, &p->micro)) &&
        ap_stage_microbatch_axis(p->arena, p->g, nests, stages->microbatches, &p->micro,
                                 &why))
        return ap_err_set(err, "/stages/microbatches: %lld: %s",
                          (long long)stages->microbatches, why.msg);
    p->micro.block_of = p->blocks->block_of;
    p->micro.host = ap_stages_host(p->arena, stages, p->g);
    p->micro.overlap = stages->overlap;
    p->micro.trainer = stages->trainer;
    if (!stages->each && p->micro.whole >= 0)
        return ap_err_set(
            err,
            "/stages/microbatch: exact, but node %d (%s) reduces over the whole batch "
            "before the update: \"each\" computes it per microbatch",
            p->micro.whole, p->g->nodes[p->micro.whole].name);
    if (stages->microbatches > 1)
        p->rows = p->micro.split;
    else if ((known && ap_stage_microbatch_like(known, 2, &two)) ||
             ap_stage_microbatch_axis(p->arena, p->g, nests, 2, &two, &why) == 0)
        p->rows = two.split;
    p->out->micro = p->micro;
    p->whole = (struct ap_microbatched){
        .graph = p->g, .nests = nests, .n = stages->microbatches};
    if (!stages->each || stages->microbatches == 1)
        return 0;
    if (ap_microbatch_choices_each(p->arena, p->g, nests, p->whole.n, &p->whole.choice,
                                   &p->whole.each, &why))
        return ap_err_set(err, "/stages/microbatch: each, but %s", why.msg);
    p->when = ap_microbatch_when(p->arena, &p->whole);
    return 0;
}

static int prepare(struct ap_pricing *p, const struct ap_nests *nests,
                   const struct ap_stage_microbatch *known, struct ap_err *err)
{
    const struct ap_stages *stages = p->stages;
    struct ap_pipeline_price *out = p->out;

    *out = (struct ap_pipeline_price){
        .stage = AP_NEW_N(p->arena, stages->n, struct ap_sim_stage),
        .point = AP_NEW_N(p->arena, stages->n, struct ap_stage_point),
        .breakdown = AP_NEW_N(p->arena, stages->n, struct ap_stage_breakdown)};
    out->sim = (struct ap_sim){.schedule = stages->schedule,
                               .n_stages = stages->n,
                               .chunks = stages->chunks,
                               .microbatches = (int)stages->microbatches,
                               .stages = out->stage,
                               .order = stages->order,
                               .overlap_send = !(stages->trainer & AP_TRAINER_WAITS),
                               .pairs = stages->trainer & AP_TRAINER_EP_OVERLAP,
                               .overlap_sync = stages->overlap};
    if (check_graph(p, err) || find_axis(p, nests, known, err))
        return -1;
    p->stage_of = ap_stages_of_nodes(p->arena, stages, p->g, p->blocks);
    return 0;
}

int ap_pipeline_price(struct ap_arena *arena, const struct ap_staged_graph *of,
                      const struct ap_stages *stages, struct ap_pipeline_price *out,
                      struct ap_err *err)
{
    struct ap_pricing p = {.arena = arena,
                           .g = of->graph,
                           .blocks = of->blocks,
                           .cluster = of->cluster,
                           .stages = stages,
                           .out = out};
    int rc = prepare(&p, of->nests, NULL, err);

    if (!rc)
        rc = price(&p, err);
    for (int i = 0; i < stages->n; i++)
        ap_cost_free(&out->breakdown[i].cost);
    return rc;
}

/* ---- for comparison ---- */

static int compare_one(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    struct ap_pricing p = *(const struct ap_pricing *)ctx;
    struct ap_stage_point points[2];

    p.arena = arena;
    int rc = check_rows(&p, i, err) || lay_stage(&p, i, err) ? -1 : 0;
    if (!rc)
        price_stage(&p, i, points);
    ap_cost_free(&p.out->breakdown[i].cost);
    return rc;
}

int ap_pipeline_compare(struct ap_arena *arena, const struct ap_staged_graph *of,
                        const struct ap_stages *stages,
                        const struct ap_stage_microbatch *micro,
                        struct ap_pipeline_price *out, struct ap_err *err)
{
    struct ap_pricing p = {.arena = arena,
                           .g = of->graph,
                           .blocks = of->blocks,
                           .cluster = of->cluster,
                           .stages = stages,
                           .out = out};

    if (prepare(&p, of->nests, micro, err))
        return -1;
    if (ap_in_arenas(arena, stages->n, compare_one, &p, err))
        return -1;
    return simulate(&p, err);
}
