/*
 * Elements of every dtype, and elementwise operators on numbers that are known. Floats
 * are evaluated by the formulas from which both backends' kernels are made, in double
 * precision; integers as 64 bits that are cut to the type's, with a refusal where HLO
 * leaves the result open.
 */
#include "graph/element.h"

#include <math.h>
#include <string.h>

#include "base/float16.h"
#include "graph/formulas.h"

/* Dtype of a complex dtype's parts, or dtype itself. */
static enum ap_dtype part_of(enum ap_dtype dtype)
{
    return dtype == AP_C64 ? AP_F32 : dtype == AP_C128 ? AP_F64 : dtype;
}

bool ap_elem_from_double(enum ap_dtype dtype, double v, void *out)
{
    enum ap_dtype part = part_of(dtype);
    float odd = ap_f64_to_f32_odd(v);
    float f = (float)v;
    uint16_t h = part == AP_F16 ? ap_f32_to_f16(odd) : ap_f32_to_bf16(odd);
    uint8_t b = part == AP_F8E5M2 ? ap_f32_to_f8e5m2(odd) : ap_f32_to_f8e4m3fn(odd);

    memset(out, 0, (size_t)ap_dtype_size(dtype));
    if (part == AP_F64)
        memcpy(out, &v, sizeof(v));
    else if (part == AP_F16 || part == AP_BF16)
        memcpy(out, &h, sizeof(h));
    else if (part == AP_F8E4M3FN || part == AP_F8E5M2)
        memcpy(out, &b, sizeof(b));
    else
        memcpy(out, &f, sizeof(f));
    return !isfinite(v) || isfinite(ap_elem_to_double(dtype, out));
}

double ap_elem_to_double(enum ap_dtype dtype, const void *p)
{
    enum ap_dtype part = part_of(dtype);
    double v;
    float f;
    uint16_t h;
    uint8_t b;

    if (part == AP_F64) {
        memcpy(&v, p, sizeof(v));
        return v;
    }
    if (part == AP_F16 || part == AP_BF16) {
        memcpy(&h, p, sizeof(h));
        return part == AP_F16 ? ap_f16_to_f32(h) : ap_bf16_to_f32(h);
    }
    if (part == AP_F8E4M3FN || part == AP_F8E5M2) {
        memcpy(&b, p, sizeof(b));
        return part == AP_F8E5M2 ? ap_f8e5m2_to_f32(b) : ap_f8e4m3fn_to_f32(b);
    }
    memcpy(&f, p, sizeof(f));
    return f;
}

bool ap_elem_from_int(enum ap_dtype dtype, int64_t v, void *out)
{
    memcpy(out, &v, (size_t)ap_dtype_size(dtype)); /* little endian */
    if (dtype == AP_PRED)
        return v == 0 || v == 1;
    if (dtype == AP_U64)
        return v >= 0;
    return ap_elem_to_int(dtype, out) == v;
}

int64_t ap_elem_to_int(enum ap_dtype dtype, const void *p)
{
    int bits = 8 * ap_dtype_size(dtype);
    uint64_t u = 0;

    memcpy(&u, p, (size_t)bits / 8);
    if (dtype >= AP_S8 && dtype <= AP_S64 && u >> (bits - 1) && bits < 64)
        u |= UINT64_MAX << bits;
    return (int64_t)u;
}

/* ---- operators ---- */

static bool is(enum ap_direction direction, double x, double y)
{
    switch (direction) {
    case AP_EQ:
        return x == y;
    case AP_NE:
        return x != y;
    case AP_GE:
        return x >= y;
    case AP_GT:
        return x > y;
    case AP_LE:
        return x <= y;
    case AP_LT:
        return x < y;
    }
    return false;
}

/* ---- integers and truth values ---- */

static bool is_unsigned(enum ap_dtype dtype)
{
    return dtype >= AP_U8 && dtype <= AP_U64;
}

/* v as an element of dtype, cut to its bits. */
static int64_t wrap(enum ap_dtype dtype, uint64_t v)
{
    int bits = 8 * ap_dtype_size(dtype);
    if (dtype == AP_PRED)
        return v != 0;
    if (bits == 64)
        return (int64_t)v;
    v &= ((uint64_t)1 << bits) - 1;
    if (!is_unsigned(dtype) && v >> (bits - 1))
        v -= (uint64_t)1 << bits;
    return (int64_t)v;
}

static bool less(enum ap_dtype dtype, int64_t a, int64_t b)
{
    return is_unsigned(dtype) ? (uint64_t)a < (uint64_t)b : a < b;
}

/* a / b or a % b; false where HLO leaves the result open. */
static bool divide(enum ap_op op, enum ap_dtype dtype, int64_t a, int64_t b,
                   uint64_t *out)
{
    bool quotient = op == AP_OP_DIVIDE;
    if (b == 0 || dtype == AP_PRED)
        return false;
    if (is_unsigned(dtype))
        *out = quotient ? (uint64_t)a / (uint64_t)b : (uint64_t)a % (uint64_t)b;
    else if (b == -1) /* the least number has no quotient in C */
        *out = quotient ? 0 - (uint64_t)a : 0;
    else
        *out = (uint64_t)(quotient ? a / b : a % b);
    return true;
}

/* node's value before it is cut to its type. */
static bool evaluate(const struct ap_node *node, enum ap_dtype dtype, const int64_t *v,
                     uint64_t *out)
{
    uint64_t a = (uint64_t)v[0], b = node->n_in > 1 ? (uint64_t)v[1] : 0;
    bool pred = dtype == AP_PRED, second_less = node->n_in > 1 && less(dtype, v[1], v[0]);

    switch ((int)node->op) {
    case AP_OP_ADD:
        *out = pred ? a | b : a + b;
        return true;
    case AP_OP_SUBTRACT:
        *out = a - b;
        return !pred;
    case AP_OP_MULTIPLY:
        *out = a * b;
        return true;
    case AP_OP_DIVIDE:
    case AP_OP_REMAINDER:
        return divide(node->op, dtype, v[0], v[1], out);
    case AP_OP_MINIMUM:
        *out = second_less ? b : a;
        return true;
    case AP_OP_MAXIMUM:
        *out = second_less ? a : b;
        return true;
    case AP_OP_AND:
        *out = a & b;
        return true;
    case AP_OP_OR:
        *out = a | b;
        return true;
    case AP_OP_XOR:
        *out = a ^ b;
        return true;
    case AP_OP_NOT:
        *out = pred ? !a : ~a;
        return true;
    case AP_OP_NEGATE:
        *out = 0 - a;
        return !pred;
    case AP_OP_ABS:
        *out = !is_unsigned(dtype) && v[0] < 0 ? 0 - a : a;
        return true;
    case AP_OP_COMPARE:
        *out = is(node->attrs->direction,
                  less(dtype, v[1], v[0]) - less(dtype, v[0], v[1]), 0);
        return true;
    case AP_OP_CLAMP:
        *out = (uint64_t)(second_less ? v[0] : less(dtype, v[2], v[1]) ? v[2] : v[1]);
        return true;
    case AP_OP_SELECT:
        *out = (uint64_t)v[v[0] ? 1 : 2];
        return true;
    case AP_OP_CONVERT:
    case AP_OP_COPY:
    case AP_OP_RESHAPE:
    case AP_OP_BROADCAST:
        *out = a;
        return true;
    }
    return false;
}

bool ap_eval_int(const struct ap_node *node, enum ap_dtype dtype, const int64_t *v,
                 int64_t *out)
{
    uint64_t value;
    if (!node->n_in || !evaluate(node, dtype, v, &value))
        return false;
    *out = wrap(node->shape.dtype, value);
    return true;
}

/* ---- floats ---- */

#define OWN_EXP_f64  exp
#define OWN_TANH_f64 tanh
#define CASE(OP, S, T, expr) \
    case AP_OP_##OP:         \
        *out = expr;         \
        return true;

bool ap_eval_float(const struct ap_node *node, const double *v, double *out)
{
    const double x = v[0], y = node->n_in > 1 ? v[1] : 0;

    switch ((int)node->op) {
        FLOAT_FORMULAS(CASE, CASE, double, f64, )
    case AP_OP_COPY:
    case AP_OP_OPT_BARRIER:
        *out = x;
        return true;
    case AP_OP_IS_FINITE:
        *out = isfinite(x);
        return true;
    case AP_OP_COMPARE:
        *out = is(node->attrs->direction, x, y);
        return true;
    case AP_OP_SELECT:
        *out = x != 0 ? y : v[2];
        return true;
    }
    return false;
}
