/*
 * Problem: show a step on a timeline, in the JSON that Perfetto and chrome://tracing
 * read. Idea: all devices do the same, so one process stands for them: a track of
 * operators, a track of collectives, a counter of memory, and an arrow from each
 * conversion to the group that waits for it. Times are the ones that the price adds up,
 * one after the other in the program's order, or the times of the two streams that it
 * simulates; the counter shows the program's buffers. With a schedule, a process stands
 * for the devices of a stage: a track of their computation (a slice for each microbatch,
 * forward or backward, then the gradients' sum and the update), two tracks of their sends
 * forward and back, and an arrow from each send to the slice that waits for it. Cost:
 * linear in groups, conversions and users, or in the slices. Source: the trace event
 * format (Google, "Trace Event Format", 2016).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/microbatch.h"
#include "price.h"
#include "cost/convert.h"
#include "doc/trace.h"

#define PID     1
#define COMPUTE 1 /* tracks; each chunk of a scheduled device has two more */
#define COMM    2

struct trace {
    const struct cost_input *in;
    const struct priced *p;
    double *sec;                    /* [group]: that it runs on end */
    bool *arrived;                  /* [conversion]: its arrow has ended */
    const struct ap_stretch **last; /* [conversion]: before its first reader */
    int64_t *memory; /* [group]: bytes while it runs, and since the one before */
    struct ap_buf *out;
};

/* ---- memory ---- */

/* Bytes of values by groups of the source graph in their order: what runs for one counts
 * for the latest one that has begun. (arena) */
static int64_t *memory_of_groups(struct ap_arena *arena, const struct cost_input *in,
                                 const struct ap_program *prog, const int *order)
{
    const struct ap_graph *g = &prog->local;
    int64_t *live = ap_program_alive(arena, prog, false);
    int64_t *memory = AP_NEW_N(arena, in->of.nests.n, int64_t);
    int *turn = AP_NEW_N(arena, in->of.nests.n, int);
    int latest = 0;

    for (int i = 0; i < in->of.nests.n; i++)
        turn[order[i]] = i;
    for (int i = 0; i < g->n_nodes; i++) {
        int from = turn[in->of.graph.nodes[prog->source[i]].group];
        latest = from > latest ? from : latest;
        int64_t now = live[g->nodes[i].group];
        memory[latest] = now > memory[latest] ? now : memory[latest];
    }
    for (int i = 1; i < in->of.nests.n; i++)
        memory[i] = memory[i] ? memory[i] : memory[i - 1];
    return memory;
}

/* ---- events ---- */

static void put_conversion(struct trace *t, const struct ap_stretch *at)
{
    const struct ap_conversion *c = &t->p->conv.conv[at->id];
    const struct ap_mesh *mesh = &t->p->plan.mesh;
    const double share = at->sec / c->path.sec; /* of microbatches */
    double now = at->start_sec;

    for (int k = 0; k < c->path.n_steps; k++) {
        const struct ap_step *step = &c->path.steps[k];
        if (step->sec <= 0)
            continue;
        ap_trace_slice(t->out, PID, COMM, ap_ops[step->op].name, ap_phase_names[c->phase],
                       now, step->sec * share);
        now += step->sec * share;
        ap_buf_puts(t->out, ",\"args\":{\"tensor\":");
        ap_json_str(t->out, t->in->of.graph.nodes[c->node].name);
        ap_buf_puts(t->out, ",\"axes\":\"");
        for (int a = 0; a < mesh->n_axes; a++)
            if (step->coll.axes >> a & 1)
                ap_buf_puts(t->out, mesh->name[a]);
        ap_buf_puts(t->out, "\"");
        ap_put_int(t->out, "bytes", step->bytes);
        ap_buf_puts(t->out, "}}");
    }
    if (c->first_group < t->in->of.nests.n && t->sec[c->first_group] > 0 &&
        t->last[at->id] == at)
        ap_trace_flow(t->out, "conversion", at->id, true, PID, COMM, at->start_sec);
}

static void put_group(struct trace *t, const struct ap_stretch *at)
{
    const int group = at->id;
    const struct cost_input *in = t->in;
    const struct ap_nest *nest = &in->of.nests.nest[group];
    int node = nest->n_outs ? nest->outs[0] : nest->members[0];

    ap_trace_memory(t->out, PID, at->start_sec, t->memory[group]);
    for (int k = 0; k < nest->n_ins; k++) {
        int c = t->p->conv.in_conv[t->p->conv.in_start[group] + k];
        if (c < 0 || t->arrived[c] || t->p->conv.conv[c].path.sec <= 0 ||
            t->p->conv.conv[c].first_group != group)
            continue;
        t->arrived[c] = true;
        ap_trace_flow(t->out, "conversion", c, false, PID, COMPUTE, at->start_sec);
    }
    enum ap_phase phase = ap_plan_group_phase(&in->of.graph, nest);
    ap_trace_slice(t->out, PID, COMPUTE, in->of.graph.nodes[node].name,
                   ap_phase_names[phase], at->start_sec, at->sec);
    ap_buf_printf(t->out, ",\"args\":{\"group\":%d,\"operators\":%d", group,
                  nest->n_members);
    ap_put_str(t->out, "scope", in->of.graph.nodes[node].scope);
    ap_buf_puts(t->out, "}}");
}

/* What stands for many microbatches. */
static void put_microbatches(struct trace *t, const struct ap_stretch *at)
{
    char name[64];

    snprintf(name, sizeof name, "%d microbatches like the first", at->times);
    ap_trace_slice(t->out, PID, at->comm ? COMM : COMPUTE, name, "microbatches",
                   at->start_sec, at->sec);
    ap_buf_puts(t->out, ",\"args\":{}}");
}

/* ---- when what runs ---- */

static const struct ap_stretch *one_by_one(struct ap_arena *arena,
                                           const struct cost_input *in,
                                           const struct priced *p, const int *order,
                                           int *n)
{
    struct ap_stretch *list =
        AP_NEW_N(arena, in->of.nests.n + p->conv.n + 1, struct ap_stretch);
    double now = 0;
    int c = 0;

    *n = 0;
    for (int k = 0; k <= in->of.nests.n; k++) {
        const int g = k < in->of.nests.n ? order[k] : in->of.nests.n;
        for (; c < p->conv.n && p->conv.conv[c].first_group == g; c++) {
            if (p->conv.conv[c].path.sec <= 0)
                continue;
            list[(*n)++] = (struct ap_stretch){true, c, 1, now, p->conv.conv[c].path.sec};
            now += p->conv.conv[c].path.sec;
        }
        if (k == in->of.nests.n)
            break;
        double sec = ap_plan_group_sec(&in->of.nests.nest[g], &in->of.graph, &in->cost,
                                       &p->plan.choice[g]);
        if (sec > 0)
            list[(*n)++] = (struct ap_stretch){false, g, 1, now, sec};
        now += sec;
    }
    return list;
}

const struct ap_stretch *price_stretches(struct ap_arena *arena,
                                         const struct cost_input *in,
                                         const struct priced *p, int *n)
{
    struct ap_overlap overlap;

    if (!ap_cost_overlaps(&in->cost))
        return one_by_one(arena, in, p,
                          ap_plan_order(arena, &p->plan, ap_plan_when(arena, &p->plan)),
                          n);
    ap_plan_overlap(arena, &p->plan, &in->cost, &p->conv, NULL, true, &overlap);
    *n = overlap.n;
    return overlap.stretch;
}

int64_t *price_memory(struct ap_arena *arena, const struct cost_input *in,
                      const struct priced *p)
{
    const int *order = ap_plan_order(arena, &p->plan, ap_plan_when(arena, &p->plan));
    const int64_t *at = memory_of_groups(arena, in, &p->prog, order);
    int64_t *memory = AP_NEW_N(arena, in->of.nests.n + 1, int64_t), most = 0;

    for (int i = 0; i < in->of.nests.n; i++) {
        const struct ap_nest *nest = &in->of.nests.nest[order[i]];
        most = at[i] > most ? at[i] : most;
        memory[order[i]] = most;
        if (!ap_plan_group_is_free(&in->of.graph, nest))
            most = 0;
    }
    return memory;
}

static void put_one_by_one(struct ap_arena *arena, const struct cost_input *in,
                           const struct priced *p, struct ap_buf *out)
{
    int n;
    const struct ap_stretch *list = price_stretches(arena, in, p, &n);
    struct trace t = {.in = in,
                      .p = p,
                      .sec = AP_NEW_N(arena, in->of.nests.n + 1, double),
                      .arrived = AP_NEW_N(arena, p->conv.n + 1, bool),
                      .last = AP_NEW_N(arena, p->conv.n + 1, const struct ap_stretch *),
                      .memory = price_memory(arena, in, p),
                      .out = out};
    const char *who =
        ap_arena_printf(arena, "each of %lld x %s",
                        (long long)ap_mesh_devices(&p->plan.mesh), in->of.cluster.device);
    double end = 0;

    ap_trace_name(out, PID, 0, "process_name", who);
    ap_trace_name(out, PID, COMPUTE, "thread_name", "operators");
    ap_trace_name(out, PID, COMM, "thread_name", "collectives");
    for (int i = 0; i < n; i++)
        if (!list[i].comm && list[i].id >= 0)
            t.sec[list[i].id] = list[i].sec;
        else if (list[i].id >= 0 && t.sec[p->conv.conv[list[i].id].first_group] == 0)
            t.last[list[i].id] = &list[i];
    for (int i = 0; i < n; i++) {
        if (list[i].id < 0)
            put_microbatches(&t, &list[i]);
        else if (list[i].comm)
            put_conversion(&t, &list[i]);
        else
            put_group(&t, &list[i]);
        end = fmax(end, list[i].start_sec + list[i].sec);
    }
    ap_trace_memory(out, PID, end, p->parameter_bytes);
}

/* ---- a schedule ---- */

struct schedule_trace {
    const struct cost_input *in;
    const struct ap_pipeline_price *p;
    struct ap_buf *out;
    int *slice_of[AP_N_PASSES]; /* by pass: [stage * microbatches + microbatch] */
};

static int send_track(const struct schedule_trace *t, int stage, bool back)
{
    return COMPUTE + 1 + 2 * (stage / t->p->result.n_devices) + back;
}

static int cell(const struct schedule_trace *t, int stage, int microbatch)
{
    return stage * t->p->sim.microbatches + microbatch;
}

/* What a slice sends, and the arrow to the slice that takes it. */
static void put_send(const struct schedule_trace *t, const struct ap_sim_slice *s,
                     int pid)
{
    const struct ap_sim *sim = &t->p->sim;
    const struct ap_sim_stage *st = &sim->stages[s->instr.stage];
    const bool back = s->instr.pass == AP_PASS_BACKWARD;
    const int to = s->instr.stage + (back ? -1 : 1);
    double sec = back ? st->send_backward_sec : st->send_forward_sec;
    int64_t bytes = back ? st->send_backward_bytes : st->send_forward_bytes;

    if (to < 0 || to >= sim->n_stages || sec <= 0 || s->instr.pass == AP_PASS_WEIGHTS)
        return;
    const int device = ap_sim_device_of(sim, to);
    int at = cell(t, to, s->instr.microbatch), id = 2 * at + back;
    const struct ap_sim_slice *reader =
        &t->p->result.devices[device].slices[t->slice_of[back][at]];
    double start = s->arrive_sec - sec;
    int track = send_track(t, s->instr.stage, back);
    ap_trace_slice(t->out, pid, track, "send", "send", start, s->arrive_sec - start);
    ap_buf_printf(t->out, ",\"args\":{\"microbatch\":%d,\"to\":%d,\"bytes\":%lld}}",
                  s->instr.microbatch, to, (long long)bytes);
    ap_trace_flow(t->out, "send", id, true, pid, track, start);
    ap_trace_flow(t->out, "send", id, false, device + 1, COMPUTE, reader->start_sec);
}

static void put_device(const struct schedule_trace *t, struct ap_arena *arena, int device)
{
    const struct ap_sim_device *d = &t->p->result.devices[device];
    int pid = device + 1;
    const struct price_held h = price_held_by(t->p, device);
    double end = 0;

    ap_trace_name(t->out, pid, 0, "process_name",
                  ap_arena_printf(arena, "stage %d: each of %lld x %s", device,
                                  (long long)t->in->of.stages.stage[device].n_devices,
                                  t->in->of.cluster.device));
    ap_trace_name(t->out, pid, COMPUTE, "thread_name", "microbatches");
    for (int i = 0; i < t->p->sim.n_stages; i++) {
        if (ap_sim_device_of(&t->p->sim, i) != device)
            continue;
        ap_trace_name(t->out, pid, send_track(t, i, false), "thread_name",
                      ap_arena_printf(arena, "sends of stage %d on", i));
        ap_trace_name(t->out, pid, send_track(t, i, true), "thread_name",
                      ap_arena_printf(arena, "sends of stage %d back", i));
    }
    ap_trace_memory(t->out, pid, 0, h.fixed_bytes);
    for (int i = 0; i < d->n_slices; i++) {
        const struct ap_sim_slice *s = &d->slices[i];
        const char *pass = ap_pass_names[s->instr.pass];
        ap_trace_slice(t->out, pid, COMPUTE,
                       ap_arena_printf(arena, "%s %d", pass, s->instr.microbatch), pass,
                       s->start_sec, s->end_sec - s->start_sec);
        ap_buf_printf(t->out, ",\"args\":{\"stage\":%d,\"microbatch\":%d}}",
                      s->instr.stage, s->instr.microbatch);
        ap_trace_memory(t->out, pid, s->start_sec, s->bytes);
        ap_trace_memory(t->out, pid, s->end_sec, s->after_bytes);
        put_send(t, s, pid);
        end = s->end_sec;
    }
    const double update = h.update_sec;
    if (d->end_sec - update > end) {
        ap_trace_slice(t->out, pid, COMPUTE, "sum of gradients", "sync", end,
                       d->end_sec - update - end);
        ap_buf_putc(t->out, '}');
    }
    if (update > 0) {
        ap_trace_slice(t->out, pid, COMPUTE, "update", "update",
                       fmax(end, d->end_sec - update),
                       d->end_sec - fmax(end, d->end_sec - update));
        ap_buf_putc(t->out, '}');
    }
}

static void put_schedule(struct ap_arena *arena, const struct cost_input *in,
                         const struct ap_pipeline_price *p, struct ap_buf *out)
{
    struct schedule_trace t = {.in = in, .p = p, .out = out};
    size_t cells = (size_t)p->sim.n_stages * (size_t)p->sim.microbatches;

    for (int pass = 0; pass < AP_N_PASSES; pass++)
        t.slice_of[pass] = AP_NEW_N(arena, cells, int);
    for (int d = 0; d < p->result.n_devices; d++)
        for (int i = 0; i < p->result.devices[d].n_slices; i++) {
            const struct ap_instr *instr = &p->result.devices[d].slices[i].instr;
            t.slice_of[instr->pass][cell(&t, instr->stage, instr->microbatch)] = i;
        }
    for (int d = 0; d < p->result.n_devices; d++)
        put_device(&t, arena, d);
}

void price_trace(struct ap_arena *arena, const struct cost_input *in,
                 const struct priced *p, struct ap_buf *out)
{
    ap_trace_head(out);
    if (p->schedule)
        put_schedule(arena, in, p->schedule, out);
    else
        put_one_by_one(arena, in, p, out);
    ap_buf_puts(out, AP_TRACE_END);
}
