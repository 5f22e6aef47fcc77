/*
 * Problem: a lane runs its stages' programs, forward and backward passes of several
 * microbatches in turn; where does each value live in the lane's one arena? A program
 * alone is one stage, whose microbatches run one after the other: it has no slots.
 *
 *     parameters | slot 0 | slot 1 | ... | all else, by best fit
 *
 *                    bytes of a slot, as a microbatch passes
 *     slot end  +------------+------------------+-------------+
 *               |  room for  |                  |   room for  |
 *     kept 3    |  forward's +                  +  backward's |  kept 3 is made last and
 *     kept 2    |  values  +-+  what is kept    +-+  values   |  read first; kept 1 is
 *     kept 1    |        +-+   between the two    +-+         |  made first, read last
 *     slot[k]   +------+-+--------------------------+-+-------+
 *               forward        other spans run        backward      time ->
 *
 * Idea: a value belongs to one span (a forward or a backward pass of a microbatch, or
 * what runs once) unless it is a parameter, a sum over microbatches, or kept by a forward
 * for its backward. Spans run one after the other, so that values of different spans may
 * share memory: one pass over each of them, in the order of the list, gives all
 * lifetimes. What is kept lies in a slot: one block for a microbatch in flight, of equal
 * form for all microbatches of a stage, placed by the instructions between which they are
 * in flight. What a backward pass leaves to the pass of weights takes the place of what
 * it has read for the last time, where it fits. In a slot, what the forward makes first
 * lies lowest; so the free part of the slot at hand is at its end in both passes, and
 * takes what else they need, where it fits. Lifetimes of all else are placed by
 * base/place.c. Cost: that of place.c, in the values and microbatches of a lane.
 */
#include "base/place.h"
#include "pipeline/pipeline_program.h"
#include "program/lives.h"

#include <string.h>

enum { NOWHERE = -1 };

/* n numbers that are NOWHERE. */
static int *nowhere(struct ap_arena *arena, int n)
{
    int *list = AP_NEW_N(arena, n + 1, int);

    for (int i = 0; i < n; i++)
        list[i] = NOWHERE;
    return list;
}

/* What a stage's program keeps in memory. */
struct stage_lives {
    struct ap_lives lives;
    int *step;             /* [group]: when it runs, in the lane's one pass; NOWHERE */
    int n_kept, n_forward; /* n_forward: of the forward pass, the first of them */
    int *kept;             /* nodes that a pass leaves to a later one, by birth */
    int64_t *at;           /* [of kept]: offset in the slot */
    bool *in_slot;         /* [node] */
    int64_t slot_bytes;
    bool behind; /* what runs once at the end reads a slot */
    int *first,
        *last;    /* [microbatch]: the spans between which it is in flight, NOWHERE */
    int *slot;    /* [microbatch] */
    int last_run; /* microbatch that ran last */
};

struct lane_plan {
    struct ap_arena *arena;
    struct ap_pipeline_program *program;
    struct ap_lane *lane;
    struct stage_lives *stage; /* [stage]; of the lane's */
    bool chunked;              /* the lane has several stages */
    int n_steps, loop_lo, loop_hi;
    int n_spans;
    /* What is placed, and the buffers that it is for; NULL: all slots, the last piece */
    int n_pieces;
    struct ap_pack_piece *piece;
    struct ap_buffer **buffer;
    int64_t base; /* end of the parameters */
};

static bool is_mine(const struct lane_plan *p, int s)
{
    return &p->program->lane[p->program->stage[s].lane] == p->lane;
}

/* The pass of a microbatch that a group is of; AP_N_PASSES: of none. */
static enum ap_pass pass_of(const struct ap_pipeline_stage *st, int group)
{
    return ap_pipeline_is_each(st, group) ? ap_pipeline_pass(&st->cuts, group)
                                          : AP_N_PASSES;
}

static bool is_on_host(const struct ap_graph *g, int node)
{
    return g->nodes[node].attrs->host;
}

/* ---- the order of things ---- */

/* Numbers the spans of the loop, and the groups in the order in which they first run. */
static void walk(struct lane_plan *p)
{
    struct ap_pipeline_instr was = {.stage = NOWHERE};
    enum ap_pass pass = AP_N_PASSES;

    p->loop_lo = NOWHERE;
    for (int i = 0; i < p->lane->n; i++) {
        const struct ap_pipeline_instr *x = &p->lane->instr[i];
        if (x->what != AP_PIPELINE_RUN)
            continue;
        const struct ap_pipeline_stage *st = &p->program->stage[x->stage];
        struct stage_lives *s = &p->stage[x->stage];
        const bool again = x->stage == was.stage && x->lo == was.lo && x->hi == was.hi;
        for (int k = x->lo; k < x->hi && !again; k++) {
            if (s->step[k] != NOWHERE)
                continue;
            s->step[k] = p->n_steps++;
            if (!ap_pipeline_is_each(st, k))
                continue;
            p->loop_lo = p->loop_lo < 0 ? s->step[k] : p->loop_lo;
            p->loop_hi = s->step[k];
        }
        if (!ap_pipeline_is_each(st, x->lo))
            continue;
        if (x->stage != was.stage || x->message != was.message ||
            pass_of(st, x->lo) != pass)
            p->n_spans++;
        was = *x;
        pass = pass_of(st, x->lo);
        if (s->first[x->message] < 0)
            s->first[x->message] = p->n_spans - 1;
        s->last[x->message] = p->n_spans - 1;
        s->last_run = x->message;
    }
}

static int step_of(const struct lane_plan *p, int s, int group)
{
    const struct stage_lives *l = &p->stage[s];

    if (group >= l->lives.g->n_groups)
        return p->n_steps; /* for ever */
    while (group > 0 && l->step[group] == NOWHERE)
        group--; /* nothing runs there */
    return l->step[group] == NOWHERE ? 0 : l->step[group];
}

/* ---- lifetimes ---- */

/* [node]: the first group that reads the value or is a view of it, before which it is
 * received (pipeline_order.c), NOWHERE. */
static int *find_first_reads(struct ap_arena *arena, const struct ap_lives *l)
{
    int *first = nowhere(arena, l->g->n_nodes);

    for (int i = l->g->n_nodes - 1; i >= 0; i--) /* nodes are in the order of groups */
        for (int k = 0; k < l->g->nodes[i].n_in; k++)
            first[l->root[l->g->nodes[i].in[k]]] = l->g->nodes[i].group;
    return first;
}

/*
 * Ends lifetimes that a program of its own would not: what another stage sends is there
 * from the first group that reads it to the last; what is only sent, to the end of its
 * span.
 */
static void end_messages(const struct lane_plan *p, int s)
{
    const struct ap_pipeline_stage *st = &p->program->stage[s];
    struct ap_lives *l = &p->stage[s].lives;
    const int *first = find_first_reads(p->arena, l);
    bool *result = AP_NEW_N(p->arena, l->g->n_nodes, bool);
    bool *stays = AP_NEW_N(p->arena, l->g->n_nodes, bool);
    int *sent = AP_NEW_N(p->arena, l->g->n_nodes, int); /* end of the last span of it */

    for (int r = 0; r < l->g->n_results; r++) {
        const int of = l->g->results[r].node, node = l->root[of];
        const enum ap_pass pass = pass_of(st, l->g->nodes[of].group);
        const int end =
            ap_pipeline_pass_hi(&st->cuts, pass == AP_N_PASSES ? AP_PASS_FORWARD : pass);
        result[node] = true;
        stays[node] |= st->result[r] >= 0;
        sent[node] = sent[node] < end ? end : sent[node]; /* a view may be sent later */
    }
    for (int k = 0; k < l->g->n_params; k++) {
        const int node = l->g->params[k];
        const bool once = p->program->microbatches == 1;
        if (st->param[k] >= 0 || result[node] || first[node] < 0 ||
            !(once || ap_pipeline_is_share(&st->prog, k)))
            continue;
        l->birth[node] = first[node];
        l->death[node] = l->read[node];
    }
    for (int i = 0; i < l->g->n_nodes; i++) {
        const int group = l->g->nodes[i].group;
        if (!result[i] || stays[i] || !l->has[i] || !ap_pipeline_is_each(st, group) ||
            l->g->nodes[i].op == AP_OP_PARAMETER)
            continue;
        l->death[i] = l->read[i] < sent[i] ? sent[i] - 1 : l->read[i];
        ap_program_stretch(&st->prog, i, &l->birth[i], &l->death[i]);
    }
}

static int most_in_flight(const struct lane_plan *p, const struct stage_lives *s)
{
    int *change = AP_NEW_N(p->arena, p->n_spans + 1, int), most = 0, now = 0;

    for (int m = 0; m < p->program->microbatches; m++)
        if (s->first[m] >= 0) {
            change[s->first[m]]++;
            change[s->last[m] + 1]--;
        }
    for (int i = 0; i < p->n_spans; i++) {
        now += change[i];
        most = now > most ? now : most;
    }
    return most;
}

struct born {
    int birth, node;
};

static int by_birth(const void *pa, const void *pb)
{
    const struct born *a = pa, *b = pb;
    if (a->birth != b->birth)
        return a->birth < b->birth ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

/* Whether a microbatch's value is made in one pass and read in a later one. */
static bool is_kept(const struct ap_pipeline_cuts *c, int birth, int read)
{
    return (birth < c->backward_lo && read >= c->backward_lo) ||
           (c->weights_lo < c->each_hi && birth < c->weights_lo && read >= c->weights_lo);
}

/* What lies in slots; nothing, where a lane has one stage that keeps one microbatch. */
static void find_kept(const struct lane_plan *p, int s)
{
    const struct ap_pipeline_stage *st = &p->program->stage[s];
    struct stage_lives *l = &p->stage[s];
    const struct ap_lives *v = &l->lives;
    struct born *born = AP_NEW_N(p->arena, v->g->n_nodes, struct born);

    if (p->program->microbatches == 1 || (!p->chunked && most_in_flight(p, l) < 2))
        return;
    for (int i = 0; i < v->g->n_nodes; i++)
        if (v->has[i] && v->root[i] == i && ap_pipeline_is_per_microbatch(st, i) &&
            !is_on_host(v->g, i) && is_kept(&st->cuts, v->birth[i], v->read[i]))
            born[l->n_kept++] = (struct born){v->birth[i], i};
    qsort(born, (size_t)l->n_kept, sizeof *born, by_birth);
    l->kept = AP_NEW_N(p->arena, l->n_kept + 1, int);
    l->at = AP_NEW_N(p->arena, l->n_kept + 1, int64_t);
    for (int i = 0; i < l->n_kept; i++) {
        const int node = born[i].node;
        l->kept[i] = node;
        if (born[i].birth < st->cuts.backward_lo) { /* others: place_stage */
            l->n_forward++;
            l->at[i] = l->slot_bytes;
            l->slot_bytes += ap_buffer_align(st->prog.buffer[node].bytes);
        }
        l->behind |= v->death[node] >= st->cuts.each_hi;
    }
    for (int i = 0; i < v->g->n_nodes && l->slot_bytes == 0; i++)
        if (is_on_host(v->g, i) && ap_pipeline_is_per_microbatch(st, i))
            /* nothing is kept on the device, but slots number the places on the host:
               a slot of the least size, so that the schedule assigns them */
            l->slot_bytes = AP_PACK_ALIGN;
}

/* ---- slots ---- */

/* A block is made larger to be a multiple of another one by an eighth of it at most:
 * chunks of equal layers differ by what the first and the last one have besides. */
#define SLACK 8

/* Bytes of a block of a stage, if blocks are to be multiples of a unit. */
static int64_t block_bytes(int64_t slot, int64_t unit)
{
    const int64_t whole = (slot + unit - 1) / unit * unit;

    return whole - slot <= slot / SLACK ? whole : slot;
}

/*
 * Places the microbatches in flight; returns where the last block ends. Blocks of chunks
 * that are alike but for a few values would leave gaps that none of the larger ones fits,
 * as they come and go: they are placed as they are, and as multiples of each stage's.
 */
static int64_t place_blocks(struct lane_plan *p, struct ap_pack_piece *piece,
                            const int *of, int n)
{
    struct ap_pack_piece *now = AP_NEW_N(p->arena, n, struct ap_pack_piece);
    int64_t least = INT64_MAX, tried = 0, alive = 0, most;

    for (int s = NOWHERE; s < p->program->n_stages && least > alive; s++) {
        const int64_t unit = s < 0 ? AP_PACK_ALIGN : p->stage[s].slot_bytes;
        if ((s >= 0 && !is_mine(p, s)) || unit == 0 || unit == tried)
            continue;
        tried = unit;
        for (int i = 0; i < n; i++) {
            now[i] = piece[i];
            now[i].size = block_bytes(p->stage[of[i]].slot_bytes, unit);
        }
        const int64_t end =
            ap_place(p->arena, now, n, p->n_spans, 0, s < 0 ? &alive : &most);
        if (end < least) {
            least = end;
            memcpy(piece, now, (size_t)n * sizeof *now);
        }
    }
    return least;
}

/* Gives every microbatch in flight a block of all slots; returns the bytes of all. */
static int64_t place_slots(struct lane_plan *p)
{
    const struct ap_pipeline_program *r = p->program;
    const size_t most = (size_t)r->n_stages * (size_t)r->microbatches;
    struct ap_pack_piece *piece = AP_NEW_N(p->arena, most, struct ap_pack_piece);
    int *of = AP_NEW_N(p->arena, most, int), n = 0;

    for (int s = 0; s < r->n_stages; s++)
        for (int m = 0; is_mine(p, s) && m < r->microbatches; m++)
            if (p->stage[s].slot_bytes > 0 && p->stage[s].first[m] >= 0) {
                of[n] = s;
                piece[n++] = (struct ap_pack_piece){
                    p->stage[s].first[m], p->stage[s].last[m], p->stage[s].slot_bytes, 0};
            }
    if (n == 0)
        return 0;
    const int64_t end = place_blocks(p, piece, of, n);
    n = 0;
    for (int s = 0; s < r->n_stages; s++) {
        struct ap_pipeline_stage *st = &p->program->stage[s];
        struct stage_lives *l = &p->stage[s];
        if (!is_mine(p, s) || l->slot_bytes == 0)
            continue;
        int64_t *slot = AP_NEW_N(p->arena, r->microbatches, int64_t);
        st->slot = slot;
        st->slot_bytes = l->slot_bytes;
        for (int m = 0; m < r->microbatches; m++) {
            if (l->first[m] < 0)
                continue;
            const int64_t at = piece[n++].offset;
            int k = 0;
            while (k < st->n_slots && slot[k] != at)
                k++;
            if (k == st->n_slots)
                slot[st->n_slots++] = at;
            l->slot[m] = k;
        }
    }
    return end;
}

/* ---- the rest ---- */

static void add_piece(struct lane_plan *p, struct ap_buffer *buffer, int birth, int death,
                      int64_t bytes)
{
    p->piece[p->n_pieces] = (struct ap_pack_piece){birth, death, bytes, 0};
    p->buffer[p->n_pieces++] = buffer;
}

/* The lifetime of a value, in steps of the lane. */
static void lifetime(const struct lane_plan *p, int s, int node, int *birth, int *death)
{
    const struct ap_pipeline_cuts *c = &p->program->stage[s].cuts;
    const struct ap_lives *l = &p->stage[s].lives;
    const int lo = l->birth[node], hi = l->death[node];
    const bool carried = ap_program_is_carried(&p->program->stage[s].prog, node);
    const bool in_loop = lo < c->each_hi && hi >= c->each_lo;
    const bool in_each = lo >= c->each_lo && hi < c->each_hi && !carried;
    const bool in_span = in_each && ap_pipeline_pass(c, lo) == ap_pipeline_pass(c, hi);

    *birth = step_of(p, s, lo);
    *death = step_of(p, s, hi);
    if (!in_loop || in_span || p->program->microbatches == 1 || p->program->alone ||
        (in_each && !p->chunked && p->stage[s].n_kept == 0))
        return;
    /* other spans run between its own */
    *birth = *birth < p->loop_lo ? *birth : p->loop_lo;
    *death = *death > p->loop_hi ? *death : p->loop_hi;
}

/* A lifetime on the clock of a pass: base/place.c fills memory that becomes free part by
 * part, as the backward pass frees a slot. The forward pass takes it part by part: what
 * fits there is what fits in the backward pass of a clock that runs the other way. */
static struct ap_pack_piece on_clock(const struct lane_plan *p, bool back, int birth,
                                     int death)
{
    const int end = p->n_steps;
    return back ? (struct ap_pack_piece){.birth = birth, .death = death}
                : (struct ap_pack_piece){.birth = end - death, .death = end - birth};
}

/* Values of a pass that fit where the slot is free then; of the backward pass, also those
 * that it leaves to the pass of weights. */
static void fill_slot(struct lane_plan *p, int s, enum ap_pass pass, bool *placed)
{
    const bool back = pass != AP_PASS_FORWARD;
    const struct ap_pipeline_stage *st = &p->program->stage[s];
    struct stage_lives *l = &p->stage[s];
    const struct ap_graph *g = l->lives.g;
    struct ap_pack_piece *hole = AP_NEW_N(p->arena, l->n_forward, struct ap_pack_piece);
    struct ap_pack_piece *piece = AP_NEW_N(p->arena, g->n_nodes, struct ap_pack_piece);
    int *node = AP_NEW_N(p->arena, g->n_nodes, int), n = 0;
    bool *taken = AP_NEW_N(p->arena, g->n_nodes, bool);

    for (int i = 0; i < l->n_forward; i++) {
        const int v = l->kept[i];
        hole[i] = on_clock(p, back, step_of(p, s, l->lives.birth[v]),
                           step_of(p, s, l->lives.death[v]));
        hole[i] = (struct ap_pack_piece){
            hole[i].death + 1, 0, ap_buffer_align(st->prog.buffer[v].bytes), l->at[i]};
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const int lo = l->lives.birth[i], hi = l->lives.death[i];
        if (placed[i] || !l->lives.has[i] || l->lives.root[i] != i || is_on_host(g, i) ||
            !ap_pipeline_is_per_microbatch(st, i))
            continue;
        if (lo < ap_pipeline_pass_lo(&st->cuts, pass) ||
            lo >= ap_pipeline_pass_hi(&st->cuts, pass) ||
            hi >= (pass == AP_PASS_BACKWARD ? st->cuts.each_hi
                                            : ap_pipeline_pass_hi(&st->cuts, pass)))
            continue;
        node[n] = i;
        piece[n] = on_clock(p, back, step_of(p, s, lo), step_of(p, s, hi));
        piece[n++].size = ap_buffer_align(st->prog.buffer[i].bytes);
    }
    ap_place_in_holes(p->arena, hole, l->n_forward, piece, n, p->n_steps + 1, taken);
    for (int i = 0; i < n; i++)
        if (taken[i]) {
            placed[node[i]] = true;
            st->prog.buffer[node[i]].offset = piece[i].offset; /* in the slot */
        }
}

/* Parameters, and what slots hold, from the slot on; all else becomes pieces. */
static void place_stage(struct lane_plan *p, int s)
{
    struct ap_pipeline_stage *st = &p->program->stage[s];
    struct stage_lives *l = &p->stage[s];
    const struct ap_graph *g = l->lives.g;
    bool *placed = l->in_slot = AP_NEW_N(p->arena, g->n_nodes, bool);

    for (int i = 0; i < l->n_forward; i++) {
        placed[l->kept[i]] = true;
        st->prog.buffer[l->kept[i]].offset = l->at[i];
    }
    for (int pass = 0; pass < AP_N_PASSES && l->n_forward > 0; pass++) {
        bool fills = true; /* holes may be taken until the pass of weights is over */
        for (int i = l->n_forward; i < l->n_kept && pass == AP_PASS_WEIGHTS; i++)
            fills &= !placed[l->kept[i]];
        if (fills)
            fill_slot(p, s, (enum ap_pass)pass, placed);
    }
    for (int i = l->n_forward; i < l->n_kept; i++)
        if (!placed[l->kept[i]]) {
            placed[l->kept[i]] = true;
            st->prog.buffer[l->kept[i]].offset = l->slot_bytes;
            l->slot_bytes += ap_buffer_align(st->prog.buffer[l->kept[i]].bytes);
        }
    for (int i = 0; i < g->n_nodes; i++) {
        struct ap_buffer *b = &st->prog.buffer[i];
        const int64_t bytes = ap_buffer_align(b->bytes);
        int birth, death;
        if (placed[i] || is_on_host(g, i)) {
            continue;
        } else if (l->lives.has[i] && g->nodes[i].op == AP_OP_PARAMETER &&
                   l->lives.birth[i] == 0 && l->lives.death[i] == g->n_groups) {
            b->offset = p->base;
            p->base += bytes;
        } else if (l->lives.has[i]) {
            lifetime(p, s, i, &birth, &death);
            add_piece(p, b, birth, death, bytes);
        }
    }
}

static void open_stage(struct lane_plan *p, int s)
{
    struct ap_pipeline_stage *st = &p->program->stage[s];
    struct stage_lives *l = &p->stage[s];
    const struct ap_graph *g = &st->prog.local;
    const int n = p->program->microbatches;

    st->prog.buffer = AP_NEW_N(p->arena, g->n_nodes, struct ap_buffer);
    for (int i = 0; i < g->n_nodes; i++)
        st->prog.buffer[i] =
            (struct ap_buffer){NOWHERE, ap_shape_bytes(&g->nodes[i].shape), NOWHERE};
    ap_lives_find(p->arena, &st->prog, &l->lives);
    l->step = nowhere(p->arena, g->n_groups + 1);
    l->first = nowhere(p->arena, n);
    l->last = AP_NEW_N(p->arena, n, int);
    l->slot = AP_NEW_N(p->arena, n, int);
    if (!p->program->alone)
        end_messages(p, s);
}

/*
 * Places what a stage has on the host from `at` on, each value beside the others: what
 * is of a microbatch once for each slot. Returns where it ends.
 */
static int64_t place_on_host(struct lane_plan *p, int s, int64_t at)
{
    struct ap_pipeline_stage *st = &p->program->stage[s];
    const struct ap_lives *l = &p->stage[s].lives;

    for (int each = 0; each < 2; each++) {
        st->host_at = at;
        for (int i = 0; i < l->g->n_nodes; i++) {
            if (!is_on_host(l->g, i) || !l->has[i] ||
                ap_pipeline_is_per_microbatch(st, i) != each)
                continue;
            st->prog.buffer[i].offset = at;
            at += ap_buffer_align(st->prog.buffer[i].bytes);
        }
    }
    st->host_slot_bytes = at - st->host_at;
    return st->host_at + st->host_slot_bytes * ap_pipeline_n_slots(st);
}

/* Offsets in the arena for what lies in slots, and for views; the program's end. */
static void close_stage(struct lane_plan *p, int s, int64_t slots)
{
    struct ap_pipeline_stage *st = &p->program->stage[s];
    struct stage_lives *l = &p->stage[s];
    const struct ap_graph *g = l->lives.g;
    struct ap_buffer *b = st->prog.buffer;
    int64_t *slot = AP_NEW_N(p->arena, st->n_slots + 1, int64_t);

    for (int k = 0; k < st->n_slots; k++)
        slot[k] = slots + st->slot[k];
    st->slot = slot;
    st->prog.peak_bytes = 0;
    for (int i = 0; i < g->n_nodes; i++)
        b[i].offset += l->in_slot[i] ? slot[0] : 0;
    ap_lives_share(&l->lives, b);
    for (int i = 0; i < g->n_nodes; i++) {
        const int64_t end = b[i].offset + ap_buffer_align(b[i].bytes);
        if (b[i].offset >= 0 && !is_on_host(g, i) && end > st->prog.peak_bytes)
            st->prog.peak_bytes = end;
    }
}

/* Which slot each instruction uses: its microbatch's, where it has one. */
static void number_slots(const struct lane_plan *p)
{
    const struct ap_pipeline_program *r = p->program;
    int *now = AP_NEW_N(p->arena, r->n_stages, int); /* [stage]: of what ran last */

    for (int i = 0; i < p->lane->n; i++) {
        struct ap_pipeline_instr *x = &p->lane->instr[i];
        if (x->what == AP_PIPELINE_RUN) {
            const struct ap_pipeline_stage *st = &r->stage[x->stage];
            const struct stage_lives *l = &p->stage[x->stage];
            if (ap_pipeline_is_each(st, x->lo))
                x->slot = l->slot[x->message];
            else if (x->lo >= st->cuts.each_hi && l->behind)
                x->slot = l->slot[l->last_run];
            now[x->stage] = x->slot;
            continue;
        }
        const struct ap_transfer *t = &r->transfer[x->transfer];
        if (x->what == AP_PIPELINE_SEND)
            x->slot = ap_pipeline_sends_each(r, t) ? p->stage[t->from].slot[x->message]
                                                   : now[t->from];
        else if (ap_pipeline_is_share(&r->stage[t->to].prog, t->param))
            x->slot = p->stage[t->to].slot[x->message];
    }
}

/* limit: as of ap_plan_buffers. Returns the most that is in use at once.
 */
static int64_t plan_lane(struct ap_arena *arena, struct ap_pipeline_program *program,
                         struct ap_lane *lane, int64_t limit)
{
    struct lane_plan p = {.arena = arena,
                          .program = program,
                          .lane = lane,
                          .stage =
                              AP_NEW_N(arena, program->n_stages, struct stage_lives)};
    int n_stages = 0, n_nodes = 0;
    bool behind = false;
    int64_t alive;

    for (int s = 0; s < program->n_stages; s++)
        if (is_mine(&p, s)) {
            open_stage(&p, s);
            n_stages++;
            n_nodes += program->stage[s].prog.local.n_nodes;
        }
    p.chunked = n_stages > 1;
    p.piece = AP_NEW_N(arena, n_nodes + 1, struct ap_pack_piece);
    p.buffer = AP_NEW_N(arena, n_nodes + 1, struct ap_buffer *);
    walk(&p);
    for (int s = 0; s < program->n_stages; s++)
        if (is_mine(&p, s)) {
            find_kept(&p, s);
            place_stage(&p, s);
            behind |= p.stage[s].behind;
        }
    const int64_t slots = place_slots(&p);
    if (slots > 0)
        add_piece(&p, NULL, p.loop_lo, behind ? p.n_steps : p.loop_hi, slots);
    if (limit > 0)
        limit = limit > p.base ? limit - p.base : 1;
    lane->peak_bytes =
        p.base + ap_place(arena, p.piece, p.n_pieces, p.n_steps + 1, limit, &alive);
    for (int i = 0; i < p.n_pieces; i++)
        if (p.buffer[i])
            p.buffer[i]->offset = p.base + p.piece[i].offset;
    int64_t end = lane->peak_bytes;
    for (int s = 0; s < program->n_stages; s++)
        if (is_mine(&p, s))
            end = place_on_host(&p, s, end);
    lane->host_bytes = end - lane->peak_bytes;
    for (int s = 0; s < program->n_stages; s++)
        if (is_mine(&p, s))
            close_stage(&p, s, slots > 0 ? p.base + p.piece[p.n_pieces - 1].offset : 0);
    number_slots(&p);
    return p.base + alive;
}

void ap_pipeline_buffers(struct ap_arena *arena, struct ap_pipeline_program *program,
                         int64_t limit)
{
    bool fits = true;

    for (int i = 0; i < program->n_lanes && fits; i++) {
        plan_lane(arena, program, &program->lane[i], limit);
        fits = limit == 0 || program->lane[i].peak_bytes <= limit;
    }
}

void ap_plan_buffers(struct ap_arena *arena, struct ap_program *prog, int64_t limit)
{
    struct ap_arena scratch = {0};
    struct ap_pipeline_program one;

    ap_pipeline_of_program(&scratch, prog, &one);
    prog->alive_bytes = plan_lane(&scratch, &one, one.lane, limit);
    prog->peak_bytes = one.lane->peak_bytes;
    prog->buffer = ap_arena_dup(arena, one.stage->prog.buffer,
                                (size_t)prog->local.n_nodes * sizeof *prog->buffer);
    ap_arena_free(&scratch);
}
