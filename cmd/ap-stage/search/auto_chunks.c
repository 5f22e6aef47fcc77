/*
 * Problem: the best interleaved schedule: G groups of devices of one shape and kind, G >
 * 1, each with the same number of stages, stage s on group s modulo G; devices may be
 * left over. Idea: group g cannot start before the g stages before it are through,
 * must do B microbatches of all of its stages, and ends before the way back through those
 * g. The average over the groups is a sum over stages with the weight B + max(0, G - 1 -
 * s) for stage s, whose least value over all cuts a programme finds, for every number of
 * stages at once: a bound. The memory of each device (auto_room.c), and that with
 * blocks that cannot be cut (auto_loads.c), raise it. Another programme finds the
 * cuts of least maximum and, among those, least sum: the plan, in which each device's
 * stages have the quickest points that fit together (auto_points.c). Small settings are
 * searched whole, the bounds being what is chosen and the rest's programme. Cost:
 * blocks^2 x stages for each shape; the search is exponential within its limits. Source:
 * Narayanan et al., "Efficient large-scale language model training on GPU clusters using
 * Megatron-LM" (SC 2021), section 2.2.
 */
#include "search/auto.h"

#include <math.h>

#define MAX_TREE 12 /* blocks; test_stage_auto: chunks_alone */

struct run_cost {
    double sum, rest; /* least per microbatch; least B * sum + what is done once */
};

struct chunks {
    struct stage_search *search;
    struct space *sp;
    struct config *c;
    int mesh, groups, n;
    struct run_cost *cost; /* [lo * n + hi], sum INFINITY: not usable */
    double *least[2];      /* [stages * (n + 1) + block]: by weights; by rest */
    double *max, *sum;     /* likewise: least maximum, its sum */
    int *cut;              /* where the last stage of that begins */
    /* the tree */
    int n_stages;
    double *behind, *load; /* [stage * (n + 1) + block] by weights; [stage] of a group */
    struct plan_answer now;
    bool ended;
    int64_t node_limit;
};

static double weight(const struct chunks *x, int s)
{
    return (double)x->c->microbatches + (s < x->groups ? x->groups - 1 - s : 0);
}

static double rest_of(const struct chunks *x, const struct plan_point *p)
{
    return (double)x->c->microbatches * (p->forward_sec + p->backward_sec) +
           p->update_sec + p->sync_sec;
}

static void fill_cost(const struct chunks *x, const struct plan_front *front,
                      struct run_cost *cost)
{
    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        double rest = rest_of(x, p);
        if (!plan_fits(x->sp->inst, x->c->mesh[x->mesh].kind, p, 1) ||
            rest >= x->search->least)
            continue;
        cost->sum = least_of(cost->sum, p->forward_sec + p->backward_sec);
        cost->rest = least_of(cost->rest, rest);
    }
}

/* Whether a run is to be asked for: a part that is too slow or large says that it is. */
static bool may_do(const struct chunks *x, int lo, int hi)
{
    return hi == lo || !x->sp->inst->monotone ||
           isfinite(x->cost[lo * x->n + hi - 1].sum);
}

/* Runs of one size are asked for together. */
static int fill_costs(struct chunks *x, struct ap_err *err)
{
    for (int i = 0; i < x->n * x->n; i++)
        x->cost[i] = (struct run_cost){INFINITY, INFINITY};
    for (int size = 1; size <= x->n; size++) {
        for (int lo = 0, hi = size - 1; hi < x->n; lo++, hi++)
            if (may_do(x, lo, hi))
                config_note(x->sp, x->c, lo, hi, x->mesh);
        if (space_ask_noted(x->sp, err))
            return -1;
        for (int lo = 0, hi = size - 1; hi < x->n; lo++, hi++) {
            const struct plan_front *front;
            if (!may_do(x, lo, hi))
                continue;
            if (config_front(x->sp, x->c, lo, hi, x->mesh, &front, err))
                return -1;
            fill_cost(x, front, &x->cost[lo * x->n + hi]);
        }
    }
    return 0;
}

static void fill_programs(struct chunks *x)
{
    int n = x->n, row = n + 1;

    for (int i = 0; i < (n + 1) * row; i++)
        x->least[0][i] = x->least[1][i] = x->max[i] = x->sum[i] = INFINITY;
    x->least[0][0] = x->least[1][0] = x->max[0] = x->sum[0] = 0;
    for (int s = 0; s < n; s++)
        for (int lo = s; lo < n; lo++) {
            int from = s * row + lo;
            if (!isfinite(x->max[from]))
                continue;
            for (int hi = lo; hi < n; hi++) {
                const struct run_cost *cost = &x->cost[lo * n + hi];
                int to = (s + 1) * row + hi + 1;
                if (!isfinite(cost->sum))
                    continue;
                double max = most_of(x->max[from], cost->sum),
                       sum = x->sum[from] + cost->sum;
                x->least[0][to] = least_of(x->least[0][to],
                                           x->least[0][from] + weight(x, s) * cost->sum);
                x->least[1][to] =
                    least_of(x->least[1][to], x->least[1][from] + cost->rest);
                if (max < x->max[to] || (max == x->max[to] && sum < x->sum[to])) {
                    x->max[to] = max;
                    x->sum[to] = sum;
                    x->cut[to] = lo;
                }
            }
        }
}

/*
 * Points of all stages, so that each device's fit in so many bytes: after its first
 * forwards it holds what chunk_flights says. false: none do, or no such plan is better
 * than the best.
 */
static bool fill_points(struct chunks *x, struct plan_answer *a, double limit)
{
    struct device_stages d = {.n = a->chunks, .microbatches = (double)x->c->microbatches};
    double way = 0;

    d.stage = AP_NEW_N(x->sp->arena, d.n, struct device_stage);
    for (int g = 0; g < x->groups; g++) {
        for (int c = 0; c < d.n; c++) {
            const int s = c * x->groups + g;
            const struct plan_stage *st = &a->stage[s];
            struct ap_err err = {0};
            d.stage[c].flights = chunk_flights(x->c, x->groups, a->n_stages, s);
            if (config_front(x->sp, x->c, st->lo, st->hi, x->mesh, &d.stage[c].front,
                             &err))
                return false; /* it was asked before */
        }
        if (!choose_points(&d, limit) || auto_is_over(x->search, way + d.sec))
            return false;
        for (int c = 0; c < d.n; c++)
            a->stage[c * x->groups + g].point = d.stage[c].point;
        way += a->stage[g].point->forward_sec;
    }
    return true;
}

/* Of a device's chunks that hold more later than after their first forwards: so often
 * they are planned for less memory, by at least this part of it. */
#define MOST_TRIES 6
#define LESS       256

/* The cuts of least maximum. */
static void try_least(struct chunks *x, int n_stages)
{
    const double memory = (double)plan_memory(x->sp->inst, x->c->mesh[x->mesh].kind);
    struct ap_mark mark = ap_arena_mark(x->sp->arena);
    struct plan_answer a = x->now;
    int last = x->n - 1;
    double limit = memory;

    a.n_stages = n_stages;
    a.chunks = n_stages / x->groups;
    a.stage = AP_NEW_N(x->sp->arena, n_stages, struct plan_stage);
    for (int s = n_stages - 1; s >= 0; s--) {
        a.stage[s] = (struct plan_stage){.lo = x->cut[(s + 1) * (x->n + 1) + last + 1],
                                         .hi = last,
                                         .hosts = x->c->mesh[x->mesh].hosts,
                                         .devices = x->c->mesh[x->mesh].devices,
                                         .kind = x->c->mesh[x->mesh].kind};
        last = a.stage[s].lo - 1;
    }
    for (int i = 0; i < MOST_TRIES && (limit > 0 || i == 0) && fill_points(x, &a, limit);
         i++) {
        a.peak_bytes = 0;
        const bool fits = isfinite(auto_score(x->search, x->sp, &a, "chunks"));
        if (fits || a.peak_bytes == 0)
            break;
        /* of whole devices, where memory is what one of this kind has for the plan */
        const double whole = (double)x->sp->inst->memory_bytes;
        limit -= most_of(((double)a.peak_bytes - whole) * memory / whole, memory / LESS);
    }
    ap_arena_rewind(x->sp->arena, mark);
}

/* ---- the tree ---- */

static void fill_behind(struct chunks *x)
{
    int n = x->n, row = n + 1;

    for (int i = 0; i < (x->n_stages + 1) * row; i++)
        x->behind[i] = INFINITY;
    x->behind[x->n_stages * row + n] = 0;
    for (int s = x->n_stages - 1; s >= 0; s--)
        for (int lo = n - 1; lo >= 0; lo--)
            for (int hi = lo; hi < n; hi++)
                x->behind[s * row + lo] = least_of(
                    x->behind[s * row + lo], weight(x, s) * x->cost[lo * n + hi].sum +
                                                 x->behind[(s + 1) * row + hi + 1]);
}

/* way: of a microbatch through the stages in front; weighed: their weighted sum. */
static void descend(struct chunks *x, int s, int lo, double way, double weighed)
{
    int n = x->n, row = n + 1;
    double b = (double)x->c->microbatches;

    if (s == x->n_stages) {
        x->now.n_stages = s;
        x->now.chunks = s / x->groups;
        x->ended |= lo == n && !auto_try(x->search, x->sp, &x->now, "tree");
        return;
    }
    for (int hi = lo; hi < n && !x->ended; hi++) {
        const struct plan_front *front;
        struct ap_err err = {0};
        if (!isfinite(x->behind[(s + 1) * row + hi + 1]) ||
            !isfinite(x->cost[lo * n + hi].sum))
            continue;
        if (config_front(x->sp, x->c, lo, hi, x->mesh, &front, &err))
            return; /* it was asked before */
        for (int i = 0; i < front->n && !x->ended; i++) {
            const struct plan_point *p = &front->point[i];
            double sum = p->forward_sec + p->backward_sec, load = b * sum;
            double all = weighed + weight(x, s) * sum;
            if (s >= x->groups)
                load += x->load[s - x->groups];
            else
                load += way;
            x->load[s] = load;
            x->search->nodes++;
            x->ended |= x->search->nodes > x->node_limit;
            if (!plan_fits(x->sp->inst, x->c->mesh[x->mesh].kind, p, 1) ||
                auto_is_over(x->search, load) ||
                auto_is_over(x->search,
                             (all + x->behind[(s + 1) * row + hi + 1]) / x->groups))
                continue;
            x->now.stage[s] = (struct plan_stage){.lo = lo,
                                                  .hi = hi,
                                                  .hosts = x->c->mesh[x->mesh].hosts,
                                                  .devices = x->c->mesh[x->mesh].devices,
                                                  .kind = x->c->mesh[x->mesh].kind,
                                                  .point = p};
            descend(x, s + 1, hi + 1, way + sum, all);
        }
    }
}

/* The bound of so many stages if all chunks of a device must fit, where that matters. */
static double with_room(const struct chunks *x, int n_stages, double bound)
{
    const struct stage_search *search = x->search;
    const int at = n_stages * (x->n + 1) + x->n;
    const struct chunk_plans plans = {.sp = x->sp,
                                      .c = x->c,
                                      .mesh = x->mesh,
                                      .groups = x->groups,
                                      .n_stages = n_stages,
                                      .counts_once = x->least[1][at] > x->least[0][at],
                                      .below = search->least};
    const double enough =
        x->ended ? least_of(search->bound, search->least) : search->least;

    if (bound < enough)
        bound = most_of(bound, chunks_room_bound(&plans, enough));
    return bound < enough ? chunks_loads_bound(&plans, bound, enough) : bound;
}

static void one_count(struct chunks *x, int n_stages)
{
    int at = n_stages * (x->n + 1) + x->n;
    double bound = most_of(x->least[0][at], x->least[1][at]) / x->groups;

    if (!isfinite(bound) || auto_is_over(x->search, bound))
        return;
    if (!x->search->proves) {
        try_least(x, n_stages);
        return;
    }
    x->ended = x->n > MAX_TREE;
    bound = with_room(x, n_stages, bound);
    if (auto_is_over(x->search, bound))
        return;
    if (!x->ended) {
        x->n_stages = n_stages;
        x->node_limit = x->search->nodes + x->search->node_limit / 8;
        if (x->node_limit > x->search->node_limit)
            x->node_limit = x->search->node_limit;
        fill_behind(x);
        int64_t whole = auto_share(x->search);
        descend(x, 0, 0, 0, 0);
        x->search->instruction_limit = whole;
    }
    if (x->ended)
        x->search->bound = least_of(x->search->bound, bound);
}

static int one_mesh(struct chunks *x, struct ap_err *err)
{
    int n = x->n, want = x->sp->params->n_stages;
    size_t all = (size_t)(n + 1) * (size_t)(n + 1);

    x->cost = AP_NEW_N(x->sp->arena, (size_t)n * (size_t)n, struct run_cost);
    x->least[0] = AP_NEW_N(x->sp->arena, all, double);
    x->least[1] = AP_NEW_N(x->sp->arena, all, double);
    x->max = AP_NEW_N(x->sp->arena, all, double);
    x->sum = AP_NEW_N(x->sp->arena, all, double);
    x->behind = AP_NEW_N(x->sp->arena, all, double);
    x->cut = AP_NEW_N(x->sp->arena, all, int);
    x->load = AP_NEW_N(x->sp->arena, n, double);
    x->now = (struct plan_answer){.replicas = x->c->replicas,
                                  .microbatches = x->c->microbatches,
                                  .schedule = AP_SCHEDULE_INTERLEAVED};
    x->now.stage = AP_NEW_N(x->sp->arena, n, struct plan_stage);
    if (fill_costs(x, err))
        return -1;
    fill_programs(x);
    for (int s = 2 * x->groups; s <= n; s += x->groups)
        if (want == 0 || want == s)
            one_count(x, s);
    return 0;
}

int auto_chunks(struct stage_search *search, struct space *sp, struct config *c,
                struct ap_err *err)
{
    double work = setting_known_bound(sp, c) * c->capacity; /* weight * seconds */

    for (int m = 0; m < c->n_meshes; m++) {
        struct chunks x = {.search = search, .sp = sp, .c = c, .mesh = m, .n = sp->n};
        int most = c->counts.most[c->mesh[m].kind] / mesh_size(&c->mesh[m]);
        for (x.groups = 2; x.groups <= most && 2 * x.groups <= sp->n; x.groups++) {
            if (c->microbatches % x.groups != 0 ||
                auto_is_over(search, work / (x.groups * config_weight(c, m))))
                continue;
            if (one_mesh(&x, err))
                return -1;
        }
    }
    return 0;
}
