/*
 * Values of config.json: what a member of each kind says of sizes and style, and errors
 * at its JSON pointer. Patterns of layers come from words, numbers, periods and lists.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "tool/tool.h"

/* ---- values ---- */

static bool is_number(const json_t *v, double want)
{
    if (json_is_boolean(v))
        return json_is_true(v) == (want != 0) && (want == 0 || want == 1);
    return json_is_number(v) && json_number_value(v) == want;
}

void config_note(const struct config_reader *r, const char *key, const char *what)
{
    if (!r->quiet)
        ap_warn("%s: /%s: %s", r->file, key, what);
}

int config_not_built(struct config_reader *r)
{
    r->usage = true;
    return -1;
}

/* The type's own name of a member. */
const char *config_own_name(const struct config_reader *r, const char *usual)
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

const char *config_usual_name(const json_t *names, const char *own)
{
    const char *usual = json_string_value(json_object_get(names, own));
    return usual ? usual : own;
}

static int read_act(struct config_reader *r, const struct ap_at *at, const json_t *v)
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
    return config_not_built(r);
}

/* {"rope_type" or "type": name, "rope_theta": number, ...} or null; or an object of these
 * by kind of layer. */
static int read_rope(struct config_reader *r, const struct ap_at *at, const json_t *o,
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
        config_note(r, at->up ? at->up->key : at->key,
                    "frequencies stay those of rope_theta: no shape depends on them");
    return 0;
}

static int read_size(struct config_reader *r, const struct config_field *f,
                     const struct ap_at *at, const json_t *v)
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

static int read_real(const struct config_reader *r, const struct ap_at *at,
                     const json_t *v, double *out)
{
    *out = json_is_null(v) ? 0 : json_number_value(v);
    if ((json_is_number(v) || json_is_null(v)) && isfinite(*out) && *out >= 0)
        return 0;
    return ap_at_err(at, r->err, "expected a number >= 0");
}

/* The place of v among words that a space parts. */
static int read_word(struct config_reader *r, const struct ap_at *at, const json_t *v,
                     const char *words, int *out)
{
    const char *name = json_string_value(v);
    size_t len = name ? strlen(name) : 0;

    *out = 0;
    for (const char *w = words; *w && len; w += strcspn(w, " "), w += *w == ' ', ++*out)
        if (strcspn(w, " ") == len && !strncmp(w, name, len))
            return 0;
    ap_at_err(at, r->err, "expected one of: %s", words);
    return config_not_built(r);
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
static int read_layers(struct config_reader *r, const struct ap_at *at, const json_t *v,
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
            return config_not_built(r);
        }
    }
    return 0;
}

/* The numbers of layers that get the digit. */
static int read_numbers(struct config_reader *r, const struct ap_at *at, const json_t *v,
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

static int read_pattern(struct config_reader *r, const struct config_field *f,
                        const struct ap_at *at, const json_t *v)
{
    const char **pattern = (const char **)(void *)((char *)r->style + f->at);
    int64_t period = json_integer_value(v), layers = r->config->size[MODEL_LAYERS];
    bool by_period = f->kind == LAST_OFF || f->kind == LAST_ON;

    if (json_is_null(v))
        return 0;
    if (f->kind == PATTERN && json_string_length(v) == 0)
        return ap_at_err(at, r->err, "expected a digit for each layer");
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

/* The one part that each layer has: letters, or words for them. */
static int read_mixers(struct config_reader *r, const struct ap_at *at, const json_t *v)
{
    static const char words[] = "linear_attention full_attention mlp moe mamba attention";
    static const char letters[] = "M*-EM*";
    const char *given = json_string_value(v);
    int64_t n = given ? (int64_t)strlen(given) : (int64_t)json_array_size(v);
    char *made = AP_NEW_N(r->arena, n + 1, char);
    int word;

    if (json_is_null(v))
        return 0;
    for (int64_t i = 0; i < n; i++) {
        const struct ap_at here = {at, NULL, (long)i};
        const json_t *one = given ? NULL : json_array_get(v, (size_t)i);
        if (one && read_word(r, &here, one, words, &word))
            return -1;
        made[i] = one ? letters[word] : given[i];
        if (!strchr(letters, made[i])) {
            ap_at_err(&here, r->err, "no layer '%c' is built", made[i]);
            return config_not_built(r);
        }
    }
    if (n < 1 || n > 1 << 16)
        return ap_at_err(at, r->err, "expected 1 to 65536 layers");
    r->style->mixers = made;
    r->config->size[MODEL_LAYERS] = n;
    return 0;
}

/* ---- members ---- */

static int read_limit(struct config_reader *r, const struct ap_at *at, const json_t *v)
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
static int read_flag(struct config_reader *r, const struct config_field *f,
                     const struct ap_at *at, const json_t *v)
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

int config_read_field(struct config_reader *r, const struct config_field *f,
                      const json_t *v)
{
    const struct ap_at at = {NULL, config_own_name(r, f->key), 0};
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
    case MIXERS:
        return read_mixers(r, &at, v);
    case SAME:
    case MUST_BE:
        value = f->kind == SAME ? (double)r->config->size[f->at] : (double)f->at;
        if (json_is_null(v) || is_number(v, value))
            return 0;
        ap_at_err(&at, r->err, "expected %g: %s", value,
                  f->why ? f->why : "no other number is built");
        return config_not_built(r);
    case LEFT_OUT:
        if (json_object_get(r->top, at.key) && !json_is_null(v) && !json_is_false(v) &&
            !is_number(v, 0) && !(json_is_object(v) && json_object_size(v) == 0))
            config_note(r, at.key, f->why);
        return 0;
    }
    return 0;
}
