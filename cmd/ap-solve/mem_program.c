/*
 * The integer program of solve_glpk.c with memory. A choice costs the bound + its reduced
 * costs + sum of mu * (room - usage): the slots with a multiplier are rows with a slack
 * variable that costs mu, and all costs are >= 0. Rows of other slots are added when a
 * solution of the relaxation, or of the program, breaks them.
 */
#include "mem.h"

#include <glpk.h>
#include <string.h>

#define SWEEPS   30
#define NEW_ROWS 4    /* at once */
#define BROKEN   1e-7 /* part of the room */

struct slots {
    const struct mem_core *m;
    const double *mu;
    struct mem_tree *left; /* scratch */
    int *row;              /* [slot], 0 for none */
    double *used;          /* [slot + 1] */
};

/* usage / room + slack = 1 at a slot */
static void add_slot(struct slots *s, struct sel_program *g, int t)
{
    const struct mem_core *m = s->m;
    int n = 0, row = glp_add_rows(g->lp, 1), col = glp_add_cols(g->lp, 1);
    double unit = m->room[t] > 0 ? 1.0 / (double)m->room[t] : 1;

    s->row[t] = row;
    for (int v = 0; v < g->core->n_nodes; v++) {
        const struct sel_node *node = &g->core->node[v];
        for (int k = 0; k < node->n_strategies; k++) {
            int64_t usage = 0;
            for (int i = m->first[v]; i < m->first[v + 1]; i++)
                if (m->part[i].lo <= t && t < m->part[i].hi)
                    usage += m->part[i].usage[node->label[k]];
            if (usage == 0)
                continue;
            g->index[++n] = g->column[v][k];
            g->coef[n] = (double)usage * unit;
        }
    }
    g->index[++n] = col;
    g->coef[n] = 1;
    glp_set_col_bnds(g->lp, col, GLP_LO, 0, 0);
    glp_set_obj_coef(g->lp, col, s->mu[t] / unit * g->scale);
    double room = (double)m->room[t] * unit;
    glp_set_row_bnds(g->lp, row, GLP_FX, room, room);
    glp_set_mat_row(g->lp, row, n, g->index, g->coef);
}

/* Adds rows of the slots that the values break most; their number. */
static int add_broken(struct slots *s, struct sel_program *g,
                      double (*value)(glp_prob *lp, int column))
{
    const struct mem_core *m = s->m;
    int n = 0;

    memset(s->used, 0, ((size_t)m->n_slots + 1) * sizeof(double));
    for (int v = 0; v < g->core->n_nodes; v++)
        for (int k = 0; k < g->core->node[v].n_strategies; k++) {
            double x = value(g->lp, g->column[v][k]);
            int label = g->core->node[v].label[k];
            if (x < 1e-9)
                continue;
            for (int i = m->first[v]; i < m->first[v + 1]; i++) {
                const struct mem_part *part = &m->part[i];
                s->used[part->lo] += x * (double)part->usage[label];
                s->used[part->hi] -= x * (double)part->usage[label];
            }
        }
    for (int t = 1; t < m->n_slots; t++)
        s->used[t] += s->used[t - 1];
    for (; n < NEW_ROWS; n++) {
        int worst = -1;
        double most = BROKEN;
        for (int t = 0; t < m->n_slots; t++) {
            double over = (s->used[t] - (double)m->room[t]) / (double)(m->room[t] + 1);
            if (!s->row[t] && over > most) {
                most = over;
                worst = t;
            }
        }
        if (worst < 0)
            break;
        add_slot(s, g, worst);
    }
    return n;
}

static int add_rows(void *arg, struct sel_program *g,
                    double (*value)(glp_prob *lp, int column))
{
    struct slots *s = arg;
    int n = 0;

    if (value)
        return add_broken(s, g, value);
    for (int t = 0; t < s->m->n_slots; t++)
        if (s->mu[t] > 0) {
            add_slot(s, g, t);
            n++;
        }
    return n;
}

static double cost_of(void *arg, const int *state)
{
    const struct slots *s = arg;

    mem_tree_reset(s->left, s->m);
    for (int v = 0; v < s->m->core->n_nodes; v++)
        mem_tree_take(s->left, s->m, v, state[v], -1);
    return mem_tree_all(s->left) >= 0 ? mem_cost(s->m, state) : INFINITY;
}

void mem_program(struct ap_arena *arena, struct mem_dual *d,
                 const struct sel_program_limits *limits, struct sel_proof *proof)
{
    struct mem_budget none = {.until_sec = limits->until_sec};
    struct sel_program_limits within = *limits;
    double paid, bound = mem_dual_settle(d, SWEEPS, &none, &paid);
    struct sel_core *folded = sel_dual_fold(d->dual, limits->cost + paid, -1, -1);
    struct slots slots = {.m = d->m,
                          .mu = d->mu,
                          .left = &d->left,
                          .row = AP_NEW_N(arena, d->m->n_slots + 1, int),
                          .used = AP_NEW_N(arena, d->m->n_slots + 2, double)};
    const struct sel_rows rows = {&slots, add_rows, cost_of};

    if (none.out)
        within.cells = -1;
    if (folded)
        folded->base -= paid;
    proof->n_cells = 0;
    sel_program_solve(arena, folded, &within, &rows, proof);
    if (!proof->done)
        proof->bound = fmax(proof->bound, bound - paid);
}
