/*
 * Elementwise operations on integers and pred, with XLA's answers where C has none:
 * arithmetic wraps, division by zero gives all ones, remainder by zero the dividend,
 * shifts by the width or more give 0 or the sign.
 */
#include "cpu/cpu.h"

#define UNUSED_ARGS() ((void)stride, (void)a, (void)b, (void)c)

#define UNARY(name, T, expr)                                               \
    static void name(void *d, const void *a, const void *b, const void *c, \
                     const int *stride, int64_t n)                         \
    {                                                                      \
        UNUSED_ARGS();                                                     \
        T *o = d;                                                          \
        const T *p = a;                                                    \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)               \
        {                                                                  \
            const T x = p[i];                                              \
            o[i] = (T)(expr);                                              \
        }                                                                  \
    }

#define BINARY_TO(name, T, R, expr)                                        \
    static void name(void *d, const void *a, const void *b, const void *c, \
                     const int *stride, int64_t n)                         \
    {                                                                      \
        (void)c;                                                           \
        R *o = d;                                                          \
        const T *p = a, *q = b;                                            \
        if (stride[0] && stride[1]) {                                      \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)           \
            {                                                              \
                const T x = p[i], y = q[i];                                \
                o[i] = (R)(expr);                                          \
            }                                                              \
        } else if (stride[0]) {                                            \
            const T y = q[0];                                              \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)           \
            {                                                              \
                const T x = p[i];                                          \
                o[i] = (R)(expr);                                          \
            }                                                              \
        } else {                                                           \
            const T x = p[0];                                              \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)           \
            {                                                              \
                const T y = q[i];                                          \
                o[i] = (R)(expr);                                          \
            }                                                              \
        }                                                                  \
    }
#define BINARY(name, T, expr) BINARY_TO(name, T, T, expr)

/* Bits of x without leading zeros. */
static inline int bit_length(uint64_t x)
{
    return x ? 64 - __builtin_clzll(x) : 0;
}

/* U: an unsigned type at least as wide as int in which T's arithmetic wraps. */
#define INT_OPS(T, U, W, S, POW)                                                \
    static T ipow_##S(T x, T y)                                                 \
    {                                                                           \
        U r = 1, f = (U)x;                                                      \
        for (W e = (W)y; e; e >>= 1, f *= f)                                    \
            if (e & 1)                                                          \
                r *= f;                                                         \
        return (T)r;                                                            \
    }                                                                           \
    UNARY(neg_##S, T, -(U)x)                                                    \
    UNARY(clz_##S, T, 8 * sizeof(T) - (size_t)bit_length((uint64_t)(W)x))       \
    UNARY(popcnt_##S, T, __builtin_popcountll((uint64_t)(W)x))                  \
    UNARY(not_##S, T, ~(U)x)                                                    \
    BINARY(add_##S, T, (U)x + (U)y)                                             \
    BINARY(sub_##S, T, (U)x - (U)y)                                             \
    BINARY(mul_##S, T, (U)x *(U)y)                                              \
    BINARY(and_##S, T, (U)x &(U)y)                                              \
    BINARY(or_##S, T, (U)x | (U)y)                                              \
    BINARY(xor_##S, T, (U)x ^ (U)y)                                             \
    BINARY(max_##S, T, x > y ? x : y)                                           \
    BINARY(min_##S, T, x < y ? x : y)                                           \
    BINARY(pow_##S, T, POW(S))                                                  \
    BINARY(shl_##S, T, (W)y < 8 * sizeof(T) ? (U)(W)x << (W)y : 0)              \
    BINARY(shr_##S, T, (W)y < 8 * sizeof(T) ? (U)(W)x >> (W)y : 0)              \
    BINARY_TO(eq_##S, T, uint8_t, x == y)                                       \
    BINARY_TO(ne_##S, T, uint8_t, x != y)                                       \
    BINARY_TO(ge_##S, T, uint8_t, x >= y)                                       \
    BINARY_TO(gt_##S, T, uint8_t, x > y)                                        \
    BINARY_TO(le_##S, T, uint8_t, x <= y)                                       \
    BINARY_TO(lt_##S, T, uint8_t, x < y)                                        \
    static void clamp_##S(void *d, const void *a, const void *b, const void *c, \
                          const int *stride, int64_t n)                         \
    {                                                                           \
        T *o = d;                                                               \
        const T *l = a, *p = b, *h = c;                                         \
        const int64_t sl = stride[0], sp = stride[1], sh = stride[2];           \
        for (int64_t i = 0; i < n; i++) {                                       \
            const T x = p[i * sp] > l[i * sl] ? p[i * sp] : l[i * sl];          \
            o[i] = x < h[i * sh] ? x : h[i * sh];                               \
        }                                                                       \
    }

#define POW_SIGNED(S) \
    (y >= 0 ? ipow_##S(x, y) : x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0)
#define POW_UNSIGNED(S) ipow_##S(x, y)

#define SIGNED_OPS(T, U, W, S)                                             \
    INT_OPS(T, U, W, S, POW_SIGNED)                                        \
    UNARY(abs_##S, T, x < 0 ? -(U)x : (U)x)                                \
    UNARY(sign_##S, T, (x > 0) - (x < 0))                                  \
    BINARY(div_##S, T, y == 0 ? (T)-1 : y == -1 ? (T) - (U)x : (T)(x / y)) \
    BINARY(rem_##S, T, y == 0 ? x : y == -1 ? 0 : x % y)                   \
    BINARY(sar_##S, T, (W)y < 8 * sizeof(T) ? x >> (W)y : x < 0 ? -1 : 0)
#define UNSIGNED_OPS(T, U, S, s)                    \
    INT_OPS(T, U, T, S, POW_UNSIGNED)               \
    UNARY(abs_##S, T, x)                            \
    UNARY(sign_##S, T, x > 0)                       \
    BINARY(div_##S, T, y == 0 ? (T)-1 : (T)(x / y)) \
    BINARY(rem_##S, T, y == 0 ? x : (T)(x % y))     \
    BINARY(sar_##S, T, (s)x >> (y < 8 * sizeof(T) ? y : 8 * sizeof(T) - 1))

SIGNED_OPS(int8_t, uint32_t, uint8_t, s8)
SIGNED_OPS(int16_t, uint32_t, uint16_t, s16)
SIGNED_OPS(int32_t, uint32_t, uint32_t, s32)
SIGNED_OPS(int64_t, uint64_t, uint64_t, s64)
UNSIGNED_OPS(uint8_t, uint32_t, u8, int8_t)
UNSIGNED_OPS(uint16_t, uint32_t, u16, int16_t)
UNSIGNED_OPS(uint32_t, uint32_t, u32, int32_t)
UNSIGNED_OPS(uint64_t, uint64_t, u64, int64_t)

UNARY(not_pred, uint8_t, !x)

#define INT_ROWS(k, S)                                                                   \
    [AP_OP_ABS][k] = abs_##S, [AP_OP_NEGATE][k] = neg_##S, [AP_OP_NOT][k] = not_##S,     \
    [AP_OP_SIGN][k] = sign_##S, [AP_OP_ADD][k] = add_##S, [AP_OP_AND][k] = and_##S,      \
    [AP_OP_DIVIDE][k] = div_##S, [AP_OP_MAXIMUM][k] = max_##S,                           \
    [AP_OP_MINIMUM][k] = min_##S, [AP_OP_MULTIPLY][k] = mul_##S, [AP_OP_OR][k] = or_##S, \
    [AP_OP_POWER][k] = pow_##S, [AP_OP_REMAINDER][k] = rem_##S,                          \
    [AP_OP_SHIFT_LEFT][k] = shl_##S, [AP_OP_SHIFT_RIGHT_ARITHMETIC][k] = sar_##S,        \
    [AP_OP_COUNT_LEADING_ZEROS][k] = clz_##S, [AP_OP_POPCNT][k] = popcnt_##S,            \
    [AP_OP_SHIFT_RIGHT_LOGICAL][k] = shr_##S, [AP_OP_SUBTRACT][k] = sub_##S,             \
    [AP_OP_XOR][k] = xor_##S, [AP_OP_CLAMP][k] = clamp_##S
#define COMPARES(k, S) [k] = {eq_##S, ne_##S, ge_##S, gt_##S, le_##S, lt_##S}

cpu_fn *cpu_int_find(enum ap_op op, enum ap_direction direction, enum cpu_kind kind)
{
    static cpu_fn *const table[AP_N_OPS][CPU_N_KINDS] = {
        INT_ROWS(CPU_S8, s8), INT_ROWS(CPU_S16, s16), INT_ROWS(CPU_S32, s32),
        INT_ROWS(CPU_S64, s64), INT_ROWS(CPU_U8, u8), INT_ROWS(CPU_U16, u16),
        INT_ROWS(CPU_U32, u32), INT_ROWS(CPU_U64, u64),
        /* pred: 0 or 1 */
        [AP_OP_NOT][CPU_PRED] = not_pred, [AP_OP_AND][CPU_PRED] = and_u8,
        [AP_OP_OR][CPU_PRED] = or_u8, [AP_OP_XOR][CPU_PRED] = xor_u8,
        [AP_OP_ADD][CPU_PRED] = or_u8, [AP_OP_MULTIPLY][CPU_PRED] = and_u8,
        [AP_OP_MAXIMUM][CPU_PRED] = or_u8, [AP_OP_MINIMUM][CPU_PRED] = and_u8,
        [AP_OP_CLAMP][CPU_PRED] = clamp_u8};
    static cpu_fn *const compare[CPU_N_KINDS][6] = {
        COMPARES(CPU_PRED, u8), COMPARES(CPU_S8, s8),   COMPARES(CPU_S16, s16),
        COMPARES(CPU_S32, s32), COMPARES(CPU_S64, s64), COMPARES(CPU_U8, u8),
        COMPARES(CPU_U16, u16), COMPARES(CPU_U32, u32), COMPARES(CPU_U64, u64)};
    return op == AP_OP_COMPARE ? compare[kind][direction] : table[op][kind];
}
