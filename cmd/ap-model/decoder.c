/*
 * Decoders: GPT with learned positions, MoE and M6-MoE with mixtures of experts in some
 * layers, and those with rotary embedding: Llama, Mixtral, DeepSeek, Gemma, Qwen and the
 * other model_types of config.json. They are one function; sizes and styles are rows of
 * table.c or come from a config.json.
 */
#include "model.h"

#include <math.h>
#include <string.h>

#define MTP_WEIGHT 0.3 /* DeepSeek-V3, section 4.2 */

static int check_even(struct model *m, enum model_size s, int64_t size)
{
    if (size % 2 == 0)
        return 0;
    return ap_err_set(m->err, "--%s %lld: rotary embedding needs an even number",
                      model_sizes[s].name, (long long)size);
}

/* Rotated features of a head that has no latent keys. */
static int64_t turned(const struct model *m, int64_t head_dim)
{
    double share = m->style.rope_share;
    if (m->style.rope_width)
        return m->style.rope_width < head_dim ? m->style.rope_width : head_dim;
    return share > 0 ? (int64_t)((double)head_dim * share) : head_dim;
}

static int check_experts(struct model *m)
{
    int64_t experts = m->size[MODEL_EXPERTS], group = m->size[MODEL_GROUP];

    if (group > 0 && group < m->size[MODEL_SEQ] &&
        model_check_divides(m, MODEL_SEQ, MODEL_GROUP))
        return -1;
    if (m->style.groups > 1 && experts % m->style.groups != 0)
        return ap_err_set(m->err, "--experts %lld is not a multiple of %lld groups",
                          (long long)experts, (long long)m->style.groups);
    int64_t choice =
        m->style.groups > 1 ? experts / m->style.groups * m->style.top_groups : experts;
    if (m->size[MODEL_TOP] > choice)
        return ap_err_set(m->err, "--top %lld of %lld experts: the %lld best groups",
                          (long long)m->size[MODEL_TOP], (long long)choice,
                          (long long)m->style.top_groups);
    return 0;
}

static int check_scan(struct model *m)
{
    const struct model_style *style = &m->style;
    int64_t seq = m->size[MODEL_SEQ], chunk = style->scan_chunk;

    if (!style->scan_heads || !style->scan_width || !style->scan_states ||
        !style->scan_groups || !style->scan_conv || !style->scan_chunk)
        return ap_err_set(m->err, "a size of the scan is missing");
    if (style->scan_heads % style->scan_groups != 0)
        return ap_err_set(m->err,
                          "%lld heads of the scan are not a multiple of %lld groups",
                          (long long)style->scan_heads, (long long)style->scan_groups);
    if (seq > chunk && seq % chunk != 0)
        return ap_err_set(m->err,
                          "--seq %lld is not a multiple of %lld, the scan's chunk",
                          (long long)seq, (long long)chunk);
    return 0;
}

/* -1 with m->err set when the sizes do not go together. */
static int check_sizes(struct model *m)
{
    int64_t head_dim =
        model_get(m, MODEL_HEAD_DIM, m->size[MODEL_HIDDEN] / m->size[MODEL_HEADS]);

    if (m->size[MODEL_KV_HEADS] > 0 &&
        model_check_divides(m, MODEL_HEADS, MODEL_KV_HEADS))
        return -1;
    if (m->size[MODEL_HEAD_DIM] < 0 && model_check_divides(m, MODEL_HIDDEN, MODEL_HEADS))
        return -1;
    if (!m->style.rope && model_check_positions(m))
        return -1;
    if (m->size[MODEL_KV_RANK] > 0 &&
        check_even(m, MODEL_ROPE_DIM, m->size[MODEL_ROPE_DIM]))
        return -1;
    if (m->style.rope && m->size[MODEL_KV_RANK] <= 0 &&
        check_even(m, MODEL_HEAD_DIM, turned(m, head_dim)))
        return -1;
    if (m->style.mixers && strchr(m->style.mixers, 'M') && check_scan(m))
        return -1;
    if (m->size[MODEL_MTP] >= m->size[MODEL_SEQ])
        return ap_err_set(m->err, "--mtp: expected less than --seq");
    if (m->size[MODEL_MTP] > 0 && m->style.mixers)
        return ap_err_set(m->err, "--mtp: with layers of one part it is not built");
    return m->size[MODEL_EXPERTS] > 0 ? check_experts(m) : 0;
}

/* The block of dense layers, and that of layers with experts. */
static void set_blocks(const struct model *m, struct model_block *dense,
                       struct model_block *moe)
{
    const struct model_style *style = &m->style;
    bool latent = m->size[MODEL_KV_RANK] > 0;

    model_block_init(m, dense);
    if (style->rope)
        dense->names = &model_gated_names;
    dense->causal = true;
    dense->norm = style->norm;
    dense->latent = latent;
    dense->turned = !style->rope ? 0
                    : latent     ? m->size[MODEL_ROPE_DIM]
                                 : turned(m, dense->head_dim);
    int64_t width = dense->head_dim + (latent ? dense->turned : 0);
    dense->scale = style->score_scale > 0 ? style->score_scale : 1 / sqrt((double)width);
    dense->qkv_bias = style->qkv_bias;
    dense->out_bias = style->out_bias;
    dense->mlp_bias = style->mlp_bias;
    dense->window = model_get(m, MODEL_WINDOW, 0);
    *moe = *dense;
    if (m->size[MODEL_EXPERTS] <= 0)
        return;
    model_block_experts(m, moe, m->size[MODEL_SEQ]);
    moe->ffn = model_get(m, MODEL_EXPERT_FFN, dense->ffn);
    moe->shared_ffn = style->shared_ffn
                          ? style->shared_ffn
                          : model_get(m, MODEL_SHARED_EXPERTS, 0) * moe->ffn;
}

/* The pattern's character of layer i is 1; NULL has ones alone. */
static bool at(const char *pattern, int64_t i)
{
    return !pattern || pattern[(size_t)i % strlen(pattern)] == '1';
}

/* Layer i; layers after the last are those of multi-token prediction. */
static int layer(struct model *m, int64_t i, int x)
{
    const struct model_style *style = &m->style;
    int64_t first =
        m->size[MODEL_EXPERTS] > 0 ? model_get(m, MODEL_DENSE_LAYERS, 0) : INT64_MAX;
    int64_t every = model_get(m, MODEL_MOE_EVERY, 1);
    struct model_block dense, moe;

    set_blocks(m, &dense, &moe);
    char kind = style->mixers ? style->mixers[(size_t)i % strlen(style->mixers)] : 0;
    bool mixed =
        kind ? kind == 'E' : i >= first && i % every == every - 1 && at(style->mixed, i);
    struct model_block block = mixed ? moe : dense;
    block.theta = style->rope_theta;
    if (!at(style->windows, i))
        block.window = 0;
    else if (style->window_theta > 0)
        block.theta = style->window_theta;
    if (!at(style->rotated, i))
        block.turned = 0;
    const char *path = model_path(m, "%s/h_%lld", m->family, (long long)i);
    return kind ? model_single(m, path, &block, kind, x)
                : model_transformer(m, path, &block, x, -1, -1);
}

static int scaled(struct model *m, int x, double factor)
{
    return factor == 0 || factor == 1 ? x
                                      : ap_build_with(&m->b, AP_OP_MULTIPLY, x, factor);
}

/* Rows of the table of tokens, under a scope. */
static int embed(struct model *m, const char *scope, int tokens, int *table)
{
    const struct model_style *style = &m->style;
    const int64_t hidden = m->size[MODEL_HIDDEN],
                  dims[2] = {m->size[MODEL_VOCAB], hidden};

    *table = model_weight(m, model_path(m, "%s/wte", m->family), NULL, 2, dims);
    model_scope(m, "%s", scope);
    int x = ap_build_take(&m->b, *table, tokens);
    return scaled(m, x, style->scale_embed ? sqrt((double)hidden) : style->embed_scale);
}

/* Logits of normed values; all heads have one weight. */
static int head(struct model *m, const char *scope, int x, int table)
{
    const struct model_style *style = &m->style;
    const bool bias = model_flag(m, MODEL_HEAD_BIAS);

    model_share(m, scope, model_path(m, "%s/head", m->family));
    if (model_flag(m, MODEL_UNTIED)) {
        x = model_dense(m, scope, x, m->size[MODEL_VOCAB], bias);
    } else {
        x = model_tied_head(m, scope, x, table);
        x = bias ? model_bias(m, scope, x) : x;
    }
    model_share(m, NULL, NULL);
    x = scaled(m, x,
               style->logit_divide > 0 ? 1 / style->logit_divide : style->logit_scale);
    return model_cap(m, x, style->logit_cap);
}

/* Tokens so many places further; zeros at the end. */
static int further(struct model *m, int tokens, int64_t n)
{
    const struct ap_pad_dim move[2] = {{0, 0, 0}, {-n, n, 0}};
    return ap_build_pad(&m->b, tokens, ap_build_scalar(&m->b, AP_S32, 0), move);
}

/* The mean loss of rows that have a token n places further, of these alone. */
static int further_loss(struct model *m, int logits, int labels, int64_t n)
{
    const int64_t seq = m->size[MODEL_SEQ];
    int loss = model_cross_entropy(m, logits, further(m, labels, n));
    const struct ap_shape s = *ap_build_shape_of(&m->b, loss);
    const struct ap_shape places = ap_build_shape(&m->b, AP_S32, s.rank, s.dims);
    int place = ap_build_iota(&m->b, places, 1);
    int inside = ap_build_compare(&m->b, AP_LT, place,
                                  ap_build_full(&m->b, &places, (double)(seq - n)));
    loss = ap_build_select(&m->b, inside, loss, ap_build_full(&m->b, &s, 0));
    return scaled(m, model_mean_all(m, loss), (double)seq / (double)(seq - n));
}

/*
 * Multi-token prediction (DeepSeek-V3, section 2.2): layer k reads the values of the one
 * before and the embedding of the token k places further, and predicts the token after
 * that; the mean of the losses has a weight. x: normed, as all layers leave it.
 */
static int predict_further(struct model *m, int x, int labels, int loss)
{
    const int64_t n = model_get(m, MODEL_MTP, 0), hidden = m->size[MODEL_HIDDEN];
    const enum model_norm norm = m->style.norm;
    int table;

    for (int64_t k = 0; k < n; k++) {
        const int64_t i = m->size[MODEL_LAYERS] + k;
        const char *path = model_path(m, "%s/h_%lld", m->family, (long long)i);
        model_scope(m, "%s/embed", path);
        int next = k ? further(m, labels, k) : labels;
        int both[2] = {x, embed(m, model_path(m, "%s/embed", path), next, &table)};
        both[0] = model_norm(m, norm, model_path(m, "%s/hnorm", path), both[0]);
        both[1] = model_norm(m, norm, model_path(m, "%s/enorm", path), both[1]);
        model_scope(m, "%s/eh_proj", path);
        x = ap_build_concat(&m->b, 2, both, 2);
        x = model_dense(m, model_path(m, "%s/eh_proj", path), x, hidden, false);
        x = model_norm(m, norm, model_path(m, "%s/ln_f", path), layer(m, i, x));
        int logits = head(m, model_path(m, "%s/head", path), x, table);
        model_scope(m, "%s/loss", path);
        int own =
            scaled(m, further_loss(m, logits, labels, k + 1), MTP_WEIGHT / (double)n);
        loss = model_add(m, loss, own);
    }
    return loss;
}

int model_decoder(struct model *m)
{
    int64_t dims[2] = {m->size[MODEL_BATCH], m->size[MODEL_SEQ]};
    const char *root = m->family;
    const struct model_style *style = &m->style;
    int table;

    if (check_sizes(m))
        return -1;
    int tokens = model_input(m, "tokens", AP_S32, 2, dims);
    int labels = model_input(m, "labels", AP_S32, 2, dims);
    int x = embed(m, model_path(m, "%s/wte", root), tokens, &table);
    if (!style->rope)
        x = model_dropout(m, model_add_positions(m, model_path(m, "%s/wpe", root), x));
    for (int64_t i = 0; i < m->size[MODEL_LAYERS]; i++)
        x = layer(m, i, x);
    x = model_norm(m, style->norm, model_path(m, "%s/ln_f", root), x);
    int logits = head(m, model_path(m, "%s/head", root), x, table);
    model_scope(m, "loss");
    int loss = model_mean_all(m, model_cross_entropy(m, logits, labels));
    return model_balanced(m, predict_further(m, x, labels, loss));
}
