/*
 * Problem: the line that a trainer can run and that is nearest to a plan's. Idea: a list
 * of changes, each for something that some trainer lacks; of all sets of changes the
 * smallest one whose line the trainer's conditions accept, earlier changes first. Cost:
 * sets of changes (2^15) times the conditions, milliseconds.
 */
#include "trainer.h"

#include "pipeline/stage_cost.h"

/* What a change does to a line; false: there is nothing to change. */
typedef bool change(struct trainer_plan *p, const struct ap_trainer *t, int how);

static bool is_staged(const struct trainer_plan *p)
{
    return ap_line_stages(&p->s.line) > 1;
}

static bool set_1f1b(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    struct ap_line *l = &p->s.line;

    (void)t, (void)how;
    if (!is_staged(p) || l->chunks > 1 || l->schedule == AP_SCHEDULE_1F1B)
        return false;
    l->schedule = AP_SCHEDULE_1F1B;
    return true;
}

static bool turn_sequence(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    const bool other = p->s.line.degrees.sequence != how;

    (void)t;
    p->s.line.degrees.sequence = how;
    return other && p->s.line.degrees.tensor > 1;
}

static bool shard_all(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    struct ap_degrees *d = &p->s.line.degrees;
    const bool other = d->zero > 0 && d->shard != d->data * d->context;

    (void)t, (void)how;
    d->shard = d->data * d->context;
    return other;
}

static bool set_zero(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    struct ap_degrees *d = &p->s.line.degrees;
    const bool other = d->zero != how;

    if (d->zero == 0)
        shard_all(p, t, how);
    d->zero = how;
    return other;
}

static bool keep_experts_whole(struct trainer_plan *p, const struct ap_trainer *t,
                               int how)
{
    struct ap_degrees *d = &p->s.line.degrees;
    const bool split = d->expert > 1 && d->expert_tensor > 1;

    (void)how;
    if (!split)
        return false;
    d->expert *= d->expert_tensor;
    d->expert_tensor = t->habits(&p->s.line).expert_tensor;
    for (int a = 0; a < AP_MAX_AXES; a++)
        if (p->uses.expert_use[a] == AP_USE_TENSOR)
            p->uses.expert_use[a] = AP_USE_EXPERT;
    return true;
}

static bool set_recompute(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    struct ap_line *l = &p->s.line;
    const bool other =
        l->recompute != AP_LINE_RECOMPUTE_NONE &&
        ((int)l->recompute != how || l->recompute_first || l->recompute_group);

    (void)t;
    l->recompute = (enum ap_line_recompute)how;
    l->recompute_first = l->recompute_group = 0;
    return other;
}

static bool one_stage_each(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    struct ap_line *l = &p->s.line;
    const int64_t stages = ap_line_stages(l);
    const int *before = l->layers;

    (void)t, (void)how;
    if (!is_staged(p))
        return false;
    if (l->chunks > 1)
        l->schedule = AP_SCHEDULE_1F1B;
    l->chunks = 1;
    trainer_even_layers(p->arena, p);
    bool other = stages != l->n_layers;
    for (int i = 0; !other && i < l->n_layers; i++)
        other = before[i] != l->layers[i];
    return other;
}

/* The devices of tensor, or context, parallelism. */
static bool use_as_data(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    struct ap_degrees *d = &p->s.line.degrees;
    int64_t *degree = how == AP_USE_TENSOR ? &d->tensor : &d->context;

    (void)t;
    if (*degree == 1)
        return false;
    for (int a = 0; a < AP_MAX_AXES; a++) {
        if ((int)p->uses.use[a] == how)
            p->uses.use[a] = AP_USE_DATA;
        if ((int)p->uses.expert_use[a] == how)
            p->uses.expert_use[a] = AP_USE_DATA;
    }
    d->data *= *degree;
    *degree = 1;
    if (how == AP_USE_TENSOR) {
        d->shard = d->zero ? d->data * d->context : 1;
        d->expert_tensor = d->expert_tensor ? 1 : 0;
        d->sequence = false;
    } else {
        d->ring = false;
    }
    return true;
}

static bool gather_context(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    const bool ring = p->s.line.degrees.ring;

    (void)t, (void)how;
    p->s.line.degrees.ring = false;
    return ring;
}

static bool least_micro_batch(struct trainer_plan *p, const struct ap_trainer *t, int how)
{
    struct ap_plan_line *s = &p->s;
    const bool other = s->line.micro_batch > 1;

    (void)t, (void)how;
    s->microbatches = s->batch / s->line.degrees.data;
    return other && s->microbatches > 0;
}

/* In the order in which they are tried. */
static const struct {
    change *does;
    int how;
    const char *said;
} changes[] = {
    {set_1f1b, 0, "the schedule is 1f1b instead"},
    {turn_sequence, true, "tensor parallelism with sequence parallelism"},
    {turn_sequence, false, "tensor parallelism without sequence parallelism"},
    {set_zero, 2, "gradients are sharded (ZeRO-2)"},
    {set_zero, 1, "gradients are summed whole (ZeRO-1)"},
    {set_zero, 3, "weights are sharded, too (ZeRO-3)"},
    {shard_all, 0, "ZeRO shards over all data parallel devices"},
    {keep_experts_whole, 0,
     "experts are not split beside expert parallelism: those devices have different "
     "experts"},
    {set_recompute, AP_LINE_RECOMPUTE_OPERATORS,
     "recomputed: all but attention and every other product"},
    {set_recompute, AP_LINE_RECOMPUTE_FULL,
     "layers are recomputed whole or not at all: all are"},
    {one_stage_each, 0, "one stage on each set of devices, of as many layers each"},
    {gather_context, 0, "keys and values are gathered, not passed round"},
    {use_as_data, AP_USE_TENSOR,
     "no tensor parallelism: its devices split the batch instead"},
    {use_as_data, AP_USE_CONTEXT,
     "no context parallelism: its devices split the batch instead"},
    {least_micro_batch, 0, "micro-batches of one sample"},
};
#define N_CHANGES ((int)(sizeof changes / sizeof *changes))

/* Makes the changes of a set; false: one of them changes nothing, or undoes another. */
static bool make_changes(struct trainer_plan *p, const struct ap_trainer *t, unsigned set)
{
    for (int i = 0, zero = 0, recompute = 0; i < N_CHANGES; i++) {
        if (!(set >> i & 1))
            continue;
        zero += changes[i].does == set_zero;
        recompute += changes[i].does == set_recompute;
        if (zero > 1 || recompute > 1 || !changes[i].does(p, t, changes[i].how))
            return false;
    }
    return true;
}

/* ZeRO's stage of each axis, from the degrees. */
static void set_axes(struct trainer_plan *p)
{
    const struct ap_degrees *d = &p->s.line.degrees;
    const bool all = d->shard == d->data * d->context;

    for (int a = 0; a < AP_MAX_AXES; a++) {
        const bool share =
            p->uses.use[a] == AP_USE_DATA || p->uses.use[a] == AP_USE_CONTEXT;
        if (share && (all || p->uses.zero[a] > 0 || d->zero == 0))
            p->uses.zero[a] = (uint8_t)d->zero;
    }
}

/* Devices that do the same split the batch. */
static void use_idle(struct trainer_plan *p, struct ap_notes *notes)
{
    struct ap_degrees *d = &p->s.line.degrees;

    if (d->idle <= 1)
        return;
    ap_note(notes, "%lld devices do the same in the plan: they split the batch",
            (long long)d->idle);
    for (int a = 0; a < AP_MAX_AXES; a++) {
        if (p->uses.use[a] == AP_USE_NONE)
            p->uses.use[a] = AP_USE_DATA;
        if (p->uses.expert_use[a] == AP_USE_NONE)
            p->uses.expert_use[a] = p->uses.use[a];
    }
    d->data *= d->idle;
    d->shard = d->zero ? d->data * d->context : 1;
    d->idle = 1;
}

/* The batch is micro-batch x microbatches x data parallel devices. */
static void fit_batch(struct trainer_plan *p, struct ap_notes *notes)
{
    struct ap_plan_line *s = &p->s;
    int64_t data = s->line.degrees.data;

    s->line.micro_batch = ap_ceil_div(ap_ceil_div(s->batch, s->microbatches), data);
    if (s->line.micro_batch * s->microbatches * data == s->batch)
        return;
    int64_t count = ap_ceil_div(s->batch, s->line.micro_batch * data);
    if (count != s->microbatches)
        ap_note(notes, "%lld microbatches instead of %lld", (long long)count,
                (long long)s->microbatches);
    s->microbatches = count;
    if (s->line.micro_batch * count * data != s->batch)
        ap_note(notes, "the batch of %lld does not divide: %lld instead",
                (long long)s->batch, (long long)(s->line.micro_batch * count * data));
    s->batch = s->line.micro_batch * count * data;
}

int trainer_check(const struct ap_trainer *t, const struct ap_line_facts *facts,
                  const struct trainer_plan *p, struct ap_err *err)
{
    struct ap_line_facts own = *facts;

    own.batch = p->s.batch;
    own.world = p->s.n_devices;
    return ap_trainer_check(t, &p->s.line, &own, err);
}

int trainer_fit(const struct ap_trainer *t, const struct ap_line_facts *facts,
                struct trainer_plan *p, struct ap_notes *notes, struct ap_err *err)
{
    struct ap_err first = {""};

    if (p->s.line.schedule == AP_SCHEDULE_INFERENCE)
        ap_die_usage("--to: the schedule is inference, and trainers train");
    if (p->s.batch == 0)
        ap_die_usage("--to: no input of the model has a batch");
    use_idle(p, notes);
    const struct ap_trainer_habits habits = t->habits(&p->s.line);
    const unsigned odd = p->s.line.trainer & ~(t->may | habits.traits);
    for (int i = 0; i < AP_N_TRAINER; i++)
        if (odd >> i & 1)
            ap_note(notes, "without %s, which it does not do", ap_trainer_names[i]);
    p->s.line.trainer &= ~odd;
    if (p->s.line.overlap && habits.overlap == AP_OVERLAP_NEVER) {
        ap_note(notes, "gradients are reduced after the passes, without overlap");
        p->s.line.overlap = false;
    }
    for (int size = 0; size <= N_CHANGES; size++)
        for (unsigned set = 0; set < 1U << N_CHANGES; set++) {
            struct trainer_plan near = *p;
            struct ap_mark mark = ap_arena_mark(p->arena);
            struct ap_notes said = {.arena = p->arena};
            struct ap_err why = {""};
            if (__builtin_popcount(set) != size || !make_changes(&near, t, set)) {
                ap_arena_rewind(p->arena, mark);
                continue;
            }
            fit_batch(&near, &said);
            if (trainer_check(t, facts, &near, &why)) {
                first = size == 0 ? why : first;
                ap_arena_rewind(p->arena, mark);
                continue;
            }
            for (int i = 0; i < N_CHANGES; i++)
                if (set >> i & 1)
                    ap_note(notes, "%s", changes[i].said);
            for (int i = 0; i < said.n; i++)
                ap_note(notes, "%s", said.note[i]);
            if (set)
                set_axes(&near);
            *p = near;
            return 0;
        }
    return ap_err_set(err, "%s", first.msg);
}
