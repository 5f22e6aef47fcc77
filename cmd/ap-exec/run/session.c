/* A run of a program: the whole graph's parameters and results, and the loop over
 * training steps. executor.c runs a step. */
#include "step/backend.h"
#include "run/job.h"
#include "run/memory.h"
#include "comm/watch.h"

#include "base/array.h"
#include "tool/tool.h"

#include <stdlib.h>

int session_loss(const struct ap_graph *g)
{
    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].role == AP_ROLE_LOSS &&
            ap_shape_elems(&g->nodes[g->results[r].node].shape) == 1)
            return r;
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_shape *s = &g->nodes[g->results[r].node].shape;
        if (g->results[r].alias < 0 && ap_dtype_is_float(s->dtype) &&
            ap_shape_elems(s) == 1)
            return r;
    }
    return -1;
}

/* ---- the whole graph's parameters and results ---- */

/* 1 + the largest number of a parameter (or result) of the whole graph. */
static int count(const struct ap_pipeline_program *r, bool results)
{
    int n = 0;
    for (int s = 0; s < r->n_stages; s++) {
        const struct ap_pipeline_stage *st = &r->stage[s];
        const int *number = results ? st->result : st->param;
        const int m = results ? st->prog.local.n_results : st->prog.local.n_params;
        for (int k = 0; k < m; k++)
            n = number[k] >= n ? number[k] + 1 : n;
    }
    return n;
}

/* A stage's share. */
static void outline_stage(const struct ap_pipeline_stage *st, struct ap_graph *g)
{
    const struct ap_graph *own = &st->prog.local;
    for (int k = own->n_params - 1; k >= 0; k--)
        if (st->param[k] >= 0)
            g->nodes[st->param[k]] = own->nodes[own->params[k]];
    for (int k = 0; k < own->n_results; k++) {
        if (st->result[k] < 0)
            continue;
        const struct ap_result *res = &own->results[k];
        const int alias = res->alias < 0 ? -1 : own->nodes[res->alias].param;
        g->nodes[g->n_nodes] = own->nodes[res->node];
        g->results[st->result[k]] = (struct ap_result){
            g->n_nodes++, res->role, alias < 0 ? -1 : st->param[alias], res->part};
    }
}

/* Nodes are the parameters, by number, and what the results are computed as. A result
 * that no stage makes is a parameter that does not change. */
static struct ap_graph outline(struct ap_arena *arena,
                               const struct ap_pipeline_program *r)
{
    struct ap_graph g = {.n_params = count(r, false), .n_results = count(r, true)};
    int *params = AP_NEW_N(arena, g.n_params + 1, int);
    g.n_nodes = g.n_params;
    g.nodes = AP_NEW_N(arena, g.n_params + g.n_results + 1, struct ap_node);
    g.results = AP_NEW_N(arena, g.n_results + 1, struct ap_result);
    for (int k = 0; k < g.n_params; k++)
        params[k] = k;
    for (int k = 0; k < g.n_results; k++)
        g.results[k] = (struct ap_result){.role = AP_ROLE_AUX};
    for (int s = 0; s < r->n_stages; s++)
        outline_stage(&r->stage[s], &g);
    g.params = params;
    return g;
}

/* ---- steps ---- */

/* The inputs of step i of this run, of batches that come round. */
static void feed(struct session *s, int64_t i)
{
    const int64_t batch = i % s->n_batches + 1;
    struct ap_err err = {{0}};
    int n_read = 0;
    int rc = executor_feed(s->executor, s->batches, batch, &n_read, &err);
    job_agree(s->comm, rc, AP_BAD_INPUT, &err);
    if (s->comm->max(s->comm, n_read) == 0)
        rc = ap_err_set(&err, "%s/%lld: has no K.npy of an input", s->batches,
                        (long long)batch);
    job_agree(s->comm, rc, AP_BAD_INPUT, &err);
}

/* Step i of this run. */
static void take_step(struct session *s, int64_t i)
{
    struct comm *comm = s->comm;
    AP_ROOM_IN(s->arena, s->losses, i, s->room[0]);
    AP_ROOM_IN(s->arena, s->step_sec, i, s->room[1]);
    AP_ROOM_IN(s->arena, s->cpu_sec, i, s->room[2]);
    s->losses[i] = 0;
    if (s->batches)
        feed(s, i);
    comm->max(comm, 0); /* ranks start together */
    trace_begin(s->trace, i + 1 == s->steps);
    const double start = ap_now_sec(), cpu = timing_process_sec();
    watch_step(i + 1);
    if (s->profile)
        profile_begin(s->profile, i);
    else /* the first step touches memory for the first time */
        timing_step_begin(s->timing, i > 0 || s->steps == 1);
    executor_step(s->executor);
    if (s->loss >= 0)
        s->losses[i] = executor_loss(s->executor);
    if (s->keep && i + 1 == s->steps)
        s->results = executor_results(s->executor);
    executor_advance(s->executor);
    if (s->backend->sync)
        s->backend->sync();
    s->cpu_sec[i] = timing_process_sec() - cpu;
    s->step_sec[i] = comm->max_sec(comm, ap_now_sec() - start);
    s->sec += s->step_sec[i];
    if (s->profile)
        profile_end(s->profile, i, s->step_sec[i]);
    else
        timing_step_end(s->timing);
    if (s->hook && comm->rank == 0)
        s->hook->say(s->hook->ctx, i + 1, s->loss >= 0, s->losses[i]);
}

void session_steps(struct session *const *s, int n)
{
    struct ap_err err = {{0}};
    for (int k = 0; k < n; k++) {
        struct session *x = s[k];
        struct comm *comm = x->comm;
        if (x->batches)
            x->n_batches = data_batches(comm, x->batches, &err);
        job_agree(comm, x->batches && x->n_batches == 0 ? -1 : 0, AP_BAD_INPUT, &err);
    }
    for (int64_t i = 0; i < s[0]->steps; i++)
        for (int k = 0; k < n; k++)
            take_step(s[k], i);
    for (int k = 0; k < n; k++)
        s[k]->sec_per_step = s[k]->steps ? s[k]->sec / (double)s[k]->steps : 0;
}

/* ---- opening and closing ---- */

void session_open(struct session *s, struct ap_arena *arena,
                  const struct ap_pipeline_program *program, const struct settings *set,
                  struct comm *comm, const struct session_opts *opts)
{
    *s = (struct session){.arena = arena,
                          .backend = set->backend,
                          .comm = comm,
                          .program = program,
                          .outline = outline(arena, program),
                          .batches = set->source.batches,
                          .steps = set->steps,
                          .hook = opts->hook,
                          .keep = opts->keep,
                          .start_bytes = set->n_programs > 1 ? -1 : memory_start()};
    s->loss = session_loss(&s->outline);
    s->executor = executor_open(s, set, opts);
    if (opts->keep_start)
        s->start = executor_params(s->executor);
}

/* Fills s->rank_memory. */
static void gather_memory(struct session *s)
{
    struct comm *c = s->comm;
    s->memory.working = executor_working_bytes(s->executor);
    s->memory.measured = memory_grown(s->start_bytes);
    s->rank_memory =
        c->rank == 0 ? AP_NEW_N(s->arena, c->size, struct rank_memory) : NULL;
    for (int k = 0; k < c->size; k++) {
        struct rank_memory m = s->memory;
        if (c->rank == k || c->rank == 0)
            c->to_root(c, k, &m, sizeof m);
        if (c->rank == 0)
            s->rank_memory[k] = m;
    }
}

void session_end(struct session *s)
{
    gather_memory(s);
    if (s->keep)
        s->params = executor_params(s->executor);
    executor_report(s->executor);
}

void session_run(struct session *s, struct ap_arena *arena,
                 const struct ap_pipeline_program *program, const struct settings *set,
                 struct comm *comm, const struct session_opts *opts)
{
    session_open(s, arena, program, set, comm, opts);
    session_steps(&s, 1);
    session_end(s);
}

void session_close(struct session *s)
{
    for (int k = 0; k < s->outline.n_params; k++) {
        free(s->params ? s->params[k] : NULL);
        free(s->start ? s->start[k] : NULL);
    }
    for (int r = 0; s->results && r < s->outline.n_results; r++)
        free(s->results[r]);
    executor_close(s->executor);
}
