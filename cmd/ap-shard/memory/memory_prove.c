/*
 * Problem: the best prices are known; what bound do they prove?
 * Idea: where alike layers were priced as one, the whole graph is solved at their prices,
 * and where solutions were given up, with more work. What takes too long for that, or was
 * left open by it, is bounded layer by layer (memory_pieces.c), as each layer costs a
 * little more than a bound of the whole tells. What is left then goes to branching
 * (memory_branch.c).
 * Cost: a solution or two of the whole, and some of every layer.
 */
#include <math.h>
#include <string.h>

#include "memory/memory_search.h"

#define NEARLY     1.4e-2 /* a gap that branches may close although a solution is hard */
#define WHOLE      120000 /* strategies of a graph that is bounded unfolded */
#define PROOF_WORK 100    /* of a solution, where more are not tried */

bool hunt_is_near(const struct hunt *h)
{
    return h->bound >= h->best_sec * (1 - h->near);
}

bool hunt_is_wide(const struct hunt *h)
{
    return h->whole.ip.space.n_strategies > WHOLE;
}

double hunt_price_sum(const struct hunt *h, const double *price, int n, double limit)
{
    double sum = 0;

    for (int j = 0; j < n; j++)
        sum += price[j] * h->unit / limit;
    return sum;
}

void hunt_raise_bound(struct hunt *h, double value, double paid)
{
    h->bound = fmax(h->bound, value - paid * (double)h->task->memory_bytes);
}

/* What the tied copies learnt. */
static void take_shares(struct hunt *h)
{
    const struct select_builder *whole = &h->whole.ip.builder;
    const struct select_builder *tied = &h->tied->ip.builder;
    int *first = AP_NEW_N(h->arena, h->task->graph->n_nodes, int);

    for (int c = tied->n_copies - 1; c >= 0; c--)
        first[tied->copy[c].tensor] = c + 1;
    for (int c = 0; c < whole->n_copies; c++) {
        const int tensor = h->tied->ip.tensor[whole->copy[c].tensor];
        for (int t = first[tensor] - 1;
             t >= 0 && t < tied->n_copies && tied->copy[t].tensor == tensor; t++)
            if (ap_layout_equal(&tied->copy[t].layout, &whole->copy[c].layout))
                h->whole.share[c] = h->tied->share[t];
    }
}

/* Of the plans that may fit, the one nearest to the bound at the best prices. */
static const int *nearest(const struct hunt *h)
{
    const double limit = (double)h->task->memory_bytes;
    double least = INFINITY;
    int best = 0;

    for (int i = 0; i < h->n_cuts; i++) {
        const double sec = hunt_priced(h, &h->cut[i], h->best_price, limit);
        if (!h->cut[i].lost && sec < least) {
            least = sec;
            best = i;
        }
    }
    return h->cut[best].choice;
}

/* The bound of the layers and of what no layer has, added up, at the best prices. */
static void prove_layers(struct hunt *h)
{
    if (h->layers.n_cells > 1 && !hunt_is_near(h))
        hunt_raise_bound(
            h, hunt_bound_pieces(h, h->best_price, nearest(h)),
            hunt_price_sum(h, h->best_price, h->n_times, (double)h->task->memory_bytes));
}

void hunt_prove_tied(struct hunt *h)
{
    const double limit = (double)h->task->memory_bytes;
    const int n_times = h->n_times;

    if (!h->tied || h->best_value <= fmax(h->proven_value, h->bound) ||
        h->best_sec == INFINITY)
        return;
    h->proven_value = h->best_value;
    take_shares(h);
    for (int i = 0; !hunt_is_wide(h) && i < HUNT_PROOFS && !hunt_is_near(h); i++) {
        double value = hunt_solve(h, &h->whole, h->best_price, h->unit / limit, 1, NULL);
        if (value < 0)
            break;
        hunt_raise_bound(h, value, hunt_price_sum(h, h->best_price, n_times, limit));
        hunt_try_last(h);
        if (!h->whole.moved)
            break;
    }
    if (hunt_is_wide(h) || h->gave_up)
        prove_layers(h);
    if (!hunt_is_near(h))
        hunt_mend(h);
}

void hunt_prove(struct hunt *h)
{
    const double limit = (double)h->task->memory_bytes;
    const int n_times = h->n_times;

    if (h->gave_up && !h->tied && !hunt_is_wide(h)) {
        h->solve_work = PROOF_WORK;
        const double value =
            hunt_solve(h, &h->whole, h->best_price, h->unit / limit, 1, NULL);
        if (value >= 0) {
            hunt_raise_bound(h, value, hunt_price_sum(h, h->best_price, n_times, limit));
            hunt_try_last(h);
            hunt_mend(h);
        }
    }
    if (!h->tied && (hunt_is_wide(h) || h->gave_up))
        prove_layers(h);
    if (!hunt_is_near(h) && (!h->gave_up || h->bound > h->best_sec * (1 - NEARLY)))
        hunt_branch(h);
    h->solve_work = HUNT_SOLVE_WORK;
}
