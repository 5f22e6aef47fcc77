/*
 * Problem: the time of a pipelined step, and the memory of each device during it, for
 * stages that differ. Idea: a schedule fixes the order of each device's instructions, and
 * every link has one sender, so that the first moment at which an instruction can run
 * depends only on the one before it on its device and on its input's arrival. Devices are
 * run in turn, each until it lacks an input; a device that makes an input wakes the one
 * that lacks it. Cost: linear in the instructions, each is looked at once when it runs
 * and at most once when it waits. schedule_order.c makes the orders.
 */
#include "pipeline/schedule.h"

#include <math.h>

/* ---- simulation ---- */

double ap_hidden_sec(double sent, double computed, double share)
{
    return fmax(0, fmin(sent, computed)) * fmax(0, 2 - 1 / (1 - share));
}

struct run {
    const struct ap_sim *sim;
    struct ap_sim_result *out;
    double *arrived[AP_N_PASSES]; /* per pass, stage and microbatch: when its input is
                                     there; NAN until it is */
    double *link[2];    /* per backward and stage: when its outgoing link is free */
    const int *device;  /* per stage */
    double *free_at;    /* per device */
    int *next;          /* per device: instruction to run */
    int *flight;        /* per device: microbatches held */
    int64_t *held;      /* per device: bytes between instructions */
    double *last_start; /* per stage: of its last pass */
    int *todo, n_todo;  /* devices that may be able to run */
    bool *listed;       /* per device: in todo */
};

static double *arrival(const struct run *r, enum ap_pass pass, int stage, int microbatch)
{
    return &r->arrived[pass]
                      [(size_t)stage * (size_t)r->sim->microbatches + (size_t)microbatch];
}

static void wake(struct run *r, int device)
{
    if (r->listed[device])
        return;
    r->listed[device] = true;
    r->todo[r->n_todo++] = device;
}

/* Whether a pass goes back through the stages. */
static bool is_back(const struct ap_instr *i)
{
    return i->pass == AP_PASS_BACKWARD;
}

/* Stage that the result of a pass goes to; -1 for none. */
static int next_stage(const struct run *r, const struct ap_instr *i)
{
    const int to = i->stage + (is_back(i) ? -1 : 1);

    return i->pass == AP_PASS_WEIGHTS || to >= r->sim->n_stages ? -1 : to;
}

static double send_sec(const struct run *r, const struct ap_instr *i)
{
    const struct ap_sim_stage *st = &r->sim->stages[i->stage];

    return is_back(i) ? st->send_backward_sec : st->send_forward_sec;
}

static void count_sent(struct run *r, const struct ap_instr *i)
{
    const struct ap_sim_stage *st = &r->sim->stages[i->stage];
    int64_t *sum =
        &r->out
             ->level_bytes[is_back(i) ? st->send_backward_level : st->send_forward_level];

    *sum = ap_add64(*sum, is_back(i) ? st->send_backward_bytes : st->send_forward_bytes);
}

/* Sends the result of a slice to the stage that needs it and wakes its device. */
static void send(struct run *r, struct ap_sim_slice *s)
{
    const struct ap_sim *sim = r->sim;
    const struct ap_instr *i = &s->instr;
    const int to = next_stage(r, i), last = sim->n_stages - 1;

    s->arrive_sec = s->end_sec;
    if (i->pass == AP_PASS_FORWARD && i->stage == last &&
        sim->schedule != AP_SCHEDULE_INFERENCE)
        *arrival(r, AP_PASS_BACKWARD, last, i->microbatch) = s->end_sec;
    if (is_back(i))
        *arrival(r, AP_PASS_WEIGHTS, i->stage, i->microbatch) = s->end_sec;
    if (to < 0)
        return;
    double *link = &r->link[is_back(i)][i->stage];
    *link = fmax(*link, s->end_sec) + send_sec(r, i);
    s->arrive_sec = *link;
    count_sent(r, i);
    *arrival(r, i->pass, to, i->microbatch) = s->arrive_sec;
    wake(r, r->device[to]);
}

static void account_memory(struct run *r, int device, struct ap_sim_slice *s)
{
    const struct ap_sim_stage *st = &r->sim->stages[s->instr.stage];
    const enum ap_pass pass = s->instr.pass;
    const bool splits = ap_schedule_traits[r->sim->schedule].splits;
    struct ap_sim_device *d = &r->out->devices[device];
    const bool is_last = pass == AP_PASS_WEIGHTS ||
                         (pass == AP_PASS_BACKWARD && !splits) ||
                         r->sim->schedule == AP_SCHEDULE_INFERENCE;

    if (pass == AP_PASS_FORWARD) {
        r->held[device] = ap_add64(r->held[device], st->flight_bytes);
        r->flight[device]++;
    } else if (pass == AP_PASS_BACKWARD && splits) {
        r->held[device] = ap_add64(r->held[device], st->pending_bytes);
    }
    s->bytes = ap_add64(r->held[device], st->work_bytes);
    if (pass == AP_PASS_BACKWARD)
        s->bytes = ap_add64(s->bytes, st->recomputed_bytes);
    d->peak_bytes = s->bytes > d->peak_bytes ? s->bytes : d->peak_bytes;
    d->summed_bytes = d->peak_bytes;
    d->peak_in_flight =
        r->flight[device] > d->peak_in_flight ? r->flight[device] : d->peak_in_flight;
    if (is_last) {
        r->held[device] -= st->flight_bytes + (splits ? st->pending_bytes : 0);
        r->flight[device]--;
    }
    s->after_bytes = r->held[device];
}

double ap_sim_pass_sec(const struct ap_sim *sim, const struct ap_instr *i)
{
    const struct ap_sim_stage *st = &sim->stages[i->stage];
    const double later = ap_schedule_traits[sim->schedule].splits ? st->weights_sec : 0;

    return i->pass == AP_PASS_FORWARD    ? st->forward_sec
           : i->pass == AP_PASS_BACKWARD ? st->recompute_sec + st->backward_sec - later
                                         : later;
}

/* Seconds that a backward takes less beside the forward before it. */
static double paired_sec(const struct run *r, int device, const struct ap_sim_slice *s)
{
    const struct ap_sim_slice *before = s - 1;

    if (!r->sim->pairs || s == r->out->devices[device].slices || !is_back(&s->instr) ||
        before->instr.pass != AP_PASS_FORWARD ||
        before->instr.microbatch == s->instr.microbatch)
        return 0;
    const struct ap_sim_stage *f = &r->sim->stages[before->instr.stage];
    const struct ap_sim_stage *b = &r->sim->stages[s->instr.stage];
    return ap_hidden_sec(f->exchange_sec[0],
                         ap_sim_pass_sec(r->sim, &s->instr) - b->recompute_sec -
                             b->exchange_sec[1],
                         f->exchange_share) +
           ap_hidden_sec(b->exchange_sec[1], f->forward_sec - f->exchange_sec[0],
                         b->exchange_share);
}

/* Runs a pass whose input is there at `input`. */
static void run_pass(struct run *r, int device, struct ap_sim_slice *s, double input)
{
    const double paired = paired_sec(r, device, s);
    const double sec = ap_sim_pass_sec(r->sim, &s->instr) - paired;

    r->out->devices[device].paired_sec += paired;
    s->start_sec = fmax(input, r->free_at[device]);
    s->end_sec = s->arrive_sec = s->start_sec + sec;
    r->free_at[device] = s->end_sec;
    r->out->devices[device].compute_sec += sec;
    if (s->instr.pass != AP_PASS_FORWARD)
        r->last_start[s->instr.stage] = s->start_sec;
    account_memory(r, device, s);
}

/* Runs a device until it lacks an input or is done. */
static void run_device(struct run *r, int device)
{
    struct ap_sim_device *d = &r->out->devices[device];

    for (; r->next[device] < d->n_slices; r->next[device]++) {
        struct ap_sim_slice *s = &d->slices[r->next[device]];
        const double input =
            *arrival(r, s->instr.pass, s->instr.stage, s->instr.microbatch);
        if (isnan(input))
            return;
        run_pass(r, device, s, input);
        send(r, s);
    }
}

/* ---- simulation of sends that wait ---- */

/* What a device does next: a pass, or its message: in, or out. */
struct act {
    enum { RUNS, RECEIVES, SENDS } kind;
    struct ap_sim_slice *slice;
};

struct acts {
    struct act *list;
    int n;
};

static void add_act(struct acts *a, int kind, struct ap_sim_slice *slice)
{
    a->list[a->n++] = (struct act){kind, slice};
}

/*
 * The acts of a device. Where a pass of the other direction follows, its result is sent
 * beside what that one receives: activations before gradients, by both of two neighbours
 * (nanotron's order, pipeline_parallel/state.py).
 */
static struct acts list_acts(struct ap_arena *arena, const struct run *r,
                             const struct ap_sim_device *d)
{
    struct acts a = {.list = AP_NEW_N(arena, 3 * d->n_slices, struct act)};
    struct ap_sim_slice *left = NULL; /* whose result is still to be sent */

    for (int k = 0; k < d->n_slices; k++) {
        struct ap_sim_slice *s = &d->slices[k];
        const struct ap_instr *i = &s->instr;
        if (left && is_back(i)) {
            add_act(&a, SENDS, left);
            left = NULL;
        }
        if (i->stage != (is_back(i) ? r->sim->n_stages - 1 : 0))
            add_act(&a, RECEIVES, s);
        if (left)
            add_act(&a, SENDS, left);
        left = NULL;
        add_act(&a, RUNS, s);
        if (next_stage(r, i) < 0)
            continue;
        if (k + 1 < d->n_slices && d->slices[k + 1].instr.pass != i->pass)
            left = s;
        else
            add_act(&a, SENDS, s);
    }
    return a;
}

/* The neighbour's next act, if that is the other side of the message; else NULL. */
static const struct act *other_side(const struct run *r, const struct acts *acts,
                                    const struct act *act, int *neighbour)
{
    const struct ap_instr *i = &act->slice->instr;
    const int sender = is_back(i) ? i->stage + 1 : i->stage - 1;

    *neighbour = act->kind == SENDS ? next_stage(r, i) : sender;
    const struct acts *of = &acts[*neighbour];
    if (r->next[*neighbour] == of->n)
        return NULL;
    const struct act *other = &of->list[r->next[*neighbour]];
    const struct ap_instr *j = &other->slice->instr;
    return other->kind == (act->kind == SENDS ? RECEIVES : SENDS) && j->pass == i->pass &&
                   j->microbatch == i->microbatch && *neighbour == j->stage
               ? other
               : NULL;
}

/* Runs a device until it waits for a neighbour that is not there yet, or is done. */
static void run_acts(struct run *r, const struct acts *acts, int device)
{
    for (int to; r->next[device] < acts[device].n; r->next[device]++) {
        const struct act *act = &acts[device].list[r->next[device]], *other;
        if (act->kind == RUNS) {
            run_pass(r, device, act->slice, 0);
            continue;
        }
        if (!(other = other_side(r, acts, act, &to)))
            return;
        struct ap_sim_slice *sent = (act->kind == SENDS ? act : other)->slice;
        const double sec = send_sec(r, &sent->instr);
        sent->arrive_sec = fmax(r->free_at[device], r->free_at[to]) + sec;
        r->free_at[device] = r->free_at[to] = sent->arrive_sec;
        r->out->devices[device].send_sec += sec;
        r->out->devices[to].send_sec += sec;
        count_sent(r, &sent->instr);
        r->next[to]++;
        wake(r, to);
    }
}

/* Reduces the gradients of a device's stages; returns when they are reduced. */
static double reduce_gradients(struct run *r, int device)
{
    struct ap_sim_device *d = &r->out->devices[device];
    double busy = r->free_at[device], end = busy, link = 0;

    for (int s = r->sim->n_stages - 1; s >= 0; s--) {
        if (r->device[s] != device)
            continue;
        double from = r->sim->overlap_sync ? r->last_start[s] : busy;
        link = fmax(link, from) + r->sim->stages[s].sync_sec;
        end = fmax(end, link);
    }
    d->sync_sec = end - busy;
    return end;
}

static void finish(struct run *r)
{
    struct ap_sim_result *out = r->out;
    double norm_end = 0, busy = 0;

    for (int d = 0; d < out->n_devices; d++) {
        out->devices[d].end_sec = reduce_gradients(r, d);
        norm_end = fmax(norm_end, out->devices[d].end_sec + r->sim->norm_sec);
    }
    for (int d = 0; d < out->n_devices && r->sim->norm_sec > 0; d++) {
        out->devices[d].end_sec = norm_end;
        out->devices[d].sync_sec += r->sim->norm_sec;
    }
    for (int s = 0; s < r->sim->n_stages; s++) {
        out->devices[r->device[s]].end_sec += r->sim->stages[s].update_sec;
        out->devices[r->device[s]].compute_sec += r->sim->stages[s].update_sec;
    }
    for (int d = 0; d < out->n_devices; d++) {
        struct ap_sim_device *dev = &out->devices[d];
        out->step_sec = fmax(out->step_sec, dev->end_sec);
        busy += dev->compute_sec + dev->send_sec + dev->sync_sec;
    }
    if (out->step_sec > 0)
        out->bubble = fmax(0, 1 - busy / (out->step_sec * out->n_devices));
}

static double *filled(struct ap_arena *arena, size_t n, double v)
{
    double *a = AP_NEW_N(arena, n, double);
    for (size_t i = 0; i < n; i++)
        a[i] = v;
    return a;
}

/* Instructions, and what a device holds before the first. */
static int prepare(struct ap_arena *arena, struct run *r, struct ap_err *err)
{
    const struct ap_sim *sim = r->sim;
    int n = r->out->n_devices;
    const struct ap_schedule_size size = {sim->schedule, n, sim->chunks,
                                          sim->microbatches, sim->pairs};
    size_t cells = (size_t)sim->n_stages * (size_t)sim->microbatches;

    for (int d = 0; d < n; d++) {
        struct ap_sim_device *dev = &r->out->devices[d];
        struct ap_instr *list;
        if (sim->order) {
            list = sim->order[d].list;
            dev->n_slices = sim->order[d].n;
        } else if (ap_schedule_order(arena, &size, d, &list, &dev->n_slices, err)) {
            return -1;
        }
        dev->slices = AP_NEW_N(arena, dev->n_slices, struct ap_sim_slice);
        for (int i = 0; i < dev->n_slices; i++)
            dev->slices[i].instr = list[i];
        for (int s = 0; s < sim->n_stages; s++)
            if (r->device[s] == d)
                r->held[d] = ap_add64(r->held[d], sim->stages[s].fixed_bytes);
        dev->peak_bytes = dev->summed_bytes = r->held[d];
    }
    for (int pass = 0; pass < AP_N_PASSES; pass++)
        r->arrived[pass] = filled(arena, cells, NAN);
    for (int back = 0; back < 2; back++)
        r->link[back] = filled(arena, (size_t)sim->n_stages, 0);
    for (int b = 0; b < sim->microbatches; b++)
        *arrival(r, AP_PASS_FORWARD, 0, b) = 0;
    return 0;
}

int ap_simulate(struct ap_arena *arena, const struct ap_sim *sim,
                struct ap_sim_result *out, struct ap_err *err)
{
    *out = (struct ap_sim_result){0};
    if (sim->chunks < 1 || sim->n_stages < 1 || sim->n_stages % sim->chunks != 0)
        return ap_err_set(err, "%d stages are not %d to a device", sim->n_stages,
                          sim->chunks);
    if (!sim->overlap_send && !ap_schedule_traits[sim->schedule].may_wait)
        return ap_err_set(err, "%s: its sends cannot wait",
                          ap_schedule_names[sim->schedule]);
    int n = out->n_devices = sim->n_stages / sim->chunks;
    int *device = AP_NEW_N(arena, sim->n_stages, int);
    for (int s = 0; s < sim->n_stages; s++)
        device[s] = ap_schedule_device(sim->schedule, n, s);
    out->devices = AP_NEW_N(arena, n, struct ap_sim_device);
    struct run r = {.sim = sim,
                    .out = out,
                    .device = device,
                    .free_at = AP_NEW_N(arena, n, double),
                    .next = AP_NEW_N(arena, n, int),
                    .flight = AP_NEW_N(arena, n, int),
                    .held = AP_NEW_N(arena, n, int64_t),
                    .last_start = AP_NEW_N(arena, sim->n_stages, double),
                    .todo = AP_NEW_N(arena, n, int),
                    .listed = AP_NEW_N(arena, n, bool)};

    if (prepare(arena, &r, err))
        return -1;
    struct acts *acts = sim->overlap_send ? NULL : AP_NEW_N(arena, n, struct acts);
    for (int d = n - 1; d >= 0; d--) {
        if (acts)
            acts[d] = list_acts(arena, &r, &out->devices[d]);
        wake(&r, d);
    }
    while (r.n_todo > 0) {
        int d = r.todo[--r.n_todo];
        r.listed[d] = false;
        if (acts)
            run_acts(&r, acts, d);
        else
            run_device(&r, d);
    }
    for (int d = 0; d < n; d++)
        if (r.next[d] < (acts ? acts[d].n : out->devices[d].n_slices))
            return ap_err_set(err, "the instructions of device %d wait for ever", d);
    finish(&r);
    return 0;
}

double ap_sim_batch_sec(const struct ap_sim *sim)
{
    double most = 0;

    for (int i = 0; i < sim->n_stages; i++) {
        const struct ap_sim_stage *s = &sim->stages[i];
        double send = i + 1 < sim->n_stages ? s->send_forward_sec : 0;
        double receive = i > 0 ? s[-1].send_forward_sec : 0;
        most = fmax(most, sim->overlap_send ? fmax(s->forward_sec, send)
                                            : receive + s->forward_sec + send);
    }
    return most * sim->microbatches;
}
