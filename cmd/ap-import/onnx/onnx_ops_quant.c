/* Quantised numbers, products of integers, and window functions. */
#include "onnx/onnx.h"

#include <math.h>

#include "onnx/onnx_window.h"

/* Scale or zero point along the axis, or a scalar. */
static int spread(struct ox *c, int v, int x)
{
    struct ap_shape s = ox_shape(c, x);
    int64_t axis = ox_attr_i(c, "axis", 1);
    struct ap_shape vs = ox_shape(c, v);
    if (vs.rank == 0 || ap_shape_elems(&vs) == 1)
        return ox_reshape(c, v, 0, NULL);
    if (!ox_axis(c, &axis, s.rank))
        return -1;
    return ox_along(c, v, (int)axis, s.rank, s.dims);
}

static int dequantize(struct ox *c)
{
    int x = c->in[0], scale = spread(c, c->in[1], x);
    int y = ox_to(c, x, AP_S32);
    if (ox_in(c, 2) >= 0)
        y = ox_bin(c, AP_OP_SUBTRACT, y, ox_to(c, spread(c, c->in[2], x), AP_S32));
    return ox_bin(c, AP_OP_MULTIPLY, ox_to(c, y, ox_dtype(c, scale)), scale);
}

/* round(x / scale) + zero, saturated to 8 bits. */
static int quantized(struct ox *c, int x, int scale, int zero, enum ap_dtype dtype)
{
    if (dtype != AP_U8 && dtype != AP_S8)
        return ox_refuse(c, "to this element type is not supported yet");
    int y = ox_unary(c, AP_OP_ROUND_EVEN, ox_bin(c, AP_OP_DIVIDE, x, scale));
    if (zero >= 0)
        y = ox_bin(c, AP_OP_ADD, y, ox_to(c, zero, ox_dtype(c, y)));
    y = ox_with(c, AP_OP_MAXIMUM, y, dtype == AP_U8 ? 0 : -128);
    return ox_to(c, ox_with(c, AP_OP_MINIMUM, y, dtype == AP_U8 ? 255 : 127), dtype);
}

static int quantize(struct ox *c)
{
    int x = c->in[0], zero = ox_in(c, 2);
    enum ap_dtype to = zero >= 0 ? ox_dtype(c, zero) : AP_U8;
    if (ox_dtype(c, x) != AP_F32)
        return ox_refuse(c, "of %s is not supported yet", ap_dtype_name(ox_dtype(c, x)));
    return quantized(c, x, spread(c, c->in[1], x), zero >= 0 ? spread(c, zero, x) : -1,
                     to);
}

static int dynamic_quantize(struct ox *c)
{
    int64_t all[AP_MAX_RANK];
    int x = c->in[0], rank = ox_rank(c, x);
    for (int d = 0; d < rank; d++)
        all[d] = d;
    int hi = ox_with(c, AP_OP_MAXIMUM, ox_reduce(c, x, AP_RED_MAX, rank, all, false), 0);
    int lo = ox_with(c, AP_OP_MINIMUM, ox_reduce(c, x, AP_RED_MIN, rank, all, false), 0);
    int scale = ox_with(c, AP_OP_DIVIDE, ox_bin(c, AP_OP_SUBTRACT, hi, lo), 255);
    int zero = ox_bin(c, AP_OP_DIVIDE, ox_unary(c, AP_OP_NEGATE, lo), scale);
    zero = ox_with(c, AP_OP_MINIMUM, ox_with(c, AP_OP_MAXIMUM, zero, 0), 255);
    zero = ox_to(c, ox_unary(c, AP_OP_ROUND_EVEN, zero), AP_U8);
    c->out[1] = scale;
    c->out[2] = zero;
    return c->out[0] = quantized(c, x, scale, zero, AP_U8);
}

static int centred(struct ox *c, int x, int zero)
{
    struct ap_shape z = ox_shape(c, zero);
    int y = ox_to(c, x, AP_S32);
    if (zero < 0)
        return y;
    if (ap_shape_elems(&z) != 1)
        return ox_refuse(c, "with a zero point per row is not supported yet");
    return ox_bin(c, AP_OP_SUBTRACT, y, ox_reshape(c, ox_to(c, zero, AP_S32), 0, NULL));
}

static int matmul_integer(struct ox *c)
{
    return ox_matmul(c, centred(c, c->in[0], ox_in(c, 2)),
                     centred(c, c->in[1], ox_in(c, 3)));
}

static int conv_integer(struct ox *c)
{
    return ox_conv_of(c, centred(c, c->in[0], ox_in(c, 2)),
                      centred(c, c->in[1], ox_in(c, 3)));
}

/* a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n) */
static int window_function(struct ox *c)
{
    static const double coef[3][3] = {
        {0.5, 0.5, 0}, {25.0 / 46, 21.0 / 46, 0}, {0.42, 0.5, 0.08}};
    const double *k = coef[c->op->arg];
    struct ap_ints size;
    enum ap_dtype t = onnx_dtype(ox_attr_i(c, "output_datatype", 1));
    bool periodic = ox_attr_i(c, "periodic", 1) != 0;
    if (!ox_ints(c, 0, &size))
        return -1;
    if (size.n != 1 || size.v[0] < 1 || size.v[0] > 1 << 20 || t == AP_N_DTYPES)
        return ox_fail(c, "size or type does not fit");
    int64_t n = size.v[0];
    double span = (double)(periodic ? n : n - 1),
           *v = AP_NEW_N(c->file->arena, n, double);
    for (int64_t i = 0; i < n; i++) {
        double x = 2 * acos(-1) * (double)i / (span > 0 ? span : 1);
        v[i] = k[0] - k[1] * cos(x) + k[2] * cos(2 * x);
    }
    return ox_floats_const(c, t, 1, &n, v);
}

const struct ox_op ox_quant_ops[] = {
    {"DequantizeLinear", 10, 18, 2, 3, dequantize, 0},
    {"QuantizeLinear", 10, 18, 2, 3, quantize, 0},
    {"DynamicQuantizeLinear", 11, 20, 1, 1, dynamic_quantize, 0},
    {"MatMulInteger", 10, 20, 2, 4, matmul_integer, 0},
    {"ConvInteger", 10, 20, 2, 4, conv_integer, 0},
    {"HannWindow", 17, 20, 1, 1, window_function, 0},
    {"HammingWindow", 17, 20, 1, 1, window_function, 1},
    {"BlackmanWindow", 17, 20, 1, 1, window_function, 2},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
