/*
 * Problem: one text for a parallel configuration, read and written in one place. Idea: a
 * table of keys, each with its place in struct ap_line, its range, and the value that is
 * said by silence; reader, writer and messages go through the table.
 */
#include "line/line.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/stage_cost.h"

enum kind {
    NUMBER,  /* "tp=8" */
    WORD,    /* "schedule=gpipe" */
    AGAIN,   /* "recompute=full", "recompute=block:3" */
    OFFLOAD, /* "offload=optimizer+activations" */
    FLAG,    /* "sp" */
    TRAINER, /* "packs": one of ap_trainer_names */
    LAYERS   /* "layers=14:10" */
};

static const char *const recomputes[] = {"none", "selective", "operators", "full"};
static const char *const offloads[] = {"optimizer", "activations"}; /* by bit */
#define N_OFFLOADS 2

#define AT(member) offsetof(struct ap_line, member)

/* In the order in which they are written. */
static const struct key {
    const char *name;
    enum kind kind;
    size_t at;
    int64_t least, most, silent; /* of numbers; silent: it and less is not written */
    const char *const *words;    /* of these a line may have the first `most` */
} keys[] = {
    {"tp", NUMBER, AT(degrees.tensor), 1, AP_MAX_DEVICES, 1, NULL},
    {"pp", NUMBER, AT(pipeline), 1, AP_MAX_DEVICES, 1, NULL},
    {"vpp", NUMBER, AT(chunks), 1, AP_MAX_DEVICES, 1, NULL},
    {"layers", LAYERS, AT(layers), 0, 1 << 20, 0, NULL},
    {"cp", NUMBER, AT(degrees.context), 1, AP_MAX_DEVICES, 1, NULL},
    {"a2a", NUMBER, AT(degrees.exchange), 1, AP_MAX_DEVICES, 1, NULL},
    {"ring", FLAG, AT(degrees.ring), 0, 0, 0, NULL},
    {"ep", NUMBER, AT(degrees.expert), 1, AP_MAX_DEVICES, 1, NULL},
    {"etp", NUMBER, AT(degrees.expert_tensor), 1, AP_MAX_DEVICES, 0, NULL},
    {"dp", NUMBER, AT(degrees.data), 1, AP_MAX_DEVICES, 0, NULL},
    {"zero", NUMBER, AT(degrees.zero), 0, 3, 0, NULL},
    {"shard", NUMBER, AT(degrees.shard), 1, AP_MAX_DEVICES, 0, NULL},
    {"sp", FLAG, AT(degrees.sequence), 0, 0, 0, NULL},
    {"schedule", WORD, AT(schedule), 0, AP_N_TRAIN_SCHEDULES, 0, ap_schedule_names},
    {"recompute", AGAIN, AT(recompute), 0, AP_N_LINE_RECOMPUTES, 0, recomputes},
    {"offload", OFFLOAD, AT(offload), 0, 0, 0, NULL},
    {"mbs", NUMBER, AT(micro_batch), 1, AP_MAX_DEVICES, 0, NULL},
    {"overlap", FLAG, AT(overlap), 0, 0, 0, NULL},
    {"packs", TRAINER, AP_TRAINER_PACKS, 0, 0, 0, NULL},
    {"low-sums", TRAINER, AP_TRAINER_LOW_SUMS, 0, 0, 0, NULL},
    {"keeps-gathered", TRAINER, AP_TRAINER_KEEPS_GATHERED, 0, 0, 0, NULL},
    {"keeps-gradients", TRAINER, AP_TRAINER_KEEPS_GRADIENTS, 0, 0, 0, NULL},
    {"waits", TRAINER, AP_TRAINER_WAITS, 0, 0, 0, NULL},
    {"broadcasts", TRAINER, AP_TRAINER_BROADCASTS, 0, 0, 0, NULL},
    {"ep-overlap", TRAINER, AP_TRAINER_EP_OVERLAP, 0, 0, 0, NULL},
    {"tp-overlap", TRAINER, AP_TRAINER_TP_OVERLAP, 0, 0, 0, NULL},
    {"wgrad-overlap", TRAINER, AP_TRAINER_WGRAD_OVERLAP, 0, 0, 0, NULL},
    {"host-update", TRAINER, AP_TRAINER_HOST_UPDATE, 0, 0, 0, NULL},
    {"stops-early", TRAINER, AP_TRAINER_STOPS_EARLY, 0, 0, 0, NULL},
};
#define N_KEYS ((int)(sizeof keys / sizeof *keys))

const struct ap_line ap_line_least = {.degrees = {.tensor = 1,
                                                  .data = 1,
                                                  .context = 1,
                                                  .exchange = 1,
                                                  .idle = 1,
                                                  .expert = 1,
                                                  .shard = 1},
                                      .pipeline = 1,
                                      .chunks = 1,
                                      .schedule = AP_SCHEDULE_1F1B,
                                      .micro_batch = 1};

const char *const ap_line_modules[AP_N_LINE_MODULES] = {[AP_LINE_CORE_ATTN] = "core_attn",
                                                        [AP_LINE_LAYERNORM] = "layernorm",
                                                        [AP_LINE_MLP] = "mlp",
                                                        [AP_LINE_SHARED_EXPERTS] =
                                                            "shared_experts",
                                                        [AP_LINE_MOE_ACT] = "moe_act"};

int ap_line_stages(const struct ap_line *line)
{
    return (int)(line->pipeline * line->chunks);
}

unsigned ap_line_trainer(const struct ap_line *line)
{
    return line->trainer | (line->degrees.zero >= 2 ? AP_TRAINER_SCATTERS : 0);
}

static enum ap_schedule silent_schedule(const struct ap_line *line)
{
    return line->chunks > 1 ? AP_SCHEDULE_INTERLEAVED : AP_SCHEDULE_1F1B;
}

/* What a schedule says of the chunks. */
static int64_t silent_chunks(enum ap_schedule schedule)
{
    return ap_schedule_traits[schedule].least_chunks;
}

/* ---- reading ---- */

static int get_number(const struct key *key, const char *text, int64_t *out,
                      struct ap_err *err)
{
    char *end;
    long long n = *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;

    if (n < key->least || n > key->most || *end)
        return ap_err_set(err, "%s: expected a number from %lld to %lld, got '%s'",
                          key->name, (long long)key->least, (long long)key->most, text);
    *out = n;
    return 0;
}

/* enums are read and written as numbers */
_Static_assert(sizeof(enum ap_schedule) == sizeof(int), "");
_Static_assert(sizeof(enum ap_line_recompute) == sizeof(int), "");

static int get_word(const struct key *key, const char *text, void *out,
                    struct ap_err *err)
{
    struct ap_buf list = {0};
    int n = 0;

    for (; n < key->most && strcmp(text, key->words[n]) != 0; n++)
        ap_buf_printf(&list, "%s%s", n ? ", " : "", key->words[n]);
    const bool known = n < key->most;
    if (known)
        memcpy(out, &n, sizeof n);
    else
        ap_err_set(err, "%s: '%s' is not one of %s%s", key->name, text, list.data,
                   key->kind == AGAIN ? ", block:N, uniform:N, or modules: core_attn+mlp"
                                      : "");
    ap_buf_free(&list);
    return known ? 0 : -1;
}

/* The bits of "core_attn+mlp", of n names; 0: a word is none of them. */
static unsigned find_words(const char *const *names, int n, const char *text)
{
    unsigned words = 0;

    for (size_t len; *text; text += len + (text[len] == '+')) {
        int i = 0;
        len = strcspn(text, "+");
        while (i < n && (strlen(names[i]) != len || strncmp(names[i], text, len) != 0))
            i++;
        if (i == n || words >> i & 1 || (text[len] == '+' && !text[len + 1]))
            return 0;
        words |= 1U << i;
    }
    return words;
}

/* Full recomputation of "block:3", the first layers of each stage, or "uniform:2",
 * layers together; else one word. */
static int get_again(const struct key *key, const char *text, struct ap_line *line,
                     struct ap_err *err)
{
    static const struct key layers = {.name = "recompute", .least = 1, .most = 1 << 20};
    const bool block = !strncmp(text, "block:", 6);
    const unsigned modules = find_words(ap_line_modules, AP_N_LINE_MODULES, text);

    if (modules) {
        line->recompute = AP_LINE_RECOMPUTE_SELECTIVE;
        line->recompute_modules = modules == 1U << AP_LINE_CORE_ATTN ? 0 : modules;
        return 0;
    }
    if (!block && strncmp(text, "uniform:", 8) != 0)
        return get_word(key, text, &line->recompute, err);
    line->recompute = AP_LINE_RECOMPUTE_FULL;
    if (block)
        return get_number(&layers, text + 6, &line->recompute_first, err);
    if (get_number(&layers, text + 8, &line->recompute_group, err))
        return -1;
    if (line->recompute_group == 1)
        line->recompute_group = 0;
    return 0;
}

/* "optimizer+activations", or "activations:4" of the first layers of each stage. */
static int get_offload(char *text, struct ap_line *line, struct ap_err *err)
{
    static const struct key layers = {.name = "offload", .least = 1, .most = 1 << 20};
    char *first = strchr(text, ':');

    if (first)
        *first++ = '\0';
    line->offload = find_words(offloads, N_OFFLOADS, text);
    if (!line->offload || (first && !(line->offload & AP_LINE_OFFLOAD_ACTIVATIONS)))
        return ap_err_set(err,
                          "offload: '%s%s%s' is not one of optimizer, activations, "
                          "optimizer+activations, with :N of N layers' activations",
                          text, first ? ":" : "", first ? first : "");
    return first ? get_number(&layers, first, &line->offload_first, err) : 0;
}

/* "14:10" */
static int get_layers(struct ap_arena *arena, const struct key *key, char *text,
                      struct ap_line *line, struct ap_err *err)
{
    int *layers = AP_NEW_N(arena, AP_LINE_MOST_STAGES, int);
    char *rest = NULL;

    line->layers = layers;
    for (char *w = strtok_r(text, ":", &rest); w; w = strtok_r(NULL, ":", &rest)) {
        int64_t n;
        if (line->n_layers == AP_LINE_MOST_STAGES)
            return ap_err_set(err, "layers: more than %d stages", AP_LINE_MOST_STAGES);
        if (get_number(key, w, &n, err))
            return -1;
        layers[line->n_layers++] = (int)n;
    }
    return line->n_layers ? 0 : ap_err_set(err, "layers: expected numbers, as in 14:10");
}

static int refuse_key(const char *name, struct ap_err *err)
{
    struct ap_buf list = {0};

    for (int i = 0; i < N_KEYS; i++)
        ap_buf_printf(&list, "%s%s", i ? ", " : "", keys[i].name);
    ap_err_set(err, "'%s' is not one of %s", name, list.data);
    ap_buf_free(&list);
    return -1;
}

/* value NULL: none is given. */
static int get_key(struct ap_arena *arena, const struct key *key, char *value,
                   struct ap_line *line, struct ap_err *err)
{
    void *to = (char *)line + (key->kind == TRAINER ? 0 : key->at);

    switch (key->kind) {
    case NUMBER:
        return get_number(key, value, to, err);
    case WORD:
        return get_word(key, value, to, err);
    case AGAIN:
        return get_again(key, value, line, err);
    case OFFLOAD:
        return get_offload(value, line, err);
    case LAYERS:
        return get_layers(arena, key, value, line, err);
    case FLAG:
        *(bool *)to = true;
        return 0;
    case TRAINER:
        line->trainer |= (unsigned)key->at;
        return 0;
    }
    return -1;
}

static bool is_flag(const struct key *key)
{
    return key->kind == FLAG || key->kind == TRAINER;
}

static bool has_words(const struct key *key)
{
    return key->kind == WORD || key->kind == AGAIN || key->kind == OFFLOAD;
}

/* "tp=8", "sp"; given: bits of the keys that were there before. */
static int get_item(struct ap_arena *arena, char *text, uint64_t *given,
                    struct ap_line *line, struct ap_err *err)
{
    char *value = strchr(text, '=');
    int i = 0;

    if (value)
        *value++ = '\0';
    while (i < N_KEYS && strcmp(text, keys[i].name) != 0)
        i++;
    if (i < N_KEYS && *given >> i & 1)
        return ap_err_set(err, "%s is given twice", text);
    if (i < N_KEYS && has_words(&keys[i])) /* of no value its words are listed */
        value = value ? value : text + strlen(text);
    else if (value ? !*value : i == N_KEYS || !is_flag(&keys[i]))
        return ap_err_set(err,
                          "'%s': expected KEY=VALUE, sp, ring, overlap or a trait of "
                          "trainers (packs, low-sums, ...)",
                          text);
    if (i == N_KEYS)
        return refuse_key(text, err);
    if (value && is_flag(&keys[i]))
        return ap_err_set(err, "%s: takes no value, leave out '=%s'", text, value);
    *given |= (uint64_t)1 << i;
    return get_key(arena, &keys[i], value, line, err);
}

static int64_t expert_tensor(const struct ap_degrees *d)
{
    return d->expert_tensor > 0 ? d->expert_tensor : d->tensor;
}

/* Groups of devices of a stage whose size is known. */
static int check_groups(const struct ap_line *line, struct ap_err *err)
{
    const struct ap_degrees *d = &line->degrees;
    const int64_t share = ap_mul64(d->data, d->context);
    const int64_t experts = ap_mul64(d->expert, expert_tensor(d));

    if (ap_mul64(share, d->tensor) % experts)
        return ap_err_set(
            err, "ep=%lld x etp=%lld do not divide tp=%lld x cp=%lld x dp=%lld",
            (long long)d->expert, (long long)expert_tensor(d), (long long)d->tensor,
            (long long)d->context, (long long)d->data);
    if (d->shard > 0 && share % d->shard)
        return ap_err_set(err, "shard=%lld does not divide cp=%lld x dp=%lld",
                          (long long)d->shard, (long long)d->context, (long long)d->data);
    return 0;
}

int ap_line_complete(struct ap_line *line, int64_t devices, struct ap_err *err)
{
    struct ap_degrees *d = &line->degrees;
    const int64_t model = ap_mul64(ap_mul64(d->tensor, d->context), line->pipeline);

    if (d->data == 0 && devices < model)
        return ap_err_set(err, "tp=%lld x cp=%lld x pp=%lld: there are %lld devices",
                          (long long)d->tensor, (long long)d->context,
                          (long long)line->pipeline, (long long)devices);
    d->data = d->data > 0 ? d->data : devices / model;
    d->expert = d->expert > 0 ? d->expert : 1;
    if (d->data == 0 || ap_mul64(d->data, model) != devices)
        return ap_err_set(err,
                          "tp=%lld x cp=%lld x pp=%lld x dp=%lld are %lld devices, "
                          "there are %lld",
                          (long long)d->tensor, (long long)d->context,
                          (long long)line->pipeline, (long long)d->data,
                          (long long)ap_mul64(d->data, model), (long long)devices);
    if (check_groups(line, err))
        return -1;
    d->expert_tensor = expert_tensor(d);
    if (d->zero == 0)
        d->shard = 1;
    else if (d->shard == 0)
        d->shard = d->data * d->context;
    return 0;
}

int ap_line_divide(const struct ap_line *line, int64_t batch, int64_t layers,
                   int64_t experts, int64_t *microbatches, struct ap_err *err)
{
    const long long data = line->degrees.data, n = ap_line_stages(line),
                    ep = line->degrees.expert;
    const int64_t at_once = ap_mul64(data, line->micro_batch);
    int64_t sum = 0;

    if (at_once < 1 || batch % at_once)
        return ap_err_set(err, "dp=%lld x mbs=%lld do not divide the batch of %lld", data,
                          (long long)line->micro_batch, (long long)batch);
    if (ep > 1 && experts == 0)
        return ap_err_set(err, "ep=%lld: the model has no experts", ep);
    if (ep > 1 && experts % ep)
        return ap_err_set(err, "ep=%lld does not divide the %lld experts", ep,
                          (long long)experts);
    *microbatches = batch / at_once;
    const struct ap_schedule_size size = {line->schedule, (int)line->pipeline,
                                          (int)line->chunks, (int)*microbatches, false};
    if (line->pipeline > 1 && ap_schedule_check(&size, err))
        return -1;
    for (int i = 0; i < line->n_layers; i++)
        sum += line->layers[i];
    if (layers == 0 || n == 1 || sum == layers || (sum == 0 && layers % n == 0))
        return 0;
    if (sum)
        return ap_err_set(err, "layers: %lld, the model has %lld", (long long)sum,
                          (long long)layers);
    return ap_err_set(err,
                      "%lld layers in %lld stages: layers=A:B:... says how many are in "
                      "each",
                      (long long)layers, n);
}

static int check(const struct ap_line *line, struct ap_err *err)
{
    const struct ap_degrees *d = &line->degrees;
    const int64_t stages = ap_mul64(line->pipeline, line->chunks);

    if (stages > AP_LINE_MOST_STAGES)
        return ap_err_set(err, "%lld stages, at most %d", (long long)stages,
                          AP_LINE_MOST_STAGES);
    if (line->chunks > 1 && line->pipeline == 1)
        return ap_err_set(err, "vpp=%lld: there is no pipeline (pp)",
                          (long long)line->chunks);
    const struct ap_schedule_traits *t = &ap_schedule_traits[line->schedule];
    if (t->splits && line->pipeline == 1)
        return ap_err_set(err, "schedule: %s: there is no pipeline (pp)",
                          ap_schedule_names[line->schedule]);
    if (line->chunks < t->least_chunks || line->chunks > t->most_chunks)
        return ap_err_set(err, "schedule: vpp=%lld is not %s", (long long)line->chunks,
                          ap_schedule_names[line->schedule]);
    if (line->trainer & AP_TRAINER_WAITS && !ap_schedule_traits[line->schedule].may_wait)
        return ap_err_set(err, "waits: not with %s", ap_schedule_names[line->schedule]);
    if (line->trainer & AP_TRAINER_EP_OVERLAP && d->expert == 1)
        return ap_err_set(err, "ep-overlap: there is no expert parallelism (ep)");
    if (line->trainer & AP_TRAINER_TP_OVERLAP && !d->sequence)
        return ap_err_set(err, "tp-overlap: there is no sequence parallelism (sp)");
    if (line->trainer & AP_TRAINER_WGRAD_OVERLAP && d->tensor == 1)
        return ap_err_set(err, "wgrad-overlap: there is no tensor parallelism (tp)");
    if (line->trainer & AP_TRAINER_WGRAD_OVERLAP && t->splits)
        return ap_err_set(err,
                          "wgrad-overlap: not with %s, which computes weights' gradients "
                          "later",
                          ap_schedule_names[line->schedule]);
    if (line->trainer & AP_TRAINER_HOST_UPDATE &&
        !(line->offload & AP_LINE_OFFLOAD_OPTIMIZER))
        return ap_err_set(err, "host-update: the optimizer is not offloaded");
    if (line->trainer & AP_TRAINER_STOPS_EARLY &&
        line->recompute != AP_LINE_RECOMPUTE_FULL)
        return ap_err_set(err, "stops-early: whole layers are not recomputed");
    if (d->sequence && d->tensor == 1)
        return ap_err_set(err, "sp: there is no tensor parallelism (tp)");
    if (d->exchange > 1 && d->context % d->exchange)
        return ap_err_set(err, "a2a=%lld does not divide cp=%lld", (long long)d->exchange,
                          (long long)d->context);
    if (d->ring && d->context > 1 && d->context == d->exchange)
        return ap_err_set(err, "ring: all of cp=%lld exchange tokens for heads (a2a)",
                          (long long)d->context);
    if (d->ring && d->context == 1)
        return ap_err_set(err, "ring: there is no context parallelism (cp)");
    if (line->n_layers > 0 && line->n_layers != stages)
        return ap_err_set(err, "layers: %d numbers for %lld stages", line->n_layers,
                          (long long)stages);
    if (d->shard > 1 && d->zero == 0)
        return ap_err_set(err, "shard=%lld: nothing is sharded (zero)",
                          (long long)d->shard);
    return d->data > 0 ? check_groups(line, err) : 0;
}

int ap_line_read(struct ap_arena *arena, const char *text, struct ap_line *line,
                 struct ap_err *err)
{
    const enum ap_schedule unsaid = AP_N_SCHEDULES;
    char *copy = ap_arena_strdup(arena, text), *rest = NULL;
    uint64_t given = 0;

    *line = ap_line_least;
    line->degrees.data = line->degrees.shard = 0;
    line->schedule = unsaid;
    line->chunks = 0; /* likewise */
    for (char *w = strtok_r(copy, ",", &rest); w; w = strtok_r(NULL, ",", &rest))
        if (get_item(arena, w, &given, line, err))
            return -1;
    if (line->schedule == unsaid)
        line->schedule = silent_schedule(line);
    if (line->chunks == 0)
        line->chunks = silent_chunks(line->schedule);
    return check(line, err);
}

/* ---- writing ---- */

/* A number that follows from others is not written. */
static bool is_said(const struct ap_line *line, const struct key *key, int64_t number)
{
    const struct ap_degrees *d = &line->degrees;

    if (key->at == AT(degrees.shard))
        return d->zero > 0 && number > 0 && number != d->data * d->context;
    if (key->at == AT(degrees.expert_tensor))
        return d->expert > 0 && number > 0 && number != d->tensor;
    if (key->at == AT(chunks) && line->schedule != silent_schedule(line))
        return number != silent_chunks(line->schedule);
    return number > key->silent;
}

/* ",recompute=core_attn+mlp": of n names those whose bits are set. */
static void put_words(const char *key, const char *const *names, int n, unsigned words,
                      struct ap_buf *out)
{
    const char *between = "=";

    if (words)
        ap_buf_printf(out, "%s%s", out->len ? "," : "", key);
    for (int i = 0; i < n; i++)
        if (words >> i & 1) {
            ap_buf_printf(out, "%s%s", between, names[i]);
            between = "+";
        }
}

static void put_key(const struct ap_line *line, const struct key *key, struct ap_buf *out)
{
    const void *from = (const char *)line + (key->kind == TRAINER ? 0 : key->at);
    const char *sep = out->len ? "," : "";
    int word = 0;

    switch (key->kind) {
    case NUMBER:
        if (is_said(line, key, *(const int64_t *)from))
            ap_buf_printf(out, "%s%s=%lld", sep, key->name,
                          (long long)*(const int64_t *)from);
        break;
    case WORD:
        memcpy(&word, from, sizeof word);
        if (word != (int)silent_schedule(line))
            ap_buf_printf(out, "%s%s=%s", sep, key->name, key->words[word]);
        break;
    case AGAIN:
        if (line->recompute_first || line->recompute_group)
            ap_buf_printf(out, "%s%s=%s:%lld", sep, key->name,
                          line->recompute_first ? "block" : "uniform",
                          (long long)(line->recompute_first ? line->recompute_first
                                                            : line->recompute_group));
        else if (line->recompute_modules)
            put_words(key->name, ap_line_modules, AP_N_LINE_MODULES,
                      line->recompute_modules, out);
        else if (line->recompute != AP_LINE_RECOMPUTE_NONE)
            ap_buf_printf(out, "%s%s=%s", sep, key->name, key->words[line->recompute]);
        break;
    case OFFLOAD:
        put_words(key->name, offloads, N_OFFLOADS, line->offload, out);
        if (line->offload_first)
            ap_buf_printf(out, ":%lld", (long long)line->offload_first);
        break;
    case LAYERS:
        if (line->n_layers)
            ap_buf_printf(out, "%s%s", sep, key->name);
        for (int i = 0; i < line->n_layers; i++)
            ap_buf_printf(out, "%c%d", i ? ':' : '=', line->layers[i]);
        break;
    case FLAG:
        if (*(const bool *)from)
            ap_buf_printf(out, "%s%s", sep, key->name);
        break;
    case TRAINER:
        if (line->trainer & key->at)
            ap_buf_printf(out, "%s%s", sep, key->name);
        break;
    }
}

const char *ap_line_text(struct ap_arena *arena, const struct ap_line *line)
{
    struct ap_buf out = {0};

    for (int i = 0; i < N_KEYS; i++)
        put_key(line, &keys[i], &out);
    const char *text = ap_arena_strdup(arena, out.data ? out.data : "");
    ap_buf_free(&out);
    return text;
}
