/*
 * Settled choices: the states of their copies, their cost, and their memory at every
 * time. O(uses of copies) for states, O(nodes + edges) for the price, O(usage + times)
 * for the memory.
 */
#include "solve/memory/memory_search.h"

#include <stdlib.h>
#include <string.h>

static bool asks_for(const struct ap_memory *m, const struct ap_copy_use *use,
                     const int *choice)
{
    const struct ap_problem_edge *e = &m->problem->edges[use->edge];

    return e->cost[choice[e->b]] >= AP_FORBIDDEN;
}

/* ---- states and price ---- */

static int state_of(const struct ap_memory *m, const struct ap_copy *copy,
                    const int *choice, bool again)
{
    bool needs[2] = {false, false};

    for (int u = 0; u < copy->n_uses; u++)
        needs[copy->use[u].later] |= asks_for(m, &copy->use[u], choice);
    if (needs[0] && needs[1])
        return again ? AP_COPY_AGAIN : AP_COPY_KEPT;
    return needs[0] ? AP_COPY_FORWARD : needs[1] ? AP_COPY_LATER : AP_COPY_ABSENT;
}

void ap_memory_settle(const struct ap_memory *m, const bool *of_tensor, int *choice)
{
    for (int c = 0; c < m->n_copies; c++) {
        int *state = &choice[m->n_vars + c];
        const bool again =
            *state == AP_COPY_AGAIN || (of_tensor && of_tensor[m->copy[c].tensor]);
        *state = state_of(m, &m->copy[c], choice, again);
    }
}

int64_t copy_times(const struct ap_memory *m, const struct ap_copy *copy,
                   const int *choice, bool again)
{
    const struct ap_copy_use *first[2] = {NULL, NULL}; /* user of each phase */
    int64_t times = 0;

    for (int u = 0; u < copy->n_uses; u++) {
        const struct ap_copy_use *use = &copy->use[u], **at = &first[use->later];
        if (asks_for(m, use, choice) && (!*at || use->when < (*at)->when))
            *at = use;
    }
    if (!again)
        return first[0] || first[1];
    for (int i = 0; i < 2; i++)
        times += first[i] ? first[i]->times : 0;
    return times;
}

/* What the copies of a settled choice cost: those of a tensor are all recomputed or none.
 */
static double copies_score(const struct ap_memory *m, const int *choice)
{
    const struct ap_copy *copy = m->copy;
    double sec = 0;
    bool again = false;

    for (int c = 0; c < m->n_copies; c++) {
        const struct ap_problem_edge *home = &m->problem->edges[copy[c].home_edge];
        if (c == 0 || copy[c].tensor != copy[c - 1].tensor) {
            again = false;
            for (int d = c; d < m->n_copies && copy[d].tensor == copy[c].tensor; d++)
                again |= choice[m->n_vars + d] == AP_COPY_AGAIN;
        }
        const int64_t times = copy_times(m, &copy[c], choice, again);
        if (times > 0)
            sec += home->cost[choice[home->a] * 2 + 1] * (double)times;
    }
    return sec;
}

double ap_memory_score(const struct ap_memory *m, const int *choice)
{
    const struct ap_problem *p = m->problem;
    double sec = copies_score(m, choice);

    for (int v = 0; v < m->n_vars; v++)
        sec += p->cost[v][choice[v]];
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        if (edge->a < m->n_vars && edge->b < m->n_vars)
            sec +=
                edge->cost[choice[edge->a] * p->n_strategies[edge->b] + choice[edge->b]];
    }
    return sec;
}

/* ---- usage ---- */

/* The turns of the first and the last user of a phase who ask for the copy. */
static void find_span(const struct ap_memory *m, const struct ap_copy *copy,
                      const int *choice, bool later, int *first, int *last)
{
    *first = copy->n_turns;
    *last = -1;
    for (int u = 0; u < copy->n_uses; u++) {
        const struct ap_copy_use *use = &copy->use[u];
        if (use->later != later || !asks_for(m, use, choice))
            continue;
        *first = use->turn < *first ? use->turn : *first;
        *last = use->turn > *last ? use->turn : *last;
    }
}

bool copy_asks(const struct ap_memory *m, const struct ap_copy *copy, bool later,
               int turn, const int *choice)
{
    for (int u = 0; u < copy->n_uses; u++) {
        const struct ap_copy_use *use = &copy->use[u];
        if (use->later == later && use->turn == turn && asks_for(m, use, choice))
            return true;
    }
    return false;
}

static void hold(int64_t *held, int n_times, int lo, int hi, int64_t bytes)
{
    held[lo] += bytes;
    if (hi < n_times)
        held[hi] -= bytes;
}

int usage_level(const struct ap_usage_max *most, const int *choice)
{
    int64_t bytes = 0;
    int level = 0;

    for (int i = 0; i < most->n_users; i++) {
        const struct ap_usage_user *a = &most->user[i];
        bytes = a->bytes[choice[a->var]] > bytes ? a->bytes[choice[a->var]] : bytes;
    }
    while (most->level[level] < bytes)
        level++;
    return level;
}

void ap_memory_held(const struct ap_memory *m, const int *choice, int64_t *held)
{
    memset(held, 0, (size_t)m->n_times * sizeof *held);
    for (int i = 0; i < m->n_items; i++) {
        const struct ap_usage_item *it = &m->items[i];
        hold(held, m->n_times, it->lo, it->hi,
             it->bytes[choice[it->a] * it->n_b + (it->b < 0 ? 0 : choice[it->b])]);
    }
    for (int i = 0; i < m->n_maxima; i++) {
        const struct ap_usage_max *it = &m->maxima[i];
        const int64_t own = it->own[choice[it->home]];
        const int64_t asked = it->level[usage_level(it, choice)];
        hold(held, m->n_times, it->lo, it->hi, asked < own ? asked : own);
    }
    for (int i = 0; i < m->n_keeps; i++) {
        const struct ap_usage_keep *it = &m->keeps[i];
        if (choice[m->n_vars + it->copy] == AP_COPY_KEPT)
            hold(held, m->n_times, it->lo, it->hi, it->extra[choice[it->home]]);
    }
    for (int i = 0, first = 0, last = 0; i < m->n_holds; i++) {
        const struct ap_usage_hold *it = &m->holds[i];
        if (i == 0 || it->copy != it[-1].copy || it->later != it[-1].later)
            find_span(m, &m->copy[it->copy], choice, it->later, &first, &last);
        if (it->over && (it->turn == first ||
                         copy_asks(m, &m->copy[it->copy], it->later, it->turn, choice)))
            continue;
        if (first <= it->turn && it->turn < last)
            hold(held, m->n_times, it->lo, it->hi, it->extra[choice[it->home]]);
    }
    for (int t = 1; t < m->n_times; t++)
        held[t] += held[t - 1];
}
