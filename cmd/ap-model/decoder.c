/*
 * Decoders with rotary embedding, RMS norms and gated feed-forward parts: Llama, Mixtral,
 * DeepSeek, Gemma, Qwen. They are one function; sizes and styles are rows of table.c or
 * come from a config.json.
 */
#include "model.h"

#include <math.h>

static int check_even(struct model *m, enum model_size s, int64_t size)
{
    if (size % 2 == 0)
        return 0;
    return ap_err_set(m->err, "--%s %lld: rotary embedding needs an even number",
                      model_sizes[s].name, (long long)size);
}

/* -1 with m->err set when the sizes do not go together. */
static int check_sizes(struct model *m)
{
    int64_t experts = m->size[MODEL_EXPERTS], group = m->size[MODEL_GROUP];
    bool latent = m->size[MODEL_KV_RANK] > 0;

    if (m->size[MODEL_KV_HEADS] > 0 &&
        model_check_divides(m, MODEL_HEADS, MODEL_KV_HEADS))
        return -1;
    if (m->size[MODEL_HEAD_DIM] < 0 && model_check_divides(m, MODEL_HIDDEN, MODEL_HEADS))
        return -1;
    if (latent) {
        if (check_even(m, MODEL_ROPE_DIM, m->size[MODEL_ROPE_DIM]))
            return -1;
    } else if (check_even(m, MODEL_HEAD_DIM,
                          model_get(m, MODEL_HEAD_DIM,
                                    m->size[MODEL_HIDDEN] / m->size[MODEL_HEADS]))) {
        return -1;
    }
    if (group > 0 && group < m->size[MODEL_SEQ] &&
        model_check_divides(m, MODEL_SEQ, MODEL_GROUP))
        return -1;
    if (m->style.groups > 1 && experts % m->style.groups != 0)
        return ap_err_set(m->err, "--experts %lld is not a multiple of %lld groups",
                          (long long)experts, (long long)m->style.groups);
    int64_t choice =
        m->style.groups > 1 ? experts / m->style.groups * m->style.top_groups : experts;
    if (experts && m->size[MODEL_TOP] > choice)
        return ap_err_set(m->err, "--top %lld of %lld experts: the %lld best groups",
                          (long long)m->size[MODEL_TOP], (long long)choice,
                          (long long)m->style.top_groups);
    return 0;
}

/* The block of dense layers, and that of layers with experts. */
static void set_blocks(const struct model *m, struct model_block *dense,
                       struct model_block *moe)
{
    const struct model_style *style = &m->style;
    int64_t turned = m->size[MODEL_KV_RANK] > 0 ? m->size[MODEL_ROPE_DIM] : 0;

    model_block_init(m, dense);
    dense->names = &model_gated_names;
    dense->causal = dense->rope = dense->rms = true;
    dense->latent = turned > 0;
    dense->scale = style->score_scale > 0 ? style->score_scale
                                          : 1 / sqrt((double)(dense->head_dim + turned));
    dense->qkv_bias = style->qkv_bias;
    dense->out_bias = style->out_bias;
    dense->mlp_bias = style->mlp_bias;
    dense->window = model_get(m, MODEL_WINDOW, 0);
    *moe = *dense;
    if (m->size[MODEL_EXPERTS] <= 0)
        return;
    model_block_experts(m, moe, m->size[MODEL_SEQ]);
    moe->ffn = model_get(m, MODEL_EXPERT_FFN, dense->ffn);
    moe->shared_ffn = model_get(m, MODEL_SHARED_EXPERTS, 0) * moe->ffn;
}

static int layers(struct model *m, int x)
{
    int64_t dense_layers = m->size[MODEL_EXPERTS] > 0
                               ? model_get(m, MODEL_DENSE_LAYERS, 0)
                               : m->size[MODEL_LAYERS];
    struct model_block dense, moe;

    set_blocks(m, &dense, &moe);
    for (int64_t i = 0; i < m->size[MODEL_LAYERS]; i++) {
        struct model_block block = i < dense_layers ? dense : moe;
        if (m->style.window_every_other && i % 2 == 1)
            block.window = 0;
        x = model_transformer(m, model_path(m, "%s/h_%lld", m->family, (long long)i),
                              &block, x, -1, -1);
    }
    return x;
}

int model_decoder(struct model *m)
{
    int64_t dims[2] = {m->size[MODEL_BATCH], m->size[MODEL_SEQ]};
    int64_t hidden = m->size[MODEL_HIDDEN], vocab = m->size[MODEL_VOCAB];
    const char *root = m->family, *head = model_path(m, "%s/head", root);
    int table;

    if (check_sizes(m))
        return -1;
    int tokens = model_input(m, "tokens", AP_S32, 2, dims);
    int labels = model_input(m, "labels", AP_S32, 2, dims);
    int x = model_embed(m, model_path(m, "%s/wte", root), tokens, vocab, hidden, &table);
    if (m->style.scale_embed)
        x = ap_build_with(&m->b, AP_OP_MULTIPLY, x, sqrt((double)hidden));
    x = layers(m, x);
    x = model_rms_norm(m, model_path(m, "%s/ln_f", root), x);
    x = model_flag(m, MODEL_UNTIED) ? model_dense(m, head, x, vocab, false)
                                    : model_tied_head(m, head, x, table);
    return model_loss(m, model_cap(m, x, m->style.logit_cap), labels);
}
