/*
 * wav2vec 2.0's pre-training: convolutions on the wave, a transformer on masked frames,
 * and a loss that tells each frame's quantised target from the other frames' of the same
 * utterance. The original draws 100 of those at random; here all are used. Gumbel noise
 * is an input. Source: Baevski et al., "wav2vec 2.0", sections 2 and 3.
 */
#include "model.h"

#define GROUPS      2   /* of codewords */
#define CODEWORDS   320 /* of a group */
#define TEMPERATURE 2.0 /* of the quantiser's softmax */

struct frames {
    int features, mask; /* [batch, frames, 512], [batch, frames] */
};

static int encode(struct model *m, int wave)
{
    static const int64_t sizes[7] = {10, 3, 3, 3, 3, 2, 2};
    static const int64_t strides[7] = {5, 2, 2, 2, 2, 2, 2};
    int64_t dims[3] = {model_dim(m, wave, 0), model_dim(m, wave, 1), 1};

    model_scope(m, "wav2vec2/encoder");
    int x = ap_build_reshape(&m->b, wave, 3, dims);
    for (int i = 0; i < 7; i++) {
        const char *path = model_path(m, "wav2vec2/encoder/conv_%d", i);
        struct model_conv conv = {.n_out = 512,
                                  .size = sizes[i],
                                  .stride = strides[i],
                                  .valid = true,
                                  .bias = true};
        x = model_convolve(m, path, x, &conv);
        x = model_norm(m, MODEL_NORM_LAYER, model_path(m, "%s/ln", path), x);
        x = model_gelu(m, x);
    }
    return model_norm(m, MODEL_NORM_LAYER, "wav2vec2/encoder/ln_f", x);
}

/* Masked frames are one learned vector; positions come from a wide convolution. */
static int context(struct model *m, const struct frames *in)
{
    int64_t hidden = m->size[MODEL_HIDDEN];
    struct model_conv wide = {
        .n_out = hidden, .size = 128, .stride = 1, .groups = 16, .bias = true};
    struct model_block block;

    model_block_init(m, &block);
    int x = model_dense(m, "wav2vec2/projection", in->features, hidden, true);
    int masked = model_weight(m, "wav2vec2", "mask_embedding", 1, &hidden);
    model_scope(m, "wav2vec2/mask");
    int share = model_over(m, ap_build_convert(&m->b, in->mask, AP_F32), x, -1);
    int delta = model_binary(m, AP_OP_SUBTRACT, model_along(m, masked, x, -1), x);
    x = model_add(m, x, model_mul(m, share, delta));
    int y = model_convolve(m, "wav2vec2/position", x, &wide);
    x = model_add(m, x, model_gelu(m, y));
    x = model_stack(m, "wav2vec2/layer_", &block, NULL, x, -1, -1);
    x = model_norm(m, MODEL_NORM_LAYER, "wav2vec2/ln_f", x);
    return model_dense(m, "wav2vec2/project_context", x, m->size[MODEL_EMBED], true);
}

/* Targets [batch, frames, embed]; *diversity: 1 - share of the codewords in use. */
static int quantise(struct model *m, int features, int *diversity)
{
    struct ap_build *b = &m->b;
    int64_t batch = model_dim(m, features, 0), n = model_dim(m, features, 1);
    int64_t dims[4] = {batch, n, GROUPS, CODEWORDS}, embed = m->size[MODEL_EMBED];
    int64_t code_dims[3] = {GROUPS, CODEWORDS, embed / GROUPS};
    static const int64_t group = 2, group_w = 0, inner = 3, inner_w = 1;
    static const int64_t perm[4] = {1, 2, 0, 3}, tokens[2] = {0, 1};

    int noise = model_input(m, "gumbel", AP_F32, 4, dims);
    int codes = model_weight(m, "wav2vec2/quantizer", "codewords", 3, code_dims);
    int x =
        model_dense(m, "wav2vec2/quantizer/logits", features, GROUPS * CODEWORDS, true);
    x = ap_build_reshape(b, x, 4, dims);
    int mean = model_mean(m, model_softmax(m, x), 2, tokens);
    int logs = ap_build_unary(b, AP_OP_LOG, ap_build_with(b, AP_OP_ADD, mean, 1e-7));
    int entropy = model_sum(m, model_mul(m, mean, logs), -1);
    int used =
        ap_build_unary(b, AP_OP_EXPONENTIAL, ap_build_unary(b, AP_OP_NEGATE, entropy));
    int sum = ap_build_reduce(b, used, AP_RED_SUM, 1, &group_w);
    int part = ap_build_with(b, AP_OP_DIVIDE, sum, GROUPS * CODEWORDS);
    *diversity = model_binary(m, AP_OP_SUBTRACT, ap_build_scalar(b, AP_F32, 1), part);
    x = ap_build_with(b, AP_OP_DIVIDE, model_add(m, x, noise), TEMPERATURE);
    x = ap_build_dot(b, model_softmax(m, x), codes,
                     &(struct ap_dot_dims){1, &group, &group_w, 1, &inner, &inner_w});
    x = ap_build_transpose(b, x, perm);
    int64_t flat[3] = {batch, n, embed};
    x = ap_build_reshape(b, x, 3, flat);
    return model_dense(m, "wav2vec2/project_target", x, embed, true);
}

int model_wav2vec2(struct model *m)
{
    struct ap_build *b = &m->b;
    int64_t dims[2] = {m->size[MODEL_BATCH], m->size[MODEL_SEQ]};
    static const int64_t zero = 0, two = 2;

    if (model_check_divides(m, MODEL_HIDDEN, MODEL_HEADS))
        return -1;
    if (dims[1] < 400 || m->size[MODEL_EMBED] % GROUPS || m->size[MODEL_HIDDEN] % 16)
        return ap_err_set(m->err,
                          "--seq, --embed, --hidden: expected at least 400 samples "
                          "and multiples of 2 and 16");
    struct frames in;
    in.features = encode(m, model_input(m, "wave", AP_F32, 2, dims));
    dims[1] = model_dim(m, in.features, 1);
    in.mask = model_input(m, "mask", AP_S32, 2, dims);
    int diversity;
    int target = quantise(m, in.features, &diversity);
    int x = context(m, &in);
    model_scope(m, "loss");
    x = model_unit_rows(m, x);
    target = model_unit_rows(m, target);
    int scores =
        ap_build_dot(b, x, target, &(struct ap_dot_dims){1, &zero, &zero, 1, &two, &two});
    scores = ap_build_with(b, AP_OP_MULTIPLY, scores, 10);
    int own = ap_build_iota(b, ap_build_shape(b, AP_S32, 2, dims), 1);
    int loss = model_masked_mean(m, model_cross_entropy(m, scores, own), in.mask);
    return model_add(m, loss, ap_build_with(b, AP_OP_MULTIPLY, diversity, 0.1));
}
