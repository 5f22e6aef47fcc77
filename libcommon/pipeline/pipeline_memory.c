/*
 * Problem: a lane's instructions may be in order and yet find a value's memory taken: by
 * another microbatch's, another stage's, or by a slot that is not free yet. Idea: play
 * the lane on its arena with owners in place of numbers (program/play.h): an owner is a
 * value of a stage and, where it belongs to one, of a microbatch. A run plays its groups
 * with the buffers of its slot, a receive makes the parameter the owner of its buffer, a
 * send has to find its value. Cost: O(log n) per operand that a step reads.
 */
#include "base/pack.h"
#include "pipeline/pipeline_program.h"
#include "program/play.h"

struct stage_play {
    struct ap_play play;
    bool *lasting; /* [parameter], then [result]: of the whole graph */
    int64_t last;  /* microbatch that ran last */
};

struct lane_play {
    const struct ap_pipeline_program *r;
    struct stage_play *stage; /* [stage] */
    struct ap_owners owners;
    struct ap_arena arena;
};

/* Adds the ends of a stage's buffers, in all slots. */
static int add_edges(const struct ap_pipeline_stage *st, int64_t *edge, int n)
{
    for (int i = 0; i < st->prog.local.n_nodes; i++) {
        const struct ap_buffer *b = &st->prog.buffer[i];
        for (int k = 0; k < ap_pipeline_n_slots(st); k++) {
            const struct ap_slot slot = ap_pipeline_slot(st, k);
            const int64_t at = ap_slot_offset(&slot, b);
            if (b->offset < 0 || (k > 0 && at == b->offset))
                continue;
            edge[n++] = at;
            edge[n++] = at + b->bytes;
        }
    }
    return n;
}

/* *first: the number of its first value; moved past its last. */
static struct ap_fault open_stage(struct lane_play *p, int s, int64_t *first)
{
    const struct ap_pipeline_stage *st = &p->r->stage[s];
    const struct ap_graph *g = &st->prog.local;
    struct stage_play *mine = &p->stage[s];
    bool *each = AP_NEW_N(&p->arena, g->n_nodes + 1, bool);

    for (int i = 0; i < g->n_nodes; i++)
        each[i] = ap_pipeline_is_per_microbatch(st, i);
    mine->play = (struct ap_play){.prog = &st->prog,
                                  .owners = &p->owners,
                                  .first = *first,
                                  .n_tags = p->r->microbatches,
                                  .each = each};
    *first += (int64_t)g->n_nodes * p->r->microbatches;
    mine->lasting = AP_NEW_N(&p->arena, g->n_params + g->n_results + 1, bool);
    for (int k = 0; k < g->n_params; k++) {
        mine->lasting[k] = st->param[k] >= 0;
        if (mine->lasting[k])
            ap_play_take(&mine->play, g->params[k]);
    }
    for (int k = 0; k < g->n_results; k++)
        mine->lasting[g->n_params + k] = p->r->alone || st->result[k] >= 0;
    return ap_play_open(&p->arena, &mine->play);
}

static struct ap_play *play_of(const struct lane_play *p, int s, int slot, int64_t tag)
{
    struct ap_play *play = &p->stage[s].play;

    play->tag = tag;
    play->slot = ap_pipeline_slot(&p->r->stage[s], slot);
    return play;
}

/* *stage: where a fault is. */
static struct ap_fault follow(const struct lane_play *p,
                              const struct ap_pipeline_instr *x, int *stage)
{
    const struct ap_pipeline_program *r = p->r;
    const struct ap_transfer *t =
        x->what == AP_PIPELINE_RUN ? NULL : &r->transfer[x->transfer];
    struct ap_fault f = {NULL, -1, AP_NOBODY};

    *stage = !t ? x->stage : x->what == AP_PIPELINE_SEND ? t->from : t->to;
    const struct ap_pipeline_stage *st = &r->stage[*stage];
    struct stage_play *mine = &p->stage[*stage];
    const struct ap_graph *g = &st->prog.local;
    if (!t) {
        const bool each = ap_pipeline_is_each(st, x->lo);
        mine->last = each ? x->message : mine->last;
        return ap_play_groups(play_of(p, *stage, x->slot, mine->last), x->lo, x->hi,
                              each && x->message > 0);
    }
    if (x->what == AP_PIPELINE_RECEIVE) {
        ap_play_take(play_of(p, *stage, x->slot, x->message), g->params[t->param]);
        return f;
    }
    const bool share = ap_pipeline_sends_each(p->r, t);
    f.node = g->results[t->result].node;
    f.other = ap_play_intruder(
        play_of(p, *stage, x->slot, share ? x->message : mine->last), f.node);
    if (f.other != AP_MIXED)
        f.what = "is sent, but its memory does not hold it";
    return f;
}

/* at: of the lane, or of its instruction; of a program alone, the section. */
static int complain(struct lane_play *p, const struct ap_at *at, int rank, int stage,
                    const struct ap_fault *f, struct ap_err *err)
{
    const struct ap_at list = {at, "modules", 0}, module = {&list, NULL, 0};
    const struct ap_at graph = {&module, "graph", 0}, nodes = {&graph, "nodes", 0};
    const struct ap_at here = {&nodes, NULL, f->node};
    const char *name = p->r->stage[stage].prog.local.nodes[f->node].name, *by = "";

    for (int s = 0; s < p->r->n_stages && f->other >= 0; s++) {
        const int node =
            p->stage[s].play.prog ? ap_play_node(&p->stage[s].play, f->other) : -1;
        if (node >= 0)
            by = ap_arena_printf(&p->arena, " (by node %d, %s)", node,
                                 p->r->stage[s].prog.local.nodes[node].name);
    }
    return p->r->alone ? ap_at_err(&here, err, "(%s) %s%s", name, f->what, by)
                       : ap_at_err(at, err, "(rank %d) stage %d: node %d (%s) %s%s", rank,
                                   stage, f->node, name, f->what, by);
}

/* What is on the host lies behind all else, and ends where the lane's memory does. */
static int check_host(const struct ap_pipeline_program *r, int l, const struct ap_at *at,
                      struct ap_err *err)
{
    const struct ap_lane *lane = &r->lane[l];
    int64_t end = lane->peak_bytes;

    for (int s = 0; s < r->n_stages; s++) {
        const struct ap_pipeline_stage *st = &r->stage[s];
        const struct ap_slot last = ap_pipeline_slot(st, ap_pipeline_n_slots(st) - 1);
        for (int i = 0; i < st->prog.local.n_nodes && st->lane == l; i++) {
            const struct ap_buffer *b = &st->prog.buffer[i];
            const int64_t to = ap_slot_offset(&last, b) +
                               ap_ceil_div(b->bytes, AP_PACK_ALIGN) * AP_PACK_ALIGN;
            if (!st->prog.local.nodes[i].attrs->host)
                continue;
            if (b->offset < lane->peak_bytes)
                return ap_at_err(at, err,
                                 "stage %d: node %d (%s) is on the host, its buffer is "
                                 "within peak_bytes",
                                 s, i, st->prog.local.nodes[i].name);
            end = to > end ? to : end;
        }
    }
    if (end - lane->peak_bytes != lane->host_bytes)
        return ap_at_err(at, err, "host_bytes %lld, its buffers on the host take %lld",
                         (long long)lane->host_bytes,
                         (long long)(end - lane->peak_bytes));
    return 0;
}

static int check_lane(struct lane_play *p, int l, const struct ap_at *at,
                      struct ap_err *err)
{
    const struct ap_pipeline_program *r = p->r;
    const struct ap_lane *lane = &r->lane[l];
    const struct ap_at list = {at, "instructions", 0};
    struct ap_fault f = {NULL, -1, AP_NOBODY};
    int64_t first = 0, n = 2;
    int s, n_edges = 0;

    if (check_host(r, l, at, err))
        return -1;
    p->stage = AP_NEW_N(&p->arena, r->n_stages + 1, struct stage_play);
    for (s = 0; s < r->n_stages; s++)
        if (r->stage[s].lane == l)
            n += (int64_t)2 * r->stage[s].prog.local.n_nodes *
                 ap_pipeline_n_slots(&r->stage[s]);
    int64_t *edge = AP_NEW_N(&p->arena, n, int64_t);
    for (s = 0; s < r->n_stages; s++)
        if (r->stage[s].lane == l)
            n_edges = add_edges(&r->stage[s], edge, n_edges);
    ap_owners_open(&p->arena, &p->owners, edge, n_edges);
    for (s = 0; s < r->n_stages; s++) {
        if (r->stage[s].lane != l)
            continue;
        f = open_stage(p, s, &first);
        if (f.what)
            return complain(p, at, lane->ranks[0], s, &f, err);
    }
    for (int i = 0; i < lane->n; i++) {
        const struct ap_at here = {&list, NULL, i};
        if (r->alone && lane->instr[i].message > 1)
            continue; /* as the second microbatch does */
        f = follow(p, &lane->instr[i], &s);
        if (f.what)
            return complain(p, r->alone ? at : &here, lane->ranks[0], s, &f, err);
    }
    for (s = 0; s < r->n_stages; s++) {
        if (r->stage[s].lane != l)
            continue;
        f = ap_play_end(&p->stage[s].play, p->stage[s].lasting);
        if (f.what)
            return complain(p, at, lane->ranks[0], s, &f, err);
    }
    return 0;
}

int ap_pipeline_check_memory(const struct ap_pipeline_program *program,
                             const struct ap_at *at, struct ap_err *err)
{
    const struct ap_at lanes = {at, "lanes", 0};
    int rc = 0;

    for (int l = 0; l < program->n_lanes && !rc; l++) {
        const struct ap_at here = {&lanes, NULL, l};
        struct lane_play p = {.r = program};
        rc = check_lane(&p, l, program->alone ? at : &here, err);
        ap_arena_free(&p.arena);
    }
    return rc;
}
