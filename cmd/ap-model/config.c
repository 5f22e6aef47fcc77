/*
 * Hugging Face's config.json as a family, sizes and a style. types.json has the
 * model_types: how each is built, its own names of members, and the defaults that
 * `transformers` gives to absent ones; the table below says what a member means, by its
 * usual name. Members that a type does not know are named in a warning; those that ask
 * for a model that is not built are errors at their JSON pointer. Source: the
 * configuration classes of `transformers` (scripts/torch/config-types compares).
 */
#include "model.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "doc/doc.h"
#include "tool/tool.h"

extern const char model_types_text[];   /* types.json */
extern const char model_configs_text[]; /* configs/: {name: config.json, ...} */

/* What the value of a member is. */
enum kind {
    SIZE,     /* a positive integer: size[at] */
    OPTION,   /* the same, or null or 0: derived, or none */
    SWITCH,   /* true or false: the flag size[at] */
    TIED,     /* the same: head and embedding are one weight */
    COUNT,    /* an integer > 0, or null: the int64_t of the style at byte `at` */
    REAL,     /* a number >= 0: the double of the style at byte `at`; null: 0 */
    FLAG,     /* true or false: the bool of the style at byte `at` */
    NOT,      /* the same, turned round */
    UNLESS,   /* false clears the enum of the style at byte `at` */
    WORD,     /* one of the words `why`: the enum of the style at byte `at` */
    BIASES,   /* a flag: sum of 1 (queries, keys, values), 2 (output), 4 (feed-forward) */
    ACT,      /* name of an activation */
    SCALAR,   /* a number > 0: scores are divided by its root */
    LIMIT,    /* most positions: bounds the default of --seq */
    ROPE,     /* theta, share and type of scaling; or these of two kinds of layers */
    PATTERN,  /* the pattern of the style at byte `at` */
    LAST_OFF, /* the same, from a period: ones and a last 0 */
    LAST_ON,  /* the same: zeros and a last 1 */
    LAYERS,   /* the same, from a word or number for each layer */
    ONLY,     /* the same, from the numbers of the layers that have 1 */
    EXCEPT,   /* the same, from the numbers of layers that have 0 */
    SAME,     /* null, or size[at] */
    MUST_BE,  /* an integer or flag that has to be `at`; null: as absent */
    LEFT_OUT  /* said, unless null, false, zero or empty */
};

#define STYLE(member) offsetof(struct model_style, member)

/* Rows are read in this order: a later one replaces what an earlier one says. */
static const struct field {
    const char *key;
    enum kind kind;
    size_t at;
    const char *why; /* WORD; MUST_BE, LEFT_OUT: reason */
} fields[] = {
    {"hidden_size", SIZE, MODEL_HIDDEN, NULL},
    {"num_hidden_layers", SIZE, MODEL_LAYERS, NULL},
    {"num_decoder_layers", SAME, MODEL_LAYERS, NULL},
    {"num_attention_heads", SIZE, MODEL_HEADS, NULL},
    {"num_key_value_heads", OPTION, MODEL_KV_HEADS, NULL},
    {"head_dim", OPTION, MODEL_HEAD_DIM, NULL},
    {"no_head_dim", MUST_BE, 0,
     "the width of a head is hidden_size / num_attention_heads"},
    {"intermediate_size", SIZE, MODEL_FFN, NULL},
    {"n_inner", OPTION, MODEL_FFN, NULL},
    {"vocab_size", SIZE, MODEL_VOCAB, NULL},
    {"positions", SIZE, MODEL_POSITIONS, NULL},
    {"max_position_embeddings", LIMIT, 0, NULL},
    {"tie_word_embeddings", TIED, 0, NULL},
    {"tied", MUST_BE, 1, "T5 with a head of its own is not built"},
    {"head_bias", SWITCH, MODEL_HEAD_BIAS, NULL},
    /* norms, activations, biases */
    {"norm", WORD, STYLE(norm), "layer rms no_bias plain"},
    {"rms_norm_eps", REAL, STYLE(norm_eps), NULL},
    {"norm_plus_one", FLAG, STYLE(norm_plus_one), NULL},
    {"sandwich", FLAG, STYLE(sandwich), NULL},
    {"no_pre_norm", FLAG, STYLE(no_pre_norm), NULL},
    {"use_parallel_residual", FLAG, STYLE(parallel), NULL},
    {"one_norm", FLAG, STYLE(one_norm), NULL},
    {"gated", FLAG, STYLE(gated), NULL},
    {"hidden_act", ACT, 0, NULL},
    {"swiglu_alpha", REAL, STYLE(glu_alpha), NULL},
    {"swiglu_limit", REAL, STYLE(glu_limit), NULL},
    {"use_bias", BIASES, 7, NULL},
    {"attention_bias", BIASES, 3, NULL},
    {"qkv_bias", BIASES, 1, NULL},
    {"out_bias", BIASES, 2, NULL},
    {"mlp_bias", BIASES, 4, NULL},
    {"dense_bias", MUST_BE, 0, "biases beside experts are not built"},
    {"scale_embed", FLAG, STYLE(scale_embed), NULL},
    {"embedding_multiplier", REAL, STYLE(embed_scale), NULL},
    {"residual_multiplier", REAL, STYLE(residual_scale), NULL},
    {"logits_scaling", REAL, STYLE(logit_divide), NULL},
    {"logit_scale", REAL, STYLE(logit_scale), NULL},
    {"final_logit_softcapping", REAL, STYLE(logit_cap), NULL},
    /* attention */
    {"rope", FLAG, STYLE(rope), NULL},
    {"rope_theta", REAL, STYLE(rope_theta), NULL},
    {"rope_local_base_freq", REAL, STYLE(window_theta), NULL},
    {"partial_rotary_factor", REAL, STYLE(rope_share), NULL},
    {"rotary_dim", COUNT, STYLE(rope_width), NULL},
    {"rope_parameters", ROPE, 0, NULL},
    {"rope_scaling", ROPE, 0, NULL},
    {"rotated", PATTERN, STYLE(rotated), NULL},
    {"no_rope_layer_interval", LAST_OFF, STYLE(rotated), NULL},
    {"no_rope_layers", LAYERS, STYLE(rotated), NULL},
    {"sliding_window", OPTION, MODEL_WINDOW, NULL},
    {"use_sliding_window", MUST_BE, 0, "windows from max_window_layers on are not built"},
    {"chunked", FLAG, STYLE(chunked), NULL},
    {"windows", PATTERN, STYLE(windows), NULL},
    {"sliding_window_pattern", LAST_OFF, STYLE(windows), NULL},
    {"layer_types", LAYERS, STYLE(windows), NULL},
    {"qk_norm", WORD, STYLE(qk_norm), "none head all unit"},
    {"use_qk_norm", UNLESS, STYLE(qk_norm), NULL},
    {"qk_layernorm", MUST_BE, 0, "layer norms of queries and keys are not built"},
    {"sinks", FLAG, STYLE(sinks), NULL},
    {"clip_qkv", MUST_BE, 0, "clipped queries, keys and values are not built"},
    {"query_pre_attn_scalar", SCALAR, 0, NULL},
    {"attention_multiplier", REAL, STYLE(score_scale), NULL},
    {"attn_logit_softcapping", REAL, STYLE(score_cap), NULL},
    {"attn_temperature_tuning", FLAG, STYLE(temper), NULL},
    {"attn_scale", REAL, STYLE(temper_scale), NULL},
    {"floor_scale", REAL, STYLE(temper_floor), NULL},
    {"use_bidirectional_attention", MUST_BE, 0, "it is not built"},
    {"q_lora_rank", OPTION, MODEL_Q_RANK, NULL},
    {"kv_lora_rank", SIZE, MODEL_KV_RANK, NULL},
    {"qk_nope_head_dim", SIZE, MODEL_HEAD_DIM, NULL},
    {"qk_rope_head_dim", SIZE, MODEL_ROPE_DIM, NULL},
    {"v_head_dim", SIZE, MODEL_VALUE_DIM, NULL},
    /* experts */
    {"num_experts", SIZE, MODEL_EXPERTS, NULL},
    {"num_experts_per_tok", SIZE, MODEL_TOP, NULL},
    {"n_shared_experts", OPTION, MODEL_SHARED_EXPERTS, NULL},
    {"moe_intermediate_size", SIZE, MODEL_EXPERT_FFN, NULL},
    {"shared_expert_intermediate_size", COUNT, STYLE(shared_ffn), NULL},
    {"shared_gate", FLAG, STYLE(shared_gate), NULL},
    {"expert_bias", FLAG, STYLE(expert_bias), NULL},
    {"router_bias", FLAG, STYLE(router_bias), NULL},
    {"gate_inputs", FLAG, STYLE(gate_inputs), NULL},
    {"first_k_dense_replace", OPTION, MODEL_DENSE_LAYERS, NULL},
    {"moe_layer_freq", MUST_BE, 1, "experts in some layers are not built"},
    {"decoder_sparse_step", LAST_ON, STYLE(mixed), NULL},
    {"mlp_layer_types", LAYERS, STYLE(mixed), NULL},
    {"moe_layers", ONLY, STYLE(mixed), NULL},
    {"mlp_only_layers", EXCEPT, STYLE(mixed), NULL},
    {"router_aux_loss_coef", REAL, STYLE(balance), NULL},
    {"balance_rows", FLAG, STYLE(balance_rows), NULL},
    {"routed_scaling_factor", REAL, STYLE(gate_scale), NULL},
    {"norm_topk_prob", NOT, STYLE(raw_gates), NULL},
    {"scoring_func", WORD, STYLE(sigmoid), "softmax sigmoid"},
    {"topk_method", WORD, STYLE(choice), "greedy group_limited_greedy noaux_tc"},
    {"n_group", COUNT, STYLE(groups), NULL},
    {"topk_group", COUNT, STYLE(top_groups), NULL},
    {"num_nextn_predict_layers", LEFT_OUT, 0, "multi-token prediction is left out"},
    /* encoders, and decoders of before */
    {"type_vocab_size", MUST_BE, 2, "two types of tokens are built"},
    {"is_decoder", MUST_BE, 0, "it is not built"},
    {"add_cross_attention", MUST_BE, 0, "it is not built"},
    {"scale_attn_weights", MUST_BE, 1, "scores without a scale are not built"},
    {"scale_attn_by_inverse_layer_idx", MUST_BE, 0, "it is not built"},
    {"relative_attention_num_buckets", MUST_BE, 32, "32 buckets are built"},
    {"relative_attention_max_distance", MUST_BE, 128, "128 is built"},
    {"quantization_config", LEFT_OUT, 0, "weights have the type of --dtype"},
};
#define N_FIELDS ((int)(sizeof fields / sizeof *fields))

struct reader {
    const char *file, *type;
    const json_t *top;     /* of the file, or its text_config */
    const json_t *names;   /* usual names by the type's own */
    const json_t *ignored; /* patterns of members of no weight for the graph */
    json_t *all; /* members by their usual names: how it is built, defaults, file */
    struct ap_arena *arena;
    struct model_config *config;
    struct model_style *style;
    bool quiet, usage; /* usage: the error is of a model that is not built */
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

static int not_built(struct reader *r)
{
    r->usage = true;
    return -1;
}

/* The type's own name of a member. */
static const char *own_name(const struct reader *r, const char *usual)
{
    const char *key, *found = usual;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)r->names, key, value)
    {
        if (!strcmp(json_string_value(value), usual) &&
            (found == usual || json_object_get(r->top, key)))
            found = key;
    }
    return json_object_get(r->top, usual) ? usual : found;
}

static const char *usual_name(const json_t *names, const char *own)
{
    const char *usual = json_string_value(json_object_get(names, own));
    return usual ? usual : own;
}

static int read_act(struct reader *r, const struct ap_at *at, const json_t *v)
{
    static const struct {
        const char *name;
        enum model_act act;
    } acts[] = {
        {"silu", MODEL_SILU},       {"swish", MODEL_SILU},
        {"gelu", MODEL_GELU_ERF},   {"gelu_pytorch_tanh", MODEL_GELU},
        {"gelu_new", MODEL_GELU},   {"gelu_fast", MODEL_GELU},
        {"relu", MODEL_RELU},       {"relu2", MODEL_RELU2},
        {"gated-gelu", MODEL_GELU}, {"gated-silu", MODEL_SILU},
    };
    struct ap_nearest near = {.want = json_string_value(v)};
    bool is_gemma = !strcmp(r->config->family, "gemma"), is_t5 = !strcmp(r->type, "t5");
    char meant[AP_MEANT];

    if (!near.want)
        return ap_at_err(at, r->err, "expected the name of an activation");
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        bool gates = !strncmp(acts[i].name, "gated-", 6);
        if ((gates && !is_t5) || strcmp(acts[i].name, near.want)) {
            ap_nearest_try(&near, acts[i].name);
            continue;
        }
        r->style->act = acts[i].act;
        /* Gemma was trained with tanh's, whatever its first files say. */
        if (is_gemma && acts[i].act == MODEL_GELU_ERF)
            r->style->act = MODEL_GELU;
        r->style->gated |= gates;
        return 0;
    }
    ap_at_err(at, r->err, "no activation '%s'%s", near.want,
              ap_nearest_meant(&near, "", meant));
    return not_built(r);
}

/* {"rope_type" or "type": name, "rope_theta": number, ...} or null; or an object of these
 * by kind of layer. */
static int read_rope(struct reader *r, const struct ap_at *at, const json_t *o,
                     double *theta)
{
    static const char *const kinds[] = {"full_attention", "sliding_attention"};
    struct model_style *style = r->style;
    const char *type = "default";
    bool by_kind = false;

    if (json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return ap_at_err(at, r->err, "expected an object or null");
    for (int i = 0; i < 2 && !at->up; i++) {
        const struct ap_at here = {at, kinds[i], 0};
        const json_t *part = json_object_get(o, kinds[i]);
        by_kind |= part != NULL;
        if (part &&
            read_rope(r, &here, part, i ? &style->window_theta : &style->rope_theta))
            return -1;
    }
    if (by_kind)
        return 0;
    if (ap_opt_str(o, at, "type", &type, r->err) ||
        ap_opt_str(o, at, "rope_type", &type, r->err))
        return -1;
    if (json_object_get(o, "rope_theta") &&
        ap_get_num(o, at, "rope_theta", theta, r->err))
        return -1;
    if (json_object_get(o, "partial_rotary_factor") &&
        ap_get_num(o, at, "partial_rotary_factor", &style->rope_share, r->err))
        return -1;
    if (strcmp(type, "default"))
        note(r, at->up ? at->up->key : at->key,
             "frequencies stay those of rope_theta: no shape depends on them");
    return 0;
}

static int read_size(struct reader *r, const struct field *f, const struct ap_at *at,
                     const json_t *v)
{
    int64_t *size = &r->config->size[f->at];
    int64_t most = f->at == MODEL_LAYERS ? 1 << 16
                   : f->at == MODEL_TOP  ? MODEL_MAX_TOP
                                         : 1 << 30;

    if (f->kind == OPTION && (json_is_null(v) || is_number(v, 0))) {
        *size = -1;
        return 0;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > most)
        return ap_at_err(at, r->err, "expected an integer from 1 to %lld%s%s%s",
                         (long long)most, json_is_null(v) ? "; model_type " : "",
                         json_is_null(v) ? r->type : "",
                         json_is_null(v) ? " has no default" : "");
    *size = json_integer_value(v);
    return 0;
}

static int read_real(const struct reader *r, const struct ap_at *at, const json_t *v,
                     double *out)
{
    *out = json_is_null(v) ? 0 : json_number_value(v);
    if ((json_is_number(v) || json_is_null(v)) && isfinite(*out) && *out >= 0)
        return 0;
    return ap_at_err(at, r->err, "expected a number >= 0");
}

/* The place of v among words that a space parts. */
static int read_word(struct reader *r, const struct ap_at *at, const json_t *v,
                     const char *words, int *out)
{
    const char *name = json_string_value(v);
    size_t len = name ? strlen(name) : 0;

    *out = 0;
    for (const char *w = words; *w && len; w += strcspn(w, " "), w += *w == ' ', ++*out)
        if (strcspn(w, " ") == len && !strncmp(w, name, len))
            return 0;
    ap_at_err(at, r->err, "expected one of: %s", words);
    return not_built(r);
}

/* ---- patterns ---- */

/* '1' or '0' for what a list says of a layer; 0: it is not built. */
static char layer_digit(const json_t *v)
{
    static const char *const words[] = {"full_attention", "dense", "sliding_attention",
                                        "sparse", "chunked_attention"};
    if (is_number(v, 0) || is_number(v, 1))
        return is_number(v, 1) ? '1' : '0';
    for (int i = 0; i < 5; i++)
        if (json_is_string(v) && !strcmp(json_string_value(v), words[i]))
            return i < 2 ? '0' : '1';
    return 0;
}

/* A word or number for each layer. */
static int read_layers(struct reader *r, const struct ap_at *at, const json_t *v,
                       char *pattern)
{
    size_t layers = (size_t)r->config->size[MODEL_LAYERS], i;
    json_t *value;

    if (json_array_size(v) != layers)
        return ap_at_err(at, r->err, "expected an array of %zu, the layers", layers);
    json_array_foreach((json_t *)(uintptr_t)v, i, value)
    {
        const struct ap_at here = {at, NULL, (long)i};
        pattern[i] = layer_digit(value);
        if (!pattern[i]) {
            ap_at_err(&here, r->err, "such layers are not built");
            return not_built(r);
        }
    }
    return 0;
}

/* The numbers of layers that get the digit. */
static int read_numbers(struct reader *r, const struct ap_at *at, const json_t *v,
                        char digit, char *pattern)
{
    int64_t layers = r->config->size[MODEL_LAYERS];
    json_t *value;
    size_t i;

    if (!json_is_array(v))
        return ap_at_err(at, r->err, "expected an array or null");
    json_array_foreach((json_t *)(uintptr_t)v, i, value)
    {
        const struct ap_at here = {at, NULL, (long)i};
        int64_t layer = json_integer_value(value);
        if (!json_is_integer(value) || layer < 0)
            return ap_at_err(&here, r->err, "expected the number of a layer");
        if (layer < layers)
            pattern[layer] = digit;
    }
    return 0;
}

static int read_pattern(struct reader *r, const struct field *f, const struct ap_at *at,
                        const json_t *v)
{
    const char **pattern = (const char **)(void *)((char *)r->style + f->at);
    int64_t period = json_integer_value(v), layers = r->config->size[MODEL_LAYERS];
    bool by_period = f->kind == LAST_OFF || f->kind == LAST_ON;

    if (json_is_null(v))
        return 0;
    if (f->kind == PATTERN) {
        *pattern = ap_arena_strdup(r->arena, json_string_value(v));
        return 0;
    }
    if (by_period && (!json_is_integer(v) || period < 1 || period > 1 << 16))
        return ap_at_err(at, r->err, "expected an integer from 1 to 65536");
    char *made = AP_NEW_N(r->arena, (by_period ? period : layers) + 1, char);
    if (by_period) {
        memset(made, f->kind == LAST_OFF ? '1' : '0', (size_t)period);
        made[period - 1] = f->kind == LAST_OFF ? '0' : '1';
    } else if (f->kind == LAYERS) {
        if (read_layers(r, at, v, made))
            return -1;
    } else {
        const char *old = f->kind == EXCEPT && *pattern ? *pattern : NULL;
        for (int64_t i = 0; i < layers; i++)
            made[i] = old ? old[(size_t)i % strlen(old)] : f->kind == EXCEPT ? '1' : '0';
        if (read_numbers(r, at, v, f->kind == EXCEPT ? '0' : '1', made))
            return -1;
    }
    *pattern = made;
    return 0;
}

/* ---- members ---- */

static int read_limit(struct reader *r, const struct ap_at *at, const json_t *v)
{
    int64_t most = json_integer_value(v);
    if (!json_is_integer(v) || most < 1)
        return ap_at_err(at, r->err, "expected an integer > 0");
    if (most < model_find_family(r->config->family)->size[MODEL_SEQ])
        r->config->size[MODEL_SEQ] = most;
    return 0;
}

static void set_biases(struct model_style *style, size_t which, bool on)
{
    style->qkv_bias = which & 1 ? on : style->qkv_bias;
    style->out_bias = which & 2 ? on : style->out_bias;
    style->mlp_bias = which & 4 ? on : style->mlp_bias;
}

/* The kinds that are true or false. */
static int read_flag(struct reader *r, const struct field *f, const struct ap_at *at,
                     const json_t *v)
{
    char *place = (char *)r->style + f->at;
    bool on = json_is_true(v);

    if (!json_is_boolean(v) && !(f->kind == NOT && json_is_null(v)))
        return ap_at_err(at, r->err, "expected true or false");
    if (f->kind == SWITCH || f->kind == TIED)
        r->config->size[f->kind == TIED ? MODEL_UNTIED : f->at] =
            on == (f->kind == SWITCH) ? 1 : -1;
    else if (f->kind == BIASES)
        set_biases(r->style, f->at, on);
    else if (f->kind == UNLESS)
        *(int *)(void *)place = on ? *(int *)(void *)place : 0;
    else
        *(bool *)place = on == (f->kind == FLAG);
    return 0;
}

static int read_field(struct reader *r, const struct field *f, const json_t *v)
{
    const struct ap_at at = {NULL, own_name(r, f->key), 0};
    char *place = (char *)r->style + f->at;
    double value = 0;

    switch (f->kind) {
    case SIZE:
    case OPTION:
        return read_size(r, f, &at, v);
    case SWITCH:
    case TIED:
    case FLAG:
    case NOT:
    case UNLESS:
    case BIASES:
        return read_flag(r, f, &at, v);
    case COUNT:
        if (!json_is_null(v) && (!json_is_integer(v) || json_integer_value(v) < 1))
            return ap_at_err(&at, r->err, "expected an integer > 0 or null");
        *(int64_t *)(void *)place = json_integer_value(v);
        return 0;
    case REAL:
        return read_real(r, &at, v, (double *)(void *)place);
    case WORD:
        return json_is_null(v) ? 0 : read_word(r, &at, v, f->why, (int *)(void *)place);
    case ACT:
        return json_is_null(v) ? 0 : read_act(r, &at, v);
    case SCALAR:
        if (read_real(r, &at, v, &value))
            return -1;
        r->style->score_scale = value > 0 ? 1 / sqrt(value) : 0;
        return 0;
    case LIMIT:
        return read_limit(r, &at, v);
    case ROPE:
        return read_rope(r, &at, v, &r->style->rope_theta);
    case PATTERN:
    case LAST_OFF:
    case LAST_ON:
    case LAYERS:
    case ONLY:
    case EXCEPT:
        return read_pattern(r, f, &at, v);
    case SAME:
    case MUST_BE:
        value = f->kind == SAME ? (double)r->config->size[f->at] : (double)f->at;
        if (json_is_null(v) || is_number(v, value))
            return 0;
        ap_at_err(&at, r->err, "expected %g: %s", value,
                  f->why ? f->why : "no other number is built");
        return not_built(r);
    case LEFT_OUT:
        if (json_object_get(r->top, at.key) && !json_is_null(v) && !json_is_false(v) &&
            !is_number(v, 0) && !(json_is_object(v) && json_object_size(v) == 0))
            note(r, at.key, f->why);
        return 0;
    }
    return 0;
}

/* What several members say together. */
static int join_members(struct reader *r)
{
    struct model_style *style = r->style;
    int64_t *window = &r->config->size[MODEL_WINDOW];

    if (json_is_false(json_object_get(r->all, "use_sliding_window")))
        *window = -1;
    if (style->choice == MODEL_GREEDY)
        style->groups = 0;
    if (style->windows && !strcmp(style->windows, "rotated"))
        style->windows = style->rotated;
    if (style->rotated && !strcmp(style->rotated, "windows"))
        style->rotated = *window > 0 ? style->windows : NULL;
    if (style->windows && strchr(style->windows, '1') && *window <= 0 &&
        json_is_array(json_object_get(r->all, "layer_types")))
        return ap_err_set(r->err, "/layer_types: windows need a sliding_window%s",
                          json_object_get(r->all, "use_sliding_window")
                              ? " and use_sliding_window"
                              : "");
    return 0;
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

/* Puts a member of the file in its place; warns of one that the type does not know. */
static void take_member(struct reader *r, const char *key, json_t *value)
{
    const char *usual = usual_name(r->names, key);
    struct ap_nearest near = {.want = key};
    char meant[AP_MEANT], text[AP_MEANT + 80];
    json_t *known;
    const char *name;
    size_t i;

    if (json_object_get(r->all, usual)) {
        json_object_set(r->all, usual, value);
        return;
    }
    json_array_foreach((json_t *)(uintptr_t)r->ignored, i, known)
    {
        if (matches(json_string_value(known), usual))
            return;
    }
    json_object_foreach(r->all, name, known)
    {
        const char *own = own_name(r, name);
        if (!json_object_get(r->top, own))
            ap_nearest_try(&near, own);
    }
    snprintf(text, sizeof text, "not known for model_type %s, left out%s", r->type,
             ap_nearest_meant(&near, "", meant));
    note(r, key, text);
}

/* "no model_type 'x' is built": with the one that was meant, or all. */
static int refuse_type(struct reader *r, const struct ap_at *at, const json_t *types)
{
    struct ap_nearest near = {.want = r->type};
    struct ap_buf built = {0};
    char meant[AP_MEANT];
    const char *name;
    json_t *type;

    json_object_foreach((json_t *)(uintptr_t)types, name, type)
    {
        if (json_object_get(type, "refused"))
            continue;
        ap_nearest_try(&near, name);
        ap_buf_printf(&built, "%s%s", built.len ? ", " : "", name);
    }
    const char *said = ap_nearest_meant(&near, "", meant);
    if (*said)
        ap_at_err(at, r->err, "no model_type '%s' is built%s", r->type, said);
    else
        ap_at_err(at, r->err, "no model_type '%s' is built, but %s", r->type, built.data);
    ap_buf_free(&built);
    return not_built(r);
}

/* The row of the file's model_type; NULL with the error set. */
static const json_t *find_type(struct reader *r, const json_t *types)
{
    const struct ap_at at = {NULL, "model_type", 0};
    json_t *value;

    if (!json_object_get(r->top, at.key)) {
        ap_at_err(&at, r->err, "missing: this is not the config.json of a model");
        return NULL;
    }
    if (ap_get_str(r->top, NULL, at.key, &r->type, r->err))
        return NULL;
    const json_t *type = json_object_get(types, r->type);
    const char *refused = json_string_value(json_object_get(type, "refused"));
    const char *like = json_string_value(json_object_get(type, "like"));
    const char *part = json_string_value(json_object_get(type, "part"));
    if (!type) {
        refuse_type(r, &at, types);
        return NULL;
    }
    if (refused) {
        ap_at_err(&at, r->err, "%s: %s", r->type, refused);
        not_built(r);
        return NULL;
    }
    if (part) {
        value = json_object_get(r->top, part);
        json_object_set_new(r->all, part, value ? json_incref(value) : json_object());
        r->top = json_object_get(r->all, part);
        if (!json_is_object(r->top)) {
            ap_err_set(r->err, "/%s: expected an object", part);
            return NULL;
        }
    }
    return like ? json_object_get(types, like) : type;
}

static int read_all(struct reader *r, const json_t *table)
{
    const char *key;
    json_t *value;

    if (!json_is_object(r->top))
        return ap_err_set(r->err, "expected an object");
    const json_t *type = find_type(r, json_object_get(table, "types"));
    if (!type)
        return -1;
    r->names = json_object_get(type, "names");
    r->ignored = json_object_get(table, "ignored");
    json_object_update(r->all, json_object_get(type, "built"));
    json_object_foreach(json_object_get(type, "members"), key, value)
        json_object_set(r->all, usual_name(r->names, key), value);
    r->config->family =
        model_find_family(json_string_value(json_object_get(r->all, "family")))->name;
    json_object_foreach((json_t *)(uintptr_t)r->top, key, value)
        take_member(r, key, value);
    for (int i = 0; i < N_FIELDS; i++) {
        value = json_object_get(r->all, fields[i].key);
        if (value && read_field(r, &fields[i], value))
            return -1;
    }
    return join_members(r);
}

static json_t *load_own(const char *text)
{
    json_error_t where;
    json_t *o = json_loads(text, 0, &where);
    assert(o);
    return o;
}

/* The configuration `top` of a file, or with `name` the one of this name. */
static int read_top(struct ap_arena *arena, struct reader *r, const char *name,
                    struct ap_err *err)
{
    struct ap_err why = {{0}};
    json_t *table = load_own(model_types_text);
    const char *path = json_string_value(json_object_get(r->top, "_name_or_path"));

    r->arena = arena;
    r->style = AP_NEW(arena, struct model_style);
    r->err = &why;
    r->all = json_object();
    *r->config = (struct model_config){.style = r->style};
    int rc = read_all(r, table);
    if (!rc)
        r->config->name = ap_arena_strdup(arena, name            ? name
                                                 : path && *path ? path
                                                                 : r->type);
    json_decref(r->all);
    json_decref(table);
    if (rc)
        ap_err_set(err, "%s: %s", r->file, why.msg);
    return !rc ? AP_OK : r->usage ? AP_USAGE : AP_BAD_INPUT;
}

int model_read_config(struct ap_arena *arena, const char *path, bool quiet,
                      struct model_config *config, struct ap_err *err)
{
    struct reader r = {.file = path, .config = config, .quiet = quiet};
    json_error_t where;
    char *text;
    size_t len;

    if (ap_read_file(arena, path, false, &text, &len, err))
        return AP_BAD_INPUT;
    json_t *top = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
    if (!top) {
        ap_err_set(err, "%s:%d:%d: %s", path, where.line, where.column, where.text);
        return AP_BAD_INPUT;
    }
    r.top = top;
    int rc = read_top(arena, &r, NULL, err);
    json_decref(top);
    return rc;
}

bool model_named_config(struct ap_arena *arena, const char *name,
                        struct model_config *config)
{
    struct reader r = {.file = name, .config = config, .quiet = true};
    struct ap_err err = {{0}};
    json_t *all = load_own(model_configs_text);

    r.top = json_object_get(all, name);
    if (r.top && read_top(arena, &r, name, &err))
        assert(false);
    json_decref(all);
    return r.top != NULL;
}

const struct model_name *model_named_configs(struct ap_arena *arena, int *n)
{
    json_t *all = load_own(model_configs_text), *one;
    struct model_name *names =
        AP_NEW_N(arena, (int64_t)json_object_size(all), struct model_name);
    const char *key;

    *n = 0;
    json_object_foreach(all, key, one)
    {
        names[(*n)++] = (struct model_name){
            ap_arena_strdup(arena, key),
            ap_arena_strdup(arena,
                            json_string_value(json_object_get(one, "model_type")))};
    }
    json_decref(all);
    return names;
}
