/*
 * Problem: show a pipelined step on a timeline, in the JSON that Perfetto and
 * chrome://tracing read.
 * Idea: the devices of a stage act identically, so one process stands for them; a track
 * of what they compute (a slice for each microbatch, forward or backward, then the
 * gradients' sum and the update), two tracks of what they send on and back, a counter of
 * memory, and an arrow from each send to the slice that waits for it. Cost: linear in the
 * slices. Source: the trace event format (Google, "Trace Event Format", 2016).
 */
#include <math.h>

#include "pipe.h"

#include "doc/trace.h"

#define COMPUTE 1 /* tracks; each chunk of a device has two more */

struct pipe_tracer {
    const struct pipe_input *in;
    const struct ap_pipeline_price *p;
    struct ap_buf *out;
    int *slice_of[2]; /* by backward: [stage * microbatches + microbatch] */
};

static int send_track(const struct pipe_tracer *t, int stage, bool back)
{
    return COMPUTE + 1 + 2 * (stage / t->p->result.n_devices) + back;
}

static int cell(const struct pipe_tracer *t, int stage, int microbatch)
{
    return stage * t->p->sim.microbatches + microbatch;
}

/* What a slice sends, and the arrow to the slice that takes it. */
static void put_send(const struct pipe_tracer *t, const struct ap_sim_slice *s, int pid)
{
    const struct ap_sim *sim = &t->p->sim;
    const struct ap_sim_stage *st = &sim->stages[s->instr.stage];
    bool back = s->instr.backward;
    int to = s->instr.stage + (back ? -1 : 1), device = to % t->p->result.n_devices;
    double sec = back ? st->send_backward_sec : st->send_forward_sec;
    int64_t bytes = back ? st->send_backward_bytes : st->send_forward_bytes;

    if (to < 0 || to >= sim->n_stages || sec <= 0)
        return;
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

static void put_device(const struct pipe_tracer *t, struct ap_arena *arena, int device)
{
    const struct ap_sim_device *d = &t->p->result.devices[device];
    int pid = device + 1;
    double end = 0;
    int64_t held = 0;

    ap_trace_name(t->out, pid, 0, "process_name",
                  ap_arena_printf(arena, "stage %d: each of %lld x %s", device,
                                  (long long)t->in->stages.stage[device].n_devices,
                                  t->in->cluster.device));
    ap_trace_name(t->out, pid, COMPUTE, "thread_name", "microbatches");
    for (int i = device; i < t->p->sim.n_stages; i += t->p->result.n_devices) {
        ap_trace_name(t->out, pid, send_track(t, i, false), "thread_name",
                      ap_arena_printf(arena, "sends of stage %d on", i));
        ap_trace_name(t->out, pid, send_track(t, i, true), "thread_name",
                      ap_arena_printf(arena, "sends of stage %d back", i));
        held = ap_add64(held, t->p->stage[i].fixed_bytes);
    }
    ap_trace_memory(t->out, pid, 0, held);
    for (int i = 0; i < d->n_slices; i++) {
        const struct ap_sim_slice *s = &d->slices[i];
        bool back = s->instr.backward;
        ap_trace_slice(t->out, pid, COMPUTE,
                       ap_arena_printf(arena, "%s %d", back ? "backward" : "forward",
                                       s->instr.microbatch),
                       back ? "backward" : "forward", s->start_sec,
                       s->end_sec - s->start_sec);
        ap_buf_printf(t->out, ",\"args\":{\"stage\":%d,\"microbatch\":%d}}",
                      s->instr.stage, s->instr.microbatch);
        ap_trace_memory(t->out, pid, s->start_sec, s->bytes);
        ap_trace_memory(t->out, pid, s->end_sec, s->after_bytes);
        put_send(t, s, pid);
        end = s->end_sec;
    }
    double update = 0;
    for (int i = device; i < t->p->sim.n_stages; i += t->p->result.n_devices)
        update += t->p->stage[i].update_sec;
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

void pipe_trace(struct ap_arena *arena, const struct pipe_input *in,
                const struct ap_pipeline_price *p, struct ap_buf *out)
{
    struct pipe_tracer t = {.in = in, .p = p, .out = out};
    size_t cells = (size_t)p->sim.n_stages * (size_t)p->sim.microbatches;

    for (int back = 0; back < 2; back++)
        t.slice_of[back] = AP_NEW_N(arena, cells, int);
    for (int d = 0; d < p->result.n_devices; d++)
        for (int i = 0; i < p->result.devices[d].n_slices; i++) {
            const struct ap_instr *instr = &p->result.devices[d].slices[i].instr;
            t.slice_of[instr->backward][cell(&t, instr->stage, instr->microbatch)] = i;
        }
    ap_trace_head(out);
    for (int d = 0; d < p->result.n_devices; d++)
        put_device(&t, arena, d);
    ap_buf_puts(out, AP_TRACE_END);
}
