/* The loop over training steps, and a program's step. */
#include "backend.h"
#include "run/job.h"
#include "run/memory.h"
#include "run/noise.h"
#include "run/watch.h"

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

double session_scalar(const struct exec *x, int node)
{
    const enum ap_dtype dtype = x->prog->local.nodes[node].shape.dtype;
    char host[16];
    x->backend->read(host, x->value[node], ap_dtype_size(dtype));
    return data_number(host, dtype, 0);
}

int session_prepare(struct session *s, struct ap_arena *arena, const struct ap_graph *g,
                    const struct settings *set, bool save, struct ap_err *err)
{
    struct checkpoint *resume = set->source.resume;
    if (resume && checkpoint_match(arena, g, resume, err))
        return -1;
    s->first = resume ? resume->step : 0;
    s->batches = set->source.batches;
    if (!save || !set->save_dir)
        return 0;
    s->saver = AP_NEW(arena, struct saver);
    s->saver->dir = set->save_dir;
    s->save_every = set->save_every;
    return checkpoint_list(arena, g, &s->saver->file, err);
}

struct trace *session_trace(struct ap_arena *arena, const struct settings *set,
                            struct comm *comm, const struct ap_pipeline_program *pipeline,
                            int lane)
{
    struct ap_err err = {{0}};
    int rc = 0;

    if (!set->trace_path || set->prepare_only)
        return NULL;
    if (!set->backend->on_host)
        rc = ap_err_set(&err, "--trace: backend %s runs its calls later than they begin",
                        set->backend->name);
    job_agree(comm, rc, AP_USAGE, &err);
    struct trace *t = trace_new(arena, set->trace_path, pipeline, lane);
    if (set->beside_path && comm->rank == 0)
        rc = trace_beside(t, set->beside_path, &err);
    job_agree(comm, rc, AP_BAD_INPUT, &err);
    return t;
}

/* After step i of this run, where a checkpoint is due: writes it. */
static void save(struct session *s, int64_t i)
{
    const int64_t done = s->first + i + 1;
    const bool due = s->save_every > 0 && done % s->save_every == 0;
    struct ap_err err = {{0}};
    if (!s->saver || !(due || i + 1 == s->steps))
        return;
    s->saver->put = s->of.put;
    s->saver->ctx = s->of.ctx;
    const int rc = checkpoint_save(s->saver, s->exec.comm, done, &err);
    job_agree(s->exec.comm, rc, AP_BAD_INPUT, &err);
}

/* The inputs of step i of this run, of batches that come round. */
static void feed(struct session *s, int64_t i)
{
    const int64_t batch = (s->first + i) % s->n_batches + 1;
    struct ap_err err = {{0}};
    int n_read = 0;
    int rc = s->of.feed(s->of.ctx, s->batches, batch, &n_read, &err);
    job_agree(s->exec.comm, rc, AP_BAD_INPUT, &err);
    if (s->exec.comm->max(s->exec.comm, n_read) == 0)
        rc = ap_err_set(&err, "%s/%lld: has no K.npy of an input", s->batches,
                        (long long)batch);
    job_agree(s->exec.comm, rc, AP_BAD_INPUT, &err);
}

/* Step i of this run. */
static void take_step(struct session *s, int64_t i)
{
    struct comm *comm = s->exec.comm;
    const struct step_of *of = &s->of;
    AP_ROOM_IN(s->exec.arena, s->losses, i, s->room[0]);
    AP_ROOM_IN(s->exec.arena, s->step_sec, i, s->room[1]);
    AP_ROOM_IN(s->exec.arena, s->cpu_sec, i, s->room[2]);
    s->losses[i] = 0;
    if (s->batches)
        feed(s, i);
    comm->max(comm, 0); /* ranks start together */
    trace_begin(s->trace, i + 1 == s->steps);
    const double start = ap_now_sec(), cpu = timing_process_sec();
    watch_step(s->first + i + 1);
    if (s->profile)
        profile_begin(s->profile, i);
    else /* the first step touches memory for the first time */
        timing_step_begin(s->exec.timing, i > 0 || s->steps == 1);
    of->run(of->ctx);
    if (s->loss >= 0)
        s->losses[i] = of->loss(of->ctx);
    if (s->keep && i + 1 == s->steps)
        of->keep_results(of->ctx);
    of->advance(of->ctx);
    if (s->exec.backend->sync)
        s->exec.backend->sync();
    s->cpu_sec[i] = timing_process_sec() - cpu;
    s->step_sec[i] = comm->max_sec(comm, ap_now_sec() - start);
    s->sec += s->step_sec[i];
    if (s->profile)
        profile_end(s->profile, i, s->step_sec[i]);
    else
        timing_step_end(s->exec.timing);
    if (s->hook && comm->rank == 0)
        s->hook->say(s->hook->ctx, s->first + i + 1, s->loss >= 0, s->losses[i]);
    save(s, i);
}

void session_steps(struct session *const *s, int n)
{
    struct ap_err err = {{0}};
    for (int k = 0; k < n; k++) {
        struct session *x = s[k];
        struct comm *comm = x->exec.comm;
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

void session_memory(struct ap_arena *arena, struct session *s)
{
    struct comm *c = s->exec.comm;
    s->memory.measured = memory_grown(s->start_bytes);
    s->rank_memory = c->rank == 0 ? AP_NEW_N(arena, c->size, struct rank_memory) : NULL;
    for (int k = 0; k < c->size; k++) {
        struct rank_memory m = s->memory;
        if (c->rank == k || c->rank == 0)
            c->to_root(c, k, &m, sizeof m);
        if (c->rank == 0)
            s->rank_memory[k] = m;
    }
}

/* ---- a program ---- */

/* Results that become no parameter are whole on every rank. */
static void keep_results(void *ctx)
{
    struct session *s = ctx;
    const struct ap_graph own = ap_program_own(s->exec.prog), *g = &own;
    s->results = AP_NEW_N(s->exec.arena, g->n_results + 1, void *);
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        const struct placement p = {g->nodes[res->node].shape, ap_layout_replicated()};
        if (res->alias >= 0 || s->exec.comm->rank != 0)
            continue;
        const int64_t bytes = ap_shape_bytes(&p.global);
        s->results[r] = ap_xrealloc(NULL, (size_t)bytes + 1);
        s->exec.backend->read(s->results[r], s->exec.value[res->node], bytes);
    }
}

/* Parameters that a step updates, as whole arrays. */
static void **collect_params(struct session *s)
{
    struct ap_arena *arena = s->exec.arena;
    const struct ap_graph own = ap_program_own(s->exec.prog), *g = &own;
    bool *updated = AP_NEW_N(arena, g->n_nodes + 1, bool);
    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].alias >= 0)
            updated[g->results[r].alias] = true;
    void **out = AP_NEW_N(arena, g->n_params + 1, void *);
    for (int k = 0; k < g->n_params; k++)
        if (updated[g->params[k]])
            out[k] = data_collect(&s->exec, k);
    return out;
}

static void run_step(void *ctx)
{
    exec_step(&((struct session *)ctx)->exec);
}

static double read_loss(void *ctx)
{
    const struct session *s = ctx;
    return session_scalar(&s->exec, s->exec.prog->local.results[s->loss].node);
}

static void advance(void *ctx)
{
    exec_advance(&((struct session *)ctx)->exec);
}

static void put_params(void *ctx, struct checkpoint *c)
{
    struct exec *x = &((struct session *)ctx)->exec;
    for (int k = 0; k < x->prog->local.n_params; k++)
        checkpoint_put(c, x, k);
}

static int feed_program(void *ctx, const char *dir, int64_t batch, int *n_read,
                        struct ap_err *err)
{
    return data_batch(&((struct session *)ctx)->exec, dir, batch, n_read, err);
}

void session_open(struct session *s, struct ap_arena *arena,
                  const struct ap_program *prog, const struct settings *set,
                  struct comm *comm, const struct session_opts *opts)
{
    struct ap_err err = {{0}};
    const struct ap_graph own = ap_program_own(prog);
    *s = (struct session){.steps = set->steps,
                          .loss = session_loss(&own),
                          .hook = opts->hook,
                          .keep = opts->keep,
                          .start_bytes = set->n_programs > 1 ? -1 : memory_start()};
    s->of = (struct step_of){run_step,     read_loss, keep_results, advance, put_params,
                             feed_program, s};
    int rc = session_prepare(s, arena, &own, set, opts->save, &err);
    job_agree(comm, rc, AP_BAD_INPUT, &err);
    rc = exec_open(&s->exec, arena, prog, set->backend, comm, &err);
    job_agree(comm, rc, s->exec.exit_code, &err);
    if (set->prepare_only)
        return;
    rc = data_load(&s->exec, &set->source, &err);
    job_agree(comm, rc, s->exec.exit_code, &err);
    if (set->source.resume)
        rc = checkpoint_check(set->source.resume, comm, &err);
    job_agree(comm, rc, AP_BAD_INPUT, &err);
    if (opts->keep_start)
        s->start = collect_params(s);
    noise_set(&s->exec, opts->noise);
    if (opts->save)
        s->exec.trace = s->trace = session_trace(arena, set, comm, NULL, 0);
    if (opts->save && set->profile_path) {
        s->profile = profile_open(arena, comm, set->steps);
        profile_watch(s->profile, &s->exec, 0);
    } else if (opts->timed && set->backend->blas_sec) {
        s->exec.timing = timing_open(arena, &s->exec, 1, false);
    }
}

void session_end(struct session *s)
{
    struct comm *comm = s->exec.comm;
    s->memory = (struct rank_memory){.buffers = s->exec.prog->peak_bytes,
                                     .working = exec_working_bytes(&s->exec) +
                                                comm->memory(comm)};
    session_memory(s->exec.arena, s);
    if (s->keep)
        s->params = collect_params(s);
}

void session_run(struct session *s, struct ap_arena *arena, const struct ap_program *prog,
                 const struct settings *set, struct comm *comm,
                 const struct session_opts *opts)
{
    session_open(s, arena, prog, set, comm, opts);
    session_steps(&s, 1);
    session_end(s);
}

void session_close(struct session *s)
{
    const struct ap_graph own = ap_program_own(s->exec.prog), *g = &own;
    for (int k = 0; k < g->n_params; k++) {
        free(s->params ? s->params[k] : NULL);
        free(s->start ? s->start[k] : NULL);
    }
    for (int r = 0; s->results && r < g->n_results; r++)
        free(s->results[r]);
    exec_close(&s->exec);
}
