/*
 * Encoder and decoder: T5 with bucketed relative positions that all layers of a side
 * share, and the Switch transformer, whose feed-forward layers are mixtures of experts.
 */
#include "model.h"

#include <math.h>

#define BUCKETS      32
#define MAX_DISTANCE 128

/* Distances at which a new bucket begins: one each at first, then ever wider. */
static int set_thresholds(int buckets, int32_t *thresholds)
{
    int exact = buckets / 2, n = 0;
    for (int i = 1; i < exact; i++)
        thresholds[n++] = i;
    for (int i = 0; i < buckets - exact; i++) {
        double step = (double)i / (buckets - exact);
        thresholds[n++] =
            (int32_t)ceil(exact * pow((double)MAX_DISTANCE / exact, step) - 1e-9);
    }
    return n;
}

/* Number of thresholds that each distance [n, n] reaches. */
static int bucket_of(struct model *m, int distance, int buckets)
{
    struct ap_build *b = &m->b;
    int32_t thresholds[BUCKETS];
    static const int64_t map[2] = {0, 1}, last = 2;
    int64_t count = set_thresholds(buckets, thresholds);
    int64_t n = model_dim(m, distance, 0), dims[3] = {n, n, count};

    int levels = ap_build_literal(b, ap_build_shape(b, AP_S32, 1, &count), thresholds);
    int wide = ap_build_broadcast(b, distance, 3, dims, map);
    int reached = ap_build_compare(b, AP_GE, wide, model_along(m, levels, wide, -1));
    return ap_build_reduce(b, ap_build_convert(b, reached, AP_S32), AP_RED_SUM, 1, &last);
}

/* Biases [heads, n, n] by how far key and query are apart. */
static int positions(struct model *m, const char *path, int64_t n, bool both_sides)
{
    struct ap_build *b = &m->b;
    int64_t dims[2] = {n, n}, table_dims[2] = {BUCKETS, m->size[MODEL_HEADS]};
    static const int64_t perm[3] = {2, 0, 1};
    struct ap_shape square = ap_build_shape(b, AP_S32, 2, dims);

    int table = model_weight(m, path, NULL, 2, table_dims);
    model_scope(m, "%s", path);
    int behind = model_binary(m, AP_OP_SUBTRACT, ap_build_iota(b, square, 0),
                              ap_build_iota(b, square, 1));
    const int half = BUCKETS / 2;
    int bucket;
    if (both_sides) {
        bucket = bucket_of(m, ap_build_unary(b, AP_OP_ABS, behind), half);
        int ahead = ap_build_compare(b, AP_LT, behind, ap_build_full(b, &square, 0));
        int more = ap_build_select(b, ahead, ap_build_full(b, &square, half),
                                   ap_build_full(b, &square, 0));
        bucket = model_add(m, bucket, more);
    } else {
        bucket = bucket_of(m, ap_build_with(b, AP_OP_MAXIMUM, behind, 0), BUCKETS);
    }
    return ap_build_transpose(b, ap_build_take(b, table, bucket), perm);
}

/* One side; memory -1: the encoder. */
static int side_of(struct model *m, const char *root, struct model_block block,
                   bool mixed, int x, int memory)
{
    const char *side = memory < 0 ? "encoder" : "decoder";
    struct model_block moe;

    block.causal = memory >= 0;
    moe = block;
    if (mixed)
        model_block_experts(m, &moe, model_dim(m, x, 1));
    int position = positions(m, model_path(m, "%s/%s/position", root, side),
                             model_dim(m, x, 1), memory < 0);
    x = model_stack(m, model_path(m, "%s/%s/block_", root, side), &block,
                    mixed ? &moe : NULL, x, memory, position);
    return model_norm(m, block.norm, model_path(m, "%s/%s/ln_f", root, side), x);
}

static int encoder_decoder(struct model *m, const char *root, bool mixed)
{
    int64_t hidden = m->size[MODEL_HIDDEN], vocab = m->size[MODEL_VOCAB];
    int64_t source_dims[2] = {m->size[MODEL_BATCH], m->size[MODEL_SEQ]};
    int64_t dims[2] = {source_dims[0], model_get(m, MODEL_TARGET_SEQ, source_dims[1])};
    const char *embed = model_path(m, "%s/embed", root);
    struct model_block block;
    int table;

    if (m->size[MODEL_HEAD_DIM] < 0 && model_check_divides(m, MODEL_HIDDEN, MODEL_HEADS))
        return -1;
    model_block_init(m, &block);
    block.names = &model_t5_names;
    block.scale = 1;
    bool rms = !model_flag(m, MODEL_LAYER_NORM);
    block.norm = rms ? MODEL_NORM_RMS : MODEL_NORM_LAYER;
    block.qkv_bias = block.out_bias = block.mlp_bias = !rms;
    int source = model_input(m, "source", AP_S32, 2, source_dims);
    int target = model_input(m, "target", AP_S32, 2, dims);
    int labels = model_input(m, "labels", AP_S32, 2, dims);
    int memory = model_embed(m, embed, source, vocab, hidden, &table);
    memory = side_of(m, root, block, mixed, memory, -1);
    int x = model_embed(m, embed, target, vocab, hidden, NULL);
    x = side_of(m, root, block, mixed, x, memory);
    model_scope(m, "%s/head", root);
    x = ap_build_with(&m->b, AP_OP_MULTIPLY, x, 1 / sqrt((double)hidden));
    return model_loss(m, model_tied_head(m, model_path(m, "%s/head", root), x, table),
                      labels);
}

int model_t5(struct model *m)
{
    return encoder_decoder(m, "t5", false);
}

int model_switch(struct model *m)
{
    return encoder_decoder(m, "switch", true);
}
