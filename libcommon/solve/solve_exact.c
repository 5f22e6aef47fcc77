/*
 * The selection problem to proven optimality. A core is reduced; falls apart into its
 * connected parts, which are solved one by one; a part that is narrow is eliminated at
 * once. Else message passing gives a bound, rounding and local search a solution, and
 * strategies whose reduced cost reaches the gap are dropped: the rest, with the costs
 * that the messages left (all >= 0, most of them 0), is a smaller core, which is solved
 * in the same way. When that does not shrink it any more it is eliminated, cutting
 * combinations at the gap. When it is too wide for that, pairs of neighbours are merged,
 * which bounds it better. Last comes branching on the strategies of a node in the widest
 * place, cheapest reduced cost first.
 *
 * Graphs of training steps are long and thin: the cost is about linear in the layers.
 * Everything that is cut costs at least the best known solution less EPSILON of it.
 */
#include "solve/solve.h"

#include <stdlib.h>
#include <string.h>

#define EPSILON       1e-10
#define PROVEN        1e-9 /* see ap_solver_fn */
#define DEFAULT_WORK  10000
#define SMALL_ENTRIES 1e5 /* tables worth making before any bound is known */
#define SMALL_WORK    3e5
#define MAX_ENTRIES   1e7 /* tables: 10 bytes an entry */
#define MAX_WORK      4e8
#define LOOKS         1
#define RELAXED_GAP   1e-3 /* of a relaxation that lacks sets of copies */
#define LOOK_SWEEPS   24
#define OPEN          0.01 /* a gap after the look that is worth the caller's search */
#define EARLY         0.2  /* part of the strategies that a guess between sweeps leaves */
#define MAX_DIVING    2
#define DIVE_STAGES   3 /* see solve_connected */
#define MAX_MERGING   16
#define MERGED_WORK   10000 /* strategies of a merged core for a unit of work */
#define BUILT         4     /* cells of work for a cell of the problem's tables */
#define ELIMINATED    2     /* cells of work for a combination of an elimination */
#define SHRUNK        0.7   /* going on with the rest is worth it below this part */

struct search {
    struct ap_arena *arena;
    const struct ap_solve_params *params;
    double until_sec; /* 0: never */
    int64_t work, work_limit;
    struct ap_work *budget; /* as the cores' */
    const char *stopped;    /* why, NULL while it goes on */
    int diving, merging;    /* how deep inside dives, merged cores */
};

static bool out_of_time(struct search *s)
{
    if (ap_work_over(s->budget))
        s->stopped = "work limit";
    if (s->stopped)
        return true;
    if (s->until_sec <= 0 || ap_now_sec() < s->until_sec)
        return false;
    s->stopped = "time limit";
    return true;
}

static bool stop(struct search *s)
{
    if (s->stopped || out_of_time(s))
        return true;
    if (s->work >= s->work_limit)
        s->stopped = "work limit";
    return s->stopped != NULL;
}

static struct sel_verdict solve(struct search *s, struct sel_core *c, double limit,
                                double floor);

/* A child's solution becomes the parent's. */
static void adopt(struct sel_core *c, const struct sel_core *child)
{
    for (int v = 0; v < child->n_nodes; v++)
        c->best[child->parent[v]] = child->best[v];
    sel_undo_all(c);
}

/* ---- elimination of a whole core ---- */

enum outcome { TOO_WIDE, NONE_CHEAPER, FOUND };

static enum outcome eliminate_all(struct sel_core *c, double limit, double max_entries,
                                  double max_work, struct sel_verdict *v, int *widest)
{
    struct ap_mark mark = ap_arena_mark(c->arena);
    struct sel_elim plan;
    enum outcome outcome = TOO_WIDE;

    if (sel_elim_plan(c, max_entries, max_work, &plan)) {
        int *state = AP_NEW_N(c->arena, c->n_nodes + 1, int);
        ap_work_add(c->work, (int64_t)(ELIMINATED * plan.work));
        double cost = sel_elim_run(c, &plan, limit, state);
        outcome = cost < limit ? FOUND : NONE_CHEAPER;
        if (outcome == FOUND) {
            sel_set_best(c, state);
            *v = (struct sel_verdict){.bound = cost, .cost = cost, .found = true};
        } else {
            v->bound = limit;
        }
    }
    if (widest)
        *widest = plan.widest_node;
    ap_arena_rewind(c->arena, mark);
    return outcome;
}

/* ---- connected parts ---- */

/* part[v] numbers the connected parts from 0; returns how many. */
static int find_parts(const struct sel_core *c, int *part, int *stack)
{
    int n = 0;

    for (int v = 0; v < c->n_nodes; v++)
        part[v] = -1;
    for (int root = 0; root < c->n_nodes; root++) {
        if (c->node[root].gone || part[root] >= 0)
            continue;
        int top = 0;
        part[root] = n;
        stack[top++] = root;
        while (top > 0) {
            int v = stack[--top];
            for (int i = 0; i < c->node[v].n_edges; i++) {
                const struct sel_edge *e = &c->edge[c->node[v].edges[i]];
                int w = sel_other(e, v);
                if (e->gone || part[w] >= 0)
                    continue;
                part[w] = n;
                stack[top++] = w;
            }
        }
        n++;
    }
    return n;
}

static struct sel_verdict solve_parts(struct search *s, struct sel_core *c, double limit,
                                      double floor, const int *part, int n_parts)
{
    struct sel_verdict all = {.bound = c->base, .cost = c->base, .found = true};
    int *first = AP_NEW_N(c->arena, n_parts + 2, int);
    int *list = AP_NEW_N(c->arena, c->n_left + 1, int);
    int *map = AP_NEW_N(c->arena, c->n_nodes + 1, int);

    for (int v = 0; v < c->n_nodes; v++)
        if (part[v] >= 0)
            first[part[v] + 2]++;
    for (int i = 0; i < n_parts; i++)
        first[i + 2] += first[i + 1];
    for (int v = 0; v < c->n_nodes; v++)
        if (part[v] >= 0)
            list[first[part[v] + 1]++] = v;
    for (int i = 0; i < n_parts; i++) {
        struct ap_mark mark = ap_arena_mark(c->arena);
        struct sel_core *child =
            sel_core_extract(c, list + first[i], first[i + 1] - first[i], map);
        struct sel_verdict v = solve(s, child, limit - all.cost, floor / n_parts);
        all.bound += v.bound;
        all.cost += v.cost;
        all.found = v.found;
        for (int k = 0; k < child->n_nodes && v.found; k++)
            c->best[child->parent[k]] = child->best[k];
        ap_arena_rewind(c->arena, mark);
        if (!v.found)
            break;
    }
    all.found &= all.cost < limit;
    if (all.found)
        sel_undo_all(c);
    return all;
}

/* ---- one connected part ---- */

struct part {
    struct search *s;
    struct sel_core *c;
    struct sel_dual *d;
    double floor, eps;    /* what may be lost: at least, and below v.cost once found */
    struct sel_verdict v; /* cost: the best known, or the limit given */
    int *state;
};

static double target(const struct part *p)
{
    return p->v.cost - p->eps;
}

static void improve(struct part *p, double cost)
{
    p->v.cost = cost;
    p->v.found = true;
    p->eps = fmax(p->floor, EPSILON * cost);
}

static void round_and_search(struct part *p)
{
    sel_dual_round(p->d, p->state);
    double cost = sel_local(p->c, p->state);
    if (cost < target(p)) {
        improve(p, cost);
        sel_set_best(p->c, p->state);
    }
}

/* Sweeps up to n in all; false when the bound has stalled well before. */
static bool sweep_to(struct part *p, int *done, int n)
{
    double before = p->d->bound;

    while (*done < n) {
        sel_dual_sweep(p->d);
        if (++*done % 8 == 0) {
            if (p->d->bound >= target(p) || out_of_time(p->s))
                return false;
            double gap = p->v.cost < INFINITY ? p->v.cost - p->d->bound : p->d->bound;
            if (p->d->bound - before < 1e-3 * gap)
                return false;
            before = p->d->bound;
        }
    }
    return true;
}

/*
 * Solves by all means the core without the strategies that cost `keep` or more (and with
 * only one at node `only`) for solutions cheaper than limit.
 */
static struct sel_verdict descend(struct part *p, double keep, double limit, int only,
                                  int strategy)
{
    struct ap_mark mark = ap_arena_mark(p->c->arena);
    struct sel_core *child = sel_dual_fold(p->d, keep, only, strategy);
    struct sel_verdict v = {.bound = INFINITY};

    if (child)
        v = solve(p->s, child, limit, fmax(p->floor, p->eps));
    if (v.found)
        adopt(p->c, child);
    ap_arena_rewind(p->c->arena, mark);
    v.bound = fmin(v.bound, fmin(keep, limit));
    if (v.found)
        improve(p, v.cost);
    return v;
}

/* The best solution among the strategies below keep, for its own sake. */
static bool dive(struct part *p, double keep)
{
    p->s->diving++;
    struct sel_verdict r = descend(p, keep, target(p), -1, 0);
    p->s->diving--;
    p->v.bound = fmax(p->v.bound, r.bound);
    return p->v.bound >= target(p);
}

static double known_gap(const struct part *p)
{
    return p->v.cost < INFINITY ? p->v.cost - p->d->bound : fabs(p->d->bound) + 1e-300;
}

/* Between sweeps: the largest guess that leaves few strategies, for the sake of a
 * solution.
 */
static bool guess_early(struct part *p)
{
    double gap = known_gap(p);

    for (double part = 0.5; part > 1.0 / 4096; part /= 2) {
        double limit = p->d->bound + part * gap;
        int64_t all, kept = sel_dual_kept(p->d, limit, &all);
        if ((double)kept <= EARLY * (double)all)
            return limit < target(p) && dive(p, limit);
    }
    return false;
}

static void branch(struct part *p, int v)
{
    const struct sel_dual *d = p->d;
    int n = p->c->node[v].n_strategies;
    bool *tried = AP_NEW_N(p->c->arena, n, bool);
    double bound = INFINITY;

    for (int i = 0; i < n; i++) {
        int best = -1;
        for (int s = 0; s < n; s++)
            if (!tried[s] && (best < 0 || d->slack[v][s] < d->slack[v][best]))
                best = s;
        double least = d->slack_base + d->slack[v][best];
        tried[best] = true;
        bool cut = least >= target(p);
        if (cut || stop(p->s)) {
            bound = fmin(bound, cut ? target(p) : least);
            break;
        }
        p->s->work++;
        struct sel_verdict r = descend(p, target(p), target(p), v, best);
        bound = fmin(bound, fmax(r.bound, least));
    }
    p->v.bound = fmax(p->v.bound, fmin(bound, target(p)));
}

static int64_t n_strategies(const struct sel_core *c)
{
    int64_t n = 0;

    for (int v = 0; v < c->n_nodes; v++)
        n += c->node[v].gone ? 0 : c->node[v].n_strategies;
    return n;
}

/*
 * The core without what costs too much, eliminated if it is narrow, else with pairs of
 * neighbours as one node, which bounds it better. True when that settles it; if not,
 * *widest is a node to branch on, or -1.
 */
static bool tighten(struct part *p, int *widest)
{
    struct ap_mark mark = ap_arena_mark(p->c->arena);
    double limit = target(p), eps = fmax(p->floor, p->eps);
    struct sel_verdict v = {.bound = limit};
    int n_merged = 0, wide = -1;

    *widest = -1;
    if (stop(p->s))
        return false;
    struct sel_core *child = sel_dual_fold(p->d, limit, -1, 0);
    p->s->merging++;
    if (child && sel_reduce(child, true) &&
        eliminate_all(child, limit, MAX_ENTRIES, MAX_WORK, &v, &wide) == TOO_WIDE) {
        v.bound = child->base;
        if (p->s->merging <= MAX_MERGING) {
            if (!sel_merge_pairs(child, limit, &n_merged))
                v.bound = limit;
            p->s->work += n_strategies(child) / MERGED_WORK;
            if (v.bound < limit && n_merged > 0)
                v = solve(p->s, child, limit, eps);
        }
    }
    p->s->merging--;
    if (v.found) {
        adopt(p->c, child);
        improve(p, v.cost);
    }
    *widest = wide >= 0 ? child->parent[wide] : -1;
    ap_arena_rewind(p->c->arena, mark);
    p->v.bound = fmax(p->v.bound, fmin(v.bound, limit));
    return p->v.bound >= p->v.cost - 2 * fmax(eps, p->eps);
}

/* The node with the most strategies left in play, for want of a better one. */
static int undecided(const struct part *p)
{
    int best = p->d->order[0], most = 0;

    for (int i = 0; i < p->d->n; i++) {
        int v = p->d->order[i], kept = 0;
        for (int s = 0; s < p->c->node[v].n_strategies; s++)
            kept += p->d->slack_base + p->d->slack[v][s] < target(p);
        if (kept > most) {
            most = kept;
            best = v;
        }
    }
    return best;
}

static struct sel_verdict solve_connected(struct search *s, struct sel_core *c,
                                          double limit, double floor)
{
    static const int stages[] = {8, 24, 48};
    const int n_stages = (int)(sizeof(stages) / sizeof(stages[0]));
    struct part p = {.s = s, .c = c, .floor = floor};
    int64_t kept = 0, all = 1;
    int sweeps = 0, widest = -1;

    p.v = (struct sel_verdict){.bound = c->base, .cost = limit};
    if (c->parent && limit < INFINITY && stop(s))
        return p.v;
    if (eliminate_all(c, limit, SMALL_ENTRIES, SMALL_WORK, &p.v, NULL) != TOO_WIDE)
        return p.v;
    p.d = sel_dual_new(c);
    p.state = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    for (int i = 0; i < n_stages; i++) {
        bool going = sweep_to(&p, &sweeps, stages[i]);
        p.v.bound = fmax(p.v.bound, p.d->bound);
        if (!c->parent) /* the whole: what it costs at least says what may be lost */
            p.floor = fmax(p.floor, s->params->gap * p.d->bound);
        round_and_search(&p);
        if (p.d->bound >= target(&p)) {
            p.v.bound = target(&p);
            return p.v;
        }
        kept = sel_dual_kept(p.d, target(&p), &all);
        if (!going || (s->diving > 0 && i + 1 == DIVE_STAGES) ||
            (double)kept < SHRUNK * (double)all)
            break;
        if (i == 0 || s->diving >= MAX_DIVING)
            continue;
        if (guess_early(&p))
            return p.v;
        kept = sel_dual_kept(p.d, target(&p), &all);
        if ((double)kept < SHRUNK * (double)all)
            break;
    }
    if ((double)kept < SHRUNK * (double)all) {
        p.v.bound = fmax(p.v.bound, descend(&p, target(&p), target(&p), -1, 0).bound);
        return p.v;
    }
    if (tighten(&p, &widest))
        return p.v;
    if (s->diving > 0 || s->merging > 0)
        return p.v;
    branch(&p, widest >= 0 ? widest : undecided(&p));
    return p.v;
}

static struct sel_verdict solve(struct search *s, struct sel_core *c, double limit,
                                double floor)
{
    struct sel_verdict v = {.bound = INFINITY, .cost = INFINITY};

    if (!sel_reduce(c, c->parent != NULL))
        return v;
    if (c->n_left == 0) {
        v = (struct sel_verdict){c->base, c->base, c->base < limit};
        if (v.found)
            sel_undo_all(c);
        return v;
    }
    int *part = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    int *stack = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    int n_parts = find_parts(c, part, stack);
    if (n_parts > 1)
        return solve_parts(s, c, limit, floor, part, n_parts);
    return solve_connected(s, c, limit, floor);
}

struct sel_verdict sel_solve_core(struct sel_core *c, double limit, int64_t work_limit)
{
    static const struct ap_solve_params none;
    struct search s = {.arena = c->arena,
                       .params = &none,
                       .work = 1,
                       .work_limit = work_limit,
                       .budget = c->work};

    struct sel_verdict v = solve(&s, c, limit, 0);
    v.bound = fmin(v.bound, limit);
    return v;
}

/* ---- the whole ---- */

/* Moves to lower strategies that cost the same, node by node. */
static void prefer_low(struct ap_arena *arena, const struct ap_problem *p, int *choice)
{
    int *first = AP_NEW_N(arena, p->n_nodes + 2, int);
    int *list = AP_NEW_N(arena, 2 * (int64_t)p->n_edges + 1, int);

    for (int e = 0; e < p->n_edges; e++) {
        first[p->edges[e].a + 2]++;
        first[p->edges[e].b + 2]++;
    }
    for (int v = 0; v < p->n_nodes; v++)
        first[v + 2] += first[v + 1];
    for (int e = 0; e < p->n_edges; e++) {
        list[first[p->edges[e].a + 1]++] = e;
        list[first[p->edges[e].b + 1]++] = e;
    }
    for (int v = 0; v < p->n_nodes; v++) {
        double now = INFINITY;
        int at = choice[v];
        for (int s = at; s >= 0; s--) {
            double x = p->cost[v][s];
            for (int k = first[v]; k < first[v + 1]; k++) {
                const struct ap_problem_edge *e = &p->edges[list[k]];
                int sa = e->a == v ? s : choice[e->a], sb = e->b == v ? s : choice[e->b];
                x += e->cost[(size_t)sa * (size_t)p->n_strategies[e->b] + (size_t)sb];
            }
            if (x <= now) {
                now = x;
                choice[v] = s;
            }
        }
    }
}

/* The best of what was found, and the bound on everything. */
struct answer {
    int *choice;
    double cost, bound;
};

/* The relaxation's solution, with the copies that it really needs. */
static void offer(struct search *s, const struct ap_problem *p,
                  const struct sel_join *join, const int *labels, struct answer *best)
{
    int *choice = ap_arena_dup(s->arena, labels, (size_t)p->n_nodes * sizeof(int));

    sel_join_decide(join, p, choice);
    prefer_low(s->arena, p, choice);
    double cost = ap_problem_score(p, choice);
    if (cost < best->cost) {
        best->cost = cost;
        memcpy(best->choice, choice, (size_t)p->n_nodes * sizeof(int));
    }
}

static void tell(const struct search *s, const struct answer *best)
{
    if (s->params->tells)
        ap_work_tell(s->budget, NULL, best->cost < AP_FORBIDDEN ? best->cost : INFINITY,
                     best->bound);
}

/* A gap that is good enough, of the best cost. */
static double near(const struct search *s)
{
    return fmax(s->params->gap, EPSILON);
}

static double limit_of(const struct search *s, const struct answer *best)
{
    return best->cost < AP_FORBIDDEN ? best->cost * (1 - near(s)) : INFINITY;
}

/* The best of a core's solutions that diving or rounding finds, into its best[]. */
static void look_for(struct part *part, struct sel_core *c)
{
    for (int i = 0; i < LOOK_SWEEPS && !out_of_time(part->s); i++) {
        sel_dual_sweep(part->d);
        if (part->d->bound >= part->v.cost) /* there is none */
            break;
    }
    part->v.bound = part->d->bound;
    if (part->d->bound < part->v.cost)
        guess_early(part);
    if (part->v.found)
        return;
    int *state = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    sel_dual_round(part->d, state);
    sel_local(c, state);
    sel_set_best(c, state);
}

/*
 * A look at the relaxation that proxies make, for its bound and a solution among few
 * strategies. True when some group needs more sets.
 */
static bool look_ahead(struct search *s, const struct ap_problem *p,
                       const struct sel_core *whole, int *max_sets, struct answer *best)
{
    tell(s, best);
    struct sel_core *c = sel_core_copy(whole);
    struct sel_join *join = sel_join_copies(c, max_sets);

    if (!sel_join_relaxed(join) || !sel_reduce(c, false) || c->n_left == 0)
        return false;
    struct part part = {.s = s, .c = c, .d = sel_dual_new(c)};
    part.v.cost = limit_of(s, best);
    look_for(&part, c);
    offer(s, p, join, c->best, best);
    best->bound = fmax(best->bound, part.d->bound);
    return sel_join_refine(join, c->best);
}

/*
 * Solves the problem with its copies joined, which may be a relaxation; true when that
 * leaves nothing to do. A relaxation is solved roughly as long as its solutions need sets
 * of copies that it has not: *tight says that they do not any more.
 */
static bool solve_joined(struct search *s, const struct ap_problem *p,
                         const struct sel_core *whole, int *max_sets, bool *tight,
                         struct answer *best)
{
    struct sel_core *c = sel_core_copy(whole);
    struct sel_join *join = sel_join_copies(c, max_sets);
    double limit = limit_of(s, best), gap = s->params->gap;
    if (!*tight && sel_join_relaxed(join))
        gap = fmax(gap, RELAXED_GAP);
    *tight |= gap == s->params->gap;
    tell(s, best);
    struct sel_verdict v = solve(s, c, limit, gap * fmax(best->bound, 0));

    if (v.found)
        offer(s, p, join, c->best, best);
    best->bound = fmax(best->bound, fmin(v.bound, limit));
    if (s->stopped || best->bound >= best->cost * (1 - fmax(s->params->gap, PROVEN)))
        return true;
    bool more = v.found && sel_join_refine(join, c->best), done = *tight && !more;
    *tight |= !more;
    return done;
}

/* Asks the caller for a better choice than the look ahead has found. */
static void ask_caller(struct search *s, const struct ap_problem *p, struct answer *best)
{
    if (!s->params->better || best->cost >= AP_FORBIDDEN || best->bound <= 0 ||
        best->bound >= best->cost * (1 - OPEN))
        return;
    int *choice =
        ap_arena_dup(s->arena, best->choice, (size_t)p->n_nodes * sizeof *choice);
    s->params->better(s->params->better_arg, s->budget, choice);
    double cost = ap_problem_score(p, choice);
    if (cost < best->cost) {
        best->cost = cost;
        memcpy(best->choice, choice, (size_t)p->n_nodes * sizeof *choice);
    }
    tell(s, best);
}

int ap_solve_exact(struct ap_arena *arena, const struct ap_problem *p,
                   const struct ap_solve_params *params, struct ap_solution *sol,
                   struct ap_err *err)
{
    struct search s = {
        .arena = arena, .params = params, .work = 1, .budget = params->work};
    struct answer best = {.cost = AP_FORBIDDEN};

    if (params->time_limit_sec > 0)
        s.until_sec = ap_now_sec() + params->time_limit_sec;
    s.work_limit = params->work_limit > 0 ? params->work_limit : DEFAULT_WORK;
    best.choice = AP_NEW_N(arena, p->n_nodes + 1, int);
    if (params->start && ap_problem_score(p, params->start) < AP_FORBIDDEN) {
        best.cost = ap_problem_score(p, params->start);
        memcpy(best.choice, params->start, (size_t)p->n_nodes * sizeof(int));
    }
    struct ap_mark mark = ap_arena_mark(arena);
    int *max_sets = AP_NEW_N(arena, p->n_nodes + 1, int);
    struct sel_core *whole = sel_core_from_problem(arena, p);
    whole->work = params->work;
    for (int e = 0; e < p->n_edges; e++)
        ap_work_add(params->work, BUILT * (int64_t)p->n_strategies[p->edges[e].a] *
                                      p->n_strategies[p->edges[e].b]);
    whole->until_sec = s.until_sec;
    struct ap_mark round = ap_arena_mark(arena);
    int looks = params->is_small ? 0 : LOOKS;
    bool tight = false; /* see solve_joined */
    if (best.cost < AP_FORBIDDEN && ap_work_over(params->work)) {
        s.stopped = "work limit";
        looks = 0;
    }
    for (int i = 0; i < looks && look_ahead(&s, p, whole, max_sets, &best); i++)
        ap_arena_rewind(arena, round);
    ap_arena_rewind(arena, round);
    ask_caller(&s, p, &best);
    ap_arena_rewind(arena, round);
    while ((best.cost >= AP_FORBIDDEN || !s.stopped) &&
           best.bound < best.cost * (1 - fmax(params->gap, PROVEN)) &&
           !solve_joined(&s, p, whole, max_sets, &tight, &best))
        ap_arena_rewind(arena, round);
    ap_arena_rewind(arena, mark);

    sol->stopped = s.stopped;
    if (best.cost >= AP_FORBIDDEN && s.stopped)
        return ap_err_set(err, "no solution found within the %s", s.stopped);
    if (best.cost >= AP_FORBIDDEN)
        return ap_err_set(err, "no solution: forbidden costs leave no legal choice");
    sol->choice = best.choice;
    sol->objective = best.cost;
    sol->bound = fmin(best.bound, best.cost);
    sol->work = s.work;
    if (!s.stopped)
        sol->stopped = "gap";
    if (sol->bound >= sol->objective * (1 - PROVEN))
        sol->stopped = "optimal";
    return 0;
}
