/*
 * The instructions of this rank's lane: runs of its stages' groups, sends and receives. A
 * program of one stage (the section "program") is a lane of all ranks without messages.
 */
#include "step/backend.h"
#include "run/job.h"
#include "step/noise.h"
#include "run/transfer.h"

#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

struct executor {
    struct ap_arena *arena;
    struct session *session;
    const struct ap_pipeline_program *program;
    struct comm *job;
    const struct ap_lane *lane; /* of this rank */
    struct comm **comm;         /* [stage]: of its ranks; the job's, where all are */
    char *memory;               /* of the lane: buffers of all its stages, and slots */
    struct exec *exec;          /* [stage]: with the buffers of slot 0 */
    struct exec **slot;         /* [stage][slot from 1 on] */
    bool *mine;                 /* [stage]: it is of this rank's lane */
    struct transfers *transfers;
    int loss_stage, loss_node; /* where the loss is made; -1 */
};

static void find_loss_stage(struct executor *p, int loss)
{
    p->loss_stage = -1;
    for (int s = 0; s < p->program->n_stages && loss >= 0; s++) {
        const struct ap_pipeline_stage *st = &p->program->stage[s];
        for (int k = 0; k < st->prog.local.n_results; k++)
            if (st->result[k] == loss) {
                p->loss_stage = s;
                p->loss_node = st->prog.local.results[k].node;
            }
    }
}

/* ---- opening ---- */

/* The stage's program with the buffers of one slot. */
static struct exec *at_slot(const struct executor *p, int stage, int slot)
{
    return slot > 0 ? &p->slot[stage][slot - 1] : &p->exec[stage];
}

/* Whether the lane is the whole job, in its order. */
static bool is_job(const struct executor *p, const struct ap_lane *lane)
{
    bool same = lane->n_ranks == p->job->size;
    for (int i = 0; same && i < lane->n_ranks; i++)
        same = lane->ranks[i] == i;
    return same && p->program->n_lanes == 1;
}

/* Finds this rank's lane, and the communicators of the stages. */
static void join_stages(struct executor *p)
{
    for (int s = 0; s < p->program->n_stages; s++) {
        const struct ap_lane *lane = &p->program->lane[p->program->stage[s].lane];
        p->comm[s] = is_job(p, lane) ? p->job : AP_NEW(p->arena, struct comm);
        p->mine[s] = p->comm[s] == p->job ||
                     p->job->split(p->job, lane->ranks, lane->n_ranks, p->comm[s]);
        if (p->mine[s])
            p->lane = lane;
    }
}

/* Where host and device are one, what is on the host is behind the rest. */
static int64_t lane_bytes(const struct ap_lane *lane)
{
    return lane->peak_bytes + lane->host_bytes;
}

/* The stage's program, prepared for each slot of the lane's memory. */
static int open_stage(struct executor *p, int s, const struct backend *backend,
                      int *exit_code, struct ap_err *err)
{
    const struct ap_pipeline_stage *st = &p->program->stage[s];
    struct exec_place at = {
        .memory = p->memory, .bytes = lane_bytes(p->lane), .shared = !p->program->alone};

    p->slot[s] = AP_NEW_N(p->arena, ap_pipeline_n_slots(st), struct exec);
    for (int k = 0; k < ap_pipeline_n_slots(st); k++) {
        struct exec *x = at_slot(p, s, k);
        at.slot = ap_pipeline_slot(st, k);
        at.first = k > 0 ? &p->exec[s] : NULL;
        if (exec_open_at(x, p->arena, &st->prog, backend, p->comm[s], &at, err)) {
            *exit_code = x->exit_code;
            return -1;
        }
        x->number = st->param;
    }
    return 0;
}

static void open_stages(struct executor *p, const struct settings *set)
{
    const struct ap_pipeline_program *r = p->program;
    struct ap_err err = {{0}};
    int rc = 0, exit_code = AP_BAD_INPUT;

    join_stages(p);
    if (p->lane->host_bytes > 0 && !set->backend->on_host) {
        exit_code = AP_USAGE;
        rc = ap_err_set(&err,
                        "the plan keeps values on the host: --backend %s has no "
                        "memory there, cpu has",
                        set->backend->name);
    }
    p->memory = rc ? NULL : set->backend->alloc(lane_bytes(p->lane));
    if (!p->memory && !rc)
        rc = ap_err_set(&err, "no memory for the program's %lld bytes",
                        (long long)lane_bytes(p->lane));
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

/* Instruction i of the lane. */
static void run_instr(struct executor *p, int i, int *next, int *n_ahead)
{
    const struct ap_pipeline_instr *x = &p->lane->instr[i];
    const struct ap_transfer *t = &p->program->transfer[x->transfer];
    switch (x->what) {
    case AP_PIPELINE_RUN:
        *next = expect_ahead(p, *next, n_ahead);
        exec_run(at_slot(p, x->stage, x->slot), x->lo, x->hi, x->message);
        break;
    case AP_PIPELINE_SEND:
        transfers_send(p->transfers, at_slot(p, t->from, x->slot), x->transfer,
                       x->message);
        break;
    case AP_PIPELINE_RECEIVE:
        *next = expect_ahead(p, *next, n_ahead);
        --*n_ahead;
        transfers_receive(p->transfers, at_slot(p, t->to, x->slot), x->transfer,
                          x->message);
        break;
    }
}

void executor_step(struct executor *p)
{
    struct exec *alone = p->program->alone ? &p->exec[0] : NULL;
    int next = 0, n_ahead = 0;
    if (alone && exec_replays(alone))
        return;
    for (int i = 0; i < p->lane->n; i++) {
        const double clock = trace_clock(p->session->trace);
        run_instr(p, i, &next, &n_ahead);
        trace_instr(p->session->trace, i, clock);
    }
    if (alone)
        exec_recorded(alone);
    p->job->settle(p->job);
}

/* Bytes of the first rank of a stage's lane, on rank 0. */
static void to_root(struct executor *p, int stage, void *buf, int64_t bytes)
{
    const int from = p->program->lane[p->program->stage[stage].lane].ranks[0];
    if (p->job->rank == from || p->job->rank == 0)
        p->job->to_root(p->job, from, buf, bytes);
}

static double read_scalar(const struct exec *x, int node)
{
    const enum ap_dtype dtype = x->prog->local.nodes[node].shape.dtype;
    char host[16];
    x->backend->read(host, x->value[node], ap_dtype_size(dtype));
    return data_number(host, dtype, 0);
}

double executor_loss(struct executor *p)
{
    double loss = 0;
    if (p->mine[p->loss_stage])
        loss = read_scalar(&p->exec[p->loss_stage], p->loss_node);
    to_root(p, p->loss_stage, &loss, sizeof loss);
    return loss;
}

void executor_advance(struct executor *p)
{
    for (int s = 0; s < p->program->n_stages; s++)
        if (p->mine[s])
            exec_advance(&p->exec[s]);
}

int executor_feed(struct executor *p, const char *dir, int64_t batch, int *n_read,
                  struct ap_err *err)
{
    int rc = 0;
    for (int s = 0; s < p->program->n_stages; s++)
        if (p->mine[s] && data_batch(&p->exec[s], dir, batch, n_read, err))
            rc = -1; /* ranks of other stages go on to read theirs */
    return rc;
}

/* ---- the results of the last step ---- */

/* Results that become no parameter are whole on every rank of their stage. */
void **executor_results(struct executor *p)
{
    const struct ap_pipeline_program *r = p->program;
    void **out = AP_NEW_N(p->arena, p->session->outline.n_results + 1, void *);
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
                out[r->stage[i].result[k]] = host;
            else
                free(host);
        }
    }
    return out;
}

void **executor_params(struct executor *p)
{
    const struct ap_pipeline_program *r = p->program;
    const int n = p->session->outline.n_params;
    void **out = AP_NEW_N(p->arena, n + 1, void *);
    bool *done = AP_NEW_N(p->arena, n + 1, bool);
    for (int i = 0; i < r->n_stages; i++) {
        const struct ap_graph *g = &r->stage[i].prog.local;
        for (int k = 0; k < g->n_results; k++) {
            const int node = g->results[k].alias;
            const int number = node < 0 ? -1 : r->stage[i].param[g->nodes[node].param];
            if (number < 0 || done[number])
                continue;
            done[number] = true;
            const struct placement place = exec_placement(&g->nodes[node]);
            const int64_t bytes = ap_shape_bytes(&place.global);
            void *whole = NULL;
            if (p->mine[i])
                whole = data_collect(&p->exec[i], g->nodes[node].param);
            if (!whole && p->job->rank == 0)
                whole = ap_xrealloc(NULL, (size_t)bytes + 1);
            to_root(p, i, whole, bytes);
            if (p->job->rank == 0)
                out[number] = whole;
            else
                free(whole);
        }
    }
    return out;
}

/* Bytes of memory of the rank that needs most. */
static int64_t most_bytes(const struct executor *p, bool scratch)
{
    int64_t bytes = scratch ? 0 : p->lane->peak_bytes;
    for (int s = 0; scratch && s < p->program->n_stages; s++)
        if (p->mine[s])
            bytes += p->exec[s].scratch_bytes + p->exec[s].temps_bytes;
    return p->job->max(p->job, bytes);
}

/* Adds the runs of a stage's other slots to those of its first. */
static void sum_runs(struct executor *p, int s)
{
    for (int k = 1; k < ap_pipeline_n_slots(&p->program->stage[s]); k++)
        for (int i = 0; i < p->exec[s].n_calls; i++)
            p->exec[s].calls[i].n_runs += at_slot(p, s, k)->calls[i].n_runs;
}

/* Bytes that this rank has sent each other one per step, and the sum of all. */
static void report_links(struct executor *p)
{
    struct session *s = p->session;
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

/* On rank 0: collectives by the first rank of each stage, bytes by all. */
void executor_report(struct executor *p)
{
    struct session *s = p->session;
    const struct ap_pipeline_program *r = p->program;
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
    if (r->n_transfers > 0)
        report_links(p);
}

int64_t executor_working_bytes(const struct executor *p)
{
    int64_t bytes = transfers_memory(p->transfers) + p->job->memory(p->job);
    for (int i = 0; i < p->program->n_stages; i++)
        if (p->mine[i])
            bytes += exec_working_bytes(&p->exec[i]) +
                     (p->comm[i] != p->job ? p->comm[i]->memory(p->comm[i]) : 0);
    return bytes;
}

/* The timeline that --trace asks for, or NULL; called by all ranks. */
static struct trace *open_trace(const struct executor *p, const struct settings *set)
{
    struct ap_err err = {{0}};
    int rc = 0;

    if (!set->trace_path)
        return NULL;
    if (!set->backend->on_host)
        rc = ap_err_set(&err, "--trace: backend %s runs its calls later than they begin",
                        set->backend->name);
    job_agree(p->job, rc, AP_USAGE, &err);
    return trace_new(p->arena, set->trace_path, p->program,
                     (int)(p->lane - p->program->lane));
}

/* What the settings ask to be noted of each call; and the noise that disturbs them. */
static void watch_calls(struct executor *p, const struct settings *set,
                        const struct session_opts *opts)
{
    struct session *s = p->session;
    const struct ap_pipeline_program *r = p->program;
    if (opts->observed) {
        s->trace = open_trace(p, set);
        if (set->profile_path)
            s->profile = profile_open(p->arena, p->job, set->steps);
    }
    for (int i = 0; i < r->n_stages; i++)
        for (int k = 0; p->mine[i] && k < ap_pipeline_n_slots(&r->stage[i]); k++) {
            struct exec *x = at_slot(p, i, k);
            noise_set(x, opts->noise);
            x->trace = s->trace;
            if (s->profile)
                profile_watch(s->profile, x, i);
        }
    if (r->alone && !s->profile && opts->timed && set->backend->blas_sec)
        s->timing = p->exec[0].timing = timing_open(p->arena, &p->exec[0], 1, false);
}

struct executor *executor_open(struct session *s, const struct settings *set,
                               const struct session_opts *opts)
{
    const int n = s->program->n_stages;
    struct ap_arena *arena = s->arena;
    struct executor *p = AP_NEW(arena, struct executor);
    *p = (struct executor){.arena = arena,
                           .session = s,
                           .program = s->program,
                           .job = s->comm,
                           .comm = AP_NEW_N(arena, n, struct comm *),
                           .exec = AP_NEW_N(arena, n, struct exec),
                           .slot = AP_NEW_N(arena, n, struct exec *),
                           .mine = AP_NEW_N(arena, n, bool)};
    find_loss_stage(p, s->loss);
    open_stages(p, set);
    s->peak_bytes = most_bytes(p, false);
    s->scratch_bytes = most_bytes(p, true);
    s->memory.buffers = p->lane->peak_bytes;
    s->alone = s->program->alone ? &p->exec[0] : NULL;
    if (!set->prepare_only)
        watch_calls(p, set, opts);
    return p;
}

void executor_close(struct executor *p)
{
    transfers_close(p->transfers);
    for (int k = 0; k < p->program->n_stages; k++)
        if (p->mine[k]) {
            for (int i = ap_pipeline_n_slots(&p->program->stage[k]) - 1; i >= 0; i--)
                exec_close(at_slot(p, k, i));
            if (p->comm[k] != p->job)
                p->comm[k]->close(p->comm[k]);
        }
    p->session->backend->release(p->memory);
}
