/* Decoders: GPT, and with mixtures of experts in some layers GShard's MoE and M6-MoE. */
#include "model.h"

static int decoder(struct model *m, const char *root, bool mixed)
{
    int64_t dims[2] = {m->size[MODEL_BATCH], m->size[MODEL_SEQ]};
    int64_t hidden = m->size[MODEL_HIDDEN], vocab = m->size[MODEL_VOCAB];
    struct model_block dense, moe;
    int table;

    if (m->size[MODEL_HEAD_DIM] < 0 && model_check_divides(m, MODEL_HIDDEN, MODEL_HEADS))
        return -1;
    if (m->size[MODEL_KV_HEADS] > 0 &&
        model_check_divides(m, MODEL_HEADS, MODEL_KV_HEADS))
        return -1;
    if (model_check_positions(m))
        return -1;
    model_block_init(m, &dense);
    dense.causal = true;
    moe = dense;
    if (mixed)
        model_block_experts(m, &moe, dims[1]);
    int tokens = model_input(m, "tokens", AP_S32, 2, dims);
    int labels = model_input(m, "labels", AP_S32, 2, dims);
    int x = model_embed(m, model_path(m, "%s/wte", root), tokens, vocab, hidden, &table);
    x = model_add_positions(m, model_path(m, "%s/wpe", root), x);
    x = model_dropout(m, x);
    x = model_stack(m, model_path(m, "%s/h_", root), &dense, mixed ? &moe : NULL, x, -1,
                    -1);
    x = model_layer_norm(m, model_path(m, "%s/ln_f", root), x);
    const char *head = model_path(m, "%s/head", root);
    if (model_flag(m, MODEL_UNTIED))
        return model_loss(
            m, model_dense(m, head, x, vocab, model_flag(m, MODEL_HEAD_BIAS)), labels);
    x = model_tied_head(m, head, x, table);
    if (model_flag(m, MODEL_HEAD_BIAS))
        x = model_bias(m, head, x);
    return model_loss(m, x, labels);
}

int model_gpt(struct model *m)
{
    return decoder(m, "gpt", false);
}

int model_moe(struct model *m)
{
    return decoder(m, "moe", true);
}

int model_m6_moe(struct model *m)
{
    return decoder(m, "m6", true);
}
