/*
 * Hugging Face's config.json as a family, sizes and a style. A table says which member of
 * which model_type is what; members that no type knows are named in a warning, those that
 * change the graph in a way that is not built are errors at their JSON pointer. Source:
 * the configuration classes of `transformers`.
 */
#include "model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "doc/doc.h"
#include "tool/tool.h"

enum {
    LLAMA = 1 << 0,
    MISTRAL = 1 << 1,
    MIXTRAL = 1 << 2,
    QWEN2 = 1 << 3,
    QWEN3 = 1 << 4,
    GEMMA = 1 << 5,
    GEMMA2 = 1 << 6,
    DEEPSEEK2 = 1 << 7,
    DEEPSEEK3 = 1 << 8,
    GPT2 = 1 << 9,
    BERT = 1 << 10,
    T5 = 1 << 11,
    QWENS = QWEN2 | QWEN3,
    GEMMAS = GEMMA | GEMMA2,
    DEEPSEEKS = DEEPSEEK2 | DEEPSEEK3,
    ROPED = LLAMA | MISTRAL | MIXTRAL | QWENS | GEMMAS | DEEPSEEKS,
};

static const struct config_type {
    const char *name, *family;
    unsigned bit;
    const struct model_style *style;
    bool tied; /* unless the file says otherwise */
} types[] = {
    {"llama", "llama", LLAMA, &model_llama, false},
    {"mistral", "llama", MISTRAL, &model_llama, false},
    {"mixtral", "mixtral", MIXTRAL, &model_mixtral, false},
    {"qwen2", "qwen", QWEN2, &model_qwen2, false},
    {"qwen3", "qwen", QWEN3, &model_qwen3, false},
    {"gemma", "gemma", GEMMA, &model_gemma, true},
    {"gemma2", "gemma", GEMMA2, &model_gemma2, true},
    {"deepseek_v2", "deepseek", DEEPSEEK2, &model_deepseek_v2, false},
    {"deepseek_v3", "deepseek", DEEPSEEK3, &model_deepseek_v3, false},
    {"gpt2", "gpt", GPT2, &model_classic, true},
    {"bert", "bert", BERT, &model_classic, true},
    {"t5", "t5", T5, &model_classic, true},
    {.name = NULL},
};

/* What the value of a member is. */
enum kind {
    SIZE,    /* a positive integer: size[at] */
    OPTION,  /* the same; absent or null: derived, or none */
    REAL,    /* a number >= 0: the double of the style at byte `at`; null: 0 */
    FLAG,    /* true or false: the bool of the style at byte `at` */
    BIASES,  /* a flag: biases of queries, keys, values and of the output */
    ACT,     /* name of an activation */
    TIED,    /* a flag: head and embedding are one weight */
    SCALAR,  /* a number > 0: scores are divided by its root */
    LIMIT,   /* most positions: bounds the default of --seq */
    ROPE,    /* theta and type of scaling */
    MUST_BE, /* an integer or flag that has to be `at`; null: as absent */
    GROUPS,  /* style->groups, top_groups by byte `at` */
    LEFT_OUT /* said, unless null, false, zero or empty */
};

#define STYLE(member) offsetof(struct model_style, member)

/* A member; the same one may have rows for several types. */
static const struct field {
    const char *key;
    unsigned types;
    enum kind kind;
    size_t at;
    const char *why; /* MUST_BE, LEFT_OUT */
} fields[] = {
    {"hidden_size", ROPED | BERT, SIZE, MODEL_HIDDEN, NULL},
    {"n_embd", GPT2, SIZE, MODEL_HIDDEN, NULL},
    {"d_model", T5, SIZE, MODEL_HIDDEN, NULL},
    {"num_hidden_layers", ROPED | BERT, SIZE, MODEL_LAYERS, NULL},
    {"n_layer", GPT2, SIZE, MODEL_LAYERS, NULL},
    {"num_layers", T5, SIZE, MODEL_LAYERS, NULL},
    {"num_attention_heads", ROPED | BERT, SIZE, MODEL_HEADS, NULL},
    {"n_head", GPT2, SIZE, MODEL_HEADS, NULL},
    {"num_heads", T5, SIZE, MODEL_HEADS, NULL},
    {"intermediate_size", ROPED | BERT, SIZE, MODEL_FFN, NULL},
    {"n_inner", GPT2, OPTION, MODEL_FFN, NULL},
    {"d_ff", T5, SIZE, MODEL_FFN, NULL},
    {"vocab_size", ~0U, SIZE, MODEL_VOCAB, NULL},
    {"num_key_value_heads", ROPED & ~(unsigned)DEEPSEEKS, OPTION, MODEL_KV_HEADS, NULL},
    {"head_dim", ROPED & ~(unsigned)DEEPSEEKS, OPTION, MODEL_HEAD_DIM, NULL},
    {"d_kv", T5, SIZE, MODEL_HEAD_DIM, NULL},
    {"n_positions", GPT2, SIZE, MODEL_POSITIONS, NULL},
    {"max_position_embeddings", BERT, SIZE, MODEL_POSITIONS, NULL},
    {"max_position_embeddings", ROPED, LIMIT, 0, NULL},
    {"tie_word_embeddings", ~(unsigned)T5, TIED, 0, NULL},
    {"tie_word_embeddings", T5, MUST_BE, 1, "T5 with a head of its own is not built"},
    {"rms_norm_eps", ROPED, REAL, STYLE(norm_eps), NULL},
    {"layer_norm_eps", BERT, REAL, STYLE(norm_eps), NULL},
    {"layer_norm_epsilon", GPT2 | T5, REAL, STYLE(norm_eps), NULL},
    {"rope_theta", ROPED, REAL, STYLE(rope_theta), NULL},
    {"rope_parameters", ROPED, ROPE, 0, NULL},
    {"rope_scaling", ROPED, ROPE, 0, NULL},
    {"partial_rotary_factor", ROPED, MUST_BE, 1, "partial rotation is not built"},
    {"hidden_act", ROPED | BERT, ACT, 0, NULL},
    {"hidden_activation", GEMMAS, ACT, 0, NULL},
    {"activation_function", GPT2, ACT, 0, NULL},
    {"feed_forward_proj", T5, ACT, 0, NULL},
    {"attention_bias", ROPED & ~(unsigned)QWEN2, BIASES, 0, NULL},
    {"mlp_bias", LLAMA, FLAG, STYLE(mlp_bias), NULL},
    {"mlp_bias", DEEPSEEK2, MUST_BE, 0, "biases beside experts are not built"},
    {"sliding_window", MISTRAL | MIXTRAL | GEMMA2, OPTION, MODEL_WINDOW, NULL},
    {"use_sliding_window", QWENS, MUST_BE, 0,
     "windows from max_window_layers on are not built"},
    {"query_pre_attn_scalar", GEMMA2, SCALAR, 0, NULL},
    {"attn_logit_softcapping", GEMMA2, REAL, STYLE(score_cap), NULL},
    {"final_logit_softcapping", GEMMA2, REAL, STYLE(logit_cap), NULL},
    {"use_bidirectional_attention", GEMMAS, MUST_BE, 0, "it is not built"},
    /* experts */
    {"num_local_experts", MIXTRAL, SIZE, MODEL_EXPERTS, NULL},
    {"n_routed_experts", DEEPSEEKS, SIZE, MODEL_EXPERTS, NULL},
    {"num_experts_per_tok", MIXTRAL | DEEPSEEKS, SIZE, MODEL_TOP, NULL},
    {"n_shared_experts", DEEPSEEKS, OPTION, MODEL_SHARED_EXPERTS, NULL},
    {"moe_intermediate_size", DEEPSEEKS, SIZE, MODEL_EXPERT_FFN, NULL},
    {"first_k_dense_replace", DEEPSEEKS, OPTION, MODEL_DENSE_LAYERS, NULL},
    {"moe_layer_freq", DEEPSEEKS, MUST_BE, 1, "experts in some layers are not built"},
    {"router_aux_loss_coef", MIXTRAL, REAL, STYLE(balance), NULL},
    {"aux_loss_alpha", DEEPSEEK2, REAL, STYLE(balance), NULL},
    {"routed_scaling_factor", DEEPSEEKS, REAL, STYLE(gate_scale), NULL},
    {"n_group", DEEPSEEKS, GROUPS, STYLE(groups), NULL},
    {"topk_group", DEEPSEEKS, GROUPS, STYLE(top_groups), NULL},
    /* latent attention */
    {"q_lora_rank", DEEPSEEKS, OPTION, MODEL_Q_RANK, NULL},
    {"kv_lora_rank", DEEPSEEKS, SIZE, MODEL_KV_RANK, NULL},
    {"qk_nope_head_dim", DEEPSEEKS, SIZE, MODEL_HEAD_DIM, NULL},
    {"qk_rope_head_dim", DEEPSEEKS, SIZE, MODEL_ROPE_DIM, NULL},
    {"v_head_dim", DEEPSEEKS, SIZE, MODEL_VALUE_DIM, NULL},
    {"num_nextn_predict_layers", DEEPSEEK3, LEFT_OUT, 0,
     "multi-token prediction is left out"},
    /* encoders, and decoders of before */
    {"type_vocab_size", BERT, MUST_BE, 2, "two types of tokens are built"},
    {"is_decoder", BERT | T5, MUST_BE, 0, "it is not built"},
    {"add_cross_attention", GPT2 | BERT, MUST_BE, 0, "it is not built"},
    {"scale_attn_weights", GPT2, MUST_BE, 1, "scores without a scale are not built"},
    {"scale_attn_by_inverse_layer_idx", GPT2, MUST_BE, 0, "it is not built"},
    {"relative_attention_num_buckets", T5, MUST_BE, 32, "32 buckets are built"},
    {"relative_attention_max_distance", T5, MUST_BE, 128, "128 is built"},
    {"quantization_config", ~0U, LEFT_OUT, 0, "weights have the type of --dtype"},
};
#define N_FIELDS ((int)(sizeof fields / sizeof *fields))

/* Read below, or of no weight for the graph: dropout (there is none), tokens, caches,
 * how weights are initialized and stored, text generation. A '*' ends a prefix. */
static const char *const ignored[] = {
    "model_type",
    "architectures",
    "_name_or_path",
    "auto_map",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "layer_types",
    "topk_method",
    "scoring_func",
    "norm_topk_prob",
    "*_token_id",
    "*_token_ids",
    "*dropout*",
    "*_drop",
    "*_pdrop",
    "initializer_*",
    "use_cache",
    "pretraining_tp",
    "output_*",
    "return_dict",
    "cache_implementation",
    "_attn_*",
    "attn_implementation",
    "max_window_layers",
    "sliding_window",
    "rope_interleave",
    "router_jitter_noise",
    "seq_aux",
    "aux_loss_alpha",
    "ep_size",
    "num_key_value_heads",
    "head_dim",
    "qk_head_dim",
    "pad_token*",
    "n_ctx",
    "reorder_and_upcast_attn",
    "summary_*",
    "task_specific_params",
    "gradient_checkpointing",
    "position_embedding_type",
    "model_*",
    "dense_act_fn",
    "is_gated_act",
    "is_encoder_decoder",
    "num_decoder_layers",
    "n_positions",
    "id2label",
    "label2id",
    "problem_type",
    "chunk_size_feed_forward",
    "classifier_*",
    "finetuning_task",
    "tokenizer_class",
    "prefix",
    "tie_encoder_decoder",
    "decoder_*",
    "bad_words_ids",
    "hidden_act",
    "use_bidirectional_attention",
    "prune*",
    "*_window_pattern",
    "query_pre_attn_scalar",
    "pooler_*",
    "directionality",
    "rms_norm_eps",
};
#define N_IGNORED ((int)(sizeof ignored / sizeof *ignored))

struct reader {
    const char *file;
    const json_t *top;
    const struct config_type *type;
    struct model_config *config;
    struct model_style *style;
    bool quiet;
    struct ap_err *err;
};

/* ---- values ---- */

static bool is_number(const json_t *v, double want)
{
    if (json_is_boolean(v))
        return json_is_true(v) == (want != 0) && (want == 0 || want == 1);
    return json_is_number(v) && json_number_value(v) == want;
}

static void note(const struct reader *r, const char *key, const char *what)
{
    if (!r->quiet)
        ap_warn("%s: /%s: %s", r->file, key, what);
}

/* "; did you mean 'key'?" of a member that is not there. */
static int say_missing(const struct reader *r, const struct ap_at *at)
{
    struct ap_nearest near = {.want = at->key};
    char meant[AP_MEANT];
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)r->top, key, value)
    {
        bool known = false;
        for (int i = 0; i < N_FIELDS; i++)
            known |= !strcmp(key, fields[i].key) && fields[i].types & r->type->bit;
        if (!known)
            ap_nearest_try(&near, key);
    }
    return ap_at_err(at, r->err, "missing; model_type %s needs it%s", r->type->name,
                     ap_nearest_meant(&near, "", meant));
}

static int read_act(struct reader *r, const struct ap_at *at)
{
    static const struct {
        const char *name;
        enum model_act act;
    } acts[] = {
        {"silu", MODEL_SILU},       {"swish", MODEL_SILU},
        {"gelu", MODEL_GELU_ERF},   {"gelu_pytorch_tanh", MODEL_GELU},
        {"gelu_new", MODEL_GELU},   {"gelu_fast", MODEL_GELU},
        {"relu", MODEL_RELU},       {"gated-gelu", MODEL_GELU},
        {"gated-silu", MODEL_SILU},
    };
    struct ap_nearest near = {0};
    char meant[AP_MEANT];
    const char *name;

    if (json_is_null(json_object_get(r->top, at->key)))
        return 0;
    if (ap_get_str(r->top, NULL, at->key, &name, r->err))
        return -1;
    near.want = name;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        bool gates = !strncmp(acts[i].name, "gated-", 6);
        if ((gates && r->type->bit != T5) || strcmp(acts[i].name, name)) {
            ap_nearest_try(&near, acts[i].name);
            continue;
        }
        r->style->act = acts[i].act;
        /* Gemma was trained with tanh's, whatever its first files say. */
        if (r->type->bit & GEMMAS && acts[i].act == MODEL_GELU_ERF)
            r->style->act = MODEL_GELU;
        r->style->gated |= gates;
        return 0;
    }
    return ap_at_err(at, r->err, "no activation '%s'%s", name,
                     ap_nearest_meant(&near, "", meant));
}

/* {"rope_type" or "type": name, "rope_theta": number, ...} or null. */
static int read_rope(struct reader *r, const struct ap_at *at)
{
    const json_t *o = json_object_get(r->top, at->key);
    const char *type = "default";

    if (json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return ap_at_err(at, r->err, "expected an object or null");
    if (ap_opt_str(o, at, "type", &type, r->err) ||
        ap_opt_str(o, at, "rope_type", &type, r->err))
        return -1;
    if (json_object_get(o, "rope_theta") &&
        ap_get_num(o, at, "rope_theta", &r->style->rope_theta, r->err))
        return -1;
    const json_t *part = json_object_get(o, "partial_rotary_factor");
    if (part && !is_number(part, 1))
        return ap_at_err(at, r->err, "partial rotation is not built");
    if (strcmp(type, "default"))
        note(r, at->key,
             "frequencies stay those of rope_theta: no shape depends on them");
    return 0;
}

static int read_size(struct reader *r, const struct field *f, bool optional)
{
    int64_t *size = &r->config->size[f->at];
    int64_t most = f->at == MODEL_LAYERS ? 1 << 16 : f->at == MODEL_TOP ? 8 : 1 << 30;
    const json_t *v = json_object_get(r->top, f->key);

    if (optional && (!v || json_is_null(v) || is_number(v, 0))) {
        *size = -1;
        return 0;
    }
    return ap_get_int(r->top, NULL, f->key, 1, most, size, r->err);
}

static int read_bool(const struct reader *r, const struct ap_at *at, bool *out)
{
    const json_t *v = json_object_get(r->top, at->key);
    if (!json_is_boolean(v))
        return ap_at_err(at, r->err, "expected true or false");
    *out = json_is_true(v);
    return 0;
}

static int read_real(const struct reader *r, const struct ap_at *at, double *out)
{
    *out = 0;
    if (json_is_null(json_object_get(r->top, at->key)))
        return 0;
    if (ap_get_num(r->top, NULL, at->key, out, r->err))
        return -1;
    return *out >= 0 ? 0 : ap_at_err(at, r->err, "expected a number >= 0, got %g", *out);
}

/* A member that is there. */
static int read_field(struct reader *r, const struct field *f)
{
    const struct ap_at at = {NULL, f->key, 0};
    const json_t *v = json_object_get(r->top, f->key);
    char *style = (char *)r->style;
    int64_t most = 0;
    double value = 0;
    bool flag = false;

    switch (f->kind) {
    case SIZE:
    case OPTION:
        return read_size(r, f, f->kind == OPTION);
    case REAL:
        return read_real(r, &at, (double *)(void *)(style + f->at));
    case FLAG:
        return read_bool(r, &at, (bool *)(style + f->at));
    case BIASES:
        if (read_bool(r, &at, &flag))
            return -1;
        r->style->qkv_bias = r->style->out_bias = flag;
        return 0;
    case ACT:
        return read_act(r, &at);
    case TIED:
        if (read_bool(r, &at, &flag))
            return -1;
        r->config->size[MODEL_UNTIED] = flag ? -1 : 1;
        return 0;
    case SCALAR:
        if (read_real(r, &at, &value))
            return -1;
        r->style->score_scale = value > 0 ? 1 / sqrt(value) : 0;
        return 0;
    case LIMIT:
        if (ap_get_int(r->top, NULL, f->key, 1, 1 << 30, &most, r->err))
            return -1;
        if (most < model_find_family(r->type->family)->size[MODEL_SEQ])
            r->config->size[MODEL_SEQ] = most;
        return 0;
    case ROPE:
        return read_rope(r, &at);
    case MUST_BE:
        if (json_is_null(v) || is_number(v, (double)f->at))
            return 0;
        return ap_at_err(&at, r->err, "expected %zu: %s", f->at, f->why);
    case GROUPS:
        if (json_is_null(v))
            return 0;
        return ap_get_int(r->top, NULL, f->key, 1, 1 << 20,
                          (int64_t *)(void *)(style + f->at), r->err);
    case LEFT_OUT:
        if (!json_is_null(v) && !json_is_false(v) && !is_number(v, 0) &&
            !(json_is_object(v) && json_object_size(v) == 0))
            note(r, f->key, f->why);
        return 0;
    }
    return 0;
}

/* ---- what several members say together ---- */

static int one_of(const struct reader *r, const char *key, const char *const *names,
                  int n, int *out)
{
    return json_is_null(json_object_get(r->top, key))
               ? 0
               : ap_opt_name(r->top, NULL, key, names, n, out, r->err);
}

/* How DeepSeek's router scores and chooses. */
static int read_router(struct reader *r)
{
    static const char *const methods[] = {"greedy", "group_limited_greedy", "noaux_tc"};
    static const char *const scores[] = {"softmax", "sigmoid"};
    struct model_style *style = r->style;
    int method = r->type->bit == DEEPSEEK3 ? 2 : 0, score = r->type->bit == DEEPSEEK3;
    const struct ap_at at = {NULL, "norm_topk_prob", 0};
    bool norm = !style->raw_gates;

    if (one_of(r, "topk_method", methods, 3, &method) ||
        one_of(r, "scoring_func", scores, 2, &score) ||
        (json_object_get(r->top, at.key) && read_bool(r, &at, &norm)))
        return -1;
    style->raw_gates = !norm;
    style->sigmoid = score == 1;
    style->pair_groups = method == 2;
    if (method == 0)
        style->groups = 0;
    return 0;
}

/* Windows must be where the family has them. */
static int check_layer_types(const struct reader *r)
{
    const struct ap_at list = {NULL, "layer_types", 0};
    const json_t *all = json_object_get(r->top, list.key), *kind;
    bool windows = r->config->size[MODEL_WINDOW] > 0;
    size_t i;

    if (all && !json_is_null(all) && !json_is_array(all))
        return ap_at_err(&list, r->err, "expected an array");
    json_array_foreach((json_t *)(uintptr_t)all, i, kind)
    {
        const struct ap_at at = {&list, NULL, (long)i};
        bool window = windows && !(r->style->window_every_other && i % 2 == 1);
        const char *want = window ? "sliding_attention" : "full_attention";
        const char *got = json_string_value(kind);
        if (!got || strcmp(got, want))
            return ap_at_err(&at, r->err, "expected \"%s\": no other order is built",
                             want);
    }
    return 0;
}

static int check_t5(const struct reader *r)
{
    const struct ap_at at = {NULL, "num_decoder_layers", 0};
    const json_t *v = json_object_get(r->top, at.key);
    double layers = (double)r->config->size[MODEL_LAYERS];

    if (!v || json_is_null(v) || is_number(v, layers))
        return 0;
    return ap_at_err(&at, r->err, "expected %g, the encoder's: no other is built",
                     layers);
}

/* ---- the file ---- */

static bool matches(const char *pattern, const char *key)
{
    for (; *pattern != '*'; pattern++, key++) {
        if (*pattern != *key)
            return false;
        if (!*key)
            return true;
    }
    for (;; key++) {
        if (matches(pattern[1] ? pattern + 1 : "", key) || !pattern[1])
            return true;
        if (!*key)
            return false;
    }
}

/* Warns of a member that nothing here knows. */
static void check_known(const struct reader *r, const char *key)
{
    struct ap_nearest near = {.want = key};
    char meant[AP_MEANT], text[AP_MEANT + 80];

    for (int i = 0; i < N_IGNORED; i++)
        if (matches(ignored[i], key))
            return;
    for (int i = 0; i < N_FIELDS; i++) {
        if (!(fields[i].types & r->type->bit))
            continue;
        if (!strcmp(fields[i].key, key))
            return;
        if (!json_object_get(r->top, fields[i].key))
            ap_nearest_try(&near, fields[i].key);
    }
    snprintf(text, sizeof text, "not known for model_type %s, left out%s", r->type->name,
             ap_nearest_meant(&near, "", meant));
    note(r, key, text);
}

static int find_type(struct reader *r)
{
    struct ap_at at = {NULL, "model_type", 0};
    struct ap_nearest near = {0};
    char meant[AP_MEANT];
    const char *name;

    if (!json_object_get(r->top, at.key))
        return ap_at_err(&at, r->err, "missing: this is not the config.json of a model");
    if (ap_get_str(r->top, NULL, at.key, &name, r->err))
        return -1;
    near.want = name;
    for (r->type = types; r->type->name; r->type++) {
        if (!strcmp(r->type->name, name))
            return 0;
        ap_nearest_try(&near, r->type->name);
    }
    const char *said = ap_nearest_meant(&near, "", meant);
    if (*said)
        return ap_at_err(&at, r->err, "no model_type '%s' is built%s", name, said);
    struct ap_buf built = {0};
    for (const struct config_type *t = types; t->name; t++)
        ap_buf_printf(&built, "%s%s", built.len ? ", " : "", t->name);
    ap_at_err(&at, r->err, "no model_type '%s' is built, but %s", name, built.data);
    ap_buf_free(&built);
    return -1;
}

static int read_all(struct reader *r)
{
    const char *key;
    json_t *value;

    if (!json_is_object(r->top))
        return ap_err_set(r->err, "expected an object");
    if (find_type(r))
        return -1;
    *r->style = *r->type->style;
    r->config->family = r->type->family;
    r->config->size[MODEL_UNTIED] = r->type->tied ? -1 : 1;
    if (r->type->bit == T5)
        r->config->size[MODEL_UNTIED] = 0; /* the family has no such size */
    for (int i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        const struct ap_at at = {NULL, f->key, 0};
        if (!(f->types & r->type->bit))
            continue;
        if (!json_object_get(r->top, f->key) && f->kind == SIZE)
            return say_missing(r, &at);
        if ((json_object_get(r->top, f->key) || f->kind == OPTION) && read_field(r, f))
            return -1;
    }
    json_object_foreach((json_t *)(uintptr_t)r->top, key, value) check_known(r, key);
    if (r->type->bit & DEEPSEEKS && read_router(r))
        return -1;
    return r->type->bit == T5 ? check_t5(r) : check_layer_types(r);
}

int model_read_config(struct ap_arena *arena, const char *path, bool quiet,
                      struct model_config *config, struct ap_err *err)
{
    struct ap_err why = {{0}};
    struct model_style *style = AP_NEW(arena, struct model_style);
    struct reader r = {
        .file = path, .config = config, .style = style, .quiet = quiet, .err = &why};
    json_error_t where;
    const char *name = "";
    char *text;
    size_t len;

    *config = (struct model_config){.style = style};
    if (ap_read_file(arena, path, false, &text, &len, err))
        return -1;
    json_t *top = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
    if (!top)
        return ap_err_set(err, "%s:%d:%d: %s", path, where.line, where.column,
                          where.text);
    r.top = top;
    int rc = read_all(&r);
    if (!rc) {
        const json_t *known = json_object_get(top, "_name_or_path");
        name = json_is_string(known) ? json_string_value(known) : "";
        config->name = ap_arena_strdup(arena, *name ? name : r.type->name);
    }
    json_decref(top);
    return rc ? ap_err_set(err, "%s: %s", path, why.msg) : 0;
}
