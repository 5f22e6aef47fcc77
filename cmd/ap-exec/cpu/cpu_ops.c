/*
 * Elementwise operations on f32 and f64, and what is common to all types: loads, stores,
 * rounding, the look-up. Plain loops that the compiler vectorises; without contraction
 * and fast-math an element's bits are those of the scalar expression, wherever it lies.
 * libm functions are called per element.
 */
#include "cpu/cpu.h"
#include "cpu/cpu_math.h"

#include <math.h>
#include <string.h>

enum cpu_kind cpu_kind(enum ap_dtype dtype)
{
    switch (dtype) {
    case AP_PRED:
        return CPU_PRED;
    case AP_S8:
        return CPU_S8;
    case AP_S16:
        return CPU_S16;
    case AP_S32:
        return CPU_S32;
    case AP_S64:
        return CPU_S64;
    case AP_U8:
        return CPU_U8;
    case AP_U16:
        return CPU_U16;
    case AP_U32:
        return CPU_U32;
    case AP_U64:
        return CPU_U64;
    case AP_F16:
    case AP_BF16:
    case AP_F32:
        return CPU_F32;
    case AP_F64:
        return CPU_F64;
    case AP_C64:
        return CPU_C64;
    case AP_F8E4M3FN:
    case AP_F8E5M2:
    case AP_C128:
    case AP_TUPLE:
    case AP_N_DTYPES:
        break;
    }
    return CPU_N_KINDS;
}

int cpu_kind_size(enum cpu_kind kind)
{
    static const int size[CPU_N_KINDS] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 8};
    return size[kind];
}

/* ---- f32 and f64 ---- */

#define UNUSED_ARGS(...) ((void)stride, (void)a, (void)b, (void)c)

#define UNARY(name, T, expr)                                                        \
    CPU_WIDE static void name(void *d, const void *a, const void *b, const void *c, \
                              const int *stride, int64_t n)                         \
    {                                                                               \
        UNUSED_ARGS();                                                              \
        T *o = d;                                                                   \
        const T *p = a;                                                             \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                        \
        {                                                                           \
            const T x = p[i];                                                       \
            o[i] = (expr);                                                          \
        }                                                                           \
    }

#define BINARY_TO(name, T, R, expr)                                                 \
    CPU_WIDE static void name(void *d, const void *a, const void *b, const void *c, \
                              const int *stride, int64_t n)                         \
    {                                                                               \
        UNUSED_ARGS();                                                              \
        R *o = d;                                                                   \
        const T *p = a, *q = b;                                                     \
        if (!stride[0]) {                                                           \
            const T x = p[0];                                                       \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                    \
            {                                                                       \
                const T y = q[i];                                                   \
                o[i] = (R)(expr);                                                   \
            }                                                                       \
        } else if (!stride[1]) {                                                    \
            const T y = q[0];                                                       \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                    \
            {                                                                       \
                const T x = p[i];                                                   \
                o[i] = (R)(expr);                                                   \
            }                                                                       \
        } else {                                                                    \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                    \
            {                                                                       \
                const T x = p[i], y = q[i];                                         \
                o[i] = (R)(expr);                                                   \
            }                                                                       \
        }                                                                           \
    }
#define BINARY(name, T, expr) BINARY_TO(name, T, T, expr)

/* clamp(low, x, high): the bounds are mostly scalars. */
#define CLAMP(name, T, expr)                                                        \
    CPU_WIDE static void name(void *d, const void *a, const void *b, const void *c, \
                              const int *stride, int64_t n)                         \
    {                                                                               \
        T *o = d;                                                                   \
        const T *l = a, *p = b, *h = c;                                             \
        const int64_t sl = stride[0], sp = stride[1], sh = stride[2];               \
        for (int64_t i = 0; i < n; i++) {                                           \
            const T lo = l[i * sl], hi = h[i * sh];                                 \
            T x = p[i * sp];                                                        \
            o[i] = (expr);                                                          \
        }                                                                           \
    }

#define EXP_f32(x)  cpu_expf(x)
#define EXP_f64(x)  exp(x)
#define TANH_f32(x) cpu_tanhf(x)
#define TANH_f64(x) tanh(x)

#define FLOAT_OPS(T, S, sfx)                                                     \
    UNARY(abs_##S, T, fabs##sfx(x))                                              \
    UNARY(cbrt_##S, T, cbrt##sfx(x))                                             \
    UNARY(ceil_##S, T, ceil##sfx(x))                                             \
    UNARY(cos_##S, T, cos##sfx(x))                                               \
    UNARY(erf_##S, T, erf##sfx(x))                                               \
    UNARY(exp_##S, T, EXP_##S(x))                                                \
    UNARY(expm1_##S, T, expm1##sfx(x))                                           \
    UNARY(floor_##S, T, floor##sfx(x))                                           \
    UNARY(log_##S, T, log##sfx(x))                                               \
    UNARY(log1p_##S, T, log1p##sfx(x))                                           \
    UNARY(logistic_##S, T, 1 / (1 + EXP_##S(-x)))                                \
    UNARY(neg_##S, T, -x)                                                        \
    UNARY(afz_##S, T, round##sfx(x))                                             \
    UNARY(even_##S, T, rint##sfx(x))                                             \
    UNARY(rsqrt_##S, T, 1 / sqrt##sfx(x))                                        \
    UNARY(sign_##S, T, x > 0 ? 1 : x < 0 ? -1 : x)                               \
    UNARY(sin_##S, T, sin##sfx(x))                                               \
    UNARY(sqrt_##S, T, sqrt##sfx(x))                                             \
    UNARY(tan_##S, T, tan##sfx(x))                                               \
    UNARY(tanh_##S, T, TANH_##S(x))                                              \
    BINARY(add_##S, T, x + y)                                                    \
    BINARY(atan2_##S, T, atan2##sfx(x, y))                                       \
    BINARY(div_##S, T, x / y)                                                    \
    BINARY(max_##S, T, x > y || x != x ? x : y)                                  \
    BINARY(min_##S, T, x < y || x != x ? x : y)                                  \
    BINARY(mul_##S, T, x *y)                                                     \
    BINARY(pow_##S, T, pow##sfx(x, y))                                           \
    BINARY(rem_##S, T, fmod##sfx(x, y))                                          \
    BINARY(sub_##S, T, x - y)                                                    \
    BINARY_TO(eq_##S, T, uint8_t, x == y)                                        \
    BINARY_TO(ne_##S, T, uint8_t, x != y)                                        \
    BINARY_TO(ge_##S, T, uint8_t, x >= y)                                        \
    BINARY_TO(gt_##S, T, uint8_t, x > y)                                         \
    BINARY_TO(le_##S, T, uint8_t, x <= y)                                        \
    BINARY_TO(lt_##S, T, uint8_t, x < y)                                         \
    CLAMP(clamp_##S, T,                                                          \
          ((x = lo > x || lo != lo ? lo : x), hi < x || hi != hi ? hi : x))      \
    static void finite_##S(void *d, const void *a, const void *b, const void *c, \
                           const int *stride, int64_t n)                         \
    {                                                                            \
        UNUSED_ARGS();                                                           \
        uint8_t *o = d;                                                          \
        const T *p = a;                                                          \
        for (int64_t i = 0; i < n; i++)                                          \
            o[i] = fabs##sfx(p[i]) < (T)INFINITY;                                \
    }

FLOAT_OPS(float, f32, f)
FLOAT_OPS(double, f64, )

#define COMPARES(S)                                    \
    {                                                  \
        eq_##S, ne_##S, ge_##S, gt_##S, le_##S, lt_##S \
    }
#define FLOAT_ROWS(i, S)                                                                 \
    [AP_OP_ABS][i] = abs_##S, [AP_OP_CBRT][i] = cbrt_##S, [AP_OP_CEIL][i] = ceil_##S,    \
    [AP_OP_COSINE][i] = cos_##S, [AP_OP_ERF][i] = erf_##S,                               \
    [AP_OP_EXPONENTIAL][i] = exp_##S, [AP_OP_EXPONENTIAL_MINUS_ONE][i] = expm1_##S,      \
    [AP_OP_FLOOR][i] = floor_##S, [AP_OP_IS_FINITE][i] = finite_##S,                     \
    [AP_OP_LOG][i] = log_##S, [AP_OP_LOG_PLUS_ONE][i] = log1p_##S,                       \
    [AP_OP_LOGISTIC][i] = logistic_##S, [AP_OP_NEGATE][i] = neg_##S,                     \
    [AP_OP_ROUND_AFZ][i] = afz_##S, [AP_OP_ROUND_EVEN][i] = even_##S,                    \
    [AP_OP_RSQRT][i] = rsqrt_##S, [AP_OP_SIGN][i] = sign_##S, [AP_OP_SINE][i] = sin_##S, \
    [AP_OP_SQRT][i] = sqrt_##S, [AP_OP_TAN][i] = tan_##S, [AP_OP_TANH][i] = tanh_##S,    \
    [AP_OP_ADD][i] = add_##S, [AP_OP_ATAN2][i] = atan2_##S, [AP_OP_DIVIDE][i] = div_##S, \
    [AP_OP_MAXIMUM][i] = max_##S, [AP_OP_MINIMUM][i] = min_##S,                          \
    [AP_OP_MULTIPLY][i] = mul_##S, [AP_OP_POWER][i] = pow_##S,                           \
    [AP_OP_REMAINDER][i] = rem_##S, [AP_OP_SUBTRACT][i] = sub_##S,                       \
    [AP_OP_CLAMP][i] = clamp_##S

cpu_fn *cpu_float_find(enum ap_op op, enum ap_direction direction, enum cpu_kind kind)
{
    static cpu_fn *const table[AP_N_OPS][2] = {FLOAT_ROWS(0, f32), FLOAT_ROWS(1, f64)};
    static cpu_fn *const compare[2][6] = {COMPARES(f32), COMPARES(f64)};
    const int i = kind == CPU_F64;
    if (op == AP_OP_COMPARE)
        return compare[i][direction];
    return table[op][i];
}

/*
 * Keeps e exponent and m mantissa bits of f32 (c points to them): rounds to even, what is
 * too large becomes infinite, what is too small zero; XLA's reduce-precision.
 */
static void reduce_precision(void *d, const void *a, const void *b, const void *c,
                             const int *stride, int64_t n)
{
    (void)b, (void)stride;
    const int64_t *bits = c;
    const int drop = 23 - (int)(bits[1] < 23 ? bits[1] : 23);
    const int bias = bits[0] >= 8 ? 127 : (1 << (bits[0] - 1)) - 1;
    const uint32_t top = (uint32_t)(127 + bias) << 23;     /* largest exponent kept */
    const uint32_t low = (uint32_t)(127 - bias + 1) << 23; /* smallest normal kept */
    const uint32_t *p = a;
    uint32_t *o = d;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t sign = p[i] & 0x80000000u;
        uint32_t v = p[i] & 0x7fffffffu;
        if (v <= 0x7f800000u) {
            if (drop > 0 && v < 0x7f800000u)
                v = (v + (1u << (drop - 1)) - 1 + ((v >> drop) & 1)) &
                    ~((1u << drop) - 1);
            if (bits[0] < 8 && v >= top + 0x800000u)
                v = 0x7f800000u;
            if (bits[0] < 8 && v < low)
                v = 0;
        } else {
            v |= 0x400000u;
        }
        o[i] = sign | v;
    }
}

static void copy_1(void *d, const void *a, const void *b, const void *c,
                   const int *stride, int64_t n)
{
    UNUSED_ARGS();
    memmove(d, a, (size_t)n);
}
static void copy_2(void *d, const void *a, const void *b, const void *c,
                   const int *stride, int64_t n)
{
    UNUSED_ARGS();
    memmove(d, a, (size_t)n * 2);
}
static void copy_4(void *d, const void *a, const void *b, const void *c,
                   const int *stride, int64_t n)
{
    UNUSED_ARGS();
    memmove(d, a, (size_t)n * 4);
}
static void copy_8(void *d, const void *a, const void *b, const void *c,
                   const int *stride, int64_t n)
{
    UNUSED_ARGS();
    memmove(d, a, (size_t)n * 8);
}

/* select(pred, on true, on false) by element size: it only moves bits. */
#define SELECT(name, T)                                                             \
    CPU_WIDE static void name(void *d, const void *a, const void *b, const void *c, \
                              const int *stride, int64_t n)                         \
    {                                                                               \
        T *o = d;                                                                   \
        const uint8_t *p = a;                                                       \
        const T *t = b, *f = c;                                                     \
        if (stride[0] && stride[1] && stride[2]) {                                  \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                    \
            {                                                                       \
                const T x = t[i], y = f[i];                                         \
                o[i] = p[i] ? x : y;                                                \
            }                                                                       \
        } else if (stride[0] && stride[1]) {                                        \
            const T y = f[0];                                                       \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                    \
            {                                                                       \
                const T x = t[i];                                                   \
                o[i] = p[i] ? x : y;                                                \
            }                                                                       \
        } else {                                                                    \
            const int64_t sp = stride[0], st = stride[1], sf = stride[2];           \
            for (int64_t i = 0; i < n; i++)                                         \
                o[i] = p[i * sp] ? t[i * st] : f[i * sf];                           \
        }                                                                           \
    }
SELECT(select_1, uint8_t)
SELECT(select_2, uint16_t)
SELECT(select_4, uint32_t)
SELECT(select_8, uint64_t)

/* Bits as integers whose order is the floats' total order. */
#define ORDERED(T, U, x) \
    ((T)((x) ^ (U)(((x) >> (8 * sizeof(T) - 1) ? (U)-1 : (U)0) >> 1)))
#define TOTAL_ORDER(T, U, S)                                                  \
    BINARY_TO(total_eq_##S, U, uint8_t, x == y)                               \
    BINARY_TO(total_ne_##S, U, uint8_t, x != y)                               \
    BINARY_TO(total_ge_##S, U, uint8_t, ORDERED(T, U, x) >= ORDERED(T, U, y)) \
    BINARY_TO(total_gt_##S, U, uint8_t, ORDERED(T, U, x) > ORDERED(T, U, y))  \
    BINARY_TO(total_le_##S, U, uint8_t, ORDERED(T, U, x) <= ORDERED(T, U, y)) \
    BINARY_TO(total_lt_##S, U, uint8_t, ORDERED(T, U, x) < ORDERED(T, U, y))
TOTAL_ORDER(int32_t, uint32_t, f32)
TOTAL_ORDER(int64_t, uint64_t, f64)

cpu_fn *cpu_compare_find(const struct ap_attrs *attrs, enum ap_dtype in)
{
    static cpu_fn *const total[2][6] = {{total_eq_f32, total_ne_f32, total_ge_f32,
                                         total_gt_f32, total_le_f32, total_lt_f32},
                                        {total_eq_f64, total_ne_f64, total_ge_f64,
                                         total_gt_f64, total_le_f64, total_lt_f64}};
    const enum cpu_kind k = cpu_kind(in);
    if (attrs->total_order && (k == CPU_F32 || k == CPU_F64))
        return total[k == CPU_F64][attrs->direction];
    return cpu_op_find(AP_OP_COMPARE, attrs->direction, in, AP_PRED);
}

/* The bits of half precision numbers, which registers hold as f32. */
#define HALF_BITS(name, F, T, expr)                                        \
    static void name(void *d, const void *a, const void *b, const void *c, \
                     const int *stride, int64_t n)                         \
    {                                                                      \
        UNUSED_ARGS();                                                     \
        T *o = d;                                                          \
        const F *p = a;                                                    \
        for (int64_t i = 0; i < n; i++)                                    \
            o[i] = (expr);                                                 \
    }
HALF_BITS(bf16_to_bits, uint32_t, uint16_t, (uint16_t)(p[i] >> 16))
HALF_BITS(bits_to_bf16, uint16_t, uint32_t, (uint32_t)p[i] << 16)
HALF_BITS(f16_to_bits, float, uint16_t, ap_f32_to_f16(p[i]))
HALF_BITS(bits_to_f16, uint16_t, float, ap_f16_to_f32(p[i]))

/* NULL between bf16 and f16, which nobody needs. */
static cpu_fn *bitcast_find(enum ap_dtype in, enum ap_dtype out)
{
    static cpu_fn *const copies[9] = {
        [1] = copy_1, [2] = copy_2, [4] = copy_4, [8] = copy_8};
    if (in == out || (cpu_is_plain(in) && cpu_is_plain(out)))
        return copies[cpu_kind_size(cpu_kind(out))];
    if (!cpu_is_plain(in) && !cpu_is_plain(out))
        return NULL;
    if (!cpu_is_plain(in))
        return in == AP_BF16 ? bf16_to_bits : f16_to_bits;
    return out == AP_BF16 ? bits_to_bf16 : bits_to_f16;
}

cpu_fn *cpu_op_find(enum ap_op op, enum ap_direction direction, enum ap_dtype in,
                    enum ap_dtype out)
{
    static cpu_fn *const copies[9] = {
        [1] = copy_1, [2] = copy_2, [4] = copy_4, [8] = copy_8};
    static cpu_fn *const selects[9] = {
        [1] = select_1, [2] = select_2, [4] = select_4, [8] = select_8};
    const enum cpu_kind k = cpu_kind(in), to = cpu_kind(out);
    if (k == CPU_N_KINDS || to == CPU_N_KINDS)
        return NULL;
    switch ((int)op) {
    case AP_OP_CONVERT:
        return k == to ? copies[cpu_kind_size(to)] : cpu_convert_find(k, to);
    case AP_OP_BITCAST_CONVERT:
        return bitcast_find(in, out);
    case AP_OP_COPY:
    case AP_OP_OPT_BARRIER:
        return copies[cpu_kind_size(to)];
    case AP_OP_SELECT:
        return selects[cpu_kind_size(to)];
    case AP_OP_REDUCE_PRECISION:
        return k == CPU_F32 ? reduce_precision : NULL;
    }
    if (k == CPU_C64 || to == CPU_C64)
        return cpu_complex_find(op, direction);
    if (k == CPU_F32 || k == CPU_F64)
        return cpu_float_find(op, direction, k);
    return cpu_int_find(op, direction, k);
}

enum ap_op cpu_red_op(enum ap_red red)
{
    switch (red) {
    case AP_RED_SUM:
        return AP_OP_ADD;
    case AP_RED_PROD:
        return AP_OP_MULTIPLY;
    case AP_RED_MAX:
        return AP_OP_MAXIMUM;
    case AP_RED_MIN:
        return AP_OP_MINIMUM;
    case AP_RED_AND:
        return AP_OP_AND;
    case AP_RED_OR:
        return AP_OP_OR;
    case AP_RED_NONE:
    case AP_RED_ASSIGN:
    case AP_N_REDS:
        break;
    }
    return AP_N_OPS;
}
