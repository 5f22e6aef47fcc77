/*
 * Problem: the least time of a simulated step over all cuts, submeshes and points of a
 * chain of blocks, under one schedule, number of replicas and microbatches: a bound that
 * no plan is below, and plans near it.
 * Idea: from the last stage to the first, a label holds for the rest of a plan, counted
 * from the arrival of its first microbatch: when its first stage ends its last backward
 * (end), when all is done (done), and how long one microbatch takes there and back (way).
 * A stage with forward f, backward b and B microbatches before it has
 *     end' >= max(B (f + b), f + end + b),
 *     end' >= max(w f, f + way) + B b + (B - w) f     (1f1b, w forwards in advance)
 *     end' >= B f + way + B b                         (gpipe)
 *     done' = max(end' + sync + update, f + done),   way' = f + way + b,
 * sends included. All of it rises with the label, so that the least of each number over
 * several labels is a label below them all: bounds merge what has one number of stages,
 * and neighbouring numbers when there are too many; plans keep the best of each number.
 * Without sync, update, sends and on equal stages done is (B + S - 1) (f + b), as
 * simulated.
 * Cost: blocks x units of devices x usable stages x labels. Large clusters are counted in
 * units of devices, rounded down for bounds and up for plans.
 */
#include "search/auto.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_UNITS          256  /* of devices: the table's width */
#define MAX_UNITS_OF_KINDS 1600 /* likewise, of several kinds: 39 of each of two */
/* Labels of a state. With one the step of GPT-39B on 64 devices is 1.5 % longer:
 * scripts/bench/stage-table --models gpt3-39b:dtype=f16@64 --algorithms auto. */
#define MOST_LABELS 6

/* ---- cells ---- */

/* Microbatches that a point can hold, 0 when it does not fit at all. */
static int flight_of(const struct setting *set, int kind, const struct plan_point *p)
{
    int64_t memory = plan_memory(set->sp->inst, kind);
    int64_t b = set->c->microbatches, held = b;

    if (memory > 0 && p->stage_bytes > memory)
        return 0;
    if (memory > 0 && p->microbatch_bytes > 0)
        held = (memory - p->stage_bytes) / p->microbatch_bytes;
    return (int)(held < b ? held : b);
}

static int compare_steps(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    return (x->max_flight > y->max_flight) - (x->max_flight < y->max_flight);
}

static double tail_of(const struct plan_point *p)
{
    return p->sync_sec + p->update_sec;
}

static void fill_cell(const struct setting *set, int kind, const struct plan_front *front,
                      struct cell *cell)
{
    double b = (double)set->c->microbatches;
    int n = 0;

    cell->step = AP_NEW_N(set->sp->arena, front->n, struct step);
    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        double sum = p->forward_sec + p->backward_sec;
        int flight = flight_of(set, kind, p);
        if (flight >= 1 && b * sum < set->below)
            cell->step[n++] = (struct step){
                flight, p->forward_sec, p->backward_sec, sum, tail_of(p), p, p};
    }
    qsort(cell->step, (size_t)n, sizeof *cell->step, compare_steps);
    for (int i = n - 2; i >= 0; i--) {
        struct step *s = &cell->step[i], *next = &cell->step[i + 1];
        if (b * next->best->forward_sec + b * next->best->backward_sec +
                tail_of(next->best) <
            b * s->sum + s->tail)
            s->best = next->best;
        s->forward = least_of(s->forward, next->forward);
        s->backward = least_of(s->backward, next->backward);
        s->sum = least_of(s->sum, next->sum);
        s->tail = least_of(s->tail, next->tail);
    }
    cell->n = n;
}

/* The step of a stage that holds `flight` microbatches at least; NULL: does not fit. */
static const struct step *setting_step(const struct setting *set, int lo, int hi,
                                       int mesh, int flight)
{
    const struct cell *cell =
        &set->cell[set->sp->run[lo * set->sp->n + hi] * set->c->n_meshes + mesh];
    for (int i = 0; i < cell->n; i++)
        if (cell->step[i].max_flight >= flight)
            return &cell->step[i];
    return NULL;
}

int setting_flight(const struct setting *set, int n_behind)
{
    return plan_in_flight(set->schedule, n_behind, set->c->microbatches);
}

/* ---- preparation ---- */

/* Two meshes when nothing is placed yet: inside a host if both fit. */
static void estimate_links(struct setting *set)
{
    const struct config *c = set->c;
    int n = c->n_meshes;

    set->link = AP_NEW_N(set->sp->arena, n * n, struct ap_link);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            struct plan_stage a = {.hosts = c->mesh[i].hosts,
                                   .devices = c->mesh[i].devices,
                                   .kind = c->mesh[i].kind};
            struct plan_stage b = {.hosts = c->mesh[k].hosts,
                                   .devices = c->mesh[k].devices,
                                   .kind = c->mesh[k].kind};
            bool same = a.kind == b.kind, inside = same && a.hosts == 1 && b.hosts == 1 &&
                                                   a.devices + b.devices <= c->devices;
            if (same &&
                mesh_size(&c->mesh[i]) + mesh_size(&c->mesh[k]) > c->counts.most[a.kind])
                continue;
            b.first_host = inside || !same ? 0 : a.hosts;
            b.first_device = inside ? a.devices : 0;
            set->link[i * n + k] = plan_link_between(set->sp->inst, c->replicas, &a, &b);
        }
}

/* ---- what is known without asking ---- */

static double known_sec(const struct space *sp, const struct plan_ask *ask)
{
    return sp->inst->least ? sp->inst->least(sp->inst->oracle, ask) : 0;
}

static struct plan_ask ask_of(const struct config *c, int lo, int hi, int mesh)
{
    return (struct plan_ask){.lo = lo,
                             .hi = hi,
                             .hosts = c->mesh[mesh].hosts,
                             .devices = c->mesh[mesh].devices,
                             .kind = c->mesh[mesh].kind,
                             .replicas = c->replicas,
                             .microbatches = c->microbatches};
}

double *setting_known(const struct space *sp, const struct config *c)
{
    double *known = AP_NEW_N(sp->arena, sp->n + 1, double);
    for (int b = 0; b < sp->n; b++) {
        double least = INFINITY;
        for (int m = 0; m < c->n_meshes; m++) {
            struct plan_ask ask = ask_of(c, b, b, m);
            least = least_of(least, config_weight(c, m) * known_sec(sp, &ask));
        }
        known[b + 1] = known[b] + least;
    }
    return known;
}

double setting_known_bound(const struct space *sp, const struct config *c)
{
    return (double)c->microbatches * setting_known(sp, c)[sp->n] / c->capacity *
           (1 - 1e-9);
}

bool setting_is_hopeless(const struct space *sp, const struct config *c,
                         const double *known, const struct plan_ask *ask, double below)
{
    double b = (double)c->microbatches;
    double left = 0;
    double others = known[sp->n] - (known[ask->hi + 1] - known[ask->lo]);

    if (!sp->inst->least)
        return false;
    for (int k = 0; k < c->counts.n_kinds; k++)
        left += (c->counts.most[k] - (k == ask->kind ? ask->hosts * ask->devices : 0)) *
                c->speed[k];
    return b * others * (1 - 1e-9) > left * below ||
           b * known_sec(sp, ask) * (1 - 1e-9) >= below;
}

/* Runs on a mesh that begin at a block, ever longer ones: the next that is not known. */
struct chain {
    int lo, mesh, hi;
};

/* Goes on to the next cell that is to be asked for; false: there is none. */
static bool go_on(const struct setting *set, const double *known, struct chain *at)
{
    for (int n = set->sp->n; at->hi < n; at->hi++) {
        const struct cell *cell =
            &set->cell[set->sp->run[at->lo * n + at->hi] * set->c->n_meshes + at->mesh];
        struct plan_ask ask = ask_of(set->c, at->lo, at->hi, at->mesh);
        if (cell->n == 0 && set->sp->inst->monotone)
            return false; /* what is longer is slower and larger */
        if (cell->n < 0 && !setting_is_hopeless(set->sp, set->c, known, &ask, set->below))
            return true;
    }
    return false;
}

/* The next cells of all chains are asked for at once. */
static int fill_cells(struct setting *set, struct ap_err *err)
{
    int n = set->sp->n, m = set->c->n_meshes, left = 0;
    struct chain *chain = AP_NEW_N(set->sp->arena, n * m, struct chain);

    set->cell = AP_NEW_N(set->sp->arena, set->sp->n_runs * m, struct cell);
    for (int i = 0; i < set->sp->n_runs * m; i++)
        set->cell[i].n = -1;
    double *known = setting_known(set->sp, set->c);
    for (int lo = 0; lo < n; lo++)
        for (int i = 0; i < m; i++)
            chain[left++] = (struct chain){lo, i, lo};
    for (;;) {
        int n_left = 0;
        for (int i = 0; i < left; i++)
            if (go_on(set, known, &chain[i])) {
                chain[n_left++] = chain[i];
                config_note(set->sp, set->c, chain[i].lo, chain[i].hi, chain[i].mesh);
            }
        left = n_left;
        if (left == 0)
            return 0;
        if (space_ask_noted(set->sp, err))
            return -1;
        for (int i = 0; i < left; i++) {
            const struct chain *at = &chain[i];
            struct cell *cell =
                &set->cell[set->sp->run[at->lo * n + at->hi] * m + at->mesh];
            const struct plan_front *front;
            if (config_front(set->sp, set->c, at->lo, at->hi, at->mesh, &front, err))
                return -1;
            if (cell->n < 0)
                fill_cell(set, set->c->mesh[at->mesh].kind, front, cell);
        }
    }
}

static void least_fronts(struct setting *set)
{
    int n = set->sp->n;

    set->front_sum = AP_NEW_N(set->sp->arena, n + 1, double);
    set->front_device_sec = AP_NEW_N(set->sp->arena, n + 1, double);
    for (int k = 1; k <= n; k++)
        set->front_sum[k] = set->front_device_sec[k] = INFINITY;
    for (int lo = 0; lo < n; lo++)
        for (int i = 0; i < set->c->n_meshes; i++)
            for (int hi = lo; hi < n; hi++) {
                const struct step *s = setting_step(set, lo, hi, i, 1);
                if (!s)
                    continue;
                double size = config_weight(set->c, i);
                double *sum = &set->front_sum[hi + 1];
                double *dev = &set->front_device_sec[hi + 1];
                *sum = least_of(*sum, set->front_sum[lo] + s->forward + s->backward);
                *dev = least_of(*dev, set->front_device_sec[lo] + size * s->sum);
            }
}

/* The cluster in units; several kinds have a table of as many sides. */
static void count_units(struct setting *set)
{
    struct plan_counts *u = &set->units;
    const struct plan_counts *c = &set->c->counts;

    for (int k = 0; k < c->n_kinds; k++)
        set->unit[k] = 1;
    for (int most = 0;; set->unit[most] *= 2) {
        *u = (struct plan_counts){.n_kinds = c->n_kinds, .width = 1};
        for (int k = c->n_kinds - 1; k >= 0; k--) {
            u->most[k] = c->most[k] / set->unit[k];
            u->stride[k] = u->width;
            u->width *= u->most[k] + 1;
            if (u->most[k] > u->most[most])
                most = k;
        }
        if (u->width - 1 <= (c->n_kinds > 1 ? MAX_UNITS_OF_KINDS : MAX_UNITS))
            break;
    }
    set->n_units = u->width - 1;
}

int setting_init(struct setting *set, struct space *sp, struct config *c,
                 enum ap_schedule schedule, double below, struct ap_err *err)
{
    *set = (struct setting){.sp = sp, .c = c, .schedule = schedule, .below = below};
    count_units(set);
    if (fill_cells(set, err))
        return -1;
    estimate_links(set);
    least_fronts(set);
    return 0;
}

/* ---- labels ---- */

void setting_prepend(const struct setting *set, const struct prepend *p,
                     const struct label *rest, struct label *out)
{
    double b = (double)set->c->microbatches, f = p->forward, back = p->backward;
    double there = f + p->send_forward;
    double end = rest ? rest->end : 0, done = rest ? rest->done : 0;
    double way = rest ? p->send_forward + rest->way + p->send_backward : 0;

    if (set->schedule == AP_SCHEDULE_INFERENCE && !set->sp->params->latency) {
        out->end = out->done = most_of(b * f, end);
        out->way = 0;
        return;
    }
    out->end = b * p->sum;
    if (set->schedule == AP_SCHEDULE_INFERENCE) {
        out->end = most_of(out->end, b * f);
    } else {
        if (rest)
            out->end = most_of(out->end, there + end + p->send_backward + back);
        if (set->schedule == AP_SCHEDULE_GPIPE)
            out->end = most_of(out->end, b * f + way + b * back);
        else
            out->end = most_of(out->end, most_of(p->least_flight * f, f + way) +
                                             b * back + (b - p->most_flight) * f);
    }
    out->done = out->end + p->tail;
    if (rest)
        out->done = most_of(out->done, there + done);
    out->way = f + way + back;
}

struct filling {
    const struct setting *set;
    struct labels *out;
    bool bounds;
    int most;          /* labels of a state */
    struct label *now; /* [stages] */
    bool *is_now;
};

static size_t state(const struct setting *set, int k, int d)
{
    return (size_t)k * (size_t)(set->n_units + 1) + (size_t)d;
}

static int units_of(const struct setting *set, int mesh, bool bounds)
{
    int size = mesh_size(&set->c->mesh[mesh]), unit = set->unit[set->c->mesh[mesh].kind];
    return bounds ? size / unit : (size + unit - 1) / unit;
}

/* Seconds between two meshes when nothing is placed yet. */
static double estimate_send(const struct setting *set, int k, bool back, int mesh,
                            int other)
{
    const struct ap_link *link = &set->link[mesh * set->c->n_meshes + other];
    int64_t bytes = set->sp->split_bytes[back][k] / set->c->microbatches +
                    set->sp->whole_bytes[back][k];

    return ap_link_sec(link, (double)bytes, 1);
}

static void merge(struct label *to, const struct label *from)
{
    to->end = least_of(to->end, from->end);
    to->done = least_of(to->done, from->done);
    to->way = least_of(to->way, from->way);
    if (from->least_stages < to->least_stages)
        to->least_stages = from->least_stages;
    if (from->most_stages > to->most_stages)
        to->most_stages = from->most_stages;
}

static bool is_worse(const struct label *a, const struct label *b)
{
    return a->done > b->done || (a->done == b->done && a->end > b->end);
}

static void put_now(struct filling *f, const struct label *v)
{
    int s = v->least_stages;
    if (!f->is_now[s]) {
        f->is_now[s] = true;
        f->now[s] = *v;
    } else if (f->bounds)
        merge(&f->now[s], v);
    else if (is_worse(&f->now[s], v))
        f->now[s] = *v;
}

/* Reduces n labels to the most that a state keeps. */
static int thin_out(struct filling *f, struct label *l, int n)
{
    while (n > f->most) {
        int at = 0;
        double least = INFINITY;
        for (int i = 0; i + (f->bounds ? 1 : 0) < n; i++) {
            /* bounds: neighbours that differ least; plans: the one done last */
            double loss = f->bounds ? fabs(l[i].done - l[i + 1].done) : -l[i].done;
            if (loss < least) {
                least = loss;
                at = i;
            }
        }
        if (f->bounds) {
            merge(&l[at], &l[at + 1]);
            at++;
        }
        memmove(&l[at], &l[at + 1], (size_t)(n - at - 1) * sizeof *l);
        n--;
    }
    return n;
}

static void keep_now(struct filling *f, int k, int d)
{
    struct labels *out = f->out;
    int n = 0, all = f->set->sp->n - k;

    for (int s = 1; s <= all; s++)
        if (f->is_now[s]) {
            f->is_now[s] = false;
            f->now[n++] = f->now[s];
        }
    n = thin_out(f, f->now, n);
    AP_ROOM_FOR(out->all, out->n_all, out->cap, n);
    out->first[state(f->set, k, d)] = out->n_all;
    out->n[state(f->set, k, d)] = n;
    memcpy(out->all + out->n_all, f->now, (size_t)n * sizeof *f->now);
    out->n_all += n;
}

/* One stage before one label. */
static void put_front(struct filling *f, int k, int hi, int mesh, int rest)
{
    const struct setting *set = f->set;
    const struct label *r = hi + 1 < set->sp->n ? &f->out->all[rest] : NULL;
    int more = r ? r->most_stages : 0, less = r ? r->least_stages : 0;
    const struct step *s = setting_step(set, k, hi, mesh, setting_flight(set, less + 1));

    if (!s)
        return;
    struct prepend p = {.forward = s->forward,
                        .backward = s->backward,
                        .sum = s->sum,
                        .tail = s->tail,
                        .least_flight = setting_flight(set, less + 1),
                        .most_flight = setting_flight(set, more + 1)};
    if (!f->bounds) {
        p.forward = s->best->forward_sec;
        p.backward = s->best->backward_sec;
        p.sum = p.forward + p.backward;
        p.tail = tail_of(s->best);
    }
    if (r && !f->bounds) {
        p.send_forward = estimate_send(set, hi, false, mesh, r->mesh);
        p.send_backward = estimate_send(set, hi, true, mesh, r->mesh);
    }
    struct label v = {.least_stages = less + 1,
                      .most_stages = more + 1,
                      .hi = hi,
                      .mesh = mesh,
                      .next = r ? rest : -1,
                      .point = s->best};
    setting_prepend(set, &p, r, &v);
    if (v.end + (set->schedule == AP_SCHEDULE_INFERENCE ? 0 : set->front_sum[k]) <
            set->below &&
        v.done < set->below)
        put_now(f, &v);
}

static void fill_state(struct filling *f, int k, int d)
{
    const struct setting *set = f->set;
    int n = set->sp->n;
    double left = 0;

    for (int i = 0; i < set->units.n_kinds; i++)
        left +=
            (set->c->counts.most[i] - counts_digit(&set->units, d, i) * set->unit[i]) *
            set->c->speed[i];

    /* what is in front has but so many devices for so long */
    if ((double)set->c->microbatches * set->front_device_sec[k] * (1 - 1e-9) >
        left * set->below) {
        keep_now(f, k, d);
        return;
    }
    for (int mesh = 0; mesh < set->c->n_meshes; mesh++) {
        int units = units_of(set, mesh, f->bounds), kind = set->c->mesh[mesh].kind;
        if (units > counts_digit(&set->units, d, kind))
            continue;
        for (int hi = k; hi < n; hi++) {
            const struct cell *cell =
                &set->cell[set->sp->run[k * n + hi] * set->c->n_meshes + mesh];
            if (cell->n <= 0)
                continue;
            size_t rest = state(set, hi + 1, d - units * set->units.stride[kind]);
            int at = f->out->first[rest];
            for (int l = at; l < at + f->out->n[rest]; l++)
                put_front(f, k, hi, mesh, l);
        }
    }
    keep_now(f, k, d);
}

void setting_labels(const struct setting *set, bool bounds, struct labels *out)
{
    int n = set->sp->n, row = set->n_units + 1;
    struct ap_arena scratch = {0};
    struct filling f = {.set = set,
                        .out = out,
                        .bounds = bounds,
                        .most = MOST_LABELS,
                        .now = AP_NEW_N(&scratch, n + 2, struct label),
                        .is_now = AP_NEW_N(&scratch, n + 2, bool)};

    *out = (struct labels){
        .first = ap_xrealloc(NULL, (size_t)(n + 1) * (size_t)row * sizeof(int)),
        .n = ap_xrealloc(NULL, (size_t)(n + 1) * (size_t)row * sizeof(int)),
        .cap = 1024,
        .n_all = 1};
    out->all = ap_xrealloc(NULL, (size_t)out->cap * sizeof *out->all);
    out->all[0] = (struct label){.hi = -1, .next = -1};
    for (int d = 0; d < row; d++) {
        out->first[state(set, n, d)] = 0;
        out->n[state(set, n, d)] = d == 0;
    }
    for (int k = n - 1; k >= 0; k--)
        for (int d = 0; d < row; d++)
            fill_state(&f, k, d);
    ap_arena_free(&scratch);
}

void setting_free(struct labels *l)
{
    free(l->first);
    free(l->n);
    free(l->all);
}

struct plan_answer setting_plan(const struct setting *set, const struct labels *l,
                                int label)
{
    struct plan_answer a = {.replicas = set->c->replicas,
                            .microbatches = set->c->microbatches,
                            .schedule = set->schedule,
                            .chunks = 1};
    int lo = 0;

    a.stage = AP_NEW_N(set->sp->arena, l->all[label].least_stages, struct plan_stage);
    for (; lo < set->sp->n; label = l->all[label].next) {
        const struct label *v = &l->all[label];
        a.stage[a.n_stages++] =
            (struct plan_stage){.lo = lo,
                                .hi = v->hi,
                                .hosts = set->c->mesh[v->mesh].hosts,
                                .devices = set->c->mesh[v->mesh].devices,
                                .kind = set->c->mesh[v->mesh].kind,
                                .point = v->point};
        lo = v->hi + 1;
    }
    return a;
}
