/*
 * Problem: of two plans one fits and is dear, the other is cheap and too large; between
 * them lie plans in which only some layers choose the dear way. A limit that k of L
 * layers must meet has its best plans there.
 * Idea: groups and copies that the plans treat differently fall into parts, connected
 * within one layer. The model prices and weighs a plan without its program. First the
 * best run of layers, from the first or to the last one, is taken over, for a layer alone
 * may have to convert at both ends; then parts one by one, by what they save for the
 * bytes that they add, as long as the model says that the limit is kept; then the program
 * is made. Where it needs more than the model sees, the model's limit is lowered by that.
 * Cost: a look at all tables per part and layer, and a few programs.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory_search.h"

#define MOST_PARTS 256
#define MOST_RUNS  32
#define PROGRAMS   4

/* A plan by the model. */
struct weighed {
    double sec;
    int64_t peak;
};

struct blend_part {
    int id;
    double gain, bytes; /* taken over alone: seconds saved, bytes more at the peak */
};

static struct weighed weigh(struct hunt *h, struct ap_arena *scratch, int *choice)
{
    struct ap_mark mark = ap_arena_mark(scratch);
    int64_t *held = AP_NEW_N(scratch, h->whole.model.n_times, int64_t);
    struct weighed w = {0};

    mem_settle_copies(&h->whole.model, &h->whole.ip, NULL, choice);
    w.sec = mem_plan_score(&h->whole.model, &h->whole.ip, choice);
    mem_model_held(&h->whole.model, choice, held);
    for (int t = 0; t < h->whole.model.n_times; t++)
        w.peak = held[t] > w.peak ? held[t] : w.peak;
    ap_arena_rewind(scratch, mark);
    return w;
}

static int root(int *up, int i)
{
    while (up[i] != i)
        i = up[i] = up[up[i]];
    return i;
}

static bool same_layer(const struct hunt *h, int a, int b)
{
    return h->layers.family[a] == h->layers.family[b] &&
           h->layers.instance[a] == h->layers.instance[b];
}

/*
 * part[node of the problem], -1 where the choices are the same. A copy goes with its
 * tensor's group; if only the copy differs that group is a part, too. layer[node] is -1
 * outside of layers.
 */
static int find_parts(struct ap_arena *arena, const struct hunt *h, const int *from,
                      const int *to, int *part, int *layer)
{
    const struct ap_nests *nests = h->task->nests;
    const struct mem_model *m = &h->whole.model;
    const struct ap_problem *p = &h->whole.ip.problem;
    int *up = AP_NEW_N(arena, nests->n, int), *name = AP_NEW_N(arena, nests->n, int);
    bool *differs = AP_NEW_N(arena, p->n_nodes, bool);
    int n = 0;

    for (int i = 0; i < nests->n; i++) {
        up[i] = i;
        differs[h->whole.ip.var[i]] = from[h->whole.ip.var[i]] != to[h->whole.ip.var[i]];
    }
    for (int c = 0; c < m->n_copies; c++)
        if ((from[m->n_vars + c] == MEM_TWICE) != (to[m->n_vars + c] == MEM_TWICE))
            differs[p->edges[m->copy[c].home_edge].a] = true;
    for (int i = 0; i < nests->n; i++)
        for (int k = 0; k < nests->nest[i].n_ins && differs[h->whole.ip.var[i]]; k++) {
            int maker = h->task->graph->nodes[nests->nest[i].ins[k].node].group;
            if (differs[h->whole.ip.var[maker]] && same_layer(h, i, maker))
                up[root(up, i)] = root(up, maker);
        }
    for (int v = 0; v < p->n_nodes; v++)
        part[v] = -1;
    for (int i = 0; i < nests->n; i++) {
        if (!differs[h->whole.ip.var[i]])
            continue;
        int *id = &name[root(up, i)];
        if (*id == 0)
            *id = ++n;
        part[h->whole.ip.var[i]] = *id - 1;
        layer[h->whole.ip.var[i]] = h->layers.instance[i];
    }
    for (int c = 0; c < m->n_copies; c++) {
        part[m->n_vars + c] = part[p->edges[m->copy[c].home_edge].a];
        layer[m->n_vars + c] = layer[p->edges[m->copy[c].home_edge].a];
    }
    for (int v = 0; v < p->n_nodes && n > MOST_PARTS; v++)
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

static void take(int *choice, const int *from, const int *part, int id, int n)
{
    for (int v = 0; v < n; v++)
        if (part[v] == id)
            choice[v] = from[v];
}

/* Parts that save anything alone, the worthiest first. */
static int rank_parts(struct hunt *h, struct ap_arena *scratch, const int *base,
                      const int *cheap, const int *part, int n_parts,
                      struct blend_part *list)
{
    const int n_nodes = h->whole.ip.problem.n_nodes;
    int *trial = AP_NEW_N(scratch, n_nodes, int), n = 0;

    memcpy(trial, base, (size_t)n_nodes * sizeof *trial);
    const struct weighed from = weigh(h, scratch, trial);
    for (int i = 0; i < n_parts; i++) {
        memcpy(trial, base, (size_t)n_nodes * sizeof *trial);
        take(trial, cheap, part, i, n_nodes);
        const struct weighed w = weigh(h, scratch, trial);
        if (w.sec < from.sec)
            list[n++] = (struct blend_part){i, from.sec - w.sec,
                                            fmax((double)(w.peak - from.peak), 1)};
    }
    qsort(list, (size_t)n, sizeof *list, by_worth);
    return n;
}

/* base takes over, in order, what keeps the model's limit and saves. */
static struct weighed take_over(struct hunt *h, struct ap_arena *scratch,
                                const int *cheap, const int *part,
                                const struct blend_part *list, int n, int64_t limit,
                                int *base)
{
    const int n_nodes = h->whole.ip.problem.n_nodes;
    int *trial = AP_NEW_N(scratch, n_nodes, int);
    struct weighed now = weigh(h, scratch, base);

    for (int i = 0; i < n; i++) {
        memcpy(trial, base, (size_t)n_nodes * sizeof *trial);
        take(trial, cheap, part, list[i].id, n_nodes);
        const struct weighed w = weigh(h, scratch, trial);
        if (w.peak > limit || w.sec >= now.sec)
            continue;
        memcpy(base, trial, (size_t)n_nodes * sizeof *trial);
        now = w;
    }
    return now;
}

/*
 * The cheapest plan within the model's limit in which the layers of a run, from the first
 * one or to the last one, and all or nothing of the rest are as in `cheap`. In place of
 * base if it is cheaper.
 */
static void take_run(struct hunt *h, struct ap_arena *scratch, const int *cheap,
                     const int *part, const int *layer, int64_t limit, int *base)
{
    const int n_nodes = h->whole.ip.problem.n_nodes;
    int *trial = AP_NEW_N(scratch, n_nodes, int), *dear = AP_NEW_N(scratch, n_nodes, int);
    double best = weigh(h, scratch, base).sec;
    int n_layers = 0;

    memcpy(dear, base, (size_t)n_nodes * sizeof *dear);
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
                trial[v] = part[v] >= 0 && in_run ? cheap[v] : dear[v];
            }
            const struct weighed w = weigh(h, scratch, trial);
            if (w.peak > limit || w.sec >= best)
                continue;
            best = w.sec;
            memcpy(base, trial, (size_t)n_nodes * sizeof *base);
        }
}

void hunt_blend(struct hunt *h, const int *dear, const int *cheap)
{
    struct ap_arena scratch = {0};
    const int n_nodes = h->whole.ip.problem.n_nodes;
    int *part = AP_NEW_N(&scratch, n_nodes, int);
    int *choice = AP_NEW_N(&scratch, n_nodes, int);
    int *layer = AP_NEW_N(&scratch, n_nodes, int);
    int n_parts = find_parts(&scratch, h, dear, cheap, part, layer);
    struct blend_part *list = AP_NEW_N(&scratch, n_parts + 1, struct blend_part);
    int n = rank_parts(h, &scratch, dear, cheap, part, n_parts, list);
    int64_t limit = h->task->memory_bytes, peak = limit;

    for (int i = 0; i < PROGRAMS && n_parts > 0; i++) {
        memcpy(choice, dear, (size_t)n_nodes * sizeof *choice);
        take_run(h, &scratch, cheap, part, layer, limit, choice);
        struct weighed w = take_over(h, &scratch, cheap, part, list, n, limit, choice);
        if (w.sec >= h->best_sec)
            break;
        struct ap_plan plan = mem_plan_of(&h->whole.model, &h->whole.ip, choice);
        peak = hunt_measure(h, &plan);
        if (peak <= h->task->memory_bytes || peak == INT64_MAX)
            break;
        limit = w.peak - (peak - h->task->memory_bytes);
    }
    ap_arena_free(&scratch);
}
