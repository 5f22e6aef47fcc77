/* The problem of the default search as a file: the selection problem of the whole graph
 * in the format of the ASPLOS 2025 contest. */
#include "emit.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
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

/* The unfolded problem. */
static int build(struct ap_arena *arena, const struct shard_task *task,
                 const struct ap_plan *plans, struct ilp_problem *ip, struct ap_err *err)
{
    struct shard_fold alone;

    shard_fold_find(arena, task, NULL, &alone);
    return shard_ilp_build(arena, task, &alone, plans, task->n_plans, ip, err);
}

int shard_emit(struct ap_arena *arena, const struct shard_task *task,
               const struct ap_plan *plans, struct ap_buf *out, struct ap_err *err)
{
    double scale = task->cost->variant == AP_COST_DEFAULT ? EMIT_SEC : EMIT_OTHER;
    struct ap_mark mark = ap_arena_mark(arena);
    struct ilp_problem ip;
    int rc = 0;

    if (build(arena, task, plans, &ip, err))
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

/* ---- the way back ---- */

/* The line of a solver's output that is the choice: the last array. */
static json_t *find_choice(const char *text, const char *path, struct ap_err *err)
{
    const char *line = text, *found = NULL;

    for (; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        found = *line == '[' ? line : found;
    json_t *list = found ? json_loads(found, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    if (!json_is_array(list)) {
        ap_err_set(err,
                   "%s: no line is a choice such as [2, 0, 1], as ap-solve writes it",
                   path);
        json_decref(list);
        return NULL;
    }
    return list;
}

/* One strategy for each node of the problem. */
static int read_choice(const struct ap_problem *p, const json_t *list, const char *path,
                       int *choice, struct ap_err *err)
{
    const json_t *v;
    size_t i;

    if (json_array_size(list) != (size_t)p->n_nodes)
        return ap_err_set(err,
                          "%s: %zu strategies, but the problem has %d nodes: made for "
                          "another graph, mesh or option?",
                          path, json_array_size(list), p->n_nodes);
    json_array_foreach(list, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) >= p->n_strategies[i])
            return ap_err_set(err, "%s: /%zu: expected a strategy from 0 to %d", path, i,
                              p->n_strategies[i] - 1);
        choice[i] = (int)json_integer_value(v);
    }
    return ap_problem_score(p, choice) < AP_FORBIDDEN
               ? 0
               : ap_err_set(err, "%s: the choice has a cost that is forbidden", path);
}

int shard_solution(struct ap_arena *arena, const struct shard_task *task,
                   const char *path, struct shard_answer *answer, struct ap_err *err)
{
    struct ap_plan *plans = AP_NEW_N(arena, task->n_plans + 1, struct ap_plan);
    struct ilp_problem ip;
    char *text;
    size_t len;

    for (int i = 0; i < task->n_plans; i++) {
        plans[i] = task->plans[i];
        plans[i].regather = NULL; /* as the search has them */
        plans[i].scatters = false;
    }
    if (ap_read_file(arena, path, false, &text, &len, err))
        return -1;
    json_t *list = find_choice(text, path, err);
    if (!list || build(arena, task, plans, &ip, err)) {
        json_decref(list);
        return -1;
    }
    int *choice = AP_NEW_N(arena, ip.problem.n_nodes + 1, int);
    int rc = read_choice(&ip.problem, list, path, choice, err);
    if (!rc)
        *answer = (struct shard_answer){
            .plan = shard_ilp_plan(&ip, choice), .objective = -1, .stopped = "given"};
    select_free(&ip.builder);
    json_decref(list);
    return rc;
}
