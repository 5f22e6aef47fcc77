/*
 * torchtitan 0.3.0, and main of August 2026: which lines its configuration can say.
 * Sources: torchtitan/config/configs.py, distributed/parallel_dims.py,
 * distributed/pipeline_parallel.py, models/llama3; torch/distributed/pipelining
 * (schedules.py, stage.py). Experts are split by tensor parallelism where there is no
 * expert parallelism, and whole where there is. Under a pipeline torch keeps gathered
 * weights and whole gradients to the end of the step: ZeRO-1.
 */
#include <string.h>

#include "line/trainer_impl.h"
#include "line/trainer_words.h"

#define TP    "--parallelism.tensor_parallel_degree"
#define PP    "--parallelism.pipeline_parallel_degree"
#define CP    "--parallelism.context_parallel_degree"
#define EP    "--parallelism.expert_parallel_degree"
#define SHARD "--parallelism.data_parallel_shard_degree"
#define ORDER "--parallelism.pipeline_parallel_schedule_csv"

static int has_kv_heads(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->facts->kv_heads % c->line.degrees.tensor == 0)
        return 0;
    return ap_err_set(err, TP " %lld does not divide the %lld heads of keys and values",
                      (long long)c->line.degrees.tensor, (long long)c->facts->kv_heads);
}

/* Experts lie on the devices of tensor parallelism, then of the context, then of those
 * that shard. */
static int has_expert_mesh(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t each =
        c->line.degrees.tensor * (c->line.degrees.zero ? c->line.degrees.shard : 1);

    if (c->line.degrees.expert == 1 || each % c->line.degrees.expert == 0)
        return 0;
    return ap_err_set(
        err, EP " %lld does not divide the %lld devices of " SHARD " x " CP " x " TP,
        (long long)c->line.degrees.expert, (long long)each);
}

/* Replicated, or FSDP whose weights stay gathered after the forward pass, or not. */
static int has_zero(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t zero = c->line.degrees.zero;

    if (zero == 0 || (c->line.pipeline > 1 ? zero == 1 : zero >= 2))
        return 0;
    return ap_err_set(err,
                      c->line.pipeline > 1
                          ? "zero=%lld: under " PP " %lld gradients are summed whole, "
                            "which is zero=1"
                          : "zero=%lld: FSDP scatters gradients with each microbatch, "
                            "which is zero=2 (" PP " %lld)",
                      (long long)zero, (long long)c->line.pipeline);
}

static int has_shards(const struct ap_trainer_case *c, struct ap_err *err)
{
    const bool sharded = c->line.degrees.zero > 0;

    if (sharded ? c->line.degrees.shard % c->line.degrees.context == 0
                : c->line.degrees.context == 1)
        return 0;
    return ap_err_set(err,
                      CP " %lld: weights are sharded over these devices, too (zero, "
                         "shard=%lld)",
                      (long long)c->line.degrees.context,
                      (long long)c->line.degrees.shard);
}

static int has_untied(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->line.pipeline == 1 || !c->facts->tied)
        return 0;
    return ap_err_set(err,
                      PP " %lld: embedding and head share a weight, and lie in "
                         "different stages",
                      (long long)c->line.pipeline);
}

static int has_next_token(const struct ap_trainer_case *c, struct ap_err *err)
{
    return c->facts->mtp ? ap_err_set(err,
                                      "its models predict the next token alone: "
                                      "the model has %lld layers for further ones",
                                      (long long)c->facts->mtp)
                         : 0;
}

/* Stages are lists of modules: first and last have the embedding and the head. */
static int has_modules(const struct ap_trainer_case *c, struct ap_err *err)
{
    for (int i = 1; i + 1 < c->line.n_layers; i++)
        if (c->line.layers[i] == 0)
            return ap_err_set(err,
                              "stage %d has no module for "
                              "--parallelism.module_fqns_per_model_part",
                              i);
    return 0;
}

/* schedules.py, Schedule1F1B; those of its own are ap_line_divide's. */
static int has_microbatches(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->line.pipeline == 1 || c->line.schedule != AP_SCHEDULE_1F1B ||
        c->microbatches >= c->line.pipeline)
        return 0;
    return ap_err_set(err, "%lld microbatches are fewer than " PP " %lld (1F1B)",
                      (long long)c->microbatches, (long long)c->line.pipeline);
}

static const char *const schedules[AP_N_SCHEDULES] = {
    [AP_SCHEDULE_GPIPE] = "GPipe",
    [AP_SCHEDULE_1F1B] = "1F1B",
    [AP_SCHEDULE_INTERLEAVED] = "Interleaved1F1B",
    [AP_SCHEDULE_LOOPED_BFS] = "LoopedBFS",
    [AP_SCHEDULE_ZB_H1] = "InterleavedZeroBubble",
    [AP_SCHEDULE_ZB_V] = "ZBVZeroBubble",
    [AP_SCHEDULE_DUALPIPE_V] = "DualPipeV"};

/* Whether the schedule, which splits passes, has none of these names: its order is in a
 * file. */
static bool has_order(enum ap_schedule s, int64_t chunks)
{
    return !schedules[s] || (s == AP_SCHEDULE_ZB_H1 && chunks == 1);
}

/* The name of a schedule whose stages are where the line has them. */
static const char *schedule_name(const struct ap_line *l)
{
    return !has_order(l->schedule, l->chunks)     ? schedules[l->schedule]
           : ap_schedule_traits[l->schedule].is_v ? schedules[AP_SCHEDULE_ZB_V]
           : l->chunks > 1                        ? schedules[AP_SCHEDULE_INTERLEAVED]
                                                  : schedules[AP_SCHEDULE_1F1B];
}

/*
 * The order as PyTorch's _PipelineScheduleRuntime._load_csv reads it: a line per device
 * of stage, pass and microbatch; I and W are the two parts of a backward pass. -1: there
 * is no such order.
 */
static int put_order(const struct ap_line *l, int64_t microbatches, struct ap_buf *out)
{
    const struct ap_schedule_size size = {l->schedule, (int)l->pipeline, (int)l->chunks,
                                          (int)microbatches, false};
    struct ap_arena arena = {0};
    struct ap_err err = {""};
    int rc = 0;

    for (int device = 0; rc == 0 && device < size.n_devices; device++) {
        struct ap_instr *order;
        int n = 0;
        rc = ap_schedule_order(&arena, &size, device, &order, &n, &err);
        for (int i = 0; i < n; i++)
            ap_buf_printf(out, "%s%d%c%d", i ? "," : "", order[i].stage,
                          "FIW"[order[i].pass], order[i].microbatch);
        ap_buf_putc(out, '\n');
    }
    ap_arena_free(&arena);
    return rc;
}

/* Schedules of several stages on a device have two at least; FlexAttention, which context
 * parallelism of main needs, has no split backward pass (stage_backward_input). */
static int has_schedule(const struct ap_trainer_case *c, struct ap_err *err)
{
    const enum ap_schedule s = c->line.schedule;

    if (c->stages == 1)
        return 0;
    if (s >= AP_N_TRAIN_SCHEDULES)
        return ap_err_set(err, "schedule %s: no line says it", ap_schedule_names[s]);
    if (ap_schedule_traits[s].splits && c->line.trainer & AP_TRAINER_TP_OVERLAP)
        return ap_err_set(
            err,
            "tp-overlap: async tensor parallelism is of compiled models, whose "
            "backward passes schedule %s cannot split",
            ap_schedule_names[s]);
    if (c->trainer == &trainer_torchtitan_main && ap_schedule_traits[s].splits &&
        c->line.degrees.context > 1)
        return ap_err_set(err,
                          "schedule %s: attention under " CP
                          " %lld is FlexAttention, whose backward pass cannot be split",
                          ap_schedule_names[s], (long long)c->line.degrees.context);
    return 0;
}

static int has_recompute(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (trainer_has_single_layers(c, err))
        return -1;
    if (c->line.recompute != AP_LINE_RECOMPUTE_SELECTIVE)
        return 0;
    return ap_err_set(err,
                      "recompute=%s: activation_checkpoint:selective keeps attention and "
                      "every other product (recompute=operators)",
                      c->line.recompute_modules ? "modules by name" : "selective");
}

static int has_gathered_context(const struct ap_trainer_case *c, struct ap_err *err)
{
    const struct ap_degrees *d = &c->line.degrees;

    return d->ring || d->exchange > 1
               ? ap_err_set(err,
                            "ring, a2a: under " CP " %lld keys and values are gathered",
                            (long long)c->line.degrees.context)
               : 0;
}

/* Products in fp8 are converters of its models. The optimizer's types are those of the
 * parameters, or its moments have bf16. */
static int has_types(const struct ap_trainer_case *c, struct ap_err *err)
{
    const enum ap_dtype master = c->facts->master, moments = c->facts->moments;
    const enum ap_dtype second = c->facts->second;

    if (master == AP_F16 || moments == AP_F16 || moments == AP_F8E4M3FN ||
        moments != second || (master == AP_BF16 && moments == AP_F32))
        return ap_err_set(err,
                          "weights in %s, moments in %s and %s: --training.dtype is "
                          "float32, or bfloat16 of all (--recipe)",
                          ap_dtype_name(master), ap_dtype_name(moments),
                          ap_dtype_name(second));
    if (c->facts->compute != AP_F16 && !trainer_is_fp8(c->facts))
        return 0;
    return ap_err_set(err,
                      "--training.mixed_precision_param is bfloat16 or float32, the "
                      "model's contractions are in %s",
                      ap_dtype_name(c->facts->compute));
}

static ap_trainer_condition *const conditions[] = {trainer_has_heads,
                                                   has_kv_heads,
                                                   has_modules,
                                                   has_untied,
                                                   has_next_token,
                                                   trainer_has_expert_tensor,
                                                   has_expert_mesh,
                                                   trainer_has_sequence,
                                                   has_gathered_context,
                                                   has_schedule,
                                                   has_microbatches,
                                                   has_zero,
                                                   has_shards,
                                                   has_recompute,
                                                   has_types,
                                                   NULL};

/* A collective for all parameters of a layer, beside the passes. */
static struct ap_trainer_habits habits(const struct ap_line *line)
{
    return (struct ap_trainer_habits){
        AP_TRAINER_PACKS |
            (line->recompute == AP_LINE_RECOMPUTE_FULL ? AP_TRAINER_STOPS_EARLY : 0U),
        line->pipeline == 1 ? AP_OVERLAP_ALWAYS : AP_OVERLAP_NEVER,
        trainer_expert_tensor(line)};
}

/* ---- writing ---- */

/* Names of the batch: samples of a replica at a time (0.3), or tokens (main). */
struct spelling {
    bool tokens;
    const char *local, *global, *length, *part, *async;
};
static const struct spelling samples = {false,
                                        "--training.local_batch_size",
                                        "--training.global_batch_size",
                                        "--training.seq_len",
                                        "--parallelism.pipeline_parallel_microbatch_size",
                                        "--parallelism.enable_async_tensor_parallel"};
static const struct spelling tokens = {true,
                                       "--training.num_tokens_per_microbatch_per_dp_rank",
                                       "--training.num_tokens_per_train_step",
                                       "--training.max_context_length",
                                       "--parallelism.num_pp_microbatches",
                                       "--compile.enable_async_tensor_parallel"};

static const struct spelling *spelling(const struct ap_trainer *t)
{
    return t == &trainer_torchtitan_main ? &tokens : &samples;
}

static void put_parts(const struct ap_line *l, int64_t layers, struct ap_buf *out)
{
    const int stages = ap_line_stages(l);
    int layer = 0;

    ap_buf_puts(out, "    --parallelism.module_fqns_per_model_part");
    for (int i = 0; i < stages; i++) {
        const int n = l->n_layers ? l->layers[i] : (int)(layers / stages);
        const char *sep = " ";
        if (i == 0) {
            ap_buf_puts(out, " tok_embeddings");
            sep = ",";
        }
        for (int k = 0; k < n; k++, sep = ",")
            ap_buf_printf(out, "%slayers.%d", sep, layer++);
        if (i == stages - 1)
            ap_buf_printf(out, "%snorm,lm_head", sep);
    }
    ap_buf_putc(out, '\n');
}

static void put_batch(const struct ap_line *l, const struct ap_line_facts *f,
                      const struct spelling *names, struct ap_buf *out)
{
    const int64_t microbatches = f->batch / (l->micro_batch * l->degrees.data);
    const int64_t unit = names->tokens ? f->sequence : 1;
    const bool staged = l->pipeline > 1;

    if (staged)
        trainer_put_flag(out, names->part, names->tokens ? microbatches : l->micro_batch);
    trainer_put_flag(out, names->local,
                     l->micro_batch * unit *
                         (staged && !names->tokens ? microbatches : 1));
    trainer_put_flag(out, names->global, f->batch * unit);
    if (f->sequence)
        trainer_put_flag(out, names->length, f->sequence);
}

static void write_flags(const struct ap_trainer *t, const struct ap_line *l,
                        const struct ap_line_facts *f, struct ap_buf *out,
                        struct ap_notes *notes)
{
    const struct spelling *names = spelling(t);
    static const char *const checkpoints[AP_N_LINE_RECOMPUTES] = {"none", "selective",
                                                                  "selective", "full"};
    const struct ap_degrees *d = &l->degrees;

    if (l->pipeline > 1 && ap_schedule_traits[l->schedule].splits)
        ap_note(notes,
                "%s: splits backward passes, which PyTorch cannot do of FlexAttention or "
                "of compiled stages",
                ap_schedule_names[l->schedule]);
    const bool order = l->pipeline > 1 && has_order(l->schedule, l->chunks);
    if (order) {
        ap_buf_printf(out, "cat >%s.csv <<'END'\n", ap_schedule_names[l->schedule]);
        (void)put_order(l, f->batch / (l->micro_batch * d->data), out); /* it is legal */
        ap_buf_puts(out, "END\n");
    }
    ap_buf_puts(out, "PARALLEL_ARGS=(\n");
    trainer_put_flag(out, "--parallelism.data_parallel_replicate_degree",
                     d->zero ? d->data * d->context / d->shard : d->data);
    trainer_put_flag(out, SHARD, d->zero ? d->shard / d->context : 1);
    if (d->zero)
        ap_buf_printf(out, "    --parallelism.fsdp_reshard_after_forward %s\n",
                      d->zero == 3 ? "always" : "never");
    trainer_put_flag(out, CP, d->context);
    trainer_put_flag(out, TP, d->tensor);
    if (d->tensor > 1 && !d->sequence)
        ap_buf_puts(out, "    --parallelism.no-enable_sequence_parallel\n");
    if (l->trainer & AP_TRAINER_TP_OVERLAP) /* a pass of the compiler */
        ap_buf_printf(out, "    --compile.enable\n    %s\n", names->async);
    if (f->experts)
        trainer_put_flag(out, EP, d->expert);
    trainer_put_flag(out, PP, l->pipeline);
    if (l->pipeline > 1) {
        ap_buf_printf(out, "    --parallelism.pipeline_parallel_schedule %s\n",
                      schedule_name(l));
        if (order)
            ap_buf_printf(out,
                          "    --parallelism.pipeline_parallel_schedule_csv %s.csv\n",
                          ap_schedule_names[l->schedule]);
        put_parts(l, f->layers, out);
    }
    if (l->pipeline > 1 || d->expert > 1) /* refused with CUDA graphs */
        ap_buf_puts(out, "    --training.disable_cuda_graphs\n");
    put_batch(l, f, names, out);
    if (f->compute != AP_TUPLE)
        ap_buf_printf(out, "    --training.mixed_precision_param %s\n",
                      f->compute == AP_BF16 ? "bfloat16" : "float32");
    if (f->master == AP_BF16)
        ap_buf_puts(out, "    --training.dtype bfloat16\n");
    else if (trainer_has_low_moments(f))
        ap_buf_puts(out, "    --optimizer.implementation fused_opt_states_bf16\n");
    ap_buf_printf(out, "    activation_checkpoint:%s\n)\n", checkpoints[l->recompute]);
}

/* ---- reading ---- */

/* As trainer_flags_find spells them: "-" for "_". */
static const struct trainer_unread unread[] = {
    {"--module --config --job.* --lr-scheduler.* --checkpoint.* --profiling.* "
     "--profiler.* --metrics.* --debug.* --comm.* --validation.* --validator.* "
     "--dataloader.* --tokenizer.* --experimental.* --hf-assets-path --dump-folder "
     "--training.steps --training.max-norm --training.dataset* --training.seed "
     "--training.deterministic --training.gc-* --fault-tolerance.* --loss.* "
     "--training.mixed-precision-reduce=float32 "
     "--training.enable-cpu-offload=False --training.no-enable-cpu-offload "
     "--parallelism.spmd-backend=spmd_types "
     "--parallelism.context-parallel-load-balancer=headtail "
     "--activation-checkpoint.selective-ac-option=op --activation-checkpoint.early-stop "
     "--activation-checkpoint.preserve-rng-state --activation-checkpoint.debug "
     "--activation-checkpoint.determinism-check "
     "--optimizer.name=Adam --optimizer.name=AdamW",
     NULL},
    {"--optimizer.name", "~the model's optimizer is priced"},
    {"--model.converters --quantize.*", "no line says it"},
    {"--model.* --optimizer.* --compile.*", NULL},
    {"--parallelism.expert-tensor-parallel-degree", "torchtitan 0.3 has no such flag"},
    {"--training.enable-cpu-offload", "no line says where weights and states are"},
    {"--training.mixed-precision-reduce", "float32 is read: of sums of gradients"},
    {"--parallelism.* --training.* --activation-checkpoint.*", "it is not read"},
    {NULL, NULL}};

/* "--x.y", "--x.y True", or "--x.no-y" */
static bool on(struct trainer_reading *r, const char *name, bool silent)
{
    const int dot = (int)(strchr(name, '.') - name);
    const char *no = ap_arena_printf(r->arena, "%.*s.no-%s", dot, name, name + dot + 1);
    const struct trainer_flag *f = trainer_flag_find(&r->flags, name);

    if (!f)
        return trainer_flag_find(&r->flags, no) ? false : silent;
    const char *text = f->n ? trainer_flag_word(&r->flags, name, "True") : "True";
    const bool is = !strcmp(text, "True") || !strcmp(text, "true");
    if (!is && strcmp(text, "False") != 0 && strcmp(text, "false") != 0)
        ap_err_set(r->err, "%s: expected True or False, got '%.40s'", name, text);
    return is;
}

/* The place of a flag's word among names; silent: 0. */
static int one_of(struct trainer_reading *r, const char *name, const char *const *names,
                  int n)
{
    const char *text = trainer_flag_word(&r->flags, name, names[0]);
    struct ap_buf list = {0};

    for (int i = 0; i < n; i++) {
        if (!strcmp(text, names[i]))
            return ap_buf_free(&list), i;
        ap_buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
    }
    ap_err_set(r->err, "%s: '%.40s' is not one of %s", name, text, list.data);
    ap_buf_free(&list);
    return 0;
}
#define ONE_OF(r, name, names) \
    one_of(r, name, names, (int)(sizeof(names) / sizeof *(names)))

/* Modules separated by commas; counts "layers.N". */
static int count_layers(const char *text)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, "layers.")); at++)
        n++;
    return n;
}

static void read_parts(struct trainer_reading *r, const struct trainer_flag *f)
{
    struct ap_line *line = &r->said->line;

    if (f->n > AP_LINE_MOST_STAGES || f->n % line->pipeline) {
        ap_err_set(r->err,
                   "--parallelism.module_fqns_per_model_part: %d stages for " PP " %lld",
                   f->n, (long long)line->pipeline);
        return;
    }
    int *layers = trainer_new_layers(r->arena, line, f->n);
    line->chunks = f->n / line->pipeline;
    for (int i = 0; i < f->n; i++) {
        layers[i] = count_layers(f->value[i].text);
        if (f->value[i].unknown)
            ap_err_set(r->err, "--parallelism.module_fqns_per_model_part: %s",
                       f->value[i].unknown);
    }
}

static void deal_layers(struct trainer_reading *r, bool several)
{
    struct ap_line *line = &r->said->line;
    const int64_t layers = r->known->layers;
    const int64_t each =
        trainer_number(r, "--parallelism.pipeline_parallel_layers_per_stage", 0);
    const int64_t first = trainer_flag_number(
        &r->flags, "--parallelism.pipeline-parallel-first-stage-less-layers", 1);
    const int64_t last = trainer_flag_number(
        &r->flags, "--parallelism.pipeline-parallel-last-stage-less-layers", 1);
    const int64_t units = layers + first + last;
    const int64_t n =
        each ? ap_ceil_div(units, each) : line->pipeline * (several ? 2 : 1);

    if (layers == 0 || first < 0 || last < 0) {
        ap_err_set(r->err, PP ": the number of layers is needed to know those of stages");
        return;
    }
    if (n > AP_LINE_MOST_STAGES || n % line->pipeline || n > units ||
        (n > line->pipeline) != several) {
        ap_err_set(r->err,
                   PP " %lld: %lld stages of %lld layers do not agree with the schedule",
                   (long long)line->pipeline, (long long)n, (long long)layers);
        return;
    }
    line->chunks = n / line->pipeline;
    if (ap_trainer_deal(r->arena, line, layers, first, last))
        ap_err_set(r->err, "a stage of %lld layers has fewer than none",
                   (long long)(units / n));
}

static void read_stages(struct trainer_reading *r)
{
    struct ap_line *line = &r->said->line;
    const char *name =
        trainer_flag_word(&r->flags, "--parallelism.pipeline_parallel_schedule", "1F1B");
    const struct trainer_flag *parts =
        trainer_flag_find(&r->flags, "--parallelism.module-fqns-per-model-part");
    int s = 0;

    line->pipeline = trainer_number(r, PP, 1);
    while (s < AP_N_SCHEDULES && (!schedules[s] || strcmp(schedules[s], name) != 0))
        s++;
    line->schedule = AP_SCHEDULE_1F1B;
    if (line->pipeline == 1 || *r->err->msg)
        return;
    if (s == AP_N_SCHEDULES) {
        ap_err_set(r->err,
                   "--parallelism.pipeline_parallel_schedule %.40s: no line says it",
                   name);
        return;
    }
    line->schedule = (enum ap_schedule)s;
    if (parts)
        read_parts(r, parts);
    else
        deal_layers(r, ap_schedule_traits[s].most_chunks > 1);
    if ((line->chunks > 1) != (ap_schedule_traits[s].most_chunks > 1) ||
        line->chunks > ap_schedule_traits[s].most_chunks)
        ap_err_set(r->err,
                   "--parallelism.pipeline_parallel_schedule %s: %lld stages on "
                   "each device",
                   name, (long long)line->chunks);
}

/* Replicas and shards; data 0: what the others leave. */
static void read_data(struct trainer_reading *r)
{
    struct ap_line *line = &r->said->line;
    struct ap_degrees *d = &line->degrees;
    static const char *const reshards[] = {"default", "always", "never"};
    const int reshard = ONE_OF(r, "--parallelism.fsdp_reshard_after_forward", reshards);
    const int64_t copies =
        trainer_number(r, "--parallelism.data_parallel_replicate_degree", 1);
    const int64_t world = r->said->facts.world;
    int64_t shard = trainer_number(r, SHARD, -1);
    const int64_t others =
        ap_mul64(ap_mul64(copies, d->context), ap_mul64(d->tensor, line->pipeline));

    if (*r->err->msg)
        return;
    if (shard == -1)
        shard = world / others;
    if (shard < 1 || ap_mul64(shard, others) != world) {
        ap_err_set(r->err, "the degrees make %lld devices, there are %lld",
                   (long long)ap_mul64(shard, others), (long long)world);
        return;
    }
    d->data = copies * shard;
    if (shard * d->context == 1)
        return;
    d->shard = shard * d->context;
    d->zero = line->pipeline > 1 ? 1 : reshard == 2 ? 2 : 3;
    if (line->pipeline > 1 && reshard == 1)
        ap_err_set(r->err,
                   "--parallelism.fsdp_reshard_after_forward always: no line says "
                   "that passes of a pipeline gather weights while gradients are "
                   "summed whole");
}

static void read_batch(struct trainer_reading *r, const struct spelling *names)
{
    struct ap_line *line = &r->said->line;
    struct ap_line_facts *f = &r->said->facts;
    const bool staged = line->pipeline > 1;
    const int64_t data = line->degrees.data;

    f->sequence = trainer_number(r, names->length, 2048);
    const int64_t local = trainer_number(r, names->local, names->tokens ? 16384 : 8);
    const int64_t part = trainer_number(r, names->part, 1);
    int64_t global = trainer_flag_number(&r->flags, names->global, -1);
    if (*r->err->msg)
        return;
    const int64_t unit = names->tokens ? f->sequence : 1;
    const int64_t at_once = names->tokens && staged ? ap_mul64(local, part) : local;
    if (global == -1)
        global = ap_mul64(at_once, data);
    if (global < 1 || global % ap_mul64(at_once, data) || at_once % unit ||
        local % unit) {
        ap_err_set(r->err,
                   "%s %lld, %s %lld: expected a multiple of the %lld that all "
                   "replicas take at once",
                   names->global, (long long)global, names->local, (long long)local,
                   (long long)ap_mul64(at_once, data));
        return;
    }
    f->batch = global / unit;
    line->micro_batch = names->tokens ? local / unit : staged ? part : local;
    if (staged && global != ap_mul64(at_once, data))
        ap_err_set(r->err,
                   "%s %lld: no line says a pipeline that runs %lld times in a "
                   "step",
                   names->global, (long long)global,
                   (long long)(global / ap_mul64(at_once, data)));
    if (staged && !names->tokens && local % part)
        ap_err_set(r->err, "%s %lld does not divide %s %lld", names->part,
                   (long long)part, names->local, (long long)local);
}

/* The schedule whose order the text has, in the script that makes the file; of several
 * with one order that which the file is called by. */
static void read_order(struct trainer_reading *r, const char *text)
{
    struct ap_line *l = &r->said->line;
    const char *file = trainer_flag_word(&r->flags, ORDER, NULL);
    bool found = false;

    if (!file || l->pipeline == 1 || *r->err->msg)
        return;
    const int64_t n = r->said->facts.batch / ap_mul64(l->micro_batch, l->degrees.data);
    for (int s = 0; s < AP_N_TRAIN_SCHEDULES; s++) {
        struct ap_line as = *l;
        struct ap_buf order = {0};
        as.schedule = (enum ap_schedule)s;
        if (has_order(as.schedule, l->chunks) && put_order(&as, n, &order) == 0 &&
            strstr(text, order.data) && (!found || strstr(file, ap_schedule_names[s]))) {
            l->schedule = as.schedule;
            found = true;
        }
        ap_buf_free(&order);
    }
    if (!found)
        ap_err_set(r->err,
                   ORDER ": the text has no order of a schedule that a line says");
}

/* "activation_checkpoint:full", or "--activation_checkpoint.mode full" of older ones. */
static void read_checkpoint(struct trainer_reading *r)
{
    static const char *const modes[] = {"selective", "none", "full"};
    static const enum ap_line_recompute how[] = {
        AP_LINE_RECOMPUTE_OPERATORS, AP_LINE_RECOMPUTE_NONE, AP_LINE_RECOMPUTE_FULL};
    int mode = ONE_OF(r, "--activation_checkpoint.mode", modes);

    for (int i = 0; i < r->flags.n; i++) {
        struct trainer_flag *f = &r->flags.flag[i];
        if (strncmp(f->name, "activation_checkpoint:", 22) != 0 &&
            strncmp(f->name, "activation-checkpoint:", 22) != 0)
            continue;
        f->read = true;
        for (mode = 2; mode > 0 && strcmp(f->name + 22, modes[mode]) != 0;)
            mode--;
        if (strcmp(f->name + 22, modes[mode]) != 0)
            ap_err_set(r->err, "%.60s: none, selective and full are read", f->name);
    }
    r->said->line.recompute = how[mode];
}

/* The names of the other torchtitan. */
static void refuse_names(struct trainer_reading *r, const struct spelling *own)
{
    const struct spelling *of = own->tokens ? &samples : &tokens;
    const char *const names[] = {of->local, of->global, of->length, of->part};

    for (int i = 0; i < 4; i++)
        if (trainer_flag_find(&r->flags, names[i]))
            ap_err_set(r->err, "%s: a name of torchtitan %s: --from %s", names[i],
                       of->tokens ? "main" : "0.3",
                       of->tokens ? "torchtitan-main" : "torchtitan");
}

static int read_flags(const struct ap_trainer *t, const char *text,
                      const struct ap_line_facts *known, struct ap_trainer_said *said,
                      struct ap_notes *notes, struct ap_err *err)
{
    static const char *const types[] = {"bfloat16", "float32"}, *const kept[] = {
                                                                    "float32",
                                                                    "bfloat16"};
    static const char *const optimizers[] = {"fused", "fused_opt_states_bf16", "foreach",
                                             "for-loop"};
    const struct spelling *names = spelling(t);
    struct trainer_reading reading = {notes->arena, .known = known, .said = said,
                                      .notes = notes, .err = err},
                           *r = &reading;
    struct ap_degrees *d = &said->line.degrees;

    if (trainer_reading_start(r, text, true))
        return -1;
    refuse_names(r, names);
    said->facts.layers = known->layers;
    if (said->facts.world == 0)
        return ap_err_set(err, "nothing says the number of devices: NGPU=N");
    if (trainer_flag_find(&r->flags, "--config"))
        ap_note(notes, "--config: what its function sets is not known; defaults are "
                       "taken where no flag says more");
    d->tensor = trainer_number(r, TP, 1);
    d->context = trainer_number(r, CP, 1);
    d->expert = trainer_number(r, EP, 1);
    d->sequence = on(r, "--parallelism.enable_sequence_parallel", true) && d->tensor > 1;
    if (on(r, names->async, false)) {
        said->line.trainer |= AP_TRAINER_TP_OVERLAP;
        if (!d->sequence)
            ap_err_set(err, "%s: there is no sequence parallelism", names->async);
    }
    read_stages(r);
    read_data(r);
    read_batch(r, names);
    read_order(r, text);
    read_checkpoint(r);
    on(r, "--training.disable_cuda_graphs", false);
    said->facts.compute =
        ONE_OF(r, "--training.mixed_precision_param", types) ? AP_F32 : AP_BF16;
    const bool low = ONE_OF(r, "--training.dtype", kept);
    said->facts.master = low ? AP_BF16 : AP_F32;
    said->facts.moments = said->facts.second =
        ONE_OF(r, "--optimizer.implementation", optimizers) == 1 || low ? AP_BF16
                                                                        : AP_F32;
    return trainer_flags_end(&r->flags, unread, notes);
}

#define ROW(name_, title_)                                                        \
    {                                                                             \
        .name = name_, .title = title_, .comment = "# ",                          \
        .parallelism = {TP, PP, CP, EP}, .models = AP_MODEL_LANGUAGE, .ends = 1,  \
        .conditions = conditions, .may = AP_TRAINER_TP_OVERLAP, .habits = habits, \
        .write = write_flags, .read = read_flags                                  \
    }
const struct ap_trainer trainer_torchtitan = ROW("torchtitan", "torchtitan 0.3");
const struct ap_trainer trainer_torchtitan_main =
    ROW("torchtitan-main", "torchtitan (main)");
