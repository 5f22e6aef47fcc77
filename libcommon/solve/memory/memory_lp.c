/*
 * Prices of memory from the choices met so far: a linear program with a row per choice
 * and a column per time (Kelley's cutting planes). Its dual is a mixture of choices that
 * keeps the limit at the times that are priced; where it holds too much at another one,
 * that is priced, too, until it keeps the limit at all times. Cost: a simplex run per
 * time added, each from the basis of the last one.
 */
#include <glpk.h>
#include <math.h>
#include <string.h>

#include "solve/memory/memory_search.h"

#define PIVOTS     100000 /* of the simplex method */
#define MOST_ADDED 64     /* times, for prices from the same choices */
#define TOO_FULL   1e-4   /* part of the limit that a mixture may hold beyond it */

struct prices {
    struct memory_search *ms;
    glp_prob *lp;
    double limit;
    bool only_memory;
    int *index; /* [row + 1] of a column */
    double *value;
};

/* The columns of theta and of the times from j on. */
static void add_times(struct prices *p, int j)
{
    const struct memory_search *ms = p->ms;

    for (; j < ms->n_times; j++) {
        const int column = glp_add_cols(p->lp, 1);
        int n = 0;
        for (int i = 0; i < ms->n_cuts; i++) {
            p->index[++n] = i + 1;
            p->value[n] = (p->only_memory ? 0 : 1) -
                          (double)ms->cut[i].held[ms->time[j]] / p->limit;
        }
        p->index[++n] = ms->n_cuts + 1;
        p->value[n] = 1;
        glp_set_mat_col(p->lp, column, n, p->index, p->value);
        glp_set_col_bnds(p->lp, column, GLP_DB, 0, p->only_memory ? 1 : ms->highest);
    }
}

static void open_prices(struct prices *p)
{
    const struct memory_search *ms = p->ms;
    int n = 0;

    p->lp = glp_create_prob();
    glp_set_obj_dir(p->lp, GLP_MAX);
    glp_add_rows(p->lp, ms->n_cuts + 1);
    for (int i = 0; i < ms->n_cuts; i++) {
        p->index[++n] = i + 1;
        p->value[n] = 1;
        glp_set_row_bnds(p->lp, i + 1, GLP_UP, 0,
                         p->only_memory ? 0 : ms->cut[i].sec / ms->unit);
    }
    glp_set_row_bnds(p->lp, ms->n_cuts + 1, p->only_memory ? GLP_FX : GLP_FR, 1, 1);
    glp_add_cols(p->lp, 1);
    glp_set_mat_col(p->lp, 1, n, p->index, p->value);
    glp_set_col_bnds(p->lp, 1, GLP_FR, 0, 0);
    glp_set_obj_coef(p->lp, 1, 1);
    add_times(p, 0);
}

/* A time at which the mixture of choices that the prices stand for holds too much becomes
 * one to price; false: there is none. */
static bool find_time(const struct prices *p)
{
    struct memory_search *ms = p->ms;
    const int n_times = ms->model->n_times;
    const double theta = glp_get_obj_val(p->lp);
    struct ap_mark mark = ap_arena_mark(ms->arena);
    double *held = AP_NEW_N(ms->arena, n_times, double);
    int worst = 0;

    for (int i = 0; i < ms->n_cuts; i++) {
        const double weight = glp_get_row_dual(p->lp, i + 1);
        for (int t = 0; t < n_times && weight > 0; t++)
            held[t] += weight * (double)ms->cut[i].held[t];
    }
    for (int t = 1; t < n_times; t++)
        worst = held[t] > held[worst] ? t : worst;
    bool found = held[worst] > p->limit * (p->only_memory ? theta : 1) * (1 + TOO_FULL);
    ap_arena_rewind(ms->arena, mark);
    for (int j = 0; j < ms->n_times; j++)
        found &= ms->time[j] != worst;
    if (found)
        ms->time[ms->n_times++] = worst;
    return found;
}

static void take_prices(const struct prices *p, double *price)
{
    const struct memory_search *ms = p->ms;

    memset(price, 0, (size_t)ms->max_times * sizeof *price);
    for (int j = 0; j + 2 <= glp_get_num_cols(p->lp); j++)
        price[j] = fmax(glp_get_col_prim(p->lp, j + 2), 0);
}

/*
 * max theta: theta <= sec_i + sum of price_j (held_i(t_j) / limit - 1) for each choice i,
 * in units of ms->unit; with only_memory theta <= sum of price_j held_i(t_j) / limit, the
 * prices adding up to 1. Its dual is a mixture of choices, which keeps the limit at all
 * times: those at which it does not are added.
 */
static double find_prices(struct memory_search *ms, double limit, bool only_memory,
                          double *price)
{
    struct prices p = {ms, NULL, limit, only_memory, NULL, NULL};
    const struct ap_mark mark = ap_arena_mark(ms->arena);
    glp_smcp params;
    double theta = INFINITY;

    p.index = AP_NEW_N(ms->arena, ms->n_cuts + 2, int);
    p.value = AP_NEW_N(ms->arena, ms->n_cuts + 2, double);
    open_prices(&p);
    glp_init_smcp(&params);
    params.msg_lev = GLP_MSG_OFF;
    params.it_lim = PIVOTS;
    for (int i = 0; i <= MOST_ADDED; i++) {
        if (glp_simplex(p.lp, &params) != 0 || glp_get_status(p.lp) != GLP_OPT)
            break;
        theta = glp_get_obj_val(p.lp);
        take_prices(&p, price);
        if (!find_time(&p))
            break;
        add_times(&p, ms->n_times - 1);
    }
    glp_delete_prob(p.lp);
    ap_arena_rewind(ms->arena, mark);
    return theta;
}

double search_prices(struct memory_search *ms, double limit, double *price)
{
    return find_prices(ms, limit, false, price);
}

double search_least_prices(struct memory_search *ms, double limit, double *price)
{
    return find_prices(ms, limit, true, price);
}
