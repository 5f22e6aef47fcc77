/* Elementwise operators. */
#include "onnx/onnx.h"

#include <math.h>
#include <string.h>

static int need_float(struct ox *c, int x)
{
    if (x >= 0 && !ap_dtype_is_float(ox_dtype(c, x)))
        return ox_refuse(c, "of %s is not supported yet", ap_dtype_name(ox_dtype(c, x)));
    return x;
}

static int unary(struct ox *c)
{
    return ox_unary(c, (enum ap_op)c->op->arg, c->in[0]);
}

static int binary(struct ox *c)
{
    return ox_bin(c, (enum ap_op)c->op->arg, c->in[0], c->in[1]);
}

static int compare(struct ox *c)
{
    return ox_cmp(c, (enum ap_direction)c->op->arg, c->in[0], c->in[1]);
}

/* Sum, Mean, Max, Min of any number of operands. */
static int variadic(struct ox *c)
{
    int x = c->in[0];
    for (int i = 1; i < c->n_in; i++)
        x = ox_bin(c, (enum ap_op)c->op->arg, x, c->in[i]);
    return strcmp(c->op->name, "Mean") == 0
               ? ox_with(c, AP_OP_DIVIDE, need_float(c, x), c->n_in)
               : x;
}

static int power(struct ox *c)
{
    int x = c->in[0], y = c->in[1];
    enum ap_dtype tx = ox_dtype(c, x), ty = ox_dtype(c, y);
    if (tx == ty)
        return ox_bin(c, AP_OP_POWER, x, y);
    if (ap_dtype_is_float(tx) && (ap_dtype_is_int(ty) || ap_dtype_is_float(ty)))
        return ox_bin(c, AP_OP_POWER, x, ox_to(c, y, tx));
    if (ap_dtype_is_int(tx) && ap_dtype_is_int(ty))
        return ox_to(c, ox_bin(c, AP_OP_POWER, ox_to(c, x, AP_S64), ox_to(c, y, AP_S64)),
                     tx);
    if (ap_dtype_is_int(tx) && ap_dtype_is_float(ty))
        return ox_to(c, ox_bin(c, AP_OP_POWER, ox_to(c, x, AP_F64), ox_to(c, y, AP_F64)),
                     tx);
    return ox_refuse(c, "of %s and %s is not supported yet", ap_dtype_name(tx),
                     ap_dtype_name(ty));
}

/* fmod: the sign of the dividend; otherwise that of the divisor. */
static int mod(struct ox *c)
{
    int x = c->in[0], y = c->in[1];
    bool fmod_sign = ox_attr_i(c, "fmod", 0) != 0;
    if (!fmod_sign && ap_dtype_is_float(ox_dtype(c, x)))
        return ox_fail(c, "of floats needs fmod=1");
    int r = ox_bin(c, AP_OP_REMAINDER, x, y);
    if (fmod_sign || r < 0)
        return r;
    int zero = ox_full_like(c, r, 0);
    int other = ox_bin(c, AP_OP_AND, ox_cmp(c, AP_NE, r, zero),
                       ox_bin(c, AP_OP_XOR, ox_cmp(c, AP_LT, r, zero),
                              ox_cmp(c, AP_LT, y, ox_full_like(c, y, 0))));
    return ox_select(c, other, ox_bin(c, AP_OP_ADD, r, y), r);
}

static int shift(struct ox *c)
{
    const char *dir = ox_attr_s(c, "direction", "");
    if (strcmp(dir, "LEFT") != 0 && strcmp(dir, "RIGHT") != 0)
        return ox_fail(c, "direction '%s'", dir);
    return ox_bin(c, *dir == 'L' ? AP_OP_SHIFT_LEFT : AP_OP_SHIFT_RIGHT_LOGICAL, c->in[0],
                  c->in[1]);
}

/* ---- functions of one operand ---- */

static int square(struct ox *c, int x)
{
    return ox_bin(c, AP_OP_MULTIPLY, x, x);
}

/* log(1 + exp(x)) without overflow */
static int softplus_of(struct ox *c, int x)
{
    int e = ox_unary(c, AP_OP_EXPONENTIAL,
                     ox_unary(c, AP_OP_NEGATE, ox_unary(c, AP_OP_ABS, x)));
    return ox_bin(c, AP_OP_ADD, ox_with(c, AP_OP_MAXIMUM, x, 0),
                  ox_unary(c, AP_OP_LOG_PLUS_ONE, e));
}

static int relu_of(struct ox *c, int x)
{
    return ox_with(c, AP_OP_MAXIMUM, x, 0);
}

enum fn {
    FN_RELU,
    FN_SOFTPLUS,
    FN_SOFTSIGN,
    FN_RECIPROCAL,
    FN_ASIN,
    FN_ACOS,
    FN_ATAN,
    FN_ACOSH,
    FN_ATANH,
    FN_HARD_SWISH,
    FN_MISH,
    FN_IS_NAN
};

static int circle(struct ox *c, int x) /* sqrt(1 - x^2) */
{
    int one = ox_full_like(c, x, 1);
    return ox_unary(c, AP_OP_SQRT,
                    ox_bin(c, AP_OP_MULTIPLY, ox_bin(c, AP_OP_SUBTRACT, one, x),
                           ox_bin(c, AP_OP_ADD, one, x)));
}

static int function_of(struct ox *c, enum fn fn, int x)
{
    int y;
    switch (fn) {
    case FN_RELU:
        return relu_of(c, x);
    case FN_SOFTPLUS:
        return softplus_of(c, x);
    case FN_SOFTSIGN:
        return ox_bin(c, AP_OP_DIVIDE, x,
                      ox_with(c, AP_OP_ADD, ox_unary(c, AP_OP_ABS, x), 1));
    case FN_RECIPROCAL:
        return ox_bin(c, AP_OP_DIVIDE, ox_full_like(c, x, 1), x);
    case FN_ASIN:
        return ox_bin(c, AP_OP_ATAN2, x, circle(c, x));
    case FN_ACOS:
        return ox_bin(c, AP_OP_ATAN2, circle(c, x), x);
    case FN_ATAN:
        return ox_bin(c, AP_OP_ATAN2, x, ox_full_like(c, x, 1));
    case FN_ACOSH:
        y = ox_unary(c, AP_OP_SQRT,
                     ox_bin(c, AP_OP_MULTIPLY, ox_with(c, AP_OP_SUBTRACT, x, 1),
                            ox_with(c, AP_OP_ADD, x, 1)));
        return ox_unary(c, AP_OP_LOG, ox_bin(c, AP_OP_ADD, x, y));
    case FN_ATANH:
        y = ox_unary(c, AP_OP_LOG_PLUS_ONE, ox_unary(c, AP_OP_NEGATE, x));
        y = ox_bin(c, AP_OP_SUBTRACT, ox_unary(c, AP_OP_LOG_PLUS_ONE, x), y);
        return ox_with(c, AP_OP_MULTIPLY, y, 0.5);
    case FN_HARD_SWISH:
        y = ox_with(c, AP_OP_ADD, ox_with(c, AP_OP_DIVIDE, x, 6), 0.5);
        y = ox_with(c, AP_OP_MINIMUM, relu_of(c, y), 1);
        return ox_bin(c, AP_OP_MULTIPLY, x, y);
    case FN_MISH:
        return ox_bin(c, AP_OP_MULTIPLY, x, ox_unary(c, AP_OP_TANH, softplus_of(c, x)));
    case FN_IS_NAN:
        return ox_cmp(c, AP_NE, x, x);
    }
    return -1;
}

static int function(struct ox *c)
{
    bool ints = c->op->arg == FN_RELU;
    return function_of(c, (enum fn)c->op->arg, ints ? c->in[0] : need_float(c, c->in[0]));
}

/* ---- functions with parameters ---- */

/* x where it is positive, f(x) elsewhere */
static int positive_else(struct ox *c, int x, int otherwise)
{
    return ox_select(c, ox_cmp(c, AP_GT, x, ox_full_like(c, x, 0)), x, otherwise);
}

static int elu_of(struct ox *c, int x, double alpha, double scale)
{
    int low = ox_with(c, AP_OP_MINIMUM, x, 0); /* no overflow where it is not used */
    if (scale != 1)
        low = ox_with(c, AP_OP_DIVIDE, low, scale);
    low = ox_unary(c, AP_OP_EXPONENTIAL_MINUS_ONE, low);
    return positive_else(c, x, ox_with(c, AP_OP_MULTIPLY, low, alpha));
}

static int elu(struct ox *c)
{
    int x = need_float(c, c->in[0]);
    if (strcmp(c->op->name, "Celu") == 0) {
        double alpha = ox_attr_f(c, "alpha", 1);
        return elu_of(c, x, alpha, alpha);
    }
    if (strcmp(c->op->name, "Elu") == 0)
        return elu_of(c, x, ox_attr_f(c, "alpha", 1), 1);
    double alpha = ox_attr_f(c, "alpha", 1.67326319217681884765625);
    double gamma = ox_attr_f(c, "gamma", 1.05070102214813232421875);
    return ox_with(c, AP_OP_MULTIPLY, elu_of(c, x, alpha, 1), gamma);
}

static int leaky_relu(struct ox *c)
{
    int x = need_float(c, c->in[0]);
    return positive_else(c, x,
                         ox_with(c, AP_OP_MULTIPLY, x, ox_attr_f(c, "alpha", 0.01f)));
}

static int prelu(struct ox *c)
{
    int x = c->in[0], y = ox_bin(c, AP_OP_MULTIPLY, x, c->in[1]);
    if (y >= 0 && !ap_shape_same_dims(&c->b.nodes[x].shape, &c->b.nodes[y].shape))
        return ox_fail(c, "the slope does not broadcast to the input");
    return positive_else(c, x, y);
}

static int thresholded_relu(struct ox *c)
{
    int x = need_float(c, c->in[0]);
    int above = ox_cmp(c, AP_GT, x, ox_full_like(c, x, ox_attr_f(c, "alpha", 1)));
    return ox_select(c, above, x, ox_full_like(c, x, 0));
}

static int hard_sigmoid(struct ox *c)
{
    int x =
        ox_with(c, AP_OP_MULTIPLY, need_float(c, c->in[0]), ox_attr_f(c, "alpha", 0.2f));
    x = ox_with(c, AP_OP_ADD, x, ox_attr_f(c, "beta", 0.5));
    return ox_with(c, AP_OP_MINIMUM, relu_of(c, x), 1);
}

static int shrink(struct ox *c)
{
    int x = need_float(c, c->in[0]);
    double lambda = ox_attr_f(c, "lambd", 0.5), bias = ox_attr_f(c, "bias", 0);
    int zero = ox_full_like(c, x, 0);
    int low = ox_cmp(c, AP_LT, x, ox_full_like(c, x, -lambda));
    int high = ox_cmp(c, AP_GT, x, ox_full_like(c, x, lambda));
    int y = ox_select(c, high, ox_with(c, AP_OP_SUBTRACT, x, bias), zero);
    return ox_select(c, low, ox_with(c, AP_OP_ADD, x, bias), y);
}

static int gelu(struct ox *c)
{
    int x = need_float(c, c->in[0]), y;
    const char *how = ox_attr_s(c, "approximate", "none");
    if (strcmp(how, "tanh") == 0) {
        y = ox_with(c, AP_OP_MULTIPLY, ox_bin(c, AP_OP_MULTIPLY, x, square(c, x)),
                    0.044715);
        y = ox_with(c, AP_OP_MULTIPLY, ox_bin(c, AP_OP_ADD, x, y), sqrt(2 / acos(-1)));
        y = ox_unary(c, AP_OP_TANH, y);
    } else if (strcmp(how, "none") == 0) {
        y = ox_unary(c, AP_OP_ERF, ox_with(c, AP_OP_MULTIPLY, x, sqrt(0.5)));
    } else {
        return ox_refuse(c, "approximate '%s' is not supported yet", how);
    }
    y = ox_with(c, AP_OP_ADD, y, 1);
    return ox_with(c, AP_OP_MULTIPLY, ox_bin(c, AP_OP_MULTIPLY, x, y), 0.5);
}

static int is_inf(struct ox *c)
{
    int x = need_float(c, c->in[0]);
    bool pos = ox_attr_i(c, "detect_positive", 1),
         neg = ox_attr_i(c, "detect_negative", 1);
    int p = ox_cmp(c, AP_EQ, x, ox_full_like(c, x, INFINITY));
    int n = ox_cmp(c, AP_EQ, x, ox_full_like(c, x, -INFINITY));
    if (pos && neg)
        return ox_bin(c, AP_OP_OR, p, n);
    if (pos || neg)
        return pos ? p : n;
    return ox_full(c, AP_PRED, ox_rank(c, x), ox_shape(c, x).dims, 0);
}

static int clip(struct ox *c)
{
    int x = c->in[0], lo = ox_in(c, 1), hi = ox_in(c, 2);
    if (c->opset < 11) {
        x = ox_with(c, AP_OP_MAXIMUM, x,
                    ox_attr_f(c, "min", -(double)3.4028234663852886e38));
        return ox_with(c, AP_OP_MINIMUM, x, ox_attr_f(c, "max", 3.4028234663852886e38));
    }
    if ((lo >= 0 && ox_rank(c, lo)) || (hi >= 0 && ox_rank(c, hi)))
        return ox_fail(c, "the bounds are not scalars");
    x = lo >= 0 ? ox_bin(c, AP_OP_MAXIMUM, x, lo) : x;
    return hi >= 0 ? ox_bin(c, AP_OP_MINIMUM, x, hi) : x;
}

static int where(struct ox *c)
{
    return ox_select(c, c->in[0], c->in[1], c->in[2]);
}

/* ---- types ---- */

static int cast_to(struct ox *c, int x, enum ap_dtype to)
{
    enum ap_dtype from = ox_dtype(c, x);
    bool ok = to != AP_N_DTYPES && ap_dtype_size(to) > 0 && to != AP_C64 &&
              to != AP_C128 && to != AP_F8E4M3FN && to != AP_F8E5M2;
    if (!ok || from == AP_C64 || from == AP_C128)
        return ox_refuse(c, "to this element type is not supported yet");
    return ox_to(c, x, to);
}

static int cast(struct ox *c)
{
    return cast_to(c, c->in[0], onnx_dtype(ox_attr_i(c, "to", 0)));
}

static int cast_like(struct ox *c)
{
    return cast_to(c, c->in[0], ox_dtype(c, c->in[1]));
}

static int identity(struct ox *c)
{
    return c->in[0];
}

/* At inference nothing is dropped. */
static int dropout(struct ox *c)
{
    int x = c->in[0];
    double ratio = c->opset < 12 ? ox_attr_f(c, "ratio", 0.5) : 0.5;
    bool training = false;
    if (c->opset >= 12 && ox_in(c, 2) >= 0) {
        const struct ox_val *t = ox_eval(c, c->in[2]);
        if (!t || !t->i || t->n != 1)
            return ox_refuse(c, "whose training_mode is not known (see --values) is not "
                                "supported yet");
        training = t->i[0];
    }
    if (training && ox_in(c, 1) >= 0) {
        const struct ox_val *r = ox_eval(c, c->in[1]);
        if (!r || !r->f || r->n != 1)
            return ox_refuse(c, "whose ratio is not known is not supported yet");
        ratio = r->f[0];
    }
    if (training && ratio != 0)
        return ox_refuse(c, "in training mode (random numbers) is not supported yet");
    if (ox_wants(c, 1))
        c->out[1] = ox_full(c, c->opset < 10 ? ox_dtype(c, x) : AP_PRED, ox_rank(c, x),
                            ox_shape(c, x).dims, 1);
    return x;
}

#define UNARY(name, op)                      \
    {                                        \
        name, 1, 20, 1, 1, unary, AP_OP_##op \
    }
#define BINARY(name, op)                      \
    {                                         \
        name, 7, 20, 2, 2, binary, AP_OP_##op \
    }
#define FN(name, fn)                         \
    {                                        \
        name, 1, 20, 1, 1, function, FN_##fn \
    }

const struct ox_op ox_math_ops[] = {
    UNARY("Abs", ABS),
    UNARY("Ceil", CEIL),
    UNARY("Cos", COSINE),
    UNARY("Erf", ERF),
    UNARY("Exp", EXPONENTIAL),
    UNARY("Floor", FLOOR),
    UNARY("Log", LOG),
    UNARY("Neg", NEGATE),
    UNARY("Not", NOT),
    UNARY("BitwiseNot", NOT),
    UNARY("Round", ROUND_EVEN),
    UNARY("Sigmoid", LOGISTIC),
    UNARY("Sign", SIGN),
    UNARY("Sin", SINE),
    UNARY("Sqrt", SQRT),
    UNARY("Asinh", ASINH),
    UNARY("Cosh", COSH),
    UNARY("Sinh", SINH),
    UNARY("Tan", TAN),
    UNARY("Tanh", TANH),
    BINARY("Add", ADD),
    BINARY("And", AND),
    BINARY("BitwiseAnd", AND),
    BINARY("BitwiseOr", OR),
    BINARY("BitwiseXor", XOR),
    BINARY("Div", DIVIDE),
    BINARY("Mul", MULTIPLY),
    BINARY("Or", OR),
    BINARY("Sub", SUBTRACT),
    BINARY("Xor", XOR),
    {"Equal", 7, 20, 2, 2, compare, AP_EQ},
    {"Greater", 7, 20, 2, 2, compare, AP_GT},
    {"GreaterOrEqual", 12, 20, 2, 2, compare, AP_GE},
    {"Less", 7, 20, 2, 2, compare, AP_LT},
    {"LessOrEqual", 12, 20, 2, 2, compare, AP_LE},
    {"Max", 8, 20, 1, -1, variadic, AP_OP_MAXIMUM},
    {"Mean", 8, 20, 1, -1, variadic, AP_OP_ADD},
    {"Min", 8, 20, 1, -1, variadic, AP_OP_MINIMUM},
    {"Sum", 8, 20, 1, -1, variadic, AP_OP_ADD},
    {"Pow", 7, 20, 2, 2, power, 0},
    {"Mod", 10, 20, 2, 2, mod, 0},
    {"BitShift", 11, 20, 2, 2, shift, 0},
    FN("Relu", RELU),
    FN("Softplus", SOFTPLUS),
    FN("Softsign", SOFTSIGN),
    FN("Reciprocal", RECIPROCAL),
    FN("Asin", ASIN),
    FN("Acos", ACOS),
    FN("Atan", ATAN),
    FN("Acosh", ACOSH),
    FN("Atanh", ATANH),
    FN("HardSwish", HARD_SWISH),
    FN("Mish", MISH),
    FN("IsNaN", IS_NAN),
    {"Celu", 12, 20, 1, 1, elu, 0},
    {"Elu", 6, 20, 1, 1, elu, 0},
    {"Selu", 6, 20, 1, 1, elu, 0},
    {"LeakyRelu", 6, 20, 1, 1, leaky_relu, 0},
    {"PRelu", 7, 20, 2, 2, prelu, 0},
    {"ThresholdedRelu", 10, 20, 1, 1, thresholded_relu, 0},
    {"HardSigmoid", 6, 20, 1, 1, hard_sigmoid, 0},
    {"Shrink", 9, 20, 1, 1, shrink, 0},
    {"Gelu", 20, 20, 1, 1, gelu, 0},
    {"IsInf", 10, 20, 1, 1, is_inf, 0},
    {"Clip", 6, 20, 1, 3, clip, 0},
    {"Where", 9, 20, 3, 3, where, 0},
    {"Cast", 6, 20, 1, 1, cast, 0},
    {"CastLike", 15, 20, 2, 2, cast_like, 0},
    {"Identity", 1, 20, 1, 1, identity, 0},
    {"Dropout", 7, 20, 1, 3, dropout, 0},
    {NULL, 0, 0, 0, 0, NULL, 0},
};
