/*
 * Elementwise operations on integers and pred, with XLA's answers where C has none:
 * arithmetic wraps, division by zero gives all ones, remainder by zero the dividend,
 * shifts by the width or more give 0 or the sign.
 */
#include "elem/formula.h"
#include "graph/formulas.h"

/* Bits of x without leading zeros. */
static inline int bit_length(uint64_t x)
{
    return x ? 64 - __builtin_clzll(x) : 0;
}

#define UNARY_FN(OP, S, T, expr)  CPU_UNARY(, OP##_##S, T, T, expr)
#define BINARY_FN(OP, S, T, expr) CPU_BINARY(, OP##_##S, T, T, expr)
#define CLAMP_FN(S, T, expr)      CPU_CLAMP(, clamp_##S, T, expr)
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
    INT_CLAMP(CLAMP_FN, S, T)                                                            \
    CPU_COMPARES(, S, T, CPU_AS_IT_IS)                                                   \
    static cpu_fn *const table_##S[AP_N_OPS] = {OPS(ROW, ROW, S, T, U, V)[AP_OP_CLAMP] = \
                                                    clamp_##S};

#define SIGNED_TABLE(S, T, U, W, V)   INT_TABLE(SIGNED_FORMULAS, S, T, U, W, V)
#define UNSIGNED_TABLE(S, T, U, W, V) INT_TABLE(UNSIGNED_FORMULAS, S, T, U, W, V)
SIGNED_TYPES(SIGNED_TABLE)
UNSIGNED_TYPES(UNSIGNED_TABLE)

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
