/* Losses over classes, and optimizers. */
#include "onnx/onnx.h"

#include <string.h>

/*
 * Loss of log probabilities x [N, C, ...] at targets [N, ...]: the class is picked by
 * comparing with an iota, which differentiates into a select. ignore_index weighs 0.
 */
static int nll(struct ox *c, int x, int target, int weight)
{
    struct ap_shape s = ox_shape(c, x), t = ox_shape(c, target);
    const struct onnx_attr *ignore = ox_attr(c, "ignore_index");
    const char *how = ox_attr_s(c, "reduction", "mean");
    int64_t dims[AP_MAX_RANK], all[AP_MAX_RANK];
    bool fits = x >= 0 && target >= 0 && s.rank >= 2 && t.rank == s.rank - 1;
    for (int d = 0; d < t.rank && fits; d++)
        fits = t.dims[d] == s.dims[d ? d + 1 : 0];
    if (!fits)
        return x < 0 || target < 0 ? -1 : ox_fail(c, "scores and targets do not fit");
    for (int d = 0; d < s.rank; d++) {
        dims[d] = d == 1 ? 1 : s.dims[d];
        all[d] = d;
    }
    int at = ox_expand(c, ox_reshape(c, target, s.rank, dims), s.rank, s.dims);
    int hit = ox_cmp(c, AP_EQ, ox_iota(c, t.dtype, s.rank, s.dims, 1), at);
    int zero = ox_full_like(c, x, 0), w = -1;
    int loss = ox_unary(c, AP_OP_NEGATE,
                        ox_reduce1(c, ox_select(c, hit, x, zero), AP_RED_SUM, 1, false));
    if (weight >= 0)
        w = ox_reduce1(c, ox_select(c, hit, ox_along(c, weight, 1, s.rank, s.dims), zero),
                       AP_RED_SUM, 1, false);
    if (ignore) {
        if (w < 0)
            w = ox_full_like(c, loss, 1);
        int skip = ox_cmp(c, AP_EQ, target, ox_full_like(c, target, (double)ignore->i));
        int none = ox_full_like(c, loss, 0);
        w = ox_select(c, skip, none, w);
        loss = ox_select(c, skip, none, loss);
    }
    if (w >= 0)
        loss = ox_bin(c, AP_OP_MULTIPLY, loss, w);
    if (strcmp(how, "none") == 0)
        return loss;
    int sum = ox_reduce(c, loss, AP_RED_SUM, t.rank, all, false);
    if (strcmp(how, "sum") == 0)
        return sum;
    if (strcmp(how, "mean") != 0)
        return ox_fail(c, "reduction '%s'", how);
    if (w >= 0)
        return ox_bin(c, AP_OP_DIVIDE, sum,
                      ox_reduce(c, w, AP_RED_SUM, t.rank, all, false));
    return ox_with(c, AP_OP_DIVIDE, sum, (double)ap_shape_elems(&t));
}

static int nll_loss(struct ox *c)
{
    return nll(c, c->in[0], c->in[1], ox_in(c, 2));
}

static int cross_entropy(struct ox *c)
{
    if (ox_rank(c, c->in[0]) < 2)
        return ox_fail(c, "scores have less than two dimensions");
    int p = ox_softmax(c, c->in[0], 1, true);
    c->out[1] = p;
    return c->out[0] = nll(c, p, c->in[1], ox_in(c, 2));
}

/* ---- optimizers ---- */

static int scalar_in(struct ox *c, int i, enum ap_dtype dtype)
{
    return ox_reshape(c, ox_to(c, c->in[i], dtype), 0, NULL);
}

static int mul(struct ox *c, int x, int y)
{
    return ox_bin(c, AP_OP_MULTIPLY, x, y);
}

static int add(struct ox *c, int x, int y)
{
    return ox_bin(c, AP_OP_ADD, x, y);
}

static int times(struct ox *c, int x, double v)
{
    return ox_with(c, AP_OP_MULTIPLY, x, v);
}

/* Inputs: rate, step, then n each of weights, gradients and n_states states. */
static int groups(struct ox *c, int n_states)
{
    int n = (c->n_in - 2) / (2 + n_states);
    if (c->n_in != 2 + n * (2 + n_states) || n < 1 || n * (1 + n_states) > OX_MAX_OUT)
        return ox_fail(c, "has %d inputs", c->n_in);
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] < 0 || (i > 1 && ox_dtype(c, c->in[i]) != ox_dtype(c, c->in[2])))
            return ox_fail(c, "input %d is missing or of another type", i);
    return n;
}

static int momentum(struct ox *c)
{
    int n = groups(c, 1);
    const char *mode = ox_attr_s(c, "mode", "standard");
    double alpha = ox_attr_f(c, "alpha", 0), decay = ox_attr_f(c, "norm_coefficient", 0);
    double beta = ox_attr_f(c, "beta", 1);
    for (int i = 0; i < n; i++) {
        int w = c->in[2 + i], v = c->in[2 + 2 * n + i];
        int rate = scalar_in(c, 0, ox_dtype(c, w)), t = scalar_in(c, 1, AP_S64);
        int g = add(c, times(c, w, decay), c->in[2 + n + i]);
        int first = ox_cmp(c, AP_EQ, t, ox_scalar(c, AP_S64, 0));
        int b = ox_select(c, first, ox_scalar(c, ox_dtype(c, w), 1),
                          ox_scalar(c, ox_dtype(c, w), beta));
        v = add(c, times(c, v, alpha), mul(c, g, b));
        int step = strcmp(mode, "nesterov") == 0 ? add(c, g, times(c, v, alpha)) : v;
        c->out[i] = ox_bin(c, AP_OP_SUBTRACT, w, mul(c, step, rate));
        c->out[n + i] = v;
    }
    return n < 1 ? -1 : c->out[0];
}

static int adagrad(struct ox *c)
{
    int n = groups(c, 1);
    double decay = ox_attr_f(c, "norm_coefficient", 0);
    double fade = ox_attr_f(c, "decay_factor", 0), eps = ox_attr_f(c, "epsilon", 1e-6f);
    for (int i = 0; i < n; i++) {
        int w = c->in[2 + i], h = c->in[2 + 2 * n + i];
        enum ap_dtype t = ox_dtype(c, w);
        int rate = scalar_in(c, 0, t), step = scalar_in(c, 1, t);
        rate =
            ox_bin(c, AP_OP_DIVIDE, rate, ox_with(c, AP_OP_ADD, times(c, step, fade), 1));
        int g = add(c, times(c, w, decay), c->in[2 + n + i]);
        h = add(c, h, mul(c, g, g));
        int by = ox_with(c, AP_OP_ADD, ox_unary(c, AP_OP_SQRT, h), eps);
        c->out[i] =
            ox_bin(c, AP_OP_SUBTRACT, w, ox_bin(c, AP_OP_DIVIDE, mul(c, g, rate), by));
        c->out[n + i] = h;
    }
    return n < 1 ? -1 : c->out[0];
}

static int adam(struct ox *c)
{
    int n = groups(c, 2);
    double alpha = ox_attr_f(c, "alpha", 0.9f), beta = ox_attr_f(c, "beta", 0.999f);
    double eps = ox_attr_f(c, "epsilon", -1), decay = ox_attr_f(c, "norm_coefficient", 0);
    double post = ox_attr_f(c, "norm_coefficient_post", 0);
    if (eps < 0) /* the specification says 1e-6, its own test case 1e-2 */
        return ox_refuse(c, "without epsilon is not supported yet");
    for (int i = 0; i < n; i++) {
        int w = c->in[2 + i], v = c->in[2 + 2 * n + i], h = c->in[2 + 3 * n + i];
        enum ap_dtype t = ox_dtype(c, w);
        int rate = scalar_in(c, 0, t), step = scalar_in(c, 1, t),
            one = ox_scalar(c, t, 1);
        int g = add(c, times(c, w, decay), c->in[2 + n + i]);
        v = add(c, times(c, v, alpha), times(c, g, 1 - alpha));
        h = add(c, times(c, h, beta), times(c, mul(c, g, g), 1 - beta));
        int root = ox_with(c, AP_OP_ADD, ox_unary(c, AP_OP_SQRT, h), eps);
        int late = ox_cmp(c, AP_GT, step, ox_scalar(c, t, 0));
        int pb = ox_bin(c, AP_OP_POWER, ox_scalar(c, t, beta), step);
        int pa = ox_bin(c, AP_OP_POWER, ox_scalar(c, t, alpha), step);
        int fix = ox_bin(c, AP_OP_DIVIDE,
                         ox_unary(c, AP_OP_SQRT, ox_bin(c, AP_OP_SUBTRACT, one, pb)),
                         ox_bin(c, AP_OP_SUBTRACT, one, pa));
        rate = ox_select(c, late, mul(c, rate, fix), rate);
        int y =
            ox_bin(c, AP_OP_SUBTRACT, w, mul(c, rate, ox_bin(c, AP_OP_DIVIDE, v, root)));
        c->out[i] = times(c, y, 1 - post);
        c->out[n + i] = v;
        c->out[2 * n + i] = h;
    }
    return n < 1 ? -1 : c->out[0];
}

const struct ox_op ox_loss_ops[] = {
    {"NegativeLogLikelihoodLoss", 12, 20, 2, 3, nll_loss, 0},
    {"SoftmaxCrossEntropyLoss", 12, 20, 2, 3, cross_entropy, 0},
    /* ai.onnx.preview.training: since 0 */
    {"Momentum", 0, 0, 5, -1, momentum, 0},
    {"Adagrad", 0, 0, 5, -1, adagrad, 0},
    {"Adam", 0, 0, 6, -1, adam, 0},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
