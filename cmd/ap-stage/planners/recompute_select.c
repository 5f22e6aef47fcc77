/*
 * Problem: a stage keeps too much for its backward pass. Which forward values are not
 * kept but recomputed, in the least time? A knapsack in which items share their cost: to
 * make a value again its group runs, for which its operands must be there.
 * Idea: greedy by bytes saved per second. A value's price is that of the groups that must
 * run: its own, and those of operands that nobody keeps, up to values that are kept or
 * cross blocks. Groups that run already cost nothing, so that prices only fall: a value
 * is priced again when it is the best, and taken if it stays that. Values of a block are
 * recomputed when its backward runs; the largest block's are there at once. At the end
 * values that fit after all are kept, by seconds per byte; the same from all values
 * recomputed is the other answer, for where the first does not fit or is slower. Stages
 * of one device first get equal parts of what it has left; the price of that says what is
 * still left, or lacks, for the next round. Cost:
 * (values + operands) log values; a price considers at most MOST_RUNS groups. Source:
 * Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); the choice by
 * operator is Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
 * Models" (2022), section 5.
 */
#include "planners/recompute_select.h"

#include "base/heap.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RUNS 64 /* groups that run for one value */

/* ---- values by what they save per second, best first ---- */

struct item {
    double rate; /* bytes per second, DBL_MAX where it costs nothing */
    int value;
};

static bool is_before(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    return a->rate != b->rate ? a->rate > b->rate : a->value < b->value;
}

/* ---- a stage ---- */

/* What making one value again changes. */
struct move {
    double saved, sec; /* bytes of all microbatches in flight; of one microbatch */
    int n_runs, n_again, n_kept;
    int run[MOST_RUNS];
    int *again, *kept; /* values: recomputed, kept from now on */
};

/* What may be chosen, and for how much. */
struct recompute_problem {
    const struct ap_graph *graph; /* of the stage */
    const struct ap_nests *nests;
    const struct ap_stage_weights *weights;
    double flights;     /* microbatches that are in flight at most, >= 1 */
    double stage_bytes; /* of the stage that keeps all values, as a point has them */
    double microbatch_bytes;
    double most_bytes; /* what the stage may take */
};

struct choice {
    const struct recompute_problem *s;
    const struct ap_stage_value *value;
    bool *again, *kept; /* value: not kept, kept for the backward pass */
    bool *runs;         /* group: recomputed */
    int *seen;          /* value: in the move of this number */
    int n_moves;
    double bytes;       /* of what is kept, and all the time */
    double *recomputed; /* block: recomputed at once */
    double most_recomputed;
    struct move move;
};

/* Bytes of a value that is kept. */
static double held(const struct recompute_problem *s, int v)
{
    const struct ap_stage_value *value = &s->weights->value[v];
    return value->bytes * (value->each ? s->flights : 1);
}

static bool will_run(const struct choice *c, const struct move *m, int group)
{
    for (int i = 0; i < m->n_runs; i++)
        if (m->run[i] == group)
            return true;
    return c->runs[group];
}

/* An operand of a group that runs again. */
static void need(struct choice *c, struct move *m, int v)
{
    const struct ap_stage_value *value = &c->value[v];
    int group = c->s->graph->nodes[v].group;

    if (c->kept[v] || c->again[v] || value->bytes == 0 || c->seen[v] == c->n_moves)
        return;
    c->seen[v] = c->n_moves;
    if (!value->may) {
        m->kept[m->n_kept++] = v;
        m->saved -= held(c->s, v);
        return;
    }
    m->again[m->n_again++] = v;
    if (will_run(c, m, group))
        return;
    if (m->n_runs == MOST_RUNS)
        m->saved = -INFINITY;
    else
        m->run[m->n_runs++] = group;
}

/* The way to do without a value; what it saves per second. */
static double try_move(struct choice *c, int v)
{
    struct move *m = &c->move;
    int group = c->s->graph->nodes[v].group;

    c->n_moves++;
    m->n_runs = m->n_again = m->n_kept = 0;
    m->saved = held(c->s, v);
    m->sec = 0;
    m->again[m->n_again++] = v;
    c->seen[v] = c->n_moves;
    if (!c->runs[group])
        m->run[m->n_runs++] = group;
    for (int i = 0; i < m->n_runs && m->saved > 0; i++) {
        const struct ap_nest *nest = &c->s->nests->nest[m->run[i]];
        m->sec += c->s->weights->group_sec[m->run[i]];
        for (int k = 0; k < nest->n_ins; k++)
            need(c, m, nest->ins[k].node);
    }
    if (!(m->saved > 0))
        return 0;
    return m->sec > 0 ? m->saved / m->sec : DBL_MAX;
}

/* Its other values cost nothing more. */
static void cheapen(const struct choice *c, int group, struct ap_heap *heap)
{
    const struct ap_nest *nest = &c->s->nests->nest[group];
    for (int o = 0; o < nest->n_outs; o++)
        if (c->kept[nest->outs[o]] && c->value[nest->outs[o]].may)
            ap_heap_push(heap, &(struct item){DBL_MAX, nest->outs[o]});
}

static void do_move(struct choice *c, struct ap_heap *heap)
{
    const struct move *m = &c->move;

    for (int i = 0; i < m->n_again; i++) {
        int v = m->again[i];
        const struct ap_stage_value *value = &c->value[v];
        c->again[v] = true;
        c->kept[v] = false;
        if (value->kept)
            c->recomputed[value->reader] += value->bytes;
        if (c->recomputed[value->reader] > c->most_recomputed)
            c->most_recomputed = c->recomputed[value->reader];
    }
    for (int i = 0; i < m->n_kept; i++) {
        c->kept[m->kept[i]] = true;
        if (c->value[m->kept[i]].may)
            ap_heap_push(heap, &(struct item){DBL_MAX, m->kept[i]});
    }
    for (int i = 0; i < m->n_runs; i++)
        c->runs[m->run[i]] = true;
    for (int i = 0; i < m->n_runs; i++)
        cheapen(c, m->run[i], heap);
    c->bytes -= m->saved;
}

static void start(struct ap_arena *arena, const struct recompute_problem *s,
                  struct choice *c)
{
    int n = s->graph->n_nodes;

    *c = (struct choice){
        .s = s,
        .value = s->weights->value,
        .again = AP_NEW_N(arena, n, bool),
        .kept = AP_NEW_N(arena, n, bool),
        .runs = AP_NEW_N(arena, s->nests->n, bool),
        .seen = AP_NEW_N(arena, n, int),
        .bytes = s->stage_bytes + s->flights * s->microbatch_bytes,
        .recomputed = AP_NEW_N(arena, s->weights->n_blocks, double),
        .move = {.again = AP_NEW_N(arena, n, int), .kept = AP_NEW_N(arena, n, int)}};
    for (int v = 0; v < n; v++)
        c->kept[v] = c->value[v].kept;
}

/* Which values to do without, greedily; they are in c->again. */
static void take_best(struct choice *c)
{
    struct ap_heap heap = {.size = sizeof(struct item), .before = is_before};
    struct item best;

    for (int v = 0; v < c->s->graph->n_nodes; v++) {
        double rate = c->kept[v] && c->value[v].may ? try_move(c, v) : 0;
        if (rate > 0)
            ap_heap_push(&heap, &(struct item){rate, v});
    }
    while (c->bytes + c->most_recomputed > c->s->most_bytes &&
           ap_heap_pop(&heap, &best)) {
        double rate = c->again[best.value] ? 0 : try_move(c, best.value);
        struct item now = {rate, best.value};
        if (rate > 0 && heap.n > 0 && is_before(ap_heap_top(&heap), &now))
            ap_heap_push(&heap, &now);
        else if (rate > 0)
            do_move(c, &heap);
    }
    ap_heap_free(&heap);
}

/* ---- what need not be recomputed after all ---- */

/* What a trial changed, to be taken back. */
struct change {
    enum { KEEPS, STOPS, NOT_AGAIN, NOT_KEPT } kind; /* a value, a group, two values */
    int id;
};

struct settled {
    const struct recompute_problem *s;
    const struct ap_stage_value *value;
    bool *again, *kept, *runs;
    int *n_readers; /* value: groups that run and read it */
    double bytes, sec, *recomputed, most_recomputed;
    int n_log;
    struct change *log;
};

static void find_most(struct settled *t)
{
    t->most_recomputed = 0;
    for (int b = 0; b < t->s->weights->n_blocks; b++)
        if (t->recomputed[b] > t->most_recomputed)
            t->most_recomputed = t->recomputed[b];
}

static bool fits(const struct settled *t)
{
    return t->bytes + t->most_recomputed <= t->s->most_bytes;
}

static void count_readers(struct settled *t, int group, int change)
{
    const struct ap_nest *nest = &t->s->nests->nest[group];
    for (int k = 0; k < nest->n_ins; k++)
        t->n_readers[nest->ins[k].node] += change;
}

/* Of the values in `without` those that are needed are recomputed, the others kept. */
static void settle(struct ap_arena *arena, const struct recompute_problem *s,
                   const bool *without, struct settled *t)
{
    const struct ap_stage_value *value = s->weights->value;
    int n = s->graph->n_nodes;

    *t = (struct settled){.s = s,
                          .value = value,
                          .again = AP_NEW_N(arena, n, bool),
                          .kept = AP_NEW_N(arena, n, bool),
                          .runs = AP_NEW_N(arena, s->nests->n, bool),
                          .n_readers = AP_NEW_N(arena, n, int),
                          .recomputed = AP_NEW_N(arena, s->weights->n_blocks, double),
                          .log = AP_NEW_N(arena, n + s->nests->n, struct change)};
    t->bytes = s->stage_bytes + s->flights * s->microbatch_bytes;
    for (int i = s->nests->n - 1; i >= 0; i--) { /* readers before what they read */
        const struct ap_nest *nest = &s->nests->nest[i];
        for (int o = 0; o < nest->n_outs; o++) {
            int v = nest->outs[o];
            bool needed = value[v].kept || t->n_readers[v] > 0;
            t->again[v] = needed && value[v].may && without[v];
            t->kept[v] = needed && !t->again[v];
            t->runs[i] |= t->again[v];
            t->bytes += held(s, v) * ((int)t->kept[v] - (int)value[v].kept);
            if (t->again[v] && value[v].kept)
                t->recomputed[value[v].reader] += value[v].bytes;
        }
        t->sec += t->runs[i] ? s->weights->group_sec[i] : 0;
        if (t->runs[i])
            count_readers(t, i, 1);
    }
    find_most(t);
}

static void note(struct settled *t, int kind, int id)
{
    t->log[t->n_log].kind = kind;
    t->log[t->n_log++].id = id;
}

/* A group that nothing needs any more, and with it what was there for it. */
static void stop_group(struct settled *t, int group)
{
    const struct ap_nest *nest = &t->s->nests->nest[group];

    for (int o = 0; o < nest->n_outs; o++)
        if (t->again[nest->outs[o]])
            return;
    t->runs[group] = false;
    t->sec -= t->s->weights->group_sec[group];
    note(t, STOPS, group);
    count_readers(t, group, -1);
    for (int k = 0; k < nest->n_ins; k++) {
        int v = nest->ins[k].node;
        if (t->n_readers[v] > 0 || t->value[v].kept || !(t->again[v] || t->kept[v]))
            continue;
        note(t, t->again[v] ? NOT_AGAIN : NOT_KEPT, v);
        t->bytes -= t->kept[v] ? held(t->s, v) : 0;
        t->again[v] = t->kept[v] = false;
    }
}

static void take_back(struct settled *t)
{
    while (t->n_log > 0) {
        struct change c = t->log[--t->n_log];
        switch (c.kind) {
        case STOPS:
            t->runs[c.id] = true;
            count_readers(t, c.id, 1);
            break;
        case NOT_AGAIN:
            t->again[c.id] = true;
            break;
        case NOT_KEPT:
            t->kept[c.id] = true;
            t->bytes += held(t->s, c.id);
            break;
        case KEEPS:
            t->again[c.id] = true;
            t->kept[c.id] = false;
            t->bytes -= held(t->s, c.id);
            if (t->value[c.id].kept)
                t->recomputed[t->value[c.id].reader] += t->value[c.id].bytes;
            break;
        }
    }
}

/* Keeps a value that is recomputed, if there is room and that saves time. */
static void try_keep(struct settled *t, int v)
{
    double sec = t->sec, most = t->most_recomputed;
    double *recomputed = &t->recomputed[t->value[v].reader];

    t->n_log = 0;
    note(t, KEEPS, v);
    t->again[v] = false;
    t->kept[v] = true;
    t->bytes += held(t->s, v);
    if (t->value[v].kept) {
        bool was_most = *recomputed == most;
        *recomputed -= t->value[v].bytes;
        if (was_most)
            find_most(t);
    }
    for (int i = 0; i < t->n_log; i++)
        if ((t->log[i].kind == KEEPS || t->log[i].kind == NOT_AGAIN) &&
            t->runs[t->s->graph->nodes[t->log[i].id].group])
            stop_group(t, t->s->graph->nodes[t->log[i].id].group);
    if (!fits(t) || t->sec >= sec) {
        take_back(t);
        t->sec = sec;
        t->most_recomputed = most;
    }
}

static int compare_items(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    return is_before(a, b) ? -1 : is_before(b, a);
}

/* What takes most seconds per byte first. */
static void keep_more(struct ap_arena *arena, struct settled *t)
{
    int n = 0;
    struct item *item = AP_NEW_N(arena, t->s->graph->n_nodes, struct item);

    for (int v = 0; v < t->s->graph->n_nodes; v++)
        if (t->again[v])
            item[n++] = (struct item){
                t->s->weights->group_sec[t->s->graph->nodes[v].group] / t->value[v].bytes,
                v};
    qsort(item, (size_t)n, sizeof *item, compare_items);
    for (int i = 0; i < n; i++)
        if (t->again[item[i].value])
            try_keep(t, item[i].value);
}

/*
 * Marks values ([node of graph], all false before) that are not kept, so that the stage
 * takes no more than most_bytes; none where it does not anyway. 1: it takes more,
 * whatever it recomputes.
 */
static int select_values(struct ap_arena *arena, const struct recompute_problem *s,
                         bool *again)
{
    int n = s->graph->n_nodes;
    struct choice c;
    struct settled t[2];
    bool *all = AP_NEW_N(arena, n, bool);

    start(arena, s, &c);
    take_best(&c);
    memset(all, true, (size_t)n);
    settle(arena, s, c.again, &t[0]);
    settle(arena, s, all, &t[1]);
    for (int i = 0; i < 2; i++)
        if (fits(&t[i]))
            keep_more(arena, &t[i]);
    int best = fits(&t[1]) && (!fits(&t[0]) || t[1].sec < t[0].sec);
    memcpy(again, t[best].again, (size_t)n * sizeof *again);
    return !fits(&t[best]);
}

/* ---- a plan ---- */

struct selecting {
    struct ap_arena *arena;
    struct ap_stages *stages;
    const struct ap_pipeline_price *all; /* the plan as it came */
    double *slack; /* [device]: bytes that its stages may take more */
    int *n_again;  /* [device]: stages that recompute their blocks */
};

/* Microbatches of stage i that its device holds at most. */
static double flights_of(const struct ap_pipeline_price *p, int i)
{
    const struct ap_sim_device *d = &p->result.devices[ap_sim_device_of(&p->sim, i)];
    const enum ap_pass last =
        ap_schedule_traits[p->sim.schedule].splits ? AP_PASS_WEIGHTS : AP_PASS_BACKWARD;
    int now = 0, most = 1;

    for (int k = 0; k < d->n_slices; k++) {
        if (d->slices[k].instr.stage != i)
            continue;
        const enum ap_pass pass = d->slices[k].instr.pass;
        now += pass == AP_PASS_FORWARD ? 1 : pass == last ? -1 : 0;
        most = now > most ? now : most;
    }
    return most;
}

/* Ids of the whole graph, ascending. */
static void put_recomputed(struct ap_arena *arena, struct ap_stage *st, const bool *again)
{
    int *list = AP_NEW_N(arena, st->sub.graph.n_nodes, int), n = 0;

    for (int v = 0; v < st->sub.graph.n_nodes; v++)
        if (again[v])
            list[n++] = st->sub.source[v];
    qsort(list, (size_t)n, sizeof *list, ap_compare_int);
    st->recompute = n > 0 ? AP_RECOMPUTE_SELECTED : AP_RECOMPUTE_NONE;
    st->recomputed = list;
    st->n_recomputed = n;
}

/* Chooses for a stage that recomputed its blocks, within so many bytes more. */
static void select_stage(const struct selecting *x, int i, double more)
{
    struct ap_arena *arena = x->arena;
    struct ap_stage *st = &x->stages->stage[i];
    const struct ap_plan *plan = &st->sharding.plan;
    const struct ap_stage_breakdown *part = &x->all->breakdown[i];
    struct ap_cost cost = part->cost;
    struct ap_stage_weights weights;
    struct ap_stage_point point[2] = {{0}}, some = {0};
    bool *again = AP_NEW_N(arena, st->sub.graph.n_nodes, bool);

    cost.cache = NULL;
    ap_stage_price(
        arena,
        &(struct ap_stage_plan){&st->sub, &x->all->micro, plan, &part->conv, &cost},
        point);
    ap_stage_weigh(
        arena,
        &(struct ap_stage_plan){&st->sub, &x->all->micro, plan, &part->conv, &cost},
        &weights);
    struct recompute_problem s = {.graph = &st->sub.graph,
                                  .nests = &st->nests,
                                  .weights = &weights,
                                  .flights = flights_of(x->all, i),
                                  .stage_bytes = (double)point[0].stage_bytes,
                                  .microbatch_bytes = (double)point[0].microbatch_bytes};
    s.most_bytes = (double)point[1].stage_bytes +
                   s.flights * (double)point[1].microbatch_bytes + more;
    bool fits = select_values(arena, &s, again) == 0;
    ap_stage_price_recomputed(
        arena,
        &(struct ap_stage_plan){&st->sub, &x->all->micro, plan, &part->conv, &cost},
        again, &some);
    ap_cost_free(&cost);
    if (fits && some.backward_sec < point[1].backward_sec)
        put_recomputed(arena, st, again);
}

/* All stages that recompute their blocks, each within its part of its device's slack. */
static void select_all(const struct selecting *x)
{
    for (int i = 0; i < x->stages->n; i++) {
        const int d = ap_stages_device(x->stages, i);
        if (x->stages->stage[i].recompute == AP_RECOMPUTE_ALL && x->slack[d] >= 0)
            select_stage(x, i, x->slack[d] / x->n_again[d]);
    }
}

/* Whether some device needs more than the memory, and more than it did. */
static bool needs_more(const struct ap_pipeline_price *p,
                       const struct ap_pipeline_price *was, const int64_t *memory_bytes)
{
    for (int d = 0; d < p->result.n_devices; d++)
        if (p->result.devices[d].peak_bytes > memory_bytes[d] &&
            p->result.devices[d].peak_bytes > was->result.devices[d].peak_bytes)
            return true;
    return false;
}

/* Selections that are priced: each stage is promised its part of what its device has
 * left, which then turns out to be more or less, since stages of one device do not hold
 * most at the same time and have a pass one at a time. */
#define MOST_ROUNDS 4    /* one: tests/recompute.bats fails, chunks of one device */
#define LITTLE      0.01 /* of a device's memory: no round is for so little */

/* Gives stages what their devices have left, or takes what they have too much of; whether
 * that is worth another round. */
static bool share_again(struct selecting *x, const struct ap_pipeline_price *now,
                        const int64_t *memory_bytes)
{
    bool worth = false;

    for (int d = 0; d < now->result.n_devices; d++) {
        const double left = (double)(memory_bytes[d] - now->result.devices[d].peak_bytes);
        if (x->n_again[d] == 0 || x->slack[d] < 0 ||
            (left >= 0 && left < LITTLE * (double)memory_bytes[d]))
            continue;
        worth |= x->slack[d] > 0 || left > 0;
        x->slack[d] = fmax(0, x->slack[d] + left);
    }
    return worth;
}

int recompute_select_stages(struct ap_arena *arena, const struct ap_staged_graph *of,
                            const int64_t *memory_bytes, bool fills,
                            struct ap_stages *stages, struct ap_pipeline_price *price,
                            struct ap_err *err)
{
    const struct ap_pipeline_price all = *price;
    struct ap_pipeline_price now;
    const size_t size = (size_t)stages->n * sizeof *stages->stage;
    int n_devices = all.result.n_devices;
    struct ap_stage *given = ap_arena_dup(arena, stages->stage, size);
    struct ap_stage *best = ap_arena_dup(arena, stages->stage, size);
    struct selecting x = {.arena = arena,
                          .stages = stages,
                          .all = &all,
                          .slack = AP_NEW_N(arena, n_devices, double),
                          .n_again = AP_NEW_N(arena, n_devices, int)};
    bool more = true;

    for (int d = 0; d < n_devices; d++)
        x.slack[d] = (double)(memory_bytes[d] - all.result.devices[d].peak_bytes);
    for (int i = 0; i < stages->n; i++)
        x.n_again[ap_stages_device(stages, i)] += given[i].recompute == AP_RECOMPUTE_ALL;
    for (int i = 0; i < (fills ? MOST_ROUNDS : 1) && more; i++) {
        memcpy(stages->stage, given, size);
        select_all(&x);
        if (ap_pipeline_price(arena, of, stages, &now, err))
            return -1;
        more = share_again(&x, &now, memory_bytes);
        if (needs_more(&now, &all, memory_bytes) ||
            now.result.step_sec > price->result.step_sec)
            continue;
        memcpy(best, stages->stage, size);
        *price = now;
    }
    memcpy(stages->stage, best, size);
    return 0;
}
