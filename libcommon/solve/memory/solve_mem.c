/*
 * The search with memory on the reduced core, and the solvers auto, local and exact.
 *
 * After the reductions (solve_mem_core.c), rounds. In each, the first worker raises the
 * bound and rounds choices from it (solve_mem_dual.c), or, when the bound stalls, tries
 * to close the gap by integer programming on what the bound leaves (solve_mem_exact.c),
 * or searches like the others, with a clock also when the bound rises slowly; the others
 * search near the best choices with the prices that the bound found (solve_mem_local.c),
 * each with its own seed. At the end of a round the best choice, the best bound and its
 * prices are shared, in the order of workers.
 *
 * With a limit of time rounds last ROUND_SEC. Without, they do ROUND_WORK work, there are
 * always two workers, and threads only decide whether they run at once: results repeat
 * byte for byte.
 */
#include "solve/memory/solve_mem.h"

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
    double proof_limit;
    int n_exact;
    pthread_t thread;
    bool running;
};

struct search {
    const struct mem_core *m;
    const struct ap_solve_params *params;
    enum ap_memory_mode mode;
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
                                (s->until_sec == 0 || mem_now_sec() < s->warm_sec)))
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
    struct mem_proof proof = {.state = w->dual->state};
    struct mem_dual d = *w->dual;

    /* the fold and the program go with this arena; the dual's costs are kept */
    d.core = w->dual->core;
    struct ap_arena *own = d.core->arena;
    d.core->arena = &arena;
    w->proof_limit = fmin(limit_of(s, w->cost), s->worst);
    mem_exact(&arena, &d, w->proof_limit,
              s->mode == AP_MEMORY_EXACT ? ALL_CELLS : EXACT_CELLS, s->until_sec,
              s->until_sec > 0 ? 0 : EXACT_WORK, &proof);
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
    bool stalled =
        first && w->search->mode == AP_MEMORY_LOCAL && w->dual->n_stalls > STALLED;

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
        until_sec = mem_now_sec() + PRICES_PART * (s->until_sec - mem_now_sec());
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
    double now = mem_now_sec(), sec = fmin(ROUND_SEC, FIRST_SEC * (1 + 0.3 * s->round));

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
                w->budget.until_sec = fmin(mem_now_sec() + sec, s->until_sec);
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

    if (s->mode == AP_MEMORY_LOCAL || s->round == 0)
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
            if (mem_now_sec() >= s->until_sec)
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
static int report(const struct search *s, const struct ap_memory_task *task, int *choice,
                  struct ap_memory_answer *answer, struct ap_err *err)
{
    if (s->cost == INFINITY)
        return !strcmp(answer->stopped, "infeasible")
                   ? ap_err_set(err,
                                "no solution: forbidden costs and the limit on usage "
                                "leave no legal choice")
                   : ap_err_set(err, "no solution found within the %s", answer->stopped);
    answer->choice = choice;
    answer->sec = ap_memory_score(task->model, choice);
    answer->bound = fmin(s->bound, answer->sec);
    if (!strcmp(answer->stopped, "optimal"))
        answer->bound = answer->sec;
    return 0;
}

/* Without memory that binds, the solver that knows none goes on from what was found. */
static void go_on_exactly(struct ap_arena *arena, const struct ap_memory_task *task,
                          double until_sec, struct ap_memory_answer *answer)
{
    struct ap_problem bare = *task->model->problem;
    struct ap_solve_params rest = {.start = answer->choice};
    struct ap_solution exact;
    struct ap_err err = {""};

    bare.span = NULL;
    if (until_sec > 0)
        rest.time_limit_sec = fmax(until_sec - mem_now_sec(), 1e-3);
    if (ap_solve_exact(arena, &bare, &rest, &exact, &err))
        return; /* it had a start: what was found stays */
    answer->choice = exact.choice;
    answer->bound = fmax(exact.bound, fmin(answer->bound, exact.objective));
    answer->sec = exact.objective;
    answer->stopped = exact.stopped;
    answer->work += exact.work;
}

/* The reduced core, and when to stop. */
static int open_core(struct ap_arena *arena, const struct ap_memory_task *task,
                     struct mem_core *m, double *until_sec, struct ap_err *err)
{
    const struct ap_solve_params *params = task->params;
    double reduce_until_sec = 0;

    *until_sec = 0;
    if (params->time_limit_sec > 0) {
        *until_sec = mem_now_sec() + params->time_limit_sec - FINISH_SEC;
        reduce_until_sec = mem_now_sec() + REDUCE_PART * params->time_limit_sec;
    }
    return mem_core_build(arena, task->model, task->limit, reduce_until_sec, m, err);
}

int mem_search_core(struct ap_arena *arena, const struct ap_memory_task *task,
                    struct ap_memory_answer *answer, struct ap_err *err)
{
    const struct ap_problem *p = task->model->problem;
    const struct ap_solve_params *params = task->params;
    struct search s = {.params = params, .mode = task->mode, .integral = all_integral(p)};
    struct mem_core m;
    int *choice = AP_NEW_N(arena, p->n_nodes + 1, int);
    struct ap_mark mark = ap_arena_mark(arena);
    double until_sec;

    if (open_core(arena, task, &m, &until_sec, err))
        return -1;
    bool bare = m.n_slots == 0 && task->mode != AP_MEMORY_LOCAL;
    s.m = &m;
    s.until_sec = until_sec;
    if (bare && until_sec > 0)
        s.until_sec -= (1 - BARE_PART) * (until_sec - mem_now_sec());
    s.warm_sec = mem_now_sec() + WARM_PART * (s.until_sec - mem_now_sec());
    s.rounds = params->work_limit > 0 ? params->work_limit : bare ? 2 : DEFAULT_ROUND;
    set_up(&s, arena);
    *answer = (struct ap_memory_answer){.stopped = run(&s), .work = s.work};
    for (int i = 0; i < s.n_workers; i++)
        ap_arena_free(&s.worker[i].arena);
    if (s.cost < INFINITY)
        mem_core_undo(&m, s.best, choice);
    ap_arena_rewind(arena, mark);
    if (report(&s, task, choice, answer, err))
        return -1;
    if (bare && strcmp(answer->stopped, "optimal") != 0)
        go_on_exactly(arena, task, until_sec, answer);
    return 0;
}

/* ---- the solvers ---- */

static int take_answer(const struct ap_problem *p, const struct ap_memory_answer *answer,
                       struct ap_solution *sol)
{
    assert(ap_problem_legal(p, answer->choice)); /* a wrong answer is a bug */
    *sol = (struct ap_solution){.choice = answer->choice,
                                .objective = answer->sec,
                                .bound = answer->bound,
                                .stopped = answer->stopped,
                                .work = answer->work};
    return 0;
}

static int solve(struct ap_arena *arena, const struct ap_problem *p,
                 const struct ap_solve_params *params, enum ap_memory_mode mode,
                 struct ap_solution *sol, struct ap_err *err)
{
    const struct ap_memory_task task = {.model = ap_memory_of_problem(arena, p),
                                        .limit = p->usage_limit,
                                        .mode = mode,
                                        .params = params};
    struct ap_memory_answer answer;

    if (ap_memory_search(arena, &task, &answer, err))
        return -1;
    return take_answer(p, &answer, sol);
}

int sel_exact_memory(struct ap_arena *arena, const struct ap_problem *p,
                     const struct ap_solve_params *params, struct ap_solution *sol,
                     struct ap_err *err)
{
    return solve(arena, p, params, AP_MEMORY_EXACT, sol, err);
}

/* The best of a start and of roundings of the bound, into state; its cost. */
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
int ap_solve_glpk(struct ap_arena *arena, const struct ap_problem *p,
                  const struct ap_solve_params *params, struct ap_solution *sol,
                  struct ap_err *err)
{
    const double start = params->start && ap_problem_legal(p, params->start)
                             ? ap_problem_score(p, params->start)
                             : INFINITY;
    const struct ap_memory_task task = {.model = ap_memory_of_problem(arena, p),
                                        .limit = p->usage_limit,
                                        .params = params};
    struct search s = {.params = params};
    struct ap_memory_answer answer = {0};
    struct mem_core m;
    int *choice = AP_NEW_N(arena, p->n_nodes + 1, int);
    struct ap_mark mark = ap_arena_mark(arena);
    double until_sec;

    if (open_core(arena, &task, &m, &until_sec, err))
        return -1;
    struct mem_dual *d = mem_dual_new(arena, &m);
    struct mem_proof proof = {.state = AP_NEW_N(arena, m.core->n_nodes + 1, int)};
    s.best = AP_NEW_N(arena, m.core->n_nodes + 1, int);
    s.cost = round_first(&m, d, s.best);
    mem_exact(arena, d, fmin(fmin(s.cost, start), worst_cost(m.core)), INT64_MAX,
              until_sec, params->work_limit, &proof);
    s.bound = proof.bound;
    answer.stopped = proof.done ? "optimal" : until_sec > 0 ? "time limit" : "work limit";
    answer.work = proof.n_cells;
    if (proof.cost < s.cost) {
        s.cost = proof.cost;
        s.best = proof.state;
    }
    if (s.cost < INFINITY && s.cost <= start)
        mem_core_undo(&m, s.best, choice);
    else if (start < INFINITY)
        memcpy(choice, params->start, (size_t)p->n_nodes * sizeof(int));
    else if (proof.done)
        answer.stopped = "infeasible";
    s.cost = fmin(s.cost, start);
    ap_arena_rewind(arena, mark);
    return report(&s, &task, choice, &answer, err) ? -1 : take_answer(p, &answer, sol);
}

int ap_solve_auto(struct ap_arena *arena, const struct ap_problem *p,
                  const struct ap_solve_params *params, struct ap_solution *sol,
                  struct ap_err *err)
{
    return solve(arena, p, params, AP_MEMORY_AUTO, sol, err);
}

int ap_solve_local(struct ap_arena *arena, const struct ap_problem *p,
                   const struct ap_solve_params *params, struct ap_solution *sol,
                   struct ap_err *err)
{
    return solve(arena, p, params, AP_MEMORY_LOCAL, sol, err);
}
