/*
 * The selection problem with memory to proven optimality, given a good bound and a good
 * solution: strategies and cells whose reduced cost reaches the gap cannot be part of a
 * better solution (sel_dual_fold); what is left is an integer program over reduced costs,
 * so that its numbers have the size of the gap. It has the tight form: a binary per node
 * and strategy, one of them 1 at each node; a variable >= 0 per finite cell of an edge's
 * table, whose sums over rows and columns are the binaries of its ends. Without memory
 * its relaxation is integral on most problems.
 *
 * A choice costs the bound + its reduced costs + sum of mu * (room - usage): the slots
 * with a multiplier are rows with a slack variable that costs mu, and all costs are >= 0.
 * Rows of other slots are added when a solution of the relaxation, or of the program,
 * breaks them. Integer programs of this kind: Zheng et al., "Alpa", section 4.2.
 */
#include "solve/memory/solve_mem.h"

#include <float.h>
#include <glpk.h>
#include <stdlib.h>
#include <string.h>

#define SWEEPS     30
#define LARGEST    1e3 /* the gap after scaling */
#define MAX_ROUNDS 60
#define NEW_ROWS   4 /* at once */
#define BROKEN     1e-7

struct program {
    struct mem_dual *d;
    const struct mem_core *m;
    struct sel_core *core; /* folded: costs are reduced costs, label[] the strategies */
    glp_prob *lp;
    int **column;  /* [node][strategy of the folded core] */
    int *slot_row; /* [slot], 0 for none */
    double *used;  /* [slot + 1] */
    double scale, gap;
    int *index; /* scratch of rows */
    double *coef;
    double bound; /* of the tree, scaled */
    int64_t n_nodes, node_limit;
};

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

static void add_nodes(struct program *g, struct ap_arena *arena)
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

/* The cells of one strategy add up to its binary. */
static void add_sum(struct program *g, const int *cell, int step, int n, int column)
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

static void add_edge(struct program *g, const struct sel_edge *e)
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

/* usage / room + slack = 1 at a slot */
static void add_slot(struct program *g, int t)
{
    const struct mem_core *m = g->m;
    int n = 0, row = glp_add_rows(g->lp, 1), col = glp_add_cols(g->lp, 1);
    double unit = m->room[t] > 0 ? 1.0 / (double)m->room[t] : 1;

    g->slot_row[t] = row;
    for (int v = 0; v < g->core->n_nodes; v++) {
        const struct sel_node *node = &g->core->node[v];
        for (int s = 0; s < node->n_strategies; s++) {
            int64_t usage = 0;
            for (int i = m->first[v]; i < m->first[v + 1]; i++)
                if (m->part[i].lo <= t && t < m->part[i].hi)
                    usage += m->part[i].usage[node->label[s]];
            if (usage == 0)
                continue;
            g->index[++n] = g->column[v][s];
            g->coef[n] = (double)usage * unit;
        }
    }
    g->index[++n] = col;
    g->coef[n] = 1;
    glp_set_col_bnds(g->lp, col, GLP_LO, 0, 0);
    glp_set_obj_coef(g->lp, col, g->d->mu[t] / unit * g->scale);
    double room = (double)m->room[t] * unit;
    glp_set_row_bnds(g->lp, row, GLP_FX, room, room);
    glp_set_mat_row(g->lp, row, n, g->index, g->coef);
}

static void build(struct program *g, struct ap_arena *arena)
{
    int64_t most = 1;

    for (int v = 0; v < g->core->n_nodes; v++)
        most += g->core->node[v].n_strategies;
    g->index = AP_NEW_N(arena, most + 2, int);
    g->coef = AP_NEW_N(arena, most + 2, double);
    g->column = AP_NEW_N(arena, g->core->n_nodes + 1, int *);
    g->slot_row = AP_NEW_N(arena, g->m->n_slots + 1, int);
    g->used = AP_NEW_N(arena, g->m->n_slots + 2, double);
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
    for (int t = 0; t < g->m->n_slots; t++)
        if (g->d->mu[t] > 0)
            add_slot(g, t);
}

/* ---- solving ---- */

/* Adds rows of the slots that the values break most; their number. */
static int add_broken(struct program *g, double (*value)(glp_prob *lp, int col))
{
    const struct mem_core *m = g->m;
    int n = 0;

    memset(g->used, 0, ((size_t)m->n_slots + 1) * sizeof(double));
    for (int v = 0; v < g->core->n_nodes; v++)
        for (int s = 0; s < g->core->node[v].n_strategies; s++) {
            double x = value(g->lp, g->column[v][s]);
            int label = g->core->node[v].label[s];
            if (x < 1e-9)
                continue;
            for (int i = m->first[v]; i < m->first[v + 1]; i++) {
                const struct mem_part *part = &m->part[i];
                g->used[part->lo] += x * (double)part->usage[label];
                g->used[part->hi] -= x * (double)part->usage[label];
            }
        }
    for (int t = 1; t < m->n_slots; t++)
        g->used[t] += g->used[t - 1];
    for (; n < NEW_ROWS; n++) {
        int worst = -1;
        double most = BROKEN;
        for (int t = 0; t < m->n_slots; t++) {
            double over = (g->used[t] - (double)m->room[t]) / (double)(m->room[t] + 1);
            if (!g->slot_row[t] && over > most) {
                most = over;
                worst = t;
            }
        }
        if (worst < 0)
            break;
        add_slot(g, worst);
    }
    return n;
}

static int milliseconds(double until_sec)
{
    double ms = until_sec > 0 ? (until_sec - mem_now_sec()) * 1e3 : 2e9;

    return ms < 1 ? 1 : ms < 2e9 ? (int)ms : 2000000000;
}

/* The relaxation with all rows that it needs; 0, or -1 when stopped, 1 if infeasible. */
static int relax(struct program *g, double until_sec, int64_t iterations)
{
    glp_smcp smcp;

    glp_init_smcp(&smcp);
    smcp.msg_lev = GLP_MSG_OFF;
    for (int round = 0; round < MAX_ROUNDS; round++) {
        smcp.meth = GLP_DUALP;
        smcp.tm_lim = milliseconds(until_sec);
        if (iterations > 0)
            smcp.it_lim = (int)iterations;
        smcp.obj_ul = round < 0 ? LARGEST : DBL_MAX;
        if (glp_simplex(g->lp, &smcp))
            return -1;
        if (glp_get_status(g->lp) == GLP_NOFEAS)
            return 1;
        if (glp_get_status(g->lp) != GLP_OPT)
            return -1;
        g->bound = fmax(g->bound, glp_get_obj_val(g->lp));
        if (g->bound >= LARGEST)
            return 1;
        if (!add_broken(g, glp_get_col_prim))
            return 0;
    }
    return 0;
}

static void watch(glp_tree *tree, void *info)
{
    struct program *g = info;
    int best = glp_ios_best_node(tree);

    if (best > 0)
        g->bound = fmax(g->bound, glp_ios_node_bound(tree, best));
    if (glp_ios_reason(tree) == GLP_ISELECT && g->node_limit > 0 &&
        ++g->n_nodes > g->node_limit)
        glp_ios_terminate(tree);
}

/* Branch and bound; 0 optimal, 1 nothing cheaper, -1 stopped. */
static int branch(struct program *g, double until_sec)
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

static void read_state(struct program *g, struct mem_proof *proof)
{
    const struct mem_core *m = g->m;
    struct mem_tree *left = &g->d->left;

    for (int v = 0; v < g->core->n_nodes; v++) {
        const struct sel_node *node = &g->core->node[v];
        int best = 0;
        for (int s = 1; s < node->n_strategies; s++)
            if (glp_mip_col_val(g->lp, g->column[v][s]) >
                glp_mip_col_val(g->lp, g->column[v][best]))
                best = s;
        proof->state[v] = node->label[best];
    }
    mem_tree_reset(left, m);
    for (int v = 0; v < g->core->n_nodes; v++)
        mem_tree_take(left, m, v, proof->state[v], -1);
    proof->cost = mem_tree_all(left) >= 0 ? mem_cost(m, proof->state) : INFINITY;
}

static void solve(struct program *g, double base, double limit, double until_sec,
                  int64_t iterations, struct mem_proof *proof)
{
    int rc = relax(g, until_sec, iterations);

    for (int round = 0; rc == 0 && round < MAX_ROUNDS; round++) {
        rc = branch(g, until_sec);
        if (rc != 0 || !add_broken(g, glp_mip_col_val))
            break;
        rc = relax(g, until_sec, iterations);
    }
    if (rc == 0 || glp_mip_status(g->lp) == GLP_FEAS)
        read_state(g, proof);
    proof->done = rc >= 0 && (rc == 1 || proof->cost < INFINITY);
    proof->bound = base + g->bound / g->scale;
    if (proof->done)
        proof->bound = rc == 1 ? limit : fmin(proof->cost, limit);
    proof->bound = fmin(proof->bound, limit);
}

void mem_exact(struct ap_arena *arena, struct mem_dual *d, double limit,
               int64_t max_cells, double until_sec, int64_t iterations,
               struct mem_proof *proof)
{
    struct mem_budget none = {.until_sec = until_sec};
    struct program g = {.d = d, .m = d->m};
    double paid, bound = mem_dual_settle(d, SWEEPS, &none, &paid);

    proof->done = false;
    proof->cost = INFINITY;
    proof->bound = bound - paid;
    proof->n_cells = 0;
    g.core = sel_dual_fold(d->dual, limit + paid, -1, -1);
    if (!g.core || g.core->base - paid >= limit) { /* nothing is cheaper */
        proof->done = true;
        proof->bound = limit;
        return;
    }
    g.gap = limit + paid - g.core->base;
    g.gap *= 1 + 1e-9;
    proof->n_cells = count_cells(g.core, g.gap);
    if (proof->n_cells > max_cells || none.out)
        return;
    g.scale = LARGEST / g.gap;
    g.node_limit = iterations;
    glp_term_out(GLP_OFF);
    g.lp = glp_create_prob();
    build(&g, arena);
    solve(&g, g.core->base - paid, limit, until_sec, iterations, proof);
    glp_delete_prob(g.lp);
    glp_free_env(); /* of this thread */
}
