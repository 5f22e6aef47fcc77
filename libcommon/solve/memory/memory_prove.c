/*
 * Problem: the best prices are known; what bound do they prove? Idea: where repeated
 * layers were priced as one, the whole graph is solved at their prices, and where
 * solutions were given up, with more work. A problem that takes too long for that, or
 * that it leaves open, is bounded layer by layer (memory_pieces.c), since each layer
 * costs a little more than a bound of the whole shows. Cost: a solution or two of the
 * whole, and some of every layer.
 */
#include <math.h>
#include <string.h>

#include "solve/memory/memory_search.h"

bool search_is_near(const struct memory_search *ms)
{
    return ms->bound >= ms->best_sec * (1 - ms->near);
}

bool search_is_wide(const struct memory_search *ms)
{
    return ms->n_strategies > memory_tuning.whole;
}

double search_price_sum(const struct memory_search *ms, const double *price, int n,
                        double limit)
{
    double sum = 0;

    for (int j = 0; j < n; j++)
        sum += price[j] * ms->unit / limit;
    return sum;
}

void search_raise_bound(struct memory_search *ms, double value, double paid)
{
    ms->bound = fmax(ms->bound, value - paid * (double)ms->task->limit);
}

/* What the tied copies learnt. */
static void take_shares(struct memory_search *ms)
{
    for (int c = 0; c < ms->model->n_copies; c++)
        if (ms->task->tied_copy[c] >= 0)
            ms->whole.share[c] = ms->tied->share[ms->task->tied_copy[c]];
}

/* Of the choices that may fit, the one nearest to the bound at the best prices. */
static const int *nearest(const struct memory_search *ms)
{
    const double limit = (double)ms->task->limit;
    double least = INFINITY;
    int best = 0;

    for (int i = 0; i < ms->n_cuts; i++) {
        const double sec = search_priced(ms, &ms->cut[i], ms->best_price, limit);
        if (sec < least) {
            least = sec;
            best = i;
        }
    }
    return ms->cut[best].choice;
}

/* The bound of the layers and of what no layer has, added up, at the best prices. */
static void prove_layers(struct memory_search *ms)
{
    if (ms->task->n_cells > 1 && !search_is_near(ms))
        search_raise_bound(
            ms, search_bound_pieces(ms, ms->best_price, nearest(ms)),
            search_price_sum(ms, ms->best_price, ms->n_times, (double)ms->task->limit));
}

void search_prove_tied(struct memory_search *ms)
{
    const double limit = (double)ms->task->limit;
    const int n_times = ms->n_times;

    if (!ms->tied || ms->best_value <= fmax(ms->proven_value, ms->bound) ||
        ms->best_sec == INFINITY)
        return;
    ms->proven_value = ms->best_value;
    take_shares(ms);
    for (int i = 0; !search_is_wide(ms) && i < SEARCH_PROOFS && !search_is_near(ms);
         i++) {
        double value = search_solve(ms, &ms->whole, ms->best_price, ms->unit / limit, 1);
        if (value < 0)
            break;
        search_raise_bound(ms, value,
                           search_price_sum(ms, ms->best_price, n_times, limit));
        search_try_last(ms);
        if (!ms->whole.moved)
            break;
    }
    if (search_is_wide(ms) || ms->gave_up)
        prove_layers(ms);
    if (!search_is_near(ms))
        search_mend(ms);
}

void search_prove(struct memory_search *ms)
{
    const double limit = (double)ms->task->limit;
    const int n_times = ms->n_times;

    if (ms->gave_up && !ms->tied && !search_is_wide(ms)) {
        ms->solve_work = memory_tuning.proof_work;
        const double value =
            search_solve(ms, &ms->whole, ms->best_price, ms->unit / limit, 1);
        if (value >= 0) {
            search_raise_bound(ms, value,
                               search_price_sum(ms, ms->best_price, n_times, limit));
            search_try_last(ms);
            search_mend(ms);
        }
    }
    if (!ms->tied && (search_is_wide(ms) || ms->gave_up))
        prove_layers(ms);
    ms->solve_work = memory_tuning.solve_work;
}
