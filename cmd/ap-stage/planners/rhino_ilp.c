/*
 * Problem: put the blocks of a DAG into d stages, values going forward only, so that the
 * bytes of values that leave their stage are least and no stage has more than F (1 + e)
 * FLOPs, F the mean and e the tolerance.
 * Idea: bounds first. With pre and post the FLOPs before a block and after it and
 * tol = e F, its stage is at least floor((max(pre - tol, 0) + own / 2) / F) and at most
 * d - 1 - floor(max(post + own / 2 - tol, 0) / F); neighbours tighten them. (As printed
 * the upper bound has no d - 1 - ..., which leaves no plan.) Then an ILP over what the
 * bounds leave open: y(b, s) says that block b is in stage s or after it, which makes an
 * order of two blocks a row of two entries; a value that leaves its stage costs its bytes
 * once; rows for every stage's FLOPs, which the open code builds and never adds, and for
 * stages that must not be empty.
 * Cost: ancestors in O(blocks^2 + edges blocks / 64); an ILP of blocks x open stages with
 * a limit of nodes and iterations, beyond which the best so far or the line is taken.
 * Source: Zhang et al., "Rhino" (2023), section 5.2, and its code.
 */
#include <glpk.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planners/rhino.h"

#define NODE_LIMIT      5000
#define ITERATION_LIMIT ((int64_t)20000000) /* simplex iterations * rows */

/* ---- bounds ---- */

static int compare_values(const void *a, const void *b)
{
    const struct plan_value *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* FLOPs of all blocks that a block needs (back = false), or that need it. */
static void sum_reached(struct ap_arena *arena, const struct plan_instance *inst,
                        bool forward, double *sum)
{
    int n = inst->n_blocks, words = (n + 63) / 64;
    uint64_t *seen = AP_NEW_N(arena, n * words, uint64_t);
    struct plan_value *v = AP_NEW_N(arena, inst->n_values + 1, struct plan_value);

    for (int i = 0; i < inst->n_values; i++)
        v[i] = inst->value[i];
    qsort(v, (size_t)inst->n_values, sizeof *v, compare_values);
    for (int i = 0; i < inst->n_values; i++) {
        const struct plan_value *x = &v[forward ? i : inst->n_values - 1 - i];
        for (int k = 0; k < x->n_to; k++) {
            int to = forward ? x->to[k] : x->from, from = forward ? x->from : x->to[k];
            seen[to * words + from / 64] |= (uint64_t)1 << (from % 64);
            for (int w = 0; w < words; w++)
                seen[to * words + w] |= seen[from * words + w];
        }
    }
    for (int b = 0; b < n; b++) {
        sum[b] = 0;
        for (int o = 0; o < n; o++)
            if (seen[b * words + o / 64] >> (o % 64) & 1)
                sum[b] += inst->flops[o];
    }
}

static void tighten(const struct plan_instance *inst, int *least, int *most)
{
    bool again = true;
    while (again) {
        again = false;
        for (int i = 0; i < inst->n_values; i++)
            for (int k = 0; k < inst->value[i].n_to; k++) {
                int from = inst->value[i].from, to = inst->value[i].to[k];
                if (least[to] < least[from]) {
                    least[to] = least[from];
                    again = true;
                }
                if (most[from] > most[to]) {
                    most[from] = most[to];
                    again = true;
                }
            }
    }
}

void rhino_bounds(struct ap_arena *arena, const struct plan_instance *inst, int n_stages,
                  double imbalance, int *least, int *most)
{
    double *pre = AP_NEW_N(arena, inst->n_blocks, double);
    double *post = AP_NEW_N(arena, inst->n_blocks, double), total = 0;

    sum_reached(arena, inst, true, pre);
    sum_reached(arena, inst, false, post);
    for (int b = 0; b < inst->n_blocks; b++)
        total += inst->flops[b];
    double mean = total > 0 ? total / n_stages : 1, tol = mean * imbalance;
    for (int b = 0; b < inst->n_blocks; b++) {
        double half = inst->flops[b] / 2;
        int lo = (int)floor((fmax(pre[b] - tol, 0) + half) / mean);
        int hi = n_stages - 1 - (int)floor(fmax(post[b] + half - tol, 0) / mean);
        least[b] = lo < n_stages ? lo : n_stages - 1;
        most[b] = hi > 0 ? hi : 0;
    }
    tighten(inst, least, most);
}

/* ---- ILP ---- */

struct model {
    const struct plan_instance *inst;
    glp_prob *lp;
    int n_stages, *least, *most;
    int *column; /* [block]: of y(b, least + 1) */
    int *index;  /* room for a row */
    double *coef;
};

/* Adds c * y(b, s) to a row of n entries; what is fixed goes to *constant. */
static int add_term(const struct model *m, int n, double *constant, int b, int s,
                    double c)
{
    if (s <= m->least[b]) {
        *constant += c;
    } else if (s <= m->most[b]) {
        m->index[++n] = m->column[b] + s - m->least[b] - 1;
        m->coef[n] = c;
    }
    return n;
}

/* A row of n entries that must be at least (or at most) what its constant leaves. */
static void add_row(const struct model *m, int n, int kind, double bound)
{
    int row = glp_add_rows(m->lp, 1);
    glp_set_row_bnds(m->lp, row, kind, bound, bound);
    glp_set_mat_row(m->lp, row, n, m->index, m->coef);
}

static void add_blocks(struct model *m)
{
    for (int b = 0; b < m->inst->n_blocks; b++) {
        int n = m->most[b] - m->least[b];
        m->column[b] = n > 0 ? glp_add_cols(m->lp, n) : 0;
        for (int i = 0; i < n; i++)
            glp_set_col_kind(m->lp, m->column[b] + i, GLP_BV);
        for (int i = 0; i + 1 < n; i++) {
            double constant = 0;
            int at = add_term(m, 0, &constant, b, m->least[b] + 1 + i, 1);
            at = add_term(m, at, &constant, b, m->least[b] + 2 + i, -1);
            add_row(m, at, GLP_LO, 0);
        }
    }
}

static void add_values(struct model *m, double scale)
{
    for (int i = 0; i < m->inst->n_values; i++) {
        const struct plan_value *v = &m->inst->value[i];
        int leaves = glp_add_cols(m->lp, 1);
        glp_set_col_bnds(m->lp, leaves, GLP_DB, 0, 1);
        glp_set_obj_coef(m->lp, leaves,
                         ((double)v->forward_bytes + (double)v->backward_bytes) * scale);
        for (int k = 0; k < v->n_to; k++)
            for (int s = 1; s < m->n_stages; s++) {
                double constant = 0;
                int n = add_term(m, 0, &constant, v->to[k], s, 1);
                n = add_term(m, n, &constant, v->from, s, -1);
                if (n > 0) /* forward only */
                    add_row(m, n, GLP_LO, -constant);
                m->index[++n] = leaves;
                m->coef[n] = -1;
                add_row(m, n, GLP_UP, -constant);
            }
    }
}

static void add_stages(struct model *m, double mean, double imbalance)
{
    for (int s = 0; s < m->n_stages; s++)
        for (int count = 0; count < 2; count++) {
            double constant = 0;
            int n = 0;
            for (int b = 0; b < m->inst->n_blocks; b++) {
                double c = count ? 1 : m->inst->flops[b] / mean;
                n = add_term(m, n, &constant, b, s, c);
                n = add_term(m, n, &constant, b, s + 1, -c);
            }
            add_row(m, n, count ? GLP_LO : GLP_UP,
                    (count ? 1 : 1 + imbalance + 1e-9) - constant);
        }
}

static void watch(glp_tree *tree, void *info)
{
    int active, all, total;
    glp_prob *lp = glp_ios_get_prob(tree);
    int64_t rows = *(const int *)info;
    glp_ios_tree_size(tree, &active, &all, &total);
    if (total > NODE_LIMIT || glp_get_it_cnt(lp) * rows > ITERATION_LIMIT)
        glp_ios_terminate(tree);
}

static bool read_stages(const struct model *m, int *stage_of)
{
    int status = glp_mip_status(m->lp);
    if (status != GLP_OPT && status != GLP_FEAS)
        return false;
    for (int b = 0; b < m->inst->n_blocks; b++) {
        stage_of[b] = m->least[b];
        for (int i = 0; i < m->most[b] - m->least[b]; i++)
            stage_of[b] += glp_mip_col_val(m->lp, m->column[b] + i) > 0.5;
    }
    return true;
}

int64_t rhino_bytes(const struct plan_instance *inst, const int *stage_of)
{
    int64_t bytes = 0;
    for (int i = 0; i < inst->n_values; i++) {
        const struct plan_value *v = &inst->value[i];
        bool leaves = false;
        for (int k = 0; k < v->n_to; k++)
            leaves |= stage_of[v->to[k]] != stage_of[v->from];
        if (leaves)
            bytes += v->forward_bytes + v->backward_bytes;
    }
    return bytes;
}

static bool bounds_meet(const struct model *m)
{
    for (int b = 0; b < m->inst->n_blocks; b++)
        if (m->least[b] > m->most[b])
            return false;
    return true;
}

/* Where the limit left nothing: the blocks in their order, cut where the FLOPs so far are
 * nearest to a stage's end. false: a stage is empty or has more than the budget. */
static bool cut_line(const struct plan_instance *inst, int n_stages, double budget,
                     int *stage_of)
{
    double total = 0, sum = 0, load = 0;
    int s = 0, count = 0;

    for (int b = 0; b < inst->n_blocks; b++)
        total += inst->flops[b];
    for (int b = 0; b < inst->n_blocks; b++) {
        if (count > 0 && s + 1 < n_stages &&
            sum + inst->flops[b] / 2 > total * (s + 1) / n_stages) {
            s++;
            count = 0;
            load = 0;
        }
        stage_of[b] = s;
        count++;
        sum += inst->flops[b];
        load += inst->flops[b];
        if (load > budget * (1 + 1e-9))
            return false;
    }
    return s == n_stages - 1;
}

bool rhino_stages(struct ap_arena *arena, const struct plan_instance *inst, int n_stages,
                  double imbalance, int *stage_of, bool *proven)
{
    int n = inst->n_blocks;
    double total = 0, bytes = 1;
    struct model m = {.inst = inst,
                      .n_stages = n_stages,
                      .least = AP_NEW_N(arena, n, int),
                      .most = AP_NEW_N(arena, n, int),
                      .column = AP_NEW_N(arena, n, int),
                      .index = AP_NEW_N(arena, 2 * n + 4, int),
                      .coef = AP_NEW_N(arena, 2 * n + 4, double)};
    glp_iocp iocp;

    rhino_bounds(arena, inst, n_stages, imbalance, m.least, m.most);
    if (!bounds_meet(&m))
        return false;
    for (int b = 0; b < n; b++)
        total += inst->flops[b];
    for (int i = 0; i < inst->n_values; i++)
        bytes = fmax(bytes, (double)inst->value[i].forward_bytes);
    glp_term_out(GLP_OFF);
    m.lp = glp_create_prob();
    add_blocks(&m);
    add_values(&m, 1 / bytes);
    add_stages(&m, total > 0 ? total / n_stages : 1, imbalance);
    glp_init_iocp(&iocp);
    iocp.presolve = GLP_ON;
    iocp.msg_lev = GLP_MSG_OFF;
    iocp.cb_func = watch;
    int rows = glp_get_num_rows(m.lp);
    iocp.cb_info = &rows;
    int rc = glp_intopt(m.lp, &iocp);
    bool ok = (rc == 0 || rc == GLP_ESTOP) && read_stages(&m, stage_of);
    *proven = rc == 0;
    glp_delete_prob(m.lp);
    if (!ok && rc == GLP_ESTOP)
        ok = cut_line(inst, n_stages, (1 + imbalance) * total / n_stages, stage_of);
    return ok;
}
