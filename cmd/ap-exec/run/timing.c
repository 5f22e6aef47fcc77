/*
 * Where a step's seconds go: calls are timed with the clock of the thread that runs them
 * (what other processes take does not count) and added up by kind of kernel, with their
 * FLOPs and bytes, so that a reader can hold them against what the machine can do.
 */
#include "run/session.h"

#include "backend.h"
#include "graph/blocks.h"

#include <string.h>
#include <time.h>

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double timing_thread_sec(void)
{
    return seconds(CLOCK_THREAD_CPUTIME_ID);
}

double timing_process_sec(void)
{
    return seconds(CLOCK_PROCESS_CPUTIME_ID);
}

void timing_note(struct exec *x, int c, double start, double blas_start)
{
    x->timing[c].sec += timing_thread_sec() - start;
    x->timing[c].blas_sec += x->backend->blas_sec() - blas_start;
    x->timing[c].runs++;
}

void timing_reset(struct exec *x)
{
    if (x->timing)
        memset(x->timing, 0, (size_t)x->n_calls * sizeof *x->timing);
}

static const char *kind_of(const struct exec *x, const struct call *call)
{
    if (call->n_nodes == 0)
        return "copy";
    return call->fused       ? "elementwise"
           : call->attention ? "attention"
                             : ap_ops[x->prog->local.nodes[call->nodes[0]].op].name;
}

/* What a call reads and writes; an operand that it reads twice counts once. */
static double bytes_of(const struct call *call)
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

int timing_rows(struct ap_arena *arena, const struct exec *x, int64_t steps,
                struct timing_row **out)
{
    struct timing_row *rows = AP_NEW_N(arena, AP_N_OPS + 3, struct timing_row);
    int n = 0;
    *out = rows;
    for (int i = 0; x->timing && steps > 0 && i < x->n_calls; i++) {
        const struct call *call = &x->calls[i];
        const double runs = (double)x->timing[i].runs / (double)steps;
        const char *kind = kind_of(x, call);
        int r = 0;
        while (r < n && strcmp(rows[r].kind, kind))
            r++;
        n += r == n;
        rows[r].kind = kind;
        rows[r].calls += runs;
        rows[r].sec += x->timing[i].sec / (double)steps;
        rows[r].blas_sec += x->timing[i].blas_sec / (double)steps;
        rows[r].bytes += runs * bytes_of(call);
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
