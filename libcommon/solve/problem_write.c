/* Writes the selection problem in the contest's format. */
#include "solve/problem.h"

#include <math.h>
#include <inttypes.h>

#define FORBIDDEN_TEXT "1000000000000000000"
#define LARGEST        9.9e17 /* a finite cost stays below forbidden */

static void put_costs(struct ap_buf *out, const double *cost, size_t n, double scale)
{
    ap_buf_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            ap_buf_putc(out, ',');
        if (cost[i] >= AP_FORBIDDEN)
            ap_buf_puts(out, FORBIDDEN_TEXT);
        else
            ap_buf_int(out, (int64_t)fmin(round(cost[i] * scale), LARGEST));
    }
    ap_buf_putc(out, ']');
}

static void put_memory(const struct ap_problem *p, struct ap_buf *out)
{
    ap_buf_puts(out, ",\"intervals\":[");
    for (int v = 0; v < p->n_nodes; v++) {
        struct ap_span span = p->span ? p->span[v] : (struct ap_span){0, 0};
        ap_buf_printf(out, "%s[%" PRId64 ",%" PRId64 "]", v ? "," : "", span.lo, span.hi);
    }
    ap_buf_puts(out, "],\"usages\":[");
    for (int v = 0; v < p->n_nodes; v++) {
        ap_buf_puts(out, v ? ",[" : "[");
        for (int s = 0; s < p->n_strategies[v]; s++) {
            if (s > 0)
                ap_buf_putc(out, ',');
            ap_buf_int(out, p->span ? p->usage[v][s] : 0);
        }
        ap_buf_putc(out, ']');
    }
    ap_buf_putc(out, ']');
}

void ap_problem_write(const struct ap_problem *p, const char *name, double scale,
                      struct ap_buf *out)
{
    ap_buf_printf(out, "{\"problem\":{\"name\":\"%s\",\"nodes\":{\"costs\":[", name);
    for (int v = 0; v < p->n_nodes; v++) {
        if (v > 0)
            ap_buf_putc(out, ',');
        put_costs(out, p->cost[v], (size_t)p->n_strategies[v], scale);
    }
    ap_buf_putc(out, ']');
    put_memory(p, out);
    ap_buf_puts(out, "},\"edges\":{\"nodes\":[");
    for (int e = 0; e < p->n_edges; e++)
        ap_buf_printf(out, "%s[%d,%d]", e ? "," : "", p->edges[e].a, p->edges[e].b);
    ap_buf_puts(out, "],\"costs\":[");
    for (int e = 0; e < p->n_edges; e++) {
        size_t na = (size_t)p->n_strategies[p->edges[e].a];
        size_t nb = (size_t)p->n_strategies[p->edges[e].b];
        if (e > 0)
            ap_buf_putc(out, ',');
        put_costs(out, p->edges[e].cost, na * nb, scale);
    }
    ap_buf_puts(out, "]}");
    if (p->span)
        ap_buf_printf(out, ",\"usage_limit\":%" PRId64, p->usage_limit);
    ap_buf_puts(out, "}}\n");
}
