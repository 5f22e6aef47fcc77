/*
 * DeepSpeed 0.19: which lines its JSON, with the script of the user, can say. Sources:
 * deepspeed/runtime/config.py, runtime/zero/config.py, runtime/pipe (module.py: stages
 * are the script's), module_inject/auto_ep_folding.py, runtime/engine.py.
 */
#include <string.h>
#include <strings.h>

#include "doc/doc.h"
#include "line/trainer_impl.h"
#include "line/trainer_words.h"

static bool is_staged(const struct ap_trainer_case *c)
{
    return c->line.pipeline > 1;
}

static int has_zero(const struct ap_trainer_case *c, struct ap_err *err)
{
    const long long zero = c->line.degrees.zero;

    if (is_staged(c) && zero > 1)
        return ap_err_set(err,
                          "zero_optimization.stage %lld: PipelineModule (pp=%lld) has 0 "
                          "and 1",
                          zero, (long long)c->line.pipeline);
    if (c->line.degrees.tensor > 1 && c->line.degrees.expert > 1 && zero > 2)
        return ap_err_set(err,
                          "zero_optimization.stage %lld: experts beside "
                          "tensor_parallel.autotp_size %lld have 0 to 2",
                          zero, (long long)c->line.degrees.tensor);
    return 0;
}

static int has_shards(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->copies == 1)
        return 0;
    return ap_err_set(err,
                      "shard=%lld: zero_optimization.stage %lld shards over all %lld "
                      "devices",
                      (long long)c->line.degrees.shard, (long long)c->line.degrees.zero,
                      (long long)(c->line.degrees.data * c->line.degrees.context));
}

static int has_tensor(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->line.degrees.sequence)
        return ap_err_set(err,
                          "sp: tensor_parallel.autotp_size %lld all-reduces whole "
                          "activations",
                          (long long)c->line.degrees.tensor);
    if (c->line.degrees.tensor > 1 && c->facts->kind == AP_MODEL_OTHER)
        return ap_err_set(
            err, "tensor_parallel.autotp_size %lld: it splits transformers alone",
            (long long)c->line.degrees.tensor);
    if (c->line.degrees.tensor > 1 && is_staged(c))
        return ap_err_set(
            err,
            "tensor_parallel.autotp_size %lld: PipelineModule (pp=%lld) has "
            "no automatic tensor parallelism",
            (long long)c->line.degrees.tensor, (long long)c->line.pipeline);
    return 0;
}

static int has_context(const struct ap_trainer_case *c, struct ap_err *err)
{
    const struct ap_degrees *d = &c->line.degrees;

    if (d->context == 1)
        return 0;
    if (d->exchange != d->context)
        return ap_err_set(err,
                          "cp=%lld: sequence_parallel_size exchanges tokens for heads "
                          "(Ulysses): a2a=%lld",
                          (long long)d->context, (long long)d->context);
    if (d->tensor > 1 || is_staged(c) || d->expert > 1)
        return ap_err_set(err,
                          "sequence_parallel_size %lld: it has all devices, without "
                          "other parallelism than of data",
                          (long long)d->context);
    if (c->facts->sequence % d->context)
        return ap_err_set(err,
                          "sequence_parallel_size %lld does not divide the %lld tokens "
                          "of a sample",
                          (long long)d->context, (long long)c->facts->sequence);
    return trainer_has_exchange(c, err);
}

/* The script's PipelineModule: one stage for each set of devices, and layers as
 * partition_method "type:" deals them (runtime/utils.py, partition_balanced): evenly, and
 * the first stages have one more. */
static int has_stages(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->line.chunks > 1)
        return ap_err_set(err,
                          "vpp=%lld: PipelineModule has one stage for each set of "
                          "devices",
                          (long long)c->line.chunks);
    if (is_staged(c) && c->line.schedule != AP_SCHEDULE_1F1B)
        return ap_err_set(err, "schedule %s: PipelineModule runs 1f1b",
                          ap_schedule_names[c->line.schedule]);
    int layers = 0;
    for (int i = 0; i < c->line.n_layers; i++)
        layers += c->line.layers[i];
    for (int i = 0; i < c->line.n_layers; i++) {
        const int has = (int)trainer_share(layers, c->line.n_layers, i);
        if (c->line.layers[i] != has)
            return ap_err_set(err,
                              "layers: stage %d has %d, and partition_method \"type:\" "
                              "gives it %d",
                              i, c->line.layers[i], has);
    }
    return 0;
}

static int has_recompute(const struct ap_trainer_case *c, struct ap_err *err)
{
    const enum ap_line_recompute r = c->line.recompute;

    if (trainer_has_single_layers(c, err))
        return -1;
    if (r == AP_LINE_RECOMPUTE_NONE || r == AP_LINE_RECOMPUTE_FULL)
        return 0;
    return ap_err_set(err, "recompute: layers are recomputed whole or not at all");
}

/* ZeRO-Offload is of ZeRO; runtime/pipe and auto_ep have none. */
static int has_offload(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->line.offload == 0)
        return 0;
    if (c->line.degrees.zero == 0 || is_staged(c))
        return ap_err_set(err,
                          "zero_optimization.offload_optimizer: with "
                          "zero_optimization.stage 1 to 3 and without PipelineModule");
    if (c->line.degrees.expert > 1)
        return ap_err_set(err, "zero_optimization.offload_optimizer: not beside "
                               "expert_parallel");
    return 0;
}

static int has_types(const struct ap_trainer_case *c, struct ap_err *err)
{
    return trainer_is_fp8(c->facts)
               ? ap_err_set(err, "contractions in %s: it has bf16, fp16 and f32",
                            ap_dtype_name(c->facts->compute))
               : 0;
}

static ap_trainer_condition *const conditions[] = {
    trainer_has_heads, has_stages,    trainer_has_expert_tensor,
    has_tensor,        has_context,   has_zero,
    has_shards,        has_recompute, has_offload,
    has_types,         NULL};

/* Stages send between passes; gradients of 16 bits stay beside their sums; stage 3
 * gathers parameter by parameter. zero_optimization.overlap_comm asks for the overlap, of
 * which a pipeline's single reduction has no use. */
static struct ap_trainer_habits habits(const struct ap_line *line)
{
    const int64_t zero = line->degrees.zero;

    return (struct ap_trainer_habits){
        (zero < 3 ? AP_TRAINER_PACKS : 0) | (line->pipeline > 1 ? AP_TRAINER_WAITS : 0) |
            (zero < 2 ? AP_TRAINER_KEEPS_GRADIENTS : 0) |
            (line->offload ? AP_TRAINER_HOST_UPDATE : 0),
        zero == 0 || line->pipeline > 1 ? AP_OVERLAP_NEVER : AP_OVERLAP_ASKED,
        trainer_expert_tensor(line)};
}

/* ---- writing ---- */

static void note_script(const struct ap_line *l, const struct ap_line_facts *f,
                        struct ap_notes *notes)
{
    const bool full = l->recompute == AP_LINE_RECOMPUTE_FULL;

    if (l->pipeline > 1)
        ap_note(notes,
                "in the script: PipelineModule(num_stages=%lld) with partition_method "
                "\"type:\" and the class of layers, %lld%s in each stage%s",
                (long long)l->pipeline, (long long)(f->layers / l->pipeline),
                f->layers % l->pipeline ? " or one more" : "",
                full ? ", activation_checkpoint_interval=1" : "");
    else if (full)
        ap_note(notes, "in the script: each layer recomputed "
                       "(gradient_checkpointing_enable(), deepspeed.checkpointing)");
    if (f->master == AP_BF16 || trainer_has_low_moments(f))
        ap_note(notes,
                "it keeps the optimizer's weights and moments in f32: those that the "
                "model has in less take more memory (--recipe mixed)");
    if (l->degrees.context > 1)
        ap_note(notes, "in the script: UlyssesSPAttentionHF.register_with_transformers "
                       "before the model is made");
}

static void write_json(const struct ap_trainer *own, const struct ap_line *l,
                       const struct ap_line_facts *f, struct ap_buf *out,
                       struct ap_notes *notes)
{
    const struct ap_degrees *d = &l->degrees;
    const int64_t microbatches = f->batch / (l->micro_batch * d->data);

    (void)own;
    note_script(l, f, notes);
    ap_buf_printf(out,
                  "{\n  \"train_batch_size\": %lld,\n"
                  "  \"train_micro_batch_size_per_gpu\": %lld,\n"
                  "  \"gradient_accumulation_steps\": %lld,\n"
                  "  \"zero_optimization\": {\"stage\": %lld",
                  (long long)f->batch, (long long)l->micro_batch, (long long)microbatches,
                  (long long)d->zero);
    if (d->zero > 0)
        ap_buf_printf(out, ", \"overlap_comm\": %s", l->overlap ? "true" : "false");
    if (l->offload)
        ap_buf_puts(out, ", \"offload_optimizer\": {\"device\": \"cpu\", "
                         "\"pin_memory\": true}");
    ap_buf_puts(out, "}");
    if (f->compute == AP_BF16 || f->compute == AP_F16)
        ap_buf_printf(out, ",\n  \"%s\": {\"enabled\": true}",
                      f->compute == AP_BF16 ? "bf16" : "fp16");
    if (f->compute == AP_BF16)
        ap_buf_puts(out, ",\n  \"data_types\": {\"grad_accum_dtype\": \"fp32\"}");
    if (d->context > 1)
        ap_buf_printf(out,
                      ",\n  \"sequence_parallel_size\": %lld,\n  "
                      "\"data_parallel_size\": %lld",
                      (long long)d->context, (long long)d->data);
    if (d->tensor > 1)
        ap_buf_printf(out, ",\n  \"tensor_parallel\": {\"autotp_size\": %lld}",
                      (long long)d->tensor);
    if (d->expert > 1)
        ap_buf_printf(
            out,
            ",\n  \"expert_parallel\": {\"enabled\": true, \"autoep_size\": %lld, "
            "\"expert_tensor_parallel_size\": 1}",
            (long long)d->expert);
    if (l->pipeline > 1 && l->recompute == AP_LINE_RECOMPUTE_FULL)
        ap_buf_puts(out, ",\n  \"pipeline\": {\"activation_checkpoint_interval\": 1}");
    ap_buf_puts(out, "\n}\n");
}

/* ---- reading ---- */

/* Of the file: what is refused, and what is read or passed over. */
static const struct trainer_unread members[] = {
    {"elasticity", "the batch changes"},
    {"curriculum_learning data_efficiency", "the sequence changes"},
    {"compression_training compile zenflow sparse_attention quantize_training",
     "no line says it"},
    {"train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
     "zero_optimization tensor_parallel sequence_parallel_size expert_parallel bf16 "
     "bfloat16 fp16 data_types communication_data_type pipeline "
     "activation_checkpointing",
     NULL},
    {"optimizer scheduler gradient_clipping prescale_gradients "
     "gradient_predivide_factor steps_per_print wall_clock_breakdown dump_state "
     "tensorboard wandb comet csv_monitor monitor_config comms_logger flops_profiler aio "
     "checkpoint zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
     "dataloader_drop_last data_parallel_size seed",
     NULL},
    {NULL, NULL}};

struct reading {
    const json_t *top;
    struct ap_notes *notes;
    struct ap_err *err;
};

/* "section.key"; NULL: it is not there, or something else is in its place. */
static const json_t *find(struct reading *r, const char *path)
{
    const char *dot = strchr(path, '.');
    const json_t *o = r->top;
    char section[64];

    if (!dot)
        return json_object_get(o, path);
    snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
    o = json_object_get(o, section);
    if (o && !json_is_object(o))
        ap_err_set(r->err, "%s: expected an object", section);
    return json_object_get(o, dot + 1);
}

static int64_t number(struct reading *r, const char *path, int64_t least, int64_t silent)
{
    const json_t *v = find(r, path);

    if (!v)
        return silent;
    if (json_is_string(v) && !strcmp(json_string_value(v), "auto")) {
        ap_err_set(r->err, "%s: \"auto\" is for a launcher to fill in: give the number",
                   path);
        return silent;
    }
    if (json_is_null(v)) {
        ap_err_set(r->err, "%s: nothing in the script gives it a value", path);
        return silent;
    }
    if (!json_is_integer(v) || json_integer_value(v) < least ||
        json_integer_value(v) > INT32_MAX) {
        ap_err_set(r->err, "%s: expected a number from %lld on", path, (long long)least);
        return silent;
    }
    return json_integer_value(v);
}

static bool is_on(struct reading *r, const char *path, bool silent)
{
    const json_t *v = find(r, path);

    if (v && !json_is_boolean(v))
        ap_err_set(r->err, "%s: expected true or false%s", path,
                   json_is_string(v) ? ": \"auto\" and the like are for a launcher" : "");
    return v ? json_is_true(v) : silent;
}

/* Members that nothing reads. */
static int check_members(struct reading *r)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)r->top, key, value)
    {
        const struct trainer_unread *u = trainer_unread_find(members, key, NULL);
        if (u && u->why)
            return ap_err_set(r->err, "%s: %s", key, u->why);
        if (!u)
            ap_note(r->notes, "%.60s: not known, passed over", key);
    }
    return 0;
}

/* "offload_optimizer": {"device": "cpu"} */
static void read_offload(struct reading *r, struct ap_line *line)
{
    const json_t *v = find(r, "zero_optimization.offload_optimizer");
    const char *device = json_string_value(json_object_get(v, "device"));
    const json_t *ratio = json_object_get(v, "ratio");

    if (!v || json_is_null(v) || json_is_false(v) ||
        (device && !strcmp(device, "none")) ||
        (json_is_object(v) && !json_object_get(v, "device"))) /* its default: "none" */
        return;
    if (!device || strcmp(device, "cpu") != 0 ||
        (ratio && json_number_value(ratio) != 1)) {
        ap_err_set(r->err, "zero_optimization.offload_optimizer: a line says device "
                           "\"cpu\", and all of it");
        return;
    }
    line->offload = AP_LINE_OFFLOAD_OPTIMIZER;
}

static void read_zero(struct reading *r, struct ap_line *line)
{
    static const char *const refused[] = {"zero_optimization.offload_param",
                                          "zero_optimization.zero_quantized_weights",
                                          "zero_optimization.zero_quantized_gradients"};
    struct ap_degrees *d = &line->degrees;

    d->zero = number(r, "zero_optimization.stage", 0, 0);
    if (d->zero > 3)
        ap_err_set(r->err, "zero_optimization.stage: expected 0 to 3");
    line->overlap = is_on(r, "zero_optimization.overlap_comm", d->zero == 3);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = find(r, refused[i]);
        const json_t *device = json_object_get(v, "device");
        const bool none =
            device ? json_is_string(device) && !strcmp(json_string_value(device), "none")
                   : json_is_object(v); /* the default */
        if (v && !json_is_null(v) && !json_is_false(v) && !none)
            ap_err_set(r->err, "%s: no line says it", refused[i]);
    }
    if (number(r, "zero_optimization.mics_shard_size", -1, -1) > 0)
        ap_err_set(r->err, "zero_optimization.mics_shard_size: DeepSpeed has removed it");
    if (number(r, "zero_optimization.zero_hpz_partition_size", 1, 1) > 1)
        ap_err_set(r->err, "zero_optimization.zero_hpz_partition_size: no line says it");
}

static void read_types(struct reading *r, struct ap_line_facts *f)
{
    static const char *const one_bit[] = {"onebitadam", "zerooneadam", "onebitlamb"};
    const bool bf16 =
        is_on(r, "bf16.enabled", false) | is_on(r, "bfloat16.enabled", false);
    const bool fp16 = is_on(r, "fp16.enabled", false);
    const json_t *sums = find(r, "data_types.grad_accum_dtype");
    const json_t *sent = find(r, "communication_data_type");
    const char *optimizer = json_string_value(find(r, "optimizer.type"));

    f->compute = bf16 ? AP_BF16 : fp16 ? AP_F16 : AP_F32;
    f->master = f->moments = f->second = AP_F32;
    if (bf16 && fp16)
        ap_err_set(r->err, "bf16 and fp16: one is expected");
    if (sums && !json_is_null(sums) &&
        (!json_is_string(sums) || strcmp(json_string_value(sums), "fp32") != 0))
        ap_err_set(r->err, "data_types.grad_accum_dtype: sums of gradients in fp32 are "
                           "read");
    if (sent && !json_is_null(sent))
        ap_err_set(r->err, "communication_data_type: no line says it");
    for (int i = 0; i < 3 && optimizer; i++)
        if (!strcasecmp(optimizer, one_bit[i]))
            ap_err_set(r->err, "optimizer.type %s: no line says what it sends",
                       optimizer);
}

/* Any two of batch, micro-batch and accumulation give the third; all three the replicas,
 * and so the stages of the script. */
static int read_batch(struct reading *r, struct ap_trainer_said *said)
{
    struct ap_line *line = &said->line;
    struct ap_degrees *d = &line->degrees;
    int64_t train = number(r, "train_batch_size", 1, 0);
    int64_t micro = number(r, "train_micro_batch_size_per_gpu", 1, 0);
    int64_t steps = number(r, "gradient_accumulation_steps", 1, 0);
    const int64_t sets = said->facts.world / ap_mul64(d->tensor, d->context);

    if (*r->err->msg)
        return -1;
    if (sets < 1 || sets * d->tensor * d->context != said->facts.world)
        return ap_err_set(r->err,
                          "tensor_parallel.autotp_size x sequence_parallel_size = "
                          "%lld do not divide the %lld devices",
                          (long long)ap_mul64(d->tensor, d->context),
                          (long long)said->facts.world);
    if (!train && !micro)
        return ap_err_set(r->err, "train_batch_size or train_micro_batch_size_per_gpu: "
                                  "expected");
    d->data = sets;
    if (train && micro && steps) {
        d->data = train / ap_mul64(micro, steps);
        if (d->data < 1 || ap_mul64(ap_mul64(micro, steps), d->data) != train ||
            sets % d->data)
            return ap_err_set(
                r->err,
                "train_batch_size %lld is not train_micro_batch_size_per_gpu "
                "%lld x gradient_accumulation_steps %lld x replicas, of which "
                "%lld devices have at most %lld",
                (long long)train, (long long)micro, (long long)steps,
                (long long)said->facts.world, (long long)sets);
    }
    line->pipeline = sets / d->data;
    if (line->pipeline > 1)
        ap_note(r->notes,
                "%lld replicas of %lld devices: the script's PipelineModule is "
                "taken to have %lld stages",
                (long long)d->data, (long long)said->facts.world,
                (long long)line->pipeline);
    if (!micro) {
        steps = steps ? steps : 1;
        micro = train / ap_mul64(steps, d->data);
    }
    if (!train)
        train = ap_mul64(micro, ap_mul64(steps ? steps : 1, d->data));
    line->micro_batch = micro;
    said->facts.batch = train;
    if (micro < 1 || train % ap_mul64(micro, d->data) ||
        (steps && train != ap_mul64(steps, ap_mul64(micro, d->data))))
        return ap_err_set(r->err,
                          "train_batch_size %lld does not divide by %s %lld x the %lld "
                          "replicas",
                          (long long)train,
                          steps ? "gradient_accumulation_steps"
                                : "train_micro_batch_size_per_gpu",
                          (long long)(steps ? steps : micro), (long long)d->data);
    return 0;
}

static int read_members(struct reading *r, const struct ap_line_facts *known,
                        struct ap_trainer_said *said)
{
    struct ap_line *line = &said->line;
    struct ap_degrees *d = &line->degrees;

    said->facts.world = said->facts.world ? said->facts.world : known->world;
    said->facts.layers = known->layers;
    if (said->facts.world == 0)
        return ap_err_set(r->err, "nothing says the number of devices");
    const int64_t tensor = number(r, "tensor_parallel.autotp_size", 0, 0);
    d->tensor = tensor > 1 ? tensor : 1;
    d->context = d->exchange = number(r, "sequence_parallel_size", 1, 1);
    if (is_on(r, "expert_parallel.enabled", false))
        d->expert = number(r, "expert_parallel.autoep_size", 1, 1);
    d->expert_tensor = number(r, "expert_parallel.expert_tensor_parallel_size", 1, 1);
    d->expert_tensor = d->expert > 1 ? d->expert_tensor : 0;
    read_types(r, &said->facts);
    read_zero(r, line);
    read_offload(r, line);
    if (read_batch(r, said))
        return -1;
    const int64_t every = number(r, "pipeline.activation_checkpoint_interval", 0, 0);
    line->schedule = AP_SCHEDULE_1F1B;
    line->recompute =
        line->pipeline > 1 && every ? AP_LINE_RECOMPUTE_FULL : AP_LINE_RECOMPUTE_NONE;
    if (known->layers % line->pipeline)
        (void)ap_trainer_deal(r->notes->arena, line, known->layers, 0, 0);
    if (every > 1)
        ap_err_set(r->err,
                   "pipeline.activation_checkpoint_interval %lld: a line says 1, "
                   "each layer by itself",
                   (long long)every);
    if (json_object_get(r->top, "activation_checkpointing") && line->pipeline == 1)
        ap_note(r->notes, "activation_checkpointing: what is recomputed is in the script "
                          "(recompute=full)");
    return *r->err->msg ? -1 : check_members(r);
}

/* The file, or the here-document of a script that writes it. */
static const char *find_json(const char *text, struct ap_trainer_said *said,
                             struct ap_notes *notes, struct ap_err *err)
{
    struct trainer_words words;
    struct ap_err ignored = {""};
    int64_t world = 0;

    if (text[strspn(text, " \t\r\n")] == '{')
        return text;
    trainer_words_read(notes->arena, text, &words, &world, &ignored);
    if (!words.json)
        return text;
    if (words.either)
        ap_err_set(err, "a condition says which of its here-documents is DeepSpeed's: "
                        "keep one");
    said->facts.world = world;
    ap_note(notes, "what the script gives its program beside the file is not read: tp=, "
                   "pp= and recompute= are for --grid to say");
    return words.json;
}

static int read_json(const struct ap_trainer *own, const char *text,
                     const struct ap_line_facts *known, struct ap_trainer_said *said,
                     struct ap_notes *notes, struct ap_err *err)
{
    json_error_t where;
    text = find_json(text, said, notes, err);
    if (*err->msg)
        return -1;
    json_t *top = json_loadb(text, strlen(text), JSON_REJECT_DUPLICATES, &where);
    struct reading r = {top, notes, err};

    (void)own;
    if (!top)
        return ap_err_set(err, "JSON is expected: %d:%d: %s", where.line, where.column,
                          where.text);
    const int rc = json_is_object(top) ? read_members(&r, known, said)
                                       : ap_err_set(err, "expected an object");
    json_decref(top);
    return rc;
}

const struct ap_trainer trainer_deepspeed = {
    .name = "deepspeed",
    .title = "DeepSpeed 0.19",
    .parallelism = {"tensor_parallel.autotp_size", NULL, "sequence_parallel_size",
                    "expert_parallel.autoep_size"},
    .models = AP_MODEL_ANY,
    .conditions = conditions,
    .offloads = AP_LINE_OFFLOAD_OPTIMIZER,
    .habits = habits,
    .write = write_json,
    .read = read_json};
