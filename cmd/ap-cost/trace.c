/*
 * Problem: show a step on a timeline, in the JSON that Perfetto and chrome://tracing
 * read. Idea: all devices do the same, so one process stands for them: a track of
 * operators, a track of collectives, a counter of memory, and an arrow from each
 * conversion to the group that waits for it. Times are those that the price adds up, one
 * after the other, in the program's order; the counter is that of the program's buffers.
 * Cost: linear in groups, conversions and users.
 * Source: the trace event format (Google, "Trace Event Format", 2016).
 */
#include <stdlib.h>

#include "plan/microbatch.h"
#include "price.h"
#include "cost/convert.h"

#define PID      1
#define COMPUTE  1
#define COMM     2
#define MICROSEC 1e6

struct trace {
    const struct cost_input *in;
    const struct priced *p;
    double now;       /* seconds */
    const int *order; /* groups of the source graph as they run, once each */
    int64_t *memory;  /* per place in the order: bytes while it runs */
    int64_t most;     /* of the groups since the last slice */
    struct ap_buf *out;
};

/* ---- memory ---- */

/* Bytes that live while each group of the local program runs. */
static int64_t *live_bytes(struct ap_arena *arena, const struct ap_program *prog)
{
    const struct ap_graph *g = &prog->local;
    int *last = AP_NEW_N(arena, g->n_nodes, int);
    int64_t *live = AP_NEW_N(arena, g->n_groups + 1, int64_t);

    for (int i = 0; i < g->n_nodes; i++) {
        int root = prog->buffer[i].alias < 0 ? i : prog->buffer[i].alias;
        last[root] = last[root] > g->nodes[i].group ? last[root] : g->nodes[i].group;
        for (int u = g->user_start[i]; u < g->user_start[i + 1]; u++) {
            int user = g->nodes[g->users[u]].group;
            last[root] = last[root] > user ? last[root] : user;
        }
    }
    for (int r = 0; r < g->n_results; r++) {
        int node = g->results[r].node, alias = prog->buffer[node].alias;
        last[alias < 0 ? node : alias] = g->n_groups - 1;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        if (prog->buffer[i].offset < 0 || prog->buffer[i].alias >= 0)
            continue;
        bool param = g->nodes[i].op == AP_OP_PARAMETER;
        int first = g->nodes[i].group;
        ap_program_stretch(prog, i, &first, &last[i]);
        live[param ? 0 : first] += prog->buffer[i].bytes;
        live[param ? g->n_groups : last[i] + 1] -= prog->buffer[i].bytes;
    }
    for (int k = 0; k < g->n_groups; k++)
        live[k + 1] += live[k];
    return live;
}

/* The same by groups of the source graph in their order: what runs for one counts for the
 * latest one that has begun. */
int64_t *trace_memory_of_groups(struct ap_arena *arena, const struct cost_input *in,
                                const struct ap_program *prog, const int *order)
{
    const struct ap_graph *g = &prog->local;
    int64_t *live = live_bytes(arena, prog);
    int64_t *memory = AP_NEW_N(arena, in->nests.n, int64_t);
    int *turn = AP_NEW_N(arena, in->nests.n, int);
    int latest = 0;

    for (int i = 0; i < in->nests.n; i++)
        turn[order[i]] = i;
    for (int i = 0; i < g->n_nodes; i++) {
        int from = turn[in->graph.nodes[prog->source[i]].group];
        latest = from > latest ? from : latest;
        int64_t now = live[g->nodes[i].group];
        memory[latest] = now > memory[latest] ? now : memory[latest];
    }
    for (int i = 1; i < in->nests.n; i++)
        memory[i] = memory[i] ? memory[i] : memory[i - 1];
    return memory;
}

/* ---- events ---- */

void trace_head(struct ap_buf *out)
{
    ap_buf_puts(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                     "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_sort_index\","
                     "\"args\":{\"sort_index\":0}}");
}

static void begin_event(struct ap_buf *out, const char *phase, int pid, int tid,
                        double at)
{
    ap_buf_printf(out, ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":", phase, pid,
                  tid);
    ap_json_num(out, at * MICROSEC);
}

void trace_name(struct ap_buf *out, int pid, int tid, const char *what, const char *name)
{
    ap_buf_printf(out,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\","
                  "\"args\":{\"name\":",
                  pid, tid, what);
    ap_json_str(out, name);
    ap_buf_puts(out, "}}");
}

void trace_slice(struct ap_buf *out, int pid, int tid, const char *name,
                 const char *category, double at, double sec)
{
    begin_event(out, "X", pid, tid, at);
    ap_buf_puts(out, ",\"dur\":");
    ap_json_num(out, sec * MICROSEC);
    ap_put_str(out, "name", name);
    ap_put_str(out, "cat", category);
}

void trace_memory(struct ap_buf *out, int pid, double at, int64_t bytes)
{
    begin_event(out, "C", pid, 0, at);
    ap_buf_printf(out, ",\"name\":\"memory\",\"args\":{\"bytes\":%lld}}",
                  (long long)bytes);
}

void trace_flow(struct ap_buf *out, const char *what, int id, bool start, int pid,
                int tid, double at)
{
    begin_event(out, start ? "s" : "f", pid, tid, at);
    ap_buf_printf(out, ",\"id\":%d,\"name\":\"%s\",\"cat\":\"%s\"%s}", id, what, what,
                  start ? "" : ",\"bp\":\"e\"");
}

static void put_conversion(struct trace *t, int id, bool arrow)
{
    const struct ap_conversion *c = &t->p->conv.conv[id];
    const struct ap_mesh *mesh = &t->p->plan.mesh;
    double start = t->now;

    for (int k = 0; k < c->path.n_steps; k++) {
        const struct ap_step *step = &c->path.steps[k];
        if (step->sec <= 0)
            continue;
        trace_slice(t->out, PID, COMM, ap_ops[step->op].name, ap_phase_names[c->phase],
                    t->now, step->sec);
        t->now += step->sec;
        ap_buf_puts(t->out, ",\"args\":{\"tensor\":");
        ap_json_str(t->out, t->in->graph.nodes[c->node].name);
        ap_buf_puts(t->out, ",\"axes\":\"");
        for (int a = 0; a < mesh->n_axes; a++)
            if (step->coll.axes >> a & 1)
                ap_buf_puts(t->out, mesh->name[a]);
        ap_buf_puts(t->out, "\"");
        ap_put_int(t->out, "bytes", step->bytes);
        ap_buf_puts(t->out, "}}");
    }
    if (arrow && c->path.sec > 0)
        trace_flow(t->out, "conversion", id, true, PID, COMM, start);
}

static void put_group(struct trace *t, int place, int first_conv, int end_conv)
{
    const int group = t->order[place];
    const struct cost_input *in = t->in;
    const struct ap_nest *nest = &in->nests.nest[group];
    double sec =
        ap_plan_group_sec(nest, &in->graph, &in->cost, &t->p->plan.choice[group]);
    int node = nest->n_outs ? nest->outs[0] : nest->members[0];

    for (int i = first_conv; i < end_conv; i++)
        put_conversion(t, i, sec > 0);
    t->most = t->memory[place] > t->most ? t->memory[place] : t->most;
    if (sec <= 0)
        return;
    trace_memory(t->out, PID, t->now, t->most);
    t->most = 0;
    for (int i = first_conv; i < end_conv; i++)
        if (t->p->conv.conv[i].path.sec > 0)
            trace_flow(t->out, "conversion", i, false, PID, COMPUTE, t->now);
    enum ap_phase phase = ap_plan_group_phase(&in->graph, nest);
    trace_slice(t->out, PID, COMPUTE, in->graph.nodes[node].name, ap_phase_names[phase],
                t->now, sec);
    t->now += sec;
    ap_buf_printf(t->out, ",\"args\":{\"group\":%d,\"operators\":%d", group,
                  nest->n_members);
    ap_put_str(t->out, "scope", in->graph.nodes[node].scope);
    ap_buf_puts(t->out, "}}");
}

void price_trace(struct ap_arena *arena, const struct cost_input *in,
                 const struct priced *p, struct ap_buf *out)
{
    const int *order = ap_plan_order(arena, &p->plan, ap_plan_when(arena, &p->plan));
    struct trace t = {.in = in,
                      .p = p,
                      .order = order,
                      .memory = trace_memory_of_groups(arena, in, &p->prog, order),
                      .out = out};
    const char *who =
        ap_arena_printf(arena, "each of %lld x %s",
                        (long long)ap_mesh_devices(&p->plan.mesh), in->cluster.device);
    int at = 0;

    trace_head(out);
    trace_name(out, PID, 0, "process_name", who);
    trace_name(out, PID, COMPUTE, "thread_name", "operators");
    trace_name(out, PID, COMM, "thread_name", "collectives");
    for (int g = 0; g < in->nests.n; g++) {
        int first = at;
        while (at < p->conv.n && p->conv.conv[at].first_group == order[g])
            at++;
        put_group(&t, g, first, at);
    }
    for (; at < p->conv.n; at++)
        put_conversion(&t, at, false);
    trace_memory(out, PID, t.now, p->parameter_bytes);
    ap_buf_puts(out, TRACE_END);
}
