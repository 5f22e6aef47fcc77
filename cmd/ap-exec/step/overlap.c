/*
 * Overlap of communication and computing. Problem: a collective may run while later calls
 * compute, up to the first one that needs its result, or that writes memory which it
 * still reads or writes; and the buffer plan, which knows one order only, reuses memory
 * as soon as its last reader in that order is through. Idea: each call's reads and writes
 * as intervals of addresses. Call d has to wait for collective c if d reads or writes
 * what c writes, or writes what c reads. The plan of collectives stays in its order; c is
 * started at its place and finished before the first such d, at the latest at the end of
 * the groups that run together. Where the program says before which group it is awaited
 * (ap_program.wait), it is finished there at the latest. Linear in calls times
 * collectives in flight.
 *
 * x->late, for tests: a collective runs as late as it may, when it is finished, instead
 * of at its place. Numbers must not change.
 */
#include "step/overlap.h"

#include "step/trace.h"

static void add(struct call *call, const void *p, int64_t bytes, bool write)
{
    if (p && bytes > 0)
        call->access[call->n_access++] = (struct exec_access){p, bytes, write};
}

/* The value of a node: one place, or one per element of a tuple. */
static void add_value(struct exec *x, struct call *call, int node, bool write)
{
    const struct ap_shape *s = &x->prog->local.nodes[node].shape;
    if (s->dtype != AP_TUPLE) {
        add(call, x->value[node], ap_shape_bytes(s), write);
        return;
    }
    for (int k = 0; x->element[node] && k < s->n_parts; k++)
        add(call, x->element[node][k], ap_shape_bytes(&s->parts[k]), write);
}

static int places(const struct ap_shape *s)
{
    return s->dtype == AP_TUPLE ? s->n_parts : 1;
}

void overlap_note(struct exec *x, struct call *call)
{
    const struct ap_node *nodes = x->prog->local.nodes;
    int64_t n = 0;
    for (int m = 0; m < call->n_nodes; m++) {
        const struct ap_node *v = &nodes[call->nodes[m]];
        n += places(&v->shape);
        for (int k = 0; k < v->n_in; k++)
            n += places(&nodes[v->in[k]].shape);
    }
    call->access = AP_NEW_N(x->arena, n + 1, struct exec_access);
    for (int m = 0; m < call->n_nodes; m++) {
        const struct ap_node *v = &nodes[call->nodes[m]];
        add_value(x, call, call->nodes[m], true);
        for (int k = 0; k < v->n_in; k++)
            add_value(x, call, v->in[k], false);
    }
}

void overlap_note_copy(struct exec *x, struct call *call, const struct exec_copy *c)
{
    call->access = AP_NEW_N(x->arena, 2, struct exec_access);
    add(call, c->src, c->bytes, false);
    add(call, c->dst, c->bytes, true);
}

static bool conflict(const struct call *a, const struct call *b)
{
    for (int i = 0; i < a->n_access; i++)
        for (int k = 0; k < b->n_access; k++) {
            const struct exec_access *p = &a->access[i], *q = &b->access[k];
            if ((p->write || q->write) && p->p < q->p + q->bytes &&
                q->p < p->p + p->bytes)
                return true;
        }
    return false;
}

void overlap_plan(struct exec *x)
{
    x->flight = AP_NEW_N(x->arena, x->n_calls + 1, struct exec_flight);
    for (int i = 0; i < x->n_calls; i++) {
        struct call *call = &x->calls[i];
        int wait = -1;
        call->first_use = x->n_calls;
        if (call->finish && call->n_nodes > 0 && x->prog->wait)
            wait = x->prog->wait[x->prog->local.nodes[call->nodes[0]].group];
        call->starts = wait >= 0;
        if (wait >= 0)
            call->first_use = x->first_call[wait];
        for (int d = i + 1; call->finish && d < call->first_use; d++)
            if (conflict(call, &x->calls[d]))
                call->first_use = d;
    }
}

void overlap_run(struct exec *x, int i, void *state)
{
    struct call *call = &x->calls[i];
    x->starts = call->starts;
    if (!call->finish || !x->late)
        call->run(x, state);
    if (call->finish)
        x->flight[x->n_flight++] = (struct exec_flight){call, state};
}

void overlap_finish(struct exec *x, int i)
{
    int n = 0;
    for (int k = 0; k < x->n_flight; k++) {
        const struct exec_flight f = x->flight[k];
        if (f.call->first_use > i) {
            x->flight[n++] = f;
            continue;
        }
        if (x->late)
            f.call->run(x, f.state);
        f.call->finish(x, f.state);
        trace_awaited(x, f.call);
    }
    x->n_flight = n;
}
