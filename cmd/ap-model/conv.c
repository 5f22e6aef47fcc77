/*
 * Convolutional networks: ResNet, Wide-ResNet, VGG-19, AlexNet, a plain CNN and U-Net.
 * Images are [batch, height, width, features]; batch norm uses the batch's statistics and
 * keeps running ones as states.
 */
#include "model.h"

#include "base/array.h"

/* Padding so that there are ceil(extent / stride) positions. */
static struct ap_window_dim same_window(int64_t extent, int64_t size, int64_t stride)
{
    struct ap_window_dim w = ap_build_window(size, stride);
    int64_t total = (ap_ceil_div(extent, stride) - 1) * stride + size - extent;
    w.pad_lo = total > 0 ? total / 2 : 0;
    w.pad_hi = total > 0 ? total - total / 2 : 0;
    return w;
}

/* Features last: [batch, spatial ..., features] and [size ..., in, out]. */
static struct ap_conv_dims features_last(int n_spatial)
{
    struct ap_conv_dims c = {.n_spatial = n_spatial,
                             .lhs_feature = n_spatial + 1,
                             .rhs_in = n_spatial,
                             .rhs_out = n_spatial + 1,
                             .out_feature = n_spatial + 1};
    for (int i = 0; i < n_spatial; i++) {
        c.lhs_spatial[i] = c.out_spatial[i] = i + 1;
        c.rhs_spatial[i] = i;
    }
    return c;
}

int model_convolve(struct model *m, const char *path, int x,
                   const struct model_conv *conv)
{
    struct ap_build *b = &m->b;
    int n = ap_build_shape_of(b, x)->rank - 2;
    struct ap_window_dim windows[AP_MAX_RANK];
    struct ap_attrs *a = ap_build_attrs(b);
    int64_t dims[AP_MAX_RANK], groups = conv->groups ? conv->groups : 1;

    for (int i = 0; i < n; i++) {
        dims[i] = conv->size;
        windows[i] = conv->valid
                         ? ap_build_window(conv->size, conv->stride)
                         : same_window(model_dim(m, x, i + 1), conv->size, conv->stride);
    }
    dims[n] = model_dim(m, x, -1) / groups;
    dims[n + 1] = conv->n_out;
    a->n_window = n;
    a->window = ap_arena_dup(m->arena, windows, (size_t)n * sizeof *windows);
    a->conv = features_last(n);
    a->feature_group_count = groups;
    int w = model_weight(m, path, "w", n + 2, dims);
    model_scope(m, "%s", path);
    x = ap_build_conv(b, x, w, a);
    return conv->bias ? model_bias(m, path, x) : x;
}

/* A new running statistic: 0.9 old + 0.1 value. */
static void keep(struct model *m, const char *path, const char *leaf, int value)
{
    struct ap_build *b = &m->b;
    const char *scope = b->scope;
    const char *name = ap_arena_printf(m->arena, "%s/%s", path, leaf);

    b->scope = name;
    int old = ap_build_param(b, name, *ap_build_shape_of(b, value), AP_ROLE_STATE);
    b->scope = scope;
    int kept = model_add(m, ap_build_with(b, AP_OP_MULTIPLY, old, 0.9),
                         ap_build_with(b, AP_OP_MULTIPLY, value, 0.1));
    AP_ROOM_IN(m->arena, m->stats, m->n_stats, m->cap_stats);
    m->stats[m->n_stats++] = (struct ap_result){kept, AP_ROLE_STATE, old, NULL};
}

/* By the batch's statistics; new running ones are results. */
static int batch_norm(struct model *m, const char *path, int x)
{
    struct ap_build *b = &m->b;
    static const int64_t dims[3] = {0, 1, 2};
    int64_t n = model_dim(m, x, -1);

    int scale = model_weight(m, path, "scale", 1, &n);
    int bias = model_weight(m, path, "bias", 1, &n);
    model_scope(m, "%s", path);
    int mean = model_mean(m, x, 3, dims);
    int d = model_binary(m, AP_OP_SUBTRACT, x, model_along(m, mean, x, -1));
    int var = model_mean(m, model_mul(m, d, d), 3, dims);
    keep(m, path, "mean", mean);
    keep(m, path, "var", var);
    int r = ap_build_unary(b, AP_OP_RSQRT, ap_build_with(b, AP_OP_ADD, var, 1e-5));
    int y = model_mul(m, d, model_along(m, r, d, -1));
    y = model_mul(m, y, model_along(m, scale, y, -1));
    return model_add(m, y, model_along(m, bias, y, -1));
}

static int max_pool(struct model *m, int x, int64_t size, int64_t stride, bool valid)
{
    struct ap_window_dim w[4] = {ap_build_window(1, 1), ap_build_window(size, stride),
                                 ap_build_window(size, stride), ap_build_window(1, 1)};
    for (int d = 1; d <= 2 && !valid; d++)
        w[d] = same_window(model_dim(m, x, d), size, stride);
    return ap_build_reduce_window(&m->b, x, AP_RED_MAX, w);
}

/* [batch, height * width * features] */
static int flatten(struct model *m, const char *root, int x)
{
    int64_t dims[2] = {model_dim(m, x, 0),
                       model_dim(m, x, 1) * model_dim(m, x, 2) * model_dim(m, x, 3)};
    model_scope(m, "%s/flatten", root);
    return ap_build_reshape(&m->b, x, 2, dims);
}

/* ---- ResNet ---- */

struct stages {
    int layers;
    bool bottleneck;
    int blocks[4];
};

static const struct stages resnets[] = {{18, false, {2, 2, 2, 2}},
                                        {34, false, {3, 4, 6, 3}},
                                        {50, true, {3, 4, 6, 3}},
                                        {101, true, {3, 4, 23, 3}},
                                        {152, true, {3, 8, 36, 3}}};

static int conv_norm(struct model *m, const char *path, int x, int64_t n_out,
                     int64_t size, int64_t stride)
{
    struct model_conv conv = {.n_out = n_out, .size = size, .stride = stride};
    x = model_convolve(m, path, x, &conv);
    return batch_norm(m, model_path(m, "%s/bn", path), x);
}

static int relu_at(struct model *m, const char *path, const char *leaf, int x)
{
    model_scope(m, "%s/%s", path, leaf);
    return model_relu(m, x);
}

/* Two 3x3, or 1x1, 3x3 (`wide` features) and 1x1, beside the identity or a 1x1. */
static int residual(struct model *m, const char *path, int x, bool bottleneck,
                    int64_t width, int64_t wide, int64_t stride)
{
    int64_t n_out = bottleneck ? 4 * width : width;
    int first = bottleneck ? 1 : 3;

    int y = conv_norm(m, model_path(m, "%s/conv_0", path), x, width, first,
                      bottleneck ? 1 : stride);
    y = relu_at(m, path, "act_0", y);
    y = conv_norm(m, model_path(m, "%s/conv_1", path), y, wide, 3,
                  bottleneck ? stride : 1);
    if (bottleneck) {
        y = relu_at(m, path, "act_1", y);
        y = conv_norm(m, model_path(m, "%s/conv_2", path), y, n_out, 1, 1);
    }
    if (stride != 1 || model_dim(m, x, -1) != n_out)
        x = conv_norm(m, model_path(m, "%s/shortcut", path), x, n_out, 1, stride);
    model_scope(m, "%s/out", path);
    return model_relu(m, model_add(m, x, y));
}

/* width: of the first stage; factor: how much wider the 3x3 of a bottleneck is. */
static int residual_net(struct model *m, const char *root, const struct stages *stages,
                        int64_t width, int64_t factor)
{
    static const int64_t sides[2] = {1, 2};
    bool small = m->size[MODEL_IMAGE] < 64;

    int image = model_image(m, 3), label = model_label(m);
    int x = conv_norm(m, model_path(m, "%s/stem", root), image, width, small ? 3 : 7,
                      small ? 1 : 2);
    x = relu_at(m, root, "stem/pool", x);
    x = max_pool(m, x, 3, 2, false);
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < stages->blocks[s]; i++) {
            const char *path = model_path(m, "%s/stage_%d/block_%d", root, s, i);
            int64_t f = ap_mul64(width, 1 << s);
            x = residual(m, path, x, stages->bottleneck, f, ap_mul64(f, factor),
                         s > 0 && i == 0 ? 2 : 1);
        }
    }
    model_scope(m, "%s/pool", root);
    x = model_mean(m, x, 2, sides);
    x = model_dense(m, model_path(m, "%s/fc", root), x, m->size[MODEL_CLASSES], true);
    return model_loss(m, x, label);
}

static const struct stages *find_stages(struct model *m, int64_t least)
{
    struct ap_buf known = {0};
    for (size_t i = 0; i < sizeof resnets / sizeof *resnets; i++) {
        if (resnets[i].layers == m->size[MODEL_LAYERS] && resnets[i].layers >= least)
            return &resnets[i];
        if (resnets[i].layers >= least)
            ap_buf_printf(&known, "%s%d", known.len ? ", " : "", resnets[i].layers);
    }
    ap_err_set(m->err, "--layers %lld: expected one of %s",
               (long long)m->size[MODEL_LAYERS], known.data);
    ap_buf_free(&known);
    return NULL;
}

int model_resnet(struct model *m)
{
    const struct stages *stages = find_stages(m, 0);
    if (!stages)
        return -1;
    int64_t width = ap_mul64(m->size[MODEL_HIDDEN], m->size[MODEL_WIDTH_FACTOR]);
    return residual_net(m, "resnet", stages, width, 1);
}

int model_wresnet(struct model *m)
{
    const struct stages *stages = find_stages(m, 50);
    if (!stages)
        return -1;
    return residual_net(m, "wresnet", stages, m->size[MODEL_HIDDEN],
                        m->size[MODEL_WIDTH_FACTOR]);
}

/* ---- without shortcuts ---- */

static int conv_relu(struct model *m, const char *path, int x, int64_t n_out,
                     int64_t size, int64_t stride, bool valid)
{
    struct model_conv conv = {
        .n_out = n_out, .size = size, .stride = stride, .valid = valid, .bias = true};
    return model_relu(m, model_convolve(m, path, x, &conv));
}

/* Two dense layers with relu and the classes. */
static int dense_head(struct model *m, const char *root, int x, int64_t hidden)
{
    x = flatten(m, root, x);
    for (int i = 0; i < 2; i++)
        x = model_relu(
            m, model_dense(m, model_path(m, "%s/fc_%d", root, i), x, hidden, true));
    return model_dense(m, model_path(m, "%s/fc_2", root), x, m->size[MODEL_CLASSES],
                       true);
}

int model_vgg19(struct model *m)
{
    static const int convs[5] = {2, 2, 4, 4, 4};

    if (m->size[MODEL_IMAGE] < 32)
        return ap_err_set(m->err, "--image %lld: expected at least 32",
                          (long long)m->size[MODEL_IMAGE]);
    int x = model_image(m, 3), label = model_label(m);
    for (int s = 0; s < 5; s++) {
        int64_t width = ap_mul64(m->size[MODEL_HIDDEN], s < 3 ? 1 << s : 8);
        for (int i = 0; i < convs[s]; i++)
            x = conv_relu(m, model_path(m, "vgg19/stage_%d/conv_%d", s, i), x, width, 3,
                          1, false);
        model_scope(m, "vgg19/stage_%d/pool", s);
        x = max_pool(m, x, 2, 2, true);
    }
    return model_loss(m, dense_head(m, "vgg19", x, m->size[MODEL_FFN]), label);
}

int model_alexnet(struct model *m)
{
    static const struct {
        int64_t n_out, size, stride;
        bool pool;
    } convs[5] = {{64, 11, 4, true},
                  {192, 5, 1, true},
                  {384, 3, 1, false},
                  {256, 3, 1, false},
                  {256, 3, 1, true}};

    if (m->size[MODEL_IMAGE] < 67)
        return ap_err_set(m->err, "--image %lld: expected at least 67",
                          (long long)m->size[MODEL_IMAGE]);
    int x = model_image(m, 3), label = model_label(m);
    for (int i = 0; i < 5; i++) {
        x = conv_relu(m, model_path(m, "alexnet/conv_%d", i), x, convs[i].n_out,
                      convs[i].size, convs[i].stride, i == 0);
        model_scope(m, "alexnet/pool_%d", i);
        if (convs[i].pool)
            x = max_pool(m, x, 3, 2, true);
    }
    return model_loss(m, dense_head(m, "alexnet", x, m->size[MODEL_FFN]), label);
}

int model_cnn(struct model *m)
{
    int x = model_image(m, m->size[MODEL_FEATURES]), label = model_label(m);
    for (int64_t i = 0; i < m->size[MODEL_LAYERS]; i++)
        x = conv_relu(m, model_path(m, "cnn/conv_%lld", (long long)i), x,
                      m->size[MODEL_HIDDEN], 3, 1, false);
    x = model_dense(m, "cnn/fc", flatten(m, "cnn", x), m->size[MODEL_CLASSES], true);
    return model_loss(m, x, label);
}

/* ---- U-Net ---- */

static int double_conv(struct model *m, const char *path, int x, int64_t n_out)
{
    for (int i = 0; i < 2; i++) {
        x = conv_norm(m, model_path(m, "%s/conv_%d", path, i), x, n_out, 3, 1);
        x = model_relu(m, x);
    }
    return x;
}

/* Twice as large, half the features: a 2x2 convolution on the image spread apart. */
static int up_conv(struct model *m, const char *path, int x)
{
    struct ap_build *b = &m->b;
    int64_t n = model_dim(m, x, -1), dims[4] = {2, 2, n, n / 2};
    struct ap_window_dim both[2] = {ap_build_window(2, 1), ap_build_window(2, 1)};
    struct ap_attrs *a = ap_build_attrs(b);

    for (int d = 0; d < 2; d++) {
        both[d].pad_lo = both[d].pad_hi = 1;
        both[d].lhs_dilate = 2;
    }
    a->n_window = 2;
    a->window = ap_arena_dup(m->arena, both, sizeof both);
    a->conv = features_last(2);
    int weight = model_weight(m, path, "w", 4, dims);
    model_scope(m, "%s", path);
    return model_bias(m, path, ap_build_conv(b, x, weight, a));
}

#define MAX_DEPTH 16

int model_unet(struct model *m)
{
    int64_t side = m->size[MODEL_IMAGE], depth = m->size[MODEL_LAYERS];
    int64_t dims[3] = {m->size[MODEL_BATCH], side, side};
    int skip[MAX_DEPTH];

    if (depth > MAX_DEPTH || side % (1 << depth) || m->size[MODEL_HIDDEN] % 2)
        return ap_err_set(m->err,
                          "--image %lld --layers %lld --hidden %lld: expected an image "
                          "that halves at each of at most %d layers, and even features",
                          (long long)side, (long long)depth,
                          (long long)m->size[MODEL_HIDDEN], MAX_DEPTH);
    int x = model_image(m, m->size[MODEL_FEATURES]);
    int labels = model_input(m, "label", AP_S32, 3, dims);
    int64_t width = m->size[MODEL_HIDDEN];
    for (int i = 0; i < depth; i++) {
        x = skip[i] =
            double_conv(m, model_path(m, "unet/down_%d", i), x, ap_mul64(width, 1 << i));
        model_scope(m, "unet/down_%d/pool", i);
        x = max_pool(m, x, 2, 2, true);
    }
    x = double_conv(m, "unet/bottom", x, ap_mul64(width, 1 << depth));
    for (int i = (int)depth - 1; i >= 0; i--) {
        const char *path = model_path(m, "unet/up_%d", i);
        int parts[2] = {skip[i], up_conv(m, model_path(m, "%s/up", path), x)};
        x = ap_build_concat(&m->b, 2, parts, 3);
        x = double_conv(m, path, x, ap_mul64(width, 1 << i));
    }
    struct model_conv head = {
        .n_out = m->size[MODEL_CLASSES], .size = 1, .stride = 1, .bias = true};
    return model_loss(m, model_convolve(m, "unet/head", x, &head), labels);
}
