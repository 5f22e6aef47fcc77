/* Transformer layers: attention, then a dense or mixed feed-forward part. */
#include "model.h"

#include <math.h>

static const struct model_names gpt_names = {"ln_1", "attn",   "ln_cross", "cross",
                                             "ln_2", "mlp/fc", "mlp/act",  "mlp/proj"};
const struct model_names model_t5_names = {"ln_attn", "attn",   "ln_cross", "cross",
                                           "ln_mlp",  "mlp/wi", "mlp/act",  "mlp/wo"};

void model_block_init(const struct model *m, struct model_block *block)
{
    int64_t hidden = m->size[MODEL_HIDDEN], heads = m->size[MODEL_HEADS];
    int64_t head_dim = model_get(m, MODEL_HEAD_DIM, hidden / heads);
    *block = (struct model_block){.names = &gpt_names,
                                  .heads = heads,
                                  .head_dim = head_dim,
                                  .ffn = model_get(m, MODEL_FFN, 4 * hidden),
                                  .scale = 1 / sqrt((double)head_dim),
                                  .bias = true,
                                  .key_bias = !model_flag(m, MODEL_NO_KEY_BIAS)};
}

void model_block_experts(const struct model *m, struct model_block *block, int64_t tokens)
{
    block->experts = m->size[MODEL_EXPERTS];
    block->top = m->size[MODEL_TOP];
    block->expert_bias = block->bias && !model_flag(m, MODEL_NO_EXPERT_BIAS);
    block->capacity =
        model_get(m, MODEL_CAPACITY, ap_ceil_div(block->top * tokens, block->experts));
    if (model_flag(m, MODEL_NO_CAPACITY))
        block->capacity = 0;
}

/* [batch, seq, heads * dim] as [batch, seq, heads, dim]. */
static int split_heads(struct model *m, int x, const struct model_block *block)
{
    int64_t dims[4] = {model_dim(m, x, 0), model_dim(m, x, 1), block->heads,
                       block->head_dim};
    return ap_build_reshape(&m->b, x, 4, dims);
}

/* Scores of later positions become very small. */
static int hide_later(struct model *m, int scores)
{
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, scores);
    static const int64_t map[2] = {2, 3};
    struct ap_shape square = ap_build_shape(b, AP_S32, 2, s.dims + 2);

    int seen = ap_build_compare(b, AP_GE, ap_build_iota(b, square, 0),
                                ap_build_iota(b, square, 1));
    seen = ap_build_broadcast(b, seen, 4, s.dims, map);
    return ap_build_select(b, seen, scores, ap_build_full(b, &s, -1e9));
}

static int attention(struct model *m, const char *path, const struct model_block *block,
                     int x, int memory, bool causal, int position)
{
    struct ap_build *b = &m->b;
    static const int64_t batch[2] = {0, 2}, inner = 3, batch_v[2] = {0, 2};
    static const int64_t batch_w[2] = {0, 1}, key_w = 3, key_v = 1;
    static const int64_t perm[4] = {0, 2, 1, 3}, map[3] = {1, 2, 3};
    int64_t width = block->heads * block->head_dim, n_out = model_dim(m, x, -1);

    int q = model_dense(m, model_path(m, "%s/q", path), x, width, block->bias);
    int k = model_dense(m, model_path(m, "%s/k", path), memory, width,
                        block->bias && block->key_bias);
    int v = model_dense(m, model_path(m, "%s/v", path), memory, width, block->bias);
    model_scope(m, "%s/core", path);
    q = split_heads(m, q, block);
    k = split_heads(m, k, block);
    v = split_heads(m, v, block);
    int scores = ap_build_dot(b, q, k, 2, batch, batch, 1, &inner, &inner);
    if (block->scale != 1)
        scores = ap_build_with(b, AP_OP_MULTIPLY, scores, block->scale);
    if (position >= 0) {
        struct ap_shape s = *ap_build_shape_of(b, scores);
        scores = model_add(m, scores, ap_build_broadcast(b, position, 4, s.dims, map));
    }
    if (causal)
        scores = hide_later(m, scores);
    int weights = model_softmax(m, scores);
    int y = ap_build_dot(b, weights, v, 2, batch_w, batch_v, 1, &key_w, &key_v);
    y = ap_build_transpose(b, y, perm);
    int64_t dims[3] = {model_dim(m, y, 0), model_dim(m, y, 1), width};
    y = ap_build_reshape(b, y, 3, dims);
    return model_dense(m, model_path(m, "%s/o", path), y, n_out, block->bias);
}

static int feed_forward(struct model *m, const char *path,
                        const struct model_block *block, int x)
{
    const struct model_names *names = block->names;
    int64_t n_out = model_dim(m, x, -1);

    if (block->experts)
        return model_mixture(m, model_path(m, "%s/moe", path), block, x);
    int y = model_dense(m, model_path(m, "%s/%s", path, names->up), x, block->ffn,
                        block->bias);
    model_scope(m, "%s/%s", path, names->act);
    y = block->relu ? model_relu(m, y) : model_gelu(m, y);
    return model_dense(m, model_path(m, "%s/%s", path, names->down), y, n_out,
                       block->bias);
}

int model_norm(struct model *m, const struct model_block *block, const char *path, int x)
{
    return block->rms ? model_rms_norm(m, path, x) : model_layer_norm(m, path, x);
}

static int norm(struct model *m, const struct model_block *block, const char *path,
                const char *name, int x)
{
    return model_norm(m, block, model_path(m, "%s/%s", path, name), x);
}

/* x + y in the layer's own scope, normed when norms come last. */
static int join(struct model *m, const struct model_block *block, const char *path,
                const char *ln, int x, int y)
{
    model_scope(m, "%s", path);
    x = model_add(m, x, y);
    return block->post_norm ? norm(m, block, path, ln, x) : x;
}

static void share_weights(struct model *m, const struct model_block *block,
                          const char *path)
{
    if (block->weights)
        model_share(m, path, block->weights);
}

static void share_no_more(struct model *m, const struct model_block *block)
{
    if (block->weights)
        model_share(m, NULL, NULL);
}

int model_transformer(struct model *m, const char *path, const struct model_block *block,
                      int x, int memory, int position)
{
    const struct model_names *names = block->names;
    const char *attn = model_path(m, "%s/%s", path, names->attn);

    int y = block->post_norm ? x : norm(m, block, path, names->ln_attn, x);
    share_weights(m, block, path);
    y = attention(m, attn, block, y, y, block->causal, position);
    share_no_more(m, block);
    x = join(m, block, path, names->ln_attn, x, y);
    if (memory >= 0) {
        const char *cross = model_path(m, "%s/%s", path, names->cross);
        y = block->post_norm ? x : norm(m, block, path, names->ln_cross, x);
        y = attention(m, cross, block, y, memory, false, -1);
        x = join(m, block, path, names->ln_cross, x, y);
    }
    y = block->post_norm ? x : norm(m, block, path, names->ln_mlp, x);
    share_weights(m, block, path);
    y = feed_forward(m, path, block, y);
    share_no_more(m, block);
    return join(m, block, path, names->ln_mlp, x, y);
}

int model_stack(struct model *m, const char *prefix, const struct model_block *block,
                const struct model_block *mixed, int x, int memory, int position)
{
    int64_t every = mixed ? m->size[MODEL_MOE_EVERY] : 1;

    for (int64_t i = 0; i < m->size[MODEL_LAYERS]; i++)
        x = model_transformer(m, model_path(m, "%s%lld", prefix, (long long)i),
                              mixed && i % every == every - 1 ? mixed : block, x, memory,
                              position);
    return x;
}
