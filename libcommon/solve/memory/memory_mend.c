/*
 * Problem: of two choices one fits and is expensive, the other is cheap and too large;
 * between them lie choices in which only some layers choose the expensive way. A limit
 * that k of L layers must meet has its best choices there.
 * Idea: nodes and copies that the choices treat differently fall into parts, connected
 * within one layer. The model prices and weighs a choice without its program. First the
 * best run of layers, from the first or to the last one, is taken over, for a layer alone
 * may have to convert at both ends; then parts one by one, by what they save for the
 * bytes that they add, as long as the model says that the limit is kept; then the program
 * is measured. Where it needs more than the model sees, the model's limit is lowered by
 * that.
 * In the end the best choice changes single variables; a problem so small that all
 * changes of three or more are looked at has them tried from all choices met. Cost: a
 * look at all tables per part and layer, and per change; and a few programs.
 */
#include "solve/memory/memory_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/union_find.h"

#define MEASURED   1000 /* cells of work per us of a program */
#define MOST_PARTS 256
#define MOST_RUNS  32
#define PROGRAMS   4
#define MOST_SEEN  4096 /* choices measured that are remembered */

/* ---- measuring ---- */

static bool spent(const struct memory_search *ms)
{
    return search_is_late(ms) ||
           ms->n_measured * ms->task->program_work > memory_tuning.program_effort;
}

/* A choice that was measured, by a hash of it. */
struct search_seen {
    uint64_t hash;
    double sec;
    int64_t peak;
};

/* The choice's place: a later choice may take that of another one. */
static struct search_seen *find_seen(struct memory_search *ms, const int *choice,
                                     bool again, uint64_t *hash)
{
    const struct ap_memory *m = ms->model;

    *hash = ap_hash(choice, (size_t)m->n_vars * sizeof *choice, 1 + again);
    for (int c = 0; c < m->n_copies; c++) {
        const int state = choice[m->n_vars + c];
        if (state == AP_COPY_AGAIN || (again && state == AP_COPY_KEPT))
            *hash = ap_hash(&c, sizeof c, *hash);
    }
    if (!ms->seen)
        ms->seen = AP_NEW_N(ms->arena, MOST_SEEN, struct search_seen);
    return &ms->seen[*hash % MOST_SEEN];
}

/* A choice by the model. */
struct weighed {
    double sec;
    int64_t peak;
};

static struct weighed weigh(struct memory_search *ms, struct ap_arena *scratch,
                            int *choice)
{
    struct ap_mark mark = ap_arena_mark(scratch);
    int64_t *held = AP_NEW_N(scratch, ms->model->n_times, int64_t);
    struct weighed w = {0};

    ap_memory_settle(ms->model, NULL, choice);
    w.sec = ap_memory_score(ms->model, choice);
    ap_memory_held(ms->model, choice, held);
    for (int t = 0; t < ms->model->n_times; t++)
        w.peak = held[t] > w.peak ? held[t] : w.peak;
    ap_arena_rewind(scratch, mark);
    return w;
}

/* As ap_measure.program, or by the model. */
static bool find_peak(struct memory_search *ms, const int *choice, bool again,
                      double *sec, int64_t *peak)
{
    const size_t size = (size_t)ms->model->problem->n_nodes * sizeof *choice;
    const struct ap_measure *measure = &ms->task->measure;
    struct ap_arena scratch = {0};

    if (measure->program)
        return measure->program(measure->arg, choice, again, sec, peak);
    if (again)
        return false;
    const struct weighed w = weigh(ms, &scratch, ap_arena_dup(&scratch, choice, size));
    *sec = w.sec < AP_FORBIDDEN ? w.sec : INFINITY;
    *peak = w.peak;
    ap_arena_free(&scratch);
    return true;
}

/* The same once per choice; keeps the best that fits. */
static bool measure(struct memory_search *ms, const int *choice, bool again, double *sec,
                    int64_t *peak)
{
    const struct ap_memory *m = ms->model;
    uint64_t hash;
    struct search_seen *seen = find_seen(ms, choice, again, &hash);

    if (seen->hash == hash && seen->sec > 0) {
        *sec = seen->sec;
        *peak = seen->peak;
        return true;
    }
    if (!find_peak(ms, choice, again, sec, peak))
        return false;
    *seen = (struct search_seen){hash, *sec, *peak};
    ms->n_measured++;
    ap_work_add(ms->task->work, ms->task->program_work * MEASURED);
    if (*peak > ms->task->limit || *sec >= ms->best_sec)
        return true;
    ms->best_sec = *sec;
    ms->best = ap_arena_dup(ms->arena, choice,
                            (size_t)(m->n_vars + m->n_copies) * sizeof *choice);
    for (int c = m->n_vars; c < m->n_vars + m->n_copies && again; c++)
        if (ms->best[c] == AP_COPY_KEPT)
            ms->best[c] = AP_COPY_AGAIN;
    return true;
}

int64_t search_measure(struct memory_search *ms, const int *choice)
{
    double sec;
    int64_t peak;

    measure(ms, choice, false, &sec, &peak);
    return peak;
}

int64_t search_try(struct memory_search *ms, const int *choice)
{
    double sec;
    int64_t peak, smaller = INT64_MAX;

    measure(ms, choice, false, &sec, &peak);
    if (peak > ms->task->limit)
        measure(ms, choice, true, &sec, &smaller);
    return smaller < peak ? smaller : peak;
}

/* ---- parts ---- */

struct blend_part {
    int id;
    double gain, bytes; /* taken over alone: seconds saved, bytes more at the peak */
};

static bool same_layer(const struct memory_search *ms, int a, int b)
{
    return ms->task->family[a] == ms->task->family[b] &&
           ms->task->layer[a] == ms->task->layer[b];
}

static int home_of(const struct ap_memory *m, int copy)
{
    return m->problem->edges[m->copy[copy].home_edge].a;
}

/* Joins variables that differ, in one layer, and are neighbours. */
static void join_parts(const struct memory_search *ms, const bool *differs, int *up)
{
    const struct ap_memory *m = ms->model;
    const struct ap_problem *p = m->problem;

    for (int e = 0; e < p->n_edges; e++) {
        const int b = p->edges[e].b;
        int a = p->edges[e].a;
        if (a >= m->n_vars)
            a = home_of(m, a - m->n_vars);
        if (b < m->n_vars && differs[a] && differs[b] && same_layer(ms, a, b))
            ap_sets_join(up, a, b);
    }
}

/*
 * part[node of the problem], -1 where the choices are the same. A copy goes with its
 * home; if only the copy differs the home is a part, too. layer[node] is -1 outside of
 * layers.
 */
static int find_parts(struct ap_arena *arena, const struct memory_search *ms,
                      const int *from, const int *to, int *part, int *layer)
{
    const struct ap_memory *m = ms->model;
    int *up = ap_sets_new(arena, m->n_vars), *name = AP_NEW_N(arena, m->n_vars, int);
    bool *differs = AP_NEW_N(arena, m->n_vars, bool);
    int n = 0;

    for (int v = 0; v < m->n_vars; v++)
        differs[v] = from[v] != to[v];
    for (int c = 0; c < m->n_copies; c++)
        if ((from[m->n_vars + c] == AP_COPY_AGAIN) !=
            (to[m->n_vars + c] == AP_COPY_AGAIN))
            differs[home_of(m, c)] = true;
    join_parts(ms, differs, up);
    for (int v = 0; v < m->n_vars; v++) {
        int *id = &name[ap_sets_root(up, v)];
        part[v] = -1;
        if (!differs[v])
            continue;
        if (*id == 0)
            *id = ++n;
        part[v] = *id - 1;
        layer[v] = ms->task->layer[v];
    }
    for (int c = 0; c < m->n_copies; c++) {
        part[m->n_vars + c] = part[home_of(m, c)];
        layer[m->n_vars + c] = layer[home_of(m, c)];
    }
    for (int v = 0; v < m->n_vars + m->n_copies && n > MOST_PARTS; v++)
        part[v] = part[v] < 0 ? -1 : (int)((int64_t)part[v] * MOST_PARTS / n);
    return n < MOST_PARTS ? n : MOST_PARTS;
}

static int by_worth(const void *x, const void *y)
{
    const struct blend_part *a = x, *b = y;
    const double p = a->gain * b->bytes, q = b->gain * a->bytes;

    if (p != q)
        return p > q ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* Two choices, and how they differ. */
struct blend {
    const int *fits, *cheap; /* the choices */
    const int *part, *layer; /* [variable] */
    int n;                   /* parts worth taking from `cheap`, the worthiest first */
    struct blend_part *list;
};

static void take(int *choice, const int *from, const int *part, int id, int n)
{
    for (int v = 0; v < n; v++)
        if (part[v] == id)
            choice[v] = from[v];
}

/* Parts that save anything alone, the worthiest first. */
static void rank_parts(struct memory_search *ms, struct ap_arena *scratch,
                       struct blend *b, int n_parts)
{
    const int n_nodes = ms->model->problem->n_nodes;
    int *trial = AP_NEW_N(scratch, n_nodes, int);

    b->list = AP_NEW_N(scratch, n_parts + 1, struct blend_part);
    memcpy(trial, b->fits, (size_t)n_nodes * sizeof *trial);
    const struct weighed from = weigh(ms, scratch, trial);
    for (int i = 0; i < n_parts; i++) {
        memcpy(trial, b->fits, (size_t)n_nodes * sizeof *trial);
        take(trial, b->cheap, b->part, i, n_nodes);
        const struct weighed w = weigh(ms, scratch, trial);
        if (w.sec < from.sec)
            b->list[b->n++] = (struct blend_part){i, from.sec - w.sec,
                                                  fmax((double)(w.peak - from.peak), 1)};
    }
    qsort(b->list, (size_t)b->n, sizeof *b->list, by_worth);
}

/* base takes over, in order, what keeps the model's limit and saves. */
static struct weighed take_over(struct memory_search *ms, struct ap_arena *scratch,
                                const struct blend *b, int64_t limit, int *base)
{
    const int n_nodes = ms->model->problem->n_nodes;
    int *trial = AP_NEW_N(scratch, n_nodes, int);
    struct weighed now = weigh(ms, scratch, base);

    for (int i = 0; i < b->n; i++) {
        memcpy(trial, base, (size_t)n_nodes * sizeof *trial);
        take(trial, b->cheap, b->part, b->list[i].id, n_nodes);
        const struct weighed w = weigh(ms, scratch, trial);
        if (w.peak > limit || w.sec >= now.sec)
            continue;
        memcpy(base, trial, (size_t)n_nodes * sizeof *trial);
        now = w;
    }
    return now;
}

/*
 * The cheapest choice within the model's limit in which the layers of a run, from the
 * first one or to the last one, and all or nothing of the rest are as in `cheap`. In
 * place of base if it is cheaper.
 */
static void take_run(struct memory_search *ms, struct ap_arena *scratch,
                     const struct blend *b, int64_t limit, int *base)
{
    const int *cheap = b->cheap, *part = b->part, *layer = b->layer;
    const int n_nodes = ms->model->problem->n_nodes;
    int *trial = AP_NEW_N(scratch, n_nodes, int), *fits = AP_NEW_N(scratch, n_nodes, int);
    double best = weigh(ms, scratch, base).sec;
    int n_layers = 0;

    memcpy(fits, base, (size_t)n_nodes * sizeof *fits);
    for (int v = 0; v < n_nodes; v++)
        if (part[v] >= 0 && layer[v] >= n_layers)
            n_layers = layer[v] + 1;
    for (int k = 0; k <= n_layers && k <= MOST_RUNS; k++)
        for (int kind = 0; kind < 4; kind++) {
            const int n =
                (int)((int64_t)k * n_layers /
                      (n_layers < MOST_RUNS ? n_layers + (n_layers == 0) : MOST_RUNS));
            for (int v = 0; v < n_nodes; v++) {
                bool in_run = layer[v] < 0 ? kind & 1
                              : kind & 2   ? layer[v] >= n_layers - n
                                           : layer[v] < n;
                trial[v] = part[v] >= 0 && in_run ? cheap[v] : fits[v];
            }
            const struct weighed w = weigh(ms, scratch, trial);
            if (w.peak > limit || w.sec >= best)
                continue;
            best = w.sec;
            memcpy(base, trial, (size_t)n_nodes * sizeof *base);
        }
}

static void blend(struct memory_search *ms, const int *fits, const int *cheap)
{
    struct ap_arena scratch = {0};
    const int n_nodes = ms->model->problem->n_nodes;
    int *part = AP_NEW_N(&scratch, n_nodes, int);
    int *choice = AP_NEW_N(&scratch, n_nodes, int);
    int *layer = AP_NEW_N(&scratch, n_nodes, int);
    int n_parts = find_parts(&scratch, ms, fits, cheap, part, layer);
    struct blend b = {fits, cheap, part, layer, 0, NULL};
    int64_t limit = ms->task->limit;

    rank_parts(ms, &scratch, &b, n_parts);

    for (int i = 0; i < PROGRAMS && n_parts > 0; i++) {
        memcpy(choice, fits, (size_t)n_nodes * sizeof *choice);
        take_run(ms, &scratch, &b, limit, choice);
        struct weighed w = take_over(ms, &scratch, &b, limit, choice);
        if (w.sec >= ms->best_sec)
            break;
        int64_t peak = search_measure(ms, choice);
        if (peak <= ms->task->limit || peak == INT64_MAX)
            break;
        limit = w.peak - (peak - ms->task->limit);
    }
    ap_arena_free(&scratch);
}

void search_mend(struct memory_search *ms)
{
    for (int i = 0; i < ms->n_cuts && ms->best && !spent(ms); i++)
        if (ms->cut[i].sec < ms->best_sec)
            blend(ms, ms->best, ms->cut[i].choice);
}

/* ---- changes of few variables ---- */

/* Tries a choice if it may be the best one that fits; copies are settled anew. */
static void try_change(struct memory_search *ms, struct ap_arena *scratch,
                       const int *choice)
{
    const size_t n = (size_t)ms->model->problem->n_nodes;
    struct ap_mark mark = ap_arena_mark(scratch);
    int *trial = ap_arena_dup(scratch, choice, n * sizeof *trial);
    const struct weighed w = weigh(ms, scratch, trial);

    if (w.sec < ms->best_sec && w.peak <= ms->task->limit)
        search_try(ms, trial);
    ap_arena_rewind(scratch, mark);
}

/* Tries all changes of up to n variables from v on. */
static void change(struct memory_search *ms, struct ap_arena *scratch, int v, int n,
                   int *choice)
{
    for (; v < ms->model->n_vars; v++) {
        const int before = choice[v];
        for (int s = 0; s < ms->model->problem->n_strategies[v] && !spent(ms); s++) {
            choice[v] = s;
            if (s == before)
                continue;
            try_change(ms, scratch, choice);
            if (n > 1)
                change(ms, scratch, v + 1, n - 1, choice);
        }
        choice[v] = before;
    }
}

void search_change(struct memory_search *ms)
{
    const size_t size = (size_t)ms->model->problem->n_nodes * sizeof(int);
    struct ap_arena scratch = {0};
    double n_changes = 1;
    int n = 0;

    while (n < ms->model->n_vars &&
           n_changes * (double)ms->n_strategies / (n + 1) <= memory_tuning.changes)
        n_changes *= (double)ms->n_strategies / ++n;
    for (int i = 0; i < ms->n_cuts && n > 2 && !search_is_near(ms); i++)
        change(ms, &scratch, 0, n, ap_arena_dup(&scratch, ms->cut[i].choice, size));
    ap_arena_free(&scratch);
}
