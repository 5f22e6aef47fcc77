/*
 * The executor of a pipeline program: every rank runs the instructions of its lane. To
 * the rest of the tool the run is a session of a program that has the whole graph's
 * parameters and results and no operators.
 */
#include "backend.h"
#include "run/job.h"
#include "run/memory.h"
#include "run/transfer.h"

#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

struct executor {
    struct ap_arena *arena;
    struct session *session;
    const struct ap_pipeline_program *pipeline;
    struct comm *job;
    const struct ap_lane *lane; /* of this rank */
    struct comm *comm;          /* [stage]: of its ranks */
    char *memory;               /* of the lane: buffers of all its stages, and slots */
    struct exec *exec;          /* [stage]: with the buffers of slot 0 */
    struct exec **slot;         /* [stage][slot from 1 on] */
    bool *mine;                 /* [stage]: it is of this rank's lane */
    bool **answers;             /* [stage][parameter]: see struct exec */
    struct transfers *transfers;
    int loss_stage, loss_node; /* where the loss is made; -1 */
    struct ap_program outline;
};

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

/* Nodes are the parameters, by number, and what the results are computed as. A result
 * that no stage makes is a parameter that does not change. */
static void make_outline(struct executor *p)
{
    const struct ap_pipeline_program *r = p->pipeline;
    struct ap_graph *g = &p->outline.local;
    g->n_params = g->n_nodes = count(r, false);
    g->n_results = count(r, true);
    int *params = AP_NEW_N(p->arena, g->n_params + 1, int);
    g->nodes = AP_NEW_N(p->arena, g->n_params + g->n_results + 1, struct ap_node);
    g->results = AP_NEW_N(p->arena, g->n_results + 1, struct ap_result);
    for (int k = 0; k < g->n_params; k++)
        params[k] = k;
    for (int k = 0; k < g->n_results; k++)
        g->results[k] = (struct ap_result){.role = AP_ROLE_AUX};
    for (int s = 0; s < r->n_stages; s++) {
        const struct ap_pipeline_stage *st = &r->stage[s];
        const struct ap_graph *own = &st->prog.local;
        for (int k = 0; k < own->n_params; k++)
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
    g->params = params;
}

/* Which stage's copy of a parameter a checkpoint has: of the first one that updates it,
 * else of the first one. */
static void find_answers(struct executor *p)
{
    const struct ap_pipeline_program *r = p->pipeline;
    const int n = p->outline.local.n_params;
    bool *taken = AP_NEW_N(p->arena, n + 1, bool);
    for (int s = 0; s < r->n_stages; s++)
        p->answers[s] = AP_NEW_N(p->arena, r->stage[s].prog.local.n_params + 1, bool);
    for (int pass = 0; pass < 2; pass++)
        for (int s = 0; s < r->n_stages; s++) {
            const struct ap_graph *g = &r->stage[s].prog.local;
            bool *updated = AP_NEW_N(p->arena, g->n_nodes + 1, bool);
            for (int k = 0; k < g->n_results; k++)
                if (g->results[k].alias >= 0)
                    updated[g->results[k].alias] = true;
            for (int k = 0; k < g->n_params; k++) {
                const int number = r->stage[s].param[k];
                if (number < 0 || taken[number] || (!pass && !updated[g->params[k]]))
                    continue;
                p->answers[s][k] = taken[number] = true;
            }
        }
}

static void find_loss_stage(struct executor *p, int loss)
{
    p->loss_stage = -1;
    for (int s = 0; s < p->pipeline->n_stages && loss >= 0; s++) {
        const struct ap_pipeline_stage *st = &p->pipeline->stage[s];
        for (int k = 0; k < st->prog.local.n_results; k++)
            if (st->result[k] == loss) {
                p->loss_stage = s;
                p->loss_node = st->prog.local.results[k].node;
            }
    }
}

/* ---- opening ---- */

static int n_slots(const struct ap_pipeline_stage *st)
{
    return st->n_slots > 0 ? st->n_slots : 1;
}

/* The stage's program with the buffers of one slot. */
static struct exec *at_slot(const struct executor *p, int stage, int slot)
{
    return slot > 0 ? &p->slot[stage][slot - 1] : &p->exec[stage];
}

/* The stage's program, prepared for each slot of the lane's memory. */
static int open_stage(struct executor *p, int s, const struct backend *backend,
                      int *exit_code, struct ap_err *err)
{
    const struct ap_pipeline_stage *st = &p->pipeline->stage[s];
    struct exec_place at = {
        .memory = p->memory, .bytes = p->lane->peak_bytes, .slot_bytes = st->slot_bytes};

    p->slot[s] = AP_NEW_N(p->arena, n_slots(st), struct exec);
    for (int k = 0; k < n_slots(st); k++) {
        struct exec *x = at_slot(p, s, k);
        if (st->n_slots > 0) {
            at.slot_at = st->slot[0];
            at.shift = st->slot[k] - st->slot[0];
        }
        at.first = k > 0 ? &p->exec[s] : NULL;
        if (exec_open_at(x, p->arena, &st->prog, backend, &p->comm[s], &at, err)) {
            *exit_code = x->exit_code;
            return -1;
        }
        x->number = st->param;
        x->answers = p->answers[s];
    }
    return 0;
}

static void open_stages(struct executor *p, const struct settings *set)
{
    const struct ap_pipeline_program *r = p->pipeline;
    struct ap_err err = {{0}};
    int rc = 0, exit_code = AP_BAD_INPUT;

    for (int s = 0; s < r->n_stages; s++) {
        const struct ap_lane *lane = &r->lane[r->stage[s].lane];
        p->mine[s] = p->job->split(p->job, lane->ranks, lane->n_ranks, &p->comm[s]);
        if (p->mine[s])
            p->lane = lane;
    }
    p->memory = set->backend->alloc(p->lane->peak_bytes);
    if (!p->memory)
        rc = ap_err_set(&err, "no memory for the programs' %lld bytes",
                        (long long)p->lane->peak_bytes);
    for (int s = 0; s < r->n_stages && !rc; s++)
        if (p->mine[s])
            rc = open_stage(p, s, set->backend, &exit_code, &err);
    job_agree(p->job, rc, exit_code, &err); /* who loads waits for the others */
    for (int s = 0; s < r->n_stages && !rc && !set->prepare_only; s++)
        if (p->mine[s]) {
            rc = data_load(&p->exec[s], &set->source, &err);
            exit_code = p->exec[s].exit_code;
        }
    job_agree(p->job, rc, exit_code, &err);
    if (set->source.resume && !set->prepare_only)
        rc = checkpoint_check(set->source.resume, p->job, &err);
    job_agree(p->job, rc, AP_BAD_INPUT, &err);
    p->transfers = transfers_open(p->arena, r, p->exec, p->job);
}

/* ---- running ---- */

/* Expects what the next receives take; next: the instruction to look at first. */
static int expect_ahead(struct executor *p, int next, int *n_ahead)
{
    for (; next < p->lane->n; next++) {
        const struct ap_pipeline_instr *x = &p->lane->instr[next];
        if (x->what != AP_PIPELINE_RECEIVE)
            continue;
        if (*n_ahead > TRANSFERS_AHEAD)
            break;
        transfers_expect(p->transfers, x->transfer, x->message);
        ++*n_ahead;
    }
    return next;
}

static void run_step(void *ctx)
{
    struct executor *p = ctx;
    int next = 0, n_ahead = 0;
    for (int i = 0; i < p->lane->n; i++) {
        const struct ap_pipeline_instr *x = &p->lane->instr[i];
        const struct ap_transfer *t = &p->pipeline->transfer[x->transfer];
        const double clock = trace_clock(p->session->trace);
        switch (x->what) {
        case AP_PIPELINE_RUN:
            next = expect_ahead(p, next, &n_ahead);
            exec_run(at_slot(p, x->stage, x->slot), x->lo, x->hi, x->message);
            break;
        case AP_PIPELINE_SEND:
            transfers_send(p->transfers, at_slot(p, t->from, x->slot), x->transfer,
                           x->message);
            break;
        case AP_PIPELINE_RECEIVE:
            next = expect_ahead(p, next, &n_ahead);
            n_ahead--;
            transfers_receive(p->transfers, at_slot(p, t->to, x->slot), x->transfer,
                              x->message);
            break;
        }
        trace_instr(p->session->trace, i, clock);
    }
    p->job->settle(p->job);
}

/* Bytes of the first rank of a stage's lane, on rank 0. */
static void to_root(struct executor *p, int stage, void *buf, int64_t bytes)
{
    const int from = p->pipeline->lane[p->pipeline->stage[stage].lane].ranks[0];
    if (p->job->rank == from || p->job->rank == 0)
        p->job->to_root(p->job, from, buf, bytes);
}

static double read_loss(void *ctx)
{
    struct executor *p = ctx;
    double loss = 0;
    if (p->mine[p->loss_stage])
        loss = session_scalar(&p->exec[p->loss_stage], p->loss_node);
    to_root(p, p->loss_stage, &loss, sizeof loss);
    return loss;
}

static void advance(void *ctx)
{
    struct executor *p = ctx;
    for (int s = 0; s < p->pipeline->n_stages; s++)
        if (p->mine[s])
            exec_advance(&p->exec[s]);
}

static void put_params(void *ctx, struct checkpoint *c)
{
    struct executor *p = ctx;
    for (int s = 0; s < p->pipeline->n_stages; s++)
        for (int k = 0; p->mine[s] && k < p->exec[s].prog->local.n_params; k++)
            checkpoint_put(c, &p->exec[s], k);
}

static int feed(void *ctx, const char *dir, int64_t batch, int *n_read,
                struct ap_err *err)
{
    struct executor *p = ctx;
    int rc = 0;
    for (int s = 0; s < p->pipeline->n_stages; s++)
        if (p->mine[s] && data_batch(&p->exec[s], dir, batch, n_read, err))
            rc = -1; /* ranks of other stages go on to read theirs */
    return rc;
}

/* ---- what the last step leaves behind ---- */

/* Results that become no parameter are whole on every rank of their stage. */
static void keep_results(void *ctx)
{
    struct executor *p = ctx;
    struct session *s = p->session;
    const struct ap_pipeline_program *r = p->pipeline;
    s->results = AP_NEW_N(p->arena, p->outline.local.n_results + 1, void *);
    for (int i = 0; i < r->n_stages; i++) {
        const struct ap_graph *g = &r->stage[i].prog.local;
        for (int k = 0; k < g->n_results; k++) {
            if (r->stage[i].result[k] < 0 || g->results[k].alias >= 0)
                continue;
            const int64_t bytes = ap_shape_bytes(&g->nodes[g->results[k].node].shape);
            char *host = ap_xrealloc(NULL, (size_t)bytes + 1);
            if (p->mine[i])
                p->exec[i].backend->read(host, p->exec[i].value[g->results[k].node],
                                         bytes);
            to_root(p, i, host, bytes);
            if (p->job->rank == 0)
                s->results[r->stage[i].result[k]] = host;
            else
                free(host);
        }
    }
}

static void keep_params(struct executor *p, struct session *s)
{
    const struct ap_pipeline_program *r = p->pipeline;
    s->params = AP_NEW_N(p->arena, p->outline.local.n_params + 1, void *);
    for (int i = 0; i < r->n_stages; i++) {
        const struct ap_graph *g = &r->stage[i].prog.local;
        for (int k = 0; k < g->n_results; k++) {
            const int node = g->results[k].alias;
            if (node < 0)
                continue;
            const struct placement place = exec_placement(&g->nodes[node]);
            const int64_t bytes = ap_shape_bytes(&place.global);
            void *whole = NULL;
            if (p->mine[i])
                whole = data_collect(&p->exec[i], g->nodes[node].param);
            if (!whole && p->job->rank == 0)
                whole = ap_xrealloc(NULL, (size_t)bytes + 1);
            to_root(p, i, whole, bytes);
            if (p->job->rank == 0)
                s->params[r->stage[i].param[g->nodes[node].param]] = whole;
            else
                free(whole);
        }
    }
}

/* Bytes of memory of the rank that needs most. */
static int64_t most_bytes(const struct executor *p, bool scratch)
{
    int64_t bytes = scratch ? 0 : p->lane->peak_bytes;
    for (int s = 0; scratch && s < p->pipeline->n_stages; s++)
        if (p->mine[s])
            bytes += p->exec[s].scratch_bytes + p->exec[s].temps_bytes;
    return p->job->max(p->job, bytes);
}

/* Adds the runs of a stage's other slots to those of its first. */
static void sum_runs(struct executor *p, int s)
{
    for (int k = 1; k < n_slots(&p->pipeline->stage[s]); k++)
        for (int i = 0; i < p->exec[s].n_calls; i++)
            p->exec[s].calls[i].n_runs += at_slot(p, s, k)->calls[i].n_runs;
}

/* What ran, on rank 0: collectives by the first rank of each stage, bytes by all. */
static void gather_report(struct executor *p, struct session *s)
{
    const struct ap_pipeline_program *r = p->pipeline;
    s->n_stages = r->n_stages;
    s->stage = AP_NEW_N(p->arena, r->n_stages, struct stage_report);
    for (int i = 0; i < r->n_stages; i++) {
        struct stage_report *report = &s->stage[i];
        int64_t n = 0;
        if (p->mine[i])
            sum_runs(p, i);
        if (p->mine[i])
            n = session_collectives(p->arena, &p->exec[i], s->steps, &report->coll);
        to_root(p, i, &n, sizeof n);
        if (!p->mine[i])
            report->coll = AP_NEW_N(p->arena, n + 1, struct ap_coll_count);
        to_root(p, i, report->coll, n * (int64_t)sizeof *report->coll);
        report->n = (int)n;
        report->mesh = &r->stage[i].prog.mesh;
    }
    const int n = p->job->size;
    const int64_t steps = s->steps > 0 ? s->steps : 1;
    s->link_bytes = AP_NEW_N(p->arena, n * n, int64_t);
    for (int k = 0; k < n; k++) {
        int64_t *row = s->link_bytes + k * n;
        if (p->job->rank == k)
            memcpy(row, transfers_bytes(p->transfers), (size_t)n * sizeof *row);
        if (p->job->rank == k || p->job->rank == 0)
            p->job->to_root(p->job, k, row, n * (int64_t)sizeof *row);
        for (int i = 0; i < n; i++)
            s->sent_bytes += row[i] /= steps;
    }
}

struct executor *executor_open(struct session *s, struct ap_arena *arena,
                               const struct ap_pipeline_program *pipeline,
                               const struct settings *set, struct comm *job, bool keep,
                               const struct session_hook *hook)
{
    struct executor *p = AP_NEW(arena, struct executor);
    *p = (struct executor){.arena = arena,
                           .session = s,
                           .pipeline = pipeline,
                           .job = job,
                           .comm = AP_NEW_N(arena, pipeline->n_stages, struct comm),
                           .exec = AP_NEW_N(arena, pipeline->n_stages, struct exec),
                           .slot = AP_NEW_N(arena, pipeline->n_stages, struct exec *),
                           .mine = AP_NEW_N(arena, pipeline->n_stages, bool),
                           .answers = AP_NEW_N(arena, pipeline->n_stages, bool *)};
    const int64_t start = set->n_programs > 1 ? -1 : memory_start();
    struct ap_err err = {{0}};
    make_outline(p);
    find_answers(p);
    *s = (struct session){
        .steps = set->steps,
        .each = pipeline->each ? pipeline->microbatches : 0,
        .loss = session_loss(&p->outline.local),
        .of = {run_step, read_loss, keep_results, advance, put_params, feed, p},
        .hook = hook,
        .keep = keep,
        .start_bytes = start,
        .exec = {
            .arena = arena, .prog = &p->outline, .backend = set->backend, .comm = job}};
    const int rc = session_prepare(s, arena, &p->outline.local, set, true, &err);
    job_agree(job, rc, AP_BAD_INPUT, &err);
    find_loss_stage(p, s->loss);
    open_stages(p, set);
    p->outline.peak_bytes = most_bytes(p, false);
    s->exec.scratch_bytes = most_bytes(p, true);
    s->trace = session_trace(arena, set, job, pipeline, (int)(p->lane - pipeline->lane));
    for (int i = 0; i < pipeline->n_stages; i++)
        for (int k = 0; p->mine[i] && k < n_slots(&pipeline->stage[i]); k++)
            at_slot(p, i, k)->trace = s->trace;
    if (set->prepare_only || !set->profile_path)
        return p;
    s->profile = profile_open(arena, job, set->steps);
    for (int i = 0; i < pipeline->n_stages; i++)
        for (int k = 0; p->mine[i] && k < n_slots(&pipeline->stage[i]); k++)
            profile_watch(s->profile, at_slot(p, i, k), i);
    return p;
}

void executor_end(struct executor *p, struct session *s)
{
    struct comm *job = p->job;
    s->memory.buffers = p->lane->peak_bytes;
    s->memory.working = transfers_memory(p->transfers) + job->memory(job);
    for (int i = 0; i < p->pipeline->n_stages; i++)
        if (p->mine[i])
            s->memory.working += exec_working_bytes(&p->exec[i]) +
                                 (job->size > 1 ? p->comm[i].memory(&p->comm[i]) : 0);
    session_memory(p->arena, s);
    if (s->keep)
        keep_params(p, s);
    gather_report(p, s);
}

void executor_close(struct executor *p, struct session *s)
{
    const struct backend *backend = s->exec.backend;

    session_close(s);
    transfers_close(p->transfers);
    for (int k = 0; k < p->pipeline->n_stages; k++)
        if (p->mine[k]) {
            for (int i = n_slots(&p->pipeline->stage[k]) - 1; i >= 0; i--)
                exec_close(at_slot(p, k, i));
            if (p->job->size > 1)
                p->comm[k].close(&p->comm[k]);
        }
    backend->release(p->memory);
}
