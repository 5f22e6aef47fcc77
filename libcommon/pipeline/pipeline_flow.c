/*
 * Problem: a lane's instructions may name only stages, groups and messages that exist,
 * and yet compute something else: a group that is left out, a sum that is sent early, a
 * receive after its reader. Idea: follow, per stage, the progress of every microbatch and
 * the values that have arrived. Groups before the loop run once and first; every
 * microbatch runs the groups of the loop once and in order, microbatch 0 before any
 * other, for it starts the sums; groups after the loop run once all microbatches are
 * done. Which microbatch's values are in memory is pipeline_memory.c's to check. Cost:
 * linear in the instructions and in the reads of received values.
 */
#include "pipeline/pipeline_program.h"

#include "base/csr.h"

#include <string.h>

/* Which groups read what is received. */
struct reader {
    struct ap_csr reads; /* [group]: parameters */
    int *transfer;       /* [parameter]: by which it comes, -1 */
    bool *share;         /* [parameter]: it holds one microbatch's share */
};

struct stage_state {
    struct reader reader;
    int before, behind; /* next group of those that run once */
    int *next;          /* [microbatch]: next group of the loop */
    int most;           /* of next */
    int n_done;         /* microbatches that are through the loop */
    int *arrived;       /* [parameter]: messages */
};

struct flow {
    const struct ap_pipeline_program *r;
    struct stage_state *stage; /* [stage] */
    struct ap_arena arena;
};

static void find_reads(struct flow *f, int stage)
{
    const struct ap_pipeline_program *r = f->r;
    const struct ap_program *prog = &r->stage[stage].prog;
    const struct ap_graph *g = &prog->local;
    struct reader *reader = &f->stage[stage].reader;
    int n = 0, n_operands = 0;

    reader->transfer = AP_NEW_N(&f->arena, g->n_params + 1, int);
    reader->share = AP_NEW_N(&f->arena, g->n_params + 1, bool);
    memset(reader->transfer, -1, ((size_t)g->n_params + 1) * sizeof(int));
    for (int t = 0; t < r->n_transfers; t++)
        if (r->transfer[t].to == stage)
            reader->transfer[r->transfer[t].param] = t;
    for (int p = 0; p < g->n_params; p++)
        reader->share[p] = ap_pipeline_is_share(prog, p);
    for (int i = 0; i < g->n_nodes; i++)
        n_operands += g->nodes[i].n_in;
    int *group = AP_NEW_N(&f->arena, n_operands + 1, int);
    int *param = AP_NEW_N(&f->arena, n_operands + 1, int);
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            const int in = g->nodes[i].in[k], alias = prog->buffer[in].alias;
            const struct ap_node *root = &g->nodes[alias >= 0 ? alias : in];
            const int p = root->op == AP_OP_PARAMETER ? root->param : -1;
            if (p < 0 || reader->transfer[p] < 0 || r->stage[stage].param[p] >= 0)
                continue;
            group[n] = g->nodes[i].group;
            param[n] = p;
            n++;
        }
    reader->reads = ap_csr_new(&f->arena, g->n_groups, n, group, param);
}

static void open_stage(struct flow *f, int stage)
{
    const int n = f->r->microbatches, lo = f->r->stage[stage].cuts.each_lo;
    const int n_params = f->r->stage[stage].prog.local.n_params;
    struct stage_state *s = &f->stage[stage];

    find_reads(f, stage);
    s->behind = f->r->stage[stage].cuts.each_hi;
    s->most = lo;
    s->n_done = lo == s->behind ? n : 0;
    s->next = AP_NEW_N(&f->arena, n, int);
    s->arrived = AP_NEW_N(&f->arena, n_params + 1, int);
    for (int m = 0; m < n; m++)
        s->next[m] = lo;
}

/* All messages of what groups lo .. hi - 1 read whole have arrived. */
static const char *check_reads(const struct flow *f, const struct stage_state *s, int lo,
                               int hi)
{
    const struct reader *reader = &s->reader;

    for (int k = reader->reads.start[lo]; k < reader->reads.start[hi]; k++) {
        const int p = reader->reads.item[k];
        const struct ap_transfer *t = &f->r->transfer[reader->transfer[p]];
        if (!reader->share[p] && s->arrived[p] < t->n_messages)
            return "reads a value that it has not received";
    }
    return NULL;
}

static const char *run_each(struct flow *f, const struct ap_pipeline_instr *x)
{
    const struct ap_pipeline_stage *st = &f->r->stage[x->stage];
    struct stage_state *s = &f->stage[x->stage];
    const int m = x->message;

    if (s->before != st->cuts.each_lo)
        return "runs a microbatch before the groups that run first";
    if (x->lo != s->next[m])
        return "does not go on where its microbatch is";
    if (ap_pipeline_pass(&st->cuts, x->lo) != ap_pipeline_pass(&st->cuts, x->hi - 1))
        return "runs groups of two passes at once";
    if (m > 0 && s->next[0] < x->hi)
        return "runs before microbatch 0, which starts the sums";
    s->next[m] = x->hi;
    s->most = s->most > x->hi ? s->most : x->hi;
    s->n_done += x->hi == st->cuts.each_hi && x->hi > x->lo;
    return check_reads(f, s, x->lo, x->hi);
}

/* Groups that run once: *next is the first that has not. */
static const char *run_once(struct flow *f, const struct ap_pipeline_instr *x, int *next)
{
    if (x->lo != *next)
        return "does not run its groups in order";
    *next = x->hi;
    return check_reads(f, &f->stage[x->stage], x->lo, x->hi);
}

static const char *run(struct flow *f, const struct ap_pipeline_instr *x)
{
    const struct ap_pipeline_cuts *c = &f->r->stage[x->stage].cuts;
    struct stage_state *s = &f->stage[x->stage];

    if (x->lo == x->hi)
        return "runs no group";
    if (x->hi <= c->each_lo)
        return run_once(f, x, &s->before);
    if (x->lo >= c->each_hi)
        return s->n_done < f->r->microbatches
                   ? "runs what comes last before all microbatches are through"
                   : run_once(f, x, &s->behind);
    if (x->lo < c->each_lo || x->hi > c->each_hi)
        return "runs groups of a microbatch and others at once";
    return run_each(f, x);
}

static const char *receive(struct flow *f, const struct ap_pipeline_instr *x)
{
    const struct ap_transfer *t = &f->r->transfer[x->transfer];
    const struct ap_pipeline_stage *st = &f->r->stage[t->to];
    struct stage_state *s = &f->stage[t->to];

    if (st->param[t->param] >= 0 && s->behind < st->prog.local.n_groups)
        return "receives a parameter's new value before the step has read the old one";
    s->arrived[t->param]++;
    return NULL;
}

/* Whether the value of a message is there. */
static const char *send(struct flow *f, const struct ap_pipeline_instr *x)
{
    static const char missing[] = "sends a value that is not there";
    const struct ap_transfer *t = &f->r->transfer[x->transfer];
    const struct ap_pipeline_stage *st = &f->r->stage[t->from];
    const struct stage_state *s = &f->stage[t->from];
    const struct ap_graph *g = &st->prog.local;
    const int i = g->results[t->result].node, m = x->message;
    const struct ap_node *n = &g->nodes[i];
    const bool share = ap_pipeline_sends_each(f->r, t);
    const bool carried = ap_program_is_carried(&st->prog, i);

    if (n->op == AP_OP_PARAMETER) {
        const int by = s->reader.transfer[n->param];
        const bool received = by >= 0 && st->param[n->param] < 0;
        return received && !s->reader.share[n->param] &&
                       s->arrived[n->param] < f->r->transfer[by].n_messages
                   ? missing
                   : NULL;
    }
    if (n->group < st->cuts.each_lo || n->group >= st->cuts.each_hi)
        return (n->group < st->cuts.each_lo ? s->before : s->behind) <= n->group ? missing
                                                                                 : NULL;
    for (int k = 0; k < f->r->microbatches && carried; k++)
        if (s->next[k] <= n->group)
            return "sends a sum before all microbatches are in it";
    if (carried)
        return NULL;
    return (share ? s->next[m] : s->most) <= n->group ? missing : NULL;
}

static const char *follow(struct flow *f, const struct ap_pipeline_instr *x)
{
    switch (x->what) {
    case AP_PIPELINE_RUN:
        return run(f, x);
    case AP_PIPELINE_SEND:
        return send(f, x);
    case AP_PIPELINE_RECEIVE:
        return receive(f, x);
    }
    return NULL;
}

static const char *check_end(const struct flow *f, int stage)
{
    const struct ap_pipeline_stage *st = &f->r->stage[stage];
    const struct stage_state *s = &f->stage[stage];

    if (s->before < st->cuts.each_lo || s->behind < st->prog.local.n_groups)
        return "does not run all groups that run once";
    return s->n_done < f->r->microbatches ? "does not run all groups of all microbatches"
                                          : NULL;
}

int ap_pipeline_check_flow(const struct ap_pipeline_program *program,
                           const struct ap_at *at, struct ap_err *err)
{
    const struct ap_at lanes = {at, "lanes", 0};
    struct flow f = {.r = program};
    int rc = 0;

    f.stage = AP_NEW_N(&f.arena, program->n_stages + 1, struct stage_state);
    for (int s = 0; s < program->n_stages; s++)
        open_stage(&f, s);
    for (int l = 0; l < program->n_lanes && !rc; l++) {
        const struct ap_lane *lane = &program->lane[l];
        const struct ap_at here = {&lanes, NULL, l}, list = {&here, "instructions", 0};
        for (int i = 0; i < lane->n && !rc; i++) {
            const struct ap_at item = {&list, NULL, i};
            const char *what = follow(&f, &lane->instr[i]);
            if (what)
                rc = ap_at_err(&item, err, "(rank %d) %s", lane->ranks[0], what);
        }
    }
    for (int s = 0; s < program->n_stages && !rc; s++) {
        const struct ap_at here = {&lanes, NULL, program->stage[s].lane};
        const char *what = check_end(&f, s);
        if (what)
            rc = ap_at_err(&here, err, "stage %d %s", s, what);
    }
    ap_arena_free(&f.arena);
    return rc;
}
