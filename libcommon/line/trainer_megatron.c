/*
 * Megatron-LM 0.20: which lines its arguments can say. Sources: megatron/core/
 * parallel_state.py (degrees; experts have a grid of their own), core/transformer/
 * transformer_config.py, training/arguments.py (validate_args), core/transformer/moe/
 * moe_layer.py, core/transformer/pipeline_parallel_layer_layout.py (stages of any number
 * of layers), docs of Megatron-FSDP.
 */
#include "line/trainer_impl.h"

/* Key and value heads are split, or as many devices hold the same. */
static int has_kv_heads(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t kv = c->facts->kv_heads, t = c->line.degrees.tensor;

    if (kv == 0 || kv % t == 0 || t % kv == 0)
        return 0;
    return ap_err_set(err,
                      "--tensor-model-parallel-size %lld and --num-query-groups %lld: "
                      "neither divides the other",
                      (long long)t, (long long)kv);
}

/* moe_layer.py raises an error in training. */
static int has_sequence_of_experts(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->facts->experts == 0 || c->line.degrees.tensor == 1 || c->line.degrees.sequence)
        return 0;
    return ap_err_set(err,
                      "experts under --tensor-model-parallel-size %lld train only with "
                      "--sequence-parallel (sp)",
                      (long long)c->line.degrees.tensor);
}

/* Groups of experts' replicas are cut by instances, too. */
static int has_instances(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t each =
        c->line.degrees.tensor * c->line.degrees.context * c->line.degrees.data;
    const int64_t replicas =
        each / (c->line.degrees.expert * c->line.degrees.expert_tensor);

    if (c->line.degrees.zero == 0 || c->facts->experts == 0 || replicas % c->copies == 0)
        return 0;
    return ap_err_set(err,
                      "--num-distributed-optimizer-instances %lld does not divide the "
                      "%lld replicas of the experts",
                      (long long)c->copies, (long long)replicas);
}

/* --cp-comm-type a2a, or a2a+p2p. */
static int has_context(const struct ap_trainer_case *c, struct ap_err *err)
{
    const struct ap_degrees *d = &c->line.degrees;

    if (d->exchange > 1 && d->exchange < d->context && !d->ring)
        return ap_err_set(err,
                          "a2a=%lld of cp=%lld without ring: --cp-comm-type a2a+p2p "
                          "passes keys and values round",
                          (long long)d->exchange, (long long)d->context);
    return trainer_has_exchange(c, err);
}

static int has_recompute(const struct ap_trainer_case *c, struct ap_err *err)
{
    const unsigned modules = c->line.recompute_modules, act = 1U << AP_LINE_MOE_ACT;

    if (modules & act && c->facts->experts == 0)
        return ap_err_set(err, "--recompute-modules moe_act: the model has no experts");
    if (modules & (act | 1U << AP_LINE_LAYERNORM) && trainer_is_fp8(c->facts))
        return ap_err_set(err, "--recompute-modules layernorm and moe_act: not with "
                               "--fp8-format and its delayed scaling");
    if (c->line.recompute != AP_LINE_RECOMPUTE_OPERATORS)
        return 0;
    return ap_err_set(err, "recompute=operators: --recompute-granularity is full, or "
                           "selective by modules");
}

/* validate_args and transformer_config.py; without stages it has a schedule of its own
 * (combined_1f1b.py). */
static int has_ep_overlap(const struct ap_trainer_case *c, struct ap_err *err)
{
    const struct ap_line *l = &c->line;
    const char *flag = "--overlap-moe-expert-parallel-comm";

    if (!(l->trainer & AP_TRAINER_EP_OVERLAP))
        return 0;
    if (l->pipeline > 1 && l->chunks == 1)
        return ap_err_set(err, "%s: a pipeline has virtual stages (vpp)", flag);
    if (l->recompute == AP_LINE_RECOMPUTE_FULL)
        return ap_err_set(err, "%s: not with --recompute-granularity full", flag);
    if (l->degrees.zero > 1 && l->chunks > 1)
        return ap_err_set(err, "%s: not with --use-megatron-fsdp and virtual stages",
                          flag);
    if (!trainer_is_low(c->facts) && c->facts->compute != AP_TUPLE)
        return ap_err_set(err, "%s: only with --bf16 or --fp16", flag);
    if (c->facts->mtp > 1)
        return ap_err_set(err, "%s: --mtp-num-layers is at most 1", flag);
    return 0;
}

static int has_low_sums(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (!(c->line.trainer & AP_TRAINER_LOW_SUMS) || trainer_is_low(c->facts))
        return 0;
    return ap_err_set(err, "low-sums (--grad-reduce-in-bf16): the gradients have no 16 "
                           "bits");
}

/* Offloading needs --use-precision-aware-optimizer, which needs the distributed optimizer
 * (arguments.py). */
static int has_host_optimizer(const struct ap_trainer_case *c, struct ap_err *err)
{
    const struct ap_degrees *d = &c->line.degrees;
    const bool alone = d->data * d->context == 1;

    if (!(c->line.offload & AP_LINE_OFFLOAD_OPTIMIZER))
        return 0;
    if (!alone && (d->zero != 1 || d->shard == 1))
        return ap_err_set(err,
                          "--optimizer-cpu-offload: only with the distributed optimizer "
                          "(zero=1), not with zero=%lld",
                          (long long)d->zero);
    if (trainer_has_low_moments(c->facts))
        return ap_err_set(err, "--optimizer-cpu-offload: moments are of f32");
    return 0;
}

/* transformer_config.py, cpu_offloading. */
static int has_host_layers(const struct ap_trainer_case *c, struct ap_err *err)
{
    const char *flag = "--cpu-offloading-num-layers";
    const int64_t n = c->line.offload_first, layers = c->facts->layers - c->facts->mtp;

    if (n == 0)
        return 0;
    if (c->stages > 1)
        return ap_err_set(err, "%s: not with a pipeline", flag);
    if (c->line.recompute != AP_LINE_RECOMPUTE_NONE)
        return ap_err_set(err, "%s: not with recomputation", flag);
    if (layers > 0 && n >= layers)
        return ap_err_set(err, "%s %lld: expected less than the %lld layers", flag,
                          (long long)n, (long long)layers);
    return 0;
}

/* --main-params-dtype is fp32, or fp16 of moments in 8 bits. */
static int has_types(const struct ap_trainer_case *c, struct ap_err *err)
{
    return trainer_has_low_moments(c->facts) ? 0 : trainer_has_f32_states(c, err);
}

/* What a stage has of layers, those that predict further tokens included. */
static int64_t layers_of(const struct ap_line *l, int64_t layers, int stage)
{
    return l->n_layers ? l->layers[stage] : layers / ap_line_stages(l);
}

/* These are behind all others and in one stage, the last one of its device
 * (pipeline_parallel_layer_layout.py). */
static int has_mtp(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t last = layers_of(&c->line, c->facts->layers, c->stages - 1);

    if (c->facts->mtp <= last)
        return 0;
    return ap_err_set(err, "--mtp-num-layers %lld: the last stage has %lld layers",
                      (long long)c->facts->mtp, (long long)last);
}

static ap_trainer_condition *const conditions[] = {has_kv_heads,
                                                   has_context,
                                                   trainer_has_heads,
                                                   trainer_has_sequence,
                                                   has_sequence_of_experts,
                                                   trainer_has_schedule,
                                                   has_instances,
                                                   has_recompute,
                                                   has_ep_overlap,
                                                   has_mtp,
                                                   has_low_sums,
                                                   has_types,
                                                   has_host_optimizer,
                                                   has_host_layers,
                                                   NULL};

/* Gradients lie in buckets; flags ask for them to be reduced in the last backward. A
 * linear layer's backward sends its input's gradient, and then computes the weight's
 * (tensor_parallel/layers.py, allreduce_dgrad; Transformer Engine does the same). */
static struct ap_trainer_habits habits(const struct ap_line *line)
{
    const bool tensor = line->degrees.tensor > 1;

    return (struct ap_trainer_habits){
        AP_TRAINER_PACKS | (tensor ? AP_TRAINER_WGRAD_OVERLAP : 0U) |
            (line->offload & AP_LINE_OFFLOAD_OPTIMIZER ? AP_TRAINER_HOST_UPDATE : 0U),
        AP_OVERLAP_ASKED, line->degrees.tensor};
}

/* ---- writing ---- */

static void put(struct ap_buf *out, bool is, const char *flags)
{
    if (is)
        ap_buf_printf(out, "    %s\n", flags);
}

static void put_number(struct ap_buf *out, const char *name, int64_t value)
{
    if (value > 0)
        trainer_put_flag(out, name, value);
}

/* Of the first layers without experts, a flag of 0. */
static void put_expert_layers(const struct ap_line_facts *f, struct ap_buf *out,
                              struct ap_notes *notes)
{
    const long long mtp = f->layer.n_experts ? f->mtp : 0, turns = f->layer.turns;
    const long long with = f->layer.n_experts - mtp, layers = f->layers - mtp;

    if (with == 0 || with == layers)
        return;
    if (turns == 0 || (turns > 1 && mtp))
        ap_note(notes, "--moe-layer-freq: which layers have experts");
    else
        ap_buf_printf(out, "    --moe-layer-freq \"([0]*%lld+[1]*%lld)*%lld\"\n",
                      (layers - with) / turns, with / turns, turns);
}

static void put_layer(const struct ap_line_facts *f, struct ap_buf *out,
                      struct ap_notes *notes)
{
    static const char *const norms[] = {"", "LayerNorm", "RMSNorm"};
    static const char *const positions[] = {"", "learned_absolute", "rope"};
    const struct ap_layer_facts *l = &f->layer;
    const int64_t ffn = l->ffn ? l->ffn : l->expert_ffn;

    put_number(out, "--ffn-hidden-size", ffn);
    put_number(out, "--moe-ffn-hidden-size", l->expert_ffn != ffn ? l->expert_ffn : 0);
    put_number(out, "--moe-shared-expert-intermediate-size",
               f->experts ? l->shared_ffn : 0);
    put(out, l->gated, "--swiglu");
    if (l->gated && l->gelu)
        ap_note(notes, "--swiglu: the model's gates are of GELU's kind");
    if (l->head_width * f->heads != f->hidden)
        put_number(out, "--kv-channels", l->head_width);
    if (l->head_width != l->value_width)
        ap_note(notes, "keys and values of a head differ in width: the flags of "
                       "--multi-latent-attention are not written");
    if (l->norm)
        ap_buf_printf(out, "    --normalization %s\n", norms[l->norm]);
    put(out, l->query_norm, "--qk-layernorm");
    if (l->positions)
        ap_buf_printf(out, "    --position-embedding-type %s\n", positions[l->positions]);
    put(out, l->bias == AP_BIAS_NONE || l->bias == AP_BIAS_QKV, "--disable-bias-linear");
    put(out, l->bias == AP_BIAS_QKV, "--add-qkv-bias");
}

const char *trainer_moments_word(enum ap_dtype dtype)
{
    return dtype == AP_BF16  ? "bf16"
           : dtype == AP_F16 ? "fp16"
           : dtype == AP_F32 ? "fp32"
                             : "fp8";
}

/* Types of contractions, weights and moments. */
static void put_types(const struct ap_line_facts *f, struct ap_buf *out)
{
    put(out, f->compute == AP_BF16 || trainer_is_fp8(f), "--bf16");
    put(out, f->compute == AP_F16, "--fp16");
    put(out, trainer_is_fp8(f), "--fp8-format hybrid");
    if (trainer_has_low_moments(f))
        ap_buf_printf(out,
                      "    --use-precision-aware-optimizer\n    --exp-avg-dtype %s\n"
                      "    --exp-avg-sq-dtype %s\n",
                      trainer_moments_word(f->moments), trainer_moments_word(f->second));
}

static void put_model(const struct ap_line_facts *f, struct ap_buf *out,
                      struct ap_notes *notes)
{
    put_number(out, "--num-layers", f->layers - f->mtp);
    put_number(out, "--mtp-num-layers", f->mtp);
    put(out, f->mtp, "--mtp-loss-scaling-factor 0.3");
    put_number(out, "--hidden-size", f->hidden);
    put_number(out, "--num-attention-heads", f->heads);
    put(out, f->kv_heads < f->heads, "--group-query-attention");
    put_number(out, "--num-query-groups", f->kv_heads < f->heads ? f->kv_heads : 0);
    if (f->hidden && f->heads)
        put_layer(f, out, notes);
    put_number(out, "--num-experts", f->experts);
    put_number(out, "--moe-router-topk", f->experts ? f->experts_per_token : 0);
    if (f->experts)
        put_expert_layers(f, out, notes);
    put_number(out, "--seq-length", f->sequence);
    put_number(out, "--max-position-embeddings", f->sequence);
    put_number(out, "--vocab-size", f->vocab);
    put_number(out, "--make-vocab-size-divisible-by", f->vocab > 0);
    put(out, f->vocab && !f->tied, "--untie-embeddings-and-output-weights");
    put_types(f, out);
}

static void put_letters(char letter, int64_t n, struct ap_buf *out)
{
    if (n > 0)
        ap_buf_putc(out, letter);
    if (n > 1)
        ap_buf_printf(out, "*%lld", (long long)n);
}

/* "Et*3|t*4|t*3mL": embedding, layers, those that predict further tokens, loss; a bar
 * between stages. */
static void put_layout(const struct ap_line *l, const struct ap_line_facts *f,
                       struct ap_buf *out)
{
    const int n = ap_line_stages(l);

    ap_buf_puts(out, "    --pipeline-model-parallel-layout \"E");
    for (int i = 0; i < n; i++) {
        const int64_t further = i + 1 < n ? 0 : f->mtp;
        ap_buf_puts(out, i ? "|" : "");
        put_letters('t', layers_of(l, f->layers, i) - further, out);
        put_letters('m', further, out);
    }
    ap_buf_puts(out, "L\"\n");
}

static void put_stages(const struct ap_line *l, const struct ap_line_facts *f,
                       struct ap_buf *out)
{
    trainer_put_flag(out, "--pipeline-model-parallel-size", l->pipeline);
    if (l->n_layers || (f->mtp && l->pipeline > 1))
        put_layout(l, f, out);
    else if (l->chunks > 1)
        trainer_put_flag(out, "--num-virtual-stages-per-pipeline-rank", l->chunks);
}

static void put_zero(const struct ap_line *l, struct ap_buf *out)
{
    static const char *const strategies[] = {"", "optim", "optim_grads",
                                             "optim_grads_params"};
    const struct ap_degrees *d = &l->degrees;
    const int64_t copies = d->zero ? d->data * d->context / d->shard : 1;
    const bool host = l->offload & AP_LINE_OFFLOAD_OPTIMIZER;

    put(out, d->zero > 0 || host, "--use-distributed-optimizer");
    put(out, d->zero > 1, "--use-megatron-fsdp");
    if (d->zero > 1)
        ap_buf_printf(out, "    --data-parallel-sharding-strategy %s\n",
                      strategies[d->zero]);
    put(out, d->zero > 1, "--ckpt-format fsdp_dtensor");
    put_number(out, "--num-distributed-optimizer-instances", copies > 1 ? copies : 0);
    put(out, l->overlap, "--overlap-grad-reduce");
    put(out, l->overlap && (d->zero > 0 || host), "--overlap-param-gather");
    put_number(out, "--cpu-offloading-num-layers", l->offload_first);
    put(out, host,
        "--use-precision-aware-optimizer\n    --optimizer-cpu-offload\n"
        "    --overlap-cpu-optimizer-d2h-h2d");
}

static void write_flags(const struct ap_trainer *own, const struct ap_line *l,
                        const struct ap_line_facts *facts, struct ap_buf *out,
                        struct ap_notes *notes)
{
    const struct ap_degrees *d = &l->degrees;
    const bool low_sums = l->trainer & AP_TRAINER_LOW_SUMS;

    (void)own;
    if (d->zero > 1)
        ap_buf_puts(out,
                    "# Megatron-FSDP: CUDA_DEVICE_MAX_CONNECTIONS unset or above 1\n");
    else if (d->tensor * d->context > 1)
        ap_buf_puts(out, "# before Blackwell: export CUDA_DEVICE_MAX_CONNECTIONS=1\n");
    if (d->zero > 1 && l->pipeline > 1)
        ap_note(notes, "Megatron-LM's own tests of --use-megatron-fsdp have no pipeline");
    ap_buf_puts(out, "PARALLEL_ARGS=(\n");
    put_model(facts, out, notes);
    trainer_put_flag(out, "--tensor-model-parallel-size", d->tensor);
    put(out, d->sequence, "--sequence-parallel");
    put(out, l->trainer & AP_TRAINER_TP_OVERLAP, "--tp-comm-overlap");
    put_stages(l, facts, out);
    trainer_put_flag(out, "--context-parallel-size", d->context);
    put(out, d->context > 1,
        d->exchange == d->context ? "--cp-comm-type a2a"
        : d->exchange > 1         ? "--cp-comm-type a2a+p2p"
        : d->ring                 ? "--cp-comm-type p2p"
                                  : "--cp-comm-type all_gather");
    if (d->exchange > 1 && d->exchange < d->context)
        ap_buf_printf(out, "    --hierarchical-context-parallel-sizes %lld %lld\n",
                      (long long)d->exchange, (long long)(d->context / d->exchange));
    if (facts->experts) {
        trainer_put_flag(out, "--expert-model-parallel-size", d->expert);
        trainer_put_flag(out, "--expert-tensor-parallel-size", d->expert_tensor);
        put(out, true, "--moe-token-dispatcher-type alltoall");
        put(out, true, "--moe-grouped-gemm");
        put(out, l->trainer & AP_TRAINER_EP_OVERLAP,
            "--overlap-moe-expert-parallel-comm");
        const bool biased =
            facts->layer.bias == AP_BIAS_UNKNOWN || facts->layer.bias == AP_BIAS_ALL;
        put(out, biased && d->expert_tensor > 1, "--disable-bias-linear");
        if (biased && d->expert_tensor > 1)
            ap_note(notes,
                    "--disable-bias-linear: experts that are split have no bias in "
                    "Megatron-LM, and so no other layer has");
        if (facts->experts_per_token == 0)
            ap_note(notes, "--moe-router-topk: experts of a token, 2 where it is silent");
    }
    put_zero(l, out);
    put(out, low_sums && facts->compute != AP_F16, "--grad-reduce-in-bf16");
    put(out, !low_sums && facts->compute == AP_F16,
        "--accumulate-allreduce-grads-in-fp32");
    if (l->recompute == AP_LINE_RECOMPUTE_FULL) {
        put(out, true, "--recompute-granularity full");
        put(out, true,
            l->recompute_first ? "--recompute-method block"
                               : "--recompute-method uniform");
        trainer_put_flag(out, "--recompute-num-layers",
                         l->recompute_first   ? l->recompute_first
                         : l->recompute_group ? l->recompute_group
                                              : 1);
    }
    if (l->recompute == AP_LINE_RECOMPUTE_SELECTIVE) {
        const unsigned modules =
            l->recompute_modules ? l->recompute_modules : 1U << AP_LINE_CORE_ATTN;
        ap_buf_puts(out,
                    "    --recompute-granularity selective\n    --recompute-modules");
        for (int i = 0; i < AP_N_LINE_MODULES; i++)
            if (modules >> i & 1)
                ap_buf_printf(out, " %s", ap_line_modules[i]);
        ap_buf_putc(out, '\n');
    }
    trainer_put_flag(out, "--micro-batch-size", l->micro_batch);
    put_number(out, "--global-batch-size", facts->batch);
    ap_buf_puts(out, ")\n");
}

const struct ap_trainer trainer_megatron = {
    .name = "megatron",
    .title = "Megatron-LM 0.20",
    .comment = "# ",
    .parallelism = {"--tensor-model-parallel-size", "--pipeline-model-parallel-size",
                    "--context-parallel-size", "--expert-model-parallel-size"},
    .models = AP_MODEL_LANGUAGE | AP_MODEL_PATCHES,
    .ends = 1,
    .conditions = conditions,
    .may = AP_TRAINER_LOW_SUMS | AP_TRAINER_EP_OVERLAP | AP_TRAINER_TP_OVERLAP,
    .offloads = AP_LINE_OFFLOAD_OPTIMIZER,
    .offloads_first = true,
    .habits = habits,
    .write = write_flags,
    .read = trainer_megatron_read};
