/*
 * Problem: the time of a pipelined step, and the memory of each device during it, for
 * stages that differ. Idea: a schedule fixes the order of each device's instructions, and
 * every link has one sender, so that the first moment at which an instruction can run
 * depends only on the one before it on its device and on its input's arrival. Devices are
 * run in turn, each until it lacks an input; a device that makes an input wakes the one
 * that lacks it. Cost: linear in the instructions, each is looked at once when it runs
 * and at most once when it waits. Source: GPipe (Huang et al., NeurIPS 2019, section
 * 2.3), 1F1B (Fan et al., "DAPPLE", PPoPP 2021, section 3), interleaved 1F1B (Narayanan
 * et al., SC 2021, section 2.2), eager 1F1B (Zhuang et al., "On Optimizing the
 * Communication of Model Parallelism", MLSys 2023, section 4; Alpa's
 * 1f1b_overlap_friendly).
 */
#include "pipeline/schedule.h"

#include <assert.h>
#include <limits.h>
#include <math.h>

const char *const ap_schedule_names[AP_N_SCHEDULES] = {
    "gpipe", "1f1b", "interleaved-1f1b", "inference", "eager-1f1b"};

bool ap_schedule_may_wait(enum ap_schedule schedule)
{
    return schedule != AP_SCHEDULE_INTERLEAVED && schedule != AP_SCHEDULE_EAGER;
}

/* ---- order ---- */

static int check_size(const struct ap_schedule_size *z, struct ap_err *err)
{
    const char *name = ap_schedule_names[z->schedule];

    if (z->n_devices < 1 || z->microbatches < 1 || z->chunks < 1)
        return ap_err_set(err, "%s: expected stages, chunks and microbatches > 0", name);
    if (z->schedule != AP_SCHEDULE_INTERLEAVED && z->chunks != 1)
        return ap_err_set(err, "%s: a device has one stage, not %d", name, z->chunks);
    if (z->schedule == AP_SCHEDULE_INTERLEAVED && z->microbatches % z->n_devices != 0)
        return ap_err_set(err, "%s: %d devices do not divide %d microbatches", name,
                          z->n_devices, z->microbatches);
    if (ap_mul64(ap_mul64(2, z->microbatches), z->chunks) > INT_MAX)
        return ap_err_set(err, "%s: %d microbatches are too many", name, z->microbatches);
    return 0;
}

struct ap_instr ap_schedule_pass(const struct ap_schedule_size *z, int k, int device,
                                 bool backward)
{
    int n = z->n_devices, group = n * z->chunks, chunk = k % group / n;

    if (backward)
        chunk = z->chunks - 1 - chunk;
    return (struct ap_instr){.stage = chunk * n + device,
                             .microbatch = k / group * n + k % n,
                             .backward = backward};
}

int ap_schedule_warm_up(const struct ap_schedule_size *z, int n, int device)
{
    int ahead = z->n_devices - device - 1;

    if (z->schedule == AP_SCHEDULE_GPIPE || z->schedule == AP_SCHEDULE_INFERENCE)
        return n;
    if (z->schedule == AP_SCHEDULE_INTERLEAVED && z->chunks > 1)
        ahead = 2 * ahead + (z->chunks - 1) * z->n_devices;
    if (z->schedule == AP_SCHEDULE_EAGER)
        ahead *= 2;
    ahead += z->pairs;
    return ahead + 1 < n ? ahead + 1 : n;
}

int ap_schedule_order(struct ap_arena *arena, const struct ap_schedule_size *z,
                      int device, struct ap_instr **out, int *n_out, struct ap_err *err)
{
    if (check_size(z, err))
        return -1;
    assert(device >= 0 && device < z->n_devices);
    int n = z->microbatches * z->chunks, at = 0, warm = ap_schedule_warm_up(z, n, device);
    int n_backward = z->schedule == AP_SCHEDULE_INFERENCE ? 0 : n;
    struct ap_instr *list = AP_NEW_N(arena, n + n_backward, struct ap_instr);

    for (int k = 0; k < warm; k++)
        list[at++] = ap_schedule_pass(z, k, device, false);
    for (int k = 0; k < n_backward; k++) {
        list[at++] = ap_schedule_pass(z, k, device, true);
        if (warm + k < n)
            list[at++] = ap_schedule_pass(z, warm + k, device, false);
    }
    *out = list;
    *n_out = at;
    return 0;
}

/* ---- simulation ---- */

double ap_hidden_sec(double sent, double computed, double share)
{
    return fmax(0, fmin(sent, computed)) * fmax(0, 2 - 1 / (1 - share));
}

struct run {
    const struct ap_sim *sim;
    struct ap_sim_result *out;
    double *arrived[2]; /* per backward, stage and microbatch: NAN until it is there */
    double *link[2];    /* per backward and stage: when its outgoing link is free */
    double *free_at;    /* per device */
    int *next;          /* per device: instruction to run */
    int *flight;        /* per device: microbatches held */
    int64_t *held;      /* per device: bytes between instructions */
    double *last_start; /* per stage: of its last backward */
    int *todo, n_todo;  /* devices that may be able to run */
    bool *listed;       /* per device: in todo */
};

static double *arrival(const struct run *r, bool backward, int stage, int microbatch)
{
    return &r->arrived[backward]
                      [(size_t)stage * (size_t)r->sim->microbatches + (size_t)microbatch];
}

static void wake(struct run *r, int device)
{
    if (r->listed[device])
        return;
    r->listed[device] = true;
    r->todo[r->n_todo++] = device;
}

/* Stage that the result of a pass goes to. */
static int next_stage(const struct ap_instr *i)
{
    return i->stage + (i->backward ? -1 : 1);
}

static double send_sec(const struct run *r, const struct ap_instr *i)
{
    const struct ap_sim_stage *st = &r->sim->stages[i->stage];

    return i->backward ? st->send_backward_sec : st->send_forward_sec;
}

static void count_sent(struct run *r, const struct ap_instr *i)
{
    const struct ap_sim_stage *st = &r->sim->stages[i->stage];
    int64_t *sum = &r->out->level_bytes[i->backward ? st->send_backward_level
                                                    : st->send_forward_level];

    *sum = ap_add64(*sum, i->backward ? st->send_backward_bytes : st->send_forward_bytes);
}

/* Sends the result of a slice to the stage that needs it and wakes its device. */
static void send(struct run *r, struct ap_sim_slice *s)
{
    const struct ap_sim *sim = r->sim;
    const struct ap_instr *i = &s->instr;
    int to = next_stage(i), last = sim->n_stages - 1;

    s->arrive_sec = s->end_sec;
    if (!i->backward && i->stage == last && sim->schedule != AP_SCHEDULE_INFERENCE)
        *arrival(r, true, last, i->microbatch) = s->end_sec;
    if (to < 0 || to > last)
        return;
    double *link = &r->link[i->backward][i->stage];
    *link = fmax(*link, s->end_sec) + send_sec(r, i);
    s->arrive_sec = *link;
    count_sent(r, i);
    *arrival(r, i->backward, to, i->microbatch) = s->arrive_sec;
    wake(r, to % r->out->n_devices);
}

static void account_memory(struct run *r, int device, struct ap_sim_slice *s)
{
    const struct ap_sim_stage *st = &r->sim->stages[s->instr.stage];
    struct ap_sim_device *d = &r->out->devices[device];
    bool back = s->instr.backward;

    if (!back) {
        r->held[device] = ap_add64(r->held[device], st->flight_bytes);
        r->flight[device]++;
    }
    s->bytes = ap_add64(r->held[device], st->work_bytes);
    if (back)
        s->bytes = ap_add64(s->bytes, st->recomputed_bytes);
    d->peak_bytes = s->bytes > d->peak_bytes ? s->bytes : d->peak_bytes;
    d->summed_bytes = d->peak_bytes;
    d->peak_in_flight =
        r->flight[device] > d->peak_in_flight ? r->flight[device] : d->peak_in_flight;
    if (back || r->sim->schedule == AP_SCHEDULE_INFERENCE) {
        r->held[device] -= st->flight_bytes;
        r->flight[device]--;
    }
    s->after_bytes = r->held[device];
}

/* Seconds that a backward takes less beside the forward before it. */
static double paired_sec(const struct run *r, int device, const struct ap_sim_slice *s)
{
    const struct ap_sim_slice *before = s - 1;

    if (!r->sim->pairs || s == r->out->devices[device].slices || !s->instr.backward ||
        before->instr.backward || before->instr.microbatch == s->instr.microbatch)
        return 0;
    const struct ap_sim_stage *f = &r->sim->stages[before->instr.stage];
    const struct ap_sim_stage *b = &r->sim->stages[s->instr.stage];
    return ap_hidden_sec(f->exchange_sec[0], b->backward_sec - b->exchange_sec[1],
                         f->exchange_share) +
           ap_hidden_sec(b->exchange_sec[1], f->forward_sec - f->exchange_sec[0],
                         b->exchange_share);
}

/* Runs a pass whose input is there at `input`. */
static void run_pass(struct run *r, int device, struct ap_sim_slice *s, double input)
{
    const struct ap_sim_stage *st = &r->sim->stages[s->instr.stage];
    bool back = s->instr.backward;
    const double paired = paired_sec(r, device, s);
    const double sec =
        (back ? st->recompute_sec + st->backward_sec : st->forward_sec) - paired;

    r->out->devices[device].paired_sec += paired;
    s->start_sec = fmax(input, r->free_at[device]);
    s->end_sec = s->arrive_sec = s->start_sec + sec;
    r->free_at[device] = s->end_sec;
    r->out->devices[device].compute_sec += sec;
    if (back)
        r->last_start[s->instr.stage] = s->start_sec;
    account_memory(r, device, s);
}

/* Runs a device until it lacks an input or is done. */
static void run_device(struct run *r, int device)
{
    struct ap_sim_device *d = &r->out->devices[device];

    for (; r->next[device] < d->n_slices; r->next[device]++) {
        struct ap_sim_slice *s = &d->slices[r->next[device]];
        double input =
            *arrival(r, s->instr.backward, s->instr.stage, s->instr.microbatch);
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
static struct acts list_acts(struct ap_arena *arena, const struct ap_sim *sim,
                             const struct ap_sim_device *d)
{
    struct acts a = {.list = AP_NEW_N(arena, 3 * d->n_slices, struct act)};
    struct ap_sim_slice *left = NULL; /* whose result is still to be sent */

    for (int k = 0; k < d->n_slices; k++) {
        struct ap_sim_slice *s = &d->slices[k];
        const struct ap_instr *i = &s->instr;
        const int to = next_stage(i);
        if (left && i->backward) {
            add_act(&a, SENDS, left);
            left = NULL;
        }
        if (i->stage != (i->backward ? sim->n_stages - 1 : 0))
            add_act(&a, RECEIVES, s);
        if (left)
            add_act(&a, SENDS, left);
        left = NULL;
        add_act(&a, RUNS, s);
        if (to < 0 || to >= sim->n_stages)
            continue;
        if (k + 1 < d->n_slices && d->slices[k + 1].instr.backward != i->backward)
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
    const int sender = i->backward ? i->stage + 1 : i->stage - 1;

    *neighbour = act->kind == SENDS ? next_stage(i) : sender;
    const struct acts *of = &acts[*neighbour];
    if (r->next[*neighbour] == of->n)
        return NULL;
    const struct act *other = &of->list[r->next[*neighbour]];
    const struct ap_instr *j = &other->slice->instr;
    return other->kind == (act->kind == SENDS ? RECEIVES : SENDS) &&
                   j->backward == i->backward && j->microbatch == i->microbatch &&
                   *neighbour == j->stage
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

    for (int s = r->sim->n_stages - r->out->n_devices + device; s >= 0;
         s -= r->out->n_devices) {
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
    for (int d = 0; d < out->n_devices; d++) {
        struct ap_sim_device *dev = &out->devices[d];
        if (r->sim->norm_sec > 0) {
            dev->end_sec = norm_end;
            dev->sync_sec += r->sim->norm_sec;
        }
        for (int s = d; s < r->sim->n_stages; s += out->n_devices) {
            dev->end_sec += r->sim->stages[s].update_sec;
            dev->compute_sec += r->sim->stages[s].update_sec;
        }
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
        for (int s = d; s < sim->n_stages; s += n)
            r->held[d] = ap_add64(r->held[d], sim->stages[s].fixed_bytes);
        dev->peak_bytes = dev->summed_bytes = r->held[d];
    }
    for (int back = 0; back < 2; back++) {
        r->arrived[back] = filled(arena, cells, NAN);
        r->link[back] = filled(arena, (size_t)sim->n_stages, 0);
    }
    for (int b = 0; b < sim->microbatches; b++)
        *arrival(r, false, 0, b) = 0;
    return 0;
}

int ap_simulate(struct ap_arena *arena, const struct ap_sim *sim,
                struct ap_sim_result *out, struct ap_err *err)
{
    *out = (struct ap_sim_result){0};
    if (sim->chunks < 1 || sim->n_stages < 1 || sim->n_stages % sim->chunks != 0)
        return ap_err_set(err, "%d stages are not %d to a device", sim->n_stages,
                          sim->chunks);
    if (!sim->overlap_send && !ap_schedule_may_wait(sim->schedule))
        return ap_err_set(err, "%s: its sends cannot wait",
                          ap_schedule_names[sim->schedule]);
    int n = out->n_devices = sim->n_stages / sim->chunks;
    out->devices = AP_NEW_N(arena, n, struct ap_sim_device);
    struct run r = {.sim = sim,
                    .out = out,
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
            acts[d] = list_acts(arena, sim, &out->devices[d]);
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
