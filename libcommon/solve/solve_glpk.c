/*
 * The selection problem to proven optimality by integer programming, given a good bound
 * and a good solution: strategies and cells whose reduced cost reaches the gap cannot be
 * part of a better solution (sel_dual_fold); what is left is an integer program over
 * reduced costs, so that its numbers have the size of the gap. It has the tight form: a
 * binary per node and strategy, one of them 1 at each node; a variable >= 0 per finite
 * cell of an edge's table, whose sums over rows and columns are the binaries of its ends.
 * Its relaxation is integral on most problems. Integer programs of this kind: Zheng et
 * al., "Alpa", section 4.2.
 */
#include "solve/solve.h"

#include <glpk.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SWEEPS 20  /* of messages, before the first solutions */
#define SWEEPS       30  /* more of them, before the program is stated */
#define LARGEST      1e3 /* the gap after scaling */
#define MAX_ROUNDS   60  /* of rows that solutions break */

static bool constant(const struct sel_core *c, const struct sel_edge *e)
{
    double x = sel_cell(e, e->a, 0, 0);

    for (int s = 0; s < c->node[e->a].n_strategies; s++)
        for (int t = 0; t < c->node[e->b].n_strategies; t++)
            if (sel_cell(e, e->a, s, t) != x)
                return false;
    return true;
}

static int64_t count_cells(const struct sel_core *c, double gap)
{
    int64_t n = 0;

    for (int i = 0; i < c->n_edges; i++) {
        const struct sel_edge *e = &c->edge[i];
        if (e->gone || constant(c, e))
            continue;
        for (int s = 0; s < c->node[e->a].n_strategies; s++)
            for (int t = 0; t < c->node[e->b].n_strategies; t++)
                n += sel_cell(e, e->a, s, t) < gap;
    }
    return n;
}

/* ---- building ---- */

static void add_nodes(struct sel_program *g, struct ap_arena *arena)
{
    for (int v = 0; v < g->core->n_nodes; v++) {
        const struct sel_node *node = &g->core->node[v];
        int row = glp_add_rows(g->lp, 1);
        g->column[v] = AP_NEW_N(arena, node->n_strategies, int);
        glp_set_row_bnds(g->lp, row, GLP_FX, 1, 1);
        for (int s = 0; s < node->n_strategies; s++) {
            int col = g->column[v][s] = glp_add_cols(g->lp, 1);
            glp_set_col_kind(g->lp, col, GLP_BV);
            glp_set_col_bnds(g->lp, col, GLP_DB, 0, 1);
            glp_set_obj_coef(g->lp, col, node->cost[s] * g->scale);
            g->index[s + 1] = col;
            g->coef[s + 1] = 1;
        }
        glp_set_mat_row(g->lp, row, node->n_strategies, g->index, g->coef);
    }
}

/* See struct sel_rows. */
static int add_rows(struct sel_program *g, double (*value)(glp_prob *lp, int column))
{
    return g->rows && g->rows->add ? g->rows->add(g->rows->arg, g, value) : 0;
}

/* The cells of one strategy add up to its binary. */
static void add_sum(struct sel_program *g, const int *cell, int step, int n, int column)
{
    int k = 0, row = glp_add_rows(g->lp, 1);

    for (int t = 0; t < n; t++)
        if (cell[t * step] > 0) {
            g->index[++k] = cell[t * step];
            g->coef[k] = 1;
        }
    g->index[++k] = column;
    g->coef[k] = -1;
    glp_set_row_bnds(g->lp, row, GLP_FX, 0, 0);
    glp_set_mat_row(g->lp, row, k, g->index, g->coef);
}

static void add_edge(struct sel_program *g, const struct sel_edge *e)
{
    int na = g->core->node[e->a].n_strategies, nb = g->core->node[e->b].n_strategies;
    int *cell = ap_xrealloc(NULL, (size_t)na * (size_t)nb * sizeof(int));

    for (int s = 0; s < na; s++)
        for (int t = 0; t < nb; t++) {
            double x = sel_cell(e, e->a, s, t);
            cell[s * nb + t] = 0;
            if (!(x < g->gap))
                continue;
            int col = cell[s * nb + t] = glp_add_cols(g->lp, 1);
            glp_set_col_bnds(g->lp, col, GLP_LO, 0, 0);
            glp_set_obj_coef(g->lp, col, x * g->scale);
        }
    for (int s = 0; s < na; s++)
        add_sum(g, cell + (size_t)s * (size_t)nb, 1, nb, g->column[e->a][s]);
    for (int t = 0; t < nb; t++)
        add_sum(g, cell + t, nb, na, g->column[e->b][t]);
    free(cell);
}

static void build(struct sel_program *g, struct ap_arena *arena)
{
    int64_t most = 1;

    for (int v = 0; v < g->core->n_nodes; v++)
        most += g->core->node[v].n_strategies;
    g->index = AP_NEW_N(arena, most + 2, int);
    g->coef = AP_NEW_N(arena, most + 2, double);
    g->column = AP_NEW_N(arena, g->core->n_nodes + 1, int *);
    glp_set_obj_dir(g->lp, GLP_MIN);
    add_nodes(g, arena);
    double shift = 0;
    for (int i = 0; i < g->core->n_edges; i++) {
        const struct sel_edge *e = &g->core->edge[i];
        if (e->gone)
            continue;
        if (constant(g->core, e))
            shift += sel_cell(e, e->a, 0, 0);
        else
            add_edge(g, e);
    }
    glp_set_obj_coef(g->lp, 0, shift * g->scale);
    add_rows(g, NULL);
}

/* ---- solving ---- */

static int milliseconds(double until_sec)
{
    double ms = until_sec > 0 ? (until_sec - ap_now_sec()) * 1e3 : 2e9;

    return ms < 1 ? 1 : ms < 2e9 ? (int)ms : 2000000000;
}

/* The relaxation with all rows that it needs; 0, or -1 when stopped, 1 if infeasible. */
static int relax(struct sel_program *g, double until_sec, int64_t iterations)
{
    glp_smcp smcp;

    glp_init_smcp(&smcp);
    smcp.msg_lev = GLP_MSG_OFF;
    for (int round = 0; round < MAX_ROUNDS; round++) {
        smcp.meth = GLP_DUALP;
        smcp.tm_lim = milliseconds(until_sec);
        if (iterations > 0)
            smcp.it_lim = (int)iterations;
        if (glp_simplex(g->lp, &smcp))
            return -1;
        if (glp_get_status(g->lp) == GLP_NOFEAS)
            return 1;
        if (glp_get_status(g->lp) != GLP_OPT)
            return -1;
        g->bound = fmax(g->bound, glp_get_obj_val(g->lp));
        if (g->bound >= LARGEST)
            return 1;
        if (!add_rows(g, glp_get_col_prim))
            return 0;
    }
    return 0;
}

static void watch(glp_tree *tree, void *info)
{
    struct sel_program *g = info;
    int best = glp_ios_best_node(tree);

    if (best > 0)
        g->bound = fmax(g->bound, glp_ios_node_bound(tree, best));
    if (glp_ios_reason(tree) == GLP_ISELECT && g->node_limit > 0 &&
        ++g->n_nodes > g->node_limit)
        glp_ios_terminate(tree);
}

/* Branch and bound; 0 optimal, 1 nothing cheaper, -1 stopped. */
static int branch(struct sel_program *g, double until_sec)
{
    glp_iocp iocp;

    glp_init_iocp(&iocp);
    iocp.msg_lev = GLP_MSG_OFF;
    iocp.tm_lim = milliseconds(until_sec);
    iocp.cb_func = watch;
    iocp.cb_info = g;
    iocp.br_tech = GLP_BR_PCH;
    iocp.tol_obj = 1e-9;
    int rc = glp_intopt(g->lp, &iocp), status = glp_mip_status(g->lp);
    if (status == GLP_NOFEAS)
        return 1;
    return rc == 0 && status == GLP_OPT ? 0 : -1;
}

/* The label of each node in the program's best solution. */
static void read_state(const struct sel_program *g, int *state)
{
    for (int v = 0; v < g->core->n_nodes; v++) {
        const struct sel_node *node = &g->core->node[v];
        int best = 0;
        for (int s = 1; s < node->n_strategies; s++)
            if (glp_mip_col_val(g->lp, g->column[v][s]) >
                glp_mip_col_val(g->lp, g->column[v][best]))
                best = s;
        state[v] = node->label[best];
    }
}

static void solve(struct sel_program *g, const struct sel_program_limits *limits,
                  struct sel_proof *proof)
{
    const double until_sec = limits->until_sec;
    int rc = relax(g, until_sec, limits->iterations);

    for (int round = 0; rc == 0 && round < MAX_ROUNDS; round++) {
        rc = branch(g, until_sec);
        if (rc != 0 || !add_rows(g, glp_mip_col_val))
            break;
        rc = relax(g, until_sec, limits->iterations);
    }
    if (rc == 0 || glp_mip_status(g->lp) == GLP_FEAS) {
        read_state(g, proof->state);
        proof->cost = g->rows->cost(g->rows->arg, proof->state);
    }
    proof->done = rc >= 0 && (rc == 1 || proof->cost < INFINITY);
    proof->bound = g->core->base + g->bound / g->scale;
    if (proof->done)
        proof->bound = rc == 1 ? limits->cost : fmin(proof->cost, limits->cost);
    proof->bound = fmin(proof->bound, limits->cost);
}

void sel_program_solve(struct ap_arena *arena, struct sel_core *folded,
                       const struct sel_program_limits *limits,
                       const struct sel_rows *rows, struct sel_proof *proof)
{
    struct sel_program g = {.core = folded, .rows = rows, .gap = limits->cost};

    proof->cost = INFINITY;
    proof->done = !folded || folded->base >= limits->cost; /* nothing is cheaper */
    if (proof->done) {
        proof->bound = limits->cost;
        return;
    }
    g.gap = (g.gap - folded->base) * (1 + 1e-9);
    proof->bound = folded->base;
    proof->n_cells = count_cells(folded, g.gap);
    if (proof->n_cells > limits->cells)
        return;
    g.scale = LARGEST / g.gap;
    g.node_limit = limits->iterations;
    glp_term_out(GLP_OFF);
    g.lp = glp_create_prob();
    build(&g, arena);
    solve(&g, limits, proof);
    glp_delete_prob(g.lp);
    glp_free_env(); /* of this thread */
}

/* ---- the whole problem ---- */

struct whole {
    const struct ap_problem *p;
    struct sel_core *core;
    const int *parent; /* [node of the program], of the core */
};

/* The price of labels of the nodes that are left, which stay in best[]. */
static double cost_of(void *arg, const int *state)
{
    struct whole *w = arg;

    for (int v = 0; v < w->core->n_left; v++)
        w->core->best[w->parent[v]] = state[v];
    sel_undo_all(w->core);
    const double cost = ap_problem_score(w->p, w->core->best);
    return cost < AP_FORBIDDEN ? cost : INFINITY;
}

/* No choice of finite cost is more expensive than this. */
static double worst_cost(const struct ap_problem *p)
{
    double sum = 0;

    for (int v = 0; v < p->n_nodes; v++) {
        double most = 0;
        for (int s = 0; s < p->n_strategies[v]; s++)
            if (p->cost[v][s] < AP_FORBIDDEN)
                most = fmax(most, p->cost[v][s]);
        sum += most;
    }
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        const int n = p->n_strategies[edge->a] * p->n_strategies[edge->b];
        double most = 0;
        for (int i = 0; i < n; i++)
            if (edge->cost[i] < AP_FORBIDDEN)
                most = fmax(most, edge->cost[i]);
        sum += most;
    }
    return 2 * sum + 1;
}

/* What is cheaper than the start, if anything: of the core, into its best[]. */
static void search(struct whole *w, const struct sel_program_limits *limits,
                   struct ap_solution *sol)
{
    struct sel_core *c = w->core;
    struct sel_program_limits within = *limits;
    struct sel_dual *d = sel_dual_new(c);
    struct sel_proof proof = {.state = AP_NEW_N(c->arena, c->n_nodes + 1, int)};
    const struct sel_rows rows = {.cost = cost_of, .arg = w};

    for (int i = 0; i < FIRST_SWEEPS; i++)
        sel_dual_sweep(d);
    sel_dual_round(d, proof.state);
    const double rounded = sel_local(c, proof.state);
    if (rounded < sol->objective) {
        sel_set_best(c, proof.state);
        sol->objective = ap_problem_score(w->p, c->best);
        memcpy(sol->choice, c->best, (size_t)w->p->n_nodes * sizeof(int));
    }
    within.cost = fmin(sol->objective, worst_cost(w->p));
    for (int i = 0; i < SWEEPS; i++)
        sel_dual_sweep(d);
    struct sel_core *folded = sel_dual_fold(d, within.cost, -1, -1);
    w->parent = folded ? folded->parent : NULL;
    sel_program_solve(c->arena, folded, &within, &rows, &proof);
    sol->bound = proof.bound;
    sol->work = proof.n_cells;
    if (proof.cost < sol->objective) {
        sol->objective = proof.cost;
        memcpy(sol->choice, c->best, (size_t)w->p->n_nodes * sizeof(int));
    }
    if (proof.done)
        sol->stopped = "optimal";
}

int ap_solve_glpk(struct ap_arena *arena, const struct ap_problem *p,
                  const struct ap_solve_params *params, struct ap_solution *sol,
                  struct ap_err *err)
{
    const size_t size = ((size_t)p->n_nodes + 1) * sizeof(int);
    const bool is_timed = params->time_limit_sec > 0;
    const struct sel_program_limits limits = {
        .cells = INT64_MAX,
        .until_sec = is_timed ? ap_now_sec() + params->time_limit_sec : 0,
        .iterations = params->work_limit};

    *sol = (struct ap_solution){.choice = ap_arena_alloc(arena, size),
                                .objective = INFINITY,
                                .stopped = is_timed ? "time limit" : "work limit"};
    if (params->start && ap_problem_score(p, params->start) < AP_FORBIDDEN) {
        sol->objective = ap_problem_score(p, params->start);
        memcpy(sol->choice, params->start, size - sizeof(int));
    }
    struct ap_mark mark = ap_arena_mark(arena);
    struct whole w = {.p = p, .core = sel_core_from_problem(arena, p)};
    if (!sel_reduce(w.core, true)) {
        ap_arena_rewind(arena, mark);
        return ap_err_set(err, "no solution: forbidden costs leave no legal choice");
    }
    search(&w, &limits, sol);
    ap_arena_rewind(arena, mark);
    if (sol->objective == INFINITY)
        return ap_err_set(err, "no solution: %s",
                          strcmp(sol->stopped, "optimal") != 0
                              ? "none was found within the limits"
                              : "forbidden costs leave no legal choice");
    sol->bound = fmin(sol->bound, sol->objective);
    return 0;
}
