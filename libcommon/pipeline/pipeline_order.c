/*
 * Problem: in which order does each device of a pipeline run, send and receive, so that
 * it follows its schedule, computes as soon as it can, and never waits for ever? Idea:
 * the schedule gives stages and microbatches. A stage's groups run in order for each
 * microbatch; a message is received right before the first group that reads it, and sent
 * before the next instruction that has to wait, at the latest after the last group.
 * Groups that run once per step come before the first microbatch or after the last one.
 * The lists are then played: a lane that lacks a message sleeps until the message is
 * sent. Cost: linear in the instructions and in the readers of transferred values.
 */
#include "pipeline/pipeline_program.h"

#include "base/array.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool ap_pipeline_is_share(const struct ap_program *prog, int param)
{
    const struct ap_attrs *attrs = prog->local.nodes[prog->local.params[param]].attrs;
    return attrs->each ||
           (attrs->global && ap_layout_per_microbatch(&prog->mesh, &attrs->layout));
}

bool ap_pipeline_is_per_microbatch(const struct ap_pipeline_stage *st, int node)
{
    const struct ap_node *v = &st->prog.local.nodes[node];

    if (v->op == AP_OP_PARAMETER)
        return st->param[v->param] < 0 && ap_pipeline_is_share(&st->prog, v->param);
    return ap_pipeline_is_each(st, v->group) && !ap_program_is_carried(&st->prog, node);
}

bool ap_pipeline_sends_each(const struct ap_pipeline_program *program,
                            const struct ap_transfer *t)
{
    const struct ap_program *from = &program->stage[t->from].prog;
    const struct ap_program *to = &program->stage[t->to].prog;

    return ap_layout_per_microbatch(&from->mesh, &t->layout) ||
           to->local.nodes[to->local.params[t->param]].attrs->each;
}

/* ---- what a stage reads and sends, by group ---- */

enum { BEFORE, EACH, BEHIND = EACH + AP_N_PASSES, N_SPANS }; /* EACH + pass */

struct event {
    int group, transfer;
};
struct events {
    int n;
    struct event *v; /* by group, then transfer */
};

/* Of one stage: first readers in each span; makers. */
struct wiring {
    struct events reads[N_SPANS], makes;
};

struct orderer {
    struct ap_arena *arena;
    struct ap_pipeline_program *program;
    struct wiring *wiring;    /* [stage] */
    int *n_left[AP_N_PASSES]; /* [pass][stage]: microbatches that are still to run */
    int *at;                  /* [stage]: first group at the end that is not run */
    int *start;               /* [transfer]: first of its messages in `got` */
    bool *got, *sent;         /* [message]: received, sent */
    struct ap_lane *lane;     /* at hand */
    int cap;
};

static int span_of(const struct ap_pipeline_cuts *c, int group)
{
    return group < c->each_lo    ? BEFORE
           : group >= c->each_hi ? BEHIND
                                 : EACH + (int)ap_pipeline_pass(c, group);
}

static int compare_events(const void *pa, const void *pb)
{
    const struct event *a = pa, *b = pb;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    return a->transfer < b->transfer ? -1 : a->transfer > b->transfer;
}

static void add_event(struct events *e, int group, int transfer)
{
    e->v[e->n++] = (struct event){group, transfer};
}

static void wire(struct orderer *o)
{
    const struct ap_pipeline_program *r = o->program;
    int *n_in = AP_NEW_N(o->arena, r->n_stages, int);
    int *n_out = AP_NEW_N(o->arena, r->n_stages, int);

    for (int t = 0; t < r->n_transfers; t++) {
        n_out[r->transfer[t].from]++;
        n_in[r->transfer[t].to]++;
    }
    for (int s = 0; s < r->n_stages; s++) {
        o->wiring[s].makes.v = AP_NEW_N(o->arena, n_out[s] + 1, struct event);
        for (int k = 0; k < N_SPANS; k++)
            o->wiring[s].reads[k].v = AP_NEW_N(o->arena, n_in[s] + 1, struct event);
    }
    for (int t = 0; t < r->n_transfers; t++) {
        const struct ap_transfer *x = &r->transfer[t];
        const struct ap_graph *from = &r->stage[x->from].prog.local;
        const struct ap_graph *to = &r->stage[x->to].prog.local;
        int param = to->params[x->param], first[N_SPANS] = {-1, -1, -1, -1, -1};
        add_event(&o->wiring[x->from].makes,
                  from->nodes[from->results[x->result].node].group, t);
        bool new_value = r->stage[x->to].param[x->param] >= 0; /* when all is done */
        if (new_value)
            first[BEHIND] = to->n_groups;
        for (int u = to->user_start[param]; u < to->user_start[param + 1] && !new_value;
             u++) {
            int group = to->nodes[to->users[u]].group;
            int span = span_of(&r->stage[x->to].cuts, group);
            if (first[span] < 0 || group < first[span])
                first[span] = group;
        }
        for (int k = 0; k < N_SPANS; k++)
            if (first[k] >= 0)
                add_event(&o->wiring[x->to].reads[k], first[k], t);
    }
    for (int s = 0; s < r->n_stages; s++) {
        struct wiring *w = &o->wiring[s];
        qsort(w->makes.v, (size_t)w->makes.n, sizeof *w->makes.v, compare_events);
        for (int k = 0; k < N_SPANS; k++)
            qsort(w->reads[k].v, (size_t)w->reads[k].n, sizeof *w->reads[k].v,
                  compare_events);
    }
}

/* ---- instructions of one lane ---- */

static void add_instr(struct orderer *o, struct ap_pipeline_instr instr)
{
    struct ap_lane *lane = o->lane;
    AP_ROOM_IN(o->arena, lane->instr, lane->n, o->cap);
    lane->instr[lane->n++] = instr;
}

/* Sends what a made value has to say with microbatch m; last: no other one follows. */
static void send(struct orderer *o, int t, int m, bool last)
{
    const struct ap_pipeline_program *r = o->program;
    const struct ap_transfer *x = &r->transfer[t];
    const struct ap_program *prog = &r->stage[x->from].prog;
    bool share = ap_pipeline_sends_each(r, x);
    int node = prog->local.results[x->result].node, n = x->n_messages;

    if (!share && !last && ap_program_is_carried(prog, node))
        return;
    for (int k = share ? m : 0; k < (share ? m + 1 : n); k++) {
        if (o->sent[o->start[t] + k])
            continue;
        o->sent[o->start[t] + k] = true;
        add_instr(o, (struct ap_pipeline_instr){
                         .what = AP_PIPELINE_SEND, .transfer = t, .message = k});
    }
}

/* What microbatch m needs of a transfer and is not there yet; whether that was any. */
static bool lacks(const struct orderer *o, int t, int m, int *lo, int *hi)
{
    const struct ap_pipeline_program *r = o->program;
    const struct ap_transfer *x = &r->transfer[t];
    bool share = ap_pipeline_is_share(&r->stage[x->to].prog, x->param);

    *lo = share ? m : 0;
    *hi = share ? m + 1 : x->n_messages;
    return !o->got[o->start[t] + *lo];
}

static void receive(struct orderer *o, int t, int lo, int hi)
{
    for (int k = lo; k < hi; k++) {
        o->got[o->start[t] + k] = true;
        add_instr(o, (struct ap_pipeline_instr){
                         .what = AP_PIPELINE_RECEIVE, .transfer = t, .message = k});
    }
}

/* Groups lo .. hi - 1, what was made so far being sent; *made: next maker to look at. */
static void run(struct orderer *o, int stage, int lo, int hi, int m, bool last, int *made)
{
    const struct events *makes = &o->wiring[stage].makes;
    if (lo < hi && lo < o->program->stage[stage].prog.local.n_groups)
        add_instr(o, (struct ap_pipeline_instr){.what = AP_PIPELINE_RUN,
                                                .stage = stage,
                                                .lo = lo,
                                                .hi = hi,
                                                .message = m});
    for (; *made < makes->n && makes->v[*made].group < hi; ++*made)
        send(o, makes->v[*made].transfer, m, last);
}

/* Groups lo .. hi - 1 of a span of a stage, with microbatch m. */
static void add_part(struct orderer *o, int stage, int span, int lo, int hi, int m,
                     bool last)
{
    const struct wiring *w = &o->wiring[stage];
    const struct events *reads = &w->reads[span];
    int made = 0, read = 0, first, end;

    while (made < w->makes.n && w->makes.v[made].group < lo)
        made++;
    while (read < reads->n && reads->v[read].group < lo)
        read++;
    for (; read < reads->n && reads->v[read].group < hi; read++) {
        const struct event *e = &reads->v[read];
        if (!lacks(o, e->transfer, m, &first, &end))
            continue;
        run(o, stage, lo, e->group, m, last, &made);
        lo = e->group;
        receive(o, e->transfer, first, end);
    }
    run(o, stage, lo, hi, m, last, &made);
}

static void add_span(struct orderer *o, int stage, int span, int m, bool last)
{
    const struct ap_pipeline_cuts *c = &o->program->stage[stage].cuts;
    int n_groups = o->program->stage[stage].prog.local.n_groups;
    const int edge[] = {0,          c->each_lo, c->backward_lo, c->weights_lo,
                        c->each_hi, n_groups};

    add_part(o, stage, span, edge[span], edge[span + 1], m, last);
}

/* What runs once, at the end: the lane's stages one turn after the other, for they may
 * wait for each other; then the new values of others. */
static void add_end(struct orderer *o, int lane)
{
    const struct ap_pipeline_program *r = o->program;

    for (int left = 1, turn = 0; left > 0; turn++) {
        left = 0;
        for (int s = 0; s < r->n_stages; s++) {
            const struct ap_program *p = &r->stage[s].prog;
            if (r->stage[s].lane != lane)
                continue;
            int lo = o->at[s], n = p->local.n_groups;
            while (o->at[s] < n &&
                   (p->turn[o->at[s]] <= turn || r->n_lanes == r->n_stages))
                o->at[s]++;
            add_part(o, s, BEHIND, lo, o->at[s], 0, true);
            left += n - o->at[s];
        }
    }
    for (int s = 0; s < r->n_stages; s++) {
        int n = r->stage[s].prog.local.n_groups;
        if (r->stage[s].lane == lane)
            add_part(o, s, BEHIND, n, n + 1, 0, true);
    }
}

/* A lane's microbatches, as the schedule orders them. */
static void add_microbatches(struct orderer *o, const struct ap_instr *order, int n)
{
    for (int k = 0; k < n; k++) {
        const int s = order[k].stage, pass = (int)order[k].pass;
        const bool last = --o->n_left[pass][s] == 0;
        add_span(o, s, EACH + pass, order[k].microbatch, last);
    }
}

static int add_lane(struct orderer *o, int i, int chunks, struct ap_err *err)
{
    struct ap_pipeline_program *r = o->program;
    const struct ap_schedule_size size = {r->schedule, r->n_lanes, chunks,
                                          r->microbatches, r->pairs};
    struct ap_instr *order;
    int n;

    o->lane = &r->lane[i];
    o->cap = 0;
    if (ap_schedule_order(o->arena, &size, i, &order, &n, err))
        return -1;
    for (int s = 0; s < r->n_stages; s++) {
        if (r->stage[s].lane != i)
            continue;
        add_span(o, s, BEFORE, 0, true);
        o->at[s] = r->stage[s].cuts.each_hi;
        for (int pass = 0; pass < AP_N_PASSES; pass++)
            o->n_left[pass][s] = r->microbatches;
    }
    add_microbatches(o, order, n);
    add_end(o, i);
    return 0;
}

static int n_messages(struct ap_arena *arena, const struct ap_pipeline_program *r,
                      int **start)
{
    int64_t n = 0;

    *start = AP_NEW_N(arena, r->n_transfers + 1, int);
    for (int t = 0; t < r->n_transfers; t++) {
        (*start)[t] = (int)n;
        n += r->transfer[t].n_messages;
        if (n > INT_MAX / 2)
            return -1;
    }
    return (int)n;
}

int ap_pipeline_order(struct ap_arena *arena, int chunks,
                      struct ap_pipeline_program *program, struct ap_err *err)
{
    struct orderer o = {.arena = arena, .program = program};
    int n = n_messages(arena, program, &o.start);
    const struct ap_at at = {NULL, "pipeline", 0};

    if (n < 0)
        return ap_err_set(err, "/stages: too many messages between the stages");
    o.wiring = AP_NEW_N(arena, program->n_stages, struct wiring);
    for (int pass = 0; pass < AP_N_PASSES; pass++)
        o.n_left[pass] = AP_NEW_N(arena, program->n_stages, int);
    o.at = AP_NEW_N(arena, program->n_stages, int);
    o.got = AP_NEW_N(arena, n + 1, bool);
    o.sent = AP_NEW_N(arena, n + 1, bool);
    wire(&o);
    for (int i = 0; i < program->n_lanes; i++)
        if (add_lane(&o, i, chunks, err))
            return -1;
    return ap_pipeline_check(program, &at, err) ? 1 : 0;
}

/* ---- whether it works ---- */

struct player {
    const struct ap_pipeline_program *r;
    const struct ap_at *at;
    struct ap_err *err;
    int *start;          /* [transfer] */
    uint8_t *state;      /* [message]: 1 sent, 2 received */
    int *waits;          /* [message]: lane that waits for it, -1 */
    int *next;           /* [lane] */
    int *awake, n_awake; /* lanes that may go on */
};

static int complain(const struct player *p, int lane, int i, const char *what)
{
    struct ap_at lanes = {p->at, "lanes", 0}, here = {&lanes, NULL, lane},
                 list = {&here, "instructions", 0}, item = {&list, NULL, i};
    return ap_at_err(&item, p->err, "%s", what);
}

static bool has_slot(const struct ap_pipeline_stage *st,
                     const struct ap_pipeline_instr *x)
{
    return x->slot >= 0 && x->slot < ap_pipeline_n_slots(st);
}

/* What is wrong with instruction i of a lane, or NULL. */
static const char *check_instr(const struct ap_pipeline_program *r, int lane,
                               const struct ap_pipeline_instr *x)
{
    if (x->what == AP_PIPELINE_RUN) {
        if (x->stage < 0 || x->stage >= r->n_stages || r->stage[x->stage].lane != lane)
            return "the stage is not of this lane";
        if (!has_slot(&r->stage[x->stage], x))
            return "the stage has no such slot";
        if (x->lo < 0 || x->hi < x->lo || x->hi > r->stage[x->stage].prog.local.n_groups)
            return "runs groups that its program does not have";
        return x->message < 0 || x->message >= r->microbatches ? "has no such microbatch"
                                                               : NULL;
    }
    if (x->transfer < 0 || x->transfer >= r->n_transfers)
        return "no such transfer";
    const struct ap_transfer *t = &r->transfer[x->transfer];
    if (x->message < 0 || x->message >= t->n_messages)
        return "the transfer has no such message";
    const struct ap_pipeline_stage *st =
        &r->stage[x->what == AP_PIPELINE_SEND ? t->from : t->to];
    if (st->lane != lane)
        return "the transfer has its end in another lane";
    return has_slot(st, x) ? NULL : "the stage has no such slot";
}

/* Runs a lane until it lacks a message. */
static int play(struct player *p, int lane)
{
    const struct ap_lane *l = &p->r->lane[lane];

    for (; p->next[lane] < l->n; p->next[lane]++) {
        int i = p->next[lane];
        const struct ap_pipeline_instr *x = &l->instr[i];
        const char *what = check_instr(p->r, lane, x);
        if (what)
            return complain(p, lane, i, what);
        if (x->what == AP_PIPELINE_RUN)
            continue;
        int m = p->start[x->transfer] + x->message;
        bool sends = x->what == AP_PIPELINE_SEND;
        if (sends ? p->state[m] != 0 : p->state[m] == 2)
            return complain(p, lane, i,
                            sends ? "sends the message again"
                                  : "receives the message again");
        if (!sends && p->state[m] == 0) {
            p->waits[m] = lane;
            return 0;
        }
        p->state[m]++;
        if (sends && p->waits[m] >= 0) {
            p->awake[p->n_awake++] = p->waits[m];
            p->waits[m] = -1;
        }
    }
    return 0;
}

static const char *value_name(const struct ap_pipeline_program *r, int transfer)
{
    const struct ap_transfer *t = &r->transfer[transfer];
    const struct ap_graph *g = &r->stage[t->to].prog.local;
    return g->nodes[g->params[t->param]].name;
}

/* The receive that a lane waits with; NULL: it is through. */
static const struct ap_pipeline_instr *waits_with(const struct player *p, int lane)
{
    const struct ap_lane *l = &p->r->lane[lane];
    return p->next[lane] < l->n ? &l->instr[p->next[lane]] : NULL;
}

static int check_ends(const struct player *p)
{
    const struct ap_pipeline_program *r = p->r;
    const struct ap_pipeline_instr *x = NULL;
    int lane = 0;

    while (lane < r->n_lanes && !waits_with(p, lane))
        lane++;
    /* who waits for a lane that waits: after as many as there are it is one of a cycle,
       or one that waits for a lane that is through */
    for (int i = 0; i <= r->n_lanes && lane < r->n_lanes && waits_with(p, lane); i++) {
        x = waits_with(p, lane);
        lane = r->stage[r->transfer[x->transfer].from].lane;
    }
    if (x) {
        const struct ap_transfer *t = &r->transfer[x->transfer];
        return ap_at_err(
            p->at, p->err,
            "stage %d waits for %s of stage %d, message %d, which that stage sends only "
            "afterwards: the stages depend on each other in a cycle",
            t->to, value_name(r, x->transfer), t->from, x->message);
    }
    for (int t = 0; t < r->n_transfers; t++)
        for (int k = 0; k < r->transfer[t].n_messages; k++)
            if (p->state[p->start[t] + k] != 2)
                return ap_at_err(
                    p->at, p->err, "transfer %d (%s): message %d is never %s", t,
                    value_name(r, t), k, p->state[p->start[t] + k] ? "received" : "sent");
    return 0;
}

int ap_pipeline_check(const struct ap_pipeline_program *program, const struct ap_at *at,
                      struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct player p = {.r = program, .at = at, .err = err};
    int n = n_messages(&scratch, program, &p.start), rc = 0;

    if (n < 0) {
        ap_arena_free(&scratch);
        return ap_at_err(at, err, "too many messages");
    }
    p.state = AP_NEW_N(&scratch, n + 1, uint8_t);
    p.waits = AP_NEW_N(&scratch, n + 1, int);
    memset(p.waits, -1, ((size_t)n + 1) * sizeof *p.waits);
    p.next = AP_NEW_N(&scratch, program->n_lanes, int);
    p.awake = AP_NEW_N(&scratch, program->n_lanes + 1, int);
    for (int i = program->n_lanes - 1; i >= 0; i--)
        p.awake[p.n_awake++] = i;
    while (p.n_awake > 0 && !rc)
        rc = play(&p, p.awake[--p.n_awake]);
    if (!rc)
        rc = check_ends(&p);
    ap_arena_free(&scratch);
    return rc;
}
