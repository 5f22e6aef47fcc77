/*
 * Encoders with masked-token and next-sentence losses: BERT, and ALBERT, whose layers
 * share their weights and whose embedding is a product of two factors.
 */
#include "model.h"

struct inputs {
    int tokens, segments, labels, mask, next;
};

static struct inputs read_inputs(struct model *m)
{
    int64_t dims[2] = {m->size[MODEL_BATCH], m->size[MODEL_SEQ]};
    return (struct inputs){.tokens = model_input(m, "tokens", AP_S32, 2, dims),
                           .segments = model_input(m, "segments", AP_S32, 2, dims),
                           .labels = model_input(m, "labels", AP_S32, 2, dims),
                           .mask = model_input(m, "mask", AP_S32, 2, dims),
                           .next = model_input(m, "next_sentence", AP_S32, 1, dims)};
}

static int embeddings(struct model *m, const char *root, const struct inputs *in,
                      int64_t width, int *table)
{
    int x = model_embed(m, model_path(m, "%s/embeddings/word", root), in->tokens,
                        m->size[MODEL_VOCAB], width, table);
    int type = model_embed(m, model_path(m, "%s/embeddings/token_type", root),
                           in->segments, 2, width, NULL);
    x = model_add(m, x, type);
    x = model_add_positions(m, model_path(m, "%s/embeddings/position", root), x);
    x = model_norm(m, MODEL_NORM_LAYER, model_path(m, "%s/embeddings/ln", root), x);
    return model_dropout(m, x);
}

/* Logits of the tokens from a transform of `width`; tied to the word embedding unless
 * --untied. */
static int token_head(struct model *m, const char *root, int x, int64_t width, int table)
{
    int64_t vocab = m->size[MODEL_VOCAB];
    const char *decoder = model_path(m, "%s/cls/decoder", root);

    x = model_dense(m, model_path(m, "%s/cls/transform", root), x, width, true);
    x = model_gelu(m, x);
    x = model_norm(m, MODEL_NORM_LAYER, model_path(m, "%s/cls/ln", root), x);
    if (model_flag(m, MODEL_UNTIED))
        return model_dense(m, decoder, x, vocab, true);
    return model_bias(m, decoder, model_tied_head(m, decoder, x, table));
}

/* Both losses: of the masked tokens, and of the sentences' order. */
static int losses(struct model *m, const char *root, const struct inputs *in, int x,
                  int64_t width, int table)
{
    model_scope(m, "%s/pooler", root);
    int first = model_row(m, x, 0);
    int pooled = model_dense(m, model_path(m, "%s/pooler", root), first,
                             m->size[MODEL_HIDDEN], true);
    pooled = ap_build_unary(&m->b, AP_OP_TANH, pooled);
    int order =
        model_dense(m, model_path(m, "%s/cls/next_sentence", root), pooled, 2, true);
    int logits = token_head(m, root, x, width, table);
    model_scope(m, "loss");
    int tokens =
        model_masked_mean(m, model_cross_entropy(m, logits, in->labels), in->mask);
    return model_add(m, tokens,
                     model_mean_all(m, model_cross_entropy(m, order, in->next)));
}

/* Inputs and embeddings of this width, and a block; -1: the sizes do not fit. */
static int start(struct model *m, const char *root, int64_t width, struct inputs *in,
                 struct model_block *block, int *table)
{
    if (model_check_divides(m, MODEL_HIDDEN, MODEL_HEADS) || model_check_positions(m))
        return -1;
    model_block_init(m, block);
    block->post_norm = true;
    *in = read_inputs(m);
    return embeddings(m, root, in, width, table);
}

int model_bert(struct model *m)
{
    int64_t hidden = m->size[MODEL_HIDDEN];
    struct model_block block;
    struct inputs in;
    int table, x = start(m, "bert", hidden, &in, &block, &table);

    if (x < 0)
        return -1;
    x = model_stack(m, "bert/encoder/layer_", &block, NULL, x, -1, -1);
    return losses(m, "bert", &in, x, hidden, table);
}

int model_albert(struct model *m)
{
    int64_t width = m->size[MODEL_EMBED];
    struct model_block block;
    struct inputs in;
    int table, x = start(m, "albert", width, &in, &block, &table);

    if (x < 0)
        return -1;
    x = model_dense(m, "albert/encoder/embedding_projection", x, m->size[MODEL_HIDDEN],
                    true);
    for (int64_t i = 0; i < m->size[MODEL_LAYERS]; i++) {
        const char *path = model_path(m, "albert/encoder/layer_%lld", (long long)i);
        model_share(m, path, "albert/encoder/shared_layer");
        x = model_transformer(m, path, &block, x, -1, -1);
    }
    model_share(m, NULL, NULL);
    return losses(m, "albert", &in, x, width, table);
}
