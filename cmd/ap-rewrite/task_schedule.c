/*
 * Problem: an order of the tasks of each lane that keeps to a number of microbatches in
 * flight. Idea: time goes forward; the lane that can start first starts its next pass,
 * which is a forward as long as the lane may hold more, even if it has to wait for that
 * one and a backward is ready (interleaved 1F1B of 5 devices and 10 microbatches does).
 * Passes of a lane come in the schedule's order of stages and microbatches (groups of
 * microbatches, one for each lane, go through one chunk after the other). Source:
 * TePDist, pjrt/task_scheduler.cc, with its times: forward 1, backward 2, all else 0.
 */
#include "task_graph.h"

#include <limits.h>
#include <math.h>
#include <string.h>

struct lane_state {
    double free_at;
    int n_passes, n_forwards; /* forwards that there are */
    int next[2];              /* [backward]: passes that have started */
    int n, *order;
};

struct scheduler {
    const struct ap_task_graph *g;
    const struct ap_schedule_size *z;
    int *pass[2];      /* [backward][stage * microbatches + microbatch]: task, -1 */
    int *n_waits;      /* [task]: tasks that it still waits for */
    double *ready;     /* [task]: when the last of those ended */
    int *start, *user; /* CSR: who waits for a task */
    int *todo, n_todo; /* tasks that are no passes and wait for nothing */
    int n_done;
    struct lane_state *lane;
};

static bool is_pass(const struct ap_task *t)
{
    return t->kind == AP_TASK_FORWARD || t->kind == AP_TASK_BACKWARD;
}

/* Ends a task, and all tasks without duration that waited for it alone. */
static void end_task(struct scheduler *s, int task, double at)
{
    s->todo[s->n_todo++] = task;
    while (s->n_todo > 0) {
        const int t = s->todo[--s->n_todo];
        const struct ap_task *v = &s->g->task[t];
        const double end = t == task ? at : s->ready[t];
        s->n_done++;
        if (!is_pass(v) && v->stage >= 0) {
            struct lane_state *l = &s->lane[v->stage % s->z->n_devices];
            l->order[l->n++] = t;
        }
        for (int u = s->start[t]; u < s->start[t + 1]; u++) {
            const int next = s->user[u];
            s->ready[next] = fmax(s->ready[next], end);
            if (--s->n_waits[next] == 0 && !is_pass(&s->g->task[next]))
                s->todo[s->n_todo++] = next;
        }
    }
}

/* The next pass of a lane in one direction, -1 for none. */
static int next_pass(const struct scheduler *s, int lane, bool backward)
{
    const struct lane_state *l = &s->lane[lane];
    const int k = l->next[backward];

    if (k == (backward ? l->n_passes - l->n_forwards : l->n_forwards))
        return -1;
    const struct ap_instr at =
        ap_schedule_pass(s->z, k, lane, backward ? AP_PASS_BACKWARD : AP_PASS_FORWARD);
    return s->pass[backward][at.stage * s->z->microbatches + at.microbatch];
}

/* What a lane starts next, and when: INFINITY if that waits for another task, or there is
 * nothing. */
static int candidate(const struct scheduler *s, int lane, double *when)
{
    const struct lane_state *l = &s->lane[lane];
    const int limit = ap_schedule_warm_up(s->z, l->n_forwards, lane);
    int pass = l->next[0] - l->next[1] < limit ? next_pass(s, lane, false) : -1;

    if (pass < 0)
        pass = next_pass(s, lane, true);
    *when =
        pass >= 0 && s->n_waits[pass] == 0 ? fmax(l->free_at, s->ready[pass]) : INFINITY;
    return pass;
}

static void prepare(struct ap_arena *arena, struct scheduler *s)
{
    const struct ap_task_graph *g = s->g;
    const int m = s->z->microbatches, n_stages = s->z->n_devices * s->z->chunks;

    s->n_waits = AP_NEW_N(arena, g->n + 1, int);
    s->ready = AP_NEW_N(arena, g->n + 1, double);
    s->start = AP_NEW_N(arena, g->n + 2, int);
    s->todo = AP_NEW_N(arena, g->n + 1, int);
    s->lane = AP_NEW_N(arena, s->z->n_devices, struct lane_state);
    for (int k = 0; k < 2; k++) {
        s->pass[k] = AP_NEW_N(arena, (int64_t)n_stages * m + 1, int);
        memset(s->pass[k], -1, (size_t)n_stages * (size_t)m * sizeof(int));
    }
    for (int t = 0; t < g->n; t++) {
        const struct ap_task *v = &g->task[t];
        s->n_waits[t] = v->n_in;
        for (int i = 0; i < v->n_in; i++)
            s->start[v->in[i] + 1]++;
        if (v->stage >= 0)
            s->lane[v->stage % s->z->n_devices].n++;
        if (!is_pass(v))
            continue;
        s->pass[v->kind == AP_TASK_BACKWARD][v->stage * m + v->microbatch] = t;
        s->lane[v->stage % s->z->n_devices].n_passes++;
        s->lane[v->stage % s->z->n_devices].n_forwards += v->kind == AP_TASK_FORWARD;
    }
    for (int t = 0; t < g->n; t++)
        s->start[t + 1] += s->start[t];
    int *at = AP_NEW_N(arena, g->n + 1, int);
    memcpy(at, s->start, ((size_t)g->n + 1) * sizeof *at);
    s->user = AP_NEW_N(arena, s->start[g->n] + 1, int);
    for (int t = 0; t < g->n; t++)
        for (int i = 0; i < g->task[t].n_in; i++)
            s->user[at[g->task[t].in[i]]++] = t;
    for (int l = 0; l < s->z->n_devices; l++) {
        s->lane[l].order = AP_NEW_N(arena, s->lane[l].n + 1, int);
        s->lane[l].n = 0;
    }
}

int ap_task_schedule(struct ap_arena *arena, const struct ap_task_graph *graph,
                     const struct ap_schedule_size *size, int **order, int *n,
                     struct ap_err *err)
{
    struct scheduler s = {.g = graph, .z = size};

    prepare(arena, &s);
    end_task(&s, 0, 0);
    for (;;) {
        double least = INFINITY, when;
        int lane = -1;
        for (int l = 0; l < size->n_devices; l++) {
            candidate(&s, l, &when);
            if (when < least) {
                least = when;
                lane = l;
            }
        }
        if (lane < 0)
            break;
        struct lane_state *l = &s.lane[lane];
        const int t = candidate(&s, lane, &when);
        const bool back = graph->task[t].kind == AP_TASK_BACKWARD;
        l->next[back]++;
        l->order[l->n++] = t;
        l->free_at = when + (back ? 2 : 1);
        end_task(&s, t, l->free_at);
    }
    for (int l = 0; l < size->n_devices; l++) {
        order[l] = s.lane[l].order;
        n[l] = s.lane[l].n;
    }
    return s.n_done == graph->n ? 0
                                : ap_err_set(err, "tasks wait for each other in a cycle");
}

int ap_task_same_order(const struct ap_pipeline_program *program,
                       const struct ap_task_graph *graph, int *const *order, const int *n,
                       struct ap_err *err)
{
    for (int lane = 0; lane < program->n_lanes; lane++) {
        const struct ap_lane *l = &program->lane[lane];
        int at = 0;
        for (int i = 0; i < l->n; i++) {
            const struct ap_pipeline_instr *x = &l->instr[i];
            const struct ap_pipeline_cuts *c = &program->stage[x->stage].cuts;
            if (x->what != AP_PIPELINE_RUN || x->lo < c->each_lo || x->lo >= c->each_hi)
                continue;
            const bool back = x->lo >= c->backward_lo;
            for (;; at++) { /* a pass of several runs stays where it is */
                const struct ap_task *v =
                    at < n[lane] ? &graph->task[order[lane][at]] : NULL;
                if (!v)
                    return ap_err_set(
                        err,
                        "lane %d: instruction %d is in no place of the list "
                        "scheduler's order",
                        lane, i);
                if (v->stage == x->stage && v->microbatch == x->message &&
                    v->kind == (back ? AP_TASK_BACKWARD : AP_TASK_FORWARD))
                    break;
            }
        }
    }
    return 0;
}

/* ---- JSON ---- */

static void put_modules(const struct ap_task_graph *g, struct ap_buf *out)
{
    ap_buf_puts(out, ",\"modules\":[");
    for (int i = 0; i < g->n_modules; i++) {
        const struct ap_task_module *m = &g->module[i];
        ap_buf_printf(out, "%s{\"kind\":\"%s\",\"stage\":%d,\"groups\":[", i ? "," : "",
                      ap_task_names[m->kind], m->stage);
        for (int k = 0; k < m->n; k++)
            ap_buf_printf(out, "%s[%d,%d]", k ? "," : "", m->lo[k], m->hi[k]);
        ap_buf_puts(out, "]}");
    }
    ap_buf_putc(out, ']');
}

static void put_task(const struct ap_task_graph *g, const struct ap_task *t, bool passes,
                     struct ap_buf *out)
{
    (void)g;
    ap_buf_printf(out, "{\"kind\":\"%s\"", ap_task_names[t->kind]);
    if (passes && is_pass(t))
        ap_put_str(out, "pass", t->kind == AP_TASK_BACKWARD ? "backward" : "forward");
    if (t->module >= 0)
        ap_put_int(out, "module", t->module);
    if (t->stage >= 0)
        ap_put_int(out, "stage", t->stage);
    if (t->microbatch >= 0)
        ap_put_int(out, "microbatch", t->microbatch);
    if (t->transfer >= 0) {
        ap_put_int(out, "transfer", t->transfer);
        ap_put_int(out, "message", t->message);
    }
    ap_put_ids(out, "in", t->in, t->n_in);
    ap_buf_putc(out, '}');
}

void ap_task_graph_to_json(const struct ap_task_graph *graph,
                           const struct ap_schedule_size *size,
                           const struct ap_pipeline_program *program, int *const *order,
                           const int *n, struct ap_buf *out)
{
    ap_buf_printf(out, "{\"microbatches\":%d", size->microbatches);
    if (!program->alone)
        ap_put_str(out, "schedule", ap_schedule_names[size->schedule]);
    put_modules(graph, out);
    ap_buf_puts(out, ",\"tasks\":[");
    for (int t = 0; t < graph->n; t++) {
        ap_buf_puts(out, t ? ",\n" : "\n");
        put_task(graph, &graph->task[t], !program->alone, out);
    }
    ap_buf_puts(out, "],\n\"lanes\":[");
    for (int l = 0; l < size->n_devices; l++) {
        ap_buf_printf(out, "%s{\"order\":", l ? "," : "");
        ap_buf_putc(out, '[');
        for (int i = 0; i < n[l]; i++)
            ap_buf_printf(out, "%s%d", i ? "," : "", order[l][i]);
        ap_buf_putc(out, ']');
        if (!program->alone)
            ap_put_ids(out, "ranks", program->lane[l].ranks, program->lane[l].n_ranks);
        ap_buf_putc(out, '}');
    }
    ap_buf_puts(out, "]}\n");
}
