/* Seeded problems with memory, and the oracle of the solvers' tests. */
#ifndef AP_CONTEST_GEN_H
#define AP_CONTEST_GEN_H

#include "contest.h"
#include "contest_exhaustive.h"
#include "solve_gen.h"

#include <inttypes.h>
#include <math.h>

/* Intervals and usages for a problem; the limit lies between the least and the most. */
static inline struct contest gen_memory(struct ap_arena *arena, struct ap_problem costs,
                                        int n_times, int most, int tightness)
{
    struct contest p = {.costs = costs};
    const int n = costs.n_nodes;
    struct contest_span *span = AP_NEW_N(arena, n + 1, struct contest_span);
    const int64_t **usage = AP_NEW_N(arena, n + 1, const int64_t *);
    int *low = AP_NEW_N(arena, n + 1, int);
    int *high = AP_NEW_N(arena, n + 1, int);

    for (int v = 0; v < n; v++) {
        int64_t *u = AP_NEW_N(arena, costs.n_strategies[v], int64_t);
        span[v].lo = gen_int(0, n_times - 1);
        span[v].hi = gen_int(0, 9) ? gen_int((int)span[v].lo, n_times) : span[v].lo;
        for (int s = 0; s < costs.n_strategies[v]; s++) {
            u[s] = gen_int(0, most);
            low[v] = u[s] < u[low[v]] ? s : low[v];
            high[v] = u[s] > u[high[v]] ? s : high[v];
        }
        usage[v] = u;
    }
    p.span = span;
    p.usage = usage;
    int64_t least = contest_peak(&p, low), all = contest_peak(&p, high);
    p.usage_limit = least + (all - least) * gen_int(-1, tightness) / 10;
    if (p.usage_limit < 0)
        p.usage_limit = 0;
    return p;
}

static inline void gen_put(struct ap_buf *out, const double *cost, int n, double scale)
{
    for (int i = 0; i < n; i++)
        ap_buf_printf(out, "%s%.0f", i ? "," : "[",
                      cost[i] >= AP_FORBIDDEN ? 1e18 : round(scale * cost[i]));
    ap_buf_putc(out, ']');
}

static inline void gen_put_memory(const struct contest *contest, struct ap_buf *out)
{
    const int n = contest->costs.n_nodes;

    ap_buf_puts(out, ",\"intervals\":[");
    for (int v = 0; v < n; v++)
        ap_buf_printf(out, "%s[%" PRId64 ",%" PRId64 "]", v ? "," : "",
                      contest->span[v].lo, contest->span[v].hi);
    ap_buf_puts(out, "],\"usages\":[");
    for (int v = 0; v < n; v++) {
        ap_buf_puts(out, v ? ",[" : "[");
        for (int s = 0; s < contest->costs.n_strategies[v]; s++)
            ap_buf_printf(out, "%s%" PRId64, s ? "," : "", contest->usage[v][s]);
        ap_buf_putc(out, ']');
    }
    ap_buf_putc(out, ']');
}

/* The contest's format; costs are multiplied by scale and rounded. */
static inline void gen_write(const struct contest *contest, double scale,
                             struct ap_buf *out)
{
    const struct ap_problem *p = &contest->costs;

    ap_buf_puts(out, "{\"problem\":{\"nodes\":{\"costs\":[");
    for (int v = 0; v < p->n_nodes; v++) {
        ap_buf_puts(out, v ? "," : "");
        gen_put(out, p->cost[v], p->n_strategies[v], scale);
    }
    ap_buf_putc(out, ']');
    if (contest->span)
        gen_put_memory(contest, out);
    ap_buf_puts(out, "},\"edges\":{\"nodes\":[");
    for (int e = 0; e < p->n_edges; e++)
        ap_buf_printf(out, "%s[%d,%d]", e ? "," : "", p->edges[e].a, p->edges[e].b);
    ap_buf_puts(out, "],\"costs\":[");
    for (int e = 0; e < p->n_edges; e++) {
        ap_buf_puts(out, e ? "," : "");
        gen_put(out, p->edges[e].cost,
                p->n_strategies[p->edges[e].a] * p->n_strategies[p->edges[e].b], scale);
    }
    ap_buf_puts(out, "]}");
    if (contest->span)
        ap_buf_printf(out, ",\"usage_limit\":%" PRId64, contest->usage_limit);
    ap_buf_puts(out, "}}\n");
}

/* All combinations of a problem without memory, as one of the library's solvers. */
static inline int gen_exhaustive(struct ap_arena *arena, const struct ap_problem *p,
                                 const struct ap_solve_params *params,
                                 struct ap_solution *sol, struct ap_err *err)
{
    const struct contest contest = {.costs = *p};
    const struct contest_params none = {0};

    (void)params;
    return contest_exhaustive(arena, &contest, &none, sol, err);
}

#endif
