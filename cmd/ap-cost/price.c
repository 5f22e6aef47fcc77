/*
 * Problem: say what a plan costs: compute, each collective by kind and axes, memory.
 * Idea: conversions and group prices come from libcommon, as for ap-shard, so that the
 * sum here is ap-shard's objective; memory is that of the program's buffer plan.
 */
#include "price.h"

#include <math.h>
#include <stdio.h>

#include "plan/microbatch.h"
#include "cost/convert.h"

/* How often a group runs in a step. */
static double times(const struct cost_input *in, const struct ap_plan *plan, int group)
{
    return ap_runs_each(&in->nests.nest[group], &in->graph, &plan->mesh,
                        &plan->choice[group])
               ? (double)ap_mesh_microbatches(&plan->mesh)
               : 1;
}

static void count_phases(const struct cost_input *in, const struct ap_plan *plan,
                         const struct ap_conversions *conv, struct priced *out)
{
    for (int i = 0; i < in->nests.n; i++) {
        const struct ap_nest *nest = &in->nests.nest[i];
        double flops, bytes;
        enum ap_dtype dtype;
        out->phase_sec[in->graph.nodes[nest->members[0]].phase] +=
            ap_plan_group_sec(nest, &in->graph, &in->cost, &plan->choice[i]);
        ap_nest_work(nest, &in->graph, &plan->mesh, &plan->choice[i], &flops, &bytes,
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
    for (int i = 0; i < in->nests.n; i++) {
        const struct ap_rounds r = ap_plan_rounds(&in->nests.nest[i], &in->graph,
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

int64_t price_limit(const struct cost_input *in)
{
    return in->sharding.limit_bytes > 0 ? in->sharding.limit_bytes
                                        : in->cluster.memory_bytes;
}

int price_plan(struct ap_arena *arena, const struct cost_input *in,
               const struct ap_plan *plan, struct priced *out, struct ap_err *err)
{
    const char *name = out->name;

    *out = (struct priced){.name = name, .plan = *plan};
    struct ap_program *prog = &out->prog;
    if (ap_plan_check_choices(plan, &in->cost, err) ||
        ap_plan_conversions(arena, plan, &in->cost, &out->conv, err) ||
        ap_partition(arena, plan, &out->conv, prog, err))
        return -1;
    ap_plan_buffers(arena, prog);
    out->price = ap_plan_price(plan, &in->cost, &out->conv);
    if (ap_cost_overlaps(&in->cost))
        ap_plan_overlap(arena, plan, &in->cost, &out->conv, NULL, false, &out->overlap);
    out->peak_bytes = prog->peak_bytes;
    for (int i = 0; i < prog->local.n_params; i++) {
        int64_t bytes = ap_shape_bytes(&prog->local.nodes[prog->local.params[i]].shape);
        out->parameter_bytes += bytes;
        out->role_bytes[in->graph.nodes[in->graph.params[i]].role] += bytes;
    }
    count_phases(in, plan, &out->conv, out);
    count_collectives(arena, in, &out->conv, out);
    return 0;
}

static void axes_json(const struct ap_mesh *mesh, unsigned axes, struct ap_buf *out)
{
    const char *sep = "[";
    for (int a = 0; a < mesh->n_axes; a++)
        if (axes >> a & 1) {
            ap_buf_puts(out, sep);
            ap_json_str(out, mesh->name[a]);
            sep = ",";
        }
    ap_buf_putc(out, ']');
}

static void member(struct ap_buf *out, const char *key, double v)
{
    ap_buf_printf(out, ",\"%s\":", key);
    ap_json_num(out, v);
}

void price_to_json(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *p, struct ap_buf *out)
{
    double peak = ap_cluster_peak(&in->cluster, AP_F32) * p->price.step_sec;
    struct headline head;

    ap_buf_puts(out, "{\"cost_model\":");
    ap_json_str(out, ap_cost_variant_names[in->cost.variant]);
    member(out, "step_sec", p->price.step_sec);
    member(out, "serial_sec", p->price.serial_sec);
    member(out, "compute_sec", p->price.compute_sec);
    member(out, "comm_sec", p->price.comm_sec);
    if (ap_cost_overlaps(&in->cost)) {
        ap_buf_puts(out, ",\"overlap\":{\"exposed_sec\":");
        ap_json_num(out, p->overlap.exposed_sec);
        ap_put_int(out, "ahead_bytes", p->overlap.ahead_bytes);
        ap_buf_putc(out, '}');
    }
    for (int i = 0; i < AP_N_PHASES; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_sec", ap_phase_names[i]);
        member(out, key, p->phase_sec[i]);
    }
    member(out, "flops_per_device", p->flops);
    if (in->cost.variant == AP_COST_DEFAULT && peak > 0)
        member(out, "utilisation_f32", p->flops / peak);
    member(out, "sent_bytes_per_device", p->sent_bytes);
    if (p->plan.mesh.microbatch) {
        ap_buf_printf(out, ",\"microbatches\":{\"count\":%lld",
                      (long long)ap_mesh_microbatches(&p->plan.mesh));
        member(out, "compute_sec", p->price.each_compute_sec);
        member(out, "comm_sec", p->price.each_comm_sec);
        ap_buf_puts(out, "},\"once\":{\"compute_sec\":");
        ap_json_num(out, fmax(p->price.compute_sec - p->price.each_compute_sec, 0));
        member(out, "comm_sec", fmax(p->price.comm_sec - p->price.each_comm_sec, 0));
        ap_buf_putc(out, '}');
    }
    ap_buf_puts(out, ",\"collectives\":[");
    for (int c = 0; c < p->n_colls; c++) {
        ap_buf_printf(out, "%s{\"op\":\"%s\",\"axes\":", c ? "," : "",
                      ap_ops[p->colls[c].op].name);
        axes_json(&in->cost.mesh, p->colls[c].axes, out);
        ap_buf_printf(out, ",\"count\":%lld,\"bytes\":%lld", (long long)p->colls[c].count,
                      (long long)p->colls[c].bytes);
        member(out, "sec", p->coll_sec[c]);
        ap_buf_putc(out, '}');
    }
    ap_buf_printf(out,
                  "],\"memory\":{\"peak_bytes\":%lld,\"parameter_bytes\":%lld,"
                  "\"limit_bytes\":%lld}",
                  (long long)p->peak_bytes, (long long)p->parameter_bytes,
                  (long long)price_limit(in));
    headline_of_plan(arena, in, p, &head);
    headline_json(&head, out);
    headline_free(&head);
    ap_buf_putc(out, '}');
}
