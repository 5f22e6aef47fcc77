/*
 * The search with memory on the reduced core, and the solvers auto, local and exact.
 *
 * After the reductions (mem_core.c), rounds. In each, the first worker raises the
 * bound and rounds choices from it (mem_dual.c), or, when the bound stalls, tries
 * to close the gap by integer programming on what the bound leaves (mem_program.c),
 * or searches like the others, with a clock also when the bound rises slowly; the others
 * search near the best choices with the prices that the bound found (mem_local.c),
 * each with its own seed. At the end of a round the best choice, the best bound and its
 * prices are shared, in the order of workers.
 *
 * With a limit of time rounds last ROUND_SEC. Without, they do ROUND_WORK work, there are
 * always two workers, and threads only decide whether they run at once: results repeat
 * byte for byte.
 */
#include "mem.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* `scripts/bench/solve FOLDER 10 60` on the contest's instances shows what these are
 * worth: objective, bound and seconds. */
#define ROUND_SEC     0.5       /* of a round, at most */
#define FIRST_SEC     0.12      /* the first round; they grow */
#define ROUND_EVERY   4         /* steps of the dual between two roundings */
#define ROUND_WORK    200000000 /* of a round without a clock: cells, at most, and ... */
#define LEAST_WORK    300000    /* ... for small cores this, ... */
#define CELL_WORK     300       /* ... and so many per cell of their tables */
#define SMALL_CELLS   20000     /* cores that are proven at once */
#define DEFAULT_ROUND 30        /* rounds without limits */
#define MAX_WORKERS   64
#define REDUCE_PART   0.4  /* of the time, at most, for reductions */
#define FINISH_SEC    0.03 /* kept for undoing, checking and printing */
#define WARM          50   /* steps of the dual until its prices are worth using */
#define WARM_PART     0.25 /* of the time, at most, for that */
#define STALLED       40   /* steps of the dual without much gain */
#define SLOW          5e-3 /* of the gap in a round: with a clock, the bound gets only */
#define SLOW_ROUNDS   3    /* every so many'th round */
#define IDLE_ROUNDS   12 /* without a better choice or bound; the last, without a clock */
#define EXACT_CELLS   120000  /* of an integer program, at most, and ... */
#define ALL_CELLS     2000000 /* ... where proofs come first */
#define EXACT_WORK    200000  /* simplex iterations, nodes */
#define BARE_PART     0.25    /* of the time, when memory does not bind */
#define PRICES_CELLS  1000000 /* cores that are searched at prices of memory */
#define PRICES_PART   0.4     /* of the time, at most */
#define PROVEN        1e-9    /* relative gap that counts as none */
#define FIRST_SWEEPS  20      /* before an integer program is stated */

struct worker {
    struct ap_arena arena;
    struct search *search;
    int id;
    struct mem_dual *dual; /* of worker 0 */
    struct mem_local *local;
    struct mem_legal *legal; /* where roundings find no choice */
    struct mem_budget budget;
    int *best; /* the best of this round */
    double cost, bound;
    bool exact, proven; /* this round: try; done */
    int n_exact;
    pthread_t thread;
    bool running;
};

/* What a search may do: all; no proofs; proofs first. */
enum mode { AUTO, LOCAL, EXACT };

struct search {
    const struct mem_core *m;
    const struct contest_params *params;
    enum mode mode;
    bool integral; /* all costs are integers: so is every better choice's */
    int n_workers;
    struct worker *worker;
    int *best;
    double cost, bound, until_sec, warm_sec, worst;
    double bound_gain; /* of a round that raises the bound, lately */
    double *mu;
    int round, idle, exact_round, n_steps; /* steps of the dual */
    int64_t rounds, round_work, n_cells;
    double exact_limit;
    int64_t work;
};

/* ---- what a worker does in a round ---- */

static void offer(struct worker *w, const int *state, double cost)
{
    if (cost < w->cost) {
        w->cost = cost;
        memcpy(w->best, state, (size_t)w->search->m->core->n_nodes * sizeof(int));
    }
}

static void raise_bound(struct worker *w)
{
    struct mem_dual *d = w->dual;

    do {
        mem_dual_step(d, w->cost, &w->budget);
        if (w->budget.out && w->cost < INFINITY)
            break;
        if (d->n_steps % ROUND_EVERY == 1) {
            double cost = mem_dual_round(d, d->n_steps / ROUND_EVERY & 1, &w->budget);
            offer(w, d->state, cost);
        }
    } while (!w->budget.out && d->bound < w->cost * (1 - PROVEN));
    w->bound = fmax(w->bound, d->bound);
}

static void find_legal(struct worker *w)
{
    const struct search *s = w->search;

    if (!w->legal)
        w->legal =
            mem_legal_new(&w->arena, s->m, s->worst, s->params->seed + (uint64_t)w->id);
    const int *state = w->legal ? mem_legal_run(w->legal, &w->budget) : NULL;
    if (state)
        offer(w, state, mem_cost(s->m, state));
}

static void look_around(struct worker *w)
{
    const struct search *s = w->search;

    if (w->cost == INFINITY && w->id > 0 && s->round > 0)
        find_legal(w);
    if (w->cost == INFINITY || (w->id > 0 && s->n_steps < WARM && s->idle == 0 &&
                                (s->until_sec == 0 || ap_now_sec() < s->warm_sec)))
        return; /* without good prices this is the bound's time */
    mem_local_set(w->local, w->best, w->cost, s->bound, s->mu);
    mem_local_run(w->local, -INFINITY, &w->budget);
    const int *best = mem_local_best(w->local);
    offer(w, best, mem_cost(s->m, best));
}

/* A choice must cost less than this to be better. */
static double limit_of(const struct search *s, double cost)
{
    return s->integral && cost < INFINITY ? cost - 0.5 : cost;
}

static void close_gap(struct worker *w)
{
    struct search *s = w->search;
    struct ap_arena arena = {0};
    struct sel_proof proof = {.state = w->dual->state};
    struct mem_dual d = *w->dual;

    /* the fold and the program go with this arena; the dual's costs are kept */
    d.core = w->dual->core;
    struct ap_arena *own = d.core->arena;
    d.core->arena = &arena;
    const struct sel_program_limits limits = {
        .cost = fmin(limit_of(s, w->cost), s->worst),
        .cells = s->mode == EXACT ? ALL_CELLS : EXACT_CELLS,
        .until_sec = s->until_sec,
        .iterations = s->until_sec > 0 ? 0 : EXACT_WORK};
    mem_program(&arena, &d, &limits, &proof);
    d.core->arena = own;
    w->dual->core->arena = own;
    offer(w, proof.state, proof.cost);
    w->bound = fmax(w->bound, proof.bound);
    w->proven = proof.done;
    if (proof.done)
        w->bound = fmax(w->bound, fmin(w->cost, proof.bound + (s->integral ? 0.5 : 0)));
    w->n_exact++;
    ap_arena_free(&arena);
}

/* Whether the first worker should raise the bound, not search. */
static bool bound_pays(const struct search *s)
{
    if (s->cost == INFINITY || s->n_steps < WARM || s->round % 8 == 0)
        return true;
    if (s->worker[0].dual->n_stalls > STALLED)
        return false;
    return s->until_sec == 0 || s->round % SLOW_ROUNDS == 0 ||
           s->bound_gain > SLOW * (s->cost - s->bound);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    bool first = w->id == 0;
    bool stalled = first && w->search->mode == LOCAL && w->dual->n_stalls > STALLED;

    if (first && w->exact)
        close_gap(w);
    else if (first && !stalled && bound_pays(w->search))
        raise_bound(w);
    else
        look_around(w);
    return NULL;
}

/* ---- prices ---- */

/*
 * Once, where a first proof has failed on a core that is small enough: exact solutions at
 * prices of memory bound it better than messages do.
 */
static void search_prices(struct search *s)
{
    struct worker *w = &s->worker[0];
    struct ap_arena arena = {0};
    double cost = s->cost, bound = s->bound, until_sec = 0;

    if (s->until_sec > 0)
        until_sec = ap_now_sec() + PRICES_PART * (s->until_sec - ap_now_sec());
    memcpy(w->best, s->best, (size_t)s->m->core->n_nodes * sizeof(int));
    if (mem_prices(&arena, s->m, until_sec, w->best, &cost, &bound, s->mu)) {
        if (cost < s->cost) {
            s->cost = cost;
            memcpy(s->best, w->best, (size_t)s->m->core->n_nodes * sizeof(int));
        }
        if (bound > s->bound) {
            s->bound = bound;
            memcpy(w->dual->mu, s->mu, (size_t)s->m->n_slots * sizeof(double));
            memcpy(w->dual->best_mu, s->mu, (size_t)s->m->n_slots * sizeof(double));
        }
    }
    ap_arena_free(&arena);
}

/* ---- rounds ---- */

static void run_workers(struct search *s)
{
    int threads = s->params->threads > 1 ? s->params->threads : 1;
    double now = ap_now_sec(), sec = fmin(ROUND_SEC, FIRST_SEC * (1 + 0.3 * s->round));

    if (threads < s->n_workers)
        sec /= s->n_workers;
    for (int i = 0; i < s->n_workers; i++) {
        struct worker *w = &s->worker[i];
        w->budget =
            (struct mem_budget){.work_limit = s->until_sec > 0 ? 0 : s->round_work};
        if (s->until_sec > 0)
            w->budget.until_sec = fmin(now + sec, s->until_sec);
        w->budget.end_sec = s->until_sec;
        w->cost = s->cost;
        w->bound = s->bound;
        memcpy(w->best, s->best, (size_t)s->m->core->n_nodes * sizeof(int));
    }
    for (int i = 1; i < s->n_workers; i++) {
        struct worker *w = &s->worker[i];
        w->running = threads > 1 && !pthread_create(&w->thread, NULL, work, w);
    }
    work(&s->worker[0]);
    for (int i = 1; i < s->n_workers; i++) {
        struct worker *w = &s->worker[i];
        if (!w->running) {
            if (s->until_sec > 0)
                w->budget.until_sec = fmin(ap_now_sec() + sec, s->until_sec);
            work(w);
        } else {
            pthread_join(w->thread, NULL);
        }
    }
}

static void share(struct search *s)
{
    bool better = false;
    double bound = s->bound;

    for (int i = 0; i < s->n_workers; i++) {
        struct worker *w = &s->worker[i];
        s->work += w->budget.work;
        if (w->cost < s->cost) {
            better = true;
            s->cost = w->cost;
            memcpy(s->best, w->best, (size_t)s->m->core->n_nodes * sizeof(int));
        }
        better |= w->bound > s->bound * (1 + 1e-6);
        s->bound = fmax(s->bound, w->bound);
    }
    if (s->worker[0].dual->n_steps > s->n_steps)
        s->bound_gain += 0.3 * (s->bound - bound - s->bound_gain);
    s->n_steps = s->worker[0].dual->n_steps;
    memcpy(s->mu, s->worker[0].dual->best_mu, (size_t)s->m->n_slots * sizeof(double));
    s->idle = better ? 0 : s->idle + 1;
}

/* Whether the first worker should try to prove now. */
static bool time_to_prove(struct search *s)
{
    const struct mem_dual *d = s->worker[0].dual;

    if (s->mode == LOCAL || s->round == 0)
        return false;
    if (d->n_stalls <= STALLED && s->n_cells > SMALL_CELLS)
        return false;
    if (s->worker[0].n_exact == 0)
        return true;
    return s->cost < s->exact_limit && s->round - s->exact_round >= 4;
}

static const char *run(struct search *s)
{
    struct worker *first = &s->worker[0];

    for (s->round = 0;; s->round++) {
        ap_work_tell(s->params->work, "search", s->cost, s->bound);
        first->exact = time_to_prove(s);
        if (first->exact)
            s->exact_round = s->round;
        run_workers(s);
        share(s);
        if (first->exact)
            s->exact_limit = first->cost;
        if (first->proven && s->cost == INFINITY)
            return "infeasible";
        if (first->exact && !first->proven && first->n_exact == 1 &&
            s->n_cells <= PRICES_CELLS && s->m->n_slots > 0)
            search_prices(s);
        if (limit_of(s, s->cost) <= s->bound ||
            s->bound >= s->cost - PROVEN * fabs(s->cost)) {
            s->bound = s->cost;
            return "optimal";
        }
        if (s->until_sec > 0) {
            if (ap_now_sec() >= s->until_sec)
                return "time limit";
        } else if (s->round + 1 >= s->rounds || s->idle > IDLE_ROUNDS) {
            return "work limit";
        }
    }
}

/* ---- setting up ---- */

static bool all_integral(const struct ap_problem *p)
{
    for (int v = 0; v < p->n_nodes; v++)
        for (int s = 0; s < p->n_strategies[v]; s++)
            if (p->cost[v][s] != floor(p->cost[v][s]))
                return false;
    for (int e = 0; e < p->n_edges; e++) {
        size_t n = (size_t)p->n_strategies[p->edges[e].a] *
                   (size_t)p->n_strategies[p->edges[e].b];
        for (size_t i = 0; i < n; i++)
            if (p->edges[e].cost[i] != floor(p->edges[e].cost[i]))
                return false;
    }
    return true;
}

/* No choice of finite cost is more expensive than this. */
static double worst_cost(const struct sel_core *c)
{
    double sum = c->base;

    for (int v = 0; v < c->n_nodes; v++) {
        double most = 0;
        for (int s = 0; s < c->node[v].n_strategies; s++)
            if (c->node[v].cost[s] < INFINITY)
                most = fmax(most, c->node[v].cost[s]);
        sum += most;
    }
    for (int e = 0; e < c->n_edges; e++) {
        const struct sel_table *t = c->edge[e].table;
        double most = 0;
        for (int i = 0; i < t->n_rows * t->n_cols; i++)
            if (t->cost[i] < INFINITY)
                most = fmax(most, t->cost[i]);
        sum += most;
    }
    return 2 * sum + 1;
}

static void set_up(struct search *s, struct ap_arena *arena)
{
    int threads = s->params->threads > 1 ? s->params->threads : 1, n;

    s->n_workers = s->until_sec > 0 && threads > 2 ? threads : 2;
    if (s->n_workers > MAX_WORKERS)
        s->n_workers = MAX_WORKERS;
    n = s->m->core->n_nodes + 1;
    s->worker = AP_NEW_N(arena, s->n_workers, struct worker);
    s->best = AP_NEW_N(arena, n, int);
    s->mu = AP_NEW_N(arena, s->m->n_slots + 1, double);
    s->cost = INFINITY;
    s->bound = s->m->core->base;
    s->worst = worst_cost(s->m->core);
    for (int e = 0; e < s->m->core->n_edges; e++)
        s->n_cells += (int64_t)s->m->core->node[s->m->core->edge[e].a].n_strategies *
                      s->m->core->node[s->m->core->edge[e].b].n_strategies;
    s->round_work = LEAST_WORK + CELL_WORK * s->n_cells;
    if (s->round_work > ROUND_WORK)
        s->round_work = ROUND_WORK;
    for (int i = 0; i < s->n_workers; i++) {
        struct worker *w = &s->worker[i];
        w->search = s;
        w->id = i;
        w->best = AP_NEW_N(&w->arena, n, int);
        w->local = mem_local_new(&w->arena, s->m,
                                 s->params->seed + 1000003u * (uint64_t)i, i % 2 == 0);
        if (i == 0)
            w->dual = mem_dual_new(&w->arena, s->m);
    }
}

/* The search's answer, or why there is none. */
static int report(const struct search *s, const struct contest *p, const char *stopped,
                  int *choice, struct ap_solution *sol, struct ap_err *err)
{
    const bool optimal = !strcmp(stopped, "optimal");

    if (s->cost == INFINITY)
        return !strcmp(stopped, "infeasible")
                   ? ap_err_set(err,
                                "no solution: forbidden costs and the limit on usage "
                                "leave no legal choice")
                   : ap_err_set(err, "no solution found within the %s", stopped);
    assert(contest_legal(p, choice)); /* a wrong answer is a bug */
    *sol = (struct ap_solution){.choice = choice,
                                .objective = ap_problem_score(&p->costs, choice),
                                .stopped = stopped,
                                .work = s->work};
    sol->bound = optimal ? sol->objective : fmin(s->bound, sol->objective);
    return 0;
}

/* Without memory that binds, the solver that knows none goes on from what was found. */
static void go_on_exactly(struct ap_arena *arena, const struct contest *p,
                          double until_sec, struct ap_solution *sol)
{
    const struct ap_solve_params rest = {
        .start = sol->choice,
        .time_limit_sec = until_sec > 0 ? fmax(until_sec - ap_now_sec(), 1e-3) : 0};
    struct ap_solution exact;
    struct ap_err err = {""};

    if (ap_solve_exact(arena, &p->costs, &rest, &exact, &err))
        return; /* it had a start: what was found stays */
    exact.bound = fmax(exact.bound, fmin(sol->bound, exact.objective));
    exact.work += sol->work;
    *sol = exact;
}

/* The reduced core, and when to stop. */
static int open_core(struct ap_arena *arena, const struct contest *p, struct search *s,
                     struct mem_core *m, struct ap_err *err)
{
    const double sec = s->params->time_limit_sec;

    s->m = m;
    s->until_sec = sec > 0 ? ap_now_sec() + sec - FINISH_SEC : 0;
    return mem_core_build(arena, p, sec > 0 ? ap_now_sec() + REDUCE_PART * sec : 0, m,
                          err);
}

/* ---- the solvers ---- */

static int solve(struct ap_arena *arena, const struct contest *p, struct search *s,
                 struct ap_solution *sol, struct ap_err *err)
{
    int *choice = AP_NEW_N(arena, p->costs.n_nodes + 1, int);
    struct ap_mark mark = ap_arena_mark(arena);
    struct mem_core m;

    s->integral = all_integral(&p->costs);
    if (open_core(arena, p, s, &m, err))
        return -1;
    const double until_sec = s->until_sec;
    const bool bare = m.n_slots == 0 && s->mode != LOCAL;
    if (bare && until_sec > 0)
        s->until_sec -= (1 - BARE_PART) * (until_sec - ap_now_sec());
    s->warm_sec = ap_now_sec() + WARM_PART * (s->until_sec - ap_now_sec());
    s->rounds = s->params->work_limit > 0 ? s->params->work_limit
                : bare                    ? 2
                                          : DEFAULT_ROUND;
    set_up(s, arena);
    const char *stopped = run(s);
    for (int i = 0; i < s->n_workers; i++)
        ap_arena_free(&s->worker[i].arena);
    if (s->cost < INFINITY)
        mem_core_undo(&m, s->best, choice);
    ap_arena_rewind(arena, mark);
    if (report(s, p, stopped, choice, sol, err))
        return -1;
    if (bare && strcmp(stopped, "optimal") != 0)
        go_on_exactly(arena, p, until_sec, sol);
    return 0;
}

int contest_auto(struct ap_arena *arena, const struct contest *p,
                 const struct contest_params *params, struct ap_solution *sol,
                 struct ap_err *err)
{
    struct search s = {.params = params, .mode = AUTO};

    return solve(arena, p, &s, sol, err);
}

int contest_local(struct ap_arena *arena, const struct contest *p,
                  const struct contest_params *params, struct ap_solution *sol,
                  struct ap_err *err)
{
    struct search s = {.params = params, .mode = LOCAL};

    return solve(arena, p, &s, sol, err);
}

int contest_exact(struct ap_arena *arena, const struct contest *p,
                  const struct contest_params *params, struct ap_solution *sol,
                  struct ap_err *err)
{
    struct search s = {.params = params, .mode = EXACT};
    const struct ap_solve_params bare = {.work_limit = params->work_limit,
                                         .time_limit_sec = params->time_limit_sec,
                                         .work = params->work,
                                         .tells = params->work != NULL};

    return p->span ? solve(arena, p, &s, sol, err)
                   : ap_solve_exact(arena, &p->costs, &bare, sol, err);
}

/* The best of two roundings of the bound, into state; its cost. */
static double round_first(const struct mem_core *m, struct mem_dual *d, int *state)
{
    struct mem_budget none = {0};
    double paid, best = INFINITY;

    mem_dual_settle(d, FIRST_SWEEPS, &none, &paid);
    for (int backward = 0; backward < 2; backward++) {
        double cost = mem_dual_round(d, backward, &none);
        if (cost >= best)
            continue;
        best = cost;
        memcpy(state, d->state, (size_t)m->core->n_nodes * sizeof(int));
    }
    return best;
}

/* The whole of the reduced core as one integer program. */
int contest_glpk(struct ap_arena *arena, const struct contest *p,
                 const struct contest_params *params, struct ap_solution *sol,
                 struct ap_err *err)
{
    struct search s = {.params = params};
    struct mem_core m;
    int *choice = AP_NEW_N(arena, p->costs.n_nodes + 1, int);
    struct ap_mark mark = ap_arena_mark(arena);

    if (open_core(arena, p, &s, &m, err))
        return -1;
    struct mem_dual *d = mem_dual_new(arena, &m);
    struct sel_proof proof = {.state = AP_NEW_N(arena, m.core->n_nodes + 1, int)};
    s.best = AP_NEW_N(arena, m.core->n_nodes + 1, int);
    s.cost = round_first(&m, d, s.best);
    const struct sel_program_limits limits = {.cost = fmin(s.cost, worst_cost(m.core)),
                                              .cells = INT64_MAX,
                                              .until_sec = s.until_sec,
                                              .iterations = params->work_limit};
    mem_program(arena, d, &limits, &proof);
    s.bound = proof.bound;
    s.work = proof.n_cells;
    if (proof.cost < s.cost) {
        s.cost = proof.cost;
        s.best = proof.state;
    }
    if (s.cost < INFINITY)
        mem_core_undo(&m, s.best, choice);
    ap_arena_rewind(arena, mark);
    const char *stopped = proof.done && s.cost == INFINITY ? "infeasible"
                          : proof.done                     ? "optimal"
                          : s.until_sec > 0                ? "time limit"
                                                           : "work limit";
    return report(&s, p, stopped, choice, sol, err);
}
