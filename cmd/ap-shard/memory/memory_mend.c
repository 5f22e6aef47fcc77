/*
 * Problem: a plan that fits is dearer than one that is too large; what of the second one
 * can the first one take over?
 * Idea: groups that the two treat differently fall into connected parts (layers, most
 * often; long ones are cut in pieces). Each part is taken over by itself and measured;
 * then, by gain, all that fit together, one after the other. The same for weights that
 * are gathered again in each phase: those that may be kept are.
 * Cost: a program per part, in all a bounded number.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory_search.h"

#define MOST_PARTS 12
#define MOST_WORK  1600000 /* nodes * plans measured, of a search */
#define FEW_WORK   2000    /* strategies * nodes */
#define N_CHEAPER  2       /* plans to take over from */
#define MOST_SEEN  4096    /* plans measured that are remembered */

int *hunt_choice(const struct hunt *h, const struct ap_plan *plan)
{
    return shard_ilp_choice(h->arena, &h->whole.ip, plan);
}

/* ---- measuring ---- */

static struct ap_plan copy_plan(struct ap_arena *arena, const struct ap_plan *plan)
{
    struct ap_plan copy = *plan;
    const int n = plan->graph->n_nodes;

    copy.choice =
        ap_arena_dup(arena, plan->choice, (size_t)plan->nests->n * sizeof *plan->choice);
    copy.regather = AP_NEW_N(arena, n, bool);
    if (plan->regather)
        memcpy(copy.regather, plan->regather, (size_t)n * sizeof *plan->regather);
    return copy;
}

static bool spent(const struct hunt *h)
{
    return (int64_t)h->n_measured * h->task->graph->n_nodes > MOST_WORK;
}

/* A plan that was measured, by a hash of it. */
struct hunt_seen {
    uint64_t hash;
    double sec;
    int64_t peak;
};

/* The plan's place: a later plan may take that of another one. */
static struct hunt_seen *find_seen(struct hunt *h, const struct ap_plan *plan,
                                   uint64_t *hash)
{
    *hash = ap_hash(plan->choice, (size_t)plan->nests->n * sizeof *plan->choice, 1);
    for (int v = 0; v < plan->graph->n_nodes && plan->regather; v++)
        if (plan->regather[v])
            *hash = ap_hash(&v, sizeof v, *hash);
    if (!h->seen)
        h->seen = AP_NEW_N(h->arena, MOST_SEEN, struct hunt_seen);
    return &h->seen[*hash % MOST_SEEN];
}

/* True when the plan is the best now. What is too large by what is alive counts as that.
 */
static bool measure(struct hunt *h, const struct ap_plan *plan, double *sec,
                    int64_t *peak)
{
    const int64_t limit = h->task->memory_bytes;
    struct ap_plan heavy = *plan;
    bool better = false;
    int64_t alive;
    uint64_t hash;
    struct hunt_seen *seen = find_seen(h, plan, &hash);

    if (seen->hash == hash && seen->sec > 0) {
        *sec = seen->sec;
        *peak = seen->peak;
        return false;
    }
    heavy.recompute_heavy = h->task->params->recompute_heavy;
    mem_measure(&heavy, h->task->cost, limit, sec, peak, &alive);
    *seen = (struct hunt_seen){hash, *sec, *peak};
    h->n_measured++;
    if (*sec == INFINITY)
        return false;
    if (*peak < h->least_bytes) {
        h->least_bytes = *peak;
        h->least = copy_plan(h->arena, plan);
    }
    if (*peak <= limit && *sec < h->best_sec) {
        h->best_sec = *sec;
        h->best = copy_plan(h->arena, plan);
        better = true;
    }
    *peak = *peak > limit && alive > limit ? alive : *peak;
    seen->peak = *peak;
    return better;
}

/* Marks tensors whose forward copies later phases need; false when there are none. */
static bool mark_kept(struct hunt *h, struct ap_plan *plan)
{
    struct ap_arena scratch = {0};
    struct ap_conversions conv;
    struct ap_err err = {0};
    bool any = false;

    if (ap_plan_conversions(&scratch, plan, h->task->cost, &conv, &err) == 0)
        for (int i = 0; i < plan->nests->n; i++) {
            const struct ap_nest *nest = &plan->nests->nest[i];
            if (ap_plan_group_phase(plan->graph, nest) == AP_FORWARD)
                continue;
            for (int k = 0; k < nest->n_ins; k++) {
                int c = conv.in_conv[conv.in_start[i] + k];
                if (c < 0 || conv.conv[c].phase != AP_FORWARD)
                    continue;
                any |= !plan->regather[conv.conv[c].node];
                plan->regather[conv.conv[c].node] = true;
            }
        }
    ap_arena_free(&scratch);
    return any;
}

int64_t hunt_measure(struct hunt *h, const struct ap_plan *plan)
{
    double sec;
    int64_t peak;

    measure(h, plan, &sec, &peak);
    return peak;
}

int64_t hunt_try(struct hunt *h, const struct ap_plan *plan)
{
    struct ap_plan again = copy_plan(h->arena, plan);
    double sec;
    int64_t peak, smaller = INT64_MAX;

    measure(h, plan, &sec, &peak);
    if (peak > h->task->memory_bytes && mark_kept(h, &again))
        measure(h, &again, &sec, &smaller);
    return smaller < peak ? smaller : peak;
}

/* ---- parts ---- */

static int find(int *up, int i)
{
    while (up[i] != i)
        i = up[i] = up[up[i]];
    return i;
}

/* part[group] of the groups that the plans treat differently, -1 for others. */
static int find_parts(struct ap_arena *arena, const struct ap_plan *a,
                      const struct ap_plan *b, int *part)
{
    const struct ap_nests *nests = a->nests;
    int *up = AP_NEW_N(arena, nests->n, int), *name = AP_NEW_N(arena, nests->n, int);
    int n = 0, n_differ = 0;

    for (int i = 0; i < nests->n; i++) {
        up[i] = i;
        part[i] = memcmp(&a->choice[i], &b->choice[i], sizeof *a->choice) ? 0 : -1;
        n_differ += part[i] == 0;
    }
    for (int i = 0; i < nests->n; i++)
        for (int k = 0; k < nests->nest[i].n_ins && part[i] == 0; k++) {
            int from = a->graph->nodes[nests->nest[i].ins[k].node].group;
            if (part[from] == 0)
                up[find(up, i)] = find(up, from);
        }
    for (int i = 0; i < nests->n; i++)
        if (part[i] == 0 && name[find(up, i)] == 0)
            name[find(up, i)] = ++n;
    int size = n <= MOST_PARTS ? 1 : (n + MOST_PARTS - 1) / MOST_PARTS;
    for (int i = 0; i < nests->n; i++)
        if (part[i] == 0)
            part[i] = (name[find(up, i)] - 1) / size;
    return n_differ == 0 ? 0 : (n + size - 1) / size;
}

struct part {
    int id;
    double gain; /* seconds */
};

static int by_gain(const void *x, const void *y)
{
    const struct part *a = x, *b = y;
    if (a->gain != b->gain)
        return a->gain > b->gain ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static void take_over(struct ap_plan *to, const struct ap_plan *from, const int *part,
                      int id)
{
    for (int i = 0; i < to->nests->n; i++)
        if (part[i] == id)
            to->choice[i] = from->choice[i];
}

/* Both plans' copies, taken over part by part, with the remaking of the better one. */
static void mend_with(struct hunt *h, const struct ap_plan *cheap)
{
    struct ap_arena scratch = {0};
    int *part = AP_NEW_N(&scratch, cheap->nests->n, int);
    int n = find_parts(&scratch, &h->best, cheap, part);
    struct part *list = AP_NEW_N(&scratch, n + 1, struct part);
    struct ap_plan base = copy_plan(&scratch, &h->best);
    double sec, base_sec = h->best_sec;
    int64_t peak;

    for (int i = 0; i < n; i++) {
        list[i] = (struct part){i, 0};
        if (spent(h))
            continue;
        struct ap_plan trial = copy_plan(&scratch, &base);
        take_over(&trial, cheap, part, i);
        measure(h, &trial, &sec, &peak);
        list[i] = (struct part){i, base_sec - sec};
    }
    qsort(list, (size_t)n, sizeof *list, by_gain);
    for (int i = 0; i < n && n > 1 && !spent(h); i++) {
        struct ap_plan trial = copy_plan(&scratch, &base);
        take_over(&trial, cheap, part, list[i].id);
        if (measure(h, &trial, &sec, &peak) ||
            (peak <= h->task->memory_bytes && sec < base_sec)) {
            base = trial;
            base_sec = sec;
        }
    }
    ap_arena_free(&scratch);
}

/* Copies that are made again are kept where that fits. */
static void keep_copies(struct hunt *h)
{
    const int n = h->best.graph->n_nodes;
    struct ap_arena scratch = {0};
    struct ap_plan base = copy_plan(&scratch, &h->best);
    int n_made = 0, parts, seen;
    double sec;
    int64_t peak;

    for (int v = 0; v < n; v++)
        n_made += base.regather[v];
    parts = n_made < MOST_PARTS ? n_made : MOST_PARTS;
    for (int i = 0; i < parts && !spent(h); i++) {
        struct ap_plan trial = copy_plan(&scratch, &base);
        seen = 0;
        for (int v = 0; v < n; v++)
            if (h->best.regather[v] || base.regather[v]) {
                if ((int64_t)seen * parts / n_made == i)
                    trial.regather[v] = false;
                seen++;
            }
        if (measure(h, &trial, &sec, &peak))
            base = trial;
    }
    ap_arena_free(&scratch);
}

/* The best plan with other strategies of group i and, by itself, of j. */
static bool change(struct hunt *h, int i, int j)
{
    const struct shard_space *sp = &h->whole.ip.space;
    bool better = false;
    double sec;
    int64_t peak;

    for (int s = 0; s < sp->n[i]; s++)
        for (int t = -1; t < (j < 0 ? 0 : sp->n[j]); t++) {
            struct ap_plan trial = copy_plan(h->arena, &h->best);
            trial.choice[i] = sp->choice[i][s];
            if (t >= 0)
                trial.choice[j] = sp->choice[j][t];
            better |= measure(h, &trial, &sec, &peak);
        }
    return better;
}

/* In small graphs all groups, and all neighbours, try other strategies while it helps. */
static void change_few(struct hunt *h)
{
    const struct shard_space *sp = &h->whole.ip.space;
    bool better = sp->n_strategies * (int64_t)h->task->graph->n_nodes < FEW_WORK;

    while (better) {
        better = false;
        for (int i = 0; i < sp->nests->n; i++) {
            const struct ap_nest *nest = &sp->nests->nest[i];
            better |= change(h, i, -1);
            for (int k = 0; k < nest->n_ins; k++)
                better |= change(h, i, h->task->graph->nodes[nest->ins[k].node].group);
        }
    }
}

/* The best plan and the cheaper ones that are too large, by the model, blended. */
static void blend_all(struct hunt *h)
{
    for (int i = 0; i < h->n_cuts && !spent(h); i++) {
        int *best = hunt_choice(h, &h->best);
        if (!best)
            return;
        mem_settle_copies(&h->whole.model, &h->whole.ip, h->best.regather, best);
        if (h->cut[i].sec < h->best_sec)
            hunt_blend(h, best, h->cut[i].choice);
    }
}

void hunt_mend(struct hunt *h)
{
    bool *tried = AP_NEW_N(h->arena, h->n_cuts + 1, bool);

    if (h->best_sec == INFINITY)
        return;
    blend_all(h);
    for (int k = 0; k < N_CHEAPER && !spent(h); k++) {
        int best = -1; /* the dearest of the cheaper ones is nearest */
        for (int i = 0; i < h->n_cuts; i++)
            if (!tried[i] && h->cut[i].sec < h->best_sec &&
                (best < 0 || h->cut[i].sec > h->cut[best].sec))
                best = i;
        if (best < 0)
            break;
        tried[best] = true;
        struct ap_plan cheap =
            mem_plan_of(&h->whole.model, &h->whole.ip, h->cut[best].choice);
        mend_with(h, &cheap);
    }
    keep_copies(h);
    change_few(h);
}
