/*
 * Attention: several heads, where groups of heads may share keys and values (grouped
 * queries, Ainslie et al., "GQA", section 2), rotary embedding (Su et al., "RoFormer",
 * section 3.4.2), and DeepSeek's latent keys and values. Scores have the dimensions
 * [batch, key head, query, (group,) key], so that no key is repeated.
 */
#include "model.h"

#include <math.h>

/* x [batch, seq, heads * width] by heads: [batch, seq, heads, width], or, with several
 * heads to a group, [batch, seq, groups, heads of a group, width]. */
static int by_heads(struct model *m, int x, int64_t groups, int64_t heads, int64_t width)
{
    int64_t dims[5] = {model_dim(m, x, 0), model_dim(m, x, 1), groups, heads / groups,
                       width};
    int rank = 5;
    if (heads == groups) {
        dims[3] = width;
        rank = 4;
    }
    return ap_build_reshape(&m->b, x, rank, dims);
}

/* ---- rotary embedding ---- */

struct rotation {
    int cos, sin; /* [seq, width / 2] */
    int64_t width;
};

/* Angle of position p and feature i: p / theta^(2 i / width). */
static struct rotation make_rotation(struct model *m, const struct model_block *block,
                                     int64_t seq)
{
    int64_t width = block->turned;
    struct ap_build *b = &m->b;
    int64_t half = width / 2, dims[2] = {seq, half};
    float *frequency = AP_NEW_N(m->arena, half, float);

    for (int64_t i = 0; i < half; i++)
        frequency[i] = (float)pow(block->theta, -2 * (double)i / (double)width);
    int f = ap_build_literal(b, ap_build_shape(b, AP_F32, 1, &half), frequency);
    int position = ap_build_iota(b, ap_build_shape(b, AP_F32, 2, dims), 0);
    int angle = model_mul(m, position, model_along(m, f, position, -1));
    return (struct rotation){ap_build_unary(b, AP_OP_COSINE, angle),
                             ap_build_unary(b, AP_OP_SINE, angle), width};
}

/* The features [from, to) of the last dimension. */
static int features(struct model *m, int x, int64_t from, int64_t to)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, x);
    struct ap_slice_dim cut[AP_MAX_RANK];

    for (int d = 0; d < s.rank; d++)
        cut[d] = (struct ap_slice_dim){0, s.dims[d], 1};
    cut[s.rank - 1] = (struct ap_slice_dim){from, to, 1};
    return ap_build_slice(&m->b, x, cut);
}

/*
 * x [batch, seq, ..., features] with the last features turned: first half a, second half
 * b become a cos - b sin, b cos + a sin; those before them stay.
 */
static int rotate(struct model *m, const struct rotation *r, int x)
{
    struct ap_build *b = &m->b;
    int64_t n = model_dim(m, x, -1), half = r->width / 2, parts = 0;
    int part[3];

    if (n > r->width)
        part[parts++] = features(m, x, 0, n - r->width);
    int lo = features(m, x, n - r->width, n - half), hi = features(m, x, n - half, n);
    struct ap_shape s = *ap_build_shape_of(b, lo);
    int64_t map[2] = {1, s.rank - 1};
    int cos = ap_build_broadcast(b, r->cos, s.rank, s.dims, map);
    int sin = ap_build_broadcast(b, r->sin, s.rank, s.dims, map);
    part[parts++] =
        model_binary(m, AP_OP_SUBTRACT, model_mul(m, lo, cos), model_mul(m, hi, sin));
    part[parts++] = model_add(m, model_mul(m, hi, cos), model_mul(m, lo, sin));
    return ap_build_concat(b, (int)parts, part, s.rank - 1);
}

/* ---- scores ---- */

/* Masks scores of later positions, and of positions `window` or more before, or those
 * of earlier chunks of `window` positions (Llama 4). */
static int hide(struct model *m, int64_t window, int scores)
{
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, scores);
    int64_t map[2] = {2, s.rank - 1}, dims[2] = {s.dims[2], s.dims[s.rank - 1]};
    struct ap_shape square = ap_build_shape(b, AP_S32, 2, dims);

    int key = ap_build_iota(b, square, 1), query = ap_build_iota(b, square, 0);
    int seen = ap_build_compare(b, AP_GE, query, key);
    if (window && window < dims[1]) {
        int first = query;
        if (m->style.chunked) {
            first = ap_build_with(b, AP_OP_DIVIDE, query, (double)window);
            first = ap_build_with(b, AP_OP_MULTIPLY, first, (double)window);
        }
        int oldest = ap_build_with(b, AP_OP_SUBTRACT, first,
                                   m->style.chunked ? 1 : (double)window);
        seen = model_binary(m, AP_OP_AND, seen, ap_build_compare(b, AP_GT, key, oldest));
    }
    seen = ap_build_broadcast(b, seen, s.rank, s.dims, map);
    return ap_build_select(b, seen, scores, ap_build_full(b, &s, -1e9));
}

/*
 * Softmax of scores [batch, key head, query, (group,) key] and one score more per head,
 * of no key: exp(score) / (exp(sink) + the sum of the others). Agarwal et al., "gpt-oss",
 * section 2.2. As in model_softmax the maximum is rounded.
 */
static int softmax_with_sinks(struct model *m, int sinks, int scores)
{
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, scores);
    int64_t last = s.rank - 1, map[2] = {1, 3};
    int64_t heads[2] = {s.dims[1], s.rank == 5 ? s.dims[3] : 1};
    bool grouped = s.rank == 5;

    sinks = ap_build_reshape(b, sinks, grouped ? 2 : 1, heads);
    sinks = ap_build_broadcast(b, sinks, s.rank - 1, s.dims, map);
    int max = ap_build_reduce(b, scores, AP_RED_MAX, 1, &last);
    max = ap_build_unary(b, AP_OP_FLOOR, model_binary(m, AP_OP_MAXIMUM, max, sinks));
    int e = ap_build_unary(
        b, AP_OP_EXPONENTIAL,
        model_binary(m, AP_OP_SUBTRACT, scores, model_over(m, max, scores, -1)));
    int sink =
        ap_build_unary(b, AP_OP_EXPONENTIAL, model_binary(m, AP_OP_SUBTRACT, sinks, max));
    int sum = model_add(m, model_sum(m, e, -1), sink);
    return model_binary(m, AP_OP_DIVIDE, e, model_over(m, sum, e, -1));
}

/* softmax(scores of q and k) v, [batch, seq, heads * width of v]; q by_heads, k and v
 * [batch, seq', key heads, width]; position, sinks: -1 for none. */
static int attend(struct model *m, const struct model_block *block, int q, int k, int v,
                  int position, int sinks)
{
    struct ap_build *b = &m->b;
    static const int64_t batch[2] = {0, 2}, batch_w[2] = {0, 1}, key_v = 1, inner_k = 3;
    static const int64_t perm[5] = {0, 2, 1, 3, 4}, map[3] = {1, 2, 3};
    int64_t last = ap_build_shape_of(b, q)->rank - 1;

    int scores =
        ap_build_dot(b, q, k, &(struct ap_dot_dims){2, batch, batch, 1, &last, &inner_k});
    if (block->scale != 1)
        scores = ap_build_with(b, AP_OP_MULTIPLY, scores, block->scale);
    scores = model_cap(m, scores, m->style.score_cap);
    if (position >= 0) {
        struct ap_shape s = *ap_build_shape_of(b, scores);
        scores = model_add(m, scores, ap_build_broadcast(b, position, 4, s.dims, map));
    }
    if (block->causal)
        scores = hide(m, block->window, scores);
    int weights =
        sinks < 0 ? model_softmax(m, scores) : softmax_with_sinks(m, sinks, scores);
    if (m->dropout > 0) /* a softmax is a kernel, and this is the next one */
        weights = model_dropout(m, ap_build_unary(b, AP_OP_OPT_BARRIER, weights));
    int y = ap_build_dot(b, weights, v,
                         &(struct ap_dot_dims){2, batch_w, batch, 1, &last, &key_v});
    y = ap_build_transpose(b, y, perm);
    int64_t dims[3] = {model_dim(m, y, 0), model_dim(m, y, 1),
                       block->heads * model_dim(m, y, -1)};
    return ap_build_reshape(b, y, 3, dims);
}

/* Queries of Llama 4's layers without rotation, times
 * 1 + scale log(1 + floor((position + 1) / floor)): 1 in sequences less than `floor`. */
static int temper(struct model *m, int q)
{
    struct ap_build *b = &m->b;
    int64_t seq = model_dim(m, q, 1);
    double scale = m->style.temper_scale, floor = m->style.temper_floor;

    if (!m->style.temper || (double)seq < floor)
        return q;
    int place = ap_build_with(b, AP_OP_ADD,
                              ap_build_iota(b, ap_build_shape(b, AP_F32, 1, &seq), 0), 1);
    place = ap_build_unary(b, AP_OP_FLOOR, ap_build_with(b, AP_OP_DIVIDE, place, floor));
    int factor = ap_build_unary(b, AP_OP_LOG, ap_build_with(b, AP_OP_ADD, place, 1));
    factor = ap_build_with(b, AP_OP_MULTIPLY, factor, scale);
    return model_mul(m, q, model_along(m, ap_build_with(b, AP_OP_ADD, factor, 1), q, 1));
}

int model_attention(struct model *m, const char *path, const struct model_block *block,
                    int x, int memory, int position)
{
    int64_t heads = block->heads, groups = block->kv_heads, width = block->head_dim;
    int64_t n_out = model_dim(m, x, -1);
    const char *q_norm = model_path(m, "%s/q_norm", path);
    const char *k_norm = model_path(m, "%s/k_norm", path);
    enum model_qk_norm norm = m->style.qk_norm;
    struct model_block own = *block;

    own.causal &= memory == x;
    int q =
        model_dense(m, model_path(m, "%s/q", path), x, heads * width, block->qkv_bias);
    int k = model_dense(m, model_path(m, "%s/k", path), memory, groups * width,
                        block->qkv_bias && block->key_bias);
    int v = model_dense(m, model_path(m, "%s/v", path), memory, groups * width,
                        block->qkv_bias);
    if (norm == MODEL_QK_ALL) {
        q = model_norm(m, MODEL_NORM_RMS, q_norm, q);
        k = model_norm(m, MODEL_NORM_RMS, k_norm, k);
    }
    model_scope(m, "%s/core", path);
    q = by_heads(m, q, groups, heads, width);
    k = by_heads(m, k, groups, groups, width);
    v = by_heads(m, v, groups, groups, width);
    if (norm == MODEL_QK_HEAD) {
        q = model_norm(m, MODEL_NORM_RMS, q_norm, q);
        k = model_norm(m, MODEL_NORM_RMS, k_norm, k);
        model_scope(m, "%s/core", path);
    }
    if (block->turned > 0) {
        struct rotation r = make_rotation(m, block, model_dim(m, x, 1));
        q = rotate(m, &r, q);
        k = rotate(m, &r, k);
        if (norm == MODEL_QK_UNIT) {
            q = model_norm(m, MODEL_NORM_UNIT, q_norm, q);
            k = model_norm(m, MODEL_NORM_UNIT, k_norm, k);
            model_scope(m, "%s/core", path);
        }
    } else {
        q = temper(m, q);
    }
    int sinks = m->style.sinks ? model_weight(m, path, "sinks", 1, &heads) : -1;
    int y = attend(m, &own, q, k, v, position, sinks);
    return model_dense(m, model_path(m, "%s/o", path), y, n_out, block->out_bias);
}

/*
 * Keys and values of all heads come from a vector of `--kv-rank` per token, and one
 * rotated key of `--rope-dim` that all heads share; queries from a vector of `--q-rank`
 * where there is one. A head's query and key have head_dim features that do not turn
 * before the rotated ones. DeepSeek-AI, "DeepSeek-V2", section 2.1.2 and 2.1.3.
 */
int model_latent_attention(struct model *m, const char *path,
                           const struct model_block *block, int x)
{
    struct ap_build *b = &m->b;
    int64_t heads = block->heads, plain = block->head_dim, n_out = model_dim(m, x, -1);
    int64_t turned = block->turned, kv_rank = m->size[MODEL_KV_RANK];
    int64_t value = model_get(m, MODEL_VALUE_DIM, plain);
    int64_t q_rank = model_get(m, MODEL_Q_RANK, 0);
    bool bias = block->qkv_bias;

    int q = x;
    if (q_rank) {
        q = model_dense(m, model_path(m, "%s/q_down", path), x, q_rank, bias);
        q = model_norm(m, MODEL_NORM_RMS, model_path(m, "%s/q_norm", path), q);
    }
    q = model_dense(m, model_path(m, "%s/q", path), q, heads * (plain + turned), false);
    int low =
        model_dense(m, model_path(m, "%s/kv_down", path), x, kv_rank + turned, bias);
    int kv = features(m, low, 0, kv_rank);
    kv = model_norm(m, MODEL_NORM_RMS, model_path(m, "%s/kv_norm", path), kv);
    kv = model_dense(m, model_path(m, "%s/kv", path), kv, heads * (plain + value), false);

    model_scope(m, "%s/core", path);
    struct rotation r = make_rotation(m, block, model_dim(m, x, 1));
    q = rotate(m, &r, by_heads(m, q, heads, heads, plain + turned));
    kv = by_heads(m, kv, heads, heads, plain + value);
    int shared = rotate(m, &r, features(m, low, kv_rank, kv_rank + turned));
    int64_t dims[4] = {model_dim(m, x, 0), model_dim(m, x, 1), heads, turned};
    static const int64_t map[3] = {0, 1, 3};
    int k[2] = {features(m, kv, 0, plain), ap_build_broadcast(b, shared, 4, dims, map)};
    int v = features(m, kv, plain, plain + value);
    int y = attend(m, block, q, ap_build_concat(b, 2, k, 3), v, -1, -1);
    return model_dense(m, model_path(m, "%s/o", path), y, n_out, block->out_bias);
}
