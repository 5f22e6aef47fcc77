/*
 * Problem: show the measured step next to the priced step. Idea: each rank is a process
 * with the tracks that ap-cost --trace has: operators and collectives, or, for a
 * pipeline, microbatches, messages, operators and collectives. Ranks start a step
 * together, which is second 0 of both timelines. A call is a slice; a collective that
 * overlaps with other calls lasts until it is awaited, and begins after the previous one,
 * since collectives run one after the other. A microbatch's slice is from its first
 * instruction to its last one, messages that it waits for included. Every rank writes its
 * own events, rank 0 puts them together. Cost: a clock and a record for each call of one
 * step.
 */
#include "step/trace.h"

#include "base/array.h"
#include "doc/doc.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

enum { OPERATORS = 1, COLLECTIVES, N_TRACKS_OF_PROGRAM = COLLECTIVES };
/* of a pipeline, in front of these */
enum { MICROBATCHES = 1, SENDS, RECEIVES, N_TRACKS_OF_LANE = RECEIVES };

/* Beyond the processes of ap-cost --trace, so that one file can have the events of both.
 */
enum { FIRST_PID = 1 << 20 };

/* A call, or an instruction of the lane. */
struct slice {
    double start, end;
    const struct exec *x; /* NULL: an instruction */
    int number;
    int64_t microbatch;
};

struct trace {
    struct ap_arena *arena;
    const char *path;
    const struct ap_pipeline_program *program;
    int lane;   /* of this rank */
    int n_more; /* tracks in front of those of a program: N_TRACKS_OF_LANE, or none */
    bool on;
    double start; /* of the step */
    int n, cap;
    struct slice *slice;
};

struct trace *trace_new(struct ap_arena *arena, const char *path,
                        const struct ap_pipeline_program *program, int lane)
{
    struct trace *t = AP_NEW(arena, struct trace);
    *t = (struct trace){.arena = arena,
                        .path = path,
                        .program = program,
                        .lane = lane,
                        .n_more = program->alone ? 0 : N_TRACKS_OF_LANE};
    return t;
}

/* ---- what runs ---- */

void trace_begin(struct trace *t, bool on)
{
    if (!t)
        return;
    t->on = on;
    t->start = ap_now_sec();
}

double trace_clock(const struct trace *t)
{
    return t && t->on ? ap_now_sec() : 0;
}

static void add(struct trace *t, struct slice slice)
{
    slice.start -= t->start;
    slice.end = ap_now_sec() - t->start;
    AP_ROOM_IN(t->arena, t->slice, t->n, t->cap);
    t->slice[t->n++] = slice;
}

void trace_call(const struct exec *x, int i, int64_t j, double start)
{
    if (x->trace && x->trace->on)
        add(x->trace, (struct slice){start, 0, x, i, j});
}

void trace_awaited(const struct exec *x, const struct call *call)
{
    struct trace *t = x->trace;

    for (int k = t && t->on ? t->n - 1 : -1; k >= 0; k--)
        if (t->slice[k].x == x && &x->calls[t->slice[k].number] == call) {
            t->slice[k].end = ap_now_sec() - t->start;
            return;
        }
}

void trace_instr(struct trace *t, int i, double start)
{
    if (t && t->on)
        add(t, (struct slice){start, 0, NULL, i, 0});
}

/* ---- events ---- */

struct writer {
    const struct trace *t;
    int pid, rank;
    double end[N_TRACKS_OF_LANE + N_TRACKS_OF_PROGRAM + 1]; /* [track] */
    struct ap_buf *out;
};

static int track_of(const struct writer *w, int track)
{
    return track + w->t->n_more;
}

/* On a track, behind what is there. */
static void put(struct writer *w, int track, const char *name, const char *category,
                double start, double end)
{
    start = start > w->end[track] ? start : w->end[track];
    end = end > start ? end : start;
    w->end[track] = end;
    ap_trace_slice(w->out, w->pid, track, name, category, start, end - start);
}

static void put_axes(const struct ap_mesh *mesh, unsigned axes, struct ap_buf *out)
{
    ap_buf_puts(out, ",\"axes\":\"");
    for (int a = 0; a < mesh->n_axes; a++)
        if (axes >> a & 1)
            ap_buf_puts(out, mesh->name[a]);
    ap_buf_puts(out, "\"");
}

static void put_call(struct writer *w, const struct slice *s)
{
    const struct exec *x = s->x;
    const struct call *call = &x->calls[s->number];
    const struct ap_node *nodes = x->prog->local.nodes;

    if (call->n_nodes == 0) {
        put(w, track_of(w, OPERATORS), "copy", "copy", s->start, s->end);
        ap_buf_puts(w->out, ",\"args\":{}}");
        return;
    }
    const struct ap_node *last = &nodes[call->nodes[call->n_nodes - 1]];
    const bool each = last->group >= x->prog->each_lo && last->group < x->prog->each_hi;
    if (ap_ops[last->op].class == AP_CLASS_COLLECTIVE &&
        !(last->attrs->coll.axes & x->prog->mesh.microbatch)) {
        put(w, track_of(w, COLLECTIVES), ap_ops[last->op].name,
            ap_phase_names[last->phase], s->start, s->end);
        ap_buf_puts(w->out, ",\"args\":{\"tensor\":");
        ap_json_str(w->out, nodes[last->in[0]].name);
        put_axes(&x->prog->mesh, last->attrs->coll.axes, w->out);
        ap_put_int(w->out, "bytes",
                   ap_coll_bytes(&x->prog->mesh, last, &nodes[last->in[0]].shape));
    } else {
        put(w, track_of(w, OPERATORS), last->name, ap_phase_names[last->phase], s->start,
            s->end);
        ap_buf_printf(w->out, ",\"args\":{\"group\":%d,\"operators\":%d", last->group,
                      call->n_nodes);
        ap_put_str(w->out, "scope", last->scope);
    }
    if (each)
        ap_put_int(w->out, "microbatch", s->microbatch);
    ap_buf_puts(w->out, "}}");
}

/* ---- of a lane ---- */

/* What a run of groups is of its microbatch: as ap-cost names it. */
enum pass { START = AP_N_PASSES, UPDATE };

static int pass_of(const struct ap_pipeline_program *r, const struct ap_pipeline_instr *x)
{
    const struct ap_pipeline_cuts *c = &r->stage[x->stage].cuts;
    return x->hi <= c->each_lo  ? START
           : x->hi > c->each_hi ? UPDATE
                                : (int)ap_pipeline_pass(c, x->hi - 1);
}

static bool same_pass(const struct ap_pipeline_program *r,
                      const struct ap_pipeline_instr *a,
                      const struct ap_pipeline_instr *b)
{
    const int pass = pass_of(r, a);
    if (pass != pass_of(r, b))
        return false;
    return pass == START || pass == UPDATE ||
           (a->stage == b->stage && a->message == b->message);
}

/* Runs that follow each other as one slice; messages between them may be there. */
static void put_passes(struct writer *w, const struct ap_lane *lane)
{
    const struct trace *t = w->t;
    const struct ap_pipeline_instr *first = NULL;
    double start = 0, end = 0;

    for (int k = 0; k <= t->n; k++) {
        const struct slice *s = k < t->n ? &t->slice[k] : NULL;
        const struct ap_pipeline_instr *x = s ? &lane->instr[s->number] : NULL;
        if (s && (s->x || x->what != AP_PIPELINE_RUN))
            continue;
        if (first && (!x || !same_pass(t->program, first, x))) {
            const int pass = pass_of(t->program, first);
            const bool of_one = pass < AP_N_PASSES;
            const char *name = of_one          ? ap_pass_names[pass]
                               : pass == START ? "start"
                                               : "update";
            put(w, MICROBATCHES,
                of_one ? ap_arena_printf(t->arena, "%s %d", name, first->message) : name,
                name, start, end);
            if (of_one)
                ap_buf_printf(w->out, ",\"args\":{\"stage\":%d,\"microbatch\":%d}",
                              first->stage, first->message);
            ap_buf_putc(w->out, '}');
            first = NULL;
        }
        if (!s)
            break;
        start = first ? start : s->start;
        end = s->end;
        first = first ? first : x;
    }
}

static void put_message(struct writer *w, const struct slice *s,
                        const struct ap_pipeline_instr *x)
{
    const struct ap_transfer *of = &w->t->program->transfer[x->transfer];
    const struct ap_graph *to = &w->t->program->stage[of->to].prog.local;
    const bool sends = x->what == AP_PIPELINE_SEND;

    put(w, sends ? SENDS : RECEIVES, sends ? "send" : "receive", "send", s->start,
        s->end);
    ap_buf_puts(w->out, ",\"args\":{\"tensor\":");
    ap_json_str(w->out, to->nodes[to->params[of->param]].name);
    ap_buf_printf(w->out, ",\"message\":%d,\"from\":%d,\"to\":%d}}", x->message, of->from,
                  of->to);
}

static void put_tracks(struct writer *w)
{
    static const char *const of_lane[] = {"microbatches", "sends", "receives"};
    static const char *const of_program[] = {"operators", "collectives"};
    const struct trace *t = w->t;

    ap_trace_name(w->out, w->pid, 0, "process_name",
                  t->n_more ? ap_arena_printf(t->arena, "measured: rank %d, stage %d",
                                              w->rank, t->lane)
                            : ap_arena_printf(t->arena, "measured: rank %d", w->rank));
    for (int k = 0; k < t->n_more; k++)
        ap_trace_name(w->out, w->pid, k + 1, "thread_name", of_lane[k]);
    for (int k = 0; k < N_TRACKS_OF_PROGRAM; k++)
        ap_trace_name(w->out, w->pid, track_of(w, k + 1), "thread_name", of_program[k]);
}

/* This rank's events. */
static void put_rank(struct writer *w)
{
    const struct trace *t = w->t;
    const struct ap_lane *lane = &t->program->lane[t->lane];

    put_tracks(w);
    ap_trace_memory(w->out, w->pid, 0, lane->peak_bytes);
    if (t->n_more)
        put_passes(w, lane);
    for (int k = 0; k < t->n; k++) {
        const struct slice *s = &t->slice[k];
        if (s->x)
            put_call(w, s);
        else if (lane->instr[s->number].what != AP_PIPELINE_RUN)
            put_message(w, s, &lane->instr[s->number]);
    }
}

void trace_write(const struct trace *t, struct comm *job)
{
    struct ap_buf file = {0};

    ap_trace_head(&file);
    for (int rank = 0; rank < job->size; rank++) {
        struct ap_buf text = {0};
        struct writer w = {.t = t, .pid = FIRST_PID + rank, .rank = rank, .out = &text};
        if (rank == job->rank)
            put_rank(&w);
        else if (job->rank != 0)
            continue;
        int64_t bytes = (int64_t)text.len;
        job->to_root(job, rank, &bytes, sizeof bytes);
        if (rank != job->rank)
            ap_buf_room(&text, (size_t)bytes);
        job->to_root(job, rank, text.data, bytes);
        ap_buf_put(&file, text.data, (size_t)bytes);
        ap_buf_free(&text);
    }
    ap_buf_puts(&file, AP_TRACE_END);
    if (job->rank == 0)
        ap_tool_write_file(t->path, &file);
    ap_buf_free(&file);
}
