/*
 * Problem: the plan whose step is shortest where collectives run beside operators. What a
 * plan takes is then known by simulation only (libcommon/plan/overlap.h), which is no sum
 * over groups and tensors, as a selection problem needs it.
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
 * so that such tensors count in full, and others 1 - λ. As a function of λ the least of
 * all plans is concave; the plans that are known, first the named ones, are lines above
 * it, and the next λ is where the lowest of these is highest (Kelley's cutting planes).
 * Where the first search leaves a gap, there follows, for a candidate only, a problem in
 * which a conversion costs what the best plan's order leaves of it: the time from its
 * tensor to its first user is free. Cost: a search, and where a gap is left up to three
 * more, which start from the best plan so far and have a tenth of its budget each.
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
#include "shard.h"

#define ROUNDS 4     /* searches at most */
#define CLOSE  0.002 /* a gap, or a promised gain of the bound, that is none */
/* A gap of a weighted problem that is none, but for --prove: a tenth of CLOSE. Seconds
 * and prices: scripts/ask-table --options "--overlap on". */
#define EXACT  (CLOSE / 10)
#define HIDDEN (1 / 256.)  /* of a conversion at least counts, if all of it is hidden */
#define LEAST  (1 / 4096.) /* of λ and 1 - λ, so that neither stream is free */
/* Of the first search's budget for each of the others; with --prove. */
#define LATER        0.1
#define LATER_PROVEN 0.5
#define PROVEN       1e-9 /* relative gap that counts as none */
#define MOST_LINES   64

/* A plan, as a line over λ. */
struct line {
    double compute, comm; /* C + E - F; M */
};

struct bounding {
    struct ap_arena *arena;
    const struct shard_task *task; /* whose cost overlaps */
    struct shard_task serial;      /* for the searches */
    struct ap_cost cost;           /* of it; shares the cache */
    struct ap_weighting weighting;
    double *weight;             /* [node] */
    struct shard_params params; /* of all searches but the first */
    const bool *waited;         /* [node]: compute waits for its conversions */
    double ahead_sec;           /* F */
    int n_lines;
    struct line line[MOST_LINES];
    struct shard_answer *best; /* its objective is simulated */
    double bound, tried[ROUNDS + 1];
    int n_tried, n_searches;
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
    int *next = AP_NEW_N(scratch, nests->n + 1, int); /* first behind it that computes */
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
    struct ap_arena scratch = {0};
    const struct ap_nests *nests = b->task->nests;
    struct shard_fold fold;

    shard_fold_find(&scratch, b->task, b->task->families, 1, &fold);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < nests->n; i++) {
            const struct ap_nest *own = &nests->nest[i], *of = &nests->nest[fold.twin[i]];
            for (int m = 0; m < own->n_members && fold.twin[i] != i; m++) {
                double *mine = &b->weight[own->members[m]];
                double *first = &b->weight[of->members[m]];
                *(pass ? mine : first) = pass ? *first : fmin(*mine, *first);
            }
        }
    ap_arena_free(&scratch);
}

/* ---- plans as lines and candidates ---- */

static void add_line(struct bounding *b, const struct ap_price *price,
                     const struct ap_conversions *conv)
{
    struct line l = {price->compute_sec - b->ahead_sec, price->comm_sec};

    for (int i = 0; i < conv->n; i++)
        if (b->waited[conv->conv[i].node])
            l.compute += conv->conv[i].path.sec;
    if (b->n_lines < MOST_LINES)
        b->line[b->n_lines++] = l;
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
        }
    }
    ap_arena_free(&scratch);
}

/* ---- the weighted problems ---- */

/* λ of compute; doubled, so that λ = 1/2 is the serial problem. */
static double set_weights(struct bounding *b, double lambda)
{
    for (int i = 0; i < b->task->graph->n_nodes; i++)
        b->weight[i] = 2 * (b->waited[i] ? 1 : 1 - lambda);
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
    const bool *made = ap_made_of_weights(&scratch, nests);
    const unsigned all = (1u << plan->mesh.n_axes) - 1;
    struct select_users users = {0};
    double now = 0;

    for (int k = 0; k < nests->n; k++) {
        begins[order[k]] = now;
        now +=
            ap_plan_group_sec(&nests->nest[order[k]], g, cost, &plan->choice[order[k]]);
    }
    select_users_init(&scratch, g, nests, &users);
    for (int i = 0; i < g->n_nodes; i++) {
        const int home = g->nodes[i].group;
        double end = begins[home] +
                     ap_plan_group_sec(&nests->nest[home], g, cost, &plan->choice[home]);
        double use = now, sec;
        select_users_of(&users, i);
        for (int u = 0; u < users.n; u++)
            if (users.uses[u].group >= 0)
                use = fmin(use, begins[users.uses[u].group]);
        sec = ap_cost_collective(cost, AP_OP_ALL_REDUCE, all,
                                 ap_shape_bytes(&g->nodes[i].shape));
        b->weight[i] =
            made[home] || sec <= 0 ? hidden : fmax(hidden, 1 - fmax(0, use - end) / sec);
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
    return 1 + (ROUNDS - 1) * (params->prove ? LATER_PROVEN : LATER);
}

/* One search under the weights at hand, with the best plan so far beside the named ones.
 */
static int search(struct bounding *b, double share, struct shard_answer *answer,
                  struct ap_err *err)
{
    struct shard_task *s = &b->serial;
    struct ap_work *whole = b->task->work;
    struct ap_work part = {.progress = whole->progress};
    const int n = b->task->n_plans;

    if (whole->limit > 0)
        part.limit =
            llround(share / shard_overlap_budgets(&b->params) * (double)whole->limit);
    for (int i = 0; i < n; i++)
        s->plans[i] = b->task->plans[i];
    s->n_plans = n;
    if (isfinite(b->best->objective))
        s->plans[s->n_plans++] = b->best->plan;
    for (int i = 0; i < s->n_plans; i++)
        s->plan_sec[i] = NAN;
    s->work = &part;
    int rc = shard_ilp(b->arena, s, answer, err);
    ap_work_add(whole, part.done);
    b->n_searches++;
    return rc;
}

/* Where the lowest of the lines is highest, and how high. */
static double next_lambda(const struct bounding *b, double *height)
{
    double low = LEAST, high = 1 - LEAST, at = 0.5;

    for (int i = 0; i < 60; i++) { /* concave */
        double least = INFINITY, slope = 0;
        at = (low + high) / 2;
        for (int k = 0; k < b->n_lines; k++) {
            double y = at * b->line[k].compute + (1 - at) * b->line[k].comm;
            if (y < least) {
                least = y;
                slope = b->line[k].compute - b->line[k].comm;
            }
        }
        *height = least;
        *(slope > 0 ? &low : &high) = at;
    }
    return at;
}

static bool tried(const struct bounding *b, double lambda)
{
    for (int i = 0; i < b->n_tried; i++)
        if (fabs(b->tried[i] - lambda) < LEAST / 2)
            return true;
    return false;
}

static bool closed(const struct bounding *b)
{
    return b->bound >= b->best->objective * (1 - CLOSE);
}

static void search_bounds(struct bounding *b)
{
    for (int round = 2; round < ROUNDS && !closed(b); round++) {
        struct shard_answer answer;
        double height, lambda = next_lambda(b, &height);
        if (tried(b, lambda) || height <= b->bound * (1 + CLOSE))
            break;
        double scale = set_weights(b, lambda);
        struct ap_err none = {0};
        if (search(b, later(b), &answer, &none))
            break; /* within a limit of memory this one was too short */
        b->tried[b->n_tried++] = lambda;
        b->bound = fmax(b->bound, scale * answer.bound - lambda * b->ahead_sec);
        try_plan(b, &answer.plan, true);
    }
}

/* Seconds of conversions that compute waits for. */
static double waited_sec(const struct bounding *b, const struct ap_conversions *conv)
{
    double sec = 0;

    for (int i = 0; i < conv->n; i++)
        sec += b->waited[conv->conv[i].node] ? conv->conv[i].path.sec : 0;
    return sec;
}

/* The named plans. What compute waits for counts where in the best of them it is more
 * than what may run ahead. */
static int try_named(struct bounding *b, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct ap_conversions conv;
    int rc = 0;

    for (int i = 0; i < b->task->n_plans; i++)
        try_plan(b, &b->task->plans[i], false);
    if (isfinite(b->best->objective))
        rc = ap_plan_conversions(&scratch, &b->best->plan, b->task->cost, &conv, err);
    if (rc == 0 && isfinite(b->best->objective) && waited_sec(b, &conv) <= b->ahead_sec) {
        b->waited = AP_NEW_N(b->arena, b->task->graph->n_nodes + 1, bool);
        b->ahead_sec = 0;
        b->n_lines = 0; /* again, without what is waited for */
        for (int i = 0; i < b->task->n_plans; i++)
            try_plan(b, &b->task->plans[i], false);
    }
    ap_arena_free(&scratch);
    return rc;
}

/* For a candidate: what the best plan's order leaves of each conversion. */
static int try_exposed(struct bounding *b, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct ap_conversions conv;
    struct shard_answer answer;
    struct ap_err none = {0};

    if (ap_plan_conversions(&scratch, &b->best->plan, b->task->cost, &conv, err)) {
        ap_arena_free(&scratch);
        return -1;
    }
    const struct ap_price price = ap_plan_price(&b->best->plan, b->task->cost, &conv);
    ap_arena_free(&scratch);
    set_exposed(b, &b->best->plan,
                fmin(1, fmax(HIDDEN, price.comm_sec / price.compute_sec)));
    if (!search(b, later(b), &answer, &none)) /* or memory made it too short */
        try_plan(b, &answer.plan, true);
    return 0;
}

/* The first search: where the named plans' lowest line is highest; whoever wants the
 * problem in writing gets the serial one. */
static int search_first(struct bounding *b, struct ap_err *err)
{
    struct shard_answer first;
    double height, lambda = 0.5;

    if (b->n_lines > 0 && !b->params.emit)
        lambda = next_lambda(b, &height);
    double scale = set_weights(b, lambda);
    if (search(b, 1, &first, err))
        return -1;
    b->params.emit = false;
    b->tried[b->n_tried++] = lambda;
    b->bound = scale * first.bound - lambda * b->ahead_sec;
    const struct ap_plan found = first.plan;
    first.objective = b->best->objective;
    first.plan = b->best->plan;
    *b->best = first;
    try_plan(b, &found, true);
    return 0;
}

static int search_all(struct bounding *b, struct ap_err *err)
{
    if (try_named(b, err) || search_first(b, err) || (!closed(b) && try_exposed(b, err)))
        return -1;
    search_bounds(b);
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
    struct bounding b = {.arena = arena,
                         .task = task,
                         .serial = *task,
                         .cost = *task->cost,
                         .params = *task->params,
                         .weight = AP_NEW_N(arena, task->graph->n_nodes + 1, double),
                         .best = answer};
    int rc;

    b.weighting.tensor = b.weight;
    b.cost.weighting = &b.weighting;
    b.cost.cluster.overlap = false;
    b.serial.cost = &b.cost;
    b.serial.params = &b.params;
    b.params.gap = b.params.prove ? 0 : EXACT;
    b.serial.plans = AP_NEW_N(arena, task->n_plans + 1, struct ap_plan);
    b.serial.plan_sec = AP_NEW_N(arena, task->n_plans + 1, double);
    *answer = (struct shard_answer){.objective = INFINITY};
    if (run == shard_ilp) {
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
