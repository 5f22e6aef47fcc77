/*
 * The times of calls in the timed steps. A call's seconds are the processor's, of the
 * thread that runs it, so that the time of other processes does not count; they are the
 * clock's if the call waits for other ranks or for a device, or if other threads of the
 * process work on it. --report adds them up by kind of kernel, with their FLOPs and
 * bytes, so that a reader can compare them with the peak of the machine; --profile
 * (profile/) takes each call's median.
 */
#include "step/backend.h"

#include "base/array.h"
#include "tool/tool.h"
#include "graph/blocks.h"
#include "layout/nest.h"

#include <string.h>
#include <time.h>

/* Other threads of the process worked on a call if it took so many times this one's
 * processor time (the watchdog's thread takes some). */
#define OTHER_THREADS 1.2

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double timing_process_sec(void)
{
    return seconds(CLOCK_PROCESS_CPUTIME_ID);
}

struct exec_timing *timing_open(struct ap_arena *arena, const struct exec *x, int cap,
                                bool alone)
{
    struct exec_timing *t = AP_NEW(arena, struct exec_timing);
    *t = (struct exec_timing){.alone = alone,
                              .clock = x->backend->clock,
                              .leads = true,
                              .n_calls = x->n_calls,
                              .cap = cap,
                              .sec =
                                  AP_NEW_N(arena, (int64_t)cap * x->n_calls + 1, double),
                              .blas_sec = AP_NEW_N(arena, x->n_calls + 1, double),
                              .runs = AP_NEW_N(arena, x->n_calls + 1, int64_t)};
    return t;
}

struct timing_start timing_begin(const struct exec *x)
{
    return (struct timing_start){
        .moment = x->timing->clock ? x->timing->clock->moment() : 0,
        .wall = ap_now_sec(),
        .process = timing_process_sec(),
        .thread = seconds(CLOCK_THREAD_CPUTIME_ID),
        .blas = x->backend->blas_sec ? x->backend->blas_sec() : 0};
}

/* Whether a call waits for other ranks. */
static bool is_collective(const struct exec *x, const struct call *call)
{
    return call->n_nodes > 0 &&
           ap_ops[x->prog->local.nodes[call->nodes[0]].op].class == AP_CLASS_COLLECTIVE;
}

void timing_note(struct exec *x, int i, const struct timing_start *start)
{
    struct exec_timing *t = x->timing;
    const int row = t->cap > 1 ? t->n_steps : 0;
    t->runs[i]++;
    if (t->clock) {
        AP_ROOM_IN(x->arena, t->noted, t->n_noted, t->cap_noted);
        t->noted[t->n_noted++] =
            (struct exec_noted){i, start->moment, t->clock->moment()};
        return;
    }
    double sec = seconds(CLOCK_THREAD_CPUTIME_ID) - start->thread;
    const double process = timing_process_sec() - start->process;
    if (is_collective(x, &x->calls[i]) || process > OTHER_THREADS * sec)
        sec = ap_now_sec() - start->wall;
    t->sec[(ptrdiff_t)row * t->n_calls + i] += sec;
    if (x->backend->blas_sec)
        t->blas_sec[i] += x->backend->blas_sec() - start->blas;
}

void timing_step_begin(struct exec_timing *t, bool on)
{
    if (!t)
        return;
    t->on = on;
    if (on && t->clock && t->leads)
        t->clock->begin();
}

void timing_step_end(struct exec_timing *t)
{
    if (!t)
        return;
    for (int k = 0; k < t->n_noted; k++)
        t->sec[(ptrdiff_t)(t->cap > 1 ? t->n_steps : 0) * t->n_calls +
               t->noted[k].call] += t->clock->between(t->noted[k].from, t->noted[k].to);
    t->n_noted = 0;
    t->n_steps += t->on;
    t->on = false;
}

static const char *kind_of(const struct exec *x, const struct call *call)
{
    if (call->n_nodes == 0)
        return "copy";
    return call->fused       ? "elementwise"
           : call->attention ? "attention"
                             : ap_ops[x->prog->local.nodes[call->nodes[0]].op].name;
}

/* Of a copy between values. */
static double access_bytes(const struct call *call)
{
    double sum = 0;
    for (int i = 0; i < call->n_access; i++) {
        const struct exec_access *a = &call->access[i];
        bool again = false;
        for (int k = 0; k < i; k++)
            again |= call->access[k].p == a->p && call->access[k].write == a->write;
        sum += again ? 0 : (double)a->bytes;
    }
    return sum;
}

static bool is_inside(const struct call *call, int node)
{
    for (int m = 0; m < call->n_nodes; m++)
        if (call->nodes[m] == node)
            return true;
    return false;
}

double timing_bytes(const struct exec *x, const struct call *call, enum ap_dtype *dtype)
{
    const struct ap_graph *g = &x->prog->local;
    if (call->n_nodes == 0)
        return access_bytes(call);
    const enum ap_op first = g->nodes[call->nodes[0]].op;
    double sum = 0;
    int64_t most = -1;
    for (int m = 0; m < call->n_nodes; m++) {
        const struct ap_node *v = &g->nodes[call->nodes[m]];
        for (int k = 0; k < v->n_in; k++) {
            bool again = is_inside(call, v->in[k]);
            for (int l = 0; l < m && !again; l++)
                for (int j = 0; j < g->nodes[call->nodes[l]].n_in; j++)
                    again |= g->nodes[call->nodes[l]].in[j] == v->in[k];
            for (int j = 0; j < k && call->fused; j++)
                again |= v->in[j] == v->in[k];
            if (!again)
                sum += (call->fused ? 1 : ap_op_reads(v->op, k)) *
                       (double)ap_shape_bytes(&g->nodes[v->in[k]].shape);
        }
        if (!x->value[call->nodes[m]] && !x->element[call->nodes[m]])
            continue;
        const int64_t bytes = ap_shape_bytes(&v->shape);
        sum += (call->fused ? 1 : ap_op_writes(first)) * (double)bytes;
        if (bytes > most) {
            most = bytes;
            *dtype = ap_value_shape(v)->dtype;
        }
    }
    return sum;
}

int timing_rows(struct ap_arena *arena, const struct exec *x, struct timing_row **out)
{
    const struct exec_timing *t = x ? x->timing : NULL;
    const int64_t steps = t ? t->n_steps : 0;
    struct timing_row *rows = AP_NEW_N(arena, AP_N_OPS + 2, struct timing_row);
    int n = 0;
    *out = rows;
    for (int i = 0; steps > 0 && i < x->n_calls; i++) {
        const struct call *call = &x->calls[i];
        const double runs = (double)t->runs[i] / (double)steps;
        const char *kind = kind_of(x, call);
        enum ap_dtype dtype;
        int r = 0;
        while (r < n && strcmp(rows[r].kind, kind))
            r++;
        n += r == n;
        rows[r].kind = kind;
        rows[r].calls += runs;
        for (int64_t step = 0; step < (t->cap > 1 ? steps : 1); step++)
            rows[r].sec += t->sec[step * t->n_calls + i] / (double)steps;
        rows[r].blas_sec += t->blas_sec[i] / (double)steps;
        rows[r].bytes += runs * timing_bytes(x, call, &dtype);
        for (int m = 0; m < call->n_nodes; m++)
            rows[r].flops += runs * ap_node_heavy_flops(&x->prog->local, call->nodes[m]);
    }
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && rows[k - 1].sec < rows[k].sec; k--) {
            const struct timing_row swap = rows[k];
            rows[k] = rows[k - 1];
            rows[k - 1] = swap;
        }
    return n;
}
