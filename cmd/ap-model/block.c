/* Transformer layers: attention, then a dense or mixed feed-forward part. */
#include "model.h"

#include <math.h>

static const struct model_names gpt_names = {.ln_attn = "ln_1",
                                             .attn = "attn",
                                             .ln_cross = "ln_cross",
                                             .cross = "cross",
                                             .ln_mlp = "ln_2",
                                             .gate = "mlp/gate",
                                             .up = "mlp/fc",
                                             .act = "mlp/act",
                                             .down = "mlp/proj"};
const struct model_names model_t5_names = {.ln_attn = "ln_attn",
                                           .attn = "attn",
                                           .ln_cross = "ln_cross",
                                           .cross = "cross",
                                           .ln_mlp = "ln_mlp",
                                           .gate = "mlp/wi_gate",
                                           .up = "mlp/wi",
                                           .act = "mlp/act",
                                           .down = "mlp/wo"};

const struct model_names model_gated_names = {.ln_attn = "ln_1",
                                              .attn = "attn",
                                              .ln_mlp = "ln_2",
                                              .gate = "mlp/gate",
                                              .up = "mlp/up",
                                              .act = "mlp/act",
                                              .down = "mlp/down"};

void model_block_init(const struct model *m, struct model_block *block)
{
    int64_t hidden = m->size[MODEL_HIDDEN], heads = m->size[MODEL_HEADS];
    int64_t head_dim = model_get(m, MODEL_HEAD_DIM, hidden / heads);
    *block = (struct model_block){.names = &gpt_names,
                                  .heads = heads,
                                  .kv_heads = model_get(m, MODEL_KV_HEADS, heads),
                                  .head_dim = head_dim,
                                  .ffn = model_get(m, MODEL_FFN, 4 * hidden),
                                  .scale = 1 / sqrt((double)head_dim),
                                  .qkv_bias = true,
                                  .key_bias = !model_flag(m, MODEL_NO_KEY_BIAS),
                                  .out_bias = true,
                                  .mlp_bias = true};
}

void model_block_experts(const struct model *m, struct model_block *block, int64_t tokens)
{
    block->experts = m->size[MODEL_EXPERTS];
    block->top = m->size[MODEL_TOP];
    block->expert_bias =
        (block->mlp_bias || m->style.expert_bias) && !model_flag(m, MODEL_NO_EXPERT_BIAS);
    block->group = model_get(m, MODEL_GROUP, 0);
    if (block->group && block->group < tokens)
        tokens = block->group;
    block->capacity =
        model_get(m, MODEL_CAPACITY, ap_ceil_div(block->top * tokens, block->experts));
    if (model_flag(m, MODEL_NO_CAPACITY))
        block->capacity = 0;
}

int model_mlp_part(struct model *m, const char *path, const struct model_block *block,
                   int64_t ffn, int x)
{
    const struct model_names *names = block->names;
    int64_t n_out = model_dim(m, x, -1);
    int gate = -1;

    if (m->style.gated)
        gate = model_dense(m, model_path(m, "%s/%s", path, names->gate), x, ffn,
                           block->mlp_bias);
    int y =
        model_dense(m, model_path(m, "%s/%s", path, names->up), x, ffn, block->mlp_bias);
    model_scope(m, "%s/%s", path, names->act);
    y = model_glu(m, gate, y);
    return model_dense(m, model_path(m, "%s/%s", path, names->down), y, n_out,
                       block->mlp_bias);
}

static int feed_forward(struct model *m, const char *path,
                        const struct model_block *block, int x)
{
    if (block->experts)
        return model_mixture(m, model_path(m, "%s/moe", path), block, x);
    return model_mlp_part(m, path, block, block->ffn, x);
}

static int norm(struct model *m, const struct model_block *block, const char *path,
                const char *name, int x)
{
    return model_norm(m, block->norm, model_path(m, "%s/%s", path, name), x);
}

/* What attention or feed-forward part reads: x, normed unless norms come last. */
static int before(struct model *m, const struct model_block *block, const char *path,
                  const char *ln, int x)
{
    return block->post_norm || m->style.no_pre_norm ? x : norm(m, block, path, ln, x);
}

/* x + y in the layer's own scope, normed when norms come last. */
static int join(struct model *m, const struct model_block *block, const char *path,
                const char *ln, int x, int y)
{
    double factor = m->style.residual_scale;

    if (m->style.sandwich)
        y = model_norm(m, block->norm, model_path(m, "%s/%s_post", path, ln), y);
    model_scope(m, "%s", path);
    if (factor > 0 && factor != 1)
        y = ap_build_with(&m->b, AP_OP_MULTIPLY, y, factor);
    x = model_add(m, x, model_dropout(m, y));
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

    int first = x, read = before(m, block, path, names->ln_attn, x), y = read;
    share_weights(m, block, path);
    y = block->latent ? model_latent_attention(m, attn, block, y)
                      : model_attention(m, attn, block, y, y, position);
    share_no_more(m, block);
    x = join(m, block, path, names->ln_attn, x, y);
    if (memory >= 0) {
        const char *cross = model_path(m, "%s/%s", path, names->cross);
        y = before(m, block, path, names->ln_cross, x);
        y = model_attention(m, cross, block, y, memory, -1);
        x = join(m, block, path, names->ln_cross, x, y);
    }
    if (!m->style.parallel || !m->style.one_norm)
        read = before(m, block, path, names->ln_mlp, m->style.parallel ? first : x);
    share_weights(m, block, path);
    y = feed_forward(m, path, block, read);
    share_no_more(m, block);
    return join(m, block, path, names->ln_mlp, x, y);
}

int model_single(struct model *m, const char *path, const struct model_block *block,
                 char kind, int x)
{
    const char *attn = model_path(m, "%s/attn", path);
    int y = norm(m, block, path, "ln", x);

    y = kind == 'M'   ? model_scan(m, model_path(m, "%s/scan", path), y)
        : kind == '*' ? model_attention(m, attn, block, y, y, -1)
                      : feed_forward(m, path, block, y);
    return join(m, block, path, "ln", x, y);
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
