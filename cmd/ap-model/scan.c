/*
 * Mamba-2: instead of attention, a state of `width` x `states` numbers for each head goes
 * through the sequence. With step d_t, inputs x_t, B_t and C_t, and a = -exp(A_log) < 0,
 *
 *     h_t = exp(d_t a) h_{t-1} + d_t x_t B_t',    y_t = h_t C_t + D x_t
 *
 * Computed in chunks of the sequence, so that nearly all of it is products: within a
 * chunk like attention whose weights are (C_t . B_s) exp(sum of d a from s to t); a
 * chunk's own state by one product; the states that reach each chunk by a product over
 * the chunks before it. FLOPs per token and head are about 2 chunk (states / heads of a
 * group + width) + 4 width states. Source: Dao and Gu, "Transformers are SSMs",
 * section 6.
 */
#include "model.h"

static int wide(struct model *m, int x, int rank, const int64_t *dims, const int64_t *map)
{
    return ap_build_broadcast(&m->b, x, rank, dims, map);
}

/* Sums along dimension d from its beginning up to each element. */
static int sums_so_far(struct model *m, int x, int d)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, x);
    struct ap_window_dim window[AP_MAX_RANK];

    for (int i = 0; i < s.rank; i++)
        window[i] = ap_build_window(1, 1);
    window[d].size = s.dims[d];
    window[d].pad_lo = s.dims[d] - 1;
    return ap_build_reduce_window(&m->b, x, AP_RED_SUM, window);
}

/*
 * exp(to_i - from_j) for to, from [..., n]: [..., n, n], 0 where j is not before i (nor,
 * with `own`, equal to it). The exponent is masked, so that none is positive.
 */
static int decays(struct model *m, int to, int from, bool own)
{
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, to);
    int64_t dims[AP_MAX_RANK], to_map[AP_MAX_RANK], from_map[AP_MAX_RANK];
    int rank = s.rank + 1;

    for (int i = 0; i < s.rank; i++)
        dims[i] = s.dims[i], to_map[i] = from_map[i] = i;
    dims[rank - 1] = s.dims[s.rank - 1];
    from_map[s.rank - 1] = rank - 1;
    int power = model_binary(m, AP_OP_SUBTRACT, wide(m, to, rank, dims, to_map),
                             wide(m, from, rank, dims, from_map));
    struct ap_shape square = ap_build_shape(b, AP_S32, 2, dims + rank - 2);
    int seen = ap_build_compare(b, own ? AP_GE : AP_GT, ap_build_iota(b, square, 0),
                                ap_build_iota(b, square, 1));
    const int64_t last[2] = {rank - 2, rank - 1};
    struct ap_shape full = *ap_build_shape_of(b, power);
    seen = wide(m, seen, rank, dims, last);
    power = ap_build_select(b, seen, power, ap_build_full(b, &full, -1e9));
    return ap_build_unary(b, AP_OP_EXPONENTIAL, power);
}

/* silu of a convolution over the last `conv` positions, each feature by itself; x [batch,
 * seq, features]. */
static int convolve(struct model *m, const char *path, int x)
{
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, x);
    int64_t n = m->style.scan_conv, features = s.dims[2], dims[2] = {n, features};
    int w = model_weight(m, path, "w", 2, dims), sum = -1;

    model_scope(m, "%s", path);
    const struct ap_pad_dim pad[3] = {{0}, {.lo = n - 1}, {0}};
    int padded = ap_build_pad(b, x, ap_build_scalar(b, AP_F32, 0), pad);
    for (int64_t k = 0; k < n; k++) {
        const struct ap_slice_dim row[2] = {{k, k + 1, 1}, {0, features, 1}};
        const struct ap_slice_dim rows[3] = {
            {0, s.dims[0], 1}, {k, k + s.dims[1], 1}, {0, features, 1}};
        int factor = ap_build_reshape(b, ap_build_slice(b, w, row), 1, &features);
        int part = ap_build_slice(b, padded, rows);
        part = model_mul(m, part, model_along(m, factor, part, -1));
        sum = k ? model_add(m, sum, part) : part;
    }
    if (m->style.conv_bias)
        sum = model_bias(m, path, sum);
    return model_mul(m, sum, ap_build_unary(b, AP_OP_LOGISTIC, sum));
}

/* log(1 + exp(x)), at least `least`. */
static int softplus(struct model *m, int x, double least)
{
    struct ap_build *b = &m->b;
    int size = ap_build_unary(b, AP_OP_NEGATE, ap_build_unary(b, AP_OP_ABS, x));
    int small =
        ap_build_unary(b, AP_OP_LOG_PLUS_ONE, ap_build_unary(b, AP_OP_EXPONENTIAL, size));
    return ap_build_with(b, AP_OP_MAXIMUM, model_add(m, model_relu(m, x), small), least);
}

/*
 * The states that chunks begin with: those of the chunks before, decayed. own [batch,
 * chunks, groups, states, heads, width]: what a chunk adds; total [batch, groups, heads,
 * chunks]: the logarithm of a chunk's decay. [batch, groups, heads, chunks, states,
 * width].
 */
static int states_before(struct model *m, int own, int total)
{
    static const int64_t batch[3] = {0, 1, 2}, batch_own[3] = {0, 2, 4};
    static const int64_t from = 4, chunk = 1;
    int sums = sums_so_far(m, total, 3);
    int up_to = model_binary(m, AP_OP_SUBTRACT, sums, total);
    int weights = decays(m, up_to, sums, false);
    return ap_build_dot(&m->b, weights, own,
                        &(struct ap_dot_dims){3, batch, batch_own, 1, &from, &chunk});
}

/* x [batch, chunks, groups, heads, chunk] along the heads' features: the shape dims. */
static int along_places(struct model *m, int x, const int64_t *dims)
{
    static const int64_t perm[5] = {0, 1, 4, 2, 3}, map[5] = {0, 1, 2, 3, 4};
    return wide(m, ap_build_transpose(&m->b, x, perm), 6, dims, map);
}

/*
 * y of x, both of shape dims [batch, chunks, chunk, groups, heads, width]; sums [batch,
 * chunks, groups, heads, chunk]: logarithms of decays, summed over the chunk; in, out
 * [batch, chunks, chunk, groups, states].
 */
static int scan(struct model *m, const int64_t dims[6], int x, int sums, int in, int out)
{
    struct ap_build *b = &m->b;
    static const int64_t group[3] = {0, 1, 3}, state = 4, place = 2,
                         head[4] = {0, 1, 2, 3};
    static const int64_t head_x[4] = {0, 1, 3, 4}, scores_map[5] = {0, 1, 2, 4, 5};
    static const int64_t from = 5, group_own[3] = {0, 3, 1};
    static const int64_t near_perm[6] = {0, 1, 4, 2, 3, 5};
    static const int64_t far_perm[6] = {0, 1, 3, 2, 4, 5}, total_perm[4] = {0, 2, 3, 1};
    const int64_t square[6] = {dims[0], dims[1], dims[3], dims[4], dims[2], dims[2]};
    const struct ap_slice_dim last[5] = {{0, dims[0], 1},
                                         {0, dims[1], 1},
                                         {0, dims[3], 1},
                                         {0, dims[4], 1},
                                         {dims[2] - 1, dims[2], 1}};

    int scores = ap_build_dot(b, out, in,
                              &(struct ap_dot_dims){3, group, group, 1, &state, &state});
    int weights =
        model_mul(m, wide(m, scores, 6, square, scores_map), decays(m, sums, sums, true));
    int near = ap_build_dot(b, weights, x,
                            &(struct ap_dot_dims){4, head, head_x, 1, &from, &place});
    near = ap_build_transpose(b, near, near_perm);

    int total = ap_build_reshape(b, ap_build_slice(b, sums, last), 4, square);
    int left = model_binary(m, AP_OP_SUBTRACT, model_over(m, total, sums, -1), sums);
    left = along_places(m, ap_build_unary(b, AP_OP_EXPONENTIAL, left), dims);
    int own = ap_build_dot(b, in, model_mul(m, x, left),
                           &(struct ap_dot_dims){3, group, group, 1, &place, &place});
    int before = states_before(m, own, ap_build_transpose(b, total, total_perm));
    int far = ap_build_dot(b, out, before,
                           &(struct ap_dot_dims){3, group, group_own, 1, &state, &state});
    int grown = along_places(m, ap_build_unary(b, AP_OP_EXPONENTIAL, sums), dims);
    return model_add(m, near, model_mul(m, ap_build_transpose(b, far, far_perm), grown));
}

/* RMS norm of each group's features of x silu(gate), [batch, seq, features]. */
static int gated_norm(struct model *m, const char *path, int x, int gate)
{
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, x);
    int64_t groups = m->style.scan_groups;
    int64_t dims[4] = {s.dims[0], s.dims[1], groups, s.dims[2] / groups};
    int scale = model_weight(m, path, "scale", 1, &s.dims[2]);

    model_scope(m, "%s", path);
    gate = model_mul(m, gate, ap_build_unary(b, AP_OP_LOGISTIC, gate));
    x = ap_build_reshape(b, model_mul(m, x, gate), 4, dims);
    x = ap_build_reshape(b, model_norm(m, MODEL_NORM_UNIT, path, x), 3, s.dims);
    return model_mul(m, x, model_along(m, scale, x, -1));
}

static int project(struct model *m, const char *path, const char *part, int x, int64_t n)
{
    return model_dense(m, model_path(m, "%s/%s", path, part), x, n, m->style.scan_bias);
}

int model_scan(struct model *m, const char *path, int x)
{
    struct ap_build *b = &m->b;
    const struct model_style *style = &m->style;
    int64_t heads = style->scan_heads, groups = style->scan_groups;
    int64_t features = heads * style->scan_width, states = groups * style->scan_states;
    int64_t batch = model_dim(m, x, 0), seq = model_dim(m, x, 1),
            n_out = model_dim(m, x, 2);
    int64_t chunk = style->scan_chunk < seq ? style->scan_chunk : seq;
    const int64_t dims[6] = {batch,  seq / chunk,    chunk,
                             groups, heads / groups, style->scan_width};
    const int64_t state_dims[5] = {batch, seq / chunk, chunk, groups, style->scan_states};
    const int64_t head_dims[4] = {batch, seq, heads, style->scan_width};
    static const int64_t perm[5] = {0, 1, 3, 4, 2};

    int gate = project(m, path, "gate", x, features);
    int u =
        convolve(m, model_path(m, "%s/conv_x", path), project(m, path, "x", x, features));
    int in =
        convolve(m, model_path(m, "%s/conv_in", path), project(m, path, "in", x, states));
    int out = convolve(m, model_path(m, "%s/conv_out", path),
                       project(m, path, "out", x, states));
    int step = project(m, path, "step", x, heads);
    int shift = model_weight(m, path, "step_shift", 1, &heads);
    int rate = model_weight(m, path, "a_log", 1, &heads);
    int skip = model_weight(m, path, "d", 1, &heads);

    model_scope(m, "%s/core", path);
    step = softplus(m, model_add(m, step, model_along(m, shift, step, -1)),
                    style->scan_least);
    rate = ap_build_unary(b, AP_OP_NEGATE, ap_build_unary(b, AP_OP_EXPONENTIAL, rate));
    int decay = model_mul(m, step, model_along(m, rate, step, -1));
    decay = ap_build_transpose(b, ap_build_reshape(b, decay, 5, dims), perm);
    u = ap_build_reshape(b, u, 4, head_dims);
    int fed = ap_build_reshape(b, model_mul(m, u, model_over(m, step, u, -1)), 6, dims);
    int y = scan(m, dims, fed, sums_so_far(m, decay, 4),
                 ap_build_reshape(b, in, 5, state_dims),
                 ap_build_reshape(b, out, 5, state_dims));
    y = ap_build_reshape(b, y, 4, head_dims);
    y = model_add(m, y, model_mul(m, u, model_along(m, skip, u, 2)));
    const int64_t flat[3] = {batch, seq, features};
    y = ap_build_reshape(b, y, 3, flat);
    y = gated_norm(m, model_path(m, "%s/norm", path), y, gate);
    return project(m, path, "o", y, n_out);
}
