/*
 * Problem: the cheapest plan whose program fits a limit of memory on every device. Idea:
 * with a lower bound on memory in use (memory_model.c) the selection problem becomes one
 * with memory, which libcommon/solve searches for choices and bounds (solve/memory.h).
 * Programs may need more than the model sees: of every choice that may fit, the plan is
 * made into a program and its buffers are measured (memory_peak.c). Whether a copy is
 * kept for the later phases or gathered again (ZeRO-3, Rajbhandari et al. 2020, section
 * 5.3) is part of a choice. Where much of a graph repeats, the search gets it twice, once
 * with repeated groups tied, and is given the layers. Cost: the search, and a program per
 * plan that may fit.
 */
#include "memory/memory.h"

#include <math.h>
#include <string.h>

#define SMALL       16384 /* parts of the limit: smaller tensors are not modelled */
#define FAR         2 /* times a limit: all plans at hand need more: the least first */
#define WORTH_TYING 3 /* tie if at least one group in so many follows another */

/* One search: the problem with memory, the same with repeated groups tied, the best. */
struct limiter {
    struct ap_arena *arena;
    const struct shard_task *task;
    struct ilp_problem ip, tied_ip;
    struct mem_model model, tied;
    bool is_tied;
    struct shard_fold layers; /* of each group */
    struct ap_plan best, least;
    int64_t limit; /* of the programs; 0: as small as they can be */
    double best_sec, least_sec;
    int64_t least_bytes;
};

struct ap_plan mem_plan_of(const struct ap_memory *m, const struct ilp_problem *ip,
                           const int *choice)
{
    struct ap_plan plan = shard_ilp_plan(ip, choice);
    const int n_nodes = ip->space.graph->n_nodes;
    bool *again = AP_NEW_N(ip->space.arena, n_nodes, bool);

    for (int c = 0; c < m->n_copies; c++)
        if (choice[m->n_vars + c] == AP_COPY_AGAIN)
            again[m->copy[c].tensor] = true;
    for (int v = 0; v < n_nodes; v++)
        plan.regather[v] = again[ip->tensor[v]];
    return plan;
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

/* Keeps the plan if it is the best that fits, or the smallest. */
static void measure_plan(struct limiter *l, const struct ap_plan *plan, double *sec,
                         int64_t *peak)
{
    const int64_t limit = l->limit;
    struct ap_plan heavy = *plan;
    int64_t alive;

    heavy.recompute_heavy = l->task->params->recompute_heavy;
    mem_measure(&heavy, l->task->cost, limit, sec, peak, &alive);
    if (*sec == INFINITY)
        return;
    if (*peak < l->least_bytes) {
        l->least_bytes = *peak;
        l->least_sec = *sec;
        l->least = copy_plan(l->arena, plan);
    }
    if (*peak <= limit && *sec < l->best_sec) {
        l->best_sec = *sec;
        l->best = copy_plan(l->arena, plan);
    }
    *peak = *peak > limit && alive > limit ? alive : *peak;
}

/* Marks tensors whose forward copies later phases need; false when there are none. */
static bool mark_kept(const struct limiter *l, struct ap_plan *plan)
{
    struct ap_arena scratch = {0};
    struct ap_conversions conv;
    struct ap_err err = {0};
    bool any = false;

    if (ap_plan_conversions(&scratch, plan, l->task->cost, &conv, &err) == 0)
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

/* See ap_measure. */
static bool measure_choice(void *arg, const int *choice, bool again, double *sec,
                           int64_t *peak)
{
    struct limiter *l = arg;
    struct ap_plan plan = mem_plan_of(&l->model.memory, &l->ip, choice);

    if (again && !mark_kept(l, &plan))
        return false;
    measure_plan(l, &plan, sec, peak);
    return true;
}

static int choice_held(void *arg, const int *choice, int64_t *held)
{
    struct limiter *l = arg;
    struct ap_plan plan = mem_plan_of(&l->model.memory, &l->ip, choice);

    plan.recompute_heavy = l->task->params->recompute_heavy;
    return mem_measure_held(&plan, l->task->cost, &l->model, held);
}

/* ---- stating the problem ---- */

/* What is held in both problems, but for tensors that never take `least` bytes. */
static void state_models(const struct limiter *l, int64_t least, struct mem_model *model,
                         struct mem_model *tied)
{
    mem_model_build(l->arena, &l->ip, least, model);
    if (l->is_tied)
        mem_model_build(l->arena, &l->tied_ip, least, tied);
}

/* The whole graph; if much of it repeats also with that tied. */
static int state_problems(struct limiter *l, const struct ap_plan *answer,
                          struct ap_err *err)
{
    const struct shard_task *task = l->task;
    struct ap_plan *plans = AP_NEW_N(l->arena, task->n_plans + 1, struct ap_plan);
    struct shard_fold alone;

    if (task->n_plans > 0)
        memcpy(plans, task->plans, (size_t)task->n_plans * sizeof *plans);
    for (int i = 0; i < task->n_plans; i++) {
        plans[i].regather = NULL;
        plans[i].scatters = false;
    }
    plans[task->n_plans] = *answer;
    shard_fold_find(l->arena, task, task->families, &l->layers);
    alone = l->layers;
    alone.tied = AP_NEW_N(l->arena, task->nests->n, int);
    alone.weight = AP_NEW_N(l->arena, task->nests->n, int);
    for (int i = 0; i < task->nests->n; i++) {
        alone.tied[i] = i;
        alone.weight[i] = 1;
    }
    if (shard_ilp_build(l->arena, task, &alone, plans, task->n_plans + 1, &l->ip, err))
        return -1;
    l->is_tied = l->layers.n_tied * WORTH_TYING >= task->nests->n;
    if (l->is_tied)
        shard_ilp_tie(l->arena, &l->ip.space, &l->layers, &l->tied_ip);
    state_models(l, task->memory_bytes / SMALL, &l->model, &l->tied);
    return 0;
}

/* By variable of the whole graph, in which every group has its own. */
static const int *by_var(const struct limiter *l, const int *of_group)
{
    int *list = AP_NEW_N(l->arena, l->ip.n_vars, int);

    for (int i = 0; i < l->task->nests->n; i++)
        list[l->ip.var[i]] = of_group[i];
    return list;
}

/* Where the whole graph's variables and copies are in the tied one. */
static void map_tied(const struct limiter *l, struct ap_memory_task *search)
{
    const struct select_builder *whole = &l->ip.builder, *tied = &l->tied_ip.builder;
    int *same = AP_NEW_N(l->arena, whole->n_copies + 1, int);
    int *copies = AP_NEW_N(l->arena, whole->n_copies + 1, int);
    int *first = AP_NEW_N(l->arena, l->task->graph->n_nodes, int);

    for (int c = tied->n_copies - 1; c >= 0; c--)
        first[tied->copy[c].tensor] = c + 1;
    for (int c = 0; c < whole->n_copies; c++) {
        const int tensor = l->tied_ip.tensor[whole->copy[c].tensor];
        same[c] = -1;
        copies[c] = first[tensor] - 1;
        for (int t = copies[c];
             t >= 0 && t < tied->n_copies && tied->copy[t].tensor == tensor; t++)
            if (ap_layout_equal(&tied->copy[t].layout, &whole->copy[c].layout))
                same[c] = t;
    }
    search->tied = &l->tied.memory;
    search->tied_var = by_var(l, l->tied_ip.var);
    search->tied_copy = same;
    search->tied_copies = copies;
}

/* The plans at hand and more of them, as far as the space has them. */
static void list_starts(struct limiter *l, const struct ap_plan *const *more, int n_more,
                        struct ap_memory_task *search)
{
    const struct shard_task *task = l->task;
    int **start = AP_NEW_N(l->arena, task->n_plans + n_more, int *);
    double sec;
    int64_t peak;

    search->n_starts = 0;
    for (int i = 0; i < task->n_plans + n_more; i++) {
        const struct ap_plan *plan =
            i < task->n_plans ? &task->plans[i] : more[i - task->n_plans];
        int *choice = shard_ilp_choice(l->arena, &l->ip, plan);
        measure_plan(l, plan, &sec, &peak);
        if (!choice)
            continue;
        ap_memory_settle(&l->model.memory, plan->regather, choice);
        start[search->n_starts++] = choice;
    }
    search->start = start;
    search->best_sec = l->best_sec;
}

static void report_none(struct limiter *l, int64_t least_proven, struct ap_err *err)
{
    struct ap_arena *arena = l->arena;
    const char *proven =
        least_proven > 0
            ? ap_arena_printf(arena, "at least %s (%lld bytes) are needed",
                              mem_size_text(arena, least_proven), (long long)least_proven)
            : "no lower bound on the memory is known";

    l->least.recompute_heavy = l->task->params->recompute_heavy;
    ap_err_set(err,
               "no plan found within %s per device: the least found needs %s (%lld "
               "bytes), %s; it holds %s",
               mem_size_text(arena, l->task->memory_bytes),
               mem_size_text(arena, l->least_bytes), (long long)l->least_bytes, proven,
               mem_holders(arena, &l->least, l->task->cost));
}

/*
 * The plan that needs the least memory of those found, the same for all limits: what it
 * needs is what is advised where nothing fits, and who asks for that is given it.
 */
static int search_least(struct limiter *l, const struct ap_plan *answer,
                        const struct ap_memory_task *within, int64_t *least_proven,
                        struct ap_err *err)
{
    struct ap_memory_task search = *within;
    struct ap_memory_answer found;
    struct mem_model model = {0}, tied = {0};

    state_models(l, 0, &model, &tied);
    search.least = true;
    search.model = &model.memory;
    search.tied = l->is_tied ? &tied.memory : NULL;
    search.limit = 1;
    search.work = NULL;
    l->limit = 0;
    l->least_bytes = INT64_MAX;
    list_starts(l, &answer, 1, &search);
    if (ap_memory_search(l->arena, &search, &found, err))
        return -1;
    l->limit = l->task->memory_bytes;
    if (l->least_bytes <= l->limit) {
        l->best = l->least;
        l->best_sec = l->least_sec;
    }
    *least_proven = found.least_proven;
    return 0;
}

/* Where no plan that fits was found: from that of the least memory on. */
static int search_from_least(struct limiter *l, const struct ap_plan *answer,
                             struct ap_memory_task *search,
                             struct ap_memory_answer *found, struct ap_err *err)
{
    const struct ap_memory_answer before = *found;
    const bool is_first = before.n_solves == 0;
    int64_t least_proven;

    if (search_least(l, answer, search, &least_proven, err))
        return -1;
    const struct ap_plan least = l->least;
    const int64_t least_bytes = l->least_bytes;
    if (l->best_sec < INFINITY || (is_first && least_proven <= search->limit)) {
        search->bound = before.bound;
        list_starts(l, (const struct ap_plan *[]){answer, &least}, 2, search);
        if (ap_memory_search(l->arena, search, found, err))
            return -1;
        found->n_solves += before.n_solves;
        found->n_measured += before.n_measured;
    }
    if (l->best_sec < INFINITY)
        return 0;
    l->least = least;
    l->least_bytes = least_bytes;
    report_none(
        l, least_proven > before.least_proven ? least_proven : before.least_proven, err);
    return -1;
}

static int search_within(struct limiter *l, struct shard_answer *answer,
                         struct ap_err *err)
{
    const struct ap_plan *unlimited = &answer->plan;
    struct ap_memory_task search = {
        .model = &l->model.memory,
        .limit = l->task->memory_bytes,
        .family = by_var(l, l->layers.family),
        .layer = by_var(l, l->layers.instance),
        .cell = by_var(l, l->layers.cell),
        .n_cells = l->layers.n_cells,
        .bound = answer->bound,
        .objective = answer->objective,
        .program_work = l->task->graph->n_nodes,
        .work = l->task->work,
        .measure = {l, measure_choice, choice_held},
    };
    struct ap_memory_answer found = {.bound = answer->bound};
    const double start = ap_now_sec();

    if (l->is_tied)
        map_tied(l, &search);
    list_starts(l, &unlimited, 1, &search);
    if (l->least_bytes / FAR < search.limit &&
        ap_memory_search(l->arena, &search, &found, err))
        return -1;
    if (l->best_sec == INFINITY && search_from_least(l, unlimited, &search, &found, err))
        return -1;
    answer->plan = l->best;
    answer->objective = l->best_sec;
    answer->bound = fmin(found.bound, l->best_sec);
    answer->stopped = answer->bound >= l->best_sec * (1 - 1e-9) ? "optimal" : "prices";
    answer->stats =
        ap_arena_printf(l->arena,
                        "%s,\"memory_solves\":%d,\"memory_plans\":%d,\"memory_times\":%d,"
                        "\"memory_sec\":%.6f",
                        answer->stats ? answer->stats : "", found.n_solves,
                        found.n_measured, found.n_times, ap_now_sec() - start);
    return 0;
}

int shard_memory(struct ap_arena *arena, const struct shard_task *task,
                 struct shard_answer *answer, struct ap_err *err)
{
    struct limiter l = {.arena = arena,
                        .task = task,
                        .limit = task->memory_bytes,
                        .best_sec = INFINITY,
                        .least_bytes = INT64_MAX};
    int64_t peak;
    double sec;

    answer->plan.recompute_heavy = task->params->recompute_heavy;
    mem_measure(&answer->plan, task->cost, task->memory_bytes, &sec, &peak, NULL);
    if (peak <= task->memory_bytes)
        return 0;
    if (state_problems(&l, &answer->plan, err))
        return -1;
    const int rc = search_within(&l, answer, err);
    select_free(&l.ip.builder);
    if (l.is_tied)
        select_free(&l.tied_ip.builder);
    return rc;
}
