/*
 * Hugging Face's config.json as a family, sizes and a style. types.json has the
 * model_types: how each is built, its own names of members, and the defaults that
 * `transformers` gives to absent ones; the table below says what a member means, by its
 * usual name. Members that a type does not know are named in a warning; those that ask
 * for a model that is not built are errors at their JSON pointer. Source: the
 * configuration classes of `transformers` (scripts/torch/config-types compares).
 */
#include "config.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "tool/tool.h"

extern const char model_types_text[];   /* types.json */
extern const char model_configs_text[]; /* configs/: {name: config.json, ...} */

#define STYLE(member) offsetof(struct model_style, member)

/* Rows are read in this order: a later one replaces what an earlier one says. */
static const struct config_field fields[] = {
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
    {"num_nextn_predict_layers", LEFT_OUT, 0,
     "multi-token prediction is left out but for --mtp"},
    /* scans */
    {"hybrid_override_pattern", MIXERS, 0, NULL},
    {"layers_block_type", MIXERS, 0, NULL},
    {"mamba_num_heads", COUNT, STYLE(scan_heads), NULL},
    {"mamba_head_dim", COUNT, STYLE(scan_width), NULL},
    {"ssm_state_size", COUNT, STYLE(scan_states), NULL},
    {"n_groups", COUNT, STYLE(scan_groups), NULL},
    {"conv_kernel", COUNT, STYLE(scan_conv), NULL},
    {"chunk_size", COUNT, STYLE(scan_chunk), NULL},
    {"time_step_min", REAL, STYLE(scan_least), NULL},
    {"use_conv_bias", FLAG, STYLE(conv_bias), NULL},
    {"scan_bias", FLAG, STYLE(scan_bias), NULL},
    {"moe_latent_size", MUST_BE, 0, "experts of another width are not built"},
    {"untied", MUST_BE, 0, "a tied head is not built"},
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

/* What several members say together. */
static int join_members(struct config_reader *r)
{
    struct model_style *style = r->style;
    int64_t *window = &r->config->size[MODEL_WINDOW];

    if (json_is_false(json_object_get(r->all, "use_sliding_window")))
        *window = -1;
    if (style->rope_share > 1)
        return ap_err_set(r->err, "/partial_rotary_factor: expected at most 1");
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
static void take_member(struct config_reader *r, const char *key, json_t *value)
{
    const char *usual = config_usual_name(r->names, key);
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
        const char *own = config_own_name(r, name);
        if (!json_object_get(r->top, own))
            ap_nearest_try(&near, own);
    }
    snprintf(text, sizeof text, "not known for model_type %s, left out%s", r->type,
             ap_nearest_meant(&near, "", meant));
    config_note(r, key, text);
}

/* "no model_type 'x' is built": with the one that was meant, or all. */
static int refuse_type(struct config_reader *r, const struct ap_at *at,
                       const json_t *types)
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
    return config_not_built(r);
}

/* The row of the file's model_type; NULL with the error set. */
static const json_t *find_type(struct config_reader *r, const json_t *types)
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
        config_not_built(r);
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

static int read_all(struct config_reader *r, const json_t *table)
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
        json_object_set(r->all, config_usual_name(r->names, key), value);
    r->config->family =
        model_find_family(json_string_value(json_object_get(r->all, "family")))->name;
    json_object_foreach((json_t *)(uintptr_t)r->top, key, value)
        take_member(r, key, value);
    for (int i = 0; i < N_FIELDS; i++) {
        value = json_object_get(r->all, fields[i].key);
        if (value && config_read_field(r, &fields[i], value))
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
static int read_top(struct ap_arena *arena, struct config_reader *r, const char *name,
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
    struct config_reader r = {.file = path, .config = config, .quiet = quiet};
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
    struct config_reader r = {.file = name, .config = config, .quiet = true};
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
