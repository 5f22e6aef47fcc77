/*
 * Problem: find the plan with the shortest step if collectives run concurrently with
 * operators. The time of a plan is then known by simulation only
 * (libcommon/plan/overlap.h); it is not a sum over groups and tensors, as a selection
 * problem needs it.
 *
 * Idea: neither stream is done before its own work, so that with C seconds of compute and
 * M of communication a step takes at least
 *
 *     λ C + (1 - λ) M      for every λ in [0, 1],
 *
 * which is a sum. The optimum of this weighted problem, or a lower bound of it, bounds
 * the step of every plan; and its plan is a candidate, which is simulated. More can be
 * charged: where a tensor is read by the next group alone, compute waits for all of its
 * conversion, as nothing stands between. With E seconds of these, and at most F of what
 * may run ahead of its place (casts of weights), compute is not done before C + E - F:
 *
 *     λ (C + E - F) + (1 - λ) M,
 *
 * so that such tensors count in full, and others 1 - λ. As a function of λ the minimum
 * over all plans is concave. Each known plan, the named ones first, gives a linear
 * function above it, and the next λ is where the lowest of these functions is highest
 * (Kelley's cutting planes). Before the whole space is searched, the choices of known
 * plans are searched in a fraction of the time: at λ, which gives more functions, and for
 * candidates, in problems where a conversion costs only what the best plan's order leaves
 * of it, since the time from its tensor to its first user is free. Cost: one search, and
 * up to four more where a gap remains, seven where the search took next to nothing, each
 * with a part of the budget and from the best plan so far.
 * Source: Kelley (J. SIAM 1960).
 */
#include <assert.h>
#include <math.h>

#include <string.h>

#include "axis_names.h"
#include "memory/memory.h"
#include "plan/microbatch.h"
#include "plan/overlap.h"
#include "problem/fold.h"
#include "problem/shard.h"

/* What most of these cost or gain, and the command that shows it: README of ap-shard,
 * "What each constant is for", which names those that were not varied alone. */
#define ROUNDS  3     /* values of λ that are asked at most; so many of known choices */
#define CLOSE   0.002 /* a gap, or a gain of the bound, that counts as zero */
#define FURTHER 0.1   /* a gain of the bound that another search must promise */
#define EXACT   0.001 /* the gap to which weighted problems are searched; --prove: 0 */
#define HIDDEN  (1 / 256.)  /* of a conversion at least counts, if all of it is hidden */
#define LEAST   (1 / 4096.) /* of λ and 1 - λ, so that neither stream is free */
/* Of the first search's budget for each of the others; with --prove; for candidates that
 * a first solution gives: from known choices, after a proof. */
#define LATER        0.13
#define LATER_PROVEN 0.5
#define SMALL_SHARE  0.004
#define FAR          0.28 /* the gap from where a candidate is searched after a proof */
#define PROVEN       1e-9 /* relative gap that counts as none */
#define NEAR         (1 / 32.) /* between two λ that are about the same */
#define NEAR_END     (1 / 64.) /* between a λ and an end, which is then as good */
#define QUICK        1000      /* a search that took so little of its budget */
#define MOST_TOTALS  64
#define MOST_FOUND   16

/* A plan as a linear function of λ: C; M; E, the part of M that compute waits for. */
struct totals {
    double compute, comm, waited;
};

struct bounding {
    struct ap_arena *arena;
    const struct shard_task *task; /* whose cost overlaps */
    struct shard_task serial;      /* for the searches */
    struct ap_cost cost;           /* of it; shares the cache */
    struct ap_weighting weighting;
    double *weight;             /* [node] */
    struct shard_params params; /* of all searches but the first */
    const int *twin;            /* [group]: see shard_fold */
    const bool *waited;         /* [node]: compute waits for its conversions */
    bool open;                  /* the last search of the whole space left a gap */
    bool quick;                 /* it took next to nothing */
    bool waits;                 /* E - F is counted */
    double ahead_sec;           /* F */
    int n_totals;
    int silent; /* the totals of the plan that sends nothing, -1 */
    struct totals totals[MOST_TOTALS];
    struct shard_answer *best; /* its objective is simulated */
    double comm_per_compute;   /* of its plan */
    double bound, tried[ROUNDS + 2];
    int n_tried, n_searches;
    struct ap_plan found[MOST_FOUND]; /* by searches, the latest last */
    int n_found;
};

/* ---- what is waited for ---- */

/* At most what groups compute that may run ahead of their place: what is sent, and what
 * it is made of. A scalar is never sent. */
static double find_ahead(struct ap_arena *scratch, const struct shard_task *task,
                         const bool *made)
{
    const struct ap_nests *nests = task->nests;
    const struct ap_choice_vec whole = AP_CHOICE_NONE;
    bool *ahead = AP_NEW_N(scratch, nests->n + 1, bool);
    double sec = 0;

    for (int i = nests->n - 1; i >= 0; i--) {
        const struct ap_nest *nest = &nests->nest[i];
        ahead[i] |=
            made[i] && nest->n_factors > 0 && !ap_plan_group_is_free(task->graph, nest);
        for (int k = 0; k < nest->n_ins && ahead[i]; k++)
            ahead[task->graph->nodes[nest->ins[k].node].group] = true;
        if (ahead[i])
            sec += ap_plan_group_sec(nest, task->graph, task->cost, &whole);
    }
    return sec;
}

static void find_waited(struct bounding *b, struct ap_arena *scratch)
{
    const struct shard_task *task = b->task;
    const struct ap_nests *nests = task->nests;
    const bool *made = ap_made_of_weights(scratch, nests);
    bool *waited = AP_NEW_N(b->arena, task->graph->n_nodes + 1, bool);
    int *next = AP_NEW_N(scratch, nests->n + 1, int); /* first after it that computes */
    struct select_users users = {0};

    b->waited = waited;
    if (task->cost->mesh.microbatch)
        return; /* the order of groups is not that of the graph */
    for (int i = nests->n - 1, behind = nests->n; i >= 0; i--) {
        const struct ap_nest *nest = &nests->nest[i];
        next[i] = behind;
        if (!ap_plan_group_is_free(task->graph, nest))
            behind = i;
    }
    b->ahead_sec = find_ahead(scratch, task, made);
    select_users_init(scratch, task->graph, nests, &users);
    for (int i = 0; i < nests->n; i++)
        for (int o = 0; o < nests->nest[i].n_outs; o++) {
            int node = nests->nest[i].outs[o];
            select_users_of(&users, node);
            bool all = users.n > 0 && !made[i];
            for (int u = 0; u < users.n; u++)
                all &= users.uses[u].group > i && users.uses[u].alias < 0 &&
                       users.uses[u].slot >= 0 && users.uses[u].group <= next[i] &&
                       ap_plan_group_phase(
                           task->graph, &nests->nest[users.uses[u].group]) != AP_UPDATE;
            waited[node] = all;
        }
    select_users_free(&users);
}

/* Groups that may be tied have the same weights: the least of them. */
static void tie_weights(struct bounding *b)
{
    const struct ap_nests *nests = b->task->nests;

    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < nests->n; i++) {
            const struct ap_nest *own = &nests->nest[i], *of = &nests->nest[b->twin[i]];
            for (int m = 0; m < own->n_members && b->twin[i] != i; m++) {
                double *mine = &b->weight[own->members[m]];
                double *first = &b->weight[of->members[m]];
                *(pass ? mine : first) = pass ? *first : fmin(*mine, *first);
            }
        }
}

/* ---- plans as linear functions and candidates ---- */

static void add_line(struct bounding *b, const struct ap_price *price,
                     const struct ap_conversions *conv)
{
    struct totals l = {price->compute_sec, price->comm_sec, 0};

    for (int i = 0; i < conv->n; i++)
        if (b->waited[conv->conv[i].node])
            l.waited += conv->conv[i].path.sec;
    if (b->n_totals < MOST_TOTALS)
        b->totals[b->n_totals++] = l;
}

static bool fits(const struct bounding *b, const struct ap_plan *plan)
{
    double sec;
    int64_t peak;

    if (b->task->memory_bytes == 0)
        return true;
    mem_measure(plan, b->task->cost, b->task->memory_bytes, &sec, &peak, NULL);
    return peak <= b->task->memory_bytes;
}

/* Simulates a plan and keeps it if it is the best one. */
static void try_plan(struct bounding *b, const struct ap_plan *plan, bool known_to_fit)
{
    struct ap_arena scratch = {0};
    struct ap_conversions conv;
    struct ap_err err = {0};

    if (ap_plan_check_choices(plan, b->task->cost, &err) == 0 &&
        ap_plan_conversions(&scratch, plan, b->task->cost, &conv, &err) == 0) {
        struct ap_price price = ap_plan_price(plan, b->task->cost, &conv);
        add_line(b, &price, &conv);
        if (price.step_sec < b->best->objective && (known_to_fit || fits(b, plan))) {
            b->best->objective = price.step_sec;
            b->best->plan = *plan;
            b->comm_per_compute = price.comm_sec / price.compute_sec;
        }
    }
    ap_arena_free(&scratch);
}

/* ---- the weighted problems ---- */

/* λ of compute; doubled, so that λ = 1/2 is the serial problem. */
static double set_weights(struct bounding *b, double lambda)
{
    for (int i = 0; i < b->task->graph->n_nodes; i++)
        b->weight[i] = 2 * (b->waits && b->waited[i] ? 1 : 1 - lambda);
    b->weighting.compute = 2 * lambda;
    tie_weights(b);
    return 0.5;
}

static void set_serial(struct bounding *b)
{
    for (int i = 0; i < b->task->graph->n_nodes; i++)
        b->weight[i] = 1;
    b->weighting.compute = 1;
}

/*
 * A conversion costs what is left of it when it starts with its tensor and ends with the
 * first use, in the order of the plan; at least the share that compute leaves the
 * network.
 */
static void set_exposed(struct bounding *b, const struct ap_plan *plan, double hidden)
{
    struct ap_arena scratch = {0};
    const struct ap_nests *nests = plan->nests;
    const struct ap_graph *g = plan->graph;
    const struct ap_cost *cost = b->task->cost;
    const int *order = ap_plan_order(&scratch, plan, ap_plan_when(&scratch, plan));
    double *begins = AP_NEW_N(&scratch, nests->n + 1, double); /* [group] */
    double *sec = AP_NEW_N(&scratch, nests->n + 1, double);    /* [group] */
    const bool *made = ap_made_of_weights(&scratch, nests);
    const unsigned all = (1u << plan->mesh.n_axes) - 1;
    struct select_users users = {0};
    double now = 0;

    for (int k = 0; k < nests->n; k++) {
        const int i = order[k];
        begins[i] = now;
        sec[i] = ap_plan_group_sec(&nests->nest[i], g, cost, &plan->choice[i]);
        now += sec[i];
    }
    select_users_init(&scratch, g, nests, &users);
    for (int i = 0; i < g->n_nodes; i++) {
        const int home = g->nodes[i].group;
        double end = begins[home] + sec[home];
        double use = now, all_sec;
        select_users_of(&users, i);
        for (int u = 0; u < users.n; u++)
            if (users.uses[u].group >= 0)
                use = fmin(use, begins[users.uses[u].group]);
        all_sec = ap_cost_collective(cost, AP_OP_ALL_REDUCE, all,
                                     ap_shape_bytes(&g->nodes[i].shape));
        b->weight[i] = made[home] || all_sec <= 0
                           ? hidden
                           : fmax(hidden, 1 - fmax(0, use - end) / all_sec);
    }
    select_users_free(&users);
    b->weighting.compute = 1;
    tie_weights(b);
    ap_arena_free(&scratch);
}

static double later(const struct bounding *b)
{
    return b->params.prove ? LATER_PROVEN : LATER;
}

double shard_overlap_budgets(const struct shard_params *params)
{
    const double later = params->prove ? LATER_PROVEN : LATER;

    /* the quick first one takes none of its own */
    return fmax(1 + (ROUNDS + 1) * later, (ROUNDS + 4) * later);
}

/* What is left of an answer when its search's memory goes. */
static void keep_answer(struct bounding *b, struct shard_answer *answer)
{
    const struct ap_plan *plan = &answer->plan;
    const size_t n_groups = (size_t)b->task->nests->n;
    const size_t n_nodes = (size_t)b->task->graph->n_nodes;

    answer->plan.choice =
        ap_arena_dup(b->arena, plan->choice, n_groups * sizeof *plan->choice);
    if (plan->regather)
        answer->plan.regather =
            ap_arena_dup(b->arena, plan->regather, n_nodes * sizeof *plan->regather);
    answer->stats = ap_arena_printf(b->arena, "%s", answer->stats);
}

/* One search under the weights at hand, in memory that the next one uses again; known:
 * among the choices of plans that are known. */
static int search(struct bounding *b, double share, bool known,
                  struct shard_answer *answer, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct shard_task *s = &b->serial;
    struct ap_work *whole = b->task->work;
    struct ap_work part = {.limit = whole->limit, .progress = whole->progress};
    const int n = b->task->n_plans;

    part = ap_work_share(&part, share / shard_overlap_budgets(&b->params));
    memcpy(s->plans, b->task->plans, (size_t)n * sizeof *s->plans);
    s->n_plans = n;
    if (known)
        for (int i = 0; i < b->n_found; i++)
            s->plans[s->n_plans++] = b->found[i];
    else if (isfinite(b->best->objective))
        s->plans[s->n_plans++] = b->best->plan;
    for (int i = 0; i < s->n_plans; i++)
        s->plan_sec[i] = NAN;
    s->work = &part;
    s->memory_bytes = known ? 0 : b->task->memory_bytes;
    b->params.known = known;
    int rc = shard_ilp(&scratch, s, answer, err);
    if (rc == 0)
        keep_answer(b, answer);
    ap_arena_free(&scratch);
    ap_work_add(whole, part.done);
    s->work = whole;
    if (!known) {
        b->quick = part.done < part.limit / QUICK;
        b->n_searches++;
    }
    return rc;
}

/* Keeps a plan that a search found; the oldest makes room. Known choices are searched
 * without a limit of memory. */
static void take_found(struct bounding *b, const struct ap_plan *plan, bool known)
{
    if (b->n_found == MOST_FOUND)
        memmove(b->found, b->found + 1, --b->n_found * sizeof *b->found);
    b->found[b->n_found++] = *plan;
    try_plan(b, plan, !known);
}

/* The value and the slope of the lowest function. */
static double lowest(const struct bounding *b, double lambda, double *height)
{
    double slope = 0;

    *height = INFINITY;
    for (int k = 0; k < b->n_totals; k++) {
        const struct totals *l = &b->totals[k];
        const double compute = l->compute + (b->waits ? l->waited - b->ahead_sec : 0);
        const double y = lambda * compute + (1 - lambda) * l->comm;
        if (y < *height) {
            *height = y;
            slope = compute - l->comm;
        }
    }
    return slope;
}

/* Where the lowest of the functions is highest, and its value there. */
static double next_lambda(const struct bounding *b, double *height)
{
    double low = LEAST, high = 1 - LEAST, at = 0.5;

    for (int i = 0; i < 60; i++) { /* concave */
        at = (low + high) / 2;
        *(lowest(b, at, height) > 0 ? &low : &high) = at;
    }
    return at;
}

static bool tried(const struct bounding *b, double lambda)
{
    for (int i = 0; i < b->n_tried; i++)
        if (fabs(b->tried[i] - lambda) < NEAR)
            return true;
    return false;
}

static bool closed(const struct bounding *b)
{
    return b->bound >= b->best->objective * (1 - CLOSE);
}

/* Raises the bound by a search of the whole space; the first fills in what is said of
 * the search. */
static int search_bound(struct bounding *b, double lambda, double share,
                        struct ap_err *err)
{
    struct shard_answer answer;
    const double scale = set_weights(b, lambda);

    if (search(b, share, false, &answer, err))
        return -1;
    b->params.emit = false;
    b->tried[b->n_tried++] = lambda;
    b->open = answer.bound < answer.objective * (1 - CLOSE);
    b->bound =
        fmax(b->bound, scale * answer.bound - (b->waits ? lambda * b->ahead_sec : 0));
    take_found(b, &answer.plan, false);
    if (b->n_tried == 1) {
        b->best->stats = answer.stats;
        b->best->solver = answer.solver;
        b->best->problem = answer.problem;
    }
    return 0;
}

/* The named plans. What compute waits for counts where in the best of them it is more
 * than what may run ahead. */
static void try_named(struct bounding *b)
{
    for (int i = 0; i < b->task->n_plans; i++) {
        const double before = b->best->objective;
        try_plan(b, &b->task->plans[i], false);
        if (b->best->objective < before)
            b->waits = b->totals[b->n_totals - 1].waited > b->ahead_sec;
    }
}

/* Whole on every device, a plan sends nothing. Pins may forbid it: its totals only. */
static void add_silent_line(struct bounding *b)
{
    const struct shard_task *task = b->task;
    const struct ap_choice_vec whole = AP_CHOICE_NONE;
    struct totals l = {0};

    if (task->cost->mesh.microbatch || b->n_totals == MOST_TOTALS)
        return;
    for (int i = 0; i < task->nests->n; i++)
        l.compute +=
            ap_plan_group_sec(&task->nests->nest[i], task->graph, task->cost, &whole);
    b->silent = b->n_totals;
    b->totals[b->n_totals++] = l;
}

/* Where the weighted problem is proven, another plan is a better candidate only as its
 * weights are others: a first solution will do. */
static double candidate_share(const struct bounding *b, bool known)
{
    if (!known && (b->open || b->quick || b->task->memory_bytes > 0))
        return later(b);
    return SMALL_SHARE;
}

/* For a candidate: what the best plan's order leaves of each conversion, at least a
 * share. Whether it is better. */
static bool try_exposed(struct bounding *b, double least, bool known)
{
    const double before = b->best->objective;
    struct shard_answer answer;
    struct ap_err none = {0};

    set_exposed(b, &b->best->plan, fmin(least, fmax(HIDDEN, b->comm_per_compute)));
    if (search(b, candidate_share(b, known), known, &answer, &none))
        return false; /* within a limit of memory it was too short */
    take_found(b, &answer.plan, known);
    return b->best->objective < before * (1 - PROVEN);
}

/* With less and less of what is hidden, until that gains nothing. */
static void try_all_exposed(struct bounding *b, bool known)
{
    static const double least[] = {1, 1 / 2., 1 / 8., HIDDEN};

    for (int i = 0; i < (int)(sizeof least / sizeof *least) && !closed(b); i++)
        if (!try_exposed(b, least[i], known))
            break;
}

/* Searches known choices where the lowest function is highest, until that is no lower;
 * where it then is. */
static double known_lambda(struct bounding *b)
{
    double lambda = 0.5, height, bound = 0;

    for (int i = 0; i < ROUNDS; i++) {
        struct shard_answer answer;
        struct ap_err none = {0};
        lambda = next_lambda(b, &height);
        if (height <= bound * (1 + CLOSE))
            break;
        double scale = set_weights(b, lambda);
        if (search(b, SMALL_SHARE, true, &answer, &none))
            break;
        bound = fmax(bound,
                     scale * answer.objective - (b->waits ? lambda * b->ahead_sec : 0));
        take_found(b, &answer.plan, true);
    }
    return next_lambda(b, &height);
}

/* Where only the plan that sends nothing keeps the height down, the plans between it and
 * the best are not known: half way to the middle. */
static double away_from_silence(struct bounding *b, double lambda)
{
    double height;

    if (b->silent < 0)
        return lambda;
    const struct totals silent = b->totals[b->silent];
    b->totals[b->silent].compute = INFINITY;
    const double other = next_lambda(b, &height);
    b->totals[b->silent] = silent;
    return fabs(other - lambda) > NEAR ? (lambda + 0.5) / 2 : lambda;
}

static double from_end(double lambda)
{
    return fmin(lambda, 1 - lambda);
}

/* The λ of the first search of the whole space, and its share of the budget. Near an end
 * the end itself is as good, and proven sooner; so is, of two λ, that nearer to an end.
 */
static double first_lambda(struct bounding *b, double *share)
{
    double height;
    const double named = next_lambda(b, &height);

    add_silent_line(b);
    try_all_exposed(b, true);
    const double known = known_lambda(b), lambda = away_from_silence(b, known);
    *share = later(b);
    if (lambda != known)
        return lambda;
    if (from_end(lambda) < NEAR_END)
        return lambda < 0.5 ? LEAST : 1 - LEAST;
    *share = 1;
    return from_end(named) > NEAR_END && from_end(named) < from_end(lambda) ? named
                                                                            : lambda;
}

static int search_all(struct bounding *b, struct ap_err *err)
{
    double lambda = 0.5, share = 1, height;
    struct ap_err none = {0};

    try_named(b);
    if (isfinite(b->best->objective) && !b->params.emit)
        lambda = first_lambda(b, &share);
    if (search_bound(b, lambda, share, err))
        return -1;
    const bool quick = b->quick;
    const bool whole = b->open || b->task->memory_bytes > 0;
    try_all_exposed(b, true);
    if (quick)
        try_all_exposed(b, false);
    else if (!closed(b) && (whole || b->bound < b->best->objective * (1 - FAR)) &&
             try_exposed(b, 1, false))
        try_all_exposed(b, true);
    for (int round = 1; round < ROUNDS && !closed(b); round++) {
        lambda = away_from_silence(b, next_lambda(b, &height));
        lowest(b, lambda, &height);
        if (tried(b, lambda) || height <= b->bound * (1 + (quick ? CLOSE : FURTHER)) ||
            search_bound(b, lambda, later(b), &none))
            break; /* within a limit of memory this one was too short */
        try_all_exposed(b, true);
    }
    return 0;
}

static int finish(struct bounding *b, struct ap_err *err)
{
    struct shard_answer *a = b->best;

    a->note = shard_name_axes(b->arena, b->task, a);
    if (ap_plan_sec(&a->plan, b->task->cost, &a->objective, err))
        return -1;
    assert(b->bound <= a->objective * (1 + 1e-6)); /* or it bounds something else */
    a->bound = fmin(b->bound, a->objective);
    a->stopped = a->bound >= a->objective * (1 - PROVEN) ? "optimal" : "overlap";
    a->stats = ap_arena_printf(b->arena, "%s,\"lambdas\":%d,\"overlap_searches\":%d",
                               a->stats, b->n_tried, b->n_searches);
    return 0;
}

/* Any other search knows no streams: its plan is found serially and simulated. */
static int search_serially(struct bounding *b, shard_fn *run, struct ap_err *err)
{
    set_serial(b);
    if (run(b->arena, &b->serial, b->best, err))
        return -1;
    b->best->objective = -1;
    b->best->bound /= 2;
    return 0;
}

int shard_overlap(struct ap_arena *arena, const struct shard_task *task, shard_fn *run,
                  struct shard_answer *answer, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct shard_fold fold;
    struct bounding b = {.arena = arena,
                         .task = task,
                         .serial = *task,
                         .cost = *task->cost,
                         .params = *task->params,
                         .weight = AP_NEW_N(arena, task->graph->n_nodes + 1, double),
                         .silent = -1,
                         .best = answer};
    int rc;

    b.weighting.tensor = b.weight;
    b.cost.weighting = &b.weighting;
    b.cost.cluster.overlap = false;
    b.serial.cost = &b.cost;
    b.serial.params = &b.params;
    b.params.gap = task->params->prove ? 0 : EXACT;
    b.serial.plans = AP_NEW_N(arena, task->n_plans + MOST_FOUND, struct ap_plan);
    b.serial.plan_sec = AP_NEW_N(arena, task->n_plans + MOST_FOUND, double);
    *answer = (struct shard_answer){.objective = INFINITY};
    if (run == shard_ilp) {
        shard_fold_find(&scratch, task, task->families, &fold);
        b.twin = fold.twin;
        b.serial.fold = &fold;
        find_waited(&b, &scratch);
        rc = search_all(&b, err) || finish(&b, err) ? -1 : 0;
    } else {
        memcpy(b.serial.plans, task->plans, (size_t)task->n_plans * sizeof *task->plans);
        memcpy(b.serial.plan_sec, task->plan_sec,
               (size_t)task->n_plans * sizeof *task->plan_sec);
        rc = search_serially(&b, run, err);
    }
    ap_arena_free(&scratch);
    return rc;
}
