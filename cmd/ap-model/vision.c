/*
 * Vision transformers: ViT, V-MoE (mixtures of experts in some layers), WideNet (all
 * layers share attention and experts, each has its own norms), and CLIP, which brings
 * images and texts together.
 */
#include "model.h"

#include <math.h>

static int check(struct model *m)
{
    return model_check_divides(m, MODEL_HIDDEN, MODEL_HEADS) ||
           model_check_divides(m, MODEL_IMAGE, MODEL_PATCH);
}

/* [batch, 1 + patches, hidden]: a learned vector, then the patches, with positions. */
static int patches(struct model *m, const char *root, int image)
{
    struct ap_build *b = &m->b;
    int64_t hidden = m->size[MODEL_HIDDEN], patch = m->size[MODEL_PATCH];
    struct model_conv conv = {
        .n_out = hidden, .size = patch, .stride = patch, .bias = true};

    int x = model_convolve(m, model_path(m, "%s/embedding", root), image, &conv);
    int64_t batch = model_dim(m, x, 0), side = model_dim(m, x, 1);
    int64_t dims[3] = {batch, side * side, hidden}, first_dims[3] = {batch, 1, hidden};
    static const int64_t map = 2;
    x = ap_build_reshape(b, x, 3, dims);
    int cls = model_weight(m, root, "cls", 1, &hidden);
    model_scope(m, "%s/cls", root);
    int parts[2] = {ap_build_broadcast(b, cls, 3, first_dims, &map), x};
    x = ap_build_concat(b, 2, parts, 1);
    return model_add_positions(m, model_path(m, "%s/position", root), x);
}

/* On image [batch, image, image, 3]: [batch, 1 + patches, hidden]. */
static int vision(struct model *m, const char *root, int image)
{
    int x = patches(m, root, image);
    struct model_block block, moe;

    model_block_init(m, &block);
    if (m->size[MODEL_EXPERTS] > 0)
        model_block_experts(m, &block, model_dim(m, x, 1));
    moe = block;
    block.experts = 0;
    if (m->share_layers)
        moe.weights = block.weights = model_path(m, "%s/encoder/shared_layer", root);
    x = model_stack(m, model_path(m, "%s/encoder/layer_", root), &block,
                    moe.experts ? &moe : NULL, x, -1, -1);
    return model_norm(m, MODEL_NORM_LAYER, model_path(m, "%s/encoder/ln_f", root), x);
}

static int classifier(struct model *m, const char *root)
{
    if (check(m))
        return -1;
    int image = model_image(m, 3), label = model_label(m);
    int x = vision(m, root, image);
    model_scope(m, "%s/head", root);
    x = model_row(m, x, 0);
    x = model_dense(m, model_path(m, "%s/head", root), x, m->size[MODEL_CLASSES], true);
    return model_loss(m, x, label);
}

int model_vit(struct model *m)
{
    return classifier(m, "vit");
}

int model_v_moe(struct model *m)
{
    return classifier(m, "v_moe");
}

int model_widenet(struct model *m)
{
    m->share_layers = true;
    return classifier(m, "widenet");
}

/* ---- CLIP ---- */

/* The text tower has the image tower's layers, with 64 wide heads of its own width. */
static int text(struct model *m, int tokens)
{
    int64_t width = m->size[MODEL_TEXT_HIDDEN];
    struct model_block block;

    model_block_init(m, &block);
    block.heads = block.kv_heads = width / 64 > 0 ? width / 64 : 1;
    block.head_dim = width / block.heads;
    block.scale = 1 / sqrt((double)block.head_dim);
    block.ffn = 4 * width;
    block.causal = true;
    int x = model_embed(m, "clip/text/wte", tokens, m->size[MODEL_VOCAB], width, NULL);
    x = model_add_positions(m, "clip/text/wpe", x);
    x = model_stack(m, "clip/text/layer_", &block, NULL, x, -1, -1);
    x = model_norm(m, MODEL_NORM_LAYER, "clip/text/ln_f", x);
    model_scope(m, "clip/text/projection");
    x = model_row(m, x, model_dim(m, x, 1) - 1);
    return model_dense(m, "clip/text/projection", x, m->size[MODEL_EMBED], false);
}

int model_clip(struct model *m)
{
    struct ap_build *b = &m->b;
    int64_t dims[2] = {m->size[MODEL_BATCH], m->size[MODEL_SEQ]};
    static const int64_t one = 1, perm[2] = {1, 0};

    if (check(m))
        return -1;
    int image = model_image(m, 3), tokens = model_input(m, "tokens", AP_S32, 2, dims);
    int x = vision(m, "clip/visual", image);
    model_scope(m, "clip/visual/projection");
    x = model_row(m, x, 0);
    x = model_dense(m, "clip/visual/projection", x, m->size[MODEL_EMBED], false);
    int y = text(m, tokens);
    int scale = model_weight(m, "clip/logit_scale", NULL, 0, NULL);
    model_scope(m, "clip/logits");
    x = model_unit_rows(m, x);
    y = model_unit_rows(m, y);
    int logits = ap_build_matmul(b, x, y, one, one);
    int64_t square[2] = {dims[0], dims[0]};
    scale = ap_build_unary(b, AP_OP_EXPONENTIAL, scale);
    logits = model_mul(m, logits, ap_build_broadcast(b, scale, 2, square, NULL));
    model_scope(m, "loss");
    int own = ap_build_iota(b, ap_build_shape(b, AP_S32, 1, dims), 0);
    int loss = model_mean_all(m, model_cross_entropy(m, logits, own));
    logits = ap_build_transpose(b, logits, perm);
    loss = model_add(m, loss, model_mean_all(m, model_cross_entropy(m, logits, own)));
    return ap_build_with(b, AP_OP_MULTIPLY, loss, 0.5);
}
