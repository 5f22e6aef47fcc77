/*
 * Which strategies no solution below a limit has: a relaxation in which copies are joined
 * is reduced and bounded by message passing; where what that leaves is narrow,
 * elimination to and fro tells of every strategy what it costs (solve_elim.c). For nodes
 * that were taken out it follows from their neighbours (solve_slack.c). What is ruled out
 * makes the rest tell more, so it is done again where that was much.
 * Cost: some sweeps over the tables and two eliminations per round.
 */
#include "solve/solve.h"

#define SWEEPS      48
#define MOST_ROUND  4
#define MAX_ENTRIES 1e7
#define MAX_WORK    2e8
#define MUCH        0.1 /* of the strategies that are left */

struct ruler {
    const struct ap_problem *p;
    struct sel_core *whole;
    double limit;
    bool *const *out;
    int64_t n_left;
};

/* Of those that nothing rules out yet. */
static int64_t mark_dear(struct ruler *r, const struct sel_join *join,
                         double *const *least)
{
    int64_t n = 0;

    for (int v = 0; v < r->p->n_nodes; v++) {
        if (!r->out[v] || sel_join_is_group(join, v))
            continue;
        for (int s = 0; s < r->p->n_strategies[v]; s++)
            if (!r->out[v][s] && least[v][s] >= r->limit) {
                r->out[v][s] = true;
                r->whole->node[v].cost[s] = INFINITY;
                n++;
            }
    }
    r->n_left -= n;
    return n;
}

/* Of the nodes left, exactly where they are narrow; NULL: none is below the limit. */
static double **narrow(const struct ruler *r, const struct sel_dual *d, double *bound)
{
    struct sel_core *c = d->core, *child = sel_dual_fold(d, r->limit, -1, 0);
    double **least = sel_dual_least(d, 0);
    struct sel_elim plan;

    if (!child)
        return NULL;
    if (!sel_elim_plan(child, MAX_ENTRIES, MAX_WORK, &plan))
        return least;
    double **exact = AP_NEW_N(c->arena, child->n_nodes + 1, double *);
    for (int v = 0; v < child->n_nodes; v++)
        exact[v] = AP_NEW_N(c->arena, child->node[v].n_strategies, double);
    *bound = sel_elim_least(child, &plan, r->limit, exact);
    if (*bound == INFINITY)
        return NULL;
    for (int v = 0; v < child->n_nodes; v++) {
        const struct sel_node *node = &c->node[child->parent[v]];
        for (int s = 0; s < node->n_strategies; s++)
            least[child->parent[v]][s] = INFINITY;
        for (int s = 0; s < child->node[v].n_strategies; s++)
            least[child->parent[v]][sel_index_of(node->label, node->n_strategies,
                                                 child->node[v].label[s])] = exact[v][s];
    }
    return least;
}

/* How many are ruled out, -1 when no solution is below the limit. */
static int64_t rule_once(struct ruler *r, int *max_sets)
{
    struct sel_core *c = sel_core_copy(r->whole);
    struct sel_join *join = sel_join_copies(c, max_sets, true);
    int *n_labels = sel_count_labels(c);

    if (!sel_reduce(c, false) || c->base >= r->limit)
        return -1;
    double **left = AP_NEW_N(c->arena, c->n_nodes + 1, double *), bound = c->base;
    if (c->n_left > 0) {
        struct sel_dual *d = sel_dual_new(c);
        for (int i = 0; i < SWEEPS && d->bound < r->limit; i++)
            sel_dual_sweep(d);
        if (d->bound >= r->limit)
            return -1;
        bound = d->bound;
        left = narrow(r, d, &bound);
        if (!left)
            return -1;
    }
    return mark_dear(r, join, sel_least_costs(c, n_labels, left, bound, r->limit));
}

int64_t ap_solve_rule_out(const struct ap_problem *p, double limit, bool *const *out)
{
    struct ap_arena arena = {0};
    struct ruler r = {.p = p, .limit = limit, .out = out};
    int *max_sets = AP_NEW_N(&arena, p->n_nodes + 1, int);
    int64_t n = 0, all = 0;

    r.whole = sel_core_from_problem(&arena, p);
    for (int v = 0; v < p->n_nodes; v++)
        for (int s = 0; s < p->n_strategies[v] && out[v]; s++) {
            if (out[v][s])
                r.whole->node[v].cost[s] = INFINITY;
            r.n_left += !out[v][s];
        }
    struct ap_mark mark = ap_arena_mark(&arena);
    for (int i = 0; i < MOST_ROUND && all >= 0; i++) {
        n = rule_once(&r, max_sets);
        ap_arena_rewind(&arena, mark);
        all = n < 0 ? -1 : all + n;
        if ((double)n < MUCH * (double)r.n_left)
            break;
    }
    ap_arena_free(&arena);
    return all;
}
