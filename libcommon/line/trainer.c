/*
 * Problem: whether a trainer can run a line. Idea: the line's sizes are found once;
 * conditions that all trainers share are here, with the names of the trainer's own flags,
 * the others in the files of the rows; the first that does not hold is said.
 */
#include "line/trainer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "line/trainer_impl.h"

const struct ap_line_facts ap_line_facts_none = {
    .compute = AP_TUPLE, .master = AP_TUPLE, .moments = AP_TUPLE, .second = AP_TUPLE};

const struct ap_trainer *const ap_trainers[AP_N_TRAINERS] = {
    &trainer_megatron, &trainer_torchtitan, &trainer_torchtitan_main, &trainer_deepspeed};

const struct ap_trainer *ap_trainer_find(const char *name)
{
    for (int i = 0; i < AP_N_TRAINERS; i++)
        if (!strcmp(ap_trainers[i]->name, name))
            return ap_trainers[i];
    return NULL;
}

const char *ap_trainers_text(struct ap_arena *arena)
{
    const char *text = ap_trainers[0]->name;

    for (int i = 1; i < AP_N_TRAINERS; i++)
        text = ap_arena_printf(arena, "%s, %s", text, ap_trainers[i]->name);
    return text;
}

void ap_note(struct ap_notes *notes, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    AP_ROOM_IN(notes->arena, notes->note, notes->n, notes->cap);
    notes->note[notes->n++] = ap_arena_strdup(notes->arena, text);
}

/* ---- a line and a model ---- */

int ap_trainer_case_find(const struct ap_trainer *trainer, const struct ap_line *line,
                         const struct ap_line_facts *facts, struct ap_trainer_case *c,
                         struct ap_err *err)
{
    struct ap_degrees *d = &c->line.degrees;

    *c = (struct ap_trainer_case){.trainer = trainer, .line = *line, .facts = facts};
    c->stages = ap_line_stages(line);
    d->expert = d->expert ? d->expert : 1;
    if (d->expert_tensor == 0 || facts->experts == 0)
        d->expert_tensor = trainer->habits(line).expert_tensor;
    if (d->idle > 1)
        return ap_err_set(err, "%lld devices do the same", (long long)d->idle);
    if (ap_line_complete(&c->line, facts->world, err) ||
        ap_line_divide(&c->line, facts->batch, facts->layers, facts->experts,
                       &c->microbatches, err))
        return -1;
    c->copies = d->zero ? d->data * d->context / d->shard : 1;
    return 0;
}

static bool has_equal_layers(const struct ap_line *line)
{
    for (int i = 1; i < line->n_layers; i++)
        if (line->layers[i] != line->layers[0])
            return false;
    return true;
}

int ap_trainer_settle(const struct ap_trainer *trainer, const struct ap_line_facts *facts,
                      struct ap_line *line, struct ap_err *err)
{
    struct ap_trainer_case c;

    if (ap_trainer_case_find(trainer, line, facts, &c, err))
        return -1;
    *line = c.line;
    if (line->degrees.shard == 1)
        line->degrees.zero = 0;
    if (c.stages == 1)
        line->schedule = AP_SCHEDULE_1F1B;
    const struct ap_trainer_habits habits = trainer->habits(line);
    line->trainer = (line->trainer & trainer->may) | habits.traits;
    if (habits.overlap != AP_OVERLAP_ASKED)
        line->overlap = habits.overlap == AP_OVERLAP_ALWAYS;
    if (has_equal_layers(line))
        line->n_layers = 0;
    return 0;
}

/* ---- conditions ---- */

/* "--tensor-model-parallel-size 8" */
const char *trainer_said(const struct ap_trainer_case *c, enum trainer_degree which,
                         char *text, size_t size)
{
    static const char *const keys[] = {"tp", "pp", "cp", "ep"};
    const struct ap_degrees *d = &c->line.degrees;
    const int64_t value[] = {d->tensor, c->line.pipeline, d->context, d->expert};
    const char *flag = c->trainer->parallelism[which];

    snprintf(text, size, "%s %lld", flag ? flag : keys[which], (long long)value[which]);
    return text;
}

#define SAID(c, which) trainer_said(c, which, (char[96]){0}, 96)

int trainer_has_heads(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->facts->heads % c->line.degrees.tensor == 0)
        return 0;
    return ap_err_set(err, "%s does not divide the %lld heads of attention",
                      SAID(c, TRAINER_TP), (long long)c->facts->heads);
}

/* Experts are split by tensor parallelism where there is no expert parallelism, and whole
 * where there is. */
int64_t trainer_expert_tensor(const struct ap_line *line)
{
    return line->degrees.expert > 1 ? 1 : line->degrees.tensor;
}

int trainer_has_expert_tensor(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t is = c->line.degrees.expert_tensor,
                  has = trainer_expert_tensor(&c->line);

    if (c->facts->experts == 0 || is == has)
        return 0;
    return ap_err_set(err, "etp=%lld: under %s each expert is split over %lld devices",
                      (long long)is, SAID(c, TRAINER_EP), (long long)has);
}

int trainer_has_exchange(const struct ap_trainer_case *c, struct ap_err *err)
{
    const struct ap_degrees *d = &c->line.degrees;

    if (d->exchange <= 1 || (c->facts->heads % (d->tensor * d->exchange) == 0 &&
                             c->facts->kv_heads % (d->tensor * d->exchange) == 0))
        return 0;
    return ap_err_set(err,
                      "a2a=%lld: %lld heads of queries and %lld of keys are not a "
                      "multiple of it%s%s",
                      (long long)d->exchange, (long long)c->facts->heads,
                      (long long)c->facts->kv_heads, d->tensor > 1 ? " x " : "",
                      d->tensor > 1 ? SAID(c, TRAINER_TP) : "");
}

/* Tokens of a sample are cut in equal parts: two for each device of the context, with the
 * first and the last part on one (less work under a causal mask is evened out), and for
 * sequence parallelism. */
int trainer_has_sequence(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t context = c->line.degrees.context > 1 ? 2 * c->line.degrees.context : 1;
    const int64_t tensor = c->line.degrees.sequence ? c->line.degrees.tensor : 1;

    if (c->facts->sequence % (context * tensor) == 0)
        return 0;
    return ap_err_set(err, "%lld tokens of a sample are not a multiple of %lld: %s%s%s%s",
                      (long long)c->facts->sequence, (long long)(context * tensor),
                      context > 1 ? "2 parts for each device of " : "",
                      context > 1 ? SAID(c, TRAINER_CP) : "",
                      tensor > 1 ? " sequence parallelism over " : "",
                      tensor > 1 ? SAID(c, TRAINER_TP) : "");
}

int trainer_has_schedule(const struct ap_trainer_case *c, struct ap_err *err)
{
    const enum ap_schedule s = c->line.schedule;

    if (c->stages == 1 || s == AP_SCHEDULE_1F1B || s == AP_SCHEDULE_INTERLEAVED)
        return 0;
    return ap_err_set(err, "schedule %s: its pipelines run 1f1b or interleaved-1f1b",
                      ap_schedule_names[s]);
}

/* Layers are recomputed one by one, all or none. */
int trainer_has_single_layers(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t first = c->line.recompute_first, group = c->line.recompute_group;

    if (first == 0 && group == 0)
        return 0;
    return ap_err_set(err, "recompute=%s:%lld: all layers are recomputed, each by itself",
                      first ? "block" : "uniform", (long long)(first ? first : group));
}

static bool is_low(enum ap_dtype dtype)
{
    return dtype == AP_BF16 || dtype == AP_F16 || dtype == AP_F8E4M3FN;
}

int trainer_has_f32_states(const struct ap_trainer_case *c, struct ap_err *err)
{
    const struct ap_line_facts *f = c->facts;

    if (!is_low(f->master) && !is_low(f->moments) && !is_low(f->second))
        return 0;
    return ap_err_set(err,
                      "weights of the optimizer in %s, moments in %s and %s: it keeps "
                      "them in f32 (--recipe mixed)",
                      ap_dtype_name(f->master), ap_dtype_name(f->moments),
                      ap_dtype_name(f->second));
}

static int has_traits(const struct ap_trainer_case *c, struct ap_err *err)
{
    const struct ap_trainer_habits habits = c->trainer->habits(&c->line);
    const unsigned odd = c->line.trainer & ~(c->trainer->may | habits.traits);

    for (int i = 0; i < AP_N_TRAINER; i++)
        if (odd >> i & 1)
            return ap_err_set(err, "%s: it does not do so", ap_trainer_names[i]);
    if (c->line.overlap && habits.overlap == AP_OVERLAP_NEVER)
        return ap_err_set(err, "overlap: it reduces gradients after the passes");
    return 0;
}

static int has_offload(const struct ap_trainer_case *c, struct ap_err *err)
{
    const unsigned first = c->trainer->offloads_first && c->line.offload_first
                               ? AP_LINE_OFFLOAD_ACTIVATIONS
                               : 0;
    const unsigned odd = c->line.offload & ~(c->trainer->offloads | first);

    return odd ? ap_err_set(err, "offload=%s: no flag of it says so",
                            odd & AP_LINE_OFFLOAD_OPTIMIZER ? "optimizer" : "activations")
               : 0;
}

/* Muon of Megatron-LM and DeepSpeed cuts its states by layers, which no line says. */
static int has_model(const struct ap_trainer *trainer, const struct ap_line_facts *facts,
                     struct ap_err *err)
{
    if (facts->muon)
        return ap_err_set(err, "the optimizer multiplies matrices (muon): no line of it "
                               "says who does so");
    if ((facts->kind & ~trainer->models) == 0)
        return 0;
    return ap_err_set(err, "it has no such model: %s",
                      facts->kind == AP_MODEL_OTHER   ? "without attention"
                      : facts->kind == AP_MODEL_MIXED ? "with layers of several kinds"
                                                      : "without a table of tokens");
}

int ap_trainer_check(const struct ap_trainer *trainer, const struct ap_line *line,
                     const struct ap_line_facts *facts, struct ap_err *err)
{
    struct ap_trainer_case c;
    struct ap_err why = {""};
    int rc = has_model(trainer, facts, &why);

    if (rc == 0)
        rc = ap_trainer_case_find(trainer, line, facts, &c, &why);
    if (rc == 0)
        rc = has_traits(&c, &why) || has_offload(&c, &why) ? -1 : 0;
    for (int i = 0; rc == 0 && trainer->conditions[i]; i++)
        rc = trainer->conditions[i](&c, &why);
    return rc ? ap_err_set(err, "%s: %s", trainer->title, why.msg) : 0;
}

/* ---- reading ---- */

int ap_trainer_parse(const struct ap_trainer *trainer, const char *text,
                     const struct ap_line_facts *known, struct ap_trainer_said *said,
                     struct ap_notes *notes, struct ap_err *err)
{
    *said = (struct ap_trainer_said){ap_line_least, ap_line_facts_none};
    said->line.degrees.data = said->line.degrees.shard = 0;
    if (trainer->read(trainer, text, known, said, notes, err))
        return -1;
    struct ap_line_facts facts = said->facts;
    facts.experts = facts.experts ? facts.experts : known->experts;
    facts.layers = 0; /* a condition of the trainer, not of what is read */
    return ap_trainer_settle(trainer, &facts, &said->line, err);
}

/* What a text may say of layers and is not in the price, or hardly. */
static void note_layers(const struct ap_layer_facts *said,
                        const struct ap_layer_facts *model, struct ap_notes *notes)
{
    static const char *const norms[] = {"", "layer norms", "RMS norms"},
                             *const positions[] = {"", "learned", "rotary"},
                             *const biases[] = {"", "no", "queries', keys' and values'",
                                                "all"};

    if (said->norm && model->norm && said->norm != model->norm)
        ap_note(notes, "it has %s, the model %s", norms[said->norm], norms[model->norm]);
    if (said->norm && said->query_norm != model->query_norm)
        ap_note(notes, "its queries and keys are %snormed, the model's %s",
                said->query_norm ? "" : "not ", model->query_norm ? "are" : "are not");
    if (said->positions && model->positions && said->positions != model->positions)
        ap_note(notes, "its positions are %s, the model's %s", positions[said->positions],
                positions[model->positions]);
    if (said->bias && model->bias && said->bias != model->bias)
        ap_note(notes, "its linear maps have %s biases, the model's %s",
                biases[said->bias], biases[model->bias]);
}

int ap_line_facts_agree(const struct ap_line_facts *said,
                        const struct ap_line_facts *model, struct ap_notes *notes,
                        struct ap_err *err)
{
    const struct ap_layer_facts *a = &said->layer, *b = &model->layer;
    const bool parts = a->norm && b->ffn + b->expert_ffn > 0;
    const struct {
        const char *name;
        int64_t said, is;
        const char *give; /* what would make them agree */
    } facts[] = {
        {"layers", said->layers, model->layers, ""},
        {"layers that predict further tokens", said->mtp, model->mtp, ""},
        {"features of a token", said->hidden, model->hidden, ""},
        {"attention heads", said->heads, model->heads, ""},
        {"heads of keys and values", said->kv_heads, model->kv_heads, ""},
        {"features of a head", a->head_width, b->head_width, ""},
        {"features inside of a feed-forward part", a->ffn, b->ffn, ""},
        {"matrices of a feed-forward part", parts ? 2 + a->gated : 0, 2 + b->gated, ""},
        {"experts", said->experts, model->experts, ""},
        {"experts of a token", said->experts_per_token, model->experts_per_token, ""},
        {"features inside of an expert", a->expert_ffn, b->expert_ffn, ""},
        {"features of shared experts", a->shared_ffn, b->shared_ffn, ""},
        {"layers with experts", a->n_experts, b->n_experts, ""},
        {"runs of layers with experts", a->turns, b->turns, ""},
        {"matrices of embedding and head (1 if tied)", parts ? 2 - said->tied : 0,
         model->vocab ? 2 - model->tied : 0, ""},
        {"tokens of the vocabulary", said->vocab, model->vocab, ""},
        {"tokens of a sample", said->sequence, model->sequence, "--seq"},
        {"samples of a step", said->batch, model->batch, "--batch"},
        {"devices", said->world, model->world, ""}};
    struct ap_buf all = {0};

    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        const long long is = facts[i].is, there = facts[i].said;
        if (!there || !is || there == is)
            continue;
        ap_buf_printf(&all, "%s%lld %s, not %lld", all.len ? "; " : "", there,
                      facts[i].name, is);
        if (*facts[i].give)
            ap_buf_printf(&all, " (make it with %s %lld)", facts[i].give, there);
    }
    if (all.len)
        ap_err_set(err, "it says %s", all.data);
    ap_buf_free(&all);
    note_layers(a, b, notes);
    return *err->msg ? -1 : 0;
}

bool trainer_is_fp8(const struct ap_line_facts *f)
{
    return f->compute == AP_F8E4M3FN || f->compute == AP_F8E5M2;
}

bool trainer_is_low(const struct ap_line_facts *f)
{
    return f->compute == AP_BF16 || f->compute == AP_F16 || trainer_is_fp8(f);
}

bool trainer_has_low_moments(const struct ap_line_facts *f)
{
    return f->master == AP_F32 && (is_low(f->moments) || is_low(f->second));
}

int *trainer_new_layers(struct ap_arena *arena, struct ap_line *line, int n)
{
    int *layers = AP_NEW_N(arena, n + 1, int);

    line->n_layers = n;
    line->layers = layers;
    return layers;
}

int64_t trainer_share(int64_t units, int64_t n, int64_t stage)
{
    return units / n + (stage < units % n);
}

int ap_trainer_deal(struct ap_arena *arena, struct ap_line *line, int64_t layers,
                    int64_t first, int64_t last)
{
    const int n = ap_line_stages(line);
    const int64_t units = layers + first + last;
    int *list = trainer_new_layers(arena, line, n);
    int rc = 0;

    for (int s = 0; s < n; s++) {
        list[s] = (int)(trainer_share(units, n, s) - (s == 0 ? first : 0) -
                        (s == n - 1 ? last : 0));
        rc = list[s] < 0 ? -1 : rc;
    }
    return rc;
}

void trainer_put_flag(struct ap_buf *out, const char *name, int64_t value)
{
    ap_buf_printf(out, "    %s %lld\n", name, (long long)value);
}
