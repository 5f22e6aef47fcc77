/*
 * A piece of a decomposed selection problem, made small once and solved under many
 * multipliers. Copies are joined and the exact reductions done without changing the nodes
 * that have multipliers, so that the rest is valid for all multipliers. Where joining
 * leaves sets of copies out the piece is a relaxation, whose optimum is a bound as well;
 * sets that the first solution misses are added before the next trial.
 *
 * O(a reduction of the piece) once, then a solve of the reduced core per trial.
 */
#include "solve/solve_pieces.h"

#include <stdlib.h>
#include <string.h>

#define SETTLE_SWEEPS 32
#define EPSILON       1e-10 /* what a solution must be better than the start */
#define PROVEN        1e-9

static void prepare(struct pieces_core *p)
{
    struct ap_arena *arena = &p->arena;
    const struct ap_problem *q = &p->piece->problem;
    int *place = AP_NEW_N(arena, q->n_nodes + 1, int), n = 0;

    p->whole = sel_core_from_problem(arena, q);
    p->whole->work = &p->work;
    p->join = sel_join_copies(p->whole, p->max_sets);
    p->whole->stays = AP_NEW_N(arena, q->n_nodes + 1, bool);
    for (int t = 0; t < p->piece->n_terms; t++)
        p->whole->stays[p->piece->term[t].node] = true;
    p->failed = !sel_reduce(p->whole, true);
    if (p->failed)
        return;
    int *list = AP_NEW_N(arena, p->whole->n_left + 1, int);
    for (int v = 0; v < q->n_nodes; v++) {
        place[v] = -1;
        if (!p->whole->node[v].gone)
            list[n++] = v;
    }
    p->list = list;
    p->core = sel_core_extract(p->whole, list, n, place);
    p->place = place;
    p->base = p->whole->base;
    p->origin = NULL;
    for (int v = 0; v < q->n_nodes; v++)
        if (p->whole->node[v].gone)
            place[v] = -1;
}

/* From the second on the oldest makes room. */
static void add_known(struct pieces_core *p, double cost, const int *choice)
{
    int at = p->n_known < MAX_KNOWN ? p->n_known++ : 1 + p->n_found++ % (MAX_KNOWN - 1);

    p->known[at] = (struct known){cost, choice};
}

void pieces_core_start(struct pieces_core *p, const int *start)
{
    double cost = ap_problem_score(&p->piece->problem, start);
    int *choice = AP_NEW_N(&p->found, p->piece->n_terms + 1, int);

    if (cost >= AP_FORBIDDEN)
        return;
    for (int t = 0; t < p->piece->n_terms; t++)
        choice[t] = start[p->piece->term[t].node];
    add_known(p, cost, choice);
}

void *pieces_core_open(void *piece)
{
    struct pieces_core *p = piece;
    size_t n = (size_t)p->piece->problem.n_nodes + 1;

    p->max_sets = ap_xrealloc(NULL, n * sizeof(int));
    memset(p->max_sets, 0, n * sizeof(int));
    p->choice = ap_xrealloc(NULL, ((size_t)p->piece->n_terms + 1) * sizeof(int));
    p->solution = ap_xrealloc(NULL, n * sizeof(int));
    if (p->piece->start)
        pieces_core_start(p, p->piece->start);
    prepare(p);
    return NULL;
}

void pieces_core_close(struct pieces_core *p)
{
    ap_arena_free(&p->arena);
    ap_arena_free(&p->scratch);
    ap_arena_free(&p->found);
    free(p->max_sets);
    free(p->choice);
    free(p->solution);
}

/*
 * A core under p->phi in the arena, no cost negative; it costs *shift more than the
 * piece.
 */
static struct sel_core *core_under_phi(const struct pieces_core *p,
                                       struct ap_arena *arena, double *shift)
{
    struct sel_core own = *p->core;
    own.arena = arena;
    struct sel_core *c = sel_core_copy(&own);

    for (int t = 0; t < p->piece->n_terms; t++) {
        const struct ap_subproblem_term *term = &p->piece->term[t];
        struct sel_node *node = &c->node[p->place[term->node]];
        for (int s = 0; s < node->n_strategies; s++) {
            int k = p->first[term->multiplier] + node->label[s];
            node->cost[s] += term->sign * (p->phi[k] - (p->origin ? p->origin[k] : 0));
        }
    }
    *shift = -p->base;
    for (int t = 0; t < p->piece->n_terms; t++) {
        struct sel_node *node = &c->node[p->place[p->piece->term[t].node]];
        double least = 0;
        for (int s = 0; s < node->n_strategies; s++)
            least = fmin(least, node->cost[s]);
        for (int s = 0; s < node->n_strategies && least < 0; s++)
            node->cost[s] -= least;
        *shift -= least;
    }
    return c;
}

/* Moves costs by messages under p->phi, once: later trials start from there. */
static void settle(struct pieces_core *p)
{
    double shift;
    struct sel_core *c = core_under_phi(p, &p->arena, &shift);
    struct sel_dual *d = sel_dual_new(c);

    for (int i = 0; i < SETTLE_SWEEPS && (i == 0 || !ap_work_over(&p->work)); i++)
        sel_dual_sweep(d);
    struct sel_core *moved = sel_dual_fold(d, INFINITY, -1, 0);
    if (!moved) {
        p->failed = true;
        return;
    }
    p->core = moved;
    p->base = moved->base - shift;
    p->origin = ap_arena_dup(&p->arena, p->phi, (size_t)p->n_phi * sizeof(double));
}

static void take_solution(struct pieces_core *p, const struct sel_core *solved,
                          struct sel_verdict v)
{
    p->cost = v.cost;
    p->bound = v.bound;
    for (int t = 0; t < p->piece->n_terms; t++)
        p->choice[t] = solved->best[p->place[p->piece->term[t].node]];
    for (int i = 0; i < solved->n_nodes; i++)
        p->whole->best[p->list[i]] = solved->best[i];
    sel_undo_all(p->whole);
    memcpy(p->solution, p->whole->best, (size_t)p->piece->problem.n_nodes * sizeof(int));
}

/* What the multipliers add to a choice. */
static double lent(const struct pieces_core *p, const int *choice)
{
    double sum = 0;

    for (int t = 0; t < p->piece->n_terms; t++) {
        const struct ap_subproblem_term *term = &p->piece->term[t];
        sum += term->sign * p->phi[p->first[term->multiplier] + choice[t]];
    }
    return sum;
}

/* The last solution, with the copies that it really needs, costs hardly more than the
 * bound. */
static bool near_enough(struct pieces_core *p)
{
    const struct ap_problem *q = &p->piece->problem;
    struct ap_mark mark = ap_arena_mark(&p->scratch);
    int *choice =
        ap_arena_dup(&p->scratch, p->solution, (size_t)q->n_nodes * sizeof(int));

    sel_join_decide(p->join, q, choice);
    const double cost = ap_problem_score(q, choice);
    ap_arena_rewind(&p->scratch, mark);
    return cost + lent(p, p->choice) - p->bound <= p->gap * cost;
}

/* Sets of copies that the solution needs and the join has not; true: prepared anew. */
static bool refine(struct pieces_core *p)
{
    if (!sel_join_relaxed(p->join))
        return false;
    if (!sel_join_refine(p->join, p->whole->best))
        return false;
    ap_arena_free(&p->arena);
    prepare(p);
    return true;
}

/* The cheapest known choice under p->phi into p->choice; its cost. */
static double take_known(struct pieces_core *p)
{
    const struct known *best = NULL;
    double least = INFINITY;

    for (int i = 0; i < p->n_known; i++) {
        double cost = p->known[i].cost + lent(p, p->known[i].choice);
        if (cost < least) {
            least = cost;
            best = &p->known[i];
        }
    }
    if (best)
        memcpy(p->choice, best->choice, (size_t)p->piece->n_terms * sizeof(int));
    return least;
}

void *pieces_core_solve(void *arg)
{
    struct pieces_core *p = arg;
    bool again = true;
    int n_refined = 0;

    while (again && !p->failed) {
        struct ap_mark mark = ap_arena_mark(&p->scratch);
        double shift;
        if (!p->origin)
            settle(p);
        if (p->failed)
            break;
        struct sel_core *c = core_under_phi(p, &p->scratch, &shift);
        double least = take_known(p), limit = (least + shift) * (1 - EPSILON);
        struct sel_verdict v = sel_solve_core(c, limit, p->work_limit);
        v.cost -= shift;
        v.bound -= shift;
        p->failed = !v.found && least == INFINITY;
        p->cost = least;
        p->bound = fmin(v.bound, least);
        if (v.found)
            take_solution(p, c, v);
        const bool near =
            v.found && p->gap > 0 && sel_join_relaxed(p->join) && near_enough(p);
        again = v.found && !near && !ap_work_over(&p->work) && refine(p);
        p->settled = !again && !p->failed && p->bound >= p->cost * (1 - PROVEN);
        if (v.found && !again && !near) /* it is no relaxation's */
            add_known(p, p->cost - lent(p, p->choice),
                      ap_arena_dup(&p->found, p->choice,
                                   (size_t)p->piece->n_terms * sizeof(int)));
        again = again && n_refined++ != p->max_refined;
        ap_arena_rewind(&p->scratch, mark);
    }
    return NULL;
}
