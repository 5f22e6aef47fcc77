/* What the choices of a problem with memory hold, and which ones are legal. */
#include "contest.h"

#include <stdlib.h>

struct event {
    int64_t time, change;
};

/* What ends at a time is gone before something begins. */
static int by_time(const void *x, const void *y)
{
    const struct event *a = x, *b = y;

    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    return (a->change > b->change) - (a->change < b->change);
}

int64_t contest_peak(const struct contest *p, const int *choice)
{
    int64_t sum = 0, peak = 0;
    size_t n = 0;

    if (!p->span)
        return 0;
    struct event *event =
        ap_xrealloc(NULL, (2 * (size_t)p->costs.n_nodes + 1) * sizeof(*event));
    for (int v = 0; v < p->costs.n_nodes; v++)
        if (p->span[v].lo < p->span[v].hi) {
            int64_t usage = p->usage[v][choice[v]];
            event[n++] = (struct event){p->span[v].lo, usage};
            event[n++] = (struct event){p->span[v].hi, -usage};
        }
    qsort(event, n, sizeof(*event), by_time);
    for (size_t i = 0; i < n; i++) {
        sum += event[i].change;
        peak = sum > peak ? sum : peak;
    }
    free(event);
    return peak;
}

bool contest_legal(const struct contest *p, const int *choice)
{
    return ap_problem_score(&p->costs, choice) < AP_FORBIDDEN &&
           (!p->span || contest_peak(p, choice) <= p->usage_limit);
}
