/*
 * The memory that a plan's program needs, measured: the plan is partitioned and its
 * buffers are laid out, as ap-rewrite will do it; the largest values at the peak are
 * named for messages. Cost: one program per plan. Also sizes as people write them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "pipeline/pipeline_program.h"
#include "program/lives.h"

#define N_HOLDERS 4 /* values that are named */

static int make_program(struct ap_arena *arena, const struct ap_plan *plan,
                        const struct ap_cost *cost, int64_t limit,
                        struct ap_conversions *conv, struct ap_program *prog)
{
    const struct ap_program_form form = {.limit_bytes = limit, .cost = cost};
    struct ap_err err = {0};

    return ap_plan_check_choices(plan, cost, &err) ||
                   ap_program_make(arena, plan, &form, conv, prog, &err)
               ? -1
               : 0;
}

void mem_measure(const struct ap_plan *plan, const struct ap_cost *cost, int64_t limit,
                 double *sec, int64_t *peak_bytes, int64_t *alive_bytes)
{
    struct ap_arena arena = {0};
    struct ap_conversions conv;
    struct ap_program prog = {.peak_bytes = INT64_MAX, .alive_bytes = INT64_MAX};

    *sec = INFINITY;
    if (make_program(&arena, plan, cost, limit, &conv, &prog) == 0)
        *sec = ap_plan_price(plan, cost, &conv).step_sec;
    *peak_bytes = *sec < INFINITY ? prog.peak_bytes : INT64_MAX;
    if (alive_bytes)
        *alive_bytes = *sec < INFINITY ? prog.alive_bytes : INT64_MAX;
    ap_arena_free(&arena);
}

/* The time of the model at which a node that is no member of its source's group is made:
 * that of an operand of the next group that runs, or of the end of the one before. */
static int time_of(const struct mem_model *m, const struct ap_nests *nests, int source,
                   int before, int next)
{
    for (int k = 0; next >= 0 && k < nests->nest[next].n_ins; k++)
        if (nests->nest[next].ins[k].node == source)
            return m->slot_time[next][k];
    if (before >= 0)
        return m->base[before] + nests->nest[before].n_ins;
    return next >= 0 ? m->base[next] : 0;
}

static bool is_member(const struct ap_plan *plan, const struct ap_program *prog, int i)
{
    return prog->local.nodes[i].name == plan->graph->nodes[prog->source[i]].name;
}

int mem_measure_held(const struct ap_plan *plan, const struct ap_cost *cost,
                     const struct mem_model *m, int64_t *held)
{
    struct ap_arena arena = {0};
    struct ap_conversions conv;
    struct ap_program prog;
    struct ap_err err = {0};
    int before = -1;

    if (ap_plan_check_choices(plan, cost, &err) ||
        ap_plan_conversions(&arena, plan, cost, &conv, &err) ||
        ap_partition(&arena, plan, &conv, &prog, &err)) {
        ap_arena_free(&arena);
        return -1;
    }
    const struct ap_graph *g = &prog.local;
    const int64_t *alive = ap_program_alive(&arena, &prog, true);
    int *next = AP_NEW_N(&arena, g->n_nodes + 1, int);
    next[g->n_nodes] = -1;
    for (int i = g->n_nodes - 1; i >= 0; i--)
        next[i] = is_member(plan, &prog, i) ? plan->graph->nodes[prog.source[i]].group
                                            : next[i + 1];
    memset(held, 0, (size_t)m->memory.n_times * sizeof *held);
    for (int i = 0; i < g->n_nodes; i++) {
        int t;
        if (is_member(plan, &prog, i)) {
            before = next[i];
            t = m->base[before] + plan->nests->nest[before].n_ins;
        } else {
            t = time_of(m, plan->nests, prog.source[i], before, next[i]);
        }
        if (alive[g->nodes[i].group] > held[t])
            held[t] = alive[g->nodes[i].group];
    }
    for (int t = 1, last = 0; t < m->memory.n_times;
         t++) { /* nothing runs: as on both sides */
        if (held[t] == 0)
            continue;
        for (int i = last + 1; i < t; i++)
            held[i] = held[last] < held[t] ? held[last] : held[t];
        last = t;
    }
    ap_arena_free(&arena);
    return 0;
}

/* ---- who holds it ---- */

struct holder {
    int node;
    int64_t bytes;
};

static int by_bytes(const void *x, const void *y)
{
    const struct holder *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

/* The group while which most is alive. */
static int fullest_group(struct ap_arena *arena, const struct ap_program *prog)
{
    const int64_t *alive = ap_program_alive(arena, prog, false);
    int best = 0;

    for (int i = 0; i <= prog->local.n_groups; i++)
        best = alive[i] > alive[best] ? i : best;
    return best;
}

static void name_holder(struct ap_arena *arena, const struct ap_plan *plan,
                        const struct ap_program *prog, const struct holder *h,
                        struct ap_buf *out)
{
    const int source = prog->source[h->node];
    const struct ap_node *local = &prog->local.nodes[h->node];
    const struct ap_node *n = &plan->graph->nodes[source];
    struct ap_layout l = ap_plan_node_layout(plan, source);

    ap_buf_printf(out, "%s%.60s %s (", out->len ? ", " : "", n->name,
                  mem_size_text(arena, h->bytes));
    ap_shape_print(&n->shape, out);
    if (local->op == n->op && local->attrs->coll.axes == n->attrs->coll.axes) {
        ap_buf_puts(out, " as ");
        ap_layout_print(&plan->mesh, &l, out);
    } else {
        ap_buf_printf(out, " after %s", ap_ops[local->op].name);
    }
    ap_buf_puts(out, ")");
}

const char *mem_holders(struct ap_arena *arena, const struct ap_plan *plan,
                        const struct ap_cost *cost)
{
    struct ap_arena scratch = {0};
    struct ap_conversions conv;
    struct ap_program prog;
    struct ap_buf out = {0};
    int n = 0;

    if (make_program(&scratch, plan, cost, 0, &conv, &prog)) {
        ap_arena_free(&scratch);
        return "";
    }
    const struct ap_graph *g = &prog.local;
    struct holder *list = AP_NEW_N(&scratch, g->n_nodes + 1, struct holder);
    const int at = fullest_group(&scratch, &prog);
    struct ap_lives lives;
    ap_lives_find(&scratch, &prog, &lives);
    for (int i = 0; i < g->n_nodes; i++)
        if (lives.has[i] && lives.birth[i] <= at && at <= lives.death[i])
            list[n++] = (struct holder){i, prog.buffer[i].bytes};
    qsort(list, (size_t)n, sizeof *list, by_bytes);
    for (int i = 0; i < n && i < N_HOLDERS; i++)
        name_holder(&scratch, plan, &prog, &list[i], &out);
    if (n > N_HOLDERS)
        ap_buf_printf(&out, " and %d more", n - N_HOLDERS);
    const char *text = ap_arena_strdup(arena, out.data ? out.data : "nothing");
    ap_buf_free(&out);
    ap_arena_free(&scratch);
    return text;
}

/* ---- sizes ---- */

const char *mem_size_text(struct ap_arena *arena, int64_t bytes)
{
    return ap_size_text(arena, bytes);
}

int64_t mem_size_parse(const char *text)
{
    return ap_size_parse(text);
}
