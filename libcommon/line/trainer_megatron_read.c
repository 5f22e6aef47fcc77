/*
 * Problem: the line that arguments of Megatron-LM 0.20 say. Idea: flags are looked up one
 * by one, with the parser's defaults; what has a price that no line says is refused by
 * its name, what has no part in the plan is passed over. Sources:
 * megatron/training/arguments.py, core/transformer/pipeline_parallel_layer_layout.py
 * (layouts), core/transformer/transformer_block.py (uneven stages).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "line/trainer_impl.h"
#include "line/trainer_words.h"

#define MOST_LAYOUT 65536 /* characters of a layout whose repetitions are written out */

static const struct trainer_unread unread[] = {
    {"--yaml-cfg --use-checkpoint-args", "it takes the flags from another file"},
    {"--rampup-batch-size --step-batch-size-schedule", "the batch changes"},
    {"--hybrid-layer-pattern --hybrid-override-pattern --heterogeneous-layers-config-* "
     "--is-hybrid-model --spec",
     "layers of several kinds"},
    {"--hybrid-context-parallel --tensor-parallel-num-weight-shards "
     "--use-tp-pp-dp-mapping "
     "--encoder-num-layers --encoder-tensor-* --encoder-pipeline-* "
     "--moe-extended-tp",
     "no line says this order or grid of devices"},
    {"--fp8-param-gather --fp4-*", "no line has weights of 8, or contractions of 4 bits"},
    {"--fp8-*", NULL},
    {"--cpu-offloading* --fine-grained-activation-offloading",
     "a line offloads all activations of layers: leave the flag out, and price the plan "
     "with offload=activations (ap-stage --grid)"},
    {"--distribute-saved-activations", "no line says which activations are where"},
    {"--delay-wgrad-compute", "~not priced: gradients of weights stay with their layer"},
    {"--overlap-dispatch-backward-with-experts-wgrad --moe-shared-expert-overlap "
     "--overlap-param-gather-with-optimizer-step",
     "no line says this overlap"},
    {"--moe-expert-capacity-factor --moe-pad-expert-input-to-capacity",
     "tokens are lost"},
    {"--rl-* --perform-rl-step --inference-*", "it is not plain training"},
    {"--attention-backend=auto --attention-backend=flash --attention-backend=fused "
     "--transformer-impl=transformer_engine --cuda-graph-impl=none "
     "--optimizer=adam --use-torch-optimizer-for-cpu-offload",
     NULL},
    {"--optimizer=sgd", "~the model's optimizer is priced"},
    {"--optimizer", "another optimizer than adam or sgd has other states and steps"},
    {"--attention-backend --transformer-impl --no-gradient-accumulation-fusion "
     "--defer-embedding-wgrad-compute --tp-comm-overlap-* --cuda-graph-impl "
     "--no-pin-cpu-grads --no-pin-cpu-params --enable-cuda-graph --no-rope-fusion "
     "--no-bias-* --no-masked-softmax-fusion "
     "--no-persist-layer-norm --deterministic-mode",
     "~not priced"},
    /* data, model, optimizer, checkpoints, logs: nothing of the plan */
    {"--data-* --train-* --valid-* --test-* --split --mock-data --tokenizer-* --vocab-* "
     "--merge-file --dataloader-type --num-workers "
     "--no-create-attention-mask-in-dataloader "
     "--reset-* --eod-mask-loss --mmap-bin-files --no-mmap-bin-files --legacy-tokenizer",
     NULL},
    {"--save* --load* --ckpt-* --dist-ckpt-* --no-load-* --no-save-* --exit-* "
     "--async-save --auto-detect-ckpt-format --finetune --override-opt_param-scheduler "
     "--use-dist-ckpt --use-mp-args-from-checkpoint-args --no-use-tokenizer-*",
     NULL},
    {"--log-* --tensorboard-* --wandb-* --timing-* --profile* --eval-* --timers-* "
     "--enable-one-logger --one-logger-* --no-one-logger --distributed-timeout-minutes "
     "--distributed-backend --manual-gc* --nccl-* --use-nccl-* --seed --data-cache-path "
     "--enable-experimental --record-memory-history --memory-snapshot-path --local-rank "
     "--no-log-* --check-* --no-check-* --high-priority-stream-groups",
     NULL},
    {"--lr* --min-lr --weight-decay* --adam-* --clip-grad --init-method-* --loss-scale "
     "--initial-loss-scale --min-loss-scale --loss-scale-window --hysteresis "
     "--use-checkpoint-opt_param-scheduler --start-weight-decay --end-weight-decay "
     "--override-* --warmup --sgd-momentum --mtp-loss-scaling-factor",
     NULL},
    {"--max-position-embeddings --rotary-* --no-position-embedding --use-rope-scaling "
     "--rope-* --norm-epsilon --squared-relu --attention-dropout --hidden-dropout "
     "--apply-layernorm-1p --attention-softmax-in-fp32 "
     "--no-rope-* --q-lora-rank --kv-lora-rank --qk-head-dim "
     "--qk-pos-emb-head-dim --v-head-dim --mscale* --window-size --openai-gelu "
     "--use-mcore-models --use-legacy-models --apply-query-key-* --use-flash-attn "
     "--use-cpu-initialization --group-query-attention --cross-entropy-* "
     "--apply-rope-fusion --position-embedding* --fused-* --no-async-tensor-model-* "
     "--wgrad-deferral-limit --te-rng-tracker --attention-output-gate",
     NULL},
    {"--moe-router-* --moe-aux-loss-coeff --moe-z-loss-coeff --moe-grouped-gemm "
     "--moe-permute-fusion --moe-token-drop-policy "
     "--moe-per-layer-logging --moe-input-jitter-eps --moe-layer-recompute "
     "--moe-shared-expert-gate --moe-enable-* --moe-use-* --moe-flex-dispatcher-* "
     "--moe-deepep-* --moe-hybridep-*",
     NULL},
    {"--ddp-* --no-align-* --align-* --decrease-batch-size-if-needed "
     "--overlap-p2p-communication-warmup-flush "
     "--calculate-per-token-loss --use-ring-exchange-p2p --empty-unused-memory-level "
     "--bucket-size "
     "--gradient-reduce-div-fusion --suggested-communication-unit-size "
     "--init-model-with-meta-device --megatron-fsdp-* --no-keep-fp8-*",
     NULL},
    {NULL, NULL}};

static bool on(struct trainer_reading *r, const char *name)
{
    return trainer_flag_on(&r->flags, name);
}

/* "([0]*3+[1]*58)", "([0]*1+[1]*1)*12": layers with experts, behind those without. */
static void read_expert_layers(struct trainer_reading *r, struct ap_line_facts *f)
{
    const char *text = trainer_flag_word(&r->flags, "--moe-layer-freq", "1");
    long long without = 0, with = f->layers, turns = 1;
    int end = 0;
    const bool brackets = *text == '(';

    text += brackets;
    if (strcmp(text, "1") != 0 &&
        (sscanf(text, "[0]*%lld+[1]*%lld%n", &without, &with, &end) != 2 ||
         (strcmp(text + end, brackets ? ")" : "") != 0 &&
          (sscanf(text, "[0]*%*d+[1]*%*d)*%lld%n", &turns, &end) != 1 || text[end])) ||
         without < 0 || with < 1 || turns < 1 || turns > f->layers ||
         without > f->layers || with > f->layers ||
         (without + with) * turns != f->layers))
        ap_err_set(r->err,
                   "--moe-layer-freq %.60s: layers of several kinds; "
                   "([0]*A+[1]*B)*C of all layers is read",
                   text);
    if (f->experts && f->mtp && turns > 1)
        ap_err_set(r->err, "--mtp-num-layers: with --moe-layer-freq of one turn");
    f->layer.n_experts = f->experts ? with * turns + f->mtp : 0;
    f->layer.turns = f->experts ? turns : 0;
}

/* One of two words; silent: the first. */
static bool is_second(struct trainer_reading *r, const char *name,
                      const char *const *word)
{
    const char *text = trainer_flag_word(&r->flags, name, word[0]);

    if (strcmp(text, word[0]) != 0 && strcmp(text, word[1]) != 0)
        ap_note(r->notes, "%s %.40s: taken as %s", name, text, word[1]);
    return strcmp(text, word[0]) != 0;
}

/* What a layer is made of; nothing, where the model's size is not said. */
static void read_layer(struct trainer_reading *r, struct ap_line_facts *f)
{
    static const char *const norms[] = {"LayerNorm", "RMSNorm"}, *const positions[] = {
                                                                     "learned_absolute",
                                                                     "rope"};
    struct ap_layer_facts *l = &f->layer;
    const bool gated = on(r, "--swiglu") | on(r, "--quick-geglu");
    const int64_t inside = gated ? f->hidden * 8 / 3 / 64 * 64 : 4 * f->hidden;
    const int64_t ffn = trainer_number(r, "--ffn-hidden-size", inside);
    const int64_t of_expert = trainer_number(r, "--moe-ffn-hidden-size", ffn);
    const int64_t shared = trainer_number(r, "--moe-shared-expert-intermediate-size", 0);
    const int64_t width =
        trainer_number(r, "--kv-channels", f->heads ? f->hidden / f->heads : 0);
    const bool rms = is_second(r, "--normalization", norms),
               rotary = is_second(r, "--position-embedding-type", positions) |
                        on(r, "--use-rotary-position-embeddings"),
               biased = !on(r, "--disable-bias-linear"), qkv = on(r, "--add-qkv-bias"),
               query_norm = on(r, "--qk-layernorm");

    if (f->hidden == 0 || f->heads == 0)
        return;
    l->gated = gated;
    l->ffn = ffn;
    l->expert_ffn = f->experts ? of_expert : 0;
    l->shared_ffn = f->experts ? shared : 0;
    l->head_width = on(r, "--multi-latent-attention") ? 0 : width;
    l->norm = rms ? AP_NORM_RMS : AP_NORM_LAYER;
    l->query_norm = query_norm;
    l->positions = rotary ? AP_POSITIONS_ROTARY : AP_POSITIONS_LEARNED;
    l->bias = biased ? AP_BIAS_ALL : qkv ? AP_BIAS_QKV : AP_BIAS_NONE;
}

/* The vocabulary is padded; to the model's, where that is the same then. */
static void read_vocabulary(struct trainer_reading *r, struct ap_line_facts *f)
{
    const int64_t unit = trainer_number(r, "--make-vocab-size-divisible-by", 128) *
                         trainer_number(r, "--tensor-model-parallel-size", 1);
    const int64_t own = r->known->vocab;

    f->vocab = trainer_number(r, "--vocab-size", 0);
    if (own && f->vocab && ap_ceil_div(own, unit) == ap_ceil_div(f->vocab, unit))
        f->vocab = own;
}

static void read_model(struct trainer_reading *r)
{
    struct ap_line_facts *f = &r->said->facts;

    f->mtp = trainer_number(r, "--mtp-num-layers", 0);
    f->layers = trainer_number(r, "--num-layers",
                               r->known->layers > f->mtp ? r->known->layers - f->mtp : 0);
    f->hidden = trainer_number(r, "--hidden-size", 0);
    f->heads = trainer_number(r, "--num-attention-heads", 0);
    const int64_t groups = trainer_number(r, "--num-query-groups", 0);
    f->kv_heads = on(r, "--group-query-attention") ? groups : f->heads;
    f->experts = trainer_number(r, "--num-experts", 0);
    f->experts_per_token = trainer_number(r, "--moe-router-topk", f->experts ? 2 : 0);
    read_expert_layers(r, f);
    read_layer(r, f);
    read_vocabulary(r, f);
    f->sequence = trainer_number(r, "--seq-length", 0);
    const int64_t encoder = trainer_number(r, "--encoder-seq-length", 0);
    if (f->sequence && encoder)
        ap_err_set(r->err, "--seq-length and --encoder-seq-length: one is expected");
    f->sequence = f->sequence ? f->sequence : encoder;
    f->tied = !on(r, "--untie-embeddings-and-output-weights");
    const bool bf16 = on(r, "--bf16"), fp16 = on(r, "--fp16");
    const char *fp8 = trainer_flag_word(&r->flags, "--fp8-format", NULL);
    f->compute = fp8 ? AP_F8E4M3FN : bf16 ? AP_BF16 : fp16 ? AP_F16 : AP_F32;
    if (bf16 && fp16)
        ap_err_set(r->err, "--bf16 and --fp16: one is expected");
    if (fp8 && strcmp(fp8, "e4m3") != 0 && strcmp(fp8, "hybrid") != 0)
        ap_err_set(r->err, "--fp8-format: '%.40s' is not one of e4m3, hybrid", fp8);
}

/* "--use-precision-aware-optimizer" and its types; all but moments is in f32. */
static enum ap_dtype read_type(struct trainer_reading *r, const char *flag,
                               const char *word)
{
    static const enum ap_dtype types[] = {AP_F32, AP_BF16, AP_F16, AP_F8E4M3FN};

    for (int i = 0; i < 4; i++)
        if (!strcmp(word, trainer_moments_word(types[i])))
            return types[i];
    ap_err_set(r->err, "%s: '%.40s' is not one of fp32, bf16, fp16, fp8", flag, word);
    return AP_F32;
}

static void read_moments(struct trainer_reading *r)
{
    static const char *const names[] = {"--exp-avg-dtype", "--exp-avg-sq-dtype",
                                        "--main-grads-dtype", "--main-params-dtype"};
    struct ap_line_facts *f = &r->said->facts;
    const bool aware = on(r, "--use-precision-aware-optimizer");
    const char *type[4];

    for (int i = 0; i < 4; i++)
        type[i] = trainer_flag_word(&r->flags, names[i], "fp32");
    f->master = f->moments = f->second = AP_F32;
    if (!aware)
        return;
    if (strcmp(type[2], "fp32") != 0 || strcmp(type[3], "fp32") != 0)
        ap_err_set(r->err, "--use-precision-aware-optimizer: all but moments is in fp32 "
                           "in what is read");
    f->moments = read_type(r, names[0], type[0]);
    f->second = read_type(r, names[1], type[1]);
}

/* ---- stages ---- */

/* Of "x*3" and "(...)*3" x and what is in brackets are written out. */
static const char *expand_layout(struct ap_buf *out, const char *at, struct ap_err *err)
{
    while (*at) {
        const char *unit = at;
        size_t len = 1;
        if (*at == '(') {
            const char *close = strchr(at, ')');
            len = close ? (size_t)(close - at) - 1 : 0;
            unit = at + 1;
            if (!close || memchr(unit, '(', len))
                return ap_err_set(err, "brackets do not match"), NULL;
            at = close;
        }
        at++;
        int64_t times = 1;
        if (*at == '*') {
            char *end;
            times = strtoll(at + 1, &end, 10);
            if (end == at + 1 || times < 0 || times > MOST_LAYOUT)
                return ap_err_set(err, "'*' without a number"), NULL;
            at = end;
        }
        if (out->len + (size_t)times * len > MOST_LAYOUT)
            return ap_err_set(err, "more than %d letters", MOST_LAYOUT), NULL;
        for (int64_t i = 0; i < times; i++)
            ap_buf_put(out, unit, len);
    }
    return at;
}

/* Layers of each stage of "Et*3|t*4mL"; m: one that predicts a further token. */
static int read_layers(struct trainer_reading *r, const char *text, struct ap_err *err)
{
    struct ap_line *line = &r->said->line;
    int *layers = AP_NEW_N(r->arena, AP_LINE_MOST_STAGES, int), n = 1;
    const size_t len = strlen(text);
    int64_t further = 0;

    if (len < 2 || text[0] != 'E' || text[len - 1] != 'L')
        return ap_err_set(err, "expected E first and L last");
    for (size_t i = 1; i + 1 < len; i++) {
        if (text[i] == '|' && n == AP_LINE_MOST_STAGES)
            return ap_err_set(err, "more than %d stages", AP_LINE_MOST_STAGES);
        n += text[i] == '|';
        if (text[i] == 't' || text[i] == 'm')
            layers[n - 1]++;
        else if (text[i] != '|')
            return ap_err_set(err, "'%c' is not read: t is a layer", text[i]);
        further += text[i] == 'm';
        if (further && text[i] != 'm')
            return ap_err_set(err, "m is read behind all others, in the last stage");
    }
    if (further != r->said->facts.mtp)
        return ap_err_set(err, "%lld m, --mtp-num-layers is %lld", (long long)further,
                          (long long)r->said->facts.mtp);
    if (n % line->pipeline)
        return ap_err_set(
            err,
            "%d stages are not a multiple of --pipeline-model-parallel-size "
            "%lld",
            n, (long long)line->pipeline);
    line->layers = layers;
    line->n_layers = n;
    line->chunks = n / line->pipeline;
    return 0;
}

static void read_layout(struct trainer_reading *r, const char *text)
{
    struct ap_buf once = {0}, all = {0};
    struct ap_err why = {""};

    for (const char *c = text; *c; c++)
        if (!strchr(", \t\"'", *c))
            ap_buf_putc(&once, *c);
    /* brackets first, then letters */
    if (!once.data || !expand_layout(&all, once.data, &why) || !all.data ||
        (ap_buf_free(&once), once = (struct ap_buf){0},
         !expand_layout(&once, all.data, &why)) ||
        !once.data || read_layers(r, once.data, &why))
        ap_err_set(r->err, "--pipeline-model-parallel-layout %.100s: %s", text,
                   *why.msg ? why.msg : "it is empty");
    ap_buf_free(&once);
    ap_buf_free(&all);
}

/* Layers by rank, each of as many chunks; first, last -1: as many as the others. */
static void read_uneven(struct trainer_reading *r, int64_t first, int64_t last)
{
    struct ap_line *line = &r->said->line;
    const int64_t layers = r->said->facts.layers;
    const int64_t p = line->pipeline, v = line->chunks;
    const int64_t middle = p - (first >= 0) - (last >= 0);
    const int64_t rest = layers - (first > 0 ? first : 0) - (last > 0 ? last : 0);
    const int64_t each = middle > 0 ? rest / middle : 0;
    const int64_t ends[2] = {first < 0 ? each : first, last < 0 ? each : last};

    if (layers == 0) {
        ap_err_set(r->err, "--num-layers: needed to know the layers of each stage");
        return;
    }
    if (p == 1 || rest != each * (middle > 0 ? middle : 0) || rest < 0 || ends[0] % v ||
        ends[1] % v || each % v) {
        ap_err_set(r->err,
                   "%lld layers, %lld of them in the first and %lld in the last stage: "
                   "the rest does not divide by the stages between",
                   (long long)layers, (long long)ends[0], (long long)ends[1]);
        return;
    }
    int *list = trainer_new_layers(r->arena, line, (int)(p * v));
    for (int64_t s = 0; s < p * v; s++) {
        const int64_t rank = s % p;
        list[s] = (int)((rank == 0 ? ends[0] : rank == p - 1 ? ends[1] : each) / v);
    }
}

/* Embedding and head take the place of a layer. */
static void read_accounted(struct trainer_reading *r, int64_t embedding, int64_t loss)
{
    struct ap_line *line = &r->said->line;
    const int64_t layers = r->said->facts.layers;
    const int n = ap_line_stages(line);

    if (layers == 0 || (layers + embedding + loss) % n) {
        ap_err_set(r->err,
                   "--account-for-*-in-pipeline-split: %lld layers and %lld more do not "
                   "divide by %d stages",
                   (long long)layers, (long long)(embedding + loss), n);
        return;
    }
    (void)ap_trainer_deal(r->arena, line, layers, embedding,
                          loss); /* no stage is short */
}

/* Without a layout the last stage has more layers, which predict further tokens. */
static void read_further(struct trainer_reading *r)
{
    struct ap_line *line = &r->said->line;
    const struct ap_line_facts *f = &r->said->facts;
    const int n = ap_line_stages(line);

    if (f->mtp == 0 || n == 1)
        return;
    int *list = AP_NEW_N(r->arena, n, int);
    for (int i = 0; i < n; i++)
        list[i] = line->n_layers ? line->layers[i] : (int)(f->layers / n);
    list[n - 1] += (int)f->mtp;
    line->n_layers = n;
    line->layers = list;
}

static void read_stages(struct trainer_reading *r)
{
    struct ap_line *line = &r->said->line;
    const int64_t layers = r->said->facts.layers;
    const char *layout =
        trainer_flag_word(&r->flags, "--pipeline-model-parallel-layout", NULL);
    const int64_t each = trainer_number(r, "--num-layers-per-virtual-pipeline-stage", 0);
    const int64_t virtual = trainer_number(r, "--num-virtual-stages-per-pipeline-rank",
                                           0);
    const int64_t first =
        trainer_flag_number(&r->flags, "--decoder-first-pipeline-num-layers", -1);
    const int64_t last =
        trainer_flag_number(&r->flags, "--decoder-last-pipeline-num-layers", -1);
    const bool uneven = first >= 0 || last >= 0;
    const bool embedding = on(r, "--account-for-embedding-in-pipeline-split");
    const bool loss = on(r, "--account-for-loss-in-pipeline-split");

    line->pipeline = trainer_number(r, "--pipeline-model-parallel-size", 1);
    if (*r->err->msg)
        return;
    if ((layout != NULL) + (each > 0) + (virtual > 0) > 1 ||
        (layout && (uneven || embedding || loss)) || (each && uneven) ||
        (uneven && (embedding || loss))) {
        ap_err_set(r->err, "flags that cut stages in two ways: layout, virtual stages, "
                           "first and last layers, account-for");
        return;
    }
    if (each && (layers == 0 || layers % (line->pipeline * each))) {
        ap_err_set(
            r->err,
            "--num-layers-per-virtual-pipeline-stage %lld: --num-layers %lld is not "
            "a multiple of this times the %lld stages",
            (long long)each, (long long)layers, (long long)line->pipeline);
        return;
    }
    line->chunks = each ? layers / line->pipeline / each : virtual ? virtual : 1;
    if (ap_mul64(line->pipeline, line->chunks) > AP_LINE_MOST_STAGES) {
        ap_err_set(r->err, "more than %d stages", AP_LINE_MOST_STAGES);
        return;
    }
    if (layout)
        read_layout(r, layout);
    else if (uneven)
        read_uneven(r, first, last);
    else if (embedding || loss)
        read_accounted(r, embedding, loss);
    if (!layout)
        read_further(r);
    if (line->chunks > 1 && line->pipeline == 1)
        ap_err_set(r->err, "virtual stages: --pipeline-model-parallel-size is 1");
    const int64_t group = trainer_number(
        r, "--microbatch-group-size-per-virtual-pipeline-stage", line->pipeline);
    if (line->chunks > 1 && group != line->pipeline)
        ap_err_set(r->err,
                   "--microbatch-group-size-per-virtual-pipeline-stage %lld: stages take "
                   "as many microbatches at a time as there are devices, %lld",
                   (long long)group, (long long)line->pipeline);
    if (on(r, "--no-overlap-p2p-communication") && line->chunks > 1)
        ap_note(r->notes,
                "--no-overlap-p2p-communication: taken as if stages sent beside "
                "their passes");
    line->schedule = line->chunks > 1 ? AP_SCHEDULE_INTERLEAVED : AP_SCHEDULE_1F1B;
}

/* ---- the rest ---- */

/* ZeRO's stage. */
static int64_t read_zero(struct trainer_reading *r)
{
    static const char *const strategies[] = {"no_shard", "optim", "optim_grads",
                                             "optim_grads_params"};
    const bool distributed = on(r, "--use-distributed-optimizer");
    const char *strategy = trainer_flag_word(
        &r->flags, "--data-parallel-sharding-strategy", "optim_grads_params");
    const char *outer =
        trainer_flag_word(&r->flags, "--outer-dp-sharding-strategy", "no_shard");
    const bool torch = on(r, "--use-torch-fsdp2");
    const bool keeps = on(r, "--torch-fsdp2-no-reshard-after-forward");

    if (strcmp(outer, "no_shard") != 0)
        ap_err_set(r->err, "--outer-dp-sharding-strategy %.40s: no line says it", outer);
    const bool fsdp = on(r, "--use-megatron-fsdp");
    if (torch) {
        if (r->said->line.pipeline > 1 || r->said->line.degrees.expert > 1 ||
            distributed || fsdp || r->said->facts.tied ||
            r->said->facts.compute == AP_F16)
            ap_err_set(r->err, "--use-torch-fsdp2: not with pipeline or expert "
                               "parallelism, --use-distributed-optimizer, "
                               "--use-megatron-fsdp, --fp16 or a tied embedding");
        ap_note(r->notes,
                "--use-torch-fsdp2: priced, and written, as --use-megatron-fsdp");
        return keeps ? 2 : 3;
    }
    if (!fsdp)
        return distributed;
    for (int i = 0; i < 4; i++)
        if (!strcmp(strategy, strategies[i]))
            return i;
    ap_err_set(r->err,
               "--data-parallel-sharding-strategy: %.40s is not one of no_shard, "
               "optim, optim_grads, optim_grads_params",
               strategy);
    return 0;
}

/* "A P" of a2a+p2p: devices that exchange, and how often there are so many. */
static int64_t read_exchange(struct trainer_reading *r, int64_t context)
{
    const struct trainer_flag *f =
        trainer_flag_find(&r->flags, "--hierarchical-context-parallel-sizes");
    const int64_t a = f && f->n == 2 ? atoll(f->value[0].text) : 0,
                  p = f && f->n == 2 ? atoll(f->value[1].text) : 0;

    if (a < 1 || p < 1 || ap_mul64(a, p) != context)
        ap_err_set(r->err, "--hierarchical-context-parallel-sizes: two numbers are "
                           "expected, whose product is --context-parallel-size");
    return a;
}

static void read_context(struct trainer_reading *r, struct ap_degrees *d)
{
    static const char *const ways[] = {"p2p", "all_gather", "a2a", "a2a+p2p"};
    const struct trainer_flag *f = trainer_flag_find(&r->flags, "--cp-comm-type");
    const char *way = f && f->n ? f->value[0].text : ways[0];
    bool one = !f || f->n > 0;
    int which = 0;

    d->context = trainer_number(r, "--context-parallel-size", 1);
    if (d->context == 1)
        return;
    while (which < 4 && strcmp(way, ways[which]) != 0)
        which++;
    for (int i = 0; f && i < f->n; i++)
        one &= !f->value[i].unknown && !strcmp(f->value[i].text, way);
    if (!one || which == 4)
        ap_err_set(r->err,
                   "--cp-comm-type %.40s%s: p2p, all_gather, a2a, or a2a+p2p, for all "
                   "layers is read",
                   way, one ? "" : " ...");
    d->exchange = which == 2 ? d->context : which == 3 ? read_exchange(r, d->context) : 1;
    d->ring = which == 0 || (which == 3 && d->exchange < d->context);
}

/* --recompute-modules; silent: core_attn. */
static unsigned read_modules(struct trainer_reading *r)
{
    const struct trainer_flag *f = trainer_flag_find(&r->flags, "--recompute-modules");
    unsigned modules = 0;

    for (int i = 0; f && i < f->n; i++) {
        int m = 0;
        while (m < AP_N_LINE_MODULES && strcmp(f->value[i].text, ap_line_modules[m]) != 0)
            m++;
        if (m == AP_N_LINE_MODULES)
            ap_err_set(
                r->err,
                "--recompute-modules %.40s: a line says core_attn, layernorm, mlp, "
                "shared_experts and moe_act",
                f->value[i].text);
        modules |= 1U << m;
    }
    return modules == 1U << AP_LINE_CORE_ATTN ? 0 : modules;
}

static void read_recompute(struct trainer_reading *r)
{
    const bool activations = on(r, "--recompute-activations");
    const char *how = trainer_flag_word(&r->flags, "--recompute-granularity",
                                        activations ? "selective" : "");
    const char *method = trainer_flag_word(&r->flags, "--recompute-method", "");
    const int64_t k = trainer_number(r, "--recompute-num-layers", 0);
    const unsigned modules = read_modules(r);
    enum ap_line_recompute *to = &r->said->line.recompute;

    if (!strcmp(how, "full")) {
        *to = AP_LINE_RECOMPUTE_FULL;
        if (!strcmp(method, "block") && k > 0)
            r->said->line.recompute_first = k;
        else if (!strcmp(method, "uniform") && k > 0)
            r->said->line.recompute_group = k > 1 ? k : 0;
        else
            ap_err_set(r->err,
                       "--recompute-granularity full: --recompute-method is '%.40s', not "
                       "uniform or block, or --recompute-num-layers %lld is not above 0",
                       method, (long long)k);
    } else if (!strcmp(how, "selective")) {
        if (*method || k)
            ap_err_set(r->err,
                       "--recompute-method and --recompute-num-layers: they are of "
                       "--recompute-granularity full");
        *to = AP_LINE_RECOMPUTE_SELECTIVE;
        r->said->line.recompute_modules = modules;
    } else if (*how) {
        ap_err_set(r->err, "--recompute-granularity: %.40s is not one of full, selective",
                   how);
    }
}

static void read_experts(struct trainer_reading *r, struct ap_degrees *d)
{
    const char *dispatcher =
        trainer_flag_word(&r->flags, "--moe-token-dispatcher-type", "allgather");

    d->expert = trainer_number(r, "--expert-model-parallel-size", 1);
    d->expert_tensor = trainer_number(r, "--expert-tensor-parallel-size", d->tensor);
    if (d->expert > 1 && strcmp(dispatcher, "alltoall") != 0)
        ap_note(r->notes,
                "--moe-token-dispatcher-type %.40s: tokens are taken to be exchanged by "
                "alltoall",
                dispatcher);
}

static void read_overlap(struct trainer_reading *r)
{
    struct ap_line *line = &r->said->line;
    const bool reduce = on(r, "--overlap-grad-reduce");
    const bool gather = on(r, "--overlap-param-gather");
    const bool low = on(r, "--grad-reduce-in-bf16");
    const bool f32 = on(r, "--accumulate-allreduce-grads-in-fp32");
    const enum ap_dtype compute = r->said->facts.compute;

    if (gather && (!reduce || line->degrees.zero == 0))
        ap_err_set(r->err,
                   "--overlap-param-gather: it is beside --overlap-grad-reduce and "
                   "--use-distributed-optimizer");
    line->overlap = reduce && (gather || line->degrees.zero == 0);
    if (reduce && !line->overlap)
        ap_note(r->notes,
                "--overlap-grad-reduce without --overlap-param-gather: taken as "
                "no overlap");
    if (compute == AP_F16 ? !f32 : compute != AP_F32 && low && !f32)
        line->trainer |= AP_TRAINER_LOW_SUMS;
    if (on(r, "--tp-comm-overlap")) {
        line->trainer |= AP_TRAINER_TP_OVERLAP;
        if (!line->degrees.sequence)
            ap_err_set(r->err, "--tp-comm-overlap: there is no sequence parallelism");
    }
    if (on(r, "--overlap-moe-expert-parallel-comm")) {
        line->trainer |= AP_TRAINER_EP_OVERLAP;
        if (line->degrees.expert == 1)
            ap_err_set(r->err, "--overlap-moe-expert-parallel-comm: there is no expert "
                               "parallelism");
    }
}

static void read_offload(struct trainer_reading *r)
{
    const char *part = trainer_flag_word(&r->flags, "--optimizer-offload-fraction", "1");
    const bool overlaps = on(r, "--overlap-cpu-optimizer-d2h-h2d");

    r->said->line.offload_first = trainer_number(r, "--cpu-offloading-num-layers", 0);
    r->said->line.offload = r->said->line.offload_first ? AP_LINE_OFFLOAD_ACTIVATIONS : 0;
    if (on(r, "--optimizer-cpu-offload")) {
        r->said->line.offload |= AP_LINE_OFFLOAD_OPTIMIZER;
        if (strtod(part, NULL) != 1)
            ap_err_set(
                r->err,
                "--optimizer-offload-fraction %.40s: 1.0 is what is supported, all of "
                "the optimizer",
                part);
        if (!overlaps)
            ap_note(r->notes,
                    "without --overlap-cpu-optimizer-d2h-h2d: the price has copies "
                    "beside the update");
    }
}

int trainer_megatron_read(const struct ap_trainer *own, const char *text,
                          const struct ap_line_facts *known, struct ap_trainer_said *said,
                          struct ap_notes *notes, struct ap_err *err)
{
    struct trainer_reading r = {notes->arena, .known = known, .said = said,
                                .notes = notes, .err = err};
    struct ap_line *line = &said->line;
    struct ap_degrees *d = &line->degrees;

    (void)own;
    if (trainer_reading_start(&r, text, false))
        return -1;
    read_model(&r);
    read_moments(&r);
    d->tensor = trainer_number(&r, "--tensor-model-parallel-size", 1);
    d->sequence = on(&r, "--sequence-parallel") && d->tensor > 1;
    read_stages(&r);
    said->facts.layers += said->facts.layers ? said->facts.mtp : 0;
    read_context(&r, d);
    read_experts(&r, d);
    d->zero = read_zero(&r);
    read_recompute(&r);
    read_overlap(&r);
    read_offload(&r);
    line->micro_batch = trainer_number(&r, "--micro-batch-size", 0);
    said->facts.batch = trainer_number(&r, "--global-batch-size", 0);
    const int64_t copies = trainer_number(&r, "--num-distributed-optimizer-instances", 1);
    if (line->micro_batch < 1)
        ap_err_set(err, "--micro-batch-size: expected (samples of a device at a time)");
    if (said->facts.world == 0)
        ap_err_set(err, "nothing says the number of devices: WORLD_SIZE=N");
    if (*err->msg)
        return -1;
    const int64_t model = ap_mul64(ap_mul64(d->tensor, d->context), line->pipeline);
    d->data = said->facts.world / model;
    if (d->data * model != said->facts.world)
        return ap_err_set(err,
                          "tensor x context x pipeline parallelism, %lld devices, do not "
                          "divide the %lld that there are",
                          (long long)model, (long long)said->facts.world);
    if (said->facts.batch == 0) /* one microbatch */
        said->facts.batch = ap_mul64(d->data, line->micro_batch);
    if (d->zero && copies > 1) {
        d->shard = d->data * d->context / copies;
        if (d->shard < 1 || d->data * d->context % copies)
            return ap_err_set(
                err,
                "--num-distributed-optimizer-instances %lld does not divide "
                "the %lld replicas",
                (long long)copies, (long long)(d->data * d->context));
    }
    return trainer_flags_end(&r.flags, unread, notes);
}
