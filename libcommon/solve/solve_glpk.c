/*
 * The selection problem as the papers state it, an integer program in GLPK: a binary per
 * node and strategy, one of them 1 at each node; a continuous variable >= 0 per finite
 * cell of an edge's table, whose sums over rows and columns are the binaries of its ends
 * (the tight form: without memory rows the relaxation is integral on most problems).
 * Forbidden strategies and cells have no variable. All costs are >= 0, so the slack basis
 * is dual feasible and the dual simplex starts from it; only a fractional optimum goes
 * to branch and bound. Costs are scaled, as GLPK's tolerances are absolute.
 *
 * Rows: nodes + strategies of both ends of all edges; columns: strategies + cells.
 */
#include "solve/solve.h"

#include <glpk.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST  1e4 /* the greatest cost after scaling */
#define INTEGRAL 1e-6
#define PROVEN   1e-9

struct model {
    const struct ap_problem *p;
    glp_prob *lp;
    int **column; /* [node][strategy], 0 for none */
    int *index;   /* scratch of a row */
    double *coef;
    double scale;
    int64_t nodes, node_limit; /* branch and bound */
    double bound;
    bool limited;
};

static size_t n_cells(const struct ap_problem *p, const struct ap_problem_edge *e)
{
    return (size_t)p->n_strategies[e->a] * (size_t)p->n_strategies[e->b];
}

static double find_scale(const struct ap_problem *p)
{
    double most = 0;

    for (int v = 0; v < p->n_nodes; v++)
        for (int s = 0; s < p->n_strategies[v]; s++)
            if (p->cost[v][s] < AP_FORBIDDEN)
                most = fmax(most, p->cost[v][s]);
    for (int e = 0; e < p->n_edges; e++)
        for (size_t i = 0; i < n_cells(p, &p->edges[e]); i++)
            if (p->edges[e].cost[i] < AP_FORBIDDEN)
                most = fmax(most, p->edges[e].cost[i]);
    return most > 0 ? exp2(floor(log2(LARGEST / most))) : 1;
}

/* ---- building ---- */

static bool add_nodes(struct model *m, struct ap_arena *arena)
{
    const struct ap_problem *p = m->p;

    for (int v = 0; v < p->n_nodes; v++) {
        int row = glp_add_rows(m->lp, 1), n = 0;
        m->column[v] = AP_NEW_N(arena, p->n_strategies[v], int);
        glp_set_row_bnds(m->lp, row, GLP_FX, 1, 1);
        for (int s = 0; s < p->n_strategies[v]; s++) {
            if (p->cost[v][s] >= AP_FORBIDDEN)
                continue;
            int col = m->column[v][s] = glp_add_cols(m->lp, 1);
            glp_set_col_kind(m->lp, col, GLP_BV);
            /* without the upper bound GLPK's branching loses solutions */
            glp_set_col_bnds(m->lp, col, GLP_DB, 0, 1);
            glp_set_obj_coef(m->lp, col, p->cost[v][s] * m->scale);
            m->index[++n] = col;
            m->coef[n] = 1;
        }
        if (n == 0)
            return false;
        glp_set_mat_row(m->lp, row, n, m->index, m->coef);
    }
    return true;
}

/* One side's rows: the cells of strategy s at that end add up to its binary. */
static void add_rows(struct model *m, int v, const int *cell, size_t step, int n_other,
                     size_t other_step)
{
    for (int s = 0; s < m->p->n_strategies[v]; s++) {
        int n = 0;
        if (m->column[v][s] == 0)
            continue;
        for (int t = 0; t < n_other; t++) {
            int col = cell[(size_t)s * step + (size_t)t * other_step];
            if (col > 0) {
                m->index[++n] = col;
                m->coef[n] = 1;
            }
        }
        m->index[++n] = m->column[v][s];
        m->coef[n] = -1;
        int row = glp_add_rows(m->lp, 1);
        glp_set_row_bnds(m->lp, row, GLP_FX, 0, 0);
        glp_set_mat_row(m->lp, row, n, m->index, m->coef);
    }
}

/* cost is the sum of all edges between a and b, laid out [s_a][s_b]. */
static void add_pair(struct model *m, int a, int b, const double *cost, int *cell)
{
    const struct ap_problem *p = m->p;
    int na = p->n_strategies[a], nb = p->n_strategies[b];

    for (int s = 0; s < na; s++)
        for (int t = 0; t < nb; t++) {
            size_t k = (size_t)s * (size_t)nb + (size_t)t;
            cell[k] = 0;
            if (cost[k] >= AP_FORBIDDEN || !m->column[a][s] || !m->column[b][t])
                continue;
            cell[k] = glp_add_cols(m->lp, 1);
            glp_set_col_bnds(m->lp, cell[k], GLP_LO, 0, 0);
            glp_set_obj_coef(m->lp, cell[k], cost[k] * m->scale);
        }
    add_rows(m, a, cell, (size_t)nb, nb, 1);
    add_rows(m, b, cell, 1, na, (size_t)nb);
}

struct pair {
    int a, b, edge;
};

static int by_ends(const void *x, const void *y)
{
    const struct pair *p = x, *q = y;

    if (p->a != q->a)
        return p->a < q->a ? -1 : 1;
    if (p->b != q->b)
        return p->b < q->b ? -1 : 1;
    return (p->edge > q->edge) - (p->edge < q->edge);
}

static void add_edges(struct model *m, struct ap_arena *arena, size_t most_cells)
{
    const struct ap_problem *p = m->p;
    struct pair *pair = AP_NEW_N(arena, p->n_edges + 1, struct pair);
    double *cost = AP_NEW_N(arena, most_cells + 1, double);
    int *cell = AP_NEW_N(arena, most_cells + 1, int);

    for (int e = 0; e < p->n_edges; e++) {
        int a = p->edges[e].a, b = p->edges[e].b;
        pair[e] = (struct pair){a < b ? a : b, a < b ? b : a, e};
    }
    qsort(pair, (size_t)p->n_edges, sizeof(*pair), by_ends);
    for (int i = 0; i < p->n_edges;) {
        int a = pair[i].a, b = pair[i].b, na = p->n_strategies[a],
            nb = p->n_strategies[b];
        memset(cost, 0, (size_t)na * (size_t)nb * sizeof(*cost));
        for (; i < p->n_edges && pair[i].a == a && pair[i].b == b; i++) {
            const struct ap_problem_edge *e = &p->edges[pair[i].edge];
            for (int s = 0; s < na; s++)
                for (int t = 0; t < nb; t++)
                    cost[s * nb + t] += e->cost[e->a == a ? s * nb + t : t * na + s];
        }
        add_pair(m, a, b, cost, cell);
    }
}

static bool build(struct model *m, struct ap_arena *arena)
{
    const struct ap_problem *p = m->p;
    int most = 1;
    size_t most_cells = 1;

    for (int v = 0; v < p->n_nodes; v++)
        most = p->n_strategies[v] > most ? p->n_strategies[v] : most;
    for (int e = 0; e < p->n_edges; e++)
        most_cells =
            n_cells(p, &p->edges[e]) > most_cells ? n_cells(p, &p->edges[e]) : most_cells;
    m->index = AP_NEW_N(arena, most + 2, int);
    m->coef = AP_NEW_N(arena, most + 2, double);
    m->column = AP_NEW_N(arena, p->n_nodes + 1, int *);
    m->scale = find_scale(p);
    glp_set_obj_dir(m->lp, GLP_MIN);
    if (!add_nodes(m, arena))
        return false;
    add_edges(m, arena, most_cells);
    return true;
}

/* ---- solving ---- */

/* Reads the choice off the binaries; false when some node's are fractional. */
static bool read_choice(const struct model *m, int *choice,
                        double (*value)(glp_prob *lp, int col))
{
    for (int v = 0; v < m->p->n_nodes; v++) {
        choice[v] = -1;
        for (int s = 0; s < m->p->n_strategies[v]; s++)
            if (m->column[v][s] && value(m->lp, m->column[v][s]) > 1 - INTEGRAL)
                choice[v] = s;
        if (choice[v] < 0)
            return false;
    }
    return true;
}

static void watch(glp_tree *tree, void *info)
{
    struct model *m = info;
    int best = glp_ios_best_node(tree);

    if (best > 0)
        m->bound = fmax(m->bound, glp_ios_node_bound(tree, best));
    if (glp_ios_reason(tree) == GLP_ISELECT && m->node_limit > 0 &&
        ++m->nodes > m->node_limit) {
        m->limited = true;
        glp_ios_terminate(tree);
    }
}

static int milliseconds(const struct ap_solve_params *params)
{
    double ms = params->time_limit_sec * 1e3;

    return ms > 0 && ms < 2e9 ? (ms < 1 ? 1 : (int)ms) : 2000000000;
}

/* The LP relaxation: GLPK's code; *why is what stopped it early, or NULL. */
static int relax(struct model *m, const struct ap_solve_params *params, const char **why)
{
    glp_smcp smcp;

    glp_init_smcp(&smcp);
    smcp.meth = GLP_DUALP;
    smcp.msg_lev = GLP_MSG_OFF;
    smcp.tm_lim = milliseconds(params);
    if (params->work_limit > 0 && params->work_limit < 2000000000)
        smcp.it_lim = (int)params->work_limit;
    glp_std_basis(m->lp);
    int rc = glp_simplex(m->lp, &smcp);
    *why = rc == GLP_EITLIM ? "work limit" : rc == GLP_ETMLIM ? "time limit" : NULL;
    return *why ? 0 : rc;
}

/* Branch and bound from the LP's optimum. */
static void integrate(struct model *m, const struct ap_solve_params *params,
                      const char **why)
{
    glp_iocp iocp;

    glp_init_iocp(&iocp);
    iocp.msg_lev = GLP_MSG_OFF;
    iocp.tm_lim = milliseconds(params);
    iocp.mip_gap = 0;
    iocp.tol_obj = 1e-10;
    iocp.cb_func = watch;
    iocp.cb_info = m;
    m->node_limit = params->work_limit;
    int rc = glp_intopt(m->lp, &iocp);
    *why = rc == GLP_ETMLIM ? "time limit" : m->limited ? "work limit" : NULL;
    if (rc == 0 && glp_mip_status(m->lp) == GLP_OPT)
        m->bound = glp_mip_obj_val(m->lp);
}

static int run(struct model *m, const struct ap_solve_params *params,
               struct ap_solution *sol, struct ap_err *err)
{
    const char *why = NULL;
    int rc = relax(m, params, &why);

    sol->work = glp_get_it_cnt(m->lp);
    if (rc != 0)
        return ap_err_set(err, "glpk: the simplex method failed (code %d)", rc);
    if (glp_get_status(m->lp) == GLP_NOFEAS || (!why && glp_get_status(m->lp) != GLP_OPT))
        return ap_err_set(err, "no solution: forbidden costs leave no legal choice");
    if (!why) {
        m->bound = glp_get_obj_val(m->lp);
        if (!read_choice(m, sol->choice, glp_get_col_prim)) {
            integrate(m, params, &why);
            int status = glp_mip_status(m->lp);
            if (status == GLP_NOFEAS)
                return ap_err_set(err,
                                  "no solution: forbidden costs leave no legal choice");
            if ((status != GLP_OPT && status != GLP_FEAS) ||
                !read_choice(m, sol->choice, glp_mip_col_val))
                sol->choice = NULL;
        }
    } else {
        m->bound = 0;
        sol->choice = NULL;
    }
    sol->stopped = why;
    sol->bound = m->bound / m->scale;
    sol->work = glp_get_it_cnt(m->lp);
    return 0;
}

/*
 * The integer program of a problem: a choice (NULL when the limits left none) and a
 * bound.
 */
static int solve_model(struct ap_arena *arena, const struct ap_problem *p,
                       const struct ap_solve_params *params, struct ap_solution *sol,
                       struct ap_err *err)
{
    struct model m = {.p = p};
    int *choice = AP_NEW_N(arena, p->n_nodes + 1, int);

    *sol = (struct ap_solution){.choice = choice};
    glp_term_out(GLP_OFF);
    m.lp = glp_create_prob();
    int rc = build(&m, arena)
                 ? run(&m, params, sol, err)
                 : ap_err_set(err, "no solution: forbidden costs leave no legal choice");
    glp_delete_prob(m.lp);
    return rc;
}

/* What the reductions left, as a problem of its own; node[i] is its node i in the core.
 */
static struct ap_problem rest_of(struct ap_arena *arena, const struct sel_core *c,
                                 int *node)
{
    int *number = AP_NEW_N(arena, c->n_nodes + 1, int);
    int *n_strategies = AP_NEW_N(arena, c->n_left + 1, int);
    double **cost = AP_NEW_N(arena, c->n_left + 1, double *);
    struct ap_problem_edge *edges =
        AP_NEW_N(arena, c->n_edges + 1, struct ap_problem_edge);
    struct ap_problem p = {.n_strategies = n_strategies,
                           .cost = (const double *const *)cost,
                           .edges = edges};

    for (int v = 0; v < c->n_nodes; v++) {
        const struct sel_node *n = &c->node[v];
        if (n->gone)
            continue;
        int i = number[v] = p.n_nodes++;
        node[i] = v;
        n_strategies[i] = n->n_strategies;
        cost[i] = AP_NEW_N(arena, n->n_strategies, double);
        for (int s = 0; s < n->n_strategies; s++)
            cost[i][s] = fmin(n->cost[s], AP_FORBIDDEN);
    }
    for (int e = 0; e < c->n_edges; e++) {
        const struct sel_edge *edge = &c->edge[e];
        if (edge->gone)
            continue;
        int na = c->node[edge->a].n_strategies, nb = c->node[edge->b].n_strategies;
        double *table = AP_NEW_N(arena, (int64_t)na * nb, double);
        for (int s = 0; s < na; s++)
            for (int t = 0; t < nb; t++)
                table[s * nb + t] = fmin(sel_cell(edge, edge->a, s, t), AP_FORBIDDEN);
        edges[p.n_edges++] =
            (struct ap_problem_edge){number[edge->a], number[edge->b], table};
    }
    return p;
}

/* Reduces, solves the rest, undoes the reductions. */
static int reduce_and_solve(struct ap_arena *arena, const struct ap_problem *p,
                            const struct ap_solve_params *params, int *choice,
                            struct ap_solution *sol, struct ap_err *err)
{
    struct sel_core *c = sel_core_from_problem(arena, p);
    struct ap_solution rest = {.choice = choice};

    if (!sel_reduce(c, true))
        return ap_err_set(err, "no solution: forbidden costs leave no legal choice");
    if (c->n_left > 0) {
        int *node = AP_NEW_N(arena, c->n_left, int);
        int *state = AP_NEW_N(arena, c->n_nodes + 1, int);
        struct ap_problem left = rest_of(arena, c, node);
        if (solve_model(arena, &left, params, &rest, err))
            return -1;
        for (int i = 0; i < left.n_nodes && rest.choice; i++)
            state[node[i]] = rest.choice[i];
        if (rest.choice)
            sel_set_best(c, state);
    }
    *sol = rest;
    sol->bound = rest.bound + c->base;
    if (rest.choice) {
        sel_undo_all(c);
        memcpy(choice, c->best, (size_t)p->n_nodes * sizeof(int));
        sol->choice = choice;
    }
    return 0;
}

int ap_solve_glpk(struct ap_arena *arena, const struct ap_problem *p,
                  const struct ap_solve_params *params, struct ap_solution *sol,
                  struct ap_err *err)
{
    if (p->span)
        return sel_glpk_memory(arena, p, params, sol, err);
    int *choice = AP_NEW_N(arena, p->n_nodes + 1, int);
    struct ap_mark mark = ap_arena_mark(arena);
    const int *start = params->start;
    int rc = reduce_and_solve(arena, p, params, choice, sol, err);

    ap_arena_rewind(arena, mark);
    if (rc)
        return rc;
    double from = start ? ap_problem_score(p, start) : AP_FORBIDDEN;
    double cost = sol->choice ? ap_problem_score(p, choice) : AP_FORBIDDEN;
    if (cost >= AP_FORBIDDEN && from >= AP_FORBIDDEN)
        return ap_err_set(err, "no solution found within the %s",
                          sol->stopped ? sol->stopped : "tolerance of glpk");
    if (from < cost)
        memcpy(choice, start, (size_t)p->n_nodes * sizeof(int));
    sol->choice = choice;
    sol->objective = fmin(cost, from);
    sol->bound = fmin(sol->bound, sol->objective);
    if (sol->bound >= sol->objective * (1 - PROVEN))
        sol->stopped = "optimal";
    else if (!sol->stopped)
        sol->stopped = "gap";
    return 0;
}
