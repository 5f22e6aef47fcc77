/*
 * Problem: the price of a plan as the section "cost". Idea: every plan has the same head
 * and words; between them are members for one mesh, or for the schedule's stages and
 * devices. Memory over time is cut into windows of equal length, each with the most that
 * it holds, so that peaks stay.
 */
#include <math.h>
#include <stdio.h>

#include "price.h"

#define WINDOWS 32

void price_put_num(struct ap_buf *out, const char *key, double v)
{
    ap_put_key(out, key);
    ap_json_num(out, v);
}

/* ---- one stage, without a schedule ---- */

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

static void put_one_by_one(const struct cost_input *in, const struct priced *p,
                           struct ap_buf *out)
{
    double peak = ap_cluster_peak(&in->of.cluster, AP_F32) * p->price.step_sec;

    price_put_num(out, "step_sec", p->price.step_sec);
    price_put_num(out, "serial_sec", p->price.serial_sec);
    price_put_num(out, "compute_sec", p->price.compute_sec);
    price_put_num(out, "comm_sec", p->price.comm_sec);
    if (ap_cost_overlaps(&in->cost)) {
        ap_buf_puts(out, ",\"overlap\":{\"exposed_sec\":");
        ap_json_num(out, p->overlap.exposed_sec);
        ap_put_int(out, "ahead_bytes", p->overlap.ahead_bytes);
        ap_buf_putc(out, '}');
    }
    for (int i = 0; i < AP_N_PHASES; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_sec", ap_phase_names[i]);
        price_put_num(out, key, p->phase_sec[i]);
    }
    price_put_num(out, "flops_per_device", p->flops);
    if (in->cost.variant == AP_COST_DEFAULT && peak > 0)
        price_put_num(out, "utilisation_f32", p->flops / peak);
    price_put_num(out, "sent_bytes_per_device", p->sent_bytes);
    if (p->plan.mesh.microbatch) {
        ap_buf_printf(out, ",\"microbatches\":{\"count\":%lld",
                      (long long)ap_mesh_microbatches(&p->plan.mesh));
        price_put_num(out, "compute_sec", p->price.each_compute_sec);
        price_put_num(out, "comm_sec", p->price.each_comm_sec);
        ap_buf_puts(out, "},\"once\":{\"compute_sec\":");
        ap_json_num(out, fmax(p->price.compute_sec - p->price.each_compute_sec, 0));
        price_put_num(out, "comm_sec",
                      fmax(p->price.comm_sec - p->price.each_comm_sec, 0));
        ap_buf_putc(out, '}');
    }
    ap_buf_puts(out, ",\"collectives\":[");
    for (int c = 0; c < p->n_colls; c++) {
        ap_buf_printf(out, "%s{\"op\":\"%s\",\"axes\":", c ? "," : "",
                      ap_ops[p->colls[c].op].name);
        axes_json(&in->cost.mesh, p->colls[c].axes, out);
        ap_buf_printf(out, ",\"count\":%lld,\"bytes\":%lld", (long long)p->colls[c].count,
                      (long long)p->colls[c].bytes);
        price_put_num(out, "sec", p->coll_sec[c]);
        ap_buf_putc(out, '}');
    }
    ap_buf_printf(out,
                  "],\"memory\":{\"peak_bytes\":%lld,\"parameter_bytes\":%lld,"
                  "\"limit_bytes\":%lld}",
                  (long long)p->peak_bytes, (long long)p->parameter_bytes,
                  (long long)price_limit(in, 0));
}

/* ---- a schedule ---- */

static void put_spent(struct ap_buf *out, const struct price_spent *s)
{
    price_put_num(out, "compute_sec", s->compute_sec);
    price_put_num(out, "comm_sec", s->comm_sec);
    price_put_num(out, "send_sec", s->send_sec);
    price_put_num(out, "sync_sec", s->sync_sec);
    price_put_num(out, "wait_sec", s->wait_sec);
    if (s->host_wait_sec > 0)
        price_put_num(out, "host_wait_sec", s->host_wait_sec);
}

static void put_stage(const struct cost_input *in, const struct ap_pipeline_price *p,
                      int i, struct ap_buf *out)
{
    const struct ap_sim_stage *s = &p->stage[i];
    const struct ap_stage_breakdown *part = &p->breakdown[i];

    ap_buf_puts(out, "{\"blocks\":[");
    for (int k = 0; k < in->of.stages.stage[i].n_blocks; k++)
        ap_buf_printf(out, "%s%d", k ? "," : "", in->of.stages.stage[i].blocks[k]);
    ap_buf_puts(out, "]");
    if (in->of.cluster.n_kinds > 0)
        ap_put_str(out, "device", price_device(in, i)->device);
    price_put_num(out, "forward_sec", s->forward_sec);
    price_put_num(out, "backward_sec", s->backward_sec);
    if (ap_schedule_traits[p->sim.schedule].splits)
        price_put_num(out, "weights_sec", s->weights_sec);
    price_put_num(out, "recompute_sec", s->recompute_sec);
    price_put_num(out, "sync_sec", s->sync_sec);
    price_put_num(out, "update_sec", s->update_sec);
    price_put_num(out, "forward_comm_sec", fmax(0, part->forward_comm_sec));
    price_put_num(out, "backward_comm_sec", fmax(0, part->backward_comm_sec));
    price_put_num(out, "recompute_comm_sec", fmax(0, part->recompute_comm_sec));
    price_put_num(out, "send_forward_sec", s->send_forward_sec);
    price_put_num(out, "send_backward_sec", s->send_backward_sec);
    ap_put_int(out, "send_forward_bytes", s->send_forward_bytes);
    ap_put_int(out, "send_backward_bytes", s->send_backward_bytes);
    price_put_num(out, "flops", part->flops);
    ap_put_int(out, "stage_bytes", ap_add64(s->fixed_bytes, s->work_bytes));
    ap_put_int(out, "work_bytes", s->work_bytes);
    ap_put_int(out, "microbatch_bytes", s->flight_bytes);
    if (ap_schedule_traits[p->sim.schedule].splits)
        ap_put_int(out, "pending_bytes", s->pending_bytes);
    ap_put_int(out, "recomputed_bytes", s->recomputed_bytes);
    ap_buf_putc(out, '}');
}

/* [[seconds, most bytes from there to the next], ...] */
static void put_over_time(const struct ap_pipeline_price *p, int device,
                          struct ap_buf *out)
{
    const struct ap_sim_device *d = &p->result.devices[device];
    int64_t most[WINDOWS] = {0}, held = d->n_slices ? 0 : d->peak_bytes;
    double window = p->result.step_sec / WINDOWS;
    int at = 0;

    held = ap_add64(held, price_held_by(p, device).fixed_bytes) + d->peak_bytes -
           d->summed_bytes;
    held = held > 0 ? held : 0;
    for (int w = 0; w < WINDOWS; w++) {
        most[w] = held;
        for (; at < d->n_slices && d->slices[at].start_sec < (w + 1) * window; at++) {
            most[w] = d->slices[at].bytes > most[w] ? d->slices[at].bytes : most[w];
            held = d->slices[at].after_bytes;
        }
        if (at > 0 && d->slices[at - 1].end_sec > w * window &&
            d->slices[at - 1].bytes > most[w])
            most[w] = d->slices[at - 1].bytes;
    }
    ap_put_key(out, "over_time");
    ap_buf_putc(out, '[');
    for (int w = 0; w < WINDOWS; w++) {
        if (w > 0 && most[w] == most[w - 1])
            continue;
        ap_buf_puts(out, w ? ",[" : "[");
        ap_json_num(out, w * window);
        ap_buf_printf(out, ",%lld]", (long long)most[w]);
    }
    ap_buf_putc(out, ']');
}

static void put_device(const struct cost_input *in, const struct ap_pipeline_price *p,
                       int device, struct ap_buf *out)
{
    const struct ap_sim_device *d = &p->result.devices[device];
    struct price_spent spent = price_spent_by(in, p, device);
    const struct price_held h = price_held_by(p, device);
    const char *sep = "";

    ap_buf_puts(out, "{\"stages\":[");
    for (int i = 0; i < p->sim.n_stages; i++) {
        if (ap_sim_device_of(&p->sim, i) != device)
            continue;
        ap_buf_printf(out, "%s%d", sep, i);
        sep = ",";
    }
    ap_buf_putc(out, ']');
    ap_put_int(out, "n_devices", in->of.stages.stage[device].n_devices);
    put_spent(out, &spent);
    price_put_num(out, "end_sec", d->end_sec);
    ap_put_int(out, "peak_in_flight", d->peak_in_flight);
    ap_buf_puts(out, ",\"memory\":{\"peak_bytes\":");
    ap_buf_int(out, d->peak_bytes);
    ap_put_int(out, "summed_bytes", d->summed_bytes);
    ap_put_int(out, "weight_bytes", h.role_bytes[AP_ROLE_WEIGHT]);
    ap_put_int(out, "state_bytes", h.role_bytes[AP_ROLE_STATE]);
    ap_put_int(out, "limit_bytes", price_limit(in, device));
    put_over_time(p, device, out);
    ap_buf_puts(out, "}}");
}

static void put_schedule(const struct cost_input *in, const struct ap_pipeline_price *p,
                         struct ap_buf *out)
{
    struct price_spent spent = price_spent_by_all(in, p);
    double step = p->result.step_sec;

    price_put_num(out, "step_sec", step);
    if (in->of.stages.schedule == AP_SCHEDULE_INFERENCE)
        price_put_num(out, "batch_sec", ap_sim_batch_sec(&p->sim));
    put_spent(out, &spent);
    price_put_num(out, "bubble", p->result.bubble);
    price_put_num(out, "flops", p->flops);
    price_put_num(out, "flops_per_sec", step > 0 ? p->flops / step : 0);
    price_put_num(out, "mfu", p->mfu);
    ap_put_int(out, "n_devices", p->n_devices);
    ap_put_str(out, "schedule", ap_schedule_names[in->of.stages.schedule]);
    ap_put_int(out, "microbatches", in->of.stages.microbatches);
    price_put_num(out, "norm_sec", p->sim.norm_sec);
    ap_put_int(out, "tied_bytes", p->tied_bytes);
    ap_put_int(out, "peak_bytes", p->peak_bytes);
    ap_put_key(out, "levels");
    for (int l = 0; l < in->of.cluster.n_levels; l++) {
        ap_buf_puts(out, l ? ",{\"name\":" : "[{\"name\":");
        ap_json_str(out, in->of.cluster.levels[l].name);
        price_put_num(out, "bytes", p->level_bytes[l]);
        ap_buf_putc(out, '}');
    }
    ap_buf_puts(out, "],\"links\":[");
    for (int i = 0; i < p->n_links; i++) {
        const struct ap_device_link *link = &p->links[i];
        ap_buf_printf(out, "%s[%lld,%lld,%lld", i ? "," : "", (long long)link->from,
                      (long long)link->to, (long long)link->bytes);
        if (link->n > 1)
            ap_buf_printf(out, ",%lld", (long long)link->n);
        ap_buf_putc(out, ']');
    }
    ap_buf_puts(out, "],\"stages\":[");
    for (int i = 0; i < in->of.stages.n; i++) {
        ap_buf_puts(out, i ? "," : "");
        put_stage(in, p, i, out);
    }
    ap_buf_puts(out, "],\"devices\":[");
    for (int d = 0; d < p->result.n_devices; d++) {
        ap_buf_puts(out, d ? "," : "");
        put_device(in, p, d, out);
    }
    ap_buf_putc(out, ']');
}

void price_to_json(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *p, struct ap_buf *out)
{
    struct headline head;

    ap_buf_puts(out, "{\"cost_model\":");
    ap_json_str(out, ap_cost_variant_names[in->cost.variant]);
    if (p->schedule)
        put_schedule(in, p->schedule, out);
    else
        put_one_by_one(in, p, out);
    headline_of_plan(arena, in, p, &head);
    headline_json(&head, out);
    headline_free(&head);
    ap_buf_putc(out, '}');
}
