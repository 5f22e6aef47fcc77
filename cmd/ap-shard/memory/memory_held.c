/* What a choice holds by the model: at every time the sum of its items. */
#include <string.h>

#include "memory/memory.h"

/* The turns of the first and the last user of a phase who ask for the copy. */
static void find_span(const struct mem_model *m, const struct mem_copy *copy,
                      const int *choice, bool later, int *first, int *last)
{
    *first = copy->n_turns;
    *last = -1;
    for (int u = 0; u < copy->n_uses; u++) {
        const struct mem_use *use = &copy->use[u];
        const struct ap_problem_edge *e = &m->problem->edges[use->edge];
        if (use->later != later || e->cost[choice[e->b]] < AP_FORBIDDEN)
            continue;
        *first = use->turn < *first ? use->turn : *first;
        *last = use->turn > *last ? use->turn : *last;
    }
}

bool mem_asks(const struct mem_model *m, const struct mem_copy *copy, bool later,
              int turn, const int *choice)
{
    for (int u = 0; u < copy->n_uses; u++) {
        const struct mem_use *use = &copy->use[u];
        const struct ap_problem_edge *e = &m->problem->edges[use->edge];
        if (use->later == later && use->turn == turn &&
            e->cost[choice[e->b]] >= AP_FORBIDDEN)
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

int mem_most_level(const struct mem_most *most, const int *choice)
{
    int64_t bytes = 0;
    int level = 0;

    for (int i = 0; i < most->n_askers; i++) {
        const struct mem_asker *a = &most->asker[i];
        bytes = a->bytes[choice[a->var]] > bytes ? a->bytes[choice[a->var]] : bytes;
    }
    while (most->level[level] < bytes)
        level++;
    return level;
}

void mem_model_held(const struct mem_model *m, const int *choice, int64_t *held)
{
    memset(held, 0, (size_t)m->n_times * sizeof *held);
    for (int i = 0; i < m->n_items; i++) {
        const struct mem_item *it = &m->items[i];
        hold(held, m->n_times, it->lo, it->hi,
             it->bytes[choice[it->a] * it->n_b + (it->b < 0 ? 0 : choice[it->b])]);
    }
    for (int i = 0; i < m->n_mosts; i++) {
        const struct mem_most *it = &m->mosts[i];
        const int64_t own = it->own[choice[it->home]];
        const int64_t asked = it->level[mem_most_level(it, choice)];
        hold(held, m->n_times, it->lo, it->hi, asked < own ? asked : own);
    }
    for (int i = 0; i < m->n_keeps; i++) {
        const struct mem_keep *it = &m->keeps[i];
        if (choice[m->n_vars + it->copy] == MEM_KEPT)
            hold(held, m->n_times, it->lo, it->hi, it->extra[choice[it->home]]);
    }
    for (int i = 0, first = 0, last = 0; i < m->n_holds; i++) {
        const struct mem_hold *it = &m->holds[i];
        if (i == 0 || it->copy != it[-1].copy || it->later != it[-1].later)
            find_span(m, &m->copy[it->copy], choice, it->later, &first, &last);
        if (it->over && (it->turn == first ||
                         mem_asks(m, &m->copy[it->copy], it->later, it->turn, choice)))
            continue;
        if (first <= it->turn && it->turn < last)
            hold(held, m->n_times, it->lo, it->hi, it->extra[choice[it->home]]);
    }
    for (int t = 1; t < m->n_times; t++)
        held[t] += held[t - 1];
}
