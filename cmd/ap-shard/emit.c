/* The problem of the default search as a file: the selection problem of the whole graph
 * in the format of the ASPLOS 2025 contest. */
#include "emit.h"

#include <math.h>

#include "memory/memory.h"
#include "problem/fold.h"

/* The contest's format has integers below 1e18. */
#define EMIT_SEC     1e15 /* seconds are written in femtoseconds */
#define EMIT_OTHER   1e3  /* other units in thousandths */
#define EMIT_LARGEST 9.9e17
#define FORBIDDEN    "1000000000000000000"

static double largest_cost(const struct ap_problem *p)
{
    double most = 0;

    for (int v = 0; v < p->n_nodes; v++)
        for (int s = 0; s < p->n_strategies[v]; s++)
            if (p->cost[v][s] < AP_FORBIDDEN)
                most = fmax(most, p->cost[v][s]);
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        int64_t n = (int64_t)p->n_strategies[edge->a] * p->n_strategies[edge->b];
        for (int64_t k = 0; k < n; k++)
            if (edge->cost[k] < AP_FORBIDDEN)
                most = fmax(most, edge->cost[k]);
    }
    return most;
}

static void put_costs(struct ap_buf *out, const double *cost, int n, double scale)
{
    ap_buf_putc(out, '[');
    for (int i = 0; i < n; i++) {
        if (i > 0)
            ap_buf_putc(out, ',');
        if (cost[i] >= AP_FORBIDDEN)
            ap_buf_puts(out, FORBIDDEN);
        else
            ap_buf_int(out, (int64_t)round(cost[i] * scale));
    }
    ap_buf_putc(out, ']');
}

/* No node holds memory. */
static void put_memory(const struct ap_problem *p, struct ap_buf *out)
{
    ap_buf_puts(out, ",\"intervals\":[");
    for (int v = 0; v < p->n_nodes; v++)
        ap_buf_puts(out, v ? ",[0,0]" : "[0,0]");
    ap_buf_puts(out, "],\"usages\":[");
    for (int v = 0; v < p->n_nodes; v++) {
        ap_buf_puts(out, v ? ",[" : "[");
        for (int s = 0; s < p->n_strategies[v]; s++)
            ap_buf_puts(out, s > 0 ? ",0" : "0");
        ap_buf_putc(out, ']');
    }
    ap_buf_putc(out, ']');
}

/* Costs are multiplied by scale and rounded. */
static void put_problem(const struct ap_problem *p, double scale, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"problem\":{\"name\":\"ap-shard\",\"nodes\":{\"costs\":[");
    for (int v = 0; v < p->n_nodes; v++) {
        if (v > 0)
            ap_buf_putc(out, ',');
        put_costs(out, p->cost[v], p->n_strategies[v], scale);
    }
    ap_buf_putc(out, ']');
    put_memory(p, out);
    ap_buf_puts(out, "},\"edges\":{\"nodes\":[");
    for (int e = 0; e < p->n_edges; e++)
        ap_buf_printf(out, "%s[%d,%d]", e ? "," : "", p->edges[e].a, p->edges[e].b);
    ap_buf_puts(out, "],\"costs\":[");
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        if (e > 0)
            ap_buf_putc(out, ',');
        put_costs(out, edge->cost, p->n_strategies[edge->a] * p->n_strategies[edge->b],
                  scale);
    }
    ap_buf_puts(out, "]}}}\n");
}

/* The unfolded problem in the contest's format. */
int shard_emit(struct ap_arena *arena, const struct shard_task *task,
               const struct ap_plan *plans, struct ap_buf *out, struct ap_err *err)
{
    double scale = task->cost->variant == AP_COST_DEFAULT ? EMIT_SEC : EMIT_OTHER;
    struct ap_mark mark = ap_arena_mark(arena);
    struct shard_fold alone;
    struct ilp_problem ip;
    int rc = 0;

    shard_fold_find(arena, task, NULL, &alone);
    if (shard_ilp_build(arena, task, &alone, plans, task->n_plans, &ip, err))
        return -1;
    const struct ap_problem p = ip.problem;
    if (largest_cost(&p) * scale < EMIT_LARGEST)
        put_problem(&p, scale, out);
    else
        rc = ap_err_set(err, "a cost of %g is too large for the contest's format",
                        largest_cost(&p));
    select_free(&ip.builder);
    ap_arena_rewind(arena, mark);
    return rc;
}
