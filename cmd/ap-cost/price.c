/*
 * Problem: price a plan: compute, each collective by kind and axes, memory. Idea:
 * conversions and group prices come from libcommon, as for ap-shard, so that the sum here
 * is ap-shard's objective; memory is the size of the program's buffer plan.
 */
#include "price.h"

#include <math.h>
#include <stdio.h>

#include "plan/microbatch.h"
#include "cost/convert.h"

/* How often a group runs in a step. */
static double times(const struct cost_input *in, const struct ap_plan *plan, int group)
{
    return ap_runs_each(&in->of.nests.nest[group], &in->of.graph, &plan->mesh,
                        &plan->choice[group])
               ? (double)ap_mesh_microbatches(&plan->mesh)
               : 1;
}

static void count_phases(const struct cost_input *in, const struct ap_plan *plan,
                         const struct ap_conversions *conv, struct priced *out)
{
    for (int i = 0; i < in->of.nests.n; i++) {
        const struct ap_nest *nest = &in->of.nests.nest[i];
        double flops, bytes;
        enum ap_dtype dtype;
        out->phase_sec[in->of.graph.nodes[nest->members[0]].phase] +=
            ap_plan_group_sec(nest, &in->of.graph, &in->cost, &plan->choice[i]);
        ap_nest_work(nest, &in->of.graph, &plan->mesh, &plan->choice[i], &flops, &bytes,
                     &dtype);
        out->flops += flops * times(in, plan, i);
    }
    for (int i = 0; i < conv->n; i++)
        out->phase_sec[conv->conv[i].phase] += conv->conv[i].path.sec;
}

/* The messages of rings, which are no conversions: what they take by themselves, though
 * compute hides it. They go along one axis. */
static void add_rings(const struct cost_input *in, struct priced *out)
{
    for (int i = 0; i < in->of.nests.n; i++) {
        const struct ap_rounds r = ap_plan_rounds(&in->of.nests.nest[i], &in->of.graph,
                                                  &in->cost, &out->plan.choice[i]);
        const double n = (double)(r.n - 1) * times(in, &out->plan, i);
        int c = 0;
        if (r.n == 1)
            continue;
        while (c < out->n_colls && (out->colls[c].op != AP_OP_COLLECTIVE_PERMUTE ||
                                    out->colls[c].axes != r.axes))
            c++;
        if (c == out->n_colls)
            out->colls[out->n_colls++] =
                (struct ap_coll_count){.op = AP_OP_COLLECTIVE_PERMUTE, .axes = r.axes};
        const int64_t bytes = (int64_t)(r.in_bytes + r.out_bytes);
        out->colls[c].count += (int64_t)n * r.messages;
        out->colls[c].bytes = ap_add64(out->colls[c].bytes, ap_mul64((int64_t)n, bytes));
        out->coll_sec[c] +=
            n * ap_cost_collective(&in->cost, AP_OP_COLLECTIVE_PERMUTE, r.axes, bytes);
    }
}

static void count_collectives(struct ap_arena *arena, const struct cost_input *in,
                              const struct ap_conversions *conv, struct priced *out)
{
    struct ap_coll_count *colls;
    out->n_colls = ap_conversion_collectives(arena, &in->cost.mesh, conv, &colls);
    out->colls = AP_NEW_N(arena, out->n_colls + AP_MAX_AXES, struct ap_coll_count);
    for (int c = 0; c < out->n_colls; c++)
        out->colls[c] = colls[c];
    out->coll_sec = AP_NEW_N(arena, out->n_colls + AP_MAX_AXES, double);
    for (int i = 0; i < conv->n; i++)
        for (int k = 0; k < conv->conv[i].path.n_steps; k++) {
            const struct ap_step *step = &conv->conv[i].path.steps[k];
            for (int c = 0; c < out->n_colls; c++)
                if (out->colls[c].op == step->op && out->colls[c].axes == step->coll.axes)
                    out->coll_sec[c] += step->sec;
        }
    add_rings(in, out);
    for (int c = 0; c < out->n_colls; c++)
        out->sent_bytes += ap_cost_collective(&in->byte_count, out->colls[c].op,
                                              out->colls[c].axes, out->colls[c].bytes);
}

int price_plan(struct ap_arena *arena, const struct cost_input *in,
               const struct ap_plan *plan, struct priced *out, struct ap_err *err)
{
    const char *name = out->name;

    *out = (struct priced){.name = name, .plan = *plan};
    struct ap_program *prog = &out->prog;
    if (ap_plan_check_choices(plan, &in->cost, err) ||
        ap_program_make(arena, plan, &(struct ap_program_form){.cost = &in->cost},
                        &out->conv, prog, err))
        return -1;
    out->price = ap_plan_price(plan, &in->cost, &out->conv);
    if (ap_cost_overlaps(&in->cost))
        ap_plan_overlap(arena, plan, &in->cost, &out->conv, NULL, false, &out->overlap);
    out->planned_sec = out->price.step_sec;
    out->peak_bytes = prog->peak_bytes;
    for (int i = 0; i < prog->local.n_params; i++) {
        int64_t bytes = ap_shape_bytes(&prog->local.nodes[prog->local.params[i]].shape);
        out->parameter_bytes += bytes;
        out->role_bytes[in->of.graph.nodes[in->of.graph.params[i]].role] += bytes;
    }
    count_phases(in, plan, &out->conv, out);
    count_collectives(arena, in, &out->conv, out);
    return 0;
}

void price_named_plans(struct ap_arena *arena, const struct cost_input *in,
                       struct priced *out)
{
    const struct ap_plan *own = &in->of.stages.stage[0].sharding.plan;

    for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
        struct ap_plan plan = {.graph = own->graph,
                               .nests = own->nests,
                               .mesh = in->cost.mesh,
                               .microbatch_choice = own->microbatch_choice,
                               .recompute_heavy = own->recompute_heavy};
        struct ap_err err = {0};
        out[row].name = ap_named_plans[row].name;
        if (ap_named_plan_make(arena, row, &plan, NULL, &err) ||
            price_plan(arena, in, &plan, &out[row], &err))
            out[row].why_not = ap_arena_strdup(arena, err.msg);
    }
}

/* ---- a plan with a schedule ---- */

struct price_spent price_spent_by(const struct cost_input *in,
                                  const struct ap_pipeline_price *p, int device)
{
    const struct ap_sim_device *d = &p->result.devices[device];
    double times = (double)in->of.stages.microbatches;
    struct price_spent s = {.send_sec = d->send_sec, .sync_sec = d->sync_sec};

    for (int i = 0; i < in->of.stages.n; i++) {
        const struct ap_stage_breakdown *part = &p->breakdown[i];
        if (ap_sim_device_of(&p->sim, i) != device)
            continue;
        double comm = part->forward_comm_sec;
        if (in->of.stages.schedule != AP_SCHEDULE_INFERENCE)
            comm += part->backward_comm_sec + part->recompute_comm_sec;
        s.comm_sec += times * comm + part->update_comm_sec;
        const double *host = p->point[i].host_wait_sec;
        s.host_wait_sec += times * (host[0] + host[1]) + host[2];
    }
    s.comm_sec -= d->paired_sec;
    s.compute_sec = d->compute_sec - s.comm_sec - s.host_wait_sec;
    s.wait_sec = fmax(0, p->result.step_sec - d->compute_sec - s.send_sec - s.sync_sec);
    return s;
}

struct price_spent price_spent_by_all(const struct cost_input *in,
                                      const struct ap_pipeline_price *p)
{
    struct price_spent sum = {0};
    for (int d = 0; d < p->result.n_devices; d++) {
        struct price_spent s = price_spent_by(in, p, d);
        double share = (double)in->of.stages.stage[d].n_devices / (double)p->n_devices;
        sum.compute_sec += share * s.compute_sec;
        sum.comm_sec += share * s.comm_sec;
        sum.send_sec += share * s.send_sec;
        sum.sync_sec += share * s.sync_sec;
        sum.wait_sec += share * s.wait_sec;
        sum.host_wait_sec += share * s.host_wait_sec;
    }
    return sum;
}

int price_stages(struct ap_arena *arena, const struct cost_input *in,
                 struct ap_pipeline_price *schedule, struct priced *out,
                 struct ap_err *err)
{
    const struct ap_staged_graph of = ap_planned_of(&in->of);
    int rc = ap_pipeline_price(arena, &of, &in->of.stages, schedule, err);

    if (rc)
        return rc;
    (void)ap_pipeline_measure(&of, &in->of.stages, 0, schedule);
    *out = (struct priced){.name = in->of.stages.algorithm,
                           .schedule = schedule,
                           .price.step_sec = schedule->result.step_sec,
                           .planned_sec = price_aim_of(&in->of.stages, schedule),
                           .peak_bytes = schedule->peak_bytes};
    return 0;
}

double price_aim_of(const struct ap_stages *s, const struct ap_pipeline_price *p)
{
    return s->throughput ? ap_sim_batch_sec(&p->sim) : p->result.step_sec;
}

double price_aim_sec(const struct cost_input *in, const struct priced *p)
{
    return p->schedule ? price_aim_of(&in->of.stages, p->schedule) : p->price.step_sec;
}

/* ---- memory ---- */

const struct ap_cluster *price_device(const struct cost_input *in, int stage)
{
    const int64_t *devices = in->of.stages.stage[stage].devices;

    return devices ? ap_cluster_of_device(&in->of.cluster, devices[0]) : &in->of.cluster;
}

int64_t price_limit(const struct cost_input *in, int stage)
{
    return in->of.stages.limit_bytes > 0 ? in->of.stages.limit_bytes
                                         : price_device(in, stage)->memory_bytes;
}

int price_fullest(const struct cost_input *in, const struct ap_pipeline_price *p,
                  int64_t *limit_bytes)
{
    int full = 0;
    int64_t least = INT64_MAX;

    for (int d = 0; d < p->result.n_devices; d++) {
        int64_t spare = price_limit(in, d) - p->result.devices[d].peak_bytes;
        if (spare < least) {
            full = d;
            least = spare;
        }
    }
    *limit_bytes = price_limit(in, full);
    return full;
}

struct price_held price_held_by(const struct ap_pipeline_price *p, int device)
{
    struct price_held h = {0};

    for (int i = 0; i < p->sim.n_stages; i++) {
        if (ap_sim_device_of(&p->sim, i) != device)
            continue;
        for (int r = 0; r < AP_N_ROLES; r++)
            h.role_bytes[r] += p->breakdown[i].role_bytes[r];
        h.fixed_bytes = ap_add64(h.fixed_bytes, p->stage[i].fixed_bytes);
        h.waiting_bytes += p->breakdown[i].waiting_bytes;
        h.update_sec += p->stage[i].update_sec;
    }
    return h;
}
