/*
 * Elementwise operations on integers and pred, with XLA's answers where C has none:
 * arithmetic wraps, division by zero gives all ones, remainder by zero the dividend,
 * shifts by the width or more give 0 or the sign.
 */
#include "cpu/cpu_elem.h"

/* Bits of x without leading zeros. */
static inline int bit_length(uint64_t x)
{
    return x ? 64 - __builtin_clzll(x) : 0;
}

/* T: the type; U: an unsigned one at least as wide as int, in which T's arithmetic wraps;
 * W: T's unsigned type. */
#define INT_OPS(UNARY, BINARY, S, T, U, W)                                        \
    UNARY(COUNT_LEADING_ZEROS, S, T, 8 * sizeof(T) - (size_t)bit_length((W)x))    \
    UNARY(NEGATE, S, T, -(U)x)                                                    \
    UNARY(NOT, S, T, ~(U)x)                                                       \
    UNARY(POPCNT, S, T, __builtin_popcountll((W)x))                               \
    BINARY(ADD, S, T, (U)x + (U)y)                                                \
    BINARY(AND, S, T, (x & y))                                                    \
    BINARY(MAXIMUM, S, T, x > y ? x : y)                                          \
    BINARY(MINIMUM, S, T, x < y ? x : y)                                          \
    BINARY(MULTIPLY, S, T, ((U)x * (U)y))                                         \
    BINARY(OR, S, T, (x | y))                                                     \
    BINARY(SHIFT_LEFT, S, T, (W)y < 8 * sizeof(T) ? (U)(W)x << (W)y : 0)          \
    BINARY(SHIFT_RIGHT_LOGICAL, S, T, (W)y < 8 * sizeof(T) ? (U)(W)x >> (W)y : 0) \
    BINARY(SUBTRACT, S, T, (U)x - (U)y)                                           \
    BINARY(XOR, S, T, (x ^ y))

#define SIGNED_OPS(UNARY, BINARY, S, T, U, W)                                \
    INT_OPS(UNARY, BINARY, S, T, U, W)                                       \
    UNARY(ABS, S, T, x < 0 ? -(U)x : (U)x)                                   \
    UNARY(SIGN, S, T, (x > 0) - (x < 0))                                     \
    BINARY(DIVIDE, S, T, y == 0 ? (T)-1 : y == -1 ? (T) - (U)x : (T)(x / y)) \
    BINARY(POWER, S, T,                                                      \
           y >= 0    ? power_##S(x, y)                                       \
           : x == 1  ? 1                                                     \
           : x == -1 ? (y & 1 ? -1 : 1)                                      \
                     : 0)                                                    \
    BINARY(REMAINDER, S, T, y == 0 ? x : y == -1 ? 0 : x % y)                \
    BINARY(SHIFT_RIGHT_ARITHMETIC, S, T,                                     \
           (W)y < 8 * sizeof(T) ? x >> (W)y                                  \
           : x < 0              ? -1                                         \
                                : 0)

#define UNSIGNED_OPS(UNARY, BINARY, S, T, U, V)       \
    INT_OPS(UNARY, BINARY, S, T, U, T)                \
    UNARY(ABS, S, T, x)                               \
    UNARY(SIGN, S, T, x > 0)                          \
    BINARY(DIVIDE, S, T, y == 0 ? (T)-1 : (T)(x / y)) \
    BINARY(POWER, S, T, power_##S(x, y))              \
    BINARY(REMAINDER, S, T, y == 0 ? x : (T)(x % y))  \
    BINARY(SHIFT_RIGHT_ARITHMETIC, S, T,              \
           (V)x >> (y < 8 * sizeof(T) ? y : 8 * sizeof(T) - 1))

#define UNARY_FN(OP, S, T, expr)  CPU_UNARY(, OP##_##S, T, T, expr)
#define BINARY_FN(OP, S, T, expr) CPU_BINARY(, OP##_##S, T, T, expr)
#define ROW(OP, S, T, expr)       [AP_OP_##OP] = OP##_##S,

/* V: T's other signedness. */
#define INT_TABLE(OPS, S, T, U, W, V)                                                    \
    static T power_##S(T x, T y)                                                         \
    {                                                                                    \
        U r = 1, f = (U)x;                                                               \
        for (W e = (W)y; e; e >>= 1, f *= f)                                             \
            if (e & 1)                                                                   \
                r *= f;                                                                  \
        return (T)r;                                                                     \
    }                                                                                    \
    OPS(UNARY_FN, BINARY_FN, S, T, U, V)                                                 \
    CPU_CLAMP(, clamp_##S, T, ((x = x > lo ? x : lo), x < hi ? x : hi))                  \
    CPU_COMPARES(, S, T, CPU_AS_IT_IS)                                                   \
    static cpu_fn *const table_##S[AP_N_OPS] = {OPS(ROW, ROW, S, T, U, V)[AP_OP_CLAMP] = \
                                                    clamp_##S};

INT_TABLE(SIGNED_OPS, s8, int8_t, uint32_t, uint8_t, uint8_t)
INT_TABLE(SIGNED_OPS, s16, int16_t, uint32_t, uint16_t, uint16_t)
INT_TABLE(SIGNED_OPS, s32, int32_t, uint32_t, uint32_t, uint32_t)
INT_TABLE(SIGNED_OPS, s64, int64_t, uint64_t, uint64_t, uint64_t)
INT_TABLE(UNSIGNED_OPS, u8, uint8_t, uint32_t, uint8_t, int8_t)
INT_TABLE(UNSIGNED_OPS, u16, uint16_t, uint32_t, uint16_t, int16_t)
INT_TABLE(UNSIGNED_OPS, u32, uint32_t, uint32_t, uint32_t, int32_t)
INT_TABLE(UNSIGNED_OPS, u64, uint64_t, uint64_t, uint64_t, int64_t)

CPU_UNARY(, not_pred, uint8_t, uint8_t, !x)
/* pred: 0 or 1 */
static cpu_fn *const table_pred[AP_N_OPS] = {
    [AP_OP_NOT] = not_pred,  [AP_OP_AND] = AND_u8,     [AP_OP_OR] = OR_u8,
    [AP_OP_XOR] = XOR_u8,    [AP_OP_ADD] = OR_u8,      [AP_OP_MULTIPLY] = AND_u8,
    [AP_OP_MAXIMUM] = OR_u8, [AP_OP_MINIMUM] = AND_u8, [AP_OP_CLAMP] = clamp_u8};

cpu_fn *cpu_int_find(enum ap_op op, enum ap_direction direction, enum cpu_kind kind)
{
    static cpu_fn *const *const table[CPU_N_KINDS] = {table_pred, table_s8,  table_s16,
                                                      table_s32,  table_s64, table_u8,
                                                      table_u16,  table_u32, table_u64};
    static cpu_fn *const *const compare[CPU_N_KINDS] = {
        compare_u8, compare_s8,  compare_s16, compare_s32, compare_s64,
        compare_u8, compare_u16, compare_u32, compare_u64};
    return op == AP_OP_COMPARE ? compare[kind][direction] : table[kind][op];
}
